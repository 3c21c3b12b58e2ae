"""Random draws: a stream for each trial, so that a batch may be split in any way.

Trial ``i`` under seed ``s`` draws the same numbers whether it runs alone, in a batch of
fifty or on another worker. Each trial has its own generator; draws are taken from it in
blocks of a fixed size, which costs next to nothing a round.
"""

from __future__ import annotations

import copyreg
import hashlib
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cbandit._core import checks
from cbandit.errors import CBanditError

BLOCK = 1024
MOST = 10**6  # trials

Trials = int | range | None


def trial_range(trials: Trials) -> range | None:
    """Return the trials' numbers, ``range(n)`` for ``n``; ``None``: no trials axis."""
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
    # torch's CPU generator keeps 32 bits of a seed: if the trial were hashed too, two
    # trials of a run might get the same seed; an odd step prevents that
    digest = hashlib.blake2b(f"{seed}/{purpose}".encode(), digest_size=4).digest()
    return (int.from_bytes(digest, "little") + trial * 0x9E3779B1) % 2**32


def hashed_uniforms(seed: int, trials: range | None, purpose: str, n: int) -> Tensor:
    """Return ``n`` uniforms on [0, 1) for each trial, fixed by their purpose alone.

    They are ``(T, n)``, float64, at most 8 of them; ``trials`` is ``None`` where there
    is no trials axis. No stream moves: the same arguments give the same numbers, in
    any order and on any machine.
    """
    numbers = range(1) if trials is None else trials
    rows = []
    for trial in numbers:
        text = f"{seed}/{trial}/{purpose}".encode()
        digest = hashlib.blake2b(text, digest_size=8 * n).digest()
        words = (digest[8 * i : 8 * i + 8] for i in range(n))
        rows.append([(int.from_bytes(w, "little") >> 11) * 2.0**-53 for w in words])
    return torch.tensor(rows, dtype=torch.float64)


class _States:
    """The states of generators at one position, saved when they move on."""

    __slots__ = ("saved",)

    def __init__(self) -> None:
        self.saved: list[Tensor] | None = None


class Position(NamedTuple):
    """A position in the streams, for :meth:`Streams.go` to return to.

    Args:
        blocks: the current block of each kind of draw, and how many numbers are used.
        turns: how often each purpose was counted.
        each: the states of the trials' generators.
        shared: the state of the generator that the trials share.
    """

    blocks: dict[str, tuple[Tensor, int]]
    turns: dict[str, int]
    each: _States
    shared: _States


