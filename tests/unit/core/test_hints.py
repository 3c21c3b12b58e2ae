"""What a newcomer mistypes is named, with what was likely meant."""

from __future__ import annotations

import pytest
import torch

import cbandit as cb

SPACE = cb.Space(memory=cb.Float(0.5, 8.0, step=0.5), threads=cb.Int(1, 32, log=True))
GP = cb.GP.default(SPACE)
ONE = {"memory": 2.0, "threads": 4}


def policy(kind=cb.RPOL, **own):
    goal = {"reward": GP, "costs": {"latency": GP, "price": GP}}
    goal["thresholds"] = {"latency": "<= 20", "price": "<= 0.5"}
    return kind(SPACE, **(goal | own))


def tell(**told):
    made = policy()
    made.tell(made.ask(), **told)


WORDS = [
    (lambda: tell(reward=1.0, costs=[1.0, 2.0]), "tell takes", "'costs'", "'cost'?"),
    (lambda: tell(rewards=1.0), "tell takes", "'rewards'", "'reward'?"),
    (lambda: tell(value=1.0), "tell takes", "'value'", "'reward'?"),
    (lambda: tell(latency=1.0), "tell takes", "'latency'", "reward, cost, noise"),
    (lambda: policy().tell(reward=1.0), "tell needs 'choice'"),
    (lambda: policy(limits=1.0), "RPOL takes", "'limits'", "'thresholds'?"),
    (lambda: policy(cb.CKB, threshold=1.0), "CKB takes", "'thresholds'?"),
    (lambda: policy(constraints=1.0), "'constraints'", "'thresholds'?"),
    (lambda: policy(objective=GP), "'objective'", "'reward'?"),
    (lambda: cb.RPOL(SPACE, reward=GP, cost=GP), "RPOL takes", "'cost'", "'costs'?"),
    (lambda: cb.RPOL(SPACE, rewards=GP, costs=GP), "'rewards'", "'reward'?"),
    (lambda: cb.RPOL(SPACE, costs=GP), "RPOL needs 'reward'"),
    (lambda: cb.CKB(SPACE, GP, GP), "CKB takes 1", "(actions)", "got 3", "reward="),
    (lambda: cb.LCLUCB(SPACE, limits=1.0, reward=GP, costs=GP), "'thresholds'?"),
    (
        lambda: policy().observe(params=[ONE], reward=[1.0], costs=[[1.0, 1.0]]),
        "observe takes",
        "'cost'?",
    ),
    (lambda: policy().observe([ONE], [1.0]), "observe takes 1 without a name"),
    (lambda: policy().ask(allowed=[1]), "ask takes", "'allowed'", "'among'?"),
    (lambda: policy().recommend(probability=0.9), "'confidence'?"),
    (lambda: policy().posterior(at=[[1.0, 2.0]]), "'x'?"),
    (lambda: cb.GP(noises=0.1), "GP takes", "'noise'?"),
    (lambda: cb.GP(standardise=True), "'standardize'?"),
    (lambda: cb.GP(lengthscale=0.1), "GP takes", "'lengthscale'", "kernel, noise"),
    (lambda: cb.GP.default(), "GP.default needs 'actions'"),
    (lambda: cb.GP.default(space=SPACE), "GP.default takes", "'actions'?"),
    (lambda: cb.Float(low=0.5, high=8.0), "Float takes", "'low'", "'lo'?"),
    (lambda: cb.Float(8.0), "Float needs 'hi'"),
    (lambda: cb.Int(1, 32, logarithmic=True), "Int takes", "'log'?"),
    (lambda: cb.Category(options=["a"]), "Category takes", "'options'"),
    (lambda: cb.Box(low=[0.0], high=[1.0]), "Box takes", "'lower'?"),
    (lambda: cb.UCB(width=2.0), "UCB takes", "'beta'?"),
    (lambda: cb.Safe(index=0, costs=1.0), "Safe takes", "'cost'?"),
    (lambda: cb.Delayed(delay=3), "Delayed takes", "'window'?"),
    (lambda: cb.simulate(policy(), None, rounds=5), "simulate takes", "'horizon'?"),
    (lambda: cb.simulate(policy(), horizon=5), "simulate needs 'problem'"),
    (
        lambda: cb.problems.Table.from_frame(None, maximize="speed"),
        "Table.from_frame takes",
        "'maximise'?",
    ),
    (
        lambda: cb.problems.Table.from_frame(None, thresholds={}),
        "Table.from_frame takes",
        "'limits'?",
    ),
]


@pytest.mark.parametrize(("call", "words"), [(call, words) for call, *words in WORDS])
def test_arguments_that_a_call_does_not_take(call, words):
    with pytest.raises(TypeError) as error:
        call()
    said = str(error.value)
    assert all(word in said for word in words), said
    assert "\n" not in said
    assert "__init__" not in said


def test_an_error_inside_of_a_call_stays_what_it_is():
    class Own(cb.GPPolicy):
        def __init__(self, actions, *, step, **common):
            super().__init__(actions, **common)
            self.step = step + "a"

    with pytest.raises(TypeError, match="unsupported operand"):
        Own(SPACE, reward=GP, costs=None, step=1)
    with pytest.raises(TypeError, match=r"Own takes no argument 'stepp'.*'step'"):
        Own(SPACE, reward=GP, costs=None, stepp=1)

    class Broken(cb.GPUCB):
        def score(self, t, multiplier):
            return len(3)

    with pytest.raises(TypeError, match="has no len"):
        Broken(SPACE, reward=GP).ask()


