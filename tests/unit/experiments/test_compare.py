"""Results a trial and a round: what is written, compared and drawn."""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess

import numpy as np
import pandas as pd
import pytest
import torch
from inside import draw_panels, holm, interval, main, write_rounds
from matplotlib.image import imread
from scipy import stats
from terminal import call, complaint
from worlds import Uniform, same, table

import cbandit as cb

pytestmark = pytest.mark.xdist_group("compared folders")


def played(policy, problem, rounds, name):
    policy.name = name
    return cb.simulate(policy, problem, rounds)


class TestRounds:
    def runs(self):
        """Three trials: one policy with multipliers, one without, one mixed."""
        world = table(3, 2)
        world.thresholds = torch.tensor([0.25, -0.5], dtype=torch.float64)
        kinds = {"Plain": {}, "Free": {"m": 0}, "Mixed": {"mixed": True}}
        return [
            played(Uniform(world, **{"m": 2, "trials": 3, **own}), world, 20, name)
            for name, own in kinds.items()
        ]

    def test_a_row_a_policy_trial_and_round(self, tmp_path):
        runs = self.runs()
        write_rounds(runs, tmp_path)
        found = pd.read_parquet(tmp_path / "rounds.parquet")
        assert len(found) == 3 * 3 * 20
        for run in runs:
            rows = found[found.policy == run.policy].reset_index(drop=True)
            mine = run.frame()
            pd.testing.assert_frame_equal(rows[mine.columns], mine)
            lacking = set(found.columns) - set(mine.columns)
            lacking = {k for k in lacking if "violation" not in k}
            assert rows[sorted(lacking)].isna().all(axis=None)
        assert "multiplier1" not in runs[1].frame()
        assert "stage_cost1" in runs[2].frame()

    def test_observed_and_true_costs_are_in_the_same_units(self):
        run = self.runs()[0]
        frame = run.frame()
        for j, limit in enumerate([0.25, -0.5], start=1):
            assert set(frame[f"threshold{j}"]) == {limit}
            excess = frame[f"true_cost{j}"] - limit
            ours = run.true_costs[..., j - 1].reshape(-1).numpy()
            np.testing.assert_allclose(excess, ours, atol=1e-15)
        noise = frame.cost1 - frame.true_cost1
        assert noise.abs().max() < 1.0

    def test_actions_have_their_names(self, tmp_path):
        space = cb.Space(threads=cb.Int(1, 3), codec=cb.Category("lz4", 9))
        world = cb.problems.Table(
            torch.arange(6.0), -torch.ones(1, 6), actions=space, trials=2
        )
        run = cb.simulate(Uniform(world, trials=2), world, 30)
        write_rounds([run], tmp_path)
        found = pd.read_parquet(tmp_path / "rounds.parquet")
        x = run.actions.reshape(-1, 2).long()
        assert found.threads.tolist() == x[:, 0].tolist()
        assert found.codec.tolist() == [("lz4", "9")[k] for k in x[:, 1].tolist()]

    def test_thinned_only_by_request(self, tmp_path, monkeypatch):
        runs = self.runs()
        write_rounds(runs, tmp_path, every=6)
        found = pd.read_parquet(tmp_path / "rounds.parquet")
        kept = found.groupby(["policy", "trial"]).t.agg(tuple)
        assert set(kept) == {(6, 12, 18, 20)}

    def test_many_rows_are_written_some_trials_at_a_time(self, tmp_path, monkeypatch):
        from inside import results

        runs = self.runs()
        write_rounds(runs, tmp_path)
        whole = pd.read_parquet(tmp_path / "rounds.parquet")
        monkeypatch.setattr(results, "ROWS", 40)  # two trials
        write_rounds(runs, tmp_path)
        assert pd.read_parquet(tmp_path / "rounds.parquet").equals(whole)


