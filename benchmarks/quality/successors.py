"""What came after the papers, beside ours: regret and violation on both's problems.

    python benchmarks/quality/successors.py [--quick] [--json FILE]

*Linear*: LC-LUCB, and from later papers ROFUL, S-COLTS and DOSS (Gangrade, Chen and
Saligrama 2024: ROFUL without the way back, as if costs needed no data; it exceeds
limits while they are learned).
The problems are those of LC-LUCB's paper, and those of ROFUL's: two dimensions, ten
directions, coefficients uniform on [-1, 1], limits large or small, `R = 0.1`.

*Without a norm*: LoSBO, and SafeOpt by a width of 2, as it is mostly run, and by the
theory's widths with the true norm, on the functions of LoSBO's paper: 501 points, norm
10, an RBF kernel, the limit a fifth of a deviation below the average, noise uniform
within 0.01, 20 rounds. LoSBO is told 1.1 times the steepest slope, and 0.02. The
belief's lengthscale is the true one, or four times as long.

Printed per row, as mean +- standard error over trials: regret; regret less that of the
section's first row, paired by trial; the excess over limits, summed; runs that exceeded
one. Of functions, regret is a round's, and the last column how far the safe action of
greatest mean is below the optimum in the end. The check: of policies that promise to
keep limits no more runs broke one than explained by what they state (99.9 %).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import cbandit as cb
from benchmarks.common.case import rbf
from benchmarks.common.report import Row, say
from benchmarks.common.report import main as report_main
from benchmarks.quality.guarantees import SLACK, Draws, line, row

# of the kernel problem: noise within E, and the variance that the belief has for it
E, NOISE, NORM, LENGTH = 0.01, 0.01, 10.0, 0.2 / math.sqrt(2)
BASE, STARS = 10, 10


@dataclass(frozen=True)
class Sizes:
    """How large it all is; the defaults are the full run's."""

    horizon: int = 10_000
    trials: int = 10
    stars: int = 30  # of ROFUL's problems
    dims: tuple[int, ...] = (3, 5, 10)
    noises: tuple[float, ...] = (0.01, 1.0)
    functions: int = 50
    points: int = 501
    rounds: int = 20


QUICK = Sizes(60, 3, 3, (3,), (0.01,), 6, 61, 6)


def measured(
    section: str,
    what: str,
    columns: dict[str, Tensor],
    broken: Tensor,
    stated: float | None,
) -> Row:
    """A row of columns, ``(T,)`` each, and of the runs that broke a limit."""
    shown = {name: (float(v.mean()), _error(v)) for name, v in columns.items()}
    words = "  ".join(f"{name} {_number(*each)}" for name, each in shown.items())
    one = row(section, what, broken, stated)
    one["columns"] = f"{words}  broke {one['seen']}/{one['runs']}"
    return one | {"figures": shown}


def _error(values: Tensor) -> float:
    return float(values.std() / math.sqrt(len(values)))


def _number(mean: float, sem: float) -> str:
    if sem < 1e-9:  # rounding
        return f"{mean:.3g}"
    digits = max(0, 1 - math.floor(math.log10(sem)))
    return f"{mean:.{digits}f} +- {sem:.{digits}f}"


# -- linear functions ------------------------------------------------------------------


def roful_problem(
    trials: int, low: float, high: float, seed: int = 0
) -> cb.problems.LinearProblem:
    """Return the experiments of Hutchinson and others: limits from ``low`` to ``high``.

    A trial's directions are drawn again until one of them has a positive reward.
    """
    draws = Draws(seed)
    theta = 2 * draws.uniform(trials, 2) - 1
    mu = 2 * draws.uniform(trials, 1, 2) - 1
    tau = low + (high - low) * draws.uniform(trials, 1)
    many = draws.normal(trials, 20, STARS, 2)
    many = many / many.norm(dim=-1, keepdim=True)
    some = (many @ theta[:, None, :, None]).squeeze(-1).amax(-1) > 0
    tips = many[torch.arange(trials), some.long().argmax(-1)]
    star = cb.Star(torch.zeros(2, dtype=torch.float64), tips)
    return cb.problems.LinearProblem(star, theta, mu, 0.01, tau, trials)


