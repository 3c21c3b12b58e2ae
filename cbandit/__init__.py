"""Constrained bandits on PyTorch: choose, learn, and keep within limits meanwhile.

Names are looked up when first used, so that importing costs nothing and changes
nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cbandit import (
        account,
        acquisition,
        baselines,
        confidence,
        multipliers,
        problems,
        scores,
        search,
    )
    from cbandit._core import distributed
    from cbandit.actions import (
        Actions,
        Box,
        Category,
        Finite,
        Float,
        Int,
        ProductGrid,
        Space,
        Star,
    )
    from cbandit.beliefs.classes import FiniteClass
    from cbandit.beliefs.counts import Counts
    from cbandit.beliefs.feedback import Delayed, Sliding
    from cbandit.beliefs.gp import GP
    from cbandit.beliefs.linear import Linear
    from cbandit.choice import Choice, Distribution
    from cbandit.confidence import RKHS, Constant
    from cbandit.errors import (
        CBanditError,
        CheckpointError,
        ChoiceError,
        HorizonError,
        InfeasibleError,
        LostRankError,
        MissingDataError,
        MissingExtraError,
    )
    from cbandit.explore import TS, UCB, Explore, Rand
    from cbandit.policies.believed import Marginal, Posterior
    from cbandit.policies.ckb import CKB
    from cbandit.policies.decision import Decision
    from cbandit.policies.epoch import EpochPenalty
    from cbandit.policies.gp import GPPolicy
    from cbandit.policies.lclucb import LCLUCB
    from cbandit.policies.opb import OPB
    from cbandit.policies.oplb import OPLB
    from cbandit.policies.opnlb import OPNLB
    from cbandit.policies.policy import Policy, load
    from cbandit.policies.rpol import RPOL
    from cbandit.policies.safe.action import Safe
    from cbandit.policies.scgp import SCGPUCB
    from cbandit.policies.unconstrained import GPTS, GPUCB
    from cbandit.problems.protocol import Round
    from cbandit.recommend import Recommendation
    from cbandit.simulation import plots
    from cbandit.simulation.loop import simulate
    from cbandit.simulation.run import Run

_HOMES = {
    "actions": (
        "Actions",
        "Box",
        "Category",
        "Finite",
        "Float",
        "Int",
        "ProductGrid",
        "Space",
        "Star",
    ),
    "beliefs.classes": ("FiniteClass",),
    "beliefs.counts": ("Counts",),
    "beliefs.feedback": ("Delayed", "Sliding"),
    "beliefs.gp": ("GP",),
    "beliefs.linear": ("Linear",),
    "choice": ("Choice", "Distribution"),
    "confidence": ("RKHS", "Constant"),
    "errors": (
        "CBanditError",
        "CheckpointError",
        "ChoiceError",
        "HorizonError",
        "InfeasibleError",
        "LostRankError",
        "MissingDataError",
        "MissingExtraError",
    ),
    "explore": ("TS", "UCB", "Explore", "Rand"),
    "policies.policy": ("Policy", "load"),
    "policies.decision": ("Decision",),
    "policies.ckb": ("CKB",),
    "policies.epoch": ("EpochPenalty",),
    "policies.believed": ("Marginal", "Posterior"),
    "policies.gp": ("GPPolicy",),
    "policies.lclucb": ("LCLUCB",),
    "policies.opb": ("OPB",),
    "policies.oplb": ("OPLB",),
    "policies.opnlb": ("OPNLB",),
    "policies.rpol": ("RPOL",),
    "policies.scgp": ("SCGPUCB",),
    "policies.unconstrained": ("GPTS", "GPUCB"),
    "problems.protocol": ("Round",),
    "recommend": ("Recommendation",),
    "simulation.run": ("Run",),
    "policies.safe.action": ("Safe",),
    "simulation.loop": ("simulate",),
}
_MODULES = {
    "account": "account",
    "acquisition": "acquisition",
    "baselines": "baselines",
    "confidence": "confidence",
    "distributed": "_core.distributed",
    "multipliers": "multipliers",
    "plots": "simulation.plots",
    "optuna": "optuna",
    "problems": "problems",
    "scores": "scores",
    "search": "search",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "CKB",
    "GP",
    "GPTS",
    "GPUCB",
    "LCLUCB",
    "OPB",
    "OPLB",
    "OPNLB",
    "RKHS",
    "RPOL",
    "SCGPUCB",
    "TS",
    "UCB",
    "Actions",
    "Box",
    "CBanditError",
    "Category",
    "CheckpointError",
    "Choice",
    "ChoiceError",
    "Constant",
    "Counts",
    "Decision",
    "Delayed",
    "Distribution",
    "EpochPenalty",
    "Explore",
    "Finite",
    "FiniteClass",
    "Float",
    "GPPolicy",
    "HorizonError",
    "InfeasibleError",
    "Int",
    "Linear",
    "LostRankError",
    "Marginal",
    "MissingDataError",
    "MissingExtraError",
    "Policy",
    "Posterior",
    "ProductGrid",
    "Rand",
    "Recommendation",
    "Round",
    "Run",
    "Safe",
    "Sliding",
    "Space",
    "Star",
    "account",
    "acquisition",
    "baselines",
    "confidence",
    "distributed",
    "load",
    "multipliers",
    "optuna",
    "plots",
    "problems",
    "scores",
    "search",
    "simulate",
]


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        value = getattr(import_module(f"cbandit.{_HOME_OF[name]}"), name)
    elif name in _MODULES:
        value = import_module(f"cbandit.{_MODULES[name]}")
    else:
        hint, dunder = "", name.startswith("_")
        if name[:1].isupper() and name in import_module("cbandit.baselines").__all__:
            hint = f"; there is cbandit.baselines.{name}"
        elif not dunder and (meant := _near(name)) is not None:
            hint = f"; did you mean cbandit.{meant}?"
        raise AttributeError(f"module 'cbandit' has no attribute {name!r}{hint}")
    globals()[name] = value
    return value


def _near(name: str) -> str | None:
    """Return the public name that ``name`` is likely to mean, in whatever case."""
    every = {each.lower(): each for each in __all__}
    found = import_module("cbandit._core.hints").near(name.lower(), every)
    return every.get(found)


def __dir__() -> list[str]:
    return sorted(__all__)
