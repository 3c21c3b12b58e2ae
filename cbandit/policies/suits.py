"""Checks of what a GP policy is built with, and of the sets it is asked on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cbandit._core import checks
from cbandit.actions import Actions
from cbandit.beliefs.feedback import Delayed, Sliding
from cbandit.beliefs.gp import GP
from cbandit.errors import CBanditError
from cbandit.explore import UCB
from cbandit.policies.given import COST_COUNT, listed
from cbandit.policies.senses import names_of

__all__ = [
    "believed_costs",
    "epochs",
    "first_round",
    "functions",
    "round_points",
    "suited",
]

NO_NOISE = (
    "noise= cannot go with feedback=cb.Delayed(...): a choice weighs in when it is "
    "made, before its own variance is known"
)


def functions(reward: Any, costs: Any) -> tuple[list[GP], int | tuple[str, ...]]:
    """Return one belief a function, reward first, and how many costs there are.

    Or the names of the costs, where they have any.
    """
    names = names_of(costs)
    counted = isinstance(costs, int) and not isinstance(costs, bool)
    unknown = counted or (names is not None and not isinstance(costs, Mapping))
    beliefs = [reward, *([] if costs is None or unknown else listed(costs, GP))]
    for j, belief in enumerate(beliefs):
        if not isinstance(belief, GP):
            label = names[j - 1] if names and j else j - 1
            name = "reward" if j == 0 else f"costs[{label!r}]"
            raise CBanditError(f"{name} must be a cb.GP; got {checks.kind(belief)}")
    if names is not None:
        return beliefs, names
    m = checks.whole("costs", costs, 1, COST_COUNT) if counted else len(beliefs) - 1
    return beliefs, m


def believed_costs(costs: Any) -> Any:
    """Return ``costs``, an error unless there are beliefs about them."""
    named = isinstance(costs, Mapping)
    if costs is None or isinstance(costs, int) or (names_of(costs) and not named):
        raise CBanditError(
            "costs must be a cb.GP, a list of them, or {'latency': gp, ...}: this "
            f"policy weighs what is believed about each cost; got {costs!r}"
        )
    return costs


def suited(policy: Any, actions: Any, explore: Any, feedback: Any, pending: Any) -> str:
    """Raise an error unless these go with the policy and with each other.

    Returns:
        What ``pending`` means.
    """
    if not isinstance(explore, policy.explores):
        kinds = " or ".join(f"cb.{each.__name__}(...)" for each in policy.explores)
        raise CBanditError(f"explore must be {kinds}; got {checks.kind(explore)}")
    box = policy.continuous
    if isinstance(actions, Actions) and not (
        actions.finite or (box and actions.continuous)
    ):
        kinds = "a Finite set or a ProductGrid" + ", or a Box" * box
        raise CBanditError(
            f"{type(policy).__name__} chooses from {kinds}; got {actions!r}"
        )
    if pending is None:
        apart = policy.hallucinates and isinstance(explore, UCB)
        late = isinstance(feedback, Delayed)
        pending = "hallucinate" if apart and not late else "ignore"
    checks.one_of("pending", pending, "ignore", "hallucinate", other="None")
    if pending == "hallucinate" and not isinstance(explore, UCB):
        raise CBanditError(
            "pending='hallucinate' goes with explore=cb.UCB(...): draws already "
            f"spread choices apart; got cb.{explore.name}"
        )
    if not isinstance(feedback, Delayed | Sliding | None):
        raise CBanditError(
            "feedback must be None, cb.Delayed(window) or cb.Sliding(window); got "
            f"{feedback!r}"
        )
    kind, own = type(feedback).__name__, type(policy).__name__
    for given, what in (kind, f"feedback=cb.{kind}(...)"), (pending, f"{pending=}"):
        if given in policy.takes_no:
            raise CBanditError(f"{own} takes no {what}: {policy.takes_no[given]}")
    if isinstance(feedback, Delayed) and (
        pending == "hallucinate" or not isinstance(explore, UCB)
    ):
        raise CBanditError(
            "feedback=cb.Delayed(...) counts outstanding rounds itself: it goes "
            f"with explore=cb.UCB(...) and pending='ignore'; got cb.{explore.name} "
            f"and pending={pending!r}"
        )
    return str(pending)


def epochs(restart: Any) -> int | str | None:
    """Return ``restart`` if it is a number of rounds, ``"doubling"`` or ``None``."""
    if restart is None:
        return None
    if isinstance(restart, str):
        checks.one_of("restart", restart, "doubling", other="a number of rounds")
        return restart
    return checks.whole("restart", restart)


def round_points(own: Any, asked: Any, samples: bool) -> None:
    """Raise an error unless beliefs about the set ``own`` say something of ``asked``.

    ``samples``: whether the policy draws functions, which it does over its own set.
    """
    if samples:
        raise CBanditError(
            "ask(actions=...) needs explore=cb.UCB or cb.Rand on a GP policy; "
            "joint draws are kept over the policy's own set"
        )
    if not asked.finite:
        raise CBanditError(
            f"actions of this round must be points, a cb.Finite or a cb.ProductGrid; "
            f"got {asked!r}"
        )
    if own.covariance is not None or asked.covariance is not None:
        raise CBanditError(
            "ask(actions=...) needs coordinates; arms given by their covariance alone "
            "have none: use ask(among=...)"
        )
    if own.continuous:
        own.inside(asked.block(0, asked.size), "actions of this round")


def first_round(restart: int | str | None, t: int) -> int:
    """Return the first round of the epoch that round ``t`` is in."""
    if restart is None:
        return 1
    if restart == "doubling":  # epoch i is rounds 2^i .. 2^(i+1) - 1
        return 1 << (t.bit_length() - 1)
    return t - (t - 1) % int(restart)
