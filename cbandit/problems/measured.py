"""Tables of measurements, read into actions, outcomes, limits and noise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cbandit._core import checks
from cbandit.actions import Actions, Finite, ProductGrid
from cbandit.actions.names import Category, Float, Int, Names, Parameter
from cbandit.errors import CBanditError
from cbandit.problems.protocol import uniforms

__all__ = ["Measured", "Repeats", "measured"]

SHOWN = 12  # rows that a remark names
WIDE = 10**5  # values between the ends of whole numbers, from which they are plain ones


@dataclass(frozen=True)
class Measured:
    """A table of measurements as the arguments of a problem.

    Args:
        actions: the configurations, with the names of their columns.
        reward: mean outcome of each, ``(N,)``.
        costs: likewise, ``(m, N)``.
        thresholds: by the costs' names, as the user states them.
        minimise: whether the reward is to be small.
        noise: variance of the reward, or :class:`Repeats`.
        cost_noise: ``(m,)``, or ``None`` with :class:`Repeats`.
        remarks: on what was left out or put together.
    """

    actions: Actions
    reward: Tensor
    costs: Tensor
    thresholds: dict[str, Any]
    minimise: bool
    noise: Any
    cost_noise: Any
    remarks: tuple[str, ...]


@dataclass(frozen=True)
class Repeats:
    """Noise drawn from the repeated measurements of each action.

    Args:
        deviations: of every measurement from its action's mean, ``(R, 1 + m)``, in the
            actions' order.
        first: the place of each action's first, ``(N,)``.
        count: how many each action has, ``(N,)``.
    """

    deviations: Tensor
    first: Tensor
    count: Tensor

    def __call__(
        self, index: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Deviations ``(*trials,)`` and ``(*trials, m)`` at the actions ``index``."""
        share = uniforms(generator, tuple(index.shape), 1).squeeze(-1)
        row = self.first[index] + (share * self.count[index]).long()
        drawn = self.deviations[row]
        return drawn[..., 0], drawn[..., 1:]


def measured(
    frame: Any,
    goal: str,
    minimise: bool,
    limits: Mapping[str, Any],
    knobs: Sequence[str] | None,
    noise: Any,
) -> Measured:
    """Read a frame; arguments as for ``Table.from_frame``."""
    outcomes = [goal, *limits]
    knobs = _columns(frame, outcomes, knobs)
    used = frame[[*knobs, *outcomes]]
    for name in outcomes:
        _numbers(used[name])
    gaps = used.isna().any(axis=1) | used[outcomes].isin([math.inf, -math.inf]).any(
        axis=1
    )
    remarks = []
    if bool(gaps.any()):
        remarks.append(
            f"{int(gaps.sum())} of {len(frame)} rows miss a value and are left out: "
            f"{_rows(used.index[gaps])}"
        )
        used = used[~gaps]
    if used.empty:
        raise CBanditError("frame must hold at least one row without missing values")
    constant = [name for name in knobs if used[name].nunique() == 1]
    if constant and len(constant) < len(knobs):
        remarks.append(f"columns that never change are no knobs: {', '.join(constant)}")
        knobs = [name for name in knobs if name not in constant]
    parameters = {name: _parameter(used[name]) for name in knobs}
    names = Names(parameters)
    points = _points(used, parameters)  # R x d
    actions, number = _actions(points, names)
    values = torch.tensor(used[outcomes].to_numpy("float64").copy())  # R x (1 + m)
    count = torch.bincount(number, minlength=actions.size)
    total = torch.zeros(actions.size, len(outcomes), dtype=torch.float64)
    mean = total.index_add(0, number, values) / count.unsqueeze(-1)
    deviations = values - mean[number]
    again = len(used) - actions.size
    if again:
        remarks.append(
            f"{again} rows repeat a configuration; outcomes are means of "
            f"{int(count[count > 1].min())} to {int(count.max())} rows there"
        )
    spread: Tensor | Repeats
    if isinstance(noise, str):
        if noise != "drawn":
            raise _no_noise(noise, outcomes)
        order = number.argsort(stable=True)
        spread = Repeats(deviations[order], count.cumsum(0) - count, count)
    else:
        spread = _variances(noise, outcomes, deviations, again)
    told = spread if isinstance(spread, Tensor) else None
    return Measured(
        actions,
        mean[:, 0].contiguous(),
        mean[:, 1:].mT.contiguous(),
        dict(limits),
        minimise,
        spread if told is None else told[0],
        None if told is None else told[1:],
        tuple(remarks),
    )


