"""One request of a router: ask and tell in a context, beside paretobandit.

    python benchmarks/speed/contexts.py [--quick] [--json FILE]

Goals: with 26 numbers, three models, a reward and a cost on one core, ``ask`` and
``tell`` take no longer than ``route`` and ``process_feedback`` of paretobandit; with 64
numbers and 1 000 models they take 6 ms in float64 and 3 ms in float32. The price is
solved over the last 500 contexts, or as many as make 32 768 choices. paretobandit is
timed where it can be imported. It prices models by a list, and so learns one function,
not two.

Contenders take turns round by round. Timings are medians of the second half. Checks:
what CKB believes in the end is what a policy believes that was shown the same data at
once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from statistics import median
from typing import Any

import torch
from torch import Tensor

import cbandit as cb
from benchmarks.common.report import Row, check_of, row_of, say
from benchmarks.common.report import main as report_main

F64, LIMIT = torch.float64, 0.5
Answer = Callable[[int], tuple[float, float]]
Router = Callable[[Tensor, Answer], None]


@dataclass(frozen=True)
class Sizes:
    """How large it all is; the defaults are the full run's."""

    rounds: int = 2_000
    many: int = 1_000  # models of the large router
    many_rounds: int = 200


QUICK = Sizes(300, 200, 40)


class World:
    """Rewards and costs that are linear in the context, with noise."""

    def __init__(self, models: int, numbers: int, rounds: int) -> None:
        generator = torch.Generator().manual_seed(0)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=F64)

        self.contexts = normal(rounds, numbers)
        slopes = 0.4 * normal(2, models, numbers) / numbers**0.5
        levels = torch.rand(2, models, 1, generator=generator, dtype=F64)
        self.outcomes = slopes @ self.contexts.mT + levels  # 2 x K x n
        self.outcomes += 0.1 * normal(*self.outcomes.shape)
        self.outcomes[0] = self.outcomes[0].sigmoid()  # paretobandit's are in [0, 1]

    def answer(self, t: int) -> Answer:
        """Return the reward and the cost of a model in round ``t``, as a function."""
        reward, cost = self.outcomes[..., t].tolist()
        return lambda model: (reward[model], cost[model])


class Ours:
    """A policy of the library as a router; it keeps what it was told.

    Args:
        kind: of the policy.
        models: how many.
        numbers: of a context.
        dtype: of the arrays.
        fade: see :meth:`cbandit.GP.linear`.
    """

    def __init__(
        self,
        kind: type[cb.CKB] | type[cb.RPOL],
        models: int,
        numbers: int,
        dtype: str = "float64",
        fade: float | None = None,
    ) -> None:
        names = [f"model-{k}" for k in range(models)]
        space = cb.Space(model=cb.Category(*names), prompt=cb.Context(numbers))
        belief = cb.GP.linear(space, fade=fade)
        self.policy = kind(
            space, reward=belief, costs=belief, thresholds=LIMIT, dtype=dtype
        )
        self.told: list[tuple[Tensor, float, float]] = []

    def __call__(self, context: Tensor, answer: Answer) -> None:
        choice = self.policy.ask(context=context)
        model = int(choice.x[-1])  # numbers come first
        reward, cost = answer(model)
        self.policy.tell(choice, reward=reward, cost=cost)
        self.told.append((choice.x, reward, cost))

    def off(self, context: Tensor) -> float:
        """Return how far its belief is from one of all data at once, in spreads."""
        x, reward, cost = zip(*self.told, strict=True)
        space, belief = self.policy.actions, cb.GP.linear(self.policy.actions)
        fresh = cb.RPOL(space, reward=belief, costs=belief)
        fresh.observe(x=torch.stack(x), reward=list(reward), cost=list(cost))
        both = [p.posterior(context=context).reward for p in (self.policy, fresh)]
        gaps = [(a - b).abs().max() for a, b in zip(*map(moments, both), strict=True)]
        return float(max(gaps)) / torch.tensor(reward).std().item()


def moments(marginal: Any) -> tuple[Tensor, Tensor]:
    """Return means and deviations."""
    return marginal.mean, marginal.std


