"""cb.Log: checked when made, cut by rounds, to and from parquet and foreign tables."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import cbandit as cb
from cbandit.receipt.log import choices_of

PARTS = dict(
    actions=("small", "large"),
    action=np.array([0, 1, 0, 1]),
    contexts=pd.DataFrame({"load": [0.1, 0.2, 0.3, 0.4], "day": ["mo", None, 1, True]}),
    distribution=np.array([[0.9, 0.1], [0.9, 0.1], [np.nan] * 2, [np.nan, 0.25]]),
    outcomes=pd.DataFrame({"right": [1, 1, 0, 1], "ms": [8.0, np.nan, 7.0, 9.0]}),
    limits={"ms": "<= 20"},
    ranges={"right": (0, 1), "ms": (0, 100)},
    maximise=False,
)


def log_of(**changes):
    return cb.Log(**{**PARTS, **changes})


def same(one, other):
    assert one.actions == other.actions and one.maximise == other.maximise
    assert dict(one.limits) == dict(other.limits) and one.ranges == other.ranges
    np.testing.assert_array_equal(one.action, other.action)
    np.testing.assert_array_equal(one.distribution, other.distribution)
    pd.testing.assert_frame_equal(one.outcomes, other.outcomes)
    if one.contexts is None:
        assert other.contexts is None
    else:
        pd.testing.assert_frame_equal(one.contexts, other.contexts)


def test_what_a_log_says():
    log = log_of()
    np.testing.assert_array_equal(log.propensity, [0.9, 0.1, np.nan, 0.25])
    assert log.choices == ["small", "large", "small", "large"]
    assert (log.reward, log.costs, len(log)) == ("right", ("ms",), 4)
    assert log.number("large") == 1 and log.number("huge") is None
    assert "4 rounds, 2 choices, drawn with known probabilities in 3" in str(log)
    assert "ms <= 20 in [0, 100]: told in 3" in str(log)
    assert "<td>ms</td><td>&lt;= 20</td><td>[0, 100]</td><td>3</td>" in (
        log._repr_html_()
    )


def test_parts_of_a_log():
    log = log_of()
    for rows in (slice(1, 3), np.array([1, 2]), np.array([False, True, True, False])):
        part = log[rows]
        assert len(part) == 2 and part.choices == ["large", "small"]
        assert part.contexts.index.tolist() == part.outcomes.index.tolist() == [0, 1]
    assert len(log[4:]) == 0
    with pytest.raises(ValueError, match="a log is indexed by a slice"):
        log[1]


def test_a_log_is_not_changed_from_outside():
    parts = {**PARTS, "action": np.array([0, 1, 0, 1])}
    log = cb.Log(**parts)
    parts["action"][:] = 0
    assert log.choices == ["small", "large", "small", "large"]
    with pytest.raises(AttributeError):
        log.action = parts["action"]


@pytest.mark.parametrize("contexts", [PARTS["contexts"], None])
def test_a_log_comes_back_from_its_file(tmp_path, contexts):
    pytest.importorskip("pyarrow")
    actions = ({"threads": 1, "codec": "lz4"}, {"threads": 2, "codec": None})
    log = log_of(contexts=contexts, actions=actions)
    log.save(tmp_path / "log.parquet")
    same(log, cb.Log.load(tmp_path / "log.parquet"))
    log[:0].save(tmp_path / "none.parquet")
    assert len(cb.Log.load(tmp_path / "none.parquet")) == 0


def test_broken_and_foreign_files_are_refused(tmp_path):
    pytest.importorskip("pyarrow")
    path = tmp_path / "log.parquet"
    with pytest.raises(ValueError, match="there is no log"):
        cb.Log.load(path)
    log_of().save(path)
    whole = path.read_bytes()
    log, broken = cb.Log.load(path), 0
    for place in range(0, len(whole), 97):  # one bit at a time: an error or no change
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        try:
            same(log, cb.Log.load(path))
        except cb.CheckpointError:
            broken += 1
    assert broken > 10
    PARTS["outcomes"].to_parquet(path)
    with pytest.raises(cb.CheckpointError, match="not written by cb"):
        cb.Log.load(path)


def test_logs_of_other_systems():
    frame = pd.DataFrame(
        {
            "page": ["b", "a", "b"],
            "size": [1, 2, 1],
            "p": [0.3, 0.7, np.nan],
            "pa": [0.7, 0.7, 0.5],
            "pb": [0.3, 0.3, 0.5],
            "click": [True, False, True],
            "ms": [1.0, 2.0, 3.0],
            "hour": [1, 2, 3],
        },
        index=[5, 6, 7],
    )
    read = dict(reward="click", costs=["ms"], contexts=["hour"])
    log = cb.Log.from_frame(frame, action="page", propensity="p", **read)
    assert log.actions == ("a", "b") and log.choices == ["b", "a", "b"]
    expected = [[np.nan, 0.3], [0.7, np.nan], [np.nan, np.nan]]
    np.testing.assert_array_equal(log.distribution, expected)
    assert log.outcomes["click"].tolist() == [1.0, 0.0, 1.0]
    for columns in (["pa", "pb"], {"b": "pb", "a": "pa"}):
        log = cb.Log.from_frame(frame, action="page", propensity=columns, **read)
        np.testing.assert_array_equal(log.distribution, frame[["pa", "pb"]])
    log = cb.Log.from_frame(frame, action=["page", "size"], propensity=None, **read)
    assert log.choices[0] == {"page": "b", "size": 1} and len(log.actions) == 2
    assert np.isnan(log.distribution).all()
    log = cb.Log.from_frame(
        frame, action="page", propensity="p", actions=["c", "b", "a"], **read
    )
    assert log.action.tolist() == [1, 2, 1]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"actions": "ab"}, "actions must be the choices, a tuple; got str"),
        ({"actions": ("a", "a")}, "actions must be different"),
        ({"action": [0, 1, 0, 2]}, "action must be from 0 to 1; got 0 to 2"),
        ({"action": [0.0, 1, 0, 1]}, "action must be whole numbers"),
        ({"contexts": PARTS["contexts"][:2]}, "contexts must be a pandas frame of 4"),
        ({"distribution": np.ones((4, 3))}, r"shape \(n, K\) = \(4, 2\)"),
        (
            {"distribution": np.full((4, 2), 0.4)},
            "add up to 1 in each round; it is 0.8",
        ),
        ({"distribution": np.full((4, 2), -1.0)}, "must be of probabilities; got -1"),
        ({"distribution": np.tile([0.0, 1.0], (4, 1))}, "played in row 0"),
        (
            {"distribution": np.tile([np.nan, 1.0], (4, 1))},
            "row 0 is known in part",
        ),
        ({"outcomes": pd.DataFrame({"a": ["x"] * 4})}, "outcomes must be numbers"),
        ({"outcomes": pd.DataFrame({"a": [np.inf] * 4})}, "finite, or NaN"),
        ({"limits": {"m": "<= 2"}}, "limits must be of .*'m'; did you mean 'ms'"),
        ({"ranges": {"ms": (3, 3)}}, "low must be below high"),
        ({"ranges": {"ms": 3}}, "must be a pair"),
        ({"maximise": "yes"}, "maximise must be True or False"),
    ],
)
def test_a_wrong_log_is_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        log_of(**changes)


def test_choices_of_sets():
    space = cb.Space(
        codec=cb.Category("lz4", "zstd"), threads=cb.Int(1, 2), load=cb.Context(3)
    )
    choices = choices_of(space)
    assert choices[1] == {"codec": "lz4", "threads": 2} and len(choices) == 4
    assert choices_of(cb.Finite([[0.0], [1.0]])) == (0, 1)
