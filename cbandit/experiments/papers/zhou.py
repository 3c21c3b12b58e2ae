"""Zhou and Ji's experiments: CKB and its stage-wise rivals on finite problems.

See :mod:`cbandit.problems.zhou` for the paper and the problems.
"""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

from cbandit.baselines.sgpucb import SGPUCB
from cbandit.baselines.stageopt import StageOpt
from cbandit.beliefs.gp import GP
from cbandit.confidence import RKHS
from cbandit.experiments.task import Experiment, Factory, Parameter, Task, problem_of
from cbandit.explore import TS, UCB, Explore, Rand
from cbandit.policies.ckb import CKB
from cbandit.problems import zhou_finance, zhou_light, zhou_synthetic
from cbandit.simulation.parts import Policy

__all__ = ["EXPERIMENTS"]

SAFE_ROUNDS = 100  # StageOpt's expansion and SGP-UCB's exploration: ours


def _widths(problem: Any, task: Task) -> tuple[Any, Any]:
    """The widths of reward and cost: the papers' form, or the number that was given.

    Beside noise as small as theirs that form is a heuristic.
    """
    known, given = problem.known, task.settings.parameters["beta"]
    if given != "theory":
        return float(given), float(given)
    rkhs = partial(RKHS, delta=0.1, form="small-lam")
    beta = rkhs(norm=known.bound, subgaussian=known.subgaussian)
    return beta, rkhs(norm=known.cost_bound, subgaussian=known.cost_subgaussian)


def _quietly(build: Factory, problem: Any, task: Task) -> Policy:
    """Build a policy; that its width is a heuristic is known here."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"RKHS\(form='small-lam'\)")
        return build(problem, task)


def _beliefs(problem: Any, task: Task) -> dict[str, Any]:
    known = problem.known
    noises = known.noise, known.cost_noise
    if task.settings.parameters.get("lam") == "squared":
        noises = known.subgaussian.square(), known.cost_subgaussian.square()
    reward, costs = (GP(known.kernel, noise=noise) for noise in noises)
    return {"reward": reward, "costs": costs}


def _ckb(problem: Any, task: Task, explore: type[Explore]) -> Policy:
    """CKB with RKHS widths at ``B`` and ``G = max|g|``; ``rho = 4B/delta``."""
    known, draw = problem.known, task.settings.parameters.get("draw")
    own = {"draw": draw} if explore is Rand and draw else {}
    beta, cost_beta = _widths(problem, task)
    return CKB(
        problem.actions,
        **_beliefs(problem, task),
        explore=explore(beta, cost_beta=cost_beta, **own),
        clip=(known.bound, known.cost_bound),
        slater=known.slater,
        cap=4 * known.bound / known.slater,
        horizon=task.settings.horizon,
        **task.common,
    )


def _safely(problem: Any, task: Task) -> dict[str, Any]:
    """StageOpt's and SGP-UCB's arguments: known feasible actions, CKB's widths."""
    beta, cost_beta = _widths(problem, task)
    return {
        **_beliefs(problem, task),
        "explore": UCB(beta, cost_beta=cost_beta),
        "safe": problem.known.safe,
        "rounds": SAFE_ROUNDS,
        "horizon": task.settings.horizon,
        **task.common,
    }


def _stage_opt(problem: Any, task: Task) -> Policy:
    lipschitz = problem.known.cost_lipschitz
    return StageOpt(problem.actions, lipschitz=lipschitz, **_safely(problem, task))


def _sgp_ucb(problem: Any, task: Task) -> Policy:
    return SGPUCB(problem.actions, **_safely(problem, task))


POLICIES: dict[str, Factory] = {
    "CKB-UCB": partial(_quietly, partial(_ckb, explore=UCB)),
    "CKB-TS": partial(_quietly, partial(_ckb, explore=TS)),
    "CKB-Rand": partial(_quietly, partial(_ckb, explore=Rand)),
    "StageOpt": partial(_quietly, _stage_opt),
    "SGP-UCB": partial(_quietly, _sgp_ucb),
}
BETA = Parameter("theory", (), "exploration width: the theory's, or a number", 0)


def _seeds(default: int) -> Parameter:
    meaning = "how many safe actions StageOpt and SGP-UCB are told of"
    return Parameter(default, (), meaning, 1)


EXPERIMENTS = (
    Experiment(
        name="zhou-synthetic",
        about="random functions on a line of 100 points (CKB, Figure 1)",
        horizon=10_000,
        trials=50,
        problem=problem_of(zhou_synthetic, "cost", "noise", "bound", "seeds"),
        policies=POLICIES,
        parameters={
            "cost": Parameter(
                "half",
                ("half", "quarter", "independent"),
                "g = -f + B/2, g = -f + B/4, or a random function of its own",
            ),
            "beta": BETA,
            "noise": Parameter(0.01, (), "its deviation, a share of f's range", 0),
            "bound": Parameter("max", ("max", "max-abs"), "B: max f, or max|f|"),
            "seeds": _seeds(10),
        },
    ),
    Experiment(
        name="zhou-light",
        about="41 light sensors; needs data files",
        horizon=1000,
        trials=50,
        problem=problem_of(zhou_light, "noise", "seeds"),
        policies=POLICIES,
        parameters={
            "beta": BETA,
            "noise": Parameter(
                "resampled", ("resampled", "gaussian"), "how it is drawn"
            ),
            "seeds": _seeds(5),
        },
    ),
    Experiment(
        name="zhou-finance",
        about="29 stocks, heavy-tailed noise; needs data files",
        horizon=10_000,
        trials=50,
        problem=problem_of(zhou_finance, "seeds"),
        policies=POLICIES,
        parameters={
            "beta": BETA,
            "lam": Parameter(
                "data", ("data", "squared"), "the beliefs' noise: the data's, or R^2"
            ),
            "draw": Parameter(
                "normal", ("normal", "uniform", "gaussian-grid"), "CKB-Rand's law"
            ),
            "seeds": _seeds(5),
        },
    ),
)
