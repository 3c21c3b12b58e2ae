"""Joint draws from a prior or posterior.

They come from a root of a small covariance, from roots of a grid's axes, or by random
features.
"""
