"""Stage-wise policies promise themselves at least what the true optimum is worth.

Truths are drawn inside every confidence interval. The programme that a policy then
solves must be worth at least the best distribution under the true costs, whatever the
noise; else an action may be left aside for ever.
"""

from __future__ import annotations

import math

import pytest
import torch
from inside import classes, linear_scales, opb, settled, solutions_of
from stagewise import programme, rbf, unit

import cbandit as cb

TRIALS, ARMS, HORIZON, DELTA = 40, 6, 500, 0.1


def uniform(*shape, seed, low=0.0, high=1.0):
    g = torch.Generator().manual_seed(seed)
    return low + (high - low) * torch.rand(*shape, generator=g, dtype=torch.float64)


def places(*shape, seed):
    """Places in intervals from -1 to 1: two thirds of them at the ends."""
    anywhere = uniform(*shape, seed=seed, low=-1)
    return torch.where(
        uniform(*shape, seed=seed + 1) < 2 / 3, anywhere.sign(), anywhere
    )


def noises(functions, seed, largest=1.0):
    """The noise of each function apart, over three decades, ``(T, F)``."""
    return largest * 10 ** uniform(TRIALS, functions, seed=seed, low=-3, high=0)


def optima(reward, costs, tau):
    """The true optimum of every trial, by HiGHS."""
    rows = zip(reward.numpy(), costs.numpy(), tau.numpy(), strict=True)
    return torch.tensor([programme(*row) for row in rows])


def arms(m, r, seed, known):
    """OPB, and the true means ``(T, 1 + m, K)`` and limits ``(T, m)`` of its arms."""
    top = torch.tensor([1.0, 2.0, 20.0])[:m].double()
    truth = uniform(TRIALS, 1 + m, ARMS, seed=seed)
    truth[:, 1:] *= top.unsqueeze(-1)
    truth[:, 0, 0] *= 0.8
    tau = truth[:, 1:, 0] + uniform(TRIALS, m, seed=seed + 1, low=0.05, high=0.5)
    safe = {"reward": truth[:, 0, 0], "cost": truth[:, 1:, 0]} if known else {}
    policy = cb.OPB(
        cb.Finite(torch.arange(ARMS).double().unsqueeze(-1)),
        reward=cb.Counts(r[:, 0]),
        costs=[cb.Counts(r[:, 1 + j], means=(0, top[j])) for j in range(m)],
        safe=cb.Safe(index=0, **safe),
        thresholds=tau,
        delta=DELTA,
        horizon=HORIZON,
        trials=TRIALS,
    )
    return policy, truth, tau


def observe(policy, truth, r, pulls, seed):
    """Tell averages of so many pulls of each arm, anywhere in their intervals.

    Args:
        policy: OPB.
        truth: ``(T, 1 + m, K)``.
        r: the noise, ``(T, 1 + m)``.
        pulls: of which the reward was seen, and the costs, of every arm.
        seed: of the places.
    """
    functions = truth.shape[1]
    log = 2 * math.log(2 * functions * ARMS * HORIZON / DELTA)
    place = places(*truth.shape, seed=seed)
    for arm, (rewards, costs) in enumerate(pulls):
        for name, n, some in (("reward", rewards, 0), ("cost", costs, slice(1, None))):
            width = r[:, some] * math.sqrt(log / max(n, 1))
            y = truth[:, some, arm] + place[:, some, arm] * width
            y = y.unsqueeze(1).expand(TRIALS, n, *y.shape[1:])
            if n:
                policy.observe(index=[arm] * n, **{name: y})


@pytest.mark.parametrize("m", [1, 3])
@pytest.mark.parametrize(
    "pulls",
    [
        [(3, 3), (0, 0), (0, 0), (1, 1), (4, 4), (40, 40)],
        [(3, 3), (9, 9), (1, 1), (1, 1), (4, 4), (40, 40)],
        [(3, 3), (9, 2), (1, 5), (1, 1), (40, 1), (1, 40)],
        [(3, 3), (9, 0), (0, 5), (1, 1), (40, 1), (0, 0)],
    ],
    ids=["some never pulled", "all pulled", "told apart", "half seen"],
)
def test_opb(m, pulls, monkeypatch):
    r = noises(1 + m, seed=7 * m)
    policy, truth, tau = arms(m, r, 11 * m, known=True)
    observe(policy, truth, r, pulls, seed=13 * m)
    solved = solutions_of(opb, monkeypatch)
    policy.ask()
    assert (solved[-1].value >= optima(truth[:, 0], truth[:, 1:], tau) - 1e-8).all()


