"""A save changes nothing that follows, to the bit; a look nothing but last digits."""

from __future__ import annotations

import contextlib
import copy
import itertools

import pandas
import pytest
import torch
from every_policy import EVERY_POLICY, POLICIES, public

import cbandit as cb

F64 = torch.float64
PAIRS = 4  # of rounds; beliefs are fitted several times in them

SAVERS = ("history", "outstanding", "repr", "copy", "save", "load")
LOOKS = {
    "multiplier": lambda policy, choice, path: policy.multiplier,
    "price": lambda policy, choice, path: policy.price,
    "late": lambda policy, choice, path: policy.late,
    "budget": lambda policy, choice, path: policy.budget,
    "engine": lambda policy, choice, path: policy.engine,
    "safe": lambda policy, choice, path: policy.safe,
    "centre": lambda policy, choice, path: policy.centre,
    "stopped": lambda policy, choice, path: policy.stopped,
    "model": lambda policy, choice, path: policy.model,
    "outstanding": lambda policy, choice, path: policy.outstanding,
    "history": lambda policy, choice, path: policy.history(),
    "explain": lambda policy, choice, path: str(policy.explain(choice)),
    "recommend": lambda policy, choice, path: policy.recommend(),
    "posterior": lambda policy, choice, path: policy.posterior(),
    "posterior at points": lambda policy, choice, path: policy.posterior(choice.x),
    "copy": lambda policy, choice, path: copy.copy(policy).ask(),
    "save": lambda policy, choice, path: policy.save(path),
    "save light": lambda policy, choice, path: policy.save(path, False, False),
    "load": lambda policy, choice, path: cb.load(path).ask(),
    "repr": lambda policy, choice, path: repr(policy),
}
REFUSED = (cb.CBanditError, AttributeError, TypeError)  # not every policy has all


def outcome(choice, trials):
    x = choice.x.reshape(trials or 1, -1)[:, 0].double()
    shift = torch.arange(len(x)) * 0.1
    reward, cost = (4 * x + shift).sin(), (3 * x - shift).cos() - 0.4
    return (reward, cost) if trials else (reward[0], cost[0])


def play(policy, look=lambda choice: None):
    """Two rounds at once, told late and in parts; all actions, and the end."""
    actions, m, trials = [], policy.m, policy.batch_shape and policy.batch_shape[0]
    asked = (
        {"observed_costs": policy.actions.block(0, 5).mT} if policy.sees_costs else {}
    )
    for number in range(PAIRS):
        one = policy.ask(**asked)
        look(one)
        two = policy.ask(**asked)
        look(two)
        actions += [one.x, two.x]
        (reward, cost), (later, other) = (outcome(each, trials) for each in (one, two))
        policy.tell(two, reward=later)
        look(two)
        if trials and number % 2:  # in some trials only
            some = torch.arange(trials) == 0
            policy.tell(one, reward=reward, where=some)
            look(one)
            policy.tell(one, reward=reward, where=~some)
        else:
            policy.tell(one, reward=reward)
        look(one)
        if m and not policy.sees_costs:
            policy.tell(two, cost=other)
            look(two)
            if number == PAIRS - 2:
                policy.cancel(one)
            else:
                policy.tell(one, cost=cost)
            look(one)
    frame = policy.history().drop(columns=["id", "asked", "told"])
    moments = [policy.multiplier]
    with contextlib.suppress(*REFUSED):
        after = policy.posterior(actions[0].reshape(1, -1))
        moments += [after.reward.mean, after.reward.std]
    return frame, torch.cat([part.double().flatten() for part in [*actions, *moments]])


def made(name, trials=None, **more):
    actions, own, _ = POLICIES[name]
    settings = own | {"trials": trials, "seed": 3}
    if "horizon" in settings:
        settings["horizon"] = 3 * PAIRS
    return public(name)(actions, **(settings | more))


def unchanged(make, looks, path, exact=False):
    """Compare a run with and without looks, one after the other."""
    turns = itertools.cycle(looks)

    def look(choice):
        with contextlib.suppress(*REFUSED):
            LOOKS[next(turns)](policy, choice, path)

    policy = make()
    (frame, numbers), (same_frame, same) = play(policy, look), play(make())
    if exact:
        pandas.testing.assert_frame_equal(frame, same_frame, check_exact=True)
        assert torch.equal(numbers, same)
        return
    # what was told is absorbed earlier, in another order where it came late: that
    # changes last digits, and a fit makes more of them
    pandas.testing.assert_frame_equal(frame, same_frame, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(numbers, same, rtol=1e-3, atol=1e-3)


@EVERY_POLICY
def test_saves_change_no_policy(name, tmp_path):
    unchanged(lambda: made(name), SAVERS, tmp_path / "saved", exact=True)


BOX, GRID = (
    cb.Box([0.0, 0.0], [1.0, 1.0]),
    cb.ProductGrid([torch.linspace(0, 1, 9)] * 2),
)
MANY = cb.Finite(torch.linspace(0, 1, 900, dtype=F64).unsqueeze(-1))
# by name: the set, the policy, and its arguments
WAYS = {
    "joint, trials": (cb.Finite(MANY.block(0, 30)), cb.CKB, {"trials": 2}),
    "factor": (MANY, cb.CKB, {"engine": "factor"}),
    "factor, draws": (MANY, cb.CKB, {"engine": "factor", "explore": cb.TS(1.0)}),
    "stream": (MANY, cb.RPOL, {"engine": "stream"}),
    "product": (GRID, cb.RPOL, {"engine": "product"}),
    "weights": (MANY, cb.CKB, {"linear": True}),
    "box": (BOX, cb.CKB, {}),
    "apart": (MANY, cb.CKB, {"thresholds": {"cost": 0.1}, "trials": 2}),
    "sliding": (MANY, cb.CKB, {"feedback": cb.Sliding(5), "fixed": True}),
    "delayed": (MANY, cb.CKB, {"feedback": cb.Delayed(5), "fixed": True}),
    "adaptive": (MANY, cb.RPOL, {"restart": "adaptive", "forget": True}),
    "doubling": (MANY, cb.RPOL, {"restart": "doubling", "forget": True}),
    "share": (MANY, cb.CKB, {"share": 0.9}),
    "design": (MANY, cb.CKB, {"design": 6}),
    "float32": (cb.Finite(MANY.block(0, 900).float()), cb.CKB, {"engine": "factor"}),
}


# draws are others, of the same law, where what was told is absorbed in another order
LOOKED = [(name, tuple(LOOKS)) for name in WAYS if name != "factor, draws"]


@pytest.mark.parametrize(("name", "looks"), LOOKED + [(name, SAVERS) for name in WAYS])
def test_nothing_changes_a_way_to_learn(name, looks, tmp_path):
    actions, policy, settings = WAYS[name]

    def make():
        more = dict(settings)
        gp = cb.GP.default(actions)
        if more.pop("fixed", False):
            gp.refit_every = None
        if more.pop("linear", False):
            gp = cb.GP.linear(actions)
        costs = gp
        if isinstance(more.get("thresholds"), dict):
            costs = {"cost": gp}
        return policy(actions, reward=gp, costs=costs, seed=5, **more)

    unchanged(make, looks, tmp_path / "saved", exact=looks == SAVERS)
