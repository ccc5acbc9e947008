"""Reads ``report.json``. Files of other machines are validated here, and nowhere else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from pytest_int8acc.errors import Int8accError
from pytest_int8acc.files import readable
from pytest_int8acc.report.json import NAME, VERSION, Report, Verdict, plain_result
from pytest_int8acc.report.plain import restore
from pytest_int8acc.report.words import middle
from pytest_int8acc.results import CaseResult

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


def read_json(folder: Path) -> Report:
    """Returns the report in ``folder``.

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
    results = _results(path, report)
    return Report(report | {"errors": report.get("errors", [])}, results)


def _content(path: Path) -> bytes:
    """Returns the file's bytes.

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
    """Returns an integer of the file; raises ValueError for one that no float can hold."""
    if len(text) > 300:
        raise ValueError(f"an integer of {len(text)} digits")
    return int(text)


def _damaged(path: Path, reason: str) -> Int8accError:
    return Int8accError(f"{path}: damaged ({reason}); run those cases again")


def _results(path: Path, report: dict[str, Any]) -> dict[str, CaseResult]:
    """Returns the result of each case that was measured, by node id.

    Raises:
        Int8accError: A place is not as ``schema.json`` says, or no sentence can be made of it.
    """
    try:
        _Report.model_validate(report)
    except ValidationError as error:
        raise _damaged(path, _first(error)) from None
    results = {}
    for number, entry in enumerate(report["cases"]):
        if "outputs" not in entry:
            continue
        try:
            result = results[entry["nodeid"]] = restore(entry)
        except ValidationError as error:
            raise _damaged(path, f"cases.{number}.{_first(error)}") from None
        try:
            plain_result(result)
        except (ArithmeticError, LookupError, ValueError) as error:
            reason = f"no sentence can be made of it: {type(error).__name__}: {error}"
            raise _damaged(path, f"cases.{number}: {reason}") from None
    return results


def _first(error: ValidationError) -> str:
    """Returns place and text of pydantic's first error."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(map(str, first["loc"]))
    return f"{middle(place, 80)}: {first['msg']}"
