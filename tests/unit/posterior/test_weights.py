"""Linear beliefs and the engine of weights, against dense solves by numpy."""

from __future__ import annotations

import itertools
import math
import pickle

import gpytorch
import numpy as np
import pytest
import torch
from inside import (
    Ahead,
    Beliefs,
    Covariance,
    Observation,
    Prior,
    Streams,
    Update,
    engine_choice,
    tear,
)

import cbandit as cb
from cbandit_kernels import (
    WeightRows,
    WeightSums,
    enter_weights,
    enter_weights_ref,
    look_weights,
    look_weights_ref,
)

F64 = torch.float64
CPU = torch.device("cpu")
SPACE = cb.Space(
    model=cb.Category("a", "b", "c"),
    load=cb.Float(0.0, 10.0),
    size=cb.Float(1.0, 100.0, log=True),
)


def standardised(x):
    """Numbers of SPACE less their middle, over the spread of a uniform draw."""
    load = (x[..., 0] - 5) / (10 / math.sqrt(12))
    size = (np.log(x[..., 1]) - math.log(100) / 2) / (math.log(100) / math.sqrt(12))
    return np.stack([load, size], -1)


def hand_made(x, kinds=3):
    """Features of SPACE in one big system: a block of (numbers, 1) a category."""
    z = standardised(x)
    ones = np.concatenate([z, np.ones_like(z[..., :1])], -1)
    block = x[..., 2].round().astype(int)
    out = np.zeros((*x.shape[:-1], kinds, ones.shape[-1]))
    np.put_along_axis(out, block[..., None, None], ones[..., None, :], -2)
    return out.reshape(*x.shape[:-1], -1)


class Stream:
    """Rounds of SPACE with their outcomes, in two trials.

    Args:
        rounds: how many.
        functions: how many are observed together.
    """

    def __init__(self, rounds, functions=2, trials=2, seed=0):
        rng = np.random.default_rng(seed)
        self.t = np.arange(1, rounds + 1)
        low, high = np.array([0.0, 1.0, 0.0]), np.array([10.0, 100.0, 3.0])
        x = low + (high - low) * rng.random((rounds, trials, 3))
        x[..., 2] = np.floor(x[..., 2])
        truth = rng.normal(size=(trials, functions, 9))
        self.x = x
        noise = 0.3 * rng.normal(size=(rounds, trials, functions))
        self.y = np.einsum("ntd,tfd->ntf", hand_made(x), truth) + noise + 5
        self.wanted = np.ones((rounds, trials), dtype=bool)

    def told(self, beliefs, first=0, last=None):
        for n in range(first, len(self.t) if last is None else last):
            x = torch.from_numpy(self.x[n])
            values, wanted = torch.from_numpy(self.y[n]), self.wanted[n].tolist()
            every, t = list(range(values.shape[-1])), int(self.t[n])
            keys = list(map(tuple, x.tolist()))
            row = Observation(every, keys, x, values, wanted, t=t)
            beliefs = beliefs.aged(t).absorb([row])
        return beliefs


def dense(stream, x, now, ridge=1.0, noise=None, fade=1.0, trial=0, features=hand_made):
    """Means and deviations ``(f, n)`` in the user's units by weighted least squares.

    The prior does not fade, and the noise is its conjugate posterior's unless stated.
    """
    real = stream.wanted[:, trial]
    h, y = features(stream.x[real, trial]), stream.y[real, trial]
    weight = fade ** (now - stream.t[real]).astype(float)
    center, size = y.mean(0), y.std(0, ddof=1)
    y = (y - center) / size
    precision = ridge * np.eye(h.shape[1]) + (h * weight[:, None]).T @ h
    w = np.linalg.solve(precision, (h * weight[:, None]).T @ y)
    left = (weight[:, None] * y**2).sum(0) - np.einsum("df,de,ef->f", w, precision, w)
    level = (1 + left / 2) / (1 + weight.sum() / 2)
    level = level if noise is None else np.full_like(level, noise)
    at = features(x)
    var = np.einsum("nd,dn->n", at, np.linalg.solve(precision, at.T))
    mean = center[:, None] + size[:, None] * (at @ w).T
    return mean, np.sqrt(level[:, None] * var) * size[:, None], level


def believed(space=SPACE, count=2, trials=2, dtype=F64, **more):
    gp = cb.GP.linear(space, **more)
    return Beliefs.start([gp] * count, space, (trials,), dtype, CPU)


def in_users_units(beliefs, x):
    units = beliefs.units()
    mean, std = beliefs.anywhere(torch.as_tensor(x))
    center, size = units.center.unsqueeze(-1), units.size.unsqueeze(-1)
    return (center + size * mean).numpy(), (size * std).numpy()


def off(beliefs, stream, now, fade=1.0, trials=2, **more):
    """The largest error at some points, in spreads of what was observed."""
    x = Stream(40, trials=1, seed=9).x[:, 0]
    mean, std = in_users_units(beliefs, x)
    errors = []
    for trial in range(trials):
        wanted, deviation, _ = dense(stream, x, now, fade=fade, trial=trial, **more)
        spread = stream.y[stream.wanted[:, trial], trial].std(0)[:, None]
        errors.append(np.abs((mean[trial] - wanted) / spread).max())
        errors.append(np.abs((std[trial] - deviation) / spread).max())
    return max(errors)


@pytest.mark.parametrize("fade", [None, 0.99])
@pytest.mark.parametrize("noise", [None, 0.3])
def test_two_thousand_rounds_are_a_dense_solve(fade, noise):
    """Of one big system: blocks give the same; some rounds are seen by one trial."""
    stream = Stream(2000)
    stream.wanted[::7, 1] = False
    beliefs = stream.told(believed(fade=fade, noise=noise, ridge=2.0))
    assert len(beliefs.groups) == 1  # both functions share their sums
    more = {"ridge": 2.0, "noise": noise}
    assert off(beliefs, stream, 2000, fade or 1.0, **more) < 1e-10
    # and later, without news: the prior does not fade
    later = beliefs.aged(2600)
    if fade is not None:
        assert off(later, stream, 2600, fade, **more) < 1e-10
        assert off(later.aged(2000), stream, 2000, fade, **more) < 1e-10


