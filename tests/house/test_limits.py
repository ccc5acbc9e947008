"""The house's limits, held by reading the code: short functions, short modules, few positional arguments."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import pytest_int8acc

ROOT = Path(pytest_int8acc.__file__).parent
FUNCTION, MODULE, POSITIONAL = 40, 400, 6
#: Files at the root, each of which every room may come to know.
AT_ROOT = 9
FILES = sorted(ROOT.rglob("*.py"))


def functions(path: Path) -> Iterator[tuple[str, ast.FunctionDef]]:
    """``room/module.py:name`` and syntax tree of every function."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef):
            yield f"{path.relative_to(ROOT).as_posix()}:{node.name}", node


def code_lines(node: ast.FunctionDef) -> int:
    """Lines but for those of the docstring."""
    first = node.body[0]
    lines = (node.end_lineno or 0) - node.lineno + 1
    return lines - ((first.end_lineno or 0) - first.lineno + 1 if ast.get_docstring(node) else 0)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_limits(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MODULE
    for name, node in functions(path):
        assert code_lines(node) <= FUNCTION, name
        named = [a.arg for a in (*node.args.posonlyargs, *node.args.args) if a.arg not in ("self", "cls")]
        assert len(named) <= POSITIONAL, name


def test_the_root_stays_small():
    assert len(list(ROOT.glob("*.py"))) <= AT_ROOT


def test_types_are_shipped():
    assert (ROOT / "py.typed").is_file()
