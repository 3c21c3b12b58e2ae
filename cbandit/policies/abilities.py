"""Abilities: what a class of policies can do, and what it refuses.

A class states its abilities as ``abilities``; a derived class says only what differs:
``abilities = replace(CKB.abilities, hallucinates=False)``. A class that states none
inherits those of its base; ``acquires`` and ``moves`` follow from the methods that it
defines.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace

from cbandit.explore import TS, UCB, Explore, Rand

DEFAULT_EXPLORE = UCB(1.0)  # mean plus one standard deviation


@dataclass(frozen=True)
class Abilities:
    """The abilities of a class of policies, and what it refuses.

    Args:
        budgets: whether thresholds may be budgets.
        categories: whether values of a category may be added and retired.
        contexts: whether the set may have contexts.
        partial_costs: whether costs of one choice may be told one by one.
        boxes: whether the set may be a Box. This field and those below are for policies
            on GP beliefs.
        shards: whether processes may share the set; otherwise each holds all of it.
        by_score: whether the policy plays the action of greatest score. Only then can
            concerns put a :class:`Fence` around what may be chosen.
        acquires: whether the class defines ``acquire``, which computes the score.
        moves: whether the class defines ``move``, which updates a multiplier.
        told_costs: whether ``move`` uses the costs that users told.
        counts_epoch: whether ``move`` gets the round's number within its epoch, not
            within the run.
        outcomes: whether outcomes may be binary or counted.
        failures: whether the policy can form a belief about which actions fail.
        readings: whether beliefs are about the values that users tell. Then outliers
            and contradictions are found, and multipliers are in the beliefs' units.
        hallucinates: whether ``pending="hallucinate"`` is the default where it works.
        explores: the kinds of exploration that the class takes.
        explore: the default exploration.
        cautious: the default exploration where all beliefs come from
            :meth:`cbandit.GP.default` and feedback is not delayed; Thompson sampling
            without a setting for costs becomes ``TS.cautious`` there. ``None``:
            ``explore`` is the default there too.
        credit: by how many deviations of a round's cost a window may exceed its limit
            before :meth:`cbandit.Policy.watch` calls it broken, unless the user says.
        refuses: what the class does not take, with the reason: ``"contexts"``,
            ``"design"``, ``"limit"``, ``"noise"``, ``"Delayed"``, ``"Sliding"``,
            ``"hallucinate"``, ``"caution"`` (a margin, or a negative cost_beta), or
            whatever else a concern's ``of`` looks up here.
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
    explore: Explore = DEFAULT_EXPLORE
    cautious: Explore | None = None
    credit: float = 0.0
    refuses: Mapping[str, str] = field(default_factory=dict)

    def with_methods(self, names: Container[str]) -> Abilities:
        """Return the abilities of a derived class that defines methods of these names.

        A class defines one of ``score`` and ``acquire``, which replaces its base's.
        """
        acquires, moves = "acquire" in names, "move" in names
        return replace(
            self,
            acquires=acquires or (self.acquires and "score" not in names),
            moves=self.moves or moves,
            told_costs=self.told_costs or moves,
        )


#: abilities of a policy on GP beliefs whose rule plays no greatest score
OWN_RULE = Abilities(
    categories=True,
    partial_costs=True,
    boxes=True,
    told_costs=True,
    readings=True,
)
#: abilities of a policy on GP beliefs that plays the action of greatest score
BY_SCORE = replace(
    OWN_RULE,
    budgets=True,
    contexts=True,
    shards=True,
    by_score=True,
    outcomes=True,
    failures=True,
)

#: why policies with pessimistic bounds refuse "caution"
PESSIMISTIC_REASON = "its bounds of costs are pessimistic already; give their width"
#: what safe policies refuse, with the reasons
SAFE_REFUSES = {
    "design": "it plays only what it believes safe, from its first round on",
    "limit": "what it holds for safe is for the limits that it was built with",
}
