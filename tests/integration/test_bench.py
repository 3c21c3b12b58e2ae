"""Every benchmark runs at toy size, and its checks can fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module

import pytest
import torch
from places import ROOT

import cbandit as cb
from benchmarks.common import before_after, report
from benchmarks.common import case as cases
from benchmarks.quality import (
    evaluate,
    guarantees,
    intervals,
    outcomes,
    outcomes_share,
    peers,
    polytopes,
    receipt,
    successors,
)
from benchmarks.speed import (
    contention,
    contexts,
    feedback,
    linear,
    lp,
    scale,
    thompson,
    trials,
)
from benchmarks.speed import round as rounds

F64 = torch.float64
SCRIPTS = ROOT / "benchmarks"

# The sizes of each script with rows; those of a test file of their own have none here.
TOY = {
    "speed.box": None,
    "speed.climbs": None,
    "speed.contention": contention.Sizes(
        200, 1_000, 10, distinct=6, fits=6, first=4, turns=1, rounds=1
    ),
    "speed.contexts": contexts.Sizes(rounds=24, many=8, many_rounds=12),
    "speed.feedback": feedback.Sizes(
        side=9, window=6, rounds=40, free=300, outstanding=5, warm=10, timed=4
    ),
    "speed.gpu": None,
    "speed.linear": linear.Sizes(rounds=300, hand=200, part=50),
    "speed.lp": lp.Sizes(arms=300, each=60, instances=2, few=1, turns=1),
    "speed.round": rounds.Sizes(
        side=20,
        free=400,
        dim=3,
        distinct=12,
        many=(20,),
        rounds=1,
        turns=2,
        warm=1,
        draws=60,
        subset=200,
        chunks=(150,),
        batches=(1, 10),
        growth=(8, 16),
        repeats=3,
        memory=False,
        dtypes=(F64,),
    ),
    "speed.scale": scale.Sizes(3, 4, 200, 100, (2, 6), 3, 20, 200, 100),
    "speed.thompson": thompson.Sizes((300,), (12,), (2,), 4, 2, 2),
    "speed.trials": trials.Sizes(rounds=25, repeats=1, arms=20, trials=4),
    "quality.constrained_functions": None,
    "quality.evaluate": evaluate.QUICK,
    "quality.guarantees": guarantees.QUICK,
    "quality.intervals": intervals.Sizes(40, (6,)),
    "quality.outcomes": outcomes.Sizes(20, 500, 4, 1, 20, 10, 1, 4),
    "quality.outcomes_share": outcomes_share.Sizes(("gp 1 1 0.25",), 4, range(2)),
    "quality.peers": peers.Sizes(
        ("gp 2 1 0.1",), ("RPOL", "SCBO, trust region", "Optuna TPE"), 2, range(40, 41)
    ),
    "quality.polytopes": polytopes.QUICK,
    "quality.receipt": receipt.QUICK,
    "quality.successors": successors.QUICK,
}


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def failed(rows):
    return [check["name"] for row in rows for check in row["checks"] if not check["ok"]]


class TestScripts:
    def test_all_scripts_are_known_here(self):
        mains = {
            f"{path.parent.name}.{path.stem}"
            for path in SCRIPTS.glob("*/*.py")
            if "report_main(" in path.read_text()
        }
        assert mains == set(TOY)

    @pytest.mark.slow
    @pytest.mark.parametrize("name", [name for name, toy in TOY.items() if toy])
    def test_a_script_runs_whole_and_its_checks_hold(self, name):
        module = import_module(f"benchmarks.{name}")
        result = report.result_of(module.__file__, True, module.measure(TOY[name]))
        assert result["rows"]
        assert failed(result["rows"]) == []
        assert json.loads(json.dumps(result))["ok"]
        assert "checks of the answers: all hold" in report.table(result)

    def test_a_script_runs_by_its_path_without_being_installed(self, tmp_path):
        done = subprocess.run(
            [sys.executable, "benchmarks/speed/lp.py", "--help"],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([".", "kernels"])},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.startswith("usage: python benchmarks/speed/lp.py")
        assert "Goal: one cost" in done.stdout

    @pytest.mark.slow
    def test_the_figure_is_drawn_with_its_numbers(self, tmp_path):
        script = str(SCRIPTS / "quality" / "front.py")
        paths = os.pathsep.join([str(ROOT), str(ROOT / "kernels")])
        subprocess.run(
            [sys.executable, script, "--quick", "--out", str(tmp_path)],
            env={**os.environ, "PYTHONPATH": paths},
            check=True,
        )
        kept = json.loads((tmp_path / "front.json").read_text())
        assert list(kept["curves"]) == ["CKB", "RPOL", "GP-UCB, no limit"]
        assert (tmp_path / "front.png").stat().st_size > 1000


class TestReport:
    @staticmethod
    def measure(value):
        goal = report.row_of("any", "goal", 0.1, ratio=value, goal=("<=", 1.0))
        check = report.check_of("planted", value, 1)
        return [goal, report.row_of("any", "row", checks=[check])]

    def test_main_prints_and_writes(self, capsys, tmp_path):
        kept = tmp_path / "out.json"
        report.main("x/toy.py", "", self.measure, 0.5, 2.0, ["--json", str(kept)])
        text = capsys.readouterr().out
        assert "checks of the answers: all hold" in text
        assert "goals of speed: 1 of 1 reached" in text
        assert json.loads(kept.read_text())["bench"] == "toy"

    def test_a_failed_check_ends_with_one(self, capsys):
        with pytest.raises(SystemExit) as done:
            report.main("x/toy.py", "", self.measure, 0.5, 2.0, ["--quick"])
        assert done.value.code == 1
        text = capsys.readouterr().out
        assert "SOME FAILED" in text
        assert "goals of speed: 0 of 1 reached" in text

    def test_a_file_that_cannot_be_written_is_refused_first(self, capsys, tmp_path):
        for path in (tmp_path / "none" / "out.json", tmp_path):
            with pytest.raises(SystemExit) as refused:
                report.main("x/toy.py", "", None, 0.5, 2.0, ["--json", str(path)])
            assert refused.value.code == 2
            assert str(path) in capsys.readouterr().err
        assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
class TestRound:
    @pytest.mark.parametrize("engine", ["product", "factor", "stream"])
    def test_a_wrong_posterior_fails_its_check(self, engine):
        actions = cases.actions_of(engine, 400, 2)
        case = cases.case_of(actions, engine, F64, 12)
        case.round()
        first = next(iter(case.data.total))
        case.data.total[first] = case.data.total[first] + 1e-6  # it was told otherwise
        names = failed([{"checks": case.compare().checks}])
        assert names == ["largest difference of the mean"]

    def test_a_wrong_argmax_fails_its_check(self):
        actions = cases.actions_of("product", 400, 2)
        case = cases.case_of(actions, "product", F64, 60)
        for index, total in case.data.total.items():  # the others know better
            case.data.total[index] = -total
        assert "other argmax" in failed([{"checks": case.compare().checks}])

    @pytest.mark.parametrize("width", [1.0, 2.0, 3.5])
    def test_wrong_draws_fail_their_check(self, width):
        case = cases.Case(
            cases.actions_of("product", 400, 2),
            cases.rbf(0.2),
            "product",
            F64,
            12,
            length=0.2,
            **rounds.TELLING | {"explore": cb.TS(width)},
        )
        assert rounds.law_of(case, 200)["ok"] == (width == cases.BETA)

    def test_memory_is_that_of_the_rows(self):
        size, distinct = 50_000, 64
        taken, known = rounds.peak_of("factor", size, 3, F64, distinct)
        assert distinct <= known <= distinct + 3
        rows = known * size * 8
        assert 0.9 * rows <= taken <= 1.1 * rows + 64e6  # and blocks in passing


class TestTrials:
    def test_the_experiment_is_played_whole(self):
        sizes = trials.Sizes(arms=20, trials=4, horizon=40)
        *rows, loop = trials.experiment(sizes)
        assert [row["what"] for row in rows] == ["CKB-UCB", "CKB-Rand", "CKB-TS"]
        assert all(row["ratio"] == row["ms"] / loop["ms"] > 0 for row in rows)

    def test_a_loop_that_learns_wrongly_fails_its_check(self):
        arms = trials.Arms.make(20, 4, 25)
        _, chosen = trials.batched(arms, 25)
        arms.noise[10] += 1.0  # the other one hears of other outcomes
        _, other = trials.bare_batched(arms, 25)
        assert trials.parted("any", chosen, chosen)["ok"]
        assert not trials.parted("any", chosen, other)["ok"]


class TestProgramme:
    @pytest.mark.parametrize("costs", [1, 3])
    def test_a_worse_distribution_and_one_beyond_the_limits_fail(self, costs):
        generator = torch.Generator().manual_seed(3)
        u_r, u_c, tau = lp.instance("circle", 200, costs, 2, generator)
        best = cb.search.best_policy(u_r, u_c, tau)
        assert max(lp.certificate(u_r, u_c, tau, best)) <= lp.CERTIFIED
        worse = cb.search.best_policy(u_r, u_c, 0.9 * tau)
        assert lp.certificate(u_r, u_c, tau, worse)[0] > 1e-6
        beyond = cb.search.best_policy(u_r, u_c, 1.1 * tau)
        assert lp.certificate(u_r, u_c, tau, beyond)[1] > 1e-6


def test_feedback_that_counts_too_long_fails_its_check():
    axis = torch.linspace(0, 6, 9, dtype=F64)
    kernel, at = cases.matern(1.0), torch.arange(0, 81, 7)
    policy = feedback.policy_of(cb.ProductGrid([axis, axis]), kernel, cb.Sliding(7))
    generator, x, y = torch.Generator().manual_seed(0), [], []
    for _ in range(20):
        choice = policy.ask()
        seen = feedback.noisy(choice.x, generator)
        policy.tell(choice, reward=seen[0], cost=seen[1])
        x.append(choice.x)
        y.append(torch.tensor(seen, dtype=F64))
    for window in (6, 7):
        told = torch.stack(x[-window:]), torch.stack(y[-window:])
        check = feedback.error(policy, kernel, *told, at)
        assert check["ok"] == (window == 7)


def test_what_is_busy_beside_a_round_ends_with_it(monkeypatch):
    began, real = [], subprocess.Popen
    monkeypatch.setattr(
        subprocess, "Popen", lambda *a, **b: began.append(real(*a, **b)) or began[-1]
    )
    with pytest.raises(KeyboardInterrupt), contention.busy(2):
        assert [process.poll() for process in began] == [None, None]
        raise KeyboardInterrupt
    assert all(process.poll() is not None for process in began)


def test_another_inflation_loses_to_the_hand_written_loop():
    world = linear.World(200)
    for more, same in (({}, True), ({"alpha": 3}, False)):
        went, _ = linear.play(world, linear.policy_of(world, **more), 200)
        assert (linear.by_hand(world, went)[0] <= 1e-9) == same


class TestPeers:
    def stated(self):
        f = torch.tensor([[0.0, 1.0, 2.0, 5.0]], dtype=F64)
        g = torch.tensor([[[-1.0, -1.0, 1.0, 3.0]]], dtype=F64)
        x = torch.arange(4.0, dtype=F64).unsqueeze(-1)
        world = cb.problems.Table(
            f, g, 0.0, 0.0, actions=cb.Finite(x), trials=1, thresholds=torch.zeros(1, 1)
        )
        one = torch.ones(1, dtype=F64)
        return peers.Stated("toy", world, 0.5, 2 * one, 4 * one.unsqueeze(-1))

    def test_the_account_by_hand(self):
        first, played, named = [0, 0, 0, 0], [2, 3, 1], [3]
        f, g = peers.truth(self.stated(), 0, torch.tensor(first + played + named))
        assert peers.account(self.stated(), 0, f, g) == pytest.approx(
            {
                "tried": 0.0,  # action 1 is the best feasible one
                "named": 0.5,  # action 3 is not feasible: the worst, 1 / 2 below
                "named feasible": 0.0,
                "regret": (1 - 8 / 3) / 2,
                "hard": 4 / 3 / 4,
                "soft": 3 / 3 / 4,
                "in violation": 2 / 3,
            }
        )

    def test_better_and_worse_are_counted(self):
        good = dict.fromkeys(("tried", "named", "hard"), 0.0) | {"seconds": 1.0}
        bad = dict.fromkeys(("tried", "named", "hard"), 1.0) | {"seconds": 5.0}
        rows = [
            {"name": "toy", "what": title, "runs": [runs, runs]}
            for title, runs in (("RPOL", bad), ("BoTorch qLogNEI", good))
        ]
        line = next(r for r in peers.compared(rows) if r["what"] == "RPOL")
        assert (line["tried"], line["named"], line["hard"]) == (0, 0, 0)
        assert "0.2 x as fast" in line["columns"]
        rows[0]["runs"], rows[1]["runs"] = rows[1]["runs"], rows[0]["runs"]
        line = next(r for r in peers.compared(rows) if r["what"] == "RPOL")
        assert (line["tried"], line["named"], line["hard"]) == (1, 1, 1)


class TestBeforeAfter:
    def test_the_interval_of_fifteen_leaves_out_three_at_either_end(self):
        assert before_after.interval(range(1, 16)) == (8, 4, 12)
        assert before_after.interval([3.0, 1.0, 2.0]) == (2.0, 1.0, 3.0)

    @pytest.mark.parametrize(
        ("slower", "ok"), [(1.0, True), (1.02, True), (1.1, False)]
    )
    def test_a_slower_side_is_named(self, slower, ok):
        order = []

        def run(script, side):
            order.append(side)
            times = slower if side == "after" else 1.0
            return before_after.Played({"a": 2.0 * times, "b": 3.0 * times}, [])

        found = before_after.compare("any", 4, run)
        assert found["ok"] is ok
        assert found["median"] == pytest.approx(slower)
        assert order[:4] == ["before", "after", "after", "before"]
        assert ("SLOWER" in before_after.text_of(found)) is not ok

    def test_a_failed_check_fails_it(self):
        def run(script, side):
            return before_after.Played({"a": 1.0}, ["wrong"] * (side == "before"))

        found = before_after.compare("any", 2, run)
        assert not found["ok"]
        assert "before: wrong" in before_after.text_of(found)

    @pytest.mark.slow
    def test_a_checkout_is_played_in_a_process_of_its_own(self):
        run = before_after.child("trials", ROOT)
        assert run.failed == []
        assert len(run.ms) == 2


def test_problems_of_successors_are_as_their_papers_say():
    problem = successors.roful_problem(40, 0.05, 0.25)
    tau = problem.thresholds
    assert bool(((tau >= 0.05) & (tau <= 0.25)).all())
    assert bool((problem.optimum(1) > 0).all())
    f, safe = successors.kernel_functions(successors.QUICK)
    at = f.gather(-1, safe.unsqueeze(-1)).squeeze(-1)
    assert bool((at > 2 * successors.E).all())
    # an average less a fifth of a deviation has become 0
    torch.testing.assert_close(f.mean(-1), 0.2 * f.std(-1))


class TestGuarantees:
    def test_a_rate_above_its_claim_fails(self):
        failed = torch.arange(300) < 52
        one = guarantees.row("s", "w", failed, 0.1)
        assert (one["seen"], one["runs"], one["stated"]) == (52, 300, 0.1)
        # 52 of 300 and more under a rate of 0.1: 6e-5 (a binomial's tail)
        assert not one["checks"][0]["ok"]
        assert guarantees.row("s", "w", torch.arange(300) < 40, 0.1)["checks"][0]["ok"]
        assert guarantees.row("s", "w", failed, None)["checks"] == []
        # 0 of 300: (1 - p)^300 = 0.05
        none = guarantees.row("s", "w", torch.zeros(300), 0.1)
        assert none["most"] == pytest.approx(1 - 0.05 ** (1 / 300), rel=1e-9)

    def test_bands_of_the_heuristic_are_left(self):
        case = guarantees.Case(0.01, 0.2, 1, form="small-lam")
        assert guarantees.left(case, guarantees.QUICK, 0).sum() >= 6
