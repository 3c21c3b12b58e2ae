"""RPOL-CensoredUCB: late feedback counts if it comes within a window of rounds.

This is how any GP policy takes ``feedback=cb.Delayed(window)``. Round ``s`` counts in
round ``t`` if its feedback came within ``min(window, t - 1 - s)`` rounds. Each round:

1. targets are ``r_s`` and ``c_s`` where they count, and a stand-in elsewhere (0 in the
   paper). All rounds are in the kernel matrix: ``sigma_t`` shrinks when a choice is
   made;
2. ``f_t = mean + v_t sigma_t`` and ``g_t = mean - v_t sigma_t`` with
   ``v_t = B_r sum_s sigma_t(x_s) + beta_t`` over the last ``window`` choices,
   ``B_r = B + R sqrt(2 ln(4 (m + 1) T / delta))``,
   ``beta_t = B + (R + B_r) sqrt(2 (gamma_t + 1 + ln(4 (m + 1) / delta)))``;
3. the policy's score and move: RPOL's ``Q`` gains the costs that come at ``t``, however
   late (:mod:`cbandit.policies.rpol`);
4. feedback later than ``window`` rounds is counted, and its stand-in stays.

The any-lam form has ``(R + B_r) / sqrt(lam)`` in the place of ``R + B_r``, and no 1.
The paper has ``B + R sqrt(2 ln T)``, whose proof lacks a union bound over rounds and
functions (Appendix C.1 claims a failure rate of ``2 / T``; two Gaussian noises exceed
the bound, with either sign, in a third of the runs of ``T = 500`` rounds). Here half of
``delta`` is for the noises, the other half for the confidence bands.

H. Guo, Q. Zhu and X. Liu, Rectified pessimistic-optimistic learning for stochastic
continuum-armed bandit with constraints, 2023, Theorem 3.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from cbandit._core import checks, devices
from cbandit.beliefs import feedback
from cbandit.confidence.bound import BoundWidths, Widths
from cbandit.confidence.widths import RKHS
from cbandit.errors import CBanditError
from cbandit.policies.choices import News, Place
from cbandit.policies.timing.base import Held, Timing


class Delayed(Timing):
    """Timing under which a choice enters the beliefs when it is made.

    Until its feedback comes, a stand-in value counts in its place. Feedback that comes
    later than a window of rounds does not replace the stand-in.

    Args:
        spec: the user's ``feedback=``.
        batch_shape: the shape of the trials.
        device: where beliefs live.
        horizon: the last round; ``None``: unknown.
    """

    adds_pending = True
    no_noise = (
        "noise= cannot go with feedback=cb.Delayed(...): a choice weighs in when it is "
        "made, before its own variance is known"
    )
    no_outcome = (
        "outcome= cannot go with feedback=cb.Delayed(...): a choice weighs in when it "
        "is made, and how much a binary or counted outcome weighs is known when it has "
        "come. Leave feedback= out: feedback that comes later counts from then on"
    )

    def __init__(
        self,
        spec: feedback.Delayed,
        batch_shape: tuple[int, ...],
        device: torch.device,
        horizon: int | None,
    ) -> None:
        self._window, self._weight = spec.window, spec.weight
        self._batch_shape, self._device = batch_shape, device
        self._horizon = horizon
        # without weight, outstanding choices add nothing and nothing is computed
        self._weightless = spec.weight is not None and not bool(spec.weight.any())

    def add_pending(
        self, beliefs: Any, held: Held, place: Place, limits: Tensor
    ) -> tuple[Any, Held]:
        """Add the choice to the beliefs, with stand-ins for its feedback."""
        beliefs = beliefs.await_feedback(place.keys, place.x, place.t, limits)
        recent = (*held.recent_points, place.x.double())[-self._window :]
        return beliefs, held._replace(recent_points=recent)

    def absorb(self, beliefs: Any, held: Held, news: News) -> tuple[Any, Held]:
        """Fill in feedback that comes in time; count values that come too late."""
        t, late = news.place.t, held.too_late
        for told, functions in news.outcomes_by_function():
            mask = told.mask()
            if told.at - t > self._window:
                late = late + mask
            else:
                beliefs = beliefs.fill(t, functions, told.values, mask)
        return beliefs, held._replace(too_late=late)

    def adapt(self, widths: Widths) -> Widths:
        """Return the widths unchanged; raise if one is not proven for delays."""
        for beta in (widths.beta, widths.cost_beta):
            if isinstance(beta, RKHS) and beta.form == "tight":
                raise CBanditError(
                    "RKHS(form='tight') is not proven for feedback=cb.Delayed(...): "
                    "give form='any-lam', or leave feedback= out"
                )
        return widths

    def bound_count(self, functions: int) -> int:
        """Return ``4 functions``: each band may fail with ``delta`` divided by this.

        Each function has two bands, and all bands share half of ``delta``.
        """
        return 4 * functions

    def width(
        self, t: int, widths: BoundWidths, bound_count: int, beliefs: Any, held: Held
    ) -> Tensor:
        """Return the width ``v_t`` of round ``t``, ``(T, F)``."""
        theory, beta = widths.rkhs_parts(), widths.around(beliefs, t, bound_count)
        b_r = self._b_r(widths, beta, bound_count)
        if theory:
            beta = beta.clone()
        for part, at in theory:
            gains, noises = beliefs.gains()[:, at], beliefs.noises()[:, at]
            r = part.subgaussian + b_r[:, at]
            beta[:, at] = part.rkhs(t, gains, bound_count, noises, part.norm, r)
        idle = self._weightless or (self._weight is None and not theory)
        if idle or not held.recent_points:
            return beta
        points = torch.stack(list(held.recent_points), 1)
        sigma: Tensor = beliefs.anywhere(points)[1]
        return beta + b_r * sigma.sum(-1)

    def _b_r(self, widths: BoundWidths, beta: Tensor, bound_count: int) -> Tensor:
        """Return the weight ``B_r``, ``(T, F)``: the user's, or else the theory's."""
        if self._weight is not None:
            count = beta.shape[-1]
            weights = checks.per_cost("weight", self._weight, self._batch_shape, count)
            return devices.put(weights, self._device)
        b_r = torch.zeros_like(beta)
        for part, at in widths.rkhs_parts():
            if self._horizon is None:
                raise CBanditError(
                    "Delayed's weight is B + R sqrt(2 ln(4 (m + 1) T / delta)) by the "
                    "theory: give the policy horizon=, or Delayed(window, weight=)"
                )
            root = math.sqrt(
                2 * math.log(bound_count * self._horizon / part.rkhs.delta)
            )
            b_r[:, at] = part.norm + part.subgaussian * root
        return b_r
