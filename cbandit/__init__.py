"""Constrained bandits on PyTorch: choose, learn, and keep within limits meanwhile."""

from cbandit import multipliers, scores
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
    "Sliding",
    "Star",
    "load",
    "multipliers",
    "scores",
]
