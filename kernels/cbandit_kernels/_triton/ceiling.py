"""Measure how many kernel values per second a device computes at most."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from cbandit_kernels._triton.powers import power


@triton.jit
def pairs_kernel(out, used, D: tl.constexpr, STEP: tl.constexpr, BLOCK: tl.constexpr):
    """``stream_kernel``'s loop for one RBF, with tried actions made in registers.

    Each pair takes D FMAs, an exp2 and an FMA; each tried action takes two
    multiplications for a thread's whole block, which replace its loads.
    """
    lane = tl.arange(0, BLOCK)
    kind = out.dtype.element_ty
    x = ()
    for j in tl.static_range(D):
        x = x + ((lane * (j + 1) % 97).to(kind) * -0.01,)
    y = tl.full((), 0.37, kind)
    total = tl.zeros((BLOCK,), kind)
    for _block in range(0, used, STEP):
        for _ in tl.static_range(STEP):
            t = y
            for j in tl.static_range(D):
                t = t * y + x[j]
            total += power(t) * y
            y *= 0.9999
    place = tl.program_id(0).to(tl.int64) * BLOCK + lane
    tl.store(out + place, total)


def pairs(out: Tensor, used: int, dim: int, block: int) -> int:
    """Launch the loop over whole blocks of ``out``; return the number of pairs."""
    blocks = out.numel() // block
    with torch.cuda.device_of(out):
        pairs_kernel[(blocks,)](out, used, D=dim, STEP=4, BLOCK=block, num_warps=4)
    return blocks * block * used
