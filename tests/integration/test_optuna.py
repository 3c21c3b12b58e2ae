"""Optuna's studies with a policy as their sampler."""

import math
import pickle

import gpytorch
import pytest
import torch
from inside import failures_of

import cbandit as cb

optuna = pytest.importorskip("optuna")
optuna.logging.set_verbosity(optuna.logging.WARNING)

NOISE = 0.01


def gp(space):
    kernel = gpytorch.kernels.RBFKernel(active_dims=(0,)).double()
    kernel.lengthscale = 4.0
    return cb.GP(kernel, noise=NOISE)


def beliefs(space):
    return {"reward": gp(space), "costs": {"latency": gp(space)}}


def objective(trial):
    """Throughput and latency of a number of threads; 9 is the best within 1."""
    threads = trial.suggest_int("threads", 1, 16)
    trial.set_user_attr("latency", (threads / 9) ** 2)
    return math.sqrt(threads)


def rpol(space, **given):
    return cb.RPOL(space, **beliefs(space), explore=cb.UCB(2.0), **given)


def ckb(space, **given):
    more = {**beliefs(space), **given}
    return cb.CKB(space, explore=cb.UCB(2.0), step=0.5, cap=3.0, **more)


LIMITS = {"latency": "<= 1"}


def study_of(policy=rpol, direction="maximize", storage=None, **more):
    more = more or {"limits": LIMITS}
    sampler = cb.optuna.Sampler(policy, **more)
    return optuna.create_study(sampler=sampler, direction=direction, storage=storage)


def begin(study):
    """Start the next trial, which chooses nothing yet."""
    if study._pop_waiting_trial_id() is None:
        study._storage.create_new_trial(study._study_id)


def posterior(trials, function):
    """Means and deviations over 1..16 by a dense solve."""
    every = torch.arange(1, 17, dtype=torch.float64)
    x = torch.tensor([float(t.params["threads"]) for t in trials], dtype=torch.float64)
    y = torch.tensor([function(t) for t in trials], dtype=torch.float64)

    def k(a, b):
        return torch.exp(-((a[:, None] - b[None]) ** 2) / (2 * 4.0**2))

    gram = k(x, x) + NOISE * torch.eye(len(x), dtype=torch.float64)
    cross = k(every, x)
    mean = cross @ torch.linalg.solve(gram, y)
    var = 1 - (cross * torch.linalg.solve(gram, cross.T).T).sum(-1)
    return mean, var.clamp(min=0).sqrt()


def latency(trial):
    return trial.user_attrs["latency"]


