"""Policies on a box: trials, looks at beliefs, recommendations, choices, units."""

from __future__ import annotations

import math

import gpytorch
import numpy as np
import pytest
import torch
from inside import (
    Stacked,
    Streams,
    beliefs_of,
    best_feasible_point,
    maximise_box,
    told,
)

import cbandit as cb
from cbandit import scores

F64 = torch.float64


def unit(dim):
    return cb.Box([0.0] * dim, [1.0] * dim)


def world(x):
    """Reward and two costs ``(*b, 3)`` of points ``(*b, 2)``."""
    f = torch.sin(6 * x[..., 0]) + x[..., 1]
    return torch.stack([f, x[..., 0] - 0.6, x.sum(-1) - 1.1], -1)


def belief(lengthscale=0.2):
    kernel = gpytorch.kernels.RBFKernel().double()
    kernel.lengthscale = torch.tensor(lengthscale, dtype=F64)
    return cb.GP(kernel, noise=1e-4)


POLICIES = {
    "CKB-UCB": lambda box, gp, **more: cb.CKB(
        box, reward=gp, costs=[gp, gp], explore=cb.UCB(2.0), step=1.0, cap=20.0,
        clip=(4.0, 3.0), **more,
    ),
    "CKB-TS": lambda box, gp, **more: cb.CKB(
        box, reward=gp, costs=[gp, gp], explore=cb.TS(1.0), step=0.3, cap=20.0, **more
    ),
    "RPOL-UCB": lambda box, gp, **more: cb.RPOL(
        box, reward=gp, costs=[gp, gp], explore=cb.UCB(2.0), **more
    ),
    "CONFIG": lambda box, gp, **more: cb.baselines.CONFIG(
        box, reward=gp, costs=[gp, gp], explore=cb.UCB(2.0), **more
    ),
}  # fmt: skip


def greatest(score, lipschitz, lengthscale, within):
    """The maximum on the unit square, at most ``within`` too low: squares, halved.

    The score moves by at most ``lipschitz`` times the kernel's distance.
    """
    centers, half, best = np.full((1, 2), 0.5), 0.5, -math.inf
    corners = np.array([(i, j) for i in (-1, 1) for j in (-1, 1)])
    while len(centers):
        value = score(centers)
        best = max(best, value.max())
        reach = lipschitz * math.sqrt(2 - 2 * math.exp(-((half / lengthscale) ** 2)))
        centers, half = centers[value + reach > best + within], half / 2
        centers = (centers[:, None] + half * corners).reshape(-1, 2)
    return best


def test_the_search_finds_the_greatest_score_by_a_bound_of_its_own():
    """Surely within 0.05 of the score's maximum on the square, in every round."""
    length, lam, beta = 0.3, 1e-2, 2.0
    kernel = gpytorch.kernels.RBFKernel().double()
    kernel.lengthscale = torch.tensor(length, dtype=F64)
    gp = cb.GP(kernel, noise=lam)
    policy = cb.CKB(
        unit(2), reward=gp, costs=gp, explore=cb.UCB(beta), step=1.0, cap=20.0,
        thresholds=-0.6, pending="ignore",
    )  # fmt: skip

    def gram(a, b):
        apart = ((a[:, None] - b[None]) ** 2).sum(-1)
        return np.exp(-apart / (2 * length**2))

    x, priced = np.random.default_rng(0).uniform(size=(8, 2)), 0
    y = world(torch.tensor(x))[:, [0, 2]].numpy()
    policy.observe(x=x, reward=y[:, 0], cost=y[:, 1])
    for _ in range(8):
        choice = policy.ask()
        phi = float(policy.explain(choice).multiplier)
        priced += phi > 0
        inverse = np.linalg.inv(gram(x, x) + lam * np.eye(len(x)))
        weight = inverse @ y
        norms = np.sqrt(np.einsum("ij,ik,kj->j", weight, gram(x, x), weight))

        def score(z, x=x, inverse=inverse, weight=weight, phi=phi):
            cross = gram(z, x)
            mean = cross @ weight
            var = 1 - np.einsum("ij,jk,ik->i", cross, inverse, cross)
            std = np.sqrt(var.clip(0))
            return mean[:, 0] + beta * std - phi * (mean[:, 1] - beta * std + 0.6)

        lipschitz = norms[0] + beta + phi * (norms[1] + beta)
        at = choice.x.numpy().reshape(1, 2)
        best = greatest(score, lipschitz, length, 0.05)
        assert score(at)[0] >= best - 1e-6
        told = world(choice.x)[..., [0, 2]].numpy().reshape(1, 2)
        policy.tell(choice, reward=told[0, 0], cost=told[0, 1])
        x, y = np.concatenate([x, at]), np.concatenate([y, told])
    assert priced >= 3


