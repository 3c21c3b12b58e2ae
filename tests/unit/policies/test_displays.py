"""What notebooks show: tables, pictures and comparisons, and short reprs."""

from __future__ import annotations

import pydoc
import xml.etree.ElementTree as ET

import numpy as np
import pytest
import torch
from scipy import stats

import cbandit as cb


def space():
    return cb.Space(
        memory=cb.Float(0.5, 4.0, step=0.5), codec=cb.Category("<lz4>", "zstd")
    )


def played(rounds=8, trials=None, **more):
    """A policy with two limits and some rounds."""
    gp, on = cb.GP.default(space()), space()
    limits = {"latency": "<= 3", "accuracy": ">= 0.5"}
    given = {"costs": dict.fromkeys(limits, gp), "thresholds": limits}
    policy = cb.CKB(on, reward=gp, **given, trials=trials, **more)
    for _ in range(rounds):
        tell(policy, policy.ask())
    return policy


def tell(policy, choice):
    x, count = choice.x.reshape(-1, 2), 1 if policy.trials is None else len(choice.x)
    shape = policy.batch_shape
    costs = {"latency": x[:, 0].reshape(shape), "accuracy": 1 - x[:, 0].reshape(shape)}
    policy.tell(choice, reward=(x[:, 0] * 2).reshape(shape), cost=costs)
    return count


def cells(html):
    """The caption and the rows of a table, which must be well-formed."""
    table = ET.fromstring(html)
    rows = ["".join(cell.itertext()) for cell in table.iter("th")]
    body = [["".join(c.itertext()) for c in r.iter("td")] for r in table.iter("tr")]
    return table.find("caption").text, rows, body[1:]


def shown(policy, choice):
    run = simulated(policy.name)
    things = [policy, choice, policy.recommend(), policy.explain(choice)]
    return [*things, policy.certificate(), policy.status(), run, run.summary()]


def simulated(name="CKB", trials=8, seed=0):
    generator = torch.Generator().manual_seed(1)
    values = torch.rand(3, 9, generator=generator).double()
    world = cb.problems.Table(values[0], values[1:], 0.1, thresholds=0.5, trials=trials)
    policy = cb.baselines.Random(
        world.actions, costs=2, thresholds=0.5, trials=trials, seed=seed
    )
    policy.name = name
    return cb.simulate(policy, world, 30, progress=False)


class TestTables:
    @pytest.mark.parametrize("trials", [None, 2])
    def test_every_result_is_a_table_with_its_numbers(self, trials):
        policy = played(trials=trials)
        choice = policy.ask()
        for thing in shown(policy, choice):
            caption, head, body = cells(thing._repr_html_())
            assert caption
            assert head
            assert all(len(row) == len(head) for row in body)

    def test_names_and_numbers_are_in_it(self):
        policy = played()
        choice = policy.ask()
        _, head, body = cells(choice._repr_html_())
        row = dict(zip(head, body[0], strict=True))
        assert row["codec"] == choice.params["codec"]
        assert float(row["memory"]) == choice.params["memory"]
        best = policy.recommend()
        _, head, body = cells(best._repr_html_())
        row = dict(zip(head, body[0], strict=True))
        assert float(row["reward"]) == pytest.approx(float(best.value), rel=1e-3)
        margins = [float(row[f"room of {name}"]) for name in ("latency", "accuracy")]
        assert margins == pytest.approx(best.margin.tolist(), rel=1e-3)
        choice = policy.ask()
        why = policy.explain(choice)
        _, head, body = cells(why._repr_html_())
        believed = [float(row[head.index("believed")]) for row in body]
        assert believed == pytest.approx(why.mean.tolist(), rel=1e-3)
        _, head, body = cells(policy.certificate()._repr_html_())
        assert [row[0] for row in body] == ["latency <= 3", "accuracy >= 0.5"]

    def test_before_any_round_and_before_any_reward(self):
        policy = played(0)
        assert cells(policy._repr_html_())[0].startswith("CKB")
        policy = played(0, trials=2)
        tell_one = torch.tensor([True, False])
        told = {"latency": 1.0, "accuracy": 1.0}
        told = {name: torch.full((2,), value) for name, value in told.items()}
        policy.tell(policy.ask(), reward=torch.ones(2), cost=told, where=tell_one)
        _, head, body = cells(policy.recommend()._repr_html_())
        assert len(body) == 2
        assert any("nothing has been told" in cell for cell in body[1]), head

    def test_of_many_trials_the_first_rows(self):
        policy = cb.GPUCB(space(), reward=cb.GP.default(space()), trials=50)
        _, _, body = cells(policy.ask()._repr_html_())
        assert body[-1] == ["and 30 more rows"]

    def test_a_distribution_has_a_row_for_each_action(self):
        actions = cb.Finite(torch.linspace(0, 1, 5).double().unsqueeze(-1))
        safe = cb.Safe(index=0, reward=0.0, cost=-1.0)
        kinds = {"reward": cb.Counts(1.0), "costs": cb.Counts(1.0)}
        policy = cb.OPB(actions, **kinds, safe=safe, horizon=40)
        for _ in range(40):
            choice = policy.ask()
            x = float(choice.x)
            policy.tell(choice, reward=x, cost=x - 0.5)
        best = policy.recommend()
        _, head, body = cells(best._repr_html_())
        shares = [float(row[head.index("share")]) for row in body]
        assert sum(shares) == pytest.approx(1, abs=1e-3)


