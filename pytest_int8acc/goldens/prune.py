"""Orphans among the goldens: files that no case of a spec on the disk has, and what killed processes left."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from pytest_int8acc.errors import SpecError
from pytest_int8acc.goldens import keeps_golden
from pytest_int8acc.goldens.place import FOLDER, HASH, Place, shown
from pytest_int8acc.goldens.record import GoldenError
from pytest_int8acc.names import is_url
from pytest_int8acc.runtime.storage import storage
from pytest_int8acc.settings import SUFFIXES
from pytest_int8acc.spec.load import display, load_spec

_NPZ = re.compile(rf"(.+)\.[0-9a-f]{{{HASH}}}\.npz")
#: Of a golden of arrays, too, whose .npz has no hash in its name.
_DRAFT = re.compile(rf"(.+?)(?:\.json|\.[0-9a-f]{{{HASH}}}\.npz|\.npz)\.[0-9a-f]{{32}}\.tmp")


@dataclass(frozen=True)
class Orphan:
    """A file that nothing needs."""

    file: str
    """Path or URL."""
    case: str
    why: str

    def __str__(self) -> str:
        return f"{shown(self.file)}: {self.why}"


@dataclass(frozen=True)
class Survey:
    """What lies among the goldens and should not."""

    orphans: tuple[Orphan, ...]
    unknown: tuple[str, ...]
    """Why nothing can be said of some: specs that cannot be read."""


def survey(root: Path, goldens: str | None = None, skip: Iterable[str] = ()) -> Survey:
    """Find orphans; specs are read from the disk, so that nothing depends on what a run has collected.

    Args:
        root: The folder that holds the specs; pytest's root folder.
        goldens: Path or fsspec URL where goldens lie by the path of their spec; None: beside the specs.
        skip: Names of folders not to look into.

    Raises:
        EngineError: Shared storage fails.
    """
    orphans: list[Orphan] = []
    unknown: dict[str, None] = {}
    for folder, names, home in _folders(root, goldens, frozenset(skip)):
        spec = home.with_name(home.name + SUFFIXES[0])
        other = home.with_name(home.name + SUFFIXES[1])
        spec = other if other.is_file() and not spec.is_file() else spec
        try:
            kept_cases = (
                {case.name for case in load_spec(spec) if keeps_golden(case)} if spec.is_file() else None
            )
        except SpecError:
            unknown[f"{display(spec)} cannot be read: nothing is said of its goldens"] = None
            continue
        orphans += _orphans(folder, names, spec, kept_cases)
    return Survey(tuple(orphans), tuple(unknown))


def delete(orphan: Orphan) -> bool:
    """Remove an orphan, while nobody writes that golden; False where it has become part of one meanwhile.

    Raises:
        GoldenError: It cannot be removed.
    """
    folder, _, name = orphan.file.rpartition("/")
    place = Place(folder, orphan.case)
    try:
        with place.alone():
            if name.endswith(".npz") and _is_named(folder, name, {orphan.case}):
                return False
            if is_url(orphan.file):
                with storage(orphan.file) as (system, path):
                    if system.exists(path):
                        system.rm_file(path)
                return True
            Path(orphan.file).unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # not empty
                Path(folder).rmdir()
    except OSError as error:
        raise GoldenError(f"{shown(orphan.file)}: cannot be removed: {error.strerror or error}") from error
    return True


def _orphans(folder: str, names: list[str], spec: Path, kept_cases: set[str] | None) -> Iterator[Orphan]:
    """The orphans of one spec's folder; a golden's JSON first, so that none is left without its outputs."""
    cases = [name.removesuffix(".json") for name in names if name.endswith(".json")]
    living = set(cases)
    for case in cases:
        if (kept_cases is None or case not in kept_cases) and _is_record(Place(folder, case)):
            living.remove(case)
            known = f"no case '{case}' of {display(spec)} keeps a golden"
            why = f"there is no {display(spec)}" if kept_cases is None else known
            yield Orphan(f"{folder}/{case}.json", case, why)
    for name in names:
        if (npz := _NPZ.fullmatch(name)) and not _is_named(folder, name, living):
            yield Orphan(f"{folder}/{name}", npz[1], "no golden names it")
        elif draft := _DRAFT.fullmatch(name):
            yield Orphan(f"{folder}/{name}", draft[1], "left by a process that was killed")


def _folders(root: Path, goldens: str | None, skip: frozenset[str]) -> Iterator[tuple[str, list[str], Path]]:
    """Each folder of goldens, its files, and the path of its spec without suffix."""
    if goldens is None:
        for here, inner, _ in os.walk(root):
            inner[:] = sorted(name for name in inner if name not in skip)
            if Path(here).name == FOLDER:
                for name in inner:
                    folder = Path(here) / name
                    yield str(folder), _files(folder), Path(here).parent / name
                inner.clear()
    elif is_url(goldens):
        by_folder: dict[str, list[str]] = {}
        for path in _stored_files(goldens):
            inside, _, name = path.rpartition("/")
            by_folder.setdefault(inside, []).append(name)
        for inside, names in sorted(by_folder.items()):
            yield f"{goldens.rstrip('/')}/{inside}", sorted(names), root / PurePosixPath(inside)
    else:
        for here, inner, _ in os.walk(goldens):
            inner.sort()
            if Path(here) != Path(goldens):
                yield here, _files(Path(here)), root / Path(here).relative_to(goldens)


def _files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_file())


def _stored_files(url: str) -> list[str]:
    """The files below a URL, relative to it; none where it is not there."""
    with storage(url.rstrip("/")) as (system, path):
        if not system.exists(path):
            return []
        start = path.rstrip("/") + "/"
        return sorted(str(file).removeprefix(start) for file in system.find(path))


def _is_record(place: Place) -> bool:
    """Whether a JSON is a golden's: others' files are none of ours."""
    try:
        return place.read() is not None
    except GoldenError:
        return False


def _is_named(folder: str, npz: str, cases: Iterable[str]) -> bool:
    """Whether the golden of one of ``cases`` needs an .npz; what cannot be read may need it."""
    for case in cases:
        try:
            record = Place(folder, case).read() if npz.startswith(f"{case}.") else None
        except GoldenError:
            return True
        if record is not None and record.kept is not None and record.kept.file == npz:
            return True
    return False
