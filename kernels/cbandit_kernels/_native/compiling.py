"""How the loops are compiled: once a machine where the result may be kept on disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import uuid

import numba
from numba.core import types
from numba.extending import intrinsic

__all__ = [
    "address_of_double",
    "address_of_flag",
    "address_of_float",
    "compiled",
    "reordered",
]

# sums may be contracted, never reordered: a NaN stays one, and a tie stays a tie
NAMESPACE = uuid.UUID(int=0)
EXACT = {"contract", "nsz"}


def compiled(function: Callable[..., Any]) -> Any:
    """``function`` as machine code that runs without Python's lock."""
    return _njit(function, EXACT)


def reordered(function: Callable[..., Any]) -> Any:
    """The same where the order of operations is free and no operand is a NaN."""
    return _njit(function, EXACT | {"nnan", "reassoc"})


def _njit(function: Callable[..., Any], fastmath: set[str]) -> Any:
    options: dict[str, Any] = {
        "nogil": True,
        "error_model": "numpy",
        "fastmath": fastmath,
    }
    try:
        made = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # no folder to keep it in: compiled again in every process
        return numba.njit(**options)(function)
    # what is kept is found by the values a closure holds; of another compiled function
    # that is a random number, unless it is named after what it is made of
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    plain = [c._uuid if hasattr(c, "_uuid") else repr(c) for c in cells]
    made._set_uuid(uuid.uuid5(NAMESPACE, f"{function.__qualname__} {plain}"))
    return made


def _pointer(kind: Any) -> Any:
    @intrinsic  # type: ignore[misc]
    def pointer(context: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
            wanted = context.get_value_type(signature.return_type)
            return builder.inttoptr(given[0], wanted)

        return types.CPointer(kind)(types.int64), generate

    return pointer


#: an address as a pointer that ``numba.carray`` takes
address_of_double = _pointer(types.float64)
address_of_float = _pointer(types.float32)
address_of_flag = _pointer(types.uint8)
