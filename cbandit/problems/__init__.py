"""What the world does: the papers' problems, and what a problem of your own needs."""

from cbandit.problems.protocol import Blockwise, Evaluation, Problem, Round
from cbandit.problems.table import Resampled, Table
from cbandit.problems.zhou import Known, zhou_finance, zhou_light, zhou_synthetic

__all__ = [
    "Blockwise",
    "Evaluation",
    "Known",
    "Problem",
    "Resampled",
    "Round",
    "Table",
    "zhou_finance",
    "zhou_light",
    "zhou_synthetic",
]
