"""Fifty kernels on all engines and a box, against GPyTorch's own covariance.

Posteriors agree with a dense solve of ``kernel(x).to_dense()`` to 1e-8 of the prior
deviation in float64 and 1e-3 in float32, or the kernel is refused by name.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import gpytorch
import pytest
import torch
from botorch.models.gp_regression_mixed import MixedSingleTaskGP
from botorch.models.kernels import (
    CategoricalKernel,
    DownsamplingKernel,
    ExponentialDecayKernel,
    InfiniteWidthBNNKernel,
    LinearTruncatedFidelityKernel,
)
from botorch.models.kernels.contextual_sac import SACKernel
from botorch.models.kernels.positive_index import PositiveIndexKernel
from gpytorch import kernels as gpk

import cbandit as cb

# GPyTorch's own: deprecated arguments, sparse tensors, and roots that nobody asks for
pytestmark = [
    pytest.mark.filterwarnings(f"ignore:{message}")
    for message in (
        "The last_dim_is_batch argument:DeprecationWarning",
        "Sparse invariant checks:UserWarning",
        "A not p.d.:linear_operator.utils.warnings.NumericalWarning",
    )
]

F64 = torch.float64
LAM = 1e-2
ONE = torch.Size([1])
SET = cb.ProductGrid([[0.0, 0.2, 0.55, 0.8, 1.0], [0.1, 0.4, 0.9], [0.0, 1.0, 2.0]])
BOX = cb.Box([0.0, 0.1], [1.0, 0.9], choices=[[0.0], [1.0], [2.0]])
POINTS = SET.block(0, SET.size).double()
TRIED = torch.tensor([0, 7, 8, 13, 20, 22, 29, 31, 36, 44])
ENGINES = ("joint", "factor", "product", "stream", "weights", "box")
BOUND = {"float64": 1e-8, "float32": 1e-3}


class Louder(gpk.RBFKernel):
    """An RBF with an amplitude, which claims to be stationary as its base does."""

    def forward(self, x1, x2, diag=False, **params):
        left, right = (0.3 + x.square().sum(-1) for x in (x1, x2))
        values = super().forward(x1, x2, diag=diag, **params)
        if diag:
            return values * left * right
        return values * left.unsqueeze(-1) * right.unsqueeze(-2)


class Named(gpk.RBFKernel):
    """An RBF under another name."""


class Halved(gpk.ScaleKernel):
    """A scaling that also halves."""

    def forward(self, x1, x2, diag=False, **params):
        return super().forward(x1, x2, diag=diag, **params) * 0.5


class Deep(gpk.Kernel):
    """An RBF on what a network makes of the coordinates."""

    def __init__(self, **options):
        super().__init__(**options)
        self.net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh())
        self.base = gpk.RBFKernel()

    def forward(self, x1, x2, diag=False, **params):
        return self.base.forward(self.net(x1), self.net(x2), diag=diag, **params)


class Warped(gpk.Kernel):
    """Gibbs' kernel of one coordinate, whose lengthscale grows; its variance is 1."""

    has_lengthscale = True

    def forward(self, x1, x2, diag=False, **params):
        a, b = (self.lengthscale[..., 0] * (0.5 + x[..., 0]) for x in (x1, x2))
        one, other = x1[..., 0], x2[..., 0]
        if not diag:
            a, one = a.unsqueeze(-1), one.unsqueeze(-1)
            b, other = b.unsqueeze(-2), other.unsqueeze(-2)
        both = a.square() + b.square()
        return (2 * a * b / both).sqrt() * (-(one - other).square() / both).exp()


def mixed():
    """BoTorch's kernel of numbers and categories."""
    y = torch.sin(POINTS.sum(-1, keepdim=True))
    return MixedSingleTaskGP(POINTS, y, cat_dims=[2]).covar_module


