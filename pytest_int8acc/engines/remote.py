"""Engines in shared storage, reached by fsspec URLs, with a local store in front."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import importlib
import logging
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator

from pytest_int8acc.engines.manifest import Manifest, Note, TimingNote, describe_folder, digest_file, inside
from pytest_int8acc.engines.store import Entry, Store, default_folder
from pytest_int8acc.errors import EngineError, told
from pytest_int8acc.files import replace_file
from pytest_int8acc.names import safe_url, without_secrets
from pytest_int8acc.settings import Settings

logger = logging.getLogger("pytest_int8acc")


class Publication(Note):
    """Makes an entry visible in shared storage: written last, at one stroke."""

    part: Annotated[str, AfterValidator(inside)]
    """The folder of its files, below ``entries``, which nobody else writes."""
    manifest: Manifest


class RemoteStore:
    """A store in shared storage, with the methods of :class:`Store`.

    A fetch looks in the local store, then in shared storage, and makes the entry where neither has it; then
    it is published. The files of an entry go to a folder of their own, and a note that names the folder is
    written last, by one put or one rename: other machines see a whole entry or none. Each file is checked
    by its SHA-256 on arrival.

    Machines do not wait for each other: two may make the same entry, and the first note stays. Where shared
    storage does not answer, one warning says so, and the local store does alone. The limit holds for the
    local store; what leaves shared storage is up to its own rules of age.

    Args:
        url: A folder, like ``s3://bucket/engines``.
        local: The store in front.

    Raises:
        EngineError: fsspec is missing, or what it needs for this kind of URL.
    """

    def __init__(self, url: str, local: Store) -> None:
        self.url = url.rstrip("/")
        self.local = local
        self._warned = False
        reach(self.url)

    @property
    def folder(self) -> Path:
        """Where the local store lies."""
        return self.local.folder

    def fetch(self, key: str, make: Callable[[Path], None]) -> Entry:
        """As :meth:`Store.fetch`; an entry that came from shared storage was not ``made``."""
        came = False

        def load_or_make(folder: Path) -> None:
            nonlocal came
            seen, came = self._load(key, folder)
            if not came:
                make(folder)
                self._publish(key, folder, seen)

        entry = self.local.fetch(key, load_or_make)
        return dataclasses.replace(entry, made=entry.made and not came)

    def timing_cache(self, provenance: str) -> Path | None:
        """As :meth:`Store.timing_cache`, from shared storage where there is no local one."""
        local = self.local.timing_cache(provenance)
        data = self._load_timing(provenance) if local is None else None
        if data is None:
            return local
        with tempfile.TemporaryDirectory(prefix="int8acc-") as folder:
            path = Path(folder) / "timing.cache"
            path.write_bytes(data)
            self.local.publish_timing_cache(provenance, path)
        return self.local.timing_cache(provenance)

    def publish_timing_cache(self, provenance: str, path: Path) -> None:
        """As :meth:`Store.publish_timing_cache`, in both places."""
        self.local.publish_timing_cache(provenance, path)
        sha256 = digest_file(path)
        note = TimingNote(provenance=provenance, file=f"{sha256[:32]}.cache", sha256=sha256)
        with self._alone_if_silent():
            write_bytes_atomic(f"{self.url}/timing/{note.file}", path.read_bytes())
            write_bytes_atomic(self._timing_url(provenance), note.model_dump_json(indent=1).encode())

    def _load(self, key: str, folder: Path) -> tuple[bytes, bool]:
        """Fill ``folder`` from shared storage.

        Returns:
            The note as it stood there, empty where there is none; and whether the folder is filled.
        """
        note = b""
        with self._alone_if_silent():
            note = _read_or_empty(self._entry_url(key))
            if note and self._download(key, note, folder):
                logger.info("engine %s comes from %s", key[:12], safe_url(self.url))
                return note, True
        for left in folder.iterdir():
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        return note, False

    def _download(self, key: str, note: bytes, folder: Path) -> bool:
        """Whether all files that ``note`` names arrived as it says."""
        try:
            known = Publication.model_validate_json(note)
            for name in known.manifest.files:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                with talking(self.url):
                    system, path = reach(f"{self.url}/entries/{known.part}/{name}")
                    system.get_file(path, str(folder / name))
            damage = "" if describe_folder(folder) == known.manifest else "a file was changed"
        except ValueError:
            damage = "its note cannot be read"
        except FileNotFoundError as error:
            damage = f"a file is missing: {error}"
        if damage:
            logger.warning(
                "%s: entry %s is damaged and will be made again (%s)",
                safe_url(self.url),
                key[:12],
                damage,
            )
        return not damage

    def _publish(self, key: str, folder: Path, seen: bytes) -> None:
        """Make ``folder`` visible to others, unless somebody did so since the note was ``seen``."""
        manifest = describe_folder(folder)
        note = Publication(part=f"{key}.{uuid.uuid4().hex}", manifest=manifest)
        with self._alone_if_silent():
            if _read_or_empty(self._entry_url(key)) != seen:
                return
            for name in manifest.files:
                with talking(self.url):
                    system, path = reach(f"{self.url}/entries/{note.part}/{name}")
                    system.makedirs(path.rpartition("/")[0], exist_ok=True)
                    system.put_file(str(folder / name), path)
            write_bytes_atomic(self._entry_url(key), note.model_dump_json(indent=1).encode())
            logger.info("engine %s published to %s", key[:12], safe_url(self.url))

    def _load_timing(self, provenance: str) -> bytes | None:
        """The timing cache from shared storage; None where there is none, or it is damaged."""
        with self._alone_if_silent():
            note = _read_or_empty(self._timing_url(provenance))
            if not note:
                return None
            with contextlib.suppress(ValueError, FileNotFoundError):
                known = TimingNote.model_validate_json(note)
                data = read_bytes(f"{self.url}/timing/{known.file}")
                if known.provenance == provenance and hashlib.sha256(data).hexdigest() == known.sha256:
                    return data
            where = safe_url(self._timing_url(provenance))
            logger.warning("%s: the timing cache is damaged and is not used", where)
        return None

    @contextlib.contextmanager
    def _alone_if_silent(self) -> Iterator[None]:
        """Go on without shared storage where it fails, and say so once."""
        try:
            yield
        except EngineError as error:
            level = logging.DEBUG if self._warned else logging.WARNING
            logger.log(level, "%s. Engines are kept in %s alone", error, self.local.folder)
            self._warned = True

    def _entry_url(self, key: str) -> str:
        return f"{self.url}/entries/{key}.json"

    def _timing_url(self, provenance: str) -> str:
        return f"{self.url}/timing/{hashlib.sha256(provenance.encode()).hexdigest()[:32]}.json"


def open_store(
    where: str | None, limit: int | None = None, *, local: Path | None = None
) -> Store | RemoteStore:
    """The engine store at ``where``.

    Args:
        where: A folder, or an fsspec URL; None: the user's cache folder.
        limit: Bytes that the local store may hold; None: no limit.
        local: The folder in front of a URL; None: one per URL, in the user's cache folder.

    Raises:
        EngineError: The URL cannot be used here.
    """
    if where is None:
        return Store(default_folder() / "engines", limit)
    if not is_url(where):
        return Store(Path(where), limit)
    name = hashlib.sha256(where.rstrip("/").encode()).hexdigest()[:12]
    return RemoteStore(where, Store(local or default_folder() / f"shared-{name}", limit))


def store_of(settings: Settings) -> Store | RemoteStore | None:
    """The store that the settings ask for; None where nothing is to be kept.

    Raises:
        EngineError: A URL cannot be used here.
    """
    if settings.no_cache:
        return None
    place = settings.cache_dir
    if place is not None and not is_url(place):
        place = str(Path(place).expanduser())
    return open_store(place, settings.cache_size)


def is_url(where: str) -> bool:
    """True for an fsspec URL, like ``s3://bucket/folder``; False for a path."""
    return "://" in where


