"""Budgets: totals that costs may reach over a number of rounds.

The limit of a round, its pace, is what is left, divided by the rounds left. What is
left is the total, less the costs spent, less what is promised: the one-sided 95 %
bounds of outstanding choices, noise included. A choice is made only if its own bound
fits too. So the total is exceeded only if outstanding choices cost more than bounded.

A binary cost spends its successes, a counted one its events. The bound has the same
form: the mean of one outcome plus 1.64 of its deviations, at most 1 for a binary cost.
``T`` counts the trials, ``m`` the costs, ``b`` the budgets among them, ``n`` actions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from cbandit._core import checks, devices
from cbandit._core.printing import brief
from cbandit.errors import BudgetError, CBanditError
from cbandit.policies.checks import round_mask
from cbandit.policies.choices import News
from cbandit.policies.round import Concern
from cbandit.policies.setup import Setup
from cbandit.policies.turn import Decision, Fence, Turn
from cbandit.posterior.units import Units

MAX_NAMED = 3  # choices that an error names
MIN_CHOICES = 10  # with fewer choices of a kind no warning is due
IMPLAUSIBLE_FACTOR = 3.0  # a promise above so many times a usual cost is too large
Z_95 = 1.6448536269514722  # standard deviations to a one-sided 95 % bound


@dataclass(frozen=True, eq=False)
class BudgetStatus:
    """The state of one budget between rounds, ``(*trials,)`` each but ``rounds``.

    Args:
        total: the budget's total.
        spent: the sum of the costs told, and of the bounds of choices that were
            cancelled, have failed or have expired.
        promised: the sum of the 95 % bounds of outstanding choices.
        left: ``total - spent - promised``.
        pace: the limit of the next round, what is left divided by the rounds left.
        rounds: how many rounds are left.
    """

    total: Tensor
    spent: Tensor
    promised: Tensor
    left: Tensor
    pace: Tensor
    rounds: int

    __repr__ = brief

    def __str__(self) -> str:
        numbers = [f"{name} {_text(getattr(self, name))}" for name in _PRINTED]
        return f"{', '.join(numbers)}, {self.rounds} rounds left"


_PRINTED = ("spent", "promised", "left", "pace")


def _text(value: Tensor) -> str:
    """Return the numbers of all trials as a text."""
    return ", ".join(f"{each:.4g}" for each in value.reshape(-1).tolist())


class Promise(NamedTuple):
    """The amounts that an outstanding choice may still cost.

    Args:
        bound: the 95 % bounds of its costs, ``(T, b)``, 0 once a cost has come.
        open: where a cost has not come, ``(T, b)`` bool.
    """

    bound: Tensor
    open: Tensor

    def charge(self, values: Tensor, came: Tensor) -> tuple[Tensor, Promise]:
        """Return the amounts spent once costs have come, and the remaining promise.

        ``values (T, b)`` are the costs, and ``came (T, b)`` says which have come.
        """
        came = came & self.open
        spent = torch.where(came, values, 0.0)
        bound = torch.where(came, 0.0, self.bound)
        return spent, self._replace(bound=bound, open=self.open & ~came)

    def close(self, where: Tensor) -> tuple[Tensor, Promise]:
        """Return the amounts spent and promised if no more costs come in some trials.

        In these trials, ``where (T,)``, all that was promised is spent.
        """
        return self.charge(self.bound, where.unsqueeze(-1).expand_as(self.open))


class Expired(NamedTuple):
    """The promises of expired choices, and sums over them.

    Args:
        promises: the promises, by round.
        bound: the sum of their bounds, ``(T, b)``.
        waits: how many of them wait for each cost, ``(T, b)``.
    """

    promises: Mapping[int, Promise]
    bound: Tensor
    waits: Tensor

    @classmethod
    def of(cls, promises: Mapping[int, Promise], like: Tensor) -> Expired:
        """Return these promises with their sums, of the shape of ``like (T, b)``."""
        none = torch.zeros_like(like)
        bound = sum((promise.bound for promise in promises.values()), none)
        waits = sum((promise.open for promise in promises.values()), none)
        return cls(promises, bound, waits)

    def changed(self, more: Mapping[int, Promise], less: Sequence[int] = ()) -> Expired:
        """Return them with the promises ``more``, and without the rounds ``less``."""
        gone = {t: self.promises[t] for t in (*more, *less) if t in self.promises}
        added, removed = (Expired.of(part, self.bound) for part in (more, gone))
        promises = {**self.promises, **more}
        for t in less:
            del promises[t]
        bound = self.bound + added.bound - removed.bound
        return Expired(promises, bound, self.waits + added.waits - removed.waits)


class Account(NamedTuple):
    """The amounts spent of ``b`` budgets, and the amounts promised.

    Args:
        spent: the amounts spent, ``(T, b)``.
        promises: the promises of outstanding choices, by round.
        expired: those of expired choices, which count as spent until their costs come.
    """

    spent: Tensor
    promises: Mapping[int, Promise]
    expired: Expired

    @classmethod
    def empty(cls, totals: Tensor) -> Account:
        """Return the account before the first round, for ``totals (T, b)``."""
        return cls(torch.zeros_like(totals), {}, Expired.of({}, totals))

    @property
    def promised(self) -> Tensor:
        """The sum of the bounds of all outstanding choices, ``(T, b)``."""
        bounds = [promise.bound for promise in self.promises.values()]
        return torch.stack(bounds).sum(0) if bounds else torch.zeros_like(self.spent)

    def with_promise(self, t: int, promise: Promise) -> Account:
        """Return the account with the promise of round ``t``'s choice added."""
        return self._replace(promises={**self.promises, t: promise})

    def with_budgets(
        self, before: Sequence[int], after: Sequence[int], new: int
    ) -> Account:
        """Return the account after one cost's limit was replaced.

        Args:
            before: the numbers of the costs that had a budget.
            after: the numbers of the costs that have one now.
            new: the number of the cost with the new limit: if it is a budget, earlier
                choices are not charged to it.
        """
        kept = [k for k, j in enumerate(before) if j in after and j != new]
        at = [k for k, j in enumerate(after) if j != new]

        def moved(part: Tensor) -> Tensor:
            out = part.new_zeros(len(part), len(after))
            out[:, at] = part[:, kept]
            return out

        promises, expired = (
            {t: Promise(*map(moved, promise)) for t, promise in part.items()}
            for part in (self.promises, self.expired.promises)
        )
        spent = moved(self.spent)
        return Account(spent, promises, Expired.of(expired, spent))

    def expire(self, before: int) -> Account:
        """Return the account with choices of rounds before ``before`` expired."""
        old = {t: each for t, each in self.promises.items() if t < before}
        if not old:
            return self
        promises = {t: each for t, each in self.promises.items() if t >= before}
        return self._replace(promises=promises, expired=self.expired.changed(old))

    def after(self, news: News, columns: Sequence[int], m: int) -> Account:
        """Return the account after news; ``columns`` of the ``m`` costs have budgets.

        The promise of a choice that is cancelled or has failed counts as spent.
        """
        t, spent, at = news.choice.t, self.spent, list(columns)
        late = t in self.expired.promises
        if not late and t not in self.promises:
            return self
        promise = (self.expired.promises if late else self.promises)[t]
        for told in (*news.costs, *news.charged):
            values, came = told.in_columns(m)
            more, promise = promise.charge(values[:, at].to(spent), came[:, at])
            spent = spent + more
        if news.failed is not None:
            more, promise = promise.close(devices.put(news.failed, spent.device))
            spent = spent + more
        if news.cancelled:
            spent = spent + promise.bound
        over = news.cancelled or not bool(promise.open.any())
        if late:
            left, gone = ({}, [t]) if over else ({t: promise}, [])
            return self._replace(spent=spent, expired=self.expired.changed(left, gone))
        promises = {**self.promises, t: promise}
        if over:
            del promises[t]
        return self._replace(spent=spent, promises=promises)


