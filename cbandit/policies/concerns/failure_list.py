"""A list of the actions that have failed: none of them is asked for again.

The concern of policies that do not learn where actions fail. ``T`` counts the trials,
``N`` the set's actions, ``n`` some of them, ``k`` failures and ``d`` the coordinates.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from cbandit._core import devices
from cbandit.actions import Actions, Shown, Unit
from cbandit.errors import CBanditError
from cbandit.policies.balls import RADIUS
from cbandit.policies.choices import Data, News
from cbandit.policies.concerns.failure_belief import FailureBelief
from cbandit.policies.round import Concern
from cbandit.policies.setup import Setup
from cbandit.policies.turn import Turn

REASON = "has failed"


class FailedActions:
    """The failed actions of each trial, immutable.

    Args:
        actions: the policy's set, contexts included.
        device: where masks over the set live.
        numbers: for each trial the numbers of failed actions (on a star, of segments).
        points: for each trial the failed actions ``(k, d)`` that have no number in the
            set, float64.
    """

    def __init__(
        self,
        actions: Actions,
        device: torch.device,
        numbers: tuple[tuple[int, ...], ...],
        points: tuple[Tensor, ...],
    ) -> None:
        self.actions, self.device = actions, device
        self.numbers, self.points = numbers, points
        self._left: Tensor | None = None

    @classmethod
    def none(cls, actions: Actions, device: torch.device, size: int) -> FailedActions:
        """Return the list without failures, for ``size`` trials."""
        nowhere = torch.zeros(0, actions.dim, dtype=torch.float64)
        return cls(actions, device, ((),) * size, (nowhere,) * size)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_left": None}

    @property
    def empty(self) -> bool:
        """Whether no action has failed in any trial."""
        return not (any(self.numbers) or any(map(len, self.points)))

    def added(
        self, x: Tensor, where: Tensor, index: Sequence[int] | None = None
    ) -> FailedActions:
        """Return the list with actions ``x (T, d)`` added in trials ``where (T,)``.

        ``index`` holds the actions' numbers in the policy's set; ``None``: unknown.
        """
        numbers, points = list(self.numbers), list(self.points)
        host = x.double().cpu()
        for i, number in enumerate(self._numbered(x, index)):
            if not bool(where[i]):
                continue
            if number is not None:
                numbers[i] = (*numbers[i], number)
            else:
                points[i] = torch.cat([points[i], host[i : i + 1]])
        return FailedActions(self.actions, self.device, tuple(numbers), tuple(points))

    def in_grown_set(self, actions: Actions) -> FailedActions:
        """Return the same failures as a list for the grown set ``actions``."""
        numbers = []
        for row in self.numbers:
            if row:  # always empty on a box
                x = self.actions.at(torch.tensor(row, device=self.device))
                row = tuple(actions.index(x).tolist())
            numbers.append(row)
        return FailedActions(actions, self.device, tuple(numbers), self.points)

    def _numbered(self, x: Tensor, index: Sequence[int] | None) -> list[int | None]:
        """Return each action's number in the policy's set; ``None``: it has none."""
        if self.actions.continuous:
            return [None] * len(x)
        if index is None:
            keys = self.actions.keys(x)
            return [key if isinstance(key, int) else None for key in keys]
        centre = getattr(self.actions, "center", None)
        if centre is None:
            return list(index)
        # all segments of a star share its centre
        away = (x.double() - centre.double()).abs().amax(-1) > 0
        pairs = zip(index, away.tolist(), strict=True)
        return [number if moved else None for number, moved in pairs]

    def unfailed(self) -> Tensor:
        """Return the actions of the policy's set that have not failed, ``(T, N)``."""
        if self._left is None:
            shape = len(self.numbers), self.actions.size
            left = torch.ones(shape, dtype=torch.bool)
            for row, numbers in zip(left, self.numbers, strict=True):
                row[list(numbers)] = False
            self._left = devices.put(left, self.device)
        return self._left

    def points_in(self, turn: Turn) -> tuple[Tensor, ...]:
        """Return the failed points that a round must leave out, ``(k, d)`` a trial."""
        if not turn.actions.continuous:
            return tuple(self._failed_points())
        return self.points if turn.shown is None else self._in_context(turn.shown)

    def _failed_points(self) -> Iterator[Tensor]:
        """Yield for each trial the coordinates of its failures, ``(k, d)``."""
        for i, numbers in enumerate(self.numbers):
            points = [self.points[i]]
            if numbers and self.actions.finite:
                index = torch.tensor(numbers, device=self.device)
                rows = self.actions.rows(index).double().cpu()
                points.append(rows if rows.dim() == 2 else rows[i])
            yield torch.cat(points)

    def _in_context(self, shown: Shown) -> tuple[Tensor, ...]:
        """Return the choices, without context, that failed close to the context shown.

        They are ``(k, c)`` a trial, with the ``c`` coordinates of a choice.
        """
        space, unit = shown.space, Unit.around(shown.space.domain)
        out = []
        for points, values in zip(self.points, shown.values, strict=True):
            choices = space.split(points.to(values))[0]
            here = space.joined(choices, values.expand(len(points), -1))
            gap = unit.of(here) - unit.of(points.to(values))
            out.append(choices[gap.square().sum(-1) <= RADIUS**2].double().cpu())
        return tuple(out)

    def holds(self, needed: Sequence[tuple[int | None, Tensor]]) -> bool:
        """Return whether a needed action has failed in its trial.

        ``needed`` has the action's number (or ``None``) and point for each trial.
        """
        for (number, x), numbers, points in zip(
            needed, self.numbers, self.points, strict=True
        ):
            if number in numbers or bool(((points - x).abs().amax(-1) < 1e-9).any()):
                return True
        return False


