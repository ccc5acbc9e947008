"""Files in shared storage, listed and removed."""

from __future__ import annotations

from pytest_int8acc.engines.remote import reach, talking


def list_files(url: str) -> list[str]:
    """The files below a URL, relative to it; none where it is not there.

    Raises:
        EngineError: Shared storage fails, or is not known here.
    """
    with talking(url):
        system, path = reach(url.rstrip("/"))
        if not system.exists(path):
            return []
        start = path.rstrip("/") + "/"
        return sorted(str(file).removeprefix(start) for file in system.find(path))


def remove_file(url: str) -> None:
    """Remove one file; nothing where it is not there.

    Raises:
        EngineError: Shared storage fails, or is not known here.
    """
    with talking(url):
        system, path = reach(url)
        if system.exists(path):
            system.rm_file(path)
