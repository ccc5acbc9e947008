"""Engines in shared storage, reached by fsspec URLs, with a local store in front."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from pytest_int8acc.engines.manifest import MANIFEST, check_folder
from pytest_int8acc.engines.storage import StorageError, replace, storage
from pytest_int8acc.engines.store import Entry, Store, default_folder
from pytest_int8acc.errors import EngineError, error_text
from pytest_int8acc.names import is_url, safe_url

logger = logging.getLogger("pytest_int8acc")


class RemoteStore(Store):
    """A local store that looks in shared storage before it makes an entry, and uploads what it made.

    An entry travels as one ZIP file, so others see it whole or not at all, and the SHA-256 of each file in it
    is verified. Of two machines that make the same entry the later upload stays. Where shared storage fails,
    one warning says so. The limit holds for the local store alone, and timing caches stay there.

    fsspec's ``simplecache`` cannot be the local store: it has no limit, no locks and no digests, and takes a
    download that was killed half-way for the file.
    """

    def __init__(self, url: str, folder: Path, limit: int | None = None) -> None:
        super().__init__(folder, limit)
        self.url = url.rstrip("/")
        self._warned = False
        with self._or_local_only(), storage(self.url):
            pass

    def fetch(self, key: str, make: Callable[[Path], None]) -> Entry:
        """As :meth:`Store.fetch`; an entry that was downloaded was not ``made``."""
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
        """Go on without shared storage where it fails, and warn once."""
        try:
            yield
        except (StorageError, FileNotFoundError) as error:
            level = logging.DEBUG if self._warned else logging.WARNING
            logger.log(level, "%s. Engines are kept in %s alone", error, self.folder)
            self._warned = True


def _download(url: str, folder: Path) -> bool:
    """Fill ``folder``; False, and it stays empty, where shared storage has no such entry or a damaged one."""
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
