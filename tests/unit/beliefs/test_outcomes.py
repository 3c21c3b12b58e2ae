"""Binary and counted outcomes: beliefs about probabilities and rates."""

from __future__ import annotations

import itertools

import gpytorch
import mpmath
import numpy as np
import pytest
import torch
from inside import Link, posterior_moments
from scipy.integrate import quad
from scipy.special import log_ndtr, ndtr, ndtri

import cbandit as cb

BINARY, COUNT = "binary", "count"


def rbf(lengthscale=0.3):
    kernel = gpytorch.kernels.RBFKernel().double()
    kernel.lengthscale = torch.tensor(lengthscale, dtype=torch.float64)
    return kernel


def column(*values):
    return torch.tensor(values, dtype=torch.float64).unsqueeze(-1)


def one(value):
    return torch.tensor([float(value)], dtype=torch.float64)


def log_likelihood(outcome, yes, of, f):
    if outcome == BINARY:
        return yes * log_ndtr(f) + (of - yes) * log_ndtr(-f)
    return yes * f - of * np.exp(f)


# -- moments of one observation --------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "yes", "of", "mean", "var"),
    [
        (COUNT, 50, 1, 2.0, 1.0),
        (COUNT, 0, 1, 0.0, 100.0),
        (COUNT, 0, 1e6, 0.0, 1.0),
        (COUNT, 1e6, 1, 0.0, 1.0),
        (COUNT, 1e6, 2.5, 14.0, 0.01),
        (COUNT, 3, 0.5, 60.0, 1.0),
        (BINARY, 0, 1e6, 0.0, 1.0),
        (BINARY, 10, 1e6, 0.0, 1.0),
        (BINARY, 1e6, 1e6, -3.0, 2.0),
        (BINARY, 3, 10, -5.0, 0.5),
        (BINARY, 0, 50, 0.0, 100.0),
    ],
)
def test_moments_are_those_of_integration(outcome, yes, of, mean, var):
    got = posterior_moments(outcome, one(yes / of), one(of), one(mean), one(var))
    m, s = got[0].item(), got[1].item() ** 0.5

    def density(f, power=0):
        prior = (f - m) * (f + m - 2 * mean) / (2 * var)
        if outcome == COUNT:
            log = yes * (f - m) - of * np.exp(m) * np.expm1(f - m)
        else:
            log = log_likelihood(BINARY, yes, of, f) - log_likelihood(
                BINARY, yes, of, m
            )
        return (f - m) ** power * np.exp(log - prior)

    ends = [m + k * s for k in (-40, -15, -8, -5, -3, -1.5, 0, 1.5, 3, 5, 8, 15)]

    def whole(power):
        parts = [
            quad(density, a, b, (power,), epsabs=0, epsrel=1e-11, limit=200)[0]
            for a, b in itertools.pairwise(ends)
        ]
        return sum(parts)

    total = whole(0)
    shift = whole(1) / total
    assert shift == pytest.approx(0.0, abs=1e-6 * s)
    assert whole(2) / total - shift**2 == pytest.approx(s**2, rel=1e-6)


@pytest.mark.parametrize("mean", [-400.0, -40.0, -3.0, 0.3, 8.0])
@pytest.mark.parametrize("yes", [0, 1])
def test_one_trial_is_exact_far_out_in_the_tails(mean, yes):
    var = 0.7
    reading = Link(BINARY).stand_in(one(yes), one(1), one(mean), one(var))
    precision = reading.precision.item()
    assert precision >= 0
    after = 1 / (1 / var + precision)
    center = after * (mean / var + precision * reading.target.item())
    with mpmath.workdps(60):
        sign, total = 2 * yes - 1, mpmath.mpf(1 + var)
        z = sign * mpmath.mpf(mean) / mpmath.sqrt(total)
        hazard = mpmath.npdf(z) / mpmath.ncdf(z)
        exact = mean + sign * var * hazard / mpmath.sqrt(total)
        spread = var - var**2 * hazard * (z + hazard) / total
        assert center == pytest.approx(float(exact), abs=1e-9)
        assert after == pytest.approx(float(spread), rel=1e-9)


@pytest.mark.parametrize(
    ("dtype", "places", "close"),
    [
        (torch.float64, (-35.0, -8.0, -3.0, 0.5, 7.0), 1e-12),
        (torch.float32, (-7.0, -5.0, 2.0), 1e-5),
    ],
)
def test_small_probabilities_have_all_their_digits(dtype, places, close):
    latent = torch.tensor(places, dtype=dtype)
    exact = ndtr(latent.double().numpy())
    for sense in (1.0, -1.0):
        link = Link(BINARY, sense)
        value = sense * link.value(sense * latent)
        np.testing.assert_allclose(value, exact, rtol=close)
        mean, std = link.moments(2 * sense * latent, torch.full_like(latent, 3**0.5))
        np.testing.assert_allclose(sense * mean, exact, rtol=close)
        assert (std > 0).all()


def test_one_trial_is_exact_beside_others_of_several():
    yes, tries = torch.tensor([[1.0, 1.0, 0.0]]), torch.tensor([[1.0, 3.0, 1.0]])
    mean, var = torch.tensor([[-2.0, 0.3, 4.0]]), torch.full((1, 3), 0.7)
    given = [part.double() for part in (yes / tries, tries, mean, var)]
    together = Link(BINARY).stand_in(*given)
    for j in range(3):
        alone = Link(BINARY).stand_in(*(part[:, j : j + 1] for part in given))
        for part, whole in zip(alone, together, strict=True):
            assert torch.equal(part[:, 0], whole[:, j])


