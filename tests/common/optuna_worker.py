"""One worker on a study that several share: ``optuna_worker.py STORAGE TRIALS``."""

from __future__ import annotations

import sys
import time
import warnings

import optuna

import cbandit as cb

LIMITS = {"latency": "<= 1"}


def objective(trial: optuna.Trial) -> float:
    """Throughput and latency of a number of threads; 9 is the best within 1."""
    threads = trial.suggest_int("threads", 1, 16)
    time.sleep(0.05)
    trial.set_user_attr("latency", (threads / 9) ** 2)
    return threads**0.5


def opened(url: str) -> optuna.storages.RDBStorage:
    """Return the storage, in which a dead worker's trials fail after 3 s."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        beats = {"heartbeat_interval": 1, "grace_period": 3}
        return optuna.storages.RDBStorage(url, **beats)


def joined(storage: optuna.storages.RDBStorage) -> optuna.Study:
    """Return the study in this storage, with a sampler of its own."""
    sampler = cb.optuna.Sampler("RPOL", limits=LIMITS)
    return optuna.create_study(
        study_name="shared",
        storage=storage,
        sampler=sampler,
        direction="maximize",
        load_if_exists=True,
    )


if __name__ == "__main__":
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    joined(opened(sys.argv[1])).optimize(objective, n_trials=int(sys.argv[2]))
