"""The experiments of the CKB papers: random functions, light sensors, stock prices.

Zhou and Ji, *On Kernelized Multi-Armed Bandits with Constraints*, 2022; and *Provably
Efficient Bayesian Optimization with Unknown Constraints*. Choices that the papers leave
open are marked "ours".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cbandit._core import checks
from cbandit._core.randomness import Streams, Trials, trial_range
from cbandit.actions import Finite
from cbandit.errors import CBanditError
from cbandit.problems import data
from cbandit.problems.table import Normal, Resampled, Table

SHARE_OF_BOUND = {"half": 0.5, "quarter": 0.25}
MAX_DRAWS = 10_000


@dataclass(frozen=True)
class Known:
    """The facts that an experiment tells its policies; numbers are ``(*trials,)``.

    Args:
        kernel: the reward's and the cost's kernel, double; ``None`` where the arms are
            known by a covariance alone.
        noise, cost_noise: variances of the noise.
        subgaussian, cost_subgaussian: ``R`` of the noise.
        bound, cost_bound: ``B = max f`` (or what a problem says) and ``G = max|g|``.
        slater: ``min(1, -min g)``.
        norm, cost_norm: RKHS norms where they are known, NaN where they are not. (Ours:
            the experiments use the bounds instead.)
        safe: a uniformly random feasible action, ``(*trials,)``, or ``k`` of them,
            ``(*trials, k)`` (ours).
        lipschitz, cost_lipschitz: constants of the true functions, in the distance of
            coordinates, or in the kernel's distance if there are no coordinates.
    """

    kernel: Any
    noise: Tensor
    cost_noise: Tensor
    subgaussian: Tensor
    cost_subgaussian: Tensor
    bound: Tensor
    cost_bound: Tensor
    slater: Tensor
    norm: Tensor
    cost_norm: Tensor
    safe: Tensor
    lipschitz: Tensor
    cost_lipschitz: Tensor


def rbf(lengthscale: float) -> Any:
    """Return a squared-exponential kernel in float64."""
    from gpytorch.kernels import RBFKernel

    kernel = RBFKernel().double()
    # a Python number would be rounded to float32 on its way
    kernel.lengthscale = torch.tensor(lengthscale, dtype=torch.float64)
    return kernel.requires_grad_(False)


def _lipschitz(h: Tensor, distance: Tensor) -> Tensor:
    """Return the largest slope of ``h`` ``(*trials, N)`` over all pairs of actions."""
    rise = (h.unsqueeze(-1) - h.unsqueeze(-2)).abs()
    apart = distance > 0
    return (rise / distance.masked_fill(~apart, 1.0) * apart).flatten(-2).amax(-1)


def _facts(
    f: Tensor, g: Tensor, noise: Tensor, radius: Tensor, bound: str, distance: Tensor
) -> dict[str, Tensor]:
    """Return the facts of :class:`Known` about functions ``(*trials, N)``."""
    return {
        "noise": noise,
        "cost_noise": noise,
        "subgaussian": radius,
        "cost_subgaussian": radius,
        "bound": _bound(f, bound),
        "cost_bound": g.abs().amax(-1),
        "slater": (-g.amin(-1)).clamp_max(1.0),
        "lipschitz": _lipschitz(f, distance),
        "cost_lipschitz": _lipschitz(g, distance),
    }


def _safe(
    g: Tensor, seed: int, trials: range | None, purpose: str, seeds: int
) -> Tensor:
    """Draw ``(*trials, seeds)`` feasible actions uniformly; ``(*trials,)`` if one."""
    draws = Streams(seed, trials, purpose).uniform(checks.whole("seeds", seeds))
    feasible = (g <= 0).expand(*draws.shape[:-1], g.shape[-1])
    count = feasible.sum(-1, keepdim=True)
    nth = torch.minimum((draws * count).long(), count - 1)
    ranks = feasible.cumsum(-1).unsqueeze(-2)
    index = (ranks <= nth.unsqueeze(-1)).sum(-1)
    return index[..., 0] if seeds == 1 else index


def _draw(stream: Streams, gram: Tensor) -> tuple[Tensor, Tensor]:
    """Draw one function ``sum a_i k(., x_i)``, ``(N,)``; return it and its norm."""
    size = gram.shape[-1]
    weight = torch.zeros(size, dtype=torch.float64)
    # the stream of one trial has a trials axis of length 1
    support = (stream.uniform(100)[0] * size).long()
    weight.index_add_(0, support, 2 * stream.uniform(100)[0] - 1)
    f = gram @ weight
    return f, (weight @ f).clamp_min(0).sqrt()


def zhou_synthetic(
    cost: str = "half",
    trials: Trials = None,
    seed: int = 0,
    noise: float = 0.01,
    bound: str = "max",
    seeds: int = 1,
) -> Table:
    """Random functions on a line of 100 points, ``zhou-synthetic`` of the experiments.

    ``f`` is a sum of 100 squared-exponential bumps (lengthscale 0.2) at points drawn
    from the grid with weights uniform on [-1, 1]. Draws without a strictly feasible
    action are redrawn. Each trial draws its own functions, from its own stream.

    Ours: Gaussian noise whose standard deviation is 1 % of the range of ``f``, on both
    functions.

    Args:
        cost: ``"half"`` or ``"quarter"``: ``g = -f + B/2`` or ``-f + B/4``;
            ``"independent"``: another draw of the same kind.
        trials: how many, or a ``range`` of their numbers; ``None``: no trials axis.
        seed: the seed of the functions.
        noise: the noise's standard deviation, as a share of the range of ``f``.
        bound: ``B`` in the cost, and as policies are told: ``"max"`` for ``max f``, or
            ``"max-abs"`` for ``max|f|``, with which some draws have hardly any feasible
            action.
        seeds: how many known safe actions are drawn.

    Example:
        >>> import cbandit as cb
        >>> cb.problems.zhou_synthetic(cost="quarter", trials=50, seed=0)
        Table(N=100, m=1, trials=range(0, 50))
    """
    checks.one_of("cost", cost, *SHARE_OF_BOUND, "independent")
    checks.one_of("bound", bound, "max", "max-abs")
    share = checks.number("noise", noise, minimum=0.0)
    numbers = trial_range(trials)
    grid = torch.linspace(0, 1, 100, dtype=torch.float64).unsqueeze(-1)
    kernel = rbf(0.2)
    gram = kernel(grid).to_dense().detach()
    drawn = [
        _feasible_draw(
            cost, bound, gram, Streams(seed, range(i, i + 1), "zhou-synthetic")
        )
        for i in (numbers or range(1))
    ]
    f, g, norm, cost_norm = (torch.stack(rows) for rows in zip(*drawn, strict=True))
    if numbers is None:
        f, g, norm, cost_norm = f[0], g[0], norm[0], cost_norm[0]
    r = share * (f.amax(-1) - f.amin(-1))
    variance = r.square()
    known = Known(
        kernel=kernel,
        norm=norm,
        cost_norm=cost_norm,
        safe=_safe(g, seed, numbers, "zhou-synthetic/safe", seeds),
        **_facts(f, g, variance, r, bound, torch.cdist(grid, grid)),
    )
    g = g.unsqueeze(-2)
    return Table(f, g, variance, None, Finite(grid), numbers, known=known)


def _each(train: Tensor) -> Tensor:
    """Return samples ``(S, N)``, each column centred, divided by its own deviation."""
    return (train - train.mean(0)) / train.std(0, correction=0)


def _common(train: Tensor) -> Tensor:
    """Return samples ``(S, N)``, centred, divided by the largest column's deviation."""
    return (train - train.mean(0)) / train.std(0, correction=0).max()


