"""Kernels read as GPyTorch evaluates them.

``Kernel.__call__`` hands ``forward`` the coordinates in ``active_dims``. Sums and
products call their parts; a ``ScaleKernel`` copies its base's ``active_dims`` and calls
the base's ``forward``, so that coordinates are chosen once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpytorch import kernels as gpk
from linear_operator import to_dense
from torch import Tensor

from cbandit.errors import CBanditError


@dataclass(frozen=True)
class Node:
    """A kernel, or a part of one, and the coordinates that its ``forward`` gets.

    Args:
        kernel: the part.
        axes: the coordinates, as numbers among those of the whole kernel.
        parts: what a scaling, a sum or a product is made of; empty for other kernels.
    """

    kernel: gpk.Kernel
    axes: tuple[int, ...]
    parts: tuple[Node, ...] = ()

    @property
    def used(self) -> list[int]:
        """The coordinates that values depend on, in ascending order."""
        if type(self.kernel) is gpk.ConstantKernel:
            return []
        if not self.parts:
            return sorted(set(self.axes))
        return sorted({axis for part in self.parts for axis in part.used})

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
    parts: tuple[Node, ...] = ()
    if type(kernel) is gpk.ScaleKernel:
        parts = (read(kernel.base_kernel, axes, name, chosen=True),)
    elif type(kernel) in (gpk.AdditiveKernel, gpk.ProductKernel):
        parts = tuple(read(part, axes, name) for part in kernel.kernels)
    return Node(kernel, tuple(axes), parts)


def of_categories(kernel: gpk.Kernel) -> bool:
    """Return whether this is BoTorch's kernel for categories, without importing it."""
    kind = type(kernel)
    home = "botorch.models.kernels.categorical"
    return (kind.__module__, kind.__name__) == (home, "CategoricalKernel")