@pytest.mark.parametrize("m", [1, 3])
def test_opb_with_a_safe_arm_that_is_estimated(m, monkeypatch):
    r = noises(1 + m, seed=3 * m, largest=0.02)
    policy, truth, tau = arms(m, r, 5 * m, known=False)
    means = truth + places(*truth.shape, seed=m) * r.unsqueeze(-1) / 2
    while not settled(policy).safe.ready:
        choice = policy.ask()
        y = means[torch.arange(TRIALS), :, choice.index]
        policy.tell(choice, reward=y[:, 0], cost=y[:, 1:])
    pulls = [(0, 0), (0, 0), (0, 0), (1, 1), (4, 4), (40, 40)]
    observe(policy, truth, r, pulls, seed=13 * m)
    solved = solutions_of(opb, monkeypatch)
    policy.ask()
    assert (solved[-1].value >= optima(truth[:, 0], truth[:, 1:], tau) - 1e-8).all()


@pytest.mark.parametrize("m", [1, 3])
def test_opbs_gp_form(m, monkeypatch):
    """Several kernels and noises; the reward is known better or worse than costs."""
    beta, points, largest = (1.5, 2.0), uniform(30, 2, seed=1), 3.0
    for case, noise in enumerate([(1e-4, 1e-4), (1e-4, 1.0), (1.0, 1e-4)]):
        beliefs = [cb.GP(rbf(0.3), noise=noise[0])]
        beliefs += [cb.GP(rbf(0.2 + 0.1 * j), noise=noise[1]) for j in range(m)]
        rows = uniform(TRIALS, 12, 1 + m, seed=3 + case, low=-0.4, high=0.4)

        def gp_opb(reward, cost, tau, beliefs=beliefs, rows=rows):
            policy = cb.OPB(
                cb.Finite(points),
                reward=beliefs[0],
                costs=beliefs[1:],
                safe=cb.Safe(index=0, reward=reward, cost=cost),
                explore=cb.UCB(*beta),
                thresholds=tau,
                largest=largest,
                trials=TRIALS,
            )
            index = list(range(4, 16))
            policy.observe(index=index, reward=rows[..., 0], cost=rows[..., 1:])
            return policy

        far = torch.full((TRIALS, m), 99.0).double()
        known = gp_opb(0.0, 0.0, far).posterior()
        place = places(TRIALS, 1 + m, len(points), seed=5 + case)
        reward = known.reward.mean + beta[0] * place[:, 0] * known.reward.std
        costs = known.costs.mean + beta[1] * place[:, 1:] * known.costs.std
        room = uniform(TRIALS, m, seed=9 + case, low=0.05, high=0.5)
        policy = gp_opb(reward[:, 0], costs[..., 0], costs[..., 0] + room)
        solved = solutions_of(opb, monkeypatch)
        policy.ask()
        optimum = optima(reward, costs, costs[..., 0] + room)
        fits = optimum <= largest
        assert fits.sum() > TRIALS / 2
        assert (solved[-1].value >= optimum - 1e-8)[fits].all()


LINEAR = [
    # noises, ridges and norms of the reward and of costs; how many rounds had costs
    ((0.01, 0.01), (1.0, 1.0), (1.0, 1.0), 30),
    ((0.01, 1.0), (1e-2, 1e-2), (1.0, 1.0), 30),
    ((0.01, 0.01), (1.0, 1e-2), (1.0, 1.0), 30),
    ((0.01, 0.01), (1e-2, 1.0), (0.1, 5.0), 30),
    ((0.01, 0.01), (1e-2, 1e-2), (1.0, 1.0), 4),
]


