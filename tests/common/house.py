"""The size of the library, and how far a round goes through it.

As a script it prints both: ``house.py``. Lines of code are those with code on them: no
docstrings, comments or blank lines.
"""

from __future__ import annotations

import ast
import gc
import io
import sys
import tokenize
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from places import ROOT

HOME = ROOT / "cbandit"
ROUNDS = 12  # before one is followed
BLANK = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef


def _docstrings(tree: ast.Module) -> Iterator[int]:
    for node in ast.walk(tree):
        for statement in getattr(node, "body", []) if _named(node) else []:
            match statement:
                case ast.Expr(ast.Constant(str())):
                    yield from range(statement.lineno, _end(statement) + 1)


def _named(node: ast.AST) -> bool:
    return isinstance(node, ast.Module | ast.ClassDef | FUNCTIONS)


def _end(node: ast.stmt) -> int:
    return node.end_lineno or node.lineno


def lines_of_code(path: Path) -> int:
    """Return how many lines of a file have code on them."""
    text, lines = path.read_text(), set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in BLANK:
            lines |= {*range(token.start[0], token.end[0] + 1)}
    return len(lines - {*_docstrings(ast.parse(text))})


def rooms() -> Counter[str]:
    """Return the lines of code of each room."""
    sizes: Counter[str] = Counter()
    for path in HOME.rglob("*.py"):
        room, *inside = path.relative_to(HOME).parts
        sizes[room if inside else "top"] += lines_of_code(path)
    return sizes


# private parts that others' objects have and ours have not: named tuples', BoTorch's
OTHERS = {
    "_interleaved",
    "_replace",
    "_task_feature",
}


def reaches() -> list[str]:
    """Return where a function outside classes takes a private part of an argument."""
    return [
        f"{path.relative_to(HOME.parent)}:{node.lineno}: {ast.unparse(node)}"
        for path in sorted(HOME.rglob("*.py"))
        for outer in _outside_classes(ast.parse(path.read_text()))
        for node in ast.walk(outer)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        if node.attr.startswith("_") and not node.attr.startswith("__")
        if node.attr not in OTHERS
        if node.value.id in {each.arg for each in _arguments(outer)} - {"cls"}
    ]


def _outside_classes(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, FUNCTIONS):
            yield node
        elif not isinstance(node, ast.ClassDef):
            yield from _outside_classes(node)


def _arguments(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.arg]:
    names = node.args
    rest = [each for each in (names.vararg, names.kwarg) if each]
    return [*names.posonlyargs, *names.args, *names.kwonlyargs, *rest]


def anything() -> int:
    """Return how many parameters have the type ``Any``, alone."""
    return sum(
        isinstance(argument.annotation, ast.Name) and argument.annotation.id == "Any"
        for path in HOME.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, FUNCTIONS)
        for argument in _arguments(node)
    )


def followed(call: Callable[[], Any]) -> tuple[Any, list[tuple[str, str]]]:
    """Return an answer, and the file and name of each frame of ours on the way."""
    frames = []

    def note(frame: Any, event: str, _: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and HOME in path.parents:
            frames.append((str(path.relative_to(HOME)), frame.f_code.co_name))

    before = sys.getprofile()
    gc.disable()  # it would finalise objects of other tests on the way
    sys.setprofile(note)
    try:
        return call(), frames
    finally:
        sys.setprofile(before)
        gc.enable()


def one_round() -> dict[str, list[tuple[str, str]]]:
    """Return the frames of an ``ask`` and of a ``tell`` of CKB on a small grid."""
    import gpytorch
    import torch

    import cbandit as cb

    axis = torch.linspace(0, 1, 10, dtype=torch.float64)
    kernel = gpytorch.kernels.RBFKernel().double()
    kernel.lengthscale = torch.tensor(0.3, dtype=torch.float64)
    belief = cb.GP(kernel, noise=0.01)
    grid, agreed = cb.ProductGrid([axis, axis]), {"thresholds": 0.1, "step": 0.1}
    policy = cb.CKB(grid, reward=belief, costs=belief, cap=5.0, **agreed)
    for _ in range(ROUNDS):
        choice, ask = followed(policy.ask)
        reward, cost = float(choice.x.sum()), float(choice.x[0])
        _, tell = followed(lambda: policy.tell(choice, reward=reward, cost=cost))
    return {"ask": ask, "tell": tell}


def main() -> None:
    """Print the sizes, and the way of a round."""
    for room, lines in (sizes := rooms()).most_common():
        print(f"{lines:6d} {room}")
    print(f"{sizes.total():6d} lines of code")
    for name, frames in one_round().items():
        print(f"{name}: {len(frames)} frames in {len({file for file, _ in frames})}")
    print(f"{len(reaches())} reaches into an argument's private parts")
    print(f"{anything()} parameters of type Any")


if __name__ == "__main__":
    main()
