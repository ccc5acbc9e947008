"""Draw mutants of the package, in proportion to the size of its rooms: python -m benchmarks.mutants.draw.

A mutant replaces a piece of one line. It is stored by what the line says and by the function that the line
is in, never by a line number, so that it can be planted in a later state of the package too.
"""

from __future__ import annotations

import argparse
import ast
import collections
import json
import random
import re
from dataclasses import asdict, dataclass
from pathlib import Path

LIST = Path(__file__).with_name("mutants.json")
PACKAGE = "pytest_int8acc"
#: The room of modules that lie directly in the package.
TOP = "(top)"
#: Mutants of a room at least, however small it is.
LEAST_OF_A_ROOM = 3

_FLIPPED = {
    **{ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.Lt: ("<", ">="), ast.Gt: (">", "<=")},
    **{ast.LtE: ("<=", ">"), ast.GtE: (">=", "<"), ast.In: ("in", "not in"), ast.NotIn: ("not in", "in")},
    **{ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is")},
}
_BOUNDARY = {ast.Lt: ("<", "<="), ast.Gt: (">", ">="), ast.LtE: ("<=", "<"), ast.GtE: (">=", ">")}
_ARITHMETIC = {
    **{ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*")},
    **{ast.FloorDiv: ("//", "*"), ast.Mod: ("%", "*"), ast.Pow: ("**", "*")},
}
_PATHS = re.compile(r"folder|path|parent|root|place|file|name|FOLDER|tree", re.IGNORECASE)
#: Keyword arguments that hold text for people.
_WORDS = {"help", "description", "examples", "title", "metavar", "match", "encoding"}


@dataclass(frozen=True)
class Mutant:
    """One planted fault: in ``line`` of ``function``, ``old``, which begins at ``start``, becomes ``new``."""

    name: str
    kind: str
    file: str
    #: Dotted name of the function or class that the line is in; empty at a module's top.
    function: str
    #: The line without indentation; ``start`` counts from its first character.
    line: str
    #: Which one of equal lines in this function, from 0.
    occurrence: int
    start: int
    old: str
    new: str

    @property
    def room(self) -> str:
        """The folder of the package that the file was in when the list was made."""
        parts = Path(self.file).parts
        return parts[1] if len(parts) > 2 else TOP


@dataclass(frozen=True)
class _Change:
    kind: str
    function: str
    row: int
    start: int
    old: str
    new: str


def changes(text: str) -> list[_Change]:
    """Return every change that could be made to a module, each within one line."""
    finder = _Finder(text)
    finder.visit(ast.parse(text))
    return [change for change in finder.found if _parses(text, change)]


def _parses(text: str, change: _Change) -> bool:
    lines = text.splitlines(keepends=True)
    line = lines[change.row]
    lines[change.row] = line[: change.start] + change.new + line[change.start + len(change.old) :]
    try:
        ast.parse("".join(lines))
    except SyntaxError:
        return False
    return True


class _Finder(ast.NodeVisitor):
    """Collects changes; messages, docstrings, annotations, decorators and imports stay as they are."""

    def __init__(self, text: str) -> None:
        self.lines = text.splitlines()
        self.scope: list[str] = []
        self.found: list[_Change] = []

    def add(self, kind: str, row: int, start: int, old: str, new: str) -> None:
        line = self.lines[row - 1]
        if line.isascii() and line[start : start + len(old)] == old:
            self.found.append(_Change(kind, ".".join(self.scope), row - 1, start, old, new))

    def add_node(self, kind: str, node: ast.expr | ast.stmt, new: str) -> None:
        """Replace a whole node that stands in one line."""
        if node.lineno == node.end_lineno:
            old = self.lines[node.lineno - 1][node.col_offset : node.end_col_offset]
            self.add(kind, node.lineno, node.col_offset, old, new)

    def between(self, kind: str, left: ast.expr, right: ast.expr, words: tuple[str, str]) -> None:
        """Replace the operator between two nodes of one line."""
        if left.end_lineno != right.lineno or left.end_col_offset is None:
            return
        gap = self.lines[right.lineno - 1][left.end_col_offset : right.col_offset]
        if gap.count(words[0]) == 1:
            self.add(kind, right.lineno, left.end_col_offset + gap.index(words[0]), *words)

    def visit_body(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        self.scope.append(node.name)
        for statement in node.body:
            self.visit(statement)
        self.scope.pop()

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.visit_body(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        defaults = [*node.args.defaults, *node.args.kw_defaults]
        self.scope.append(node.name)
        for default in defaults:
            if default is not None:
                self.visit(default)
        self.scope.pop()
        self.visit_body(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Text of messages."""

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant):
            return
        if self.scope and isinstance(node.value, ast.Call):
            self.add_node("statement deleted", node, "pass")
        self.visit(node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        if isinstance(node.targets[0], (ast.Subscript, ast.Attribute)):
            self.add_node("statement deleted", node, "pass")
        self.visit(node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.add_node("statement deleted", node, "pass")
        self.visit(node.value)

    def visit_Continue(self, node: ast.Continue) -> None:
        self.add_node("statement deleted", node, "pass")

    def visit_Raise(self, node: ast.Raise) -> None:
        self.add_node("statement deleted", node, "pass")

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is None:
            self.add_node("statement deleted", node, "pass")
            return
        if not (isinstance(node.value, ast.Constant) and node.value.value is None):
            self.add_node("returns None", node, "return None")
        self.visit(node.value)

    def visit_If(self, node: ast.If) -> None:
        if ast.unparse(node.test) in ("TYPE_CHECKING", "__name__ == '__main__'"):
            return
        self.branch(node.test)
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self.branch(node.test)
        self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        self.add_node("branch never taken", node.test, "False")
        self.generic_visit(node)

    def branch(self, test: ast.expr) -> None:
        self.add_node("branch always taken", test, "True")
        self.add_node("branch never taken", test, "False")

    def visit_Compare(self, node: ast.Compare) -> None:
        left = node.left
        for operator, right in zip(node.ops, node.comparators, strict=True):
            self.between("comparison flipped", left, right, _FLIPPED[type(operator)])
            if type(operator) in _BOUNDARY:
                self.between("boundary moved", left, right, _BOUNDARY[type(operator)])
            left = right
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        words = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            self.between("and / or", left, right, words)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self.add("not dropped", node.lineno, node.col_offset, "not ", "")
        if isinstance(node.op, ast.USub):
            self.add("constant changed", node.lineno, node.col_offset, "-", "")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        texts = [side for side in (node.left, node.right) if _is_text(side)]
        if type(node.op) in _ARITHMETIC and not texts and not _joins_paths(node):
            self.between("operator changed", node.left, node.right, _ARITHMETIC[type(node.op)])
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self.add_node("constant changed", node, str(not node.value))
        elif isinstance(node.value, int):
            self.add_node("constant changed", node, str(node.value + 1))
        elif isinstance(node.value, float):
            self.add_node("constant changed", node, repr(node.value * 2 if node.value else 1.0))

    def visit_Call(self, node: ast.Call) -> None:
        for keyword in node.keywords:
            named = keyword.arg is not None and keyword.arg not in _WORDS
            if named and keyword.lineno == keyword.value.end_lineno:
                self.keyword(keyword)
        self.generic_visit(node)

    def keyword(self, keyword: ast.keyword) -> None:
        line = self.lines[keyword.lineno - 1]
        start, end = keyword.col_offset, keyword.value.end_col_offset or 0
        if line[:start].endswith(", "):
            start -= 2
        elif line[end:].startswith(", "):
            end += 2
        elif line[end:].startswith(","):
            end += 1
        self.add("keyword argument dropped", keyword.lineno, start, line[start:end], "")

    def visit_Import(self, node: ast.Import) -> None:
        """Nothing to change."""

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        """Nothing to change."""


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _joins_paths(node: ast.BinOp) -> bool:
    """Whether a division looks like one of paths: changed, it would fail wherever it runs."""
    return isinstance(node.op, ast.Div) and _PATHS.search(ast.unparse(node)) is not None


@dataclass(frozen=True)
class Scope:
    """A function or a class of a module, and the lines that it takes, decorators included."""

    name: str
    first: int
    last: int
    is_class: bool


def scopes(text: str) -> list[Scope]:
    """Return the functions and classes of a module, outer ones before those inside them."""
    found: list[Scope] = []

    def look_inside(node: ast.AST, outer: str) -> None:
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                look_inside(child, outer)
                continue
            name = f"{outer}.{child.name}" if outer else child.name
            first = min([child.lineno, *(decorator.lineno for decorator in child.decorator_list)])
            found.append(Scope(name, first, child.end_lineno or first, isinstance(child, ast.ClassDef)))
            look_inside(child, name)

    look_inside(ast.parse(text), "")
    return found


def scope_of_rows(text: str) -> list[str]:
    """Return for each line of a module the dotted name of the innermost function or class it is in."""
    names = [""] * len(text.splitlines())
    for scope in scopes(text):
        names[scope.first - 1 : scope.last] = [scope.name] * (scope.last - scope.first + 1)
    return names


def _size(text: str) -> int:
    return sum(1 for _ in ast.walk(ast.parse(text)))


def _mutant(file: str, text: str, change: _Change, number: int) -> Mutant:
    lines, names = text.splitlines(), scope_of_rows(text)
    line = lines[change.row]
    stripped = line.strip()
    scope = names[change.row]
    above = zip(lines[: change.row], names[: change.row], strict=True)
    occurrence = sum(1 for other, name in above if other.strip() == stripped and name == scope)
    start = change.start - (len(line) - len(line.lstrip()))
    name = f"{number:03d}"
    return Mutant(name, change.kind, file, scope, stripped, occurrence, start, change.old, change.new)


def draw(tree: Path, count: int, seed: int) -> list[Mutant]:
    """Draw ``count`` mutants: a room's share is its share of syntax nodes, and kinds come evenly."""
    texts = {path.relative_to(tree).as_posix(): path.read_text() for path in (tree / PACKAGE).rglob("*.py")}
    sizes: collections.Counter[str] = collections.Counter()
    by_room: dict[str, list[tuple[str, _Change]]] = collections.defaultdict(list)
    for file in sorted(texts):
        parts = Path(file).parts
        room = parts[1] if len(parts) > 2 else TOP
        sizes[room] += _size(texts[file])
        by_room[room] += [(file, change) for change in changes(texts[file])]
    shares = _shares(sizes, count)
    generator = random.Random(seed)
    used: collections.Counter[str] = collections.Counter()
    drawn: list[Mutant] = []
    for room in sorted(shares):
        taken: set[tuple[str, str]] = set()
        for _ in range(shares[room]):
            # One mutant a function, as long as there are functions without one.
            free = [c for c in by_room[room] if (c[0], c[1].function) not in taken] or by_room[room]
            kinds = sorted({change.kind for _, change in free})
            rarest = min(used[kind] for kind in kinds)
            kind = generator.choice([kind for kind in kinds if used[kind] <= rarest + 1])
            file, change = generator.choice([c for c in free if c[1].kind == kind])
            used[kind] += 1
            taken.add((file, change.function))
            by_room[room].remove((file, change))
            drawn.append(_mutant(file, texts[file], change, len(drawn)))
    return drawn


def _shares(sizes: collections.Counter[str], count: int) -> dict[str, int]:
    """Mutants by room: in proportion to its size, and ``LEAST_OF_A_ROOM`` at least; the largest give way."""
    total = sum(sizes.values())
    shares = {room: max(LEAST_OF_A_ROOM, round(count * size / total)) for room, size in sizes.items()}
    while sum(shares.values()) != count:
        step = 1 if sum(shares.values()) < count else -1
        largest = max(shares, key=lambda room: (shares[room], room))
        shares[largest] += step
    return shares


def read(path: Path = LIST) -> list[Mutant]:
    """Return the mutants of a list."""
    return [Mutant(**row) for row in json.loads(path.read_text())]


def main() -> None:
    """Draw and write the list."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tree", type=Path, default=Path(), help="a copy of the project")
    parser.add_argument("--count", type=int, default=150)
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--list", type=Path, default=LIST, help="file to write")
    args = parser.parse_args()
    drawn = draw(args.tree, args.count, args.seed)
    rows = ",\n".join(json.dumps(asdict(mutant)) for mutant in drawn)
    args.list.write_text(f"[\n{rows}\n]\n")
    for what in ("kind", "room"):
        print(dict(collections.Counter(getattr(mutant, what) for mutant in drawn)))


if __name__ == "__main__":
    main()
