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

#: Keys whose mappings are merged key by key with the defaults. Any other key of a case replaces the default.
_SECTIONS = frozenset({"int8", "fp8", "calibrate", "onnxruntime", "tensorrt", "search"})
#: A case has one of these keys. If it names one, the defaults' format is dropped.
_FORMATS = frozenset(FORMAT_KEYS)
#: An INT8 or FP8 section has one of these keys. If a case names one, the defaults' source is dropped.
_SOURCES = frozenset(Int8.sources)


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
    """Return ``path`` relative to the current folder where it lies below that folder, else absolute."""
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
    """Return the cases without mistakes; adds the mistakes of the others to ``mistakes``."""
    if not isinstance(root.value, dict):
        text = f"a spec is a mapping of keys like 'model: resnet50.onnx', found {found(root.plain())}"
        mistakes.append(Mistake(root.mark, text))
        return []
    mistakes += keys_without_value(root)
    if "cases" in root.value or "defaults" in root.value:
        return _several(root, file, mistakes)
    return _single(root, file, mistakes)


def _single(root: Node, file: Path, mistakes: list[Mistake]) -> list[Case]:
    """Return the one case of a file without ``cases:``; its name is the file's where it gives none."""
    name = stem(file.name)
    values = {"name": name, **root.plain()}
    if "name" not in root.keys and not re.search(NAME, name):
        text = f"the file's name makes no test name ({found(name)}); add one, like 'name: resnet50'"
        mistakes.append(Mistake(root.mark, text))
        values["name"] = "unnamed"
    return _validated(values, root, file, mistakes)


def _several(root: Node, file: Path, mistakes: list[Mistake]) -> list[Case]:
    """Return the cases of a file with ``cases:``, each merged over the file's ``defaults:``."""
    strays = _strays(root, mistakes)
    defaults = _defaults(root, file, mistakes)
    complete = defaults is not None and all(key in Case.model_fields for key in strays.keys)
    shared = (defaults or root.only(())).over(strays.only(Case.model_fields))
    cases = []
    names: dict[str, Mark] = {}
    for node in _list_of_cases(root, mistakes):
        if isinstance(node.value, dict):
            mistakes += _taken(node, names)
            whole = _with_defaults(node, shared)
            cases += _validated(whole.plain(), whole, file, mistakes, complete)
        else:
            text = f"cases: expected {Case.expected}, found {found(node.plain())}"
            mistakes.append(Mistake(node.mark, text))
    return cases


def _with_defaults(node: Node, shared: Node) -> Node:
    """Return a case merged over the defaults: its keys win, and sections of settings are merged as well."""
    for alternatives in (_FORMATS, _SOURCES):
        if node.entries.keys() & alternatives:
            shared = shared.only(key for key in shared.keys if key in node.keys or key not in alternatives)
    merged = dict(node.over(shared).entries)
    for key in _SECTIONS & node.entries.keys() & shared.entries.keys():
        own, default = node.entries[key], shared.entries[key]
        if isinstance(own.value, dict) and isinstance(default.value, dict):
            merged[key] = _with_defaults(own, default)
    return Node(node.mark, merged, node.over(shared).keys)


def _strays(root: Node, mistakes: list[Mistake]) -> Node:
    """Return the keys beside ``defaults:`` and ``cases:``, where no other key may stand, without ``name``."""
    strays = root.only(key for key in root.keys if key not in ("defaults", "cases"))
    sibling = "cases" if "cases" in root.keys else "defaults"
    for key, mark in strays.keys.items():
        if key == "name":
            text = f"'name' stands beside '{sibling}:'; give each case a name of its own"
        elif key in Case.model_fields:
            text = f"'{key}' stands beside '{sibling}:'; move it under 'defaults:', or into a case"
        else:
            near = closest(key, ("defaults", "cases"))
            advice = f"did you mean '{near}'?" if near else "known here: defaults, cases"
            text = f"unknown key {found(key)} ({advice})"
        mistakes.append(Mistake(mark, text))
    return strays.only(key for key in strays.keys if key != "name")


def _defaults(root: Node, file: Path, mistakes: list[Mistake]) -> Node | None:
    """Return the mapping under ``defaults:`` without a name; None where it is no mapping."""
    node = root.entries.get("defaults")
    if node is None:
        return root.only(())
    if not isinstance(node.value, dict):
        if node.value is not None:
            text = f"defaults: expected a mapping of what the cases share, found {found(node.plain())}"
            mistakes.append(Mistake(node.mark, text))
        return None
    if "name" in node.keys:
        mistakes.append(
            Mistake(node.keys["name"], "'name' cannot be shared; give each case a name of its own")
        )
    node = node.only(key for key in node.keys if key != "name")
    _validated({"name": "defaults", **node.plain()}, node, file, mistakes, complete=False)
    return node


def _list_of_cases(root: Node, mistakes: list[Mistake]) -> list[Node]:
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


def _taken(case: Node, names: dict[str, Mark]) -> Iterator[Mistake]:
    """Yield a mistake where an earlier case has this name; adds the name and its place to ``names``."""
    node = case.entries.get("name")
    if node is None or not isinstance(node.value, str):
        return
    if first := names.get(node.value):
        text = (
            f"name: {found(node.value)} is taken by the case at line {first.line}; names are unique in a file"
        )
        yield Mistake(node.mark, text)
    names.setdefault(node.value, node.mark)


def _validated(
    values: Mapping[str, Any], node: Node, file: Path, mistakes: list[Mistake], complete: bool = True
) -> list[Case]:
    """Return a list of the one case that ``values`` make, or an empty list and more ``mistakes``.

    Args:
        values: The case, or the defaults of several.
        node: The tree that ``values`` come from, for the places.
        file: The spec.
        mistakes: Gets all mistakes in ``values``.
        complete: Whether a key that is missing is a mistake.
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
    """Yield the dotted key and the place, as ``file:line:col``, of each value below ``node``."""
    yield key, f"{file}:{node.mark.line}:{node.mark.column}"
    inner = node.value if isinstance(node.value, list | dict) else ()
    for step, child in inner.items() if isinstance(inner, dict) else enumerate(inner):
        yield from _places(child, file, f"{key}.{step}".lstrip("."))


def translated(kind: str, loc: tuple[int | str, ...], text: str, node: Node) -> Iterator[Mistake]:
    """Yield the mistake for one error of pydantic; nothing where an empty value, reported apart, causes it.

    Args:
        kind: The type of pydantic's error.
        loc: The path of keys and indices. It may contain union tags, such as ``(text)``, which are no keys.
        text: The message.
        node: The tree that the path starts from.
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
