"""``report.json`` read back. Files of other machines are validated here, and nowhere else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from pytest_int8acc.errors import Int8accError
from pytest_int8acc.files import readable
from pytest_int8acc.report.json import NAME, VERSION, Verdict, plain_result
from pytest_int8acc.report.plain import restore_entry
from pytest_int8acc.report.words import middle

#: The largest report that is read, in bytes. A thousand cases take a tenth of it.
MAX_BYTES = 1 << 30
_Count: TypeAlias = Annotated[int, Field(ge=1, lt=1 << 53)]
_Seconds: TypeAlias = Annotated[float, Field(ge=0)]


class _Checked(BaseModel):
    """Keys that are not named may hold any JSON, but no NaN, no infinity, and no endless nesting."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)
    __pydantic_extra__: dict[str, JsonValue]


class _Entry(_Checked):
    """One case; the keys that stand there whether it was measured or not."""

    nodeid: str
    verdict: Verdict
    seconds: _Seconds
    line: _Count = 1
    finished: str = ""
    message: str = ""
    settings: str = ""
    written: list[str] = []


class _Error(_Checked):
    """A file that could not be read."""

    nodeid: str
    message: str


class _Report(_Checked):
    """The whole file."""

    finished: str = ""
    cases: list[_Entry]
    errors: list[_Error] = []


def read_json(folder: Path) -> dict[str, Any]:
    """The report in ``folder``.

    Raises:
        Int8accError: There is none, it cannot be read, or it is none of this version; the message names the
            file, and the place in it.
    """
    path = folder / NAME
    try:
        report = json.loads(_content(path), parse_int=_integer)
    except OSError as error:
        raise Int8accError(
            f"{path}: {error.strerror or error}; expected the folder of a run with --int8acc-report"
        ) from None
    except (ValueError, RecursionError) as error:
        raise Int8accError(f"{path}: not JSON ({error}); run those cases again") from None
    if not isinstance(report, dict) or "cases" not in report:
        raise Int8accError(f"{path}: not a report of pytest-int8acc; run those cases again")
    if report.get("version") != VERSION:
        version = middle(repr(report.get("version")), 20)
        raise Int8accError(
            f"{path}: version {version} of a report, expected {VERSION}; run all shards with the same "
            "pytest-int8acc"
        )
    if damage := _damage(report):
        raise Int8accError(f"{path}: damaged ({damage}); run those cases again")
    return report


def _content(path: Path) -> bytes:
    """The file's bytes.

    Raises:
        OSError: It cannot be read, or reading it might never end.
        Int8accError: It is larger than ``MAX_BYTES``.
    """
    size = readable(path).stat().st_size
    if size > MAX_BYTES:
        raise Int8accError(
            f"{path}: has {size >> 20} MiB, more than the {MAX_BYTES >> 20} MiB that are read of a report; "
            "split its cases over more runs"
        )
    return path.read_bytes()


def _integer(text: str) -> int:
    """An integer of the file; ValueError for one with so many digits that no float can hold it."""
    if len(text) > 300:
        raise ValueError(f"an integer of {len(text)} digits")
    return int(text)


def _damage(report: dict[str, Any]) -> str:
    """The first place that is not as ``schema.json`` says, and why; empty where there is none."""
    try:
        _Report.model_validate(report)
    except ValidationError as error:
        return _first(error)
    for number, entry in enumerate(report["cases"]):
        try:
            result = restore_entry(entry)
        except ValidationError as error:
            return f"cases.{number}.{_first(error)}"
        try:
            if result is not None:
                plain_result(result)
        except (ArithmeticError, LookupError, ValueError) as error:
            return f"cases.{number}: no sentence can be made of it: {type(error).__name__}: {error}"
    return ""


def _first(error: ValidationError) -> str:
    """Place and text of the first of pydantic's complaints."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(map(str, first["loc"]))
    return f"{middle(place, 80)}: {first['msg']}"