LinearCase = tuple[str, Any, float, float, float]


def linear_cases(sizes: Sizes) -> list[LinearCase]:
    """Return LC-LUCB's problems and ROFUL's, with their noise, ``S`` and ``delta``."""
    ours: list[LinearCase] = []
    for d in sizes.dims:
        for noise in sizes.noises:
            problem: Any = cb.problems.pacchiano_cyclic(d, 0.5, noise, sizes.trials)
            what = f"cyclic set, d = {d}, tau = 0.5, R = {math.sqrt(noise):g}"
            ours.append((what, problem, noise, 1.0, 0.1))
    for noise in sizes.noises:
        problem = cb.problems.pacchiano_sphere(5, sizes.trials, noise=noise)
        what = f"sphere, d = 5, R = {math.sqrt(noise):g}"
        ours.append((what, problem, noise, 1.0, 0.1))
    for kind, low, high in ("large", 0.25, 1.0), ("small", 0.05, 0.25):
        problem = roful_problem(sizes.stars, low, high)
        what = f"ten directions, {kind} limits ({low:g} to {high:g})"
        ours.append((what, problem, 0.01, math.sqrt(2), 0.005))
    return ours


def linear_rows(sizes: Sizes, case: LinearCase) -> Iterator[Row]:
    """Yield rows of linear policies on a problem."""
    what, problem, noise, norm, delta = case
    r, d = math.sqrt(noise), problem.actions.dim
    linear = cb.Linear(r, ridge=1.0, norm=norm, length=1.0)
    free = cb.Linear(r, ridge=1.0, norm=0.0, length=1.0)

    def width(t: int) -> float:
        return cb.confidence.linear_width(t, d, r, 1.0, norm, 1.0, delta)

    roful = cb.baselines.ROFUL
    makers: dict[str, tuple[Any, dict[str, Any]]] = {
        "LC-LUCB": (cb.LCLUCB, {"costs": linear}),
        "ROFUL": (roful, {"costs": linear}),
        "S-COLTS": (cb.baselines.SCOLTS, {"costs": linear}),
        # costs of norm 0 let one go all the way
        "DOSS": (roful, {"costs": free, "beta": width}),
    }
    first: Tensor | None = None
    for name, (kind, more) in makers.items():
        say(f"{what}: {name}")
        policy = kind(
            problem.actions,
            reward=linear,
            safe=cb.Safe(x=problem.actions.center),
            thresholds=problem.thresholds,
            delta=delta,
            trials=len(problem.trials),
            **more,
        )
        run = cb.simulate(policy, problem, sizes.horizon, progress=False)
        regret, excess = run.regret[:, -1], run.hard_violation[:, -1]
        first = regret if first is None else first
        columns = {"regret": regret, "less": regret - first, "excess": excess}
        stated = None if name == "DOSS" else delta
        yield measured(what, name, columns, excess > SLACK, stated)


# -- functions of a kernel, safety without a norm --------------------------------------


