"""What the world does: the papers' problems, and what a problem of your own needs."""

from cbandit.problems.borrowed import Continuous, from_botorch
from cbandit.problems.linear import LinearProblem
from cbandit.problems.pacchiano import (
    bench_stagewise,
    pacchiano_cyclic,
    pacchiano_hard,
    pacchiano_opb_four,
    pacchiano_opb_random,
    pacchiano_sphere,
)
from cbandit.problems.protocol import Blockwise, Evaluation, Problem, Round
from cbandit.problems.table import Resampled, Table
from cbandit.problems.zhou import Known, zhou_finance, zhou_light, zhou_synthetic

__all__ = [
    "Blockwise",
    "Continuous",
    "Evaluation",
    "Known",
    "LinearProblem",
    "Problem",
    "Resampled",
    "Round",
    "Table",
    "bench_stagewise",
    "from_botorch",
    "pacchiano_cyclic",
    "pacchiano_hard",
    "pacchiano_opb_four",
    "pacchiano_opb_random",
    "pacchiano_sphere",
    "zhou_finance",
    "zhou_light",
    "zhou_synthetic",
]
