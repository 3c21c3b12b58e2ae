"""Read a table of measurements: knobs, target, limits, repeats and missing cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from cbandit._core import checks
from cbandit._core.hints import near
from cbandit._core.log import warn
from cbandit._core.randomness import Streams, Trials
from cbandit.actions import Category, Finite, Float, Int, Names
from cbandit.actions.names import plain
from cbandit.errors import CBanditError
from cbandit.problems.protocol import uniforms

if TYPE_CHECKING:
    import pandas as pd

SHOWN = 5  # rows that a warning names
FEW = 20  # with at most so many rows, their settings may well all differ
RESAMPLED = "rows"  # the stream that draws rows
SPAN = 10**6  # whole numbers that span more than this make a Float, not an Int
WORDS = {
    **dict.fromkeys(("true", "yes", "1", "1.0"), 1.0),
    **dict.fromkeys(("false", "no", "0", "0.0"), 0.0),
}


@dataclass(frozen=True)
class Measured:
    """The content of a frame of measurements.

    Args:
        actions: the configurations, each once, with names.
        reward: means of the target, ``(N,)``, as in the frame; NaN where no row was
            measured. ``(*trials, N)`` if rows are resampled.
        costs: means of the costs, ``(m, N)`` or ``(*trials, m, N)``, likewise.
        noise: variance of the reward; or the outcomes to draw from.
        cost_noise: variances of the costs, ``(m,)``; ``None`` if outcomes are drawn.
        dropped: the rows that were left out, by the frame's labels.
        repeats: how many rows were measured on configurations seen before.
        failed: the share of each configuration's rows that failed, ``(N,)``; ``None``:
            no row did.
        binary: which of target and limits are columns of yes and no.
    """

    actions: Finite
    reward: Tensor
    costs: Tensor
    noise: Tensor | Outcomes
    cost_noise: Tensor | None
    dropped: tuple[Any, ...]
    repeats: int
    failed: Tensor | None
    binary: tuple[bool, ...]


@dataclass(frozen=True)
class Outcomes:
    """Noise drawn from each configuration's measurements, reward and costs together.

    Args:
        apart: deviations from the mean, ``(N, R, 1 + m)``, padded by zeros.
        count: how many deviations each configuration has, ``(N,)``.
    """

    apart: Tensor
    count: Tensor

    def __call__(
        self, index: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Return noise ``(*trials,)`` and ``(*trials, m)`` at the actions ``index``."""
        draws = uniforms(generator, tuple(index.shape), 1)[..., 0]
        noise = self.apart[index, (draws * self.count[index]).long()]
        return noise[..., 0], noise[..., 1:]


