"""Which implementation of a round a tensor gets."""

from __future__ import annotations

import os
from functools import cache
from importlib import import_module
from importlib.util import find_spec

from torch import Tensor

__all__ = ["describe_native", "native", "streams_natively"]

SWITCH = "CBANDIT_NATIVE"  # environment variable: 0 keeps to plain torch
FACTORS = 3  # kernels in a product that compiled loops take
DIMS = 16  # coordinates that they keep in registers


def describe_native() -> str:
    """How rounds on the CPU are computed, and how they would be faster."""
    obstacle = _obstacle()
    if obstacle is None:
        return "compiled loops (numba)"
    return f"plain torch, because {obstacle}"


@cache
def _obstacle() -> str | None:
    """Why compiled loops cannot be used, or ``None``."""
    if os.environ.get(SWITCH) == "0":
        return f"{SWITCH}=0 is set"
    if find_spec("numba") is None:
        return "numba is not installed: pip install 'cbandit[native]'"
    try:
        import_module("cbandit_kernels._native.rounds")
    except (ImportError, AttributeError) as error:  # of a release too old or too new
        return f"numba does not load ({error}): pip install 'cbandit[native]'"
    return None


def native(values: Tensor) -> bool:
    """Whether compiled loops take these: numba is there, and no device holds them."""
    return values.is_cpu and _obstacle() is None


def streams_natively(values: Tensor, kinds: tuple[str, ...], dim: int) -> bool:
    """Whether compiled loops make this kernel's values themselves."""
    return len(kinds) <= FACTORS and dim <= DIMS and native(values)
