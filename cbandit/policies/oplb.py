"""OPLB: a distribution over vectors each round, within its limits in expectation.

As LC-LUCB (:mod:`cbandit.policies.lclucb`), with the mean ``x_pi`` of a distribution in
place of an action:

    max_pi V_r(x_pi) = <x_pi, theta> + alpha_r beta ||x_pi||_{Sigma^-1}
    subject to V_c(x_pi) <= tau, pi over this round's finite set

then draw an action from ``pi``, observe, update. The objective is convex, so the
programme is hard in general. With ``theta`` fixed it is a second-order-cone programme:

``solver="l1"``: the ellipsoid around ``theta`` is enclosed in the ball ``||Sigma^{1/2}
(theta' - theta)||_1 <= sqrt(d) alpha_r beta``, whose ``2 d`` vertices are tried in
turn: exact for that ball, still optimistic, regret larger by a factor of ``sqrt(d)``.
``solver="ascent"``: from these vertices and from the safe action, ``pi`` and the best
``theta'`` of the ellipsoid for it are found in turn until neither gains.

Either way the policy is feasible: what the solver's rounding steps over is taken back
by mixing with the safe action.

A. Pacchiano, M. Ghavamzadeh, P. Bartlett, Contextual bandits with stage-wise
constraints, 2024, Algorithms 2 and 5.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cbandit import search
from cbandit._core import checks, devices
from cbandit.actions import Star
from cbandit.beliefs.linear import Linear
from cbandit.choice import Distribution
from cbandit.errors import CBanditError
from cbandit.policies.decision import Decision
from cbandit.policies.safe.action import Safe
from cbandit.policies.safe.linear import LinearPolicy
from cbandit.policies.safe.stagewise import drawn, must_hold
from cbandit.search.conic import Array, SafePolicies, needed

__all__ = ["OPLB"]


class OPLB(LinearPolicy):
    """Optimism and pessimism over distributions on finite sets of vectors.

    Args:
        actions: a :class:`~cbandit.Finite` set of moderate size; ``ask(actions=...)``
            takes another set in every round, which must hold the safe action too.
        reward: the belief about the reward, a :class:`~cbandit.Linear`.
        costs: the belief about the cost, or a list of them.
        safe: the safe action; its reward and cost where they are known.
        delta: the share of runs in which a bound may fail.
        alpha: ``alpha_r``, or ``(alpha_r, alpha_c)``; the theorem's unless given.
        solver: ``"l1"`` or ``"ascent"``.
        beta: the width, a number or a callable of the round, in place of the theory's.
        largest: ``r_max``, the largest possible mean reward, 1 unless given.
        common: ``thresholds``, ``horizon``, ``seed``, ``trials``, ``device``,
            ``dtype``.
    """

    name = "OPLB"

    def __init__(
        self,
        actions: Any,
        *,
        reward: Linear,
        costs: Any,
        safe: Safe | None = None,
        delta: float = 0.1,
        alpha: Any = None,
        solver: str = "ascent",
        beta: Any = None,
        largest: Any = None,
        **common: Any,
    ) -> None:
        checks.one_of("solver", solver, "l1", "ascent")
        if isinstance(actions, Star):
            raise CBanditError(
                "actions must be a Finite set: a distribution over the centre and the "
                "tips of a Star does all that its segments can"
            )
        super().__init__(
            actions, reward, costs, safe, delta, alpha, beta, largest, **common
        )
        self.solver = solver
        needed()

    def _decide(
        self, t: int, asked: Any, mask: Tensor | None, observed_costs: Any
    ) -> Decision:
        if isinstance(asked, Star):
            raise CBanditError("actions of this round must be a Finite set; got a Star")
        tau = self._limits(t)
        infeasible = self._safe.check(tau)
        at = self._at_safe(asked)
        assert at is not None
        must_hold(mask, at)
        alpha_r, alpha_c = self._alpha(tau)
        width = self._width(t) * torch.cat(
            [alpha_r.unsqueeze(-1), alpha_c.unsqueeze(-1).expand(-1, self.m)], -1
        )
        points = torch.cat([p for _, p in self._stretches(asked)], 1)
        w, root = self._ridge.solve()
        root, safe = root * width[..., None, None], self._safe
        # the programmes are solved on the host: all they need in one look
        known = points, w, root, tau, safe.x, safe.cost, at, safe.warm
        points, w, root, tau, x0, c0, here, warm = devices.host(*known)
        points = points.expand(self._size, -1, -1)
        allowed = None if mask is None else mask.cpu()
        shares = torch.zeros(points.shape[:2], dtype=torch.float64)
        for i in [i for i, known in enumerate(warm.tolist()) if known]:
            some = slice(None) if allowed is None else allowed[i % len(allowed)]
            held = (points[i, some], w[i], root[i], tau[i], x0[i])
            best = self._best(*(v.numpy() for v in held))
            if best is not None:
                shares[i, some] = torch.as_tensor(best)
        shares = self._within_limits(shares, points, w, root, tau, x0, c0, here)
        number = torch.arange(shares.shape[1]).expand_as(shares)
        played = (devices.put(v, self.device) for v in _played(number, shares))
        return drawn(Distribution(*played), safe, self._streams, infeasible, at)

    def _best(
        self, points: Array, w: Array, root: Array, tau: Array, x0: Array
    ) -> Array | None:
        """The distribution ``(K,)`` found best in one trial; ``None``: none is safe."""
        safe = SafePolicies(points, w[1:], root[1:], tau)
        dim = points.shape[1]
        # Sigma^{-1} = A' A, whatever root A is: its symmetric one spans the vertices
        inverse = root[0].T @ root[0]
        value, vectors = np.linalg.eigh(inverse)
        symmetric = (vectors * np.sqrt(value.clip(0))) @ vectors.T
        vertices = w[0] + math.sqrt(dim) * np.concatenate([symmetric, -symmetric])

        def towards(x: Array) -> tuple[Array, float]:
            """The ellipsoid's best ``theta'`` for ``x``, and ``V_r(x)``."""
            length = float(np.linalg.norm(root[0] @ x))
            step = inverse @ x / length if length > 0 else np.zeros(dim)
            return w[0] + step, float(w[0] @ x) + length

        if self.solver == "l1":
            tried = [
                (pi, float(pi @ (points @ v)))
                for v in vertices
                if (pi := safe.best(v)) is not None
            ]
            return max(tried, key=lambda one: one[1])[0] if tried else None
        best, reached = None, -math.inf
        for theta in [towards(x0)[0], *vertices]:
            value_now = -math.inf
            while (pi := safe.best(theta)) is not None:
                theta, value_new = towards(points.T @ pi)
                if value_new > reached:
                    best, reached = pi, value_new
                if value_new <= value_now + 1e-9 * (1 + abs(value_now)):
                    break
                value_now = value_new
        return best

    def _within_limits(
        self,
        shares: Tensor,
        points: Tensor,
        w: Tensor,
        root: Tensor,
        tau: Tensor,
        x0: Tensor,
        c0: Tensor,
        at: Tensor,
    ) -> Tensor:
        """``shares`` mixed with the safe action as far as ``V_c <= tau`` needs."""
        x0 = x0.unsqueeze(1)  # T x 1 x d
        way = torch.einsum("tk,tkd->td", shares, points).unsqueeze(1) - x0
        if self._safe.given[1]:
            end = x0 + way
            cost = (w[:, 1:] @ end.mT) + (root[:, 1:] @ end.mT.unsqueeze(1)).norm(
                dim=-2
            )
            a = search.furthest(c0.unsqueeze(-1), cost, tau.unsqueeze(-1))
        else:
            start, step = (root[:, 1:] @ v.mT.unsqueeze(1) for v in (x0, way))
            a = search.safe_interval(
                tau.unsqueeze(-1) - w[:, 1:] @ x0.mT,
                w[:, 1:] @ way.mT,
                torch.ones_like(tau).unsqueeze(-1),
                start.square().sum(-2),
                (start * step).sum(-2),
                step.square().sum(-2),
            )[..., 1]
        empty = shares.sum(-1, keepdim=True) == 0
        mixed = shares * torch.where(empty, 0.0, a)
        rest = 1 - mixed.sum(-1, keepdim=True)
        return mixed.scatter_add(-1, at.unsqueeze(-1), rest.clamp_min(0.0))


def _played(number: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
    """Only actions with a share, by number, zero-padded."""
    width = int((shares > 0).sum(-1).max())
    order = (shares > 0).to(torch.int8).argsort(dim=-1, descending=True, stable=True)
    order = order[:, :width]
    probability = shares.gather(-1, order)
    return number.gather(-1, order).masked_fill(probability <= 0, 0), probability
