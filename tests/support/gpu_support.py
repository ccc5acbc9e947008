"""What tests on a GPU share: when they run, and a copy of the example project for TensorRT."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from plugin_support import LOAD
from zoo import ZOO

from benchmarks.builder import Builder
from pytest_int8acc.graph.load import normalize
from pytest_int8acc.graph.model import Model, make_model, save_model
from pytest_int8acc.runtime.onnxruntime import OrtEngine

if importlib.util.find_spec("tensorrt") is not None and shutil.which("nvidia-smi") is not None:
    # pytester forgets what a run inside a test imported, and Polygraphy refuses to be imported anew.
    importlib.import_module("polygraphy.backend.trt")

#: Where set, GPU tests run without a GPU as far as their first engine's build; see gpu_dry.py.
DRY = "INT8ACC_GPU_TESTS_DRY"
#: What is told of a dry run that went well.
REACHED = "as far as the first build"
EXAMPLE = Path(__file__).parents[2] / "example_project"
ROOT = Path(__file__).parents[2]


def _needs(what: str) -> list[pytest.MarkDecorator]:
    absent = importlib.util.find_spec("tensorrt") is None or shutil.which("nvidia-smi") is None
    absent = absent and DRY not in os.environ
    install = "pip install -e '.[cpu,tensorrt,dev]'"
    how = f"needs an NVIDIA GPU and {what}: {install}, then pytest -m gpu -s"
    return [pytest.mark.gpu, pytest.mark.skipif(absent, reason=how)]


needs_gpu = _needs("TensorRT")
#: With weak typing, as of implicit quantization and of layers whose precision is set.
needs_gpu_below_11 = _needs("TensorRT 8.6 to 10")


def gpus() -> int:
    """GPUs of this machine."""
    if shutil.which("nvidia-smi") is None:
        return 0
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False).stdout
    return sum(line.startswith("GPU ") for line in listed.splitlines())


def _take_one() -> None:
    """One GPU per worker of pytest-xdist, in turn."""
    worker, count = os.environ.get("PYTEST_XDIST_WORKER", ""), gpus()
    if worker and count:
        os.environ.setdefault("CUDA_VISIBLE_DEVICES", str(int(worker[2:]) % count))


_take_one()
os.environ.setdefault("CUDA_MODULE_LOADING", "LAZY")  # TensorRT 8.6 loads all its kernels for seconds else


#: A line of a spec whose network has random weights: it gives nearly the same for all samples.
UNTRAINED = "accept_blind: an untrained network on random inputs\n"
#: A criterion that any engine meets. With it engines of level 0 are timed though others are built.
TIMED = "speedup: 0.001"
#: Samples of ``batched``.
BATCH = 128
#: Other tests build on this GPU, too, and a case waits for them.
WAIT = ("--int8acc-max-seconds", "3600")


def tactics(level: int = 0) -> str:
    """A spec's ``tensorrt`` section: quick builds, and no cuBLAS and cuDNN, which not every machine has.

    At level 0 TensorRT takes the first tactic that runs; INT8 by its own choice, without Q/DQ, needs 1.
    """
    return f"tensorrt: {{tactic_sources: [], optimization_level: {level}}}\n"


def copy_example(folder: Path) -> Path:
    """The example project's digits in ``folder``, their specs with a ``tensorrt`` section."""
    project = folder / "project"
    ignored = shutil.ignore_patterns("__pycache__", "test_*", "detector", "transformer")
    shutil.copytree(EXAMPLE, project, ignore=ignored)
    for spec in project.glob("*.int8acc.yaml"):
        spec.write_text(spec.read_text(encoding="utf-8") + "\n" + tactics(), encoding="utf-8")
    return project


def small() -> Model:
    """A network whose engines take seconds: two convolutions of 16 channels and a Gemm, its batch open."""
    b = Builder("small", (3, 8, 8), seed=3)
    x = b.conv_relu(b.conv_relu("x", 3, 16, label="conv0"), 16, 16, label="conv1")
    return b.model(b.head(x, 16))


