"""The policies of the spine against their pseudo-code, written again, dense."""

from __future__ import annotations

import copy
import math
import os

import numpy as np
import pytest
import torch
from gpytorch import kernels as gpk
from inside import Streams, beliefs_of, cap_of, set_light, step_of, streams_of, torn

import cbandit as cb

F64 = torch.float64


def line(n: int = 30) -> torch.Tensor:
    return torch.linspace(0, 1, n, dtype=F64).unsqueeze(-1)


def wide(scale: float = 0.2) -> gpk.Kernel:
    kernel = gpk.RBFKernel().double()
    kernel.lengthscale = torch.tensor(scale, dtype=F64)
    return kernel


def values(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.exp(-0.5 * ((x[:, None] - y[None]) ** 2).sum(-1) / 0.2**2)


def belief(noise: object = 1e-2, **more: object) -> cb.GP:
    return cb.GP(wide(), noise=noise, **more)


def world(t: int, index: int, rng: np.random.Generator, m: int):
    """Reward and costs of an arm among 30."""
    x = index / 29
    reward = math.sin(5 * x) + 0.1 * rng.standard_normal()
    costs = [math.cos(4 * x + j) - 0.2 + 0.1 * rng.standard_normal() for j in range(m)]
    return reward, np.array(costs)


class Pseudo:
    """CKB of one trial as the algorithm is printed: dense, unmerged, no shortcuts."""

    def __init__(self, dense, m, step, cap, slack=0.0, clip=None, thresholds=None):
        self.points = line().numpy()
        self.f, self.g = dense(values), [dense(values) for _ in range(m)]
        self.m, self.step, self.cap, self.slack = m, step, cap, slack
        self.clip, self.tau = clip, thresholds or (lambda t: np.zeros(m))
        self.phi = np.zeros(m)

    def estimates(self, t, noise):
        """``noise``: what the standard deviations (or roots) are multiplied by."""
        out = []
        for j, dense in enumerate([self.f, *self.g]):
            mean, std = dense.posterior(self.points)
            out.append(mean + noise(j, dense) * std)
        f, g = out[0], np.array(out[1:]).reshape(self.m, -1)
        g = g - np.asarray(self.tau(t)).reshape(-1, 1)
        if self.clip:
            f, g = (
                np.clip(f, -self.clip[0], self.clip[0]),
                np.clip(g, -self.clip[1], self.clip[1]),
            )
        return f, g

    def choose(self, f, g):
        score = f - self.phi @ g
        index = int(np.argmax(score))
        gap = np.sort(score)[-1] - np.sort(score)[-2]
        self.phi = np.clip(
            self.phi + self.step * (g[:, index] + self.slack), 0, self.cap
        )
        return index, gap

    def see(self, index, reward, costs):
        self.f.add(self.points[index], reward)
        for dense, cost in zip(self.g, costs, strict=True):
            dense.add(self.points[index], cost)


def policy_of(m, explore, trials=None, **more):
    settings = {"step": 0.2, "cap": 3.0} | more
    return cb.CKB(
        cb.Finite(line()),
        reward=belief(),
        costs=[belief()] * m,
        explore=explore,
        trials=trials,
        **settings,
    )


# -- CKB -------------------------------------------------------------------------------


@pytest.mark.parametrize("m", [1, 3])
@pytest.mark.parametrize("kind", ["UCB", "Rand", "TS"])
@pytest.mark.parametrize("engine", ["joint", "factor"])
def test_ckb_is_its_pseudo_code(kind, m, engine, dense, rng):
    if kind == "TS" and engine == "factor":
        pytest.skip("random features are a law of their own; see test_sampling")
    explore = {
        "UCB": cb.UCB(1.5, 1.0),
        "Rand": cb.Rand(1.5, 1.0),
        "TS": cb.TS(1.5, 1.0),
    }
    rounds, trials = (200 if m == 1 or kind == "UCB" else 80), 2
    more = {"slack": 0.05, "clip": (1.0, 0.8), "thresholds": 0.1}
    policy = policy_of(m, explore[kind], trials, engine=engine, **more)
    pseudo = [
        Pseudo(dense, m, 0.2, 3.0, 0.05, (1.0, 0.8), lambda t: np.full(m, 0.1))
        for _ in range(trials)
    ]
    replay = Streams(0, trials, "policy")
    for t in range(1, rounds + 1):
        draws = None
        if kind == "Rand":
            draws = replay.normal(1 + m).numpy()
        elif kind == "TS":
            copied = copy.deepcopy(streams_of(policy))
            blocks = list(beliefs_of(policy).blocks(copied))
            draws = torch.cat([b.draw for b in blocks], -1).numpy()
        choice = policy.ask()
        rewards, costs = np.zeros(trials), np.zeros((trials, m))
        for i, one in enumerate(pseudo):
            if kind == "UCB":
                f, g = one.estimates(t, lambda j, d: 1.5 if j == 0 else -1.0)
            elif kind == "Rand":
                width = [1.5] + [1.0] * m
                f, g = one.estimates(t, lambda j, d, i=i: width[j] * draws[i, j])
            else:
                width = [1.5] + [1.0] * m

                def estimate(j, d, i=i):
                    # the draw itself, whose law test_sampling vouches for
                    std = d.posterior(one.points)[1]
                    return width[j] * draws[i, j] / std

                f, g = one.estimates(t, estimate)
            index, gap = one.choose(f, g)
            assert choice.index[i].item() == index or gap < 1e-12
            index = choice.index[i].item()
            rewards[i], costs[i] = world(t, index, rng, m)
            one.see(index, rewards[i], costs[i])
        phi = np.stack([one.phi for one in pseudo])
        assert abs(policy.multiplier.numpy() - phi).max() <= 1e-8
        policy.tell(choice, reward=rewards, cost=costs)


def test_the_multiplier_is_the_estimates_not_the_observations(dense):
    policy = policy_of(1, cb.UCB(1.0))
    choice = policy.ask()
    before = policy.multiplier
    policy.tell(choice, reward=0.0, cost=100.0)
    assert torch.equal(policy.multiplier, before)


@pytest.mark.parametrize("dual", ["projected", "queue"])
@pytest.mark.parametrize("forget", [False, True])
def test_restarts_every_few_rounds(forget, dual, rng):
    """The multiplier restarts at 0, and ``H`` is the theorem's ``T``."""
    theory = {"step": None, "cap": None, "clip": (1.0, 0.5), "slater": 0.5}
    policy = policy_of(1, cb.UCB(1.5), restart=7, forget=forget, dual=dual, **theory)
    assert policy.name == "CKB-RestartUCB"
    assert step_of(policy).item() == pytest.approx(8 / 0.5 / math.sqrt(7))
    moved = 0
    for t in range(1, 30):
        if t % 7 == 1:
            assert policy.multiplier.tolist() == [0.0]
        moved += policy.multiplier.item() > 0
        choice = policy.ask()
        reward, cost = world(t, choice.index.item(), rng, 1)
        policy.tell(choice, reward=reward, cost=cost + 1.0)
    assert moved
    tried = beliefs_of(policy).tried(0)[2].sum().item()  # actions that data are of
    assert tried == 1 if forget else tried > 1


@pytest.mark.parametrize("forget", [False, True])
def test_anytime(forget, dense, rng):
    seen = []

    def threshold(t):
        seen.append(t)
        return 0.01 * t

    policy = policy_of(
        1,
        cb.UCB(1.5),
        step=None,
        cap=2.0,
        clip=(1.0, 0.5),
        anytime=True,
        forget=forget,
        thresholds=threshold,
    )
    pseudo = Pseudo(dense, 1, 0.0, 2.0, 0.0, (1.0, 0.5), lambda t: np.array([0.01 * t]))
    for t in range(1, 70):
        start = 2 ** int(math.log2(t))
        pseudo.step = 2.0 / (0.5 * math.sqrt(start))
        if t == start:
            pseudo.phi = np.zeros(1)
            assert policy.multiplier.tolist() == [0.0]
            if forget:
                pseudo.f, pseudo.g = dense(values), [dense(values)]
        f, g = pseudo.estimates(t, lambda j, d: 1.5 if j == 0 else -1.5)
        index, gap = pseudo.choose(f, g)
        choice = policy.ask()
        assert choice.index.item() == index or gap < 1e-12
        index = choice.index.item()
        reward, cost = world(t, index, rng, 1)
        policy.tell(choice, reward=reward, cost=cost)
        pseudo.see(index, reward, cost)
        if not _starts(t + 1):
            assert policy.multiplier.item() == pytest.approx(pseudo.phi[0], abs=1e-8)
    assert sorted(set(seen)) == list(range(1, 70))


def _starts(t: int) -> bool:
    return t & (t - 1) == 0


def test_the_virtual_queue(dense, rng):
    policy = policy_of(
        2,
        cb.UCB(1.0),
        step=lambda t: 1 / math.sqrt(t),
        slack=lambda t: 0.1 / t,
        cap=None,
        dual="queue",
    )
    pseudo, queue = Pseudo(dense, 2, 0, 0), np.zeros(2)
    for t in range(1, 60):
        f, g = pseudo.estimates(t, lambda j, d: 1.0 if j == 0 else -1.0)
        score = f - (queue / math.sqrt(t)) @ g
        choice = policy.ask()
        index = choice.index.item()
        assert score[index] >= score.max() - 1e-12
        queue = np.maximum(queue + g[:, index] + 0.1 / t, 0)
        assert np.allclose(policy.multiplier.numpy(), queue, atol=1e-8)
        reward, costs = world(t, index, rng, 2)
        policy.tell(choice, reward=reward, cost=costs)
        pseudo.see(index, reward, costs)


def test_step_and_cap_by_the_theorem():
    policy = policy_of(
        2,
        cb.UCB(1.0),
        trials=2,
        step=None,
        cap=None,
        clip=([1.0, 2.0], 0.5),
        slater=0.4,
        slack=0.1,
        horizon=400,
    )
    cap = 4 * np.array([[1.0], [2.0]]) / 0.3
    assert np.allclose(cap_of(policy).numpy(), np.broadcast_to(cap, (2, 2)))
    step = step_of(policy).numpy()
    assert np.allclose(step, np.broadcast_to(cap / (0.5 * 20), (2, 2)))


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ({}, ["cap", "clip", "slater"]),
        ({"clip": (1, 1)}, ["cap", "slater"]),
        ({"slater": 0.5}, ["cap", "clip"]),
        ({"cap": 1.0}, ["step", "clip", "horizon", "anytime"]),
        ({"cap": 1.0, "clip": (1, 1)}, ["step", "horizon"]),
        ({"cap": 1.0, "horizon": 5}, ["step", "clip"]),
        ({"step": 1.0}, ["cap", "clip", "slater"]),
        ({}, ["step", "horizon", "anytime"]),
        ({"dual": "queue"}, ["step", "clip", "slater", "horizon"]),
        ({"step": 1.0, "cap": 9.0, "slater": 0.5, "slack": 0.5}, ["slack", "0.5"]),
        ({"clip": (1, 1), "slater": 0.5, "slack": 0.5, "horizon": 9}, ["slack", "0.5"]),
    ],
)
def test_what_the_theorem_lacks_is_named(given, missing):
    with pytest.raises(cb.CBanditError) as error:
        policy_of(1, cb.UCB(1.0), **({"step": None, "cap": None} | given))
    assert all(word in str(error.value) for word in missing)


