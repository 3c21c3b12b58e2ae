"""The documentation names all that is public, and what it links is there.

``make docs`` builds the pages; a warning of Sphinx is an error there.
"""

from __future__ import annotations

import json
import re

import pytest
from places import ROOT

import cbandit as cb

PAGES = [
    *(ROOT / "docs").glob("*.md"),
    *(ROOT / "docs").glob("[!nr]*/*.md"),  # neither notebooks nor the reference
    *ROOT.glob("*.md"),
    ROOT / "benchmarks" / "README.md",
    ROOT / "kernels" / "README.md",
]
LINK = re.compile(r"\]\(([^)\s]+)\)")
NOT_PAGES = {
    "problems",
    "baselines",
    "optuna",
    "acquisition",
    "receipt",
    "evaluation",
}  # their members are


def test_every_public_name_has_a_page():
    index = (ROOT / "docs" / "reference" / "index.rst").read_text()
    listed = set(re.findall(r"^   ([\w.]+)$", index, flags=re.M))
    public = {name for name in dir(cb) if not name.startswith("_")}
    assert public - NOT_PAGES <= listed
    assert {f"baselines.{name}" for name in cb.baselines.__all__} <= listed
    for name in listed:
        thing = cb
        for part in name.split("."):
            thing = getattr(thing, part)


def test_every_notebook_is_in_the_gallery():
    gallery = (ROOT / "docs" / "gallery.md").read_text()
    listed = set(re.findall(r"^notebooks/(\w+)$", gallery, flags=re.M))
    assert listed == {path.stem for path in (ROOT / "notebooks").glob("*.ipynb")}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for link in LINK.findall(page.read_text()):
        if "://" in link or link.startswith("#"):
            continue
        target = page.parent / link.partition("#")[0]
        if page.is_relative_to(ROOT / "docs") and "notebooks/" in link:
            target = ROOT / "notebooks" / target.name  # a build copies them
        assert target.exists(), link


def test_links_of_notebooks_lead_somewhere():
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        for cell in json.loads(path.read_text())["cells"]:
            if cell["cell_type"] == "markdown":
                for link in LINK.findall("".join(cell["source"])):
                    if "://" not in link:
                        target = path.parent / link.partition("#")[0]
                        assert target.exists(), (path, link)
