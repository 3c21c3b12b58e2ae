"""The README's first screen runs as it stands."""

import re
from pathlib import Path

import pytest
import torch

import cbandit as cb

README = Path(__file__).parents[1] / "README.md"


def test_the_first_screen_runs(capsys):
    (code, *_) = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.S)
    assert code.count("\n") <= 30
    exec(compile(code, "README.md", "exec"), {})
    said = capsys.readouterr().out
    # what the text below it says of the run
    (mean, late), *_ = re.findall(r"latency ([\d.]+), above 0.5 in (\d+) of", said)
    assert float(mean) < 0.5
    assert int(late) <= 5
    assert re.search(r"reward 1\.2\d*, feasible with probability 0\.9", said)


def test_simulations_and_mixed_sets():
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.S)
    (simulated,) = [code for code in blocks if "cb.simulate" in code]
    (mixed,) = [code for code in blocks if "choices=" in code]
    names = {"cb": cb}
    exec(simulated, names)
    assert names["run"].rewards.shape == (50, 1_000)
    exec(mixed, names)
    share, cores, price = names["policy"].recommend().x.tolist()
    assert (cores, price) == (2.0, 0.8)  # what its last line says
    assert 0.8 < share <= 1.0


def test_a_live_system(tmp_path, monkeypatch):
    first, *blocks = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.S)
    (live,) = [code for code in blocks if "cb.load" in code]
    names = {}
    exec(first.partition("latencies = []")[0], names)
    names |= {
        "past_x": [[0.1, 0.2], [0.3, 0.4]],
        "past_reward": [0.3, 0.8],
        "past_cost": [0.1, 0.3],
        "allowed_now": torch.arange(50),
        "r": 0.4,
        "c": 0.2,
    }
    monkeypatch.chdir(tmp_path)
    exec(live, names)
    assert names["choice"].index < 50
    assert names["policy"].outstanding == []
    assert len(names["policy"].model.models[0].train_targets) == 3


def test_late_feedback_of_several_costs():
    first, *blocks = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.S)
    (late,) = [code for code in blocks if "cb.Delayed" in code]
    names = {}
    exec(first.partition("latencies = []")[0], names)
    exec(late, names)
    policy = names["policy"]
    assert policy.m == 2
    assert policy.outstanding == []
    assert policy.late == 0
    believed = policy.posterior(names["second"].x.unsqueeze(0))
    # drawn towards what was told, from the prior's 0, 0.5 and 2
    assert believed.reward.mean > 0.5
    assert believed.costs.mean[0] < 0.5
    assert believed.costs.mean.shape == (2, 1)


def test_the_loop_in_botorch():
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.S)
    (loop,) = [code for code in blocks if "cb.acquisition" in code]
    names = {}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        exec(loop, names)
    # the best feasible point is (0.5, 0.5), and the limit's price there is 0.4
    assert (names["x"][-5:] - 0.5).abs().max() < 0.1
    assert names["y"][-5:, 1].abs().max() < 0.1
    assert names["phi"].item() == pytest.approx(0.4, abs=0.1)


@pytest.mark.parametrize("path", re.findall(r"\]\(([^)]+)\)", README.read_text()))
def test_what_it_links_to_is_there(path):
    assert (README.parent / path).exists()