def play(policy, rounds):
    actions = []
    for _ in range(rounds):
        choice = policy.ask()
        seen = world(choice.x)
        policy.tell(choice, reward=seen[..., 0], cost=seen[..., 1:])
        actions.append(choice.x)
    return torch.stack(actions, -2)


class TestPolicies:
    @pytest.mark.parametrize("name", POLICIES)
    def test_trials_in_a_batch_are_those_alone(self, name):
        # a few outcomes first: with one or two, scores tie on whole rings or pairs
        x = torch.tensor([[0.15, 0.3], [0.8, 0.55], [0.45, 0.9]], dtype=F64)
        known = {"x": x, "reward": world(x)[:, 0], "cost": world(x)[:, 1:]}

        def played(trials):
            policy = POLICIES[name](unit(2), belief(), trials=trials, seed=5)
            policy.observe(**known)
            return play(policy, 6)

        together = played(3)
        for trial in range(3):
            alone = played(range(trial, trial + 1))
            torch.testing.assert_close(together[trial], alone[0], atol=1e-4, rtol=0)

    @pytest.mark.slow
    @pytest.mark.parametrize("name", ["CKB-UCB", "RPOL-UCB", "CONFIG"])
    def test_they_come_to_the_optimum(self, name):
        policy = POLICIES[name](unit(2), belief(0.4), seed=1)
        actions = play(policy, 40)
        axis = torch.linspace(0, 1, 401, dtype=F64)
        truth = world(torch.cartesian_prod(axis, axis))
        best = truth[(truth[:, 1:] <= 0).all(-1), 0].max()
        # on average: a primal-dual policy comes and goes across its limits
        last = world(actions[-20:])
        assert last[:, 1:].mean(0).max() < 0.05
        assert last[:, 0].mean().item() == pytest.approx(best.item(), abs=0.15)
        assert policy.climbs.made > 40
        found = policy.recommend()
        assert bool(found.feasible)
        assert world(found.x)[0].item() == pytest.approx(best.item(), abs=0.1)

    def test_config_says_when_nothing_is_feasible(self):
        policy = POLICIES["CONFIG"](unit(2), belief(0.4), thresholds=[-2.0, 5.0])
        play(policy, 20)
        choice = policy.ask()
        assert bool(choice.infeasible)
        # where the first cost's lower bound is least
        axis = torch.linspace(0, 1, 41, dtype=F64)
        believed = policy.posterior(torch.cartesian_prod(axis, axis)).costs
        here = policy.posterior(choice.x.unsqueeze(0)).costs
        least = (believed.mean - 2 * believed.std)[0].min()
        assert (here.mean - 2 * here.std)[0, 0] <= least + 1e-4
        assert choice.index is None


def kernel_of(name, dim):
    kernel = {
        "rbf": gpytorch.kernels.RBFKernel(ard_num_dims=dim),
        "matern32": gpytorch.kernels.MaternKernel(nu=1.5, ard_num_dims=dim),
        "linear": gpytorch.kernels.LinearKernel(),
        "scaled": gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel()),
    }[name].double()
    if name == "scaled":
        kernel.outputscale = torch.tensor(3.0, dtype=F64)
    elif name != "linear":
        kernel.lengthscale = torch.linspace(0.5, 1.5, dim, dtype=F64)
    return kernel


