"""How many cores a process takes of the machine."""

from __future__ import annotations

import os
from collections.abc import Mapping


def share_of_cores(environment: Mapping[str, str] = os.environ) -> int | None:
    """Threads that one of pytest-xdist's workers should use, at least 1; None outside of xdist."""
    workers = environment.get("PYTEST_XDIST_WORKER_COUNT", "")
    if not workers.isdecimal() or workers == "0":
        return None
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // int(workers))
