"""Recommendations of policies with a safe action."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import torch
from inside import hold_no_arms
from stagewise import linear_policy, programme, rbf, unit

import cbandit as cb

MEANS = torch.tensor([[0.1, 0.5, 0.9, 0.7], [0.3, 0.3, 0.8, 0.5], [0.2, 0.4, 0.1, 0.4]])


MEANS = MEANS.double()


def arms_with_data(trials=None, spread=0.3, **safe):
    """OPB that has seen four arms, the k-th ``10 (k + 1)`` times, without noise."""
    counts = cb.Counts(spread)
    policy = cb.OPB(
        cb.Finite(torch.arange(4.0).double().unsqueeze(-1)),
        reward=counts,
        costs=[counts] * 2,
        safe=cb.Safe(index=0, **safe),
        thresholds=[0.4, 0.3],
        horizon=100,
        trials=trials,
    )
    index = torch.arange(4).repeat_interleave(torch.tensor([10, 20, 30, 40]))
    reward, cost = MEANS[0, index], MEANS[1:, index].mT
    policy.observe(index=index, reward=reward, cost=cost)
    return policy


@pytest.mark.parametrize("trials", [None, 3])
def test_a_distribution_is_recommended(trials):
    policy = arms_with_data(trials, reward=0.2, cost=[0.1, 0.0])
    found = policy.recommend(0.9)
    # both costs at 1.6322 = the normal quantile of sqrt(0.9), the safe arm is known
    mean, std = MEANS.clone().numpy(), 0.3 / np.sqrt([10, 20, 30, 40])
    mean[:, 0], std[0] = [0.2, 0.1, 0.0], 0.0
    z = scipy.stats.norm.ppf(0.9**0.5)
    best = programme(mean[0], mean[1:] + z * std, [0.4, 0.3])
    pi = found.distribution
    rows = zip(pi.index.reshape(-1, 3), pi.probability.reshape(-1, 3), strict=True)
    for i, (index, p) in enumerate(rows):
        index, p = index.numpy(), p.numpy()
        value, margin, chance = (
            v.reshape(trials or 1, *v.shape[len(policy.batch_shape) :])[i]
            for v in (found.value, found.margin, found.probability)
        )
        assert value == pytest.approx(best, abs=1e-9)
        assert p.sum() == pytest.approx(1)
        room = np.array([0.4, 0.3]) - mean[1:, index] @ p
        np.testing.assert_allclose(margin, room, atol=1e-12)
        # arms are independent: the true chance is larger than the one stated
        true = scipy.stats.norm.cdf(room / np.sqrt(p**2 @ std[index] ** 2)).prod()
        assert 0.9 <= chance <= true
    assert found.feasible.all()
    assert found.x.shape == (*policy.batch_shape, 3, 1)
    assert "of the time" in str(found)
    assert len(str(found).splitlines()) == (trials or 1)


def test_it_says_when_no_distribution_is_believed_feasible():
    policy = arms_with_data(spread=3.0)  # its safe arm is not known to be so
    found = policy.recommend(0.95)
    assert not found.feasible
    assert found.probability < 0.95
    assert "no distribution is believed feasible with probability 0.95" in str(found)
    # the likeliest action, by hand
    room = torch.tensor([[0.4], [0.3]]).double() - MEANS[1:]
    spread = 3.0 / torch.tensor([10.0, 20.0, 30.0, 40.0]).double().sqrt()
    chance = torch.special.ndtr(room / spread).prod(0)
    assert found.distribution.index[0] == chance.argmax()
    assert found.distribution.probability.tolist() == [1.0, 0.0, 0.0]
    torch.testing.assert_close(found.probability, chance.max())
    # one that is known to be safe always remains
    assert arms_with_data(spread=9.0, reward=0.1, cost=0.0).recommend(0.999).feasible


@pytest.mark.parametrize("held", [True, False])
def test_the_gp_form_recommends_a_distribution(held, monkeypatch):
    if not held:
        hold_no_arms(monkeypatch)
    axis = torch.linspace(0, 1, 6).double()
    policy = cb.OPB(
        cb.ProductGrid([axis, axis]),
        reward=cb.GP(rbf(), noise=0.01),
        costs=cb.GP(rbf(0.4), noise=0.01),
        safe=cb.Safe(index=0, reward=0.0, cost=0.0),
        thresholds=0.3,
    )
    x = torch.cartesian_prod(axis, axis)
    seen = torch.arange(0, 36, 3)
    policy.observe(index=seen, reward=x[seen].sum(-1), cost=x[seen, 0])
    found = policy.recommend(0.9)
    k = rbf(0.4)(x).to_dense().detach()
    gain = k[:, seen] @ torch.linalg.inv(k[seen][:, seen] + 0.01 * torch.eye(12))
    cost, cov = gain @ x[seen, 0], k - gain @ k[seen]
    k = rbf()(x).to_dense().detach()
    gain = k[:, seen] @ torch.linalg.inv(k[seen][:, seen] + 0.01 * torch.eye(12))
    reward, std = gain @ x[seen].sum(-1), cov.diagonal().sqrt()
    # there is no doubt about the safe action
    cost[0] = reward[0] = std[0] = cov[0] = cov[:, 0] = 0.0
    z = scipy.stats.norm.ppf(0.9)
    best = programme(reward.numpy(), (cost + z * std).numpy()[None], [0.3])
    assert found.value == pytest.approx(best, abs=1e-6)
    index, p = found.distribution.index, found.distribution.probability
    torch.testing.assert_close(found.margin, (0.3 - cost[index] @ p).reshape(1))
    spread = (p @ cov[index][:, index] @ p).sqrt()
    assert found.feasible
    assert 0.9 <= found.probability <= torch.special.ndtr(found.margin / spread)


def test_linear_policies_recommend():
    pytest.importorskip("clarabel")
    w = torch.tensor([[1.0, 0.3, 0.2], [0.5, 0.5, -0.2], [0.1, 0.2, 0.7]]).double()
    x = unit(60, 3, seed=9)
    z = scipy.stats.norm.ppf(0.9**0.5)
    inverse = torch.linalg.inv(torch.eye(3).double() + x.mT @ x)
    fit = w @ x.mT @ x @ inverse
    # a distribution over vectors
    policy = linear_policy(cb.OPLB, None)
    policy.observe(x=x, reward=x @ w[0], cost=x @ w[1:].mT)
    found = policy.recommend(0.9)
    points = policy.actions.all
    mean = (points @ fit.mT).mT.numpy()
    std = 0.1 * ((points @ inverse) * points).sum(-1).sqrt().numpy()
    best = programme(mean[0], mean[1:] + z * std, [0.3, 0.3])
    assert found.value == pytest.approx(best, abs=1e-9)
    assert found.feasible
    # an action: the best on a fine grid over every segment
    policy = linear_policy(cb.LCLUCB, None)
    policy.observe(x=x, reward=x @ w[0], cost=x @ w[1:].mT)
    found = policy.recommend(0.9)
    a = torch.linspace(0, 1, 4001).double().view(-1, 1, 1)
    points = (a * policy.actions.tips).flatten(0, 1)
    mean = points @ fit.mT
    std = 0.1 * ((points @ inverse) * points).sum(-1).sqrt()
    safe = (mean[:, 1:] + z * std.unsqueeze(-1) <= 0.3).all(-1)
    best = mean[:, 0].masked_fill(~safe, -9.0).max().item()
    assert best <= found.value + 1e-9
    assert found.value < best + 1e-3
    assert found.distribution is None
    assert found.feasible
    torch.testing.assert_close(found.margin, 0.3 - found.x @ fit[1:].mT)
    tip = policy.actions.tips[found.index]
    assert torch.linalg.matrix_rank(torch.stack([tip, found.x])) == 1


def test_opnlb_recommends_what_all_its_functions_keep():
    values = torch.tensor([[0.1, 0.2, 0.9], [0.1, 0.6, 0.3], [0.1, 0.2, 0.5]]).double()
    policy = cb.OPNLB(
        cb.Finite(torch.arange(3.0).double().unsqueeze(-1)),
        reward=cb.FiniteClass([[0.0, 0.5, 1.0], [0.0, 1.0, 0.1]], radius=0.5),
        costs=cb.FiniteClass(values, radius=0.5),
        safe=cb.Safe(index=0, reward=0.0, cost=0.1),
        thresholds=0.3,
    )
    # arm 1 often enough that its cost is known, arm 2 not: 0.9 and 0.5 remain
    policy.observe(index=[1] * 9, reward=[0.5] * 9, cost=[0.2] * 9)
    found = policy.recommend(0.8)
    best = programme(np.array([0, 0.5, 1.0]), values[[0, 2]].numpy(), [0.3, 0.3])
    assert found.value == pytest.approx(best, abs=1e-9)
    assert found.probability == 0.8
    assert found.feasible
