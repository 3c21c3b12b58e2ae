"""The beliefs of one policy about its reward and costs, over its action set.

Beliefs are a value: a change returns new beliefs and leaves the old ones as they were.
Functions whose prior covariance and noise agree, and whose feedback is told together,
form a *group*: one engine, one variance, several means. Feedback told separately splits
the group. Only engines change in place. An engine knows which log of observations its
arrays hold; if that is not the group's log, the engine is rebuilt from the group's log.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor

from cbandit._core import checks, devices
from cbandit._core.distributed import ALONE, Ranks
from cbandit._core.randomness import Streams
from cbandit.actions import Actions, Contextual
from cbandit.beliefs.gp import GP
from cbandit.errors import CBanditError
from cbandit.posterior.covariance import Covariance, Prior, one_a_trial
from cbandit.posterior.draws.features import Pathwise, Waves, check_features
from cbandit.posterior.engines.choice import BEYOND, BLOCK, make_engine, plan
from cbandit.posterior.engines.protocol import Engine, Fused, Path, Plan
from cbandit.posterior.likelihood import Learning, merged
from cbandit.posterior.links import Link
from cbandit.posterior.look import Best, Block, among, scan
from cbandit.posterior.observations import (
    BLANK,
    Ahead,
    Coming,
    Log,
    Observation,
    Part,
    add_up,
    joined,
)
from cbandit.posterior.refit import fit_hyperparameters
from cbandit.posterior.sweeps import swept
from cbandit.posterior.units import Outcomes, Scale, Units, told
from cbandit.posterior.value import Value
from cbandit_kernels import SCORES, Look, kernel_matrix_ref

FEW = 8  # with at most so many rows, condition on one by one
REACH = 8.0  # a reading within so many deviations of what is expected is believed
ROUGH = 1.5  # spreads, the least deviation where little is known
LEAST = 10  # with fewer readings too little is known of their spread
MANY = 20  # with fewer readings a learned noise is not relied on
PLACES = 5  # with fewer distinct actions neither
FITS = 3  # alternations of fits and sweeps, for binary and counted outcomes
NEAR = 0.25  # spreads; an action of smaller deviation has data of its own
FINE = 0.25  # spreads, the least deviation there, as the learned noise may be 0
MODELLED = 4096  # most observations of a linear belief that becomes a BoTorch model
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
            chosen = ranks.first(partial(plan, engine, prior, samples, noise.amin()))
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
                    groups[place] = group.append(_row(group, keys, x, part, t))
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
        groups = _told_apart(list(self.groups), covered)
        for place, group in enumerate(groups):
            new = [
                _row(group, keys, x, part)
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

    def expire(self, first: int, refresh_every: int) -> Self:
        """Forget observations of rounds before ``first``.

        In narrow dtypes a removal leaves rounding errors, so their arrays are computed
        afresh after every ``refresh_every`` removals.
        """
        left = [group.expire(first).refreshed(refresh_every) for group in self.groups]
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
                engine.history.stands_for = None

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


def _row(
    group: Group, keys: Sequence[Hashable], x: Tensor, part: Part, t: int = 0
) -> Observation:
    values, link, outcome = part.columns(group.functions), group.scale.link, None
    if link is not None:
        tries = part.tries_of(group.functions[0]).to(values)
        outcome = torch.stack([link.sense * values[:, 0], tries], -1)
    # earlier data count as of now, if data fade
    t = t or group.now
    return Observation(
        keys, x, values, part.wanted, part.noise, t, outcome=outcome, source=part.source
    )


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


class Group(Value):
    """Functions that share a prior covariance, a noise and their observations.

    Args:
        gp: the specification of the first function; the others differ only in their
            means.
        functions: the numbers of the functions, 0 for the reward.
        prior: the set, and the prior over it.
        scale: how outcomes enter the engine.
        plan: the engine's name and the reason for it.
        elastic: whether another engine may replace it when memory runs short.
        ranks: the processes that share the set.
    """

    gp: GP
    functions: list[int]
    prior: Prior
    scale: Scale
    ranks: Ranks
    tolerance: Tensor  # values that differ by less count as equal, (T,)
    log: Log
    unfitted: int  # observations since the last fit
    fitted_to: int  # how many rows the log had at the last fit
    fitted: bool  # whether the noise was learned from many data
    forgotten: int  # observations since the last refresh
    now: int  # the current round if data fade, else 0
    held: Engine
    """The engine in its last state; :attr:`engine` brings it up to date first."""
    _elastic: bool
    _own_noise: bool

    def __init__(
        self,
        gp: GP,
        functions: list[int],
        prior: Prior,
        scale: Scale,
        plan: Plan,
        elastic: bool,
        ranks: Ranks,
    ) -> None:
        tolerance = prior.covariance.tolerance(prior.actions, prior.dtype)
        super().__init__(
            gp=gp,
            functions=functions,
            prior=prior,
            scale=scale,
            ranks=ranks,
            tolerance=tolerance.expand(prior.trials),
            log=Log(),
            unfitted=0,
            fitted_to=0,
            fitted=False,
            forgotten=0,
            now=0,
            _elastic=elastic,
            _own_noise=False,
        )
        vars(self)["held"] = self._fresh(plan)

    def __getstate__(self) -> dict[str, Any]:
        state = dict(vars(self))
        if self.held.light:  # only its plan was saved
            state |= {"held": None, "plan": self.held.plan}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        planned = state.pop("plan", None)
        super().__setstate__(state)
        if planned is None and not self.held.covers(self._stretch()):  # another rank's
            planned = self.held.plan
        if planned is not None:
            vars(self)["held"] = self._fresh(planned)

    # -- the engine ------------------------------------------------------------------

    @property
    def engine(self) -> Engine:
        """The engine, rebuilt from the log if it holds another log."""
        engine: Engine = self.held
        if engine.history.stands_for != self.log.number:
            self._rebuild(engine)
        engine.first = self.functions[0]
        if self.now:
            engine.turn(self.now)
        return engine

    def _rebuild(self, engine: Engine) -> None:
        """Rebuild the engine from the log."""
        history, count = engine.history, self.scale.columns
        if history.stands_for != BLANK or engine.functions != count:
            history.stands_for = None
            engine.clear(count)
            # saves waiting for the device again
            engine.history.sharpness = history.sharpness
        engine.history.stands_for = None
        engine.turn(self.now)
        if len(self.log):
            engine.observe([self.scale.update(row) for row in self.log])
        engine.history.stands_for = self.log.number

    def _fresh(self, plan: Plan) -> Engine:
        prior = replace(self.prior, stretch=self._stretch())
        return make_engine(plan, prior, self.scale.columns)

    def _stretch(self) -> tuple[int, int] | None:
        if self.ranks.size == 1 or self.prior.actions.continuous:
            return None
        return self.ranks.stretch(self.prior.actions, BLOCK)

    @property
    def noise(self) -> Tensor:
        """The likelihood's variance, ``(T,)``, in the engine's units."""
        return self.scale.noise

    def learned_noise(self) -> Tensor | None:
        """Return the learned noise variances ``(T, f)``, which are the engine's unit.

        ``None``: the noise is stated, and the engine's unit is 1.
        """
        return self.engine.noises(self.scale) if self.gp.conjugate else None

    def noises(self) -> Tensor:
        """Return the likelihood's variances, ``(T, f)``, in spreads."""
        noise = self.noise.unsqueeze(-1).expand(-1, len(self.functions))
        level = self.learned_noise()
        return noise if level is None else noise * level

    def merged(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return all observations merged by action, see :meth:`History.merged`."""
        if self.engine.by_slots:
            return self.engine.history.merged()
        reason = self._summed()
        if reason is not None:
            raise CBanditError(
                f"a linear belief is no BoTorch model where {reason}: read "
                "policy.posterior(x) in place of policy.model"
            )
        engine = Engine(self.prior, self.scale.columns, self.held.plan)
        engine.observe([self.scale.update(row) for row in self.log])
        return engine.history.merged()

    def _summed(self) -> str | None:
        """Return why observations are only kept as sums; ``None``: also by action."""
        if self.prior.fade is not None:
            return "what was learned fades"
        if self.prior.covariance.open:
            return "the numbers of a context are standardised as they come"
        if not self.held.by_slots and len(self.log) > MODELLED:
            return f"{len(self.log)} observations are more than {MODELLED}"
        return None

    def tried_last(self, count: int, column: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the latest actions of the log, like :meth:`Beliefs.tried`."""
        rows, prior = self.log.last(count), self.prior
        if not rows:
            points = torch.zeros(
                prior.trials, 0, prior.covariance.dim, device=prior.device
            ).double()
            return points, points[..., 0], points[..., 0] > 0
        x = torch.stack([row.x.double() for row in rows], 1)
        real = devices.put([list(row.wanted) for row in rows], prior.device).mT
        return x, self.anywhere(x)[0][:, column], real

    def aged(self, t: int) -> Self:
        """Return the group as of round ``t``, if data fade."""
        if self.prior.fade is None or t == self.now:
            return self
        return self._with(now=t)

    # -- feedback --------------------------------------------------------------------

    def _over(self, log: Log, **more: object) -> Self:
        """Return the group with another log; its engine is rebuilt when next used."""
        return self._with(log=log, **{"scale": self.scale.over(log), **more})

    def append(self, row: Observation) -> Self:
        """Condition on one more observation."""
        if self.scale.link is not None:
            row = self.aged(max(self.now, row.t))._stood_in(row, self.scale.link)
        log = self.log.enter(row)
        more: dict[str, Any] = {
            "unfitted": self.unfitted + 1,
            "_own_noise": self._own_noise or row.noise is not None,
        }
        if self.prior.fade is not None:
            more["now"] = max(self.now, row.t)
        if not self.held.takes(row.keys):
            return self._over(log, held=self._fresh(BEYOND), **more)
        if self.prior.covariance.open and self._reframed(row):
            return self._over(log, **more)
        if self.scale.standardize:
            if more["_own_noise"]:  # the weight depends on the spread, which changes
                return self._over(log, **more)
        if self.scale.standardize or self.scale.link is not None:
            more["scale"] = self.scale.counted(row)
        other, engine = self._with(log=log, **more), self.engine
        with engine.history.writing(log.number):
            engine.append(other.scale.update(row))
            if self._elastic and engine.keeps_rows:
                engine.make_room()
        return other

    def _reframed(self, row: Observation) -> bool:
        """Return whether a late row changes how inputs are standardised."""
        later = range(self.log.first_of(row.t + 1), len(self.log))
        if not later:
            return False
        flags = [self.log[place].wanted for place in later]
        return self.engine.reframed(row.wanted, flags)

    def observe(self, rows: list[Observation]) -> Self:
        """Condition on many observations."""
        if len(rows) > FEW and (self.scale.link is None or self._summed() is None):
            log, unfitted = self.log.merged(rows), self.unfitted + len(rows)
            if self.scale.link is None:
                return self._over(log, unfitted=unfitted)
            return self._agreed(log, unfitted=unfitted, _own_noise=True)
        group = self
        for row in rows:
            group = group.append(row)
        return group

    def _stood_in(self, row: Observation, link: Link) -> Observation:
        """Return a row with its outcome's current stand-in."""
        if row.outcome is None:
            raise CBanditError("the observation holds no binary or counted outcome")
        mean, var = self.engine.history.at(row.x.unsqueeze(1).double())
        share, tries = row.outcome.unbind(-1)
        center = (mean[:, 0] + self.scale.means).squeeze(-1)
        var = var.squeeze(-1).maximum(self.scale.least)
        reading = link.stand_in(share, tries, center, var)
        values, noise = reading.target.unsqueeze(-1), reading.precision.reciprocal()
        return row._replace(values=values, noise=noise)

    def _agreed(self, log: Log, **more: object) -> Self:
        """Return the group with another log, after a sweep of its stand-ins.

        If observations are only kept as sums, the stand-ins stay as they were made.
        """
        if self.scale.link is not None and len(log) and self._summed() is None:
            link, covariance = self.scale.link, self.prior.covariance
            log = swept(log, link, covariance, self.scale.means)
        return self._over(log, **more)

    def fill(self, t: int, part: Part, mask: Tensor) -> Self:
        """Add the values that round ``t`` waited for, in the trials of ``mask``.

        Nothing changes if the round was forgotten.
        """
        functions = [f for f in self.functions if f in part.functions]
        place = self.log.first_of(t)
        if not functions or place == len(self.log) or self.log[place].t != t:
            return self
        row, come = self.log[place], mask.unsqueeze(-1)
        if row.arrived is None:
            raise CBanditError(f"the observation of round {t} waits for nothing")
        values, arrived = row.values.clone(), row.arrived.clone()
        new = part.columns(functions)
        for j, f in enumerate(functions):
            column = self.functions.index(f)
            at = slice(column, column + 1)
            values[:, at] = torch.where(come, new[:, j : j + 1], values[:, at])
            arrived[:, at] |= come
        full = row._replace(values=values, arrived=arrived)
        log, scale = self.log.replaced(place, full), self.scale
        if scale.standardize:
            scale = scale.counted(full._replace(noise=None, arrived=come))
        before = self.scale.update(row)
        after = before._replace(values=scale.targets(full))
        engine = self.engine
        with engine.history.writing(log.number):
            engine.correct(before, after)
        return self._with(log=log, scale=scale)

    def expire(self, first: int) -> Self:
        """Forget the observations of rounds before ``first``."""
        group = self
        while len(group.log) and group.log[0].t < first:
            group = group.forget_oldest()
        return group

    def forget_oldest(self) -> Self:
        """Forget the oldest observation."""
        row, log = self.log[0], self.log.without_first()
        scale = self.scale.counted(row, -1)
        if scale.drained(self.scale):
            scale = scale.over(log)
        other = self._with(log=log, scale=scale, forgotten=self.forgotten + 1)
        if scale.standardize and self._recounted(scale.outcomes):
            return other._over(log)
        if self._own_noise and self._drowns(row):
            return other
        engine = self.engine
        with engine.history.writing(log.number):
            engine.forget(scale.update(row))
        return other

    def _recounted(self, outcomes: Outcomes) -> bool:
        """Return whether statistics must be recounted after a row was removed."""
        return (
            self._own_noise or outcomes.lost or (self.held.drifts and outcomes.astray)
        )

    def _drowns(self, row: Observation) -> bool:
        if not self.held.by_slots:
            return True  # sums with other observations would keep its rounding error
        history = self.engine.history
        slots, _ = history.place(row.keys, row.x, row.wanted)
        return history.drowns(slots, self.scale.precision(row), row.wanted)

    def refreshed(self, every: int) -> Self:
        """Compute arrays of narrow dtype afresh after every ``every`` removals."""
        if self.forgotten < every or not self.held.drifts:
            return self
        self.engine.refresh()
        return self._with(forgotten=0)

    def retarget(self, target: Callable[[Any], Tensor]) -> Self:
        """Replace all outcomes by what ``target`` makes of their sources."""
        if not len(self.log):
            return self
        log = Log([row._replace(values=target(row.source)) for row in self.log])
        engine, other = self.engine, self._over(log)
        if not engine.by_slots:
            return other
        history, slots, changes = engine.history, [], []
        for row in log:
            slots.append(history.place(row.keys, row.x, row.wanted)[0])
            update = other.scale.update(row)
            changes.append(update.values * update.precision.unsqueeze(-1))
        weighted = torch.zeros_like(history.weighted)
        add_up(weighted.mT, slots, torch.stack(changes))
        with history.writing(log.number):
            engine.revise(weighted[..., : history.used])
        return other

    def emptied(self) -> Self:
        """Return the group without data, on a new engine, with its hyperparameters."""
        engine = self._fresh(self.held.plan)
        # saves waiting for the device
        engine.history.sharpness = self.held.history.sharpness
        return self._over(Log(), held=engine)

    def forget(self, where: Sequence[bool]) -> Self:
        """Drop the observations of the trials ``where (T,)``."""
        rows = []
        for row in self.log:
            left = [w and not gone for w, gone in zip(row.wanted, where, strict=True)]
            rows += [row._replace(wanted=left)] * any(left)
        return self._over(Log(rows))

    def over(self, actions: Actions) -> Self:
        """Return the group over a set in which a category has gained a value."""
        covariance, dtype = self.prior.covariance.over(actions), self.prior.dtype
        grown = self._with(
            prior=replace(self.prior, actions=actions, covariance=covariance),
            # an action of a grid has another number now
            log=Log([row._replace(keys=actions.keys(row.x)) for row in self.log]),
            tolerance=covariance.tolerance(actions, dtype).expand(self.prior.trials),
        )
        return grown._with(held=grown._fresh(self.held.plan))

    def split(self, functions: list[int]) -> tuple[Self, Self]:
        """Return the group without the functions, and a group of the functions."""
        others = [f for f in self.functions if f not in functions]
        engine, parts, columns = self.engine, [], []
        for members in (others, functions):
            places = [self.functions.index(f) for f in members]
            at = torch.tensor(places, device=self.prior.device)
            columns.append(self.scale.engine_columns(at))
            part = self._with(
                functions=members,
                scale=self.scale.narrowed(at),
                log=Log([row.columns(at) for row in self.log]),
            )
            parts.append(part)
        remaining, split = parts
        new_engine = engine.split(*columns)
        engine.history.stands_for = remaining.log.number
        new_engine.history.stands_for = split.log.number
        return remaining, split._with(held=new_engine)

    # -- hyperparameters -------------------------------------------------------------

    @property
    def fits(self) -> bool:
        """Whether there is something to fit, or stand-ins to sweep."""
        return self.scale.link is not None or self._learns

    @property
    def _learns(self) -> bool:
        gp, kernel = self.gp, self.prior.covariance.kernel
        return gp.learn_noise or gp.learn_mean or bool(list(kernel.parameters()))

    def due(self) -> bool:
        """Return whether a refit is due."""
        wait = self.gp.wait(self.fitted_to)
        return wait is not None and self.unfitted >= wait

    def refit(self) -> Self:
        """Fit the hyperparameters of a single function to the log.

        Stand-ins of binary and counted outcomes are swept before and after. The slope
        of their evidence is then the slope of the stand-ins' likelihood, so where
        alternating fits and sweeps converge, the evidence is stationary.
        """
        if not len(self.log):
            return self._with(unfitted=0)
        if self.scale.link is None:
            return self._fitted()
        group = self._agreed(self.log, unfitted=0, fitted_to=len(self.log))
        for _ in range(FITS if group._learns else 0):
            group = group._fitted()
            group = group._agreed(group.log)
        return group

    def _fitted(self) -> Self:
        """Return the group with hyperparameters fitted to its current log."""
        prior, covariance = self.prior, self.prior.covariance
        kernel = copy.deepcopy(covariance.kernel)
        if prior.batch_shape and not kernel.batch_shape and list(kernel.parameters()):
            # from here on each trial has its own parameters
            kernel = one_a_trial(kernel, prior.trials)
        data = merged(self.log, *self.scale.targets_of(), self.scale.least)
        gp, data = self.gp, replace(data, x=covariance.inputs(data.x))
        middle = self.scale.middle() - self.scale.means
        if self.scale.link is not None and gp.learn_mean:
            data = data.less(middle)  # outcomes with a link are not centred
        noise, means = fit_hyperparameters(
            kernel,
            self.noise.clone(),
            data,
            Learning(gp.learn_noise, gp.learn_mean, gp.noise_prior, bool(gp.unit)),
        )
        covariance = covariance.with_kernel(kernel)
        least = covariance.least_noise(prior.actions)
        constants = means.unsqueeze(-1) if gp.learn_mean else None
        if constants is not None and self.scale.link is not None:
            constants = constants + middle
        scale = self.scale.fitted(noise, least, constants)
        tolerance = covariance.tolerance(prior.actions, prior.dtype)
        fitted = self._with(
            unfitted=0,
            fitted_to=len(self.log),
            fitted=self.gp.learn_noise and len(self.log) >= MANY,
            prior=replace(prior, covariance=covariance),
            scale=scale.over(self.log),
            tolerance=tolerance.expand(prior.trials),
        )
        return fitted._with(held=fitted._fresh(self.held.plan))

    # -- looking ---------------------------------------------------------------------

    def fused(self, ahead: Sequence[Ahead] = ()) -> Fused | None:
        """Return the engine's pass that updates and scores, if it has one."""
        scale = self.scale
        apart = ahead and not self.held.opens
        if scale.standardize or scale.link or apart:
            return None
        find = self.engine.fused
        return partial(find, ahead=self._coming(ahead)) if find and ahead else find

    def blocks(
        self,
        stretches: Iterable[tuple[int, int]],
        streams: Streams | None = None,
        ahead: Sequence[Ahead] = (),
    ) -> Iterator[Block]:
        """Yield blocks of the set, in units."""
        blocks = self.engine.blocks(stretches, streams, self._coming(ahead))
        if not (self.scale.shifted or self.scale.standardize):
            return blocks
        return self.scale.blocks(blocks, self.prior.dtype, self.learned_noise())

    def _coming(self, ahead: Sequence[Ahead]) -> Coming | None:
        if not ahead:
            return None
        if self.scale.link is None:
            return Coming.of(ahead, self.functions, self.noise)
        coming = Coming.of(ahead, self.functions, torch.ones_like(self.noise))
        if coming is None:
            return None
        mean = self.engine.history.at(coming.places())[0][:, 0] + self.scale.means
        precision = self.scale.link.information(mean) * coming.precision
        return coming._replace(precision=precision)

    def anywhere(self, x: Tensor, ahead: Sequence[Ahead] = ()) -> tuple[Tensor, Tensor]:
        """Solve for means and deviations ``(T, f, n)`` at points ``x``, in units."""
        return self._in_units(*self.engine.history.at(x, self._coming(ahead)))

    def _in_units(self, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        """Convert an engine's means and variances to means and deviations in units."""
        # the floor keeps gradients finite where the variance is 0
        std = var.clamp_min(1e-300).sqrt_().unsqueeze(1)
        return self.scale.mean(mean), self._of_each(std)

    def by_choice(self, space: Contextual) -> bool:
        """Return whether each choice has its own weights, whatever the context."""
        weights = not self.held.by_slots and space.categorical
        return weights and self.prior.covariance.blocks == space.size

    def in_contexts(
        self, space: Contextual, contexts: Tensor, ahead: Sequence[Ahead]
    ) -> tuple[Tensor, Tensor]:
        """Return means and deviations of all choices in contexts, in units.

        Both are ``(T, f, n K)``. The group must pass :meth:`by_choice`.
        """
        coming = self._coming(ahead)
        mean, var = self.engine.recent(contexts, space.of_first, coming)
        return self._in_units(mean.flatten(2), var.flatten(1))

    def deviations(self, x: Tensor) -> Tensor:
        """Return deviations at points ``x``, ``(T, f, n)``, in spreads."""
        var = self.engine.history.at(x)[1]
        return self._of_each(var.clamp_min(0).sqrt().unsqueeze(1))

    def _of_each(self, std: Tensor) -> Tensor:
        """Return deviations ``(T, 1, n)`` for each function, in spreads."""
        level = self.learned_noise()
        if level is None:
            return std.expand(-1, len(self.functions), -1)
        return std * level.sqrt().unsqueeze(-1)

    def bounds(self, x: Tensor, noise: Tensor | None, rough: bool) -> list[Tensor]:
        """Return the least and the greatest credible reading at ``x``, ``(T, f, n)``.

        They are in the user's units, and infinite if nothing is known or outcomes are
        not standardised. The deviation counts as at least 1.5 spreads if little is
        known of the action, or if the noise was not learned from many data; otherwise
        as at least a quarter of a spread.

        Args:
            x: ``(T, n, d)``.
            noise: the reading's own variance, ``(T,)``; ``None``: the belief's.
            rough: whether some data are stand-ins for feedback still to come.
        """
        center, size, known, seen = (v.unsqueeze(-1) for v in self.scale.units()[:4])
        if not self.scale.standardize:
            endless = seen.expand(-1, -1, x.shape[-2])
            return [-endless, endless]
        mean, std = self.anywhere(x)
        variance = std.square() + self.noises().unsqueeze(-1)
        if noise is not None:
            variance = (
                variance
                + devices.put(noise, self.prior.device)[:, None, None] / size.square()
            )
        deviation = variance.sqrt()
        learned = self.fitted or self.gp.conjugate
        near = std < NEAR
        fine = near if learned and not rough else torch.zeros_like(near)
        deviation = deviation.maximum(torch.where(fine, FINE, ROUGH))
        known = known & (seen >= LEAST)
        places = [count >= PLACES for count in self.engine.history.distinct()]
        if not all(places):
            wide = devices.put(places, self.prior.device)[:, None, None]
            known = known & (wide | near)
        reach = torch.where(known, REACH * deviation * size, torch.inf)
        center = center + mean * size
        return [center - reach, center + reach]

    def pathwise(self, streams: Streams) -> Pathwise:
        """Draw a joint path less its mean by waves; the engine must keep slots."""
        engine, count = self.engine, len(self.functions)
        path = Pathwise.drawn(engine.history, streams, engine.functions)
        return path.of(slice(count))

    def draw(self, streams: Streams) -> Path:
        """Draw a joint path less its mean: a function ``(T, n, d) -> (T, f, n)``."""
        if self.held.by_slots:
            return self.pathwise(streams)
        count, noise = len(self.functions), self.learned_noise()
        path = self.engine.path(streams)
        if noise is None:
            return lambda x: path(x)[:, :count]
        size = noise.sqrt().unsqueeze(-1)
        return lambda x: path(x)[:, :count] * size

    def drawn(self, x: Tensor, streams: Streams) -> Tensor:
        """Return a joint draw less its mean, ``(T, f, n)``, at ``x (T, n, d)``."""
        count, level = len(self.functions), self.learned_noise()
        draw = self.engine.drawn(x, streams, count)
        return draw if level is None else draw * level.sqrt().unsqueeze(-1)


class Stacked:
    """Means and standard deviations of ``G`` groups, for many calls without updates.

    A search on a box asks for a few points hundreds of times a round, with no new
    observation. What does not depend on the points is prepared once, and functions with
    kernels of the same kind are computed together.

    Args:
        groups: the groups, which must pass :meth:`fits`.
    """

    @staticmethod
    def fits(groups: Sequence[Group]) -> bool:
        """Return whether these groups can be computed together.

        Each kernel must be one closed form, of the same kind and with as many slots,
        and its coordinates may only be scaled and shifted.
        """
        if not all(group.held.by_slots for group in groups):
            return False
        of = [group.prior.covariance for group in groups]
        kinds = {c.kinds if c.forms and not c.bent else () for c in of}
        used = {group.engine.history.system().root.shape for group in groups}
        functions = {len(group.functions) for group in groups}
        alike = len(kinds) == len(used) == len(functions) == 1
        return alike and len(kinds.pop()) == 1 and used.pop()[-1] > 0

    def __init__(self, groups: Sequence[Group]) -> None:
        order = [f for group in groups for f in group.functions]
        back = [order.index(f) for f in range(len(order))]
        self._back = devices.put(back, groups[0].prior.device)
        self._kind = groups[0].prior.covariance.kinds[0]
        rates, origins, places, halves, amplitudes = [], [], [], [], []
        weights, shifts = [], []
        trials = groups[0].prior.trials
        for group in groups:
            covariance, history = group.prior.covariance, group.engine.history
            system = history.system()
            zero = system.root.new_zeros(1, covariance.dim)
            ends = [covariance.scaled(at)[0] for at in (zero, zero + 1)]
            origins.append(ends[0].expand(trials, 1, -1))
            rates.append((ends[1] - ends[0]).expand(trials, 1, -1))
            points = covariance.scaled(history.places(system))[0]
            places.append(points.expand(trials, -1, -1))
            eye = torch.diag_embed(system.root)
            halves.append(
                torch.linalg.solve_triangular(system.factor, eye, upper=False)
            )
            weight, shift = group.scale.weights(system.alpha)
            weights.append(weight)
            shifts.append(shift)
            ones = torch.ones(trials, 1, 1, dtype=torch.float64, device=zero.device)
            amplitudes.append(covariance.times(ones).squeeze(-1))
        self._rates, self._origins = torch.stack(rates), torch.stack(origins)
        self._places, self._halves = torch.stack(places), torch.stack(halves)
        self._amplitude = torch.stack(amplitudes).unsqueeze(-1)  # G x T x 1 x 1
        self._weights = torch.stack(weights) * self._amplitude
        self._halves = self._halves * self._amplitude
        self._shift = torch.stack(shifts).unsqueeze(-1)  # G x T x f x 1

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return means and deviations ``(T, F, n)`` at ``x (T, n, d)``, in units."""
        z, cross = self._cross(x)
        mean = self._weights @ cross + self._shift
        half = self._halves @ cross
        prior = self._amplitude.squeeze(-1)
        if self._kind == "linear":
            prior = prior * z.square().sum(-1)
        var = prior - half.square().sum(-2)
        # the floor keeps gradients finite where the variance is 0
        std = var.clamp_min(1e-300).sqrt().unsqueeze(-2).expand_as(mean)
        return self._ordered(mean), self._ordered(std)

    def drawn(
        self, paths: Sequence[Pathwise]
    ) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        """Return a function of points that gives means and draws less the means.

        ``paths`` are the groups' paths, which must consist of waves.
        """
        weights = torch.stack([path.weights.mT for path in paths]) * self._amplitude
        parts = []
        for path in paths:
            zero = weights.new_zeros(1, path.covariance.dim)
            low, high = (path.covariance.inputs(at) for at in (zero, zero + 1))
            if path.waves is not None:
                parts.append(path.waves.along(low, high - low))
        waves = Waves(*map(torch.stack, zip(*parts, strict=True)))

        def at(x: Tensor) -> tuple[Tensor, Tensor]:
            _, cross = self._cross(x)
            mean = self._weights @ cross + self._shift
            draw = waves(x) - weights @ cross
            return self._ordered(mean), self._ordered(draw)

        return at

    def _cross(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return scaled points, and their prior covariances with the tried actions."""
        z = self._origins + self._rates * x.double()
        return z, kernel_matrix_ref(z, self._places, self._kind).mT

    def _ordered(self, values: Tensor) -> Tensor:
        return values.transpose(0, 1).flatten(1, 2)[:, self._back]