class TestWhatItChooses:
    @pytest.mark.parametrize("margin", [0.0, 3.0])
    def test_rpol_by_hand(self, margin):
        study = study_of(
            lambda space, **given: cb.RPOL(
                space, **beliefs(space), explore=cb.UCB(2.0, margin=margin), **given
            )
        )
        study.optimize(objective, n_trials=15)
        q, raised = 1.0, 0.0
        for n in range(1, 15):
            seen = study.trials[:n]
            f, spread = posterior(seen, lambda t: t.value)
            g, other = posterior(seen, latency)
            score = f + 2 * spread - q * (g - 1 - 2 * other + raised).clamp(min=0)
            chosen = study.trials[n].params["threads"]
            assert score[chosen - 1] >= score.max() - 1e-8
            raised = margin * other[chosen - 1]
            over = max(latency(study.trials[n]) - 1, 0.0)
            q = max(q + over, math.sqrt(n + 1))
        sampler = study.sampler
        assert sampler.policy(study).multiplier.tolist() == [
            pytest.approx(q, abs=1e-12)
        ]

    def test_ckb_by_hand(self):
        study = study_of(ckb)
        study.optimize(objective, n_trials=15)
        phi = 0.0
        for n in range(1, 15):
            seen = study.trials[:n]
            f, spread = posterior(seen, lambda t: t.value)
            g, other = posterior(seen, latency)
            low = g - 1 - 2 * other
            score = f + 2 * spread - phi * low
            chosen = study.trials[n].params["threads"]
            assert score[chosen - 1] >= score.max() - 1e-8
            phi = min(max(phi + 0.5 * float(low[chosen - 1]), 0.0), 3.0)
        found = study.sampler.policy(study).multiplier.tolist()
        assert found == [pytest.approx(phi, abs=1e-6)]

    def test_costs_enter_in_the_unit_of_the_next_trial_that_has_one(self):
        study = study_of("RPOL")
        study.optimize(objective, n_trials=24)
        policy, trials, q = study.sampler.policy(study), study.trials, 1.0
        (now,) = policy._now.state.beliefs.units().size[:, 1:].tolist()[0]
        kept = [each.system_attrs.get("cbandit:round", {}) for each in trials]
        units = [each.get("units") for each in kept]
        assert units[0] is None  # drawn at random
        assert units[1] == [None]  # a single outcome has no spread
        for n in range(1, 24):
            later = [u[0] for u in units[n + 1 :] if u[0] is not None]
            q += max(latency(trials[n]) - 1, 0.0) / (later[0] if later else now)
            q = max(q, math.sqrt(n + 1))
        assert policy.multiplier.tolist() == [pytest.approx(q, abs=1e-9)]

    @pytest.mark.parametrize("policy", ["RPOL", ckb])
    def test_any_worker_can_go_on(self, policy):
        """A fresh sampler for each trial chooses as one for all does."""
        one, many = study_of(policy), study_of(policy)
        one.optimize(objective, n_trials=23)
        for _ in range(23):
            many.sampler = cb.optuna.Sampler(policy, limits=LIMITS)
            many.optimize(objective, n_trials=1)
        chosen = [[t.params["threads"] for t in s.trials] for s in (one, many)]
        assert chosen[0] == chosen[1]

    def test_thompson_draws_are_keyed_by_trial(self):
        def policy(space, **given):
            return cb.RPOL(space, **beliefs(space), explore=cb.TS(1.0), **given)

        runs = []
        for seed in (0, 0, 1):
            study = study_of(policy, limits=LIMITS, seed=seed)
            study.optimize(objective, n_trials=12)
            runs.append([t.params["threads"] for t in study.trials])
        assert runs[0] == runs[1] != runs[2]

    def test_it_minimises(self):
        def cost(trial):
            return -objective(trial)

        up, down = study_of(), study_of(direction="minimize")
        up.optimize(objective, n_trials=12)
        down.optimize(cost, n_trials=12)
        assert [t.params for t in up.trials] == [t.params for t in down.trials]
        assert down.best_trial.params["threads"] == 9


