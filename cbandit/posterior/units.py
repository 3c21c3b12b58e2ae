"""Units of outcomes: the user's, an engine's, and that of scores and multipliers.

Beliefs that rescale their outcomes are read in spreads: a function less its average,
divided by its spread. So a policy does the same whatever unit outcomes are measured in.
Users see their own units. All objects here are values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from torch import Tensor

from cbandit._core import devices
from cbandit._core.values import copy_with
from cbandit.errors import CBanditError
from cbandit.posterior.links import Link
from cbandit.posterior.log import Log, Observation, Update
from cbandit.posterior.look import Block
from cbandit.posterior.prior_mean import PriorMean
from cbandit_kernels import OutcomeCounts, count_outcomes

STATED = 1e18  # outcomes on which a stated unit counts as resting
ENDLESS = 1e3  # a latent value further from 0 than any real one
ASTRAY = 8.0  # spreads from the origin beyond which float32 loses the differences
LOST = 1e-6  # share of earlier sums below which what is left of them is recounted


class Units(NamedTuple):
    """The units of ``F`` functions in ``T`` trials, ``(T, F)`` each.

    A function whose outcomes are not rescaled is counted from 0, in the user's unit.

    Args:
        center: the value that counts as 0.
        size: the size of the unit, 1 if there is none yet.
        known: whether there is a unit yet, which takes two outcomes that differ.
        seen: how many outcomes the unit rests on; infinite for the user's own.
        links: each function's link, or ``None`` if it is Gaussian. A function with a
            link is handed out as its latent one, see :func:`linked` and :func:`told`.
    """

    center: Tensor
    size: Tensor
    known: Tensor
    seen: Tensor
    links: tuple[Link | None, ...]

    @classmethod
    def own(cls, like: Tensor) -> Units:
        """Return the user's own units for functions in the shape of ``like (T, f)``."""
        ones = torch.ones_like(like)
        links = (None,) * like.shape[1]
        return cls(ones * 0, ones, ones > 0, ones * torch.inf, links)

    def of(self, function: int) -> Units:
        """Return the units of one function, ``(T, 1)`` each."""
        center, size, known, seen = (
            column[:, function : function + 1] for column in self[:4]
        )
        return Units(center, size, known, seen, self.links[function : function + 1])

    def told(self, estimate: Tensor) -> Tensor:
        """Return estimates ``(T, F, n)`` of unlinked functions in the user's units."""
        center, size = self.center.to(estimate), self.size.to(estimate)
        return torch.addcmul(center.unsqueeze(-1), estimate, size.unsqueeze(-1))

    @property
    def shared(self) -> bool:
        """Whether every function is in its own spread, and none in the user's unit."""
        own = self.seen.isinf().any(0).tolist()
        return all(
            link or not plain for link, plain in zip(self.links, own, strict=True)
        )

    @property
    def binds(self) -> bool:
        """Whether any function has a link."""
        return any(self.links)

    def ratio(self, costs: int) -> Tensor:
        """Return the reward's unit over each cost's, ``(T, m)``; NaN if one is missing.

        Costs without a belief have the unit 1.
        """
        reward, known = self.size[:, :1], self.known[:, :1]
        if self.size.shape[1] > 1:
            reward, known = reward / self.size[:, 1:], known & self.known[:, 1:]
        return torch.where(known, reward, torch.nan).expand(-1, costs)

    def rests_on(self, least: int) -> Tensor:
        """Return the trials ``(T,)`` in which every unit has ``least`` outcomes."""
        return ((self.seen >= least) & self.known).all(-1)


def stated_units(prior: PriorMean) -> Units:
    """Return the units of outcomes that are not rescaled by themselves."""
    own = Units.own(prior.level)
    if prior.center is None or prior.size is None:
        return own
    seen = torch.full_like(own.seen, STATED)
    return own._replace(center=prior.center, size=prior.size, seen=seen)


def no_outcomes(like: Tensor) -> OutcomeCounts:
    """Return the statistics of no outcome, in the shape of ``like (T, f)``."""
    zeros = torch.zeros_like(like, dtype=torch.float64)
    none = zeros[:, :1].clone()
    known = torch.zeros_like(like, dtype=torch.bool)
    return OutcomeCounts(none, zeros, zeros, zeros, zeros, known, zeros + 1)


