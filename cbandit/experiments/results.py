"""Results: the files that an experiment leaves in its folder."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from cbandit import account
from cbandit._core.files import atomic, file_digest, sealed, unsealed
from cbandit.errors import CBanditError, MissingExtraError
from cbandit.experiments.settings import Settings
from cbandit.simulation.curves import Curve, Curves, mean_and_sem
from cbandit.simulation.run import Run

__all__ = [
    "POINTS",
    "read_boxes",
    "read_curves",
    "read_frame",
    "read_summary",
    "summarise",
    "table",
    "versions",
    "write_boxes",
    "write_curves",
    "write_summary",
]

_KIND = re.compile(r"u?int\d+|float|double|bool|(dictionary<values=)?(large_)?string.*")
TABLES = ("rounds.parquet", "means.parquet", "boxes.parquet")
RATIO, SPARE = (
    250,
    1 << 26,
)  # what is read is at most so many times as large as its file
SEAL = (',\n "digest": "', '"\n}')  # the last key of summary.json
POINTS = 1000  # rounds kept of each curve in means.parquet: well below a megabyte each
PACKAGES = (
    "cbandit",
    "torch",
    "gpytorch",
    "botorch",
    "linear_operator",
    "numpy",
    "scipy",
    "triton",
)


# ---------------------------------------------------------------------- summary.json


def summarise(
    settings: Settings,
    runs: Mapping[str, Run],
    status: Mapping[str, str],
    changes: tuple[int, ...] = (),
) -> dict[str, Any]:
    """Final values of all runs, with the settings and versions that made them.

    Args:
        settings: of the experiment.
        runs: by policy.
        status: by policy, of those without a run too.
        changes: the first rounds of the world's later phases, each accounted for apart.
    """
    policies: dict[str, Any] = {}
    for name, state in status.items():
        policies[name] = {"status": state}
        if name in runs:
            short = runs[name].summary()
            policies[name] = {
                **{metric: dict(each) for metric, each in short.items()},
                "soft_violation_over": soft_violation_over(runs[name]),
                "seconds_per_round": short.seconds_per_round,
                "status": state,
            }
            if changes:
                policies[name]["phases"] = _phases(runs[name], changes)
    return {
        "experiment": settings.experiment,
        "parameters": settings.parameters,
        "horizon": settings.horizon,
        "trials": settings.trials,
        "device": settings.device,
        "dtype": settings.dtype,
        "seed": settings.seed,
        "versions": versions(),
        "policies": policies,
    }


def soft_violation_over(run: Run) -> int | None:
    """The round from which the soft violation is 0 in every trial; ``None``: never."""
    worst = run.soft_violation.reshape(-1, run.rounds).amax(0)
    first = int((worst > 0).nonzero().max()) + 2 if bool((worst > 0).any()) else 1
    return first if first <= run.rounds else None


def _phases(run: Run, changes: tuple[int, ...]) -> list[dict[str, Any]]:
    """Reward, regret and hard violation a round within each phase of the world."""
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


def versions() -> dict[str, str]:
    """The versions of the library and of all that its numbers depend on."""
    out = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in PACKAGES:
        try:
            out[name] = version(name)
        except PackageNotFoundError:
            out[name] = "not installed"
    return out


def write_summary(summary: dict[str, Any], out: Path) -> None:
    """Write ``summary.json``, with digests of the tables beside it and of itself."""
    digests = {k: file_digest(out / k) for k in TABLES if (out / k).exists()}
    text = json.dumps(_without_nan({**summary, "tables": digests}), indent=1)
    with atomic(out / "summary.json") as file:
        file.write(sealed(text.removesuffix("\n}"), *SEAL))


def _without_nan(value: Any) -> Any:
    """NaN is no JSON: ``null`` instead, where a number is not known."""
    if isinstance(value, dict):
        return {key: _without_nan(each) for key, each in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_summary(folder: Path) -> dict[str, Any]:
    """Read ``summary.json``, and make sure that the tables beside it are whole."""
    summary = _summary(folder)
    for name in summary.pop("tables"):
        table(folder, name)
    del summary["digest"]
    return summary


def _summary(folder: Path) -> dict[str, Any]:
    """Read ``summary.json``; an error unless it is, to the bit, what was written."""
    path, again = folder / "summary.json", "without that file --resume computes it all"
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise CBanditError(f"{path} cannot be read ({error}); {again} again") from None
    if not unsealed(raw, *SEAL):
        raise CBanditError(
            f"{path} is not the summary of an experiment, or broken (its checksum "
            f"fails); {again} again"
        )
    try:
        found: Any = json.loads(raw)
        ours = found["tables"].keys() <= {*TABLES} and isinstance(
            found["policies"], dict
        )
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
        ours = False
    if not ours:
        raise CBanditError(f"{path} is not the summary of an experiment; {again} again")
    summary: dict[str, Any] = found
    return summary


def table(folder: Path, name: str) -> Path | None:
    """Where a table lies, the very one of which the folder's summary tells.

    ``None`` if it tells of none; an error if the table is missing or has changed.
    """
    path = folder / name
    if not (folder / "summary.json").is_file():
        advice = ""
        if (folder / "config.toml").is_file():
            advice = (
                "; its experiment is under way or was interrupted: the same command "
                "with --resume goes on with it"
            )
        raise CBanditError(
            f"{folder} holds no results: {folder / 'summary.json'} is missing{advice}"
        )
    wanted = _summary(folder)["tables"].get(name)
    if wanted is None:
        return None
    if not path.is_file():
        raise CBanditError(
            f"{folder} holds no results: {path} is missing; --resume computes it all "
            "again"
        )
    try:
        found = file_digest(path)
    except OSError as error:
        raise CBanditError(f"{path} cannot be read: {error.strerror}") from None
    if found != wanted:
        raise CBanditError(
            f"{path} is not one of ours, or broken (its checksum fails); without that "
            "file --resume computes it all again"
        )
    if _inflates(path):
        raise CBanditError(
            f"{path} is not one of ours: it would take far more memory than its size; "
            "without that file --resume computes it all again"
        )
    return path


def _inflates(path: Path) -> bool:
    """Return whether a table would become far larger than its file when it is read."""
    about = _parquet().read_metadata(path)
    groups = [about.row_group(k) for k in range(about.num_row_groups)]
    chunks = [(g.num_rows, g.column(k)) for g in groups for k in range(g.num_columns)]
    # runs of one value take no room in a file, and other codecs than ours a thousandth
    plain = all(
        chunk.num_values == rows and chunk.compression in ("SNAPPY", "UNCOMPRESSED")
        for rows, chunk in chunks
    )
    # other columns than numbers and texts are not ours, whatever they stand for
    kinds = {str(field.type) for field in _parquet().read_schema(path)}
    plain = plain and all(map(_KIND.fullmatch, kinds))
    size = 8 * sum(rows for rows, _ in chunks)
    return not plain or size > SPARE + RATIO * path.stat().st_size


def read_frame(path: Path, **options: Any) -> Any:
    """Read a table as a pandas frame; equal texts are one object, however many."""
    parquet = _parquet()
    fields = parquet.read_schema(path)
    texts = [f.name for f in fields if str(f.type) in ("string", "large_string")]
    options |= {"read_dictionary": texts, "page_checksum_verification": True}
    frame = parquet.read_table(path, **options).to_pandas()
    return frame.astype({name: object for name in texts if name in frame})


# -------------------------------------------------------------------------- parquet


def _pandas() -> Any:
    _parquet()
    import pandas

    return pandas


def _parquet() -> Any:
    try:
        import pandas  # noqa: F401  frames are pandas'
        import pyarrow.parquet
    except ImportError:
        raise MissingExtraError(
            "experiments need pandas, pyarrow and matplotlib: pip install "
            "'cbandit[experiments]'"
        ) from None
    return pyarrow.parquet


def write_curves(table: Curves, out: Path) -> None:
    """Write ``means.parquet``: policy, metric, t, mean, std, sem."""
    pandas = _pandas()
    parts = [
        pandas.DataFrame(
            {
                "policy": policy,
                "metric": metric,
                "t": curve.t.numpy(),
                "mean": curve.mean.numpy(),
                "std": curve.std.numpy(),
                "sem": curve.sem.numpy(),
            }
        )
        for policy, each in table.items()
        for metric, curve in each.items()
    ]
    _write_frame(parts, out / "means.parquet")


def read_curves(folder: str | os.PathLike[str]) -> Curves:
    """Read back the curves in a folder."""
    frame = _frame(Path(folder), "means.parquet")
    out: dict[str, dict[str, Curve]] = {}
    for (policy, metric), part in frame.groupby(["policy", "metric"], sort=False):
        columns = ("t", "mean", "std", "sem")
        numbers = (torch.tensor(part[name].to_numpy()) for name in columns)
        out.setdefault(policy, {})[metric] = Curve(*numbers)
    return out


def _frame(folder: Path, name: str) -> Any:
    path = table(folder, name)
    if path is None:
        return None
    return read_frame(path)


def _write_frame(parts: list[Any], path: Path) -> Any:
    whole = _pandas().concat(parts, ignore_index=True)
    with atomic(path) as file:
        whole.to_parquet(file, index=False, write_page_checksum=True)
    return whole


def write_boxes(
    runs: Mapping[str, Run],
    every: Mapping[str, int],
    metrics: tuple[str, ...],
    out: Path,
) -> Any:
    """Write ``boxes.parquet``, policy, metric, t, trial, value; return the frame.

    These are each trial's time averages every so many rounds: ``every[policy]``, or
    ``every["each"]``.
    """
    pandas = _pandas()
    parts = []
    for policy, run in runs.items():
        # a run that is shorter has one box, of its last round
        step = min(every.get(policy, every["each"]), run.rounds)
        t = torch.arange(step, run.rounds + 1, step)
        for metric in metrics:
            total = account.time_average(run.cumulative(metric))
            values = total.reshape(-1, run.rounds)[:, t - 1]
            trials = torch.arange(len(values)).unsqueeze(-1).expand_as(values)
            parts.append(
                pandas.DataFrame(
                    {
                        "policy": policy,
                        "metric": metric,
                        "t": t.expand_as(values).reshape(-1).numpy(),
                        "trial": trials.reshape(-1).numpy(),
                        "value": values.reshape(-1).numpy(),
                    }
                )
            )
    return _write_frame(parts, out / "boxes.parquet")


def read_boxes(folder: Path) -> Any:
    """Read back the boxes in a folder; ``None`` where there are none."""
    return _frame(folder, "boxes.parquet")
