"""The benchmark of constrained functions: its problems, its traces, its figures."""

from __future__ import annotations

import json
import math

import pytest
import torch
from scipy.optimize import minimize

from benchmarks.common.box_rivals import RULES
from benchmarks.common.constrained_problems import PROBLEMS, Problem
from benchmarks.quality import constrained_functions as functions

F64 = torch.float64


def least_loss(problem: Problem, starts: int) -> float:
    """The least feasible loss that a local solver reaches from random points."""

    def loss(point):
        x = torch.tensor(point, requires_grad=True)
        value = -problem.values(x.unsqueeze(0))[0, 0]
        (slope,) = torch.autograd.grad(value, x)
        return value.item(), slope.numpy()

    def room(point):
        return -problem.values(torch.tensor(point).unsqueeze(0))[0, 1:].numpy()

    generator = torch.Generator().manual_seed(0)
    losses = []
    for _ in range(starts):
        start = torch.rand(problem.box.dim, generator=generator, dtype=F64)
        done = minimize(
            loss,
            start.numpy(),
            jac=True,
            method="SLSQP",
            bounds=[(0, 1)] * problem.box.dim,
            constraints=[{"type": "ineq", "fun": room}],
            options={"ftol": 1e-12},
        )
        if (room(done.x) >= -1e-7).all():
            losses.append(done.fun)
    return min(losses)


class TestProblems:
    @pytest.mark.parametrize("name", ["bowl 2", "bowl 4", "ripples 2", "ripples 5"])
    def test_a_local_solver_finds_the_optimum_that_was_planted(self, name):
        problem = PROBLEMS[name](name)
        gap = (least_loss(problem, 12) + problem.optimum) / problem.span
        assert abs(gap) < 1e-6

    @pytest.mark.parametrize("name", [n for n in PROBLEMS if n[-1].isdigit()])
    def test_no_feasible_point_is_above_the_optimum(self, name):
        problem = PROBLEMS[name](name)
        sobol = torch.quasirandom.SobolEngine(problem.box.dim, scramble=True, seed=7)
        unit = sobol.draw(4096, dtype=F64)
        y = problem.values(torch.lerp(problem.box.lower, problem.box.upper, unit))
        kept = y[(y[:, 1:] <= 0).all(-1), 0]
        assert (kept <= problem.optimum).all()
        assert name == "ackley 10" or len(kept) > 100

    def test_start_points_are_the_same_for_all(self):
        problem = PROBLEMS["bowl 3"]("bowl 3")
        assert problem.start(4).shape == (8, 3)
        assert torch.equal(problem.start(4), problem.start(4))
        assert not torch.equal(problem.start(4), problem.start(5))


class TestTraces:
    @pytest.mark.parametrize("policy", ["Optuna TPE", "CKB", "SCBO"])
    def test_a_run_is_taken_up_where_its_trace_ends(self, tmp_path, policy):
        problem, path = PROBLEMS["bowl 2"]("bowl 2"), tmp_path / "trace.json"
        functions.play(problem, policy, 0, 8, path)
        first = functions.read(path)
        functions.play(problem, policy, 0, 9, path)
        trace = functions.read(path)
        assert [len(t["x"]) for t in (first, trace)] == [2, 3]
        assert trace["x"][:2] == first["x"]
        assert set(trace["named"]) == {"8", "9"}
        written = path.stat().st_mtime_ns
        functions.play(problem, policy, 0, 9, path)
        assert path.stat().st_mtime_ns == written

    def test_ours_go_on_as_if_they_had_not_stopped(self, tmp_path):
        problem = PROBLEMS["bowl 2"]("bowl 2")
        for name, stops in ("whole", [9]), ("parts", [8, 9]):
            for stop in stops:
                functions.play(problem, "CKB", 0, stop, tmp_path / name)
        whole, parts = (functions.read(tmp_path / n) for n in ("whole", "parts"))
        assert whole["x"] == parts["x"]

    @pytest.mark.parametrize("policy", [n for n in RULES if n not in functions.OURS])
    def test_every_rival_plays(self, tmp_path, policy):
        problem = PROBLEMS["ripples 2"]("ripples 2")
        functions.play(problem, policy, 1, 8, tmp_path / "trace.json")
        trace = functions.read(tmp_path / "trace.json")
        x = torch.tensor(trace["x"], dtype=F64)
        assert torch.equal(problem.values(x), torch.tensor(trace["y"], dtype=F64))


def run_of(regret, violation=0.0, seconds=1.0):
    return {
        "regret": regret,
        "named": regret,
        "violation": violation,
        "in violation": 0.0,
        "seconds": seconds,
    }


class TestFigures:
    def test_a_trace_is_counted_by_hand(self):
        problem = Problem(
            "hand",
            PROBLEMS["bowl 2"]("bowl 2").box,
            lambda x: torch.tensor([[-9.0, 1.0]], dtype=F64).expand(len(x), 2),
            optimum=1.0,
            span=2.0,
            spread=torch.tensor([0.5], dtype=F64),
            feasible=0.5,
        )
        outcomes = [[0.5, -1.0], [3.0, 1.0], [0.0, 0.0], [0.9, -1.0]]
        trace = {
            "y": outcomes,
            "seconds": [1.0, 2.0, 3.0, 4.0],
            "named": {"9": {"y": [0.4, 0.1]}},
        }
        figures = functions.account(problem, trace, 0, 9)
        assert figures["regret"] == (1.0 - 0.5) / 2.0
        assert figures["named"] == math.inf
        assert figures["violation"] == pytest.approx(2.0 / 3)
        assert figures["in violation"] == pytest.approx(1 / 3)
        assert figures["seconds"] == 6.0

    def test_what_is_asked_is_counted(self):
        runs = {
            "RPOL-TS": {0: run_of(0.02, 3.0, 5.0), 1: run_of(math.inf, 3.0, 5.0)},
            "qLogNEI": {0: run_of(0.02, 2.0, 10.0), 1: run_of(0.03, 2.0, 10.0)},
            "SCBO": {0: run_of(0.5, 4.0), 1: run_of(0.5, 4.0)},
        }
        stand = functions.compared(runs, "RPOL-TS")
        assert not stand["near"]  # the higher median of two seeds
        assert (stand["lost"], stand["solved"]) == (1, 2)
        assert stand["calm"]
        assert stand["time"] == 0.5
        assert not functions.compared(runs, "SCBO")["calm"]
        assert functions.compared(runs, "qLogNEI")["near"]

    def test_the_summary_reads_a_folder(self, tmp_path, capsys):
        target = tmp_path / "out.json"
        argv = ["--quick", "--policies", "Optuna TPE", "--problems", "bowl 2"]
        argv += ["--evaluations", "8", "--out", str(tmp_path / "traces")]
        functions.main([*argv, "--json", str(target)])
        again = tmp_path / "again.json"
        functions.main([*argv, "--summary", "--json", str(again)])
        assert json.loads(target.read_text()) == json.loads(again.read_text())
        said = capsys.readouterr().out
        assert "bowl 2, d = 2, m = 2" in said
        assert "all problems" not in said  # where there are no rivals

    def test_a_problem_counts_where_it_has_rivals(self):
        assert not functions.counts(None)
        assert not functions.counts({"rivals": 2})
        assert functions.counts({"rivals": 3})
