"""How wide confidence bounds are: formulas, schedules, and the information gain.

``widths``, ``drift`` and ``gains`` are for users; ``bound`` gives widths the shape of a
policy's functions.
"""

from cbandit.confidence.drift import drift_allowance, drift_window
from cbandit.confidence.gains import greedy_gain, worst_case_gain
from cbandit.confidence.widths import (
    RKHS,
    Constant,
    count_width,
    linear_width,
    rkhs_width,
    sketched_width,
)

__all__ = [
    "RKHS",
    "Constant",
    "count_width",
    "drift_allowance",
    "drift_window",
    "greedy_gain",
    "linear_width",
    "rkhs_width",
    "sketched_width",
    "worst_case_gain",
]
