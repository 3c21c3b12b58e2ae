"""Ways to do the same round without the library: by hand, and BoTorch's."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cbandit.bench.case import NOISE, Case, Dense, score_of
from cbandit.bench.report import say

__all__ = [
    "Effort",
    "Looked",
    "Rival",
    "argmax_of",
    "botorch_forms",
    "botorch_look",
    "botorch_model",
    "fastest",
    "hand_written",
]

Looked = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Means ``(2, n)`` and standard deviations ``(n,)`` or ``(2, n)`` at points."""


@dataclass(frozen=True)
class Effort:
    """What is spent on the others; the defaults are a full run's."""

    subset: int = 20_000
    chunks: tuple[int, ...] = (2000, 5000, 20_000)
    batches: tuple[int, ...] = (1, 10, 20, 50)
    whole: bool = True  # the best form over all actions, not scaled


def argmax_of(look: Looked, points: Tensor, chunk: int, phi: float) -> int:
    """The point of greatest score, ``chunk`` looked at together."""
    best, place = -math.inf, -1
    for start in range(0, len(points), chunk):
        mean, std = look(points[start : start + chunk])
        value, at = score_of(mean, std, phi).max(0)
        if float(value) > best:
            best, place = float(value), start + int(at)
    return place


@dataclass
class Rival:
    """A way to do the same round from nothing: ``build()`` returns what looks."""

    name: str
    build: Callable[[], Looked]
    chunk: int


def fastest(
    peers: list[Rival], points: Tensor, phi: float, effort: Effort
) -> tuple[Rival, float, int | None]:
    """The quickest, its seconds over all ``points`` and its argmax (if run on all).

    Each is tried on a subset, after two short looks that fill caches and drop what is
    far behind; the best is then run over everything, from nothing, or its subset's time
    is scaled.
    """
    found: list[tuple[float, Rival]] = []
    subset = points[torch.randperm(len(points))[: effort.subset]]
    for peer in peers:
        say(f"  {peer.name}")
        chunk = min(peer.chunk, len(subset))
        probe = subset[: min(chunk, 1000)]
        start = time.perf_counter()
        look = peer.build()
        look(probe)
        first = time.perf_counter() - start
        start = time.perf_counter()
        look(probe)
        again = time.perf_counter() - start
        least = min((total for total, _ in found), default=math.inf)
        if again / len(probe) * len(points) > 4 * least:
            continue
        start = time.perf_counter()
        argmax_of(look, subset, chunk, phi)
        each = (time.perf_counter() - start) / len(subset)
        total = each * len(points) + max(0.0, first - again)
        found.append((total, peer))
        say(f"    {total:.2f} s")
    total, best = min(found, key=lambda pair: pair[0])
    if not effort.whole:
        return best, total, None
    start = time.perf_counter()
    index = argmax_of(best.build(), points, best.chunk, phi)
    return best, time.perf_counter() - start, index


def hand_written(case: Case, dtype: torch.dtype, effort: Effort) -> list[Rival]:
    """The Cholesky solve in every form and chunk."""

    def builder(form: str) -> Callable[[], Looked]:
        def build() -> Looked:
            dense = case.dense(dtype)

            def look(x: Tensor) -> tuple[Tensor, Tensor]:
                mean, var = dense.posterior(x, form)
                return mean, var.clamp_min_(0).sqrt_()

            return look

        return build

    return [
        Rival(f"Cholesky by hand, {form}, chunks of {chunk}", builder(form), chunk)
        for form in Dense.FORMS
        for chunk in effort.chunks
    ]


def botorch_forms(case: Case, dtype: torch.dtype, effort: Effort) -> list[Rival]:
    """BoTorch's posterior in every form, t-batch and chunk."""

    def builder(q: int, fast: bool, together: bool) -> Callable[[], Looked]:
        def build() -> Looked:
            return botorch_look(case, dtype, q, fast, together)

        return build

    return [
        Rival(
            f"BoTorch, {'one model' if together else 'a model each'}, q = {q}, "
            f"chunks of {chunk}, fast_pred_var {'on' if fast else 'off'}",
            builder(q, fast, together),
            chunk,
        )
        for together in (False, True)
        for q in effort.batches
        for chunk in effort.chunks
        for fast in (True, False)
    ]


def botorch_model(case: Case, dtype: torch.dtype, together: bool) -> Any:
    """Both functions as BoTorch's exact GPs, the prior and noise known."""
    from botorch.models.gp_regression import SingleTaskGP
    from botorch.models.model_list_gp_regression import ModelListGP
    from gpytorch.means import ZeroMean

    index, count, mean = case.data.merged()
    x = case.actions.points(index).to(dtype)
    noise = (NOISE / count).to(dtype).unsqueeze(-1)

    def model(y: Tensor) -> Any:
        kernel = deepcopy(case.kernel).to(dtype)
        return SingleTaskGP(
            x,
            y.to(dtype),
            noise.expand_as(y),
            covar_module=kernel,
            mean_module=ZeroMean(),
            outcome_transform=None,
        ).eval()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = (
            model(mean)
            if together
            else ModelListGP(model(mean[:, :1]), model(mean[:, 1:]))
        )
    return whole.eval()


def botorch_look(
    case: Case, dtype: torch.dtype, q: int, fast: bool, together: bool
) -> Looked:
    """BoTorch's exact posterior of both functions, in t-batches of ``q`` points."""
    import gpytorch

    whole = botorch_model(case, dtype, together)

    def look(points: Tensor) -> tuple[Tensor, Tensor]:
        full = len(points) // q * q
        with (
            torch.no_grad(),
            gpytorch.settings.fast_pred_var(fast),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            points = points.to(dtype)
            seen = [whole.posterior(points[:full].view(-1, q, points.shape[-1]))]
            if full < len(points):
                seen.append(whole.posterior(points[full:].unsqueeze(-2)))
            mean = torch.cat([p.mean.reshape(-1, 2) for p in seen]).mT
            var = torch.cat([p.variance.reshape(-1, 2) for p in seen]).mT
        return mean, var.clamp_min(0).sqrt()

    return look
