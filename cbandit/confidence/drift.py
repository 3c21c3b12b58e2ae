"""Formulas for sliding windows in a world that drifts (Guo et al. 2023)."""

from __future__ import annotations

import math

from cbandit._core import checks


def drift_window(horizon: int, drift: float, gain: float) -> int:
    """Return ``W = gain^(1/4) (T / P_T)^(1/2)`` rounds, for :class:`~cbandit.Sliding`.

    It is rounded, and between 1 and the horizon.

    Args:
        horizon: ``T``, rounds.
        drift: ``P_T``, the summed RKHS norms of all changes from round to round.
        gain: ``gamma_T``, a bound on the information gain of the horizon; see
            :func:`~cbandit.confidence.worst_case_gain`.

    Example:
        >>> import cbandit as cb
        >>> cb.confidence.drift_window(horizon=500, drift=5.0, gain=16.0)
        20
    """
    whole: int = checks.whole("horizon", horizon)
    path = checks.number("drift", drift, minimum=0.0)
    bound = checks.number("gain", gain, minimum=0.0)
    if path == 0:
        return whole
    wanted = round(math.sqrt(math.sqrt(bound) * whole / path))
    return min(whole, max(1, wanted))


def drift_allowance(window: int, noise: float, gain: float, drift: float) -> float:
    """Return ``(1/lam) sqrt(2 W (1 + lam) gain) * drift``, the theory's allowance.

    ``noise`` is the likelihood variance ``lam``; ``gain`` bounds the information gain
    of the horizon; ``drift`` is the summed norm of the known changes inside the window.
    """
    return math.sqrt(2 * window * (1 + noise) * gain) / noise * drift
