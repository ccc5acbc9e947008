"""The simulation in ONNX Runtime predicts TensorRT's real INT8 engines, for random plans.

Run on a machine with an NVIDIA GPU and TensorRT 8.6 to 10:

    pip install 'pytest-int8acc[cpu,tensorrt,dev]' && pytest -m gpu -s
"""

from __future__ import annotations

import math
import time
from pathlib import Path

import numpy as np
import pytest
from gpu_support import needs_gpu_below_11
from zoo import ZOO

from pytest_int8acc.engines.onnxruntime import OrtEngine
from pytest_int8acc.graph.groups import find_groups
from pytest_int8acc.graph.load import load_model, normalize
from pytest_int8acc.graph.model import Model, make_model
from pytest_int8acc.graph.network import Plan
from pytest_int8acc.graph.plan import apply
from pytest_int8acc.graph.quantize import quantize
from pytest_int8acc.graph.to_fp16 import to_fp16

DIGITS = Path(__file__).parents[2] / "example_project"
BATCH = 128
PLANS = 5
#: How far, in dB, the simulated SQNR may be from the engine's.
TOLERANCE = 0.5
#: Above this SQNR, in dB, the FP16 of the layers kept high has a part in the error; kernels differ there.
NOISY = 50

pytestmark = needs_gpu_below_11


def run_tensorrt(model: Model, feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Build with the INT8 and FP16 flags, no cuBLAS or cuDNN tactics, and run once."""
    from polygraphy.backend.trt import (
        CreateConfig,
        EngineFromNetwork,
        NetworkFromOnnxBytes,
        Profile,
        TrtRunner,
    )

    profile = Profile()
    for name, array in feed.items():
        profile.add(name, array.shape, array.shape, array.shape)
    config = CreateConfig(int8=True, fp16=True, tactic_sources=[], profiles=[profile])
    engine = EngineFromNetwork(NetworkFromOnnxBytes(model.serialize()), config)
    with TrtRunner(engine) as runner:
        return {name: np.array(array) for name, array in runner.infer(feed).items()}


def sqnr(reference: dict[str, np.ndarray], found: dict[str, np.ndarray]) -> float:
    signal = sum(float((reference[k].astype(float) ** 2).sum()) for k in reference)
    noise = sum(float(((reference[k] - found[k]).astype(float) ** 2).sum()) for k in reference)
    return 10 * math.log10(signal / noise) if noise else math.inf


def digits() -> tuple[Model, dict[str, np.ndarray]]:
    with np.load(DIGITS / "data" / "validation.npz") as data:
        return load_model(DIGITS / "digits.onnx"), {"image": data["image"][:BATCH]}


def mobilenet() -> tuple[Model, dict[str, np.ndarray]]:
    return _batched("mobilenet")


def residual() -> tuple[Model, dict[str, np.ndarray]]:
    return _batched("residual")


def _batched(name: str) -> tuple[Model, dict[str, np.ndarray]]:
    """A model of the zoo with random inputs; many samples, so that SQNR does not hang on single roundings."""
    proto = ZOO[name]()
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = BATCH
    model = normalize(make_model(proto))
    (value,) = model.inputs
    shape = tuple(int(d) for d in value.shape or ())
    return model, {value.name: np.random.default_rng(0).normal(size=shape).astype(np.float32)}


def amax_scales(model: Model, tensors: tuple[str, ...], feed: dict[str, np.ndarray]) -> dict[str, float]:
    from onnx import TensorProto, helper

    editor = model.edit()
    for name in tensors:
        if name not in feed and name not in {o.name for o in model.outputs}:
            editor.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    values = {**feed, **OrtEngine(editor.done())(feed)}
    return {name: float(np.abs(values[name]).max()) / 127 for name in tensors}


WRONG = "TensorRT 8.6.0 gets one of these plans wrong: 1.2 dB, where the same Q/DQ model has 23 dB"


@pytest.mark.parametrize(
    "network",
    [digits, residual, pytest.param(mobilenet, marks=pytest.mark.xfail(reason=WRONG, strict=False))],
)
def test_simulated_sqnr_is_the_engines(network: object) -> None:
    model, feed = network()  # type: ignore[operator]
    layout = find_groups(model)
    scales = amax_scales(model, layout.activations, feed)
    rng = np.random.default_rng(1)
    wide = rng.choice(sorted(scales), 2, replace=False)
    scales.update({name: scales[name] * 30 for name in wide})  # faults, so that plans differ
    quantized = quantize(model, layout, scales)
    names = [group.name for group in quantized.groups]
    reference = OrtEngine(model)(feed)
    plans = [
        frozenset[str](),
        *(frozenset(rng.choice(names, rng.integers(1, len(names)), False)) for _ in range(PLANS - 1)),
    ]
    differences = []
    for high in plans:
        mixed = apply(quantized, Plan(dict.fromkeys(map(str, high), "fp16")))
        simulated = sqnr(reference, OrtEngine(to_fp16(mixed).model)(feed))
        start = time.perf_counter()
        real = sqnr(reference, run_tensorrt(mixed, feed))
        seconds = time.perf_counter() - start
        if simulated < NOISY:
            differences.append(abs(simulated - real))
        share = f"{model.name}: {len(high)} of {len(names)} groups high ({', '.join(sorted(map(str, high)))})"
        print(f"{share}: simulated {simulated:.2f} dB, engine {real:.2f} dB, built in {seconds:.0f} s")
    assert len(differences) >= PLANS - 1
    assert max(differences) <= TOLERANCE
