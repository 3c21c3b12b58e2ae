"""Prior covariances from GPyTorch kernels: dense, in closed form, or by grid axis.

A kernel may have separate hyperparameters for each trial. gpytorch's ``expand_batch``
and indexing mishandle kernels inside products, and take ``active_dims`` for a
hyperparameter; :func:`one_a_trial` and :func:`trial_of` do not.
"""

from __future__ import annotations

import copy
import functools
import itertools
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gpytorch
import torch
from gpytorch import kernels as gpk
from linear_operator.utils.warnings import NumericalWarning
from torch import Tensor

from cbandit._core.log import warn
from cbandit._core.peaks import CLOSE, CLOSE_NARROW
from cbandit.actions import Actions, Finite, ProductGrid, Unit, spread_points
from cbandit.beliefs.features import FeatureKernel, Frame
from cbandit.beliefs.kernel_tree import Node, products, read
from cbandit.errors import CBanditError
from cbandit.posterior.prior_mean import PriorMean
from cbandit_kernels import KINDS, kernel_matrix_ref

DIAGONAL = 1024
COARSE = 1e-3  # lengthscales between neighbouring floats that cause a warning
PLACES = 64  # points at which prior variances are compared
FEW = 8  # points at which readings of a kernel are compared with the kernel
FLAT = 1e-13  # share of the prior variance below which differences are rounding
AGREE = 1e-6  # the same for kernel values, whose distances lose digits
LEAST = 1e-14  # noise below this share of the prior variance is lost in rounding


class TableKernel(gpk.Kernel):  # type: ignore[misc]
    """The kernel of arms known by a prior covariance; inputs are arm numbers."""

    has_lengthscale = False

    def __init__(self, table: Tensor) -> None:
        super().__init__(batch_shape=table.shape[:-2])
        self.register_buffer("table", table)

    def __getitem__(self, index: int | slice | Tensor | tuple[Any, ...]) -> TableKernel:
        """Return the kernel of some trials."""
        return TableKernel(self.table[index])

    def forward(
        self, x1: Tensor, x2: Tensor, diag: bool = False, **params: object
    ) -> Tensor:
        """Return table entries at the rows ``x1 (*b, n, 1)`` and columns ``x2``."""
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
    """A closed-form kernel: one of :data:`cbandit_kernels.KINDS`, and its scale.

    ``scale``, ``(d,)`` or ``(*trials, d)``, multiplies coordinates.
    """

    kind: str
    scale: Tensor


@dataclass(frozen=True)
class Term:
    """A term of a sum kernel: an amplitude times closed forms, or a constant.

    Args:
        amplitude: what the product is multiplied by, ``()`` or ``(*trials,)``.
        forms: the factors.
        apart: the factor for each coordinate in which two points differ, ``(d,)`` or
            ``(*trials, d)``: below 1 for categories; ``None``: there are no
            categories.
    """

    amplitude: Tensor
    forms: tuple[Form, ...] = ()
    apart: Tensor | None = None

    @property
    def curved(self) -> bool:
        """Whether the term is neither linear nor constant."""
        curves = any(form.kind != "linear" for form in self.forms)
        return curves or self.apart is not None

    def values(self, x: Tensor, y: Tensor) -> Tensor:
        """Return values ``(*b, n, u)`` at inputs ``x (*b, n, d)``, ``y (*b, u, d)``."""
        shape = x.shape[-2], y.shape[-2]
        amplitude = self.amplitude.to(x)[..., None, None]
        out = amplitude.expand(*self.amplitude.shape, *shape)
        for form in self.forms:
            scale = form.scale.unsqueeze(-2).to(x)
            out = out * kernel_matrix_ref(x * scale, y * scale, form.kind)
        if self.apart is not None:
            differ = x.unsqueeze(-2) != y.unsqueeze(-3)
            apart = torch.where(differ, self.apart[..., None, None, :], 1.0)
            out = out * apart.prod(-1)
        return out