class TestLooking:
    """The posterior of a search against GPyTorch's, and against the other way."""

    box = cb.Box([0.0, 1.0, -1.0], [2.0, 5.0, 1.0])

    def policy(self, costs, rounds=9, **more):
        # far from 0, so that a mean taken wrong shows
        generator = torch.Generator().manual_seed(0)
        policy = cb.CKB(
            self.box, reward=costs[0], costs=costs, explore=cb.UCB(1.0), step=1.0,
            cap=9.0, **more,
        )  # fmt: skip
        for _ in range(rounds):
            choice = policy.ask()
            shape = (*policy.batch_shape, 1 + policy.m)
            noise = torch.randn(shape, generator=generator, dtype=F64)
            f, g = choice.x.sum(-1) + noise[..., 0], 5 + 2 * noise[..., 1:]
            policy.tell(choice, reward=f, cost=g)
        return policy

    def points(self, policy, count=7):
        generator = torch.Generator().manual_seed(1)
        size = policy.batch_shape[0] if policy.batch_shape else 1
        z = torch.rand(size, count, 3, generator=generator, dtype=F64)
        x = self.box.lower + (self.box.upper - self.box.lower) * z
        return x.requires_grad_(True)

    @pytest.mark.parametrize("name", ["rbf", "matern32", "linear", "scaled"])
    @pytest.mark.parametrize("trials", [None, 3])
    @pytest.mark.parametrize("standardize", [False, True])
    def test_values_and_gradients(self, name, trials, standardize):
        mean = 0.0 if standardize else 0.3
        gp = cb.GP(kernel_of(name, 3), noise=0.1, mean=mean, standardize=standardize)
        policy = self.policy([gp, gp], trials=trials)
        if standardize and name != "linear":
            policy.refit()  # from here on each function has a kernel of its own
        look, x = beliefs_of(policy).solver(), self.points(policy)
        assert isinstance(look, Stacked) == (name != "linear")  # that has weights
        found, expected = look(x), beliefs_of(policy).anywhere(x)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-8)
        (one,) = torch.autograd.grad((found[0] + 1.3 * found[1]).sum(), x)
        (other,) = torch.autograd.grad((expected[0] + 1.3 * expected[1]).sum(), x)
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)

    def test_as_gpytorch_has_it(self):
        gp = cb.GP(kernel_of("rbf", 3), noise=0.1, standardize=True)
        policy = self.policy([gp, gp])
        policy.refit()
        x = self.points(policy)
        mean, std = told(beliefs_of(policy).units(), *beliefs_of(policy).solver()(x))
        believed = policy.model.posterior(x[0])
        torch.testing.assert_close(mean[0].mT, believed.mean, rtol=1e-6, atol=1e-6)
        variance = believed.variance
        torch.testing.assert_close(std[0].mT ** 2, variance, rtol=1e-5, atol=1e-6)

    def test_beliefs_unlike_each_other(self):
        """Kernels of two kinds, or costs of which less is known."""
        gp, other = (
            cb.GP(kernel_of("rbf", 3), noise=0.1),
            cb.GP(kernel_of("matern32", 3), noise=0.1),
        )
        mixed = self.policy([gp, other])
        late = self.policy([gp, gp])
        late.tell(late.ask(), reward=1.0)
        for policy in (mixed, late):
            look, x = beliefs_of(policy).solver(), self.points(policy)
            assert not isinstance(look, Stacked)
            for one, two in zip(look(x), beliefs_of(policy).anywhere(x), strict=True):
                assert torch.equal(one, two)

    def test_before_any_data(self):
        gp = cb.GP(kernel_of("rbf", 3), noise=0.1)
        policy = self.policy([gp, gp], rounds=0)
        mean, std = beliefs_of(policy).solver()(self.points(policy))
        assert (mean == 0).all()
        torch.testing.assert_close(std, torch.ones_like(std))


def test_a_recommendation_close_to_a_limit():
    """Chances of what is known well fall to e^-10000 a step beyond the limit."""
    policy = cb.RPOL(unit(2), reward=belief(0.4), costs=[belief(0.4)] * 2,
                     explore=cb.UCB(0.5), seed=3)  # fmt: skip
    x = torch.cartesian_prod(*[torch.linspace(0, 1, 9, dtype=F64)] * 2)
    seen = world(x)
    policy.observe(x=x, reward=seen[:, 0], cost=100 * seen[:, 1:])
    axis = torch.linspace(0, 1, 101, dtype=F64)
    points = torch.cartesian_prod(axis, axis)
    believed = policy.posterior(points)
    z = -believed.costs.mean / believed.costs.std
    likely = torch.special.log_ndtr(z).sum(0) >= math.log(0.95)
    best = believed.reward.mean[likely].max()
    found = policy.recommend(0.95)
    assert bool(found.feasible)
    here = policy.posterior(found.x.unsqueeze(0))
    assert here.reward.mean[0] >= best - 1e-6


