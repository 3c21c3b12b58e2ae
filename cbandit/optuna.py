"""Optuna's studies with a policy of this library as their sampler.

Storage, trial states, workers and the dashboard are Optuna's; the policy is ours. All
that a policy needs is read from the study's trials each time, so that workers on many
machines come and go:

- what finished trials measured enters the beliefs;
- a trial keeps the estimate at its choice, and the multiplier is folded over trials by
  number, finished or not;
- draws are keyed by seed and trial number;
- hyperparameters are fitted when the number of finished trials reaches a multiple of
  the belief's ``refit_every``, to the trials that had finished by then.
"""

from __future__ import annotations

import copy
import hashlib
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cbandit._core import checks
from cbandit.actions import Category, Float, Int, Space
from cbandit.beliefs.gp import GP
from cbandit.errors import CBanditError, MissingExtraError
from cbandit.policies.gp import GPPolicy
from cbandit.policies.taken_up import Played, folded, took_up

try:
    from optuna.distributions import (
        BaseDistribution,
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )
    from optuna.samplers import BaseSampler, RandomSampler
    from optuna.search_space import IntersectionSearchSpace
    from optuna.study import Study, StudyDirection
    from optuna.trial import FrozenTrial, TrialState
except ImportError as error:
    raise MissingExtraError(
        "cb.optuna needs Optuna: pip install 'cbandit[optuna]'"
    ) from error

__all__ = ["Sampler"]

ESTIMATE, PARAMS = "cbandit:estimate", "cbandit:params"  # a trial's system attributes
CONSTRAINT = "constraints"  # Optuna's own


class _Record(NamedTuple):
    """A trial of the study, as a policy sees it.

    Args:
        number: the trial's.
        state: the trial's.
        params: of the space, by name; ``None``: not all of them are known.
        reward: to be maximised; ``None``: not measured.
        costs: to be kept below their thresholds; ``None``: not all of them measured.
        estimate: at the policy's choice; ``None``: the policy did not choose it.
    """

    number: int
    state: TrialState
    params: dict[str, Any] | None
    reward: float | None
    costs: list[float] | None
    estimate: list[float] | None


