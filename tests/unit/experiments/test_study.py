"""Studies: policies on a problem of one's own, from a file."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import time
import tomllib
from pathlib import Path

import gpytorch
import pandas as pd
import pytest
import torch
from inside import belief_of, expanded, jobs_in, jobs_of, kept_in, write_config
from terminal import call, command, complaint

import cbandit as cb

MINE = """
import cbandit as cb
import torch


class Momentum(cb.GPPolicy):
    name = "Momentum"

    def __init__(self, actions, *, rate=0.5, **common):
        super().__init__(actions, start=0.0, **common)
        self.rate = rate

    def score(self, t, phi):
        return cb.scores.PrimalDual(phi)

    def move(self, t, phi, estimate, arrived):
        return cb.multipliers.projected(phi, estimate[:, 1:], self.rate, 0.0, 3.0)


class InTurn(cb.Policy):
    name = "InTurn"

    def __init__(self, actions, m, *, late=100, **common):
        super().__init__(actions, m, **common)
        self.late = late
        self.begin(())

    def decide(self, state, asked):
        if asked.t > self.late:
            raise RuntimeError("too late")
        return cb.Decision([asked.t % 12] * self.size), state

    def absorb(self, state, news):
        return state


def problem(n=12, limit=0.4):
    x = torch.linspace(0, 1, n, dtype=torch.float64)
    points = cb.Finite(x.unsqueeze(-1))
    return cb.problems.Table(x, [x**2], 0.01, actions=points, thresholds=limit)


def kernel(actions):
    import gpytorch

    return gpytorch.kernels.RBFKernel().double()
"""
STUDY = """
horizon = 12
trials = 2

[problem]
object = "MODULE:problem"

[policies.mine]
type = "MODULE:Momentum"
explore = { type = "UCB", beta = 2.0 }
rate = [0.1, 0.5]

[policies.RPOL]
type = "RPOL"
explore = { type = "UCB", beta = [1.0] }

[policies.Random]
type = "Random"
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A working directory with a module of its own; its name."""
    name = f"mine_{abs(hash(str(tmp_path))):x}"
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    Path(f"{name}.py").write_text(MINE)
    yield name
    sys.modules.pop(name, None)


@pytest.fixture
def written(mine):
    """Write a study with some of its text replaced; the file's name."""

    def write(text=STUDY, name="study.toml", **changes):
        text = text.replace("MODULE", mine)
        for old, new in changes.items():
            text = text.replace(old, new)
        Path(name).write_text(text)
        return name

    return write


