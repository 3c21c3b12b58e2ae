"""The loop: what it tells whom and when, and that nothing is lost on the way."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import textwrap
import time
import warnings
from pathlib import Path

import pandas
import pytest
import torch
from gpytorch.kernels import RBFKernel

sys.path.insert(0, str(Path(__file__).parent))

from inside import (
    Choice,
    Run,
    delays_of,
    differences,
    join,
    read,
    settings_of,
    simulate,
    write,
)
from worlds import Plain, Uniform, same, table

import cbandit as cb
from cbandit import account
from cbandit.errors import CBanditError, CheckpointError, HorizonError
from cbandit.problems import Blockwise, Problem, Round, Table


class Timeless:
    """Hides ``evaluate``: the same table as a user without blocks would write it."""

    def __init__(self, table):
        for name in ("actions", "trials", "thresholds", "reward", "costs", "observe"):
            setattr(self, name, getattr(table, name))
        for name in ("optimum", "stochastic_optimum", "round"):
            setattr(self, name, getattr(table, name))


def ckb(problem, scale=0.2, noise=0.01, points=1.0, explore=None, **more):
    """A policy over the problem's actions, or over points that are off them."""
    kernel = RBFKernel().double()
    kernel.lengthscale = torch.tensor(scale, dtype=torch.float64)
    gp = cb.GP(kernel, noise=noise)
    settings = {"reward": gp, "costs": gp, "step": 0.1, "cap": 3.0} | more
    actions = cb.Finite(problem.actions.all * points)
    return cb.CKB(actions, explore=explore or cb.UCB(1.0), **settings)


def shifted(share):
    """:func:`worlds.table`, its costs multiplied by ``1 + share``."""
    return Table(table().f, table().g * (1 + share), 0.1)


def stop_after(t):
    return lambda played: played.t == t


@pytest.mark.parametrize("trials", [None, 3, range(4, 6)])
@pytest.mark.parametrize("m", [1, 3])
def test_the_run_holds_what_happened(trials, m):
    problem = table(trials, m)
    policy = Uniform(problem, seed=1, trials=trials, m=m)
    run = simulate(policy, problem, 300)
    batch = policy.batch_shape
    assert run.rounds == 300
    assert run.complete
    assert run.m == m
    assert run.actions.shape == (*batch, 300, 1)
    assert run.index.shape == run.rewards.shape == (*batch, 300)
    assert run.costs.shape == run.multipliers.shape == (*batch, 300, m)
    assert run.seconds.shape == (300,)
    f = problem.f.expand(*batch, -1).gather(-1, run.index)
    torch.testing.assert_close(run.true_rewards, f)
    assert 0.2 < (run.rewards - f).std() < 0.45  # noise of variance 0.1
    torch.testing.assert_close(run.regret, account.regret(run.optimum, f))
    # a policy's multiplier is noted before the round, though told in place
    assert torch.equal(run.multipliers[..., 0, :], torch.zeros(*batch, m).double())
    expected = run.costs.cumsum(-2)[..., :-1, :]
    torch.testing.assert_close(run.multipliers[..., 1:, :], expected)
    assert policy.log[0] == (1, 1, True, True, None)
    assert len(policy.log) == 300


def test_blocks_and_rounds_give_the_same_account():
    problem = table(3, 2)
    a = simulate(Uniform(problem, trials=3, m=2), problem, 600)
    plain = Timeless(problem)
    assert isinstance(problem, Blockwise)
    assert not isinstance(plain, Blockwise)
    assert isinstance(plain, Problem)
    b = simulate(Uniform(problem, trials=3, m=2), plain, 600)
    assert same(a, b)


def test_any_split_of_trials_is_the_same_run():
    from cbandit.problems import zhou_synthetic

    def play(trials):
        problem = zhou_synthetic(trials=trials)
        return simulate(Uniform(problem, trials=trials), problem, 50)

    whole, parts = play(5), [play(range(0, 2)), play(range(2, 5))]
    assert same(whole, join(parts[::-1]))
    with pytest.raises(CBanditError, match="consecutive trials"):
        join([parts[0], parts[0]])


def test_a_problem_without_trials_serves_a_batch():
    problem = table(None)
    run = simulate(Uniform(problem, trials=4), problem, 20)
    assert run.true_costs.shape == (4, 20, 1)
    assert run.rewards.std(0).min() > 0


