"""The price of one cost over a window of rows, trial by trial, in compiled loops."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cbandit_kernels._native.compiling import compiled
from cbandit_kernels.types import Priced

__all__ = ["price"]


def price(
    f: Tensor,
    c: Tensor,
    target: Tensor,
    begin: Tensor | None,
    feasible: float,
    rounding: float,
) -> Priced:
    """See :func:`cbandit_kernels.prices.window_price_ref`."""
    trials = len(target)
    near = np.zeros((trials, 0)) if begin is None else _plain(begin)
    price, shares, ends = np.empty(trials), np.empty((trials, 2)), np.empty((trials, 2))
    arms, infeasible = np.empty((trials, 2), np.int64), np.empty(trials, np.bool_)
    found = price, arms, shares, ends, infeasible
    _search()(_plain(f), _plain(c), _plain(target), near, feasible, rounding, found)
    return Priced(*map(torch.from_numpy, found))


def _plain(values: Tensor) -> Any:
    """Return the numbers as a contiguous array, which the loops are compiled for."""
    return np.ascontiguousarray(values.numpy())


@cache
def _search() -> Any:
    """Return the loop over trials; it writes results into its last arguments."""

    @compiled
    def planned(f, c, price):  # type: ignore
        """Return reward and spend of the best plan at a price, and its last choice."""
        n, count = f.shape
        reward, spend, at = 0.0, 0.0, 0
        for i in range(n):
            best, at = -np.inf, 0
            for k in range(count):
                score = f[i, k] - price * c[i, k]
                if score > best:
                    best, at = score, k
            reward += f[i, at]
            spend += c[i, at]
        return reward / n, spend / n, at

    @compiled
    def cheapest(f, c):  # type: ignore
        n, count = f.shape
        reward, spend, at = 0.0, 0.0, 0
        for i in range(n):
            least, best, at = np.inf, -np.inf, 0
            for k in range(count):
                cost, value = c[i, k], f[i, k]
                if value > -np.inf and (
                    cost < least or (cost == least and value > best)
                ):
                    least, best, at = cost, value, k
            reward += f[i, at]
            spend += c[i, at]
        return reward / n, spend / n, at

    @compiled
    def search(fs, cs, targets, near, feasible, rounding, found):  # type: ignore
        prices, arms, shares, ends, infeasible = found
        for t in range(len(targets)):
            f, c, tau = fs[t], cs[t], targets[t]
            high_reward, high_spend, high_last = cheapest(f, c)
            low_reward, low_spend, low_last = planned(f, c, 0.0)
            high, low = np.inf, 0.0  # prices
            scale = max(abs(high_spend), abs(low_spend), abs(tau))
            infeasible[t] = high_spend > tau + feasible * scale
            tau = max(tau, high_spend)
            free = low_spend <= tau  # the target does not bind
            for j in range(near.shape[1]):
                reward, spend, last = planned(f, c, near[t, j])
                if spend > tau and near[t, j] > low:
                    low, low_reward = near[t, j], reward
                    low_spend, low_last = spend, last
                elif spend <= tau and near[t, j] < high:
                    high, high_reward = near[t, j], reward
                    high_spend, high_last = spend, last
            price = 0.0
            while not free:
                price = (low_reward - high_reward) / (low_spend - high_spend)
                reward, spend, last = planned(f, c, price)
                chord = low_reward - price * low_spend
                size = abs(low_reward) + abs(high_reward) + abs(price) * scale
                inside = (
                    (spend < low_spend and spend > high_spend)
                    or (spend == low_spend and reward > low_reward)
                    or (spend == high_spend and reward > high_reward)
                )
                if not (inside and reward - price * spend > chord + rounding * size):
                    break
                if spend > tau:
                    low, low_reward, low_spend, low_last = price, reward, spend, last
                else:
                    high, high_reward = price, reward
                    high_spend, high_last = spend, last
            share = 0.0
            if not free and low_last != high_last:
                share = (low_spend - tau) / (low_spend - high_spend)
            turned = share >= 1 or (share > 0 and high_last < low_last)
            prices[t], ends[t, 0] = price, low
            # an infinite price does not help to begin
            ends[t, 1] = 2 * price if high == np.inf else high
            here, there = int(turned), int(not turned)
            shares[t, here], shares[t, there] = 1 - share, share
            arms[t, here] = low_last if share < 1 else 0
            arms[t, there] = high_last if share > 0 else 0

    return search
