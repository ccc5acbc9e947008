"""Engines kept by the digest of their key, in a folder, and in shared storage behind it.

Each engine is built once, by the process that needs it first.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import hashlib
import logging
import os
import shutil
import uuid
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Annotated, Concatenate, Literal, ParamSpec, TypeVar

import platformdirs
from filelock import FileLock, Timeout
from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from pytest_int8acc.errors import EngineError, error_text
from pytest_int8acc.files import replace_file
from pytest_int8acc.names import is_url, safe_url
from pytest_int8acc.runtime.storage import StorageError, replace, storage

logger = logging.getLogger("pytest_int8acc")

#: The name of an entry's manifest, unlike any file of an entry.
MANIFEST = "int8acc-manifest.json"
#: Number of bytes that are hashed at a time.
_CHUNK = 1 << 20
#: Minimum size of an entry in bytes whose check is logged: it takes over a second.
_SLOW_BYTES = 1 << 30


def inside(name: str) -> str:
    """``name``; raises ValueError where the path leaves its folder.

    A manifest may come from shared storage.
    """
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts or "\\" in name or ":" in name:
        raise ValueError(f"{name!r} is not the name of a file of the entry")
    return name


class Note(BaseModel):
    """A frozen record that refuses unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class FileRecord(Note):
    """Digest and size of one file of an entry."""

    sha256: str
    nbytes: int


class Manifest(Note):
    """The files of an entry: names with ``/`` to their records."""

    format: Literal[1] = 1
    files: dict[Annotated[str, AfterValidator(inside)], FileRecord]

    @property
    def nbytes(self) -> int:
        """The size of all files in bytes."""
        return sum(record.nbytes for record in self.files.values())


