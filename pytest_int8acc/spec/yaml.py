"""Reads the YAML of a spec into a tree of nodes. Each node has its line and column.

Plain scalars follow the core schema of YAML 1.2 (https://yaml.org/spec/1.2.2/, 10.3.2): ``1e-3`` is a number,
``012`` is twelve, ``yes`` and ``off`` are text. PyYAML builds the nodes and their positions. Values are text,
numbers, booleans, null, lists and mappings. These are mistakes: tags, merge keys, duplicate keys, several
documents, and aliases that contain themselves or make the file too large.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import yaml

#: The loader class: libyaml's parser if PyYAML was built with it (8 times as fast), otherwise PyYAML's own.
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
#: Maximum size of a spec file in bytes. A larger file is a mistake.
MAX_BYTES = 1 << 20
#: Maximum nesting depth of lists and mappings in a spec file. A valid spec needs 6 levels.
MAX_DEPTH = 32
#: Maximum number of nodes in a spec file: values, keys, lists and mappings. An alias counts as all nodes that
#: it stands for, because nested aliases can make a small file very large.
MAX_NODES = 50_000

#: Matches a character that YAML does not allow.
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
#: Matches a line break as YAML defines it.
_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
#: The patterns of numbers in YAML, each with the function that converts a matching text to a number.
_NUMBERS: tuple[tuple[str, Callable[[str], int | float]], ...] = (
    (r"[-+]?[0-9]{1,30}", int),
    (r"0o[0-7]{1,21}|0x[0-9a-fA-F]{1,16}", lambda text: int(text, 0)),
    (r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", float),
    (r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", lambda text: float(text.replace(".", ""))),
)
#: The plain scalars that mean null or a boolean, with their values.
_WORDS = dict.fromkeys(("", "~", "null", "Null", "NULL")) | {
    word: word.lower() == "true" for word in ("true", "True", "TRUE", "false", "False", "FALSE")
}

Scalar = str | int | float | bool | None


class Mark(NamedTuple):
    """A position in a file. Line and column count from 1; columns count characters."""

    line: int
    column: int


class Mistake(NamedTuple):
    """A message about a mistake in a spec, and the position of the mistake in the file."""

    mark: Mark
    text: str


@dataclass(frozen=True, eq=False)
class Node:
    """A value in a YAML file, and its position in the file."""

    mark: Mark
    value: Scalar | list[Node] | dict[str, Node]
    keys: dict[str, Mark] = field(default_factory=dict)
    """The position of each key, if the value is a mapping; otherwise empty."""

    @property
    def entries(self) -> dict[str, Node]:
        """The values of a mapping by key; empty if the node is no mapping."""
        return self.value if isinstance(self.value, dict) else {}

    def plain(self) -> Any:
        """Return the value with all values inside it as plain Python types, without positions."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value

    def only(self, keys: Iterable[str]) -> Node:
        """Return a copy of a mapping that has only the entries with a key in ``keys``."""
        entries = {key: self.entries[key] for key in keys if key in self.entries}
        return Node(self.mark, entries, {key: self.keys[key] for key in entries})

    def over(self, other: Node) -> Node:
        """Return a mapping with the entries of this mapping and of ``other``.

        For a key in both, the entry of this mapping is used. The position is that of this mapping.
        """
        return Node(self.mark, {**other.entries, **self.entries}, {**other.keys, **self.keys})


@dataclass(frozen=True)
class Document:
    """The tree of a file and its mistakes; ``root`` is None if the file cannot be parsed."""

    root: Node | None
    mistakes: list[Mistake]


_TOO_DEEP = f"nested more than {MAX_DEPTH} levels deep; a spec needs 6 at most"


class _UnreadableError(Exception):
    """The file cannot be read beyond a mistake, which ``mistake`` holds."""

    def __init__(self, mark: Mark, text: str) -> None:
        super().__init__(text)
        self.mistake = Mistake(mark, text)


