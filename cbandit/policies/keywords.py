"""The keywords that policies share: their types and their help.

A policy names its own keywords and takes the shared ones as ``**common:
Unpack[GPKeywords]``, so that editors and type checkers know them. A class that lists a
shared one itself uses a smaller group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypedDict

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from cbandit._core.randomness import Trials
from cbandit.beliefs.feedback import Delayed, Sliding
from cbandit.beliefs.gp import GP
from cbandit.policies.concerns.order import KEYWORDS
from cbandit.posterior.engines.choice import ENGINES

#: the arguments that policies share, with their help
POLICY = {
    "thresholds": """what costs are compared with, 0 unless given: a number, ``(m,)``,
        ``(*trials, m)`` or, where no two costs differ, ``(*trials, 1)``; or a
        callable of the round that gives one of these. Of costs by name,
        ``costs={"latency": gp}``, by name too: ``{"latency": "<= 20"}``; named costs
        without any are limited at 0, and a warning says so. A cost with ``">= 0.9"``
        is to stay above it. What has two limits is two costs, told twice: ``{"low":
        ">= 0.2", "high": "<= 0.8"}``.""",
    "minimise": """whether the reward is to be small. It is told, and given back, as it
        is.""",
    "seed": "of all draws, an int from 0; one seed, one run.",
    "trials": """``None``, how many replications run side by side, or a ``range`` of
        their numbers (a part of a larger batch).""",
    "device": 'where tensors live, ``"cpu"`` (the default) or ``"cuda"``.',
    "dtype": """of arrays over the actions, ``"float64"`` or ``"float32"`` (or torch's
        own names); float64 on the CPU and float32 on CUDA by default. float32 has
        seven digits, for coordinates too: centre those that lie far from 0 against
        a kernel's lengthscale, a linear kernel's above all, or take float64.""",
    "horizon": "the last round, where one is known.",
    "design": """how many rounds at first play a space-filling design of the set. It is
        drawn from seed and trial alone, so that policies with one seed start alike.
        Multipliers do not move by these rounds. Safe policies take none.""",
}

GP_POLICY = {
    "clip": """``(B, G)``: estimates are kept within ``[-B, B]`` and, thresholds
        subtracted, ``[-G, G]``; in spreads where a belief is standardised.""",
    "engine": "what keeps the posterior, one of "
    + ", ".join(f'``"{name}"``' for name in ENGINES)
    + """. ``"gpytorch"`` asks GPyTorch's own models for the whole set each round: slow,
        for comparison.""",
    "feedback": "``None``, :class:`~cbandit.Delayed` or :class:`~cbandit.Sliding`.",
    **KEYWORDS,
    **POLICY,
}


#: actions or contexts as users give them: numbers, or values by name
Values = ArrayLike | Mapping[str, object] | Sequence[Mapping[str, object]]
#: the beliefs about costs: one, or one a cost, also by name
CostBeliefs = GP | Sequence[GP] | Mapping[str, GP]
#: the costs of every action, or on a Box a function of points
Observed = ArrayLike | Callable[[Tensor], Tensor]


class Keywords(TypedDict, total=False):
    """The keywords of every policy, without its horizon."""

    thresholds: ArrayLike | Mapping[str, object] | Callable[[int], object]
    minimise: bool
    seed: int
    trials: Trials
    device: torch.device | str | None
    dtype: torch.dtype | str | None
    design: int


class PolicyKeywords(Keywords, total=False):
    """The keywords of every policy."""

    horizon: int | None


class ConcernKeywords(TypedDict, total=False):
    """The keywords of GP policies that are for one concern alone."""

    pending: str | None
    failures: bool | None
    share: ArrayLike | None


class RuleKeywords(ConcernKeywords, PolicyKeywords, total=False):
    """The keywords that a rule on GP beliefs hands on without a look."""


class BeliefKeywords(ConcernKeywords, Keywords, total=False):
    """The keywords of GP policies, without ``horizon`` and ``clip``."""

    engine: str
    feedback: Delayed | Sliding | None


class GPKeywords(BeliefKeywords, PolicyKeywords, total=False):
    """The keywords of GP policies."""

    clip: ArrayLike | None
