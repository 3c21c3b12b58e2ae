"""Where the numbers of a posterior are kept.

Four engines over sets and one over boxes, behind one protocol; an engine is the only
thing of the posterior that changes in place.

Another way to keep the posterior is an engine: it answers the calls of ``protocol.py``,
which says what it owes its history; ``choice.py`` names it (``ENGINES``), makes it, and
says when ``"auto"`` takes it. Another way to keep kernel rows is less work: ``Rows`` of
:mod:`cbandit.posterior.rows`, an entry in ``ROWS`` of ``choice.py``, and *swept* does
the rest. Either joins by its class in ``_core/known.py``, so that checkpoints may hold
it, and by a row in ``tests/test_protocols.py``, which tries all that is promised.
"""
