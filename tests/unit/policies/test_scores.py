"""Scores by hand, with one cost and with two."""

from __future__ import annotations

import pytest
import torch
from inside import score_ref

import cbandit as cb
from cbandit import scores
from cbandit_kernels import Look

F64 = torch.float64
INF = torch.inf

F = torch.tensor([[1.0, 2.0, -0.5, 4.0]], dtype=F64)
G = torch.tensor([[[0.5, -1.0, 0.0, 2.0], [-0.25, -3.0, 0.0, 1.0]]], dtype=F64)
PHI = torch.tensor([[2.0, 4.0]], dtype=F64)
# f - 2 g_1 - 4 g_2, by hand; the same with costs below 0 left out; and so on
WANTED = {
    "primal-dual": [1.0, 16.0, -0.5, -4.0],
    "rectified": [0.0, 2.0, -0.5, -4.0],
    "feasible": [-INF, 2.0, -0.5, -INF],  # a cost of exactly 0 keeps its limit
    "least": [-0.5, 1.0, 0.0, -2.0],
}
ONE = {
    "primal-dual": [0.0, 4.0, -0.5, 0.0],
    "rectified": [0.0, 2.0, -0.5, 0.0],
    "feasible": [-INF, 2.0, -0.5, -INF],
    "least": [-0.5, 1.0, 0.0, -2.0],
}
FORMS = {
    "primal-dual": lambda phi: scores.PrimalDual(phi),
    "rectified": lambda phi: scores.Rectified(phi),
    "feasible": lambda phi: scores.Feasible(),
    "least": lambda phi: scores.LeastViolating(),
}


@pytest.mark.parametrize("m", [1, 2])
@pytest.mark.parametrize("name", FORMS)
def test_a_score_by_hand(name, m):
    g, phi = G[:, :m], PHI[:, :m]
    wanted = torch.tensor([(ONE if m == 1 else WANTED)[name]], dtype=F64)
    form = FORMS[name](phi)
    assert torch.equal(form(F, g), wanted)
    # as every pass over actions asks for it
    one = torch.ones(1, 1 + m, dtype=F64)
    look = Look(one, None, None, form.kind, form.weight, None)
    assert torch.equal(score_ref(F, g, look), wanted)


def test_scores_of_no_cost_and_of_draws_by_hand():
    assert torch.equal(scores.Reward()(F, G), F)
    assert scores.least_total(F, G).tolist() == [[-0.5, 0.0, 0.0, -3.0]]
    assert scores.clip(F, 1.5).tolist() == [[1.0, 1.5, -0.5, 1.5]]
    assert scores.clip(F, 0.25).tolist() == [[0.25, 0.25, -0.25, 0.25]]
    assert cb.scores.clip(F, torch.tensor([[0.1, 3.0, 0.2, 5.0]])).tolist() == [
        [pytest.approx(0.1), 2.0, pytest.approx(-0.2), 4.0]
    ]
