"""Convert objects to plain nodes and tensors, and back, without running their code.

A checkpoint's body is a line of JSON and the bytes of all tensors. The line holds
nodes, ``[kind, ...]``; a node refers to others as ``[number]``, so that one object
stays one. Reading makes containers, looks functions up in :class:`Names`, and makes
objects of classes found there (``cls.__new__``, then their state). It calls nothing
that the file names, unless the caller trusts it.

One part may stay *apart*: its nodes and tensors are left out, and the reader supplies
an equal part, whose nodes have the same numbers.

Nothing is compressed: what is read takes in memory at most ``RATIO`` times the file's
size, plus ``SPARE`` bytes.

Why not ``torch.load(weights_only=True)`` with ``torch.serialization.safe_globals``?
Tried on torch 2.13 with files made to do harm, and with a policy of three functions:

============================== ========================== ============================
file                           torch.load, weights only   here
============================== ========================== ============================
names that a policy needs      49, and one of them is     classes, which are never
                               ``builtins.getattr``       called, and 25 functions
a class with any arguments     called: its constructor    refused; ``cls.__new__`` and
                               runs, and may fill memory  a state
``bytearray(2 ** 30)``, 351    taken: 1 GB                refused
bytes
a view of 10^12 numbers        taken                      refused
deflated zeros, 1 MB           1 GB, then refused         refused unread
20 000 ints of one hash        taken after 6 s            refused
a set of 60 nested tuples,     never returns              refused
each with the next one twice
bound methods, ``partial``,    need ``getattr`` and their  read, if what they name is
numpy arrays, functions        own rebuilders to be safe  known
memory that tensors share      shared                     shared
a policy, 70 kB                88 kB; 12 ms to save,      70 kB; 10 ms, 12 ms
                               13 ms to load unchecked
============================== ========================== ============================
"""

from __future__ import annotations

import copyreg
import functools
import itertools
import json
import types
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cached_property
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cbandit._core.distributed import ALONE, Ranks, current
from cbandit._core.files import digest
from cbandit._core.names import CODE, Names, name_of
from cbandit._core.packed import DTYPES, packed, unpacked
from cbandit._core.randomness import Streams
from cbandit.errors import CheckpointError

RATIO, SPARE = 32, 1 << 25
NODE, GENERATOR, MARK = 512, 8192, 64  # bytes of memory that one may take
DIGITS = 20  # of 64 bits, and a sign
DEEP = 100  # tuples within tuples
_APART = "apart"
_STREAMS = f"{Streams.__module__}:{Streams.__name__}"
_ATOMS = (type(None), bool, int, float, str)  # what JSON has of its own
_NEW: Any = copyreg.__newobj__  # type: ignore[attr-defined]

_GROUPS: dict[str, type[Any]] = {
    **{"list": list, "tuple": tuple, "set": set, "frozenset": frozenset},
    **{"Size": torch.Size, "dict": dict, "OrderedDict": OrderedDict},
}


class _Kind(NamedTuple):
    """A small value: its class, how to take it apart, and how to make it again."""

    type: type[Any]
    parts: Callable[[Any], tuple[Any, ...]]
    make: Callable[..., Any]


_VALUES = {
    "range": _Kind(range, attrgetter("start", "stop", "step"), range),
    "slice": _Kind(slice, attrgetter("start", "stop", "step"), slice),
    "complex": _Kind(complex, attrgetter("real", "imag"), complex),
    "bytes": _Kind(bytes, lambda value: (value.hex(),), bytes.fromhex),
    "dtype": _Kind(torch.dtype, lambda value: (str(value),), DTYPES.__getitem__),
    "device": _Kind(torch.device, lambda value: (str(value),), torch.device),
    # process groups stay here; the current one is used on load
    "Ranks": _Kind(
        Ranks, lambda ranks: (ranks is ALONE,), lambda one: ALONE if one else current()
    ),
}
_KIND_OF = {cls: kind for kind, cls in _GROUPS.items()} | {
    value.type: kind for kind, value in _VALUES.items()
}


class Apart(NamedTuple):
    """A part of the content that is not in the file.

    Args:
        part: the part.
        label: plain values that tell a reader which part to supply.
    """

    part: object
    label: tuple[str, ...]


def written(content: object, apart: Apart | None = None) -> list[Any]:
    """Return the bytes of a body that holds ``content``, in parts."""
    writer = _Writer()
    if apart is not None:
        writer.leave_out(apart)
    root = writer.put(content)
    sizes, places, memory = packed(writer.tensors)
    text = json.dumps([root, sizes, places, *writer.nodes], separators=(",", ":"))
    parts = [f"{text}\n".encode(), *(numbers.numpy() for numbers in memory)]
    _check(writer.nodes, len(places), sum(map(len, parts)))
    return parts


