"""One continuous round beside BoTorch's ``optimize_acqf``, on the same model.

    cbandit bench box [--quick]

Claim: a CKB-UCB round on a Box, 200 distinct points, two costs, takes no longer than
``optimize_acqf`` from as many restarts and raw samples, on BoTorch's own constrained
improvement and on the very score of CKB-UCB; there the point we find is worth no less
than theirs. The share of climbs that fail stands beside it.

And on the continuous square of ``shi-small-feasible``, 1.7 % of which is feasible,
CKB-UCB, RPOL-UCB and EpochPenalty come within the noise's deviation of the optimum,
-0.25, in 150 rounds: at a point at most 0.01 over the limit, for RPOL comes to stand on
its lower bound.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from cbandit.actions import Box
from cbandit.beliefs.gp import GP
from cbandit.bench.report import this_machine
from cbandit.explore import UCB
from cbandit.policies.ckb import CKB
from cbandit.policies.epoch import EpochPenalty
from cbandit.policies.gp import GPPolicy
from cbandit.policies.rpol import RPOL
from cbandit.problems.guo import waves
from cbandit.search import box as continuous

T = TypeVar("T")
BETA, NOISE, LENGTH = 2.0, 1e-2, 0.3
SHORT = 1e-3  # of the score's range, that our point may fall short of theirs
OPTIMUM, DEVIATION = -0.25, 0.1  # of the small feasible set; of the noise there
ROUNDS, NEAR = 150, 0.01
REACHING = ("CKB-UCB", "RPOL-UCB", "EpochPenalty")


def _world(x: Tensor) -> Tensor:
    """Reward and two costs ``(*b, 3)`` of ``x (*b, d)``."""
    f = torch.sin(5 * x[..., 0]) + x[..., 1:].mean(-1)
    g = [x.sum(-1) / x.shape[-1] - 0.5, torch.cos(4 * x[..., -1]) - x[..., 0]]
    return torch.stack([f, *g], -1)


def _policy(dim: int, distinct: int) -> CKB:
    import gpytorch

    kernel = gpytorch.kernels.MaternKernel(nu=2.5).double()
    kernel.lengthscale = torch.tensor(LENGTH * dim**0.5, dtype=torch.float64)
    gp = GP(kernel, noise=NOISE)
    policy = CKB(
        Box([0.0] * dim, [1.0] * dim),
        reward=gp,
        costs=[gp, gp],
        explore=UCB(BETA),
        step=0.5,
        cap=20.0,
    )
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(distinct, dim, generator=generator, dtype=torch.float64)
    y = _world(x)
    y += NOISE**0.5 * torch.randn(y.shape, generator=generator, dtype=torch.float64)
    policy.observe(x=x, reward=y[:, 0], cost=y[:, 1:])
    return policy


def _timed(function: Callable[[], T]) -> tuple[float, T]:
    start = time.perf_counter()
    out = function()
    return time.perf_counter() - start, out


def measure(dim: int, distinct: int, rounds: int) -> dict[str, Any]:
    """Medians over some rounds of one run, the first not counted."""
    import botorch.models  # noqa: F401  (an import is no part of a round)
    from botorch.acquisition.analytic import LogConstrainedExpectedImprovement
    from botorch.optim.optimize import optimize_acqf

    from cbandit.acquisition import PrimalDual

    policy = _policy(dim, distinct)
    box = policy.actions.bounds
    generator = torch.Generator().manual_seed(1)
    sample = torch.rand(4096, 1, dim, generator=generator, dtype=torch.float64)

    def theirs(score: Any) -> Tensor:
        x, _ = optimize_acqf(
            score,
            box,
            q=1,
            num_restarts=continuous.STARTS,
            raw_samples=continuous.CANDIDATES,
        )
        return x[0]

    ours, same, logei, gaps = [], [], [], []
    for number in range(rounds + 1):
        model = policy.model
        score = PrimalDual(model, BETA, policy.multiplier)
        limits: dict[int, Any] = {1: (None, 0.0), 2: (None, 0.0)}
        first: Any = model.models[0]
        seen = _world(first.train_inputs[0])
        ok = (seen[:, 1:] <= 0).all(-1)
        best = seen[ok, 0].max() if bool(ok.any()) else seen[:, 0].min()
        improvement = LogConstrainedExpectedImprovement(model, float(best), 0, limits)
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore")
            torch.manual_seed(number)  # noqa: TID251  (BoTorch draws from it)
            seconds_logei, _ = _timed(partial(theirs, improvement))
            seconds_same, x = _timed(partial(theirs, score))
        seconds, choice = _timed(policy.ask)
        with torch.no_grad():
            values = score(torch.stack([choice.x, x]).unsqueeze(1))
            spread = score(sample)
        gaps.append(float((values[1] - values[0]) / (spread.max() - spread.min())))
        y = _world(choice.x)
        policy.tell(choice, reward=y[0], cost=y[1:])
        if number:
            ours.append(seconds)
            same.append(seconds_same)
            logei.append(seconds_logei)
    mine = statistics.median(ours)
    return {
        "dim": dim,
        "distinct": distinct,
        "rounds": rounds,
        "ours_ms": 1e3 * mine,
        "same_score_ms": 1e3 * statistics.median(same),
        "logei_ms": 1e3 * statistics.median(logei),
        "over_same": mine / statistics.median(same),
        "over_logei": mine / statistics.median(logei),
        "short": max(gaps),
        "climbs": policy.climbs.made,
        "failed": policy.climbs.failed,
        "ok": max(gaps) <= SHORT,
    }


def _reaching(name: str, seed: int) -> GPPolicy:
    """A policy on the square, settings as on the experiment's grid."""
    import gpytorch

    kernel = gpytorch.kernels.MaternKernel(nu=2.5).double()
    kernel.lengthscale = 1.0
    box, explore = Box([0.0, 0.0], [6.0, 6.0]), UCB(1.0)
    gp = GP(kernel, noise=DEVIATION**2)
    if name == "EpochPenalty":
        return EpochPenalty(
            box, reward=gp, costs=1, explore=explore, epoch=20, seed=seed
        )
    common: dict[str, Any] = {"reward": gp, "costs": GP(kernel, noise=1e-4)}
    common |= {"explore": explore, "seed": seed}
    if name == "RPOL-UCB":
        return RPOL(box, **common)
    return CKB(box, step=0.5, cap=20.0, **common)


