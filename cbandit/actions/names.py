"""Parameters with names: whole numbers, numbers and categories.

The coordinates of a set with :class:`Names` are still numbers: the user's own, and
positions in categories. The names translate points to dicts and back.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor

from cbandit._core import checks
from cbandit._core.hints import hinted, near
from cbandit.errors import CBanditError

MOST = 10**6  # most values of one parameter
WIDEST = 10**6  # most numbers of one context
SHOWN = 4  # most numbers of a context that are printed
NEAR = 1e-6  # share of the step, or of the range, by which a number may miss a value


@hinted
@dataclass(frozen=True)
class Int:
    """A whole number from ``lo`` to ``hi``, both included.

    Args:
        lo: the least value.
        hi: the greatest value.
        log: whether beliefs use its logarithm.
    """

    lo: int
    hi: int
    log: bool = False

    def __repr__(self) -> str:
        return f"Int({self.lo}, {self.hi}{', log=True' * self.log})"

    def __post_init__(self) -> None:
        for name in ("lo", "hi"):
            whole = checks.whole(f"Int: {name}", getattr(self, name), None, "an int")
            object.__setattr__(self, name, whole)
        _ordered("Int", self.lo, self.hi, self.log, self.lo <= self.hi)
        _few("Int", self.hi - self.lo + 1)

    @cached_property
    def values(self) -> Tensor:
        """All values, ``(n,)``, float64."""
        return torch.arange(self.lo, self.hi + 1, dtype=torch.float64)

    def read(self, numbers: np.ndarray) -> np.ndarray:
        """Return coordinates as the user's values."""
        whole: np.ndarray = np.rint(numbers).astype(np.int64)
        return whole

    def place(self, value: object) -> float | None:
        """Return the coordinate of a user's value; ``None`` if it is not allowed."""
        return _nearest(self.values, value, 1.0)


@hinted
@dataclass(frozen=True)
class Float:
    """A number from ``lo`` to ``hi``, or one of ``lo``, ``lo + step`` and so on.

    Args:
        lo: the least value.
        hi: the greatest value.
        log: whether beliefs and searches use its logarithm.
        step: the distance between values; ``None``: any number between the ends.
    """

    lo: float
    hi: float
    log: bool = False
    step: float | None = None

    def __repr__(self) -> str:
        step = "" if self.step is None else f", step={self.step:g}"
        return f"Float({self.lo:g}, {self.hi:g}{', log=True' * self.log}{step})"

    def __post_init__(self) -> None:
        for name in ("lo", "hi"):
            number = checks.number(f"Float: {name}", getattr(self, name))
            object.__setattr__(self, name, number)
        _ordered("Float", self.lo, self.hi, self.log, self.lo < self.hi)
        if self.step is not None:
            step = checks.number("Float: step", self.step)
            if step <= 0:
                raise CBanditError(f"Float: step must be above 0; got {step:g}")
            object.__setattr__(self, "step", step)
            _few("Float", (self.hi - self.lo) / step + 1)
            last = float(self.values[-1]) if self.values is not None else self.hi
            if abs(self.hi - last) > NEAR * step:
                raise CBanditError(
                    f"Float: steps of {step:g} from {self.lo:g} lead to {last:g} and "
                    f"{last + step:.12g}, and not to {self.hi:g}: give hi = {last:g} "
                    f"or hi = {last + step:.12g}, or another step"
                )

    @cached_property
    def values(self) -> Tensor | None:
        """All values, ``(n,)``, float64; ``None`` without a step."""
        if self.step is None:
            return None
        count = math.floor((self.hi - self.lo) / self.step + NEAR) + 1
        # users expect 0.1 + 2 * 0.1 to be 0.3
        steps = (float(f"{self.lo + k * self.step:.12g}") for k in range(count))
        return torch.tensor(list(steps), dtype=torch.float64)

    def read(self, numbers: np.ndarray) -> np.ndarray:
        """Return coordinates as the user's values, without a dtype's rounding."""
        if self.values is None:
            inside: np.ndarray = np.clip(numbers, self.lo, self.hi)
            return inside
        values = self.values.numpy()
        place = np.rint((numbers - self.lo) / (self.step or 1.0)).astype(np.int64)
        exact: np.ndarray = values[place.clip(0, len(values) - 1)]
        return exact

    def place(self, value: object) -> float | None:
        """Return the coordinate of a user's value; ``None`` if it is not allowed."""
        if self.values is not None:
            return _nearest(self.values, value, self.step or 1.0)
        if not _number(value):
            return None
        inside = min(max(float(value), self.lo), self.hi)
        return inside if abs(inside - value) <= NEAR * (self.hi - self.lo) else None


