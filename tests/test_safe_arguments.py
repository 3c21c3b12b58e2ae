"""Arguments of policies with a safe action that cannot be."""

from __future__ import annotations

import math

import pytest
import torch
from stagewise import rbf

import cbandit as cb

FOUR = cb.Finite(torch.arange(4.0).double().unsqueeze(-1))


CORNERS = cb.Finite(torch.cat([torch.zeros(1, 2), torch.eye(2)]))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"safe": cb.Safe(x=[0.0, 0.0], cost=0.2)}, "x = 0 are 0"),
        ({"thresholds": 0.0}, "safe.cost must be below"),
        ({"thresholds": -0.1}, "safe.cost must be below"),
        ({"safe": cb.Safe(x=[0.5, 0.0], reward=0.0, cost=0.0)}, "centre"),
        ({"safe": cb.Safe(index=0)}, "its centre; give x="),
        ({"safe": cb.Safe(x=[0.0])}, "safe.x must have shape"),
        ({"safe": None}, "safe must be a cb.Safe"),
        ({"delta": 1.5}, "delta must lie between"),
        ({"reward": cb.Linear(0.1, length=0.5)}, "no longer than length"),
        ({"reward": cb.Counts(0.1)}, "reward must be a cb.Linear"),
        ({"costs": []}, "at least one belief"),
        ({"alpha": (1.0, 1.0, 1.0)}, "alpha must be"),
    ],
)
def test_bad_arguments_are_said(wrong, says):
    arguments = {
        "reward": cb.Linear(0.1),
        "costs": cb.Linear(0.1),
        "safe": cb.Safe(x=[0.0, 0.0]),
        "thresholds": 0.3,
        "delta": 0.1,
    }
    star = cb.Star(torch.zeros(2), torch.eye(2))
    cb.LCLUCB(star, **arguments)
    with pytest.raises(cb.CBanditError, match=says):
        cb.LCLUCB(star, **{**arguments, **wrong})


def test_bad_arms_are_said():
    with pytest.raises(cb.CBanditError, match=r"one of index= and x="):
        cb.Safe()
    with pytest.raises(cb.CBanditError, match="horizon"):
        cb.OPB(
            cb.Finite(torch.eye(3)),
            reward=cb.Counts(1.0),
            costs=cb.Counts(1.0),
            safe=cb.Safe(index=0),
            horizon=None,
            thresholds=0.5,
        )
    with pytest.raises(cb.CBanditError, match="stated range"):
        cb.OPB(
            cb.Finite(torch.eye(3)),
            reward=cb.Counts(1.0),
            costs=cb.Counts(1.0, range=(0.0, 1.0)),
            safe=cb.Safe(index=0, reward=0.0, cost=-0.5),
            horizon=10,
            thresholds=0.5,
        )


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"safe": None}, "safe must be a cb.Safe.* got none"),
        ({"safe": cb.Safe(index=0, reward=0.0, cost=0.5)}, "safe.cost must be below"),
        ({"safe": cb.Safe(index=0, reward=0.0, cost=0.7)}, "cost = 0.7 with thresh"),
        ({"safe": cb.Safe(index=9, reward=0.0, cost=0.0)}, "safe.index must lie in 0"),
        ({"safe": cb.Safe(index=0.5)}, "safe.index must hold whole numbers"),
        ({"safe": cb.Safe(x=[0.3] * 2)}, r"safe.x must (be a point|have shape)"),
        (
            {"safe": cb.Safe(index=0, reward=2.0, cost=0.0)},
            "safe.reward must be at most",
        ),
        (
            {"safe": cb.Safe(index=0, reward=math.nan, cost=0.0)},
            "safe.reward must be fin",
        ),
        ({"costs": []}, "at least one belief"),
        (
            {"costs": cb.Linear(0.1, length=0.5)},
            "costs must be a|no longer than length",
        ),
        ({"delta": 0.0}, "delta must lie between"),
        ({"alpha": -1.0}, "alpha must not be negative"),
    ],
)
@pytest.mark.parametrize("kind", ["OPB", "GP", "OPLB"])
def test_bad_arguments_of_randomised_policies_are_said(kind, wrong, says):
    belief, actions, more = {
        "OPB": (cb.Counts(1.0), FOUR, {"horizon": 10}),
        "GP": (cb.GP(rbf(), noise=0.1), CORNERS, {"horizon": 10}),
        "OPLB": (cb.Linear(0.1), CORNERS, {"horizon": 10}),
    }[kind]
    if kind == "OPLB":
        pytest.importorskip("clarabel")
    arguments = {
        "reward": belief,
        "costs": belief,
        "safe": cb.Safe(index=0, reward=0.0, cost=0.0),
        "thresholds": 0.5,
        **more,
    }
    build = cb.OPLB if kind == "OPLB" else cb.OPB
    build(actions, **arguments)
    with pytest.raises(cb.CBanditError, match=says):
        build(actions, **{**arguments, **wrong})


def test_what_opb_needs_is_said():
    counts, safe = cb.Counts(1.0), cb.Safe(index=0, reward=0.0, cost=0.0)
    given = {"reward": counts, "costs": counts, "safe": safe, "horizon": 10}
    for name in given:
        rest = {k: v for k, v in given.items() if k != name}
        with pytest.raises(cb.CBanditError, match=f"{name} must be .*got none"):
            cb.OPB(FOUR, thresholds=0.5, **rest)
    ranged = cb.Counts(1.0, range=(0.0, 1.0))
    with pytest.raises(
        cb.CBanditError, match=r"safe.reward must lie in .* 0 to 1; got -0"
    ):
        cb.OPB(
            FOUR,
            reward=ranged,
            costs=counts,
            safe=cb.Safe(index=0, reward=-0.5, cost=0.0),
            horizon=10,
            thresholds=0.5,
        )
