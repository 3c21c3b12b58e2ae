"""The keyword arguments that policies share: their types and their help.

A constructor lists its own arguments and takes the shared ones as ``**common:
Unpack[GPKeywords]``, so that editors and type checkers know them. One that lists a
shared argument itself uses a smaller group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from cbandit._core.randomness import Trials
from cbandit.beliefs.feedback import Delayed, Sliding
from cbandit.beliefs.gp import GP
from cbandit.policies.concerns.order import KEYWORDS
from cbandit.posterior.engines.choice import ENGINES

#: the arguments of every policy, with their help
POLICY_HELP = {
    "thresholds": """what costs are compared with, 0 unless given: a number, ``(m,)``,
        ``(*trials, m)`` or, where no two costs differ, ``(*trials, 1)``; or a
        callable of the round that gives one of these. Of costs by name,
        ``costs={"latency": gp}``, by name too: ``{"latency": "<= 20"}``; named costs
        without any are limited at 0, and a warning says so. A cost with ``">= 0.9"``
        is to stay above it. What has two limits is two costs, told twice: ``{"low":
        ">= 0.2", "high": "<= 0.8"}``.""",
    "minimise": """whether the reward is to be small. Users tell it, and get it back,
        unchanged.""",
    "seed": "the seed of all draws, an int from 0; equal seeds give equal runs.",
    "trials": """``None``, how many replications run side by side, or a ``range`` of
        their numbers (a part of a larger batch).""",
    "device": 'where tensors live, ``"cpu"`` (the default) or ``"cuda"``.',
    "dtype": """type of arrays over the actions, ``"float64"`` or ``"float32"`` (or
        torch's own names); float64 on the CPU and float32 on CUDA by default. float32
        has seven digits, for coordinates too: centre those that lie far from 0 against
        a kernel's lengthscale, a linear kernel's above all, or take float64.""",
    "horizon": "the last round; ``None``: not known.",
    "ranges": KEYWORDS["ranges"],
    "certificate_window": KEYWORDS["certificate_window"],
    "explore_share": KEYWORDS["explore_share"],
    "design": """how many rounds at first play a space-filling design of the set. It is
        drawn from seed and trial alone, so that policies with one seed start alike.
        Multipliers do not move by these rounds. Safe policies take none.""",
    "expire": """outstanding choices expire when so many rounds were asked for after
        theirs and one more: the policy no longer counts on their feedback. For the
        certificate and a :class:`~cbandit.Budget` they were played and not answered. A
        later ``tell`` counts all the same. ``None``: they never expire.""",
}

#: the arguments of every policy on GP beliefs, with their help
GP_POLICY_HELP = {
    "clip": """``(B, G)``: estimates are kept within ``[-B, B]`` and, thresholds
        subtracted, ``[-G, G]``; in spreads where a belief is standardised.""",
    "engine": "how the posterior is computed, one of "
    + ", ".join(f'``"{name}"``' for name in ENGINES)
    + """. ``"gpytorch"`` asks GPyTorch's own models for the whole set each round: slow,
        for comparison. ``"sketch"`` looks through a dictionary of the actions tried,
        drawn anew with each observation, at a cost that does not grow with their
        number.""",
    "feedback": """when feedback counts: ``None``, at once; :class:`~cbandit.Delayed`;
        :class:`~cbandit.Sliding`.""",
    **KEYWORDS,
    **POLICY_HELP,
}


#: actions or contexts as users give them: numbers, or values by name
ActionValues = ArrayLike | Mapping[str, object] | Sequence[Mapping[str, object]]
#: beliefs about costs: one belief, or one for each cost, in a list or by name
CostBeliefs = GP | Sequence[GP] | Mapping[str, GP]
#: the costs of every action; on a Box, a function of points
ObservedCosts = ArrayLike | Callable[[Tensor], Tensor]


class ReceiptKeywords(TypedDict, total=False):
    """The keywords of the receipt, which every policy keeps."""

    ranges: Any
    certificate_window: int | None
    explore_share: ArrayLike | None


class Keywords(ReceiptKeywords, total=False):
    """The keywords of every policy, without ``horizon``."""

    thresholds: ArrayLike | Mapping[str, object] | Callable[[int], object]
    minimise: bool
    seed: int
    trials: Trials
    device: torch.device | str | None
    dtype: torch.dtype | str | None
    design: int
    expire: int | None


class PolicyKeywords(Keywords, total=False):
    """The keywords of every policy."""

    horizon: int | None


class ConcernKeywords(ReceiptKeywords, total=False):
    """The keywords of GP policies that only one concern uses."""

    pending: str | None
    failures: bool | None
    share: ArrayLike | None


class RuleKeywords(ConcernKeywords, PolicyKeywords, total=False):
    """The keywords that :class:`GPPolicy` passes to :class:`Policy` unchanged."""


class BeliefKeywords(ConcernKeywords, Keywords, total=False):
    """The keywords of GP policies, without ``horizon`` and ``clip``."""

    engine: str
    feedback: Delayed | Sliding | None


class GPKeywords(BeliefKeywords, PolicyKeywords, total=False):
    """The keywords of GP policies."""

    clip: ArrayLike | None
