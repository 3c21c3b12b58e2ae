"""Give users' widths the shape of a policy's functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from cbandit._core import checks, devices
from cbandit.confidence.widths import RKHS, Constant
from cbandit.errors import CBanditError

WidthFunction = Callable[[int, Tensor], Any]
"""A user's function of the round and the gain."""

Width = Tensor | RKHS | Constant | WidthFunction


class Learned(Protocol):
    """The part of beliefs that widths depend on."""

    def gains(self) -> Tensor:
        """Return the realised information gain of each function, ``(T, F)``."""

    def noises(self) -> Tensor:
        """Return the likelihood variances, ``(T, F)``."""


class Widths:
    """The widths ``beta`` of the reward and the costs: numbers, schedules or callables.

    A policy calls :meth:`bind` once to give them the shape of its trials.

    Args:
        beta: the reward's width, and the costs' unless ``cost_beta`` is given.
        cost_beta: the costs' width.
        signed: whether numbers in ``cost_beta`` may be negative.
    """

    def __init__(self, beta: Any, cost_beta: Any = None, signed: bool = False) -> None:
        self.beta = _checked("beta", beta)
        self.cost_beta = self.beta
        if cost_beta is not None:
            self.cost_beta = _checked("cost_beta", cost_beta, signed)

    __getstate__ = checks.numbers_of

    @property
    def negative(self) -> bool:
        """Whether a cost's width is a negative number."""
        value = self.cost_beta
        return isinstance(value, Tensor) and bool((value < 0).any())

    def for_any_noise(self) -> Widths:
        """Return the same widths, with RKHS schedules in the form for any noise."""
        shared = self.cost_beta is self.beta
        beta, cost_beta = _for_any_noise(self.beta), _for_any_noise(self.cost_beta)
        return Widths(beta, None if shared else cost_beta, self.negative)

    def __repr__(self) -> str:
        first, second = worded(self.beta), worded(self.cost_beta)
        return first if first == second else f"{first}, cost_beta={second}"

    def bind(
        self,
        batch_shape: tuple[int, ...],
        m: int,
        device: torch.device,
        graph: bool = True,
    ) -> BoundWidths:
        """Return the widths of ``1 + m`` functions in these trials.

        Gradients reach the numbers they were given if ``graph``. A policy keeps numbers
        alone, so that its state holds no graph.
        """
        known = batch_shape, device, graph
        shared = self.cost_beta is self.beta
        if not m or (shared and not _is_function(self.beta)):
            parts = [_bound("beta", self.beta, 1, 1 + m, *known)]
        else:
            name, told = ("beta", 1) if shared else ("cost_beta", m)
            first = _bound("beta", self.beta, 1, 1, *known)
            parts = [first, _bound(name, self.cost_beta, told, m, *known)]
        return BoundWidths(parts, m + 1)


class BoundWidths:
    """Widths as a function ``(t, gain (T, F), noise, bound_count) -> (T, F)``.

    The result must not be changed in place. ``noise()`` returns the likelihood
    variances ``(T, F)``, and is called only if a schedule needs it.

    Args:
        parts: one part for all functions, or one for the reward and one for the costs.
        functions: ``F``.
    """

    def __init__(self, parts: list[_Part], functions: int) -> None:
        columns = [slice(0, 1), slice(1, functions)]
        if len(parts) == 1:
            columns = [slice(0, functions)]
        self._parts, self.functions = list(zip(parts, columns, strict=True)), functions
        self._needs_noise = any(part.rkhs.needs_noise for part, _ in self.rkhs_parts())
        #: the widths ``(T, F)`` if they never change, else ``None``
        self.fixed: Tensor | None = None
        fixed = [part.value for part in parts if isinstance(part, _Fixed)]
        if len(fixed) == len(parts):
            self.fixed = torch.cat(fixed, -1)

    def __call__(
        self,
        t: int,
        gain: Tensor,
        noise: Callable[[], Tensor],
        bound_count: int | None = None,
    ) -> Tensor:
        """Return the widths of round ``t``.

        ``bound_count`` is the ``c`` of RKHS widths: how many bounds must hold together.
        """
        if self.fixed is not None:
            return self.fixed
        known = noise() if self._needs_noise else None
        widths = []
        for part, at in self._parts:
            lam = None if known is None else known[:, at]
            widths.append(part(t, gain[:, at], lam, bound_count or self.functions))
        return widths[0] if len(widths) == 1 else torch.cat(widths, -1)

    def around(self, beliefs: Learned, t: int, bound_count: int) -> Tensor:
        """Return the widths of round ``t`` around these beliefs."""
        if self.fixed is not None:
            return self.fixed
        return self(t, beliefs.gains(), beliefs.noises, bound_count)

    def with_noise(self, subgaussian: Tensor) -> BoundWidths:
        """Return the widths for other noise constants ``R (T, F)``."""
        parts = [
            replace(part, subgaussian=subgaussian[:, at])
            if isinstance(part, Theory)
            else part
            for part, at in self._parts
        ]
        return BoundWidths(parts, self.functions)

    def rkhs_parts(self) -> list[tuple[Theory, slice]]:
        """Return the parts that follow the theory, and their functions."""
        return [(part, at) for part, at in self._parts if isinstance(part, Theory)]


