"""The best action, or distribution, under a score."""

from cbandit.search.finite import (
    Best,
    Score,
    among,
    best_feasible,
    furthest,
    maximise,
    safe_interval,
    within_limits,
)
from cbandit.search.simplex.lp import best_policy

__all__ = [
    "Best",
    "Score",
    "among",
    "best_feasible",
    "best_policy",
    "furthest",
    "maximise",
    "safe_interval",
    "within_limits",
]
