"""The search for the prices of a window: a simplex method over plans.

It is plain Python in loops over few numbers. :mod:`cbandit_kernels.prices` runs it as
it is; :mod:`cbandit_kernels._native.prices` compiles it.

Its variables by number: ``0 .. m - 1`` the slack of each cost, ``m`` the shortfall (by
how much all limits would have to be raised), ``m + 1 + k`` the plan ``k``. A basis
holds ``m + 1`` of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["make_search"]

PLANS = 256  # most plans found before the best mix of them is taken
PATIENCE = 50  # steps for each variable, after which Bland's rule prevents cycles
RELAXED = 1e-9  # share added to the least excess when infeasible limits are raised
EPS = 2.0**-52
FALLS = 1e-13  # share of a direction's greatest entry; smaller entries are rounding


def make_search(
    plan: Callable[..., Any],
    invert: Callable[..., Any],
    compiled: Callable[..., Any] = lambda function: function,
) -> Any:
    """Return the search over one trial's window, a function.

    Args:
        plan: a function of ``f (n, K)``, ``c (m, n, K)``, a weight of the reward, 0 or
            1, prices ``(m,)`` and an array ``(1 + m,)``. It writes the average reward
            and the average spends of the best plan, and returns its last choice.
        invert: returns the inverse of a small matrix.
        compiled: compiles a function.
    """

    @compiled
    def ask(f, c, weight, tau, unit, k, pool):  # type: ignore
        """Make the plan ``k`` that is best at its prices; spends become excesses."""
        plans, lasts, asked, scale = pool
        lasts[k] = plan(f, c, weight, asked[k], plans[k])
        scale[0] = max(scale[0], abs(plans[k, 0]))
        for j in range(len(tau)):
            plans[k, 1 + j] = plans[k, 1 + j] / unit[j] - tau[j]
            scale[1 + j] = max(scale[1 + j], abs(plans[k, 1 + j]), abs(tau[j]))

    @compiled
    def begin_basis(plans, count, basis):  # type: ignore
        """Write a basis of slacks, the plan of least excess and maybe the shortfall."""
        m = len(basis) - 1
        least, first, dearest = np.inf, 0, 0
        for k in range(count):
            most, worst = -np.inf, 0
            for j in range(m):
                if plans[k, 1 + j] > most:
                    most, worst = plans[k, 1 + j], j
            if most < least and least > 0:  # the first plan within the limits is taken
                least, first, dearest = most, k, worst
        for j in range(m):
            basis[j] = j
        basis[m] = m + 1 + first
        if least > 0:
            basis[dearest] = m

    @compiled
    def invert_basis(plans, basis):  # type: ignore
        """Return the inverse of the basis, and whether it holds the shortfall."""
        m, short = len(basis) - 1, False
        square = np.zeros((m + 1, m + 1))
        for i in range(m + 1):
            variable = basis[i]
            if variable < m:
                square[variable, i] = 1.0
                continue
            short = short or variable == m
            for j in range(m):
                square[j, i] = -1.0 if variable == m else plans[variable - m - 1, 1 + j]
            square[m, i] = 0.0 if variable == m else 1.0
        return invert(square), short

    @compiled
    def write_duals(plans, basis, inverse, weight, y):  # type: ignore
        """Write what one more unit of each limit, and of all plans, would gain."""
        m = len(basis) - 1
        for j in range(m + 1):
            y[j] = 0.0
            for i in range(m + 1):
                if basis[i] > m:
                    y[j] += weight * plans[basis[i] - m - 1, 0] * inverse[i, j]
                elif basis[i] == m:
                    y[j] -= inverse[i, j]

    @compiled
    def gain_of(plans, k, weight, y):  # type: ignore
        """Return what a share of the plan ``k`` would gain."""
        m = len(y) - 1
        gain = weight * plans[k, 0] - y[m]
        for j in range(m):
            gain -= y[j] * plans[k, 1 + j]
        return gain

    @compiled
    def is_new(plans, count):  # type: ignore
        """Return whether the plan ``count`` differs from all before it."""
        known = False
        for k in range(count):
            same = True
            for j in range(plans.shape[1]):
                same = same and plans[k, j] == plans[count, j]
            known = known or same
        return not known

    @compiled
    def find_entering(plans, count, basis, weight, y, tolerance, first):  # type: ignore
        """Return the variable that gains most, or the ``first`` one; -1: none gains."""
        m = len(y) - 1
        enter, most = -1, tolerance
        for variable in range(m + 1 + count):
            held = variable == m
            for i in range(m + 1):
                held = held or basis[i] == variable
            if held:  # it can only gain by rounding
                continue
            gain = -y[variable] if variable < m else 0.0
            if variable > m:
                gain = gain_of(plans, variable - m - 1, weight, y)
            if gain > most and not (first and enter >= 0):
                enter, most = variable, gain
        return enter

    @compiled
    def find_leaving(plans, basis, inverse, enter, first):  # type: ignore
        """Return the place of the variable that falls to 0 first; the shortfall wins.

        Of several that do, it is the one that falls fastest, or the ``first`` one.
        """
        m = len(basis) - 1
        way, most = np.zeros(m + 1), 0.0
        for i in range(m + 1):
            if enter < m:
                way[i] = inverse[i, enter]
            else:
                way[i] = inverse[i, m]
                for j in range(m):
                    way[i] += inverse[i, j] * plans[enter - m - 1, 1 + j]
            most = max(most, abs(way[i]))
        least = np.inf
        for i in range(m + 1):
            if way[i] > FALLS * most:
                least = min(least, max(inverse[i, m], 0.0) / way[i])
        leave, key = 0, -np.inf
        for i in range(m + 1):
            reach = least * (1 + 4 * EPS) * way[i]
            if way[i] > FALLS * most and max(inverse[i, m], 0.0) <= reach:
                rank = -float(basis[i]) if first else way[i]
                if basis[i] == m:
                    rank = np.inf
                if rank > key:
                    leave, key = i, rank
        return leave

    @compiled
    def raise_limits(plans, count, basis, inverse, tau, scale, feasible):  # type: ignore
        """Raise all limits by the shortfall; return whether that is no rounding."""
        m = len(tau)
        excess, kept = np.zeros(m), True
        for j in range(m):
            for i in range(m + 1):
                if basis[i] > m:
                    share = max(inverse[i, m], 0.0)
                    excess[j] += share * plans[basis[i] - m - 1, 1 + j]
            kept = kept and excess[j] <= feasible * scale[1 + j]
        most = excess.max() * (1 + RELAXED)
        for j in range(m):
            rise = max(excess[j], 0.0) + 4 * EPS * scale[1 + j] if kept else most
            tau[j] += rise
            for k in range(count):
                plans[k, 1 + j] -= rise
        return not kept

    @compiled
    def write_shares(basis, inverse, lasts, arms, shares):  # type: ignore
        """Write the last row's choices in order, and their shares; unused ones last."""
        m, used, whole = len(basis) - 1, 0, 0.0
        for i in range(m + 1):
            arms[i], shares[i] = 0, 0.0
            if basis[i] > m:
                whole += max(inverse[i, m], 0.0)
        for i in range(m + 1):
            share = max(inverse[i, m], 0.0) / whole
            if basis[i] <= m or share == 0:
                continue
            arm, place = lasts[basis[i] - m - 1], 0
            while place < used and arms[place] < arm:
                place += 1
            if place == used or arms[place] != arm:
                for later in range(used, place, -1):
                    arms[later], shares[later] = arms[later - 1], shares[later - 1]
                arms[place], shares[place] = arm, 0.0
                used += 1
            shares[place] += share

    @compiled
    def search(f, c, limit, unit, begin, feasible, rounding, found):  # type: ignore
        """Write a trial's results into ``found``; return whether it is infeasible."""
        price, arms, shares, near = found
        m, known = len(limit), len(begin)
        room = PLANS + known + m
        plans, asked = np.zeros((room, 1 + m)), np.zeros((room, m))
        lasts, scale = np.zeros(room, np.int64), np.zeros(1 + m)
        pool = plans, lasts, asked, scale
        tau, y = np.zeros(m), np.zeros(m + 1)
        for j in range(m):
            tau[j] = limit[j] / unit[j]
        ask(f, c, 1.0, tau, unit, 0, pool)
        count = 1
        for k in range(known):
            for j in range(m):
                asked[count, j] = begin[k, j]
            ask(f, c, 1.0, tau, unit, count, pool)
            count += 1
        for k in range(0 if known else m):  # the cheapest plan by each cost
            asked[count, k] = 1.0
            ask(f, c, 0.0, tau, unit, count, pool)
            count += 1
        basis = np.zeros(m + 1, np.int64)
        begin_basis(plans, count, basis)
        inverse, short = invert_basis(plans, basis)
        infeasible, patience = False, PATIENCE * (m + 2)
        for step in range(20 * patience):
            weight = 0.0 if short else 1.0
            write_duals(plans, basis, inverse, weight, y)
            tolerance = 1.0 if short else scale[0]
            for j in range(m):
                tolerance += abs(y[j]) * scale[1 + j]
            tolerance *= rounding
            first = step > patience
            given = plans, count, basis, weight, y, tolerance, first
            enter = find_entering(*given)
            if enter < 0 and count < room:
                for j in range(m):
                    asked[count, j] = max(y[j], 0.0) / unit[j]
                ask(f, c, weight, tau, unit, count, pool)
                gains = gain_of(plans, count, weight, y) > tolerance
                if gains and is_new(plans, count):
                    enter = m + 1 + count
                    count += 1
            if enter >= 0:
                leave = find_leaving(plans, basis, inverse, enter, first)
                basis[leave] = enter
            elif short:
                of = plans, count, basis, inverse, tau, scale, feasible
                infeasible = raise_limits(*of) or infeasible
                begin_basis(plans, count, basis)
            else:
                break
            inverse, short = invert_basis(plans, basis)
        write_shares(basis, inverse, lasts, arms, shares)
        for j in range(m):
            price[j] = max(y[j], 0.0) / unit[j]
            for i in range(m + 1):
                plain = basis[i] <= m
                near[i, j] = price[j] if plain else asked[basis[i] - m - 1, j]
        return infeasible

    return search