class Sampler(BaseSampler):
    """A policy of this library as the sampler of an Optuna study.

    Several processes and machines may work on one study, and any of them can go on from
    its storage alone. The first trial is drawn at random, as are parameters that not
    all trials have. Enqueued trials, and those of other samplers, teach the beliefs and
    leave multipliers alone. A failed trial's parameters are not asked for again.

    Args:
        policy: ``"RPOL"``, ``"CKB"``, ``"CONFIG"`` or another policy with beliefs
            about reward and costs, which gets :meth:`cbandit.GP.default` for each. Or a
            callable: ``policy(space, **given)`` returns one, on the
            :class:`cbandit.Space` of the study's parameters; hand ``given`` on to its
            constructor (``thresholds`` and ``seed``). Costs are in the order of
            ``limits``.
        limits: which user attributes of a trial are costs, and what they are kept
            under or over: ``{"latency": "<= 20", "accuracy": ">= 0.9"}``. ``None``:
            Optuna's own constraints (``constraints_func`` or ``trial.set_constraint``),
            feasible at 0 and below.
        constraints_func: called with each trial that is complete, returns its
            constraints, as with Optuna's own samplers.
        seed: of all draws; with the trial's number it says what a worker draws.

    Example:
        >>> import cbandit as cb, optuna
        >>> optuna.logging.set_verbosity(optuna.logging.WARNING)
        >>> def objective(trial):
        ...     threads = trial.suggest_int("threads", 1, 16)
        ...     codec = trial.suggest_categorical("codec", ["lz4", "zstd"])
        ...     trial.set_user_attr("latency", 40 / threads + 5 * (codec == "zstd"))
        ...     return threads * (1.0 if codec == "lz4" else 0.7)  # to be small
        >>> sampler = cb.optuna.Sampler("RPOL", limits={"latency": "<= 10"})
        >>> study = optuna.create_study(sampler=sampler)
        >>> study.optimize(objective, n_trials=15)
        >>> study.best_trial.user_attrs["latency"] <= 10
        True
    """

    def __init__(
        self,
        policy: str | Callable[..., Any],
        limits: Mapping[str, Any] | None = None,
        *,
        constraints_func: Callable[[FrozenTrial], Sequence[float]] | None = None,
        seed: int = 0,
    ) -> None:
        if limits is not None and constraints_func is not None:
            raise CBanditError(
                "a sampler takes limits= or constraints_func=, not both: limits= name "
                "user attributes, constraints_func returns what is feasible at <= 0"
            )
        self._make = _maker(policy)
        self._limits = None if limits is None else limits_of(limits)
        self._constraints_func, self._seed = constraints_func, checks.seed(seed)
        self._spaces = IntersectionSearchSpace()
        self._fitted: tuple[Any, Any] = None, None

    # -- what Optuna calls -------------------------------------------------------------

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Return the parameters that all trials have, as far as they can vary."""
        self._raise_error_if_multi_objective(study)
        found = self._spaces.calculate(study)
        return {name: each for name, each in found.items() if not each.single()}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return what the policy chooses for this trial."""
        fixed = trial.system_attrs.get("fixed_params", {})
        if not search_space or fixed.keys() & search_space.keys():
            return {}  # an enqueued trial is not the policy's
        policy = self._ready(study, search_space, trial.number)
        if policy is None:
            return {}
        choice = policy.ask()
        params = dict(choice.params)
        estimate = policy._now.state.estimate[0].tolist()
        for name, value in ((ESTIMATE, estimate), (PARAMS, params)):
            study._storage.set_trial_system_attr(trial._trial_id, name, value)
        return params

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Return a random value, the same for this trial whoever asks."""
        key = f"{self._seed}/{trial.number}/{param_name}".encode()
        seed = int.from_bytes(hashlib.blake2b(key, digest_size=4).digest(), "little")
        given = study, trial, param_name, param_distribution
        return RandomSampler(seed).sample_independent(*given)

    def after_trial(
        self,
        study: Study,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
    ) -> None:
        """Store the trial's constraints where Optuna looks for them."""
        if state not in (TrialState.COMPLETE, TrialState.PRUNED):
            return
        if self._limits is not None:
            named = {each.name: each.excess(trial.user_attrs) for each in self._limits}
        elif self._constraints_func is not None:
            given = self._constraints_func(trial)
            named = {str(j): float(each) for j, each in enumerate(given)}
        else:
            return
        for name, value in named.items():
            if value is not None and not math.isnan(value):
                key = f"{CONSTRAINT}:{name}"
                study._storage.set_trial_system_attr(trial._trial_id, key, value)

    # -- the policy --------------------------------------------------------------------

    def policy(self, study: Study) -> GPPolicy:
        """Return the policy with all that the study knows, as it would choose next.

        For looking: ``policy(study).recommend()``, ``.posterior(...)``,
        ``.multiplier``. What it is asked or told does not reach the study.
        """
        space = self.infer_relative_search_space(study, None)  # type: ignore[arg-type]
        number = max((each.number + 1 for each in study.trials), default=0)
        found = self._ready(study, space, number) if space else None
        if found is None:
            raise CBanditError(
                "the study has no finished trial with its constraints yet: there is "
                "nothing for a policy to learn from"
            )
        return found

    def _ready(
        self, study: Study, space: dict[str, BaseDistribution], number: int
    ) -> GPPolicy | None:
        """Return the policy for a trial; ``None``: nothing to learn from yet."""
        trials = study.get_trials(deepcopy=False)
        names = self._names(trials)
        if names is None:
            return None
        sign = 1.0 if study.direction == StudyDirection.MAXIMIZE else -1.0
        records = [self._record(each, space, names, sign) for each in trials]
        seen = [each for each in records if each.params and each.measured]
        if not seen:
            return None
        seen.sort(key=lambda each: (each.ended, each.number))
        policy, used = self._fitted_to(space, len(names), seen)
        _observe(policy, seen[used:])
        played = [
            each.played(policy._limits(each.number + 1))
            for each in records
            if each.number < number and each.estimate is not None
        ]
        others = [each for each in records if each.number != number and each.params]
        waiting = [e.params for e in others if e.state == TrialState.RUNNING]
        failed = [e.params for e in others if e.state == TrialState.FAIL]
        places = policy.actions.places(waiting)
        return took_up(policy, number, folded(policy, played), places)

    def _names(self, trials: Sequence[FrozenTrial]) -> list[str] | None:
        """Return the costs' names; ``None``: no trial has said yet."""
        if self._limits is not None:
            return [each.name for each in self._limits]
        done = [each for each in trials if each.state == TrialState.COMPLETE]
        if not done:
            return None
        found = max((list(each.constraints) for each in done), key=len)
        return sorted(found, key=lambda name: (len(name), name))

    def _record(
        self,
        trial: FrozenTrial,
        space: dict[str, BaseDistribution],
        names: list[str],
        sign: float,
    ) -> _Record:
        """Return a trial as the policy sees it."""
        params: dict[str, Any] | None = {
            **trial.system_attrs.get(PARAMS, {}),  # those not suggested yet
            **trial.params,
        }
        if not all(_within(space[name], params.get(name)) for name in space):
            params = None
        reward = costs = None
        if trial.state == TrialState.COMPLETE:
            reward = _usable(sign * trial.values[0])
        if trial.state in (TrialState.COMPLETE, TrialState.PRUNED):
            if self._limits is None:
                told = [trial.constraints.get(name) for name in names]
            else:
                told = [each.told(trial.user_attrs) for each in self._limits]
            known = [each for each in map(_usable, told) if each is not None]
            costs = known if len(known) == len(names) else None
        when = trial.datetime_complete
        return _Record(
            trial.number,
            trial.state,
            math.inf if when is None else when.timestamp(),
            None if params is None else {name: params[name] for name in space},
            reward,
            costs,
            trial.system_attrs.get(ESTIMATE),
        )

    def _fitted_to(
        self, space: dict[str, BaseDistribution], m: int, seen: list[_Record]
    ) -> tuple[GPPolicy, int]:
        """Return a policy with the first trials seen, and how many of them it has.

        Its hyperparameters were fitted to these. It is a copy of one that is kept until
        there are enough for another fit.
        """
        policy = self._made(_space(space), m)
        every = policy._beliefs.refit_every
        used = 0 if every is None else len(seen) // every * every
        key = repr(space), m, seen[:used]
        if self._fitted[0] != key:
            _observe(policy, seen[:used])
            if used:
                policy.multiplier  # noqa: B018  absorbs the data, which fits
            self._fitted = key, policy
        return copy.deepcopy(self._fitted[1]), used

    def _made(self, space: Space, m: int) -> GPPolicy:
        """Return a new policy, checked."""
        limits = [0.0] * m if self._limits is None else [e.bound for e in self._limits]
        policy = self._make(space, thresholds=limits or 0.0, seed=self._seed)
