"""RPOL-SWUCB: only the last rounds count, for a world that drifts.

This is how any GP policy takes ``feedback=cb.Sliding(window, drift)``. Each round:

1. the posterior is that of the last ``W = window`` rounds alone;
2. ``f_t = mean + beta_t std + Gam_t`` and ``g_t = mean - beta_t std - Gam_t`` with
   ``beta_t = B + (R / sqrt(lam)) sqrt(2 gamma + 2 ln((m + 1) T / delta))``, ``gamma``
   the gain of the window and ``Gam_t`` the allowance for the drift inside it;
3. the policy's score and move (:mod:`cbandit.policies.rpol`).

The theory's ``Gam_t`` and ``W`` are in :mod:`cbandit.confidence.drift`.

H. Guo, Q. Zhu and X. Liu, Rectified pessimistic-optimistic learning for stochastic
continuum-armed bandit with constraints, 2023, Theorem 4.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cbandit._core import checks, devices
from cbandit.beliefs import feedback
from cbandit.confidence.bound import BoundWidths, Widths
from cbandit.errors import CBanditError
from cbandit.policies.choices import News
from cbandit.policies.timing.base import Held, Timing


class Sliding(Timing):
    """Timing under which feedback counts for a window of rounds after the choice.

    Args:
        spec: the user's ``feedback=``.
        functions: how many functions have a belief, ``F``.
        batch_shape: the shape of the trials.
        device: where beliefs live.
        horizon: the last round; ``None``: unknown.
    """

    def __init__(
        self,
        spec: feedback.Sliding,
        functions: int,
        batch_shape: tuple[int, ...],
        device: torch.device,
        horizon: int | None,
    ) -> None:
        self.memory: int = spec.window
        self._functions, self._batch_shape = functions, batch_shape
        self._device, self._horizon = device, horizon
        self._drift, self._fixed = spec.drift, None
        if self._drift is not None and not callable(self._drift):
            # raise for a wrong shape here, not at the first ask
            self._fixed = self._drift_tensor(self._drift)

    def absorb(self, beliefs: Any, held: Held, news: News) -> tuple[Any, Held]:
        """Absorb feedback of a round in the window; count other values as too late."""
        if news.place.t >= news.now + 1 - self.memory:
            return beliefs.absorb(news.observations()), held
        late = held.too_late
        for told, _ in news.outcomes_by_function():
            late = late + devices.put(told.mask(), self._device)
        return beliefs, held._replace(too_late=late)

    def due(self, beliefs: Any, held: Held, t: int) -> tuple[Any, Held]:
        """Drop the rounds that have left the window."""
        return beliefs.expire(t + 1 - self.memory), held

    def adapt(self, widths: Widths) -> Widths:
        """Return the user's widths; RKHS schedules take the form for any noise."""
        return widths.for_any_noise()

    def bound_count(self, functions: int) -> int:
        """Return how many bounds must hold together: ``functions`` in every round."""
        return functions * (self._horizon or 1)

    def width(
        self, t: int, widths: BoundWidths, bound_count: int, beliefs: Any, held: Held
    ) -> Tensor:
        """Return the width ``beta_t`` of round ``t``, ``(T, F)``."""
        if self._horizon is None and widths.rkhs_parts():
            raise CBanditError(
                "RKHS widths hold for horizon= rounds with feedback=cb.Sliding(...), "
                "each with a window of its own: give the policy horizon="
            )
        return widths.around(beliefs, t, bound_count)

    def allowance(self, t: int) -> Tensor | None:
        """Return the drift's allowance ``Gam_t``, ``(T, F)``; ``None``: no drift."""
        if callable(self._drift):
            return self._drift_tensor(self._drift(t))
        return self._fixed

    def _drift_tensor(self, drift: Any) -> Tensor:
        """Return a user's drift in one round as ``(T, F)``."""
        batch, functions = self._batch_shape, self._functions
        if isinstance(drift, tuple) and len(drift) == 2 and functions > 1:
            reward, costs = (checks.nonnegative("drift", part) for part in drift)
            first = checks.per_trial("drift", reward, batch).unsqueeze(-1)
            costs = _as_column(costs, batch)
            others = checks.per_cost("drift", costs, batch, functions - 1)
            return devices.put(torch.cat([first, others], -1), self._device)
        size = _as_column(checks.nonnegative("drift", drift), batch)
        try:
            size = checks.per_cost("drift", size, batch, functions)
        except CBanditError:
            raise CBanditError(
                "drift must be a number, (*trials,), a pair (reward, costs), or one a "
                f"function, (1 + m,) = {(functions,)} or (*trials, 1 + m); got "
                f"{tuple(size.shape)}"
            ) from None
        return devices.put(size, self._device)


def _as_column(size: Tensor, batch: tuple[int, ...]) -> Tensor:
    """Return numbers ``(*trials,)`` as a column; leave other shapes unchanged."""
    return size.unsqueeze(-1) if batch and tuple(size.shape) == batch else size
