"""What the papers compare with; each is a policy of the library."""

from cbandit.baselines.ckb_restart import CKBRestart
from cbandit.baselines.safe_lts import SafeLTS

__all__ = ["CKBRestart", "SafeLTS"]
