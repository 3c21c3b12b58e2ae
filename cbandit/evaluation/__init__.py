"""Would another policy keep the limits, and earn more? Answers from a log.

``candidates`` reads what a candidate would choose in each round of a log; ``rounds``
holds what is asked of a log again and again; ``evaluate`` and ``gate`` are the two
answers. The bets that both rest on are in ``receipt/off_policy.py``.
"""

from cbandit.evaluation.evaluate import Evaluation, Value, evaluate
from cbandit.evaluation.gate import Gate, Judgement, Verdict, gate

__all__ = ["Evaluation", "Gate", "Judgement", "Value", "Verdict", "evaluate", "gate"]