def test_other_trials_are_refused():
    problem = table(3)
    with pytest.raises(CBanditError, match="same trials"):
        simulate(Uniform(problem, trials=4), problem, 5)
    with pytest.raises(CBanditError, match="same trials"):
        simulate(Uniform(problem), problem, 5)


@pytest.mark.parametrize("horizon", [0, -1, 2.5, True])
def test_a_bad_horizon_is_refused(horizon):
    problem = table()
    with pytest.raises(CBanditError, match="horizon"):
        simulate(Uniform(problem), problem, horizon)


def test_a_policy_without_costs_is_told_none():
    problem = table()
    policy = Uniform(problem, m=0)
    run = simulate(policy, problem, 10)
    assert {entry[2:4] for entry in policy.log} == {(True, False)}
    assert run.multipliers.shape == (10, 0)
    assert run.costs.shape == (10, 1)


def test_wrong_feedback_is_named():
    problem = Plain(m=2)
    with pytest.raises(CBanditError, match="costs of shape"):
        simulate(Uniform(problem, m=3), problem, 2)


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        ({"round": lambda t, generator: None}, "problem.round must return a cb.Round"),
        ({"observe": lambda choice, generator: 0.5}, "must return a pair"),
        ({"observe": lambda choice, generator: None}, "must return a pair"),
    ],
)
def test_what_a_problem_answers_is_checked(broken, says):
    problem = Plain()
    vars(problem).update(broken)
    policy = Uniform(problem)
    with pytest.raises(CBanditError, match=says):
        simulate(policy, problem, 2)


def test_what_a_problem_lacks_is_named():
    class Half:
        trials = None
        actions = Plain().actions

        def reward(self, x, t):
            return x.sum(-1)

    with pytest.raises(
        CBanditError, match=r"Half lacks costs\(\), observe\(\), optimum"
    ):
        simulate(Uniform(Half()), Half(), 2)


def test_a_drifting_world_and_thresholds():
    problem = Plain()
    problem.thresholds = lambda t: float(t)
    run = simulate(Uniform(problem), problem, 30)
    t = torch.arange(1, 31)
    assert torch.allclose(run.optimum, (2 + 0.01 * t).double())
    assert bool(run.stochastic_optimum.isnan().all())
    x = run.actions[:, 0]
    torch.testing.assert_close(run.true_costs[:, 0], x - 2.0 - t)
    torch.testing.assert_close(run.true_rewards, x + 0.01 * t)


def test_questions_reach_the_policy():
    problem, seen = Plain(), torch.ones(1, 5)
    problem.round = lambda t, generator: Round(among=[0, 1], observed_costs=seen)
    policy = Uniform(problem)
    simulate(policy, problem, 1)
    assert policy.question == ([0, 1], None, seen)


def test_a_world_that_shows_its_costs_is_for_policies_that_learn_them_too():
    class Shown(Table):
        def round(self, t, generator):
            return Round(observed_costs=self.g)

    hidden = table(size=6)
    shown = Shown(hidden.f, hidden.g, 0.1)
    gp = cb.GP(RBFKernel().double(), noise=0.1)

    def runs(world):
        policy = cb.RPOL(hidden.actions, reward=gp, costs=gp, explore=cb.UCB(1.0))
        return simulate(policy, world, 20)

    assert same(runs(shown), runs(hidden))
    sees = cb.SCGPUCB(
        hidden.actions,
        reward=gp,
        costs=1,
        explore=cb.UCB(1.0),
        slater=1.0,
        clip=3.0,
    )
    simulate(sees, shown, 20)
    assert sees.t == 20
    with pytest.raises(CBanditError, match=r"returns cb.Round\(observed_costs=g_t\)"):
        simulate(sees, hidden, 1)


def test_a_distribution_is_accounted_in_expectation():
    problem = table(2, 2)
    for world in (problem, Timeless(problem)):
        run = simulate(Uniform(problem, trials=2, m=2, mixed=True), world, 40)
        f = 0.5 * run.true_rewards + 0.5 * problem.f[:, :1]
        g = 0.5 * run.true_costs + 0.5 * problem.g[:, :, 0].unsqueeze(1)
        torch.testing.assert_close(run.expected_rewards, f)
        torch.testing.assert_close(run.stage_costs, g)


def test_callback_sees_the_rounds_and_stops():
    problem, seen = table(), []

    def callback(played):
        seen.append((played.t, played.choice.t, tuple(played.cost.shape)))
        return played.t == 7

    run = simulate(Uniform(problem), problem, 100, callback=callback)
    assert run.rounds == 7
    assert not run.complete
    assert seen == [(t, t, (1,)) for t in range(1, 8)]


