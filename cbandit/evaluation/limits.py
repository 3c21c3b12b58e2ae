"""Limits in words, of an outcome alone or relative to a control."""

from __future__ import annotations

import re
from typing import NamedTuple

from cbandit._core.limit_text import read_limit
from cbandit.errors import CBanditError

_RELATIVE = re.compile(r"\s*(<=|>=)\s*(?:(\d+\.?\d*|\.\d+)\s*[x*\u00d7]\s*)?control\s*")


class Limit(NamedTuple):
    """A limit on the mean of an outcome.

    Args:
        text: as the user wrote it.
        above: whether the mean is to be at least the number.
        number: the limit, or a factor of the control's mean.
        relative: whether it is a factor.
    """

    text: str
    above: bool
    number: float
    relative: bool

    @classmethod
    def of(cls, name: str, text: object) -> Limit:
        """Read ``"<= 20"``, ``"<= 1%"`` or ``"<= 1.02 x control"``."""
        found = _RELATIVE.fullmatch(text) if isinstance(text, str) else None
        if found is not None:
            return cls(str(text), found[1] == ">=", float(found[2] or 1), True)
        if isinstance(text, str) and "control" in text:
            raise CBanditError(
                f"limits[{name!r}] must be '<= NUMBER x control' or '>= NUMBER x "
                f"control'; got {text!r}"
            )
        if not isinstance(text, str):
            raise CBanditError(
                f"limits[{name!r}] must be a text, '<= NUMBER', '>= NUMBER' or '<= "
                f"NUMBER x control'; got {text!r}"
            )
        above, number = read_limit(f"limits[{name!r}]", text)
        return cls(text, above, float(number), False)
