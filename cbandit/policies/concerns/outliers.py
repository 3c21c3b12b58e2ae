"""Bound the influence of one reading, where beliefs are standardised.

A reading is one value that the user told. A belief expects the next reading at an
action between two bounds, some deviations from what earlier readings say. A reading
outside is replaced by the bound, for the beliefs and for the multiplier, with a
warning; the history keeps the user's value. Two such readings in a row, or with one
between, show that the level has moved: the second is kept as it is.

Standardised targets have a learned scale and noise, so one wild reading would widen
every estimate. Beliefs with a fixed scale take all readings as they are. ``T`` counts
the trials and ``F`` the functions that have a belief, the reward first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, Self

import torch
from torch import Tensor

from cbandit._core.log import warn
from cbandit.policies.choices import Data, News
from cbandit.policies.round import Concern
from cbandit.policies.setup import Setup
from cbandit.policies.signs import Objective
from cbandit.posterior.beliefs import Beliefs

N_RECENT = 3  # of so many latest readings, whether they were outside is kept
READINGS_OF_A_MOVE = 2  # the level has moved if so many are beyond the same bound
MAX_SPREADS = 12.0  # standard deviations from the average, for rows of earlier data
MIN_READINGS = 10  # with fewer readings their standard deviation is not trusted
ROUNDING_SHARE = 1e-12  # a spread below this share of the values' size is rounding

Bounds = Callable[[Tensor | None], tuple[Tensor, Tensor]]
"""Takes a reading's stated variance; returns the bounds of the reading to expect."""


class Readings(NamedTuple):
    """A summary of the readings so far.

    Args:
        beyond: whether the latest readings were outside of their bounds,
            ``(N_RECENT, T, F)``: 1 above, -1 below, 0 inside.
        least: the smallest value that a reading counted as, ``(T, F)``.
        most: the greatest value that a reading counted as, ``(T, F)``.
    """

    beyond: Tensor
    least: Tensor
    most: Tensor

    @classmethod
    def none(cls, shape: tuple[int, int], device: torch.device) -> Readings:
        """Return the summary before any reading; ``shape`` is ``(T, F)``."""
        beyond = torch.zeros(N_RECENT, *shape, dtype=torch.int8, device=device)
        endless = torch.full(shape, torch.inf, dtype=torch.float64, device=device)
        return cls(beyond, endless, -endless)

    def inside(self, came: Tensor) -> Readings:
        """Return the summary with readings within the range at ``came (T, F)``."""
        later = torch.cat([self.beyond[1:], torch.zeros_like(self.beyond[:1])])
        return self._replace(beyond=torch.where(came, later, self.beyond))

    def bound_news(
        self, news: News, bounds: Bounds, objective: Objective
    ) -> tuple[News, Readings]:
        """Return the news kept within bounds, and the new summary; warn of outliers.

        Args:
            news: the feedback of one choice.
            bounds: takes a reading's stated variance or ``None``, and returns the least
                and greatest readings to expect at the choice, ``(T, F)`` each.
            objective: the user's names and signs.
        """
        items = news.outcomes_by_function()
        if not items:
            return news, self
        # no value of a choice is told twice, so all outcomes can be judged together
        values = torch.zeros_like(self.least)
        came, columns = torch.zeros_like(values, dtype=torch.bool), []
        for told, functions in items:
            # indexing by a list of numbers would wait for the device
            first, last = functions[0], functions[-1] + 1
            at = functions if last - first > len(functions) else slice(first, last)
            mask = told.mask().unsqueeze(-1)
            new, whole = told.values, told.where is None
            values[:, at] = new if whole else torch.where(mask, new, values[:, at])
            came[:, at] |= mask
            columns.append(at)
        # a value within the range accepted before is accepted again
        low, high, noise = self.least, self.most, items[0][0].noise
        # on CUDA this test would take longer than the bounds do
        if values.is_cuda or bool((came & ((values < low) | (values > high))).any()):
            least, most = bounds(noise)
            for (told, _), at in zip(items, columns, strict=True):
                if told.noise is not noise:
                    mask, ends = told.mask().unsqueeze(-1), bounds(told.noise)
                    least, most = least.clone(), most.clone()
                    least[:, at] = torch.where(mask, ends[0][:, at], least[:, at])
                    most[:, at] = torch.where(mask, ends[1][:, at], most[:, at])
            low, high = least.minimum(low), most.maximum(high)
            within, outside, beyond = _bound_readings(
                values, came, low, high, self.beyond
            )
            if outside is not None:
                where = f"round {news.choice.t}"
                _warn_about(objective, where, values, outside, low, high)
            after = Readings(
                beyond,
                torch.where(came, within.minimum(self.least), self.least),
                torch.where(came, within.maximum(self.most), self.most),
            )
        else:
            within, after = values, self.inside(came)
        limited = [
            told._replace(values=within[:, at].to(told.values))
            for (told, _), at in zip(items, columns, strict=True)
        ]
        split = len(news.rewards)
        bounded = news._replace(rewards=limited[:split], costs=limited[split:])
        return bounded._replace(as_told=news.raw), after