def test_thresholds_a_trial_a_cost_and_a_round(dense, rng):
    for tau, at in [
        (0.2, lambda t: [[0.2, 0.2], [0.2, 0.2]]),
        ([[0.1, 0.2], [0.3, -0.4]], lambda t: [[0.1, 0.2], [0.3, -0.4]]),
        (
            lambda t: torch.tensor([[0.1], [0.01 * t]]),
            lambda t: [[0.1, 0.1], [0.01 * t] * 2],
        ),
        (
            lambda t: torch.tensor([0.1, 0.01 * t]),
            lambda t: [[0.1, 0.01 * t]] * 2,
        ),
    ]:
        policy = policy_of(2, cb.UCB(1.0), trials=2, thresholds=tau)
        pseudo = [
            Pseudo(dense, 2, 0.2, 3.0, thresholds=lambda t, i=i: np.array(at(t)[i]))
            for i in range(2)
        ]
        for t in range(1, 25):
            choice = policy.ask()
            rewards, costs = np.zeros(2), np.zeros((2, 2))
            for i, one in enumerate(pseudo):
                index, gap = one.choose(
                    *one.estimates(t, lambda j, d: 1.0 if j == 0 else -1.0)
                )
                assert choice.index[i].item() == index or gap < 1e-12
                rewards[i], costs[i] = world(t, index, rng, 2)
                one.see(index, rewards[i], costs[i])
            phi = np.stack([one.phi for one in pseudo])
            assert abs(policy.multiplier.numpy() - phi).max() <= 1e-8
            policy.tell(choice, reward=rewards, cost=costs)