def test_an_outcome_that_says_nothing_weighs_nothing():
    reading = Link(BINARY).stand_in(one(1), one(1), one(60.0), one(1.0))
    assert reading.precision.item() == 0
    assert reading.target.isfinite().all()


@pytest.mark.parametrize(("mean", "std"), [(0.0, 1.0), (-2.3, 0.5), (3.0, 4.0)])
def test_moments_of_probabilities_and_rates(mean, std):
    for outcome, link in ((BINARY, ndtr), (COUNT, np.exp)):
        got = Link(outcome).moments(one(mean), one(std))

        def power(k, link=link):
            def part(z):
                return link(mean + std * z) ** k * np.exp(-z * z / 2)

            ends = [-30, -8, -4, -2, 0, 2, 4, 8, 30]
            pairs = itertools.pairwise(ends)
            whole = sum(quad(part, a, b, epsrel=1e-12)[0] for a, b in pairs)
            return whole / np.sqrt(2 * np.pi)

        assert got[0].item() == pytest.approx(power(1), rel=1e-8)
        deviation = (power(2) - power(1) ** 2) ** 0.5
        assert got[1].item() == pytest.approx(deviation, rel=1e-6)
        turned = Link(outcome, -1.0).moments(one(-mean), one(std))
        assert turned[0].item() == -got[0].item()
        assert turned[1].item() == got[1].item()


# -- the posterior against integration over all latent values --------------------------

PLACES = {
    1: column(0.1, 0.45, 0.8, 0.6),
    2: torch.tensor([[0.1, 0.2], [0.5, 0.4], [0.9, 0.1], [0.6, 0.6]]).double(),
}


def integrated(K, outcome, yes, of):
    """Means and 95 % intervals of the link at four places, of which three were told.

    The second value is each place's distribution, values and the chance to be below.

    Integration on a grid over the three latent values, laid around their mode.
    """
    inner = K[:3, :3]
    mode, precision = np.zeros(3), np.linalg.inv(inner)
    for _ in range(200):  # Newton, with slopes by differences of the exact ones
        h = 1e-5
        up, down, at = (
            log_likelihood(outcome, yes, of, mode + d) for d in (h, -h, 0.0)
        )
        slope, curve = (up - down) / (2 * h), (2 * at - up - down) / h**2
        hessian = precision + np.diag(np.maximum(curve, 0))
        step = np.linalg.solve(hessian, slope - precision @ mode)
        mode = mode + step / max(1.0, abs(step).max())
    axis = np.linspace(-6.5, 6.5, 61)
    z = np.stack(np.meshgrid(axis, axis, axis, indexing="ij"), -1).reshape(-1, 3)
    # turned, so that no two nodes share a value and distributions are smooth
    turned = np.linalg.qr(np.random.default_rng(0).standard_normal((3, 3)))[0]
    f = mode + 1.15 * (z @ turned) @ np.linalg.inv(np.linalg.cholesky(hessian))
    log = -0.5 * ((f @ precision) * f).sum(-1)
    log = log + log_likelihood(outcome, yes, of, f).sum(-1)
    weight = np.exp(log - log.max())
    f, weight = f[weight > 1e-9], weight[weight > 1e-9]
    weight /= weight.sum()
    across = precision @ K[:3, 3]
    left = np.sqrt(K[3, 3] - across @ K[:3, 3])  # deviation where nothing was told
    nodes, shares = np.polynomial.hermite_e.hermegauss(16)
    link, out, levels = ndtr if outcome == BINARY else np.exp, [], []
    for j in range(3):
        order = np.argsort(f[:, j])
        below = np.cumsum(weight[order]) - 0.5 * weight[order]
        ends = np.interp([0.025, 0.975], below, f[order, j])
        out.append([weight @ link(f[:, j]), *link(ends)])
        levels.append((link(f[order, j]), below))
    center = f @ across
    mean = weight @ link(center[:, None] + left * nodes) @ shares / shares.sum()
    grid = np.linspace(center.min() - 4 * left, center.max() + 4 * left, 200)
    below = [weight @ ndtr((value - center) / left) for value in grid]
    ends = np.interp([0.025, 0.975], below, grid)
    out.append([mean, *link(ends)])
    return np.array(out), [*levels, (link(grid), below)]


def believed(policy, points):
    """Mean and 95 % interval of the reward's link, as a policy believes them."""
    mean, std = policy._beliefs.anywhere(points)
    link = policy._beliefs.units().links[0]
    ends = [link.value(mean + k * std)[0, 0].numpy() for k in (-1.96, 1.96)]
    return np.stack([policy.posterior(points).reward.mean.numpy(), *ends], 1)


def told(rng, K, outcome, rounds):
    f = np.linalg.cholesky(K) @ rng.standard_normal(4)
    index = rng.integers(0, 3, rounds)
    if outcome == BINARY:
        return index, rng.binomial(1, ndtr(f[index])).astype(float)
    return index, rng.poisson(np.exp(f[index])).astype(float)


