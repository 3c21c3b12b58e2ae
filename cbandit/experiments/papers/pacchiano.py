"""Pacchiano, Ghavamzadeh and Bartlett's experiments: constraints at every stage.

See :mod:`cbandit.problems.pacchiano` for the paper and the problems.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from cbandit.baselines.safe_lts import SafeLTS
from cbandit.beliefs.counts import Counts
from cbandit.beliefs.gp import GP
from cbandit.beliefs.linear import Linear
from cbandit.experiments.experiment import Experiment, Figures, Parameter, Task
from cbandit.explore import UCB
from cbandit.policies.lclucb import LCLUCB
from cbandit.policies.opb import OPB
from cbandit.policies.safe.action import Safe
from cbandit.problems import (
    LinearProblem,
    Table,
    bench_stagewise,
    pacchiano_cyclic,
    pacchiano_hard,
    pacchiano_hard_linear,
    pacchiano_opb_four,
    pacchiano_opb_random,
    pacchiano_sphere,
)
from cbandit.problems.zhou import rbf
from cbandit.simulation.parts import Policy


def _policy(
    problem: Table | LinearProblem,
    task: Task,
    build: Callable[..., Policy],
    belief: Linear | Counts | GP,
    safe: Safe,
    **options: object,
) -> Policy:
    return build(
        problem.actions,
        reward=belief,
        costs=[belief] * problem.m,
        safe=safe,
        thresholds=problem.thresholds,
        delta=0.1,
        **options,
        **task.common,
    )


def _linear(problem: Any, task: Task, build: Callable[..., Policy]) -> Policy:
    """Build LC-LUCB or Safe-LTS with the true ``R`` and ``S = L = lam = 1``."""
    parameters = task.settings.parameters
    r = math.sqrt(parameters.get("noise", 1.0))
    alpha = parameters.get("alpha", "theory")
    belief = Linear(subgaussian=r, ridge=1.0, norm=1.0, length=1.0)
    safe = Safe(x=problem.actions.center)
    inflation = None if alpha == "theory" else float(alpha)
    return _policy(problem, task, build, belief, safe, alpha=inflation)


def _hard_linear(problem: LinearProblem, task: Task) -> Policy:
    """Build LC-LUCB, with the safe arm's reward and cost known; means are in [0, 1]."""
    norm = math.sqrt(problem.actions.dim)
    belief = Linear(subgaussian=1.0, ridge=1.0, norm=norm, length=1.0)
    r0, c0 = problem.theta[..., 0], problem.mu[..., 0]
    safe = Safe(x=torch.eye(problem.actions.dim)[0], reward=r0, cost=c0)
    return _policy(problem, task, LCLUCB, belief, safe)


def _opb(
    problem: Table, task: Task, belief: Counts | GP | None = None, **options: object
) -> Policy:
    """Build OPB with ``delta = 0.1``; the first arm is known to be safe."""
    r = task.settings.parameters.get("R", 1.0)
    belief = belief or Counts(subgaussian=r, means=(0.0, 1.0))
    safe = Safe(index=0, reward=problem.f[..., 0], cost=problem.g[..., 0])
    horizon = task.settings.horizon
    return _policy(problem, task, OPB, belief, safe, horizon=horizon, **options)


def _opb_gp(problem: Table, task: Task) -> Policy:
    """Build OPB's GP form with the functions' prior and a known safe corner."""
    beta = task.settings.parameters["beta"]
    belief = GP(rbf(0.5), noise=task.settings.parameters["noise"])
    explore, largest = UCB(beta) if beta else None, problem.f.amax(-1)
    return _opb(problem, task, belief, explore=explore, largest=largest)


def _tau(default: float, *others: float) -> Parameter:
    return Parameter(default, (default, *others), "the cost's threshold")


# the paper's width has no R, that is 1; values between 0 and 1 have 1/2 at most
RADIUS = Parameter(1.0, (), "OPB's R; 1/2 is enough for 0 or 1", 1e-6)

