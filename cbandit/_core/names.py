"""The names that a file may use: known ones, and those that a user trusts.

Objects are made by ``cls.__new__`` and given their attributes; functions compute
numbers. None of the names below opens a file, imports or evaluates anything, however it
is called. Add to them the classes of objects that the library's policies keep; users
trust their own code themselves.
"""

from __future__ import annotations

import functools
import operator
import sys
import types
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import numpy as np

from cbandit.errors import CBanditError, CheckpointError

CODE = (types.FunctionType, types.BuiltinFunctionType, np.ufunc)

# Classes by the package, or the module, in which they are defined.
CLASSES = {
    "cbandit._core": "Numbers Streams",
    "cbandit.actions": """
        Box Category Context Contextual Finite Float Int LinearLimits Names Polytope
        ProductGrid Star Unit
    """,
    "cbandit.baselines": """
        ADMMBO BanditOCO BKB BoTorchPolicy CKBRestart CONFIG Expansion LoSBO Played
        Progress Random Reach ROFUL SafeLTS SafeOpt SafeSet SafeSets SCOLTS SGPUCB
        Split StageOpt Walk
    """,
    "cbandit.beliefs": """
        Counts Delayed FeatureKernel FiniteClass Frame GP Linear MeanFunction
        ModelMean Sliding
    """,
    "cbandit.choice": "Choice Distribution",
    "cbandit.confidence": """
        BayesWidth BoundWidths _Called Constant _Fixed RKHS Theory Widths
    """,
    "cbandit.experiments": "ParetoRouter Routers",
    "cbandit.explore": "Rand TS UCB",
    "cbandit.policies": """
        Abilities Account Arms AtOnce Average Balls Budget Budgets CKB Concerns
        Confidence ConfidenceSets Contradiction Contradictions CountOPB
        DecisionRecord Delayed Design EnoughData Entry EpochPenalty EpochState
        Expected Expired ExploreShare FailedActions Failure FailureBelief FailureList
        FailureModel Files GPOPB GPState GPTS GPUCB Held History InputLimits Item
        JudgedRound KeptLimits LCLUCB Ledger LimitCounts LinearBounds LinearModel
        Listeners Lock Margin News Objective OPLB OPNLB Outcome Outliers Paired Pending
        Place PolicyState PredictionErrors Projected Promise Queue Readings Receipt
        ReceiptState Resolved ResolvedState Restarts Result Retired Retirements RPOL
        Safe SafeAction SafeEstimate SafeState SCGPUCB Schedule Setup Share ShareCount
        _SignedCosts Sliding Start Unanswered UnscaledExcess WidthFactors WithinLimits
    """,
    "cbandit.posterior": """
        Ahead Beliefs Best Block Change Coming Covariance Dictionary Engine ExactGPs
        Form Group History Joint Known Kronecker Lineage Link Log Lots Merged
        Moments Observation _Opened _Pending Plan Prior PriorMean Recent Recomputed
        Ridge Root Scale Sketch Sketched Slots Spot Stacked Step Stored Swept System
        TableKernel Tally Term Units Update Weights
    """,
    "cbandit.receipt": "Alarm Centre Costs Sums Watch",
    "cbandit.scores": "Feasible LeastViolating PrimalDual Rectified Reward",
    "cbandit.search": "Climbs",
    "cbandit.simulation": "Letter Post Tape",
    "cbandit_kernels": "Frame Late OutcomeCounts",
    "botorch.models.kernels": """
        CategoricalKernel DownsamplingKernel ExponentialDecayKernel
        InfiniteWidthBNNKernel
    """,
    "gpytorch.constraints": "GreaterThan Interval LessThan Positive",
    "gpytorch.kernels": """
        AdditiveKernel AdditiveStructureKernel ArcKernel ConstantKernel CosineKernel
        CylindricalKernel HammingIMQKernel IndexKernel LinearKernel MaternKernel
        NewtonGirardAdditiveKernel PeriodicKernel PiecewisePolynomialKernel
        PolynomialKernel ProductKernel ProductStructureKernel RBFKernel RFFKernel
        RQKernel ScaleKernel SpectralDeltaKernel SpectralMixtureKernel
    """,
    "gpytorch.means": "ConstantMean LinearMean ZeroMean",
    "gpytorch.priors": """
        GammaPrior HalfCauchyPrior HalfNormalPrior HorseshoePrior LogNormalPrior
        MultivariateNormalPrior NormalPrior SmoothedBoxPrior UniformPrior
    """,
    "torch.distributions": """
        AbsTransform AffineTransform Cauchy ExpTransform HalfCauchy HalfNormal Normal
    """,
    "torch.nn.modules": """
        ModuleDict ModuleList ParameterDict ParameterList Softplus _WrappedHook
    """,
}

