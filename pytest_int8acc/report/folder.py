"""The report folder: ``report.json``, and ``report.html`` where jinja2 is there; those of shards as one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pytest_int8acc.files import replacing_files
from pytest_int8acc.report.json import NAME, read_json, report_of, write_json, write_text

#: Files whose text a page holds, so that it can be copied from there.
_TEXTS = (".cfg", ".json", ".md", ".py", ".sh", ".txt", ".yaml", ".yml")
_LARGEST = 64 << 10
#: Made anew for the whole where folders are merged.
_OURS = (NAME, "report.html")


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


@dataclass(frozen=True, eq=False)
class _Shard:
    folder: Path
    report: Mapping[str, Any]

    @property
    def finished(self) -> str:
        """When the run ended; ISO 8601 in UTC sorts as text."""
        return str(self.report.get("finished", ""))


#: By nodeid: the shard whose entry counts, and the entry.
_Winners = dict[str, tuple[_Shard, Mapping[str, Any]]]


def merge_folders(folders: Sequence[Path], out: Path, *, tool: Mapping[str, str]) -> dict[str, Any]:
    """The cases of all ``folders`` as one report, and their other files copied into ``out``.

    Cases stand in the order of their files and lines, as in a run that was not split. Of a case that several
    shards ran, the run that finished last counts and its files alone are copied: a rerun replaces what it
    repeats. A spec that could not be read counts unless a later shard ran its cases.

    Raises:
        Int8accError: A folder holds no report of this version.
        OSError: A file cannot be copied.
    """
    shards = sorted((_Shard(folder, read_json(folder)) for folder in folders), key=lambda s: s.finished)
    winners = _latest(shards)
    for source, target in _copies(shards, winners, out):
        with replacing_files(target.parent) as drafts:
            shutil.copyfile(source, drafts / target.name)
    return report_of(
        sorted((entry for _, entry in winners.values()), key=_place),
        _errors(shards),
        tool=dict(tool),
        finished=shards[-1].finished,
        merged=[folder.name for folder in folders],
    )


def _latest(shards: Sequence[_Shard]) -> _Winners:
    """Of each case the run that finished last."""
    found: _Winners = {}
    for shard in shards:
        for entry in shard.report["cases"]:
            other = found.get(entry["nodeid"])
            if other is None or _finished(entry) >= _finished(other[1]):
                found[entry["nodeid"]] = shard, entry
    return found


def _finished(entry: Mapping[str, Any]) -> str:
    return str(entry.get("finished", ""))


def _place(entry: Mapping[str, Any]) -> tuple[str, int, str]:
    """Where a case stands: its file, its line."""
    nodeid = str(entry["nodeid"])
    return nodeid.rpartition("::")[0], int(entry.get("line", 0)), nodeid


def _errors(shards: Sequence[_Shard]) -> list[dict[str, str]]:
    """The specs that could not be read, but for those that a later shard has read."""
    standing: dict[str, dict[str, str]] = {}
    for shard in shards:
        for entry in shard.report["cases"]:
            standing.pop(str(entry["nodeid"]).rpartition("::")[0], None)
        for error in shard.report.get("errors", ()):
            standing[str(error["nodeid"])] = error
    return [standing[nodeid] for nodeid in sorted(standing)]


def _copies(shards: Sequence[_Shard], winners: _Winners, out: Path) -> Iterator[tuple[Path, Path]]:
    """Each file to copy and its copy; those that a case names come last, and win."""
    of_cases = []
    for shard in shards:
        if shard.folder.resolve() == out.resolve():
            continue
        named, lost = _named(shard, winners)
        for name in _files(shard.folder, out):
            pair = shard.folder / name, out / name
            if name in named:
                of_cases.append(pair)
            elif name not in lost and name not in _OURS:
                yield pair
    yield from of_cases


def _named(shard: _Shard, winners: _Winners) -> tuple[set[str], set[str]]:
    """Files that the shard's cases have written: of those that count, and of those that do not."""
    named: set[str] = set()
    lost: set[str] = set()
    for entry in shard.report["cases"]:
        counts = winners[entry["nodeid"]][1] is entry
        (named if counts else lost).update(map(str, entry.get("written", ())))
    return named, lost - named


def _files(folder: Path, out: Path) -> Iterator[str]:
    """Paths from ``folder`` of all its files, links and what lies in ``out`` left out."""
    for here, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if (Path(here) / name).resolve() != out.resolve())
        for name in sorted(names):
            path = Path(here) / name
            if path.is_file() and not path.is_symlink():
                yield path.relative_to(folder).as_posix()
