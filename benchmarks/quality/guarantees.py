"""Stated and seen: how often confidence bands fail and limits are broken.

    python benchmarks/quality/guarantees.py [--quick] [--json FILE]

Goal: no width fails more often than it states, and no policy that promises to keep its
limits in every round breaks them in more runs than it states. A run fails if a band
leaves its function once, at any action of the grid, or one round is above a limit.

*Bands*: functions of RKHS norm 1 under an RBF kernel on a line, Gaussian noise of the
belief's variance; linear functions; independent arms. Delayed bands are about ``rho f``
(``rho`` is the share of feedback that comes in time) with what is missing counted as 0.
*Limits*: what is played or, of randomised policies, its expected cost.

Printed per row: the share of failing runs that is stated, how many of how many runs
failed, and the largest rate that explains them (Clopper and Pearson, 95 %); under
limits also the share of rounds that left the safe action. The check:
the least rate that explains them (99.9 %) is not above what is stated. Rows called
heuristic state nothing.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from scipy.stats import beta as beta_law
from torch import Tensor

import cbandit as cb
from benchmarks.common.case import rbf
from benchmarks.common.report import Row, check_of, row_of, say
from benchmarks.common.report import main as report_main

DELTA = 0.1
WINDOW, LATE = 20, 10  # of feedback that is delayed, or forgotten
SLACK = 1e-9


@dataclass(frozen=True)
class Sizes:
    """How large it all is; the defaults are the full run's."""

    runs: int = 300
    few: int = 30  # runs of policies that solve programmes one by one
    rounds: int = 100
    points: int = 60
    noises: tuple[float, ...] = (0.001, 0.01, 1.0)
    lengths: tuple[float, ...] = (0.05, 0.2, 2.0)
    costs: tuple[int, ...] = (1, 3)


QUICK = Sizes(12, 4, 12, 20, (0.01, 1.0), (0.2,), (1, 3))


def row(
    section: str,
    what: str,
    failed: Tensor,
    stated: float | None,
    away: float | None = None,
) -> Row:
    """A line of the result.

    Args:
        section: the heading.
        what: what was tried.
        failed: a verdict of every run.
        stated: the rate that is stated; ``None``: none is.
        away: the share of rounds in which the safe action was left.
    """
    k, n = int(failed.sum()), failed.numel()
    most = 1.0 if k == n else float(beta_law.ppf(0.95, k + 1, n - k))
    least = 0.0 if k == 0 else float(beta_law.ppf(0.001, k, n - k + 1))
    checks = [] if stated is None else [check_of("explained by", least, stated)]
    words = "heuristic" if stated is None else f"stated {stated:g}"
    columns = f"{words:<13}seen {k:>3}/{n:<4} at most {most:.3f}"
    if away is not None:
        columns += f"   away {away:.0%}"
    return row_of(
        section,
        what,
        checks=checks,
        columns=columns,
        stated=stated,
        seen=k,
        runs=n,
        most=most,
        away=away,
    )


class Draws:
    """Random numbers of a case; the same seed gives the same ones."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self._generator, dtype=torch.float64)

    def uniform(self, *shape: int) -> Tensor:
        return torch.rand(*shape, generator=self._generator, dtype=torch.float64)

    def poisson(self, mean: float, *shape: int) -> Tensor:
        rates = torch.full(shape, mean, dtype=torch.float64)
        return torch.poisson(rates, generator=self._generator).long()


def line(points: int) -> Tensor:
    return torch.linspace(0, 1, points, dtype=torch.float64).unsqueeze(-1)


def smooth(draws: Draws, x: Tensor, length: float, *lead: int) -> Tensor:
    """Functions of RKHS norm 1 on ``x`` ``(N, 1)``, ``(*lead, N)``."""
    gram = torch.exp(-0.5 * ((x - x.mT) / length).square())
    chosen = draws.uniform(*lead, len(x)).argsort(-1) < 8
    weight = draws.normal(*lead, len(x)) * chosen
    f = weight @ gram
    norm = (weight * f).sum(-1, keepdim=True).sqrt()
    return f / norm


# -- bands -----------------------------------------------------------------------------


class Watched(cb.GPPolicy):
    """RPOL's score with its floor as multiplier; the round's estimates are kept."""

    name = "Watched"

    def __init__(self, actions: Any, **common: Any) -> None:
        super().__init__(actions, **common)
        self.bounds = torch.zeros(0)

    def score(self, t: int, multiplier: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
        def noted(f: Tensor, g: Tensor) -> Tensor:
            self.bounds = torch.cat([f.unsqueeze(1), g], 1).clone()
            return f - math.sqrt(t) * g.clamp(min=0).sum(1)

        return noted


class WatchedSketch(cb.baselines.BKB):
    """BKB; the round's estimates are kept."""

    name = "WatchedSketch"
    bounds = torch.zeros(0)

    def score(self, t: int, multiplier: Tensor) -> Any:
        def noted(f: Tensor, g: Tensor) -> Tensor:
            self.bounds = f.unsqueeze(1).clone()
            return f

        return noted


