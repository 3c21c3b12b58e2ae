"""The papers' algorithms, one a file, each readable beside its pseudo-code.

The algorithms are ckb, epoch, lclucb, opb, opnlb, oplb, rpol, scgp and unconstrained;
projected, queue and resolved are CKB's rules for the multiplier (``dual.py`` has what
they share).
``base.py`` runs the rounds of every policy: it absorbs the feedback told, lets the
concerns shape the round, asks the rule, and lets the concerns check its choice.
``turn.py`` has the round as rules and concerns see it, ``round.py`` the base class of
concerns, and ``concerns/`` one concern a file: budgets, shares of rounds within limits,
failures, outliers, restarts, margins, the design and so on; ``concerns/order.py`` has
their order, and ``setup.py`` all that they are made from. ``abilities.py`` has what a
class of policies can do.
``inbox.py`` reads the values that users tell, ``choices.py`` keeps the choices that
wait for feedback, ``history.py`` all rounds, ``checks.py`` checks users' arguments,
``signs.py`` has the names of costs and the signs of functions, ``saving.py`` the lock
and the files. Policies on Gaussian processes share ``gp.py``; ``round_search.py`` finds
a round's best action, and ``timing/`` says when feedback counts: at once, after a delay
(RPOL-CensoredUCB), or for a window of rounds (RPOL-SWUCB). The stage-wise policies
share ``safe/``.

A new concern is a file in ``concerns/``, whose ``of`` makes it from a ``Setup``;
``NeverTwice`` in ``tests/contracts/test_concerns.py`` is one in ten lines. It needs

* a place in ``concerns/order.py``;
* its name, and that of its state, in ``_core/names.py``, so that checkpoints may hold
  them;
* its keyword, if any, in ``ConcernKeywords`` of ``keywords.py``, for type checkers. GP
  policies then take it and show its help; for other policies it stands in
  ``POLICY_HELP`` too;
* ``in_studies = False`` if its state cannot be computed anew from an Optuna study;
* a row of ``BRINGING`` in ``tests/contracts/test_concerns.py``: keywords that bring
  it in.

A new algorithm is a file here, or in :mod:`cbandit.baselines` if papers only compare
with it. Add its name

* in that folder's ``__init__.py``, one of this folder also in ``cbandit/__init__.py``
  (three times: for type checkers, its home, ``__all__``);
* in ``_core/names.py``, so that checkpoints may hold it;
* in ``tests/contracts/test_contract.py``: its signature, and a row that tries what
  every policy promises. Tests that fail name what is missing.

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