def parse(raw: bytes, max_bytes: int = MAX_BYTES, max_nodes: int = MAX_NODES) -> Document:
    """Return the YAML document in ``raw``, the bytes of a file in UTF-8.

    No error is raised: the result contains all mistakes. More than ``max_bytes`` bytes or ``max_nodes`` nodes
    are a mistake.
    """
    mistakes: list[Mistake] = []
    text = ""
    try:
        text = _decode(raw, max_bytes)
        root = yaml.compose(text, Loader=_loader())
        if root is None:
            raise _UnreadableError(
                Mark(1, 1), "the file is empty; a spec needs at least 'model:', 'inputs:' and 'int8:'"
            )
        return Document(_Converter(mistakes, max_nodes).node(root), mistakes)
    except _UnreadableError as error:
        mistakes.append(error.mistake)
    except yaml.YAMLError as error:
        mistakes.append(_syntax_mistake(error, text))
    except RecursionError:  # PyYAML's own parser is written in Python and recurses
        mistakes.append(Mistake(Mark(1, 1), _TOO_DEEP))
    except (ValueError, OverflowError):  # raised by PyYAML's own parser for "\\UFFFFFFFF"
        mistakes.append(
            Mistake(Mark(1, 1), "not valid YAML: a character code or the YAML version is out of range")
        )
    return Document(None, mistakes)


def resolve(text: str) -> Scalar:
    """Return the value of a plain (unquoted) scalar by YAML 1.2's core schema.

    A decimal integer of more than 30 digits becomes a float. A hexadecimal integer of more than 16 digits
    and an octal integer of more than 21 digits stay text.
    """
    if text in _WORDS:
        return _WORDS[text]
    return next((read(text) for pattern, read in _NUMBERS if re.fullmatch(pattern, text)), text)


def _decode(raw: bytes, max_bytes: int) -> str:
    """Return ``raw`` as text without a byte order mark.

    Raises:
        _UnreadableError: The bytes are not UTF-8, more than ``max_bytes``, or hold a character that YAML does
            not allow.
    """
    if len(raw) > max_bytes:
        text = f"the file is larger than {max_bytes >> 20} MiB, too large for a spec"
        raise _UnreadableError(Mark(1, 1), text)
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise _UnreadableError(Mark(1, 1), "the file is UTF-16; save it as UTF-8")
    try:
        text = raw.decode("utf-8-sig")
        wrong = _UNPRINTABLE.search(text)
        if wrong is None:
            return text
        before = text[: wrong.start()]
        message = f"control character U+{ord(wrong[0]):04X} is not allowed in YAML; remove it"
    except UnicodeDecodeError as error:
        before = raw[: error.start].decode("utf-8-sig")
        message = f"byte 0x{raw[error.start]:02x} is not UTF-8; save the file as UTF-8"
    lines = _BREAK.split(before)
    raise _UnreadableError(Mark(len(lines), len(lines[-1]) + 1), message)


def _mark(mark: Any) -> Mark:
    return Mark(mark.line + 1, mark.column + 1)


def _loader() -> Any:
    """Return a loader class that leaves scalars as text, because PyYAML guesses their types by YAML 1.1."""

    def untagged(loader: Any, kind: Any, value: Any, implicit: Any) -> str:
        return ""

    return type("_Untagged", (LOADER,), {"resolve": untagged})


