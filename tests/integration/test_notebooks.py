"""The notebooks run, print what is stored but for its digits, and keep their word.

A run's digits are a processor's: what the text says of them is checked instead.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import logging
import re
import warnings

import matplotlib.pyplot as plt
import pandas as pd
import pytest
import torch
from places import ROOT

import cbandit as cb

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
LONG = (
    "ckb_in_ax",
    "ckb_in_botorch",
    "few_evaluations",
    "live_service",
    "tail_limit",
)
NUMBER = re.compile(r"-?\d+(?:\.\d*)?(?:e[-+]?\d+)?")


def run(source, names):
    """What a cell prints, with the value of its last line if that is shown."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, "cell", "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    hidden = source.rstrip().endswith(";")
    return printed.getvalue(), None if hidden else value


def stored(cell, kind, key):
    return [
        "".join(output[kind] if key is None else output[kind].get(key, ""))
        for output in cell["outputs"]
        if kind in output
    ]


def agree(now, then):
    """The same words, around numbers that may be others, however these are padded."""

    def words(text):
        return re.sub(r"([\[\]])", r" \1 ", NUMBER.sub("#", text)).split()

    assert words(now) == words(then)


def total(run, name, last=None):
    """A count's mean over trials, of all rounds or the ``last`` of them."""
    count = getattr(run, name)
    before = 0 if last is None else count[:, -1 - last]
    return float((count[:, -1] - before).double().mean())


def a_million_actions(names):
    assert names["actions"].size == names["space"].size == 1_000_000
    for policy in (names["policy"], names["named"]):
        assert "product (a product grid" in policy.engine
    assert sum(names["spent"]) / len(names["spent"]) <= 0.5
    best = names["best"]
    assert bool(best.feasible)
    assert best.x.tolist() == pytest.approx([0.66, 0.47], abs=0.15)


def acquisition_rules(names):
    rows = names["rows"]
    assert list(rows) == ["EI", "PI", "KG", "MES"]
    for row in rows.values():
        assert -0.01 < row["gap"] < 0.05
        assert row["within limit"] >= 16
    assert max(rows, key=lambda name: rows[name]["violation"]) == "MES"


def choosing_a_policy(names):
    ckb, rpol, opb, free = (
        names["rows"][each] for each in ("CKB-UCB", "RPOL-UCB", "OPB", "GPUCB")
    )
    assert max(ckb["average heat"], opb["average heat"]) <= 0.5
    assert opb["rounds above"] <= rpol["rounds above"] < ckb["rounds above"] / 2
    assert rpol["hottest, second half"] < 0.55 < ckb["hottest, second half"]
    assert opb["average speed"] < min(ckb["average speed"], rpol["average speed"])
    assert free["rounds above"] > 45
    assert free["average speed"] > max(ckb["average speed"], rpol["average speed"])
    for policy in names["policies"][:3]:
        assert all(policy.recommend().feasible.tolist())


def ckb_in_botorch(names):
    first, second, third = names["batch"]
    gaps = [(first - second), (first - third), (second - third)]
    assert min(float(gap.norm()) for gap in gaps) > 0.1


def few_evaluations(names):
    best = {}
    for name, (policy, told) in names["runs"].items():
        over = told[:, 1].clamp_min(0)
        assert over[0] > 0 and over[:5].mean() > 4 * over[-10:].mean()
        assert (over[-10:] > 0).sum() <= 3
        best[name] = float(told[over == 0, 0].max())
        assert bool(policy.recommend().feasible)
    first, second = best.values()
    assert first > 1.5 and second > -3.6


def in_ten_minutes(names):
    world = names["world"]
    assert f"{float(world.optimum(1)):.3f}" == "0.611"
    assert f"{float(world.stochastic_optimum(1)):.3f}" == "0.830"
    assert bool(names["policy"].recommend().feasible)
    ckb, rpol = names["runs"]
    assert total(ckb, "regret") < 0 < total(ckb, "stochastic_regret")
    for each in (ckb, rpol):
        soft = each.soft_violation.mean(0)
        assert soft[-1] < 1 and soft[-1] <= soft.max() / 2
    assert total(ckb, "hard_violation", 100) > 5 > total(rpol, "hard_violation", 100)
    early = total(rpol, "rounds_in_violation") - total(rpol, "rounds_in_violation", 100)
    assert total(rpol, "rounds_in_violation", 100) < early
    price = names["price"]
    assert ckb.prices[:, -100:].mean() < rpol.prices[:, -1].mean()
    assert rpol.prices[:, -1].mean() > 5 * price


