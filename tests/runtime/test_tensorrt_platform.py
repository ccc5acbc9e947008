"""Which TensorRT is there is found out without harm, and what it lacks is said."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_int8acc import EngineError
from pytest_int8acc.errors import MissingBackendError
from pytest_int8acc.runtime import worker
from pytest_int8acc.runtime.trt import platform as platform_module
from pytest_int8acc.runtime.trt.platform import Platform, find_platform, require

GPU = {"gpu": "NVIDIA H100", "capability": (9, 0)}
#: Bytes of two GPUs of one kind, which may differ a little.
MEMORY = [80 << 30, 79 << 30]


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    platform_module._facts.cache_clear()
    yield
    platform_module._facts.cache_clear()


def fake_package(folder: Path, name: str, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package of this name, which the probe's process imports before any installed one."""
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text(code)
    monkeypatch.syspath_prepend(folder)


def hide(monkeypatch: pytest.MonkeyPatch, *modules: str) -> None:
    real = platform_module.is_installed
    monkeypatch.setattr(platform_module, "is_installed", lambda m: m not in modules and real(m))


@pytest.mark.rtx
def test_rtx_without_a_gpu_can_build_and_not_run(capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tensorrt_rtx")
    found, _ = find_platform("rtx")
    assert found is not None
    if found.gpu is not None:
        pytest.skip("there is a GPU")
    assert (found.flavor, found.can_build, found.can_run) == ("rtx", True, False)
    assert "no NVIDIA GPU is seen" in found.problem
    assert found.name.startswith("TensorRT-RTX ")
    with pytest.raises(MissingBackendError, match="cannot run engines here: no NVIDIA GPU is seen"):
        require(found, "run")
    assert capfd.readouterr() == ("", "")


def test_nothing_installed_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, "tensorrt", "tensorrt_rtx")
    assert find_platform() == (None, "TensorRT is not installed: pip install tensorrt")


def test_a_folder_named_tensorrt_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tensorrt").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    if any((Path(p) / "tensorrt" / "__init__.py").exists() for p in sys.path):
        pytest.skip("TensorRT is installed")
    assert not platform_module.is_installed("tensorrt")


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("raise ImportError('libcublas.so.12: cannot open')", "libcublas.so.12: cannot open"),
        ("import os; os.abort()", "its import ends the process"),
        ("", "has no attribute '__version__'"),
    ],
)
def test_what_does_not_load_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, why: str
) -> None:
    fake_package(tmp_path, "tensorrt", code, monkeypatch)
    hide(monkeypatch, "tensorrt_rtx")
    found, reason = find_platform()
    assert found is None
    assert "TensorRT is installed but does not load" in reason
    assert why in reason


def test_an_old_version_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_package(tmp_path, "tensorrt", "__version__ = '8.5.3.1'", monkeypatch)
    hide(monkeypatch, "tensorrt_rtx")
    found, _ = find_platform()
    assert found is not None
    assert found.problem == "version 8.6 or later is needed"
    with pytest.raises(MissingBackendError, match=r"TensorRT 8.5.3 cannot build .*8.6 or later"):
        require(found, "build")


@pytest.mark.rtx
def test_one_that_can_build_comes_before_one_that_cannot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorrt_rtx")
    fake_package(tmp_path, "tensorrt", "__version__ = '10.3.0'", monkeypatch)
    found, _ = find_platform("tensorrt")
    assert found is not None
    if found.gpu is not None:
        pytest.skip("there is a GPU")
    assert found.flavor == "rtx"


def test_rtx_that_does_not_know_the_gpu_cannot_run() -> None:
    facts = {"tensorrt_rtx": {"capabilities": [[8, 9], [12, 0]]}, "gpu": {"name": "NVIDIA H100"}}
    problem = platform_module._problem(Platform("rtx", (1, 7), **GPU), facts)
    assert problem == "it builds for compute capability 8.9, 12.0, and NVIDIA H100 has 9.0; use TensorRT"
    assert not platform_module._problem(Platform("rtx", (1, 7), "NVIDIA L4", (8, 9)), facts)


def test_a_missing_cuda_runtime_is_said() -> None:
    problem = platform_module._problem(Platform("tensorrt", (8, 6), **GPU), {"cudart": {"error": "none"}})
    assert problem.startswith("the CUDA runtime library is not found (none): add the folder of libcudart.so")


