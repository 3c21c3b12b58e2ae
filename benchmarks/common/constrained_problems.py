"""Problems on boxes for ``constrained_functions.py``, the optimum of each known.

* BoTorch's constrained test functions, as they are (``cb.problems.from_botorch``, which
  says how their optima were found).
* ``ackley 10``: Ackley's function on ``[-5, 10]^10`` with the limits that SCBO's
  authors gave it, ``sum(x) <= 0`` and ``|x| <= 5``. The optimum is 0, at 0.
* ``bowl d`` and ``ripples d``: functions of this library's own on the unit cube, drawn
  once for all. Their optimum is known exactly because it is put there:

  - ``z = R (x - x*)`` with a random rotation ``R``; the loss is convex,
    ``sum_i w_i |z_i|^p - sum_j l_j a_j . (x - x*)``, where ``a_j`` is the gradient at
    ``x*`` of limit ``j``, which is convex too and 0 there. With ``l_j > 0`` the KKT
    conditions hold at ``x*``, so that it is the least feasible point, on all limits.
  - the ripples add ``A sum_i (1 - cos(k z_i))`` to the loss, and such a term to the
    curved limit. They are at least 0, and 0 at ``x*``: it stays feasible and the least.

  Each has one or two linear limits and a curved one, a ball about a point beyond the
  middle of the cube. Limits leave the middle of the cube feasible in the bowls.

Rewards are maximised, and costs are feasible at or below 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from botorch.test_functions import synthetic
from torch import Tensor

import cbandit as cb

__all__ = ["CHOOSING", "PROBLEMS", "Problem"]

PLACES = 2**14  # Sobol points on which ranges and spreads are measured


@dataclass(frozen=True)
class Problem:
    """One problem: its box, its functions and what to measure them by.

    Args:
        name: of the problem.
        box: where it is defined.
        values: reward and costs ``(n, 1 + m)`` at points ``(n, d)``.
        optimum: the greatest feasible reward.
        span: greatest less least reward over the box.
        spread: deviations of the costs over the box, ``(m,)``.
        feasible: the share of the box that keeps all limits.
    """

    name: str
    box: cb.Box
    values: Callable[[Tensor], Tensor] = field(repr=False)
    optimum: float
    span: float
    spread: Tensor
    feasible: float

    @property
    def m(self) -> int:
        """The number of costs."""
        return len(self.spread)

    def start(self, seed: int) -> Tensor:
        """Return the ``2 d + 2`` uniform points that every policy is told at first."""
        generator = torch.Generator().manual_seed(seed)
        shape = (2 * self.box.dim + 2, self.box.dim)
        unit = torch.rand(shape, generator=generator, dtype=torch.float64)
        return torch.lerp(self.box.lower, self.box.upper, unit)


def measured(
    name: str, box: cb.Box, values: Callable[[Tensor], Tensor], optimum: float
) -> Problem:
    """Return a problem with its scales, from Sobol points over the box."""
    unit = torch.quasirandom.SobolEngine(box.dim).draw(PLACES, dtype=torch.float64)
    y = values(torch.lerp(box.lower, box.upper, unit))
    reward, costs = y[:, 0], y[:, 1:]
    return Problem(
        name=name,
        box=box,
        values=values,
        optimum=optimum,
        span=float(reward.amax() - reward.amin()),
        spread=costs.std(0),
        feasible=float((costs <= 0).all(-1).double().mean()),
    )


def of_botorch(name: str, make: Callable[[], Any]) -> Problem:
    """Return one of BoTorch's functions on its whole box."""
    problem = cb.problems.from_botorch(make())
    assert isinstance(problem.actions, cb.Box)

    def values(x: Tensor) -> Tensor:
        return torch.cat([problem.reward(x, 1).unsqueeze(-1), problem.costs(x, 1)], -1)

    return measured(name, problem.actions, values, float(problem.optimum(1)))


def ackley(name: str, dim: int) -> Problem:
    """Return Ackley's function, the sum and the norm of ``x`` limited."""
    function = synthetic.Ackley(dim=dim)

    def values(x: Tensor) -> Tensor:
        limits = [x.sum(-1), x.norm(dim=-1) - 5]
        return torch.stack([-function.evaluate_true(x), *limits], -1)

    lower = torch.full((dim,), -5.0, dtype=torch.float64)
    return measured(name, cb.Box(lower, lower + 15), values, 0.0)


