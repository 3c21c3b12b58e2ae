"""A forked and a spawned process go on with a policy, as its error advises.

Run as a script: torch's threads are at work before the fork, so that whatever waits for
them in the child waits for ever. ``python forked.py CHECKPOINT``
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from pathlib import Path

import gpytorch
import torch

import cbandit as cb


def fresh() -> cb.CKB:
    kernel = gpytorch.kernels.RBFKernel().double()
    kernel.lengthscale = torch.tensor(0.2, dtype=torch.float64)
    gp = cb.GP(kernel, noise=1e-2)
    line = torch.linspace(0, 1, 2000, dtype=torch.float64).unsqueeze(-1)
    more = {"explore": cb.TS(1.0), "step": 0.1, "cap": 5.0}
    return cb.CKB(cb.Finite(line), reward=gp, costs=gp, **more)


def play(policy: cb.Policy, rounds: int = 4) -> list[int]:
    """Play some rounds; what was chosen."""
    chosen = []
    for _ in range(rounds):
        choice = policy.ask()
        policy.tell(choice, reward=float(choice.x.sum()), cost=0.1)
        chosen.append(int(choice.index))
    return chosen


def go_on(path: str) -> list[int]:
    policy = cb.load(path)
    large = torch.ones(1500, 1500, dtype=torch.float64)
    assert float((large @ large)[0, 0]) == 1500.0  # in threads, if there are any
    return play(policy)


def refused(policy: cb.Policy) -> str:
    try:
        policy.ask()
    except cb.CBanditError as error:
        return str(error)
    return "it went on"


def main(path: str) -> None:
    torch.set_num_threads(2)
    policy = fresh()
    play(policy)
    large = torch.ones(1500, 1500, dtype=torch.float64)
    (large @ large).exp().sum()  # wakes torch's threads
    policy.save(path)
    child = os.fork()
    if child == 0:
        print(refused(policy), flush=True)
        torch.set_num_threads(1)
        print(go_on(path), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.apply(go_on, (path,)))
    print(play(policy))


if __name__ == "__main__":
    main(str(Path(sys.argv[1])))