def reach(name: str, seed: int = 0, rounds: int = ROUNDS) -> dict[str, Any]:
    """How close to the optimum a policy comes on the small feasible set.

    The constraint is seen without noise, the reward with it; one uniform point comes
    before the first round.
    """
    world, policy = waves(), _reaching(name, seed)
    generator = torch.Generator().manual_seed(seed)
    start = 6 * torch.rand(1, 2, generator=generator, dtype=torch.float64)
    policy.observe(x=start, reward=world.reward(start), cost=world.costs(start)[:, 0])
    tried = []
    for _ in range(rounds):
        choice = policy.ask()
        noise = torch.randn((), generator=generator, dtype=torch.float64)
        reward = world.reward(choice.x) + DEVIATION * noise
        policy.tell(choice, reward=reward, cost=world.costs(choice.x))
        tried.append(choice.x)
    x = torch.stack(tried)
    f, g = world.reward(x), world.costs(x)[:, 0]
    kept = f[g <= NEAR]
    best = float(kept.max()) if len(kept) else float("-inf")
    return {
        "policy": name,
        "seed": seed,
        "rounds": rounds,
        "best": best,
        "feasible": int((g <= 0).sum()),
        "late_reward": float(f[-20:].mean()),
        "late_cost": float(g[-20:].mean()),
        "ok": best >= OPTIMUM - DEVIATION,
    }


def bench_box(quick: bool = False) -> dict[str, Any]:
    """All rows, and whether our points are worth what BoTorch's are."""
    sizes = [(2, 50, 3)] if quick else [(2, 200, 9), (4, 200, 9), (6, 200, 9)]
    rows = [measure(*size) for size in sizes]
    reached = [reach(name, i) for name in REACHING for i in range(1 if quick else 3)]
    return {
        "bench": "box",
        "quick": quick,
        "machine": this_machine(),
        "rows": rows,
        "reached": reached,
        "ok": all(row["ok"] for row in rows + reached),
    }


def table(result: dict[str, Any]) -> str:
    """The result as printed."""
    machine = result["machine"]
    lines = [
        f"{machine['processor']}, {machine['threads']} threads, "
        f"torch {machine['torch']}; a CKB-UCB round on a "
        "Box, two costs, beside optimize_acqf",
        f"{'d':>2}{'distinct':>9}{'ours ms':>9}{'same score':>11}{'logEI ms':>10}"
        f"{'ours/same':>10}{'ours/logEI':>11}{'short by':>10}  failed climbs",
    ]
    for row in result["rows"]:
        share = row["failed"] / max(row["climbs"], 1)
        lines.append(
            f"{row['dim']:>2}{row['distinct']:>9}{row['ours_ms']:>9.1f}"
            f"{row['same_score_ms']:>11.1f}{row['logei_ms']:>10.1f}"
            f"{row['over_same']:>10.2f}{row['over_logei']:>11.2f}"
            f"{row['short']:>10.1e}  {row['failed']} of {row['climbs']} ({share:.1%})"
        )
    lines += [
        "",
        f"small feasible set, optimum {OPTIMUM}: the best reward where the cost was "
        f"at most {NEAR}; rounds that were feasible; means of the last 20 rounds",
        f"{'policy':<14}{'seed':>5}{'rounds':>8}{'best':>9}{'feasible':>10}"
        f"{'reward':>9}{'cost':>9}",
    ]
    for row in result["reached"]:
        lines.append(
            f"{row['policy']:<14}{row['seed']:>5}{row['rounds']:>8}{row['best']:>9.3f}"
            f"{row['feasible']:>10}{row['late_reward']:>9.3f}{row['late_cost']:>9.3f}"
        )
    return "\n".join(lines)