@pytest.mark.filterwarnings("ignore:RKHS.form='small-lam':UserWarning")
def test_rkhs_widths_in_a_policy(dense, rng):
    for form in ("small-lam", "any-lam", "tight"):
        policy = policy_of(
            1, cb.UCB(cb.RKHS(norm=1.0, subgaussian=0.1, delta=0.2, form=form))
        )
        pseudo = Pseudo(dense, 1, 0.2, 3.0)
        for t in range(1, 40):

            def width(j, d, form=form):
                log = math.log(2 / 0.2)
                if form == "small-lam":
                    beta = 1 + 0.1 * math.sqrt(2 * (d.gain() + 1 + log))
                elif form == "tight":
                    beta = math.sqrt(1 + 2 * d.gain() + 2 * log)
                else:
                    beta = 1 + 0.1 / 0.1 * math.sqrt(2 * d.gain() + 2 * log)
                return beta if j == 0 else -beta

            index, gap = pseudo.choose(*pseudo.estimates(t, width))
            choice = policy.ask()
            assert choice.index.item() == index or gap < 1e-12
            reward, cost = world(t, index, rng, 1)
            policy.tell(choice, reward=reward, cost=cost)
            pseudo.see(index, reward, cost)
        assert policy.multiplier.item() == pytest.approx(pseudo.phi[0], abs=1e-8)


# -- without constraints ---------------------------------------------------------------


def test_gp_ucb(dense, rng):
    policy = cb.GPUCB(
        cb.Finite(line()),
        reward=belief(mean=0.3),
        explore=cb.UCB(lambda t, gain: t**0.5),
    )
    reference = dense(values, mean=0.3)
    for t in range(1, 60):
        mean, std = reference.posterior(line().numpy())
        score = mean + math.sqrt(t) * std
        choice = policy.ask()
        assert score[choice.index.item()] >= score.max() - 1e-10
        reward, _ = world(t, choice.index.item(), rng, 0)
        policy.tell(choice, reward=reward)
        reference.add(choice.x.numpy(), reward)
    assert policy.multiplier.shape == (0,)
    assert policy.posterior().costs is None
    assert policy.outstanding == []


