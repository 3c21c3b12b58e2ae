"""The settings of a policy or problem, which a resumed run is compared with.

A constructor records its arguments in its first statement,
``self.settings = stated(self, locals())``. A checkpoint keeps them as plain values, so
that nobody resumes a run under other settings. Numbers are compared up to rounding, as
another machine may compute other last digits.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cbandit._core.hints import unknown

# apart from these, which see settings_of
APART = ("self", "__class__", "common", "actions", "device", "dtype", "trials")
FEW = 8  # arrays up to this size are kept whole, larger ones as two sums
CHUNK = 1 << 16
NEAR = 1e-9
DEPTH = 8
FOREIGN = 2  # how deep to look into objects of other libraries


def stated(thing: Any, named: Mapping[str, Any]) -> dict[str, Any]:
    """Describe a constructor's arguments; those recorded by a subclass take precedence.

    Args:
        thing: the object being built. A keyword in its constructor's ``**common`` must
            be one of ``type(thing).common``.
        named: the constructor's ``locals()``, before any other statement.
    """
    common = named.get("common", {})
    for name in common:
        if name not in type(thing).common:
            known = (*named, *type(thing).common)
            apart = ("self", "__class__", "common")
            names = [word for word in known if word not in apart]
            raise unknown(type(thing).__name__, name, names)
    noted = {k: described(v) for k, v in {**named, **common}.items() if k not in APART}
    return noted | getattr(thing, "settings", {})


def settings_of(thing: object) -> dict[str, Any]:
    """Return the settings of a policy or problem, its actions, dtype and device.

    A user's own class need not record its settings: attributes with the names of its
    constructor's arguments are taken too.
    """
    noted, attributes = getattr(thing, "settings", None), getattr(thing, "__dict__", {})
    settings = described(noted) if isinstance(noted, Mapping) else {}
    for name in inspect.signature(type(thing).__init__).parameters:
        if name in attributes and name not in (*APART, *settings):
            settings[name] = described(attributes[name])
    for name in ("actions", "dtype"):
        settings[name] = described(getattr(thing, name, None))
    device = getattr(thing, "device", None)
    settings["device"] = device.type if isinstance(device, torch.device) else None
    return settings


class Numbers(NamedTuple):
    """An array: its numbers if they are few, otherwise sums that identify it."""

    shape: tuple[int, ...]
    kept: tuple[float, ...]

    def __str__(self) -> str:
        if math.prod(self.shape) > FEW:
            return f"numbers of shape {self.shape}"
        words = [f"{value:.12g}" for value in self.kept]
        return f"[{', '.join(words)}]" if self.shape else words[0]

    def near(self, other: Numbers) -> bool:
        """Return whether both hold the same numbers up to rounding."""
        finite = [abs(v) for v in (*self.kept, *other.kept) if math.isfinite(v)]
        same = functools.partial(
            np.allclose, rtol=0.0, atol=NEAR * max(finite, default=0.0), equal_nan=True
        )
        return self.shape == other.shape and bool(same(self.kept, other.kept))


def described(value: object, depth: int = DEPTH) -> Any:
    """Return ``value`` as strings, :class:`Numbers` and dicts of these.

    A function becomes its name, any other object its class and attributes.
    """
    if value is None or isinstance(value, bool | str | Numbers):
        return value
    if isinstance(value, range | torch.dtype | torch.device):
        return str(value)
    array = _array(value)
    if array is not None:
        return _numbers(array)
    if depth == 0:
        return type(value).__qualname__
    if callable(value) and hasattr(value, "__qualname__"):
        return str(value.__qualname__)
    if isinstance(value, list | tuple):
        value = dict(enumerate(value))
    elif isinstance(value, functools.partial):
        value = {"": value.func, "given": value.args, **value.keywords}
    elif isinstance(value, torch.nn.Module):
        value = dict(_parts(value))
    elif isinstance(getattr(value, "settings", None), Mapping):
        value = {"": type(value), **settings_of(value)}
    elif not isinstance(value, Mapping):
        if not type(value).__module__.startswith("cbandit"):
            depth = min(depth, FOREIGN)
        value = {"": type(value), **_attributes(value)}
    return {str(key): described(part, depth - 1) for key, part in value.items()}


def _attributes(value: object) -> dict[str, Any]:
    """Return an object's attributes, without cached properties."""
    cached, held = functools.cached_property, getattr(value, "__dict__", {})
    names = [k for k in held if not isinstance(getattr(type(value), k, 0), cached)]
    return {name: held[name] for name in names}


def _parts(module: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield classes, plain attributes and parameters of a module and its parts."""
    for name, part in module.named_modules():
        yield name, type(part)
        for key, value in vars(part).items():
            plain = isinstance(value, bool | int | float | str)
            if plain and key[0] != "_" and key != "training":
                yield f"{name}.{key}".lstrip("."), value
    yield from module.state_dict().items()


def _array(value: object) -> np.ndarray | None:
    """Return numbers of any kind as float64; ``None`` for anything else."""
    try:
        if isinstance(value, Tensor):
            value = value.detach().cpu()
            value = value.double() if value.is_floating_point() else value
        elif not _numeric(value, DEPTH):
            return None
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError):
        return None
    return array.astype(float) if array.dtype.kind in "biuf" and array.size else None


def _numeric(value: object, depth: int) -> bool:
    # numpy would iterate over anything with indices, even without end
    if isinstance(value, list | tuple):
        return depth > 0 and all(_numeric(entry, depth - 1) for entry in value)
    return isinstance(value, int | float | Tensor | np.ndarray | np.generic)


def _numbers(array: np.ndarray) -> Numbers:
    """Return the array's numbers if they are few, otherwise two sums."""
    shape, flat = array.shape, array.reshape(-1)
    if flat.size <= FEW:
        return Numbers(shape, tuple(flat.tolist()))
    size = mixed = 0.0
    for start in range(0, flat.size, CHUNK):
        part = np.nan_to_num(flat[start : start + CHUNK], True, 1.25, 1.5, -1.5)
        size += float(np.abs(part).sum())
        place = np.arange(start, start + part.size, dtype=float)
        mixed += float(part @ (place * math.sqrt(5) % 1 + 0.5))
    return Numbers(shape, (size, mixed))


def differences(
    before: object, now: object, where: str = ""
) -> Iterator[tuple[str, object, object]]:
    """Yield ``(name, before, now)`` for each place where two descriptions differ."""
    if isinstance(before, dict) and isinstance(now, dict):
        if before.get("") == now.get(""):
            for key in before | now:
                name = f"{where}.{key}".strip(".")
                yield from differences(before.get(key), now.get(key), name)
            return
    elif isinstance(before, Numbers) and isinstance(now, Numbers):
        if before.near(now):
            return
    elif before == now:
        return
    yield where, _short(before), _short(now)


def _short(description: object) -> object:
    """Return a description; for an error, objects are shortened to their class."""
    if isinstance(description, dict):
        return description.get("", "several")
    return description