def linear_world(case, m, kind, actions, x0):
    """A maker of taught policies with a choice, and truths inside their ellipsoids.

    The maker takes what is known of the safe action, limits and ``r_max``; truths are
    coefficients ``(T, 1 + m, d)``.
    """
    noise, ridge, norm, told = case
    beliefs = [
        cb.Linear(noise[j > 0], ridge=ridge[j > 0], norm=norm[j > 0], length=1.0)
        for j in range(1 + m)
    ]
    d = len(x0)
    x = 0.5 * unit(30, d, seed=5)
    y = uniform(30, 1 + m, seed=2, low=-0.2, high=0.2)

    def taught(reward, cost, tau, largest):
        policy = kind(
            actions,
            reward=beliefs[0],
            costs=beliefs[1:],
            safe=cb.Safe(x=x0, reward=reward, cost=cost),
            thresholds=tau,
            largest=largest,
        )
        policy.observe(x=x, reward=y[:, 0])
        policy.observe(x=x[:told], cost=y[:told, 1:])
        return policy, policy.ask()

    # costs that the policy is given are those that the truths have at x0
    first, _ = taught(0.0, 0.1 * x0.norm().expand(m), 1.0, 1.0)
    w, root = settled(first).data.solved
    beta, _ = linear_scales(first, 1)
    away = unit(TRIALS, 1 + m, d, seed=3).unsqueeze(-1)
    return taught, w + (root.mT @ away).squeeze(-1) * beta.unsqueeze(-1)


@pytest.mark.parametrize("m", [1, 2])
@pytest.mark.parametrize("origin", [True, False])
@pytest.mark.parametrize("case", LINEAR, ids=range(len(LINEAR)))
def test_lc_lucb(m, origin, case):
    d = 3
    x0, tips = torch.zeros(d).double(), unit(7, d, seed=4)
    if not origin:
        x0 = torch.tensor([0.2, 0.1, -0.1]).double()
    taught, truths = linear_world(case, m, cb.LCLUCB, cb.Star(x0, tips), x0)
    checked = 0
    for truth in truths:
        r0, c0 = float(truth[0] @ x0), truth[1:] @ x0
        tau = c0 + 0.2
        reward, costs = truth[0] @ tips.mT, truth[1:] @ tips.mT
        room = 0.2 / (costs - c0.unsqueeze(-1)).clamp_min(1e-12)
        gained = room.amin(0).clamp_max(1.0) * (reward - r0)
        optimum = r0 + float(gained.amax().clamp_min(0.0))
        policy, choice = taught(r0, c0, tau, optimum + 1e-9)
        _, scale = linear_scales(policy, 1)
        mean, norm = settled(policy).data.at(choice.x.view(1, 1, d))
        assert float(mean[0, 0, 0] + scale[0, 0] * norm[0, 0, 0]) >= optimum - 1e-9
        checked += optimum > r0
    assert checked > TRIALS / 2


@pytest.mark.parametrize("case", LINEAR, ids=range(len(LINEAR)))
def test_oplb(case):
    pytest.importorskip("clarabel")
    d, tau = 2, 0.2
    x0 = torch.zeros(d).double()
    points = torch.cat([x0.unsqueeze(0), unit(4, d, seed=4)])
    taught, truths = linear_world(case, 1, cb.OPLB, cb.Finite(points), x0)
    for truth in truths[:8]:
        reward, costs = (points @ truth.mT).mT.split([1, 1])
        optimum = programme(reward[0].numpy(), costs.numpy(), [tau])
        policy, choice = taught(0.0, [0.0], tau, max(optimum, 1e-6))
        pi = choice.distribution
        x = pi.probability @ points[pi.index]
        _, scale = linear_scales(policy, 1)
        mean, norm = settled(policy).data.at(x.view(1, 1, d))
        # the ascent's answer is exact to the rounding of its solver
        assert float(mean[0, 0, 0] + scale[0, 0] * norm[0, 0, 0]) >= optimum - 1e-6


@pytest.mark.parametrize("scale", [1.0, 50.0])
def test_opnlb(scale, monkeypatch):
    """Functions of any size; the truth is one of those that the sets leave."""
    tau, radius = 0.2 * scale, 0.05 * scale**2
    f, h = (scale * uniform(20, 5, seed=seed) for seed in (1, 2))
    f[:, 0], h[:, 0] = 0.0, 0.1 * scale
    solved = solutions_of(classes, monkeypatch)
    for trial in range(20):
        policy = cb.OPNLB(
            cb.Finite(torch.arange(5).double().unsqueeze(-1)),
            reward=cb.FiniteClass(f, radius=radius),
            costs=cb.FiniteClass(h, radius=radius),
            safe=cb.Safe(index=0, reward=0.0, cost=0.1 * scale),
            thresholds=tau,
        )
        seen = [trial % 4 + 1]
        policy.observe(index=seen, reward=f[trial, seen], cost=h[trial, seen])
        policy.ask()
        best = programme(f[trial].numpy(), h[trial : trial + 1].numpy(), [tau])
        assert solved[-1].value.max() >= best - 1e-8 * scale
