"""Streams of contexts: what is lost against the best policy, and whether limits hold.

    python benchmarks/streams.py [--quick] [--json FILE]

*A linear stream.* Four choices; a context is five normal numbers; reward and cost are
linear in it for each choice, and told with noise. The best linear policy takes the
choice of greatest ``f - price c``, both of them true, at the price at which it spends
the limit on average (found on 400 000 contexts). Two kinds of regret are of ``CKB``
with ``cb.GP.linear``, summed over rounds, noise left out, means of the trials:

* of reward: what the best policy gets on the same contexts, less what CKB gets;
* priced: the same of ``f - price c``, which no round can make smaller. The slope is of
  its logarithm over that of the round, from a hundredth of the rounds on: 0.5 is growth
  like a square root.

The soft violation is the sum of costs above the limits, learning included, over the
sum of the limits.

*A tuner.* Two settings of a process on a box; its best setting and its latency depend
on the load of the day, which is shown before each choice. ``RPOL`` with ``GP.default``
and the limit on the latency of each round, knowing the load or ignoring it. Counted are
the rounds of the second half above the limit, and the mean throughput there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import cbandit as cb
from report import Row, check_of, row_of, say
from report import main as report_main

CHOICES, NUMBERS, NOISE, LIMIT = 4, 5, 0.3, 1.0
SHARE = 0.005  # of the total limit, by which the stream may exceed it
LATENCY = 0.6


@dataclass(frozen=True)
class Sizes:
    """How long it all is; the defaults are the full run's."""

    rounds: int = 100_000
    trials: int = 8
    tuned: int = 80
    seeds: int = 5


QUICK = Sizes(rounds=2000, trials=4, tuned=24, seeds=2)