def test_numbers_may_differ_from_trial_to_trial():
    stream = Stream(80)
    ridge, fade, noise = [1.0, 4.0], [0.9, 1.0], [0.2, 0.6]
    more = {"ridge": torch.tensor(ridge), "noise": torch.tensor(noise)}
    beliefs = stream.told(believed(fade=torch.tensor(fade), **more))
    at = stream.x[:7, 0]
    mean, std = in_users_units(beliefs, at)
    for i in range(2):
        of = {"ridge": ridge[i], "noise": noise[i], "fade": fade[i], "trial": i}
        wanted, deviation, _ = dense(stream, at, 80, **of)
        assert np.abs(mean[i] - wanted).max() < 1e-6  # the numbers are float32
        assert np.abs(std[i] - deviation).max() < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fade", "rounds"),
    [(None, 40_000), (0.997, 15_000)],  # a round of 10 000 ago counts 1e-13 there
)
def test_many_rounds_are_a_dense_solve(fade, rounds):
    """Told to the engine one by one, as a policy does; 1e-9 of a spread."""
    stream = Stream(rounds, functions=1, trials=1)
    engine = engine_of(SPACE, fade=fade, trials=1, functions=1)
    y = (stream.y - stream.y.mean(0)) / stream.y.std(0, ddof=1)
    stream.y = y
    for n, t in enumerate(stream.t.tolist()):
        engine.turn(t)
        x, values = torch.from_numpy(stream.x[n]), torch.from_numpy(y[n])
        engine.add(Update([n], x, values, torch.ones(1, dtype=F64), [True], False, t))
    at = Stream(40, trials=1, seed=9).x[:, 0]
    mean, var = engine.history.at(torch.from_numpy(at))
    wanted, std, _ = dense(stream, at, rounds, noise=1.0, fade=fade or 1.0)
    assert np.abs(mean[0].numpy() - wanted).max() < 1e-9
    assert np.abs(var[0].sqrt().numpy() - std[0]).max() < 1e-9


def engine_of(space=SPACE, trials=2, functions=2, fade=None, dtype=F64, kernel=None):
    kernel = cb.GP.linear(space).kernel if kernel is None else kernel
    covariance = Covariance.of(kernel, space)
    faded = None if fade is None else torch.full((trials,), fade, dtype=F64)
    prior = Prior(space, covariance, (trials,), dtype, CPU, fade=faded)
    plan = engine_choice.Plan("weights", "asked for")
    return engine_choice.make_engine(plan, prior, functions)


def test_the_noise_is_its_conjugate_posterior():
    """An inverse gamma: mean precision 1, two observations, whatever the groups."""
    stream = Stream(60, functions=2, trials=2)
    beliefs = stream.told(believed())
    levels = beliefs.noises().numpy()
    for trial in range(2):
        level = dense(stream, stream.x[0], 60, trial=trial)[2]
        assert np.abs(levels[trial] - level).max() < 1e-11
    apart = Beliefs.start([cb.GP.linear(SPACE)] * 2, SPACE, (2,), F64, CPU, apart=True)
    assert torch.allclose(stream.told(apart).noises(), beliefs.noises(), rtol=1e-12)
    # the marginal likelihood of the data under it, by the densities of Student's t
    y = (stream.y[:, 0, 0] - stream.y[:, 0, 0].mean()) / stream.y[:, 0, 0].std(ddof=1)
    h = hand_made(stream.x[:, 0])
    spread = np.eye(60) + h @ h.T
    scale = (2 / 2 + y @ np.linalg.solve(spread, y) / 2) / (2 / 2 + 60 / 2)
    assert abs(levels[0, 0] - scale) < 1e-11


def test_faded_draws_are_the_same_whatever_signs_eigenvectors_have(monkeypatch):
    """Processors differ in the signs."""
    eigh, x = torch.linalg.eigh, torch.from_numpy(Stream(1).x[0]).unsqueeze(1)

    def turned(matrix):
        values, vectors = eigh(matrix)
        return values, vectors * (-1.0) ** torch.arange(vectors.shape[-1])

    def draw():
        beliefs = Stream(20).told(believed(fade=0.9))
        return beliefs.solver(streams=Streams(4, 2))(x)[1]

    usual = draw()
    monkeypatch.setattr(torch.linalg, "eigh", turned)
    assert torch.allclose(draw(), usual, rtol=0, atol=1e-9)


@pytest.mark.parametrize("features", [None, 24])
def test_a_rebuilt_engine_draws_the_same_functions(features):
    """As after an interrupt: the root of the weights does not depend on the path."""
    told = Stream(60).told(believed(features=features))
    x = torch.from_numpy(Stream(8).x).transpose(0, 1)
    before = told.solver(streams=Streams(4, 2))(x)
    tear(told)
    after = told.solver(streams=Streams(4, 2))(x)
    for one, other in zip(before, after, strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-10)


@pytest.mark.parametrize("fade", [None, 0.98])
def test_draws_have_the_posterior_moments(fade):
    """Chi-square of 2 000 draws; all tests together fail once in 10^5 runs."""
    stream = Stream(120, trials=1)
    beliefs = stream.told(believed(trials=1, fade=fade))
    x = torch.from_numpy(Stream(5, trials=1, seed=3).x[:, 0])
    streams = Streams(4, 1)
    draws = [beliefs.solver(streams=streams)(x) for _ in range(2000)]
    many = torch.stack([draw[0] for _, draw in draws])
    std = beliefs.anywhere(x)[1][0]
    half = beliefs.groups[0].engine.history.covariances(x)(x)[0][0]
    for f in range(2):
        level = beliefs.noises()[0, f]
        assert torch.allclose((half.diagonal() * level).sqrt(), std[f], rtol=1e-9)
        root = torch.linalg.cholesky(half * level + 1e-12 * torch.eye(5))
        z = torch.linalg.solve_triangular(root, many[:, f].mT, upper=False)
        total, free = float(z.square().sum()), z.numel()
        assert abs(total - free) < 4.9 * math.sqrt(2 * free)
        assert float(z.mean(1).abs().max()) < 4.9 / math.sqrt(2000)
        lower = torch.tril(z @ z.mT / 2000, -1)
        assert float(lower.abs().max()) < 5.3 / math.sqrt(2000)
    both = (many[:, 0] * many[:, 1]).mean(0) / (std[0] * std[1])
    assert float(both.abs().max()) < 5.0 / math.sqrt(2000)  # independent


OPEN = cb.Space(model=cb.Category("a", "b"), prompt=cb.Context(2)).domain


@pytest.mark.parametrize(
    "space", [SPACE, cb.Box([0.0, 0.0], [2.0, 1.0]), OPEN], ids=str
)
def test_random_features_are_near_the_default_kernel(space):
    """Each entry is a mean of 10^4 waves within [-1, 1]: Hoeffding, 10^-6 in all."""
    kernel = cb.GP.linear(space, features=20_000).kernel
    low, high = space.extent()
    draw = torch.rand(30, space.dim, generator=torch.Generator().manual_seed(0))
    x = low + (high - low) * draw.double()
    x[:, kernel.categories] = x[:, kernel.categories].round()
    x[:, kernel.numbers[-1]] *= 1.5 if space is OPEN else 1.0  # it has no bounds
    default = Covariance.of(
        cb.GP.default(space).kernel, space, cb.GP.default(space).unit
    )
    made = kernel(x, x).to_dense()
    entries = 30 * 29 / 2
    bound = math.sqrt(2 * math.log(2 * entries / 1e-6) / 10_000)
    error = (made - default.cross(x, x)).abs().max()
    assert error < bound, (error, bound)
    assert torch.allclose(made.diagonal(), torch.ones(30, dtype=F64))


