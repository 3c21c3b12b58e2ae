"""Objects as plain nodes and tensors, and back, without running any code of theirs.

A checkpoint's body is a line of JSON and the bytes of all tensors. The line holds
nodes, ``[kind, ...]``; a node names others as ``[number]``, so that what was one object
is one again. Reading makes containers, looks functions up in :class:`Names`, and makes
objects of classes found there (``cls.__new__``, then their state). It calls nothing
that the file names, unless the caller trusts it.

Nothing is compressed: what is read takes at most ``RATIO`` times the file's own size,
and ``SPARE`` bytes, in memory.
"""

from __future__ import annotations

import copyreg
import functools
import itertools
import json
import types
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cbandit._core import distributed
from cbandit._core.names import CODE, Names, name_of
from cbandit._core.packed import packed, unpacked
from cbandit._core.randomness import Streams
from cbandit.errors import CheckpointError

__all__ = ["parsed", "written"]

RATIO, SPARE = 32, 1 << 25
NODE, GENERATOR, MARK = 512, 8192, 64  # bytes of memory that one may take
DIGITS = 20  # of 64 bits, and a sign
_STREAMS = f"{Streams.__module__}:{Streams.__name__}"
_PLAIN = (type(None), bool, int, float, str)
_DTYPES = {str(v): v for v in vars(torch).values() if isinstance(v, torch.dtype)}
_GROUPS: dict[type[Any], str] = {
    **{list: "list", tuple: "tuple", set: "set", frozenset: "frozenset"},
    **{torch.Size: "Size", dict: "dict", OrderedDict: "OrderedDict"},
}
_NEW: Any = copyreg.__newobj__  # type: ignore[attr-defined]


def written(content: Any) -> tuple[list[Any], dict[str, Any]]:
    """Return the parts of a body that holds ``content``, and all that it names."""
    writer = _Writer()
    root = writer.put(content)
    sizes, places, memory = packed(writer.tensors)
    text = json.dumps([root, sizes, places, *writer.nodes], separators=(",", ":"))
    parts = [f"{text}\n".encode(), *(each.numpy() for each in memory)]
    _check(writer.nodes, len(places), sum(map(len, parts)))
    return parts, writer.named


def parsed(body: bytes, names: Names) -> Any:
    """Return what :func:`written` was given, if ``names`` knows all that it names."""
    end = body.index(b"\n")
    marks = sum(body.count(mark, 0, end) for mark in (b"[", b"{", b","))
    if MARK * marks > SPARE + RATIO * len(body):
        raise CheckpointError("it has more parts than a file of its size can hold")
    root, sizes, places, *nodes = json.loads(body[:end], parse_int=_whole)
    _check(nodes, len(places), len(body))
    tensors = unpacked(sizes, places, memoryview(body)[end + 1 :])
    return _Reader(nodes, tensors, names).get(root)


def _whole(digits: str) -> int:
    """Return a whole number of 64 bits; larger ones can be made to slow a set down."""
    if len(digits) > DIGITS:
        raise CheckpointError(f"it holds a whole number of {len(digits)} digits")
    return int(digits)


def _check(nodes: Sequence[Any], tensors: int, size: int) -> None:
    """Raise if a body of some bytes has so many parts that they need far more."""
    generators = sum(n[0] == "Generator" or _STREAMS in n[1:2] for n in nodes)
    if NODE * (len(nodes) + tensors) + GENERATOR * generators > SPARE + RATIO * size:
        raise CheckpointError("it has more parts than a file of its size can hold")


class _Writer:
    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.tensors: list[Tensor] = []
        self.named: dict[str, Any] = {}
        self._number: dict[int, int] = {}
        self._names: dict[int, str] = {}
        self._alive: list[Any] = []  # so that no id comes twice

    def put(self, value: Any) -> Any:
        """Return a plain value itself, else ``[number]`` of its node."""
        if type(value) in _PLAIN:
            return value
        number = self._number.get(id(value))
        if number is None:
            number = self._number[id(value)] = len(self.nodes)
            self._alive.append(value)
            self.nodes.append(None)
            self.nodes[number] = self._node(value)
        return [number]

    def _all(self, values: Iterable[Any]) -> list[Any]:
        return [self.put(value) for value in values]

    def _name(self, thing: Any) -> str:
        if id(thing) not in self._names:
            self._names[id(thing)] = name = name_of(thing)
            self.named[name] = thing
        return self._names[id(thing)]

    def _tensor(self, value: Tensor) -> int:
        self.tensors.append(value)
        return len(self.tensors) - 1

    def _node(self, value: Any) -> list[Any]:
        kind = _GROUPS.get(type(value))
        if kind is not None:
            if isinstance(value, dict):
                value = itertools.chain.from_iterable(value.items())
            return [kind, *self._all(value)]
        if isinstance(value, Tensor):
            return ["tensor", self._tensor(value)]
        return self._small(value) or self._callable(value) or self._object(value)

    def _small(self, value: Any) -> list[Any] | None:
        """Return the node of a value that is no more than a few numbers or words."""
        if isinstance(value, np.ndarray | np.generic):
            kind = "array" if isinstance(value, np.ndarray) else "scalar"
            return [kind, self._tensor(torch.from_numpy(np.array(value)))]
        if type(value) is range or type(value) is slice:
            parts = self._all((value.start, value.stop, value.step))
            return [type(value).__name__, *parts]
        if isinstance(value, torch.dtype | torch.device):
            return [type(value).__name__, str(value)]
        if type(value) is bytes:
            return ["bytes", value.hex()]
        if type(value) is complex:
            return ["complex", value.real, value.imag]
        if type(value) is torch.Generator:
            state = self._tensor(value.get_state())
            return ["Generator", str(value.device), state]
        if isinstance(value, distributed.Ranks):
            # process groups stay here; the current one is used on load
            return ["Ranks", value is distributed.ALONE]
        return None

    def _callable(self, value: Any) -> list[Any] | None:
        """Return the node of a function, or of one with some arguments given."""
        if isinstance(value, types.MethodType):
            return ["method", self._name(value.__func__), self.put(value.__self__)]
        if isinstance(value, functools.partial):
            return ["partial", *self._all((value.func, value.args, value.keywords))]
        if isinstance(value, (type, *CODE)):
            return ["name", self._name(value)]
        return None

    def _object(self, value: Any) -> list[Any]:
        """Return the node of any other object, as it would be copied."""
        reduced: Any = value.__reduce_ex__(2)
        if isinstance(reduced, str):
            raise TypeError(f"{value!r} is kept by its name alone")
        make, given, state, items, pairs = (*reduced, None, None, None)[:5]
        kind = "made"
        if make is _NEW:
            kind, make, given = "object", given[0], given[1:]
        parts = [given, state, list(items or ()), list(pairs or ())]
        return [kind, self._name(make), *self._all(parts)]


