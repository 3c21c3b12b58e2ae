"""Read limits that users write as texts: ``"<= 20"``, ``"2 cores + 1 <= memory"``."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
from torch import Tensor

from cbandit._core import checks
from cbandit._core.hints import near
from cbandit.errors import CBanditError

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_UNSIGNED = _NUMBER.removeprefix("[-+]?")
_LIMIT = re.compile(rf"\s*(<=|>=)\s*({_NUMBER})\s*(%?)\s*")
_SIGN = re.compile(r"\s*([-+])\s*")
_FACTOR = re.compile(rf"\s*({_UNSIGNED})\s*(%?)\s*")
_OPERATOR = re.compile(r"\s*([*/])\s*")
_TIMES = re.compile(r"\*\s*")
MOST_NAMES = 8  # that an error lists


def _number(digits: str, per_cent: str) -> float:
    """Return a number in words; ``per_cent`` is ``"%"`` or empty."""
    if per_cent:
        return float(Decimal(digits).scaleb(-2))  # 99.9 % is .999 exactly
    return float(digits)


def read_limit(name: str, limit: Any) -> tuple[bool, float | Tensor]:
    """Return whether a limit is a lower one, and its number or array ``(*trials,)``."""
    several = isinstance(limit, list | tuple)
    if not isinstance(limit, str | bool) and not several:
        return False, limit if np.ndim(limit) else checks.number(name, limit)
    read = _LIMIT.fullmatch(limit) if isinstance(limit, str) else None
    if read is not None and math.isfinite(float(read[2])):
        return read[1] == ">=", _number(read[2], read[3])
    two = several or len(re.findall("[<>]", str(limit))) > 1
    hint = f": {_limit_advice(limit)}" if isinstance(limit, str) else ""
    if two:
        hint = ". A cost with two limits is two costs, each with a name"
    raise CBanditError(
        f"{name} must be a number, '<= NUMBER' or '>= NUMBER'; got {limit!r}{hint}"
    )


def _limit_advice(text: str) -> str:
    """Return what is wrong with a limit in words, and how to write it instead."""
    read = re.fullmatch(rf"\s*([<>=\u2264\u2265]*)\s*({_NUMBER})?\s*(.*?)\s*", text)
    sign, number, tail = read.groups() if read else ("", None, text)
    cent = re.match(r"(,\d+)?\s*(?:%|per ?cent|pct)\s*", tail)
    unit = "%" if cent else ""
    if cent:
        tail = (cent[1] or "") + tail[cent.end() :]
    number = number and number + unit * (tail[:1] != ",")
    if not text.strip():
        return "it is empty"
    if number is None:
        if sign and tail.lower() in ("", "-", "+"):
            return f"the number is missing behind {sign!r}"
        infinite = tail.lower().lstrip("+-") in ("inf", "infinity", "nan")
        return "it must be finite" if sign and infinite else "'<= 20' for example"
    comma = re.fullmatch(r",(\d+)\s*[^\d,.]*", tail)
    usual = {"=<": "<=", "<": "<=", "\u2264": "<="}
    usual |= {"=>": ">=", ">": ">=", "\u2265": ">="}
    if sign in usual:
        return f"the sign {sign!r} is written {usual[sign]!r}: '{usual[sign]} {number}'"
    if re.match("[<>=]", tail):
        return f"the sign comes first: '<= {number}' or '>= {number}'"
    if sign not in ("<=", ">="):
        what = "a limit has a side" if sign else "say on which side"
        return f"{what}: '<= {number}' or '>= {number}'"
    if comma:
        more = f" or '{sign} {number}{comma[1]}{unit}'" * (len(comma[1]) == 3)
        point = f"'{sign} {number}.{comma[1]}{unit}'"
        return f"numbers have a point and no comma: {point}{more}"
    if cent and not tail:
        return f"write '{sign} {number}', which is a share of 1"
    if not tail:
        return "it must be finite"
    if re.search(r"\d", tail) or tail in ("k", "K", "M", "G"):
        return f"write the number plainly, as in Python: '{sign} 20000' or '{sign} 2e4'"
    return f"leave {tail!r} out: '{sign} {number}', in the unit in which it is told"


def read_linear(
    name: str,
    text: object,
    variables: Sequence[str],
    refused: Mapping[str, str] | None = None,
) -> tuple[dict[str, float], float]:
    """Return ``a`` and ``b`` of a limit ``sum_j a_j x_j <= b`` that is given as a text.

    Both sides of ``<=`` or ``>=`` may be sums of numbers and of multiples of variables:
    ``"2 cores + 1 <= memory"``, ``"x0 - 0.5 * x1 >= 3"``.

    Args:
        name: the argument's, for errors.
        text: the limit.
        variables: the names that it may use.
        refused: other known names, each with the reason why it may not use them.
    """
    sides = re.split("<=|>=", text) if isinstance(text, str) else []
    if not isinstance(text, str) or len(sides) != 2:
        raise CBanditError(
            f"{name} must be a text with one '<=' or '>=', such as "
            f"{_example(variables)!r}; got {text!r}{_side_advice(text)}"
        )
    left, right = (
        _Sum(f"{name} = {text!r}", side, variables, refused or {}) for side in sides
    )
    sign = -1.0 if ">=" in text else 1.0
    coefficients = {
        key: sign * (left.multiples.get(key, 0.0) - right.multiples.get(key, 0.0))
        for key in {**left.multiples, **right.multiples}
    }
    bound = sign * (right.constant - left.constant)
    if not any(coefficients.values()):
        raise CBanditError(
            f"{name} = {text!r} limits nothing: it must hold one of "
            f"{_listed(variables)}"
        )
    if not all(map(math.isfinite, [bound, *coefficients.values()])):
        raise CBanditError(f"{name} = {text!r} must hold finite numbers")
    return coefficients, bound


def _listed(variables: Sequence[str]) -> str:
    """Return the names of variables, or of some of them if there are many."""
    few = [*variables[:MOST_NAMES], "..."] if len(variables) > MOST_NAMES else variables
    return ", ".join(few)


def _example(variables: Sequence[str]) -> str:
    """Return a linear limit in some of the ``variables``, for errors."""
    return f"{' + '.join(variables[:2])} <= 1"


def _side_advice(text: object) -> str:
    """Return what is wrong with a text that has not exactly one ``<=`` or ``>=``."""
    if not isinstance(text, str):
        return ""
    if len(re.findall("<=|>=", text)) > 1:
        return ": write two limits, one with each side"
    found = re.search("[<>=\u2264\u2265]+", text)
    usual = {
        "=<": "<=",
        "<": "<=",
        "\u2264": "<=",
        "=>": ">=",
        ">": ">=",
        "\u2265": ">=",
    }
    if found is None:
        return ""
    if found[0] in usual:
        return f": the sign {found[0]!r} is written {usual[found[0]]!r}"
    return (
        ": a limit has a side. Where knobs are tied by an equation, leave one of them "
        "out and compute it from the others"
    )


class _Sum:
    """One side of a linear limit, read from left to right.

    Attributes:
        multiples: the coefficients of the variables, by name.
        constant: the sum of the numbers.
    """

    def __init__(
        self, name: str, text: str, variables: Sequence[str], refused: Mapping[str, str]
    ) -> None:
        self.multiples: dict[str, float] = {}
        self.constant = 0.0
        self._name, self._text, self._at = name, text, 0
        self._refused, self._variables = refused, variables
        # of names that begin alike, the longest is meant
        known = sorted([*variables, *refused], key=len, reverse=True)
        self._names = re.compile(
            "|".join(rf"\s*({re.escape(each)})(?![\w.])\s*" for each in known)
        )
        first = True
        while first or self._at < len(text.rstrip()):
            self._add_term(first)
            first = False

    def _take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Return what a pattern matches next, and move behind it."""
        found = pattern.match(self._text, self._at)
        if found is not None:
            self._at = found.end()
        return found

    def _take_name(self) -> str | None:
        """Return the known name that comes next, and move behind it."""
        found = self._take(self._names)
        if found is None:
            return None
        name = next(each for each in found.groups() if each is not None)
        if name in self._refused:
            raise CBanditError(f"{self._name}: {self._refused[name]}")
        return name

    def _add_term(self, first: bool) -> None:
        """Read one number, or one multiple of a variable, and add it."""
        sign = self._take(_SIGN)
        if sign is None and not first:
            raise self._error()
        factor = -1.0 if sign is not None and sign[1] == "-" else 1.0
        variable = self._take_name()
        number = None if variable else self._take(_FACTOR)
        if number is not None:
            factor *= _number(number[1], number[2])
            times = self._take(_TIMES)
            variable = self._take_name()
            if times is not None and variable is None:
                raise self._error()
        if variable is None and number is None:
            raise self._error()
        if variable is not None and number is None:
            factor *= self._scale_behind()
        if variable is None:
            self.constant += factor
        else:
            self.multiples[variable] = self.multiples.get(variable, 0.0) + factor

    def _scale_behind(self) -> float:
        """Return the number by which a variable is multiplied, read behind it."""
        operator = self._take(_OPERATOR)
        if operator is None:
            return 1.0
        number = self._take(_FACTOR)
        if number is None:
            raise self._error()
        value = _number(number[1], number[2])
        if operator[1] == "*":
            return value
        if not value:
            raise CBanditError(f"{self._name} divides by 0")
        return 1 / value

    def _error(self) -> CBanditError:
        """Return the error about the text that comes next."""
        rest = self._text[self._at :].strip()
        word = re.match(r"[^\W\d]\w*", rest)
        if word is not None and word[0] not in self._variables:
            meant = near(word[0], self._variables)
            hint = f"; did you mean {meant!r}?" if meant else ""
            takes = _listed(self._variables)
            return CBanditError(
                f"{self._name} must be of {takes}; there is no {word[0]!r}{hint}"
            )
        where = f"at {rest!r}" if rest else "where it ends"
        return CBanditError(
            f"{self._name} must be a sum of numbers and of multiples of "
            f"{_listed(self._variables)}, such as {_example(self._variables)!r}; it "
            f"is not {where}"
        )