@hinted
class Category:
    """One of some values without an order: strings, numbers, booleans or ``None``.

    Args:
        options: the values.
    """

    log = False

    def __init__(self, *options: Any) -> None:
        if len(options) == 1 and isinstance(options[0], list | tuple):
            raise CBanditError(
                "Category takes its values one by one, Category('a', 'b'); got "
                f"{options[0]!r}"
            )
        if not options:
            raise CBanditError("Category must have at least one value; got none")
        for option in options:
            if not (option is None or isinstance(option, str | bool | int | float)):
                raise CBanditError(
                    "Category takes strings, numbers, booleans and None; got "
                    f"{option!r}"
                )
        if any(option != option for option in options):
            raise CBanditError(f"Category: NaN equals no value; got {options}")
        if len(set(map(_told_apart, options))) < len(options):
            raise CBanditError(f"Category: its values must differ; got {options}")
        self.options = options

    @cached_property
    def values(self) -> Tensor:
        """Positions ``0 .. n - 1``, float64."""
        return torch.arange(len(self.options), dtype=torch.float64)

    def read(self, numbers: np.ndarray) -> np.ndarray:
        """Return positions as the user's values."""
        options = np.empty(len(self.options), dtype=object)
        options[:] = self.options
        return np.asarray(options[np.rint(numbers).astype(np.int64)], dtype=object)

    def place(self, value: object) -> float | None:
        """Return the position of a user's value; ``None`` if it is not an option."""
        options = [_told_apart(option) for option in self.options]
        value = _told_apart(value)
        return float(options.index(value)) if value in options else None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Category) and self.options == other.options

    def __hash__(self) -> int:
        return hash(self.options)

    def __repr__(self) -> str:
        return f"Category({', '.join(map(repr, self.options))})"


Parameter = Int | Float | Category


@hinted
class Context:
    """A value that the world shows before each choice, and that is not chosen.

    Args:
        shown: how many numbers, of about size 1; or a :class:`Category`, a
            :class:`Float` or an :class:`Int`, whose values are shown.

    Example:
        >>> import cbandit as cb
        >>> space = cb.Space(
        ...     model=cb.Category("small", "large"), prompt=cb.Context(2)
        ... )
        >>> policy = cb.CKB(
        ...     space, reward=cb.GP.default(space), costs=cb.GP.default(space)
        ... )
        >>> choice = policy.ask(context={"prompt": [0.3, -1.2]})
        >>> choice.params
        {'model': 'small', 'prompt': [0.3, -1.2]}
    """

    def __init__(self, shown: int | Parameter) -> None:
        self.parameter = shown if isinstance(shown, Parameter) else None
        expected = "how many numbers, or a cb.Category, a cb.Float or a cb.Int"
        #: how many coordinates it takes
        self.width = (
            1
            if isinstance(shown, Parameter)
            else checks.whole("Context: shown", shown, 1, expected, WIDEST)
        )

    @property
    def log(self) -> bool:
        """Whether beliefs use its logarithm."""
        return self.parameter is not None and self.parameter.log

    @property
    def values(self) -> Tensor | None:
        """All values, ``(n,)``, float64; ``None`` if there are infinitely many."""
        return None if self.parameter is None else self.parameter.values

    def read(self, numbers: np.ndarray) -> np.ndarray:
        """Return coordinates as the user's values; several numbers are ``(..., k)``."""
        return numbers if self.parameter is None else self.parameter.read(numbers)

    def __eq__(self, other: object) -> bool:
        same = isinstance(other, Context) and self.parameter == other.parameter
        return same and self.width == other.width  # type: ignore[attr-defined]

    def __hash__(self) -> int:
        return hash((self.parameter, self.width))

    def __repr__(self) -> str:
        return f"Context({self.parameter or self.width!r})"