def _columns(frame: Any, outcomes: list[str], knobs: Any) -> list[str]:
    """Return the knobs' columns; an error about columns that are not there."""
    known = [str(name) for name in frame.columns]
    if len(set(known)) < len(known):
        raise CBanditError(f"frame must have columns of different names; got {known}")
    if len(set(outcomes)) < len(outcomes):
        raise CBanditError(f"the goal and limits must be different; got {outcomes}")
    if knobs is None:
        knobs = [name for name in known if name not in outcomes]
    if isinstance(knobs, str) or not isinstance(knobs, Sequence):
        raise CBanditError(f"knobs must be a list of columns; got {knobs!r}")
    for name in [*outcomes, *knobs]:
        if name not in known:
            raise CBanditError(f"frame has no column {name!r}; it has {known}")
    twice = [name for name in knobs if name in outcomes]
    if twice:
        raise CBanditError(f"{twice[0]!r} is an outcome; it cannot be a knob too")
    if not knobs:
        raise CBanditError("knobs must hold at least one column; got none")
    return list(knobs)


def _numbers(column: Any) -> None:
    """Raise an error if an outcome's column holds anything but numbers."""
    import pandas

    kind = pandas.api.types
    if kind.is_numeric_dtype(column) and not kind.is_bool_dtype(column):
        return
    odd = column[pandas.to_numeric(column, errors="coerce").isna() & column.notna()]
    shown = f"; {_rows(odd.index[:1])} has {odd.iloc[0]!r}" if len(odd) else ""
    raise CBanditError(f"{column.name!r} must be a column of numbers{shown}")


def _parameter(column: Any) -> Parameter:
    """Return what a knob's column holds: whole numbers, numbers, or categories."""
    import pandas

    kind = pandas.api.types
    if kind.is_bool_dtype(column) or not kind.is_numeric_dtype(column):
        return Category(*sorted({_plain(each) for each in column}, key=str))
    low, high = float(column.min()), float(column.max())
    if not (math.isfinite(low) and math.isfinite(high)):
        raise CBanditError(f"{column.name!r} must hold finite numbers")
    whole = bool((column == column.round()).all())
    if (whole and high - low <= WIDE) or low == high:
        return Int(int(low), int(high)) if whole else Category(low)
    return Float(low, high)


def _plain(value: Any) -> Any:
    """A cell as a value of Python."""
    return value.item() if hasattr(value, "item") else value


def _points(used: Any, parameters: Mapping[str, Parameter]) -> Tensor:
    """Return the rows' configurations as coordinates ``(R, d)``."""
    columns = []
    for name, parameter in parameters.items():
        if isinstance(parameter, Category):
            place = {value: k for k, value in enumerate(parameter.options)}
            found = [float(place[_plain(each)]) for each in used[name]]
            columns.append(torch.tensor(found, dtype=torch.float64))
        else:
            columns.append(torch.tensor(used[name].to_numpy("float64").copy()))
    return torch.stack(columns, -1)


def _actions(points: Tensor, names: Names) -> tuple[Actions, Tensor]:
    """Return the set of all configurations, and each row's number in it."""
    unique, number = points.unique(dim=0, return_inverse=True)
    axes = [column.unique() for column in points.unbind(-1)]
    # sorted rows of all combinations are numbered as a product grid is
    whole = math.prod(len(axis) for axis in axes) == len(unique)
    actions: Actions = ProductGrid(axes) if whole else Finite(unique)
    actions.names = names
    return actions, number


def _variances(
    noise: Any, outcomes: list[str], deviations: Tensor, again: int
) -> Tensor:
    """Return the variance of each outcome, told or from repeats, ``(1 + m,)``."""
    if noise is None:
        if not again:
            return torch.zeros(len(outcomes), dtype=torch.float64)
        return deviations.square().sum(0) / again
    if isinstance(noise, Mapping):
        if set(noise) != set(outcomes):
            raise _no_noise(noise, outcomes)
        noise = [noise[name] for name in outcomes]
    each = checks.nonnegative("noise", checks.tensor("noise", noise))
    if each.dim() > 1 or each.numel() not in (1, len(outcomes)):
        raise _no_noise(noise, outcomes)
    return each.expand(len(outcomes)).clone()


def _no_noise(noise: Any, outcomes: list[str]) -> CBanditError:
    return CBanditError(
        f"noise must be a variance, one for each of {', '.join(outcomes)}, 'drawn' "
        f"(from repeated rows) or None (estimated from them); got {noise!r}"
    )


def _rows(labels: Any) -> str:
    """Name rows by the frame's index."""
    word = labels.name or "row"
    shown = ", ".join(map(str, labels[:SHOWN]))
    more = f" and {len(labels) - SHOWN} more" if len(labels) > SHOWN else ""
    return f"{word} {shown}{more}"
