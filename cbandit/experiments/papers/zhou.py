"""Zhou and Ji's experiments: CKB and its stage-wise rivals on finite problems.

See :mod:`cbandit.problems.zhou` for the paper and the problems.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

from cbandit.baselines.sgpucb import SGPUCB
from cbandit.baselines.stageopt import StageOpt
from cbandit.beliefs.gp import GP
from cbandit.confidence import RKHS
from cbandit.experiments.experiment import Experiment, Factory, Parameter, Task
from cbandit.explore import TS, UCB, Explore, Rand
from cbandit.policies.ckb import CKB
from cbandit.problems import Table, zhou_finance, zhou_light, zhou_synthetic
from cbandit.simulation.parts import Policy

SAFE_ROUNDS = 100  # StageOpt's expansion and SGP-UCB's exploration: ours


def _policy(
    problem: Table,
    task: Task,
    kind: Callable[..., Policy],
    explore: type[Explore] = UCB,
    **options: object,
) -> Policy:
    """Build a policy with the papers' beliefs and widths.

    The widths are the theory's for ``B`` and ``G = max|g|``, unless ``beta`` is given.
    """
    known, parameters = problem.known, task.settings.parameters
    noises = known.noise, known.cost_noise
    if parameters.get("lam") == "squared":
        noises = known.subgaussian.square(), known.cost_subgaussian.square()
    reward, costs = (GP(known.kernel, noise=noise) for noise in noises)
    beta: Any
    cost_beta: Any
    if parameters["beta"] == "theory":
        rkhs = partial(RKHS, delta=0.1, form="small-lam")
        beta = rkhs(norm=known.bound, subgaussian=known.subgaussian)
        cost_beta = rkhs(norm=known.cost_bound, subgaussian=known.cost_subgaussian)
    else:
        beta = cost_beta = float(parameters["beta"])
    draw = parameters.get("draw")
    law = {"draw": draw} if explore is Rand and draw else {}
    with warnings.catch_warnings():
        # with noise this small the form is a heuristic; no need to warn of it here
        warnings.filterwarnings("ignore", r"RKHS\(form='small-lam'\)")
        return kind(
            problem.actions,
            reward=reward,
            costs=costs,
            explore=explore(beta, cost_beta=cost_beta, **law),
            **{"horizon": task.settings.horizon, **options},
            **task.common,
        )


def _ckb(problem: Table, task: Task, explore: type[Explore]) -> Policy:
    """Build CKB with the theorem's step, and ``rho = 4 B / (delta - slack)``."""
    known, parameters = problem.known, task.settings.parameters
    options: dict[str, Any] = {
        "clip": (known.bound, known.cost_bound),
        "slater": known.slater,
        "slack": parameters.get("slack", 0.0) * known.slater,
    }
    if parameters.get("anytime"):
        options |= {"anytime": True, "horizon": None}
    return _policy(problem, task, CKB, explore, **options)


def _safe(problem: Table, task: Task, kind: Callable[..., Policy]) -> Policy:
    """Build StageOpt or SGP-UCB, which are given some feasible actions."""
    options = {"safe": problem.known.safe, "rounds": SAFE_ROUNDS}
    if kind is StageOpt:
        options["lipschitz"] = problem.known.cost_lipschitz
    return _policy(problem, task, kind, **options)


POLICIES: dict[str, Factory] = {
    "CKB-UCB": partial(_ckb, explore=UCB),
    "CKB-TS": partial(_ckb, explore=TS),
    "CKB-Rand": partial(_ckb, explore=Rand),
    "StageOpt": partial(_safe, kind=StageOpt),
    "SGP-UCB": partial(_safe, kind=SGPUCB),
}
BETA = Parameter("theory", (), "exploration width: the theory's, or a number", 0)


NORMALISE = Parameter(
    "each",
    ("each", "common", "largest"),
    "each: centred, each arm divided by its deviation; common: centred, divided by "
    "the largest deviation; largest: divided by the largest sample",
)


def _seeds(default: int) -> Parameter:
    meaning = "how many safe actions StageOpt and SGP-UCB are told of"
    return Parameter(default, (), meaning, 1)


EXPERIMENTS = (
    Experiment(
        name="zhou-synthetic",
        about="random functions on a line of 100 points (CKB, Figure 1)",
        horizon=10_000,
        trials=50,
        problem=zhou_synthetic,
        policies=POLICIES,
        parameters={
            "cost": Parameter(
                "half",
                ("half", "quarter", "independent"),
                "g = -f + B/2, g = -f + B/4, or another random function",
            ),
            "beta": BETA,
            "noise": Parameter(0.01, (), "noise deviation, a share of f's range", 0),
            "bound": Parameter("max", ("max", "max-abs"), "B: max f, or max|f|"),
            "seeds": _seeds(10),
            "slack": Parameter(0.0, (), "CKB's slack, a share of Slater's constant", 0),
            "anytime": Parameter(0, (0, 1), "1: CKB doubles a guess of the horizon"),
        },
    ),
    Experiment(
        name="zhou-light",
        about="41 light sensors; needs data files",
        horizon=1000,
        trials=50,
        problem=zhou_light,
        policies=POLICIES,
        parameters={
            "beta": BETA,
            "noise": Parameter(
                "resampled", ("resampled", "gaussian"), "how noise is drawn"
            ),
            "seeds": _seeds(5),
            "normalise": NORMALISE,
        },
    ),
    Experiment(
        name="zhou-finance",
        about="29 stocks, heavy-tailed noise; needs data files",
        horizon=10_000,
        trials=50,
        problem=zhou_finance,
        policies=POLICIES,
        parameters={
            "beta": BETA,
            "lam": Parameter(
                "data", ("data", "squared"), "the beliefs' noise: the data's, or R^2"
            ),
            "draw": Parameter(
                "normal", ("normal", "uniform", "gaussian-grid"), "CKB-Rand's draws"
            ),
            "seeds": _seeds(5),
            "normalise": NORMALISE,
        },
    ),
)
