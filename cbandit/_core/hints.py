"""Errors about unknown arguments, which name the argument that was likely meant."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

#: words of a row stand for each other: libraries differ in which of them they take
ALIKE = (
    ("thresholds", "limits", "limit", "constraints", "bounds"),
    ("reward", "objective", "value", "score", "y"),
    ("cost", "constraint"),
    ("horizon", "rounds", "steps", "iterations"),
    ("among", "allowed", "subset"),
    ("actions", "space", "arms"),
    ("x", "at", "points"),
    ("beta", "width"),
    ("window", "delay"),
    ("confidence", "probability"),
    ("lo", "lower", "low", "minimum"),
    ("log", "logarithmic", "log_scale"),
    ("hi", "upper", "high", "maximum"),
)

#: *these and **those
BEYOND = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD

Call = TypeVar("Call", bound=Callable[..., Any])


def near(word: str, known: Iterable[str]) -> str | None:
    """Return the known name that a word is likely to mean; ``None``: none is near."""
    names = list(known)
    for row in ALIKE:
        meant = [name for name in row if name in names]
        if word in row and meant:
            return meant[0]
    letters = sorted(word.casefold())
    for name in names:  # letters swapped, or in another case
        if sorted(name.casefold()) == letters:
            return name
    return next(iter(difflib.get_close_matches(word, names, 1)), None)


def unknown(call: str, name: str, known: Iterable[str]) -> TypeError:
    """Return the error about an argument ``name`` that ``call`` does not take."""
    names = list(known)
    meant = near(name, names)
    takes = ", ".join(names) or "values without names"
    hint = f"did you mean {meant!r}?" if meant else f"it takes {takes}"
    return TypeError(f"{call} takes no argument {name!r}; {hint}")


def hinted(call: Call) -> Call:
    """Let a function or class name the argument likely meant by an unknown one."""
    if isinstance(call, type):
        call.__init__ = hinted(vars(call)["__init__"])  # type: ignore[misc]
        return call

    @functools.wraps(call)
    def called(*values: Any, **named: Any) -> Any:
        try:
            return call(*values, **named)
        except TypeError:
            check_arguments(call, values, named)
            raise

    return called  # type: ignore[return-value]


def check_arguments(
    call: Callable[..., Any], values: Sequence[Any], named: Mapping[str, Any]
) -> None:
    """Raise an error in plain words if a call does not take these arguments."""
    signature = inspect.signature(call)
    try:
        signature.bind(*values, **named)
    except TypeError:
        pass
    else:
        return
    name = call.__qualname__.rpartition("<locals>.")[2]
    last = name.rpartition(".")[2]
    every = list(signature.parameters.values())
    handed_on: Sequence[str] = ()
    if last == "__init__":
        name, handed_on = type(values[0]).__name__, taken(type(values[0]))
    elif every and every[0].name == "self":
        name = last
    if every and every[0].name in ("self", "cls"):
        every, values = every[1:], values[1:]
    plain = [p for p in every if p.kind not in BEYOND]
    names = [p.name for p in plain]
    known = dict.fromkeys((*names, *handed_on))
    for word in named:
        if word not in known:
            raise unknown(name, word, known) from None
    listed = [p.name for p in plain if p.kind is not p.KEYWORD_ONLY]
    if len(values) > len(listed):
        count = f"{len(listed)} without a name ({', '.join(listed)})"
        others = ", ".join(f"{word}=" for word in names[len(listed) :])
        raise TypeError(
            f"{name} takes {count if listed else 'no argument without a name'}; got "
            f"{len(values)}: name the others, {others}"
        ) from None
    for p in plain[len(values) :]:
        if p.default is p.empty and p.name not in named:
            raise TypeError(
                f"{name} needs {p.name!r}; it takes {', '.join(names)}"
            ) from None


def taken(kind: type[Any]) -> list[str]:
    """Return the arguments of a class's constructor, and those of its base classes."""
    names: dict[str, None] = {}
    for base in kind.__mro__:
        if "__init__" not in vars(base):
            continue
        every = inspect.signature(vars(base)["__init__"]).parameters.values()
        names |= {p.name: None for p in every if p.kind not in BEYOND}
        if not any(p.kind is p.VAR_KEYWORD for p in every):
            break
    names |= dict.fromkeys(getattr(kind, "common", ()))
    return [name for name in names if name != "self"]
