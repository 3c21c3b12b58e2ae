"""The papers' experiments: every policy runs, and their figures are all there."""

from __future__ import annotations

import pytest
import torch
from inside import (
    Task,
    find,
    read_curves,
    reproduced,
    settings_from_toml,
    settings_of_experiment,
    soft_violation_over,
)

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


@pytest.mark.parametrize("name", NAMES)
def test_every_policy_of_an_experiment_runs(name):
    settings = settings_of_experiment(name, trials=2, horizon=25)
    for policy in settings.policies:
        task = Task(find(name), settings, policy, range(2))
        problem = task.problem()
        run = cb.simulate(task.make(problem), problem, 25, progress=False)
        assert run.complete
        assert bool(run.regret.isfinite().all())


def test_the_settings_files_are_the_defaults():
    from pathlib import Path

    for name in NAMES:
        path = Path(__file__).parents[1] / "benchmarks" / f"{name}.toml"
        assert settings_from_toml(path) == settings_of_experiment(name)


def test_epoch_and_rate_reach_the_policy():
    given = {"constraint": "noisy", "epoch": 7, "rate": 2.0}
    settings = settings_of_experiment("shi-small-feasible", trials=2, parameters=given)
    task = Task(find(settings.experiment), settings, "EpochPenalty", range(2))
    problem = task.problem()
    policy = task.make(problem)
    costs = []
    for _ in range(7):
        choice = policy.ask()
        costs.append(problem.costs(choice.x, 1))
        policy.tell(choice, reward=torch.zeros(2), cost=costs[-1])
    moved = 2.0 * torch.stack(costs).mean(0)
    torch.testing.assert_close(policy.multiplier, moved.clamp_min(0))


def played(name, policy, **given):
    """A run as the experiment plays it."""
    settings = settings_of_experiment(name, policies=[policy], **given)
    task = Task(find(name), settings, policy, range(settings.trials))
    problem = task.problem()
    return cb.simulate(task.make(problem), problem, settings.horizon, progress=False)


def test_the_account_of_each_phase(tmp_path):
    small = {"trials": 2, "horizon": 120}
    found = reproduced(tmp_path, "guo-nonstationary", policies=["CONFIG"], **small)
    first, second = found["policies"]["CONFIG"]["phases"]
    assert (first["first"], first["last"]) == (1, 100)
    assert (second["first"], second["last"]) == (101, 120)
    run = played("guo-nonstationary", "CONFIG", **small)
    late = run.true_costs[:, 100:].clamp_min(0).sum(-1).mean(-1)
    assert second["hard_violation"]["mean"] == pytest.approx(float(late.mean()))
    earned = run.true_rewards[:, :100].mean(-1)
    assert first["reward"]["mean"] == pytest.approx(float(earned.mean()))
    sem = float(earned.std()) / 2**0.5
    assert first["reward"]["sem"] == pytest.approx(sem)


def test_the_papers_figures_and_where_a_policy_stopped(tmp_path):
    small = {"trials": 2, "horizon": 130}
    reproduced(tmp_path / "shi", "shi-small-feasible", policies=["ADMMBO"], **small)
    names = {each.name for each in (tmp_path / "shi").glob("*.png")}
    assert names == {"account.png", "averages.png", "boxes.png", "early.png"}
    table = read_curves(tmp_path / "shi")["ADMMBO"]
    run = played("shi-small-feasible", "ADMMBO", **small)
    ended = [bool((x == x[-1]).all()) for x in run.index[:, -2:]]
    assert [bool(first) for first in run.stopped] == ended
    assert float(table["stopped"].mean[-1]) == pytest.approx(sum(ended) / 2)
    assert float(table["stopped"].mean[0]) == 0
    reproduced(tmp_path / "trade", "shi-trade-off", trials=2, horizon=20)
    assert (tmp_path / "trade" / "trade-off.png").is_file()


def test_from_which_round_on_nothing_is_violated():
    problem = problems.shi_proposition_1()

    def run(*x):
        index = torch.tensor([[50 + round(50 * v) for v in x]])
        policy = cb.baselines.BanditOCO(
            problem.box, costs=1, radius=0.1, step=0.0, dual_step=0.0, trials=1
        )
        out = cb.simulate(policy, problem, len(x), progress=False)
        from dataclasses import replace

        return replace(out, true_costs=problem.actions.points(index))

    assert (
        soft_violation_over(run(0.2, 0.1, -0.4, -0.1)) == 3
    )  # 0.3 is made up for by -0.4
    assert soft_violation_over(run(0.2, -0.3, 0.2)) is None
    assert soft_violation_over(run(-0.1, 0.1)) == 1


def test_noisy_epochs_are_near_an_oracle_of_the_same_multipliers():
    """The multipliers, not the search, decide what the first epochs violate."""
    given = {"constraint": "noisy", "epoch": 20, "rate": 0.5}
    settings = settings_of_experiment("shi-small-feasible", trials=4, parameters=given)
    task = Task(find(settings.experiment), settings, "EpochPenalty", range(4))
    problem = task.problem()
    f, (g,) = problem.tables[0]
    kappa, spent = 0.0, []
    while len(spent) < 200:
        violated = float(g[(f - kappa * g).argmax()])
        spent += [violated] * 20
        kappa = max(0.0, kappa + 0.5 * violated)
    run = cb.simulate(task.make(problem), problem, 200, progress=False)
    mean = float(run.soft_violation[:, -1].mean()) / 200
    assert mean == pytest.approx(sum(spent) / 200, abs=0.05)
    assert float(run.multipliers[:, -1].mean()) == pytest.approx(kappa, abs=0.3)