def test_a_passed_horizon_is_the_policys_error():
    problem = table()
    with pytest.raises(HorizonError):
        simulate(Uniform(problem, horizon=3), problem, 5)


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
        with pytest.raises(CBanditError, match="delays"):
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


class TestCheckpoints:
    def test_resume_is_bit_for_bit(self, tmp_path):
        problem = table(3, 2)
        whole = simulate(Uniform(problem, trials=3, m=2), problem, 700)
        path = tmp_path / "a.ckpt"
        for stop in (1, 255, 256, 300, 512, 699):
            policy = Uniform(problem, trials=3, m=2)
            part = simulate(policy, problem, 700, path, callback=stop_after(stop))
            assert part.rounds == stop == policy.t
        policy = Uniform(problem, trials=3, m=2)
        again = simulate(policy, problem, 700, path)
        assert same(whole, again)
        assert policy.t == 700  # the policy handed in is the one that went on
        assert same(
            whole, simulate(Uniform(problem, trials=3, m=2), problem, 700, path)
        )

    def test_a_longer_horizon_goes_on(self, tmp_path):
        problem, path = table(), tmp_path / "a.ckpt"
        simulate(Uniform(problem), problem, 100, path)
        run = simulate(Uniform(problem), problem, 300, path)
        assert same(run, simulate(Uniform(problem), problem, 300))
        with pytest.raises(CheckpointError, match="300 rounds"):
            simulate(Uniform(problem), problem, 200, path)

    def test_broken_and_foreign_files_are_kept(self, tmp_path):
        problem, path = table(), tmp_path / "a.ckpt"
        simulate(Uniform(problem), problem, 20, path)
        whole = path.read_bytes()
        flipped = bytearray(whole)
        flipped[len(whole) // 2] ^= 1
        for content in (b"", b"hello", whole[:-1], whole[:30], bytes(flipped)):
            path.write_bytes(content)
            policy = Uniform(problem)
            with pytest.raises(CheckpointError, match="kept"):
                simulate(policy, problem, 20, path)
            assert path.read_bytes() == content
            assert policy.t == 0

    def test_another_runs_file_is_refused(self, tmp_path):
        problem, path = table(), tmp_path / "a.ckpt"
        simulate(Uniform(problem), problem, 20, path)
        before = path.read_bytes()
        with pytest.raises(CheckpointError, match="another run: its seed is 0"):
            simulate(Uniform(problem, seed=1), problem, 20, path)
        other = table(size=21)
        with pytest.raises(CheckpointError, match="its actions"):
            simulate(Uniform(other), other, 20, path)
        assert path.read_bytes() == before

    @pytest.mark.parametrize(
        ("changed", "words"),
        [
            ({"step": 0.2}, ["policy.step is 0.1, expected 0.2"]),
            ({"cap": 5.0}, ["policy.cap is 3, expected 5"]),
            ({"slack": 0.1}, ["policy.slack is 0, expected 0.1"]),
            ({"clip": (1.0, 1.0)}, ["policy.clip is None, expected [1, 1]"]),
            ({"horizon": 900}, ["policy.horizon is None, expected 900"]),
            ({"engine": "factor"}, ["policy.engine is auto, expected factor"]),
            ({"dtype": "float32"}, ["policy.dtype is torch.float64"]),
            ({"thresholds": 0.3}, ["policy.thresholds is 0, expected 0.3"]),
            ({"feedback": cb.Sliding(9)}, ["policy.feedback is None", "Sliding"]),
            ({"explore": cb.UCB(2.0)}, ["explore.widths.beta is 1, expected 2"]),
            ({"explore": cb.UCB(1.0, 2.0)}, ["explore.widths.cost_beta is 1"]),
            ({"explore": cb.UCB(cb.RKHS(1.0, 0.1))}, ["beta is 1, expected RKHS"]),
            ({"scale": 0.3}, ["policy.costs.kernel.raw_lengthscale", "reward"]),
            ({"noise": 0.02}, ["policy.reward.noise is 0.01, expected 0.02"]),
            ({"points": 1.1}, ["policy.actions.all holds other numbers of shape"]),
        ],
    )
    @pytest.mark.filterwarnings("ignore:CKB-UCB keeps costs under")
    def test_other_settings_of_a_policy_are_refused(self, tmp_path, changed, words):
        path, problem = tmp_path / "a.ckpt", table(noise=0.01)
        simulate(ckb(problem), problem, 20, path)
        before = path.read_bytes()
        policy = ckb(problem, **changed)
        held = {k: v for k, v in vars(policy).items()}
        with pytest.raises(CheckpointError) as error:
            simulate(policy, problem, 40, path)
        for word in ("another run", "delete the file", *words):
            assert word in str(error.value)
        assert path.read_bytes() == before
        assert vars(policy) == held
        assert policy.t == 0
        # the same, said in other ways, goes on
        same = ckb(problem, slack=torch.zeros(()), thresholds=0, seed=0)
        assert simulate(same, problem, 40, path).rounds == 40

    @pytest.mark.parametrize(
        ("other", "words"),
        [
            (lambda: table(seed=1), ["problem.reward holds other numbers"]),
            (lambda: table(noise=0.2), ["problem.noise is 0.1, expected 0.2"]),
            (lambda: shifted(1e-6), ["problem.costs holds other numbers"]),
            (lambda: Table(table().f.flip(-1), table().g, 0.1), ["problem.reward"]),
            (lambda: Table(table().f, table().g, 0.1, thresholds=1.0), ["thresholds"]),
        ],
    )
    @pytest.mark.filterwarnings("ignore:CKB-UCB keeps costs under")
    def test_another_problem_is_refused(self, tmp_path, other, words):
        path, problem = tmp_path / "a.ckpt", table()
        simulate(ckb(problem), problem, 20, path)
        with pytest.raises(CheckpointError) as error:
            simulate(ckb(other()), other(), 40, path)
        for word in ("another run", "delete the file", *words):
            assert word in str(error.value)
        # what was computed on another machine differs in its last digits
        again = shifted(1e-15)
        assert simulate(ckb(again), again, 40, path).rounds == 40

    def test_settings_of_a_users_own_policy_and_problem(self, tmp_path):
        path = tmp_path / "a.ckpt"
        simulate(Uniform(Plain(), mixed=False), Plain(), 20, path)
        with pytest.raises(CheckpointError, match=r"mixed is False, expected T"):
            simulate(Uniform(Plain(), mixed=True), Plain(), 40, path)
        with pytest.raises(CheckpointError, match=r"problem\.m is 1, expected 2"):
            simulate(Uniform(Plain()), Plain(m=2), 40, path)
        assert simulate(Uniform(Plain()), Plain(), 40, path).rounds == 40

    def test_a_policy_built_on_a_problem_that_has_been_played(self):
        class Mine(cb.SCGPUCB):
            def __init__(self, problem, beta=1.0):
                gp = cb.GP(RBFKernel(), noise=0.01)
                more = {"explore": cb.UCB(beta), "slater": 0.5, "clip": 1.0}
                super().__init__(problem.actions, reward=gp, costs=1, **more)

        make = cb.problems.cbo_gpu_allocation
        problem = make()
        before = settings_of(Mine(problem))
        simulate(Mine(problem), problem, 5)
        for other in (problem, make()):
            assert list(differences(before, settings_of(Mine(other)))) == []
        (found,) = differences(before, settings_of(Mine(make(seed=1))))
        assert found[0] == "problem.seed"

    def test_settings_kept_are_small(self, tmp_path):
        path, problem = tmp_path / "a.ckpt", table(size=50_000)
        simulate(ckb(problem), problem, 2, path)
        mark = read(path)["mark"]
        assert len(pickle.dumps(mark)) < 10_000
        assert "Surrogates" not in str(mark)

    def test_a_file_from_before_settings_were_kept_goes_on(self, tmp_path):
        path, problem = tmp_path / "a.ckpt", table()
        simulate(Uniform(problem), problem, 20, path)
        content = read(path)
        del content["mark"]["settings"]
        write(path, content)
        with pytest.warns(UserWarning, match="taken to be those given now"):
            run = simulate(Uniform(problem), problem, 40, path)
        assert same(run, simulate(Uniform(problem), problem, 40))
        # from here on they are
        with pytest.raises(CheckpointError, match=r"policy\.mixed"):
            simulate(Uniform(problem, mixed=True), problem, 60, path)

    def test_a_folder_in_the_way(self, tmp_path):
        with pytest.raises(CheckpointError, match="cannot read"):
            simulate(Uniform(table()), table(), 20, tmp_path)

    def test_a_failed_write_leaves_the_old_file(self, tmp_path, monkeypatch):
        problem, path = table(), tmp_path / "a.ckpt"
        simulate(Uniform(problem), problem, 20, path)
        before = path.read_bytes()

        def full(*args):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            simulate(Uniform(problem), problem, 40, path)
        assert path.read_bytes() == before
        assert [each.name for each in tmp_path.iterdir()] == ["a.ckpt"]

    @pytest.mark.parametrize(
        ("number", "ended"),
        [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)],
    )
    def test_a_signal_ends_the_round_and_saves(self, tmp_path, number, ended):
        problem, path = table(), tmp_path / "a.ckpt"

        def interrupt(played):
            if played.t == 33:
                os.kill(os.getpid(), number)

        before = signal.getsignal(number)
        with pytest.raises(ended) as stop:
            simulate(Uniform(problem), problem, 90, path, callback=interrupt)
        if number == signal.SIGTERM:
            assert stop.value.code == 143
        assert signal.getsignal(number) is before
        run = simulate(Uniform(problem), problem, 90, path)
        assert same(run, simulate(Uniform(problem), problem, 90))

    def test_kill_9_at_any_moment(self, tmp_path):
        """Killed again and again, mostly while writing, it still ends as it should."""
        path = tmp_path / "a.ckpt"
        script = textwrap.dedent(f"""
            import sys
            sys.path.insert(0, {str(Path(__file__).parent)!r})
            from worlds import Plain, Uniform
            from cbandit import simulate
            print("ready", flush=True)
            simulate(Uniform(Plain(2), trials=2), Plain(2), 200, {str(path)!r},
                     checkpoint_every=0.0)
        """)
        for wait in (0.01, 0.03, 0.08, None):
            process = subprocess.Popen(
                [sys.executable, "-c", script], stdout=subprocess.PIPE
            )
            process.stdout.readline()
            while wait and not path.exists() and process.poll() is None:
                time.sleep(0.005)
            if wait:
                time.sleep(wait)
                process.send_signal(signal.SIGKILL)
            assert process.wait() in (0, -signal.SIGKILL)
            process.stdout.close()
        assert process.returncode == 0  # the last one was left in peace
        policy, calls = Uniform(Plain(2), trials=2), []
        run = simulate(policy, Plain(2), 200, path, callback=calls.append)
        assert calls == []
        assert policy.t == 200
        assert same(run, simulate(Uniform(Plain(2), trials=2), Plain(2), 200))


