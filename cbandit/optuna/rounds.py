"""The rounds of a policy in a study that several processes share.

A trial is a round: trial 0 is round 1. A trial keeps what its round has decided, and
the multiplier moves over the trials in order, whichever process played them and
whenever their feedback came. Policies here have no trials axis.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cbandit.choice import Choice
from cbandit.optuna.records import Record
from cbandit.policies.balls import RADIUS, near
from cbandit.policies.choices import Data, Made, Place, private_copy
from cbandit.policies.concerns.failure_belief import FailureBelief
from cbandit.policies.concerns.margin import Margin
from cbandit.policies.concerns.restarts import epoch_start
from cbandit.policies.gp import GPPolicy, GPState


def latest_round(policy: GPPolicy) -> dict[str, Any]:
    """Return what a trial keeps of the round that the policy has just played.

    It is ``estimate``, ``units`` and ``deviation`` of a :class:`Record`; no
    ``deviation`` if the policy keeps no margin from its limits.
    """
    now, margin = policy._now, policy._concerns.find(Margin)
    estimate, units = now.state.estimate[0].tolist(), _units(policy, now.state)
    kept = {"estimate": estimate, "units": units}
    if margin is not None:
        kept["deviation"] = now.concerns[margin[0]][0].tolist()
    return kept


def begin_round(policy: GPPolicy, t: int, rounds: Sequence[Record]) -> None:
    """Let the policy play round ``t`` next.

    Args:
        policy: the policy, which knows what was measured.
        t: the round.
        rounds: the rounds before it that a policy of this kind played, in order; the
            multiplier moves by those of the epoch that round ``t`` is in.
    """
    now, epoch = policy._settled(), epoch_start(policy.restart, t)
    state = now.state._replace(moved=None, epoch=epoch)
    phi = _multiplier(policy, state, [r for r in rounds if r.t >= epoch])
    state = state._replace(multiplier=phi, moved=phi)
    concerns, margin = list(now.concerns), policy._concerns.find(Margin)
    if margin is not None:
        deviation = rounds[-1].deviation if rounds else []
        concerns[margin[0]] = _row(deviation) if deviation else None
    policy._resume(t, state, tuple(concerns))


def foresee(policy: GPPolicy, record: Record, rounds: Sequence[Record]) -> Record:
    """Return a trial as the process that is about to choose it will leave it.

    This policy makes the choice as well, and counts it as outstanding.

    Args:
        policy: the policy, which knows what was measured.
        record: the trial.
        rounds: the rounds before it that a policy of this kind played, in order.
    """
    begin_round(policy, record.t, rounds)
    policy.ask()
    return record._replace(**latest_round(policy))


def add_outstanding(policy: GPPolicy, points: Tensor) -> None:
    """Count the actions ``(n, d)`` that other processes measure as outstanding.

    They stand as choices of rounds before the first, in which nothing moves.
    """
    actions, ledger, made = policy.actions, policy._ledger, Made(0.0, policy.limits(1))
    for number, x in enumerate(points, 1):
        place = Place(actions.keys(x.unsqueeze(0)), x.unsqueeze(0), -number)
        choice = Choice(
            -number,
            None if actions.continuous else actions.index(x),
            x,
            torch.tensor(False),
            id=ledger.id(-number),
            keys=place.keys,
            names=actions.names,
        )
        ledger.open(private_copy(choice), choice, place, made)


def note_failures(policy: GPPolicy, failed: Tensor, measured: Tensor) -> None:
    """Let the policy know which actions could not be measured.

    Its belief about failures weighs them against what was measured. A policy without
    one leaves out only the actions that failed more often than they were measured: a
    single failure may have been that of a process which was killed.

    Args:
        policy: the policy.
        failed: actions that failed, ``(n, d)``.
        measured: actions that were measured, ``(l, d)``.
    """
    if policy._concerns.find(FailureBelief) is None:
        failed = _mostly_failed(policy.actions, failed, measured)
    numbers = None
    if not policy.actions.continuous:
        numbers = policy.actions.index(failed).unsqueeze(0)
    every = torch.ones(1, len(failed), dtype=torch.bool)
    data = Data(numbers, failed.unsqueeze(0), [], [], [], [], every)
    now = policy._settled()
    concerns, _ = policy._concerns.observe(now.concerns, data, now.state.beliefs)
    policy._change(now.state, concerns)


def _multiplier(policy: GPPolicy, state: GPState, rounds: Sequence[Record]) -> Tensor:
    """Return the multiplier after these rounds, all of the epoch that ``state`` is in.

    The costs told of a round are divided by the unit of the first round after it that
    has one.
    """
    units, divisors = _units(policy, state), []
    for record in reversed(rounds):
        divisors.append(_row(units))
        units = [own or later for own, later in zip(record.units, units, strict=True)]
    phi = policy._start
    for record, divisor in zip(rounds, reversed(divisors), strict=True):
        arrived: tuple[Tensor, ...] = ()
        if record.costs is not None:
            excess = policy.senses.costs(_row(record.costs)) - policy.limits(record.t)
            arrived = ((excess / divisor).nan_to_num(0.0),)  # no unit yet: 0
        estimate = _row(record.estimate)
        state = state._replace(multiplier=phi, estimate=estimate, arrived=arrived)
        phi = policy._next(state, record.t + 1, None)
    return phi


def _units(policy: GPPolicy, state: GPState) -> list[float | None]:
    """Return the units of the costs, ``None`` for a cost that has none yet."""
    units = state.beliefs.units()
    if units is None or units.size.shape[1] == 1:
        return [1.0] * policy.m
    pairs = zip(units.size[0].tolist(), units.known[0].tolist(), strict=True)
    return [size if known else None for size, known in pairs][1:]


def _row(values: Sequence[float | None]) -> Tensor:
    """Return numbers as ``(1, k)``, NaN where there is none."""
    row = [math.nan if value is None else value for value in values]
    return torch.tensor([row], dtype=torch.float64)


def _mostly_failed(actions: Any, failed: Tensor, measured: Tensor) -> Tensor:
    """Return the failures ``(n, d)`` at actions that were measured less often."""
    if actions.continuous:
        z, successful = actions.unit.of(failed), actions.unit.of(measured)
        free, radius = actions.free, RADIUS
    else:
        z, successful = (actions.index(x).unsqueeze(-1) for x in (failed, measured))
        free, radius = torch.ones(1, dtype=torch.bool), 0.0
    fails, successes = (
        near(z.unsqueeze(1) - others, free, radius).sum(-1)
        for others in (z, successful)
    )
    return failed[fails > successes]
