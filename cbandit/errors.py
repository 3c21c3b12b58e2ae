"""The errors that the library raises.

Every error that a user can cause is a :class:`CBanditError`, which is a ``ValueError``.
Its message names the argument, what was given and what is expected. The object that
raised it is unchanged by the call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


__all__ = [
    "BudgetError",
    "CBanditError",
    "CheckpointError",
    "ChoiceError",
    "HorizonError",
    "InfeasibleError",
    "LostRankError",
    "MissingDataError",
    "MissingExtraError",
]


class CBanditError(ValueError):
    """Base class of every error the library raises about its input."""


class ChoiceError(CBanditError):
    """Raised for a choice that is unknown, finished, cancelled or another policy's."""


class HorizonError(CBanditError):
    """Raised when a round is asked for beyond the policy's horizon."""


class ReadOnlyError(CBanditError, AttributeError):
    """Raised when an attribute is assigned that a policy's state rests on."""


class BudgetError(CBanditError):
    """Raised when no trial can afford an action any more, see :class:`cb.Budget`.

    ``fits`` lists the choices that could be afforded but were not allowed in the round,
    by name or number.
    """

    def __init__(self, message: str, fits: Sequence[object] = ()) -> None:
        super().__init__(message)
        self.fits = list(fits)


class InfeasibleError(CBanditError):
    """Raised when no action or distribution meets the constraints.

    ``best`` is the one that violates them least, by ``violation``.
    """

    def __init__(
        self, message: str, violation: Tensor | None = None, best: object = None
    ) -> None:
        super().__init__(message)
        self.violation = violation
        self.best = best


class CheckpointError(CBanditError):
    """Raised for a file that is no checkpoint, is broken, or is of another object."""


class LostRankError(CBanditError):
    """Raised when another process of a run does not answer; see ``cb.distributed``."""


class MissingDataError(CBanditError):
    """Raised when a data file of an experiment is not on this machine."""


class MissingExtraError(CBanditError):
    """Raised when an optional dependency is not installed."""
