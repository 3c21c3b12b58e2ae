"""Draw the figure of the README, and keep the numbers behind it.

    python benchmarks/quality/front.py [--quick] [--out FOLDER]

Two knobs on a grid of 21 x 21 settings, a throughput to earn and a latency whose
average must stay at or below 0.5. Three policies play it with nothing set but
``cb.GP.default``, in the same trials: the same worlds and the same noise. CKB promises
the average, RPOL that excess becomes rare; GP-UCB does not know the limit, and so earns
more than the best setting within it.

It writes ``front.json`` (mean curves with their standard errors, commit, date, machine
and command) and ``front.png``.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import cbandit as cb
from benchmarks.common.report import provenance

RESULTS = Path(__file__).parents[1] / "results"
LIMIT, NOISE = 0.5, 0.05
ROUNDS, TRIALS = 200, 20
Z_95 = 1.96


def throughput(x: Tensor) -> Tensor:
    """Return what each of the settings ``(..., 2)`` earns."""
    a, b = x.unbind(-1)
    return 1.5 * a + b - 0.5 * a**2


def latency(x: Tensor) -> Tensor:
    """Return the cost of each of the settings ``(..., 2)``."""
    a, b = x.unbind(-1)
    return 0.4 * a + 0.5 * b**2 + 0.4 * a * b


def world(trials: int) -> cb.problems.Table:
    """Return the problem as a table of all settings."""
    axis = torch.linspace(0, 1, 21, dtype=torch.float64)
    grid = cb.ProductGrid([axis, axis])
    x = grid.points(torch.arange(grid.size))
    return cb.problems.Table(
        throughput(x),
        latency(x).unsqueeze(0),
        noise=NOISE**2,
        actions=grid,
        trials=trials,
        thresholds=LIMIT,
    )


def policies(problem: cb.problems.Table) -> dict[str, cb.Policy]:
    """Return the policies by the names that the figure shows."""
    actions, trials = problem.actions, problem.trials
    belief = cb.GP.default(actions)
    goal: dict[str, Any] = {"reward": belief, "costs": belief, "thresholds": LIMIT}
    return {
        "CKB": cb.CKB(actions, **goal, trials=trials),
        "RPOL": cb.RPOL(actions, **goal, trials=trials),
        "GP-UCB, no limit": cb.GPUCB(actions, reward=belief, trials=trials),
    }


def curve(values: Tensor) -> dict[str, list[float]]:
    """Return the mean of ``(trials, rounds)`` and its standard error, by round."""
    error = values.std(0) / len(values) ** 0.5
    return {"mean": values.mean(0).tolist(), "sem": error.tolist()}


def play(rounds: int, trials: int) -> dict[str, Any]:
    """Play all policies; return their curves and what they come to in the end."""
    problem, out = world(trials), {}
    count = torch.arange(1, rounds + 1)
    for name, policy in policies(problem).items():
        run = cb.simulate(policy, problem, horizon=rounds)
        over = run.costs[:, 0] if run.costs.shape[-1] == rounds else run.costs[..., 0]
        out[name] = {
            "latency": curve((over - LIMIT).cumsum(-1) / count + LIMIT),
            "missed": curve(run.regret / count),
        }
    return out


def draw(result: dict[str, Any], path: Path) -> None:
    """Draw the average latency beside the reward missed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    colors = ("C0", "C1", "C3")
    for (name, curves), color in zip(result["curves"].items(), colors, strict=True):
        for axes, key in ((left, "latency"), (right, "missed")):
            mean = torch.tensor(curves[key]["mean"])
            band = Z_95 * torch.tensor(curves[key]["sem"])
            rounds = range(1, len(mean) + 1)
            axes.plot(rounds, mean, color=color, label=name)
            axes.fill_between(
                rounds, mean - band, mean + band, color=color, alpha=0.2, linewidth=0
            )
    left.axhline(LIMIT, color="black", linestyle=":", label="the limit")
    left.set(xlabel="round", ylabel="average latency so far")
    right.axhline(0, color="black", linewidth=0.8)
    right.set(xlabel="round", ylabel="throughput missed per round so far")
    handles, labels = left.get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=len(labels), frameon=False
    )
    figure.savefig(path, dpi=110)


def main() -> None:
    """Play, keep and draw."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="few rounds and trials")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where to write")
    given = parser.parse_args()
    rounds, trials = (20, 3) if given.quick else (ROUNDS, TRIALS)
    result = {
        "rounds": rounds,
        "trials": trials,
        "limit": LIMIT,
        "curves": play(rounds, trials),
        **provenance(__file__),
    }
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "front.json").write_text(json.dumps(result) + "\n")
    draw(result, given.out / "front.png")
    for name, curves in result["curves"].items():
        ends = [curves[key]["mean"][-1] for key in ("latency", "missed")]
        print(f"{name}: average latency {ends[0]:.3f}, missed {ends[1]:.3f} a round")


if __name__ == "__main__":
    main()