def read_bytes(where: str) -> bytes:
    """The content of a file, by path or fsspec URL.

    Raises:
        FileNotFoundError: There is none.
        EngineError: Shared storage fails, or is not known here.
    """
    if not is_url(where):
        return Path(where).read_bytes()
    with talking(where):
        system, path = reach(where)
        return bytes(system.cat_file(path))


def write_bytes_atomic(where: str, data: bytes) -> None:
    """Write a file, by path or fsspec URL; the old content or the new stands there at any time.

    A local path is replaced by a rename. Elsewhere the data goes to a temporary name first and is moved,
    which object stores do by copying: their puts and copies show at one stroke.

    Raises:
        EngineError: Shared storage fails, or is not known here.
        OSError: The file system refuses a local path.
    """
    if not is_url(where):
        Path(where).parent.mkdir(parents=True, exist_ok=True)
        replace_file(Path(where), data)
        return
    with talking(where):
        system, path = reach(where)
        system.makedirs(path.rpartition("/")[0], exist_ok=True)
        if getattr(system, "local_file", False):
            replace_file(Path(path), data)
            return
        draft = f"{path}.{uuid.uuid4().hex}.tmp"
        system.pipe_file(draft, data)
        system.mv(draft, path)


def _read_or_empty(url: str) -> bytes:
    with contextlib.suppress(FileNotFoundError):
        return read_bytes(url)
    return b""


def reach(url: str) -> tuple[Any, str]:
    """Fsspec's file system of ``url``, and the path in it."""
    try:
        fsspec = importlib.import_module("fsspec")
    except ModuleNotFoundError as error:
        raise EngineError(
            f"{safe_url(url)}: shared storage needs fsspec: pip install 'pytest-int8acc[remote]'"
        ) from error
    try:
        system, path = fsspec.core.url_to_fs(url)
        return system, path
    # Errors are raised without their cause: its text and frames may hold a password.
    except ImportError as error:
        raise EngineError(f"{safe_url(url)}: a library is missing: {_told(error, url)}") from None
    except ValueError as error:
        raise EngineError(f"{safe_url(url)}: not a URL that fsspec knows: {_told(error, url)}") from None
    except Exception as error:  # some drivers connect at once; their errors have no common base class
        said = f"{type(error).__name__}: {_told(error, url)}"
        raise EngineError(f"{safe_url(url)}: cannot be opened: {said}") from None


@contextlib.contextmanager
def talking(url: str) -> Iterator[None]:
    """Turn what goes wrong in shared storage, but for a missing file, into an EngineError."""
    try:
        yield
    except EngineError:
        raise
    except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, "no such file", safe_url(url)) from None
    except Exception as error:
        said = f"{type(error).__name__}: {_told(error, url)}"
        raise EngineError(f"shared storage {safe_url(url)} fails: {said}") from None


def _told(error: Exception, url: str) -> str:
    """What a driver says, in one line without what is secret in ``url``."""
    words = told(error)
    return without_secrets(" ".join(words.split()), url)[:300]
