"""A policy as the sampler of an Optuna study."""

from __future__ import annotations

import copy
import hashlib
import inspect
import math
import sys
from bisect import insort
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any

from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.search_space import intersection_search_space
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from cbandit._core import checks
from cbandit._core.hints import near
from cbandit._core.log import warn
from cbandit.actions import Actions
from cbandit.beliefs.gp import GP
from cbandit.errors import CBanditError
from cbandit.optuna.parameters import Domain
from cbandit.optuna.records import (
    TrialRecord,
    is_binary,
    is_params,
    is_probability,
    is_stored_round,
    observe,
    usable_number,
)
from cbandit.optuna.rounds import Player
from cbandit.policies.gp import GPPolicy
from cbandit.policies.signs import Objective

ROUND_KEY = "cbandit:round"  # one system attribute, so that Optuna stores it whole
POLICY_NAMES = ("CKB", "RPOL", "CONFIG", "GPUCB", "GPTS")  # trials hold their state
CONSTRAINT_KEY, FIXED_KEY = "constraints", "fixed_params"  # attributes that Optuna sets
UNMEASURED_EXCESS = sys.float_info.max  # as storages take no infinity


class Sampler(BaseSampler):
    """A policy of this library as the sampler of an Optuna study.

    Several processes and machines may work on one study, and any of them can continue
    from its storage alone. The first trial is drawn at random, as are parameters that
    only some trials have. Enqueued trials, and those of other samplers, change the
    beliefs but not the multipliers. The policy learns where trials fail; Optuna counts
    a killed worker's trial as failed too. With ``failures=False``, the policy only
    stops choosing parameters at which more trials failed than were measured.

    Args:
        policy: ``"RPOL"``, ``"CKB"``, ``"CONFIG"``, or without limits ``"GPUCB"``,
            ``"GPTS"``, which get :meth:`cbandit.GP.default` for each function. Or a
            callable: ``policy(space, **given)`` returns a policy on the
            :class:`cbandit.Space` of the study's parameters, and passes ``given`` to
            its constructor: ``thresholds``, which are the limits, ``minimise`` and
            ``seed``. Costs have the names of the limits.
        limits: which user attributes of a trial are costs, and what they are kept
            under or over: ``{"latency": "<= 20", "accuracy": ">= 0.9"}``. Attributes
            that are true or false (or both 0 and 1) in all trials so far, with a limit
            between, get a binary belief: ``{"crashed": "<= 0.05"}``. ``None``:
            Optuna's own constraints (``constraints_func`` or ``trial.set_constraint``),
            feasible at 0 and below.
        constraints_func: a function of a complete trial that returns its constraints,
            as with Optuna's own samplers.
        seed: the seed of all draws; each draw depends on it and on the trial's number.

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
        if limits is not None and not (isinstance(limits, Mapping) and limits):
            raise CBanditError(
                "limits must map user attributes to limits, {'latency': '<= 20'}; got "
                f"{limits!r}"
            )
        self._policy_type = _read_policy(
            policy, limits is not None or constraints_func is not None
        )
        self._limits = None if limits is None else dict(limits)
        self._objective = None if limits is None else Objective(tuple(limits), limits)
        #: the attributes whose limit is between 0 and 1
        self._probabilities: set[str] = set()
        if self._objective is not None:
            signs, bounds = self._objective.signs[1:].tolist(), self._objective.limits
            numbers = zip(self._limits or (), signs, bounds, strict=True)
            self._probabilities = {
                name for name, s, bound in numbers if is_probability(s * bound)
            }
        self._constraints_func, self._seed = constraints_func, checks.seed(seed)
        self._fitted: tuple[Any, Any] = None, None
        self._warned: set[Any] = set()  # keys of the warnings given, see _warn

    # -- what Optuna calls -------------------------------------------------------------

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Return the parameters that all trials have and that can vary."""
        self._raise_error_if_multi_objective(study)
        return _shared_space(study.get_trials(deepcopy=False))

    def sample_relative(
        self,
        study: Study,
        trial: FrozenTrial,
        search_space: dict[str, BaseDistribution],
    ) -> dict[str, Any]:
        """Return the parameters that the policy chooses for this trial."""
        fixed = self._attribute(trial, FIXED_KEY, is_params)
        if not search_space or fixed.keys() & search_space.keys():
            return {}  # the policy does not choose an enqueued trial
        domain = Domain(search_space)
        policy = self._policy_for(study, domain, trial.number)
        if policy is None:
            return {}
        choice = policy.ask()
        params = domain.to_study(choice.params)
        round_ = {"params": params, **Player(policy).latest_round()}
        study._storage.set_trial_system_attr(trial._trial_id, ROUND_KEY, round_)
        return params

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Return a random value of one parameter, the same in every process."""
        key = f"{self._seed}/{trial.number}/{param_name}".encode()
        seed = int.from_bytes(hashlib.blake2b(key, digest_size=4).digest(), "little")
        return RandomSampler(seed).sample_independent(
            study, trial, param_name, param_distribution
        )

    def after_trial(
        self,
        study: Study,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
    ) -> None:
        """Store the trial's constraints where Optuna looks for them.

        A limited attribute that was not measured counts as exceeding its limit.
        """
        if state not in (TrialState.COMPLETE, TrialState.PRUNED):
            return
        excesses: dict[str, float] = {}
        if self._objective is not None:
            names, signs = (
                self._objective.names or (),
                self._objective.signs[1:].tolist(),
            )
            told = self._costs_of(trial, names)
            costs = zip(signs, told, self._objective.limits, strict=True)
            for name, (sign, cost, limit) in zip(names, costs, strict=True):
                # Optuna takes a trial without constraints for a feasible one
                unknown = cost is None or math.isnan(cost)
                excesses[name] = UNMEASURED_EXCESS if unknown else sign * cost - limit
        elif self._constraints_func is not None:
            constraints = enumerate(self._constraints_func(trial))
            excesses = {str(j): float(value) for j, value in constraints}
        for name, value in excesses.items():
            if not math.isnan(value):
                key = f"{CONSTRAINT_KEY}:{name}"
                study._storage.set_trial_system_attr(trial._trial_id, key, value)

    # -- the policy --------------------------------------------------------------------

    def policy(self, study: Study) -> GPPolicy:
        """Return the policy with the study's data, ready for its next choice.

        It is a copy to look at: ``policy(study).recommend()``,
        ``.posterior(params=...)``, ``.multiplier``. Asking or telling it does not
        change the study.
        """
        trials = study.get_trials(deepcopy=False)
        space = _shared_space(trials)
        policy = self._policy_for(study, Domain(space), len(trials)) if space else None
        if policy is None:
            raise CBanditError(
                "no trial of this study has finished with its value and constraints: "
                "there is nothing for a policy to learn from yet"
            )
        return policy

    def _policy_for(self, study: Study, domain: Domain, number: int) -> GPPolicy | None:
        """Return the policy for trial ``number``; ``None``: no trial was measured."""
        trials = study.get_trials(deepcopy=False)
        names = self._cost_names(trials)
        records = [self._to_record(trial, domain, names) for trial in trials]
        if not any(r.params and r.is_measured for r in records):
            return None
        minimise = study.direction == StudyDirection.MINIMIZE
        outcomes = self._cost_outcomes(trials)
        new_policy = self._new_policy(domain, minimise, len(names), outcomes)
        records = [self._drop_large_numbers(r, new_policy) for r in records]
        measured = [r for r in records if r.params and r.is_measured]
        measured.sort(key=lambda r: (r.ended, r.number))
        key = domain, minimise, len(names), outcomes
        policy, used = self._fitted_to(new_policy, key, measured)
        observe(policy, measured[used:])

        def points(rows: Sequence[TrialRecord]) -> Any:
            return domain.space.names.points([r.params for r in rows])

        others = [r for r in records if r.number != number and r.params]
        running = points([r for r in others if r.state == TrialState.RUNNING])
        failed = points([r for r in others if r.state == TrialState.FAIL])
        player = Player(policy)
        player.add_outstanding(running)
        player.note_failures(failed, points(measured))
        rounds = [r for r in records if r.number < number and r.estimate]
        # of a choosing trial before the last finished one the worker was killed
        last = max(r.number for r in records if r.state.is_finished())
        for record in records[last + 1 : number]:
            if record.choosing:
                before = [r for r in rounds if r.number < record.number]
                insort(rounds, player.predict_choice(record, before))
        player.begin_round(number + 1, rounds)
        return policy

    def _cost_names(self, trials: Sequence[FrozenTrial]) -> Sequence[str]:
        """Return the names of the limits, or of Optuna's constraints without limits."""
        if self._objective is not None:
            return self._objective.names or ()
        done = [trial for trial in trials if trial.state == TrialState.COMPLETE]
        # the names of most trials, or on a tie those of the latest
        sets = [frozenset(self._constraints(trial)) for trial in reversed(done)]
        count = Counter(filter(None, sets))
        names = count.most_common(1)[0][0] if count else ()
        return sorted(names, key=lambda name: (len(name), name))

    def _cost_outcomes(self, trials: Sequence[FrozenTrial]) -> tuple[str | None, ...]:
        """Return each cost's outcome: ``"binary"`` for yes or no, else ``None``."""
        done = [trial for trial in trials if trial.state.is_finished()]
        return tuple(
            "binary"
            if name in self._probabilities
            and is_binary([trial.user_attrs.get(name) for trial in done])
            else None
            for name in self._limits or ()
        )

    def _constraints(self, trial: FrozenTrial) -> dict[str, Any]:
        """Return the constraints that Optuna has stored for a trial."""
        try:
            return trial.constraints
        except TypeError:
            value = trial.system_attrs.get(CONSTRAINT_KEY)
            self._warn_left_out(trial, f"system attribute {CONSTRAINT_KEY!r}", value)
            return {}

    def _attribute(
        self, trial: FrozenTrial, name: str, is_valid: Callable[[Any], bool]
    ) -> dict[str, Any]:
        """Return a system attribute of a trial; empty if missing or invalid."""
        value = trial.system_attrs.get(name)
        if value is not None and not is_valid(value):
            self._warn_left_out(trial, f"system attribute {name!r}", value)
            return {}
        return value or {}

    def _warn_left_out(
        self, trial: FrozenTrial, name: str, value: object, advice: str = ""
    ) -> None:
        """Warn that an attribute of a trial is ignored."""
        message = (
            f"trial {trial.number} has {value!r:.80} as its {name}: it is left out"
        )
        self._warn((trial.number, name), message + advice)

    def _warn(self, key: Hashable, message: str) -> None:
        """Warn, but only once for each ``key``."""
        if key not in self._warned:
            self._warned.add(key)
            warn(message)

    def _to_record(
        self, trial: FrozenTrial, domain: Domain, names: Sequence[str]
    ) -> TrialRecord:
        """Return a trial in the form that the policy uses; ``names`` are the costs'."""
        # both may hold parameters that the trial has not asked for yet
        round_ = self._attribute(
            trial, ROUND_KEY, partial(is_stored_round, m=len(names))
        )
        fixed = self._attribute(trial, FIXED_KEY, is_params)
        reward = costs = None
        if trial.state == TrialState.COMPLETE and trial.values:
            reward = usable_number(trial.values[0])
        if trial.state in (TrialState.COMPLETE, TrialState.PRUNED):
            told = self._costs_of(trial, names)
            costs = [cost for cost in told if cost is not None]
        known = round_ or fixed or trial.params
        when = trial.datetime_complete
        return TrialRecord(
            number=trial.number,
            state=trial.state,
            ended=math.inf if when is None else when.timestamp(),
            params=domain.read_params(
                {**fixed, **round_.get("params", {}), **trial.params}
            ),
            reward=reward,
            costs=costs if costs is not None and len(costs) == len(names) else None,
            estimate=round_.get("estimate", []),
            units=round_.get("units", []),
            deviation=round_.get("deviation") or [],
            choosing=trial.state == TrialState.RUNNING and not known,
        )

    def _costs_of(self, trial: FrozenTrial, names: Sequence[str]) -> list[float | None]:
        """Return a trial's costs; ``None`` for a cost that was not measured."""
        values, kind, advice = self._constraints(trial), "constraint", ""
        if self._objective is not None:
            values, kind = trial.user_attrs, "user attribute"
            advice = "; its costs teach nothing. Give a number, trial.set_user_attr("
            advice += f"{names[0]!r}, 12.0), in the objective"
        elif values.keys() > {*names}:
            self._warn_left_out(trial, "constraints", values)
            return [None] * len(names)
        yes = {
            k for k, v in values.items() if isinstance(v, bool)
        } & self._probabilities
        values = {k: float(v) if k in yes else v for k, v in values.items()}
        told = [usable_number(values.get(name)) for name in names]
        for name, cost in zip(names, told, strict=True):
            if cost is None and name in values:
                self._warn_left_out(trial, f"{kind} {name!r}", values[name], advice)
            elif cost is None and advice:
                self._warn(None, f"trial {trial.number} has no {kind} {name!r}{advice}")
        return told

    def _drop_large_numbers(self, record: TrialRecord, policy: GPPolicy) -> TrialRecord:
        """Return a record without numbers that are too large for the policy's dtype."""
        out = record.without_above(checks.LARGEST[policy.dtype])
        if out != record:
            message = f"trial {record.number} has numbers whose squares {policy.dtype}"
            self._warn(record.number, f"{message} cannot hold: they are left out")
        return out

    def _fitted_to(
        self, new_policy: GPPolicy, key: tuple[Any, ...], measured: list[TrialRecord]
    ) -> tuple[GPPolicy, int]:
        """Return a policy fitted to the first trials, and the number of these trials.

        It is a copy: the sampler keeps the original until enough trials have been
        measured for another fit.

        Args:
            new_policy: a policy without data.
            key: what ``new_policy`` was built for: the space, the direction, the
                number of costs and their outcomes.
            measured: all trials that were measured, in the order in which they ended.
        """
        groups = new_policy._beliefs.groups
        used = max(group.gp.fitted_to(len(measured)) for group in groups)
        if self._fitted[0] != (key, measured[:used]):
            observe(new_policy, measured[:used])
            now = new_policy._catch_up()  # fits hyperparameters
            new_policy._jump_to_round(1, now.state, now.concerns)
            self._fitted = (key, measured[:used]), new_policy
        return copy.deepcopy(self._fitted[1]), used

    def _new_policy(
        self, domain: Domain, minimise: bool, m: int, outcomes: tuple[str | None, ...]
    ) -> GPPolicy:
        """Return a new policy without data; raise if it does not suit the study."""
        settings: dict[str, Any] = {"minimise": minimise, "seed": self._seed}
        settings["thresholds"] = 0.0 if self._limits is None else self._limits
        if isinstance(self._policy_type, type):
            policy = _with_default_beliefs(
                self._policy_type, domain.space, m, settings, outcomes
            )
        else:
            policy = self._policy_type(domain.space, **settings)
        if not isinstance(policy, GPPolicy):
            raise CBanditError(
                "a sampler's policy must be a cb.GPPolicy, whose state the study's "
                f"trials hold; got {checks.kind(policy)}"
            )
        kind = type(policy).__name__
        if policy.actions.names != domain.space.names:
            raise CBanditError(f"{kind} must be built on the space that it is given")
        if policy.actions.menu.linear is not None:
            raise CBanditError(
                f"{kind} is built on a space with where=: a study draws its first "
                "trial, and parameters that only some trials have, without regard to "
                "limits on them. Make one parameter a share of what the others leave"
            )
        if policy.objective.minimise != minimise:
            raise CBanditError(f"{kind} must be built with minimise={minimise}")
        if policy.m != m:
            raise CBanditError(
                f"{kind} was built with {policy.m} costs; the study has {m}: "
                f"{', '.join(self._limits or ()) or 'its constraints'}"
            )
        if policy.trials is not None or policy.feedback is not None or policy.forget:
            raise CBanditError(
                f"{kind} must be built without trials=, feedback= and forget=True"
            )
        if policy.design:
            raise CBanditError(
                f"{kind} must be built without design=: enqueue the first trials, "
                "study.enqueue_trial({...})"
            )
        if policy.expire is not None:
            raise CBanditError(
                f"{kind} must be built without expire=: a study's heartbeat fails "
                "trials that are stale"
            )
        state = policy._now.state
        known = all(concern.in_studies for concern in policy._concerns.all)
        if state.own is not None or not known:
            raise CBanditError(
                f"{kind} keeps a state that a study's trials do not hold: take CKB, "
                "RPOL, CONFIG, GPUCB, GPTS or a policy of your own with score and move"
                ", without a cb.Budget, share= and dual='resolved'"
            )
        policy.refuse("limit", "a study builds its policy anew for each trial")
        return policy


