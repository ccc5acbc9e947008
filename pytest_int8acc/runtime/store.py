"""Keeps engines in a folder, and also in shared storage if a URL is given.

An engine is kept under the digest of everything that it depends on. The first process that needs an engine
builds it, and all other processes read it from the store.
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
import time
import uuid
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Concatenate, Literal, ParamSpec, TypeVar

import platformdirs
from filelock import FileLock, Timeout
from pydantic import BaseModel, ValidationError

from pytest_int8acc.errors import EngineError, error_text
from pytest_int8acc.files import read_sealed, replace_file, seal
from pytest_int8acc.names import is_url, safe_url
from pytest_int8acc.runtime.storage import StorageError, replace, storage

logger = logging.getLogger("pytest_int8acc")

#: Name of the file that lists the files of one stored engine. No file of an engine has this name.
MANIFEST = "int8acc-manifest.json"
#: Number of bytes of a file that are read and hashed at a time.
_CHUNK = 1 << 20


class FileRecord(BaseModel, frozen=True, extra="forbid"):
    """Digest and size of one file of a stored engine."""

    sha256: str
    nbytes: int


class Manifest(BaseModel, frozen=True, extra="forbid"):
    """The list of the files of a stored engine, with their digests."""

    format: Literal[1] = 1
    files: dict[str, FileRecord]
    """The record of each file, by its path below the folder of the entry, with ``/``."""


def describe_folder(folder: Path) -> Manifest:
    """The manifest of the files below ``folder``."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return Manifest(files={path.relative_to(folder).as_posix(): _record(path) for path in paths})


def check_folder(folder: Path) -> Manifest:
    """The manifest in ``folder``; raises ValueError if a file does not match it."""
    try:
        manifest = Manifest.model_validate_json((folder / MANIFEST).read_bytes())
    except FileNotFoundError:
        raise ValueError(f"{MANIFEST} is missing") from None
    except ValidationError as error:
        raise ValueError(f"{MANIFEST} cannot be read: {error.errors()[0]['msg']}") from None
    for name, record in manifest.files.items():
        if not (folder / name).is_file():
            raise ValueError(f"{name} is missing")
        if _record(folder / name) != record:
            raise ValueError(f"{name} was changed")
    return manifest


def _record(path: Path) -> FileRecord:
    return FileRecord(sha256=digest_file(path), nbytes=path.stat().st_size)


def digest_file(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


#: Error numbers of the file system for a disk that is full or read-only.
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS}
#: Number of seconds between two log messages while this process waits for another process to build an engine.
_WAIT_SECONDS = 60.0
#: Content of CACHEDIR.TAG, which makes backup programs skip the folder (https://bford.info/cachedir/).
_TAG = "Signature: 8a477f597d28d172789f06886806bc55\n# Engines kept by pytest --int8acc.\n"
#: Names and contents of files that mark the store's folder as a cache for backup programs and Git.
_NOTES = {"CACHEDIR.TAG": _TAG, ".gitignore": "*\n"}
#: Names of the subfolders of the engine store's folder.
_ROOMS = ("entries", "locks", "records", "temporary", "timing")
#: Number of seconds for which the records of an interrupted case are kept after its last record: 30 days.
_RECORD_SECONDS = 30 * 86400.0

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Entry:
    """A stored engine. The store evicts the engine only after ``close``, or after this object is deleted."""

    key: str
    folder: Path
    made: bool
    """Whether the call of ``fetch`` made the entry; False if the store had it already."""
    waited: float
    """The seconds until the entry's lock was free. Another process or thread holds it to make the entry."""
    manifest: Manifest
    _use: FileLock = field(repr=False, compare=False)

    def close(self) -> None:
        """Allow the store to evict the entry."""
        self._use.release()
        with contextlib.suppress(OSError):
            os.unlink(self._use.lock_file)


