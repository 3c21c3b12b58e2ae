"""The BoTorch plug-ins, and BoTorch's test functions as problems."""

from __future__ import annotations

import copy
import importlib
import math
import subprocess
import sys
import warnings
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from botorch.acquisition.input_constructors import get_acqf_input_constructor
from botorch.acquisition.objective import ScalarizedPosteriorTransform
from botorch.exceptions.warnings import BotorchWarning, InputDataWarning
from botorch.models import (
    KroneckerMultiTaskGP,
    ModelListGP,
    MultiTaskGP,
    SingleTaskGP,
)
from botorch.models.model import ModelList
from botorch.optim import (
    optimize_acqf,
    optimize_acqf_discrete,
    optimize_acqf_mixed,
)
from botorch.test_functions import multi_objective, synthetic
from botorch.utils.testing import MockModel, MockPosterior
from inside import Streams

import cbandit as cb
from cbandit import scores
from cbandit.acquisition import (
    OptimisticFeasible,
    PathwisePrimalDual,
    PrimalDual,
    RectifiedPenalty,
)
from cbandit.errors import CBanditError
from cbandit.problems import Continuous, Problem, Table, from_botorch

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
            model = KroneckerMultiTaskGP(x, y)
    for part in model.modules():
        if hasattr(part, "noise_covar"):
            part.noise_covar.noise = 0.02
    return model.eval()


@pytest.fixture(scope="module")
def model():
    return make()


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


