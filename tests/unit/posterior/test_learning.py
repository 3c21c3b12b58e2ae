"""Hyperparameters are fitted early, with a constant mean, and enter beliefs exactly.

References are dense float64 solves in numpy on the outcomes as the user told them.
"""

from __future__ import annotations

import copy
import math

import gpytorch
import numpy as np
import pytest
import torch
from botorch.models.kernels.categorical import CategoricalKernel
from inside import (
    VAGUE,
    Closed,
    General,
    Learning,
    Merged,
    Streams,
    average,
    beliefs_of,
    counted_refits,
    fit_hyperparameters,
    in_users_units,
    shortest_scales,
    spread,
)

import cbandit as cb

F64 = torch.float64
AXES = [torch.linspace(0.0, 2.0, 7, dtype=F64), torch.linspace(-1.0, 1.0, 6, dtype=F64)]
GRID = cb.ProductGrid(AXES)
FREE = cb.Finite(GRID.points(torch.arange(42)))
BOX = cb.Box([0.0, -1.0], [2.0, 1.0])
MIXED = cb.Space(
    a=cb.Float(0, 1), b=cb.Float(0, 1), c=cb.Category("u", "v"), e=cb.Category(*"xyz")
)
LEVELS = cb.Space(a=cb.Int(0, 30), b=cb.Int(0, 20), c=cb.Category("u", "v", "w"))


def truth(x):
    """A reward and a cost far from 0, ``(..., 2)``."""
    x = x.double()
    reward = 100.0 + 5.0 * torch.sin(2.0 * x[..., 0]) + 4.0 * x[..., 1]
    return torch.stack([reward, 1e-3 * (x[..., 0] * x[..., 1] - 30.0)], -1)


def policy_on(actions, trials=None, rounds=12, **more):
    """A policy that was told some rounds, and all that it was told."""
    gp = cb.GP.default(actions)
    explore = more.pop("explore", cb.UCB(1.0))
    policy = cb.CKB(
        actions, reward=gp, costs=gp, explore=explore, trials=trials, **more
    )
    generator = torch.Generator().manual_seed(2)
    told = []
    for _ in range(rounds):
        choice = policy.ask()
        y = truth(choice.x)
        y = y + y.new_tensor([0.3, 1e-4]) * torch.randn(y.shape, generator=generator)
        policy.tell(choice, reward=y[..., 0], cost=y[..., 1:])
        told.append((choice.x, y))
    x, y = (torch.stack(v) for v in zip(*told, strict=True))
    return policy, x.view(rounds, -1, actions.dim), y.view(rounds, -1, 2)


def reference(policy, x, y, at, function, trial):
    """Mean and covariance at the points ``at`` by a dense solve, user's units."""
    (group,) = [g for g in beliefs_of(policy).groups if function in g.functions]
    kernel = copy.deepcopy(group.prior.covariance.kernel)
    lower, upper = BOX.lower.numpy(), BOX.upper.numpy()
    scales = kernel.lengthscale.detach().numpy().reshape(-1, 1, 2)
    scale = scales[trial if len(scales) > 1 else 0]
    noise, constant = float(group.noise[trial]), float(group.scale.constants[trial, 0])
    assert constant != 0.0

    def k(a, b):
        a, b = ((v - lower) / (upper - lower) / scale for v in (a, b))
        return np.exp(-0.5 * ((a[:, None] - b[None]) ** 2).sum(-1))

    x, y, at = x[:, trial].numpy(), y[:, trial, function].numpy(), at.numpy()
    size = y.std(ddof=1)
    system = k(x, x) + noise * np.eye(len(x))
    center = y.mean() + constant * size
    mean = center + k(at, x) @ np.linalg.solve(system, y - center)
    rest = k(at, at) - k(at, x) @ np.linalg.solve(system, k(x, at))
    return mean, size**2 * rest


