"""Policies with nothing set but actions, beliefs and limits."""

from __future__ import annotations

import gpytorch
import numpy as np
import pytest
import torch
from gpytorch.priors import LogNormalPrior
from inside import (
    beliefs_of,
    cap_of,
    limits_of,
    settled,
    slack_of,
    step_of,
    width_of,
)

import cbandit as cb
from cbandit.policies.concerns.pending import Pending

X = torch.linspace(0, 1, 60, dtype=torch.float64).unsqueeze(-1)
LINE = cb.Finite(X)
GRID = cb.ProductGrid([X[::4, 0], X[::5, 0]])
BOX = cb.Box([0.0, 0.0], [1.0, 1.0])
SETS = pytest.mark.parametrize("actions", [LINE, GRID, BOX], ids=["set", "grid", "box"])


def smooth(**more):
    kernel = gpytorch.kernels.RBFKernel().double()
    kernel.lengthscale = torch.tensor(0.2, dtype=torch.float64)
    return cb.GP(kernel, noise=0.05, **{"standardize": True} | more)


def play(policy, rounds, seed=0):
    """Rounds of a world whose reward lies beyond its limit; the true costs."""
    g, costs = torch.Generator().manual_seed(seed), []
    for _ in range(rounds):
        choice = policy.ask()
        u = choice.x.mean(-1)
        z = torch.randn((2, *u.shape), generator=g, dtype=torch.float64)
        costs.append(u)
        policy.tell(choice, reward=50 * u + z[0], cost=1e-3 * (u + 0.02 * z[1]))
    return torch.stack(costs)


# ------------------------------------------------------------------------ multipliers


def test_ckb_with_nothing_set_keeps_its_average():
    policy = cb.CKB(
        LINE, reward=cb.GP.default(LINE), costs=cb.GP.default(LINE), thresholds=0.4e-3,
        trials=4,
    )  # fmt: skip
    costs = play(policy, 120)
    assert bool((costs.mean(0) <= 0.4).all())
    assert bool((costs[-40:].mean(0) > 0.3).all())


def test_steps_and_caps_that_are_left_out():
    both = {"reward": smooth(), "costs": [smooth()] * 2}
    policy = cb.CKB(LINE, **both)
    assert step_of(policy).tolist() == [[0.5, 0.5]]
    assert cap_of(policy).tolist() == [[20.0, 20.0]]
    assert policy.name == "CKB-UCB"
    assert repr(policy.explore) == "UCB(1.0)"
    assert step_of(cb.CKB(LINE, **both, dual="queue")).tolist() == [[0.5, 0.5]]
    assert cap_of(cb.CKB(LINE, **both, step=0.1)).tolist() == [[20.0, 20.0]]
    for own in ({}, {"step": 0.1}, {"cap": 9.0}, {"step": 0.1, "cap": 9.0}):
        assert width_of(cb.CKB(LINE, **both, **own)).tolist() == [[-1.5, -1.5]]
    assert width_of(cb.CKB(LINE, **both, dual_beta="score")) is None
    # the theorem goes first, where it can
    theory = cb.CKB(LINE, **both, clip=(1.0, 2.0), slater=0.5, horizon=100)
    assert cap_of(theory).tolist() == [[8.0, 8.0]]
    assert step_of(theory)[0].tolist() == pytest.approx([0.4, 0.4])
    assert width_of(theory) is None
    restarts = cb.baselines.CKBRestart(LINE, **both, restart=10)
    assert step_of(restarts).tolist() == [[0.5, 0.5]]
    for beliefs in (
        {"reward": smooth(standardize=False), "costs": smooth()},
        {"reward": smooth(), "costs": [smooth(), smooth(standardize=False)]},
    ):
        with pytest.raises(cb.CBanditError, match="cap="):
            cb.CKB(LINE, **beliefs)
    with pytest.raises(cb.CBanditError, match="clip="):
        cb.CKB(LINE, **both, slater=0.5)


SAID = {
    "CKB": (cb.CKB, {}, {"step": 0.5, "cap": 20.0, "dual_beta": -1.5, "slack": 0.0}),
    "CKB with bounds": (
        cb.CKB,
        {"clip": (2.0, 2.0), "horizon": 40},
        {"step": 0.5, "cap": 20.0, "dual_beta": -1.5},
    ),
    "queue": (cb.CKB, {"dual": "queue"}, {"step": 0.5, "dual_beta": -1.5}),
    "restarts": (
        cb.baselines.CKBRestart,
        {"restart": 15},
        {"step": 0.5, "cap": 20.0, "dual_beta": -1.5},
    ),
    "RPOL": (cb.RPOL, {}, {"penalty": "observation"}),
    "CONFIG": (cb.baselines.CONFIG, {}, {}),
}


