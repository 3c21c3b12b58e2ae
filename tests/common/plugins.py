"""Models and acquisition functions that the plug-ins' tests share."""

from __future__ import annotations

import warnings

import torch
from botorch.models import (
    KroneckerMultiTaskGP,
    ModelListGP,
    SingleTaskGP,
)
from botorch.models.model import ModelList
from botorch.utils.testing import MockModel, MockPosterior

from cbandit.acquisition import (
    OptimisticFeasible,
    PathwisePrimalDual,
    PrimalDual,
    RectifiedPenalty,
)

BOX = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
BETA, PHI, TAU = 1.5, [0.7, 0.3], [0.1, -0.2]

KINDS = {
    "primal-dual": lambda model, **more: PrimalDual(
        model, BETA, PHI, thresholds=TAU, **more
    ),
    "clipped": lambda model, **more: PrimalDual(
        model, BETA, PHI, thresholds=TAU, clip=(1.0, [0.5, 0.8]), **more
    ),
    "rectified": lambda model, **more: RectifiedPenalty(
        model, BETA, PHI, 1.0, TAU, **more
    ),
    "feasible": lambda model, **more: OptimisticFeasible(
        model, BETA, [0.5, 0.8], TAU, **more
    ),
    "pathwise": lambda model, **more: PathwisePrimalDual(
        model, BETA, PHI, thresholds=TAU, seed=3, **more
    ),
}
SMOOTH = {
    "primal-dual": {"clip": (1.0, 0.6), "smooth": [0.1, 0.2, 0.3]},
    "rectified": {"smooth": 0.2},
    "feasible": {"smooth": [0.2, 0.4]},
}


def data(n=10, dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(n, 2, generator=generator, dtype=torch.float64)
    y = [(6 * x[:, 0]).sin() + x[:, 1], x[:, 0] - 0.6, (5 * x[:, 1]).cos()]
    return x.to(dtype), torch.stack(y, -1).to(dtype)


def make(kind="one", dtype=torch.float64):
    x, y = data(dtype=dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of single precision
        if kind == "one":
            model = SingleTaskGP(x, y)
        elif kind == "list":
            model = ModelListGP(*[SingleTaskGP(x, y[:, j : j + 1]) for j in range(3)])
        elif kind == "mixed list":
            model = ModelList(SingleTaskGP(x, y[:, :1]), SingleTaskGP(x, y[:, 1:]))
        elif kind == "kronecker":
            with torch.random.fork_rng():
                torch.manual_seed(0)  # where tasks start
                model = KroneckerMultiTaskGP(x, y)
    for part in model.modules():
        if hasattr(part, "noise_covar"):
            part.noise_covar.noise = 0.02
    return model.eval()


def at(*shape, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(*shape, 2, generator=generator, dtype=torch.float64).to(dtype)


def mock(mean, variance):
    """A model that believes this, whatever it is asked; ``(*b, q, 1 + m)``."""
    mean, variance = torch.as_tensor(mean), torch.as_tensor(variance)
    return MockModel(MockPosterior(mean=mean.double(), variance=variance.double()))
