"""Constrained bandits on PyTorch: choose, learn, and keep within limits meanwhile.

Names are looked up when first used, so that importing costs nothing and changes
nothing. The stub beside this file lists them.
"""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path
from typing import Any

_HOMES = {
    alias.name: str(line.module)
    for line in ast.parse(Path(__file__).with_suffix(".pyi").read_text("utf-8")).body
    if isinstance(line, ast.ImportFrom)
    for alias in line.names
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        home = _HOMES[name]
        held = {} if home == __name__ else vars(import_module(home))
        value = held[name] if name in held else import_module(f"{home}.{name}")
    else:
        hint = ""
        if name[:1].isupper() and name in import_module("cbandit.baselines").__all__:
            hint = f"; there is cbandit.baselines.{name}"
        elif not name.startswith("_") and (meant := _near(name)) is not None:
            hint = f"; did you mean cbandit.{meant}?"
        raise AttributeError(f"module 'cbandit' has no attribute {name!r}{hint}")
    globals()[name] = value
    return value


def _near(name: str) -> str | None:
    """Return the public name that ``name`` is likely to mean, in whatever case."""
    names = {public.lower(): public for public in __all__}
    meant = import_module("cbandit._core.hints").near(name.lower(), names)
    return names.get(meant)


def __dir__() -> list[str]:
    return __all__
