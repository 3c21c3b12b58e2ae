"""Sets of actions: their coordinates, their numbers, their cuts into blocks.

Nothing in this folder knows about rewards.
"""

from cbandit.actions.base import Actions, checked_actions, checked_index
from cbandit.actions.box import Box
from cbandit.actions.contextual import Contextual, Shown, in_context_of
from cbandit.actions.design import (
    design_points,
    designed_number,
    designed_point,
    spread_points,
)
from cbandit.actions.finite import Finite
from cbandit.actions.grid import ProductGrid
from cbandit.actions.linear import LinearLimits
from cbandit.actions.middle import nearest_to_middle, point_in_middle
from cbandit.actions.names import (
    Category,
    Context,
    Float,
    Int,
    Names,
    is_category,
    plain,
)
from cbandit.actions.polytope import Polytope
from cbandit.actions.space import Space, with_value
from cbandit.actions.star import Star
from cbandit.actions.unit import Unit, reach

__all__ = [
    "Actions",
    "Box",
    "Category",
    "Context",
    "Contextual",
    "Finite",
    "Float",
    "Int",
    "LinearLimits",
    "Names",
    "Polytope",
    "ProductGrid",
    "Shown",
    "Space",
    "Star",
    "Unit",
    "checked_actions",
    "checked_index",
    "design_points",
    "designed_number",
    "designed_point",
    "in_context_of",
    "is_category",
    "nearest_to_middle",
    "plain",
    "point_in_middle",
    "reach",
    "spread_points",
    "with_value",
]
