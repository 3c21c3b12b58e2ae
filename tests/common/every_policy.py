"""A row for each public policy: its set, its arguments, the shared ones it takes."""

from __future__ import annotations

import gpytorch
import pytest
import torch

import cbandit as cb

X = torch.linspace(0, 1, 5, dtype=torch.float64).unsqueeze(-1)


POINTS, BOX = cb.Finite(X), cb.Box([0.0], [1.0])


STAR = cb.Star(center=[0.0], tips=[[1.0], [-1.0]])


BELIEF = cb.GP.default(POINTS)


KNOWN = cb.GP(gpytorch.kernels.RBFKernel().double(), noise=0.01)


ONE_SAFE = cb.Safe(index=0, reward=0.0, cost=-0.5)


CENTRE = cb.Safe(x=[0.0], reward=0.0, cost=0.0)


LINE = cb.Linear(subgaussian=1.0, ridge=1.0, norm=1.0)


CLASS = cb.FiniteClass([[-0.5, 0.2, 0.4, 0.6, 0.8]], radius=0.5)


REWARD = {"reward": BELIEF, "explore": cb.UCB(2.0)}


BOTH = {"costs": BELIEF, **REWARD}


STAGEWISE = {"safe": ONE_SAFE, "delta": 0.1, "alpha": None}


LINEAR = {"reward": LINE, "costs": LINE, "safe": CENTRE, "thresholds": 0.5}


GP_POLICY = {"engine": "auto", "feedback": None, "pending": None}


def acquisition(model, policy):
    return cb.acquisition.OptimisticFeasible(model, beta=2.0)


# by name: its set, its arguments, and the shared ones it takes beyond EVERYWHERE
POLICIES = {
    "CKB": (POINTS, BOTH | {"step": 0.1, "cap": 10.0}, GP_POLICY),
    "RPOL": (POINTS, BOTH, GP_POLICY),
    "SCGPUCB": (POINTS, REWARD | {"costs": 1, "slater": 0.5, "clip": 1.0}, GP_POLICY),
    "EpochPenalty": (POINTS, REWARD | {"costs": 1, "epoch": 3}, GP_POLICY),
    "GPUCB": (POINTS, REWARD, GP_POLICY),
    "GPTS": (POINTS, {"reward": BELIEF}, GP_POLICY),
    "LCLUCB": (STAR, LINEAR, {}),
    "OPLB": (POINTS, LINEAR | {"safe": cb.Safe(index=0, reward=0.0, cost=0.0)}, {}),
    "OPB": (
        POINTS,
        {"reward": cb.Counts(1.0), "costs": cb.Counts(1.0), "horizon": 9} | STAGEWISE,
        {},
    ),
    "OPB, GP form": (POINTS, BOTH | STAGEWISE | {"horizon": 9}, GP_POLICY),
    "OPNLB": (POINTS, {"reward": CLASS, "costs": CLASS} | STAGEWISE, {}),
    "baselines.CONFIG": (POINTS, BOTH, GP_POLICY),
    "baselines.SafeOpt": (POINTS, BOTH | {"safe": 0}, GP_POLICY),
    "baselines.StageOpt": (POINTS, BOTH | {"safe": 0, "rounds": 3}, GP_POLICY),
    "baselines.SGPUCB": (POINTS, BOTH | {"safe": 0, "rounds": 3}, GP_POLICY),
    "baselines.SafeLTS": (STAR, LINEAR, {}),
    "baselines.ROFUL": (STAR, LINEAR, {}),
    "baselines.SCOLTS": (STAR, LINEAR, {}),
    "baselines.LoSBO": (
        POINTS,
        BOTH | {"safe": 0, "lipschitz": 2.0, "noise_bound": 0.1},
        GP_POLICY,
    ),
    "baselines.ADMMBO": (POINTS, {"reward": BELIEF, "costs": BELIEF}, GP_POLICY),
    "baselines.BanditOCO": (
        BOX,
        {"costs": 1, "radius": 0.1, "step": 0.1, "dual_step": 0.1},
        {},
    ),
    "baselines.BKB": (POINTS, REWARD | {"reward": KNOWN}, {}),
    "baselines.BKB, costs": (
        POINTS,
        {"reward": KNOWN, "costs": KNOWN, "step": 0.1, "cap": 10.0},
        {},
    ),
    "baselines.Random": (POINTS, {"costs": 1}, {}),
    "baselines.CKBRestart": (
        POINTS,
        BOTH | {"restart": 5, "step": 0.1, "cap": 10.0},
        GP_POLICY,
    ),
    "baselines.BoTorchPolicy": (
        POINTS,
        {"reward": BELIEF, "costs": BELIEF, "make_acquisition": acquisition},
        GP_POLICY,
    ),
}


EVERYWHERE = {
    "thresholds": 0.0,
    "minimise": False,
    "seed": 0,
    "trials": None,
    "device": None,
    "dtype": None,
}


EVERY_POLICY = pytest.mark.parametrize("name", POLICIES)


def public(name):
    """The object of a dotted name below ``cb``."""
    thing = cb
    for part in name.partition(",")[0].split("."):
        assert part in dir(thing), f"cb.{name}"
        thing = getattr(thing, part)
    return thing