@dataclass(frozen=True)
class Case:
    """A kind of width among functions on a line."""

    noise: float
    length: float
    m: int
    form: str = "any-lam"
    feedback: Any = None
    late: float = 0.0  # rounds that feedback comes late
    random: bool = False  # whether so many on average, Poisson


def left(case: Case, sizes: Sizes, seed: int) -> Tensor:
    """Return which runs left their band, ``(runs,)``."""
    runs, rounds, m, draws = sizes.runs, sizes.rounds, case.m, Draws(seed)
    x = line(sizes.points)
    h = smooth(draws, x, case.length, runs, 1 + m)
    gp = cb.GP(rbf(case.length), noise=case.noise)
    r = math.sqrt(case.noise)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"RKHS\(form='small-lam'\)")
        policy = Watched(
            cb.Finite(x),
            reward=gp,
            costs=[gp] * m,
            explore=cb.UCB(cb.RKHS(1.0, r, delta=DELTA, form=case.form)),
            feedback=case.feedback,
            horizon=rounds,
            trials=runs,
        )
    delays, rho = _delays(case, draws, rounds, runs)
    outcomes: list[tuple[Any, Tensor]] = []
    every, failed = torch.arange(runs), torch.zeros(runs, dtype=torch.bool)
    for t in range(rounds):
        believed = policy.posterior()
        assert believed.costs is not None
        mean = torch.cat([believed.reward.mean.unsqueeze(1), believed.costs.mean], 1)
        choice = policy.ask()
        width = (policy.bounds - mean).abs()
        failed |= ((rho * h - mean).abs() > width + SLACK).flatten(1).any(-1)
        y = h[every, :, choice.index] + r * draws.normal(runs, 1 + m)
        outcomes.append((choice, y))
        for s, (told, value) in enumerate(outcomes):
            where = delays[s] == t - s
            if bool(where.any()):
                policy.tell(told, reward=value[:, 0], cost=value[:, 1:], where=where)
    return failed


def _delays(case: Case, draws: Draws, rounds: int, runs: int) -> tuple[Tensor, float]:
    """Return delays ``(rounds, runs)``, and the share of them within the window."""
    if not case.random:
        return torch.full((rounds, runs), int(case.late)), 1.0
    law = torch.distributions.Poisson(torch.tensor(case.late, dtype=torch.float64))
    share = law.log_prob(torch.arange(WINDOW + 1).double()).exp().sum()
    return draws.poisson(case.late, rounds, runs), float(share)


def gp_bands(sizes: Sizes) -> Iterator[Row]:
    """Yield rows of RKHS widths: all forms, delayed, sliding."""
    delayed, sliding = cb.Delayed(WINDOW), cb.Sliding(WINDOW)
    kinds: dict[str, dict[str, Any]] = {
        "any-lam (the default)": {},
        "tight": {"form": "tight"},
        "small-lam": {"form": "small-lam"},
        f"delayed, {LATE} rounds late": {"feedback": delayed, "late": LATE},
        f"delayed, {LATE} rounds late, small-lam": {
            "feedback": delayed,
            "late": LATE,
            "form": "small-lam",
        },
        "delayed, Poisson(15)": {"feedback": delayed, "late": 15, "random": True},
        "sliding": {"feedback": sliding},
    }
    for kind, given in kinds.items():
        say(f"bands: {kind}")
        grid = itertools.product(sizes.noises, sizes.lengths, sizes.costs)
        for seed, (noise, length, m) in enumerate(grid):
            case = Case(noise, length, m, **given)
            proven = case.form != "small-lam" or noise >= 1
            what = f"noise {noise:<6g} lengthscale {length:<5g} m = {m}"
            failed = left(case, sizes, seed)
            yield row(f"bands, {kind}", what, failed, DELTA if proven else None)


