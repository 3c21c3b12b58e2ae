"""The recipes of the documentation against the real packages, and a service's page."""

from __future__ import annotations

import re

import pytest
from places import ROOT

import cbandit as cb

PAGES = ROOT / "docs"
NOT_HERE = "{} is not installed: pip install 'cbandit[recipes]'"


def block(page, mark):
    """The names that the block of a page with ``mark`` in it leaves behind."""
    blocks = re.findall(r"```python\n(.*?)```", (PAGES / page).read_text(), flags=re.S)
    (code,) = [each for each in blocks if mark in each]
    names = {}
    exec(compile(code, page, "exec"), names)
    return names


def need(package):
    return pytest.importorskip(package, reason=NOT_HERE.format(package))


def policy_of():
    space = cb.Space(threads=cb.Int(1, 8))
    gp = cb.GP.default(space)
    costs, limits = {"ms": gp, "usd": gp}, {"ms": "<= 2", "usd": "<= 1"}
    return cb.RPOL(space, reward=gp, costs=costs, thresholds=limits)


def play(policy, rounds=4):
    """Some rounds, told apart, and one that stays open."""
    for _ in range(rounds):
        choice = policy.ask()
        policy.tell(choice, cost={"ms": 1.5, "usd": 0.25})
        policy.tell(choice, reward=2.0)
    policy.ask()


def test_prometheus():
    prometheus = need("prometheus_client")
    watch = block("integrations/monitoring.md", "prometheus")["watch_by_prometheus"]
    policy = policy_of()
    remove = watch(policy)
    play(policy)

    def value(name, **labels):
        return prometheus.REGISTRY.get_sample_value(name, labels)

    assert value("cbandit_events_total", event="ask") == 5
    assert value("cbandit_events_total", event="tell") == 8
    assert value("cbandit_cost_count", cost="ms") == 4
    assert value("cbandit_cost_sum", cost="usd") == 1.0
    assert value("cbandit_open") == 1
    assert b"cbandit_open 1.0" in prometheus.generate_latest()
    remove()
    policy.ask()
    assert value("cbandit_events_total", event="ask") == 5


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_mlflow(tmp_path):
    mlflow = need("mlflow")
    need("sqlalchemy")  # its store
    watch = block("integrations/monitoring.md", "mlflow")["watch_by_mlflow"]
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'mlflow.db'}")
    with mlflow.start_run() as run:
        policy = policy_of()
        remove = watch(policy)
        play(policy)
        remove()
    client = mlflow.MlflowClient()
    found = client.get_run(run.info.run_id).data
    assert found.params == {"policy": "RPOL-UCB", "seed": "0"}
    assert found.metrics == {"reward": 2.0, "ms": 1.5, "usd": 0.25}
    steps = [each.step for each in client.get_metric_history(run.info.run_id, "ms")]
    assert steps == [1, 2, 3, 4]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard(tmp_path):
    need("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    watch = block("integrations/monitoring.md", "SummaryWriter")["watch_by_tensorboard"]
    policy = policy_of()
    stop = watch(policy, str(tmp_path))
    play(policy)
    stop()
    found = EventAccumulator(str(tmp_path)).Reload()
    assert set(found.Tags()["scalars"]) == {"told/reward", "told/ms", "told/usd"}
    told = [(each.step, each.value) for each in found.Scalars("told/ms")]
    assert told == [(t, 1.5) for t in range(1, 5)]


class TestService:
    def test_a_shadow_books_no_budget(self, capsys):
        policy = block("guide/service.md", "instead of")["policy"]
        assert capsys.readouterr().out.count("instead of") == 20
        status = policy.budget["usd"]
        assert (status.spent, status.promised, status.left) == (0, 0, 50)
        assert status.rounds == 10_000
        assert policy.certificate()["usd"].told == 0
        assert (policy.multiplier == policy.multiplier[0]).all()
        served = policy.posterior(params=[{"model": "large", "batch": 4}])
        assert served.costs.mean.item() == pytest.approx(0.004, abs=1e-3)

    def test_a_restart(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        policy = block("guide/service.md", "service.ckpt")["policy"]
        assert policy.history()["state"].tolist() == ["told"]
        assert cb.load("service.ckpt").t == 1


def test_the_comparison_of_a_page(capsys):
    block("guide/simulate.md", "cb.compare(runs)")
    assert "rounds_in_violation" in capsys.readouterr().out