@dataclass(frozen=True, eq=False)
class Budgets(Concern[Account]):
    """Let no choice's bound exceed what is left of a budget.

    A round's best action mostly fits what is left. Only where it does not, the round
    chooses again among the actions that fit; a policy that explores does from the
    start. Trials in which none fits play nothing.

    Args:
        columns: the numbers of the costs with a budget, from 0.
        labels: the names of these costs.
        totals: the totals of the budgets, ``(T, b)``.
        last: the last round of each budget.
        explores: whether other actions than the best one may be played.
        expire: choices older than so many rounds have expired; ``None``: none do.
        free: for each budget the choices that cost nothing of it, ``(1 or T, N)`` bool;
            ``None``: there are none.
    """

    in_studies = False

    columns: tuple[int, ...]
    labels: tuple[str, ...]
    totals: Tensor
    last: tuple[int, ...]
    explores: bool
    expire: int | None
    free: tuple[Tensor | None, ...]

    @classmethod
    def of(cls, setup: Setup) -> Self | None:
        """Return the budgets among a policy's limits; ``None``: there are none."""
        objective = setup.objective
        budgets, labels = objective.budgets, setup.labels[1:]
        if not budgets:
            return None
        if setup.sees_costs or setup.functions <= objective.m:
            raise CBanditError(
                "a cb.Budget in thresholds needs a belief about every cost, and costs "
                f"that are told; {setup.name} goes without: give a limit of one round"
            )
        totals = [
            setup.per_trial(f"the total of {labels[j]!r}", budget.total)
            for j, budget in budgets.items()
        ]
        return cls(
            tuple(budgets),
            tuple(labels[j] for j in budgets),
            torch.stack(totals, -1).double(),
            tuple(budget.last for budget in budgets.values()),
            setup.keywords.get("explore_share") is not None,
            setup.keywords["expire"],
            tuple(
                _read_fallback(setup, labels[j], budget.fallback)
                for j, budget in budgets.items()
            ),
        )

    def start(self) -> Account:
        """Return the account before the first round."""
        return Account.empty(self.totals)

    def hear(self, state: Account, news: News, beliefs: object) -> tuple[Account, News]:
        """Charge the account with the costs told."""
        return state.after(news, self.columns, news.limits.shape[-1]), news

    def take_over(self, state: Account, before: Budgets, j: int) -> Account:
        """Return ``state``, the account of ``before``, for cost ``j``'s new limit."""
        return state.with_budgets(before.columns, self.columns, j)

    def limit(self, state: Account, limits: Tensor, t: int) -> Tensor:
        """Return ``limits (T, m)``; those of costs with a budget are paces of ``t``."""
        paces = self.pace(state, t)
        out = limits.expand(len(paces), -1).clone()
        out[:, list(self.columns)] = paces.to(out)
        return out

    def open_turn(self, state: Account, turn: Turn) -> tuple[Account, Turn]:
        """Leave out actions that do not fit, if the round's first choice did not."""
        if self.expire is not None:
            state = state.expire(turn.t - self.expire)
        if not (turn.tight or self.explores):
            return state, turn
        return state, self._leave_fitting(state, turn)[0]

    def _leave_fitting(self, state: Account, turn: Turn) -> tuple[Turn, Tensor | None]:
        """Return the turn with actions that fit, and the trials ``(T,)`` without any.

        ``None`` in place of the trials: the set is a box, whose search knows.
        """
        left, pace = self.left(state).unsqueeze(-1), self.pace(state, turn.t)
        first, nothing = turn, None

        def excess(k: int, mean: Tensor, std: Tensor) -> Tensor:
            over = self._bounds(first, pace, mean, std) - left
            return over[:, k : k + 1]

        for k, free in enumerate(self.free):
            fence = Fence(turn.beliefs, partial(excess, k))
            turn, empty = turn.within(fence, _in_round(turn, free))
            if empty is not None:
                nothing = empty if nothing is None else nothing | empty
        return turn, nothing

    def check_pick(
        self, state: Account, turn: Turn, pick: Decision
    ) -> tuple[Account, Decision | None]:
        """Promise the bounds of ``pick``; if they do not fit, refuse it by ``None``."""
        left, pace = self.left(state), self.pace(state, turn.t)
        moments = turn.beliefs.anywhere(turn.point(pick))
        bound = self._bounds(turn, pace, *moments)[..., 0]
        bound = bound.masked_fill(self._is_free(turn, pick, len(bound)), 0.0)
        idle = (bound > left).any(-1)
        if bool(idle.any()) and not turn.tight:
            return state, None
        if bool(idle.all()):
            raise self.nothing_fits_error(state, bound, turn, pick)
        plays = ~idle.unsqueeze(-1)
        bound = torch.where(plays, bound, 0.0)
        promised = bound.new_full((len(bound), turn.limits.shape[-1]), torch.nan)
        promised[:, list(self.columns)] = bound
        pick = replace(pick, promised=promised)
        if bool(idle.any()):
            pick.idle = idle
        state = state.with_promise(turn.t, Promise(bound, plays.expand_as(bound)))
        return state, pick

    def _is_free(self, turn: Turn, pick: Decision, size: int) -> Tensor:
        """Return of which budgets a pick costs nothing, ``(T, b)`` bool."""
        shape, device = (size, len(self.columns)), self.totals.device
        out = torch.zeros(shape, dtype=torch.bool, device=device)
        for k, free in enumerate(self.free):
            mask = _in_round(turn, free)
            if mask is not None and pick.index is not None:
                index = pick.index.reshape(-1, 1)
                out[:, k] = mask.expand(size, -1).gather(1, index).squeeze(1)
        return out

    def _bounds(self, turn: Turn, pace: Tensor, mean: Tensor, std: Tensor) -> Tensor:
        noise, units = turn.beliefs.noises(), turn.beliefs.units()
        return self.bounds(mean, std, noise, units, pace)

    def left(self, account: Account) -> Tensor:
        """Return the amounts neither spent nor promised, ``(T, b)``."""
        spent = account.spent + account.expired.bound
        return self.totals - spent - account.promised

    def pace(self, account: Account, t: int) -> Tensor:
        """Return the paces ``(T, b)`` of round ``t``, before a choice is made in it."""
        rounds = [max(1, last - t + 1) for last in self.last]
        each = torch.tensor(rounds, dtype=torch.float64).to(self.totals)
        return self.left(account).clamp_min(0) / each

    def bounds(
        self,
        mean: Tensor,
        std: Tensor,
        noise: Tensor,
        units: Units | None,
        pace: Tensor,
    ) -> Tensor:
        """Return one-sided 95 % bounds of the actions' costs, ``(T, b, n)``.

        The bounds are in the user's units, and at least 0. While a standardised cost
        has no unit, its bound is the pace.

        Args:
            mean: means of all functions, in units, ``(T, 1 + m, n)``.
            std: standard deviations of all functions, in the same form.
            noise: the variances of observations, in units, ``(T, 1 + m)``.
            units: the units of the beliefs; ``None``: the user's.
            pace: the paces of the round, ``(T, b)``.
        """
        at = [1 + j for j in self.columns]
        std = std.expand_as(mean)[:, at].double()
        wide = (std.square() + noise[:, at].unsqueeze(-1).to(std)).sqrt()
        bound = mean[:, at].double() + Z_95 * wide
        if units is not None:
            center, size = (part[:, at].unsqueeze(-1).to(bound) for part in units[:2])
            known = units.known[:, at].unsqueeze(-1)
            bound = torch.where(known, center + size * bound, pace.unsqueeze(-1))
            for column, f in enumerate(at):
                if (link := units.links[f]) is not None:
                    latent = mean[:, f].double(), std[:, column]
                    bound[:, column] = link.bound(*latent, Z_95)
        return bound.clamp_min(0)

    def statuses(
        self, account: Account, t: int, outside: Callable[[Tensor], Tensor]
    ) -> dict[str, BudgetStatus]:
        """Return the status of each budget after round ``t``, by the cost's name.

        ``outside`` turns ``(T,)`` into ``(*trials,)``.
        """
        parts = torch.stack(
            [
                self.totals,
                account.spent + account.expired.bound,
                account.promised,
                self.left(account),
                self.pace(account, t + 1),
            ]
        )
        statuses = {}
        for label, column, last in zip(
            self.labels, parts.unbind(-1), self.last, strict=True
        ):
            total, spent, promised, left, pace = map(outside, column.unbind(0))
            rest = max(0, last - t)
            statuses[label] = BudgetStatus(total, spent, promised, left, pace, rest)
        return statuses

    def alarm(self, state: Account, t: int, together: int) -> dict[str, str]:
        """Return :meth:`promise_warning` as an alarm."""
        text = self.promise_warning(state, t, together)
        return {} if text is None else {"promises": text}

    def promise_warning(self, account: Account, t: int, batch: int) -> str | None:
        """Return a warning if unanswered choices hold implausibly much of a budget.

        That is more than ``IMPLAUSIBLE_FACTOR`` times what as many answered choices
        have cost. Only unanswered choices count of which a later choice was answered;
        others may just be late. ``None``: no warning is due.

        Args:
            account: the account after the choice of round ``t``.
            t: the latest round.
            batch: how many choices are asked for together.
        """
        expired, promises = account.expired, account.promises
        unanswered = len(expired.promises) + len(promises)
        least, known = MIN_CHOICES + batch, t - unanswered
        if unanswered < least or known < MIN_CHOICES:
            return None
        latest = t  # the latest round with an answer
        while latest in promises:
            latest -= 1
        overtaken = {s: each for s, each in promises.items() if s < latest}
        if len(expired.promises) + len(overtaken) < least:
            return None
        last = Expired.of(overtaken, account.spent)
        waits, booked = last.waits + expired.waits, last.bound + expired.bound
        likely = waits * account.spent / known
        dear = (waits >= least) & (likely > 0) & (booked > IMPLAUSIBLE_FACTOR * likely)
        if not bool(dear.any()):
            return None
        i, j = dear.nonzero()[0].tolist()
        cost, left = likely[i, j].item(), self.left(account)[i, j].item()
        return (
            f"the budget {self.labels[j]!r}: {int(waits[i, j])} choices that later "
            f"ones overtook have no answer, and are booked at {booked[i, j].item():.3g}"
            ", the sum of their one-sided 95 % bounds; as many answered choices have "
            f"cost {cost:.3g}, and {left:.3g} is left. Tell what they cost, or "
            "policy.cancel(choice, cost=...) where no answer will come: cost=0 if the "
            "choice was never played, as policy.cancel(choice) alone keeps its bound "
            "as spent"
        )

    def nothing_fits_error(
        self, account: Account, least: Tensor, turn: Turn, pick: Decision
    ) -> BudgetError:
        """Return the error for a round in which no trial can afford an action.

        Args:
            account: the current account.
            least: the 95 % bounds of the cheapest action's costs, ``(T, b)``.
            turn: the turn, inside what is left.
            pick: the cheapest action.
        """
        left = self.left(account)
        short = (least > left).double().mean(0).argmax()
        j, i = int(short), int(left[:, int(short)].argmax())
        waits = sum(bool(promise.open[i, j]) for promise in account.promises.values())
        hint = ""
        if waits:
            hint = (
                f"; {account.promised[i, j].item():.4g} is promised to {waits} "
                "outstanding choices: tell what they cost, and ask again"
            )
        fits = self._others_that_fit(account, turn, i)
        if fits:
            listed = ", ".join(map(str, fits[:MAX_NAMED]))
            more = f" and {len(fits) - MAX_NAMED} more" * (len(fits) > MAX_NAMED)
            hint += f"; this round does not allow what fits, {listed}{more}"
        elif not turn.actions.continuous and self.free[j] is None:
            hint += (
                "; to go on with a choice that costs nothing, name it: cb.Budget(..., "
                "fallback=...)"
            )
        trial = f" in trial {i}, the richest," if len(left) > 1 else ""
        cheapest = _called(turn, pick.index, turn.point(pick), i)
        return BudgetError(
            f"ask: nothing fits what is left of the budget {self.labels[j]!r}: "
            f"{left[i, j].item():.4g} of {self.totals[i, j].item():.4g} is left{trial} "
            f"and an action may cost up to {least[i, j].item():.4g} (its one-sided "
            f"95 % bound; the cheapest is {cheapest}){hint}",
            fits,
        )

    def _others_that_fit(self, account: Account, turn: Turn, i: int) -> list[object]:
        """Return the choices that trial ``i`` could afford but may not make."""
        if turn.actions.continuous or turn.apart:
            return []
        mask = None
        if turn.shown is not None:
            mask = turn.shown.round(turn.shown.space.menu, None, True)[1]
        whole, nothing = self._leave_fitting(account, turn._replace(mask=mask))
        if nothing is None or bool(nothing[i]) or whole.mask is None:
            return []
        index = whole.mask[i % len(whole.mask)].nonzero().flatten()
        points = turn.actions.rows(index)
        points = points[i] if points.dim() == 3 else points
        return [
            _called(turn, index[k : k + 1], points[k : k + 1].unsqueeze(0), 0)
            for k in range(len(index))
        ]


