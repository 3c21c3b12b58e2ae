"""The *joint* engine: the whole posterior covariance of a small set, float64.

A new observation changes the covariance by one rank, in ``O(N^2)`` whatever came
before. A compiled round needs only one column of the covariance, so a few changes are
collected, and the covariance is read and written once for all of them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import cast

import torch
from torch import Tensor

from cbandit._core import devices
from cbandit._core.randomness import Streams
from cbandit.posterior.covariance import Prior
from cbandit.posterior.digits import Kept
from cbandit.posterior.draws.roots import pivoted_root, prior_root
from cbandit.posterior.engines.protocol import Engine, Fused, Plan
from cbandit.posterior.history import Between, History
from cbandit.posterior.log import Update
from cbandit.posterior.look import Best, Block
from cbandit.posterior.pending import Coming, explained
from cbandit_kernels import Late, Look, joint_round, native


class Joint(Engine):
    """An engine of means ``(T, F, N)`` and a covariance ``(T, N, N)``, :attr:`cov`."""

    by_features = False
    REWEIGH_EVERY = 64  # removals after which the means are computed afresh
    SHARES = 64  # terms of the gain that are summed together
    LATE = 8  # changes that are applied together
    MANY = 128  # with so many actions or more, draws must not take O(N^3)

    def __init__(self, prior: Prior, functions: int, plan: Plan) -> None:
        actions, self._size = prior.actions, int(prior.actions.size)
        points = actions.block(0, self._size)
        table = prior.covariance.cross(points, points)
        self._table = table if table.dim() == 3 else table.unsqueeze(0)
        self._trial = torch.arange(prior.trials, device=prior.device)
        self._root: Tensor | None = None
        self._cov = self._table.expand(prior.trials, -1, -1).clone()
        self._late = Late.room(self._cov, self.LATE)
        super().__init__(prior, functions, plan)

    def clear(self, functions: int) -> None:
        """Forget everything; from now on there are ``functions`` functions."""
        prior, self.functions = self.prior, functions
        self._to_prior()
        points = prior.actions.block(0, self._size)
        zeros = self._cov.new_zeros(prior.trials, functions, self._size)
        #: what prior means are above their level, ``(T, F, N)``; ``None``: nothing
        self._above = None if prior.mean is None else self.raised(zeros, points)
        self.mean = self._from_prior(zeros)
        self._gain = self._cov.new_zeros(prior.trials)
        # precision times variance of observations since the gain was last read
        self._shares: list[Tensor] = []
        # an observation that the next pass applies, if that is a compiled one
        self._told: Update | None = None
        self._forgotten, self.stale = 0, False
        self.history = History(
            prior.covariance, prior.trials, functions, prior.device, self._table, points
        )

    @property
    def cov(self) -> Tensor:
        """The posterior covariance without the observations still to be applied."""
        if self._late.waiting:
            with self.history.writing():
                self._late.apply(self._cov)
                self._late = self._late._replace(waiting=0)
        return self._cov

    @property
    def _var(self) -> Tensor:
        """The diagonal of the covariance, ``(T, N)``."""
        late = self._late
        return late.var if late.waiting else self._cov.diagonal(dim1=-2, dim2=-1)

    def _to_prior(self) -> None:
        self._late = self._late._replace(waiting=0)
        self._cov.copy_(self._table)

    def takes(self, keys: Sequence[Hashable]) -> bool:
        """Return whether these are numbered actions of the set."""
        return isinstance(keys[0], int)

    # -- changes -------------------------------------------------------------------

    def add(self, update: Update) -> None:
        """Condition on one more observation."""
        self.settle()
        self._changed()
        slots = cast("Sequence[int]", update.keys)
        if len(slots) == 1:  # a plain view is quicker than gathering
            var = self._var.select(1, slots[0])
        else:
            var = self._var[self._trial, devices.put(slots, self._cov.device)]
        self._shares.append(update.precision * var)
        if len(self._shares) >= self.SHARES:
            self.gain()
        self._told = update
        if self._above is not None:  # targets are less all of the prior mean
            above = self._above[self._trial, :, devices.put(slots, self._cov.device)]
            self._told = update._replace(values=update.values + above)
        if self.fused is None:
            self._take_in()
        self.stale |= self.history.clashes(slots, update)
        self.history.enter(slots, update)

    def _take_in(self) -> None:
        """Apply the collected observations to means and covariance."""
        if self._told is None:
            return
        slots, precision = cast("Sequence[int]", self._told.keys), self._told.precision
        if len(slots) == 1:
            (k,) = slots
            column = self.cov.select(1, k).clone()
            var, mean = column.select(1, k), self.mean.select(2, k)
        else:
            slot = devices.put(slots, self._cov.device)
            column = self.cov[self._trial, slot]  # T x N
            var, mean = column[self._trial, slot], self.mean[self._trial, :, slot]
        weight = (precision / (1 + precision * var)).unsqueeze(-1)
        self._change(column, weight, (self._told.values - mean) * weight, -1)
        self._told = None

    def _change(self, column: Tensor, weight: Tensor, gap: Tensor, sign: int) -> None:
        self.mean.addcmul_(gap.unsqueeze(-1), column.unsqueeze(1))
        scaled = (column * weight).unsqueeze(-2)
        self.cov.addcmul_(column.unsqueeze(-1), scaled, value=sign)

    def remove(self, update: Update) -> None:
        """Remove an observation by solving without it."""
        self.settle()
        self._changed()
        slots, precision = cast("Sequence[int]", update.keys), update.precision
        slot = devices.put(slots, self._cov.device)
        self.history.enter(slots, update, -1)
        system = self.history.system()
        prior = self._table.expand(len(slot), -1, -1)[self._trial, slot].unsqueeze(-1)
        column = prior[..., 0] - self._combined(system.solve(prior))[:, 0]
        var = column[self._trial, slot]
        share = precision * var
        weight = (precision / (1 + share)).unsqueeze(-1)
        mean = (system.alpha.mT @ system.entries(prior)).squeeze(-1)
        self._change(column, weight, (mean - update.values) * weight, 1)
        self._gain = self.gain().sub(torch.log1p(share), alpha=0.5)
        self._forgotten += 1
        # rounding errors of changes add up, even if the changes cancel
        self.stale |= self._forgotten % self.REWEIGH_EVERY == 0
        self.stale |= self.history.clashes(slots, update)

    def refresh(self) -> None:
        """Compute means and covariance afresh from the history, without drift."""
        self._to_prior()
        system = self.history.system()
        rows = self.history.rows(system.slots)
        self.mean = self._from_prior(system.alpha.mT @ rows)
        half = system.half(rows)
        self._cov -= half.mT @ half
        self._gain, self._shares, self._told = system.gain(), [], None
        self.stale = False

    def settle(self) -> None:
        """Apply collected observations and changed targets."""
        if self._told is not None:
            with self.history.writing():
                self._take_in()
        if self.stale:
            weights = self.history.system().weights(self._size)
            self.mean = self._from_prior(self._combined(weights))
            self.stale = False

    def _checked(self) -> tuple[Tensor, Kept]:
        self.settle()
        count = min(self.SUREST, self._size)
        surest = self.history.precision.topk(count).indices
        index, points = self._with_others(surest.cpu())
        places = index.unsqueeze(1).expand(-1, self.functions, -1)
        kept = self.mean.gather(-1, places), self._var.gather(-1, index)
        return points, Kept(*kept)

    def _from_prior(self, mean: Tensor) -> Tensor:
        """Return the array of means, given what the data say, ``(T, F, N)``."""
        return (mean if self._above is None else mean + self._above).contiguous()

    def _combined(self, weights: Tensor) -> Tensor:
        """Return combinations ``(T, k, N)`` of prior covariances by ``weights``."""
        table = self._table if len(self._table) > 1 else self._table[0]
        return weights.mT @ table

    # -- looking -------------------------------------------------------------------

    @property
    def fused(self) -> Fused | None:
        """The compiled loops that update and score in one call, where available."""
        return self._find if native(self._cov) else None

    def _find(self, look: Look, streams: Streams | None = None) -> Best:
        """Apply collected observations and find the best action."""
        if self.stale:
            self.settle()
        draw = None if streams is None else self._draw(streams)
        told, late = self._told, self._late
        news = None
        if told is not None:
            news = cast("Sequence[int]", told.keys), told.precision, told.values
        with self.history.writing():
            best = joint_round(self._cov, self.mean, look, news, draw, late)
            if told is not None:
                columns, weights, var, waiting = late
                self._late = Late(columns, weights, var, (waiting + 1) % self.LATE)
                self._told = None
        return Best(best.value, best.index, best.estimate)

    def gain(self) -> Tensor:
        """Return the realised information gain, ``(T,)``."""
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
        """Return a function to posterior covariances ``(T, n, o)`` and variances."""
        self.settle()
        cov, var = self.cov, self._var
        return lambda at: (cov[:, at][..., to], var[:, at], var[:, to])

    def blocks(
        self,
        stretches: Iterable[tuple[int, int]],
        streams: Streams | None = None,
        ahead: Coming | None = None,
    ) -> Iterator[Block]:
        """Yield blocks of the set; draws have exactly the posterior's law."""
        self.settle()
        var = self._var if ahead is None else self._after(ahead)
        mean, std = self.mean, var.clamp_min(0).sqrt_().unsqueeze(1)
        draw = None if streams is None else self._draw(streams)
        for start, stop in stretches:
            if stop - start == self._size:
                yield Block(start, stop, mean, std, draw)
                continue
            part = None if draw is None else draw[..., start:stop]
            yield Block(start, stop, mean[..., start:stop], std[..., start:stop], part)

    def _after(self, ahead: Coming) -> Tensor:
        """Return the variances ``(T, N)`` once outstanding choices are told."""
        if not ahead.numbered():
            points = self.prior.actions.block(0, self._size)
            return self.history.at(points, ahead)[1]
        var = self._var
        slot = devices.put(ahead.keys, self._cov.device).mT  # T x b
        at = slot.unsqueeze(-1).expand(-1, -1, self.cov.shape[-1])
        rows = self.cov.gather(1, at)
        inner = rows.gather(-1, slot.unsqueeze(1).expand(-1, slot.shape[-1], -1))
        return var - explained(inner, rows, ahead.precision).square().sum(-2)

    def _draw(self, streams: Streams) -> Tensor:
        """Draw from the posterior less its mean, ``(T, F, N)``, with its exact law.

        With the prior ``L L^T``, weights on ``L`` have posterior precision
        ``I + L^T P L``, which is positive definite, and small where ``L`` is thin. Over
        many actions, where it need not be small, a prior draw is corrected instead.
        """
        many = self._size > self.MANY
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
        # as many draws as actions, whatever the rank, so that a trial's draws do not
        # depend on the other trials
        size = root.shape[-2]
        z = streams.normal(self.functions, size).view(-1, self.functions, size)
        z = devices.put(z[..., -rank:], root.device)
        weights = torch.linalg.solve_triangular(factor.mT, z.mT, upper=True)
        draws: Tensor = (root @ weights).mT
        return draws

    def _corrected(self, root: Tensor, streams: Streams) -> Tensor:
        """Return ``f - K (K + P^-1)^-1 (f + e)`` for a prior draw ``f``.

        The noise ``e`` is drawn from ``N(0, P^-1)``.
        """
        size, rank = self._size, root.shape[-1]
        z = streams.normal(2 * self.functions, size)
        z = devices.put(z.view(-1, 2 * self.functions, size), root.device)
        z, noise = z.chunk(2, dim=1)
        prior = (root @ z[..., -rank:].mT).mT
        precision = self.history.precision.unsqueeze(1)
        noise = noise * torch.where(precision > 0, precision.rsqrt(), 0.0)
        system = self.history.system()
        return prior - self._combined(system.solve((prior + noise).mT))

    def bytes(self) -> int:
        """Return the bytes that the arrays take."""
        return self.mean.nbytes + self._cov.nbytes + self._late.columns.nbytes
