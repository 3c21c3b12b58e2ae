"""A policy that is saved goes on bit for bit in a process that never saw it."""

from __future__ import annotations

import inspect
import subprocess
import sys

import numpy as np
import pytest
import torch
from gpytorch import kernels as gpk
from inside import (
    EXPERIMENTS,
    Task,
    differences,
    find,
    settings_of,
    settings_of_experiment,
)
from places import COMMON

import cbandit as cb

F64 = torch.float64
SAVED, END = 15, 30
NEED_DATA = ("zhou-light", "zhou-finance")


def makers():
    kernel = gpk.RBFKernel().double()
    kernel.lengthscale = torch.tensor(0.2, dtype=F64)
    gp, counts, linear = cb.GP(kernel, noise=1e-2), cb.Counts(0.5), cb.Linear(0.1)
    line = cb.Finite(torch.linspace(0, 1, 30, dtype=F64).unsqueeze(-1))
    star = cb.Star([0.0, 0.0, 0.0], np.eye(3))
    both = {"reward": gp, "costs": gp}
    primal = both | {"step": 0.1, "cap": 3.0}
    known, staged = {"reward": 0.0, "cost": 0.0}, {"thresholds": 0.5, "trials": 2}
    return {
        "ts": lambda: cb.CKB(line, **primal, explore=cb.TS(), trials=2),
        "sliding": lambda: cb.CKB(
            line,
            **primal,
            explore=cb.Rand(),
            feedback=cb.Sliding(7),
            engine="factor",
        ),
        "hallucinating": lambda: cb.CKB(
            line, **primal, explore=cb.UCB(2.0), pending="hallucinate"
        ),
        "delayed": lambda: cb.RPOL(
            line, **both, explore=cb.UCB(2.0), feedback=cb.Delayed(4), trials=2
        ),
        "epochs": lambda: cb.EpochPenalty(
            line, reward=gp, costs=1, explore=cb.UCB(2.0), epoch=7, trials=2
        ),
        "arms": lambda: cb.OPB(
            line,
            reward=counts,
            costs=counts,
            horizon=99,
            safe=cb.Safe(index=0, **known),
            **staged,
        ),
        "linear": lambda: cb.LCLUCB(
            star,
            reward=linear,
            costs=linear,
            safe=cb.Safe(x=[0.0, 0.0, 0.0], **known),
            **staged,
        ),
    }


def play(policy, first: int, last: int) -> list:
    """Rounds ``first .. last``, two choices outstanding all the time."""
    seen = []
    for t in range(first, last + 1):
        seen.append(policy.ask().index.tolist())
        for choice in policy.outstanding:
            if choice.t > t - 2:
                continue
            rng = np.random.default_rng(choice.t)
            reward, cost = rng.random((2, *policy.batch_shape))
            policy.tell(choice, reward=reward, cost=cost - 0.4)
    believed = policy.posterior()
    tensors = (policy.multiplier, believed.reward.mean, believed.reward.std)
    return [seen, *(tensor.tolist() for tensor in tensors)]


@pytest.mark.unaided
def test_in_a_fresh_process(tmp_path):
    wanted = {}
    for name, make in makers().items():
        policy = make()
        play(policy, 1, SAVED)
        policy.save(tmp_path / name)
        wanted[name] = play(policy, SAVED + 1, END)
        assert len(policy.outstanding) == 2
    code = f"""
import runpy, sys, torch, cbandit as cb
sys.path.insert(0, {str(COMMON)!r})
play = runpy.run_path({__file__!r})["play"]
*paths, out = sys.argv[1:]
torch.save([play(cb.load(path), {SAVED + 1}, {END}) for path in paths], out)
"""
    paths = [str(tmp_path / name) for name in [*wanted, "out"]]
    subprocess.run([sys.executable, "-W", "ignore", "-c", code, *paths], check=True)
    found = torch.load(tmp_path / "out")
    for (name, want), got in zip(wanted.items(), found, strict=True):
        assert got == want, name


def test_settings_are_those_of_the_fresh_policy(tmp_path):
    described = {}
    for name, make in makers().items():
        policy = make()
        described[name] = settings_of(policy)
        play(policy, 1, 5)
        policy.save(tmp_path / name)
        for other in (make(), policy, cb.load(tmp_path / name)):
            assert list(differences(described[name], settings_of(other))) == [], name
    for name, one in described.items():
        for other in described.values():
            assert one is other or list(differences(one, other)), name


@pytest.mark.parametrize("name", [n for n in EXPERIMENTS if n not in NEED_DATA])
def test_policies_and_problems_note_all_their_arguments(name):
    small = {"points": 20} if name == "bench-stagewise" else {}
    settings = settings_of_experiment(name, trials=2, horizon=9, parameters=small)
    for policy in settings.policies:
        task = Task(find(name), settings, policy, range(2))
        problem = task.problem()
        for thing in (problem, task.make(problem)):
            taken = set(inspect.signature(type(thing).__init__).parameters)
            normalised = {"self", "common", "actions", "device", "dtype", "trials"}
            assert taken - normalised <= thing.settings.keys(), type(thing)
        assert {"thresholds", "seed"} <= thing.settings.keys()
