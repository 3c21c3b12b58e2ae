"""The plug-ins on BoTorch's own models and optimisers."""

from __future__ import annotations

import copy
import pickle
import warnings
from typing import ClassVar
from unittest import mock

import gpytorch
import numpy as np
import pytest
import torch
from botorch.acquisition.fixed_feature import FixedFeatureAcquisitionFunction
from botorch.acquisition.input_constructors import get_acqf_input_constructor
from botorch.acquisition.objective import (
    ScalarizedPosteriorTransform,
)
from botorch.acquisition.penalized import L2Penalty, PenalizedAcquisitionFunction
from botorch.acquisition.proximal import ProximalAcquisitionFunction
from botorch.generation.gen import gen_candidates_torch
from botorch.models import (
    KroneckerMultiTaskGP,
    MixedSingleTaskGP,
    ModelListGP,
    MultiTaskGP,
    SingleTaskGP,
    SingleTaskVariationalGP,
)
from botorch.models import fully_bayesian as saas
from botorch.models.deterministic import GenericDeterministicModel
from botorch.models.model import ModelList
from botorch.models.transforms import Log, Normalize, Standardize, Warp
from botorch.models.transforms.input import ChainedInputTransform, InputPerturbation
from botorch.optim.optimize import (
    optimize_acqf,
    optimize_acqf_discrete_local_search,
    optimize_acqf_list,
)
from botorch.optim.optimize_mixed import optimize_acqf_mixed_alternating
from botorch.sampling import SobolQMCNormalSampler
from botorch.utils.transforms import is_ensemble
from plugins import at

import cbandit as cb
from cbandit.acquisition import (
    OptimisticFeasible,
    PathwisePrimalDual,
    PrimalDual,
    RectifiedPenalty,
)

BOX = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
BETA = 1.5
COST_BETA, PHI, TAU = torch.tensor(
    [[0.5, 0.8], [0.7, 0.3], [0.1, -0.2]], dtype=torch.float64
)

KINDS = {
    "primal-dual": lambda model, **more: PrimalDual(
        model, BETA, PHI, COST_BETA, TAU, **more
    ),
    "rectified": lambda model, **more: RectifiedPenalty(
        model, BETA, PHI, COST_BETA, TAU, **more
    ),
    "feasible": lambda model, **more: OptimisticFeasible(
        model, BETA, COST_BETA, TAU, floor=-9.0, **more
    ),
    "pathwise": lambda model, **more: PathwisePrimalDual(
        model, 1.0, PHI, thresholds=TAU, seed=3, **more
    ),
}


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


def truth(x):
    parts = (6 * x[..., 0]).sin() + x[..., 1], x[..., 0] - 0.6, (5 * x[..., 1]).cos()
    return torch.stack(parts, -1)


def known(x):
    return truth(x)[..., 1:]


X = at(10, seed=1)
Y = truth(X)
BATCH = torch.stack([X, 0.9 * X.flip(0)])


def fully_bayesian(y):
    """Three members; JAX is needed to draw them only, and these are made up."""
    generator = torch.Generator().manual_seed(2)
    share = torch.rand(3, 1, 4, generator=generator, dtype=torch.float64)
    with (
        mock.patch.object(saas, "_check_jax_available"),
        mock.patch.object(saas, "jnp", np, create=True),
    ):
        model = saas.SaasFullyBayesianSingleTaskGP(X, y)
        model.load_mcmc_samples(
            {
                "mean": share[:, 0, 0],
                "outputscale": 1 + share[:, 0, 1],
                "lengthscale": 0.3 + share[:, :, 2:],
                "noise": torch.full((3, 1), 0.02, dtype=torch.float64),
            }
        )
    return model.eval()


def gp(columns, x=X, y=Y, kind=SingleTaskGP, **more):
    model = kind(x, y[..., columns], **more)
    if hasattr(model.likelihood.noise_covar, "raw_noise"):
        model.likelihood.noise_covar.noise = 0.02
    return model.eval()