def measured(
    frame: pd.DataFrame,
    target: str,
    limits: Sequence[str],
    knobs: Sequence[str] | Mapping[str, Any] | None,
    noise: object,
    repeats: str,
    failed: str | bool | None = None,
    trials: Trials = None,
    seed: int = 0,
) -> Measured:
    """Read a frame; see :meth:`cbandit.problems.Table.from_frame`."""
    import pandas as pd

    if not isinstance(frame, pd.DataFrame):
        raise CBanditError(f"frame must be a pandas frame; got {checks.kind(frame)}")
    checks.one_of("repeats", repeats, "mean", "draw", "resample")
    if knobs is not None:
        column_names("knobs", knobs)
    outcomes, marked = [target, *limits], [failed] if isinstance(failed, str) else []
    taken = [*outcomes, *marked]
    chosen = [c for c in frame.columns if c not in taken] if knobs is None else knobs
    used = [*outcomes, *chosen]
    _check_columns(frame, [*used, *marked], list(chosen))
    lost = _lost(frame, outcomes, failed)
    whole, lost, dropped = _complete(frame, used, outcomes, lost)
    if knobs is None:
        _rows_apart(whole, list(chosen))
    told = whole.loc[~lost]
    kinds = [yes_or_no(told[c]) for c in outcomes]
    values = np.full((len(whole), len(outcomes)), np.nan)  # rows x 1 + m
    for j, (name, binary) in enumerate(zip(outcomes, kinds, strict=True)):
        values[~lost, j] = truths(told, name) if binary else _numbers(told, name)
    stated = knobs if isinstance(knobs, Mapping) else {}
    parameters = {c: stated.get(c) or _parameter(whole[c]) for c in chosen}
    names = Names(parameters)
    x = np.stack([_coordinates(whole, c, parameters[c]) for c in chosen], -1)
    points, group = np.unique(x, axis=0, return_inverse=True)
    group, size = group.reshape(-1), len(points)
    fails = np.bincount(group[lost], minlength=size)
    values, group = values[~lost], group[~lost]
    count = np.bincount(group, minlength=size)
    totals = [np.bincount(group, column, minlength=size) for column in values.T]
    means = np.stack(totals) / np.where(count, count, np.nan)  # (1 + m) x N
    apart, again = values - means[:, group].T, len(values) - int((count > 0).sum())
    actions = Finite(torch.from_numpy(points))
    actions.names = names
    f, g = torch.from_numpy(means[0]), torch.from_numpy(means[1:])
    share = torch.from_numpy(fails / (count + fails)) if lost.any() else None
    if repeats == "draw":
        if noise is not None:
            raise CBanditError("noise= goes with repeats='mean': outcomes are drawn")
        law: Tensor | Outcomes = _drawn(apart, group, count)
        variance = None
    else:
        if repeats == "resample":
            streams = Streams(seed, trials, RESAMPLED)
            drawn = _resampled(values, group, count, streams)
            f, g = drawn[..., 0, :], drawn[..., 1:, :]
        lam = _variances(noise, outcomes, apart, again)
        law, variance = lam[0], lam[1:]
    return Measured(actions, f, g, law, variance, dropped, again, share, tuple(kinds))


def _lost(
    frame: pd.DataFrame, outcomes: list[str], failed: str | bool | None
) -> np.ndarray:
    """Return which rows failed, see :meth:`cbandit.problems.Table.from_frame`."""
    if isinstance(failed, str):
        # an empty cell says that nothing failed
        return np.asarray(truths(frame, failed) == 1)
    if failed not in (None, True):
        raise CBanditError(
            "failed must be a column of true and false, True (rows without any outcome "
            f"failed) or None; got {failed!r}"
        )
    empty: np.ndarray = frame[outcomes].isna().all(axis=1).to_numpy()
    return empty & bool(failed)


def yes_or_no(column: pd.Series[Any]) -> bool:
    """Return whether a column of outcomes holds yes and no, true and false, or 0 and 1.

    A column of zeros alone, or of ones alone, is a column of numbers.
    """
    distinct = {plain(value) for value in column.dropna().unique()}
    if distinct and all(isinstance(value, bool | str) for value in distinct):
        return all(str(value).strip().lower() in WORDS for value in distinct)
    return distinct == {0, 1}


def truths(frame: pd.DataFrame, name: str) -> np.ndarray:
    """Return a column of true and false as ones and zeros, or raise.

    Missing cells are NaN.
    """
    column = frame[name]
    values = column.map(lambda value: WORDS.get(str(value).strip().lower()))
    odd = values.isna() & column.notna()
    if bool(odd.any()):
        first = int(np.flatnonzero(odd)[0])
        raise CBanditError(
            f"column {name!r} must hold true and false, yes and no or 1 and 0; "
            f"{_row(frame, frame.index[first])} has {plain(column.iloc[first])!r}"
        )
    return values.to_numpy(dtype=np.float64)


def column_names(name: str, columns: object) -> None:
    """Raise unless an argument lists columns by their names."""
    listed = isinstance(columns, Sequence | Mapping) and not isinstance(columns, str)
    names = tuple(columns) if isinstance(columns, Sequence | Mapping) else ()
    if not listed or not all(isinstance(column, str) for column in names):
        raise CBanditError(
            f"{name} must list the names of columns, ['threads', 'codec']; got "
            f"{columns!r:.200}"
        )


