"""Expectation propagation: consistent stand-ins for binary and counted outcomes.

At ``tell`` an outcome gets its stand-in from the belief at that time. A sweep removes
the stand-in of each action and makes it anew from the data of all others, until
nothing changes. Then the order in which outcomes came no longer matters.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from cbandit._core import devices
from cbandit.posterior.covariance import Covariance
from cbandit.posterior.history import ByAction
from cbandit.posterior.links import Link
from cbandit.posterior.log import Log
from cbandit.posterior.prior_mean import PriorMean
from cbandit.posterior.units import totals

SWEEPS = 200
DAMPING = 0.8  # the part of a change that is made at once
LEAST = 0.05  # of it, where it is halved
CLOSE = 1e-9  # sweeps stop once means and deviations change by less


class _Pooled(NamedTuple):
    """The outcomes of a log by action: ``(T, U)``, and the actions ``x (T, U, d)``."""

    x: Tensor
    slots: list[list[int]]
    events: Tensor
    tries: Tensor
    precision: Tensor
    weighted: Tensor


class _Marginals(NamedTuple):
    """A posterior at all slots, ``(T, U)`` each.

    Args:
        mean: its mean.
        var: its variance.
        left: 1 less variance times precision, the share of the variance without this
            slot's reading that it leaves.
        weight: of the slot's covariances in the mean.
    """

    mean: Tensor
    var: Tensor
    left: Tensor
    weight: Tensor


def swept(log: Log, link: Link, covariance: Covariance, prior: PriorMean) -> Log:
    """Return a log with swept stand-ins.

    Args:
        log: the log of one function, whose rows hold outcomes.
        link: the function's link.
        covariance: the latent function's prior covariance.
        prior: the latent function's prior mean.
    """
    level = prior.level
    pooled = _pooled(log, level)
    means = prior.at(pooled.x)[:, 0]  # T x U
    gram = covariance.cross(pooled.x, pooled.x).expand(len(level), -1, -1)
    precision, weighted = pooled.precision, pooled.weighted
    tries = torch.where(pooled.tries > 0, pooled.tries, 1.0)
    share, real = pooled.events / tries, pooled.tries > 0
    damping = torch.full_like(level, DAMPING)
    before: Tensor | None = None
    earlier = latest = torch.full_like(level, torch.inf)
    for _ in range(SWEEPS):
        here = _marginals(gram, means, precision, weighted)
        now = torch.stack([here.mean, here.var.sqrt()])
        if before is not None:
            change = (now - before).abs().amax((0, 2)).unsqueeze(-1)
            if bool((change < CLOSE).all()):
                break
            # changes that do not fall swing around the solution
            slower = (0.5 * damping).clamp_min(LEAST)
            damping = torch.where(change > earlier, slower, damping)
            earlier, latest = latest, change
        before = now
        # the belief without this action's stand-in
        alone = here.var / here.left
        new = link.stand_in(share, tries, here.mean - alone * here.weight, alone)
        wanted = torch.where(real, new.precision, 0.0)
        precision = torch.lerp(precision, wanted, damping)
        weighted = torch.lerp(weighted, wanted * new.target, damping)
    target = torch.where(precision > 0, weighted / precision, means)
    trial = torch.arange(len(level), device=level.device)
    rows = []
    for row, slots in zip(log, pooled.slots, strict=True):
        at = trial, devices.put(slots, level.device)
        part = totals(row)[:, 1] / tries[at]
        noise = (precision[at] * part).reciprocal()
        rows.append(row._replace(values=target[at].unsqueeze(-1), noise=noise))
    return Log(rows)


def _pooled(log: Log, like: Tensor) -> _Pooled:
    """Return the outcomes of a log by action; ``like`` is ``(T, 1)``."""
    rows = list(log)
    actions = ByAction(rows, like)
    sums = [totals(row) for row in rows]
    precision, weighted = [], []
    for row, total in zip(rows, sums, strict=True):
        own = torch.zeros_like(total[:, 0])
        if row.noise is not None:
            own = torch.where(total[:, 1] > 0, row.noise.reciprocal(), 0.0)
        precision.append(own)
        weighted.append(own * row.values[:, 0])
    events, tries = torch.stack(sums).unbind(-1)
    return _Pooled(
        actions.x,
        actions.slots,
        actions.sum(events),
        actions.sum(tries),
        actions.sum(torch.stack(precision)),
        actions.sum(torch.stack(weighted)),
    )


def _marginals(
    gram: Tensor, means: Tensor, precision: Tensor, weighted: Tensor
) -> _Marginals:
    """Return the posterior at all slots; no digits cancel where it is sharp."""
    root = precision.sqrt()
    inner = gram * root.unsqueeze(-1) * root.unsqueeze(-2)
    inner.diagonal(dim1=-2, dim2=-1).add_(1)
    factor, one = devices.cholesky(inner), torch.eye(inner.shape[-1]).to(inner)
    half = torch.linalg.solve_triangular(factor, one.expand_as(inner), upper=False)
    left = half.square().sum(-2)
    fallen = (half @ (root.unsqueeze(-1) * gram)).square().sum(-2)
    var = gram.diagonal(dim1=-2, dim2=-1) - fallen
    var = torch.where(left < 0.5, (1 - left) / precision, var.clamp_min(1e-14))
    gap = torch.where(precision > 0, weighted / root - root * means, 0.0)
    weight = root * (half.mT @ (half @ gap.unsqueeze(-1))).squeeze(-1)
    mean = means + (gram @ weight.unsqueeze(-1)).squeeze(-1)
    return _Marginals(mean, var, left, weight)
