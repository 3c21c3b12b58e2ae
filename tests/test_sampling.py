"""Thompson draws have the law they claim.

A draw at ``k`` actions is whitened by the root of the covariance that the dense
reference states. If that is right, the second moments of the whitened draws, ``n``
of them, are those of a standard normal: ``n C_ii`` is chi-square, ``sqrt(n) C_ij``
about normal. Every entry and every mean is tested at 1e-6 over the number of tests
(Bonferroni), so a right engine fails with a probability below 1e-6; the seeds are
fixed.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from inside import (
    Beliefs,
    Joint,
    Part,
    Root,
    Streams,
    estimates,
    in_users_units,
    pivoted_root,
)
from scipy import stats

import cbandit as cb

F64 = torch.float64
RATE = 1e-6


@pytest.fixture
def name(request, monkeypatch):
    """An engine; ``"many"`` is the joint one as it draws over many actions."""
    if request.param != "many":
        return request.param
    monkeypatch.setattr(Joint, "MANY", 0)
    return "joint"


def law(draws: np.ndarray, mean: np.ndarray, covariance: np.ndarray) -> float:
    """The least p-value, times the number of tests, of ``draws (n, k)``."""
    n = len(draws)
    values, vectors = np.linalg.eigh(covariance)
    kept = values > 1e-9 * values.max()
    white = (draws - mean) @ vectors[:, kept] / np.sqrt(values[kept])
    # outside the covariance's range nothing moves
    rest = (draws - mean) @ vectors[:, ~kept]
    assert abs(rest).max(initial=0.0) <= 1e-3 * math.sqrt(values.max())
    r = white.shape[1]
    p = [2 * stats.norm.sf(abs(z)) for z in white.mean(0) * math.sqrt(n)]
    total = (white**2).sum(0)
    p += list(2 * np.minimum(stats.chi2.sf(total, n), stats.chi2.cdf(total, n)))
    moments = white.T @ white / n
    p += [
        2 * stats.norm.sf(abs(moments[i, j]) * math.sqrt(n))
        for i in range(r)
        for j in range(i)
    ]
    # fourth moments: normal, not merely of the right covariance
    fourth = ((white**4).mean(0) - 3) * math.sqrt(n / 96)
    p += list(2 * stats.norm.sf(abs(fourth)))
    return min(p) * len(p)


def test_the_test_itself(rng):
    half = rng.standard_normal((4, 4))
    covariance = half @ half.T
    mean = rng.standard_normal(4)
    draws = rng.multivariate_normal(mean, covariance, 4000)
    assert law(draws, mean, covariance) > RATE
    assert law(draws, mean, 1.15 * covariance) < RATE
    assert law(draws, mean + 0.15 * np.sqrt(np.diag(covariance)), covariance) < RATE
    independent = np.diag(np.diag(covariance))
    assert law(draws, mean, independent) < RATE
    flat = mean + (rng.random((4000, 4)) - 0.5) * math.sqrt(12)
    assert law(flat, mean, np.eye(4)) < RATE


def told(name, actions, case, dense, rng, trials=2, functions=2, rounds=25, **more):
    """Beliefs after some rounds of ragged data, and what the reference knows."""
    gp = cb.GP(case.make(actions.dim), noise=0.02, **more)
    beliefs = Beliefs(
        [gp] * functions, actions, (trials,), F64, torch.device("cpu"), name, True
    )
    standardize = more.get("standardize", False)
    reference = [
        [
            dense(case.values, 0.02, more.get("mean", 0.0), standardize)
            for _ in range(functions)
        ]
        for _ in range(trials)
    ]
    every = list(range(functions))
    for t in range(rounds):
        keys = rng.integers(0, actions.size, trials)
        x = actions.at(torch.as_tensor(keys))
        values = rng.standard_normal((trials, functions))
        wanted = [i == 0 or t % 2 == 0 for i in range(trials)]
        beliefs = beliefs.absorb(
            keys.tolist(), x, [Part(every, torch.as_tensor(values), wanted)]
        )
        for i in range(trials):
            for j in range(functions):
                if wanted[i]:
                    reference[i][j].add(x[i].numpy(), values[i, j])
    return beliefs, reference


def drawn(beliefs, streams, count, at, scale=1.0) -> np.ndarray:
    """``(count, T, F, k)`` estimates at the actions ``at``."""
    out = []
    for _ in range(count):
        parts = []
        for block in beliefs.blocks(streams):
            coefficient = torch.full(block.draw.shape[:2], scale, dtype=F64)
            parts.append(estimates(block.mean, block.draw, coefficient))
        made = torch.cat(parts, -1)[..., at]
        out.append(in_users_units(beliefs.units(), made, made)[0])
    return torch.stack(out).numpy()


def independent(a: np.ndarray, b: np.ndarray) -> float:
    """As :func:`law`, for correlations between two sets of draws ``(n, k)``."""
    n = len(a)
    a, b = ((v - v.mean(0)) / v.std(0) for v in (a, b))
    z = abs(a.T @ b / n).reshape(-1) * math.sqrt(n)
    return float(2 * stats.norm.sf(z.max()) * z.size)


@pytest.mark.parametrize("name", ["joint", "many", "product"], indirect=True)
@pytest.mark.parametrize("kernel", ["rbf", "product-matern", "periodic", "scaled-ard"])
@pytest.mark.parametrize("rounds", [0, 25])
def test_exact_draws(name, kernel, rounds, cases, dense, rng):
    actions = cb.ProductGrid([torch.linspace(0, 1, n, dtype=F64) for n in (6, 7)])
    case = cases[kernel]
    beliefs, reference = told(name, actions, case, dense, rng, rounds=rounds)
    at = rng.choice(42, 5, replace=False)
    draws = drawn(beliefs, Streams(3, 2), 3000, at)
    points = actions.at(torch.as_tensor(at)).numpy()
    tests = []
    for i in range(2):
        for j in range(2):
            mean, covariance = reference[i][j].joint(points)
            tests.append(law(draws[:, i, j], mean, covariance))
    tests.append(independent(draws[:, 0, 0], draws[:, 0, 1]))
    tests.append(independent(draws[:, 0, 0], draws[:, 1, 0]))
    tests.append(independent(draws[:-1, 0, 0], draws[1:, 0, 0]))
    assert min(tests) * len(tests) > RATE


@pytest.mark.parametrize("name", ["joint", "many", "product"], indirect=True)
def test_a_wrong_covariance_is_seen(name, cases, dense, rng):
    actions = cb.ProductGrid([torch.linspace(0, 1, n, dtype=F64) for n in (6, 7)])
    beliefs, reference = told(name, actions, cases["rbf"], dense, rng)
    at = rng.choice(42, 5, replace=False)
    draws = drawn(beliefs, Streams(3, 2), 3000, at)
    points = actions.at(torch.as_tensor(at)).numpy()
    mean, covariance = reference[0][0].joint(points)
    # a noise variance 1.5 times too large, an observation missing, a scale
    wrong = dense(cases["rbf"].values, 0.03)
    wrong.x, wrong.y = list(reference[0][0].x), list(reference[0][0].y)
    wrong.own = list(reference[0][0].own)
    assert law(draws[:, 0, 0], mean, wrong.joint(points)[1]) < RATE
    for _ in range(5):
        reference[0][0].forget()
    assert law(draws[:, 0, 0], mean, reference[0][0].joint(points)[1]) < RATE
    assert law(draws[:, 0, 0], mean, 1.2 * covariance) < RATE
    assert law(draws[:, 1, 0], mean, covariance) < RATE


@pytest.mark.parametrize("name", ["joint", "many", "product"], indirect=True)
def test_beta_scales_the_deviation(name, cases, dense, rng):
    actions = cb.ProductGrid([torch.linspace(0, 1, n, dtype=F64) for n in (6, 7)])
    beliefs, reference = told(name, actions, cases["rbf"], dense, rng)
    at = rng.choice(42, 4, replace=False)
    draws = drawn(beliefs, Streams(4, 2), 2500, at, scale=3.0)
    points = actions.at(torch.as_tensor(at)).numpy()
    mean, covariance = reference[1][1].joint(points)
    assert law(draws[:, 1, 1], mean, 9 * covariance) > RATE


@pytest.mark.slow
@pytest.mark.parametrize("more", [{"mean": 3.0}, {"standardize": True}])
@pytest.mark.parametrize("name", ["joint", "many", "product"], indirect=True)
def test_draws_in_the_users_units(name, more, cases, dense, rng):
    actions = cb.ProductGrid([torch.linspace(0, 1, n, dtype=F64) for n in (6, 7)])
    beliefs, reference = told(name, actions, cases["rbf"], dense, rng, **more)
    at = rng.choice(42, 4, replace=False)
    draws = drawn(beliefs, Streams(5, 2), 2500, at)
    points = actions.at(torch.as_tensor(at)).numpy()
    for i in range(2):
        mean, covariance = reference[i][0].joint(points)
        assert law(draws[:, i, 0], mean, covariance) > RATE


@pytest.mark.parametrize("name", ["joint", "many"], indirect=True)
def test_draws_of_arms_given_by_a_covariance_of_low_rank(name, dense, rng):
    half = rng.standard_normal((20, 4))
    table = half @ half.T
    actions = cb.Finite(covariance=table)
    gp = cb.GP(noise=0.05)
    beliefs = Beliefs([gp], actions, (), F64, torch.device("cpu"), name, True)
    reference = dense(table, 0.05)
    for key in rng.integers(0, 20, 15).tolist():
        y = float(rng.standard_normal())
        x = actions.at(torch.tensor([key]))
        beliefs = beliefs.absorb(
            [key], x, [Part([0], torch.tensor([[y]], dtype=F64), [True])]
        )
        reference.add(x[0].numpy(), y)
    at = [0, 3, 7, 11, 19]
    draws = drawn(beliefs, Streams(6), 3000, at)[:, 0, 0]
    mean, covariance = reference.joint(np.array(at)[:, None])
    assert law(draws, mean, covariance) > RATE


@pytest.mark.slow
@pytest.mark.parametrize("name", ["factor", "stream"])
@pytest.mark.parametrize("kernel", ["rbf", "matern52", "matern12", "linear"])
def test_draws_by_random_features(name, kernel, cases, dense, rng):
    # The prior is made of 512 frequencies drawn anew each time: unconditionally its
    # covariance is right, so after n draws only the sampling error is left. At the
    # posterior, features and correction meet, and moments agree to a tolerance: 5 % of
    # the prior deviation in the mean, 8 % of the prior variance in the covariance
    # (4000 draws: sampling error alone is 1.6 % and 2.2 %).
    actions = cb.Finite(torch.as_tensor(rng.random((40, 2))))
    case = cases[kernel]
    beliefs, reference = told(name, actions, case, dense, rng, trials=1, functions=1)
    at = rng.choice(40, 5, replace=False)
    draws = drawn(beliefs, Streams(7, 1), 4000, at)[:, 0, 0]
    points = actions.at(torch.as_tensor(at)).numpy()
    mean, covariance = reference[0][0].joint(points)
    prior = np.diagonal(case.values(points, points)).max()
    assert abs(draws.mean(0) - mean).max() <= 0.05 * math.sqrt(prior)
    assert abs(np.cov(draws.T) - covariance).max() <= 0.08 * prior
    if kernel == "linear":  # exact there
        assert law(draws, mean, covariance) > RATE


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "name"),
    [(kernel, "factor") for kernel in ("rbf", "matern12", "matern32", "matern52")]
    + [("product-matern", "stream"), ("scaled", "stream")],
)
def test_features_have_the_priors_covariance(kernel, name, cases, dense, rng):
    actions = cb.Finite(torch.as_tensor(rng.random((30, 2))))
    case = cases[kernel]
    beliefs, _ = told(name, actions, case, dense, rng, trials=1, functions=1, rounds=0)
    at = rng.choice(30, 6, replace=False)
    draws = drawn(beliefs, Streams(8, 1), 2500, at)[:, 0, 0]
    points = actions.at(torch.as_tensor(at)).numpy()
    values = case.values(points, points)
    # 2500 draws: an entry's sampling error is below 2.9 %; 5 of them
    assert abs(np.cov(draws.T) - values).max() <= 0.145 * values.max()


# -- the same draws however the batch is split -----------------------------------------


@pytest.mark.parametrize("name", ["joint", "many", "product", "factor"], indirect=True)
@pytest.mark.parametrize("own", ["nothing", "points", "covariance", "kernel"])
def test_a_trial_draws_the_same_alone(name, own, cases, rng):
    if name != "joint" and own == "covariance":
        pytest.skip("arms without coordinates are drawn by the joint engine")
    if name == "product" and own == "points":
        pytest.skip("a grid has no points of its own a trial")
    from gpytorch import kernels as gpk

    points = torch.as_tensor(np.sort(rng.random((3, 25, 1)), 1))
    halves = [rng.standard_normal((25, r)) for r in (3, 9, 25)]
    tables = torch.as_tensor(np.stack([h @ h.T for h in halves]))
    scales = torch.tensor([0.05, 0.3, 2.0], dtype=F64)
    world = rng.standard_normal((3, 900, 2))

    def run(numbers: range) -> torch.Tensor:
        part = slice(numbers[0], numbers[-1] + 1)
        if own == "covariance":
            actions, kernel = cb.Finite(covariance=tables[part]), None
        else:
            kernel = gpk.RBFKernel()
            if own == "kernel":
                kernel = gpk.RBFKernel(batch_shape=torch.Size([len(numbers)]))
            kernel = kernel.double()
            chosen = scales[part].view(-1, 1, 1) if own == "kernel" else scales[1]
            kernel.lengthscale = chosen
            axis = torch.linspace(0, 1, 30, dtype=F64)
            actions = cb.ProductGrid([axis, axis[::3]])
            if own == "points" or name == "factor":
                actions = cb.Finite(points[part])
        gp = cb.GP(kernel, noise=0.01)
        policy = cb.CKB(
            actions,
            reward=gp,
            costs=gp,
            explore=cb.TS(1.0),
            step=0.2,
            cap=3.0,
            engine=name,
            trials=numbers,
            seed=11,
        )
        picked = []
        for _ in range(40):
            choice = policy.ask()
            seen = np.stack(
                [world[i, int(k)] for i, k in zip(numbers, choice.index, strict=True)]
            )
            policy.tell(choice, reward=seen[:, 0], cost=seen[:, 1])
            picked.append(choice.index)
        return torch.stack(picked, -1)

    whole = run(range(3))
    assert torch.equal(whole, torch.cat([run(range(i, i + 1)) for i in range(3)]))
    assert torch.equal(whole, torch.cat([run(range(1)), run(range(1, 3))]))
    assert len({tuple(row) for row in whole.tolist()}) == 3


@pytest.mark.parametrize("size", [1, 2, 3, 10, 51])
@pytest.mark.parametrize("even", [True, False])
def test_a_root_of_an_axis_and_its_products(size, even):
    x = torch.linspace(0, 1, size, dtype=torch.float64)
    x = x if even else x.square()
    gap = x.unsqueeze(-1) - x
    covariance = torch.stack(
        [(-gap.abs() / 0.2).exp(), (-0.5 * (gap / 0.2) ** 2).exp()]
    )
    root = Root.of(covariance, even)
    assert (root.matrix @ root.matrix.mT - covariance).abs().max() < 1e-14
    z = torch.randn(
        2, 3, root.matrix.shape[-1], 4, dtype=torch.float64, generator=torch.Generator()
    )
    off = root.times(z) - torch.einsum("tnr,tfrc->tfnc", root.matrix, z)
    assert off.abs().max() < 1e-13


def test_a_pivoted_root_is_a_root_whatever_the_rank(rng):
    x = torch.from_numpy(rng.random((60, 3)))
    gaps = torch.cdist(x, x).square()
    wide, thin = (-20 * gaps).exp(), (-0.5 * x[:, :1].sub(x[:, :1].mT).square()).exp()
    covariances = torch.stack([4 * wide, thin, torch.zeros_like(thin)])
    roots = pivoted_root(covariances)
    assert (roots @ roots.mT - covariances).abs().max() <= 1e-13
    for covariance, root in zip(covariances, roots, strict=True):
        alone = pivoted_root(covariance)  # the last columns: those that draws go by
        rank = alone.shape[-1]
        assert torch.equal(root[:, -rank:], alone)
        assert not root[:, :-rank].any()
    assert pivoted_root(thin).shape[-1] < 20
