"""Which implementation of a round a tensor gets."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

from torch import Tensor

__all__ = ["native", "native_at_hand", "streams_natively"]

FACTORS = 3  # kernels in a product that compiled loops take
DIMS = 16  # coordinates that they keep in registers


@cache
def native_at_hand() -> bool:
    """Whether the CPU's compiled loops can be used: whether numba is installed."""
    return find_spec("numba") is not None


def native(values: Tensor) -> bool:
    """Whether compiled loops take these: numba is there, and no device holds them."""
    return values.device.type == "cpu" and native_at_hand()


def streams_natively(values: Tensor, kinds: tuple[str, ...], dim: int) -> bool:
    """Whether compiled loops make this kernel's values themselves."""
    return len(kinds) <= FACTORS and dim <= DIMS and native(values)
