"""Choices that expire: ``expire=n``, compared with policies that never let go."""

from __future__ import annotations

import copy

import pytest
import torch

import cbandit as cb

LINE = torch.linspace(0, 1, 9).double().unsqueeze(-1)


def policy_of(kind=cb.CKB, trials=None, **more):
    actions = cb.Finite(LINE)
    gp = cb.GP.default(actions)
    limits = {"thresholds": {"ms": "<= 0.6"}, **more}
    return kind(actions, reward=gp, costs={"ms": gp}, trials=trials, **limits)


def tell(policy, choice, **parts):
    shape = policy.batch_shape
    x = choice.x.reshape(shape)
    policy.tell(choice, reward=x, cost={"ms": x.square()}, **parts)


def numbers(bound):
    names = ("told", "out", "mean", "lower", "upper", "over", "over_lower")
    return [torch.as_tensor(getattr(bound, name)) for name in names]


def assert_same(one, other):
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


class TestClosedForThePolicy:
    @pytest.mark.parametrize("kind", [cb.CKB, cb.RPOL, cb.GPUCB])
    def test_it_chooses_as_if_they_were_cancelled(self, kind):
        """Outstanding choices count in its rule (``hallucinate``) until they expire."""
        actions = cb.Finite(LINE)
        gp = cb.GP.default(actions)
        goal = {"reward": gp} if kind is cb.GPUCB else {"reward": gp, "costs": gp}
        one, other = kind(actions, **goal, expire=2), kind(actions, **goal)
        given = []
        for t in range(1, 25):
            # the choice of round s expires when round s + 3 is asked for
            if t > 3 and given[t - 4] is not None:
                other.cancel(given[t - 4])
            mine, theirs = one.ask(), other.ask()
            assert mine.index == theirs.index
            answered = t % 3 != 0
            given.append(None if answered else theirs)
            if answered:
                told = {"reward": float(mine.x)}
                if kind is not cb.GPUCB:
                    told["cost"] = float(mine.x) - 0.5
                one.tell(mine, **told)
                other.tell(theirs, **told)
        assert {c.t for c in one.outstanding} == {24}

    def test_counts_and_states(self):
        policy = policy_of(expire=2, pending="ignore")
        choices = [policy.ask() for _ in range(5)]
        assert [c.t for c in policy.outstanding] == [3, 4, 5]
        status = policy.status()
        assert (status.open, status.expired) == (3, 2)
        assert str(status).startswith("CKB-UCB: round 5, 3 open, 2 expired, ")
        assert policy.history()["state"].tolist() == ["expired"] * 2 + ["open"] * 3
        tell(policy, choices[0])
        states = ["told", "expired", *["open"] * 3]
        assert policy.history()["state"].tolist() == states
        policy.tell(choices[1], reward=1.0)  # its cost never comes
        assert policy.history()["state"].tolist() == states
        policy.cancel(choices[1])
        assert policy.history()["state"][1] == "cancelled"

    def test_nobody_is_reminded_of_them(self, recwarn):
        policy = cb.baselines.Random(cb.Finite(LINE), costs=1, expire=10)
        for _ in range(200):
            policy.ask()
        assert not [w for w in recwarn if "wait for their feedback" in str(w.message)]
        policy = cb.baselines.Random(cb.Finite(LINE), costs=1)
        for _ in range(99):
            policy.ask()
        with pytest.warns(UserWarning, match="expire=n lets go of those older"):
            policy.ask()

    def test_every_kind_of_policy_takes_it(self):
        actions = cb.Finite(LINE)
        safe = cb.Safe(index=0, reward=0.0, cost=-1.0)
        kinds = {"reward": cb.Counts(1.0), "costs": cb.Counts(1.0)}
        opb = cb.OPB(actions, **kinds, safe=safe, horizon=9, expire=1)
        gp = cb.GP.default(actions)
        config = cb.baselines.CONFIG(actions, reward=gp, costs=gp, expire=1)
        epoch = cb.EpochPenalty(actions, reward=gp, costs=1, epoch=3, expire=1)
        for policy in (opb, config, epoch):
            first = policy.ask()
            policy.ask(n=3)
            assert [c.t for c in policy.outstanding] == [3, 4]
            policy.tell(first, reward=0.0, cost=-1.0)
            assert policy.history()["state"][0] == "told"

    @pytest.mark.parametrize("value", [0, -1, 1.5, "2", True])
    def test_what_is_no_number_of_rounds_is_an_error(self, value):
        with pytest.raises(cb.CBanditError, match="expire must be None or a positive"):
            policy_of(expire=value)


