"""The README's first screen runs as it stands."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"


def test_the_first_screen_runs(capsys):
    (code, *_) = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.S)
    assert code.count("\n") <= 20
    exec(compile(code, "README.md", "exec"), {})
    assert "reward" in capsys.readouterr().out


@pytest.mark.parametrize("path", re.findall(r"\]\(([^)]+)\)", README.read_text()))
def test_what_it_links_to_is_there(path):
    assert (README.parent / path).exists()
