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

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cbandit._core import checks, devices
from cbandit._core.arguments import stated
from cbandit.actions import Box
from cbandit.baselines.walk import Played, Walk
from cbandit.choice import Choice
from cbandit.errors import CBanditError
from cbandit.policies.alone import alone
from cbandit.policies.decision import Asked, Decision
from cbandit.policies.given import COST_COUNT
from cbandit.policies.ledger import News
from cbandit.policies.policy import Policy
from cbandit.policies.senses import counted

__all__ = ["BanditOCO"]

TRIES = 100  # directions, before all is taken to have failed


class BanditOCO(Policy):
    """Projected primal ascent and dual descent from single values.

    Feedback moves the centre and the multiplier at the next ``ask``, in the order of
    rounds; of a round it counts once both reward and costs have come.

    Args:
        actions: a :class:`~cbandit.Box`.
        costs: how many costs, ``m``, or their names.
        radius: ``e``, below half the box's shortest side.
        step: of the primal ascent.
        dual_step: ``mu``.
        leak: ``delta_``, draws the multiplier back to 0.
        start: the first centre, ``(d,)`` or ``(*trials, d)``; the box's own unless
            given. It is brought into the shrunken box.
        common: ``thresholds``, ``horizon``, ``seed``, ``trials``, ``device``,
            ``dtype``.

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
        actions: Any,
        *,
        costs: int | Sequence[str],
        radius: Any,
        step: Any,
        dual_step: Any,
        leak: Any = 0.0,
        start: Any = None,
        **common: Any,
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
        costs = counted(costs, COST_COUNT)
        super().__init__(actions, costs, **common)
        kept: dict[str, Any] = {"dtype": torch.float64, "device": self.device}
        self._radius = self._column("radius", checks.positive("radius", radius))
        self._step = self._column("step", checks.nonnegative("step", step))
        self._dual = self._number(
            "dual_step", checks.nonnegative("dual_step", dual_step)
        )
        self._leak = self._number("leak", checks.nonnegative("leak", leak))
        lower, upper = self.actions.lower.to(**kept), self.actions.upper.to(**kept)
        self._low, self._high = lower + self._radius, upper - self._radius
        if bool((self._low >= self._high).any()):
            raise CBanditError(
                "radius must be below half the box's shortest side, "
                f"{float((upper - lower).min()) / 2:g}; got {radius!r}"
            )
        middle = (lower + upper) / 2 if start is None else checks.tensor("start", start)
        middle = checks.finite("start", middle.to(**kept))
        shape = (self._size, self.actions.dim)
        centre = self._within(checks.shaped("start", middle, shape, "(*trials, d)"))
        multiplier = torch.zeros(self._size, self.m, **kept)
        self._begin(Walk(centre, multiplier, {}))

    def _column(self, name: str, value: Tensor) -> Tensor:
        return self._per_trial(name, value).unsqueeze(-1)

    def _within(self, y: Tensor) -> Tensor:
        return torch.minimum(torch.maximum(y, self._low), self._high)

    @property
    @alone
    def multiplier(self) -> Tensor:
        """``lam`` as the next ``ask`` will use it, ``(*trials, m)``."""
        return self._outside(self._moved(self._settled().state)[1].clone())

    @property
    @alone
    def centre(self) -> Tensor:
        """The point that the next ``ask`` will play around, ``(*trials, d)``."""
        return self._outside(self._moved(self._settled().state)[0].clone())

    @alone
    def ask(
        self, *, among: Any = None, actions: Any = None, observed_costs: Any = None
    ) -> Choice:
        """Start the next round and choose; the box is all there is to choose from.

        Args:
            among: an error, and so are the others.
            actions: likewise.
            observed_costs: likewise.
        """
        if among is not None or actions is not None or observed_costs is not None:
            raise CBanditError(
                "BanditOCO moves in its box by what it observes: ask() takes no "
                "among=, actions= or observed_costs="
            )
        return super().ask()

    def decide(self, state: Walk, asked: Asked) -> tuple[Decision, Walk]:
        """Return ``y + e u``, ``u`` uniform on the unit sphere."""
        centre, multiplier = self._moved(state)
        u = self._directions(asked, centre)
        rounds = {
            t: left
            for t, each in state.rounds.items()
            if (left := each.spent()) is not None
        }
        nowhere = torch.zeros(self._size, dtype=torch.bool)
        nothing = torch.zeros_like(u[:, :1]), torch.zeros_like(multiplier)
        rounds[asked.t] = Played(u, *nothing, nowhere, nowhere, nowhere)
        x = (centre + self._radius * u).to(self.dtype)
        return Decision(None, x=x, sure=True), Walk(centre, multiplier, rounds)

    def _directions(self, asked: Asked, centre: Tensor) -> Tensor:
        """Draw ``u``, again in trials in which an action has failed there."""
        u = torch.zeros_like(centre)
        left = torch.ones(self._size, 1, dtype=torch.bool, device=centre.device)
        for _ in range(TRIES):
            draws = asked.streams.normal(self.actions.dim).view(self._size, -1)
            draws = devices.put(draws, centre.device)
            u = torch.where(left, draws / draws.norm(dim=-1, keepdim=True), u)
            if asked.barred is None:
                return u
            x = (centre + self._radius * u).to(self.dtype)
            left = asked.barred.holds(x).unsqueeze(-1)
            if not bool(left.any()):
                return u
        raise CBanditError(f"{self.name}: every action around its centre has failed")

    def _moved(self, state: Walk) -> tuple[Tensor, Tensor]:
        """Return centre and multiplier after all feedback that has come by now."""
        centre, lam = state.centre, state.multiplier
        share = self.actions.dim / self._radius
        for _, each in sorted(state.rounds.items()):
            if not bool(each.due.any()):
                continue
            due = devices.put(each.due, centre.device).unsqueeze(-1)
            value = each.reward - (lam * each.cost).sum(-1, keepdim=True)
            moved = self._within(centre + self._step * share * value * each.u)
            dual = (lam + self._dual * (each.cost - self._leak * lam)).clamp_min(0)
            centre = torch.where(due, moved, centre)
            lam = torch.where(due, dual, lam)
        return centre, lam

    def absorb(self, state: Walk, news: News) -> Walk:
        """Return the state with what has come of a round; it moves nothing yet."""
        t = news.choice.t
        if t not in state.rounds:
            return state
        each = state.rounds[t].told(news, self._limits(t))
        rounds = {**state.rounds, t: each}
        if each.over and not bool(each.due.any()):
            del rounds[t]
        return state._replace(rounds=rounds)
