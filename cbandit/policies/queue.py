"""CKB's dual as a virtual queue: the Lyapunov-drift form.

    x_t = argmax f_t(x) - sum_j (Q_j / V_t) g_tj(x)
    Q_j = [Q_j + g_tj(x_t) + slack_t]_+

Its theory is for UCB; zero violation is not proven where costs are seen at the action
played alone. There is no cap: one only serves to derive ``1 / V``.

X. Zhou and B. Ji, On kernelized multi-armed bandits with constraints, 2022, longer
form, E.1, after Liu and others (2021).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from cbandit import multipliers, scores
from cbandit.errors import CBanditError
from cbandit.policies.dual import STEP, Dual, Given, Schedule


@dataclass(frozen=True)
class Queue(Dual):
    """The multiplier is the sum of excesses, never below 0.

    Args: as for :class:`~cbandit.policies.dual.Constants`.
    """

    step: Schedule
    slack: Schedule
    beta: Tensor | None = None
    no_limit: str = ""

    @classmethod
    def of(cls, given: Given) -> Queue:
        """Return the rule with the constants that are given, or follow from them."""
        if given.cap is not None and given.step is not None:
            raise CBanditError(
                "cap goes with dual='projected', for a queue has none; got "
                f"{given.cap!r} (with step left out, the queue's step follows from it)"
            )
        if given.has_defaults and given.step is None and given.cap is None:
            given = replace(given, step=STEP)
        step, slack, _, beta, no_limit = given.constants(capped=given.step is None)
        return cls(step, slack, beta, no_limit)

    def score(self, t: int, phi: Tensor, start: int) -> scores.PrimalDual:
        """Return ``f - sum_j (Q_j / V) g_j``."""
        return scores.PrimalDual(phi * self.step(t, start))

    def move(self, t: int, phi: Tensor, g: Tensor, start: int) -> Tensor:
        """Return ``[Q + g + slack]_+``."""
        return multipliers.queue(phi, g, self.slack(t), checked=False)