def terms_of(tree: Node, dim: int) -> list[Term] | None:
    """Return a kernel over ``dim`` axes as a sum of terms.

    ``None`` if some part of it has no closed form.
    """
    terms = []
    for product in products(tree):
        if not all(leaf.closed for leaf in product.factors):
            return None
        forms, apart = [], None
        for leaf in product.factors:
            scale = leaf.scales(dim)
            if leaf.kind != "categories":
                forms.append(Form(leaf.kind, scale))
            else:
                share = torch.exp(-scale)
                apart = share if apart is None else apart * share
        amplitude = torch.as_tensor(product.amplitude, dtype=torch.float64)
        terms.append(Term(amplitude, tuple(forms), apart))
    return terms


class Covariance:
    """A prior covariance over actions, float64, from a gpytorch kernel or a table.

    It is immutable; a fit makes a new one.

    Args:
        kernel: any gpytorch kernel, which must not be changed afterwards.
        dim: the number of coordinates.
        unit: maps inputs to the unit cube; ``None``: inputs stay as they are.
        places: points of the set, ``(*trials, n, d)``. The variance of a kernel without
            a closed form counts as flat if it is the same at all of them; ``None``: it
            does not count as flat.
    """

    def __init__(
        self,
        kernel: gpk.Kernel,
        dim: int,
        unit: Unit | None = None,
        places: Tensor | None = None,
    ) -> None:
        self.kernel, self.dim = kernel.double(), dim
        self.unit = unit
        self.kernel.requires_grad_(False)
        #: the kernel as a sum of terms; ``None`` if some part has no closed form
        self.terms = terms_of(read(self.kernel, range(dim)), dim)
        self.amplitude: Tensor | float = 1.0
        self.forms: list[Form] | None = None  # if the kernel is a single product
        term = self.terms[0] if self.terms and not self.terms[1:] else None
        if term is not None and term.forms and term.apart is None:
            self.forms, scale = list(term.forms), term.amplitude
            self.amplitude = float(scale) if scale.dim() == 0 else scale
        self.places = places if self.terms is None else None
        #: whether the prior variance is the same everywhere
        self.level = self._flat()

    @classmethod
    def of(
        cls, kernel: gpk.Kernel | None, actions: Actions, unit: Unit | None = None
    ) -> Covariance:
        """Return the covariance over a set, from a kernel or the set's own one."""
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
        places = spread_points(actions, PLACES)
        kernel, device = together(kernel), places.device
        if device_of(kernel) != device:
            kernel = copy.deepcopy(kernel).to(device)
        unit = None if unit is None else unit.to(device)
        out = cls(kernel, actions.dim, unit, places)
        out.check(spread_points(actions, FEW, neighbours=True))
        return out

    def with_kernel(self, kernel: gpk.Kernel) -> Covariance:
        """Return the covariance over the same set by another kernel."""
        return Covariance(kernel, self.dim, self.unit, self.places)

    def over(self, actions: Actions) -> Covariance:
        """Return the covariance over a set in which a category has gained a value."""
        if not isinstance(self.kernel, FeatureKernel):
            return self
        return self.with_kernel(self.kernel.over(actions))

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """``()``, or ``(trials,)`` if each trial has its own hyperparameters."""
        return tuple(self.kernel.batch_shape)

    def to(self, device: torch.device) -> Covariance:
        """Return the same covariance with its parameters on another device."""
        near = self.unit is None or self.unit.bounds.device == device
        if self.device == device and near:
            return self
        unit = None if self.unit is None else self.unit.to(device)
        places = None if self.places is None else self.places.to(device)
        kernel = copy.deepcopy(self.kernel).to(device)
        return Covariance(kernel, self.dim, unit, places)

    @property
    def device(self) -> torch.device:
        """The device of the hyperparameters; the CPU if there are none."""
        return device_of(self.kernel)

    def inputs(self, x: Tensor) -> Tensor:
        """Return coordinates in the form that the kernel takes."""
        x = x.double()
        return x if self.unit is None else self.unit.of(x)

    def scaled(self, x: Tensor, trials: Tensor | None = None) -> Tensor:
        """Return scaled coordinates ``(f, *b, n, d)``, one copy for each factor.

        Args:
            x: ``(*b, n, d)``.
            trials: the trials ``(k,)`` whose hyperparameters to use, ``b = k``;
                ``None``: all.
        """
        x = self.inputs(x)
        scales = [form.scale.unsqueeze(-2) for form in self.closed()]
        if trials is not None and self.batch_shape:
            scales = [scale[trials] if scale.dim() > 2 else scale for scale in scales]
        parts = [x * scale.to(x.device) for scale in scales]
        return parts[0].unsqueeze(0) if len(parts) == 1 else torch.stack(parts)

    def closed(self) -> list[Form]:
        """Return the closed-form factors; raise if the kernel is not such a product."""
        if self.forms is None:
            raise CBanditError(f"{type(self.kernel).__name__} has no closed form")
        return self.forms

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of the closed-form factors."""
        return tuple(form.kind for form in self.closed())

    @property
    def bent(self) -> bool:
        """Whether some coordinates enter by their logarithms."""
        return self.unit is not None and self.unit.logs is not None

    @property
    def linear(self) -> bool:
        """Whether the kernel is linear, perhaps scaled."""
        return self.forms is not None and self.kinds == ("linear",)

    @property
    def finite(self) -> bool:
        """Whether the kernel is an inner product of finitely many features."""
        if isinstance(self.kernel, FeatureKernel):
            return True
        terms = self.terms
        return terms is not None and all(
            len(term.forms) < 2 and not term.curved for term in terms
        )

    @property
    def blocks(self) -> int:
        """How many blocks of weights the features have."""
        return self.kernel.blocks if isinstance(self.kernel, FeatureKernel) else 1

    @property
    def open(self) -> int:
        """How many inputs are standardised by their observed values."""
        return len(self.kernel.open) if isinstance(self.kernel, FeatureKernel) else 0

    def block(self, x: Tensor) -> Tensor | None:
        """Return each point's block of weights; ``None`` if there is only one."""
        if not isinstance(self.kernel, FeatureKernel):
            return None
        return self.kernel.block(x)

    def features(self, x: Tensor, frame: Frame | None = None) -> Tensor:
        """Return features ``(*b, n, D)`` of points; their products are the kernel.

        Args:
            x: ``(*b, n, d)``.
            frame: of the inputs that are standardised by their observed values.
        """
        if isinstance(self.kernel, FeatureKernel):
            return self.kernel.features(x.double(), frame)
        if self.terms is None or not self.finite:
            raise CBanditError(
                f"{type(self.kernel).__name__} has no finitely many features"
            )
        inputs, parts = self.inputs(x), []
        for term in self.terms:  # each linear or constant
            root = term.amplitude.sqrt().unsqueeze(-1).unsqueeze(-1).to(inputs)
            scales = [form.scale.unsqueeze(-2).to(inputs) for form in term.forms]
            part = inputs if scales else torch.ones_like(inputs[..., :1])
            parts.append(math.prod(scales, start=part * root))
        shape = torch.broadcast_shapes(*[part.shape[:-1] for part in parts])
        return torch.cat([part.expand(*shape, -1) for part in parts], -1)

    def raw(self, x: Tensor) -> Tensor:
        """Return the inputs standardised by observed values, as given, ``(.., k)``."""
        return self._of_features().raw(x)

    def change(self, old: Frame, new: Frame) -> Tensor:
        """Return the matrix ``(*b, D, D)`` that maps features to another frame."""
        return self._of_features().change(old, new)

    def _of_features(self) -> FeatureKernel:
        if not isinstance(self.kernel, FeatureKernel):
            raise CBanditError(f"{type(self.kernel).__name__} has no frame")
        return self.kernel

    def times(self, values: Tensor) -> Tensor:
        """Return values multiplied by the amplitude."""
        if isinstance(self.amplitude, Tensor):
            return values * self.amplitude.to(values)[..., None, None]
        return values if self.amplitude == 1.0 else values * self.amplitude

    def rows(self, trials: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Return ``k(x_i, y)``, ``(k, n)``, each with the hyperparameters of one trial.

        Args:
            trials: the trial of each point, ``(k,)``.
            x: ``(k, d)``.
            y: ``(n, d)``, or ``(T, n, d)`` if it differs by trial.
        """
        if self.forms is None or not self.batch_shape:
            count = math.prod(self.batch_shape) if self.batch_shape else len(y)
            every = x.new_zeros(count, 1, x.shape[-1])
            every[trials, 0] = x
            return self.cross(every, y)[trials, 0]
        y = y[trials] if y.dim() > 2 else y
        xs, ys = self.scaled(x.unsqueeze(-2), trials), self.scaled(y, trials)
        values = self._product(xs, ys)
        if isinstance(self.amplitude, Tensor) and self.amplitude.dim():
            values = values * self.amplitude.to(values)[trials, None, None]
        else:
            values = self.times(values)
        return values[:, 0]

    def _product(self, xs: Tensor, ys: Tensor) -> Tensor:
        """Return the product of the closed forms at scaled coordinates."""
        values = kernel_matrix_ref(xs[0], ys[0], self.kinds[0])
        for xf, yf, kind in zip(xs[1:], ys[1:], self.kinds[1:], strict=True):
            values = values * kernel_matrix_ref(xf, yf, kind)
        return values

    def cross(self, x: Tensor, y: Tensor) -> Tensor:
        """Return ``k(x, y) (*b, n, u)`` of ``x (*b, n, d)`` and ``y (*b, u, d)``."""
        if self.forms is not None:
            return self.times(self._product(self.scaled(x), self.scaled(y)))
        if self.terms is not None and not self.level:
            # GPyTorch factors sums with linear parts when they are evaluated
            return self._sum_of(self.terms, x, y)
        return self._dense(x, y)

    def _sum_of(self, terms: list[Term], x: Tensor, y: Tensor) -> Tensor:
        """Return the sum of terms ``(*b, n, u)`` at points."""
        x, y = self.inputs(x), self.inputs(y)
        return functools.reduce(torch.add, [term.values(x, y) for term in terms])

    def variance(self, x: Tensor) -> Tensor:
        """Return ``k(x_i, x_i)``, ``(*b, n)``."""
        if self.forms is not None:
            out = self._closed_variance(x)
        elif self.level:
            # one point suffices; some kernels compute the whole matrix for a diagonal
            out = self._diagonal(x[..., :1, :].detach())
            out = out.expand(*out.shape[:-1], x.shape[-2])
        else:
            out = self._diagonal(x)
        if not self.batch_shape:
            return out
        return out.expand(*torch.broadcast_shapes(self.batch_shape, x.shape[:-2]), -1)

    def _diagonal(self, x: Tensor) -> Tensor:
        """Return ``k(x_i, x_i)`` by the kernel itself."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and x.requires_grad):
            # some kernels compute the whole matrix for a diagonal: a few points at a
            # time
            parts = x.split(DIAGONAL, -2)
            values = [self.kernel(self.inputs(part), diag=True) for part in parts]
        return values[0] if len(values) == 1 else torch.cat(values, -1)

    def _dense(self, x: Tensor, y: Tensor) -> Tensor:
        """Return ``k(x, y)`` by the kernel itself."""
        needed = torch.is_grad_enabled() and x.requires_grad
        with (
            torch.set_grad_enabled(needed),
            gpytorch.settings.lazily_evaluate_kernels(False),
        ):
            out: Tensor = self.kernel(self.inputs(x), self.inputs(y)).to_dense()
        return out

    def _flat(self) -> bool:
        """Return whether the prior variance is the same everywhere.

        GPyTorch's ``is_stationary`` only says whether there is a lengthscale. So closed
        forms are read, and variances of other kernels are compared at some points.
        """
        if self.terms is not None:
            kinds = {form.kind for term in self.terms for form in term.forms}
            return "linear" not in kinds
        if self.places is None or isinstance(self.kernel, FeatureKernel):
            return False
        variance = self._diagonal(self.places)
        most, least = variance.amax(-1), variance.amin(-1)
        return bool((most - least <= FLAT * most.abs()).all())

    def check(self, x: Tensor) -> None:
        """Raise unless this agrees with the kernel at points ``x (*trials, n, d)``."""
        name, count = type(self.kernel).__name__, x.shape[-2]
        try:
            with torch.no_grad(), warnings.catch_warnings():
                # of roots of sums with linear parts, which are not used
                warnings.simplefilter("ignore", NumericalWarning)
                dense = self.kernel(self.inputs(x)).to_dense()
                readings = self._readings(x)
        except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as e:
            raise CBanditError(
                f"kernel: {name} cannot be evaluated at points of the set, a tensor "
                f"{tuple(x.shape)}: {e}"
            ) from e
        shape = *torch.broadcast_shapes(self.batch_shape, x.shape[:-2]), count, count
        if dense.shape[-2:] != shape[-2:] or dense.dim() > len(shape):
            raise CBanditError(
                f"kernel: {name} gives {count} points a covariance "
                f"{tuple(dense.shape)}; expected {shape}, one value per pair"
            )
        limit = AGREE * dense.abs().amax()
        for what, values in readings.items():
            if not bool(((values - dense).abs() <= limit).all()):
                self._check_pairs(x, values, limit, what)
        diagonal = dense.diagonal(dim1=-2, dim2=-1)
        if not bool(((self.variance(x) - diagonal).abs() <= limit).all()):
            raise self._differs("kernel(x, diag=True)")

    def _readings(self, x: Tensor) -> dict[str, Tensor]:
        """Return ``k(x, x)`` in each way that engines compute it, by name."""
        lead = x if x.dim() > 2 else x.unsqueeze(0)
        half = -(-x.shape[-2] // 2)  # rows by themselves, as those of tried actions
        rows = [self.cross(part, lead) for part in lead.split(half, -2)]
        readings = {"kernel(x, y)": torch.cat(rows, -2)}
        if self.terms is not None:
            readings["its closed form"] = self._sum_of(self.terms, x, x)
            if self.finite:
                features = self.features(x)
                readings["the product of its features"] = features @ features.mT
        return readings

    def _check_pairs(self, x: Tensor, values: Tensor, limit: Tensor, what: str) -> None:
        """Raise unless values agree with the kernel at each pair of points by itself.

        Distances within a set of points lose digits if some are far apart.
        """
        for i, j in itertools.product(range(x.shape[-2]), repeat=2):
            pair = x[..., i : i + 1, :], x[..., j : j + 1, :]
            one = self._dense(*pair)[..., 0, 0]
            if not bool(((values[..., i, j] - one).abs() <= limit).all()):
                raise self._differs(what)

    def _differs(self, what: str) -> CBanditError:
        return CBanditError(
            f"kernel: {type(self.kernel).__name__} cannot be used, since {what} "
            "differs from kernel(x).to_dense() at points of the set"
        )

    def check_resolution(self, actions: Actions, dtype: torch.dtype) -> None:
        """Warn if neighbouring floats of a dtype are far apart for the kernel."""
        if self.forms is None or isinstance(self.kernel, TableKernel):
            return
        ends = actions.extent().to(dtype)
        steps = self.scaled(torch.nextafter(ends, ends.new_tensor(torch.inf)))
        steps = (steps - self.scaled(ends)).abs()
        curved = [form.kind != "linear" for form in self.forms]
        steps = steps[curved].reshape(-1, self.dim)
        if not len(steps) or float(steps.max()) <= COARSE:
            return
        axis = int(steps.amax(0).argmax())
        warn(
            f"coordinate {axis} goes up to {float(ends[..., axis].abs().max()):.9g}, "
            f"where {str(dtype).removeprefix('torch.')} numbers are "
            f"{float(steps.max()):.2g} lengthscales apart: beliefs are off by about as "
            "many deviations. Shift or scale the coordinates to be near 0"
            + ("" if dtype == torch.float64 else ", or use dtype=torch.float64"),
            RuntimeWarning,
        )

    def least_noise(self, actions: Actions) -> Tensor:
        """Return the least noise variance that float64 resolves, ``()`` or ``(T,)``."""
        return LEAST * self.largest(actions)

    def largest(self, actions: Actions) -> Tensor:
        """Return the largest prior variance, ``()`` or ``(T,)``; 1 if all are 0."""
        if actions.continuous:
            some = actions.extent().nan_to_num(posinf=0.0, neginf=0.0)
        else:
            some = actions.block(0, min(actions.size, DIAGONAL))
        variance = self.variance(some).amax(-1)
        return torch.where(variance > 0, variance, 1.0)

    def _closed_variance(self, x: Tensor) -> Tensor:
        """Return ``k(x_i, x_i)``; every closed form but the linear one is 1."""
        out = x.new_ones(x.shape[:-1], dtype=torch.float64)
        for form in self.closed():
            if form.kind == "linear":
                scale = form.scale.unsqueeze(-2).to(x.device)
                out = out * (self.inputs(x) * scale).square().sum(-1)
        return self.times(out.unsqueeze(-1)).squeeze(-1)


@dataclass(frozen=True)
class Prior:
    """A prior over an action set, and how its posterior is stored.

    Args:
        actions: a set or a box.
        covariance: the prior covariance.
        batch_shape: ``()`` or ``(trials,)``.
        dtype: the dtype of arrays over the set.
        device: where the arrays live.
        stretch: the actions that this process stores, the first and one past the last;
            ``None``: all.
        fade: the factor ``(T,)`` by which data shrink each round; ``None``: they do
            not.
        mean: the prior means if they vary, whose part above their level engines add;
            ``None``: they are constant.
    """

    actions: Actions
    covariance: Covariance
    batch_shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    stretch: tuple[int, int] | None = None
    fade: Tensor | None = None
    mean: PriorMean | None = None

    @property
    def trials(self) -> int:
        """``T``, the number of trials."""
        return math.prod(self.batch_shape)

    @functools.cached_property
    def tolerance(self) -> Tensor:
        """The difference below which two values count as equal, ``(T,)``.

        The last bits of values depend on the processor. The difference is a share of
        the prior deviation, not of the values, which may be far from 0. Points of a box
        are always solved for in float64.
        """
        narrow = self.dtype != torch.float64 and not self.actions.continuous
        share = CLOSE_NARROW if narrow else CLOSE
        deviation = self.covariance.largest(self.actions).sqrt()
        return (share * deviation).expand(self.trials)

    @property
    def ends(self) -> tuple[int, int]:
        """The first action that this process stores, and one past the last."""
        return self.stretch or (0, self.actions.size)


def device_of(kernel: gpk.Kernel) -> torch.device:
    """Return the device of a kernel's hyperparameters; the CPU if there are none."""
    values = itertools.chain(kernel.parameters(), kernel.buffers())
    first: Tensor | None = next(values, None)
    return torch.device("cpu") if first is None else first.device


def together(kernel: gpk.Kernel) -> gpk.Kernel:
    """Return a kernel whose parts all have its batch shape; ``(1,)`` counts as none."""
    batch = tuple(kernel.batch_shape)
    batch = () if batch == (1,) else batch
    parts = [part for part in kernel.modules() if isinstance(part, gpk.Kernel)]
    batches = {tuple(part._batch_shape) for part in parts}
    if batches == {batch} or batches - {(), (1,), batch}:  # a batch inside some part
        return kernel

    def widened(value: Tensor, own: tuple[int, ...]) -> Tensor:
        one = value[0] if own else value
        return one.expand((*batch, *one.shape)).clone()

    return _changed(kernel, widened, batch)


def one_a_trial(kernel: gpk.Kernel, trials: int) -> gpk.Kernel:
    """Return a copy of an unbatched kernel with separate parameters per trial."""

    def widened(value: Tensor, own: tuple[int, ...]) -> Tensor:
        return value.expand(trials, *value.shape).clone()

    return _changed(kernel, widened, (trials,))


def trial_of(kernel: gpk.Kernel, trial: int) -> gpk.Kernel:
    """Return a copy of a kernel with the hyperparameters of one trial."""
    if not kernel.batch_shape:
        return copy.deepcopy(kernel)
    return _changed(kernel, lambda value, own: value[trial].clone(), ())


def load_trial(one: gpk.Kernel, kernel: gpk.Kernel, trial: int) -> None:
    """Copy the hyperparameters of a trial into ``one``, made by :func:`trial_of`."""
    for part, whole in zip(one.modules(), kernel.modules(), strict=True):
        if isinstance(part, gpk.Kernel):
            pairs = zip(_hyperparameters(part), _hyperparameters(whole), strict=True)
            for value, values in pairs:
                value.data = values.data[trial].clone()


def _changed(
    kernel: gpk.Kernel,
    change: Callable[[Tensor, tuple[int, ...]], Tensor],
    batch: tuple[int, ...],
) -> gpk.Kernel:
    """Return a copy of a kernel with another batch shape.

    ``change`` makes a hyperparameter of it, given the old one and its batch shape.
    """
    out = copy.deepcopy(kernel)
    for part in out.modules():
        if not isinstance(part, gpk.Kernel):
            continue
        own = tuple(part._batch_shape)  # without the parts'
        if own == batch:
            continue
        for value in _hyperparameters(part):
            value.data = change(value.data, own)
        part.batch_shape = torch.Size(batch)
    return out


def _hyperparameters(part: gpk.Kernel) -> list[Tensor]:
    """Return a kernel's parameters and buffers, without ``active_dims`` and parts'."""
    buffers = part.named_buffers(recurse=False)
    fixed = [value for name, value in buffers if name != "active_dims"]
    return [*part.parameters(recurse=False), *fixed]


AxisKernel = Callable[[Tensor, Tensor], Tensor]
"""``(a (*b, n), b (*b, u)) -> (*b, n, u)``: a product kernel's factor on an axis."""


def axes_of(covariance: Covariance, actions: ProductGrid) -> list[AxisKernel] | None:
    """Return one factor per axis whose product is the kernel, or ``None``."""
    (product,) = products(read(covariance.kernel, range(covariance.dim)), expand=False)
    amplitude = product.amplitude
    factors: list[list[AxisKernel]] = [[] for _ in range(covariance.dim)]
    for leaf in product.factors:
        used = leaf.used
        if not used or (len(used) > 1 and not leaf.separable):
            return None
        # a leaf on one axis is its own factor; one on several axes is divided by its
        # value at equal points, which becomes an amplitude
        unit = len(used) > 1
        if unit:
            zero = torch.zeros(1, len(leaf.axes), device=covariance.device).double()
            with torch.no_grad():
                amplitude = amplitude * leaf.values(zero, zero)[..., 0, 0]
        for axis in used:
            factors[axis].append(_axis_factor(covariance, leaf, axis, unit))
    kernels = [_product(parts) for parts in factors]
    first = kernels[0]

    def scaled_first(a: Tensor, b: Tensor) -> Tensor:
        values = first(a, b)
        if isinstance(amplitude, Tensor):
            return values * amplitude.to(values)[..., None, None]
        return values * amplitude

    kernels[0] = scaled_first
    return kernels if _agrees(covariance, kernels, actions) else None


def _axis_factor(
    covariance: Covariance, leaf: Node, axis: int, unit: bool
) -> AxisKernel:
    closed = leaf.closed and leaf.kind in KINDS
    scale = leaf.scales(covariance.dim)[..., axis, None] if closed else None
    places = [place for place, other in enumerate(leaf.axes) if other == axis]

    def factor(a: Tensor, b: Tensor) -> Tensor:
        a, b = _axis_inputs(covariance, a, axis), _axis_inputs(covariance, b, axis)
        if scale is not None:
            near = scale.to(a.device)
            return kernel_matrix_ref(
                (a * near).unsqueeze(-1), (b * near).unsqueeze(-1), leaf.kind
            )
        x, y = (v.new_zeros(*v.shape, len(leaf.axes)) for v in (a, b))
        x[..., places], y[..., places] = a.unsqueeze(-1), b.unsqueeze(-1)
        with torch.no_grad(), gpytorch.settings.lazily_evaluate_kernels(False):
            values = leaf.values(x, y)
            if unit:
                zero = x[..., :1, :] * 0
                values = values / leaf.values(zero, zero)
        return values

    return factor


def _axis_inputs(covariance: Covariance, a: Tensor, axis: int) -> Tensor:
    a = a.double()
    return a if covariance.unit is None else covariance.unit.axis(a, axis)


def _agrees(
    covariance: Covariance, kernels: list[AxisKernel], actions: ProductGrid
) -> bool:
    """Return whether the factors' product is the kernel, on a few sample actions."""
    x = spread_points(actions, 2 * FEW, neighbours=True)
    product = torch.ones((), dtype=torch.float64, device=x.device)
    for j, kernel in enumerate(kernels):
        product = product * kernel(x[:, j], x[:, j])
    whole = covariance.cross(x, x)
    return bool((product - whole).abs().max() <= 1e-7 * whole.abs().max())


def _product(parts: list[AxisKernel]) -> AxisKernel:
    def kernel(a: Tensor, b: Tensor) -> Tensor:
        return functools.reduce(torch.mul, [part(a, b) for part in parts or [_ones]])

    return kernel


def _ones(a: Tensor, b: Tensor) -> Tensor:
    """Return the factor of an axis that the kernel does not depend on, all ones."""
    shape = *torch.broadcast_shapes(a.shape[:-1], b.shape[:-1]), a.shape[-1]
    return torch.ones(*shape, b.shape[-1], dtype=torch.float64, device=a.device)
