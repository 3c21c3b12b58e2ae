"""Many small tensors in a few large ones, which a file takes in a tenth of the time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["packed", "unpacked"]

SMALL = 4096  # numbers


def packed(tensors: Sequence[Tensor]) -> tuple[list[list[int]], list[Tensor]]:
    """Return where each tensor is, and the tensors that hold them all.

    A place is ``[k]``, the whole of one, or ``[k, *shape]``: the next numbers of it.
    Tensors that share memory, or are not plain ones on the host, stay as they are.
    """
    strided = (each for each in tensors if each.layout is torch.strided)
    shared = Counter(_memory(each) for each in strided)
    parts: dict[torch.dtype, list[Tensor]] = {}
    whole: list[Tensor] = []
    places: list[Any] = []
    for tensor in tensors:
        if _small(tensor) and shared[_memory(tensor)] == 1:
            parts.setdefault(tensor.dtype, []).append(tensor.reshape(-1))
            places.append((tensor.dtype, tensor.shape))
        else:
            places.append([len(whole)])
            whole.append(tensor)
    number = {dtype: len(whole) + k for k, dtype in enumerate(parts)}
    whole += [torch.cat(each) for each in parts.values()]
    return [p if type(p) is list else [number[p[0]], *p[1]] for p in places], whole


def unpacked(places: Sequence[Sequence[int]], whole: Sequence[Tensor]) -> list[Tensor]:
    """Return the tensors that :func:`packed` was given."""
    used = [0] * len(whole)
    out = []
    for k, *shape in places:
        if not shape:
            out.append(whole[k])
            continue
        start = used[k]
        used[k] = start + torch.Size(shape).numel()
        out.append(whole[k][start : used[k]].clone().view(shape))
    return out


def _small(tensor: Tensor) -> bool:
    """Return whether this is a plain tensor on the host that holds a few numbers."""
    if type(tensor) is not Tensor or tensor.layout is not torch.strided:
        return False
    if tensor.dim() == 0 or not 0 < tensor.numel() <= SMALL:
        return False
    odd = tensor.requires_grad or tensor.is_neg() or tensor.is_conj()
    odd = odd or tensor.is_quantized or not tensor.is_contiguous()
    return tensor.is_cpu and not odd


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