@pytest.mark.parametrize("outcome", [BINARY, COUNT])
@pytest.mark.parametrize(("dim", "rounds"), [(1, 20), (2, 50), (1, 200)])
def test_the_posterior_is_that_of_integration(outcome, dim, rounds):
    """After a sweep: means within 0.02, ends of 95 % intervals within 0.03.

    Rates have no bound above: errors of means are relative, and those of ends are by
    how far the exact chance to be below them is from 2.5 and 97.5 %.
    """
    K = rbf()(PLACES[dim]).to_dense().detach().numpy() + 1e-9 * np.eye(4)
    rng = np.random.default_rng(rounds + dim)
    index, y = told(rng, K, outcome, rounds)
    yes = np.array([y[index == j].sum() for j in range(3)])
    of = np.array([(index == j).sum() for j in range(3)]).astype(float)
    exact, levels = integrated(K, outcome, yes, of)
    arms = cb.Finite(covariance=torch.tensor(K))
    policy = cb.GPUCB(arms, reward=cb.GP(outcome=outcome))
    for i, value in zip(index, y, strict=True):
        policy.observe(index=[int(i)], reward=[value])
    numbers = column(0, 1, 2, 3)
    before = np.abs(believed(policy, numbers) - exact)
    policy.refit()
    read = believed(policy, numbers)
    after = np.abs(read - exact)
    size = 1.0 if outcome == BINARY else exact
    assert ((before / size)[:, 0] < 0.15).all()
    assert ((after / size)[:, 0] < 0.02).all()
    if outcome == BINARY:
        assert (after[:, 1:] < 0.03).all()
    for place, (values, below) in enumerate(levels):
        chance = np.interp(read[place, 1:], values, below)
        assert chance == pytest.approx([0.025, 0.975], abs=0.012)


@pytest.mark.parametrize("outcome", [BINARY, COUNT])
def test_after_a_sweep_the_order_of_tells_does_not_matter(outcome):
    K = rbf()(PLACES[1]).to_dense().detach().numpy() + 1e-9 * np.eye(4)
    index, y = told(np.random.default_rng(0), K, outcome, 12)
    arms, read = cb.Finite(covariance=torch.tensor(K)), []
    for order in (slice(None), slice(None, None, -1)):
        policy = cb.GPUCB(arms, reward=cb.GP(outcome=outcome))
        for i, value in zip(index[order], y[order], strict=True):
            policy.observe(index=[int(i)], reward=[value])
        once = policy.posterior().reward.mean
        policy.refit()
        read.append((once, policy.posterior().reward.mean))
    (once, after), (again, others) = read
    assert (once - again).abs().max() > 1e-5
    torch.testing.assert_close(after, others, rtol=0, atol=1e-7)
    # all successes of an action at once are one update, and the same posterior
    policy = cb.GPUCB(arms, reward=cb.GP(outcome=outcome))
    for j in range(3):
        pair = one(y[index == j].sum()), one((index == j).sum())
        policy.observe(index=[j], reward=pair)
    policy.refit()
    torch.testing.assert_close(policy.posterior().reward.mean, after, rtol=0, atol=1e-7)


@pytest.mark.parametrize("outcome", [BINARY, COUNT])
@pytest.mark.parametrize("tries", [1e4, 1e8, 1e10])
def test_sweeps_of_large_counts_end_soon_at_the_posterior(monkeypatch, outcome, tries):
    """Data this sharp leave nothing of the prior, and nothing of its correlations."""
    K = 4 * rbf()(torch.arange(6).double().unsqueeze(-1)).to_dense().detach()
    share, sweeps, stand_in = torch.arange(1, 7).double() / 10, [], Link.stand_in

    def counted(*given):
        sweeps.append(1)
        return stand_in(*given)

    policy = cb.GPUCB(cb.Finite(covariance=K), reward=cb.GP(outcome=outcome))
    pair = (share * tries).round(), torch.full_like(share, tries)
    policy.observe(index=list(range(6)), reward=pair)
    monkeypatch.setattr(Link, "stand_in", counted)
    policy.refit()
    assert len(sweeps) < 20
    read = policy.posterior().reward
    spread = (share * (1 - share if outcome == BINARY else 1) / tries).sqrt()
    off = (read.mean - share) / spread
    assert off.abs().max() < 3 / tries**0.5 + 1e-3
    torch.testing.assert_close(read.std, spread, rtol=1e-3 + 10 / tries, atol=0)


def test_sweeps_that_swing_are_damped():
    """A latent variance of 100: each reading is that of the belief without it."""
    rng, count = np.random.default_rng(1), 60
    x = torch.linspace(0, 1, count).double().unsqueeze(-1)
    K = 100 * rbf()(x).to_dense().detach() + 1e-6 * torch.eye(count)
    y = rng.binomial(
        1, ndtr(np.linalg.cholesky(K.numpy()) @ rng.standard_normal(count))
    )
    policy = cb.GPUCB(cb.Finite(covariance=K), reward=cb.GP(outcome=BINARY))
    policy.observe(index=range(count), reward=y.astype(float))
    numbers = torch.arange(count).double().unsqueeze(-1)
    mean, std = (part[0, 0] for part in policy._beliefs.anywhere(numbers))
    log = policy._beliefs.groups[0].log
    values, precision = (
        torch.cat([part.flatten() for part in parts])
        for parts in zip(*((r.values, 1 / r.noise) for r in log), strict=True)
    )
    alone = 1 / (std**-2 - precision)
    center = alone * (mean * std**-2 - precision * values)
    given = torch.from_numpy(y).double(), torch.ones(count).double()
    reading = Link(BINARY).stand_in(*given, center, alone)
    torch.testing.assert_close(reading.precision, precision, rtol=1e-6, atol=0)
    torch.testing.assert_close(reading.target, values, rtol=1e-6, atol=0)