def _check_columns(frame: pd.DataFrame, used: list[Any], chosen: list[Any]) -> None:
    """Raise if a column is missing, used twice, not named by a string, or of dates."""
    known = list(frame.columns)
    for name in used:
        if known.count(name) != 1:
            count = "several" if name in known else "none"
            meant = near(str(name), map(str, known))
            hint = f"; did you mean {meant!r}?" if meant and meant != name else ""
            raise CBanditError(
                f"frame must have one column {name!r}; it has {count} among "
                f"{', '.join(map(str, known))}{hint}"
            )
        if used.count(name) > 1:
            raise CBanditError(
                f"{name!r} must be one of a knob, the target or a limit; it is several"
            )
        if not isinstance(name, str):
            raise CBanditError(f"columns must be named by strings; got {name!r}")
    if not chosen:
        raise CBanditError("knobs must hold at least one column; got none")
    for name in used:
        if getattr(frame[name].dtype, "kind", "O") in "mM":
            others = [column for column in used if column != name]
            raise CBanditError(
                f"column {name!r} holds dates or times, which are no settings and no "
                f"measurements: leave it out (knobs= names those that count, of "
                f"{others}) or make numbers or texts of it"
            )


def _rows_apart(frame: pd.DataFrame, chosen: list[str]) -> None:
    """Warn of columns that seem to number or date the rows rather than set anything."""
    if len(frame) <= FEW or len(chosen) == 1:
        return
    odd = [name for name in chosen if apart(frame[name])]
    if odd:
        others = [name for name in chosen if name not in odd]
        warn(
            f"{', '.join(map(repr, odd))}: another value in each of the {len(frame)} "
            "rows. If that numbers or dates the rows and sets nothing, name the knobs: "
            f"knobs={others}"
        )


def apart(column: pd.Series[Any]) -> bool:
    """Return whether a column holds texts or whole numbers, and no value twice."""
    if column.nunique() < len(column):
        return False
    kind = getattr(column.dtype, "kind", "O")
    whole = kind in "iu" or (kind == "f" and bool((column == column.round()).all()))
    return whole or kind not in "fb"


def _complete(
    frame: pd.DataFrame, used: list[Any], outcomes: list[str], lost: np.ndarray
) -> tuple[pd.DataFrame, np.ndarray, tuple[Any, ...]]:
    """Return rows without missing cells, which ones failed, and other rows' labels.

    A row that failed may lack its outcomes. An error if no other row is left.
    """
    missing = frame[used].isna()
    missing.loc[lost, outcomes] = False
    gone = missing.any(axis=1).to_numpy()
    whole = frame.loc[~gone, used]
    if not (~lost[~gone]).any():
        raise CBanditError(
            "frame must have a row that did not fail and misses no cell; it has none"
            if lost.any()
            else "frame must have a row without missing cells; it has none"
        )
    dropped = tuple(frame.index[gone].tolist())
    if dropped:
        cells = [
            f"{label} ({', '.join(c for c in used if row[c])})"
            for label, row in missing[gone].head(SHOWN).iterrows()
        ]
        more = f" and {len(dropped) - SHOWN} more" if len(dropped) > SHOWN else ""
        warn(
            f"{len(dropped)} of {len(frame)} rows have missing cells and are left out: "
            f"{', '.join(cells)}{more}"
        )
    return whole, lost[~gone], dropped


def _numbers(frame: pd.DataFrame, name: str) -> np.ndarray:
    """Return a column of outcomes as numbers; raise unless all are finite numbers."""
    column = frame[name]
    try:
        values = column.to_numpy(dtype=np.float64)
    except (TypeError, ValueError):
        raise CBanditError(
            f"column {name!r} must hold numbers; got {_odd(column)}"
        ) from None
    most = checks.LARGEST[torch.float64]
    odd = np.flatnonzero(~(np.abs(values) <= most))
    if odd.size:
        at = int(odd[0])
        words = f"at most {most:.3g} in size" if np.isfinite(values[at]) else "finite"
        raise CBanditError(
            f"column {name!r} must be {words}; {_row(frame, frame.index[at])} has "
            f"{values[at]}"
        )
    return values


