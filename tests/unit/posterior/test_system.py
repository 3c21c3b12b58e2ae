"""The factored small system: bordered, padded and merged, it is the dense solve."""

from __future__ import annotations

import itertools
import pickle

import gpytorch
import numpy as np
import pytest
import torch
from inside import ROOM, SPARE, System, beliefs_of, forget_oldest, settled

import cbandit as cb

T, F = 3, 2


class World:
    """Entries of ``T`` trials at some of 12 places, and what the system is of them."""

    def __init__(self, seed, count):
        self.rng = np.random.default_rng(seed)
        self.x = self.rng.normal(size=(T, 12, 2))
        gap = self.x[:, :, None] - self.x[:, None]
        self.gram = np.exp(-(gap**2).sum(-1))
        self.slots = np.tile(np.arange(count), (T, 1))
        self.precision = self.rng.uniform(0.1, 50.0, (T, count))
        self.values = self.rng.normal(size=(T, count, F))

    def system(self):
        at = self.slots
        gram = np.stack([self.gram[t][np.ix_(at[t], at[t])] for t in range(T)])
        root = np.sqrt(self.precision)
        target = self.values * root[..., None]
        return System(*map(torch.tensor, (gram, root, target, at)))

    def see(self, system, slots, precision):
        values = self.rng.normal(size=(T, F))
        rows = np.stack([self.gram[t, slots[t]] for t in range(T)])
        spot = system.at(torch.tensor(slots), torch.tensor(rows))
        for t in range(T):
            mean, var = self.posterior(t, slots[t])
            assert spot.mean[t].numpy() == pytest.approx(mean, abs=1e-10)
            assert float(spot.var[t]) == pytest.approx(var, abs=1e-12)
        column = system.column(spot, 12).unsqueeze(-1)
        known = torch.tensor(self.gram) @ column  # with itself: the variance
        at = torch.tensor(slots)
        assert known[torch.arange(T), at, 0].numpy() == pytest.approx(
            spot.var.numpy(), abs=1e-12
        )
        system.border(spot, torch.tensor(precision), torch.tensor(values))
        self.slots = np.concatenate([self.slots, np.array(slots)[:, None]], 1)
        self.precision = np.concatenate([self.precision, precision[:, None]], 1)
        self.values = np.concatenate([self.values, values[:, None]], 1)

    def posterior(self, trial, slot):
        """Mean and variance at a slot."""
        row = self.gram[trial, slot]
        solved, weights, _ = self.dense(trial, row[:, None])
        return row @ weights, 1 - row @ solved[:, 0]

    def dense(self, trial, right):
        """``(K + P^-1)^-1`` and the mean's weights, by slot, of merged observations."""
        merged = np.zeros(12)
        np.add.at(merged, self.slots[trial], self.precision[trial])
        sums = np.zeros((12, F))
        weighted = self.precision[trial][:, None] * self.values[trial]
        np.add.at(sums, self.slots[trial], weighted)
        seen = merged > 0
        cov = self.gram[trial][np.ix_(seen, seen)] + np.diag(1 / merged[seen])
        solved, weights = np.zeros((12, right.shape[-1])), np.zeros((12, F))
        solved[seen] = np.linalg.solve(cov, right[seen])
        weights[seen] = np.linalg.solve(cov, sums[seen] / merged[seen][:, None])
        gain = 0.5 * np.linalg.slogdet(cov * merged[seen])[1]
        return solved, weights, gain

    def check(self, system):
        right = self.rng.normal(size=(T, 12, 4))
        solved = system.solve(torch.tensor(right)).numpy()
        weights = system.weights(12).numpy()
        for t in range(T):
            known = self.dense(t, right[t])
            np.testing.assert_allclose(solved[t], known[0], atol=1e-9)
            np.testing.assert_allclose(weights[t], known[1], atol=1e-9)
            assert float(system.gain()[t]) == pytest.approx(known[2], abs=1e-10)


