"""The plug-ins in BoTorch's optimisers, and beside the policies."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from botorch.optim import (
    optimize_acqf,
    optimize_acqf_discrete,
    optimize_acqf_mixed,
)
from plugins import BETA, BOX, KINDS, SMOOTH, at, make

import cbandit as cb
from cbandit import scores
from cbandit.acquisition import (
    OptimisticFeasible,
    PrimalDual,
    RectifiedPenalty,
)


@pytest.fixture(scope="module")
def model():
    return make()


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


class TestOptimisers:
    def grid(self, score, n=150):
        axis = torch.linspace(0, 1, n, dtype=torch.float64)
        x = torch.cartesian_prod(axis, axis).unsqueeze(-2)
        with torch.no_grad():
            return score(x)

    def test_optimize_acqf(self, kind, model):
        score = KINDS[kind](model)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            x, value = optimize_acqf(score, BOX, q=1, num_restarts=6, raw_samples=128)
        assert x.shape == (1, 2)
        values = self.grid(score, 40 if kind == "pathwise" else 150)
        spread = values.max() - values[values > -100].min()
        assert value >= values.max() - 1e-3 * spread

    @pytest.mark.parametrize("kind", SMOOTH, indirect=False)
    def test_smooth_optima_are_near(self, kind, model):
        rough = {
            "primal-dual": PrimalDual(model, BETA, [3.0, 3.0], clip=(1.0, 0.6)),
            "rectified": RectifiedPenalty(model, BETA, [3.0, 3.0]),
            "feasible": OptimisticFeasible(model, BETA),
        }[kind]
        soft = {
            "primal-dual": PrimalDual(
                model, BETA, [3.0, 3.0], clip=(1.0, 0.6), smooth=1e-2
            ),
            "rectified": RectifiedPenalty(model, BETA, [3.0, 3.0], smooth=1e-2),
            "feasible": OptimisticFeasible(model, BETA, smooth=3e-3),
        }[kind]
        with torch.random.fork_rng():
            torch.manual_seed(0)
            x, _ = optimize_acqf(soft, BOX, q=1, num_restarts=6, raw_samples=128)
        best = self.grid(rough).max()
        if kind == "feasible":
            f, g = rough.estimates(x.unsqueeze(0))
            assert g.max() <= 0
            assert f.item() > best - 0.05
        else:
            assert rough(x).item() > best - 0.1

    def test_sequential_greedy(self, kind, model):
        score = KINDS[kind](model)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            x, values = optimize_acqf(
                score, BOX, q=3, num_restarts=3, raw_samples=32, sequential=True
            )
        assert score.X_pending is None
        assert len({tuple(row) for row in x.tolist()}) == 3
        assert values.sum().item() == pytest.approx(score(x).item(), rel=1e-6)

    @pytest.mark.parametrize("q", [1, 2])
    def test_mixed(self, kind, model, q):
        score = KINDS[kind](model)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            x, value = optimize_acqf_mixed(
                score,
                BOX,
                q=q,
                num_restarts=2,
                raw_samples=32,
                fixed_features_list=[{0: 0.25}, {0: 0.75}],
            )
        assert score.X_pending is None
        assert set(x[:, 0].tolist()) <= {0.25, 0.75}
        assert torch.isfinite(value).all()

    def test_discrete(self, kind, model):
        score, choices = KINDS[kind](model), at(60, seed=8)
        x, value = optimize_acqf_discrete(score, 1, choices)
        assert torch.equal(x[0], choices[score(choices.unsqueeze(-2)).argmax()])
        many, values = optimize_acqf_discrete(score, 3, choices)
        assert torch.equal(many[0], x[0])
        assert values[0] == value
        assert len(many.unique(dim=0)) == 3
        assert score.X_pending is None

    def test_slack_as_a_nonlinear_constraint(self, model):
        score = OptimisticFeasible(model, BETA)
        reward = PrimalDual(model, BETA, [0.0, 0.0])
        values = self.grid(score)
        start = at(200, 1)
        start = start[score(start).topk(4).indices]
        x, value = optimize_acqf(
            reward,
            BOX,
            q=1,
            num_restarts=4,
            batch_initial_conditions=start,
            nonlinear_inequality_constraints=[(score.slack, True)],
        )
        assert score.slack(x).item() > -1e-6
        assert value > values.max() - 1e-3


def run(policy, rounds, seed=0):
    """Some rounds of a smooth world with noise."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(rounds):
        choice = policy.ask()
        x = choice.x[..., 0]
        noise = 0.05 * torch.randn(3, generator=generator, dtype=torch.float64)
        reward = torch.sin(6 * x) + noise[0]
        cost = torch.stack([x - 0.5 + noise[1], 0.3 - x + noise[2]], -1)
        policy.tell(choice, reward=reward, cost=cost)


