"""The names that a file may use: known ones, and those that a user trusts."""

from __future__ import annotations

import functools
import importlib
import operator
import sys
import types
from collections.abc import Mapping
from typing import Any

import numpy as np

from cbandit._core.known import CLASSES, FUNCTIONS
from cbandit.errors import CBanditError, CheckpointError

CODE = (types.FunctionType, types.BuiltinFunctionType, np.ufunc)

__all__ = ["CODE", "Names", "name_of", "trusted"]


def name_of(thing: Any) -> str:
    """Return ``module:name`` of a class or function, by which it is found again."""
    if not isinstance(thing, type) and thing in _functions():
        return _functions()[thing]
    # what is not written in Python may have a qualname that leads nowhere
    own = isinstance(thing, type | types.FunctionType)
    module, name = thing.__module__, thing.__qualname__ if own else thing.__name__
    try:
        found = operator.attrgetter(name)(sys.modules[module])
    except (AttributeError, KeyError):
        found = None
    if found is not thing:
        raise TypeError(f"{module}:{name} cannot be found by this name")
    return f"{module}:{name}"


def trusted(trust: Any) -> dict[str, Any]:
    """Return by their names the classes and functions that a user trusts.

    Args:
        trust: classes, functions, objects of such classes, and modules, which stand for
            all classes and functions that are written in them.
    """
    if not isinstance(trust, list | tuple | set | frozenset):
        raise CBanditError(
            f"trust must be a tuple of classes, functions or modules; got {trust!r}"
        )
    found: dict[str, Any] = {}
    for thing in trust:
        if isinstance(thing, str):
            raise CBanditError(
                f"trust must hold classes, functions or modules themselves; got the "
                f"text {thing!r}"
            )
        try:
            found |= {name_of(each): each for each in _meant(thing)}
        except TypeError as error:
            raise CBanditError(f"trust: {error}") from None
    return found


def _meant(thing: Any) -> list[Any]:
    if isinstance(thing, types.ModuleType):
        return [
            each
            for each in vars(thing).values()
            if isinstance(each, type | types.FunctionType)
            and each.__module__ == thing.__name__
            and "<" not in each.__qualname__
        ]
    if isinstance(thing, (type, *CODE)):
        return [thing]
    return [type(thing)]


class Names:
    """All that names in one file may stand for.

    Args:
        trust: by their names, what a user trusts beside the known ones.
    """

    def __init__(self, trust: Mapping[str, Any]) -> None:
        self._trust = trust

    def cls(self, name: str) -> type[Any]:
        """Return a class, of which the file holds an object."""
        if name in _CLASSES:
            found: type[Any] = _found(*_CLASSES[name])
            return found
        given = self._trust.get(name)
        if not isinstance(given, type):
            raise self._refused(name)
        return given

    def function(self, name: str) -> Any:
        """Return a function, or a class that the user trusts."""
        if name in _FUNCTIONS:
            return _found(*_FUNCTIONS[name])
        owner, _, last = name.rpartition(".")
        if isinstance(self._trust.get(owner), type):
            method = vars(self._trust[owner]).get(last)
            if isinstance(method, types.FunctionType):
                return method
        return self.trusted(name)

    def trusted(self, name: str) -> Any:
        """Return what the user trusts even to be called by the file."""
        if name not in self._trust:
            raise self._refused(name)
        return self._trust[name]

    @staticmethod
    def _refused(name: str) -> CheckpointError:
        module, _, last = name.rpartition(":")
        return CheckpointError(
            f"it holds {name}, which cbandit does not know: if you trust that code, "
            f"pass trust=({last},), or on the command line --trust {module}"
        )


def _flat(table: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    return {f"{home}:{k}": (home, k) for home, ks in table.items() for k in ks.split()}


_CLASSES, _FUNCTIONS = _flat(CLASSES), _flat(FUNCTIONS)


@functools.cache
def _found(home: str, name: str) -> Any:
    return operator.attrgetter(name)(importlib.import_module(home))


@functools.cache
def _functions() -> dict[Any, str]:
    """The names of the known functions."""
    return {_found(*place): name for name, place in _FUNCTIONS.items()}
