"""The machinery of stage-wise policies, which keep their limits in every round.

It is the base class, the safe action and its estimate, inflated bounds, and the models:
linear functions, independent arms, finite classes. Each model also finds the best
action or distribution that surely keeps the limits.
"""
