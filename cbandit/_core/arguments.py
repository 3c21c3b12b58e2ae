"""What a policy or a problem was built with, in plain values that can be compared.

A checkpoint keeps them, so that nobody goes on with a run under other settings. Numbers
are compared up to rounding: what was computed on another machine is the same.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

__all__ = ["Numbers", "Stated", "described", "differences", "settings_of"]

FEW = 8  # numbers that are kept as they are; of more of them, two sums
CHUNK = 1 << 16
NEAR = 1e-9
DEPTH = 8
FOREIGN = 2  # how deep objects of other libraries are looked into
_APART = ("actions", "device", "dtype", "trials")  # looked at as they are in the end


class Stated:
    """Keeps what its constructor was given: ``stated``, by argument."""

    stated: Mapping[str, Any] = {}

    def __new__(cls, *arguments: Any, **named: Any) -> Self:
        """An object that knows what it is about to be given."""
        cls._about_to_take(arguments, named)
        self = super().__new__(cls)
        self.stated = _given(cls, arguments, named)
        return self

    @classmethod
    def _about_to_take(cls, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Where a class looks at what its constructor is given, before that runs."""


def settings_of(thing: Any) -> dict[str, Any]:
    """What a policy or a problem was built with, and over which actions.

    Of one that is not :class:`Stated`: attributes named like arguments of its
    constructor.
    """
    if isinstance(thing, Stated):
        found = dict(thing.stated)
    else:
        kind: Any = type(thing)
        names = _parameters(kind)[0].parameters.keys() - set(_APART)
        held = getattr(thing, "__dict__", {})
        found = {k: described(v) for k, v in sorted(held.items()) if k in names}
    for name in ("actions", "dtype"):
        found[name] = described(getattr(thing, name, None))
    device = getattr(thing, "device", None)
    found["device"] = device.type if isinstance(device, torch.device) else None
    return found


@functools.cache
def _parameters(cls: Any) -> tuple[inspect.Signature, dict[str, Any]]:
    """A constructor's parameters, and the defaults of all it hands keywords on to."""
    defaults: dict[str, Any] = {}
    for base in cls.__mro__:
        if "__init__" in vars(base) and base is not object:
            for each in inspect.signature(base.__init__).parameters.values():
                if each.kind is each.KEYWORD_ONLY and each.default is not each.empty:
                    defaults.setdefault(each.name, each.default)
    return inspect.signature(cls.__init__), defaults


def _given(
    cls: Any, arguments: Sequence[Any], named: Mapping[str, Any]
) -> dict[str, Any]:
    signature, defaults = _parameters(cls)
    try:
        bound = signature.bind(None, *arguments, **named)
    except TypeError:
        return {}  # the constructor says what is wrong, or what is unpickled knows
    bound.apply_defaults()
    given = dict(bound.arguments)
    for each in signature.parameters.values():
        if each.kind is each.VAR_KEYWORD:
            given |= given.pop(each.name)
    own = next(iter(signature.parameters))
    given = {k: v for k, v in (defaults | given).items() if k not in (own, *_APART)}
    return {name: described(value) for name, value in sorted(given.items())}


# ------------------------------------------------------------------- in plain values


class Numbers(NamedTuple):
    """An array: its numbers if they are few, else sums that tell it from others."""

    shape: tuple[int, ...]
    kept: tuple[float, ...]

    def __str__(self) -> str:
        if math.prod(self.shape) > FEW:
            return f"numbers of shape {self.shape}"
        words = [f"{value:.12g}" for value in self.kept]
        return f"[{', '.join(words)}]" if self.shape else words[0]


def described(value: Any, depth: int = DEPTH) -> Any:
    """``value`` as strings, :class:`Numbers` and dicts of these.

    Functions are named, not looked into; objects are their class and what they hold.
    """
    if value is None or isinstance(value, bool | str | Numbers):
        return value
    if isinstance(value, range | torch.dtype | torch.device | torch.Size):
        return str(value)
    array = _array(value)
    if array is not None:
        return _numbers(array)
    if depth == 0:
        return type(value).__qualname__
    if isinstance(value, functools.partial):
        value = {"": value.func, "given": value.args, **value.keywords}
    elif isinstance(value, list | tuple):
        value = dict(enumerate(value))
    elif isinstance(value, torch.nn.Module):
        value = dict(_parts(value))
    elif callable(value) and hasattr(value, "__qualname__"):
        return str(value.__qualname__)
    elif isinstance(value, Stated):
        value = {"": type(value), **settings_of(value)}
    elif not isinstance(value, Mapping):
        if not type(value).__module__.startswith("cbandit"):
            depth = min(depth, FOREIGN)
        value = {"": type(value), **_held(value)}
    return {str(key): described(each, depth - 1) for key, each in value.items()}


