"""Bound what one reading can do, where beliefs are standardised.

A belief expects each reading within some deviations of what all before it say about its
action. One that lies beyond counts as that bound, in the beliefs as in the multiplier,
and a warning says so; the history keeps what was told. Two of them in a row, or with
one reading between, show a level that has moved: the second counts as told.

Standardised targets share a scale and a noise that are learned from them, so that one
wild reading would widen every estimate. Beliefs of a fixed scale take readings as told.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cbandit._core.log import warn
from cbandit.policies.senses import Senses

__all__ = ["RECENT", "bounded", "bounded_rows", "warn_of"]

RECENT = 3  # readings looked back on
MOVED = 2  # so many of these beyond the same bound: the level has moved
REACH = 12.0  # spreads from the average, for rows told at once
LEAST = 10  # readings before which too little is known of the spread
ALIKE = 1e-12  # a spread below this share of the values' size is their rounding


def bounded(
    values: Tensor, came: Tensor, bounds: tuple[Tensor, Tensor], recent: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return readings within bounds, which of them were not, and the recent ones.

    Args:
        values: ``(T, f)``.
        came: ``(T, 1 or f)``, those that are readings.
        bounds: the least and the greatest to be believed, ``(T, f)`` each.
        recent: which of the last readings were beyond, ``(RECENT, T, f)``: 1 above, -1
            below, 0 neither.
    """
    low, high = bounds
    side = ((values > high).to(recent) - (values < low).to(recent)) * came
    recent = torch.where(came, torch.cat([recent[1:], side.unsqueeze(0)]), recent)
    limited = (side != 0) & (recent.sum(0).abs() < MOVED)
    clamped = torch.minimum(torch.maximum(values, low), high)
    return torch.where(limited, clamped.to(values), values), limited, recent


def bounded_rows(
    values: Tensor, rescaled: Tensor, low: Tensor, high: Tensor
) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
    """Return rows ``(T, n, f)`` within bounds, which were not, and their bounds.

    Where beliefs know nothing yet the bounds are spreads of the rows before.

    Args:
        values: ``(T, n, f)``.
        rescaled: ``(f,)``, the functions that are standardised; others stay.
        low: the least to be believed, ``(T, n, f)``; infinite: nothing is known.
        high: likewise the greatest.
    """
    if not values.shape[1]:
        return values, values > 0, (low, high)
    out: list[tuple[Tensor, ...]] = []
    average = torch.zeros_like(values[:, 0])
    squares, came = torch.zeros_like(average), rescaled.expand_as(average)
    recent = torch.zeros(RECENT, *came.shape, dtype=torch.int8, device=values.device)
    for n in range(values.shape[1]):
        reach = REACH * (squares / max(n - 1, 1)).sqrt()
        known = (n >= LEAST) & (reach > ALIKE * average.abs())
        reach = torch.where(known, reach, torch.inf)
        ends = (
            torch.where(low[:, n].isfinite(), low[:, n], average - reach),
            torch.where(high[:, n].isfinite(), high[:, n], average + reach),
        )
        row, beyond, recent = bounded(values[:, n], came, ends, recent)
        gap = row - average
        average = average + gap / (n + 1)
        squares = squares + gap * (row - average)
        out.append((row, beyond, *ends))
    rows, limited, lows, highs = (
        torch.stack(each, 1) for each in zip(*out, strict=True)
    )
    return rows, limited, (lows, highs)


def warn_of(
    senses: Senses,
    where: str,
    functions: list[int],
    values: Tensor,
    limited: Tensor,
    bounds: tuple[Tensor, Tensor],
) -> None:
    """Warn of each reading that is limited.

    Args:
        senses: the user's words.
        where: the round or row.
        functions: of the columns, 0 the reward.
        values: as they were told, ``(T, f)``.
        limited: ``(T, f)``.
        bounds: ``(T, f)`` each.
    """
    for trial, column in limited.nonzero().tolist():
        function = functions[column]
        sign = float(senses.signs[function])
        told, *ends = (sign * float(each[trial, column]) for each in (values, *bounds))
        low, high = sorted(ends)
        name = "reward" if function == 0 else senses.label(function - 1)
        of_trial = f" in trial {trial}" if len(values) > 1 else ""
        warn(
            f"{name} = {told:g} of {where}{of_trial} lies far outside what was seen "
            f"before, which says {low:.4g} to {high:.4g}: it counts as "
            f"{min(max(told, low), high):.4g} (the history keeps what was told). A "
            "level that has moved is followed from the second such reading on"
        )
