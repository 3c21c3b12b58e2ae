"""An experiment's results in words: the table, stages, phases, growth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cbandit.simulation.curves import Curves, exponent

__all__ = ["COLUMNS", "columns", "growth", "in_words", "lines", "number"]

COLUMNS = {
    "regret": "regret",
    "stochastic_regret": "stoch. regret",
    "soft_violation": "soft viol.",
    "hard_violation": "hard viol.",
    "rounds_in_violation": "rounds in viol.",
}
GROWING = ("stochastic_regret", "hard_violation")


def lines(summary: Mapping[str, Any]) -> list[str]:
    """A summary in words: the table, then what an experiment has beside it."""
    return [
        _table(summary),
        *_stages(summary),
        *_phases(summary),
        _settled(summary),
    ]


def _table(summary: Mapping[str, Any]) -> str:
    """The final values, mean +- standard error over the trials."""
    trials = summary["trials"]
    rows = [["policy", *COLUMNS.values(), "ms/round"]]
    for name, each in summary["policies"].items():
        if "regret" not in each:
            rows.append([name, *["-"] * (len(COLUMNS) + 1)])
            continue
        values = [
            number(each[key]["mean"], each[key]["sem"], trials) for key in COLUMNS
        ]
        rows.append([name, *values, f"{1e3 * each['seconds_per_round']:.3g}"])
    head = f"{summary['experiment']}: {summary['horizon']} rounds, {trials} " + (
        "trials, mean +- standard error" if trials > 1 else "trial"
    )
    return "\n".join([head, *columns(rows)])


def _stages(summary: Mapping[str, Any]) -> list[str]:
    """Policy regret and stage costs of every policy that randomises."""
    trials = summary["trials"]
    out = []
    for name, each in summary["policies"].items():
        if "policy_regret" not in each:
            continue
        regret = number(**each["policy_regret"], trials=trials)
        rounds, runs, worst = (
            each[key]["mean"]
            for key in ("stage_rounds_kept", "stage_runs_kept", "worst_stage_cost")
        )
        out.append(
            f"{name}: policy regret {regret}; expected cost at most its threshold in "
            f"{rounds:.4%} of the rounds, in every round of {runs:.4%} of the runs "
            f"(cost less threshold at most {worst:.3g})"
        )
    return out


def _phases(summary: Mapping[str, Any]) -> list[str]:
    """Rewards and violations a round in each phase of a world that changes."""
    out, trials = [], summary["trials"]
    for name, each in summary["policies"].items():
        for phase in each.get("phases", ()):
            found = [
                f"{word} {number(phase[key]['mean'], phase[key]['sem'], trials)}"
                for key, word in (
                    ("reward", "reward"),
                    ("hard_violation", "hard viol."),
                )
            ]
            rounds = f"rounds {phase['first']}-{phase['last']}"
            said = f"{rounds}, {name}: {', '.join(found)} a round"
            out.append((phase["first"], said))
    return [said for _, said in sorted(out, key=lambda pair: pair[0])]


def _settled(summary: Mapping[str, Any]) -> str:
    """From which round on no trial has a soft violation."""
    parts = []
    for name, each in summary["policies"].items():
        first = each.get("soft_violation_over")
        parts.append(f"{name} {'-' if first is None else first}")
    return f"soft violation 0 in every trial from round: {', '.join(parts)}"


def growth(table: Curves, horizon: int) -> str:
    """Exponents fitted to the mean curves over the last nine tenths of the rounds."""
    first = max(1, horizon // 10)
    rows = [["policy", *(COLUMNS[name] for name in GROWING)]]
    for policy, each in table.items():
        fitted = [round(exponent(each[name], first), 2) + 0.0 for name in GROWING]
        rows.append([policy, *("-" if a != a else f"{a:.2f}" for a in fitted)])
    head = f"growth t^a from round {first} to {horizon}: fitted a (-: not positive)"
    return "\n".join([head, *columns(rows)])


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lay out rows of cells, the first of which is their head, between rules."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    out = [
        "  ".join(
            [row[0].ljust(widths[0])]
            + [cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True)]
        )
        for row in rows
    ]
    rule = "-" * len(out[0])
    return [rule, out[0], rule, *out[1:], rule]


def number(mean: float | None, sem: float | None, trials: int) -> str:
    """``mean +- sem`` in few digits; the mean alone for one trial."""
    if mean is None or sem is None or mean != mean:
        return "unknown"
    short = f"{sem:.2g}"
    spread = f"{sem:.4g}" if "e+" in short else short  # 138.2, rather than 1.4e+02
    return f"{mean:.4g}" + (f" +- {spread}" if trials > 1 else "")


def in_words(status: Mapping[str, str]) -> str:
    """The policies' states in words; those alike once."""
    alike: dict[str, list[str]] = {}
    for name, said in status.items():
        alike.setdefault(said, []).append(name)
    return "; ".join(f"{', '.join(names)} {said}" for said, names in alike.items())