def warped():
    transform = ChainedInputTransform(n=Normalize(2), w=Warp(d=2, indices=[0, 1]))
    return gp(slice(3), outcome_transform=Standardize(3), input_transform=transform)


def categories():
    x = torch.stack([X[:, 0], (3 * X[:, 1]).floor()], -1)
    return MixedSingleTaskGP(x, truth(x), cat_dims=[1]).eval()


def tasks():
    task = torch.arange(10).remainder(3).unsqueeze(-1).to(X)
    return gp(slice(1), torch.cat([X, task], -1), kind=MultiTaskGP, task_feature=-1)


def all_tasks_everywhere():
    with torch.random.fork_rng():
        torch.manual_seed(0)  # where tasks start
        model = KroneckerMultiTaskGP(X, Y)
    model.likelihood.noise = 0.02
    return model.eval()


MODELS = {
    "parts seen elsewhere": lambda: ModelListGP(
        gp([0]), gp([1], X[3:], Y[3:]), gp([2], X[:6], Y[:6])
    ),
    "transformed": warped,
    "one cost in logarithms": lambda: ModelListGP(
        gp([0]), gp([1]), gp([2], y=Y.exp(), outcome_transform=Log())
    ),
    "noise of its own": lambda: gp(
        slice(3), train_Yvar=0.01 + 0.1 * X[:, :1].expand(-1, 3)
    ),
    "categories": categories,
    "tasks": tasks,
    "all tasks everywhere": all_tasks_everywhere,
    "batch": lambda: gp(slice(3), BATCH, truth(BATCH)),
    "fantasies": lambda: gp(slice(3)).fantasize(
        at(2, seed=4), SobolQMCNormalSampler(torch.Size([4]), seed=1)
    ),
    "ensemble": lambda: ModelList(fully_bayesian(Y[:, :1]), gp([1]), gp([2])),
    "known costs": lambda: ModelList(
        gp([0]), GenericDeterministicModel(known, 2, torch.Size())
    ),
    "all known": lambda: GenericDeterministicModel(truth, 3),
    "variational": lambda: SingleTaskVariationalGP(
        X, Y, num_outputs=3, inducing_points=5
    ).eval(),
}
NO_PATHS = {"categories", "tasks", "all tasks everywhere", "variational"}
NOT_NORMAL = {"one cost in logarithms"}


@pytest.fixture(params=MODELS)
def which(request):
    return request.param


def made(which):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of inputs' scale, and sparse tensors
        return MODELS[which]()


def lead(model):
    """The batch that points must leave room for."""
    batch = () if is_ensemble(model) else model.batch_shape
    return (1,) * len(batch or ())


def points(which, *shape, seed=0):
    x = at(*shape, seed=seed)
    if which == "categories":
        x = torch.stack([x[..., 0], (3 * x[..., 1]).floor()], -1)
    return x


def by_hand(kind, mean, variance):
    """``(*b, 1 + m)``: the score from moments."""
    std = variance.clamp_min(0).sqrt()
    f = mean[..., 0] + BETA * std[..., 0]
    g = mean[..., 1:] - COST_BETA * std[..., 1:] - TAU
    if kind == "feasible":
        return torch.where((g <= 0).all(-1), f, -9.0 - g.amax(-1))
    return f - ((g if kind == "primal-dual" else g.clamp_min(0)) * PHI).sum(-1)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
