"""Gradients, ``torch.func`` and ``torch.compile`` over scores, multipliers and widths.

``fullgraph=True`` with the backend ``eager`` shows that a function can be compiled, and
needs no C++ compiler.
"""

from __future__ import annotations

import copy

import gpytorch
import pytest
import torch
from botorch.models.deterministic import GenericDeterministicModel
from botorch.models.model import Model
from inside import Streams, clip, estimates
from plugins import make

import cbandit as cb
from cbandit import multipliers, scores
from cbandit.acquisition import (
    OptimisticFeasible,
    PathwisePrimalDual,
    PrimalDual,
    RectifiedPenalty,
)

F64 = torch.float64
CPU = torch.device("cpu")
STREAMS = Streams(0, None)


class Posterior:
    def __init__(self, mean, variance):
        self.mean, self.variance = mean, variance


class Smooth(Model):
    """A reward and two costs of known mean and variance, without a GP."""

    num_outputs, batch_shape = 3, torch.Size()

    def posterior(self, X, *args, **kwargs):
        mean = truth(X)
        return Posterior(mean, 0.3 + mean.square())


def truth(X):
    first, second = X[..., 0], X[..., 1]
    parts = (6 * first).sin() + second, first - 0.6, (5 * second).cos()
    return torch.stack(parts, -1)


def explored(kind, **more):
    """Estimates by a rule of exploration, from its widths on."""

    def of(beta, cost_beta, mean, std):
        rule = kind(beta, cost_beta, **more)
        width = rule.widths.bind((), 2, CPU)(3, torch.zeros(1, 3), lambda: None)
        return estimates(mean, std, rule.coefficient(width, STREAMS))

    return of


def theory(form):
    def of(norm, subgaussian, gain, noise):
        schedule = cb.RKHS(norm, subgaussian, form=form)
        return schedule(3, gain, noise=noise)

    return of