def mark_of(part: object) -> str:
    """Return the digest of a part; equal parts have equal digests."""
    writer = _Writer()
    writer.put_bare(part)
    sizes, places, memory = packed(writer.tensors)
    text = json.dumps([sizes, places, *writer.nodes], separators=(",", ":"))
    parts: list[Any] = [numbers.numpy() for numbers in memory]
    return digest(text.encode(), *parts).decode()


def names_in(content: object) -> dict[str, Any]:
    """Return the classes and functions that a body of ``content`` names."""
    writer = _Writer()
    writer.put(content)
    return writer.named


def parsed(
    body: bytes, names: Names, give: Callable[[Sequence[str]], object] | None = None
) -> Any:
    """Return the content of a body; raise if ``names`` lacks any of its names.

    ``give`` takes the label of the part that was left out and returns it; it may raise.
    """
    end = body.index(b"\n")
    marks = sum(body.count(mark, 0, end) for mark in (b"[", b"{", b","))
    if MARK * marks > SPARE + RATIO * len(body):
        raise CheckpointError("it has more parts than a file of its size can hold")
    root, sizes, places, *nodes = json.loads(body[:end], parse_int=_whole)
    _check(nodes, len(places), len(body))
    tensors = unpacked(sizes, places, memoryview(body)[end + 1 :])
    reader = _Reader(nodes, tensors, names, len(body))
    if nodes and nodes[0][0] == _APART and give is not None:
        reader.fill_in(give(nodes[0][1:]))
    return reader.get(root)


def _whole(digits: str) -> int:
    """Return a whole number; refuse more than 64 bits, which could slow sets down."""
    if len(digits) > DIGITS:
        raise CheckpointError(f"it holds a whole number of {len(digits)} digits")
    return int(digits)


def _check(nodes: Sequence[Any], tensors: int, size: int) -> None:
    """Raise if the parts of a body would need far more memory than its size."""
    generators = sum(n[0] == "Generator" or _STREAMS in n[1:2] for n in nodes)
    if NODE * (len(nodes) + tensors) + GENERATOR * generators > SPARE + RATIO * size:
        raise CheckpointError("it has more parts than a file of its size can hold")


class _Writer:
    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.tensors: list[Tensor] = []
        self.named: dict[str, Any] = {}
        self._names: dict[int, str] = {}
        # whether cached properties are left out, so that equal parts are alike
        self._bare = False
        # by id, with the value itself, so that no id comes twice
        self._numbers: dict[int, tuple[int, Any]] = {}

    def leave_out(self, apart: Apart) -> None:
        """Number all nodes of a part, from the first on, but write none of them."""
        self.put_bare(apart.part)
        self.nodes = [[_APART] for _ in self.nodes]
        self.nodes[0] += apart.label
        self.tensors = [torch.empty(0) for _ in self.tensors]

    def put_bare(self, part: object) -> None:
        """Put a part without the values of its cached properties."""
        self._bare = True
        self.put(part)
        self._bare = False

    @property
    def numbered(self) -> dict[int, Any]:
        """All values that have a node, by its number."""
        return dict(self._numbers.values())

    def put(self, value: object) -> Any:
        """Return a plain value itself, else ``[number]`` of its node."""
        if type(value) in _ATOMS:
            return value
        if id(value) not in self._numbers:
            number = len(self.nodes)
            self._numbers[id(value)] = number, value
            self.nodes.append(None)
            self.nodes[number] = self._node(value)
        return [self._numbers[id(value)][0]]

    def _node(self, value: Any) -> list[Any]:
        kind = _KIND_OF.get(type(value))
        if kind in _VALUES:
            return [kind, *map(self.put, _VALUES[kind].parts(value))]
        if kind is not None:
            if isinstance(value, dict):
                value = itertools.chain.from_iterable(value.items())
            return [kind, *map(self.put, value)]
        if isinstance(value, Tensor):
            return ["tensor", self._tensor(value)]
        if isinstance(value, np.ndarray | np.generic):
            kind = "array" if isinstance(value, np.ndarray) else "scalar"
            return [kind, self._tensor(torch.from_numpy(np.array(value)))]
        if type(value) is torch.Generator:
            return ["Generator", str(value.device), self._tensor(value.get_state())]
        if isinstance(value, types.MethodType):
            return ["method", self._name(value.__func__), self.put(value.__self__)]
        if isinstance(value, functools.partial):
            parts = value.func, value.args, value.keywords
            return ["partial", *map(self.put, parts)]
        if isinstance(value, (type, *CODE)):
            return ["name", self._name(value)]
        return self._object(value)

    def _tensor(self, value: Tensor) -> int:
        self.tensors.append(value)
        return len(self.tensors) - 1

    def _name(self, thing: Callable[..., Any]) -> str:
        if id(thing) not in self._names:
            self._names[id(thing)] = name = name_of(thing)
            self.named[name] = thing
        return self._names[id(thing)]

    def _object(self, value: object) -> list[Any]:
        """Return the node of any other object, with the state of a copy."""
        reduced: Any = value.__reduce_ex__(2)
        if isinstance(reduced, str):
            raise TypeError(f"{value!r} is kept by its name alone")
        make, arguments, state, items, pairs = (*reduced, None, None, None)[:5]
        kind = "made"
        if make is _NEW:
            kind, make, arguments = "object", arguments[0], arguments[1:]
        if self._bare and isinstance(state, dict):
            cls = type(value)
            state = {
                name: part
                for name, part in state.items()
                if not isinstance(getattr(cls, name, None), cached_property)
            }
        parts = arguments, state, list(items or ()), list(pairs or ())
        return [kind, self._name(make), *map(self.put, parts)]


