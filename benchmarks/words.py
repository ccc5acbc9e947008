"""Draws docstrings and comments of two trees for a reader: python -m benchmarks.words OLD NEW --out DIR.

Five rooms are drawn by a seed. From each room ten docstrings and ten comments of each tree are drawn, mixed,
and numbered. ``DIR/texts.txt`` is for the reader, who says of each text whether it is understood at the first
reading. ``DIR/key.json`` says which tree and place each number comes from.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import random
import tokenize
from collections.abc import Iterator
from pathlib import Path

#: Rooms of the new tree, each with the rooms of the old tree that its code comes from.
ROOMS = {
    "graph": ("graph",),
    "report": ("report",),
    "answer": ("diagnose", "repair", "check"),
    "case": ("case", "measure"),
    "scores": ("scores",),
    "runtime": ("engines", "backends"),
    "observers": ("scales",),
    "data": ("data",),
    "spec": ("spec",),
    "init": ("init",),
    "goldens": ("goldens",),
    "plugin": ("plugin",),
    "lab": ("lab",),
    "search": ("search",),
}
ROOMS_DRAWN, TEXTS_DRAWN = 5, 10
PACKAGE = "pytest_int8acc"


def docstrings(text: str) -> Iterator[tuple[str, str]]:
    """Yields the name and the docstring of each module, class and function, with the signature's first line.

    A string below a field of a class is its docstring, too.
    """
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.ClassDef | ast.FunctionDef):
            continue
        if said := ast.get_docstring(node):
            yield lines[node.lineno - 1].strip(), said
        if isinstance(node, ast.ClassDef):
            for field, below in zip(node.body, node.body[1:], strict=False):
                value = below.value if isinstance(below, ast.Expr) else None
                if isinstance(field, ast.AnnAssign) and isinstance(value, ast.Constant):
                    yield ast.unparse(field), str(value.value)


def comments(text: str) -> Iterator[tuple[str, str]]:
    """Yields each comment that stands on lines of its own, with the line of code below it."""
    lines = text.splitlines()
    rows = [
        token.start[0] - 1
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT and lines[token.start[0] - 1].strip().startswith("#")
    ]
    block: list[str] = []
    for row in rows:
        block.append(lines[row].strip().lstrip("#: "))
        if row + 1 not in rows:
            if not block[0].startswith(("type:", "noqa")):
                yield lines[row + 1].strip() if row + 1 < len(lines) else "", " ".join(block)
            block = []


def drawn(tree: Path, rooms: tuple[str, ...], chance: random.Random) -> list[dict[str, str]]:
    """Returns ten docstrings and ten comments of a tree's rooms, fewer where there are fewer."""
    found: dict[str, list[dict[str, str]]] = {"docstring": [], "comment": []}
    for room in rooms:
        for path in sorted((tree / PACKAGE / room).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            for kind, texts in (("docstring", docstrings(text)), ("comment", comments(text))):
                for code, said in texts:
                    place = path.relative_to(tree).as_posix()
                    found[kind].append({"kind": kind, "place": place, "code": code, "text": said})
    return [one for texts in found.values() for one in chance.sample(texts, min(TEXTS_DRAWN, len(texts)))]


def main() -> None:
    """Write the texts and the key."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=28)
    args = parser.parse_args()
    chance = random.Random(args.seed)
    texts = []
    for room in chance.sample(sorted(ROOMS), ROOMS_DRAWN):
        texts += [{**text, "tree": "old", "room": room} for text in drawn(args.old, ROOMS[room], chance)]
        texts += [{**text, "tree": "new", "room": room} for text in drawn(args.new, (room,), chance)]
    chance.shuffle(texts)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "key.json").write_text(json.dumps(texts, indent=1))
    rows = [f"{n}. ({t['kind']} of: {t['code']})\n{t['text']}\n" for n, t in enumerate(texts, 1)]
    (args.out / "texts.txt").write_text("\n".join(rows))


if __name__ == "__main__":
    main()
