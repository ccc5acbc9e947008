"""Finds the installed TensorRT, its features and the GPU, and asks TensorRT's parser about a model.

A child process does this work. Importing a broken TensorRT may end a process, and TensorRT 8.6 ends a process
if it finds no GPU. A process that asks CUDA for devices can no longer change CUDA_VISIBLE_DEVICES.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pytest_int8acc.errors import EngineError, MissingBackendError
from pytest_int8acc.runtime.children import Ended, Outcome, Workers, messages, shared_workers
from pytest_int8acc.runtime.trt.options import Feature

Flavor = Literal["tensorrt", "rtx"]

_MODULES: dict[Flavor, str] = {"tensorrt": "tensorrt", "rtx": "tensorrt_rtx"}
_NAMES: dict[Flavor, str] = {"tensorrt": "TensorRT", "rtx": "TensorRT-RTX"}
_INSTALL: dict[Flavor, str] = {"tensorrt": "pip install tensorrt", "rtx": "pip install tensorrt-rtx"}
_LEAST = (8, 6)
#: Minimum compute capability of a GPU that multiplies FP8.
_ADA = (8, 9)
#: Device files of NVIDIA's drivers on Linux, on Windows' subsystem for Linux, and on Jetson boards.
_DEVICES = ("/dev/nvidiactl", "/dev/dxg", "/dev/nvhost-gpu", "/dev/nvgpu", "/dev/nvmap")
#: Maximum number of seconds of a child that looks for TensorRT, and of a child that parses a model.
_PROBE_SECONDS, _PARSE_SECONDS = 120.0, 300.0


class Device(NamedTuple):
    """How a process selects and identifies a GPU."""

    visible: str
    """The value of CUDA_VISIBLE_DEVICES with which a process sees this GPU alone."""
    bus: str
    """The PCI bus id; empty if the driver does not give it."""
    nbytes: int = 0
    """The memory in bytes; 0 if the driver does not give it."""


@dataclass(frozen=True)
class Platform:
    """An installed TensorRT, and the GPU that it uses."""

    flavor: Flavor
    version: tuple[int, ...]
    gpu: str | None = None
    """Name of CUDA's device 0; None if there is no GPU."""
    capability: tuple[int, int] | None = None
    problem: str = ""
    """Why engines cannot run here, with advice; empty if they can run."""
    devices: tuple[Device, ...] = ()
    """The GPUs that this process sees and that are of the same kind as the first one. An engine built on one
    of them runs on all."""

    @property
    def name(self) -> str:
        """The flavor and the version, such as ``TensorRT 8.6.0``."""
        return f"{_NAMES[self.flavor]} {'.'.join(map(str, self.version[:3]))}"

    @property
    def description(self) -> str:
        """The flavor, the version and the GPU, such as ``TensorRT 8.6.0 on NVIDIA H100``."""
        return f"{self.name} on {self.gpu or 'no GPU'}"

    @property
    def is_rtx(self) -> bool:
        """Whether this is TensorRT-RTX."""
        return self.flavor == "rtx"

    @property
    def can_run(self) -> bool:
        """Whether engines can run here."""
        return not self.problem

    @property
    def can_build(self) -> bool:
        """Whether engines can be built here. TensorRT-RTX builds without a GPU."""
        return self.can_run or self.is_rtx

    @property
    def strongly_typed(self) -> bool:
        """Whether an engine has the types of its model, as in TensorRT 10 and later and in TensorRT-RTX."""
        return self.is_rtx or self.version >= (10,)

    @property
    def weakly_typed(self) -> bool:
        """Whether TensorRT can choose precisions and calibrate. TensorRT below 11 can."""
        return not self.is_rtx and self.version < (11,)

    def has(self, feature: Feature) -> bool:
        """Whether this TensorRT has the feature on this machine."""
        return _NEEDS[feature].has(self)

    @property
    def opset_limit(self) -> int | None:
        """The newest opset that the parser reads; None if it reads all opsets that this package writes."""
        return 17 if not self.is_rtx and self.version < (10,) else None

    @property
    def integer_weights(self) -> bool:
        """Whether all models may have INT8 initializers.

        TensorRT 8.6.0 builds no transformer with INT8 initializers: "convertMyelinWeightsToFp32 ... Assertion
        params.weights.type() != DataType::kINT8 failed".
        """
        return self.is_rtx or self.version >= (10,)


