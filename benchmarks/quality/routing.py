"""Requests to language models under a budget, beside ParetoBandit's own router.

    python benchmarks/quality/routing.py [--quick] [--json FILE] [--seeds N]
                                         [--runs FILE]

The data come with ``paretobandit``: three models, 1 785 requests to learn on, then
1 824 to count. Both learn from the first request to the last, know nothing before, see
the same 25 numbers of each prompt in the same order, and pay for what they learn. Seven
budgets, dollars a request, lie evenly (on a log scale) between the mean prices of the
cheapest and the dearest model. CKB judges costs by their mean and a quarter of a
deviation (``CAUTION``), with ``cb.GP.linear``; the router runs with the settings that
its package names for a cold start and, as in the package's demonstration of budgets,
without a fixed cost penalty.

The quarter, and the ``constant=25`` of ``cb.GP.linear``, were chosen on the requests to
learn on alone. The target makes up for a tenth of the budget at most.

Variants, at three of the budgets:

* ``late``: rewards and costs come 50 requests late. The router's pacer adds up costs as
  they are told, and its price may swing between 0 and its bound;
* ``missing``: half of the rewards never come, costs do;
* ``cut``: from the middle of the counted requests on the dearest model's price is a
  tenth, and the middle model's quality is .25 lower; both learners forget a little
  (``fade=.997``), the router as always. What counts is the mean reward from 200
  requests after the change on;
* ``fourth``: the middle model is added when half of the counted requests are over. The
  router's package has no such entry in its priors either: it is told the price. Counted
  as in ``cut``;
* ``two``: a second limit, on the mean latency, which is **synthesised**: .4, .9 and 2.5
  seconds, times (1 + the request's dollars over that model's mean) / 2, times a
  log-normal factor of deviation .3; at most 1.1 seconds on average. The router has no
  limit on averages of it and keeps the budget alone.

Each chunk of seeds is a line of FILE (default ``routing_runs.jsonl``): what is there is
not run again, so that a run may be cut short and go on. Rewards are means over seeds,
differences are paired by seed, +- one standard error. ``--quick`` has a few requests,
two budgets and two seeds.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import cbandit as cb
from benchmarks.common.report import Row, result_of, row_of, say, table, write
from cbandit.experiments.papers.routing import CAUTION, PRICES, ParetoRouter
from cbandit.problems.language_models import Requests, requests

LATE = 50  # requests
SETTLED = 200  # requests after a change
LATENCY, LIMIT = (0.4, 0.9, 2.5), 1.1  # seconds
VARIANTS = ("plain", "late", "missing", "cut", "fourth", "two")
NAMES = ("router", "cbandit")
CHUNK = 5  # seeds that run side by side, at all budgets


class World(NamedTuple):
    """The outcomes of one variant, before and after it changes.

    Args:
        prompts: ``(n, d)``.
        rewards: ``(2, n, K)``.
        costs: ``(2, n, m, K)``, dollars first.
        first: how many requests there are to learn on.
        change: how many of the counted requests come before the change.
    """

    prompts: Tensor
    rewards: Tensor
    costs: Tensor
    first: int
    change: int


def world_of(known: Requests, variant: str, quick: bool) -> World:
    """Return what happens in a variant."""
    if quick:
        rows = torch.cat([torch.arange(150), known.first + torch.arange(150)])
        known = Requests(
            known.models,
            known.prompts[rows],
            known.rewards[rows],
            known.usd[rows],
            150,
        )
    rewards = known.rewards.expand(2, -1, -1).clone()
    costs = known.usd.unsqueeze(1).expand(2, -1, -1, -1).clone()
    if variant == "cut":
        rewards[1, :, 1] = (rewards[1, :, 1] - 0.25).clamp_min(0)
        costs[1, :, 0, 2] /= 10
    if variant == "two":
        generator = torch.Generator().manual_seed(0)
        noise = torch.randn(known.usd.shape, generator=generator).double()
        length = (1 + known.usd / known.usd.mean(0)) / 2  # long answers cost more
        seconds = torch.tensor(LATENCY).double() * length * (0.3 * noise).exp()
        costs = torch.cat([costs, seconds[None, :, None].expand(2, -1, -1, -1)], 2)
    counted = len(known.prompts) - known.first
    return World(known.prompts, rewards, costs, known.first, counted // 2)


def policy_of(name: str, world: World, variant: str, budgets: Tensor, seed: int) -> Any:
    """Return a policy for one trial a budget, ``(T,)``."""
    new = variant == "fourth"
    models = ["small", "large", "middle"] if new else ["small", "middle", "large"]
    if new and name == "cbandit":
        del models[2]
    d, m = world.prompts.shape[1], world.costs.shape[2]
    space = cb.Space(model=cb.Category(*models), prompt=cb.Context(d))
    limits = torch.stack([budgets, torch.full_like(budgets, LIMIT)], -1)[:, :m]
    shared: dict[str, Any] = {"trials": len(budgets), "seed": seed}
    if name == "router":
        prices = (PRICES[0], PRICES[2], PRICES[1]) if new else PRICES
        return ParetoRouter(
            space,
            costs=m,
            prices=prices,
            thresholds=limits,
            known=len(models) - new,
            **shared,
        )
    fade = 0.997 if variant == "cut" else None
    gp = cb.GP.linear(space, fade=fade, constant=d)  # levels as uncertain as slopes
    goal: dict[str, Any] = {"reward": gp, "costs": [gp] * m, "thresholds": limits}
    return cb.CKB(space, **goal, dual_beta=CAUTION, **shared)


def play(
    name: str, world: World, variant: str, budgets: Tensor, seeds: Sequence[int]
) -> Tensor:
    """Return reward, costs and model of each request, ``(len(seeds), B, n, 2 + m)``."""
    each = len(budgets)
    policy = policy_of(
        name, world, variant, budgets.repeat(len(seeds)), 1000 + seeds[0]
    )
    count, middle = len(world.prompts), world.first + world.change
    orders, hidden = [], []
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        learned = torch.randperm(world.first, generator=generator)
        rest = torch.randperm(count - world.first, generator=generator)
        orders.append(torch.cat([learned, world.first + rest]))
        hidden.append(torch.rand(count, generator=generator) < 0.5)
    order = torch.stack(orders).repeat_interleave(each, 0)  # T x n
    lost = torch.stack(hidden).repeat_interleave(each, 0)
    model = [0, 2, 1] if variant == "fourth" else [0, 1, 2]  # by number of the choice
    wait = LATE if variant == "late" else 0
    out, post = [], deque[tuple[Any, Tensor, Tensor]]()
    for t in range(count):
        if t == middle and variant == "fourth":
            if name == "router":
                policy.register(2)
            else:
                policy.add("model", "middle")
        rows, now = order[:, t], int(t >= middle)
        choice = policy.ask(context={"prompt": world.prompts[rows]})
        arm = torch.tensor(model)[choice.index]
        reward, cost = world.rewards[now, rows, arm], world.costs[now, rows, :, arm]
        out.append(torch.cat([reward[:, None], cost, arm[:, None]], -1))
        post.append((choice, reward, cost))
        if len(post) > wait:
            choice, reward, cost = post.popleft()
            if variant == "missing":
                policy.tell(choice, cost=cost)
                came = ~lost[:, t]
                if bool(came.any()):
                    policy.tell(choice, reward=reward, where=came)
            else:
                policy.tell(choice, reward=reward, cost=cost)
    rounds: Tensor = torch.stack(out, 1).unflatten(0, (len(seeds), each))
    return rounds


def summary(world: World, rounds: Tensor) -> dict[str, Any]:
    """Return means over the counted requests, each by seed and budget."""
    counted = rounds[:, :, world.first :]
    settled = counted[:, :, world.change + min(SETTLED, world.change // 2) :]
    share = [(counted[..., -1] == k).double().mean(-1).tolist() for k in range(3)]
    return {
        "reward": counted[..., 0].mean(-1).tolist(),
        "costs": counted[..., 1:-1].mean(-2).tolist(),
        "learning": rounds[:, :, : world.first, 1].mean(-1).tolist(),
        "settled": settled[..., 0].mean(-1).tolist(),
        "spent": settled[..., 1].mean(-1).tolist(),
        "shares": share,
    }


def runs(
    path: Path,
    variants: Sequence[str],
    seeds: int,
    quick: bool,
    names: Sequence[str] = NAMES,
) -> Iterator[dict[str, Any]]:
    """Yield the runs in the file, and make and write those that are missing.

    Args:
        path: the file.
        variants: some of ``VARIANTS``.
        seeds: how many.
        quick: whether sizes are small.
        names: who plays.
    """
    known = requests()
    every = known.budgets()
    lines = path.read_text().splitlines() if path.exists() else []
    stored = {}
    for line in lines:
        run = json.loads(line)
        stored[run["variant"], run["policy"], run["first"], run["quick"]] = run
    chunk = 2 if quick else CHUNK
    for variant in variants:
        world = world_of(known, variant, quick)
        few = [2, 4] if quick else [2, 3, 5]
        budgets = every if variant == "plain" and not quick else every[few]
        for first in range(0, seeds, chunk):
            for name in names:
                key = variant, name, first, quick
                if key not in stored:
                    say(f"{variant}: {name}, seeds from {first}")
                    numbers = range(first, first + chunk)
                    rounds = play(name, world, variant, budgets, numbers)
                    head = dict(
                        zip(
                            ("variant", "policy", "first", "quick"),
                            key,
                            strict=True,
                        )
                    )
                    run = {**head, "budgets": budgets.tolist()}
                    stored[key] = run | summary(world, rounds)
                    with path.open("a") as file:
                        file.write(json.dumps(stored[key]) + "\n")
                yield stored[key]


def rows_of(runs: Sequence[dict[str, Any]], quick: bool) -> list[Row]:
    """Return a row for each variant and budget."""
    rows = []
    for variant in dict.fromkeys(run["variant"] for run in runs):
        by_name: dict[str, dict[str, Tensor]] = {}
        for name in ("cbandit", "router"):
            some = [r for r in runs if (r["variant"], r["policy"]) == (variant, name)]
            by_name[name] = {
                key: torch.tensor([seed for r in some for seed in r[key]])
                for key in ("reward", "costs", "settled", "spent", "learning")
            }
        ours, theirs = by_name["cbandit"], by_name["router"]
        measured = "settled" if variant in ("cut", "fourth") else "reward"
        seeds = len(ours["reward"])
        budgets = next(r["budgets"] for r in runs if r["variant"] == variant)
        for b, budget in enumerate(budgets):
            gap = ours[measured][:, b] - theirs[measured][:, b]
            error = float(gap.std()) / math.sqrt(seeds)
            spent, other = (p["costs"][:, b, 0].mean() / budget for p in (ours, theirs))
            columns = (
                f"{ours[measured][:, b].mean():.4f} {theirs[measured][:, b].mean():.4f}"
                f"  {gap.mean():+.4f} +- {error:.4f}   {spent:.3f} {other:.3f}"
            )
            if variant == "two":
                slow, slower = (p["costs"][:, b, 1].mean() for p in (ours, theirs))
                columns += f"   {slow:.3f} {slower:.3f}"
            note = ""
            if variant == "plain" and not quick and b:
                above = "yes" if gap.mean() > 2 * error else "NO"
                within = "yes" if spent <= 1.02 else "NO"
                note = f"above by two errors: {above}; at most 2 % too much: {within}"
            rows.append(
                row_of(
                    f"{variant}, {seeds} seeds: reward of ours and of the router, "
                    "difference; spent of the budget, ours and theirs"
                    + ("; mean latency, likewise" if variant == "two" else ""),
                    f"${budget:.6f} a request",
                    columns=columns,
                    note=note,
                )
            )
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="smaller sizes")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the result")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--variants", nargs="*", choices=VARIANTS, default=VARIANTS)
    parser.add_argument(
        "--only", choices=NAMES, help="fill the file with one side's runs, and stop"
    )
    parser.add_argument("--runs", type=Path, default=Path("routing_runs.jsonl"))
    options = parser.parse_args()
    seeds = 2 if options.quick else options.seeds
    some = (options.runs, options.variants, seeds, options.quick)
    if options.only is not None:
        list(runs(*some, [options.only]))
        sys.exit()
    done = list(runs(*some))
    result = result_of(__file__, options.quick, rows_of(done, options.quick))
    print(table(result))
    if options.json is not None:
        write(options.json, result)
    if not result["ok"]:
        sys.exit(1)
