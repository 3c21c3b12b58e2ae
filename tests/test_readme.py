"""The README's first screen runs as it stands."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"


def test_the_first_screen_runs(capsys):
    (code, *_) = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.S)
    assert code.count("\n") <= 30
    exec(compile(code, "README.md", "exec"), {})
    said = capsys.readouterr().out
    # what the text below it says of the run
    (mean, late), *_ = re.findall(r"latency ([\d.]+), above 0.5 in (\d+) of", said)
    assert float(mean) < 0.5
    assert int(late) <= 5
    assert re.search(r"reward 1\.2\d*, feasible with probability 0\.9", said)


@pytest.mark.parametrize("path", re.findall(r"\]\(([^)]+)\)", README.read_text()))
def test_what_it_links_to_is_there(path):
    assert (README.parent / path).exists()
