"""One wild reading in a run: rounds over the limit; and a level that truly moves.

    python benchmarks/wild_readings.py [--quick] [--json FILE]

CKB and RPOL with nothing set, under ``cb.GP.default``, on random functions over a grid
of 21 x 21 and over 200 random points. The cost's deviation is 0.7, the noise 0.05, and
two actions in five keep the limit. At a third of the rounds one reading is off by some
spreads, up or down, of the cost or of the reward. Counted is in how many of the last 60
rounds the true cost was over the limit by more than the noise's deviation. CKB keeps an
average, so that single rounds are over in a clean run too; its average is beside.

Then the cost's level moves by some spreads for good, and how many rounds pass until the
belief about the action played is nearer to the new level than to the old one.
"""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import cbandit as cb
from report import Row, check_of, row_of, say
from report import main as report_main

NOISE = 0.05
SPREAD = 0.7  # of the cost
LAST = 60  # rounds that are counted
ALLOWED = 6  # of these
FOLLOWED = 20  # rounds in which a move of the level is to be followed
POLICIES: dict[str, Any] = {"CKB": cb.CKB, "RPOL": cb.RPOL}


@dataclass(frozen=True)
class Sizes:
    """What is run."""

    rounds: int = 130
    seeds: range = range(4)
    sizes: tuple[float, ...] = (5.0, 50.0, 500.0, 5e3, 5e4)
    sets: tuple[str, ...] = ("grid", "points")
    rewards: tuple[float, ...] = (5e4,)
    moves: tuple[float, ...] = (5.0, 500.0)


QUICK = Sizes(seeds=range(2), sizes=(5.0, 5e3), sets=("grid",), rewards=())


class World:
    """Random functions over a set; readings with noise, and what is wrong with them.

    Args:
        kind: ``"grid"`` or ``"points"``.
        seed: of the functions and of the noise.
    """

    def __init__(self, kind: str, seed: int) -> None:
        self.draws = torch.Generator().manual_seed(seed)
        axis = torch.linspace(0, 1, 21, dtype=torch.float64)
        self.actions: Any = cb.ProductGrid([axis, axis])
        x = torch.cartesian_prod(axis, axis)
        if kind == "points":
            x = torch.rand(200, 2, generator=self.draws, dtype=torch.float64)
            self.actions = cb.Finite(x)
        first, second = self._function(x), self._function(x)
        self.reward = first + 0.6 * second
        self.cost = SPREAD * (second - second.quantile(0.4))

    def _function(self, x: Tensor) -> Tensor:
        draws, dtype = self.draws, torch.float64
        frequency = torch.randn(60, 2, generator=draws, dtype=dtype) / 0.35
        phase = 2 * torch.pi * torch.rand(60, generator=draws, dtype=dtype)
        weight = torch.randn(60, generator=draws, dtype=dtype)
        values: Tensor = torch.cos(x @ frequency.T + phase) @ weight
        return (values - values.mean()) / values.std()

    def read(self, index: int) -> tuple[float, float]:
        """Return a reading of the reward and one of the cost."""
        noise = NOISE * torch.randn(2, generator=self.draws, dtype=torch.float64)
        return float(self.reward[index] + noise[0]), float(self.cost[index] + noise[1])


def policy_for(name: str, world: World) -> Any:
    """Return a policy with nothing set."""
    belief = cb.GP.default(world.actions)
    return POLICIES[name](world.actions, reward=belief, costs=belief)


def wild(
    name: str, kind: str, seed: int, size: float, function: str, rounds: int
) -> tuple[int, float]:
    """Return how many of the last rounds were over, and the average of all costs."""
    world = World(kind, seed)
    policy, costs = policy_for(name, world), []
    for t in range(1, rounds + 1):
        choice = policy.ask()
        index = int(choice.index)
        reward, cost = world.read(index)
        if t == rounds // 3:
            reward += size if function == "reward" else 0.0
            cost += SPREAD * size if function == "cost" else 0.0
        policy.tell(choice, reward=reward, cost=cost)
        costs.append(float(world.cost[index]))
    over = sum(cost > NOISE for cost in costs[-LAST:])
    return over, statistics.mean(costs)


def moved(name: str, kind: str, seed: int, size: float, rounds: int) -> int:
    """Return the rounds after which a move of the level is believed, at most 40."""
    world = World(kind, seed)
    policy, shift = policy_for(name, world), SPREAD * size
    start = rounds // 3
    for t in range(1, start + 40):
        choice = policy.ask()
        index = int(choice.index)
        reward, cost = world.read(index)
        cost += shift if t >= start else 0.0
        policy.tell(choice, reward=reward, cost=cost)
        if t >= start:
            believed = float(policy.posterior().costs.mean[0, index])
            if believed - float(world.cost[index]) > shift / 2:
                return t - start + 1
    return 40


def measure(sizes: Sizes) -> list[Row]:
    """Return all rows."""
    warnings.simplefilter("ignore", UserWarning)
    rows = []
    for name in POLICIES:
        for kind in sizes.sets:
            say(f"{name}, {kind}")
            section = f"{name}, {kind}: rounds over of the last {LAST}, by seed"

            def row(what: str, runs: list[Any], clean: list[Any]) -> Row:
                over = [one[0] for one in runs]
                pairs = zip(runs, clean, strict=True)
                more = [one[0] - other[0] for one, other in pairs]
                mean = ", ".join(f"{one[1]:+.2f}" for one in runs)
                worst = max(more) if name == "CKB" else max(over)
                label = "beyond the clean run's" if name == "CKB" else "over"
                columns = f"{', '.join(map(str, over)):18} average cost {mean}"
                check = check_of(f"rounds {label}", worst, ALLOWED)
                return row_of(section, what, columns=columns, checks=[check])

            def runs_of(size: float, function: str) -> list[Any]:
                return [
                    wild(name, kind, seed, size, function, sizes.rounds)
                    for seed in sizes.seeds
                ]

            clean = runs_of(0.0, "cost")
            rows.append(row("clean", clean, clean))
            both = {"cost": sizes.sizes, "reward": sizes.rewards}
            for function, several in both.items():
                for sign in (1, -1):
                    for size in several:
                        runs = runs_of(sign * size, function)
                        what = f"{function} off by {sign * size:+g} spreads"
                        rows.append(row(what, runs, clean))
            section = f"{name}, {kind}: rounds until a move is believed, by seed"
            for size in sizes.moves:
                took = [
                    moved(name, kind, seed, size, sizes.rounds) for seed in sizes.seeds
                ]
                check = check_of("rounds", max(took), FOLLOWED)
                columns = ", ".join(map(str, took))
                what = f"the cost's level moves by {size:+g} spreads"
                rows.append(row_of(section, what, columns=columns, checks=[check]))
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    """Run the script."""
    report_main(__file__, __doc__, measure, Sizes(), QUICK, argv)


if __name__ == "__main__":
    main()
