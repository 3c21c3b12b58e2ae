"""BoTorch's constrained test functions on their boxes, under one account.

    python benchmarks/constrained_functions.py [--rounds 40] [--seeds 3] [--json FILE]

CKB-UCB and RPOL-UCB beside BoTorch's constrained ``qLogExpectedImprovement``: the same
beliefs (``cb.GP.default``, fitted anew every 10 observations), the same uniformly drawn
first points, no noise, and settings that are the same for all functions. Printed per
function and policy, over the seeds: the optimum and the best feasible reward tried (in
the function's own units; how many seeds tried a feasible point, and the mean over
those), likewise the reward of what ``policy.recommend()`` names in the end, the hard
and the soft violation (summed over costs; in the units below), and the rounds in
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
from botorch.models import SingleTaskGP
from botorch.sampling import SobolQMCNormalSampler
from botorch.test_functions import synthetic
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.means import ConstantMean
from gpytorch.settings import min_fixed_noise

import cbandit as cb

FUNCTIONS = {
    "ConstrainedGramacy": synthetic.ConstrainedGramacy,
    "ConstrainedHartmann": synthetic.ConstrainedHartmann,
    "PressureVessel": synthetic.PressureVessel,
    "WeldedBeam": synthetic.WeldedBeamSO,
    "TensionCompression": synthetic.TensionCompressionString,
    "SpeedReducer": synthetic.SpeedReducer,
}
WIDTH = 0.5  # of reward and costs: forty rounds are few, and there is no noise
STEP, CAP = 0.5, 200.0  # of CKB's multiplier
MARGIN = (
    0.01  # kept from the limits: a point on the limit itself is over it half the time
)
REFIT = 10


class Scaled:
    """A problem whose reward and costs are on logarithmic scales of unit deviation.

    Those that a designer writes come in units from 1e-3 to 1e10, over orders of
    magnitude, and what matters lies close to 0. Each becomes ``sign(y) log(1 + |y| /
    u)``, ``u`` below which nine tenths of the box do not lie, and is divided by its
    deviation over the box. Signs stay, so what is feasible does.
    """

    def __init__(self, problem: Any) -> None:
        self.inner, self.trials, self.m = problem, None, problem.m
        self.actions = box = problem.actions
        sobol = torch.quasirandom.SobolEngine(box.dim).draw(2048, dtype=torch.float64)
        y = self._raw(box.lower + (box.upper - box.lower) * sobol)
        self.unit = y.abs().quantile(0.1, 0)
        self.deviation = self._logarithms(y).std(0)

    def _raw(self, x: torch.Tensor) -> torch.Tensor:
        reward, costs = self.inner.reward(x, 1), self.inner.costs(x, 1)
        return torch.cat([reward.unsqueeze(-1), costs], -1)

    def _logarithms(self, y: torch.Tensor) -> torch.Tensor:
        return y.sign() * torch.log1p(y.abs() / self.unit)

    def look(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Reward and costs, scaled."""
        z = self._logarithms(self._raw(x)) / self.deviation
        return z[..., 0], z[..., 1:]


def batched(models: Any) -> SingleTaskGP:
    """A list of models of the same points as one, which is a few times faster."""
    first, count = models[0], len(models)
    rbf = RBFKernel(ard_num_dims=first.train_inputs[0].shape[-1])
    rbf = rbf.expand_batch(torch.Size([count]))
    kernel = ScaleKernel(rbf, batch_shape=torch.Size([count])).double()
    parts = [model.covar_module for model in models]
    rbf.lengthscale = torch.stack([part.base_kernel.lengthscale for part in parts])
    kernel.outputscale = torch.stack([part.outputscale for part in parts])
    mean = ConstantMean(batch_shape=torch.Size([count])).double()
    mean.constant.data = torch.stack([m.mean_module.constant for m in models])
    with min_fixed_noise(1e-300, 1e-300, 1e-300):
        model = SingleTaskGP(
            first.input_transform.untransform(first.train_inputs[0]),
            torch.stack([model.train_targets for model in models], -1),
            torch.stack([model.likelihood.noise for model in models], -1),
            covar_module=kernel,
            mean_module=mean,
            outcome_transform=None,
            input_transform=first.input_transform,
        )
    return model.requires_grad_(False).eval()


def log_ei(model: Any, policy: Any) -> qLogExpectedImprovement:
    """BoTorch's constrained improvement over the best feasible observation."""
    y = torch.stack([part.train_targets for part in model.models], -1)
    ok = (y[:, 1:] <= 0).all(-1)
    m = y.shape[-1] - 1
    return qLogExpectedImprovement(
        batched(model.models),
        # where nothing is feasible yet, any feasible point improves
        best_f=y[ok, 0].max() if bool(ok.any()) else y[:, 0].min(),
        sampler=SobolQMCNormalSampler(torch.Size([128]), seed=policy.t),
        objective=GenericMCObjective(lambda z, X=None: z[..., 0]),
        constraints=[lambda z, j=j: z[..., j] for j in range(1, m + 1)],
    )


