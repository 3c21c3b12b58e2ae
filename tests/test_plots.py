"""Figures of the account."""

from __future__ import annotations

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
            (words,) = [text for text in figure.texts if text.get_text() == title]
            frame = words.get_window_extent(canvas.get_renderer())
            assert 0 < frame.x0 < frame.x1 <= figure.bbox.x1
            top = max(panel.get_tightbbox().y1 for panel in figure.axes)
            assert top <= frame.y0 < frame.y1 <= figure.bbox.y1

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