class _Bounds:
    """Bounds on what reading a body of ``size`` bytes may take.

    A small file can refer to one part many times. So a tuple is *weighed*: its weight
    is how many parts a walk through it meets, repeats included, as hashing and
    comparing walk it.
    """

    def __init__(self, size: int) -> None:
        self._steps = self._bytes = SPARE + RATIO * size
        #: by a node's number, the weight and the depth of tuples and of what holds them
        self._weights: dict[int, tuple[int, int]] = {}

    def weigh(self, number: int, parts: Sequence[Any]) -> None:
        """Note the weight of a tuple, or another hashable group, with these parts."""
        of = [self._of(part) for part in parts]
        weight, depth = (
            1 + sum(w for w, _ in of),
            1 + max((d for _, d in of), default=0),
        )
        if weight > self._steps or depth > DEEP:
            raise CheckpointError(
                "it holds tuples within tuples that are too deep, or too often shared"
            )
        self._weights[number] = weight, depth

    def _of(self, part: object) -> tuple[int, int]:
        return self._weights.get(part[0], (1, 0)) if type(part) is list else (1, 0)

    def hash(self, parts: Sequence[Any], keys: Sequence[Any]) -> None:
        """Count the work of putting keys into a set or a dict, before it is done.

        A key may be compared with every key of the same hash.

        Args:
            parts: the keys as the file has them.
            keys: the keys.
        """
        weights = [self._of(part)[0] for part in parts]
        self._work(sum(weights))
        before: dict[int, int] = {}
        for key, weight in zip(keys, weights, strict=True):
            if type(key) not in _ATOMS:  # at most some dozens of these are alike
                same = before.get(number := hash(key), 0)
                before[number] = same + 1
                self._work(same * weight)

    def _work(self, steps: int) -> None:
        self._steps -= steps
        if self._steps < 0:
            raise CheckpointError("its sets and dicts take more work than its size")

    def copy(self, cls: type[Any], whole: Any) -> Any:
        """Return a container of a class whose parts are about to be copied."""
        if type(whole) is not cls:
            kind = type(whole).__name__
            raise CheckpointError(f"it holds a {kind} in place of a {cls.__name__}")
        self._bytes -= MARK * len(whole)
        if self._bytes < 0:
            raise CheckpointError("it has more parts than a file of its size can hold")
        return whole


