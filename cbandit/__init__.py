"""Constrained bandits on PyTorch: choose, learn, and keep within limits meanwhile."""

from cbandit import baselines, multipliers, scores
from cbandit.actions import Box, Finite, ProductGrid, Star
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
from cbandit.policies import CKB, GPTS, GPUCB

__all__ = [
    "CKB",
    "GP",
    "GPTS",
    "GPUCB",
    "RKHS",
    "TS",
    "UCB",
    "Box",
    "CBanditError",
    "CheckpointError",
    "Choice",
    "ChoiceError",
    "Constant",
    "Distribution",
    "Finite",
    "HorizonError",
    "InfeasibleError",
    "MissingDataError",
    "MissingExtraError",
    "ProductGrid",
    "Rand",
    "Star",
    "baselines",
    "load",
    "multipliers",
    "scores",
]
