"""OPB, over arms and over Gaussian processes, against its pseudo-code."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from inside import hold_no_arms
from stagewise import noise, programme, rbf

import cbandit as cb


@pytest.mark.parametrize("m", [1, 3])
@pytest.mark.parametrize("r", [0.5, 0.01])
def test_opb_is_its_pseudo_code(m, r):
    k, horizon, delta = 6, 50, 0.1
    g = torch.Generator().manual_seed(2)
    means = torch.rand(1 + m, k, generator=g).double()
    tau = np.full(m, means[1:, 0].max().item() + 0.3)
    r0, c0 = means[0, 0].item(), means[1:, 0].numpy()
    policy = cb.OPB(
        cb.Finite(torch.arange(k).double().unsqueeze(-1)),
        reward=cb.Counts(r),
        costs=[cb.Counts(r, range=(0.0, 1.0))] * m,
        safe=cb.Safe(index=0, reward=r0, cost=c0),
        thresholds=tau,
        delta=delta,
        horizon=horizon,
    )
    n, total = np.zeros(k), np.zeros((1 + m, k))
    for _ in range(horizon):
        choice = policy.ask()
        w = r * np.sqrt(
            2 * math.log(2 * (m + 1) * k * horizon / delta) / np.maximum(n, 1)
        )
        mean = total / np.maximum(n, 1)
        u = mean + w
        u[0] += (2 * (1 - r0) / (tau - c0).min()) * w
        share = max(1, ((1 - c0) / (tau - c0)).max())
        u[0, n == 0] = np.maximum(u[0, n == 0], r0 + (1 - r0) * share)
        u[1:, n == 0] = 1
        u[1:] = np.minimum(u[1:], 1)
        u[:, 0] = [r0, *c0]
        pi, p = choice.distribution.index.numpy(), choice.distribution.probability
        p = p.numpy()
        assert p.sum() == pytest.approx(1)
        assert u[0, pi] @ p == pytest.approx(programme(u[0], u[1:], tau), abs=1e-9)
        assert (u[1:, pi] @ p <= tau + 1e-12).all()
        assert choice.index.item() in pi[p > 0]
        y = (torch.rand(1 + m, generator=g) < means[:, choice.index]).double()
        policy.tell(choice, reward=y[0], cost=y[1:])
        n[choice.index] += 1
        total[:, choice.index] += y.numpy()


def test_opb_draws_from_its_distribution():
    k, rounds = 4, 4000
    policy = cb.OPB(
        cb.Finite(torch.arange(k).double().unsqueeze(-1)),
        reward=cb.Counts(0.1),
        costs=cb.Counts(0.1, means=(0.0, 1.0)),
        safe=cb.Safe(index=0, reward=0.0, cost=0.0),
        thresholds=0.05,
        horizon=10,
        trials=rounds,
    )
    choice = policy.ask()
    p = choice.distribution.probability[0, 1].item()
    share = (choice.index != 0).double().mean().item()
    # one run in 10^6 is further off than 5 standard errors
    assert abs(share - p) < 5 * math.sqrt(p * (1 - p) / rounds)


def test_opb_estimates_an_unknown_safe_arm_first():
    k, horizon, r = 3, 3000, 0.1
    policy = cb.OPB(
        cb.Finite(torch.arange(k).double().unsqueeze(-1)),
        reward=cb.Counts(r),
        costs=cb.Counts(r, means=(0.0, 1.0)),
        safe=cb.Safe(index=1),
        thresholds=0.5,
        horizon=horizon,
        trials=4,
    )
    log = math.log(2 * horizon / 0.1)
    # 0.1 + 3 R sqrt(2 ln / n) <= 0.5 after n rounds without noise
    needed = math.ceil((3 * r * math.sqrt(2 * log) / 0.4) ** 2)
    for t in range(needed + 1):
        choice = policy.ask()
        if t < needed:
            assert (choice.index == 1).all()
            assert (choice.distribution.probability.amax(-1) == 1).all()
        policy.tell(choice, reward=torch.full((4,), 0.1), cost=torch.full((4,), 0.1))
    assert (choice.distribution.probability.amax(-1) < 1).all()


@pytest.mark.parametrize(
    "r", [0.02, *(pytest.param(r, marks=pytest.mark.slow) for r in (0.1, 0.5))]
)
def test_opb_does_not_starve_arms_that_were_never_pulled(r):
    """Beside a rule that plays the best and the safe arm under the same bounds."""
    horizon, trials = 1500, 3
    means = torch.tensor([[0.0, 0.5, 0.9], [0.0, 0.2, 0.2]]).double()
    regret = {}
    for among in ((0, 1, 2), (0, 2)):
        policy = cb.OPB(
            cb.Finite(torch.arange(3).double().unsqueeze(-1)),
            reward=cb.Counts(r),
            costs=cb.Counts(r, means=(0.0, 1.0)),
            safe=cb.Safe(index=0, reward=0.0, cost=0.0),
            thresholds=0.2,
            horizon=horizon,
            trials=trials,
        )
        z = noise(horizon, 2, trials, seed=1, scale=r)
        pulls, gap = torch.zeros(trials), torch.zeros(trials).double()
        for t in range(horizon):
            choice = policy.ask(among=among)
            pi = choice.distribution
            reward, cost = (means[:, pi.index] * pi.probability).sum(-1)
            assert (cost <= 0.2 + 1e-12).all()
            gap += 0.9 - reward
            pulls += choice.index == 2
            y = means[:, choice.index] + z[t]
            policy.tell(choice, reward=y[0], cost=y[1])
        assert (pulls >= 200).all()
        regret[among] = gap
    assert regret[0, 1, 2].mean() <= 1.5 * regret[0, 2].mean()
    if r == 0.02:
        assert (regret[0, 1, 2] < 60).all()


@pytest.mark.slow
def test_opb_keeps_its_stage_cost():
    """At least 1 - delta of the runs in every round; delta = 0.1, 100 runs."""
    problem = cb.problems.pacchiano_opb_random(5, 0.3, trials=100, seed=3)
    counts = cb.Counts(0.5, range=(0.0, 1.0))
    policy = cb.OPB(
        problem.actions,
        reward=counts,
        costs=counts,
        safe=cb.Safe(index=0, reward=0.0, cost=0.0),
        thresholds=problem.thresholds,
        horizon=1500,
        trials=100,
    )
    run = cb.simulate(policy, problem, 1500, progress=False)
    kept = (run.stage_costs <= 1e-12).all(-1).all(-1)
    assert kept.double().mean() >= 0.9
    gap = run.stochastic_optimum - run.expected_rewards
    early, late = gap[:, :200].mean(), gap[:, -200:].mean()
    assert late < 0.5 * early


def test_an_arm_never_pulled_may_cost_all_that_is_possible():
    def first(**known):
        belief = cb.Counts(0.05, **known)
        policy = cb.OPB(
            cb.Finite(torch.arange(2.0).unsqueeze(-1)),
            reward=belief,
            costs=belief,
            safe=cb.Safe(index=0, reward=0.1, cost=0.0),
            thresholds=0.5,
            horizon=200,
        )
        chosen = policy.ask().distribution
        return float(chosen.probability[chosen.index == 1].sum())

    # share p of an arm that may cost c keeps p c <= 0.5
    for known, worst in (
        ({"range": (0.0, 1.0)}, 1.0),
        ({"range": (-1, 5)}, 5),
        ({"means": (0, 5)}, 5),
        ({"range": (-9, 9), "means": (0, 5)}, 5),
    ):
        assert first(**known) == pytest.approx(0.5 / worst, rel=1e-12)
    assert first() == 0  # nothing says what it may cost


def test_an_arm_whose_cost_is_unknown_is_played_once_it_was_seen():
    """Of two costs one states no range; the safe arm stays whatever is known."""
    policy = cb.OPB(
        cb.Finite(torch.arange(3.0).unsqueeze(-1)),
        reward=cb.Counts(0.1),
        costs=[cb.Counts(0.1, means=(0.0, 1.0)), cb.Counts(0.1)],
        safe=cb.Safe(index=1, reward=0.1, cost=0.0),
        thresholds=5.0,
        horizon=200,
        trials=2,
    )
    for _ in range(5):
        choice = policy.ask()
        assert choice.index.tolist() == [1, 1]
        policy.tell(choice, reward=[0.1, 0.1], cost=[[0.0, 0.0]] * 2)
    policy.observe(index=[2], reward=[0.9], cost=[[0.2, 0.3]])
    chosen = policy.ask().distribution
    assert chosen.index[chosen.probability > 0].tolist() == [2, 2]


@pytest.mark.parametrize("engine", ["joint", "product"])
@pytest.mark.parametrize("pricing", [False, True])
def test_gp_opb_is_its_programme(engine, pricing, monkeypatch):
    if pricing:
        hold_no_arms(monkeypatch)
    m, lam, beta = 2, 0.01, (1.5, 0.8)
    axis = torch.linspace(0, 1, 9).double()
    grid = cb.ProductGrid([axis, axis])
    actions = (
        grid if engine == "product" else cb.Finite(torch.cartesian_prod(axis, axis))
    )
    policy = cb.OPB(
        actions,
        reward=cb.GP(rbf(), noise=lam),
        costs=[cb.GP(rbf(0.4), noise=lam)] * m,
        safe=cb.Safe(index=3, reward=0.2, cost=[-0.1, 0.0]),
        explore=cb.UCB(*beta),
        thresholds=0.4,
        largest=5.0,
        engine=engine,
    )
    x = torch.cartesian_prod(axis, axis)
    seen, y = [], []
    z = noise(15, 3, seed=3)
    for t in range(15):
        choice = policy.ask()
        mean, std = [], []
        for kernel, column in ((rbf(), 0), (rbf(0.4), 1), (rbf(0.4), 2)):
            k = kernel(x).to_dense().detach()
            s = torch.tensor(seen, dtype=torch.long)
            inverse = torch.linalg.inv(k[s][:, s] + lam * torch.eye(len(s)).double())
            target = torch.tensor([v[column] for v in y]).double()
            mean.append(k[:, s] @ inverse @ target)
            std.append((k.diagonal() - (k[:, s] @ inverse * k[:, s]).sum(-1)).sqrt())
        mean, std = torch.stack(mean).numpy(), torch.stack(std).numpy()
        u_c = mean[1:] + beta[1] * std[1:]
        rho = 2 * (5.0 - 0.2) / (0.4 - np.array([-0.1, 0.0]))
        u_r = mean[0] + beta[0] * std[0] + (rho[:, None] * beta[1] * std[1:]).max(0)
        u_r[3], u_c[:, 3] = 0.2, [-0.1, 0.0]
        pi = choice.distribution.index.numpy()
        p = choice.distribution.probability.numpy()
        best = programme(u_r, u_c, [0.4, 0.4])
        assert u_r[pi] @ p == pytest.approx(best, abs=1e-6)
        assert (u_c[:, pi] @ p <= 0.4 + 1e-6).all()
        seen.append(int(choice.index))
        a = x[choice.index]
        y.append(torch.stack([a.sum(), a[0], a[1] - 0.5]).add(z[t]).tolist())
        policy.tell(choice, reward=y[-1][0], cost=y[-1][1:])
