"""The papers' experiments, one file per paper: problems, policies, sizes, figures.

Each file ends with ``EXPERIMENTS``. The numbers that a paper leaves open stand there
and in the problem's docstring, marked "ours".
"""
