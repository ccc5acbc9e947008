"""From a spec file to its cases, or to all its mistakes at once."""

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

#: Keys whose mappings a case may fill up key by key; what else it says replaces the default as a whole.
_SECTIONS = frozenset({"int8", "fp8", "calibrate", "onnxruntime", "tensorrt", "search"})
#: Of these, a case takes one; its own replaces the default's.
_INSTEAD = frozenset(FORMAT_KEYS)
#: Of these, a case of its own takes one.
_SOURCES = frozenset(Int8.sources)


def load_spec(path: str | Path) -> list[Case]:
    """The cases of a spec in their order; reads this file and no other.

    Raises:
        SpecError: With every mistake in the file, one ``file:line:col: message`` per line, by place.
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
        raise SpecError("\n".join(_lines(file, mistakes)))
    return cases


def display(path: Path) -> str:
    """``path`` relative to the current folder where it lies below it, else absolute."""
    absolute = Path(os.path.abspath(path))
    try:
        return str(absolute.relative_to(Path.cwd()))
    except ValueError:
        return str(absolute)


def _lines(file: Path, mistakes: Iterable[Mistake]) -> Iterator[str]:
    """One line per mistake, by place, none twice."""
    for (line, column), text in sorted(set(mistakes)):
        yield f"{display(file)}:{line}:{column}: {shown(text)}"


def _cases(root: Node, file: Path, mistakes: list[Mistake]) -> list[Case]:
    """All cases that are free of mistakes; the mistakes of the others go into ``mistakes``."""
    if not isinstance(root.value, dict):
        text = f"a spec is a mapping of keys like 'model: resnet50.onnx', found {found(root.plain())}"
        mistakes.append(Mistake(root.mark, text))
        return []
    mistakes += _empty(root)
    if "cases" in root.value or "defaults" in root.value:
        return _several(root, file, mistakes)
    return _single(root, file, mistakes)


def _single(root: Node, file: Path, mistakes: list[Mistake]) -> list[Case]:
    """The case of a file that holds one, named after the file where it has no name."""
    name = stem(file.name)
    values = {"name": name, **root.plain()}
    if "name" not in root.keys and not re.search(NAME, name):
        text = f"the file's name makes no test name ({found(name)}); add one, like 'name: resnet50'"
        mistakes.append(Mistake(root.mark, text))
        values["name"] = "unnamed"
    return _validated(values, root, file, mistakes)


def _several(root: Node, file: Path, mistakes: list[Mistake]) -> list[Case]:
    """The cases of a file with ``cases:``, each over what the file's ``defaults:`` say."""
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
    """A case over the defaults: its keys win; in sections that hold settings, key by key as well."""
    instead = (
        _INSTEAD if isinstance(node.value, dict) and node.entries.keys() & _INSTEAD else frozenset[str]()
    )
    shared = shared.only(key for key in shared.keys if key in node.keys or key not in instead)
    merged = dict(node.over(shared).entries)
    for key in _SECTIONS & node.entries.keys() & shared.entries.keys():
        own, default = node.entries[key], shared.entries[key]
        if isinstance(own.value, dict) and isinstance(default.value, dict):
            if own.entries.keys() & _SOURCES:  # another source of INT8 replaces the default's
                default = default.only(k for k in default.keys if k in own.keys or k not in _SOURCES)
            merged[key] = _with_defaults(own, default)
    return Node(node.mark, merged, node.over(shared).keys)


def _strays(root: Node, mistakes: list[Mistake]) -> Node:
    """What stands beside ``defaults:`` and ``cases:``, where nothing may."""
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
    """What the cases share, without a name; None where that cannot be known."""
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
    """Whether an earlier case has the name; ``names`` maps those so far to their places, and grows."""
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
    """The case that ``values`` make, or none; where not ``complete``, absent keys are no mistake."""
    try:
        case = Case.model_validate(values)
        return [case.placed(file, node.mark.line - 1, dict(_places(node, display(file))))]
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            if complete or detail["type"] != MISSING or detail["loc"]:
                mistakes += _translated(detail["type"], detail["loc"], detail["msg"], node)
    return []


def _places(node: Node, file: str, key: str = "") -> Iterator[tuple[str, str]]:
    """Where each value below ``node`` stands, as ``file:line:col``, by its dotted key."""
    yield key, f"{file}:{node.mark.line}:{node.mark.column}"
    inner = node.value if isinstance(node.value, list | dict) else ()
    for step, child in inner.items() if isinstance(inner, dict) else enumerate(inner):
        yield from _places(child, file, f"{key}.{step}".lstrip("."))


def _translated(kind: str, loc: tuple[int | str, ...], text: str, node: Node) -> Iterator[Mistake]:
    """The mistake of one pydantic error; none where an empty value is to blame. Union tags match no key."""
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


def _empty(node: Node) -> Iterator[Mistake]:
    for key in _empty_keys(node):
        yield Mistake(node.keys[key], f"{found(key)} has no value; give one, or remove the key")
    for child in node.value if isinstance(node.value, list) else node.entries.values():
        yield from _empty(child)
