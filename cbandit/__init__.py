"""Constrained bandits on PyTorch: choose, learn, and keep within limits meanwhile."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from cbandit import baselines, multipliers, problems, scores, search
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
from cbandit.policies import CKB, GPTS, GPUCB, RPOL, SCGPUCB, EpochPenalty
from cbandit.problems.protocol import Round
from cbandit.run import Run
from cbandit.simulate import simulate

if TYPE_CHECKING:
    from cbandit import acquisition

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
    "acquisition",
    "baselines",
    "load",
    "multipliers",
    "problems",
    "scores",
    "search",
    "simulate",
]


def __getattr__(name: str) -> Any:
    # it imports botorch, which changes settings of gpytorch: only when it is asked for
    if name == "acquisition":
        return import_module("cbandit.acquisition")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
