"""How often the intervals of `cbandit compare` hold the true mean difference.

    python benchmarks/quality/intervals.py [--quick] [--json FILE]

Samples of 6 to 50 differences are drawn from laws of a known mean: normal, lognormal
(exp of a standard normal, of skewness 6), Laplace, and two of counts such as rounds in
violation: Poisson of mean 4 less Poisson of mean 2, and 0.5 less 0.1, in which most
trials are equal. An interval of 95 % ought to hold that mean in 95 % of the samples;
Student's is counted beside it.

Goals: between 93 and 97 % for normal differences, at least 88 % for lognormal ones,
at least 90 % for Laplace's and for rare counts, at least 92 % for the other counts. A
sample of equal differences has a point for its interval, which counts as a miss.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from scipy import stats
from torch import Tensor

from benchmarks.common.internals import interval
from benchmarks.common.report import Row, check_of, row_of, say
from benchmarks.common.report import main as report_main


@dataclass(frozen=True)
class Sizes:
    """How large it all is; the defaults are the full run's."""

    samples: int = 2000
    trials: tuple[int, ...] = (6, 8, 10, 15, 20, 30, 50)


QUICK = Sizes(samples=200, trials=(6, 20))
LEAST = {
    "normal": 0.93,
    "lognormal": 0.88,
    "Laplace": 0.90,
    "counts": 0.92,
    "rare counts": 0.90,
}
RATES = {"counts": (4.0, 2.0), "rare counts": (0.5, 0.1)}
MOST = 0.97  # for the normal law, on which an interval has no excuse


def drawn(law: str, sizes: Sizes, n: int) -> tuple[Tensor, float]:
    """Return differences ``(samples, n)`` of a law, and their true mean."""
    generator = torch.Generator().manual_seed(n)
    shape = (sizes.samples, n)
    if law in RATES:
        first, second = (
            torch.poisson(
                torch.full(shape, rate, dtype=torch.float64), generator=generator
            )
            for rate in RATES[law]
        )
        return first - second, RATES[law][0] - RATES[law][1]
    if law == "Laplace":
        u = torch.rand(shape, generator=generator, dtype=torch.float64) - 0.5
        return -u.sign() * torch.log1p(-2 * u.abs()), 0.0
    z = torch.randn(shape, generator=generator, dtype=torch.float64)
    return (z, 0.0) if law == "normal" else (z.exp(), math.exp(0.5))


def measure(sizes: Sizes) -> list[Row]:
    """All rows, one a law and number of trials."""
    rows = []
    # coverage measured on few samples is off by its own error
    error = 3 * math.sqrt(0.05 * 0.95 / sizes.samples) if sizes.samples < 2000 else 0.0
    for law, least in LEAST.items():
        for n in sizes.trials:
            say(f"{law}, {n} trials")
            values, mean = drawn(law, sizes, n)
            ends = torch.tensor([interval(row.numpy()) for row in values])
            held = float(((ends[:, 1] <= mean) & (mean <= ends[:, 2])).double().mean())
            width = values.std(-1) / math.sqrt(n) * stats.t.ppf(0.975, n - 1)
            student = float(((values.mean(-1) - mean).abs() <= width).double().mean())
            wide = float(((ends[:, 2] - ends[:, 1]) / (2 * width)).nanmedian())
            checks = [check_of("misses", 1 - held, 1 - least + error)]
            if law == "normal":
                checks.append(check_of("coverage", held, MOST + error))
            rows.append(
                row_of(
                    f"{law}, {sizes.samples} samples",
                    f"{n} trials",
                    columns=f"covers {held:.1%}; Student's {student:.1%}, "
                    f"at the median {wide:.2f} x as wide",
                    checks=checks,
                    coverage=held,
                    student=student,
                    width=wide,
                )
            )
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    """Run the script."""
    report_main(__file__, __doc__, measure, Sizes(), QUICK, argv)


if __name__ == "__main__":
    main()
