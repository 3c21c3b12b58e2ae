"""The setup of a policy: all that its concerns are made from.

A concern is one subject beside the policy's rule, such as budgets, see ``round.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from cbandit._core import checks, devices
from cbandit.confidence.bound import BoundWidths
from cbandit.explore import Explore
from cbandit.policies.abilities import DEFAULT_EXPLORE, Abilities
from cbandit.policies.signs import Objective
from cbandit.policies.timing import AtOnce, Timing

NO_OUTCOMES: Mapping[int, str] = {}
NO_LIMITS = torch.zeros(1, 0)  # (T, m) with m = 0
NO_FUNCTIONS = torch.zeros(0, dtype=torch.bool)  # (F,) with F = 0
AT_ONCE = AtOnce()


class Setup(NamedTuple):
    """A policy as its concerns see it when they are made.

    Args:
        name: the name of the policy's class, for errors.
        keywords: the arguments that only concerns use, as the user gave them.
        abilities: what the class can do.
        objective: the names, signs and limits of the costs.
        actions: the set to choose from.
        trials: the trials' numbers; ``None``: there is no trials axis.
        seed: the seed of all draws.
        device: where the policy's arrays live.
        dtype: the type of arrays over the actions.
        sees_costs: whether the user gives all costs to ``ask`` and tells none.
        first_limits: the thresholds of the first round, ``(T, m)``.
        functions: how many functions ``F`` the policy has beliefs about, the reward
            first; 0: it has no beliefs, and the fields below are not used.
        rescaled: which functions are standardised, ``(F,)`` bool.
        outcomes: the functions with binary or counted outcomes, by number.
        fades: whether beliefs weigh old data less.
        restart: when epochs begin, see :mod:`.concerns.restarts`; ``None``: never.
        forget: whether beliefs drop their data in the first round of an epoch.
        timing: when feedback reaches the beliefs: at once, delayed, or in a window.
        explore: how estimates are made from means and deviations.
        widths: the widths of confidence bounds; ``None``: there are no beliefs.
    """

    name: str
    keywords: Mapping[str, Any]
    abilities: Abilities
    objective: Objective
    actions: Any
    trials: range | None
    seed: int
    device: torch.device
    dtype: torch.dtype
    sees_costs: bool = False
    first_limits: Tensor = NO_LIMITS
    functions: int = 0
    rescaled: Tensor = NO_FUNCTIONS
    outcomes: Mapping[int, str] = NO_OUTCOMES
    fades: bool = False
    restart: int | str | None = None
    forget: bool = False
    timing: Timing = AT_ONCE
    explore: Explore = DEFAULT_EXPLORE
    widths: BoundWidths | None = None

    @property
    def linked(self) -> tuple[int, ...]:
        """The numbers of the functions with binary or counted outcomes."""
        return tuple(self.outcomes)

    @property
    def size(self) -> int:
        """The number of trials ``T``; 1 without a trials axis."""
        return 1 if self.trials is None else len(self.trials)

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The shape ``(T,)``; ``()`` without a trials axis."""
        return () if self.trials is None else (len(self.trials),)

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the reward and of each cost."""
        return ("reward", *map(self.objective.label, range(self.objective.m)))

    @property
    def can_narrow(self) -> bool:
        """Whether concerns can rule out actions by beliefs about every cost."""
        m = self.objective.m
        return m > 0 and self.functions == 1 + m and self.abilities.by_score

    def per_trial(self, name: str, value: ArrayLike) -> Tensor:
        """Return a number, or one number for each trial, as ``(T,)``."""
        return devices.put(checks.per_trial(name, value, self.batch_shape), self.device)

    def per_cost(self, name: str, value: ArrayLike) -> Tensor:
        """Return a value for every trial and cost, ``(T, m)``.

        Args:
            name: the argument's, for errors.
            value: a number, one per trial ``(*trials,)``, one per cost ``(m,)``, or
                ``(1 or *trials, m)``. What fits trials and costs is one per trial.
        """
        given, batch = checks.finite(name, checks.tensor(name, value)), self.batch_shape
        if batch and tuple(given.shape) == batch:
            given = given.unsqueeze(-1)
        shaped = checks.per_cost(name, given, batch, self.objective.m)
        return devices.put(shaped, self.device)