def drawn():
    """Random Fourier features, drawn before the kernel is copied."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        kernel = gpk.RFFKernel(num_samples=40, num_dims=3).double()
    return kernel


@dataclass(frozen=True)
class Case:
    """A kernel, and the engines that take it beside joint, factor and boxes."""

    make: object
    engines: str = ""
    changes: float = 0.4  # the spread of hyperparameters about their defaults

    def kernel(self):
        """Return the kernel, its hyperparameters moved off their defaults."""
        generator = torch.Generator().manual_seed(5)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            kernel = self.make().double()
        for value in kernel.parameters():
            value.data += self.changes * torch.randn(
                value.shape, generator=generator, dtype=F64
            )
        return kernel.requires_grad_(False)


def rbf(*dims, ard=False, **options):
    """Return an RBF on some columns, with one lengthscale for each if ``ard``."""
    ard_num_dims = len(dims) if ard else None
    return gpk.RBFKernel(active_dims=dims or None, ard_num_dims=ard_num_dims, **options)


def matern(nu, *dims, **options):
    return gpk.MaternKernel(nu, active_dims=dims or None, **options)


def linear(*dims, **options):
    return gpk.LinearKernel(active_dims=dims or None, **options)


scale = gpk.ScaleKernel
FACTORS, CLOSED, FINITE = "product", "stream", "weights"
BOTH = "product stream"

CASES = {
    # closed forms on parts of the columns
    "rbf": Case(lambda: rbf(), BOTH),
    "rbf, ard": Case(lambda: gpk.RBFKernel(ard_num_dims=3), BOTH),
    "rbf, columns swapped": Case(lambda: rbf(1, 0, ard=True), BOTH),
    "scaled, columns swapped": Case(lambda: scale(rbf(1, 0, ard=True)), BOTH),
    "scaled twice": Case(lambda: scale(scale(rbf(2, 1, ard=True))), BOTH),
    "a scaling that chooses": Case(
        lambda: scale(gpk.RBFKernel(ard_num_dims=2), active_dims=[2, 0]), BOTH
    ),
    "a column twice": Case(lambda: rbf(0, 0), FACTORS),
    "matern 1/2": Case(lambda: matern(0.5), CLOSED),
    "matern 3/2, ard": Case(lambda: matern(1.5, ard_num_dims=3), CLOSED),
    "matern 5/2, scaled": Case(lambda: scale(matern(2.5, 2, 1)), CLOSED),
    "matern, one column": Case(lambda: scale(matern(2.5, 1)), BOTH),
    "linear": Case(lambda: linear(), "stream weights"),
    "linear, ard": Case(lambda: linear(1, 2, ard_num_dims=2), "stream weights"),
    "linear, scaled": Case(lambda: scale(linear(2, 0)), "stream weights"),
    # products
    "one an axis": Case(lambda: matern(2.5, 0) * rbf(1) * matern(0.5, 2), BOTH),
    "one an axis, scaled": Case(lambda: scale(matern(1.5, 2) * rbf(0)), BOTH),
    "scaled ones": Case(lambda: scale(matern(1.5, 2)) * scale(rbf(0, 1)), BOTH),
    "linear times rbf": Case(lambda: linear(0) * rbf(1, 2), BOTH),
    "matern times rbf": Case(lambda: matern(2.5, 1, 0) * rbf(2, 1), CLOSED),
    "constant times rbf": Case(lambda: gpk.ConstantKernel() * rbf(1, 0), BOTH),
    "categories times rbf": Case(
        lambda: rbf(0, 1) * CategoricalKernel(active_dims=[2]), FACTORS
    ),
    "scaled categories": Case(
        lambda: scale(CategoricalKernel(ard_num_dims=3)), FACTORS
    ),
    "a sum on one axis": Case(
        lambda: (scale(rbf(0)) + scale(matern(0.5, 0))) * matern(2.5, 2), FACTORS
    ),
    # sums
    "additive": Case(lambda: scale(rbf(0)) + scale(rbf(1))),
    "additive, three kinds": Case(
        lambda: scale(rbf(0)) + scale(matern(1.5, 2, 1)) + linear(1)
    ),
    "a scaled sum": Case(lambda: scale(rbf(0) + scale(matern(0.5, 2)))),
    "a product of sums": Case(lambda: (rbf(0) + rbf(1)) * (linear(2) + rbf(0))),
    "a sum of products": Case(lambda: rbf(0) * matern(0.5, 1) + scale(rbf(2))),
    "linear and constant": Case(
        lambda: scale(linear(0, 1)) + gpk.ConstantKernel(), FINITE
    ),
    "linear in parts": Case(lambda: linear(0) + scale(linear(2)), FINITE),
    "rbf and linear": Case(lambda: rbf() + linear()),
    "BoTorch's mixed": Case(mixed),
    # kernels without a closed form
    "rational quadratic": Case(lambda: scale(gpk.RQKernel(active_dims=[2, 0]))),
    "periodic": Case(lambda: gpk.PeriodicKernel(ard_num_dims=3), FACTORS),
    "periodic, locally": Case(
        lambda: scale(gpk.PeriodicKernel(active_dims=[1]) * rbf(1, 0)), FACTORS
    ),
    "cosine": Case(lambda: gpk.CosineKernel(active_dims=[1]), FACTORS),
    "piecewise": Case(lambda: gpk.PiecewisePolynomialKernel(q=1)),
    "polynomial": Case(lambda: gpk.PolynomialKernel(2, active_dims=[1, 2])),
    "spectral mixture": Case(lambda: gpk.SpectralMixtureKernel(2, ard_num_dims=3)),
    "random features": Case(drawn),
    "arc": Case(
        lambda: gpk.ArcKernel(gpk.MaternKernel(2.5), ard_num_dims=3, delta_func=None)
    ),
    "tasks": Case(lambda: rbf(0, 1) * gpk.IndexKernel(3, 2, active_dims=[2]), FACTORS),
    "tasks, positive": Case(
        lambda: rbf(0, 1) * PositiveIndexKernel(3, 2, active_dims=[2]), FACTORS
    ),
    "Newton and Girard": Case(
        lambda: gpk.NewtonGirardAdditiveKernel(gpk.RBFKernel(), 3, 2)
    ),
    "exponential decay": Case(lambda: ExponentialDecayKernel(active_dims=[0]), FACTORS),
    "decay times rbf": Case(
        lambda: ExponentialDecayKernel(active_dims=[1]) * rbf(0, 2), FACTORS
    ),
    "downsampling": Case(lambda: DownsamplingKernel(active_dims=[0]), FACTORS),
    "wide network": Case(lambda: InfiniteWidthBNNKernel(2, acos_eps=1e-15)),
    "truncated fidelity": Case(
        lambda: LinearTruncatedFidelityKernel(fidelity_dims=[1], dimension=3)
    ),
    "contexts": Case(
        lambda: SACKernel({"a": [0], "b": [1]}, batch_shape=torch.Size([]))
    ),
    # kernels of one's own
    "an amplitude": Case(lambda: Louder()),
    "an amplitude, scaled": Case(lambda: scale(Louder(active_dims=[2, 0]))),
    "an amplitude in a sum": Case(lambda: Louder(active_dims=[1]) + rbf(0)),
    "another name": Case(lambda: Named(active_dims=[1, 2]), FACTORS),
    "a scaling of one's own": Case(lambda: Halved(rbf(1, 0, ard=True))),
    "deep": Case(Deep),
    "deep, scaled": Case(lambda: scale(Deep()) + scale(matern(1.5, 0))),
    "Gibbs'": Case(lambda: Warped(active_dims=[1]), FACTORS),
    "of one trial": Case(
        lambda: scale(rbf(1, 0, batch_shape=ONE), batch_shape=ONE), BOTH
    ),
    "a scale of one trial": Case(
        lambda: scale(rbf(1, 0, ard=True), batch_shape=ONE), BOTH
    ),
}


def told():
    """Outcomes of the tried actions."""
    generator = torch.Generator().manual_seed(2)
    return torch.randn(len(TRIED), generator=generator, dtype=F64)


def reference(kernel, y):
    """Return GPyTorch's means and deviations of all points, by a dense solve."""
    k = kernel(POINTS).to_dense().reshape(len(POINTS), -1)
    cross = k[TRIED]
    system = cross[:, TRIED] + LAM * torch.eye(len(TRIED), dtype=F64)
    solved = torch.linalg.solve(system, cross)
    var = k.diagonal() - torch.linalg.vecdot(cross, solved, dim=0)
    return y @ solved, var.clamp_min(0).sqrt(), float(k.diagonal().max().sqrt())


