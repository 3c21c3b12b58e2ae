"""Constrained bandits on PyTorch: choose, learn, and keep within limits meanwhile."""

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
    "baselines",
    "load",
    "multipliers",
    "problems",
    "scores",
    "search",
    "simulate",
]
