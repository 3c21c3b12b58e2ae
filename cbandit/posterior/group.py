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
from cbandit.actions import Box, Finite, ProductGrid
from cbandit.actions.partition import Block
from cbandit.beliefs.gp import GP
from cbandit.errors import CBanditError
from cbandit.posterior.ahead import Ahead, Coming
from cbandit.posterior.covariance import Covariance
from cbandit.posterior.draws.features import check_features, pathwise
from cbandit.posterior.engines.choice import BLOCK, make_engine, plan
from cbandit.posterior.engines.protocol import Engine, Pass, Plan
from cbandit.posterior.history import BLANK
from cbandit.posterior.log import Log, Observation
from cbandit.posterior.look import Best, Look
from cbandit.posterior.merge import add_up, merged
from cbandit.posterior.outcomes import Outcomes
from cbandit.posterior.refit import fit_hyperparameters
from cbandit.posterior.value import Value

__all__ = ["Group", "GroupPass"]

FEW = 8  # rows up to which they are conditioned on one by one


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
    means: Tensor
    actions: Finite | ProductGrid | Box
    ranks: Ranks
    dtype: torch.dtype
    device: torch.device
    trials: int
    covariance: Covariance
    noise: Tensor
    log: Log
    outcomes: Outcomes
    unfitted: int  # observations since the last fit
    forgotten: int  # observations since the last refresh
    _engine: Engine
    _least: Tensor
    _usual: Tensor
    _batched: bool
    _elastic: bool
    _shifted: bool
    _own_noise: bool

    def __init__(
        self,
        gp: GP,
        functions: list[int],
        means: Tensor,
        actions: Finite | ProductGrid | Box,
        batch_shape: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
        engine: str,
        samples: bool,
        ranks: Ranks,
    ) -> None:
        covariance = Covariance.of(gp.kernel, actions, gp.bounds).to(device)
        noise = checks.per_trial("noise", gp.noise, batch_shape).to(device)
        trials = means.shape[0]

        def planned() -> Plan:
            given = actions, covariance, trials, dtype, device
            return plan(engine, *given, samples)

        super().__init__(
            gp=gp,
            functions=functions,
            means=means,
            actions=actions,
            ranks=ranks,
            dtype=dtype,
            device=device,
            trials=trials,
            covariance=covariance,
            log=Log(),
            outcomes=Outcomes.none(trials, len(functions), device),
            unfitted=0,
            forgotten=0,
            _batched=bool(batch_shape),
            _elastic=engine == "auto",
            _shifted=bool((means != 0).any()),
            _own_noise=False,
            **_of_noise(covariance, noise, actions),
        )
        # memory may differ from rank to rank
        vars(self)["_engine"] = self._fresh(ranks.first(planned))

    # -- a value ---------------------------------------------------------------------

    def __getstate__(self) -> dict[str, object]:
        state = dict(vars(self))
        if self._engine.light:
            state["_engine"] = self._engine.plan
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        engine = state["_engine"]
        if isinstance(engine, Plan):
            vars(self)["_engine"] = self._fresh(engine)
        elif not engine.covers(self._stretch()):  # another rank's
            vars(self)["_engine"] = self._fresh(engine.plan)

    # -- the engine ------------------------------------------------------------------

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

    def _fresh(self, planned: Plan, **other: Any) -> Engine:
        count = len(self.functions) + int(self.gp.standardize)
        covariance = other.get("covariance", self.covariance)
        return make_engine(
            planned,
            self.actions,
            covariance,
            self.trials,
            count,
            self.dtype,
            self.device,
            self._stretch(),
        )

    def _stretch(self) -> tuple[int, int] | None:
        if self.ranks.size == 1 or isinstance(self.actions, Box):
            return None
        return self.ranks.stretch(self.actions, BLOCK)

    def _rebuild(self, engine: Engine) -> None:
        """Compute everything in the engine afresh from the log."""
        count = len(self.functions) + int(self.gp.standardize)
        if engine.history.stands_for != BLANK or engine.functions != count:
            engine.history.stands_for = None
            engine.clear(count)
        engine.history.stands_for = None
        rows = list(self.log)
        if rows:
            engine.observe(
                [row.keys for row in rows],
                torch.stack([row.x for row in rows]),
                torch.stack([self._targets(row) for row in rows]),
                torch.stack([self._precision(row) for row in rows]),
                [row.wanted for row in rows],
            )
        engine.history.stands_for = self.log.number

    def lighten(self, light: bool) -> None:
        """Say whether a checkpoint leaves the engine's arrays out.

        Then they are computed afresh here too, as what is loaded will be.
        """
        self._engine.light = light
        if light:
            self._engine.history.stands_for = None

    # -- units -----------------------------------------------------------------------

    def units(self) -> tuple[Tensor, Tensor]:
        """The shift and the divisor of outcomes, ``(T, f)`` each."""
        if self.gp.standardize:
            return self.outcomes.units()
        return self.means, torch.ones_like(self.means)

    def _targets(self, row: Observation) -> Tensor:
        """Differences that the engine conditions on, with a column of ones."""
        targets = row.values
        if not self.gp.standardize:
            return targets - self.means if self._shifted else targets
        targets = targets - self.outcomes.origin
        ones = torch.ones(self.trials, 1, dtype=torch.float64, device=self.device)
        if row.arrived is not None:
            targets = torch.where(row.arrived, targets, 0.0)
            ones = row.arrived[:, :1].double()
        return torch.cat([targets, ones], -1)

    def _precision(self, row: Observation) -> Tensor:
        precision: Tensor = self._usual
        if row.noise is not None:
            noise = row.noise
            if self.gp.standardize:
                noise = noise / self.units()[1][:, 0].square()
            precision = noise.maximum(self._least).reciprocal()
        if all(row.wanted):
            return precision
        return devices.put(row.wanted, self.device) * precision

    def _counted(self, log: Log) -> Outcomes:
        """The statistics of a log, counted afresh."""
        rows = log if self.gp.standardize else ()
        return Outcomes.of(rows, self.trials, len(self.functions), self.device)

    def _over(self, log: Log, **more: Any) -> Self:
        """The same functions with another log, whose engine is yet to be rebuilt."""
        return self._with(log=log, outcomes=self._counted(log), **more)

    # -- feedback --------------------------------------------------------------------

    def append(self, row: Observation) -> Self:
        """Condition on one more observation."""
        own_noise = self._own_noise or row.noise is not None
        counters = {"unfitted": self.unfitted + 1, "_own_noise": own_noise}
        if not self._engine.takes(row.keys):
            chosen = Plan("factor", "an action outside the set was observed")
            log = self.log.enter(row)
            return self._over(log, _engine=self._fresh(chosen), **counters)
        if self.gp.standardize and own_noise:
            # its weight depends on the outcomes' spread, which has changed
            return self._over(self.log.enter(row), **counters)
        engine = self.engine
        other = self._with(log=self.log.enter(row), **counters)
        if self.gp.standardize:
            vars(other)["outcomes"] = self.outcomes.counted(row)
        precision = self._precision(row)
        history = engine.history
        history.stands_for = None
        engine.append(
            row.keys,
            row.x,
            other._targets(row),
            precision,
            row.wanted,
            precision is self._usual,
        )
        if self._elastic:
            engine.make_room()
        history.stands_for = other.log.number
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
        engine = self.engine
        other = self._with(log=self.log.replaced(place, full))
        if self.gp.standardize:
            only = full._replace(noise=None, arrived=come)
            vars(other)["outcomes"] = self.outcomes.counted(only)
        change = other._targets(full) - self._targets(row)
        change *= self._precision(row).unsqueeze(-1)
        engine.history.stands_for = None
        engine.correct(row.keys, change, row.wanted)
        engine.history.stands_for = other.log.number
        return other

    def expire(self, first: int) -> Self:
        """Forget the observations of rounds before ``first``."""
        group = self
        while len(group.log) and group.log[0].t < first:
            group = group.forget_oldest()
        return group

    def forget_oldest(self) -> Self:
        """Take the oldest observation out again."""
        row, log = self.log[0], self.log.without_first()
        other = self._with(log=log, forgotten=self.forgotten + 1)
        if self.gp.standardize:
            vars(other)["outcomes"] = self.outcomes.counted(row, -1)
            if self._own_noise or other.outcomes.lost:
                return other._over(log)
        if self._own_noise and self._drowns(row):
            return other
        engine, precision = self.engine, other._precision(row)
        engine.history.stands_for = None
        engine.forget(
            row.keys,
            row.x,
            other._targets(row),
            precision,
            row.wanted,
            precision is self._usual,
        )
        engine.history.stands_for = log.number
        return other

    def _drowns(self, row: Observation) -> bool:
        history = self.engine.history
        slots, _ = history.place(row.keys, row.x, row.wanted)
        return history.drowns(slots, self._precision(row), row.wanted)

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
        changes = [
            other._targets(row) * other._precision(row).unsqueeze(-1) for row in rows
        ]
        weighted = torch.zeros_like(history.weighted)
        add_up(weighted.mT, slots, torch.stack(changes))
        history.stands_for = None
        engine.revise(weighted[..., : history.used])
        history.stands_for = log.number
        return other

    def emptied(self) -> Self:
        """The same without data; hyperparameters stay."""
        return self._over(Log())

    def split(self, functions: list[int]) -> tuple[Self, Self]:
        """These without some functions, and those alone."""
        mine = [f for f in self.functions if f not in functions]
        engine = self.engine
        kept, apart = self._narrowed(mine), self._narrowed(functions)
        columns = [each._engine_columns(self) for each in (kept, apart)]
        other = engine.split(*columns)
        vars(apart)["_engine"] = other
        for each in (kept, apart):
            each._engine.history.stands_for = each.log.number
        return kept, apart

    def _engine_columns(self, whole: Group) -> Tensor:
        columns = [whole.functions.index(f) for f in self.functions]
        if self.gp.standardize:
            columns.append(len(whole.functions))
        return torch.tensor(columns, device=self.device)

    def _narrowed(self, functions: list[int]) -> Self:
        columns = [self.functions.index(f) for f in functions]
        kept = torch.tensor(columns, device=self.device)
        means = self.means[:, kept]
        return self._with(
            functions=functions,
            means=means,
            outcomes=self.outcomes.columns(kept),
            log=Log.of([row.columns(kept) for row in self.log]),
            _shifted=bool((means != 0).any()),
        )

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
            kernel = kernel.expand_batch(torch.Size([self.trials]))
            for parameter in kernel.parameters():
                # trials part ways from here: no memory in common
                parameter.data = parameter.data.clone()
        data = merged(self.log, *self.units())
        noise = fit_hyperparameters(
            kernel,
            self.noise.clone(),
            replace(data, x=self.covariance.inputs(data.x)),
            self.gp.learn_noise,
            self.gp.noise_prior,
        )
        covariance = self.covariance.fitted(kernel)
        return self._over(
            self.log,
            unfitted=0,
            covariance=covariance,
            _engine=self._fresh(self._engine.plan, covariance=covariance),
            **_of_noise(covariance, noise, self.actions),
        )

    # -- looking ---------------------------------------------------------------------

    @property
    def fused(self) -> Callable[[Look, Streams | None], Best] | None:
        """The engine's one pass, where it knows all there is to do."""
        return None if self.gp.standardize else self._engine.fused

    def find(self, look: Look, streams: Streams | None) -> Best:
        """The best action by the engine's one pass."""
        find = self.engine.fused
        if find is None:
            raise CBanditError(f"engine={self.plan.name!r} has no fused pass here")
        if self._shifted:  # the engine's means lack the prior's
            offset = self.means if look.offset is None else look.offset + self.means
            look = replace(look, offset=offset)
        return find(look, streams)

    def begin(
        self, streams: Streams | None = None, ahead: Sequence[Ahead] = ()
    ) -> Pass:
        """Begin a pass over the set, in the user's units."""
        coming = Coming.of(ahead, self.functions, self.noise) if ahead else None
        inner = self.engine.begin(streams, coming)
        if not (self._shifted or self.gp.standardize):
            return inner
        return GroupPass(self, inner)

    def anywhere(self, x: Tensor, ahead: Sequence[Ahead] = ()) -> tuple[Tensor, Tensor]:
        """Means ``(T, f, n)`` and standard deviations ``(T, f, n)`` at any points."""
        coming = Coming.of(ahead, self.functions, self.noise) if ahead else None
        places = None if coming is None else (coming.places(), coming.precision)
        mean, var = self.engine.history.at(x, places)
        # the floor keeps gradients finite where nothing is uncertain
        std = var.clamp_min(1e-300).sqrt().unsqueeze(1) * self.units()[1].unsqueeze(-1)
        std = std.expand_as(mean[:, : len(self.functions)])
        return self._in_units(mean), std

    def _in_units(self, mean: Tensor) -> Tensor:
        shift = self.units()[0].unsqueeze(-1)
        if not self.gp.standardize:
            return mean + shift
        origin = self.outcomes.origin.unsqueeze(-1)
        known, ones = mean[:, :-1], mean[:, -1:]
        return known + (shift - origin) * (1 - ones) + origin

    def tried(self) -> tuple[Tensor, Tensor, Tensor]:
        """Distinct actions ``(T, U, d)``, means there ``(T, f, U)``, which are real."""
        history = self.engine.history
        used = history.used
        weights = history.system().weights(used)
        mean = self._in_units((history.gram @ weights).mT)
        return history.points[:, :used], mean, history.precision[:, :used] > 0

    def weights(self, alpha: Tensor) -> Tensor:
        """``w (T, f, U)``: the mean in user units is ``w k_u(x)`` and the shift."""
        if not self.gp.standardize:
            return alpha.mT
        known, ones = alpha.mT[:, :-1], alpha.mT[:, -1:]
        return known - (self.units()[0] - self.outcomes.origin).unsqueeze(-1) * ones

    def draw(self, streams: Streams) -> Callable[[Tensor], Tensor]:
        """A joint draw less the mean, in user units: ``(T, n, d) -> (T, f, n)``."""
        engine, count = self.engine, len(self.functions)
        path = pathwise(engine.history, streams, engine.functions)
        scale = self.units()[1].unsqueeze(-1)
        return lambda x: path(x)[:, :count] * scale

    def check_samples(self) -> None:
        """An error, unless joint draws can be had."""
        if self.plan.name in ("factor", "stream", "dense"):
            check_features(self.covariance)