# -- every set and engine, in batches, saved -------------------------------------------


def clicks(t, trials=None):
    shape = () if trials is None else (trials,)
    return torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(t))


def played(actions, rounds=12, trials=None, make=cb.CKB, points=None, **settings):
    """A policy after some rounds of which outcomes are random but fixed."""
    kernel = rbf() if actions.dim == 1 else rbf(0.4)
    gaussian = cb.GP(kernel, noise=0.01)
    costs = {"fails": cb.GP(kernel, outcome=BINARY)}
    settings = {"thresholds": {"fails": "<= 0.4"}, **settings}
    if make is cb.CKB:
        settings |= {"step": 0.5, "cap": 20.0}
    policy = make(actions, reward=gaussian, costs=costs, trials=trials, **settings)
    for t in range(rounds):
        choice = policy.ask()
        policy.tell(choice, reward=choice.x.sum(-1), cost={"fails": clicks(t, trials)})
    return policy


def test_engines_and_boxes_agree():
    grid = torch.linspace(0, 1, 8).double()
    points = torch.cartesian_prod(grid, grid)
    sets = {
        "joint": cb.Finite(points),
        "factor": cb.Finite(points),
        "stream": cb.Finite(points),
        "product": cb.ProductGrid([grid, grid]),
        "dense": cb.Box([0.0, 0.0], [1.0, 1.0]),
    }
    read = {}
    for engine, actions in sets.items():
        costs = cb.GP(rbf(), outcome=BINARY)
        settings = {"reward": cb.GP(rbf(), noise=0.01), "costs": costs}
        if engine != "dense":
            settings["engine"] = engine
        policy = cb.RPOL(actions, **settings, thresholds=0.4)
        assert engine in policy.engine
        for t in range(15):
            x = points[(7 * t) % 23].unsqueeze(0)
            policy.observe(x=x, reward=[0.1 * t], cost=[clicks(t)])
        policy.observe(x=points[:1], reward=[0.1], cost=(one(3), one(10)))
        read[engine] = policy.posterior(points).costs
        if engine != "dense":
            whole = policy.posterior().costs
            for a, b in zip(
                vars(whole).values(), vars(read[engine]).values(), strict=True
            ):
                torch.testing.assert_close(a, b, rtol=0, atol=1e-9)
    for part in read.values():
        torch.testing.assert_close(part.mean, read["joint"].mean, rtol=0, atol=1e-9)
        torch.testing.assert_close(part.std, read["joint"].std, rtol=0, atol=1e-9)
        assert ((part.mean > 0) & (part.mean < 1)).all()


@pytest.mark.parametrize("make", [cb.CKB, cb.RPOL, cb.baselines.CONFIG])
def test_batched_trials_are_single_ones(make):
    actions = cb.Finite(torch.linspace(0, 1, 20).double().unsqueeze(-1))
    batch = played(actions, trials=2, make=make)
    batch.refit()
    for i in range(2):
        alone = make(
            actions,
            reward=cb.GP(rbf(), noise=0.01),
            costs={"fails": cb.GP(rbf(), outcome=BINARY)},
            thresholds={"fails": "<= 0.4"},
            **({"step": 0.5, "cap": 20.0} if make is cb.CKB else {}),
        )
        for t in range(12):
            choice = alone.ask()
            y = clicks(t, 2)[i]
            alone.tell(choice, reward=choice.x.sum(-1), cost={"fails": y})
        alone.refit()
        mean = alone.posterior().costs.mean
        torch.testing.assert_close(
            mean, batch.posterior().costs.mean[i], rtol=0, atol=1e-6
        )


def test_a_run_is_resumed_bit_for_bit(tmp_path):
    space = cb.Space(size=cb.Int(1, 30), rate=cb.Float(0.1, 1.0, step=0.1))
    beliefs = {"reward": cb.GP.default(space, outcome=COUNT)}
    costs = {"fails": cb.GP.default(space, outcome=BINARY)}
    limits = {"fails": "<= 0.2"}
    policy = cb.CKB(space, **beliefs, costs=costs, thresholds=limits)
    for t in range(9):
        choice = policy.ask()
        if t == 4:
            policy.save(tmp_path / "run")
            other = cb.load(tmp_path / "run")
            policy.tell(choice, reward=(7, 2.0), cost={"fails": (1, 3)})
            other.tell(choice.id, reward=7, cost={"fails": (1, 3)}, exposure=2.0)
            continue
        policy.tell(choice, reward=t, cost={"fails": bool(clicks(t))})
        if t > 4:
            again = other.ask()
            assert again.params == choice.params
            other.tell(again, reward=t, cost={"fails": bool(clicks(t))})
    assert torch.equal(policy.multiplier, other.multiplier)
    assert torch.equal(policy.posterior().costs.mean, other.posterior().costs.mean)
    assert policy.history()["fails"].iloc[4] == pytest.approx(1 / 3)
    assert policy.history()["reward"].iloc[4] == 3.5


