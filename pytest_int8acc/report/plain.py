"""Converts results to JSON types, for report.json, pytest-xdist and JUnit, and back to results."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Any

from pytest_int8acc.names import shown
from pytest_int8acc.results import CaseResult

if TYPE_CHECKING:
    from pydantic import TypeAdapter


def to_plain(value: Any, added: Callable[[Any], Mapping[str, Any]] = lambda value: {}) -> Any:
    """Returns ``value`` as JSON types: dataclasses as dicts, inf and nan as text, NumPy scalars as numbers.

    An object of any other type is converted by ``str``. ``added`` returns keys and values that follow the
    fields of a dataclass.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        return to_plain({**fields, **added(value)}, added)
    if isinstance(value, dict):
        return {str(k): to_plain(v, added) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(v, added) for v in value]
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
    """Returns a copy of ``result`` in which :func:`shown` has made all texts safe to print.

    Only the paths of written files stay as they are.
    """
    printable: CaseResult = _printable(result, cache(shown))  # cached, as names occur many times
    return printable


def _printable(value: Any, text_of: Callable[[str], str]) -> Any:
    if isinstance(value, str) and not isinstance(value, Enum):
        return text_of(value)
    if isinstance(value, tuple):
        return tuple(_printable(inner, text_of) for inner in value)
    if isinstance(value, dict):
        return {_printable(key, text_of): _printable(inner, text_of) for key, inner in value.items()}
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    names = [f.name for f in dataclasses.fields(value) if f.name != "written"]
    return dataclasses.replace(value, **{name: _printable(getattr(value, name), text_of) for name in names})


def restore(plain: Mapping[str, Any]) -> CaseResult:
    """Returns the CaseResult of which ``to_plain`` has made ``plain``.

    Raises:
        pydantic.ValidationError: A value has another type than its field.
    """
    return _adapter().validate_python(plain)


@cache
def _adapter() -> TypeAdapter[CaseResult]:
    """Returns pydantic's validator of results. Creating it is slow, so it is cached."""
    from pydantic import TypeAdapter  # heavy, and only needed with -v and for reports

    return TypeAdapter(CaseResult)
