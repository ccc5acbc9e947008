"""The YAML of a spec as a tree that knows its places.

Plain scalars follow the core schema of YAML 1.2 (https://yaml.org/spec/1.2.2/, 10.3.2): ``1e-3`` is a number,
``012`` is twelve, ``yes`` and ``off`` are text. The tree is made from PyYAML's events, so nothing is
constructed but text, numbers, booleans, null, lists and mappings. Refused: tags, merge keys, duplicate keys,
several documents, aliases that contain themselves or blow up the file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import yaml

#: libyaml's parser where PyYAML has it (8 times as fast), else PyYAML's own.
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
MAX_BYTES = 1 << 20
MAX_DEPTH = 32
#: Nodes with all aliases written out.
MAX_NODES = 50_000

_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
#: How a number is written, and what reads it.
_NUMBERS: tuple[tuple[str, Callable[[str], int | float]], ...] = (
    (r"[-+]?[0-9]{1,30}", int),
    (r"0o[0-7]{1,21}|0x[0-9a-fA-F]{1,16}", lambda text: int(text, 0)),
    (r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", float),
    (r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", lambda text: float(text.replace(".", ""))),
)
_WORDS = dict.fromkeys(("", "~", "null", "Null", "NULL")) | {
    word: word.lower() == "true" for word in ("true", "True", "TRUE", "false", "False", "FALSE")
}

Scalar = str | int | float | bool | None


class Mark(NamedTuple):
    """A place in a file; line and column count from 1, columns in characters."""

    line: int
    column: int


class Mistake(NamedTuple):
    """What is wrong, where."""

    mark: Mark
    text: str


@dataclass(frozen=True, eq=False)
class Node:
    """A value and its place."""

    mark: Mark
    value: Scalar | list[Node] | dict[str, Node]
    keys: dict[str, Mark] = field(default_factory=dict)
    """Where each key of a mapping stands."""
    depth: int = 1
    size: int = 1
    """Nodes in this one, itself included, aliases written out."""

    @property
    def entries(self) -> dict[str, Node]:
        """The values of a mapping by key; empty for anything else."""
        return self.value if isinstance(self.value, dict) else {}

    def plain(self) -> Any:
        """The value in plain Python types."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value

    def only(self, keys: Iterable[str]) -> Node:
        """A mapping cut down to those of ``keys`` that it has."""
        entries = {key: self.entries[key] for key in keys if key in self.entries}
        return Node(self.mark, entries, {key: self.keys[key] for key in entries})

    def over(self, other: Node) -> Node:
        """Two mappings in one, at this one's place; this one's entries win."""
        return Node(self.mark, {**other.entries, **self.entries}, {**other.keys, **self.keys})


@dataclass(frozen=True)
class Document:
    """What was read: ``root`` is None where the file cannot be parsed at all."""

    root: Node | None
    mistakes: list[Mistake]


_TOO_DEEP = f"nested more than {MAX_DEPTH} levels deep; a spec needs 6 at most"


class _UnreadableError(Exception):
    """Nothing more can be read; carries the last mistake."""

    def __init__(self, mark: Mark, text: str) -> None:
        super().__init__(text)
        self.mistake = Mistake(mark, text)


def parse(raw: bytes, max_bytes: int = MAX_BYTES, max_nodes: int = MAX_NODES) -> Document:
    """The one YAML document in ``raw``, UTF-8; never raises, all mistakes are in the result."""
    mistakes: list[Mistake] = []
    text = ""
    try:
        text = _decode(raw, max_bytes)
        return Document(_Composer(text, mistakes, max_nodes).document(), mistakes)
    except _UnreadableError as error:
        mistakes.append(error.mistake)
    except yaml.YAMLError as error:
        mistakes.append(_syntax_mistake(error, text))
    except (ValueError, OverflowError):  # PyYAML's own parser, of "\\UFFFFFFFF"
        mistakes.append(
            Mistake(Mark(1, 1), "not valid YAML: a character code or the YAML version is out of range")
        )
    return Document(None, mistakes)


