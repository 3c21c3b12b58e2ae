"""OPLB and OPNLB against their programmes computed another way."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest
import torch
from inside import linear_scales, settled
from stagewise import noise, play, programme, unit

import cbandit as cb


@pytest.mark.parametrize("solver", ["l1", "ascent"])
@pytest.mark.parametrize("known", [True, False])
def test_oplb_is_feasible_and_optimistic(solver, known):
    pytest.importorskip("clarabel")
    d, m, tau = 2, 2, 0.35
    x0 = torch.tensor([[0.2, 0.1]]).double()
    points = torch.cat([x0, unit(3, d, seed=2)])
    theta, mu = 0.8 * unit(d, seed=3), 0.8 * unit(m, d, seed=8)
    r0, c0 = (x0 @ theta).item(), (mu @ x0[0]).numpy()
    assert (c0 < tau).all()
    given = {"reward": r0, "cost": c0} if known else {}
    policy = cb.OPLB(
        cb.Finite(points),
        reward=cb.Linear(0.01, length=1.0),
        costs=[cb.Linear(0.01, length=1.0)] * m,
        safe=cb.Safe(index=0, **given),
        thresholds=tau,
        solver=solver,
        horizon=300,
    )
    steps = 40
    grid = np.array(
        [
            (a, b, c, steps - a - b - c)
            for a in range(steps + 1)
            for b in range(steps + 1 - a)
            for c in range(steps + 1 - a - b)
        ]
    )
    mixed = torch.tensor(grid / steps).double() @ points  # all policies' means
    optimum = programme((points @ theta).numpy(), (mu @ points.mT).numpy(), [tau] * m)
    met = 0
    for choice in play(policy, theta, mu, 30, scale=0.01):
        p, i = choice.distribution.probability, choice.distribution.index
        assert p.sum() == pytest.approx(1)
        cost = mu @ (p @ points[i])
        assert (cost <= tau + 1e-9).all()
        met += 1
    # the state now: V_r, V_c of every policy on the grid
    choice = policy.ask()
    _, scale = linear_scales(policy, policy.t)
    ridge = settled(policy).data
    mean, norm = ridge.at(mixed.unsqueeze(0))
    v_c = mean[0, 1:] + scale[0, 1:, None] * norm[0, 1:]
    v_r = mean[0, 0] + scale[0, 0] * norm[0, 0]
    best = v_r[(v_c <= tau).all(0)].max()
    x = choice.distribution.probability @ points[choice.distribution.index]
    mean, norm = ridge.at(x.view(1, 1, d))
    assert (mean[0, 1:, 0] + scale[0, 1:] * norm[0, 1:, 0] <= tau + 1e-9).all()
    value = (mean[0, 0] + scale[0, 0] * norm[0, 0]).item()
    assert met == 30
    assert best >= optimum - 0.05  # optimism of the programme itself
    if solver == "ascent":
        assert value >= best - 1e-6
    else:  # the enclosing ball's value is at least the ellipsoid's
        w, root = ridge.solved
        spread, vectors = torch.linalg.eigh(root[0, 0].mT @ root[0, 0])
        symmetric = (vectors * spread.sqrt()) @ vectors.mT
        radius = math.sqrt(d) * scale[0, 0]
        assert (w[0, 0] @ x + radius * (symmetric @ x).abs().max()).item() >= best


def test_oplb_says_what_it_needs(monkeypatch):
    monkeypatch.setitem(sys.modules, "clarabel", None)
    lin = cb.Linear(0.1)
    with pytest.raises(cb.MissingExtraError, match=r"cbandit\[conic\]"):
        cb.OPLB(
            cb.Finite(torch.eye(2)),
            reward=lin,
            costs=lin,
            safe=cb.Safe(index=0, reward=0.0, cost=0.0),
            thresholds=0.5,
        )


def test_opnlb_is_its_programmes():
    g = torch.Generator().manual_seed(1)
    k, radius, tau = 5, 0.5, 0.35
    f, h = (torch.rand(n, k, generator=g).double() for n in (6, 7))
    h[:4, 0] = 0.1
    r0 = f[2, 0].item()
    policy = cb.OPNLB(
        cb.Finite(torch.arange(k).double().unsqueeze(-1)),
        reward=cb.FiniteClass(f, radius=radius),
        costs=cb.FiniteClass(h, radius=radius),
        safe=cb.Safe(index=0, reward=r0, cost=0.1),
        thresholds=tau,
    )
    alpha = (1 - r0) / (tau - 0.1)
    n, total = torch.zeros(k).double(), torch.zeros(2, k).double()
    z = noise(60, 2, seed=2)
    for t in range(60):
        choice = policy.ask()
        inside = []
        for values, known, row in ((f, range(6), 0), (h, range(4), 1)):
            mean = total[row] / n.clamp_min(1)
            error = [(n * (v - mean).square()).sum() for v in values]
            fit = values[min(known, key=lambda j: error[j])]
            away = [(n * (v - fit).square()).sum() for v in values]
            inside.append([values[j].numpy() for j in known if away[j] <= radius])
        rows = np.array(inside[1])
        best = max(
            programme(theta + alpha * (a - b), rows, [tau] * len(rows))
            for theta in inside[0]
            for a in rows
            for b in rows
        )
        pi = np.zeros(k)
        np.add.at(
            pi, choice.distribution.index.numpy(), choice.distribution.probability
        )
        assert (rows @ pi <= tau + 1e-9).all()
        gaps = [pi @ (a - b) for a in rows for b in rows]
        value = max(pi @ v for v in inside[0]) + alpha * max(gaps)
        assert value == pytest.approx(best, abs=1e-9)
        at = choice.index
        y = torch.stack([f[2, at], h[1, at]]) + z[t]
        policy.tell(choice, reward=y[0], cost=y[1])
        n[at] += 1
        total[:, at] += y
    assert len(inside[0]) < 6


def test_opnlb_is_optimistic_among_a_part_of_its_arms():
    # pairs of choice and context, a stretch of four arms each
    g = torch.Generator().manual_seed(3)
    k, n, tau = 4, 5, 0.4
    f, h = (torch.rand(size, n * k, generator=g).double() for size in (9, 5))
    h[:, ::k] = 0.1
    f[:, ::k] = 0.0
    policy = cb.OPNLB(
        cb.Finite(torch.arange(n * k).double().unsqueeze(-1)),
        reward=cb.FiniteClass(f),
        costs=cb.FiniteClass(h),
        safe=cb.Safe(index=0, reward=0.0, cost=0.1),
        thresholds=tau,
        largest=1.0,
    )
    alpha = 1 / (tau - 0.1)
    for z in range(n):
        among = [0, *range(z * k + (z == 0), z * k + k)]
        choice = policy.ask(among=among)
        on = f[:, among].numpy(), h[:, among].numpy()
        best = max(
            programme(theta + alpha * (a - b), on[1], [tau] * len(h))
            for theta in on[0]
            for a in on[1]
            for b in on[1]
        )
        pi = np.zeros(n * k)
        drawn = choice.distribution
        np.add.at(pi, drawn.index.numpy(), drawn.probability.numpy())
        pi = pi[among]
        assert pi.sum() == pytest.approx(1)
        gaps = [pi @ (a - b) for a in on[1] for b in on[1]]
        value = max(pi @ v for v in on[0]) + alpha * max(gaps)
        assert value == pytest.approx(best, abs=1e-9)


def test_opnlbs_radius_follows_the_noise():
    """At 50 times the scale all is as at scale 1; the unscaled radius excluded more."""
    k, rounds, r = 5, 80, 0.05
    g = torch.Generator().manual_seed(4)
    f, h = (torch.rand(6, k, generator=g).double() for _ in range(2))
    f[:, 0] = h[:, 0] = 0.1
    z = noise(rounds, 2, seed=5) * r

    def play(scale, **known):
        policy = cb.OPNLB(
            cb.Finite(torch.arange(k).double().unsqueeze(-1)),
            reward=cb.FiniteClass(scale * f, **known),
            costs=cb.FiniteClass(scale * h, **known),
            safe=cb.Safe(index=0, reward=0.1 * scale, cost=0.1 * scale),
            thresholds=0.5 * scale,
            largest=scale,
        )
        seen = []
        for t in range(rounds):
            choice = policy.ask()
            y = scale * (torch.stack([f[1, choice.index], h[2, choice.index]]) + z[t])
            policy.tell(choice, reward=y[0], cost=y[1])
            seen.append(int(choice.index))
        return seen, policy.posterior().costs.std[0] / scale

    played, left = play(1.0, subgaussian=r)
    again, same = play(50.0, subgaussian=50 * r)
    assert again == played
    torch.testing.assert_close(same, left, atol=1e-12, rtol=0)
    # 512 R^2 ln(24 G ln(2 t) / delta), by hand
    theirs = play(
        1.0, radius=lambda t: 512 * r**2 * math.log(240 * 6 * math.log(2 * t))
    )
    assert theirs[0] == played
    assert bool((left < (h.amax(0) - h.amin(0)) / 2 - 1e-9).any())  # some were excluded
    assert play(1.0)[1].sum() > left.sum()  # R = 1: none is
