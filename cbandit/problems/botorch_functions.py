"""BoTorch's constrained test functions as problems, on their boxes or on points.

BoTorch minimises them by default, and calls a slack at or above 0 feasible. Here the
reward is maximised, and the costs are the negated slacks.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cbandit._core import checks
from cbandit._core.arguments import stated
from cbandit.actions import Actions, Box, Finite, ProductGrid
from cbandit.errors import CBanditError
from cbandit.problems.optima import whole_set
from cbandit.problems.protocol import Fixed
from cbandit.problems.table import Table
from cbandit.search.simplex.lp import solve_policy
from cbandit.search.simplex.programme import PolicySolution

if TYPE_CHECKING:
    from botorch.test_functions.base import ConstrainedBaseTestProblem

ATOMS = 2**13  # points of a box among which the best distribution is sought
LARGEST = 10**7  # most points of a set, since the truth is kept as a table

# The least feasible value of each function, the best of many starts of SLSQP; for the
# pressure vessel, of all its rounded thicknesses. Some of BoTorch's values are wrong:
# the point is infeasible (Hartmann in 3-d), or its formula has lower values (pressure
# vessel 6059.946, welded beam 1.728, string 0.012681).
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


class Continuous(Fixed):
    """A test function on its whole box, as made by :func:`from_botorch`.

    Args:
        function: one of BoTorch's constrained test functions.
        variances: the noise's variances on the reward and on each cost, ``(1 + m,)``.
        optimum: the reward of the best feasible point; NaN: it is not known.
    """

    def __init__(
        self,
        function: ConstrainedBaseTestProblem,
        variances: Tensor,
        optimum: float,
    ) -> None:
        self.settings = stated(self, locals())
        self.trials, self.thresholds = None, 0.0
        self.function, self.m = function, int(function.num_constraints)
        self.actions = box_of(function)
        self._std, self._best = variances.sqrt(), optimum

    def _values(self, x: Tensor, index: Tensor | None = None) -> Tensor:
        x = self.actions.inside(x.to(self.actions.lower))
        return truth(self.function, x)

    @cached_property
    def _optimum(self) -> Tensor:
        return torch.tensor(self._best, dtype=torch.float64)

    @cached_property
    def _solution(self) -> PolicySolution:
        box = self.actions
        engine = torch.quasirandom.SobolEngine(box.dim)
        unit = engine.draw(ATOMS, dtype=torch.float64)
        values = self._values(torch.lerp(box.lower, box.upper, unit))
        if not math.isnan(self._best):
            best = torch.zeros(1, 1 + self.m, dtype=torch.float64)
            best[0, 0] = self._best
            values = torch.cat([values, best])
        return solve_policy(values[:, 0], values[:, 1:].mT, 0.0)

    @whole_set
    def stochastic_optimum(self, t: int) -> Tensor:
        """The reward of the best distribution on 8192 Sobol points and the optimum.

        The best on the whole box is at least as good.
        """
        return self._stochastic_optimum

    def __repr__(self) -> str:
        return f"Continuous({type(self.function).__name__}, m={self.m})"


def box_of(function: Any) -> Box:
    """Return the box on which a test function is defined."""
    bounds: Tensor = function.bounds.double()
    return Box(bounds[0], bounds[1])


def truth(function: ConstrainedBaseTestProblem, x: Tensor) -> Tensor:
    """Return reward and costs ``(*b, 1 + m)`` at ``x`` ``(*b, d)``, float64."""
    shape, flat = x.shape[:-1], x.reshape(-1, x.shape[-1])
    # without noise, and before BoTorch's own negate= turns signs
    reward = _sign(function) * function.evaluate_true(flat)
    costs = -function.evaluate_slack_true(flat)
    values = torch.cat([reward.unsqueeze(-1), costs], -1).double()
    return values.reshape(*shape, -1)


def from_botorch(
    test_function: ConstrainedBaseTestProblem,
    points: object = None,
    *,
    noise: object = None,
    cost_noise: object = None,
    optimum: float | None = None,
) -> Continuous | Table:
    """Return a problem made of one of BoTorch's constrained test functions.

    Args:
        test_function: an instance with one objective. Its ``negate`` makes no
            difference: its goal becomes a reward either way.
        points: ``None``: the function's whole box. A number of values per axis, or one
            for each axis: a grid of evenly spaced values (whole numbers on discrete
            axes). ``(N, d)`` points, a :class:`~cbandit.Finite` or a
            :class:`~cbandit.ProductGrid`: these points. If none of them is feasible
            there is no regret, and a warning says so.
        noise: variance on the reward; by default from the function's ``noise_std``.
        cost_noise: variance on the costs, a number or ``(m,)``; by default from
            ``constraint_noise_std``.
        optimum: the best feasible reward on the box; ``None``: the best known. On
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


def _variance(name: str, variance: object, std: object, count: int) -> Tensor:
    if variance is None:
        variance = checks.tensor(name, 0.0 if std is None else std).square()
    variance = checks.nonnegative(name, variance)
    return checks.shaped(name, variance, (count,), "(m,)" if count > 1 else "(1,)")


def _sign(function: Any) -> float:
    """Return -1 if the function without ``negate=`` is one to minimise, else 1."""
    return -1.0 if function.is_minimization_problem != function.negate else 1.0


def _best_known(function: Any) -> float:
    """Return the best feasible reward on the function's box; NaN if it is unknown."""
    kind, sign = type(function), _sign(function)
    best = LEAST.get((kind.__name__, function.dim))
    if best is not None and kind.__module__.startswith("botorch.test_functions"):
        usual = kind(dim=function.dim) if kind.__name__ in SIZED else kind()
        if torch.equal(usual.bounds.to(function.bounds), function.bounds):
            return sign * best
    try:
        value, at = function.optimal_value, function.optimizers.double()
    except (AttributeError, NotImplementedError):
        return math.nan
    stated = -value if function.negate else value
    low, high = function.bounds.double()
    at = at[((at >= low) & (at <= high)).all(-1)]
    feasible = (function.evaluate_slack_true(at) >= -1e-6).all(-1)
    return sign * stated if bool(feasible.any()) else math.nan


def _set(function: ConstrainedBaseTestProblem, points: object) -> Actions:
    if isinstance(points, Actions) and points.finite:
        actions = points
        if actions.batch_shape:
            raise CBanditError("points must be the same for every trial")
    else:
        values = checks.tensor("points", points)
        several = values.dim() == 2
        actions = Finite(values) if several else ProductGrid(_axes(function, values))
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
            f"most {LARGEST}; got {counts.tolist()}"
        )
    discrete = {*function.discrete_inds, *function.categorical_inds}
    axes = []
    for j, (low, high) in enumerate(function.bounds.double().T.tolist()):
        if j in discrete:
            axes.append(torch.arange(low, high + 1, dtype=torch.float64))
        else:
            axes.append(torch.linspace(low, high, int(whole[j]), dtype=torch.float64))
    return axes