def test_borders_are_the_dense_solve():
    world = World(1, 3)
    system = world.system()
    world.check(system)
    for step in range(2 * ROOM + 3):  # it grows twice
        slots = world.rng.integers(0, 4 + step // 4, T).clip(max=11)
        precision = world.rng.uniform(0.1, 50.0, T)
        precision[step % T] *= step % 2  # at times a trial sees nothing
        world.see(system, slots, precision)
        if step % 5 == 0:
            world.check(system)
    world.check(system)
    assert system.count == 3 + 2 * ROOM + 3 < system.root.shape[-1]


def test_from_no_entries_at_all():
    world = World(2, 0)
    system = world.system()
    assert system.gain().tolist() == [0.0] * T
    for slot in range(5):
        world.see(system, [slot] * T, world.rng.uniform(1.0, 2.0, T))
        world.check(system)


def test_other_targets():
    world = World(3, 6)
    system = world.system()
    world.see(system, [2, 0, 7], np.array([1.0, 4.0, 9.0]))
    world.values = world.rng.normal(size=world.values.shape)
    root = system.root[:, : system.count].unsqueeze(-1)
    target = torch.zeros(*system.root.shape, F, dtype=torch.float64)
    target[:, : system.count] = torch.tensor(world.values) * root
    system.aim(target)
    world.check(system)
    world.see(system, [1, 1, 1], np.array([1.0, 4.0, 9.0]))
    world.check(system)


def test_it_goes_on_after_a_pickle():
    world = World(4, 4)
    system = world.system()
    world.see(system, [1, 2, 5], np.array([1.0, 4.0, 9.0]))
    again = pickle.loads(pickle.dumps(system))
    right = torch.rand(T, 12, 3, dtype=torch.float64)
    assert torch.equal(again.solve(right), system.solve(right))


@pytest.mark.parametrize("noise", [1e-6, 1e-12, 1e-20, 0.0])
def test_places_seen_again_all_but_without_noise(noise):
    kernel = gpytorch.kernels.MaternKernel(nu=1.5).double()
    kernel.lengthscale = torch.tensor(0.5, dtype=torch.float64)
    gp = cb.GP(kernel, noise=noise)
    box = cb.Box([0.0], [1.0])
    policy = cb.CKB(box, reward=gp, costs=gp, explore=cb.UCB(1.0), step=0.1, cap=5.0)
    x = torch.linspace(0, 1, 6, dtype=torch.float64).unsqueeze(-1)
    generator = torch.Generator().manual_seed(1)
    index = torch.randint(6, (30,), generator=generator).tolist()
    for i in index:
        policy.observe(x=x[[i]], reward=[float(i)], cost=[0.0])
        settled(policy)
        history = beliefs_of(policy).groups[0].engine.history
        history.system()
    mean, var = history.at(x)
    assert mean[0, 0].numpy() == pytest.approx(range(6), abs=2e-6)
    known = [noise / index.count(i) for i in range(6)]
    assert var[0].numpy() == pytest.approx(known, abs=1e-11)


@pytest.mark.parametrize("engine", ["factor", "stream", "product"])
def test_hundreds_of_rounds_at_places_seen_again(engine):
    kernel = gpytorch.kernels.RBFKernel().double()
    kernel.lengthscale = torch.tensor(0.3, dtype=torch.float64)
    axis = torch.linspace(0, 1, 20, dtype=torch.float64)
    grid = cb.ProductGrid([axis, axis])
    actions = grid if engine == "product" else cb.Finite(grid.block(0, 400))
    gp = cb.GP(kernel, noise=0.01)
    policy = cb.CKB(
        actions,
        reward=gp,
        costs=gp,
        explore=cb.UCB(1.0),
        step=0.1,
        cap=5.0,
        engine=engine,
    )
    allowed = torch.zeros(400, dtype=torch.bool)
    allowed[::10] = True
    history = beliefs_of(policy).groups[0].engine.history
    index, values, spare = [], [], []
    generator = torch.Generator().manual_seed(6)
    for _ in range(150):
        choice = policy.ask(among=allowed)
        y = torch.randn(2, dtype=torch.float64, generator=generator)
        policy.tell(choice, reward=float(y[0]), cost=float(y[1]))
        index.append(int(choice.index))
        values.append(y.numpy())
        settled(policy)
        spare.append(history.system().count - history.used)
    assert 8 < max(spare) <= SPARE  # places were seen again,
    assert any(b < a for a, b in itertools.pairwise(spare))  # and merged

    x = grid.block(0, 400).numpy()
    known = x[index]
    cov = np.exp(-((known[:, None] - known) ** 2).sum(-1) / 0.18) + 0.01 * np.eye(150)
    cross = np.exp(-((known[:, None] - x) ** 2).sum(-1) / 0.18)
    mean = np.linalg.solve(cov, np.array(values)).T @ cross
    var = 1 - (cross * np.linalg.solve(cov, cross)).sum(0)
    engine = beliefs_of(policy).groups[0].engine
    own_mean, own_var = engine.at_numbers(torch.arange(400)[None])
    np.testing.assert_allclose(own_mean[0].numpy(), mean, atol=1e-11)
    np.testing.assert_allclose(own_var[0].numpy(), var, atol=1e-11)


@pytest.mark.parametrize("engine", ["joint", "factor"])
def test_a_precise_observation_forgotten_leaves_the_others_as_they_were(engine):
    kernel = gpytorch.kernels.RBFKernel().double()
    gp = cb.GP(kernel, noise=0.01)
    policy = cb.CKB(
        cb.Finite(torch.linspace(0, 1, 9, dtype=torch.float64).unsqueeze(-1)),
        reward=gp,
        costs=gp,
        explore=cb.UCB(1.0),
        step=0.1,
        cap=5.0,
        engine=engine,
        feedback=cb.Sliding(3),
    )
    only = torch.arange(9) == 4
    noises = [1e-12, 1e3, 1e2, 1e3, 1e2, 1e-12, 1e3, 1e3]
    for t, noise in enumerate(noises):
        policy.tell(policy.ask(among=only), reward=float(t), cost=0.0, noise=noise)
        seen = range(max(0, t - 2), t + 1)
        precision = sum(1 / noises[s] for s in seen)
        mean = sum(s / noises[s] for s in seen) / (1 + precision)
        own = policy.posterior().reward
        assert float(own.mean[4]) == pytest.approx(mean, rel=1e-9, abs=1e-12)
        std = (1 + precision) ** -0.5
        assert float(own.std[4]) == pytest.approx(std, rel=1e-4)
        if min(noises[s] for s in seen) > 1:
            assert float(own.std[4]) == pytest.approx(std, rel=1e-12)


def test_outcomes_of_a_window_are_rescaled_by_their_own_spread():
    """However much larger that of what has left it was."""
    kernel = gpytorch.kernels.RBFKernel().double()
    gp = cb.GP(kernel, noise=0.01, standardize=True)
    policy = cb.CKB(
        cb.Finite(torch.linspace(0, 1, 9, dtype=torch.float64).unsqueeze(-1)),
        reward=gp,
        costs=gp,
        explore=cb.UCB(1.0),
        step=0.1,
        cap=5.0,
        feedback=cb.Sliding(3),
    )
    only = torch.arange(9) == 4
    outcomes = [0.3, 8.1, -7.7, 1.0, 1.0 + 1e-7, 1.0 - 3e-7, 1.0 + 2e-7]
    for y in outcomes:
        policy.tell(policy.ask(among=only), reward=y, cost=0.0)
    own = policy.posterior().reward
    spread = np.std(outcomes[-3:], ddof=1)
    std = spread * (1 + 3 / 0.01) ** -0.5
    assert float(own.std[4]) == pytest.approx(std, rel=1e-7)
    assert float(own.mean[4]) == pytest.approx(np.mean(outcomes[-3:]), abs=1e-9)


PLACES = np.linspace(0, 1, 12)
ENGINES = ["joint", "factor", "stream", "product", "dense"]


def belief(engine, scale, noise, explore=None, **more):
    """A policy over 12 places of a line, of which it may know a box."""
    kernel = gpytorch.kernels.RBFKernel().double()
    kernel.lengthscale = torch.tensor(scale, dtype=torch.float64)
    axis = torch.tensor(PLACES)
    sets = {"product": cb.ProductGrid([axis]), "dense": cb.Box([0.0], [1.0])}
    gp = cb.GP(kernel, noise=noise, **more)
    return cb.CKB(
        sets.get(engine, cb.Finite(axis.unsqueeze(-1))),
        reward=gp,
        costs=gp,
        explore=explore or cb.UCB(1.0),
        step=0.1,
        cap=5.0,
        engine="auto" if engine == "dense" else engine,
    )


def see(policy, place, value, noise=None):
    """One outcome, after a round that asked for it where there is a set."""
    if isinstance(policy.actions, cb.Box):
        policy.observe(x=[[PLACES[place]]], reward=[value], cost=[-value])
        return
    choice = policy.ask(among=[place])
    policy.tell(choice, reward=value, cost=-value, noise=noise)


def merged(scale, noise, index, values):
    """Mean and deviation at the places, from averages: a dense solve."""
    seen, at, count = np.unique(index, return_inverse=True, return_counts=True)
    average = np.bincount(at, values) / count
    cross = np.exp(-0.5 * ((PLACES[:, None] - PLACES[seen]) / scale) ** 2)
    cov = cross[seen] + np.diag(noise / count)
    mean = cross @ np.linalg.solve(cov, average)
    var = 1 - (cross * np.linalg.solve(cov, cross.T).T).sum(-1)
    return mean, np.sqrt(var.clip(0))


@pytest.mark.parametrize("standardize", [False, True])
@pytest.mark.parametrize("noise", [1e-4, 1e-7, 1e-12])
@pytest.mark.parametrize("engine", ENGINES)
def test_outcomes_of_one_place_that_differ_far_more_than_the_noise(
    engine, noise, standardize
):
    rng = np.random.default_rng(7)
    policy = belief(engine, 0.05, noise, standardize=standardize)
    index = rng.integers(0, 9, 60)
    values = rng.standard_normal(60)
    for t in range(60):
        see(policy, index[t], values[t])
        if t % 7 == 0:
            policy.posterior(PLACES[:, None])
    shift, spread = (values.mean(), values.std(ddof=1)) if standardize else (0.0, 1.0)
    mean, std = merged(0.05, noise, index, (values - shift) / spread)
    found = (
        policy.posterior() if engine != "dense" else policy.posterior(PLACES[:, None])
    )
    own = (found.reward.mean.numpy() - shift) / spread
    cost = (found.costs.mean[0].numpy() + shift) / spread
    assert abs(own - mean).max() < 1e-10
    assert abs(cost + mean).max() < 1e-10
    assert abs(found.reward.std.numpy() / spread - std).max() < 1e-8


@pytest.mark.parametrize("engine", ["joint", "factor", "stream", "product"])
def test_a_window_over_outcomes_that_differ_far_more_than_the_noise(engine):
    rng = np.random.default_rng(8)
    policy = belief(engine, 0.05, 1e-9)
    index, values = rng.integers(0, 9, 90), rng.standard_normal(90)
    for t in range(90):
        see(policy, index[t], values[t])
        policy.posterior()
        if t >= 20:
            forget_oldest(policy)
    mean, std = merged(0.05, 1e-9, index[70:], values[70:])
    found = policy.posterior().reward
    assert abs(found.mean.numpy() - mean).max() < 1e-9
    assert abs(found.std.numpy() - std).max() < 1e-8


@pytest.mark.parametrize("explore", [cb.UCB(1.0), cb.TS(1.0)], ids=["UCB", "TS"])
@pytest.mark.parametrize("noise", [1e-14, 1e-17, 1e-40, 1e-310, 0.0])
@pytest.mark.parametrize("engine", ENGINES)
def test_less_noise_than_rounding(engine, noise, explore):
    """Smooth functions are interpolated, close as places may be for the kernel."""
    policy = belief(engine, 1.0, noise, explore)
    truth = np.sin(3 * PLACES)
    for t in range(36):
        see(policy, (7 * t) % 12, truth[(7 * t) % 12], noise if t % 3 else None)
        policy.posterior(PLACES[:, None])
    if engine != "dense":
        policy.ask()
    found = policy.posterior(PLACES[:, None])
    assert abs(found.reward.mean.numpy() - truth).max() < 1e-6
    assert float(found.reward.std.max()) < 1e-6
    assert bool(beliefs_of(policy).gains().isfinite().all())


@pytest.mark.parametrize("engine", ENGINES)
def test_many_rounds_with_little_noise(engine):
    """The noise of an average falls below rounding, however large that of one."""
    policy = belief(engine, 1.0, 1e-14)
    index = np.arange(12).repeat(1000)
    truth = np.sin(3 * PLACES)
    policy.observe(x=PLACES[index][:, None], reward=truth[index], cost=truth[index])
    see(policy, 4, truth[4])
    found = policy.posterior(PLACES[:, None])
    assert abs(found.reward.mean.numpy() - truth).max() < 1e-6
    assert float(found.reward.std.max()) < 1e-6


@pytest.mark.parametrize("engine", ["joint", "factor"])
def test_an_outlier_that_has_left_a_window_leaves_nothing(engine):
    """Not as a level from which the outcomes that followed are counted either."""
    rng = np.random.default_rng(9)
    policy = belief(engine, 0.2, 0.01, standardize=True)
    index, values = rng.integers(0, 12, 30), rng.standard_normal(30)
    values[0] = 1e12
    for t in range(30):
        see(policy, index[t], values[t])
        policy.posterior()
        if t >= 10:
            forget_oldest(policy)
    y = values[20:]
    mean, std = merged(0.2, 0.01, index[20:], (y - y.mean()) / y.std(ddof=1))
    found = policy.posterior().reward
    own = (found.mean.numpy() - y.mean()) / y.std(ddof=1)
    assert abs(own - mean).max() < 1e-12
    assert abs(found.std.numpy() / y.std(ddof=1) - std).max() < 1e-12


@pytest.mark.parametrize("engine", ENGINES)
def test_no_noise_is_the_least_noise(engine):
    """Also where outcomes of one place differ: their average counts."""
    rng = np.random.default_rng(7)
    policy = belief(engine, 0.05, 0.0)
    index, values = rng.integers(0, 9, 60), rng.standard_normal(60)
    for t in range(60):
        see(policy, index[t], values[t], None if t % 3 else 0.0)
        policy.posterior(PLACES[:, None])
    mean, std = merged(0.05, 1e-14, index, values)
    found = policy.posterior(PLACES[:, None])
    assert abs(found.reward.mean.numpy() - mean).max() < 1e-10
    assert abs(found.costs.mean[0].numpy() + mean).max() < 1e-10
    # as far as digits go: the prior's variance is 1
    assert abs(found.reward.std.numpy() ** 2 - std**2).max() < 1e-14


def played(noise, own, more=None, standardize=False):
    """20 outcomes of two trials, every third of variance ``own``, refitted halfway."""
    kernel = gpytorch.kernels.MaternKernel(nu=1.5).double()
    kernel.lengthscale = torch.tensor(0.1, dtype=torch.float64)
    gp = cb.GP(kernel, noise=noise, standardize=standardize, **(more or {}))
    points = torch.tensor(PLACES).unsqueeze(-1)
    policy = cb.GPUCB(cb.Finite(points), reward=gp, trials=2)
    for t in range(20):
        choice = policy.ask(among=[7 * t % 12])
        reward = torch.sin(5 * choice.x[:, 0]) * torch.tensor([1.0, 3.0])
        policy.tell(choice, reward=reward, noise=None if t % 3 else own)
    return policy


@pytest.mark.parametrize("standardize", [False, True])
@pytest.mark.parametrize("noise", [0.0, [0.0, 0.01], 0.01])
def test_refits_without_noise_are_those_of_the_least_noise(noise, standardize):
    """1e-14 of the prior variance, that is of the outcomes' own if standardised."""
    fitted = {"refit_every": 9}
    policy = played(noise, 0.0, fitted, standardize)
    least = np.maximum(noise, 1e-14)
    twin = played(least, 1e-300 if standardize else 1e-14, fitted, standardize)
    found, expected = policy.posterior().reward, twin.posterior().reward
    assert bool(found.mean.isfinite().all())
    torch.testing.assert_close(found.mean, expected.mean, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found.std, expected.std, rtol=1e-12, atol=1e-12)
    kernels = [each.model.models[0].covar_module for each in (policy, twin)]
    mine, other = ([*kernel.parameters()] for kernel in kernels)
    assert all(torch.equal(a, b) for a, b in zip(mine, other, strict=True))


def test_trials_with_and_without_noise_are_exported():
    policy = played([0.0, 0.01], None)
    index = np.array([7 * t % 12 for t in range(20)])
    gap = abs(PLACES[:, None] - PLACES) * np.sqrt(3) / 0.1
    gram = (1 + gap) * np.exp(-gap)
    found, model = policy.posterior().reward, policy.model.models[0]
    said = model.posterior(torch.tensor(PLACES).unsqueeze(-1)).mean[..., 0]
    for trial, noise in enumerate((1e-14, 0.01)):
        seen, first, count = np.unique(index, return_index=True, return_counts=True)
        truth = np.sin(5 * PLACES[index[first]]) * (1, 3)[trial]
        cov = gram[np.ix_(seen, seen)] + np.diag(noise / count)
        mean = gram[:, seen] @ np.linalg.solve(cov, truth)
        assert abs(found.mean[trial].numpy() - mean).max() < 1e-10
        assert abs(said[trial].numpy() - mean).max() < 1e-10


def test_no_noise_where_nothing_varies():
    kernel = gpytorch.kernels.LinearKernel().double()
    origin = cb.Finite(torch.zeros(1, 1, dtype=torch.float64))
    policy = cb.GPUCB(origin, reward=cb.GP(kernel, noise=0.0))
    for _ in range(3):
        policy.tell(policy.ask(), reward=3.0, noise=0.0)
    found = policy.posterior().reward
    assert (found.mean.tolist(), found.std.tolist()) == ([0.0], [0.0])


@pytest.mark.parametrize("trials", [None, 2])
def test_gpytorch_itself_chooses_the_same(trials):
    """Rounds with an outstanding choice now and then, by real ``ExactGP`` models."""
    x = torch.rand(50, 2, generator=torch.Generator().manual_seed(0)).double()
    kernel = gpytorch.kernels.MaternKernel(2.5, ard_num_dims=2).double()
    kernel.lengthscale = torch.tensor([[0.3, 0.5]], dtype=torch.float64)
    gp = cb.GP(gpytorch.kernels.ScaleKernel(kernel).double(), noise=1e-2)
    fixed = {"step": 0.1, "cap": 5.0, "explore": cb.UCB(2.0), "trials": trials}
    actions = cb.Finite(x)
    policies = [
        cb.CKB(actions, reward=gp, costs=gp, engine=name, **fixed)
        for name in ("gpytorch", "joint")
    ]
    for t in range(24):
        one, other = [policy.ask() for policy in policies]
        assert torch.equal(one.index, other.index)
        for policy, choice in zip(policies, (one, other), strict=True):
            if t % 4 != 3:
                a, b = choice.x.unbind(-1)
                policy.tell(choice, reward=(6 * a).sin(), cost=b - 0.5)
    one, other = [policy.posterior() for policy in policies]
    assert torch.allclose(one.reward.mean, other.reward.mean, rtol=0, atol=1e-9)
    assert torch.allclose(one.costs.std, other.costs.std, rtol=0, atol=1e-9)
