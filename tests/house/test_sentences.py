"""Text made for people is read back by nobody outside ``report/``: what a program asks is a field."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest
from packages import trees

#: Methods that take a text apart, or ask how it begins.
PARTING = {
    "startswith",
    "endswith",
    "removeprefix",
    "removesuffix",
    "partition",
    "rpartition",
    "split",
    "rsplit",
}
PARTING |= {"splitlines", "find", "rfind", "index", "fullmatch", "match", "search", "sub"}
#: Names that texts for people bear, as variables and as fields.
TEXTS = {
    *("advice", "caveat", "description", "golden", "line", "message", "note", "notes", "problem", "reason"),
    *(
        "remark",
        "remarks",
        "remedy",
        "said",
        "sentence",
        "summary",
        "text",
        "told",
        "warning",
        "warnings",
        "why",
    ),
}
#: Modules that take apart a text that is none of ours, or made for programs, and what that is.
FORMATS = {
    "case.plan_file": "numbers as Python writes them",
    "data.files": "what NumPy says of a file",
    "runtime.trt.calibration": "calibration caches",
    "runtime.children": "facts that a child process tells",
    "init.data": "lists of labels",
    "names": "names and texts of others",
    "plugin.reporting": "what pytest and pytest-xdist write",
    "plugin.terminal": "lines of a text that are wrapped to the terminal",
    "observers.scales": "files that may be binary",
    "observers.scale_files": "JSON",
    "init.templates": "templates, and their placeholders",
    "scores.tasks": "texts that models read",
    "spec.yaml": "YAML, and what PyYAML says of it",
}


def named(node: ast.expr) -> str:
    """The last name of what is asked: ``reason`` of ``outcome.reason`` and of ``reason[0]``."""
    while isinstance(node, ast.Subscript | ast.Call):
        node = node.value if isinstance(node, ast.Subscript) else node.func
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def readings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and code of each test of what a text for people holds."""
    for node in ast.walk(tree):
        asked: list[ast.expr] = []
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in PARTING:
            regular = isinstance(node.func.value, ast.Name) and node.func.value.id == "re"
            asked = node.args if regular else [node.func.value]
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
            literal = isinstance(node.left, ast.Constant) and isinstance(node.left.value, str)
            asked = node.comparators if literal or named(node.left).isupper() else []
        if any(named(each) in TEXTS for each in asked):
            yield node.lineno, ast.unparse(node)


def test_no_module_reads_a_sentence_back():
    for path, tree in trees().items():
        name = path.removesuffix(".py").replace("/", ".")
        if name.startswith("report."):
            continue
        found = [f"line {line}: {code}" for line, code in readings(tree)]
        assert bool(found) == (name in FORMATS), f"{name}: {found or 'no longer takes a text apart'}"


@pytest.mark.parametrize(
    "code",
    [
        'outcome.reason.startswith("stopped")',
        '"Ctrl-C" in result.reason',
        "IN_VAIN in note",
        'notes[0].partition(":")',
        're.split(" [<>] ", criterion.text)',
        'told().removeprefix("Skipped: ")',
    ],
)
def test_the_test_can_see_a_reading(code):
    assert list(readings(ast.parse(code))) == [(1, ast.unparse(ast.parse(code)))]


@pytest.mark.parametrize(
    "code", ["name in notes", "path.name.endswith(SUFFIXES)", "len(reason)", '"a" in names']
)
def test_the_test_sees_no_reading_where_there_is_none(code):
    assert not list(readings(ast.parse(code)))
