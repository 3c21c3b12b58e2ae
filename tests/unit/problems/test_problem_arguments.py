"""Problems that cannot be, or do not go with the policy."""

from __future__ import annotations

import pytest
import torch
from botorch.test_functions.synthetic import ConstrainedGramacy
from gpytorch import kernels as gpk
from midway import F64, INF, NAN

import cbandit as cb


def test_a_policy_and_a_problem_over_other_boxes():
    box = cb.Box([0.0], [1.0])
    gp = cb.GP(gpk.RBFKernel(), noise=0.1)
    policy = cb.CKB(box, reward=gp, costs=gp, explore=cb.UCB(1.0), step=1.0, cap=2.0)
    problem = cb.problems.from_botorch(ConstrainedGramacy())
    with pytest.raises(cb.CBanditError, match="over the same actions"):
        cb.simulate(policy, problem, 3)
    with pytest.raises(cb.CBanditError, match="an instance of"):
        cb.problems.from_botorch(ConstrainedGramacy)


def test_points_without_a_feasible_one():
    function = ConstrainedGramacy()
    corner = [[0.0, 0.0], [0.05, 0.1]]
    slack = function.evaluate_slack_true(torch.tensor(corner, dtype=F64))
    least = -float(slack.amin(-1).max())
    known = rf"keeps all limits.*NaN; .* {least:.3g}"
    with pytest.warns(UserWarning, match=known):
        problem = cb.problems.from_botorch(function, points=corner)
    assert problem.optimum(1).isnan()
    # one is enough, and no warning
    cb.problems.from_botorch(function, points=[*corner, [0.6, 0.6]])


def test_problems_of_what_cannot_be():
    made, function = cb.problems, ConstrainedGramacy()
    for make, words in [
        (lambda: made.Table([0.0], [[0.0]], actions=[1.0]), "actions must be .*list"),
        (lambda: made.Table([0.0], [[0.0]], actions=[]), "actions must be .*list"),
        (lambda: made.from_botorch(function, INF), "points must be .*whole"),
        (
            lambda: made.from_botorch(function, 1e308),
            "points must be .*at most 10000000",
        ),
        (lambda: made.from_botorch(function, optimum="x"), "optimum must be a number"),
        (lambda: made.from_botorch(function, optimum=NAN), "optimum must be finite"),
        (lambda: made.bench_stagewise(points=1.5), "points must be an int"),
        (lambda: made.bench_stagewise(costs="x"), "costs must be an int"),
    ]:
        with pytest.raises(cb.CBanditError, match=words):
            make()
