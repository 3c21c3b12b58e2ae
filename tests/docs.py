"""Build the pages of the documentation, and check their links without a network.

    python tests/docs.py [FOLDER]

The API reference is made of docstrings by pdoc; notebooks become pages with the outputs
that they hold. It ends with 1 if a link within the pages leads nowhere.
"""

from __future__ import annotations

import html
import json
import re
import sys
import warnings
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parents[1]
MARKDOWN_LINK = re.compile(r"\]\(([^)\s]+)\)")
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
body {{ max-width: 56rem; margin: 2rem auto; padding: 0 1rem; color: #222;
  font: 16px/1.5 system-ui, sans-serif; }}
pre {{ background: #f5f5f5; padding: .7rem; overflow-x: auto; font-size: 14px; }}
pre.output {{ background: none; border-left: 3px solid #ccc; }}
img {{ max-width: 100%; }}
</style></head><body><p><a href="{home}">cbandit</a></p>{body}</body></html>
"""


def build(folder: Path) -> None:
    """Write all pages into a folder."""
    import pdoc

    folder.mkdir(parents=True, exist_ok=True)
    pdoc.render.configure(docformat="google", show_source=False)
    with warnings.catch_warnings():
        # names that are imported for type checkers alone stay texts
        warnings.simplefilter("ignore", UserWarning)
        pdoc.pdoc("cbandit", output_directory=folder)
    for path in folder.rglob("*.html"):
        path.write_text(without_guesses(path.read_text()))
    notebooks = folder / "notebooks"
    notebooks.mkdir(exist_ok=True)
    items = ['<li><a href="cbandit.html">API reference</a></li>']
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        title, body = notebook(json.loads(path.read_text()))
        page = PAGE.format(title=html.escape(title), home="../index.html", body=body)
        (notebooks / f"{path.stem}.html").write_text(page)
        link = f"notebooks/{path.stem}.html"
        items.append(f'<li><a href="{link}">{html.escape(title)}</a></li>')
    body = f"<h1>cbandit</h1><ul>{''.join(items)}</ul>"
    index = PAGE.format(title="cbandit", home="index.html", body=body)
    (folder / "index.html").write_text(index)


def without_guesses(page: str) -> str:
    """Return a page of pdoc without its guesses at members that it does not show.

    It takes a word such as ``ask`` for a method that a class inherits from a base that
    is not public, and has no place for it.
    """
    places = _Links(page).places

    def shown(match: re.Match[str]) -> str:
        owner = match["place"].partition(".")[0]
        guess = owner in places and match["place"] not in places
        return match["words"] if guess else match[0]

    link = r'<a href="#(?P<place>\w+\.\w+)">(?P<words>[^<]*)</a>'
    return re.sub(link, shown, page)


def notebook(content: dict[str, Any]) -> tuple[str, str]:
    """Return a notebook's title and its page's body."""
    from markdown2 import markdown

    title, parts = "", []
    for cell in content["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            title = title or source.splitlines()[0].lstrip("# ")
            shown = markdown(source, extras=["fenced-code-blocks", "tables"])
            # notebooks name each other, and files of the project, by their paths
            parts.append(str(shown).replace('.ipynb"', '.html"'))
        elif cell["cell_type"] == "code":
            parts.append(f"<pre>{html.escape(source)}</pre>")
            parts += [part for out in cell["outputs"] for part in _output(out)]
    return title, "\n".join(parts)


def _output(output: dict[str, Any]) -> Iterator[str]:
    data = output.get("data", {})
    if "image/png" in data:
        png = "".join(data["image/png"]).replace("\n", "")
        yield f'<img alt="figure" src="data:image/png;base64,{png}">'
        return
    words = "".join(output.get("text", data.get("text/plain", "")))
    if words:
        yield f'<pre class="output">{html.escape(words)}</pre>'


class _Links(HTMLParser):
    """The links of a page, and the places in it that links may name."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.places: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.places |= {found[key] for key in ("id", "name") if found.get(key)}
        self.links += [found[key] for key in ("href", "src") if found.get(key)]


def broken(folder: Path) -> list[str]:
    """Return the links of a folder's pages that lead nowhere in it, each in words."""
    pages = {path: _Links(path.read_text()) for path in sorted(folder.rglob("*.html"))}
    out = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue  # to the network, or an image within the page
            target = (path.parent / unquote(parts.path)).resolve()
            target = path if not parts.path else target
            place = unquote(parts.fragment)
            known = pages.get(target)
            if not target.exists() or (
                place and known is not None and place not in known.places
            ):
                out.append(f"{path.relative_to(folder)}: {link}")
    return out


def main() -> None:
    folder = Path(sys.argv[1] if sys.argv[1:] else ROOT / "runs" / "docs").resolve()
    build(folder)
    lost = broken(folder)
    print("\n".join([*lost, f"{folder / 'index.html'}: {len(lost)} broken links"]))
    raise SystemExit(bool(lost))


if __name__ == "__main__":
    main()
