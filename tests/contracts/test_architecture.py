"""The layout: no circles, shallow classes, what files open with.

Each test lists its offenders, one a line, as ``path:line: what is wrong``.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Callable, Iterable
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
from house import reaches
from inside import engine_choice
from places import ROOT

PACKAGES = {"cbandit": ROOT, "cbandit_kernels": ROOT / "kernels"}

DEEPEST = 4  # Policy, GPPolicy, CKB, and CKBRestart, which is CKB by another name


# ------------------------------------------------------------------ what is in the tree


def _modules() -> dict[str, Path]:
    """All modules of both packages, by dotted name."""
    found = {}
    for package, root in PACKAGES.items():
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            found[".".join(parts).removesuffix(".__init__")] = path
    return found


MODULES = _modules()


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def at(path: Path, node: ast.AST | None = None) -> str:
    return f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}"


def none(offenders: Iterable[str]) -> None:
    found = sorted(set(offenders))
    assert not found, "\n" + "\n".join(found)


def none_outside(home: Path, asked: Callable[[ast.AST], set[str]], advice: str) -> None:
    """No file outside of ``home`` asks for an engine."""
    none(
        f"{at(path, node)}: {', '.join(asked(node))} is an engine; {advice}"
        for path in MODULES.values()
        if home not in path.parents
        for node in ast.walk(tree(path))
        if asked(node)
    )


# ------------------------------------------------------------------------------ imports


def test_no_import_circle():
    """Modules, that is; which room may import which stands in pyproject.toml."""
    graph = grimp.build_graph(*PACKAGES)
    after = {
        each: graph.find_modules_directly_imported_by(each) - {"cbandit"}
        for each in graph.modules - {"cbandit"}
    }
    TopologicalSorter(after).prepare()  # CycleError names the circle


# ---------------------------------------------------------------------- size and shape


def test_no_class_is_deep():
    def depth(kind: type) -> int:
        """Return how many of our classes lie between this one and those of others."""
        if kind.__module__.partition(".")[0] not in PACKAGES:
            return 0
        return 1 + max(map(depth, kind.__bases__))

    none(
        f"{at(path)}: {kind.__name__} is {depth(kind)} deep, more than {DEEPEST}"
        for name, path in MODULES.items()
        if path.stem != "__main__" and "_triton" not in name
        for kind in vars(importlib.import_module(name)).values()
        if isinstance(kind, type) and kind.__module__ == name
        if depth(kind) > DEEPEST
    )


def test_no_engine_is_asked_what_it_is():
    home = MODULES["cbandit.posterior.engines"].parent
    engines = {
        node.name
        for path in home.glob("*.py")
        for node in tree(path).body
        if isinstance(node, ast.ClassDef)
    }

    def asked(node: ast.AST) -> set[str]:
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance":
            node = node.args[1]
        elif not isinstance(node, ast.MatchClass):
            return set()
        return engines & set(re.findall(r"\w+", ast.unparse(node)))

    none_outside(home, asked, "give it a method")


def test_no_engine_is_asked_its_name():
    home = MODULES["cbandit.posterior.engines"].parent
    names = {*engine_choice.ENGINES, "dense"} - {"auto"}

    def asked(node: ast.AST) -> set[str]:
        if not isinstance(node, ast.Compare) or ".name" not in ast.unparse(node):
            return set()
        words = (each for each in ast.walk(node) if isinstance(each, ast.Constant))
        return names & {word.value for word in words}

    none_outside(home, asked, "give it a property")


def test_no_function_reaches_into_what_it_is_given():
    none(reaches())


# ------------------------------------------------------------------------------- prose


DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def test_no_docstring_begins_with_what():
    none(
        f"{at(path, node)}: say what it does or returns: {first}"
        for path in MODULES.values()
        for node in ast.walk(tree(path))
        if isinstance(node, DOCUMENTED)
        for first in (ast.get_docstring(node) or "").splitlines()[:1]
        if re.match(r"What\b", first)
    )


def test_every_folder_says_what_it_is_for():
    folders = {path.parent for path in MODULES.values()}
    files = {folder: folder / "__init__.py" for folder in folders}
    none(
        f"{folder.relative_to(ROOT)}: no docstring in its __init__.py"
        for folder, file in sorted(files.items())
        if not file.exists() or not ast.get_docstring(tree(file))
    )


# The papers on which policies rest, as their title pages have them.
TITLES = {
    "X. Zhou and B. Ji": "On kernelized multi-armed bandits with constraints",
    "Z. Shi and A. Eryilmaz": "A Bayesian approach for stochastic continuum-armed "
    "bandit with long-term constraints",
    "A. Pacchiano, M. Ghavamzadeh, P. Bartlett": "Contextual bandits with stage-wise "
    "constraints",
    "H. Guo, Q. Zhu and X. Liu": "Rectified pessimistic-optimistic learning for "
    "stochastic continuum-armed bandit with constraints",
}


def test_papers_are_cited_as_their_title_pages_have_them():
    """Whole citations begin with an initial; short ones have last names alone."""
    cited = {f"{names}, {title},".lower() for names, title in TITLES.items()}
    short = {re.sub(r"\b[A-Z]\. ", "", names) for names in TITLES}
    whole = r"\b[A-Z]\. (?:Shi|Guo|Pacchiano|Zhou and)\b"
    two = r"(?<!\. )\b(?:Guo, \w+ and \w+|(?:Zhou|Shi) and \w+)\b"
    texts = {
        path: " ".join(path.read_text().replace("*", "").split())
        for path in MODULES.values()
    }
    none(
        f"{at(path)}: {text[found.start() : found.start() + 80]}"
        for path, text in texts.items()
        for found in re.finditer(f"{whole}|{two}", text)
        if found.group() not in short
        and not text[found.start() :].lower().startswith(tuple(cited))
    )