class _Reader:
    def __init__(
        self, nodes: list[Any], tensors: list[Tensor], names: Names, size: int
    ) -> None:
        self._nodes, self._tensors, self._names = nodes, tensors, names
        self._made: dict[int, Any] = {}
        self._bounds = _Bounds(size)

    def fill_in(self, part: object) -> None:
        """Put a part in place of the nodes that were left out."""
        writer = _Writer()
        writer.put_bare(part)
        left_out = sum(node[0] == _APART for node in self._nodes)
        if len(writer.nodes) != left_out:
            raise CheckpointError(
                f"the part left out has {left_out} nodes, this one {len(writer.nodes)}"
            )
        self._made |= writer.numbered

    def get(self, value: object) -> Any:
        """Return the value that :meth:`_Writer.put` was given."""
        if type(value) is not list:
            return value
        (number,) = value
        if number not in self._made:
            kind, *parts = self._nodes[number]
            made = self._value(number, kind, parts)
            # a part may have held the whole
            self._made.setdefault(number, made)
        return self._made[number]

    def _value(self, number: int, kind: str, parts: list[Any]) -> Any:
        if kind in _GROUPS:
            return self._group(number, _GROUPS[kind], parts)
        if kind in _VALUES:
            return _VALUES[kind].make(*map(self.get, parts))
        if kind in ("object", "made"):
            return self._object(number, kind, *parts)
        if kind == "name":
            return self._names.function(*parts)
        if kind == "method":
            function, bound = parts
            return types.MethodType(self._names.function(function), self.get(bound))
        if kind == "partial":
            function, arguments, keywords = map(self.get, parts)
            if isinstance(function, functools.partial):  # Python writes it as one
                raise CheckpointError("it holds a partial of a partial")
            arguments = self._bounds.copy(tuple, arguments)
            keywords = self._bounds.copy(dict, keywords)
            return functools.partial(function, *arguments, **keywords)
        if kind == "Generator":
            return torch.Generator(parts[0]).set_state(self._tensors[parts[1]])
        if kind not in ("tensor", "array", "scalar"):
            raise CheckpointError(f"it holds a node of an unknown kind, {kind!r}")
        tensor = self._tensors[parts[0]]
        if kind == "tensor":
            return tensor
        return tensor.numpy() if kind == "array" else tensor.numpy()[()]

    def _group(self, number: int, cls: type[Any], parts: list[Any]) -> Any:
        if cls in (tuple, frozenset, torch.Size):
            values = [*map(self.get, parts)]
            self._bounds.weigh(number, parts)
            if cls is frozenset:
                self._bounds.hash(parts, values)
            return cls(values)
        whole = self._made[number] = cls()  # before its parts, which may refer to it
        values = [*map(self.get, parts)]
        if isinstance(whole, list):
            whole.extend(values)
        elif isinstance(whole, set):
            self._bounds.hash(parts, values)
            whole.update(values)
        else:
            self._bounds.hash(parts[::2], values[::2])
            whole.update(zip(values[::2], values[1::2], strict=True))
        return whole

    def _object(self, number: int, kind: str, name: str, *parts: Any) -> Any:
        copy = self._bounds.copy
        arguments = copy(tuple, self.get(parts[0]))
        if kind == "made":
            whole = self._names.trusted(name)(*arguments)
        else:
            cls = self._names.cls(name)
            whole = cls.__new__(cls, *arguments)
        self._made[number] = whole
        state, items, pairs = (self.get(part) for part in parts[1:])
        if getattr(type(whole), "__hash__", None) is not object.__hash__:
            # its hash may be that of its parts
            self._bounds.weigh(number, [parts[0], *self._attributes(parts[1])])
        if state is not None or hasattr(type(whole), "__setstate__"):
            _restore(whole, state, self._bounds)
        if items or pairs:
            # only containers, and what the user trusts, decide what becomes of these
            if kind == "object" and not isinstance(whole, list | dict):
                raise CheckpointError(f"{name} takes no items")
            if items:
                whole.extend(copy(list, items))
            pairs = [copy(tuple, pair) for pair in copy(list, pairs)]
            written = self._nodes[parts[3][0]][1:]
            self._bounds.hash(written, [key for key, _ in pairs])
            for key, value in pairs:
                whole[key] = value
        return whole

    def _attributes(self, state: object) -> list[Any]:
        """Return the values in an object's state, as the file has them."""
        if type(state) is not list:
            return []
        kind, *parts = self._nodes[state[0]]
        if kind == "tuple":  # the attributes, and those in slots
            return [value for part in parts for value in self._attributes(part)]
        return parts if kind == "dict" else [state]


def _restore(thing: Any, state: Any, bounds: _Bounds) -> None:
    """Give a new object its attributes, as ``copy.copy`` would."""
    if hasattr(type(thing), "__setstate__"):
        if isinstance(state, dict):
            bounds.copy(dict, state)
        thing.__setstate__(state)
        return
    plain, slots = state if isinstance(state, tuple) else (state, None)
    if plain:
        vars(thing).update(bounds.copy(dict, plain))
    for name, value in (slots or {}).items():
        slot = getattr(type(thing), name)
        if not isinstance(slot, types.MemberDescriptorType):
            raise CheckpointError(f"{type(thing).__name__} has no slot {name!r}")
        slot.__set__(thing, value)
