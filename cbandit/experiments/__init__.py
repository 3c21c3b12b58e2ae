"""Experiments: several policies on one problem, from settings to tables and figures.

``experiment`` defines what one is, ``papers`` has those of the papers, ``study`` reads
those of users, and ``catalogue`` lists all. ``runner`` runs one; ``results``,
``report``, ``compare`` and ``figures`` show its results.
"""
