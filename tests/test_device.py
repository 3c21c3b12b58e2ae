"""Policies on a second device, which is a pretended one: see ``pretend``."""

from __future__ import annotations

import gpytorch
import pytest
import torch
from pretend import Pretend

import cbandit as cb
from cbandit.posterior.rows import Rows

F64 = torch.float64
ROUNDS, STEADY = 14, 6


def _kernel(scale=0.3):
    kernel = gpytorch.kernels.RBFKernel().double()
    kernel.lengthscale = torch.tensor(scale, dtype=F64)
    return kernel


GP = cb.GP(_kernel(), noise=1e-2)
LINEAR = cb.Linear(subgaussian=0.1)
COUNTS = cb.Counts(subgaussian=0.1)


def _grid(d=2, n=5):
    return cb.ProductGrid(
        [torch.linspace(0, 1, n, dtype=F64) ** (1 + 0.1 * j) for j in range(d)]
    )


def _points(n=20, d=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return cb.Finite(torch.rand(n, d, generator=generator, dtype=F64))


def _arms(zero=False):
    points = _points(8, 2).all.clone()
    if zero:
        points[0] = 0
    return cb.Finite(points)


def _box():
    return cb.Box([0.0, 0.0], [1.0, 1.0])


UCB, TS, RAND = cb.UCB(1.5), cb.TS(1.5), cb.Rand(1.5)
THEORY = cb.UCB(cb.RKHS(norm=1.0, subgaussian=0.1))
SAFE = cb.Safe(index=0, reward=0.0, cost=-0.5)
UNKNOWN = cb.Safe(index=0)
CLASS = cb.FiniteClass(
    [[0.0] * 8, [0.1 * i for i in range(8)], [0.0, 0.3] * 4], radius=4.0
)


def _ckb(actions, explore=UCB, **more):
    given = {"step": 0.2, "cap": 3.0, "reward": GP, "costs": GP} | more
    return lambda **on: cb.CKB(actions, explore=explore, **given, **on)


def _rpol(actions=None, explore=UCB, **more):
    given = {"reward": GP, "costs": GP} | more
    return lambda **on: cb.RPOL(actions or _grid(), explore=explore, **given, **on)


def _of(kind, actions, **more):
    return lambda **on: kind(actions, **more, **on)


def _noisy(t):
    return 0.01 * t


GRID, POINTS, ARMS = _grid(), _points(), _arms()
LEARNED = cb.GP(
    gpytorch.kernels.ScaleKernel(_kernel()).double(), noise=None, refit_every=8
)
STANDARD = cb.GP(_kernel(), noise=1e-2, standardize=True)
B = cb.baselines
CASES = {
    **{
        f"CKB-{e.name}-{engine}": _ckb(
            GRID if engine != "stream" else POINTS, e, engine=engine
        )
        for e in (UCB, TS, RAND)
        for engine in ("joint", "factor", "product", "stream")
    },
    "CKB-UCB-box": _ckb(_box()),
    "CKB-TS-box": _ckb(_box(), TS),
    "CKB-covariance": _ckb(
        cb.Finite(covariance=_kernel()(POINTS.all).to_dense()),
        reward=cb.GP(noise=0.01),
        costs=cb.GP(noise=0.01),
    ),
    "CKB-standardize": _ckb(GRID, reward=STANDARD, costs=STANDARD, engine="product"),
    "CKB-standardize-joint": _ckb(
        POINTS, reward=STANDARD, costs=STANDARD, engine="joint"
    ),
    "CKB-learned": _ckb(POINTS, reward=LEARNED, costs=LEARNED),
    "CKB-theory": _ckb(GRID, THEORY, engine="product", clip=(1.0, 1.0), thresholds=0.1),
    "CKB-callables": _ckb(
        GRID,
        cb.UCB(lambda t, gain: 1 + 0.1 * gain),
        engine="product",
        thresholds=_noisy,
    ),
    "CKB-queue": _ckb(POINTS, dual="queue", slack=0.01),
    "CKB-anytime": _ckb(POINTS, anytime=True, forget=True, step=None, clip=(1.0, 1.0)),
    "CKB-two-costs": _ckb(
        POINTS, costs=[GP, cb.GP(_kernel(0.5), noise=0.02)], engine="factor"
    ),
    "CKB-hallucinate": _ckb(POINTS, pending="hallucinate", engine="factor"),
    "CKB-hallucinate-joint": _ckb(POINTS, pending="hallucinate", engine="joint"),
    "RPOL": _rpol(),
    "RPOL-estimate": _rpol(penalty="estimate"),
    "RPOL-delayed": _rpol(feedback=cb.Delayed(4, weight=0.1)),
    "RPOL-delayed-theory": _rpol(
        feedback=cb.Delayed(4), explore=THEORY, horizon=100, engine="product"
    ),
    "RPOL-sliding-joint": _rpol(POINTS, feedback=cb.Sliding(5)),
    "RPOL-sliding-product": _rpol(feedback=cb.Sliding(5), engine="product"),
    "RPOL-box": _rpol(_box()),
    "SCGP-UCB": _of(
        cb.SCGPUCB, GRID, reward=GP, costs=1, explore=UCB, slater=0.5, clip=1.0
    ),
    "EpochPenalty": _of(
        cb.EpochPenalty, GRID, reward=GP, costs=1, explore=UCB, epoch=5
    ),
    "EpochPenalty-ts": _of(
        cb.EpochPenalty, POINTS, reward=GP, costs=1, explore=TS, epoch=5, inner="ts"
    ),
    "EpochPenalty-linear": _of(
        cb.EpochPenalty,
        GRID,
        reward=GP,
        costs=1,
        explore=THEORY,
        epoch=5,
        psi="linear",
        rate=0.1,
        reuse=False,
        engine="product",
    ),
    "GP-UCB": _of(cb.GPUCB, GRID, reward=GP, explore=UCB, engine="product"),
    "GP-TS": _of(cb.GPTS, GRID, reward=GP, explore=TS),
    "LC-LUCB": _of(
        cb.LCLUCB,
        _arms(True),
        reward=LINEAR,
        costs=LINEAR,
        safe=cb.Safe(index=0),
        thresholds=0.5,
    ),
    "LC-LUCB-unknown": _of(
        cb.LCLUCB,
        ARMS,
        reward=LINEAR,
        costs=LINEAR,
        safe=UNKNOWN,
        thresholds=0.9,
        horizon=100,
    ),
    "LC-LUCB-star": _of(
        cb.LCLUCB,
        cb.Star(torch.zeros(2), torch.eye(2)),
        reward=LINEAR,
        costs=LINEAR,
        safe=cb.Safe(x=[0.0, 0.0]),
        thresholds=0.5,
    ),
    "OPLB": _of(
        cb.OPLB,
        _arms(True),
        reward=LINEAR,
        costs=LINEAR,
        safe=cb.Safe(index=0),
        thresholds=0.5,
    ),
    "OPB": _of(cb.OPB, ARMS, reward=COUNTS, costs=COUNTS, safe=SAFE, horizon=100),
    "OPB-unknown": _of(
        cb.OPB,
        ARMS,
        reward=COUNTS,
        costs=COUNTS,
        safe=UNKNOWN,
        thresholds=0.9,
        horizon=100,
    ),
    "OPB-gp": _of(
        cb.OPB, GRID, reward=GP, costs=GP, safe=SAFE, horizon=100, engine="product"
    ),
    "OPNLB": _of(
        cb.OPNLB,
        ARMS,
        reward=CLASS,
        costs=CLASS,
        safe=cb.Safe(index=0, reward=0.0, cost=0.0),
        thresholds=0.5,
    ),
    "CONFIG": _of(B.CONFIG, GRID, reward=GP, costs=GP, explore=UCB, engine="product"),
    "CONFIG-box": _of(B.CONFIG, _box(), reward=GP, costs=GP, explore=UCB),
    "SafeOpt": _of(B.SafeOpt, POINTS, reward=GP, costs=GP, explore=UCB, safe=0),
    "SafeOpt-lipschitz": _of(
        B.SafeOpt, POINTS, reward=GP, costs=GP, explore=UCB, safe=0, lipschitz=2.0
    ),
    "StageOpt": _of(
        B.StageOpt,
        GRID,
        reward=GP,
        costs=GP,
        explore=UCB,
        safe=0,
        rounds=8,
        engine="product",
    ),
    "SGP-UCB": _of(
        B.SGPUCB, GRID, reward=GP, costs=GP, explore=UCB, safe=[0, 1], rounds=3
    ),
    "Safe-LTS": _of(
        B.SafeLTS,
        _arms(True),
        reward=LINEAR,
        costs=LINEAR,
        safe=cb.Safe(index=0),
        thresholds=0.5,
    ),
    "BKB": _of(B.BKB, GRID, reward=GP, explore=UCB),
    "ADMMBO": _of(
        B.ADMMBO, GRID, reward=GP, costs=GP, budgets=(2, 2), cost_budgets=(2, 2)
    ),
    "OCO": _of(B.BanditOCO, _box(), costs=1, radius=0.1, step=0.1, dual_step=0.1),
    "CKB-Restart": _of(
        B.CKBRestart,
        GRID,
        reward=GP,
        costs=GP,
        explore=UCB,
        restart=6,
        step=0.2,
        cap=3.0,
    ),
}


def _world(x):
    reward = torch.sin(5 * x[..., 0]) + 0.2 * x.sum(-1)
    cost = torch.cos(4 * x[..., -1]) - 0.4 * x[..., 0] - 0.2
    return reward, cost


def _observed(policy):
    points = policy.actions.block(0, policy.actions.size)
    return _world(points.double().cpu())[1].expand(*policy.batch_shape, 1, -1)


def _play(policy, account=None):
    """Choices, and what the last rounds asked of the device."""
    generator = torch.Generator().manual_seed(9)
    chosen, before = [], None
    for t in range(ROUNDS):
        if account is not None and t == ROUNDS - STEADY:
            before = account.lines.copy()
        question = {"observed_costs": _observed(policy)} if policy.sees_costs else {}
        choice = policy.ask(**question)
        reward, cost = _world(choice.x.double().cpu())
        noise = 0.1 * torch.randn(2, *reward.shape, generator=generator, dtype=F64)
        cost = (cost + noise[1]).unsqueeze(-1).expand(*cost.shape, policy.m)
        told = {"cost": cost} if policy.m and policy.learns_costs else {}
        policy.tell(choice, reward=reward + noise[0], **told)
        chosen.append(choice.x.double().cpu())
    asked = None if account is None else account.since(before)
    return torch.stack(chosen), asked


@pytest.fixture
def device(monkeypatch):
    """The pretended device; kernels written for a real one are their plain form."""
    with Pretend() as account:
        monkeypatch.setattr(Rows, "BACKEND", "plain")
        yield account


@pytest.mark.parametrize("trials", [None, 3])
@pytest.mark.parametrize("name", CASES)
def test_the_same_choices_on_the_device(name, trials, device):
    on = {"dtype": "float64", "trials": trials}
    there, _ = _play(CASES[name](device="cuda", **on), device)
    here, _ = _play(CASES[name](**on))
    assert (there - here).abs().max() < 1e-9
