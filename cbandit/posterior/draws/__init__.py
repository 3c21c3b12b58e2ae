"""Joint draws from a prior or posterior.

They use a root of a small covariance, roots over a grid's axes, or random features.
"""