def _odd(column: pd.Series[Any]) -> str:
    """Return the first value that is no number, and its row, in words."""
    for label, value in column.items():
        try:
            float(value)
        except (TypeError, ValueError):
            return f"{value!r} in {_row(column, label)}"
    return str(column.dtype)


def _row(rows: pd.DataFrame | pd.Series[Any], label: object) -> str:
    """Return the name of a row, such as ``row 3``, or ``line 3`` of a file."""
    return f"{rows.index.name or 'row'} {label}"


def _parameter(column: pd.Series[Any]) -> Int | Float | Category:
    """Return the parameter whose settings a column holds."""
    kind = column.dtype.kind if hasattr(column.dtype, "kind") else "O"
    if kind in "iuf":
        values = column.to_numpy(dtype=np.float64)
        low, high = float(values.min()), float(values.max())
        if bool((values == np.rint(values)).all()) and high - low < SPAN:
            return Int(int(low), int(high))
        if low < high:
            return Float(low, high)
        return Category(low)
    options = list(dict.fromkeys(plain(value) for value in column))
    return Category(*sorted(options, key=lambda option: (str(type(option)), option)))


def _coordinates(frame: pd.DataFrame, name: str, parameter: object) -> np.ndarray:
    if not isinstance(parameter, Int | Float | Category):
        raise CBanditError(
            f"knobs: {name} must be a cb.Int, a cb.Float or a cb.Category; got "
            f"{parameter!r}"
        )
    places = np.empty(len(frame))
    for i, (label, value) in enumerate(frame[name].items()):
        place = parameter.place(plain(value))
        if place is None:
            raise CBanditError(
                f"column {name!r} must be of {parameter!r}; {_row(frame, label)} has "
                f"{value!r}"
            )
        places[i] = place
    return places


def _variances(
    noise: object, outcomes: list[str], apart: np.ndarray, free: int
) -> Tensor:
    """Return the variance of each outcome: as given, or as estimated from repeats."""
    if isinstance(noise, Mapping):
        if set(noise) != set(outcomes):
            raise CBanditError(
                f"noise must name each of {', '.join(outcomes)}; got {list(noise)}"
            )
        noise = [noise[name] for name in outcomes]
    if noise is not None:
        told = checks.nonnegative("noise", noise)
        return checks.shaped("noise", told, (len(outcomes),), "a number or (1 + m,)")
    if not free:
        return torch.zeros(len(outcomes), dtype=torch.float64)
    return torch.from_numpy((apart**2).sum(0) / free)


def _resampled(
    values: np.ndarray, group: np.ndarray, count: np.ndarray, streams: Streams
) -> Tensor:
    """Return means ``(*trials, 1 + m, N)`` over rows each trial draws with replacement.

    Each configuration keeps its number of rows; one without rows has NaN means.
    """
    if int(count.max(initial=0)) < 2:
        raise CBanditError(
            "repeats='resample' draws among the rows of a configuration, and none has "
            "several here: measure some again, or give noise= and repeats='mean'"
        )
    order = np.argsort(group, kind="stable")
    first = np.concatenate([[0], np.cumsum(count)[:-1]])[group]
    draws = streams.uniform(len(values)).numpy()  # *trials x rows
    rows = order[first + (draws * count[group]).astype(np.int64)]
    out = np.zeros((*draws.shape[:-1], values.shape[1], len(count)))
    np.add.at(np.moveaxis(out, -1, 0), group, np.moveaxis(values[rows], -2, 0))
    return torch.from_numpy(out / np.where(count, count, np.nan))


def _drawn(apart: np.ndarray, group: np.ndarray, count: np.ndarray) -> Outcomes:
    """Return the outcomes of each configuration."""
    order = np.argsort(group, kind="stable")
    first = np.concatenate([[0], np.cumsum(count)[:-1]])
    place = np.arange(len(group)) - first[group[order]]
    out = np.zeros((len(count), int(count.max()), apart.shape[1]))
    out[group[order], place] = apart[order]
    return Outcomes(torch.from_numpy(out), torch.from_numpy(count))
