"""The linear programme of OPB, timed in argmax passes over the same arms.

    python benchmarks/speed/lp.py [--quick] [--json FILE]

Goal: one cost, 10^6 arms, one programme within 40 argmax passes' time, on random arms
and on arcs whose every arm is a vertex of the upper hull.

Each timing is the median of interleaved runs. Every distribution found is certified:
its duality gap, at multipliers solved for on its own arms, is at most 1e-12 of the
rewards' scale, and it keeps the limits. ``--quick`` takes a hundredth of the arms.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

import cbandit as cb
from benchmarks.common.report import Row, check_of, row_of, say
from benchmarks.common.report import main as report_main
from benchmarks.common.timing import clocked, medians

GOAL, LARGE = 40.0, 10**6  # argmax passes, over so many arms
CERTIFIED = 1e-12  # of the rewards' scale


@dataclass(frozen=True)
class Sizes:
    """How large it all is; the defaults are the full run's."""

    arms: int = 10**6
    each: int = 10**5  # arms of one of fifty trials
    instances: int = 9
    few: int = 3  # instances of fifty trials
    turns: int = 5


QUICK = Sizes(arms=10**4, each=10**3, instances=3, few=2)


def _circle(x: Tensor) -> Tensor:
    return (1 - (1 - x) ** 2).sqrt()


def _exponential(x: Tensor) -> Tensor:
    return 1 - torch.exp(-20 * x)


HULLS: dict[str, Callable[[Tensor], Tensor]] = {
    "circle": _circle,
    "exponential": _exponential,
    "square-root": torch.sqrt,
}


def instance(
    kind: str, size: int, costs: int, trials: int, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Rewards ``(trials, size)``, costs ``(trials, costs, size)``, limits.

    ``kind`` is ``random`` or a hull's name, whose arms come in random order;
    ``NAME sorted`` has them in the order of cost.
    """
    shape = (trials, costs, size)
    x = torch.rand(shape, generator=generator, dtype=torch.float64)
    x[..., 0] = 0.0  # an arm that costs nothing: every limit can be kept
    tau = torch.rand((trials, costs), generator=generator, dtype=torch.float64)
    tau = 0.05 + 0.5 * tau
    if kind == "random":
        u_r = torch.rand((trials, size), generator=generator, dtype=torch.float64)
        return u_r, x, tau
    name, _, order = kind.partition(" ")
    if order:
        x = x.sort(-1).values
    return HULLS[name](x).sum(1), x, tau


def certificate(
    u_r: Tensor, u_c: Tensor, tau: Tensor, best: cb.Distribution
) -> tuple[float, float]:
    """The duality gap, of the rewards' scale, and the worst violation, over all trials.

    By complementary slackness all arms played have one reduced reward
    ``u_r - lambda . u_c``, and a limit that is not reached has the multiplier 0. Any
    ``lambda >= 0`` bounds what can be earned, so the gap certifies the answer whatever
    rounding does to ``lambda``.
    """
    gap = violation = -float("inf")
    for k in range(len(u_r)):
        kept = best.probability[k] > 0
        arms, share = best.index[k][kept], best.probability[k][kept]
        reward, cost = u_r[k, arms], u_c[k][:, arms]
        slack = tau[k] - cost @ share
        tight = slack < 1e-9
        multiplier = torch.zeros_like(tau[k])
        if len(arms) > 1 and bool(tight.any()):
            # between the first arm and each other one
            steps = (cost[tight, 1:] - cost[tight, :1]).mT
            rise = (reward[1:] - reward[0]).unsqueeze(-1)
            found = torch.linalg.lstsq(steps, rise).solution.squeeze(-1)
            multiplier[tight] = found.clamp_min(0)
        bound = (u_r[k] - multiplier @ u_c[k]).max() + multiplier @ tau[k]
        worth = (reward * share).sum()
        gap = max(gap, float((bound - worth).abs() / u_r[k].abs().max()))
        violation = max(violation, float(-slack.min()))
    return gap, violation


def programme(
    kind: str, size: int, costs: int, trials: int, instances: int, turns: int
) -> Row:
    """A row: medians over fresh instances, the worst of them, the worst certificate."""
    say(f"{kind}, {size:,} arms, {costs} costs, {trials} trials")
    generator = torch.Generator().manual_seed(1)
    passes, solves, gaps, misses = [], [], [], []
    for _ in range(instances):
        u_r, u_c, tau = instance(kind, size, costs, trials, generator)
        solve = partial(cb.search.best_policy, u_r, u_c, tau)
        took = medians(
            {
                "argmax": clocked(partial(torch.argmax, u_r, -1)),
                "solve": clocked(solve),
            },
            turns,
            warm=1,
        )
        passes.append(took["argmax"])
        solves.append(took["solve"])
        gap, miss = certificate(u_r, u_c, tau, solve())
        gaps.append(gap)
        misses.append(miss)
    argmax, seconds = statistics.median(passes), statistics.median(solves)
    worst = max(s / argmax for s in solves)
    arms = f"{size:,} arms" if trials == 1 else f"{trials} trials of {size:,} arms"
    many = "one cost" if costs == 1 else f"{costs} costs"
    return row_of(
        f"the policy's linear programme, {many}, {arms}",
        kind,
        seconds,
        ours=True,
        ratio=seconds / argmax,
        goal=("<=", GOAL) if costs == 1 and size * trials >= LARGE else None,
        checks=[
            check_of("duality gap", max(gaps), CERTIFIED),
            check_of("violation", max(misses), CERTIFIED),
        ],
        argmax_ms=1e3 * argmax,
        worst_passes=worst,
        note=f"ratio to an argmax pass of {1e3 * argmax:.3f} ms, at worst {worst:.1f}",
    )


def measure(sizes: Sizes) -> list[Row]:
    """All rows."""
    kinds = ["random", *HULLS, *[f"{name} sorted" for name in HULLS]]
    forms = [(kind, sizes.arms, 1, 1, sizes.instances) for kind in kinds]
    forms += [
        (kind, sizes.arms, 3, 1, sizes.instances) for kind in ("random", "circle")
    ]
    forms += [(kind, sizes.each, 1, 50, sizes.few) for kind in ("random", "circle")]
    forms += [("random", sizes.each, 3, 50, sizes.few)]
    return [programme(*form, turns=sizes.turns) for form in forms]


def main(argv: Sequence[str] | None = None) -> None:
    """Run the script."""
    report_main(__file__, __doc__, measure, Sizes(), QUICK, argv)


if __name__ == "__main__":
    main()