def values(*shapes, low=0.2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [low + torch.rand(s, generator=generator, dtype=F64) for s in shapes]


# estimates of both signs, away from the corners at 0
F, G = (2 * v - 1.4 for v in values(5, (3, 5), seed=2))
POINTS = values((4, 1, 2), low=0.0)[0]
MOMENTS = values((1, 3, 6), (1, 3, 6))

# name: (function, its tensors)
FUNCTIONS = {
    "multipliers.projected": (
        multipliers.projected,
        [*values(3, 3, 3, 3), torch.full((3,), 1.1, dtype=F64)],
    ),
    "multipliers.projected by numbers": (
        lambda phi, g: multipliers.projected(phi, g, 0.1, 0.2, 5.0),
        values(3, 3),
    ),
    "multipliers.queue": (multipliers.queue, values(3, 3, 3)),
    "multipliers.rectified": (multipliers.rectified, values(3, 3, 3)),
    "multipliers.exponential": (multipliers.exponential, values(3, ())),
    "multipliers.polynomial": (multipliers.polynomial, values(3, (), ())),
    "scores.primal_dual": (scores.primal_dual, [F, G, *values(3)]),
    "scores.primal_dual of one cost": (scores.primal_dual, [F, G[:1], *values(1)]),
    "scores.rectified": (scores.rectified, [F, G, *values(3)]),
    "scores.optimistic_feasible": (
        lambda f, g: scores.optimistic_feasible(f, g).clamp_min(-50.0),
        [F, -G.abs()],
    ),
    "scores.least_violating": (scores.least_violating, [G]),
    "scores.least_total": (scores.least_total, [F, G]),
    "scores.clip": (scores.clip, [F, *values(())]),
    "scores.PrimalDual": (
        lambda f, g, phi: scores.PrimalDual(phi)(f, g),
        [F, G, G[:, 0]],
    ),
    "scores.Rectified": (
        lambda f, g, phi: scores.Rectified(phi)(f, g),
        [F, G, G[:, 0]],
    ),
    "scores.Feasible": (lambda f, g: scores.Feasible()(f, g), [F, -G.abs()]),
    "scores.LeastViolating": (lambda f, g: scores.LeastViolating()(f, g), [F, G]),
    "scores.Reward": (lambda f, g: scores.Reward()(f, g), [F, G]),
    "explore.estimates": (estimates, [*MOMENTS, *values((1, 3))]),
    "explore.clip": (clip, [F.expand(1, 2, 5), *values((1, 2, 1))]),
    "UCB": (explored(cb.UCB), [*values((), (2,)), *MOMENTS]),
    "TS": (explored(cb.TS), [*values((), (2,)), *MOMENTS]),
    "Rand": (
        explored(cb.Rand, draw=lambda generator, shape: torch.full(shape, 0.7)),
        [*values((), (2,)), *MOMENTS],
    ),
    "Constant": (lambda beta: cb.Constant(beta)(3, None), values((2,))),
    "RKHS": (theory("any-lam"), values(2, 2, 2, 2)),
    "RKHS, tight": (theory("tight"), values(2, 2, 2, 2)),
    "RKHS, small-lam": (theory("small-lam"), values(2, 2, 2, 2)),
    "sketched_width": (
        lambda *v: cb.confidence.sketched_width(*v, 0.1),
        values(2, 2, 2, 2, 2),
    ),
    "count_width": (lambda n: cb.confidence.count_width(n, 1.0, 0.1), values(3, low=2)),
}


def acquired(kind, model, **fixed):
    """A function of the parameters and the points of an acquisition function."""

    def of(X, **parameters):
        return kind(model, **fixed, **parameters)(X)

    return of


BETA, PHI, COST_BETA, TAU, UNITS, ROUND, LEVEL = (
    {"beta": values(())[0]},
    {"multiplier": values(2, seed=1)[0]},
    {"cost_beta": values(2, seed=2)[0]},
    {"thresholds": values(2, seed=3)[0] - 0.6},
    {"units": values(3, low=0.7)[0]},
    {"smooth": values(3)[0]},
    {"floor": torch.tensor(-9.0, dtype=F64)},
)
BELIEFS = BETA | COST_BETA | TAU | UNITS
ACQUISITIONS = {
    "PrimalDual": (PrimalDual, BELIEFS | PHI | ROUND),
    "RectifiedPenalty": (RectifiedPenalty, BELIEFS | PHI),
    "RectifiedPenalty, smooth": (RectifiedPenalty, BELIEFS | PHI | ROUND),
    "OptimisticFeasible": (OptimisticFeasible, BELIEFS | LEVEL),
    "OptimisticFeasible, smooth": (
        OptimisticFeasible,
        BELIEFS | {"smooth": values(2)[0]},
    ),
    "PathwisePrimalDual": (PathwisePrimalDual, BELIEFS | PHI | ROUND),
}


def arguments(kind):
    """Arguments that take no gradient; ``PathwisePrimalDual`` draws a path."""
    return {"seed": 3} if kind is PathwisePrimalDual else {}


def free(tensors):
    return [v.clone().requires_grad_() for v in tensors]


def twice(tensors):
    """Two sets of values, close to each other, on a first axis."""
    return [torch.stack([v, 1.01 * v]) for v in tensors]


@pytest.fixture(params=FUNCTIONS)
def case(request):
    return FUNCTIONS[request.param]


@pytest.fixture(params=ACQUISITIONS)
def named(request):
    """A function of tensors: an acquisition's parameters, and points."""
    kind, parameters = ACQUISITIONS[request.param]
    path = kind is PathwisePrimalDual
    model = GenericDeterministicModel(truth, 3) if path else Smooth()
    call = acquired(kind, model, **arguments(kind))

    def of(X, *tensors):
        return call(X, **dict(zip(parameters, tensors, strict=True)))

    return of, [POINTS, *parameters.values()]


def check_transforms(function, tensors):
    """Compare gradients and batches of ``torch.func`` with plain calls."""
    numbers = tuple(range(len(tensors)))
    inputs = free(tensors)
    expected = torch.autograd.grad(
        function(*inputs).sum(), inputs, materialize_grads=True
    )
    found = torch.func.grad(lambda *v: function(*v).sum(), numbers)(*tensors)
    torch.testing.assert_close(found, expected)
    both = torch.func.vmap(function)(*twice(tensors))
    apart = [function(*[v[i] for v in twice(tensors)]) for i in range(2)]
    torch.testing.assert_close(both, torch.stack(apart))
    slopes = torch.func.vmap(torch.func.grad(lambda *v: function(*v).sum(), numbers))
    for slope, first in zip(slopes(*twice(tensors)), expected, strict=True):
        torch.testing.assert_close(slope[0], first)


def check_compiled(function, tensors):
    """Compare a function compiled in one graph with the function, and its slopes."""
    torch.compiler.reset()
    inputs, again = free(tensors), free(tensors)
    expected, found = (
        function(*inputs),
        torch.compile(function, fullgraph=True, backend="eager")(*again),
    )
    torch.testing.assert_close(found, expected)
    slopes = (
        torch.autograd.grad(value.sum(), given, materialize_grads=True)
        for value, given in ((found, again), (expected, inputs))
    )
    torch.testing.assert_close(*slopes)


class TestFunctions:
    def test_gradients(self, case):
        function, tensors = case
        assert torch.autograd.gradcheck(function, free(tensors))

    def test_transforms(self, case):
        check_transforms(*case)

    @pytest.mark.parametrize("name", sorted(FUNCTIONS.keys() - {"Rand"}))
    def test_compiled(self, name):
        """``Rand`` draws from a generator, which ``torch.compile`` does not know."""
        check_compiled(*FUNCTIONS[name])

    def test_long_rows(self):
        """From 2^14 actions on rows are scaled one by one, where nothing is asked."""
        size = 1 << 14
        mean, std, factor = values((1, 2, size), (1, 2, size), (1, 2))
        factor.requires_grad_()
        estimates(mean, std, factor).sum().backward()
        torch.testing.assert_close(factor.grad, std.sum(-1))
        bound = values((1, 2, 1))[0].requires_grad_()
        clip(mean, bound).sum().backward()
        torch.testing.assert_close(bound.grad, (mean > bound).sum(-1, True).to(mean))

    def test_numbers_are_checked_outside_of_traces(self):
        phi, g = values(2, 2)
        with pytest.raises(cb.CBanditError, match="step must be finite and at least 0"):
            multipliers.projected(phi, g, -phi)
        with pytest.raises(cb.CBanditError, match=r"g must have the shape \(\*b, m\)"):
            torch.func.vmap(multipliers.queue)(phi.expand(3, 2), g[:1].expand(3, 3))


class TestAcquisitions:
    def test_gradients(self, named):
        function, tensors = named
        assert torch.autograd.gradcheck(function, free(tensors))

    def test_transforms(self, named):
        check_transforms(*named)

    @pytest.mark.parametrize("name", ACQUISITIONS)
    def test_compiled(self, name):
        kind, parameters = ACQUISITIONS[name]
        path = kind is PathwisePrimalDual
        model = GenericDeterministicModel(truth, 3) if path else Smooth()
        check_compiled(kind(model, **parameters, **arguments(kind)), [POINTS])

    @pytest.mark.parametrize("name", ACQUISITIONS)
    @pytest.mark.parametrize(("q", "which"), [(1, "list"), (2, "one")])
    def test_transforms_on_a_gp(self, name, q, which):
        """GPyTorch's functions take no part in them: the model is beneath."""
        kind, parameters = ACQUISITIONS[name]
        if kind is PathwisePrimalDual:
            parameters = parameters | {"cost_beta": torch.ones(2, dtype=F64)}
        else:
            parameters = parameters | {"noise": torch.tensor(0.1, dtype=F64)}
        pending = values((2, 2), low=0.0, seed=7)[0]
        call = acquired(kind, make(which), X_pending=pending, **arguments(kind))

        def of(X, *tensors):
            return call(X, **dict(zip(parameters, tensors, strict=True)))

        X = values((2, q, 2), low=0.0)[0]
        check_transforms(of, [X, *parameters.values()])

    def test_a_model_of_ones_own(self):
        """Without GPyTorch gradients of ``torch.func`` reach what is inside, too."""

        def of(slope):
            model = GenericDeterministicModel(lambda X: slope * truth(X), 3)
            return PrimalDual(model, 1.0, [0.5, 0.2])(POINTS).sum()

        weights = torch.tensor([1.0, -0.5, -0.2], dtype=F64)
        wanted = (truth(POINTS) * weights).sum()
        torch.testing.assert_close(
            torch.func.grad(of)(torch.ones((), dtype=F64)), wanted
        )

    def test_floors_on_a_gp(self):
        model, X = make(), values((3, 1, 2), low=0.0)[0]

        def of(tau):
            return OptimisticFeasible(model, 1.0, thresholds=tau)(X).sum()

        tau = torch.full((2,), -3.0, dtype=F64)
        (slope,) = torch.autograd.grad(of(given := tau.clone().requires_grad_()), given)
        torch.testing.assert_close(torch.func.grad(of)(tau), slope)
        assert slope.sum() == 3

    @pytest.mark.parametrize("name", ACQUISITIONS)
    @pytest.mark.parametrize("q", [1, 2])
    def test_gradients_on_a_gp(self, name, q):
        """Of every parameter, ``beta`` of 1 included, and of a noise that is given."""
        kind, parameters = ACQUISITIONS[name]
        parameters = parameters | {"beta": torch.tensor(1.0, dtype=F64)}
        parameters = parameters | {"thresholds": torch.full((2,), 2.0, dtype=F64)}
        if kind is PathwisePrimalDual:
            parameters = parameters | {"cost_beta": torch.ones(2, dtype=F64)}
        else:
            parameters = parameters | {"noise": torch.tensor(0.1, dtype=F64)}
        model, X = make(), values((3, q, 2), low=0.0)[0]
        call = acquired(kind, model, **arguments(kind))

        def of(*tensors):
            return call(X, **dict(zip(parameters, tensors, strict=True)))

        inputs = free(parameters.values())
        assert torch.autograd.gradcheck(of, inputs, fast_mode=True)
        slopes = torch.autograd.grad(of(*inputs).sum(), inputs, materialize_grads=True)
        assert bool(slopes[0] != 0)  # of beta


class TestLearnedSteps:
    """The step of CKB through 20 rounds of scores and multipliers."""

    ROUNDS = 20
    X = torch.linspace(0, 1, 41, dtype=F64)
    MEAN = torch.stack([X, X - 0.5, 0.6 - X])
    STD = 0.1 * (1 + torch.cos(7 * X)) + 0.02

    def estimates(self, t):
        """The bounds of round ``t``, which narrow as the rounds go by."""
        beta = torch.tensor([[1.0, -1.0, -1.0]], dtype=F64) / (1 + t / 5)
        return estimates(self.MEAN[None], self.STD.expand(1, 3, -1), beta)[0]

    def unroll(self, step, choose, rounds=ROUNDS):
        """What the rounds cost, and the places ``(rounds, n)`` chosen."""
        phi, total, chosen = step.new_zeros(2), 0.0, []
        for t in range(rounds):
            estimate = self.estimates(t)
            f, g = estimate[0], estimate[1:]
            share = choose(t, scores.primal_dual(f, g, phi))
            excess = multipliers.projected(phi, g @ share, step, 0.01, 2.0)
            total = total + excess.square().sum() - f @ share + phi @ (g @ share)
            phi = excess
            chosen.append(share)
        return total, torch.stack(chosen)

    def check(self, choose):
        def loss(step):
            return self.unroll(step, choose)[0]

        step = torch.tensor([0.4, 0.3], dtype=F64)
        given = step.clone().requires_grad_()
        (slope,) = torch.autograd.grad(loss(given), given)
        around = 1e-6 * torch.eye(2, dtype=F64)
        rise = torch.stack([loss(step + e) - loss(step - e) for e in around]) / 2e-6
        assert (slope.abs() > 1e-2).all()
        torch.testing.assert_close(slope, rise, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(torch.func.grad(loss)(step), slope)
        steps = torch.stack([step, 0.5 * step])
        both = torch.func.vmap(torch.func.grad(loss))(steps)
        torch.testing.assert_close(both[0], slope)
        return loss

    def softly(self, t, score):
        return torch.softmax(score / 0.05, -1)

    def test_with_the_choices_held(self):
        step = torch.tensor([0.4, 0.3], dtype=F64)

        def best(t, score):
            return torch.nn.functional.one_hot(score.argmax(-1), 41).to(score)

        held = self.unroll(step, best)[1]
        assert len(held.argmax(-1).unique()) > 1
        self.check(lambda t, score: held[t])

    def test_with_a_softmax_over_scores(self):
        loss = self.check(self.softly)
        raw = torch.tensor([0.4, 0.3], dtype=F64).log().requires_grad_()
        before = loss(raw.exp()).item()
        optimiser = torch.optim.Adam([raw], lr=0.1)
        for _ in range(10):
            optimiser.zero_grad()
            loss(raw.exp()).backward()
            optimiser.step()
        assert loss(raw.exp()).item() < before - 0.1

    def test_compiled(self):
        check_compiled(
            lambda step: self.unroll(step, self.softly, 5)[0],
            [torch.tensor([0.4, 0.3], dtype=F64)],
        )


class TestPolicies:
    """Their rules are differentiable; what their rounds store has no graph."""

    ACTIONS = cb.Finite(torch.linspace(0, 1, 30, dtype=F64).unsqueeze(-1))

    def policy(self, **more):
        kernel = gpytorch.kernels.RBFKernel().double()
        kernel.lengthscale = torch.tensor(0.2, dtype=F64)
        gp = cb.GP(kernel, noise=1e-2)
        return cb.CKB(self.ACTIONS, reward=gp, costs=[gp, gp], **more)

    def parameters(self):
        return free([*values(2, 2), torch.full((2,), 1.4, dtype=F64)])

    def test_the_step_of_ckb(self):
        step, slack, cap = self.parameters()
        policy = self.policy(step=step, slack=slack, cap=cap)
        phi, estimate = free(values((1, 2), (1, 3), seed=5))
        moved = policy.move(3, phi, estimate, ())
        wanted = multipliers.projected(phi, estimate[:, 1:], step, slack, cap)
        torch.testing.assert_close(moved, wanted)
        inputs = step, slack, cap, phi, estimate
        for slope, other in zip(
            torch.autograd.grad(moved.sum(), inputs),
            torch.autograd.grad(wanted.sum(), inputs),
            strict=True,
        ):
            torch.testing.assert_close(slope, other)

    def test_the_step_of_a_queue(self):
        raw = torch.tensor(-1.0, dtype=F64, requires_grad=True)
        f, g = F[None], G[None, :2]
        phi = free(values((1, 2)))[0]
        for step in (raw.exp(), lambda t: raw.exp() / t):
            policy = self.policy(step=step, dual="queue")
            value = policy.score(1, phi)(f, g).sum()
            by_step, by_phi = torch.autograd.grad(value, [raw, phi])
            torch.testing.assert_close(by_phi, -raw.exp() * g.sum(-1))
            torch.testing.assert_close(by_step, -raw.exp() * (phi * g.sum(-1)).sum())
            policy.tell(policy.ask(), reward=1.0, cost=[0.5, 0.2])
            policy.ask()

    def test_rounds_store_no_graph(self, tmp_path):
        step, slack, cap = self.parameters()
        beta = torch.tensor(1.5, dtype=F64, requires_grad=True)
        given = {"step": 2 * step, "slack": slack, "cap": 2 * cap}
        policies = [
            self.policy(explore=cb.UCB(2 * beta, margin=beta), **given),
            self.policy(
                explore=cb.UCB(3.0, margin=1.5),
                **{name: value.detach() for name, value in given.items()},
            ),
        ]
        for t in range(4):
            if t == 2:
                policies[0].save(tmp_path / "policy.pt")
                policies += [
                    copy.deepcopy(policies[0]),
                    cb.load(tmp_path / "policy.pt"),
                ]
            choices = [policy.ask() for policy in policies]
            for policy, choice in zip(policies, choices, strict=True):
                assert choice.index == choices[0].index
                assert not policy.multiplier.requires_grad
                assert not policy.explain(choice).score.requires_grad
                policy.tell(choice, reward=beta * 1.0, cost=beta * step)
                assert torch.equal(policy.multiplier, policies[0].multiplier)

    def test_nor_does_a_rule_of_ones_own(self):
        rate = torch.tensor(0.3, dtype=F64, requires_grad=True)

        class Learned(cb.GPPolicy):
            def score(self, t, multiplier):
                return scores.PrimalDual(rate * multiplier)

            def move(self, t, multiplier, estimate, arrived):
                return multipliers.queue(multiplier, rate * estimate[:, 1:])

        gp = cb.GP(gpytorch.kernels.RBFKernel().double(), noise=1e-2)
        policy = Learned(self.ACTIONS, reward=gp, costs=gp)
        for _ in range(3):
            policy.tell(policy.ask(), reward=1.0, cost=0.5)
        assert not policy.multiplier.requires_grad
