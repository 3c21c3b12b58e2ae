"""What the world does: the papers' problems, and what a problem of your own needs."""

from cbandit.problems.cbo import Allocation, cbo_gpu_allocation
from cbandit.problems.gridded import Gridded, Phase
from cbandit.problems.guo import guo_classical, guo_delayed, guo_nonstationary
from cbandit.problems.protocol import Blockwise, Evaluation, Problem, Round
from cbandit.problems.shi import (
    shi_data_rate,
    shi_proposition_1,
    shi_small_feasible,
)
from cbandit.problems.table import Resampled, Table
from cbandit.problems.zhou import Known, zhou_finance, zhou_light, zhou_synthetic

__all__ = [
    "Allocation",
    "Blockwise",
    "Evaluation",
    "Gridded",
    "Known",
    "Phase",
    "Problem",
    "Resampled",
    "Round",
    "Table",
    "cbo_gpu_allocation",
    "guo_classical",
    "guo_delayed",
    "guo_nonstationary",
    "shi_data_rate",
    "shi_proposition_1",
    "shi_small_feasible",
    "zhou_finance",
    "zhou_light",
    "zhou_synthetic",
]