@pytest.mark.parametrize("kind", SAID)
def test_saying_a_default_changes_nothing(kind):
    made, own, defaults = SAID[kind]
    gp = smooth()
    common = {"reward": gp, "costs": gp, "thresholds": 0.4e-3} | own
    more = {"explore": cb.UCB(1.0)}
    if made is not cb.baselines.CKBRestart:  # it counts no outstanding choices
        more["pending"] = "hallucinate"
    every = [{name: value} for name, value in (defaults | more).items()]
    for said in (*every, defaults | more):
        policy, plain = made(LINE, **common, **said), made(LINE, **common)
        assert torch.equal(play(policy, 20), play(plain, 20)), said
        assert torch.equal(policy.multiplier, plain.multiplier), said


@SETS
@pytest.mark.parametrize("standardize", [True, False])
@pytest.mark.parametrize("beta", [0.0, -1.0, [0.5, -2.0], "score"])
def test_the_dual_step_has_a_width_of_its_own(actions, standardize, beta):
    gp = smooth(standardize=standardize)
    policy = cb.CKB(
        actions, reward=gp, costs=[gp] * 2, explore=cb.UCB(1.5), thresholds=[0.2, 0.3],
        step=0.5, cap=9.0, slack=0.1, dual_beta=beta,
    )  # fmt: skip
    rng = np.random.default_rng(0)
    phi = torch.zeros(2, dtype=torch.float64)
    for _ in range(6):
        choice = policy.ask()
        believed = policy.posterior(choice.x.unsqueeze(0))
        size, units = 1.0, beliefs_of(policy).units()
        if units is not None:
            size = units.size[0, 1:]
        over = (believed.costs.mean[:, 0] - limits_of(policy, 1)[0]) / size
        if units is not None:
            over = torch.where(units.known[0, 1:], over, 0.0)
        width = torch.tensor(1.5 if beta == "score" else beta)
        g = over - width * believed.costs.std[:, 0] / size
        phi = (phi + 0.5 * (g + 0.1)).clamp(0, 9)
        torch.testing.assert_close(settled(policy).estimate[0, 1:], g)
        torch.testing.assert_close(policy.multiplier, phi)
        policy.tell(choice, reward=rng.normal(), cost=rng.normal(2.0, size=2))
    if beta != "score":
        assert bool((phi > 0).any())


def test_the_pessimistic_step_in_batches_and_under_thompson_sampling(tmp_path):
    both = {"reward": smooth(), "costs": smooth(), "trials": 3}
    policy = cb.CKB(GRID, **both, explore=cb.TS(1.0), thresholds=0.4e-3)
    play(policy, 5)
    choice = policy.ask()
    believed = policy.posterior(choice.x.unsqueeze(1))
    size = beliefs_of(policy).units().size[:, 1]
    mean, std = believed.costs.mean[:, 0, 0], believed.costs.std[:, 0, 0]
    torch.testing.assert_close(
        settled(policy).estimate[:, 1], (mean - 0.4e-3 + 1.5 * std) / size
    )
    policy.save(tmp_path / "policy")
    assert torch.equal(cb.load(tmp_path / "policy").multiplier, policy.multiplier)
    assert float(slack_of(policy).sum()) == 0


@pytest.mark.parametrize("beta", [-1.0, 1.0])
def test_what_moves_the_multiplier_is_kept_within_bounds(beta):
    gp = smooth(standardize=False)
    policy = cb.CKB(
        LINE, reward=gp, costs=gp, explore=cb.UCB(1.0), step=1.0, cap=9.0,
        clip=(1.0, 0.5), dual_beta=beta, thresholds=lambda t: -9.0 if t < 4 else 9.0,
    )  # fmt: skip
    for phi in (0.5, 1.0, 1.5, 1.0, 0.5, 0.0):
        policy.tell(policy.ask(), reward=0.0, cost=0.0)
        assert policy.multiplier.tolist() == [phi]


@pytest.mark.parametrize("beta", ["wide", float("nan"), [1.0, 2.0, 3.0]])
def test_dual_beta_that_cannot_be(beta):
    with pytest.raises(cb.CBanditError, match="dual_beta"):
        cb.CKB(LINE, reward=smooth(), costs=smooth(), dual_beta=beta)


