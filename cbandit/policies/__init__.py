"""The papers' algorithms, one a file, each readable beside its pseudo-code.

The algorithms are ckb, epoch, lclucb, opb, opnlb, oplb, rpol (with censored and
sliding, its forms for late feedback and for a world that drifts), scgp and
unconstrained. ``base.py`` has the rounds of every policy, ``choices.py`` who waits for
what, ``checks.py`` the checks of what users hand in, ``words.py`` names and senses of
costs, ``history.py`` what happened, ``failures.py`` what cannot be measured. ``gp.py``
has what those share whose beliefs are Gaussian processes, ``late.py`` and
``outliers.py`` when and how far a reading counts, ``safe/`` what the stage-wise ones
share.

A new one is a file here, or in :mod:`cbandit.baselines` if papers only compare with it.
It joins by its name

* in that folder's ``__init__.py``, one of this folder also in ``cbandit/__init__.py``
  (three times: for type checkers, its home, ``__all__``);
* in ``_core/names.py``, so that checkpoints may hold it;
* in ``tests/test_contract.py``: its signature, and a row that tries what every policy
  promises. Tests that fail name what is missing.

Where it fits, also in the README's table of promises, in the help on ``pending`` in
``gp.py`` (if it hallucinates), in ``KINDS`` of :mod:`cbandit.optuna` (if a trial's
numbers tell its state), and in CHANGELOG.
"""

from cbandit.policies.ckb import CKB
from cbandit.policies.epoch import EpochPenalty
from cbandit.policies.lclucb import LCLUCB
from cbandit.policies.opb import OPB
from cbandit.policies.oplb import OPLB
from cbandit.policies.opnlb import OPNLB
from cbandit.policies.rpol import RPOL
from cbandit.policies.scgp import SCGPUCB
from cbandit.policies.unconstrained import GPTS, GPUCB

__all__ = [
    "CKB",
    "GPTS",
    "GPUCB",
    "LCLUCB",
    "OPB",
    "OPLB",
    "OPNLB",
    "RPOL",
    "SCGPUCB",
    "EpochPenalty",
]