class TestRun:
    def test_save_and_load(self, tmp_path):
        problem = table(3, 2)
        run = simulate(
            Uniform(problem, trials=range(2, 5), m=2), table(range(2, 5), 2), 9
        )
        run.save(tmp_path / "here")
        assert same(run, Run.load(tmp_path / "here"))
        with pytest.raises(CheckpointError, match="holds no saved run"):
            Run.load(tmp_path)
        with pytest.raises(CBanditError, match=r"run\.json cannot be made"):
            run.save(tmp_path / "here" / "run.json")
        (tmp_path / "here" / "run.pt").write_bytes(b"x")
        with pytest.raises(CheckpointError, match="broken"):
            Run.load(tmp_path / "here")

    def test_frame(self):
        problem = table(3, 2)
        run = simulate(Uniform(problem, trials=3, m=2), problem, 9)
        frame = run.frame()
        assert len(frame) == 27
        row = frame[(frame.trial == 2) & (frame.t == 5)].iloc[0]
        assert row.regret == run.regret[2, 4]
        assert row.cost2 == run.costs[2, 4, 1]
        assert row.action == run.index[2, 4]
        assert row.x1 == run.actions[2, 4, 0]
        assert "policy_regret" not in frame

    @pytest.mark.parametrize("trials", [None, 3])
    def test_frame_without_multipliers(self, trials, tmp_path):
        problem = table(trials)
        run = simulate(Uniform(problem, trials=trials, m=0), problem, 4)
        frame = run.frame()
        assert len(frame) == 4 * (trials or 1)
        assert frame.cost1.tolist() == run.costs.flatten().tolist()
        assert "multiplier1" not in frame
        run.save(tmp_path)
        assert same(run, Run.load(tmp_path))

    def test_distributions_are_in_the_account(self):
        problem = table(3, 2)
        run = simulate(Uniform(problem, trials=3, m=2, mixed=True), problem, 9)
        # half of the action drawn and half of action 0, by hand
        f, g = problem.f, problem.g
        reward = torch.empty(3, 9, dtype=torch.float64)
        cost = torch.empty(3, 9, 2, dtype=torch.float64)
        for i in range(3):
            for t in range(9):
                at = run.index[i, t]
                reward[i, t] = (f[i, at] + f[i, 0]) / 2
                cost[i, t] = (g[i, :, at] + g[i, :, 0]) / 2
        kept = (cost <= 1e-12).all(-1)
        best = problem.stochastic_optimum(1)
        regret = 9 * best - reward.sum(-1)
        frame, short = run.frame(), run.summary()
        row = frame[(frame.trial == 2) & (frame.t == 5)].iloc[0]
        assert row.expected_reward == pytest.approx(reward[2, 4].item())
        assert row.stage_cost2 == pytest.approx(cost[2, 4, 1].item())
        assert row.policy_regret == pytest.approx(
            (5 * best[2] - reward[2, :5].sum()).item()
        )
        assert short["policy_regret"]["mean"] == pytest.approx(regret.mean().item())
        assert short["worst_stage_cost"]["mean"] == pytest.approx(
            cost.amax((1, 2)).mean().item()
        )
        share = kept.double().mean()
        assert short["stage_rounds_kept"]["mean"] == pytest.approx(share.item())
        assert short["stage_runs_kept"]["mean"] == pytest.approx(
            kept.all(-1).double().mean().item()
        )
        assert 0 < share < 1
        curve = run.curve("stage_cost")
        torch.testing.assert_close(curve.mean, cost.amax(-1).mean(0))

    def test_summary(self):
        problem = table(3, 2)
        run = simulate(Uniform(problem, trials=3, m=2), problem, 9)
        final = run.regret[:, -1]
        assert run.summary()["regret"]["mean"] == pytest.approx(final.mean().item())
        sem = final.std().item() / 3**0.5
        assert run.summary()["regret"]["sem"] == pytest.approx(sem)
        assert "soft_violation" in str(run.summary())
        frame = pandas.DataFrame(run.summary()).T
        assert frame.loc["regret", "mean"] == pytest.approx(final.mean().item())
        assert frame.loc["regret", "sem"] == pytest.approx(sem)
        copied = pickle.loads(pickle.dumps(run.summary()))
        assert copied == run.summary()
        assert str(copied) == str(run.summary())
        single = simulate(Uniform(table()), table(), 9)
        assert single.summary()["regret"]["sem"] == 0.0
        assert "+-" not in str(single.summary())
        assert "policy_regret" not in single.summary()
        drifting = simulate(Uniform(Plain(2), trials=2), Plain(2), 5)
        assert "  stochastic_regret         unknown\n" in str(drifting.summary())

    def test_curves(self):
        problem = table(3)
        run = simulate(Uniform(problem, trials=3), problem, 500)
        curve = run.curve("hard_violation", points=50)
        assert 25 < len(curve.t) <= 50
        assert curve.t[0] == 1
        assert curve.t[-1] == 500
        torch.testing.assert_close(curve.mean, run.hard_violation.mean(0)[curve.t - 1])
        average = run.curve("regret", average=True)
        torch.testing.assert_close(
            average.mean, run.regret.mean(0) / torch.arange(1, 501)
        )
        with pytest.raises(CBanditError, match="name must be"):
            run.curve("regrets")


