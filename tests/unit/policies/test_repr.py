"""Policies and exploration say in a line what they are."""

from __future__ import annotations

from midway import belief, line, policy_of

import cbandit as cb


def test_a_policy_says_what_it_is():
    policy = policy_of(trials=3)
    policy.ask()
    said = "CKB(Finite(points, size=20, dim=1), engine=joint, costs=2, trials=3, t=1)"
    assert repr(policy) == said
    policy = policy_of(range(2, 4), engine="factor", explore=cb.UCB(1.0))
    assert "engine=factor, costs=2, trials=range(2, 4), t=0)" in repr(policy)
    wide = cb.GPUCB(
        cb.Box([0.0] * 20, [1.0] * 20), reward=belief(), explore=cb.UCB(1.0)
    )
    assert repr(wide) == "GPUCB(Box(dim=20), engine=dense, costs=0, t=0)"
    arms = cb.OPB(
        cb.Finite(line()),
        reward=cb.Counts(1.0),
        costs=cb.Counts(1.0),
        safe=cb.Safe(index=0, reward=0.0, cost=-1.0),
        horizon=9,
    )
    assert repr(arms) == "CountOPB(Finite(points, size=20, dim=1), costs=1, t=0)"


def test_what_explores_says_how_wide():
    def beta(t, gain):
        return 1.0

    for explore, said in [
        (cb.UCB(2.0), "UCB(2.0)"),
        (cb.UCB(2.0, [1.0, 3.0]), "UCB(2.0, cost_beta=[1.0, 3.0])"),
        (cb.TS(), "TS(1.0)"),
        (cb.Rand(0.5, draw="uniform"), "Rand(0.5, draw='uniform')"),
        (cb.UCB(cb.Constant(2.0)), "UCB(Constant(2.0))"),
    ]:
        assert repr(explore) == said
    assert repr(cb.UCB(beta)).endswith("<locals>.beta)")


def test_bkb_says_what_it_is():
    gp, points = belief(), cb.Finite(line())
    policy = cb.baselines.BKB(points, reward=gp, explore=cb.UCB(1.0))
    policy.tell(policy.ask(), reward=1.0)
    said = "BKB(Finite(points, size=20, dim=1), engine=sketch, costs=0, t=1)"
    assert repr(policy) == said
