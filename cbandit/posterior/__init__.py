"""Beliefs kept current over an action set: four engines, one answer."""

from cbandit.posterior.engines.choice import describe_engines

__all__ = ["describe_engines"]
