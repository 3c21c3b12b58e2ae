"""A study that several processes share: a policy goes on from what all of them played.

Rounds are told apart by their numbers. The multiplier is folded over the rounds played,
in their order, whoever played them and whenever feedback came.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cbandit._core.randomness import Streams
from cbandit.choice import Choice
from cbandit.policies.decision import kept
from cbandit.policies.failures import Failed
from cbandit.policies.ledger import Made

__all__ = ["Played", "folded", "foreseen", "sizes", "took_up", "turn"]


class Played(NamedTuple):
    """A round that a policy of this kind has played.

    Args:
        t: its number, from 1.
        estimate: what its multiplier moves by, in units, ``(1, 1 + m)``.
        excess: what was told of its costs, less their thresholds, in the user's units,
            ``(1, m)``; ``None``: nothing yet.
        size: the costs' units in that round, see :func:`sizes`.
    """

    t: int
    estimate: Tensor
    excess: Tensor | None
    size: Tensor


def sizes(policy: Any) -> Tensor:
    """Return the costs' units as the policy has them now, ``(1, m)``; NaN: none yet."""
    units = policy._now.state.beliefs.units()
    if units is None or units.size.shape[1] == 1:
        return torch.ones(1, policy.m, dtype=torch.float64)
    size: Tensor = units.size.where(units.known, torch.nan)
    return size[:, 1:].double()


def folded(policy: Any, rounds: Sequence[Played], upto: int) -> Tensor:
    """Return the multiplier ``(1, m)`` that round ``upto + 1`` uses.

    What was told of a round is divided by the unit of the next one that has a unit. In
    the first round of an epoch the multiplier is back at its start, whoever played the
    rounds in between.

    Args:
        policy: without a trials axis.
        rounds: those that a policy of this kind has played, in the order of ``t``.
        upto: how many rounds came before, whoever played them.
    """
    size, divisors = sizes(policy), []
    for played in reversed(rounds):
        divisors.append(size)
        size = played.size.where(played.size == played.size, size)
    multiplier: Tensor = policy._start
    following = [*(played.t for played in rounds[1:]), upto + 1]
    all_of = zip(rounds, reversed(divisors), following, strict=False)
    for played, divisor, after in all_of:
        arrived = []
        if played.excess is not None:
            arrived.append((played.excess / divisor).nan_to_num(0.0))  # 0: it waits
        if policy._epoch(after) > played.t:
            multiplier = policy._start
        else:
            multiplier = policy.move(played.t, multiplier, played.estimate, arrived)
    return multiplier


def turn(policy: Any, t: int, multiplier: Tensor) -> None:
    """Make a policy ready for round ``t + 1``, which is to use this multiplier."""
    state = policy._now.state._replace(multiplier=multiplier, moved=multiplier)
    policy._streams = Streams(policy.seed, policy.trials, f"round {t + 1}")
    position = policy._streams.position()
    policy._now = policy._now._replace(t=t, state=state, position=position)


def took_up(policy: Any, waiting: Tensor, failed: Tensor) -> None:
    """Show a policy what others play.

    Args:
        policy: without a trials axis.
        waiting: the actions that others wait for, ``(n, d)``.
        failed: the actions that cannot be measured, ``(k, d)``.
    """
    for number, x in enumerate(waiting):
        choice = _choice(policy, number, x)
        policy._ledger.open(kept(choice), choice, Made(0.0))
    for x in failed:
        before = policy._failed or Failed.none(policy._size, policy.actions.dim)
        policy._failed = before.added(policy, _choice(policy, 0, x), None)


def foreseen(policy: Any, t: int) -> Played:
    """Return what another process will play in round ``t``, for which it is choosing.

    This policy, whose turn it is, is asked in its place and counts on the choice.
    """
    policy.ask()
    return Played(t, policy._now.state.estimate, None, sizes(policy))


def _choice(policy: Any, number: int, x: Tensor) -> Choice:
    """Return an action as a choice from before the first round."""
    index: Any = None
    keys: list[Any] = [tuple(x.tolist())]
    if not policy.actions.continuous:
        index = policy.actions.index(x)
        keys = [int(index)]
    name, nowhere = f"{policy._prefixes[-1]}--{number}", policy._nowhere.clone()
    return Choice(-number, index, x, nowhere, None, name, None, keys)
