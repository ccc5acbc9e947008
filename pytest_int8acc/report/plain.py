"""A result read back from the plain types that ``results.to_plain`` made of it."""

from __future__ import annotations

from typing import Any

from pytest_int8acc.results import CaseResult


def restore(plain: dict[str, Any]) -> CaseResult:
    """The CaseResult that ``plain`` was made of."""
    from pydantic import TypeAdapter  # heavy, and wanted with -v only

    result: CaseResult = TypeAdapter(CaseResult).validate_python(plain)
    return result