HARD = {
    "arms": Parameter(4, (), "how many arms", 4),
    "twin": Parameter(0, (0, 1), "1: the instance in which arm 3 is feasible"),
    "r0": Parameter(0.3, (), "the safe arm's reward"),
    "gap": Parameter(0.2, (), "threshold less the safe arm's cost"),
    "tau": Parameter(0.5, (), "the cost's threshold"),
}

LINEAR = {
    "LC-LUCB": partial(_linear, build=LCLUCB),
    "Safe-LTS": partial(_linear, build=SafeLTS),
}

EXPERIMENTS = (
    Experiment(
        name="pacchiano-cyclic",
        about="cyclic shifts of a vector, linear (LC-LUCB, Figures 1, 5 to 7)",
        horizon=10_000,
        trials=10,
        problem=pacchiano_cyclic,
        policies=LINEAR,
        parameters={
            "d": Parameter(10, (10, 5, 3), "the dimension"),
            "tau": _tau(0.5, 0.2, 0.8),
            "noise": Parameter(1.0, (), "the noise's variance, R squared", 0),
            "alpha": Parameter(
                "theory", (), "inflation: each policy's theorem's, or a number", 0
            ),
        },
        figures=Figures(spread="std", evolution="regret"),
    ),
    Experiment(
        name="pacchiano-sphere",
        about="rays to 100 points of the sphere, linear (LC-LUCB, Figure 2)",
        horizon=10_000,
        trials=10,
        problem=pacchiano_sphere,
        policies=LINEAR,
        parameters={
            "d": Parameter(5, (5, 10), "the dimension"),
            "noise": Parameter(1.0, (), "the noise's variance, R squared", 0),
            "rays": Parameter(100, (), "how many rays; the paper has 100 and 1 000", 1),
        },
        figures=Figures(spread="std", evolution="regret"),
    ),
    Experiment(
        name="pacchiano-opb-random",
        about="arms with random Bernoulli means (OPB, Figure 3)",
        horizon=10_000,
        trials=10,
        problem=pacchiano_opb_random,
        policies={"OPB": _opb},
        parameters={
            "arms": Parameter(10, (10, 5, 20), "how many arms"),
            "tau": _tau(0.5, 0.2, 0.8),
            "R": RADIUS,
        },
        figures=Figures(spread="std", width=0.5, evolution="policy_regret"),
    ),
    Experiment(
        name="pacchiano-opb-four",
        about="four arms (OPB, Figures 4 and 8)",
        horizon=10_000,
        trials=10,
        problem=pacchiano_opb_four,
        policies={"OPB": _opb},
        parameters={"tau": _tau(0.8, 0.6, 0.5, 0.2), "R": RADIUS},
        figures=Figures(spread="std", width=0.5, evolution="policy_regret"),
    ),
    Experiment(
        name="pacchiano-hard",
        about="the lower bound's two instances (OPB, Appendix E)",
        horizon=10_000,
        trials=10,
        problem=pacchiano_hard,
        policies={"OPB": _opb},
        parameters=HARD,
        figures=Figures(spread="std", evolution="policy_regret"),
    ),
    Experiment(
        name="pacchiano-hard-linear",
        about="pacchiano-hard as linear bandits (LC-LUCB, Theorem 21)",
        horizon=10_000,
        trials=10,
        problem=pacchiano_hard_linear,
        policies={"LC-LUCB": _hard_linear},
        parameters=HARD,
        figures=Figures(spread="std", evolution="regret"),
    ),
    Experiment(
        name="bench-stagewise",
        about="a million correlated actions, three costs (OPB, GP form; ours)",
        horizon=300,
        trials=1,
        problem=bench_stagewise,
        policies={"OPB": _opb_gp},
        parameters={
            "points": Parameter(1000, (), "how many on each of two axes", 2),
            "costs": Parameter(3, (), "how many costs", 1),
            "noise": Parameter(0.01, (), "the noise's variance"),
            "gap": Parameter(0.5, (), "thresholds less the safe corner's costs", 0),
            "beta": Parameter(2.0, (), "exploration width; 0: the theory's", 0),
        },
        figures=Figures(evolution="policy_regret"),
    ),
)