def _called(turn: Turn, index: Tensor | None, x: Tensor, i: int) -> object:
    """Return trial ``i``'s action by name, else its number, else its point.

    Args:
        turn: the turn.
        index: the actions' numbers in the round, ``(T,)``; ``None``: on a box.
        x: the actions, ``(T, 1, d)``, with the context.
        i: the trial.
    """
    point, names = x[i, 0], turn.actions.names
    if turn.shown is not None:
        names, point = turn.shown.space.menu.names, turn.shown.space.split(point)[0]
    if names is not None:
        return names.params(point)
    return point.tolist() if index is None else int(index[i])


def _read_fallback(setup: Setup, label: str, fallback: Any) -> Tensor | None:
    """Return the choices that cost nothing, ``(1 or T, N)`` bool; ``None``: none."""
    if fallback is None:
        return None
    with checks.about(f"fallback of the budget {label!r}"):
        menu = setup.actions.menu
        return round_mask(fallback, menu, setup.batch_shape, setup.device)


def _in_round(turn: Turn, mask: Tensor | None) -> Tensor | None:
    """Return a mask over the choices as one over the actions of a round."""
    if mask is None or turn.apart:
        return None
    if turn.shown is None:
        return mask
    return turn.shown.round(turn.shown.space.menu, mask, True)[1]