@dataclass(frozen=True)
class Stream:
    """The true weights of reward and cost, ``(2, K, 1 + d)``, and the best price."""

    weights: Tensor
    price: float

    @classmethod
    def of(cls, seed: int) -> Stream:
        """Return a stream, with the price at which its best policy spends the limit."""
        generator = torch.Generator().manual_seed(seed)
        weights = torch.randn(2, CHOICES, 1 + NUMBERS, generator=generator).double() / 3
        level = torch.linspace(0.5, 2.0, CHOICES).double()  # what pays more costs more
        weights[:, :, 0] = level
        z = torch.randn(400_000, NUMBERS, generator=generator).double()
        free, low, high = cls(weights, 0.0), 0.0, 16.0
        f, c = free.values(z)
        for _ in range(60):
            price = (low + high) / 2
            best = (f - price * c).argmax(-1, keepdim=True)
            if float(c.gather(-1, best).mean()) > LIMIT:
                low = price
            else:
                high = price
        return cls(weights, high)

    def values(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Return rewards and costs of all choices, ``(n, K)``, at ``z (n, d)``."""
        h = torch.cat([torch.ones_like(z[:, :1]), z], -1)
        f, c = (h @ weights.mT for weights in self.weights)
        return f, c


def streamed(sizes: Sizes) -> list[Row]:
    """Return the rows of the linear stream."""
    stream = Stream.of(0)
    space = cb.Space(
        choice=cb.Category(*map(str, range(CHOICES))), state=cb.Context(NUMBERS)
    )
    gp = cb.GP.linear(space)
    policy = cb.CKB(
        space, reward=gp, costs=gp, thresholds=LIMIT, trials=sizes.trials, seed=0
    )
    generator = torch.Generator().manual_seed(1)
    shape = sizes.trials, NUMBERS
    lost, priced, excess = torch.zeros(3, sizes.trials).double()
    points = torch.logspace(math.log10(sizes.rounds) - 2, math.log10(sizes.rounds), 25)
    wanted, marks = set(points.round().long().tolist()), []
    for t in range(1, sizes.rounds + 1):
        z = torch.randn(shape, generator=generator).double()
        noise = NOISE * torch.randn(2, sizes.trials, generator=generator).double()
        choice: Any = policy.ask(context=z)
        f, c = stream.values(z)
        score = f - stream.price * c
        played: Any = choice.index
        at = torch.stack([score.argmax(-1), played], -1)
        rewards, costs, scores = (v.gather(-1, at) for v in (f, c, score))
        told = costs[:, 1] + noise[1]
        policy.tell(choice, reward=rewards[:, 1] + noise[0], cost=told)
        lost = lost + (rewards[:, 0] - rewards[:, 1])
        priced = priced + (scores[:, 0] - scores[:, 1])
        excess = excess + costs[:, 1] - LIMIT
        if t in wanted:
            marks.append((t, *(float(v.mean()) for v in (lost, priced, excess))))
        if t % 10_000 == 0:
            say(f"stream: {t} rounds, priced regret {float(priced.mean()):.1f}")
    x, y = (torch.tensor([mark[i] for mark in marks]).double().log() for i in (0, 2))
    slope = float(
        ((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum()
    )
    over = float(excess.mean()) / (LIMIT * sizes.rounds)
    worst = float(excess.max()) / (LIMIT * sizes.rounds)
    section = f"a linear stream, {sizes.rounds:,} rounds, {sizes.trials} trials"
    # a short run is mostly learning
    checks = [check_of("slope", slope, 0.5), check_of("violation", over, SHARE)]
    rows = [
        row_of(
            section,
            f"after {t:,} rounds: regret of reward, priced; soft violation",
            columns=f"{lost:10.1f} {priced:10.1f} {max(excess, 0) / (LIMIT * t):10.4%}",
        )
        for t, lost, priced, excess in marks[:: len(marks) // 4]
    ]
    last = row_of(
        section,
        "slope of the priced regret; soft violation, of the mean and the worst trial",
        columns=f"{slope:6.3f} {max(over, 0):10.4%} {max(worst, 0):10.4%}",
        checks=checks if sizes.rounds >= 50_000 else (),
        marks=marks,
    )
    return [*rows, last]


def process(x: Tensor, y: Tensor, load: Tensor) -> tuple[Tensor, Tensor]:
    """Return throughput and latency of two settings under a load, all in 0 to 1."""
    best = 0.9 - 0.6 * load  # the more load, the smaller batches should be
    throughput = 1 + load - 2 * (x - best) ** 2 - 0.5 * (y - 0.5) ** 2
    latency = 0.2 + 0.5 * load * x + 0.4 * x**2 + 0.1 * y
    return throughput, latency


def tuned(knowing: bool, sizes: Sizes) -> tuple[Tensor, Tensor]:
    """Return throughput and latency of each round, ``(seeds, rounds)``."""
    knobs: dict[str, Any] = {"batch": cb.Float(0, 1), "threads": cb.Float(0, 1)}
    shown = {"load": cb.Context(cb.Float(0, 1))} if knowing else {}
    space = cb.Space(**knobs, **shown)
    gp = cb.GP.default(space)
    goal: dict[str, Any] = {"reward": gp, "costs": {"latency": gp}}
    policy = cb.RPOL(
        space,
        **goal,
        thresholds={"latency": f"<= {LATENCY}"},
        trials=sizes.seeds,
        seed=0,
        design=6,
    )
    generator = torch.Generator().manual_seed(2)
    out = []
    for _ in range(sizes.tuned):
        load = torch.rand(sizes.seeds, generator=generator).double()
        noise = 0.02 * torch.randn(2, sizes.seeds, generator=generator).double()
        choice = policy.ask(context={"load": load}) if knowing else policy.ask()
        settings = [(p["batch"], p["threads"]) for p in choice.params]
        x, y = torch.tensor(settings).double().unbind(-1)
        reward, cost = process(x, y, load)
        policy.tell(choice, reward=reward + noise[0], cost=cost + noise[1])
        out.append(torch.stack([reward, cost]))
    throughput, latency = torch.stack(out, -1)
    return throughput, latency


def tuners(sizes: Sizes) -> list[Row]:
    """Return the rows of the tuner."""
    rows = []
    for knowing in (True, False):
        who = "knows the load" if knowing else "ignores the load"
        say(f"tuner that {who}")
        throughput, latency = (v[:, sizes.tuned // 2 :] for v in tuned(knowing, sizes))
        above = (latency > LATENCY).double().mean()
        most = (latency - LATENCY).clamp_min(0).mean() / LATENCY
        rows.append(
            row_of(
                f"a tuner, {sizes.tuned} rounds, {sizes.seeds} seeds, from half on",
                f"{who}: throughput; rounds above the limit; mean excess",
                columns=f"{float(throughput.mean()):8.4f} {float(above):8.1%} "
                f"{float(most):8.2%}",
            )
        )
    return rows


def measure(sizes: Sizes) -> list[Row]:
    """Return all rows."""
    return [*tuners(sizes), *streamed(sizes)]


def main(argv: Sequence[str] | None = None) -> None:
    """Run the script."""
    report_main(__file__, __doc__, measure, Sizes(), QUICK, argv)


if __name__ == "__main__":
    main()
