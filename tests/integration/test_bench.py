"""The benchmarks run at toy size, and their checks can fail."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import ablation
import before_after
import box_rivals
import case as cases
import cbandit as cb
import constrained_functions
import contention
import contexts
import defaults
import feedback
import guarantees
import linear
import lp
import one_round
import peers
import report
import round as rounds
import streams
import successors
import trials

SCRIPTS = Path(report.__file__).parent
NAMES = (
    "evaluate",
    "receipt",
    "round",
    "scale",
    "trials",
    "box",
    "climbs",
    "thompson",
    "lp",
    "linear",
    "feedback",
    "one_round",
    "gpu",
    "constrained_functions",
    "ablation",
    "defaults",
    "learning",
    "guarantees",
    "never_pulled",
    "successors",
    "intervals",
    "contention",
    "peers",
    "wild_readings",
    "outcomes",
    "outcomes_share",
    "contexts",
    "streams",
    "outcomes_failures",
    "outcomes_nuts",
    "studies",
)
F64 = torch.float64

TOY = rounds.Sizes(
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
)


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def toy_round():
    return report.result_of("round", False, rounds.measure(TOY))


def failed(rows):
    return [check for row in rows for check in row["checks"] if not check["ok"]]


class TestScripts:
    def test_all_scripts_are_known_here(self):
        mains = {
            path.stem
            for path in SCRIPTS.glob("*.py")
            if "report_main(" in path.read_text()
        }
        assert mains == set(NAMES)

    @pytest.mark.parametrize("name", NAMES)
    def test_a_file_that_cannot_be_written_is_refused_first(
        self, capsys, tmp_path, name
    ):
        main = __import__(name).main
        for path in (tmp_path / "none" / "out.json", tmp_path):
            with pytest.raises(SystemExit) as refused:
                main(["--quick", "--json", str(path)])
            assert refused.value.code == 2
            assert str(path) in capsys.readouterr().err
        assert list(tmp_path.iterdir()) == []

    def test_a_script_runs_uninstalled_and_says_what_it_claims(self):
        done = subprocess.run(
            [sys.executable, str(SCRIPTS / "lp.py"), "--help"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert "Goal: one cost" in done.stdout
        assert "--json FILE" in done.stdout

    def test_main_prints_writes_and_fails_with_its_checks(self, capsys, tmp_path):
        def measure(value):
            return [
                report.row_of("any", "row", checks=[report.check_of("c", value, 1)])
            ]

        kept = tmp_path / "out.json"
        report.main("x/toy.py", "", measure, 0.5, 2.0, ["--json", str(kept)])
        assert "checks of the answers: all hold" in capsys.readouterr().out
        assert json.loads(kept.read_text())["bench"] == "toy"
        with pytest.raises(SystemExit) as done:
            report.main("x/toy.py", "", measure, 0.5, 2.0, ["--quick"])
        assert done.value.code == 1
        assert "SOME FAILED" in capsys.readouterr().out


class TestAblation:
    def test_all_parts_are_what_nobody_sets(self):
        """The last variant plays what ``cb.TS()`` and ``cb.GP.default`` play."""
        sizes = ablation.Sizes(("Gramacy",), (0,), 7, 7)
        problem = constrained_functions.PROBLEMS["Gramacy"]("Gramacy")
        x, usual = problem.start(0), box_rivals.RULES["RPOL-TS"](problem, 0)
        parts = ablation.VARIANTS["all, cb.GP.default"]
        ours = ablation.Ablated(parts, problem, 0)
        for _ in range(2):
            for player in (usual, ours):
                player.hear(x, problem.values(x))
            x = usual.next().unsqueeze(0)
            assert torch.equal(x[0], ours.next())
        rows = ablation.measure(sizes)
        assert [row["what"] for row in rows] == list(ablation.VARIANTS)
        assert all("nothing feasible 0" in row["columns"] for row in rows)


class TestDefaults:
    def test_candidates_and_what_is_reported(self):
        sizes = defaults.Sizes(("gp 1 1 0.25",), 5, range(2), range(2, 4))
        rows = defaults.measure(sizes)
        names = [row["what"] for row in rows]
        assert names[: len(defaults.CKB)] == list(defaults.CKB)
        assert names[-2:] == ["gp 1 1 0.25, 25.0% feasible", "all of 10% and more"]
        assert all(0 <= each["kept"] <= 1 for each in rows[0]["problems"])
        table = report.table(report.result_of("defaults", False, rows))
        assert "CONFIG-TS" in table
        assert "kept" in table

    def test_the_usual_is_what_ckb_does_with_nothing_set(self):
        stated = defaults.found("gp 2 2 0.25", range(2))
        assert stated.feasible == pytest.approx(0.25, abs=0.01)
        belief = defaults.known(stated)
        runs = [
            defaults.played(stated, make, belief, 8)[0]
            for make in (cb.CKB, defaults.ckb(**defaults.USUAL))
        ]
        assert torch.equal(runs[0].actions, runs[1].actions)
        assert torch.equal(runs[0].multipliers, runs[1].multipliers)


@pytest.mark.slow
@pytest.mark.xdist_group("toy round")
class TestRound:
    def test_every_check_holds_and_the_result_is_json(self, toy_round):
        assert failed(toy_round["rows"]) == []
        assert toy_round["ok"] is True
        assert json.loads(json.dumps(toy_round)) == toy_round
        assert toy_round["machine"]["torch"] == torch.__version__

    def test_every_comparison_of_the_design_is_there(self, toy_round):
        names = " | ".join(row["what"] for row in toy_round["rows"])
        for wanted in (
            "cbandit, product",
            "cbandit, factor",
            "cbandit, stream",
            "Cholesky by hand",
            "BoTorch",
            "CKB-TS, RBF",
            "CKB-TS, Matern-1/2",
            "t = 36",
        ):
            assert wanted in names

    def test_times_are_positive_and_ratios_follow_from_them(self, toy_round):
        rows = [
            row for row in toy_round["rows"] if row["section"].startswith("a CKB-UCB")
        ]
        ours = next(row for row in rows if row["what"] == "cbandit, product")
        peer = next(row for row in rows if row["what"].startswith("BoTorch"))
        assert ours["ms"] > 0
        assert peer["ratio"] == pytest.approx(peer["ms"] / ours["ms"])

    def test_float32_is_checked_too(self):
        rows = rounds.grid(TOY, torch.float32)
        assert failed(rows) == []
        assert 0 < rows[0]["checks"][0]["value"] < 1e-3

    def test_rows_of_own_timings_carry_checks(self, toy_round):
        own = [row for row in toy_round["rows"] if row["ours"]]
        assert len(own) >= 10
        assert all(row["checks"] for row in own)

    def test_the_table_names_goals_and_checks(self, toy_round):
        text = report.table(toy_round)
        assert "goal >= 500 x" in text
        assert "checks of the answers: all hold" in text
        goals = [row for row in toy_round["rows"] if row["met"] is not None]
        met = sum(bool(row["met"]) for row in goals)
        assert f"goals of speed: {met} of {len(goals)} reached" in text
        assert text.count(": reached") == met
        assert text.count(": NOT REACHED") == len(goals) - met

    @pytest.mark.parametrize("engine", ["product", "factor", "stream"])
    def test_a_wrong_posterior_fails_its_check(self, engine):
        actions = cases.actions_of(engine, 400, 2)
        case = cases.case_of(actions, engine, F64, 12)
        case.round()
        first = next(iter(case.data.total))
        case.data.total[first] = case.data.total[first] + 1e-6  # it was told otherwise
        checks = case.compare().checks
        assert [check["name"] for check in checks if not check["ok"]] == [
            "largest difference of the mean"
        ]

    def test_a_wrong_argmax_fails_its_check(self):
        actions = cases.actions_of("product", 400, 2)
        case = cases.case_of(actions, "product", F64, 60)
        for index, total in case.data.total.items():  # the others know better
            case.data.total[index] = -total
        names = [check["name"] for check in failed([{"checks": case.compare().checks}])]
        assert "other argmax" in names

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

    def test_a_failed_check_shows(self, toy_round):
        rows = [dict(row) for row in toy_round["rows"]]
        rows[0]["checks"] = [report.check_of("planted", 1.0, 0.5)]
        result = report.result_of("round", False, rows)
        assert result["ok"] is False
        assert "FAILED" in report.table(result)

    def test_memory_is_that_of_the_rows(self):
        size, distinct = 50_000, 64
        taken, known = rounds.peak_of("factor", size, 3, F64, distinct)
        assert distinct <= known <= distinct + 3
        rows = known * size * 8
        assert 0.9 * rows <= taken <= 1.1 * rows + 64e6  # and blocks in passing


class TestTrials:
    SIZES = trials.Sizes(rounds=25, repeats=1, arms=20, trials=4)

    def test_all_ways_choose_the_same_arms(self):
        rows = trials.measure(self.SIZES)
        assert failed(rows) == []
        json.dumps(rows)
        assert "one single trial" in report.table(
            report.result_of("trials", True, rows)
        )

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

    def test_multipliers_move_in_it(self):
        arms = trials.Arms.make(20, 3, 60)
        policy, every = arms.policy(3), torch.arange(3)
        for t in range(60):
            choice = policy.ask()
            y = arms.values[every, :, choice.index] + arms.noise[t]
            policy.tell(choice, reward=y[:, 0], cost=y[:, 1])
        assert bool((policy.multiplier > 0).any())


class TestProgramme:
    @pytest.mark.slow
    def test_every_programme_is_certified(self):
        sizes = lp.Sizes(arms=300, each=60, instances=2, few=1, turns=1)
        rows = lp.measure(sizes)
        assert len(rows) == 12
        assert failed(rows) == []
        assert all(row["met"] is None for row in rows)  # the goal is of 10^6 arms

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


class TestFeedback:
    SIZES = feedback.Sizes(
        side=9, window=6, rounds=40, free=300, outstanding=5, warm=10, timed=4
    )

    def test_windows_and_delays_are_what_dense_solves_say(self):
        rows = feedback.measure(self.SIZES)
        errors = [
            check
            for row in rows
            for check in row["checks"]
            if check["name"].startswith("error")
        ]
        assert len(errors) == 4
        assert all(check["ok"] for check in errors)
        json.dumps(rows)
        text = report.table(report.result_of("feedback", True, rows))
        assert "5 choices outstanding" in text

    def test_feedback_that_counts_too_long_fails_its_check(self):
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


class TestContention:
    @pytest.mark.slow
    def test_every_engine_is_timed_alone_and_beside_others(self):
        small = {"grid": 200, "free": 1_000, "small": 10, "distinct": 6}
        small |= {"fits": 6, "first": 4}
        rows = contention.measure(contention.Sizes(**small, turns=1, rounds=1))
        assert failed(rows) == []
        none = [row["ratio"] is None for row in rows]
        assert none == [True, False] * 2 + [True, False, False] * 4
        assert all(row["ms"] > 0 for row in rows)

    def test_what_is_busy_beside_it_ends_with_it(self, monkeypatch):
        began, real = [], subprocess.Popen
        monkeypatch.setattr(
            subprocess,
            "Popen",
            lambda *a, **b: began.append(real(*a, **b)) or began[-1],
        )
        with pytest.raises(KeyboardInterrupt), contention.busy(2):
            assert [process.poll() for process in began] == [None, None]
            raise KeyboardInterrupt
        assert all(process.poll() is not None for process in began)


class TestLinear:
    SIZES = linear.Sizes(rounds=300, hand=200, part=50)

    def test_the_policy_is_what_the_paper_says_written_down(self):
        rows = linear.measure(self.SIZES)
        assert failed(rows) == []
        assert sum(len(row["checks"]) for row in rows) == 4
        json.dumps(rows)
        text = report.table(report.result_of("linear", True, rows))
        assert "d = 10, 10 rays, 300 rounds" in text

    def test_another_inflation_loses_to_the_hand_written_loop(self):
        world = linear.World(200)
        for more, same in (({}, True), ({"alpha": 3}, False)):
            went, _ = linear.play(world, linear.policy_of(world, **more), 200)
            assert (linear.by_hand(world, went)[0] <= 1e-9) == same


class TestContexts:
    def test_what_is_timed_is_checked(self):
        rows = contexts.measure(contexts.Sizes(rounds=24, many=8, many_rounds=12))
        assert failed(rows) == []
        assert sum(len(row["checks"]) for row in rows) == 2
        assert [row["what"] for row in rows if row["ours"]] == [
            "CKB",
            "CKB, fade=0.997",
            "RPOL",
            "CKB, float64",
            "CKB, float32",
        ]


class TestStreams:
    """Streams of contexts, and a tuner that knows the load."""

    def test_the_best_policy_spends_the_limit_and_no_other_gets_more(self):
        stream = streams.Stream.of(0)
        z = torch.randn(100_000, 5, generator=torch.Generator().manual_seed(7)).double()
        f, c = stream.values(z)
        at = (f - stream.price * c).argmax(-1, keepdim=True)
        assert float(c.gather(-1, at).mean()) == pytest.approx(1.0, abs=0.02)
        assert stream.price > 0
        # by hand, at one context
        z[0] = torch.arange(5.0)
        reward = stream.weights[0, 2, 0] + sum(
            n * stream.weights[0, 2, 1 + n] for n in range(5)
        )
        assert float(stream.values(z)[0][0, 2]) == pytest.approx(float(reward))
        # any other way to spend as much or less: a fixed choice, or two at random
        best = float(f.gather(-1, at).mean())
        mean = torch.stack([f.mean(0), c.mean(0)])
        for share in torch.linspace(0, 1, 11):
            for i in range(4):
                for j in range(4):
                    reward, cost = share * mean[:, i] + (1 - share) * mean[:, j]
                    assert cost > 1.0 or reward < best

    def test_a_toy_run_reports_growth_violation_and_both_tuners(self):
        sizes = streams.Sizes(rounds=150, trials=2, tuned=10, seeds=2)
        first, second, *_, last = streams.measure(sizes)
        assert "knows" in first["what"] and "ignores" in second["what"]
        marks = last["marks"]
        assert marks[-1][0] == 150
        priced = [mark[2] for mark in marks]
        assert priced == sorted(priced) and priced[0] >= 0


class TestOneRound:
    SIZES = one_round.Sizes(distinct=12, turns=1)

    def test_every_peer_sees_the_same_and_the_score_chooses_alike(self):
        rows = one_round.section(600, self.SIZES)
        assert failed(rows) == []
        names = " | ".join(row["what"] for row in rows)
        for wanted in ("by hand", "qLogExpectedImprovement", "qUpperConfidenceBound"):
            assert wanted in names
        chosen = [c for row in rows for c in row["checks"] if "choice" in c["name"]]
        assert len(chosen) >= 2
        json.dumps(rows)

    def test_a_peer_that_is_absent_is_one_line(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "sklearn.gaussian_process", None)
        rows = one_round.section(600, self.SIZES)
        absent = next(row for row in rows if row["what"].startswith("scikit-learn"))
        assert absent["ms"] is None
        assert "left out: no sklearn" in absent["note"]

    def test_a_wrong_posterior_fails_its_check(self):
        case = cases.case_of(cases.points_of(400, 6), "auto", F64, 12)
        dense = case.dense()
        dense.alpha[0] += 1e-6

        def look(points):
            mean, var = dense.posterior(points, "triangular")
            return mean, var.sqrt()

        wrong = one_round.checked(case, lambda: look)
        assert [each["ok"] for each in wrong] == [False, True]


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

    @pytest.mark.parametrize("title", ["RPOL", "SCBO, trust region", "Optuna TPE"])
    def test_contenders_find_the_best_of_four(self, title):
        got = peers.play(self.stated(), peers.RULES[title], 0, 6)
        assert got["tried"] == 0
        assert got["seconds"] > 0

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
    @pytest.mark.xdist_group("toy round")
    def test_only_the_library_s_own_rows_count(self, toy_round):
        run = before_after.Played.of(toy_round["rows"])
        assert not any("BoTorch" in name or "hand" in name for name in run.ms)
        assert len(run.ms) == sum(row["ours"] for row in toy_round["rows"])
        assert run.failed == []

    @pytest.mark.slow
    def test_a_checkout_is_played_in_a_process_of_its_own(self):
        run = before_after.child("trials", SCRIPTS.parent)
        assert run.failed == []
        assert len(run.ms) == 2


class TestSuccessors:
    @pytest.mark.slow
    def test_every_policy_is_printed_and_limits_are_kept(self, capsys):
        successors.main(["--quick"])
        text = capsys.readouterr().out
        assert "SOME FAILED" not in text
        for words in ("LC-LUCB", "ROFUL", "S-COLTS", "DOSS", "LoSBO", "RKHS tight"):
            assert words in text

    def test_problems_are_as_their_papers_say(self):
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
    @pytest.mark.slow
    def test_every_rate_is_printed_and_none_is_above_its_claim(self, capsys):
        guarantees.main(["--quick"])
        text = capsys.readouterr().out
        assert "SOME FAILED" not in text
        for words in (
            "any-lam (the default)",
            "sliding",
            "linear",
            "counts",
            "delayed",
            "LC-LUCB",
            "ROFUL",
            "S-COLTS",
            "OPLB",
            "LoSBO",
            "OPB, costs up to 100, Gaussian, stated range",
            "OPNLB, scale 50",
            "OPB's GP form",
            "SafeOpt",
            "StageOpt",
        ):
            assert words in text

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