class TestReprs:
    def test_no_tensor_is_dumped(self):
        policy = played(4, trials=30)
        choice = policy.ask()
        posterior, status = policy.posterior(), policy.status()
        things = [*shown(policy, choice), posterior, posterior.reward]
        things += [*status.limits, *policy.certificate()]
        for thing in things:
            if not isinstance(thing, type(simulated().summary())):
                assert "tensor(" not in repr(thing)
                assert "array(" not in repr(thing)
                assert len(repr(thing)) < 2000
        assert "mean=(30, 16) float64" in repr(posterior.reward)

    def test_few_numbers_are_shown(self):
        best = cb.Distribution(torch.tensor([3, 1]), torch.tensor([0.25, 0.75]))
        assert repr(best) == "Distribution(index=[3, 1], probability=[0.25, 0.75])"

    def test_help_on_the_acquisition_functions_is_short(self):
        text = pydoc.plain(pydoc.render_doc(cb.acquisition))
        assert len(text.splitlines()) < 60
        for name in ("PrimalDual", "RectifiedPenalty", "OptimisticFeasible"):
            assert name in text
            assert getattr(cb.acquisition, name).__doc__


def titles(figure):
    every = (panel.get_title("left") for panel in figure.axes)
    return [title.replace("\n", " ") for title in every if title]


