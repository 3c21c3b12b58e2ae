"""The check of links in the pages of the documentation; `make docs` builds them."""

from __future__ import annotations

import json
from pathlib import Path

import docs


def test_links_that_lead_nowhere_are_named(tmp_path):
    (tmp_path / "below").mkdir()
    (tmp_path / "a.html").write_text(
        '<h1 id="top">A</h1><a href="below/b.html#there">b</a><a href="#top">top</a>'
        '<a href="below/none.html">c</a><a href="below/b.html#none">d</a>'
        '<a href="https://example.org/x">e</a><img src="data:image/png;base64,AA">'
    )
    (tmp_path / "below" / "b.html").write_text(
        '<p id="there"></p><a href="../a.html">a</a><img src="x.png">'
        '<a href="#no">n</a>'
    )
    assert docs.broken(tmp_path) == [
        "a.html: below/none.html",
        "a.html: below/b.html#none",
        "below/b.html: x.png",
        "below/b.html: #no",
    ]


def test_only_guesses_at_members_are_unlinked():
    page = (
        '<p id="CKB"></p><p id="CKB.move"></p><a href="#CKB.ask">ask</a>'
        '<a href="#CKB.move">move</a><a href="#Lost.ask">lost</a>'
    )
    assert docs.without_guesses(page) == (
        '<p id="CKB"></p><p id="CKB.move"></p>ask'
        '<a href="#CKB.move">move</a><a href="#Lost.ask">lost</a>'
    )


def test_links_of_notebooks_lead_somewhere():
    """Between notebooks; the pages themselves are checked by make docs."""
    folder = Path(docs.ROOT) / "notebooks"
    for path in folder.glob("*.ipynb"):
        for cell in json.loads(path.read_text())["cells"]:
            if cell["cell_type"] == "markdown":
                for link in docs.MARKDOWN_LINK.findall("".join(cell["source"])):
                    if "://" not in link:
                        assert (folder / link.partition("#")[0]).exists(), (path, link)
