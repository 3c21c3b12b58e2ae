"""A Gaussian-process belief as the user states it; it learns nothing itself."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from gpytorch import kernels as gpk
from gpytorch.means import Mean
from gpytorch.models import IndependentModelList
from gpytorch.priors import LogNormalPrior, Prior
from torch import Tensor

from cbandit._core import checks
from cbandit._core.hints import hinted
from cbandit.actions import (
    Actions,
    Context,
    Names,
    ProductGrid,
    Unit,
    checked_actions,
    reach,
)
from cbandit.beliefs.features import (
    SPARE,
    FeatureKernel,
    Waves,
    columns_of,
    options_of,
)
from cbandit.beliefs.kernel_tree import read
from cbandit.beliefs.mean_function import MeanFunction
from cbandit.beliefs.models import Parts, check_kernel, parts_of
from cbandit.errors import CBanditError

# of the log of a default noise, as a share of the outcomes' variance: wide enough for
# functions without noise and for those that are half noise (docs/guide/defaults.md)
NOISE = -2.5, 1.5
# refit_every="auto": the first fit; then after this share of the data, at least two
FIRST, MORE, OFTEN, SELDOM = 5, 2, 5, 2
MANY = 100  # observations after which hyperparameters change little
OUTCOMES = ("binary", "count")
WAVES_SEED = 1
MOST_SHOWN = 8  # with more numbers in a context, the default belief is linear


@hinted
class GP:
    """A Gaussian-process prior on one function; policies work on copies of it.

    Args:
        kernel: any gpytorch kernel. Left out with ``Finite(covariance=K)``, where the
            prior is ``K`` itself. The copy kept here is float64, but a gpytorch kernel
            is float32 until told otherwise, and digits lost there stay lost: make it
            ``.double()`` and then set hyperparameters as float64 tensors (the Python
            number 0.2 becomes 0.2000000030 on its way).
        noise: variance of one observation, a number or ``(*trials,)``; at least
            1e-14 of the prior variance is used, which rounding requires.
            ``None``: learned by marginal likelihood, with the kernel's hyperparameters.
        mean: the prior mean, in the user's units: a number or ``(*trials,)``; a
            function of points ``(n, d)``, with columns as in ``choice.x``, that returns
            ``(n,)``; or a gpytorch ``Mean``, whose parameters are fitted with the
            kernel's. Functions are called for a block of actions at a time, and on a
            Box must be differentiable; ``cb.load`` takes them only with ``trust=``. Or
            ``"learned"``: a constant, found by marginal likelihood with the other
            hyperparameters, under a normal prior around the average as wide as the
            outcomes' spread. Until the first fit it is 0, or with ``standardize`` the
            average. It helps most where functions rise towards the edges of the set
            (bowls: errors less by 10 to 30 % from 30 observations on). With fewer than
            15 observations it changes little; of sums of waves, which have no level,
            errors may grow by some per cent.
        standardize: outcomes are rescaled to mean 0 and spread 1 every round. Then
            ``noise``, and all that a policy weighs, is in spreads: estimates, clips,
            steps, caps and multipliers. So it does the same whatever outcomes are
            measured in. What users give and get (feedback, thresholds, posteriors,
            ``policy.price``) stays in their units. A single reading more than 8
            deviations from the expectation at its action is an outlier: it counts as
            that bound, with a warning, so that it does not set the scale. Two within
            three readings count as a level that has moved. EpochPenalty does not do so:
            its targets mix the reward with penalties.
        refit_every: hyperparameters are fitted anew after this many observations;
            ``"auto"``: after 5, then whenever there are a fifth more (two at least),
            and half as many more from 100 on; ``None``: only by ``policy.refit()``. A
            fit of four default functions takes 25 to 60 ms of one processor with up to
            100 observations. A refit rebuilds the posterior as well. With ``u``
            observations that takes as long as ``u / 4`` rounds on a grid of 10^6
            actions, and ``2 u / 3`` on a free set of 2 x 10^5. So with ``"auto"`` all
            rebuilds together take about as long as all rounds on such a grid, 3 to 4
            times as long on such a set until 100 observations, and half of that
            afterwards. A number ``k`` in its place makes every refit dearer than the
            last: their share grows like ``u / k``.
        noise_prior: a gpytorch prior of the noise that is learned, as a share of the
            outcomes' variance; ``None``: none.
        outcome: ``"binary"``: what is told is True or False, 0 or 1, or a pair
            ``(successes, tries)``; ``"count"``: a whole number, or a pair ``(number,
            exposure)``. The kernel is then that of a latent function ``f``, and the
            belief is about the probability ``Phi(f)`` or the rate ``exp(f)`` of one
            unit of exposure. Limits, ``mean`` (left at 0, ``f`` has mean 0: a
            probability of one half, or a median rate of 1), posteriors and
            recommendations are probabilities or rates; estimates are
            ``Phi(m + beta sigma)``. Each observation enters once, as the normal reading
            of ``f`` that gives the mean and the variance of the exact posterior at its
            action. Every refit goes over all of them until they agree (expectation
            propagation): before it the posterior depends a little on the order of what
            was told, afterwards it does not. ``refit_every=None`` fits nothing by
            itself, and ``policy.refit()`` goes over them. Hyperparameters are at a
            stationary point of that method's marginal likelihood. A fit keeps the
            latent mean that a stated ``mean`` gives beside the kernel as it was: with
            more variance, far from all data a rate is expected to be larger than
            stated, a probability nearer to one half.
            ``standardize`` and ``noise`` do not go with it. The papers' guarantees are
            for Gaussian processes observed with sub-Gaussian noise: of regret and
            violation on such outcomes no theorem is claimed. What holds for any
            estimates stays: a dual step that is bounded by its cap, RPOL's floor, and
            that budgets of rounds and limits are counted in expectation.

    Example:
        >>> import cbandit as cb, gpytorch, torch
        >>> kernel = gpytorch.kernels.RBFKernel().double()
        >>> kernel.lengthscale = torch.tensor(0.2, dtype=torch.float64)
        >>> belief = cb.GP(kernel, noise=1e-2)
    """

    def __init__(
        self,
        kernel: gpk.Kernel | None = None,
        noise: Any = None,
        mean: Any = 0.0,
        standardize: bool = False,
        refit_every: int | str | None = None,
        noise_prior: Prior | None = None,
        outcome: str | None = None,
    ) -> None:
        if outcome is not None:
            checks.one_of("outcome", outcome, *OUTCOMES, other="None")
            _check_outcome(outcome, noise, mean, standardize, noise_prior)
        #: ``"binary"``, ``"count"``, or ``None``: outcomes are Gaussian
        self.outcome = outcome
        self.sense = 1.0  # -1 if a policy has turned the sign of such a function
        if kernel is not None and not isinstance(kernel, gpk.Kernel):
            raise CBanditError(
                f"kernel must be a gpytorch kernel; got {checks.kind(kernel)}"
            )
        if kernel is not None:
            check_kernel(kernel, "kernel")
        self.kernel = None if kernel is None else copy.deepcopy(kernel).double()
        self.learn_noise = noise is None and outcome is None
        usual = 1e-2 if outcome is None else 1.0
        self.noise: Tensor = checks.nonnegative(
            "noise", usual if noise is None else noise
        )
        self.learn_mean = isinstance(mean, str)
        if self.learn_mean and mean != "learned":
            raise CBanditError(
                "mean must be a number, (*trials,), a function of points or 'learned'; "
                f"got {mean!r}"
            )
        #: a prior mean that varies; ``None``: it is constant
        self.mean_function = MeanFunction(mean) if callable(mean) else None
        level = 0.0 if self.learn_mean or callable(mean) else mean
        level = checks.no_flag("mean", level)
        self.mean: Tensor = checks.finite("mean", checks.tensor("mean", level))
        self.standardize = checks.flag("standardize", standardize)
        if standardize and self.stated_mean:
            raise CBanditError(
                "mean must be 'learned' or left at 0 with standardize=True, which "
                "counts outcomes from their own average"
            )
        self.refit_every = None if refit_every is None else checked_refits(refit_every)
        if noise_prior is not None and not isinstance(noise_prior, Prior):
            raise CBanditError(
                f"noise_prior must be a gpytorch prior; got {checks.kind(noise_prior)}"
            )
        if noise_prior is not None and not self.learn_noise:
            raise CBanditError(
                "noise_prior goes with a noise that is learned: leave noise= out; got "
                f"noise = {self.noise.tolist()}"
            )
        self.noise_prior = copy.deepcopy(noise_prior)
        #: maps inputs to those that the kernel takes
        self.unit: Unit | None = None
        #: whether nothing of it was stated, see :meth:`default`
        self.by_default = False
        #: a model's own unit of outcomes: the value that counts as 0, and its size
        self.scale: tuple[float, float] | None = None
        self.noise_as_share = True  # whether its prior is of a share, see above
        #: the factor by which data shrink each round, ``()`` or ``(*trials,)``
        self.fade: Tensor | None = None
        self.conjugate = False  # whether deviations are in units of the learned noise

    @classmethod
    @hinted
    def linear(
        cls,
        space: Actions,
        ridge: Any = 1.0,
        noise: Any = None,
        fade: Any = None,
        features: int | None = None,
        outcome: str | None = None,
        constant: float = 1.0,
    ) -> GP:
        """Return the belief of a Bayesian linear regression, suited to contexts.

        The function is linear in the numbers of a set, those of its choices and
        contexts, with a constant; each combination of categories has its own weights.
        Numbers are standardised by their mean and spread over the set; numbers without
        bounds by observed values, again at each doubling of the data. Outcomes are
        standardised too. The cost of a round does not grow with the observations.

        Args:
            space: the actions, mostly a :func:`~cbandit.Space`.
            ridge: the prior precision of each weight, a number or ``(*trials,)``: the
                noise variance over ``ridge`` is the weight's variance.
            noise: variance of one observation, in spreads, a number or ``(*trials,)``.
                ``None``: learned by its conjugate prior, an inverse gamma of mean
                precision 1 that counts as two observations; deviations scale with it.
            fade: a factor below 1, such as 0.997, or ``(*trials,)``: by it data shrink
                each round, and the prior does not, so that the belief follows a world
                that drifts. ``None``: nothing is forgotten.
            features: if given, the function is linear in so many random features of the
                kernel of :meth:`GP.default` (an even number), at lengthscales that are
                likely before data. Categories then enter the kernel, and numbers
                without bounds should be of about size 1.
            outcome: ``"binary"`` or ``"count"``, see :class:`GP`: the latent function
                is linear. Each outcome enters once, when it is told. Only
                :meth:`~cbandit.GPPolicy.refit` reconsiders earlier outcomes, and not
                with ``fade``, with numbers without bounds, or beyond 4 096 outcomes.
            constant: the prior variance of the constant, as a multiple of another
                weight's. The number of numbers makes the level as uncertain as all
                slopes together. With 25 numbers and 1, the level of a choice made 7
                times counts by 7 / (7 + 26), so a rare, expensive choice looks cheap.

        Example:
            >>> import cbandit as cb
            >>> space = cb.Space(
            ...     model=cb.Category("small", "large"), load=cb.Float(0.0, 1.0)
            ... )
            >>> belief = cb.GP.linear(space, fade=0.997)
            >>> policy = cb.GPUCB(space, reward=belief)
            >>> policy.tell(policy.ask(), reward=0.3)
        """
        space = checked_actions(space).domain
        if space.covariance is not None:
            raise CBanditError(
                "GP.linear needs coordinates; arms given by their covariance have none"
            )
        ridge = checks.positive("ridge", ridge)
        level = torch.ones_like(ridge)
        if noise is not None and outcome is None:
            level = checks.positive("noise", noise)
        waves = None
        root = math.sqrt(
            checks.positive("constant", checks.number("constant", constant))
        )
        if features is not None:
            expected = "None or an even number, at least 2"
            count = checks.whole("features", features, 2, expected, 100_000)
            if count % 2:
                raise CBanditError(f"features must be {expected}; got {count}")
            if root != 1:
                raise CBanditError(
                    "features=n have no constant: leave constant= out; got "
                    f"constant={constant}"
                )
            waves = _waves(space, count // 2)
        if outcome is None:
            out = cls(noise=level, standardize=True)
        else:  # raises if there is a noise
            out = cls(noise=noise, outcome=outcome)
        out.kernel = FeatureKernel(space, (level / ridge).sqrt(), waves, root)
        out.conjugate = noise is None and outcome is None
        if fade is not None:
            out.fade = checks.positive("fade", fade)
            if bool((out.fade > 1).any()):
                raise CBanditError(
                    "fade must be above 0 and at most 1, what is left after a round; "
                    f"got {out.fade.tolist()}"
                )
        return out

    @classmethod
    @hinted
    def of(cls, model: Any, refit_every: int | str | None = None) -> GP | list[GP]:
        """Return the belief that a fitted GPyTorch or BoTorch model holds before data.

        It has the model's kernel, mean and noise, with their priors, its ``Normalize``
        of inputs and its ``Standardize`` of outcomes. Given the same data,
        ``policy.observe(**cb.data_of(model))``, the posterior is the model's own; by
        itself the belief takes no data. What cannot be carried over is an error that
        names it: several outputs or tasks, variational models, other transforms.

        With ``Standardize`` the unit of scores and multipliers is the model's, as it
        was fitted; it does not move with later data, and no reading counts as an
        outlier.

        Args:
            model: a gpytorch ``ExactGP`` with a ``mean_module`` and a ``covar_module``,
                or BoTorch's ``SingleTaskGP``, of one output; or a ``ModelListGP`` of
                such models, which gives a list. A noise for each observation comes
                with the data; later observations have the average of these noises.
            refit_every: hyperparameters are fitted anew as in :class:`GP`, a noise that
                the model had learned too; ``None``: they stay as they are.

        Example:
            >>> import cbandit as cb, torch
            >>> from botorch.models import ModelListGP, SingleTaskGP
            >>> x = torch.rand(8, 2, dtype=torch.float64)
            >>> models = [SingleTaskGP(x, y) for y in (x[:, :1].sin(), x[:, 1:])]
            >>> model = ModelListGP(*models)  # fit_gpytorch_mll fits each
            >>> reward, cost = cb.GP.of(model)
            >>> box = cb.Box([0, 0], [1, 1])
            >>> policy = cb.CKB(box, reward=reward, costs=cost, thresholds=0.5)
            >>> policy.observe(**cb.data_of(model))
            >>> choice = policy.ask()
        """
        beliefs = [cls._of_parts(parts, refit_every) for parts in parts_of(model)]
        return beliefs if isinstance(model, IndependentModelList) else beliefs[0]

    @classmethod
    def _of_parts(cls, parts: Parts, refit_every: int | str | None) -> GP:
        mean, learned = parts.mean, parts.noise_learned and refit_every is not None
        if isinstance(mean, Mean) and refit_every is None and parts.level is not None:
            mean = parts.level
        out = cls(parts.kernel, parts.noise, mean, refit_every=refit_every)
        out.learn_noise = learned
        out.noise_prior = parts.noise_prior if learned else None
        out.unit, out.scale, out.noise_as_share = parts.unit, parts.scale, False
        return out

    @classmethod
    @hinted
    def default(cls, actions: Actions, outcome: str | None = None) -> GP:
        """Return a belief for use when nothing is known of the function.

        It has an RBF kernel with a lengthscale per coordinate under a prior that grows
        with the dimension, inputs mapped to the unit cube, learned noise and mean,
        standardised outcomes, ``refit_every="auto"``. The noise may be nothing: its
        prior is wide. Few data are fitted from several starts.

        Over ``Finite(covariance=K)`` the prior is ``K``, and only noise and mean are
        learned. It is for ``actions`` and sets within their extent, which is mapped to
        the unit cube. Before any data a GP policy with such beliefs alone begins in the
        middle of its set.

        Over a :func:`~cbandit.Space` numbers have Matern kernels and categories
        BoTorch's ``CategoricalKernel``. On a grid each parameter has a kernel of its
        own, and their product is taken by the product engine; else one kernel is for
        all numbers and one for all categories. Parameters with ``log=True`` enter by
        their logarithms. Contexts have kernels like parameters; the numbers of a
        ``Context(k)`` should be of about size 1. Where one has more than 8 it is
        :meth:`GP.linear`, with ``constant=k``.

        With ``outcome="binary"`` or ``"count"`` the same kernel, of variance 1, is that
        of the latent function, whose mean is learned. Until the first fit the expected
        probability is one half, the median rate 1.
        """
        checked_actions(actions)
        gaussian = outcome is None
        prior = LogNormalPrior(*NOISE) if gaussian else None
        settings: Any = None, "learned", gaussian, "auto", prior, outcome
        if actions.covariance is not None:
            out = cls(None, *settings)
        else:
            actions = actions.domain
            if (widest := _widest(actions)) > MOST_SHOWN:
                if not gaussian:  # makes the latent variance about 1
                    return cls.linear(actions, 1.0 + actions.dim, outcome=outcome)
                return cls.linear(actions, constant=widest)
            kernel = _default_kernel(actions).double()
            for part in kernel.modules():
                if isinstance(part, gpk.Kernel) and part.has_lengthscale:
                    part.lengthscale = _usual_length(actions.dim)
            out = cls(kernel, *settings)
            out.unit, out.by_default = Unit.around(actions), True
        return out

    __copy__ = copy.deepcopy  # a shallow one would share the kernel

    @property
    def stated_mean(self) -> bool:
        """Whether the user stated a prior mean other than 0."""
        return self.mean_function is not None or bool((self.mean != 0).any())

    @property
    def in_spreads(self) -> bool:
        """Whether scores and multipliers are in its own unit, not the user's."""
        return self.standardize or self.scale is not None

    def suit(self, name: str, actions: Actions, batch_shape: tuple[int, ...]) -> None:
        """Raise, naming the argument, if this cannot be a belief over ``actions``."""
        if self.mean_function is not None:
            self.mean_function.suit(name, actions, math.prod(batch_shape))
        if self.kernel is None:
            return
        if self.by_default and self.unit is not None:
            _spans(name, self.unit.bounds, reach(actions))
        if self.unit is not None and self.unit.bounds.shape[-1] != actions.dim:
            raise CBanditError(
                f"{name}: its model has d = {self.unit.bounds.shape[-1]} inputs; the "
                f"actions have d = {actions.dim}"
            )
        read(self.kernel, range(actions.dim), name)
        if isinstance(self.kernel, FeatureKernel):
            self.kernel.suit(name, actions)
        batch = tuple(self.kernel.batch_shape)
        if batch not in ((), (1,), batch_shape):
            raise CBanditError(
                f"{name}: its kernel must have batch_shape (*trials,) = {batch_shape}, "
                f"or none; got {batch}"
            )

    def copy(self) -> GP:
        """Return a copy that shares nothing with this one."""
        return copy.deepcopy(self)

    def turned(self) -> GP:
        """Return a copy about minus the function."""
        out = self.copy()
        out.sense = -out.sense
        return out

    def shares(self, other: GP) -> bool:
        """Return whether both have the same prior covariance and the same, fixed noise.

        If so, their posterior variances are equal if they are observed together.
        """
        for gp in (self, other):
            if gp.learn_noise or gp.learn_mean or gp.refit_every is not None:
                return False
            if gp.outcome is not None:  # each outcome has its own weight
                return False
        same = (
            self.standardize == other.standardize
            and self.scale == other.scale
            and _same_unit(self.unit, other.unit)
            and self.conjugate == other.conjugate
            and _equal(self.fade, other.fade)
            and self.noise.shape == other.noise.shape
            and bool((self.noise == other.noise).all())
        )
        return same and _same_kernel(self.kernel, other.kernel)

    def wait(self, count: int) -> int | None:
        """Return how many more observations to wait for a fit after one to ``count``.

        ``None``: never. A ``count`` of 0 means no fit yet.
        """
        if self.refit_every != "auto":
            return None if self.refit_every is None else int(self.refit_every)
        return (
            max(MORE, count // (OFTEN if count < MANY else SELDOM)) if count else FIRST
        )

    def fitted_to(self, count: int) -> int:
        """Return how many of ``count`` observations the latest fit used.

        They came one by one; 0 if there was no fit.
        """
        fitted = 0
        while (wait := self.wait(fitted)) is not None and fitted + wait <= count:
            fitted += wait
        return fitted

    def __repr__(self) -> str:
        kernel = (
            "prior covariance" if self.kernel is None else type(self.kernel).__name__
        )
        learned = self.learn_noise or self.conjugate
        kind = f"noise={'learned' if learned else self.noise.tolist()}"
        if self.outcome is not None:
            kind = f"outcome={self.outcome!r}"
        if isinstance(self.kernel, FeatureKernel):
            fade = "" if self.fade is None else f", fade={self.fade.tolist()}"
            return f"GP.linear({kind}{fade})"
        return f"GP({kernel}, {kind})"


def _check_outcome(
    outcome: str, noise: object, mean: Any, standardize: object, prior: object
) -> None:
    """Raise for arguments that do not go with binary or counted outcomes."""
    for name, odd in (
        ("noise", noise is not None),
        ("standardize", standardize is not False),
        ("noise_prior", prior is not None),
    ):
        if odd:
            raise CBanditError(
                f"{name} does not go with outcome={outcome!r}, whose spread follows "
                "from the probability or the rate: leave it out"
            )
    if isinstance(mean, str) or callable(mean):
        return
    value = checks.finite("mean", checks.tensor("mean", mean))
    inside = (value > 0) & (value < 1) if outcome == "binary" else value > 0
    if not bool((inside | (value == 0)).all()):
        what = "a probability, between 0 and 1" if outcome == "binary" else "a rate"
        raise CBanditError(
            f"mean must be {what}, or 'learned', with outcome={outcome!r}; got "
            f"{value.tolist()}"
        )


def checked_refits(refit_every: object) -> int | str:
    """Return after how many observations to fit again; raise if it is invalid."""
    if isinstance(refit_every, str) and refit_every == "auto":
        return "auto"
    return checks.whole("refit_every", refit_every, 1, "None, 'auto' or a positive int")


def _usual_length(dim: int) -> float:
    """Return a lengthscale for the unit cube; it grows like the cube's diagonal."""
    return 0.2 * math.sqrt(dim)


def _default_kernel(actions: Actions) -> gpk.Kernel:
    """Return a kernel over the unit cube, with lengthscale priors."""
    dim, names = actions.dim, actions.names

    def prior() -> LogNormalPrior:
        # the mode is the usual length. BoTorch's width, sqrt(3), was measured too: with
        # 5 to 40 observations intervals were too narrow (docs/guide/defaults.md)
        return LogNormalPrior(math.log(_usual_length(dim)) + 1.0, 1.0)

    if names is None:
        ard = dim if dim > 1 else None
        return gpk.RBFKernel(ard_num_dims=ard, lengthscale_prior=prior())
    from botorch.models.kernels.categorical import CategoricalKernel

    parts = []
    for matern, columns in _groups(names, isinstance(actions, ProductGrid)):
        options: dict[str, Any] = {
            "ard_num_dims": len(columns) if columns[1:] else None
        }
        options |= {"active_dims": tuple(columns), "lengthscale_prior": prior()}
        parts.append(
            gpk.MaternKernel(2.5, **options) if matern else CategoricalKernel(**options)
        )
    return parts[0] if len(parts) == 1 else gpk.ProductKernel(*parts)


def _widest(actions: Actions) -> int:
    """Return the largest number of numbers in any context."""
    if actions.names is None:
        return 0
    contexts = [p for p in actions.names.parameters.values() if isinstance(p, Context)]
    return max((context.width for context in contexts), default=0)


def _waves(space: Actions, count: int) -> Waves:
    """Return ``count`` random waves of the default kernel of a set.

    They are drawn with a fixed seed, so that beliefs about several functions share
    them. The numbers are standardised; the kernel's lengthscales are those of the unit
    cube.
    """
    _, categories = columns_of(space)
    numbers = [j for j in range(space.dim) if j not in categories]
    generator = torch.Generator().manual_seed(WAVES_SEED)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    frequencies = normal(len(numbers), count) / _usual_length(space.dim)
    names, signs = space.names, []
    if names is not None:
        for matern, of in _groups(names, isinstance(space, ProductGrid)):
            if matern:  # normal for the RBF, Student's t for a Matern kernel
                rows = [numbers.index(j) for j in of]
                freedom = normal(5, count).square().mean(0).sqrt()
                frequencies[rows] = frequencies[rows] / freedom
                continue
            for count_of in options_of(space, of):
                share = math.exp(-1 / (len(of) * _usual_length(space.dim)))
                alike = torch.rand(count, generator=generator) < share
                sign = normal(count_of + SPARE, count).sign()
                signs.append(torch.where(alike, 1.0, sign))
    return Waves(frequencies, signs)


def _groups(names: Names, apart: bool) -> list[tuple[bool, list[int]]]:
    """Return which coordinates share a kernel, and whether they are numbers."""
    _, whole = names.flags()
    numbers = [True] * len(names.columns) if whole is None else (~whole).tolist()
    if apart:
        return [(number, [j]) for j, number in enumerate(numbers)]
    groups = [
        (kind, [j for j, v in enumerate(numbers) if v == kind])
        for kind in (True, False)
    ]
    return [(kind, columns) for kind, columns in groups if columns]


def _spans(name: str, made: Tensor, extent: Tensor) -> None:
    """Raise unless the bounds of a belief contain a set's extent."""
    extent = extent.to(made.device)
    apart = extent.shape != made.shape
    if not apart:
        slack = 1e-5 * (made[1] - made[0] + made.abs().amax(0))
        low, high = made[0] - slack, made[1] + slack
        apart = bool(((extent[0] < low) | (extent[1] > high)).any())
    if apart:
        raise CBanditError(
            f"{name}: cb.GP.default was given actions between {made[0].tolist()} and "
            f"{made[1].tolist()}, and these reach from {extent[0].tolist()} to "
            f"{extent[1].tolist()}: give it a set that spans them"
        )


def _equal(a: Tensor | None, b: Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    return a.shape == b.shape and bool((a == b).all())


def _same_unit(a: Unit | None, b: Unit | None) -> bool:
    if a is None or b is None:
        return a is b
    return _equal(a.bounds, b.bounds) and _equal(a.logs, b.logs)


def _same_kernel(a: gpk.Kernel | None, b: gpk.Kernel | None) -> bool:
    if a is None or b is None:
        return a is b
    if a is b:
        return True
    if _structure(a) != _structure(b):
        return False
    mine, other = a.state_dict(), b.state_dict()
    return mine.keys() == other.keys() and all(
        v.shape == other[k].shape and bool((v == other[k]).all())
        for k, v in mine.items()
    )


def _structure(kernel: gpk.Kernel) -> list[tuple[Any, ...]]:
    """Return classes, active coordinates and plain attributes of a kernel's parts."""
    out: list[tuple[Any, ...]] = []
    for module in kernel.modules():
        if isinstance(module, gpk.Kernel):
            active = module.active_dims
            plain = sorted(
                (key, value)
                for key, value in vars(module).items()
                if isinstance(value, int | float | str) and key != "training"
            )
            out.append(
                (type(module), None if active is None else tuple(active.tolist()))
            )
            out.append(tuple(plain))
        elif not isinstance(module, torch.nn.ModuleList):
            out.append((type(module),))
    return out