class TestIntervals:
    def test_of_nothing_and_of_constants(self):
        assert interval(np.zeros(6)) == (0.0, 0.0, 0.0, 1.0)
        # six of six differ to the same side: the sign test
        assert interval(np.full(6, 2.0)) == (2.0, 2.0, 2.0, 1 / 32)
        unknown = np.array([np.nan, 1.0, 1.0, 1.0, 1.0, 1.0])
        assert np.isnan(interval(unknown)).all()

    def test_fewer_than_six_trials_say_nothing(self):
        for n in (1, 2, 5):
            mean, *rest = interval(np.arange(float(n)))
            assert mean == (n - 1) / 2
            assert np.isnan(rest).all()

    def test_studentised_bootstrap_with_other_draws(self):
        values = np.random.default_rng(1).lognormal(size=9) - 1.0
        draws = np.random.default_rng(2).choice(values, (200_000, 9))
        error = values.std(ddof=1) / 3
        t = (draws.mean(1) - values.mean()) / (draws.std(1, ddof=1) / 3)
        low, high = values.mean() - error * np.quantile(t, [0.975, 0.025])
        mean, *ends, p = interval(values)
        assert mean == values.mean()
        # 9999 draws: an end is a quantile, off by less than 6 % of the width
        assert ends == pytest.approx([low, high], abs=0.06 * (high - low))
        # the test and the interval agree on every other mean too
        for shift in np.linspace(low - 1, high + 1, 21):
            if abs(shift - ends[0]) < 1e-3 or abs(shift - ends[1]) < 1e-3:
                continue
            _, a, b, p = interval(values - shift)
            assert (p < 0.05) == (not a <= 0 <= b)

    def test_where_most_trials_agree_it_is_students(self):
        values = np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 3.0])
        test = stats.ttest_1samp(values, 0.0)
        ends = test.confidence_interval(0.95)
        by_hand = (values.mean(), ends.low, ends.high, test.pvalue)
        assert interval(values) == pytest.approx(by_hand, rel=1e-12)

    def test_where_many_trials_agree_each_end_is_the_farther_of_two(self):
        # of all 6^6 resamples 1.6 % have no spread: more than are left out in silence
        for values in ([0.0, 0.0, 0.0, 1.0, 4.0, 6.0], [0.0, 2.0, 4.0, 4.0, 4.0, 5.0]):
            sample = np.array(values)
            every = sample[np.array(list(itertools.product(range(6), repeat=6)))]
            every = every[np.ptp(every, 1) > 0]
            errors = every.std(1, ddof=1) / 6**0.5
            t = (every.mean(1) - sample.mean()) / errors
            quantiles = np.quantile(t, [0.975, 0.025])
            bootstrap = sample.mean() - quantiles * sample.std(ddof=1) / 6**0.5
            student = stats.ttest_1samp(sample, 0.0).confidence_interval(0.95)
            low, high = min(bootstrap[0], student.low), max(bootstrap[1], student.high)
            assert student.low > low or student.high < high
            _, *ends, p = interval(sample)
            assert ends == pytest.approx([low, high], abs=1e-9)
            assert (p < 0.05) == (low > 0)

    def test_they_hold_the_truth_about_as_often_as_they_say(self):
        # 200 samples of 10 numbers of mean 1. Coverage measured on 2000 samples is 94 %
        # (normal) and 90 % (lognormal); more than 28, or 40, misses have a probability
        # below 1e-4, as have fewer than 1
        generator = torch.Generator().manual_seed(3)
        z = torch.randn(200, 10, generator=generator, dtype=torch.float64)
        for drawn, most in ((1 + z, 28), ((z - 0.5).exp(), 40)):
            ends = np.array([interval(sample.numpy()) for sample in drawn])
            assert 1 <= ((ends[:, 1] > 1) | (ends[:, 2] < 1)).sum() <= most

    def test_correction_for_many_tests(self):
        # 3 x 0.01, 2 x 0.03, and not less for the one above it
        assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
        assert holm([0.9, 0.8]) == [1.0, 1.0]
        corrected = holm([np.nan, 0.02, 0.01])
        assert np.isnan(corrected[0])
        assert corrected[1:] == pytest.approx([0.02, 0.02])