def _clear(method: Callable[Concatenate[Store, P], R]) -> Callable[Concatenate[Store, P], R]:
    """Decorates ``method`` so that an OSError in it becomes an EngineError with advice."""

    @functools.wraps(method)
    def wrapped(self: Store, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(self, *args, **kwargs)
        except OSError as error:
            raise self.unusable(error) from error

    return wrapped


class Store:
    """A folder of entries, one for each key. An entry is an engine with its files.

    A process or thread that fetches a key holds a lock of the key until the entry exists, so pytest-xdist
    workers and parallel jobs make each entry once. An entry is filled in a temporary folder and renamed
    into place. If a process is killed at any point, the store has the whole entry or none, and the next
    process clears the temporary folder. Files are not flushed to the disk. If a power failure damages an
    entry, the next fetch finds that its SHA-256 is wrong, and makes it again.

    Several hosts may share the folder if file locks work between them (NFSv4, Lustre with flock, most cluster
    file systems). If file locks do not work, two hosts may make the same entry at the same time, and one host
    may evict an entry that the other reads. Each host still sees a whole entry or none, and the entry that
    was renamed first stays.

    Args:
        folder: The folder of the store, which need not exist.
        limit: Maximum size of all entries in bytes; None means no limit. Above it, the least recently used
            entries are evicted. Entries in use and the entry just made stay even above the limit.
    """

    def __init__(self, folder: Path, limit: int | None = None) -> None:
        self.folder = folder.expanduser().absolute()
        self.limit = limit

    def fetch(self, key: str, make: Callable[[Path], None]) -> Entry:
        """The entry of ``key``, which is made if it is missing or damaged.

        Args:
            key: Hex digest of everything that the entry depends on.
            make: Fills the empty folder that it is called with. Its errors are raised unchanged, and leave
                nothing in the store.

        Raises:
            EngineError: The folder cannot be written, or is full.
        """
        self._prepare()
        with self._locked(key) as waited:
            manifest = self._whole(key)
            made = manifest is None
            if manifest is None:
                manifest = self._make(key, make)
            entry = self._hold(key, manifest, made, waited)
        if made:
            self._evict()
        return entry

    @_clear
    def timing_cache(self, provenance: str) -> Path:
        """The file of the timing cache of ``provenance``, sealed by ``files.seal``. It need not exist.

        Args:
            provenance: A text with all that timings depend on: TensorRT's version, the GPU.

        Raises:
            EngineError: The folder cannot be written, or is full.
        """
        self._prepare()
        name = hashlib.sha256(provenance.encode()).hexdigest()[:32]
        return self.folder / "timing" / f"{name}.cache"

    @_clear
    def record(self, case: str, name: str) -> bytes | None:
        """A record of a case, the stored result of a trial; None if there is none, or if it is damaged.

        Args:
            case: Hex digest of everything that all records of the case depend on.
            name: Hex digest of everything else that the record depends on.
        """
        return read_sealed(self.folder / "records" / case / name, "record of a trial")

    @_clear
    def keep_record(self, case: str, name: str, data: bytes) -> None:
        """Store a record of a case, in place of an older record. The arguments are those of :meth:`record`.

        Raises:
            EngineError: The folder cannot be written, or is full.
        """
        folder = self.folder / "records" / case
        if not folder.exists():
            self._prepare()
            self._forget_old_records()
            folder.mkdir(exist_ok=True)
        draft = folder / f"{name}.{uuid.uuid4().hex}"
        draft.write_bytes(seal(data))
        draft.replace(folder / name)

    def forget_records(self, case: str) -> None:
        """Remove all records of a case."""
        shutil.rmtree(self.folder / "records" / case, ignore_errors=True)

    def _forget_old_records(self) -> None:
        for folder in (self.folder / "records").iterdir():
            with contextlib.suppress(OSError):  # another process removes it
                if time.time() - folder.stat().st_mtime > _RECORD_SECONDS:
                    self.forget_records(folder.name)

    def unusable(self, error: OSError) -> EngineError:
        """An EngineError with advice for an error of the file system."""
        full = error.errno in _NO_ROOM - {errno.EROFS}
        return EngineError(
            f"engine store {self.folder}: {'no room left' if full else 'cannot be used'} "
            f"({error.strerror or error}{f': {error.filename}' if error.filename else ''}). "
            + ("Free some, give a limit with --int8acc-cache-size, or " if full else "Make it writable, or ")
            + "name another folder with --int8acc-cache-dir, or keep nothing with --int8acc-no-cache"
        )

    @_clear
    def _prepare(self) -> None:
        """Make the folder of the store, and mark it as a cache unless it holds other files."""
        for room in _ROOMS:
            (self.folder / room).mkdir(parents=True, exist_ok=True)
        missing = [name for name in _NOTES if not (self.folder / name).exists()]
        if missing and {path.name for path in self.folder.iterdir()} <= {*_ROOMS, *_NOTES}:
            with self._locked("notes"):
                for name in missing:
                    draft = self.folder / "temporary" / f"notes.{uuid.uuid4().hex}"
                    replace_file(self.folder / name, _NOTES[name].encode(), draft)

    @contextlib.contextmanager
    def _locked(self, key: str) -> Iterator[float]:
        """Hold the lock of ``key`` within the block; gives the seconds until it was free.

        A long wait for another process is logged.
        """
        started = time.monotonic()
        lock = self._acquire(key, timeout=1.0)
        while lock is None:
            logger.info("waiting for another process, which makes engine %s", key[:12])
            lock = self._acquire(key, timeout=_WAIT_SECONDS)
        try:
            yield time.monotonic() - started
        finally:
            lock.release()

    @_clear
    def _acquire(self, key: str, timeout: float = 0) -> FileLock | None:
        """Acquire the lock of ``key``; None if another process holds it after ``timeout`` seconds.

        Lock files are never removed. A process that waits for a removed file would not notice the new file.
        """
        lock = FileLock(str(self.folder / "locks" / f"{key}.lock"), thread_local=False)
        try:
            lock.acquire(timeout=timeout)
        except Timeout:
            return None
        return lock

    @_clear
    def _whole(self, key: str) -> Manifest | None:
        """The manifest of an entry; None if there is no entry, or a damaged one, which is removed."""
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
        """Fill a temporary folder and rename it into place; returns its manifest."""
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
        """Make an empty temporary folder, after removing temporary folders of dead processes.

        A temporary folder belongs to the process that holds the lock of its key. If the lock is free, the
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
        except OSError:  # another host, whose locks do not work between hosts, made the entry meanwhile
            with contextlib.suppress(ValueError, OSError):
                return check_folder(target)
            raise
        return manifest

    @_clear
    def _hold(self, key: str, manifest: Manifest, made: bool, waited: float) -> Entry:
        """Set an entry's time of last use, and lock a file that marks it as in use; returns the entry."""
        self._users(key)  # called because it removes marks of dead processes
        use = FileLock(str(self.folder / "locks" / f"{key}.{uuid.uuid4().hex}.use"), thread_local=False)
        use.acquire(timeout=0)
        folder = self.folder / "entries" / key
        os.utime(folder / MANIFEST)
        return Entry(key, folder, made, waited, manifest, use)

    @_clear
    def _evict(self) -> None:
        """Remove the least recently used entries until the limit is met; entries in use stay."""
        if self.limit is None:
            return
        entries = []
        for folder in (self.folder / "entries").iterdir():
            with contextlib.suppress(OSError):  # removed meanwhile, or damaged: the next fetch handles it
                files = [path.stat() for path in folder.rglob("*") if path.is_file()]
                used = (folder / MANIFEST).stat().st_mtime_ns
                entries.append((used, folder.name, sum(file.st_size for file in files)))
        total = sum(size for *_, size in entries)
        for _, key, size in sorted(entries):
            if total > self.limit and self._leave(key):
                logger.info("engine store: entry %s evicted, %d bytes", key[:12], size)
                total -= size

    def _leave(self, key: str) -> bool:
        """Remove the entry of ``key`` unless a process fetches or uses it; returns whether it was removed."""
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
        """The number of Entry objects of ``key`` in all processes. Marks of dead processes are removed."""
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
        """Remove a stored engine. This process must hold the lock of its key.

        A rename hides the entry first, so that no process sees a part of it.
        """
        left = self.folder / "temporary" / f"{key}.{uuid.uuid4().hex}"
        with contextlib.suppress(FileNotFoundError):
            (self.folder / "entries" / key).rename(left)
            _remove(left)


def default_folder() -> Path:
    """The user's cache folder of this plugin.

    Raises:
        EngineError: The user has no home folder, or XDG_CACHE_HOME is relative.
    """
    try:
        folder = platformdirs.user_cache_path("pytest-int8acc", appauthor=False, opinion=False)
    except RuntimeError:
        folder = Path("~")  # older versions of platformdirs return it for a user without a home folder
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


class RemoteStore(Store):
    """A local store that looks in shared storage before it makes an entry, and uploads new entries.

    An entry is uploaded as one ZIP file, so that other machines see the whole entry or none. The SHA-256 of
    each file in it is verified. If two machines make the same entry, the later upload stays. The first
    failure of shared storage is logged as a warning. The limit applies to the local store, and timing caches
    are not uploaded.

    fsspec's ``simplecache`` cannot replace the local store. It has no limit, no locks and no digests, and it
    uses a file whose download was killed half-way.
    """

    def __init__(self, url: str, folder: Path, limit: int | None = None) -> None:
        super().__init__(folder, limit)
        self.url = url.rstrip("/")
        self._warned = False
        with self._or_local_only(), storage(self.url):
            pass

    def fetch(self, key: str, make: Callable[[Path], None]) -> Entry:
        """The entry of ``key``: from the local store, else downloaded from shared storage, else made.

        The arguments and errors are those of :meth:`Store.fetch`. ``made`` is False for a downloaded entry.
        """
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
        """Suppress failures of shared storage inside the block. The first failure is logged as a warning."""
        try:
            yield
        except (StorageError, FileNotFoundError) as error:
            level = logging.DEBUG if self._warned else logging.WARNING
            logger.log(level, "%s. Engines are kept in %s alone", error, self.folder)
            self._warned = True


def _download(url: str, folder: Path) -> bool:
    """Fill ``folder`` with an entry of shared storage; returns False if there is none, or a damaged one."""
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
    """The store in a folder or at an fsspec URL; None means a folder in the user's cache folder.

    Raises:
        EngineError: The URL cannot be used here.
    """
    local = open_folder(place, limit)
    return RemoteStore(place, local.folder, limit) if place is not None and is_url(place) else local


def open_folder(place: str | None, limit: int | None = None) -> Store:
    """The store in a folder on this machine. For a URL, it is the local store of downloaded and made entries.

    Raises:
        EngineError: The user has no cache folder.
    """
    if place is not None and is_url(place):
        name = hashlib.sha256(place.rstrip("/").encode()).hexdigest()[:12]
        return Store(default_folder() / f"shared-{name}", limit)
    return Store(default_folder() / "engines" if place is None else Path(place), limit)
