"""Rows that are not stored: kernel values are recomputed in cache-sized blocks."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from cbandit._core import devices
from cbandit.actions import Finite
from cbandit.errors import CBanditError
from cbandit.posterior.covariance import Prior
from cbandit.posterior.rows.protocol import Columns, Rounds, Rows, finishing
from cbandit_kernels import (
    FAR,
    Change,
    Found,
    Frame,
    Look,
    kernel_columns,
    stream_round,
    streams_natively,
)

STREAM_BYTES = 1 << 22
CUDA_STREAM_BYTES = 1 << 28


class Recomputed(Rows):
    """Rows that are not stored but recomputed in cache-sized blocks."""

    name = "stream"
    DIMS = 16  # most coordinates that a kernel holds in registers

    def __init__(self, prior: Prior) -> None:
        covariance = prior.covariance
        if covariance.forms is None:
            raise CBanditError(
                "engine='stream' computes kernels in closed form: RBF, Matern, linear, "
                f"their products and scalings; got {type(covariance.kernel).__name__}. "
                "Use engine='factor'"
            )
        if covariance.bent:
            raise CBanditError(
                "engine='stream' takes coordinates as they are, and some enter by "
                "their logarithms (log=True); use engine='factor'"
            )
        super().__init__(prior)
        self._known_frame: Frame | None = None
        self._known_far: bool | None = None

    def clear(self) -> None:
        """Drop the tried actions."""
        shape = self.prior.trials, 0, self.prior.actions.dim
        device = self.prior.device
        self._points = torch.zeros(shape, dtype=torch.float64, device=device)

    def bytes_per_row(self) -> int:
        """Return the bytes of ``T d`` numbers, an action's coordinates."""
        return self.prior.trials * self.prior.actions.dim * 8

    def write(
        self,
        trials: list[int],
        slots: list[int],
        x: Tensor,
        keys: Sequence[Hashable],
    ) -> None:
        """Store the coordinates of a new action."""
        room = self._points.shape[1]
        if max(slots) >= room:
            grown = max(16, 2 * room, max(slots) + 1) - room
            self._points = torch.nn.functional.pad(self._points, (0, 0, 0, grown))
        trial, slot = devices.put([trials, slots], x.device)
        self._points[trial, slot] = x.double()

    def multiply(self, weights: Tensor) -> Columns:
        """Return ``weights^T K``, computed block by block."""
        actions, covariance = self.prior.actions, self.prior.covariance
        dtype, points = self.prior.dtype, self._points[:, : weights.shape[1]]
        far = self._far() if points.is_cuda else None
        tried = covariance.scaled(points)
        w = covariance.times(weights.clone()).to(dtype)
        kinds = covariance.kinds
        # near the origin distances do not cancel, even in a narrow dtype; trials whose
        # kernels differ have their own centres, as their scales may be worlds apart
        apart = bool(covariance.batch_shape)
        center = tried.mean(-2 if apart else (-3, -2), keepdim=True)
        if "linear" in kinds:
            center = torch.zeros_like(center)
        y = (tried - center).to(dtype)
        center = center if apart or actions.batch_shape else center.squeeze(-3)
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

    def seamless(self, draw: Columns | None) -> bool:
        """Return whether points are stored, so that kernel values need not be."""
        dim, kinds = self.prior.actions.dim, self.prior.covariance.kinds
        if draw is not None or not isinstance(self.prior.actions, Finite):
            return False
        if dim > self.DIMS:
            return False
        return self._points.is_cuda or streams_natively(self._points, kinds, dim)

    def rounds(
        self,
        weights: Tensor,
        change: Change,
        look: Look,
        draw: Columns | None,
        backend: str | None,
    ) -> Rounds:
        """Return a pass that computes kernel values as it goes and stores none."""
        actions, covariance = self.prior.actions, self.prior.covariance
        if not weights.shape[-1] or actions.dim > self.DIMS:
            columns = self.multiply(weights) if weights.shape[-1] else None
            return finishing(columns, change, look, draw, backend)
        tried, kinds = self._points[:, : weights.shape[1]], covariance.kinds
        weights, frame = covariance.times(weights), self._frame()

        def go(start: int, mean: Tensor, var: Tensor) -> Found:
            stop = start + var.shape[-1]
            points = actions.block(start, stop)
            drawn = None if draw is None else draw(start, stop).to(var.dtype)
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
                drawn,
                backend=backend,
            )

        return go

    def _frame(self) -> Frame:
        """Return the frame of coordinates about the middle of the set."""
        if self._known_frame is None:
            self._known_frame = self._new_frame()
        return self._known_frame

    def _far(self) -> bool:
        """Return whether squares of coordinates in :meth:`multiply` would cancel.

        It is computed once, from the set's extent, so that no round waits for the
        device.
        """
        if self._known_far is None:
            ends = self.prior.covariance.scaled(self.prior.actions.extent().double())
            size = ends[..., 1, :] - ends[..., 0, :]
            if "linear" in self.prior.covariance.kinds:
                size = ends.abs().amax(-2)
            self._known_far = bool(
                (size.square().sum(-1) > FAR[self.prior.dtype]).any()
            )
        return self._known_far

    def _new_frame(self) -> Frame:
        forms, unit = self.prior.covariance.closed(), self.prior.covariance.unit
        scale = torch.stack([form.scale for form in forms]).to(self.prior.device)
        low, high = self.prior.actions.extent().double().unbind(-2)
        origin = torch.zeros_like(low)
        if unit is not None:
            scale, origin = scale / unit.span, origin + unit.low
        middle = 0.5 * (low + high)
        centers = [origin if form.kind == "linear" else middle for form in forms]
        center = torch.stack(centers)
        center, scale = (v if v.dim() == 3 else v.unsqueeze(1) for v in (center, scale))
        center, scale = torch.broadcast_tensors(center, scale)
        curved = torch.tensor([form.kind != "linear" for form in forms])
        reach = (
            (0.5 * (high - low) * scale)[curved.to(self.prior.device)].square().sum(-1)
        )
        far = bool((reach > FAR[self.prior.dtype]).any())
        return Frame(center.to(self.prior.dtype), scale.to(self.prior.dtype), far)
