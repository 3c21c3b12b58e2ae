"""The beliefs of one policy about its reward and costs, over its action set.

Beliefs are a value: a change returns new beliefs and leaves the old ones as they were.
Functions whose prior covariance and noise agree, and whose feedback is told together,
form a *group*: one engine, one variance, several means. Feedback told separately splits
the group. A group keeps the log and the hyperparameters; what is read of all functions
is put together here. Only engines change in place. An engine knows which log of
observations its arrays hold; if that is not the group's log, the engine is rebuilt from
the group's log.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor

from cbandit._core import checks, devices
from cbandit._core.distributed import ALONE, Ranks
from cbandit._core.randomness import Streams
from cbandit._core.values import copy_with
from cbandit.actions import Actions, Contextual
from cbandit.beliefs.gp import GP
from cbandit.errors import CBanditError
from cbandit.posterior.covariance import Covariance, Prior
from cbandit.posterior.draws.features import Pathwise, check_features
from cbandit.posterior.engines.choice import BLOCK, plan
from cbandit.posterior.engines.protocol import Dictionary, Fused
from cbandit.posterior.group import Group, new_engine
from cbandit.posterior.log import Observation
from cbandit.posterior.look import Best, Block, among, scan
from cbandit.posterior.pending import Ahead
from cbandit.posterior.prior_mean import PriorMean
from cbandit.posterior.stacked import Stacked
from cbandit.posterior.units import Scale, Units, told
from cbandit_kernels import SCORES, Look

TRIED = 512  # how many tried actions are recomputed if the engine does not keep them


@dataclass(frozen=True, eq=False)
class Beliefs:
    """The beliefs of a policy about all its functions, over one action set.

    Args:
        groups: the functions, by the engine that they share.
        order: the place of each function among the groups' functions, ``(F,)``;
            ``None``: these are in order.
        functions: ``F``, the number of functions.
        by_default: whether all have the beliefs of :meth:`cbandit.GP.default`.
        rescaled: whether any function's outcomes are standardised, or have a link.
        fades: whether data fade from round to round.
    """

    groups: tuple[Group, ...]
    order: Tensor | None
    functions: int
    by_default: bool
    rescaled: bool
    fades: bool

    @classmethod
    def start(
        cls,
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
    ) -> Self:
        """Return beliefs without data.

        Args:
            beliefs: one specification a function, the reward's first.
            actions: a finite set, a product grid or a box.
            batch_shape: ``()`` or ``(trials,)``.
            dtype: the dtype of arrays over the set (those with a covariance are
                float64).
            device: where the arrays live.
            engine: a name, or ``"auto"``.
            samples: whether joint draws will be asked for.
            apart: whether every function has its own engine.
            ranks: the processes that share the set; each keeps and scans its own part.
            limits: the costs' thresholds ``(T, m)``, which set the units of binary and
                counted costs.
            dictionary: how the sketch engine draws its dictionaries.
        """
        groups: list[Group] = []
        for members in _sharing(beliefs, apart):
            gp = beliefs[members[0]].copy()
            covariance = Covariance.of(gp.kernel, actions, gp.unit).to(device)
            covariance.check_resolution(actions, dtype)
            noise = checks.per_trial("noise", gp.noise, batch_shape).to(device)
            largest, limit = covariance.largest(actions), None
            means = PriorMean.of(
                [beliefs[f] for f in members], actions, batch_shape, device, largest
            )
            if gp.outcome is not None and limits is not None and members[0]:
                limit = limits[:, members[0] - 1 : members[0]].to(device)
            least = covariance.least_noise(actions)
            scale = Scale.start(means, noise, least, gp.standardize, limit=limit)
            fade = None
            if gp.fade is not None:
                fade = checks.per_trial("fade", gp.fade, batch_shape).to(device)
            prior = Prior(actions, covariance, batch_shape, dtype, device, fade=fade)
            # one rank decides, as ranks may differ in free memory
            asked = engine, prior, samples, noise.amin(), dictionary
            chosen = ranks.first(partial(plan, *asked))
            held, elastic = new_engine(chosen, prior, scale, ranks), engine == "auto"
            groups.append(Group(gp, members, prior, scale, ranks, held, elastic))
        return cls(
            tuple(groups),
            _order(groups),
            functions=len(beliefs),
            by_default=all(gp.by_default for gp in beliefs),
            rescaled=any(gp.in_spreads or gp.outcome for gp in beliefs),
            fades=any(gp.fade is not None for gp in beliefs),
        )

    def _with(self, groups: Sequence[Group]) -> Self:
        """Return the beliefs with other groups; themselves if all are the same."""
        if len(groups) > len(self.groups):
            return copy_with(self, groups=tuple(groups), order=_order(groups))
        if all(map(operator.is_, groups, self.groups)):
            return self
        return copy_with(self, groups=tuple(groups))

    # -- what all functions have in common -------------------------------------------

    @property
    def prior(self) -> Prior:
        """One group's prior; its set, trials, dtype and device are those of all."""
        return self.groups[0].prior

    @property
    def actions(self) -> Actions:
        """The action set."""
        return self.prior.actions

    @property
    def ranks(self) -> Ranks:
        """The processes that share the set."""
        return self.groups[0].ranks

    @property
    def dated(self) -> bool:
        """Whether it matters which round an outcome is of.

        It does if data fade, and if inputs are standardised in the order of rounds.
        """
        return self.fades or any(g.prior.covariance.open for g in self.groups)

    # -- feedback --------------------------------------------------------------------

    def absorb(self, observations: Sequence[Observation]) -> Self:
        """Condition on observations, in the order of their choices."""
        groups: Sequence[Group] = self.groups
        for row in observations:
            if row.noise is not None:  # it is scaled by the spread of its function
                groups = _each_apart(groups, lambda group: group.scale.scaled)
            groups = _told_apart(groups, row.functions)
        heard = []
        for group in groups:
            rows = [o for o in observations if group.functions[0] in o.functions]
            heard.append(group.absorb(rows) if rows else group)
        return self._with(heard)

    def await_feedback(
        self, keys: Sequence[Hashable], x: Tensor, t: int, limits: Tensor
    ) -> Self:
        """Add a choice whose feedback has not come yet.

        Until the feedback comes, the reward's prior mean and the costs' thresholds
        ``limits (T, m)`` stand in for it.
        """
        every, groups = [True] * len(keys), []
        for group in self.groups:
            values = group.scale.expected(x).clone()
            for column, f in enumerate(group.functions):
                if f > 0:
                    values[:, column] = limits[:, f - 1]
            arrived = torch.zeros_like(values, dtype=torch.bool)
            of = group.functions, keys, x, values, every
            groups.append(group.append(Observation(*of, t=t, arrived=arrived)))
        return self._with(groups)

    def fill(self, t: int, functions: list[int], values: Tensor, mask: Tensor) -> Self:
        """Add feedback of round ``t``: ``values (T, f)`` in the trials of ``mask``.

        ``mask`` is ``(T,)``; feedback of a forgotten round changes nothing.
        """
        return self._with([g.fill(t, functions, values, mask) for g in self.groups])

    def expire(self, first: int) -> Self:
        """Forget observations of rounds before ``first``."""
        return self._with([group.expire(first) for group in self.groups])

    def aged(self, t: int) -> Self:
        """Return the beliefs as of round ``t``, if data fade."""
        return self._with([group.aged(t) for group in self.groups])

    def refit(self, due_only: bool = False) -> Self:
        """Fit all hyperparameters, or with ``due_only`` only those due for a refit."""
        if due_only:
            return self._with([g.refit() if g.due() else g for g in self.groups])
        groups = _each_apart(self.groups, lambda group: group.fits)
        return self._with([g.refit() if g.fits else g for g in groups])

    def retarget(
        self, target: Callable[[Any], Tensor], fresh: Self | None = None
    ) -> Self:
        """Compute the outcomes of a single function anew from their sources.

        Args:
            target: maps a ``source`` to outcomes ``(T, 1)``.
            fresh: beliefs without data, which get the data; ``None``: these keep them.
        """
        (group,) = self.groups
        rows = [row._replace(values=target(row.source)) for row in group.log]
        if fresh is None:
            return self._with([group.retarget(rows)])
        return fresh.absorb(rows)

    def over(self, actions: Actions) -> Self:
        """Return the beliefs over a set in which a category has gained a value."""
        return self._with([group.over(actions) for group in self.groups])

    def forget_all(self) -> Self:
        """Drop all data but keep the hyperparameters."""
        return self._with([group.emptied() for group in self.groups])

    def forget(self, where: Sequence[bool]) -> Self:
        """Drop all data of the trials ``where (T,)``, but keep the hyperparameters."""
        return self._with([group.forget(where) for group in self.groups])

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
            every = [g.prior.tolerance for g in self.groups if max(g.functions) > 0]
            return every[0] if len(every) == 1 else torch.stack(every).amax(0)
        return self._find(0)[0].prior.tolerance

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
        whole = torch.cat(list(values), 1)
        if self.order is None:
            return whole
        return whole.index_select(1, self.order.to(whole.device))

    # -- readers; all but posterior() are in units ----------------------------------

    def units(self) -> Units | None:
        """Return the units of all functions; ``None`` if nothing is rescaled."""
        if not self.rescaled:
            return None
        parts = [group.scale.spreads for group in self.groups]
        if len(parts) == 1:
            return parts[0]
        links = {
            f: link
            for group, part in zip(self.groups, parts, strict=True)
            for f, link in zip(group.functions, part.links, strict=True)
        }
        center, size, known, seen = (
            self._ordered(column)
            for column in zip(*(part[:4] for part in parts), strict=True)
        )
        of = tuple(links[f] for f in range(self.functions))
        return Units(center, size, known, seen, of)

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
        group, column = self._find(function)
        group.engine.settle()
        for block in group.blocks(self._stretches()):
            std = block.std.expand(-1, len(group.functions), -1)
            yield block.start, block.stop, block.mean[:, column], std[:, column]

    def tried(self, function: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the actions at which a function was observed, at least the latest.

        Returns points ``(T, U, d)``, posterior means ``(T, U)``, and a mask ``(T, U)``
        that is false for padding in trials with fewer actions.
        """
        group, column = self._find(function)
        if not group.held.by_slots:
            points, real = _last_actions(group, TRIED)
        else:
            history = group.engine.history
            points = history.points[:, : history.used]
            real = history.precision[:, : history.used] > 0
        if not points.shape[1]:
            return points, points[..., 0], points[..., 0] > 0
        if group.held.by_slots and group.held.solves:
            weights = history.system().weights(history.used)
            mean = group.engine.raised((history.gram @ weights).mT, points)
            mean = group.scale.mean(mean)
        else:
            mean, _ = group.moments(*group.engine.at(points))
        return points, mean[:, column], real

    def _find(self, function: int) -> tuple[Group, int]:
        """Return a function's group, and its place there."""
        for group in self.groups:
            if function in group.functions:
                return group, group.functions.index(function)
        raise CBanditError(f"there is no function {function}")

    def posterior(self) -> tuple[Tensor, Tensor]:
        """Return means and deviations of all actions ``(T, F, N)`` in users' units."""
        prior, units = self.prior, self.units()
        shape = prior.trials, self.functions, int(prior.actions.size)
        mean = torch.empty(shape, dtype=prior.dtype, device=prior.device)
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
        return self._moments(lambda group: group.engine.at(x, group.coming(ahead)))

    def _moments(
        self, look: Callable[[Group], tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, Tensor]:
        """Return means and deviations ``(T, F, n)``.

        ``look`` returns a group's means less prior means ``(T, f, n)``, and variances
        ``(T, n)``, by its engine.
        """
        parts = [group.moments(*look(group)) for group in self.groups]
        mean, std = zip(*parts, strict=True)
        return self._ordered(mean), self._ordered(std)

    def in_contexts(
        self, space: Contextual, contexts: Tensor, ahead: Sequence[Ahead] = ()
    ) -> tuple[Tensor, Tensor]:
        """Return means and standard deviations of all choices in contexts.

        Both are ``(T, F, n, K)``. Of the contexts ``(T, n, k)`` only the last one is
        new: moments in the others are reused.
        """

        def recent(group: Group) -> tuple[Tensor, Tensor]:
            engine, coming = group.engine, group.coming(ahead)
            mean, var = engine.recent(contexts, space.of_first, coming)
            return mean.flatten(2), var.flatten(1)

        if all(group.by_choice(space) for group in self.groups):
            mean, std = self._moments(recent)
        else:
            points = space.candidates(contexts)
            mean, std = self.anywhere(points.flatten(1, 2), ahead)
        shape = contexts.shape[1], int(space.size)
        return mean.unflatten(-1, shape), std.unflatten(-1, shape)

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
                return Stacked(self.groups, self._ordered)
            return lambda x: self.anywhere(x, ahead)
        paths = [group.path(streams) for group in self.groups]
        waves = [p for p in paths if isinstance(p, Pathwise) and p.plane is None]
        if together and len(waves) == len(paths):
            return Stacked(self.groups, self._ordered).drawn(waves)

        def drawn(x: Tensor) -> tuple[Tensor, Tensor]:
            mean, _ = self.anywhere(x, ahead)
            return mean, self._ordered([path(x) for path in paths])

        return drawn

    def drawn(self, x: Tensor, streams: Streams) -> Tensor:
        """Return a joint draw less its means ``(T, F, n)`` at points ``(T, n, d)``."""
        draws = []
        for group in self.groups:
            draw = group.engine.drawn(x, streams, len(group.functions))
            draws.append(group.in_spreads(draw))
        return self._ordered(draws)

    def jointly(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return means ``(T, F, n)`` and covariances ``(T, F, n, n)`` at points.

        They are in the user's units, latent for functions with a link. The points ``x``
        are ``(n, d)`` or ``(T, n, d)``.
        """
        mean, units = self.anywhere(x)[0].double(), self.units()
        parts = []
        for group in self.groups:
            between = group.engine.between(x.double()).unsqueeze(1)
            level = group.learned_noise()
            if level is not None:
                between = between * level[..., None, None]
            parts.append(between.expand(-1, len(group.functions), -1, -1))
        covariance = self._ordered(parts)
        covariance = torch.add(covariance, covariance.mT).mul_(0.5)
        if units is None:
            return mean, covariance
        linked = torch.tensor([link is not None for link in units.links])
        size = torch.where(linked.to(units.size.device), 1.0, units.size)
        center = units.center.unsqueeze(-1)
        size = size.unsqueeze(-1)
        return center + size * mean, covariance * size.square().unsqueeze(-1)

    def incumbents(self, count: int) -> Tensor:
        """Return the actions tried last, ``(T, k, d)``."""
        longest = max(self.groups, key=lambda group: len(group.log))
        return _last_actions(longest, count)[0]

    def before(self) -> list[tuple[Sequence[Hashable], Tensor, Sequence[bool]]]:
        """Return the keys, points and trials of data from before the first round."""
        rows = max((group.log for group in self.groups), key=len)
        return [(row.keys, row.x, row.wanted) for row in rows if row.t == 0]

    def gains(self) -> Tensor:
        """Return the realised information gain of each function, ``(T, F)``."""
        gains = []
        for group in self.groups:
            gain = group.engine.gain().unsqueeze(-1)
            gains.append(gain.expand(-1, len(group.functions)))
        return self._ordered(gains)

    def noises(self) -> Tensor:
        """Return the likelihood variances, ``(T, F)``, in spreads."""
        return self._ordered([group.noises() for group in self.groups])

    def has_data(self) -> Tensor:
        """Return which trials have observed each function, ``(T, F)``, on the host."""
        return self._ordered(
            [g.log.has_data(self.prior.trials, len(g.functions)) for g in self.groups]
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


def _last_actions(group: Group, count: int) -> tuple[Tensor, Tensor]:
    """Return a group's last actions, at most ``count``, ``(T, k, d)`` and float64.

    The second result says in which trials they were observed, ``(T, k)``.
    """
    rows, prior = group.log.last(count), group.prior
    if not rows:
        shape = prior.trials, 0, prior.actions.dim
        points = torch.zeros(shape, dtype=torch.float64, device=prior.device)
        return points, points[..., 0] > 0
    points = torch.stack([row.x.double() for row in rows], 1)
    wanted = [list(row.wanted) for row in rows]
    return points, devices.put(wanted, prior.device).mT


def _sharing(beliefs: Sequence[GP], apart: bool) -> list[list[int]]:
    """Return the numbers of the functions that share an engine, engine by engine."""
    sharing: list[list[int]] = []
    for f, gp in enumerate(beliefs):
        for members in sharing:
            if not apart and beliefs[members[0]].shares(gp):
                members.append(f)
                break
        else:
            sharing.append([f])
    return sharing


def _order(groups: Sequence[Group]) -> Tensor | None:
    """Return the place of each function among the groups' functions, if not in order.

    It is a tensor, as indexing by a list of numbers would wait for the device.
    """
    functions = [f for group in groups for f in group.functions]
    places = [functions.index(f) for f in range(len(functions))]
    if places == sorted(places):
        return None
    return devices.put(places, groups[0].prior.device)


def _told_apart(groups: Sequence[Group], functions: Sequence[int]) -> Sequence[Group]:
    """Split groups so that each holds only functions of the list, or none."""
    return _split(groups, lambda g: [f for f in g.functions if f in functions])


def _each_apart(
    groups: Sequence[Group], which: Callable[[Group], bool]
) -> Sequence[Group]:
    """Split the groups that ``which`` picks into groups of one function each."""
    return _split(groups, lambda g: g.functions[-1:] if which(g) else [])


def _split(
    groups: Sequence[Group], taken: Callable[[Group], list[int]]
) -> Sequence[Group]:
    """Split off the functions that ``taken`` returns for a group, until it has none.

    A group of which all functions are taken stays whole.
    """
    kept: list[Group] = []
    split: list[Group] = []
    for group in groups:
        while 0 < len(functions := taken(group)) < len(group.functions):
            group, other = group.split(functions)
            split.append(other)
        kept.append(group)
    return kept + split