def all_outcomes(rows: Iterable[Observation], like: Tensor) -> OutcomeCounts:
    """Return the statistics of all rows, bit for bit as if counted one by one.

    They are counted on the host, and are in the shape of ``like (T, f)``.
    """
    rows, counts = list(rows), no_outcomes(like)
    if not rows:
        return counts
    if all(row.arrived is None for row in rows):
        wanted = torch.tensor([list(row.wanted) for row in rows]).unsqueeze(-1)
        flags = devices.put(wanted, like.device)
    else:
        flags = torch.stack([row.outcome_flags(like.device) for row in rows])
    told = torch.stack([row.values for row in rows])
    values, came = devices.host(told, flags.long())
    counts = no_outcomes(values[0])
    for value, flag in zip(values, came > 0, strict=True):
        counts = count_outcomes(counts, value, flag)
    return OutcomeCounts(*(devices.put(part, like.device) for part in counts))


def spreads_of(counts: OutcomeCounts) -> Units:
    """Return units of one spread around the average; 1 until two outcomes differ.

    Outcomes that share their first twelve digits count as equal: their differences may
    be rounding, and in so small a unit later outcomes would be enormous.
    """
    average, size = counts.average, counts.size
    seen, links = counts.seen.expand_as(size), (None,) * size.shape[1]
    return Units(average, size, counts.known, seen, links)


