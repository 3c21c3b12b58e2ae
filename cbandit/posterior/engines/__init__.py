"""Engines, which compute a posterior and store its arrays.

There are four, over sets and boxes. Only engines change in place. ``Engine`` keeps the
observations alone and solves for points on request; ``Joint`` keeps the whole
covariance of a small set; ``Swept`` keeps means and variances of a large set, updated
by kernel rows; ``Weights`` keeps sums of the features of linear kernels, of a size that
does not grow with the observations.

A new engine is a class that derives from ``Engine`` and replaces
:meth:`~cbandit.posterior.engines.protocol.Engine.blocks`. Name it in ``MAKERS`` in
``choice.py``, and let ``plan`` there say when ``"auto"`` takes it. The one with
inducing points in ``tests/test_engines.py`` takes twenty lines. A new way to keep
kernel rows is less work: derive from ``Rows`` of :mod:`cbandit.posterior.rows` and add
a line to ``MAKERS``; ``Swept`` does the rest. List either class in ``_core/names.py``,
so that checkpoints may hold it, and in ``tests/test_protocols.py``, which tests all
that is promised.
"""