class TestModels:
    def test_values(self, which, kind):
        model = made(which)
        if kind == "pathwise":
            if which in NO_PATHS:
                with pytest.raises(cb.CBanditError, match="can draw paths of"):
                    KINDS[kind](model)
                return
            pytest.skip("no formula; see TestPaths")
        x = points(which, 7, *lead(model), 1)
        seen = model.posterior(x)
        expected = by_hand(kind, seen.mean[..., 0, :], seen.variance[..., 0, :])
        if is_ensemble(model):
            expected = expected.mean(-1)
        value = KINDS[kind](model)(x)
        torch.testing.assert_close(value, expected, rtol=0, atol=1e-12)

    def test_a_batch_of_points(self, which, kind):
        if which in NO_PATHS and kind == "pathwise":
            pytest.skip("no paths")
        model = made(which)
        score, room = KINDS[kind](model), lead(model)
        x = points(which, 2, *room, 3)
        if which in NOT_NORMAL and kind != "pathwise":
            with pytest.raises(cb.CBanditError, match="posterior is jointly normal"):
                score(x)
            return
        together, total = score(x), 0.0
        for j in range(3):
            # what is pending is shared by all: one t-batch at a time
            parts = []
            for i in range(2):
                seen = x[i].reshape(-1, 2)[:j]
                score.set_X_pending(seen if j else None)
                parts.append(score(x[i : i + 1, ..., j : j + 1, :]))
            total = total + torch.cat(parts)
        torch.testing.assert_close(together, total, rtol=0, atol=1e-10)

    def test_gradients(self, which, kind):
        if (which in NO_PATHS and kind == "pathwise") or which == "categories":
            pytest.skip("no paths, or no derivative")
        model = made(which)
        score = KINDS[kind](model)
        x = points(which, 3, *lead(model), 1, seed=2).requires_grad_()
        way = at(3, *lead(model), 1, seed=6) - 0.5
        (slope,) = torch.autograd.grad(score(x).sum(), x)
        with torch.no_grad():
            rise = (score(x + 1e-5 * way) - score(x - 1e-5 * way)) / 2e-5
        torch.testing.assert_close(
            (slope * way).sum(), rise.sum(), rtol=1e-6, atol=1e-6
        )

    @pytest.mark.parametrize("kind", ["feasible", "pathwise"], indirect=False)
    def test_copies(self, which, kind):
        if which in NO_PATHS and kind == "pathwise":
            pytest.skip("no paths")
        model = made(which)
        score = KINDS[kind](model)
        x = points(which, 4, *lead(model), 1)
        # BoTorch copies neither what was fantasised nor variational models
        rigid = ("fantasies", "variational")
        copies = [] if which in rigid else [copy.deepcopy(score)]
        if which not in ("tasks", "all tasks everywhere", "ensemble", *rigid):
            copies.append(pickle.loads(pickle.dumps(score)))
        for twin in copies:
            torch.testing.assert_close(twin(x), score(x), rtol=0, atol=1e-12)


@pytest.mark.parametrize("q", [1, 3])
@pytest.mark.parametrize("p", [0, 2])
@pytest.mark.filterwarnings("ignore:Data .* is not standardized")
def test_members_of_a_batch_are_models_of_their_own(kind, q, p):
    if kind == "pathwise":
        pytest.skip("draws differ")
    together = SingleTaskGP(BATCH, truth(BATCH), outcome_transform=None)
    generator = torch.Generator().manual_seed(5)
    lengthscale = 0.2 + 0.5 * torch.rand(2, 3, 1, 2, generator=generator).double()
    noise = 0.01 + 0.1 * torch.rand(2, 3, 1, generator=generator).double()
    apart = [SingleTaskGP(x, truth(x), outcome_transform=None) for x in BATCH]
    for part, scale, lam in (
        (together, lengthscale, noise),
        *zip(apart, lengthscale, noise, strict=True),
    ):
        part.covar_module.lengthscale, part.likelihood.noise_covar.noise = scale, lam
        part.eval()
    pending = at(p, seed=1) if p else None
    x = at(6, q)
    expected = torch.stack([KINDS[kind](m, X_pending=pending)(x) for m in apart], -1)
    value = KINDS[kind](together, X_pending=pending)(x.unsqueeze(-3))
    torch.testing.assert_close(value, expected, rtol=0, atol=1e-11)