@pytest.mark.parametrize(
    ("flavor", "version", "has"),
    [
        ("tensorrt", (8, 6, 0), {"weak typing", "implicit quantization", "timing cache"}),
        ("tensorrt", (9, 3, 0), {"weak typing", "implicit quantization", "timing cache"}),
        (
            "tensorrt",
            (10, 3, 0),
            {"strong typing", "weak typing", "implicit quantization", "timing cache"},
        ),
        (
            "tensorrt",
            (10, 12, 0),
            {"strong typing", "weak typing", "implicit quantization", "debug tensors", "timing cache"},
        ),
        ("tensorrt", (11, 4, 0), {"strong typing", "debug tensors", "timing cache"}),
        ("rtx", (1, 7, 1), {"strong typing", "debug tensors"}),
    ],
)
def test_a_missing_feature_names_who_has_it(flavor: str, version: tuple[int, ...], has: set[str]) -> None:
    own = Platform(flavor, version, **GPU)  # type: ignore[arg-type]
    features = (
        "strong typing",
        "weak typing",
        "implicit quantization",
        "debug tensors",
        "timing cache",
    )
    for feature in features:
        if feature in has:
            require(own, feature)  # type: ignore[arg-type]
        else:
            with pytest.raises(
                EngineError, match=f"{own.name} has no {feature}: TensorRT .*ha(s|ve) (it|them)"
            ):
                require(own, feature)


@pytest.mark.parametrize("version", [(8, 6, 0), (9, 3, 0)])
def test_fp8_takes_tensorrt_10(version: tuple[int, ...]) -> None:
    with pytest.raises(EngineError, match=r"on NVIDIA L4 has no FP8: it takes TensorRT 10 or later"):
        require(Platform("tensorrt", version, "NVIDIA L4", (8, 9)), "FP8")


def test_fp8_takes_ada() -> None:
    for flavor, version in (("tensorrt", (10, 3, 0)), ("rtx", (1, 7, 1))):
        require(Platform(flavor, version, "NVIDIA L4", (8, 9)), "FP8")  # type: ignore[arg-type]
        require(Platform(flavor, version), "FP8")  # type: ignore[arg-type]
        with pytest.raises(EngineError, match=r"on NVIDIA A100 has no FP8: .*Ada \(compute capability 8.9\)"):
            require(Platform(flavor, version, "NVIDIA A100", (8, 0)), "FP8")  # type: ignore[arg-type]


def test_old_parsers_limit_the_opset() -> None:
    limits = [Platform("tensorrt", v).opset_limit for v in [(8, 6), (9, 3), (10, 0), (11, 4)]]
    assert limits == [17, 17, None, None]
    assert Platform("rtx", (1, 7)).opset_limit is None


class Cuda:
    """A driver library with three GPUs, of which the last is another one."""

    NAMES = (b"NVIDIA H100", b"NVIDIA H100", b"NVIDIA L4")

    def cuInit(self, flags: int) -> int:  # noqa: N802
        return 0

    def cuDeviceGetCount(self, count: Any) -> int:  # noqa: N802
        count._obj.value = len(self.NAMES)
        return 0

    def cuDeviceGet(self, device: Any, index: int) -> int:  # noqa: N802
        device._obj.value = index
        return 0

    def cuDeviceGetName(self, name: Any, size: int, device: Any) -> int:  # noqa: N802
        name.value = self.NAMES[device.value]
        return 0

    def cuDeviceTotalMem_v2(self, nbytes: Any, device: Any) -> int:  # noqa: N802
        nbytes._obj.value = MEMORY[device.value % 2]
        return 0

    def cuDeviceGetPCIBusId(self, bus: Any, size: int, device: Any) -> int:  # noqa: N802
        bus.value = b"0000:0%d:00.0" % device.value
        return 0

    def cuDeviceGetAttribute(self, value: Any, attribute: int, device: Any) -> int:  # noqa: N802
        value._obj.value = 9
        return 0


@pytest.mark.parametrize(("visible", "names"), [(None, ["0", "1"]), ("4, GPU-b,7", ["4", "GPU-b"])])
def test_gpus_like_the_first_can_build_for_it(
    visible: str | None, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker.ctypes, "CDLL", lambda name: Cuda())
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    facts = {"gpu": json.loads(json.dumps(worker._gpu())), "tensorrt": {"version": "8.6.0"}}
    found = platform_module._platform("tensorrt", "8.6.0", facts)
    assert (found.gpu, found.capability, found.can_run) == ("NVIDIA H100", (9, 9), True)
    assert [device.visible for device in found.devices] == names
    assert [device.bus for device in found.devices] == ["0000:00:00.0", "0000:01:00.0"]
    assert [device.nbytes for device in found.devices] == MEMORY
