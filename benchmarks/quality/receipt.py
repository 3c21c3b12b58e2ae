"""How often the receipt's bounds fail, how wide they are, how soon its alarm sounds.

    python benchmarks/quality/receipt.py [--quick] [--json FILE]

Goal: in each of seven worlds the bounds of a certificate fail at any look in at most
5 % of runs, although costs are skewed or rare, a policy learns from them, the world
drifts and jumps, or answers come late. Their width is compared with that of the normal
interval that is right at one time alone. The alarm sounds in at most 5 % of runs that
keep their limit at the very edge; its delay is compared with that of a CUSUM that knows
the jump in advance.

A row shows the share of runs that failed, and the widths after 100, 1 000 and 10 000
rounds. Looks are taken at every addition to the sums until round 1 000, then every 1 %.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from benchmarks.common.report import Row, check_of, row_of, say
from benchmarks.common.report import main as report_main
from cbandit.receipt.alarm import Watch
from cbandit.receipt.bets import Array
from cbandit.receipt.certificate import certify
from cbandit.receipt.sums import Centre, Costs, Plays, Sums, Told

ALPHA, LIMIT = 0.05, 0.3
TOGETHER = 16  # rounds that are added to the sums together
MARKS = (100, 1_000, 10_000)
NORMAL = 1.96


@dataclass(frozen=True)
class Sizes:
    """How large it all is; the defaults are the full run's."""

    replays: int = 2_000
    rounds: int = 10_000
    late: int = 400  # replays with late answers
    alarms: int = 1_000


QUICK = Sizes(replays=60, rounds=400, late=30, alarms=60)


class World(NamedTuple):
    """Costs, drawn a round at a time.

    Args:
        name: what it is.
        kind: of the cost, see :class:`Costs`.
        ends: the range that is said, NaN where it is not.
        draw: takes a generator, the round and the sums of past costs ``(T,)``; returns
            costs and their means, ``(T,)`` each.
    """

    name: str
    kind: str
    ends: tuple[float, float]
    draw: Callable[[np.random.Generator, int, Array], tuple[Array, Array]]


def beta(rng: np.random.Generator, mean: Array, weight: float = 7.5) -> Array:
    """Return numbers in [0, 1] with these means."""
    return np.asarray(rng.beta(weight * mean, weight * (1 - mean)))


def learner(rng: np.random.Generator, t: int, past: Array) -> tuple[Array, Array]:
    """A policy that lowers its cost once it has paid more than its limit."""
    mean = np.where(past > LIMIT * max(t, 1), 0.15, 0.5)
    return beta(rng, mean), mean


def moving(rng: np.random.Generator, t: int, past: Array) -> tuple[Array, Array]:
    """A drift, and a jump at round 5 000."""
    mean = 0.25 + 0.1 * np.sin(t / 400) + 0.3 * (t >= 5_000)
    means = np.full(past.shape, mean)
    return beta(rng, means), means


def constant(
    value: float, draw: Callable[..., Array]
) -> Callable[..., tuple[Array, Array]]:
    """Return a world whose costs always have this mean."""

    def costs(rng: np.random.Generator, t: int, past: Array) -> tuple[Array, Array]:
        return draw(rng, past.shape), np.full(past.shape, value)

    return costs


def waves(rng: np.random.Generator, t: int, past: Array) -> tuple[Array, Array]:
    """Counts whose rate swings slowly."""
    mean = np.full(past.shape, 2 + 0.5 * np.sin(t / 300))
    return rng.poisson(mean).astype(float), mean


NONE = (float("nan"), float("nan"))
UNIT = (0.0, 1.0)
WORLDS = (
    World(
        "Beta, range said",
        "number",
        UNIT,
        constant(0.2, lambda r, s: r.beta(1.5, 6, s)),
    ),
    World(
        "lognormal, no range",
        "number",
        NONE,
        constant(float(np.exp(0.5)), lambda r, s: r.lognormal(0, 1, s)),
    ),
    World(
        "yes in 1 % of rounds",
        "binary",
        NONE,
        constant(0.01, lambda r, s: (r.random(s) < 0.01).astype(float)),
    ),
    World("counts of a moving rate", "count", NONE, waves),
    World("a policy that learns, range said", "number", UNIT, learner),
    World("a policy that learns, no range", "number", NONE, learner),
    World("drift and a jump, range said", "number", UNIT, moving),
)


