"""Sizes and values that a model accepts, found by running it: what it leaves open is tried, not made up."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pytest_int8acc.data.layout import Layout, read_layout
from pytest_int8acc.errors import EngineError
from pytest_int8acc.graph.model import Model
from pytest_int8acc.init.outputs import STATE_NAME
from pytest_int8acc.runtime.onnxruntime import OrtEngine
from pytest_int8acc.runtime.protocol import Engine
from pytest_int8acc.tensors import Feed, TensorInfo

#: Sizes of images, by height and width; of waveforms and windows of them; of sequences of features or tokens.
IMAGES = (224, 256, 320, 640, 512, 128, 96, 64, 48, 32, 28, 299, 112, 416, 1024)
WAVES = (16000, 512, 576, 1024, 256, 8000, 4096, 48000, 400, 160)
WINDOWS = (512, 576, 1024, 256, 1536, 16000)
SEQUENCES = (16, 32, 64, 100, 128, 300, 512, 77, 3000)
#: Widths of an image whose height is fixed, as multiples of it: lines of text.
_WIDTHS = (4, 1, 2, 8, 10)
#: Rows of a run where the model leaves them open; one where it does not take more.
BATCHES = (4, 1)
_RATE = re.compile(r"^(sr|sample_?rate|sampling_?rate|rate)$", re.IGNORECASE)
#: Bounds, as of a frequency: drawn like other numbers they would leave nothing between them.
_BOUNDS = {re.compile(r"min", re.IGNORECASE): 0, re.compile(r"max", re.IGNORECASE): 1000}
_MASK = re.compile(r"mask", re.IGNORECASE)
#: After so many sizes whose outputs are not finite, no other is expected to mend that.
_DOUBTFUL = 3
_Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Range:
    """What values of an input lie between, both included; a fixed value where they are one."""

    low: float = 0
    high: float = 1
    why: str = ""
    """How it was told, where it is not what random data have anyway."""


@dataclass(frozen=True, eq=False)
class Trial:
    """Shapes of a run, by input and by output; no outputs where it is not known to run."""

    inputs: _Shapes
    outputs: _Shapes
    tried: int
    """How many sizes were tried, with this one."""
    refused: str = ""
    """What ONNX Runtime said of the last ones where none was accepted."""
    finite: bool = True
    """Whether all outputs were finite."""


def accepted(model: Model, ranges: Mapping[str, Range], batches: Sequence[int] = BATCHES) -> Trial:
    """The first sizes, usual ones first, with which the model runs and gives finite outputs.

    Args:
        model: In normal form, its inputs of known rank.
        ranges: Of each input's values.
        batches: Rows of a run to try, where the model leaves them open.

    Returns:
        Sizes of the model's own, where it leaves none open; the first ones where nothing ran.
    """
    candidates = list(_candidates(model, batches))
    try:
        engine = OrtEngine(model, "native")
    except EngineError as error:
        return Trial(candidates[0], {}, 0, str(error))
    refused, doubtful = "", list[Trial]()
    for tried, shapes in enumerate(candidates, 1):
        try:
            outputs = _run(engine, shapes, ranges)
        except EngineError as error:
            refused = str(error)
            continue
        finite = all(a.dtype.kind != "f" or np.isfinite(a).all() for a in outputs.values())
        trial = Trial(shapes, {name: a.shape for name, a in outputs.items()}, tried, finite=finite)
        if finite:
            return trial
        doubtful.append(trial)
        if len(doubtful) == _DOUBTFUL:
            break
    return doubtful[0] if doubtful else Trial(candidates[0], {}, len(candidates), refused)


def _run(engine: Engine, shapes: _Shapes, ranges: Mapping[str, Range]) -> Feed:
    rng, feed = np.random.default_rng(0), {}
    for tensor in engine.inputs:
        span, shape = ranges[tensor.name], shapes[tensor.name]
        whole = tensor.dtype.kind != "f"
        values = rng.uniform(span.low, span.high + whole, shape)
        feed[tensor.name] = np.asarray(np.floor(values) if whole else values).astype(tensor.dtype)
    return engine(feed)


def ranges_of(model: Model) -> dict[str, Range]:
    """What values each input may have, by its name, its type and what reads it."""
    return {tensor.name: _range(model, tensor) for tensor in model.inputs}


def _range(model: Model, tensor: TensorInfo) -> Range:
    if _RATE.search(tensor.name) and tensor.shape in ((), (1,)):
        return Range(16000, 16000, "a guess: the rate of speech")
    bound = next((value for name, value in _BOUNDS.items() if name.search(tensor.name)), None)
    if bound is not None and tensor.dtype.kind == "f" and tensor.shape == ():
        return Range(bound, bound, "a guess: a bound")
    if tensor.dtype.kind == "f" and tensor.shape and STATE_NAME.search(tensor.name):
        return Range(0, 0, "a guess: the state before the first run")
    if tensor.dtype.kind in "iub" and _MASK.search(tensor.name):
        return Range(1, 1, "a guess: nothing is masked")
    if tensor.dtype == np.uint8 and image_axes(tensor):
        return Range(0, 255, "pixels")
    rows = _table_rows(model, tensor.name)
    if tensor.dtype.kind in "iu" and rows:
        return Range(0, rows - 1, "entries of the table that it looks up")
    axis = wave_axis(tensor)
    if axis is not None and not isinstance((tensor.shape or ())[axis], int):
        return Range(-1, 1, "a waveform, at a guess")
    return Range()


def _table_rows(model: Model, name: str) -> int:
    """Rows of the least constant table that is read by an input, at once or behind a Cast; 0: of none."""
    constants, rows = model.constants(), []
    for node, position in model.index.readers(name):
        if node.op_type == "Cast":
            rows.append(_table_rows(model, node.output[0]))
        elif node.op_type == "Gather" and position == 1 and node.input[0] in constants:
            rows.append(len(constants[node.input[0]]))
    return min(filter(None, rows), default=0)


def image_axes(tensor: TensorInfo) -> tuple[int, int, int] | None:
    """The axes of channels, height and width where an input can be an image of 1, 3 or 4 channels."""
    shape = tensor.shape or ()
    if len(shape) not in (3, 4) or tensor.dtype.kind not in "fu":
        return None
    first = len(shape) - 3
    for channels, height in ((first, first + 1), (len(shape) - 1, first)):
        sides = shape[height], shape[height + 1]
        if shape[channels] in (1, 3, 4) and all(not isinstance(s, int) or s >= 8 for s in sides):
            return channels, height, height + 1
    return None


def wave_axis(tensor: TensorInfo) -> int | None:
    """The axis of time where an input can be a waveform: all other sizes but the batch's are 1."""
    shape = tensor.shape or ()
    if tensor.dtype.kind != "f" or not 1 <= len(shape) <= 3 or STATE_NAME.search(tensor.name):
        return None
    axes = range(1 if len(shape) > 1 else 0, len(shape))
    long = [axis for axis in axes if shape[axis] != 1]
    return long[0] if len(long) == 1 else None