def believed(kernel, engine, dtype):
    """Return a policy's means and deviations of all points; engine or box."""
    belief = cb.GP(kernel, noise=LAM)
    box = engine == "box"
    policy = cb.GPUCB(
        BOX if box else SET,
        reward=belief,
        engine="auto" if box else engine,
        dtype=dtype,
    )
    if box:
        policy.observe(x=POINTS[TRIED], reward=told())
        found = policy.posterior(POINTS).reward
    else:
        policy.observe(index=TRIED, reward=told())
        found = policy.posterior().reward
    return found.mean.double(), found.std.double()


@pytest.mark.parametrize("name", CASES)
def test_all_engines_agree_with_gpytorch(name):
    case = CASES[name]
    kernel = case.kernel()
    mean, std, prior = reference(kernel, told())
    for engine in ENGINES:
        always = engine in ("joint", "factor", "box")
        if not always and engine not in case.engines.split():
            with pytest.raises(cb.CBanditError, match=f"engine='{engine}'"):
                believed(kernel, engine, "float64")
            continue
        for dtype, bound in BOUND.items():
            found = believed(kernel, engine, dtype)
            for values, want in zip(found, (mean, std), strict=True):
                off = float((values - want).abs().max()) / prior
                assert off < bound, (engine, dtype, off)


