"""The search over a box: near the maximum of fine grids, on kinks, climb by climb."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from inside import (
    Climbs,
    Streams,
    again,
    apart,
    around,
    best_feasible_point,
    box_search,
    candidates,
    climb,
    maximise_box,
    rows_to_try,
    zoomed,
)
from torch.quasirandom import SobolEngine

import cbandit as cb
from cbandit import scores

F64 = torch.float64


def unit(dim):
    return cb.Box([0.0] * dim, [1.0] * dim)


class Believed:
    """A random posterior, by its own dense solve: estimates of one reward, ``m`` costs.

    Kernels are RBF and Matern-3/2 in turn; targets are noise, so hills are many.
    """

    def __init__(self, seed, dim, m, lengthscale, count, beta):
        generator = torch.Generator().manual_seed(seed)
        self.length, self.smooth = lengthscale, seed % 2 == 0
        self.x = torch.rand(count, dim, generator=generator, dtype=F64)
        y = torch.randn(count, 1 + m, generator=generator, dtype=F64)
        gram = self.kernel(self.x) + 0.01 * torch.eye(count, dtype=F64)
        self.inverse = torch.linalg.inv(gram)
        self.alpha = self.inverse @ y
        self.beta = beta * torch.tensor([1.0] + [-1.0] * m, dtype=F64)
        self.weight = 10 * torch.rand(1, m, generator=generator, dtype=F64)

    def kernel(self, x):
        gaps = (x.unsqueeze(-2) - self.x) / self.length
        squared = gaps.square().sum(-1)
        if self.smooth:
            return torch.exp(-0.5 * squared)
        r = (3 * squared + 1e-30).sqrt()
        return (1 + r) * torch.exp(-r)

    def __call__(self, x):
        k = self.kernel(x)
        variance = 1 - ((k @ self.inverse) * k).sum(-1)
        std = variance.clamp_min(1e-12).sqrt()
        return (k @ self.alpha + self.beta * std.unsqueeze(-1)).mT


def clipped(believed):
    """CKB's estimates within bounds, and its score."""
    return (
        lambda x: believed(x).clamp(-0.8, 0.8),
        lambda f, g: scores.primal_dual(f, g, believed.weight),
    )


def rectified(believed):
    """RPOL's score, half a unit above the limits."""
    shift = torch.zeros(believed.beta.numel(), 1, dtype=F64)
    shift[1:] = 0.5
    return (
        lambda x: believed(x) + shift,
        lambda f, g: scores.rectified(f, g, believed.weight),
    )


def over(points, estimate, score):
    """The scores of many points."""
    with torch.no_grad():
        parts = [estimate(part.unsqueeze(0)) for part in points.split(1_000)]
        return torch.cat([score(p[:, 0], p[:, 1:])[0] for p in parts])


def feasible_score(f, g):
    return torch.where((g <= 0).all(-2), f, -torch.inf)


LENGTHS = (0.05, 0.07, 0.1, 0.2, 0.4)


