"""Passes over the set in units, of one group of functions or of several."""

from __future__ import annotations

import torch
from torch import Tensor

from cbandit.posterior.block import Block
from cbandit.posterior.engines.protocol import Pass
from cbandit.posterior.scale import Scale

__all__ = ["Merged", "Scaled"]


class Scaled:
    """An engine's pass in units, see :mod:`cbandit.posterior.units`.

    Args:
        inner: the engine's.
        scale: between the engine's units and these.
        dtype: of what is handed out.
    """

    __slots__ = ("_gap", "_inner", "_shift", "_size")

    def __init__(self, inner: Pass, scale: Scale, dtype: torch.dtype) -> None:
        self._inner = inner
        self._shift = scale.means.to(dtype).unsqueeze(-1)
        self._gap: Tensor | None = None
        if scale.standardize:
            units = scale.units()
            gap = units.center - scale.outcomes.origin
            self._gap = gap.to(dtype).unsqueeze(-1)
            self._size = units.size.to(dtype).unsqueeze(-1)

    def block(self, start: int, stop: int) -> Block:
        """The stretch ``start .. stop - 1``."""
        block = self._inner.block(start, stop)
        if self._gap is None:
            block.mean = block.mean + self._shift
            return block
        # see Scale.mean
        known, ones = block.mean[:, :-1], block.mean[:, -1:]
        mean = (known - self._gap * ones) / self._size
        draw = None if block.draw is None else block.draw[:, :-1]
        return Block(start, stop, mean, block.std, draw)

    def end(self) -> None:
        """Say that every stretch has been handed out."""
        self._inner.end()


class Merged:
    """The passes of several groups as one.

    Args:
        passes: each with the functions that it is of.
    """

    __slots__ = ("_passes",)

    def __init__(self, passes: list[tuple[list[int], Pass]]) -> None:
        self._passes = passes

    def block(self, start: int, stop: int) -> Block:
        """The stretch ``start .. stop - 1`` of all functions."""
        blocks = [(own, each.block(start, stop)) for own, each in self._passes]
        first = blocks[0][1].mean
        count = sum(len(own) for own, _ in blocks)
        shape = (first.shape[0], count, first.shape[-1])
        mean, std = first.new_empty(shape), first.new_empty(shape)
        drawn = blocks[0][1].draw is not None
        draw = first.new_empty(shape) if drawn else None
        for own, block in blocks:
            spread = block.std.expand(-1, len(own), -1)
            for j, f in enumerate(own):
                mean[:, f], std[:, f] = block.mean[:, j], spread[:, j]
                if draw is not None and block.draw is not None:
                    draw[:, f] = block.draw[:, j]
        return Block(start, stop, mean, std, draw)

    def end(self) -> None:
        """Say that every stretch has been handed out."""
        for _, each in self._passes:
            each.end()
