"""BoTorch's constrained test functions on their boxes, signs converted once.

BoTorch minimises them unless told otherwise, and feasible means a slack at or above 0.
Here the reward is maximised and the costs are the slacks' negatives.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cbandit._core.arguments import stated
from cbandit.actions import Box
from cbandit.choice import Choice
from cbandit.problems.protocol import Evaluation, Round, normals
from cbandit.search.simplex.lp import solve_policy

if TYPE_CHECKING:
    from botorch.test_functions.base import ConstrainedBaseTestProblem

__all__ = ["Continuous", "box_of", "truth"]

ATOMS = 2**13  # points that a distribution over a box is sought on


class Continuous:
    """A test function on its box; :func:`~cbandit.problems.from_botorch` makes it.

    Args:
        function: one of BoTorch's constrained test functions.
        variances: of the noise on the reward and on each cost, ``(1 + m,)``.
        optimum: the reward of the best feasible point, NaN where it is not known.
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


def box_of(function: Any) -> Box:
    """The box on which a test function is defined."""
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
