"""The base of policies with a safe action and a constraint at every stage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from cbandit._core import checks, devices
from cbandit.beliefs.classes import FiniteClass
from cbandit.beliefs.counts import Counts
from cbandit.beliefs.linear import Linear
from cbandit.errors import CBanditError
from cbandit.policies.alone import alone
from cbandit.policies.believed import Posterior, posterior_of
from cbandit.policies.given import listed, named_points
from cbandit.policies.ledger import News, Told
from cbandit.policies.policy import Policy
from cbandit.policies.safe.action import Safe, SafeAction
from cbandit.policies.safe.known import Known
from cbandit.policies.safe.likely import best_likely, best_of_known
from cbandit.policies.safe.model import COSTS, EVERY, REWARD, Block, Model, Part, Stage
from cbandit.policies.safe.scales import Scales, largest_of
from cbandit.recommend import Recommendation

__all__ = ["Stagewise", "beliefs_of"]

Belief = Linear | Counts | FiniteClass


class Stagewise(Policy):
    """A safe action, scales of optimism, what was observed; a policy adds its rule.

    Its constructor ends with ``_start``.

    Args:
        actions: what can be chosen.
        beliefs: about the reward and every cost, see :func:`beliefs_of`.
        safe: the action known to be safe.
        delta: the share of runs in which a bound may fail.
        alpha: ``alpha_r``, or ``(alpha_r, alpha_c)``; the theorem's unless given.
        largest: ``r_max``, the largest possible mean reward; unless given the upper end
            of the reward's means or range where that is known, else 1.
        names: of the costs, where they have any.
        common: see :class:`~cbandit.policies.policy.Policy`.
    """

    _model: Model
    piecemeal = True

    def __init__(
        self,
        actions: Any,
        beliefs: list[Any],
        safe: Safe | None,
        delta: float,
        alpha: Any,
        largest: Any,
        names: tuple[str, ...] | None,
        **common: Any,
    ) -> None:
        super().__init__(actions, names or len(beliefs) - 1, **common)
        # the list is the caller's own, who goes on with it
        beliefs[:] = [self.senses.belief(j, each) for j, each in enumerate(beliefs)]
        self.delta = checks.share("delta", delta)
        self._ranges = [belief.range for belief in beliefs]
        known = getattr(beliefs[0], "means", self._ranges[0])
        largest = largest_of(self, largest, 1.0 if known is None else known[1])
        noises = [self._per_trial("subgaussian", one.subgaussian) for one in beliefs]
        self._subgaussian = torch.stack(noises, -1)
        self._scales = Scales.of(alpha, self._per_trial)
        self._safe = SafeAction.of(self, safe, self._subgaussian, largest)
        if self._safe.reward is not None:
            self._within("safe.reward", self._safe.reward.unsqueeze(-1), (0,))
        if self._safe.cost is not None:
            self._within("safe.cost", self._safe.cost, range(1, self.m + 1))
            self._safe.below(self._limits(1))

    def _leans_on(self) -> list[tuple[int | None, Tensor]]:
        """Return the safe action of each trial."""
        return self._safe.listed()

    def _start(self, model: Model) -> None:
        """Set the model and the state before the first round."""
        self._model, safe = model, Known.start(self._safe)
        zero = torch.zeros(self._size, self.m, dtype=torch.float64, device=self.device)
        self._begin(model.begun(safe, self._lasting_ratio(safe), zero))

    @property
    @alone
    def multiplier(self) -> Tensor:
        """The dual solution of the last programme, ``(*trials, m)``; 0 without one."""
        return self._outside(self._now.state.multiplier.clone())

    def _accepted(
        self, name: str, values: Tensor, functions: Sequence[int], mask: Tensor | None
    ) -> Tensor:
        return self._within(name, values, functions, mask)

    def _within(
        self,
        name: str,
        value: Tensor,
        functions: Sequence[int],
        mask: Tensor | None = None,
    ) -> Tensor:
        """Return ``value`` ``(T, f)`` if it lies in the stated ranges."""
        for column, f in zip(value.unbind(-1), functions, strict=True):
            limits = self._ranges[f]
            if limits is None:
                continue
            if mask is not None:
                column = column[devices.put(mask, column.device)]
            outside = (column < limits[0]) | (column > limits[1])
            if bool(outside.any()):
                raise CBanditError(
                    f"{name} must lie in the stated range of {limits[0]:g} to "
                    f"{limits[1]:g}; got {column[outside][0].item():g}"
                )
        return value

    # -- deciding --------------------------------------------------------------------

    def _ratio(self, state: Stage, limits: Tensor) -> Tensor:
        """Return this round's ``2 (r_max - r0) / (tau_j - c0_j)``, ``(T, m)``."""
        return state.safe.ratio(limits) if state.ratio is None else state.ratio

    def _lasting_ratio(self, safe: Known) -> Tensor | None:
        """Return that ratio if it will stay the same from now on."""
        if not safe.ready or callable(self.thresholds):
            return None
        return safe.ratio(self._limits(1))

    # -- learning --------------------------------------------------------------------

    def absorb(self, state: Any, news: News) -> Any:
        """Return the state after feedback of one choice."""
        choice = news.choice
        x = choice.x.reshape(self._size, -1).double()
        arm = None
        if choice.index is not None and choice.actions is None:
            arm = choice.index.reshape(self._size)
        told = [(REWARD, one) for one in news.rewards]
        told += [(COSTS, one) for one in news.costs]
        rest = [each for _, one in told for each in (one.where, one.noise, one.columns)]
        if not state.safe.ready:
            safe = state.safe.after(news, self._limits(choice.t))
            state = state._replace(safe=safe, ratio=self._lasting_ratio(safe))
        if len(told) == 2 and all(each is None for each in rest):
            both = torch.cat([one.values for _, one in told], -1)
            told = [(EVERY, told[0][1]._replace(values=both))]
        parts = [self._part(functions, one) for functions, one in told]
        seen = self._model.added(state.seen, x, arm, parts)
        return state._replace(seen=seen)

    def _part(self, functions: slice, told: Told) -> Part:
        """Return what was told, and how much each observation counts."""
        if told.where is None and told.noise is None and told.columns is None:
            return Part(functions, told.values)
        values, came = told.wide(self.m)
        weight = came.to(values)
        if told.noise is not None:
            # noisier observations count less; better ones never more than once
            r = self._subgaussian[:, functions].square()
            weight = weight * (r / told.noise.unsqueeze(-1)).clamp_max(1.0)
        return Part(functions, values, weight)

    @alone
    def observe(
        self,
        *,
        index: Any = None,
        x: Any = None,
        reward: Any = None,
        cost: Any = None,
        params: Any = None,
    ) -> None:
        """Learn from ``n`` rows of data from before.

        Args:
            index: the actions' numbers, ``(n,)`` or ``(*trials, n)``.
            x: or the actions themselves, ``(n, d)`` or ``(*trials, n, d)``.
            params: or these by name, ``n`` dicts, or with trials lists of them.
            reward: ``(n,)`` or ``(*trials, n)``.
            cost: ``(n, m)`` or ``(*trials, n, m)``; without the last axis if m = 1.
        """
        x = named_points(self.actions, x, params)
        if (index is None) == (x is None):
            raise CBanditError("observe takes one of index=, x= and params=")
        if reward is None and cost is None:
            raise CBanditError("observe needs reward=, cost= or both; got neither")
        arms, points = self._rows_of(index, x)
        parts: list[tuple[slice, Tensor]] = []
        for name, given, functions, m in (
            ("reward", reward, REWARD, 1),
            ("cost", cost, COSTS, self.m),
        ):
            if given is None:
                continue
            given = self.senses.stacked(given)
            value = checks.tensor(name, given, device=self.device)
            value = checks.measured(name, value, self.dtype)
            value = checks.rows(name, value, self.batch_shape, (m,), points.shape[1])
            every = range(1 + self.m)[functions]
            value = self.senses.turned(value, every)
            self._within(name, value.reshape(-1, m), every)
            parts.append((functions, value))
        state = self._settled().state
        seen = state.seen
        for i in range(points.shape[1]):
            arm = None if arms is None else arms[:, i]
            row = [Part(functions, value[:, i]) for functions, value in parts]
            seen = self._model.added(seen, points[:, i], arm, row)
        self._change(state._replace(seen=seen))

    def _rows_of(self, index: Any, x: Any) -> tuple[Tensor | None, Tensor]:
        """Return numbers ``(T, n)``, where there are any, and points ``(T, n, d)``."""
        if index is not None:
            given = checks.tensor("index", index, None, self.device)
            numbers = checks.rows("index", given, self.batch_shape)
            return numbers, self.actions.points(numbers).double()
        given = checks.finite("x", checks.tensor("x", x, device=self.device))
        points = checks.rows("x", given, self.batch_shape, (self.actions.dim,))
        return self._model.numbers(points), points

    # -- what is believed ------------------------------------------------------------

    def _believed(self, state: Any) -> Iterator[Block]:
        """Yield estimates and spreads over the policy's own set."""
        return self._model.believed(state.seen)

    @alone
    def posterior(self) -> Posterior:
        """Return estimates over the set; ``std`` is theirs under noise ``R^2``."""
        found = list(self._believed(self._settled().state))
        mean = torch.cat([f[1] for f in found], -1)
        std = torch.cat([f[2] for f in found], -1)
        return posterior_of((mean, std), self._outside, self.senses)

    @alone
    def recommend(self, confidence: float = 0.95) -> Recommendation:
        """Say what to deploy: the best distribution believed feasible.

        Over the policy's own set, with probability ``confidence``; its expected costs
        are what is to be feasible. Of a policy that plays single actions: the best one.
        Before data it is the safe action, where its cost was given.
        """
        confidence = checks.share("confidence", confidence)
        now = self._settled()
        limits = self._limits(max(now.t, 1))
        size = (self._size, int(self.actions.size))
        data, left = self._has_data(now.state).expand(size), self._left_over()

        def best(among: Tensor | None) -> Recommendation:
            return self._likely(now.state, limits, confidence, among)

        found = best_of_known(data, left, now.state.safe, best)
        return self.senses.recommended(found.of(self._outside))

    def _has_data(self, state: Any) -> Tensor:
        """Return the actions of which all functions are known, ``(T, 1 or N)``."""
        return self._model.has_data(state.seen)

    def _likely(
        self, state: Any, limits: Tensor, confidence: float, left: Tensor | None
    ) -> Recommendation:
        """Return what is believed feasible with ``confidence``, for ``T`` trials."""

        def believed() -> Iterator[Block]:
            return self._model.believed(state.seen)

        own = self.actions, state.safe, believed
        return best_likely(*own, limits, confidence, left)


def beliefs_of(kind: type[Belief], reward: Any, costs: Any) -> list[Any]:
    """Return the beliefs about the reward and every cost, all of one ``kind``."""
    beliefs = [reward, *listed(costs, kind)]
    for j, belief in enumerate(beliefs):
        if not isinstance(belief, kind):
            name = "reward" if j == 0 else f"costs[{j - 1}]"
            raise CBanditError(
                f"{name} must be a cb.{kind.__name__}; got {checks.kind(belief)}"
            )
    return beliefs
