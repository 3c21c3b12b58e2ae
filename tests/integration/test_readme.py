"""Every block of the README and of the documentation runs, and does what is said."""

from __future__ import annotations

import re

import pytest
import torch
from places import ROOT

import cbandit as cb

README = (ROOT / "README.md").read_text()
PAGES = {"README.md": README} | {
    str(path.relative_to(ROOT)): path.read_text()
    for path in sorted((ROOT / "docs").glob("[!nr]*/*.md"))
}
TEXT = "\n".join(PAGES.values())
PYTHON = re.compile(r"```python\n(.*?)```", flags=re.S)
BLOCKS = PYTHON.findall(TEXT)
NUMBER = re.compile(r"-?\d+(?:\.\d*)?")
FILES = re.findall(r"`((?:cbandit|benchmarks|kernels)/[\w./]+)`", TEXT)


def run(mark):
    """The names that the block containing ``mark`` leaves behind."""
    (code,) = [block for block in BLOCKS if mark in block]
    names = {}
    exec(compile(code, "a page", "exec"), names)
    return names


# blocks that a test below, or test_recipes.py, runs and looks at
LOOKED_AT = (
    "latencies",
    "simulate",
    "observe",
    "Delayed",
    "1000",
    "choices=",
    "cb.Context",
    "phi",
    "optuna",
    "outcome=",
    "policy.certificate",
    "policy.listen",
)
OTHERS = {
    path: blocks
    for path, text in PAGES.items()
    if (
        blocks := [
            block
            for block in PYTHON.findall(text)
            if not any(mark in block for mark in LOOKED_AT)
        ]
    )
}


@pytest.mark.parametrize("path", OTHERS)
def test_the_other_blocks_of_a_page_run_one_after_the_other(
    path, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    names = {}
    for code in OTHERS[path]:
        exec(compile(code, path, "exec"), names)


def test_the_quick_start(capsys):
    names = run("latencies")
    printed, latencies = capsys.readouterr().out, names["latencies"]
    # the same words as below the block: the digits of a run are a processor's
    known = "".join(f"    {line}\n" for line in printed.splitlines())
    assert NUMBER.sub("#", known) in NUMBER.sub("#", README)
    # what the text says of them
    assert sum(latencies) / 60 <= 20
    assert any(latency > 20 for latency in latencies[-20:])
    best = names["policy"].recommend()
    settings = [
        (10 * threads**0.7 * (1.3 if codec == "zstd" else 1.0) + memory / 2)
        for threads in range(1, 33)
        for memory in range(1, 17)
        for codec in ("lz4", "zstd")
        if 4 + 0.5 * threads + 24 / memory + 3 * (codec == "zstd") <= 20
    ]
    assert best.value.item() == pytest.approx(max(settings), rel=0.05)
    assert best.probability >= 0.95 and best.margin >= 0


def test_the_readme_is_read_in_minutes():
    read = re.sub(r"```bibtex\n.*?```", "", README, flags=re.S)
    assert len(read.split()) <= 1_300
    assert README.count("```python") == 1


def test_simulations():
    names = run("run.frame()")
    assert names["run"].rewards.shape == (50, 1_000)
    assert len(names["frame"]) == 50_000


def test_a_rule_that_sees_the_belief():
    names = run("def acquire")
    assert names["run"].rewards.shape == (50,)
    assert names["run"].hard_violation[-1] < 50 * names["run"].costs.abs().max()


def test_binary_and_counted_outcomes(capsys):
    policy = run("requests served a minute")["policy"]
    assert "feasible with probability" in capsys.readouterr().out
    fails, restarts = policy.posterior().costs.mean
    assert 0 < float(fails.min()) <= float(fails.max()) < 1
    assert float(restarts.min()) > 0


def test_a_live_system(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = run("state.ckpt")
    assert names["first"].params["threads"] in (1, 2, 4, 8)
    printed = capsys.readouterr().out
    assert printed.startswith(names["first"].id)
    assert "latency <= 18: within in " in printed
    policy = names["policy"]
    states = policy.history()["state"].tolist()
    assert states == ["told", "told", "failed", "cancelled", "open"]
    assert len(policy.outstanding) == 1
    assert names["third"].params not in [c.params for c in policy.outstanding]
    assert len(names["model"].models[0].train_targets) >= 3


def test_the_receipt(capsys):
    with pytest.warns(UserWarning, match="ms breaks its limit since about round 15"):
        policy = run("policy.certificate")["policy"]
    printed = capsys.readouterr().out
    assert printed.startswith("95 % at every look, of all rounds\nms <= 80: told ")
    assert policy.certificate()["ms"].told == 240
    (alarm,) = policy.alarms
    assert 145 <= alarm.since <= 156


def test_listening(capsys):
    assert run("collections.Counter()")["counts"] == {"ask": 3, "tell": 3}


def test_late_feedback_of_several_costs():
    names = run("cb.Delayed")
    policy = names["policy"]
    assert policy.m == 2
    assert policy.outstanding == []
    assert policy.late == 0


def test_large_sets(capsys):
    names = run("1000")
    assert names["actions"].size == 1_000_000
    (comment,) = re.findall(r"# (reward: product .*)", TEXT)
    rank = re.compile(r"\d+ of")  # rounding decides which eigenvalues count
    printed = capsys.readouterr().out.rstrip()
    assert rank.sub("", printed) == rank.sub("", comment)


def test_mixed_sets():
    share, cores, price = run("choices=")["policy"].recommend().x.tolist()
    assert (cores, price) == (2.0, 0.8)  # what its last line says
    assert 0.8 < share <= 1.0


def test_the_loop_in_botorch():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        names = run("cb.acquisition")
    # the best feasible point is (0.5, 0.5), and the limit's price there is 0.4
    assert (names["x"][-5:] - 0.5).abs().max() < 0.1
    assert names["y"][-5:, 1].abs().max() < 0.1
    assert names["phi"].item() == pytest.approx(0.4, abs=0.1)


def test_names_in_the_text_are_there():
    for name in set(re.findall(r"\bcb\.([\w.]+\w)", TEXT)):
        thing = cb
        for part in name.split("."):
            thing = getattr(thing, part)


@pytest.mark.parametrize("path", sorted({*FILES}))
def test_what_they_name_is_there(path):
    assert (ROOT / path).exists()


def test_actions_with_names(capsys):
    names = run("not uncompressed")
    assert names["choice"].params["codec"] in ("lz4", "zstd")
    assert names["policy"].outstanding == []
    assert str(names["choice"].params) in capsys.readouterr().out


def test_a_study_of_optuna(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = run("cb.optuna.Sampler")
    assert names["study"].best_trial.params == {"threads": 4, "codec": "lz4"}
    assert capsys.readouterr().out.count("threads") == 2
    names["study"]._storage._backend.engine.dispose()


def test_contexts(capsys):
    names = run("cb.Context")
    assert names["space"].size == 2
    assert names["router"].actions.size == 3
    assert capsys.readouterr().out.strip().endswith(("large", "newest"))
