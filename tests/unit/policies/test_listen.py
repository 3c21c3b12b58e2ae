"""Listeners: they hear everything, in order, outside the lock, and disturb nothing."""

from __future__ import annotations

import copy
import threading

import pytest
import torch

import cbandit as cb
from cbandit.errors import CBanditError

ACTIONS = cb.Finite(torch.linspace(0, 1, 7, dtype=torch.float64).unsqueeze(-1))


def a_policy():
    gp = cb.GP.default(ACTIONS)
    goal = {"costs": {"ms": gp}, "thresholds": {"ms": "<= 0.5"}}
    return cb.RPOL(ACTIONS, reward=gp, **goal, ranges={"ms": (0, 1)})


def play(policy, rounds, ms=0.2):
    for i in range(rounds):
        policy.tell(policy.ask(), reward=float(i % 3), cost={"ms": ms})


def test_what_is_heard():
    policy, heard = a_policy(), []
    policy.listen(heard.append)
    first, second = policy.ask(), policy.ask()
    policy.tell(first, reward=1.0, cost={"ms": 0.4})
    policy.tell(first, reward=1.0, cost={"ms": 0.4})  # sent again: nothing happened
    policy.cancel(second.id)
    names = [(event.event, event.round) for event in heard]
    assert names == [("ask", 1), ("ask", 2), ("tell", 2), ("cancel", 2)]
    assert heard[0].values["choice"] is first
    assert heard[2].values["id"] == first.id
    assert heard[2].values["cost"] == {"ms": 0.4}
    with pytest.raises(cb.ChoiceError):
        policy.tell(second, reward=0.0)
    assert len(heard) == 4  # a refused call is no event


def test_fits_alarms_and_warnings_are_heard():
    policy, heard = a_policy(), []
    policy.watch()
    play(policy, 30)
    policy.listen(lambda event: heard.append(event))
    with pytest.warns(UserWarning, match="breaks its limit"):
        play(policy, 60, ms=0.95)
    kinds = [event.event for event in heard]
    assert {"fit", "alarm", "warning"} <= set(kinds)
    (alarm,) = (event.values["alarm"] for event in heard if event.event == "alarm")
    assert policy.alarms == [alarm]


def test_it_is_removed_and_never_saved_or_copied(tmp_path):
    policy, heard = a_policy(), []
    remove = policy.listen(heard.append)
    policy.save(tmp_path / "p")
    for other in (cb.load(tmp_path / "p"), copy.deepcopy(policy)):
        other.ask()
    assert heard == []
    remove()
    remove()
    policy.ask()
    assert heard == []


def test_an_exception_in_it_is_one_warning_and_disturbs_nothing():
    policy, plain, heard = a_policy(), a_policy(), []

    def broken(event):
        raise OSError("no route to the dashboard")

    policy.listen(broken)
    policy.listen(heard.append)
    with pytest.warns(UserWarning, match="no route to the dashboard") as caught:
        play(policy, 5)
    assert len(caught) == 1
    play(plain, 5)
    assert len(heard) >= 10
    assert torch.equal(policy.ask().x, plain.ask().x)


def test_it_may_use_the_policy_and_others_may_meanwhile():
    policy, rounds = a_policy(), []

    def look(event):
        if event.event == "ask":
            thread = threading.Thread(target=lambda: rounds.append(policy.t))
            thread.start()
            thread.join(timeout=20)  # would wait for ever within the lock
            policy.status()

    policy.listen(look)
    play(policy, 3)
    assert rounds == [1, 2, 3]


def test_it_is_heard_in_simulations():
    problem = cb.problems.Table([0.1, 0.5], [[0.2, 0.8]], noise=0.01, thresholds=0.5)
    policy = cb.baselines.Random(problem.actions, costs=1, thresholds=0.5)
    heard = []
    policy.listen(lambda event: heard.append(event.event))
    cb.simulate(policy, problem, 4, progress=False)
    assert heard.count("ask") == heard.count("tell") == 4


def test_only_functions_listen():
    with pytest.raises(CBanditError, match="function"):
        a_policy().listen(3)
