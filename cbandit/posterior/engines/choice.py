"""Which engine keeps a belief over a set, and why."""

from __future__ import annotations

from collections.abc import Callable

import torch
from gpytorch.kernels import RBFKernel

from cbandit._core import checks
from cbandit._core.devices import free_memory
from cbandit.actions import Actions, Finite, ProductGrid
from cbandit.errors import CBanditError
from cbandit.posterior.axes import axes_of
from cbandit.posterior.covariance import Covariance
from cbandit.posterior.engines.dense import Dense
from cbandit.posterior.engines.joint import Joint
from cbandit.posterior.engines.protocol import Engine, Plan
from cbandit.posterior.engines.swept import Swept
from cbandit.posterior.rows.kronecker import Kronecker
from cbandit.posterior.rows.protocol import Rows
from cbandit.posterior.rows.recomputed import Recomputed
from cbandit.posterior.rows.stored import Stored
from cbandit_kernels import describe_native

__all__ = [
    "BEYOND",
    "BLOCK",
    "ENGINES",
    "Engine",
    "Plan",
    "block_of",
    "describe_engines",
    "make_engine",
    "plan",
]

ENGINES = ("auto", "joint", "factor", "product", "stream")
JOINT_ACTIONS = 512
JOINT_ACTIONS_SAMPLING = 1024  # above it a full-rank draw costs more than by features
EXPECTED_ROWS = 300
BLOCK = 1 << 17
CUDA_BLOCK = 1 << 26  # launches cost little beside it

BEYOND = Plan("factor", "an action outside the set was observed")
ROWS: dict[str, Callable[..., Rows]] = {
    "factor": Stored,
    "product": Kronecker,
    "stream": Recomputed,
}


def plan(
    wanted: str,
    actions: Actions,
    covariance: Covariance,
    trials: int,
    dtype: torch.dtype,
    device: torch.device,
    samples: bool,
) -> Plan:
    """The engine for a set: the one ``wanted``, or for ``"auto"`` what suits."""
    checks.one_of("engine", wanted, *ENGINES)
    if actions.continuous:
        if wanted != "auto":
            raise CBanditError(
                "engine must be 'auto' on a Box, which has no set to keep; got "
                f"{wanted!r}"
            )
        return Plan("dense", "a continuous box: points are solved for as asked")
    if wanted != "auto":
        return Plan(wanted, "asked for")
    size, memory = actions.size, free_memory(device)
    limit = JOINT_ACTIONS_SAMPLING if samples else JOINT_ACTIONS
    table = isinstance(actions, Finite) and actions.covariance is not None
    joint = 8 * trials * size * size
    if (size <= limit or table) and 2 * joint < memory:
        why = f"{size} actions: the whole covariance takes {joint / 1e6:.3g} MB"
        return Plan("joint", why)
    if isinstance(actions, ProductGrid) and actions.dim > 1:
        if axes_of(covariance, actions) is not None:
            return Plan("product", "a product grid and a kernel that factors over axes")
    rows = EXPECTED_ROWS * trials * size * dtype.itemsize
    closed = covariance.forms is not None and not covariance.bent
    if device.type == "cuda" and closed:
        return Plan("stream", "CUDA computes kernel values faster than it reads them")
    if 2 * rows > memory and closed:
        why = f"{EXPECTED_ROWS} kernel rows would take {rows / 1e9:.3g} GB"
        return Plan("stream", why)
    return Plan("factor", f"{EXPECTED_ROWS} kernel rows take {rows / 1e9:.3g} GB")


def make_engine(
    plan: Plan,
    actions: Actions,
    covariance: Covariance,
    trials: int,
    functions: int,
    dtype: torch.dtype,
    device: torch.device,
    stretch: tuple[int, int] | None = None,
) -> Engine:
    """A fresh engine that knows only the prior; for large sets, of a ``stretch``."""
    if actions.continuous:
        return Dense(actions, covariance, trials, functions, device, plan)
    if plan.name == "joint":
        return Joint(actions, covariance, trials, functions, device, plan)
    size = actions.size if stretch is None else stretch[1] - stretch[0]
    _check_memory(plan, size, trials, functions, dtype, device)
    rows = ROWS[plan.name](actions, covariance, trials, dtype, device, stretch)
    block = block_of(size, trials, functions, dtype, device)
    if device.type == "cuda" and isinstance(actions, ProductGrid):
        # whole rows of the second group, 16 at a time: kernels load 16 bytes at once
        whole = 16 * actions.row
        block = max(block - block % whole, whole if whole <= 2 * block else block)
    return Swept(
        actions,
        covariance,
        trials,
        functions,
        dtype,
        device,
        rows,
        block,
        stretch,
        plan,
    )


def _check_memory(
    plan: Plan,
    size: int,
    trials: int,
    functions: int,
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    """Raise an error where not even means and variances of all actions have room."""
    least, free = trials * (functions + 1) * size * dtype.itemsize, free_memory(device)
    if least > free:
        raise CBanditError(
            f"actions: means and variances of {size:,} actions take {least / 1e9:,.3g} "
            f"GB (engine {plan.name}, {trials} x {functions + 1} x {size:,} numbers of "
            f"{dtype}), and {free / 1e9:.3g} GB are free on {device.type}: give the "
            "parameters fewer values, or make numbers continuous, which gives a cb.Box "
            "(in a cb.Space, cb.Float without step)"
        )


def block_of(
    size: int, trials: int, functions: int, dtype: torch.dtype, device: torch.device
) -> int:
    """How many actions are looked at together.

    As many as fit the cache, or on CUDA as fill the device: fewer where what passes
    through in a stretch would not fit beside means and variances.
    """
    if device.type != "cuda":
        return BLOCK
    kept = trials * (functions + 1) * size * dtype.itemsize
    each = trials * 4 * (functions + 1) * dtype.itemsize
    room = (free_memory(device) - kept) // (2 * each)
    return min(CUDA_BLOCK, 1 << max(16, room.bit_length() - 1))


def describe_engines(device: torch.device | None = None) -> str:
    """Which engine ``"auto"`` takes here for some typical sets, and why."""
    device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.float32 if device.type == "cuda" else torch.float64
    axis = torch.linspace(0, 1, 1000, dtype=dtype)
    sets: list[tuple[str, Actions, int, bool]] = [
        ("100 points, 50 trials", _points(100, dtype), 50, False),
        ("1 000 points, Thompson draws", _points(1000, dtype), 1, True),
        ("3 000 points, Thompson draws", _points(3000, dtype), 1, True),
        ("10^5 points", _points(100_000, dtype), 1, False),
        ("grid of 10^6", ProductGrid([axis, axis]), 1, False),
        ("grid of 10^9", ProductGrid([axis, axis, axis]), 1, False),
    ]
    lines = [f"engines on {device.type}, {free_memory(device) / 1e9:.3g} GB free:"]
    for what, actions, trials, samples in sets:
        kernel = Covariance(RBFKernel(), actions.dim).to(device)
        chosen = plan(
            "auto", actions.to(device), kernel, trials, dtype, device, samples
        )
        line = f"  {what}: {chosen.name} ({chosen.why})"
        if chosen.name != "joint":
            block = block_of(actions.size, trials, 2, dtype, device)
            line += f", {min(block, actions.size):,} actions at a time"
        lines.append(line)
    lines.append(f"rounds on the CPU: {describe_native()}")
    return "\n".join(lines)


def _points(count: int, dtype: torch.dtype) -> Finite:
    return Finite(torch.linspace(0, 1, count, dtype=dtype).unsqueeze(-1).expand(-1, 2))