def at(*shape, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(*shape, 2, generator=generator, dtype=torch.float64).to(dtype)


def mock(mean, variance):
    """A model that believes this, whatever it is asked; ``(*b, q, 1 + m)``."""
    mean, variance = torch.as_tensor(mean), torch.as_tensor(variance)
    return MockModel(MockPosterior(mean=mean.double(), variance=variance.double()))


class TestPoints:
    @pytest.mark.parametrize("shape", [(4, 1, 1), (4, 1, 3), (4, 2, 3), (2,)])
    def test_of_another_width_are_named(self, model, kind, shape):
        score = KINDS[kind](model)
        x = torch.rand(*shape, dtype=torch.float64)
        for look in (score, score.estimates):
            with pytest.raises(CBanditError) as error:
                look(x)
            assert "X must have shape (..., n, d) with d = 2" in str(error.value)
            assert str(error.value).endswith(f"got {shape}")
        with pytest.raises(CBanditError, match=r"X must be a tensor .* got list"):
            score([[0.1, 0.2]])

    def test_pending_of_another_width_are_named(self, model, kind):
        score = KINDS[kind](model)
        with pytest.raises(CBanditError, match=r"X_pending .* d = 2.*\(1, 3\)"):
            score.set_X_pending(torch.rand(1, 3, dtype=torch.float64))
        assert score.X_pending is None
        with pytest.raises(CBanditError, match=r"X_pending .* got list"):
            KINDS[kind](model, X_pending=[[0.1, 0.2]])

    def test_slack_of_another_width_is_named(self, model):
        with pytest.raises(CBanditError, match="X must have shape"):
            KINDS["feasible"](model).slack(torch.rand(4, 3, dtype=torch.float64))

    @pytest.mark.parametrize("parts", ["list", "mixed list", "kronecker"])
    def test_of_any_model_that_tells_its_width(self, parts):
        score = KINDS["primal-dual"](make(parts))
        assert score(at(4, 1)).shape == (4,)
        with pytest.raises(CBanditError, match="d = 2"):
            score(torch.rand(4, 1, 3, dtype=torch.float64))

    @pytest.mark.filterwarnings("ignore:Sparse invariant checks")
    def test_a_task_column_is_no_coordinate(self):
        x, y = data(9)
        task = torch.arange(9).remainder(3).unsqueeze(-1).to(x)
        model = MultiTaskGP(torch.cat([x, task], -1), y[:, :1], task_feature=-1)
        score = KINDS["primal-dual"](model)
        assert score(at(4, 1)).shape == (4,)


class TestValues:
    # reward 1 +- 2, costs 3 +- 0.5 and -1 +- 0.25
    believed = mock([[[1.0, 3.0, -1.0]]], [[[4.0, 0.25, 0.0625]]])
    x = torch.zeros(1, 1, 2, dtype=torch.float64)

    def test_primal_dual(self):
        # beta multiplies sigma: (1 + 2 2) - 2 (3 - 2 0.5 - 1) - 4 (-1 - 2 0.25 + 1)
        score = PrimalDual(self.believed, 2.0, [2.0, 4.0], thresholds=[1.0, -1.0])
        assert score(self.x).tolist() == [5.0 - 2.0 * 1.0 - 4.0 * -0.5]

    def test_clip_comes_after_thresholds(self):
        score = PrimalDual(
            self.believed, 2.0, [2.0, 4.0], None, [1.0, -1.0], (3.0, [0.25, 0.125])
        )
        assert score(self.x).tolist() == [3.0 - 2.0 * 0.25 - 4.0 * -0.125]

    def test_rectified_penalty(self):
        score = RectifiedPenalty(self.believed, 2.0, [2.0, 4.0], [1.0, 0.0])
        assert score(self.x).tolist() == [5.0 - 2.0 * 2.5 - 0.0]

    def test_optimistic_feasible(self):
        score = OptimisticFeasible(self.believed, 2.0, thresholds=[2.0, 0], floor=-9.0)
        assert score(self.x).tolist() == [5.0]
        score = OptimisticFeasible(self.believed, 2.0, thresholds=[1.0, 0], floor=-9.0)
        assert score(self.x).tolist() == [-9.0 - 1.0]
        score = OptimisticFeasible(self.believed, 2.0, thresholds=[1, -2], smooth=0.1)
        penalty = math.log1p(math.exp(10)) + math.log1p(math.exp(5))
        assert score(self.x).tolist() == pytest.approx([5.0 - penalty])
        assert score.slack(self.x[:, 0]).item() == -1.0

    def test_smooth_goes_to_what_it_smooths(self):
        rough = RectifiedPenalty(self.believed, 2.0, [2.0, 4.0])
        soft = [
            RectifiedPenalty(self.believed, 2.0, [2.0, 4.0], smooth=s)
            for s in (1.0, 0.1, 0.01)
        ]
        gaps = [(each(self.x) - rough(self.x)).item() for each in soft]
        assert gaps[0] < gaps[1] < 1e-5
        assert gaps[2] == pytest.approx(0, abs=1e-12)

    def test_smooth_errs_by_no_more_than_its_corners(self, model):
        """``0 <= s softplus(v / s) - [v]_+ <= s log 2``, equal at the corner."""
        x, phi, s = at(500, 1), [2.0, 4.0], [0.05, 0.1, 0.2]
        corner = math.log(2) * torch.tensor(s, dtype=torch.float64)
        rough, soft = (
            RectifiedPenalty(model, BETA, phi, thresholds=TAU, smooth=each)(x)
            for each in (None, s)
        )
        most = float(corner[1:] @ torch.tensor(phi).double())
        assert bool((soft <= rough + 1e-12).all())
        assert bool((rough - soft <= most + 1e-12).all())
        assert (rough - soft).max() > 0.3 * most
        # a clip has two corners that err in opposite directions
        limits = {"thresholds": TAU, "clip": (1.0, 0.5)}
        rough, soft = (
            PrimalDual(model, BETA, phi, **limits, smooth=each)(x) for each in (None, s)
        )
        most = float(corner @ torch.tensor([1.0, *phi]).double())
        assert bool(((rough - soft).abs() <= most + 1e-12).all())
        assert (rough - soft).abs().max() > 0.1 * most

    def test_outputs_in_another_order_and_with_other_signs(self):
        score = PrimalDual(
            self.believed, 2.0, 1.0, outputs=[(2, 2.0), (0, -1.0)], thresholds=1.0
        )
        # reward 2 (-1) +- 2 0.25, cost -1 +- 2
        assert score(self.x).tolist() == [-2.0 + 2 * 0.5 - (-1.0 - 2 * 2.0 - 1.0)]

    def test_one_cost_and_a_number(self):
        believed = mock([[[1.0, 3.0]]], [[[4.0, 0.25]]])
        assert PrimalDual(believed, 0.0, 2.0)(self.x).tolist() == [-5.0]

    def test_multipliers_of_a_batched_model(self):
        mean = torch.tensor([[[1.0, 3.0]], [[2.0, 5.0]]])
        believed = mock(mean, torch.ones(2, 1, 2))
        score = PrimalDual(
            believed, [0.0, 1.0], [[1.0], [2.0]], thresholds=[[0.0], [1.0]]
        )
        assert score(self.x).tolist() == [1.0 - 3.0, 3.0 - 2.0 * (5.0 - 1.0 - 1.0)]

    def test_small_units_keep_their_deviations(self):
        x, y = data()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", InputDataWarning)
            tiny = SingleTaskGP(x, 1e-7 * y).eval()
        usual = SingleTaskGP(x, y).eval()
        at_x = at(6, 1)
        small = PrimalDual(tiny, 2.0, PHI)(at_x)
        torch.testing.assert_close(1e7 * small, PrimalDual(usual, 2.0, PHI)(at_x))


class TestConventions:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("which", ["one", "list"])
    def test_shapes_and_dtypes(self, kind, which, dtype):
        score = KINDS[kind](make(which, dtype))
        for batch in ([], [1], [5], [5, 3]):
            for q in (1, 2):
                value = score(at(*batch, q, dtype=dtype))
                assert value.shape == torch.Size(batch or [1])
                assert value.dtype == dtype
                assert value.isfinite().all()

    @pytest.mark.filterwarnings("ignore:A not p.d., added jitter")  # of Kronecker's
    @pytest.mark.parametrize("which", ["mixed list", "kronecker"])
    def test_other_models(self, which):
        score = PrimalDual(make(which), BETA, PHI)
        assert score(at(5, 3, 1)).shape == (5, 3)
        score.set_X_pending(at(2))
        assert score(at(4, 2)).shape == (4,)

    def test_single_precision_agrees(self, kind):
        if kind == "pathwise":
            pytest.skip("draws differ between precisions")
        double, single = KINDS[kind](make()), KINDS[kind](make(dtype=torch.float32))
        x = at(20, 1)
        gap = single(x.float()).double() - double(x)
        # at the edge of feasibility rounding decides between the two sides of a cliff
        assert gap.abs().median() < 1e-3

    @pytest.mark.parametrize(("q", "p"), [(1, 0), (3, 0), (1, 2), (2, 1)])
    def test_gradients(self, kind, model, q, p):
        score = KINDS[kind](model, X_pending=at(p, seed=5) if p else None)
        x = at(3, q, seed=2).requires_grad_()
        assert torch.autograd.gradcheck(score, (x,), eps=1e-6, atol=1e-5, rtol=1e-4)
        (slope,) = torch.autograd.grad(score(x).sum(), x)
        assert slope.abs().sum() > 0

    @pytest.mark.parametrize("kind", SMOOTH, indirect=False)
    def test_smooth_gradients(self, kind, model):
        maker = {
            "primal-dual": lambda **more: PrimalDual(model, BETA, PHI, **more),
            "rectified": lambda **more: RectifiedPenalty(model, BETA, PHI, **more),
            "feasible": lambda **more: OptimisticFeasible(model, BETA, **more),
        }[kind]
        x = at(3, 1, seed=2).requires_grad_()
        score = maker(**SMOOTH[kind])
        assert torch.autograd.gradcheck(score, (x,), eps=1e-6, atol=1e-5, rtol=1e-4)

    def test_gradients_where_nothing_is_feasible(self, model):
        score = OptimisticFeasible(model, BETA, thresholds=-50.0)
        x = at(4, 1).requires_grad_()
        (slope,) = torch.autograd.grad(score(x).sum(), x)
        assert (slope.abs().amax(-1) > 1e-6).all()

    def test_pending_set_and_cleared(self, kind, model):
        score, x = KINDS[kind](model), at(5, 1)
        assert score.X_pending is None
        free = score(x)
        pending = x[:2, 0].clone().requires_grad_()
        with pytest.warns(BotorchWarning, match="Pending points require a gradient"):
            score.set_X_pending(pending)
        assert torch.equal(score.X_pending, x[:2, 0])
        assert not score.X_pending.requires_grad
        assert not torch.allclose(score(x), free)
        score.set_X_pending(None)
        assert torch.equal(score(x), free)

    def test_state_dict(self, kind, model):
        score = KINDS[kind](model)
        score.set_X_pending(at(2, seed=4))
        x = at(6, 1)
        expected = score(x)
        state = score.state_dict()
        assert {"width", "thresholds", "X_pending"} <= set(state)
        blank = {
            "primal-dual": lambda: PrimalDual(model, 0.0, 0.0, thresholds=0.0),
            "clipped": lambda: PrimalDual(model, 0.0, [0, 0], clip=(1, 1)),
            "rectified": lambda: RectifiedPenalty(model, 0.0, [0, 0]),
            "feasible": lambda: OptimisticFeasible(model, 0.0, floor=0.0),
            "pathwise": lambda: PathwisePrimalDual(model, 0.0, [0, 0], seed=8),
        }[kind]()
        assert not torch.allclose(blank(x), expected)
        blank.load_state_dict(state)
        assert torch.equal(blank(x), expected)
        blank.load_state_dict(
            KINDS[kind](model).state_dict(), strict=kind != "pathwise"
        )
        assert blank.X_pending is None

    def test_deep_copies_stand_alone(self, kind, model):
        score, x = KINDS[kind](model), at(6, 1)
        score(x)
        twin = copy.deepcopy(score)
        assert torch.equal(twin(x), score(x))
        twin.set_X_pending(at(1))
        twin.width += 1
        assert score.X_pending is None
        assert not torch.equal(twin(x), score(x))

    def test_device_and_dtype_move_state(self, kind):
        score = KINDS[kind](make())
        score.set_X_pending(at(1))
        moved = copy.deepcopy(score).to(torch.float32)
        assert moved.X_pending.dtype == moved.width.dtype == torch.float32

    @pytest.mark.gpu
    def test_cuda(self, kind):
        score, x = KINDS[kind](make()), at(5, 3, 1)
        there = KINDS[kind](make().cuda())
        assert there.width.is_cuda
        value = there(x.cuda())
        assert value.is_cuda
        if kind != "pathwise":
            torch.testing.assert_close(value.cpu(), score(x))
        there.set_X_pending(x[0, :2, 0].cuda())
        assert there(x.cuda()).isfinite().all()

    def test_the_users_model_is_left_as_it_was(self, kind):
        model = make()
        before = copy.deepcopy(model.state_dict())
        score = KINDS[kind](model)
        score(at(3, 1)).sum()
        after = model.state_dict()
        assert all(torch.equal(before[key], after[key]) for key in before)


class TestPending:
    def test_a_batch_is_worth_what_sequential_greedy_collects(self, kind, model):
        score, x = KINDS[kind](model), at(4, 3, seed=3)
        together = score(x)
        for i in range(4):
            total = 0.0
            for j in range(3):
                score.set_X_pending(x[i, :j] if j else None)
                total += score(x[i : i + 1, j : j + 1]).item()
            assert together[i].item() == pytest.approx(total, rel=1e-6)
            score.set_X_pending(None)

    @pytest.mark.filterwarnings("ignore:A not p.d., added jitter")  # of Kronecker's
    @pytest.mark.parametrize("which", ["one", "list", "mixed list", "kronecker"])
    def test_variances_are_those_of_a_model_that_saw_the_means(self, which):
        model, x, pending = make(which), at(7, 1, seed=6), at(3, seed=7)
        score = PrimalDual(model, 2.0, [0.0, 0.0], 3.0, noise=0.02)
        free, free_g = score.estimates(x)
        score.set_X_pending(pending)
        f, g = score.estimates(x)
        # by hand: the joint normal of all outputs at all points
        joint = model.posterior(torch.cat([x[:, 0], pending]))
        parts = [joint] if not hasattr(joint, "posteriors") else joint.posteriors
        expected = []
        for part in parts:
            k = part.mean.shape[-1]
            whole = part.distribution.covariance_matrix
            if k > 1 and not part.distribution._interleaved:
                order = torch.arange(10 * k).view(k, 10).T.flatten()
                whole = whole[order][:, order]
            seen = whole[7 * k :, 7 * k :] + 0.02 * torch.eye(3 * k)
            cross = whole[: 7 * k, 7 * k :]
            left = whole[: 7 * k, : 7 * k] - cross @ torch.linalg.solve(seen, cross.T)
            expected.append(left.diagonal().view(7, k))
        std = torch.cat(expected, -1).sqrt()
        mean = joint.mean[:7]
        torch.testing.assert_close(f[:, 0], mean[:, 0] + 2.0 * std[:, 0])
        torch.testing.assert_close(g[:, :, 0], mean[:, 1:] - 3.0 * std[:, 1:])
        assert (f <= free + 1e-6).all()
        assert (g >= free_g - 1e-6).all()
        if which != "kronecker":  # whose tasks start anywhere
            assert (f < free - 1e-4).any()

    def test_the_models_own_noise(self):
        model = SingleTaskGP(*data()).eval()
        model.likelihood.noise_covar.noise = torch.tensor(
            [[0.1], [0.2], [0.3]]
        ).double()
        scale = model.outcome_transform.stdvs.flatten().square()
        noise = torch.tensor([0.1, 0.2, 0.3]).double() * scale
        own = PrimalDual(model, BETA, PHI, X_pending=at(2))
        given = PrimalDual(model, BETA, PHI, X_pending=at(2), noise=noise.detach())
        torch.testing.assert_close(own(at(5, 1)), given(at(5, 1)), rtol=1e-6, atol=1e-8)

    def test_the_same_point_twice_without_noise(self, model):
        point = at(1)
        score = PrimalDual(model, BETA, PHI, noise=0.0)
        score.set_X_pending(point)
        f, _ = score.estimates(point.unsqueeze(0))
        mean = model.posterior(point).mean[0, 0]
        assert f.item() == pytest.approx(mean.item(), abs=1e-4)

    def test_a_mock_posterior_cannot_be_conditioned(self):
        score = PrimalDual(TestValues.believed, 1.0, PHI, noise=0.1)
        with pytest.raises(CBanditError, match="q > 1 need a model whose posterior"):
            score(torch.zeros(1, 2, 2, dtype=torch.float64))
        score.set_X_pending(at(1))
        with pytest.raises(CBanditError, match="jointly normal; got MockPosterior"):
            score(TestValues.x)


class TestPaths:
    def test_a_path_is_one_function(self, model):
        score = KINDS["pathwise"](model)
        x = at(50, 1)
        assert torch.equal(score(x), score(x))
        torch.testing.assert_close(score(x)[7:8], score(x[7:8]))
        again = KINDS["pathwise"](model)
        assert torch.equal(score(x), again(x))

    def test_the_global_random_state_stays(self, model):
        before = torch.get_rng_state()
        PathwisePrimalDual(model, 1.0, PHI, seed=3)(at(2, 2))
        assert torch.equal(before, torch.get_rng_state())

    def test_seeds_and_generators(self, model):
        x = at(5, 1)
        one = PathwisePrimalDual(model, 1.0, PHI, seed=1)(x)
        other = PathwisePrimalDual(model, 1.0, PHI, seed=2)(x)
        assert not torch.allclose(one, other)
        generator = torch.Generator().manual_seed(1)
        seeds = (1, 1 + 2**32, 1 + 2**63)
        large = [PathwisePrimalDual(model, 1.0, PHI, seed=s)(x) for s in seeds]
        assert torch.equal(large[0], one)
        assert len({tuple(values.tolist()) for values in large}) == 3
        first = PathwisePrimalDual(model, 1.0, PHI, seed=generator)(x)
        second = PathwisePrimalDual(model, 1.0, PHI, seed=generator)(x)
        assert not torch.allclose(first, second)
        generator.manual_seed(1)
        assert torch.equal(
            first, PathwisePrimalDual(model, 1.0, PHI, seed=generator)(x)
        )

    def test_every_point_of_a_batch_has_its_own_path(self, model):
        score = PathwisePrimalDual(model, 1.0, PHI, seed=1)
        x = at(1).expand(1, 3, 2)
        f, _ = score.estimates(x)
        assert len(f.unique()) == 3

    def test_no_multiplier_no_clip_beta_one_is_the_path(self, model):
        score = PathwisePrimalDual(model, 1.0, [0.0, 0.0], seed=1)
        x = at(4, 1)
        torch.testing.assert_close(score(x), score.paths[0](x)[:, 0, 0])

    def test_law(self, model):
        """Means within 4.5 standard errors; deviations within four of theirs."""
        x, count = at(4, 1, seed=9), 64
        draws = []
        for seed in range(count):
            score = PathwisePrimalDual(model, 2.0, [0.0, 0.0], seed=seed)
            with torch.no_grad():
                f, g = score.estimates(x)
            draws.append(torch.cat([f.unsqueeze(-2), g], -2)[..., 0])
        draws = torch.stack(draws)
        seen = model.posterior(x)
        mean, std = seen.mean[:, 0], 2.0 * seen.variance[:, 0].sqrt()
        assert ((draws.mean(0) - mean).abs() < 4.5 * std / math.sqrt(count)).all()
        assert ((draws.std(0) / std - 1).abs() < 4 / math.sqrt(2 * count)).all()


class TestOptimisers:
    def grid(self, score, n=150):
        axis = torch.linspace(0, 1, n, dtype=torch.float64)
        x = torch.cartesian_prod(axis, axis).unsqueeze(-2)
        with torch.no_grad():
            return score(x)

    def test_optimize_acqf(self, kind, model):
        score = KINDS[kind](model)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            x, value = optimize_acqf(score, BOX, q=1, num_restarts=6, raw_samples=128)
        assert x.shape == (1, 2)
        values = self.grid(score, 40 if kind == "pathwise" else 150)
        spread = values.max() - values[values > -100].min()
        assert value >= values.max() - 1e-3 * spread

    @pytest.mark.parametrize("kind", SMOOTH, indirect=False)
    def test_smooth_optima_are_near(self, kind, model):
        rough = {
            "primal-dual": PrimalDual(model, BETA, [3.0, 3.0], clip=(1.0, 0.6)),
            "rectified": RectifiedPenalty(model, BETA, [3.0, 3.0]),
            "feasible": OptimisticFeasible(model, BETA),
        }[kind]
        soft = {
            "primal-dual": PrimalDual(
                model, BETA, [3.0, 3.0], clip=(1.0, 0.6), smooth=1e-2
            ),
            "rectified": RectifiedPenalty(model, BETA, [3.0, 3.0], smooth=1e-2),
            "feasible": OptimisticFeasible(model, BETA, smooth=3e-3),
        }[kind]
        with torch.random.fork_rng():
            torch.manual_seed(0)
            x, _ = optimize_acqf(soft, BOX, q=1, num_restarts=6, raw_samples=128)
        best = self.grid(rough).max()
        if kind == "feasible":
            f, g = rough.estimates(x.unsqueeze(0))
            assert g.max() <= 0
            assert f.item() > best - 0.05
        else:
            assert rough(x).item() > best - 0.1

    def test_sequential_greedy(self, kind, model):
        score = KINDS[kind](model)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            x, values = optimize_acqf(
                score, BOX, q=3, num_restarts=3, raw_samples=32, sequential=True
            )
        assert score.X_pending is None
        assert len({tuple(row) for row in x.tolist()}) == 3
        assert values.sum().item() == pytest.approx(score(x).item(), rel=1e-6)

    @pytest.mark.parametrize("q", [1, 2])
    def test_mixed(self, kind, model, q):
        score = KINDS[kind](model)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            x, value = optimize_acqf_mixed(
                score,
                BOX,
                q=q,
                num_restarts=2,
                raw_samples=32,
                fixed_features_list=[{0: 0.25}, {0: 0.75}],
            )
        assert score.X_pending is None
        assert set(x[:, 0].tolist()) <= {0.25, 0.75}
        assert torch.isfinite(value).all()

    def test_discrete(self, kind, model):
        score, choices = KINDS[kind](model), at(60, seed=8)
        x, value = optimize_acqf_discrete(score, 1, choices)
        assert torch.equal(x[0], choices[score(choices.unsqueeze(-2)).argmax()])
        many, values = optimize_acqf_discrete(score, 3, choices)
        assert torch.equal(many[0], x[0])
        assert values[0] == value
        assert len(many.unique(dim=0)) == 3
        assert score.X_pending is None

    def test_slack_as_a_nonlinear_constraint(self, model):
        score = OptimisticFeasible(model, BETA)
        reward = PrimalDual(model, BETA, [0.0, 0.0])
        values = self.grid(score)
        start = at(200, 1)
        start = start[score(start).topk(4).indices]
        x, value = optimize_acqf(
            reward,
            BOX,
            q=1,
            num_restarts=4,
            batch_initial_conditions=start,
            nonlinear_inequality_constraints=[(score.slack, True)],
        )
        assert score.slack(x).item() > -1e-6
        assert value > values.max() - 1e-3


def run(policy, rounds, seed=0):
    """Some rounds of a smooth world with noise."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(rounds):
        choice = policy.ask()
        x = choice.x[..., 0]
        noise = 0.05 * torch.randn(3, generator=generator, dtype=torch.float64)
        reward = torch.sin(6 * x) + noise[0]
        cost = torch.stack([x - 0.5 + noise[1], 0.3 - x + noise[2]], -1)
        policy.tell(choice, reward=reward, cost=cost)


def belief(lengthscale=0.2, **more):
    import gpytorch

    kernel = gpytorch.kernels.MaternKernel(nu=2.5).double()
    kernel.lengthscale = lengthscale
    return cb.GP(kernel, noise=0.01, **more)


class TestAgreement:
    points = torch.linspace(0, 1, 60, dtype=torch.float64).unsqueeze(-1)
    common: ClassVar = {"thresholds": [0.05, -0.02], "clip": (1.5, [0.6, 0.4])}

    def policy(self, kind, **more):
        named = {
            "reward": belief(),
            "costs": [belief(0.3), belief(0.4)],
            "explore": cb.UCB(2.0, [1.0, 1.5]),
            **self.common,
            **more,
        }
        if kind is cb.CKB:
            named.update(step=0.3, cap=20.0)
        return kind(cb.Finite(self.points), **named)

    @pytest.mark.parametrize(
        ("policy", "plug_in"), [(cb.CKB, PrimalDual), (cb.RPOL, RectifiedPenalty)]
    )
    @pytest.mark.parametrize("rounds", [2, 15])
    def test_scores_and_choice(self, policy, plug_in, rounds):
        policy = self.policy(policy)
        run(policy, rounds)
        score = plug_in(
            policy.model,
            2.0,
            policy.multiplier,
            [1.0, 1.5],
            self.common["thresholds"],
            self.common["clip"],
        )
        seen = policy.posterior()
        f = (seen.reward.mean + 2.0 * seen.reward.std).clamp(-1.5, 1.5)
        beta = torch.tensor([[1.0], [1.5]])
        g = seen.costs.mean - beta * seen.costs.std
        g = g - torch.tensor(self.common["thresholds"]).unsqueeze(-1)
        bound = torch.tensor([[0.6], [0.4]])
        g = g.clamp(-bound, bound)
        rule = scores.primal_dual if plug_in is PrimalDual else scores.rectified
        values = score(self.points.unsqueeze(-2))
        torch.testing.assert_close(
            values, rule(f, g, policy.multiplier), rtol=1e-7, atol=1e-8
        )
        x, _ = optimize_acqf_discrete(score, 1, self.points)
        assert torch.equal(policy.ask().x, x[0])

    def test_pending_as_hallucinated(self):
        policy = self.policy(cb.CKB, pending="hallucinate")
        run(policy, 6)
        believed = policy.model
        waiting = [policy.ask().x]
        for _ in range(3):
            score = PrimalDual(
                believed, 2.0, policy.multiplier, [1.0, 1.5], *self.common.values(),
                X_pending=torch.stack(waiting),
            )  # fmt: skip
            values = score(self.points.unsqueeze(-2))
            waiting.append(policy.ask().x)
            assert torch.equal(waiting[-1], self.points[values.argmax()])
        assert len({x.item() for x in waiting}) > 1

    def test_trials_are_a_batch(self):
        policy = self.policy(cb.RPOL, trials=2)
        run(policy, 1)
        score = RectifiedPenalty(policy.model, 2.0, policy.multiplier)
        value = score(self.points.unsqueeze(-2).unsqueeze(-2))
        assert value.shape == (60, 2)

    @pytest.mark.parametrize("thresholds", [[0.0, 0.0], [-0.25, -0.1], [-3.0, -3.0]])
    def test_config_rule(self, thresholds):
        policy = self.policy(cb.CKB, clip=None, cap=20.0, thresholds=0.0)
        run(policy, 8)
        score = OptimisticFeasible(policy.model, 2.0, thresholds=thresholds)
        seen = policy.posterior()
        f = seen.reward.mean + 2.0 * seen.reward.std
        g = seen.costs.mean - 2.0 * seen.costs.std - torch.tensor(thresholds)[:, None]
        allowed = (g <= 0).all(-2)
        expected = (
            f.masked_fill(~allowed, -torch.inf).argmax()
            if allowed.any()
            else g.amax(-2).argmin()
        )
        values = score(self.points.unsqueeze(-2))
        x, _ = optimize_acqf_discrete(score, 1, self.points)
        assert torch.equal(x[0], self.points[expected])
        if allowed.any() and not allowed.all():
            assert values[allowed].min() > values[~allowed].max()
            torch.testing.assert_close(
                values[allowed], f[allowed], rtol=1e-7, atol=1e-8
            )


class TestBadInput:
    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({"multiplier": [1.0, 1.0, 1.0]}, r"multiplier must .* m = 2.*got \(3,\)"),
            ({"multiplier": [1.0]}, r"multiplier must .*got \(1,\)"),
            ({"multiplier": [1.0, -1.0]}, "multiplier must not be negative; got -1"),
            ({"multiplier": math.nan}, "multiplier must be finite"),
            ({"multiplier": "two"}, "multiplier must be a number, array or tensor"),
            ({"beta": -1.0}, "beta and cost_beta must not be negative"),
            ({"beta": math.inf}, "beta and cost_beta must be finite"),
            ({"cost_beta": [1.0, 2.0, 3.0]}, r"cost_beta must .*got \(3,\)"),
            ({"thresholds": [0.0]}, "thresholds must"),
            ({"thresholds": math.nan}, "thresholds must be finite"),
            ({"clip": 1.0}, r"clip must be a pair \(B, G\)"),
            ({"clip": (1.0, 0.0)}, "clip must be above 0"),
            ({"clip": (1.0, [1.0] * 3)}, "clip G must"),
            ({"smooth": 0.0}, "smooth must be above 0"),
            ({"smooth": [1.0, 1.0]}, r"smooth must be a number or have shape \(3,\)"),
            ({"noise": -1.0}, "noise must not be negative"),
            ({"noise": [1.0]}, "noise must be a number or have shape"),
            ({"X_pending": torch.zeros(2)}, r"X_pending must have shape \(p, d\)"),
            ({"X_pending": torch.full((1, 2), torch.nan)}, "X_pending must be finite"),
            ({"model": "gp"}, "model must be a BoTorch model; got str"),
            ({"outputs": [(0, 1.0)]}, "model must have 1 \\+ m outputs"),
            ({"outputs": [(0, 1.0), (3, 1.0)]}, "outputs must name outputs 0 .. 2"),
            ({"outputs": [(0, 1.0), (1, 0.0)]}, "factors other than 0"),
            ({"outputs": [0, 1]}, "outputs must be a list of pairs"),
        ],
    )
    @pytest.mark.parametrize("plug_in", [PrimalDual, RectifiedPenalty])
    def test_is_named(self, model, plug_in, given, message):
        arguments = {"model": model, "beta": 1.0, "multiplier": [1.0, 1.0], **given}
        with pytest.raises(CBanditError, match=message):
            plug_in(**arguments)

    def test_a_model_without_costs(self):
        x, y = data()
        single = SingleTaskGP(x, y[:, :1])
        for make_score in (
            lambda: PrimalDual(single, 1.0, 1.0),
            lambda: OptimisticFeasible(single, 1.0),
            lambda: PathwisePrimalDual(single, 1.0, 1.0, seed=0),
        ):
            with pytest.raises(CBanditError, match=r"model must have 1 \+ m outputs"):
                make_score()

    def test_a_model_with_fewer_outputs_than_multipliers(self):
        x, y = data()
        with pytest.raises(CBanditError, match="a reward and 1 costs; got \\(2,\\)"):
            PrimalDual(SingleTaskGP(x, y[:, :2]), 1.0, [1.0, 1.0])

    def test_floor(self, model):
        with pytest.raises(CBanditError, match="floor cannot be had from a MockModel"):
            OptimisticFeasible(TestValues.believed, 1.0)
        with pytest.raises(CBanditError, match="floor must be finite"):
            OptimisticFeasible(model, 1.0, floor=-math.inf)

    def test_seed(self, model):
        for seed in (None, 1.5, True):
            with pytest.raises(CBanditError, match="seed must be an int"):
                PathwisePrimalDual(model, 1.0, PHI, seed=seed)

    @pytest.mark.filterwarnings("ignore:The model inputs are of type torch.float32")
    @pytest.mark.filterwarnings("ignore:Data .* is not")
    def test_points_of_double_digits(self):
        x, y = data()
        narrow = SingleTaskGP(x.float(), y.float(), outcome_transform=None)
        one = PrimalDual(narrow, 1.0, [1.0] * (y.shape[-1] - 1))
        for make in (
            lambda: one,
            lambda: OptimisticFeasible(narrow, 1.0),
            lambda: PathwisePrimalDual(narrow, 1.0, [1.0] * (y.shape[-1] - 1), seed=0),
        ):
            with pytest.raises(CBanditError, match="X must be float32, as the model"):
                make()(x[:1].double().unsqueeze(0))
        with pytest.raises(CBanditError, match="X_pending must be float32"):
            one.set_X_pending(x[:1].double())
        assert one(x[:1].float().unsqueeze(0)).dtype == torch.float32
        # the other way round nothing is lost
        wide = SingleTaskGP(x.double(), y.double(), outcome_transform=None)
        wide = PrimalDual(wide, 1.0, [1.0] * (y.shape[-1] - 1))
        assert wide(x[:1].float().unsqueeze(0)).dtype == torch.float64

    def test_numbers_for_each_point(self, model):
        two = torch.ones(2, len(PHI))
        for more in (
            {"beta": [1.0, 2.0]},
            {"beta": [1.0, 2.0, 3.0]},
            {"beta": []},
            {"cost_beta": two},
            {"multiplier": two},
            {"thresholds": two},
            {"clip": ([1.0, 2.0], 1.0)},
            {"thresholds": torch.zeros(1, 1, len(PHI))},
            {"beta": [[1.0]]},
        ):
            with pytest.raises(CBanditError, match=r"the model's batch shape \(\)"):
                PrimalDual(model, **({"beta": 1.0, "multiplier": PHI} | more))

    def test_a_model_without_paths(self):
        with pytest.raises(CBanditError, match="draw paths of; got KroneckerMultiTask"):
            PathwisePrimalDual(make("kronecker"), 1.0, PHI, seed=0)

    def test_x_without_a_batch(self, model):
        with pytest.raises(CBanditError, match=r"n, d\) with d = 2.*got \(2,\)"):
            PrimalDual(model, 1.0, PHI)(torch.zeros(2).double())


class TestInputConstructors:
    def test_by_class(self, kind, model):
        plain = {"beta": BETA, "thresholds": TAU, "X_pending": at(1)}
        if kind != "feasible":
            plain["multiplier"] = PHI
        if kind == "pathwise":
            plain["seed"] = 3
        cls = type(KINDS[kind](model))
        make_inputs = get_acqf_input_constructor(cls)
        # what Ax passes besides is allowed, and not needed
        inputs = make_inputs(
            model=model, training_data=None, bounds=None, X_baseline=None, **plain
        )
        score = cls(**inputs)
        assert torch.equal(score(at(4, 1)), cls(model, **plain)(at(4, 1)))
        with pytest.raises(TypeError, match="Unexpected keyword argument `betta`"):
            make_inputs(model=model, betta=1.0)

    def test_objective_and_constraints_of_an_optimisation(self, model):
        weights = torch.tensor([0.0, -1.0, 0.0], dtype=torch.float64)
        # y_0 >= 0.2 and y_2 <= 0.7
        limits = (
            torch.tensor([[-1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]).double(),
            torch.tensor([[-0.2], [0.7]]).double(),
        )
        inputs = get_acqf_input_constructor(PrimalDual)(
            model=model,
            beta=2.0,
            multiplier=PHI,
            posterior_transform=ScalarizedPosteriorTransform(weights),
            constraints_tuple=limits,
        )
        x = at(5, 1)
        seen = model.posterior(x)
        mean, std = seen.mean[:, 0], seen.variance[:, 0].sqrt()
        f = -mean[:, 1] + 2 * std[:, 1]
        first = -mean[:, 0] - 2 * std[:, 0] + 0.2
        second = mean[:, 2] - 2 * std[:, 2] - 0.7
        expected = f - PHI[0] * first - PHI[1] * second
        torch.testing.assert_close(PrimalDual(**inputs)(x), expected)

    def test_what_cannot_be_told_apart(self, model):
        make_inputs = get_acqf_input_constructor(PrimalDual)
        one = torch.eye(3, dtype=torch.float64)
        plain = {"model": model, "beta": 1.0, "multiplier": 1.0}
        limits = (one[1:2], torch.zeros(1, 1))
        with pytest.raises(CBanditError, match="posterior_transform must say"):
            make_inputs(**plain, constraints_tuple=limits)
        plain["posterior_transform"] = ScalarizedPosteriorTransform(one[0])
        with pytest.raises(CBanditError, match="thresholds come with"):
            make_inputs(**plain, constraints_tuple=limits, thresholds=1.0)
        with pytest.raises(CBanditError, match="must each be on one output"):
            make_inputs(**plain, constraints_tuple=(one[1:2] + one[2:], limits[1]))

    def test_the_module_may_be_loaded_again(self):
        done = subprocess.run(
            [
                sys.executable,
                "-W",
                "ignore",
                "-c",
                "import sys, importlib, cbandit as cb\n"
                "assert 'botorch' not in sys.modules\n"
                "module = cb.acquisition\n"
                "assert 'botorch' in sys.modules\n"
                "importlib.reload(module)\n"
                "from cbandit import acquisition\n"
                "assert acquisition is module\n"
                "assert 'acquisition' in cb.__all__\n",
            ],
            capture_output=True,
            text=True,
            cwd=Path(__file__).parent,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == 0, done.stderr

    def test_other_names_are_still_missing(self):
        assert importlib.import_module("cbandit.acquisition") is cb.acquisition
        with pytest.raises(AttributeError, match="no attribute 'aquisition'"):
            _ = cb.aquisition


FUNCTIONS = {
    "gramacy": lambda **more: synthetic.ConstrainedGramacy(**more),
    "hartmann 3": lambda **more: synthetic.ConstrainedHartmann(dim=3, **more),
    "hartmann 6": lambda **more: synthetic.ConstrainedHartmann(dim=6, **more),
    "hartmann smooth": lambda **more: synthetic.ConstrainedHartmannSmooth(**more),
    "pressure vessel": lambda **more: synthetic.PressureVessel(**more),
    "welded beam": lambda **more: synthetic.WeldedBeamSO(**more),
    "string": lambda **more: synthetic.TensionCompressionString(**more),
    "speed reducer": lambda **more: synthetic.SpeedReducer(**more),
    "keane": lambda **more: synthetic.KeaneBumpFunction(dim=2, **more),
}
# of BoTorch's stated values, those that its own functions attain and do not pass
ATTAINED = ("gramacy", "hartmann 6", "hartmann smooth", "speed reducer", "keane")


class TestFromBotorch:
    @pytest.mark.parametrize("name", FUNCTIONS)
    @pytest.mark.parametrize("negate", [False, True])
    def test_signs(self, name, negate):
        function = FUNCTIONS[name](negate=negate)
        problem = from_botorch(function)
        assert isinstance(problem, Problem)
        assert isinstance(problem, Continuous)
        torch.testing.assert_close(problem.actions.bounds, function.bounds)
        generator = torch.Generator().manual_seed(0)
        unit = torch.rand(2000, function.dim, generator=generator, dtype=torch.float64)
        x = function.bounds[0] + unit * (function.bounds[1] - function.bounds[0])
        reward, costs = problem.reward(x, 1), problem.costs(x, 1)
        value = function(x, noise=False)
        sign = -1 if function.is_minimization_problem else 1
        torch.testing.assert_close(reward, sign * value)
        feasible = function.is_feasible(x, noise=False)
        assert torch.equal((costs <= 0).all(-1), feasible)
        best = problem.optimum(1)
        assert not (reward[feasible] > best + 1e-9).any()
        if name in ATTAINED:
            # the values stated are rounded
            assert best.item() == pytest.approx(sign * function.optimal_value, rel=3e-4)
        assert problem.stochastic_optimum(1) >= best - 1e-9

    def test_optima_that_botorch_states_otherwise(self):
        function = synthetic.ConstrainedHartmann(dim=3)
        assert not function.is_feasible(function.optimizers).any()
        assert from_botorch(function).optimum(1) == pytest.approx(3.838521)
        beam = synthetic.WeldedBeamSO()
        x = torch.tensor([[0.168001, 4.067083, 10.0, 0.168001]]).double()
        assert beam.is_feasible(x)
        assert beam(x).item() < 1.5872 < beam.optimal_value
        assert from_botorch(beam).optimum(1).item() >= -beam(x).item()
        vessel = synthetic.PressureVessel()
        x = torch.tensor([[0.78124, 0.40624, 40.4787, 197.8]]).double()
        assert vessel.is_feasible(x)
        assert vessel(x).item() < 5635 < vessel.optimal_value
        assert from_botorch(vessel).optimum(1).item() >= -vessel(x).item()

    def test_unknown_optimum(self):
        half = [(0.0, 0.5)] * 3
        function = synthetic.ConstrainedHartmannSmooth(dim=6, bounds=[(0.0, 1.0)] * 6)
        assert from_botorch(function).optimum(1) == pytest.approx(3.322368)
        assert from_botorch(synthetic.KeaneBumpFunction(dim=3)).optimum(1).isnan()
        keane = synthetic.KeaneBumpFunction(dim=2, bounds=half[:2])
        assert from_botorch(keane).optimum(1).isnan()
        assert from_botorch(keane, optimum=0.1).optimum(1) == 0.1

    def test_points(self):
        function = synthetic.ConstrainedGramacy()
        grid = from_botorch(function, points=[41, 61])
        assert isinstance(grid, Table)
        assert isinstance(grid.actions, cb.ProductGrid)
        assert grid.actions.sizes == [41, 61]
        at_all = grid.actions.block(0, grid.actions.size)
        torch.testing.assert_close(grid.f, -function(at_all))
        ok = function.is_feasible(at_all)
        assert grid.optimum(1) == -function(at_all)[ok].min()
        assert grid.optimum(1) <= from_botorch(function).optimum(1)
        some = at_all[::7]
        listed = from_botorch(function, points=some)
        assert isinstance(listed.actions, cb.Finite)
        torch.testing.assert_close(listed.g, grid.g[:, ::7])
        same = from_botorch(function, points=cb.ProductGrid(grid.actions.axes))
        assert torch.equal(same.f, grid.f)

    def test_discrete_axes(self):
        class Whole(synthetic.ConstrainedGramacy):
            _bounds = ((0.0, 3.0), (0.0, 1.0))
            continuous_inds, discrete_inds = [1], [0]
            _optimizers = None

        with pytest.raises(CBanditError, match="Whole has coordinates that are not"):
            from_botorch(Whole())
        problem = from_botorch(Whole(), points=5)
        assert problem.actions.axes[0].tolist() == [0, 1, 2, 3]
        assert problem.actions.sizes == [4, 5]

    @pytest.mark.parametrize("points", [None, 21])
    def test_noise(self, points):
        function = synthetic.ConstrainedGramacy(
            noise_std=0.5, constraint_noise_std=[0.1, 0.2]
        )
        before = torch.get_rng_state()
        problem = from_botorch(function, points)
        trials = Streams(0, 2000)
        x = torch.full((2000, 2), 0.5, dtype=torch.float64)
        index = None if points is None else problem.actions.index(x)
        flags = torch.zeros(2000, dtype=torch.bool)
        reward, costs = problem.observe(cb.Choice(1, index, x, flags), trials)
        assert torch.equal(before, torch.get_rng_state())
        assert reward.shape == (2000,)
        assert costs.shape == (2000, 2)
        # four standard errors of a deviation from 2000 normals: 6.4 %
        off = reward - problem.reward(x, 1)
        assert off.std().item() == pytest.approx(0.5, rel=0.064)
        off = costs - problem.costs(x, 1)
        torch.testing.assert_close(
            off.std(0), torch.tensor([0.1, 0.2]).double(), rtol=0.064, atol=0
        )
        given = from_botorch(function, points, noise=0.0, cost_noise=[0.0, 0.0])
        reward, _ = given.observe(cb.Choice(1, index, x, flags), trials)
        assert torch.equal(reward, given.reward(x, 1))

    def test_edges_of_the_box(self):
        problem = from_botorch(synthetic.WeldedBeamSO())
        upper = problem.actions.upper.float()
        assert problem.reward(upper, 1).dtype == torch.float64
        assert problem.reward(problem.actions.upper + 1e-12, 1).isfinite()
        with pytest.raises(CBanditError, match="x must lie between"):
            problem.reward(problem.actions.upper + 1.0, 1)

    def test_in_the_loop(self):
        problem = from_botorch(synthetic.ConstrainedGramacy(noise_std=0.01), points=15)
        gp = belief()
        policy = cb.CKB(
            problem.actions, reward=gp, costs=[gp, gp], explore=cb.UCB(2.0), step=0.5,
            cap=10.0, trials=2,
        )  # fmt: skip
        done = cb.simulate(policy, problem, horizon=12, progress=False)
        assert done.regret.shape == (2, 12)
        assert done.regret.isfinite().all()
        assert done.stochastic_regret.isfinite().all()

    @pytest.mark.parametrize(
        ("function", "given", "message"),
        [
            (
                synthetic.Hartmann(),
                {},
                "test_function must be an instance of one of BoTorch's",
            ),
            (multi_objective.BNH(), {}, "one objective; BNH has 2"),
            (FUNCTIONS["gramacy"](), {"points": [3, 3, 3]}, "points must have shape"),
            (FUNCTIONS["gramacy"](), {"points": 1}, "at least 2"),
            (FUNCTIONS["gramacy"](), {"points": 2.5}, "whole"),
            (FUNCTIONS["gramacy"](), {"points": 10_000}, "at most 10000000"),
            (FUNCTIONS["gramacy"](), {"points": torch.zeros(4, 3)}, "d = 2 coord"),
            (FUNCTIONS["gramacy"](), {"points": torch.ones(4, 2) * 2}, "x must lie"),
            (FUNCTIONS["gramacy"](), {"noise": -1.0}, "noise must not be negative"),
            (FUNCTIONS["gramacy"](), {"cost_noise": [1.0] * 3}, "cost_noise must have"),
            (FUNCTIONS["gramacy"](), {"points": 5, "optimum": 1.0}, "optimum is exact"),
        ],
    )
    def test_bad_input(self, function, given, message):
        with pytest.raises(CBanditError, match=message):
            from_botorch(function, **given)


@pytest.mark.slow
class TestAx:
    def test_by_name(self):
        pytest.importorskip("ax")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.dual_loop()

    def dual_loop(self):
        from ax.adapter.registry import Generators
        from ax.api.client import Client
        from ax.api.configs import RangeParameterConfig
        from ax.generation_strategy.generation_node import GenerationNode
        from ax.generation_strategy.generation_strategy import GenerationStrategy
        from ax.generation_strategy.generator_spec import GeneratorSpec
        from ax.generation_strategy.transition_criterion import MinTrials

        options = {"beta": 2.0, "multiplier": [0.0]}
        ckb = GeneratorSpec(
            Generators.BOTORCH_MODULAR,
            generator_kwargs={
                "botorch_acqf_class": PrimalDual,
                "botorch_acqf_options": options,
                "transforms": [],
            },
        )
        sobol = GeneratorSpec(Generators.SOBOL, generator_kwargs={"seed": 0})
        start = GenerationNode(
            name="sobol",
            generator_specs=[sobol],
            transition_criteria=[MinTrials(threshold=4, transition_to="ckb")],
        )
        client = Client(random_seed=0)
        client.configure_experiment(
            parameters=[
                RangeParameterConfig(name="x", parameter_type="float", bounds=(0, 1))
            ]
        )
        # outputs come in the order of their names: neither first nor maximised
        client.configure_optimization(
            objective="-z_loss", outcome_constraints=["a <= 0.3"]
        )
        client.set_generation_strategy(
            GenerationStrategy(
                nodes=[start, GenerationNode(name="ckb", generator_specs=[ckb])]
            )
        )
        phi, seen = torch.zeros(1, dtype=torch.float64), []
        for t in range(10):
            ((number, arm),) = client.get_next_trials(max_trials=1).items()
            x = torch.tensor([[arm["x"]]], dtype=torch.float64)
            if t >= 4:
                adapter = client._generation_strategy.adapter
                assert adapter.outcomes == ["a", "z_loss"]
                # the loss is minimised, the cost's limit subtracted
                score = PrimalDual(
                    adapter.generator.surrogate.model,
                    **options,
                    thresholds=0.3,
                    outputs=[(1, -1.0), (0, 1.0)],
                )
                _, g = score.estimates(x)
                seen.append((arm["x"], score(x).item(), phi.item()))
                axis = torch.linspace(0, 1, 101).double().view(-1, 1, 1)
                assert score(x).item() >= score(axis).max() - 1e-4
                phi = cb.multipliers.projected(phi, g.detach().flatten(), step=0.5)
                options["multiplier"] = phi
            x = x.item()
            client.complete_trial(number, raw_data={"a": x, "z_loss": (x - 0.6) ** 2})
        assert len({multiplier for _, _, multiplier in seen}) > 1
        assert abs(seen[-1][0] - 0.3) < 0.1, seen
