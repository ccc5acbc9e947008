"""Reads a spec file into its cases, or reports all its mistakes at once."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pytest_int8acc.errors import SpecError
from pytest_int8acc.files import readable
from pytest_int8acc.names import shown
from pytest_int8acc.settings import stem
from pytest_int8acc.spec.fields import KEY, MISSING, NAME, closest, found
from pytest_int8acc.spec.int8 import Int8
from pytest_int8acc.spec.models import FORMAT_KEYS, Case
from pytest_int8acc.spec.yaml import MAX_BYTES, Mark, Mistake, Node, parse

#: If a case and the defaults both have one of these keys, the two mappings are merged key by key. With any
#: other key, the value in the case replaces the default.
_SECTIONS = frozenset({"int8", "fp8", "calibrate", "onnxruntime", "tensorrt", "search"})
#: Groups of keys of which a mapping may have only one: the formats of a case, and the ways to quantize. If a
#: case has a key of a group, the other keys of the group are dropped from the defaults.
_ALTERNATIVES = (frozenset(FORMAT_KEYS), frozenset(Int8.sources))


def load_spec(path: str | Path) -> list[Case]:
    """Return the cases of a spec in their order; reads this file and no other.

    Raises:
        SpecError: The file has mistakes: one line ``file:line:col: message`` for each, sorted by place.
    """
    file = Path(path)
    try:
        with readable(file).open("rb") as stream:
            document = parse(stream.read(MAX_BYTES + 1))
    except OSError as error:
        raise SpecError(f"{display(file)}:1:1: cannot read the spec: {error.strerror}") from None
    mistakes = list(document.mistakes)
    cases = [] if document.root is None else _cases(document.root, file, mistakes)
    if mistakes:
        raise spec_error(file, mistakes)
    return cases


def display(path: Path) -> str:
    """Return ``path`` relative to the current folder if it lies below that folder, else absolute."""
    absolute = Path(os.path.abspath(path))
    try:
        return str(absolute.relative_to(Path.cwd()))
    except ValueError:
        return str(absolute)


def spec_error(file: Path, mistakes: Iterable[Mistake]) -> SpecError:
    """Return an error with a line for each mistake in a file, sorted by place, without duplicates."""
    places = sorted(set(mistakes))
    return SpecError(
        "\n".join(f"{display(file)}:{line}:{column}: {shown(text)}" for (line, column), text in places)
    )


def _cases(root: Node, file: Path, mistakes: list[Mistake]) -> list[Case]:
    """Return the cases of a file without mistakes. The mistakes of other cases are added to ``mistakes``."""
    if not isinstance(root.value, dict):
        text = f"a spec is a mapping of keys like 'model: resnet50.onnx', found {found(root.plain())}"
        mistakes.append(Mistake(root.mark, text))
        return []
    mistakes += keys_without_value(root)
    if "cases" in root.value or "defaults" in root.value:
        return _several(root, file, mistakes)
    name = stem(file.name)
    values = {"name": name, **root.plain()}
    if "name" not in root.keys and not re.search(NAME, name):
        text = f"the file's name makes no test name ({found(name)}); add one, like 'name: resnet50'"
        mistakes.append(Mistake(root.mark, text))
        values["name"] = "unnamed"
    return _validated(values, root, file, mistakes)


def _several(root: Node, file: Path, mistakes: list[Mistake]) -> list[Case]:
    """Return the cases of a file with ``cases:``, each merged over the file's ``defaults:``."""
    strays = _strays(root)
    mistakes += strays
    defaults = _defaults(root, file, mistakes)
    # If a key is misplaced or the defaults cannot be read, keys may be missing for that reason. Then missing
    # keys of cases are not reported.
    complete = defaults is not None and not strays
    cases = []
    first_marks: dict[object, Mark] = {}
    for node in _list_of_cases(root, mistakes):
        if not isinstance(node.value, dict):
            text = f"cases: expected {Case.expected}, found {found(node.plain())}"
            mistakes.append(Mistake(node.mark, text))
            continue
        name = node.entries.get("name")
        if name is not None and isinstance(name.value, str):
            first = first_marks.setdefault(name.value, name.mark)
            if first is not name.mark:
                text = f"name: {found(name.value)} is taken by the case at line {first.line}"
                mistakes.append(Mistake(name.mark, f"{text}; names are unique in a file"))
        whole = _with_defaults(node, defaults or Node(root.mark, {}))
        cases += _validated(whole.plain(), whole, file, mistakes, complete)
    return cases


def _with_defaults(node: Node, defaults: Node) -> Node:
    """Return ``node``, a case or a section of one, completed with the keys of ``defaults`` that it lacks.

    Sections that both have, like ``int8``, are completed in the same way. If ``node`` has one of several
    alternatives, like ``int8`` and ``fp8``, no other alternative is taken from ``defaults``.
    """
    for alternatives in _ALTERNATIVES:
        if node.entries.keys() & alternatives:
            dropped = alternatives - node.entries.keys()
            defaults = defaults.only(key for key in defaults.keys if key not in dropped)
    merged = node.over(defaults)
    entries = dict(merged.entries)
    for key in _SECTIONS & node.entries.keys() & defaults.entries.keys():
        own, default = node.entries[key], defaults.entries[key]
        if isinstance(own.value, dict) and isinstance(default.value, dict):
            entries[key] = _with_defaults(own, default)
    return Node(node.mark, entries, merged.keys)


