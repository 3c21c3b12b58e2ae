"""The beliefs of one policy, reward and costs, over its action set. A value.

Functions whose prior covariance and noise agree, and whose feedback is told together,
form a *group*: one engine, one variance, several means. Feedback told apart splits it.
A change returns other beliefs and leaves these as they were.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Self

import torch
from torch import Tensor

from cbandit._core import checks, devices
from cbandit._core.distributed import ALONE, Ranks
from cbandit._core.randomness import Streams
from cbandit.actions import Actions
from cbandit.beliefs.gp import GP
from cbandit.errors import CBanditError
from cbandit.posterior.ahead import Ahead
from cbandit.posterior.block import Block
from cbandit.posterior.engines.choice import BLOCK
from cbandit.posterior.engines.protocol import Pass
from cbandit.posterior.group import FEW, Group
from cbandit.posterior.log import Observation
from cbandit.posterior.look import Best, Look, Scan, among
from cbandit.posterior.parts import Part, columns_of, each_alone, joined, told_apart
from cbandit.posterior.passes import Merged
from cbandit.posterior.stacked import Stacked, stackable
from cbandit.posterior.units import Units, told
from cbandit.posterior.value import Value
from cbandit_kernels import SCORES

__all__ = ["Beliefs"]


class Beliefs(Value):
    """All functions of a policy over one action set.

    Args:
        beliefs: one specification a function, the reward's first.
        actions: a finite set, a product grid or a box.
        batch_shape: ``()`` or ``(trials,)``.
        dtype: of the arrays over the set (those that keep a covariance are float64).
        device: where they live.
        engine: a name, or ``"auto"``.
        samples: whether joint draws will be asked for.
        apart: no two functions share an engine.
        ranks: the processes that share the set; each keeps, and looks at, its own part.
    """

    actions: Actions
    batch_shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    ranks: Ranks
    functions: int
    trials: int
    groups: tuple[Group, ...]
    _closed: int  # feedback of earlier rounds no longer counts

    def __init__(
        self,
        beliefs: Sequence[GP],
        actions: Actions,
        batch_shape: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
        engine: str = "auto",
        samples: bool = False,
        apart: bool = False,
        ranks: Ranks = ALONE,
    ) -> None:
        groups, waiting = [], list(range(len(beliefs)))
        while waiting:
            first = beliefs[waiting[0]]
            members = [waiting[0]] + [
                f for f in waiting[1:] if not apart and first.shares(beliefs[f])
            ]
            waiting = [f for f in waiting if f not in members]
            means = [
                checks.per_trial("mean", beliefs[f].mean, batch_shape) for f in members
            ]
            groups.append(
                Group(
                    first.copy(),
                    members,
                    torch.stack(means, -1).to(device),
                    actions,
                    batch_shape,
                    dtype,
                    device,
                    engine,
                    samples,
                    ranks,
                )
            )
        super().__init__(
            actions=actions,
            batch_shape=batch_shape,
            dtype=dtype,
            device=device,
            ranks=ranks,
            functions=len(beliefs),
            trials=groups[0].trials,
            groups=tuple(groups),
            _closed=0,
        )

    # -- feedback --------------------------------------------------------------------

    def absorb(
        self, keys: Sequence[Hashable], x: Tensor, parts: Sequence[Part], t: int = 0
    ) -> Self:
        """Condition on feedback of one choice, made in round ``t``.

        Args:
            keys: the actions' names, one a trial.
            x: ``(T, d)``.
            parts: what was seen, and where; parts seen alike are joined.
            t: the round.
        """
        groups = list(self.groups)
        for part in parts:
            if part[3] is not None:  # it is scaled by its own function's spread
                groups = each_alone(groups, lambda group: group.scale.standardize)
        for functions, values, wanted, noise in joined(parts):
            groups = told_apart(groups, functions)
            for place, group in enumerate(groups):
                if group.functions[0] in functions:
                    chosen = columns_of(values, functions, group.functions)
                    row = Observation(keys, x, chosen, wanted, noise, t)
                    groups[place] = group.append(row)
        return self._with(groups=tuple(groups))

    def observe(
        self, rows: Sequence[tuple[Sequence[Hashable], Tensor, list[Part]]]
    ) -> Self:
        """Condition on many choices at once, as :meth:`absorb` does on one."""
        if len(rows) <= FEW:
            beliefs = self
            for keys, x, parts in rows:
                beliefs = beliefs.absorb(keys, x, parts)
            return beliefs
        covered = [f for _, _, parts in rows for part in parts for f in part[0]]
        groups = told_apart(list(self.groups), covered)
        for place, group in enumerate(groups):
            new = []
            for keys, x, parts in rows:
                for functions, values, wanted, noise in joined(parts):
                    if group.functions[0] in functions:
                        chosen = columns_of(values, functions, group.functions)
                        new.append(Observation(keys, x, chosen, wanted, noise))
            if new:
                groups[place] = group.observe(new)
        return self._with(groups=tuple(groups))

    def await_feedback(
        self, keys: Sequence[Hashable], x: Tensor, t: int, limits: Tensor
    ) -> Self:
        """Enter a choice before its feedback.

        Targets are the reward's prior mean and the costs' thresholds ``(T, m)``.
        """
        every, groups = [True] * len(keys), []
        for group in self.groups:
            values = group.scale.means.clone()
            for column, f in enumerate(group.functions):
                if f > 0:
                    values[:, column] = limits[:, f - 1]
            arrived = torch.zeros_like(values, dtype=torch.bool)
            row = Observation(keys, x, values, every, None, t, arrived)
            groups.append(group.append(row))
        return self._with(groups=tuple(groups))

    def fill(self, t: int, functions: list[int], values: Tensor, mask: Tensor) -> Self:
        """Feedback of round ``t``: ``values (T, f)`` in the trials of ``mask (T,)``."""
        if t < self._closed:
            return self
        groups = []
        for group in self.groups:
            mine = [f for f in group.functions if f in functions]
            if mine:
                columns = [group.functions.index(f) for f in mine]
                told = columns_of(values, functions, mine)
                group = group.fill(t, columns, told, mask)
            groups.append(group)
        return self._with(groups=tuple(groups))

    def stop_waiting(self, first: int) -> Self:
        """Feedback of rounds before ``first`` counts no longer."""
        return self if first <= self._closed else self._with(_closed=first)

    def expire(self, first: int, refresh_every: int) -> Self:
        """Forget observations of rounds before ``first``.

        Reverse updates of narrow dtypes drift, so those are computed afresh every
        ``refresh_every``.
        """
        left = [group.expire(first).refreshed(refresh_every) for group in self.groups]
        same = all(map(operator.is_, left, self.groups))
        return self if same else self._with(groups=tuple(left))

    def refit(self, due_only: bool = False) -> Self:
        """Fit hyperparameters; with ``due_only`` where ``refit_every`` says so."""
        groups = list(self.groups)
        if due_only:
            if not any(group.due() for group in groups):
                return self
            fitted = [group.refit() if group.due() else group for group in groups]
        else:
            fitted = [group.refit() for group in each_alone(groups)]
        return self._with(groups=tuple(fitted))

    def retarget(self, targets: Tensor) -> Self:
        """Replace all outcomes of a single function: ``(n, T, 1)``, in their order."""
        (group,) = self.groups
        return self._with(groups=(group.retarget(targets),))

    def forget_all(self) -> Self:
        """Drop all data; hyperparameters stay."""
        return self._with(groups=tuple(group.emptied() for group in self.groups))

    def lighten(self, limit: int) -> None:
        """Before a checkpoint: above ``limit`` bytes of arrays only the log is kept.

        Then what is here is computed afresh from it too, as what is loaded will be.
        Kernel rows are sooner computed than written: an eighth of them counts as much.
        """
        engines = [group.engine for group in self.groups]
        sizes = [each.bytes() * (8 if each.keeps_rows else 1) for each in engines]
        for group, engine in zip(self.groups, engines, strict=True):
            # a shard cannot be reloaded under another world size
            shard = self.ranks.size > 1 and not engine.keeps_all
            group.lighten(sum(sizes) > limit or shard)

    # -- a round ---------------------------------------------------------------------

    def choose(
        self, look: Look, streams: Streams | None = None, ahead: Sequence[Ahead] = ()
    ) -> Best:
        """Apply what was told and return the best action under ``look``.

        The only call that changes the arrays over the set; it always runs to the end.

        Args:
            look: which score of which estimates, in units; its offset holds minus the
                thresholds.
            streams: estimates are of a joint draw from these; ``None``: of deviations.
            ahead: outstanding choices, whose variance counts as if they had been told.
        """
        plain = ahead or look.beside is not None or look.score not in SCORES
        if not plain and len(self.groups) == 1 and self.groups[0].fused is not None:
            return self._found(look, streams)
        scan, passing = Scan(look), self._begin(streams, ahead)
        for start, stop in self._stretches():
            block = passing.block(start, stop)
            spread = block.std if block.draw is None else block.draw
            scan.add(start, block.mean, spread)
        passing.end()
        return scan.best(self.ranks)

    def _found(self, look: Look, streams: Streams | None) -> Best:
        """The best action by the engine's one pass."""
        find, ranks = self.groups[0].find, self.ranks
        if ranks.size == 1:
            return find(look, streams)
        start = None if streams is None else streams.position()
        best = find(look, streams)

        def again(reach: Tensor) -> Best:
            if streams is not None and start is not None:
                streams.go(start)  # the same draw
            return find(look.closer(best.value, reach), streams)

        return among(best, ranks, look.tolerance, again)

    def tolerance(self, costs: bool = False) -> Tensor:
        """Scores in the reward's unit that differ by less are as good, ``(T,)``.

        Or, with ``costs``, scores of costs alone.
        """
        if costs and self.functions > 1:
            every = [g.tolerance for g in self.groups if max(g.functions) > 0]
            return every[0] if len(every) == 1 else torch.stack(every).amax(0)
        return self._of(0).tolerance

    def _begin(self, streams: Streams | None, ahead: Sequence[Ahead]) -> Pass:
        if len(self.groups) == 1:
            return self.groups[0].begin(streams, ahead)
        return Merged([(g.functions, g.begin(streams, ahead)) for g in self.groups])

    def _stretches(self) -> Iterator[tuple[int, int]]:
        """Of this rank's actions; small sets are looked at as a whole."""
        if self.actions.continuous:
            raise CBanditError("a Box has no numbered actions")
        steps = [step for g in self.groups if (step := g.block) is not None]
        if not steps:
            return iter(((0, self.actions.size),))
        own = self.ranks.stretch(self.actions, BLOCK)
        return self.actions.stretches(min(steps), *own)

    # -- readers, in units but for posterior() ---------------------------------------

    def units(self) -> Units | None:
        """The units of all functions; ``None``: the user's own, for good."""
        if not any(group.scale.standardize for group in self.groups):
            return None
        return Units.joined([g.scale.units() for g in self.groups], self._back())

    def blocks(
        self, streams: Streams | None = None, ahead: Sequence[Ahead] = ()
    ) -> Iterator[Block]:
        """All actions, block by block; nothing changes, wherever one stops.

        With ``streams``, joint draws beside the means; the variances of choices
        ``ahead`` are counted as if their outcomes had come.
        """
        self.settle()
        passing = self._begin(streams, ahead)
        for start, stop in self._stretches():
            yield passing.block(start, stop)

    def settle(self) -> None:
        """Bring the arrays over the set up to date."""
        for group in self.groups:
            group.engine.settle()

    def one(self, function: int) -> Iterator[tuple[int, int, Tensor, Tensor]]:
        """One function over all actions: stretches, mean and deviation ``(T, n)``."""
        group = self._of(function)
        column = group.functions.index(function)
        group.engine.settle()
        passing = group.begin()
        for start, stop in self._stretches():
            block = passing.block(start, stop)
            std = block.std.expand(-1, len(group.functions), -1)
            yield start, stop, block.mean[:, column], std[:, column]

    def tried(self, function: int) -> tuple[Tensor, Tensor, Tensor]:
        """Where a function was seen: ``(T, U, d)``, means ``(T, U)``, which are real.

        Trials that saw fewer actions than others have places that are not.
        """
        group = self._of(function)
        x, mean, real = group.tried()
        return x, mean[:, group.functions.index(function)], real

    def _of(self, function: int) -> Group:
        return next(group for group in self.groups if function in group.functions)

    def posterior(self) -> tuple[Tensor, Tensor]:
        """Means and deviations of all actions in the user's units, ``(T, F, N)``."""
        shape = (self.trials, self.functions, int(self.actions.size))
        units = self.units()
        mean = torch.empty(shape, dtype=self.dtype, device=self.device)
        std = torch.empty_like(mean)
        for block in self.blocks():
            own = slice(block.start, block.stop)
            mean[..., own], std[..., own] = told(units, block.mean, block.std)
        if self.ranks.size == 1 or self.actions.continuous:
            return mean, std
        own = slice(*self.ranks.stretch(self.actions, BLOCK))
        both = torch.stack([mean[..., own], std[..., own]])
        mean, std = self.ranks.whole(both, self.actions, BLOCK)
        return mean, std

    def anywhere(self, x: Tensor, ahead: Sequence[Ahead] = ()) -> tuple[Tensor, Tensor]:
        """Means and standard deviations at any points, ``(T, F, n)``; a dense solve."""
        found = [group.anywhere(x, ahead) for group in self.groups]
        if len(found) == 1:
            return found[0]
        back = self._back()
        mean, std = (
            torch.stack([torch.cat(parts, 1)[:, f] for f in back], 1)
            for parts in zip(*found, strict=True)
        )
        return mean, std

    def _back(self) -> list[int]:
        """Where each function is, among those of the groups in their order."""
        order = [f for group in self.groups for f in group.functions]
        return [order.index(f) for f in range(self.functions)]

    def bounds(
        self, x: Tensor, noise: Tensor | None = None, rough: bool = False
    ) -> tuple[Tensor, Tensor]:
        """The least and the greatest reading to be believed at ``x (T, n, d)``.

        ``(T, F, n)`` each; see :meth:`Group.bounds`.
        """
        parts = [group.bounds(x, noise, rough) for group in self.groups]
        back = self._back()
        low, high = (
            torch.stack([torch.cat(ends, 1)[:, f] for f in back], 1)
            for ends in zip(*parts, strict=True)
        )
        return low, high

    def solver(
        self, ahead: Sequence[Ahead] = ()
    ) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        """:meth:`anywhere` as of now, for many calls at points ``(T, n, d)``."""
        if ahead or not stackable(self.groups):
            return lambda x: self.anywhere(x, ahead)
        return Stacked(self.groups)

    def draws(self, streams: Streams) -> Callable[[Tensor], Tensor]:
        """Joint draws less their means, as a function of ``x``, ``(T, F, n)``."""
        paths = [group.draw(streams) for group in self.groups]
        back = devices.put(self._back(), self.device)

        def draw(x: Tensor) -> Tensor:
            return torch.cat([path(x) for path in paths], 1)[:, back]

        return draw

    def incumbents(self, count: int) -> Tensor:
        """The actions tried last, ``(T, k, d)``."""
        recent = max((group.log for group in self.groups), key=len).last(count)
        if not recent:
            shape = (self.trials, 0, self.actions.dim)
            return torch.zeros(shape, dtype=torch.float64, device=self.device)
        return torch.stack([row.x.double() for row in recent], 1)

    def deviations(self, x: Tensor) -> Tensor:
        """Standard deviations at any points, ``(T, F, n)``, in the engines' units."""
        shape = (self.trials, self.functions, x.shape[-2])
        std = torch.empty(shape, dtype=torch.float64, device=self.device)
        for group in self.groups:
            var = group.engine.history.at(x)[1]
            for f in group.functions:
                std[:, f] = var.clamp_min(0).sqrt()
        return std

    def gains(self) -> Tensor:
        """Realised information gain of each function, ``(T, F)``."""
        return self._by_function([group.engine.gain() for group in self.groups])

    def noises(self) -> Tensor:
        """Likelihood variances, ``(T, F)``, in the engines' units."""
        return self._by_function([group.noise for group in self.groups])

    def _by_function(self, values: list[Tensor]) -> Tensor:
        if len(values) == 1:
            return values[0].unsqueeze(-1).expand(-1, self.functions)
        out = torch.empty(
            len(values[0]), self.functions, dtype=torch.float64, device=self.device
        )
        for group, value in zip(self.groups, values, strict=True):
            for f in group.functions:
                out[:, f] = value
        return out

    def has_data(self) -> Tensor:
        """Which trials have a value of which function, ``(T, F)`` bool, on the host."""
        parts = [g.log.has_data(self.trials, len(g.functions)) for g in self.groups]
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)[:, self._back()]

    @property
    def by_default(self) -> bool:
        """Whether all functions have the beliefs of those who know nothing."""
        return all(group.gp.unit is not None for group in self.groups)

    def engines(self) -> list[str]:
        """The names of the engines at work."""
        return list(dict.fromkeys(group.plan.name for group in self.groups))

    def describe(self) -> str:
        """Which engines are at work, and why."""
        parts = []
        for group in self.groups:
            names = ["reward" if f == 0 else f"cost {f}" for f in group.functions]
            parts.append(f"{', '.join(names)}: {group.plan.name} ({group.plan.why})")
        if self.ranks.size > 1:
            split = not all(group.keeps_all for group in self.groups)
            parts.append(f"{self.ranks}: {'a part of the set' if split else 'all'}")
        return "; ".join(parts)

    def check_samples(self) -> None:
        """Fail now, not in a round, where joint draws cannot be had."""
        for group in self.groups:
            group.check_samples()