@pytest.mark.slow
class TestNearTheMaximum:
    """Never worse than a fine set of points by 1e-3 of the score's range."""

    axis = torch.linspace(0, 1, 200, dtype=F64)
    grid = torch.cartesian_prod(axis, axis)

    @pytest.mark.parametrize("rule", [clipped, rectified])
    @pytest.mark.parametrize("m", [1, 3])
    def test_in_the_plane(self, rule, m):
        gaps, climbs = [], Climbs()
        for seed in range(25):
            believed = Believed(
                seed, 2, m, LENGTHS[seed % 5], (10, 50, 120)[seed % 3],
                (0.3, 1.0, 2.0)[seed // 5 % 3],
            )  # fmt: skip
            estimate, score = rule(believed)
            found = maximise_box(unit(2), estimate, score, Streams(seed), climbs=climbs)
            values = over(self.grid, estimate, score)
            gaps.append(float((values.max() - found.value) / np.ptp(values.numpy())))
            # what is said of the point is true of it
            here = estimate(found.x.unsqueeze(1))
            said = score(here[:, 0], here[:, 1:])
            assert said.item() == pytest.approx(found.value.item(), abs=1e-9)
            assert here[0, 0, 0].item() == pytest.approx(found.f.item(), abs=1e-9)
        print(f"{rule.__name__}, m = {m}: {climbs}, worst gap {max(gaps):.1e}")
        assert max(gaps) <= 1e-3
        assert climbs.failed <= 0.1 * climbs.made

    def test_where_costs_keep_their_limits(self):
        missed = []
        for seed in range(25):
            m = (1, 3)[seed % 2]
            believed = Believed(seed, 2, m, LENGTHS[seed % 5], 50, 0.5)
            found, infeasible = best_feasible_point(
                unit(2), believed, Streams(seed), torch.zeros(1, 0, 2, dtype=F64)
            )
            values = over(self.grid, believed, feasible_score)
            if not bool(infeasible):
                assert bool((found.g <= 0).all())
                assert float(found.value) == float(found.f)
            else:
                assert bool((found.g > 0).any())
            if bool(values.isfinite().any()):
                size = np.ptp(values[values.isfinite()].numpy()) + 1e-9
                assert not bool(infeasible)
                missed.append(float(values.max() - found.value) / size)
        assert len(missed) > 15
        assert max(missed) <= 1e-3

    @pytest.mark.parametrize("rule", [clipped, rectified])
    def test_in_six_dimensions(self, rule):
        points = SobolEngine(6, scramble=True, seed=1).draw(10**5, dtype=F64)
        for seed in range(6):
            believed = Believed(
                seed, 6, (1, 3)[seed % 2], (0.3, 0.5, 1.0)[seed % 3], 40, 1.0
            )
            estimate, score = rule(believed)
            found = maximise_box(unit(6), estimate, score, Streams(seed))
            values = over(points, estimate, score)
            gap = (values.max() - found.value) / np.ptp(values.numpy())
            assert float(gap) <= 1e-3


class TestKinks:
    def test_a_crease(self):
        """``x_1 - Q [x_1 + x_2^2 - 0.4]_+`` is largest at (0.4, 0)."""

        def estimate(x):
            return torch.stack([x[..., 0], x[..., 0] + x[..., 1] ** 2 - 0.4], 1)

        weight = torch.tensor([[3.0]], dtype=F64)
        found = maximise_box(
            cb.Box([-1.0, -1.0], [1.0, 1.0]),
            estimate,
            lambda f, g: scores.rectified(f, g, weight),
            Streams(0),
        )
        assert found.value.item() == pytest.approx(0.4, abs=1e-8)
        assert found.x[0].tolist() == pytest.approx([0.4, 0.0], abs=1e-4)

    @pytest.mark.parametrize("dim", [2, 6])
    def test_a_corner_of_three_creases(self, dim):
        """Three rectified costs meet where a linear reward would go on."""
        target = torch.linspace(0.2, 0.7, dim, dtype=F64)
        slopes = torch.eye(3, dim, dtype=F64) if dim > 2 else None

        def estimate(x):
            gap = x - target
            if slopes is None:
                g = [gap[..., 0], gap[..., 1], gap.sum(-1)]
            else:
                g = [gap @ slope for slope in slopes]
            f = gap[..., :3].sum(-1) - gap[..., 3:].square().sum(-1)
            return torch.stack([f, *g], 1)

        weight = torch.tensor([[2.0, 30.0, 5.0]], dtype=F64)
        found = maximise_box(
            unit(dim), estimate, lambda f, g: scores.rectified(f, g, weight), Streams(0)
        )
        assert found.value.item() == pytest.approx(0.0, abs=1e-7)

    def test_the_edge_of_a_clip(self):
        """``-clip(x)`` with a cost that earns nothing below its bound: a sharp edge."""

        def estimate(x):
            f = -(x[..., 0] - 0.9).square() * 0.1
            g = (2 * x[..., 0]).clamp(-0.5, 0.5) + x[..., 1].square()
            return torch.stack([f, g], 1)

        weight = torch.tensor([[1.0]], dtype=F64)
        box = cb.Box([-1.0, -1.0], [1.0, 1.0])
        found = maximise_box(
            box, estimate, lambda f, g: scores.primal_dual(f, g, weight), Streams(0)
        )
        # falls to the right of -0.25 at once, and to the left by the reward alone
        assert found.x[0].tolist() == pytest.approx([-0.25, 0.0], abs=1e-3)
        assert found.value.item() == pytest.approx(-0.1 * 1.15**2 + 0.5, abs=1e-8)

    def test_a_limit_that_binds(self):
        """The largest ``x_1 + x_2`` on the unit disc."""

        def estimate(x):
            return torch.stack([x.sum(-1), x.square().sum(-1) - 1], 1)

        box = cb.Box([-2.0, -2.0], [2.0, 2.0])
        nothing = torch.zeros(1, 0, 2, dtype=F64)
        found, infeasible = best_feasible_point(box, estimate, Streams(0), nothing)
        assert infeasible.tolist() == [False]
        assert math.sqrt(2) - 1e-6 <= found.value.item() <= math.sqrt(2)
        assert found.g.max() <= 0

    def test_a_cost_at_its_limit_keeps_it(self):
        nothing = torch.zeros(1, 0, 2, dtype=F64)
        found, infeasible = best_feasible_point(
            unit(2), lambda x: torch.stack([x.sum(-1), 0 * x[..., 0]], 1), Streams(0),
            nothing,
        )  # fmt: skip
        assert infeasible.tolist() == [False]
        assert found.value.tolist() == [2.0]

    @pytest.mark.parametrize("size", [1e3, 1e-3])
    def test_costs_of_another_size(self, size):
        """The largest ``x_1 + x_2`` on the unit disc, in other units."""

        def estimate(x):
            return torch.stack([x.sum(-1) * size, (x.square().sum(-1) - 1) / size], 1)

        box = cb.Box([-2.0, -2.0], [2.0, 2.0])
        nothing = torch.zeros(1, 0, 2, dtype=F64)
        found, infeasible = best_feasible_point(box, estimate, Streams(0), nothing)
        assert infeasible.tolist() == [False]
        assert found.value.item() / size == pytest.approx(math.sqrt(2), abs=1e-4)
        assert found.g.max() <= 0

    def test_what_is_found_lies_in_the_box_to_the_bit(self):
        choices = [[0.1], [0.3], [0.7]]
        for low, high in ((-0.9, -0.3), (-0.9, 0.2), (-0.9, 1.2)):  # sums run over
            box = cb.Box([low], [high], choices=choices)

            def estimate(x, at=high):  # the middle row, and the upper end
                gap = (x - torch.tensor([at, 0.3], dtype=F64)).abs()
                return -gap.sum(-1).unsqueeze(1)

            found = maximise_box(box, estimate, lambda f, g: f, Streams(0))
            assert found.x.tolist() == [[high, 0.3]]

    def test_a_trial_draws_the_same_whatever_others_need(self):
        after = []
        for least in (
            -1.0,
            1.0,
        ):  # the first trial's cost: within its limit, or nowhere

            def estimate(x, least=least):
                f = -(x - 0.4).square().sum(-1)
                g = torch.stack([0 * f[0] + least, 0 * f[0] - 1.0])
                return torch.stack([f, g], 1)

            streams = Streams(3, 2)
            nothing = torch.zeros(2, 0, 2, dtype=F64)
            best_feasible_point(unit(2), estimate, streams, nothing)
            after.append(streams.uniform(1, 5))
        assert torch.equal(after[0][1], after[1][1])

    def test_more_than_half_of_the_box_is_barred(self):
        top = torch.linspace(0.7, 0.9, 4, dtype=F64)

        def estimate(x):
            away = x - top
            f = -away.square().sum(-1) - 0.5 * away.sum(-1) ** 2
            return torch.stack([f, torch.zeros_like(f)], 1)

        found = maximise_box(
            unit(4),
            estimate,
            lambda f, g: f,
            Streams(0),
            barred=lambda z: z[..., 0] < 0.6,
        )
        assert found.value.item() > -1e-12

    def test_nothing_feasible(self):
        def estimate(x):
            return torch.stack([x.sum(-1), (x - 0.3).abs().sum(-1) + 0.1], 1)

        nothing = torch.zeros(1, 0, 2, dtype=F64)
        found, infeasible = best_feasible_point(unit(2), estimate, Streams(0), nothing)
        assert infeasible.tolist() == [True]
        assert found.x[0].tolist() == pytest.approx([0.3, 0.3], abs=1e-6)
        assert found.value.item() == pytest.approx(-0.1, abs=1e-6)


class TestClimbs:
    free = torch.ones(2, dtype=torch.bool)

    def test_a_valley_of_uneven_slopes(self):
        def value(z):  # Rosenbrock's, largest at (0.75, 0.5625)
            a, b = z[..., 0] / 0.75, z[..., 1] / 0.5625
            return -((1 - a) ** 2) - 100 * (b - a**2) ** 2

        start = torch.tensor([[[0.1, 0.9], [0.95, 0.05]]], dtype=F64)
        found = climb(value, start, torch.ones(1, dtype=F64), self.free, 99, 2, 200)
        assert found.settled.all()
        assert found.value.abs().max() < 1e-8

    def test_nothing_is_looked_for_below_rounding(self):
        looks = 0

        def value(z):  # the sine stands for rounding: small, and its slopes are not
            nonlocal looks
            looks += 1
            gap = z - torch.tensor([0.3, 0.7], dtype=F64)
            smooth = 50 * gap.square().sum(-1) + 20 * gap.prod(-1)
            return 1 - smooth + 3e-14 * torch.sin(1e8 * z).sum(-1)

        generator = torch.Generator().manual_seed(0)
        start = torch.rand(1, 8, 2, dtype=F64, generator=generator)
        one = torch.ones(1, dtype=F64)
        found = climb(value, start, one, self.free, 99, 8, 100)
        assert found.settled.all()
        assert (1 - found.value).abs().max() < 1e-12
        assert looks < 20

    def test_too_few_steps_are_a_failure(self):
        def value(z):
            return -((z - 0.5) * torch.tensor([1.0, 1000.0])).square().sum(-1)

        start = torch.tensor([[[0.1, 0.9]]], dtype=F64)
        one = torch.ones(1, dtype=F64)
        few = climb(value, start, one, self.free, 99, 1, 2)
        assert not few.settled.any()
        assert few.value.item() > value(start).item()
        climbs = Climbs()
        climbs.count(few)
        climbs.count(climb(value, start, one, self.free, 99, 1, 60))
        assert climbs == Climbs(made=2, failed=1)

    def test_a_climb_that_failed_goes_on_by_l_bfgs_b(self):
        target = torch.tensor([0.5, 0.2], dtype=F64)
        evaluated = 0

        def value(z):
            nonlocal evaluated
            evaluated += z.shape[1]
            gap = (z - target) * torch.tensor([1.0, 30.0], dtype=F64)
            return -gap.square().sum(-1)

        # one trial starts at the top and has settled, the other is cut short
        start = torch.tensor([[[0.5, 0.2]], [[0.1, 0.9]]], dtype=F64)
        size = torch.ones(2, dtype=F64)
        cut = climb(value, start, size, self.free, 99, 1, 1)
        assert cut.failed.tolist() == [[False], [True]]
        evaluated = 0
        done, higher = again(value, cut, self.free)
        assert 0 < evaluated <= 100
        assert higher.tolist() == [[False], [True]]
        assert (done.z - target).abs().max() < 1e-4
        assert torch.equal(done.value, value(done.z))
        assert torch.equal(done.z[0], cut.z[0])
        climbs = Climbs()
        climbs.count(cut, higher)
        assert climbs == Climbs(made=2, failed=1, lbfgsb=1)
        # alone it comes to the same
        alone, _ = again(
            lambda z: value(z),
            climb(value, start[1:], size[1:], self.free, 99, 1, 1),
            self.free,
        )
        assert torch.equal(alone.z, done.z[1:])

    def test_l_bfgs_b_keeps_fixed_coordinates(self):
        fixed = torch.tensor([True, False])
        start, one = torch.tensor([[[0.1, 0.7]]], dtype=F64), torch.ones(1, dtype=F64)

        def value(z):
            return -((z - 0.4) ** 4).sum(-1)

        cut = climb(value, start, one, fixed, 99, 1, 1)
        done, higher = again(value, cut, fixed)
        assert higher.all()
        assert done.z[0, 0, 1] == 0.7
        assert abs(done.z[0, 0, 0] - 0.4) < 0.02

    @pytest.mark.parametrize("wrong", [math.nan, -math.inf])
    def test_values_that_are_not_finite_fail_and_do_no_harm(self, wrong):
        def value(z):  # nothing is known of the left half
            values = -(z - 0.8).square().sum(-1)
            return torch.where(z[..., 0] < 0.5, wrong, values)

        start = torch.tensor([[[0.2, 0.5], [0.7, 0.5]]], dtype=F64)
        one = torch.ones(1, dtype=F64)
        found = climb(value, start, one, self.free, 99, 2, 60)
        assert found.failed.tolist() == [[True, False]]
        done, higher = again(value, found, self.free)
        assert not higher[0, 1]
        assert torch.equal(done.z[0, 1], found.z[0, 1])
        assert done.value[0, 1] == pytest.approx(0.0, abs=1e-9)

    def test_a_climb_that_gains_nothing_on_a_slope_has_failed(self):
        def value(z):  # the gradient says up, all around is down
            gap = z - 0.5
            away = gap.abs().sum(-1)
            return gap.sum(-1) - gap.sum(-1).detach() - away.detach()

        start = torch.full((1, 1, 2), 0.5, dtype=F64)
        found = climb(value, start, torch.ones(1, dtype=F64), self.free, 99, 1, 60)
        assert found.failed.all()
        done, higher = again(value, found, self.free)
        assert not higher.any()
        assert torch.equal(done.z, start)

    def test_a_search_is_saved_by_l_bfgs_b(self, monkeypatch):
        def estimate(x):  # a long ridge
            u, v = x[..., 0] + x[..., 1], x[..., 0] - x[..., 1]
            f = -100 * (v - 0.2).square() - (u - 0.9).square()
            return f.unsqueeze(1)

        monkeypatch.setattr(box_search, "STEPS", 1)
        monkeypatch.setattr(box_search, "SPRINT", 1)
        climbs = Climbs()
        found = maximise_box(
            unit(2), estimate, lambda f, g: f, Streams(0), climbs=climbs
        )
        assert climbs.failed > 0
        assert climbs.lbfgsb > 0
        assert found.value.item() == pytest.approx(0.0, abs=1e-6)

    def test_bounds_and_fixed_coordinates(self):
        start = torch.tensor([[[0.4, 0.6]]], dtype=F64)
        one = torch.ones(1, dtype=F64)
        found = climb(lambda z: z.sum(-1), start, one, self.free, 99, 1, 60)
        assert found.z[0, 0].tolist() == [1.0, 1.0]
        fixed = torch.tensor([True, False])
        found = climb(lambda z: z.sum(-1), start, one, fixed, 99, 1, 60)
        assert found.z[0, 0].tolist() == [1.0, 0.6]

    @pytest.mark.parametrize("corner", [0.0, 1.0])
    def test_a_bound_is_left_for_what_lies_inside(self, corner):
        def value(z):
            return -(z - torch.tensor([0.4, 0.6], dtype=F64)).square().sum(-1)

        start, one = torch.full((1, 1, 2), corner, dtype=F64), torch.ones(1, dtype=F64)
        found = climb(value, start, one, self.free, 99, 1, 60)
        assert found.z[0, 0].tolist() == pytest.approx([0.4, 0.6], abs=1e-6)
        # and kept, at no more than one look, for what lies beyond it
        looks = 0

        def beyond(z):
            nonlocal looks
            looks += 1
            return (2 * corner - 1) * z.sum(-1)

        found = climb(beyond, start, one, self.free, 99, 1, 60)
        assert torch.equal(found.z, start)
        assert found.settled.all()
        assert looks == 1

    def test_flat(self):
        start = torch.tensor([[[0.4, 0.6]]], dtype=F64)
        one = torch.ones(1, dtype=F64)
        found = climb(
            lambda z: torch.zeros_like(z[..., 0]), start, one, self.free, 9, 1, 9
        )
        assert torch.equal(found.z, start)
        assert found.settled.all()


class TestCandidates:
    """Where is looked, by hand: two free coordinates, and one of three rows."""

    box = cb.Box([0.0, -1.0], [1.0, 1.0], choices=[[1.0], [2.0], [4.0]])
    rows = torch.tensor([0.0, 1 / 3, 1.0], dtype=F64)

    def in_the_cube(self, z):
        assert bool(((z >= 0) & (z <= 1)).all())
        assert bool(torch.isin(z[..., 2], self.rows).all())

    def test_they_are_spread_out(self):
        streams = Streams(0, 2)
        z = candidates(self.box, streams, None)
        self.in_the_cube(z)
        for row in self.rows:
            assert (z[..., 2] == row).double().mean() > 0.3
        # on every bound of every coordinate, with every row
        for end in (0.0, 1.0):
            for row in self.rows:
                there = (z[..., :2] == end) & (z[..., 2:] == row)
                assert (there.sum(1) > 10).all()
        # every trial has its own, and every round
        again = candidates(self.box, streams, None)
        for one, two in ((z[0], z[1]), (z, again)):
            assert (one != two)[..., :2].any(-1).double().mean() > 0.5

    def test_some_are_near_what_is_known(self):
        known = torch.tensor([[[0.0, 0.5, 2.0]], [[0.5, 1.0, 4.0]]], dtype=F64)
        spread = len(candidates(self.box, Streams(0, 2), None)[0])
        z = candidates(self.box, Streams(0, 2), known)
        self.in_the_cube(z)
        near = z[:, spread:]
        at = torch.tensor([[[0.0, 0.75, 1 / 3]], [[0.5, 1.0, 1.0]]], dtype=F64)
        assert torch.equal(near[:, :1], at)
        assert torch.equal(near[..., 2:], at[..., 2:].expand(-1, near.shape[1], -1))
        gap = (near - at).abs().amax(-1)
        assert (gap < 0.05).double().mean() > 0.5
        assert (gap > 0.05).double().mean() > 0.2
        assert gap.amax() < 0.6

    def test_starts_are_apart(self):
        z = torch.tensor([[[0.5, 0.5], [0.25, 0.75], [0.75, 0.5], [0.5, 0.8]]]).double()
        values = torch.tensor([[4.0, 3.5, 3.0, 2.0]], dtype=F64)
        for near, wanted in ((0.2, [0, 1, 2]), (0.25, [0, 3]), (0.26, [0, 3])):
            points, heights = apart(z, values, len(wanted), near)
            assert torch.equal(points, z[:, wanted])
            assert torch.equal(heights, values[:, wanted])

    def test_draws_around_a_point(self):
        z = torch.tensor([[[0.5, 0.05, 1.0], [0.5, 0.95, 0.0]]], dtype=F64)
        near = around(self.box, z.expand(1, -1, -1).repeat(1, 50, 1), 0.1, Streams(0))
        self.in_the_cube(near)
        step = near - z.repeat(1, near.shape[1] // 2, 1)
        assert (step[..., 2] == 0).all()
        assert step.abs().amax() <= 0.1
        free = step[..., 0]
        assert free.mean().abs() < 0.01
        assert free.amin() < -0.09 < 0.09 < free.amax()
        assert (near[..., 1] == 0).any()
        assert (near[..., 1] == 1).any()

    def test_a_zoom_comes_close(self):
        top = torch.tensor([[0.51, 1.0, 1 / 3], [0.0, 0.49, 1.0]], dtype=F64)
        start = top + torch.tensor([-0.01, 0.01, 0.0], dtype=F64)
        start = start.clamp(0, 1).flip(0)
        top = top.flip(0)

        def value(z):
            self.in_the_cube(z)
            return -(z - top.unsqueeze(1)).abs().sum(-1)

        before = value(start.unsqueeze(1))[:, 0]
        z, best = zoomed(self.box, value, start, before, Streams(0, 2))
        assert torch.equal(value(z.unsqueeze(1))[:, 0], best)
        assert best.amin() > -1e-6
        # of what is no better the first is kept
        flat, zero = torch.zeros(2, 64, dtype=F64), torch.zeros(2, dtype=F64)
        for level in (flat, flat - 1):
            kept, _ = zoomed(self.box, lambda z, v=level: v, start, zero, Streams(0, 2))
            assert torch.equal(kept, start)

    def test_rows_are_all_tried_if_they_are_few(self):
        assert rows_to_try(unit(2), Streams(0)) == []
        for rows in rows_to_try(self.box, Streams(0)):
            assert rows.flatten().tolist() == self.rows.tolist()
        many = cb.Box([0.0], [1.0], choices=torch.arange(3_000.0)[:, None])
        drawn = rows_to_try(many, Streams(0, 2))
        assert len(drawn) == 4
        for rows in drawn:
            assert rows.shape == (2, 512, 1)
            assert not torch.equal(rows[0], rows[1])
            assert rows.amin() < 0.05 < 0.95 < rows.amax()
