"""OPLB's ascent against a dense grid over the directions of what is feasible."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from inside import SafePolicies, best_mixture
from scipy.spatial import ConvexHull

DIRECTIONS = {1: 2, 2: 20_000, 3: 60_000}


def programme(seed, d):
    """A round as it may come: actions, estimates, ellipsoids, limits."""
    g = np.random.default_rng(seed)
    k = int(g.integers(d + 2, 14))
    x = g.standard_normal((k, d))
    x *= g.random((k, 1)) ** 0.3 / np.linalg.norm(x, axis=1, keepdims=True)
    x[0] = 0.0
    seen = 0.5 * g.standard_normal((int(g.integers(0, 40)), d))
    root = np.linalg.cholesky(np.linalg.inv(np.eye(d) + seen.T @ seen)).T
    m, beta = int(g.integers(1, 3)), g.uniform(0.3, 3.0)
    w, tau = 0.6 * g.standard_normal((1 + m, d)), g.uniform(0.1, 0.8, m)
    inflated = (1 + 2 / tau.min()) * beta
    return x, w, np.stack([inflated * root, *([beta * root] * m)]), tau, x[0]


def value(w, root, x):
    return x @ w + np.linalg.norm(x @ root.T, axis=-1)


@cache
def directions(d, count):
    if d == 1:
        return np.array([[1.0], [-1.0]])
    if d == 2:
        turn = np.linspace(0, 2 * np.pi, count, endpoint=False)
        return np.stack([np.cos(turn), np.sin(turn)], 1)
    i = np.arange(count) + 0.5  # Fibonacci's spiral
    up, turn = 1 - 2 * i / count, np.pi * (1 + 5**0.5) * i
    flat = np.sqrt(1 - up**2)
    return np.stack([np.cos(turn) * flat, np.sin(turn) * flat, up], 1)


def on_the_grid(x, w, roots, tau):
    """The best value over feasible means, which surround the safe action 0."""
    d = x.shape[1]
    sides = None if d == 1 else ConvexHull(x).equations
    way = x[1:] / np.linalg.norm(x[1:], axis=1, keepdims=True)
    way = np.concatenate([directions(d, DIRECTIONS[d]), way])
    parts = np.array_split(way, 1 + len(way) // 2000)  # which stay in a cache
    return max(0.0, *(along(part, x, sides, w, roots, tau) for part in parts))


def along(way, x, sides, w, roots, tau):
    """The best value along some directions: where the actions' hull or a limit ends."""
    if sides is None:
        far = np.where(way[:, 0] > 0, x.max(), -x.min())
    else:
        slope = way @ sides[:, :-1].T
        with np.errstate(divide="ignore", invalid="ignore"):
            end = np.maximum(-sides[:, -1], 0) / slope
        far = np.where(slope > 1e-12, end, np.inf).min(1)
    for w_j, root_j, tau_j in zip(w[1:], roots[1:], tau, strict=True):
        cost = value(w_j, root_j, way)
        with np.errstate(divide="ignore"):
            far = np.minimum(far, np.where(cost > 0, tau_j / cost, np.inf))
    return (far * value(w[0], roots[0], way)).max()


def short(d, seeds):
    """Rounds in which the ascent is below the grid's optimum by more than 1e-6."""
    pytest.importorskip("clarabel")
    out = []
    for seed in seeds:
        given = programme(seed, d)
        x, w, roots, tau, _ = given
        pi = best_mixture("ascent", *given)
        mean = pi @ x
        for w_j, root_j, tau_j in zip(w[1:], roots[1:], tau, strict=True):
            # a solver's rounding; the policy takes it back afterwards
            assert value(w_j, root_j, mean) <= tau_j + 1e-7
        gap = on_the_grid(x, w, roots, tau) - value(w[0], roots[0], mean)
        if gap > 1e-6:
            out.append((seed, gap))
    return out


@pytest.mark.parametrize(
    ("d", "seeds"), [(1, range(20)), (2, [*range(20), 194, 287]), (3, [0, 1, 2, 338])]
)
def test_the_ascent_finds_the_grids_optimum(d, seeds):
    # from the vertices and the safe action alone, 194, 287 and 338 are missed
    assert short(d, seeds) == []


@pytest.mark.slow
@pytest.mark.parametrize(("d", "count"), [(1, 500), (2, 300), (3, 200)])
def test_the_ascent_finds_the_grids_optimum_in_hundreds_of_rounds(d, count):
    assert short(d, range(count)) == []


@pytest.mark.parametrize("m", [1, 2])
def test_many_actions_are_as_good_as_the_whole_programme(m):
    """The values are those of cvxpy's programme over all 300 actions."""
    pytest.importorskip("clarabel")
    cvxpy = pytest.importorskip("cvxpy")
    g = np.random.default_rng(m)
    x = g.standard_normal((300, 4)) / 2
    w, tau = 0.3 * g.standard_normal((m, 4)), np.full(m, 0.4)
    root = 0.3 * g.standard_normal((m, 4, 4))
    policies, share = SafePolicies(x, w, root, tau), cvxpy.Variable(300, nonneg=True)
    theta, middle, bound = cvxpy.Parameter(4), x.T @ share, 0
    limits = [
        w_j @ middle + cvxpy.norm(root_j @ middle) <= tau_j
        for w_j, root_j, tau_j in zip(w, root, tau, strict=True)
    ]
    whole = cvxpy.Problem(cvxpy.Maximize(theta @ middle), [sum(share) == 1, *limits])
    for coefficients in g.standard_normal((12, 4)):
        pi = policies.best(coefficients)
        mean, theta.value = pi @ x, coefficients
        cost = [value(w_j, root_j, mean) for w_j, root_j in zip(w, root, strict=True)]
        assert (cost <= tau + 1e-7).all()
        assert pi.sum() == pytest.approx(1)
        whole.solve(solver="CLARABEL", tol_gap_abs=1e-9, tol_gap_rel=1e-9)
        assert coefficients @ mean == pytest.approx(whole.value, abs=1e-7)
        bound += (cost > tau - 1e-6).any()
    assert bound > 6
    # an empty one is found empty, however few it began with
    assert SafePolicies(x + 9, w, root, tau - 99).best(coefficients) is None


def test_a_round_takes_a_few_programmes_for_each_start(monkeypatch):
    """With 51 actions in ten dimensions only the best of 29 starts are climbed from."""
    solved, best = [0], SafePolicies.best

    def counted(self, theta):
        solved[0] += 1
        return best(self, theta)

    monkeypatch.setattr(SafePolicies, "best", counted)
    g = np.random.default_rng(0)
    for _ in range(2):
        x = g.standard_normal((51, 10))
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        x[0] = 0.0
        seen, w = 0.5 * g.standard_normal((20, 10)), 0.1 * g.standard_normal((2, 10))
        root = np.linalg.cholesky(np.linalg.inv(np.eye(10) + seen.T @ seen)).T
        given = x, w, np.stack([10 * root, 2 * root]), np.array([0.5]), x[0]
        solved[0] = 0
        reached = value(w[0], given[2][0], best_mixture("ascent", *given) @ x)
        assert solved[0] < 200
        edge = value(w[0], given[2][0], best_mixture("l1", *given) @ x)
        assert reached >= edge - 1e-9
