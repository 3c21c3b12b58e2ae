"""Choose the implementation of a round for a tensor."""

from __future__ import annotations

import os
from functools import cache
from importlib import import_module
from importlib.util import find_spec

from torch import Tensor

__all__ = ["describe_native", "native", "streams_natively"]

SWITCH = "CBANDIT_NATIVE"  # environment variable: 0 means plain torch
FACTORS = 3  # most kernels in a product that compiled loops take
DIMS = 16  # most coordinates that they hold in registers


def describe_native() -> str:
    """Describe how rounds on the CPU are computed, and what would be faster."""
    obstacle = _obstacle()
    if obstacle is None:
        return "compiled loops (numba)"
    return f"plain torch, because {obstacle}"


@cache
def _obstacle() -> str | None:
    """Return why compiled loops cannot be used, or ``None``."""
    if os.environ.get(SWITCH) == "0":
        return f"{SWITCH}=0 is set"
    if find_spec("numba") is None:
        return "numba is not installed: pip install 'cbandit[native]'"
    try:
        import_module("cbandit_kernels._native.rounds")
    except (ImportError, AttributeError) as error:  # the release is too old or too new
        return f"numba does not load ({error}): pip install 'cbandit[native]'"
    return None


def native(values: Tensor) -> bool:
    """Return whether compiled loops take ``values``: on the CPU, with numba there."""
    return values.is_cpu and _obstacle() is None


def streams_natively(values: Tensor, kinds: tuple[str, ...], dim: int) -> bool:
    """Return whether compiled loops can compute this kernel's values in a round."""
    return len(kinds) <= FACTORS and dim <= DIMS and native(values)