def _strays(root: Node) -> list[Mistake]:
    """Return a mistake for each top-level key other than ``defaults:`` and ``cases:``."""
    sibling = "cases" if "cases" in root.keys else "defaults"
    mistakes = []
    for key, mark in root.keys.items():
        if key in ("defaults", "cases"):
            continue
        if key == "name":
            text = f"'name' stands beside '{sibling}:'; give each case a name of its own"
        elif key in Case.model_fields:
            text = f"'{key}' stands beside '{sibling}:'; move it under 'defaults:', or into a case"
        else:
            near = closest(key, ("defaults", "cases"))
            advice = f"did you mean '{near}'?" if near else "known here: defaults, cases"
            text = f"unknown key {found(key)} ({advice})"
        mistakes.append(Mistake(mark, text))
    return mistakes


def _defaults(root: Node, file: Path, mistakes: list[Mistake]) -> Node | None:
    """Return the mapping under ``defaults:`` without the key 'name'; None if the value is no mapping."""
    node = root.entries.get("defaults", Node(root.mark, {}))
    if not isinstance(node.value, dict):
        if node.value is not None:
            text = f"defaults: expected a mapping of what the cases share, found {found(node.plain())}"
            mistakes.append(Mistake(node.mark, text))
        return None
    if "name" in node.keys:
        text = "'name' cannot be shared; give each case a name of its own"
        mistakes.append(Mistake(node.keys["name"], text))
        node = node.only(key for key in node.keys if key != "name")
    _validated({"name": "defaults", **node.plain()}, node, file, mistakes, complete=False)
    return node


def _list_of_cases(root: Node, mistakes: list[Mistake]) -> list[Node]:
    """Return the items under ``cases:``. If there are none, a mistake is added to ``mistakes``."""
    node = root.entries.get("cases")
    if node is None:
        text = (
            "'defaults:' alone makes no case; add a list 'cases:', or write the keys of one case at the top"
        )
        mistakes.append(Mistake(root.keys["defaults"], text))
    elif isinstance(node.value, list) and node.value:
        return node.value
    elif node.value is not None:
        text = f"cases: expected a list of cases, each '- name: ...', found {found(node.plain() or None)}"
        mistakes.append(Mistake(node.mark, text))
    return []


def _validated(
    values: Mapping[str, Any], node: Node, file: Path, mistakes: list[Mistake], complete: bool = True
) -> list[Case]:
    """Return a list that holds the case made from ``values``; it is empty if they have mistakes.

    Args:
        values: The case, or the defaults of several cases.
        node: The tree that ``values`` come from, for the positions of mistakes.
        file: The spec.
        mistakes: All mistakes in ``values`` are added to this list.
        complete: Whether a missing key is a mistake. It is not in defaults.
    """
    try:
        case = Case.model_validate(values)
        return [case.placed(file, node.mark.line - 1, dict(_places(node, display(file))))]
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            if complete or detail["type"] != MISSING or detail["loc"]:
                mistakes += translated(detail["type"], detail["loc"], detail["msg"], node)
    return []


def _places(node: Node, file: str, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield the dotted key and the place, as ``file:line:col``, of ``node`` and of each value inside it.

    ``file`` is the path of the spec, and ``key`` the dotted key of ``node``.
    """
    yield key, f"{file}:{node.mark.line}:{node.mark.column}"
    children: dict[Any, Node] = node.entries
    if isinstance(node.value, list):
        children = dict(enumerate(node.value))
    for step, child in children.items():
        yield from _places(child, file, f"{key}.{step}".lstrip("."))


def translated(kind: str, loc: tuple[int | str, ...], text: str, node: Node) -> Iterator[Mistake]:
    """Yield the mistake that corresponds to one error of pydantic.

    Nothing is yielded if a key without a value causes the error, because ``keys_without_value`` reports it.

    Args:
        kind: The type of pydantic's error.
        loc: The path of keys and indices to the wrong value. Union tags such as ``(text)`` in it are skipped.
        text: The message of pydantic's error.
        node: The mapping in which the path starts, with the positions of all values in it.
    """
    mark, name, empty = node.mark, "", False
    for step in loc:
        if isinstance(node.value, list) and isinstance(step, int):
            node = node.value[step]
            mark, empty = node.mark, False
        elif isinstance(step, str) and step in node.entries:
            name, mark, node = step, node.keys[step], node.entries[step]
            empty = node.value is None
    if kind == KEY:
        yield Mistake(mark, text)
    elif not empty and not any(_empty_keys(node)):
        yield Mistake(node.mark, f"{name}: {text}" if name else text)


def _empty_keys(node: Node) -> Iterator[str]:
    return (key for key, child in node.entries.items() if child.value is None)


def keys_without_value(node: Node) -> Iterator[Mistake]:
    """Yield a mistake for each key without a value, at any depth."""
    for key in _empty_keys(node):
        yield Mistake(node.keys[key], f"{found(key)} has no value; give one, or remove the key")
    for child in node.value if isinstance(node.value, list) else node.entries.values():
        yield from keys_without_value(child)