class TestPlayedAndNotAnswered:
    @pytest.mark.parametrize("trials", [None, 2])
    @pytest.mark.parametrize("dtype", ["float64", "float32"])
    def test_certificate_budget_and_beliefs_are_those_of_a_twin(self, trials, dtype):
        """The twin never lets go, and counts no outstanding choice in its rule."""
        more = {"pending": "ignore", "ranges": {"ms": (0, 1)}, "dtype": dtype}
        more["thresholds"] = {"ms": cb.Budget(20.0, rounds=60)}
        one = policy_of(cb.RPOL, trials, expire=3, **more)
        other = policy_of(cb.RPOL, trials, **more)
        late = {}
        for t in range(1, 31):
            pair = one.ask(), other.ask()
            torch.testing.assert_close(pair[0].x, pair[1].x, rtol=0, atol=0)
            if t % 4 == 0:
                late[t] = pair
            else:
                for policy, choice in zip((one, other), pair, strict=True):
                    tell(policy, choice)
            if t % 10 == 0:  # ten rounds late, an ordinary late tell
                s = min(late)
                for policy, choice in zip((one, other), late.pop(s), strict=True):
                    if trials:
                        only = torch.tensor([True, False])
                        tell(policy, choice, where=only)
                    else:
                        tell(policy, choice)
            mine, theirs = one.certificate()["ms"], other.certificate()["ms"]
            assert_same(numbers(mine), numbers(theirs))
            mine, theirs = one.budget["ms"], other.budget["ms"]
            torch.testing.assert_close(mine.left, theirs.left)
            both = (each.spent + each.promised for each in (mine, theirs))
            torch.testing.assert_close(*both)
            # what expired is spent, what is open is promised
            waits = [c.t for c in one.outstanding]
            assert bool((mine.promised > 0).all()) == bool(waits)
        assert one.status().expired > 0
        means = (p.posterior().reward.mean for p in (one, other))
        assert_same([next(means)], [next(means)])
        torch.testing.assert_close(one.multiplier, other.multiplier, rtol=0, atol=0)

    def test_what_it_did_cost_replaces_the_bound(self):
        thresholds = {"ms": cb.Budget(20.0, rounds=60)}
        policy = policy_of(thresholds=thresholds, expire=1, pending="ignore")
        for _ in range(5):
            tell(policy, policy.ask())
        spent = policy.budget["ms"].spent
        lost = policy.ask()
        promised = policy.budget["ms"].promised
        assert promised > 0
        for _ in range(3):
            choice = policy.ask()
            policy.tell(choice, reward=0.0, cost={"ms": 0.0})
        after = policy.budget["ms"]
        torch.testing.assert_close(after.spent, spent + promised)
        assert after.promised == 0
        again = copy.deepcopy(policy)
        policy.tell(lost, reward=0.1, cost={"ms": 0.25})
        torch.testing.assert_close(policy.budget["ms"].spent, spent + 0.25)
        again.cancel(lost.id)
        torch.testing.assert_close(again.budget["ms"].spent, spent + promised)
        with pytest.raises(cb.ChoiceError, match="was cancelled"):
            again.tell(lost.id, reward=0.1)

    def test_a_new_budget_does_not_pay_for_them(self):
        thresholds = {"ms": cb.Budget(20.0, rounds=60)}
        policy = policy_of(thresholds=thresholds, expire=1, pending="ignore")
        for _ in range(5):
            tell(policy, policy.ask())
        lost = policy.ask()
        for _ in range(3):
            tell(policy, policy.ask())
        policy.limit("ms", cb.Budget(5.0, rounds=20))
        assert policy.budget["ms"].spent == 0
        tell(policy, lost)
        assert policy.budget["ms"].spent == 0


class TestSaved:
    @pytest.mark.parametrize("trials", [None, 2])
    def test_it_goes_on_after_a_load(self, tmp_path, trials):
        thresholds = {"ms": cb.Budget(20.0, rounds=60)}
        policy = policy_of(trials=trials, thresholds=thresholds, expire=2)
        lost = policy.ask()
        for _ in range(8):
            tell(policy, policy.ask())
        policy.save(tmp_path / "a")
        loaded = cb.load(tmp_path / "a")
        assert loaded.expire == 2
        for each in (policy, loaded):
            assert each.outstanding == []
            assert each.status().expired == 1
            x = lost.x.reshape(each.batch_shape)
            each.tell(lost.id, reward=x, cost={"ms": x.square()})
        torch.testing.assert_close(policy.ask().x, loaded.ask().x, rtol=0, atol=0)
        mine, theirs = policy.budget["ms"].spent, loaded.budget["ms"].spent
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0)

    def test_it_cannot_be_assigned(self):
        policy = policy_of(expire=2)
        with pytest.raises(cb.CBanditError, match="cannot be assigned"):
            policy.expire = 5

    def test_a_history_with_them_is_observed(self):
        policy = policy_of(expire=1)
        for _ in range(4):
            policy.ask()
        tell(policy, policy.ask())
        other = policy_of()
        other.observe(policy.history())
        assert other.recommend().value == pytest.approx(float(policy.recommend().value))


def test_a_study_takes_none():
    optuna = pytest.importorskip("optuna", reason="optuna is not installed")

    def policy(space, **given):
        gp = cb.GP.default(space)
        return cb.GPUCB(space, reward=gp, **given, expire=3)

    study = optuna.create_study(sampler=cb.optuna.Sampler(policy))
    study.enqueue_trial({"x": 1})
    with pytest.raises(cb.CBanditError, match="must be built without expire="):
        study.optimize(lambda trial: trial.suggest_int("x", 1, 5), n_trials=4)