class TestOthersTrials:
    def test_enqueued_ones_teach_and_move_nothing(self):
        study = study_of()
        study.enqueue_trial({"threads": 16})
        study.enqueue_trial({"threads": 9})
        study.optimize(objective, n_trials=2)
        policy = study.sampler.policy(study)
        assert policy.multiplier.tolist() == [1.0]
        found = policy.posterior(params=[{"threads": 16}]).costs.mean
        assert found.item() == pytest.approx((16 / 9) ** 2, rel=0.02)

    def test_an_epoch_ends_whoever_played_its_last_round(self):
        def policy(space, **given):
            more = {**beliefs(space), **given}
            return cb.RPOL(space, explore=cb.UCB(2.0), restart=5, **more)

        study = study_of(policy)
        study.optimize(objective, n_trials=4)
        assert study.sampler.policy(study).multiplier.item() >= 2.0
        study.enqueue_trial({"threads": 16})
        study.optimize(objective, n_trials=1)
        assert study.sampler.policy(study).multiplier.tolist() == [1.0]

    def test_the_policy_goes_on_in_its_epoch(self):
        """Asked and told, it moves as the study does."""

        def policy(space, **given):
            return rpol(space, **given, restart=5)

        study = study_of(policy, limits={"latency": "<= 9"})
        study.optimize(objective, n_trials=7)
        alone = study.sampler.policy(study)
        study.optimize(objective, n_trials=1)
        trial, choice = study.trials[-1], alone.ask()
        assert choice.params == trial.params
        alone.tell(choice, reward=trial.value, cost={"latency": latency(trial)})
        want = study.sampler.policy(study).multiplier
        assert alone.multiplier.tolist() == want.tolist()

    def test_those_of_another_sampler_teach(self):
        study = optuna.create_study(direction="maximize")
        study.sampler = optuna.samplers.RandomSampler(3)
        study.optimize(objective, n_trials=5)
        study.sampler = cb.optuna.Sampler(rpol, limits=LIMITS)
        study.optimize(objective, n_trials=10)
        assert study.trials[-1].params["threads"] == 9

    def test_running_ones_are_counted(self):
        """Trials in a row are different places though nothing was told."""

        def policy(space, **given):
            more = {"pending": "hallucinate", **beliefs(space), **given}
            return cb.RPOL(space, explore=cb.UCB(4.0), **more)

        study = study_of(policy)
        study.optimize(objective, n_trials=1)
        first = [study.ask().suggest_int("threads", 1, 16) for _ in range(4)]
        assert len(set(first)) == 4

    def test_a_trial_still_running_keeps_its_estimate(self):
        study = study_of(ckb)
        study.optimize(objective, n_trials=3)
        before = study.sampler.policy(study).multiplier
        open_trial = study.ask()
        objective(open_trial)
        after = study.sampler.policy(study).multiplier
        (estimate,) = study.trials[-1].system_attrs["cbandit:round"]["estimate"][1:]
        want = (before + 0.5 * estimate).clamp(0.0, 3.0)
        assert after.tolist() == pytest.approx(want.tolist())

    @pytest.mark.parametrize("policy", ["CKB", ckb])
    def test_who_is_about_to_choose_is_foreseen(self, policy):
        """Workers that choose at the same moment choose as if one after another."""
        turns, together = study_of(policy), study_of(policy)
        for study in (turns, together):
            study.optimize(objective, n_trials=6)
        first = [turns.ask().suggest_int("threads", 1, 16) for _ in range(3)]
        for _ in range(2):
            begin(together)
        alike = together.ask().suggest_int("threads", 1, 16)
        assert alike == first[-1] != first[0]

    def test_who_was_overtaken_does_not_count(self):
        """Its process was killed while it chose."""
        one, other = study_of(ckb), study_of(ckb)
        for study in (one, other):
            study.optimize(objective, n_trials=6)
        begin(one)
        assert len(one.sampler.policy(one).outstanding) == 1
        for study in (one, other):
            study.enqueue_trial({"threads": 4})
            study.optimize(objective, n_trials=1)
        found = [each.sampler.policy(each) for each in (one, other)]
        assert not found[0].outstanding
        prices = [each.multiplier.tolist() for each in found]
        assert prices[0] == pytest.approx(prices[1])

    def test_enqueued_ones_are_counted_before_they_suggest(self):
        study = study_of("RPOL")
        study.optimize(objective, n_trials=3)
        study.enqueue_trial({"threads": 5})
        begin(study)
        (waiting,) = study.sampler.policy(study).outstanding
        assert waiting.x.tolist() == [5.0]

    @pytest.mark.parametrize("continuous", [False, True])
    def test_failed_ones_are_not_asked_for_again(self, continuous):
        def broken(trial):
            value = objective(trial)
            if continuous:
                trial.suggest_float("share", 0, 1)
            if trial.params["threads"] in (8, 9):
                raise ArithmeticError
            return value

        def policy(space, **given):
            more = {**beliefs(space), **given}
            if continuous:
                more["reward"] = more["costs"]["latency"] = cb.GP.default(space)
            return cb.RPOL(space, explore=cb.UCB(0.5), failures=False, **more)

        study = study_of(policy)
        study.optimize(broken, n_trials=20, catch=ArithmeticError)
        failed = [
            tuple(each.params.values())
            for each in study.trials
            if each.state == optuna.trial.TrialState.FAIL
        ]
        assert len(set(failed)) == len(failed)
        assert failed or continuous

    def test_where_trials_fail_is_learned(self):
        """The two best values fail; both are given up after a few times."""

        def broken(trial):
            value = objective(trial)
            if trial.params["threads"] in (8, 9):
                raise ArithmeticError
            return value

        study = study_of()
        study.optimize(broken, n_trials=20, catch=ArithmeticError)
        failed = [
            trial.params["threads"]
            for trial in study.trials
            if trial.state == optuna.trial.TrialState.FAIL
        ]
        assert 1 <= len(failed) <= 8
        assert study.trials[-1].state == optuna.trial.TrialState.COMPLETE

    @pytest.mark.parametrize("continuous", [False, True])
    def test_one_failure_among_measured_ones_bars_nothing(self, continuous):
        """A worker that is killed leaves a trial behind that counts as failed."""
        names = {"threads": optuna.distributions.IntDistribution(1, 16)}
        if continuous:
            names["share"] = optuna.distributions.FloatDistribution(0, 1)
        other = {"share": 0.5} if continuous else {}

        def policy(space, **given):
            belief = cb.GP.default(space)
            costs = {"latency": belief}
            return cb.RPOL(space, reward=belief, costs=costs, failures=False, **given)

        study = study_of(policy)

        def add(threads, state, near=0.0):
            given = {"threads": threads, **other}
            if continuous:
                given["share"] += near
            done = state == optuna.trial.TrialState.COMPLETE
            study.add_trial(
                optuna.create_trial(
                    state=state,
                    value=math.sqrt(threads) if done else None,
                    params=given,
                    distributions=names,
                    user_attrs={"latency": (threads / 9) ** 2} if done else {},
                )
            )

        for threads in (3, 9, 9, 12):
            add(threads, optuna.trial.TrialState.COMPLETE)
        for threads, near in ((9, 5e-4), (3, 5e-4), (3, 0.0), (5, 0.0)):
            add(threads, optuna.trial.TrialState.FAIL, near)
        policy = study.sampler.policy(study)
        policy.ask()
        if continuous:
            ((*barred,),) = (x[:, 1].tolist() for x in failures_of(policy).points)
        else:
            barred = [int(i) + 1 for i in failures_of(policy).numbers[0]]
        assert barred == [3, 3, 5]

    def test_pruned_and_infinite_ones(self):
        study = study_of()

        def sometimes(trial):
            value = objective(trial)
            if trial.number == 3:
                raise optuna.TrialPruned
            return math.inf if trial.number == 4 else value

        study.optimize(sometimes, n_trials=10)
        assert study.trials[3].constraints  # its cost was measured
        rewards, costs = (
            len(group.log) for group in study.sampler.policy(study)._beliefs.groups
        )
        assert (rewards, costs) == (8, 10)

    def test_threads(self):
        study = study_of()
        study.optimize(objective, n_trials=24, n_jobs=4)
        assert len(study.trials) == 24
        assert study.best_trial.params["threads"] == 9


