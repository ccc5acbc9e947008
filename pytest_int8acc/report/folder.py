"""Writes, reads and merges report folders.

A test run may be split into shards, which run on several machines. Each shard writes a report folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from pytest_int8acc.errors import Int8accError
from pytest_int8acc.files import readable, real, replacing_files
from pytest_int8acc.report.json import (
    NAME,
    VERSION,
    Report,
    Verdict,
    plain_result,
    write_json,
    write_text,
)
from pytest_int8acc.report.plain import restore
from pytest_int8acc.report.view import CaseView
from pytest_int8acc.report.words import middle

#: The suffixes of files whose text the HTML page contains, so that users can copy the text from the page.
_TEXTS = (".cfg", ".json", ".md", ".py", ".sh", ".txt", ".yaml", ".yml")
#: The maximum size, in bytes, of a file whose text the HTML page contains.
_LARGEST_TEXT = 64 << 10
#: The files in a report folder that a merge of report folders makes anew. It copies all other files.
_OURS = (NAME, "report.html")
#: The maximum size of a ``report.json`` that is read, in bytes. A report of a thousand cases has about a
#: tenth of this size.
MAX_BYTES = 1 << 30
_Count: TypeAlias = Annotated[int, Field(ge=1, lt=1 << 53)]
_Seconds: TypeAlias = Annotated[float, Field(ge=0)]


def write_folder(folder: Path, report: Report) -> list[str]:
    """Writes ``report.json`` and ``report.html``, and returns lines for the terminal that say where they are.

    Raises:
        OSError: The folder cannot be created, or a file cannot be written.
    """
    path = write_json(folder, report)
    if find_spec("jinja2") is None:
        missing = "no report.html: jinja2 is not installed (pip install jinja2)"
        return [missing, f"report in {path}"]
    from pytest_int8acc.report.html import page

    html = write_text(folder, "report.html", page(report, _texts(folder, report)))
    return [f"report in {html}, {path}"]


def _texts(folder: Path, report: Report) -> dict[str, str]:
    """Returns the text of small files that the cases wrote into ``folder``, by relative path."""
    found = {}
    for name in (str(name) for case in report.cases for name in case.get("written", ())):
        path = folder / name
        with contextlib.suppress(OSError, ValueError):
            inside = real(folder) in real(path).parents
            if inside and path.suffix in _TEXTS and path.stat().st_size <= _LARGEST_TEXT:
                found[name] = readable(path).read_text(encoding="utf-8")
    return found


class _Checked(BaseModel):
    """Base class of the parts of a report that are validated.

    Keys without a field may have any JSON value, but NaN and infinity are rejected.
    """

    model_config = ConfigDict(defer_build=True, extra="allow", strict=True, allow_inf_nan=False)
    __pydantic_extra__: dict[str, JsonValue]


class _Entry(_Checked):
    """One case of a report, with the keys that are validated here. A case that was measured has more keys."""

    nodeid: str
    verdict: Verdict
    seconds: _Seconds
    line: _Count = 1
    finished: str = ""
    message: str = ""
    settings: str = ""
    written: list[str] = []


class _Error(_Checked):
    """A spec, or the report of a shard, that could not be read."""

    nodeid: str
    message: str


class _Report(_Checked):
    """A whole ``report.json``."""

    finished: str = ""
    cases: list[_Entry]
    errors: list[_Error] = []
    missing: list[str] = []


def read_json(folder: Path) -> Report:
    """Returns the report in ``folder``, a report folder.

    Raises:
        Int8accError: There is no report, it cannot be read, or it has another version. The message names the
            file and the place of the error in it.
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
    views = _views(path, report)
    return Report(report | {key: report.get(key, []) for key in ("errors", "missing")}, views)


def _content(path: Path) -> bytes:
    """Returns the bytes of a ``report.json``.

    Raises:
        OSError: The file cannot be read, or reading it might never end.
        Int8accError: The file is larger than ``MAX_BYTES``.
    """
    size = readable(path).stat().st_size
    if size > MAX_BYTES:
        raise Int8accError(
            f"{path}: has {size >> 20} MiB, more than the {MAX_BYTES >> 20} MiB that are read of a report; "
            "split its cases over more runs"
        )
    return path.read_bytes()


def _integer(text: str) -> int:
    """Returns an integer that JSON has as ``text``; raises ValueError if it is too large for a float."""
    if len(text) > 300:
        raise ValueError(f"an integer of {len(text)} digits")
    return int(text)


def _views(path: Path, report: dict[str, Any]) -> dict[str, CaseView]:
    """Returns a mapping of node id to ``CaseView``, all sentences about a case, for each measured case.

    ``path`` is the path of the report, for messages.

    Raises:
        Int8accError: A part of the report differs from ``schema.json``, or its numbers cannot be put into a
            sentence, as after an edit by hand.
    """
    try:
        _Report.model_validate(report)
    except ValidationError as error:
        raise _damaged(path, _first(error)) from None
    views = {}
    for number, entry in enumerate(report["cases"]):
        if "outputs" not in entry:
            continue
        try:
            view = views[entry["nodeid"]] = CaseView(restore(entry))
        except ValidationError as error:
            raise _damaged(path, f"cases.{number}.{_first(error)}") from None
        try:
            plain_result(view)
        except (ArithmeticError, LookupError, ValueError) as error:
            reason = f"no sentence can be made of it: {type(error).__name__}: {error}"
            raise _damaged(path, f"cases.{number}: {reason}") from None
    return views


