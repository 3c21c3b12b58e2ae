"""Constrained bandits on PyTorch: choose, learn, and keep within limits meanwhile."""

from cbandit import baselines, multipliers, scores, search
from cbandit.actions import Box, Finite, ProductGrid, Star
from cbandit.beliefs.classes import FiniteClass
from cbandit.beliefs.counts import Counts
from cbandit.beliefs.gp import GP
from cbandit.beliefs.linear import Linear
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
from cbandit.policies import CKB, GPTS, GPUCB, LCLUCB, OPB, OPLB, OPNLB
from cbandit.safe import Safe

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
    "TS",
    "UCB",
    "Box",
    "CBanditError",
    "CheckpointError",
    "Choice",
    "ChoiceError",
    "Constant",
    "Counts",
    "Distribution",
    "Finite",
    "FiniteClass",
    "HorizonError",
    "InfeasibleError",
    "Linear",
    "MissingDataError",
    "MissingExtraError",
    "ProductGrid",
    "Rand",
    "Safe",
    "Star",
    "baselines",
    "load",
    "multipliers",
    "scores",
    "search",
]
