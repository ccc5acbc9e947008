"""What a process takes of the machine: its GPU, chosen before CUDA starts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

_VARIABLE = "CUDA_VISIBLE_DEVICES"
#: One folder per GPU, written by NVIDIA's driver on Linux.
_DRIVER = Path("/proc/driver/nvidia/gpus")


def visible_devices(environment: Mapping[str, str] = os.environ, driver: Path = _DRIVER) -> list[str]:
    """The GPUs that the caller allows, as CUDA_VISIBLE_DEVICES names them; all where it says nothing.

    An index below 0 ends the list, as for CUDA itself.
    """
    if (given := environment.get(_VARIABLE)) is not None:
        devices = []
        for entry in (part.strip() for part in given.split(",")):
            if not entry or entry.startswith("-"):
                break
            devices.append(entry)
        return devices
    try:
        return [str(i) for i in range(len(os.listdir(driver)))]
    except OSError:
        return []


def choose(worker: str | None, wanted: int | None, visible: list[str]) -> str | None:
    """The entry of ``visible`` that this process takes; None leaves all to it.

    Args:
        worker: pytest-xdist's name of this process, like gw3; None outside of xdist.
        wanted: The entry that the user asks for, from 0; it holds for every worker.
        visible: From ``visible_devices``.

    Raises:
        ValueError: There is no such entry.
    """
    if wanted is not None:
        if wanted >= len(visible):
            seen = f"{len(visible)} GPUs are" if len(visible) != 1 else "1 GPU is"
            raise ValueError(f"there is no GPU {wanted}: {seen} visible; count from 0")
        return visible[wanted]
    if worker is None or not visible or not worker[2:].isdecimal():
        return None
    return visible[int(worker[2:]) % len(visible)]


def take(worker: str | None, wanted: int | None) -> None:
    """Let CUDA see one GPU only, where one is chosen; raises ValueError where there is no such one."""
    chosen = choose(worker, wanted, visible_devices())
    if chosen is not None:
        os.environ[_VARIABLE] = chosen
