"""Sets of actions: what can be chosen, how it is numbered and cut into stretches.

Geometry only: nothing in this room knows what a reward is.
"""

from cbandit.actions.base import Actions, checked_index
from cbandit.actions.box import Box
from cbandit.actions.finite import Finite
from cbandit.actions.grid import ProductGrid
from cbandit.actions.star import Star

__all__ = ["Actions", "Box", "Finite", "ProductGrid", "Star", "checked_index"]