def costs_of(world: World, trials: int) -> Costs:
    """Return what is known of a world's costs."""
    low, high = (np.array([end]) for end in world.ends)
    limit = {"binary": 0.02, "count": 2.2}.get(world.kind, LIMIT)
    return Costs(("c",), ("<=",), (world.kind,), low, high, np.full((trials, 1), limit))


def rounds_of(centre: Centre, n: int) -> Centre:
    """Return the centre of ``n`` rounds that share it."""
    mean, trust, informed, _ = centre
    return Centre(np.stack([mean] * n), np.stack([trust] * n), np.stack([informed] * n))


def looked(t: int) -> bool:
    """Return whether to look after round ``t``."""
    return t <= 1_000 or t % max(TOGETHER, t // 100 // TOGETHER * TOGETHER) == 0


def coverage(world: World, sizes: Sizes) -> Row:
    """Play a world, and see how often its certificate fails, and how wide it is."""
    say(f"  {world.name}")
    rng, trials = np.random.default_rng(0), sizes.replays
    costs, sums = costs_of(world, trials), Sums.none((trials, 1))
    past, truth, squares = (np.zeros(trials) for _ in range(3))
    missed = np.zeros(trials, dtype=bool)
    widths: dict[str, Any] = {}
    limits = np.stack([costs.first] * TOGETHER)
    came = np.ones((TOGETHER, trials, 1), dtype=bool)
    for start in range(0, sizes.rounds, TOGETHER):
        values = np.empty((TOGETHER, trials))
        for i in range(TOGETHER):
            values[i], mean = world.draw(rng, start + i, past)
            past, truth = past + values[i], truth + mean
            squares = squares + (values[i] - mean) ** 2
        centre = rounds_of(sums.next_centre(costs), TOGETHER)
        sums = sums.after_plays(costs, Plays(came * 1.0, limits, centre))
        told = Told(values[..., None], came, None, limits, centre)
        t, sums = start + TOGETHER, sums.after(costs, told)
        mark = next((m for m in MARKS if t - TOGETHER < m <= t), None)
        if not looked(t) and mark is None:
            continue
        bound = certify(sums, costs, ALPHA, trials=range(trials))["c"]
        missed |= (truth / t < bound.lower) | (truth / t > bound.upper)
        if mark is not None:
            usual = 2 * NORMAL * np.sqrt(squares) / t
            widths[f"width_{mark}"] = float(
                np.median((bound.upper - bound.lower) / usual)
            )
    share = float(missed.mean())
    return row_of(
        f"certificates, {trials} runs of {sizes.rounds} rounds",
        world.name,
        checks=[check_of("failed at any look", share, ALPHA)],
        columns="  ".join(
            [f"{100 * share:.1f} %", *map("{:.2f}".format, widths.values())]
        ),
        missed=share,
        **widths,
    )


def late(name: str, delay: Callable[..., Array], sizes: Sizes) -> list[Row]:
    """Play a world whose answers come late or never, by both ways to count them."""
    say(f"  late: {name}")
    rng, trials, n = np.random.default_rng(1), sizes.late, sizes.rounds
    world = World(name, "number", UNIT, lambda r, t, past: (past, past))
    costs, sums = costs_of(world, trials), Sums.none((trials, 1))
    values = rng.beta(1.5, 6, (n, trials, 1))
    due = np.arange(n)[:, None, None] + delay(rng, values)
    missed = {"worst": np.zeros(trials, bool), "told": np.zeros(trials, bool)}
    means, informed = np.empty_like(values), np.zeros(values.shape, dtype=bool)
    told_before = informed.copy()
    for start in range(0, n, TOGETHER):
        stop = start + TOGETHER
        rows = slice(start, stop)
        centre = sums.next_centre(costs)
        means[rows], informed[rows] = centre.mean, centre.informed
        limits = np.broadcast_to(costs.first, values[rows].shape)
        none = np.zeros(values[rows].shape, dtype=bool)
        at = Centre(means[rows], none, informed[rows])
        plays = Plays(np.ones(none.shape), limits, at)
        sums = sums.after_plays(costs, plays)
        came = (due[:stop] < stop) & ~told_before[:stop]
        some = np.flatnonzero(came.reshape(stop, -1).any(1))
        told_before[:stop] |= came
        if len(some):
            shape = (len(some), trials, 1)
            told = Told(
                values[some],
                came[some],
                None,
                np.broadcast_to(costs.first, shape),
                Centre(means[some], np.zeros(shape, dtype=bool), informed[some]),
            )
            sums = sums.after(costs, told)
        if looked(stop):
            for way, failed in missed.items():
                bound = certify(sums, costs, ALPHA, way, trials=range(trials))["c"]
                failed |= (bound.lower > 0.2) | (bound.upper < 0.2)
    return [
        row_of(
            f"late answers, {trials} runs of {n} rounds, true mean 0.2",
            f"{name}, outstanding={way!r}",
            checks=[check_of("failed", float(failed.mean()), ALPHA)] * (way == "worst"),
            columns=f"{100 * failed.mean():.1f} %",
            missed=float(failed.mean()),
        )
        for way, failed in missed.items()
    ]


def alarms(sizes: Sizes) -> list[Row]:
    """Watch runs at the very limit, and runs that break it half-way."""
    rng, trials, n = np.random.default_rng(2), sizes.alarms, min(sizes.rounds, 4_000)
    world = World("", "number", (0.0, float("nan")), WORLDS[0].draw)
    costs, rows = costs_of(world, trials), []
    for jump in (0.0, 0.1, 0.2):
        say(f"  alarm, a jump of {jump}")
        watch, cusum = Watch.start(costs, 0), np.zeros(trials)
        when, known = np.full(trials, np.inf), np.full(trials, np.inf)
        spread = float(np.sqrt(LIMIT * (1 - LIMIT) / 8.5))
        centre = rounds_of(Sums.none((trials, 1)).next_centre(costs), 1)
        came = np.ones((1, trials, 1), dtype=bool)
        for t in range(1, n + 1):
            mean = np.full(trials, LIMIT + jump * (t > n // 2))
            y = beta(rng, mean)
            told = Told(y[None, :, None], came, None, costs.first[None], centre)
            watch, sounds = watch.after(costs, told, t, 0.0, ALPHA)
            when = np.where(sounds[:, 0] & np.isinf(when), t, when)
            # a CUSUM of normal shifts that knows the jump, at the same false alarms
            z = (y - LIMIT) / spread
            cusum = np.maximum(cusum + jump / spread * (z - jump / spread / 2), 0)
            sound = cusum >= np.log(n / ALPHA)
            known = np.where(sound & np.isinf(known), t, known)
        late = when > n // 2
        false = float((~late).mean() if jump else np.isfinite(when).mean())
        delay = float(np.median(when[late] - n // 2)) if jump else float("nan")
        other = float(np.median(known[known > n // 2] - n // 2)) if jump else delay
        rows.append(
            row_of(
                f"alarms, {trials} runs of {n} rounds",
                f"jump of {jump} half-way" if jump else "at the very limit",
                checks=[check_of("false alarms", false, ALPHA)],
                ratio=delay / other if jump else None,
                goal=("<=", 1.7) if jump else None,
                columns=f"{100 * false:.1f} %" + f"  {delay:.0f} rounds" * (jump > 0),
                false=false,
                delay=delay,
                cusum=other,
            )
        )
    return rows


def soon(rng: np.random.Generator, values: Array) -> Array:
    """Answers that come fifteen rounds later on average."""
    return rng.geometric(1 / 15, values.shape).astype(np.float64)


def dear_late(rng: np.random.Generator, values: Array) -> Array:
    """The higher the cost, the later it is told."""
    return np.floor(20 + 400 * values)


def never(rng: np.random.Generator, values: Array) -> Array:
    """High costs are never told, as where a request times out."""
    return np.where(values > 0.5, 1e9, 0.0)


def measure(sizes: Sizes) -> list[Row]:
    """All worlds, ways to be late, and alarms."""
    rows = [coverage(world, sizes) for world in WORLDS]
    rows += late("fifteen rounds later on average", soon, sizes)
    rows += late("dear rounds later", dear_late, sizes)
    rows += late("what is above 0.5 never comes", never, sizes)
    return rows + alarms(sizes)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print and keep."""
    report_main(__file__, __doc__, measure, Sizes(), QUICK, argv)


if __name__ == "__main__":
    main()
