"""One rank of a test: ``ranks.py FOLDER RANK SIZE CASE...``.

Plays rounds of some cases and leaves what was chosen and believed in FOLDER.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch
from gpytorch import kernels as gpk

import cbandit as cb

ROUNDS = 200


def _kernel(kind, *lengthscale):
    made = kind(ard_num_dims=len(lengthscale)).double()
    made.lengthscale = torch.tensor([lengthscale], dtype=torch.float64)
    return made


def _rbf(*lengthscale):
    return _kernel(gpk.RBFKernel, *lengthscale)


def _matern(*lengthscale):
    return _kernel(lambda **d: gpk.MaternKernel(nu=2.5, **d), *lengthscale)


def _line(count):
    return torch.linspace(0, 1, count, dtype=torch.float64)


def _cloud(count):
    generator = torch.Generator().manual_seed(3)
    return torch.rand(count, 3, generator=generator, dtype=torch.float64)


def policy(case):
    """Reward and two costs; one of them has a kernel of its own."""
    if case == "grid":  # two blocks, and ties by symmetry
        actions, explore, engine = cb.ProductGrid([_line(512)] * 2), cb.UCB(2.0), "auto"
        first, second = _rbf(0.2, 0.2), _rbf(0.2, 0.2)
    elif case == "grid-ts":  # cut inside a block
        actions, explore = cb.ProductGrid([_line(61) ** 2, _line(47)]), cb.TS(1.0)
        first, second, engine = _rbf(0.2, 0.3), _rbf(0.25, 0.3), "product"
    elif case == "line":  # a grid of one row: cut inside of it
        actions, explore, engine = cb.ProductGrid([_line(3001)]), cb.UCB(2.0), "factor"
        first, second = _matern(0.1), _matern(0.2)
    elif case == "finite":
        actions, explore, engine = cb.Finite(_cloud(3001)), cb.UCB(2.0), "auto"
        first, second = _rbf(0.3, 0.4, 0.5), _matern(0.3, 0.4, 0.5)
    elif case == "finite-ts":
        actions, explore, engine = cb.Finite(_cloud(3001)), cb.TS(1.0), "stream"
        first, second = _rbf(0.3, 0.4, 0.5), _matern(0.3, 0.4, 0.5)
    else:  # small enough to be kept whole by each
        actions, explore, engine = cb.Finite(_cloud(100)), cb.UCB(2.0), "auto"
        first, second = _rbf(0.3, 0.4, 0.5), _matern(0.3, 0.4, 0.5)
    one, two = cb.GP(first, noise=0.01), cb.GP(second, noise=0.02)
    return cb.CKB(
        actions,
        reward=one,
        costs=[one, two],
        explore=explore,
        step=0.1,
        cap=5.0,
        thresholds=0.1,
        engine=engine,
    )


def feedback(x):
    wave = torch.stack([(7 * x).sin().sum(), (5 * x).cos().sum(), x.sum() - 1])
    return wave / len(x)


def play(learner, rounds, die_at=None):
    chosen = []
    for t in range(rounds):
        if t == die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        choice = learner.ask()
        value = feedback(choice.x)
        learner.tell(choice, reward=value[0], cost=value[1:])
        chosen.append(int(choice.index))
    return chosen


def story(case, folder):
    """What came of a case: choices, beliefs, and what they were after a checkpoint."""
    learner = policy(case)
    chosen = play(learner, ROUNDS)
    learner.save(folder / f"{case}.policy")
    believed, best = learner.posterior(), learner.recommend(0.6)
    return {
        "chosen": chosen,
        "mean": torch.cat([believed.reward.mean[None], believed.costs.mean]),
        "std": torch.cat([believed.reward.std[None], believed.costs.std]),
        "best": int(best.index),
        "margin": best.margin,
        "multiplier": learner.multiplier,
        "kept": [g.engine.mean.shape[-1] for g in learner._beliefs.groups],
        "next": play(learner, 5),
    }


def main(folder, rank, size, *cases):
    torch.set_num_threads(1)
    folder = Path(folder)
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder / 'meeting'}",
        rank=int(rank),
        world_size=int(size),
    )
    with cb.distributed.shard(timeout=200):
        for case in cases:
            if case == "killed":
                play(policy("grid-ts"), ROUNDS, 5 if rank == "1" else None)
            torch.save(story(case, folder), folder / f"{case}.{rank}")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
