"""Abilities: a class of policies states once what it can do.

A class states them as ``abilities``; a derived class says only what differs:
``abilities = replace(CKB.abilities, hallucinates=False)``. A class that says nothing
has those of its base, and ``acquire`` and ``move`` if it defines them.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace

from cbandit.explore import TS, UCB, Explore, Rand

ONE_SPREAD = UCB(1.0)


@dataclass(frozen=True)
class Abilities:
    """The statement of what a class of policies can do, and of what it refuses.

    Args:
        budgets: whether thresholds may be budgets.
        categories: whether categories may come and go.
        contexts: whether the set may have contexts.
        partial_costs: whether costs of one choice may come one by one.
        boxes: whether it chooses from a Box. This and what follows is for policies on
            GP beliefs.
        shards: whether processes may share the set; otherwise each keeps all of it.
        by_score: whether it plays the greatest score, and not by a rule of its own.
            Only then can concerns narrow what may be chosen.
        acquires: whether it defines ``acquire``, whose values are the score.
        moves: whether it defines ``move``, so that there is a multiplier.
        told_costs: whether ``move`` uses the costs told.
        counts_epoch: whether ``move`` gets the number of the round in its epoch.
        outcomes: whether outcomes may be binary or counted.
        failures: whether a belief about failures can be formed from its beliefs.
        readings: whether its beliefs are about the values that users tell, so that
            outliers and contradictions show, and multipliers are in their units.
        hallucinates: whether ``pending="hallucinate"`` is the default where it works.
        explores: the kinds of exploration that it takes.
        explore: the default exploration.
        cautious: the default where all beliefs are :meth:`cbandit.GP.default`'s, unless
            feedback is delayed; draws without a setting for costs become
            ``TS.cautious`` there. ``None``: ``explore``.
        refuses: what it does not take, with the reason: ``"contexts"``, ``"design"``,
            ``"limit"``, ``"noise"``, ``"Delayed"``, ``"Sliding"``, ``"hallucinate"`` or
            ``"caution"`` (a margin, or a negative cost_beta).
    """

    budgets: bool = False
    categories: bool = False
    contexts: bool = False
    partial_costs: bool = False
    boxes: bool = False
    shards: bool = False
    by_score: bool = False
    acquires: bool = False
    moves: bool = False
    told_costs: bool = False
    counts_epoch: bool = False
    outcomes: bool = False
    failures: bool = False
    readings: bool = False
    hallucinates: bool = False
    explores: tuple[type[Explore], ...] = (UCB, TS, Rand)
    explore: Explore = ONE_SPREAD
    cautious: Explore | None = None
    refuses: Mapping[str, str] = field(default_factory=dict)

    def defining(self, names: Container[str]) -> Abilities:
        """Return the abilities of a derived class that defines these names.

        Of ``score`` and ``acquire`` a class defines one, which replaces its base's.
        """
        acquires, moves = "acquire" in names, "move" in names
        return replace(
            self,
            acquires=acquires or (self.acquires and "score" not in names),
            moves=self.moves or moves,
            told_costs=self.told_costs or moves,
        )


#: of a rule on GP beliefs that chooses in a way of its own
OWN_CHOICE = Abilities(
    categories=True,
    partial_costs=True,
    boxes=True,
    told_costs=True,
    readings=True,
)
#: of a rule on GP beliefs that plays the greatest score
GREATEST = replace(
    OWN_CHOICE,
    budgets=True,
    contexts=True,
    shards=True,
    by_score=True,
    outcomes=True,
    failures=True,
)

PESSIMISTIC = "its bounds of costs are pessimistic already; give their width"
#: what policies that play only what they believe safe refuse
SAFE_REFUSES = {
    "design": "it plays only what it believes safe, from its first round on",
    "limit": "what it holds for safe is for the limits that it was built with",
}
