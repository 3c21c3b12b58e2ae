"""Functions that share one engine: one variance, several means. A value.

A change returns another group and leaves this one as it was. Only the engine changes in
place, and says for which log it stands: where that is another one, it is rebuilt.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor

from cbandit._core import checks, devices
from cbandit._core.distributed import Ranks
from cbandit._core.randomness import Streams
from cbandit.actions import Actions
from cbandit.beliefs.gp import GP
from cbandit.errors import CBanditError
from cbandit.posterior.ahead import Ahead, Coming
from cbandit.posterior.batched import one_a_trial
from cbandit.posterior.covariance import Covariance
from cbandit.posterior.draws.features import check_features, pathwise
from cbandit.posterior.engines.choice import BEYOND, BLOCK, make_engine, plan
from cbandit.posterior.engines.protocol import Engine, Pass, Plan, Seen
from cbandit.posterior.history import BLANK
from cbandit.posterior.log import Log, Observation
from cbandit.posterior.look import Best, Look
from cbandit.posterior.merge import add_up, merged
from cbandit.posterior.outcomes import Outcomes
from cbandit.posterior.passes import Scaled
from cbandit.posterior.refit import fit_hyperparameters
from cbandit.posterior.scale import Scale
from cbandit.posterior.units import Units
from cbandit.posterior.value import Value

__all__ = ["FEW", "Group"]

FEW = 8  # rows up to which they are conditioned on one by one
REACH = 8.0  # deviations from what is expected within which readings are believed
ROUGH = 1.5  # spreads, the least deviation where little is known
LEAST = 10  # readings before which too little is known of their spread
PLACES = 5  # distinct actions, likewise
NEAR = 0.5  # spreads, the deviation below which an action is known by itself


class Group(Value):
    """Functions of one prior covariance and noise whose feedback is told together.

    Args:
        gp: the specification, the first function's; they agree but for the mean.
        functions: which functions these are, 0 the reward.
        means: the prior means, ``(T, f)``.
        actions: the set, or a box.
        batch_shape: ``()`` or ``(trials,)``.
        dtype: of the arrays over the set.
        device: where they live.
        engine: a name, or ``"auto"``.
        samples: whether joint draws will be asked for.
        ranks: the processes that share the set.
    """

    gp: GP
    functions: list[int]
    actions: Actions
    ranks: Ranks
    dtype: torch.dtype
    device: torch.device
    trials: int
    covariance: Covariance
    scale: Scale
    tolerance: Tensor  # values that differ by less are as good, (T,)
    log: Log
    unfitted: int  # observations since the last fit
    fitted: bool  # whether the noise was learned from data
    forgotten: int  # observations since the last refresh
    _held: Engine | None
    _left_out: Plan  # of the engine, where a checkpoint holds none
    _batched: bool
    _elastic: bool
    _own_noise: bool

    def __init__(
        self,
        gp: GP,
        functions: list[int],
        means: Tensor,
        actions: Actions,
        batch_shape: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
        engine: str,
        samples: bool,
        ranks: Ranks,
    ) -> None:
        covariance = Covariance.of(gp.kernel, actions, gp.unit).to(device)
        covariance.check_resolution(actions, dtype)
        noise = checks.per_trial("noise", gp.noise, batch_shape).to(device)
        trials = means.shape[0]

        def planned() -> Plan:
            given = actions, covariance, trials, dtype, device
            return plan(engine, *given, samples)

        super().__init__(
            gp=gp,
            functions=functions,
            actions=actions,
            ranks=ranks,
            dtype=dtype,
            device=device,
            trials=trials,
            covariance=covariance,
            scale=Scale(means, noise, covariance.least_noise(actions), gp.standardize),
            tolerance=covariance.tolerance(actions, dtype).expand(trials),
            log=Log(),
            unfitted=0,
            fitted=False,
            forgotten=0,
            _batched=bool(batch_shape),
            _elastic=engine == "auto",
            _own_noise=False,
        )
        # decided by one rank, for free memory may differ
        vars(self)["_held"] = self._fresh(ranks.first(planned))

    # -- a value ---------------------------------------------------------------------

    def __getstate__(self) -> dict[str, object]:
        state = dict(vars(self))
        if self._held is not None and self._held.light:
            state |= {"_held": None, "_left_out": self._held.plan}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        held = self._held
        if held is not None and not held.covers(self._stretch()):  # another rank's
            vars(self).update(_held=None, _left_out=held.plan)

    def _with(self, **changes: Any) -> Self:
        if self._held is None and "_held" not in changes:
            changes["_held"] = self._engine  # one for this value and what follows
        return super()._with(**changes)

    # -- the engine ------------------------------------------------------------------

    @property
    def _engine(self) -> Engine:
        """The engine; where a checkpoint left it out, room is made for it here."""
        held = self._held
        if held is None:
            held = vars(self)["_held"] = self._fresh(self._left_out)
        return held

    @property
    def engine(self) -> Engine:
        """The engine, brought in line with the log where it is not."""
        engine: Engine = self._engine
        if engine.history.stands_for != self.log.number:
            self._rebuild(engine)
        return engine

    @property
    def plan(self) -> Plan:
        """Which engine is at work, and why."""
        return self._engine.plan

    @property
    def block(self) -> int | None:
        """Actions that a stretch should hold; ``None``: all."""
        return self._engine.block

    @property
    def keeps_all(self) -> bool:
        """Whether the whole set is kept however many ranks share it."""
        return self._engine.keeps_all

    def _fresh(self, planned: Plan, covariance: Covariance | None = None) -> Engine:
        return make_engine(
            planned,
            self.actions,
            covariance or self.covariance,
            self.trials,
            self.scale.columns,
            self.dtype,
            self.device,
            self._stretch(),
        )

    def _stretch(self) -> tuple[int, int] | None:
        if self.ranks.size == 1 or self.actions.continuous:
            return None
        return self.ranks.stretch(self.actions, BLOCK)

    def _rebuild(self, engine: Engine) -> None:
        """Compute everything in the engine afresh from the log."""
        blank, count = engine.history.stands_for == BLANK, self.scale.columns
        engine.history.stands_for = None
        if not blank or engine.functions != count:
            engine.clear(count)
            engine.history.stands_for = None
        if len(self.log):
            engine.observe([self._seen(row) for row in self.log])
        engine.history.stands_for = self.log.number

    def _seen(self, row: Observation) -> Seen:
        """A row as the engine takes it."""
        scale, (keys, x, _, wanted, _, _, _) = self.scale, row
        precision = scale.precision(row)
        usual = precision is scale.usual
        return Seen(keys, x, scale.targets(row), precision, wanted, usual)

    def lighten(self, light: bool) -> None:
        """Leave arrays out of checkpoints, and compute them afresh here too."""
        self._engine.light = light
        if light:
            self._engine.history.stands_for = None

    @property
    def noise(self) -> Tensor:
        """The likelihood's variance, ``(T,)``, in the engine's units."""
        return self.scale.noise

    def _over(self, log: Log, **more: Any) -> Self:
        """The same functions with another log, whose engine is yet to be rebuilt."""
        return self._with(log=log, **{"scale": self.scale.over(log), **more})

    # -- feedback --------------------------------------------------------------------

    def append(self, row: Observation) -> Self:
        """Condition on one more observation."""
        log, scale, unfitted = self.log.enter(row), self.scale, self.unfitted + 1
        own_noise = self._own_noise or row.noise is not None
        other = self._with(log=log, unfitted=unfitted, _own_noise=own_noise)
        if not self._engine.takes(row.keys):
            return other._over(log, _held=self._fresh(BEYOND))
        if scale.standardize:
            if own_noise:  # its weight depends on the outcomes' spread, which moves
                return other._over(log)
            other = other._with(scale=scale.counted(row))
        with _Writing(self.engine, log) as engine:
            engine.append(other._seen(row))
            if self._elastic:
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

    def fill(self, t: int, columns: list[int], values: Tensor, mask: Tensor) -> Self:
        """Take in what the row of round ``t`` waited for.

        ``values (T, k)`` of some columns, in the trials of ``mask``. Nothing changes
        where that row was dropped.
        """
        place = self.log.first_of(t)
        if place == len(self.log) or self.log[place].t != t:
            return self
        row, come = self.log[place], mask.unsqueeze(-1)
        if row.arrived is None:
            raise CBanditError(f"the observation of round {t} waits for nothing")
        told, arrived = row.values.clone(), row.arrived.clone()
        for j, column in enumerate(columns):
            own = slice(column, column + 1)
            told[:, own] = torch.where(come, values[:, j : j + 1], told[:, own])
            arrived[:, own] |= come
        full = row._replace(values=told, arrived=arrived)
        log, scale = self.log.replaced(place, full), self.scale
        if scale.standardize:
            scale = scale.counted(full._replace(noise=None, arrived=come))
        change = scale.targets(full) - self.scale.targets(row)
        change *= self.scale.precision(row).unsqueeze(-1)
        with _Writing(self.engine, log) as engine:
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
        with _Writing(self.engine, log) as engine:
            engine.forget(other._seen(row))
        return other

    def _recounted(self, outcomes: Outcomes) -> bool:
        """Whether all is to be counted again from the log, now that a row is out."""
        narrow = self._engine.drifts
        return self._own_noise or outcomes.lost or (narrow and outcomes.astray)

    def _drowns(self, row: Observation) -> bool:
        history = self.engine.history
        slots, _ = history.place(row.keys, row.x, row.wanted)
        return history.drowns(slots, self.scale.precision(row), row.wanted)

    def refreshed(self, every: int) -> Self:
        """Compute narrow arrays afresh, once ``every`` reverse changes are in them."""
        if self.forgotten < every or not self._engine.drifts:
            return self
        self.engine.refresh()
        return self._with(forgotten=0)

    def retarget(self, targets: Tensor) -> Self:
        """Replace all outcomes: ``targets (n, T, f)``, in the log's order."""
        pairs = zip(self.log, targets, strict=True)
        log = Log.of([row._replace(values=values) for row, values in pairs])
        engine, other = self.engine, self._over(log)
        history, rows = engine.history, list(log)
        slots = [history.place(row.keys, row.x, row.wanted)[0] for row in rows]
        seen = [other._seen(row) for row in rows]
        changes = [each.values * each.precision.unsqueeze(-1) for each in seen]
        weighted = torch.zeros_like(history.weighted)
        add_up(weighted.mT, slots, torch.stack(changes))
        with _Writing(engine, log):
            engine.revise(weighted[..., : history.used])
        return other

    def emptied(self) -> Self:
        """The same without data, on an engine of its own; hyperparameters stay."""
        engine = self._fresh(self._engine.plan)
        engine.history.sharp = self._engine.history.sharp  # asks the device once
        return self._over(Log(), _held=engine)

    def split(self, functions: list[int]) -> tuple[Self, Self]:
        """These without some functions, and those alone."""
        mine = [f for f in self.functions if f not in functions]
        engine = self.engine
        places = [
            torch.tensor([self.functions.index(f) for f in each], device=self.device)
            for each in (mine, functions)
        ]
        kept, apart = (
            self._with(
                functions=own,
                scale=self.scale.narrowed(at),
                log=Log.of([row.columns(at) for row in self.log]),
            )
            for own, at in zip((mine, functions), places, strict=True)
        )
        other = engine.split(*map(self.scale.engine_columns, places))
        apart = apart._with(_held=other)
        engine.history.stands_for = kept.log.number
        other.history.stands_for = apart.log.number
        return kept, apart

    # -- hyperparameters -------------------------------------------------------------

    def due(self) -> bool:
        """Whether a refit is due."""
        every = self.gp.refit_every
        return every is not None and self.unfitted >= every

    def refit(self) -> Self:
        """Fit hyperparameters to the log, for a single function."""
        if not len(self.log):
            return self._with(unfitted=0)
        kernel = copy.deepcopy(self.covariance.kernel)
        if self._batched and not kernel.batch_shape and list(kernel.parameters()):
            # from here on each trial has parameters of its own
            kernel = one_a_trial(kernel, self.trials)
        data = merged(self.log, *self.scale.targets_of(), self.scale.least)
        noise = fit_hyperparameters(
            kernel,
            self.noise.clone(),
            replace(data, x=self.covariance.inputs(data.x)),
            self.gp.learn_noise,
            self.gp.noise_prior,
        )
        covariance = self.covariance.fitted(kernel)
        scale = self.scale.fitted(noise, covariance.least_noise(self.actions))
        return self._with(
            unfitted=0,
            fitted=self.gp.learn_noise,
            covariance=covariance,
            scale=scale.over(self.log),
            tolerance=covariance.tolerance(self.actions, self.dtype).expand(
                self.trials
            ),
            _held=self._fresh(self._engine.plan, covariance),
        )

    # -- looking ---------------------------------------------------------------------

    @property
    def fused(self) -> Callable[[Look, Streams | None], Best] | None:
        """The engine's one pass, where it knows all there is to do."""
        return None if self.scale.standardize else self._engine.fused

    def find(self, look: Look, streams: Streams | None) -> Best:
        """The best action by the engine's one pass."""
        find = self.engine.fused
        if find is None:
            raise CBanditError(f"engine={self.plan.name!r} has no fused pass here")
        if self.scale.shifted:  # the engine's means lack the prior's
            means, offset = self.scale.means, look.offset
            look = replace(look, offset=means if offset is None else offset + means)
        return find(look, streams)

    def begin(
        self, streams: Streams | None = None, ahead: Sequence[Ahead] = ()
    ) -> Pass:
        """Begin a pass over the set, in units."""
        coming = Coming.of(ahead, self.functions, self.noise) if ahead else None
        inner = self.engine.begin(streams, coming)
        if not (self.scale.shifted or self.scale.standardize):
            return inner
        return Scaled(inner, self.scale, self.dtype)

    def anywhere(self, x: Tensor, ahead: Sequence[Ahead] = ()) -> tuple[Tensor, Tensor]:
        """Means ``(T, f, n)`` and standard deviations ``(T, f, n)`` at any points.

        In units, as all that follows.
        """
        coming = Coming.of(ahead, self.functions, self.noise) if ahead else None
        places = None if coming is None else (coming.places(), coming.precision)
        mean, var = self.engine.history.at(x, places)
        # the floor keeps gradients finite where nothing is uncertain
        std = var.clamp_min(1e-300).sqrt().unsqueeze(1)
        return self.scale.mean(mean), std.expand_as(mean[:, : len(self.functions)])

    def tried(self) -> tuple[Tensor, Tensor, Tensor]:
        """Distinct actions ``(T, U, d)``, means there ``(T, f, U)``, which are real."""
        history = self.engine.history
        used = history.used
        weights = history.system().weights(used)
        mean = self.scale.mean((history.gram @ weights).mT)
        return history.points[:, :used], mean, history.precision[:, :used] > 0

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
        units = Units(*(each.unsqueeze(-1) for each in self.scale.units()))
        if not self.scale.standardize:
            endless = units.seen.expand(-1, -1, x.shape[-2])
            return [-endless, endless]
        mean, std = self.anywhere(x)
        variance = std.square() + self.noise[:, None, None]
        if noise is not None:
            variance = (
                variance
                + devices.put(noise, self.device)[:, None, None] / units.size.square()
            )
        deviation = variance.sqrt()
        near = std < NEAR if self.fitted and not rough else std < 0
        deviation = torch.where(near, deviation, deviation.clamp_min(ROUGH))
        places = [count >= PLACES for count in self.engine.history.distinct()]
        wide = devices.put(places, self.device)[:, None, None] | (std < NEAR)
        known = units.known & (units.seen >= LEAST) & wide
        reach = torch.where(known, REACH * deviation * units.size, torch.inf)
        center = units.center + mean * units.size
        return [center - reach, center + reach]

    def draw(self, streams: Streams) -> Callable[[Tensor], Tensor]:
        """A joint draw less the mean: ``(T, n, d) -> (T, f, n)``."""
        engine, count = self.engine, len(self.functions)
        path = pathwise(engine.history, streams, engine.functions)
        return lambda x: path(x)[:, :count]

    def check_samples(self) -> None:
        """An error, unless joint draws can be had."""
        if self._engine.by_features:
            check_features(self.covariance)


class _Writing:
    """An engine that is being brought in line with a log; until then with none."""

    __slots__ = ("_engine", "_number")

    def __init__(self, engine: Engine, log: Log) -> None:
        self._engine, self._number = engine, log.number

    def __enter__(self) -> Engine:
        self._engine.history.stands_for = None
        return self._engine

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            self._engine.history.stands_for = self._number