def test_the_loop_itself_is_thin():
    """Far under a bound that no noise of a busy machine reaches: no hidden work."""
    problem = Timeless(table(size=100))
    problem.evaluate = table(size=100).evaluate
    inner = 0.0

    def timed(function):
        def call(*args, **named):
            nonlocal inner
            begun = time.perf_counter()
            out = function(*args, **named)
            inner += time.perf_counter() - begun
            return out

        return call

    best = float("inf")
    for _ in range(3):
        policy, inner = Uniform(problem), 0.0
        policy.ask, policy.tell = timed(policy.ask), timed(policy.tell)
        observe = problem.observe
        problem.observe = timed(observe)
        begun = time.perf_counter()
        simulate(policy, problem, 1000)
        best = min(best, time.perf_counter() - begun - inner)
        problem.observe = observe
    assert best / 1000 < 200e-6


def test_a_policy_of_ones_own_may_keep_actions_of_any_kind():
    problem = cb.problems.zhou_synthetic()

    class First:
        """Plays action 0; its ``actions`` are mere names."""

        batch_shape, trials, m, t, seed, name = (), None, 1, 0, 0, "first"
        actions = ("the first",)
        multiplier = torch.zeros(1)

        def ask(self, **how):
            self.t += 1
            x = problem.actions.points(torch.tensor(0))
            index, kept = torch.tensor(0), torch.tensor(False)
            return Choice(index=index, x=x, t=self.t, infeasible=kept)

        def tell(self, choice, **seen):
            pass

        def lighten(self):
            pass

    played = []
    simulate(First(), problem, 3, callback=played.append)
    assert len(played) == 3


