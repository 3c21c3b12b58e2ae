"""Explain a choice by what was stored of it, and by asking its round again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from cbandit import scores
from cbandit._core import checks
from cbandit.choice import Choice
from cbandit.errors import CBanditError, ChoiceError
from cbandit.explain import Explanation, Rival
from cbandit.policies.decision import Asked
from cbandit.policies.failures import Barred
from cbandit.policies.names import prefix
from cbandit.policies.pricing import priced
from cbandit.posterior.units import told

__all__ = ["Rivals", "explain", "rivals"]

Rivals = tuple[Tensor, Tensor, Rival | None, Rival | None]
"""Means and deviations ``(T, F)``, the runner-up, and the best without costs."""


def explain(self: Any, choice: Choice | str) -> Explanation:
    """Return why a choice, or that of an id, was made; it prints as text.

    It is whole for the latest choice of a GP policy, until the next ``ask`` or look at
    the beliefs absorbs something. Of others it has what was stored: estimates,
    multiplier and score. Of standardised beliefs these three are in spreads of what was
    seen, and the text says so; all else is in the user's units.
    """
    table, row = _found(self, choice)
    senses, outside, m = self.senses, self._outside, self.m
    t, names = int(table["round"][row]), self.actions.names
    latest, again = self._latest, None
    if latest is not None and t == latest[0].t:
        again = self._rivals(*latest)

    def kept(name: str) -> Tensor | None:
        value = table[name][row]
        return None if bool(value.isnan().all()) else outside(value)

    mean = std = known = runner_up = unconstrained = taken = price = None
    if again is not None:
        mean, std, runner_up, unconstrained = again
        mean = outside(senses.functions(mean.unsqueeze(-1)).squeeze(-1))
        std, known = outside(std), outside(self._beliefs.has_data())
        taken = _taken(self, table["estimate"][row], t)
        price = outside(priced(self._beliefs, self._now.state.multiplier))
    index = table["index"][row]
    return Explanation(
        id=self._record.id_of(int(table["prefix"][row]), t),
        t=t,
        index=None if bool((index < 0).any()) else outside(index),
        x=outside(table["x"][row]),
        mean=mean,
        std=std,
        estimate=kept("estimate"),
        multiplier=kept("multiplier") if m else None,
        score=kept("score"),
        runner_up=runner_up,
        unconstrained=unconstrained,
        labels=("reward", *map(senses.label, range(m))),
        names=names,
        taken=taken,
        price=price,
        known=known,
        unit="spreads" if getattr(self, "standardized", False) else "",
    )


def _taken(policy: Any, estimate: Tensor, t: int) -> Tensor | None:
    """Return an estimate ``(T, 1 + m)`` as the user states reward and costs."""
    if bool(estimate.isnan().all()):
        return None
    units, m = policy._beliefs.units(), policy.m
    limits = policy._limits(t).to(estimate)
    inside = estimate.clone()
    if units is not None:
        size, center = units.size.to(estimate), units.center.to(estimate)
        inside[:, :1] = estimate[:, :1] * size[:, :1] + center[:, :1]
        if size.shape[1] == 1 + m:
            inside[:, 1:] = estimate[:, 1:] * size[:, 1:]
    inside[:, 1:] += limits
    found: Tensor = policy._outside(policy.senses.turned(inside, range(1 + m)))
    return found


def _found(policy: Any, choice: Any) -> tuple[dict[str, Tensor], int]:
    """Return the history's table and the row of a choice, or of an id."""
    if not isinstance(choice, str | Choice):
        raise ChoiceError(
            f"choice must come from ask(), or be its id; got {checks.kind(choice)}"
        )
    name = choice if isinstance(choice, str) else choice.id
    entries = policy._ledger.all(policy._now.t)
    for entry in entries:
        if entry.choice.id == name:
            return policy._record.one(entry), 0
    owner, _, t = str(name).rpartition("-")
    if isinstance(choice, Choice):
        owner = prefix(choice)
    if owner in policy._prefixes and t.isdigit():
        table = policy._record.table(entries)
        for row in (table["round"] == int(t)).nonzero().flatten().tolist():
            if policy._record.id_of(int(table["prefix"][row]), int(t)) == name:
                return table, row
    raise ChoiceError(f"no choice of this policy is called {name!r}")


def rivals(policy: Any, asked: Asked, position: Any) -> Rivals:
    """Return what a GP policy believed at its latest choice, and its alternatives.

    Args:
        policy: which has absorbed nothing since.
        asked: the round.
        position: of the streams before it: the same draws are made again.
    """
    state, streams = policy._now.state, asked.streams
    beliefs = state.beliefs
    choice = policy._ledger.latest(asked.t).choice
    x = choice.x.reshape(policy._size, -1)
    outside, ahead = policy._outside, policy._ahead(asked)

    def best(on: Asked, costs: bool) -> Rival | None:
        streams.go(position)
        look, beside = policy._look(state, on), None
        if costs and policy.sees_costs:
            beside = policy._beside(on)
        if not costs:
            look = replace(look, score=scores.Reward.kind, weight=None)
        fresh = policy._fresh(state.beliefs, on)
        try:
            found, _ = policy._search.best(beliefs, look, on, ahead, beside, fresh)
        except CBanditError:
            return None  # there is no other action
        index = None if found.index is None else outside(found.index)
        x = outside(found.x) if index is None else on.actions.at(index)
        return Rival(index, x, outside(found.value), policy.actions.names)

    streams.keep()
    try:
        runner_up = best(_without(policy, asked, choice, x), True)
        unconstrained = best(asked, False) if policy.m else None
    finally:
        streams.go(policy._now.position)
    mean, std = told(beliefs.units(), *beliefs.anywhere(x.unsqueeze(1), ahead))
    return mean[..., 0], std.expand_as(mean)[..., 0], runner_up, unconstrained


def _without(policy: Any, asked: Asked, choice: Choice, x: Tensor) -> Asked:
    """Return the same round, the choice left out."""
    on = asked.actions
    if on.continuous:
        points = tuple(row.unsqueeze(0) for row in x.double().cpu())
        if asked.barred is not None:
            both = zip(points, asked.barred.points, strict=True)
            points = tuple(torch.cat(pair) for pair in both)
        return asked._replace(barred=Barred(on, points))
    mask = torch.ones(policy._size, on.size, dtype=torch.bool, device=policy.device)
    if asked.mask is not None:
        mask &= asked.mask
    index = choice.index
    if index is not None:
        mask.scatter_(1, index.reshape(-1, 1).to(mask.device), False)
    return asked._replace(mask=mask)