def test_the_reference_is_gpytorchs_own_posterior():
    """Of ``ExactGP`` itself, for a sum on different columns."""
    kernel = CASES["additive, three kinds"].kernel()

    class Exact(gpytorch.models.ExactGP):
        def __init__(self):
            super().__init__(POINTS[TRIED], told(), likelihood)
            self.mean_module = gpytorch.means.ZeroMean()
            self.covar_module = kernel

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(
                self.mean_module(x), self.covar_module(x)
            )

    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    likelihood.noise = LAM
    model = Exact().eval()
    with torch.no_grad(), gpytorch.settings.fast_computations(False, False, False):
        found = model(POINTS)
    mean, std, prior = reference(kernel, told())
    assert float((found.mean - mean).abs().max()) < 1e-8 * prior
    assert float((found.stddev - std).abs().max()) < 1e-8 * prior


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("engine", ENGINES)
def test_parts_of_a_kernel_may_have_different_batch_shapes(engine, batch):
    """Two scalings of an RBF on swapped columns, with a part for all trials at once."""
    if engine == "weights":
        kernel = scale(linear(1, 0), batch_shape=torch.Size([batch])).double()
    else:
        kernel = scale(rbf(1, 0, ard=True), batch_shape=torch.Size([batch])).double()
        kernel.base_kernel.lengthscale = torch.tensor([0.4, 0.7], dtype=F64)
    kernel.outputscale = torch.linspace(0.5, 1.5, batch, dtype=F64)
    kernel = kernel.requires_grad_(False)
    box = engine == "box"
    policy = cb.GPUCB(
        BOX if box else SET,
        reward=cb.GP(kernel, noise=LAM),
        engine="auto" if box else engine,
        trials=3,
    )
    y = torch.stack([told(), -told(), 2 * told()])
    where = {"x": POINTS[TRIED]} if box else {"index": TRIED}
    policy.observe(**where, reward=y)
    found = (policy.posterior(POINTS) if box else policy.posterior()).reward
    for trial in range(3):
        one = scale(kernel.base_kernel).double()
        one.outputscale = kernel.outputscale[trial % batch]
        mean, std, prior = reference(one.requires_grad_(False), y[trial])
        assert float((found.mean[trial] - mean).abs().max()) < 1e-8 * prior
        assert float((found.std[trial] - std).abs().max()) < 1e-8 * prior
    policy.refit()  # parts of their own for each trial


