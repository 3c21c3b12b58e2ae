"""Kernel rows over a large set.

They are stored, recomputed, or kept as factors over a grid's axes: one protocol.
"""
