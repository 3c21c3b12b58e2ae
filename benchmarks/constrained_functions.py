"""BoTorch's constrained test functions on their boxes, under one account.

    python benchmarks/constrained_functions.py [--quick] [--json FILE]

CKB-UCB, RPOL-UCB and RPOL-TS (recommended for the best feasible point) beside BoTorch's
constrained ``qLogExpectedImprovement``, 40 rounds after ``2 d + 2`` uniform points, 3
seeds: the same beliefs (``cb.GP.default``, fitted anew every 10 observations), the same
first points, no noise, and settings that are the same for all functions. ``--quick``
takes the first function, 10 rounds and one seed.

Printed per function and policy, over the seeds: the time of a round, refits included
(the policies take turns, a run each; the median run); the best feasible reward tried
and that of what ``policy.recommend()`` names in the end (in the function's own units;
the mean over the seeds that have one, and how many do); the hard and the soft violation
(summed over costs, in units of the scales below); the rounds in violation; the climbs
that failed. The check: no feasible reward is above the known optimum.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from botorch.acquisition.logei import qLogExpectedImprovement
from botorch.acquisition.objective import GenericMCObjective
from botorch.models import SingleTaskGP
from botorch.sampling.normal import SobolQMCNormalSampler
from botorch.test_functions import synthetic
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.means import ConstantMean
from gpytorch.settings import min_fixed_noise

import cbandit as cb
from report import Row, check_of, row_of, say
from report import main as report_main

FUNCTIONS = {
    "ConstrainedGramacy": synthetic.ConstrainedGramacy,
    "ConstrainedHartmann": synthetic.ConstrainedHartmann,
    "PressureVessel": synthetic.PressureVessel,
    "WeldedBeam": synthetic.WeldedBeamSO,
    "TensionCompression": synthetic.TensionCompressionString,
    "SpeedReducer": synthetic.SpeedReducer,
}
POLICIES = ("CKB-UCB", "RPOL-UCB", "RPOL-TS", "BoTorch qLogEI")
WIDTH = 0.5  # of reward and costs: forty rounds are few, and there is no noise
STEP, CAP = 0.5, 200.0  # of CKB's multiplier
MARGIN = 0.01  # kept from the limits: a point on a limit is over it half the time
REFIT = 10
ABOVE = 1e-2  # of the known optimum, which is given to a few digits


@dataclass(frozen=True)
class Sizes:
    """How large it all is; the defaults are the full run's."""

    functions: tuple[str, ...] = tuple(FUNCTIONS)
    policies: tuple[str, ...] = POLICIES
    rounds: int = 40
    seeds: int = 3


QUICK = Sizes(functions=("ConstrainedGramacy",), rounds=10, seeds=1)


class Scaled:
    """A problem whose reward and costs are on logarithmic scales of unit deviation.

    Designers write costs in units from 1e-3 to 1e10, over orders of magnitude, and what
    matters lies close to 0. Each becomes ``sign(y) log(1 + |y| / u)``, where nine
    tenths of the box lie above ``u``, and is divided by its deviation over the box.
    Signs stay, so the feasible set does.
    """

    def __init__(self, problem: Any) -> None:
        self.inner, self.m = problem, problem.m
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

    def best(self, x: torch.Tensor) -> float:
        """The greatest reward of feasible points, as given; NaN where none is."""
        kept = self.inner.reward(x, 1)[(self.inner.costs(x, 1) <= 0).all(-1)]
        return float(kept.max()) if len(kept) else float("nan")


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


def _column(j: int, z: torch.Tensor, X: Any = None) -> torch.Tensor:
    return z[..., j]


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
        objective=GenericMCObjective(partial(_column, 0)),
        constraints=[partial(_column, j) for j in range(1, m + 1)],
    )