def _largest(train: Tensor) -> Tensor:
    """Return samples ``(S, N)``, divided by the largest of all."""
    return train / train.abs().max()


NORMALISED = {"each": _each, "common": _common, "largest": _largest}


def _bound(f: Tensor, bound: str) -> Tensor:
    """Return the bound ``B`` of functions ``(*trials, N)``."""
    return (f if bound == "max" else f.abs()).amax(-1)


def _feasible_draw(
    cost: str, bound: str, gram: Tensor, stream: Streams
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Draw one trial's ``f``, ``g`` ``(N,)`` and norms, until an action is feasible."""
    for _ in range(MAX_DRAWS):
        f, norm = _draw(stream, gram)
        if cost == "independent":
            g, cost_norm = _draw(stream, gram)
        else:
            g = SHARE_OF_BOUND[cost] * _bound(f, bound) - f
            cost_norm = torch.full_like(norm, torch.nan)
        if bool((g.min() < 0) & (f.max() > 0)):
            return f, g, norm, cost_norm
    raise CBanditError(f"no feasible problem in {MAX_DRAWS} draws; cost = {cost!r}")


def _from_samples(
    train: Tensor,
    rewards: Tensor,
    height: float,
    subgaussian: Tensor | None,
    trials: Trials,
    seed: int,
    purpose: str,
    seeds: int,
    normalise: str,
    gaussian: bool = False,
) -> Table:
    """Return a table of arms with sampled rewards ``(S, N)``; ``g = -f + height``.

    The arms' prior covariance is that of the normalised training columns.
    """
    checks.one_of("normalise", normalise, *NORMALISED)
    numbers = trial_range(trials)
    batch = () if numbers is None else (len(numbers),)
    z = NORMALISED[normalise](train)
    covariance = z.mT @ z / z.shape[0]
    f = rewards.mean(0)
    g = height - f
    deviation = rewards - f
    noise = deviation.square().mean()
    radius = noise.sqrt() if subgaussian is None else subgaussian
    variance = covariance.diagonal()
    distance = (variance.unsqueeze(-1) + variance - 2 * covariance).clamp_min(0).sqrt()
    facts = _facts(f, g, noise, radius, "max-abs", distance)
    unknown = torch.full(batch, torch.nan, dtype=torch.float64)
    known = Known(
        kernel=None,
        norm=unknown,
        cost_norm=unknown,
        safe=_safe(g, seed, numbers, f"{purpose}/safe", seeds),
        **{name: value.expand(batch).clone() for name, value in facts.items()},
    )
    if gaussian:
        spread = deviation.square().mean(0).sqrt()
        law: Normal | Resampled = Normal(spread, spread.unsqueeze(-2))
    else:
        law = Resampled(deviation, -deviation.unsqueeze(-2))
    actions, g = Finite(covariance=covariance), g.unsqueeze(-2)
    return Table(f, g, law, None, actions, numbers, known=known)


def zhou_light(
    trials: Trials = None,
    seed: int = 0,
    noise: str = "resampled",
    seeds: int = 1,
    normalise: str = "each",
) -> Table:
    """41 light sensors: find the brightest, and read at least half of its light.

    ``f`` is the mean over the 192 test samples, divided by its maximum (``B = 1``). A
    noisy reward is the entry of a random test sample, divided likewise. The covariance
    is that of the normalised training samples; ``g = -f + B/2``.

    Ours: a noisy cost is ``-r + B/2`` with a test sample drawn for it alone; the
    noise's variance is the mean over the sensors, and ``R`` its root.

    Args:
        trials: how many, or a ``range`` of their numbers; ``None``: no trials axis.
        seed: the seed of the safe actions; the functions are the same in every trial.
        noise: ``"resampled"`` from the test samples, or ``"gaussian"`` with each
            sensor's variance.
        seeds: how many known safe actions are drawn.
        normalise: what "normalised" means for the training samples, of which the paper
            says no more: ``"each"`` centres every sensor and divides it by its own
            deviation, so that all variances are equal before data; ``"common"`` centres
            every sensor and divides all by the largest of their deviations;
            ``"largest"`` divides all by the largest reading and centres nothing.
    """
    checks.one_of("noise", noise, "resampled", "gaussian")
    train, test = data.light()
    rewards, gaussian = test / test.mean(0).max(), noise == "gaussian"
    return _from_samples(
        train,
        rewards,
        0.5,
        None,
        trials,
        seed,
        "zhou-light",
        seeds,
        normalise,
        gaussian,
    )


def zhou_finance(
    trials: Trials = None, seed: int = 0, seeds: int = 1, normalise: str = "each"
) -> Table:
    """29 stocks: find the dearest, with a price of at least 100, under heavy tails.

    ``f`` is the mean price, the noise a random day's deviation; ``g = -f + 100``. As
    with the light sensors, everything is divided by the largest mean price, 237.3
    (ours). ``R`` is the largest deviation from a mean.

    Args:
        trials: how many, or a ``range`` of their numbers; ``None``: no trials axis.
        seed: the seed of the safe actions; the functions are the same in every trial.
        seeds: how many known safe actions are drawn.
        normalise: how training samples are normalised, see :func:`zhou_light`.
    """
    prices = data.stocks()
    scale = prices.mean(0).max()
    rewards = prices / scale
    radius = (rewards - rewards.mean(0)).abs().max()
    height = 100.0 / float(scale)
    return _from_samples(
        prices, rewards, height, radius, trials, seed, "zhou-finance", seeds, normalise
    )
