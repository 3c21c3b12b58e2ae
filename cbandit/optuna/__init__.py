"""A policy of this library as the sampler of Optuna's studies.

Storage, trial states, workers and the dashboard are Optuna's; the policy is ours. For
every choice the policy is built anew from the study's trials, so that workers on many
machines can come and go:

- the values measured in finished trials enter the beliefs;
- each trial stores the estimate at its choice; from these the multiplier is computed
  over trials in order of their numbers, finished or not;
- choices that other workers are making now are predicted, by making them here too;
- each draw depends on the seed and the trial's number alone;
- hyperparameters are fitted at certain numbers of finished trials, which the belief's
  ``refit_every`` sets, to the trials that had finished by then.
"""

from importlib.util import find_spec

from cbandit.errors import MissingExtraError

if find_spec("optuna") is None:
    raise MissingExtraError("cb.optuna needs Optuna: pip install 'cbandit[optuna]'")

from cbandit.optuna.sampler import Sampler

__all__ = ["Sampler"]