def policies(box: cb.Box, m: int, seed: int) -> dict[str, Any]:
    """The three, with beliefs of their own."""
    gp = cb.GP.default(box)
    gp.refit_every = REFIT
    common = {"reward": gp, "costs": [gp] * m, "seed": seed}
    ours = {"explore": cb.UCB(WIDTH), "thresholds": -MARGIN, **common}
    return {
        "CKB-UCB": lambda: cb.CKB(box, step=STEP, cap=CAP, **ours),
        "RPOL-UCB": lambda: cb.RPOL(box, **ours),
        "BoTorch qLogEI": lambda: cb.baselines.BoTorchPolicy(
            box, make_acquisition=log_ei, num_restarts=4, raw_samples=64, **common
        ),
    }


def play(problem: Scaled, name: str, seed: int, rounds: int) -> dict[str, float]:
    """One run: ``2 d + 2`` uniform points, then the policy."""
    box = problem.actions
    generator = torch.Generator().manual_seed(seed)
    unit = torch.rand(2 * box.dim + 2, box.dim, generator=generator).double()
    first = box.lower + (box.upper - box.lower) * unit
    reward, costs = problem.look(first)
    policy = policies(box, problem.m, seed)[name]()
    policy.observe(x=first, reward=reward, cost=costs)
    policy.refit()
    tried = []
    start = time.process_time()
    for _ in range(rounds):
        choice = policy.ask()
        reward, costs = problem.look(choice.x)
        policy.tell(choice, reward=reward, cost=costs)
        tried.append(choice.x)
    seconds = time.process_time() - start
    x = torch.stack(tried)
    over = problem.look(x)[1]
    return {
        "best": best(problem.inner, torch.cat([first, x])),
        "recommended": best(problem.inner, policy.recommend().x.unsqueeze(0)),
        "hard_violation": float(over.clamp_min(0).sum()),
        "soft_violation": float(over.sum(0).clamp_min(0).sum()),
        "rounds_in_violation": float((over > 0).any(-1).sum()),
        "cpu_seconds_per_round": seconds / rounds,
        "climbs": policy.climbs.made,
        "climbs_failed": policy.climbs.failed,
    }


def best(problem: Any, x: torch.Tensor) -> float:
    """The greatest reward of feasible points; NaN where none is."""
    kept = problem.reward(x, 1)[(problem.costs(x, 1) <= 0).all(-1)]
    return float(kept.max()) if len(kept) else float("nan")


def row(title: str, name: str, optimum: float, runs: list[dict[str, float]]) -> str:
    """A line of the table."""
    mean = {
        key: float(torch.tensor([run[key] for run in runs]).double().nanmean())
        for key in runs[0]
    }
    found = [
        f"{mean[key]:>11.5g} {sum(run[key] == run[key] for run in runs)}/{len(runs)}"
        for key in ("best", "recommended")
    ]
    share = mean["climbs_failed"] / max(mean["climbs"], 1)
    return (
        f"{title:<20}{name:<16}{optimum:>10.5g}{found[0]}{found[1]}"
        f"{mean['hard_violation']:>9.3g}{mean['soft_violation']:>9.3g}"
        f"{mean['rounds_in_violation']:>8.1f}{mean['cpu_seconds_per_round']:>9.2f}  "
        + (f"{share:.1%}" if mean["climbs"] else "-")
    )


def main() -> None:
    """Print the table, and write it as JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--functions", default=",".join(FUNCTIONS))
    parser.add_argument("--policies", default="CKB-UCB,RPOL-UCB,BoTorch qLogEI")
    parser.add_argument("--json")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = []
    print(
        f"{'function':<20}{'policy':<16}{'optimum':>10}{'best':>11}    "
        f"{'recommended':>11}    {'hard':>9}{'soft':>9}{'rounds':>8}{'cpu s':>9}"
        "  failed climbs"
    )
    for title in options.functions.split(","):
        problem = Scaled(cb.problems.from_botorch(FUNCTIONS[title]()))
        optimum = float(problem.inner.optimum(1))
        for name in options.policies.split(","):
            runs = [
                play(problem, name, seed, options.rounds)
                for seed in range(options.seeds)
            ]
            rows.append(
                {"function": title, "policy": name, "optimum": optimum, "runs": runs}
            )
            print(row(title, name, optimum, runs), flush=True)
    if options.json:
        kept = {"rounds": options.rounds, "seeds": options.seeds, "rows": rows}
        with open(options.json, "w") as file:
            json.dump(kept, file, indent=1)


if __name__ == "__main__":
    main()
