"""The linear problems and arms of Pacchiano et al., and their experiments."""

from __future__ import annotations

import pytest
import torch
from inside import Streams

import cbandit as cb


def test_a_linear_problems_optima():
    problem = cb.problems.pacchiano_sphere(4, trials=5, seed=2)
    tips, tau = problem.actions.tips, problem.thresholds
    a = torch.linspace(0, 1, 2001).double().view(-1, 1, 1)
    reward = a * (tips @ problem.theta.unsqueeze(-1)).squeeze(-1)
    cost = a * (tips @ problem.mu.mT).squeeze(-1)
    best = reward.masked_fill(cost > tau, -9.0).amax((0, 2))
    gap = problem.optimum(1) - best
    assert ((gap >= -1e-12) & (gap < 1e-3)).all()
    assert (problem.stochastic_optimum(1) >= problem.optimum(1) - 1e-12).all()


def test_bernoulli_arms_have_their_means():
    problem = cb.problems.pacchiano_opb_four(0.5, trials=20_000)
    index = torch.arange(20_000) % 4
    choice = cb.Choice(1, index, problem.actions.points(index), index < 0)
    reward, cost = problem.observe(choice, Streams(0, None, "world"))
    assert set(reward.unique().tolist()) == {0.0, 1.0}
    for k in range(4):
        mine = index == k
        # 5000 draws each: 4.5 standard errors are 0.032
        assert abs(reward[mine].mean() - problem.f[0, k]) < 0.032
        assert abs(cost[mine].mean() - problem.g[0, 0, k]) < 0.032


def test_the_hard_instances():
    first, second = cb.problems.pacchiano_hard(), cb.problems.pacchiano_hard(twin=True)
    torch.testing.assert_close(first.f, torch.tensor([0.3, 1.0, 0.2, 0.6]).double())
    torch.testing.assert_close(first.g[0], torch.tensor([0.3, 0.9, 0.3, 0.9]).double())
    assert second.g[0, 3] == pytest.approx(0.3)
    # all digits of float64
    wanted = torch.tensor([0.3, 1.0, 1.4 / 7, 4.2 / 7], dtype=torch.float64)
    torch.testing.assert_close(first.f, wanted, rtol=1e-15, atol=0)


@pytest.mark.parametrize("twin", [False, True])
def test_the_hard_instances_as_linear_bandits(twin):
    """On segments their optima are the paper's: a third of arm 1, or arm 3."""
    problem = cb.problems.pacchiano_hard_linear(arms=6, twin=twin, r0=0.44, gap=0.1)
    arms = cb.problems.pacchiano_hard(arms=6, twin=twin, r0=0.44, gap=0.1)
    step, base = 0.08, 0.36
    best = base + step * (4 if twin else 10 / 3)
    assert problem.optimum(1).item() == pytest.approx(best, abs=1e-12)
    # of all mixtures two thirds of arm 3 and one of arm 1 are best in the twin
    mixed = base + step * (16 / 3 if twin else 10 / 3)
    assert arms.stochastic_optimum(1).item() == pytest.approx(mixed, abs=1e-9)
    at = torch.tensor([[0.5, 0, 0, 0.5, 0, 0]]).double()
    cost = at @ problem.mu.mT - problem.thresholds
    assert cost.item() == pytest.approx(-0.1 if twin else 0.05, abs=1e-12)


@pytest.mark.parametrize(
    "name",
    ["cyclic", "sphere", "opb-random", "opb-four", "hard", "hard-linear"],
)
def test_the_experiments_run(name, tmp_path):
    pytest.importorskip("pyarrow")
    from inside import reproduced

    summary = reproduced(tmp_path / "out", f"pacchiano-{name}", horizon=20, trials=2)
    assert all(one["status"] == "complete" for one in summary["policies"].values())


def test_the_stagewise_bench_runs(tmp_path):
    pytest.importorskip("pyarrow")
    from inside import reproduced

    small = {"horizon": 5, "trials": 1, "parameters": {"points": 40}}
    summary = reproduced(tmp_path / "out", "bench-stagewise", **small)
    assert summary["policies"]["OPB"]["status"] == "complete"
