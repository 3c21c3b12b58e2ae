"""Late feedback: it arrives in its round, in its trials, and only there."""

from __future__ import annotations

import pytest
import torch
from inside import delays_of, simulate
from worlds import Plain, Uniform, same, stop_after

import cbandit as cb


class TestDelays:
    def test_reward_and_cost_arrive_apart(self):
        problem = Plain(delays=lambda t, g: {"reward": 1, "cost": 3})
        policy = Uniform(problem)
        simulate(policy, problem, 6)
        assert [entry[:4] for entry in policy.log] == [
            (2, 1, True, False),
            (3, 2, True, False),
            (4, 1, False, True),
            (4, 3, True, False),
            (5, 2, False, True),
            (5, 4, True, False),
            (6, 3, False, True),
            (6, 5, True, False),
        ]

    def test_what_is_due_together_is_told_together(self):
        problem = Plain(delays=lambda t, g: (2, 2))
        policy = Uniform(problem)
        simulate(policy, problem, 4)
        assert [entry[:4] for entry in policy.log] == [
            (3, 1, True, True),
            (4, 2, True, True),
        ]

    def test_no_delay_is_one_whole_tell(self):
        problem = Plain(trials=3, delays=lambda t, g: (torch.zeros(3), 0))
        policy = Uniform(problem, trials=3)
        simulate(policy, problem, 3)
        assert [entry[:5] for entry in policy.log] == [
            (t, t, True, True, None) for t in (1, 2, 3)
        ]

    def test_every_trial_has_its_own(self):
        never = float("inf")
        plan = {1: ([0, 1, 2], [0, 2, never])}
        problem = Plain(3, delays=lambda t, g: plan.get(t, (never, never)))
        policy = Uniform(problem, trials=3)
        simulate(policy, problem, 5)
        told = [(e[0], e[2], e[3], e[4].tolist()) for e in policy.log]
        assert told == [
            (1, True, True, [True, False, False]),
            (2, True, False, [False, True, False]),
            (3, True, False, [False, False, True]),
            (3, False, True, [False, True, False]),
        ]

    @pytest.mark.parametrize(
        "delays", [(-1, 0), (0.5, 0), 3, {"rewards": 1}, (torch.zeros(2), 0)]
    )
    def test_bad_ones_are_named(self, delays):
        problem = Plain(3, delays=lambda t, g: delays)
        with pytest.raises(cb.CBanditError, match="delays"):
            simulate(Uniform(problem, trials=3), problem, 2)

    def test_a_costless_policy_gets_rewards_only(self):
        problem = Plain(delays=lambda t, g: (1, 0))
        policy = Uniform(problem, m=0)
        simulate(policy, problem, 3)
        assert [entry[:4] for entry in policy.log] == [
            (2, 1, True, False),
            (3, 2, True, False),
        ]

    def test_resume_keeps_what_is_on_its_way(self, tmp_path):
        def wait(t, generator):
            return tuple((generator.uniform(2) * 9).long().mT)

        def play(cut):
            problem = Plain(4, delays=wait)
            policy = Uniform(problem, trials=4)
            path = tmp_path / f"{cut}.ckpt"
            for stop in (cut, None):
                policy = Uniform(problem, trials=4)
                run = simulate(policy, problem, 60, path, callback=stop_after(stop))
            return run, policy

        (a, p), (b, q) = play(17), play(60)
        assert same(a, b)
        assert [e[:4] for e in p.log] == [e[:4] for e in q.log]
        assert torch.equal(p.multiplier, q.multiplier)


def test_one_delay_for_each_of_two_trials_is_no_pair():
    two = torch.tensor([2.0, 5.0])
    with pytest.raises(
        cb.CBanditError, match=r"delays must be a pair \(reward, cost\)"
    ):
        delays_of(two, (2,))
    for pair in ((two, two), {"reward": two, "cost": two}, torch.stack([two, two])):
        reward, cost = delays_of(pair, (2,))
        assert reward.tolist() == cost.tolist() == [2.0, 5.0]
    assert [v.tolist() for v in delays_of((2, 5), (2,))] == [[2.0, 2.0], [5.0, 5.0]]
    assert [v.item() for v in delays_of(two, ())] == [2.0, 5.0]
