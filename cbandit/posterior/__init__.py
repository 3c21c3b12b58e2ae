"""Beliefs kept current over an action set, refitted, and handed to BoTorch.

Beliefs are a value (:mod:`~cbandit.posterior.beliefs`). Their large arrays are in an
engine, which says which log of observations the arrays hold.
"""

from cbandit.posterior.engines.choice import describe_engines

__all__ = ["describe_engines"]