@pytest.mark.parametrize("options", [{}, {"fade": 0.99}], ids=["stays", "fades"])
def test_random_features_are_a_dense_solve(options):
    stream = Stream(150)
    stream.x[..., 2] = np.minimum(stream.x[..., 2], 2)
    beliefs = stream.told(believed(features=40, **options))
    kernel = cb.GP.linear(SPACE, features=40).kernel

    def features(x):
        return kernel.features(torch.from_numpy(x)).numpy()

    fade = options.get("fade", 1.0)
    assert off(beliefs, stream, 150, fade, features=features) < 1e-10


def test_random_features_of_a_context_without_bounds():
    belief = cb.GP.linear(CONTEXTS, features=60, noise=0.1)
    policy = cb.GPUCB(CONTEXTS, reward=belief)
    told = torch.randn(40, 4, generator=torch.Generator().manual_seed(3)).double()
    for row in told:
        choice = policy.ask(context=row)
        policy.tell(choice, reward=float(row[0]) * (choice.index + 1))
    kernel, frame = belief.kernel, policy.history()
    y = torch.tensor(frame["reward"].to_numpy())
    models = torch.tensor([["a", "b", "c"].index(m) for m in frame["model"]])
    x = torch.cat([told, models.double().unsqueeze(-1)], -1)
    at = torch.cat([told[:3], torch.zeros(3, 1).double()], -1)
    h, new = kernel.features(x), kernel.features(at)
    z = (y - y.mean()) / y.std()
    inner = h @ h.mT + 0.1 * torch.eye(40, dtype=F64)
    mean = y.mean() + y.std() * (new @ h.mT @ torch.linalg.solve(inner, z))
    shown = [{"model": "a", "prompt": row.tolist()} for row in told[:3]]
    assert torch.allclose(policy.posterior(params=shown).reward.mean, mean, rtol=1e-9)


