"""The prices of costs at which the average spends over a window meet their targets.

Over ``n`` rows, each of which may mix its choices, maximise the average reward such
that each average spend is at most its target; the prices are the dual solution. At
prices each row plays the choice of greatest ``reward - price * cost``; over all rows
this is a *plan*, with an average reward and average spends. The solution mixes at most
``m + 1`` plans, which are equally good at its prices. The best plan at those prices
replaces one of them, until no plan is better.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cbandit_kernels._native.simplex import make_search
from cbandit_kernels.backends import native
from cbandit_kernels.types import Priced

__all__ = ["window_price", "window_price_ref"]

# On the host, by numpy: there are few numbers, and calls of torch cost more.

Numbers = npt.NDArray[Any]


def _plan(
    f: Numbers, c: Numbers, weight: float, price: Numbers, values: Numbers
) -> int:
    """See :func:`cbandit_kernels._native.simplex.make_search`."""
    score = f if weight else np.where(np.isneginf(f), f, 0.0)
    at = (score - np.tensordot(price, c, 1)).argmax(-1)
    rows = np.arange(len(f))
    values[0] = f[rows, at].mean()
    values[1:] = c[:, rows, at].mean(-1)
    return int(at[-1])


_search = make_search(_plan, np.linalg.inv)


def window_price_ref(
    f: Tensor,
    c: Tensor,
    target: Tensor,
    unit: Tensor,
    begin: Tensor | None = None,
    feasible: float = 0.0,
    rounding: float = 0.0,
    *,
    backend: str | None = None,
) -> Priced:
    """Return the prices at which the average spends over a window meet the targets.

    Where no plan keeps all targets, they are raised alike, in units, by as much as is
    needed.

    Args:
        f: estimated rewards, ``(T, n, K)`` float64, on the host; minus infinity forbids
            a choice, and every row allows one.
        c: estimated costs, ``(T, m, n, K)``.
        target: ``(T, m)``.
        unit: what each cost's excess is divided by, ``(T, m)``, above 0.
        begin: prices near which to look first, ``(T, k, m)``.
        feasible: the share of the spends by which the target may be exceeded.
        rounding: the share of rewards and spends by which a better plan must be better.
        backend: ``None``, ``"native"`` to require compiled loops, or ``"torch"``.
    """
    trials, m = target.shape
    near = np.zeros((trials, 0, m)) if begin is None else begin.numpy()
    price, arms = np.empty((trials, m)), np.empty((trials, m + 1), np.int64)
    shares, ends = np.empty((trials, m + 1)), np.empty((trials, m + 1, m))
    infeasible = np.empty(trials, np.bool_)
    given = zip(*(part.numpy() for part in (f, c, target, unit)), near, strict=True)
    for t, trial in enumerate(given):
        found = price[t], arms[t], shares[t], ends[t]
        infeasible[t] = _search(*trial, feasible, rounding, found)
    return Priced(*map(torch.from_numpy, (price, arms, shares, ends, infeasible)))


def window_price(
    f: Tensor,
    c: Tensor,
    target: Tensor,
    unit: Tensor,
    begin: Tensor | None = None,
    feasible: float = 0.0,
    rounding: float = 0.0,
    *,
    backend: str | None = None,
) -> Priced:
    """Do as :func:`window_price_ref`, by compiled loops if they are available."""
    given = f, c, target, unit, begin, feasible, rounding
    if backend == "native" or (backend is None and native(f)):
        from cbandit_kernels._native.prices import price

        return price(*given)
    return window_price_ref(*given)
