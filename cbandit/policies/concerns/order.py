"""The order in which a policy calls the hooks of its concerns.

Actions beyond the set's known limits, retired and failed ones are left out first, then
those that do not fit a budget. Only among the rest are actions sought that keep the
limits with the stated confidence. What all these leave may be explored.
Outlying readings are moved to their bounds before they are compared with predictions.
The receipt is last: it notes the action that is played in the end.
"""

from __future__ import annotations

from typing import Any

from cbandit.policies.concerns.budgets import Budgets
from cbandit.policies.concerns.confidence import Confidence
from cbandit.policies.concerns.contradiction import Contradictions
from cbandit.policies.concerns.design import Design
from cbandit.policies.concerns.explore_share import ExploreShare
from cbandit.policies.concerns.failure_belief import FailureBelief
from cbandit.policies.concerns.failure_list import FailureList
from cbandit.policies.concerns.input_limits import InputLimits
from cbandit.policies.concerns.kept_limits import KeptLimits
from cbandit.policies.concerns.margin import Margin
from cbandit.policies.concerns.outliers import Outliers
from cbandit.policies.concerns.pending import Pending
from cbandit.policies.concerns.receipt import Receipt
from cbandit.policies.concerns.restarts import Restarts
from cbandit.policies.concerns.retirements import Retirements
from cbandit.policies.concerns.share import Share
from cbandit.policies.round import Concern, Concerns
from cbandit.policies.setup import Setup

ORDER: tuple[type[Concern[Any]], ...] = (
    KeptLimits,
    InputLimits,
    Retirements,
    FailureList,
    FailureBelief,
    Budgets,
    Share,
    Confidence,
    ExploreShare,
    Outliers,
    Restarts,
    Contradictions,
    Pending,
    Margin,
    Design,
    Receipt,
)

#: the help of all keywords that belong to a concern, by keyword
KEYWORDS = {name: text for kind in ORDER for name, text in kind.keywords.items()}


def concerns_of(setup: Setup) -> Concerns:
    """Return the concerns that a policy has, in their order."""
    kinds = [kind for kind in ORDER if setup.functions or not kind.needs_beliefs]
    concerns = [kind.of(setup) for kind in kinds]
    return Concerns(*(concern for concern in concerns if concern is not None))
