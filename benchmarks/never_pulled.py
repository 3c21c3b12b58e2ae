"""OPB on arms that were never pulled, beside a rule that knows the best arm.

    python benchmarks/never_pulled.py [--quick] [--json FILE]

Three arms with rewards 0, 0.5, 0.9 and costs 0, 0.2, 0.2; the first is safe, the limit
is 0.2, and all that is stated of costs is that they are at most 1. Noise is Gaussian.
The rule beside it plays as much of the best arm as the same bounds on its cost allow,
and the safe arm for the rest: its regret is the price of learning the cost alone.

Goals: policy regret is at most 1.5 times the other rule's on average, so the best arm
is not left aside; in at most a tenth of the runs is an expected cost ever above the
limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

import cbandit as cb
from report import Row, check_of, row_of, say
from report import main as report_main

MEANS = torch.tensor([[0.0, 0.5, 0.9], [0.0, 0.2, 0.2]], dtype=torch.float64)
LIMIT, DELTA = 0.2, 0.1
OFTEN, TIMES = 200, 1.5  # pulls of the best arm; regret beside the other rule's


@dataclass(frozen=True)
class Sizes:
    """How large it all is; the defaults are the full run's."""

    rounds: int = 1500
    seeds: tuple[int, ...] = (0, 1, 2)
    runs: int = 100  # of each seed
    noises: tuple[float, ...] = (0.02, 0.05, 0.1, 0.5, 1.0)


QUICK = Sizes(seeds=(0,), runs=10, noises=(0.02, 0.5))


def played(
    noise: float, seed: int, sizes: Sizes, among: list[int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return pulls ``(runs, 3)``, policy regret, and the worst excess, ``(runs,)``."""
    belief = cb.Counts(subgaussian=noise, means=(0.0, 1.0))
    policy = cb.OPB(
        cb.Finite(torch.arange(3.0).double().unsqueeze(-1)),
        reward=belief,
        costs=belief,
        safe=cb.Safe(index=0, reward=0.0, cost=0.0),
        thresholds=LIMIT,
        delta=DELTA,
        horizon=sizes.rounds,
        trials=sizes.runs,
        seed=seed,
    )
    generator = torch.Generator().manual_seed(seed)
    optimum = float(MEANS[0].max())
    pulls = torch.zeros(sizes.runs, 3, dtype=torch.float64)
    regret = torch.zeros(sizes.runs, dtype=torch.float64)
    excess = torch.full_like(regret, -torch.inf)
    for _ in range(sizes.rounds):
        choice = policy.ask(among=among)
        pi, index = choice.distribution, choice.index
        if pi is None or index is None:
            raise TypeError("OPB's choices have distributions over numbered arms")
        expected = (MEANS[:, pi.index] * pi.probability).sum(-1)
        regret += optimum - expected[0]
        excess = torch.maximum(excess, expected[1] - LIMIT)
        pulls += torch.nn.functional.one_hot(index, 3)
        draw = torch.randn(2, sizes.runs, generator=generator, dtype=torch.float64)
        reward, cost = MEANS[:, index] + noise * draw
        policy.tell(choice, reward=reward, cost=cost)
    return pulls, regret, excess


def measure(sizes: Sizes) -> list[Row]:
    """All rows, one a noise and seed."""
    rows = []
    for noise in sizes.noises:
        for seed in sizes.seeds:
            say(f"R = {noise:g}, seed {seed}")
            pulls, regret, excess = played(noise, seed, sizes, [0, 1, 2])
            _, other, _ = played(noise, seed, sizes, [0, 2])
            best, over = pulls[:, 2], int((excess > 1e-12).sum())
            often = float((best >= OFTEN).double().mean())
            times = float(regret.mean() / other.mean())
            rows.append(
                row_of(
                    f"R = {noise:g}, {sizes.rounds} rounds, {sizes.runs} runs a seed",
                    f"seed {seed}",
                    columns=f"regret {regret.mean():.1f} (at most {regret.max():.1f}), "
                    f"the other rule's {other.mean():.1f}: {times:.2f} x",
                    note=f"best arm {best.min():.0f} to {best.max():.0f} times, "
                    f"{OFTEN} or more in {often:.0%} of runs; above the limit "
                    f"{over}/{sizes.runs}",
                    checks=[
                        check_of("regret beside the other rule's", times, TIMES),
                        check_of("share above the limit", over / sizes.runs, DELTA),
                    ],
                    regret=float(regret.mean()),
                    worst=float(regret.max()),
                    other=float(other.mean()),
                    least=int(best.min()),
                    often=often,
                    over=over,
                )
            )
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    """Run the script."""
    report_main(__file__, __doc__, measure, Sizes(), QUICK, argv)


if __name__ == "__main__":
    main()
