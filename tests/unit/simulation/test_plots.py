"""Figures of the account."""

from __future__ import annotations

import itertools
import subprocess
import sys

import pytest
import torch
from gpytorch.kernels import RBFKernel
from inside import simulate
from worlds import Uniform, table

import cbandit as cb
from cbandit import plots


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
        with pytest.raises(cb.CBanditError, match=words):
            run.plot(**options)
    with pytest.raises(cb.CBanditError, match=r"runs must be a list of cb.Run; got 3"):
        cb.plots.overview(3)
    with pytest.raises(cb.CBanditError, match=r"runs must be a list of cb.Run"):
        cb.plots.curves([3])
    with pytest.raises(cb.CBanditError, match=r"name must be a metric"):
        run.curve(torch.zeros(2))


class TestFigures:
    def curve(self, seed=0):
        from inside import Curve

        t = torch.arange(1, 51)
        return Curve(t, t.double().sqrt(), t.double() * 0.01, t.double() * 0.001)

    def test_one_panel_a_metric(self):
        each = {name: self.curve() for name in plots.LABELS}
        figure = plots.overview({"A": each, "B": each}, title="Both")
        titles = [panel.get_title("left") for panel in figure.axes]
        assert titles == [
            "Regret",
            "Soft violation",
            "Hard violation",
            "Rounds in violation",
        ]
        averages = plots.overview({"A": each}, ["regret"], average=True)
        line = averages.axes[0].get_lines()[0].get_ydata()
        assert line[-1] == pytest.approx(50**0.5 / 50)

    @pytest.mark.parametrize("dpi", [60, 100, 160])
    def test_titles_stay_within_the_figure(self, dpi):
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        each = {name: self.curve() for name in plots.LABELS}
        title = "an experiment (rate = 0.5, epoch = 20): mean and standard error of 9"
        for metrics in (["regret"], ["regret", "reward"]):
            figure = plots.overview({"A": each, "B": each}, metrics, title=title)
            figure.set_dpi(dpi)
            canvas = FigureCanvasAgg(figure)
            canvas.draw()
            (words,) = figure.texts
            assert words.get_text() == title.replace(" = ", "\u00a0=\u00a0")
            frame = words.get_window_extent(canvas.get_renderer())
            assert 0 < frame.x0 < frame.x1 <= figure.bbox.x1
            top = max(panel.get_tightbbox().y1 for panel in figure.axes)
            assert top <= frame.y0 < frame.y1 <= figure.bbox.y1

    def test_titles_of_panels_stay_beside_their_neighbours(self):
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        each = {name: self.curve() for name in plots.LABELS}
        metrics = ("expected_reward", "stage_cost", "best_feasible")
        figure = plots.evolution([("tau = 0.2", {"A": each}, {})], metrics)
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        panels = figure.axes
        titles = [p._left_title.get_window_extent() for p in panels]
        ends = [panel.get_tightbbox().x0 for panel in panels[1:]] + [figure.bbox.x1]
        assert all(x.x1 <= end for x, end in zip(titles, ends, strict=True))

    def test_a_curve_has_five_marks_however_much_it_goes_up_and_down(self):
        from inside import Curve

        t = torch.arange(1, 1001)
        zero = torch.zeros(1000, dtype=torch.float64)
        jagged = Curve(t, (-1.0) ** t.double(), zero, zero)
        table = {name: {"regret": jagged} for name in "ABC"}
        for log, axis in ((False, t / 1000), (True, t.log() / t[-1].log())):
            (panel,) = plots.overview(table, ["regret"], log=log).axes
            marked = [line.get_markevery() for line in panel.get_lines()[:3]]
            for k, places in enumerate(marked):
                wanted = 0.02 + 0.03 * k + 0.2 * torch.arange(5)
                # the first two rounds are a tenth of a logarithmic axis apart
                assert axis[places].tolist() == pytest.approx(wanted.tolist(), abs=0.1)

    @pytest.mark.parametrize("metrics", [["regret"], None])
    def test_legends_stay_within_the_figure(self, metrics):
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        each = {name: self.curve() for name in plots.LABELS}
        for count, name in ((3, "CKB-RestartUCB"), (7, "UCB"), (1, "A" * 30)):
            names = [f"{name} {k}" for k in range(count)]
            figure = plots.overview(dict.fromkeys(names, each), metrics)
            canvas = FigureCanvasAgg(figure)
            canvas.draw()
            frame = figure.legends[0].get_window_extent(canvas.get_renderer())
            assert 0 <= frame.x0 < frame.x1 <= figure.bbox.x1
            assert frame.y0 >= 0

    def test_a_notebook_shows_them(self):
        from IPython.core.formatters import DisplayFormatter

        each = {name: self.curve() for name in plots.LABELS}
        figure = plots.overview({"A": each}, ["regret"])
        data, _ = DisplayFormatter().format(figure)
        assert data["image/png"].startswith(b"\x89PNG")

    def test_a_policy_looks_alike_in_every_figure_and_none_like_another(self):
        each = {name: self.curve() for name in plots.LABELS}
        names = [f"P{k}" for k in range(20)]
        table = dict.fromkeys(names, each)
        figures = [
            plots.overview(table),
            plots.overview(table, ["regret"], average=True),
            plots.comparison({"one": {n: table[n] for n in names[:9]}}, "regret"),
        ]

        def looks(figure):
            lines = figure.axes[0].get_lines()
            return {
                line.get_label(): (
                    line.get_color(),
                    line.get_marker(),
                    str(line._dash_pattern),
                )
                for line in lines
                if line.get_label() in names
            }

        first, *others = map(looks, figures)
        assert len(set(first.values())) == len(names)
        # in grey: neighbours differ in mark and in dashes
        for a, b in itertools.pairwise(names[:8]):
            assert first[a][1] != first[b][1]
            assert first[a][2] != first[b][2]
        for other in others:
            assert all(first[name] == seen for name, seen in other.items())
        shown = {"regret": dict.fromkeys(names[1:4], (0.0, -1.0, 1.0))}
        order = {name: k for k, name in enumerate(names)}
        drawn = plots.differences(shown, order=order).axes[0].get_lines()
        marks = [line for line in drawn if line.get_marker() not in ("None", None, "")]
        assert [(x.get_color(), x.get_marker()) for x in marks] == [
            first[name][:2] for name in names[1:4]
        ]

    def test_one_width_for_a_column_and_one_for_two(self):
        each = {name: self.curve() for name in plots.LABELS}
        table = dict.fromkeys("ABCDE", each)
        widths = {
            1: [plots.overview(table, ["regret"]), plots.trade_off(table)],
            2: [
                plots.overview(table),
                plots.comparison({"a": table, "b": table}, "regret"),
            ],
        }
        for columns, figures in widths.items():
            for figure in figures:
                assert figure.get_figwidth() == {1: 3.4, 2: 7.0}[columns]

    def test_axes_say_their_unit_and_which_way_is_better(self):
        each = {name: self.curve() for name in plots.LABELS}
        metrics = ["regret", "soft_violation", "rounds_in_violation", "best_feasible"]
        figure = plots.overview({"A": each}, metrics, reward="speed", average=True)
        assert [panel.get_ylabel() for panel in figure.axes] == [
            "speed a round;\nless is better",
            "cost a round;\nless is better",
            "rounds a round;\nless is better",
            "speed a round;\nmore is better",
        ]

    def test_first_rounds_that_dwarf_the_rest_are_cut_off(self):
        from inside import Curve

        t = torch.arange(1, 101)
        zero = torch.zeros(100, dtype=torch.float64)
        high = {"regret": Curve(t, 50 + t.double(), zero, zero)}
        flat = {"regret": Curve(t, t.double(), zero, zero)}
        tops = []
        for lines in (high, flat):
            (panel,) = plots.overview({"A": lines}, ["regret"], average=True).axes
            tops.append((panel.get_ylim()[1], panel.get_title("left")))
        # after round 5 the average is at most 50 / 6 + 1
        assert tops[0][0] == pytest.approx(1.2 * (50 / 6 + 1))
        assert "first rounds cut off" in tops[0][1].replace("\n", " ")
        assert tops[1][1] == "Regret / t"

    def test_the_legend_says_who_has_stopped_and_nothing_lies_on_curves(self):
        """Of a policy that stopped in half of its trials, in curves and in boxes."""
        import pandas as pd
        from inside import Curve

        t = torch.arange(1, 9)
        zero = torch.zeros(8, dtype=torch.float64)
        lines = {
            "reward": Curve(t, t.double(), zero, zero),
            "stopped": Curve(t, (t > 5).double(), zero, zero),
        }
        frame = pd.DataFrame(
            [
                dict(policy="A", metric=name, t=round_, trial=k, value=float(k))
                for name in ("reward", "soft_violation")
                for round_ in (4, 8)
                for k in range(3)
            ]
        )
        drawn = [
            plots.overview({"A": lines}, ["reward"], title="a study"),
            plots.boxes(frame, table={"A": lines}),
        ]
        for figure in drawn:
            words = [x.get_text() for legend in figure.legends for x in legend.texts]
            assert "A stops" in words
            assert not any(panel.texts for panel in figure.axes)
        assert [panel.get_ylabel() for panel in drawn[1].axes] == [
            "Reward / t;\nmore is better",
            "Soft violation / t;\nless is better",
        ]

    def test_a_curve_without_a_number_is_drawn(self):
        from inside import Curve

        t = torch.arange(1, 9)
        none = Curve(t, *torch.full((3, 8), torch.nan, dtype=torch.float64))
        figure = plots.overview({"A": {"regret": none}}, ["regret"])
        assert figure._repr_png_().startswith(b"\x89PNG")

    def test_equal_results_give_equal_pdf_files(self, tmp_path):
        each = {name: self.curve() for name in plots.LABELS}
        for name in "ab":
            figure = plots.overview({"A": each}, ["regret"])
            plots.save(figure, tmp_path / f"{name}.pdf")
        written = [(tmp_path / f"{name}.pdf").read_bytes() for name in "ab"]
        assert written[0] == written[1]
        assert written[0].startswith(b"%PDF")
        assert b"/Type3" not in written[0]  # letters are embedded as TrueType

    def test_one_run_is_enough(self):
        world = cb.problems.Table([0.0, 1.0], [[-1.0, -0.5]])
        gp = cb.GP.default(world.actions)
        policy = cb.RPOL(world.actions, reward=gp, costs=gp, explore=cb.UCB(1.0))
        run = cb.simulate(policy, world, 5)
        assert len(plots.overview(run).axes) == 4
        with pytest.raises(cb.CBanditError, match=r"set policy\.name before the run"):
            plots.overview([run, run])

    def test_bad_arguments(self):
        each = {name: self.curve() for name in plots.LABELS}
        with pytest.raises(cb.CBanditError, match="metrics"):
            plots.overview({"A": each}, ["regrets"])
        with pytest.raises(cb.CBanditError, match="spread"):
            plots.overview({"A": each}, spread="iqr")
        with pytest.raises(cb.CBanditError, match="nothing to plot"):
            plots.overview({})

    def test_the_library_does_not_import_plotting(self):
        code = "import sys, cbandit as cb; cb.simulate, cb.Run, cb.plots; "
        code += "print('matplotlib' in sys.modules, 'pandas' in sys.modules)"
        out = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True
        )
        assert out.stdout.split() == ["False", "False"], out.stderr