def planted(
    name: str,
    dim: int,
    linear: int,
    seed: int,
    condition: float = 1.0,
    power: float = 2.0,
    height: float = 0.0,
    waves: float = 0.0,
) -> Problem:
    """Return a rotated function on the unit cube whose optimum was put there.

    Args:
        name: of the problem.
        dim: the number of coordinates.
        linear: the number of linear limits; one more is curved.
        seed: of the rotation, the optimum's place and the limits.
        condition: the largest of the weights ``w`` over the smallest.
        power: the exponent ``p``.
        height: of the ripples in the loss, and three tenths of it in the curved limit.
        waves: of the ripples, the number in a unit of length.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    rotation = torch.linalg.qr(normal(dim, dim)).Q
    middle = torch.full((dim,), 0.5, dtype=torch.float64)
    away = normal(dim)
    place = middle + 0.25 * away / away.abs().amax()
    weight = condition ** torch.linspace(0, 1, dim, dtype=torch.float64)
    # the middle of the cube is on the feasible side of each plane
    planes = normal(linear, dim)
    planes = planes * (planes @ (place - middle)).sign().unsqueeze(-1)
    planes = planes / planes.norm(dim=-1, keepdim=True)
    outward = (place - middle) / (place - middle).norm()
    radius = 1.2 * math.sqrt(dim / 12)  # a uniform point is sqrt(d / 12) off the middle
    center = place - radius * outward
    pull = weight.mean() * (planes.sum(0) + 2 * radius * outward)

    def bumps(z: Tensor) -> Tensor:
        return height * (1 - torch.cos(2 * math.pi * waves * z))

    def values(x: Tensor) -> Tensor:
        step = x - place
        z = step @ rotation.T
        loss = (weight * z.abs() ** power + bumps(z)).sum(-1) - step @ pull
        ball = (x - center).square().sum(-1) - radius**2 + 0.3 * bumps(z[..., 0])
        return torch.cat([-loss.unsqueeze(-1), step @ planes.T, ball.unsqueeze(-1)], -1)

    ends = torch.zeros(dim, dtype=torch.float64)
    return measured(name, cb.Box(ends, ends + 1), values, 0.0)


PROBLEMS: dict[str, Callable[[str], Problem]] = {
    "Gramacy": lambda name: of_botorch(name, synthetic.ConstrainedGramacy),
    "Hartmann": lambda name: of_botorch(name, synthetic.ConstrainedHartmann),
    "PressureVessel": lambda name: of_botorch(name, synthetic.PressureVessel),
    "WeldedBeam": lambda name: of_botorch(name, synthetic.WeldedBeamSO),
    "TensionCompression": lambda name: of_botorch(
        name, synthetic.TensionCompressionString
    ),
    "SpeedReducer": lambda name: of_botorch(name, synthetic.SpeedReducer),
    "Keane": lambda name: of_botorch(name, partial(synthetic.KeaneBumpFunction, dim=2)),
    "HartmannSmooth": lambda name: of_botorch(
        name, synthetic.ConstrainedHartmannSmooth
    ),
    "ackley 10": partial(ackley, dim=10),
    "bowl 2": partial(planted, dim=2, linear=1, seed=1, condition=10),
    "bowl 3": partial(planted, dim=3, linear=1, seed=2, condition=5, power=4),
    "bowl 4": partial(planted, dim=4, linear=2, seed=3, condition=100),
    "bowl 6": partial(planted, dim=6, linear=2, seed=4, condition=30),
    "bowl 10": partial(planted, dim=10, linear=1, seed=5, condition=10),
    "ripples 2": partial(
        planted, dim=2, linear=1, seed=6, condition=3, height=0.3, waves=2
    ),
    "ripples 3": partial(
        planted, dim=3, linear=1, seed=7, condition=3, height=0.5, waves=2
    ),
    "ripples 5": partial(
        planted, dim=5, linear=2, seed=8, condition=3, height=0.6, waves=1.5
    ),
    "ripples 7": partial(
        planted, dim=7, linear=1, seed=9, condition=2, height=0.6, waves=1.2
    ),
    "ripples 8": partial(
        planted, dim=8, linear=2, seed=10, condition=2, height=0.8, waves=1.2
    ),
}

CHOOSING = ("bowl 2", "bowl 4", "bowl 10", "ripples 3", "ripples 7")
"""Settings were chosen on these; the others report."""
