"""``policy.model``, the beliefs as a BoTorch model."""

from __future__ import annotations

import copy
import pickle

import gpytorch
import numpy as np
import pytest
import torch
from botorch.acquisition.knowledge_gradient import qKnowledgeGradient
from botorch.acquisition.objective import (
    GenericMCObjective,
)
from botorch.fit import fit_gpytorch_mll
from botorch.sampling import SobolQMCNormalSampler
from gpytorch.mlls import SumMarginalLogLikelihood
from plugins import at

import cbandit as cb
from cbandit.acquisition import (
    PrimalDual,
)


def truth(x):
    parts = (6 * x[..., 0]).sin() + x[..., 1], x[..., 0] - 0.6, (5 * x[..., 1]).cos()
    return torch.stack(parts, -1)


def belief(**more):
    kernel = gpytorch.kernels.RBFKernel().double()
    kernel.lengthscale = torch.tensor(0.3, dtype=torch.float64)
    return cb.GP(kernel, **{"noise": 0.01, **more})


AXIS = torch.linspace(0, 1, 5, dtype=torch.float64)
ACTIONS = cb.Finite(torch.cartesian_prod(AXIS, AXIS))


def played(rounds=20, trials=None, **more):
    """Some rounds, with repeats, of a world with noise."""
    policy = cb.RPOL(
        ACTIONS,
        reward=belief(**more),
        costs=[belief(**more)] * 2,
        explore=cb.UCB(0.5),
        trials=trials,
    )
    play(policy, rounds)
    return policy


def play(policy, rounds):
    random, rewards = np.random.default_rng(0), []
    for t in range(rounds):
        choice = policy.ask()
        seen = truth(choice.x).numpy()
        seen = seen + 0.1 * random.standard_normal(seen.shape)
        where = None if seen.ndim == 1 else np.arange(len(seen)) <= t % len(seen)
        policy.tell(choice, reward=seen[..., 0], cost=seen[..., 1:], where=where)
        rewards.append(seen[..., 0])
    return np.array(rewards)


class TestPolicyModel:
    x = at(6, 1, seed=8)

    @pytest.mark.parametrize("standardize", [False, True])
    def test_noise_is_of_one_observation(self, standardize):
        policy = played(0, standardize=standardize)
        rewards = play(policy, 20)
        model = policy.model.models[0]
        assert len(model.train_targets) < 20, "some actions were repeated"
        scale = rewards.std(ddof=1) if standardize else 1.0
        quiet = model.posterior(self.x).variance
        noisy = model.posterior(self.x, observation_noise=True).variance
        lam = torch.full_like(quiet, 0.01 * scale**2)
        torch.testing.assert_close(noisy - quiet, lam, rtol=1e-9, atol=0)
        given = model.posterior(self.x, observation_noise=torch.full_like(quiet, 0.5))
        torch.testing.assert_close(
            given.variance - quiet, torch.full_like(quiet, 0.5), rtol=1e-9, atol=0
        )

    @pytest.mark.parametrize("noise", [0.01, 1e-9])
    def test_fantasies_narrow_as_an_observation_would(self, noise):
        policy = played(6, noise=noise)
        model, new = policy.model, at(1, seed=5)
        points = torch.cat([new, self.x[:, 0]])
        joint = model.models[0].posterior(points).distribution.covariance_matrix
        cross = joint[1:, 0]
        expected = joint.diagonal()[1:] - cross.square() / (joint[0, 0] + noise)
        model.posterior(new)  # as GPyTorch asks for
        y = torch.zeros(1, 3, dtype=torch.float64)
        sampler = SobolQMCNormalSampler(torch.Size([2]), seed=1)
        for told in (
            model.models[0].condition_on_observations(new, y[:, :1]),
            model.condition_on_observations([new] * 3, y).models[0],
            model.fantasize(new, sampler).models[0],
        ):
            variance = told.posterior(self.x[:, 0]).variance[..., 0]
            torch.testing.assert_close(
                variance, expected.expand_as(variance), rtol=1e-6, atol=1e-10
            )
        assert len(model.models[0].train_targets) < len(told.train_inputs[0][0])

    @pytest.mark.parametrize("trials", [None, 3])
    def test_pending_points_need_no_noise(self, trials):
        model = played(trials=trials).model
        x = self.x if trials is None else self.x.unsqueeze(-3)
        own, given = (
            PrimalDual(model, 1.0, [1.0, 2.0], noise=noise, X_pending=at(2, seed=3))
            for noise in (None, 0.01)
        )
        torch.testing.assert_close(own(x), given(x))

    def test_padding_is_finite_and_changes_nothing(self):
        policy = played(trials=3)
        model = policy.model
        variances = model.models[0].likelihood.noise
        assert variances.isfinite().all()
        assert len({(row < 1).sum().item() for row in variances}) > 1, "ragged"
        found = policy.posterior()
        seen = model.posterior(ACTIONS.points(torch.arange(25)))
        mean = torch.cat([found.reward.mean.unsqueeze(-2), found.costs.mean], -2)
        std = torch.cat([found.reward.std.unsqueeze(-2), found.costs.std], -2)
        torch.testing.assert_close(seen.mean.mT, mean, rtol=0, atol=1e-9)
        torch.testing.assert_close(seen.variance.mT, std**2, rtol=0, atol=1e-9)
        single = copy.deepcopy(model).float()
        seen = single.posterior(ACTIONS.points(torch.arange(25)).float())
        torch.testing.assert_close(seen.mean.mT.double(), mean, rtol=0, atol=1e-3)

    def test_of_use_to_botorch(self):
        policy = played()
        model = policy.model
        draws = model.posterior(self.x[:, 0]).rsample(torch.Size([5]))
        assert draws.shape == (5, 6, 3)
        objective = GenericMCObjective(lambda y, X=None: y[..., 0])
        gradient = qKnowledgeGradient(model, num_fantasies=2, objective=objective)
        assert gradient(at(1, 3)).isfinite().all()
        fitted = copy.deepcopy(model).requires_grad_(True)
        fit_gpytorch_mll(SumMarginalLogLikelihood(fitted.likelihood, fitted))
        before = model.models[0].covar_module.lengthscale
        assert fitted.models[0].covar_module.lengthscale != before

    def test_it_is_a_snapshot(self):
        policy = played(8)
        model, twin = policy.model, policy.model
        play(policy, 8)
        policy.refit()
        mean = model.posterior(self.x).mean
        assert torch.equal(mean, twin.posterior(self.x).mean)
        assert not torch.allclose(mean, policy.model.posterior(self.x).mean)
        again = pickle.loads(pickle.dumps(model))
        assert torch.equal(again.posterior(self.x).mean, mean)