def by_hand(a, b):
    """Return mean, ends and test of paired numbers, with scipy and own draws."""
    gaps = (a - b).to_numpy()
    draws = np.random.default_rng(0).choice(gaps, (100_000, len(gaps)))
    n = len(gaps) ** 0.5
    error, spread = gaps.std(ddof=1) / n, draws.std(1, ddof=1) / n
    firm = spread > 1e-9 * error
    t = (draws.mean(1)[firm] - gaps.mean()) / spread[firm]
    low, high = gaps.mean() - error * np.quantile(t, [0.975, 0.025])
    at = gaps.mean() / error
    return gaps.mean(), low, high, 2 * min((t >= at).mean(), (t <= at).mean())


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """zhou-synthetic with two costs and two numbers of trials."""
    from inside import reproduced

    home = tmp_path_factory.mktemp("results")
    policies = ["CKB-UCB", "CKB-Rand", "CKB-TS"]
    for name, trials, cost, count in (
        ("half", 8, "half", 3),
        ("quarter", 8, "quarter", 2),
        ("more", 9, "half", 2),
    ):
        reproduced(
            home / name,
            "zhou-synthetic",
            trials=trials,
            horizon=30,
            policies=policies[:count],
            parameters={"cost": cost},
        )
    return home


class TestCompare:
    def test_policies_of_one_folder_by_hand(self, capsys, folders):
        code, text, _ = call(capsys, "compare", folders / "half")
        assert code == 0
        rows = pd.read_parquet(folders / "half" / "rounds.parquet")
        last = rows[rows.t == 30].set_index(["policy", "trial"])
        assert "8 pairs of trials" in text
        assert "corrected for the 2 differences of a column (Holm)" in text
        shown = [line.split("  ") for line in text.splitlines()]
        for metric, place in (("regret", 1), ("hard_violation", 3)):
            tests = {}
            for name in ("CKB-Rand", "CKB-TS"):
                a, b = last.loc[name, metric], last.loc["CKB-UCB", metric]
                tests[name] = by_hand(a, b)
                (cells,) = [x for x in shown if x[0] == f"{name} - CKB-UCB"]
                cells = [cell.strip() for cell in cells if cell.strip()]
                cell = re.fullmatch(r"(\S+) \[(\S+), (\S+)\](| \*)", cells[place])
                mean, low, high, p = tests[name]
                numbers = [float(cell[k]) for k in (1, 2, 3)]
                wide = 0.06 * (high - low)
                assert numbers == pytest.approx([mean, low, high], abs=wide)
                tests[name] = (p, cell[4])
            (small, first), (large, second) = sorted(tests.values())
            assert bool(first) == (2 * small < 0.05)
            assert bool(second) == (2 * small < 0.05 and large < 0.05)

    def test_any_policy_as_baseline_and_all_pairs(self, capsys, folders):
        def heads(*options):
            code, text, _ = call(capsys, "compare", folders / "half", *options)
            assert code == 0
            return re.findall(r"^(\S+ - \S+)  ", text, re.MULTILINE)

        assert heads("--baseline", "CKB-TS") == [
            "CKB-UCB - CKB-TS",
            "CKB-Rand - CKB-TS",
        ]
        assert heads("--all-pairs") == [
            "CKB-Rand - CKB-UCB",
            "CKB-TS - CKB-UCB",
            "CKB-TS - CKB-Rand",
        ]
        line = complaint(capsys, "compare", folders / "half", "--baseline", "CKB")
        assert "one of CKB-UCB, CKB-Rand, CKB-TS; got 'CKB'" in line
        both = ["--baseline", "CKB-TS", "--all-pairs"]
        assert "give one of them" in complaint(
            capsys, "compare", folders / "half", *both
        )

    def test_too_few_trials_have_no_interval_and_it_is_said(self, capsys, tmp_path):
        from inside import reproduced

        few = {"trials": 4, "horizon": 9, "policies": ["CKB-UCB", "CKB-Rand"]}
        reproduced(tmp_path / "few", "zhou-synthetic", **few)
        figure = tmp_path / "few.png"
        where = ["compare", tmp_path / "few", "--figure", figure]
        code, text, _ = call(capsys, *where)
        assert code == 0
        assert "without intervals: too few trials (4; 6 are needed)" in text
        assert "[" not in text
        assert figure.exists()

    def test_folders_policy_by_policy_on_the_trials_in_common(self, capsys, folders):
        where = [folders / "half", folders / "more"]
        code, text, _ = call(capsys, "compare", *where)
        assert code == 0
        assert "CKB-UCB: 8 pairs of trials" in text
        assert "CKB-Rand: 8 pairs of trials" in text
        # the same trials, draw by draw
        (first, second) = [x for x in text.splitlines() if x.startswith("more - half")]
        assert first.count("+0 [0, 0]") == second.count("+0 [0, 0]") == 4

    def test_by_a_parameter(self, capsys, folders):
        where = [folders / "half", folders / "quarter"]
        code, text, _ = call(capsys, "compare", *where, "--by", "cost")
        assert code == 0
        assert "quarter - half" in text
        code, text, _ = call(capsys, "compare", *where, "--by", "policy")
        assert code == 0
        # the parameter tells the folders apart
        assert "\ncost = quarter: 8 pairs of trials" in text
        where = [folders / "half", folders / "more"]
        code, text, _ = call(capsys, "compare", *where, "--by", "policy")
        assert code == 0
        assert "\nfolder = more: 9 pairs of trials" in text

    def test_table_and_figure_for_a_paper(self, capsys, folders, tmp_path):
        figure = tmp_path / "compared.png"
        options = ["--latex", "--figure", figure]
        code, text, _ = call(capsys, "compare", folders / "half", *options)
        assert code == 0
        assert text.startswith("% zhou-synthetic: after 30 rounds")
        assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 1
        body = [x for x in text.splitlines() if x.endswith(r"\\")]
        assert {x.count(" & ") for x in body} == {4}
        assert r"\pm" in text
        assert not any("+-" in x for x in body)
        assert len(imread(figure).shape) == 3

    def test_folders_of_a_sweep(self, capsys, folders):
        """They differ in a parameter as well as in their names."""
        code, text, _ = call(capsys, "compare", folders / "half", folders / "quarter")
        assert code == 0
        assert "quarter - half" in text

    def test_latex_has_one_power_a_column_and_bold_where_significant(self, folders):
        from inside import Comparison, in_latex

        trials = np.arange(8.0)
        metrics = {"regret": 1e6, "soft_violation": 1.0, "hard_violation": 1e-5}
        metrics |= {"stochastic_regret": 1.0, "rounds_in_violation": 1.0}
        values = {
            (name, metric): scale * (level + (trials * k) % 3)
            for k, (name, level) in enumerate((("A", 2.0), ("B", 4.0), ("C", 7.0)), 3)
            for metric, scale in metrics.items()
        }
        for name in "ABC":  # alike: nobody is best
            values[name, "soft_violation"] = trials
        table = Comparison("policy", "", pd.DataFrame(values), (("B", "A"), ("C", "A")))
        from inside import Settings

        text = in_latex([table], Settings("mine", {}, (), 30, 8))
        assert any(r"regret $/\,10^{6}$" in line for line in text)
        assert any(r"hard viol. $/\,10^{-5}$" in line for line in text)
        assert not any(re.search(r"\de[-+]", line) for line in text)
        (first,) = [line for line in text if line.startswith("A & ")]
        assert first.count(r"\mathbf") == 4  # not where all are alike
        mean = 2 + ((trials * 3) % 3).mean()
        assert first.startswith(rf"A & $\mathbf{{{mean:.1f}")
        assert not any(r"\mathbf" in x for x in text if x.startswith(("B & ", "C & ")))
        (gap,) = [line for line in text if line.startswith("C $-$ A")]
        assert gap.count("^{*}") == 4

    def test_rounding_errors_are_no_differences(self):
        from inside import Comparison, Settings, in_latex

        base, signs = 1e3 + np.arange(8.0) / 3, np.array([1.0, -1, 0, 1, 1, 0, 1, 1])
        levels = {
            "A": base,
            "B": base + 1e-12 * signs,  # the same sum in another order
            "C": base - 2599.96 + 1e-12 * signs,
            "D": base + 0.5 * (base > 1001) + 0.3,
            "E": base - 1.2 * (base > 1002) + 0.01,
        }
        metrics = ("regret", "stochastic_regret")
        values = {(n, k): x for n, x in levels.items() for k in metrics}
        pairs = tuple((name, "A") for name in "BCDE")
        table = Comparison("policy", "", pd.DataFrame(values), pairs)
        assert table.difference("B", "A", "regret") == (0.0, 0.0, 0.0, 1.0)
        mean, low, high, p = table.difference("C", "A", "regret")
        assert low == mean == high == pytest.approx(-2599.96)
        assert p == 2.0**-7  # all eight on one side: the sign test
        assert table.difference("D", "A", "regret").p < p
        # of equal numbers too
        same = Comparison("policy", "", pd.DataFrame({("A", "regret"): [0.1] * 7}), ())
        assert same.mean("A", "regret") == (pytest.approx(0.1), 0.0)
        text = "\n".join(in_latex([table], Settings("mine", {}, (), 30, 8)))
        assert "$-2600^{*}\\ [-2600, -2600]$" in text

    def test_latex_has_no_minus_before_zero(self):
        from inside import Comparison, Settings, in_latex

        gaps = np.array([0.0, 0.3, 0.1, 0.0, 0.8, 0.9, 0.2, 0.1])
        gaps -= interval(gaps).low + 0.001
        values = {("A", "regret"): np.arange(8.0), ("B", "regret"): np.arange(8) + gaps}
        values |= {(n, "stochastic_regret"): np.zeros(8) for n in "AB"}
        table = Comparison("policy", "", pd.DataFrame(values), (("B", "A"),))
        assert table.difference("B", "A", "regret").low == pytest.approx(-0.001)
        text = "\n".join(in_latex([table], Settings("mine", {}, (), 30, 8)))
        assert "-0.00" not in text

    @pytest.mark.skipif(not shutil.which("pdflatex"), reason="there is no pdflatex")
    def test_latex_compiles_whatever_policies_are_called(self, tmp_path):
        from inside import Comparison, Settings, in_latex

        names = ["*A", "[B]", r"100% & #1 ~^_{x} \$", "a <= b < c >= d > e"]
        trials = np.arange(8.0)
        values = {
            (name, metric): 1e5 * k + trials**k
            for k, name in enumerate(names)
            for metric in ("regret", "stochastic_regret", "hard_violation cost_1 (%)")
        }
        pairs = tuple((name, names[0]) for name in names[1:])
        table = Comparison("policy", r"x_1 = [2^\n]", pd.DataFrame(values), pairs)
        text = in_latex([table] * 2, Settings("my_study", {}, (), 30, 8))
        document = [
            r"\documentclass{article}",
            r"\usepackage{booktabs}",
            r"\begin{document}",
            *text,
            r"\end{document}",
        ]
        (tmp_path / "paper.tex").write_text("\n".join(document), encoding="utf-8")
        words = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, check=False)
        assert done.returncode == 0, done.stdout.decode(errors="replace")
        assert (tmp_path / "paper.pdf").exists()

    def test_latex_shows_the_signs_of_names(self):
        from inside import Comparison, Settings, in_latex

        values = {("[A] ~^\\", "regret"): [1.0], ("*B <= 1", "regret"): [2.0]}
        values |= {(k, "stochastic_regret"): [0.0] for k, _ in list(values)}
        names = list(dict.fromkeys(name for name, _ in values))
        table = Comparison("policy", "", pd.DataFrame(values), (tuple(names),))
        text = in_latex([table], Settings("mine", {}, (), 30, 1))
        rows = [line.partition(" & ")[0] for line in text if " & " in line]
        first = r"{[}A] \textasciitilde{}\textasciicircum{}\textbackslash{}"
        second = r"{*}B $\le$ 1"
        assert rows[1:] == [first, second, f"{first} $-$ {second}"]

    @pytest.mark.parametrize(
        ("words", "names", "options"),
        [
            ("only folder = half", ["half"], ["--by", "cost"]),
            ("--by must be one of policy, folder, cost", ["half"], ["--by", "colour"]),
            ("differ in nothing but their names", ["half", "more"], ["--by", "cost"]),
            ("holds no results", ["none"], []),
            ("half is given twice: name each folder once", ["half", "half"], []),
        ],
    )
    def test_what_cannot_be_compared(self, capsys, folders, words, names, options):
        if names == ["half"] and "cost" in options:
            words = "there is only half"
        where = [folders / name for name in names]
        line = complaint(capsys, "compare", *where, *options)
        assert words in line
        assert line.count("\n") == 1

    def test_other_draws_are_no_pairs(self, capsys, folders, tmp_path):
        from inside import reproduced

        own = {"trials": 4, "horizon": 30, "policies": ["CKB-UCB"]}
        reproduced(tmp_path / "other", "zhou-synthetic", seed=1, **own)
        line = complaint(capsys, "compare", folders / "half", tmp_path / "other")
        assert "seed = 0" in line
        assert "their trials are not pairs" in line


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    home = tmp_path_factory.mktemp("units")
    x = np.linspace(0, 1, 9)
    frame = {"x": x, "speed": x, "ms": 40 * x, "MB": 9e6 * x, "drift": x - 0.5}
    pd.DataFrame(frame).to_csv(home / "data.csv", index=False)
    (home / "study.toml").write_text(f"""
horizon = 20
trials = 8
[problem]
table = "{home / "data.csv"}"
maximise = "speed"
knobs = ["x"]
[problem.limits]
ms = "<= 20"
MB = "<= 3e6"
drift = "<= 0"
[policies.A]
type = "Random"
[policies.B]
type = "Random"
seed = 7
[policies.C]
type = "CONFIG"
""")
    out = home / "out"
    with pytest.raises(SystemExit) as ended:
        main(["run", str(home / "study.toml"), "--out", str(out)])
    assert not ended.value.code
    return out


