"""BoTorch's constrained test functions as problems, continuous or on points."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from cbandit._core import checks
from cbandit.actions import Actions, Finite, ProductGrid
from cbandit.errors import CBanditError
from cbandit.problems.continuous import Continuous, box_of, truth
from cbandit.problems.table import Table

__all__ = ["from_botorch"]

LARGEST = 10**7  # points of a grid whose truth is kept as a table

# The least feasible value of each function, the best of many starts of SLSQP; for the
# pressure vessel, of all its rounded thicknesses. Some of BoTorch's own are wrong: the
# point is infeasible (Hartmann in 3-d), or its own formula goes below (pressure vessel
# 6059.946, welded beam 1.728, string 0.012681).
LEAST = {
    ("ConstrainedGramacy", 2): 0.5997880515,
    ("ConstrainedHartmann", 3): -3.8385211860,
    ("ConstrainedHartmann", 6): -3.3223680044,
    ("ConstrainedHartmannSmooth", 3): -3.8385211860,
    ("ConstrainedHartmannSmooth", 6): -3.3223680044,
    ("KeaneBumpFunction", 2): -0.3649797462,
    ("PressureVessel", 4): 5633.9502233,
    ("SpeedReducer", 7): 2996.3481692,
    ("TensionCompressionString", 3): 0.0126652328,
    ("WeldedBeamSO", 4): 1.5870775121,
}
SIZED = ("ConstrainedHartmann", "ConstrainedHartmannSmooth", "KeaneBumpFunction")


def from_botorch(
    test_function: Any,
    points: Any = None,
    *,
    noise: Any = None,
    cost_noise: Any = None,
    optimum: float | None = None,
) -> Continuous | Table:
    """Make a problem of one of BoTorch's constrained test functions.

    Args:
        test_function: an instance, of one objective. Its ``negate`` makes no
            difference: its goal is turned into a reward either way.
        points: ``None``: all of the function's box. A number of values, or one for each
            axis: a grid of evenly spaced values (whole numbers on discrete axes).
            ``(N, d)`` points, a :class:`~cbandit.Finite` or a
            :class:`~cbandit.ProductGrid`: these points. If none of them is feasible
            there is no regret, and a warning says so.
        noise: variance on the reward; that of the function's ``noise_std`` if left out.
        cost_noise: variance on the costs, a number or ``(m,)``; that of
            ``constraint_noise_std`` if left out.
        optimum: the best feasible reward on the box. Left out, the best known; on
            points it is always exact.

    Example:
        >>> import cbandit as cb
        >>> from botorch.test_functions.synthetic import ConstrainedGramacy
        >>> problem = cb.problems.from_botorch(ConstrainedGramacy(), points=50)
        >>> problem.actions
        ProductGrid(50 x 50, size=2500)
    """
    from botorch.test_functions.base import ConstrainedBaseTestProblem

    if not isinstance(test_function, ConstrainedBaseTestProblem):
        raise CBanditError(
            "test_function must be an instance of one of BoTorch's constrained test "
            f"functions; got {test_function!r}"
        )
    objectives = getattr(test_function, "num_objectives", 1)
    if objectives != 1:
        raise CBanditError(
            f"test_function must have one objective; {type(test_function).__name__} "
            f"has {objectives}"
        )
    m = int(test_function.num_constraints)
    variances = torch.cat(
        [
            _variance("noise", noise, test_function.noise_std, 1),
            _variance("cost_noise", cost_noise, test_function.constraint_noise_std, m),
        ]
    )
    if points is None:
        if test_function.discrete_inds or test_function.categorical_inds:
            raise CBanditError(
                f"{type(test_function).__name__} has coordinates that are not "
                "continuous: give points="
            )
        if optimum is None:
            best = _best_known(test_function)
        else:
            best = checks.number("optimum", optimum)
        return Continuous(test_function, variances, best)
    if optimum is not None:
        raise CBanditError("optimum is exact on points: leave it out")
    actions = _set(test_function, points)
    if actions.size > LARGEST:
        raise CBanditError(
            f"points must span at most {LARGEST} actions; got {actions.size}"
        )
    inside = box_of(test_function).inside
    step = 2**16
    blocks = [
        truth(test_function, inside(actions.block(i, min(i + step, actions.size))))
        for i in range(0, actions.size, step)
    ]
    values = torch.cat(blocks)
    return Table(
        values[:, 0],
        values[:, 1:].mT,
        noise=variances[0],
        cost_noise=variances[1:],
        actions=actions,
    )


def _variance(name: str, given: Any, std: Any, count: int) -> Tensor:
    if given is None:
        given = checks.tensor(name, 0.0 if std is None else std).square()
    value = checks.nonnegative(name, given)
    return checks.shaped(name, value, (count,), "(m,)" if count > 1 else "(1,)")


def _best_known(function: Any) -> float:
    """The best feasible reward on the function's box; NaN where no one knows."""
    kind = type(function)
    sign = -1.0 if function._is_minimization_by_default else 1.0
    stated, optimizers = function._optimal_value, function._optimizers
    best = LEAST.get((kind.__name__, function.dim))
    if best is not None and kind.__module__.startswith("botorch.test_functions"):
        usual = kind(dim=function.dim) if kind.__name__ in SIZED else kind()
        if torch.equal(usual.bounds.to(function.bounds), function.bounds):
            return sign * best
    if stated is None or optimizers is None:
        return math.nan
    at = torch.tensor(optimizers, dtype=torch.float64)
    low, high = function.bounds.double()
    at = at[((at >= low) & (at <= high)).all(-1)]
    feasible = (function.evaluate_slack_true(at) >= -1e-6).all(-1)
    return sign * stated if bool(feasible.any()) else math.nan


def _set(function: Any, points: Any) -> Actions:
    if isinstance(points, Actions) and points.finite:
        actions = points
        if actions.batch_shape:
            raise CBanditError("points must be the same for every trial")
    else:
        given = checks.tensor("points", points)
        if given.dim() == 2:
            actions = Finite(given)
        else:
            actions = ProductGrid(_axes(function, given))
    if actions.dim != function.dim:
        raise CBanditError(
            f"points must have d = {function.dim} coordinates, as "
            f"{type(function).__name__} has; got {actions.dim}"
        )
    return actions


def _axes(function: Any, counts: Tensor) -> list[Tensor]:
    whole = checks.shaped("points", counts, (function.dim,), "(d,)")
    counted = (whole == whole.round()) & (whole >= 2) & (whole <= LARGEST)
    if not bool(counted.all()):
        raise CBanditError(
            "points must be numbers of values an axis, whole, at least 2 and at "
            f"most {LARGEST}; got "
            f"{counts.tolist()}"
        )
    discrete = {*function.discrete_inds, *function.categorical_inds}
    axes = []
    for j, (low, high) in enumerate(function.bounds.double().T.tolist()):
        if j in discrete:
            axes.append(torch.arange(low, high + 1, dtype=torch.float64))
        else:
            axes.append(torch.linspace(low, high, int(whole[j]), dtype=torch.float64))
    return axes
