"""The terminal section: one line per case, and what -v and -vv add."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pytest_int8acc.report.plain import restore
from pytest_int8acc.report.text import details, headline


def status_line(nodeid: str, properties: Mapping[str, Any], message: str) -> str:
    """A case in one line, after its verdict.

    Args:
        nodeid: the case.
        properties: what the case's report carries.
        message: why the case was not measured, used where ``properties`` say nothing.
    """
    said = properties.get("int8acc.summary", message)
    return f"{nodeid} - {said}" if said else nodeid


def detail_lines(properties: Mapping[str, Any], verbosity: int, *, failed: bool) -> list[str]:
    """With -v what was compared, every judged score, the notes and the settings; with -vv every score.

    Of a case that ``failed`` the settings alone, since its failure has said the rest.
    """
    if verbosity < 1 or "int8acc.details" not in properties:
        return []
    settings = f"settings: {properties['int8acc.settings']}"
    if failed:
        return [settings]
    result = restore(json.loads(properties["int8acc.details"]))
    return [headline(result), *details(result, verbosity), settings]
