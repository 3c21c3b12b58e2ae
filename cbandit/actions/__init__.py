"""What can be chosen: sets of actions, how they are numbered and cut into stretches.

Geometry only: nothing in this room knows what a reward is.
"""

from cbandit.actions.sets import Actions, Box, Finite, ProductGrid, Star, checked_index

__all__ = ["Actions", "Box", "Finite", "ProductGrid", "Star", "checked_index"]
