"""The beliefs of one policy, reward and costs, over its action set. A value.

Functions whose prior covariance and noise agree, and whose feedback is told together,
form a *group*: one engine, one variance, several means. Feedback told apart splits it.
A change returns other beliefs and leaves these as they were. Only engines change in
place, and say for which log they stand: where that is another one, they are rebuilt.
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
from cbandit.actions import Actions
from cbandit.beliefs.gp import GP
from cbandit.errors import CBanditError
from cbandit.posterior.covariance import Covariance, Prior, one_a_trial
from cbandit.posterior.draws.features import check_features, pathwise
from cbandit.posterior.engines.choice import BEYOND, BLOCK, make_engine, plan
from cbandit.posterior.engines.protocol import Engine, Fused, Plan
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
from cbandit.posterior.refit import fit_hyperparameters, merged
from cbandit.posterior.units import Outcomes, Scale, Units, told
from cbandit.posterior.value import Value
from cbandit_kernels import SCORES, Look, kernel_matrix_ref

FEW = 8  # rows up to which they are conditioned on one by one
REACH = 8.0  # deviations from what is expected within which readings are believed
ROUGH = 1.5  # spreads, the least deviation where little is known
LEAST = 10  # readings before which too little is known of their spread
PLACES = 5  # distinct actions, likewise
NEAR = 0.5  # spreads, the deviation below which an action is known by itself


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
    by_default: bool
    """Whether all functions have the beliefs of those who know nothing."""
    rescaled: bool
    """Whether any function's outcomes are standardised."""
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
            scale = Scale(
                torch.stack(means, -1).to(device),
                noise,
                covariance.least_noise(actions),
                gp.standardize,
            )
            prior = Prior(actions, covariance, batch_shape, dtype, device)
            # decided by one rank, for free memory may differ
            chosen = ranks.first(partial(plan, engine, prior, samples))
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
            rescaled=any(gp.standardize for gp in beliefs),
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
            if part.noise is not None:  # it is scaled by its own function's spread
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
        part = Part(functions, values, ())
        groups = tuple(group.fill(t, part, mask) for group in self.groups)
        return self._with(groups=groups)

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
        groups: list[Group] = list(self.groups)
        if not due_only:
            groups = _each_apart(groups, lambda group: True)
        elif not any(group.due() for group in groups):
            return self
        fitted = [g if due_only and not g.due() else g.refit() for g in groups]
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
        """Apply what was told and return the best action under ``look``.

        The only call that changes the arrays over the set; it always runs to the end.

        Args:
            look: which score of which estimates, in units; its offset holds minus the
                thresholds.
            streams: estimates are of a joint draw from these; ``None``: of deviations.
            ahead: outstanding choices, whose variance counts as if they had been told.
        """
        if not ahead and look.beside is None and look.score in SCORES:
            if len(self.groups) == 1:
                find = self.groups[0].fused()
                if find is not None:
                    return self._fused(find, look, streams)
        blocks = self._blocks(streams, ahead)
        stretches = (
            (b.start, b.mean, b.std if b.draw is None else b.draw) for b in blocks
        )
        return scan(stretches, look, self.ranks)

    def _fused(self, find: Fused, look: Look, streams: Streams | None) -> Best:
        """The best action by the engine's one pass."""
        scale, ranks = self.groups[0].scale, self.ranks
        if scale.shifted:  # the engine's means lack the prior's
            means, offset = scale.means, look.offset
            look = replace(look, offset=means if offset is None else offset + means)
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

    def _blocks(
        self, streams: Streams | None = None, ahead: Sequence[Ahead] = ()
    ) -> Iterator[Block]:
        """One pass over this rank's actions, in units."""
        stretches = self._stretches()
        if len(self.groups) == 1:
            return self.groups[0].blocks(stretches, streams, ahead)
        passes = [group.blocks(stretches, streams, ahead) for group in self.groups]
        return map(self._whole, zip(*passes, strict=True))

    def _whole(self, blocks: Sequence[Block]) -> Block:
        """The blocks of all groups over one stretch as one."""
        mean = self._ordered([b.mean for b in blocks])
        std = self._ordered([b.std.expand(-1, b.mean.shape[1], -1) for b in blocks])
        draws = [b.draw for b in blocks if b.draw is not None]
        draw = self._ordered(draws) if draws else None
        return Block(blocks[0].start, blocks[0].stop, mean, std, draw)

    def _stretches(self) -> list[tuple[int, int]]:
        """Of this rank's actions; small sets are looked at as a whole."""
        if self.actions.continuous:
            raise CBanditError("a Box has no numbered actions")
        steps = [g.held.step for g in self.groups if g.held.step is not None]
        if not steps:
            return [(0, self.actions.size)]
        first, last = self.ranks.stretch(self.actions, BLOCK)
        return list(self.actions.stretches(min(steps), first, last))

    def _ordered(self, values: Sequence[Tensor]) -> Tensor:
        """Join values by group, ``(T, f, ...)``, in the order of functions."""
        if len(values) == 1:
            return values[0]
        order = [f for group in self.groups for f in group.functions]
        whole = torch.cat(list(values), 1)
        if order == sorted(order):
            return whole
        # by a list of numbers it would wait for the device
        return torch.stack([whole[:, order.index(f)] for f in range(len(order))], 1)

    def _per_group(self, value: Callable[[Group], Tensor]) -> Tensor:
        """Repeat what a group's functions share, ``(T, ...)``, to ``(T, F, ...)``."""
        columns = []
        for group in self.groups:
            shared = value(group).unsqueeze(1)
            shape = len(group.functions), *shared.shape[2:]
            columns.append(shared.expand(-1, *shape))
        return self._ordered(columns)

    # -- readers, in units but for posterior() ---------------------------------------

    def units(self) -> Units | None:
        """The units of all functions; ``None``: the user's own, for good."""
        if not self.rescaled:
            return None
        parts = [group.scale.units() for group in self.groups]
        return Units(*map(self._ordered, zip(*parts, strict=True)))

    def blocks(
        self, streams: Streams | None = None, ahead: Sequence[Ahead] = ()
    ) -> Iterator[Block]:
        """All actions, block by block; nothing changes, wherever one stops.

        With ``streams``, joint draws beside the means; the variances of choices
        ``ahead`` are counted as if their outcomes had come.
        """
        for group in self.groups:
            group.engine.settle()
        yield from self._blocks(streams, ahead)

    def one(self, function: int) -> Iterator[tuple[int, int, Tensor, Tensor]]:
        """One function over all actions: stretches, mean and deviation ``(T, n)``."""
        group = self._of(function)
        column = group.functions.index(function)
        group.engine.settle()
        for block in group.blocks(self._stretches()):
            std = block.std.expand(-1, len(group.functions), -1)
            yield block.start, block.stop, block.mean[:, column], std[:, column]

    def tried(self, function: int) -> tuple[Tensor, Tensor, Tensor]:
        """Where a function was seen: ``(T, U, d)``, means ``(T, U)``, which are real.

        Trials that saw fewer actions than others have places that are not.
        """
        group = self._of(function)
        history = group.engine.history
        used, weights = history.used, history.system().weights(history.used)
        mean = group.scale.mean((history.gram @ weights).mT)
        column = mean[:, group.functions.index(function)]
        return history.points[:, :used], column, history.precision[:, :used] > 0

    def _of(self, function: int) -> Group:
        for group in self.groups:
            if function in group.functions:
                return group
        raise CBanditError(f"there is no function {function}")

    def posterior(self) -> tuple[Tensor, Tensor]:
        """Means and deviations of all actions in the user's units, ``(T, F, N)``."""
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
        both = torch.stack([mean[..., at], std[..., at]])
        mean, std = self.ranks.whole(both, self.actions, BLOCK)
        return mean, std

    def anywhere(self, x: Tensor, ahead: Sequence[Ahead] = ()) -> tuple[Tensor, Tensor]:
        """Means and standard deviations at any points, ``(T, F, n)``; a dense solve."""
        mean, std = zip(*[g.anywhere(x, ahead) for g in self.groups], strict=True)
        return self._ordered(mean), self._ordered(std)

    def bounds(
        self, x: Tensor, noise: Tensor | None = None, rough: bool = False
    ) -> tuple[Tensor, Tensor]:
        """The least and the greatest reading to be believed at ``x (T, n, d)``.

        ``(T, F, n)`` each; see :meth:`Group.bounds`.
        """
        low, high = zip(*[g.bounds(x, noise, rough) for g in self.groups], strict=True)
        return self._ordered(low), self._ordered(high)

    def solver(
        self, ahead: Sequence[Ahead] = ()
    ) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        """:meth:`anywhere` as of now, for many calls at points ``(T, n, d)``."""
        if ahead or not Stacked.fits(self.groups):
            return lambda x: self.anywhere(x, ahead)
        return Stacked(self.groups)

    def draws(self, streams: Streams) -> Callable[[Tensor], Tensor]:
        """Joint draws less their means, as a function of ``x``, ``(T, F, n)``."""
        paths = [group.draw(streams) for group in self.groups]
        return lambda x: self._ordered([path(x) for path in paths])

    def incumbents(self, count: int) -> Tensor:
        """The actions tried last, ``(T, k, d)``."""
        recent = max((group.log for group in self.groups), key=len).last(count)
        if not recent:
            shape = (self.trials, 0, self.actions.dim)
            return torch.zeros(shape, dtype=torch.float64, device=self.device)
        return torch.stack([row.x.double() for row in recent], 1)

    def deviations(self, x: Tensor) -> Tensor:
        """Standard deviations at any points, ``(T, F, n)``, in the engines' units."""
        return self._per_group(
            lambda group: group.engine.history.at(x)[1].clamp_min(0).sqrt()
        )

    def gains(self) -> Tensor:
        """Realised information gain of each function, ``(T, F)``."""
        return self._per_group(lambda group: group.engine.gain())

    def noises(self) -> Tensor:
        """Likelihood variances, ``(T, F)``, in the engines' units."""
        return self._per_group(lambda group: group.noise)

    def has_data(self) -> Tensor:
        """Which trials have a value of which function, ``(T, F)`` bool, on the host."""
        return self._ordered(
            [g.log.has_data(self.trials, len(g.functions)) for g in self.groups]
        )

    def engines(self) -> list[str]:
        """The names of the engines at work."""
        return list(dict.fromkeys(group.held.plan.name for group in self.groups))

    def describe(self) -> str:
        """Which engines are at work, and why."""
        parts = []
        for group in self.groups:
            names = ["reward" if f == 0 else f"cost {f}" for f in group.functions]
            chosen = group.held.plan
            parts.append(f"{', '.join(names)}: {chosen.name} ({chosen.why})")
        if self.ranks.size > 1:
            split = not all(group.held.keeps_all for group in self.groups)
            parts.append(f"{self.ranks}: {'a part of the set' if split else 'all'}")
        return "; ".join(parts)

    def check_samples(self) -> None:
        """Fail now, not in a round, where joint draws cannot be had."""
        for group in self.groups:
            if group.held.by_features:
                check_features(group.prior.covariance)


