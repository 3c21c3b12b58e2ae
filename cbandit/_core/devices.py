"""Device operations that do not make the host wait.

A CUDA device works off a queue. The host waits until the queue is empty when it reads a
number, calls ``to(device)`` or ``torch.tensor(..., device=)``, or indexes by a list;
the functions here avoid that. A round waits once, for its choice.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor


def put(
    values: Tensor | Sequence[object] | float,
    device: torch.device,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Return a tensor, or a list of numbers, as a tensor on ``device``."""
    tensor = values if isinstance(values, Tensor) else torch.tensor(values, dtype=dtype)
    home = tensor.device == device or (device.type == "cpu" and not tensor.is_cuda)
    if home and dtype is None:
        return tensor
    # unpinned memory has been read when this returns, so the caller may change it
    on_way = device.type != "cpu" and not tensor.is_cuda and not tensor.is_pinned()
    return tensor.to(device, dtype, non_blocking=on_way)


def host(*values: Tensor) -> list[Tensor]:
    """Bring tensors to the host in one transfer, int64 as it is, others as float64.

    Tensors that are on the host already are returned as they are.
    """
    if not values[0].is_cuda:
        return list(values)
    wide = [v if v.dtype == torch.long else v.double() for v in values]
    bits = torch.cat([v.reshape(-1).view(torch.long) for v in wide]).cpu()
    parts = bits.split([v.numel() for v in wide])
    pairs = zip(wide, parts, strict=True)
    return [part.view(like.dtype).view(like.shape) for like, part in pairs]


def cholesky(matrix: Tensor) -> Tensor:
    """Return the Cholesky factors of a batch of matrices.

    ``torch.linalg.cholesky`` waits for the device to check for success. Here, on CUDA,
    a matrix without a factor gets a factor of NaN, which makes the round's score NaN.
    """
    if not matrix.is_cuda:
        factor: Tensor = torch.linalg.cholesky(matrix)
        return factor
    factor, failed = torch.linalg.cholesky_ex(matrix)
    return factor.masked_fill_((failed != 0)[..., None, None], torch.nan)


def free_memory(device: torch.device) -> int:
    """Return the bytes that are free on ``device`` now."""
    if device.type == "cuda":
        # memory that torch holds and does not use is free too
        held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + held
    memory = Path("/proc/meminfo")
    for line in memory.read_text().splitlines() if memory.exists() else ():
        if line.startswith("MemAvailable"):
            return 1024 * int(line.split()[1])
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
