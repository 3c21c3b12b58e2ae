"""The parts of stage-wise policies, which keep their limits in every round.

They are the base class, the safe action and its estimate, inflated bounds, and the
models: linear functions, independent arms, finite classes. Each model also searches for
the best action or distribution that is surely feasible under it.
"""