def own_policy(names):
    ckb, shrinking, rpol, squares = (
        names["means"][each] for each in ("CKB-UCB", "Shrinking", "RPOL-UCB", "Squares")
    )
    assert max(ckb["soft_violation"], shrinking["soft_violation"]) < 1
    assert shrinking["rounds_in_violation"] < ckb["rounds_in_violation"]
    assert shrinking["regret"] > ckb["regret"]
    assert squares["rounds_in_violation"] > rpol["rounds_in_violation"]
    assert squares["hard_violation"] < 0.3 * squares["rounds_in_violation"]


def own_table(names):
    problem = names["problem"]
    assert problem.actions.size == 40 and problem.dropped == (5,)
    ckb, rpol, random = names["runs"]
    latency = ckb.true_costs[..., 0].cumsum(1)
    assert bool((latency[:, 5:] <= 0).all())
    assert total(rpol, "rounds_in_violation", 25) <= 2
    assert total(rpol, "regret") < total(ckb, "regret") < total(random, "regret")
    for policy in names["policies"]:
        assert policy.recommend().params[0] == problem.actions.names.params(
            names["best"]
        )


def route_requests(names):
    late = names["late"]
    shares = pd.crosstab(late["policy"], late["model"], normalize="index")
    dear, cheap = "gemini-2.5-pro", "llama-3.1-8b-instruct"
    assert shares.loc["GP-UCB", dear] > 0.4 > 0.2 > shares.loc["CKB-UCB", dear]
    assert shares.loc["CKB-UCB", cheap] > 0
    spent = float(names["runs"][0].costs[:, 300:].mean())
    assert spent < float(names["runs"][1].costs[:, 300:].mean()) / 5
    assert float(names["budget"].left) > 0 and float(names["budget"].spent) < 0.5


def tail_limit(names):
    assert sum(names["kept"]) >= 0.9 * len(names["kept"])
    assert names["chance"](**names["best"].params) <= 0.01
    assert names["reached"] > 0.9 * max(names["speeds"].values())


def would_it_be_kept(names):
    table, gate = names["table"], names["gate"]
    keeps = table["keeps both"]
    assert len(gate.verdicts) == 10 and set(table["verdict"]) == {
        "ship",
        "hold",
        "reject",
    }
    assert keeps[table["verdict"] == "ship"].all() and len(gate.shipped) >= 3
    assert not keeps[table["verdict"] == "reject"].any()
    for name in ("all small", "large below 0.16", "nearest below 0.3"):
        found = cb.evaluate(names["log"], names["candidates"][name])
        for value, true in zip(found, table.loc[name].iloc[:3], strict=True):
            assert value.lower <= true <= value.upper
    one, other = names["relative"]
    assert one.verdict == "ship" and other.verdict != "ship"


CLAIMS = {
    each.__name__: each
    for each in (
        a_million_actions,
        acquisition_rules,
        choosing_a_policy,
        ckb_in_botorch,
        few_evaluations,
        in_ten_minutes,
        own_policy,
        own_table,
        route_requests,
        tail_limit,
        would_it_be_kept,
    )
}


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=pytest.mark.slow if path.stem in LONG else ())
        for path in NOTEBOOKS
    ],
    ids=lambda path: path.stem,
)
def test_notebooks_run_and_keep_their_word(path):
    cells = json.loads(path.read_text())["cells"]
    cells = [cell for cell in cells if cell["cell_type"] == "code"]
    if any("from ax" in "".join(cell["source"]) for cell in cells):
        pytest.importorskip("ax")
    if path.stem == "route_requests":
        pytest.importorskip("pareto_bandit")
    assert [cell["execution_count"] for cell in cells] == [*range(1, len(cells) + 1)]
    names, before = {"__name__": "__main__"}, logging.root.manager.disable
    try:
        with torch.random.fork_rng(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for cell in cells:
                printed, value = run("".join(cell["source"]), names)
                agree(printed, "".join(stored(cell, "text", None)))
                if any(stored(cell, "data", "image/png")):
                    continue  # of a picture only that it can be drawn
                shown = "".join(stored(cell, "data", "text/plain"))
                agree("" if value is None else repr(value), shown)
            CLAIMS.get(path.stem, lambda names: None)(names)
    finally:
        logging.disable(before)
        plt.close("all")


def test_every_claim_is_of_a_notebook():
    own = {path.stem for path in NOTEBOOKS if "assert " in path.read_text()}
    assert CLAIMS.keys() | own == {path.stem for path in NOTEBOOKS}


def test_notebooks_are_small():
    assert {path.stem for path in NOTEBOOKS} >= {"in_ten_minutes", "own_policy"}
    for path in NOTEBOOKS:
        assert path.stat().st_size < 150_000
