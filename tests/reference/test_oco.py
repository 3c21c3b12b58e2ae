"""Bandit OCO against its steps, by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from inside import settled

import cbandit as cb
from cbandit import problems

F64 = torch.float64


def box(*sides):
    return cb.Box([0.0] * len(sides), list(sides))


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
    assert sorted(settled(policy).rounds) == [3, 4]


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
        policy.ask(actions=[[0.5]])
    with pytest.raises(cb.CBanditError, match="picks from numbered actions"):
        policy.ask(among=[0])
    assert policy.t == 0
