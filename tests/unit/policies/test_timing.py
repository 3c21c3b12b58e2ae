"""When feedback counts: what came for some trials is packed into few observations."""

from __future__ import annotations

import pytest
import torch

import cbandit as cb
from cbandit.policies.timing import Held, timing_of
from cbandit.posterior.log import Observation

CPU = torch.device("cpu")


class Recorder:
    """Beliefs that only note what they absorb."""

    def __init__(self, dated=False, absorbed=()):
        self.dated, self.absorbed = dated, absorbed

    def absorb(self, observations):
        (told,) = observations
        x, values = told.x[:, 0].tolist(), told.values[:, 0].tolist()
        row = told.keys, x, values, told.wanted, told.t
        return Recorder(self.dated, (*self.absorbed, row))


def held(rounds, trials=2):
    """Rounds ``t`` at ``x = t``, each told to one trial, that outcome ``10 t``."""
    partial = []
    for t, trial in rounds:
        x = torch.full((trials, 1), float(t)).double()
        wanted = [i == trial for i in range(trials)]
        partial.append(Observation([0], [t] * trials, x, 10 * x, wanted, t=t))
    return Held(torch.zeros(trials).long(), tuple(partial))


def due(rounds, dated=False):
    timing = timing_of(None, 1, (2,), CPU, None)
    beliefs, after = timing.due(Recorder(dated), held(rounds), 9)
    assert after.partial == ()
    return beliefs.absorbed


def test_one_observation_holds_different_rounds_of_different_trials():
    assert due([(1, 0), (2, 1)]) == (
        ([1, 2], [1.0, 2.0], [10.0, 20.0], [True, True], 2),
    )


def test_a_trial_has_one_round_in_an_observation():
    rows = due([(1, 0), (2, 0), (3, 1)])
    assert [row[3] for row in rows] == [[True, True], [True, False]]
    assert [row[0] for row in rows] == [[1, 3], [2, 2]]


def test_dated_outcomes_are_not_mixed():
    assert len(due([(1, 0), (2, 1), (2, 0)])) == 2
    assert [row[4] for row in due([(1, 0), (2, 1), (2, 0)], dated=True)] == [1, 2]


@pytest.mark.parametrize(
    ("feedback", "memory", "pending"),
    [(None, None, False), (cb.Sliding(4), 4, False), (cb.Delayed(4), None, True)],
)
def test_a_timing_says_what_beliefs_remember(feedback, memory, pending):
    timing = timing_of(feedback, 2, (), CPU, 10)
    assert (timing.memory, timing.adds_pending) == (memory, pending)
    assert bool(timing.no_noise) is bool(timing.no_outcome) is pending
    assert timing.allowance(1) is None


def test_a_drift_that_never_changes_is_shaped_once():
    fixed = timing_of(cb.Sliding(4, (0.1, 0.2)), 3, (2,), CPU, 10)
    assert fixed.allowance(1) is fixed.allowance(2)
    assert fixed.allowance(1).tolist() == [[0.1, 0.2, 0.2]] * 2
    moving = timing_of(cb.Sliding(4, lambda t: 0.1 * t), 2, (), CPU, 10)
    assert moving.allowance(1).tolist() == [[0.1, 0.1]]
    assert moving.allowance(2).tolist() == [[0.2, 0.2]]
    with pytest.raises(cb.CBanditError, match="drift"):
        timing_of(cb.Sliding(4, (0.1, 0.2, 0.3)), 2, (), CPU, 10)
