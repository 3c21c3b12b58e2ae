"""A million rounds of LC-LUCB: what a round costs, and what rounding leaves.

    cbandit bench linear [--quick]

Ten rays in ten dimensions, the size of the authors' own experiments. The first few
thousand rounds are played by hand too, in numpy: the Gram matrix kept, two solves a
round.

Checks: the hand-written loop finds no better action; after the last round the estimates
and their widths are those of a fresh float64 solve over all rounds; and no true cost
was above its limit.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from rich.progress import track

import cbandit as cb
from cbandit.bench.report import check_of, result_of, row_of, table

__all__ = ["bench_linear", "table"]

Array = npt.NDArray[np.float64]
DIM, RAYS, TAU, NOISE, RIDGE, DELTA = 10, 10, 0.5, 0.1, 1.0, 0.01


@dataclass(frozen=True)
class _Sizes:
    rounds: int
    hand: int  # rounds played by hand
    part: int  # rounds timed at either end


FULL = _Sizes(1_000_000, 5_000, 20_000)
QUICK = _Sizes(20_000, 2_000, 2_000)


class _World:
    """Coefficients of length 1, rays of lengths of their own, Gaussian noise."""

    def __init__(self, rounds: int) -> None:
        generator = torch.Generator().manual_seed(2)

        def normal(*shape: int) -> Array:
            return torch.randn(*shape, generator=generator, dtype=torch.float64).numpy()

        unit = normal(RAYS + 2, DIM)
        unit /= np.linalg.norm(unit, axis=1, keepdims=True)
        # a cost that has nothing to do with the reward leaves nothing to trade
        self.reward: Array = unit[0]
        self.cost: Array = unit[0] + unit[1]
        self.cost /= np.linalg.norm(self.cost)
        each = torch.rand(RAYS, generator=generator, dtype=torch.float64)
        self.lengths: Array = 0.6 + 0.4 * each.numpy()
        self.tips: Array = unit[2:] * self.lengths[:, None]
        self.noise: Array = NOISE * normal(rounds, 2)

    def __call__(self, x: Array, t: int) -> tuple[float, float]:
        """Reward and cost at ``x``, seen with the noise of round ``t``."""
        a, b = self.noise[t]
        return float(x @ self.reward + a), float(x @ self.cost + b)


def _policy(world: _World) -> cb.LCLUCB:
    belief = cb.Linear(subgaussian=NOISE, ridge=RIDGE, norm=1.0, length=1.0)
    return cb.LCLUCB(
        cb.Star(torch.zeros(DIM, dtype=torch.float64), torch.as_tensor(world.tips)),
        reward=belief,
        costs=belief,
        safe=cb.Safe(x=[0.0] * DIM, reward=0.0, cost=0.0),
        delta=DELTA,
        thresholds=TAU,
    )


def _play(world: _World, sizes: _Sizes) -> tuple[cb.LCLUCB, Array, list[float]]:
    """The policy after its rounds, where it went, and when."""
    policy = _policy(world)
    went = np.empty((sizes.rounds, DIM))
    moments = []
    for t in track(range(sizes.rounds), "LC-LUCB", transient=True):
        moments.append(time.perf_counter())
        choice = policy.ask()
        x = went[t] = choice.x.numpy()
        reward, cost = world(x, t)
        policy.tell(choice, reward=reward, cost=cost)
    return policy, went, [*moments, time.perf_counter()]


def _by_hand(world: _World, went: Array) -> tuple[float, float]:
    """The policy written down as in the paper: what ``went`` loses, seconds a round.

    What ``went`` loses is the largest gap of a round between the best value and that
    of the ray gone along, or between the points on it. Rays tie, in the first round
    all: who goes along which is a matter of rounding, so went is followed.
    """
    gram = RIDGE * np.eye(DIM)
    sums = np.zeros((2, DIM))
    tips, alpha, lost = world.tips, 1 + 2 / TAU, 0.0
    begun = time.perf_counter()
    for t, x in enumerate(went):
        means = tips @ np.linalg.solve(gram, sums.T)
        norms = np.sqrt((tips * np.linalg.solve(gram, tips.T).T).sum(1))
        grown = math.log((1 + t / RIDGE) / DELTA)
        beta = NOISE * math.sqrt(DIM * grown) + math.sqrt(RIDGE)
        cost = means[:, 1] + beta * norms
        share = np.where(cost > TAU, TAU / cost, 1.0)
        value = share * (means[:, 0] + alpha * beta * norms)
        k = int((tips @ x / world.lengths).argmax())
        gap = float(np.abs(share[k] * tips[k] - x).max())
        lost = max(lost, gap, float(value.max() - value[k]))
        gram += np.outer(x, x)
        sums += np.outer(world(x, t), x)
    return lost, (time.perf_counter() - begun) / len(went)


def _afresh(world: _World, went: Array) -> tuple[Array, Array]:
    """Means ``(2, K)`` and deviations ``(K,)`` at the tips, from all rounds at once."""
    seen = went @ np.stack([world.reward, world.cost]).T + world.noise
    gram = RIDGE * np.eye(DIM) + went.T @ went
    means = world.tips @ np.linalg.solve(gram, went.T @ seen)
    norms = np.sqrt((world.tips * np.linalg.solve(gram, world.tips.T).T).sum(1))
    return means.T, NOISE * norms


def bench_linear(quick: bool = False) -> dict[str, Any]:
    """A million rounds; see the module."""
    return _linear(QUICK if quick else FULL, quick)


def _linear(sizes: _Sizes, quick: bool = False) -> dict[str, Any]:
    world = _World(sizes.rounds)
    policy, went, moments = _play(world, sizes)
    lost, by_hand = _by_hand(world, went[: sizes.hand])
    means, stds = _afresh(world, went)
    believed = policy.posterior()
    assert believed.costs is not None
    mine = np.stack([believed.reward.mean.numpy(), believed.costs.mean[0].numpy()])
    off_mean = float(np.abs(mine - means).max() / np.abs(means).max())
    off_std = float(np.abs(believed.reward.std.numpy() / stds - 1).max())
    worst = float((went @ world.cost).max())
    section = f"LC-LUCB, d = {DIM}, {RAYS} rays, {sizes.rounds:,} rounds, one trial"
    total, part = moments[-1] - moments[0], sizes.part
    last = (moments[-1] - moments[-1 - part]) / part
    return result_of(
        "linear",
        quick,
        [
            row_of(
                section,
                "all rounds",
                total,
                checks=[
                    check_of("estimates against a fresh solve", off_mean, 1e-8),
                    check_of("widths against a fresh solve", off_std, 1e-8),
                    check_of("largest true cost", worst, TAU),
                ],
            ),
            row_of(
                section,
                f"a round, the first {part:,}",
                (moments[part] - moments[0]) / part,
            ),
            row_of(section, f"a round, the last {part:,}", last),
            row_of(
                section,
                f"a round by hand in numpy, the first {sizes.hand:,}",
                by_hand,
                ratio=last / by_hand,
                checks=[check_of("value or way lost", lost, 1e-9)],
                note="ratio: ours to it",
            ),
        ],
    )