@pytest.mark.parametrize("own", [0.1, 0.3, 0.9, lambda t: 0.1])
def test_the_account_is_by_the_problems_thresholds(own):
    gp = cb.GP(RBFKernel().double(), noise=0.1)
    cost = torch.linspace(-1.0, 1.0, 12, dtype=torch.float64)
    problem = Table(cost, cost[None], noise=0.01, thresholds=0.3)
    both = {"reward": gp, "costs": gp, "explore": cb.UCB(1.0)}
    policy = cb.CKB(problem.actions, step=0.5, cap=4.0, thresholds=own, **both)
    with warnings.catch_warnings():
        if own == 0.9:
            warnings.simplefilter("ignore")  # see below
        run = simulate(policy, problem, 30)
    assert run.thresholds.tolist() == [[0.3]]
    over = cost[run.index] - 0.3
    assert float(over.max()) > 0
    assert torch.allclose(run.hard_violation, over.clamp_min(0).cumsum(0))
    assert torch.equal(run.rounds_in_violation, (over > 0).cumsum(0))


@pytest.mark.parametrize(
    ("own", "odd"),
    [
        (0.0, True),  # left out, it may be
        (0.2, False),
        (0.3, False),
        (0.4, True),
        ([[0.2], [0.4]], True),
        (lambda t: 0.9, False),
    ],
)
def test_thresholds_that_nobody_may_have_meant_are_warned_of(own, odd):
    gp = cb.GP(RBFKernel().double(), noise=0.1)
    cost = torch.linspace(-1.0, 1.0, 12, dtype=torch.float64)
    problem = Table(cost, cost[None], noise=0.01, thresholds=0.3)
    both = {"reward": gp, "costs": gp, "explore": cb.UCB(1.0)}
    trials = 2 if isinstance(own, list) else None
    policy = cb.CKB(
        problem.actions, step=0.5, cap=4.0, thresholds=own, trials=trials, **both
    )
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        simulate(policy, problem, 2)
    assert len(seen) == odd
    if odd:
        assert "by the problem's, [0.3]" in str(seen[0].message)
        assert seen[0].filename == __file__


