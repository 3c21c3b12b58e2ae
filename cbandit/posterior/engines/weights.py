"""The *weights* engine: Bayesian linear regression on finitely many features.

A round's cost depends on the features, not on how many observations there are, and any
point can be looked at. On a numbered set with one block of weights, means and variances
of all actions are kept and changed by one product a round; elsewhere they are computed
when they are read. Draws have exactly the posterior's law, as the weights are drawn.

Sums of features lose digits that single observations have: with noise below 1e-12 of
the prior variance, the rounding of the sums shows.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cbandit._core import devices
from cbandit._core.devices import free_memory
from cbandit._core.randomness import Streams
from cbandit.errors import CBanditError
from cbandit.posterior.covariance import Prior
from cbandit.posterior.digits import Kept
from cbandit.posterior.engines.protocol import Engine, Path, Plan
from cbandit.posterior.history import Between
from cbandit.posterior.log import Update
from cbandit.posterior.look import Block
from cbandit.posterior.moments import Moments, check_width
from cbandit.posterior.pending import Coming, explained
from cbandit.posterior.units import Scale

STRETCH = 1 << 21  # features that are computed together
CHANGES = 4096  # changes of the arrays after which they are computed afresh
PENDING = 32
EIGEN = 10  # eigenvectors of D features cost this many times D^3 operations
TINY = 1e-13  # share of the greatest variance; smaller eigenvalues are rounding


class Change(NamedTuple):
    """A change of the arrays, to be applied at the next look.

    Args:
        column: ``(T, D)``; times the features of all actions it is the column ``c``.
        spread: the factor of ``c^2`` that is subtracted from the variances, ``(T,)``.
        shift: the factor of ``c`` in the means, ``(T, F)``.
    """

    column: Tensor
    spread: Tensor
    shift: Tensor


class Weights(Engine):
    """An engine whose history consists of sums of features."""

    history: Moments  # type: ignore[assignment]
    by_features = False
    by_slots = False
    _round = 0

    def __init__(self, prior: Prior, functions: int, plan: Plan) -> None:
        covariance, device = prior.covariance, prior.device
        if not covariance.finite:
            raise CBanditError(
                "engine='weights' needs finitely many features: a cb.GP.linear, or "
                "gpytorch's LinearKernel, scaled, or with a ConstantKernel added; got "
                f"{type(covariance.kernel).__name__}"
            )
        zeros = torch.zeros(1, covariance.dim, dtype=torch.float64, device=device)
        width, blocks = covariance.features(zeros).shape[-1], covariance.blocks
        check_width(width, blocks, prior.trials, free_memory(device))
        self._arrayed = prior.actions.finite and blocks == 1 and prior.fade is None
        self.step = max(1 << 10, STRETCH // width)
        self._table: Tensor | None = None
        # numbers found by a search are float64, and so are features there
        self.dtype = torch.float64 if prior.actions.searched else prior.dtype
        super().__init__(prior, functions, plan)

    def __getstate__(self) -> dict[str, Any]:
        # faster to compute than to read
        return vars(self) | {"_table": None, "_noises": None, "_scale": None}

    def clear(self, functions: int) -> None:
        """Forget everything; from now on there are ``functions`` functions."""
        prior, self.functions, self.stale = self.prior, functions, False
        of = prior.covariance, prior.trials, functions
        self.history = Moments(*of, self.dtype, prior.device, prior.fade)
        self.history.now = self._round
        self._pending: list[Change] = []
        self._fresh = 0  # changes since the arrays were computed afresh
        # the last result of noises(), and its arguments
        self._noises: tuple[tuple[int, int], Tensor] | None = None
        self._scale: Scale | None = None
        #: means and variances of all actions, ``(T, F, N)`` and ``(T, N)``, or ``None``
        self._mean: Tensor | None = None
        self._var: Tensor | None = None
        #: variances of all actions that count open choices as told, ``(T, N)``, and the
        #: weights' covariance behind them, ``(T, D, D)``
        self._open: tuple[Tensor, Tensor] | None = None

    # -- changes ---------------------------------------------------------------------

    def add(self, update: Update) -> None:
        """Condition on one more observation."""
        if self._mean is None:
            self.history.enter(update)
        else:
            column, var, mean = self._column(update)
            self.history.enter(update)
            spread = update.precision / (1 + update.precision * var)
            self._change(column, spread, (update.values - mean) * spread.unsqueeze(-1))
        self._changed()

    def remove(self, update: Update) -> None:
        """Remove an observation; factor its block without it."""
        self.history.enter(update, -1)
        if self._mean is not None:
            column, var, mean = self._column(update)
            spread = update.precision / (1 + update.precision * var)
            self._change(column, -spread, (mean - update.values) * spread.unsqueeze(-1))
        self._changed()

    def add_all(self, updates: Sequence[Update]) -> None:
        """Condition on many observations, then compute everything afresh."""
        self.history.observe(updates)
        self._refresh_checked()

    def aim(self, before: Update, after: Update) -> None:
        """Change the targets of an observation."""
        self.history.correct(before, after)
        if self._mean is not None:
            column, _, _ = self._column(before)
            gap = (after.values - before.values) * before.precision.unsqueeze(-1)
            self._change(column, torch.zeros_like(before.precision), gap)

    def aim_all(self, updates: Sequence[Update]) -> None:
        """Compute everything anew: sums by action are not kept."""
        self.clear(self.functions)
        self.add_all(updates)

    def drowns(self, update: Update) -> bool:
        """Return ``True``: its rounding error would stay in sums with others."""
        return True

    def _column(self, update: Update) -> tuple[Tensor, Tensor, Tensor]:
        """Return weights of a point's covariances, its variance and its means."""
        h = self.history.features(update.x.double().unsqueeze(-2))
        means, root = self.history.weights()
        half = h @ root[:, 0].double()  # T x 1 x D
        column = (half @ root[:, 0].mT.double())[:, 0]
        mean = (means[:, 0].double() @ h.mT)[..., 0]
        return column, half.square().sum((-2, -1)), mean

    def _change(self, column: Tensor, spread: Tensor, shift: Tensor) -> None:
        self._pending.append(Change(column, spread, shift))
        self._fresh += 1
        if self._fresh >= CHANGES:
            self.refresh()
        elif len(self._pending) >= PENDING:
            self.settle()

    # -- arrays ----------------------------------------------------------------------

    def refresh(self) -> None:
        """Drop all arrays; they are computed afresh when next read."""
        self._pending.clear()
        self._fresh, self._mean, self._var, self._open = 0, None, None, None

    def settle(self) -> None:
        """Apply all collected observations to the arrays."""
        if not self._arrayed:
            return
        if self._mean is None or self._var is None:
            self._compute()
        elif self._pending:
            with self.history.writing():
                waiting, self._pending = self._pending, []
                columns = torch.stack([change.column for change in waiting], 1)
                table = self._features()
                made = (columns.to(table) @ table.mT).double()  # T x p x N
                spread = torch.stack([change.spread for change in waiting], -1)
                shift = torch.stack([change.shift for change in waiting], -1)
                for j in range(made.shape[1]):
                    column = made[:, j]
                    self._mean.addcmul_(shift[..., j, None], column.unsqueeze(1))
                    self._var.addcmul_(spread[:, j, None] * column, column, value=-1)

    def _checked(self) -> tuple[Tensor, Kept] | None:
        keys = self.history.surest(self.SUREST)
        some = next(filter(None, keys), None)
        if some is None:
            return None
        count = max(map(len, keys))
        # the same length in each trial: a key more than once does no harm
        keys = [(row or some)[:1] * (count - len(row)) + row for row in keys]
        kinds = {type(key) for row in keys for key in row}
        if kinds == {tuple}:
            points = devices.put(keys, self.prior.device, torch.float64)
            return points, Kept(*self.at(points))
        if kinds != {int} or not self.prior.actions.finite:
            return None
        index, points = self._with_others(torch.tensor(keys))
        if self._mean is None or self._var is None:
            return points, Kept(*self.at(points))
        self.settle()
        places = index.unsqueeze(1).expand(-1, self.functions, -1)
        kept = self._mean.gather(-1, places), self._var.gather(-1, index)
        return points, Kept(*kept)

    def _exact(self, points: Tensor) -> tuple[Tensor, Tensor]:
        mean, var = self.history.exact(points)
        return self.raised(mean, points), var

    def _mends(self) -> Iterable[Callable[[], None]]:
        return [self.refresh, self._factor_anew]

    def _factor_anew(self) -> None:
        """Compute the roots afresh from the sums, and drop all arrays."""
        with self.history.writing():
            self.history.refresh()
            self.refresh()

    def _compute(self) -> None:
        actions, count = self.prior.actions, int(self.prior.actions.size)
        with self.history.writing():
            parts = [
                self.at(actions.block(*ends))
                for ends in actions.stretches(self.step or count)
            ]
            self._mean, self._var = (
                torch.cat(part, -1) for part in zip(*parts, strict=True)
            )

    def _features(self) -> Tensor:
        """Return the features of all actions, ``(N, D)`` or ``(T, N, D)``."""
        if self._table is None:
            actions, dtype = self.prior.actions, self.prior.dtype
            parts = [
                self.prior.covariance.features(actions.block(*ends)).to(dtype)
                for ends in actions.stretches(self.step or 1)
            ]
            self._table = torch.cat(parts, -2)
        return self._table

    def bytes(self) -> int:
        """Return the bytes that sums, roots and arrays take."""
        arrays = [part for part in (self._mean, self._var) if part is not None]
        arrays += self._open or ()
        return self.history.bytes() + sum(part.nbytes for part in arrays)

    # -- looking ---------------------------------------------------------------------

    def blocks(
        self,
        stretches: Iterable[tuple[int, int]],
        streams: Streams | None = None,
        ahead: Coming | None = None,
    ) -> Iterator[Block]:
        """Yield blocks of the set; draws have exactly the posterior's law."""
        self.settle()
        dtype, draw = self.prior.dtype, None
        if self._mean is None or self._var is None:
            path = None if streams is None else self.history.path(streams)
            for start, stop in stretches:
                x = self.prior.actions.block(start, stop)
                mean, var = self.at(x, ahead)
                std = var.clamp_min(0).sqrt().unsqueeze(1).to(dtype)
                draw = None if path is None else path(x).to(dtype)
                yield Block(start, stop, mean.to(dtype), std, draw)
            return
        means, var = self._mean.to(dtype), self._var
        if ahead is not None:
            var = self._after(ahead, var)
        deviations = var.clamp_min(0).sqrt().unsqueeze(1).to(dtype)
        if streams is not None:
            table = self._features()
            draw = (table @ self.history.draw(streams)[:, 0].to(table)).mT
        for start, stop in stretches:
            at = slice(start, stop)
            part = None if draw is None else draw[..., at]
            yield Block(start, stop, means[..., at], deviations[..., at], part)

    def _after(self, ahead: Coming, var: Tensor) -> Tensor:
        """Return the variances ``(T, N)`` once choices are told; ``var`` holds today's.

        The result is kept with the weights' covariance behind it. A choice that opens
        changes this by one rank; one that is told does not change it, as it was
        counted. So a few eigenvectors of the difference bring the variances up to date.
        """
        width, count = self.history.width, ahead.precision.shape[-1]
        if count * var.shape[-1] < EIGEN * width**2:
            return var - self._explained(ahead)
        _, root = self.history.roots_after(ahead)
        wanted = root[:, 0].double() @ root[:, 0].double().mT
        kept, self._open = self._open, None  # until the change is complete
        if kept is None:
            now = self.history.weights()[1][:, 0].double()
            kept = var.clone(), now @ now.mT
        var, covariance = kept
        values, vectors = torch.linalg.eigh(wanted - covariance)
        least = TINY * covariance.diagonal(dim1=-2, dim2=-1).amax(-1, keepdim=True)
        some = (values.abs() > least).any(0)
        values, vectors = values[:, some], vectors[..., some]
        table = self._features()
        for j in range(values.shape[-1]):
            column = (table @ vectors[..., j, None].to(table))[..., 0].double()
            var.addcmul_(values[:, j, None] * column, column)
        self._open = var, covariance + vectors * values.unsqueeze(-2) @ vectors.mT
        return var

    def _explained(self, ahead: Coming) -> Tensor:
        """Return what outstanding choices subtract from the variances, ``(T, N)``."""
        h = self.history.features(ahead.places())
        _, root = self.history.weights()
        half = h @ root[:, 0].double()
        table = self._features()
        cross = ((half @ root[:, 0].mT.double()).to(table) @ table.mT).double()
        z = explained(half @ half.mT, cross, ahead.precision)
        return z.square().sum(-2)

    def path(self, streams: Streams) -> Path:
        """Draw a joint path less its mean, with exactly the posterior's law."""
        return self.history.path(streams)

    def recent(
        self, contexts: Tensor, point: Path, ahead: Coming | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return moments of all blocks at rows, see :meth:`Moments.recent`."""
        return self.history.recent(contexts, point, ahead)

    def drawn(self, x: Tensor, streams: Streams, functions: int) -> Tensor:
        """Return a joint draw less its mean, ``(T, f, n)``, at points ``(T, n, d)``."""
        return self.history.path(streams)(x)[:, :functions]

    def covariances(self, to: Tensor) -> Between:
        """Return a function from numbers to posterior covariances with ``to``."""
        of = self.history.covariances(self.points_of(to))
        return lambda at: of(self.points_of(at))

    def takes(self, keys: Sequence[Hashable]) -> bool:
        """Return whether it can condition on these actions: always true."""
        return True

    def reframed(self, wanted: Sequence[bool], later: Sequence[Sequence[bool]]) -> bool:
        """Return whether a point of an earlier round changes how inputs are scaled."""
        return self.history.reframed(wanted, later)

    def turn(self, t: int) -> None:
        """Set the round for which beliefs are read."""
        self._round = self.history.now = t

    def noises(self, scale: Scale) -> Tensor:
        """Return the learned noise variances ``(T, f)``, in units."""
        key = self.history.version, self.history.now
        if self._noises is None or self._noises[0] != key or self._scale is not scale:
            noises = scale.noises(*self.history.residuals())
            self._noises, self._scale = (key, noises), scale
        return self._noises[1]

    def gain(self) -> Tensor:
        """Return the realised information gain, ``(T,)``."""
        return self.history.gain()
