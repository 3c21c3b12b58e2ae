"""The papers' experiments: every policy runs, and their figures are all there."""

from __future__ import annotations

import pytest
import torch
from inside import (
    Streams,
    Task,
    beliefs_of,
    find,
    read_boxes,
    read_curves,
    reproduced,
    settings_from_toml,
    settings_of_experiment,
    soft_violation_over,
)
from places import ROOT

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
    "digits",
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

    for name in NAMES:
        path = ROOT / "benchmarks" / "papers" / f"{name}.toml"
        assert settings_from_toml(path) == settings_of_experiment(name)


@pytest.mark.parametrize("name", ["shi-small-feasible", "shi-data-rate"])
def test_a_run_shorter_than_its_boxes(name, tmp_path):
    found = reproduced(tmp_path, name, trials=2, horizon=4)
    assert all(one["status"] == "complete" for one in found["policies"].values())
    boxes = read_boxes(tmp_path)
    assert set(boxes.t) == {4}
    assert set(boxes.policy) == set(found["policies"])


def made(name, policy, trials=2, horizon=None, **parameters):
    """A policy as the experiment makes it, and its problem."""
    given = {"trials": trials, "horizon": horizon, "parameters": parameters}
    settings = settings_of_experiment(name, **given)
    task = Task(find(name), settings, policy, range(trials))
    problem = task.problem()
    return task.make(problem), problem


def test_guos_settings_are_the_papers():
    """lam = 1 + 2/T; restarts not on the changes; the pending term is kept."""
    for name in ("guo-classical", "guo-delayed", "guo-nonstationary"):
        for each in find(name).policies:
            policy, problem = made(name, each)
            assert bool((beliefs_of(policy).noises() == 1 + 2 / 500).all())
            assert (problem.noise, problem.cost_noise) == (0.05, 0.05)
    policy, _ = made("guo-delayed", "RPOL-CensoredUCB")
    assert policy.feedback.window == 30
    assert policy.feedback.weight > 0
    policy, _ = made("guo-nonstationary", "CKB-RestartUCB")
    assert policy.restart == 120


def test_guos_parameters_reach_the_policies():
    policy, _ = made("guo-classical", "CONFIG", beta=0.7, lam="0.05")
    assert bool((beliefs_of(policy).noises() == 0.05).all())
    assert policy.explore.widths.beta.item() == 0.7
    policy, _ = made("guo-classical", "RPOL-UCB", horizon=40)
    assert bool((beliefs_of(policy).noises() == 1 + 2 / 40).all())
    policy, _ = made("guo-delayed", "RPOL-CensoredUCB", window=12, weight=0.3)
    assert (policy.feedback.window, policy.feedback.weight.item()) == (12, 0.3)
    policy, _ = made("guo-nonstationary", "RPOL-SWUCB", window=70)
    assert policy.feedback.window == 70
    policy, _ = made("guo-nonstationary", "CKB-RestartUCB", restart=90)
    assert policy.restart == 90


def test_shis_parameters_reach_the_policies():
    name = "shi-small-feasible"
    given = {"beta": 0.4, "noise": 0.3, "lengthscale": 0.7, "reuse": 0}
    policy, _ = made(name, "EpochPenalty", **given)
    assert bool((beliefs_of(policy).noises() == 0.3).all())
    assert beliefs_of(policy).groups[0].gp.kernel.lengthscale.item() == 0.7
    assert policy.explore.widths.beta.item() == 0.4
    assert policy.reuse is False
    assert made(name, "EpochPenalty")[0].reuse is True


def test_zhous_settings():
    """Noise of deviation 1 % of f's range; B = max f in g; sets of safe seeds."""
    policy, problem = made("zhou-synthetic", "StageOpt", trials=3)
    known, f = problem.known, problem.f
    reach = f.amax(-1) - f.amin(-1)
    torch.testing.assert_close(known.subgaussian, 0.01 * reach, rtol=1e-12, atol=0)
    torch.testing.assert_close(known.noise, (0.01 * reach) ** 2, rtol=1e-12, atol=0)
    height = f.amax(-1, keepdim=True) / 2
    torch.testing.assert_close(problem.g[:, 0], height - f, rtol=0, atol=1e-14)
    assert known.safe.shape == (3, 10)
    assert bool((problem.g[:, 0].gather(-1, known.safe) <= 0).all())
    noises = beliefs_of(policy).noises()
    torch.testing.assert_close(noises[:, 1], known.cost_noise)
    _, other = made("zhou-synthetic", "CKB-TS", noise=0.1, bound="max-abs", seeds=1)
    f = other.f
    reach = f.amax(-1) - f.amin(-1)
    torch.testing.assert_close(other.known.subgaussian, 0.1 * reach)
    height = f.abs().amax(-1, keepdim=True) / 2
    torch.testing.assert_close(other.g[:, 0], height - f, rtol=0, atol=1e-14)
    assert other.known.safe.shape == (2,)


def test_the_noise_of_a_sum_of_utilities():
    assert problems.shi_data_rate().noise == 0.04
    assert problems.shi_small_feasible().noise == 0.01


def test_the_spheres_noise_and_rays():
    policy, problem = made("pacchiano-sphere", "LC-LUCB", d=10, noise=0.01, rays=1000)
    assert problem.actions.tips.shape == (2, 1000, 10)
    belief, std = policy.posterior().reward, 0.1  # R times the length of a unit vector
    torch.testing.assert_close(belief.std, torch.full_like(belief.std, std))
    choice, noise = policy.ask(), Streams(0, range(2), "any")
    seen = torch.stack([problem.observe(choice, noise)[0] for _ in range(400)])
    spread = float((seen - seen.mean(0)).std())
    assert 0.085 < spread < 0.115  # of 800 draws, six standard errors


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
    drawn = {"figures": True, "policies": ["ADMMBO"]}
    reproduced(tmp_path / "shi", "shi-small-feasible", **drawn, **small)
    names = {each.name for each in (tmp_path / "shi").glob("*.png")}
    assert names == {"account.png", "averages.png", "boxes.png", "early.png"}
    table = read_curves(tmp_path / "shi")["ADMMBO"]
    run = played("shi-small-feasible", "ADMMBO", **small)
    ended = [bool((x == x[-1]).all()) for x in run.index[:, -2:]]
    assert [bool(first) for first in run.stopped] == ended
    assert float(table["stopped"].mean[-1]) == pytest.approx(sum(ended) / 2)
    assert float(table["stopped"].mean[0]) == 0
    reproduced(tmp_path / "trade", "shi-trade-off", trials=2, horizon=20, figures=True)
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
    kappas, spent = [0.0], []
    while len(spent) < 350:
        kappa = kappas[-1]
        violated = float(g[(f - kappa * g).argmax()])
        spent += [violated] * 20
        kappas.append(max(0.0, kappa + 0.5 * violated))
    assert sum(spent[:350]) / 350 == pytest.approx(0.254, abs=5e-4)  # in the table
    run = cb.simulate(task.make(problem), problem, 200, progress=False)
    mean = float(run.soft_violation[:, -1].mean()) / 200
    assert mean == pytest.approx(sum(spent[:200]) / 200, abs=0.05)
    assert float(run.multipliers[:, -1].mean()) == pytest.approx(kappas[10], abs=0.3)
