"""A rule, and what feedback changes, are functions of what they are given."""

from __future__ import annotations

import functools

import pytest
import torch
from every_policy import EVERY_POLICY, POLICIES, public

import cbandit as cb

PURE = (
    "decide",
    "absorb",
    "move",
    "score",
    "acquire",
    "_open_round",
    "_after_absorbing",
    "_fit_if_due",
)


def poisoned(policy):
    """Take the policy's current value away while its rule runs."""
    for name in PURE:
        method = getattr(policy, name, None)
        if method is None:
            continue

        def run(*given, method=method, **named):
            kept = vars(policy).pop("_now", None)  # an inner call finds it gone
            try:
                return method(*given, **named)
            finally:
                if kept is not None:
                    vars(policy)["_now"] = kept

        vars(policy)[name] = functools.wraps(method)(run)
    return policy


def play(policy, rounds=4):
    """Rounds told late and apart."""
    trials = policy.batch_shape and policy.batch_shape[0]
    asked = (
        {"observed_costs": policy.actions.block(0, 5).mT} if policy.sees_costs else {}
    )
    actions = []
    for _ in range(rounds):
        one, two = policy.ask(**asked), policy.ask(**asked)
        for choice in (two, one):
            x = choice.x.reshape(trials or 1, -1)[:, 0].double()
            x = x if trials else x[0]
            policy.tell(choice, reward=0.5 * x.sin())
            if policy.m and not policy.sees_costs:
                policy.tell(choice, cost=0.5 * x.cos() - 0.4)
            actions.append(choice.x)
    return torch.stack([each.double().flatten() for each in actions])


@EVERY_POLICY
def test_rules_read_nothing_but_what_they_are_given(name):
    actions, own, _ = POLICIES[name]
    settings = own | ({"horizon": 40} if "horizon" in own else {})
    plain, bare = (public(name)(actions, **settings) for _ in range(2))
    assert torch.equal(play(plain), play(poisoned(bare)))


KEYWORDS = {
    "share": {"share": 0.8},
    "delayed": {"feedback": cb.Delayed(3)},
    "sliding": {"feedback": cb.Sliding(5)},
    "design": {"design": 3},
    "margin": {"explore": cb.UCB(1.0, margin=1.0)},
    "doubling": {"restart": "doubling"},
    "adaptive": {"restart": "adaptive", "forget": True},
    "budget": {"thresholds": {"c": cb.Budget(50.0, rounds=20)}},
    "pending": {"pending": "hallucinate"},
}


@pytest.mark.parametrize("name", KEYWORDS)
def test_concerns_leave_the_rule_pure(name):
    gp = cb.GP.default(GRID)
    settings = {"reward": gp, "costs": {"c": gp}, "thresholds": {"c": 0.2}}
    settings |= KEYWORDS[name]

    def told(policy):
        actions = []
        for _ in range(8):
            choice = policy.ask()
            actions.append(int(choice.index))
            policy.tell(choice, reward=float(choice.x), cost={"c": float(choice.x)})
        return actions

    plain, bare = (cb.RPOL(GRID, **settings) for _ in range(2))
    assert told(plain) == told(poisoned(bare))


GRID = cb.Finite(torch.linspace(0, 1, 15, dtype=torch.float64).unsqueeze(-1))
