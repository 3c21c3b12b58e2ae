"""The receipt: is a limit kept, since when is it not, and how sure is that?

One pattern serves all of it. For a fixed bet ``l``, ``exp(l S - cumulant(l))`` is a
supermartingale, and so is a mixture over bets with fixed weights. By Ville's inequality
it ever exceeds ``1 / a`` with probability at most ``a``. A bound is the value at which
it equals ``1 / a``, and holds at all times at once.

``bets`` has these mixtures; ``sums`` what is kept of the rounds of a policy, O(1) a
round; ``certificate`` what users read; ``alarm`` when limits are broken from some round
on.
"""

from cbandit.receipt.alarm import Alarm
from cbandit.receipt.certificate import Bound, Certificate

__all__ = ["Alarm", "Bound", "Certificate"]