def test_thresholds_of_ones_own_problem_are_looked_at_before_a_round():
    problem = table()
    problem.thresholds = [0.1, 0.2, 0.3]
    policy = ckb(problem)
    with pytest.raises(cb.CBanditError, match=r"problem.thresholds must have shape"):
        simulate(policy, problem, 2)
    assert policy.t == 0


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"progress": [1]}, r"progress must be True or False; got \[1\]"),
        ({"horizon": 10**30}, r"horizon = 1000.* GB for their account"),
        ({"checkpoint": "a\0b"}, r"checkpoint must be a path without a null byte"),
        ({"callback": 3}, r"callback must be a callable.*got 3"),
        ({"checkpoint": 3}, r"checkpoint must be a path; got 3"),
        ({"checkpoint_every": "x"}, r"checkpoint_every must be a number; got 'x'"),
        ({"checkpoint_every": -1.0}, r"checkpoint_every must be .* at least 0"),
        ({"checkpoint_every": float("nan")}, r"checkpoint_every must be finite"),
    ],
)
def test_what_cannot_be_is_told_before_a_round(more, words):
    problem = table()
    policy = Uniform(problem)
    with pytest.raises(CBanditError, match=words):
        simulate(policy, problem, **({"horizon": 4} | more))
    assert policy.t == 0


@pytest.mark.parametrize("trials", [None, 2])
@pytest.mark.parametrize(
    "name", ["reward", "costs", "optimum", "stochastic_optimum", "observe"]
)
def test_truths_of_ones_own_problem_of_other_shapes(name, trials):
    problem = Timeless(table(trials, 2))
    policy = Uniform(problem, trials=trials, m=2)
    kept = getattr(problem, name)
    bad = torch.zeros(*policy.batch_shape, 5)
    setattr(problem, name, lambda *given: bad)
    with pytest.raises(CBanditError, match=rf"^problem.{name} must"):
        simulate(policy, problem, 3)
    setattr(problem, name, kept)
    observe = problem.observe
    problem.observe = lambda *given: [v.requires_grad_() for v in observe(*given)]
    assert simulate(Uniform(problem, trials=trials, m=2), problem, 3).rounds == 3


