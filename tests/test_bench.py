"""The benchmarks run at toy size, and their checks can fail."""

from __future__ import annotations

import json
import sys

import pytest
import torch
from inside import TS, Beliefs, feedback, linear, peers, report, trials
from inside import case as cases
from inside import round as rounds

TOY = rounds._Sizes(
    side=20,
    free=400,
    dim=3,
    distinct=12,
    many=20,
    rounds=2,
    warm=1,
    subset=200,
    chunks=(150,),
    batches=(1, 10),
    growth=(8, 16),
    repeats=3,
    memory=False,
    dtypes=(torch.float64,),
)


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def toy_round():
    return rounds._round(TOY)


def _failed(result):
    return [
        check for row in result["rows"] for check in row["checks"] if not check["ok"]
    ]


class TestRound:
    def test_every_check_holds_and_the_result_is_json(self, toy_round):
        assert _failed(toy_round) == []
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
        rows, _ = rounds._grid(TOY, torch.float32)
        assert all(check["ok"] for row in rows for check in row["checks"])
        assert 0 < rows[0]["checks"][0]["value"] < 1e-3

    def test_rows_of_own_timings_carry_checks(self, toy_round):
        own = [row for row in toy_round["rows"] if row["what"].startswith("cbandit")]
        assert own
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
        case = cases.case_of(actions, engine, torch.float64, 12)
        case.round()
        case.policy.posterior()  # settled: nothing rewrites the planted error
        case.policy._beliefs.groups[0].engine.mean[0, 0, 37] += 1e-6
        checks = case.compare(torch.float64)["checks"]
        assert [check["name"] for check in checks if not check["ok"]] == [
            "largest difference of the mean"
        ]

    def test_a_wrong_argmax_fails_its_check(self):
        actions = cases.actions_of("product", 400, 2)
        case = cases.case_of(actions, "product", torch.float64, 12)
        case.data.total[next(iter(case.data.total))] += 1.0  # the others know better
        assert not all(check["ok"] for check in case.compare(torch.float64)["checks"])

    def test_wrong_draws_fail_their_check(self, monkeypatch):
        actions = cases.actions_of("product", 400, 2)
        case = cases.case_of(actions, "product", torch.float64, 12, explore=TS(2.0))
        assert rounds._law(case, 60)["ok"]
        blocks = Beliefs.blocks

        def wider(*args):
            for block in blocks(*args):
                block.draw = 1.5 * block.draw
                yield block

        monkeypatch.setattr(Beliefs, "blocks", wider)
        assert not rounds._law(case, 60)["ok"]

    def test_a_failed_check_shows(self, toy_round):
        rows = [dict(row) for row in toy_round["rows"]]
        rows[0]["checks"] = [report.check_of("planted", 1.0, 0.5)]
        result = report.result_of("round", False, rows)
        assert result["ok"] is False
        assert "FAILED" in report.table(result)

    def test_memory_is_that_of_the_rows(self):
        size, distinct = 50_000, 64
        taken, known = rounds._peak("factor", size, 3, torch.float64, distinct)
        assert distinct <= known <= distinct + 3
        rows = known * size * 8
        assert 0.9 * rows <= taken <= 1.1 * rows + 64e6  # and blocks in passing


class TestTrials:
    def test_all_ways_choose_the_same_arms(self):
        result = trials._trials(rounds=25, repeats=1, arms=20, trials=4)
        assert _failed(result) == []
        json.dumps(result)
        assert "one single trial" in report.table(result)

    def test_a_loop_that_learns_wrongly_fails_its_check(self, monkeypatch):
        honest = trials._bare_single

        def other(*args):
            seconds, chosen = honest(*args)
            return seconds, (chosen + (torch.arange(len(chosen)) > 20).unsqueeze(-1))

        monkeypatch.setattr(trials, "_bare_single", other)
        result = trials._trials(rounds=25, repeats=1, arms=20, trials=4)
        assert result["ok"] is False

    def test_multipliers_move_in_it(self):
        arms = trials._Arms.make(20, 3, 60)
        policy, every = arms.policy(3), torch.arange(3)
        for t in range(60):
            choice = policy.ask()
            y = arms.values[every, :, choice.index] + arms.noise[t]
            policy.tell(choice, reward=y[:, 0], cost=y[:, 1])
        assert bool((policy.multiplier > 0).any())


class TestFeedback:
    SIZES = feedback._Sizes(
        side=9, window=6, rounds=40, free=300, outstanding=5, warm=10, timed=4
    )

    def test_windows_and_delays_are_what_dense_solves_say(self):
        result = feedback._feedback(self.SIZES)
        errors = [
            check
            for row in result["rows"]
            for check in row["checks"]
            if check["name"].startswith("error")
        ]
        assert len(errors) == 4
        assert all(check["ok"] for check in errors)
        json.dumps(result)
        assert "5 choices outstanding" in feedback.table(result)

    def test_feedback_that_counts_too_long_fails_its_check(self, monkeypatch):
        honest = feedback.cb.Sliding
        monkeypatch.setattr(feedback.cb, "Sliding", lambda window: honest(window + 1))
        kernel = feedback._matern(1.0)
        rows = feedback._sliding(self.SIZES, kernel, "Matern")
        checks = [check for row in rows for check in row["checks"]]
        assert not next(c for c in checks if c["name"].startswith("error"))["ok"]


class TestLinear:
    SIZES = linear._Sizes(rounds=300, hand=200, part=50)

    def test_the_policy_is_what_the_paper_says_written_down(self):
        result = linear._linear(self.SIZES)
        assert _failed(result) == []
        checks = [check for row in result["rows"] for check in row["checks"]]
        assert len(checks) == 4
        json.dumps(result)
        assert "d = 10, 10 rays, 300 rounds" in linear.table(result)

    def test_another_inflation_fails_its_check(self, monkeypatch):
        honest = linear.cb.LCLUCB
        monkeypatch.setattr(
            linear.cb, "LCLUCB", lambda *args, **kw: honest(*args, alpha=3, **kw)
        )
        rows = linear._linear(self.SIZES)["rows"]
        (failed,) = _failed({"rows": rows})
        assert failed["name"] == "value or way lost"


class TestPeers:
    def test_every_peer_sees_the_same_and_the_score_chooses_alike(self):
        rows = peers._section(600, 12, 1)
        assert _failed({"rows": rows}) == []
        names = " | ".join(row["what"] for row in rows)
        for wanted in ("by hand", "qLogExpectedImprovement", "qUpperConfidenceBound"):
            assert wanted in names
        chosen = [c for row in rows for c in row["checks"] if "choice" in c["name"]]
        assert len(chosen) >= 2
        json.dumps(rows)

    def test_a_peer_that_is_absent_is_one_line(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "sklearn.gaussian_process", None)
        rows = peers._section(600, 12, 1)
        absent = next(row for row in rows if row["what"].startswith("scikit-learn"))
        assert absent["ms"] is None
        assert "left out: no sklearn" in absent["note"]

    def test_a_wrong_posterior_fails_its_check(self):
        case = cases.case_of(
            cases.actions_of("factor", 400, 6), "auto", torch.float64, 12
        )
        dense = case.dense()
        dense.alpha[0] += 1e-6

        def look(points):
            mean, var = dense.posterior(points, "triangular")
            return mean, var.sqrt()

        wrong = peers._checked(case, lambda: look)
        assert [each["ok"] for each in wrong] == [False, True]
