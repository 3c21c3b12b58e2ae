"""How many rounds a service loses that always fails in a quarter of its space.

    python benchmarks/outcomes_failures.py [--quick] [--json FILE]

A service has threads, memory, a batch size and a codec. Many threads with little memory
always fail, a quarter of the space; of all other settings 5 % of the tries fail at
random. Throughput is to be large, latency at most 10 (a little more than a third of the
space). Readings have a noise of 2 %. 50 rounds, ten seeds.

* lost: rounds that failed, the mean and the most over seeds.
* best: the throughput of the best setting measured that keeps the limit (noiseless),
  divided by that of the same rule without any failures, the median over seeds.

CKB and RPOL under ``cb.GP.default`` with ``failures=None`` (learned), and ``False``
(what has failed is never asked for again); Optuna's TPE and its GP sampler with the
same limit. The goal is to lose at most 8 rounds, 2.5 of them at random.

``--quick`` takes two seeds and 12 rounds.
"""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import cbandit as cb
from report import Row, row_of, say
from report import main as report_main

LIMIT, RANDOM, NOISE = 10.0, 0.05, 0.02
Setting = dict[str, Any]


@dataclass(frozen=True)
class Sizes:
    """How large it all is; the defaults are the full run's."""

    rounds: int = 50
    seeds: range = range(10)


QUICK = Sizes(12, range(2))
SPACE = cb.Space(
    threads=cb.Int(1, 64, log=True),
    memory=cb.Float(0.5, 8.0, log=True),
    batch=cb.Int(1, 100, log=True),
    codec=cb.Category("lz4", "zstd"),
)


def broken(x: Setting) -> bool:
    """Return whether a setting always fails."""
    return bool(x["threads"] > 8 and x["memory"] < 2.0)


def throughput(x: Setting) -> float:
    """Return the throughput of a setting."""
    threads, batch = math.log2(x["threads"]), math.log10(x["batch"])
    codec = 1.0 if x["codec"] == "lz4" else 0.85
    memory = math.log2(x["memory"])
    hill = math.exp(-(((threads - 4.3) / 2.2) ** 2) - ((memory - 2.0) / 2.5) ** 2)
    size = math.exp(-(((batch - 1.3) / 0.7) ** 2))
    return float(100 * codec * hill * (0.4 + 0.6 * size))


def latency(x: Setting) -> float:
    """Return the latency of a setting."""
    threads, batch = math.log2(x["threads"]), math.log10(x["batch"])
    slow = x["codec"] == "zstd"
    return float(4 + 5 * batch + 0.5 * (threads - 3) ** 2 + slow)


class Service:
    """A world of one seed: outcomes of settings, or failures.

    Args:
        seed: of noise and random failures.
        fails: whether anything fails.
    """

    def __init__(self, seed: int, fails: bool) -> None:
        self._generator, self._fails = torch.Generator().manual_seed(seed), fails
        self.lost, self.best = 0, 0.0

    def played(self, x: Setting) -> tuple[float, float] | None:
        """Return throughput and latency as read; ``None``: it failed."""
        draws = torch.randn(2, generator=self._generator).tolist()
        lucky = float(torch.rand((), generator=self._generator)) >= RANDOM
        if self._fails and (broken(x) or not lucky):
            self.lost += 1
            return None
        f, g = throughput(x), latency(x)
        if g <= LIMIT:
            self.best = max(self.best, f)
        return f * (1 + NOISE * draws[0]), g * (1 + NOISE * draws[1])


def ours(rule: Callable[..., Any], failures: bool | None) -> Callable[..., None]:
    """Return a run of one of our policies."""

    def run(world: Service, rounds: int, seed: int) -> None:
        gp = cb.GP.default(SPACE)
        policy = rule(
            SPACE,
            reward=gp,
            costs={"latency": gp},
            thresholds={"latency": LIMIT},
            seed=seed,
            failures=failures,
        )
        for _ in range(rounds):
            choice = policy.ask()
            outcome = world.played(choice.params)
            if outcome is None:
                policy.tell(choice, failed=True)
            else:
                policy.tell(choice, reward=outcome[0], cost={"latency": outcome[1]})

    return run


def optuna_run(name: str) -> Callable[..., None]:
    """Return a run of a sampler of Optuna's."""

    def run(world: Service, rounds: int, seed: int) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)

        def over(trial: Any) -> Sequence[float]:
            return [trial.user_attrs.get("over", 1.0)]

        def objective(trial: Any) -> float:
            x = {
                "threads": trial.suggest_int("threads", 1, 64, log=True),
                "memory": trial.suggest_float("memory", 0.5, 8.0, log=True),
                "batch": trial.suggest_int("batch", 1, 100, log=True),
                "codec": trial.suggest_categorical("codec", ["lz4", "zstd"]),
            }
            outcome = world.played(x)
            if outcome is None:
                raise ArithmeticError
            trial.set_user_attr("over", outcome[1] - LIMIT)
            return outcome[0]

        sampler = getattr(optuna.samplers, name)(seed=seed, constraints_func=over)
        study = optuna.create_study(sampler=sampler, direction="maximize")
        study.optimize(objective, n_trials=rounds, catch=ArithmeticError)

    return run


RUNS = {
    "CKB, failures=None": ours(cb.CKB, None),
    "CKB, failures=False": ours(cb.CKB, False),
    "RPOL, failures=None": ours(cb.RPOL, None),
    "RPOL, failures=False": ours(cb.RPOL, False),
    "Optuna TPE": optuna_run("TPESampler"),
    "Optuna GP": optuna_run("GPSampler"),
}


def measure(sizes: Sizes) -> list[Row]:
    """Return all rows."""
    rows, section = [], f"{sizes.rounds} rounds, {len(sizes.seeds)} seeds"
    for name, run in RUNS.items():
        say(name)
        lost, ratios, tops = [], [], []
        for seed in sizes.seeds:
            bests = []
            for fails in (True, False):
                world = Service(seed, fails)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    run(world, sizes.rounds, seed)
                bests.append(world.best)
                if fails:
                    lost.append(world.lost)
            ratios.append(bests[0] / max(bests[1], 1e-9))
            tops.append(bests[0])
        mean, ratio = statistics.mean(lost), statistics.median(ratios)
        top = statistics.median(tops)
        columns = (
            f"lost {mean:4.1f} (most {max(lost)}); best {top:5.1f}, {ratio:.3f} "
            f"of that without failures (least {min(ratios):.3f})"
        )
        account = {"lost": lost, "best": tops, "ratio": ratios}
        rows.append(row_of(section, name, columns=columns, account=account))
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    """Run the script."""
    report_main(__file__, __doc__, measure, Sizes(), QUICK, argv)


if __name__ == "__main__":
    main()
