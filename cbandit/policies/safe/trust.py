"""Whether spreads rest on enough outcomes for anything to be called safe by them."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from cbandit._core.log import warn
from cbandit.posterior.units import Units

__all__ = ["FAR", "FEW", "trusted"]

FEW = 5  # outcomes from which a standardised belief's spread is believed
FAR = 1e6  # spreads: farther than any cost that is believed in


def trusted(policy: Any, units: Units | None, patience: int = 0) -> Tensor | None:
    """Return the trials ``(T,)`` whose beliefs may say what is safe; ``None``: all.

    A standardised belief cannot while its spread rests on a few outcomes. The first
    time that is so, after ``patience`` outcomes, a warning says it.
    """
    if units is None:
        return None
    enough = units.rests_on(FEW)
    if bool(enough.all()):
        return None
    seen = int(units.seen.min())
    if seen >= patience and not getattr(policy, "_said_few", False):
        policy._said_few = True
        warn(
            f"{policy.name}: a standardised belief has seen {seen} outcomes; before it "
            f"has seen {FEW}, not all alike, only actions given as safe count as safe. "
            "Tell it data from before by policy.observe(), or give beliefs without "
            "standardize",
        )
    return enough
