"""Find the best distribution over actions: a linear programme with few constraints.

The solution is exact, for two to ten million actions, which may come in blocks.
"""
