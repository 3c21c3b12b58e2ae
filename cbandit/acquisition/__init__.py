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

* ``PrimalDual(model, beta, multiplier)``: CKB's score, a Lagrangian.
* ``RectifiedPenalty(model, beta, multiplier)``: RPOL's, in which only excess counts.
* ``OptimisticFeasible(model, beta)``: CONFIG's, the best of what may be feasible.
* ``PathwisePrimalDual(model, beta, multiplier)``: CKB's on one sample path.
"""

# without __all__, so that help() of this module does not print all of torch's Module
from cbandit.acquisition.paths import PathwisePrimalDual as PathwisePrimalDual
from cbandit.acquisition.register import register
from cbandit.acquisition.scores import OptimisticFeasible as OptimisticFeasible
from cbandit.acquisition.scores import PrimalDual as PrimalDual
from cbandit.acquisition.scores import RectifiedPenalty as RectifiedPenalty

for _kind in (OptimisticFeasible, PathwisePrimalDual, PrimalDual, RectifiedPenalty):
    register(_kind)
