"""BoTorch's test functions as problems."""

from __future__ import annotations

import pytest
import torch
from botorch.test_functions import multi_objective, synthetic
from inside import Streams

import cbandit as cb
from cbandit.problems import Continuous, Problem, Table, from_botorch


def belief(lengthscale=0.2, **more):
    import gpytorch

    kernel = gpytorch.kernels.MaternKernel(nu=2.5).double()
    kernel.lengthscale = lengthscale
    return cb.GP(kernel, noise=0.01, **more)


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

        with pytest.raises(cb.CBanditError, match="Whole has coordinates that are not"):
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
        with pytest.raises(cb.CBanditError, match="x must lie between"):
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
        with pytest.raises(cb.CBanditError, match=message):
            from_botorch(function, **given)
