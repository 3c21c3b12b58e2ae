"""The parts of a run: a policy's protocol, and checks that its problem fits it."""

from __future__ import annotations

import math
from typing import Any, Protocol

import torch
from torch import Tensor

from cbandit._core import checks
from cbandit._core.log import warn
from cbandit._core.randomness import Trials, trial_range
from cbandit.actions import Actions
from cbandit.choice import Choice
from cbandit.errors import CBanditError, HorizonError
from cbandit.policies.keywords import ActionValues, ObservedCosts
from cbandit.policies.signs import Objective
from cbandit.problems.protocol import Problem


class Policy(Protocol):
    """The part of a policy that the loop uses. It can be pickled.

    A policy may also have ``actions``, ``t`` and ``horizon`` (its own last round),
    ``sees_costs`` (false: it is not shown the costs of every action) and ``stopped``
    (the round from which it only plays what it found, ``(*trials,)``; 0: none yet).
    """

    name: str
    seed: int
    m: int

    @property
    def trials(self) -> Trials:
        """The numbers of the policy's trials, or ``None`` without a trials axis."""

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The shape of the trials axis: ``()`` without one, or ``(n,)``."""

    @property
    def multiplier(self) -> Tensor:
        """The multipliers that the next ``ask`` will use, ``(*trials, m)``."""

    def ask(
        self,
        *,
        among: ActionValues | None = None,
        actions: Actions | ActionValues | None = None,
        observed_costs: ObservedCosts | None = None,
        context: ActionValues | None = None,
    ) -> Choice:
        """Begin a round and choose its action."""

    def tell(
        self,
        choice: Choice,
        *,
        reward: Any = None,
        cost: Any = None,
        where: Any = None,
        failed: bool = False,
    ) -> None:
        """Take the feedback of a choice, or a part of it."""

    def lighten(self) -> None:
        """Drop arrays that are recomputed rather than saved in a checkpoint."""


_POLICY = "name seed m trials batch_shape multiplier ask() tell() lighten()"
_PROBLEM = "actions trials reward() costs() observe() optimum() stochastic_optimum()"


def check_parts(policy: Policy, problem: Problem) -> None:
    """Raise if policy or problem lacks something, or if they do not fit together."""
    _complete("policy", policy, _POLICY)
    _complete("problem", problem, _PROBLEM)
    ours, theirs = trial_range(policy.trials), trial_range(problem.trials)
    if theirs is not None and ours != theirs:
        raise _unlike("be for the same trials", ours, theirs)
    _check_actions(policy, problem)
    # a user's problem may mean something else by m: its answers will show
    m = getattr(problem, "m", policy.m) if hasattr(problem, "settings") else policy.m
    if policy.m and policy.m != m:
        raise _unlike("have the same costs", policy.m, m)
    objective = objective_of(problem, policy)
    _check_objective(policy, objective)
    _check_thresholds(policy, objective.limits)


def check_memory(horizon: int, policy: Policy, problem: Problem) -> None:
    """Raise if the account of ``horizon`` rounds will not fit in memory."""
    numbers = 8 + 4 * policy.m + int(problem.actions.dim)
    try:
        torch.empty(horizon, *policy.batch_shape, numbers, dtype=torch.float64)
    except (RuntimeError, TypeError):
        size = 8e-9 * horizon * math.prod(policy.batch_shape) * numbers
        raise CBanditError(
            f"horizon = {horizon} rounds need {size:.3g} GB for their account, more "
            "than there is"
        ) from None


def check_rounds(policy: Policy, rounds: int) -> None:
    """Raise if the policy's own horizon ends before ``rounds`` more rounds."""
    last, t = getattr(policy, "horizon", None), getattr(policy, "t", 0)
    if isinstance(last, int) and t + rounds > last:
        after = f" after its {t} so far" if t else ""
        raise HorizonError(
            f"horizon: the policy's own is {last} rounds; got {rounds} to play"
            f"{after}. Build the policy with a larger horizon="
        )


def objective_of(problem: Problem, policy: Policy) -> Objective:
    """Return a problem's names, signs and limits; the policy may name the costs."""
    objective = getattr(policy, "objective", None)
    names = objective.names if isinstance(objective, Objective) else None
    return Objective.of_problem(problem, policy.m, names)


def _complete(name: str, part: Policy | Problem, attributes: str) -> None:
    missing = [
        word
        for word in attributes.split()
        if not hasattr(part, word.removesuffix("()"))
    ]
    if missing:
        raise CBanditError(
            f"{name} must have all that the loop asks of it; {checks.kind(part)} "
            f"lacks {', '.join(missing)}"
        )


def _unlike(wanted: str, ours: object, theirs: object) -> CBanditError:
    """Return the error about a policy and a problem that do not fit together."""
    return CBanditError(
        f"policy and problem must {wanted}; the policy has {ours}, the problem {theirs}"
    )


def _check_actions(policy: Policy, problem: Problem) -> None:
    ours, theirs = getattr(policy, "actions", None), problem.actions
    if not isinstance(ours, Actions) or not isinstance(theirs, Actions):
        return  # a user's policy may take actions of another kind
    numbered = ours.finite and theirs.finite
    if ours.dim != theirs.dim or (numbered and ours.size != theirs.size):
        wanted = "be over the same actions: build the policy on problem.actions"
        raise _unlike(wanted, repr(ours), repr(theirs))


def _check_objective(policy: Policy, theirs: Objective) -> None:
    ours = getattr(policy, "objective", None)
    if not isinstance(ours, Objective):
        return
    if not ours.same(theirs) and (ours.m or ours.minimise != theirs.minimise):
        wanted = (
            "state rewards and costs alike: give the policy the problem's thresholds= "
            "and minimise="
        )
        raise _unlike(wanted, f"({ours})", f"({theirs})")


def _check_thresholds(policy: Policy, limits: object) -> None:
    """Warn if the policy's limits are looser than the problem's, or left out."""
    if callable(limits) or not policy.m:
        return
    name, shape = "problem.thresholds", (*policy.batch_shape, policy.m)
    theirs = checks.shaped(name, checks.tensor(name, limits), shape, "(*trials, m)")
    ours = getattr(policy, "thresholds", None)
    if not isinstance(ours, Tensor):
        return  # a callable, or a user's policy
    ours, theirs = ours.cpu(), theirs.reshape(-1, policy.m)
    above = bool((ours > theirs + 1e-6 * (1 + theirs.abs())).any())
    if above or (not bool(ours.any()) and bool(theirs.any())):
        warn(
            f"{policy.name} keeps costs under thresholds {ours[0].tolist()}, and the "
            f"account is by the problem's, {theirs[0].tolist()}: build the policy with "
            "thresholds=problem.thresholds, or lower ones for a margin",
        )
