"""A policy of this library as the sampler of Optuna's studies.

Storage, trial states, workers and the dashboard are Optuna's; the policy is ours. All
that a policy needs is read from the study's trials each time, so that workers on many
machines can come and go:

- what finished trials measured enters the beliefs;
- a trial keeps the estimate at its choice, and the multiplier is folded over trials by
  number, finished or not;
- choices that other workers are making now are predicted, by making them here too;
- draws are keyed by seed and trial number;
- hyperparameters are fitted when the number of finished trials reaches certain numbers,
  set by the belief's ``refit_every`` alone, to the trials that had finished by then.
  then.
"""

from importlib.util import find_spec

from cbandit.errors import MissingExtraError

if find_spec("optuna") is None:
    raise MissingExtraError("cb.optuna needs Optuna: pip install 'cbandit[optuna]'")

from cbandit.optuna.sampler import Sampler

__all__ = ["Sampler"]
