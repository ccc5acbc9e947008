"""What an entry of the engine store must hold."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

logger = logging.getLogger("pytest_int8acc")

#: Not a name that whoever fills an entry would choose.
MANIFEST = "int8acc-manifest.json"
_CHUNK = 1 << 20
#: Hashing more bytes than this takes over a second.
_SLOW_BYTES = 1 << 30


def inside(name: str) -> str:
    """``name`` where it is a path that stays below its folder: a manifest may come from shared storage."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts or "\\" in name or ":" in name:
        raise ValueError(f"{name!r} is not the name of a file of the entry")
    return name


class Note(BaseModel):
    """Frozen, and nothing beside its fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class FileRecord(Note):
    """What one file of an entry must be."""

    sha256: str
    nbytes: int


class Manifest(Note):
    """What an entry holds: file names with ``/`` to their records."""

    format: Literal[1] = 1
    files: dict[Annotated[str, AfterValidator(inside)], FileRecord]

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return sum(record.nbytes for record in self.files.values())


class TimingNote(Note):
    """Names the file of a timing cache: replacing this note replaces the cache, at one stroke."""

    provenance: str
    file: Annotated[str, AfterValidator(inside)]
    sha256: str


def describe_folder(folder: Path) -> Manifest:
    """The manifest of the files below ``folder``."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    records = (FileRecord(sha256=digest_file(path), nbytes=path.stat().st_size) for path in paths)
    names = (path.relative_to(folder).as_posix() for path in paths)
    return Manifest(files=dict(zip(names, records, strict=True)))


def check_folder(folder: Path) -> Manifest:
    """The manifest that lies in ``folder``; ValueError where a file is not what it says."""
    try:
        manifest = Manifest.model_validate_json((folder / MANIFEST).read_bytes())
    except FileNotFoundError:
        raise ValueError(f"{MANIFEST} is missing") from None
    except ValidationError as error:
        raise ValueError(f"{MANIFEST} cannot be read: {error.errors()[0]['msg']}") from None
    if manifest.nbytes > _SLOW_BYTES:
        logger.info("checking %s, %.1f GB", folder, manifest.nbytes / 1e9)
    for name, record in manifest.files.items():
        path = folder / name
        if not path.is_file():
            raise ValueError(f"{name} is missing")
        if path.stat().st_size != record.nbytes:
            raise ValueError(f"{name} has {path.stat().st_size} bytes, not {record.nbytes}")
        if digest_file(path) != record.sha256:
            raise ValueError(f"{name} was changed")
    return manifest


def digest_file(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