class _Need(NamedTuple):
    """A test of whether a platform has a feature, and a text on which versions have it, for messages."""

    has: Callable[[Platform], bool]
    who: str


_BELOW_11 = "TensorRT 8.6 to 10 has it, 11 and TensorRT-RTX do not"
_NEEDS: dict[Feature, _Need] = {
    "run": _Need(lambda p: p.can_run, ""),
    "build": _Need(lambda p: p.can_build, ""),
    "strong typing": _Need(lambda p: p.strongly_typed, "TensorRT 10 and later and TensorRT-RTX have it"),
    "weak typing": _Need(lambda p: p.weakly_typed, _BELOW_11),
    "implicit quantization": _Need(
        lambda p: p.weakly_typed, f"{_BELOW_11}; use 'int8: {{calibrate: {{}}}}' or 'int8: {{scales: FILE}}'"
    ),
    "debug tensors": _Need(
        lambda p: p.is_rtx or p.version >= (10, 12), "TensorRT 10.12 and later and TensorRT-RTX have them"
    ),
    "FP8": _Need(
        lambda p: p.strongly_typed and (p.capability is None or p.capability >= _ADA),
        "it takes TensorRT 10 or later or TensorRT-RTX, and a GPU of Ada (compute capability 8.9) or later; "
        "use 'int8', or 'backend: onnxruntime', which simulates FP8",
    ),
    "BF16": _Need(
        lambda p: p.strongly_typed,
        "TensorRT 10 and later and TensorRT-RTX have it; use 'candidate: fp16', or 'backend: onnxruntime'",
    ),
    "layer precisions": _Need(
        lambda p: not p.strongly_typed,
        "TensorRT 8.6 and 9 obey them; from 10 on, and in TensorRT-RTX, an engine has the model's own types, "
        "so leave 'obey' out",
    ),
    "timing cache": _Need(lambda p: not p.is_rtx, "TensorRT has it, TensorRT-RTX does not"),
}


def require(platform: Platform, feature: Feature) -> None:
    """Raise unless ``platform`` has ``feature``.

    Raises:
        MissingBackendError: Engines cannot run or be built here. The message has the reason and advice.
        EngineError: The platform lacks another feature. The message names the versions that have it.
    """
    need = _NEEDS[feature]
    if platform.has(feature):
        return
    if feature in ("run", "build"):
        raise MissingBackendError(f"{platform.name} cannot {feature} engines here: {platform.problem}")
    where = f" on {platform.gpu}" if feature == "FP8" and platform.gpu else ""
    raise EngineError(f"{platform.name}{where} has no {feature}: {need.who}")


def find_platform(prefer: Flavor = "tensorrt") -> tuple[Platform | None, str]:
    """The best TensorRT that is installed; None if none loads.

    A TensorRT that can run engines is better than one that can only build them.

    Args:
        prefer: The flavor that is chosen if both are equally good.

    Returns:
        The platform, and the reason why engines cannot run on it, which is empty if they can.
    """
    flavors: tuple[Flavor, ...] = ("rtx", "tensorrt") if prefer == "rtx" else ("tensorrt", "rtx")
    installed = [flavor for flavor in flavors if is_installed(_MODULES[flavor])]
    if not installed:
        return None, f"TensorRT is not installed: {_INSTALL['tensorrt']}"
    facts = _facts(os.environ.get("CUDA_VISIBLE_DEVICES"))
    broken, found = [], []
    for flavor in installed:
        version = facts.get(_MODULES[flavor], {}).get("version")
        if version is None:
            why = facts.get(_MODULES[flavor], {}).get("error", "its import ends the process")
            broken.append(f"{_NAMES[flavor]} is installed but does not load ({why}): {_INSTALL[flavor]}")
        else:
            found.append(_platform(flavor, version, facts))
    if not found:
        return None, "; ".join(broken)
    best = next((p for p in found if p.can_run), next((p for p in found if p.can_build), found[0]))
    return best, best.problem


def may_have_gpu() -> bool:
    """False if this machine certainly has no NVIDIA GPU. Only the existence of a few files is checked."""
    if sys.platform != "linux":
        return sys.platform == "win32"
    return any(os.path.exists(device) for device in _DEVICES)