class FailureList(Concern[FailedActions]):
    """Leave out the actions that have failed."""

    needs_beliefs = False

    @classmethod
    def of(cls, setup: Setup) -> Self | None:
        """Return the concern of a policy that does not learn where actions fail."""
        return cls(setup) if FailureBelief.of(setup) is None else None

    def start(self) -> FailedActions:
        """Return an empty list."""
        setup = self.setup
        return FailedActions.none(setup.actions.domain, setup.device, setup.size)

    def hear(
        self, state: FailedActions, news: News, beliefs: object
    ) -> tuple[FailedActions, News]:
        """Add the choice in the trials in which it has failed."""
        if news.failed is None:
            return state, news
        choice, numbers, actions = news.choice, None, self.setup.actions
        # with contexts, the numbers of choices are not those of the domain
        plain = actions.domain is actions and choice.actions is None
        if plain and choice.index is not None:
            numbers = choice.numbers().reshape(-1).tolist()
        return state.added(news.place.x, news.failed, numbers), news

    def observe(
        self, state: FailedActions, data: Data, beliefs: object
    ) -> tuple[FailedActions, Data]:
        """Add the rows of earlier data that failed."""
        if data.failed is not None:
            for x, failed in zip(data.places.unbind(1), data.failed.mT, strict=True):
                if bool(failed.any()):
                    state = state.added(x, failed)
        return state, data

    def open_turn(self, state: FailedActions, turn: Turn) -> tuple[FailedActions, Turn]:
        """Leave out failed actions; raise an error if the safe action is among them."""
        if state.empty:
            return state, turn
        if turn.must_work is not None and state.holds(turn.must_work()):
            raise CBanditError(
                "the safe action has failed, and the policy needs one: build a policy "
                "with another safe="
            )
        if turn.actions is state.actions and not turn.actions.continuous:
            return state, turn.only(state.unfailed(), REASON)
        return state, turn.without(state.points_in(turn), REASON)

    def grow(self, state: FailedActions, actions: Actions) -> FailedActions:
        """Return the failures as a list for the grown set."""
        return state.in_grown_set(actions.domain)


def blocks_within(
    blocks: Iterable[tuple[int, Tensor, Tensor]], mask: Tensor | None
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Yield blocks, with the worst means for actions outside ``mask (1 or T, N)``.

    A block is the number of its first action, means and deviations ``(T, F, n)`` of the
    ``F`` functions, the reward first. ``mask=None`` leaves the blocks unchanged.
    """
    for start, mean, std in blocks:
        part = None if mask is None else mask[:, start : start + mean.shape[-1]]
        yield start, worst_outside(part, mean), std


def worst_outside(mask: Tensor | None, mean: Tensor) -> Tensor:
    """Return means ``(T, F, n)``, made the worst outside of ``mask (1 or T, n)``."""
    if mask is None:
        return mean
    bad = torch.full_like(mean[:1, :, :1], torch.inf)
    bad[:, 0] = -torch.inf
    return torch.where(mask.unsqueeze(1), mean, bad)
