"""When feedback counts: after a delay, or only for some rounds."""

from __future__ import annotations

from typing import Any

from cbandit._core import checks
from cbandit._core.hints import hinted


@hinted
class Delayed:
    """Feedback that comes later: rewards and costs, in any order (Guo et al. 2023).

    Every choice enters the beliefs when it is made, with stand-ins for its feedback:
    the reward's prior mean and the costs' thresholds. Feedback takes their place when
    it comes, but not after more than ``window`` rounds (``policy.late`` counts those).
    So estimates lie between the stand-in and the function, nearer to the function the
    more feedback comes in time: choose a window that nearly all feedback keeps.
    Feasible actions stay feasible, unless a cost's belief is standardised: then the
    average of what has come is the stand-in. Multipliers that move by observed costs
    (RPOL's) do so however late these come.

    An RKHS width becomes ``B + ((R + B_r) / sqrt(lam)) sqrt(2 gain + 2 ln(4 c /
    delta))`` or, in its small-lam form, ``B + (R + B_r) sqrt(2 (gain + 1 + ln(4 c /
    delta)))``; ``c`` is the number of functions, ``m + 1``. To either the term of the
    last choices is added, see ``weight``. The band is about ``rho f``, where ``rho`` is
    the share of feedback that comes in time. It is a guarantee for ``lam >= 1``; below,
    the any-lam form was never seen to fail, which is no proof, and the other fails.
    (The paper's own ``B_r`` is smaller, by a union over rounds that its proof lacks.)

    It is worth its price where the theory is wanted. Where nothing is late for long,
    ``cb.RPOL`` with no ``feedback=``, which counts outstanding choices by their
    deviation alone, violated half as much in the paper's own experiment, at some more
    regret (``cbandit reproduce guo-delayed``).

    Args:
        window: rounds, at least 1.
        weight: ``B_r``: the width grows by ``weight`` times the summed deviations at
            the last ``window`` choices. ``None``: with RKHS widths the theory's
            ``B + R sqrt(2 ln(4 c T / delta))`` (very wide), with any other 0.
    """

    def __init__(self, window: int, weight: Any = None) -> None:
        self.window = checks.whole("window", window)
        self.weight = None if weight is None else checks.nonnegative("weight", weight)

    def __repr__(self) -> str:
        return f"Delayed(window={self.window})"


@hinted
class Sliding:
    """Use of the last ``window`` rounds only, in a world that drifts (Guo et al. 2023).

    With RKHS widths the policy needs ``horizon=``, ``T``. Whichever ``form`` they
    have, the width is ``B + (R / sqrt(lam)) sqrt(2 gain + 2 ln(c T / delta))`` with the
    gain of the rounds in the window and ``c`` bounds that hold together, because each
    round has a window of its own.

    Args:
        window: rounds, at least 1.
        drift: an allowance added to the widths: a number or ``(*trials,)`` for every
            function; a pair ``(reward, costs)``, where ``costs`` may be one number per
            cost, ``(m,)`` or ``(*trials, m)``; one number per function, ``(1 + m,)`` or
            ``(*trials, 1 + m)``, the reward's first; or a callable of the round that
            gives one of these. See :func:`cbandit.confidence.drift_allowance` for the
            allowance of the theory, ``cb.confidence.drift_window`` for its window.
    """

    def __init__(self, window: int, drift: Any = None) -> None:
        self.window = checks.whole("window", window)
        fixed = () if drift is None or callable(drift) else drift
        if isinstance(fixed, tuple):
            for part in fixed:
                checks.nonnegative("drift", part)
        else:
            drift = checks.nonnegative("drift", fixed)
        self.drift = drift

    def __repr__(self) -> str:
        return f"Sliding(window={self.window})"
