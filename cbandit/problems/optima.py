"""The optima that a run is compared with: whose they are, and of which set.

A problem's ``optimum(t)`` and ``stochastic_optimum(t)`` are asked in every round. Those
of the library's own problems are for the whole set and are marked so: many rounds are
told at once, and where a round shows a set of its own, ``within`` finds the optima of
that set. A subclass's own method has no mark, and its word counts in every round.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from cbandit._core import checks
from cbandit._core.log import warn
from cbandit.actions import Actions
from cbandit.policies.checks import round_mask
from cbandit.policies.signs import Objective
from cbandit.search.simplex.lp import solve_policy

NAMES = ("optimum", "stochastic_optimum")
Method = TypeVar("Method", bound=Callable[..., Any])


def whole_set(method: Method) -> Method:
    """Mark an optimum as that of the whole set, whatever a round shows."""
    method.whole_set = True  # type: ignore[attr-defined]
    return method


def of_whole_set(method: object) -> bool:
    """Return whether a method has the mark of :func:`whole_set`."""
    return getattr(method, "whole_set", False) is True


def told(problem: Any, name: str, t: int, batch: tuple[int, ...]) -> Tensor:
    """Return what a problem says of its optimum in round ``t``, ``(*trials,)``."""
    value, words = getattr(problem, name)(t), f"problem.{name}"
    # None: the problem does not know it
    number = checks.tensor(words, torch.nan if value is None else value)
    return checks.shaped(words, number, batch, "(*trials,)")


def in_rounds(
    problem: Any, t: Tensor, batch: tuple[int, ...], *whole: Callable[[], Tensor]
) -> list[Tensor]:
    """Return both optima of rounds ``t (n,)``, ``(*trials, n)`` or ``(*trials, 1)``.

    ``whole`` returns each for the whole set; a method without the mark of
    :func:`whole_set` is asked round by round.
    """
    return [
        values()
        if of_whole_set(getattr(problem, name))
        else torch.stack([told(problem, name, s, batch) for s in t.tolist()], -1)
        for name, values in zip(NAMES, whole, strict=True)
    ]


def best_value(f: Tensor, g: Tensor, tau: Tensor) -> Tensor:
    """Return the largest ``f (*b, N)`` of a feasible action; NaN if there is none.

    An action is feasible if its ``g (*b, m, N)`` are at most ``tau (*b, m)``.
    """
    feasible = (g <= tau.unsqueeze(-1)).all(-2)
    best = f.masked_fill(~feasible, -torch.inf).amax(-1)
    return best.masked_fill(best.isneginf(), torch.nan)


def within(
    problem: Any,
    t: int,
    among: Any,
    values: Tensor,
    best: Callable[[Tensor, Tensor, Tensor], Tensor] = best_value,
) -> tuple[Tensor, Tensor]:
    """Return both optima ``(*trials,)`` of the set that round ``t`` shows.

    Args:
        problem: its limits, its trials and its set.
        t: the round.
        among: the part of the problem's set that the round shows, if it shows one.
        values: reward and costs of the set's points as the problem states them,
            ``(*trials, n, 1 + m)``; points that ``among`` does not number come first.
        best: finds the best action's reward, see :func:`best_value`.
    """
    objective = Objective.of_problem(problem, values.shape[-1] - 1, None)
    limits = objective.limits(t) if callable(objective.limits) else objective.limits
    f, g = objective.reward(values[..., 0]), objective.costs(values[..., 1:]).mT
    tau = checks.tensor("problem.thresholds", limits).expand(g.shape[:-1])
    on = problem.actions
    if on.linear is not None and on.finite and f.shape[-1] == on.size:
        f = f.masked_fill(~on.within_limits(), -torch.inf)
    if among is not None:
        batch = tuple(f.shape[:-1])
        mask = round_mask(among, problem.actions, batch, f.device)
        first = torch.ones_like(f[..., : f.shape[-1] - mask.shape[-1]]).bool()
        mask = torch.cat([first, mask.expand(*batch, -1) if batch else mask[0]], -1)
        f = f.masked_fill(~mask, -torch.inf)
    solution = solve_policy(f, g, tau)
    mixed = solution.value.masked_fill(solution.infeasible, torch.nan)
    return objective.reward(best(f, g, tau)), objective.reward(mixed)


def unknown(problem: Any, actions: Actions | None) -> tuple[Tensor, Tensor]:
    """Warn that the optima of a round's set are not known, and return NaN for both."""
    on = problem.actions if actions is None else actions
    warn(
        f"run.regret is NaN where {type(problem).__name__}.round shows a part of its "
        f"set, here of {on!r}: the best of that part is not known. Give the problem "
        "optimum(t) and stochastic_optimum(t) of its own"
    )
    return torch.tensor(torch.nan), torch.tensor(torch.nan)


def listed(
    problem: Any, actions: Actions | None
) -> tuple[Tensor, Tensor | None] | None:
    """Return all points of a round's set, and their numbers in the problem's own.

    Points are ``(*trials, n, d)``, numbers ``(*trials, n)``; these are ``None`` in
    another set. ``None`` alone: the set cannot be listed.

    Args:
        problem: a problem; its set is meant if the round shows none.
        actions: the round's own set, if it shows one.
    """
    on = problem.actions if actions is None else actions
    if not on.finite:
        return None
    batch = () if problem.trials is None else (len(problem.trials),)
    points = on.block(0, on.size).expand(*batch, -1, -1)
    if actions is not None:
        return points, None
    return points, torch.arange(on.size).expand(*batch, -1)
