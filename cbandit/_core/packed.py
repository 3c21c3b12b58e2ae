"""Convert tensors to the bytes of the memory that they view, and back."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cbandit._core import checks
from cbandit.errors import CheckpointError

SPREAD = 1 << 20  # how often a view may repeat its memory: a million trials
DTYPES = {str(v): v for v in vars(torch).values() if isinstance(v, torch.dtype)}


class Place(NamedTuple):
    """A tensor's place in memory; a file omits fields with their default values.

    Args:
        memory: the number of the memory.
        kind: the dtype's name, such as ``float64``.
        shape: the tensor's shape.
        offset: where the tensor begins, counted in its own numbers.
        stride: the tensor's strides; ``None``: it is contiguous.
        grad: whether the tensor requires gradients.
        parameter: whether it is a parameter of a module.
    """

    memory: int
    kind: str
    shape: Sequence[int]
    offset: int = 0
    stride: Sequence[int] | None = None
    grad: bool = False
    parameter: bool = False

    @property
    def dtype(self) -> torch.dtype:
        """The tensor's dtype; a ``KeyError`` if there is none of this name."""
        return DTYPES[f"torch.{self.kind}"]

    @property
    def steps(self) -> Sequence[int]:
        """The tensor's strides; by default those of a contiguous tensor."""
        if self.stride is not None:
            return self.stride
        sizes = [max(size, 1) for size in self.shape]
        steps = [*accumulate(sizes[:0:-1], operator.mul, initial=1)]
        return steps[::-1][: len(sizes)]

    def brief(self) -> list[Any]:
        """Return the fields as a list, without the last ones if they are defaults."""
        parts = [*self]
        for name, usual in reversed(self._field_defaults.items()):
            if getattr(self, name) != usual:
                break
            parts.pop()
        return parts

    def check(self, lengths: Sequence[int]) -> None:
        """Raise unless the tensor lies within its memory and is not far larger."""
        room = lengths[self.memory] // self.dtype.itemsize
        count = math.prod(self.shape)
        ends = [(n - 1) * k for n, k in zip(self.shape, self.steps, strict=True)]
        inside = self.offset + sum(ends) < room if count else self.offset <= room
        least = min([self.offset, *self.shape, *self.steps])
        if least < 0 or not inside or count > SPREAD * room:
            raise CheckpointError(
                f"it claims a tensor of shape {tuple(self.shape)} where there are "
                f"{room} numbers"
            )

    def tensor(self, memory: Sequence[Tensor]) -> Tensor:
        """Return the tensor over its memory."""
        flat = memory[self.memory]
        out = torch.empty(0, dtype=self.dtype, device=flat.device)
        storage, shape, steps = flat.untyped_storage(), (*self.shape,), (*self.steps,)
        out.set_(storage, self.offset, shape, steps)
        if self.parameter:
            return torch.nn.Parameter(out, self.grad)
        return out.requires_grad_(self.grad)


def packed(tensors: Sequence[Tensor]) -> tuple[list[Any], list[Any], list[Tensor]]:
    """Return the sizes of all memory, each tensor's place in it, and its bytes.

    A size is ``[bytes, device]``, a place is :meth:`Place.brief`. Tensors that share
    memory share it in the result too.
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
        if alone:  # only this tensor's numbers, not all of a long row
            start, length = width * int(first.storage_offset()), width * first.numel()
        flat = torch.empty(0, dtype=torch.uint8, device=first.device)
        flat.set_(storage, start, (length,), (1,))
        for number in numbers:
            tensor = plain[number]
            places[number] = Place(
                memory=len(memory),
                kind=str(tensor.dtype).removeprefix("torch."),
                shape=[*tensor.shape],
                offset=0 if alone else int(tensor.storage_offset()),
                stride=None if tensor.is_contiguous() else [*tensor.stride()],
                grad=tensor.requires_grad,
                parameter=isinstance(tensor, torch.nn.Parameter),
            ).brief()
        sizes.append([length, str(first.device)])
        memory.append(flat.cpu())
    return sizes, places, memory


def _plain(tensor: Tensor) -> Tensor:
    """Return a dense tensor, without lazy conjugation or sign; raise for others."""
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

    Before any tensor is made, all places are checked to lie within ``data``.
    """
    tensors = [Place(*place) for place in places]
    bools = {place.memory for place in tensors if place.kind == "bool"}
    lengths = [length for length, _ in sizes]
    if min(lengths, default=0) < 0 or sum(lengths) != len(data):
        raise CheckpointError(
            f"it has {len(data)} bytes of numbers and claims {sum(lengths)}"
        )
    for place in tensors:
        place.check(lengths)
    memory, start = [], 0
    for number, (length, device) in enumerate(sizes):
        flat = torch.empty(length, dtype=torch.uint8)
        if length:
            flat.numpy()[:] = np.frombuffer(data, np.uint8, length, start)
        if number in bools:  # other bytes than 0 and 1 are no truth values
            flat = (flat != 0).view(torch.uint8)
        memory.append(flat.to(checks.device(device)))
        start += length
    return [place.tensor(memory) for place in tensors]