class Outliers(Concern[Readings]):
    """Keep readings within bounds where outcomes are standardised."""

    @classmethod
    def of(cls, setup: Setup) -> Self | None:
        """Return the concern of a policy with a standardised belief."""
        if not (bool(setup.rescaled.any()) and setup.abilities.readings):
            return None
        return cls(setup)

    def start(self) -> Readings:
        """Return the summary before any reading."""
        setup = self.setup
        return Readings.none((setup.size, setup.functions), setup.device)

    def hear(
        self, state: Readings, news: News, beliefs: Beliefs
    ) -> tuple[Readings, News]:
        """Return the new summary, and the news with outliers moved to the bounds."""

        def bounds(noise: Tensor | None) -> tuple[Tensor, Tensor]:
            x = news.place.x.unsqueeze(1)
            rough = self.setup.timing.adds_pending
            low, high = beliefs.bounds(x, noise, rough)
            return low[..., 0], high[..., 0]

        news, state = state.bound_news(news, bounds, self.setup.objective)
        return state, news

    def observe(
        self, state: Readings, data: Data, beliefs: Beliefs
    ) -> tuple[Readings, Data]:
        """Return the state, unchanged, and the data with readings within bounds."""
        setup = self.setup
        low, high = beliefs.bounds(data.places, None, setup.timing.adds_pending)
        return state, bound_data(data, low, high, setup.rescaled, setup.objective)


def bound_data(
    data: Data, low: Tensor, high: Tensor, rescaled: Tensor, objective: Objective
) -> Data:
    """Return earlier data with readings kept within bounds; warn of outliers.

    Where a belief has no data, the bounds come from the spread of the rows themselves.

    Args:
        data: the data, ``n`` rows.
        low: the least reading to expect, ``(T, F, n)``; infinite where unknown.
        high: the greatest reading to expect, ``(T, F, n)``; infinite where unknown.
        rescaled: which functions are standardised, ``(F,)``; others stay unchanged.
        objective: the user's names and signs.
    """
    parts = []
    for part in data.parts:
        functions, at = part.functions, part.came
        told = part.values.to(low.device).expand(len(low), -1, -1)
        rows, size = [], (len(low), low.shape[1])
        average = told.new_zeros(size)
        squares, beyond = average, told.new_zeros(N_RECENT, *size, dtype=torch.int8)
        scaled = torch.zeros(size, dtype=torch.bool, device=low.device)
        scaled[:, functions] = rescaled[functions]
        count = torch.zeros(len(low), 1, device=low.device, dtype=told.dtype)
        for n in range(told.shape[1]):
            here = torch.ones_like(count, dtype=torch.bool)
            if at is not None:
                here = at[:, n : n + 1].to(low.device)
            came = scaled & here
            values = average.clone()
            values[:, functions] = told[:, n]
            reach = MAX_SPREADS * (squares / (count - 1).clamp_min(1)).sqrt()
            known = (count >= MIN_READINGS) & (reach > ROUNDING_SHARE * average.abs())
            reach = torch.where(known, reach, torch.inf)
            least, most = low[..., n], high[..., n]
            least = torch.where(least.isfinite(), least, average - reach)
            most = torch.where(most.isfinite(), most, average + reach)
            row, outside, beyond = _bound_readings(values, came, least, most, beyond)
            if outside is not None:
                where = f"row {n} of the data from before"
                _warn_about(objective, where, values, outside, least, most)
            count = count + here
            gap = torch.where(here, row - average, 0.0)
            average = average + gap / count.clamp_min(1)
            squares = squares + gap * (row - average)
            rows.append(row[:, functions])
        parts.append(part._replace(values=torch.stack(rows, 1) if rows else told))
    return replace(data, parts=parts, as_told=data.raw)


def _bound_readings(
    values: Tensor, came: Tensor, low: Tensor, high: Tensor, beyond: Tensor
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Return readings kept within bounds, a mask of the changed ones, and ``beyond``.

    The mask is ``None`` if no reading is changed.

    Args:
        values: the readings, ``(T, F)``.
        came: where there is a reading, ``(T, F)`` bool; elsewhere values do not count.
        low: the least reading to expect, ``(T, F)``.
        high: the greatest reading to expect, ``(T, F)``.
        beyond: see :class:`Readings`.
    """
    side = ((values > high).to(beyond) - (values < low).to(beyond)) * came
    beyond = torch.where(came, torch.cat([beyond[1:], side.unsqueeze(0)]), beyond)
    if not bool(side.any()):
        return values, None, beyond
    limited = (side != 0) & (beyond.sum(0).abs() < READINGS_OF_A_MOVE)
    clamped = torch.minimum(torch.maximum(values, low), high)
    return torch.where(limited, clamped.to(values), values), limited, beyond


def _warn_about(
    objective: Objective,
    where: str,
    values: Tensor,
    limited: Tensor,
    low: Tensor,
    high: Tensor,
) -> None:
    """Warn of each reading in the mask ``limited``, moved to ``low`` or ``high``.

    ``where`` says in the warning where a reading comes from.
    """
    for trial, function in limited.nonzero().tolist():
        sign = float(objective.signs[function])
        told, *ends = (sign * float(v[trial, function]) for v in (values, low, high))
        least, most = sorted(ends)
        name = "reward" if function == 0 else objective.label(function - 1)
        of_trial = f" in trial {trial}" if len(values) > 1 else ""
        warn(
            f"{name} = {told:g} of {where}{of_trial} lies far outside what was seen "
            f"before, which says {least:.4g} to {most:.4g}: it counts as "
            f"{min(max(told, least), most):.4g} (the history keeps what was told). A "
            "level that has moved is followed from the second such reading on"
        )
