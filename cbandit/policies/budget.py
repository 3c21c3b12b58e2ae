"""A budget: a total that a cost may reach over a number of rounds.

:mod:`cbandit.policies.concerns.budgets` makes policies keep budgets.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import ArrayLike
from torch import Tensor

from cbandit._core import checks
from cbandit._core.hints import hinted
from cbandit.errors import CBanditError


@hinted
class Budget:
    """A total that a cost may reach over so many rounds; a threshold of a GP policy.

    The limit of each round is what is left, divided by the rounds left. A choice is
    made only if its one-sided 95 % bound, added to those of outstanding choices, is at
    most what is left.

    A cost whose belief has ``outcome="binary"`` or ``"count"`` spends its successes or
    events, one try (or an exposure of 1) a round: ``cb.Budget(20, rounds=1000)`` are 20
    failed requests of 1000.

    Args:
        total: above 0, a number or ``(*trials,)``.
        rounds: the number of rounds.
        fallback: the choices that cost nothing of it, as ``ask(among=)`` takes them:
            ``{"model": "small"}``, or numbers of actions. They are promised nothing,
            and are left when no other choice fits, where ``ask`` raises a
            :class:`~cbandit.BudgetError` without them. What is told of their costs is
            spent. ``None``: there are none. Not on a Box.

    Example:
        >>> import cbandit as cb, torch
        >>> actions = cb.Finite(torch.linspace(0, 1, 20).double().unsqueeze(-1))
        >>> gp = cb.GP.default(actions)
        >>> policy = cb.CKB(
        ...     actions, reward=gp, costs={"usd": gp},
        ...     thresholds={"usd": cb.Budget(120.0, rounds=50_000)},
        ... )
        >>> policy.tell(policy.ask(), reward=0.3, cost={"usd": 0.5})
        >>> policy.budget["usd"].left
        tensor(119.5000, dtype=torch.float64)
    """

    def __init__(self, total: ArrayLike, rounds: int, fallback: Any = None) -> None:
        self.total = checks.positive("total", total)
        if self.total.dim() > 1:
            raise CBanditError(
                "total must be a number or of shape (*trials,); got "
                f"{tuple(self.total.shape)}"
            )
        self.rounds = checks.whole("rounds", rounds, 1, "a positive int")
        self.fallback = fallback
        #: how many rounds came before the budget's first round
        self.before = 0

    def from_round(self, t: int) -> Budget:
        """Return a copy of the budget whose first round is ``t``."""
        later = copy.copy(self)
        later.before = t - 1
        return later

    @property
    def last(self) -> int:
        """The budget's last round."""
        return self.before + self.rounds

    @property
    def pace(self) -> float | Tensor:
        """The limit of the budget's first round, a number or ``(*trials,)``."""
        pace = self.total / self.rounds
        return pace if pace.dim() else pace.item()

    def __repr__(self) -> str:
        free = "" if self.fallback is None else f", fallback={self.fallback!r}"
        return f"Budget({self.total.tolist()}, rounds={self.rounds}{free})"


def replace_budgets(
    thresholds: Any, names: Sequence[str] | None, m: int
) -> tuple[Any, dict[int, Budget]]:
    """Return thresholds with budgets replaced by paces, and the budgets by cost number.

    Args:
        thresholds: the user's argument.
        names: the costs' names; ``None``: they have none.
        m: how many costs there are.
    """
    if isinstance(thresholds, Budget):
        thresholds = [thresholds]
    if isinstance(thresholds, Mapping) and names is not None:
        placed = [thresholds.get(name) for name in names]
    elif isinstance(thresholds, list | tuple):
        placed = list(thresholds)
    else:
        return thresholds, {}
    budgets = {j: v for j, v in enumerate(placed) if isinstance(v, Budget)}
    if not budgets:
        return thresholds, budgets
    if isinstance(thresholds, Mapping):
        pairs = thresholds.items()
        return {k: v.pace if isinstance(v, Budget) else v for k, v in pairs}, budgets
    if len(thresholds) != m:
        raise CBanditError(
            f"thresholds must be {m}, one a cost, where some are budgets; got "
            f"{len(thresholds)}"
        )
    return [v.pace if isinstance(v, Budget) else v for v in thresholds], budgets
