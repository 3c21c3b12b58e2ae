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
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cbandit._core import checks, devices
from cbandit.actions import Box
from cbandit.choice import Choice
from cbandit.errors import CBanditError
from cbandit.policies.decision import Decision
from cbandit.policies.given import COST_COUNT
from cbandit.policies.ledger import Told
from cbandit.policies.stepwise import Stepwise

__all__ = ["BanditOCO"]


class BanditOCO(Stepwise):
    """Projected primal ascent and dual descent from single values.

    Feedback moves the centre and the multiplier at the next ``ask``, in the order of
    rounds; of a round it counts once both reward and costs have come.

    Args:
        actions: a :class:`~cbandit.Box`.
        costs: how many costs, ``m``.
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
    _multiplier: Tensor

    def __init__(
        self,
        actions: Any,
        *,
        costs: int,
        radius: Any,
        step: Any,
        dual_step: Any,
        leak: Any = 0.0,
        start: Any = None,
        **common: Any,
    ) -> None:
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
        costs = checks.whole("costs", costs, 1, COST_COUNT)
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
        self._centre = self._within(
            checks.shaped("start", middle, shape, "(*trials, d)")
        )
        self._multiplier = torch.zeros(self._size, self.m, **kept)
        self._played: dict[int, _Round] = {}

    def _column(self, name: str, value: Tensor) -> Tensor:
        return self._per_trial(name, value).unsqueeze(-1)

    def _within(self, y: Tensor) -> Tensor:
        return torch.minimum(torch.maximum(y, self._low), self._high)

    @property
    def multiplier(self) -> Tensor:
        """``lam`` as the next ``ask`` will use it, ``(*trials, m)``."""
        self._catch_up()
        return self._outside(self._moved()[1].clone())

    @property
    def centre(self) -> Tensor:
        """What the next ``ask`` will play around, ``(*trials, d)``."""
        self._catch_up()
        return self._outside(self._moved()[0].clone())

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

    def _decide(
        self, t: int, asked: Any, mask: Tensor | None, observed_costs: Any
    ) -> Decision:
        centre, multiplier = self._moved()
        draws = self._streams.normal(self.actions.dim).view(self._size, -1)
        u = devices.put(draws, centre.device)
        u = u / u.norm(dim=-1, keepdim=True)
        self._centre, self._multiplier = centre, multiplier
        for s in [s for s, each in self._played.items() if bool(each.due().any())]:
            each = self._played[s]
            each.used = each.used | each.due()
            if bool(each.used.all()):
                del self._played[s]
        nowhere = torch.zeros(self._size, dtype=torch.bool)
        self._played[t] = _Round(
            u,
            torch.zeros_like(u[:, :1]),
            torch.zeros_like(multiplier),
            nowhere,
            nowhere,
            nowhere,
        )
        return Decision(None, x=(centre + self._radius * u).to(self.dtype))

    def _moved(self) -> tuple[Tensor, Tensor]:
        """Centre and multiplier after all feedback that has come since the last ask."""
        centre, lam = self._centre, self._multiplier
        share = self.actions.dim / self._radius
        for _, each in sorted(self._played.items()):
            if not bool(each.due().any()):
                continue
            due = devices.put(each.due(), centre.device).unsqueeze(-1)
            value = each.reward - (lam * each.cost).sum(-1, keepdim=True)
            moved = self._within(centre + self._step * share * value * each.u)
            dual = (lam + self._dual * (each.cost - self._leak * lam)).clamp_min(0)
            centre = torch.where(due, moved, centre)
            lam = torch.where(due, dual, lam)
        return centre, lam

    def _absorb(
        self, choice: Choice, rewards: Sequence[Told], costs: Sequence[Told]
    ) -> None:
        each = self._played[choice.t]
        every = torch.ones(self._size, dtype=torch.bool)
        for told in rewards:
            came = told.mask().unsqueeze(-1)
            each.reward = torch.where(came, told.values, each.reward)
            each.rewarded = each.rewarded | (
                every if told.where is None else told.where
            )
        for told in costs:
            over, came = told.values - self._limits(choice.t), told.mask().unsqueeze(-1)
            each.cost = torch.where(came, over, each.cost)
            each.charged = each.charged | (every if told.where is None else told.where)

    def cancel(self, choice: Choice) -> None:
        """Say that the rest of a choice's feedback will never come."""
        self._settled()
        super().cancel(choice)
        each = self._played.get(choice.t)
        if each is not None and not bool(each.due().any()):
            del self._played[choice.t]


@dataclass
class _Round:
    """A round's direction ``(T, d)``, and what has come of it in which trials.

    Masks ``(T,)`` are on the host.
    """

    u: Tensor
    reward: Tensor
    cost: Tensor
    rewarded: Tensor
    charged: Tensor
    used: Tensor

    def due(self) -> Tensor:
        """Trials in which all has come and nothing has been made of it, ``(T,)``."""
        return self.rewarded & self.charged & ~self.used
