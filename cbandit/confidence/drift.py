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
    errors: Tensor, bands: Tensor, variances: Tensor, count: Tensor, delta: float
) -> Tensor:
    """Return which functions have changed, by their prediction errors, ``(T, F)`` bool.

    An error is an outcome less its predicted mean. While a function stays within its
    bands, the errors of ``n`` rounds in a row sum to at most

        sum of bands + sqrt(2 (sum of variances) ln(2 F W pi^2 k^2 / (6 delta)))

    for all ``F`` functions, all ``k`` and all ``W`` windows ``n = 1, 2, 4, ...`` that
    end at the ``k``-th outcome, with probability at least ``1 - delta`` for
    sub-Gaussian noise: a union bound, as the sum of ``6 / (pi^2 k^2)`` is 1. A greater
    sum shows a change. Sums keep the errors' signs, because a mean of sizes would not
    fall with ``n``.

    Args:
        errors: of the last ``N`` rounds, the oldest first, ``(N, T, F)``.
        bands: half the widths of the confidence bands there, likewise; infinite where
            there was no round.
        variances: of the noise, or its sub-Gaussian bound squared, likewise.
        count: ``k``, how many outcomes there were in all, ``(T, F)``.
        delta: the share of runs in which one may be found though nothing has changed.
    """
    windows = [1 << i for i in range(len(errors).bit_length())]
    union = 2 * errors.shape[-1] * len(windows) / (6 * delta)
    log = torch.log(union * (math.pi * count.clamp_min(1)) ** 2)
    changed = torch.zeros_like(count, dtype=torch.bool)
    for n in windows:
        noise = (2 * log * variances[-n:].sum(0)).sqrt()
        changed |= errors[-n:].sum(0).abs() > bands[-n:].sum(0) + noise
    return changed