def wide(convolutions: int) -> Model:
    """Convolutions so large that fewer bits are faster, which is what TensorRT goes by; its batch open."""
    b = Builder("wide", (3, 32, 32), seed=5)
    x, channels = "x", 3
    for number in range(convolutions):
        x, channels = b.conv_relu(x, channels, 256, label=f"conv{number}"), 256
    return b.model(b.head(x, channels))


def small_inputs(samples: int, seed: int = 0) -> dict[str, np.ndarray]:
    """For ``small``."""
    return {"x": np.random.default_rng(seed).standard_normal((samples, 3, 8, 8)).astype(np.float32)}


def small_project(folder: Path, spec: str = "small.int8acc.yaml", samples: int = 64) -> Path:
    """A case of ``small`` that passes."""
    project = folder / "project"
    project.mkdir()
    save_model(small(), project / "small.onnx")
    np.savez(project / "inputs.npz", **small_inputs(samples))
    text = f"model: small.onnx\ninputs: inputs.npz\nint8: {{calibrate: {{method: minmax}}}}\n{UNTRAINED}"
    (project / spec).write_text(f"{text}criteria: [{{sqnr_db: 15}}]\n{tactics()}", encoding="utf-8")
    return project


def pytest_run(project: Path, *arguments: str, store: Path | None = None, **environment: str) -> str:
    """What ``pytest --int8acc`` on TensorRT prints in ``project``; it prints it here, too."""
    kept = ["--int8acc-no-cache"] if store is None else ["--int8acc-cache-dir", str(store)]
    command = [sys.executable, "-m", "pytest", *LOAD, "-p", "no:cacheprovider", "--int8acc", "-o", "addopts="]
    command += ["--int8acc-backend", "tensorrt", "--log-level=INFO", *kept, *arguments]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    count = "PYTEST_XDIST_WORKER_COUNT"  # so that the cores are shared with the other tests
    outer = {name: v for name, v in os.environ.items() if name == count or "PYTEST_XDIST_" not in name}
    environment = {**outer, "PYTHONPATH": path, **environment}
    if DRY in os.environ:
        command += ["-p", "gpu_dry"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, env=environment, check=False)
    print(f"$ pytest {' '.join(arguments)}\n{done.stdout}\n{done.stderr}")
    if DRY in os.environ and REACHED in done.stdout:
        pytest.skip(REACHED)
    return done.stdout


def outcome(output: str) -> dict[str, int]:
    """The counts of pytest's last line."""
    last = [line for line in output.splitlines() if re.search(r" in [\d.]+s", line)][-1]
    return {word: int(count) for count, word in re.findall(r"(\d+) (\w+)", last.partition(" in ")[0])}


def cases(project: Path) -> dict[str, dict[str, Any]]:
    """The cases of a run with ``--int8acc-report out``, by name."""
    report = json.loads((project / "out" / "report.json").read_text(encoding="utf-8"))
    return {case["name"]: case for case in report["cases"] if "name" in case}


def batched(name: str) -> tuple[Model, dict[str, np.ndarray]]:
    """A model of the zoo with random inputs; many samples, so that SQNR does not hang on single roundings."""
    proto = ZOO[name]()
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = BATCH
    model = normalize(make_model(proto))
    (value,) = model.inputs
    shape = tuple(int(d) for d in value.shape or ())
    return model, {value.name: np.random.default_rng(0).normal(size=shape).astype(np.float32)}


def amax_scales(model: Model, tensors: tuple[str, ...], feed: dict[str, np.ndarray]) -> dict[str, float]:
    """Symmetric INT8 scales that just reach each tensor's values."""
    editor = model.edit()
    for name in tensors:
        if name not in feed and name not in {o.name for o in model.outputs}:
            editor.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    values = {**feed, **OrtEngine(editor.done())(feed)}
    return {name: float(np.abs(values[name]).max()) / 127 for name in tensors}