class TestOwnProblemAndPolicy:
    def test_from_the_file_to_the_results_and_again(self, capsys, written, mine):
        code, text, err = call(capsys, "run", written())
        assert (code, err) == (0, "")
        out = Path("results/study")
        assert "study: 12 rounds, 2 trials" in text
        summary = json.loads((out / "summary.json").read_text())
        names = ["mine rate=0.1", "mine rate=0.5", "RPOL", "Random"]
        assert list(summary["policies"]) == names
        rounds = pd.read_parquet(out / "rounds.parquet")
        assert len(rounds) == 4 * 2 * 12
        assert set(rounds.threshold1) == {0.4}

        # its own settings file does the same once its module is trusted
        again = ["run", out / "config.toml", "--out", "again"]
        line = complaint(capsys, *again)
        assert f"names the module {mine}" in line
        assert f"--trust {mine}" in line
        assert not Path("again").exists()
        assert call(capsys, *again, "--trust", mine)[0] == 0
        assert pd.read_parquet("again/rounds.parquet").equals(rounds)

        # another study's name says enough, whatever else differs
        other = ["run", "study.toml", "--set", "name=mine", "--out", out, "--resume"]
        line = complaint(capsys, *other, "--horizon", 5)
        assert "other settings: name = 'study', not 'mine'; give those" in line

        # of the user's own file --resume needs no more than the first run did
        (out / "summary.json").unlink()
        assert call(capsys, "run", "study.toml", "--resume")[0] == 0
        assert pd.read_parquet(out / "rounds.parquet").equals(rounds)
        line = complaint(capsys, "run", out / "config.toml", "--out", out, "--resume")
        assert f"--trust {mine}" in line

    def test_what_is_shown_is_not_imported(self, capsys, written, mine):
        assert call(capsys, "run", written())[0] == 0
        sys.modules.pop(mine)
        Path(f"{mine}.py").unlink()
        out = Path("results/study")
        assert call(capsys, "plot", out)[0] == 0
        assert (out / "account.png").exists()
        code, text, _ = call(capsys, "compare", out)
        assert code == 0
        assert "Random - mine rate=0.1" in text
        assert mine not in sys.modules

    def test_modules_beside_the_file_are_not_looked_at(self, capsys, written, mine):
        Path("below").mkdir()
        text = STUDY.replace("MODULE:", "beside_the_file:")
        Path("below/study.toml").write_text(text)
        Path("below/beside_the_file.py").write_text(MINE)
        line = complaint(capsys, "run", "below/study.toml")
        assert "there is no module beside_the_file in" in line
        assert "beside_the_file" not in sys.modules

    def test_options_win_over_the_file(self, capsys, written, mine):
        options = ["--trials", 3, "--horizon", 7, "--policies", "Random,RPOL"]
        options += ["--set", "policies.RPOL.explore.beta=3.5"]
        options += ["--set", "problem.limit=0.2", "problem.n=20"]
        code, _, _ = call(capsys, "run", written(), *options, "--out", "here")
        assert code == 0
        kept = tomllib.loads(Path("here/config.toml").read_text())
        assert (kept["trials"], kept["horizon"]) == (3, 7)
        assert list(kept["policies"]) == ["Random", "RPOL"]
        assert kept["policies"]["RPOL"]["explore"]["beta"] == 3.5
        assert set(pd.read_parquet("here/rounds.parquet").threshold1) == {0.2}

    def test_another_study_does_not_take_its_folder(self, capsys, written, mine):
        few = ["--policies", "Random"]
        assert call(capsys, "run", written(), *few)[0] == 0
        own = [*few, "--set", "problem.limit=0.3"]
        line = complaint(capsys, "run", written(), *own)
        assert "results of other settings" in line
        line = complaint(capsys, "run", written(), *own, "--resume", "--trust", mine)
        assert "problem.limit = None, not 0.3" in line

    def test_a_rule_of_ones_own_gets_the_number_of_costs(self, capsys, written):
        text = STUDY.replace(
            'type = "RPOL"\nexplore = { type = "UCB", beta = [1.0] }\n',
            'type = "MODULE:InTurn"\n',
        )
        few = ["--policies", "RPOL"]
        assert call(capsys, "run", written(text), *few)[0] == 0
        text = text.replace('InTurn"\n', 'InTurn"\nlate = 1\n')
        with pytest.raises(RuntimeError, match="too late") as told:
            call(capsys, "run", written(text, "late.toml"), *few)
        assert told.value.__notes__ == ["late.toml: [policies.RPOL]"]

    def test_a_problem_may_be_no_function(self, capsys, written, mine):
        with Path(f"{mine}.py").open("a") as file:
            file.write("\nready = problem()\n")
        text = STUDY.replace('[problem]\nobject = "MODULE:problem"\n', "")
        text = 'problem = "MODULE:ready"\n' + text
        few = ["--policies", "Random"]
        assert call(capsys, "run", written(text), *few)[0] == 0


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"RPOL"\n', '"RPOLL"\n', "[policies.RPOL] type: 'RPOLL' is no public name"),
        ('"RPOL"\n', '"RPOLL"\n', "did you mean RPOL?"),
        ('"RPOL"\n', '"ckb"\n', "did you mean CKB?"),
        ('"RPOL"\n', '"CBK"\n', "did you mean CKB?"),
        ('"RPOL"\n', '"load"\n', "'load' is no public name"),
        ('"RPOL"\n', "3\n", "[policies.RPOL] type must be a text"),
        ('type = "RPOL"\n', "", "[policies.RPOL] type is missing"),
        ('"RPOL"\n', '"SafeOpt"\n', "[policies.RPOL] safe is missing"),
        ("beta = [1.0]", "bta = 1", "[policies.RPOL] explore bta: UCB takes no such"),
        ("beta = [1.0]", "bta = 1", "did you mean beta?"),
        ("beta = [1.0]", "beta = 'x'", "[policies.RPOL] explore: "),
        ("beta = [1.0]", "beta = []", "beta: an empty list"),
        ("rate = [0.1, 0.5]", "rat = 1", "[policies.mine] rat: "),
        ("rate = [0.1, 0.5]", "rat = 1", "did you mean rate?"),
        ("MODULE:Momentum", "MODULE:Nothing", "holds no Nothing"),
        ("MODULE:Momentum", "no_such_thing:A", "there is no module no_such_thing"),
        ("MODULE:problem", "MODULE:nothing", "[problem] object: "),
        ("[problem]\n", "[problem]\nm = 3\n", "[problem] m: "),
        ("[problem]\n", "[problem]\nbotorch = 'x'\n", "must have one of table"),
        (
            "[policies.Random]\n",
            "[policies.Random]\nbeta = 1\n",
            "[policies.Random] beta",
        ),
        ("horizon = 12", "horizon = 0", "horizon must be a whole number"),
        ("horizon = 12", "horzon = 12", "unknown key horzon; known are name, horizon"),
        ("horizon = 12", "name = 3", "name must be a text that can name a folder"),
        (
            "[policies.RPOL]\n",
            "[policies.RPOL]\nbelief = 3\n",
            "belief must be a table",
        ),
        (
            "[policies.RPOL]\n",
            "[policies.RPOL]\nbelief = { kernel = 'x' }\n",
            "[policies.RPOL] belief: kernel must be one of rbf, matern-1/2",
        ),
        (
            "[policies.RPOL]\n",
            "[policies.RPOL]\nbelief = { noise = -1.0 }\n",
            "[policies.RPOL] belief: noise must not be",
        ),
        (
            "[policies.RPOL]\n",
            "[policies.RPOL]\nbelief = { colour = 1 }\n",
            "[policies.RPOL] belief colour: a belief takes no such key",
        ),
    ],
)
def test_errors_point_at_file_table_and_key(capsys, written, old, new, words):
    assert old in STUDY
    line = complaint(capsys, "run", written(STUDY.replace(old, new)))
    assert words in line, line
    assert "study.toml" in line
    assert line.count("\n") == 1
    assert not Path("results").exists()  # nothing was begun