class TestPicture:
    def test_over_two_knobs(self):
        figure = played().plot()
        assert titles(figure) == [
            "reward",
            "latency",
            "accuracy",
            "Multiplier",
            "Certificate: no bounds yet",
        ]

    def test_the_line_is_the_posterior(self):
        policy = played()
        figure = policy.plot("memory", at={"codec": "zstd"})
        line = figure.axes[1].lines[0]
        x, y = line.get_data()
        params = [{"memory": m, "codec": "zstd"} for m in x]
        believed = policy.posterior(params=params).costs.mean[0]
        np.testing.assert_allclose(y, believed.numpy(), rtol=1e-10)
        dots = figure.axes[1].collections[-1].get_offsets()
        told = policy.history()
        np.testing.assert_allclose(dots[:, 1], told["latency"])
        assert figure.axes[1].lines[1].get_ydata()[0] == 3.0

    def test_the_heat_is_the_posterior(self):
        policy = played()
        mesh = policy.plot(["memory", "codec"]).axes[0].collections[0]
        heat = np.asarray(mesh.get_array()).T.reshape(-1)
        mean = policy.posterior().reward.mean.reshape(8, 2)
        np.testing.assert_allclose(heat, mean.reshape(-1), rtol=1e-10)

    def test_the_certificate_ends_at_that_of_a_run(self):
        """A policy without beliefs has the same centres as its run."""
        run = simulated(trials=3)
        figure = run.plot()
        assert titles(figure)[-1].startswith("Certificate")
        panel = figure.axes[4]
        certificate = run.certificate()
        for j, line in enumerate(panel.lines[:2]):
            bound = list(certificate)[j]
            excess = np.mean((bound.mean - bound.limit) / np.abs(bound.limit))
            np.testing.assert_allclose(line.get_ydata()[-1], excess)

    def test_each_trial(self):
        policy = played(trials=3)
        figure = policy.plot("memory", trial=2)
        believed = policy.posterior().reward.mean[2].reshape(8, 2)
        y = figure.axes[0].lines[0].get_ydata()
        at = int(policy.recommend().x[2, 1])
        np.testing.assert_allclose(y, believed[:, at].numpy(), rtol=1e-10)
        with pytest.raises(cb.CBanditError, match="trial must be at most 2"):
            policy.plot(trial=3)

    @pytest.mark.parametrize("dtype", ["float64", "float32"])
    def test_boxes_contexts_and_safe_policies(self, dtype):
        box = cb.Space(a=cb.Float(0.1, 10.0, log=True), b=cb.Category(1, 2))
        policy = cb.GPUCB(box, reward=cb.GP.default(box), dtype=dtype)
        policy.tell(policy.ask(), reward=1.0)
        assert titles(policy.plot()) == ["reward"]
        assert policy.plot("a").axes[0].get_xscale() == "log"
        shown = cb.Space(a=cb.Float(0, 1, step=0.25), load=cb.Context(1))
        gp = cb.GP.default(shown)
        policy = cb.CKB(shown, reward=gp, costs=gp, dtype=dtype)
        choice = policy.ask(context={"load": [0.3]})
        policy.tell(choice, reward=1.0, cost=0.1)
        policy.plot("a", at={"load": 0.5})
        with pytest.raises(cb.CBanditError, match="context 'load' has no bounds"):
            policy.plot("load")

    def test_arms_of_a_safe_policy(self):
        actions = cb.Finite(torch.linspace(0, 1, 5).double().unsqueeze(-1))
        safe = cb.Safe(index=0, reward=0.0, cost=-1.0)
        kinds = {"reward": cb.Counts(1.0), "costs": cb.Counts(1.0)}
        policy = cb.OPB(actions, **kinds, safe=safe, horizon=40)
        policy.tell(policy.ask(), reward=0.0, cost=-1.0)
        figure = policy.plot()
        assert titles(figure)[:2] == ["reward", "cost1"]
        line = figure.axes[0].lines[0].get_ydata()
        np.testing.assert_allclose(line, policy.posterior().reward.mean)

    def test_what_is_not_a_knob_is_an_error(self):
        policy = played(1)
        for knobs in ("size", ["memory", "codec", "memory"], ["memory", "memory"], 5):
            with pytest.raises(cb.CBanditError, match="knobs must be"):
                policy.plot(knobs)
        with pytest.raises(cb.CBanditError, match="there is no knob 'size'"):
            policy.plot(at={"size": 3})


class TestCompare:
    def test_differences_and_intervals(self):
        runs = [simulated("A"), simulated("B", seed=0)]
        world = runs[0]
        frame = cb.compare(runs)
        assert (frame["difference"] == 0).all(), "the same draws, twice"
        assert set(frame["trials"]) == {8}
        generator = torch.Generator().manual_seed(3)
        gaps = torch.randn(8, 1, generator=generator).double()
        moved = world.true_rewards.clone()
        moved[:, -1:] += gaps
        import dataclasses

        other = dataclasses.replace(world, policy="C", true_rewards=moved)
        frame = cb.compare([world, other]).set_index("metric")
        row = frame.loc["regret"]
        assert (row["policy"], row["against"]) == ("C", "A")
        assert row["difference"] == pytest.approx(-float(gaps.mean()))
        student = stats.t.interval(
            0.95, 7, -float(gaps.mean()), stats.sem(gaps.flatten().numpy())
        )
        assert row["low"] < row["difference"] < row["high"]
        assert row["high"] - row["low"] < 2 * (student[1] - student[0])
        assert "hard_violation_relative" in frame.index

    def test_pairs(self):
        runs = [simulated(name) for name in "ABC"]
        pairs = cb.compare(runs, all_pairs=True)[["policy", "against"]]
        assert {tuple(row) for row in pairs.to_numpy()} == {
            ("B", "A"),
            ("C", "A"),
            ("C", "B"),
        }
        against = cb.compare(runs, baseline="B")["against"]
        assert set(against) == {"B"}

    @pytest.mark.parametrize(
        ("runs", "words"),
        [
            (lambda: [simulated("A")], "at least two"),
            (lambda: [simulated("A"), simulated("A")], "different names"),
            (lambda: [simulated("A"), simulated("B", seed=1)], "same seed"),
            (lambda: [simulated("A"), simulated("B", trials=7)], "same trials"),
        ],
    )
    def test_what_is_not_paired_is_an_error(self, runs, words):
        with pytest.raises(cb.CBanditError, match=words):
            cb.compare(runs())