def _shared_space(trials: list[FrozenTrial]) -> dict[str, BaseDistribution]:
    """Return the parameters that all trials have and that can vary."""
    space = intersection_search_space(trials)
    return {name: values for name, values in space.items() if not values.single()}


def _read_policy(policy: Any, limited: bool) -> Any:
    """Return the class of a policy by its name; callables are returned unchanged.

    Raise if a study cannot have this policy, or if it keeps no limits and the study is
    ``limited``.
    """
    if callable(policy):
        return policy
    if policy not in POLICY_NAMES:
        meant = near(policy.upper(), POLICY_NAMES) if isinstance(policy, str) else None
        hint = f"; did you mean {meant!r}?" if meant else ""
        raise CBanditError(
            f"policy must be the name of one of {', '.join(POLICY_NAMES)}, or a "
            f"callable that builds a cb.GPPolicy; got {policy!r}{hint}"
        )
    library = import_module("cbandit")
    kind = getattr(library, policy, None) or getattr(library.baselines, policy)
    if limited and not _keeps_limits(kind):
        raise CBanditError(
            f"{policy} keeps no limits, and the sampler is given some by limits= or "
            "constraints_func=: take 'RPOL', 'CKB' or 'CONFIG', or leave them out"
        )
    return kind


def _keeps_limits(kind: Callable[..., Any]) -> bool:
    """Return whether a policy's constructor ``kind`` takes costs."""
    return "costs" in inspect.signature(kind).parameters


def _with_default_beliefs(
    kind: Callable[..., GPPolicy],
    space: Actions,
    m: int,
    settings: dict[str, Any],
    outcomes: tuple[str | None, ...],
) -> Any:
    """Return a policy of class ``kind`` with default beliefs; raise if costs misfit.

    Args:
        kind: the class of the policy.
        space: the set of actions.
        m: the number of costs.
        settings: the keywords of the constructor; ``thresholds`` are the limits.
        outcomes: each limit's outcome, ``"binary"`` or ``None``.
    """
    belief, limits = GP.default(space), settings["thresholds"]
    if not _keeps_limits(kind):
        if m:
            raise CBanditError(
                f"{kind.__name__} keeps no limits; the study's trials have {m}"
            )
        return kind(space, reward=belief, **settings)
    if m == 0:
        raise CBanditError(
            f"{kind.__name__} keeps limits, and the study's trials have none: give "
            "limits= or constraints_func="
        )
    costs: Any = [belief] * m
    if limits != 0.0:
        each = [GP.default(space, outcome) for outcome in outcomes]
        costs = dict(zip(limits, each, strict=True))
    return kind(space, reward=belief, costs=costs, **settings)