def policy_of(name: str, box: cb.Box, m: int, seed: int) -> Any:
    """One of ``POLICIES``, with beliefs of its own."""
    gp = cb.GP.default(box)
    gp.refit_every = REFIT
    common: dict[str, Any] = {"reward": gp, "costs": [gp] * m, "seed": seed}
    if name == "BoTorch qLogEI":
        return cb.baselines.BoTorchPolicy(
            box, make_acquisition=log_ei, num_restarts=4, raw_samples=64, **common
        )
    common["thresholds"] = -MARGIN
    if name == "RPOL-TS":
        return cb.RPOL(box, explore=cb.TS(1.0), **common)
    common["explore"] = cb.UCB(WIDTH)
    if name == "RPOL-UCB":
        return cb.RPOL(box, **common)
    return cb.CKB(box, step=STEP, cap=CAP, **common)


def play(problem: Scaled, name: str, seed: int, rounds: int) -> dict[str, float]:
    """One run: ``2 d + 2`` uniform points, then the policy."""
    say(f"  {name}, seed {seed}")
    box = problem.actions
    generator = torch.Generator().manual_seed(seed)
    unit = torch.rand(2 * box.dim + 2, box.dim, generator=generator).double()
    first = box.lower + (box.upper - box.lower) * unit
    reward, costs = problem.look(first)
    policy = policy_of(name, box, problem.m, seed)
    policy.observe(x=first, reward=reward, cost=costs)
    policy.refit()
    tried, start = [], time.perf_counter()
    for _ in range(rounds):
        choice = policy.ask()
        reward, costs = problem.look(choice.x)
        policy.tell(choice, reward=reward, cost=costs)
        tried.append(choice.x)
    seconds = time.perf_counter() - start
    x = torch.stack(tried)
    over = problem.look(x)[1]
    return {
        "best": problem.best(torch.cat([first, x])),
        "recommended": problem.best(policy.recommend().x.unsqueeze(0)),
        "hard_violation": float(over.clamp_min(0).sum()),
        "soft_violation": float(over.sum(0).clamp_min(0).sum()),
        "rounds_in_violation": float((over > 0).any(-1).sum()),
        "seconds": seconds / rounds,
        "climbs": policy.climbs.made,
        "climbs_failed": policy.climbs.failed,
    }


def summary(
    section: str, name: str, optimum: float, runs: list[dict[str, float]]
) -> Row:
    """A policy's runs on one function."""
    mean = {
        key: float(torch.tensor([run[key] for run in runs]).double().nanmean())
        for key in runs[0]
    }
    found = ", ".join(
        f"{key} {mean[key]:.5g} ({sum(run[key] == run[key] for run in runs)} of "
        f"{len(runs)})"
        for key in ("best", "recommended")
    )
    note = (
        f"{found}; violation hard {mean['hard_violation']:.3g}, soft "
        f"{mean['soft_violation']:.3g}, in {mean['rounds_in_violation']:.1f} rounds"
    )
    if mean["climbs"]:
        note += f"; failed climbs {mean['climbs_failed'] / mean['climbs']:.1%}"
    seen = [run[key] for run in runs for key in ("best", "recommended")]
    above = max([(y - optimum) / abs(optimum) for y in seen if y == y], default=-1.0)
    return row_of(
        section,
        name,
        statistics.median(run["seconds"] for run in runs),
        ours=name != "BoTorch qLogEI",
        checks=[check_of("above the optimum, of its size", above, ABOVE)],
        note=note,
        optimum=optimum,
        runs=runs,
    )


def measure(sizes: Sizes) -> list[Row]:
    """All rows."""
    warnings.simplefilter("ignore")
    rows = []
    for title in sizes.functions:
        problem = Scaled(cb.problems.from_botorch(FUNCTIONS[title]()))
        optimum = float(problem.inner.optimum(1))
        section = f"{title}, optimum {optimum:.5g}, {sizes.rounds} rounds"
        say(section)
        runs: dict[str, list[dict[str, float]]] = {name: [] for name in sizes.policies}
        for seed in range(sizes.seeds):
            for name, each in runs.items():
                each.append(play(problem, name, seed, sizes.rounds))
        rows += [summary(section, name, optimum, each) for name, each in runs.items()]
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    """Run the script."""
    report_main(__file__, __doc__, measure, Sizes(), QUICK, argv)


if __name__ == "__main__":
    main()