def belief(lengthscale=0.2, **more):
    import gpytorch

    kernel = gpytorch.kernels.MaternKernel(nu=2.5).double()
    kernel.lengthscale = lengthscale
    return cb.GP(kernel, noise=0.01, **more)


class TestAgreement:
    points = torch.linspace(0, 1, 60, dtype=torch.float64).unsqueeze(-1)
    common: ClassVar = {"thresholds": [0.05, -0.02], "clip": (1.5, [0.6, 0.4])}

    def policy(self, kind, **more):
        named = {
            "reward": belief(),
            "costs": [belief(0.3), belief(0.4)],
            "explore": cb.UCB(2.0, [1.0, 1.5]),
            **self.common,
            **more,
        }
        if kind is cb.CKB:
            named.update(step=0.3, cap=20.0)
        return kind(cb.Finite(self.points), **named)

    @pytest.mark.parametrize(
        ("policy", "plug_in"), [(cb.CKB, PrimalDual), (cb.RPOL, RectifiedPenalty)]
    )
    @pytest.mark.parametrize("rounds", [2, 15])
    def test_scores_and_choice(self, policy, plug_in, rounds):
        policy = self.policy(policy)
        run(policy, rounds)
        score = plug_in(
            policy.model,
            2.0,
            policy.multiplier,
            [1.0, 1.5],
            self.common["thresholds"],
            self.common["clip"],
        )
        seen = policy.posterior()
        f = (seen.reward.mean + 2.0 * seen.reward.std).clamp(-1.5, 1.5)
        beta = torch.tensor([[1.0], [1.5]])
        g = seen.costs.mean - beta * seen.costs.std
        g = g - torch.tensor(self.common["thresholds"]).unsqueeze(-1)
        bound = torch.tensor([[0.6], [0.4]])
        g = g.clamp(-bound, bound)
        rule = scores.primal_dual if plug_in is PrimalDual else scores.rectified
        values = score(self.points.unsqueeze(-2))
        torch.testing.assert_close(
            values, rule(f, g, policy.multiplier), rtol=1e-7, atol=1e-8
        )
        x, _ = optimize_acqf_discrete(score, 1, self.points)
        assert torch.equal(policy.ask().x, x[0])

    def test_pending_as_hallucinated(self):
        policy = self.policy(cb.CKB, pending="hallucinate")
        run(policy, 6)
        believed = policy.model
        waiting = [policy.ask().x]
        for _ in range(3):
            score = PrimalDual(
                believed, 2.0, policy.multiplier, [1.0, 1.5], *self.common.values(),
                X_pending=torch.stack(waiting),
            )  # fmt: skip
            values = score(self.points.unsqueeze(-2))
            waiting.append(policy.ask().x)
            assert torch.equal(waiting[-1], self.points[values.argmax()])
        assert len({x.item() for x in waiting}) > 1

    def test_trials_are_a_batch(self):
        policy = self.policy(cb.RPOL, trials=2)
        run(policy, 1)
        score = RectifiedPenalty(policy.model, 2.0, policy.multiplier)
        value = score(self.points.unsqueeze(-2).unsqueeze(-2))
        assert value.shape == (60, 2)

    @pytest.mark.parametrize("thresholds", [[0.0, 0.0], [-0.25, -0.1], [-3.0, -3.0]])
    def test_config_rule(self, thresholds):
        policy = self.policy(cb.CKB, clip=None, cap=20.0, thresholds=0.0)
        run(policy, 8)
        score = OptimisticFeasible(policy.model, 2.0, thresholds=thresholds)
        seen = policy.posterior()
        f = seen.reward.mean + 2.0 * seen.reward.std
        g = seen.costs.mean - 2.0 * seen.costs.std - torch.tensor(thresholds)[:, None]
        allowed = (g <= 0).all(-2)
        expected = (
            f.masked_fill(~allowed, -torch.inf).argmax()
            if allowed.any()
            else g.amax(-2).argmin()
        )
        values = score(self.points.unsqueeze(-2))
        x, _ = optimize_acqf_discrete(score, 1, self.points)
        assert torch.equal(x[0], self.points[expected])
        if allowed.any() and not allowed.all():
            assert values[allowed].min() > values[~allowed].max()
            torch.testing.assert_close(
                values[allowed], f[allowed], rtol=1e-7, atol=1e-8
            )