class TestConstraints:
    def test_limits_are_written_where_optuna_looks(self):
        limits = {"latency": "<= 1", "speed": ">= 2"}

        def both(trial):
            value = objective(trial)
            trial.set_user_attr("speed", trial.params["threads"] / 3)
            return value

        def policy(space, **given):
            costs = {"latency": gp(space), "speed": gp(space)}
            return cb.RPOL(
                space, reward=gp(space), costs=costs, explore=cb.UCB(2.0), **given
            )

        study = study_of(policy, limits=limits)
        study.optimize(both, n_trials=15)
        for trial in study.trials:
            threads = trial.params["threads"]
            want = {"latency": (threads / 9) ** 2 - 1, "speed": 2 - threads / 3}
            assert trial.constraints == pytest.approx(want)
        assert 6 <= study.best_trial.params["threads"] <= 9

    @pytest.mark.filterwarnings("ignore:trial 0 has no user attribute")
    def test_what_was_not_measured_is_not_within_its_limit(self):
        study = study_of()

        def silent(trial):
            return 1e6 + trial.suggest_int("threads", 1, 16)  # and no latency

        study.optimize(silent, n_trials=1)
        study.enqueue_trial({"threads": 5})
        study.optimize(objective, n_trials=2)
        assert study.best_trial.number > 0
        assert study.trials[0].constraints["latency"] > 0

    def test_a_policy_with_a_design_is_refused(self):
        def policy(space, **given):
            return cb.RPOL(
                space, reward=gp(space), costs={"latency": gp(space)}, design=4, **given
            )

        study = study_of(policy)
        with pytest.raises(cb.CBanditError, match="built without design="):
            study.optimize(objective, n_trials=3)

    @pytest.mark.parametrize("how", ["function", "set"])
    def test_optunas_own(self, how):
        """They are costs with a limit of 0."""

        def own(trial):
            value = objective(trial)
            over = latency(trial) - 1
            trial.set_user_attr("over", over)
            if how == "set":
                trial.set_constraint("latency", over)
            return value

        def policy(space, **given):
            costs = gp(space) if given["thresholds"] == 0 else {"over": gp(space)}
            more = {"reward": gp(space), "costs": costs, **given}
            return cb.RPOL(space, explore=cb.UCB(2.0), **more)

        more = {"seed": 0}
        if how == "function":
            more["constraints_func"] = lambda trial: [trial.user_attrs["over"]]
        study, named = study_of(policy, **more), study_of(policy, limits={"over": 0})
        study.optimize(own, n_trials=12)
        named.optimize(own, n_trials=12)
        assert [t.params for t in study.trials] == [t.params for t in named.trials]

    def test_a_missing_attribute_is_said(self):
        study = study_of()

        def forgetful(trial):
            threads = trial.suggest_int("threads", 1, 16)
            if trial.number != 2:
                trial.set_user_attr("latency", (threads / 9) ** 2)
            return math.sqrt(threads)

        with pytest.warns(UserWarning, match="trial 2 has no user attribute 'latency'"):
            study.optimize(forgetful, n_trials=6)