def test_all_is_tried_before_anything_runs(capsys, written, mine):
    with Path(f"{mine}.py").open("a") as file:
        file.write(
            "\nclass Late(Momentum):\n"
            "    def move(self, t, phi, estimate, arrived):\n"
            "        raise cb.CBanditError('no such luck')\n"
        )
    text = STUDY + '\n[policies.late]\ntype = "MODULE:Late"\n'
    text += 'explore = { type = "UCB", beta = 1.0 }\n'
    line = complaint(capsys, "run", written(text))
    assert "[policies.late]: " in line
    assert "no such luck" in line
    assert not Path("results").exists()


def test_a_type_must_make_policies(capsys, written, mine):
    with Path(f"{mine}.py").open("a") as file:
        file.write("\ndef nothing():\n    pass\n\ndef other(actions):\n    pass\n")
    for name in ("nothing", "other"):
        text = STUDY + f'\n[policies.odd]\ntype = "MODULE:{name}"\n'
        line = complaint(capsys, "run", written(text))
        assert "[policies.odd] type: " in line
        assert f"{name} makes no policy of a set of actions" in line


class TestSweeps:
    def test_expanded(self):
        table = {"a": [1, 2], "b": {"c": ["x", "y"], "d": 0}, "e": [[3, 4]]}
        found = expanded(table, "f:")
        assert [made for _, made in found] == [
            {"a": a, "b": {"c": c, "d": 0}, "e": [3, 4]} for a in (1, 2) for c in "xy"
        ]
        assert [chosen for chosen, _ in found] == [
            {"a": a, "b.c": c} for a in (1, 2) for c in "xy"
        ]
        ((chosen, made),) = expanded({"knobs": ["u", "v"]}, "f:", ("knobs",))
        assert (chosen, made) == ({}, {"knobs": ["u", "v"]})

    def test_one_argument_is_a_line_in_the_figure(self, written):
        text = STUDY.replace("beta = [1.0]", "beta = [1.0, 2.0, 3.0]")
        (job,) = jobs_in(written(text))
        assert job.experiment.figures.sweeps == (
            ("mine rate=0.1", "mine rate=0.5"),
            tuple(f"RPOL explore.beta={b}" for b in (1.0, 2.0, 3.0)),
        )

    def test_a_problem_in_several_folders(self, capsys, written, mine):
        text = STUDY.replace("[problem]\n", "[problem]\nlimit = [0.2, 0.4]\n")
        few = ["--policies", "RPOL,Random", "--out", "out"]
        code, text, _ = call(capsys, "run", written(text), *few)
        assert code == 0
        folders = [Path("out/limit=0.2"), Path("out/limit=0.4")]
        assert all((each / "summary.json").exists() for each in folders)
        assert "cbandit compare out/limit=0.2 out/limit=0.4" in text
        code, text, _ = call(capsys, "compare", *folders, "--by", "limit")
        assert code == 0
        assert "0.4 - 0.2" in text
        figure = ["--figure", "both.png", "--panels", "limit"]
        assert call(capsys, "plot", *folders, *figure)[0] == 0

    def test_only_pairs_are_named_to_be_compared(self, capsys, written, mine):
        text = STUDY.replace("horizon = 12", "horizon = [3, 4]")
        text = text.replace("[problem]\n", "[problem]\nlimit = [0.2, 0.4]\n")
        few = ["--policies", "RPOL,Random", "--out", "out"]
        code, text, _ = call(capsys, "run", written(text), *few)
        assert code == 0
        lines = [x for x in text.splitlines() if x.startswith("to compare: cbandit ")]
        assert len(lines) == 2
        for line in lines:
            assert call(capsys, *line.split()[3:])[0] == 0

    def test_a_papers_parameter_in_several_folders(self, capsys, tmp_path):
        few = ["--trials", 1, "--horizon", 3, "--policies", "CKB-UCB"]
        options = [*few, "--set", "cost=half,quarter", "--out", tmp_path]
        code, _, _ = call(capsys, "reproduce", "zhou-synthetic", *options)
        assert code == 0
        for name in ("half", "quarter"):
            kept = kept_in(tmp_path / f"cost={name}").settings
            assert kept.parameters["cost"] == name
        line = complaint(capsys, "reproduce", "zhou-synthetic", "--set", "cost=half,x")
        assert "must be one of half" in line

    def test_lists_that_are_values(self, written, mine):
        text = STUDY.replace("rate = [0.1, 0.5]", "clip = [[3.0, 2.0]]")
        (job,) = jobs_in(written(text))
        assert job.settings.tables["policies"]["mine"]["clip"] == [3.0, 2.0]
        write_config(job.settings, Path())
        assert kept_in(".").settings == job.settings