# -------------------------------------------------------------------------- exploring


def test_exploration_that_is_left_out():
    gp, own = smooth(), {"reward": smooth(), "costs": smooth()}
    safe = {"safe": 0} | own
    base = cb.baselines
    widths = {
        cb.RPOL(LINE, **own): "UCB(1.0)",
        base.CONFIG(LINE, **own): "UCB(1.0)",
        cb.GPUCB(LINE, reward=gp): "UCB(2.0)",
        cb.GPTS(LINE, reward=gp): "TS(1.0)",
        cb.EpochPenalty(LINE, reward=gp, costs=1, epoch=3): "UCB(1.0)",
        cb.EpochPenalty(LINE, reward=gp, costs=1, epoch=3, inner="ts"): "TS(1.0)",
        base.SafeOpt(LINE, **safe): "UCB(2.0)",
        base.StageOpt(LINE, **safe, rounds=3): "UCB(2.0)",
        base.SGPUCB(LINE, **safe, rounds=3): "UCB(2.0)",
        base.BKB(LINE, reward=smooth(standardize=False)): "UCB(2.0)",
    }
    for policy, width in widths.items():
        assert repr(policy.explore) == width, policy.name


@SETS
@pytest.mark.parametrize("kind", [cb.CKB, cb.RPOL, cb.baselines.CONFIG, cb.GPUCB])
def test_four_asks_are_four_places(kind, actions):
    costs = {} if kind is cb.GPUCB else {"costs": smooth(), "thresholds": 0.5}
    policy = kind(actions, reward=smooth(), **costs)
    other = kind(actions, reward=smooth(), **costs, pending="ignore")
    choices = [policy.ask() for _ in range(4)]
    places = torch.stack([choice.x for choice in choices])
    gaps = torch.cdist(places, places) + torch.eye(4)
    assert bool((gaps > 1e-3).all())
    first = other.ask()
    assert torch.equal(first.x, choices[0].x)
    if actions is not BOX:  # where searches draw
        assert torch.equal(other.ask().x, first.x)


def test_where_outstanding_choices_do_not_count_unless_asked():
    both = {"reward": smooth(), "costs": smooth()}
    late = cb.Delayed(5, weight=0.1)
    ignoring = (
        cb.CKB(LINE, **both, explore=cb.TS(1.0)),
        cb.RPOL(LINE, **both, explore=cb.Rand(1.0)),
        cb.RPOL(LINE, **both, feedback=late),
        cb.baselines.CKBRestart(LINE, **both, restart=5),
        cb.baselines.SafeOpt(LINE, **both, safe=0),
        cb.GPTS(LINE, reward=smooth()),
    )
    assert not any(policy._concerns.find(Pending) for policy in ignoring)
    assert cb.RPOL(LINE, **both, feedback=cb.Sliding(5))._concerns.find(Pending)


def test_choices_that_left_the_window_no_longer_count():
    policy = cb.GPUCB(LINE, reward=smooth(), feedback=cb.Sliding(3))
    first = [policy.ask() for _ in range(4)]
    later = [policy.ask() for _ in range(2)]
    for again, before in zip(later, first, strict=False):
        assert (again.x - before.x).abs() < 0.05


def test_the_reminder_stays():
    policy = cb.GPUCB(LINE, reward=smooth())
    for _ in range(99):
        policy.ask()
    with pytest.warns(UserWarning, match="100 choices wait"):
        policy.ask()


# ---------------------------------------------------------- draws with hard constraints


@SETS
@pytest.mark.parametrize("trials", [None, 2])
def test_config_by_draws(actions, trials):
    """A feasible draw's best action; else the least total violation of that draw."""
    policy = cb.baselines.CONFIG(
        actions, reward=smooth(), costs=[smooth()] * 2, explore=cb.TS(1.0),
        thresholds=[0.3, 0.2], trials=trials,
    )  # fmt: skip
    assert policy.name == "CONFIG-TS"
    seen, shape = [], () if trials is None else (trials,)
    rng = np.random.default_rng(0)
    for _ in range(6 if actions is BOX else 15):
        choice = policy.ask()
        estimate = settled(policy).estimate
        feasible = (estimate[:, 1:] <= 1e-9).all(-1).reshape(shape)
        assert torch.equal(feasible, ~choice.infeasible)
        seen.append(choice.infeasible)
        cost = rng.normal(1.0, 0.5, size=(*shape, 2))
        policy.tell(choice, reward=rng.normal(size=shape), cost=cost)
    assert bool(torch.stack(seen).any())


