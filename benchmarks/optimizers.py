"""Projects that pass in an exact session and that one optimizer of ONNX Runtime's default session changes.

Each network has two or three layers, seeded weights and 32 samples. Nothing in it depends on whether the
processor's INT8 kernels saturate, so that the optimizer alone makes the difference. The optimizer of each
project was written down before the package was tried on it.

    python -m benchmarks.optimizers

prints for each project what the package says of the default session. Then the project gets a second fault, a
scale that is 60 times wrong, which a fix mends. The last columns say whether the fix is called verified, in
which form it is written, and what it reaches in a default session as a user opens it.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import yaml
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper, parser

from benchmarks.tables import table
from pytest_int8acc.answer.steps import Steps
from pytest_int8acc.case.default_session import INT8_KERNELS
from pytest_int8acc.case.measured import measure
from pytest_int8acc.runtime.onnxruntime import Saturation
from pytest_int8acc.settings import Settings
from pytest_int8acc.spec.load import load_spec

Array = NDArray[Any]
SAMPLES = 32
#: Greatest magnitude of the codes of INT8.
_CODES = 127
#: Greatest number of FP8 E4M3.
_GREATEST_FP8 = 448


@dataclass(frozen=True)
class Planted:
    """One project: a float model, its Q/DQ form, its inputs and its limits."""

    optimizer: str
    """The optimizer that changes the results of a default session."""
    text: str
    """The float model, without weights."""
    quantized: str
    """The nodes of the Q/DQ model. Weights have the suffix ``q``, their scales ``s``, zero points ``z``."""
    shape: tuple[int, ...]
    """The shape of one sample."""
    weights: Callable[[np.random.Generator], Mapping[str, Array]]
    axes: Mapping[str, int] = field(default_factory=dict)
    """Weight to the axis of its scales; a weight that is not named is not quantized."""
    scales: Mapping[str, float] = field(default_factory=dict)
    """Name of a scalar scale of an activation to its value."""
    constants: Mapping[str, onnx.TensorProto] = field(default_factory=dict)
    """Other constants, by name: zero points other than ``z``, which is 0 in INT8, and weights in INT4."""
    baseline: str = "fp32"
    size: float = 1.0
    """The standard deviation of the inputs."""
    limits: Mapping[str, float] = field(default_factory=lambda: {"sqnr_db": 25})
    opset: int = 19
    form: str = "int8"
    """The low format: ``int8`` or ``fp8``."""
    wrong: str = "sx"
    """The scale of an activation that a second fault changes, which a fix mends."""
    codes: int = _CODES
    """The greatest code of weights; 63 where INT8 kernels decide, since the sums then saturate nowhere."""
    factor: float = 60.0
    """The factor of that scale under the second fault."""

    def write(self, folder: Path, *, faulty: bool = False, **more: object) -> Path:
        """Write the project, with the second fault if it is ``faulty``, and return its spec."""
        scales = dict(self.scales)
        if faulty:
            scales[self.wrong] *= self.factor
        rng = np.random.default_rng(0)
        weights = {name: array.astype(np.float32) for name, array in self.weights(rng).items()}
        onnx.save(self._model(self.text, weights, scales), folder / "model.onnx")
        onnx.save(self._model(self.quantized, weights, scales), folder / "int8.onnx")
        inputs = rng.normal(size=(SAMPLES, *self.shape)) * self.size
        np.savez(folder / "inputs.npz", x=inputs.astype(np.float32))
        spec = {
            "model": "model.onnx",
            "inputs": "inputs.npz",
            "baseline": self.baseline,
            self.form: {"model": "int8.onnx"},
            "criteria": [dict(self.limits)],
            "backend": "onnxruntime",
            "accept_blind": "an untrained network and random inputs",
            **more,
        }
        path = folder / "case.int8acc.yaml"
        path.write_text(yaml.safe_dump(spec, sort_keys=False))
        return path

    def _model(
        self, nodes: str, weights: Mapping[str, Array], scales: Mapping[str, float]
    ) -> onnx.ModelProto:
        shape = ", ".join(map(str, self.shape))
        head = f'<ir_version: 10, opset_import: ["": {self.opset}]> net (float[N, {shape}] x) => (float[N, C'
        head += ", H, W] y)" if len(self.shape) == 3 else "] y)"
        proto = parser.parse_model(f"{head} {{ {nodes} }}")
        read = {name for node in proto.graph.node for name in node.input}
        zero: Array = np.zeros((), ml_dtypes.float8_e4m3fn if self.form == "fp8" else np.int8)
        constants = {"z": zero, **{name: np.float32(value) for name, value in scales.items()}}
        for name, array in weights.items():
            constants[name] = array
            if name in self.axes:
                others = tuple(axis for axis in range(array.ndim) if axis != self.axes[name])
                greatest = _GREATEST_FP8 if self.form == "fp8" else self.codes
                scale = np.abs(array).max(others, keepdims=True) / greatest
                codes = array / scale
                if self.form == "int8":
                    codes = np.rint(codes)
                constants[f"{name}q"] = codes.astype(zero.dtype)
                constants[f"{name}s"] = scale.reshape(-1).astype(np.float32)
                constants[f"{name}z"] = np.zeros(scale.size, zero.dtype)
        for name, value in constants.items():
            if name in read:
                proto.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
        for name, tensor in self.constants.items():
            if name in read:
                tensor.name = name
                proto.graph.initializer.append(tensor)
        for number, node in enumerate(proto.graph.node):
            node.name = f"{node.op_type}_{number}"
        return proto


def _layers(first: tuple[int, ...], second: tuple[int, ...], bias: int, gain: float = 0.2) -> Any:
    """A function that draws two weights and a bias of about 2 for the first layer."""

    def draw(rng: np.random.Generator) -> Mapping[str, Array]:
        return {
            "w": rng.normal(size=first) * gain,
            "b": rng.normal(size=bias) * 2,
            "v": rng.normal(size=second) * gain,
        }

    return draw


def _one_faint_channel(rng: np.random.Generator) -> Mapping[str, Array]:
    """Weights of which one output channel is 1e-9 of the others, with as large a bias."""
    drawn = dict(_layers((8, 4, 3, 3), (4, 8, 1, 1), 8)(rng))
    drawn["w"][3] *= 1e-9
    drawn["b"] = np.abs(drawn["b"]) + 2
    return drawn


def _one_faint_column(rng: np.random.Generator) -> Mapping[str, Array]:
    drawn = dict(_layers((16, 8), (8, 4), 8)(rng))
    drawn["w"][:, 3] *= 1e-9
    drawn["b"] = np.abs(drawn["b"]) + 2
    return drawn


_PAIR = "{0}q = QuantizeLinear({0}, {1}, z) {0}d = DequantizeLinear({0}q, {1}, z)"
_TO_X = _PAIR.format("x", "sx")
_TO_A = _PAIR.format("a", "sa")
_W0, _V0 = (f"{n}d = DequantizeLinear<axis = 0>({n}q, {n}s, {n}z)" for n in "wv")
_W1, _V1 = (f"{n}d = DequantizeLinear<axis = 1>({n}q, {n}s, {n}z)" for n in "wv")
_SMALL = 0.02
#: Inputs of about 0.02. In FP16 their scale times that of a weight is so small that the bias divided by it
#: exceeds 65504.
#: The bias outweighs these inputs, so that only a wrong scale behind it does harm.
_HALF: dict[str, Any] = {
    "baseline": "fp16",
    "size": _SMALL,
    "scales": {"sx": 0.08 / _CODES, "sa": 0.06},
    "wrong": "sa",
}
_INT4 = {"z4": helper.make_tensor("z4", TensorProto.INT4, [], [0])}


def _int4_weights() -> dict[str, Any]:
    """The weights of a MatMul in INT4, with a scale for each block of 16 rows."""
    array = _large_channel(np.random.default_rng(0))["v"]
    blocks = array.reshape(2, 16, 8)
    scale = np.abs(blocks).max(1) / 7
    codes = np.clip(np.rint(blocks / scale[:, None]), -8, 7).astype(int).reshape(32, 8)
    weights = helper.make_tensor("v4q", TensorProto.INT4, codes.shape, codes.flatten().tolist())
    return {"v4q": weights, "v4s": numpy_helper.from_array(scale.astype(np.float32), "v4s")}


def _large_channel(rng: np.random.Generator) -> Mapping[str, Array]:
    """Weights of which one output is 300 times as large, and the next layer hardly reads that one."""
    drawn = dict(_layers((16, 32), (32, 8), 32)(rng))
    drawn["w"][:, 5] *= 300
    drawn["v"][5] /= 300
    return drawn


_INT4_WEIGHTS = _int4_weights()


def _large_output(*shape: int, axis: int) -> Callable[[np.random.Generator], Mapping[str, Array]]:
    """Weights of which one output is 300 times as large, and the next layer hardly reads that one."""

    def draw(rng: np.random.Generator) -> Mapping[str, Array]:
        second = (4, shape[0], 1, 1) if len(shape) == 4 else (shape[1], 4)
        drawn = dict(_layers(shape, second, shape[axis])(rng))
        np.moveaxis(drawn["w"], axis, 0)[3] *= 300
        np.moveaxis(drawn["v"], 1 if len(shape) == 4 else 0, 0)[3] /= 300
        return drawn

    return draw


def _bias_codes(rng: np.random.Generator) -> Mapping[str, Array]:
    """A bias as codes of 2**-10, which is not the product of the scales of input and weight."""
    return _layers((16, 8), (8, 4), 8)(rng)


def _bias_of_a_gemm() -> dict[str, onnx.TensorProto]:
    bias = _bias_codes(np.random.default_rng(0))["b"]
    codes = np.rint(bias * 1024).astype(np.int32)
    scale = np.float32(1 / 1024)
    return {"bq": numpy_helper.from_array(codes), "bs": numpy_helper.from_array(np.asarray(scale))}


PLANTED: dict[str, Planted] = {
    "bias of a Conv in FP16": Planted(
        "WeightBiasQuantization",
        "a = Conv(x, w, b) y = Conv(a, v)",
        f"{_TO_X} {_W0} a = Conv(xd, wd, b) {_TO_A} {_V0} y = Conv(ad, vd)",
        (4, 6, 6),
        _layers((8, 4, 3, 3), (4, 8, 1, 1), 8),
        {"w": 0, "v": 0},
        **_HALF,
    ),
    "bias of a Conv with Relu in FP16": Planted(
        "WeightBiasQuantization",
        "c = Conv(x, w, b) a = Relu(c) y = Conv(a, v)",
        f"{_TO_X} {_W0} c = Conv(xd, wd, b) a = Relu(c) {_TO_A} {_V0} y = Conv(ad, vd)",
        (4, 6, 6),
        _layers((8, 4, 3, 3), (4, 8, 1, 1), 8),
        {"w": 0, "v": 0},
        **_HALF,
    ),
    "bias of a depthwise Conv in FP16": Planted(
        "WeightBiasQuantization",
        "a = Conv<group = 8>(x, w, b) y = Conv(a, v)",
        f"{_TO_X} {_W0} a = Conv<group = 8>(xd, wd, b) {_TO_A} {_V0} y = Conv(ad, vd)",
        (8, 6, 6),
        _layers((8, 1, 3, 3), (4, 8, 1, 1), 8),
        {"w": 0, "v": 0},
        **_HALF,
    ),
    "bias of a ConvTranspose in FP16": Planted(
        "WeightBiasQuantization",
        "a = ConvTranspose(x, w, b) y = Conv(a, v)",
        f"{_TO_X} {_W1} a = ConvTranspose(xd, wd, b) {_TO_A} {_V0} y = Conv(ad, vd)",
        (4, 6, 6),
        _layers((4, 8, 3, 3), (4, 8, 1, 1), 8),
        {"w": 1, "v": 0},
        **_HALF,
    ),
    "bias of a Gemm in FP16": Planted(
        "WeightBiasQuantization",
        "a = Gemm(x, w, b) y = MatMul(a, v)",
        f"{_TO_X} {_W1} a = Gemm(xd, wd, b) {_TO_A} {_V1} y = MatMul(ad, vd)",
        (16,),
        _layers((16, 8), (8, 4), 8),
        {"w": 1, "v": 1},
        **_HALF,
    ),
    "bias added to a MatMul in FP16": Planted(
        "WeightBiasQuantization",
        "c = MatMul(x, w) a = Add(c, b) y = MatMul(a, v)",
        f"{_TO_X} {_W1} c = MatMul(xd, wd) a = Add(c, b) {_TO_A} {_V1} y = MatMul(ad, vd)",
        (16,),
        _layers((16, 8), (8, 4), 8),
        {"w": 1, "v": 1},
        **_HALF,
    ),
    "bias of a faint channel of a Conv": Planted(
        "WeightBiasQuantization",
        "a = Conv(x, w, b) y = Conv(a, v)",
        f"{_TO_X} {_W0} a = Conv(xd, wd, b) {_TO_A} {_V0} y = Conv(ad, vd)",
        (4, 6, 6),
        _one_faint_channel,
        {"w": 0, "v": 0},
        {"sx": 0.03, "sa": 0.08},
    ),
    "bias of a faint column of a Gemm": Planted(
        "WeightBiasQuantization",
        "a = Gemm(x, w, b) y = MatMul(a, v)",
        f"{_TO_X} {_W1} a = Gemm(xd, wd, b) {_TO_A} {_V1} y = MatMul(ad, vd)",
        (16,),
        _one_faint_column,
        {"w": 1, "v": 1},
        {"sx": 0.03, "sa": 0.08},
        codes=63,
    ),
    "Relu before INT4": Planted(
        "ReluQuantRewrite",
        "c = Conv(x, w) a = Relu(c) y = Conv(a, v)",
        f"{_TO_X} {_W0} c = Conv(xd, wd) a = Relu(c) aq = QuantizeLinear(a, sa, z4) "
        f"ad = DequantizeLinear(aq, sa, z4) {_V0} y = Conv(ad, vd)",
        (4, 6, 6),
        _layers((8, 4, 3, 3), (4, 8, 1, 1), 8),
        {"w": 0, "v": 0},
        {"sx": 0.03, "sa": 0.6},
        constants=_INT4,
        limits={"sqnr_db": 10},
        opset=21,
    ),
    "two pairs in series": Planted(
        "DoubleQDQPairsRemover",
        "a = Conv(x, w) y = Conv(a, v)",
        f"{_TO_X} {_W0} a = Conv(xd, wd) {_TO_A} adq = QuantizeLinear(ad, st, z) "
        f"add = DequantizeLinear(adq, st, z) {_V0} y = Conv(add, vd)",
        (4, 6, 6),
        _layers((8, 4, 3, 3), (4, 8, 1, 1), 8),
        {"w": 0, "v": 0},
        {"sx": 0.03, "sa": 0.05, "st": 0.043},
        limits={"sqnr_db": 36},
    ),
    "three pairs in series": Planted(
        "DoubleQDQPairsRemover",
        "a = Conv(x, w) y = Conv(a, v)",
        f"{_TO_X} {_W0} a = Conv(xd, wd) {_TO_A} adq = QuantizeLinear(ad, st, z) "
        "add = DequantizeLinear(adq, st, z) addq = QuantizeLinear(add, su, z) "
        f"addd = DequantizeLinear(addq, su, z) {_V0} y = Conv(addd, vd)",
        (4, 6, 6),
        _layers((8, 4, 3, 3), (4, 8, 1, 1), 8),
        {"w": 0, "v": 0},
        {"sx": 0.03, "sa": 0.05, "st": 0.043, "su": 0.06},
        limits={"sqnr_db": 34},
    ),
    "INT4 weights behind a large channel": Planted(
        "QDQSelectorActionTransformer",
        "a = MatMul(x, w) y = MatMul(a, v)",
        f"{_TO_X} {_W1} a = MatMul(xd, wd) v4 = DequantizeLinear<axis = 0, block_size = 16>(v4q, v4s) "
        "y = MatMul(a, v4)",
        (16,),
        _large_channel,
        {"w": 1},
        {"sx": 0.03},
        constants=_INT4_WEIGHTS,
        limits={"sqnr_db": 10},
        opset=21,
        codes=63,
    ),
    "float weights of a Conv": Planted(
        "WeightBiasQuantization",
        "a = Conv(x, w, b) y = Conv(a, v)",
        f"{_TO_X} a = Conv(xd, w, b) {_TO_A} {_V0} y = Conv(ad, vd)",
        (4, 6, 6),
        _large_output(8, 4, 3, 3, axis=0),
        {"v": 0},
        {"sx": 0.03, "sa": 0.06},
        limits={"sqnr_db": 10},
    ),
    "float weights of a MatMul with Add": Planted(
        "WeightBiasQuantization",
        "c = MatMul(x, w) a = Add(c, b) y = MatMul(a, v)",
        f"{_TO_X} c = MatMul(xd, w) a = Add(c, b) {_TO_A} {_V1} y = MatMul(ad, vd)",
        (16,),
        _large_output(16, 8, axis=1),
        {"v": 1},
        {"sx": 0.03, "sa": 0.06},
        limits={"sqnr_db": 16},
    ),
    "bias codes of a Gemm": Planted(
        "QDQSelectorActionTransformer",
        "a = Gemm(x, w, b) y = MatMul(a, v)",
        f"{_TO_X} {_W1} bd = DequantizeLinear(bq, bs) a = Gemm(xd, wd, bd) {_TO_A} {_V1} y = MatMul(ad, vd)",
        (16,),
        _bias_codes,
        {"w": 1, "v": 1},
        {"sx": 0.03, "sa": 0.06},
        constants=_bias_of_a_gemm(),
        codes=63,
    ),
    "Concat in FP16": Planted(
        "QDQSelectorActionTransformer",
        "a = Conv(x, w, b) r = Neg(a) c = Concat<axis = 1>(a, r) y = Conv(c, v)",
        f"{_TO_X} {_W0} a = Conv(xd, wd, b) r = Neg(a) {_TO_A} {_PAIR.format('r', 'sa')} "
        f"c = Concat<axis = 1>(ad, rd) {_PAIR.format('c', 'sa')} {_V0} y = Conv(cd, vd)",
        (4, 6, 6),
        _layers((8, 4, 3, 3), (4, 16, 1, 1), 8),
        {"w": 0, "v": 0},
        {"sx": 0.03, "sa": 0.05},
        baseline="fp16",
        codes=63,
    ),
    "Clip before INT4": Planted(
        "ClipQuantRewrite",
        "c = Conv(x, w) a = Clip(c, low, high) y = Conv(a, v)",
        f"{_TO_X} {_W0} c = Conv(xd, wd) a = Clip(c, low, high) aq = QuantizeLinear(a, sa, z4) "
        f"ad = DequantizeLinear(aq, sa, z4) {_V0} y = Conv(ad, vd)",
        (4, 6, 6),
        _layers((8, 4, 3, 3), (4, 8, 1, 1), 8),
        {"w": 0, "v": 0},
        {"sx": 0.03, "sa": 0.3, "low": 0.0, "high": 2.0},
        constants=_INT4,
        limits={"sqnr_db": 10},
        opset=21,
    ),
    "Relu before FP8": Planted(
        "ReluQuantRewrite",
        "c = Conv(x, w) a = Relu(c) y = Conv(a, v)",
        f"{_TO_X} {_W0} c = Conv(xd, wd) a = Relu(c) {_TO_A} {_V0} y = Conv(ad, vd)",
        (4, 6, 6),
        _layers((8, 4, 3, 3), (4, 8, 1, 1), 8),
        {"w": 0, "v": 0},
        {"sx": 0.01, "sa": 0.02},
        limits={"sqnr_db": 20},
        form="fp8",
        factor=1 / 60,
    ),
    "Clip before FP8": Planted(
        "ClipQuantRewrite",
        "c = Conv(x, w) a = Clip(c, low, high) y = Conv(a, v)",
        f"{_TO_X} {_W0} c = Conv(xd, wd) a = Clip(c, low, high) {_TO_A} {_V0} y = Conv(ad, vd)",
        (4, 6, 6),
        _layers((8, 4, 3, 3), (4, 8, 1, 1), 8),
        {"w": 0, "v": 0},
        {"sx": 0.01, "sa": 0.02, "low": 0.0, "high": 2.0},
        limits={"sqnr_db": 20},
        form="fp8",
        factor=1 / 60,
    ),
    "Transpose behind a pair, opset 21": Planted(
        "QDQS8ToU8Transformer",
        "a = MatMul(x, w) t = Transpose<perm = [0, 2, 1]>(a) f = Flatten(t) y = MatMul(f, v)",
        f"{_TO_X} {_W1} a = MatMul(xd, wd) {_TO_A} t = Transpose<perm = [0, 2, 1]>(ad) f = Flatten(t) {_V1} "
        "y = MatMul(f, vd)",
        (4, 16),
        _layers((16, 8), (32, 4), 8),
        {"w": 1, "v": 1},
        {"sx": 0.03, "sa": 0.03},
        opset=21,
        codes=63,
    ),
    "output type of a QuantizeLinear, opset 21": Planted(
        "QDQS8ToU8Transformer",
        "a = MatMul(x, w) y = MatMul(a, v)",
        f"{_TO_X} {_W1} a = MatMul(xd, wd) aq = QuantizeLinear<output_dtype = 3>(a, sa, z) "
        f"ad = DequantizeLinear(aq, sa, z) {_V1} y = MatMul(ad, vd)",
        (16,),
        _layers((16, 8), (8, 4), 8),
        {"w": 1, "v": 1},
        {"sx": 0.03, "sa": 0.03},
        opset=21,
        codes=63,
    ),
}


class Tried(NamedTuple):
    """What the package says of one project, and of its fix of the second fault."""

    kind: str
    """How the default session differs; empty if no difference is told."""
    optimizers: tuple[str, ...]
    word: str
    """``verified``, ``not proved``, ``not verified`` or ``none``."""
    rewritten_for: tuple[str, ...]
    """The optimizers for which the fix is written in another form."""
    sqnr_db: float
    """The SQNR of the fix in a default session, against the float model; nan if it does not load."""


@contextmanager
def kernels_kept(planted: Planted) -> Iterator[None]:
    """Keep INT8 kernels in the comparison if they make the difference; no sum saturates in such a project."""
    exact = Saturation(expected=1.0, measured=1.0)
    place = "pytest_int8acc.case.default_session.saturation"
    with patch(place, lambda: exact) if planted.optimizer in INT8_KERNELS else nullcontext():
        yield


def tried(name: str) -> Tried:
    """Try the package on one project, without and with the second fault."""
    planted = PLANTED[name]
    with kernels_kept(planted), tempfile.TemporaryDirectory() as folder:
        path, settings = Path(folder), Settings(backend="onnxruntime", lint="warn")
        (case,) = load_spec(planted.write(path))
        measured = measure(case, settings)
        measured.close()
        found = measured.result.default_session
        kind, optimizers = ("", ()) if found is None else (found.kind, found.optimizers)
        (case,) = load_spec(planted.write(path, faulty=True))
        measured = measure(case, settings)
        steps = Steps(measured, path / "fix", measured.result)
        steps.run(searches=True, explained=True)
        measured.close()
        proofs = () if steps.remedied is None else steps.remedied.proofs
        answer, word = steps.result.answer, "none"
        if answer is not None:
            word = "verified" if answer.verified else "not proved" if answer.holds else "not verified"
        rewritten = proofs[0].rewritten_for if proofs else ()
        return Tried(kind, optimizers, word, rewritten, default_sqnr_db(path, path / "fix" / "fixed.onnx"))


def default_sqnr_db(folder: Path, fixed: Path) -> float:
    """The SQNR of a file in a default session, against the float model, in dB; nan if it does not load."""
    feed = {"x": np.load(folder / "inputs.npz")["x"]}
    try:
        plain, other = (
            onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, feed)[0]
            for path in (folder / "model.onnx", fixed)
        )
    except Exception:  # of many types, for a model that is refused, and for a fix that was not written
        return math.nan
    return float(10 * np.log10(np.square(plain).sum() / np.square(plain - other).sum()))


def main() -> None:
    """Print the table."""
    header = [
        "project",
        "default session",
        "optimizer",
        "named",
        "fix",
        "other form",
        "dB by default",
        "limit",
    ]
    rows = []
    for name, planted in PLANTED.items():
        found = tried(name)
        named = "yes" if found.optimizers == (planted.optimizer,) else ", ".join(found.optimizers) or "no"
        other = "yes" if found.rewritten_for else "no"
        limit = planted.limits["sqnr_db"]
        kind = found.kind or "agrees"
        rows.append([name, kind, planted.optimizer, named, found.word, other, found.sqnr_db, limit])
    print(table(header, rows))


if __name__ == "__main__":
    main()