def test_gp_ts_takes_the_best_of_its_draw(rng):
    policy = cb.GPTS(cb.Finite(line()), reward=belief(), explore=cb.TS(2.0), trials=2)
    for t in range(30):
        copied = copy.deepcopy(streams_of(policy))
        (block,) = beliefs_of(policy).blocks(copied)
        best = (block.mean + 2.0 * block.draw)[:, 0].argmax(-1)
        choice = policy.ask()
        assert torch.equal(choice.index, best)
        policy.tell(choice, reward=[world(t, int(i), rng, 0)[0] for i in choice.index])


# -- tells -----------------------------------------------------------------------------


def play(policy, rounds: int, seed: int = 5, m: int = 1):
    rng = np.random.default_rng(seed)
    picked = []
    for t in range(rounds):
        choice = policy.ask()
        picked.append(choice.index.tolist())
        told = [world(t, int(i), rng, m) for i in choice.index.reshape(-1)]
        reward, cost = np.array([r for r, _ in told]), np.stack([c for _, c in told])
        shape = policy.batch_shape
        policy.tell(
            choice, reward=reward.reshape(shape), cost=cost.reshape((*shape, m))
        )
    return picked


def state(policy) -> list[torch.Tensor]:
    found = policy.posterior()
    return [
        policy.multiplier,
        found.reward.mean,
        found.reward.std,
        found.costs.mean,
        found.costs.std,
    ]


@pytest.mark.parametrize("engine", ["joint", "factor", "stream"])
@pytest.mark.parametrize("way", ["backwards", "apart", "costs-first", "by-trial"])
def test_tells_commute(engine, way, rng):
    policies = [policy_of(2, cb.UCB(1.5), trials=2, engine=engine) for _ in range(2)]
    for policy in policies:
        play(policy, 10, m=2)
    asked = [[policy.ask() for _ in range(4)] for policy in policies]
    rewards, costs = rng.standard_normal((4, 2)), rng.standard_normal((4, 2, 2))
    one, other = policies
    for k, choice in enumerate(asked[0]):
        one.tell(choice, reward=rewards[k], cost=costs[k])
    order = list(enumerate(asked[1]))
    if way == "backwards":
        for k, choice in order[::-1]:
            other.tell(choice, reward=rewards[k], cost=costs[k])
    elif way == "apart":
        for k, choice in order:
            other.tell(choice, reward=rewards[k])
        for k, choice in order[::-1]:
            other.tell(choice, cost=costs[k])
    elif way == "costs-first":
        for k, choice in order[::-1]:
            other.tell(choice, cost=costs[k])
            other.tell(choice, reward=rewards[k])
    else:
        for here in ([False, True], [True, False]):
            for k, choice in order[::-1]:
                kept = np.where(here, rewards[k], np.nan)
                other.tell(choice, reward=kept, cost=costs[k], where=here)
    if way != "by-trial":
        assert all(
            torch.equal(a, b) for a, b in zip(state(one), state(other), strict=True)
        )
    else:
        # seen in parts, and kept by more engines: to rounding
        assert all(
            torch.allclose(a, b, rtol=0, atol=1e-12)
            for a, b in zip(state(one), state(other), strict=True)
        )
    assert play(one, 10, 6, 2) == play(other, 10, 6, 2)


def test_told_arrays_may_be_filled_again(rng):
    one, other = (
        policy_of(1, cb.UCB(1.0), trials=2),
        policy_of(1, cb.UCB(1.0), trials=2),
    )
    reward, cost, where = np.zeros(2), torch.zeros(2, 1, dtype=F64), np.ones(2, bool)
    noise = np.ones(2)
    for _ in range(12):
        a, b = one.ask(), other.ask()
        assert torch.equal(a.index, b.index)
        reward[:], cost[:] = rng.standard_normal(2), torch.as_tensor(rng.random((2, 1)))
        noise[:], where[:] = 0.1 + rng.random(2), [True, bool(rng.random() < 0.5)]
        one.tell(a, reward=reward, cost=cost, noise=noise, where=where)
        other.tell(
            b,
            reward=reward.copy(),
            cost=cost.clone(),
            noise=noise.copy(),
            where=where.copy(),
        )
        reward[:], cost[:], noise[:], where[:] = 9.0, 9.0, 9.0, False
    assert all(torch.equal(a, b) for a, b in zip(state(one), state(other), strict=True))
    for policy in (one, other):
        torn(policy)
    assert all(torch.equal(a, b) for a, b in zip(state(one), state(other), strict=True))