# -- linear beliefs --------------------------------------------------------------------


def filtered(K, index, y):
    """Means and deviations at all points after updates by moments, one by one."""
    mean, S = np.zeros(len(K)), K.copy()
    for i, yes in zip(index, y, strict=True):
        c, sign, total = S[:, i].copy(), 2 * yes - 1, 1 + S[i, i]
        z = sign * mean[i] / np.sqrt(total)
        hazard = np.exp(-z * z / 2) / np.sqrt(2 * np.pi) / ndtr(z)
        mean = mean + c * sign * hazard / np.sqrt(total)
        S = S - np.outer(c, c) * hazard * (z + hazard) / total
    return mean, np.sqrt(np.diag(S))


@pytest.mark.parametrize("kind", ["numbers", "categories", "waves"])
def test_linear_beliefs_take_each_outcome_once(kind):
    """As a filter over the whole set; after a sweep, as the same prior's arms."""
    if kind == "categories":
        actions = cb.Space(
            codec=cb.Category("lz4", "zstd"), size=cb.Int(1, 5), rate=cb.Int(0, 2)
        )
    else:
        grid = torch.linspace(0, 1, 5).double()
        actions = cb.Finite(torch.cartesian_prod(grid, grid))
    gp = cb.GP.linear(
        actions, 2.0, outcome=BINARY, features=6 if kind == "waves" else None
    )
    points = actions.points(torch.arange(actions.size))
    K = gp.kernel(points, points).to_dense().detach().double().numpy()
    rng = np.random.default_rng(3)
    index = rng.integers(0, actions.size, 20)
    y = rng.binomial(1, 0.2 + 0.6 * (index / actions.size)).astype(float)
    policy = cb.GPUCB(actions, reward=gp, trials=2)
    assert "weights" in policy.engine
    for i, value in zip(index, y, strict=True):
        policy.observe(index=[int(i)], reward=[[value], [1 - value]])
    for trial, told_there in enumerate((y, 1 - y)):
        mean, std = filtered(K, index, told_there)
        exact = ndtr(mean / np.sqrt(1 + std**2))
        believed = policy.posterior().reward.mean[trial].numpy()
        np.testing.assert_allclose(believed, exact, rtol=0, atol=1e-9)
    policy.refit()
    arms = cb.GPUCB(
        cb.Finite(covariance=torch.tensor(K + 1e-12 * np.eye(len(K)))),
        reward=cb.GP(outcome=BINARY),
    )
    arms.observe(index=torch.tensor(index), reward=torch.tensor(y))
    arms.refit()
    torch.testing.assert_close(
        policy.posterior().reward.mean[0],
        arms.posterior().reward.mean,
        rtol=0,
        atol=1e-6,
    )