@pytest.mark.parametrize("trials", [None, 3])
@pytest.mark.parametrize("name", ["joint", "product", "factor", "stream", "box"])
def test_a_learned_mean_is_exact(name, trials):
    actions = {"product": GRID, "box": BOX}.get(name, FREE)
    engine = "auto" if name == "box" else name
    policy, x, y = policy_on(actions, trials, engine=engine)
    at = FREE.points(torch.arange(42))
    seen = policy.posterior(at) if name == "box" else policy.posterior()
    mean = torch.cat(
        [seen.reward.mean.view(-1, 1, 42), seen.costs.mean.view(-1, 1, 42)], 1
    )
    std = torch.cat(
        [seen.reward.std.view(-1, 1, 42), seen.costs.std.view(-1, 1, 42)], 1
    )
    for trial in range(trials or 1):
        for function in range(2):
            want, covariance = reference(policy, x, y, at, function, trial)
            size = y[:, trial, function].std().item()
            np.testing.assert_allclose(mean[trial, function], want, atol=1e-8 * size)
            want = np.sqrt(np.diag(covariance))
            np.testing.assert_allclose(std[trial, function], want, atol=1e-7 * size)
            with torch.no_grad():
                model = policy.model.models[function]
                by_model = model.posterior(at).mean.view(-1, 42)[trial]
            np.testing.assert_allclose(
                by_model, mean[trial, function], atol=1e-6 * size
            )


@pytest.mark.parametrize("name", ["joint", "product", "factor", "box"])
def test_draws_lie_around_a_learned_mean(name):
    actions = {"product": GRID, "box": BOX}.get(name, FREE)
    more = {} if name == "box" else {"engine": name}
    policy, x, y = policy_on(actions, explore=cb.TS(1.0), **more)
    beliefs, at = beliefs_of(policy), torch.tensor([0, 9, 20, 33])
    points, streams, count = FREE.points(at), Streams(5), 600
    rows = []
    for _ in range(count):
        if name == "box":
            whole = sum(beliefs.solver((), streams)(points))
        else:
            blocks = [block.mean + block.draw for block in beliefs.blocks(streams)]
            whole = torch.cat(blocks, -1)[..., at]
        rows.append(in_users_units(beliefs.units(), whole, whole)[0][0])
    draws = torch.stack(rows).numpy()
    for function in range(2):
        mean, covariance = reference(policy, x, y, points, function, 0)
        prior = y[:, 0, function].std().item()
        # a mean of 600 draws is off by less than 5 of its deviations, random features
        # by a twentieth of the prior's besides
        loose = 0.05 * prior if name in ("factor", "box") else 0.0
        error = 5 * np.sqrt(np.diag(covariance) / count) + loose
        assert (abs(draws[:, function].mean(0) - mean) <= error).all()
        gap = abs(np.cov(draws[:, function].T) - covariance)
        assert gap.max() <= 0.15 * prior**2


# -- the fit ---------------------------------------------------------------------------


