"""Find the objects that a study file names: ``"CKB"``, ``"module:Class"``.

A table with a ``type`` stands for the object that its other keys build. A type is a
public name of cbandit or of ``cb.baselines``, or ``module:object``, which is looked up
in the working directory and among installed packages. :meth:`Home.find` is the only way
from a text to an object, and the home says which modules may be imported.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

import cbandit as cb
from cbandit._core.hints import near
from cbandit.errors import CBanditError

_OBJECT = re.compile(r"[\w-]+(\.[\w-]+)*:(?!__)\w+(\.(?!__)\w+)*")
_SHOWN = re.compile(r"[\w.-]+")  # module names that are safe to paste into a shell


@dataclass(frozen=True)
class Home:
    """The folder where a file's modules are looked up, and the modules it may import.

    Args:
        folder: searched before installed packages.
        trust: the modules that may be imported, and their submodules; ``None``: all.
    """

    folder: str
    trust: tuple[str, ...] | None = None

    def check(self, words: str, module: str) -> None:
        """Raise unless the module that a text names is trusted."""
        below = f"{module}."
        if self.trust is None or any(below.startswith(f"{m}.") for m in self.trust):
            return
        shown = module if _SHOWN.fullmatch(module) else "MODULE"
        raise CBanditError(
            f"{words!r} names the module {shown}, whose code would run: add "
            f"--trust {shown} if it is yours"
        )

    def find(self, words: str) -> Any:
        """Return the object that a text names; raise if its module is not trusted.

        Args:
            words: a public name, or ``module:object``.
        """
        module, colon, name = words.partition(":")
        if not colon:
            return _public(words)
        self.check(words, module)
        if not _OBJECT.fullmatch(words):
            raise CBanditError(f"{words!r} is not of the form module:object")
        if self.folder not in sys.path:
            sys.path.insert(0, self.folder)
        try:
            out: Any = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name not in (module, module.partition(".")[0]):
                raise
            raise CBanditError(
                f"{words!r}: there is no module {error.name} in {self.folder} or among "
                "installed packages"
            ) from None
        for part in name.split("."):
            if not hasattr(out, part):
                raise CBanditError(f"{words!r}: {module} holds no {name}")
            out = getattr(out, part)
            # modules that a trusted module imports are not trusted with it
            self.check(words, _written_in(out))
        return out

    def find_type(self, where: str, table: Mapping[str, Any]) -> Any:
        """Return the callable that the ``type`` of a table names."""
        words = table.get("type")
        if not isinstance(words, str):
            raise CBanditError(
                f"{where} type must be a text such as 'CKB'; got {words!r}"
            )
        with located(f"{where} type"):
            call = self.find(words)
            if not callable(call):
                raise CBanditError(
                    f"{words} must be a class or a function; got {call!r}"
                )
        return call

    def build(self, where: str, value: object) -> Any:
        """Return a value of a file; each table with a ``type`` becomes an object.

        Args:
            where: the file, table and key, for errors.
            value: a number, a text, a list or a table.
        """
        if isinstance(value, list):
            return [self.build(where, entry) for entry in value]
        if not isinstance(value, Mapping):
            return value
        if "type" not in value:
            return {k: self.build(f"{where} {k}", v) for k, v in value.items()}
        call = self.find_type(where, value)
        table = {key: entry for key, entry in value.items() if key != "type"}
        return self.call(where, value["type"], call, table)

    def call(
        self,
        where: str,
        words: str,
        call: Callable[..., Any],
        table: Mapping[str, Any],
        offers: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call a callable with the arguments that :meth:`arguments` returns."""
        arguments = self.arguments(where, words, call, table, offers)
        with located(where):
            return call(**arguments)

    def arguments(
        self,
        where: str,
        words: str,
        call: Callable[..., Any],
        table: Mapping[str, Any],
        offers: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Return a callable's keyword arguments; raise an error for unknown keys.

        Args:
            where: the file, table and key, for errors.
            words: the callable's name in the file.
            call: the callable.
            table: the file's arguments.
            offers: further arguments, passed on if the callable takes them.
        """
        built = {key: self.build(f"{where} {key}", v) for key, v in table.items()}
        takes = Arguments(call)
        takes.check(where, words, table)
        out = {name: v for name, v in (offers or {}).items() if name in takes} | built
        missing = sorted(takes.needed - out.keys())
        if missing:
            raise CBanditError(f"{where} {missing[0]} is missing: {words} needs it")
        return out


def _public(words: str) -> Any:
    """Return the object with a public, capitalised name; other names raise."""
    names = {n: room for room in (cb.baselines, cb) for n in room.__all__}
    kinds = {name: room for name, room in names.items() if name[0].isupper()}
    if words not in kinds:
        raise CBanditError(
            f"{words!r} is no public name of cbandit, and not of the form "
            f"module:object{_hint(words, kinds)}"
        )
    return getattr(kinds[words], words)


def _hint(word: str, known: Iterable[str]) -> str:
    meant = near(word, known)
    return f"; did you mean {meant}?" if meant else ""


def _written_in(thing: object) -> str:
    """Return the module in which an object, or its class, was written."""
    if isinstance(thing, ModuleType):
        return thing.__name__
    owner = thing if isinstance(thing, type | FunctionType) else type(thing)
    return owner.__module__


def of_botorch(rooms: Sequence[ModuleType], words: str, base: type) -> Any:
    """Return a class of BoTorch by its name, from the first module that has it.

    Args:
        rooms: the modules.
        words: a name in one of them, without dots or colons.
        base: what the class must derive from.
    """
    for room in rooms:
        # for a name that is not in its list, BoTorch imports one of its modules
        kind = getattr(room, words) if words in dir(room) else None
        if isinstance(kind, type) and issubclass(kind, base):
            return kind
    raise CBanditError(
        f"{rooms[0].__name__} holds no {words!r}: it must be the name of a "
        f"{base.__name__} there; code of your own is 'module:object', and runs from a "
        "folder of results only with --trust"
    )


class Arguments:
    """The arguments that a callable takes.

    Args:
        named: the annotations of the named arguments, by name.
        needed: the named arguments without a default.
        open: whether it takes any other arguments too.
    """

    def __init__(self, call: Callable[..., Any]) -> None:
        try:
            every = inspect.signature(call).parameters.values()
        except (TypeError, ValueError):
            raise CBanditError(f"{call!r} cannot be called with arguments") from None
        plain = [p for p in every if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        self.named: dict[str, Any] = {p.name: p.annotation for p in plain}
        self.needed = {p.name for p in plain if p.default is p.empty}
        self.open = any(p.kind is p.VAR_KEYWORD for p in every)
        if self.open:
            self._hand_on(call)

    def _hand_on(self, call: Callable[..., Any]) -> None:
        """Add the arguments that ``**common`` stands for, usually a base class's."""
        common = getattr(call, "common", None)
        line = [c for c in getattr(call, "__mro__", ())[:-1] if "__init__" in vars(c)]
        if common is not None and call.__module__.partition(".")[0] == "cbandit":
            self.named |= dict.fromkeys(common, Any)
            self.open = False
        elif line[1:]:
            more = Arguments(line[1])
            self.named, self.open = {**more.named, **self.named}, more.open

    def __contains__(self, name: str) -> bool:
        return self.open or name in self.named

    def check(self, where: str, words: str, table: Iterable[str]) -> None:
        """Raise if a file gives a key that the callable does not take."""
        for key in table:
            if key not in self:
                known = ", ".join(n for n in self.named if n != "actions")
                raise CBanditError(
                    f"{where} {key}: {words} takes no such key"
                    f"{_hint(key, self.named) or f'; it takes {known}'}"
                )


@contextmanager
def located(where: str) -> Iterator[None]:
    """Add the place in a file to errors that are raised inside the context."""
    try:
        yield
    except (CBanditError, TypeError, ValueError, NotImplementedError) as error:
        raise CBanditError(f"{where}: {error}") from error
    except Exception as error:  # the user's own code: its traceback says more
        error.add_note(where)
        raise