def _of_noise(
    covariance: Covariance, noise: Tensor, actions: Finite | ProductGrid | Box
) -> dict[str, Any]:
    least = covariance.least_noise(actions)
    noise = noise.maximum(least)
    return {"_least": least, "noise": noise, "_usual": noise.reciprocal()}


class GroupPass:
    """An engine's pass in the user's units."""

    __slots__ = ("_inner", "_origin", "_scale", "_shift")

    def __init__(self, group: Group, inner: Pass) -> None:
        self._inner = inner
        self._scale: Tensor | None = None
        shift = group.means
        if group.gp.standardize:
            shift, scale = group.units()
            origin = group.outcomes.origin.to(group.dtype).unsqueeze(-1)
            self._scale = scale.to(group.dtype).unsqueeze(-1)
            self._origin = origin
            self._shift = shift.to(group.dtype).unsqueeze(-1) - origin
        else:
            self._shift = shift.to(group.dtype).unsqueeze(-1)

    def block(self, start: int, stop: int) -> Block:
        """The stretch ``start .. stop - 1``."""
        block, scale = self._inner.block(start, stop), self._scale
        if scale is None:
            block.mean = block.mean + self._shift
            return block
        # the mean is linear in its targets: those of (y - shift) are those of y less
        # shift times those of 1
        known, ones = block.mean[:, :-1], block.mean[:, -1:]
        mean = known + self._shift * (1 - ones) + self._origin
        draw = None if block.draw is None else block.draw[:, :-1] * scale
        return Block(start, stop, mean, block.std * scale, draw)

    def end(self) -> None:
        """Say that every stretch has been handed out."""
        self._inner.end()