class TestParameters:
    def test_every_kind(self):
        seen = []

        def mixed(trial):
            found = {
                "steps": trial.suggest_int("steps", 3, 99, step=12),
                "size": trial.suggest_int("size", 1, 10**9, log=True),
                "rate": trial.suggest_float("rate", 1e-4, 1.0, log=True),
                "share": trial.suggest_float("share", 0.1, 0.9, step=0.2),
                "kind": trial.suggest_categorical("kind", ["a", None, True, 3, 0.5]),
                "fixed": trial.suggest_int("fixed", 7, 7),
            }
            seen.append(found)
            trial.set_user_attr("latency", found["share"])
            return found["rate"]

        study = study_of("RPOL")
        study.optimize(mixed, n_trials=8)
        assert all(each["steps"] in range(3, 100, 12) for each in seen)
        assert all(isinstance(each["size"], int) for each in seen)
        assert [t.params for t in study.trials] == seen

    def test_large_grids_are_searched_as_boxes(self):
        def wide(trial):
            values = [trial.suggest_int(f"x{i}", 0, 999) for i in range(4)]
            trial.set_user_attr("latency", values[0] / 500)
            return -sum((v - 400) ** 2 for v in values) / 1e5

        study = study_of("RPOL")
        study.optimize(wide, n_trials=6)
        assert all(isinstance(v, int) for t in study.trials for v in t.params.values())

    def test_a_parameter_that_some_trials_have(self):
        def branching(trial):
            value = objective(trial)
            if trial.number % 2:
                trial.suggest_float("extra", 0, 1)
            return value

        study = study_of()
        study.optimize(branching, n_trials=8)
        assert "extra" in study.trials[7].params


def free(space, **given):
    return cb.GPUCB(space, reward=cb.GP.default(space), **{**given, "thresholds": 0.0})


def adaptive(space, **given):
    return rpol(space, **given, restart="adaptive", forget=True)


class TestRefusals:
    @pytest.mark.parametrize(
        ("policy", "more", "match"),
        [
            ("Nothing", {}, "policy must be the name"),
            (3, {}, "policy must be the name"),
            ("LCLUCB", {}, "policy must be the name"),
            ("RPLO", {}, "did you mean 'RPOL'"),
            ("config", {}, "did you mean 'CONFIG'"),
            ("GPUCB", {}, "GPUCB keeps no limits.*take 'RPOL'"),
            ("GPTS", {"limits": None, "constraints_func": len}, "keeps no limits"),
            ("RPOL", {"constraints_func": lambda t: [0]}, "not both"),
            ("RPOL", {"seed": -1}, "seed"),
            ("RPOL", {"limits": {"latency": "around 3"}}, "latency"),
            ("RPOL", {"limits": {}}, "limits"),
        ],
    )
    def test_arguments(self, policy, more, match):
        with pytest.raises(cb.CBanditError, match=match):
            cb.optuna.Sampler(policy, **{"limits": LIMITS, **more})

    @pytest.mark.parametrize(
        ("policy", "match"),
        [
            (lambda space, **given: free(space, **given), "built with 0 costs"),
            (lambda space, **given: 3, "must be a cb.GPPolicy"),
            (lambda space, **given: rpol(space, **given, trials=2), "without trials="),
            (lambda space, **given: rpol(cb.Space(x=cb.Int(1, 3)), **given), "space"),
            (adaptive, "and forget=True"),
        ],
    )
    def test_policies(self, policy, match):
        study = study_of(policy)
        with pytest.raises(cb.CBanditError, match=match):
            study.optimize(objective, n_trials=2)

    def test_a_study_without_constraints(self):
        study = study_of("RPOL", seed=0)
        with pytest.raises(cb.CBanditError, match="give limits="):
            study.optimize(objective, n_trials=2)
        free = study_of("GPUCB", seed=0)
        free.optimize(objective, n_trials=20)
        assert free.best_trial.params["threads"] == 16

    def test_two_objectives(self):
        sampler = cb.optuna.Sampler("RPOL", limits=LIMITS)
        study = optuna.create_study(
            sampler=sampler, directions=["maximize", "minimize"]
        )
        with pytest.raises(ValueError, match="multi-objective"):
            study.optimize(lambda trial: (objective(trial), 0.0), n_trials=2)

    def test_nothing_learned_yet(self):
        study = study_of()
        with pytest.raises(cb.CBanditError, match="nothing for a policy to learn"):
            study.sampler.policy(study)