def is_installed(module: str) -> bool:
    """Whether ``module`` is an installed package; False for a folder without an ``__init__.py``."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return False
    return spec is not None and spec.origin is not None


def _platform(flavor: Flavor, version: str, facts: dict[str, Any]) -> Platform:
    numbers = tuple(int(part) for part in version.split(".") if part.isdecimal())
    gpu = facts.get("gpu", {})
    capability = tuple(gpu["capability"]) if "capability" in gpu else None
    platform = Platform(flavor, numbers, gpu.get("name"), capability, devices=_devices(gpu))
    return replace(platform, problem=_problem(platform, facts))


def _devices(gpu: dict[str, Any]) -> tuple[Device, ...]:
    """The GPUs of the same kind as the first one, from the facts ``gpu`` that a child has found."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = None if given is None else [entry.strip() for entry in given.split(",")]
    alike = {int(index): place for index, place in gpu.get("alike", {}).items()}
    return tuple(
        Device(str(index) if names is None else names[index], bus, nbytes)
        for index, (bus, nbytes) in sorted(alike.items())
        if names is None or index < len(names)
    )


def _problem(platform: Platform, facts: dict[str, Any]) -> str:
    if not platform.is_rtx and platform.version < _LEAST:
        return "version 8.6 or later is needed"
    if platform.gpu is None:
        return f"no NVIDIA GPU is seen ({facts.get('gpu', {}).get('error', 'the driver does not answer')})"
    if "error" in facts.get("cudart", {}):
        return (
            f"the CUDA runtime library is not found ({facts['cudart']['error']}): add the folder of "
            "libcudart.so to LD_LIBRARY_PATH, or pip install nvidia-cuda-runtime-cu12"
        )
    targets = facts.get(_MODULES[platform.flavor], {}).get("capabilities")
    if platform.is_rtx and targets and platform.capability not in [tuple(t) for t in targets]:
        known = ", ".join(f"{major}.{minor}" for major, minor in targets)
        own = ".".join(map(str, platform.capability or ()))
        return f"it builds for compute capability {known}, and {platform.gpu} has {own}; use TensorRT"
    return ""


@functools.lru_cache(maxsize=4)
def _facts(visible_devices: str | None) -> dict[str, Any]:
    """The facts about this machine that a child finds under a value of CUDA_VISIBLE_DEVICES."""
    facts: dict[str, Any] = {}
    with Workers() as workers:
        for fact in _asked({"kind": "probe"}, _PROBE_SECONDS, workers).facts:
            facts.update(fact)
    return facts


class Refusal(NamedTuple):
    """The parser's reason to refuse a model."""

    node: str
    """Name of the node at which the parser stopped; empty if it names no node."""
    message: str


def refusal(model: Path) -> Refusal | None:
    """Why the parser of TensorRT-RTX refuses a model file.

    The result is None if the parser accepts the model, or if TensorRT-RTX is not installed or does not load.

    Raises:
        OSError: The file does not exist.
    """
    if not is_installed("tensorrt_rtx"):
        return None
    status = model.stat()
    return _refusal(model.resolve(), status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=64)
def _refusal(model: Path, modified: int, nbytes: int) -> Refusal | None:
    """The cached answer of :func:`refusal` for a file with this time of modification and this size."""
    outcome = _asked({"kind": "parse", "model": str(model)}, _PARSE_SECONDS, shared_workers(os.getpid()))
    if not outcome.facts:  # TensorRT-RTX does not load
        return None
    if outcome.ended is Ended.TIMED_OUT:
        return Refusal("", f"its parser stopped after {outcome.seconds:.0f} s")
    if outcome.ended is Ended.FAILED:
        return Refusal("", outcome.answer["error"])
    if outcome.ended is Ended.CRASHED:
        return Refusal("", f"its parser {outcome.ending}")
    if outcome.answer["refusal"] is None:
        return None
    node, said = outcome.answer["refusal"]
    return Refusal(node, "; ".join(messages(said)) or "no reason told")


def _asked(job: dict[str, Any], timeout: float, workers: Workers) -> Outcome:
    """The outcome of a job that a child of ``workers`` does."""
    with tempfile.TemporaryDirectory(prefix="int8acc-", ignore_cleanup_errors=True) as folder:
        return workers.run(job, Path(folder), timeout, kind=job["kind"])
