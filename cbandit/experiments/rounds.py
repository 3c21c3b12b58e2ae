"""Every round of an experiment: ``rounds.parquet``, a row a policy, trial and round."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from cbandit._core.files import atomic
from cbandit.errors import CBanditError, MissingExtraError
from cbandit.experiments.results import read_frame, table
from cbandit.simulation.run import Run

__all__ = ["read_rounds", "rounds_in_words", "write_rounds"]

FILE = "rounds.parquet"
ROWS = 500_000  # turned into a table at once: about 100 MB


def write_rounds(runs: Sequence[Run], out: Path, every: int = 1) -> None:
    """Write the rows of :meth:`Run.frame` of all runs, as ``rounds.parquet``.

    Columns that a policy lacks, such as another's multipliers, are null in its rows.

    Args:
        runs: of different policies.
        out: the folder.
        every: keep every so many rounds, and the last.
    """
    pyarrow, _ = _arrow()
    heads = [pyarrow.Table.from_pandas(_frame(_part(run, 0, 1))[:1]) for run in runs]
    known = [head.schema.remove_metadata() for head in heads]
    schema = pyarrow.unify_schemas(known, promote_options="permissive")
    schema = schema.with_metadata({"every": str(every)})
    with atomic(out / FILE) as file, _writer(file, schema) as writer:
        for run in runs:
            for frame in _frames(run, every):
                found = {name: frame[name] for name in schema.names if name in frame}
                missing = pyarrow.nulls(len(frame))
                columns = [
                    pyarrow.array(found[name], each.type, from_pandas=False)
                    if name in found
                    else missing.cast(each.type)
                    for name, each in zip(schema.names, schema, strict=True)
                ]
                writer.write_table(pyarrow.table(columns, schema=schema))


def _writer(file: Any, schema: Any) -> Any:
    return _arrow()[1].ParquetWriter(file, schema, write_page_checksum=True)


def _frames(run: Run, every: int) -> Iterator[Any]:
    """The rows of a run, some trials at a time."""
    trials = 1 if run.trials is None else len(run.trials)
    step = max(1, ROWS // max(1, run.rounds))
    for first in range(0, trials, step):
        frame = _frame(_part(run, first, first + step))
        yield frame[(frame.t % every == 0) | (frame.t == run.rounds)]


def _frame(run: Run) -> Any:
    """A run's frame, with categories as texts: a column has one type."""
    frame = run.frame()
    for name in [n for n, kind in frame.dtypes.items() if str(kind) == "object"]:
        frame[name] = frame[name].map(str)
    return frame


def _part(run: Run, first: int, stop: int) -> Run:
    """The run's trials from place ``first`` to before ``stop``."""
    if run.trials is None:
        return run
    cut: dict[str, Any] = {}
    for each in fields(Run):
        value = getattr(run, each.name)
        if isinstance(value, Tensor) and each.name != "seconds":
            cut[each.name] = value[first:stop]
    return replace(run, trials=run.trials[first:stop], **cut)


def read_rounds(folder: Path, last: bool = False) -> Any:
    """Read the rows of a folder as a pandas frame; with ``last``, of its last round."""
    with _ours(folder) as path:
        wanted = None
        if last:
            rounds = read_frame(path, columns=["t"])
            wanted = [("t", "==", rounds.t.max())]
        return read_frame(path, filters=wanted)


def rounds_in_words(folder: Path) -> str:
    """Say which rows the folder's file holds."""
    _, parquet = _arrow()
    with _ours(folder) as path:
        about, size = parquet.read_metadata(path), path.stat().st_size
    every = int((about.metadata or {}).get(b"every", 1))
    which = "round" if every == 1 else f"round in {every}, and the last"
    each = f"{about.num_rows} rows, one a policy, trial and {which}"
    return f"{path}: {each} ({size / 1e6:.2g} MB)"


@contextmanager
def _ours(folder: Path) -> Iterator[Path]:
    """The folder's file, with errors of reading it in our words."""
    path = table(folder, FILE)
    if path is None:
        raise CBanditError(f"{folder} holds no results: no {FILE} in its summary")
    try:
        yield path
    except (OSError, KeyError, ValueError) as error:
        raise CBanditError(
            f"{path} is not one of ours, or broken: {error}; without that file "
            "--resume computes it all again"
        ) from None


def _arrow() -> tuple[Any, Any]:
    try:
        import pandas  # noqa: F401  frames come from it
        import pyarrow
        import pyarrow.compute
        import pyarrow.parquet
    except ImportError:
        raise MissingExtraError(
            "experiments need pandas, pyarrow and matplotlib: pip install "
            "'cbandit[experiments]'"
        ) from None
    return pyarrow, pyarrow.parquet