class Names:
    """The names of a set's coordinates, and the parameters they stand for.

    Args:
        parameters: the parameters by name, in the user's order.
        columns: the name of each coordinate, in order; a context of ``k`` numbers
            appears ``k`` times. ``None``: as ``parameters`` are ordered.
    """

    def __init__(
        self,
        parameters: Mapping[str, Parameter | Context],
        columns: Sequence[str] | None = None,
    ) -> None:
        self.parameters = dict(parameters)
        if columns is None:
            columns = [n for n, p in self.parameters.items() for _ in range(_width(p))]
        self.columns = list(columns)
        self._place: dict[str, int] = {}
        for j, name in enumerate(self.columns):
            self._place.setdefault(name, j)

    def flags(self) -> tuple[Tensor | None, Tensor | None]:
        """Return masks ``(d,)`` of logarithms, of categories; ``None``: all false."""
        ordered = [self.parameters[name] for name in self.columns]
        flags = ([p.log for p in ordered], [is_category(p) for p in ordered])
        logs, whole = (torch.tensor(v) if any(v) else None for v in flags)
        return logs, whole

    def read(self, x: Tensor) -> dict[str, np.ndarray]:
        """Return points ``(..., d)`` as arrays of the users' values, by name.

        A context of ``k`` numbers is ``(..., k)``.
        """
        numbers = x.detach().cpu().double().numpy()
        values = {}
        for name, parameter in self.parameters.items():
            first, width = self._place[name], _width(parameter)
            several = isinstance(parameter, Context) and parameter.parameter is None
            at: Any = slice(first, first + width) if several else first
            values[name] = parameter.read(numbers[..., at])
        return values

    def table(self, x: Tensor) -> dict[str, np.ndarray]:
        """Return points ``(..., d)`` as columns ``(...)`` of the users' values.

        A context of several numbers becomes the columns ``name1``, ``name2``, ...
        """
        columns: dict[str, np.ndarray] = {}
        for name, values in self.read(x).items():
            if values.ndim < x.dim():
                columns[name] = values
                continue
            for j in range(values.shape[-1]):
                columns[f"{name}{j + 1}"] = values[..., j]
        return columns

    def labels(self) -> list[str]:
        """Return the columns of :meth:`table`."""
        return list(self.table(torch.zeros(1, len(self.columns))))

    def rows(self, columns: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
        """Return the columns of :meth:`table` as dicts, one a point."""
        parts: dict[str, Sequence[Any]] = {}
        for name, parameter in self.parameters.items():
            if isinstance(parameter, Context) and parameter.parameter is None:
                several = [columns[f"{name}{j + 1}"] for j in range(_width(parameter))]
                parts[name] = list(zip(*several, strict=True))
            else:
                parts[name] = columns[name]
        return [
            dict(zip(parts, row, strict=True))
            for row in zip(*parts.values(), strict=True)
        ]

    def params(self, x: Tensor) -> Any:
        """Return a point ``(d,)`` as a dict, and more points as lists of dicts."""
        columns = {name: values.tolist() for name, values in self.read(x).items()}
        return _split(columns, x.dim() - 1)

    def points(self, params: Any, name: str = "params") -> Tensor:
        """Return a dict as a point ``(d,)``, and lists of dicts as points ``(n, d)``.

        A pandas frame is a list of its rows.
        """
        if hasattr(params, "to_dict") and getattr(params, "ndim", 0) == 2:
            params = params.to_dict("records")
        if isinstance(params, Mapping):
            return torch.tensor(self._point(params, name), dtype=torch.float64)
        if not isinstance(params, Sequence) or isinstance(params, str):
            raise CBanditError(
                f"{name} must be a dict of {self._named()}, or a list of them; got "
                f"{checks.kind(params)}"
            )
        rows = [self.points(row, f"{name}[{i}]") for i, row in enumerate(params)]
        if len({row.shape for row in rows}) > 1:
            raise CBanditError(f"{name} must hold lists of one length")
        if not rows:
            return torch.zeros(0, len(self.columns), dtype=torch.float64)
        return torch.stack(rows)

    def check(self, params: Mapping[str, Any], name: str) -> None:
        """Raise an error unless ``params`` has every name, and no other."""
        odd = [key for key in params if key not in self._place]
        if odd or len(params) != len(self._place):
            missing = [repr(key) for key in self.parameters if key not in params]
            reason = f"has {self._with_hint(odd[0])}" if odd else f"misses {missing[0]}"
            raise CBanditError(
                f"{name} must give each of {self._named()}, and no other; it {reason}"
            )

    def _point(self, params: Mapping[str, Any], name: str) -> list[float]:
        self.check(params, name)
        numbers: list[float] = []
        for key in self._place:
            numbers += self.coordinates(key, params[key], name)
        return numbers

    def coordinates(self, key: str, value: Any, name: str) -> list[float]:
        """Return a parameter's value as its coordinates."""
        parameter = self.parameters.get(key)
        if not isinstance(parameter, Context) or parameter.parameter is not None:
            return [self.number(key, value, name)]
        shown = checks.tensor(f"{name}: {key}", value, device="cpu")
        if shown.shape not in ((parameter.width,), ()) or shown.dim() < (
            parameter.width > 1
        ):
            raise CBanditError(
                f"{name}: {key} must be {parameter.width} numbers, of shape "
                f"({parameter.width},); got {tuple(shown.shape)}"
            )
        out: list[float] = checks.finite(f"{name}: {key}", shown).reshape(-1).tolist()
        return out

    def number(self, key: str, value: object, name: str) -> float:
        """Return a parameter's value as its coordinate."""
        if key not in self._place:
            raise CBanditError(
                f"{name} must be of {self._named()}; there is no parameter "
                f"{self._with_hint(key)}"
            )
        parameter = self.parameters[key]
        if isinstance(parameter, Context):
            if parameter.parameter is None:
                raise CBanditError(f"{name}: {key} is not one number but a context")
            parameter = parameter.parameter
        coordinate = parameter.place(plain(value))
        if coordinate is None:
            raise CBanditError(f"{name}: {key} must be of {parameter!r}; got {value!r}")
        return coordinate

    def allowed(self, among: Mapping[str, Any], name: str) -> dict[int, list[float]]:
        """Return the values that ``among`` allows, by position of the coordinate."""
        allowed = {}
        for key, values in among.items():
            listed = values if isinstance(values, list | tuple | set) else [values]
            if not listed:
                raise CBanditError(f"{name}: {key} must allow a value; got none")
            numbers = [self.number(key, value, name) for value in listed]
            allowed[self._place[key]] = numbers
        return allowed

    def said(self, x: Tensor) -> str:
        """Return a point ``(d,)`` in words."""
        return ", ".join(f"{k}={_said(v)}" for k, v in self.params(x).items())

    def _with_hint(self, key: str) -> str:
        meant = near(str(key), self.parameters)
        return f"{key!r}" + (f"; did you mean {meant!r}?" if meant else "")

    def _named(self) -> str:
        return ", ".join(self.parameters)

    def __eq__(self, other: object) -> bool:
        same = isinstance(other, Names) and self.parameters == other.parameters
        return same and self.columns == other.columns  # type: ignore[attr-defined]

    def __hash__(self) -> int:
        return hash(tuple(self.columns))

    def written(self, where: str | None = None) -> str:
        """Return the space as it is written in a program, with the limits ``where``."""
        words = [f"{name}={value!r}" for name, value in self.parameters.items()]
        words += [] if where is None else [f"where={where}"]
        return f"Space({', '.join(words)})"

    def __repr__(self) -> str:
        return self.written()


def is_category(parameter: Parameter | Context) -> bool:
    """Return whether a parameter's or a context's values have no order."""
    inner = parameter.parameter if isinstance(parameter, Context) else parameter
    return isinstance(inner, Category)


def _width(parameter: Parameter | Context) -> int:
    return parameter.width if isinstance(parameter, Context) else 1


def _said(value: object) -> str:
    """Return a value in words; of many numbers only the first ones."""
    if isinstance(value, list):
        more = f", .. {len(value)} numbers" if len(value) > SHOWN else ""
        return f"({', '.join(map(_said, value[:SHOWN]))}{more})"
    return f"{value:.4g}" if isinstance(value, float) else f"{value}"


def _split(columns: dict[str, Any], axes: int) -> Any:
    """Return a dict of nested lists as nested lists of dicts."""
    if axes <= 0:
        return columns
    rows = zip(*columns.values(), strict=True)
    return [_split(dict(zip(columns, row, strict=True)), axes - 1) for row in rows]


def plain(value: object) -> object:
    """Return ``value``; a scalar of numpy or torch becomes one of Python."""
    if isinstance(value, np.generic | Tensor) and math.prod(value.shape) == 1:
        return value.item()
    return value


def _number(value: object) -> TypeGuard[int | float]:
    """Return whether a value is a finite number, and not a bool."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= sys.float_info.max


def _nearest(values: Tensor, value: object, step: float) -> float | None:
    """Return the one of ``values`` that equals ``value`` up to rounding, if any."""
    if not _number(value):
        return None
    gap, place = (values - value).abs().min(0)
    return float(values[place]) if float(gap) <= NEAR * step else None


def _told_apart(option: object) -> tuple[bool, object]:
    """Return a key that tells options apart: ``True`` is not the number 1."""
    return isinstance(option, bool), option


def _ordered(kind: str, lo: float, hi: float, log: object, fits: bool) -> None:
    checks.flag(f"{kind}: log", log)
    if not fits:
        raise CBanditError(f"{kind}: lo must be below hi; got lo = {lo}, hi = {hi}")
    if log and lo <= 0:
        raise CBanditError(f"{kind}: lo must be above 0 with log=True; got {lo}")


def _few(kind: str, count: float) -> None:
    if count > MOST:
        raise CBanditError(
            f"{kind} must have at most {MOST} values; got {count:.0f}: give it a step, "
            "or take Float(lo, hi)"
        )
