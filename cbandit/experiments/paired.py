"""Paired comparisons: differences between policies, trial by trial.

Trials with the same number and seed see the same world and noise. Their differences
vary less than the trials themselves, so the differences are compared.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy
import pandas
import torch

from cbandit._core import checks
from cbandit.errors import CBanditError
from cbandit.experiments.intervals import LEVEL, Difference, holm, interval
from cbandit.experiments.report import shown
from cbandit.simulation.curves import mean_and_sem, scales
from cbandit.simulation.run import METRICS, Run

ROUNDING = 1e-9  # smaller differences, as shares of the values, are rounding errors


@dataclass(frozen=True)
class Comparison:
    """Final values of trials that differ in one column only.

    Args:
        by: the column, such as ``policy``.
        words: what the trials have in common.
        values: a row for each trial that all of them have; columns by the value of
            ``by``, then by metric.
        pairs: the two names of each difference, minuend first.
        same: groups of policies that played the same rounds.
    """

    by: str
    words: str
    values: pandas.DataFrame
    pairs: tuple[tuple[str, str], ...]
    same: tuple[tuple[str, ...], ...] = ()

    @property
    def names(self) -> list[str]:
        """The values of the column ``by``."""
        return [str(name) for name in self.values.columns.unique(0)]

    @property
    def metrics(self) -> dict[str, str]:
        """The metrics that are compared, with their heads."""
        metrics = shown(self.values[self.names[0]].columns)
        parts = [self.values[name] for name in self.names]
        if all(x["regret"].equals(x["stochastic_regret"]) for x in parts):
            del metrics["stochastic_regret"]
        return metrics

    def difference(self, name: str, other: str, metric: str) -> Difference:
        """Return the mean of ``name`` minus that of ``other``, with its interval."""
        ours = self.values[name, metric].to_numpy("float64")
        theirs = self.values[other, metric].to_numpy("float64")
        gaps = ours - theirs
        # sums of the same numbers in another order differ by rounding errors
        rounding = ROUNDING * max(abs(ours).max(), abs(theirs).max())
        gaps[abs(gaps) <= rounding] = 0.0
        if numpy.ptp(gaps) <= rounding:
            gaps[:] = gaps[0]
        return interval(gaps)

    def mean(self, name: str, metric: str) -> tuple[float, float]:
        """Return a mean over the trials and its standard error."""
        values = self.values[name, metric].to_numpy("float64")
        found = mean_and_sem(torch.tensor(values))
        return found["mean"], found["sem"]

    def best(self, metric: str) -> str | None:
        """Return the name that is significantly better than all others, or ``None``."""
        means = {name: self.mean(name, metric)[0] for name in self.names}
        if any(map(math.isnan, means.values())):
            return None
        best, *others = sorted(means, key=lambda name: means[name])
        tests = holm([self.difference(best, x, metric).p for x in others])
        return best if all(p < 1 - LEVEL for p in tests) else None


def in_common(compared: Sequence[Comparison]) -> dict[str, str]:
    """Return the metrics that all comparisons have, with their heads."""
    first, *others = (table.metrics for table in compared)
    return {k: head for k, head in first.items() if all(k in x for x in others)}


Tested = Mapping[tuple[int, str, str, str], Difference]
"""Differences by the number of the comparison, the two names and the metric."""


def tested(compared: Sequence[Comparison]) -> Tested:
    """Return all differences; their tests are corrected together for each metric."""
    out = {}
    for metric in dict.fromkeys(k for table in compared for k in table.metrics):
        keys = [
            (place, *pair, metric)
            for place, table in enumerate(compared)
            for pair in table.pairs
            if metric in table.metrics
        ]
        gaps = [compared[key[0]].difference(*key[1:]) for key in keys]
        for key, gap, p in zip(keys, gaps, holm([x.p for x in gaps]), strict=True):
            out[key] = gap._replace(p=p)
    return out


def pairs_of(
    names: Sequence[str], by: str, baseline: str | None, all_pairs: bool
) -> tuple[tuple[str, str], ...]:
    """Return the pairs of names to compare, minuend first.

    Args:
        names: the names.
        by: what they are, such as ``policy``.
        baseline: the one that others are compared with; ``None``: the first.
        all_pairs: compare all pairs instead.
    """
    if all_pairs:
        if baseline is not None:
            raise CBanditError("a baseline, or all pairs: give one of them")
        return tuple((b, a) for a, b in itertools.combinations(names, 2))
    first = names[0] if baseline is None else baseline
    if first not in names:
        raise CBanditError(
            f"baseline must be a {by}, one of {', '.join(names)}; got {first!r}"
        )
    return tuple((name, first) for name in names if name != first)


def compare(
    runs: Sequence[Run], baseline: str | None = None, all_pairs: bool = False
) -> pandas.DataFrame:
    """Compare runs of several policies by the differences of their paired trials.

    Trials of the same number see the same world and noise, if the policies have one
    seed. Their differences vary less than the trials themselves.

    Args:
        runs: of policies of different names, over the same trials and rounds.
        baseline: the policy that the others are compared with; ``None``: the first.
        all_pairs: compare all pairs instead.

    Returns:
        A row for each metric and pair: ``policy`` and ``against``, how many ``trials``,
        the mean ``difference``, the ends ``low`` and ``high`` of its 95 % interval, by
        the studentised bootstrap, and ``p`` of the test that it is 0, corrected for all
        pairs of the metric (Holm). With fewer than 6 trials the last three are NaN. Of
        all metrics less is better.

    Example:
        >>> import cbandit as cb
        >>> world = cb.problems.Table([1.0, 2.0], [[0.0, 1.0]], 0.1, trials=8)
        >>> gp = cb.GP.default(world.actions)
        >>> goal = {"reward": gp, "costs": gp, "trials": 8}
        >>> policies = cb.CKB(world.actions, **goal), cb.RPOL(world.actions, **goal)
        >>> runs = [cb.simulate(policy, world, 20) for policy in policies]
        >>> list(cb.compare(runs).columns)
        ['metric', 'policy', 'against', 'trials', 'difference', 'low', 'high', 'p']
    """
    listed = isinstance(runs, list | tuple)
    if not listed or not all(isinstance(run, Run) for run in runs) or len(runs) < 2:
        raise CBanditError(f"runs must be a list of at least two cb.Run; got {runs!r}")
    all_pairs = checks.flag("all_pairs", all_pairs)
    names = [run.policy for run in runs]
    if len(set(names)) < len(names):
        raise CBanditError(
            f"runs must be of policies of different names; got {names}: set "
            "policy.name before the run, or dataclasses.replace(run, policy=...)"
        )
    for name in ("seed", "trials", "rounds", "m"):
        values = [getattr(run, name) for run in runs]
        if any(value != values[0] for value in values):
            raise CBanditError(
                f"runs must have the same {name}, or their trials are not pairs; got "
                f"{values}"
            )
    scale = scales(runs)
    table = Comparison(
        "policy",
        "",
        pandas.concat({run.policy: _final_values(run, scale) for run in runs}, axis=1),
        pairs_of(names, "policy", baseline, all_pairs),
    )
    rows = []
    for (_, policy, against, metric), gap in tested([table]).items():
        pair = {"metric": metric, "policy": policy, "against": against}
        numbers = {"difference": gap.mean, "low": gap.low, "high": gap.high, "p": gap.p}
        rows.append({**pair, "trials": len(table.values), **numbers})
    return pandas.DataFrame(rows)


def _final_values(run: Run, scale: torch.Tensor) -> pandas.DataFrame:
    """Return a run's metrics after the last round, a row for each trial."""
    totals = {name: getattr(run, name) for name in METRICS} | run.violations(scale)
    final = {k: total[..., -1].double().reshape(-1) for k, total in totals.items()}
    frame = pandas.DataFrame({k: values.numpy() for k, values in final.items()})
    return frame[[*shown(frame.columns)]]