@pytest.mark.parametrize("dual", ["resolved", "projected"])
def test_wide_contexts_have_yes_or_no_costs(dual, tmp_path):
    """A model fails by the sign of a number that is shown: it is soon left out then."""
    space = cb.Space(model=cb.Category("small", "large"), user=cb.Context(10))
    reward, costs = cb.GP.default(space), cb.GP.default(space, outcome=BINARY)
    assert repr(costs) == "GP.linear(outcome='binary')"
    policy = cb.CKB(
        space, reward=reward, costs={"fails": costs}, thresholds={"fails": "<= 0.3"},
        dual=dual,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    failed = 0
    for t in range(120):
        user = torch.randn(10, generator=generator, dtype=torch.float64)
        choice = policy.ask(context=user)
        large = choice.params["model"] == "large"
        fails = bool(large and user[0] > 0)
        failed += fails and t >= 40
        policy.tell(choice, reward=1.0 + large, cost={"fails": fails})
        if t == 60:
            policy.save(tmp_path / "run")
            other = cb.load(tmp_path / "run")
        elif t > 60:
            assert other.ask(context=user).params == choice.params
            twin = other.outstanding[0]
            other.tell(twin, reward=1.0 + large, cost={"fails": fails})
    assert failed <= 0.3 * 80 + 2
    chance = policy.posterior(context=2 * torch.eye(10, dtype=torch.float64)[0])
    assert chance.costs.mean[0, 1] > 0.7
    assert chance.costs.mean[0, 0] < 0.3
    before = policy.posterior(context=user).costs.mean
    policy.refit()  # numbers are standardised as they come: nothing is looked at anew
    assert torch.equal(policy.posterior(context=user).costs.mean, before)


def test_what_linear_beliefs_have_learned_fades():
    """By hand: sums of stand-ins shrink by a factor each round, the prior does not."""
    actions, fade = cb.Finite(torch.linspace(0, 1, 6).double().unsqueeze(-1)), 0.8
    gp = cb.GP.linear(actions, outcome=BINARY, fade=fade)
    assert repr(gp) == "GP.linear(outcome='binary', fade=0.8)"
    K = gp.kernel(actions.all, actions.all).to_dense().detach().double().numpy()
    values, vectors = np.linalg.eigh(K)
    features = vectors * np.sqrt(values.clip(0))
    policy = cb.GPUCB(actions, reward=gp)
    A, b = np.zeros((6, 6)), np.zeros(6)
    for t in range(15):
        i, y = (2 * t) % 6, float(t % 3 == 0)
        policy.tell(policy.ask(among=[i]), reward=y)
        A, b, h = fade * A, fade * b, features[i]
        cov = np.linalg.inv(np.eye(6) + A)
        reading = Link(BINARY).stand_in(
            one(y), one(1), one(h @ cov @ b), one(h @ cov @ h)
        )
        precision, target = reading.precision.item(), reading.target.item()
        A, b = A + precision * np.outer(h, h), b + precision * target * h
    cov = np.linalg.inv(np.eye(6) + A)
    mean, var = features @ cov @ b, np.einsum("ij,jk,ik->i", features, cov, features)
    believed = policy.posterior().reward.mean.numpy()
    np.testing.assert_allclose(believed, ndtr(mean / np.sqrt(1 + var)), atol=1e-9)


def test_linear_beliefs_of_counts_in_a_window():
    actions = cb.Finite(torch.linspace(0, 1, 6).double().unsqueeze(-1))
    with pytest.raises(ValueError, match="noise does not go with outcome='count'"):
        cb.GP.linear(actions, noise=0.1, outcome=COUNT)
    gp = cb.GP.linear(actions, outcome=COUNT)
    policy = cb.GPUCB(actions, reward=gp, feedback=cb.Sliding(8))
    for t in range(40):  # the rate falls from 20 to 1
        policy.tell(policy.ask(), reward=20 if t < 20 else 1)
    policy.ask()
    tried = policy.history()["action"].iloc[-9:-1].astype(int).tolist()
    assert policy.posterior().reward.mean[tried].mean() < 3


# -- one scale -------------------------------------------------------------------------


def test_scores_and_dual_steps_are_in_probabilities():
    actions = cb.Finite(torch.linspace(0, 1, 20).double().unsqueeze(-1))
    policy = played(actions, explore=cb.UCB(1.5), dual_beta="score")
    policy.ask()  # absorbs all
    before = policy.multiplier
    beliefs, tau = policy._beliefs, 0.4
    mean, std = (part[0].numpy() for part in beliefs.anywhere(actions.all))
    unit = np.sqrt(tau * (1 - tau))
    f = mean[0] + 1.5 * std[0]
    g = (ndtr(mean[1] - 1.5 * std[1]) - tau) / unit
    # the latest choice is outstanding: as if it had not been made
    policy.cancel(policy.outstanding[0])
    phi = before.item()
    choice = policy.ask()
    assert choice.index == int(np.argmax(f - phi * g))
    expected = np.clip(phi + 0.5 * g[choice.index], 0, 20)
    assert policy.multiplier.item() == pytest.approx(expected, abs=1e-9)


def test_a_lower_limit_mirrors_an_upper_one():
    actions = cb.Finite(torch.linspace(0, 1, 20).double().unsqueeze(-1))
    kernel, asked, read = rbf(), [], []
    for limit, good in (("<= 0.25", False), (">= 0.75", True)):
        policy = cb.RPOL(
            actions,
            reward=cb.GP(kernel, noise=0.01),
            costs={"cost": cb.GP(kernel, outcome=BINARY)},
            thresholds={"cost": limit},
        )
        for t in range(10):
            choice = policy.ask()
            asked.append(choice.index.item())
            failed = bool(clicks(t))
            policy.tell(choice, reward=0.1 * t, cost={"cost": failed is not good})
        policy.refit()
        read.append(policy.posterior().costs)
    assert asked[:10] == asked[10:]
    torch.testing.assert_close(read[0].mean, 1 - read[1].mean, rtol=0, atol=1e-9)
    torch.testing.assert_close(read[0].std, read[1].std, rtol=0, atol=1e-9)


def test_confidence_is_that_of_the_latent_function():
    actions = cb.Finite(torch.linspace(0, 1, 20).double().unsqueeze(-1))
    policy = played(actions, rounds=25)
    policy.refit()
    policy.ask(confidence=0.8)
    mean, std = policy._beliefs.anywhere(actions.all)
    chance = ndtr((ndtri(0.4) - mean[0, 1].numpy()) / std[0, 1].numpy())
    fine = policy.ask(
        among=[int(chance.argmax())], confidence=float(chance.max()) - 0.01
    )
    assert not fine.infeasible
    doubtful = policy.ask(
        among=[int(chance.argmin())], confidence=float(chance.min()) + 0.01
    )
    assert doubtful.infeasible
    best = policy.recommend()
    assert best.probability.item() == pytest.approx(chance[best.index], abs=1e-9)
    margin = 0.4 - policy.posterior().costs.mean[0, best.index]
    torch.testing.assert_close(best.margin[0], margin, rtol=0, atol=1e-9)


def test_rpol_counts_the_estimate_of_binary_costs():
    """A 1 exceeds every limit; where few fail, the multiplier stays at its floor."""
    actions = cb.Finite(column(0.5))
    policy = cb.RPOL(
        actions,
        reward=cb.GP(rbf(), noise=0.01),
        costs=cb.GP(rbf(), outcome=BINARY),
        thresholds=0.9,
    )
    for t in range(10):
        policy.tell(policy.ask(), reward=0.0, cost=t % 2)
    assert policy.multiplier.item() == pytest.approx(10**0.5)


def test_a_window_forgets():
    actions = cb.Finite(torch.linspace(0, 1, 6).double().unsqueeze(-1))
    K = rbf()(actions.all).to_dense().detach() + 1e-9 * torch.eye(6)
    arms = cb.Finite(covariance=K)
    sliding = cb.GPUCB(arms, reward=cb.GP(outcome=BINARY), feedback=cb.Sliding(5))
    told = []
    for t in range(12):
        choice = sliding.ask()
        told.append((choice.index.item(), clicks(t).item()))
        sliding.tell(choice, reward=told[-1][1])
    sliding.ask()  # of what came before the window nothing is left
    sliding.refit()
    fresh = cb.GPUCB(arms, reward=cb.GP(outcome=BINARY))
    left = len(sliding._beliefs.groups[0].log)
    index, reward = zip(*told[-left:], strict=True)
    fresh.observe(index=list(index), reward=list(reward))
    fresh.refit()
    assert 4 <= left <= 5
    torch.testing.assert_close(
        sliding.posterior().reward.mean,
        fresh.posterior().reward.mean,
        rtol=0,
        atol=1e-7,
    )


def test_exposures_that_have_left_a_window_leave_no_rounding():
    """0.1 + 0.2 + 0.3 - 0.1 - 0.2 - 0.3 is 1e-16; a rate over that has no bound."""
    actions = cb.Finite(torch.linspace(0, 1, 6).double().unsqueeze(-1))
    sliding = cb.GPUCB(
        actions, reward=cb.GP(rbf(), outcome=COUNT), feedback=cb.Sliding(3)
    )
    fresh = sliding._beliefs.units().size
    for exposure in (0.1, 0.2, 0.3):
        sliding.tell(sliding.ask(), reward=(0, exposure))
    for _ in range(4):
        sliding.ask()
    assert torch.equal(sliding._beliefs.units().size, fresh)


# -- what is refused -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"noise": 0.1}, "noise"),
        ({"standardize": True}, "standardize"),
        ({"mean": 1.5}, "mean"),
        ({"outcome": "ordinal"}, "outcome"),
    ],
)
def test_arguments_that_do_not_go_with_outcomes(arguments, name):
    with pytest.raises(cb.CBanditError, match=name):
        cb.GP(rbf(), **{"outcome": BINARY, **arguments})