@pytest.mark.parametrize("engine", ["joint", "factor", "stream"])
def test_hallucinated_outcomes(engine, dense, rng):
    policy = policy_of(
        1, cb.UCB(2.0), trials=2, pending="hallucinate", engine=engine, thresholds=0.1
    )
    pseudo = [
        Pseudo(dense, 1, 0.2, 3.0, thresholds=lambda t: np.array([0.1]))
        for _ in range(2)
    ]
    waiting: list = []
    for t in range(1, 50):
        choice = policy.ask()
        for i, one in enumerate(pseudo):

            def width(j, d, i=i, one=one):
                # GP-BUCB: the mean of what has come, the deviation of all
                ahead = copy.deepcopy(d)
                for late, reward_seen in waiting:
                    if j > 0 or not reward_seen:
                        ahead.add(late.x[i].numpy(), 0.0)
                deviation = ahead.posterior(one.points)[1]
                beta = 2.0 if j == 0 else -2.0
                return beta * deviation / d.posterior(one.points)[1]

            index, gap = one.choose(*one.estimates(t, width))
            assert choice.index[i].item() == index or gap < 1e-10
        phi = np.stack([one.phi for one in pseudo])
        assert abs(policy.multiplier.numpy() - phi).max() <= 1e-8
        rewards = np.array([world(t, int(i), rng, 1)[0] for i in choice.index])
        early = t % 5 == 0
        if early:  # a reward that comes before its cost
            policy.tell(choice, reward=rewards)
            for i, one in enumerate(pseudo):
                one.f.add(choice.x[i].numpy(), rewards[i])
        waiting.append((choice, early))
        if len(waiting) > 3:
            late, seen = waiting.pop(0)
            told = [world(t, int(i), rng, 1) for i in late.index]
            policy.tell(late, cost=[c for _, c in told])
            if not seen:
                policy.tell(late, reward=[r for r, _ in told])
            for i, one in enumerate(pseudo):
                one.g[0].add(late.x[i].numpy(), told[i][1][0])
                if not seen:
                    one.f.add(late.x[i].numpy(), told[i][0])


@pytest.mark.parametrize("engine", ["joint", "factor", "stream"])
@pytest.mark.parametrize("trials", [None, 2])
def test_hallucinated_outcomes_outside_the_set(engine, trials, dense, rng):
    policy = cb.GPUCB(
        cb.Finite(line()),
        reward=belief(),
        explore=cb.UCB(3.0),
        engine=engine,
        pending="hallucinate",
        trials=trials,
    )
    count = trials or 1
    known = [dense(values) for _ in range(count)]
    waiting: list = []
    for t in range(24):
        points = rng.random((6, 1)) if t % 2 else line().numpy()
        choice = policy.ask(actions=points) if t % 2 else policy.ask()
        for i in range(count):
            ahead = copy.deepcopy(known[i])
            for late in waiting:
                ahead.add(late.x.reshape(count)[i].numpy(), 0.0)
            score = known[i].posterior(points)[0] + 3 * ahead.posterior(points)[1]
            assert score[choice.index.reshape(count)[i]] >= score.max() - 1e-9
        waiting.append(choice)
        if t % 8 == 7:
            for late in waiting:
                y = rng.standard_normal(count)
                policy.tell(late, reward=y if trials else y[0])
                for i in range(count):
                    known[i].add(late.x.reshape(count)[i].numpy(), y[i])
            waiting = []


@pytest.mark.parametrize("engine", ["factor", "stream"])
@pytest.mark.parametrize("trials", [None, 2])
def test_cancelled_choices_take_no_memory(engine, trials, dense, rng):
    policy = cb.GPUCB(
        cb.Finite(line()),
        reward=belief(),
        explore=cb.UCB(3.0),
        engine=engine,
        pending="hallucinate",
        trials=trials,
    )
    count = trials or 1
    known, points = [dense(values) for _ in range(count)], line().numpy()
    history = beliefs_of(policy).groups[0].engine.history
    for t in range(26):
        early = policy.ask(among=[t % 5])
        asked = [early, *(policy.ask(among=[4 + t, 3 + t, 2 + t]) for _ in range(2))]
        for i in range(count):
            ahead = copy.deepcopy(known[i])
            for late in asked[:2]:
                ahead.add(late.x.reshape(count)[i].numpy(), 0.0)
            score = known[i].posterior(points)[0] + 3 * ahead.posterior(points)[1]
            among = score[[4 + t, 3 + t, 2 + t]]
            assert score[asked[2].index.reshape(count)[i]] >= among.max() - 1e-9
        policy.cancel(asked[1])
        policy.cancel(asked[2])
        y = rng.standard_normal(count)
        policy.tell(early, reward=y if trials else y[0])
        for i in range(count):
            known[i].add(early.x.reshape(count)[i].numpy(), y[i])
        assert history.used <= 5 + 3  # those told of, and those outstanding at once
    mean, std = known[0].posterior(points)
    found = policy.posterior().reward
    assert abs(found.mean.reshape(count, -1)[0].numpy() - mean).max() <= 1e-9
    assert abs(found.std.reshape(count, -1)[0].numpy() - std).max() <= 1e-9


