"""Combinations of kernel rows over a large set: ``weights^T K(tried, actions)``.

Three ways to the same numbers. *factor* keeps the rows, *product* keeps a factor of
them per half of the grid's axes, *stream* keeps nothing and computes them in blocks.
Each is told of a new distinct action by ``write`` and hands out combinations by
``multiply(weights)``, a function of a stretch of actions.
"""

from __future__ import annotations

import functools
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from cbandit._core import devices
from cbandit._core.randomness import Streams
from cbandit.actions import Finite, ProductGrid
from cbandit.actions.partition import grid_split
from cbandit.errors import CBanditError
from cbandit.posterior.covariance import Covariance
from cbandit.posterior.draws.paths import Features, Root, prior_root
from cbandit_kernels import (
    Change,
    Found,
    Frame,
    Look,
    finish_round,
    kernel_columns,
    stream_round,
)

__all__ = ["FactorRows", "Operator", "Path", "ProductRows", "StreamRows"]

Columns = Callable[[int, int], Tensor]
"""``(start, stop) -> (T, k, n)``: combinations of rows over a stretch of actions."""

Rounds = Callable[[int, Tensor, Tensor, Tensor | None], Found]
"""``(start, mean, var, draw)``: a round's one pass over a stretch of actions."""


class Path(Protocol):
    """A prior draw of ``F`` functions, known over the set and at the tried actions."""

    tried: Tensor
    """``(T, F, U)``, float64."""

    def corrected(self, weights: Tensor) -> Columns:
        """The draw less ``weights (T, U, F)`` combinations of kernel rows."""
        ...


class Operator(Protocol):
    """Rows of the prior covariance at the tried actions, over all actions."""

    name: str

    def write(
        self,
        trials: list[int],
        slots: list[int],
        x: Tensor,
        keys: Sequence[Hashable],
    ) -> None:
        """A new distinct action ``x (len(trials), d)`` in the slot of each trial.

        ``keys`` are its names: a number where it is one of the set's.
        """
        ...

    def multiply(self, weights: Tensor) -> Columns:
        """``weights^T K``, for ``weights (T, U, k)`` in float64."""
        ...

    def rounds(
        self, weights: Tensor, change: Change, look: Look, backend: str | None
    ) -> Rounds:
        """The columns ``weights^T K`` change what is believed, which is looked at."""
        ...

    @property
    def seamless(self) -> bool:
        """Whether :meth:`rounds` takes all actions at once and needs no room."""
        ...

    def path(self, streams: Streams, functions: int, points: Tensor) -> Path:
        """A prior draw; ``points (T, U, d)`` are the tried actions."""
        ...

    def bytes_per_row(self) -> int:
        """What one more distinct action costs in memory."""
        ...

    def bytes_per_column(self) -> int:
        """What each column of ``multiply`` takes for as long as it is used."""
        ...


class _Finishing(ABC):
    """Columns made by a matrix product, the rest of the round in one pass over them."""

    def bytes_per_column(self) -> int:
        """Nothing is made before a stretch is."""
        return 0

    @property
    def seamless(self) -> bool:
        """Columns need room."""
        return False

    @abstractmethod
    def multiply(self, weights: Tensor) -> Columns:
        """See :class:`Operator`."""

    def rounds(
        self, weights: Tensor, change: Change, look: Look, backend: str | None
    ) -> Rounds:
        """See :class:`Operator`."""
        columns = self.multiply(weights) if weights.shape[-1] else None

        def go(start: int, mean: Tensor, var: Tensor, draw: Tensor | None) -> Found:
            made = var.new_empty(len(var), 0, var.shape[-1])
            if columns is not None:
                made = columns(start, start + var.shape[-1])
            return finish_round(
                made, change, mean, var, look, start, draw, backend=backend
            )

        return go


