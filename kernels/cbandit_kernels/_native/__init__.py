"""The CPU's round in compiled loops (numba): one pass through memory, no idle threads.

Optional: without numba the plain-torch references do the same.
"""