class WrongDiagonal(gpk.RBFKernel):
    """An RBF whose diagonal is not that of its matrix."""

    def forward(self, x1, x2, diag=False, **params):
        values = super().forward(x1, x2, diag=diag, **params)
        return 2 * values if diag else values


class Noisy(gpk.RBFKernel):
    """An RBF that adds noise where it gets the same points twice."""

    def forward(self, x1, x2, diag=False, **params):
        values = super().forward(x1, x2, diag=diag, **params)
        same = x1.shape == x2.shape and torch.equal(x1, x2)
        return values + 0.1 * torch.eye(len(x1)) if same and not diag else values


class Broken(gpk.Kernel):
    """A kernel that needs five coordinates."""

    def forward(self, x1, x2, diag=False, **params):
        return x1[..., 4:5] @ x2[..., 4:5].mT


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (WrongDiagonal, r"WrongDiagonal cannot be used, since kernel\(x, diag=True\)"),
        (Noisy, r"Noisy cannot be used, since kernel\(x, y\) differs from"),
        (gpk.RBFKernelGrad, "RBFKernelGrad is a kernel of gradients too"),
        (lambda: gpk.RBFKernel(ard_num_dims=4), "ard_num_dims = 4; .* d = 3"),
        (lambda: rbf(0, 3), r"active_dims = \[0, 3\]; the actions have d = 3"),
        (lambda: rbf(-1), r"active_dims = \[-1\]; the actions have d = 3"),
        (lambda: scale(rbf(0) + rbf(3)), r"active_dims = \[3\]; .* d = 3"),
    ],
)
@pytest.mark.parametrize("actions", [SET, BOX], ids=["set", "box"])
def test_a_kernel_that_cannot_be_read_is_refused_by_name(make, why, actions):
    with pytest.raises(cb.CBanditError, match=why):
        cb.GPUCB(actions, reward=cb.GP(make(), noise=LAM))


def test_a_reading_that_differs_is_refused(monkeypatch):
    """As where a module is changed under the hands of its class."""
    kernel = rbf(1, 0).double()
    real = kernel.forward
    monkeypatch.setattr(kernel, "forward", lambda x, y, **more: 2 * real(x, y, **more))
    with pytest.raises(cb.CBanditError, match="RBFKernel cannot be used, since"):
        cb.GPUCB(SET, reward=cb.GP(kernel, noise=LAM))


def test_places_far_apart_are_no_disagreement():
    """GPyTorch's distances lose digits there, and ours do not."""
    far = torch.linspace(0, 1e6, 40, dtype=F64)
    points = torch.cat([far, far + 1.0]).unsqueeze(-1)
    policy = cb.GPUCB(cb.Finite(points), reward=cb.GP(matern(0.5), noise=LAM))
    policy.observe(index=[3], reward=[1.0])
    assert float(policy.posterior().reward.mean[3]) == pytest.approx(1 / (1 + LAM))


@pytest.mark.parametrize("size", [400, 600])
def test_a_prior_variance_that_is_not_flat_does_not_depend_on_the_engine(size):
    """From 512 actions on ``auto`` is not the joint engine."""
    axis = torch.linspace(0, 1, size, dtype=F64).unsqueeze(-1)
    kernel = ExponentialDecayKernel().double()
    policy = cb.GPUCB(cb.Finite(axis), reward=cb.GP(kernel, noise=LAM))
    want = kernel(axis).to_dense().diagonal().detach().sqrt()
    found = policy.posterior().reward.std
    assert float((found - want).abs().max()) < 1e-8 * float(want.max())