@pytest.mark.parametrize("value", [2, 0.5, -1, (3, 2), (1, 0), (0.5, 2), float("nan")])
def test_values_that_are_no_outcome(value):
    actions = cb.Finite(column(0.2, 0.7))
    policy = cb.GPUCB(actions, reward=cb.GP(rbf(), outcome=BINARY))
    choice, before = policy.ask(), policy.posterior().reward.mean
    with pytest.raises(ValueError, match="reward"):
        policy.tell(choice, reward=value)
    with pytest.raises(cb.CBanditError, match="exposure"):
        policy.tell(choice, reward=1, exposure=2.0)
    with pytest.raises(cb.CBanditError, match="noise"):
        policy.tell(choice, reward=1, noise=0.1)
    assert torch.equal(policy.posterior().reward.mean, before)
    policy.tell(choice, reward=True)
    assert (policy.posterior().reward.mean > before).all()


@pytest.mark.parametrize("value", [(10**18, 1e-300), (3, 1e-200), (0.0, 0.0)])
def test_rates_that_no_number_holds_are_refused(value):
    actions = cb.Finite(column(0.2, 0.7))
    policy = cb.GPUCB(actions, reward=cb.GP(rbf(), outcome=COUNT), trials=2)
    before = policy.posterior().reward.mean
    events, exposure = ([1, part] for part in value)
    with pytest.raises(ValueError, match="exposure"):
        policy.tell(policy.ask(), reward=(events, exposure))
    with pytest.raises(ValueError, match="exposure"):
        policy.observe(index=[0, 1], reward=(events, exposure))
    assert torch.equal(policy.posterior().reward.mean, before)
    policy.tell(policy.outstanding[0], reward=([1, 0], [1e-100, 1e100]))
    policy.refit()
    assert policy.posterior().reward.mean.isfinite().all()


def test_policies_that_cannot_take_outcomes():
    actions = cb.Finite(column(0.2, 0.7))
    gaussian, binary = cb.GP(rbf(), noise=0.01), cb.GP(rbf(), outcome=BINARY)
    for settings, name in (
        ({"thresholds": 0.3, "feedback": cb.Delayed(3)}, "Delayed"),
        ({"thresholds": 0.0}, "threshold"),
        ({"thresholds": 1.2}, "threshold"),
    ):
        with pytest.raises(cb.CBanditError, match=name):
            cb.RPOL(actions, reward=gaussian, costs=binary, **settings)
    safe = {"safe": cb.Safe(index=0), "rounds": 3}
    with pytest.raises(cb.CBanditError, match="outcome"):
        cb.baselines.StageOpt(actions, reward=gaussian, costs=binary, **safe)


