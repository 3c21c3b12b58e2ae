"""Simulation: a policy plays a problem, and every round of it is accounted for.

``loop`` is the only loop; ``world`` asks the problem, ``delivery`` brings late
feedback, ``tape`` records, ``resume`` writes checkpoints. ``run`` is the result, which
``plots`` draws.
"""
