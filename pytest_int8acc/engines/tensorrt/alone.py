"""One at a time on a GPU, over all processes: two builders there slow each other 3 to 4 times."""

from __future__ import annotations

import contextlib
import getpass
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock


def lock_of(bus: str) -> Path | None:
    """The lock of the GPU at a PCI bus id, for this user's processes; None where the id is not known."""
    if not bus:
        return None
    with contextlib.suppress(OSError, KeyError):  # a user without a name
        place = re.sub(r"\W", "-", f"{getpass.getuser()}-{bus}")
        return Path(tempfile.gettempdir()) / f"int8acc-gpu-{place}.lock"
    return None


@contextlib.contextmanager
def alone(lock: Path | None) -> Iterator[float]:
    """Hold a lock; gives the seconds waited for it. Nobody is kept from work where it cannot be held."""
    started = time.monotonic()
    held = None if lock is None else FileLock(str(lock), thread_local=False)
    if held is not None:
        with contextlib.suppress(OSError):
            held.acquire()
    try:
        yield time.monotonic() - started
    finally:
        if held is not None:
            held.release()
