"""Experiments: several policies on one problem, from settings to tables and figures.

``experiment`` says what one is, ``papers`` holds those of the papers, ``study`` reads
those of users; ``catalogue`` lists them all. ``runner`` carries one out; ``results``,
``report``, ``compare`` and ``figures`` show what came out.
"""
