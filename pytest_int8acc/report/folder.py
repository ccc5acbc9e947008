"""The report folder: ``report.json``, and ``report.html`` where jinja2 is there."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pytest_int8acc.report.json import write_json, write_text

#: Files whose text a page holds, so that it can be copied from there.
_TEXTS = (".cfg", ".json", ".md", ".py", ".sh", ".txt", ".yaml", ".yml")
_LARGEST = 64 << 10


def write_folder(folder: Path, report: Mapping[str, Any]) -> list[str]:
    """Write both files; the lines that say where they are, the paths last.

    Raises:
        OSError: The folder cannot be made or written.
        Int8accError: The report holds an entry that is none.
    """
    path = write_json(folder, report)
    if find_spec("jinja2") is None:
        missing = "no report.html: jinja2 is not installed (pip install 'pytest-int8acc[html]')"
        return [missing, f"report in {path}"]
    from pytest_int8acc.report.html import page

    html = write_text(folder, "report.html", page(report, texts(folder, report)))
    return [f"report in {html}, {path}"]


def texts(folder: Path, report: Mapping[str, Any]) -> dict[str, str]:
    """Text of the small files that the cases have written, by path from ``folder``; of none outside it."""
    found = {}
    for case in report["cases"]:
        for name in case.get("written", ()):
            text = _text(folder, str(name))
            if text is not None:
                found[str(name)] = text
    return found


def _text(folder: Path, name: str) -> str | None:
    path = folder / name
    try:
        inside = folder.resolve() in path.resolve().parents
        if not inside or path.suffix not in _TEXTS or path.stat().st_size > _LARGEST:
            return None
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
