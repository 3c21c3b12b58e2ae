"""Updates of multipliers between rounds, as pure, differentiable functions.

They map ``(*b, m)`` to ``(*b, m)``. Gradients reach every tensor they are given, and
they work under ``torch.func`` and ``torch.compile(fullgraph=True)``. Each checks its
arguments, which on CUDA waits for the device; ``checked=False`` skips the checks, for
callers that have made them. Inside of ``torch.func`` and ``torch.compile`` numbers
cannot be read, so shapes alone are checked.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cbandit._core import checks
from cbandit.errors import CBanditError

__all__ = ["exponential", "polynomial", "projected", "queue", "rectified"]


def exponential(z: Tensor, c: float = 1.0) -> Tensor:
    """Return ``exp(c [z]_+)``, a penalty of :class:`~cbandit.EpochPenalty`."""
    return (c * z.clamp_min(0)).exp()


def polynomial(z: Tensor, n: float = 2.0, c: float = 1.0) -> Tensor:
    """Return ``(c [z]_+ + 1)^n``, a penalty of :class:`~cbandit.EpochPenalty`."""
    return (c * z.clamp_min(0) + 1) ** n


def projected(
    multiplier: Tensor,
    g: Tensor,
    step: Tensor | float,
    slack: Tensor | float = 0.0,
    cap: Tensor | float = torch.inf,
    *,
    checked: bool = True,
) -> Tensor:
    """Return ``clip(phi + step (g + slack), 0, cap)``: projected dual ascent (CKB)."""
    if checked:
        multiplier, g = _pair("multiplier", multiplier, "g", g)
        step, slack = _beside("step", step, g), _beside("slack", slack, g)
        cap = _beside("cap", cap, g, endless=True)
    moved = (multiplier + step * (g + slack)).clamp_min(0)
    if isinstance(cap, Tensor):
        return torch.minimum(moved, cap.to(moved))
    return moved.clamp_max(cap)


def queue(
    length: Tensor, g: Tensor, slack: Tensor | float = 0.0, *, checked: bool = True
) -> Tensor:
    """Return ``[Q + g + slack]_+``: a virtual queue (SCGP-UCB, CKB's drift form)."""
    if checked:
        length, g = _pair("length", length, "g", g)
        slack = _beside("slack", slack, g)
    return (length + g + slack).clamp_min(0)


def rectified(
    multiplier: Tensor,
    cost: Tensor,
    floor: Tensor | float,
    *,
    checked: bool = True,
) -> Tensor:
    """Return ``max(Q + [cost]_+, floor)`` (RPOL)."""
    if checked:
        multiplier, cost = _pair("multiplier", multiplier, "cost", cost)
        floor = _beside("floor", floor, cost)
    moved = multiplier + cost.clamp_min(0)
    if isinstance(floor, Tensor):
        return torch.maximum(moved, floor.to(moved))
    return moved.clamp_min(floor)


def _pair(
    name: str, multiplier: object, other: str, cost: object
) -> tuple[Tensor, Tensor]:
    """Return ``multiplier`` and ``cost`` as tensors; raise unless ``m`` is the same."""
    phi, g = _tensor(name, multiplier), _tensor(other, cost)
    if phi.shape[-1:] != g.shape[-1:] or not _together(phi, g):
        raise CBanditError(
            f"{other} must have the shape (*b, m) of {name}, {tuple(phi.shape)}; got "
            f"{tuple(g.shape)}"
        )
    checks.finite(other, g)
    return _within(name, phi), g


def _beside(
    name: str, value: object, g: Tensor, endless: bool = False
) -> Tensor | float:
    """Return ``value``, made to broadcast with ``g``; raise if it is negative."""
    if isinstance(value, float | int):
        value = float(value)
    tensor = torch.tensor(value) if isinstance(value, float) else _tensor(name, value)
    if not _together(tensor, g):
        raise CBanditError(
            f"{name} must be a number or go with the shape (*b, m) = {tuple(g.shape)}; "
            f"got {tuple(tensor.shape)}"
        )
    _within(name, tensor, endless)
    return value if isinstance(value, float) else tensor


def _within(name: str, value: Tensor, endless: bool = False) -> Tensor:
    """Return ``value``; raise if negative or NaN, or infinite unless ``endless``."""
    outside = ~(value >= 0)
    if not endless:
        outside |= value.isinf()
    if checks.readable() and bool(outside.any()):
        finite = "" if endless else "finite and "
        raise CBanditError(
            f"{name} must be {finite}at least 0; got {value[outside][0].item():g}"
        )
    return value


def _tensor(name: str, value: object) -> Tensor:
    # a tensor stays as it is, with its graph
    return value if isinstance(value, Tensor) else checks.tensor(name, value)


def _together(a: Tensor, b: Tensor) -> bool:
    pairs = zip(a.shape[::-1], b.shape[::-1], strict=False)
    return all(m == n or 1 in (m, n) for m, n in pairs)
