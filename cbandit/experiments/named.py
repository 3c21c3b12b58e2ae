"""Things that a study file names: ``"CKB"``, ``"module:Class"``, and their arguments.

A table with a ``type`` stands for the object that its other keys build. A type is a
public name of cbandit or of ``cb.baselines``, or ``module:object``, which is looked up
in the working directory and among installed packages. :func:`found` is the only way
from a text to an object, and :class:`Home` says which modules it may import.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

import cbandit as cb
from cbandit._core.hints import near
from cbandit.errors import CBanditError

__all__ = [
    "Arguments",
    "Home",
    "built",
    "checked",
    "found",
    "of_botorch",
    "said",
    "typed",
]

_OBJECT = re.compile(r"[\w-]+(\.[\w-]+)*:(?!__)\w+(\.(?!__)\w+)*")
_SHOWN = re.compile(r"[\w.-]+")  # a module's name that is safe to paste into a shell


@dataclass(frozen=True)
class Home:
    """Where the modules that a file names are looked up, and which of them may run.

    Args:
        folder: the place that is looked at first.
        trust: the modules that may be imported, with those below them; ``None``: all.
    """

    folder: str
    trust: tuple[str, ...] | None = None

    def check(self, words: str, module: str) -> None:
        """Raise unless a module that a text leads to may be imported and used."""
        below = f"{module}."
        if self.trust is None or any(below.startswith(f"{m}.") for m in self.trust):
            return
        shown = module if _SHOWN.fullmatch(module) else "MODULE"
        raise CBanditError(
            f"{words!r} names the module {shown}, whose code would run: add "
            f"--trust {shown} if it is yours"
        )


def found(words: str, home: Home) -> Any:
    """Return what a type names, after a look at whether its module may be imported.

    Args:
        words: a public name, or ``module:object``.
        home: which modules may be imported, and where they are looked up.
    """
    module, colon, name = words.partition(":")
    if not colon:
        for room in (cb, cb.baselines):
            if words in room.__all__ and _makes(getattr(room, words)):
                return getattr(room, words)
        rooms = (cb, cb.baselines)
        known = [n for r in rooms for n in r.__all__ if _makes(getattr(r, n))]
        meant = near(words, known)
        hint = f"; did you mean {meant}?" if meant else ""
        raise CBanditError(
            f"{words!r} is no public name of cbandit, and not of the form "
            f"module:object{hint}"
        )
    home.check(words, module)
    if not _OBJECT.fullmatch(words):
        raise CBanditError(f"{words!r} is not of the form module:object")
    if home.folder not in sys.path:
        sys.path.insert(0, home.folder)
    try:
        out: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0] and error.name != module:
            raise
        raise CBanditError(
            f"{words!r}: there is no module {error.name} in {home.folder} or among "
            "installed packages"
        ) from None
    for part in name.split("."):
        if not hasattr(out, part):
            raise CBanditError(f"{words!r}: {module} holds no {name}")
        out = getattr(out, part)
        # what a trusted module has imported itself is not trusted with it
        home.check(words, _written_in(out))
    return out


def _written_in(thing: Any) -> str:
    """Return the module in which an object, or its class, was written."""
    if isinstance(thing, ModuleType):
        return thing.__name__
    owner = thing if isinstance(thing, type | FunctionType) else type(thing)
    return owner.__module__


def of_botorch(rooms: Sequence[ModuleType], words: str, base: type) -> Any:
    """Return the class that the first of some modules of BoTorch has by this name.

    Args:
        rooms: the modules.
        words: a name in one of them, without dots or colons.
        base: what the class must derive from.
    """
    for room in rooms:
        # BoTorch imports a module of its own for a name that it does not list
        kind = getattr(room, words) if words in dir(room) else None
        if isinstance(kind, type) and issubclass(kind, base):
            return kind
    raise CBanditError(
        f"{rooms[0].__name__} holds no {words!r}: it must be the name of a "
        f"{base.__name__} there; code of your own is 'module:object', and runs from a "
        "folder of results only with --trust"
    )


def _makes(thing: Any) -> bool:
    """Whether a public name stands for a kind of object; cb.load does not, say."""
    return isinstance(thing, type) or thing is cb.OPB


class Arguments:
    """The arguments that a callable takes.

    Args:
        named: those that have names.
        needed: of these, the ones without a default.
        open: whether it takes any others too.
    """

    def __init__(self, call: Any) -> None:
        self.named: dict[str, Any] = {}
        self.needed: set[str] = set()
        self.open = False
        parameters = list(_signature(call).parameters.values())
        for each in parameters:
            if each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD):
                continue
            self.named[each.name] = each.annotation
            if each.default is each.empty:
                self.needed.add(each.name)
        if any(each.kind is each.VAR_KEYWORD for each in parameters):
            self._hand_on(call)

    def _hand_on(self, call: Any) -> None:
        """Take in what ``**common`` is handed on to: mostly the next constructor."""
        common = getattr(call, "common", None)
        if call.__module__.partition(".")[0] == "cbandit" and common is not None:
            self.named |= dict.fromkeys(common, Any)
            return
        line = [c for c in getattr(call, "__mro__", ()) if "__init__" in vars(c)]
        if len(line) < 2 or line[1] is object:
            self.open = True
            return
        more = Arguments(line[1])
        self.named, self.open = {**more.named, **self.named}, more.open

    def __contains__(self, name: str) -> bool:
        return self.open or name in self.named


def _signature(call: Any) -> inspect.Signature:
    try:
        return inspect.signature(call)
    except (TypeError, ValueError):
        raise CBanditError(f"{call!r} cannot be called with arguments") from None


@contextmanager
def said(where: str) -> Iterator[None]:
    """Say where in a file an error comes from."""
    try:
        yield
    except (CBanditError, TypeError, ValueError) as error:
        raise CBanditError(f"{where}: {error}") from error
    except Exception as error:  # of the user's own code, whose traceback tells more
        error.add_note(where)
        raise


def checked(where: str, words: str, call: Any, given: Mapping[str, Any]) -> Arguments:
    """Return what a callable takes, or raise over a key that it does not take."""
    takes = Arguments(call)
    for key in given:
        if key not in takes:
            meant = near(key, takes.named)
            hint = f"; did you mean {meant}?" if meant else ""
            known = ", ".join(n for n in takes.named if n not in ("self", "actions"))
            more = "" if meant else f"; it takes {known}"
            raise CBanditError(f"{where} {key}: {words} takes no such key{hint}{more}")
    return takes


def built(where: str, value: Any, home: Home) -> Any:
    """Return a value of a file, tables with a ``type`` in it as the objects they mean.

    Args:
        where: the file, table and key, for errors.
        value: a number, a text, a list or a table.
        home: as for :func:`found`.
    """
    if isinstance(value, list):
        return [built(where, each, home) for each in value]
    if not isinstance(value, Mapping):
        return value
    if "type" not in value:
        return {key: built(f"{where}.{key}", each, home) for key, each in value.items()}
    call = typed(where, value, home)
    given = {key: each for key, each in value.items() if key != "type"}
    takes = checked(where, value["type"], call, given)
    missing = sorted(takes.needed - given.keys())
    if missing:
        raise CBanditError(f"{where} {missing[0]} is missing: {value['type']} needs it")
    made = {key: built(f"{where}.{key}", each, home) for key, each in given.items()}
    with said(where):
        return call(**made)


def typed(where: str, table: Mapping[str, Any], home: Home) -> Any:
    """Return what the ``type`` of a table names, a callable."""
    words = table.get("type")
    if not isinstance(words, str):
        raise CBanditError(f"{where} type must be a text such as 'CKB'; got {words!r}")
    with said(f"{where} type"):
        call = found(words, home)
        if not callable(call):
            raise CBanditError(f"{words} must be a class or a function; got {call!r}")
        return call
