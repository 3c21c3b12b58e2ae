"""A million rounds of LC-LUCB: the cost of a round, and what rounding leaves.

    python benchmarks/speed/linear.py [--quick] [--json FILE]

Goal: 10^6 rounds take minutes, the last no longer than the first, and the estimates
stay exact. Ten rays in ten dimensions, the size of the authors' own experiments. The
first few thousand rounds are played by hand too, in numpy: the Gram matrix kept, two
solves a round.

Timings are medians of rounds. Checks: the hand-written loop finds no better action;
after the last round the estimates and their widths are those of a fresh float64 solve
over all rounds; no true cost was above its limit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import cbandit as cb
from benchmarks.common.case import both_of
from benchmarks.common.report import Row, check_of, row_of, say
from benchmarks.common.report import main as report_main

Array = npt.NDArray[np.float64]
DIM, RAYS, TAU, NOISE, RIDGE, DELTA = 10, 10, 0.5, 0.1, 1.0, 0.01


@dataclass(frozen=True)
class Sizes:
    """How large it all is; the defaults are the full run's."""

    rounds: int = 1_000_000
    hand: int = 5_000  # rounds played by hand
    part: int = 20_000  # rounds timed at either end


QUICK = Sizes(20_000, 2_000, 2_000)


class World:
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


def policy_of(world: World, **more: Any) -> cb.LCLUCB:
    """LC-LUCB with the origin as its safe action."""
    belief = cb.Linear(subgaussian=NOISE, ridge=RIDGE, norm=1.0, length=1.0)
    return cb.LCLUCB(
        cb.Star(torch.zeros(DIM, dtype=torch.float64), torch.as_tensor(world.tips)),
        reward=belief,
        costs=belief,
        safe=cb.Safe(x=[0.0] * DIM, reward=0.0, cost=0.0),
        delta=DELTA,
        thresholds=TAU,
        **more,
    )


def play(world: World, policy: cb.LCLUCB, rounds: int) -> tuple[Array, Array]:
    """Where the policy went ``(rounds, d)``, and when each round began and ended."""
    went, moments = np.empty((rounds, DIM)), np.empty(rounds + 1)
    for t in range(rounds):
        moments[t] = time.perf_counter()
        choice = policy.ask()
        x = went[t] = choice.x.numpy()
        reward, cost = world(x, t)
        policy.tell(choice, reward=reward, cost=cost)
        if (t + 1) % 50_000 == 0:
            say(f"  {t + 1:,} of {rounds:,} rounds")
    moments[rounds] = time.perf_counter()
    return went, moments


def by_hand(world: World, went: Array) -> tuple[float, float]:
    """Play the policy as the paper writes it; what ``went`` loses, seconds a round.

    The loss is the largest gap of a round, between the best value and that of the ray
    gone along or between the points on it. Rays tie, in the first round all of them,
    and rounding decides who goes along which: so ``went`` is followed.
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


def afresh(world: World, went: Array) -> tuple[Array, Array]:
    """Means ``(2, K)`` and deviations ``(K,)`` at the tips, from all rounds at once."""
    seen = went @ np.stack([world.reward, world.cost]).T + world.noise
    gram = RIDGE * np.eye(DIM) + went.T @ went
    means = world.tips @ np.linalg.solve(gram, went.T @ seen)
    norms = np.sqrt((world.tips * np.linalg.solve(gram, world.tips.T).T).sum(1))
    return means.T, NOISE * norms


def measure(sizes: Sizes) -> list[Row]:
    """All rows."""
    section = f"LC-LUCB, d = {DIM}, {RAYS} rays, {sizes.rounds:,} rounds, one trial"
    say(section)
    world, part = World(sizes.rounds), sizes.part
    policy = policy_of(world)
    went, moments = play(world, policy, sizes.rounds)
    lost, hand = by_hand(world, went[: sizes.hand])
    means, stds = afresh(world, went)
    mean, std = (v.numpy() for v in both_of(policy.posterior()))
    off_mean = float(np.abs(mean - means).max() / np.abs(means).max())
    off_std = float(np.abs(std / stds - 1).max())
    seconds = np.diff(moments)
    first, last = (float(np.median(v)) for v in (seconds[:part], seconds[-part:]))
    return [
        row_of(
            section,
            "all rounds",
            float(moments[-1] - moments[0]),
            checks=[
                check_of("estimates against a fresh solve", off_mean, 1e-8),
                check_of("widths against a fresh solve", off_std, 1e-8),
                check_of("largest true cost", float((went @ world.cost).max()), TAU),
            ],
        ),
        row_of(section, f"a round, the first {part:,}", first, ours=True),
        row_of(section, f"a round, the last {part:,}", last, ours=True),
        row_of(
            section,
            f"a round by hand in numpy, the first {sizes.hand:,}",
            hand,
            ratio=last / hand,
            checks=[check_of("value or way lost", lost, 1e-9)],
            note="ratio: ours to it",
        ),
    ]


def main(argv: Sequence[str] | None = None) -> None:
    """Run the script."""
    report_main(__file__, __doc__, measure, Sizes(), QUICK, argv)


if __name__ == "__main__":
    main()
