"""A group: functions that share a prior covariance, a noise and their observations.

A group is a value with a log of observations, how outcomes enter the engine, and an
engine, which catches up with the log before a look.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor

from cbandit._core import devices
from cbandit._core.distributed import Ranks
from cbandit._core.randomness import Streams
from cbandit._core.values import copy_with
from cbandit.actions import Actions, Contextual
from cbandit.beliefs.gp import GP
from cbandit.errors import CBanditError
from cbandit.posterior.covariance import Prior, one_a_trial
from cbandit.posterior.draws.features import Pathwise
from cbandit.posterior.engines.choice import BEYOND, BLOCK, make_engine
from cbandit.posterior.engines.protocol import Engine, Fused, Path, Plan
from cbandit.posterior.likelihood import Learning, merged
from cbandit.posterior.links import Link
from cbandit.posterior.log import Log, Observation, Step
from cbandit.posterior.look import Block
from cbandit.posterior.pending import Ahead, Coming
from cbandit.posterior.refit import fit_hyperparameters
from cbandit.posterior.sweeps import swept
from cbandit.posterior.units import Scale

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


@dataclass(frozen=True, eq=False)
class Group:
    """Functions that share a prior covariance, a noise and their observations.

    Args:
        gp: the specification of the first function; the others differ only in their
            means.
        functions: the numbers of the functions, 0 for the reward.
        prior: the set, and the prior over it.
        scale: how outcomes enter the engine.
        ranks: the processes that share the set.
        held: the engine in its last state; :attr:`engine` brings it up to date first.
        elastic: whether another engine may replace it when memory runs short.
        log: the observations.
        unfitted: how many observations have come since the last fit.
        fitted_to: how many rows the log had at the last fit.
        fitted: whether the noise was learned from many data.
        now: the current round if data fade, else 0.
        own_noise: whether any observation had a noise of its own.
    """

    gp: GP
    functions: list[int]
    prior: Prior
    scale: Scale
    ranks: Ranks
    held: Engine
    elastic: bool
    log: Log = field(default_factory=Log)
    unfitted: int = 0
    fitted_to: int = 0
    fitted: bool = False
    now: int = 0
    own_noise: bool = False

    def __getstate__(self) -> dict[str, Any]:
        state = dict(vars(self))
        if self.held.light:  # only its plan was saved
            state |= {"held": None, "plan": self.held.plan}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        planned = state.pop("plan", None)
        vars(self).update(state)
        if planned is None and not self.held.covers(_stretch(self.prior, self.ranks)):
            # it is another rank's
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
        engine.catch_up(self.log, scale.columns, scale.update, self.own_noise)
        if self.elastic and engine.keeps_rows:
            engine.make_room()
        engine.first = self.functions[0]
        return engine

    def _fresh(self, plan: Plan) -> Engine:
        return new_engine(plan, self.prior, self.scale, self.ranks)

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

    def aged(self, t: int) -> Self:
        """Return the group as of round ``t``, if data fade."""
        if self.prior.fade is None or t == self.now:
            return self
        return copy_with(self, now=t)

    # -- feedback --------------------------------------------------------------------

    def _over(self, log: Log, **more: Any) -> Self:
        """Return the group with another log; its engine is rebuilt when next used."""
        return copy_with(self, log=log, **{"scale": self.scale.over(log), **more})

    def absorb(self, observations: Sequence[Observation]) -> Self:
        """Condition on observations, in the order of their choices."""
        rows, link = list(map(self._row, observations)), self.scale.link
        if len(rows) > FEW and (link is None or self._summed() is None):
            log, unfitted = self.log.merged(rows), self.unfitted + len(rows)
            own_noise = self.own_noise or any(row.noise is not None for row in rows)
            if link is None:
                return self._over(log, unfitted=unfitted, own_noise=own_noise)
            return self._agreed(log, unfitted=unfitted, own_noise=True)
        group = self
        for row in rows:
            group = group.append(row)
        return group

    def _row(self, observation: Observation) -> Observation:
        """Return an observation as a row of the log.

        Earlier data count as of now if data fade.
        """
        row, link = observation.of(self.functions), self.scale.link
        if self.now and not row.t:
            row = row._replace(t=self.now)
        if link is None:
            return row
        values = row.values
        tries = torch.ones_like(values) if row.tries is None else row.tries.to(values)
        outcome = torch.cat([link.sense * values, tries], -1)
        return row._replace(outcome=outcome)

    def append(self, row: Observation) -> Self:
        """Condition on one more observation."""
        scale, now = self.scale, self.now
        if self.prior.fade is not None:
            now = max(now, row.t)
        if scale.link is not None:
            row = self.aged(now)._stood_in(row, scale.link)
        more: dict[str, Any] = {
            "unfitted": self.unfitted + 1,
            "now": now,
            "own_noise": self.own_noise or row.noise is not None,
        }
        if not self.held.takes(row.keys):
            return self._over(self.log.enter(row), held=self._fresh(BEYOND), **more)
        # a weight by the spread changes with the spread
        weighted = scale.standardize and more["own_noise"]
        if weighted or (self.prior.covariance.open and self._reframed(row)):
            return self._over(self.log.enter(row), **more)
        if scale.standardize or scale.link is not None:
            scale = scale.counted(row)
        log = self.log.enter(row, Step("add", (scale.update(row),)))
        return copy_with(self, log=log, scale=scale, **more)

    def _reframed(self, row: Observation) -> bool:
        """Return whether a late row changes how inputs are standardised."""
        later = range(self.log.first_of(row.t + 1), len(self.log))
        if not later:
            return False
        flags = [self.log[place].wanted for place in later]
        return self.engine.reframed(row.wanted, flags)

    def _stood_in(self, row: Observation, link: Link) -> Observation:
        """Return a row with its outcome's current stand-in."""
        if row.outcome is None:
            raise CBanditError("the observation holds no binary or counted outcome")
        mean, var = self.engine.at(row.x.unsqueeze(1).double())
        share, tries = row.outcome.unbind(-1)
        center = self.scale.mean(mean)[:, 0, 0]
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
            log = swept(log, link, covariance, self.scale.prior)
        return self._over(log, **more)

    def fill(self, t: int, functions: list[int], values: Tensor, mask: Tensor) -> Self:
        """Add values that round ``t`` waited for, in the trials of ``mask``.

        ``values (T, k)`` are of ``functions``. Nothing changes if the round was
        forgotten.
        """
        ours = [f for f in self.functions if f in functions]
        place = self.log.first_of(t)
        if not ours or place == len(self.log) or self.log[place].t != t:
            return self
        row, come = self.log[place], mask.unsqueeze(-1)
        if row.arrived is None:
            raise CBanditError(f"the observation of round {t} waits for nothing")
        filled, arrived = row.values.clone(), row.arrived.clone()
        for f in ours:
            new, old = functions.index(f), self.functions.index(f)
            told, at = values[:, new : new + 1], slice(old, old + 1)
            filled[:, at] = torch.where(come, told, filled[:, at])
            arrived[:, at] |= come
        full = row._replace(values=filled, arrived=arrived)
        scale = self.scale
        if scale.standardize:
            scale = scale.counted(full._replace(noise=None, arrived=come))
        before = self.scale.update(row)
        after = before._replace(values=scale.targets(full))
        log = self.log.replaced(place, full, Step("aim", (before, after)))
        return copy_with(self, log=log, scale=scale)

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
        other = copy_with(self, log=log, scale=scale)
        if scale.standardize and (self.own_noise or scale.lost(self.held.drifts)):
            return other._over(log.anew())
        if self.prior.covariance.open:  # rebuilt, as the rows left scale the inputs
            return copy_with(other, log=log.anew())
        return other

    def retarget(self, rows: list[Observation]) -> Self:
        """Replace the log's rows by ``rows``, which differ in their values alone."""
        if not rows:
            return self
        scale = self.scale.over(Log(rows))
        step = Step("aim_all", (list(map(scale.update, rows)),))
        return copy_with(self, log=self.log.with_targets(rows, step), scale=scale)

    def emptied(self) -> Self:
        """Return the group without data, on a new engine, with its hyperparameters.

        So the old engine is as it was, to the bit, if the round fails.
        """
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
        covariance = self.prior.covariance.over(actions)
        grown = copy_with(
            self,
            prior=replace(self.prior, actions=actions, covariance=covariance),
            # an action of a grid has another number now
            log=Log([row._replace(keys=actions.keys(row.x)) for row in self.log]),
        )
        return copy_with(grown, held=grown._fresh(self.held.plan))

    def split(self, functions: list[int]) -> tuple[Self, Self]:
        """Return the group without the functions, and a group of the functions."""
        others = [f for f in self.functions if f not in functions]
        parts = []
        for members in (others, functions):
            places = [self.functions.index(f) for f in members]
            part = copy_with(
                self,
                functions=members,
                scale=self.scale.narrowed(places),
                log=Log([row.of(members) for row in self.log]),
            )
            parts.append(copy_with(part, held=part._fresh(self.held.plan)))
        remaining, split = parts
        return remaining, split

    # -- hyperparameters -------------------------------------------------------------

    @property
    def fits(self) -> bool:
        """Whether there is something to fit, or stand-ins to sweep."""
        return self.scale.link is not None or self._learns

    @property
    def _learns(self) -> bool:
        gp, kernel = self.gp, self.prior.covariance.kernel
        learns = gp.learn_noise or gp.learn_mean or self.scale.prior.learns
        return learns or bool(list(kernel.parameters()))

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
            return copy_with(self, unfitted=0)
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
        means = self.scale.prior
        if means.varies and not means.learns:
            data = data.less(means.above(data.x)[:, 0])
        gp, data = self.gp, replace(data, x=covariance.inputs(data.x))
        middle = self.scale.middle() - self.scale.means
        if self.scale.link is not None and gp.learn_mean:
            data = data.less(middle)  # outcomes with a link are not centred
        learning = Learning(
            gp.learn_noise,
            gp.learn_mean,
            gp.noise_prior,
            gp.by_default,
            means.apart() if means.learns else None,
            gp.noise_as_share,
        )
        noise, constants = fit_hyperparameters(
            kernel, self.noise.clone(), data, learning
        )
        covariance = covariance.with_kernel(kernel)
        least = covariance.least_noise(prior.actions)
        constants = constants.unsqueeze(-1)
        if gp.learn_mean and self.scale.link is not None:
            constants = constants + middle
        scale = self.scale.fitted(
            noise,
            least,
            constants if gp.learn_mean else None,
            learning.prior and learning.prior.levelled(),
        )
        fitted = copy_with(
            self,
            unfitted=0,
            fitted_to=len(self.log),
            fitted=self.gp.learn_noise and len(self.log) >= MANY,
            prior=replace(prior, covariance=covariance),
            scale=scale.over(self.log),
        )
        return copy_with(fitted, held=fitted._fresh(self.held.plan))

    # -- looking ---------------------------------------------------------------------

    def fused(self, ahead: Sequence[Ahead] = ()) -> Fused | None:
        """Return the engine's pass that updates and scores, if it has one."""
        scale = self.scale
        apart = ahead and not self.held.opens
        if scale.standardize or scale.link or apart:
            return None
        find = self.engine.fused
        return partial(find, ahead=self.coming(ahead)) if find and ahead else find

    def blocks(
        self,
        stretches: Iterable[tuple[int, int]],
        streams: Streams | None = None,
        ahead: Sequence[Ahead] = (),
    ) -> Iterator[Block]:
        """Yield blocks of the set, in units."""
        blocks = self.engine.blocks(stretches, streams, self.coming(ahead))
        if not (self.scale.shifted or self.scale.standardize):
            return blocks
        return self.scale.blocks(blocks, self.prior.dtype, self.learned_noise())

    def coming(self, ahead: Sequence[Ahead]) -> Coming | None:
        """Return outstanding choices in the form that the engine takes."""
        if not ahead:
            return None
        if self.scale.link is None:
            return Coming.of(ahead, self.functions, self.noise)
        coming = Coming.of(ahead, self.functions, torch.ones_like(self.noise))
        if coming is None:
            return None
        mean = self.scale.mean(self.engine.at(coming.places())[0])[:, 0]
        precision = self.scale.link.information(mean) * coming.precision
        return coming._replace(precision=precision)

    def moments(self, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        """Return means and deviations ``(T, f, n)`` in units.

        They are made of the engine's: means less prior means, and variances ``(T, n)``.
        """
        # the floor keeps gradients finite where the variance is 0
        std = var.clamp_min(1e-300).sqrt_().unsqueeze(1)
        return self.scale.mean(mean), self.in_spreads(std)

    def by_choice(self, space: Contextual) -> bool:
        """Return whether each choice has its own weights, whatever the context."""
        weights = not self.held.by_slots and space.categorical
        return weights and self.prior.covariance.blocks == space.size

    def in_spreads(self, std: Tensor) -> Tensor:
        """Return deviations ``(T, 1 or f, n)``, or draws, for each function."""
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
        center, size, known, seen = (v.unsqueeze(-1) for v in self.scale.spreads[:4])
        if not self.scale.standardize:
            endless = seen.expand(-1, -1, x.shape[-2])
            return [-endless, endless]
        mean, std = self.moments(*self.engine.at(x))
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

    def path(self, streams: Streams) -> Path:
        """Draw a joint path less its mean: a function ``(T, n, d) -> (T, f, n)``."""
        count, level = len(self.functions), self.learned_noise()
        path = self.engine.path(streams)
        if isinstance(path, Pathwise):
            return path.of(slice(count))
        if level is None:
            return lambda x: path(x)[:, :count]
        size = level.sqrt().unsqueeze(-1)
        return lambda x: path(x)[:, :count] * size


def new_engine(plan: Plan, prior: Prior, scale: Scale, ranks: Ranks) -> Engine:
    """Return a new engine for this process's part of the set."""
    if plan.dictionary is not None:
        dictionary = plan.dictionary._replace(noise=scale.noise)
        plan = replace(plan, dictionary=dictionary)
    means = scale.prior if scale.prior.varies else None
    prior = replace(prior, stretch=_stretch(prior, ranks), mean=means)
    return make_engine(plan, prior, scale.columns)


def _stretch(prior: Prior, ranks: Ranks) -> tuple[int, int] | None:
    """Return this process's part of the set; ``None``: all of it."""
    if ranks.size == 1 or prior.actions.continuous:
        return None
    return ranks.stretch(prior.actions, BLOCK)
