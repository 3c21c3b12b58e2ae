"""Beliefs kept current over an action set, refitted, and handed to BoTorch.

Beliefs are a value (:mod:`~cbandit.posterior.beliefs`); the large arrays behind them
live in an engine, which says for which log of observations it stands.
"""

from cbandit.posterior.engines.choice import describe_engines

__all__ = ["describe_engines"]
