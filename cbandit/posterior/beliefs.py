"""The beliefs of one policy about its reward and costs, over its action set.

Beliefs are a value: a change returns new beliefs and leaves the old ones as they were.
Functions whose prior covariance and noise agree, and whose feedback is told together,
form a *group*: one engine, one variance, several means. Feedback told separately splits
the group. Only engines change in place. An engine knows which log of observations its
arrays hold; if that is not the group's log, the engine is rebuilt from the group's log.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor

from cbandit._core import checks
from cbandit._core.distributed import ALONE, Ranks
from cbandit._core.randomness import Streams
from cbandit.actions import Actions, Contextual
from cbandit.beliefs.gp import GP
from cbandit.errors import CBanditError
from cbandit.posterior.covariance import Covariance, Prior
from cbandit.posterior.draws.features import check_features
from cbandit.posterior.engines.choice import BLOCK, plan
from cbandit.posterior.engines.protocol import Dictionary, Fused, Path
from cbandit.posterior.group import Group
from cbandit.posterior.links import Link
from cbandit.posterior.log import Observation, Part, joined
from cbandit.posterior.look import Best, Block, among, scan
from cbandit.posterior.pending import Ahead
from cbandit.posterior.stacked import Stacked
from cbandit.posterior.units import Scale, Units, told
from cbandit.posterior.value import Value
from cbandit_kernels import SCORES, Look

FEW = 8  # with at most so many rows, condition on one by one
TRIED = 512  # how many tried actions are recomputed if the engine does not keep them


class Beliefs(Value):
    """The beliefs of a policy about all its functions, over one action set.

    Args:
        beliefs: one specification a function, the reward's first.
        actions: a finite set, a product grid or a box.
        batch_shape: ``()`` or ``(trials,)``.
        dtype: the dtype of arrays over the set (those with a covariance are float64).
        device: where the arrays live.
        engine: a name, or ``"auto"``.
        samples: whether joint draws will be asked for.
        apart: whether every function has its own engine.
        ranks: the processes that share the set; each keeps and scans its own part.
        limits: the costs' thresholds ``(T, m)``, which set the units of binary and
            counted costs.
        dictionary: how the sketch engine draws its dictionaries.
    """

    actions: Actions
    batch_shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    ranks: Ranks
    functions: int
    trials: int
    by_default: bool
    """Whether every function has the beliefs of :meth:`cbandit.GP.default`."""
    rescaled: bool
    """Whether any function's outcomes are standardised, or have a link."""
    fades: bool
    """Whether data fade from round to round."""
    groups: tuple[Group, ...]
    _closed: int  # feedback of rounds before this one is ignored

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
        limits: Tensor | None = None,
        dictionary: Dictionary | None = None,
    ) -> None:
        groups, waiting = [], list(range(len(beliefs)))
        while waiting:
            first = beliefs[waiting[0]]
            members = [
                f
                for f in waiting
                if f == waiting[0] or (not apart and first.shares(beliefs[f]))
            ]
            waiting = [f for f in waiting if f not in members]
            means = [
                checks.per_trial("mean", beliefs[f].mean, batch_shape) for f in members
            ]
            gp = first.copy()
            covariance = Covariance.of(gp.kernel, actions, gp.unit).to(device)
            covariance.check_resolution(actions, dtype)
            noise = checks.per_trial("noise", gp.noise, batch_shape).to(device)
            center, link, limit = torch.stack(means, -1).to(device), None, None
            if gp.outcome is not None:
                link = Link(gp.outcome, gp.sense)
                center = _latent(link, center, covariance.largest(actions))
                if limits is not None and members[0]:
                    limit = limits[:, members[0] - 1 : members[0]].to(device)
            least = covariance.least_noise(actions)
            of = gp.standardize, None, link, limit
            scale = Scale(center, noise, least, *of)
            fade = None
            if gp.fade is not None:
                fade = checks.per_trial("fade", gp.fade, batch_shape).to(device)
            prior = Prior(actions, covariance, batch_shape, dtype, device, fade=fade)
            # one rank decides, as ranks may differ in free memory
            asked = engine, prior, samples, noise.amin(), dictionary
            chosen = ranks.first(partial(plan, *asked))
            elastic = engine == "auto"
            groups.append(Group(gp, members, prior, scale, chosen, elastic, ranks))
        super().__init__(
            actions=actions,
            batch_shape=batch_shape,
            dtype=dtype,
            device=device,
            ranks=ranks,
            functions=len(beliefs),
            trials=prior.trials,
            by_default=all(gp.unit is not None for gp in beliefs),
            rescaled=any(gp.standardize or gp.outcome for gp in beliefs),
            fades=any(gp.fade is not None for gp in beliefs),
            groups=tuple(groups),
            _closed=0,
        )

    @property
    def dated(self) -> bool:
        """Whether it matters which round an outcome is of.

        It does if data fade, and if inputs are standardised in the order of rounds.
        """
        return self.fades or any(g.prior.covariance.open for g in self.groups)

    # -- feedback --------------------------------------------------------------------

    def absorb(
        self, keys: Sequence[Hashable], x: Tensor, parts: Sequence[Part], t: int = 0
    ) -> Self:
        """Condition on feedback of one choice, made in round ``t``.

        Args:
            keys: the actions' names, one a trial.
            x: the actions, ``(T, d)``.
            parts: the feedback; parts of the same trials and noise are joined.
            t: the round.
        """
        groups = list(self.groups)
        for part in parts:
            if part.noise is not None:  # it is scaled by the spread of its function
                groups = _each_apart(groups, lambda group: group.scale.standardize)
        for part in joined(parts):
            groups = _told_apart(groups, part.functions)
            for place, group in enumerate(groups):
                if group.functions[0] in part.functions:
                    groups[place] = group.append(group.row(keys, x, part, t))
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
        covered = [f for _, _, parts in rows for part in parts for f in part.functions]
        groups = list(self.groups)
        if any(part.noise is not None for _, _, parts in rows for part in parts):
            groups = _each_apart(groups, lambda group: group.scale.standardize)
        groups = _told_apart(groups, covered)
        for place, group in enumerate(groups):
            new = [
                group.row(keys, x, part)
                for keys, x, parts in rows
                for part in joined(parts)
                if group.functions[0] in part.functions
            ]
            if new:
                groups[place] = group.observe(new)
        return self._with(groups=tuple(groups))

    def await_feedback(
        self, keys: Sequence[Hashable], x: Tensor, t: int, limits: Tensor
    ) -> Self:
        """Add a choice whose feedback has not come yet.

        Until the feedback comes, the reward's prior mean and the costs' thresholds
        ``limits (T, m)`` stand in for it.
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
        """Add feedback of round ``t``: ``values (T, f)`` in the trials of ``mask``.

        ``mask`` is ``(T,)``; feedback that comes too late changes nothing.
        """
        if t < self._closed:
            return self
        part = Part(functions, values, ())
        groups = tuple(group.fill(t, part, mask) for group in self.groups)
        return self._with(groups=groups)

    def stop_waiting(self, first: int) -> Self:
        """Ignore feedback of rounds before ``first`` from now on."""
        return self if first <= self._closed else self._with(_closed=first)

    def expire(self, first: int) -> Self:
        """Forget observations of rounds before ``first``."""
        left = [group.expire(first) for group in self.groups]
        same = all(map(operator.is_, left, self.groups))
        return self if same else self._with(groups=tuple(left))

    def aged(self, t: int) -> Self:
        """Return the beliefs as of round ``t``, if data fade."""
        groups = tuple(group.aged(t) for group in self.groups)
        same = all(map(operator.is_, groups, self.groups))
        return self if same else self._with(groups=groups)

    def refit(self, due_only: bool = False) -> Self:
        """Fit all hyperparameters, or with ``due_only`` only those due for a refit."""
        groups: list[Group] = list(self.groups)
        if not due_only:
            groups = _each_apart(groups, lambda group: group.fits)
        elif not any(group.due() for group in groups):
            return self
        fitted = [g.refit() if (g.due() if due_only else g.fits) else g for g in groups]
        return self._with(groups=tuple(fitted))

    def retarget(
        self, target: Callable[[Any], Tensor], fresh: Self | None = None
    ) -> Self:
        """Compute the outcomes of a single function anew from their sources.

        Args:
            target: maps a ``source`` to outcomes ``(T, 1)``.
            fresh: beliefs without data, which get the data; ``None``: these keep them.
        """
        (group,) = self.groups
        if fresh is None:
            return self._with(groups=(group.retarget(target),))
        for row in group.log:
            values, told = target(row.source), row.source
            part = Part([0], values, row.wanted, row.noise, source=told)
            fresh = fresh.absorb(row.keys, row.x, [part], row.t)
        return fresh

    def over(self, actions: Actions) -> Self:
        """Return the beliefs over a set in which a category has gained a value."""
        groups = tuple(group.over(actions) for group in self.groups)
        return self._with(actions=actions, groups=groups)

    def forget_all(self) -> Self:
        """Drop all data but keep the hyperparameters."""
        return self._with(groups=tuple(group.emptied() for group in self.groups))

    def forget(self, where: Sequence[bool]) -> Self:
        """Drop all data of the trials ``where (T,)``, but keep the hyperparameters."""
        return self._with(groups=tuple(group.forget(where) for group in self.groups))

    def lighten(self, limit: int) -> None:
        """Mark engines whose arrays exceed ``limit`` bytes to be saved without them.

        If ``limit`` is below 0, all are marked. A checkpoint then holds only the log,
        and the arrays in memory are recomputed from it too, so that they equal those of
        a loaded checkpoint. Kernel rows count eight times, because computing them is
        faster than writing them.
        """
        # without a limit the arrays are dropped, so they need not be brought up to date
        engines = [g.engine if limit >= 0 else g.held for g in self.groups]
        sizes = [e.bytes() * (8 if e.keeps_rows else 1) for e in engines]
        for engine in engines:
            # a shard cannot be reloaded under another world size
            shard = self.ranks.size > 1 and not engine.keeps_all
            engine.light = sum(sizes) > limit or shard
            if engine.light:
                engine.version = None

    # -- a round ---------------------------------------------------------------------

    def choose(
        self, look: Look, streams: Streams | None = None, ahead: Sequence[Ahead] = ()
    ) -> Best:
        """Apply pending observations and return the best action under ``look``.

        This is the only call that changes the arrays over the set. It always scans the
        whole set.

        Args:
            look: the score and how its estimates are made, in units; its offset is
                minus the thresholds.
            streams: the random source of a joint draw; ``None``: estimates are made
                from means and standard deviations.
            ahead: outstanding choices, which reduce variances as if they had been told.
        """
        plain = look.beside is None and look.link is None
        if len(self.groups) == 1 and plain and look.score in SCORES:
            find = self.groups[0].fused(ahead)
            if find is not None:
                return self._fused(find, look, streams)
        blocks = self._blocks(streams, ahead)
        stretches = ((b.start, b.mean, b.spread) for b in blocks)
        return scan(stretches, look, self.ranks)

    def _fused(self, find: Fused, look: Look, streams: Streams | None) -> Best:
        """Return the best action by an engine's pass that updates and scores."""
        scale, ranks = self.groups[0].scale, self.ranks
        if scale.shifted:  # the engine's means are less the prior means
            means, offset = scale.means, look.offset
            look = replace(look, offset=means if offset is None else offset + means)
        if ranks.size == 1:
            return find(look, streams)
        start = None if streams is None else streams.position()
        best = find(look, streams)

        def again(reach: Tensor) -> Best:
            if streams is not None and start is not None:
                streams.go(start)  # repeat the same draw
            return find(look.closer(best.value, reach), streams)

        return among(best, ranks, look.reach, again)

    def tolerance(self, costs: bool = False) -> Tensor:
        """Return the difference below which two scores count as equal, ``(T,)``.

        Scores are in the reward's unit or, with ``costs``, in that of the costs.
        """
        if costs and self.functions > 1:
            every = [g.tolerance for g in self.groups if max(g.functions) > 0]
            return every[0] if len(every) == 1 else torch.stack(every).amax(0)
        return self._of(0).tolerance

    def _blocks(
        self, streams: Streams | None = None, ahead: Sequence[Ahead] = ()
    ) -> Iterator[Block]:
        """Yield this rank's actions block by block, in units."""
        stretches = self._stretches()
        if len(self.groups) == 1:
            return self.groups[0].blocks(stretches, streams, ahead)
        passes = [group.blocks(stretches, streams, ahead) for group in self.groups]
        return map(self._whole, zip(*passes, strict=True))

    def _whole(self, blocks: Sequence[Block]) -> Block:
        """Join the groups' blocks over one stretch into one block."""
        mean = self._ordered([b.mean for b in blocks])
        std = self._ordered([b.std.expand(-1, b.mean.shape[1], -1) for b in blocks])
        draws = [b.draw for b in blocks if b.draw is not None]
        draw = self._ordered(draws) if draws else None
        return Block(blocks[0].start, blocks[0].stop, mean, std, draw)

    def _stretches(self) -> list[tuple[int, int]]:
        """Return the stretches of this rank's actions; a small set is one stretch."""
        if self.actions.continuous:
            raise CBanditError("a Box has no numbered actions")
        steps = [g.held.step for g in self.groups if g.held.step is not None]
        if not steps:
            return [(0, self.actions.size)]
        first, last = self.ranks.stretch(self.actions, BLOCK)
        return list(self.actions.stretches(min(steps), first, last))

    def _ordered(self, values: Sequence[Tensor]) -> Tensor:
        """Join values of each group, ``(T, f, ...)``, in the order of functions."""
        if len(values) == 1:
            return values[0]
        order = [f for group in self.groups for f in group.functions]
        whole = torch.cat(list(values), 1)
        if order == sorted(order):
            return whole
        # indexing by a list of numbers would wait for the device
        return torch.stack([whole[:, order.index(f)] for f in range(len(order))], 1)

    def _per_group(self, value: Callable[[Group], Tensor]) -> Tensor:
        """Repeat each group's value ``(T, ...)`` for its functions, ``(T, F, ...)``."""
        columns = []
        for group in self.groups:
            shared = value(group).unsqueeze(1)
            shape = len(group.functions), *shared.shape[2:]
            columns.append(shared.expand(-1, *shape))
        return self._ordered(columns)

    # -- readers; all but posterior() are in units ----------------------------------

    def units(self) -> Units | None:
        """Return the units of all functions; ``None`` if nothing is rescaled."""
        if not self.rescaled:
            return None
        parts = [group.scale.units() for group in self.groups]
        order = [f for group in self.groups for f in group.functions]
        links = [link for part in parts for link in part.links]
        center, size, known, seen = (
            self._ordered(column)
            for column in zip(*(part[:4] for part in parts), strict=True)
        )
        ordered = tuple(links[order.index(f)] for f in sorted(order))
        return Units(center, size, known, seen, ordered)

    def blocks(
        self, streams: Streams | None = None, ahead: Sequence[Ahead] = ()
    ) -> Iterator[Block]:
        """Yield all actions block by block; the caller may stop after any block.

        With ``streams`` blocks carry joint draws too. The choices ``ahead`` reduce the
        variances as if their outcomes had come.
        """
        for group in self.groups:
            group.engine.settle()
        yield from self._blocks(streams, ahead)

    def one(self, function: int) -> Iterator[tuple[int, int, Tensor, Tensor]]:
        """Yield ``(start, stop, mean, std)`` of one function, ``(T, n)`` both."""
        group = self._of(function)
        column = group.functions.index(function)
        group.engine.settle()
        for block in group.blocks(self._stretches()):
            std = block.std.expand(-1, len(group.functions), -1)
            yield block.start, block.stop, block.mean[:, column], std[:, column]

    def tried(self, function: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the actions at which a function was observed, at least the latest.

        Returns points ``(T, U, d)``, posterior means ``(T, U)``, and a mask ``(T, U)``
        that is false for padding in trials with fewer actions.
        """
        group = self._of(function)
        column = group.functions.index(function)
        if not group.held.by_slots:
            return group.tried_last(TRIED, column)
        history = group.engine.history
        if not group.held.solves:
            points, real = history.points[:, : history.used], history.precision > 0
            mean = group.anywhere(points)[0][:, column]
            return points, mean, real[:, : history.used]
        used, weights = history.used, history.system().weights(history.used)
        mean = group.scale.mean((history.gram @ weights).mT)
        real = history.precision[:, :used] > 0
        return history.points[:, :used], mean[:, column], real

    def _of(self, function: int) -> Group:
        for group in self.groups:
            if function in group.functions:
                return group
        raise CBanditError(f"there is no function {function}")

    def posterior(self) -> tuple[Tensor, Tensor]:
        """Return means and deviations of all actions ``(T, F, N)`` in users' units."""
        shape = (self.trials, self.functions, int(self.actions.size))
        units = self.units()
        mean = torch.empty(shape, dtype=self.dtype, device=self.device)
        std = torch.empty_like(mean)
        for block in self.blocks():
            at = slice(block.start, block.stop)
            mean[..., at], std[..., at] = told(units, block.mean, block.std)
        if self.ranks.size == 1 or self.actions.continuous:
            return mean, std
        at = slice(*self.ranks.stretch(self.actions, BLOCK))
        moments = torch.stack([mean[..., at], std[..., at]])
        mean, std = self.ranks.whole(moments, self.actions, BLOCK)
        return mean, std

    def anywhere(self, x: Tensor, ahead: Sequence[Ahead] = ()) -> tuple[Tensor, Tensor]:
        """Solve for means and standard deviations at points ``x``, ``(T, F, n)``."""
        mean, std = zip(*[g.anywhere(x, ahead) for g in self.groups], strict=True)
        return self._ordered(mean), self._ordered(std)

    def in_contexts(
        self, space: Contextual, contexts: Tensor, ahead: Sequence[Ahead] = ()
    ) -> tuple[Tensor, Tensor]:
        """Return means and standard deviations of all choices in contexts.

        Both are ``(T, F, n, K)``. Of the contexts ``(T, n, k)`` only the last one is
        new: moments in the others are reused.
        """
        if all(group.by_choice(space) for group in self.groups):
            parts = [g.in_contexts(space, contexts, ahead) for g in self.groups]
        else:
            points = space.candidates(contexts)
            parts = [g.anywhere(points.flatten(1, 2), ahead) for g in self.groups]
        shape = contexts.shape[1], int(space.size)
        mean, std = zip(*parts, strict=True)
        return (
            self._ordered(mean).unflatten(-1, shape),
            self._ordered(std).unflatten(-1, shape),
        )

    def bounds(
        self, x: Tensor, noise: Tensor | None = None, rough: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Return the least and the greatest credible readings at ``x (T, n, d)``.

        Both are ``(T, F, n)``; see :meth:`Group.bounds`.
        """
        low, high = zip(*[g.bounds(x, noise, rough) for g in self.groups], strict=True)
        return self._ordered(low), self._ordered(high)

    def solver(
        self, ahead: Sequence[Ahead] = (), streams: Streams | None = None
    ) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        """Prepare :meth:`anywhere` for many calls at points ``(T, n, d)``.

        With ``streams`` the second result is a joint draw less its mean, one path for
        all calls, in place of deviations. Later data do not change the function.
        """
        together = not ahead and Stacked.fits(self.groups)
        if streams is None:
            if together:
                return Stacked(self.groups)
            return lambda x: self.anywhere(x, ahead)
        draws: Sequence[Path]
        if together:
            draws = paths = [group.pathwise(streams) for group in self.groups]
            if all(path.plane is None for path in paths):
                return Stacked(self.groups).drawn(paths)
        else:
            draws = [group.draw(streams) for group in self.groups]

        def drawn(x: Tensor) -> tuple[Tensor, Tensor]:
            mean, _ = self.anywhere(x, ahead)
            return mean, self._ordered([draw(x) for draw in draws])

        return drawn

    def drawn(self, x: Tensor, streams: Streams) -> Tensor:
        """Return a joint draw less its means ``(T, F, n)`` at points ``(T, n, d)``."""
        return self._ordered([group.drawn(x, streams) for group in self.groups])

    def incumbents(self, count: int) -> Tensor:
        """Return the actions tried last, ``(T, k, d)``."""
        recent = max((group.log for group in self.groups), key=len).last(count)
        if not recent:
            shape = (self.trials, 0, self.actions.dim)
            return torch.zeros(shape, dtype=torch.float64, device=self.device)
        return torch.stack([row.x.double() for row in recent], 1)

    def before(self) -> list[tuple[Sequence[Hashable], Tensor, Sequence[bool]]]:
        """Return the keys, points and trials of data from before the first round."""
        rows = max((group.log for group in self.groups), key=len)
        return [(row.keys, row.x, row.wanted) for row in rows if row.t == 0]

    def deviations(self, x: Tensor) -> Tensor:
        """Return deviations at points ``x``, ``(T, F, n)``, in spreads."""
        return self._ordered([group.deviations(x) for group in self.groups])

    def gains(self) -> Tensor:
        """Return the realised information gain of each function, ``(T, F)``."""
        return self._per_group(lambda group: group.engine.gain())

    def noises(self) -> Tensor:
        """Return the likelihood variances, ``(T, F)``, in spreads."""
        return self._ordered([group.noises() for group in self.groups])

    def has_data(self) -> Tensor:
        """Return which trials have observed each function, ``(T, F)``, on the host."""
        return self._ordered(
            [g.log.has_data(self.trials, len(g.functions)) for g in self.groups]
        )

    def engines(self) -> list[str]:
        """Return the names of the engines in use."""
        return list(dict.fromkeys(group.held.plan.name for group in self.groups))

    def describe(self) -> str:
        """Return the engines in use and the reasons for them, in words."""
        parts = []
        for group in self.groups:
            names = ["reward" if f == 0 else f"cost {f}" for f in group.functions]
            parts.append(f"{', '.join(names)}: {group.held.describe()}")
        if self.ranks.size > 1:
            split = not all(group.held.keeps_all for group in self.groups)
            parts.append(f"{self.ranks}: {'a part of the set' if split else 'all'}")
        return "; ".join(parts)

    def check_samples(self) -> None:
        """Raise if joint draws are impossible, before a round needs one."""
        for group in self.groups:
            if group.held.by_features:
                check_features(group.prior.covariance)


def _latent(link: Link, means: Tensor, variance: Tensor) -> Tensor:
    """Return latent prior means ``(T, f)`` of probabilities or rates; 0: unstated."""
    latent = link.center(link.sense * means, variance.expand(len(means)).unsqueeze(-1))
    return torch.where(means == 0, 0.0, latent)


def _told_apart(groups: list[Group], functions: Sequence[int]) -> list[Group]:
    """Split groups so that each holds only functions of the list, or none."""
    out: list[Group] = []
    split: list[Group] = []
    for group in groups:
        if 0 < len({*group.functions} & {*functions}) < len(group.functions):
            group, other = group.split([f for f in group.functions if f in functions])
            split.append(other)
        out.append(group)
    return out + split


def _each_apart(groups: list[Group], which: Callable[[Group], bool]) -> list[Group]:
    """Split the groups that ``which`` picks into groups of one function each."""
    out: list[Group] = []
    split: list[Group] = []
    for group in groups:
        while which(group) and len(group.functions) > 1:
            group, other = group.split(group.functions[-1:])
            split.append(other)
        out.append(group)
    return out + split
