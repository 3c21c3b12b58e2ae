"""The penalised reward of epochs: targets, beliefs about them, and bounds' widths.

Its targets are noisier than the reward: ``R`` becomes ``sqrt(R^2 + sum_j kappa_j^2
R_j^2)``, where costs are noisy and the penalty is linear. RKHS widths share ``delta``
among the horizon's ``L`` epochs: ``c = L``, and ``2 L`` with noisy constraints, half of
it being for the costs' noise. Without a horizon (ours) epoch ``l`` has the share
``1 / (l (l + 1))``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
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

__all__ = ["Targets", "bounds", "inner_of"]


@dataclass(frozen=True, eq=False)
class Targets:
    """Rewards less penalties, and the beliefs about them.

    Args:
        penalty: of the costs.
        beliefs: of the first epochs, one each; the last one stays for all that follow.
        reuse: whether past rounds are kept across epochs.
        in_spreads: whether estimates are scored in spreads: where a user standardises.
            Targets that are rescaled for reuse alone are scored in the user's units.
        noises: the costs' noise constants, ``(T, m)``, where the widths tell them.
    """

    penalty: Penalty
    beliefs: list[GP]
    reuse: bool
    in_spreads: bool
    noises: Tensor | None = None

    @classmethod
    def of(cls, penalty: Penalty, reward: Any, reuse: bool) -> Targets:
        """Return the targets that a user means by ``reward``."""
        beliefs = _listed(reward)
        in_spreads = all(belief.standardize for belief in beliefs)
        beliefs = [_standardised(each) for each in beliefs] if reuse else beliefs
        return cls(penalty, beliefs, reuse, in_spreads)

    def suited(self, policy: Any) -> Targets:
        """Return the same for what the policy maximises, checked."""
        for k, belief in enumerate(self.beliefs):
            belief.suit(f"reward[{k}]", policy.actions, policy.batch_shape)
        beliefs = [policy.senses.belief(0, belief) for belief in self.beliefs]
        return replace(self, beliefs=beliefs, noises=_cost_noises(policy))

    def _value(self, own: Epoch, seen: Seen, dtype: torch.dtype) -> Tensor:
        """Return the reward less the penalty, ``(T, 1)``."""
        charge = self.penalty.charge(own.kept, seen.cost)
        # squares of targets, and their sums, must stay finite too
        largest = min(torch.finfo(dtype).max ** 0.5, 1e75)
        return seen.reward - charge.clamp(-largest, largest)

    def opened(self, policy: Any, beliefs: Any, own: Epoch) -> Any:
        """Return the beliefs that an epoch begins with, under its multipliers."""
        if own.number < len(self.beliefs):
            fresh = policy._fresh_beliefs([self.beliefs[own.number]])
            return self._conditioned(fresh, own, *own.seen())
        if not self.reuse:
            return beliefs.forget_all()
        if not own.seen():
            return beliefs
        every = [self._value(own, each, beliefs.dtype) for each in own.seen()]
        return beliefs.retarget(torch.stack(every))

    def learnt(self, state: GPState, number: int, seen: Seen) -> GPState:
        """Return the state with one more round of an epoch; -1: data from before."""
        own = state.own.added(number, seen)
        beliefs = self._conditioned(state.beliefs, own, seen)
        return state._replace(beliefs=beliefs, own=own)

    def _conditioned(self, beliefs: Any, own: Epoch, *seen: Seen) -> Any:
        """Return the beliefs with more rounds."""
        for each in seen:
            keys, x, t = each.place
            target = self._value(own, each, beliefs.dtype)
            came = each.whole().tolist()
            beliefs = beliefs.absorb(keys, x, [([0], target, came, None)], t)
        return beliefs

    def width(self, policy: Any, t: int, state: GPState, chances: int) -> Tensor | None:
        """Return the RKHS width of noisy constraints in round ``t``.

        ``None`` of other widths, which do not grow with the multipliers.

        Args:
            policy: whose width it is.
            t: the round.
            state: the policy's.
            chances: how many bounds hold together.
        """
        parts = policy._estimating.widths.rkhs_parts()
        if not self.penalty.linear or not parts:
            return None
        part: Theory = parts[0][0]
        r, beliefs = part.subgaussian, state.beliefs
        costs = r if self.noises is None else self.noises
        grown = noise(r, costs, state.own.kept)
        gains, noises = beliefs.gains(), beliefs.noises()
        return part.rkhs(t, gains, chances, noises, part.norm, grown)

    def look(self, look: Look, units: Units | None) -> Look:
        """Return the same look, at estimates out of ``units`` where that is wanted."""
        if units is None or self.in_spreads:
            return look
        return _in_users_units(look, units)


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


def _cost_noises(policy: Any) -> Tensor | None:
    """Return the costs' noise constants ``(T, m)``, where the widths tell them."""
    own = policy.explore.widths.cost_beta
    if not isinstance(own, RKHS):
        return None
    shared, m = own is policy.explore.widths.beta, policy.m
    count, batch = 1 if shared else m, policy.batch_shape
    found = checks.per_cost("subgaussian", own.subgaussian, batch, count)
    return found.expand(-1, m).to(policy.device)


def _in_users_units(look: Look, units: Units) -> Look:
    """Return the same look at estimates that are brought out of these units."""
    form, bound = scorer(look), look.bound

    def score(f: Tensor, g: Tensor) -> Tensor:
        f = torch.addcmul(units.center.to(f), f, units.size.to(f))
        return form(f if bound is None else f.clamp(-bound.to(f), bound.to(f)), g)

    close = None if look.tolerance is None else look.tolerance * units.size[:, 0]
    return replace(look, score=score, bound=None, tolerance=close)


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


def _listed(reward: Any) -> list[GP]:
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


def _standardised(belief: GP) -> GP:
    """Return a belief whose targets are standardised, as reuse needs it."""
    if bool((belief.mean != 0).any()):
        raise CBanditError(
            "reward must have mean 0 with reuse=True: its targets are standardised"
        )
    copied = belief.copy()
    copied.standardize = True
    return copied