@pytest.mark.parametrize("constant", [1.0, 9.0])
def test_numbers_without_bounds_are_standardised_by_what_was_seen(constant):
    """By the first 4, 8, 16, .. points; the answer is that of a solve from scratch."""
    space = cb.Space(u=cb.Float(0.0, 1.0), z=cb.Context(1)).domain
    rng = np.random.default_rng(5)
    rounds = 100
    stream = Stream(rounds)
    stream.x = rng.random((rounds, 2, 2)) * [1.0, 1e6] + [0.0, 1.7e9]
    stream.y = stream.x / [1.0, 1e6] + 0.1 * rng.normal(size=(rounds, 2, 2))
    stream.wanted[5::3, 1] = False
    beliefs = stream.told(believed(space, fade=0.99, constant=constant))
    at = stream.x[:9, 0]
    mean, std = in_users_units(beliefs, at)
    rows = []
    for n in range(rounds):
        values, wanted = torch.from_numpy(stream.y[n]), stream.wanted[n].tolist()
        x = torch.from_numpy(stream.x[n])
        keys = list(map(tuple, x.tolist()))
        rows.append(Observation([0, 1], keys, x, values, wanted))
    for trial in range(2):
        seen = stream.x[stream.wanted[:, trial], trial]
        first = seen[: 1 << (len(seen).bit_length() - 1)]

        def features(x, first=first):
            z = np.stack(
                [
                    (x[..., 0] - 0.5) * math.sqrt(12),
                    (x[..., 1] - first[:, 1].mean()) / first[:, 1].std(ddof=1),
                    np.full(x.shape[:-1], math.sqrt(constant)),
                ],
                -1,
            )
            return z

        wanted, deviation, _ = dense(
            stream, at, rounds, fade=0.99, trial=trial, features=features
        )
        assert np.abs(mean[trial] - wanted).max() < 1e-8
        assert np.abs(std[trial] - deviation).max() < 1e-8
    # many at once go the same way
    engine = engine_of(space)
    single = engine_of(space)
    updates = [
        Update(r.keys, r.x, r.values, torch.tensor(r.wanted).double(), r.wanted)
        for r in rows
    ]
    engine.add_all(updates)
    for update in updates:
        single.add(update)
    for one, other in zip(
        engine.history.at(torch.from_numpy(at)),
        single.history.at(torch.from_numpy(at)),
        strict=True,
    ):
        assert torch.allclose(one, other, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("fade", [None, 0.999])
@pytest.mark.parametrize("rounds", [3, 40])
def test_numbers_far_from_zero_are_as_good_as_near_it(fade, rounds):
    """Seconds since 1970 in half seconds, told one by one and all at once."""
    space = cb.Space(model=cb.Category("a", "b"), now=cb.Context(1))
    generator = torch.Generator().manual_seed(3)
    models = torch.randint(2, (rounds,), generator=generator).double()
    y = torch.randn(rounds, generator=generator, dtype=F64) + models
    means = []
    for origin in (0.0, 1.7e9):
        now = origin + 0.5 * torch.arange(1, rounds + 1, dtype=F64)
        x = torch.stack([now, models], -1)  # numbers come first
        gp = cb.GP.linear(space, fade=fade)
        single = cb.GPUCB(space, reward=gp)
        for row, value in zip(x, y, strict=True):
            single.observe(x=row.unsqueeze(0), reward=value.reshape(1))
        policies = [single]
        if rounds > 8:  # fewer are told one by one
            policies.append(cb.GPUCB(space, reward=gp))
            policies[1].observe(x=x, reward=y)
        for policy in policies:
            post = policy.posterior(x=x[-3:]).reward
            means.append(torch.stack([post.mean, post.std]))
    for other in means[1:]:
        assert torch.allclose(other, means[0], rtol=0, atol=1e-6)


# -- policies --------------------------------------------------------------------------


CONTEXTS = cb.Space(model=cb.Category("a", "b", "c"), prompt=cb.Context(4))
GRID = cb.Space(model=cb.Category("a", "b"), size=cb.Int(1, 6, log=True))
POINTS = cb.Finite(torch.randn(60, 3, generator=torch.Generator().manual_seed(1)))
SETS = {
    "contexts": CONTEXTS,
    "grid": GRID,
    "points": POINTS,
    "box": cb.Box([0.0, 0.0], [1.0, 2.0]),
    "space": SPACE,
}
RULES = {
    "CKB": lambda a, gp, **more: cb.CKB(a, reward=gp, costs=gp, **more),
    "RPOL": lambda a, gp, **more: cb.RPOL(a, reward=gp, costs=gp, **more),
    "CONFIG": lambda a, gp, **more: cb.baselines.CONFIG(a, reward=gp, costs=gp, **more),
    "GPUCB": lambda a, gp, **more: cb.GPUCB(a, reward=gp, **more),
    "GPTS": lambda a, gp, **more: cb.GPTS(a, reward=gp, explore=cb.TS(1.0), **more),
    "TS": lambda a, gp, **more: cb.CKB(
        a, reward=gp, costs=gp, explore=cb.TS(0.5), **more
    ),
}


def played(policy, rounds, seed=0, first=0):
    """Play some rounds of a made-up world; return what was chosen."""
    generator = torch.Generator().manual_seed(seed)
    chosen = []
    for t in range(first + rounds):
        shown = torch.randn(4, generator=generator, dtype=F64)
        noise = torch.randn(2, 2, generator=generator, dtype=F64)
        if t < first:
            continue
        more = {"context": shown} if policy.actions.domain is not policy.actions else {}
        choice = policy.ask(**more)
        x = choice.x.double()
        shape = x.shape[:-1]
        reward = x.sin().sum(-1) + 0.1 * noise[0, : max(1, math.prod(shape))].reshape(
            shape
        )
        told = {"reward": reward}
        if policy.m:
            told["cost"] = x.cos().sum(-1)
        policy.tell(choice, **told)
        chosen.append(x)
    return torch.stack(chosen)


@pytest.mark.parametrize("trials", [None, 2])
@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("rule", ["CKB", "TS"])
def test_every_set_is_saved_and_resumed_to_the_bit(rule, name, trials, tmp_path):
    """With fading or without; the engine is that of weights."""
    actions = SETS[name]
    fade = 0.98 if trials else None
    more = {"thresholds": 0.5, "trials": trials, "seed": 3}
    rounds = 4 if actions.continuous else 8
    policy = RULES[rule](actions, cb.GP.linear(actions, fade=fade), **more)
    assert "weights" in policy.engine
    played(policy, rounds)
    policy.save(tmp_path / "policy")
    again = cb.load(tmp_path / "policy")
    one, other = (played(each, rounds, first=rounds) for each in (policy, again))
    assert torch.equal(one, other)


@pytest.mark.parametrize("rule", ["RPOL", "CONFIG", "GPUCB", "GPTS"])
def test_every_rule_plays_in_contexts(rule):
    more = {} if rule.startswith("GP") else {"thresholds": 0.5}
    policy = RULES[rule](CONTEXTS, cb.GP.linear(CONTEXTS, fade=0.99), **more)
    played(policy, 12)
    said = policy.recommend(context=torch.ones(4))
    assert said.params["model"] in ("a", "b", "c")
    posterior = policy.posterior(context=torch.ones(4))
    assert posterior.reward.mean.shape == (3,)
    assert bool((posterior.reward.std > 0).all())
    choice = policy.ask(context=torch.ones(4))
    assert choice.params["model"] in str(policy.explain(choice))


def by_hand(policy, x, told, **more):
    """The posterior of the reward by :func:`dense`, of a policy without trials."""
    stream = Stream(1)
    stream.x = np.stack([row.numpy() for row, _ in told])[:, None]
    stream.y = np.array([y for _, y in told])[:, None, None]
    stream.t = np.arange(1, len(told) + 1)
    stream.wanted = np.ones((len(told), 1), dtype=bool)
    return dense(stream, x, len(told), **more)


def test_a_window_keeps_its_rounds_only():
    policy = cb.GPUCB(
        SPACE, reward=cb.GP.linear(SPACE, ridge=3.0), feedback=cb.Sliding(7)
    )
    told = []
    for t in range(15):
        choice = policy.ask()
        told.append((choice.x, math.sin(t)))
        policy.tell(choice, reward=math.sin(t))
    policy.ask()  # it looks at rounds 10 to 16
    at = Stream(9, trials=1).x[:, 0]
    got = policy.posterior(torch.from_numpy(at)).reward
    mean, std, _ = by_hand(policy, at, told[-6:], ridge=3.0)
    assert np.abs(got.mean.numpy() - mean[0]).max() < 1e-9
    assert np.abs(got.std.numpy() - std[0]).max() < 1e-9


def test_a_window_standardises_inputs_by_its_own_rounds(tmp_path):
    """What has left the window is forgotten here too, saved in between or not."""
    space = cb.Space(model=cb.Category("a", "b"), load=cb.Context(2))
    gp, path = cb.GP.linear(space), tmp_path / "policy"
    policy, late = (
        cb.GPUCB(space, reward=gp, feedback=cb.Sliding(6)) for _ in range(2)
    )
    told = []
    for t in range(14):
        choice = policy.ask(context=[0.5 * t, math.cos(t)])
        told.append((choice.x, math.sin(t)))
        policy.tell(choice, reward=math.sin(t))
    x, y = zip(*told[-6:], strict=True)
    late.observe(x=torch.stack(x), reward=y)
    found = policy.posterior(x[0].unsqueeze(0)).reward
    policy.save(path, actions=False)
    for other in (late, policy, cb.load(path, actions=space)):
        want = other.posterior(x[0].unsqueeze(0)).reward
        torch.testing.assert_close(found.mean, want.mean, rtol=0, atol=1e-10)
        torch.testing.assert_close(found.std, want.std, rtol=0, atol=1e-10)


def test_feedback_that_comes_later_takes_its_place():
    """Delayed: what has not come counts as average, and then as what came."""
    gp = cb.GP.linear(SPACE)
    policy = cb.GPUCB(SPACE, reward=gp, feedback=cb.Delayed(50))
    choices, told = [policy.ask() for _ in range(12)], []
    for t, choice in enumerate(choices):
        told.append((choice.x, math.sin(t)))
        policy.tell(choice, reward=math.sin(t))
    at = Stream(9, trials=1).x[:, 0]
    got = policy.posterior(torch.from_numpy(at)).reward
    mean, std, _ = by_hand(policy, at, told)
    assert np.abs(got.mean.numpy() - mean[0]).max() < 1e-9
    assert np.abs(got.std.numpy() - std[0]).max() < 1e-9


@pytest.mark.parametrize("actions", [GRID, POINTS], ids=["blocks", "arrays"])
def test_outstanding_choices_count_by_their_variance(actions):
    """Deviations are as if each had been told the mean that it was believed to have."""
    fixed = cb.GP.linear(actions, noise=0.2)
    beliefs = Beliefs.start([fixed], actions, (1,), F64, CPU)
    generator = torch.Generator().manual_seed(2)
    for t in range(6):
        keys = torch.randint(12, (1,), generator=generator)
        y = torch.randn(1, 1, generator=generator, dtype=F64)
        row = Observation([0], keys.tolist(), actions.at(keys), y, [True], t=t)
        beliefs = beliefs.absorb([row])
    ahead, told = [], beliefs
    for key in (3, 11, 3, 0, 7, 7, 5, 9, 2, 3):  # more than there are features
        x = actions.at(torch.tensor([key]))
        ahead.append(Ahead([key], x, [[True]]))
        row = Observation([0], [key], x, torch.zeros(1, 1).double(), [True])
        told = told.absorb([row])
        _, wanted = told.anywhere(actions.block(0, actions.size))
        (block,) = beliefs.blocks(ahead=ahead)
        assert torch.allclose(block.std, wanted, rtol=0, atol=1e-10)
        other = beliefs.anywhere(actions.block(0, actions.size), ahead)[1]
        assert torch.allclose(other, wanted, rtol=0, atol=1e-10)


@pytest.mark.parametrize("dtype", [F64, torch.float32])
def test_kept_variances_follow_what_opens_is_told_and_is_cancelled(dtype):
    """After every change they are a dense solve with all that is told and open."""
    gp, generator = cb.GP.linear(POINTS, noise=0.2), torch.Generator().manual_seed(8)
    beliefs = Beliefs.start([gp], POINTS, (2,), dtype, CPU)
    ahead, changes = [], []
    for t in range(90):
        key = torch.randint(60, (2,), generator=generator)
        drawn = float(torch.rand((), generator=generator))
        if drawn < 0.3 and ahead:
            at = int(torch.randint(len(ahead), (), generator=generator))
            choice = ahead.pop(at)
            if drawn < 0.2:  # out of order; else cancelled
                values = torch.randn(2, 1, generator=generator, dtype=F64)
                of = choice.keys, choice.x, values, [True, choice.waits[0][1]]
                beliefs = beliefs.absorb([Observation([0], *of, t=t)])
        else:
            waits = [[True, t % 4 > 0]]
            ahead.append(Ahead(key.tolist(), POINTS.at(key), waits))
        if t == 60:
            beliefs = pickle.loads(pickle.dumps(beliefs))
        engine = beliefs.groups[0].engine
        before = engine.bytes()
        (block,) = beliefs.blocks(ahead=ahead)
        changes.append(engine.bytes() - before)
        history = engine.history
        table, root = history.features(POINTS.block(0, 60)), history.weights()[1][:, 0]
        inverse = torch.linalg.inv((root @ root.mT).double())
        precision = beliefs.groups[0].noise.unsqueeze(-1).reciprocal()
        for choice in ahead:
            row = history.features(choice.x.double())
            wanted = torch.tensor(choice.waits[0])[:, None] * precision
            inverse += (wanted * row).unsqueeze(-1) * row.unsqueeze(-2)
        var = torch.linalg.vecdot(table @ torch.linalg.inv(inverse), table[None])
        error = (block.std[:, 0].double() - var.sqrt()).abs().max()
        assert error < (1e-10 if dtype == F64 else 1e-5)
    assert len(ahead) > 20 and sum(map(bool, changes)) <= 3  # kept, not made again


def test_one_cost_alone_splits_the_sums():
    """Costs told apart from the reward have sums of their own."""
    gp = cb.GP.linear(CONTEXTS)
    policy = cb.CKB(CONTEXTS, reward=gp, costs=[gp, gp], thresholds=0.5)
    shown = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    for row in shown:
        choice = policy.ask(context=row)
        policy.tell(choice, reward=float(row[0]), cost=[float(row[1]), float(row[2])])
    assert len(policy._beliefs.groups) == 1
    choice = policy.ask(context=shown[0])
    policy.tell(choice, reward=1.0)
    policy.ask(context=shown[1])
    assert len(policy._beliefs.groups) == 2


def test_rows_from_before_and_one_by_one_are_the_same():
    stream = Stream(30, functions=1, trials=1)
    x = torch.from_numpy(stream.x[:, 0])
    y = torch.from_numpy(stream.y[:, 0, 0])
    many = cb.GPUCB(SPACE, reward=cb.GP.linear(SPACE, fade=0.9))
    many.observe(x=x, reward=y)
    single = cb.GPUCB(SPACE, reward=cb.GP.linear(SPACE, fade=0.9))
    for n in range(30):
        single.observe(x=x[n : n + 1], reward=y[n : n + 1])
    one, other = (each.posterior(x).reward for each in (many, single))
    assert torch.allclose(one.mean, other.mean, rtol=0, atol=1e-9)
    assert torch.allclose(one.std, other.std, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("space", "more"),
    [(CONTEXTS, {"fade": 0.95}), (GRID, {}), (GRID, {"features": 30})],
    ids=["contexts", "grid", "waves"],
)
def test_a_newcomer_starts_from_the_prior(space, more, tmp_path):
    """What was learned of the others stays, also after a checkpoint."""
    policy = cb.GPUCB(space, reward=cb.GP.linear(space, **more), seed=2)
    played(policy, 10)
    name = next(iter(space.names.parameters))
    shown = {"context": torch.ones(4)} if space is CONTEXTS else {}
    before = policy.posterior(**shown).reward
    policy.add(name, "new")
    after = policy.posterior(**shown).reward
    count = before.mean.shape[-1]
    assert after.mean.shape[-1] > count
    assert torch.allclose(after.mean[:count], before.mean, rtol=0, atol=1e-9)
    assert torch.allclose(after.std[:count], before.std, rtol=0, atol=1e-9)
    assert after.std[count:].min() > before.std.min()
    if "features" not in more:  # it shares no weight with the others
        units = policy._beliefs.units()
        center = units.center[0, 0]
        assert (after.mean[count:] - center).abs().max() < 1e-9
    policy.save(tmp_path / "policy")
    again = cb.load(tmp_path / "policy")
    assert torch.equal(played(policy, 5, first=10), played(again, 5, first=10))


# -- the last contexts -----------------------------------------------------------------

ROUTES = cb.Space(
    model=cb.Category("a", "b", "c"),
    prompt=cb.Context(3),
    region=cb.Category("eu", "us"),
)


def off_a_fresh_look(beliefs, space, contexts, ahead=()):
    """The largest difference of moments in contexts from those at points."""
    points = space.candidates(contexts).flatten(1, 2)
    pairs = zip(
        beliefs.in_contexts(space, contexts, ahead),
        beliefs.anywhere(points, ahead),
        strict=True,
    )
    return max(float((one.flatten(2) - other).abs().max()) for one, other in pairs)


@pytest.mark.parametrize("fade", [None, 0.99])
def test_the_last_contexts_are_a_fresh_look_after_two_thousand_rounds(
    fade, monkeypatch
):
    """Only the newest context is computed: rows are counted as they are made."""
    beliefs, rows = believed(ROUTES.domain, fade=fade), []
    first = type(ROUTES).of_first

    def counted(space, values):
        rows.append(values.shape[1])
        return first(space, values)

    monkeypatch.setattr(type(ROUTES), "of_first", counted)
    generator = torch.Generator().manual_seed(4)
    shown = torch.randn(2, 2000, 3, generator=generator, dtype=F64) + 2
    errors = []
    for t in range(1, 2001):
        beliefs, contexts = beliefs.aged(t), shown[:, max(0, t - 30) : t]
        beliefs.in_contexts(ROUTES, contexts)
        number = torch.randint(6, (2,), generator=generator)
        x = ROUTES.candidates(shown[:, t - 1])[[0, 1], number]
        if t % 100 == 1 or t == 2000:
            waits = [[True, t % 3 == 0], [True, t % 3 == 0]]
            away = Ahead([0, 1], x.roll(1, -1), waits)
            few = [Ahead([0, 1], x, waits), away]
            many = [Ahead([0, 1], x.roll(1, k), waits) for k in range(2)] * 8
            for ahead in ([], few, few + many):
                errors.append(off_a_fresh_look(beliefs, ROUTES, contexts, ahead))
        y = torch.randn(2, 2, generator=generator, dtype=F64) + x[:, :1]
        of = list(map(tuple, x.tolist())), x, y, [True, t % 5 > 0]
        beliefs = beliefs.absorb([Observation([0, 1], *of, t=t)])
    assert max(errors) < 1e-12
    # all rows anew only while inputs are standardised anew, at powers of two
    assert sum(rows) < 2000 + 30 * 11 + 3 * len(errors)


@pytest.mark.parametrize("fade", [None, 0.9])
def test_many_open_choices_of_several_categories_count_as_if_told(fade):
    """There are more of them than features, in some of the blocks only."""
    beliefs = believed(ROUTES.domain, fade=fade)
    generator = torch.Generator().manual_seed(6)
    shown = torch.randn(2, 21, 3, generator=generator, dtype=F64)
    points = ROUTES.candidates(shown[:, :2]).flatten(1, 2)

    def absorbed(beliefs, x, t):
        values, wanted = torch.zeros(2, 2, dtype=F64), [True, t % 3 > 0]
        of = list(map(tuple, x.tolist())), x, values, wanted
        return beliefs.absorb([Observation([0, 1], *of, t=t)])

    for t in range(1, 5):
        beliefs = beliefs.aged(t)
        beliefs = absorbed(beliefs, ROUTES.candidates(shown[:, t])[:, t], t)
    ahead = []
    for t in range(5, 21):
        x = ROUTES.candidates(shown[:, t])[:, t % 4]
        waits = [[True, t > 6]] * 2
        ahead.append(Ahead(list(map(tuple, x.tolist())), x, waits))
    history = beliefs.groups[0].engine.history
    root, block = history.weights()[1], history.covariance.block
    coming = torch.stack([choice.x for choice in ahead], 1)
    h, rows = history.features(points), history.features(coming)
    precision = torch.tensor([choice.waits[0] for choice in ahead]).mT
    less = torch.empty(2, 1, points.shape[1], dtype=F64)
    for trial, i in itertools.product(range(2), range(points.shape[1])):
        mine = block(points[trial, i : i + 1])
        before = root[trial, mine[0]] @ root[trial, mine[0]].mT
        told = rows[trial, precision[trial] & (block(coming[trial]) == mine)]
        after = torch.linalg.inv(torch.linalg.inv(before) + told.mT @ told)
        at = h[trial, i]
        less[trial, 0, i] = ((at @ after @ at) / (at @ before @ at)).sqrt()
    assert less.min() < 0.8 and less.max() > 1 - 1e-9  # blocks with and without
    wanted = beliefs.anywhere(points)[1] * less
    at_points = beliefs.anywhere(points, ahead)[1]
    assert torch.allclose(at_points, wanted, rtol=0, atol=1e-10)
    in_contexts = beliefs.in_contexts(ROUTES, shown[:, :2], ahead)[1].flatten(2)
    assert torch.allclose(in_contexts, wanted, rtol=0, atol=1e-10)


@pytest.mark.parametrize("trials", [None, 2])
@pytest.mark.parametrize("fade", [None, 0.97])
def test_the_last_contexts_of_a_policy_are_a_fresh_look(
    fade, trials, tmp_path, monkeypatch
):
    """With feedback late or never, values that come and go, failures and a file."""
    look, errors = Beliefs.in_contexts, []

    def compared(beliefs, space, contexts, ahead=()):
        points = space.candidates(contexts).flatten(1, 2)
        fresh, out = (
            beliefs.anywhere(points, ahead),
            look(beliefs, space, contexts, ahead),
        )
        errors.extend(
            float((a.flatten(2) - b).abs().max())
            for a, b in zip(out, fresh, strict=True)
        )
        return out

    monkeypatch.setattr(Beliefs, "in_contexts", compared)
    gp = cb.GP.linear(ROUTES, fade=fade)
    policy = cb.CKB(
        ROUTES, reward=gp, costs=gp, thresholds=0.4, price_window=20, trials=trials,
        seed=2,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(5)
    batch = () if trials is None else (trials,)

    def play(policy, generator, rounds, waiting):
        for t in rounds:
            shown = torch.randn(*batch, 3, generator=generator, dtype=F64)
            waiting.append(policy.ask(context=shown))
            if t == 25:
                policy.add("model", "d")
            if t == 30:
                policy.retire("model", "a")
            if t % 11 == 0:
                policy.cancel(waiting.pop(0).id)
            while len(waiting) > (4 if 12 < t < 24 else 0):
                x = waiting[-1].x
                values = torch.randn(*batch, 2, generator=generator, dtype=F64)
                told = values * 0.1 + x[..., :1] * 0.3
                policy.tell(waiting.pop().id, reward=told[..., 0], cost=told[..., 1])

    outstanding = []
    play(policy, generator, range(1, 20), outstanding)
    policy.save(tmp_path / "policy")
    again, state = cb.load(tmp_path / "policy"), generator.get_state()
    play(policy, generator, range(20, 45), list(outstanding))
    play(again, torch.Generator().set_state(state), range(20, 45), list(outstanding))
    assert len(errors) > 100 and max(errors) < 1e-12
    assert torch.equal(policy.multiplier, again.multiplier)
    columns = ["score", "model", "region"]
    one, other = (each.history()[columns] for each in (policy, again))
    assert one.equals(other)


def nothing_told(trials, blocks, functions, width, dtype):
    """Sums of no observation."""
    square = torch.zeros(trials, blocks, width, width, dtype=F64)
    columns = torch.zeros(trials, blocks, functions, width, dtype=F64)
    return WeightSums(
        square.clone(),
        columns.clone(),
        torch.eye(width, dtype=dtype).expand(trials, blocks, -1, -1).clone(),
        columns.clone(),
        torch.zeros(trials, blocks, functions, functions, dtype=F64),
        torch.zeros(trials, blocks, dtype=F64),
    )


@pytest.mark.parametrize("dtype", [F64, torch.float32])
@pytest.mark.parametrize("backend", ["native", "torch"])
def test_sums_and_roots_of_blocks_are_a_dense_solve(dtype, backend):
    if backend == "native":
        pytest.importorskip("numba", reason="numba is not installed: torch is used")
    trials, blocks, functions, width, rounds = 3, 4, 2, 6, 60
    rng = np.random.default_rng(3)
    held = nothing_told(trials, blocks, functions, width, dtype)
    a = np.zeros((trials, blocks, width, width))
    b = np.zeros((trials, blocks, functions, width))
    block = rng.integers(0, blocks - 1, (rounds, trials))  # the last is never told
    h, y = (
        rng.normal(size=(rounds, trials, width)),
        rng.normal(size=(rounds, trials, 2)),
    )
    precision = rng.random((rounds, trials)) * (rng.random((rounds, trials)) < 0.8)
    go = enter_weights if backend == "native" else enter_weights_ref
    look = look_weights if backend == "native" else look_weights_ref
    rows = WeightRows.none(held, rounds)
    shown = rng.normal(size=(rounds, trials, width))
    for n, told in enumerate(zip(block, h, precision, y, strict=True)):
        look(held, rows, torch.from_numpy(shown[n]), backend=backend)
        rows = rows._replace(start=max(0, n - 20), stop=n + 1)
        go(held, rows, *map(torch.from_numpy, told), backend=backend)
        for t, (k, x, p, values) in enumerate(zip(*told, strict=True)):
            a[t, k] += p * np.outer(x, x)
            b[t, k] += p * np.outer(values, x)
    within = 1e-12 if dtype == F64 else 2e-5
    covariance = np.linalg.inv(np.eye(width) + a)
    last = shown[-21:].swapaxes(0, 1)  # T x n x D
    wanted = last[:, None] @ covariance
    var = np.einsum("tknd,tnd->tnk", wanted, last)
    np.testing.assert_allclose(rows.var[:, -21:], var, rtol=0, atol=10 * within)
    mean = np.einsum("tknd,tkfd->tfnk", wanted, b)
    np.testing.assert_allclose(rows.mean[:, :, -21:], mean, rtol=0, atol=10 * within)
    sums, weighted, root, rotated, fitted, log_det = (part.numpy() for part in held)
    np.testing.assert_allclose(sums, a, rtol=0, atol=1e-12)
    np.testing.assert_allclose(weighted, b, rtol=0, atol=1e-12)
    assert (root == np.triu(root)).all()  # so it does not depend on the path
    assert (np.diagonal(root, axis1=-2, axis2=-1) > 0).all()
    turned = np.swapaxes(root, -1, -2)
    np.testing.assert_allclose(root @ turned, covariance, rtol=0, atol=within)
    np.testing.assert_allclose(rotated, b @ root, rtol=0, atol=10 * within)
    exact = b @ covariance @ np.swapaxes(b, -1, -2)
    np.testing.assert_allclose(fitted, exact, rtol=0, atol=100 * within)
    exact = np.linalg.slogdet(np.eye(width) + a)[1]
    np.testing.assert_allclose(log_det, exact, rtol=0, atol=10 * within)
    assert (root[:, -1] == np.eye(width)).all() and (log_det[:, -1] == 0).all()


def test_choices_that_were_never_told_look_like_the_prior():
    """Most of many models have no observation, and are not multiplied out."""
    space = cb.Space(model=cb.Category(*map(str, range(70))), prompt=cb.Context(3))
    gp = cb.GP.linear(space)
    beliefs = Beliefs.start([gp, gp], space.domain, (2,), F64, CPU)
    generator = torch.Generator().manual_seed(1)
    shown = torch.randn(2, 50, 3, generator=generator, dtype=F64)
    for t in range(1, 51):
        contexts = shown[:, max(0, t - 10) : t]
        if t > 1:
            assert off_a_fresh_look(beliefs, space, contexts, []) < 1e-12
        number = torch.randint(70 if t > 20 else 5, (2,), generator=generator)
        x = space.candidates(shown[:, t - 1])[[0, 1], number]
        y = torch.randn(2, 2, generator=generator, dtype=F64)
        of = list(map(tuple, x.tolist())), x, y, [True, t % 4 > 0]
        beliefs = beliefs.absorb([Observation([0, 1], *of, t=t)])


# -- linear kernels of gpytorch, and catalogues ----------------------------------------


def linear_kernel():
    line = gpytorch.kernels.LinearKernel().double()
    line.variance = 0.7
    scaled = gpytorch.kernels.ScaleKernel(line).double()
    scaled.outputscale = torch.tensor(1.3, dtype=F64)
    return scaled + gpytorch.kernels.ConstantKernel().double()


@pytest.mark.parametrize("explore", [cb.UCB(1.5), cb.TS(1.0)], ids=["UCB", "TS"])
@pytest.mark.parametrize("dtype", [F64, torch.float32], ids=["wide", "narrow"])
def test_a_catalogue_takes_it_by_itself(explore, dtype):
    """2 000 embeddings: the arrays follow, round by round, a solve by slots."""
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(2000, 8, generator=generator, dtype=F64)
    gp = cb.GP(linear_kernel(), noise=0.1, mean=0.2)
    more = {"thresholds": 0.3, "step": 0.1, "cap": 3.0, "dtype": dtype}
    policy = cb.CKB(cb.Finite(points), reward=gp, costs=gp, explore=explore, **more)
    assert policy.engine.count("weights") == 1
    slow = cb.CKB(cb.Finite(points), reward=gp, costs=gp, engine="factor", **more)
    for t in range(40):
        choice = policy.ask()
        y = math.sin(3 * t), math.cos(2 * t)
        policy.tell(choice, reward=y[0], cost=y[1])
        slow.observe(index=choice.index[None], reward=[y[0]], cost=[[y[1]]])
    one, other = policy.posterior(), slow.posterior()
    limit = 1e-9 if dtype == F64 else 2e-4
    for name in ("reward", "costs"):
        mine, wanted = getattr(one, name), getattr(other, name)
        assert (mine.mean - wanted.mean).abs().max() < limit
        assert (mine.std - wanted.std).abs().max() < limit * 10


def test_sharp_observations_stay_with_the_engines_by_slots():
    """Sums of features round what is far more precise than the prior."""
    points = torch.randn(2000, 2, generator=torch.Generator().manual_seed(0))
    policy = cb.GPUCB(cb.Finite(points), reward=cb.GP(linear_kernel(), noise=1e-9))
    assert "weights" not in policy.engine


@pytest.mark.parametrize("trials", [None, 2])
@pytest.mark.parametrize("noise", [None, 0.3])
def test_the_botorch_model_is_the_same_belief(trials, noise):
    """Without fading; where it cannot be, an error says what to read."""
    policy = cb.GPUCB(
        SPACE, reward=cb.GP.linear(SPACE, noise=noise), trials=trials, minimise=True
    )
    generator = torch.Generator().manual_seed(0)
    for _ in range(8):
        choice = policy.ask()
        shape = choice.x.shape[:-1]
        policy.tell(choice, reward=torch.randn(shape, generator=generator).double())
    x = torch.from_numpy(Stream(7, trials=1).x[:, 0])
    x = x if trials is None else x.expand(trials, -1, -1)
    mine, other = policy.posterior(x).reward, policy.model.models[0].posterior(x)
    assert torch.allclose(other.mean[..., 0], mine.mean, rtol=0, atol=1e-7)
    assert torch.allclose(other.variance[..., 0].sqrt(), mine.std, rtol=0, atol=1e-7)
    policy = cb.GPUCB(SPACE, reward=cb.GP.linear(SPACE, fade=0.9))
    policy.tell(policy.ask(), reward=1.0)
    with pytest.raises(cb.CBanditError, match=r"fades: read policy\.posterior"):
        _ = policy.model


def test_a_rule_of_its_own_reads_the_best_value_so_far():
    class Mean(cb.GPPolicy):
        name = "Mean"

        def acquire(self, t, multiplier, estimates):
            """The mean above the best value so far."""
            return estimates.mean[:, 0] - estimates.incumbent.unsqueeze(-1).clamp_min(
                -1e9
            )

    policy = Mean(GRID, reward=cb.GP.linear(GRID), costs=None)
    for t in range(5):
        policy.tell(policy.ask(), reward=math.sin(t))


# -- bad input -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"ridge": 0.0}, "ridge must be above 0; got 0"),
        ({"ridge": math.nan}, "ridge must be finite"),
        ({"noise": -1.0}, "noise must be above 0; got -1"),
        ({"fade": 1.5}, "fade must be above 0 and at most 1.*1.5"),
        ({"fade": 0.0}, "fade must be above 0; got 0"),
        ({"features": 7}, "features must be None or an even number.*got 7"),
        ({"features": 1.5}, "features must be None or an even number.*1.5"),
        ({"constant": 0.0}, "constant must be above 0; got 0"),
        (
            {"features": 8, "constant": 2.0},
            "features=n have no constant.*got constant=2",
        ),
    ],
)
def test_bad_numbers_are_refused(arguments, said):
    with pytest.raises(cb.CBanditError, match=said):
        cb.GP.linear(SPACE, **arguments)


