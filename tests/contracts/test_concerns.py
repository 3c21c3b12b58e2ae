"""Each concern of a round can be taken out, and the policies play on without it."""

from __future__ import annotations

import pytest
import torch

import cbandit as cb
from cbandit.policies.concerns import order
from cbandit.policies.concerns.input_limits import InputLimits
from cbandit.policies.concerns.kept_limits import KeptLimits
from cbandit.policies.concerns.order import ORDER
from cbandit.policies.concerns.retirements import Retirements
from cbandit.policies.round import Concern, Concerns

POINTS = cb.Finite(torch.linspace(0, 1, 9).double().unsqueeze(-1))
BOX = cb.Box([0.0], [1.0])
NAMED = cb.Space(x=cb.Float(0, 1, step=0.1), kind=cb.Category("a", "b"))
LIMITED = cb.Space(x=cb.Float(0, 1, step=0.1), where="x <= 0.8")
ROUNDS = 8

# each concern with keywords of CKB or RPOL that bring it in
BRINGING = {
    "KeptLimits": {},
    "InputLimits": {},
    "Receipt": {},
    "Retirements": {},
    "FailureList": {"failures": False},
    "FailureBelief": {},
    "Budgets": {"thresholds": cb.Budget(9.0, rounds=20)},
    "Share": {"share": 0.8},
    "Confidence": {},
    "Outliers": {},
    "Restarts": {"restart": 3, "forget": True},
    "Contradictions": {},
    "Pending": {"pending": "hallucinate"},
    "Margin": {"explore": cb.UCB(1.0, margin=1.0)},
    "Design": {"design": 3},
}


def policy(actions, **keywords):
    gp = cb.GP.default(actions)
    return cb.RPOL(actions, reward=gp, costs=gp, **({"thresholds": 0.4} | keywords))


def play(policy):
    """Rounds with an outstanding choice, a failure and an outlier."""
    waiting = policy.ask()
    for t in range(ROUNDS):
        choice = policy.ask()
        if t == 2:
            policy.tell(choice, failed=True)
            continue
        x = float(choice.x[0])
        policy.tell(choice, reward=x + 40 * (t == 5), cost=x**2)
    policy.tell(waiting, reward=0.0, cost=0.0)
    return policy.ask()


@pytest.mark.parametrize("kind", ORDER, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("form", ["set", "box"])
def test_policies_play_without_a_concern(kind, form, monkeypatch, tmp_path):
    actions = POINTS if form == "set" else BOX
    if kind is Retirements:  # needs categories; boxes of them are in test_newcomers.py
        actions = NAMED
    if kind is InputLimits:
        actions = LIMITED if form == "set" else cb.Box([0.0], [1.0], linear="x0 <= 0.8")
    keywords = BRINGING[kind.__name__]
    assert policy(actions, **keywords)._concerns.find(kind) is not None
    monkeypatch.setattr(order, "ORDER", [each for each in ORDER if each is not kind])
    without = policy(actions, **keywords)
    assert without._concerns.find(kind) is None
    play(without)
    assert without.t == ROUNDS + 2
    without.save(tmp_path / "without.ckpt")
    again = cb.load(tmp_path / "without.ckpt")
    assert torch.equal(again.ask().x, without.ask().x)
    without.recommend()
    if kind is not KeptLimits:
        without.status()


def test_concerns_stand_in_one_order():
    assert set(BRINGING) == {kind.__name__ for kind in ORDER}


class Twice(Concern[tuple[int, ...]]):
    """Count how often each hook was called."""

    def start(self):
        return (0,)

    def hear(self, state, news, beliefs):
        return (state[0] + 1,), news


def test_hooks_are_called_in_order_and_only_where_they_are_defined():
    class Second(Twice):
        def hear(self, state, news, beliefs):
            return state, [*news, "second"]

        def limit(self, state, limits, t):
            return limits + t

    setup = policy(POINTS)._setup()
    concerns = Concerns(Twice(setup), Second(setup))
    states = concerns.start()
    states, news = concerns.hear(states, ["told"], None)
    assert states == ((1,), (0,)) and news == ["told", "second"]
    assert torch.equal(concerns.limit(states, torch.zeros(1), 3), torch.full((1,), 3.0))
    assert concerns.defines("limit") and not concerns.defines("alarm")
    assert concerns.settle(states, None, 1, dict) is states
    assert concerns.find(Second)[0] == 1 and concerns.find(cb.CKB) is None


class NeverTwice(Concern):
    """Play no action twice in a row: the whole of a new concern."""

    @classmethod
    def of(cls, setup):
        return cls(setup)

    def start(self):
        return ()

    def open_turn(self, state, turn):
        if not state or turn.purpose == "recommend":
            return state, turn
        return state, turn.without(state, "was just played")

    def check_pick(self, state, turn, pick):
        x = turn.actions.at(pick.index) if pick.x is None else pick.x
        return tuple(x.unsqueeze(1)), pick


@pytest.mark.parametrize("trials", [None, 2])
@pytest.mark.parametrize("actions", [POINTS, BOX], ids=["set", "box"])
def test_a_new_concern_is_a_class_and_a_line(actions, trials, monkeypatch, tmp_path):
    monkeypatch.setattr(order, "ORDER", (*ORDER, NeverTwice))
    bound = cb.UCB(0.0)  # it would play one action for ever
    own = policy(actions, explore=bound, trials=trials, failures=False)
    last = None
    for t in range(12):
        if t == 6:
            own.save(tmp_path / "own.ckpt")
            own = cb.load(tmp_path / "own.ckpt", trust=(NeverTwice,))
        choice = own.ask()
        x = choice.x[..., 0]
        if last is not None:
            assert ((x - last).abs() > 1e-4).all()
        if t == 3:  # balls of two concerns
            own.tell(choice, failed=True)
        else:
            own.tell(choice, reward=-((x - 0.5) ** 2), cost=x - 1)
        last = x


def test_where_a_concern_leaves_nothing_the_error_says_why(monkeypatch):
    monkeypatch.setattr(order, "ORDER", (*ORDER, NeverTwice))
    own = policy(cb.Finite(torch.zeros(1, 1).double()))
    own.tell(own.ask(), reward=1.0, cost=0.0)
    with pytest.raises(cb.CBanditError, match="of this round was just played: nothing"):
        own.ask()
    assert own.t == 1
