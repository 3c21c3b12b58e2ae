"""The distance to an expert's behaviour, and SCGP-UCB that keeps it."""

from __future__ import annotations

import gpytorch
import numpy as np
import pytest
import torch

import cbandit as cb

F64 = torch.float64


def kernel(length=0.2):
    out = gpytorch.kernels.RBFKernel().double()
    out.lengthscale = torch.tensor(length, dtype=F64)
    return out


def line(n=41):
    return torch.linspace(0, 1, n, dtype=F64).unsqueeze(-1)


def test_the_distance_by_two_loops():
    rng = np.random.default_rng(0)
    x, y = rng.random((7, 2)), rng.random((5, 2))
    k = lambda a, b: np.exp(-0.5 * ((a - b) ** 2).sum() / 0.3**2)  # noqa: E731
    apart = [k(y[i], y[j]) for i in range(5) for j in range(5) if i != j]
    expected = [1 - 2 * np.mean([k(a, b) for b in y]) + np.mean(apart) for a in x]
    found = cb.problems.expert_distance(x, y, kernel(0.3))
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_the_distance_is_unbiased():
    # the expert plays 0.2 or 0.6: E k(x, Y) and E k(Y, Y') are sums of two and four
    generator, places = torch.Generator().manual_seed(0), torch.tensor([0.2, 0.6])
    k, x = kernel(), line(5)
    both = places.double().unsqueeze(-1)
    near = k(x, both).to_dense().mean(-1)
    expected = (1 - 2 * near + k(both).to_dense().mean()).detach()
    total = torch.zeros(5, dtype=F64)
    for _ in range(2000):
        moves = places[torch.randint(2, (3,), generator=generator)].double()
        total += cb.problems.expert_distance(cb.Finite(x), moves.unsqueeze(-1), k)
    torch.testing.assert_close(total / 2000, expected, atol=0.03, rtol=0)


def test_moves_that_do_not_fit_are_refused():
    for moves in ([[0.1]], [[0.1, 0.2], [0.3, 0.4]], [0.1, 0.2]):
        with pytest.raises(cb.CBanditError, match=r"moves must be \(n, 1\)"):
            cb.problems.expert_distance(line(), moves, kernel())


def test_scgp_ucb_stays_near_the_expert_on_average():
    # the best reward is at 1, the expert plays around 0.3: 0.5 of distance is allowed
    x, k, generator = line(), kernel(), torch.Generator().manual_seed(1)
    actions = cb.Finite(x)
    reward, moves = (
        x.squeeze(-1),
        0.3 + 0.05 * torch.randn(5000, 1, generator=generator, dtype=F64),
    )
    truth = cb.problems.expert_distance(actions, moves, k)
    assert float(truth[-1]) > 1.5  # of the best reward
    given = {"reward": cb.GP(kernel(0.5), noise=0.01), "explore": cb.UCB(1.0)}
    policy = cb.SCGPUCB(actions, costs=1, thresholds=0.5, slater=0.4, clip=1.0, **given)
    spent, earned = 0.0, 0.0
    for t in range(400):
        fresh = moves[torch.randint(5000, (4,), generator=generator)]
        seen = cb.problems.expert_distance(actions, fresh, k)
        choice = policy.ask(observed_costs=seen.unsqueeze(0))
        policy.tell(choice, reward=float(reward[choice.index]))
        if t >= 100:
            spent += float(truth[choice.index]) / 300
            earned += float(reward[choice.index]) / 300
    assert spent <= 0.5
    assert earned > 0.35  # more than the expert's: the allowance is used