def sketch_bands(sizes: Sizes) -> Iterator[Row]:
    """Yield rows of BKB's own width around its sketch."""
    say("bands: BKB")
    grid = itertools.product(sizes.noises, sizes.lengths)
    for seed, (noise, length) in enumerate(grid):
        runs, rounds, draws, r = sizes.runs, sizes.rounds, Draws(seed), math.sqrt(noise)
        x = line(sizes.points)
        f = smooth(draws, x, length, runs)
        policy = WatchedSketch(
            cb.Finite(x),
            reward=cb.GP(rbf(length), noise=noise),
            explore=cb.UCB(cb.RKHS(1.0, r, delta=DELTA)),
            oversampling=72 * math.log(4 * rounds / DELTA),
            trials=runs,
        )
        every, failed = torch.arange(runs), torch.zeros(runs, dtype=torch.bool)
        for _ in range(rounds):
            choice = policy.ask()
            believed = policy.posterior().reward
            width = (policy.bounds[:, 0] - believed.mean).abs()
            failed |= ((f - believed.mean).abs() > width + SLACK).any(-1)
            y = f[every, choice.index] + r * draws.normal(runs)
            policy.tell(choice, reward=y)
        what = f"noise {noise:<6g} lengthscale {length:<5g}"
        yield row("bands, BKB's own", what, failed, DELTA)


def linear_bands(sizes: Sizes) -> Iterator[Row]:
    """Yield rows of the ellipsoids of linear functions."""
    say("bands: linear")
    for seed, (noise, dim) in enumerate(itertools.product(sizes.noises, (2, 5))):
        runs, draws, r = sizes.runs, Draws(seed), math.sqrt(noise)
        x = draws.normal(40, dim)
        x = x / x.norm(dim=-1, keepdim=True)
        theta = draws.normal(runs, 2, dim)
        theta = theta / theta.norm(dim=-1, keepdim=True)
        belief = cb.Linear(subgaussian=r, ridge=1.0, norm=1.0, length=1.0)
        policy = cb.LCLUCB(
            cb.Star(torch.zeros(dim, dtype=torch.float64), x),
            reward=belief,
            costs=belief,
            safe=cb.Safe(x=torch.zeros(dim)),
            thresholds=0.5,
            delta=DELTA,
            trials=runs,
        )
        truth, failed = theta @ x.mT, torch.zeros(runs, 2, dtype=torch.bool)
        for t in range(1, sizes.rounds + 1):
            mean, std = _both(policy.posterior())
            beta = cb.confidence.linear_width(t, dim, r, 1.0, 1.0, 1.0, DELTA)
            failed |= ((truth - mean).abs() > beta / r * std + SLACK).any(-1)
            choice = policy.ask()
            y = (theta @ choice.x.unsqueeze(-1)).squeeze(-1)
            y = y + r * draws.normal(runs, 2)
            policy.tell(choice, reward=y[:, 0], cost=y[:, 1])
        what = f"noise {noise:<6g} d = {dim}, the cost's"
        yield row("bands, linear", what, failed[:, 1], DELTA)


def count_bands(sizes: Sizes) -> Iterator[Row]:
    """Yield rows of the widths of independent arms."""
    say("bands: counts")
    for seed, (noise, m) in enumerate(itertools.product(sizes.noises, sizes.costs)):
        runs, arms, draws, r = sizes.runs, 10, Draws(seed), math.sqrt(noise)
        means = draws.uniform(runs, 1 + m, arms)
        means[..., 0] = 0.0
        policy = _opb(means, r, 0.5, sizes.rounds, {"means": (0.0, 1.0)})
        failed, share = torch.zeros(runs, dtype=torch.bool), 2 * (m + 1) * arms
        seen = torch.zeros(runs, arms, dtype=torch.long)
        for _ in range(sizes.rounds):
            mean, std = _both(policy.posterior())
            one = torch.ones_like(std)
            width = cb.confidence.count_width(one, 1.0, DELTA / (share * sizes.rounds))
            out = ((means - mean).abs() > width * std + SLACK).any(1)
            failed |= (out & (seen > 0)).any(-1)
            choice = policy.ask()
            at = choice.index.view(-1, 1, 1).expand(-1, 1 + m, 1)
            y = means.gather(-1, at).squeeze(-1) + r * draws.normal(runs, 1 + m)
            seen.scatter_add_(-1, choice.index.unsqueeze(-1), torch.ones_like(seen))
            policy.tell(choice, reward=y[:, 0], cost=y[:, 1:])
        yield row("bands, counts", f"noise {noise:<6g} m = {m}", failed, DELTA)


