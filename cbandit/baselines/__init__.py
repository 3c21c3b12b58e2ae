"""The policies that the papers compare with.

Each is a policy of the library; ``cb.simulate`` runs them beside the papers' own.
"""

from cbandit.baselines.admmbo import ADMMBO
from cbandit.baselines.bandit_oco import BanditOCO
from cbandit.baselines.bkb import BKB
from cbandit.baselines.botorch_policy import BoTorchPolicy
from cbandit.baselines.ckb_restart import CKBRestart
from cbandit.baselines.config import CONFIG
from cbandit.baselines.safe_lts import SafeLTS
from cbandit.baselines.safeopt import SafeOpt
from cbandit.baselines.sgpucb import SGPUCB
from cbandit.baselines.stageopt import StageOpt

__all__ = [
    "ADMMBO",
    "BKB",
    "CONFIG",
    "SGPUCB",
    "BanditOCO",
    "BoTorchPolicy",
    "CKBRestart",
    "SafeLTS",
    "SafeOpt",
    "StageOpt",
]
