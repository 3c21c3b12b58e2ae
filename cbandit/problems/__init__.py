"""Problems: the world that policies act in.

``protocol`` says what a problem of your own needs. ``table``, ``linear`` and
``gridded`` are kinds of problems; most other files hold the problems themselves.
"""

from cbandit.problems.botorch_functions import Continuous, from_botorch
from cbandit.problems.cbo import Allocation, cbo_gpu_allocation
from cbandit.problems.classifiers import digits
from cbandit.problems.contexts import Contexts, Yardstick
from cbandit.problems.expert import expert_distance
from cbandit.problems.gridded import Gridded, Phase
from cbandit.problems.guo import guo_classical, guo_delayed, guo_nonstationary
from cbandit.problems.language_models import routing
from cbandit.problems.linear import LinearProblem
from cbandit.problems.linear_rounds import LinearRounds
from cbandit.problems.pacchiano import (
    bench_stagewise,
    pacchiano_contextual,
    pacchiano_cyclic,
    pacchiano_hard,
    pacchiano_hard_linear,
    pacchiano_opb_four,
    pacchiano_opb_random,
    pacchiano_sphere,
)
from cbandit.problems.protocol import Blockwise, Evaluation, Problem, Round
from cbandit.problems.shi import (
    shi_data_rate,
    shi_proposition_1,
    shi_small_feasible,
)
from cbandit.problems.table import Normal, Resampled, Table
from cbandit.problems.zhou import Known, zhou_finance, zhou_light, zhou_synthetic

__all__ = [
    "Allocation",
    "Blockwise",
    "Contexts",
    "Continuous",
    "Evaluation",
    "Gridded",
    "Known",
    "LinearProblem",
    "LinearRounds",
    "Normal",
    "Phase",
    "Problem",
    "Resampled",
    "Round",
    "Table",
    "Yardstick",
    "bench_stagewise",
    "cbo_gpu_allocation",
    "digits",
    "expert_distance",
    "from_botorch",
    "guo_classical",
    "guo_delayed",
    "guo_nonstationary",
    "pacchiano_contextual",
    "pacchiano_cyclic",
    "pacchiano_hard",
    "pacchiano_hard_linear",
    "pacchiano_opb_four",
    "pacchiano_opb_random",
    "pacchiano_sphere",
    "routing",
    "shi_data_rate",
    "shi_proposition_1",
    "shi_small_feasible",
    "zhou_finance",
    "zhou_light",
    "zhou_synthetic",
]
