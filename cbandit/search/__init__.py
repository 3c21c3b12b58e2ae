"""Search for the best action or distribution under a score.

The searches are over finite sets, boxes, segments and the simplex of distributions.
:func:`best_policy` is public; the others are for policies.
"""

from cbandit.posterior.look import Best, maximise
from cbandit.scores import optimistic_feasible as within_limits
from cbandit.search.finite import best_feasible
from cbandit.search.segments import furthest, safe_interval
from cbandit.search.simplex.lp import best_policy

__all__ = [
    "Best",
    "best_feasible",
    "best_policy",
    "furthest",
    "maximise",
    "safe_interval",
    "within_limits",
]