class TestBeliefs:
    LINE = cb.Finite(torch.linspace(0, 4, 9, dtype=torch.float64).unsqueeze(-1))
    PLANE = cb.ProductGrid([torch.arange(3.0).double(), torch.arange(4.0).double()])

    def test_default(self):
        gp = belief_of({}, self.LINE)
        assert gp.learn_noise
        assert gp.standardize
        assert gp.refit_every == "auto"
        assert gp.learn_mean

    @pytest.mark.parametrize(
        ("name", "value"), [("rbf", 0.60653066), ("matern-1/2", 0.36787944)]
    )
    def test_kernel_lengthscale_and_noise(self, name, value):
        given = {"kernel": name, "lengthscale": 0.25, "noise": 0.1}
        gp = belief_of(given, self.LINE)
        assert float(gp.noise) == 0.1
        assert not gp.learn_noise
        assert gp.refit_every is None
        # two points a quarter of the range apart: one lengthscale in the unit cube
        policy = cb.GPUCB(self.LINE, reward=gp, explore=cb.UCB(1.0))
        x = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
        policy.observe(x=x[:1], reward=[1.0])
        policy.observe(x=x[1:], reward=[1.0])
        seen = policy.posterior(x).reward.std[0] ** 2
        k = torch.tensor([[1.0, value], [value, 1.0]], dtype=torch.float64)
        solve = torch.linalg.solve(k + 0.1 * torch.eye(2), k[:, :1])
        assert float(seen) == pytest.approx(float(1 - (k[:1] @ solve)), abs=1e-7)

    def test_one_lengthscale_a_coordinate(self):
        gp = belief_of({"kernel": "matern-5/2", "lengthscale": [0.2, 3.0]}, self.PLANE)
        assert isinstance(gp.kernel, gpytorch.kernels.MaternKernel)
        assert gp.kernel.lengthscale.squeeze().tolist() == pytest.approx([0.2, 3.0])
        with pytest.raises(cb.CBanditError, match="one for each of 2 coordinates"):
            belief_of({"lengthscale": [1.0, 2.0, 3.0]}, self.PLANE)

    def test_categories_keep_their_kernel(self):
        space = cb.Space(n=cb.Int(1, 4), codec=cb.Category("a", "b"))
        gp = belief_of({"kernel": "rbf", "lengthscale": 0.5, "noise": 0.1}, space)
        names = {type(each).__name__ for each in gp.kernel.modules()}
        assert {"RBFKernel", "CategoricalKernel"} <= names
        assert "MaternKernel" not in names
        policy = cb.GPUCB(space, reward=gp, explore=cb.UCB(1.0))
        policy.tell(policy.ask(), reward=1.0)
        assert policy.posterior().reward.mean.shape == (8,)

    def test_other_kinds_and_kernels_of_ones_own(self, mine):
        gp = belief_of({"type": "Linear", "subgaussian": 0.1, "norm": 1.0}, self.LINE)
        assert isinstance(gp, cb.Linear)
        gp = belief_of({"kernel": f"{mine}:kernel", "noise": 0.2}, self.LINE)
        assert isinstance(gp.kernel, gpytorch.kernels.RBFKernel)
        assert float(gp.noise) == 0.2


