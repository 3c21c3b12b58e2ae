"""Formulas for a world that drifts: sliding windows (Guo et al. 2023), changes."""

from __future__ import annotations

import math

import torch
from torch import Tensor

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


def change_detected(
    errors: Tensor, bands: Tensor, variances: Tensor, seen: Tensor, delta: float
) -> Tensor:
    """Return which functions have changed, by their prediction errors, ``(T, F)`` bool.

    While ``F`` functions stay within their bands, the errors of the last ``n`` of ``k``
    outcomes sum to at most the sum of the bands plus ``sqrt(2 (sum of variances)
    ln(2 F W pi^2 k^2 / (6 delta)))``, for all ``k`` and all ``W`` windows ``n = 1, 2,
    4, ...`` at once, with probability at least ``1 - delta``: a union bound, as ``6 /
    (pi^2 k^2)`` sums to 1. A greater sum shows a change. Errors keep their signs, as
    the mean of their sizes would not fall with ``n``.

    Args:
        errors: outcomes less predicted means, the oldest first, ``(N, T, F)``.
        bands: half the widths of confidence bands, likewise; infinite for no outcome.
        variances: of the noise (its sub-Gaussian bound squared), likewise.
        seen: ``k``, how many outcomes there were in all, ``(T, F)``.
        delta: the share of runs that may find one though nothing changes.
    """
    windows = [1 << i for i in range(len(errors).bit_length())]
    union = 2 * errors.shape[-1] * len(windows) / (6 * delta)
    log = torch.log(union * (math.pi * seen.clamp_min(1)) ** 2)
    changed = torch.zeros_like(seen, dtype=torch.bool)
    for n in windows:
        noise = (2 * log * variances[-n:].sum(0)).sqrt()
        changed |= errors[-n:].sum(0).abs() > bands[-n:].sum(0) + noise
    return changed