def test_figures_of_what_cannot_be():
    pytest.importorskip("matplotlib")
    problem = table()
    run = simulate(Uniform(problem), problem, 4)
    for options, words in [
        (
            {"metrics": "regret"},
            r"metrics must be a list of some of regret, ",
        ),
        ({"metrics": RBFKernel()}, "metrics must be a list"),
        ({"metrics": [["regret"]]}, "metrics must be a list"),
        ({"metrics": []}, "metrics must be a list"),
        ({"spread": ["sem"]}, "spread must be 'sem' or 'std'"),
        ({"average": 1}, "average must be True or False; got 1"),
        ({"log": "x"}, "log must be True or False"),
        ({"width": "x"}, "width must be a number"),
        ({"title": 3}, "title must be a str or None; got 3"),
        ({"until": 0}, "until must be an int of at least 1"),
        ({"marks": [1.5]}, "marks must be an int of at least 1"),
    ]:
        with pytest.raises(CBanditError, match=words):
            run.plot(**options)
    with pytest.raises(CBanditError, match=r"runs must be a list of cb.Run; got 3"):
        cb.plots.overview(3)
    with pytest.raises(CBanditError, match=r"runs must be a list of cb.Run"):
        cb.plots.curves([3])
    with pytest.raises(CBanditError, match=r"name must be a metric"):
        run.curve(torch.zeros(2))


def test_a_policy_of_other_costs_is_not_asked():
    problem = table(m=2)
    policy = Uniform(problem, m=3)
    with pytest.raises(CBanditError, match="the policy has 3, the problem 2"):
        simulate(policy, problem, 4)
    assert policy.t == 0


def test_where_runs_lie_and_how_many_points_a_curve_has(tmp_path):
    problem = table()
    run = simulate(Uniform(problem), problem, 50)
    for call in (lambda: run.save(None), lambda: Run.load(3)):
        with pytest.raises(CBanditError, match="directory must be a path"):
            call()
    for points in (0, 1, -1, 1.5, "x"):
        with pytest.raises(CBanditError, match="points must be an int of at least 2"):
            run.curve("regret", points=points)
    assert run.thinned(2).tolist() == [1, 50]
    for points in range(2, 60):
        kept = run.thinned(points).tolist()
        assert len(kept) <= points
        assert {1, 50} <= set(kept)


def test_a_horizon_that_will_pass_is_told_before_a_round(tmp_path):
    problem, path = table(), tmp_path / "a.ckpt"
    gp = cb.GP(RBFKernel().double(), noise=0.1)

    def make():
        both = {"reward": gp, "costs": gp, "explore": cb.UCB(1.0)}
        return cb.CKB(problem.actions, step=0.5, cap=4.0, horizon=8, **both)

    policy = make()
    with pytest.raises(HorizonError, match="own is 8 rounds; got 9 to play"):
        simulate(policy, problem, 9)
    assert policy.t == 0
    assert simulate(policy, problem, 5, path).rounds == 5
    with pytest.raises(HorizonError, match="got 4 to play after its 5 so far"):
        simulate(policy, problem, 4)
    assert policy.t == 5
    # a callback may stop it before
    stops = simulate(make(), problem, 9, callback=lambda played: played.t == 6)
    assert stops.rounds == 6
    # of a run that goes on only the rest is to play
    assert simulate(make(), problem, 8, path).rounds == 8


def test_one_delay_for_each_of_two_trials_is_no_pair():
    two = torch.tensor([2.0, 5.0])
    with pytest.raises(CBanditError, match=r"delays must be a pair \(reward, cost\)"):
        delays_of(two, (2,))
    for pair in ((two, two), {"reward": two, "cost": two}, torch.stack([two, two])):
        reward, cost = delays_of(pair, (2,))
        assert reward.tolist() == cost.tolist() == [2.0, 5.0]
    assert [v.tolist() for v in delays_of((2, 5), (2,))] == [[2.0, 2.0], [5.0, 5.0]]
    assert [v.item() for v in delays_of(two, ())] == [2.0, 5.0]
