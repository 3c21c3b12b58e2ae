"""The library's scores as BoTorch acquisition functions.

They are for people who keep their own loop. They take any BoTorch model whose outputs
are the reward and then the costs, and work wherever BoTorch takes an acquisition
function. The scores are those of :mod:`cbandit.scores`, which policies use too.
``beta`` multiplies sigma (BoTorch's own UCB takes its square root), and feasible means
a cost at or below its threshold.

Gradients reach points, parameters and the model's own. On GPyTorch models they also
work under ``torch.func.grad`` and ``vmap``, though not for hyperparameters there;
``torch.compile(fullgraph=True)`` takes models without GPyTorch, whose own code it
cannot compile.

Importing this module imports BoTorch, which changes GPyTorch's settings; ``import
cbandit`` alone does not.
"""

from cbandit.acquisition.paths import PathwisePrimalDual
from cbandit.acquisition.register import register
from cbandit.acquisition.scores import OptimisticFeasible, PrimalDual, RectifiedPenalty

__all__ = [
    "OptimisticFeasible",
    "PathwisePrimalDual",
    "PrimalDual",
    "RectifiedPenalty",
]

for _kind in (OptimisticFeasible, PathwisePrimalDual, PrimalDual, RectifiedPenalty):
    register(_kind)