class _Converter:
    """Converts PyYAML's nodes to ``Node`` objects, limits their depth and number, and collects mistakes."""

    def __init__(self, mistakes: list[Mistake], max_nodes: int) -> None:
        self.mistakes = mistakes
        self.max_nodes = max_nodes
        self.count = 0
        self.open: list[yaml.Node] = []
        """The lists and mappings that contain the node that is being converted, the outermost first."""

    def node(self, node: yaml.Node) -> Node:
        """Convert a node of PyYAML and all nodes inside it.

        Each use of an alias is converted again, and counts toward ``max_nodes`` again.
        """
        mark = _mark(node.start_mark)
        self.count += 1
        if self.count > self.max_nodes:
            text = f"more than {self.max_nodes} values, aliases written out; split the spec"
            raise _UnreadableError(mark, text)
        if len(self.open) >= MAX_DEPTH:
            raise _UnreadableError(mark, _TOO_DEEP)
        if any(outer is node for outer in self.open):
            raise _UnreadableError(mark, "an alias makes this value contain itself; write the value out")
        if node.tag:
            tag = node.tag.replace("tag:yaml.org,2002:", "!!")
            text = f"tag {tag} is not allowed; write the plain value, with quotes if it is text"
            self.mistakes.append(Mistake(mark, text))
        if isinstance(node, yaml.ScalarNode):
            return Node(mark, self.scalar(node, mark))
        self.open.append(node)
        if isinstance(node, yaml.MappingNode):
            converted = self.mapping(node, mark)
        else:
            converted = Node(mark, [self.node(item) for item in node.value])
        self.open.pop()
        return converted

    def scalar(self, node: yaml.ScalarNode, mark: Mark) -> Scalar:
        """Return the value of a scalar. A scalar that is quoted or has a tag is text."""
        if any("\ud800" <= character <= "\udfff" for character in node.value):
            raise _UnreadableError(
                mark, "half of a surrogate pair is not a character; write the character itself"
            )
        return node.value if node.style or node.tag else resolve(node.value)

    def mapping(self, node: yaml.MappingNode, mark: Mark) -> Node:
        """Convert a mapping. Its keys stay text, as written. Of duplicate keys the first one is kept."""
        entries: dict[str, Node] = {}
        keys: dict[str, Mark] = {}
        for key_node, value in node.value:
            key, key_mark = key_node.value, _mark(key_node.start_mark)
            if not isinstance(key_node, yaml.ScalarNode):
                raise _UnreadableError(key_mark, "a key must be plain text, not a list or a mapping")
            if key == "<<" and not key_node.style:
                raise _UnreadableError(
                    key_mark,
                    "merge key '<<' is not supported; write the keys out, or share them through 'defaults:'",
                )
            self.node(key_node)
            if key in keys:
                text = f"duplicate key '{key}', already given at line {keys[key].line}; keep one of the two"
                self.mistakes.append(Mistake(key_mark, text))
                self.node(value)
            else:
                entries[key], keys[key] = self.node(value), key_mark
        return Node(mark, entries, keys)


#: A part of PyYAML's message on a syntax error, to our explanation of the error. The mistake is reported at
#: the beginning of the unfinished list, mapping or text.
_ADVICE_AT_START = {
    "flow sequence": "the '[' that opens here lacks a ',' or its ']'",
    "flow mapping": "the '{' that opens here lacks a ',' or its '}'",
    "end of stream": "the quote that opens here is never closed",
    "document separator": "the quote that opens here is never closed",
    "escape": "a backslash is special between double quotes: use single quotes, or '/' in paths",
}
#: A part of PyYAML's message on a syntax error, to our explanation of the error. The mistake is reported at
#: the position where the parser stopped.
_ADVICE = {
    "mapping values are not allowed": "a ':' cannot stand here; check the indentation, "
    "or quote the text that it belongs to",
    "could not find expected ':'": "a key without its ':' just above; write 'key: value'",
    "another document": "a second document starts here; a spec is one document: "
    "list several cases under 'cases:'",
    "occurrence": "this anchor is defined above already; give it another name",
}


def _syntax_mistake(error: yaml.YAMLError, text: str) -> Mistake:
    """Return the mistake for a syntax error of PyYAML, with advice where we know it.

    ``text`` is the content of the file.
    """
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return Mistake(Mark(1, 1), f"not valid YAML: {error}")
    mark = _mark(error.problem_mark)
    problem = f"{error.context or ''}: {error.problem or ''}"
    if "maximum nesting depth" in problem:  # libyaml 0.2.6 and later refuses more than 1000 levels
        return Mistake(mark, _TOO_DEEP)
    if error.context_mark is not None:
        for part, advice in _ADVICE_AT_START.items():
            if part in problem:
                return Mistake(_mark(error.context_mark), f"not valid YAML: {advice}")
    rest_of_line = "".join(_BREAK.split(text)[mark.line - 1 : mark.line])[mark.column - 1 :]
    return Mistake(mark, f"not valid YAML: {_advice(problem, rest_of_line)}")


def _advice(problem: str, rest_of_line: str) -> str:
    """Return an explanation of PyYAML's message ``problem``, with advice; otherwise ``problem`` itself.

    ``rest_of_line`` begins at the position of the mistake.
    """
    for part, advice in _ADVICE.items():
        if part in problem:
            return advice
    if "cannot start any token" in problem and rest_of_line.startswith("\t"):
        return "a tab; indent with spaces"
    if "cannot start any token" in problem:
        return f"text cannot start with '{rest_of_line[:1]}'; put it in quotes"
    if "undefined alias" in problem:
        alias = re.split(r"[\s,\]}]", rest_of_line)[0]
        return f"unknown alias '{alias}': nothing above is named '&{alias[1:]}'"
    if "block" in problem and "scalar" not in problem:
        return f"this line does not fit the lines above ({problem}); check its indentation"
    return problem