class TestChoices:
    box = cb.Box([0.0], [1.0], choices=[[0.0, 5.0], [1.0, 7.0], [2.0, 9.0]])

    def estimate(self, x):
        # the best row is the middle one, where x is 0.3; a cost grows with x
        f = -((x[..., 0] - 0.3) ** 2) - (x[..., 1] - 1).abs()
        return torch.stack([f, x[..., 0] - 0.25], 1)

    def test_the_best_row_and_point(self):
        weight = torch.tensor([[0.0]], dtype=F64)
        found = maximise_box(
            self.box,
            self.estimate,
            lambda f, g: scores.rectified(f, g, weight),
            Streams(0),
        )
        assert found.x[0].tolist() == pytest.approx([0.3, 1.0, 7.0], abs=1e-5)
        assert self.box.inside(found.x).equal(found.x)
        found, _ = best_feasible_point(
            self.box, self.estimate, Streams(0), torch.zeros(1, 0, 3, dtype=F64)
        )
        assert found.x[0].tolist() == pytest.approx([0.25, 1.0, 7.0], abs=1e-5)

    def test_thousands_of_rows(self):
        count = torch.arange(3000, dtype=F64)
        box = cb.Box([0.0], [1.0], choices=count.unsqueeze(-1))

        def estimate(x):  # a narrow peak in the rows
            f = -((x[..., 0] - 0.3) ** 2) - (x[..., 1] - 1234).abs() / 100
            return torch.stack([f, f], 1)

        found = maximise_box(box, estimate, lambda f, g: f, Streams(0))
        assert abs(found.x[0, 1].item() - 1234) <= 3
        assert found.x[0, 0].item() == pytest.approx(0.3, abs=1e-4)

    @pytest.mark.parametrize("trials", [None, 2])
    def test_policies(self, trials):
        policy = cb.CKB(
            self.box, reward=belief(0.5), costs=belief(0.5), explore=cb.UCB(2.0),
            step=0.3, cap=20.0, trials=trials,
        )  # fmt: skip
        for _ in range(25):
            choice = policy.ask()
            seen = self.estimate(choice.x.reshape(-1, 1, 3))[..., 0]
            reward, cost = (v.reshape(policy.batch_shape) for v in seen.unbind(-1))
            policy.tell(choice, reward=reward, cost=cost)
        last = choice.x.reshape(-1, 3)
        assert (last[:, 1] == 1.0).all()
        assert ((last[:, 0] - 0.25).abs() < 0.1).all()
        assert bool((policy.recommend().x.reshape(-1, 3)[:, 1] == 1.0).all())

    def test_kernels_of_categories(self):
        from botorch.models.kernels.categorical import CategoricalKernel

        line = gpytorch.kernels.RBFKernel(active_dims=[0]).double()
        line.lengthscale = 0.3
        codes = CategoricalKernel(active_dims=[1]).double()
        gp = cb.GP(line * codes, noise=1e-3)
        box = cb.Box([0.0], [1.0], choices=[[0.0], [1.0], [2.0], [3.0]])
        policy = cb.RPOL(box, reward=gp, costs=gp, explore=cb.UCB(2.0))
        best = torch.tensor([0.2, 0.9, 0.5, 0.1], dtype=F64)
        for _ in range(30):
            choice = policy.ask()
            x, row = choice.x[0], choice.x[1].long()
            policy.tell(choice, reward=best[row] - (x - 0.4) ** 2, cost=x - 0.5)
        assert choice.x[1].item() == 1.0
        assert abs(choice.x[0].item() - 0.4) < 0.1

    def test_the_set(self):
        box = self.box
        assert box.dim == 3
        assert box.bounds.tolist() == [[0.0, 0.0, 5.0], [1.0, 2.0, 9.0]]
        assert box.free.tolist() == [True, False, False]
        assert repr(box) == "Box([0.0], [1.0], 3 choices)"
        moved = box.to(dtype=torch.float32)
        assert moved.choices.dtype == moved.lower.dtype == torch.float32
        assert box.inside([[0.5, 1.0, 7.0 + 1e-9]])[0].tolist() == [0.5, 1.0, 7.0]
        with pytest.raises(cb.CBanditError, match="one of the 3 rows of choices"):
            box.inside([0.5, 1.0, 9.0])
        same = cb.Box([0.0], [1.0], choices=cb.Finite(box.choices))
        assert torch.equal(same.choices, box.choices)
        axes = cb.ProductGrid([torch.arange(3), torch.tensor([1.0, 5.0])])
        assert cb.Box([0.0], [1.0], choices=axes).choices.shape == (6, 2)
        assert cb.Box([0.0], [1.0], choices=[[4.0]]).upper.tolist() == [1.0, 5.0]

    @pytest.mark.parametrize(
        ("choices", "message"),
        [
            ([1.0, 2.0], "choices must have rows"),
            (cb.Finite(covariance=np.eye(2)), "choices must have coordinates"),
            (cb.ProductGrid([torch.arange(2000)] * 2), "at most 1000000 rows"),
        ],
    )
    def test_bad_choices(self, choices, message):
        with pytest.raises(cb.CBanditError, match=message):
            cb.Box([0.0], [1.0], choices=choices)