@dataclass(frozen=True)
class _Fixed:
    """Widths ``(T, k)`` that never change."""

    value: Tensor

    def __call__(
        self, t: int, gain: Tensor, noise: Tensor | None, functions: int
    ) -> Tensor:
        return self.value


@dataclass(frozen=True)
class Theory:
    """Widths by :class:`RKHS`, with its ``B`` and ``R`` as ``(T, k)``."""

    rkhs: RKHS
    norm: Tensor
    subgaussian: Tensor

    def __call__(
        self, t: int, gain: Tensor, noise: Tensor | None, functions: int
    ) -> Tensor:
        """Return the widths of round ``t``, ``(T, k)``."""
        return self.rkhs(t, gain, functions, noise, self.norm, self.subgaussian)


@dataclass(frozen=True)
class _Called:
    """Widths returned by a user's function of the round and the gain."""

    name: str
    batch_shape: tuple[int, ...]
    call: WidthFunction
    graph: bool = False

    def __call__(
        self, t: int, gain: Tensor, noise: Tensor | None, functions: int
    ) -> Tensor:
        columns, m = [], gain.shape[-1]
        for j in range(m):
            value = self.call(t, gain[:, j].reshape(self.batch_shape))
            value = checks.nonnegative(self.name, value, graph=self.graph)
            value = devices.put(value, gain.device, gain.dtype)
            if value.dim() == len(self.batch_shape) + 1 and value.shape[-1] == m:
                value = value[..., j]
            known = self.name, value, self.batch_shape
            columns.append(checks.per_trial(*known, graph=self.graph))
        return torch.stack(columns, -1)


_Part = _Fixed | Theory | _Called


def worded(value: object) -> str:
    """Return a short text for a width or a draw."""
    if isinstance(value, Tensor):
        return str(value.tolist())
    return str(getattr(value, "__qualname__", repr(value)))


def _for_any_noise(beta: Width) -> Width:
    return beta.for_any_noise() if isinstance(beta, RKHS) else beta


def _checked(name: str, beta: object, signed: bool = False) -> Width:
    if callable(beta) and not isinstance(beta, type):
        function: Width = beta
        if _is_function(function) and not _takes(beta, 1, None):
            raise CBanditError(
                f"{name} must be a number, a schedule such as cb.RKHS or a function of "
                f"the round and the gain, (t, gain) -> width; got {worded(beta)}"
            )
        return function
    if signed:
        return checks.finite(name, checks.tensor(name, beta, graph=True))
    return checks.nonnegative(name, beta, graph=True)


def _takes(function: Callable[..., Any], *values: object) -> bool:
    """Return whether a function's signature allows these values."""
    try:
        inspect.signature(function).bind(*values)
    except TypeError:
        return False
    except ValueError:  # it has no signature
        return True
    return True


def _is_function(beta: Width) -> bool:
    """Return whether a width is a user's function, not one of our schedules."""
    return not isinstance(beta, RKHS | Constant | Tensor)


def _bound(
    name: str,
    beta: Width,
    told: int,
    functions: int,
    batch: tuple[int, ...],
    device: torch.device,
    graph: bool,
) -> _Part:
    """Return the widths of functions, from ``told`` values: one each, or one."""

    def shaped(what: str, value: Tensor) -> Tensor:
        value = checks.per_cost(what, value, batch, told, graph=graph)
        return devices.put(value, device).expand(-1, functions).contiguous()

    if isinstance(beta, RKHS):
        norm, r = shaped("norm", beta.norm), shaped("subgaussian", beta.subgaussian)
        return Theory(beta, norm, r)
    value = beta.beta if isinstance(beta, Constant) else beta
    if isinstance(value, Tensor):
        return _Fixed(shaped(name, value))
    return _Called(name, batch, value, graph)