# Functions by the module in which they are found.
FUNCTIONS = {
    "cbandit._core.checks": "nonnegative per_cost per_trial positive",
    "cbandit.multipliers": "exponential polynomial",
    "cbandit.scores": "least_total",
    "cbandit.policies.penalties": "at_least_one",
    "cbandit.policies.base": "Policy._cost_number Policy._cost_parameter "
    "Policy._per_cost Policy._per_trial",
    "gpytorch.constraints.constraints": "inv_sigmoid inv_softplus",
    "gpytorch.kernels.hamming_kernel": "HammingIMQKernel._alpha_closure "
    "HammingIMQKernel._alpha_param HammingIMQKernel._beta_closure "
    "HammingIMQKernel._beta_param",
    "gpytorch.kernels.kernel": "Kernel._lengthscale_closure Kernel._lengthscale_param",
    "gpytorch.kernels.scale_kernel": "ScaleKernel._outputscale_closure "
    "ScaleKernel._outputscale_param",
    "gpytorch.means.constant_mean": "ConstantMean._constant_closure "
    "ConstantMean._constant_param _ensure_updated_strategy_flag_set",
    "gpytorch.module": "Module._load_state_hook_ignore_shapes",
    "torch": "exp log sigmoid",
    "torch.nn.functional": "softplus",
}


def name_of(thing: Callable[..., Any]) -> str:
    """Return ``module:name`` of a class or function, by which it is found again."""
    if not isinstance(thing, type):
        for name, function in _functions().items():
            if thing is function:
                return name
    # what is not written in Python may have a qualname that leads nowhere
    python = isinstance(thing, type | types.FunctionType)
    module, name = thing.__module__, thing.__qualname__ if python else thing.__name__
    try:
        same = operator.attrgetter(name)(sys.modules[module]) is thing
    except (AttributeError, KeyError):
        same = False
    if not same:
        raise TypeError(f"{module}:{name} cannot be found by this name")
    return f"{module}:{name}"


def trusted(trust: object) -> dict[str, Any]:
    """Return the classes and functions that a user trusts, by their names.

    Args:
        trust: classes, functions, objects (for their classes), and modules (for all
            classes and functions that are defined in them).
    """
    if not isinstance(trust, list | tuple | set | frozenset):
        raise CBanditError(
            f"trust must be a tuple of classes, functions or modules; got {trust!r}"
        )
    by_name: dict[str, Any] = {}
    for thing in trust:
        if isinstance(thing, str):
            raise CBanditError(
                f"trust must hold classes, functions or modules themselves; got the "
                f"text {thing!r}"
            )
        meant: list[Any] = [thing]
        if isinstance(thing, types.ModuleType):
            meant = [
                part
                for part in vars(thing).values()
                if isinstance(part, type | types.FunctionType)
                and part.__module__ == thing.__name__
                and "<" not in part.__qualname__
            ]
        elif not isinstance(thing, (type, *CODE)):
            meant = [type(thing)]
        try:
            by_name |= {name_of(part): part for part in meant}
        except TypeError as error:
            raise CBanditError(f"trust: {error}") from None
    return by_name


class Names:
    """The classes and functions that names in a file may stand for.

    Args:
        trust: those that a user trusts besides the known ones, by their names.
    """

    def __init__(self, trust: Mapping[str, Any]) -> None:
        self._trust = trust

    def cls(self, name: str) -> type[Any]:
        """Return a known or trusted class by its name."""
        cls = _known_class(name) or self._trust.get(name)
        if not isinstance(cls, type):
            raise self._refused(name)
        return cls

    def function(self, name: str) -> Any:
        """Return a known or trusted function by its name, or a trusted class."""
        if name in _functions():
            return _functions()[name]
        owner, _, last = name.rpartition(".")
        if isinstance(self._trust.get(owner), type):
            method = vars(self._trust[owner]).get(last)
            if isinstance(method, types.FunctionType):
                return method
        return self.trusted(name)

    def trusted(self, name: str) -> Any:
        """Return a class or function that the user trusts to be called by the file."""
        if name not in self._trust:
            raise self._refused(name)
        return self._trust[name]

    @staticmethod
    def _refused(name: str) -> CheckpointError:
        module, _, last = name.rpartition(":")
        if module.partition(".")[0] == "cbandit":
            return CheckpointError(
                f"it holds {name}, which this version of cbandit does not know: to "
                "save a new class, name it in cbandit/_core/names.py"
            )
        return CheckpointError(
            f"it holds {name}, which cbandit does not know: if you trust that code, "
            f"pass trust=({last},), or on the command line --trust {module}"
        )


@functools.lru_cache(1 << 10)
def _known_class(name: str) -> type[Any] | None:
    """Return the class of this name if it is one of ``CLASSES``."""
    module, _, last = name.partition(":")
    for home, names in CLASSES.items():
        if f"{module}.".startswith(f"{home}.") and last in names.split():
            cls: type[Any] = getattr(import_module(module), last)
            return cls if name_of(cls) == name else None
    return None


@functools.cache
def _functions() -> dict[str, Any]:
    """Return the known functions by their names."""
    return {
        f"{home}:{name}": operator.attrgetter(name)(import_module(home))
        for home, names in FUNCTIONS.items()
        for name in names.split()
    }
