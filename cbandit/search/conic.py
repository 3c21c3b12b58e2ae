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


class SafePolicies:
    """Distributions over ``K`` actions with ``<x_pi, w_j> + ||A_j x_pi|| <= tau_j``.

    Args:
        points: the actions, ``(K, d)``.
        w: ``(m, d)``.
        root: ``A``, ``(m, d, d)``, the factor of the norm included.
        tau: ``(m,)``.
    """

    def __init__(self, points: Array, w: Array, root: Array, tau: Array) -> None:
        clarabel = needed()
        count, dim = points.shape
        rows = [np.ones((1, count)), -np.eye(count)]
        right = [np.ones(1), np.zeros(count)]
        cones = [clarabel.ZeroConeT(1), clarabel.NonnegativeConeT(count)]
        for w_j, root_j, tau_j in zip(w, root, tau, strict=True):
            # (tau - <x, w>, A x) in the second-order cone
            rows += [(points @ w_j)[None], -(points @ root_j.T).T]
            right += [np.array([tau_j]), np.zeros(dim)]
            cones.append(clarabel.SecondOrderConeT(1 + dim))
        self.points = points
        self._rows = scipy.sparse.csc_matrix(np.concatenate(rows))
        self._right, self._cones = np.concatenate(right), cones
        self._square = scipy.sparse.csc_matrix((count, count))
        self._solver = clarabel.DefaultSolver
        self._settings = clarabel.DefaultSettings()
        self._settings.verbose = False
        for name in ("tol_gap_abs", "tol_gap_rel", "tol_feas"):
            setattr(self._settings, name, 1e-10)
        self._done = ("Solved", "AlmostSolved")

    def best(self, theta: Array) -> Array | None:
        """Return the policy of largest ``<x_pi, theta>``, ``(K,)``, if there is any."""
        solution = self._solver(
            self._square,
            -(self.points @ theta),
            self._rows,
            self._right,
            self._cones,
            self._settings,
        ).solve()
        if str(solution.status) not in self._done:
            return None
        pi = np.asarray(solution.x).clip(0.0)
        pi[pi < 1e-9] = 0.0  # interior points leave a trace on every action
        out: Array = pi / pi.sum()
        return out
