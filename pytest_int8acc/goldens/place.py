"""Where one golden lies: a folder or an fsspec URL; the pair of files is replaced at one stroke.

The .npz bears a part of its hash in its name and is written first; the JSON names it and is renamed into
place after it. So a process that is killed leaves the old pair or the new one, and files that no JSON names,
which the next recording of the same golden removes.
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
from pytest_int8acc.goldens.arrays import Stored, unpack
from pytest_int8acc.goldens.record import GoldenError, Record, read_record
from pytest_int8acc.names import is_url, safe_url
from pytest_int8acc.runtime.storage import read_bytes, write_bytes_atomic
from pytest_int8acc.settings import stem
from pytest_int8acc.spec.load import display
from pytest_int8acc.spec.models import Case

#: The folder beside the specs.
FOLDER = "__int8acc__"
#: Characters of the hash in the name of an .npz.
HASH = 12
#: Nobody writes for longer.
_PATIENCE = 120.0


@dataclass(frozen=True)
class Place:
    """One golden's two files."""

    folder: str = field(repr=False)
    """A path or an fsspec URL, which may hold a password."""
    case: str
    again: str = "record it again"
    """What to type to record it anew."""

    @property
    def file(self) -> str:
        """The JSON."""
        return f"{self.folder}/{self.case}.json"

    @property
    def mend(self) -> str:
        """What to do where it is damaged."""
        return f"restore it from version control, or {self.again}"

    def __str__(self) -> str:
        """The JSON, as a message names it."""
        return shown(self.file)

    def read(self) -> Record | None:
        """What is kept; None where nothing is.

        Raises:
            GoldenError: It cannot be read, or is none.
        """
        text = _read(self.file, self.mend)
        return None if text is None else read_record(text, str(self), self.again)

    def outputs(self, record: Record) -> Stored:
        """The baseline's outputs.

        Raises:
            GoldenError: The .npz is missing or is not the one that was written.
        """
        assert record.kept is not None  # the caller asks no record of scores alone
        where = shown(f"{self.folder}/{record.kept.file}")
        data = _read(f"{self.folder}/{record.kept.file}", self.mend)
        if data is None:
            raise GoldenError(f"{where}: missing, and {self} names it; {self.mend}")
        if hashlib.sha256(data).hexdigest() != record.kept.sha256:
            if data.startswith(b"version https://git-lfs"):
                raise GoldenError(f"{where}: a Git LFS pointer, not the golden; run `git lfs pull`")
            raise GoldenError(
                f"{where}: the golden is damaged (its SHA-256 is not the recorded one); {self.mend}"
            )
        try:
            return unpack(data, record.kept.outputs)
        except ValueError as error:
            raise GoldenError(f"{where}: the golden is damaged ({error}); {self.mend}") from error

    def write(self, record: Record, data: bytes | None, *, replace: bool) -> bool:
        """Put ``record`` and the outputs that it names in place; a golden that is the same stays untouched.

        ``data`` is the .npz, None where the record names none. Returns False where a golden was there and is
        not to be replaced.

        Raises:
            GoldenError: It cannot be written; what was there still is.
            EngineError: Shared storage fails.
        """
        try:
            with self.alone():
                self._clear()
                old = _content(self.file)
                if old is not None and not replace:
                    return False
                if data is not None and record.kept is not None:
                    _put(f"{self.folder}/{record.kept.file}", data)
                _put(self.file, record.text().encode())
                self._drop(old, record)
                return True
        except OSError as error:
            raise GoldenError(
                f"{self}: the golden cannot be written: {error.strerror or error}; what was there is "
                "unchanged. Make room or the folder writable, or name another one with the ini key "
                "int8acc_goldens"
            ) from error

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other processes of this machine from writing here; shared storage has no locks.

        Raises:
            GoldenError: Another process does not let go.
        """
        if is_url(self.file):
            yield
            return
        # Not beside the golden: lock files stay, and would be committed.
        user = getattr(os, "getuid", getpass.getuser)()
        name = hashlib.sha256(f"{user}\0{real(Path(self.file))}".encode()).hexdigest()[:24]
        lock = Path(tempfile.gettempdir()) / f"int8acc-golden-{name}.lock"
        try:
            with FileLock(lock, timeout=_PATIENCE):
                yield
        except Timeout:
            raise GoldenError(f"{self}: another process has been writing this golden for minutes") from None

    def _clear(self) -> None:
        """Remove what killed recordings of this golden have left: drafts, and outputs that no JSON names."""
        folder = Path(self.folder)
        if is_url(self.folder) or not folder.is_dir():
            return
        text = _content(self.file)
        try:
            kept = None if text is None else read_record(text, "", "").kept
        except GoldenError:  # damaged: its outputs may be wanted, to mend it
            return
        outputs = re.compile(rf"({re.escape(self.case)}\.[0-9a-f]{{{HASH}}}\.npz)(\.[0-9a-f]{{32}}\.tmp)?")
        for found in filter(None, (outputs.fullmatch(name) for name in os.listdir(folder))):
            if found[2]:
                clear_drafts(folder, found[1])
            elif kept is None or found[1] != kept.file:
                (folder / found[1]).unlink(missing_ok=True)
        clear_drafts(folder, f"{self.case}.json")

    def _drop(self, old: bytes | None, new: Record) -> None:
        """Remove the .npz that was replaced. In shared storage it stays: others may be about to name it."""
        if old is None or is_url(self.folder):
            return
        with contextlib.suppress(GoldenError, OSError):
            kept = read_record(old, "", "").kept
            if kept is not None and (new.kept is None or kept.file != new.kept.file):
                (Path(self.folder) / kept.file).unlink(missing_ok=True)


def place_of(case: Case, folder: str | None = None) -> Place:
    """Where the golden of ``case`` lies: in a folder or URL for its spec; None: beside the spec."""
    local_folder = case.file.parent / FOLDER / stem(case.file.name)
    update = f"`pytest {display(case.file)}::{case.name} --int8acc-update=all`"
    return Place(str(local_folder) if folder is None else folder, case.name, f"record it again with {update}")


def shown(where: str) -> str:
    """A path relative to the current folder, or a URL without a password."""
    return safe_url(where) if is_url(where) else display(Path(where))


def _content(where: str) -> bytes | None:
    try:
        return read_bytes(where)
    except FileNotFoundError:
        return None


def _read(where: str, mend: str) -> bytes | None:
    try:
        return _content(where)
    except OSError as error:
        why = error.strerror or error
        raise GoldenError(f"{shown(where)}: the golden cannot be read: {why}; {mend}") from error


def _put(where: str, data: bytes) -> None:
    """Write a file at one stroke, unless it is there already."""
    if _content(where) != data:
        write_bytes_atomic(where, data)
