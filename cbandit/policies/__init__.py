"""One algorithm a file; each reads like its pseudo-code."""

from cbandit.policies.ckb import CKB
from cbandit.policies.epoch import EpochPenalty
from cbandit.policies.rpol import RPOL
from cbandit.policies.scgp import SCGPUCB
from cbandit.policies.unconstrained import GPTS, GPUCB

__all__ = ["CKB", "GPTS", "GPUCB", "RPOL", "SCGPUCB", "EpochPenalty"]
