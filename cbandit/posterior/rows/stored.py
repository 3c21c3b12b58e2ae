"""Rows stored whole: for any kernel and set, ``u N`` numbers."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from cbandit._core import devices
from cbandit.posterior.rows.protocol import Columns, Rounds, Rows
from cbandit.posterior.rows.recomputed import Recomputed
from cbandit_kernels import Change, Found, Look, native, stored_round


class Stored(Rows):
    """Rows stored whole, ``u N`` numbers; a round reads them once.

    With a ``stretch`` of the actions, only that part of the rows is stored.
    """

    name = "factor"
    kept = True
    CHUNK = 32

    def clear(self) -> None:
        """Drop all rows."""
        self._rows: list[Tensor] = []
        self._written = 0

    def roomier(self) -> Rows | None:
        """Return rows that are recomputed, if the kernel has a closed form."""
        closed = self.prior.covariance.forms is not None
        return Recomputed(self.prior) if closed else None

    def bytes_per_row(self) -> int:
        """Return the bytes of ``T N`` numbers, a row."""
        first, last = self.prior.ends
        return self.prior.trials * (last - first) * self.prior.dtype.itemsize

    def write(
        self,
        trials: list[int],
        slots: list[int],
        x: Tensor,
        keys: Sequence[Hashable],
    ) -> None:
        """Compute and store the row of ``x``, in stretches that fit the cache."""
        prior, actions, covariance = (
            self.prior,
            self.prior.actions,
            self.prior.covariance,
        )
        (first, last), count = prior.ends, prior.trials
        while self.CHUNK * len(self._rows) <= max(slots):
            # untouched memory is not allocated yet: a chunk fills row by row
            shape = (count, self.CHUNK, last - first)
            chunk = torch.empty(shape, dtype=prior.dtype, device=prior.device)
            self._rows.append(chunk)
        for slot in range(self._written, max(slots) + 1):
            # trials without this action weigh it by 0, but 0 times NaN, which fresh
            # memory may hold, is NaN
            if count > 1:
                self._rows[slot // self.CHUNK][:, slot % self.CHUNK].zero_()
        self._written = max(self._written, max(slots) + 1)
        apart = covariance.batch_shape or actions.batch_shape
        at = devices.put(trials, prior.device) if apart else None
        # a stretch's coordinates stay in cache; those of all trials together do not
        step = max(1 << 8, (1 << 14) // len(trials))
        for start in range(first, last, step):
            stop = min(start + step, last)
            block = actions.block(start, stop)
            if at is not None:
                rows = covariance.rows(at, x, block)
            else:
                rows = covariance.cross(x, block)
            self._keep(trials, slots, slice(start - first, stop - first), rows)

    def _keep(
        self, trials: list[int], slots: list[int], stretch: slice, rows: Tensor
    ) -> None:
        """Store a stretch of the rows ``(k, n)``, one row for each of ``trials``."""
        for k in sorted({slot // self.CHUNK for slot in slots}):
            some = [i for i, slot in enumerate(slots) if slot // self.CHUNK == k]
            trial = [trials[i] for i in some]
            slot = [slots[i] % self.CHUNK for i in some]
            part = rows if len(some) == len(slots) else rows[some]
            if len(some) == 1:
                self._rows[k][trial[0], slot[0], stretch] = part[0]
            else:
                at = devices.put([trial, slot], part.device)
                self._rows[k][at[0], at[1], stretch] = part.to(self._rows[k].dtype)

    def multiply(self, weights: Tensor) -> Columns:
        """Return ``weights^T K``, by one product with each chunk of rows."""
        used, (first, _), dtype = weights.shape[1], self.prior.ends, self.prior.dtype
        parts = [
            (
                rows[:, : min(self.CHUNK, used - i * self.CHUNK)],
                weights[:, i * self.CHUNK : (i + 1) * self.CHUNK].mT.to(dtype),
            )
            for i, rows in enumerate(self._rows)
            if i * self.CHUNK < used
        ]

        def columns(start: int, stop: int) -> Tensor:
            shape = len(weights), weights.shape[-1], stop - start
            out = weights.new_empty(shape, dtype=dtype)
            if not parts:
                return out.zero_()
            for i, (rows, part) in enumerate(parts):
                stretch = rows[..., start - first : stop - first]
                old = float(i > 0)
                if len(weights) == 1:  # a plain product reads memory a fifth faster
                    out[0].addmm_(part[0], stretch[0], beta=old)
                else:
                    out.baddbmm_(part, stretch, beta=old)
            return out

        return columns

    def seamless(self, draw: Columns | None) -> bool:
        """Return whether compiled loops sum the rows in cache."""
        return draw is None and bool(self._rows) and native(self._rows[0])

    def rounds(
        self,
        weights: Tensor,
        change: Change,
        look: Look,
        draw: Columns | None,
        backend: str | None,
    ) -> Rounds:
        """Return a pass that sums rows as it goes, by compiled loops if possible."""
        if (
            not self._rows
            or not native(self._rows[0])
            or backend not in (None, "native")
        ):
            return super().rounds(weights, change, look, draw, backend)
        used, first = weights.shape[1], self.prior.ends[0]
        chunks = self._rows[: -(-used // self.CHUNK)]

        def go(start: int, mean: Tensor, var: Tensor) -> Found:
            stop = start + var.shape[-1]
            rows = [chunk[..., start - first : stop - first] for chunk in chunks]
            drawn = None if draw is None else draw(start, stop).to(var.dtype)
            return stored_round(rows, weights, change, mean, var, look, start, drawn)

        return go
