"""Device operations that do not make the host wait.

A CUDA device works off a queue. The host waits until the queue is empty when it reads a
number, calls ``to(device)`` or ``torch.tensor(..., device=)``, or indexes by a list;
the functions here avoid that. A round waits once, for its choice.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

__all__ = ["cholesky", "free_memory", "host", "put"]


def put(values: Any, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Put a tensor, or a list of numbers, on ``device``, unless it is there."""
    given = values if isinstance(values, Tensor) else torch.tensor(values, dtype=dtype)
    if given.device == device and dtype is None:
        return given
    if device.type == "cpu" and dtype is None and not given.is_cuda:
        return given
    if device.type == "cpu" or given.is_cuda:
        return given.to(device, dtype)
    # unpinned memory has been read when this returns, so the caller may change it
    return given.to(device, dtype, non_blocking=not given.is_pinned())


def host(*values: Tensor) -> list[Tensor]:
    """Bring tensors to the host in one look, int64 as it is and others as float64.

    Tensors that are on the host already are returned as they are.
    """
    if not values[0].is_cuda:
        return list(values)
    wide = [v if v.dtype == torch.long else v.double() for v in values]
    bits = torch.cat([v.reshape(-1).view(torch.long) for v in wide]).cpu()
    parts = bits.split([v.numel() for v in wide])
    pairs = zip(wide, parts, strict=True)
    return [part.view(own.dtype).view(own.shape) for own, part in pairs]


def cholesky(matrix: Tensor) -> Tensor:
    """The Cholesky factors of a batch of matrices.

    ``torch.linalg.cholesky`` waits for the device to check for success. Here, on CUDA,
    a matrix without a factor gets one of NaN, which the round's score will show.
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
    try:
        about = Path("/proc/meminfo").read_text()
    except OSError:
        about = ""
    for line in about.splitlines():
        if line.startswith("MemAvailable"):
            return 1024 * int(line.split()[1])
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
