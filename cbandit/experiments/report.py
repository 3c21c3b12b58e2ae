"""An experiment's results in words: the table, stages, phases, growth."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from cbandit.simulation.curves import RELATIVE, Curves, exponent

COLUMNS = {
    "regret": "regret",
    "stochastic_regret": "stoch. regret",
    "soft_violation": "soft viol.",
    "hard_violation": "hard viol.",
    "rounds_in_violation": "rounds in viol.",
}
HARD = "hard_violation "  # before a cost's name: that cost's violation, in its unit
GROWING = ("stochastic_regret", "hard_violation")


def lines(summary: Mapping[str, Any]) -> list[str]:
    """Return a summary in words: the table, stages, phases, soft violation."""
    finished = {k: v for k, v in summary["policies"].items() if "regret" in v}
    trials = summary["trials"]
    return [
        _table(summary),
        *_by_cost(summary),
        *_trials(summary),
        *_stages(finished, trials),
        *_phases(finished, trials),
        _settled(summary["policies"]),
    ]


def _table(summary: Mapping[str, Any]) -> str:
    """Return the table of final values, mean +- standard error over the trials."""
    trials = summary["trials"]
    finished = [v for v in summary["policies"].values() if "regret" in v]
    metrics = shown(set.intersection(*map(set, finished)) if finished else COLUMNS)
    if all(v["regret"] == v["stochastic_regret"] for v in finished):
        del metrics["stochastic_regret"]
    metrics = {k: v for k, v in metrics.items() if not k.startswith(HARD)}
    rows = [["policy", *metrics.values(), "ms/round"]]
    for name, values in summary["policies"].items():
        cells = ["-"] * (len(metrics) + 1)
        if "regret" in values:
            cells = [number(**values[key], trials=trials) for key in metrics]
            cells.append(f"{1e3 * values['seconds_per_round']:.3g}")
        rows.append([name, *cells])
    head = f"{summary['experiment']}: {summary['horizon']} rounds, {trials} " + (
        "trials, mean +- standard error" if trials > 1 else "trial"
    )
    return "\n".join([head, *columns(rows)])


def shown(names: Iterable[str]) -> dict[str, str]:
    """Return the metrics of a table that are in ``names``, with their heads.

    With several costs, each has its hard violation, in its unit; totals are relative.
    """
    known, out = list(names), {}
    for name, head in COLUMNS.items():
        if RELATIVE.get(name) in known:
            out[RELATIVE[name]] = f"{head} / limits"
        elif name in known:
            out[name] = head
    apart = (name for name in known if name.startswith(HARD))
    return out | {name: f"hard viol. {name.removeprefix(HARD)}" for name in apart}


def _trials(summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield what differs between trials, and which policies played the same rounds."""
    if summary["trials"] > 1 and "varied" in summary:
        differ = ", ".join(summary["varied"])
        words = differ or "nothing: they are one run, to the bit, and +- says nothing"
        yield f"trials differ in {words}"
    if summary.get("design"):
        but = ", ".join(summary["without_design"])
        yield (
            f"the first {summary['design']} rounds of a trial play a design, the same "
            f"for all policies{f' but {but}' if but else ''}"
        )
    for names in summary.get("same", ()):
        yield alike_in_words(names)


def alike_in_words(names: Sequence[str]) -> str:
    """Return a sentence that some policies played the same rounds."""
    return f"{' and '.join(names)} played the same rounds: they are one policy here"


