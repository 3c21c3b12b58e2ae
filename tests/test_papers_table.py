"""The table in benchmarks/README.md holds the numbers of the committed results."""

from __future__ import annotations

import shlex

import pytest
from inside import find, jobs_of

import papers

ROWS = papers.rows()
EVERY = [*ROWS["figure"], *ROWS["sensitivity"]]


def jobs(command):
    """The experiments that a command of the table carries out."""
    words = shlex.split(command)
    assert words[:2] == ["cbandit", "reproduce"]
    given, options = {}, words[3:]
    numbers = {"trials": int, "horizon": int, "policies": lambda text: text.split(",")}
    parameters = {}
    for option, value in zip(options[::2], options[1::2], strict=True):
        if option == "--set":
            name, _, text = value.partition("=")
            parameters[name] = text
        else:
            name = option.removeprefix("--")
            given[name] = numbers[name](value)
    return jobs_of(words[2], parameters=parameters, **given)


def test_the_table_is_what_the_results_say():
    papers.main(["--check"])


@pytest.mark.parametrize("row", EVERY, ids=lambda row: row["command"][18:])
def test_a_row_is_of_the_command_beside_it(row):
    kept = [each for name in row["results"] for each in papers.entries(name)]
    used = {match[0] for match in papers.PLACE.findall(row["ours"])}
    assert used == set(row["results"])
    for job in jobs(row["command"]):
        settings = job.settings
        wanted = (settings.experiment, settings.horizon, settings.trials)
        defaults = find(settings.experiment).settings().parameters
        fitting = [
            each
            for each in kept
            if (each["experiment"], each["horizon"], each["trials"]) == wanted
            and {**defaults, **each["parameters"]} == settings.parameters
            and each["seed"] == settings.seed
        ]
        assert len(fitting) == 1, settings
        states = {each["status"] for each in fitting[0]["policies"].values()}
        assert states == {"complete"}


def test_verdicts_say_which_and_why():
    for row in ROWS["figure"]:
        assert row["verdict"].startswith(("comes out", "a tie", "does not"))
        assert row["verdict"] == "comes out" or row["why"].endswith(".")


def test_every_figure_of_the_papers_has_a_row():
    text = " ".join(row["figure"] for row in ROWS["figure"])
    for words in (
        *("CKB, 1a", "CKB, 1b", "CKB, 1c", "CKB, 2a and 2b", "CKB, 2c"),
        *("penalties, 1:", "penalties, 2 and 3", "penalties, 4 and 5"),
        *("penalties, 6 and 7", "penalties, 8 and 9"),
        *("LC-LUCB, 1 and 7", "LC-LUCB, 2", "LC-LUCB, 5", "LC-LUCB, 6"),
        *("OPB, 3: 5", "OPB, 3: 10", "OPB, 3: 20", "OPB, 4 and 8"),
        *("RPOL, 1", "RPOL, 2", "RPOL, 3"),
    ):
        assert words in text


def test_numbers_without_a_result_are_refused():
    known = "{guo-delayed.CONFIG.regret}"
    assert papers.stray(f"regret {known} in `T=500`") == ""
    assert papers.stray(f"regret {known}, next 12.5") == "12.5"
    with pytest.raises(KeyError):
        papers.filled("{guo-delayed.Nobody.regret}")
    with pytest.raises(SystemExit, match="0 entries, not one"):
        papers.filled("{guo-classical[beta=7].CONFIG.regret}")


@pytest.mark.parametrize(
    ("mean", "sem", "expected"),
    [
        (1.3849, 0.1938, "1.38 +- 0.19"),
        (2493.2, 440.6, "2493 +- 441"),
        (-66.4785, 1.9696, "-66.5 +- 2.0"),
        (0.0, 0.0, "0"),
        (0.06789, 0.00041, "0.06789 +- 0.00041"),
        (1.0, 0.0, "1"),
        (0.125, 0.0, "0.125"),
    ],
)
def test_a_number_in_words(mean, sem, expected):
    assert papers.number(mean, sem) == expected


def test_the_two_kinds_of_draws_make_up_the_whole():
    (whole,) = papers.entries("zhou-synthetic-independent")
    parts = papers.entries("zhou-synthetic-independent-mixtures")
    for name in ("CKB-UCB", "CKB-TS", "CKB-Rand", "StageOpt", "SGP-UCB"):
        kinds = [part["policies"][name] for part in parts]
        trials = [kind["trials"] for kind in kinds]
        assert sum(trials) == whole["trials"]
        for metric in ("regret", "soft_violation", "rounds_in_violation"):
            total = sum(
                n * kind[metric]["mean"] for n, kind in zip(trials, kinds, strict=True)
            )
            wanted = whole["policies"][name][metric]["mean"]
            assert total / whole["trials"] == pytest.approx(wanted, rel=1e-9, abs=1e-9)