def test_a_cancelled_choice_is_no_longer_counted():
    settings = {"pending": "hallucinate", "step": 1e-9}  # the multiplier stays put
    one, other = (policy_of(1, cb.UCB(5.0), **settings) for _ in range(2))
    play(one, 5)
    play(other, 5)
    first, twin = one.ask(), other.ask()
    one.cancel(first)
    second = one.ask()
    assert first.index.item() == twin.index.item() == second.index.item()
    expected = one.posterior().reward.std, other.posterior().reward.std
    assert torch.equal(*expected)  # the posterior itself counts no choice
    assert one.outstanding == [second]
    with pytest.raises(cb.ChoiceError, match="finished"):
        one.tell(first, reward=0.0)


# -- what to deploy --------------------------------------------------------------------


def test_recommend(dense, rng):
    policy = policy_of(2, cb.UCB(1.5), thresholds=[0.1, 0.3])
    reward, costs = dense(values), [dense(values), dense(values)]
    for t in range(80):
        choice = policy.ask()
        r, c = world(t, choice.index.item(), rng, 2)
        policy.tell(choice, reward=r, cost=c)
        reward.add(choice.x.numpy(), r)
        for one, value in zip(costs, c, strict=True):
            one.add(choice.x.numpy(), value)
    from scipy.stats import norm

    points, tau = line().numpy(), [0.1, 0.3]
    chance = np.ones(30)
    for one, limit in zip(costs, tau, strict=True):
        mean, std = one.posterior(points)
        chance *= norm.cdf((limit - mean) / std)
    for confidence in (0.5, 0.9, 0.999999999):
        found = policy.recommend(confidence)
        safe = chance >= confidence
        mean = reward.posterior(points)[0]
        best = (
            np.argmax(np.where(safe, mean, -np.inf)) if safe.any() else chance.argmax()
        )
        assert found.index.item() == best
        assert found.feasible.item() == safe.any()
        assert found.value.item() == pytest.approx(mean[best], abs=1e-8)
        assert found.probability.item() == pytest.approx(chance[best], abs=1e-8)
        margin = [
            t - c.posterior(points)[0][best] for t, c in zip(tau, costs, strict=True)
        ]
        assert found.margin.tolist() == pytest.approx(margin, abs=1e-8)
        if not safe.any():
            assert "no action is believed feasible" in str(found)


# -- BoTorch ---------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["joint", "factor"])
@pytest.mark.parametrize("trials", [None, 3])
@pytest.mark.parametrize(
    "more", [{}, {"mean": 2.0}, {"standardize": True}, {"noise": 1e-7}]
)
def test_the_botorch_model_is_the_posterior(engine, trials, more, rng):
    gp = cb.GP(wide(), **({"noise": 1e-2} | more))
    policy = cb.CKB(
        cb.Finite(line()),
        reward=gp,
        costs=[gp] * 2,
        explore=cb.UCB(1.0),
        step=0.1,
        cap=1.0,
        trials=trials,
        engine=engine,
    )
    shape = () if trials is None else (trials,)
    # tiny noise: outcomes of a smooth function, many at one action
    for t in range(40):
        choice = policy.ask()
        x = choice.x[..., 0].numpy()
        where = None
        if trials and t % 2:
            where = np.array([True, False, t % 4 == 1])
        jitter = 1e-4 * rng.standard_normal((*shape, 3))
        policy.tell(
            choice,
            reward=np.sin(3 * x) + jitter[..., 0],
            cost=np.cos(2 * x)[..., None] + jitter[..., 1:],
            where=where,
        )
    model, found = policy.model, policy.posterior()
    at = line()[::3]
    posterior = model.posterior(at)
    mean, variance = posterior.mean.detach(), posterior.variance.detach()
    std = variance.clamp_min(0).sqrt()
    expected = torch.cat([found.reward.mean.unsqueeze(-2), found.costs.mean], -2)[
        ..., ::3
    ]
    spread = torch.cat([found.reward.std.unsqueeze(-2), found.costs.std], -2)[..., ::3]
    scale = float(spread.max())
    assert (mean.mT - expected).abs().max() <= 1e-5 * max(scale, 1.0)
    # BoTorch's own rounding, and its floor of the variance: 1e-10
    assert (std.mT.square() - spread.square()).abs().max() <= 1e-8 * max(
        scale, 1.0
    ) ** 2


def test_the_botorch_model_before_any_data():
    policy = policy_of(1, cb.UCB(1.0), trials=2)
    posterior = policy.model.posterior(line()[:4])
    assert posterior.mean.detach().abs().max() == 0
    assert (posterior.variance.detach() - 1).abs().max() <= 1e-12


# -- checkpoints -----------------------------------------------------------------------


