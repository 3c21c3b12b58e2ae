"""Experiments: several policies on one problem, from settings to tables and figures.

``task`` says what an experiment is, ``papers`` holds those of the papers, ``catalogue``
lists them. ``runner`` carries one out; ``results``, ``figures`` and ``report`` show it.
"""
