"""The notebooks run, and what they print is what is stored in them."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import logging
import re
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
import torch

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
LONG = ("ckb_in_ax", "ckb_in_botorch", "live_service")
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
    """The same words, and numbers that rounding may have changed a little."""
    assert NUMBER.sub("#", now).split() == NUMBER.sub("#", then).split()
    pairs = zip(NUMBER.findall(now), NUMBER.findall(then), strict=True)
    for one, other in pairs:
        assert float(one) == pytest.approx(float(other), rel=0.05, abs=0.05)


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=pytest.mark.slow if path.stem in LONG else ())
        for path in NOTEBOOKS
    ],
    ids=lambda path: path.stem,
)
def test_notebooks_print_what_is_stored(path):
    cells = json.loads(path.read_text())["cells"]
    cells = [cell for cell in cells if cell["cell_type"] == "code"]
    if any("from ax" in "".join(cell["source"]) for cell in cells):
        pytest.importorskip("ax")
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
    finally:
        logging.disable(before)
        plt.close("all")


def test_notebooks_are_small():
    assert {path.stem for path in NOTEBOOKS} >= {"in_ten_minutes", "own_policy"}
    for path in NOTEBOOKS:
        assert path.stat().st_size < 150_000