def describe_folder(folder: Path) -> Manifest:
    """The manifest of the files below ``folder``."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    records = (FileRecord(sha256=digest_file(path), nbytes=path.stat().st_size) for path in paths)
    names = (path.relative_to(folder).as_posix() for path in paths)
    return Manifest(files=dict(zip(names, records, strict=True)))


def check_folder(folder: Path) -> Manifest:
    """The manifest in ``folder``; raises ValueError where a file does not match it."""
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


logger = logging.getLogger("pytest_int8acc")

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS}
_WAIT_SECONDS = 60.0
#: Length of the digest at the beginning of a timing cache.
_SHA256_BYTES = 32
#: https://bford.info/cachedir/: backup programs leave the folder out.
_TAG = "Signature: 8a477f597d28d172789f06886806bc55\n# Engines kept by pytest --int8acc.\n"
_NOTES = {"CACHEDIR.TAG": _TAG, ".gitignore": "*\n"}
_ROOMS = ("entries", "locks", "temporary", "timing")

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Entry:
    """One entry; it is not evicted while this object lives and is not closed."""

    key: str
    folder: Path
    made: bool
    """True where this call made the entry, False where the store had it."""
    manifest: Manifest
    _use: FileLock = field(repr=False, compare=False)

    @property
    def nbytes(self) -> int:
        """The size of all its files in bytes."""
        return self.manifest.nbytes

    def path(self, name: str) -> Path:
        """The path of the file ``name``; raises KeyError where the entry has no such file."""
        if name not in self.manifest.files:
            raise KeyError(name)
        return self.folder / name

    def close(self) -> None:
        """Allow the store to evict the entry."""
        self._use.release()
        with contextlib.suppress(OSError):
            os.unlink(self._use.lock_file)


def _clear(method: Callable[Concatenate[Store, P], R]) -> Callable[Concatenate[Store, P], R]:
    """``method`` with each OSError turned into an EngineError that says what to do."""

    @functools.wraps(method)
    def wrapped(self: Store, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(self, *args, **kwargs)
        except OSError as error:
            raise self.unusable(error) from error

    return wrapped


class Store:
    """A folder of entries, one per key.

    A process or thread that fetches a key holds a lock of the key until the entry exists, so pytest-xdist
    workers and parallel jobs make each entry once. An entry is filled in a temporary folder and renamed
    into place. If a process is killed at any point, the store has the whole entry or none, and the next
    process clears the temporary folder. Files are not flushed to the disk. The next fetch finds an entry
    that a power failure damaged by its SHA-256, and makes it again.

    Several hosts may share the folder. All of this holds where file locks work between the hosts (NFSv4,
    Lustre with flock, most cluster file systems). Where they do not, two hosts may make the same entry at
    the same time, and one host may evict an entry that the other reads. Each host still sees a whole entry
    or none, and the entry that was renamed first stays.

    Args:
        folder: The folder of the entries; it is made where it is missing.
        limit: Maximum size of all entries in bytes; the least recently used entries are evicted. Entries in
            use and the entry just made stay even above the limit. None: no limit.
    """

    def __init__(self, folder: Path, limit: int | None = None) -> None:
        self.folder = folder.expanduser().absolute()
        self.limit = limit

    def fetch(self, key: str, make: Callable[[Path], None]) -> Entry:
        """The entry of ``key``; it is made where it is missing or damaged.

        Args:
            key: Hex digest of everything that the entry depends on.
            make: Fills an empty folder on the same file system. Its errors pass through, and leave nothing
                behind.

        Returns:
            The entry; it cannot be evicted until it is closed or freed.

        Raises:
            EngineError: The folder cannot be written, or is full.
        """
        self._prepare()
        with self._locked(key):
            manifest = self._whole(key)
            made = manifest is None
            if manifest is None:
                manifest = self._make(key, make)
            entry = self._hold(key, manifest, made)
        if made:
            self._evict()
        return entry

    @_clear
    def timing_cache(self, provenance: str) -> bytes | None:
        """The timing cache of ``provenance``; None where there is none, or it is damaged.

        Args:
            provenance: What timings depend on, in words: TensorRT's version, the GPU.
        """
        path = self._timing_path(provenance)
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        digest, data = content[:_SHA256_BYTES], content[_SHA256_BYTES:]
        if hashlib.sha256(data).digest() == digest:
            return data
        logger.warning("%s: the timing cache is damaged and is not used", path)
        return None

    @_clear
    def publish_timing_cache(self, provenance: str, data: bytes) -> None:
        """Keep the timing cache of ``provenance``, in place of the one before.

        Raises:
            EngineError: The folder cannot be written, or is full.
        """
        self._prepare()
        replace_file(self._timing_path(provenance), hashlib.sha256(data).digest() + data)

    def unusable(self, error: OSError) -> EngineError:
        """The error that tells a user what the file system refused, and what to do."""
        full = error.errno in _NO_ROOM - {errno.EROFS}
        return EngineError(
            f"engine store {self.folder}: {'no room left' if full else 'cannot be used'} "
            f"({error.strerror or error}{f': {error.filename}' if error.filename else ''}). "
            + ("Free some, give a limit with --int8acc-cache-size, or " if full else "Make it writable, or ")
            + "name another folder with --int8acc-cache-dir, or keep nothing with --int8acc-no-cache"
        )

    @_clear
    def _prepare(self) -> None:
        """Make the folder, and mark it as a cache unless it holds other files."""
        for room in _ROOMS:
            (self.folder / room).mkdir(parents=True, exist_ok=True)
        missing = [name for name in _NOTES if not (self.folder / name).exists()]
        if missing and {path.name for path in self.folder.iterdir()} <= {*_ROOMS, *_NOTES}:
            with self._locked("notes"):
                for name in missing:
                    draft = self.folder / "temporary" / f"notes.{uuid.uuid4().hex}"
                    replace_file(self.folder / name, _NOTES[name].encode(), draft)

    @contextlib.contextmanager
    def _locked(self, key: str) -> Iterator[None]:
        """Hold the lock of ``key``; a long wait for another process is logged."""
        lock = self._acquire(key, timeout=1.0)
        while lock is None:
            logger.info("waiting for another process, which makes engine %s", key[:12])
            lock = self._acquire(key, timeout=_WAIT_SECONDS)
        try:
            yield
        finally:
            lock.release()

    @_clear
    def _acquire(self, key: str, timeout: float = 0) -> FileLock | None:
        """The lock of ``key``, acquired; None where another process holds it.

        Lock files are never removed: a process that waits for a removed file would not see its successor.
        """
        lock = FileLock(str(self.folder / "locks" / f"{key}.lock"), thread_local=False)
        try:
            lock.acquire(timeout=timeout)
        except Timeout:
            return None
        return lock

    @_clear
    def _whole(self, key: str) -> Manifest | None:
        """The manifest of an entry that exists and is whole; a damaged entry is removed."""
        folder = self.folder / "entries" / key
        if not folder.exists():
            return None
        try:
            return check_folder(folder)
        except (ValueError, NotADirectoryError, IsADirectoryError) as damage:
            logger.warning("engine store: entry %s is damaged and will be made again (%s)", folder, damage)
        self._discard(key)
        return None

    def _make(self, key: str, make: Callable[[Path], None]) -> Manifest:
        """Fill a temporary folder and rename it into place; a failure leaves nothing behind."""
        folder = self._begin(key)
        try:
            make(folder)
            return self._publish(key, folder)
        except OSError as error:
            if error.errno in _NO_ROOM:
                raise self.unusable(error) from error
            raise
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    @_clear
    def _begin(self, key: str) -> Path:
        """An empty temporary folder; temporary folders of dead processes are removed first.

        A temporary folder belongs to the process that holds the lock of its key. Where the lock is free, the
        process is dead.
        """
        for left in (self.folder / "temporary").iterdir():
            owner = left.name.partition(".")[0]
            lock = None if owner == key else self._acquire(owner)
            if owner == key or lock is not None:
                _remove(left)
            if lock is not None:
                lock.release()
        folder = self.folder / "temporary" / f"{key}.{uuid.uuid4().hex}"
        folder.mkdir()
        return folder

    @_clear
    def _publish(self, key: str, folder: Path) -> Manifest:
        manifest = describe_folder(folder)
        (folder / MANIFEST).write_text(manifest.model_dump_json(indent=1), encoding="utf-8")
        target = self.folder / "entries" / key
        try:
            folder.rename(target)
        except OSError:  # a host whose locks do not reach here was first
            with contextlib.suppress(ValueError, OSError):
                return check_folder(target)
            raise
        return manifest

    @_clear
    def _hold(self, key: str, manifest: Manifest, made: bool) -> Entry:
        """The entry with the present time as its last use, and with a locked file that marks it as in use."""
        self._users(key)  # clears marks
        use = FileLock(str(self.folder / "locks" / f"{key}.{uuid.uuid4().hex}.use"), thread_local=False)
        use.acquire(timeout=0)
        folder = self.folder / "entries" / key
        os.utime(folder / MANIFEST)
        return Entry(key, folder, made, manifest, use)

    @_clear
    def _evict(self) -> None:
        """Remove the least recently used entries until the limit holds; entries in use stay."""
        if self.limit is None:
            return
        entries = []
        for folder in (self.folder / "entries").iterdir():
            with contextlib.suppress(OSError):  # gone, or damaged: the next fetch will see
                files = [path.stat() for path in folder.rglob("*") if path.is_file()]
                used = (folder / MANIFEST).stat().st_mtime_ns
                entries.append((used, folder.name, sum(file.st_size for file in files)))
        total = sum(size for *_, size in entries)
        for _, key, size in sorted(entries):
            if total > self.limit and self._leave(key):
                logger.info("engine store: entry %s evicted, %d bytes", key[:12], size)
                total -= size

    def _leave(self, key: str) -> bool:
        """Remove the entry of ``key`` unless it is fetched or in use; returns whether it was removed."""
        lock = self._acquire(key)
        if lock is None:
            return False
        try:
            if self._users(key):
                return False
            self._discard(key)
            return True
        finally:
            lock.release()

    def _users(self, key: str) -> int:
        """The number of uses of ``key`` in all processes; marks of dead processes are removed."""
        users = 0
        for use in (self.folder / "locks").glob(f"{key}.*.use"):
            lock = FileLock(str(use), thread_local=False)
            try:
                lock.acquire(timeout=0)
            except Timeout:
                users += 1
                continue
            lock.release()
            use.unlink(missing_ok=True)
        return users

    def _discard(self, key: str) -> None:
        """Remove an entry whose lock is held; it is renamed first, so that no process sees a part of it."""
        left = self.folder / "temporary" / f"{key}.{uuid.uuid4().hex}"
        with contextlib.suppress(FileNotFoundError):
            (self.folder / "entries" / key).rename(left)
            _remove(left)

    def _timing_path(self, provenance: str) -> Path:
        name = hashlib.sha256(provenance.encode()).hexdigest()[:32]
        return self.folder / "timing" / f"{name}.cache"


def default_folder() -> Path:
    """The user's cache folder of this plugin.

    Raises:
        EngineError: The user has no home folder, or XDG_CACHE_HOME is relative.
    """
    try:
        folder = platformdirs.user_cache_path("pytest-int8acc", appauthor=False, opinion=False)
    except RuntimeError:
        folder = Path("~")  # as older versions give it
    if not folder.is_absolute():
        raise EngineError(
            "no folder to keep engines in (the user has no home folder, or XDG_CACHE_HOME is relative): "
            "name one with --int8acc-cache-dir, or keep nothing with --int8acc-no-cache"
        )
    return folder


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


logger = logging.getLogger("pytest_int8acc")


class RemoteStore(Store):
    """A local store that looks in shared storage before it makes an entry, and uploads what it made.

    An entry travels as one ZIP file, so other machines see the whole entry or none, and the SHA-256 of each
    file in it is verified. If two machines make the same entry, the later upload stays. A failure of shared
    storage is a warning, once. The limit applies to the local store, and timing caches stay there.

    fsspec's ``simplecache`` cannot replace the local store. It has no limit, no locks and no digests, and it
    takes a download that was killed half-way for the file.
    """

    def __init__(self, url: str, folder: Path, limit: int | None = None) -> None:
        super().__init__(folder, limit)
        self.url = url.rstrip("/")
        self._warned = False
        with self._or_local_only(), storage(self.url):
            pass

    def fetch(self, key: str, make: Callable[[Path], None]) -> Entry:
        """As :meth:`Store.fetch`; a downloaded entry was not ``made``."""
        url, downloaded = f"{self.url}/entries/{key}.zip", False

        def download_or_make(folder: Path) -> None:
            nonlocal downloaded
            with self._or_local_only():
                downloaded = _download(url, folder)
            if not downloaded:
                make(folder)

        entry = super().fetch(key, download_or_make)
        if entry.made and not downloaded:
            with self._or_local_only(), storage(url) as (system, path), TemporaryDirectory() as temporary:
                with zipfile.ZipFile(archive := f"{temporary}/{key}.zip", "w") as zipped:
                    for name in (MANIFEST, *entry.manifest.files):
                        zipped.write(entry.folder / name, name)
                replace(system, path, lambda draft: system.put_file(archive, draft))
        return dataclasses.replace(entry, made=entry.made and not downloaded)

    @contextmanager
    def _or_local_only(self) -> Iterator[None]:
        """Suppress a failure of shared storage, and warn of the first one."""
        try:
            yield
        except (StorageError, FileNotFoundError) as error:
            level = logging.DEBUG if self._warned else logging.WARNING
            logger.log(level, "%s. Engines are kept in %s alone", error, self.folder)
            self._warned = True


def _download(url: str, folder: Path) -> bool:
    """Fill ``folder``; returns False where shared storage has no such entry, or a damaged one."""
    with TemporaryDirectory(dir=folder) as temporary:
        archive, files = f"{temporary}/archive.zip", Path(temporary, "files")
        try:
            with storage(url) as (system, path):
                system.get_file(path, archive)
            with zipfile.ZipFile(archive) as zipped:
                zipped.extractall(files)
            check_folder(files)
        except FileNotFoundError:
            return False
        except (EngineError, OSError):
            raise
        except Exception as error:  # a damaged archive makes zipfile raise errors of many types
            logger.warning("%s is damaged and will be made again (%s)", safe_url(url), error_text(error))
            return False
        (files / MANIFEST).unlink()
        for file in files.iterdir():
            file.rename(folder / file.name)
    return True


def open_store(place: str | None, limit: int | None) -> Store:
    """The store in a folder, or behind an fsspec URL; in the user's cache folder where ``place`` is None.

    Raises:
        EngineError: The URL cannot be used here.
    """
    if place is not None and is_url(place):
        name = hashlib.sha256(place.rstrip("/").encode()).hexdigest()[:12]
        return RemoteStore(place, default_folder() / f"shared-{name}", limit)
    return Store(default_folder() / "engines" if place is None else Path(place), limit)
