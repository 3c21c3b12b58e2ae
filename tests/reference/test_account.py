"""The account against hand values and against a plain loop in numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from inside import Curve, exponent

from cbandit import account


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


class TestHandValues:
    def test_regret(self):
        out = account.regret(tensor([2.0]), tensor([1.0, 2.0, 3.0]))
        assert out.tolist() == [1.0, 1.0, 0.0]

    def test_stochastic_regret_uses_the_programmes_value(self):
        out = account.stochastic_regret(tensor([2.5]), tensor([1.0, 2.0]))
        assert out.tolist() == [1.5, 2.0]

    def test_dynamic_regret(self):
        out = account.dynamic_regret(tensor([1.0, 5.0]), tensor([1.0, 2.0]))
        assert out.tolist() == [0.0, 3.0]

    def test_policy_regret(self):
        out = account.policy_regret(tensor([1.0, 1.0]), tensor([0.5, 1.5]))
        assert out.tolist() == [0.5, 0.0]

    def test_best_feasible_is_the_best_of_the_feasible_rounds_so_far(self):
        reward = tensor([9.0, 1.0, 8.0, 3.0, 2.0])
        costs = tensor([[1.0, 0.0], [0.0, -1.0], [0.0, 0.1], [-1.0, 0.0], [0.0, 0.0]])
        out = account.best_feasible(reward, costs)
        assert math.isnan(out[0])
        assert out[1:].tolist() == [1.0, 1.0, 3.0, 3.0]

    def test_soft_violation_lets_rounds_compensate(self):
        out = account.soft_violation(tensor([[1.0], [-3.0], [4.0]]))
        assert out.tolist() == [1.0, 0.0, 2.0]

    def test_soft_violation_is_a_norm_over_costs(self):
        out = account.soft_violation(tensor([[3.0, 4.0], [0.0, -9.0]]))
        assert out.tolist() == [5.0, 3.0]

    def test_hard_violation_does_not(self):
        out = account.hard_violation(tensor([[1.0, -1.0], [-3.0, 2.0], [4.0, 1.0]]))
        assert out.tolist() == [1.0, 3.0, 8.0]

    def test_rounds_in_violation_counts_a_round_once(self):
        costs = tensor([[1.0, 1.0], [0.0, 0.0], [-1.0, 1e-9]])
        assert account.rounds_in_violation(costs).tolist() == [1, 1, 2]

    def test_realised(self):
        assert account.realised_regret(tensor([1.0]), tensor([0.5, 2.0])).tolist() == [
            0.5,
            -0.5,
        ]
        assert account.realised_violation(tensor([[1.0], [-2.0]])).tolist() == [1, 0]

    def test_stage_cost(self):
        out = account.stage_cost(tensor([0.25, 0.75]), tensor([[4.0, 0.0], [0.0, 4.0]]))
        assert out.tolist() == [1.0, 3.0]
        assert account.expected(tensor([0.5, 0.5]), tensor([1.0, 3.0])).item() == 2.0

    def test_stage_kept(self):
        costs = tensor([[0.0, 0.0], [-1.0, 0.1], [1e-13, -1.0]])
        assert account.stage_kept(costs).tolist() == [True, False, True]

    def test_time_average(self):
        assert account.time_average(tensor([2.0, 2.0, 6.0])).tolist() == [2.0, 1.0, 2.0]

    def test_an_infeasible_trial_is_nan_and_the_others_are_not(self):
        optimum = tensor([[1.0], [float("nan")]])
        out = account.regret(optimum, torch.zeros(2, 3, dtype=torch.float64))
        assert out[0].tolist() == [1.0, 2.0, 3.0]
        assert bool(out[1].isnan().all())


@settings(deadline=None, max_examples=50)
@given(
    trials=st.sampled_from([(), (1,), (3,), (2, 2)]),
    rounds=st.integers(1, 12),
    m=st.integers(1, 4),
    seed=st.integers(0, 2**31),
)
def test_against_a_plain_loop(trials, rounds, m, seed):
    generator = np.random.default_rng(seed)
    f = generator.normal(size=(*trials, rounds))
    best = generator.normal(size=(*trials, rounds))
    g = generator.normal(size=(*trials, rounds, m))
    regret, soft, hard, count = (np.zeros((*trials, rounds)) for _ in range(4))
    for place in np.ndindex(*trials):
        total, sums, over, bad = 0.0, np.zeros(m), 0.0, 0
        for t in range(rounds):
            total += best[place][t] - f[place][t]
            sums += g[place][t]
            over += sum(max(0.0, c) for c in g[place][t])
            bad += any(c > 0 for c in g[place][t])
            regret[place][t], hard[place][t], count[place][t] = total, over, bad
            soft[place][t] = np.sqrt(sum(max(0.0, s) ** 2 for s in sums))
    f, best, g = (torch.as_tensor(each) for each in (f, best, g))
    for ours, plain in (
        (account.regret(best, f), regret),
        (account.soft_violation(g), soft),
        (account.hard_violation(g), hard),
        (account.rounds_in_violation(g).double(), count),
        (
            account.time_average(account.regret(best, f)),
            regret / np.arange(1, rounds + 1),
        ),
    ):
        assert ours.shape == (*trials, rounds)
        torch.testing.assert_close(ours, torch.as_tensor(plain), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("trials", [(), (5,)])
def test_costs_never_change_their_argument(trials):
    g = torch.randn(*trials, 7, 2, generator=torch.Generator().manual_seed(0))
    before = g.clone()
    account.soft_violation(g), account.hard_violation(g), account.rounds_in_violation(g)
    assert torch.equal(g, before)


def test_fitted_exponents():
    t = torch.arange(1, 1001)
    zero = torch.zeros(1000)

    def curve(mean):
        return Curve(t, mean, zero, zero)

    assert exponent(curve(3 * t.double() ** 0.6), 100) == pytest.approx(0.6, abs=1e-12)
    assert exponent(curve(zero), 100) == 0
    assert math.isnan(exponent(curve(500.0 - t), 100))
