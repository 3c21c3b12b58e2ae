"""A study that several processes share: a policy goes on from what all of them played.

Rounds are told apart by their numbers. The multiplier is folded over the rounds played,
in their order, whoever played them and whenever feedback came.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from torch import Tensor

from cbandit._core.randomness import Streams
from cbandit.choice import Choice
from cbandit.policies.decision import kept

__all__ = ["Played", "folded", "took_up"]


class Played(NamedTuple):
    """A round that a policy of this kind has played.

    Args:
        t: its number, from 1.
        estimate: explored and clipped at its choice, ``(1, 1 + m)``.
        excess: what was told of its costs, less their thresholds, ``(1, m)``; ``None``:
            nothing yet.
    """

    t: int
    estimate: Tensor
    excess: Tensor | None


def folded(policy: Any, rounds: Iterable[Played]) -> Tensor:
    """Return the multiplier ``(1, m)`` after these rounds, in the order of ``t``."""
    state = policy._now.state
    multiplier: Tensor = policy._start
    for played in rounds:
        arrived = () if played.excess is None else (played.excess,)
        state = state._replace(
            multiplier=multiplier, estimate=played.estimate, arrived=arrived, moved=None
        )
        multiplier = policy._next(state, played.t + 1)
    return multiplier


def took_up(policy: Any, t: int, multiplier: Tensor, waiting: Tensor) -> None:
    """Make a policy ready for round ``t + 1``.

    Args:
        policy: without a trials axis.
        t: how many rounds came before.
        multiplier: what the round is to use.
        waiting: the actions that others wait for, ``(n, d)``.
    """
    state = policy._now.state._replace(multiplier=multiplier, moved=multiplier)
    policy._streams = Streams(policy.seed, policy.trials, f"round {t + 1}")
    position = policy._streams.position()
    policy._now = policy._now._replace(t=t, state=state, position=position)
    for number, x in enumerate(waiting):
        index: Any = None
        keys: list[Any] = [tuple(x.tolist())]
        if not policy.actions.continuous:
            index = policy.actions.index(x)
            keys = [int(index)]
        # before the first round, so that none of the policy's own has this number
        name, nowhere = f"{policy._prefixes[-1]}--{number}", policy._nowhere
        choice = Choice(-number, index, x, nowhere.clone(), None, name, None, keys)
        policy._ledger.open(kept(choice), choice)