def data_on(actions, count, seed=1, noise=0.1, stated=True):
    """Standardised outcomes at ``count`` points, some repeated, some of known noise."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(1, count, actions.dim, generator=generator, dtype=F64)
    if actions.names is not None and actions.names.flags()[1] is not None:
        whole = actions.names.flags()[1]
        x[..., whole] = (x[..., whole] * 2.99).floor()
    y = torch.sin(3 * x.sum(-1)) + x[..., 0]
    y = y + noise * torch.randn(1, count, generator=generator, dtype=F64)
    y = (y - y.mean()) / y.std() + 0.4
    times, precision = torch.ones_like(y), torch.zeros_like(y)
    if stated:
        times[:, ::3], times[:, 1::7], precision[:, ::4] = 2.0, 0.0, 30.0
        precision[:, 1::7] = 20.0
    within = 0.3 * torch.ones(1, dtype=F64) if stated else torch.zeros(1, dtype=F64)
    return Merged(x, times, times * y, within, precision, precision * (y + 0.05), x)


SETS = {"line": cb.Box([0.0], [1.0]), "box": cb.Box([0.0] * 6, [1.0] * 6)}
SETS |= {"mixed": MIXED, "levels": LEVELS}


@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("name", SETS)
def test_the_closed_form_is_the_likelihood_and_its_slopes(name, mean):
    actions, noise = SETS[name], torch.tensor([0.02], dtype=F64)
    gp, data = cb.GP.default(actions), data_on(actions, 25)
    kernel = copy.deepcopy(gp.kernel).requires_grad_(False)
    about = data, Learning(True, mean, gp.noise_prior, True), 1.3
    closed = Closed.of(kernel, noise, *about)
    assert closed is not None
    start, rng = closed.starts()[0], np.random.default_rng(0)
    for _ in range(3):
        vector = start + 0.5 * rng.normal(size=len(start))
        value, slopes = closed(vector)
        closed.put(vector)
        general = General(kernel, torch.tensor(vector[-1:]).exp(), *about)
        # priors hold their constants in float32
        assert value == pytest.approx(general(general.starts()[0])[0], abs=1e-5)
        for j in range(len(vector)):
            step = np.zeros_like(vector)
            step[j] = 1e-5
            slope = (closed(vector + step)[0] - closed(vector - step)[0]) / 2e-5
            assert slopes[j] == pytest.approx(slope, abs=1e-5)


@pytest.mark.parametrize("count", [8, 40])
@pytest.mark.parametrize("name", SETS)
def test_the_closed_fit_is_at_least_as_good(name, count):
    data = data_on(SETS[name], count, seed=count, stated=False)
    gp, noise = cb.GP.default(SETS[name]), torch.tensor([0.02], dtype=F64)
    values = []
    for default in (True, False):
        learning = Learning(True, True, gp.noise_prior, default)
        kernel = copy.deepcopy(gp.kernel).requires_grad_(False)
        fitted, _ = fit_hyperparameters(kernel, noise, data, learning)
        judge = General(
            kernel, fitted, data.less(average(data)), learning, spread(data)
        )
        values.append(judge(judge.starts()[0])[0])
    assert values[0] <= values[1] + 1e-6


def test_a_fit_avoids_points_without_slopes():
    # the likelihood is flat along the categories' lengthscales, so steps become long,
    # until their slopes are no numbers, while the value still is one
    data, noise = data_on(MIXED, 8, seed=9, stated=False), torch.tensor([0.05]).double()
    parts = gpytorch.kernels.MaternKernel(ard_num_dims=2, active_dims=[0, 1])
    parts = parts * CategoricalKernel(ard_num_dims=2, active_dims=[2, 3])
    kernel = gpytorch.kernels.ScaleKernel(parts).double().requires_grad_(False)
    about = data.less(average(data)), Learning(True, True, None, False), spread(data)

    def loss(noise):
        judge = General(kernel, noise, *about)
        return judge(judge.starts()[0])[0]

    before = loss(noise)
    fitted, _ = fit_hyperparameters(kernel, noise, data, about[1])
    assert loss(fitted) < before - 1.0


@pytest.mark.parametrize("default", [True, False])
def test_the_mean_is_the_likeliest(default):
    data = data_on(SETS["box"], 20, stated=False)
    gp, noise = cb.GP.default(SETS["box"]), torch.tensor([0.02], dtype=F64)
    kernel = copy.deepcopy(gp.kernel).requires_grad_(False)
    learning = Learning(True, True, gp.noise_prior, default)
    fitted, mean = fit_hyperparameters(kernel, noise, data, learning)
    x, y = data.x[0].numpy(), data.total[0].numpy()
    scaled = x / kernel.lengthscale.detach().numpy()
    gap = ((scaled[:, None] - scaled[None]) ** 2).sum(-1)
    system = np.exp(-0.5 * gap) + float(fitted) * np.eye(len(x))
    ones, center = np.ones(len(x)), y.mean()
    # a normal prior around the average, VAGUE variances wide
    known = ones @ np.linalg.solve(system, ones) + 1 / (VAGUE * y.var(ddof=1))
    want = center + ones @ np.linalg.solve(system, y - center) / known
    assert float(mean) == pytest.approx(want, abs=1e-9)
    assert abs(want - center) > 1e-3


def test_noise_may_be_nothing_and_is_learned():
    noises = {}
    for noise in (0.0, 0.5):
        generator = torch.Generator().manual_seed(4)
        x = torch.rand(60, 2, generator=generator, dtype=F64)
        y = torch.sin(5 * x[:, 0]) + x[:, 1].square()
        y = y / y.std()
        y = y + noise * torch.randn(60, generator=generator, dtype=F64)
        box = cb.Box([0.0, 0.0], [1.0, 1.0])
        policy = cb.GPUCB(box, reward=cb.GP.default(box))
        policy.observe(x=x, reward=y)
        noises[noise] = float(beliefs_of(policy).noises()) * float(y.var())
    assert noises[0.0] < 1e-4
    assert 0.12 < noises[0.5] < 0.5  # of 60 observations, at 5 deviations of 0.25


def test_a_mean_without_standardising():
    kernel = gpytorch.kernels.RBFKernel().double()
    gp = cb.GP(kernel, noise=0.04, mean="learned")
    line = cb.Finite(torch.linspace(0, 1, 20, dtype=F64).unsqueeze(-1))
    policy = cb.GPUCB(line, reward=gp, explore=cb.UCB(1.0))
    at = torch.tensor([0, 5, 9, 14, 19])
    y = torch.tensor([7.0, 7.5, 8.4, 8.0, 7.2], dtype=F64)
    policy.observe(index=at, reward=y)
    before = policy.posterior().reward.mean
    policy.refit()
    (group,) = beliefs_of(policy).groups
    scale = float(group.prior.covariance.kernel.lengthscale)
    x = line.points(torch.arange(20)).numpy()[:, 0]
    k = np.exp(-0.5 * (x[:, None] - x[None]) ** 2 / scale**2)
    system, some = k[np.ix_(at, at)] + 0.04 * np.eye(5), np.ones(5)
    left = y.numpy() - y.numpy().mean()
    known = some @ np.linalg.solve(system, some) + 1 / (VAGUE * y.numpy().var(ddof=1))
    mean = y.numpy().mean() + some @ np.linalg.solve(system, left) / known
    want = mean + k[:, at] @ np.linalg.solve(system, y.numpy() - mean)
    np.testing.assert_allclose(policy.posterior().reward.mean, want, atol=1e-8)
    assert float((policy.posterior().reward.mean - before).abs().max()) > 0.1


# -- when ------------------------------------------------------------------------------


def test_when_auto_fits():
    gp = cb.GP.default(BOX)
    assert gp.refit_every == "auto"
    assert [gp.fitted_to(n) for n in (0, 4, 5, 6, 7, 8)] == [0, 0, 5, 5, 7, 7]
    fits = sorted({gp.fitted_to(n) for n in range(1, 400)})
    often = [5, 7, 9, 11, 13, 15, 18, 21, 25, 30, 36, 43, 51, 61, 73, 87]
    assert fits == [0, *often, 104, 156, 234, 351]
    gp.refit_every = 20
    assert [gp.fitted_to(n) for n in (19, 20, 39, 40)] == [0, 20, 20, 40]
    gp.refit_every = None
    assert gp.fitted_to(1000) == 0


def test_a_policy_fits_then():
    gp = cb.GP.default(FREE)
    with counted_refits() as fits:
        policy = cb.GPUCB(FREE, reward=gp)
        for n in range(1, 31):
            choice = policy.ask()
            policy.tell(choice, reward=float(truth(choice.x)[..., 0]))
            beliefs_of(policy)
            assert fits[-1:] == [] or n >= 5
            assert beliefs_of(policy).groups[0].fitted_to == gp.fitted_to(n)
    assert len(fits) == 10


def test_runs_go_on_bit_for_bit_between_fits(tmp_path):
    policy, _, _ = policy_on(FREE, trials=2, rounds=10)
    policy.save(tmp_path / "run.pt")
    again = cb.load(tmp_path / "run.pt")
    for _ in range(6):
        choices = policy.ask(), again.ask()
        assert torch.equal(choices[0].index, choices[1].index)
        for each, choice in zip((policy, again), choices, strict=True):
            y = truth(choice.x)
            each.tell(choice, reward=y[..., 0], cost=y[..., 1:])
    assert torch.equal(policy.posterior().reward.mean, again.posterior().reward.mean)
    assert torch.equal(policy.multiplier, again.multiplier)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"mean": "learn"}, ["mean", "'learned'", "'learn'"]),
        ({"refit_every": "often"}, ["refit_every", "'auto'", "'often'"]),
    ],
)
def test_words_that_are_not_known(settings, words):
    with pytest.raises(cb.CBanditError) as error:
        cb.GP(gpytorch.kernels.RBFKernel(), **settings)
    assert all(word in str(error.value) for word in words)


def test_the_shortest_scales_by_hand():
    x = torch.tensor([[[3.0, -20.0, 0.5]]], dtype=F64)
    free = gpytorch.kernels.RBFKernel(active_dims=[1]).double()
    held = gpytorch.kernels.MaternKernel(
        active_dims=[2, 0], lengthscale_constraint=gpytorch.constraints.GreaterThan(0.1)
    ).double()
    kernel = gpytorch.kernels.ScaleKernel(free) + held
    names = {id(each): name for name, each in kernel.named_parameters()}
    least = shortest_scales(kernel, x)
    value = math.log1p(math.exp(least.pop(names[id(free.raw_lengthscale)])[0]))
    assert value == pytest.approx(6e-6 * 20)
    assert list(least.values()) == [[None]]  # its own bound is higher
