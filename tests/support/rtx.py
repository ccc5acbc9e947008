"""Builds many models with TensorRT-RTX on the CPU, in one process of its own.

Polygraphy reads POLYGRAPHY_USE_TENSORRT_RTX once, when it is imported, and TensorRT may end the
process on a model it cannot take: so the builds run in a child, which starts again after a crash.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
import pytest

#: A symbolic dimension's smallest, usual and largest size: the first dimension's, and any other's.
BATCHES, SIZES = (1, 2, 4), (8, 16, 64)


def build(model: bytes) -> None:
    """Parse and build ``model``, strongly typed; raises AssertionError with TensorRT's message."""
    error = build_all({"model": model})["model"]
    assert error is None, error


def build_all(
    models: Mapping[str, bytes], timeout: float = 600, capability: str = ""
) -> dict[str, str | None]:
    """Build every model; per name None, or the message of the error. Skips where TensorRT-RTX is missing.

    ``capability``, like ``SM89``, is that of the GPU they are built for; without one anything builds.
    """
    if importlib.util.find_spec("tensorrt_rtx") is None:
        pytest.skip("needs TensorRT-RTX: pip install tensorrt-rtx")
    results: dict[str, str | None] = {}
    with tempfile.TemporaryDirectory() as folder:
        for i, model in enumerate(models.values()):
            (Path(folder) / f"{i:03}.onnx").write_bytes(model)
        while len(results) < len(models):
            done = _run_child(Path(folder), len(results), timeout, capability)
            assert done, "the build process ended without a result"
            results.update(zip(list(models)[len(results) :], done, strict=False))
    return results


def _run_child(folder: Path, start: int, timeout: float, capability: str) -> list[str | None]:
    """Results of the models from number ``start`` on, up to the one at which the child ended, if it did."""
    environment = {**os.environ, "POLYGRAPHY_USE_TENSORRT_RTX": "1"}
    child = subprocess.run(
        [sys.executable, __file__, str(folder), str(start), capability],
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    marked = [line[7:] for line in child.stdout.splitlines() if line.startswith("RESULT ")]
    results: list[str | None] = [json.loads(line) for line in marked]
    if child.returncode:
        results.append(f"the build process ended with {child.returncode}: {child.stderr[-2000:]}")
    return results


def _main(folder: Path, start: int, capability: str) -> None:
    for path in sorted(folder.glob("*.onnx"))[start:]:
        print("RESULT " + json.dumps(_build_one(path.read_bytes(), capability)), flush=True)


def _build_one(model: bytes, capability: str) -> str | None:
    from polygraphy.backend.trt import (
        CreateConfig,
        EngineBytesFromNetwork,
        NetworkFromOnnxBytes,
        PostprocessConfig,
        Profile,
    )
    from polygraphy.logger import G_LOGGER

    G_LOGGER.module_severity = G_LOGGER.ERROR
    profile = Profile()
    for value in onnx.load_from_string(model).graph.input:
        dims = value.type.tensor_type.shape.dim
        if any(not d.HasField("dim_value") for d in dims):
            sizes = [
                [d.dim_value or (SIZES[k] if i else BATCHES[k]) for i, d in enumerate(dims)] for k in range(3)
            ]
            profile.add(value.name, *sizes)
    log = io.StringIO()
    try:
        config = CreateConfig(profiles=[profile] if profile else None)
        if capability:
            config = PostprocessConfig(config, lambda builder, network, config: _aim(config, capability))
        with contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
            EngineBytesFromNetwork(NetworkFromOnnxBytes(model, strongly_typed=True), config)()
    except Exception as error:
        lines = [line for line in log.getvalue().splitlines() if "cudaError" not in line]
        return "\n".join([str(error) or type(error).__name__, *lines])
    return None


def _aim(config: Any, capability: str) -> None:
    import tensorrt_rtx

    config.num_compute_capabilities = 1
    config.set_compute_capability(getattr(tensorrt_rtx.ComputeCapability, capability), 0)


if __name__ == "__main__":
    _main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