def resolve(text: str) -> Scalar:
    """The value of a plain (unquoted) scalar by YAML 1.2's core schema.

    Bounded: an integer of more than 30 digits is a float, one in hexadecimal or octal beyond 64 bits is text.
    """
    if text in _WORDS:
        return _WORDS[text]
    return next((read(text) for pattern, read in _NUMBERS if re.fullmatch(pattern, text)), text)


def _decode(raw: bytes, max_bytes: int) -> str:
    """``raw`` as text, a byte order mark of UTF-8 dropped."""
    if len(raw) > max_bytes:
        text = f"the file is larger than {max_bytes >> 20} MiB, too large for a spec"
        raise _UnreadableError(Mark(1, 1), text)
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise _UnreadableError(Mark(1, 1), "the file is UTF-16; save it as UTF-8")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        mark = _mark_at(raw[: error.start].decode("utf-8-sig"))
        raise _UnreadableError(
            mark, f"byte 0x{raw[error.start]:02x} is not UTF-8; save the file as UTF-8"
        ) from None
    if found := _UNPRINTABLE.search(text):
        mark = _mark_at(text[: found.start()])
        raise _UnreadableError(
            mark, f"control character U+{ord(found[0]):04X} is not allowed in YAML; remove it"
        )
    return text


def _mark_at(before: str) -> Mark:
    lines = _BREAK.split(before)
    return Mark(len(lines), len(lines[-1]) + 1)


def _mark(mark: Any) -> Mark:
    return Mark(mark.line + 1, mark.column + 1)


class _Composer:
    """Makes nodes of the parser's events."""

    def __init__(self, text: str, mistakes: list[Mistake], max_nodes: int) -> None:
        self.events: Iterator[Any] = yaml.parse(text, Loader=LOADER)
        self.mistakes = mistakes
        self.max_nodes = max_nodes
        self.anchors: dict[str, Node | None] = {}
        """None while the anchored node is still open."""
        self.count = 0

    def document(self) -> Node:
        next(self.events)  # the stream's start
        if isinstance(next(self.events), yaml.StreamEndEvent):
            raise _UnreadableError(
                Mark(1, 1), "the file is empty; a spec needs at least 'model:', 'inputs:' and 'int8:'"
            )
        root = self.node(next(self.events), 1)
        next(self.events)  # the document's end
        after = next(self.events)
        if not isinstance(after, yaml.StreamEndEvent):
            text = "a second document starts here; a spec is one document: list several cases under 'cases:'"
            self.mistakes.append(Mistake(_mark(after.start_mark), text))
        return root

    def node(self, event: Any, depth: int) -> Node:
        """The node that ``event`` starts; ``depth`` counts from 1."""
        mark = _mark(event.start_mark)
        if isinstance(event, yaml.AliasEvent):
            return self.alias(str(event.anchor), mark, depth)
        self.take(1, depth, mark)
        if event.anchor is not None:
            self.anchors[event.anchor] = None
        if event.tag is not None:
            tag = event.tag.replace("tag:yaml.org,2002:", "!!")
            text = f"tag {tag} is not allowed; write the plain value, with quotes if it is text"
            self.mistakes.append(Mistake(mark, text))
        if isinstance(event, yaml.ScalarEvent):
            node = self.scalar(event, mark)
        elif isinstance(event, yaml.SequenceStartEvent):
            node = self.sequence(mark, depth)
        else:
            node = self.mapping(mark, depth)
        if event.anchor is not None:
            self.anchors[event.anchor] = node
        return node

    def alias(self, anchor: str, mark: Mark, depth: int) -> Node:
        if anchor not in self.anchors:
            raise _UnreadableError(mark, f"unknown alias '*{anchor}': nothing above is named '&{anchor}'")
        node = self.anchors[anchor]
        if node is None:
            raise _UnreadableError(mark, f"alias '*{anchor}' contains itself; write the value out")
        self.take(node.size, depth + node.depth - 1, mark)
        return node

    def take(self, nodes: int, depth: int, mark: Mark) -> None:
        """Counts nodes, aliases written out, and refuses deep nesting before Python's stack does."""
        self.count += nodes
        if self.count > self.max_nodes:
            text = f"more than {self.max_nodes} values, aliases written out; split the spec"
            raise _UnreadableError(mark, text)
        if depth > MAX_DEPTH:
            raise _UnreadableError(mark, _TOO_DEEP)

    def scalar(self, event: Any, mark: Mark) -> Node:
        if any("\ud800" <= character <= "\udfff" for character in event.value):
            raise _UnreadableError(
                mark, "half of a surrogate pair is not a character; write the character itself"
            )
        return Node(mark, resolve(event.value) if event.implicit[0] else event.value)

    def sequence(self, mark: Mark, depth: int) -> Node:
        items = []
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            items.append(self.node(event, depth + 1))
        return _collection(mark, items, items)

    def mapping(self, mark: Mark, depth: int) -> Node:
        """A mapping, its start already taken; keys are the text as written, the first of duplicates stays."""
        entries: dict[str, Node] = {}
        keys: dict[str, Mark] = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            key_mark = _mark(event.start_mark)
            key = self.key(event, key_mark)
            value = self.node(next(self.events), depth + 1)
            if key in keys:
                text = f"duplicate key '{key}', already given at line {keys[key].line}; keep one of the two"
                self.mistakes.append(Mistake(key_mark, text))
            else:
                entries[key], keys[key] = value, key_mark
        return _collection(mark, entries, list(entries.values()), keys)

    def key(self, event: Any, mark: Mark) -> str:
        if not isinstance(event, yaml.ScalarEvent):
            raise _UnreadableError(mark, "a key must be plain text, not a list, a mapping or an alias")
        if event.value == "<<" and event.implicit[0]:
            text = "merge key '<<' is not supported; write the keys out, or share them through 'defaults:'"
            raise _UnreadableError(mark, text)
        self.node(event, 1)
        return str(event.value)


