"""The papers' algorithms, one a file, each readable beside its pseudo-code.

The algorithms are ckb, epoch, lclucb, opb, opnlb, oplb, rpol, scgp and unconstrained;
projected, queue and resolved are CKB's rules for the multiplier (``dual.py`` has what
they share).
``base.py`` runs the rounds of every policy: it takes in what was told, lets the
concerns shape the round, asks the rule, and lets the concerns check its choice.
``turn.py`` has a round as rules and concerns see it, ``round.py`` what a concern is,
and ``concerns/`` has one a file: budgets, shares of rounds within limits, failures,
outliers, restarts, margins, the design and so on; ``concerns/order.py`` is their order,
and ``setup.py`` all that they are made from.
``abilities.py`` is what a class states that it can do.
``inbox.py`` reads what users tell, ``choices.py`` keeps the choices that wait for
feedback, ``history.py`` what happened, ``checks.py`` checks what users hand in,
``signs.py`` has the names of costs and the signs of functions, ``saving.py`` the lock
and the files. Policies on Gaussian processes share ``gp.py``; ``round_search.py`` finds
a round's best action, and ``timing/`` says when feedback counts: at once, after a delay
(RPOL-CensoredUCB), or for a window of rounds (RPOL-SWUCB). The stage-wise policies
share ``safe/``.

A new concern is a file in ``concerns/``, which says from what of ``setup.py`` it is
made, its place in ``concerns/order.py``, and its name in ``_core/names.py``, so that
checkpoints may hold it. If it has a keyword, type checkers know it by ``keywords.py``.

A new algorithm is a file here, or in :mod:`cbandit.baselines` if papers only compare
with it. Add its name

* in that folder's ``__init__.py``, one of this folder also in ``cbandit/__init__.py``
  (three times: for type checkers, its home, ``__all__``);
* in ``_core/names.py``, so that checkpoints may hold it;
* in ``tests/test_contract.py``: its signature, and a row that tries what every policy
  promises. Tests that fail name what is missing.

Where it fits, also in the README's table of promises, in the help on ``pending`` in
``concerns/pending.py`` (if it hallucinates), in ``KINDS`` of :mod:`cbandit.optuna` (if
the numbers of a trial tell its state), and in CHANGELOG.
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
