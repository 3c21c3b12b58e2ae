"""Learn from failures: a belief about the probability that an action fails.

The belief is made at the first failure, from all rounds measured and failed by then. It
is binary: ``P(fails) = Phi(f)``, where ``f`` is a Gaussian process of variance 1 with
the set's default kernel, and its mean says that 5 % of all actions fail. Lengthscales
are learned (with contexts of many numbers ``f`` is linear). One failure at an action
that was never measured raises its probability to 0.24, two to 0.41, three to 0.52.

An action is left out if its probability to fail is above a bar. An action that fails
loses the round, and near a region that fails the belief passes one half slowly: with a
bar at one half, a policy loses about every second round. So the bar lies half-way
between one half and the least probability at any action tried so far, mostly a little
above one quarter: one failure may be luck, two are not. If all actions fail half of the
time, the bar is one half. If no action is below it, those least likely to fail remain.

``T`` counts the trials, ``n`` actions. "Fresh" results are not in the belief yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from cbandit._core import devices
from cbandit.actions import Actions
from cbandit.beliefs.gp import GP
from cbandit.errors import CBanditError
from cbandit.policies.choices import Data, News, Place
from cbandit.policies.history import STATES
from cbandit.policies.round import Concern, ReadPast
from cbandit.policies.setup import Setup
from cbandit.policies.turn import Fence, Turn
from cbandit.posterior.beliefs import Beliefs
from cbandit.posterior.log import Observation

PRIOR_FAILURE_SHARE = 0.05  # the share of actions expected to fail, before any data
MAX_TRIES = 256  # the latest tries, among which the bar's least probability is sought


class Result(NamedTuple):
    """Whether the action of a round failed or was measured.

    Args:
        place: the round's actions.
        failed: the trials in which the action failed, ``(T,)`` bool on the host.
        measured: the trials in which it was measured, ``(T,)`` bool on the host.
    """

    place: Place
    failed: Tensor
    measured: Tensor


class FailureModel(NamedTuple):
    """A belief about failures, and the results that it has not absorbed yet.

    Args:
        beliefs: the belief about the latent ``f``; ``None``: not made yet.
        fresh: the results that the belief has not absorbed.
    """

    beliefs: Any
    fresh: tuple[Result, ...] = ()

    def note(self, result: Result) -> FailureModel:
        """Return the model with one more fresh result."""
        return self._replace(fresh=(*self.fresh, result))

    def absorb_results(self) -> FailureModel:
        """Return the model after its belief has absorbed all fresh results."""
        beliefs = self.beliefs
        for result in sorted(self.fresh, key=lambda each: each.place.t):
            either, (keys, x, t) = result.failed | result.measured, result.place
            values = devices.put(result.failed, beliefs.prior.device).unsqueeze(-1)
            row = Observation([0], keys, x, values.double(), either.tolist(), t=t)
            beliefs = beliefs.absorb([row])
        return FailureModel(beliefs.refit(due_only=True))

    def fence(self) -> Fence:
        """Return the fence that leaves out actions that likely fail."""
        bar = self._bar().unsqueeze(1)

        def excess(mean: Tensor, std: Tensor) -> Tensor:
            height = _probit(mean, std).unsqueeze(1)
            return height - bar.to(height)

        return Fence(self.beliefs, excess, lasting=True)

    def _bar(self) -> Tensor:
        """Return the bar on the probit scale, ``(T, 1)``."""
        tried = _probit(*self.beliefs.anywhere(self.beliefs.incumbents(MAX_TRIES)))
        least = torch.special.ndtr(tried.amin(-1, keepdim=True))
        bar: Tensor = torch.special.ndtri(0.5 * (least + 0.5)).clamp_max(0.0)
        return bar


def _probit(mean: Tensor, std: Tensor) -> Tensor:
    """Return the probability to fail on the probit scale ``Phi^-1``, ``(T, n)``."""
    return mean[:, 0] / (1 + std[:, 0].square()).sqrt()


class FailureBelief(Concern[FailureModel | None]):
    """Learn where actions fail, and leave out those that likely do.

    The state is ``None`` until an action fails.
    """

    keywords: ClassVar = {
        "failures": """``None``: where actions fail is learned. At the first
        ``tell(choice, failed=True)`` a belief about the probability to fail is made,
        from all that was measured. What likely fails is not asked for while anything
        else is left: from a probability on that is half-way between one half and the
        least at any action tried, mostly a little above one quarter. An action that
        failed once may be asked for again. ``False``: what has failed is never asked
        for again, and nothing is said of others. So it is too where the rule is not one
        score alone (SafeOpt, StageOpt, BoTorchPolicy, ADMMBO, OPB), for arms known by
        their covariance alone, and for contexts of more than eight numbers."""
    }

    @classmethod
    def of(cls, setup: Setup) -> Self | None:
        """Return the concern of a policy that learns where actions fail."""
        failures = setup.keywords.get("failures")
        if failures is not None and failures is not False:
            raise CBanditError(f"failures must be None or False; got {failures!r}")
        able = setup.functions and setup.abilities.failures
        # arms known by their covariance alone have no default kernel
        if failures is False or not able or setup.actions.domain.covariance is not None:
            return None
        return cls(setup)

    def start(self) -> None:
        """Return the state before any failure."""

    def hear(
        self, state: FailureModel | None, news: News, beliefs: Beliefs
    ) -> tuple[FailureModel | None, News]:
        """Note where the action was measured or failed, once any action has failed."""
        if state is None and news.failed is None:
            return None, news
        now = torch.zeros(len(news.came), dtype=torch.bool)
        for told in (*news.rewards, *news.costs):
            now |= told.trials
        costs_told = 0 if self.setup.sees_costs else self.setup.objective.m
        measured = now & news.came[:, : 1 + costs_told].all(-1)
        failed = torch.zeros_like(now) if news.failed is None else news.failed
        if not bool((measured | failed).any()):
            return state, news
        result = Result(news.place, failed, measured)
        return (state or FailureModel(None)).note(result), news

    def observe(
        self, state: FailureModel | None, data: Data, beliefs: Beliefs
    ) -> tuple[FailureModel | None, Data]:
        """Note which rows of earlier data were measured, and which failed."""
        failed = data.failed
        if state is None and (failed is None or not bool(failed.any())):
            return None, data
        state, nowhere = state or FailureModel(None), torch.zeros(len(data.places)) > 0
        # until the first failure, settle finds such rows in the policy's beliefs
        if state.beliefs is not None:
            for keys, x in ((row[0].keys, row[0].x) for row in data.rows()):
                state = state.note(Result(Place([*keys], x, 0), nowhere, ~nowhere))
        for i, x in enumerate(data.places.unbind(1) if failed is not None else ()):
            if failed is not None and bool(failed[:, i].any()):
                place = Place(data.keys(i), x, 0)
                state = state.note(Result(place, failed[:, i], nowhere))
        return state, data

    def settle(
        self, state: FailureModel | None, beliefs: Beliefs, t: int, past: ReadPast
    ) -> FailureModel | None:
        """Absorb fresh results; at the first failure, make the belief."""
        if state is None or not state.fresh:
            return state
        if state.beliefs is not None:
            return state.absorb_results()
        given = [result for result in state.fresh if not result.place.t]
        setup = self.setup
        results = _history_results(beliefs, past(), setup.device, setup.dtype)
        return first_model(failure_gp(beliefs.actions), beliefs, [*results, *given])

    def open_turn(
        self, state: FailureModel | None, turn: Turn
    ) -> tuple[FailureModel | None, Turn]:
        """Leave out the actions that likely fail."""
        if state is None:
            return state, turn
        return state, turn.within(state.fence())[0]

    def grow(self, state: FailureModel | None, actions: Actions) -> FailureModel | None:
        """Return the model over a set that has grown."""
        if state is None or state.beliefs is None:
            return state
        return state._replace(beliefs=state.beliefs.over(actions.domain))

    def lighten(self, state: FailureModel | None, largest: int) -> None:
        """Drop the belief's computed arrays of more than ``largest`` bytes."""
        if state is not None and state.beliefs is not None:
            state.beliefs.lighten(largest)


