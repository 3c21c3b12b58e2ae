"""ADMMBO: its improvements, its stop, its trials."""

from __future__ import annotations

import pytest
import torch
from inside import feasible_improvement, improvement

import cbandit as cb
from cbandit import problems

F64 = torch.float64


def _rbf():
    import gpytorch

    return gpytorch.kernels.RBFKernel().double()


def test_improvements_against_sampling():
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(400_000, generator=generator, dtype=F64)
    for mean, std, best in ((0.3, 0.5, 0.1), (-1.0, 0.4, 0.2), (0.2, 1e-9, 0.0)):
        drawn = (mean + std * z - best).clamp_min(0)
        value = improvement(*(torch.tensor(v, dtype=F64) for v in (mean, std, best)))
        assert float(value) == pytest.approx(float(drawn.mean()), abs=4e-3)
    for mean, std, q, best in ((0.3, 0.5, 0.1, 0.4), (0.0, 0.2, 0.3, 1.2)):
        drawn = (best - (mean + std * z > 0).double() - q).clamp_min(0)
        given = (torch.tensor(v, dtype=F64) for v in (mean, std, q, best))
        value = feasible_improvement(*given)
        assert float(value) == pytest.approx(float(drawn.mean()), abs=4e-3)


def _quadratic(trials):
    return problems.Gridded(
        [
            problems.Phase(
                1,
                lambda x: -((x - 0.8) ** 2).sum(-1),
                lambda x: (x.sum(-1) - 1.0).unsqueeze(-1),
            )
        ],
        [torch.linspace(0, 1, 21, dtype=F64)] * 2,
        noise=1e-4,
        cost_noise=1e-4,
        trials=trials,
    )


def _admmbo(actions, trials, **given):
    kernel = _rbf()
    kernel.lengthscale = 0.5
    return cb.baselines.ADMMBO(
        actions,
        reward=cb.GP(kernel, noise=1e-4),
        costs=cb.GP(kernel, noise=1e-4),
        trials=trials,
        **{"cost_budgets": (15, 5), **given},
    )


def test_admmbo_stops_at_the_constrained_optimum():
    problem = _quadratic(3)
    policy = _admmbo(problem.actions, 3, rho=1.0)
    run = cb.simulate(policy, problem, 120, progress=False)
    assert bool((policy.stopped > 0).all())
    for i, stop in enumerate(policy.stopped.tolist()):
        assert len(run.index[i, stop:].unique()) == 1
    # at most one step of the grid, 0.05, from the optimum at (0.5, 0.5)
    assert float((run.actions[:, -1] - 0.5).abs().max()) < 0.051


def test_admmbos_trials_are_its_single_runs():
    problem = _quadratic(2)
    whole = cb.simulate(_admmbo(problem.actions, 2), problem, 40, progress=False)
    for i in range(2):
        one = range(i, i + 1)
        alone = cb.simulate(
            _admmbo(problem.actions, one), _quadratic(one), 40, progress=False
        )
        assert torch.equal(alone.index[0], whole.index[i])


def test_one_trials_run_says_where_it_stopped():
    problem = _quadratic(None)
    policy = _admmbo(problem.actions, None, rho=1.0, iterations=2)
    run = cb.simulate(policy, problem, 80, progress=False)
    stop = int(policy.stopped)
    assert stop > 0 and int(run.stopped) == stop
    share = run.curve("stopped").mean.tolist()
    assert share == [float(t >= stop) for t in range(1, 81)]


def test_each_trial_has_its_own_weight():
    problem = _quadratic(2)
    weight = torch.tensor([50.0, 0.01], dtype=F64)
    whole = cb.simulate(
        _admmbo(problem.actions, 2, weight=weight), problem, 70, progress=False
    )
    for i in range(2):
        one = range(i, i + 1)
        policy = _admmbo(problem.actions, one, weight=float(weight[i]))
        alone = cb.simulate(policy, _quadratic(one), 70, progress=False)
        assert torch.equal(alone.index[0], whole.index[i])
    usual = cb.simulate(_admmbo(problem.actions, 2), problem, 70, progress=False)
    assert torch.equal(usual.index[0], whole.index[0])
    assert not torch.equal(usual.index[1], whole.index[1])


def test_admmbo_on_a_box():
    problem = _quadratic(1)
    policy = _admmbo(
        problem.box, 1, rho=1.0, cost_budgets=(8, 3), budgets=(6, 3), iterations=3
    )
    run = cb.simulate(policy, problem, 34, progress=False)
    assert bool((policy.stopped > 0).all())
    assert float(run.true_rewards[:, -1]) > -0.4
    assert float(run.true_costs[:, -1].max()) < 0.1
    assert run.index is None


def test_admmbo_bad_input():
    grid = cb.ProductGrid([torch.linspace(0, 1, 5, dtype=F64)] * 2)
    for given, message in (
        ({"budgets": (0, 5)}, "budgets must be two positive ints"),
        ({"rho": 0.0}, "rho must be above 0"),
        ({"weight": -1.0}, "weight must be above 0"),
    ):
        with pytest.raises(cb.CBanditError, match=message):
            _admmbo(grid, None, **given)
