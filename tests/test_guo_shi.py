"""Problems of Guo, Shi and the GPU example; bandit OCO and ADMMBO."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from inside import (
    EXPERIMENTS,
    Settings,
    Streams,
    Task,
    feasible_improvement,
    improvement,
    poisson,
    settings_from_toml,
)
from scipy import stats

import cbandit as cb
from cbandit import problems

F64 = torch.float64
NAMES = (
    "shi-small-feasible",
    "shi-trade-off",
    "shi-data-rate",
    "shi-proposition-1",
    "guo-classical",
    "guo-delayed",
    "guo-nonstationary",
    "cbo-gpu-allocation",
)


def box(*sides):
    return cb.Box([0.0] * len(sides), list(sides))


# ------------------------------------------------------------------------- problems


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
    assert float(reward.std()) == pytest.approx(0.1, rel=0.05)
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


# ---------------------------------------------------------------------- experiments


@pytest.mark.parametrize("name", NAMES)
def test_every_policy_of_an_experiment_runs(name):
    settings = Settings.of(name, trials=2, horizon=25)
    for policy in settings.policies:
        task = Task(settings, policy, range(2))
        problem = EXPERIMENTS[name].problem(settings.parameters, range(2), 0)
        made = EXPERIMENTS[name].policies[policy](problem, task)
        run = cb.simulate(made, problem, 25, progress=False)
        assert run.complete
        assert bool(run.regret.isfinite().all())


def test_the_settings_files_are_the_defaults():
    from pathlib import Path

    for name in NAMES:
        path = Path(__file__).parents[1] / "benchmarks" / f"{name}.toml"
        assert settings_from_toml(path) == Settings.of(name)


def test_epoch_and_rate_reach_the_policy():
    given = {"constraint": "noisy", "epoch": 7, "rate": 2.0}
    settings = Settings.of("shi-small-feasible", trials=2, parameters=given)
    problem = EXPERIMENTS[settings.experiment].problem(given, range(2), 0)
    task = Task(settings, "EpochPenalty", range(2))
    policy = EXPERIMENTS[settings.experiment].policies["EpochPenalty"](problem, task)
    costs = []
    for _ in range(7):
        choice = policy.ask()
        costs.append(problem.costs(choice.x, 1))
        policy.tell(choice, reward=torch.zeros(2), cost=costs[-1])
    moved = 2.0 * torch.stack(costs).mean(0)
    torch.testing.assert_close(policy.multiplier, moved.clamp_min(0))


def test_the_papers_figures_and_the_account_of_each_phase(tmp_path, monkeypatch):
    from inside import experiments, results, simulate

    runs = {}

    def kept(policy, *rest):
        runs[policy.name] = simulate(policy, *rest)
        return runs[policy.name]

    monkeypatch.setattr("cbandit.simulation.loop.simulate", kept)
    settings = Settings.of(
        "guo-nonstationary", trials=2, horizon=120, policies=["CONFIG"]
    )
    found = experiments.carry_out(settings, tmp_path / "guo", progress=False)
    first, second = found["policies"]["CONFIG"]["phases"]
    assert (first["first"], first["last"]) == (1, 100)
    assert (second["first"], second["last"]) == (101, 120)
    run = runs["CONFIG"]
    late = run.true_costs[:, 100:].clamp_min(0).sum(-1).mean(-1)
    assert second["hard_violation"]["mean"] == pytest.approx(float(late.mean()))
    earned = run.true_rewards[:, :100].mean(-1)
    assert first["reward"]["mean"] == pytest.approx(float(earned.mean()))
    sem = float(earned.std()) / 2**0.5
    assert first["reward"]["sem"] == pytest.approx(sem)

    settings = Settings.of(
        "shi-small-feasible", trials=2, horizon=130, policies=["ADMMBO"]
    )
    experiments.carry_out(settings, tmp_path / "shi", progress=False)
    names = {each.name for each in (tmp_path / "shi").glob("*.png")}
    assert names == {"account.png", "averages.png", "boxes.png", "early.png"}
    table = results.read_curves(tmp_path / "shi")["ADMMBO"]
    stopped = [bool((x == x[-1]).all()) for x in runs["ADMMBO"].index[:, -2:]]
    assert float(table["stopped"].mean[-1]) == pytest.approx(sum(stopped) / 2)
    assert float(table["stopped"].mean[0]) == 0

    settings = Settings.of("shi-trade-off", trials=2, horizon=20)
    experiments.carry_out(settings, tmp_path / "trade", progress=False)
    assert (tmp_path / "trade" / "trade-off.png").is_file()


def test_from_which_round_on_nothing_is_violated():
    from inside import _over

    problem = problems.shi_proposition_1()

    def run(*x):
        index = torch.tensor([[50 + round(50 * v) for v in x]])
        policy = cb.baselines.BanditOCO(
            problem.box, costs=1, radius=0.1, step=0.0, dual_step=0.0, trials=1
        )
        out = cb.simulate(policy, problem, len(x), progress=False)
        from dataclasses import replace

        return replace(out, true_costs=problem.actions.points(index))

    assert _over(run(0.2, 0.1, -0.4, -0.1)) == 3  # 0.3 is made up for by -0.4
    assert _over(run(0.2, -0.3, 0.2)) is None
    assert _over(run(-0.1, 0.1)) == 1


# ---------------------------------------------------------------------- bandit OCO


@pytest.mark.parametrize("m", [1, 3])
def test_oco_against_its_steps(m):
    trials, rounds = 3, 60
    radius, step, dual, leak = 0.2, 0.01, 0.3, 0.05
    policy = cb.baselines.BanditOCO(
        box(6.0, 4.0),
        costs=m,
        radius=radius,
        step=step,
        dual_step=dual,
        leak=leak,
        thresholds=0.1,
        trials=trials,
        seed=3,
        start=[1.0, 3.9],
    )
    rng = np.random.default_rng(0)
    low, high = np.full(2, radius), np.array([6.0, 4.0]) - radius
    y = np.clip(np.tile([1.0, 3.9], (trials, 1)), low, high)
    lam = np.zeros((trials, m))
    for _ in range(rounds):
        np.testing.assert_allclose(policy.multiplier, lam, atol=1e-10)
        np.testing.assert_allclose(policy.centre, y, atol=1e-10)
        choice = policy.ask()
        u = (choice.x.numpy() - y) / radius
        np.testing.assert_allclose(np.linalg.norm(u, axis=-1), 1.0)
        assert choice.index is None
        reward, cost = rng.normal(size=trials), rng.normal(size=(trials, m))
        for n in rng.permutation(2 * trials):
            where = torch.arange(trials) == n // 2
            told = {"reward": reward} if n % 2 else {"cost": cost}
            policy.tell(choice, **told, where=where)
        value = reward - (lam * (cost - 0.1)).sum(-1)
        y = np.clip(y + step * 2 / radius * value[:, None] * u, low, high)
        lam = np.maximum(lam + dual * (cost - 0.1 - leak * lam), 0)


def test_oco_late_and_lost_feedback():
    policy = cb.baselines.BanditOCO(
        box(1.0), costs=1, radius=0.1, step=0.1, dual_step=0.5, trials=2
    )
    first, second = policy.ask(), policy.ask()
    policy.tell(first, reward=[1.0, 1.0])
    assert policy.multiplier.tolist() == [[0.0], [0.0]]
    policy.tell(first, cost=[2.0, 2.0], where=[True, False])
    assert policy.multiplier.tolist() == [[1.0], [0.0]]
    policy.ask()
    policy.tell(first, cost=[9.0, 4.0], where=[False, True])
    assert policy.multiplier.tolist() == [[1.0], [2.0]]
    policy.cancel(second)
    policy.ask()
    assert sorted(policy._played) == [3, 4]


def test_oco_climbs_to_a_constrained_optimum():
    """``f = x``, ``x <= 1/2``: on average."""

    class Line(problems.Gridded):
        pass

    problem = Line(
        [problems.Phase(1, lambda x: x[..., 0], lambda x: x - 0.5)],
        [torch.linspace(0, 1, 11, dtype=F64)],
        noise=1e-4,
        cost_noise=1e-4,
        trials=8,
    )
    policy = cb.baselines.BanditOCO(
        problem.box, costs=1, radius=0.1, step=2e-3, dual_step=0.02, trials=8
    )
    run = cb.simulate(policy, problem, 4000, progress=False)
    assert abs(float(run.true_rewards[:, 2000:].mean()) - 0.5) < 0.06


def test_oco_bad_input():
    good = {"costs": 1, "radius": 0.1, "step": 0.1, "dual_step": 0.1}
    for actions, over, message in (
        (cb.ProductGrid([torch.linspace(0, 1, 5)]), {}, "offers problem.box"),
        (box(1.0), {"radius": 0.5}, "radius must be below half"),
        (box(1.0), {"costs": 0}, "costs must be the number"),
        (box(1.0), {"step": -1.0}, "step must not be negative"),
        (box(1.0, 1.0), {"start": [0.1, 0.2, 0.3]}, "start must have shape"),
    ):
        with pytest.raises(cb.CBanditError, match=message):
            cb.baselines.BanditOCO(actions, **{**good, **over})
    policy = cb.baselines.BanditOCO(box(1.0), **good)
    with pytest.raises(cb.CBanditError, match="moves in its box"):
        policy.ask(among=[0])
    assert policy.t == 0


# -------------------------------------------------------------------------- ADMMBO


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


def test_noisy_epochs_are_near_an_oracle_of_the_same_multipliers():
    """The multipliers, not the search, decide what the first epochs violate."""
    given = {"constraint": "noisy", "epoch": 20, "rate": 0.5}
    settings = Settings.of("shi-small-feasible", trials=4, parameters=given)
    experiment = EXPERIMENTS[settings.experiment]
    problem = experiment.problem(given, range(4), 0)
    f, (g,) = problem.tables[0]
    kappa, spent = 0.0, []
    while len(spent) < 200:
        violated = float(g[(f - kappa * g).argmax()])
        spent += [violated] * 20
        kappa = max(0.0, kappa + 0.5 * violated)
    task = Task(settings, "EpochPenalty", range(4))
    policy = experiment.policies["EpochPenalty"](problem, task)
    run = cb.simulate(policy, problem, 200, progress=False)
    mean = float(run.soft_violation[:, -1].mean()) / 200
    assert mean == pytest.approx(sum(spent) / 200, abs=0.05)
    assert float(run.multipliers[:, -1].mean()) == pytest.approx(kappa, abs=0.3)
