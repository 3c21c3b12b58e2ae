"""Constrained bandits on PyTorch: choose, learn, and keep within limits meanwhile."""

from cbandit import baselines, multipliers, problems, scores, search
from cbandit.actions import Box, Finite, ProductGrid, Star
from cbandit.beliefs.classes import FiniteClass
from cbandit.beliefs.counts import Counts
from cbandit.beliefs.feedback import Delayed, Sliding
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
from cbandit.policies import (
    CKB,
    GPTS,
    GPUCB,
    LCLUCB,
    OPB,
    OPLB,
    OPNLB,
    RPOL,
    SCGPUCB,
    EpochPenalty,
)
from cbandit.problems.protocol import Round
from cbandit.run import Run
from cbandit.safe import Safe
from cbandit.simulate import simulate

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
    "Box",
    "CBanditError",
    "CheckpointError",
    "Choice",
    "ChoiceError",
    "Constant",
    "Counts",
    "Delayed",
    "Distribution",
    "EpochPenalty",
    "Finite",
    "FiniteClass",
    "HorizonError",
    "InfeasibleError",
    "Linear",
    "MissingDataError",
    "MissingExtraError",
    "ProductGrid",
    "Rand",
    "Round",
    "Run",
    "Safe",
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
