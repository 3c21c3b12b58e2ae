"""OPB: a distribution over actions each round, within its limits in expectation.

:mod:`cbandit.policies.opb_counts` is the paper's algorithm, for independent arms;
:mod:`cbandit.policies.opb_gp` the same for correlated actions.
"""

from __future__ import annotations

from typing import Any

from cbandit._core import checks
from cbandit.beliefs.counts import Counts
from cbandit.beliefs.gp import GP
from cbandit.errors import CBanditError
from cbandit.policies.opb_counts import CountOPB
from cbandit.policies.opb_gp import GPOPB

__all__ = ["OPB"]


def OPB(actions: Any, **arguments: Any) -> CountOPB | GPOPB:
    """Optimism and pessimism over distributions: limits hold in expectation.

    Args:
        actions: what can be chosen, a :class:`~cbandit.Finite` set or a
            :class:`~cbandit.ProductGrid`.
        arguments: ``reward``, ``costs``, ``safe``, ``delta``, ``alpha`` and more: those
            of :class:`~cbandit.policies.opb_counts.CountOPB` for beliefs of
            :class:`~cbandit.Counts`, those of
            :class:`~cbandit.policies.opb_gp.GPOPB` for :class:`~cbandit.GP`.

    Example:
        >>> import cbandit as cb, torch
        >>> counts = cb.Counts(subgaussian=0.5, range=(0.0, 1.0))
        >>> policy = cb.OPB(
        ...     cb.Finite(torch.arange(4.0).unsqueeze(-1)), reward=counts, costs=counts,
        ...     safe=cb.Safe(index=0, reward=0.1, cost=0.0), thresholds=0.5,
        ...     horizon=1000,
        ... )
        >>> policy.ask().distribution.probability.sum()
        tensor(1., dtype=torch.float64)
    """
    for name in ("reward", "costs"):
        if arguments.get(name) is None:
            raise CBanditError(f"{name} must be a cb.Counts or a cb.GP; got none")
    if isinstance(arguments["reward"], GP):
        return GPOPB(actions, **arguments)
    if not isinstance(arguments["reward"], Counts):
        raise CBanditError(
            "reward must be a cb.Counts or a cb.GP; got "
            f"{checks.kind(arguments['reward'])}"
        )
    return CountOPB(actions, **arguments)