def _by_cost(summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield a table of each cost's own violation, if there are several."""
    scale, horizon = summary.get("cost_scales", {}), summary["horizon"]
    if not scale:
        return
    rows = [["policy", *scale]]
    for name, values in summary["policies"].items():
        cells = ["-"] * len(scale)
        if "regret" in values:
            own = [values[HARD + cost] for cost in scale]
            shares = [
                cell["mean"] / size / horizon
                for cell, size in zip(own, scale.values(), strict=True)
            ]
            cells = [
                f"{number(**cell, trials=summary['trials'])} ({share:.2%})"
                for cell, share in zip(own, shares, strict=True)
            ]
        rows.append([name, *cells])
    sizes = ", ".join(f"{cost}: {size:.4g}" for cost, size in scale.items())
    head = (
        "hard violation of each cost in its own unit, and in brackets that of a round "
        f"in % of the cost's limit, or of its spread if the limit is 0: {sizes}"
    )
    yield "\n".join([head, *columns(rows)])


def _stages(policies: Mapping[str, Any], trials: int) -> Iterator[str]:
    """Yield policy regret and stage costs of every policy that randomises."""
    for name, values in policies.items():
        if "policy_regret" in values:
            regret = number(**values["policy_regret"], trials=trials)
            yield (
                f"{name}: policy regret {regret}; expected cost at most its threshold "
                f"in {values['stage_rounds_kept']['mean']:.4%} of the rounds, in every "
                f"round of {values['stage_runs_kept']['mean']:.4%} of the runs (cost "
                f"less threshold at most {values['worst_stage_cost']['mean']:.3g})"
            )


def _phases(policies: Mapping[str, Any], trials: int) -> list[str]:
    """Return rewards and violations per round, for each phase of a changing world."""
    phases = [(k, part) for k, v in policies.items() for part in v.get("phases", ())]
    return [
        f"rounds {part['first']}-{part['last']}, {name}: "
        f"reward {number(**part['reward'], trials=trials)}, "
        f"hard viol. {number(**part['hard_violation'], trials=trials)} a round"
        for name, part in sorted(phases, key=lambda phase: int(phase[1]["first"]))
    ]


def _settled(policies: Mapping[str, Any]) -> str:
    """Return, in words, the round from which on no trial has a soft violation."""
    first = {name: v.get("soft_violation_over") for name, v in policies.items()}
    parts = [f"{name} {'-' if t is None else t}" for name, t in first.items()]
    return f"soft violation 0 in every trial from round: {', '.join(parts)}"


def growth(table: Curves, horizon: int) -> str:
    """Return exponents fitted to the mean curves over the last nine tenths."""
    first = max(1, horizon // 10)
    heads = shown({name for curves in table.values() for name in curves})
    names = [RELATIVE.get(name, name) for name in GROWING]
    names = [
        name if name in heads else old for name, old in zip(names, GROWING, strict=True)
    ]
    rows = [["policy", *(heads[name] for name in names)]]
    for policy, curves in table.items():
        fitted = [round(exponent(curves[name], first), 2) + 0.0 for name in names]
        rows.append([policy, *("-" if a != a else f"{a:.2f}" for a in fitted)])
    head = f"growth t^a from round {first} to {horizon}: fitted a (-: not positive)"
    return "\n".join([head, *columns(rows)])


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lay out rows of cells between rules; the first row is the head."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    out = []
    for name, *cells in rows:
        pairs = zip(cells, widths[1:], strict=True)
        out.append("  ".join([name.ljust(widths[0]), *(c.rjust(w) for c, w in pairs)]))
    rule = "-" * len(out[0])
    return [rule, out[0], rule, *out[1:], rule]


def number(mean: float | None, sem: float | None, trials: int) -> str:
    """Return ``mean +- sem`` in few digits; only the mean for one trial."""
    if mean is None or sem is None or not math.isfinite(mean):
        return "unknown"
    short = f"{sem:.2g}"
    spread = f"{sem:.4g}" if "e+" in short else short  # 138.2, not 1.4e+02
    size, last = (math.floor(math.log10(abs(x or mean) or 1)) for x in (mean, sem))
    # as many as the error shows, and below a million all before the point
    digits = min(15, max(4, size - last + 2, size + 1 if size < 6 else 0))
    return f"{mean:.{digits}g}" + (f" +- {spread}" if trials > 1 else "")


def in_words(status: Mapping[str, str]) -> str:
    """Return the policies' states in words; equal states are joined."""
    by_state: dict[str, list[str]] = {}
    for name, state in status.items():
        by_state.setdefault(state, []).append(name)
    return "; ".join(f"{', '.join(names)} {state}" for state, names in by_state.items())
