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
import inspect
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cbandit._core import checks
from cbandit.actions import Category, Float, Int, Space
from cbandit.actions.names import Parameter
from cbandit.beliefs.gp import GP
from cbandit.errors import CBanditError, MissingExtraError
from cbandit.policies.gp import GPPolicy
from cbandit.policies.senses import Senses
from cbandit.policies.taken_up import Played, folded, took_up

try:
    from optuna.distributions import (
        BaseDistribution,
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )
    from optuna.samplers import BaseSampler, RandomSampler
    from optuna.search_space import intersection_search_space
    from optuna.study import Study, StudyDirection
    from optuna.trial import FrozenTrial, TrialState
except ImportError as error:
    raise MissingExtraError(
        "cb.optuna needs Optuna: pip install 'cbandit[optuna]'"
    ) from error

__all__ = ["Sampler"]

ESTIMATE, PARAMS = "cbandit:estimate", "cbandit:params"  # a trial's system attributes
CONSTRAINT = "constraints"  # Optuna's own
GRID, CHOICES = 200_000, 20_000  # combinations alone, and beside continuous parameters
LARGEST = 1e150  # its square is finite


class _Record(NamedTuple):
    """A trial of the study, as a policy sees it.

    Args:
        number: the trial's.
        state: the trial's.
        ended: when it did, in seconds; infinite: it has not.
        params: of the space, by name; ``None``: not all of them are known.
        reward: as the study has it; ``None``: not measured.
        costs: likewise; ``None``: not all of them were measured.
        estimate: at the policy's choice; ``None``: the policy did not choose it.
    """

    number: int
    state: TrialState
    ended: float
    params: dict[str, Any] | None
    reward: float | None
    costs: list[float] | None
    estimate: list[float] | None

    @property
    def measured(self) -> bool:
        """Whether anything came of it."""
        return self.reward is not None or bool(self.costs)

    def played(self, policy: GPPolicy) -> Played:
        """Return it as a round of the policy."""
        t, excess = self.number + 1, None
        if self.costs is not None:
            told = torch.tensor([self.costs], dtype=torch.float64)
            excess = policy.senses.costs(told) - policy._limits(t)
        return Played(t, torch.tensor([self.estimate], dtype=torch.float64), excess)


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
            constructor: ``thresholds``, which are the limits, ``minimise`` and
            ``seed``. Costs have the names of the limits.
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
        self._kind = _kind(policy)
        self._limits = None if limits is None else dict(limits)
        self._senses = None if limits is None else Senses(tuple(limits), limits)
        self._constraints_func, self._seed = constraints_func, checks.seed(seed)
        self._fitted: tuple[Any, Any] = None, None
        self._warned = False

    # -- what Optuna calls -------------------------------------------------------------

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Return the parameters that all trials have, as far as they can vary."""
        self._raise_error_if_multi_objective(study)
        found = intersection_search_space(study.get_trials(deepcopy=False))
        return {name: each for name, each in found.items() if not each.single()}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return what the policy chooses for this trial."""
        fixed = trial.system_attrs.get("fixed_params", {})
        if not search_space or fixed.keys() & search_space.keys():
            return {}  # an enqueued trial is not the policy's
        domain = _Domain(search_space)
        policy = self._ready(study, domain, trial.number)
        if policy is None:
            return {}
        choice = policy.ask()
        params = domain.suggested(choice.params)
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
        if self._senses is not None:
            names, signs = self._senses.names or (), self._senses.signs[1:].tolist()
            limits, told = self._senses.limits, self._told(trial, names)
            named = {
                name: sign * value - limit
                for name, sign, value, limit in zip(names, signs, told, limits, strict=True)
                if value is not None
            }
        elif self._constraints_func is not None:
            given = self._constraints_func(trial)
            named = {str(j): float(each) for j, each in enumerate(given)}
        else:
            return
        for name, value in named.items():
            if not math.isnan(value):
                key = f"{CONSTRAINT}:{name}"
                study._storage.set_trial_system_attr(trial._trial_id, key, value)

    # -- the policy --------------------------------------------------------------------

    def policy(self, study: Study) -> GPPolicy:
        """Return the policy with all that the study knows, as it would choose next.

        For looking: ``policy(study).recommend()``, ``.posterior(params=...)``,
        ``.multiplier``. What it is asked or told does not reach the study.
        """
        trials = study.get_trials(deepcopy=False)
        found = intersection_search_space(trials)
        space = {name: each for name, each in found.items() if not each.single()}
        policy = self._ready(study, _Domain(space), len(trials)) if space else None
        if policy is None:
            raise CBanditError(
                "no trial of this study has finished with its value and constraints: "
                "there is nothing for a policy to learn from yet"
            )
        return policy

    def _ready(self, study: Study, domain: _Domain, number: int) -> GPPolicy | None:
        """Return the policy for a trial; ``None``: nothing to learn from yet."""
        trials = study.get_trials(deepcopy=False)
        names = self._names(trials)
        records = [self._record(each, domain, names) for each in trials]
        seen = [each for each in records if each.params and each.measured]
        if not seen:
            return None
        seen.sort(key=lambda each: (each.ended, each.number))
        minimise = study.direction == StudyDirection.MINIMIZE
        policy, used = self._fitted_to(domain, minimise, len(names), seen)
        _observe(policy, seen[used:])
        played = [
            each.played(policy)
            for each in records
            if each.number < number and each.estimate is not None
        ]
        waiting = [
            each.params
            for each in records
            if each.state == TrialState.RUNNING and each.number != number
        ]
        places = domain.space.names.points([each for each in waiting if each])
        return took_up(policy, number, folded(policy, played), places)

    def _names(self, trials: Sequence[FrozenTrial]) -> Sequence[str]:
        """Return the costs' names."""
        if self._senses is not None:
            return self._senses.names or ()
        done = [each for each in trials if each.state == TrialState.COMPLETE]
        found: list[str] = max((list(each.constraints) for each in done), key=len, default=[])
        return sorted(found, key=lambda name: (len(name), name))

    def _record(
        self, trial: FrozenTrial, domain: _Domain, names: Sequence[str]
    ) -> _Record:
        """Return a trial as the policy sees it."""
        # those that the trial has been given and has not asked for yet
        given = trial.system_attrs.get(PARAMS, {})
        params = domain.known({**given, **trial.params})
        reward = costs = None
        if trial.state == TrialState.COMPLETE and trial.values:
            reward = _usable(trial.values[0])
        if trial.state in (TrialState.COMPLETE, TrialState.PRUNED):
            told = self._told(trial, names)
            costs = told if None not in told else None
        when = trial.datetime_complete
        ended = math.inf if when is None else when.timestamp()
        estimate = trial.system_attrs.get(ESTIMATE)
        return _Record(
            trial.number, trial.state, ended, params, reward, costs, estimate
        )

    def _told(self, trial: FrozenTrial, names: Sequence[str]) -> list[float | None]:
        """Return a trial's costs, ``None`` where one was not measured."""
        if self._senses is None:
            return [_usable(trial.constraints.get(name)) for name in names]
        told = []
        for name in names:
            value = trial.user_attrs.get(name)
            if value is None and not self._warned:
                self._warned = True
                warnings.warn(
                    f"trial {trial.number} has no user attribute {name!r}: its costs "
                    f"teach nothing. Call trial.set_user_attr({name!r}, ...) in the "
                    "objective",
                    stacklevel=2,
                )
            told.append(_usable(value))
        return told

    def _fitted_to(
        self, domain: _Domain, minimise: bool, m: int, seen: list[_Record]
    ) -> tuple[GPPolicy, int]:
        """Return a policy with the first trials seen, and how many of them it has.

        Its hyperparameters were fitted to these. It is a copy of one that is kept until
        there are enough for another fit.
        """
        first = self._made(domain, minimise, m)
        groups = first._beliefs.groups
        intervals = [g.gp.refit_every for g in groups if g.gp.refit_every is not None]
        used = len(seen) // min(intervals) * min(intervals) if intervals else 0
        key = domain, minimise, m, seen[:used]
        if self._fitted[0] != key:
            _observe(first, seen[:used])
            first._settled()  # which fits
            self._fitted = key, first
        return copy.deepcopy(self._fitted[1]), used

    def _made(self, domain: _Domain, minimise: bool, m: int) -> GPPolicy:
        """Return a new policy, checked."""
        given: dict[str, Any] = {"minimise": minimise, "seed": self._seed}
        given["thresholds"] = 0.0 if self._limits is None else self._limits
        if isinstance(self._kind, type):
            policy = _by_default(self._kind, domain.space, m, given)
        else:
            policy = self._kind(domain.space, **given)
        if not isinstance(policy, GPPolicy):
            raise CBanditError(
                "a sampler's policy must be a cb.GPPolicy, whose state a study's trials "
                f"hold; got {checks.kind(policy)}"
            )
        kind = type(policy).__name__
        if policy.actions.names != domain.space.names:
            raise CBanditError(f"{kind} must be built on the space that it is given")
        if policy.senses.minimise != minimise:
            raise CBanditError(f"{kind} must be built with minimise={minimise}")
        if policy.m != m:
            raise CBanditError(
                f"{kind} was built with {policy.m} costs; the study has {m}: "
                f"{', '.join(self._limits or ()) or 'its constraints'}"
            )
        if policy.trials is not None or policy.feedback is not None:
            raise CBanditError(f"{kind} must be built without trials= and feedback=")
        if policy._now.state.own is not None:
            raise CBanditError(
                f"{kind} keeps a state that a study's trials do not hold: take CKB, "
                "RPOL, CONFIG, GPUCB, GPTS or a policy of your own with score and move"
            )
        return policy


