"""The rounds of a study that several processes share.

A trial is a round: trial 0 is round 1. A trial stores its round's estimates, and the
multiplier moves over the trials in order, whichever process played them and whenever
their feedback came. There is no trials axis. Points have ``d`` coordinates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cbandit.choice import Choice
from cbandit.optuna.records import TrialRecord
from cbandit.policies.balls import RADIUS, within_radius
from cbandit.policies.choices import Data, DecisionRecord, Place, private_copy
from cbandit.policies.concerns.failure_belief import FailureBelief
from cbandit.policies.concerns.margin import Margin
from cbandit.policies.concerns.restarts import epoch_start
from cbandit.policies.gp import GPPolicy, GPState
from cbandit.policies.round import with_state


class Player:
    """A policy that plays some rounds of a study and takes account of all others.

    Args:
        policy: the policy, which has observed the results of finished trials.
    """

    def __init__(self, policy: GPPolicy) -> None:
        self._policy, self._margin = policy, policy._concerns.find(Margin)

    def add_outstanding(self, points: Tensor) -> None:
        """Add the actions ``(n, d)`` of running trials as outstanding choices.

        They are given rounds before the first, -1, -2 and so on.
        """
        policy, ledger = self._policy, self._policy._ledger
        actions, made = policy.actions, DecisionRecord(0.0, policy.limits(1))
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

    def note_failures(self, failed: Tensor, measured: Tensor) -> None:
        """Tell the policy which actions failed.

        A policy with a belief about failures learns from all of them. Other policies
        leave out only the actions that failed more often than they were measured: a
        single failure may be due to a process that was killed.

        Args:
            failed: actions that failed, ``(n, d)``.
            measured: actions that were measured, ``(l, d)``.
        """
        policy, now = self._policy, self._policy._catch_up()
        actions = policy.actions
        if policy._concerns.find(FailureBelief) is None:
            failed = _frequent_failures(actions, failed, measured)
        numbers = None if actions.continuous else actions.index(failed).unsqueeze(0)
        every = torch.ones(1, len(failed), dtype=torch.bool)
        data = Data(numbers, failed.unsqueeze(0), [], every)
        beliefs = now.state.beliefs
        concerns, _ = policy._concerns.observe(now.concerns, data, beliefs)
        policy._jump_to_round(1, now.state, concerns)

    def begin_round(self, t: int, rounds: Sequence[TrialRecord]) -> None:
        """Let the policy play round ``t`` next.

        Args:
            t: the round.
            rounds: the earlier rounds that a policy played, in order.
        """
        now, epoch = self._policy._catch_up(), epoch_start(self._policy.restart, t)
        state = now.state._replace(moved=None, epoch=epoch)
        phi = self._multiplier(state, [each for each in rounds if each.t >= epoch])
        state = state._replace(multiplier=phi, moved=phi)
        concerns = now.concerns
        if self._margin is not None:
            deviation = rounds[-1].deviation if rounds else []
            last = _as_row(deviation) if deviation else None
            concerns = with_state(concerns, self._margin[0], last)
        self._policy._jump_to_round(t, state, concerns)

    def latest_round(self) -> dict[str, Any]:
        """Return what a trial stores of the round that the policy has just played.

        These are ``estimate``, ``units`` and ``deviation`` of :class:`TrialRecord`;
        ``deviation`` is missing if the policy keeps no margin from its limits.
        """
        now = self._policy._catch_up()
        estimate, units = now.state.estimate[0].tolist(), self._units(now.state)
        kept = {"estimate": estimate, "units": units}
        if self._margin is not None:
            kept["deviation"] = now.concerns[self._margin[0]][0].tolist()
        return kept

    def predict_choice(
        self, record: TrialRecord, rounds: Sequence[TrialRecord]
    ) -> TrialRecord:
        """Return a trial with the choice that another process is making now.

        This policy makes the same choice, and counts it as outstanding.

        Args:
            record: the trial.
            rounds: the earlier rounds that a policy played, in order.
        """
        self.begin_round(record.t, rounds)
        self._policy.ask()
        return record._replace(**self.latest_round())

    def _multiplier(self, state: GPState, rounds: Sequence[TrialRecord]) -> Tensor:
        """Return the multiplier after the ``rounds``, all in the epoch of ``state``.

        Each cost is divided by its unit at the time of the next round where it has one.
        """
        policy, units, divisors = self._policy, self._units(state), []
        for record in reversed(rounds):
            divisors.append(_as_row(units))
            pairs = zip(record.units, units, strict=True)
            units = [own or later for own, later in pairs]
        phi = policy._start
        for record, divisor in zip(rounds, reversed(divisors), strict=True):
            arrived: tuple[Tensor, ...] = ()
            if record.costs is not None:
                costs = policy.objective.costs(_as_row(record.costs))
                excess = (costs - policy.limits(record.t)) / divisor
                arrived = (excess.nan_to_num(0.0),)  # no unit yet: 0
            estimate = _as_row(record.estimate)
            state = state._replace(multiplier=phi, estimate=estimate, arrived=arrived)
            phi = policy._next_multiplier(state, record.t + 1, None)
        return phi

    def _units(self, state: GPState) -> list[float | None]:
        """Return the units of the costs; ``None`` for a cost that has none yet."""
        units = state.beliefs.units()
        if units is None or units.size.shape[1] == 1:
            return [1.0] * self._policy.m
        pairs = zip(units.size[0].tolist(), units.known[0].tolist(), strict=True)
        return [size if known else None for size, known in pairs][1:]


def _as_row(values: Sequence[float | None]) -> Tensor:
    """Return ``k`` numbers as a tensor ``(1, k)``, with NaN for ``None``."""
    row = [math.nan if value is None else value for value in values]
    return torch.tensor([row], dtype=torch.float64)


def _frequent_failures(actions: Any, failed: Tensor, measured: Tensor) -> Tensor:
    """Return the points ``failed (n, d)`` that were measured less often than failed."""
    if actions.continuous:
        z, successful = actions.unit.of(failed), actions.unit.of(measured)
        free, radius = actions.free, RADIUS
    else:
        z, successful = (actions.index(x).unsqueeze(-1) for x in (failed, measured))
        free, radius = torch.ones(1, dtype=torch.bool), 0.0
    fails, successes = (
        within_radius(z.unsqueeze(1) - others, free, radius).sum(-1)
        for others in (z, successful)
    )
    return failed[fails > successes]
