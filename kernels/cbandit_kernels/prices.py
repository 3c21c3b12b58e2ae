"""The price of one cost at which the average spend over a window is the target.

At a price each row plays the choice of greatest ``reward - price * cost``; over all
rows this is a *plan*, with an average reward and an average spend. The best plan's
spend is a step function that does not rise with the price. Of two plans, one spends too
much and one does not; at one price they are equally good. The best plan at that price
replaces one of them, until no plan is better.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cbandit_kernels.backends import native
from cbandit_kernels.types import Priced

__all__ = ["window_price", "window_price_ref"]

# On the host, by numpy: there are few numbers, and calls of torch cost more.

Numbers = npt.NDArray[Any]


class _Plans(NamedTuple):
    """The best plan at a price: average reward and spend, and the last row's choice.

    All are ``(T,)``; a price may be infinite.
    """

    price: Numbers
    reward: Numbers
    spend: Numbers
    last: Numbers

    def where(self, chosen: Numbers, other: _Plans) -> _Plans:
        """Return these plans in the trials ``chosen``, ``other`` elsewhere."""
        pairs = zip(self, other, strict=True)
        return _Plans(*(np.where(chosen, a, b) for a, b in pairs))


class _Window:
    """Rewards and costs of the rows, ``(T, n, K)`` each."""

    def __init__(self, f: Numbers, c: Numbers) -> None:
        self.f, self.c = f, c
        self._flat = np.ascontiguousarray(f).ravel(), np.ascontiguousarray(c).ravel()
        self._rows = f.shape[-1] * np.arange(f[..., 0].size).reshape(f.shape[:-1])

    def planned(self, price: Numbers) -> _Plans:
        """Return the best plan at finite prices ``(T,)``."""
        score = self.f - price[:, None, None] * self.c
        return self.averaged(price, score.argmax(-1))

    def averaged(self, price: Numbers, at: Numbers) -> _Plans:
        """Return the plan that plays the choices ``at (T, n)``."""
        place = self._rows + at
        reward, spend = (values[place].mean(-1) for values in self._flat)
        return _Plans(price, reward, spend, at[:, -1])

    def cheapest(self) -> _Plans:
        """Return the cheapest plan; of equally cheap choices, the best."""
        cost = np.where(np.isneginf(self.f), np.inf, self.c)
        least = cost.min(-1, keepdims=True)
        at = np.where(cost <= least, self.f, -np.inf).argmax(-1)
        return self.averaged(np.full(len(at), np.inf), at)


def window_price_ref(
    f: Tensor,
    c: Tensor,
    target: Tensor,
    begin: Tensor | None = None,
    feasible: float = 0.0,
    rounding: float = 0.0,
    *,
    backend: str | None = None,
) -> Priced:
    """Return the price at which the average spend over a window is the target.

    Args:
        f: estimated rewards, ``(T, n, K)`` float64, on the host; minus infinity forbids
            a choice, and every row allows one.
        c: estimated costs, ``(T, n, K)``.
        target: ``(T,)``.
        begin: finite prices near which to look first, ``(T, k)``.
        feasible: the share of the spends by which the target may be exceeded.
        rounding: the share of rewards and spends by which a better plan must be better.
        backend: ``None``, ``"native"`` to require compiled loops, or ``"torch"``.
    """
    window, tau = _Window(f.numpy(), c.numpy()), target.numpy()
    high, low = window.cheapest(), window.planned(np.zeros(len(tau)))
    scale = np.maximum(np.maximum(abs(high.spend), abs(low.spend)), abs(tau))
    infeasible = high.spend > tau + feasible * scale
    tau = np.maximum(tau, high.spend)
    free = low.spend <= tau  # the target does not bind
    # begin with prices of the last search, which mostly are near
    for near in () if begin is None else begin.numpy().T:
        low, high = _between(low, high, tau, window.planned(near))
    active, price = ~free, np.zeros(len(tau))
    while active.any():
        gap = np.where(active, low.spend - high.spend, 1.0)
        price = np.where(active, (low.reward - high.reward) / gap, price)
        new = window.planned(price)
        chord = low.reward - price * low.spend
        size = abs(low.reward) + abs(high.reward) + abs(price) * scale
        inside = (new.spend < low.spend) & (new.spend > high.spend)
        inside |= (new.spend == low.spend) & (new.reward > low.reward)
        inside |= (new.spend == high.spend) & (new.reward > high.reward)
        better = new.reward - price * new.spend > chord + rounding * size
        active = active & inside & better
        over = new.spend > tau
        low, high = new.where(active & over, low), new.where(active & ~over, high)
    sure = free | (low.last == high.last)
    gap = np.where(sure, 1.0, low.spend - high.spend)
    share = np.where(sure, 0.0, (low.spend - tau) / gap)
    turned = (share >= 1) | ((share > 0) & (high.last < low.last))
    arms, shares, near = (
        np.stack(pair, -1)
        for pair in (
            (low.last, high.last),
            (1 - share, share),
            # an infinite price does not help to begin
            (low.price, np.where(np.isinf(high.price), 2 * price, high.price)),
        )
    )
    turn = turned[:, None]
    arms, shares = (np.where(turn, v[:, ::-1], v) for v in (arms, shares))
    found = price, arms * (shares > 0), shares, near, infeasible
    return Priced(*map(torch.from_numpy, found))


def window_price(
    f: Tensor,
    c: Tensor,
    target: Tensor,
    begin: Tensor | None = None,
    feasible: float = 0.0,
    rounding: float = 0.0,
    *,
    backend: str | None = None,
) -> Priced:
    """Do as :func:`window_price_ref`, by compiled loops if they are available."""
    if backend == "native" or (backend is None and native(f)):
        from cbandit_kernels._native.prices import price

        return price(f, c, target, begin, feasible, rounding)
    return window_price_ref(f, c, target, begin, feasible, rounding)


def _between(
    low: _Plans, high: _Plans, target: Numbers, new: _Plans
) -> tuple[_Plans, _Plans]:
    """Return the nearest plans above and below the target, out of the three."""
    over = new.spend > target
    below = over & (new.price > low.price)
    above = ~over & (new.price < high.price)
    return new.where(below, low), new.where(above, high)
