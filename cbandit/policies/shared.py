"""The arguments that policies share: their help, and errors that name the class.

A constructor that ends in ``**common`` hands those keywords on to the classes above it.
"""

from __future__ import annotations

import difflib
import inspect
from typing import Any

__all__ = ["GP_ONLY", "POLICY", "check", "documented", "unknown"]

POLICY = {
    "thresholds": """what costs are compared with, 0 unless given: a number, ``(m,)``,
        ``(*trials, m)`` or, where no two costs differ, ``(*trials, 1)``; or a
        callable of the round that gives one of these.""",
    "seed": "of all draws, an int from 0; one seed, one run.",
    "trials": """``None``, how many replications run side by side, or a ``range`` of
        their numbers (a part of a larger batch).""",
    "device": "where tensors live, ``\"cpu\"`` (the default) or ``\"cuda\"``.",
    "dtype": """of arrays over the actions, ``"float64"`` or ``"float32"`` (or torch's
        own names); float64 on the CPU and float32 on CUDA by default. float32 has
        seven digits, for coordinates too: centre those that lie far from 0 against
        a kernel's lengthscale, a linear kernel's above all, or take float64.""",
    "horizon": "the last round, where one is known.",
}
GP_ONLY = {
    "clip": """``(B, G)``: estimates are kept within ``[-B, B]`` and, thresholds
        subtracted, ``[-G, G]``.""",
    "engine": '``"auto"``, ``"joint"``, ``"factor"``, ``"product"`` or ``"stream"``.',
    "feedback": "``None``, :class:`~cbandit.Delayed` or :class:`~cbandit.Sliding`.",
    "pending": """``"ignore"`` outstanding choices, or ``"hallucinate"``: count their
        variance and keep their mean.""",
}


def documented(cls: Any, shared: dict[str, str]) -> str | None:
    """Return the class' help with the arguments it shares, if it says ``common:``."""
    own = cls.__dict__.get("__doc__")
    if own is None or "\n        common: " not in own:
        return cls.__doc__
    text = inspect.cleandoc(own)
    lines = [
        f"    {name}: {meaning}"
        for name, meaning in shared.items()
        if f"\n    {name}: " not in text
    ]
    known = ["Attributes:", "    t: the round last asked for, 0 before the first."]
    return "\n".join([text, "", "Common:", *lines, "", *known, ""])


def check(cls: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Raise a TypeError by the class' own name unless its constructor takes these."""
    signature = inspect.signature(cls.__init__)
    last = signature.parameters.get("common")
    if last is None or last.kind is not last.VAR_KEYWORD:
        return  # a constructor that does not say what it hands on
    for name in named:
        if name not in signature.parameters and name not in _known(cls):
            raise TypeError(unknown(cls, name))
    try:
        signature.bind(None, *arguments, **named)
    except TypeError as error:
        raise TypeError(f"{cls.__name__}: {error}") from None


def unknown(cls: type, name: str) -> str:
    """Return the message about an argument that ``cls`` does not take."""
    near = difflib.get_close_matches(name, _known(cls), 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"{cls.__name__} takes no argument {name!r}{hint}"


def _known(cls: Any) -> list[str]:
    """Return the keywords that ``cls`` takes, itself or by what it hands on."""
    out = list(cls._shared)
    for base in cls.__mro__:
        if "_shared" in vars(base):  # says itself what others may hand on to it
            break
        parameters = inspect.signature(base.__init__).parameters.values()
        out += [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]
    return out