def _row(
    group: Group, keys: Sequence[Hashable], x: Tensor, part: Part, t: int = 0
) -> Observation:
    values = part.columns(group.functions)
    return Observation(keys, x, values, part.wanted, part.noise, t)


def _told_apart(groups: list[Group], functions: Sequence[int]) -> list[Group]:
    """Groups that hold these functions alone, or none of them."""
    out: list[Group] = []
    split: list[Group] = []
    for group in groups:
        if 0 < len({*group.functions} & {*functions}) < len(group.functions):
            group, other = group.split([f for f in group.functions if f in functions])
            split.append(other)
        out.append(group)
    return out + split


def _each_apart(groups: list[Group], which: Callable[[Group], bool]) -> list[Group]:
    """The groups, of ``which`` those of a single function each."""
    out: list[Group] = []
    split: list[Group] = []
    for group in groups:
        while which(group) and len(group.functions) > 1:
            group, other = group.split(group.functions[-1:])
            split.append(other)
        out.append(group)
    return out + split


class Group(Value):
    """Functions of one prior covariance and noise whose feedback is told together.

    Args:
        gp: the specification, the first function's; they agree but for the mean.
        functions: which functions these are, 0 the reward.
        prior: the set, and the prior over it.
        scale: how outcomes enter the engine.
        plan: the engine.
        elastic: whether another engine may take its place where memory runs short.
        ranks: the processes that share the set.
    """

    gp: GP
    functions: list[int]
    prior: Prior
    scale: Scale
    ranks: Ranks
    tolerance: Tensor  # values that differ by less are as good, (T,)
    log: Log
    unfitted: int  # observations since the last fit
    fitted: bool  # whether the noise was learned from data
    forgotten: int  # observations since the last refresh
    held: Engine
    """The engine as it is; :attr:`engine` is in line with the log."""
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
            fitted=False,
            forgotten=0,
            _elastic=elastic,
            _own_noise=False,
        )
        vars(self)["held"] = self._fresh(plan)

    def __getstate__(self) -> dict[str, Any]:
        state = dict(vars(self))
        if self.held.light:  # its plan alone
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
        """The engine, brought in line with the log where it is not."""
        engine: Engine = self.held
        if engine.history.stands_for != self.log.number:
            self._rebuild(engine)
        return engine

    def _rebuild(self, engine: Engine) -> None:
        """Compute everything in the engine afresh from the log."""
        history, count = engine.history, self.scale.columns
        if history.stands_for != BLANK or engine.functions != count:
            history.stands_for = None
            engine.clear(count)
            engine.history.sharp = history.sharp  # asks the device once
        engine.history.stands_for = None
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

    # -- feedback --------------------------------------------------------------------

    def _over(self, log: Log, **more: object) -> Self:
        """The same functions with another log, whose engine is yet to be rebuilt."""
        return self._with(log=log, **{"scale": self.scale.over(log), **more})

    def append(self, row: Observation) -> Self:
        """Condition on one more observation."""
        log = self.log.enter(row)
        more: dict[str, Any] = {
            "unfitted": self.unfitted + 1,
            "_own_noise": self._own_noise or row.noise is not None,
        }
        if not self.held.takes(row.keys):
            return self._over(log, held=self._fresh(BEYOND), **more)
        if self.scale.standardize:
            if more["_own_noise"]:  # its weight depends on the spread, which moves
                return self._over(log, **more)
            more["scale"] = self.scale.counted(row)
        other, engine = self._with(log=log, **more), self.engine
        with engine.history.writing(log.number):
            engine.append(other.scale.update(row))
            if self._elastic and engine.keeps_rows:
                engine.make_room()
        return other

    def observe(self, rows: list[Observation]) -> Self:
        """Condition on many observations."""
        if len(rows) > FEW:
            unfitted = self.unfitted + len(rows)
            return self._over(self.log.merged(rows), unfitted=unfitted)
        group = self
        for row in rows:
            group = group.append(row)
        return group

    def fill(self, t: int, part: Part, mask: Tensor) -> Self:
        """Take in values that the row of round ``t`` waited for, in trials of ``mask``.

        Nothing changes where that row was dropped.
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
        change = scale.targets(full) - self.scale.targets(row)
        change *= self.scale.precision(row).unsqueeze(-1)
        engine = self.engine
        with engine.history.writing(log.number):
            engine.correct(row.keys, change, row.wanted)
        return self._with(log=log, scale=scale)

    def expire(self, first: int) -> Self:
        """Forget the observations of rounds before ``first``."""
        group = self
        while len(group.log) and group.log[0].t < first:
            group = group.forget_oldest()
        return group

    def forget_oldest(self) -> Self:
        """Take the oldest observation out again."""
        row, log = self.log[0], self.log.without_first()
        scale = self.scale.counted(row, -1)
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
        """Whether all is to be counted again from the log, now that a row is out."""
        return (
            self._own_noise or outcomes.lost or (self.held.drifts and outcomes.astray)
        )

    def _drowns(self, row: Observation) -> bool:
        history = self.engine.history
        slots, _ = history.place(row.keys, row.x, row.wanted)
        return history.drowns(slots, self.scale.precision(row), row.wanted)

    def refreshed(self, every: int) -> Self:
        """Compute narrow arrays afresh, once ``every`` reverse changes are in them."""
        if self.forgotten < every or not self.held.drifts:
            return self
        self.engine.refresh()
        return self._with(forgotten=0)

    def retarget(self, targets: Tensor) -> Self:
        """Replace all outcomes: ``targets (n, T, f)``, in the log's order."""
        pairs = zip(self.log, targets, strict=True)
        log = Log([row._replace(values=values) for row, values in pairs])
        engine, other = self.engine, self._over(log)
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
        """The same without data, on an engine of its own; hyperparameters stay."""
        engine = self._fresh(self.held.plan)
        engine.history.sharp = self.held.history.sharp  # asks the device once
        return self._over(Log(), held=engine)

    def split(self, functions: list[int]) -> tuple[Self, Self]:
        """These without some functions, and those alone."""
        rest = [f for f in self.functions if f not in functions]
        engine, parts, columns = self.engine, [], []
        for members in (rest, functions):
            places = [self.functions.index(f) for f in members]
            at = torch.tensor(places, device=self.prior.device)
            columns.append(self.scale.engine_columns(at))
            part = self._with(
                functions=members,
                scale=self.scale.narrowed(at),
                log=Log([row.columns(at) for row in self.log]),
            )
            parts.append(part)
        kept, apart = parts
        other = engine.split(*columns)
        engine.history.stands_for = kept.log.number
        other.history.stands_for = apart.log.number
        return kept, apart._with(held=other)

    # -- hyperparameters -------------------------------------------------------------

    def due(self) -> bool:
        """Whether a refit is due."""
        every = self.gp.refit_every
        return every is not None and self.unfitted >= every

    def refit(self) -> Self:
        """Fit hyperparameters to the log, for a single function."""
        if not len(self.log):
            return self._with(unfitted=0)
        prior, covariance = self.prior, self.prior.covariance
        kernel = copy.deepcopy(covariance.kernel)
        if prior.batch_shape and not kernel.batch_shape and list(kernel.parameters()):
            # from here on each trial has parameters of its own
            kernel = one_a_trial(kernel, prior.trials)
        data = merged(self.log, *self.scale.targets_of(), self.scale.least)
        noise = fit_hyperparameters(
            kernel,
            self.noise.clone(),
            replace(data, x=covariance.inputs(data.x)),
            self.gp.learn_noise,
            self.gp.noise_prior,
        )
        covariance = Covariance(kernel, covariance.dim, covariance.unit)
        least = covariance.least_noise(prior.actions)
        scale = Scale(self.scale.means, noise, least, self.scale.standardize)
        tolerance = covariance.tolerance(prior.actions, prior.dtype)
        fitted = self._with(
            unfitted=0,
            fitted=self.gp.learn_noise,
            prior=replace(prior, covariance=covariance),
            scale=scale.over(self.log),
            tolerance=tolerance.expand(prior.trials),
        )
        return fitted._with(held=fitted._fresh(self.held.plan))

    # -- looking ---------------------------------------------------------------------

    def fused(self) -> Fused | None:
        """The engine's one pass, where it knows all there is to do."""
        return None if self.scale.standardize else self.engine.fused

    def blocks(
        self,
        stretches: Iterable[tuple[int, int]],
        streams: Streams | None = None,
        ahead: Sequence[Ahead] = (),
    ) -> Iterator[Block]:
        """One pass over the set, in units."""
        blocks = self.engine.blocks(stretches, streams, self._coming(ahead))
        if not (self.scale.shifted or self.scale.standardize):
            return blocks
        return self.scale.blocks(blocks, self.prior.dtype)

    def _coming(self, ahead: Sequence[Ahead]) -> Coming | None:
        return Coming.of(ahead, self.functions, self.noise) if ahead else None

    def anywhere(self, x: Tensor, ahead: Sequence[Ahead] = ()) -> tuple[Tensor, Tensor]:
        """Means ``(T, f, n)`` and standard deviations ``(T, f, n)`` at any points.

        In units, as all that follows.
        """
        mean, var = self.engine.history.at(x, self._coming(ahead))
        # the floor keeps gradients finite where nothing is uncertain
        std = var.clamp_min(1e-300).sqrt().unsqueeze(1)
        return self.scale.mean(mean), std.expand_as(mean[:, : len(self.functions)])

    def bounds(self, x: Tensor, noise: Tensor | None, rough: bool) -> list[Tensor]:
        """The least and the greatest reading to be believed at ``x``, ``(T, f, n)``.

        In the user's units; infinite where nothing is known, and where outcomes are not
        standardised. A deviation is 1.5 spreads at least where little is known of the
        action, and without a noise that was learned from data.

        Args:
            x: ``(T, n, d)``.
            noise: the reading's own, ``(T,)``, or ``None``.
            rough: whether the beliefs hold stand-ins, and know less than they say.
        """
        units = Units(*(v.unsqueeze(-1) for v in self.scale.units()))
        if not self.scale.standardize:
            endless = units.seen.expand(-1, -1, x.shape[-2])
            return [-endless, endless]
        mean, std = self.anywhere(x)
        variance = std.square() + self.noise[:, None, None]
        if noise is not None:
            variance = (
                variance
                + devices.put(noise, self.prior.device)[:, None, None]
                / units.size.square()
            )
        deviation = variance.sqrt()
        near = std < NEAR if self.fitted and not rough else std < 0
        deviation = torch.where(near, deviation, deviation.clamp_min(ROUGH))
        places = [count >= PLACES for count in self.engine.history.distinct()]
        wide = devices.put(places, self.prior.device)[:, None, None] | (std < NEAR)
        known = units.known & (units.seen >= LEAST) & wide
        reach = torch.where(known, REACH * deviation * units.size, torch.inf)
        center = units.center + mean * units.size
        return [center - reach, center + reach]

    def draw(self, streams: Streams) -> Callable[[Tensor], Tensor]:
        """A joint draw less the mean: ``(T, n, d) -> (T, f, n)``."""
        engine, count = self.engine, len(self.functions)
        path = pathwise(engine.history, streams, engine.functions)
        return lambda x: path(x)[:, :count]


