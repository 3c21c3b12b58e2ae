"""Compile the loops, once for each machine if the result may be kept on disk."""

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

# processors that lower their clock for 512-bit instructions
SLOWED = ("skylake-avx512", "cascadelake", "cooperlake", "cannonlake")

# sums may be contracted but not reordered: NaN stays NaN, and a tie stays a tie
EXACT = {"contract", "nsz"}


def _stamp() -> str:
    """Return a digest of these sources and the compiler, which identifies machine code.

    A loop contains the code of the loops it calls, so a change in one file affects all.
    """
    made = hashlib.sha256(f"{numba.__version__} {llvmlite.__version__}".encode())
    for source in sorted(Path(__file__).parent.glob("*.py")):
        made.update(source.read_bytes())
    return made.hexdigest()[:16]


STAMP = _stamp()


class _Cache(FunctionCache):  # type: ignore[misc]
    """numba's cache, which also finds loops that call other loops.

    numba names a closure by its contents, in which a compiled function has another name
    in every process.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)  # raises if there is no folder to write to
        name = f"{function.__module__.rpartition('.')[-1]}.{function.__qualname__}"
        self._cache_file = Folder(self.cache_path, name, STAMP)

    def _index_key(self, signature: Any, codegen: Any) -> str:
        return repr((signature, codegen.magic_tuple()))


def compiled(function: Callable[..., Any], fastmath: Any = EXACT) -> Any:
    """Return ``function`` as machine code that runs without Python's lock.

    With ``fastmath=False`` products and sums are rounded one by one, as torch does.
    """
    # a name for each set of values in a closure, the same in all processes
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    held = repr(
        [getattr(value, "__qualname__", None) or repr(value) for value in cells]
    )
    name = function.__qualname__.rpartition(".")[-1]
    function.__qualname__ = f"{name}-{hashlib.sha256(held.encode()).hexdigest()[:12]}"
    made = numba.njit(nogil=True, error_model="numpy", fastmath=fastmath)(function)
    # without a folder to write to, every process compiles it again
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
    """Compile the calling loop for 512-bit vectors, if the processor has them.

    LLVM otherwise takes 256 bits. It pays where arithmetic takes most of the time.
    """

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        if llvmlite.binding.get_host_cpu_name() not in SLOWED:
            # llvmlite's own add refuses attributes that it does not know
            attributes = builder.function.attributes
            set.add(attributes, '"prefer-vector-width"="512"')
        return context.get_dummy_value()

    return types.void(), generate
