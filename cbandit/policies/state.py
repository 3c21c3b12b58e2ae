"""The state of a policy, and that of a GP policy's rule."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from cbandit._core.randomness import Position
from cbandit.policies.packing import Place
from cbandit.policies.pricing import Waiting
from cbandit.posterior.observations import Part

__all__ = ["Arrivals", "Both", "GPState", "Now"]


class Now(NamedTuple):
    """All that rounds change.

    Args:
        t: the round last asked for.
        state: what the rule keeps.
        position: where the streams of draws are.
        heard: the serial number of the last item told that ``state`` has absorbed.
        settled: whether what time makes due is done.
    """

    t: int
    state: Any
    position: Position
    heard: int
    settled: bool = False


class Arrivals(NamedTuple):
    """Traces of feedback beside the beliefs.

    Args:
        late: ``(T,)``, how many values came too late to count.
        loose: feedback of some trials only, which waits for the rest of the news.
        recent: the points ``(T, d)`` of the last rounds, where they still count.
        beyond: which of the last readings were far outside what was expected,
            ``(RECENT, T, F)``, 1 above and -1 below; ``None``: nobody looks.
        extent: the least and the greatest reading that counted, ``(2, T, F)``.
    """

    late: Tensor
    loose: tuple[tuple[Place, Part], ...] = ()
    recent: tuple[Tensor, ...] = ()
    beyond: Tensor | None = None
    extent: Tensor | None = None


Both = tuple[Any, Arrivals]
"""The beliefs and what is beside them."""


class GPState(NamedTuple):
    """All that a GP policy keeps from round to round.

    Args:
        beliefs: about the reward and the costs.
        multiplier: what the last ``ask`` used, ``(T, m)``; at first what it will use.
        held: what feedback left behind beside the beliefs.
        estimate: of reward and costs where the last round chose, ``(T, 1 + m)``.
        arrived: by how much costs told since were above their thresholds, ``(T, m)``
            each, in the user's units, 0 in trials where nothing came.
        moved: the multiplier of the next ``ask``, where it is known already.
        own: what a policy keeps for itself.
        waiting: costs told before that have no unit yet.
    """

    beliefs: Any
    multiplier: Tensor
    held: Arrivals
    estimate: Tensor | None = None
    arrived: tuple[Tensor, ...] = ()
    moved: Tensor | None = None
    own: Any = None
    waiting: Waiting | None = None
