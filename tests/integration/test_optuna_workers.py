"""Several processes on one Optuna study, on SQLite and on a real PostgreSQL."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import pytest
from places import COMMON

optuna = pytest.importorskip("optuna")
from optuna.trial import TrialState  # noqa: E402
from optuna_worker import joined, objective, opened  # noqa: E402

WORKER = COMMON / "optuna_worker.py"
EACH = 6


@pytest.fixture
def sqlite(tmp_path):
    return f"sqlite:///{tmp_path}/study.db"


@pytest.fixture
def postgresql():
    pgserver = pytest.importorskip("pgserver")
    # the server refuses to run as root, and its own user must reach the folder
    with tempfile.TemporaryDirectory(prefix="pg-") as folder:
        Path(folder).chmod(0o755)
        server = pgserver.get_server(Path(folder) / "data", cleanup_mode="stop")
        yield server.get_uri().replace("postgresql://", "postgresql+psycopg://")
        server.cleanup()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def storage(url):
    made = opened(url)
    yield made
    made.remove_session()
    made.engine.dispose()


def worker(url, trials=EACH):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(WORKER), url, str(trials)]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE)


def finished(study):
    return len(study.get_trials(deepcopy=False, states=[TrialState.COMPLETE]))


@pytest.mark.dist
@pytest.mark.slow
def test_four_workers_one_killed(url, storage):
    study = joined(storage)
    study.optimize(objective, n_trials=1)
    workers = [worker(url) for _ in range(4)]
    deadline = time.monotonic() + 120
    while finished(study) < 6 and time.monotonic() < deadline:
        time.sleep(0.1)
    workers[0].send_signal(signal.SIGKILL)
    for each in workers[1:]:
        said = each.communicate(timeout=240)[1].decode()
        assert each.returncode == 0, said
    workers[0].communicate()
    # a fresh process goes on, and what the killed one left running has failed by then
    time.sleep(3.5)
    again = joined(storage)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of stale trials
        again.optimize(objective, n_trials=3)
    states = [trial.state for trial in again.trials]
    assert states.count(TrialState.COMPLETE) >= 1 + 3 * EACH + 3
    # one that was killed before its first heartbeat runs for ever, to Optuna
    assert states.count(TrialState.RUNNING) <= 1
    assert set(states) <= {TrialState.COMPLETE, TrialState.FAIL, TrialState.RUNNING}
    assert again.best_trial.params["threads"] == 9
    last = [t for t in again.trials if t.state == TrialState.COMPLETE][-8:]
    assert sum(t.user_attrs["latency"] > 1 for t in last) <= 2
    # who has the storage has the policy
    both = [joined(storage).sampler.policy(again) for _ in range(2)]
    assert both[0].multiplier.tolist() == both[1].multiplier.tolist()
    assert both[0].ask().params == both[1].ask().params
