"""The layout: who imports whom, what files open with.

Each test lists its offenders, one a line, as ``path:line: what is wrong``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

from house import reaches
from inside import engine_choice
from places import ROOT

PACKAGES = {"cbandit": ROOT, "cbandit_kernels": ROOT / "kernels"}

# A room imports from its own line and those above it, whether at run time, for types
# or inside a function. "cbandit" is the package's own __init__, which names them all.
ORDER = """
    cbandit_kernels
    errors
    _core
    scores multipliers confidence explore account choice
    actions
    beliefs receipt
    posterior
    search
    recommend explain
    policies
    acquisition
    baselines
    problems
    simulation
    cbandit
    experiments
    optuna
    cli __main__
"""
RANK = {
    room: rank
    for rank, line in enumerate(ORDER.strip().splitlines())
    for room in line.split()
}
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


def imports(path: Path, name: str) -> Iterator[tuple[ast.AST, str, str]]:
    """Each import of ours in the file of module ``name``: node, module, name in it."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            named = [(each.name, "") for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            home = node.module or ""
            if node.level:
                up = name.split(".")
                up = up[: len(up) - node.level + (path.name == "__init__.py")]
                home = ".".join([*up, *home.split(".")]).rstrip(".")
            named = [(home, each.name) for each in node.names]
        elif isinstance(node, ast.Call) and "import_module" in ast.unparse(node.func):
            text = [a.value for a in node.args if isinstance(a, ast.Constant)]
            named = [(str(module), "") for module in text]
        else:
            continue
        for module, inside in named:
            if module.partition(".")[0] not in PACKAGES:
                continue
            if f"{module}.{inside}" in MODULES:
                module, inside = f"{module}.{inside}", ""
            yield node, module, inside


EDGES = [
    (name, module, at(path, node))
    for name, path in MODULES.items()
    if name != "cbandit"
    for node, module, _ in imports(path, name)
]


def room(module: str) -> str:
    """The line of ``ORDER`` on which a module stands."""
    parts = module.split(".")
    return parts[1] if parts[0] == "cbandit" and len(parts) > 1 else parts[0]


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
    after = {name: {to for start, to, _ in EDGES if start == name} for name in MODULES}

    def reached(name: str) -> set[str]:
        seen, waiting = set(), [name]
        while waiting:
            new = after.get(waiting.pop(), set()) - seen
            seen |= new
            waiting += new
        return seen

    reach = {name: reached(name) for name in MODULES}
    none(
        f"{where}: {to} imports this module in turn"
        for name, to, where in EDGES
        if name in reach.get(to, ())
    )


def test_no_room_imports_from_a_later_one():
    none(
        f"{where}: {room(name)} imports {to}, of a later room"
        for name, to, where in EDGES
        if RANK.get(room(to), 99) > RANK.get(room(name), 99)
    )


def test_every_file_is_in_a_room():
    none(
        f"{at(path)}: {room(name)} is not in ORDER"
        for name, path in MODULES.items()
        if room(name) not in RANK
    )


# ---------------------------------------------------------------------- size and shape


def test_no_class_is_deep():
    classes, homes = {}, {}
    for name, path in MODULES.items():
        for _, module, inside in imports(path, name):
            homes[name, inside] = module
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef):
                classes[name, node.name] = path, node

    def depth(module: str, name: str) -> int:
        """How many of our classes lie between this one and those of others."""
        while (module, name) not in classes and (module, name) in homes:
            module = homes[module, name]
        if (module, name) not in classes:
            return 0
        bases = [ast.unparse(base) for base in classes[module, name][1].bases]
        return 1 + max((depth(module, base) for base in bases), default=0)

    deep = {key: depth(*key) for key in classes}
    none(
        f"{at(*classes[key])}: {key[1]} is {deep[key]} deep, more than {DEEPEST}"
        for key in classes
        if deep[key] > DEEPEST
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


def test_nothing_is_asserted():
    none(
        f"{at(path, node)}: assert; raise, or make the type say it"
        for path in MODULES.values()
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Assert)
    )


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
