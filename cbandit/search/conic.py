"""Linear programmes over the simplex under second-order cones, by Clarabel.

Clarabel is an optional dependency (``pip install 'cbandit[conic]'``). It is called
without a modelling layer: a programme of a hundred arms takes one millisecond, not ten.
"""

from __future__ import annotations

from types import ModuleType

import numpy as np
import numpy.typing as npt
import scipy.sparse

from cbandit.errors import MissingExtraError

Array = npt.NDArray[np.float64]


def needed() -> ModuleType:
    """Return Clarabel, or raise an error that says how to get it."""
    try:
        import clarabel  # type: ignore[import-untyped]
    except ImportError:
        raise MissingExtraError(
            "OPLB solves second-order-cone programmes with Clarabel, which is not "
            "installed: pip install 'cbandit[conic]'"
        ) from None
    module: ModuleType = clarabel
    return module


CLOSE = 1e-10  # tolerance of the solver, and of one more action's gain in reward
FIRST, ENTER = 24, 8  # actions in the first programme, and actions that enter at once


class SafePolicies:
    """Distributions over ``K`` actions with ``<x_pi, w_j> + ||A_j x_pi|| <= tau_j``.

    A solution has few actions. So a programme begins with a few; actions that are worth
    more at its prices enter until there are none. They stay for the next programme.

    Args:
        points: the actions, ``(K, d)``.
        w: the coefficients, ``(m, d)``.
        root: ``A``, ``(m, d, d)``, multiplied by the norm's factor.
        tau: the limits, ``(m,)``.
    """

    def __init__(self, points: Array, w: Array, root: Array, tau: Array) -> None:
        clarabel = needed()
        count, dim = points.shape
        rows, right = [np.ones((1, count))], [np.ones(1)]
        excess = np.full(count, -np.inf)
        for w_j, root_j, tau_j in zip(w, root, tau, strict=True):
            # (tau - <x, w>, A x) in the second-order cone
            cost, image = points @ w_j, points @ root_j.T
            rows += [cost[None], -image.T]
            right += [np.array([tau_j]), np.zeros(dim)]
            over = cost + np.linalg.norm(image, axis=-1) - tau_j
            excess = np.maximum(excess, over)
        self.points = points
        self._rows, self._right = np.concatenate(rows), np.concatenate(right)
        self._cones = [clarabel.SecondOrderConeT(1 + dim)] * len(tau)
        self._clarabel = clarabel
        self._settings = clarabel.DefaultSettings()
        self._settings.verbose = False
        for name in ("tol_gap_abs", "tol_gap_rel", "tol_feas"):
            setattr(self._settings, name, CLOSE)
        self._inside = np.zeros(count, dtype=bool)  # the actions in the programme
        self._enter(np.argsort(excess, kind="stable")[:FIRST])

    def best(self, theta: Array) -> Array | None:
        """Return the distribution ``(K,)`` of largest ``<x_pi, theta>``, if any."""
        reward = self.points @ theta
        close = CLOSE * (1 + np.abs(reward).max())
        new = np.array([reward.argmax()])
        while True:
            if not self._inside[new].all():
                self._enter(new)
            answer = self._solved(reward[self._some])
            if answer is None:
                if self._inside.all():
                    return None
                new = np.arange(len(reward))
                continue
            share, price = answer
            gain = reward - price @ self._rows
            gain[self._some] = 0.0
            new = np.argsort(-gain, kind="stable")[:ENTER]
            new = new[gain[new] > close]
            if not len(new):
                break
        share = share.clip(0.0)
        share[share < 1e-9] = 0.0  # interior points leave traces on all actions
        pi = np.zeros_like(reward)
        pi[self._some] = share / share.sum()
        return pi

    def _enter(self, new: npt.NDArray[np.int64]) -> None:
        """Add actions to the programme."""
        self._inside[new] = True
        self._some = self._inside.nonzero()[0]
        count, clarabel = len(self._some), self._clarabel
        rows = np.concatenate([self._rows[:, self._some], -np.eye(count)])
        cones = [clarabel.ZeroConeT(1), *self._cones]
        self._programme = (
            scipy.sparse.csc_matrix(rows),
            np.concatenate([self._right, np.zeros(count)]),
            [*cones, clarabel.NonnegativeConeT(count)],
        )
        self._square = scipy.sparse.csc_matrix((count, count))

    def _solved(self, reward: Array) -> tuple[Array, Array] | None:
        """Return shares ``(n,)`` of the programme's actions, and its rows' prices."""
        solution = self._clarabel.DefaultSolver(
            self._square, -reward, *self._programme, self._settings
        ).solve()
        if str(solution.status) not in ("Solved", "AlmostSolved"):
            return None
        return np.asarray(solution.x), np.asarray(solution.z)[: len(self._right)]
