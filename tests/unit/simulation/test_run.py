"""A run: its account, its files, its curves."""

from __future__ import annotations

import pickle

import pandas
import pytest
import torch
from inside import Run, simulate
from worlds import Plain, Uniform, same, table

import cbandit as cb


class TestRun:
    def test_save_and_load(self, tmp_path):
        problem = table(3, 2)
        run = simulate(
            Uniform(problem, trials=range(2, 5), m=2), table(range(2, 5), 2), 9
        )
        run.save(tmp_path / "here")
        assert same(run, Run.load(tmp_path / "here"))
        with pytest.raises(cb.CheckpointError, match="holds no saved run"):
            Run.load(tmp_path)
        with pytest.raises(cb.CBanditError, match=r"run\.ckpt cannot be made"):
            run.save(tmp_path / "here" / "run.ckpt")
        (tmp_path / "here" / "run.ckpt").write_bytes(b"x")
        with pytest.raises(cb.CheckpointError, match="not a checkpoint"):
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
        with pytest.raises(cb.CBanditError, match="name must be"):
            run.curve("regrets")


def test_where_runs_lie_and_how_many_points_a_curve_has(tmp_path):
    problem = table()
    run = simulate(Uniform(problem), problem, 50)
    for call in (lambda: run.save(None), lambda: Run.load(3)):
        with pytest.raises(cb.CBanditError, match="directory must be a path"):
            call()
    for points in (0, 1, -1, 1.5, "x"):
        with pytest.raises(
            cb.CBanditError, match="points must be an int of at least 2"
        ):
            run.curve("regret", points=points)
    assert run.thinned(2).tolist() == [1, 50]
    for points in range(2, 60):
        kept = run.thinned(points).tolist()
        assert len(kept) <= points
        assert {1, 50} <= set(kept)
