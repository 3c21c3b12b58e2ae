"""Split the trials of results by whether a mixture of actions beats every action.

    python benchmarks/mixtures.py results/zhou-independent benchmarks/results/NAME.json

Where it does, a policy that keeps averages does better than any feasible action, by
actions that are not feasible: single rounds violate for ever.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pandas as pd

SHOWN = ("regret", "stochastic_regret", "soft_violation", "rounds_in_violation")


def split(folder: Path) -> list[dict[str, Any]]:
    """Return a summary of either kind of trials."""
    summary = json.loads((folder / "summary.json").read_text())
    columns = ["policy", "trial", "t", *SHOWN]
    frame = pd.read_parquet(folder / "rounds.parquet", columns=columns)
    last = frame[frame.t == summary["horizon"]]
    gained = (last.stochastic_regret - last.regret) / summary["horizon"]
    out = []
    for mixed in (0, 1):
        part = last[(gained > 1e-9) == bool(mixed)]
        policies = {
            name: {
                "trials": len(rows),
                **{k: {"mean": rows[k].mean(), "sem": rows[k].sem()} for k in SHOWN},
            }
            for name, rows in part.groupby("policy", sort=False)
        }
        known = {k: summary[k] for k in ("experiment", "horizon", "seed")}
        parameters = {**summary["parameters"], "mixture": mixed}
        out.append({**known, "parameters": parameters, "policies": policies})
    return out


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    given.out.write_text(json.dumps(split(given.folder), indent=1) + "\n")
