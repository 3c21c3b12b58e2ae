"""Bandit online convex optimisation with constraints: one-point gradients.

Each round, with centre ``y`` and multiplier ``lam`` (one a cost, 0 at first):

1. play ``x_t = y + e u``, ``u`` uniform on the unit sphere;
2. observe ``r_t``, ``c_t``: ``grad = (d / e) (r_t - sum_j lam_j c_tj) u``;
3. ``y = proj(y + step grad)`` onto the box shrunk by ``e``;
4. ``lam_j = [lam_j + dual_step (c_tj - leak lam_j)]_+``.

X. Cao and K. J. R. Liu, Online convex optimization with time-varying constraints and
bandit feedback, 2018.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Unpack

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from cbandit._core import checks, devices
from cbandit._core.arguments import stated
from cbandit.actions import Actions, Box
from cbandit.errors import CBanditError
from cbandit.policies.base import Policy
from cbandit.policies.checks import COSTS_EXPECTED
from cbandit.policies.choices import News
from cbandit.policies.keywords import PolicyKeywords
from cbandit.policies.paired import Paired
from cbandit.policies.saving import locked
from cbandit.policies.signs import count_or_names
from cbandit.policies.turn import Decision, Turn

TRIES = 100  # directions tried before all actions count as failed


class Played(NamedTuple):
    """A round's direction, and the feedback that has come in each trial.

    Args:
        u: the direction, ``(T, d)``.
        feedback: reward and costs, thresholds subtracted.
        used: the trials whose feedback has moved the centre, ``(T,)`` on the host.
        over: whether nothing more will come.
    """

    u: Tensor
    feedback: Paired
    used: Tensor
    over: bool = False

    @property
    def due(self) -> Tensor:
        """The trials whose feedback is complete and not used yet, ``(T,)``."""
        return self.feedback.whole & ~self.used


class Walk(NamedTuple):
    """The state of the ascent.

    Args:
        centre: ``y``, ``(T, d)``.
        multiplier: ``lam``, ``(T, m)``.
        rounds: the rounds whose feedback has not moved the centre yet, by number.
    """

    centre: Tensor
    multiplier: Tensor
    rounds: Mapping[int, Played]


class BanditOCO(Policy):
    """Projected primal ascent and dual descent from single values.

    Feedback moves the centre and the multiplier at the next ``ask``, in the order of
    rounds; a round counts once its reward and all its costs have come. Choices come
    from the whole box: ``ask`` takes no ``among=`` and no ``actions=``.

    Args:
        actions: a :class:`~cbandit.Box`.
        costs: how many costs, ``m``, or their names.
        radius: ``e``, below half the box's shortest side.
        step: the step of the primal ascent.
        dual_step: ``mu``.
        leak: ``delta_``, draws the multiplier back to 0.
        start: the first centre, ``(d,)`` or ``(*trials, d)``; unless given, the box's
            centre. It is moved into the shrunken box.
        common: see below.

    Example:
        >>> import cbandit as cb
        >>> policy = cb.baselines.BanditOCO(
        ...     cb.Box([0.0, 0.0], [6.0, 6.0]), costs=1, radius=0.3, step=0.01,
        ...     dual_step=0.1,
        ... )
        >>> policy.tell(policy.ask(), reward=0.1, cost=0.2)
    """

    name = "OCO"

    def __init__(
        self,
        actions: Actions,
        *,
        costs: int | Sequence[str],
        radius: ArrayLike,
        step: ArrayLike,
        dual_step: ArrayLike,
        leak: ArrayLike = 0.0,
        start: ArrayLike | None = None,
        **common: Unpack[PolicyKeywords],
    ) -> None:
        self.settings = stated(self, locals())
        if not isinstance(actions, Box):
            raise CBanditError(
                f"BanditOCO moves in a cb.Box; got {actions!r} (a gridded problem of "
                "cb.problems offers problem.box)"
            )
        if actions.choices is not None:
            raise CBanditError(
                f"BanditOCO moves in all coordinates; got {actions!r}, whose last ones "
                "are chosen from rows"
            )
        if actions.linear is not None:
            raise CBanditError(
                f"BanditOCO moves between bounds alone; got {actions!r}, which has "
                "linear limits: cb.baselines.Random, cb.RPOL and cb.CKB keep them"
            )
        super().__init__(actions, count_or_names(costs, COSTS_EXPECTED), **common)
        self._radius = self._column("radius", checks.positive("radius", radius))
        self._step = self._column("step", checks.nonnegative("step", step))
        dual_step = checks.nonnegative("dual_step", dual_step)
        self._dual = self._cost_number("dual_step", dual_step)
        self._leak = self._cost_number("leak", checks.nonnegative("leak", leak))
        lower, upper = (
            v.to(self.device, torch.float64)
            for v in (self.actions.lower, self.actions.upper)
        )
        self._low, self._high = lower + self._radius, upper - self._radius
        if bool((self._low >= self._high).any()):
            raise CBanditError(
                "radius must be below half the box's shortest side, "
                f"{float((upper - lower).min()) / 2:g}; got {radius!r}"
            )
        start = (lower + upper) / 2 if start is None else start
        centre = checks.finite("start", checks.tensor("start", start).to(lower))
        shape = self.size, self.actions.dim
        centre = self._within(checks.shaped("start", centre, shape, "(*trials, d)"))
        self.begin(Walk(centre, centre.new_zeros(self.size, self.m), {}))

    def _column(self, name: str, value: Tensor) -> Tensor:
        return self._per_trial(name, value).unsqueeze(-1)

    def _within(self, y: Tensor) -> Tensor:
        """Project ``y`` onto the shrunken box."""
        return torch.minimum(torch.maximum(y, self._low), self._high)

    @property
    @locked
    def multiplier(self) -> Tensor:
        """``lam`` as the next ``ask`` will use it, ``(*trials, m)``."""
        return self._user_shape(self._moved(self._catch_up().state).multiplier.clone())

    @property
    @locked
    def centre(self) -> Tensor:
        """The point that the next ``ask`` will play around, ``(*trials, d)``."""
        return self._user_shape(self._moved(self._catch_up().state).centre.clone())

    def decide(self, state: Walk, turn: Turn) -> tuple[Decision, Walk]:
        """Return ``y + e u``, ``u`` uniform on the unit sphere."""
        if turn.actions is not self.actions:
            raise CBanditError(
                "BanditOCO moves in its box by what it observes: ask takes no actions="
            )
        walk = self._moved(state)
        u = self._direction(turn, walk.centre)
        x = (walk.centre + self._radius * u).to(self.dtype)
        nowhere = torch.zeros(self.size, dtype=torch.bool)
        played = Played(u, Paired.start(walk.multiplier), nowhere)
        walk = walk._replace(rounds={**walk.rounds, turn.t: played})
        return Decision(None, x=x, sure=True), walk

    def _direction(self, turn: Turn, centre: Tensor) -> Tensor:
        """Draw ``u (T, d)`` from the sphere, again if its action has failed."""
        u = torch.zeros_like(centre)
        left = torch.ones(self.size, 1, dtype=torch.bool, device=self.device)
        for _ in range(TRIES):
            draws = turn.streams.normal(self.actions.dim).view(self.size, -1)
            draws = devices.put(draws, self.device)
            u = torch.where(left, draws / draws.norm(dim=-1, keepdim=True), u)
            if turn.balls is None:
                return u
            x = (centre + self._radius * u).to(self.dtype)
            left = turn.balls.holds(x).unsqueeze(-1)
            if not bool(left.any()):
                return u
        raise CBanditError("OCO: every action around its centre has failed")

    def _moved(self, state: Walk) -> Walk:
        """Return the walk after all feedback that has come by now."""
        centre, lam, rounds = state.centre, state.multiplier, {}
        share = self.actions.dim / self._radius
        for t, played in sorted(state.rounds.items()):
            due, (reward, cost, *_) = played.due, played.feedback
            if bool(due.any()):
                mask = devices.put(due, centre.device).unsqueeze(-1)
                value = reward - (lam * cost).sum(-1, keepdim=True)
                moved = self._within(centre + self._step * share * value * played.u)
                dual = (lam + self._dual * (cost - self._leak * lam)).clamp_min(0)
                centre = torch.where(mask, moved, centre)
                lam = torch.where(mask, dual, lam)
            used = played.used | due
            if not (played.over or bool(used.all())):
                rounds[t] = played._replace(used=used)
        return Walk(centre, lam, rounds)

    def absorb(self, state: Walk, news: News) -> Walk:
        """Return the state with a round's feedback; the next ``ask`` moves by it."""
        t = news.choice.t
        if t not in state.rounds:
            return state
        played = state.rounds[t]
        feedback = played.feedback.with_news(news)
        played = played._replace(feedback=feedback, over=news.cancelled)
        rounds = {**state.rounds, t: played}
        if played.over and not bool(played.due.any()):
            del rounds[t]
        return state._replace(rounds=rounds)