class TestUnits:
    """Two costs in milliseconds and megabytes; the third limit is 0."""

    def test_each_by_itself_and_totals_relative_to_limits(self, study, capsys):
        import json

        summary = json.loads((study / "summary.json").read_text())
        rows = pd.read_parquet(study / "rounds.parquet")
        spread = torch.tensor(rows.drift).std().item()
        scale = {"ms": 20.0, "MB": 3e6, "drift": spread}
        assert summary["cost_scales"] == pytest.approx(scale)
        limits = {"ms": 20.0, "MB": 3e6, "drift": 0.0}
        for name in "ABC":
            mine = rows[rows.policy == name]
            over = pd.DataFrame({k: mine[f"true_{k}"] - limits[k] for k in limits})
            hard = over.clip(lower=0).groupby(mine.trial).sum()
            soft = over.groupby(mine.trial).sum().clip(lower=0) / pd.Series(scale)
            told = summary["policies"][name]
            for cost in limits:
                got = told[f"hard_violation {cost}"]
                by_hand = {"mean": hard[cost].mean(), "sem": hard[cost].sem()}
                assert got == pytest.approx(by_hand)
            total = (hard / pd.Series(scale)).sum(axis=1)
            assert told["hard_violation_relative"]["mean"] == pytest.approx(
                total.mean()
            )
            length = (soft**2).sum(axis=1) ** 0.5
            assert told["soft_violation_relative"]["sem"] == pytest.approx(length.sem())

    def test_all_of_a_comparison_by_hand(self, study, capsys):
        """From what was played, by pandas and scipy, with the draws of the library."""
        rows = pd.read_parquet(study / "rounds.parquet")
        # 0.25 is the best knob of the table within all limits; a mixture reaches 1/3
        # a cost whose limit is 0 counts in spreads of what was observed
        scale = {"ms": 20.0, "MB": 3e6, "drift": rows.drift.std()}
        over = pd.DataFrame(
            {"ms": 40 * rows.x - 20, "MB": 9e6 * rows.x - 3e6, "drift": rows.x - 0.5}
        )
        who = [rows.policy, rows.trial]
        hard = over.clip(lower=0).groupby(who).sum()
        soft = over.groupby(who).sum().clip(lower=0) / pd.Series(scale)
        final = pd.DataFrame(
            {
                "regret": (0.25 - rows.x).groupby(who).sum(),
                "stoch. regret": (1 / 3 - rows.x).groupby(who).sum(),
                "soft viol. / limits": (soft**2).sum(axis=1) ** 0.5,
                "hard viol. / limits": (hard / pd.Series(scale)).sum(axis=1),
                "rounds in viol.": (over > 1e-12).any(axis=1).groupby(who).sum(),
                **{f"hard viol. {cost}": hard[cost] for cost in scale},
            }
        )
        _, text, _ = call(capsys, "compare", study, "--all-pairs")
        table = [re.split(r" {2,}", x.strip()) for x in text.splitlines()]
        (heads,) = [cells[1:] for cells in table if cells[0] == "policy"]
        assert heads == list(final)
        shown = {cells[0]: dict(zip(heads, cells[1:], strict=False)) for cells in table}
        for name in "ABC":
            for head, values in final.loc[name].items():
                mean, sem = map(float, shown[name][head].split(" +- "))
                assert mean == pytest.approx(values.mean(), rel=1e-3, abs=1e-9)
                assert sem == pytest.approx(values.sem(), rel=0.06, abs=1e-9)
        resamples = torch.randint(
            8, (9999, 8), generator=torch.Generator().manual_seed(0)
        )
        stars = 0
        for head in heads:
            tests = {}
            for name, other in ("BA", "CA", "CB"):
                gaps = (final.loc[name] - final.loc[other])[head].to_numpy("float64")
                mean, error = gaps.mean(), stats.sem(gaps)
                drawn = gaps[resamples.numpy()]
                spread = stats.sem(drawn, axis=1)
                firm = spread > 1e-9 * error
                if firm.mean() < 0.99:  # too many trials agree
                    test = stats.ttest_1samp(gaps, 0.0)
                    low, high = test.confidence_interval(0.95)
                    p = test.pvalue
                else:
                    t = (drawn.mean(1) - mean)[firm] / spread[firm]
                    low, high = mean - error * np.quantile(t, [0.975, 0.025])
                    beyond = min((t >= mean / error).sum(), (t <= mean / error).sum())
                    p = 2 * (beyond + 1) / (len(t) + 1)
                cell = shown[f"{name} - {other}"][head]
                printed = re.fullmatch(r"(\S+) \[(\S+), (\S+)\](| \*)", cell)
                numbers = [float(printed[k]) for k in (1, 2, 3)]
                assert numbers == pytest.approx(
                    [mean, low, high], rel=6e-3, abs=1e-9 * scale.get(head[11:], 1.0)
                )
                tests[p, name, other] = printed[4]
            left, rejected = len(tests), True
            for (p, *_), star in sorted(tests.items()):
                rejected = rejected and left * p < 0.05
                assert bool(star) == rejected
                left, stars = left - 1, stars + rejected
        assert 0 < stars < 3 * len(heads)

    def test_no_table_or_figure_adds_up_units(self, study, capsys):
        from inside import kept_in, lines, read_curves, read_summary

        text = "\n".join(lines(read_summary(study)))
        assert "hard viol. / limits" in text
        assert "ms: 20, MB: 3e+06, drift: 0." in text
        assert not re.search(r"hard viol\.  ", text)
        _, text, _ = call(capsys, "compare", study)
        head = next(line for line in text.splitlines() if line.startswith("policy"))
        heads = re.split(r" {2,}", head)
        assert heads[3:] == [
            "soft viol. / limits",
            "hard viol. / limits",
            "rounds in viol.",
            "hard viol. ms",
            "hard viol. MB",
            "hard viol. drift",
        ]
        figure = cb.plots.overview(read_curves(study))
        axes = {panel.get_title("left"): panel.get_ylabel() for panel in figure.axes}
        assert axes["Hard violation"] == "limits;\nless is better"
        assert kept_in(study)

    def test_stochastic_regret_is_left_out_where_it_is_regret(self, study, capsys):
        from inside import lines, read_summary

        summary = read_summary(study)
        for values in summary["policies"].values():
            values["stochastic_regret"] = values["regret"]
        assert "stoch. regret" not in "\n".join(lines(summary))

    def test_a_run_prints_each_cost_by_itself(self):
        world = table(2, 2)
        run = cb.simulate(Uniform(world, m=2, trials=2), world, 9)
        shown = str(run.summary())
        assert "hard_violation 1 " in shown
        assert "hard_violation_relative" in shown
        assert not re.search(r"^  hard_violation  ", shown, re.MULTILINE)
        assert "hard_violation" in run.summary()