def _held(value: Any) -> dict[str, Any]:
    """An object's attributes but for those that it computes when first asked."""
    late = functools.cached_property
    return {
        name: each
        for name, each in getattr(value, "__dict__", {}).items()
        if not isinstance(getattr(type(value), name, None), late)
    }


def _parts(module: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    """Classes, plain attributes and parameters of a module and all its parts."""
    for name, part in module.named_modules():
        yield name, type(part)
        for key, value in vars(part).items():
            if key[0] != "_" and key != "training" and _plain(value):
                yield f"{name}.{key}".lstrip("."), value
    yield from module.state_dict().items()


def _plain(value: Any) -> bool:
    return isinstance(value, bool | int | float | str)


def _array(value: Any) -> Tensor | None:
    """Numbers of any kind as a float64 tensor on the CPU; ``None``: no numbers."""
    if isinstance(value, Tensor):
        odd = value.is_complex() or value.is_quantized or value.is_nested
        if odd or value.is_meta or value.layout is not torch.strided:
            return None
        return value.detach().cpu().double()
    if not _may_be_numbers(value, DEPTH):
        return None
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError):
        return None
    if array.dtype.kind not in "biuf" or not array.size:
        return None
    return torch.from_numpy(array.astype(np.float64))


def _may_be_numbers(value: Any, depth: int) -> bool:
    # numpy would go through anything with an index, and through some without an end
    if isinstance(value, list | tuple):
        return depth > 0 and all(_may_be_numbers(each, depth - 1) for each in value)
    return isinstance(value, int | float | Tensor | np.ndarray | np.generic)


def _numbers(array: Tensor) -> Numbers:
    shape, flat = tuple(array.shape), array.reshape(-1)
    if flat.numel() <= FEW:
        return Numbers(shape, tuple(flat.tolist()))
    finite = flat.isfinite()
    if not bool(finite.all()):
        # where they are, and which, shall count as well
        flat = flat.nan_to_num(1.25, 1.5, -1.5)
    size = mixed = 0.0
    for k, part in enumerate(flat.split(CHUNK)):
        size += float(part.abs().sum())
        mixed += float(part @ _uneven()[: len(part)]) * (1 + (k * math.sqrt(2)) % 1)
    return Numbers(shape, (size, mixed))


@functools.cache
def _uneven() -> Tensor:
    """Weights of which no two nearby are alike."""
    return (torch.arange(CHUNK, dtype=torch.float64) * math.sqrt(5)) % 1 + 0.5


# ------------------------------------------------------------------------- compared


def differences(
    before: Any, now: Any, where: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    """``(name, before, now)`` of all in which two descriptions differ."""
    if isinstance(before, dict) and isinstance(now, dict):
        if before.get("") == now.get(""):
            for key in [*before, *(key for key in now if key not in before)]:
                name = f"{where}.{key}".strip(".")
                yield from differences(before.get(key), now.get(key), name)
            return
    elif isinstance(before, Numbers) and isinstance(now, Numbers):
        if _alike(before, now):
            return
    elif before == now:
        return
    yield where, _short(before), _short(now)


def _short(description: Any) -> Any:
    if isinstance(description, dict):
        return description.get("", "several")
    return description


def _alike(a: Numbers, b: Numbers) -> bool:
    if a.shape != b.shape:
        return False
    finite = [abs(v) for v in (*a.kept, *b.kept) if math.isfinite(v)]
    slack = NEAR * max(finite, default=0.0)
    return all(
        x == y or abs(x - y) <= slack or (x != x and y != y)
        for x, y in zip(a.kept, b.kept, strict=True)
    )