@pytest.mark.parametrize("unit", [1e-20, 1e-6, 1e6, 1e14])
@pytest.mark.parametrize("costs", [False, True])
def test_outcomes_in_any_unit(unit, costs):
    """From 1e-20 to 1e14, and all of them negative: as in units of one."""
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel()).double()
    kernel.base_kernel.lengthscale = torch.tensor(0.1, dtype=F64)
    kernel.outputscale = torch.tensor(unit**2, dtype=F64)
    gp = cb.GP(kernel, noise=1e-2 * unit**2)
    box, explore = cb.Box([0.0], [1.0]), cb.UCB(2.0)
    x = np.random.default_rng(1).random((12, 1))
    reward, cost = np.sin(7 * x[:, 0]) - 3, np.cos(5 * x[:, 0]) + 4
    if costs:
        policy = cb.baselines.CONFIG(box, reward=gp, costs=gp, explore=explore)
        policy.observe(x=x, reward=unit * reward, cost=unit * cost)
    else:
        policy = cb.GPUCB(box, reward=gp, explore=explore)
        policy.observe(x=x, reward=unit * reward)
    choice = policy.ask()
    at = np.append(np.linspace(0, 1, 4001), choice.x.item())[:, None]
    cov = np.exp(-0.5 * ((x - x.T) / 0.1) ** 2) + 1e-2 * np.eye(12)
    gain = np.linalg.solve(cov, np.exp(-0.5 * ((x - at.T) / 0.1) ** 2)).T
    std = np.sqrt(1 - (gain * np.exp(-0.5 * ((at - x.T) / 0.1) ** 2)).sum(-1))
    found = policy.posterior(at).reward
    assert abs(found.mean.numpy() / unit - gain @ reward).max() < 1e-12
    assert abs(found.std.numpy() / unit - std).max() < 1e-12
    score = gain @ reward + 2 * std
    if costs:
        # where no lower bound keeps the limit the least of them is looked for
        low = gain @ cost - 2 * std
        score = np.where(low <= 0, score, -np.inf) if (low <= 0).any() else -low
    assert score[-1] >= score[:-1].max() - 1e-6


@pytest.mark.parametrize("name", ["CKB-UCB", "CKB-TS", "RPOL-UCB"])
def test_gradients_may_be_switched_off_around_a_policy(name):
    """An interrupt may leave them so, and who serves a model often has them off."""

    def chosen(enabled):
        box, x = unit(2), []
        gp = cb.GP(belief().kernel, noise=None, refit_every=3, standardize=True)
        policy = POLICIES[name](box, gp)
        for _ in range(6):
            with torch.set_grad_enabled(enabled):
                choice = policy.ask()
                f, *g = world(choice.x).tolist()
                policy.tell(choice, reward=f, cost=g)
            x.append(choice.x)
        assert policy.climbs.made > 0
        return torch.stack(x)

    assert torch.equal(chosen(True), chosen(False))
