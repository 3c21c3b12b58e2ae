"""What the world does: the papers' problems, and what a problem of your own needs."""

from cbandit.problems.borrowed import Continuous, from_botorch
from cbandit.problems.protocol import Blockwise, Evaluation, Problem, Round
from cbandit.problems.table import Resampled, Table
from cbandit.problems.zhou import Known, zhou_finance, zhou_light, zhou_synthetic

__all__ = [
    "Blockwise",
    "Continuous",
    "Evaluation",
    "Known",
    "Problem",
    "Resampled",
    "Round",
    "Table",
    "from_botorch",
    "zhou_finance",
    "zhou_light",
    "zhou_synthetic",
]
