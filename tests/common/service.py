"""A live service, as the README's and the notebook's: five threads on one policy.

Run as a script it serves until it is killed: ``python service.py STATE JOURNAL``. Each
line of the journal is an answer that the service had saved before it was written.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
from pathlib import Path

import gpytorch
import torch

import cbandit as cb

SPACE = cb.Space(threads=cb.Int(1, 16, log=True), codec=cb.Category("lz4", "zstd"))
TRANSIENT = 0.15


def fresh():
    kernel = gpytorch.kernels.RBFKernel().double()
    kernel.lengthscale = torch.tensor(3.0, dtype=torch.float64)
    belief = cb.GP(kernel, noise=0.01)
    return cb.RPOL(
        SPACE,
        reward=belief,
        costs={"latency": belief, "up": belief},
        thresholds={"latency": "<= 2", "up": ">= 0.5"},
        explore=cb.UCB(2.0),
        failures=False,
    )


def world(params):
    """Speed, latency and availability of a setting; ``None``: it never works."""
    threads, fast = params["threads"], params["codec"] == "lz4"
    # the best ones and some others, so that they are surely asked for
    if threads in (5, 10) or (threads in (3, 7, 11) and not fast):
        return None
    return threads**0.5, threads / 8 + (not fast), 1 - threads / 20


class Service:
    """A policy that is saved after each ask and each answer."""

    def __init__(self, path):
        self.path = path
        self.policy = cb.load(path) if path.exists() else fresh()

    def ask(self):
        choice = self.policy.ask()
        self.policy.save(self.path)
        return choice.id, choice.params

    def tell(self, name, **answer):
        self.policy.tell(name, **answer)
        self.policy.save(self.path)

    def give_up(self, name):
        self.policy.cancel(name)
        self.policy.save(self.path)


def work(service, note, waiting, seed):
    """Serve for ever: run what is asked, answer in parts, late and out of order."""
    draw = random.Random(seed)
    while True:
        if not waiting or draw.random() < 0.6:
            name, params = service.ask()
            waiting.append((name, params))
        name, params = waiting.pop(draw.randrange(len(waiting)))
        seen = world(params)
        if seen is None:
            service.tell(name, failed=True)
            note(name, "failed", params)
        elif draw.random() < TRANSIENT:
            service.give_up(name)
            note(name, "cancelled", params)
        else:
            service.tell(name, cost={"up": seen[2]})
            note(name, "up", params)
            service.tell(name, reward=seen[0], cost={"latency": seen[1]})
            note(name, "told", params)


def main(state, journal):
    service, lock = Service(Path(state)), threading.Lock()
    file = Path(journal).open("a")  # noqa: SIM115

    def note(name, what, params):
        with lock:
            file.write(json.dumps([name, what, params]) + "\n")
            file.flush()
            os.fsync(file.fileno())

    # what the last process had asked for, and not answered in full
    left = [(c.id, c.params) for c in service.policy.outstanding]
    frame = service.policy.history()
    half = set(frame["id"][frame["up"].notna()]) if len(frame) else set()
    for name, params in left:
        seen = world(params)
        if name in half and seen is not None:
            service.tell(name, reward=seen[0], cost={"latency": seen[1]})
            note(name, "told", params)
    left = [each for each in left if each[0] not in half]
    threads = [
        threading.Thread(
            target=work,
            args=(service, note, left[i::5], time.time_ns() + i),
            daemon=True,
        )
        for i in range(5)
    ]
    for each in threads:
        each.start()
    while all(each.is_alive() for each in threads):
        time.sleep(0.05)
    sys.exit("a thread has ended")


if __name__ == "__main__":
    main(*sys.argv[1:])