def test_a_space_says_how_names_are_given():
    with pytest.raises(cb.CBanditError) as error:
        cb.Space({"block size": cb.Int(1, 4)})
    said = str(error.value)
    assert "Space(memory=cb.Float(0, 1))" in said
    assert "Space(**{'block size': cb.Int(1, 4)})" in said
    assert cb.Space(**{"block size": cb.Int(1, 4)}).size == 4


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        ((0.5, 8.0), "cb.Float(0.5, 8.0)"),
        ([1, 2.5], "cb.Float(1, 2.5)"),
        ((1, 8), "cb.Int(1, 8)"),
        (["lz4", "zstd"], "cb.Category('lz4', 'zstd')"),
        (cb.Float, "the class Float, not a Float(...)"),
    ],
)
def test_a_parameter_that_is_none_says_what_to_write(given, advice):
    with pytest.raises(cb.CBanditError, match="Space: size must be") as error:
        cb.Space(size=given)
    assert advice in str(error.value)


def test_feedback_of_nothing_is_asked_about():
    for told in ({}, {"reward": None}, {"reward": None, "cost": None}):
        with pytest.raises(cb.CBanditError, match="got neither") as error:
            tell(**told)
        said = str(error.value)
        assert "cancel(choice)" in said
        assert "failed=True" in said
        assert "?" in said


def test_outstanding_choices_name_what_they_wait_for():
    made = policy()
    one, two = made.ask(), made.ask()
    made.tell(one, reward=1.0, cost={"latency": 3.0})
    assert made.outstanding == [one, two]
    first, second = str(made.outstanding).split(", Choice")
    assert first.endswith("waits for price")
    assert second.endswith("waits for reward, latency, price]")
    assert str(made.outstanding[:1]).count("Choice") == 1
    plain = cb.GPUCB(SPACE, reward=GP)
    plain.ask()
    assert str(plain.outstanding).endswith("waits for reward]")
    trials = cb.RPOL(SPACE, reward=GP, costs=GP, thresholds=1.0, trials=2)
    choice = trials.ask()
    trials.tell(choice, reward=torch.ones(2))
    where = torch.tensor([True, False])
    trials.tell(choice, cost=torch.ones(2), where=where)
    assert str(trials.outstanding).endswith("waits for cost1]")


def observed(**told):
    policy().observe(**({"params": [ONE]} | told))


def rpol(**own):
    return cb.RPOL(SPACE, **({"reward": GP, "costs": GP} | own))


MISTAKES = [
    # reward and cost change places
    (lambda: tell(reward={"latency": 1.0}), "reward", "cost={'latency'"),
    (lambda: tell(reward=1.0, cost=3.0), "cost", "by name, cost={"),
    (lambda: tell(reward=1.0, cost={"latencyy": 3.0}), "did you mean 'latency'?"),
    (lambda: tell(reward="3.1"), "reward", "number", "got str '3.1'"),
    (lambda: tell(reward=1.0, cost={"latency": None}), "cost['latency']", "leave it"),
    # what is told is no choice
    (lambda: policy().tell(3, reward=1.0), "choice", "int", "observe("),
    (lambda: policy().tell(ONE, reward=1.0), "choice", "dict", "observe("),
    (lambda: policy().explain(3), "choice must come from ask()", "int"),
    # wrong names and values of parameters
    (lambda: observed(params=[{"mem": 2.0, "threads": 4}]), "'mem'", "'memory'?"),
    (lambda: policy().ask(among={"thread": [1]}), "'thread'", "'threads'?"),
    (lambda: policy().ask(among="threads"), "among", "str", "{'threads': [...]}"),
    (lambda: observed(params=[{"memory": 2.2, "threads": 4}]), "memory", "2.2"),
    (
        lambda: policy(thresholds={"latencyy": 1.0, "price": 1.0}),
        "thresholds",
        "'latencyy'",
        "did you mean 'latency'?",
    ),
    # shares in percent
    (lambda: policy().recommend(confidence=95), "confidence", "0.95"),
    # beliefs
    (lambda: rpol(costs="latency"), "costs", "str", "{'latency': gp}"),
    (
        lambda: cb.GPUCB(cb.Space(a=cb.Float(0, 9)), reward=GP),
        "reward: cb.GP.default was given actions",
    ),
    (lambda: cb.RPOL([[0.0], [1.0]], reward=GP, costs=GP), "cb.Finite(...)", "list"),
    (lambda: cb.GP.default({"a": 1}), "cb.Space(...)", "dict"),
]


@pytest.mark.parametrize(
    ("call", "words"), [(call, words) for call, *words in MISTAKES]
)
def test_mistakes_of_a_first_hour(call, words):
    with pytest.raises(cb.CBanditError) as error:
        call()
    said = str(error.value)
    assert all(word in said for word in words), said


@pytest.mark.parametrize(
    ("name", "meant"), [("rpol", "RPOL"), ("Spaces", "Space"), ("GPUBC", "GPUCB")]
)
def test_misspelt_names_of_the_library(name, meant):
    with pytest.raises(AttributeError, match=f"did you mean cbandit.{meant}"):
        getattr(cb, name)
    assert not hasattr(cb, "__wrapped__")
