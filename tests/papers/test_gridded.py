"""Problems given by formulas: Guo's, Shi's and the GPU example."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from inside import Streams, poisson
from scipy import stats

import cbandit as cb
from cbandit import problems

F64 = torch.float64


def test_the_small_feasible_set():
    problem = problems.shi_small_feasible()
    x = torch.tensor([4.712, 1.253], dtype=F64)
    assert float(problem.reward(x, 1)) == pytest.approx(-0.253, abs=1e-3)
    assert float(problem.costs(x, 1)) == pytest.approx(0.0, abs=1e-3)
    assert float(problem.optimum(1)) == pytest.approx(-0.30, abs=2e-3)
    _, g = problem.tables[0]
    assert g.shape == (1, 3721)
    assert float((g <= 0).double().mean()) == pytest.approx(0.017, abs=5e-4)
    assert problem.start.shape == ()


def test_the_data_rates():
    problem = problems.shi_data_rate("noisy", trials=4000)
    low, high = torch.zeros(4, dtype=F64), torch.full((4,), 2.0, dtype=F64)
    assert float(problem.reward(low, 1)) == pytest.approx(0.0, abs=1e-12)
    assert float(problem.reward(high, 1)) == pytest.approx(4.0, abs=1e-12)
    assert float(problem.costs(high, 1)) == pytest.approx(3.2)
    f, g = problem.tables[0]
    best = f.masked_fill(g[0] > 1e-9, -1).argmax()
    assert float(g[0, best]) == pytest.approx(0.0, abs=1e-9)  # the budget binds
    reward, cost = problem.look(high.expand(4000, 4), 1, Streams(0, 4000))
    # a variance of 0.01 on each of four utilities
    assert float(reward.std()) == pytest.approx(0.2, rel=0.05)
    assert float((cost - 1.2 - 2 + 0.0).abs().max()) <= 0.2 + 1e-9
    assert float(cost.std()) == pytest.approx(0.4 / math.sqrt(12), rel=0.05)


def test_proposition_1_is_made_for_its_multiplier():
    for constraint in ("noiseless", "noisy"):
        problem = problems.shi_proposition_1(constraint)
        f, g = problem.tables[0]
        penalty = g[0] if constraint == "noisy" else torch.expm1(g[0].clamp_min(0))
        assert float(g[0, (f - penalty).argmax()]) == pytest.approx(0.5)
        assert float(problem.optimum(1)) == pytest.approx(-0.25)


def test_the_world_changes_when_it_should():
    problem = problems.guo_nonstationary(trials=2)
    x = torch.tensor([[1.0, 2.0], [3.0, 0.5]], dtype=F64)
    a, b = x.unbind(-1)
    for t, shift, p, q, level in (
        (1, 0, 0, 0, 0.95),
        (100, 0, 0, 0, 0.95),
        (101, -5, 0, 5, 0.5),
        (300, -5, 0, 5, 0.5),
        (301, 4, 5, 0, 0.95),
    ):
        torch.testing.assert_close(problem.reward(x, t), -torch.sin(a + shift) - b)
        cost = torch.sin(a + p) * torch.sin(b + q) + level
        torch.testing.assert_close(problem.costs(x, t)[:, 0], cost)
    t = torch.tensor([99, 101, 400])
    truth = problem.evaluate(t, None, x.unsqueeze(1).expand(2, 3, 2))
    for k, s in enumerate(t.tolist()):
        assert torch.equal(truth.reward[:, k], problem.reward(x, s))
        assert torch.equal(truth.costs[:, k], problem.costs(x, s))
        assert torch.equal(truth.optimum[:, k], problem.optimum(s))
    assert len(problem.optimum(1).unique()) == 1
    values = [float(problem.optimum(s)[0]) for s in (1, 200, 400)]
    assert len(set(values)) == 3


def test_regret_is_dynamic():
    problem = problems.guo_nonstationary(trials=2)
    policy = cb.CKB(
        problem.actions,
        reward=cb.GP(_rbf(), noise=0.05),
        costs=cb.GP(_rbf(), noise=0.05),
        explore=cb.UCB(1.0),
        step=0.1,
        cap=5.0,
        trials=2,
    )
    run = cb.simulate(policy, problem, 103, progress=False)
    best = torch.stack([problem.optimum(t) for t in range(1, 104)], -1)
    f = torch.stack(
        [problem.reward(run.actions[:, t - 1], t) for t in range(1, 104)], -1
    )
    torch.testing.assert_close(run.regret, (best - f).cumsum(-1))


def _rbf():
    import gpytorch

    return gpytorch.kernels.RBFKernel().double()


def test_delays_are_poisson():
    law = poisson(15.0)
    expected = stats.poisson(15).cdf(np.arange(40))
    np.testing.assert_allclose(law[:40].numpy(), expected, rtol=1e-10)
    thin = stats.poisson(0.1).cdf(np.arange(5))
    np.testing.assert_allclose(poisson(0.1)[:5].numpy(), thin, rtol=1e-13)
    assert poisson(0.0).tolist() == [1.0] * 30
    problem = problems.guo_delayed(trials=400)
    streams = Streams(0, 400)
    draws = torch.stack(
        [torch.stack(problem.round(t, streams).delays) for t in range(25)]
    )
    assert draws.shape == (25, 2, 400)
    # 20 000 draws: four standard errors of the mean are 0.11
    assert abs(float(draws.double().mean()) - 15) < 0.11
    assert abs(float(draws.double().var()) - 15) < 1.0
    assert not torch.equal(draws[:, 0], draws[:, 1])


def test_arrivals_are_shown_before_they_are_served():
    problem = problems.cbo_gpu_allocation(trials=3)
    world = Streams(0, 3)
    shown = problem.round(1, world).observed_costs
    assert shown.shape == (3, 1, 441)
    index = torch.tensor([4, 200, 440])
    choice = cb.Choice(
        1, index, problem.actions.points(index), torch.zeros(3, dtype=torch.bool)
    )
    _, cost = problem.observe(choice, world)
    torch.testing.assert_close(cost[:, 0], shown[torch.arange(3), 0, index])
    many = torch.stack([problem.round(t, world).observed_costs for t in range(4000)])
    _, g = problem.tables[0]
    # Poisson(8) / 8: four standard errors of the mean are 0.013
    assert float((many.mean((0, 1)) - g).abs().max()) < 0.013


def test_an_unknown_constraint_and_phases_out_of_order():
    with pytest.raises(cb.CBanditError, match="constraint must be"):
        problems.shi_small_feasible("loud")
    with pytest.raises(cb.CBanditError, match="phases must begin with round 1"):
        problems.Gridded([], [torch.linspace(0, 1, 3)], noise=0.1)