@pytest.mark.parametrize("engine", ["joint", "factor", "stream"])
def test_what_is_played_where_a_draw_has_nothing_feasible(engine):
    policy = cb.baselines.CONFIG(
        LINE, reward=smooth(), costs=[smooth()] * 2, explore=cb.TS(1.0), engine=engine,
        thresholds=-1.0,
    )  # fmt: skip
    rng = np.random.default_rng(0)
    for t in range(12):
        policy.observe(
            index=[5 * t], reward=[rng.normal()], cost=rng.normal(size=(1, 2))
        )
    streams = policy._streams
    start = streams.position()
    beliefs, units = beliefs_of(policy), beliefs_of(policy).units()
    (block,) = beliefs.blocks(streams)
    tau = (-1.0 - units.center[:, 1:]) / units.size[:, 1:]
    g = (block.mean + block.draw)[:, 1:] - tau.unsqueeze(-1)
    streams.go(start)
    choice = policy.ask()
    assert bool((g > 0).any(1).all()) == bool(choice.infeasible)
    assert bool(choice.infeasible)
    assert int(choice.index) == int(g.clamp_min(0).sum(1).argmin())


# ------------------------------------------------------------------------------- random


def test_random_is_uniform():
    policy = cb.baselines.Random(LINE, trials=200, costs=1)
    seen = torch.stack([policy.ask().index for _ in range(30)])
    counts = torch.bincount(seen.flatten(), minlength=60).double()
    # chi-square with 59 degrees of freedom exceeds 110 in one of 15 000 samples
    assert float((counts - 100).square().sum() / 100) < 110
    some = policy.ask(among=[3, 7]).index
    assert set(some.tolist()) == {3, 7}
    box = cb.baselines.Random(cb.Box([1.0], [3.0], choices=[[5.0], [9.0]]), trials=500)
    x = box.ask().x
    assert 1.9 < float(x[:, 0].mean()) < 2.1
    assert 0.4 < float((x[:, 1] == 5.0).double().mean()) < 0.6


# ------------------------------------------------------------------------- what is said


def test_a_noise_prior():
    told = {}
    for mode in (1e-3, 0.5):
        prior = LogNormalPrior(float(np.log(mode)), 0.01)
        gp = cb.GP(gpytorch.kernels.RBFKernel().double(), noise_prior=prior)
        policy = cb.GPUCB(LINE, reward=gp)
        rng = np.random.default_rng(0)
        y = np.sin(6 * X[:, 0].numpy()) + 0.1 * rng.normal(size=60)
        policy.observe(index=torch.arange(60), reward=y)
        policy.refit()
        told[mode] = float(beliefs_of(policy).noises()[0, 0]) / float(y.var())
    assert told[1e-3] == pytest.approx(1e-3, rel=0.2)
    assert told[0.5] == pytest.approx(0.5, rel=0.2)
    with pytest.raises(cb.CBanditError, match="noise_prior must be a gpytorch prior"):
        cb.GP(noise_prior=0.1)
    with pytest.raises(cb.CBanditError, match="noise_prior goes with"):
        cb.GP(noise=0.1, noise_prior=LogNormalPrior(0.0, 1.0))


def test_identical_trials_are_said():
    rewards, costs = [1.0, 2.0, 3.0], [[-1.0, 0.2, 1.0], [-300.0, 100.0, 500.0]]
    for noise, alike in ((0.0, True), (0.1, False)):
        world = cb.problems.Table(rewards, costs, noise=noise)
        both = {"reward": smooth(), "costs": [smooth()] * 2}
        policy = cb.RPOL(world.actions, **both, trials=3)
        run = cb.simulate(policy, world, 6)
        assert ("all 3 trials are one run" in str(run.summary())) == alike
        spread = run.costs.reshape(-1, 2).std(0)
        over = (run.true_costs.clamp_min(0) / spread).sum(-1).cumsum(-1)
        torch.testing.assert_close(run.hard_violation_in_spreads, over)
        told = run.summary()["hard_violation_in_spreads"]["mean"]
        assert told == pytest.approx(float(over[:, -1].mean()))
    lone = cb.simulate(cb.RPOL(world.actions, **both), world, 3)
    assert "one run" not in str(lone.summary())
