"""The best distribution over actions: a linear programme with few constraints.

Exact from two arms to ten million, and over arms that come block by block.
"""
