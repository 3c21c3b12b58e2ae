"""The policies that papers compare with or that came later, one algorithm a file.

``safe_set`` has the mathematics shared by SafeOpt, StageOpt, LoSBO and SGP-UCB,
``directions`` that shared by ROFUL and S-COLTS.
"""

from cbandit.baselines.admmbo import ADMMBO
from cbandit.baselines.bandit_oco import BanditOCO
from cbandit.baselines.bkb import BKB
from cbandit.baselines.botorch_policy import BoTorchPolicy
from cbandit.baselines.ckb_restart import CKBRestart
from cbandit.baselines.config import CONFIG
from cbandit.baselines.losbo import LoSBO
from cbandit.baselines.random import Random
from cbandit.baselines.roful import ROFUL
from cbandit.baselines.safe_lts import SafeLTS
from cbandit.baselines.safeopt import SafeOpt
from cbandit.baselines.scolts import SCOLTS
from cbandit.baselines.sgpucb import SGPUCB
from cbandit.baselines.stageopt import StageOpt

__all__ = [
    "ADMMBO",
    "BKB",
    "CONFIG",
    "ROFUL",
    "SCOLTS",
    "SGPUCB",
    "BanditOCO",
    "BoTorchPolicy",
    "CKBRestart",
    "LoSBO",
    "Random",
    "SafeLTS",
    "SafeOpt",
    "StageOpt",
]