def kernel_functions(sizes: Sizes, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return functions ``(T, N)`` of norm 10 on [0, 1], and a safe action of each."""
    draws, x = Draws(seed), line(sizes.points)
    base = draws.normal(sizes.functions, BASE, 1)
    weight = draws.normal(sizes.functions, BASE)
    inner = torch.exp(-0.5 * ((base - base.mT) / LENGTH).square())
    square = (weight.unsqueeze(1) @ inner @ weight.unsqueeze(-1)).flatten()
    weight = weight * (NORM / square.sqrt()).unsqueeze(-1)
    f = torch.exp(-0.5 * ((x - base.mT) / LENGTH).square()) @ weight.unsqueeze(-1)
    f = f.squeeze(-1)
    limit = f.mean(-1, keepdim=True) - 0.2 * f.std(-1, keepdim=True)
    f = f - limit  # safe is what is not below 0
    # the stretch of safe actions around the best one; where one begins is drawn there
    place = torch.arange(f.shape[-1])
    gap, best = f <= 0, f.argmax(-1, keepdim=True)
    left = torch.where(gap & (place < best), place, -1).amax(-1, keepdim=True)
    right = torch.where(gap & (place > best), place, len(place)).amin(-1, keepdim=True)
    fit = (f > 2 * E) & (place > left) & (place < right)
    chance = draws.uniform(*f.shape).masked_fill(~fit, -1.0)
    return f, chance.argmax(-1)


def kernel_rows(sizes: Sizes, factor: int) -> Iterator[Row]:
    """Yield rows of LoSBO and SafeOpt with ``factor`` times the true lengthscale."""
    f, safe = kernel_functions(sizes)
    steep = (f.diff(dim=-1).abs() * (sizes.points - 1)).amax(-1, keepdim=True)
    told = {"lipschitz": 1.1 * steep, "noise_bound": 2 * E}
    widths = {
        form: cb.UCB(cb.RKHS(NORM, E, delta=0.01, form=form))
        for form in ("any-lam", "tight")
    }
    makers: list[tuple[str, Any, dict[str, Any], bool]] = [
        ("SafeOpt, width 2", cb.baselines.SafeOpt, {}, False),
        *(
            (f"SafeOpt, RKHS {form}", cb.baselines.SafeOpt, {"explore": ucb}, True)
            for form, ucb in widths.items()
        ),
        ("LoSBO, width 2", cb.baselines.LoSBO, told, True),
    ]
    section = "functions, lengthscale " + ("as true" if factor == 1 else "x 4")
    gp, first = cb.GP(rbf(factor * LENGTH), noise=NOISE), None
    for name, kind, more, safety in makers:
        say(f"{section}: {name}")
        policy = kind(
            cb.Finite(line(sizes.points)),
            reward=gp,
            costs=gp,
            safe=safe,
            trials=sizes.functions,
            **more,
        )
        regret, excess, last = _kernel_run(policy, f, safe, sizes.rounds)
        first = regret if first is None else first
        columns = {"regret": regret, "less": regret - first, "excess": excess}
        # a width of the theory's states nothing under a wrong kernel
        sure = safety and (factor == 1 or kind is cb.baselines.LoSBO)
        stated = 0.01 if sure else None
        columns["left"] = last
        yield measured(section, name, columns, excess > SLACK, stated)


def _kernel_run(
    policy: Any, f: Tensor, safe: Tensor, rounds: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return a round's regret, the excess, what the last best mean lacks, ``(T,)``."""
    draws, best = Draws(1), f.amax(-1)

    def read(index: Tensor) -> tuple[Tensor, Tensor]:
        value = f.gather(-1, index.unsqueeze(-1)).squeeze(-1)
        return value, value + E * (2 * draws.uniform(len(f)) - 1)

    y = read(safe)[1].unsqueeze(-1)
    policy.observe(index=safe.unsqueeze(-1), reward=y, cost=-y)
    regret = excess = torch.zeros(len(f), dtype=torch.float64)
    for _ in range(rounds):
        choice = policy.ask()
        value, y = read(choice.index)
        policy.tell(choice, reward=y, cost=-y)
        regret = regret + (best - value) / rounds
        excess = excess + (-value).clamp_min(0)
    policy.ask()  # the safe set after the last reading
    mean = policy.posterior().reward.mean.masked_fill(~policy.safe, -math.inf)
    return regret, excess, best - read(mean.argmax(-1))[0]


def measure(sizes: Sizes) -> list[Row]:
    """All rows."""
    linear = [one for case in linear_cases(sizes) for one in linear_rows(sizes, case)]
    return [*linear, *kernel_rows(sizes, 1), *kernel_rows(sizes, 4)]


def main(argv: Sequence[str] | None = None) -> None:
    """Run the script."""
    report_main(__file__, __doc__, measure, Sizes(), QUICK, argv)


if __name__ == "__main__":
    main()