def _damaged(path: Path, reason: str) -> Int8accError:
    return Int8accError(f"{path}: damaged ({reason}); run those cases again")


def _first(error: ValidationError) -> str:
    """Returns a text on the first error that pydantic found: the keys joined by dots, and the message."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(map(str, first["loc"]))
    return f"{middle(place, 80)}: {first['msg']}"


#: The folder and the report of one shard, a part of a test run that was split over several machines.
_Shard: TypeAlias = tuple[Path, Report]


def merge_folders(folders: Sequence[Path], out: Path, *, tool: Mapping[str, str]) -> Report:
    """Returns one report of the cases in all ``folders``, and copies all other files into ``out``.

    The cases are sorted by file and line, as in a run that was not split. If several shards ran a case, the
    report has the run that finished last, and only its files are copied. A spec that could not be read is an
    error of the report, unless a later shard ran its cases. A case is missing if a shard ended before the
    case did, and no other shard ran the case.

    A folder whose report cannot be read is left out, and named among the errors of the merged report. The
    results of the other folders are thus not lost. ``tool`` has the name and version of this plugin.

    Raises:
        Int8accError: No folder holds a report that can be read.
        OSError: A file cannot be copied.
    """
    read, left_out = _read(folders)
    shards = sorted(read, key=lambda shard: _finished(shard[1].plain))
    winners: dict[str, dict[str, Any]] = {}
    views: dict[str, CaseView] = {}
    for _, report in shards:
        for entry in report.cases:
            nodeid = entry["nodeid"]
            if _finished(entry) >= _finished(winners.get(nodeid, {})):
                winners[nodeid] = entry
                views.pop(nodeid, None)
                if nodeid in report.views:
                    views[nodeid] = report.views[nodeid]
    for source, target in _copies(shards, winners, out):
        with replacing_files(target.parent, out) as drafts:
            shutil.copyfile(source, drafts / target.name)
    merged = {
        "version": VERSION,
        "tool": dict(tool),
        "finished": _finished(shards[-1][1].plain),
        "merged": [folder.name for folder, _ in read],
        "cases": sorted(winners.values(), key=_place),
        "errors": [*_errors(shards), *left_out],
        "missing": sorted({nodeid for _, report in shards for nodeid in report.missing} - winners.keys()),
    }
    return Report(merged, views)


def _read(folders: Sequence[Path]) -> tuple[list[_Shard], list[dict[str, str]]]:
    """Returns the shards that can be read, and an error for each of the other folders.

    Raises:
        Int8accError: No folder can be read.
    """
    shards: list[_Shard] = []
    left_out: list[dict[str, str]] = []
    messages: list[str] = []
    for folder in folders:
        try:
            shards.append((folder, read_json(folder)))
        except Int8accError as error:
            path = str(folder / NAME)
            reason = str(error).removeprefix(f"{path}: ")
            messages.append(str(error))
            left_out.append({"nodeid": path, "message": f"left out of the merge: {reason}"})
    if not shards:
        raise Int8accError("\n".join(messages))
    return shards, left_out


def _finished(run: Mapping[str, Any]) -> str:
    """Returns the time at which a case or a whole run ended: ISO 8601 in UTC, which sorts as text."""
    return str(run.get("finished", ""))


def _place(entry: Mapping[str, Any]) -> tuple[str, int, str]:
    """Returns the sort key of a case: file, line, node id."""
    nodeid = str(entry["nodeid"])
    return nodeid.rpartition("::")[0], int(entry.get("line", 0)), nodeid


def _errors(shards: Sequence[_Shard]) -> list[dict[str, str]]:
    """Returns an error for each spec that could not be read, unless a later shard ran cases of the spec."""
    standing: dict[str, dict[str, str]] = {}
    for _, report in shards:
        for entry in report.cases:
            standing.pop(str(entry["nodeid"]).rpartition("::")[0], None)
        for error in report.errors:
            standing[str(error["nodeid"])] = error
    return [standing[nodeid] for nodeid in sorted(standing)]


def _copies(
    shards: Sequence[_Shard], winners: Mapping[str, Mapping[str, Any]], out: Path
) -> Iterator[tuple[Path, Path]]:
    """Yields the path of each file to copy, and the path of its copy in ``out``.

    Files that a case has written come last, so that they replace other files of the same name. ``winners``
    has the run of each case that is in the merged report, by node id.
    """
    of_cases = []
    for folder, report in shards:
        if real(folder) == real(out):
            continue
        # The files that cases have written. ``named[True]`` are those of runs in the merged report.
        # ``named[False]`` are those of runs that a later run of the case in another shard replaces.
        named: dict[bool, set[str]] = {True: set(), False: set()}
        for entry in report.cases:
            named[winners[entry["nodeid"]] is entry].update(map(str, entry.get("written", ())))
        for name in _files(folder, out):
            pair = folder / name, out / name
            if name in named[True]:
                of_cases.append(pair)
            elif name not in named[False] and name not in _OURS:
                yield pair
    yield from of_cases


def _files(folder: Path, out: Path) -> Iterator[str]:
    """Yields the relative paths of all files in ``folder``, except links and files in ``out``."""
    for here, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if real(Path(here) / name) != real(out))
        for name in sorted(names):
            path = Path(here) / name
            if path.is_file() and not path.is_symlink():
                yield path.relative_to(folder).as_posix()
