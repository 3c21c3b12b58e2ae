"""How joint samples are drawn.

From a root of a small covariance, from roots of a grid's axes, or by random features.
"""
