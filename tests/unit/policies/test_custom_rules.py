"""A rule of the user's own that comes to what cannot be is named."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from inside import settled, streams_of
from midway import NAN, line

import cbandit as cb


class Own(cb.Policy):
    """A rule that comes to what it is given, drawing before that."""

    name = "Own"

    def __init__(self, actions, given, **common):
        super().__init__(actions, 1, **common)
        self.begin(())  # what was drawn, a round each
        self.given = given

    def decide(self, state, asked):
        return self.given, (*state, asked.streams.uniform(1))

    def absorb(self, state, news):
        return state


def drawn(index, probability):
    return cb.Decision([1, 2], distribution=cb.Distribution(index, probability))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (None, r"must return a cb.Decision; got None"),
        (torch.tensor([1, 2]), r"must return a cb.Decision; got tensor"),
        (cb.Decision(None), r"must say index, one number a trial; got None"),
        (cb.Decision(1), r"index must lead with the trials, of shape \(2,\); got \(\)"),
        (cb.Decision([[1], [2]]), r"index must .*\(2,\); got \(2, 1\)"),
        (cb.Decision([1, 20]), r"index must lie in 0 .. 19; got 1 .. 20"),
        (cb.Decision([-1, 2]), r"index must lie in 0 .. 19; got -1 .. 2"),
        (cb.Decision([1.0, 2.0]), r"index must hold whole numbers"),
        (cb.Decision("ab"), r"index must be a number, array or tensor.*got str"),
        (cb.Decision([1, 2], infeasible=True), r"infeasible must .*\(2,\); got \(\)"),
        (cb.Decision([1, 2], x=[[0.5]]), r"x must .*\(2, 1\); got \(1, 1\)"),
        (cb.Decision([1, 2], x=[[0.5], [NAN]]), r"x must be finite; got nan"),
        (
            cb.Decision([1, 2], distribution=3),
            r"distribution must be a cb.Distribution",
        ),
        (drawn([[0, 1]], [[0.5, 0.5]]), r"distribution.index must .*\(2, 2\)"),
        (drawn([[0], [20]], [[1.0], [1.0]]), r"distribution.index must lie in 0 .. 19"),
        (drawn([[0], [2]], [1.0, 1.0]), r"distribution.probability must .*\(2, 1\)"),
        (cb.Decision([1, 2], score=torch.ones(2, 3)), r"score must .*\(2,\); got"),
        (cb.Decision([1, 2], score=1.0), r"score must .*\(2,\); got \(\)"),
        (cb.Decision([1, 2], estimate=[1.0, 2.0]), r"estimate must .*\(2, 2\); got"),
    ],
)
@pytest.mark.parametrize("kind", ["Finite", "ProductGrid"])
def test_a_rule_of_ones_own_that_comes_to_what_cannot_be(kind, given, words):
    actions = cb.Finite(line()) if kind == "Finite" else cb.ProductGrid([line()[:, 0]])
    policy = Own(actions, given, trials=2)
    with pytest.raises(cb.CBanditError, match=rf"^Own\.decide:? {words}"):
        policy.ask()
    assert policy.t == 0
    assert settled(policy) == ()
    policy.given = drawn([[0, 1], [2, 3]], np.full((2, 2), 0.5))
    choice = policy.ask()
    (drew,) = settled(policy)
    assert torch.equal(drew, streams_of(Own(actions, None, trials=2)).uniform(1))
    assert choice.index.tolist() == [1, 2]
    assert torch.equal(choice.x, line()[[1, 2]])
    policy.given = cb.Decision(np.array([3, 4]))
    with pytest.raises(cb.CBanditError, match=r"index must be of what among allows"):
        policy.ask(among=[3, 5])
    assert policy.ask(among=[3, 4]).index.tolist() == [3, 4]


def test_a_rule_of_ones_own_on_a_box():
    policy = Own(cb.Box([0.0], [1.0]), cb.Decision([1]))
    for given, words in [
        (cb.Decision([1]), r"must say x, one point a trial"),
        (cb.Decision(None, x=[[1.5]]), r"x must lie between lower"),
    ]:
        policy.given = given
        with pytest.raises(cb.CBanditError, match=rf"^Own\.decide:? {words}"):
            policy.ask()
    policy.given = cb.Decision(None, x=[[0.5]])
    assert policy.ask().x.tolist() == [0.5]


def test_a_rule_returns_a_pair():
    class Alone(Own):
        def decide(self, state, asked):
            return cb.Decision([0, 1])

    policy = Alone(cb.Finite(line()), None, trials=2)
    with pytest.raises(
        cb.CBanditError, match=r"Alone.decide must return a cb.Decision"
    ):
        policy.ask()