class TestNames:
    """Figures of a problem with names say them."""

    LIMITS = ("<= 2", ">= 0.9")

    def drawn(self):
        limits = dict(zip(("latency", "accuracy"), self.LIMITS, strict=True))
        x = torch.linspace(0, 1, 7, dtype=torch.float64)
        problem = cb.problems.Table(
            x, [3 * x, 1 - 0.3 * x], noise=0.01, thresholds=limits
        )
        costs = list(limits)
        policy = cb.baselines.Random(
            problem.actions, costs=costs, thresholds=limits, trials=3
        )
        return plots.curves([cb.simulate(policy, problem, 30)])

    def test_a_panel_a_cost_with_its_limit(self):
        figure = plots.costs(self.drawn(), title="Mine", reward="throughput")
        titles = [panel.get_title("left") for panel in figure.axes]
        assert [title.replace("\n", " ") for title in titles] == [
            "throughput, average so far",
            "latency, average so far",
            "accuracy, average so far",
        ]
        for panel, limit in zip(figure.axes[1:], [2.0, 0.9], strict=True):
            lines = {line.get_label(): line for line in panel.get_lines()}
            assert lines["limit"].get_ydata() == pytest.approx([limit] * 30)
            # the account of both by hand: x is uniform, latency is 3 x
            assert panel.get_ylim()[0] < limit < panel.get_ylim()[1]
        ends = [panel.get_lines()[0].get_ydata()[-1] for panel in figure.axes]
        assert ends[1] == pytest.approx(3 * ends[0])
        assert ends[2] == pytest.approx(1 - 0.3 * ends[0])

    def test_panels_call_the_reward_by_its_name(self):
        figure = plots.overview(
            self.drawn(), ["regret", "best_feasible"], reward="speed"
        )
        titles = [panel.get_title("left") for panel in figure.axes]
        assert titles == ["Regret in speed", "Best feasible speed so far"]

    def test_rounds_of_a_design_are_shaded(self):
        shaded = [
            plots.overview(self.drawn(), ["regret"], design=4, log=log)
            for log in (False, True)
        ]
        for figure in (*shaded, plots.costs(self.drawn(), design=4)):
            for panel in figure.axes:
                (patch,) = panel.patches
                assert patch.get_extents().x1 == pytest.approx(
                    panel.transData.transform((4, 0))[0]
                )
            assert figure.legends[0].texts[-1].get_text() == "design"
        assert not plots.overview(self.drawn(), ["regret"]).axes[0].patches

    def test_few_rounds_on_a_logarithmic_axis_have_plain_numbers(self):
        figure = plots.overview(self.drawn(), ["soft_violation"])
        figure.canvas.draw()
        axis = figure.axes[0].xaxis
        ticks = dict(zip(axis.get_ticklocs(), axis.get_ticklabels(), strict=True))
        shown = {t: label.get_text() for t, label in ticks.items() if 1 <= t <= 30}
        assert shown == {1: "1", 2: "2", 5: "5", 10: "10", 20: "20"}

    def test_limits_in_titles_stay_together(self):
        limit = "latency <= 14"
        figure = plots.overview(self.drawn(), ["regret"], title=limit)
        assert figure.get_suptitle() == "latency\u00a0\u2264\u00a014: Random"

    def test_costs_without_names_have_no_panels(self):
        with pytest.raises(cb.CBanditError, match="costs have no names"):
            plots.costs({"A": {}})