def _both(believed: Any) -> tuple[Tensor, Tensor]:
    """Return means and deviations of all functions, ``(T, 1 + m, N)``."""
    parts = [believed.reward, believed.costs]
    mean, std = ([getattr(p, name) for p in parts] for name in ("mean", "std"))
    return (
        torch.cat([mean[0].unsqueeze(1), mean[1]], 1),
        torch.cat([std[0].unsqueeze(1), std[1]], 1),
    )


# -- limits ----------------------------------------------------------------------------


def played(
    policy: Any,
    h: Tensor,
    tau: Tensor,
    rounds: int,
    outcome: Callable[[Tensor], Tensor],
    safe: Tensor | int = 0,
) -> tuple[Tensor, float]:
    """Return which runs broke a limit, ``(T,)``, and the share of other actions.

    Args:
        policy: over arms.
        h: means of reward and costs, ``(T, 1 + m, N)``.
        tau: ``(m,)`` or ``(T, m)``.
        rounds: how many to play.
        outcome: from means ``(T, 1 + m)`` to what is observed.
        safe: the safe arm, all others are "other actions".
    """
    failed, away = torch.zeros(len(h), dtype=torch.bool), 0.0
    for _ in range(rounds):
        choice = policy.ask()
        index, share = choice.index.unsqueeze(-1), torch.ones(len(h), 1).double()
        if choice.distribution is not None:
            index, share = choice.distribution.index, choice.distribution.probability
        at = index.unsqueeze(1).expand(-1, h.shape[1], -1)
        expected = (h.gather(-1, at) * share.unsqueeze(1)).sum(-1)
        failed |= (expected[:, 1:] > tau + SLACK).any(-1)
        away += float((choice.index != safe).double().mean()) / rounds
        at = choice.index.view(-1, 1, 1).expand(-1, h.shape[1], 1)
        y = outcome(h.gather(-1, at).squeeze(-1))
        policy.tell(choice, reward=y[:, 0], cost=y[:, 1:])
    return failed, away