@dataclass(frozen=True, eq=False)
class Scale:
    """How the outcomes of ``f`` functions in ``T`` trials enter their engine.

    An engine conditions on differences from the prior mean or, if outcomes are
    standardised, from a first guess of their mean. In that case the engine has one more
    column, of ones, which tells how far each mean has moved from the prior's.

    Args:
        prior: the prior means.
        noise: the belief's variance of one observation, ``(T,)``.
        least: the smallest noise used in place of a smaller one, ``()`` or ``(T,)``.
        standardize: whether outcomes are rescaled by their own average and spread.
        constants: the prior means of rescaled outcomes, in spreads from the average,
            ``(T, f)``.
        limit: the limit ``(T, 1)`` of a cost with a link, which sets its unit;
            ``None``: the outcomes set the unit.
        scaled: whether outcomes are divided by a unit.
        shifted: whether there are prior means to add to an engine's.
        usual: the belief's own precision, ``(T,)``.
        outcomes: statistics of the outcomes.
        spreads: the units in which means and deviations are returned: those of the
            outcomes, or the user's own.
        pool: events, and tries or exposure, of all outcomes with a link, ``(T, 2)``.
    """

    prior: PriorMean
    noise: Tensor
    least: Tensor
    standardize: bool
    constants: Tensor
    limit: Tensor | None
    scaled: bool
    shifted: bool
    usual: Tensor
    outcomes: OutcomeCounts
    spreads: Units
    pool: Tensor

    @classmethod
    def start(
        cls,
        prior: PriorMean,
        noise: Tensor,
        least: Tensor,
        standardize: bool,
        constants: Tensor | None = None,
        limit: Tensor | None = None,
    ) -> Self:
        """Return a scale without outcomes; without ``constants`` they are 0."""
        means = prior.level
        noise, none = noise.maximum(least), no_outcomes(means)
        pool = torch.zeros_like(none.average[:, :1].expand(-1, 2))
        scale = cls(
            prior,
            noise,
            least,
            standardize,
            torch.zeros_like(means) if constants is None else constants,
            limit,
            scaled=standardize or prior.size is not None,
            shifted=prior.varies or bool((means != 0).any()),
            usual=noise.reciprocal(),
            outcomes=none,
            spreads=spreads_of(none) if standardize else stated_units(prior),
            pool=pool,
        )
        return scale._pooled(pool)

    @property
    def means(self) -> Tensor:
        """The level of the prior means, ``(T, f)``."""
        return self.prior.level

    @property
    def link(self) -> Link | None:
        """The link of a binary or counted function; ``None``: outcomes are Gaussian.

        Such a function is alone in its engine, with latent means.
        """
        return self.prior.link

    @property
    def columns(self) -> int:
        """How many columns the engine has: the functions, and ones if there are any."""
        return self.means.shape[1] + int(self.standardize)

    def counted(self, row: Observation, sign: int = 1) -> Self:
        """Return the scale with a row counted, or with ``sign=-1`` removed."""
        if self.link is not None:
            return self._pooled(self.pool + sign * totals(row))
        if not self.standardize:
            return self
        came = row.outcome_flags(self.means.device)
        return self._of(count_outcomes(self.outcomes, row.values, came, sign))

    def drained(self, before: Self) -> bool:
        """Return whether rounding may dominate what a removal has left of the pool."""
        return self.link is not None and bool((self.pool < LOST * before.pool).any())

    def over(self, log: Log) -> Self:
        """Return the scale with all statistics recounted from a log."""
        if self.link is not None:
            return self._pooled(sum(map(totals, log), torch.zeros_like(self.pool)))
        if not self.standardize:
            return self
        return self._of(all_outcomes(log, self.means))

    def narrowed(self, places: list[int]) -> Self:
        """Return the scale of the functions at ``places``."""
        seen, *others = self.outcomes
        at = devices.put(places, self.means.device)
        outcomes = OutcomeCounts(seen, *(part[:, at] for part in others))
        prior = self.prior.narrowed(places)
        means = prior.level
        return copy_with(
            self,
            prior=prior,
            constants=self.constants[:, at],
            shifted=prior.varies or bool((means != 0).any()),
            outcomes=outcomes,
            spreads=spreads_of(outcomes) if self.standardize else stated_units(prior),
        )

    def _pooled(self, pool: Tensor) -> Self:
        """Return the scale of a function with a link, given its outcomes' sums."""
        link, units = self.link, Units.own(self.means)
        if link is None:
            return self
        level = link.pooled(pool[:, :1], pool[:, 1:])
        if self.limit is not None:
            inside = link.latent(self.limit).isfinite()
            level = torch.where(inside, self.limit, level)
        units = units._replace(size=link.unit(level), links=(link,))
        return copy_with(self, pool=pool, spreads=units)

    def middle(self) -> Tensor:
        """Return the latent value of the mean of all outcomes, ``(T, 1)``."""
        if self.link is None:
            return torch.zeros_like(self.means)
        return self.link.latent(self.link.pooled(self.pool[:, :1], self.pool[:, 1:]))

    def _of(self, outcomes: OutcomeCounts) -> Self:
        """Return the scale with other statistics."""
        return copy_with(self, outcomes=outcomes, spreads=spreads_of(outcomes))

    def lost(self, narrow: bool) -> bool:
        """Return whether rounding errors dominate the statistics or an engine.

        The former follows removals. The latter holds in a ``narrow`` dtype if outcomes
        are too far from the first one, as arrays hold differences from it.
        """
        _, average, squares, most, origin, known, size = self.outcomes
        if bool((squares < LOST * most).any()):
            return True
        far = (average - origin).abs() > ASTRAY * size
        return narrow and bool((known & far).any())

    def fitted(
        self,
        noise: Tensor,
        least: Tensor,
        constants: Tensor | None,
        prior: PriorMean | None,
    ) -> Scale:
        """Return the scale with other hyperparameters, without outcomes.

        Args:
            noise: ``(T,)``.
            least: ``()`` or ``(T,)``.
            constants: the learned prior means, ``(T, f)``, in the units of
                :meth:`targets_of`; ``None``: they do not change.
            prior: the prior mean, if its parameters were fitted; ``None``: they were
                not.
        """
        prior, before = prior or self.prior, self.constants
        if constants is None:
            constants = before
        elif not self.standardize:
            prior, constants = prior.raised(constants), before
        return self.start(prior, noise, least, self.standardize, constants, self.limit)

    # -- into the engine -------------------------------------------------------------

    def update(self, row: Observation) -> Update:
        """Return a row in the form that the engine takes."""
        targets, precision = self.targets(row), self.precision(row)
        usual = precision is self.usual
        return Update(row.keys, row.x, targets, precision, row.wanted, usual, row.t)

    def targets(self, row: Observation) -> Tensor:
        """Return the differences that the engine conditions on, ``(T, F)``."""
        targets = row.values
        if not self.standardize:
            if self.shifted or self.scaled:
                targets = targets - self.expected(row.x)
            return targets / self.spreads.size if self.scaled else targets
        targets = targets - self.outcomes.origin
        if row.arrived is None:
            ones = torch.ones_like(self.outcomes.seen)
        else:
            targets = torch.where(row.arrived, targets, 0.0)
            ones = row.arrived[:, :1].double()
        return torch.cat([targets, ones], -1)

    def precision(self, row: Observation) -> Tensor:
        """Return the row's precision ``(T,)``, 0 in trials without an observation."""
        precision = self.usual
        if row.noise is not None:
            noise = row.noise
            if self.scaled:  # the belief's own precision until there is a unit
                units = self.spreads
                noise = noise / units.size[:, 0].square()
                noise = torch.where(units.known[:, 0], noise, self.noise)
            precision = noise.maximum(self.least).reciprocal()
        if all(row.wanted):
            return precision
        return devices.put(row.wanted, self.means.device) * precision

    def expected(self, x: Tensor) -> Tensor:
        """Return the prior means ``(T, f)`` at one point a trial, ``(T, d)``.

        They are in the user's unit, as outcomes are.
        """
        if not (self.prior.varies or self.scaled):
            return self.means
        return self.prior.told(x.unsqueeze(1))[..., 0]

    # -- out of the engine -----------------------------------------------------------

    def targets_of(self) -> tuple[Tensor, Tensor]:
        """Return the shift and divisor of outcomes before a fit, ``(T, f)`` each."""
        units = self.spreads
        if self.standardize:
            return units.center, units.size
        if self.scaled:
            return units.center + self.means * units.size, units.size
        return self.means, torch.ones_like(self.means)

    def levels(self) -> tuple[Tensor, Tensor]:
        """Return prior means and unit sizes in the user's units, ``(T, f)`` each."""
        if not self.standardize:
            return self.targets_of()
        units = self.spreads
        return units.center + self._constants_in(units) * units.size, units.size

    def _constants_in(self, units: Units) -> Tensor:
        """Return the prior means in units; 0 while there is no unit."""
        return torch.where(units.known, self.constants, 0.0)

    def mean(self, mean: Tensor) -> Tensor:
        """Return the engine's mean ``(T, F, n)`` converted to units, ``(T, f, n)``."""
        if not self.standardize:
            return mean + self.means.unsqueeze(-1)
        gap, size, constants = self._frame(mean.dtype)
        above = mean[:, :-1] - gap * mean[:, -1:]
        return above.div_(size).add_(constants)

    def _frame(self, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        """Return gap, size and constant that turn an engine's mean into units.

        Each is ``(T, f, 1)``. As the mean is linear in its targets, the mean for ``y -
        gap`` is the mean for ``y`` less gap times the mean for ones.
        """
        units = self.spreads
        constants = self._constants_in(units)
        gap = units.center - self.outcomes.origin + constants * units.size
        return (
            gap.to(dtype).unsqueeze(-1),
            units.size.to(dtype).unsqueeze(-1),
            constants.to(dtype).unsqueeze(-1),
        )

    def weights(self, alpha: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``w (T, f, U)`` and ``b (T, f)``: the mean in units is ``w k + b``."""
        if not self.standardize:
            return alpha.mT, self.means
        gap, size, constants = self._frame(alpha.dtype)
        weights = alpha.mT
        return (weights[:, :-1] - gap * weights[:, -1:]) / size, constants.squeeze(-1)

    def noises(self, count: Tensor, residuals: Tensor) -> Tensor:
        """Return noise variances in units, ``(T, f)``, learned with a conjugate prior.

        The prior is an inverse gamma of mean precision 1 that counts as two
        observations.

        Args:
            count: the number of observations, ``(T,)``.
            residuals: ``(T, F, F)``, the squares that the best weights leave over all
                columns, ones included, plus the weights' own squares.
        """
        units = self.spreads
        gap = units.center - self.outcomes.origin
        own = residuals.diagonal(dim1=-2, dim2=-1)
        # for targets y - gap, linear in the columns
        left = (
            own[:, :-1] - 2 * gap * residuals[:, :-1, -1] + gap.square() * own[:, -1:]
        )
        left = (left / units.size.square()).clamp_min(0)
        return (1 + 0.5 * left) / (1 + 0.5 * count.unsqueeze(-1))

    def blocks(
        self, blocks: Iterable[Block], dtype: torch.dtype, level: Tensor | None = None
    ) -> Iterator[Block]:
        """Yield an engine's blocks converted to units, in ``dtype``.

        ``level (T, f)`` are the noise variances that serve as the engine's unit.
        """
        if not self.standardize:
            shift = self.means.to(dtype).unsqueeze(-1)
            for block in blocks:
                block.mean = block.mean + shift
                yield block
            return
        gap, size, constants = self._frame(dtype)
        for block in blocks:  # as in mean()
            above = block.mean[:, :-1] - gap * block.mean[:, -1:]
            block.mean = above.div_(size).add_(constants)
            block.draw = None if block.draw is None else block.draw[:, :-1]
            if level is not None:
                factor = level.sqrt().to(dtype).unsqueeze(-1)
                block.std = block.std * factor
                block.draw = None if block.draw is None else block.draw * factor
            yield block


def level(units: Units | None, tau: Tensor) -> Tensor:
    """Return thresholds ``(T, m)`` in units; 0 for a cost that has no unit yet."""
    if units is None or units.size.shape[1] == 1:
        return tau
    inside = (tau - units.center[:, 1:]) / units.size[:, 1:]
    return torch.where(units.known[:, 1:], inside, 0.0)


def totals(row: Observation) -> Tensor:
    """Return a row's events, and tries or exposure, ``(T, 2)``; 0 if not wanted."""
    if row.outcome is None:
        raise CBanditError("the observation holds no binary or counted outcome")
    share, tries = row.outcome.unbind(-1)
    wanted = devices.put(row.wanted, tries.device)
    return torch.stack([share * tries, tries], -1) * wanted.unsqueeze(-1)


def told(units: Units | None, mean: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
    """Return means and deviations ``(T, F, n)`` in the user's units.

    They are float64 if anything is rescaled, as with a large average float32 would
    round away the differences, and the distance from a limit with them.
    """
    if units is None:
        return mean, std
    mean, std = mean.double(), std.double()
    size = units.size.to(mean).unsqueeze(-1)
    center = units.center.to(mean).unsqueeze(-1)
    if not units.binds:
        return torch.addcmul(center, mean, size), std * size
    std = std.expand_as(mean)
    means, stds = [], []
    for f, link in enumerate(units.links):
        row, width = mean[:, f], std[:, f]
        if link is None:
            row, width = (
                torch.addcmul(center[:, f], row, size[:, f]),
                width * size[:, f],
            )
        else:
            row, width = link.moments(row, width)
        means.append(row)
        stds.append(width)
    return torch.stack(means, 1), torch.stack(stds, 1)


def deviations(units: Units | None, mean: Tensor, std: Tensor) -> Tensor:
    """Return deviations ``(T, F, n)`` in units, also for functions with a link."""
    if units is None or not units.binds:
        return std
    size = units.size.to(mean).unsqueeze(-1)
    return told(units, mean, std)[1] / size


def linked(units: Units | None, values: Tensor, first: int = 0) -> Tensor:
    """Return estimates in units, with latent ones turned to probabilities and rates.

    Args:
        units: of all functions; ``None``: the user's, without links.
        values: estimates ``(T, f, n)`` of the functions from ``first`` on, latent if
            the function has a link. Without gradients they are changed in place.
        first: the number of the first function.
    """
    if units is None or not units.binds:
        return values
    rows = list(values.unbind(1))
    for f, link in enumerate(units.links[first : first + len(rows)]):
        if link is not None:
            size = units.size[:, first + f : first + f + 1].to(values)
            plain = link.value(rows[f])
            if values.requires_grad:
                rows[f] = plain / size
            else:
                torch.div(plain, size, out=rows[f])
    return torch.stack(rows, 1) if values.requires_grad else values


def normal(
    units: Units | None, mean: Tensor, std: Tensor, limits: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return means, deviations and limits for normal chances to keep the limits.

    They are in the user's units; for a cost with a link all three are latent.

    Args:
        units: of all functions.
        mean: ``(T, 1 + m, n)``, in units.
        std: likewise.
        limits: the thresholds, ``(T, m)`` or ``(T, m, n)``.
    """
    means, stds = told(units, mean, std)
    if units is None or not units.binds:
        return means, stds, limits
    of = [(None, *units.links[1:])[f] is not None for f in range(mean.shape[1])]
    flags = torch.tensor(of, device=mean.device).unsqueeze(-1)
    return (
        torch.where(flags, mean, means),
        torch.where(flags, std.expand_as(mean), stds),
        normal_limits(units, limits),
    )


def normal_limits(units: Units | None, limits: Tensor) -> Tensor:
    """Return thresholds ``(T, m)`` or ``(T, m, n)``, latent for costs with a link."""
    if units is None or all(link is None for link in units.links[1:]):
        return limits
    columns = list(limits.unbind(1))
    for j, link in enumerate(units.links[1:]):
        if link is not None:
            # a limit that is never reached stays finite, like latent values
            columns[j] = link.latent(columns[j]).clamp(-ENDLESS, ENDLESS)
    return torch.stack(columns, 1)
