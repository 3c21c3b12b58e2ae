"""GPyTorch kernels as engines use them: dense values, closed forms, axis factors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gpytorch
import torch
from gpytorch import kernels as gpk
from torch import Tensor

from cbandit.actions import Actions, Box, Finite, ProductGrid
from cbandit.errors import CBanditError
from cbandit_kernels import kernel_matrix_ref

__all__ = ["AxisKernel", "Covariance", "Form", "TableKernel"]

DIAGONAL = 1024
LEAST = 1e-14  # of the prior variance: less noise than that is lost in its rounding

AxisKernel = Callable[[Tensor, Tensor], Tensor]
"""``(a (*b, n), b (*b, u)) -> (*b, n, u)``: one axis' factor of a product kernel."""


class TableKernel(gpk.Kernel):  # type: ignore[misc]
    """The kernel of arms known only by a prior covariance; inputs are arm numbers."""

    has_lengthscale = False

    def __init__(self, table: Tensor) -> None:
        super().__init__(batch_shape=table.shape[:-2])
        self.register_buffer("table", table)

    def __getitem__(self, index: Any) -> TableKernel:
        """The tables of some trials."""
        return TableKernel(self.table[index])

    def forward(
        self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any
    ) -> Tensor:
        """Table entries at the rows ``x1 (*b, n, 1)`` and columns ``x2``."""
        i, j = x1[..., 0].round().long(), x2[..., 0].round().long()
        table: Tensor = self.table
        if diag:
            if table.dim() == 2:
                return table[i, j]
            trial = torch.arange(len(table), device=table.device).unsqueeze(-1)
            return table[trial, i, j]
        if table.dim() == 2:
            return table[i.unsqueeze(-1), j.unsqueeze(-2)]
        shape = torch.broadcast_shapes(table.shape[:-2], i.shape[:-1], j.shape[:-1])
        table = table.expand(*shape, *table.shape[-2:])
        i, j = i.expand(*shape, -1), j.expand(*shape, -1)
        rows = table.gather(-2, i.unsqueeze(-1).expand(*i.shape, table.shape[-1]))
        return rows.gather(-1, j.unsqueeze(-2).expand(*rows.shape[:-1], j.shape[-1]))


@dataclass(frozen=True)
class Form:
    """One closed-form factor: a kind of :data:`cbandit_kernels.KINDS` and its scale.

    ``scale``, ``(d,)`` or ``(*trials, d)``, multiplies coordinates.
    """

    kind: str
    scale: Tensor


def _leaves(
    kernel: gpk.Kernel, dims: list[int]
) -> tuple[Tensor | float, list[tuple[gpk.Kernel, list[int]]]]:
    """Amplitude and factors of a kernel; a factor comes with the axes it is given."""
    if isinstance(kernel, gpk.ScaleKernel) and kernel.active_dims is None:
        amplitude, leaves = _leaves(kernel.base_kernel, dims)
        return kernel.outputscale.detach() * amplitude, leaves
    if isinstance(kernel, gpk.ProductKernel) and kernel.active_dims is None:
        total: Tensor | float = 1.0
        found: list[tuple[gpk.Kernel, list[int]]] = []
        for part in kernel.kernels:
            amplitude, leaves = _leaves(part, dims)
            total, found = total * amplitude, found + leaves
        return total, found
    return 1.0, [(kernel, dims)]


def _active(kernel: gpk.Kernel, dims: list[int]) -> list[int]:
    if kernel.active_dims is None:
        return dims
    return [dims[int(i)] for i in kernel.active_dims]


def _form(kernel: gpk.Kernel, dims: list[int], dim: int) -> Form | None:
    active = _active(kernel, dims)
    if type(kernel) is gpk.RBFKernel:
        kind, value = "rbf", 1.0 / kernel.lengthscale.detach()
    elif type(kernel) is gpk.MaternKernel:
        kind = {0.5: "matern12", 1.5: "matern32", 2.5: "matern52"}[kernel.nu]
        value = 1.0 / kernel.lengthscale.detach()
    elif type(kernel) is gpk.LinearKernel:
        kind, value = "linear", kernel.variance.detach().sqrt()
    else:
        return None
    value = value.squeeze(-2)
    scale = value.new_zeros(*value.shape[:-1], dim)
    scale[..., active] = value.expand(*value.shape[:-1], len(active))
    return Form(kind, scale)


