"""Beliefs of a study file: the default one, a kernel by name, or another kind."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from gpytorch import kernels as gpk

from cbandit import GP, Actions
from cbandit._core import checks
from cbandit.beliefs.gp import checked_refits
from cbandit.errors import CBanditError
from cbandit.experiments.named import Home

KERNELS: dict[str, Callable[..., gpk.Kernel]] = {
    "rbf": gpk.RBFKernel,
    "matern-1/2": partial(gpk.MaternKernel, nu=0.5),
    "matern-3/2": partial(gpk.MaternKernel, nu=1.5),
    "matern-5/2": partial(gpk.MaternKernel, nu=2.5),
}


def belief(
    where: str,
    table: Mapping[str, Any],
    actions: Actions,
    home: Home,
    outcome: str | None = None,
) -> Any:
    """Return the belief that a table of a study file describes.

    With a ``type`` it is the object named. Otherwise it is :meth:`~cbandit.GP.default`,
    in which these keys replace what is learned: ``kernel`` (``"rbf"``,
    ``"matern-5/2"``, or your own ``"module:function"``, called with the actions),
    ``lengthscale`` (in the unit cube, a number or one for each coordinate), ``noise``
    (variance). Kernels of categories do not change.

    Args:
        where: the file and the table, for errors.
        table: the file's table.
        actions: the set of actions that the belief covers.
        home: which modules may be imported.
        outcome: ``"binary"`` for yes and no, without ``noise`` and ``standardize``;
            ``None``: numbers.
    """
    if "type" in table:
        return home.build(where, table)
    return home.call(where, "a belief", partial(_gp, actions, home, outcome), table)


def _gp(
    actions: Actions,
    home: Home,
    outcome: str | None,
    kernel: str | None = None,
    lengthscale: object = None,
    noise: object = None,
    standardize: object = None,
    refit_every: object = None,
) -> GP:
    out = GP.default(actions, outcome)
    if (kernel is not None or lengthscale is not None) and out.kernel is None:
        raise CBanditError(
            "kernel and lengthscale must be left out where the prior covariance of the "
            "arms is known"
        )
    if isinstance(kernel, str) and ":" in kernel:
        theirs = home.find(kernel)(actions)
        if not isinstance(theirs, gpk.Kernel):
            raise CBanditError(f"kernel: {kernel} must return a gpytorch kernel")
        scaled = outcome is None
        out = GP(theirs, None, "learned", scaled, "auto", outcome=outcome)
    elif kernel is not None:
        if kernel not in KERNELS:
            known = ", ".join(KERNELS)
            raise CBanditError(
                f"kernel must be one of {known}, or module:function; got {kernel!r}"
            )
        out.kernel = _swapped(out.kernel, KERNELS[kernel]).double()
    if lengthscale is not None:
        _stretch(out.kernel, lengthscale, actions.dim)
    if noise is not None and outcome is None:
        out.noise = checks.nonnegative("noise", noise)
        out.learn_noise = False
    if standardize is not None and outcome is None:
        out.standardize = checks.flag("standardize", standardize)
    if refit_every is not None:
        out.refit_every = checked_refits(refit_every)
    elif lengthscale is not None and noise is not None:
        out.refit_every = None  # a learned mean alone is not worth refits
        out.learn_mean = False
    return out


def _swapped(kernel: gpk.Kernel, make: Callable[..., gpk.Kernel]) -> gpk.Kernel:
    """Return a default kernel with its numeric coordinates' kernel replaced."""
    if isinstance(kernel, gpk.ProductKernel):
        return gpk.ProductKernel(*(_swapped(part, make) for part in kernel.kernels))
    if not isinstance(kernel, gpk.RBFKernel | gpk.MaternKernel):
        return copy.deepcopy(kernel)
    active = kernel.active_dims
    new: gpk.Kernel = make(
        ard_num_dims=kernel.ard_num_dims,
        active_dims=None if active is None else tuple(active.tolist()),
        lengthscale_prior=copy.deepcopy(kernel.lengthscale_prior),
    ).double()
    new.lengthscale = kernel.lengthscale.detach()
    return new


def _stretch(kernel: gpk.Kernel, lengthscale: object, dim: int) -> None:
    """Set the lengthscales of a kernel's parts."""
    lengths = checks.positive("lengthscale", lengthscale)
    if lengths.numel() not in (1, dim) or lengths.dim() > 1:
        raise CBanditError(
            f"lengthscale must be a number, or one for each of {dim} coordinates; got "
            f"{lengthscale!r}"
        )
    for part in kernel.modules():
        if isinstance(part, gpk.RBFKernel | gpk.MaternKernel):
            shown = slice(None) if part.active_dims is None else part.active_dims
            values = lengths.expand(dim)[shown]
            if part.ard_num_dims is None and bool((values != values[0]).any()):
                raise CBanditError("lengthscale must be one number for this kernel")
            part.lengthscale = values if part.ard_num_dims is not None else values[0]