class _Reader:
    def __init__(self, nodes: list[Any], tensors: list[Tensor], names: Names) -> None:
        self._nodes, self._tensors, self._names = nodes, tensors, names
        self._made: dict[int, Any] = {}

    def get(self, value: Any) -> Any:
        """Return what :meth:`_Writer.put` was given."""
        if type(value) is not list:
            return value
        (number,) = value
        if number not in self._made:
            kind, *parts = self._nodes[number]
            made = self._named(number, kind, parts)
            # a part may have held the whole
            self._made.setdefault(number, made)
        return self._made[number]

    def _named(self, number: int, kind: str, parts: list[Any]) -> Any:
        if kind in ("list", "set", "dict", "OrderedDict"):
            new = {"list": list, "set": set, "dict": dict}
            whole: Any = new.get(kind, OrderedDict)()
            self._made[number] = whole
            values = (self.get(part) for part in parts)
            if kind in ("list", "set"):
                (whole.extend if kind == "list" else whole.update)(values)
            else:
                whole.update(zip(values, values, strict=True))
            return whole
        if kind in ("tuple", "frozenset", "Size"):
            of = {"tuple": tuple, "frozenset": frozenset}.get(kind, torch.Size)
            return of([self.get(part) for part in parts])
        if kind in ("object", "made"):
            return self._object(number, kind, *parts)
        if kind == "name":
            return self._names.function(*parts)
        if kind == "method":
            bound = types.MethodType
            return bound(self._names.function(parts[0]), self.get(parts[1]))
        if kind == "partial":
            function, given, named = (self.get(part) for part in parts)
            return functools.partial(function, *given, **named)
        return self._small(kind, parts)

    def _object(self, number: int, kind: str, name: str, *parts: Any) -> Any:
        given = self.get(parts[0])
        if kind == "made":
            whole = self._names.trusted(name)(*given)
        else:
            cls = self._names.cls(name)
            whole = cls.__new__(cls, *given)
        self._made[number] = whole
        state, items, pairs = (self.get(part) for part in parts[1:])
        if state is not None or hasattr(type(whole), "__setstate__"):
            _restore(whole, state)
        if items or pairs:
            # only containers, and what the user trusts, decide what becomes of these
            if kind == "object" and not isinstance(whole, list | dict):
                raise CheckpointError(f"{name} takes no items")
            if items:
                whole.extend(items)
            for key, value in pairs:
                whole[key] = value
        return whole

    def _small(self, kind: str, parts: list[Any]) -> Any:
        if kind == "tensor":
            return self._tensors[parts[0]]
        if kind == "array":
            return self._tensors[parts[0]].numpy()
        if kind == "scalar":
            return self._tensors[parts[0]].numpy()[()]
        if kind == "range":
            return range(*parts)
        if kind == "slice":
            return slice(*(self.get(part) for part in parts))
        if kind == "dtype":
            return _DTYPES[parts[0]]
        if kind == "device":
            return torch.device(parts[0])
        if kind == "bytes":
            return bytes.fromhex(parts[0])
        if kind == "complex":
            return complex(*parts)
        if kind == "Generator":
            return torch.Generator(parts[0]).set_state(self._tensors[parts[1]])
        if kind == "Ranks":
            return distributed.ALONE if parts[0] else distributed.current()
        raise CheckpointError(f"it holds a node of an unknown kind, {kind!r}")


def _restore(thing: Any, state: Any) -> None:
    """Give a new object its attributes, as ``copy.copy`` would."""
    if hasattr(type(thing), "__setstate__"):
        thing.__setstate__(state)
        return
    plain, slots = state if isinstance(state, tuple) else (state, None)
    if plain:
        vars(thing).update(plain)
    for name, value in (slots or {}).items():
        slot = getattr(type(thing), name)
        if not isinstance(slot, types.MemberDescriptorType):
            raise CheckpointError(f"{type(thing).__name__} has no slot {name!r}")
        slot.__set__(thing, value)