@pytest.mark.parametrize("told", [bool, int])
def test_yes_and_no_are_probabilities(told):
    """A crash from 10 threads on: the belief is binary, also of another worker."""

    def crashes(trial):
        threads = trial.suggest_int("threads", 1, 16)
        trial.set_user_attr("crashed", told(threads > 9))
        return math.sqrt(threads)

    study = study_of("CKB", limits={"crashed": "<= 0.3"})
    study.enqueue_trial({"threads": 2})
    study.enqueue_trial({"threads": 15})
    study.optimize(crashes, n_trials=8)
    policy = study.sampler.policy(study)
    every = [{"threads": k} for k in range(1, 17)]
    chance = policy.posterior(params=every).costs.mean.flatten()
    assert bool(((chance > 0) & (chance < 1)).all())
    assert float(chance[1]) < 0.5 < float(chance[14])
    assert [t.constraints["crashed"] < 0 for t in study.trials] == [
        t.params["threads"] <= 9 for t in study.trials
    ]
    study.sampler = cb.optuna.Sampler("CKB", limits={"crashed": "<= 0.3"})
    again = study.sampler.policy(study).posterior(params=every).costs.mean.flatten()
    torch.testing.assert_close(again, chance, rtol=1e-6, atol=1e-6)
    study.add_trial(
        optuna.trial.create_trial(
            value=1.0,
            params={"threads": 3},
            distributions=study.trials[0].distributions,
            user_attrs={"crashed": 2.5},
        )
    )
    mean = study.sampler.policy(study).posterior(params=every).costs.mean
    assert float(mean.max()) > 1  # it is a number after all


def test_a_sampler_can_be_pickled():
    study = study_of("RPOL")
    study.optimize(objective, n_trials=22)
    again = pickle.loads(pickle.dumps(study.sampler))
    both = [s.policy(study).ask().params for s in (study.sampler, again)]
    assert both[0] == both[1]


ROUND = "cbandit:round"
BROKEN = [
    [1.0],
    "12",
    1e308,
    -1e200,
    True,
    {"a": 1.0},
    [],
    {},
]


def spoiled(study, number, changes):
    """A copy of a study in which one trial's system attributes are others."""
    other = optuna.create_study(sampler=study.sampler, directions=study.directions)
    for trial in study.trials:
        attributes = dict(trial.system_attrs)
        if trial.number == number:
            attributes = {k: v for k, v in attributes.items() if k not in changes}
            attributes |= {k: v for k, v in changes.items() if v is not GONE}
        copied = optuna.trial.create_trial(
            values=trial.values,
            params=trial.params,
            distributions=trial.distributions,
            user_attrs=trial.user_attrs,
            system_attrs=attributes,
        )
        other.add_trial(copied)
    return other


GONE = object()


