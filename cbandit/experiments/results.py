"""Results: the files that an experiment leaves in its folder."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas
import pyarrow
import torch
from pyarrow import parquet

from cbandit import account
from cbandit._core.files import atomic, file_digest, sealed, unsealed, whole
from cbandit.errors import CBanditError
from cbandit.experiments.settings import Settings, versions
from cbandit.simulation.curves import Curve, Curves, mean_and_sem, scales
from cbandit.simulation.run import Run

ROUNDS, MEANS, BOXES = TABLES = ("rounds.parquet", "means.parquet", "boxes.parquet")
SEAL = (',\n "digest": "', '"\n}')  # the last key of summary.json
POINTS = 1000  # rounds of each curve in means.parquet: well below a megabyte each
ROWS = 500_000  # rows turned into a table at once: about 100 MB
# the most by which a table in memory may exceed its file
RATIO, SPARE = 250, 1 << 26
_KIND = re.compile(r"u?int\d+|float|double|bool|(dictionary<values=)?(large_)?string.*")
AGAIN = "without that file --resume computes it all again"


# ---------------------------------------------------------------------- summary.json


def summarise(
    settings: Settings,
    runs: Mapping[str, Run],
    status: Mapping[str, str],
    changes: tuple[int, ...] = (),
) -> dict[str, Any]:
    """Return the final values of all runs, with their settings and versions.

    Args:
        settings: the settings of the experiment.
        runs: the runs by policy.
        status: the state of each policy, also of those without a run.
        changes: the first rounds of the world's later phases, each with its own
            account.
    """
    policies: dict[str, dict[str, Any]] = {name: {} for name in status}
    scale = scales(list(runs.values()))
    for name, run in runs.items():
        short = run.summary()
        policies[name] |= {metric: dict(value) for metric, value in short.items()}
        policies[name] |= {
            metric: mean_and_sem(total[..., -1].reshape(-1))
            for metric, total in run.violations(scale).items()
        }
        policies[name]["soft_violation_over"] = soft_violation_over(run)
        policies[name]["seconds_per_round"] = short.seconds_per_round
    for name, state in status.items():
        policies[name]["status"] = state
        if name in runs and changes:
            policies[name]["phases"] = _phases(runs[name], changes)
    shown = ("experiment", "parameters", "horizon", "trials", "device", "dtype", "seed")
    facts = {name: getattr(settings, name) for name in shown}
    first = next(iter(runs.values()))
    named = dict(zip(first.cost_labels, scale.tolist(), strict=True))
    facts |= {"cost_scales": named} if first.m > 1 else {}
    facts |= {"varied": varied(list(runs.values())), "same": same(runs)}
    if settings.tables:
        design = settings.design_in(first.actions.shape[-1])
        groups = alike({k: run.actions[..., :design, :] for k, run in runs.items()})
        largest = max(groups, key=len)
        others = [name for name in runs if design and name not in largest]
        facts |= {"design": design, "without_design": others}
    return {**facts, "versions": versions(), "policies": policies}


def varied(runs: Sequence[Run]) -> list[str]:
    """Return what differs between trials: worlds, noise, first actions."""
    if all(run.trials is None or len(run.trials) == 1 for run in runs):
        return []
    worlds = any(_differs(x) for run in runs for x in (run.optimum, run.thresholds))
    starts = any(_differs(run.actions[:, 0]) for run in runs)
    facts = {
        "worlds": worlds,
        "noise": any(run.noisy for run in runs),
        "starts": starts,
    }
    return [name for name, so in facts.items() if so]


def _differs(values: torch.Tensor) -> bool:
    """Return whether any trial's values differ from the first trial's."""
    other = values[:1].expand_as(values)
    return not torch.equal(values.nan_to_num(), other.nan_to_num())


def same(runs: Mapping[str, Run]) -> list[list[str]]:
    """Return groups of policies that played the same rounds, to the bit."""
    groups = alike({name: run.actions for name, run in runs.items()})
    return [group for group in groups if len(group) > 1]


def alike(values: Mapping[str, torch.Tensor]) -> list[list[str]]:
    """Return the names, in groups whose tensors are equal."""
    groups: list[list[str]] = []
    for name, value in values.items():
        for group in groups:
            if torch.equal(values[group[0]], value):
                group.append(name)
                break
        else:
            groups.append([name])
    return groups


def soft_violation_over(run: Run) -> int | None:
    """Return the first round from which on no trial has a soft violation.

    ``None`` if the last round still has one.
    """
    worst = run.soft_violation.reshape(-1, run.rounds).amax(0)
    first = int((worst > 0).nonzero().max()) + 2 if bool((worst > 0).any()) else 1
    return first if first <= run.rounds else None


def _phases(run: Run, changes: tuple[int, ...]) -> list[dict[str, Any]]:
    """Return reward, regret and hard violation per round, for each phase."""
    edges = [1, *(t for t in changes if t <= run.rounds), run.rounds + 1]
    out = []
    for first, after in itertools.pairwise(edges):
        phase: dict[str, Any] = {"first": first, "last": after - 1}
        for name in ("reward", "regret", "hard_violation"):
            total = run.cumulative(name).reshape(-1, run.rounds)
            gained = total[:, after - 2] - (total[:, first - 2] if first > 1 else 0.0)
            phase[name] = mean_and_sem(gained / (after - first))
        out.append(phase)
    return out


def write_summary(summary: dict[str, Any], out: Path) -> None:
    """Write ``summary.json``, with digests of the tables next to it and of itself."""
    digests = {k: file_digest(out / k) for k in TABLES if (out / k).exists()}
    text = json.dumps(_without_nan({**summary, "tables": digests}), indent=1)
    with atomic(out / "summary.json") as file:
        file.write(sealed(text.removesuffix("\n}"), *SEAL))


def _without_nan(value: object) -> Any:
    """Return a value with ``None`` in place of NaN and infinity, for JSON."""
    if isinstance(value, dict):
        return {key: _without_nan(entry) for key, entry in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_summary(folder: Path) -> dict[str, Any]:
    """Read ``summary.json``; raise if a table next to it is missing or broken."""
    summary = _summary(folder)
    for name in summary.pop("tables"):
        table(folder, name)
    del summary["digest"]
    return summary


def _summary(folder: Path) -> dict[str, Any]:
    """Read ``summary.json``; raise unless it is bit for bit as written."""
    path = folder / "summary.json"
    try:
        raw = whole(path)
    except OSError as error:
        raise CBanditError(f"{path} cannot be read ({error}); {AGAIN}") from None
    if not unsealed(raw, *SEAL):
        raise CBanditError(
            f"{path} is not the summary of an experiment, or broken (its checksum "
            f"fails); {AGAIN}"
        )
    try:
        summary: dict[str, Any] = json.loads(raw)
        ours = summary["tables"].keys() <= {*TABLES}
        ours = ours and isinstance(summary["policies"], dict)
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
        ours = False
    if not ours:
        raise CBanditError(f"{path} is not the summary of an experiment; {AGAIN}")
    return summary


# --------------------------------------------------------------------------- tables


def table(folder: Path, name: str) -> Path | None:
    """Return the path of a table; ``None`` if the folder's summary does not list it.

    Raise if it is listed but missing, or if its digest differs from the listed one.
    """
    path, summary = folder / name, folder / "summary.json"
    none = f"{folder} holds no results"
    if not summary.is_file():
        advice = ""
        if (folder / "config.toml").is_file():
            advice = (
                "; its experiment is under way or was interrupted: the same command "
                "with --resume goes on with it"
            )
        raise CBanditError(f"{none}: {summary} is missing{advice}")
    wanted = _summary(folder)["tables"].get(name)
    if wanted is None:
        return None
    if not path.is_file():
        raise CBanditError(f"{none}: {path} is missing; --resume computes it all again")
    try:
        digest = file_digest(path)
    except OSError as error:
        raise CBanditError(f"{path} cannot be read: {error.strerror}") from None
    if digest != wanted:
        raise CBanditError(
            f"{path} is not one of ours, or broken (its checksum fails); {AGAIN}"
        )
    if _inflates(path):
        raise CBanditError(
            f"{path} is not one of ours: it would take far more memory than its size; "
            f"{AGAIN}"
        )
    return path


def _present(folder: Path, name: str) -> Path:
    """Return the path of a table that every folder must have."""
    path = table(folder, name)
    if path is None:
        raise CBanditError(f"{folder} holds no results: no {name} in its summary")
    return path


def _inflates(path: Path) -> bool:
    """Return whether a table would be far larger in memory than its file."""
    about = parquet.read_metadata(path)
    groups = [about.row_group(k) for k in range(about.num_row_groups)]
    chunks = [(g.num_rows, g.column(k)) for g in groups for k in range(g.num_columns)]
    # repeated values take no room in a file; other codecs may compress a thousandfold
    plain = all(
        chunk.num_values == rows and chunk.compression in ("SNAPPY", "UNCOMPRESSED")
        for rows, chunk in chunks
    )
    # only numbers and texts are in our tables
    kinds = {str(field.type) for field in parquet.read_schema(path)}
    plain = plain and all(map(_KIND.fullmatch, kinds))
    size = 8 * sum(rows for rows, _ in chunks)
    return not plain or size > SPARE + RATIO * path.stat().st_size


def read_frame(path: Path, **options: object) -> pandas.DataFrame:
    """Read a table as a pandas frame, which stores equal texts once."""
    schema = parquet.read_schema(path)
    texts = [f.name for f in schema if str(f.type) in ("string", "large_string")]
    options |= {"read_dictionary": texts, "page_checksum_verification": True}
    frame: pandas.DataFrame = parquet.read_table(path, **options).to_pandas()
    return frame.astype({name: object for name in texts if name in frame})


def _write_frame(parts: Sequence[Mapping[str, Any]], path: Path) -> pandas.DataFrame:
    """Write tables, given by columns, one after the other; return the frame."""
    whole = pandas.concat(map(pandas.DataFrame, parts), ignore_index=True)
    with atomic(path) as file:
        whole.to_parquet(file, index=False, write_page_checksum=True)
    return whole


def write_curves(curves: Curves, out: Path) -> None:
    """Write ``means.parquet``: policy, metric, t, mean, std, sem."""
    parts = [
        {"policy": policy, "metric": metric, **vars(curve)}
        for policy, metrics in curves.items()
        for metric, curve in metrics.items()
    ]
    _write_frame(parts, out / MEANS)


def read_curves(folder: str | os.PathLike[str]) -> Curves:
    """Read back the curves in a folder."""
    frame: Any = read_frame(_present(Path(folder), MEANS))
    out: dict[str, dict[str, Curve]] = {}
    for (policy, metric), part in frame.groupby(["policy", "metric"], sort=False):
        columns = ("t", "mean", "std", "sem")
        numbers = (torch.tensor(part[name].to_numpy()) for name in columns)
        out.setdefault(policy, {})[metric] = Curve(*numbers)
    return out


def write_boxes(
    runs: Mapping[str, Run],
    every: Mapping[str, int],
    metrics: tuple[str, ...],
    out: Path,
) -> pandas.DataFrame:
    """Write ``boxes.parquet``, policy, metric, t, trial, value; return the frame.

    The values are each trial's time averages, every ``every[policy]`` rounds, or every
    ``every["each"]`` rounds.
    """
    parts = []
    for policy, run in runs.items():
        # a shorter run has one box, at its last round
        step = min(every.get(policy, every["each"]), run.rounds)
        t = torch.arange(step, run.rounds + 1, step)
        for metric in metrics:
            total = account.time_average(run.cumulative(metric))
            values = total.reshape(-1, run.rounds)[:, t - 1]
            part = {"policy": policy, "metric": metric, "t": t.repeat(len(values))}
            part["trial"] = torch.arange(len(values)).repeat_interleave(len(t))
            parts.append({**part, "value": values.reshape(-1)})
    return _write_frame(parts, out / BOXES)


def read_boxes(folder: Path) -> pandas.DataFrame | None:
    """Read back the boxes in a folder; ``None`` if there are none."""
    path = table(folder, BOXES)
    return None if path is None else read_frame(path)


# ---------------------------------------------------------------------- every round


def write_rounds(runs: Sequence[Run], out: Path, every: int = 1) -> None:
    """Write the rows of :meth:`Run.frame` of all runs to ``rounds.parquet``.

    With several costs there are columns of :meth:`Run.violations` too.

    Columns that a policy does not have, such as multipliers, are null in its rows.

    Args:
        runs: the runs, of different policies.
        out: the folder.
        every: keep one round in ``every``, and the last one.
    """
    scale = scales(runs)
    first_rows = (_frame(_part(run, 0, 1), scale)[:1] for run in runs)
    heads = [pyarrow.Table.from_pandas(rows) for rows in first_rows]
    schemas = [head.schema.remove_metadata() for head in heads]
    schema = pyarrow.unify_schemas(schemas, promote_options="permissive")
    schema, checked = schema.with_metadata({"every": str(every)}), True
    with (
        atomic(out / ROUNDS) as file,
        parquet.ParquetWriter(file, schema, write_page_checksum=checked) as writer,
    ):
        none = schema.empty_table()
        for run in runs:
            trials = 1 if run.trials is None else len(run.trials)
            step = max(1, ROWS // max(1, run.rounds))
            for first in range(0, trials, step):
                frame = _frame(_part(run, first, first + step), scale)
                frame = frame[(frame.t % every == 0) | (frame.t == run.rounds)]
                # by numpy arrays, in which NaN is not null
                rows = pyarrow.table({k: frame[k].to_numpy() for k in frame})
                whole = pyarrow.concat_tables(
                    [none, rows], promote_options="permissive"
                )
                writer.write_table(whole)


def _frame(run: Run, scale: torch.Tensor) -> pandas.DataFrame:
    """Return a run's frame, with each cost's violations; mixed types become texts."""
    frame = run.frame()
    for name, total in run.violations(scale).items():
        frame[name] = total.reshape(-1).numpy()
    mixed = frame.columns[frame.dtypes.map(str) == "object"]
    return frame.astype(dict.fromkeys(mixed, str))


def _part(run: Run, first: int, stop: int) -> Run:
    """Return the run of the trials at positions ``first`` to ``stop - 1``."""
    if run.trials is None:
        return run
    cut: dict[str, Any] = {
        name: value[first:stop]
        for name, value in vars(run).items()
        if isinstance(value, torch.Tensor) and name != "seconds"
    }
    return replace(run, trials=run.trials[first:stop], **cut)


def read_rounds(folder: Path, last: bool = False) -> pandas.DataFrame:
    """Read a folder's rounds as a pandas frame; with ``last``, only the last round."""
    with _rounds_of(folder) as path:
        wanted = None
        if last:
            wanted = [("t", "==", read_frame(path, columns=["t"]).t.max())]
        return read_frame(path, filters=wanted)


def rounds_in_words(folder: Path) -> str:
    """Return which rows the folder's file holds, in words."""
    with _rounds_of(folder) as path:
        about, size = parquet.read_metadata(path), path.stat().st_size
    every = int((about.metadata or {}).get(b"every", 1))
    which = "round" if every == 1 else f"round in {every}, and the last"
    rows = f"{about.num_rows} rows, one a policy, trial and {which}"
    return f"{path}: {rows} ({size / 1e6:.2g} MB)"


@contextmanager
def _rounds_of(folder: Path) -> Iterator[Path]:
    """Yield the path of a folder's rounds; reading errors name the file."""
    path = _present(folder, ROUNDS)
    try:
        yield path
    except (OSError, KeyError, ValueError) as error:
        raise CBanditError(
            f"{path} is not one of ours, or broken: {error}; {AGAIN}"
        ) from None
