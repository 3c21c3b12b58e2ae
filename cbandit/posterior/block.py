"""A stretch of actions with the beliefs about it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

__all__ = ["Block"]


@dataclass
class Block:
    """The actions ``start .. stop - 1`` (``n`` of them) in ``T`` trials.

    Args:
        start: the first action.
        stop: one past the last action.
        mean: posterior means of ``F`` functions, ``(T, F, n)``.
        std: their standard deviations, ``(T, 1 or F, n)``; ``None`` if only a draw was
            asked for.
        draw: a draw of the functions less their means, ``(T, F, n)``, if asked for.
    """

    start: int
    stop: int
    mean: Tensor
    std: Tensor
    draw: Tensor | None = None
