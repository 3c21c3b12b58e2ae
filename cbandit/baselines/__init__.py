"""What the papers compare with; each is a policy of the library."""

from cbandit.baselines.ckb_restart import CKBRestart

__all__ = ["CKBRestart"]