class TestKnownCosts:
    def test_no_width(self):
        model = made("known costs")
        x = at(5, 1)
        for pending in (None, at(2, seed=3)):
            score = PrimalDual(model, BETA, PHI, X_pending=pending)
            _, g = score.estimates(x)
            assert torch.equal(g[..., 0], known(x[:, 0]))

    def test_on_their_own_points_no_narrower(self):
        model, x = made("known costs"), at(5, 1)
        alone = PrimalDual(
            ModelListGP(gp([0]), gp([1])), BETA, [0.0], X_pending=at(2, seed=3)
        )
        score = PrimalDual(model, BETA, [0.0, 0.0], X_pending=at(2, seed=3))
        torch.testing.assert_close(score(x), alone(x), rtol=0, atol=1e-12)

    def test_floor_is_the_rewards(self):
        model, x = made("known costs"), at(200, 1)
        score = OptimisticFeasible(model, BETA)
        values, (_, g) = score(x), score.estimates(x)
        allowed = (g[..., 0] <= 0).all(-1)
        assert 0 < allowed.sum() < 200
        assert values[allowed].min() > values[~allowed].max()
        only = GenericDeterministicModel(truth, 3)
        with pytest.raises(cb.CBanditError, match="from a GenericDeterministicModel"):
            OptimisticFeasible(only, BETA)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize("which", ["batch", "fantasies", "ensemble", "tasks"])
def test_infeasible_points_lie_below_all_rewards(which):
    model = made(which)
    score = OptimisticFeasible(model, BETA, thresholds=[0.0, 0.8])
    x = at(100, *lead(model), 1)
    f, g = score.estimates(x)
    allowed, value = (g[..., 0] <= 0).all(-1), score.score(f, g)[..., 0]
    assert bool(allowed.any())
    assert not bool(allowed.all())
    assert value[allowed].min() > value[~allowed].max()


def test_the_floor_is_of_the_output_that_is_the_reward():
    """Which need not be the first, nor seen where the first was."""
    model = ModelListGP(gp([0], X[:2], Y[:2]), gp([1]), gp([2], y=100 * Y))
    score = OptimisticFeasible(model, BETA, outputs=[(2, -1.0), (0, 1.0)])
    f, _ = score.estimates(at(300, 1))
    assert score.floor.item() < f.min().item() - 1000


def test_slack_of_an_ensemble_is_its_mean():
    model = made("ensemble")
    score, x = OptimisticFeasible(model, BETA, floor=0.0), at(4)
    _, g = score.estimates(x.unsqueeze(-2))
    expected = -g.amax(-2)[..., 0].mean(-1)
    assert score.slack(x).shape == (4,)
    torch.testing.assert_close(score.slack(x), expected)
    assert score.slack(x[0]).shape == ()


class TestPaths:
    @pytest.mark.parametrize("which", ["known costs", "ensemble"])
    def test_parts_are_drawn_each_for_itself(self, which):
        model, x = made(which), at(6, 1)
        score = PathwisePrimalDual(model, 1.0, [0.0, 0.0], seed=1)
        f, g = score.estimates(x)
        if which == "known costs":
            assert torch.equal(g[..., 0], known(x[:, 0]))
        else:
            assert f.shape == (6, 3, 1)
            assert g.shape == (6, 3, 2, 1)
            assert torch.equal(g[:, 0], g[:, 1])
            assert not torch.equal(f[:, 0], f[:, 1])

    def test_many_points_are_as_a_few(self):
        score = PathwisePrimalDual(gp(slice(3)), BETA, PHI, seed=1)
        x = at(700, 3, 1)
        with torch.no_grad():
            few = torch.stack([score(part) for part in x[-3:]])
            torch.testing.assert_close(score(x)[-3:], few)

    def test_outputs_of_a_list_differ(self):
        """From each other, and from those of the seeds around."""
        model, found = ModelListGP(gp([0]), gp([0]), gp([0])), []
        for seed in (1, 2, 3):
            f, g = PathwisePrimalDual(model, 1.0, 0.0, seed=seed).estimates(at(6, 2))
            found += [f[:, 0], *g[..., 0].mT, f[:, 1], *g[..., 1].mT]
        found = torch.cat([each.reshape(-1, 6) for each in found])
        assert len(found) == 18
        far = torch.cdist(found, found) + 9 * torch.eye(18)
        assert far.min() > 1e-2


