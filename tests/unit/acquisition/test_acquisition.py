"""The plug-ins: points, values, conventions, pending points, paths."""

from __future__ import annotations

import copy
import math
import warnings

import pytest
import torch
from botorch.exceptions.warnings import BotorchWarning, InputDataWarning
from botorch.models import (
    MultiTaskGP,
    SingleTaskGP,
)
from plugins import BETA, KINDS, PHI, SMOOTH, TAU, at, data, make, mock

import cbandit as cb
from cbandit.acquisition import (
    OptimisticFeasible,
    PathwisePrimalDual,
    PrimalDual,
    RectifiedPenalty,
)


@pytest.fixture(scope="module")
def model():
    return make()


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


class TestPoints:
    @pytest.mark.parametrize("shape", [(4, 1, 1), (4, 1, 3), (4, 2, 3), (2,)])
    def test_of_another_width_are_named(self, model, kind, shape):
        score = KINDS[kind](model)
        x = torch.rand(*shape, dtype=torch.float64)
        for look in (score, score.estimates):
            with pytest.raises(cb.CBanditError) as error:
                look(x)
            assert "X must have shape (..., n, d) with d = 2" in str(error.value)
            assert str(error.value).endswith(f"got {shape}")
        with pytest.raises(cb.CBanditError, match=r"X must be a tensor .* got list"):
            score([[0.1, 0.2]])

    def test_pending_of_another_width_are_named(self, model, kind):
        score = KINDS[kind](model)
        with pytest.raises(cb.CBanditError, match=r"X_pending .* d = 2.*\(1, 3\)"):
            score.set_X_pending(torch.rand(1, 3, dtype=torch.float64))
        assert score.X_pending is None
        with pytest.raises(cb.CBanditError, match=r"X_pending .* got list"):
            KINDS[kind](model, X_pending=[[0.1, 0.2]])

    def test_slack_of_another_width_is_named(self, model):
        with pytest.raises(cb.CBanditError, match="X must have shape"):
            KINDS["feasible"](model).slack(torch.rand(4, 3, dtype=torch.float64))

    @pytest.mark.parametrize("parts", ["list", "mixed list", "kronecker"])
    def test_of_any_model_that_tells_its_width(self, parts):
        score = KINDS["primal-dual"](make(parts))
        assert score(at(4, 1)).shape == (4,)
        with pytest.raises(cb.CBanditError, match="d = 2"):
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

    def test_units_divide_what_is_above_the_thresholds(self):
        # (1 + 2 2) / 2, (3 - 2 0.5 - 1) / 4 and (-1 - 2 0.25 + 1) / 0.5
        given = {"thresholds": [1.0, -1.0], "units": [2.0, 4.0, 0.5]}
        score = PrimalDual(self.believed, 2.0, [2.0, 4.0], **given)
        assert score(self.x).tolist() == [2.5 - 2.0 * 0.25 - 4.0 * -1.0]
        assert score.estimates(self.x)[1].tolist() == [[[0.25], [-1.0]]]
        score = PrimalDual(self.believed, 2.0, 4.0, clip=(1.0, 0.125), **given)
        assert score(self.x).tolist() == [1.0 - 4.0 * 0.125 + 4.0 * 0.125]
        score = RectifiedPenalty(self.believed, 2.0, 4.0, **given)
        assert score(self.x).tolist() == [2.5 - 4.0 * 0.25]
        score = OptimisticFeasible(self.believed, 2.0, floor=-9.0, **given)
        assert score(self.x).tolist() == [-9.0 - 0.25]
        with pytest.raises(cb.CBanditError, match=r"units must have shape .* \(3,\)"):
            PrimalDual(self.believed, 2.0, 4.0, units=[2.0, 4.0])
        with pytest.raises(cb.CBanditError, match="units"):
            PrimalDual(self.believed, 2.0, 4.0, units=[2.0, 4.0, 0.0])

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


def kronecker(model, points):
    """The covariance of all tasks at points, a point's tasks side by side."""
    (x,), tasks = model.train_inputs, model._task_covar_matrix.to_dense()

    def prior(a, b):
        between = model.covar_module.data_covar_module(a, b).to_dense()
        return torch.kron(between, tasks)

    noise = model.likelihood._shaped_noise_covar(x.shape).to_dense()
    cross = prior(points, x)
    known = torch.linalg.solve(prior(x, x) + noise, cross.mT)
    return prior(points, points) - cross @ known


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
    def test_a_batch_on_all_tasks_at_once(self, kind):
        if kind == "pathwise":
            pytest.skip("BoTorch draws no paths of it")
        score, x = KINDS[kind](make("kronecker")), at(4, 3, seed=3)
        alone = sum(score(x[:, j : j + 1]) for j in range(3))
        assert ((score(x) - alone).abs() > 1e-3).any()
        x = x.requires_grad_()
        assert torch.autograd.gradcheck(score, (x,), eps=1e-6, atol=1e-5, rtol=1e-4)

    @pytest.mark.filterwarnings("ignore:A not p.d., added jitter")  # of Kronecker's
    def test_one_point_of_a_model_whose_tasks_have_different_noises(self):
        model, x = make("kronecker"), at(5, 1, seed=3)
        noises = torch.linspace(0.02, 0.8, model.num_outputs).double()
        model.likelihood.task_noises = noises
        model.train()
        model.eval()
        known = PrimalDual(model, 0.0, [0.0, 0.0]).estimates(x)
        f, g = PrimalDual(model, 2.0, [0.0, 0.0]).estimates(x)
        for i in range(5):
            std = kronecker(model, x[i]).diagonal().sqrt()
            torch.testing.assert_close((f - known[0])[i, 0], 2.0 * std[0])
            torch.testing.assert_close((known[1] - g)[i, :, 0], 2.0 * std[1:])

    @pytest.mark.filterwarnings("ignore:A not p.d., added jitter")  # of Kronecker's
    @pytest.mark.parametrize("which", ["one", "list", "mixed list", "kronecker"])
    def test_variances_are_those_of_a_model_that_saw_the_means(self, which):
        model, x, pending = make(which), at(7, 1, seed=6), at(3, seed=7)
        score = PrimalDual(model, 2.0, [0.0, 0.0], 3.0, noise=0.02)
        free, free_g = score.estimates(x)
        score.set_X_pending(pending)
        f, g = score.estimates(x)
        # by hand: the joint normal of all outputs at all points
        points = torch.cat([x[:, 0], pending])
        joint = model.posterior(points)
        parts = [joint] if not hasattr(joint, "posteriors") else joint.posteriors
        expected = []
        for part in parts:
            k = part.mean.shape[-1]
            if which == "kronecker":  # whose distribution has no covariances
                whole = kronecker(model, points)
            else:
                whole = part.distribution.covariance_matrix
            if which != "kronecker" and k > 1 and not part.distribution._interleaved:
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
        with pytest.raises(cb.CBanditError, match="q > 1 need a model whose posterior"):
            score(torch.zeros(1, 2, 2, dtype=torch.float64))
        score.set_X_pending(at(1))
        with pytest.raises(cb.CBanditError, match="jointly normal; got MockPosterior"):
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