def _history_results(
    beliefs: Beliefs,
    table: Mapping[str, Any],
    device: torch.device,
    dtype: torch.dtype,
) -> list[Result]:
    """Return the results of earlier data and of all rounds in a history's ``table``."""
    results, domain = [], beliefs.actions
    for keys, x, wanted in beliefs.before():
        measured = torch.tensor(list(wanted))
        results.append(Result(Place([*keys], x, 0), ~measured & False, measured))
    every = devices.put(table["x"], device, dtype)
    rounds = table["round"].tolist()
    for t, x, state in zip(rounds, every, table["state"], strict=True):
        measured, failed = (state == STATES.index(w) for w in ("told", "failed"))
        if bool((measured | failed).any()):
            place = Place(domain.keys(x), x, t)
            results.append(Result(place, failed, measured))
    return results


def failure_gp(actions: Actions) -> GP:
    """Return the prior belief about failures over a set with coordinates."""
    belief = GP.default(actions, outcome="binary")
    belief.learn_mean, belief.mean = False, torch.tensor(PRIOR_FAILURE_SHARE).double()
    return belief


def first_model(gp: GP, like: Beliefs, results: Sequence[Result]) -> FailureModel:
    """Return a model with the belief ``gp``, from results on the set of ``like``."""
    of = like.prior
    beliefs = Beliefs.start([gp], of.actions, of.batch_shape, of.dtype, of.device)
    return FailureModel(beliefs, tuple(results)).absorb_results()