def linear_limits(sizes: Sizes) -> Iterator[Row]:
    """Yield rows of LC-LUCB, ROFUL and S-COLTS, on a star, and OPLB, on its tips."""
    tau, dim = torch.tensor([0.2], dtype=torch.float64), 3
    centre = torch.zeros(dim, dtype=torch.float64)
    few = -(-sizes.rounds // 4)  # a round of OPLB solves dozens of programmes
    kinds: tuple[tuple[str, Any, int, int], ...] = (
        ("LC-LUCB", cb.LCLUCB, sizes.runs, sizes.rounds),
        ("ROFUL", cb.baselines.ROFUL, sizes.runs, sizes.rounds),
        ("S-COLTS", cb.baselines.SCOLTS, sizes.runs, sizes.rounds),
        ("OPLB", cb.OPLB, sizes.few, few),
    )
    for name, kind, runs, rounds in kinds:
        say(f"limits: {name}")
        for seed, r in enumerate((0.1, 1.0)):
            draws = Draws(seed)
            x = draws.normal(12, dim)
            x = x / x.norm(dim=-1, keepdim=True)
            theta = draws.normal(runs, 2, dim)
            theta = theta / theta.norm(dim=-1, keepdim=True)
            belief = cb.Linear(subgaussian=r, ridge=1.0, norm=1.0, length=1.0)
            known: dict[str, Any] = {"reward": belief, "costs": belief}
            known |= {"thresholds": tau, "delta": DELTA, "trials": runs}
            known |= {"safe": cb.Safe(x=centre, reward=0.0, cost=0.0)}
            noise = _gaussian(draws, r)
            if name == "OPLB":
                points = torch.cat([centre.unsqueeze(0), x])
                policy = kind(cb.Finite(points), **known)
                found = played(policy, theta @ points.mT, tau, rounds, noise)
            else:
                policy = kind(cb.Star(centre, x), **known)
                found = _walked(policy, theta, tau, rounds, noise)
            failed, away = found
            yield row(
                "limits in every round", f"{name}, R = {r:g}", failed, DELTA, away
            )


def _walked(
    policy: Any,
    theta: Tensor,
    tau: Tensor,
    rounds: int,
    outcome: Callable[[Tensor], Tensor],
) -> tuple[Tensor, float]:
    """Return as :func:`played`, for a star around 0 and coefficients ``(T, 2, d)``."""
    failed, away = torch.zeros(len(theta), dtype=torch.bool), 0.0
    for _ in range(rounds):
        choice = policy.ask()
        mean = (theta @ choice.x.unsqueeze(-1)).squeeze(-1)
        failed |= (mean[:, 1:] > tau + SLACK).any(-1)
        away += float((choice.x != 0).any(-1).double().mean()) / rounds
        y = outcome(mean)
        policy.tell(choice, reward=y[:, 0], cost=y[:, 1])
    return failed, away


def _gaussian(draws: Draws, r: float) -> Callable[[Tensor], Tensor]:
    return lambda mean: mean + r * draws.normal(*mean.shape)


def _opb(
    means: Tensor, r: float, tau: float, rounds: int, known: dict[str, Any]
) -> Any:
    belief = cb.Counts(subgaussian=r, **known)
    return cb.OPB(
        cb.Finite(torch.arange(means.shape[-1]).double().unsqueeze(-1)),
        reward=belief,
        costs=[belief] * (means.shape[1] - 1),
        safe=cb.Safe(index=0, reward=means[:, 0, 0], cost=means[:, 1:, 0]),
        thresholds=tau,
        largest=means.max(),
        delta=DELTA,
        horizon=rounds,
        trials=len(means),
    )


def count_limits(sizes: Sizes) -> Iterator[Row]:
    """Yield rows of OPB over independent arms."""
    say("limits: OPB")
    for seed, (top, stated) in enumerate(itertools.product((5, 100), (True, False))):
        draws, arms = Draws(seed), 8
        means = top * draws.uniform(sizes.runs, 2, arms)
        means[..., 0] = 0.0
        for noisy in (True, False):
            r = top / 2 if noisy else top / 50
            known = {"range" if noisy else "means": (0.0, float(top))} if stated else {}
            policy = _opb(means, r, 0.5 * top, 4 * sizes.rounds, known)

            def outcome(mean: Tensor, top: int = top, draws: Draws = draws) -> Tensor:
                return top * (draws.uniform(*mean.shape) < mean / top).double()

            law = outcome if noisy else _gaussian(draws, r)
            if not stated:  # then each arm must have been seen
                every = torch.arange(arms).expand(sizes.runs, arms)
                y = law(means.mT)
                policy.observe(index=every, reward=y[..., 0], cost=y[..., 1:])
            tau = torch.tensor([0.5 * top], dtype=torch.float64)
            failed, away = played(policy, means, tau, 4 * sizes.rounds, law)
            kind = "Bernoulli" if noisy else "Gaussian"
            more = "stated range" if stated else "no range, one pull each before"
            what = f"OPB, costs up to {top}, {kind}, {more}"
            yield row("limits in every round", what, failed, DELTA, away)


def class_limits(sizes: Sizes) -> Iterator[Row]:
    """Yield rows of OPNLB, whose radius follows the noise."""
    say("limits: OPNLB")
    for seed, scale in enumerate((1.0, 50.0)):
        draws, arms, size, r = Draws(seed), 5, 6, 0.05 * scale
        values = scale * draws.uniform(2, size, arms)
        values[..., 0] = 0.0
        truth = (draws.uniform(sizes.few, 2) * size).long()
        h = torch.stack([values[j][truth[:, j]] for j in range(2)], 1)
        reward, cost = (cb.FiniteClass(v, subgaussian=r) for v in values)
        policy = cb.OPNLB(
            cb.Finite(torch.arange(arms).double().unsqueeze(-1)),
            reward=reward,
            costs=cost,
            safe=cb.Safe(index=0, reward=0.0, cost=0.0),
            thresholds=0.4 * scale,
            largest=scale,
            delta=DELTA,
            trials=sizes.few,
        )
        tau = torch.tensor([0.4 * scale], dtype=torch.float64)
        failed, away = played(policy, h, tau, 2 * sizes.rounds, _gaussian(draws, r))
        yield row(
            "limits in every round", f"OPNLB, scale {scale:g}", failed, DELTA, away
        )


def gp_limits(sizes: Sizes) -> Iterator[Row]:
    """Yield rows of OPB's GP form, SafeOpt and StageOpt."""
    x, length = line(sizes.points), 0.2
    gram = torch.exp(-0.5 * ((x - x.mT) / length).square())
    root = torch.linalg.cholesky(gram + 1e-9 * torch.eye(len(x), dtype=torch.float64))
    runs, rounds = sizes.runs, sizes.rounds
    for seed, noise in enumerate(sizes.noises):
        draws, r = Draws(seed), math.sqrt(noise)
        gp = cb.GP(rbf(length), noise=noise)
        both: dict[str, Any] = {"reward": gp, "costs": gp, "trials": runs}
        say(f"limits: Gaussian processes, noise {noise:g}")
        h = draws.normal(runs, 2, len(x)) @ root.mT
        tau = h[:, 1:, 0] + 0.5
        policy: Any = cb.OPB(
            cb.Finite(x),
            safe=cb.Safe(index=0, reward=h[:, 0, 0], cost=h[:, 1:, 0]),
            thresholds=tau,
            largest=h[:, 0].amax(-1),
            delta=DELTA,
            **both,
        )
        failed, away = played(policy, h, tau, rounds, _gaussian(draws, r))
        what = f"OPB's GP form, noise {noise:g}"
        yield row("limits in every round", what, failed, DELTA, away)
        h = smooth(draws, x, length, runs, 2)
        safe = h[:, 1].argmin(-1)
        tau = (h[:, 1].amin(-1) + 0.7 * (h[:, 1].amax(-1) - h[:, 1].amin(-1)))[:, None]
        explore = cb.UCB(cb.RKHS(1.0, r, delta=DELTA))
        both |= {"explore": explore, "safe": safe, "thresholds": tau}
        for policy in (
            cb.baselines.SafeOpt(cb.Finite(x), **both),
            cb.baselines.StageOpt(cb.Finite(x), rounds=rounds // 2, **both),
        ):
            law = _gaussian(draws, r)
            failed, away = played(policy, h, tau, rounds, law, safe)
            what = f"{policy.name}, theory's width, noise {noise:g}"
            yield row("limits in every round", what, failed, DELTA, away)


def lipschitz_limits(sizes: Sizes) -> Iterator[Row]:
    """Yield rows of LoSBO, with a kernel five times too smooth, noise within ``E``."""
    x = line(sizes.points)
    for seed, (length, e) in enumerate(itertools.product((0.05, 0.2), (0.01, 0.1))):
        say(f"limits: LoSBO, lengthscale {length:g}, E = {e:g}")
        draws = Draws(seed)
        h = smooth(draws, x, length, sizes.runs, 2)
        low, high = h[:, 1].amin(-1), h[:, 1].amax(-1)
        tau, safe = (low + 0.7 * (high - low)).unsqueeze(-1), h[:, 1].argmin(-1)
        gp = cb.GP(rbf(5 * length), noise=e**2)
        policy = cb.baselines.LoSBO(
            cb.Finite(x),
            reward=gp,
            costs=gp,
            safe=safe,
            lipschitz=h[:, 1].diff(dim=-1).abs().amax(-1) * (sizes.points - 1),
            noise_bound=e,
            thresholds=tau,
            trials=sizes.runs,
        )

        def law(mean: Tensor, e: float = e, draws: Draws = draws) -> Tensor:
            return mean + e * (2 * draws.uniform(*mean.shape) - 1)

        failed, away = played(policy, h, tau, sizes.rounds, law, safe)
        what = f"LoSBO, wrong kernel, lengthscale {length:g}, E = {e:g}"
        yield row("limits in every round", what, failed, 0.0, away)


def measure(sizes: Sizes) -> list[Row]:
    """All rows."""
    kinds = (
        *(gp_bands, sketch_bands, linear_bands, count_bands),
        *(linear_limits, count_limits, class_limits, gp_limits, lipschitz_limits),
    )
    return [one for kind in kinds for one in kind(sizes)]


def main(argv: Sequence[str] | None = None) -> None:
    """Run the script."""
    report_main(__file__, __doc__, measure, Sizes(), QUICK, argv)


if __name__ == "__main__":
    main()
