"""Results as plain types for JSON, pytest-xdist and JUnit, and back."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Any

from pytest_int8acc.names import shown
from pytest_int8acc.report.fixes import cheaper_fix, repair_text
from pytest_int8acc.report.summary import summary
from pytest_int8acc.report.view import CaseView
from pytest_int8acc.results import CaseResult

if TYPE_CHECKING:
    from pydantic import TypeAdapter

_NOTHING: Mapping[type, Mapping[str, Callable[[Any], Any]]] = {}


def to_plain(value: Any, more: Mapping[type, Mapping[str, Callable[[Any], Any]]] = _NOTHING) -> Any:
    """Returns ``value`` as JSON types: dataclasses as dicts, inf and nan as text, NumPy scalars as numbers.

    Args:
        value: Any object; an unknown one becomes text.
        more: By dataclass, further keys and the functions that make their values.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        plain = {f.name: to_plain(getattr(value, f.name), more) for f in dataclasses.fields(value)}
        return plain | {key: make(value) for key, make in more.get(type(value), {}).items()}
    if isinstance(value, dict):
        return {str(k): to_plain(v, more) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_plain(v, more) for v in value]
    if hasattr(value, "item") and not isinstance(value, str | bytes):
        value = value.item()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return str(value)


def for_people(result: CaseResult) -> CaseResult:
    """Returns ``result`` with all texts made printable by :func:`shown`, except paths of written files."""
    fit: CaseResult = _fit(result, cache(shown))  # the same names occur many times
    return fit


def _fit(value: Any, fitting: Callable[[str], str]) -> Any:
    if isinstance(value, str) and not isinstance(value, Enum):
        return fitting(value)
    if isinstance(value, tuple | list):
        return type(value)(_fit(inner, fitting) for inner in value)
    if isinstance(value, dict):
        return {_fit(key, fitting): _fit(inner, fitting) for key, inner in value.items()}
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    fields = (f.name for f in dataclasses.fields(value) if f.init and f.name != "written")
    return dataclasses.replace(value, **{name: _fit(getattr(value, name), fitting) for name in fields})


def restore(plain: Mapping[str, Any]) -> CaseResult:
    """Returns the CaseResult that ``plain`` was made of.

    Raises:
        pydantic.ValidationError: A value has another type than its field.
    """
    return _adapter().validate_python(plain)


@cache
def _adapter() -> TypeAdapter[CaseResult]:
    """Returns the validator of results. Making it is slow."""
    from pydantic import TypeAdapter  # heavy, and wanted with -v and for reports only

    return TypeAdapter(CaseResult)


def properties(result: CaseResult) -> list[tuple[str, object]]:
    """Returns what a test report carries: scores, facts, the case in a line, the whole result."""
    scores = [(f"int8acc.{score.subject}.{score.metric}", to_plain(score.value)) for score in result.scores]
    details = json.dumps(to_plain(result), allow_nan=False)
    status = CaseView(result).status
    return [*scores, *facts(result), ("int8acc.summary", status), ("int8acc.details", details)]


def facts(result: CaseResult) -> list[tuple[str, object]]:
    """Returns the facts of a verdict that can be filtered and plotted without reading the details."""
    found: list[tuple[str, object]] = [("int8acc.passed", result.passed)]
    if result.search is not None:
        search, fix = result.search, "verified" if result.search.verified else "not verified"
        found += [
            ("int8acc.culprits", " ".join(culprit.layer for culprit in search.culprits)),
            ("int8acc.fix", fix if search.found else "none"),
            ("int8acc.int8_share", round(search.int8_share, 6)),
        ]
    if result.diagnosis is not None:
        found += [
            ("int8acc.why", summary(result)),
            ("int8acc.stage", result.diagnosis.first_stage or ""),
        ]
    cheaper = cheaper_fix(result)
    if cheaper is not None:
        found.append(("int8acc.cheaper_fix", repair_text(cheaper, result.low_format)))
    found.append(("int8acc.int8_layers", CaseView(result).int8_layers))
    ratio = CaseView(result).speedup
    if ratio is not None:
        found.append(("int8acc.speedup", round(ratio, 4)))
    return [(name, value) for name, value in found if value != ""]
