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

import gpytorch
import numpy as np
import pytest
import torch
from gpytorch import kernels as gpk
from inside import (
    Beliefs,
    Covariance,
    Joint,
    Observation,
    Prior,
    Root,
    Streams,
    estimates,
    in_users_units,
    lots,
    pivoted_root,
    prior_root,
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
    beliefs = Beliefs.start(
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
        values = torch.as_tensor(values)
        row = Observation(every, keys.tolist(), x, values, wanted)
        beliefs = beliefs.absorb([row])
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


@pytest.mark.parametrize(
    ("name", "kernel", "rounds"),
    [
        *(("product", kernel, 25) for kernel in ("product-matern", "scaled-ard")),
        # these two see a kernel's values alone
        *((name, "rbf", rounds) for name in ("joint", "many") for rounds in (0, 25)),
        ("product", "rbf", 0),
    ],
    indirect=["name"],
)
def test_exact_draws(name, kernel, rounds, cases, dense, rng):
    actions = cb.ProductGrid([torch.linspace(0, 1, n, dtype=F64) for n in (6, 7)])
    case = cases[kernel]
    beliefs, reference = told(name, actions, case, dense, rng, rounds=rounds)
    at = rng.choice(42, 5, replace=False)
    draws = drawn(beliefs, Streams(3, 2), 1500, at)
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
    draws = drawn(beliefs, Streams(4, 2), 1500, at, scale=3.0)
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
    draws = drawn(beliefs, Streams(5, 2), 1500, at)
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
    beliefs = Beliefs.start([gp], actions, (), F64, torch.device("cpu"), name, True)
    reference = dense(table, 0.05)
    for key in rng.integers(0, 20, 15).tolist():
        y = float(rng.standard_normal())
        x = actions.at(torch.tensor([key]))
        told = torch.tensor([[y]], dtype=F64)
        beliefs = beliefs.absorb([Observation([0], [key], x, told, [True])])
        reference.add(x[0].numpy(), y)
    at = [0, 3, 7, 11, 19]
    draws = drawn(beliefs, Streams(6), 3000, at)[:, 0, 0]
    mean, covariance = reference.joint(np.array(at)[:, None])
    assert law(draws, mean, covariance) > RATE


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kernel"),
    [
        ("factor", "rbf"),
        ("factor", "linear"),
        ("stream", "matern52"),
        ("stream", "matern12"),
    ],
)
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


# -- by random features: given the frequencies a draw is normal with nearly the right
# covariance; over all frequencies its covariance is exact. So each trial, which has
# frequencies of its own, gives one draw, and the law is tested over the trials.

MANY = 1500


def scaled(kernel, size):
    out = gpk.ScaleKernel(kernel).double()
    out.outputscale = torch.tensor(size, dtype=F64)
    return out


def of_length(kernel, size):
    kernel = kernel.double()
    kernel.lengthscale = torch.tensor(size, dtype=F64)
    return kernel


def linear(size):
    kernel = gpk.LinearKernel().double()
    kernel.variance = torch.tensor(size, dtype=F64)
    return kernel


def constant(size):
    kernel = gpk.ConstantKernel().double()
    kernel.constant = torch.tensor(size, dtype=F64)
    return kernel


def distances(x, y, size):
    return np.sqrt((((x[:, None] - y[None]) / size) ** 2).sum(-1))


def rbf_at(x, y, size):
    return np.exp(-0.5 * distances(x, y, size) ** 2)


def matern_at(x, y, size):
    r = math.sqrt(3) * distances(x, y, size)
    return (1 + r) * np.exp(-r)


SUMS = {
    "rbf": (lambda: of_length(gpk.RBFKernel(), 0.3), lambda x, y: rbf_at(x, y, 0.3)),
    "matern": (
        lambda: of_length(gpk.MaternKernel(nu=1.5), 0.4),
        lambda x, y: matern_at(x, y, 0.4),
    ),
    "with a constant": (
        lambda: of_length(gpk.RBFKernel(), 0.3) + constant(4.0),
        lambda x, y: rbf_at(x, y, 0.3) + 4.0,
    ),
    "of three": (
        lambda: scaled(
            of_length(gpk.RBFKernel(active_dims=[1]), 0.2)
            + scaled(of_length(gpk.MaternKernel(nu=1.5), 0.5), 0.4)
            + linear(1.5),
            0.7,
        ),
        lambda x, y: (
            0.7
            * (
                rbf_at(x[:, 1:], y[:, 1:], 0.2)
                + 0.4 * matern_at(x, y, 0.5)
                + 1.5 * x @ y.T
            )
        ),
    ),
    "a product with a sum": (
        lambda: (
            of_length(gpk.RBFKernel(), 0.6)
            * (of_length(gpk.MaternKernel(nu=1.5), 0.5) + constant(0.5))
        ),
        lambda x, y: rbf_at(x, y, 0.6) * (matern_at(x, y, 0.5) + 0.5),
    ),
    "linear and constant": (
        lambda: linear(0.8) + constant(0.3),
        lambda x, y: 0.8 * x @ y.T + 0.3,
    ),
}


def alike(name, actions, engine, dense, rng, standardize=False, rounds=12):
    """Beliefs of two functions, the same in many trials, and the reference of each."""
    make, values = SUMS[name]
    beliefs = Beliefs.start(
        [cb.GP(make(), noise=0.02, standardize=standardize)] * 2,
        actions,
        (MANY,),
        F64,
        torch.device("cpu"),
        engine,
        True,
    )
    references = [dense(values, 0.02, 0.0, standardize) for _ in range(2)]
    for _ in range(rounds):
        if actions.continuous:
            x = torch.as_tensor(rng.random((1, 2)))
            keys = [tuple(x[0].tolist())] * MANY
        else:
            keys = [int(rng.integers(actions.size))] * MANY
            x = actions.at(torch.tensor(keys[:1]))
        outcome = torch.as_tensor(rng.standard_normal((1, 2)))
        of = keys, x.expand(MANY, 2), outcome.expand(MANY, 2), [True] * MANY
        beliefs = beliefs.absorb([Observation([0, 1], *of)])
        for reference, y in zip(references, outcome[0].tolist(), strict=True):
            reference.add(x[0].numpy(), y)
    return beliefs, references


def least(draws, points, references):
    """The least p-value of ``draws (T, 2, k)`` times the number of tests."""
    tests = [independent(draws[:, 0], draws[:, 1])]
    for j, reference in enumerate(references):
        mean, covariance = reference.joint(points)
        tests.append(law(draws[:, j], mean, covariance))
        # and a covariance that is a quarter too large would be seen
        assert law(draws[:, j], mean, 1.25 * covariance) < RATE
    return min(tests) * len(tests)


SLOW = pytest.mark.slow


@pytest.mark.parametrize("standardize", [False, pytest.param(True, marks=SLOW)])
@pytest.mark.parametrize("name", SUMS)
def test_draws_on_a_box(name, standardize, dense, rng):
    box = cb.Box([0.0, 0.0], [1.0, 1.0])
    beliefs, references = alike(name, box, "auto", dense, rng, standardize)
    points = rng.random((4, 2))
    path = beliefs.solver(streams=Streams(3, MANY))
    mean, draw = path(torch.as_tensor(points).expand(MANY, -1, -1))
    # a part of the same path
    again = path(torch.as_tensor(points[:1]).expand(MANY, -1, -1))[1]
    assert (again - draw[..., :1]).abs().max() < 1e-12
    drawn = in_users_units(beliefs.units(), mean + draw, draw)[0]
    assert least(drawn.numpy(), points, references) > RATE


@pytest.mark.parametrize(
    ("name", "engine"),
    [
        ("rbf", "factor"),
        ("matern", "stream"),
        ("of three", "factor"),
        pytest.param("with a constant", "factor", marks=SLOW),
        pytest.param("a product with a sum", "factor", marks=SLOW),
        pytest.param("linear and constant", "factor", marks=SLOW),
    ],
)
def test_draws_over_a_free_set(name, engine, dense, rng, monkeypatch):
    monkeypatch.setattr(lots, "ROUNDS", 2)
    actions = cb.Finite(torch.as_tensor(rng.random((40, 2))))
    beliefs, references = alike(name, actions, engine, dense, rng)
    at = rng.choice(40, 4, replace=False)
    draws = drawn(beliefs, Streams(3, MANY), 3, at)
    points = actions.at(torch.as_tensor(at)).numpy()
    # two rounds that share their frequencies, and one of the next lot
    tests = [least(each, points, references) for each in draws]
    tests += [independent(draws[0, :, j], draws[1, :, j]) for j in range(2)]
    assert min(tests) * len(tests) > RATE


def mixed():
    """A default belief over numbers and categories, and its covariance in numpy."""
    space = cb.Space(
        size=cb.Float(1.0, 3.0), kind=cb.Category(*"abc"), side=cb.Category(*"xy")
    )
    gp = cb.GP.default(space)
    matern, categories = gp.kernel.kernels
    matern.lengthscale = torch.tensor(0.4, dtype=F64)
    categories.lengthscale = torch.tensor([0.5, 1.5], dtype=F64)

    def values(x, y):
        r = math.sqrt(5) * distances(x[:, :1], y[:, :1], 2 * 0.4)
        differ = x[:, None, 1:] != y[None, :, 1:]
        return (
            (1 + r + r * r / 3)
            * np.exp(-r)
            * np.exp(-(differ / np.array([0.5, 1.5])).mean(-1))
        )

    return space, gp, values


def test_draws_on_a_box_with_categories(dense, rng):
    space, gp, values = mixed()
    beliefs = Beliefs.start(
        [gp], space, (MANY,), F64, torch.device("cpu"), "auto", True
    )
    reference = dense(values, float(gp.noise), 0.0, True)
    points = np.stack(
        [1 + 2 * rng.random(16), rng.integers(0, 3, 16), rng.integers(0, 2, 16)], -1
    ).astype(float)
    for x in points[:11]:
        y = float(rng.standard_normal())
        reference.add(x, y)
        row = torch.tensor([[y]], dtype=F64).expand(MANY, 1)
        at = torch.as_tensor(x).expand(MANY, 3)
        of = [tuple(x)] * MANY, at, row, [True] * MANY
        beliefs = beliefs.absorb([Observation([0], *of)])
    at = torch.as_tensor(points[11:]).expand(MANY, -1, -1)
    mean, draw = beliefs.solver(streams=Streams(3, MANY))(at)
    drawn = in_users_units(beliefs.units(), mean + draw, draw)[0]
    mean, covariance = reference.joint(points[11:])
    assert law(drawn[:, 0].numpy(), mean, covariance) > RATE
    assert law(drawn[:, 0].numpy(), mean, 1.25 * covariance) < RATE


def test_a_policy_on_numbers_and_categories_draws_and_goes_on(tmp_path):
    space, _, _ = mixed()
    policy = cb.RPOL(
        space, reward=cb.GP.default(space), costs=cb.GP.default(space),
        explore=cb.TS(1.0),
    )  # fmt: skip
    for _ in range(4):
        choice = policy.ask()
        assert set(choice.params) == {"size", "kind", "side"}
        policy.tell(choice, reward=choice.x[0], cost=choice.x[1] - 1)
    policy.save(tmp_path / "policy")
    assert torch.equal(cb.load(tmp_path / "policy").ask().x, policy.ask().x)


def test_kernels_without_features_are_refused_by_name():
    box = cb.Box([0.0, 0.0], [1.0, 1.0])
    rbf, flat = of_length(gpk.RBFKernel(), 0.3), linear(1.0)
    for kernel in (rbf * flat, rbf + flat * flat, rbf + gpk.PeriodicKernel()):
        gp = cb.GP(kernel.double(), noise=0.1)
        with pytest.raises(cb.CBanditError, match="need random features"):
            cb.GPTS(box, reward=gp, explore=cb.TS(1.0))


def test_lots_are_float32_and_otherwise_the_waves_themselves(rng):
    actions = cb.Finite(5e3 + torch.as_tensor(rng.random((700, 3))))
    kernel = Covariance(of_length(gpk.MaternKernel(nu=0.5), 0.4), 3)
    prior = Prior(actions, kernel, (2,), F64, torch.device("cpu"))
    source, streams = lots.Lots(prior), Streams(1, 2)
    for turn in range(lots.ROUNDS + 2):
        path = source.draw(streams, 2, "reward")
        if turn not in (0, 1, 7, lots.ROUNDS - 1, lots.ROUNDS, lots.ROUNDS + 1):
            continue
        exact = path.waves.to(F64)(actions.points(torch.arange(700)))
        assert path(0, 700).dtype == torch.float32
        assert (path(0, 700) - exact).abs().max() < 3e-5
        assert torch.equal(path(13, 64), path(0, 700)[..., 13:64])


def test_rounds_of_a_lot_are_computed_together(rng):
    actions = cb.Finite(torch.as_tensor(rng.random((50, 2))))
    kernel = Covariance(of_length(gpk.RBFKernel(), 0.4), 2)
    source = lots.Lots(Prior(actions, kernel, (), F64, torch.device("cpu")))
    streams = Streams(1)
    start = streams.position()
    paths = [source.draw(streams, 1, "reward") for _ in range(2 * lots.ROUNDS)]
    where = [path.values.untyped_storage().data_ptr() for path in paths]
    assert len(set(where[: lots.ROUNDS])) == 1
    assert len(set(where)) == 2
    whole = torch.cat([path.values for path in paths], 1)
    assert len(whole.unique(dim=1)[0]) == 2 * lots.ROUNDS  # no path comes twice
    # those of another name have frequencies of their own, and the streams may go back
    other = source.draw(streams, 1, "cost")
    assert not torch.isin(other.waves.frequencies, paths[0].waves.frequencies).any()
    streams.go(start)
    assert torch.equal(source.draw(streams, 1, "reward").values, paths[0].values)


@pytest.mark.parametrize("room", [None, 0, 3])
def test_a_lot_goes_on_after_a_checkpoint(room, tmp_path, monkeypatch):
    points = torch.rand(300, 2, generator=torch.Generator().manual_seed(0), dtype=F64)
    if room is not None:  # paths of so many rounds, of 300 actions and two functions
        monkeypatch.setattr(lots, "ROOM", room * 4 * 2 * 300)
    gp = cb.GP(of_length(gpk.RBFKernel(), 0.2), noise=0.01)
    policy = cb.RPOL(
        cb.Finite(points), reward=gp, costs=gp, explore=cb.TS(1.0), engine="factor"
    )

    def play(policy, rounds):
        out = []
        for _ in range(rounds):
            choice = policy.ask()
            policy.explain(choice)  # asks again, with the same draws
            policy.tell(choice, reward=choice.x.sum(), cost=choice.x[0] - 0.5)
            out.append((choice.index, policy.history()["score"].iloc[-1]))
        return out

    play(policy, 5)
    policy.save(tmp_path / "policy")
    other = cb.load(tmp_path / "policy")
    assert play(policy, 40) == play(other, 40)


# -- the same draws however the batch is split -----------------------------------------


@pytest.mark.parametrize("name", ["joint", "many", "product", "factor"], indirect=True)
@pytest.mark.parametrize("own", ["nothing", "points", "covariance", "kernel"])
def test_a_trial_draws_the_same_alone(name, own, cases, rng):
    if name != "joint" and own == "covariance":
        pytest.skip("arms without coordinates are drawn by the joint engine")
    if name == "product" and own == "points":
        pytest.skip("a grid has no points of its own a trial")
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


@pytest.mark.parametrize("root_of", [pivoted_root, prior_root])
def test_what_rounding_makes_of_a_rank_hardly_changes_a_draw(root_of, rng):
    """Draws go by the last columns of a root: the small ones come first."""
    x = torch.from_numpy(rng.random((200, 2)))
    size = 1 + x.sum(-1)  # no two variances tie, which rounding would decide too
    covariance = (-6 * torch.cdist(x, x).square()).exp() * size * size.unsqueeze(-1)
    z, ranks = torch.from_numpy(rng.standard_normal(200)), set()
    first = root_of(covariance)
    for _ in range(8):
        off = 3e-16 * torch.from_numpy(rng.standard_normal((200, 200)))
        root = root_of(covariance + off + off.mT)
        ranks.add(root.shape[-1])
        gap = root @ z[-root.shape[-1] :] - first @ z[-first.shape[-1] :]
        assert gap.abs().max() < 1e-5
    assert root_of is prior_root or len(ranks) > 1


def test_a_scaled_kernel_keeps_its_categories():
    """The term holds the amplitude and what differing categories multiply by."""
    from botorch.models.kernels.categorical import CategoricalKernel

    line = gpytorch.kernels.RBFKernel(active_dims=[0]).double()
    codes = CategoricalKernel(active_dims=[1]).double()
    codes.lengthscale = torch.tensor(0.7, dtype=F64)
    kernel = gpytorch.kernels.ScaleKernel(line * codes).double()
    kernel.outputscale = torch.tensor(2.0, dtype=F64)
    (term,) = Covariance(kernel, 2).terms
    assert term.amplitude.item() == pytest.approx(2.0)
    assert term.apart.tolist() == pytest.approx([1.0, math.exp(-1 / 0.7)])