class Covariance:
    """A prior covariance over actions, float64, from a gpytorch kernel or a table.

    Args:
        kernel: any gpytorch kernel; copied.
        dim: the number of coordinates.
        bounds: ``(2, d)``; inputs are mapped from it to the unit cube first.
    """

    def __init__(
        self, kernel: gpk.Kernel, dim: int, bounds: Tensor | None = None
    ) -> None:
        self.kernel, self.dim = kernel.double(), dim
        self.bounds = None if bounds is None else bounds.double()
        self.kernel.requires_grad_(False)
        self.refresh()

    def refresh(self) -> None:
        """Read the hyperparameters again, after they were changed."""
        amplitude, leaves = _leaves(self.kernel, list(range(self.dim)))
        if isinstance(amplitude, Tensor) and amplitude.dim() == 0:
            amplitude = float(amplitude)
        self.amplitude = amplitude
        forms = [_form(leaf, dims, self.dim) for leaf, dims in leaves]
        self.forms = None if None in forms else [f for f in forms if f is not None]

    @classmethod
    def of(
        cls, kernel: gpk.Kernel | None, actions: Actions, bounds: Tensor | None = None
    ) -> Covariance:
        """The covariance over a set: the set's own table where it has one."""
        table = actions.covariance if isinstance(actions, Finite) else None
        if kernel is None:
            if table is None:
                raise CBanditError(
                    "GP needs a kernel (or cb.GP.default(actions)); it may be left "
                    "out only with Finite(covariance=K)"
                )
            return cls(TableKernel(table), 1)
        if table is not None:
            raise CBanditError(
                "with Finite(covariance=K) the prior is K itself: give GP no kernel"
            )
        return cls(kernel, actions.dim, bounds)

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """``()``, or ``(trials,)`` where each trial has hyperparameters of its own."""
        return tuple(self.kernel.batch_shape)

    def to(self, device: torch.device) -> Covariance:
        """The same covariance with its parameters on another device (in place)."""
        self.kernel.to(device)
        self.bounds = None if self.bounds is None else self.bounds.to(device)
        self.refresh()
        return self

    def inputs(self, x: Tensor) -> Tensor:
        """Coordinates as the kernel takes them."""
        x = x.double()
        if self.bounds is None:
            return x
        return (x - self.bounds[0]) / (self.bounds[1] - self.bounds[0])

    def scaled(self, x: Tensor) -> Tensor:
        """Scaled coordinates, ``(f, *b, n, d)``, one copy per closed-form factor."""
        assert self.forms is not None
        x = self.inputs(x)
        parts = [x * form.scale.unsqueeze(-2).to(x.device) for form in self.forms]
        return parts[0].unsqueeze(0) if len(parts) == 1 else torch.stack(parts)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The closed-form factors' kinds."""
        assert self.forms is not None
        return tuple(form.kind for form in self.forms)

    @property
    def linear(self) -> bool:
        """Whether all that the kernel knows is a product of coordinates."""
        return self.forms is not None and self.kinds == ("linear",)

    def times(self, values: Tensor) -> Tensor:
        """Values multiplied by the amplitude."""
        if isinstance(self.amplitude, Tensor):
            return values * self.amplitude.to(values)[..., None, None]
        return values if self.amplitude == 1.0 else values * self.amplitude

    def cross(self, x: Tensor, y: Tensor) -> Tensor:
        """``k(x, y)``, ``(*b, n, u)``, of ``x (*b, n, d)`` and ``y (*b, u, d)``."""
        if self.forms is not None:
            xs, ys = self.scaled(x), self.scaled(y)
            values = kernel_matrix_ref(xs[0], ys[0], self.kinds[0])
            for xf, yf, kind in zip(xs[1:], ys[1:], self.kinds[1:], strict=True):
                values = values * kernel_matrix_ref(xf, yf, kind)
            return self.times(values)
        needed = torch.is_grad_enabled() and x.requires_grad
        with (
            torch.set_grad_enabled(needed),
            gpytorch.settings.lazily_evaluate_kernels(False),
        ):
            out: Tensor = self.kernel(self.inputs(x), self.inputs(y)).to_dense()
        return out

    def variance(self, x: Tensor) -> Tensor:
        """``k(x_i, x_i)``, ``(*b, n)``."""
        if self.forms is not None:
            out = self._closed_variance(x)
        else:
            with torch.set_grad_enabled(torch.is_grad_enabled() and x.requires_grad):
                # some kernels take the diagonal of all of it: a few points at a time
                parts = x.split(DIAGONAL, -2)
                values = [self.kernel(self.inputs(part), diag=True) for part in parts]
            out = values[0] if len(values) == 1 else torch.cat(values, -1)
        if not self.batch_shape:
            return out
        return out.expand(*torch.broadcast_shapes(self.batch_shape, x.shape[:-2]), -1)

    def least_noise(self, actions: Finite | ProductGrid | Box) -> Tensor:
        """Less noise over these actions, ``()`` or ``(T,)``, counts as this."""
        if isinstance(actions, Box):
            some = torch.stack([actions.lower, actions.upper])
        else:
            some = actions.block(0, min(actions.size, DIAGONAL))
        return LEAST * self.variance(some).amax(-1)

    def _closed_variance(self, x: Tensor) -> Tensor:
        """Every closed form but the linear one is 1 there."""
        assert self.forms is not None
        out = x.new_ones(x.shape[:-1], dtype=torch.float64)
        for form in self.forms:
            if form.kind == "linear":
                scale = form.scale.unsqueeze(-2).to(x.device)
                out = out * (self.inputs(x) * scale).square().sum(-1)
        return self.times(out.unsqueeze(-1)).squeeze(-1)

    def axes(self, actions: ProductGrid) -> list[AxisKernel] | None:
        """One factor per axis whose product is the kernel, or ``None``."""
        amplitude, leaves = _leaves(self.kernel, list(range(self.dim)))
        factors: list[list[AxisKernel]] = [[] for _ in range(self.dim)]
        for leaf, dims in leaves:
            active = _active(leaf, dims)
            if len(active) > 1 and not _product_over_axes(leaf):
                return None
            # a leaf on one axis is its own factor; one on several is divided by its
            # value where all coordinates agree, which is then an amplitude
            unit = len(active) > 1
            if unit:
                zero = self.inputs(torch.zeros(1, len(dims), dtype=torch.float64))
                zero = torch.zeros_like(zero).to(self._device())
                with torch.no_grad():
                    amplitude = amplitude * leaf(zero, diag=True).squeeze(-1)
            for axis in active:
                factors[axis].append(
                    self._axis_factor(leaf, dims.index(axis), len(dims), axis, unit)
                )
        kernels = [_product(parts) for parts in factors]
        first = kernels[0]

        def scaled_first(a: Tensor, b: Tensor) -> Tensor:
            values = first(a, b)
            if isinstance(amplitude, Tensor):
                return values * amplitude.to(values)[..., None, None]
            return values * amplitude

        kernels[0] = scaled_first
        return kernels if self._agrees(kernels, actions) else None

    def _device(self) -> torch.device:
        devices: list[torch.device] = [p.device for p in self.kernel.parameters()]
        return devices[0] if devices else torch.device("cpu")

    def _axis_factor(
        self, leaf: gpk.Kernel, place: int, count: int, axis: int, unit: bool
    ) -> AxisKernel:
        form = None if not unit else _form(leaf, list(range(count)), count)
        exact = form if form is not None and form.kind == "rbf" else None
        if not unit:
            exact = _form(leaf, list(range(count)), count)

        def factor(a: Tensor, b: Tensor) -> Tensor:
            a, b = self._axis_inputs(a, axis), self._axis_inputs(b, axis)
            if exact is not None:
                scale = exact.scale[..., place, None].to(a.device)
                return kernel_matrix_ref(
                    (a * scale).unsqueeze(-1), (b * scale).unsqueeze(-1), exact.kind
                )
            x, y = a.new_zeros(*a.shape, count), b.new_zeros(*b.shape, count)
            x[..., place], y[..., place] = a, b
            with torch.no_grad(), gpytorch.settings.lazily_evaluate_kernels(False):
                values: Tensor = leaf(x, y).to_dense()
                if unit:
                    values = values / leaf(x[..., :1, :] * 0, diag=True).unsqueeze(-1)
            return values

        return factor

    def _axis_inputs(self, a: Tensor, axis: int) -> Tensor:
        a = a.double()
        if self.bounds is None:
            return a
        low, high = self.bounds[0, axis], self.bounds[1, axis]
        return (a - low) / (high - low)

    def _agrees(self, kernels: list[AxisKernel], actions: ProductGrid) -> bool:
        """Whether the factors' product is the kernel, tried on a few actions."""
        count = min(actions.size, 7)
        picks = torch.arange(count) * (actions.size // count) + actions.size % count
        x = actions.points(picks.to(actions.axes[0].device))
        product = torch.ones((), dtype=torch.float64, device=x.device)
        for j, kernel in enumerate(kernels):
            product = product * kernel(x[:, j], x[:, j])
        whole = self.cross(x, x)
        return bool((product - whole).abs().max() <= 1e-7 * whole.abs().max())


def _product_over_axes(leaf: gpk.Kernel) -> bool:
    if isinstance(leaf, gpk.RBFKernel | gpk.PeriodicKernel):
        return True
    if isinstance(leaf, gpk.ProductStructureKernel):
        return bool(leaf.base_kernel.is_stationary)
    return type(leaf).__name__ == "CategoricalKernel"


def _product(parts: list[AxisKernel]) -> AxisKernel:
    def kernel(a: Tensor, b: Tensor) -> Tensor:
        shape = torch.broadcast_shapes(a.shape[:-1], b.shape[:-1])
        values = torch.ones(
            *shape, a.shape[-1], b.shape[-1], dtype=torch.float64, device=a.device
        )
        for part in parts:
            values = values * part(a, b)
        return values

    return kernel
