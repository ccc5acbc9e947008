"""Chooses the backend of a case."""

from __future__ import annotations

from pytest_int8acc.errors import MissingBackendError
from pytest_int8acc.runtime.children import Workers
from pytest_int8acc.runtime.onnxruntime import OrtBackend
from pytest_int8acc.runtime.protocol import Backend
from pytest_int8acc.runtime.trt.platform import find_platform, may_have_gpu
from pytest_int8acc.settings import Settings
from pytest_int8acc.spec.models import Case


def open_backend(case: Case, settings: Settings, builders: Workers | None = None) -> Backend:
    """The backend that the settings name. ``auto`` means TensorRT if it can run here, else ONNX Runtime.

    Args:
        case: The case that the backend is opened for.
        settings: The name of the backend and its options.
        builders: Child processes for TensorRT that all cases share; None starts processes for this case.

    Raises:
        MissingBackendError: The settings name TensorRT, which neither runs nor builds here.
        EngineError: The engine store cannot be used.
    """
    if settings.backend == "onnxruntime":
        return OrtBackend(settings)
    if settings.backend == "auto" and not may_have_gpu():
        return OrtBackend(settings, "no NVIDIA GPU is seen")
    platform, why = find_platform()
    if platform is not None and (platform.can_run or (settings.backend == "tensorrt" and platform.can_build)):
        from pytest_int8acc.runtime.trt.backend import TrtBackend

        return TrtBackend(platform, case, settings, builders)
    if settings.backend == "auto":
        return OrtBackend(settings, why)
    raise MissingBackendError(f"backend tensorrt: {why}")