class TestTogether:
    def test_rows_say_in_what_folders_differ(self, folders):
        figure = draw_panels([folders / "half", folders / "more"])
        words = {panel.get_ylabel().partition("\n")[0] for panel in figure.axes}
        assert {"trials = 8", "trials = 9"} <= words
        (title,) = [text.get_text() for text in figure.texts]
        assert "cost\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}half" in title
        assert "of the trials" in title

    def test_folders_alike_in_all_else_keep_their_curves(self, folders):
        where = [folders / "half", folders / "half"]
        figure = draw_panels(where, "cost")
        assert len(figure.axes) == 1
        assert len(figure.axes[0].get_lines()) > 2

    def test_panels_that_hold_other_policies_share_one_legend(self):
        curve = cb.simulate(Uniform(table()), table(), 9).curve("regret")
        panels = {
            "one": {"A": {"regret": curve}, "B": {"regret": curve}},
            "two": {"B": {"regret": curve}, "C": {"regret": curve}},
        }
        figure = cb.plots.comparison(panels, "regret")
        drawn = [
            {line.get_label(): line.get_color() for line in panel.get_lines()}
            for panel in figure.axes
        ]
        assert drawn[0]["B"] == drawn[1]["B"]
        (legend,) = figure.legends
        named = {
            text.get_text(): line.get_color()
            for text, line in zip(legend.texts, legend.get_lines(), strict=True)
        }
        assert named.keys() == {"A", "B", "C"}
        assert len(set(named.values())) == 3

    def test_only_a_sweep_is_joined(self):
        run = cb.simulate(Uniform(table(3), trials=3), table(3), 9)
        curves = {n: run.curve(n) for n in ("regret", "soft_violation")}
        points = dict.fromkeys("ABC", curves)
        for sweeps, joined in (((), []), ([("A", "C")], [2])):
            figure = cb.plots.trade_off(points, sweeps=sweeps)
            lengths = [len(line.get_xdata()) for line in figure.axes[0].get_lines()]
            assert [n for n in lengths if n > 1] == joined


