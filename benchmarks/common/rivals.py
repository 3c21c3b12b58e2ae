"""Ways to do the same round without the library: by hand, and with BoTorch."""

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

from benchmarks.common.case import NOISE, Case, Dense, score_of
from benchmarks.common.report import say
from benchmarks.common.timing import clocked

__all__ = [
    "Effort",
    "Rival",
    "botorch_forms",
    "fastest",
    "hand_written",
    "seconds_over",
]

Looked = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Means ``(2, n)`` and standard deviations ``(n,)`` or ``(2, n)`` at points."""


@dataclass(frozen=True)
class Effort:
    """How hard the rivals are tried; the defaults are a full run's."""

    rivals: bool = True  # at all
    subset: int = 20_000  # actions on which the forms are compared
    chunks: tuple[int, ...] = (2000, 5000, 20_000)
    batches: tuple[int, ...] = (1, 10, 20, 50)
    forms: tuple[str, ...] = Dense.FORMS
    together: tuple[bool, ...] = (False, True)  # one model for both functions
    fast: tuple[bool, ...] = (True, False)  # gpytorch's fast_pred_var
    whole: bool = True  # the best form over all actions, not scaled


def argmax_of(look: Looked, points: Tensor, chunk: int, phi: float) -> int:
    """The point of greatest score, ``chunk`` looked at together."""
    best = []
    for start in range(0, len(points), chunk):
        mean, std = look(points[start : start + chunk])
        value, at = score_of(mean, std, phi).max(0)
        best.append(torch.stack([value.double(), at.double() + start]))
    every = torch.stack(best)  # the device is waited for once
    return int(every[every[:, 0].argmax(), 1])


@dataclass
class Rival:
    """A way to do the same round from nothing: ``build()`` returns what looks."""

    name: str
    build: Callable[[], Looked]
    chunk: int

    def play(self, points: Tensor, phi: float) -> int:
        """A round: the number of the point it chooses."""
        return argmax_of(self.build(), points, self.chunk, phi)


def fastest(
    rivals: list[Rival], points: Tensor, phi: float, effort: Effort
) -> tuple[Rival, float]:
    """The quickest rival, and what it would take over all ``points`` in seconds.

    Each is tried on a subset, after two short looks that fill caches and drop those far
    behind; one that does not fit into memory is out.
    """
    found: list[tuple[float, Rival]] = []
    some = torch.randperm(len(points))[: effort.subset]
    subset = points[some.to(points.device)]
    for rival in rivals:
        say(f"  {rival.name}")
        try:
            least = min((seconds for seconds, _ in found), default=math.inf)
            seconds = _scaled(rival, subset, len(points), phi, least)
        except torch.OutOfMemoryError:
            continue
        if seconds is not None:
            found.append((seconds, rival))
            say(f"    {seconds:.2f} s")
    seconds, best = min(found, key=lambda pair: pair[0])
    return best, seconds


def _scaled(
    rival: Rival, subset: Tensor, size: int, phi: float, least: float
) -> float | None:
    """Seconds over ``size`` points; ``None`` where it is hopeless."""
    chunk = min(rival.chunk, len(subset))
    probe = subset[: min(chunk, 1000)]
    start = time.perf_counter()
    look = rival.build()
    argmax_of(look, probe, chunk, phi)
    first = time.perf_counter() - start
    start = time.perf_counter()
    argmax_of(look, probe, chunk, phi)
    again = time.perf_counter() - start
    if again / len(probe) * size > 4 * least:
        return None
    start = time.perf_counter()
    argmax_of(look, subset, chunk, phi)
    each = (time.perf_counter() - start) / len(subset)
    return each * size + max(0.0, first - again)


def seconds_over(
    rival: Rival, points: Tensor, phi: float, effort: Effort
) -> Callable[[], float]:
    """Seconds of a round by the rival over all ``points``, for ``timing.medians``.

    Unless the effort is ``whole``, those of a subset are scaled.
    """
    if effort.whole:
        return clocked(lambda: rival.play(points, phi))
    subset = points[: effort.subset]

    def scaled() -> float:
        start = time.perf_counter()
        look = rival.build()
        argmax_of(look, subset[:1], 1, phi)  # what is done once, is done here
        built = time.perf_counter()
        argmax_of(look, subset, rival.chunk, phi)
        each = (time.perf_counter() - built) / len(subset)
        return built - start + each * len(points)

    return scaled


def hand_written(case: Case, dtype: torch.dtype, effort: Effort) -> list[Rival]:
    """The Cholesky solve in every form and chunk."""

    def builder(form: str) -> Callable[[], Looked]:
        def build() -> Looked:
            dense = Dense(case, dtype, case.device)

            def look(x: Tensor) -> tuple[Tensor, Tensor]:
                mean, var = dense.posterior(x, form)
                return mean, var.clamp_min_(0).sqrt_()

            return look

        return build

    return [
        Rival(f"Cholesky by hand, {form}, chunks of {chunk}", builder(form), chunk)
        for form in effort.forms
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
        for together in effort.together
        for q in effort.batches
        for chunk in effort.chunks
        for fast in effort.fast
    ]


def botorch_model(case: Case, dtype: torch.dtype, together: bool) -> Any:
    """Both functions as BoTorch's exact GPs, the prior and noise known."""
    from botorch.models.gp_regression import SingleTaskGP
    from botorch.models.model_list_gp_regression import ModelListGP
    from gpytorch.means import ZeroMean

    index, count, mean = case.data.merged()
    kept: dict[str, Any] = {"dtype": dtype, "device": case.device}
    x, y = case.points(index).to(**kept), mean.to(**kept)
    noise = (NOISE / count).to(**kept).unsqueeze(-1)

    def model(y: Tensor) -> Any:
        return SingleTaskGP(
            x,
            y,
            noise.expand_as(y),
            covar_module=deepcopy(case.kernel).to(**kept),
            mean_module=ZeroMean(),
            outcome_transform=None,
        ).eval()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = model(y) if together else ModelListGP(model(y[:, :1]), model(y[:, 1:]))
    return whole.eval()


def botorch_look(
    case: Case, dtype: torch.dtype, q: int, fast: bool, together: bool
) -> Looked:
    """BoTorch's exact posterior of both functions, in t-batches of ``q`` points."""
    import gpytorch

    whole = botorch_model(case, dtype, together)

    def look(points: Tensor) -> tuple[Tensor, Tensor]:
        points, full = points.to(dtype), len(points) // q * q
        parts = [points[:full].view(-1, q, points.shape[-1])] if full else []
        if full < len(points):
            parts.append(points[full:].unsqueeze(-2))
        with (
            torch.no_grad(),
            gpytorch.settings.fast_pred_var(fast),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            seen = [whole.posterior(part) for part in parts]
            mean = torch.cat([p.mean.reshape(-1, 2) for p in seen]).mT
            var = torch.cat([p.variance.reshape(-1, 2) for p in seen]).mT
        return mean, var.clamp_min(0).sqrt()

    return look
