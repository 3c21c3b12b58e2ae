"""A run's checkpoint: it goes on bit for bit, and only with what it was begun with."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import textwrap
import time

import pytest
import torch
from gpytorch.kernels import RBFKernel
from inside import differences, read, reproduced, settings_of, simulate
from places import COMMON
from worlds import Plain, Uniform, ckb, same, stop_after, table

import cbandit as cb
from cbandit.problems import Table


def shifted(share):
    """:func:`worlds.table`, its costs multiplied by ``1 + share``."""
    return Table(table().f, table().g * (1 + share), 0.1)


class Large(Uniform):
    """A policy whose arrays are computed anew after a checkpoint, by its own clock."""

    clock, writes, lightened = 0.0, [], False

    def ask(self, **question):
        Large.clock += 51.0 if self.lightened else 1.0
        self.lightened = False
        return super().ask(**question)

    def lighten(self):
        self.lightened = True
        Large.writes.append(self.t)


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
        with pytest.raises(cb.CheckpointError, match="300 rounds"):
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
            with pytest.raises(cb.CheckpointError, match="kept"):
                simulate(policy, problem, 20, path)
            assert path.read_bytes() == content
            assert policy.t == 0

    def test_another_runs_file_is_refused(self, tmp_path):
        problem, path = table(), tmp_path / "a.ckpt"
        simulate(Uniform(problem), problem, 20, path)
        before = path.read_bytes()
        with pytest.raises(cb.CheckpointError, match="another run: its seed is 0"):
            simulate(Uniform(problem, seed=1), problem, 20, path)
        other = table(size=21)
        with pytest.raises(cb.CheckpointError, match="its actions"):
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
        with pytest.raises(cb.CheckpointError) as error:
            simulate(policy, problem, 40, path)
        for word in ("another run", "delete the file", *words):
            assert word in str(error.value)
        assert path.read_bytes() == before
        assert policy.t == 0
        assert torch.equal(policy.ask().x, ckb(problem, **changed).ask().x)
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
        with pytest.raises(cb.CheckpointError) as error:
            simulate(ckb(other()), other(), 40, path)
        for word in ("another run", "delete the file", *words):
            assert word in str(error.value)
        # what was computed on another machine differs in its last digits
        again = shifted(1e-15)
        assert simulate(ckb(again), again, 40, path).rounds == 40

    def test_settings_of_a_users_own_policy_and_problem(self, tmp_path):
        path = tmp_path / "a.ckpt"
        simulate(Uniform(Plain(), mixed=False), Plain(), 20, path)
        with pytest.raises(cb.CheckpointError, match=r"mixed is False, expected T"):
            simulate(Uniform(Plain(), mixed=True), Plain(), 40, path)
        with pytest.raises(cb.CheckpointError, match=r"problem\.m is 1, expected 2"):
            simulate(Uniform(Plain()), Plain(m=2), 40, path)
        assert simulate(Uniform(Plain()), Plain(), 40, path).rounds == 40

    def test_a_policy_built_on_a_problem_that_has_been_played(self):
        class Mine(cb.SCGPUCB):
            def __init__(self, problem, beta=1.0):
                gp = cb.GP(RBFKernel(), noise=0.01)
                more = {"explore": cb.UCB(beta), "slater": 0.5, "clip": 1.0}
                super().__init__(problem.actions, reward=gp, costs=1, **more)
                self.problem = problem

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
        settings = read(path, "simulation", dict)["settings"]
        assert len(pickle.dumps(settings)) < 10_000
        assert "engine': 'auto'" in str(settings)  # as given, not as kept current

    def test_a_run_that_another_process_plays_too(self, tmp_path):
        """Whoever writes second is told, and the other's rounds stay."""
        problem, path = table(), tmp_path / "a.ckpt"
        for begun in (0, 20):
            if begun:
                simulate(Uniform(problem), problem, begun, path)

            def other(played):
                if played.t == 40:
                    simulate(Uniform(problem), problem, 60, path)

            with pytest.raises(cb.CheckpointError) as error:
                simulate(Uniform(problem), problem, 80, path, callback=other)
            for words in (str(path), "kept", "one process at a time"):
                assert words in str(error.value)
            kept = simulate(Uniform(problem), problem, 60, path, callback=pytest.fail)
            assert kept.rounds == 60
            run = simulate(Uniform(problem), problem, 80, path)
            assert same(run, simulate(Uniform(problem), problem, 80))
            path.unlink()

    def test_a_folder_in_the_way(self, tmp_path):
        with pytest.raises(cb.CheckpointError, match="cannot read"):
            simulate(Uniform(table()), table(), 20, tmp_path)

    def test_a_failed_write_leaves_the_old_file(self, tmp_path, monkeypatch):
        problem, path = table(), tmp_path / "a.ckpt"
        simulate(Uniform(problem), problem, 20, path)
        before = path.read_bytes()

        def full(*args):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(cb.CBanditError, match="cannot be written: No space"):
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

    def test_what_a_write_costs_afterwards_counts_too(self, tmp_path, monkeypatch):
        """Rounds take 1 s each, but 50 s more where arrays are computed anew."""
        loop = sys.modules["cbandit.simulation.loop"]
        monkeypatch.setattr(loop, "monotonic", lambda: Large.clock)
        monkeypatch.setattr(loop, "perf_counter", lambda: Large.clock)
        monkeypatch.setattr(Large, "clock", 0.0)
        monkeypatch.setattr(Large, "writes", writes := [])
        path, given = tmp_path / "a.ckpt", {"checkpoint_every": 10.0}
        simulate(Large(Plain(2), trials=2), Plain(2), 1000, path, **given)
        # the first after 11 rounds, then after nine times 51 s, and the last at the end
        assert writes[:3] == [11, 11 + 410, 11 + 2 * 410]
        assert writes[3:] == [1000]

    @pytest.mark.slow
    def test_kill_9_at_any_moment(self, tmp_path):
        """Killed again and again, mostly while writing, it still ends as it should."""
        path = tmp_path / "a.ckpt"
        script = textwrap.dedent(f"""
            import sys
            sys.path.insert(0, {str(COMMON)!r})
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


def test_a_folder_without_its_settings_says_which_file_is_missing(tmp_path):
    (tmp_path / "runs").mkdir()
    with pytest.raises(cb.CBanditError, match=r"put back its config\.toml"):
        reproduced(tmp_path, "zhou-synthetic", resume=True, trials=1, horizon=5)
