"""Several costs: a simplex method over a small pool of arms, grown by passes.

Each pass over all arms adds those of best reduced cost, until no reduced cost is
positive. The arms need not be stored: see :func:`solve_policy_by_pricing`.

The simplex method runs on the host, many trials at once. Its variables by number: ``0
.. m - 1`` the slack of each cost, ``m`` the shortfall (by how much all limits would
have to be raised), ``m + 1 + k`` the ``k``-th arm of the pool.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cbandit._core import checks
from cbandit._core.peaks import members, neighbours, peaks_of
from cbandit.errors import CBanditError
from cbandit.search.simplex.programme import (
    EPS,
    FEASIBLE,
    ROUNDING,
    PolicySolution,
    distribution,
    joined,
    limits,
    piece,
    power_of_two,
)

Array = npt.NDArray[Any]

Pool = tuple[Array, Array, Array]
"""Numbers of arms ``(T, n)``, their rewards ``(T, n)`` and costs ``(T, m, n)``."""

Price = Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]

WHOLE = 1024  # with at most so many arms the pool holds them all
CANDIDATES = 32  # arms taken from one pass


def solve_policy_by_pricing(price: Price, m: int, tau: Any) -> PolicySolution:
    """Solve the programme over arms that only ``price`` knows.

    Args:
        price: a function of ``weight (*trials,)``, each 0 or 1, and ``lam >= 0`` of
            shape ``(*trials, m)``, both on the device of ``tau``. It returns the
            numbers ``(*trials, n)`` of one or more arms, their ``u_r (*trials, n)`` and
            ``u_c (*trials, m, n)``, all finite. An arm that maximises ``weight * u_r -
            lam @ u_c`` must be among them; more good arms mean fewer passes.
        m: the number of costs.
        tau: ``(*trials, m)``, or one number for all.
    """
    if m < 1:
        raise CBanditError(f"m must be at least 1; got {m}")
    limit = limits(tau, m)
    trials = tuple(limit.shape[:-1])

    def checked_price(weight: Tensor, lam: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        index, reward, cost = price(weight.view(trials), lam.view(*trials, m))
        n = int(index.shape[-1]) if index.dim() else 0
        for name, value, lead, words in (
            ("index", index, trials, "(*trials, n)"),
            ("u_r", reward, trials, "(*trials, n)"),
            ("u_c", cost, (*trials, m), "(*trials, m, n)"),
        ):
            if n == 0 or tuple(value.shape) != (*lead, n):
                raise CBanditError(
                    f"price must return {name} of shape {words}, n >= 1; got "
                    f"{tuple(value.shape)}"
                )
        checks.finite("u_r of price", reward)
        checks.finite("u_c of price", cost)
        return index.reshape(-1, n), reward.reshape(-1, n), cost.reshape(-1, m, n)

    return joined([priced(checked_price, limit.reshape(-1, m))], trials, limit.device)


def several_costs(reward: Tensor, cost: Tensor, limit: Tensor) -> PolicySolution:
    """Solve by column generation, given ``(T, K)``, ``(T, m, K)`` and ``(T, m)``."""
    count, m, size = cost.shape
    block = neighbours(size)
    if size <= WHOLE:
        numbers = torch.arange(size, device=reward.device).expand(count, size)
        return priced(lambda weight, lam: (numbers, reward, cost), limit, whole=True)

    def price(weight: Tensor, lam: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        # the best arm of each of the best blocks: good arms, far apart
        pieces = weighed(reward, cost, weight, lam, block)
        peaks = torch.cat([peaks_of(score, block) for score in pieces], 1)
        blocks = peaks.topk(min(CANDIDATES, peaks.shape[1]), dim=1).indices
        at, _ = members(blocks, block, size)
        _, r, c = columns(at)
        inside = next(weighed(r, c, weight, lam, r.shape[1]))
        best = inside.view(count, -1, block).argmax(-1)
        at = at.view(count, -1, block).gather(2, best.unsqueeze(2)).squeeze(2)
        return columns(at)

    def columns(at: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        everywhere = at.unsqueeze(1).expand(-1, m, -1)
        return at, reward.gather(1, at), cost.gather(2, everywhere)

    return priced(price, limit)


def priced(price: Price, limit: Tensor, whole: bool = False) -> PolicySolution:
    """Solve by column generation: a simplex method over arms that ``price`` returns.

    Args:
        price: as for :func:`solve_policy_by_pricing`, for ``T`` trials.
        limit: ``(T, m)``.
        whole: whether every call returns every arm.
    """
    count, m = limit.shape
    tau = limit.cpu().numpy().copy()

    def ask(weight: Array, lam: Array) -> Pool:
        arm, r, c = price(back(weight), back(lam))
        r, c = r.detach().double(), c.detach().double()
        return arm.cpu().numpy(), r.cpu().numpy(), c.cpu().numpy()

    def back(value: Array) -> Tensor:
        return torch.as_tensor(value, device=limit.device)

    # begin with the best arm, and the least costly arms of each cost
    answers = [ask(np.ones(count), np.zeros((count, m)))]
    if not whole:
        dearest = [np.tile(row, (count, 1)) for row in np.eye(m)]
        answers += [ask(np.zeros(count), lam) for lam in dearest]
    arm, reward, cost = pooled(answers)
    basis = None
    restart = np.ones(count, dtype=bool)
    infeasible = np.zeros(count, dtype=bool)
    while True:
        delta = excess(reward, cost, tau)
        scale = np.abs(delta).max(2)  # T x m
        unit_r = unit_of(np.abs(np.where(np.isneginf(reward), 0, reward)).max(1))
        # each cost has its own unit, but an infeasible trial has one for all costs, as
        # it minimises the largest excess in the user's numbers
        unit_d = unit_of(scale)
        unit_d = np.where(infeasible[:, None], unit_d.min(1, keepdims=True), unit_d)
        scaled = delta * unit_d[:, :, None]
        fresh = start(scaled, reward)
        basis = fresh if basis is None else np.where(restart[:, None], fresh, basis)
        basis, x, y = solve(reward * unit_r[:, None], scaled, basis)
        short = (basis == m).any(1)  # not feasible yet, so y prices the shortfall
        unit = np.where(short, unit_d.min(1), unit_r)
        with np.errstate(over="ignore"):
            lam = np.maximum(y[:, :m], 0) * unit_d / unit[:, None]
        if not np.isfinite(lam).all():
            raise CBanditError(
                "u_r and u_c must be of scales whose ratio is a number; got about "
                f"{1 / unit_r.min():.0e} and {1 / unit_d.max():.0e}"
            )
        pool = arm, reward, cost
        new = pool if whole else ask(np.where(short, 0.0, 1.0), lam)
        new_arm, new_r, new_c = new
        score = np.where(short[:, None] & ~np.isneginf(new_r), 0.0, new_r)
        score = score - (lam[:, :, None] * excess(new_r, new_c, tau)).sum(1)
        best, upper = score.argmax(1), score.max(1)
        # an arm known before can only be better by rounding
        known = (arm == np.take_along_axis(new_arm, best[:, None], 1)).any(1)
        better = upper * unit - y[:, m] > ROUNDING * (1 + np.abs(y[:, :m]).sum(1))
        better &= ~known
        p, at = shares(x, basis, m)
        mean = (p[:, None] * np.take_along_axis(delta, at[:, None], 2)).sum(2)
        scale = np.maximum(scale, np.abs(tau))
        within = (mean <= FEASIBLE * scale).all(1)
        ended = short & ~better & ~infeasible
        relax = ended & within  # raise limits that are missed by rounding alone
        tau[relax] += (np.maximum(mean, 0) + 4 * EPS * scale)[relax]
        infeasible |= ended & ~within
        restart = ended
        if not (better | restart).any():
            break
        if not whole:
            arm, reward, cost = pooled([pool, new])

    chosen = np.take_along_axis(reward, at, 1)
    value = np.where(p > 0, p * np.where(p > 0, chosen, 0), 0).sum(1)
    worst = mean.max(1)
    gap = upper + np.where(infeasible, worst, -value)
    return PolicySolution(
        distribution=distribution(
            back(np.take_along_axis(arm, at, 1).astype(np.int64)), back(p)
        ),
        value=back(value),
        multiplier=back(lam),
        gap=back(np.where(infeasible & ~short, worst, gap)),
        infeasible=back(infeasible),
        violation=back(np.where(infeasible, worst, 0.0)),
    )


def weighed(
    reward: Tensor, cost: Tensor, weight: Tensor, lam: Tensor, block: int
) -> Iterator[Tensor]:
    """Yield ``weight * reward - lam @ cost`` in pieces ``(T, n)``, from one buffer."""
    rows, m, size = cost.shape
    step = piece(reward, block)
    buffer = reward.new_empty((rows, min(step, size)))
    # a weight of 0 drops the reward; a forbidden arm's cost still forbids it
    searching = (weight == 0).unsqueeze(1)
    some = bool(searching.any())
    for start in range(0, size, step):
        part = slice(start, min(start + step, size))
        score = buffer[:, : part.stop - start].copy_(reward[:, part])
        if some:
            score.masked_fill_(searching, 0.0)
        for j in range(m):
            score.addcmul_(cost[:, j, part], lam[:, j, None], value=-1)
        yield score


# -- the pool --------------------------------------------------------------------------


def pooled(pools: Sequence[Pool]) -> Pool:
    """Return the arms of several pools in one."""
    arm, reward, cost = (np.concatenate(v, -1) for v in zip(*pools, strict=True))
    return arm, reward, cost


def unit_of(scale: Array) -> Array:
    """Return powers of two that scale ``scale`` to about 1."""
    out: Array = power_of_two(torch.from_numpy(scale)).numpy()
    return out


def excess(reward: Array, cost: Array, tau: Array) -> Array:
    """Return costs less their limits, ``(T, m, n)``; 0 for forbidden arms."""
    never = np.isneginf(reward)[:, None, :]
    out: Array = np.where(never, 0.0, cost - tau[:, :, None])
    return out


def shares(x: Array, basis: Array, m: int) -> tuple[Array, Array]:
    """Return probabilities and places in the pool, both ``(T, m + 1)``."""
    p = np.where(basis > m, np.maximum(x, 0), 0)
    return p / p.sum(1, keepdims=True), np.maximum(basis - m - 1, 0)


def start(delta: Array, reward: Array) -> Array:
    """Return a first basis ``(T, m + 1)``: an arm, slacks, and maybe the shortfall."""
    count, m, _ = delta.shape
    worst = np.where(np.isneginf(reward), np.inf, delta.max(1))
    k = worst.argmin(1)
    basis = np.concatenate([np.tile(np.arange(m), (count, 1)), k[:, None] + m + 1], 1)
    over = np.take_along_axis(delta, k[:, None, None], 2)[:, :, 0]
    rows = np.flatnonzero(over.max(1) > 0)
    basis[rows, over.argmax(1)[rows]] = m
    return basis


def solve(reward: Array, delta: Array, basis: Array) -> tuple[Array, Array, Array]:
    """Return the best basis over the pool, its point and its duals, ``(T, m + 1)``.

    The shortfall is minimised while it is in the basis; once out it stays out.
    """
    count, m, n = delta.shape
    rows = np.arange(count)
    columns = np.zeros((count, m + 1, m + 1 + n))
    columns[:, :m, :m] = np.eye(m)
    columns[:, :m, m] = -1
    columns[:, :m, m + 1 :] = delta
    columns[:, m, m + 1 :] = 1
    gain = np.zeros((2, count, m + 1 + n))
    gain[0, :, m + 1 :] = reward
    gain[1, :, m] = -1
    gain[1, :, m + 1 :] = np.where(np.isneginf(reward), -np.inf, 0)
    right = np.zeros((count, m + 1, 1))
    right[:, m] = 1
    basis = basis.copy()
    patience = 50 * (m + 2)
    step = 0
    while True:
        short = (basis == m).any(1)
        now = np.where(short[:, None], gain[1], gain[0])
        square = np.take_along_axis(columns, basis[:, None, :], 2)
        x = np.linalg.solve(square, right)[:, :, 0]
        held = np.take_along_axis(now, basis, 1)
        y = np.linalg.solve(square.swapaxes(1, 2), held[:, :, None])[:, :, 0]
        better = now - (y[:, None, :] @ columns)[:, 0]
        np.put_along_axis(better, basis, -np.inf, 1)
        better[:, m] = -np.inf
        tolerance = ROUNDING * (1 + np.abs(y[:, :m]).sum(1))
        # the steepest variable enters; after many steps the first (Bland), against
        # cycles
        bland = step > patience
        enter = (better > tolerance[:, None] if bland else better).argmax(1)
        go = better[rows, enter] > tolerance
        if not go.any() or step > 20 * patience:
            return basis, x, y
        into = columns[rows, :, enter]
        w = np.linalg.solve(square, into[:, :, None])[:, :, 0]
        falls = w > 1e-13 * np.abs(w).max(1, keepdims=True)
        ratio = np.where(falls, np.maximum(x, 0) / np.where(falls, w, 1), np.inf)
        tied = ratio <= ratio.min(1, keepdims=True) * (1 + 4 * EPS)
        key = np.where(tied, -basis if bland else w, -np.inf)
        key[tied & (basis == m)] = np.inf
        leave = key.argmax(1)
        basis[rows[go], leave[go]] = enter[go]
        step += 1
