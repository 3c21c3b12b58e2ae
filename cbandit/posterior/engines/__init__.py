"""Engines: they compute a posterior and store its arrays.

There are four, over sets and boxes; an engine is the only part of a posterior that
changes in place. ``Engine`` keeps the observations alone and solves for every point as
it is asked; ``Joint`` keeps the whole covariance of a small set, ``Swept`` means and
variances of a large one, by kernel rows; ``Weights`` sums of the features of linear
kernels, however many observations there are.

Another way to keep the posterior is a class that derives from ``Engine`` and replaces
:meth:`~cbandit.posterior.engines.protocol.Engine.blocks`; ``MAKERS`` in ``choice.py``
names it, and ``plan`` there says when ``"auto"`` takes it. The one with inducing points
in ``tests/test_engines.py`` takes twenty lines. Another way to keep kernel rows is
less work: ``Rows`` of :mod:`cbandit.posterior.rows`, a line in ``MAKERS``, and
``Swept`` does the rest. Either joins by its class in ``_core/names.py``, so that
checkpoints may hold it, and by a row in ``tests/test_protocols.py``, which tries all
that is promised.
"""
