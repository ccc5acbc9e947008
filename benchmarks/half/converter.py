"""onnxconverter-common on the same faults: ``pip install onnxconverter-common``, then run this as a module.

python -m benchmarks.half.converter [NETWORK ...]
"""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import onnx

from benchmarks.half.measure import LIMIT_DB, Judge
from benchmarks.half.networks import build, inputs
from benchmarks.half.parts import FAULTS
from pytest_int8acc.graph.load import normalize
from pytest_int8acc.graph.model import make_model

Convert = Callable[[onnx.ModelProto, np.ndarray], onnx.ModelProto]


def converters() -> Mapping[str, Convert]:
    """Its plain converter, and the one that looks for nodes to keep in FP32."""
    from onnxconverter_common import auto_mixed_precision, float16

    def plain(model: onnx.ModelProto, x: np.ndarray) -> onnx.ModelProto:
        return float16.convert_float_to_float16(model, keep_io_types=True)

    def mixed(model: onnx.ModelProto, x: np.ndarray) -> onnx.ModelProto:
        return auto_mixed_precision.auto_convert_mixed_precision(
            model, {"x": x}, rtol=0.02, atol=0.02, keep_io_types=True
        )

    return {"convert_float_to_float16": plain, "auto_convert_mixed_precision": mixed}


def scores(network: str, name: str) -> Iterator[float]:
    """The SQNR of each converter's model, run with every FP16 result rounded; -inf where it is not finite."""
    model, x = build(network, FAULTS[name]), inputs(network)
    judge = Judge(model, x)
    for convert in converters().values():
        own = onnx.ModelProto.FromString(model.serialize())
        with contextlib.redirect_stdout(io.StringIO()):
            made = convert(own, x)
        yield judge.score(normalize(make_model(made)))


if __name__ == "__main__":
    for network in sys.argv[1:] or ["transformer"]:
        found = {name: list(scores(network, name)) for name in FAULTS}
        for i, tool in enumerate(converters()):
            kept = [name for name, reached in found.items() if reached[i] >= LIMIT_DB]
            print(f"{network}, {tool}: {len(kept)} of {len(found)} keep {LIMIT_DB:g} dB: {', '.join(kept)}")
