"""The report folder: ``report.json`` and, with jinja2, ``report.html``. Folders of shards can be merged."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pytest_int8acc.errors import Int8accError
from pytest_int8acc.files import readable, real, replacing_files
from pytest_int8acc.report.json import NAME, Report, report_of, write_json, write_text
from pytest_int8acc.report.read import read_json
from pytest_int8acc.results import CaseResult

#: Suffixes of files whose text is part of the page, so that it can be copied.
_TEXTS = (".cfg", ".json", ".md", ".py", ".sh", ".txt", ".yaml", ".yml")
_LARGEST = 64 << 10
#: Files that a merge makes again instead of copying them.
_OURS = (NAME, "report.html")


def write_folder(folder: Path, report: Report) -> list[str]:
    """Writes both files and returns the lines that say where they are.

    Raises:
        OSError: The folder cannot be made or written.
    """
    path = write_json(folder, report)
    if find_spec("jinja2") is None:
        missing = "no report.html: jinja2 is not installed (pip install jinja2)"
        return [missing, f"report in {path}"]
    from pytest_int8acc.report.html import page

    html = write_text(folder, "report.html", page(report, texts(folder, report)))
    return [f"report in {html}, {path}"]


def texts(folder: Path, report: Report) -> dict[str, str]:
    """Returns the text of small files that the cases wrote into ``folder``, by relative path."""
    found = {}
    for name in (str(name) for case in report.cases for name in case.get("written", ())):
        path = folder / name
        with contextlib.suppress(OSError, ValueError):
            inside = real(folder) in real(path).parents
            if inside and path.suffix in _TEXTS and path.stat().st_size <= _LARGEST:
                found[name] = readable(path).read_text(encoding="utf-8")
    return found


#: The folder and the report of a machine.
_Shard = tuple[Path, Report]


def merge_folders(folders: Sequence[Path], out: Path, *, tool: Mapping[str, str]) -> Report:
    """The cases of all ``folders`` as one report, and their other files copied into ``out``.

    Cases stand in the order of their files and lines, as in a run that was not split. Of a case that several
    shards ran, the run that finished last counts and its files alone are copied: a rerun replaces what it
    repeats. A spec that could not be read counts unless a later shard ran its cases.

    A folder whose report cannot be read is left out and stands among the errors of the merged report, so that
    one damaged shard does not cost the results of the others.

    Raises:
        Int8accError: No folder holds a report that can be read.
        OSError: A file cannot be copied.
    """
    read, left_out = _read(folders)
    shards = sorted(read, key=lambda shard: _finished(shard[1].plain))
    winners: dict[str, dict[str, Any]] = {}
    results: dict[str, CaseResult] = {}
    for _, report in shards:
        for entry in report.cases:
            nodeid = entry["nodeid"]
            if _finished(entry) >= _finished(winners.get(nodeid, {})):
                winners[nodeid] = entry
                results.pop(nodeid, None)
                if nodeid in report.results:
                    results[nodeid] = report.results[nodeid]
    for source, target in _copies(shards, winners, out):
        with replacing_files(target.parent, out) as drafts:
            shutil.copyfile(source, drafts / target.name)
    return report_of(
        sorted(winners.values(), key=_place),
        [*_errors(shards), *left_out],
        results,
        tool=dict(tool),
        finished=_finished(shards[-1][1].plain),
        merged=[folder.name for folder, _ in read],
    )


def _read(folders: Sequence[Path]) -> tuple[list[_Shard], list[dict[str, str]]]:
    """The shards that can be read, and for each other folder the error of the merged report.

    Raises:
        Int8accError: None can be read.
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
    """When a case or a whole run ended; ISO 8601 in UTC sorts as text."""
    return str(run.get("finished", ""))


def _place(entry: Mapping[str, Any]) -> tuple[str, int, str]:
    """Where a case stands: its file, its line."""
    nodeid = str(entry["nodeid"])
    return nodeid.rpartition("::")[0], int(entry.get("line", 0)), nodeid


def _errors(shards: Sequence[_Shard]) -> list[dict[str, str]]:
    """The specs that could not be read, but for those that a later shard has read."""
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
    """Each file to copy and its copy; those that a case names come last, and win."""
    of_cases = []
    for folder, report in shards:
        if real(folder) == real(out):
            continue
        named: dict[bool, set[str]] = {True: set(), False: set()}  # of entries that count, and of others
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
    """Paths from ``folder`` of all its files, links and what lies in ``out`` left out."""
    for here, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if real(Path(here) / name) != real(out))
        for name in sorted(names):
            path = Path(here) / name
            if path.is_file() and not path.is_symlink():
                yield path.relative_to(folder).as_posix()
