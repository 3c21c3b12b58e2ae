"""The setup of a policy: all that its concerns are made from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from cbandit._core import checks, devices
from cbandit.confidence.bound import BoundWidths
from cbandit.explore import Explore
from cbandit.policies.abilities import ONE_SPREAD, Abilities
from cbandit.policies.signs import Objective
from cbandit.policies.timing import AtOnce, Timing

NOTHING = torch.zeros(0, dtype=torch.bool)
AT_ONCE = AtOnce()


class Setup(NamedTuple):
    """A policy as its concerns see it when they are made.

    Args:
        name: its class's, for errors.
        keywords: the arguments for concerns alone, as the user gave them.
        abilities: what its class can do.
        objective: the user's words for costs and signs.
        actions: its set.
        trials: the trials' numbers; ``None``: there is no trials axis.
        seed: of all draws.
        device: where its arrays live.
        dtype: of arrays over the actions.
        sees_costs: whether costs are seen before choosing, and none is told.
        functions: how many functions it has beliefs about, the reward first; 0: none.
            What follows is for policies that have some.
        rescaled: ``(F,)`` bool, which of them are standardised.
        linked: those with binary or counted outcomes.
        fades: whether beliefs trust old data less.
        restart: when epochs begin, see :mod:`.concerns.restarts`.
        forget: whether beliefs drop their data in the first round of an epoch.
        timing: when feedback counts.
        explore: how estimates come from beliefs.
        widths: those of its bounds.
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
    functions: int = 0
    rescaled: Tensor = NOTHING
    linked: tuple[int, ...] = ()
    fades: bool = False
    restart: int | str | None = None
    forget: bool = False
    timing: Timing = AT_ONCE
    explore: Explore = ONE_SPREAD
    widths: BoundWidths | None = None

    @property
    def size(self) -> int:
        """How many trials there are, ``T``."""
        return 1 if self.trials is None else len(self.trials)

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The shape of the trials, ``(*trials,)``."""
        return () if self.trials is None else (len(self.trials),)

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the reward and the costs."""
        return ("reward", *map(self.objective.label, range(self.objective.m)))

    @property
    def narrows(self) -> bool:
        """Whether concerns may narrow the choice by beliefs about every cost."""
        m = self.objective.m
        return m > 0 and self.functions == 1 + m and self.abilities.by_score

    def per_trial(self, name: str, value: ArrayLike) -> Tensor:
        """Return a value for every trial ``(T,)``, from a number or ``(*trials,)``."""
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