class TestBrokenAttributes:
    """What one trial holds stops nobody, and changes what it alone taught."""

    @pytest.mark.parametrize("value", [*BROKEN, math.nan, math.inf], ids=repr)
    def test_a_cost(self, value):
        def broken(trial):
            reward = objective(trial)
            if trial.number == 3:
                trial.set_user_attr("latency", value)
            return reward

        study = study_of()
        with pytest.warns(UserWarning, match="trial 3") as caught:
            study.optimize(broken, n_trials=8)
        assert len(caught) == 1
        said = str(caught[0].message)
        assert said.startswith(f"trial 3 has {value!r} as its user attribute 'latency'")
        policy = study.sampler.policy(study)
        seen = [each for each in study.trials if each.number != 3]
        mean, _ = posterior(seen, latency)
        every = [{"threads": k} for k in range(1, 17)]
        found = policy.posterior(params=every).costs.mean.flatten()
        torch.testing.assert_close(found, mean, rtol=1e-8, atol=1e-8)
        assert 0 < policy.multiplier.item() < 20

    @pytest.mark.parametrize("name", ["params", "estimate", "units", "all"])
    def test_what_the_sampler_itself_keeps(self, name):
        study = study_of(ckb)
        study.optimize(objective, n_trials=8)
        kept = study.trials[4].system_attrs[ROUND]
        without = spoiled(study, 4, {ROUND: GONE})
        whole = without.sampler.policy(without)
        for value in [*BROKEN, math.nan, [1.0] * 9, {"threads": [1]}]:
            if value in {"params": [{}, {"a": 1.0}], "units": [[1.0]]}.get(name, []):
                continue  # that is sound
            broken = value if name == "all" else {**kept, name: value}
            other = spoiled(study, 4, {ROUND: broken})
            other.sampler = cb.optuna.Sampler(ckb, limits=LIMITS)  # of another worker
            expected = "trial 4 has .* as its system attribute 'cbandit:round'"
            with pytest.warns(UserWarning, match=expected) as caught:
                policy = other.sampler.policy(other)
            assert len(caught) == 1
            # as if nobody had chosen it; what it measured still teaches
            assert torch.equal(policy.multiplier, whole.multiplier)
            assert torch.equal(
                policy.posterior().reward.mean, whole.posterior().reward.mean
            )
            other.optimize(objective, n_trials=1)

    @pytest.mark.parametrize("value", [[1.0], "12", 1e308, {"a": [1.0]}], ids=repr)
    def test_parameters_that_were_fixed(self, value):
        study = study_of()
        study.optimize(objective, n_trials=4)
        other = spoiled(study, 2, {"fixed_params": value})
        expected = "trial 2 has .* as its system attribute 'fixed_params'"
        with pytest.warns(UserWarning, match=expected):
            other.optimize(objective, n_trials=1)
        study.optimize(objective, n_trials=1)
        assert other.trials[-1].params == study.trials[-1].params

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("constraints", 7.5),
            ("constraints", "text"),
            ("constraints", [1.0, 2.0, 3.0]),
            ("constraints", {"a": 1.0}),
            ("constraints", [None]),
            ("constraints", [1e308]),
            ("constraints:0", "text"),
            ("constraints:0", [1.0]),
            ("constraints:0", math.inf),
            ("constraints:7", 1.0),
        ],
    )
    def test_constraints(self, name, value):
        def policy(space, **given):
            both = {"reward": gp(space), "costs": [gp(space)]}
            return cb.RPOL(space, **both, explore=cb.UCB(2.0), **given)

        def limit(trial):
            return [latency(trial) - 1]

        study = study_of(policy, constraints_func=limit)
        study.optimize(objective, n_trials=6)
        gone = {} if name == "constraints:7" else {"constraints:0": GONE}
        without = spoiled(study, 2, {**gone, "constraints:0": GONE})
        whole = without.sampler.policy(without)
        other = spoiled(study, 2, {**gone, name: value})
        with pytest.warns(UserWarning, match="trial 2 has .* it is left out"):
            found = other.sampler.policy(other)
        assert torch.equal(found.multiplier, whole.multiplier)
        assert torch.equal(found.posterior().costs.mean, whole.posterior().costs.mean)

    def test_numbers_too_large_for_the_policy(self):
        def single(space, **given):
            return rpol(space, dtype=torch.float32, **given)

        study = study_of(single)
        study.optimize(objective, n_trials=3)
        study.enqueue_trial({"threads": 4})
        study.optimize(lambda trial: 0 * objective(trial) + 1e30, n_trials=1)
        with pytest.warns(UserWarning, match="trial 3 has numbers whose squares"):
            study.optimize(objective, n_trials=2)
        assert study.sampler.policy(study).posterior().reward.mean.isfinite().all()
