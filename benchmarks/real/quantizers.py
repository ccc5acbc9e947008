"""INT8 and FP8 by other tools, each in an environment of its own that is made where it is missing."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

from benchmarks.regressions.quantizer import LEGAL, Reader
from pytest_int8acc.tensors import Feed

#: Operators that ONNX Runtime's quantizer gives Q/DQ, at their inputs alone.
_OPERATORS = ["Conv", "ConvTranspose", "Gemm", "MatMul"]
#: Seconds that a tool may take for a model.
LIMIT = 900.0


def by_onnxruntime(source: Path, target: Path, calibration: Feed) -> None:
    """Write ``target``, the INT8 form of ``source`` by ONNX Runtime's quantizer, as TensorRT takes it."""
    logging.disable(logging.WARNING)
    try:
        quantize_static(
            source,
            target,
            Reader(calibration),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=_OPERATORS,
            per_channel=True,
            activation_type=QuantType.QInt8,
            weight_type=QuantType.QInt8,
            extra_options={**LEGAL, "OpTypesToExcludeOutputQuantization": _OPERATORS},
        )
    finally:
        logging.disable(logging.NOTSET)


@dataclass(frozen=True)
class Environment:
    """A virtual environment in the folder for all of them."""

    folder: Path
    name: str
    installs: Sequence[Sequence[str]]
    """Requirements, one call of pip for each row."""

    def python(self) -> Path:
        """Its interpreter; installs what is missing."""
        python = self.folder / self.name / "bin" / "python"
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", str(self.folder / self.name)], check=True)
            for requirements in self.installs:
                subprocess.run([str(python), "-m", "pip", "install", "--quiet", *requirements], check=True)
        return python

    def run(self, script: str, source: Path, target: Path, calibration: Feed) -> None:
        """Run a script on a model; raises RuntimeError with the last line that it printed if it fails."""
        with tempfile.TemporaryDirectory() as folder:
            data = Path(folder) / "calibration.npz"
            np.savez(data, **calibration)  # type: ignore[arg-type]
            command = [str(self.python()), "-c", script, *map(str, (source, target, data))]
            environment = {k: value for k, value in os.environ.items() if k != "PYTHONPATH"}
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                check=False,
                timeout=LIMIT,
                env=environment | {"OMP_NUM_THREADS": "1"},
                cwd=folder,
            )
        if done.returncode or not target.exists():
            lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
            raise RuntimeError(lines[-1] if lines else f"no file, return code {done.returncode}")


_NNCF = """
import sys, numpy, onnx, nncf
source, target, data = sys.argv[1:]
feed = dict(numpy.load(data))
rows = [{name: array[i:i + 1] for name, array in feed.items()} for i in range(len(next(iter(feed.values()))))]
onnx.save(nncf.quantize(onnx.load(source), nncf.Dataset(rows), subset_size=len(rows)), target)
"""
_MODELOPT = """
import sys, numpy
from modelopt.onnx.quantization import quantize
source, target, data = sys.argv[1:]
quantize(source, {mode!r}, dict(numpy.load(data)), calibration_eps=["cpu"], output_path=target,
         high_precision_dtype="fp32", log_level="ERROR")
"""

#: Writes the second file from the first, with calibration samples and the folder of environments.
Quantizer = Callable[[Path, Path, Feed, Path], None]


def _nncf(source: Path, target: Path, calibration: Feed, environments: Path) -> None:
    Environment(environments, "nncf", [["nncf", "onnx", "onnxruntime"]]).run(
        _NNCF, source, target, calibration
    )


def _modelopt(mode: str) -> Quantizer:
    def quantize(source: Path, target: Path, calibration: Feed, environments: Path) -> None:
        installs = [["torch==2.13.0"], ["nvidia-modelopt[onnx]"]]
        environment = Environment(environments, "modelopt", installs)
        environment.run(_MODELOPT.format(mode=mode), source, target, calibration)

    return quantize


#: What writes a model's INT8 or FP8 form, by its name in models.py.
TOOLS: Mapping[str, Quantizer] = {
    "onnxruntime": lambda source, target, calibration, _: by_onnxruntime(source, target, calibration),
    "nncf": _nncf,
    "modelopt int8": _modelopt("int8"),
    "modelopt fp8": _modelopt("fp8"),
}
