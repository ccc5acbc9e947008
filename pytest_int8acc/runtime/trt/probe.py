"""Tells which TensorRT loads and which GPU is there, a fact per line; run by ``platform.py`` as a child."""

from __future__ import annotations

import ctypes
import importlib
import json
import sys
from typing import Any

_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR


def main() -> None:
    """Print all facts; what may end the process comes last."""
    _tell("gpu", _gpu())
    _tell("cudart", _cudart())
    for module in ("tensorrt_rtx", "tensorrt"):
        _tell(module, _tensorrt(module))


def _tell(name: str, fact: dict[str, Any]) -> None:
    print("\nFACT " + json.dumps({name: fact}), flush=True)


def _gpu() -> dict[str, Any]:
    """Name and compute capability of device 0, and the devices that are like it, by the driver library."""
    library = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        cuda = ctypes.CDLL(library)
    except OSError:
        return {"error": f"the driver's {library} is missing"}
    count = ctypes.c_int()
    code = cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count))
    if code or not count.value:
        return {"error": f"the driver gives error {code}" if code else "the driver has no device"}
    found = [_device(cuda, index) for index in range(count.value)]
    first = found[0][0]
    if "error" in first:
        return first
    return {**first, "alike": {i: bus for i, (facts, bus) in enumerate(found) if facts == first}}


def _device(cuda: Any, index: int) -> tuple[dict[str, Any], str]:
    """A device's name and compute capability, and its PCI bus id."""
    device, value = ctypes.c_int(), ctypes.c_int()
    name, bus = ctypes.create_string_buffer(256), ctypes.create_string_buffer(32)
    code = cuda.cuDeviceGet(ctypes.byref(device), index) or cuda.cuDeviceGetName(name, len(name), device)
    if code:
        return {"error": f"the driver gives error {code}"}, ""
    capability = []
    for attribute in (_MAJOR, _MINOR):
        cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
        capability.append(value.value)
    place = "" if cuda.cuDeviceGetPCIBusId(bus, len(bus), device) else bus.value.decode(errors="replace")
    return {"name": name.value.decode(errors="replace"), "capability": capability}, place


def _cudart() -> dict[str, Any]:
    """Whether Polygraphy finds the CUDA runtime, as its runner will want it."""
    try:
        from polygraphy.cuda import wrapper

        wrapper()
    except Exception as error:  # Polygraphy's own, or the dynamic linker's
        return {"error": str(error).strip().splitlines()[0] if str(error).strip() else "not found"}
    return {}


def _tensorrt(name: str) -> dict[str, Any]:
    """Its version, and for TensorRT-RTX the compute capabilities that it builds for."""
    try:
        module = importlib.import_module(name)
        version = str(module.__version__)
    except Exception as error:  # a missing library, a wrong NumPy, a folder of that name
        return {"error": str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__}
    capabilities = getattr(module, "ComputeCapability", None)
    members = getattr(capabilities, "__members__", {})
    known = [m[2:] for m in members if m.startswith("SM") and m[2:].isdecimal()]
    return {"version": version, "capabilities": [[int(sm[:-1]), int(sm[-1])] for sm in known]}


if __name__ == "__main__":
    main()