def test_what_does_not_go_is_refused():
    arms = cb.Finite(covariance=torch.eye(3))
    with pytest.raises(cb.CBanditError, match=r"needs coordinates"):
        cb.GP.linear(arms)
    gp = cb.GP.linear(SPACE)
    with pytest.raises(cb.CBanditError, match="was given a set of 3"):
        cb.GPUCB(GRID, reward=gp)
    with pytest.raises(cb.CBanditError, match="must be 'auto' or 'weights' for"):
        cb.GPUCB(GRID, reward=cb.GP.linear(GRID), engine="product")
    with pytest.raises(cb.CBanditError, match=r"finitely many features.*RBFKernel"):
        kernel = gpytorch.kernels.RBFKernel().double()
        cb.GPUCB(POINTS, reward=cb.GP(kernel, noise=0.1), engine="weights")
    policy = cb.GPUCB(SPACE, reward=gp)
    choice = policy.ask()
    with pytest.raises(cb.CBanditError, match=r"state the belief's, cb.GP"):
        policy.tell(choice, reward=1.0, noise=0.1)
    policy.tell(choice, reward=1.0)


@pytest.mark.parametrize("count", [2, 3, 7, 13])
@pytest.mark.parametrize("trials", [None, 2])
def test_tells_about_contexts_commute(count, trials):
    """Inputs are standardised by the first ones of the rounds, not of the tells."""
    space = cb.Space(model=cb.Category("a", "b"), z=cb.Context(2))
    generator = torch.Generator().manual_seed(count)
    lead = () if trials is None else (trials,)
    shown = torch.randn(count, *lead, 2, generator=generator, dtype=torch.float64)

    def told(order, apart=False):
        policy = cb.GPUCB(space, reward=cb.GP.linear(space), trials=trials)
        asked = [policy.ask(context=z, among=[k % 2]) for k, z in enumerate(shown)]
        for k in order:
            reward = shown[k].sum(-1) * (1 if k % 2 else -1)
            for here in ([True, False], [False, True]) if apart else [None]:
                policy.tell(asked[k], reward=reward, where=here)
            policy.posterior(context=[0.0, 0.0])  # all of it is absorbed
        found = policy.posterior(context=[1.0, -1.0]).reward
        return torch.stack([found.mean, found.std])

    straight, back = told(range(count)), told(range(count)[::-1], trials is not None)
    torch.testing.assert_close(straight, back, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("fade", [None, 0.8])
def test_outcomes_of_some_trials_count_as_of_their_own_rounds(fade):
    """They fade from there, and inputs are standardised in the order of rounds.

    It does not matter whether several rounds are absorbed together.
    """
    space = cb.Space(model=cb.Category("a", "b"), z=cb.Context(2))
    generator = torch.Generator().manual_seed(4)
    shown = torch.randn(10, 2, 2, generator=generator, dtype=F64)
    tells = [(k, None) for k in range(1, 9)]
    tells += [(0, [True, False]), (9, [False, True])]
    found = []
    for apart in (True, False):
        policy = cb.GPUCB(space, reward=cb.GP.linear(space, fade=fade), trials=2)
        asked = [policy.ask(context=z, among=[k % 2]) for k, z in enumerate(shown)]
        for k, trials in tells:
            policy.tell(asked[k], reward=shown[k].sum(-1), where=trials)
            if apart:  # all of it is absorbed
                policy.posterior(context=[0.0, 0.0])
        post = policy.posterior(context=[1.0, -1.0]).reward
        found.append(torch.stack([post.mean, post.std]))
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-9)


def test_by_default_the_level_is_as_uncertain_as_all_slopes():
    """A rare, dear choice does not look cheap for having been made but once."""
    space = cb.Space(model=cb.Category("a", "b"), z=cb.Context(26))
    z = torch.randn(40, 26, generator=torch.Generator().manual_seed(2)).double()
    dear = torch.arange(40) % 8 == 0
    rows = [
        {"model": "b" if b else "a", "z": row.tolist()}
        for row, b in zip(z, dear.tolist(), strict=True)
    ]
    means = []
    for belief in (cb.GP.default(space), cb.GP.linear(space)):
        policy = cb.GPUCB(space, reward=belief)
        policy.observe(params=rows, reward=1.0 + 9.0 * dear.double())
        new = {"model": "b", "z": [0.0] * 26}
        means.append(float(policy.posterior(params=[new]).reward.mean))
    assert 8.5 < means[0] < 10.0
    assert 10 - means[0] < 0.5 * (10 - means[1])
