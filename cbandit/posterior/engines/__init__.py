"""Engines, which compute a posterior and store its arrays.

Only engines change in place. ``Engine`` keeps the observations alone and solves for
points on request; ``Joint`` keeps the whole covariance of a small set; ``Swept`` keeps
means and variances of a large set, updated by kernel rows; ``Weights`` keeps sums of
the features of linear kernels, of a size that does not grow with the observations.
Two serve comparisons: ``ExactGPs`` asks GPyTorch, and ``Sketched`` looks through a
dictionary of the actions tried.

A new engine is a class that derives from ``Engine``. If it is exact it replaces
:meth:`~cbandit.posterior.engines.protocol.Engine.blocks`. If it approximates, it says
``solves = False`` and replaces ``at``, ``covariances``, ``path``, ``drawn`` and
``gain`` together, which ``blocks`` then follows; ``Sketched`` is an example.

Name it in ``MAKERS`` in ``choice.py``, and let ``plan`` there say when ``"auto"`` takes
it. A new way to keep kernel rows is less work: derive from ``Rows`` of
:mod:`cbandit.posterior.rows` and add a line to ``MAKERS``; ``Swept`` does the rest.
List either class in ``_core/names.py``, so that checkpoints may hold it, and in
``tests/contracts/test_protocols.py``, which tests all that is promised.
"""
