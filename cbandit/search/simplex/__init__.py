"""Find the best distribution over actions: a linear programme with few constraints.

It is solved exactly, from two arms to ten million, even if they come in blocks.
"""
