"""The user's names of costs, and the functions that policies negate.

Inside a policy, the reward is maximised and costs stay at or below their thresholds. A
reward to minimise, and a cost with a lower limit, are negated where users' values come
in, and negated again where values go out to users: such functions are "turned".

In shapes, ``T`` counts the trials, ``m`` the costs, ``N`` the actions and ``F`` the
functions: the reward, number 0, then the costs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from cbandit._core import checks
from cbandit._core.hints import near
from cbandit._core.limit_text import read_limit
from cbandit._core.log import warn
from cbandit.beliefs.classes import FiniteClass
from cbandit.beliefs.counts import Counts
from cbandit.beliefs.gp import GP
from cbandit.beliefs.linear import Linear
from cbandit.errors import CBanditError
from cbandit.policies.budget import Budget, replace_budgets
from cbandit.policies.safe.action import Safe
from cbandit.recommend import Recommendation

#: the default of ``thresholds=``, compared by ``is``: a user may pass 0.0 too
NOT_GIVEN = float("0")

Belief = TypeVar("Belief", GP, Counts, FiniteClass, Linear)

PER_CENT_FACTOR = 10.0  # a share above this many times its limit, or 1, is in per cent


def names_of(costs: Any) -> tuple[str, ...] | None:
    """Return the names in ``costs``, a mapping or a list of names; else ``None``."""
    listed = isinstance(costs, list | tuple) and all(isinstance(c, str) for c in costs)
    if not isinstance(costs, Mapping) and not (listed and costs):
        return None
    names = tuple(costs)
    if not names or not all(isinstance(name, str) and name for name in names):
        raise CBanditError(f"costs must be named by strings; got {list(names)}")
    if len(set(names)) < len(names):
        raise CBanditError(f"costs must have different names; got {list(names)}")
    return names


def count_or_names(costs: Any, expected: str) -> int | tuple[str, ...]:
    """Return ``costs``, a list of names or a number; errors show ``expected``."""
    if names_of(costs) is not None and not isinstance(costs, Mapping):
        return names_of(costs) or ()
    return checks.whole("costs", costs, 1, expected)


class Objective:
    """The user's names of costs, limits and signs of the functions.

    Args:
        m: how many costs, or their names.
        thresholds: the user's argument; ``NOT_GIVEN`` warns if costs have names.
        minimise: whether the reward is to be small.

    Attributes:
        names: the costs' names, or ``None``.
        limits: the thresholds as a policy uses them, a number, an array or a callable.
        signs: ``(1 + m,)`` float64, -1 for functions that are negated, on the CPU.
        plain: whether no function is negated.
        budgets: the thresholds that are budgets, by the number of the cost from 0.
            Their entries in ``limits`` are the limits of the first round.
        shares: the numbers of the costs whose limit is in per cent, ``"<= 1%"``: they
            are told as shares of 1.
    """

    def __init__(
        self, m: int | Sequence[str], thresholds: Any = 0.0, minimise: bool = False
    ) -> None:
        self.names = None if isinstance(m, int) else tuple(m)
        self.m = m if isinstance(m, int) else len(m)
        self.minimise = checks.flag("minimise", minimise)
        if self.names and thresholds is NOT_GIVEN:
            limits = ", ".join(f"{name!r}: '<= 0'" for name in self.names)
            warn(
                f"costs {', '.join(self.names)} are limited at 0, as no thresholds "
                f"are given: say thresholds={{{limits}}} with the limits that you mean"
            )
        above, words = [False] * self.m, []
        self.shares: frozenset[int] = frozenset()
        thresholds, self.budgets = replace_budgets(thresholds, self.names, self.m)
        if isinstance(thresholds, Mapping):
            if self.names is None:
                raise CBanditError(
                    "thresholds by name need costs by name: costs={'latency': gp}; got "
                    f"thresholds for {list(thresholds)}"
                )
            thresholds = self.in_order(thresholds)
        elif isinstance(thresholds, str):
            thresholds = [thresholds] * self.m
        if isinstance(thresholds, list | tuple) and any(map(_is_worded, thresholds)):
            if len(thresholds) != self.m:
                raise CBanditError(
                    f"thresholds must be {self.m}, one a cost; got {len(thresholds)}"
                )
            words = [
                read_limit(
                    f"thresholds[{j if self.names is None else self.names[j]!r}]", x
                )
                for j, x in enumerate(thresholds)
            ]
            self.shares = frozenset(
                j for j, x in enumerate(thresholds) if _is_per_cent(x)
            )
            above = [turned for turned, _ in words]
            thresholds = [number for _, number in words]
        signs = [-1.0 if turned else 1.0 for turned in (self.minimise, *above)]
        self.signs = torch.tensor(signs, dtype=torch.float64)
        self.plain = not (self.minimise or any(above))
        self.limits = thresholds
        if any(above):
            self.limits = [
                -limit if turned else limit
                for turned, limit in zip(above, thresholds, strict=True)
            ]
        if isinstance(self.limits, list) and (self.budgets or words):
            if any(map(np.ndim, self.limits)):  # some limits differ by trial
                parts = [checks.tensor("thresholds", limit) for limit in self.limits]
                self.limits = torch.stack(torch.broadcast_tensors(*parts), -1)

    def number(self, name: object) -> int:
        """Return the number of a cost by its name, from 0; raise if there is none."""
        labels = [self.label(j) for j in range(self.m)]
        if name in labels:
            return labels.index(str(name))
        meant = near(name, labels) if isinstance(name, str) else None
        hint = f"; did you mean {meant!r}?" if meant else ""
        raise CBanditError(f"no cost is called {name!r}, of {labels}{hint}")

    def read(self, j: int, limit: Any) -> Any:
        """Return a new limit of cost ``j``, negated if the cost is; check its side."""
        name, above = f"the limit of {self.label(j)}", self.above(j)
        if _is_worded(limit):
            turned, limit = read_limit(name, limit)
            if turned != above:
                side = "'>= NUMBER'" if above else "'<= NUMBER'"
                raise CBanditError(
                    f"{name} keeps its side, {side}; for the other side build a new "
                    "policy, and give it history() by observe()"
                )
        value = checks.finite(name, checks.tensor(name, limit))
        return -value if above else value

    def above(self, j: int) -> bool:
        """Return whether cost ``j`` has a lower limit."""
        return bool(self.signs[1 + j] < 0)

    def with_limit(self, j: int, limit: Any) -> Objective:
        """Return a copy with ``budgets`` and ``shares`` for cost ``j``'s new limit."""
        other, budgets = copy.copy(self), {**self.budgets}
        budgets.pop(j, None)
        if isinstance(limit, Budget):
            budgets[j] = limit
        other.budgets = dict(sorted(budgets.items()))
        other.shares = self.shares - {j} | ({j} if _is_per_cent(limit) else frozenset())
        return other

    def check_shares(
        self, values: Tensor, functions: Sequence[int], limits: Tensor
    ) -> None:
        """Raise if a cost whose limit is in per cent is itself told in per cent.

        Args:
            values: the values that the user told, ``(..., f)``.
            functions: the numbers of these ``f`` functions.
            limits: the thresholds ``(T, m)``.
        """
        for k, f in enumerate(functions):
            if f - 1 in self.shares:
                limit = float(limits[:, f - 1].abs().max())
                largest = float(values[..., k].abs().max()) if values.numel() else 0.0
                if largest > PER_CENT_FACTOR * max(1.0, limit):
                    raise CBanditError(
                        f"{self.label(f - 1)} has a limit in per cent, {limit:g} as a "
                        f"share, and is told as a share: {largest / 100:g}; got "
                        f"{largest:g}. Or state the limit without the sign '%'"
                    )

    def in_order(self, limits: Any) -> Any:
        """Return thresholds by name in the order of the costs; leave others unchanged.

        The result is a list, or an array ``(*trials, m)`` if a threshold is an array
        ``(*trials,)`` and none is in words.
        """
        if not isinstance(limits, Mapping):
            return limits
        self._check_names(limits, "thresholds", whole=True)
        names = self.names or ()
        called = [name for name in names if callable(limits[name])]
        if called:
            raise CBanditError(
                f"thresholds[{called[0]!r}] is a callable: make thresholds one that "
                "returns all of them by name, lambda t: {...}"
            )
        listed = [limits[name] for name in names]
        for name, limit in zip(names, listed, strict=True):
            if not _is_worded(limit):
                checks.tensor(f"thresholds[{name!r}]", limit)
        if any(map(_is_worded, listed)) or not any(map(np.ndim, listed)):
            return listed
        return self._joined(limits, "thresholds", -1)

    def _check_names(
        self, named: Mapping[str, Any], argument: str, whole: bool
    ) -> None:
        """Raise if ``named`` has an unknown cost or, if ``whole``, lacks a cost."""
        names = self.names or ()
        odd = [name for name in named if name not in names]
        missing = [name for name in names if name not in named] if whole else []
        if self.names is None or odd or missing:
            meant = near(str(odd[0]), names) if odd else None
            hint = f"; did you mean {meant!r}?" if meant else ""
            called = f"no cost is called {odd[0]!r}{hint}" if odd else ""
            reason = called or f"misses {missing[:1]}"
            if self.names is None:
                reason = "the costs have no names: give costs={'latency': gp}"
            raise CBanditError(f"{argument} by name must be of {list(names)}; {reason}")

    def _joined(self, named: Mapping[str, Any], argument: str, dim: int) -> Tensor:
        """Return a mapping's values, stacked along ``dim`` in the order of costs."""
        self._check_names(named, argument, whole=True)
        names = self.names or ()
        parts = [checks.tensor(f"{argument}[{name!r}]", named[name]) for name in names]
        return torch.stack(torch.broadcast_tensors(*parts), dim)

    def columns(self, cost: object) -> list[int] | None:
        """Return which costs a user's mapping names, by number, from 0.

        ``None`` if ``cost`` is no mapping.
        """
        if not isinstance(cost, Mapping):
            return None
        self._check_names(cost, "cost", whole=False)
        if not cost:
            raise CBanditError("cost by name must hold at least one cost; got none")
        late = [name for name in cost if cost[name] is None]
        if late:
            raise CBanditError(
                f"cost[{late[0]!r}] must be a number; got None: leave it out until it "
                "has come"
            )
        return [j for j, name in enumerate(self.names or ()) if name in cost]

    def stacked(self, cost: Any) -> Any:
        """Return costs by name as an array ``(..., m)``; leave others unchanged."""
        return self._joined(cost, "cost", -1) if isinstance(cost, Mapping) else cost

    # -- turning -----------------------------------------------------------------------

    def reward(self, value: Tensor) -> Tensor:
        """Return rewards of any shape, negated if they are to be minimised."""
        return -value if self.minimise else value

    def costs(self, values: Tensor) -> Tensor:
        """Return costs ``(..., m)``, negated where they have a lower limit."""
        return values if self.plain else values * self.signs[1:].to(values)

    def turned(self, values: Tensor, functions: Sequence[int]) -> Tensor:
        """Return values ``(..., f)`` of the ``functions``, negated where turned."""
        if self.plain:
            return values
        return values * self.signs[list(functions)].to(values)

    def functions(self, mean: Tensor) -> Tensor:
        """Return means ``(T, F, N)`` with the user's signs."""
        if self.plain:
            return mean
        return mean * self.signs[: mean.shape[1]].to(mean).unsqueeze(-1)

    def belief(self, function: int, belief: Belief) -> Belief:
        """Return the belief about a function, negated if the function is turned."""
        return belief if self.signs[function] > 0 else belief.turned()

    def safe(self, safe: Safe | None) -> Safe | None:
        """Return the safe action, its reward and costs negated where turned."""
        if not isinstance(safe, Safe) or (self.plain and self.names is None):
            return safe
        reward, cost = safe.reward, self.stacked(safe.cost)
        if reward is not None and self.minimise:
            reward = -checks.tensor("safe.reward", reward)
        if cost is not None and not self.plain:
            cost = checks.tensor("safe.cost", cost)
            shape = tuple(cost.shape)
            one = not shape or shape[-1] != self.m
            cost = self.costs(cost.expand(*shape[:-1], self.m) if one else cost)
        return Safe(safe.index, safe.x, reward, cost)

    def observed(self, costs: Any) -> Any:
        """Return observed costs, an array or a callable, negated where turned."""
        if callable(costs):
            return costs if self.plain else _SignedCosts(costs, self)
        if isinstance(costs, Mapping):
            costs = self._joined(costs, "observed_costs", -2)
        if self.plain:
            return costs
        # a single cost may come without its axis
        signs = self.signs[1:] if self.m == 1 else self.signs[1:, None]
        return checks.tensor("observed_costs", costs) * signs

    def recommended(self, best: Recommendation) -> Recommendation:
        """Return a recommendation with the user's signs and names."""
        return replace(best, value=self.reward(best.value), costs=self.names)

    # -- reading -----------------------------------------------------------------------

    def as_dict(self) -> dict[str, Any]:
        """Return the names and signs as a dict that JSON can hold."""
        above = [sign < 0 for sign in self.signs[1:].tolist()]
        costs = self.m if self.names is None else list(self.names)
        return {"costs": costs, "above": above, "minimise": self.minimise}

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Objective:
        """Rebuild the object from ``plain``, the result of :meth:`as_dict`."""
        limits = [">= 0" if above else 0.0 for above in plain["above"]]
        return cls(plain["costs"], limits, plain["minimise"])

    @classmethod
    def of_problem(
        cls, problem: object, m: int, names: Sequence[str] | None
    ) -> Objective:
        """Return the objective of a problem with ``m`` costs, maybe with ``names``."""
        limits = getattr(problem, "thresholds", 0.0)
        costs: int | Sequence[str] = m if names is None else names
        if isinstance(limits, Mapping):
            costs = list(limits)
        return cls(costs, limits, getattr(problem, "minimise", False))

    def label(self, j: int) -> str:
        """Return the name of a cost in frames and figures."""
        return f"cost{j + 1}" if self.names is None else self.names[j]

    def same(self, other: Objective) -> bool:
        """Return whether ``other`` negates the same functions and names costs alike.

        If one of the two has no names, they are not compared.
        """
        alike = self.names is None or other.names is None or self.names == other.names
        return alike and torch.equal(self.signs, other.signs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Objective) and self.as_dict() == other.as_dict()

    def __hash__(self) -> int:
        return hash((self.m, self.minimise))

    def __str__(self) -> str:
        limits = [">=" if sign < 0 else "<=" for sign in self.signs[1:].tolist()]
        costs = (f"{self.label(j)} {sign}" for j, sign in enumerate(limits))
        return f"{'minimise' if self.minimise else 'maximise'}, {', '.join(costs)}"


class _SignedCosts:
    """A user's callable for observed costs on a box, its results negated."""

    def __init__(self, costs: Callable[[Tensor], Any], objective: Objective) -> None:
        self._costs, self._objective = costs, objective

    def __call__(self, x: Tensor) -> Tensor:
        out: Tensor = self._objective.observed(self._costs(x))
        return out


def _is_per_cent(limit: object) -> bool:
    """Return whether a user's limit is in per cent, as in ``"<= 1%"``."""
    return isinstance(limit, str) and "%" in limit


def _is_worded(limit: object) -> bool:
    """Return whether a limit, or one in a list of limits, is a string or a bool."""
    limits = limit if isinstance(limit, list | tuple) else [limit]
    return any(isinstance(one, str | bool) for one in limits)
