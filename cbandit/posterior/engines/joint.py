"""The *joint* engine: the whole posterior covariance of a small set, float64.

A new observation is one rank-one change, ``O(N^2)`` a round whatever came before. A
compiled round needs its column alone, so that a few changes wait, and the covariance is
read and written once for all of them.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from cbandit._core import devices
from cbandit._core.randomness import Streams
from cbandit.actions import Actions
from cbandit.posterior.ahead import Coming, explained
from cbandit.posterior.block import Block
from cbandit.posterior.covariance import Covariance
from cbandit.posterior.draws.roots import pivoted_root, prior_root
from cbandit.posterior.engines.protocol import Base, Fused, Plan, Seen
from cbandit.posterior.history import Between, History
from cbandit.posterior.look import Best, Look
from cbandit_kernels import Late, joint_round, native

__all__ = ["Joint"]

PLAN = Plan("joint", "asked for")


class Joint(Base):
    """Means ``(T, F, N)`` and covariance ``(T, N, N)``, read as :attr:`cov`."""

    REWEIGH_EVERY = 64  # reverse changes, after which the means are computed afresh
    SHARES = 64  # of the gain, that are summed together
    LATE = 8  # changes that are applied together
    MANY = 128  # from this many actions on draws must not take O(N^3)

    def __init__(
        self,
        actions: Actions,
        covariance: Covariance,
        trials: int,
        functions: int,
        device: torch.device,
        plan: Plan = PLAN,
    ) -> None:
        self.actions, self.plan, self._trials = actions, plan, trials
        self._covariance = covariance
        points = actions.block(0, actions.size)
        table = covariance.cross(points, points)
        self._table = table if table.dim() == 3 else table.unsqueeze(0)
        self._trial = torch.arange(trials, device=device)
        self._root: Tensor | None = None
        self._cov = self._table.expand(trials, -1, -1).clone()
        self._late = Late.room(self._cov, self.LATE)
        self._begin_anew(functions)

    def clear(self, functions: int) -> None:
        """Forget everything, and keep as many functions from now on."""
        sharp = self.history.sharp
        self._to_prior()
        self._begin_anew(functions)
        self.history.sharp = sharp

    def _begin_anew(self, functions: int) -> None:
        trials, actions = self._trials, self.actions
        self.functions, device = functions, self._cov.device
        points = actions.block(0, actions.size)
        known = self._covariance, trials, functions, device, self._table, points
        self.mean = self._cov.new_zeros(trials, functions, actions.size)
        self._gain = self._cov.new_zeros(trials)
        # precision x variance of what was told since the gain was last asked for
        self._shares: list[Tensor] = []
        # an observation that the next pass takes in, if it is a compiled one
        self._told: tuple[Sequence[int], Tensor, Tensor] | None = None
        self._forgotten = 0
        self._stale = False  # whether the means are of older targets
        self.history = History(*known)

    @property
    def cov(self) -> Tensor:
        """The posterior covariance but for what was told last."""
        if self._late.waiting:
            number, self.history.stands_for = self.history.stands_for, None
            self._late.apply(self._cov)
            self._late = self._late._replace(waiting=0)
            self.history.stands_for = number
        return self._cov

    @property
    def _var(self) -> Tensor:
        """Its diagonal, ``(T, N)``."""
        late = self._late
        return late.var if late.waiting else self._cov.diagonal(dim1=-2, dim2=-1)

    def _to_prior(self) -> None:
        self._late = self._late._replace(waiting=0)
        self._cov.copy_(self._table)

    def takes(self, keys: Sequence[Hashable]) -> bool:
        """Only actions of the set, which are named by their numbers."""
        return isinstance(keys[0], int)

    def _shared(self) -> list[Any]:
        return [self._covariance, self.actions, self._table, self._root]

    # -- changes -------------------------------------------------------------------

    def append(self, seen: Seen) -> None:
        """Condition on one more observation."""
        self.settle()
        slots, values, precision = _numbered(seen)
        if len(slots) == 1:  # a plain view is quicker than gathering
            own = self._var.select(1, slots[0])
        else:
            own = self._var[self._trial, devices.put(slots, self._cov.device)]
        self._shares.append(precision * own)
        if len(self._shares) >= self.SHARES:
            self.gain()
        self._told = slots, precision, values
        if self.fused is None:
            self._take_in()
        self._stale |= self.history.clashes(slots, precision, seen.usual)
        self.history.add(slots, precision, values, usual=seen.usual)
        self.history.count(slots, seen.wanted, 1)

    def _take_in(self) -> None:
        """Change means and covariance by what was told last."""
        if self._told is None:
            return
        slots, precision, values = self._told
        if len(slots) == 1:
            (k,) = slots
            column = self.cov.select(1, k).clone()
            own, seen = column.select(1, k), self.mean.select(2, k)
        else:
            slot = devices.put(slots, self._cov.device)
            column = self.cov[self._trial, slot]  # T x N
            own, seen = column[self._trial, slot], self.mean[self._trial, :, slot]
        weight = (precision / (1 + precision * own)).unsqueeze(-1)
        self._change(column, weight, (values - seen) * weight, -1)
        self._told = None

    def _change(self, column: Tensor, weight: Tensor, gap: Tensor, sign: int) -> None:
        self.mean.addcmul_(gap.unsqueeze(-1), column.unsqueeze(1))
        scaled = (column * weight).unsqueeze(-2)
        self.cov.addcmul_(column.unsqueeze(-1), scaled, value=sign)

    def forget(self, seen: Seen) -> None:
        """The reverse of :meth:`append`, from a solve without the observation."""
        self.settle()
        slots, values, precision = _numbered(seen)
        slot = devices.put(slots, self._cov.device)
        self.history.add(slots, precision, values, sign=-1)
        self.history.count(slots, seen.wanted, -1)
        system = self.history.system()
        prior = self._table.expand(len(slot), -1, -1)[self._trial, slot].unsqueeze(-1)
        column = prior[..., 0] - self._combined(system.solve(prior))[:, 0]
        own = column[self._trial, slot]
        share = precision * own
        weight = (precision / (1 + share)).unsqueeze(-1)
        mean = (system.alpha.mT @ system.entries(prior)).squeeze(-1)
        self._change(column, weight, (mean - values) * weight, 1)
        self._gain = self.gain().sub(torch.log1p(share), alpha=0.5)
        self._forgotten += 1
        # changes come and go, their rounding errors only come
        self._stale |= self._forgotten % self.REWEIGH_EVERY == 0
        self._stale |= self.history.clashes(slots, precision, seen.usual)

    def observe(self, rows: Sequence[Seen]) -> None:
        """Condition on many observations, then compute everything afresh."""
        for seen in rows:
            slots, values, precision = _numbered(seen)
            self.history.add(slots, precision, values)
            self.history.count(slots, seen.wanted, 1)
        self.refresh()

    def revise(self, weighted: Tensor) -> None:
        """Replace all targets: ``weighted (T, F, U)`` sums of precision x target."""
        self.history.revise(weighted)
        self._stale = True

    def correct(
        self, keys: Sequence[Hashable], change: Tensor, wanted: Sequence[bool]
    ) -> None:
        """Add ``change (T, F)``, of precision x target, at ``keys``."""
        slot = devices.put(keys, self._cov.device)
        self.history.correct(slot, change)
        self._stale = True

    def refresh(self) -> None:
        """Compute means and covariance afresh from the history: no drift is left."""
        self._to_prior()
        system = self.history.system()
        rows = self.history.rows(system.slots)
        self.mean = (system.alpha.mT @ rows).contiguous()
        half = system.half(rows)
        self._cov -= half.mT @ half
        self._gain, self._shares, self._told = system.gain(), [], None
        self._stale = False

    def settle(self) -> None:
        """Take in what waits, and bring the means in line with changed targets."""
        if self._told is not None:
            number, self.history.stands_for = self.history.stands_for, None
            self._take_in()
            self.history.stands_for = number
        if self._stale:
            weights = self.history.system().weights(self.actions.size)
            self.mean = self._combined(weights).contiguous()
            self._stale = False

    def _combined(self, weights: Tensor) -> Tensor:
        """Combinations ``(T, k, N)`` of prior covariances, ``weights (T, N, k)``."""
        table = self._table if len(self._table) > 1 else self._table[0]
        return weights.mT @ table

    # -- looking -------------------------------------------------------------------

    @property
    def fused(self) -> Fused | None:
        """Compiled loops take in what was told and look, in one call."""
        return self._find if native(self._cov) else None

    def _find(self, look: Look, streams: Streams | None = None) -> Best:
        """Take in what waits and find the best action."""
        if self._stale:
            self.settle()
        draw = None if streams is None else self._draw(streams)
        number, self.history.stands_for = self.history.stands_for, None
        late = self._late
        found = joint_round(self._cov, self.mean, look, self._told, draw, late)
        if self._told is not None:
            columns, weights, var, waiting = late
            self._late = Late(columns, weights, var, (waiting + 1) % self.LATE)
        self._told, self.history.stands_for = None, number
        return Best(found.value, found.index, found.estimate)

    def gain(self) -> Tensor:
        """The realised information gain, ``(T,)``."""
        if self._shares:
            first, *rest = self._shares
            more = (
                torch.log1p(torch.stack([first, *rest])).sum(0)
                if rest
                else first.log1p()
            )
            self._gain, self._shares = self._gain.add(more, alpha=0.5), []
        return self._gain

    def covariances(self, to: Tensor) -> Between:
        """Posterior covariances ``(T, n, o)`` and variances, read off."""
        self.settle()
        cov, own = self.cov, self._var
        return lambda at: (cov[:, at][..., to], own[:, at], own[:, to])

    def begin(
        self, streams: Streams | None = None, ahead: Coming | None = None
    ) -> _Pass:
        """Begin a pass; with ``streams``, the draws are exact."""
        self.settle()
        own = self._var
        if ahead is not None:
            own = self._after(own, ahead)
        std = own.clamp_min(0).sqrt_().unsqueeze(1)
        draw = None if streams is None else self._draw(streams)
        return _Pass(self.mean, std, draw)

    def _after(self, own: Tensor, ahead: Coming) -> Tensor:
        """The variances after choices to come, ``(T, N)``."""
        if not ahead.numbered():
            points = self.actions.block(0, self.actions.size)
            return self.history.at(points, (ahead.places(), ahead.precision))[1]
        slot = devices.put(ahead.keys, self._cov.device).mT  # T x b
        at = slot.unsqueeze(-1).expand(-1, -1, self.cov.shape[-1])
        rows = self.cov.gather(1, at)
        inner = rows.gather(-1, slot.unsqueeze(1).expand(-1, slot.shape[-1], -1))
        return own - explained(inner, rows, ahead.precision).square().sum(-2)

    def _draw(self, streams: Streams) -> Tensor:
        """Draws of the posterior less its mean, ``(T, F, N)``, exact in law.

        With the prior ``L L^T``, weights on ``L`` have posterior precision
        ``I + L^T P L``: positive definite as it stands, and small where ``L`` is thin.
        Over many actions, where it need not be, a prior draw is corrected instead.
        """
        many = self.actions.size > self.MANY
        if self._root is None:
            root_of = pivoted_root if many else prior_root
            self._root = root_of(self._table)
        root = self._root.expand(self.history.trials, -1, -1)
        if many:
            return self._corrected(root, streams)
        rank = root.shape[-1]
        half = root * self.history.precision.clamp_min(0).sqrt().unsqueeze(-1)
        precision = half.mT @ half
        precision.diagonal(dim1=-2, dim2=-1).add_(1)
        factor = devices.cholesky(precision)
        # as many draws as actions, whatever the rank: a trial's do not depend on
        # others'
        size = root.shape[-2]
        z = streams.normal(self.functions, size).view(-1, self.functions, size)
        z = devices.put(z[..., -rank:], root.device)
        weights = torch.linalg.solve_triangular(factor.mT, z.mT, upper=True)
        draws: Tensor = (root @ weights).mT
        return draws

    def _corrected(self, root: Tensor, streams: Streams) -> Tensor:
        """A prior draw ``f`` less ``K (K + P^-1)^-1 (f + e)``, ``e ~ N(0, P^-1)``."""
        size, rank = self.actions.size, root.shape[-1]
        z = streams.normal(2 * self.functions, size)
        z = devices.put(z.view(-1, 2 * self.functions, size), root.device)
        z, noise = z.chunk(2, dim=1)
        prior = (root @ z[..., -rank:].mT).mT
        precision = self.history.precision.unsqueeze(1)
        noise = noise * torch.where(precision > 0, precision.rsqrt(), 0.0)
        system = self.history.system()
        return prior - self._combined(system.solve((prior + noise).mT))

    def bytes(self) -> int:
        """Bytes that the arrays take."""
        own: int = self.mean.nbytes + self._cov.nbytes + self._late.columns.nbytes
        return own


def _numbered(seen: Seen) -> tuple[Sequence[int], Tensor, Tensor]:
    """Where, what and how precisely: actions of the set are named by their numbers."""
    return cast("Sequence[int]", seen.keys), seen.values, seen.precision


class _Pass:
    """All of a small set at once; nothing waits to be applied."""

    __slots__ = ("_draw", "_mean", "_std")

    def __init__(self, mean: Tensor, std: Tensor, draw: Tensor | None) -> None:
        self._mean, self._std, self._draw = mean, std, draw

    def block(self, start: int, stop: int) -> Block:
        """The stretch ``start .. stop - 1``."""
        mean, std, draw = self._mean, self._std, self._draw
        if stop - start < mean.shape[-1]:
            mean, std = mean[..., start:stop], std[..., start:stop]
            draw = None if draw is None else draw[..., start:stop]
        return Block(start, stop, mean, std, draw)

    def end(self) -> None:
        """There is nothing to note."""