def _collection(mark: Mark, value: Any, children: list[Node], keys: dict[str, Mark] | None = None) -> Node:
    depth = 1 + max((child.depth for child in children), default=0)
    return Node(mark, value, keys or {}, depth, 1 + sum(child.size for child in children))


def _syntax_mistake(error: yaml.YAMLError, text: str) -> Mistake:
    """What the parser stumbled over, in words that say what to mend."""
    place = getattr(error, "problem_mark", None)
    if place is None:
        return Mistake(Mark(1, 1), f"not valid YAML: {error}")
    mark = _mark(place)
    problem, context = str(getattr(error, "problem", "")), str(getattr(error, "context", ""))
    if "maximum nesting depth" in problem:  # libyaml's own limit, 1000 levels from its version 0.2.6 on
        return Mistake(mark, _TOO_DEEP)
    start = getattr(error, "context_mark", None)
    if start is not None and (advice := _advice_at_start(problem, context)):
        return Mistake(_mark(start), f"not valid YAML: {advice}")
    return Mistake(mark, f"not valid YAML: {_advice(problem, context, mark, text)}")


def _advice_at_start(problem: str, context: str) -> str:
    """What is wrong with a list, mapping or quoted text, best shown where it starts; empty for the rest."""
    if "flow sequence" in context:
        return "the '[' that opens here lacks a ',' or its ']'"
    if "flow mapping" in context:
        return "the '{' that opens here lacks a ',' or its '}'"
    if "end of stream" in problem or "document separator" in problem:
        return "the quote that opens here is never closed"
    if "escape" in problem and "quoted" in context:
        return "a backslash is special between double quotes: use single quotes, or '/' in paths"
    return ""


def _advice(problem: str, context: str, mark: Mark, text: str) -> str:
    if "mapping values are not allowed" in problem:
        return "a ':' cannot stand here; check the indentation, or quote the text that it belongs to"
    if "cannot start any token" in problem:
        line = _BREAK.split(text)[mark.line - 1]
        if line[mark.column - 1 :].startswith("\t"):
            return "a tab; indent with spaces"
        return f"text cannot start with '{line[mark.column - 1 : mark.column]}'; put it in quotes"
    if "could not find expected ':'" in problem:
        return "a key without its ':' just above; write 'key: value'"
    if "block" in context and "scalar" not in context:
        return f"this line does not fit the lines above ({problem}); check its indentation"
    return problem or context
