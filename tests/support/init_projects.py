"""Models and data for which a first spec is written."""

from __future__ import annotations

import wave
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from builder import Builder
from onnx import TensorProto

from pytest_int8acc import Case, CaseResult, Settings, load_spec
from pytest_int8acc.case.data import open_source
from pytest_int8acc.case.forms import load_float
from pytest_int8acc.case.measured import measure
from pytest_int8acc.tensors import Feed


def saved(folder: Path, proto: onnx.ModelProto, name: str = "model.onnx") -> Path:
    onnx.save(proto, folder / name)
    return folder / name


def only_case(spec: Path) -> Case:
    (case,) = load_spec(spec)
    return case


def feeds(spec: Path) -> list[Feed]:
    """Each batch that is compared."""
    case = only_case(spec)
    return [b.feed for b in open_source(case, case.inputs, load_float(case), "inputs", None).batches()]


def judged(spec: Path, samples: int | None = None) -> CaseResult:
    """The result of a run, of fewer samples if they are given."""
    return measure(only_case(spec), Settings(search="off", samples=samples)).result


def dense(
    columns: int, name: str = "y", last: str = "", *, shape: Sequence[int | str] = ("N", 3, 8, 8)
) -> onnx.ModelProto:
    """A Conv and a Gemm to [N, columns], and ``last`` behind it; another output where ``name`` has a +."""
    b = Builder(17)
    x = b.node("Flatten", b.node("GlobalAveragePool", b.relu(b.conv(b.input("x", shape), 3, 8))))
    y = b.node("Gemm", x, b.weight(columns, 8, fan_in=8), transB=1, outputs=() if last else [name.strip("+")])
    y = b.node(last, y, outputs=[name.strip("+")]) if last else y
    outputs: dict[str, Sequence[int | str]] = {y: [shape[0], columns]}
    if "+" in name:
        outputs[b.node("Gemm", x, b.weight(4, 8, fan_in=8), transB=1, outputs=["beside"])] = [shape[0], 4]
    return b.model(outputs)


def only_square(side: int) -> onnx.ModelProto:
    """A classifier of open height and width that takes one size only: its Gemm has as many weights."""
    b = Builder(17)
    x = b.relu(b.conv(b.input("x", ["N", 3, "H", "W"]), 3, 4, stride=8))
    count = 4 * (side // 8) ** 2
    y = b.node("Gemm", b.node("Flatten", x), b.weight(count, 12, fan_in=count), outputs=["logits"])
    return b.model({y: ["N", 12]})


def one_row(shape: Sequence[int | str] = ("N", 3, 8, 8)) -> onnx.ModelProto:
    """A model that leaves its batch open and takes one row only: a Reshape has the 1 written down."""
    b = Builder(17)
    x = b.relu(b.conv(b.input("x", shape), 3, 4))
    flat = b.node("Reshape", x, b.ints(1, 256))
    return b.model({b.node("Gemm", flat, b.weight(256, 12, fan_in=256), outputs=["logits"]): ["N", 12]})


def spectral() -> onnx.ModelProto:
    """A waveform of open length, its STFT of frames of 512, a MatMul; a sampling rate."""
    b = Builder(17)
    wave_in = b.input("audio", ["N", "samples"])
    rate = b.node("Cast", b.input("sr", [], TensorProto.INT64), to=TensorProto.FLOAT)
    steps = b.const(np.array(160, np.int64)), "", b.const(np.array(512, np.int64))
    parts = b.node("STFT", b.node("Unsqueeze", wave_in, b.ints(2)), *steps)
    power = b.node("ReduceSum", b.node("Mul", parts, parts), b.ints(3), keepdims=0)
    x = b.node("Div", b.node("MatMul", power, b.weight(257, 16, fan_in=257)), rate)
    return b.model({b.node("ReduceMean", x, axes=[1], keepdims=0, outputs=["y"]): ["N", 16]})


def recurrent() -> onnx.ModelProto:
    """A window of audio and a state that the next run takes, with no names of open sizes."""
    b = Builder(17)
    x = b.linear(b.node("Slice", b.input("input", [None, None]), b.ints(0), b.ints(256), b.ints(1)), 256, 16)  # type: ignore[list-item]
    state = b.node(
        "Add", b.input("state", [1, None, 16]), b.node("Unsqueeze", x, b.ints(0)), outputs=["stateN"]
    )  # type: ignore[list-item]
    return b.model({b.node("Sigmoid", b.linear(x, 16, 1), outputs=["p"]): [None, 1], state: [1, None, 16]})  # type: ignore[list-item]


def detector() -> onnx.ModelProto:
    """A Conv that gives boxes and scores, above a threshold, then NonMaxSuppression on them."""
    b = Builder(17)
    x = b.relu(b.conv(b.input("image", [1, 3, 32, 32]), 3, 8, stride=4))
    boxes = b.node("Reshape", b.conv(x, 8, 4), b.ints(1, 64, 4), outputs=["all_boxes"])
    scores = b.node("Sigmoid", b.node("Reshape", b.conv(x, 8, 2), b.ints(1, 2, 64)), outputs=["all_scores"])
    limit = b.const(np.array([0.5], np.float32))
    chosen = b.node("NonMaxSuppression", boxes, scores, b.ints(5), limit, limit)
    rows = b.node("Gather", chosen, b.const(np.array(2, np.int64)), axis=1)
    kept = b.node("Gather", boxes, rows, axis=1, outputs=["kept"])
    return b.model({kept: [1, "boxes", 4]})


def write_images(folder: Path, names: Sequence[str], size: tuple[int, int] = (20, 12)) -> Path:
    """Noise as .png files."""
    from PIL import Image

    rng = np.random.default_rng(0)
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (*size, 3)).astype(np.uint8)).save(path)
    return folder


def write_waves(folder: Path, names: Sequence[str], *, rate: int = 8000, width: int = 2) -> Path:
    """Noise of a second, in stereo, as .wav files."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        with wave.open(str(folder / name), "wb") as file:
            file.setnchannels(2)
            file.setsampwidth(width)
            file.setframerate(rate)
            file.writeframes(rng.integers(0, 256, rate * 2 * width).astype(np.uint8).tobytes())
    return folder