def test_best_feasible_so_far_is_drawn(folders):
    from inside import read_curves

    found = read_curves(folders / "half")
    best = found["CKB-UCB"]["best_feasible"].mean
    known = best[~best.isnan()]
    assert (known.diff() >= -1e-12).all()  # a mean over trials, rounded
    figure = cb.plots.overview(found, ["best_feasible"])
    low, high = figure.axes[0].get_ylim()
    assert low > 0 or high < 0 or known.min() <= 0 <= known.max()


def test_saved_frames_have_the_same_account(tmp_path):
    world = table(2)
    run = cb.simulate(Uniform(world, trials=2), world, 7)
    run.save(tmp_path)
    assert same(run, cb.Run.load(tmp_path))
    assert run.frame().equals(cb.Run.load(tmp_path).frame())


def test_titles_name_what_a_table_is_about():
    from inside import Settings

    def goal(**problem):
        tables = {"problem": problem, "policies": {}}
        settings = Settings("mine", {}, (), 10, 2, tables=tables)
        return settings.reward, settings.goal

    limits = {"accuracy": ">= 0.9", "price": 3.0}
    assert goal(table="data.csv", minimise="latency", limits=limits) == (
        "latency",
        "; minimise latency, accuracy >= 0.9, price <= 3",
    )
    assert goal(botorch="ConstrainedGramacy") == ("reward", "")