class _Domain:
    """The parameters of a study as a set of actions.

    Whole numbers of which there are too many combinations count as continuous; what is
    chosen is rounded.
    """

    def __init__(self, distributions: dict[str, BaseDistribution]) -> None:
        self._distributions = distributions
        self._parameters = {n: _parameter(d) for n, d in distributions.items()}
        counts = {
            name: len(each.values)
            for name, each in self._parameters.items()
            if each.values is not None
        }
        numbers = {n for n in counts if not isinstance(self._parameters[n], Category)}
        free = len(counts) < len(self._parameters)
        while numbers and math.prod(counts.values()) > (CHOICES if free else GRID):
            name = max(numbers, key=counts.__getitem__)
            numbers.discard(name)
            del counts[name]
            old, free = self._parameters[name], True
            self._parameters[name] = Float(old.lo, old.hi, old.log)
        self.space: Any = Space(**self._parameters)

    def known(self, params: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return a trial's parameters, ``None`` if one is missing or elsewhere."""
        for name, parameter in self._parameters.items():
            if name not in params or parameter.place(params[name]) is None:
                return None
        return {name: params[name] for name in self._parameters}

    def suggested(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the policy's choice as the study's parameters allow it."""
        return {n: _allowed(d, params[n]) for n, d in self._distributions.items()}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Domain) and self._parameters == other._parameters

    __hash__ = None  # type: ignore[assignment]


def _parameter(of: BaseDistribution) -> Parameter:
    """Return a parameter with the values of one of Optuna's."""
    if isinstance(of, CategoricalDistribution):
        return Category(*of.choices)
    if isinstance(of, IntDistribution):
        if of.step == 1 and of.high - of.low < GRID:
            return Int(of.low, of.high, of.log)
        step = None if (of.high - of.low) / of.step >= GRID else float(of.step)
        return Float(float(of.low), float(of.high), of.log, step)
    if isinstance(of, FloatDistribution):
        fine = of.step is None or (of.high - of.low) / of.step >= GRID
        return Float(of.low, of.high, of.log, None if fine else of.step)
    raise CBanditError(f"a sampler knows no parameter of the kind {of!r}")


def _allowed(of: BaseDistribution, value: Any) -> Any:
    """Return the value of a parameter that is nearest to ``value``."""
    if isinstance(of, CategoricalDistribution):
        return value
    step = getattr(of, "step", None)
    if step is not None:
        value = of.low + round((value - of.low) / step) * step
    value = min(max(value, of.low), of.high)
    return int(value) if isinstance(of, IntDistribution) else float(value)


def _usable(value: Any) -> float | None:
    """Return a measured number, ``None`` where nothing can be learned from it."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < LARGEST else None


def _observe(policy: GPPolicy, records: Sequence[_Record]) -> None:
    """Show a policy what trials measured: reward and costs, or one of them."""
    kinds: dict[tuple[bool, bool], list[_Record]] = {}
    for each in records:
        has = each.reward is not None, bool(each.costs)
        kinds.setdefault(has, []).append(each)
    for (reward, cost), rows in kinds.items():
        policy.observe(
            params=[each.params for each in rows],
            reward=[each.reward for each in rows] if reward else None,
            cost=[each.costs for each in rows] if cost else None,
        )


def _kind(policy: Any) -> Any:
    """Return the class of a policy by its name; a callable as it is."""
    if isinstance(policy, str):
        library = import_module("cbandit")
        found = getattr(library, policy, getattr(library.baselines, policy, None))
        if isinstance(found, type) and issubclass(found, GPPolicy):
            return found
    elif callable(policy):
        return policy
    raise CBanditError(
        "policy must be the name of a policy with beliefs, such as 'RPOL', 'CKB' or "
        f"'CONFIG', or a callable that builds one; got {policy!r}"
    )


def _by_default(kind: Any, space: Any, m: int, given: dict[str, Any]) -> Any:
    """Return a policy of this kind, with default beliefs."""
    belief, limits = GP.default(space), given["thresholds"]
    if "costs" not in inspect.signature(kind).parameters:
        if m:
            raise CBanditError(
                f"{kind.__name__} keeps no limits; the study's trials have {m}"
            )
        return kind(space, reward=belief, **given)
    if m == 0:
        raise CBanditError(
            f"{kind.__name__} keeps limits, and the study's trials have none: give "
            "limits= or constraints_func="
        )
    costs = [belief] * m if limits == 0.0 else dict.fromkeys(limits, belief)
    return kind(space, reward=belief, costs=costs, **given)
