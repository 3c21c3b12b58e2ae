"""How wide confidence bounds are: formulas, schedules, and the gain they rest on.

``widths`` and ``gains`` are for users; ``bound`` gives widths the shape of a policy.
"""

from cbandit.confidence.gains import greedy_gain, worst_case_gain
from cbandit.confidence.widths import (
    RKHS,
    Constant,
    count_width,
    linear_width,
    rkhs_width,
)

__all__ = [
    "RKHS",
    "Constant",
    "count_width",
    "greedy_gain",
    "linear_width",
    "rkhs_width",
    "worst_case_gain",
]
