"""Renders the template files of specs and loader scripts; the templates are in the folder of this module."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from string import Template


def render(name: str, values: Mapping[str, object]) -> str:
    """Return the template file ``<name>.template`` with values in place of ``$placeholders``.

    A line is left out if the value of one of its placeholders is missing, None or False. The value True is
    written as empty text, so a placeholder with this value only keeps its line. The lines from ``%if name``
    to ``%end`` are left out if the value of ``name`` is missing, None or False.
    """
    text = Path(__file__).with_name(f"{name}.template").read_text(encoding="utf-8")
    unused = values.keys() - set(re.findall(r"(?:\$\{?|^%if )(\w+)", text, re.MULTILINE))
    assert not unused, f"{name}.template has no placeholder for {unused}"
    texts = {name: "" if value is True else str(value) for name, value in values.items()}
    lines = []
    in_written_block = True
    for line in text.splitlines(keepends=True):
        if line.startswith("%if "):
            in_written_block = _has_values([line.split()[1]], values)
        elif line.startswith("%end"):
            in_written_block = True
        elif in_written_block and _has_values(re.findall(r"\$\{?(\w+)", line), values):
            lines.append(Template(line).substitute(texts))
    return "".join(lines)


def _has_values(names: list[str], values: Mapping[str, object]) -> bool:
    return all(values.get(name) not in (None, False) for name in names)
