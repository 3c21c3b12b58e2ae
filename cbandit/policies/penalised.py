"""The penalised reward of epochs: targets, beliefs about them, and bounds' widths.

Its targets are noisier than the reward: ``R`` becomes ``sqrt(R^2 + sum_j kappa_j^2
R_j^2)``, where costs are noisy and the penalty is linear. RKHS widths share ``delta``
among the horizon's ``L`` epochs: ``c = L``, and ``2 L`` with noisy constraints, half of
it being for the costs' noise. Without a horizon (ours) epoch ``l`` has the share
``1 / (l (l + 1))``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from cbandit._core import checks
from cbandit.beliefs.gp import GP
from cbandit.confidence import RKHS
from cbandit.confidence.bound import Theory
from cbandit.errors import CBanditError
from cbandit.explore import TS, UCB, Explore
from cbandit.policies.penalties import Penalty
from cbandit.policies.seen import Epoch, Seen
from cbandit.policies.state import GPState
from cbandit.posterior.look import Look, scorer
from cbandit.posterior.units import Units

__all__ = [
    "beliefs_of",
    "bounds",
    "conditioned",
    "cost_noises",
    "in_users_units",
    "inner_of",
    "noise",
    "retargeted",
    "standardised",
    "turned",
    "width",
]


def targets(penalty: Penalty, own: Epoch, seen: Seen, dtype: torch.dtype) -> Tensor:
    """Return the reward less the penalty, ``(T, 1)``."""
    charge = penalty.charge(own.kept, seen.cost)
    # squares of targets, and their sums, must stay finite too
    largest = min(torch.finfo(dtype).max ** 0.5, 1e75)
    return seen.reward - charge.clamp(-largest, largest)


def conditioned(beliefs: Any, penalty: Penalty, own: Epoch, *seen: Seen) -> Any:
    """Return the beliefs with more rounds."""
    for each in seen:
        keys, x, t = each.place
        target = targets(penalty, own, each, beliefs.dtype)
        beliefs = beliefs.absorb(
            keys, x, [([0], target, each.whole().tolist(), None)], t
        )
    return beliefs


def retargeted(beliefs: Any, penalty: Penalty, own: Epoch) -> Any:
    """Return the beliefs about targets under this epoch's multipliers."""
    seen = own.seen()
    if not seen:
        return beliefs
    every = [targets(penalty, own, each, beliefs.dtype) for each in seen]
    return beliefs.retarget(torch.stack(every))


def bounds(epoch: int, epochs: int | None, linear: bool) -> int:
    """Return ``c`` of the RKHS widths: how many bounds hold together.

    Args:
        epoch: the present one, counted from 0.
        epochs: how many the horizon has; ``None``: there is none.
        linear: whether costs are noisy.
    """
    share = (epoch + 1) * (epoch + 2) if epochs is None else epochs
    return 2 * share if linear else share


def noise(r: Tensor, costs: Tensor, kappa: Tensor) -> Tensor:
    """Return the targets' noise constant, ``(T, 1)``.

    Args:
        r: the reward's, ``(T, 1)``.
        costs: the costs', ``(T, 1 or m)``.
        kappa: the multipliers, ``(T, m)``.
    """
    spread = (kappa * costs).square().sum(-1, keepdim=True)
    return (r.square() + spread).sqrt()


def width(
    part: Theory, t: int, state: GPState, chances: int, costs: Tensor | None
) -> Tensor:
    """Return the RKHS width of noisy constraints in round ``t``.

    Args:
        part: the reward's width, as the user gives it.
        t: the round.
        state: the policy's.
        chances: how many bounds hold together.
        costs: the costs' noise constants, ``(T, m)``; the reward's unless given.
    """
    r, beliefs = part.subgaussian, state.beliefs
    grown = noise(r, r if costs is None else costs, state.own.kept)
    gains, noises = beliefs.gains(), beliefs.noises()
    return part.rkhs(t, gains, chances, noises, part.norm, grown)


def cost_noises(policy: Any, explore: Explore) -> Tensor | None:
    """Return the costs' noise constants ``(T, m)``, where the widths tell them."""
    own = explore.widths.cost_beta
    if not isinstance(own, RKHS):
        return None
    shared, m = own is explore.widths.beta, policy.m
    count, batch = 1 if shared else m, policy.batch_shape
    found = checks.per_cost("subgaussian", own.subgaussian, batch, count)
    return found.expand(-1, m).to(policy.device)


def in_users_units(look: Look, units: Units) -> Look:
    """Return the same look at estimates that are brought out of these units."""
    form, bound = scorer(look), look.bound

    def score(f: Tensor, g: Tensor) -> Tensor:
        f = torch.addcmul(units.center.to(f), f, units.size.to(f))
        return form(f if bound is None else f.clamp(-bound.to(f), bound.to(f)), g)

    return replace(look, score=score, bound=None)


def inner_of(inner: str, explore: Explore | None) -> UCB | TS:
    """Return how epochs explore, of width 1 unless given."""
    checks.one_of("inner", inner, "ucb", "ts")
    wanted: type[UCB | TS] = UCB if inner == "ucb" else TS
    explore = wanted(1.0) if explore is None else explore
    if not isinstance(explore, wanted):
        raise CBanditError(
            f"inner={inner!r} goes with explore=cb.{wanted.__name__}(...); got "
            f"{checks.kind(explore)}"
        )
    return explore


def beliefs_of(reward: Any) -> list[GP]:
    """Return the belief of each epoch, the last one for all that follow."""
    beliefs = [reward] if isinstance(reward, GP) else reward
    if (
        not isinstance(beliefs, list | tuple)
        or not beliefs
        or not all(isinstance(each, GP) for each in beliefs)
    ):
        raise CBanditError(
            f"reward must be a cb.GP, or a list of them, one an epoch; got {reward!r}"
        )
    return list(beliefs)


def standardised(beliefs: Sequence[GP]) -> list[GP]:
    """Return beliefs whose targets are standardised, as reuse needs it."""
    out = []
    for belief in beliefs:
        if bool((belief.mean != 0).any()):
            raise CBanditError(
                "reward must have mean 0 with reuse=True: its targets are standardised"
            )
        copied = belief.copy()
        copied.standardize = True
        out.append(copied)
    return out


def turned(policy: Any, beliefs: Sequence[GP]) -> list[GP]:
    """Return every epoch's belief about what the policy maximises, checked."""
    for k, belief in enumerate(beliefs):
        belief.suit(f"reward[{k}]", policy.actions, policy.batch_shape)
    return [policy.senses.belief(0, belief) for belief in beliefs]
