"""BoTorch's constrained test functions on their boxes, under one account.

    python benchmarks/constrained_functions.py [--rounds 60] [--seeds 3] [--json FILE]

CKB-UCB and RPOL-UCB beside BoTorch's constrained ``qLogExpectedImprovement``: the same
beliefs (``cb.GP.default``), the same uniformly drawn first points, no noise. Reward and
costs are divided by their spread over the box. Printed per function and policy, means
over the seeds: the best feasible reward found and the optimum (in the function's own
units), the hard violation (summed over rounds and costs, in spreads), and the rounds in
violation.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from typing import Any

import torch
from botorch.acquisition.logei import qLogExpectedImprovement
from botorch.acquisition.objective import GenericMCObjective
from botorch.sampling import SobolQMCNormalSampler
from botorch.test_functions import synthetic

import cbandit as cb

FUNCTIONS = {
    "ConstrainedGramacy": synthetic.ConstrainedGramacy,
    "ConstrainedHartmann": synthetic.ConstrainedHartmann,
    "PressureVessel": synthetic.PressureVessel,
    "WeldedBeam": synthetic.WeldedBeamSO,
    "TensionCompression": synthetic.TensionCompressionString,
    "SpeedReducer": synthetic.SpeedReducer,
}
STEP, CAP = 2.0, 200.0  # of CKB's multiplier


class Scaled:
    """A problem whose reward and costs are divided by their spread over the box.

    Those that a designer writes come in units from 1e-3 to 1e6; one multiplier step
    serves them all only where they are of one size.
    """

    def __init__(self, problem: Any) -> None:
        self.inner, self.trials, self.m = problem, None, problem.m
        self.actions = problem.actions
        box = problem.actions
        sobol = torch.quasirandom.SobolEngine(box.dim).draw(2048, dtype=torch.float64)
        x = box.lower + (box.upper - box.lower) * sobol
        ends = torch.tensor([0.1, 0.9], dtype=torch.float64)
        low, high = problem.costs(x, 1).quantile(ends, 0)
        self.cost_unit = high - low
        low, high = problem.reward(x, 1).quantile(ends)
        self.unit = float(high - low)

    def reward(self, x: torch.Tensor, t: int) -> torch.Tensor:
        """In its unit."""
        return self.inner.reward(x, t) / self.unit

    def costs(self, x: torch.Tensor, t: int) -> torch.Tensor:
        """In theirs."""
        return self.inner.costs(x, t) / self.cost_unit


def log_ei(model: Any, policy: Any) -> qLogExpectedImprovement:
    """BoTorch's constrained improvement over the best feasible observation."""
    y = torch.stack([part.train_targets for part in model.models], -1)
    ok = (y[:, 1:] <= 0).all(-1)
    m = y.shape[-1] - 1
    return qLogExpectedImprovement(
        model,
        # where nothing is feasible yet, any feasible point improves
        best_f=y[ok, 0].max() if bool(ok.any()) else y[:, 0].min(),
        sampler=SobolQMCNormalSampler(torch.Size([128]), seed=policy.t),
        objective=GenericMCObjective(lambda z, X=None: z[..., 0]),
        constraints=[lambda z, j=j: z[..., j] for j in range(1, m + 1)],
    )


def policies(problem: Any, seed: int) -> dict[str, Any]:
    """The three, with beliefs of their own."""
    box, m = problem.actions, problem.m
    gp = cb.GP.default(box)
    common = {"reward": gp, "costs": [gp] * m, "seed": seed}
    beta = cb.UCB(2.0, 1.0)
    return {
        "CKB-UCB": lambda: cb.CKB(box, explore=beta, step=STEP, cap=CAP, **common),
        "RPOL-UCB": lambda: cb.RPOL(box, explore=beta, **common),
        "BoTorch qLogEI": lambda: cb.baselines.BoTorchPolicy(
            box, make_acquisition=log_ei, num_restarts=4, raw_samples=64, **common
        ),
    }


def play(problem: Any, name: str, seed: int, rounds: int) -> dict[str, float]:
    """One run: ``2 d + 2`` uniform points, then the policy."""
    box = problem.actions
    generator = torch.Generator().manual_seed(seed)
    unit = torch.rand(2 * box.dim + 2, box.dim, generator=generator).double()
    first = box.lower + (box.upper - box.lower) * unit
    f, g = problem.reward(first, 1), problem.costs(first, 1)
    policy = policies(problem, seed)[name]()
    policy.observe(x=first, reward=f, cost=g)
    policy.refit()
    start = time.perf_counter()
    for t in range(1, rounds + 1):
        choice = policy.ask()
        x = choice.x
        policy.tell(choice, reward=problem.reward(x, t), cost=problem.costs(x, t))
        first = torch.cat([first, x.unsqueeze(0)])
    seconds = time.perf_counter() - start
    f, g = problem.reward(first, 1), problem.costs(first, 1)
    over = g[-rounds:].clamp_min(0)
    ok = (g <= 0).all(-1)
    return {
        "best": problem.unit * float(f[ok].max()) if bool(ok.any()) else float("nan"),
        "hard_violation": float(over.sum()),
        "rounds_in_violation": float((over > 0).any(-1).sum()),
        "seconds_per_round": seconds / rounds,
        "climbs": policy.climbs.made,
        "climbs_failed": policy.climbs.failed,
    }


def main() -> None:
    """Print the table, and write it as JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--functions", default=",".join(FUNCTIONS))
    parser.add_argument("--policies", default="CKB-UCB,RPOL-UCB,BoTorch qLogEI")
    parser.add_argument("--json")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = []
    print(
        f"{'function':<20}{'policy':<16}{'optimum':>11}{'best':>11}{'hard viol.':>11}"
        f"{'rounds':>8}{'s/round':>9}  failed climbs"
    )
    for title in options.functions.split(","):
        problem = Scaled(cb.problems.from_botorch(FUNCTIONS[title]()))
        optimum = float(problem.inner.optimum(1))
        for name in options.policies.split(","):
            runs = [
                play(problem, name, seed, options.rounds)
                for seed in range(options.seeds)
            ]
            mean = {
                key: float(torch.tensor([run[key] for run in runs]).double().nanmean())
                for key in runs[0]
            }
            rows.append(
                {"function": title, "policy": name, "optimum": optimum, "runs": runs}
            )
            share = mean["climbs_failed"] / max(mean["climbs"], 1)
            print(
                f"{title:<20}{name:<16}{optimum:>11.5g}{mean['best']:>11.5g}"
                f"{mean['hard_violation']:>11.3g}{mean['rounds_in_violation']:>8.1f}"
                f"{mean['seconds_per_round']:>9.2f}  "
                + (f"{share:.1%}" if mean["climbs"] else "-"),
                flush=True,
            )
    if options.json:
        kept = {"rounds": options.rounds, "seeds": options.seeds, "rows": rows}
        with open(options.json, "w") as file:
            json.dump(kept, file, indent=1)


if __name__ == "__main__":
    main()
