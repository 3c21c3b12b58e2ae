"""A distance to an expert's behaviour, as a cost that is seen before each choice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from cbandit._core import checks
from cbandit.errors import CBanditError

if TYPE_CHECKING:
    from gpytorch.kernels import Kernel


def expert_distance(actions: Any, moves: object, kernel: Kernel) -> Tensor:
    """Return how far each action is from what an expert does, ``(N,)``.

    This is the squared maximum mean discrepancy between always playing ``x`` and the
    expert's distribution, estimated from its draws ``moves`` ``y_1 .. y_n``:
    ``k(x, x) - (2/n) sum_i k(x, y_i) + (1/(n (n-1))) sum_{i != j} k(y_i, y_j)``.

    The estimate is unbiased, so it may be below 0. With fresh moves each round it is a
    full-information constraint for :class:`~cbandit.SCGPUCB` (Zhou and Ji's longer
    form, appendix A); its threshold is the distance that is allowed.

    Args:
        actions: a finite set or a grid, or points ``(N, d)``.
        moves: points ``(n, d)``, at least two.
        kernel: a GPyTorch kernel on points.

    Example:
        >>> import cbandit as cb, gpytorch, torch
        >>> line = cb.Finite(torch.linspace(0, 1, 3, dtype=torch.float64).unsqueeze(-1))
        >>> kernel = gpytorch.kernels.RBFKernel().double()
        >>> kernel.lengthscale = 1.0
        >>> cb.problems.expert_distance(line, [[0.0], [0.0]], kernel)
        tensor([0.0000, 0.2350, 0.7869], dtype=torch.float64)
    """
    points = actions.block(0, actions.size) if hasattr(actions, "block") else actions
    x = checks.tensor("actions", points).double()
    y = checks.tensor("moves", moves).double()
    if y.dim() != 2 or len(y) < 2 or x.dim() != 2 or y.shape[-1] != x.shape[-1]:
        raise CBanditError(
            f"moves must be (n, {x.shape[-1]}), at least two; got {tuple(y.shape)}"
        )
    n = len(y)
    variance = kernel(x, diag=True)
    near = kernel(x, y).to_dense().mean(-1)
    among = kernel(y).to_dense()
    apart = (among.sum() - among.diagonal().sum()) / (n * (n - 1))
    distance: Tensor = (variance - 2 * near + apart).detach()
    return distance
