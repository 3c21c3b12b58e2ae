"""The CPU's round in compiled loops (numba): one trip through memory, no idle threads.

Optional: without numba the plain-torch references beside the callers do the same.
"""
