"""Random draws: one stream a trial, so that a batch may be split in any way.

Trial ``i`` under seed ``s`` draws the same numbers whether it runs alone, in a batch of
fifty or on another worker. Each trial has its own generator; draws are taken from it in
blocks of a fixed size, which costs next to nothing a round.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cbandit._core import checks
from cbandit.errors import CBanditError

__all__ = ["Streams", "Trials", "trial_range"]

BLOCK = 1024
MOST = 10**6  # trials

Trials = int | range | None


def trial_range(trials: Trials) -> range | None:
    """The numbers of the trials, ``range(n)`` for ``n``; ``None``: no trials axis."""
    if trials is None:
        return None
    if isinstance(trials, range):
        numbers = trials
    else:
        expected = "None, a positive int or a range"
        numbers = range(checks.whole("trials", trials, None, expected))
    ends = (numbers[0], numbers[-1]) if numbers else (-1, -1)
    # each is a generator of its own
    if min(ends) < 0 or max(ends) >= 2**62 or len(numbers) > MOST:
        raise CBanditError(
            "trials must be None, a positive int or a range of numbers from 0, at most "
            f"{MOST} of them; got {trials!r}"
        )
    return numbers


def _seed(seed: int, trial: int, purpose: str) -> int:
    # torch's CPU generator keeps 32 bits of a seed: hashing the trial too would let two
    # trials of a run meet, an odd step cannot
    digest = hashlib.blake2b(f"{seed}/{purpose}".encode(), digest_size=4).digest()
    return (int.from_bytes(digest, "little") + trial * 0x9E3779B1) % 2**32


@dataclass
class _Mark:
    """Where streams were; states are known once their generators are to move."""

    blocks: dict[str, Tensor]
    used: dict[str, int]
    shared: Tensor | None = None
    each: list[Tensor] | None = None


class Streams(torch.Generator):
    """Independent streams of draws, one per trial; also an ordinary ``Generator``.

    Args:
        seed: the run's seed.
        trials: ``None`` (then it is trial 0, without a trials axis), their number, or
            a ``range`` of their numbers.
        purpose: keeps the streams of different users of one seed apart.

    Code that knows nothing of trials may pass it as ``generator=`` to torch.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Streams:
        return super().__new__(cls)

    def __init__(self, seed: int, trials: Trials = None, purpose: str = "") -> None:
        seed = checks.seed(seed)
        self.seed_number, self.trials, self.purpose = seed, trial_range(trials), purpose
        numbers = range(1) if self.trials is None else self.trials
        self.batch_shape = () if self.trials is None else (len(numbers),)
        self._each = [
            torch.Generator().manual_seed(_seed(seed, i, purpose)) for i in numbers
        ]
        self.manual_seed(_seed(seed, numbers[0], purpose + "/shared"))
        self._blocks: dict[str, Tensor] = {}
        self._used: dict[str, int] = {}
        self._marked: _Mark | None = None

    def mark(self) -> None:
        """From here on draws can be taken back."""
        self._marked = _Mark(dict(self._blocks), dict(self._used))

    def go_back(self) -> None:
        """All as it was at the last :meth:`mark`."""
        assert self._marked is not None
        if self._marked.shared is not None:
            self.set_state(self._marked.shared)
        self._blocks = dict(self._marked.blocks)
        self._used = dict(self._marked.used)
        if self._marked.each is not None:
            for generator, saved in zip(self._each, self._marked.each, strict=True):
                generator.set_state(saved)

    def lent(self) -> Streams:
        """These, for code that knows nothing of trials."""
        if self._marked is not None and self._marked.shared is None:
            self._marked.shared = self.get_state()
        return self

    def _generators(self) -> list[torch.Generator]:
        # states of many take longer than most rounds: only where they are about to move
        if self._marked is not None and self._marked.each is None:
            self._marked.each = [generator.get_state() for generator in self._each]
        return self._each

    def normal(self, *shape: int) -> Tensor:
        """Standard normal draws, ``(*trials, *shape)``, float64 on the CPU."""
        return self._take("normal", shape)

    def uniform(self, *shape: int) -> Tensor:
        """Uniform draws on [0, 1), ``(*trials, *shape)``, float64 on the CPU."""
        return self._take("uniform", shape)

    def ragged_normal(self, counts: Sequence[int], width: int) -> Tensor:
        """``counts[i] x width`` normals for trial ``i``, zeros below them.

        What a trial draws depends on its own count alone; the result is
        ``(*trials, max(counts), width)``.
        """
        if len(counts) != len(self._each):
            raise CBanditError(
                f"counts must name a number for each of {len(self._each)} trials; got "
                f"{len(counts)}"
            )
        out = torch.zeros(len(counts), max(counts), width, dtype=torch.float64)
        each = zip(out, counts, self._generators(), strict=True)
        for rows, count, generator in each:
            padded = 64 * math.ceil(count / 64)
            draws = torch.randn(padded, width, generator=generator, dtype=torch.float64)
            rows[:count] = draws[:count]
        return out.view(*self.batch_shape, *out.shape[1:])

    def normals(self, shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
        """Normals of a shape of its own for each trial, drawn apart from the blocks."""
        return [
            _as_normal(torch.rand(shape, generator=generator, dtype=torch.float64))
            for shape, generator in zip(shapes, self._generators(), strict=True)
        ]

    def _refill(self, kind: str, blocks: int) -> Tensor:
        out = torch.empty(len(self._each), blocks, BLOCK, dtype=torch.float64)
        for rows, generator in zip(out, self._generators(), strict=True):
            for row in rows:
                torch.rand(BLOCK, generator=generator, out=row)
        return _as_normal(out.flatten(1)) if kind == "normal" else out.flatten(1)

    def _take(self, kind: str, shape: tuple[int, ...]) -> Tensor:
        count = math.prod(shape)
        block, used = self._blocks.get(kind), self._used.get(kind, BLOCK)
        left = 0 if block is None else block.shape[-1] - used
        if block is None or count > left:
            fresh = self._refill(kind, math.ceil((count - left) / BLOCK))
            block = fresh if left == 0 else torch.cat([block[:, used:], fresh], -1)  # type: ignore[index]
            self._blocks[kind], used = block, 0
        self._used[kind] = used + count
        return block[:, used : used + count].reshape(self.batch_shape + shape)

    def __reduce__(self) -> tuple[Any, ...]:
        arguments = (self.seed_number, self.trials, self.purpose)
        return type(self), arguments, self.state()

    def state(self) -> dict[str, Any]:
        """All that is needed to go on from here."""
        return {
            "shared": self.get_state(),
            "each": [generator.get_state() for generator in self._each],
            "blocks": {
                k: v[:, self._used[k] :].clone() for k, v in self._blocks.items()
            },
        }

    def __setstate__(self, state: Any) -> None:
        self.set_state(state["shared"])
        for generator, saved in zip(self._each, state["each"], strict=True):
            generator.set_state(saved)
        self._blocks = {k: v.clone() for k, v in state["blocks"].items()}
        self._used = dict.fromkeys(self._blocks, 0)
        self._marked = None


def _as_normal(uniform: Tensor) -> Tensor:
    """Normal quantiles of draws from [0, 1), which are overwritten.

    Several times faster than ``torch.randn`` in float64. Half a step moves the draws,
    multiples of 2^-53, into the middle of their cells: none is at infinity.
    """
    uniform.mul_(2).sub_(1).add_(2.0**-53)
    return uniform.erfinv_().mul_(math.sqrt(2))
