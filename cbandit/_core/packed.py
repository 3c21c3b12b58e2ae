"""Many small tensors in a few large ones, which a file takes in a tenth of the time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["packed", "unpacked"]

SMALL = 4096  # numbers


def packed(tensors: Sequence[Tensor]) -> tuple[list[Any], list[Tensor]]:
    """Return where each tensor is, and the tensors that hold them all.

    The places are ``[sizes, where]``: how many numbers each piece of the last tensors
    holds, a list for each of these; and for each tensor ``[k]``, the whole of one, or
    ``[piece, offset, shape, stride]``, without a stride where numbers lie in order.
    What shares memory still does.
    """
    groups: dict[Any, list[int]] = {}
    for number, tensor in enumerate(tensors):
        strided = tensor.layout is torch.strided
        memory = tensor.untyped_storage().data_ptr() if strided else 0
        groups.setdefault(memory or -1 - number, []).append(number)
    pieces: dict[torch.dtype, list[tuple[Tensor, list[int]]]] = {}
    for numbers in groups.values():
        piece = _piece([tensors[number] for number in numbers])
        if piece is not None:
            pieces.setdefault(piece.dtype, []).append((piece, numbers))
    where: list[Any] = [None] * len(tensors)
    sizes: list[list[int]] = []
    last: list[Tensor] = []
    count = 0
    for each in pieces.values():
        sizes.append([piece.numel() for piece, _ in each])
        last.append(torch.cat([piece for piece, _ in each]))
        for _, numbers in each:
            alone = len(numbers) == 1 and tensors[numbers[0]].is_contiguous()
            for number in numbers:
                tensor = tensors[number]
                offset = 0 if alone else tensor.storage_offset()
                where[number] = [count, offset, [*tensor.shape]]
                if not tensor.is_contiguous():
                    where[number].append([*tensor.stride()])
            count += 1
    whole = [t for t, place in zip(tensors, where, strict=True) if place is None]
    places = iter(range(len(whole)))
    return [sizes, [place or [next(places)] for place in where]], [*whole, *last]


def _piece(sharing: Sequence[Tensor]) -> Tensor | None:
    """Return all numbers of tensors that share memory, if they can be packed."""
    first = sharing[0]
    for tensor in sharing:
        if type(tensor) is not Tensor or tensor.layout is not torch.strided:
            return None
        odd = tensor.requires_grad or tensor.is_neg() or tensor.is_conj()
        if odd or tensor.is_quantized or not tensor.is_cpu or not tensor.numel():
            return None
        if tensor.dtype != first.dtype:
            return None
    if len(sharing) == 1 and first.is_contiguous():
        return first.reshape(-1) if first.numel() <= SMALL else None
    count = first.untyped_storage().nbytes() // first.element_size()
    return first.as_strided((count,), (1,), 0) if count <= SMALL else None


def unpacked(places: Sequence[Any], tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the tensors that :func:`packed` was given."""
    sizes, where = places
    last = tensors[len(tensors) - len(sizes) :]
    pieces = [
        part.clone()
        for tensor, each in zip(last, sizes, strict=True)
        for part in tensor.split(each)
    ]
    out = []
    for number, *view in where:
        if view:
            offset, shape, *stride = view
            strides = stride[0] if stride else _in_order(shape)
            out.append(pieces[number].as_strided(shape, strides, offset))
        else:
            out.append(tensors[number])
    return out


def _in_order(shape: Sequence[int]) -> list[int]:
    """The strides of a contiguous tensor."""
    out, step = [], 1
    for size in reversed(shape):
        out.append(step)
        step *= size
    return out[::-1]
