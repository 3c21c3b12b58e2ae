"""BoTorch's constrained test functions as problems, signs converted once.

BoTorch minimises them unless told otherwise, and feasible means a slack at or above 0.
Here the reward is maximised and the costs are the slacks' negatives.
"""

from __future__ import annotations

import math
import warnings
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cbandit._core import checks
from cbandit._core.arguments import stated
from cbandit.actions import Box, Finite, ProductGrid
from cbandit.choice import Choice
from cbandit.errors import CBanditError
from cbandit.problems.protocol import Evaluation, Round, normals
from cbandit.problems.table import Table

if TYPE_CHECKING:
    from botorch.test_functions.base import ConstrainedBaseTestProblem

__all__ = ["Continuous", "from_botorch"]

LARGEST = 10**7  # points of a grid whose truth is kept as a table
ATOMS = 2**13  # points that a distribution over a box is sought on

# Least feasible values, best of many starts of SLSQP; the pressure vessel's by going
# through its rounded thicknesses. BoTorch states others for some: an infeasible point's
# (Hartmann in 3-d), or one that its own formula goes below (pressure vessel 6059.946,
# welded beam 1.728, string 0.012681).
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


class Continuous:
    """A test function on its box; made by :func:`from_botorch`."""

    def __init__(
        self,
        function: ConstrainedBaseTestProblem,
        variances: Tensor,
        optimum: float,
    ) -> None:
        self.settings = stated(self, locals())
        self.trials, self.thresholds = None, 0.0
        self.function, self.m = function, int(function.num_constraints)
        self.actions = _box(function)
        self._std, self._optimum = variances.sqrt(), optimum

    def _truth(self, x: Tensor) -> Tensor:
        """``(*b, 1 + m)``: reward and costs at ``x`` ``(*b, d)``."""
        x = self.actions.inside(x.to(self.actions.lower))
        return truth(self.function, x)

    def reward(self, x: Tensor, t: int) -> Tensor:
        """Noiseless reward ``(*trials,)`` of ``x`` ``(*trials, d)``."""
        return self._truth(x)[..., 0]

    def costs(self, x: Tensor, t: int) -> Tensor:
        """Noiseless costs ``(*trials, m)`` of ``x`` ``(*trials, d)``."""
        return self._truth(x)[..., 1:]

    def observe(
        self, choice: Choice, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Noisy reward ``(*trials,)`` and costs ``(*trials, m)`` of the choice."""
        seen = self._truth(choice.x)
        draws = normals(generator, tuple(seen.shape[:-1]), 1 + self.m)
        seen = torch.addcmul(seen, draws, self._std)
        return seen[..., 0], seen[..., 1:]

    def optimum(self, t: int) -> Tensor:
        """The reward of the best feasible point; NaN where it is not known."""
        return torch.tensor(self._optimum, dtype=torch.float64)

    @cached_property
    def _stochastic_optimum(self) -> Tensor:
        from cbandit.search.simplex.lp import solve_policy

        box = self.actions
        engine = torch.quasirandom.SobolEngine(box.dim)
        unit = engine.draw(ATOMS, dtype=torch.float64)
        values = self._truth(torch.lerp(box.lower, box.upper, unit))
        if not math.isnan(self._optimum):
            best = torch.zeros(1, 1 + self.m, dtype=torch.float64)
            best[0, 0] = self._optimum
            values = torch.cat([values, best])
        answer = solve_policy(values[:, 0], values[:, 1:].mT, 0.0)
        return answer.value.masked_fill(answer.infeasible, torch.nan)

    def stochastic_optimum(self, t: int) -> Tensor:
        """The reward of the best distribution on 8192 Sobol points and the optimum.

        The best on the whole box is at least that.
        """
        return self._stochastic_optimum

    def round(self, t: int, generator: torch.Generator) -> Round:
        """Nothing is shown before a round."""
        return Round()

    def evaluate(self, t: Tensor, index: Tensor | None, x: Tensor) -> Evaluation:
        """The truth about the rounds ``t``, as the loop asks for it in blocks."""
        values = self._truth(x)
        return Evaluation(
            values[..., 0],
            values[..., 1:],
            self.optimum(1).unsqueeze(-1),
            self.stochastic_optimum(1).unsqueeze(-1),
        )

    def __repr__(self) -> str:
        return f"Continuous({type(self.function).__name__}, m={self.m})"


def _box(function: Any) -> Box:
    bounds: Tensor = function.bounds.double()
    return Box(bounds[0], bounds[1])


def truth(function: ConstrainedBaseTestProblem, x: Tensor) -> Tensor:
    """Reward and costs ``(*b, 1 + m)`` at ``x`` ``(*b, d)``, float64."""
    sign = -1.0 if function._is_minimization_by_default else 1.0
    shape, flat = x.shape[:-1], x.reshape(-1, x.shape[-1])
    # without noise, and before BoTorch's own negate= turns signs
    reward = sign * function.evaluate_true(flat)
    costs = -function.evaluate_slack_true(flat)
    values = torch.cat([reward.unsqueeze(-1), costs], -1).double()
    return values.reshape(*shape, -1)


def from_botorch(
    test_function: Any,
    points: Any = None,
    *,
    noise: Any = None,
    cost_noise: Any = None,
    optimum: float | None = None,
) -> Continuous | Table:
    """One of BoTorch's constrained test functions, continuous or on points.

    Args:
        test_function: an instance, of one objective. Its ``negate`` makes no
            difference: what it is about is maximised here.
        points: left out, the function's box. How many values an axis has, an int or one
            an axis, makes a grid of evenly spaced values (whole numbers on discrete
            axes); ``(N, d)`` points, a :class:`~cbandit.Finite` or a
            :class:`~cbandit.ProductGrid` are taken as they are. Where none of them is
            feasible there is no regret; a warning says so.
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
    inside = _box(test_function).inside
    step = 2**16
    blocks = [
        truth(test_function, inside(actions.block(i, min(i + step, actions.size))))
        for i in range(0, actions.size, step)
    ]
    values = torch.cat(blocks)
    over = values[:, 1:].clamp_min(0).amax(-1)
    if not bool((over == 0).any()):
        warnings.warn(
            f"points hold no feasible action of {type(test_function).__name__}: the "
            "regret of every run will be NaN; the least violating one has a cost of "
            f"{over.min():.3g}",
            stacklevel=2,
        )
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


def _set(function: Any, points: Any) -> Finite | ProductGrid:
    if isinstance(points, Finite | ProductGrid):
        actions: Finite | ProductGrid = points
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
