"""A group: functions that share a prior covariance, a noise and their observations.

A group is a value with a log of observations, how outcomes enter the engine, and an
engine, which catches up with the log before a look.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor

from cbandit._core import devices
from cbandit._core.distributed import Ranks
from cbandit._core.randomness import Streams
from cbandit.actions import Actions, Contextual
from cbandit.beliefs.gp import GP
from cbandit.errors import CBanditError
from cbandit.posterior.covariance import Prior, one_a_trial
from cbandit.posterior.draws.features import Pathwise
from cbandit.posterior.engines.choice import BEYOND, BLOCK, make_engine
from cbandit.posterior.engines.protocol import Engine, Fused, Path, Plan
from cbandit.posterior.likelihood import Learning, merged
from cbandit.posterior.links import Link
from cbandit.posterior.log import Log, Observation, Part, Step
from cbandit.posterior.look import Block
from cbandit.posterior.pending import Ahead, Coming
from cbandit.posterior.refit import fit_hyperparameters
from cbandit.posterior.sweeps import swept
from cbandit.posterior.units import Scale
from cbandit.posterior.value import Value

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
        """The engine, with all observations of the log."""
        engine: Engine = self.held
        scale = self.scale
        if self.now:
            engine.turn(self.now)
        engine.catch_up(self.log, scale.columns, scale.update, self._own_noise)
        if self._elastic and engine.keeps_rows:
            engine.make_room()
        engine.first = self.functions[0]
        return engine

    def _fresh(self, plan: Plan) -> Engine:
        prior = replace(self.prior, stretch=self._stretch())
        if plan.dictionary is not None:
            dictionary = plan.dictionary._replace(noise=self.noise)
            plan = replace(plan, dictionary=dictionary)
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
        engine.add_all([self.scale.update(row) for row in self.log])
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

    def row(
        self, keys: Sequence[Hashable], x: Tensor, part: Part, t: int = 0
    ) -> Observation:
        """Return feedback of one choice as a row of the log.

        Args:
            keys: the actions' names, one a trial.
            x: the actions, ``(T, d)``.
            part: the feedback.
            t: the round; 0 for earlier data, which count as of now if data fade.
        """
        values, link, outcome = part.columns(self.functions), self.scale.link, None
        if link is not None:
            tries = part.tries_of(self.functions[0]).to(values)
            outcome = torch.stack([link.sense * values[:, 0], tries], -1)
        given = keys, x, values, part.wanted, part.noise, t or self.now
        return Observation(*given, outcome=outcome, source=part.source)

    def append(self, row: Observation) -> Self:
        """Condition on one more observation."""
        if self.scale.link is not None:
            row = self.aged(max(self.now, row.t))._stood_in(row, self.scale.link)
        more: dict[str, Any] = {
            "unfitted": self.unfitted + 1,
            "_own_noise": self._own_noise or row.noise is not None,
        }
        if self.prior.fade is not None:
            more["now"] = max(self.now, row.t)
        if not self.held.takes(row.keys):
            return self._over(self.log.enter(row), held=self._fresh(BEYOND), **more)
        # a weight by the spread changes with the spread
        weighted = self.scale.standardize and more["_own_noise"]
        if weighted or (self.prior.covariance.open and self._reframed(row)):
            return self._over(self.log.enter(row), **more)
        scale = self.scale
        if scale.standardize or scale.link is not None:
            scale = scale.counted(row)
        log = self.log.enter(row, Step("add", (scale.update(row),)))
        return self._with(log=log, scale=scale, **more)

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
            if self.scale.link is not None:
                return self._agreed(log, unfitted=unfitted, _own_noise=True)
            own = self._own_noise or any(row.noise is not None for row in rows)
            return self._over(log, unfitted=unfitted, _own_noise=own)
        group = self
        for row in rows:
            group = group.append(row)
        return group

    def _stood_in(self, row: Observation, link: Link) -> Observation:
        """Return a row with its outcome's current stand-in."""
        if row.outcome is None:
            raise CBanditError("the observation holds no binary or counted outcome")
        mean, var = self.engine.at(row.x.unsqueeze(1).double())
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
        scale = self.scale
        if scale.standardize:
            scale = scale.counted(full._replace(noise=None, arrived=come))
        before = self.scale.update(row)
        after = before._replace(values=scale.targets(full))
        log = self.log.replaced(place, full, Step("aim", (before, after)))
        return self._with(log=log, scale=scale)

    def expire(self, first: int) -> Self:
        """Forget the observations of rounds before ``first``."""
        group = self
        while len(group.log) and group.log[0].t < first:
            group = group.forget_oldest()
        return group

    def forget_oldest(self) -> Self:
        """Forget the oldest observation."""
        row, scale = self.log[0], self.scale.counted(self.log[0], -1)
        log = self.log.without_first(Step("remove", (scale.update(row),)))
        if scale.drained(self.scale):
            scale = scale.over(log)
        other = self._with(log=log, scale=scale)
        if scale.standardize and (self._own_noise or scale.lost(self.held.drifts)):
            return other._over(log.anew())
        if self.prior.covariance.open:  # rebuilt, as the rows left scale the inputs
            return other._with(log=log.anew())
        return other

    def retarget(self, target: Callable[[Any], Tensor]) -> Self:
        """Replace all outcomes by what ``target`` makes of their sources."""
        if not len(self.log):
            return self
        rows = [row._replace(values=target(row.source)) for row in self.log]
        scale = self.scale.over(Log(rows))
        step = Step("aim_all", (list(map(scale.update, rows)),))
        return self._with(log=self.log.with_targets(rows, step), scale=scale)

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
        parts = []
        for members in (others, functions):
            places = [self.functions.index(f) for f in members]
            at = torch.tensor(places, device=self.prior.device)
            part = self._with(
                functions=members,
                scale=self.scale.narrowed(at),
                log=Log([row.columns(at) for row in self.log]),
            )
            parts.append(part)
        remaining, split = parts
        return remaining, split._with(held=split._fresh(self.held.plan))

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
        mean = self.engine.at(coming.places())[0][:, 0] + self.scale.means
        precision = self.scale.link.information(mean) * coming.precision
        return coming._replace(precision=precision)

    def anywhere(self, x: Tensor, ahead: Sequence[Ahead] = ()) -> tuple[Tensor, Tensor]:
        """Solve for means and deviations ``(T, f, n)`` at points ``x``, in units."""
        return self._in_units(*self.engine.at(x, self._coming(ahead)))

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
        var = self.engine.at(x)[1]
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
        if self.held.by_slots and self.held.solves:
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
