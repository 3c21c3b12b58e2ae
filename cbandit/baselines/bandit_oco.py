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
from cbandit.baselines.walk import Walk, direction, first_centre, shrunk, whole_box
from cbandit.errors import CBanditError
from cbandit.policies.alone import alone
from cbandit.policies.decision import Asked, Decision
from cbandit.policies.given import COST_COUNT
from cbandit.policies.ledger import News
from cbandit.policies.policy import Policy
from cbandit.policies.senses import counted

__all__ = ["BanditOCO"]


class BanditOCO(Policy):
    """Projected primal ascent and dual descent from single values.

    Feedback moves the centre and the multiplier at the next ``ask``, in the order of
    rounds; of a round it counts once both reward and costs have come. The box is all
    there is to choose from: ``ask`` takes no ``among=`` and no ``actions=``.

    Args:
        actions: a :class:`~cbandit.Box`.
        costs: how many costs, ``m``, or their names.
        radius: ``e``, below half the box's shortest side.
        step: of the primal ascent.
        dual_step: ``mu``.
        leak: ``delta_``, draws the multiplier back to 0.
        start: the first centre, ``(d,)`` or ``(*trials, d)``; the box's own unless
            given. It is brought into the shrunken box.
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
        super().__init__(whole_box(actions), counted(costs, COST_COUNT), **common)
        self._radius = self._column("radius", checks.positive("radius", radius))
        self._step = self._column("step", checks.nonnegative("step", step))
        self._dual = self._number(
            "dual_step", checks.nonnegative("dual_step", dual_step)
        )
        self._leak = self._number("leak", checks.nonnegative("leak", leak))
        self._low, self._high = shrunk(self.actions, self._radius, radius)
        centre = self._within(first_centre(self, start))
        multiplier = centre.new_zeros(self._size, self.m)
        self._begin(Walk(centre, multiplier, {}))

    def _column(self, name: str, value: Tensor) -> Tensor:
        return self._per_trial(name, value).unsqueeze(-1)

    def _within(self, y: Tensor) -> Tensor:
        """Return ``proj(y)``."""
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

    def decide(self, state: Walk, asked: Asked) -> tuple[Decision, Walk]:
        """Return ``y + e u``, ``u`` uniform on the unit sphere."""
        if asked.actions is not self.actions:
            raise CBanditError(
                "BanditOCO moves in its box by what it observes: ask takes no actions="
            )
        centre, multiplier = self._moved(state)
        u = direction(asked, centre, self._radius, self.dtype)
        x = (centre + self._radius * u).to(self.dtype)
        walk = state.played(centre, multiplier, asked.t, u)
        return Decision(None, x=x, sure=True), walk

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
        return state.told(news, self._limits(news.choice.t))
