"""Bandit OCO's walk: its box, its directions, and what has come of its rounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cbandit._core import checks, devices
from cbandit.actions import Box
from cbandit.errors import CBanditError
from cbandit.policies.decision import Asked
from cbandit.policies.ledger import News, Told

__all__ = ["Played", "Walk", "direction", "first_centre", "shrunk", "whole_box"]

TRIES = 100  # directions, before all is taken to have failed


def whole_box(actions: Any) -> Box:
    """Return a box, an error unless all its coordinates are free to move."""
    if not isinstance(actions, Box):
        raise CBanditError(
            f"BanditOCO moves in a cb.Box; got {actions!r} (a gridded problem of "
            "cb.problems offers problem.box)"
        )
    if actions.choices is not None:
        raise CBanditError(
            f"BanditOCO moves in all coordinates; got {actions!r}, whose last ones "
            "are chosen from rows"
        )
    return actions


def shrunk(box: Box, radius: Tensor, given: Any) -> tuple[Tensor, Tensor]:
    """Return the corners ``(T, d)`` of the box less ``radius (T, 1)`` at each side.

    ``given`` is the radius in the user's words.
    """
    lower, upper = (v.to(radius.device, torch.float64) for v in (box.lower, box.upper))
    low, high = lower + radius, upper - radius
    if bool((low >= high).any()):
        raise CBanditError(
            "radius must be below half the box's shortest side, "
            f"{float((upper - lower).min()) / 2:g}; got {given!r}"
        )
    return low, high


def first_centre(policy: Any, start: Any) -> Tensor:
    """Return the first centre that a user gives, the box's own unless given."""
    box, kept = policy.actions, {"dtype": torch.float64, "device": policy.device}
    if start is None:
        start = (box.lower.to(**kept) + box.upper.to(**kept)) / 2
    given = checks.finite("start", checks.tensor("start", start).to(**kept))
    return checks.shaped("start", given, (policy._size, box.dim), "(*trials, d)")


def direction(
    asked: Asked, centre: Tensor, radius: Tensor, dtype: torch.dtype
) -> Tensor:
    """Draw ``u`` from the unit sphere, again in trials in which its action has failed.

    Args:
        asked: the round.
        centre: ``y``, ``(T, d)``.
        radius: ``e``, ``(T, 1)``.
        dtype: of actions.
    """
    u, size = torch.zeros_like(centre), len(centre)
    left = torch.ones(size, 1, dtype=torch.bool, device=centre.device)
    for _ in range(TRIES):
        draws = asked.streams.normal(centre.shape[-1]).view(size, -1)
        draws = devices.put(draws, centre.device)
        u = torch.where(left, draws / draws.norm(dim=-1, keepdim=True), u)
        if asked.barred is None:
            return u
        x = (centre + radius * u).to(dtype)
        left = asked.barred.holds(x).unsqueeze(-1)
        if not bool(left.any()):
            return u
    raise CBanditError("OCO: every action around its centre has failed")


class Played(NamedTuple):
    """A round's direction, and what has come of it in which trials.

    Args:
        u: ``(T, d)``.
        reward: ``(T, 1)``, 0 until it comes.
        cost: thresholds subtracted, ``(T, m)``, 0 until they come.
        rewarded: trials whose reward has come, ``(T,)`` on the host.
        charged: trials whose costs have come.
        used: trials in which both have moved the centre.
        over: whether nothing more will come.
    """

    u: Tensor
    reward: Tensor
    cost: Tensor
    rewarded: Tensor
    charged: Tensor
    used: Tensor
    over: bool = False

    @classmethod
    def start(cls, u: Tensor, multiplier: Tensor) -> Played:
        """Return a round of which nothing has come."""
        nowhere = torch.zeros(len(u), dtype=torch.bool)
        nothing = torch.zeros_like(u[:, :1]), torch.zeros_like(multiplier)
        return cls(u, *nothing, nowhere, nowhere, nowhere)

    @property
    def due(self) -> Tensor:
        """Trials in which all has come and nothing has been made of it, ``(T,)``."""
        return self.rewarded & self.charged & ~self.used

    def told(self, news: News, limits: Tensor) -> Played:
        """Return the round with what has come of it, under thresholds ``(T, m)``."""
        each = self._replace(over=news.cancelled)
        for told in news.rewards:
            reward = torch.where(told.mask().unsqueeze(-1), told.values, each.reward)
            rewarded = each.rewarded | each._came(told)
            each = each._replace(reward=reward, rewarded=rewarded)
        for told in news.costs:
            over = told.values - limits
            cost = torch.where(told.mask().unsqueeze(-1), over, each.cost)
            charged = each.charged | each._came(told)
            each = each._replace(cost=cost, charged=charged)
        return each

    def _came(self, told: Told) -> Tensor:
        """Return the trials in which something was told, ``(T,)`` on the host."""
        return torch.ones_like(self.used) if told.where is None else told.where

    def spent(self) -> Played | None:
        """Return the round after it has moved the centre; ``None``: it is over."""
        used = self.used | self.due
        return None if self.over or bool(used.all()) else self._replace(used=used)


class Walk(NamedTuple):
    """Where the ascent is.

    Args:
        centre: ``y``, ``(T, d)``.
        multiplier: ``lam``, ``(T, m)``.
        rounds: those whose feedback has not moved it yet, by number.
    """

    centre: Tensor
    multiplier: Tensor
    rounds: Mapping[int, Played]

    def played(self, centre: Tensor, multiplier: Tensor, t: int, u: Tensor) -> Walk:
        """Return the walk after a choice, which starts from where feedback moved it.

        Args:
            centre: ``y`` after all that has come.
            multiplier: ``lam`` likewise.
            t: the round.
            u: its direction.
        """
        rounds = {
            s: left
            for s, each in self.rounds.items()
            if (left := each.spent()) is not None
        }
        rounds[t] = Played.start(u, multiplier)
        return Walk(centre, multiplier, rounds)

    def told(self, news: News, limits: Tensor) -> Walk:
        """Return the walk with news of a round, under its thresholds ``(T, m)``."""
        t = news.choice.t
        if t not in self.rounds:
            return self
        each = self.rounds[t].told(news, limits)
        rounds = {**self.rounds, t: each}
        if each.over and not bool(each.due.any()):
            del rounds[t]
        return self._replace(rounds=rounds)
