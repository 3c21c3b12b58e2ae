"""A policy's beliefs as users read them: moments, and on request joint draws."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from torch import Tensor

from cbandit._core import checks, devices
from cbandit._core.printing import brief
from cbandit._core.randomness import Streams
from cbandit.errors import CBanditError
from cbandit.posterior.draws.roots import pivoted_root

MOST_POINTS = 4096  # whose covariance is computed
MOST_DRAWS = 1 << 20


@dataclass(frozen=True, eq=False)
class Joint:
    """How ``n`` points vary together under a belief about ``f`` functions.

    Args:
        mean: posterior means, ``(T, f, n)``, latent for functions with a link.
        covariance: posterior covariances, ``(T, f, n, n)``, likewise.
        latent: which functions have a link, one bool each.
        streams: the random source of draws.
        batched: whether there is a trials axis.
        single: whether it is of the reward, without an axis of functions.
    """

    mean: Tensor
    covariance: Tensor
    latent: tuple[bool, ...]
    streams: Streams
    batched: bool
    single: bool

    @cached_property
    def _root(self) -> Tensor:
        return pivoted_root(self.covariance)

    def outside(self, value: Tensor, axis: int) -> Tensor:
        """Return a value in the shape that users get; ``axis`` is that of trials."""
        if self.single:
            value = value.select(axis + 1, 0)
        return value if self.batched else value.select(axis, 0)

    def draw(self, count: int) -> Tensor:
        """Return ``count`` draws of all functions, ``(count, T, f, n)``."""
        trials, functions, n = self.mean.shape
        z = self.streams.normal(count, functions, n)
        z = devices.put(z.view(trials, count, functions, n), self.mean.device)
        root = self._root  # T x f x n x r
        z = z.movedim(1, -1)[..., -root.shape[-1] :, :]  # T x f x r x count
        return (self.mean.unsqueeze(-1) + root @ z).movedim(-1, 0)


@dataclass(frozen=True)
class Marginal:
    """Means and standard deviations of the actions, in the user's units.

    Args:
        mean: ``(*trials, N)`` of the reward, ``(*trials, m, N)`` of the costs.
        std: likewise.
        joint: how they vary together; ``None``: nobody asked, see ``joint=True``.
    """

    mean: Tensor
    std: Tensor
    joint: Joint | None = field(default=None, repr=False)

    __repr__ = brief

    @property
    def covariance(self) -> Tensor:
        """The covariances ``(*trials, n, n)``, of the costs ``(*trials, m, n, n)``.

        They are of functions without noise, and for binary and counted ones of the
        :attr:`latent` function.
        """
        joint = self._joint("covariance")
        return joint.outside(joint.covariance, 0)

    @property
    def latent(self) -> tuple[bool, ...]:
        """For each function, whether covariances and samples are of a latent function.

        They are where its outcome is binary or counted: the probability is ``Phi`` of
        it, the rate ``exp``.
        """
        return self._joint("latent").latent

    def sample(self, k: int = 1) -> Tensor:
        """Return ``k`` joint draws of the functions without noise, exact in law.

        They are ``(k, *trials, n)`` of the reward, ``(k, *trials, m, n)`` of the costs,
        and of the :attr:`latent` function where there is one. The same posterior gives
        the same draws in the same order; further calls go on, and the policy's own
        draws do not move.
        """
        joint = self._joint("sample")
        count = checks.whole("k", k, 1, maximum=MOST_DRAWS)
        return joint.outside(joint.draw(count), 1)

    def _joint(self, name: str) -> Joint:
        if self.joint is None:
            raise CBanditError(
                f"{name} needs posterior(..., joint=True), up to {MOST_POINTS} points"
            )
        return self.joint


@dataclass(frozen=True)
class Posterior:
    """Beliefs about the reward, ``(*trials, N)``, and costs, ``(*trials, m, N)``."""

    reward: Marginal
    costs: Marginal | None

    __repr__ = brief


def check_count(n: int) -> None:
    """Raise if there are too many points for a joint posterior."""
    if n > MOST_POINTS:
        raise CBanditError(
            f"posterior(joint=True) takes up to {MOST_POINTS} points, as it computes "
            f"their whole covariance; got {n}: give some of them, by x=, params= or "
            "index="
        )