@pytest.mark.parametrize("light", [False, True])
@pytest.mark.parametrize("kind", ["UCB", "TS", "Rand"])
@pytest.mark.parametrize("engine", ["joint", "factor"])
def test_a_checkpoint_goes_on_bit_for_bit(kind, engine, light, tmp_path, monkeypatch):
    if light:
        set_light(monkeypatch, 0)
    explore = {"UCB": cb.UCB(1.5), "TS": cb.TS(1.5), "Rand": cb.Rand(1.5)}[kind]
    policy = policy_of(2, explore, trials=2, engine=engine, pending="ignore")
    play(policy, 15, m=2)
    late = policy.ask()
    policy.tell(policy.ask(), reward=[0.1, 0.2], where=[True, False])
    path = tmp_path / "run.ckpt"
    policy.save(path)
    twin = cb.load(path)
    size = os.path.getsize(path)
    for each in (policy, twin):
        each.tell(late, reward=[1.0, 2.0], cost=[[0.1, 0.2], [0.3, 0.4]])
    assert play(policy, 15, 9, 2) == play(twin, 15, 9, 2)
    assert all(
        torch.equal(a, b) for a, b in zip(state(policy), state(twin), strict=True)
    )
    if light:
        set_light(monkeypatch, 2**28)
        policy.save(tmp_path / "heavy.ckpt")
        assert os.path.getsize(tmp_path / "heavy.ckpt") > size


def test_kernel_rows_are_made_again_rather_than_saved(tmp_path, monkeypatch):
    points = torch.rand(8000, 2, generator=torch.Generator().manual_seed(1)).double()
    policy = cb.CKB(
        cb.Finite(points),
        reward=cb.GP(gpk.RBFKernel().double(), noise=0.01),
        costs=cb.GP(gpk.RBFKernel().double(), noise=0.01),
        explore=cb.UCB(1.0),
        step=0.1,
        cap=5.0,
        engine="factor",
    )
    play(policy, 30)
    used = beliefs_of(policy).groups[0].engine.history.used
    rows = used * 8000 * 8
    set_light(monkeypatch, 4 * rows)
    policy.save(tmp_path / "run.ckpt")
    assert os.path.getsize(tmp_path / "run.ckpt") < rows / 2
    assert play(policy, 10, 9) == play(cb.load(tmp_path / "run.ckpt"), 10, 9)


def test_killed_while_saving(tmp_path, monkeypatch):
    policy = policy_of(1, cb.UCB(1.0))
    play(policy, 5)
    path = tmp_path / "run.ckpt"
    policy.save(path)
    before = path.read_bytes()
    play(policy, 5)
    for name in ("replace", "fsync"):

        def killed(*args, **kwargs):
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(os, name, killed)
            with pytest.raises(KeyboardInterrupt):
                policy.save(path)
        assert path.read_bytes() == before
        assert [p.name for p in tmp_path.iterdir()] == ["run.ckpt"]
    assert cb.load(path).t == 5
    policy.save(path)
    assert cb.load(path).t == 10


# -- learned hyperparameters -----------------------------------------------------------


def test_the_likelihood_is_that_of_all_observations(dense, rng):
    from inside import merged as merged_log
    from inside import negative_log_likelihood

    policy = cb.GPUCB(
        cb.Finite(line()),
        reward=cb.GP(wide(), noise=None, refit_every=None),
        explore=cb.UCB(1.0),
    )
    references = {}
    data = []
    for t in range(60):
        choice = policy.ask()
        reward = world(t, choice.index.item(), rng, 0)[0]
        own = [None, 0.05, 0.3][t % 3]
        policy.tell(choice, reward=reward, noise=own)
        data.append((choice.x.numpy(), reward, own))
    (group,) = beliefs_of(policy).groups
    merged = merged_log(group.log, *group.scale.targets_of(), torch.tensor(0.0))
    assert merged.x.shape[1] < 40  # there is something to merge
    found, dense_values = [], []
    for scale, noise in [(0.1, 0.01), (0.2, 0.01), (0.2, 0.3), (0.5, 1e-3), (1.0, 2.0)]:

        def kernel(x, y, scale=scale):
            return np.exp(-0.5 * ((x[:, None] - y[None]) ** 2).sum(-1) / scale**2)

        references[scale, noise] = dense(kernel, noise)
        for row in data:
            references[scale, noise].add(*row)
        gram = torch.as_tensor(kernel(merged.x[0].numpy(), merged.x[0].numpy()))
        value, _ = negative_log_likelihood(
            gram.unsqueeze(0), torch.tensor([noise], dtype=F64), merged
        )
        found.append(-value.item())
        dense_values.append(references[scale, noise].log_likelihood())
    gaps = np.array(found) - np.array(dense_values)
    assert np.ptp(gaps) <= 1e-7


