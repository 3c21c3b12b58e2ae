"""The beliefs of one policy, reward and costs, kept current over its action set.

Functions whose prior covariance and noise agree, and whose feedback is told together,
form a *group*: one engine, one variance, several means. Feedback told apart splits it.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from cbandit._core import checks, devices
from cbandit._core.distributed import ALONE, Ranks
from cbandit._core.randomness import Streams
from cbandit.actions import Box, Finite, ProductGrid
from cbandit.actions.partition import Block, partition
from cbandit.beliefs.gp import GP
from cbandit.posterior.covariance import Covariance
from cbandit.posterior.engines.choice import (
    BLOCK,
    Engine,
    Plan,
    free_memory,
    make_engine,
    plan,
)
from cbandit.posterior.engines.dense import Dense
from cbandit.posterior.engines.joint import Joint
from cbandit.posterior.engines.swept import Rows
from cbandit.posterior.look import Best, Look, among, scan
from cbandit.posterior.refit import Merged, fit_hyperparameters
from cbandit.posterior.rows.operators import StreamRows
from cbandit.posterior.stacked import Stacked, stackable
from cbandit_kernels import SCORES

__all__ = ["Ahead", "Part", "Row", "Surrogates", "joined"]

LOST = 1e-6  # of a sum, what is left of it: then all is made afresh


@dataclass
class Ahead:
    """A choice whose outcome is waited for: trials that wait for reward, and cost."""

    keys: Sequence[Hashable]
    x: Tensor
    reward: Sequence[bool]
    cost: Sequence[bool]


@dataclass
class Row:
    """One observation of some functions in ``T`` trials.

    Args:
        keys: the actions' names, one a trial: a number of the set, or coordinates.
        x: ``(T, d)``.
        values: ``(T, f)``, in the user's units.
        wanted: trials that saw something.
        noise: its own variance ``(T,)``, or ``None`` for the belief's.
        t: the round it belongs to; 0 for data from before.
        arrived: ``(T, f)``, which values have come; until they do the others are what
            stands for them, or where outcomes are standardised their average. ``None``:
            all.
    """

    keys: Sequence[Hashable]
    x: Tensor
    values: Tensor
    wanted: Sequence[bool]
    noise: Tensor | None = None
    t: int = 0
    arrived: Tensor | None = None


class Group:
    """Functions that share one engine.

    Args:
        gp: the specification, the first function's; they agree but for the mean.
        functions: which functions these are, 0 the reward.
        means: the prior means, ``(T, f)``.
    """

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
        ranks: Ranks = ALONE,
    ) -> None:
        self.gp, self.functions, self.means = gp, functions, means
        self.ranks = ranks
        self._shifted = bool((means != 0).any())
        self.actions, self.dtype, self.device = actions, dtype, device
        self.trials, self._batched = means.shape[0], bool(batch_shape)
        self.covariance = Covariance.of(gp.kernel, actions, gp.bounds).to(device)
        self._learn_noise(checks.per_trial("noise", gp.noise, batch_shape).to(device))
        self._wanted_engine, self._samples = engine, samples
        # memory may differ from rank to rank
        self.plan = ranks.first(lambda: self._plan(engine))
        self.engine = self._fresh()
        self.log: deque[Row] = deque()
        self._unfitted = 0  # observations since the last fit
        self._own_noise = False
        self.awaited: dict[int, Row] = {}
        self.forgotten = 0
        self.light = False
        self._statistics()

    def _learn_noise(self, noise: Tensor) -> None:
        self._least = self.covariance.least_noise(self.actions)
        self.noise = noise.maximum(self._least)
        self._usual = self.noise.reciprocal()

    def _plan(self, wanted: str) -> Plan:
        return plan(
            wanted,
            self.actions,
            self.covariance,
            self.trials,
            self.dtype,
            self.device,
            self._samples,
        )

    def _fresh(self) -> Engine:
        count = len(self.functions) + int(self.gp.standardize)
        return make_engine(
            self.plan.name,
            self.actions,
            self.covariance,
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

    # -- standardised outcomes -----------------------------------------------------

    def _statistics(self) -> None:
        shape = (self.trials, len(self.functions))
        self._count = torch.zeros(shape[0], 1, dtype=torch.float64, device=self.device)
        self._average = torch.zeros(shape, dtype=torch.float64, device=self.device)
        self._squares = torch.zeros(shape, dtype=torch.float64, device=self.device)
        self._most = self._squares  # the largest they have been since
        # a first guess of the mean, so that differences, not levels, are kept
        self.origin = torch.zeros(shape, dtype=torch.float64, device=self.device)

    def _count_in(self, row: Row, sign: int = 1) -> None:
        if row.arrived is None:
            wanted = devices.put(row.wanted, self.device).unsqueeze(-1)
        else:
            wanted = row.arrived[:, :1]  # one function, where outcomes are rescaled
        first = wanted & (self._count == 0) if sign > 0 else wanted & False
        self.origin = torch.where(first, row.values, self.origin)
        count = self._count + sign * wanted
        gap = torch.where(wanted, row.values - self._average, 0.0)
        average = self._average + sign * gap / count.clamp_min(1)
        self._squares += sign * gap * (row.values - average) * wanted
        if sign < 0:
            # where nothing is left it is as if nothing had been seen
            left = count > 0
            average, self._squares = average * left, self._squares * left
        self._count, self._average = count, average
        self._most = torch.maximum(self._most, self._squares)

    def _count_out(self, row: Row) -> bool:
        """Of what was counted in, take ``row`` out; whether hardly any is left.

        Of large squares taken away rounding errors stay, and of a guess of the mean
        that was theirs.
        """
        self._count_in(row, -1)
        return bool((self._squares < LOST * self._most).any())

    def _recount(self) -> None:
        self._statistics()
        if self.gp.standardize:
            for row in self.log:
                self._count_in(row)

    def units(self) -> tuple[Tensor, Tensor]:
        """What outcomes are shifted and divided by, ``(T, f)`` each."""
        if not self.gp.standardize:
            return self.means, torch.ones_like(self.means)
        spread = (self._squares / (self._count - 1).clamp_min(1)).clamp_min(0).sqrt()
        usable = (self._count >= 2) & (spread > 0)
        return self._average, torch.where(usable, spread, 1.0)

    def _targets(self, row: Row) -> Tensor:
        """What the engine conditions on: differences, and a column of ones."""
        base = self.origin if self.gp.standardize else self.means
        targets = row.values
        if self._shifted or self.gp.standardize:
            targets = targets - base
        if not self.gp.standardize:
            return targets
        ones = torch.ones(self.trials, 1, dtype=torch.float64, device=self.device)
        if row.arrived is not None:
            targets = torch.where(row.arrived, targets, 0.0)
            ones = row.arrived[:, :1].double()
        return torch.cat([targets, ones], -1)

    def _precision(self, row: Row) -> Tensor:
        precision = self._usual
        if row.noise is not None:
            noise = row.noise
            if self.gp.standardize:
                noise = noise / self.units()[1][:, 0].square()
            precision = noise.maximum(self._least).reciprocal()
        if all(row.wanted):
            return precision
        return devices.put(row.wanted, self.device) * precision

    # -- feedback ------------------------------------------------------------------

    def append(self, row: Row) -> None:
        """Condition on one more observation."""
        self._enter(row)
        self._unfitted += 1
        self._own_noise |= row.noise is not None
        if isinstance(self.engine, Joint) and not isinstance(row.keys[0], int):
            self.plan = Plan("factor", "an action outside the set was observed")
            self.rebuild()
            return
        if self.gp.standardize:
            self._count_in(row)
            if self._own_noise:
                # its weight depends on the outcomes' spread, which has changed
                self.rebuild()
                return
        self.engine.append(
            row.keys, row.x, self._targets(row), self._precision(row), row.wanted
        )
        self._make_room()

    def _enter(self, row: Row) -> None:
        place = len(self.log)
        while place and self.log[place - 1].t > row.t:
            place -= 1
        self.log.insert(place, row)

    def fill(self, row: Row, columns: list[int], values: Tensor, mask: Tensor) -> None:
        """What was waited for has come: ``values (T, k)`` in the trials of ``mask``."""
        assert row.arrived is not None
        come = mask.unsqueeze(-1)
        before = self._targets(row)
        row.values = row.values.clone()  # the engine may hold what it was given
        for j, column in enumerate(columns):
            own = slice(column, column + 1)
            told = values[:, j : j + 1]
            row.values[:, own] = torch.where(come, told, row.values[:, own])
            row.arrived[:, own] |= come
        if self.gp.standardize:
            only = Row(row.keys, row.x, row.values, row.wanted, None, row.t, come)
            self._count_in(only)
        change = self._targets(row) - before
        change *= self._precision(row).unsqueeze(-1)
        self.engine.correct(row.keys, change, row.wanted)

    def expire(self, first: int) -> int:
        """Forget the observations of rounds before ``first``; how many they were."""
        gone = 0
        while self.log and self.log[0].t < first:
            self.forget_oldest()
            gone += 1
        return gone

    def retarget(self, targets: Tensor) -> None:
        """Replace all outcomes: ``targets (n, T, f)``, in the log's order."""
        for row, values in zip(self.log, targets, strict=True):
            row.values = values
        self._recount()
        history = self.engine.history
        weighted = torch.zeros_like(history.weighted)
        slots, changes = [], []
        for row in self.log:
            slots.append(history.place(row.keys, row.x, row.wanted)[0])
            changes.append(self._targets(row) * self._precision(row).unsqueeze(-1))
        trial = torch.arange(self.trials, device=self.device)
        place = trial.expand(len(slots), -1), devices.put(slots, self.device)
        weighted.mT.index_put_(place, torch.stack(changes), accumulate=True)
        self.engine.revise(weighted[..., : history.used])

    def _make_room(self) -> None:
        engine = self.engine
        if self._wanted_engine != "auto" or not isinstance(engine, Rows):
            return
        if engine.name != "factor" or engine.history.used % 32:
            return
        short = 2 * 32 * engine.operator.bytes_per_row() > free_memory(self.device)
        if short and self.covariance.forms is not None:
            self.plan = Plan("stream", "kernel rows no longer fit in memory")
            assert not isinstance(self.actions, Box)
            stream = StreamRows(
                self.actions,
                self.covariance,
                self.trials,
                self.dtype,
                self.device,
                engine.stretch,
            )
            every = list(range(self.trials))
            for slot in range(engine.history.used):
                points = engine.history.points[:, slot]
                stream.write(every, [slot] * self.trials, points, ())
            engine.operator, engine.name = stream, stream.name

    def observe(self, rows: list[Row]) -> None:
        """Condition on many observations at once."""
        if len(rows) <= 8:
            for row in rows:
                self.append(row)
            return
        self._unfitted += len(rows)
        self.log = deque(sorted([*self.log, *rows], key=lambda row: row.t))
        self.rebuild()

    def forget_oldest(self) -> None:
        """Take the oldest observation out again."""
        row = self.log.popleft()
        lost = self.gp.standardize and self._count_out(row)
        if lost or (self._own_noise and (self.gp.standardize or self._drowns(row))):
            self.rebuild()
            return
        self.engine.forget(
            row.keys, row.x, self._targets(row), self._precision(row), row.wanted
        )

    def _drowns(self, row: Row) -> bool:
        history = self.engine.history
        slots, _ = history.place(row.keys, row.x, row.wanted)
        return history.drowns(slots, self._precision(row), row.wanted)

    def rebuild(self) -> None:
        """Everything afresh from the log."""
        old, self.engine = self.engine, self._fresh()
        if old is not None:
            # of a precision that stays nothing is to be read from the device again
            self.engine.history.judged = old.history.judged
        self._recount()
        if not self.log:
            return
        if isinstance(self.engine, Rows | Dense):
            self.engine.observe(
                [row.keys for row in self.log],
                torch.stack([row.x for row in self.log]),
                torch.stack([self._targets(row) for row in self.log]),
                torch.stack([self._precision(row) for row in self.log]),
                [row.wanted for row in self.log],
            )
            return
        for row in self.log:
            slots = [int(str(key)) for key in row.keys]
            history = self.engine.history
            history.add(slots, self._precision(row), self._targets(row))
            history.count(slots, row.wanted, 1)
        self.engine.refresh()

    def __getstate__(self) -> dict[str, object]:
        state = self.__dict__.copy()
        if self.light:
            state["engine"] = None
        return state

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        if self.engine is None or not self._covers():
            self.rebuild()

    def _covers(self) -> bool:
        """Whether the engine keeps what this rank should: a file may be another's."""
        if not isinstance(self.engine, Rows):
            return True
        whole = (0, self.engine.actions.size)
        return self.engine.stretch == (self._stretch() or whole)

    # -- hyperparameters -----------------------------------------------------------

    def due(self) -> bool:
        """Whether a refit is due."""
        every = self.gp.refit_every
        return every is not None and self._unfitted >= every

    def refit(self) -> None:
        """Fit hyperparameters to the log, then rebuild."""
        assert len(self.functions) == 1
        self._unfitted = 0
        if not self.log:
            return
        kernel = self.covariance.kernel
        if self._batched and not kernel.batch_shape and list(kernel.parameters()):
            kernel = kernel.expand_batch(torch.Size([self.trials]))
            for parameter in kernel.parameters():
                # trials part ways from here: no memory in common
                parameter.data = parameter.data.clone()
            self.covariance.kernel = kernel
        self._learn_noise(
            fit_hyperparameters(
                self.covariance.kernel,
                self.noise.clone(),
                self._merged(),
                self.gp.learn_noise,
                self.gp.noise_prior,
            )
        )
        self.covariance.refresh()
        self.rebuild()

    def _merged(self) -> Merged:
        """The log in standardised units, merged by action."""
        places: list[dict[Hashable, int]] = [{} for _ in range(self.trials)]
        for row in self.log:
            for mine, key, wanted in zip(places, row.keys, row.wanted, strict=True):
                if wanted:
                    mine.setdefault(key, len(mine))
        slots = [
            [
                mine[key] if wanted else 0
                for mine, key, wanted in zip(*each, strict=True)
            ]
            for each in ((places, row.keys, row.wanted) for row in self.log)
        ]
        used = max(len(mine) for mine in places)
        zeros = torch.zeros(self.trials, used, dtype=torch.float64, device=self.device)
        # what is summed at (trial, slot), one entry a row of the log and a trial
        trial = torch.arange(self.trials, device=self.device)
        at = trial.expand(len(slots), -1), devices.put(slots, self.device)
        shift, scale = self.units()
        y = torch.stack([((r.values - shift) / scale)[:, 0] for r in self.log])
        here = devices.put([list(row.wanted) for row in self.log], self.device)
        if any(row.arrived is not None for row in self.log):
            every = torch.ones_like(here[0])
            came = [every if r.arrived is None else r.arrived[:, 0] for r in self.log]
            here = here & torch.stack(came)
        usual = [row.noise is None for row in self.log]
        ours = here & devices.put(usual, self.device).unsqueeze(-1)
        theirs = torch.zeros_like(y)
        if not all(usual):
            noises = [scale[:, 0] if r.noise is None else r.noise for r in self.log]
            weight = scale[:, 0].square() / torch.stack(noises)
            theirs = torch.where(here & ~ours, weight, 0.0)

        def summed(values: Tensor) -> Tensor:
            return zeros.index_put(at, values, accumulate=True)

        count, own = summed(ours.double()), summed(theirs)
        total = summed(torch.where(ours, y, 0.0))
        squares = summed(torch.where(ours, y.square(), 0.0))
        own_weighted = summed(theirs * y)
        # where each slot's action was first seen
        first: dict[tuple[int, int], int] = {}
        for number, row in enumerate(self.log):
            for i, (slot, wanted) in enumerate(
                zip(slots[number], row.wanted, strict=True)
            ):
                if wanted:
                    first.setdefault((i, slot), number)
        x = zeros.new_zeros(self.trials, used, self.covariance.dim)
        if first:
            who, slot = devices.put(list(zip(*first, strict=True)), self.device)
            seen = devices.put(list(first.values()), self.device)
            x[who, slot] = torch.stack([row.x for row in self.log])[seen, who].double()
        within = (squares - total.square() / count.clamp_min(1)).clamp_min(0).sum(-1)
        return Merged(
            self.covariance.inputs(x), count, total, within, own, own_weighted
        )

    # -- looking -------------------------------------------------------------------

    def blocks(
        self,
        stretches: Iterator[tuple[int, int]] | None,
        streams: Streams | None,
        ahead: Sequence[Ahead] = (),
    ) -> Iterator[Block]:
        """The engine's blocks, in the user's units."""
        assert not isinstance(self.engine, Dense)
        counted = self._ahead(ahead)  # which may change the engine
        blocks = self.engine.sweep(stretches, streams, counted)
        if self.gp.standardize:
            shift, scale = (v.to(self.dtype).unsqueeze(-1) for v in self.units())
            origin = self.origin.to(self.dtype).unsqueeze(-1)
            for block in blocks:
                yield self._in_units(block, shift - origin, scale, origin)
            return
        offset = None
        if self._shifted:
            offset = self.means.to(self.dtype).unsqueeze(-1)
        for block in blocks:
            if offset is not None:
                block.mean = block.mean + offset
            yield block

    @property
    def fused(self) -> bool:
        """Whether the engine's one pass knows all there is to do."""
        own = isinstance(self.engine, Rows) and self.engine.fused
        return own and not self.gp.standardize

    def best(
        self, look: Look, streams: Streams | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The engine's pass; its means lack the prior's."""
        assert isinstance(self.engine, Rows)
        if self._shifted:
            offset = self.means if look.offset is None else look.offset + self.means
            look = replace(look, offset=offset)
        return self.engine.best(look, streams)

    def _ahead(
        self, ahead: Sequence[Ahead]
    ) -> tuple[Sequence[Sequence[Hashable]], Tensor, Tensor] | None:
        """Choices whose outcome is waited for: names, places and precisions."""
        mine = [a.reward if 0 in self.functions else a.cost for a in ahead]
        if not any(any(waits) for waits in mine):
            return None
        precision = devices.put(mine, self.device).mT / self.noise.unsqueeze(-1)
        if isinstance(self.engine, Joint) and not all(
            isinstance(a.keys[0], int) for a in ahead
        ):
            self.plan = Plan("factor", "an action outside the set is outstanding")
            self.rebuild()
        return [a.keys for a in ahead], torch.stack([a.x for a in ahead]), precision

    def _in_units(
        self, block: Block, shift: Tensor, scale: Tensor, origin: Tensor
    ) -> Block:
        # the mean is linear in its targets: those of (y - shift) are those of y less
        # shift times those of 1
        known, ones = block.mean[:, :-1], block.mean[:, -1:]
        mean = known + shift * (1 - ones) + origin
        std = None if block.std is None else block.std * scale
        draw = None if block.draw is None else block.draw[:, :-1] * scale
        return Block(block.start, block.stop, mean, std, draw)

    def anywhere(self, x: Tensor, ahead: Sequence[Ahead] = ()) -> tuple[Tensor, Tensor]:
        """Means ``(T, f, n)`` and standard deviations ``(T, f, n)`` at any points."""
        counted, places = self._ahead(ahead), None
        if counted is not None:
            places = counted[1].transpose(0, 1).double(), counted[2]
        mean, var = self.engine.history.at(x, places)
        # the floor keeps gradients finite where nothing is uncertain
        std = var.clamp_min(1e-300).sqrt().unsqueeze(1) * self.units()[1].unsqueeze(-1)
        std = std.expand_as(mean[:, : len(self.functions)])
        return self._mean_in_units(mean), std

    def tried(self) -> tuple[Tensor, Tensor, Tensor]:
        """Distinct actions ``(T, U, d)``, means there ``(T, f, U)``, which are real."""
        history = self.engine.history
        used = history.used
        weights = history.system().weights(used)
        mean = self._mean_in_units((history.gram @ weights).mT)
        return history.points[:, :used], mean, history.precision[:, :used] > 0

    def _mean_in_units(self, mean: Tensor) -> Tensor:
        shift = self.units()[0].unsqueeze(-1)
        if not self.gp.standardize:
            return mean + shift
        origin = self.origin.unsqueeze(-1)
        known, ones = mean[:, :-1], mean[:, -1:]
        return known + (shift - origin) * (1 - ones) + origin

    def weights(self, alpha: Tensor) -> Tensor:
        """``w (T, f, U)``: the mean in user units is ``w k_u(x)`` and the shift."""
        if not self.gp.standardize:
            return alpha.mT
        known, ones = alpha.mT[:, :-1], alpha.mT[:, -1:]
        return known - (self.units()[0] - self.origin).unsqueeze(-1) * ones

    def draw(self, streams: Streams) -> Callable[[Tensor], Tensor]:
        """A joint draw less the mean, in user units: ``(T, n, d) -> (T, f, n)``."""
        assert isinstance(self.engine, Dense)
        path, scale = self.engine.draw(streams), self.units()[1].unsqueeze(-1)
        count = len(self.functions)
        return lambda x: path(x)[:, :count] * scale

    def split(self, functions: list[int]) -> Group:
        """Take ``functions`` out into a group of their own."""
        self.engine.settle()
        other = copy.deepcopy(self)
        self._keep([f for f in self.functions if f not in functions])
        other._keep(functions)
        return other

    def _keep(self, functions: list[int]) -> None:
        columns = [self.functions.index(f) for f in functions]
        kept = torch.tensor(columns, device=self.device)
        self.functions, self.means = functions, self.means[:, kept]
        self._shifted = bool((self.means != 0).any())
        for name in ("_average", "_squares", "_most", "origin"):
            setattr(self, name, getattr(self, name)[:, kept])
        narrowed = {
            id(r): replace(
                r,
                values=r.values[:, kept],
                arrived=None if r.arrived is None else r.arrived[:, kept],
            )
            for r in self.log
        }
        self.awaited = {t: narrowed[id(r)] for t, r in self.awaited.items()}
        self.log = deque(narrowed[id(r)] for r in self.log)
        if self.gp.standardize:
            kept = torch.cat([kept, kept.new_tensor([self.engine.functions - 1])])
        engine, history = self.engine, self.engine.history
        engine.mean = engine.mean[:, kept].contiguous()
        engine.functions = len(kept)
        history.keep(kept)


Change = TypeVar("Change", bound=Callable[..., Any])


def _whole(change: Change) -> Change:
    """A change of beliefs that fails half-way is remembered: nothing rests on it."""

    @wraps(change)
    def guarded(self: Surrogates, *arguments: Any, **named: Any) -> Any:
        try:
            return change(self, *arguments, **named)
        except BaseException as error:
            self.torn = self.torn or f"{type(error).__name__}: {error}"
            raise

    return cast(Change, guarded)


class Surrogates:
    """All functions of a policy over one action set.

    Args:
        beliefs: one specification a function, the reward's first.
        actions: a finite set or a product grid.
        batch_shape: ``()`` or ``(trials,)``.
        dtype: of the arrays over the set (the joint engine's are float64).
        device: where they live.
        engine: a name, or ``"auto"``.
        samples: whether joint draws will be asked for.
        apart: no two functions share an engine.
        ranks: the processes that share the set; each keeps its own part of it, and
            :meth:`sweep` is of that part.
    """

    torn = ""  # what broke off a change of the beliefs

    def __init__(
        self,
        beliefs: Sequence[GP],
        actions: Finite | ProductGrid | Box,
        batch_shape: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
        engine: str = "auto",
        samples: bool = False,
        apart: bool = False,
        ranks: Ranks = ALONE,
    ) -> None:
        self.actions, self.batch_shape, self.ranks = actions, batch_shape, ranks
        self.dtype, self.device = dtype, device
        self.functions = len(beliefs)
        self.groups: list[Group] = []
        waiting = list(range(len(beliefs)))
        while waiting:
            first = beliefs[waiting[0]]
            members = [waiting[0]] + [
                f for f in waiting[1:] if not apart and first.shares(beliefs[f])
            ]
            waiting = [f for f in waiting if f not in members]
            means = [
                checks.per_trial("mean", beliefs[f].mean, batch_shape) for f in members
            ]
            self.groups.append(
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

    @_whole
    def absorb(
        self,
        keys: Sequence[Hashable],
        x: Tensor,
        parts: Sequence[Part],
        t: int = 0,
    ) -> Surrogates:
        """Condition on what was seen of one choice, made in round ``t``.

        ``parts`` are functions, their values ``(T, f)``, the trials that saw them and
        the observation's own noise ``(T,)`` or ``None``; parts seen alike are joined.
        """
        if any(part[3] is not None for part in parts):
            self._rescaled_apart()
        for functions, values, wanted, noise in joined(parts):
            for group in list(self.groups):
                mine = [f for f in group.functions if f in functions]
                if not mine:
                    continue
                if len(mine) < len(group.functions):
                    apart = group.split(mine)
                    self.groups.append(apart)
                    group = apart
                chosen = _columns(values, functions, group.functions)
                group.append(Row(keys, x, chosen, wanted, noise, t))
        return self

    def _rescaled_apart(self) -> None:
        """Each standardised function alone: its own spread scales a given noise."""
        for group in list(self.groups):
            while group.gp.standardize and len(group.functions) > 1:
                self.groups.append(group.split(group.functions[-1:]))

    @_whole
    def observe(
        self, rows: Sequence[tuple[Sequence[Hashable], Tensor, list[Part]]]
    ) -> Surrogates:
        """Condition on many choices at once, as :meth:`absorb` does on one."""
        if len(rows) <= 8:
            for keys, x, parts in rows:
                self.absorb(keys, x, parts)
            return self
        covered = {f for _, _, parts in rows for part in parts for f in part[0]}
        for group in list(self.groups):
            mine = [f for f in group.functions if f in covered]
            if mine and len(mine) < len(group.functions):
                self.groups.append(group.split(mine))
        for group in self.groups:
            new = []
            for keys, x, parts in rows:
                for functions, values, wanted, noise in joined(parts):
                    if group.functions[0] in functions:
                        chosen = _columns(values, functions, group.functions)
                        new.append(Row(keys, x, chosen, wanted, noise))
            if new:
                group.observe(new)
        return self

    @_whole
    def await_feedback(
        self, keys: Sequence[Hashable], x: Tensor, t: int, limits: Tensor
    ) -> Surrogates:
        """Enter a choice before its feedback.

        Targets are the reward's prior mean and the costs' thresholds ``(T, m)``.
        """
        every = [True] * len(keys)
        for group in self.groups:
            values = group.means.clone()
            for column, f in enumerate(group.functions):
                if f > 0:
                    values[:, column] = limits[:, f - 1]
            arrived = torch.zeros_like(values, dtype=torch.bool)
            row = Row(keys, x, values, every, None, t, arrived)
            group.append(row)
            group.awaited[t] = row
        return self

    @_whole
    def fill(
        self, t: int, functions: list[int], values: Tensor, mask: Tensor
    ) -> Surrogates:
        """Feedback of round ``t``: ``values (T, f)`` in the trials of ``mask (T,)``."""
        for group in self.groups:
            mine = [f for f in group.functions if f in functions]
            if not mine:
                continue
            row = group.awaited.get(t)
            if row is None:
                continue  # dropped with all data of its time
            columns = [group.functions.index(f) for f in mine]
            group.fill(row, columns, _columns(values, functions, mine), mask)
        return self

    def stop_waiting(self, first: int) -> Surrogates:
        """Feedback of rounds before ``first`` counts no longer."""
        for group in self.groups:
            for t in [t for t in group.awaited if t < first]:
                del group.awaited[t]
        return self

    @_whole
    def expire(self, first: int, refresh_every: int) -> Surrogates:
        """Forget observations of rounds before ``first``.

        Reverse updates of narrow dtypes drift, so those are computed afresh every
        ``refresh_every``.
        """
        for group in self.groups:
            group.forgotten += group.expire(first)
            narrow = self.dtype != torch.float64 and isinstance(group.engine, Rows)
            if narrow and group.forgotten >= refresh_every:
                group.engine.refresh()
                group.forgotten = 0
        return self

    @_whole
    def refit(self, due_only: bool = False) -> Surrogates:
        """Fit hyperparameters; with ``due_only`` where ``refit_every`` says so."""
        if not due_only:
            for group in list(self.groups):
                while len(group.functions) > 1:
                    self.groups.append(group.split(group.functions[-1:]))
        chosen = [g for g in self.groups if not due_only or g.due()]
        for group in chosen:
            group.refit()
        return self

    def forget_all(self) -> Surrogates:
        """Drop all data; hyperparameters stay.

        Nothing changes in place, so that :meth:`parts` can be put back.
        """
        for group in self.groups:
            group.log, group.awaited = deque(), {}
            group.rebuild()
        return self

    def parts(self) -> list[Surrogates | Group]:
        """What holds all this in its attributes."""
        return [self, *self.groups]

    def lighten(self, limit: int) -> None:
        """Before a checkpoint: above ``limit`` bytes of arrays only the log is kept.

        Then what is here is computed afresh from it too, as what is loaded will be.
        Kernel rows are sooner made than written: of them an eighth counts as much.
        """
        sizes = [
            group.engine.bytes() * (8 if group.engine.name == "factor" else 1)
            for group in self.groups
        ]
        total = sum(sizes)
        for group in self.groups:
            # a part of the set is no use to other ranks, nor to other numbers of them
            part = self.ranks.size > 1 and isinstance(group.engine, Rows)
            group.light = total > limit or part
            if group.light:
                group.rebuild()

    def gains(self) -> Tensor:
        """Realised information gain of each function, ``(T, F)``."""
        return self._by_function([g.engine.gain() for g in self.groups])

    def noises(self) -> Tensor:
        """Likelihood variances, ``(T, F)``, in the engines' units."""
        return self._by_function([g.noise for g in self.groups])

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

    def sweep(
        self, streams: Streams | None = None, ahead: Sequence[Ahead] = ()
    ) -> Iterator[Block]:
        """All actions, block by block.

        With ``streams``, joint draws beside the means; the variances of choices
        ``ahead`` are counted as if their outcomes had come.
        """
        assert not isinstance(self.actions, Box)
        if len(self.groups) == 1:
            group = self.groups[0]
            yield from group.blocks(self._stretches(), streams, ahead)
            return
        sweeps = [g.blocks(self._stretches(), streams, ahead) for g in self.groups]
        for blocks in zip(*sweeps, strict=True):
            yield self._merged(blocks)

    def look(self, function: int) -> Iterator[tuple[int, int, Tensor, Tensor]]:
        """One function over all actions: stretches, mean and deviation ``(T, n)``."""
        group = next(g for g in self.groups if function in g.functions)
        column = group.functions.index(function)
        for block in group.blocks(self._stretches(), None):
            assert block.std is not None
            std = block.std.expand(-1, len(group.functions), -1)
            yield block.start, block.stop, block.mean[:, column], std[:, column]

    def tried(self, function: int) -> tuple[Tensor, Tensor, Tensor]:
        """Where a function was seen: ``(T, U, d)``, means ``(T, U)``, which are real.

        Trials that saw fewer actions than others have places that are not.
        """
        group = next(g for g in self.groups if function in g.functions)
        x, mean, real = group.tried()
        return x, mean[:, group.functions.index(function)], real

    def _stretches(self) -> Iterator[tuple[int, int]] | None:
        """Of this rank's actions; ``None``: small sets are looked at as a whole."""
        assert not isinstance(self.actions, Box)
        if all(isinstance(g.engine, Joint) for g in self.groups):
            return None
        step = min(g.engine.block for g in self.groups if isinstance(g.engine, Rows))
        own = self.ranks.stretch(self.actions, BLOCK)
        return partition(self.actions, step, *own)

    def _merged(self, blocks: tuple[Block, ...]) -> Block:
        first = blocks[0]
        shape = (first.mean.shape[0], self.functions, first.mean.shape[-1])
        mean, std = first.mean.new_empty(shape), first.mean.new_empty(shape)
        draw = None if first.draw is None else first.mean.new_empty(shape)
        for group, block in zip(self.groups, blocks, strict=True):
            spread = block.std.expand(-1, len(group.functions), -1)
            for j, f in enumerate(group.functions):
                mean[:, f], std[:, f] = block.mean[:, j], spread[:, j]
                if draw is not None and block.draw is not None:
                    draw[:, f] = block.draw[:, j]
        return Block(first.start, first.stop, mean, std, draw)

    @property
    def fused(self) -> bool:
        """Whether one pass both updates and chooses: see :meth:`best`."""
        return len(self.groups) == 1 and self.groups[0].fused

    def best(
        self, look: Look, streams: Streams | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The best action: its score ``(T,)``, number ``(T,)``, estimates ``(T, F)``.

        Where it is :attr:`fused`; with ``streams``, estimates are joint draws.
        """
        return self.groups[0].best(look, streams)

    def choose(
        self, look: Look, streams: Streams | None = None, ahead: Sequence[Ahead] = ()
    ) -> Best:
        """Apply what was told and return the best action under ``look``.

        The only call that changes the arrays over the set; it always runs to the end.

        Args:
            look: which score of which estimates; its offset holds minus the thresholds.
            streams: estimates are of a joint draw from these; ``None``: of deviations.
            ahead: outstanding choices, whose variance counts as if they had been told.
        """
        plain = ahead or look.beside is not None or look.score not in SCORES
        if plain or not self.fused:
            blocks = self.sweep(streams, ahead)
            return scan(map(_around, blocks), look, self.ranks)
        value, index, estimate = self.best(look, streams)
        best = Best(value, index, estimate[:, 0], estimate[:, 1:])
        return best if self.ranks.size == 1 else among(best, self.ranks)

    def posterior(self) -> tuple[Tensor, Tensor]:
        """Means and standard deviations of all actions, ``(T, F, N)`` each."""
        assert not isinstance(self.actions, Box)
        trials = self.groups[0].trials
        shape = (trials, self.functions, self.actions.size)
        mean = torch.empty(shape, dtype=self.dtype, device=self.device)
        std = torch.empty_like(mean)
        for block in self.sweep():
            mean[..., block.start : block.stop] = block.mean
            std[..., block.start : block.stop] = block.std
        if self.ranks.size == 1:
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
        order = [f for group in self.groups for f in group.functions]
        back = [order.index(f) for f in range(self.functions)]
        mean, std = (
            torch.stack([torch.cat(parts, 1)[:, f] for f in back], 1)
            for parts in zip(*found, strict=True)
        )
        return mean, std

    def looking(
        self, ahead: Sequence[Ahead] = ()
    ) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        """:meth:`anywhere` as of now, for many looks at points ``(T, n, d)``."""
        if ahead or not stackable(self.groups):
            return lambda x: self.anywhere(x, ahead)
        return Stacked(self.groups)

    def draws(self, streams: Streams) -> Callable[[Tensor], Tensor]:
        """Joint draws less their means, as a function of ``x``, ``(T, F, n)``."""
        paths = [group.draw(streams) for group in self.groups]
        order = [f for group in self.groups for f in group.functions]
        places = [order.index(f) for f in range(self.functions)]
        back = devices.put(places, self.device)

        def draw(x: Tensor) -> Tensor:
            return torch.cat([path(x) for path in paths], 1)[:, back]

        return draw

    def incumbents(self, count: int) -> Tensor:
        """The actions tried last, ``(T, k, d)``."""
        log = max((group.log for group in self.groups), key=len)
        recent = list(log)[-count:]
        if not recent:
            trials = self.groups[0].trials
            return torch.zeros(
                trials, 0, self.actions.dim, dtype=torch.float64, device=self.device
            )
        return torch.stack([row.x.double() for row in recent], 1)

    def deviations(self, x: Tensor) -> Tensor:
        """Standard deviations at any points, ``(T, F, n)``, in the engines' units."""
        shape = (self.groups[0].trials, self.functions, x.shape[-2])
        std = torch.empty(shape, dtype=torch.float64, device=self.device)
        for group in self.groups:
            var = group.engine.history.at(x)[1]
            for f in group.functions:
                std[:, f] = var.clamp_min(0).sqrt()
        return std

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
            split = any(isinstance(group.engine, Rows) for group in self.groups)
            parts.append(f"{self.ranks}: {'a part of the set' if split else 'all'}")
        return "; ".join(parts)

    def check_samples(self) -> None:
        """An error now, not in a round, where joint draws cannot be had."""
        from cbandit.posterior.draws.paths import check_features

        for group in self.groups:
            if group.plan.name in ("factor", "stream", "dense"):
                check_features(group.covariance)


def _around(block: Block) -> tuple[int, Tensor, Tensor]:
    """A block's start, its means, and its draw or else its deviations."""
    spread = block.std if block.draw is None else block.draw
    return block.start, block.mean, spread


def _columns(values: Tensor, functions: list[int], wanted: list[int]) -> Tensor:
    """Of ``values (T, f)`` of some functions, those of the ``wanted``."""
    if wanted == functions:
        return values
    return torch.stack([values[:, functions.index(f)] for f in wanted], -1)


Part = tuple[list[int], Tensor, Sequence[bool], "Tensor | None"]


def joined(parts: Sequence[Part]) -> list[Part]:
    """Parts seen in the same trials with the same noise are one."""
    if len(parts) < 2:
        return list(parts)
    first, *rest = parts
    alike = all(
        (part[2] is first[2] or list(part[2]) == list(first[2]))
        and (
            (part[3] is None and first[3] is None)
            or (
                part[3] is not None
                and first[3] is not None
                and bool((part[3] == first[3]).all())
            )
        )
        for part in rest
    )
    if not alike:
        return list(parts)
    functions = [f for part in parts for f in part[0]]
    return [(functions, torch.cat([p[1] for p in parts], -1), first[2], first[3])]
