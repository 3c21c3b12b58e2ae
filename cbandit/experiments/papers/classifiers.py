"""Digits read by one of four classifiers, under two limits.

See :mod:`cbandit.problems.classifiers`. CKB keeps both limits on average; RPOL keeps
them in each round, and so mostly avoids the classifiers that exceed them.
"""

from __future__ import annotations

from typing import Any

from cbandit.baselines import Random
from cbandit.beliefs.gp import GP
from cbandit.experiments.experiment import Experiment, Figures, Parameter, Task
from cbandit.policies.ckb import CKB
from cbandit.policies.rpol import RPOL
from cbandit.problems.classifiers import digits
from cbandit.problems.contexts import Contexts


def _goal(problem: Contexts) -> dict[str, Any]:
    gp = GP.linear(problem.actions)
    costs = dict.fromkeys(problem.thresholds, gp)
    return {"reward": gp, "costs": costs, "thresholds": problem.thresholds}


def _ckb(problem: Contexts, task: Task) -> CKB:
    return CKB(problem.actions, **_goal(problem), **task.common)


def _rpol(problem: Contexts, task: Task) -> RPOL:
    return RPOL(problem.actions, **_goal(problem), **task.common)


def _random(problem: Contexts, task: Task) -> Random:
    names = list(problem.thresholds)
    common = {"thresholds": problem.thresholds, **task.common}
    return Random(problem.actions, costs=names, **common)


EXPERIMENTS = (
    Experiment(
        name="digits",
        about="choose one of four classifiers per picture, under two limits on average",
        horizon=1798,
        trials=10,
        problem=digits,
        policies={"CKB": _ckb, "RPOL": _rpol, "Random": _random},
        parameters={
            "sent": Parameter(20.0, (), "limit on the mean pixels per picture", 0.1),
            "operations": Parameter(1e4, (), "limit on the mean multiplications", 1.0),
        },
        figures=Figures(averaged=("regret", "reward", "soft_violation")),
    ),
)
