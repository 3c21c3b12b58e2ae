"""Pages hold the numbers of the kept results, and no others."""

from __future__ import annotations

import json
import re
import shlex

import pytest
from inside import find, jobs_of

from benchmarks import claims
from benchmarks.common import report
from benchmarks.speed import round as rounds

ROWS = claims.rows()
EVERY = [*ROWS["figure"], *ROWS["sensitivity"]]
CHANGELOG = claims.README.with_name("CHANGELOG.md")
BEGINNINGS = ("comes out", "a tie", "does not", "not contradicted", "cannot fail")


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
    claims.main(["--check"])


@pytest.mark.parametrize("row", EVERY, ids=lambda row: row["command"][18:])
def test_a_row_is_of_the_command_beside_it(row):
    kept = [each for name in row["results"] for each in claims.entries(name)]
    used = {match[0] for match in claims.PLACE.findall(row["ours"])}
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
        assert row["verdict"].startswith(BEGINNINGS)
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
    assert claims.stray(f"regret {known} in `T=500`") == ""
    assert claims.stray(f"regret {known}, next 12.5") == "12.5"
    with pytest.raises(KeyError):
        claims.filled("{guo-delayed.Nobody.regret}")
    with pytest.raises(SystemExit, match="0 entries, not one"):
        claims.filled("{guo-classical[beta=7].CONFIG.regret}")


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
    assert claims.number(mean, sem) == expected


def test_the_two_kinds_of_draws_make_up_the_whole():
    (whole,) = claims.entries("zhou-synthetic-independent")
    parts = claims.entries("zhou-synthetic-independent-mixtures")
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


# ------------------------------------------------------------------ numbers in prose

# numbers that are not measured: versions, levels, examples, sizes, sections of papers
ALLOWED = {
    claims.README: ("Python 3.11",),
    CHANGELOG: (),
    claims.DETAILS: (
        "1 % of the range",
        "61 x 61",
        "-0.30",
        "-0.25",
        "20 % of the side",
        "Section 2, 3.1",
        "Section 4.2",
        "Section 4.4",
        "Section 5.1.1",
        "Section 5.3",
        "5.1:",
    ),
    claims.DEFAULTS: (),
}
UNITS = r"(?:x|times|ms|us|s|seconds?|minutes?|hours?|MB|GB|of \d+)\b"
WITH_UNIT = re.compile(rf"\d[\d ,.]*(?: ?%| {UNITS})|\+-")
MEASURED = re.compile(r"\d[\d ]*\.\d+|(?<!\w)\.\d+|" + WITH_UNIT.pattern)


def prose(text):
    """A page's words in one line, less what is generated and less code."""
    text = claims.BLOCK.sub("", text)
    text = re.sub(r"```.*?```", "", text, flags=re.S)
    text = re.sub(r"^    .*$", "", text, flags=re.M)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    return " ".join(re.sub(r"`[^`]*`", "", text).split())


@pytest.mark.parametrize("page", ALLOWED, ids=lambda page: "/".join(page.parts[-2:]))
def test_prose_holds_no_measured_number(page):
    text = prose(page.read_text())
    for phrase in ALLOWED[page]:
        assert phrase in text, "no longer needed"
        text = text.replace(phrase, "")
    pattern = WITH_UNIT if page == CHANGELOG else MEASURED
    assert [match[0] for match in pattern.finditer(text)] == []


def test_measured_numbers_in_prose_are_noticed():
    for text in ("3.9 times", "it takes 20 ms", "in 9 of 10 runs", "by 70 %", "5 +- 1"):
        assert MEASURED.search(text), text
    for text in ("300 functions", "round 60", "`x = 0.5`", "10 000 rounds"):
        assert not MEASURED.search(prose(text)), text


def test_a_stale_block_is_noticed(monkeypatch, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(claims.README.read_text().replace("times faster", "times slower"))
    monkeypatch.setattr(claims, "FROM", {page: "benchmarks/"})
    with pytest.raises(SystemExit, match=r"page\.md is not what the results say"):
        claims.main(["--check"])


def test_numbers_of_a_script_come_from_its_rows():
    names = {f"{name}.json" for row in ROWS["script"] for name in row["results"]}
    assert names <= {path.name for path in claims.RESULTS.iterdir()}
    kept = json.loads((claims.RESULTS / "bench-trials.json").read_text())["rows"]
    (ratio,) = [r["ratio"] for r in kept if "one after another" in r["what"]]
    found = claims.filled("{bench-trials|100 arms|one after another|ratio}")
    assert found == f"{ratio:.0f}"
    assert re.fullmatch(r"\S+ to \S+", claims.filled("{bench-lp||.|ratio}"))
    assert claims.stray("{bench-lp||.|ratio} of `5`, 7") == "7"
    with pytest.raises(SystemExit, match="no row"):
        claims.filled("{bench-lp|another problem|.|ratio}")


@pytest.mark.parametrize(
    ("value", "expected"),
    [(2073.9, "2074"), (31.7, "32"), (4.707, "4.7"), (0.0217, "0.022"), (9, "9")],
)
def test_a_measured_value_in_two_digits(value, expected):
    assert claims.figure(value) == expected


def test_new_results_name_commit_date_machine_and_command(monkeypatch):
    monkeypatch.setattr("sys.argv", ["x", "--quick", "--json", "somewhere.json"])
    result = report.result_of(rounds.__file__, True, [])
    assert result["command"] == "python benchmarks/speed/round.py --quick --json PATH"
    assert {"commit", "date", "machine"} <= result.keys()
    assert result["machine"]["processor"]


def test_what_a_result_does_not_name_is_said(monkeypatch, tmp_path):
    assert "not recorded" not in claims.origin("guo-adaptive")
    monkeypatch.setattr(claims, "RESULTS", tmp_path)
    (tmp_path / "old.json").write_text('{"machine": {"processor": "a chip"}}')
    assert claims.origin("old") == "commit not recorded, date not recorded, a chip"


def test_the_front_figure_shows_what_its_caption_says():
    kept = json.loads((claims.RESULTS / "front.json").read_text())
    assert {"commit", "date", "machine", "command"} <= kept.keys()
    ends = {
        name: {key: curve["mean"][-1] for key, curve in curves.items()}
        for name, curves in kept["curves"].items()
    }
    assert ends["CKB"]["latency"] <= kept["limit"]
    assert ends["RPOL"]["latency"] <= kept["limit"]
    assert ends["GP-UCB, no limit"]["latency"] > kept["limit"]
    assert ends["GP-UCB, no limit"]["missed"] < 0