class TestSmallUnits:
    """What is true of a model is true of the same in other units."""

    @pytest.mark.parametrize(
        ("unit", "dtype", "near"),
        [
            (1e6, torch.float64, 1e-9),
            (1e-9, torch.float64, 1e-9),
            (1e6, torch.float32, 1e-4),
            (1e-6, torch.float32, 1e-4),
            (1e-9, torch.float32, 1e-4),
        ],
    )
    def test_estimates(self, unit, dtype, near):
        x, pending = at(20, 1, dtype=dtype), at(3, seed=3, dtype=dtype)
        found = []
        for scale in (1.0, unit):
            model = self.model(scale, dtype)
            for waiting in (None, pending):
                score = PrimalDual(model, BETA, PHI, X_pending=waiting)
                f, g = score.estimates(x)
                found.append(torch.cat([f, g[..., 0]], -1) / scale)
                z = x.clone().requires_grad_()
                (slope,) = torch.autograd.grad(score(z).sum(), z)
                assert slope.isfinite().all()
                assert (slope.abs().amax(-1) > 0).all()
        for one, other in zip(found[:2], found[2:], strict=True):
            torch.testing.assert_close(other, one, rtol=0, atol=near)

    @pytest.mark.parametrize("unit", [1.0, 1e-6])
    def test_a_point_that_is_pending_again_and_again(self, unit):
        model = self.model(unit, torch.float64)
        x = at(1, seed=9)
        score = PrimalDual(model, BETA, PHI, noise=0.0)
        wide, _ = score.estimates(x)
        mean = model.posterior(x).mean[:, 0]
        score.set_X_pending(x.expand(5, 2))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # jitter
            narrow, _ = score.estimates(x)
        assert (wide - mean).item() > 0.1 * unit
        assert abs((narrow - mean).item()) < 1e-3 * unit

    @staticmethod
    def model(unit, dtype):
        kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())
        kernel = kernel.double()
        kernel.outputscale = torch.tensor(unit**2, dtype=torch.float64)
        parts = []
        tiny = gpytorch.settings.min_fixed_noise(1e-30, 1e-30, 1e-30)
        with warnings.catch_warnings(), tiny:
            warnings.simplefilter("ignore")
            for j in range(3):
                y = (unit * Y[:, j : j + 1]).to(dtype)
                lam = torch.full_like(y, 0.02 * unit**2)
                part = SingleTaskGP(
                    X.to(dtype), y, lam, covar_module=copy.deepcopy(kernel).to(dtype),
                    outcome_transform=None,
                )  # fmt: skip
                parts.append(part.eval())
        return ModelListGP(*parts)


SMOOTH = {
    "feasible": lambda model: OptimisticFeasible(model, BETA, smooth=0.3),
    "pathwise": KINDS["pathwise"],
}