def test_folders_with_other_limits_share_no_goal():
    from inside import Settings, compared_title

    def settings(limit):
        problem = {"table": "a.csv", "maximise": "speed", "limits": {"heat": limit}}
        tables = {"problem": problem, "policies": {}}
        return Settings("mine", {}, (), 10, 2, tables=tables)

    alike, other = [settings("<= 1")] * 2, [settings("<= 1"), settings("<= 2")]
    assert compared_title([], alike).endswith("; maximise speed, heat <= 1")
    assert "heat" not in compared_title([], other)


@pytest.mark.parametrize(
    ("trials", "drawn"), [(4, "means of 4 paired"), (6, "95% intervals over 6 paired")]
)
def test_titles_promise_intervals_only_where_they_are_drawn(trials, drawn):
    from inside import Comparison, Settings, compared_title

    values = pd.DataFrame({("A", "regret"): np.arange(trials)})
    compared = [Comparison("policy", "", values, ())]
    title = compared_title(compared, [Settings("mine", {}, (), 10, trials)])
    assert drawn in title
    assert ("intervals" in title) == (trials >= 6)


def test_policies_at_one_place_are_named_together(folders):
    from inside import read_curves

    table = read_curves(folders / "half")
    one = next(iter(table.values()))
    figure = cb.plots.trade_off({"A": one, "B": one})
    assert [text.get_text() for text in figure.legends[0].texts] == ["A, B"]