BOTORCH = """
horizon = 8
trials = 1

[problem]
botorch = "ConstrainedGramacy"
points = 5

[belief]
kernel = "rbf"
lengthscale = 0.3
noise = 0.01

[policies.LogCEI]
type = "BoTorchPolicy"
acquisition = "LogConstrainedExpectedImprovement"

[policies.qNEI]
type = "BoTorchPolicy"
acquisition = "qLogNoisyExpectedImprovement"

[policies.qUCB]
type = "BoTorchPolicy"
acquisition = { type = "qUpperConfidenceBound", beta = 2.0 }

[policies.UCB]
type = "BoTorchPolicy"
acquisition = { type = "UpperConfidenceBound", beta = 2.0 }

[policies.CONFIG]
type = "CONFIG"
explore = { type = "UCB", beta = 2.0 }
"""


class TestBoTorch:
    def test_functions_and_acquisitions(self, capsys, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        Path("s.toml").write_text(BOTORCH)
        code, _, _ = call(capsys, "run", "s.toml")
        assert code == 0
        rows = pd.read_parquet("results/s/rounds.parquet")
        assert rows.groupby("policy").size().to_dict() == dict.fromkeys(
            ["LogCEI", "qNEI", "qUCB", "UCB", "CONFIG"], 8
        )
        assert {"true_cost1", "true_cost2"} <= set(rows)

    @pytest.mark.parametrize(
        ("given", "words"),
        [
            ("'Nothing'", "acquisition: botorch.acquisition holds no 'Nothing'"),
            ("'AcquisitionFunction:x'", "there is no module AcquisitionFunction"),
            ("'torch:nn.Linear'", "must be an acquisition function of BoTorch"),
            ("3", "acquisition must be the name of an acquisition function"),
            ("{ type = 'UpperConfidenceBound' }", "acquisition beta is missing"),
            ("{ type = 'UpperConfidenceBound', bta = 1 }", "did you mean beta?"),
            ("'qMaxValueEntropy'", "Multi-output models are not supported"),
        ],
    )
    def test_what_cannot_be(self, capsys, tmp_path, monkeypatch, given, words):
        monkeypatch.chdir(tmp_path)
        text = BOTORCH.split("[policies.qNEI]")[0]
        text = text.replace('"LogConstrainedExpectedImprovement"', given)
        Path("s.toml").write_text(text)
        line = complaint(capsys, "run", "s.toml")
        assert "s.toml: [policies.LogCEI]" in line
        assert words in line

    def test_unknown_functions(self, capsys, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        Path("s.toml").write_text(BOTORCH.replace("Gramacy", "Grammar"))
        line = complaint(capsys, "run", "s.toml")
        assert "[problem] botorch: botorch.test_functions holds no 'Constr" in line


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.parametrize("workers", ["2", "ray"])
def test_workers_share_a_study_of_ones_own(capsys, written, workers):
    name = written(STUDY.replace("trials = 2", "trials = 3"))
    assert call(capsys, "run", name, "--out", "one")[0] == 0
    for attempt in range(3):  # Ray gives itself 30 seconds to start, however busy
        out = f"many-{attempt}"
        shared = command("run", name, "--out", out, "--workers", workers)
        text, said = shared.communicate(timeout=600)
        if "timed out during startup" not in said:
            break
    assert shared.returncode == 0, said
    # a line a policy, once all of its trials are played
    lines = [line for line in text.splitlines() if ": played, " in line]
    names = ["mine rate=0.1", "mine rate=0.5", "RPOL", "Random"]
    assert sorted(line.partition(":")[0] for line in lines) == sorted(names)
    assert lines[-1].partition(": played, ")[2].startswith("4 of 4 policies, ")
    one, many = (pd.read_parquet(f"{k}/rounds.parquet") for k in ("one", out))
    pd.testing.assert_frame_equal(one, many, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_kill_and_resume_give_the_same(capsys, written, tmp_path):
    text = BOTORCH.split("[policies.LogCEI]")[0].replace("horizon = 8", "horizon = 400")
    text += '[policies.RPOL]\ntype = "RPOL"\nexplore = { type = "UCB", beta = 2.0 }\n'
    text += '[policies.Random]\ntype = "Random"\n'
    name = written(text)
    assert call(capsys, "run", name, "--out", "whole")[0] == 0
    for attempt in range(3):
        child = command("run", name, "--out", "cut", *["--resume"] * (attempt > 0))
        begun = time.monotonic()
        while not Path("cut/checkpoints").exists() and child.poll() is None:
            assert time.monotonic() < begun + 120
            time.sleep(0.01)
        time.sleep(0.3 * attempt)
        child.send_signal(signal.SIGKILL)
        child.communicate()
    assert call(capsys, "run", name, "--out", "cut", "--resume")[0] == 0
    one, two = (pd.read_parquet(f"{k}/rounds.parquet") for k in ("whole", "cut"))
    assert one.equals(two)
    shutil.rmtree("cut")


def test_random_draws_every_allowed_action_alike():
    actions = cb.Finite(torch.arange(4.0).unsqueeze(-1))
    policy = cb.baselines.Random(actions, costs=2, trials=500)
    count = torch.zeros(4)
    for _ in range(20):
        choice = policy.ask()
        policy.tell(choice, reward=torch.zeros(500), cost=torch.zeros(500, 2))
        count += torch.bincount(choice.index, minlength=4)
    # 10 000 draws of four: chi-squared of 3 degrees is above 21 once in 10 000
    assert float(((count - 2500) ** 2 / 2500).sum()) < 21
    assert set(policy.ask(among=[1, 3]).index.tolist()) == {1, 3}
    box = cb.Box([0.0], [2.0], choices=[[1.0], [5.0]])
    x = cb.baselines.Random(box, trials=2000).ask().x
    assert float(x[:, 0].mean()) == pytest.approx(1.0, abs=0.06)
    assert float((x[:, 1] == 5.0).double().mean()) == pytest.approx(0.5, abs=0.05)
    with pytest.raises(cb.CBanditError, match="how many costs"):
        cb.baselines.Random(actions, costs=-1)


class TestTrials:
    """What varies between trials, and what their policies share."""

    TABLE = """
horizon = 9
trials = 3

[problem]
table = "data.csv"
maximise = "speed"
knobs = ["x", "y"]

[problem.limits]
heat = "<= 6"

[belief]
kernel = "rbf"
lengthscale = 0.3
noise = 0.01

[policies.RPOL]
type = "RPOL"

[policies.again]
type = "RPOL"

[policies.Random]
type = "Random"
"""

    @pytest.fixture
    def summary_of(self, capsys, written):
        def run(text=self.TABLE, **frame):
            x, y = torch.cartesian_prod(*[torch.arange(5.0)] * 2).double().T.numpy()
            data = {"x": x, "y": y, "speed": x + 0.1 * y, "heat": x * y, **frame}
            pd.DataFrame(data).to_csv("data.csv", index=False)
            code, out, err = call(capsys, "run", written(text))
            assert (code, err) == (0, "")
            path = Path("results/study")
            rounds = pd.read_parquet(path / "rounds.parquet")
            return json.loads((path / "summary.json").read_text()), rounds, out

        return run

    def test_a_common_design_of_2d_plus_2_rounds(self, summary_of):
        summary, rounds, text = summary_of()
        assert summary["design"] == 6
        assert summary["without_design"] == []
        assert "the first 6 rounds of a trial play a design, the same for all" in text
        acts = rounds.pivot_table("action", ["trial", "t"], "policy")
        starts = acts[acts.index.get_level_values("t") <= 6]
        assert (starts.Random == starts.RPOL).all()
        later = acts[acts.index.get_level_values("t") > 6]
        assert (later.Random != later.RPOL).any()
        trials = starts.RPOL.unstack("trial")
        assert not (trials[0] == trials[1]).all()

    def test_what_varied_and_who_is_the_same_is_written(self, summary_of, capsys):
        summary, _, text = summary_of()
        assert summary["varied"] == ["starts"]  # no row repeats: there is no noise
        assert "trials differ in starts" in text
        assert summary["same"] == [["RPOL", "again"]]
        assert "RPOL and again played the same rounds" in text
        _, text, _ = call(capsys, "compare", "results/study")
        assert "RPOL and again played the same rounds" in text

    def test_measurements_that_repeat_are_noise(self, summary_of):
        import numpy as np

        x = np.tile(np.arange(5.0), 5)
        summary, _, _ = summary_of(x=x, y=x, heat=x, speed=x + np.arange(25) % 3)
        assert summary["varied"] == ["noise", "starts"]

    def test_rows_resampled_by_trial_are_worlds(self, summary_of):
        import numpy as np

        x = np.tile(np.arange(5.0), 5)
        speed = x + np.arange(25) % 3 + 0.1 * np.arange(25)
        text = self.TABLE.replace("knobs =", 'repeats = "resample"\nknobs =')
        summary, rounds, told = summary_of(text, x=x, y=x, heat=x, speed=speed)
        assert summary["varied"] == ["worlds", "noise", "starts"]
        assert "trials differ in worlds, noise, starts" in told
        # all policies of a trial meet the same world
        first = rounds.drop_duplicates(["policy", "trial", "action"])
        truth = first.pivot_table("true_reward", ["trial", "action"], "policy").dropna()
        assert len(truth)
        assert (truth.Random == truth.RPOL).all()
        assert truth.Random.groupby("action").nunique().max() > 1

    def test_resampled_rows_of_which_some_failed(self, summary_of):
        import numpy as np

        x = np.tile(np.arange(5.0), 5)
        speed = x + 0.1 * np.arange(25)
        # at 3 two rows of five failed: the means there are of the three that did not
        bad = (x == 3) & (np.arange(25) < 10)
        text = self.TABLE.replace(
            "knobs =", 'repeats = "resample"\nfailed = "bad"\nknobs ='
        )
        text = text.replace("horizon = 9", "horizon = 25")
        where = {"x": x, "y": x, "heat": x, "bad": bad}
        summary, rounds, told = summary_of(
            text, speed=np.where(bad, -1e6, speed), **where
        )
        assert summary["varied"] == ["worlds", "noise", "starts"]
        assert "trials differ in worlds, noise, starts" in told
        truth = rounds.groupby(["x", "trial"]).true_reward.first()
        assert truth.groupby("x").nunique().max() > 1
        for k in range(5):
            sound = speed[(x == k) & ~bad]
            assert truth[k].between(sound.min(), sound.max()).all()
        lost = rounds.failed.astype(bool)
        assert lost.any()
        assert set(rounds.x[lost]) == {3.0}

    def test_a_policy_without_costs_plays_under_named_limits(self, summary_of):
        text = self.TABLE.replace('type = "Random"', 'type = "GPUCB"')
        summary, _, _ = summary_of(text)
        assert summary["policies"]["Random"]["status"] == "complete"

    def test_without_a_design_it_is_said_what_is_alike(self, summary_of):
        text = self.TABLE.replace("horizon = 9", "horizon = 9\ndesign = 0")
        text = text.partition("[policies.Random]")[0]
        summary, _, told = summary_of(text)
        assert summary["design"] == 0
        assert summary["varied"] == []
        assert "trials differ in nothing: they are one run, to the bit" in told
        assert (
            tomllib.loads(Path("results/study/config.toml").read_text())["design"] == 0
        )

    @pytest.mark.parametrize("kind", ["SafeOpt", "OPB"])
    def test_safe_policies_start_where_it_is_safe(self, summary_of, kind):
        text = self.TABLE.partition("[policies.again]")[0]
        text += f'[policies.Safe]\ntype = "{kind}"\n'
        text += 'safe = { type = "Safe", index = 0 }\n'
        text += "delta = 0.1\n" * (kind == "OPB")
        summary, _, told = summary_of(text)
        assert summary["without_design"] == ["Safe"]
        assert "the same for all policies but Safe" in told

    def test_papers_start_as_their_papers_do(self):
        with pytest.raises(cb.CBanditError, match="starts as its paper does"):
            jobs_of("zhou-synthetic", design=4)


class TestNames:
    """What a file calls a policy is checked before the first round."""

    @pytest.mark.parametrize(
        ("name", "words"),
        [
            ("a\\u001b[31mb", "must be of printable letters"),
            ("nul\\u0000", "must be of printable letters"),
            (" ", "must be of printable letters"),
            ("x" * 5_000, "must be short enough for a file's name"),
            ("\\u00e9" * 100, "must be short enough for a file's name"),
        ],
        ids=["escape", "nul", "blank", "long", "long once quoted"],
    )
    def test_names_that_no_file_and_no_terminal_takes(
        self, capsys, written, name, words
    ):
        text = STUDY.replace("[policies.Random]", f'[policies."{name}"]')
        line = complaint(capsys, "run", written(text))
        assert words in line
        assert line.strip().isprintable()
        assert len(line) < 400
        assert not Path("results").exists()

    def test_values_of_a_sweep_count(self, capsys, written):
        long = [f"x{'y' * 300}", "mean"]
        text = STUDY.replace("rate = [0.1, 0.5]", f"rate = {long}")
        line = complaint(capsys, "run", written(text))
        assert "with its entries of lists, must be short enough" in line

    def test_dollars_and_formulas_are_names(self, capsys, written):
        text = STUDY.replace("[policies.Random]", "[policies.'$x^{$ in $']")
        few = [written(text), "--trials", 3]
        code, out, err = call(capsys, "run", *few, figures=True)
        assert (code, err) == (0, "")
        assert "$x^{$ in $" in out
        assert Path("results/study/account.png").exists()

    def test_a_class_without_a_rule(self, capsys, written):
        text = STUDY.replace('"Random"', '"GPPolicy"')
        line = complaint(capsys, "run", written(text))
        assert "[policies.Random]: GPPolicy must define score() or acquire()" in line
        assert not Path("results").exists()

    def test_errors_hold_no_escape_sequence(self, capsys, written):
        line = complaint(capsys, "run", written('"\\u001b[2J" = 1\n' + STUDY))
        assert "unknown key \\u001b[2J" in line
