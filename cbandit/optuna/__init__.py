"""Optuna's studies with a policy of this library as their sampler.

Storage, trial states, workers and the dashboard are Optuna's; the policy is ours. All
that a policy needs is read from the study's trials each time, so that workers on many
machines come and go:

- what finished trials measured enters the beliefs;
- a trial keeps the estimate at its choice, and the multiplier is folded over trials by
  number, finished or not;
- what other workers are choosing at this moment is predicted, by asking for them;
- draws are keyed by seed and trial number;
- hyperparameters are fitted when the number of finished trials reaches certain numbers,
  which the belief's ``refit_every`` alone decides, to the trials that had finished by
  then.
"""

from importlib.util import find_spec

from cbandit.errors import MissingExtraError

if find_spec("optuna") is None:
    raise MissingExtraError("cb.optuna needs Optuna: pip install 'cbandit[optuna]'")

from cbandit.optuna.sampler import Sampler

__all__ = ["Sampler"]
