"""What a child of the test process met."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from pytest_int8acc import Int8accError


def in_child(action: Callable[[], object]) -> str:
    """The error of ``action`` in a child of this process, which may give up its rights."""
    receive, send = os.pipe()
    child = os.fork()
    if not child:
        text = "no error"
        try:
            action()
        except Int8accError as error:
            text = str(error)
        except BaseException as error:
            text = repr(error)
        os.write(send, text.encode())
        os._exit(0)
    os.close(send)
    os.waitpid(child, 0)
    with os.fdopen(receive) as file:
        return file.read()


def is_alive(pid: int) -> bool:
    """False also for a process that has ended and waits for its parent to hear of it."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z" if Path("/proc").exists() else True
