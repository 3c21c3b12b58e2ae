"""Values: objects that never change, and cost little to replace."""

from __future__ import annotations

from typing import Any, Self


class Value:
    """An object whose attributes are set once, by its constructor."""

    def __init__(self, **parts: object) -> None:
        vars(self).update(parts)

    def __setattr__(self, name: str, value: object) -> None:
        kind = type(self).__name__
        raise AttributeError(f"{kind} never changes; {name} cannot be set")

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)

    def _with(self, **changes: object) -> Self:
        """Return a copy with ``changes``; faster than ``dataclasses.replace``."""
        other = object.__new__(type(self))
        vars(other).update(vars(self))
        vars(other).update(changes)
        return other
