"""Kernels read as GPyTorch evaluates them, as a tree and as a sum of products.

Priors, engines and fits tell kernels apart by :class:`Node` alone: what the library
knows of a GPyTorch class is written here.

``Kernel.__call__`` hands ``forward`` the coordinates in ``active_dims``. Sums and
products call their parts; a ``ScaleKernel`` copies its base's ``active_dims`` and calls
the base's ``forward``, so that coordinates are chosen once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from gpytorch import kernels as gpk
from linear_operator import to_dense
from torch import Tensor

from cbandit.errors import CBanditError

# Subclasses are missing, since their values may differ.
CLASSES: dict[type[gpk.Kernel], str] = {
    gpk.AdditiveKernel: "sum",
    gpk.ConstantKernel: "product",
    gpk.LinearKernel: "linear",
    gpk.ProductKernel: "product",
    gpk.RBFKernel: "rbf",
    gpk.ScaleKernel: "product",
}
MATERN = {0.5: "matern12", 1.5: "matern32", 2.5: "matern52"}


@dataclass(frozen=True)
class Node:
    """A kernel, or a part of one, and the coordinates that its ``forward`` gets.

    Args:
        kernel: the part.
        axes: the coordinates, as numbers among those of the whole kernel.
        kind: ``"sum"`` or ``"product"`` of the parts, one of
            :data:`cbandit_kernels.KINDS`, ``"categories"``, or ``"other"``. A scaling
            is a product of one part, and a constant kernel a product of none.
        amplitude: what a product is multiplied by, ``()`` or ``(*trials,)``; 1.0 if
            nothing scales it.
        parts: what a sum or a product is made of; empty for other kernels.
    """

    kernel: gpk.Kernel
    axes: tuple[int, ...]
    kind: str
    amplitude: Tensor | float = 1.0
    parts: tuple[Node, ...] = ()

    @property
    def used(self) -> list[int]:
        """The coordinates that values depend on, in ascending order."""
        if self.kind not in ("sum", "product"):
            return sorted(set(self.axes))
        return sorted({axis for part in self.parts for axis in part.used})

    @property
    def closed(self) -> bool:
        """Whether values have a closed form, in which :meth:`scales` enter."""
        once = len(set(self.axes)) == len(self.axes)
        return once and self.kind not in ("sum", "product", "other")

    @property
    def separable(self) -> bool:
        """Whether the kernel may be a product of kernels of one coordinate each."""
        kernel = self.kernel
        if isinstance(kernel, gpk.ProductStructureKernel):
            return bool(kernel.base_kernel.is_stationary)
        smooth = isinstance(kernel, gpk.RBFKernel | gpk.PeriodicKernel)
        return smooth or self.kind == "categories"

    def scales(self, dim: int) -> Tensor:
        """Return the closed form's scales of ``dim`` coordinates, ``(*trials, dim)``.

        Coordinates are multiplied by them. Those of categories are what the logarithm
        of the kernel falls by in each coordinate in which two points differ.
        """
        if self.kind == "linear":
            values = self.kernel.variance.detach().sqrt()
        elif self.kind == "categories":
            values = 1.0 / (len(self.axes) * self.kernel.lengthscale.detach())
        else:
            values = 1.0 / self.kernel.lengthscale.detach()
        values = values.squeeze(-2)
        out: Tensor = values.new_zeros(*values.shape[:-1], dim)
        out[..., list(self.axes)] = values
        return out

    def values(self, x: Tensor, y: Tensor) -> Tensor:
        """Return ``k(x, y) (*b, n, u)``; ``x (*b, n, a)`` has the columns ``axes``."""
        dense: Tensor = to_dense(self.kernel.forward(x, y))
        return dense


def read(
    kernel: gpk.Kernel, axes: Sequence[int], name: str = "kernel", chosen: bool = False
) -> Node:
    """Return the tree of a kernel over the coordinates ``axes``.

    Args:
        kernel: any kernel; subclasses of sums, products and scalings are leaves.
        axes: the coordinates that the kernel is called with.
        name: what errors call the belief.
        chosen: whether ``active_dims`` have been applied already.
    """
    if kernel.active_dims is not None and not chosen:
        active = kernel.active_dims.tolist()
        if not all(0 <= j < len(axes) for j in active):
            raise CBanditError(
                f"{name}: its kernel looks at the coordinates active_dims = {active}; "
                f"the actions have d = {len(axes)}"
            )
        axes = [axes[j] for j in active]
    wanted = kernel.ard_num_dims
    if wanted is not None and wanted != len(axes):
        raise CBanditError(
            f"{name}: its {type(kernel).__name__} has ard_num_dims = {wanted}; the "
            f"actions give it d = {len(axes)} coordinates"
        )
    amplitude: Tensor | float = 1.0
    parts: tuple[Node, ...] = ()
    if type(kernel) is gpk.ScaleKernel:
        amplitude = kernel.outputscale.detach()
        parts = (read(kernel.base_kernel, axes, name, chosen=True),)
    elif type(kernel) is gpk.ConstantKernel:
        amplitude = kernel.constant.detach().squeeze(-1)
    elif type(kernel) in (gpk.AdditiveKernel, gpk.ProductKernel):
        parts = tuple(read(part, axes, name) for part in kernel.kernels)
    return Node(kernel, tuple(axes), _kind_of(kernel), amplitude, parts)


def _kind_of(kernel: gpk.Kernel) -> str:
    kind = type(kernel)
    if kind is gpk.MaternKernel:
        return MATERN[kernel.nu]
    # BoTorch's, which is not imported for this
    home = "botorch.models.kernels.categorical"
    if (kind.__module__, kind.__name__) == (home, "CategoricalKernel"):
        return "categories"
    return CLASSES.get(kind, "other")


@dataclass(frozen=True)
class Product:
    """A product of kernels.

    Args:
        amplitude: ``()`` or ``(*trials,)``; 1.0 if nothing scales the product.
        factors: the kernels, none of which is a product.
    """

    amplitude: Tensor | float
    factors: tuple[Node, ...]


def products(node: Node, expand: bool = True) -> list[Product]:
    """Return products whose sum is a kernel.

    Args:
        node: the kernel.
        expand: whether to multiply sums out; if not, they are factors, and there is one
            product.
    """
    if node.kind == "sum" and expand:
        return [product for part in node.parts for product in products(part)]
    if node.kind != "product":
        return [Product(1.0, (node,))]
    choices = itertools.product(*(products(part, expand) for part in node.parts))
    return [
        Product(
            math.prod((part.amplitude for part in chosen), start=node.amplitude),
            tuple(leaf for part in chosen for leaf in part.factors),
        )
        for chosen in choices
    ]
