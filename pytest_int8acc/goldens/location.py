"""Where one golden lies: a folder or an fsspec URL. Its pair of files is replaced in one atomic step.

The name of the .npz contains a part of its hash. The .npz is written first; the JSON names it and is renamed
into place afterwards. A process that is killed therefore leaves the old pair or the new one, and perhaps
files that no JSON names. The next recording of the same golden removes those.
"""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock, Timeout

from pytest_int8acc.files import clear_drafts, real
from pytest_int8acc.goldens.outputs import Stored, unpack
from pytest_int8acc.goldens.record import GoldenError, Record, read_record
from pytest_int8acc.names import is_url, safe_url
from pytest_int8acc.runtime.storage import read_bytes, write_bytes_atomic
from pytest_int8acc.settings import stem
from pytest_int8acc.spec.load import display
from pytest_int8acc.spec.models import Case

#: Name of the folder of goldens beside the specs.
FOLDER = "__int8acc__"
#: Count of characters of the hash in the name of an .npz.
HASH_LENGTH = 12
#: Maximum seconds to wait for another process that writes the same golden.
_LOCK_TIMEOUT_SECONDS = 120.0


@dataclass(frozen=True)
class Location:
    """The two files of one golden."""

    folder: str = field(repr=False)
    """A path or an fsspec URL, which may contain a password."""
    case: str
    again: str = "record it again"
    """The advice how to record the golden again, with the command to type."""

    @property
    def file(self) -> str:
        """The path or URL of the JSON."""
        return f"{self.folder}/{self.case}.json"

    @property
    def mend(self) -> str:
        """The advice where the golden is damaged."""
        return f"restore it from version control, or {self.again}"

    def __str__(self) -> str:
        """The JSON's path as messages show it."""
        return shown(self.file)

    def read(self) -> Record | None:
        """Return the record in the JSON; None where there is no golden.

        Raises:
            GoldenError: The file cannot be read, or is no golden.
        """
        text = self._read(self.file)
        return None if text is None else read_record(text, str(self), self.again)

    def outputs(self, record: Record) -> Stored:
        """Return the baseline's outputs; ``record`` must keep some.

        Raises:
            GoldenError: The .npz is missing, or is not the one that was written.
        """
        assert record.kept is not None
        where = f"{self.folder}/{record.kept.file}"
        data = self._read(where)
        if data is None:
            raise GoldenError(f"{shown(where)}: missing, and {self} names it; {self.mend}")
        damage = "its SHA-256 is not the recorded one"
        if hashlib.sha256(data).hexdigest() == record.kept.sha256:
            try:
                return unpack(data, record.kept.outputs)
            except ValueError as error:
                damage = str(error)
        elif data.startswith(b"version https://git-lfs"):
            raise GoldenError(f"{shown(where)}: a Git LFS pointer, not the golden; run `git lfs pull`")
        raise GoldenError(f"{shown(where)}: the golden is damaged ({damage}); {self.mend}")

    def write(self, record: Record, data: bytes | None, *, replace: bool) -> bool:
        """Write ``record`` and its outputs; files that are equal already stay untouched.

        Args:
            record: The content of the JSON.
            data: The .npz; None where ``record`` keeps no outputs.
            replace: Whether a golden that is there already is replaced.

        Returns:
            False where a golden was there and stays.

        Raises:
            GoldenError: The files cannot be written; the old golden stays as it was.
            EngineError: The shared storage fails.
        """
        try:
            with self.locked():
                if not replace and _content(self.file) is not None:
                    return False
                if data is not None and record.kept is not None:
                    _put(f"{self.folder}/{record.kept.file}", data)
                _put(self.file, record.text().encode())
                self._clear(None if record.kept is None else record.kept.file)
                return True
        except OSError as error:
            raise GoldenError(
                f"{self}: the golden cannot be written: {error.strerror or error}; what was there is "
                "unchanged. Make room or the folder writable, or name another one with the ini key "
                "int8acc_goldens"
            ) from error

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes of this machine from writing this golden; shared storage has no locks.

        Raises:
            GoldenError: Another process holds the lock for longer than the timeout.
        """
        if is_url(self.file):
            yield
            return
        # The lock file lies in the temporary folder: it stays, and beside the golden it would be committed.
        user = getattr(os, "getuid", getpass.getuser)()
        name = hashlib.sha256(f"{user}\0{real(Path(self.file))}".encode()).hexdigest()[:24]
        lock = Path(tempfile.gettempdir()) / f"int8acc-golden-{name}.lock"
        try:
            with FileLock(lock, timeout=_LOCK_TIMEOUT_SECONDS):
                yield
        except Timeout:
            raise GoldenError(f"{self}: another process has been writing this golden for minutes") from None

    def _clear(self, kept: str | None) -> None:
        """Remove drafts of killed recordings, and all outputs of this golden but the file ``kept``.

        In shared storage they stay, because another process may be about to name them.
        """
        if is_url(self.folder):
            return
        folder = Path(self.folder)
        outputs = re.compile(
            rf"({re.escape(self.case)}\.[0-9a-f]{{{HASH_LENGTH}}}\.npz)(\.[0-9a-f]{{32}}\.tmp)?"
        )
        for match in filter(None, map(outputs.fullmatch, os.listdir(folder))):
            if match[2]:
                clear_drafts(folder, match[1])
            elif match[1] != kept:
                with contextlib.suppress(OSError):
                    (folder / match[1]).unlink()
        clear_drafts(folder, f"{self.case}.json")

    def _read(self, where: str) -> bytes | None:
        try:
            return _content(where)
        except OSError as error:
            why = error.strerror or error
            raise GoldenError(f"{shown(where)}: the golden cannot be read: {why}; {self.mend}") from error


def location_of(case: Case, folder: str | None = None) -> Location:
    """Return where the golden of ``case`` lies: in ``folder``, a path or URL; None: beside the spec."""
    local_folder = case.file.parent / FOLDER / stem(case.file.name)
    update = f"`pytest {display(case.file)}::{case.name} --int8acc-update=all`"
    return Location(
        str(local_folder) if folder is None else folder, case.name, f"record it again with {update}"
    )


def shown(where: str) -> str:
    """Return a path relative to the current folder, or a URL without its password."""
    return safe_url(where) if is_url(where) else display(Path(where))


def _content(where: str) -> bytes | None:
    """Return the bytes of a file; None where there is no file."""
    try:
        return read_bytes(where)
    except FileNotFoundError:
        return None


def _put(where: str, data: bytes) -> None:
    """Write a file atomically, unless it has this content already."""
    if _content(where) != data:
        write_bytes_atomic(where, data)
