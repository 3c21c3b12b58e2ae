"""Where kernel rows over a large set come from.

Stored, recomputed, or kept as factors over a grid's axes, behind one protocol.
"""