@pytest.mark.parametrize("trials", [None, 2])
@pytest.mark.parametrize("standardize", [False, True])
def test_a_refit_makes_the_data_likelier(trials, standardize, dense, rng):
    policy = cb.GPUCB(
        cb.Finite(line()),
        reward=cb.GP(wide(1.5), noise=None, standardize=standardize),
        explore=cb.UCB(1.0),
        trials=trials,
    )
    count = trials or 1
    reference = [dense(None, 0.01, standardize=standardize) for _ in range(count)]
    for _ in range(50):
        choice = policy.ask(among=[rng.integers(30)])
        index = choice.index.reshape(-1)
        y = np.array(
            [3 * math.sin((6 + 6 * i) * int(k) / 29) for i, k in enumerate(index)]
        ) + 0.1 * rng.standard_normal(count)
        policy.tell(choice, reward=y.reshape(choice.index.shape))
        for i in range(count):
            reference[i].add(choice.x.reshape(count, 1)[i].numpy(), y[i])

    def likelihood(i):
        group = beliefs_of(policy).groups[0]
        scale = group.prior.covariance.kernel.lengthscale.reshape(-1)
        scale = scale[min(i, len(scale) - 1)].item()
        one = reference[i]
        one.noise = group.noise[i].item()
        one.kernel = lambda x, y: np.exp(
            -0.5 * ((x[:, None] - y[None]) ** 2).sum(-1) / scale**2
        )
        return one.log_likelihood()

    before = [likelihood(i) for i in range(count)]
    policy.refit()
    after = [likelihood(i) for i in range(count)]
    assert all(b > a + 1 for a, b in zip(before, after, strict=True))
    found = policy.posterior().reward
    for i in range(count):
        mean, std = reference[i].posterior(line().numpy())
        assert abs(found.mean.reshape(count, -1)[i].numpy() - mean).max() <= 1e-6
        assert abs(found.std.reshape(count, -1)[i].numpy() - std).max() <= 1e-6
    policy.refit()
    assert [likelihood(i) for i in range(count)] == pytest.approx(after, abs=0.05)
    if trials:
        group = beliefs_of(policy).groups[0]
        scale = group.prior.covariance.kernel.lengthscale.reshape(-1)
        assert scale[0] > 1.3 * scale[1]


@pytest.mark.parametrize("trials", [None, 2])
@pytest.mark.parametrize("kind", ["finite", "grid", "covariance"])
def test_the_belief_of_one_who_knows_nothing(kind, trials, rng):
    if kind == "finite":
        actions = cb.Finite(100 + 50 * line(40))
    elif kind == "grid":
        axes = [10 * torch.linspace(0, 1, 25, dtype=F64), torch.arange(30) - 15.0]
        actions = cb.ProductGrid(axes)
    else:
        half = rng.standard_normal((40, 8))
        actions = cb.Finite(covariance=half @ half.T)
    gp = cb.GP.default(actions)
    policy = cb.CKB(
        actions,
        reward=gp,
        costs=gp,
        explore=cb.UCB(2.0),
        step=0.1,
        cap=5.0,
        trials=trials,
        engine="auto",
    )
    middle = actions.size // 2
    for _ in range(45):
        choice = policy.ask()
        far = (choice.index.numpy() - middle) / actions.size
        reward = 1e4 - 3e3 * far**2 + rng.standard_normal(choice.index.shape)
        policy.tell(choice, reward=reward, cost=far * 1e-3)
    group = beliefs_of(policy).groups[0]
    assert group.unfitted <= 5  # fitted at the fortieth observation
    found = policy.posterior()
    assert found.reward.mean.isfinite().all()
    assert (found.reward.std >= 0).all()
    assert 5e3 < float(found.reward.mean.median()) < 1.2e4
    state = policy.recommend(0.5)
    assert state.value.isfinite().all()


@pytest.mark.parametrize("kind", ["finite", "covariance"])
def test_a_trial_learns_what_it_would_alone(kind, rng):
    halves = torch.as_tensor(rng.standard_normal((3, 30, 6)))
    tables = halves @ halves.mT
    told = rng.integers(0, 30, 25), rng.standard_normal((3, 25))

    def learned(numbers):
        part = slice(numbers[0], numbers[-1] + 1)
        if kind == "covariance":
            gp = cb.GP(noise=None, standardize=True)
            actions = cb.Finite(covariance=tables[part])
        else:
            gp, actions = cb.GP.default(cb.Finite(line())), cb.Finite(line())
        policy = cb.GPUCB(actions, reward=gp, explore=cb.UCB(1.0), trials=numbers)
        for k, values in zip(told[0], told[1].T, strict=True):
            choice = policy.ask(among=[k])
            scale = np.array([1.0, 5.0, 50.0])
            reward = scale * (np.sin(k / np.array([3, 5, 9])) + 0.3 * values)
            policy.tell(choice, reward=reward[part])
        policy.refit()
        group = beliefs_of(policy).groups[0]
        return group.noise, policy.posterior().reward

    noise, whole = learned(range(3))
    assert len(set(noise.tolist())) == 3
    for i in range(3):
        own, alone = learned(range(i, i + 1))
        assert own.item() == pytest.approx(noise[i].item(), rel=1e-6)
        scale = float(alone.std.max())
        assert (alone.mean[0] - whole.mean[i]).abs().max() <= 1e-6 * scale
        assert (alone.std[0] - whole.std[i]).abs().max() <= 1e-6 * scale
