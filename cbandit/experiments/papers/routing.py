"""Requests routed to language models: CKB beside the router published with the data.

See :mod:`cbandit.problems.language_models` for the data. The rival, ParetoBandit by
A. Taberner-Miller, is LinUCB with forgetting and a pacer for the budget; it runs
through its own package.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import numpy as np
import torch

from cbandit._core.arguments import stated
from cbandit._core.randomness import trial_range
from cbandit.actions import Actions
from cbandit.beliefs.gp import GP
from cbandit.errors import CBanditError
from cbandit.experiments.experiment import Experiment, Figures, Parameter, Task
from cbandit.explore import UCB
from cbandit.policies.abilities import Abilities
from cbandit.policies.base import Policy
from cbandit.policies.choices import News
from cbandit.policies.ckb import CKB
from cbandit.policies.keywords import PolicyKeywords
from cbandit.policies.saving import locked
from cbandit.policies.turn import Decision, Turn
from cbandit.problems.contexts import Contexts
from cbandit.problems.language_models import FEATURES, MISSING, routing


class Routers:
    """One ``BanditRouter`` of ``paretobandit`` per trial, and all calls made to it.

    Checkpoints and copies hold the calls and answers; routers are rebuilt from them.

    Args:
        prices: each model's prices, as in the ``model_registry`` of ``create``.
        known: how many of the models are known at first.
        penalty: the routers' ``cost_penalty``.
        limits: the mean cost that the pacers aim at, one for each trial.
        seeds: the routers' seeds, one for each trial.
    """

    def __init__(
        self,
        prices: Sequence[Mapping[str, float]],
        known: int,
        penalty: float,
        limits: Sequence[float],
        seeds: Sequence[int],
    ) -> None:
        self.prices, self.known, self.penalty = list(map(dict, prices)), known, penalty
        self.limits, self.seeds = list(limits), list(seeds)
        self.calls: list[tuple[str, Any]] = []
        self._made: list[Any] | None = self._fresh()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_made": None}

    def _fresh(self) -> list[Any]:
        try:
            from pareto_bandit import BanditRouter
            from pareto_bandit.budget_pacer import BudgetPacer
            from pareto_bandit.config import BEST_K3_TABULA_RASA_HPARAMS as COLD
            from pareto_bandit.feature_service import FeatureService
            from pareto_bandit.storage import EphemeralContextStore
        except ImportError as error:
            raise CBanditError(MISSING) from error
        logging.getLogger("pareto_bandit").setLevel(logging.ERROR)
        models = {str(k): dict(self.prices[k]) for k in range(self.known)}
        return [
            BanditRouter.create(
                model_registry=dict(models),
                feature_service=FeatureService.for_precomputed(FEATURES + 1),
                context_store=EphemeralContextStore(),
                priors="none",
                alpha=COLD["alpha"],
                forgetting_factor=COLD["forgetting_factor"],
                cost_penalty=self.penalty,
                budget_pacer=BudgetPacer(limit),
                bandit_seed=seed,
            )
            for limit, seed in zip(self.limits, self.seeds, strict=True)
        ]

    def call(self, kind: str, values: Any) -> list[int]:
        """Make a call to all routers; for ``"route"``, return the models they choose.

        Args:
            kind: ``"route"``, with a row of features per trial; ``"reward"`` or
                ``"cost"``, with the feedback: a trial, for a reward also the features
                and the model, then the value; ``"register"``, with a model.
            values: what ``kind`` comes with.
        """
        if self._made is None:
            self._made = self._fresh()
            for earlier in self.calls:
                _put(self._made, self.prices, *earlier)
        self.calls.append((kind, values))
        return _put(self._made, self.prices, kind, values)


def _put(
    routers: Sequence[Any], prices: Sequence[Any], kind: str, values: Any
) -> list[int]:
    """Make a call to all routers, as :meth:`Routers.call` describes."""
    if kind == "route":
        rows = np.array(values)
        return [int(r.route(row)[0]) for r, row in zip(routers, rows, strict=True)]
    if kind == "register":
        for router in routers:
            router.register_model(str(values), **prices[values])
    for i, *told in values if kind in ("reward", "cost") else ():
        if kind == "cost":
            routers[i].budget_pacer.observe(*told)
        else:  # the clock advanced when the request was routed
            row, model, reward = told
            name = str(model)
            routers[i].update(name, np.array(row), reward, advance_time=False)
    return []


class ParetoRouter(Policy):
    """Route by the ``BanditRouter`` of ``paretobandit``, one router per trial.

    It starts without priors, with the width and the forgetting that the package states
    for a cold start, and keeps the first cost near its threshold by an adaptive pacer.

    Args:
        actions: a space of one category, the models, and a context of 25 numbers.
        prices: each model's prices, as in the ``model_registry`` of ``create``.
        costs: how many costs there are; only the first is paced.
        known: how many models it knows at first; ``None``: all.
        penalty: the router's ``cost_penalty``; 0, as in the package's own demonstration
            of budgets, leaves costs to the pacer alone.
        common: see below.
    """

    name = "ParetoBandit"
    abilities = Abilities(contexts=True)

    def __init__(
        self,
        actions: Actions,
        *,
        prices: Sequence[Mapping[str, float]],
        costs: int = 1,
        known: int | None = None,
        penalty: float = 0.0,
        **common: Unpack[PolicyKeywords],
    ) -> None:
        self.settings = stated(self, locals())
        super().__init__(actions, costs, **common)
        limits = self.limits(1)[:, 0].expand(self.size).tolist()
        seeds = [self.seed + number for number in trial_range(self.trials) or range(1)]
        count = len(prices) if known is None else known
        self.begin(Routers(prices, count, penalty, limits, seeds))

    @locked
    def register(self, model: int) -> None:
        """Make one more model known to the routers, by its number."""
        self._now.state.call("register", model)

    def decide(self, state: Routers, turn: Turn) -> tuple[Decision, Routers]:
        """Return the model that each router chooses."""
        if turn.shown is None:
            raise CBanditError(f"{self.name} needs a space with a cb.Context")
        models = state.call("route", _with_one(turn.shown.values))
        return Decision(torch.tensor(models)), state

    def absorb(self, state: Routers, news: News) -> Routers:
        """Tell the routers the rewards, and their pacers the first cost."""
        on: Any = self.actions
        x = news.choice.x.reshape(self.size, -1)
        rows, models = _with_one(on.split(x)[1]), on.index(x).tolist()
        for told in news.rewards:
            came = told.mask().nonzero()[:, 0].tolist()
            rewards = told.values[:, 0].tolist()
            state.call("reward", [(i, rows[i], models[i], rewards[i]) for i in came])
        for told in news.costs:
            values, which = told.in_columns(self.m)
            spent = values[:, 0].tolist()
            some = which[:, 0].nonzero()[:, 0].tolist()
            state.call("cost", [(i, spent[i]) for i in some])
        return state


def _with_one(values: torch.Tensor) -> list[list[float]]:
    return [[*row, 1.0] for row in values.tolist()]


# dollars per million tokens of the data's models, as the package lists them
PRICES = (
    {"input_cost_per_m": 0.1, "output_cost_per_m": 0.1},
    {"input_cost_per_m": 0.5, "output_cost_per_m": 1.5},
    {"input_cost_per_m": 1.25, "output_cost_per_m": 10.0},
)


# chosen on the training requests alone, like the belief's constant: with the mean,
# choices whose costs are underestimated spend more than the budget
CAUTION = -0.25


def _ckb(problem: Contexts, task: Task) -> CKB:
    fade = task.settings.parameters["fade"]
    fade = None if fade == 1 else fade
    gp = GP.linear(problem.actions, fade=fade, constant=FEATURES)
    goal = {"reward": gp, "costs": {"usd": gp}, "thresholds": problem.thresholds}
    width = UCB(task.settings.parameters["beta"])
    return CKB(problem.actions, **goal, explore=width, dual_beta=CAUTION, **task.common)


def _router(problem: Contexts, task: Task) -> ParetoRouter:
    limit = problem.thresholds["usd"]
    return ParetoRouter(problem.actions, prices=PRICES, thresholds=limit, **task.common)


EXPERIMENTS = (
    Experiment(
        name="routing",
        about="requests to language models under a budget (data of ParetoBandit)",
        horizon=3609,
        trials=20,
        problem=routing,
        policies={"CKB": _ckb, "ParetoBandit": _router},
        parameters={
            "budget": Parameter(6.6e-4, (), "dollars per request, on average", 1e-6),
            "beta": Parameter(1.0, (), "CKB's exploration width", 0),
            "fade": Parameter(1.0, (), "share of its data CKB keeps a request", 0.5),
        },
        changes=(1786,),
        figures=Figures(averaged=("regret", "reward", "soft_violation")),
    ),
)