def paretobandit(models: int, numbers: int) -> Router | None:
    """Return its router, cold, with its pacer; ``None``: it is not installed."""
    if find_spec("pareto_bandit") is None:
        return None
    from pareto_bandit import BanditRouter
    from pareto_bandit.budget_pacer import BudgetPacer
    from pareto_bandit.feature_service import FeatureService

    logging.getLogger("pareto_bandit").setLevel(logging.ERROR)
    prices = {
        str(k): {"input_cost_per_m": 0.1 * (k + 1), "output_cost_per_m": 0.4 * (k + 1)}
        for k in range(models)
    }
    router = BanditRouter.create(
        model_registry=prices,
        priors="none",
        feature_service=FeatureService.for_precomputed(dimension=numbers),
        bandit_seed=0,
        budget_pacer=BudgetPacer(target_avg_spend_usd=3e-4),
    )

    def play(context: Tensor, answer: Answer) -> None:
        model, log = router.route(context.numpy())
        router.process_feedback(log.request_id, answer(int(model))[0])

    return play


def played(world: World, routers: dict[str, Router]) -> dict[str, float]:
    """Return the median seconds of a round of each, which take turns."""
    seconds: dict[str, list[float]] = {name: [] for name in routers}
    count = len(world.contexts)
    for t, context in enumerate(world.contexts):
        answer = world.answer(t)
        for name, router in routers.items():
            begun = time.perf_counter()
            router(context, answer)
            seconds[name].append(time.perf_counter() - begun)
    return {name: median(each[count // 2 :]) for name, each in seconds.items()}


def rows_of(
    section: str, world: World, routers: dict[str, Router], goals: dict[str, float]
) -> list[Row]:
    """Return a row for each router; ``goals`` are in seconds."""
    say(section)
    seconds, rows = played(world, routers), []
    peer = seconds.get("paretobandit")
    for name, router in routers.items():
        checks = []
        if isinstance(router, Ours) and name in ("CKB", "CKB, float64"):
            off = router.off(world.contexts[-1])
            checks.append(check_of("belief against all data at once", off, 1e-8))
        more: dict[str, Any] = {"checks": checks, "ours": isinstance(router, Ours)}
        if name in goals:
            more |= {"ratio": seconds[name] / goals[name], "goal": ("<=", 1.0)}
            more["note"] = f"ratio: to {1e3 * goals[name]:g} ms"
        elif peer is not None and name != "paretobandit":
            more |= {"ratio": seconds[name] / peer, "goal": ("<=", 1.0)}
            more["note"] = "ratio: to paretobandit"
        rows.append(row_of(section, name, seconds[name], **more))
    return rows


def measure(sizes: Sizes) -> list[Row]:
    """All rows."""
    torch.set_num_threads(1)
    few: dict[str, Router] = {
        "CKB": Ours(cb.CKB, 3, 26),
        "CKB, fade=0.997": Ours(cb.CKB, 3, 26, fade=0.997),
        "RPOL": Ours(cb.RPOL, 3, 26),
    }
    many: dict[str, Router] = {
        "CKB, float64": Ours(cb.CKB, sizes.many, 64),
        "CKB, float32": Ours(cb.CKB, sizes.many, 64, "float32"),
    }
    for routers, models, numbers in ((few, 3, 26), (many, sizes.many, 64)):
        peer = paretobandit(models, numbers)
        if peer is not None:
            routers["paretobandit"] = peer
    goals = {"CKB, float64": 6e-3, "CKB, float32": 3e-3} if sizes.many == 1000 else {}
    return [
        *rows_of(
            "ask + tell, 3 models, 26 numbers", World(3, 26, sizes.rounds), few, {}
        ),
        *rows_of(
            f"ask + tell, {sizes.many} models, 64 numbers",
            World(sizes.many, 64, sizes.many_rounds),
            many,
            goals,
        ),
    ]


def main(argv: Sequence[str] | None = None) -> None:
    """Run the script."""
    report_main(__file__, __doc__, measure, Sizes(), QUICK, argv)


if __name__ == "__main__":
    main()