class Stacked:
    """Means and standard deviations of ``G`` groups of functions, as of now.

    A search on a box asks for few points, hundreds of times a round, and nothing is
    observed meanwhile. What does not depend on the points is prepared once, and
    functions whose kernels are of one kind are computed side by side.

    Args:
        groups: which, see :meth:`fits`.
    """

    @staticmethod
    def fits(groups: Sequence[Group]) -> bool:
        """Whether all kernels are one closed form of one kind, over as many slots.

        Of coordinates as they are: they are scaled and shifted here, no more.
        """
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
        """Both ``(T, F, n)`` in units, of points ``(T, n, d)``."""
        z = self._origins + self._rates * x.double()
        cross = kernel_matrix_ref(z, self._places, self._kind).mT
        mean = self._weights @ cross + self._shift
        half = self._halves @ cross
        prior = self._amplitude.squeeze(-1)
        if self._kind == "linear":
            prior = prior * z.square().sum(-1)
        var = prior - half.square().sum(-2)
        # the floor keeps gradients finite where nothing is uncertain
        std = var.clamp_min(1e-300).sqrt().unsqueeze(-2).expand_as(mean)
        return self._ordered(mean), self._ordered(std)

    def _ordered(self, values: Tensor) -> Tensor:
        return values.transpose(0, 1).flatten(1, 2)[:, self._back]
