"""How the loops are compiled: once a machine where the result may be kept on disk."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding
import numba
from numba.core import types
from numba.core.caching import FunctionCache
from numba.extending import intrinsic

from cbandit_kernels._native.kept import Folder

__all__ = [
    "address_of_double",
    "address_of_flag",
    "address_of_float",
    "compiled",
    "in_wide_registers",
]

# processors that lower their clock for such instructions
SLOWED = ("skylake-avx512", "cascadelake", "cooperlake", "cannonlake")

# sums may be contracted, never reordered: a NaN stays one, and a tie stays a tie
EXACT = {"contract", "nsz"}


def _stamp() -> str:
    """A digest of these sources and of the compiler: machine code of others is stale.

    A loop holds the code of those that it calls, so a change in one file is a change
    in all.
    """
    made = hashlib.sha256(f"{numba.__version__} {llvmlite.__version__}".encode())
    for source in sorted(Path(__file__).parent.glob("*.py")):
        made.update(source.read_bytes())
    return made.hexdigest()[:16]


STAMP = _stamp()


class _Cache(FunctionCache):  # type: ignore[misc]
    """numba's cache, except that loops which call other loops are found again.

    numba's own names a closure by the closure's contents, and gives a compiled function
    among them another name in every process.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)  # raises where there is no folder to keep it in
        name = f"{function.__module__.rpartition('.')[-1]}.{function.__qualname__}"
        self._cache_file = Folder(self.cache_path, name, STAMP)

    def _index_key(self, signature: Any, codegen: Any) -> str:
        return repr((signature, codegen.magic_tuple()))


def compiled(function: Callable[..., Any]) -> Any:
    """``function`` as machine code that runs without Python's lock."""
    # one name for each set of values that a closure holds, the same in all processes
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    held = repr(
        [getattr(value, "__qualname__", None) or repr(value) for value in cells]
    )
    name = function.__qualname__.rpartition(".")[-1]
    function.__qualname__ = f"{name}-{hashlib.sha256(held.encode()).hexdigest()[:12]}"
    made = numba.njit(nogil=True, error_model="numpy", fastmath=EXACT)(function)
    # where there is no folder to keep it in, it is compiled again in every process
    with contextlib.suppress(RuntimeError):
        made._cache = _Cache(function)
    return made


def _pointer(kind: Any) -> Any:
    def pointer(context: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
            wanted = context.get_value_type(signature.return_type)
            return builder.inttoptr(given[0], wanted)

        return types.CPointer(kind)(types.int64), generate

    pointer.__qualname__ = f"pointer to {kind}"
    return intrinsic(pointer)


#: an address as a pointer that ``numba.carray`` takes
address_of_double = _pointer(types.float64)
address_of_float = _pointer(types.float32)
address_of_flag = _pointer(types.uint8)


@intrinsic  # type: ignore[misc]
def in_wide_registers(context: Any) -> Any:
    """Called in a loop: it is compiled for vectors of 512 bits, where there are.

    LLVM takes 256 unless told. It pays where arithmetic is what takes the time.
    """

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        if llvmlite.binding.get_host_cpu_name() not in SLOWED:
            # llvmlite's own add takes no attributes but those it knows
            attributes = builder.function.attributes
            set.add(attributes, '"prefer-vector-width"="512"')
        return context.get_dummy_value()

    return types.void(), generate
