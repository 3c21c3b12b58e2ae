"""CKB's dual in the paper: projected steps by the estimated costs.

Each round::

    x_t = argmax f_t(x) - sum_j phi_j g_tj(x)
    phi_j = clip(phi_j + (g_tj(x_t) + slack) / V, 0, rho)

X. Zhou and B. Ji, On kernelized multi-armed bandits with constraints, 2022. The theory
asks for ``rho >= 4 B / delta`` (``delta`` Slater's constant; less the slack, where
there is one) and ``V = G sqrt(T) / rho``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from cbandit import multipliers, scores
from cbandit.errors import CBanditError
from cbandit.policies.dual import (
    DEFAULT_CAP,
    DEFAULT_STEP,
    Dual,
    GivenConstants,
    Schedule,
)


@dataclass(frozen=True)
class Projected(Dual):
    """The rule: the multiplier makes steps and stays between 0 and the cap.

    The arguments are those of :class:`~cbandit.policies.dual.Constants`.
    """

    step: Schedule
    slack: Schedule
    cap: Tensor
    beta: Tensor | None = None
    limit_refusal: str = ""

    @classmethod
    def of(cls, given: GivenConstants) -> Projected:
        """Return the rule with the user's constants, or the theorem's or defaults."""
        if callable(given.step) or callable(given.slack):
            raise CBanditError(
                "step and slack may be callables of the round with dual='queue' only"
            )
        if given.has_defaults:
            step = DEFAULT_STEP if given.step is None else given.step
            given = replace(
                given, step=step, cap=DEFAULT_CAP if given.cap is None else given.cap
            )
        return cls(*given.constants(needs_cap=True))

    def score(self, t: int, phi: Tensor, first_round: int) -> scores.PrimalDual:
        """Return the score ``f - sum_j phi_j g_j``."""
        return scores.PrimalDual(phi)

    def move(self, t: int, phi: Tensor, g: Tensor, first_round: int) -> Tensor:
        """Return the next multiplier, ``clip(phi + (g + slack) / V, 0, rho)``."""
        step, slack = self.step(t, first_round), self.slack(t)
        return multipliers.projected(phi, g, step, slack, self.cap, checked=False)
