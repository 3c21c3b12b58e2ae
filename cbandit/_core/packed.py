"""Tensors as the memory that they view, byte by byte, and back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cbandit._core import checks
from cbandit.errors import CheckpointError

__all__ = ["packed", "unpacked"]

SPREAD = 1 << 20  # how often a view may repeat its memory: a million trials share it
PLAIN = [0, None, False, False]  # what a place need not say
_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype)
}


def packed(tensors: Sequence[Tensor]) -> tuple[list[Any], list[Any], list[Tensor]]:
    """Return the sizes of all memory, each tensor's place in it, and its bytes.

    A size is ``[bytes, device]``. A place is ``[memory, dtype, shape, offset, stride,
    requires_grad, parameter]``, without the last of these where they are as usual. What
    shares memory still does.
    """
    plain = [_plain(tensor) for tensor in tensors]
    groups: dict[Any, list[int]] = {}
    for number, tensor in enumerate(plain):
        start = tensor.untyped_storage().data_ptr()
        key = (tensor.device, start) if start else -1 - number
        groups.setdefault(key, []).append(number)
    sizes: list[Any] = []
    places: list[Any] = [None] * len(plain)
    memory: list[Tensor] = []
    for numbers in groups.values():
        first = plain[numbers[0]]
        alone = len(numbers) == 1 and first.is_contiguous()
        storage, width = first.untyped_storage(), first.element_size()
        start, length = 0, int(storage.nbytes())
        if alone:  # of a long row, only its own numbers
            start, length = width * int(first.storage_offset()), width * first.numel()
        flat = torch.empty(0, dtype=torch.uint8, device=first.device)
        flat.set_(storage, start, (length,), (1,))
        for number in numbers:
            tensor = plain[number]
            place = [
                0 if alone else tensor.storage_offset(),
                None if tensor.is_contiguous() else [*tensor.stride()],
                tensor.requires_grad,
                isinstance(tensor, torch.nn.Parameter),
            ]
            while place and place[-1] == PLAIN[len(place) - 1]:
                place.pop()
            kind = str(tensor.dtype).removeprefix("torch.")
            places[number] = [len(memory), kind, [*tensor.shape], *place]
        sizes.append([length, str(first.device)])
        memory.append(flat.cpu())
    return sizes, places, memory


def _plain(tensor: Tensor) -> Tensor:
    """Return a tensor that is no more than its numbers, or raise."""
    kind = type(tensor)
    odd = kind not in (Tensor, torch.nn.Parameter) or tensor.is_quantized
    if odd or tensor.layout is not torch.strided or tensor.is_meta:
        raise TypeError(
            f"it holds a {kind.__name__} of layout {tensor.layout} and {tensor.dtype} "
            f"on {tensor.device}: only dense tensors can be saved"
        )
    return tensor.resolve_conj().resolve_neg()


def unpacked(
    sizes: Sequence[Any], places: Sequence[Any], data: memoryview
) -> list[Tensor]:
    """Return the tensors that :func:`packed` was given.

    Nothing is made before all places are known to lie within the bytes that are there.
    """
    bools = {memory for memory, kind, *_ in places if kind == "bool"}
    lengths = [length for length, _ in sizes]
    if min(lengths, default=0) < 0 or sum(lengths) != len(data):
        raise CheckpointError(
            f"it has {len(data)} bytes of numbers and claims {sum(lengths)}"
        )
    for place in places:
        _check(lengths, *place)
    memory, start = [], 0
    for number, (length, device) in enumerate(sizes):
        flat = torch.empty(length, dtype=torch.uint8)
        if length:
            flat.numpy()[:] = np.frombuffer(data, np.uint8, length, start)
        if number in bools:  # other bytes than 0 and 1 are no truth values
            flat = (flat != 0).view(torch.uint8)
        memory.append(flat.to(checks.device(device)))
        start += length
    return [_view(memory, *place) for place in places]


def _check(
    lengths: Sequence[int],
    memory: int,
    kind: str,
    shape: Sequence[int],
    offset: int = 0,
    stride: Sequence[int] | None = None,
    *_: Any,
) -> None:
    """Raise unless a tensor lies within its memory, and does not blow it up."""
    room = lengths[memory] // _DTYPES[kind].itemsize
    steps = _in_order(shape) if stride is None else stride
    count = math.prod(shape)
    ends = [(n - 1) * step for n, step in zip(shape, steps, strict=True)]
    inside = offset + sum(ends) < room if count else offset <= room
    if min([offset, *shape, *steps]) < 0 or not inside or count > SPREAD * room:
        raise CheckpointError(
            f"it claims a tensor of shape {tuple(shape)} where there are {room} numbers"
        )


def _view(
    memory: Sequence[Tensor],
    number: int,
    kind: str,
    shape: Sequence[int],
    offset: int = 0,
    stride: Sequence[int] | None = None,
    grad: bool = False,
    parameter: bool = False,
) -> Tensor:
    """Return a tensor over some memory."""
    flat, steps = memory[number], _in_order(shape) if stride is None else stride
    out = torch.empty(0, dtype=_DTYPES[kind], device=flat.device)
    out.set_(flat.untyped_storage(), offset, tuple(shape), tuple(steps))
    return torch.nn.Parameter(out, grad) if parameter else out.requires_grad_(grad)


def _in_order(shape: Sequence[int]) -> list[int]:
    """Return the strides of a contiguous tensor."""
    out, step = [], 1
    for size in reversed(shape):
        out.append(step)
        step *= max(size, 1)
    return out[::-1]
