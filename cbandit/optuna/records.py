"""The trials of an Optuna study in the form that a policy uses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from optuna.trial import TrialState

from cbandit.policies.gp import GPPolicy

LARGEST_USABLE = 1e150  # measured numbers from here on are ignored: squares overflow


class TrialRecord(NamedTuple):
    """A trial of the study, in the form that a policy uses.

    Args:
        number: the trial's number.
        state: the trial's state.
        ended: when the trial ended, in seconds; infinite: it has not ended.
        params: the trial's parameters by name; ``None``: some are unknown.
        reward: the trial's value in the study; ``None``: not measured.
        costs: the trial's costs in the study; ``None``: some were not measured.
        estimate: the policy's estimates of reward and costs when it chose the trial;
            empty: no policy chose it.
        units: the costs' units at that time; ``None`` for a cost without one yet.
        deviation: the costs' deviations at that time; empty: the policy keeps no margin
            from its limits.
        choosing: whether a policy is choosing the trial's parameters now.
    """

    number: int
    state: TrialState
    ended: float
    params: dict[str, Any] | None
    reward: float | None
    costs: list[float] | None
    estimate: list[float]
    units: list[float | None]
    deviation: list[float]
    choosing: bool

    @property
    def t(self) -> int:
        """The trial's round, counted from 1."""
        return self.number + 1

    @property
    def is_measured(self) -> bool:
        """Whether the trial's reward or costs were measured."""
        return self.reward is not None or bool(self.costs)

    def without_above(self, largest: float) -> TrialRecord:
        """Return the record without results that exceed ``largest`` in size."""

        def fits(values: Sequence[float] | None) -> bool:
            return all(abs(value) <= largest for value in values or ())

        return self._replace(
            reward=self.reward if fits([self.reward or 0.0]) else None,
            costs=self.costs if fits(self.costs) else None,
            estimate=self.estimate if fits(self.estimate) else [],
        )


def usable_number(value: object) -> float | None:
    """Return a measured number; ``None`` if it is no number or too large."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < LARGEST_USABLE else None


def is_probability(limit: float) -> bool:
    """Return whether a limit is above 0 and below 1, as limits on probabilities are."""
    return 0 < limit < 1


def is_binary(values: Sequence[object]) -> bool:
    """Return whether all values of a cost are true or false, or 0 and 1.

    Values that are no numbers are ignored. Numbers must include both 0 and 1.
    """
    flags = [value for value in values if isinstance(value, bool)]
    told = {float(value) for value in flags}
    told |= {number for number in map(usable_number, values) if number is not None}
    return told <= {0.0, 1.0} and (bool(flags) or len(told) == 2)


def is_params(value: object) -> bool:
    """Return whether a trial's attribute holds parameters by name."""
    return isinstance(value, dict) and all(
        part is None or isinstance(part, bool | str) or usable_number(part) is not None
        for part in value.values()
    )


def is_stored_round(value: object, m: int) -> bool:
    """Return whether a trial's attribute is a round that a sampler stored.

    Args:
        value: the attribute.
        m: the number of costs.
    """
    if not isinstance(value, dict) or not is_params(value.get("params")):
        return False
    estimate, units = value.get("estimate"), value.get("units")
    if not isinstance(estimate, list) or not isinstance(units, list):
        return False
    sizes = [1.0 if unit is None else usable_number(unit) or 0.0 for unit in units]
    known = None not in map(usable_number, estimate) and all(size > 0 for size in sizes)
    spread = value.get("deviation")
    if spread is not None:
        known &= isinstance(spread, list) and len(spread) == m
        known = known and all(
            p is not None and p >= 0 for p in map(usable_number, spread)
        )
    return known and (len(estimate), len(units)) == (1 + m, m)


def observe(policy: GPPolicy, records: Sequence[TrialRecord]) -> None:
    """Let a policy observe trials whose reward, costs or both were measured."""
    kinds: dict[tuple[bool, bool], list[TrialRecord]] = {}
    for record in records:
        measured = record.reward is not None, bool(record.costs)
        kinds.setdefault(measured, []).append(record)
    for (reward, cost), rows in kinds.items():
        policy.observe(
            params=[record.params for record in rows],
            reward=[record.reward for record in rows] if reward else None,
            cost=[record.costs for record in rows] if cost else None,
        )
