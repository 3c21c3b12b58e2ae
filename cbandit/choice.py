"""The answers of a policy: a choice, perhaps drawn from a distribution."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

__all__ = ["Choice", "Distribution"]


@dataclass(frozen=True)
class Distribution:
    """A distribution over a few actions, zero-padded.

    Args:
        index: the actions, ``(*trials, k)``, int64.
        probability: their probabilities, ``(*trials, k)``.
        infeasible: ``(*trials,)``, the trials in which no distribution keeps the limits
            and this one violates them least; ``None`` if it was found without limits.
    """

    index: Tensor
    probability: Tensor
    infeasible: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Choice:
    """The action of one round; hand it back to ``tell`` with reward and costs.

    Args:
        t: the round, counted from 1.
        index: the action's number in the set asked on, ``(*trials,)``; ``None`` on a
            :class:`~cbandit.Box`.
        x: the action itself, ``(*trials, d)``.
        infeasible: ``(*trials,)``, whether the policy believed that no action is
            feasible. Policies that weigh costs (CKB, RPOL) do not look for that: ask
            ``recommend()``.
        distribution: the distribution that a randomised policy drew the action from.
        owner: the policy's mark.
        actions: the set of this round alone, if ``ask`` was given one.
        keys: each trial's action on the host, its number or on a box its coordinates,
            if the policy has them there.
    """

    t: int
    index: Tensor | None
    x: Tensor
    infeasible: Tensor
    distribution: Distribution | None = None
    owner: str = field(default="", repr=False)
    actions: Any = field(default=None, repr=False)
    keys: list[Any] | None = field(default=None, repr=False)

    def numbers(self) -> Tensor | None:
        """Return ``index`` on the host, without a wait if the policy knows it there.

        ``None`` on a box.
        """
        if self.index is None or self.keys is None or not self.index.is_cuda:
            return None if self.index is None else self.index.cpu()
        return torch.tensor(self.keys).view(self.index.shape)
