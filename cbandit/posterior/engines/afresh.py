"""Means and variances over a large set, computed afresh from the small system."""

from __future__ import annotations

import torch
from torch import Tensor

from cbandit._core.devices import free_memory
from cbandit.posterior.engines.arrays import Arrays
from cbandit.posterior.rows.protocol import Columns

__all__ = ["compute_afresh"]


def compute_afresh(engine: Arrays) -> None:
    """Means and variances from the history: no drift is left."""
    used = engine.history.used
    if used == 0:
        engine.mean.zero_()
        engine.to_prior()
        return
    system = engine.history.system(fresh=True)
    inverse = torch.linalg.solve_triangular(
        system.factor, torch.diag_embed(system.root), upper=False
    )
    means = engine.rows.multiply(system.alpha)
    each, room = engine.rows.bytes_per_column(), _room(engine)
    if each * used > room:
        _by_groups(engine, means, inverse, max(1, room // each))
        return
    # var = k(x, x) - |L^-1 S k_u(x)|^2, a few columns of weights at a time; on CUDA
    # all, for kernel values are made once for each group
    group, step = 64, min(engine.step, 1 << 15)
    if engine.device.type == "cuda":
        group, step = used, _step(engine, used)
    halves = [
        engine.rows.multiply(inverse[:, i : i + group].mT)
        for i in range(0, used, group)
    ]
    for start, stop in engine.stretches(step):
        own = engine.own(start, stop)
        engine.mean[..., own] = means(start, stop)
        explained = torch.zeros(
            engine.var[:, own].shape, dtype=torch.float64, device=engine.device
        )
        for half in halves:
            explained += half(start, stop).double().square_().sum(-2)
        engine.var[:, own] = engine.prior(start, stop) - explained


def _by_groups(engine: Arrays, means: Columns, inverse: Tensor, group: int) -> None:
    """The same where the columns' own factors do not fit in memory together."""
    step = _step(engine, group)
    for start, stop in engine.stretches(step):
        own = engine.own(start, stop)
        engine.mean[..., own] = means(start, stop)
        engine.var[:, own] = engine.prior(start, stop)
    for i in range(0, engine.history.used, group):
        half = engine.rows.multiply(inverse[:, i : i + group].mT)
        for start, stop in engine.stretches(step):
            engine.var[:, engine.own(start, stop)] -= half(start, stop).square().sum(-2)


def _step(engine: Arrays, columns: int) -> int:
    """A stretch of which some columns fit in memory."""
    return max(1 << 12, _room(engine) // (8 * engine.history.trials * columns))


def _room(engine: Arrays) -> int:
    """Bytes that a refresh may take in passing."""
    if engine.device.type != "cuda":
        return engine.REFRESH_BYTES
    return max(engine.REFRESH_BYTES, free_memory(engine.device) // 16)
