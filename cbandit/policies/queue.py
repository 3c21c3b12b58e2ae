"""CKB's dual as a virtual queue: the Lyapunov-drift form.

Each round::

    x_t = argmax f_t(x) - sum_j (Q_j / V_t) g_tj(x)
    Q_j = [Q_j + g_tj(x_t) + slack_t]_+

Its theory is for UCB; zero violation is not proven where costs are seen at the action
played alone. The queue has no cap: ``cap=`` is only used to compute ``1 / V``.

X. Zhou and B. Ji, On kernelized multi-armed bandits with constraints, 2022, longer
form, E.1, after Liu and others (2021).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from cbandit import multipliers, scores
from cbandit.errors import CBanditError
from cbandit.policies.dual import DEFAULT_STEP, Dual, GivenConstants, Schedule


@dataclass(frozen=True)
class Queue(Dual):
    """The rule: the multiplier is a queue of the estimated excesses, never below 0.

    The arguments are those of :class:`~cbandit.policies.dual.Constants`.
    """

    step: Schedule
    slack: Schedule
    beta: Tensor | None = None
    limit_refusal: str = ""

    @classmethod
    def of(cls, given: GivenConstants) -> Queue:
        """Return the rule with the user's constants, or the theorem's or defaults."""
        if given.cap is not None and given.step is not None:
            raise CBanditError(
                "cap goes with dual='projected', for a queue has none; got "
                f"{given.cap!r} (with step left out, the queue's step follows from it)"
            )
        if given.has_defaults and given.step is None and given.cap is None:
            given = replace(given, step=DEFAULT_STEP)
        step, slack, _, beta, limit_refusal = given.constants(
            needs_cap=given.step is None
        )
        return cls(step, slack, beta, limit_refusal)

    def score(self, t: int, phi: Tensor, first_round: int) -> scores.PrimalDual:
        """Return the score ``f - sum_j (Q_j / V) g_j``."""
        return scores.PrimalDual(phi * self.step(t, first_round))

    def move(self, t: int, phi: Tensor, g: Tensor, first_round: int) -> Tensor:
        """Return the next queue, ``[Q + g + slack]_+``; ``phi`` is the queue ``Q``."""
        return multipliers.queue(phi, g, self.slack(t), checked=False)