@pytest.mark.parametrize("kind", SMOOTH)
class TestOptimisers:
    few: ClassVar = {"num_restarts": 2, "raw_samples": 16}

    @pytest.fixture(autouse=True)
    def seeded(self):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            yield

    def test_constraints_of_the_points(self, kind):
        score = SMOOTH[kind](gp(slice(3)))
        below = (torch.tensor([0, 1]), torch.tensor([-1.0, -1.0]).double(), -0.5)

        def inside(x):
            return 0.2 - x.square().sum(-1)

        for limit in (
            {"inequality_constraints": [below]},
            {"nonlinear_inequality_constraints": [(inside, True)]},
        ):
            x, value = optimize_acqf(
                score,
                BOX,
                q=2,
                num_restarts=2,
                batch_initial_conditions=0.25 * at(2, 2),
                options={"maxiter": 40},
                **limit,
            )
            room = inside(x) if "nonlinear" in next(iter(limit)) else 0.5 - x.sum(-1)
            assert (room >= -1e-6).all()
            torch.testing.assert_close(value, score(x).squeeze())

    def test_options(self, kind):
        score = SMOOTH[kind](gp(slice(3)))
        x, _ = optimize_acqf(
            score,
            BOX,
            q=2,
            sequential=True,
            fixed_features={1: 0.3},
            post_processing_func=lambda x: (8 * x).round() / 8,
            options={"maxiter": 5},
            **self.few,
        )
        assert ((8 * x) % 1 == 0).all()
        x, values = optimize_acqf(
            score,
            BOX,
            q=2,
            return_best_only=False,
            options={"batch_limit": 1, "maxiter": 5, "seed": 7},
            **self.few,
        )
        assert x.shape == (2, 2, 2)
        torch.testing.assert_close(values, score(x))
        _, value = optimize_acqf(
            score,
            BOX,
            q=1,
            gen_candidates=gen_candidates_torch,
            options={"stopping_criterion_options": {"maxiter": 5}},
            **self.few,
        )
        assert value.isfinite()

    def test_discrete_and_mixed(self, kind):
        score = SMOOTH[kind](gp(slice(3)))
        axis = torch.linspace(0, 1, 9, dtype=torch.float64)
        grid = torch.cartesian_prod(axis, axis)
        x, value = optimize_acqf_discrete_local_search(
            score, [axis] * 2, q=2, **self.few
        )
        torch.testing.assert_close(value, score(x))
        assert len(x.unique(dim=0)) == 2
        assert score(x[:1]) >= score(grid.unsqueeze(-2)).quantile(0.9)
        x, _ = optimize_acqf_mixed_alternating(
            score,
            4 * BOX,
            discrete_dims={0: [0, 1, 2, 3, 4]},
            options={"maxiter_alternating": 2, "maxiter_continuous": 5},
            **self.few,
        )
        assert (x[:, 0] % 1 == 0).all()
        x, _ = optimize_acqf_list([score, copy.deepcopy(score)], BOX, **self.few)
        assert x.shape == (2, 2)
        assert score.X_pending is None

    def test_wrapped(self, kind):
        score, x = SMOOTH[kind](gp(slice(3))), at(4, 1)
        fixed = FixedFeatureAcquisitionFunction(score, 2, [1], [0.3])
        whole = torch.cat([x[..., :1], torch.full_like(x[..., :1], 0.3)], -1)
        assert torch.equal(fixed(x[..., :1]), score(whole))
        punished = PenalizedAcquisitionFunction(score, L2Penalty(BOX[0]), 0.1)
        expected = score(x) - 0.1 * x.square().sum((-1, -2))
        torch.testing.assert_close(punished(x), expected)
        near = ProximalAcquisitionFunction(score, torch.ones(2).double(), beta=1.0)
        for each in (punished, near):
            _, value = optimize_acqf(each, BOX, q=1, options={"maxiter": 5}, **self.few)
            assert value.isfinite()


def test_all_tasks_everywhere_are_searched():
    score = PrimalDual(all_tasks_everywhere(), BETA, PHI, thresholds=TAU)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        _, value = optimize_acqf(score, BOX, q=1, num_restarts=4, raw_samples=16)
    axis = torch.linspace(0, 1, 41, dtype=torch.float64)
    with torch.no_grad():
        best = score(torch.cartesian_prod(axis, axis).unsqueeze(-2)).max()
    assert value >= best - 1e-6


def test_a_model_that_perturbs_its_inputs_is_refused():
    shifts = 0.05 * at(4)
    model = gp(slice(3), input_transform=InputPerturbation(shifts))
    for score in (
        PrimalDual(model, BETA, PHI, X_pending=at(1)),
        PathwisePrimalDual(model, 1.0, PHI, seed=0),
    ):
        with pytest.raises(cb.CBanditError, match="one value an output"):
            score(at(3, 1))


def test_a_transform_without_constraints_is_refused():
    weights = torch.tensor([0.0, -1.0, 0.0], dtype=torch.float64)
    with pytest.raises(cb.CBanditError, match="does not say which outputs are"):
        get_acqf_input_constructor(PrimalDual)(
            model=gp(slice(3)),
            beta=1.0,
            multiplier=1.0,
            posterior_transform=ScalarizedPosteriorTransform(weights),
        )
