"""Finds and deletes files of goldens that no case of a spec needs, or that a killed process left."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pytest_int8acc.errors import SpecError
from pytest_int8acc.goldens import keeps_golden
from pytest_int8acc.goldens.location import FOLDER, HASH_LENGTH, Location, shown
from pytest_int8acc.goldens.record import GoldenError
from pytest_int8acc.names import is_url
from pytest_int8acc.runtime.storage import storage
from pytest_int8acc.settings import SUFFIXES
from pytest_int8acc.spec.load import display, load_spec

_NPZ = re.compile(rf"(.+)\.[0-9a-f]{{{HASH_LENGTH}}}\.npz")
#: Matches the names of unfinished files that killed recordings of goldens left. The hash in the name of an
#: .npz is optional: goldens of users' own tests have none.
_DRAFT = re.compile(rf"(.+?)(?:\.json|\.[0-9a-f]{{{HASH_LENGTH}}}\.npz|\.npz)\.[0-9a-f]{{32}}\.tmp")


@dataclass(frozen=True)
class Orphan:
    """A file in a folder of goldens that no golden needs any more."""

    file: str
    """The path or URL of the file that no golden needs."""
    case: str
    why: str

    def __str__(self) -> str:
        return f"{shown(self.file)}: {self.why}"


@dataclass(frozen=True)
class Survey:
    """The files that no golden needs, and the specs whose folders of goldens could not be searched."""

    orphans: tuple[Orphan, ...]
    unknown: tuple[str, ...]
    """One message for each spec that cannot be read. The files of its goldens are not among the orphans."""


def survey(root: Path, goldens: str | None = None, skip: Iterable[str] = ()) -> Survey:
    """Find files that no golden needs. Specs are read from disk, whatever tests pytest has collected.

    Args:
        root: The folder that holds the specs: pytest's root folder.
        goldens: Path or fsspec URL of the folder with all goldens, in subfolders by the path of their spec;
            None means beside the specs.
        skip: Names of folders that are not searched.

    Raises:
        EngineError: The shared storage fails.
    """
    orphans: list[Orphan] = []
    unknown: dict[str, None] = {}
    for folder, names, stem in _folders(root, goldens, frozenset(skip)):
        specs = [stem.with_name(stem.name + suffix) for suffix in SUFFIXES]
        spec = next(filter(Path.is_file, specs), specs[0])
        kept_cases = None
        try:
            if spec.is_file():
                kept_cases = {case.name for case in load_spec(spec) if keeps_golden(case)}
        except SpecError:
            unknown[f"{display(spec)} cannot be read: nothing is said of its goldens"] = None
            continue
        orphans += _orphans(folder, sorted(names), spec, kept_cases)
    return Survey(tuple(orphans), tuple(unknown))


def delete(orphan: Orphan) -> bool:
    """Remove a file that no golden needs; return False if a golden has come to need it in the meantime.

    The golden is locked during the call.

    Raises:
        GoldenError: The file cannot be removed.
    """
    folder, _, name = orphan.file.rpartition("/")
    try:
        with Location(folder, orphan.case).locked():
            if name.endswith(".npz") and _is_named(folder, name, {orphan.case}):
                return False
            if is_url(orphan.file):
                with storage(orphan.file) as (system, path):
                    if system.exists(path):
                        system.rm_file(path)
                return True
            Path(orphan.file).unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # the folder is not empty
                Path(folder).rmdir()
    except OSError as error:
        raise GoldenError(f"{shown(orphan.file)}: cannot be removed: {error.strerror or error}") from error
    return True


def _orphans(folder: str, names: list[str], spec: Path, kept_cases: set[str] | None) -> Iterator[Orphan]:
    """Yield the files of one spec's folder that no golden needs, a golden's JSON before its .npz.

    Args:
        folder: The path or URL of the folder.
        names: The names of the files in the folder.
        spec: The spec that the folder belongs to.
        kept_cases: The spec's cases that keep a golden; None if there is no such spec.
    """
    living = set()
    for case in [name.removesuffix(".json") for name in names if name.endswith(".json")]:
        if case in (kept_cases or ()) or not _is_record(Location(folder, case)):
            living.add(case)
            continue
        why = f"no case '{case}' of {display(spec)} keeps a golden"
        if kept_cases is None:
            why = f"there is no {display(spec)}"
        yield Orphan(f"{folder}/{case}.json", case, why)
    for name in names:
        if (npz := _NPZ.fullmatch(name)) and not _is_named(folder, name, living):
            yield Orphan(f"{folder}/{name}", npz[1], "no golden names it")
        elif draft := _DRAFT.fullmatch(name):
            yield Orphan(f"{folder}/{name}", draft[1], "left by a process that was killed")


def _folders(root: Path, goldens: str | None, skip: frozenset[str]) -> Iterator[tuple[str, list[str], Path]]:
    """Yield each folder of goldens, the names of its files, and the path of its spec without suffix.

    The arguments are those of :func:`survey`.
    """
    if goldens is None:
        for here, inner, _ in os.walk(root):
            inner[:] = sorted(name for name in inner if name not in skip)
            if Path(here).name == FOLDER:
                for name in inner:
                    folder = Path(here) / name
                    files = [path.name for path in folder.iterdir() if path.is_file()]
                    yield str(folder), files, folder.parents[1] / name
                inner.clear()
        return
    files_by_folder: dict[str, list[str]] = {}
    for path in sorted(_files_below(goldens)):
        inside, _, name = path.rpartition("/")
        if inside:
            files_by_folder.setdefault(inside, []).append(name)
    for inside, names in files_by_folder.items():
        yield f"{goldens.rstrip('/')}/{inside}", names, root / inside


def _files_below(where: str) -> list[str]:
    """Return the files below a folder or URL, relative to it with ``/``; none if it does not exist."""
    if not is_url(where):
        return [p.relative_to(where).as_posix() for p in Path(where).rglob("*") if p.is_file()]
    with storage(where.rstrip("/")) as (system, path):
        if not system.exists(path):
            return []
        start = path.rstrip("/") + "/"
        return [str(file).removeprefix(start) for file in system.find(path)]


def _is_record(location: Location) -> bool:
    """Return whether the JSON file at ``location`` is a golden. JSON files of users are never deleted."""
    try:
        return location.read() is not None
    except GoldenError:
        return False


def _is_named(folder: str, npz: str, cases: Iterable[str]) -> bool:
    """Return whether the golden of one of ``cases`` names the file ``npz``.

    The result is also True if the JSON of such a golden cannot be read, because it may name the file.
    """
    for case in cases:
        try:
            record = Location(folder, case).read() if npz.startswith(f"{case}.") else None
        except GoldenError:
            return True
        if record is not None and record.kept is not None and record.kept.file == npz:
            return True
    return False