class Streams(torch.Generator):
    """Independent streams of draws, one per trial; also an ordinary ``Generator``.

    Args:
        seed: the run's seed.
        trials: ``None`` (then it is trial 0, without a trials axis), their number, or
            a ``range`` of their numbers.
        purpose: separates the streams of different users of one seed.

    Code that knows nothing of trials may pass it as ``generator=`` to torch.
    """

    def __new__(cls, *args: object, **kwargs: object) -> Streams:
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
        # positions hold this too: a draw replaces it and never changes it
        self._blocks: dict[str, tuple[Tensor, int]] = {}
        self._turns: dict[str, int] = {}  # likewise
        self._each_at, self._shared_at = _States(), _States()

    def position(self) -> Position:
        """Return the present position; later draws do not change it."""
        return Position(self._blocks, self._turns, self._each_at, self._shared_at)

    def go(self, position: Position) -> None:
        """Return to a position of these streams, so that the same draws follow."""
        self._blocks, self._turns = position.blocks, position.turns
        if self._each_at is not position.each:
            self._each_at = _States()  # nowhere, should this break off
            _restore(self._each, position.each)
            self._each_at = position.each
        if self._shared_at is not position.shared:
            self._shared_at = _States()
            _restore([self], position.shared)
            self._shared_at = position.shared

    def drew_since(self, position: Position) -> bool:
        """Return whether anything was drawn since a position of these streams."""
        now = self.position()
        return any(a is not b for a, b in zip(now, position, strict=True))

    def keep(self) -> None:
        """Save the present position, so that one can return to it from others."""
        _left(self._each, self._each_at)
        _left([self], self._shared_at)

    def lent(self) -> Streams:
        """Return these streams as a plain generator, for code without trials."""
        self._shared_at = _left([self], self._shared_at)
        return self

    def _generators(self) -> list[torch.Generator]:
        """Return the trials' generators, which are about to move."""
        self._each_at = _left(self._each, self._each_at)
        return self._each

    def turn(self, purpose: str) -> int:
        """Count a turn of ``purpose``; return how many came before it."""
        number = self._turns.get(purpose, 0)
        self._turns = {**self._turns, purpose: number + 1}
        return number

    def apart(self, purpose: str) -> Streams:
        """Return separate streams for the same trials, fixed by the purpose."""
        return Streams(self.seed_number, self.trials, f"{self.purpose}/{purpose}")

    def normal(self, *shape: int) -> Tensor:
        """Draw standard normals, ``(*trials, *shape)``, float64 on the CPU."""
        return self._take("normal", shape)

    def uniform(self, *shape: int) -> Tensor:
        """Draw uniforms on [0, 1), ``(*trials, *shape)``, float64 on the CPU."""
        return self._take("uniform", shape)

    def ragged_normal(self, counts: Sequence[int], width: int) -> Tensor:
        """Draw ``counts[i] x width`` normals for trial ``i``, padded with zeros.

        A trial's draws depend on its own count alone; the result is
        ``(*trials, max(counts), width)``.
        """
        if len(counts) != len(self._each):
            raise CBanditError(
                f"counts must name a number for each of {len(self._each)} trials; got "
                f"{len(counts)}"
            )
        out = torch.zeros(len(counts), max(counts), width, dtype=torch.float64)
        trials = zip(out, counts, self._generators(), strict=True)
        for rows, count, generator in trials:
            padded = 64 * math.ceil(count / 64)
            draws = torch.randn(padded, width, generator=generator, dtype=torch.float64)
            rows[:count] = draws[:count]
        return out.view(*self.batch_shape, *out.shape[1:])

    def normals(self, shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
        """Draw normals in a different shape for each trial, outside the blocks."""
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
        block, used = self._blocks.get(kind, (None, BLOCK))
        left = 0 if block is None else block.shape[-1] - used
        if block is None or count > left:
            fresh = self._refill(kind, math.ceil((count - left) / BLOCK))
            if block is not None and left:
                fresh = torch.cat([block[:, used:], fresh], -1)
            block, used = fresh, 0
        self._blocks = {**self._blocks, kind: (block, used + count)}
        return block[:, used : used + count].reshape(self.batch_shape + shape)

    def __reduce__(self) -> tuple[Any, ...]:
        # torch would copy a generator without our attributes
        return copyreg.__newobj__, (type(self),), self.state()  # type: ignore[attr-defined]

    def state(self) -> dict[str, Any]:
        """Return the state of the streams, for a checkpoint."""
        numbers = self.trials
        return {
            "seed": self.seed_number,
            "trials": None if numbers is None else (numbers.start, numbers.stop),
            "purpose": self.purpose,
            "shared": self.get_state(),
            "each": [generator.get_state() for generator in self._each],
            "blocks": {
                kind: block[:, used:].clone()
                for kind, (block, used) in self._blocks.items()
            },
            "turns": self._turns,
        }

    def __setstate__(self, state: Any) -> None:
        trials = state["trials"]
        numbers = None if trials is None else range(*trials)
        states = state["each"]
        # before each trial has a generator, so that in a file none share a state
        stored = {saved.untyped_storage().data_ptr() for saved in states}
        if len(stored) < (1 if numbers is None else len(numbers)):
            raise CBanditError(f"{len(stored)} generators' states for trials={trials}")
        Streams.__init__(self, state["seed"], numbers, state["purpose"])
        self.set_state(state["shared"])
        for generator, saved in zip(self._each, states, strict=True):
            generator.set_state(saved)
        self._blocks = {kind: (v.clone(), 0) for kind, v in state["blocks"].items()}
        self._turns = dict(state["turns"])
        self._each_at, self._shared_at = _States(), _States()


def _left(generators: Sequence[torch.Generator], at: _States) -> _States:
    """Save the generators' states before they move; return a new, empty record."""
    # states of many take longer to save than most rounds, and few rounds move them
    if at.saved is None:
        at.saved = [generator.get_state() for generator in generators]
    return _States()


def _restore(generators: Sequence[torch.Generator], at: _States) -> None:
    """Put generators back into the states that were saved."""
    if at.saved is None:
        raise CBanditError("this position is not one of these streams")
    for generator, saved in zip(generators, at.saved, strict=True):
        generator.set_state(saved)


def _as_normal(uniform: Tensor) -> Tensor:
    """Turn draws from [0, 1) into normal quantiles, in place.

    Several times faster than ``torch.randn`` in float64. Half a step moves the draws,
    multiples of 2^-53, into the middle of their cells: none is at infinity.
    """
    uniform.mul_(2).sub_(1).add_(2.0**-53)
    return uniform.erfinv_().mul_(math.sqrt(2))