def test_prior_means_are_expected_probabilities_and_rates():
    actions = cb.Finite(column(0.2, 0.7))
    for outcome, mean in ((BINARY, 0.05), (COUNT, 3.0)):
        belief = cb.GP(rbf(), outcome=outcome, mean=mean)
        prior = cb.GPUCB(actions, reward=belief).posterior().reward
        torch.testing.assert_close(
            prior.mean, torch.full((2,), mean, dtype=torch.float64), rtol=1e-9, atol=0
        )


def test_only_some_trials_are_told():
    actions = cb.Finite(column(0.2, 0.7))
    policy = cb.GPUCB(actions, reward=cb.GP(rbf(), outcome=BINARY), trials=2)
    before = policy.posterior().reward.mean
    choice = policy.ask()
    where = torch.tensor([True, False])
    policy.tell(choice, reward=torch.tensor([True, False]), where=where)
    after = policy.posterior().reward.mean
    assert (after[0] > before[0]).all()
    assert torch.equal(after[1], before[1])
    policy.tell(choice, reward=(torch.tensor([0, 2]), 4), where=~where)
    policy.refit()
    assert policy.posterior().reward.mean.isfinite().all()


def test_rules_of_ones_own_see_probabilities():
    class Careful(cb.GPPolicy):
        name = "Careful"

        def acquire(self, t, multiplier, e):
            seen.append((e.mean, e.chance(self.limits(t))))
            return e.f

    seen = []
    actions = cb.Finite(torch.linspace(0, 1, 20).double().unsqueeze(-1))
    policy = played(actions, rounds=15, make=Careful)
    policy.refit()
    policy.ask()
    mean, chance = seen[-1]
    latent, std = policy._beliefs.anywhere(actions.all)
    torch.testing.assert_close(mean[0, 1], policy.posterior().costs.mean[0])
    exact = ndtr((ndtri(0.4) - latent[0, 1].numpy()) / std[0, 1].numpy())
    np.testing.assert_allclose(chance[0].numpy(), exact, rtol=0, atol=1e-9)


def test_the_botorch_model_is_latent():
    actions = cb.Finite(torch.linspace(0, 1, 20).double().unsqueeze(-1))
    policy = played(actions, rounds=15)
    policy.refit()
    model = policy.model.models[1]
    posterior = model.posterior(actions.all)
    mean, std = policy._beliefs.anywhere(actions.all)
    torch.testing.assert_close(posterior.mean[:, 0], mean[0, 1], rtol=0, atol=1e-6)
    deviation = posterior.variance[:, 0].sqrt()
    torch.testing.assert_close(deviation, std[0, 1], rtol=0, atol=1e-6)


@pytest.mark.slow
def test_intervals_hold_the_truth_as_often_as_they_say():
    """Of the 90 % intervals of 200 functions 87 to 93 % hold it.

    The share's own standard error is about 0.007: places of one function go together.
    """
    functions, places, outcomes = 200, 20, 50
    rng = np.random.default_rng(0)
    x = torch.linspace(0, 1, places, dtype=torch.float64).unsqueeze(-1)
    K = rbf(0.2)(x).to_dense().detach() + 1e-8 * torch.eye(places).double()
    latent = rng.standard_normal((functions, places)) @ np.linalg.cholesky(K.numpy()).T
    index = rng.integers(0, places, (functions, outcomes))
    y = rng.binomial(1, ndtr(np.take_along_axis(latent, index, 1)))
    arms = cb.Finite(covariance=K)
    policy = cb.GPUCB(arms, reward=cb.GP(outcome=BINARY), trials=functions)
    policy.observe(index=index, reward=y.astype(float))
    policy.refit()
    mean, std = policy._beliefs.anywhere(torch.arange(places).double().unsqueeze(-1))
    gap = np.abs(mean[:, 0].numpy() - latent) / std[:, 0].numpy()
    assert 0.87 < (gap < 1.6449).mean() < 0.93


@pytest.mark.parametrize("outcome", [BINARY, COUNT])
@pytest.mark.parametrize("trials", [None, 2])
def test_a_pair_is_an_entry_of_a_list_of_one_cost_too(outcome, trials):
    actions = cb.Finite(torch.linspace(0, 1, 6).double().unsqueeze(-1))
    gp = cb.GP.default(actions)
    share = cb.GP.default(actions, outcome=outcome)
    told = []
    events = 2 if trials is None else [2] * trials
    for pair in ((events, 4), [(events, 4)], [(events, 4.0)]):
        policy = cb.CKB(
            actions, reward=gp, costs=share, thresholds=0.4, trials=trials, seed=1
        )
        reward = 0.5 if trials is None else [0.5] * trials
        policy.tell(policy.ask(), reward=reward, cost=pair)
        told.append(policy.posterior().costs.mean)
    assert torch.equal(told[0], told[1])
    assert torch.equal(told[0], told[2])


@pytest.mark.parametrize("kind", [cb.GPUCB, cb.GPTS])
def test_a_recommendation_of_a_share_without_costs(kind):
    points = torch.linspace(0, 1, 9, dtype=torch.float64).unsqueeze(-1)
    gp = cb.GP.default(cb.Finite(points), outcome="binary")
    policy = kind(cb.Finite(points), reward=gp)
    for _ in range(12):
        choice = policy.ask()
        policy.tell(choice, reward=float(choice.x) > 0.5)
    best = policy.recommend()
    assert 0 < float(best.value) < 1
    assert float(best.x) > 0.5
