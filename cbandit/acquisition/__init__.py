"""The library's scores as BoTorch acquisition functions.

For people who keep their own loop: any BoTorch model whose outputs are the reward first
and the costs after, and anything BoTorch can do with an acquisition function. The
scores are those of :mod:`cbandit.scores`, which the policies call too; ``beta``
multiplies sigma (BoTorch's own UCB takes its square root), and feasible means a cost at
or below its threshold.

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
