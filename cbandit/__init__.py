"""Constrained bandits on PyTorch: choose, learn, and keep within limits meanwhile.

Names are looked up when first used, so that importing costs nothing and changes nothing.
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
        plots,
        problems,
        scores,
        search,
    )
    from cbandit.actions import Box, Finite, ProductGrid, Star
    from cbandit.beliefs.feedback import Delayed, Sliding
    from cbandit.beliefs.gp import GP
    from cbandit.checkpoint import load
    from cbandit.choice import Choice, Distribution
    from cbandit.confidence import RKHS, Constant
    from cbandit.errors import (
        CBanditError,
        CheckpointError,
        ChoiceError,
        HorizonError,
        InfeasibleError,
        MissingDataError,
        MissingExtraError,
    )
    from cbandit.explore import TS, UCB, Rand
    from cbandit.policies.ckb import CKB
    from cbandit.policies.epoch import EpochPenalty
    from cbandit.policies.rpol import RPOL
    from cbandit.policies.scgp import SCGPUCB
    from cbandit.policies.unconstrained import GPTS, GPUCB
    from cbandit.problems.protocol import Round
    from cbandit.run import Run
    from cbandit.loop import simulate

_HOMES = {
    "actions": ("Box", "Finite", "ProductGrid", "Star"),
    "beliefs.feedback": ("Delayed", "Sliding"),
    "beliefs.gp": ("GP",),
    "checkpoint": ("load",),
    "choice": ("Choice", "Distribution"),
    "confidence": ("RKHS", "Constant"),
    "errors": (
        "CBanditError",
        "CheckpointError",
        "ChoiceError",
        "HorizonError",
        "InfeasibleError",
        "MissingDataError",
        "MissingExtraError",
    ),
    "explore": ("TS", "UCB", "Rand"),
    "policies.ckb": ("CKB",),
    "policies.epoch": ("EpochPenalty",),
    "policies.rpol": ("RPOL",),
    "policies.scgp": ("SCGPUCB",),
    "policies.unconstrained": ("GPTS", "GPUCB"),
    "problems.protocol": ("Round",),
    "run": ("Run",),
    "loop": ("simulate",),
}
_MODULES = (
    "account",
    "acquisition",
    "baselines",
    "confidence",
    "multipliers",
    "plots",
    "problems",
    "scores",
    "search",
)
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "CKB",
    "GP",
    "GPTS",
    "GPUCB",
    "RKHS",
    "RPOL",
    "SCGPUCB",
    "TS",
    "UCB",
    "Box",
    "CBanditError",
    "CheckpointError",
    "Choice",
    "ChoiceError",
    "Constant",
    "Delayed",
    "Distribution",
    "EpochPenalty",
    "Finite",
    "HorizonError",
    "InfeasibleError",
    "MissingDataError",
    "MissingExtraError",
    "ProductGrid",
    "Rand",
    "Round",
    "Run",
    "Sliding",
    "Star",
    "account",
    "acquisition",
    "baselines",
    "confidence",
    "load",
    "multipliers",
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
        value = import_module(f"cbandit.{name}")
    else:
        raise AttributeError(f"module 'cbandit' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