def _candidates(model: Model, batches: Sequence[int]) -> Iterator[_Shapes]:
    """Shapes of all inputs, the usual ones first, none of them twice."""
    layout, seen = read_layout(model.inputs), set[tuple[tuple[int, ...], ...]]()
    state = any(STATE_NAME.search(t.name) for t in model.inputs)
    choices = {t.name: _choices(t, state) for t in model.inputs}
    for number in range(max(map(len, choices.values()), default=1)):
        for batch in batches:
            for tied in (True, False):
                shapes = _fill(layout, choices, number, batch, tied)
                if (key := tuple(shapes.values())) not in seen:
                    seen.add(key)
                    yield shapes


def _choices(tensor: TensorInfo, state: bool) -> list[tuple[int, ...]]:
    """Sizes to try for the open axes of an input: height and width of an image, else one for all."""
    shape = tensor.shape or ()
    axes = image_axes(tensor)
    if axes:
        height, width = shape[axes[1]], shape[axes[2]]
        if isinstance(height, int):
            return [(height, height * factor) for factor in _WIDTHS]
        return [(size, width if isinstance(width, int) else size) for size in IMAGES]
    if wave_axis(tensor) is not None:
        return [(size,) for size in (WINDOWS if state else WAVES)]
    return [(size,) for size in SEQUENCES]


def _fill(
    layout: Layout, choices: Mapping[str, Sequence[tuple[int, ...]]], number: int, batch: int, tied: bool
) -> _Shapes:
    """One choice for each input; sizes of one name are one, and those of a state are the batch's if tied."""
    named: dict[str, int] = {}
    shapes = {}
    for tensor in layout.inputs:
        sizes = choices[tensor.name][min(number, len(choices[tensor.name]) - 1)]
        axes, shape = image_axes(tensor), []
        for axis, dim in enumerate(tensor.shape or ()):
            if isinstance(dim, int):
                shape.append(dim)
                continue
            size = sizes[axes.index(axis) - 1] if axes and axis in axes[1:] else sizes[-1]
            if (axis == 0 and wave_axis(tensor) != 0) or (tied and STATE_NAME.search(tensor.name)):
                size = batch
            shape.append(named.setdefault(dim, size) if dim else size)
        shapes[tensor.name] = tuple(shape)
    return shapes
