"""A plugin under which GPU tests run without a GPU: TensorRT 8.6 seems to be there, and no build is done.

What the first build is given is made (the model as that TensorRT reads it, the calibration batches, the job);
then the test ends, and so does a run of specs inside it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gpu_support import REACHED

from pytest_int8acc.runtime import open as opening
from pytest_int8acc.runtime.trt import build, engine, platform

FACTS = {"gpu": {"name": "NVIDIA H100", "capability": [9, 0]}, "tensorrt": {"version": "8.6.0"}}


def reached(job: Any, folder: Path, *_: Any, **__: Any) -> Any:
    """The end of a dry run."""
    assert job["kind"] == "build"
    assert (folder / "model.onnx").stat().st_size
    for session in _of_specs:
        session.shouldstop = REACHED
    pytest.skip(REACHED)


#: The session of this process, where it runs specs.
_of_specs: list[pytest.Session] = []


def pytest_sessionstart(session: pytest.Session) -> None:
    if session.config.getoption("--int8acc"):
        _of_specs.append(session)


def pytest_configure() -> None:
    platform._facts = lambda visible: FACTS  # type: ignore[assignment]
    platform.is_installed = lambda module: module == "tensorrt"
    opening.may_have_gpu = lambda: True
    build.run_worker = engine.run_worker = reached