class _FeaturePath:
    def __init__(
        self,
        operator: FactorRows | StreamRows,
        streams: Streams,
        functions: int,
        points: Tensor,
    ) -> None:
        self._features = Features(operator.covariance, streams, functions)
        self._operator = operator
        self.tried = self._features(points)

    def corrected(self, weights: Tensor) -> Columns:
        rows = self._operator.multiply(weights)
        actions, dtype = self._operator.actions, self._operator.dtype

        def columns(start: int, stop: int) -> Tensor:
            x = actions.block(start, stop).to(dtype)
            return self._features(x) - rows(start, stop)

        return columns


class FactorRows(_Finishing):
    """Rows kept as they are, ``u N`` numbers; a round reads them once.

    With a ``stretch`` of the actions, their part of the rows.
    """

    name = "factor"
    CHUNK = 32

    def __init__(
        self,
        actions: Finite | ProductGrid,
        covariance: Covariance,
        trials: int,
        dtype: torch.dtype,
        device: torch.device,
        stretch: tuple[int, int] | None = None,
    ) -> None:
        self.actions, self.covariance, self.trials = actions, covariance, trials
        self.dtype, self.device = dtype, device
        self.stretch = stretch or (0, actions.size)
        self._rows: list[Tensor] = []
        self._written = 0

    def bytes_per_row(self) -> int:
        """``T N`` numbers."""
        first, last = self.stretch
        return self.trials * (last - first) * self.dtype.itemsize

    def write(
        self,
        trials: list[int],
        slots: list[int],
        x: Tensor,
        keys: Sequence[Hashable],
    ) -> None:
        """Compute and keep the row of ``x``, in stretches that fit the cache."""
        first, last = self.stretch
        while self.CHUNK * len(self._rows) <= max(slots):
            # memory that is not written to is not taken: a chunk fills row by row
            shape = (self.trials, self.CHUNK, last - first)
            self._rows.append(torch.empty(shape, dtype=self.dtype, device=self.device))
        for slot in range(self._written, max(slots) + 1):
            # trials without an action in this slot weigh it by 0, and 0 times what is
            # found in fresh memory may be anything
            if self.trials > 1:
                self._rows[slot // self.CHUNK][:, slot % self.CHUNK].zero_()
        self._written = max(self._written, max(slots) + 1)
        step = 1 << 14
        own = self.covariance.batch_shape or self.actions.batch_shape
        at = devices.put(trials, self.device) if own else None
        for start in range(first, last, step):
            stop = min(start + step, last)
            if at is not None:
                every = x.new_zeros(self.trials, 1, x.shape[-1])
                every[at, 0] = x
                block = self.actions.block(start, stop)
                rows = self.covariance.cross(every, block)[at, 0]
            else:
                rows = self.covariance.cross(x, self.actions.block(start, stop))
            for trial, slot, row in zip(trials, slots, rows, strict=True):
                chunk = self._rows[slot // self.CHUNK]
                chunk[trial, slot % self.CHUNK, start - first : stop - first] = row

    def multiply(self, weights: Tensor) -> Columns:
        """One product with each chunk of rows."""
        used, first = weights.shape[1], self.stretch[0]
        parts = [
            (
                rows[:, : min(self.CHUNK, used - i * self.CHUNK)],
                weights[:, i * self.CHUNK : (i + 1) * self.CHUNK].mT.to(self.dtype),
            )
            for i, rows in enumerate(self._rows)
            if i * self.CHUNK < used
        ]

        def columns(start: int, stop: int) -> Tensor:
            shape = self.trials, weights.shape[-1], stop - start
            out = weights.new_empty(shape, dtype=self.dtype)
            if not parts:
                return out.zero_()
            for i, (rows, part) in enumerate(parts):
                stretch = rows[..., start - first : stop - first]
                old = float(i > 0)
                if self.trials == 1:  # a plain product reads memory a fifth faster
                    out[0].addmm_(part[0], stretch[0], beta=old)
                else:
                    out.baddbmm_(part, stretch, beta=old)
            return out

        return columns

    def path(self, streams: Streams, functions: int, points: Tensor) -> Path:
        """By random features."""
        return _FeaturePath(self, streams, functions, points)


STREAM_BYTES = 1 << 22
CUDA_STREAM_BYTES = 1 << 28


def _streamed(
    actions: Finite | ProductGrid,
    covariance: Covariance,
    points: Tensor,
    weights: Tensor,
    dtype: torch.dtype,
    far: bool | None,
) -> Columns:
    """``weights (T, U, k)`` of the kernel rows at ``points (T, U, d)``, in blocks."""
    tried = covariance.scaled(points)
    w = covariance.times(weights.clone()).to(dtype)
    kinds = covariance.kinds
    # distances are safe from cancellation, and a narrow dtype, near the origin
    center = tried.mean((-3, -2), keepdim=True)
    if "linear" in kinds:
        center = torch.zeros_like(center)
    y = (tried - center).to(dtype)
    center = center if actions.batch_shape else center.squeeze(-3)
    if covariance.batch_shape:
        center = center if center.dim() == 4 else center.unsqueeze(-3)
    # a block's kernel values, u x n, stay in cache
    trials, used, k = weights.shape
    room = CUDA_STREAM_BYTES if points.is_cuda else STREAM_BYTES
    step = max(256, room // dtype.itemsize // max(1, used))

    def columns(start: int, stop: int) -> Tensor:
        out = y.new_empty(trials, k, stop - start)
        for a in range(start, stop, step):
            b = min(a + step, stop)
            x = (covariance.scaled(actions.block(a, b)) - center).to(dtype)
            out[..., a - start : b - start] = kernel_columns(x, y, w, kinds, far)
        return out

    return columns


class StreamRows(_Finishing):
    """Nothing kept: kernel values are recomputed in cache-sized blocks."""

    name = "stream"

    def __init__(
        self,
        actions: Finite | ProductGrid,
        covariance: Covariance,
        trials: int,
        dtype: torch.dtype,
        device: torch.device,
        stretch: tuple[int, int] | None = None,
    ) -> None:
        if covariance.forms is None:
            raise CBanditError(
                "engine='stream' computes kernels in closed form: RBF, Matern, linear, "
                f"their products and scalings; got {type(covariance.kernel).__name__}. "
                "Use engine='factor'"
            )
        self.actions, self.covariance, self.trials = actions, covariance, trials
        self.dtype, self.device = dtype, device
        self._points = torch.zeros(
            trials, 0, actions.dim, dtype=torch.float64, device=device
        )
        self._known_frame: Frame | None = None
        self._known_far: bool | None = None

    def bytes_per_row(self) -> int:
        """``T d`` numbers."""
        return self.trials * self.actions.dim * 8

    def write(
        self,
        trials: list[int],
        slots: list[int],
        x: Tensor,
        keys: Sequence[Hashable],
    ) -> None:
        """Keep the coordinates."""
        room = self._points.shape[1]
        if max(slots) >= room:
            grown = max(16, 2 * room, max(slots) + 1) - room
            self._points = torch.nn.functional.pad(self._points, (0, 0, 0, grown))
        trial, slot = devices.put([trials, slots], self.device)
        self._points[trial, slot] = x.double()

    def multiply(self, weights: Tensor) -> Columns:
        """Values made, combined and dropped, block by block."""
        points, far = self._points[:, : weights.shape[1]], None
        if self.device.type == "cuda":
            far = self._far()
        return _streamed(
            self.actions, self.covariance, points, weights, self.dtype, far
        )

    DIMS = 16  # coordinates that a kernel holds in registers

    @property
    def seamless(self) -> bool:
        """On points that lie in memory."""
        return isinstance(self.actions, Finite) and self.actions.dim <= self.DIMS

    def rounds(
        self, weights: Tensor, change: Change, look: Look, backend: str | None
    ) -> Rounds:
        """Kernel values made, used and dropped within the pass itself."""
        if not weights.shape[-1] or self.actions.dim > self.DIMS:
            return super().rounds(weights, change, look, backend)
        tried, kinds = self._points[:, : weights.shape[1]], self.covariance.kinds
        weights, frame = self.covariance.times(weights), self._frame()

        def go(start: int, mean: Tensor, var: Tensor, draw: Tensor | None) -> Found:
            points = self.actions.block(start, start + var.shape[-1])
            return stream_round(
                points,
                frame,
                tried,
                weights,
                kinds,
                change,
                mean,
                var,
                look,
                start,
                draw,
                backend=backend,
            )

        return go

    def _frame(self) -> Frame:
        """Coordinates about the middle of the set, where squares are small."""
        if self._known_frame is None:
            self._known_frame = self._new_frame()
        return self._known_frame

    def _far(self) -> bool:
        """Whether squares of coordinates, where ``_streamed`` has them, would cancel.

        Looked for once, by the set's extent: no device is waited for in a round.
        """
        if self._known_far is None:
            self._known_far = False
            if self.dtype != torch.float64:
                ends = self.covariance.scaled(torch.stack(self._ends(), -2))
                size = ends[..., 1, :] - ends[..., 0, :]
                if "linear" in self.covariance.kinds:
                    size = ends.abs().amax(-2)
                self._known_far = bool((size.square().sum(-1) > 100).any())
        return self._known_far

    def _ends(self) -> tuple[Tensor, Tensor]:
        """The least and the greatest coordinates, ``(d,)`` or ``(T, d)``."""
        if isinstance(self.actions, ProductGrid):
            ends = [(axis.min(), axis.max()) for axis in self.actions.axes]
            low, high = (torch.stack(parts) for parts in zip(*ends, strict=True))
        else:
            low, high = self.actions.all.amin(-2), self.actions.all.amax(-2)
        return low.double(), high.double()

    def _new_frame(self) -> Frame:
        forms, bounds = self.covariance.forms, self.covariance.bounds
        assert forms is not None
        scale = torch.stack([form.scale for form in forms]).to(self.device)
        low, high = self._ends()
        origin = torch.zeros_like(low)
        if bounds is not None:
            scale, origin = scale / (bounds[1] - bounds[0]), origin + bounds[0]
        middle = 0.5 * (low + high)
        centers = [origin if form.kind == "linear" else middle for form in forms]
        center = torch.stack(centers)
        center, scale = (v if v.dim() == 3 else v.unsqueeze(1) for v in (center, scale))
        center, scale = torch.broadcast_tensors(center, scale)
        curved = torch.tensor([form.kind != "linear" for form in forms])
        reach = (0.5 * (high - low) * scale)[curved.to(self.device)].square().sum(-1)
        limit = 500.0 if self.dtype == torch.float64 else 100.0
        far = bool((reach > limit).any())
        return Frame(center.to(self.dtype), scale.to(self.dtype), far)

    def path(self, streams: Streams, functions: int, points: Tensor) -> Path:
        """By random features."""
        return _FeaturePath(self, streams, functions, points)


class ProductRows(_Finishing):
    """A grid's rows as products over two groups of axes: one matrix product a round.

    Where the kernel matrix of the second group has low rank ``r`` (the RBF), its rows
    are kept on a basis of its range, and the product's inner dimension is ``r``, not
    ``u``: exact up to the rounding of that matrix's own decomposition. A first group of
    several axes is kept axis by axis, so that no row is ever as long as the group.
    """

    name = "product"
    BASIS_LIMIT = 2048

    def __init__(
        self,
        actions: Finite | ProductGrid,
        covariance: Covariance,
        trials: int,
        dtype: torch.dtype,
        device: torch.device,
        stretch: tuple[int, int] | None = None,
    ) -> None:
        if not isinstance(actions, ProductGrid):
            raise CBanditError(f"engine='product' needs a ProductGrid; got {actions!r}")
        axes = covariance.axes(actions)
        if axes is None:
            raise CBanditError(
                "engine='product' needs a kernel that factors over the axes (RBF, "
                "periodic, or one kernel per axis through active_dims); got "
                f"{type(covariance.kernel).__name__}. Use engine='factor' or 'stream'"
            )
        self.actions, self.covariance, self.trials = actions, covariance, trials
        self.dtype, self.device = dtype, device
        self._axes, self._cut = axes, grid_split(actions)
        self._tails = math.prod(actions.sizes[self._cut :])
        # of the first group, what the stretch touches
        first, last = stretch or (0, actions.size)
        self._heads = slice(first // self._tails, (last - 1) // self._tails + 1)
        kept: dict[str, Any] = {"dtype": torch.float64, "device": device}
        # a first group of at most one axis is one front; else there is one an axis
        cuts = range(self._cut + 1) if self._cut > 1 else (0, self._cut)
        self._spans = list(itertools.pairwise(cuts))
        self._fronts = [
            torch.zeros(trials, 0, math.prod(actions.sizes[a:b]), **kept)
            for a, b in self._spans
        ]
        self._tail = torch.zeros(trials, 0, self._tails, dtype=dtype, device=device)
        self._number = torch.zeros(trials, 0, dtype=torch.long, device=device)
        self._off_grid = False
        self._roots: tuple[Root, Root] | None = None
        self._ranked: list[Tensor] = []  # the columns of each root a trial has, (T, r)
        self._basis = self._low_rank(self._cut, actions.dim)
        self._bases = [self._low_rank(a, b) for a, b in self._spans[1:]]
        rank = 0 if self._basis is None else self._basis.shape[-1]
        self._code = torch.zeros(trials, 0, rank, **kept)

    def __getstate__(self) -> dict[str, Any]:
        # the factors are closures over the kernel: built again from it
        return {k: v for k, v in vars(self).items() if k != "_axes"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        axes = self.covariance.axes(self.actions)
        assert axes is not None
        self._axes = axes

    def bytes_per_row(self) -> int:
        """``T`` times a number for each value of the fronts' axes and of the tail."""
        fronts = sum(front.shape[-1] for front in self._fronts)
        return self.trials * (8 * fronts + self.dtype.itemsize * self._tails)

    def bytes_per_column(self) -> int:
        """The left factor of a product's column."""
        inner = self._tails if self._basis is None else self._basis.shape[-1]
        return self.trials * 8 * math.prod(self.actions.sizes[: self._cut]) * inner

    def _low_rank(self, first: int, last: int) -> Tensor | None:
        """An orthonormal basis ``(1 or T, n, r)`` of the range over some axes.

        ``None`` where it is not much smaller than the axes themselves.
        """
        sizes = self.actions.sizes[first:last]
        if max(sizes) > self.BASIS_LIMIT:
            return None
        parts = []
        for j in range(first, last):
            axis = self.actions.axes[j]
            matrix = self._axes[j](axis, axis)
            values, vectors = torch.linalg.eigh(matrix)
            rank = int((values > 1e-15 * values[..., -1:]).sum(-1).max())
            part = vectors[..., -rank:]
            parts.append(part if part.dim() == 3 else part.unsqueeze(0))
        basis = functools.reduce(_kron, parts)
        return basis if 2 * basis.shape[-1] < math.prod(sizes) else None

    def _row(self, x: Tensor, first: int, last: int) -> Tensor:
        """``(T, n)``: the factor of a row over the axes ``first .. last - 1``."""
        row = torch.ones(x.shape[0], 1, dtype=torch.float64, device=self.device)
        for j in range(first, last):
            part = self._axes[j](self.actions.axes[j], x[:, j : j + 1])[..., 0]
            part = part.expand(x.shape[0], -1)
            row = (row.unsqueeze(-1) * part.unsqueeze(1)).flatten(1)
        return row

    def write(
        self,
        trials: list[int],
        slots: list[int],
        x: Tensor,
        keys: Sequence[Hashable],
    ) -> None:
        """Keep the two factors of the rows of ``x``."""
        room = self._code.shape[1]
        if max(slots) >= room:
            grown = max(16, 2 * room, max(slots) + 1) - room
            pad = functools.partial(torch.nn.functional.pad, pad=(0, 0, 0, grown))
            self._fronts = [pad(front) for front in self._fronts]
            self._tail, self._code = pad(self._tail), pad(self._code)
            self._number = torch.nn.functional.pad(self._number, (0, grown))
        numbers = [key if isinstance(key, int) else 0 for key in keys]
        self._off_grid |= not all(isinstance(key, int) for key in keys)
        trial, slot, number = devices.put([trials, slots, numbers], self.device)
        every = x.new_zeros(self.trials, x.shape[-1])
        every[trial] = x
        tail = self._row(every, self._cut, self.actions.dim)
        for front, span in zip(self._fronts, self._spans, strict=True):
            front[trial, slot] = self._row(every, *span)[trial]
        self._tail[trial, slot] = tail[trial].to(self.dtype)
        self._number[trial, slot] = number
        if self._basis is not None:
            code = (tail.unsqueeze(-2) @ self._basis).squeeze(-2)
            self._code[trial, slot] = code[trial]

    def multiply(self, weights: Tensor) -> Columns:
        """``A^T diag(w) B`` for each column ``w`` of ``weights``."""
        used, k = weights.shape[1], weights.shape[-1]
        fronts = [front[:, :used] for front in self._fronts]
        basis = self._basis
        if basis is None or self._off_grid or used <= basis.shape[-1]:
            rows = functools.reduce(_rowwise, fronts)[..., self._heads]
            left = rows.mT.unsqueeze(1) * weights.mT.unsqueeze(2)
            right = self._tail[:, None, :used]
        else:
            if len(fronts) == 1:
                fronts = [fronts[0][..., self._heads]]
            left = self._coded(fronts, weights, self._code[:, :used])
            if len(fronts) > 1:
                left = left[:, :, self._heads]
            right = basis.to(self.dtype).mT.unsqueeze(1)
        left = left.to(self.dtype)  # T x k x N_1 x r
        return self._products(left, right, k)

    def _coded(self, fronts: list[Tensor], weights: Tensor, code: Tensor) -> Tensor:
        """``A^T diag(w) code``, ``(T, k, N_1, r)``, ``A`` the fronts' rowwise product.

        The fronts after the first are kept on bases of their own until the tried
        actions have been summed over.
        """
        inner = code
        for front, basis in zip(fronts[:0:-1], self._bases[::-1], strict=True):
            short = front if basis is None else front @ basis
            inner = _rowwise(short, inner)
        inner = weights.mT.unsqueeze(-1) * inner.unsqueeze(1)
        left = (inner.mT @ fronts[0].unsqueeze(1)).mT
        for front, basis in zip(fronts[1:], self._bases, strict=True):
            if basis is not None:
                shape = (*left.shape[:-1], basis.shape[-1], -1)
                left = basis[:, None, None] @ left.reshape(shape)
            else:
                left = left.reshape(*left.shape[:-1], front.shape[-1], -1)
            left = left.flatten(2, 3)
        return left

    def _products(self, left: Tensor, right: Tensor, k: int) -> Columns:
        tails, trials, skipped = self._tails, self.trials, self._heads.start

        def columns(start: int, stop: int) -> Tensor:
            first, last = start // tails, (stop - 1) // tails
            part = left[:, :, first - skipped : last + 1 - skipped]
            if stop - start < tails:
                low = start - first * tails
                out = part @ right[..., low : low + stop - start]
            elif trials == 1:
                flat = part[0].reshape(-1, part.shape[-1])
                out = flat @ right[0, 0]
            else:
                out = part @ right
            return out.view(trials, k, stop - start)

        return columns

    def path(self, streams: Streams, functions: int, points: Tensor) -> Path:
        """Exact in law: ``R_1 Z R_2^T`` with a root of each group's covariance."""
        if self._off_grid:
            raise CBanditError(
                "exact Thompson draws over a ProductGrid need all observations on the "
                "grid; use engine='factor' where ask(actions=...) leaves it"
            )
        if self._roots is None:
            cuts = (0, self._cut, self.actions.dim)
            self._roots = self._root(*cuts[:2]), self._root(*cuts[1:])
            # on the host, where the draws are made
            self._ranked = [
                root.matrix.ne(0).any(-2).expand(self.trials, -1).cpu()
                for root in self._roots
            ]
        return _GridPath(self, self._roots, streams, functions, points.shape[1])

    def _root(self, first: int, last: int) -> Root:
        matrices = []
        for axis, kernel in zip(
            self.actions.axes[first:last], self._axes[first:last], strict=True
        ):
            matrix = kernel(axis, axis)
            matrices.append(matrix if matrix.dim() == 3 else matrix.unsqueeze(0))
        if len(matrices) == 1:
            # what all trials have in common decides: a trial draws what it would alone
            even = _even(self.actions.axes[first])
            stationary = bool(self.covariance.kernel.is_stationary)
            return Root.of(matrices[0], even and stationary)
        one = torch.ones(1, 1, 1, dtype=torch.float64, device=self.device)
        return Root(functools.reduce(_kron, map(prior_root, matrices), one))


class _GridPath:
    """``R_1 Z R_2^T``; a combination of kernel rows is taken off ``Z`` itself."""

    def __init__(
        self,
        operator: ProductRows,
        roots: tuple[Root, Root],
        streams: Streams,
        functions: int,
        used: int,
    ) -> None:
        self._operator, (self._first, self._second) = operator, roots
        matrices = roots[0].matrix, roots[1].matrix
        z = _grid_normals(streams, functions, *operator._ranked)
        self._z = devices.put(z, operator.device)
        trials, number = operator.trials, operator._number[:, :used]
        at = [number // operator._tails, number % operator._tails]
        self._at = [
            root.expand(trials, -1, -1).gather(
                1, place.unsqueeze(-1).expand(-1, -1, root.shape[-1])
            )
            for root, place in zip(matrices, at, strict=True)
        ]  # T x U x r
        left = self._at[0].unsqueeze(1) @ self._z
        self.tried = (left * self._at[1].unsqueeze(1)).sum(-1)

    def corrected(self, weights: Tensor) -> Columns:
        scaled = self._at[0].unsqueeze(1) * weights.mT.unsqueeze(-1)
        z = self._z - scaled.mT @ self._at[1].unsqueeze(1)
        dtype, tails = self._operator.dtype, self._operator._tails
        left, second = self._first.times(z).to(dtype), self._second.to(dtype)
        heads = self._operator._heads
        left = left[:, :, heads]
        parts = self._operator._products(
            left, second.matrix.mT.unsqueeze(1), z.shape[1]
        )

        def columns(start: int, stop: int) -> Tensor:
            if stop - start < tails:
                return parts(start, stop)
            first, last = start // tails - heads.start, stop // tails - heads.start
            rows = left[:, :, first:last]
            return second.times(rows.mT).mT.reshape(*left.shape[:2], stop - start)

        return columns


def _grid_normals(
    streams: Streams, functions: int, first: Tensor, second: Tensor
) -> Tensor:
    """``(T, F, r_1, r_2)`` on the host; a trial draws for the columns it has.

    Which those are: ``(T, r_1)`` and ``(T, r_2)``.
    """
    counts = [mask.sum(-1).tolist() for mask in (first, second)]
    shapes = [(functions, rows, columns) for rows, columns in zip(*counts, strict=True)]
    draws = streams.normals(shapes)
    shape = functions, first.shape[-1], second.shape[-1]
    if len(draws) == 1 and shapes[0] == shape:
        return draws[0].unsqueeze(0)
    z = torch.zeros(len(draws), *shape, dtype=torch.float64)
    for each, rows, columns, draw in zip(z, first, second, draws, strict=True):
        each[:, rows.unsqueeze(-1) & columns] = draw.flatten(1)
    return z


def _rowwise(a: Tensor, b: Tensor) -> Tensor:
    """Kronecker products of the rows of ``(T, U, n)`` and ``(T, U, m)``."""
    return (a.unsqueeze(-1) * b.unsqueeze(-2)).flatten(-2)


def _even(axis: Tensor) -> bool:
    """Whether an axis is the same read from both ends, but for rounding."""
    turned = axis[0] + axis[-1] - axis.flip(-1)
    return bool((axis - turned).abs().max() <= 1e-14 * axis.abs().max())


def _kron(a: Tensor, b: Tensor) -> Tensor:
    """Kronecker product of ``(1 or T, n, r)`` and ``(1 or T, m, s)``."""
    out = a[:, :, None, :, None] * b[:, None, :, None, :]
    return out.reshape(out.shape[0], a.shape[1] * b.shape[1], -1)
