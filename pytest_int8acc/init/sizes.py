"""Finds input sizes and values that a model accepts, by running it in ONNX Runtime with usual sizes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pytest_int8acc.data.layout import read_layout
from pytest_int8acc.errors import EngineError
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.outputs import STATE_NAME
from pytest_int8acc.runtime.onnxruntime import OrtEngine
from pytest_int8acc.tensors import Feed, TensorInfo

#: Heights, and equal widths, of images that are tried, in pixels. The most common size comes first.
IMAGES = (224, 256, 320, 640, 512, 128, 96, 64, 48, 32, 28, 299, 112, 416, 1024)
#: Lengths of waveforms that are tried, in samples.
WAVES = (16000, 512, 576, 1024, 256, 8000, 4096, 48000, 400, 160)
#: Lengths of waveforms, in samples, that are tried for a recurrent model, which has its state as an input.
#: Such a model reads a waveform in short windows.
WINDOWS = (512, 576, 1024, 256, 1536, 16000)
#: Lengths that are tried for sequences, in tokens or feature vectors.
SEQUENCES = (16, 32, 64, 100, 128, 300, 512, 77, 3000)
#: Ratios of width to height that are tried for an image whose height is fixed, such as a line of text.
_WIDTHS = (4, 1, 2, 8, 10)
#: Batch sizes that are tried if the model does not fix the batch size. Some models accept only 1.
BATCHES = (4, 1)
#: Matches the name of an input whose value is the sampling rate of a waveform, in Hz.
_RATE = re.compile(r"^(sr|sample_?rate|sampling_?rate|rate)$", re.IGNORECASE)
#: A pattern of an input's name, to the value of the input. The values are for scalar inputs that are bounds,
#: such as a minimum frequency.
_BOUNDS = {re.compile(r"min", re.IGNORECASE): 0, re.compile(r"max", re.IGNORECASE): 1000}
_MASK = re.compile(r"mask", re.IGNORECASE)
_Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Range:
    """The range from which the random values of one input are drawn: its least and its greatest value."""

    low: float = 0
    high: float = 1
    why: str = ""
    """The reason for this range, for a comment in the loader script; empty for the default range, 0 to 1."""


@dataclass(frozen=True, eq=False)
class Trial:
    """The result of running a model in ONNX Runtime with input shapes that were guessed."""

    model: Model
    ranges: Mapping[str, Range]
    """The range of random values for each input, by name."""
    inputs: _Shapes
    outputs: _Shapes
    """Output name to shape; empty if the model did not run with any of the shapes."""
    tried: int
    """The number of combinations of input sizes with which the model was run."""
    refused: str = ""
    """ONNX Runtime's error for the last sizes that were tried; empty if the model ran."""
    finite: bool = True
    """Whether the outputs of the run held no NaN and no infinity."""

    @property
    def how(self) -> str:
        """One line on how the sizes were found, for a comment in the loader script."""
        if not self.outputs:
            return f"TODO: the model did not run with any sizes tried ({self.tried}): set them."
        if all(isinstance(dim, int) for tensor in self.model.inputs for dim in tensor.shape or ()):
            return "Sizes are fixed."
        refusals = f", after {self.tried - 1} that it refused" if self.tried > 1 else ""
        return f"TODO: sizes that the model leaves open are a guess: the model runs with them{refusals}."

    @property
    def batched(self) -> frozenset[str]:
        """The names of the inputs whose axis 0 counts samples."""
        return read_layout(self.model.inputs).batched

    def sample_shape(self, tensor: TensorInfo) -> tuple[int, ...]:
        """Return the shape of an input in a run of one sample."""
        shape = self.inputs[tensor.name]
        is_one_image = len(shape) == 3 and image_axes(tensor) is not None
        return (1, *shape[1:]) if tensor.name in self.batched and not is_one_image else shape


def find_sizes(model: Model, batches: Sequence[int] = BATCHES) -> Trial:
    """Try sizes, the most usual ones first, and return the first ones with which the model runs.

    A size that the model fixes is kept. If the model runs with none of the sizes, the result has the first
    sizes that were tried, and no outputs.

    Args:
        model: A model that ``load_model`` returned. The ranks of its inputs are known.
        batches: The batch sizes to try if the model does not fix the batch size.
    """
    ranges = {tensor.name: _range(model, tensor) for tensor in model.inputs}
    candidates = list(_candidates(model, batches))
    try:
        engine = OrtEngine(model, "native")
    except EngineError as error:
        return Trial(model, ranges, candidates[0], {}, 0, str(error))
    refused = ""
    for tried, shapes in enumerate(candidates, 1):
        try:
            outputs = engine(_random_feed(model.inputs, shapes, ranges))
        except EngineError as error:
            refused = str(error)
            continue
        finite = all(array.dtype.kind != "f" or np.isfinite(array).all() for array in outputs.values())
        output_shapes = {name: array.shape for name, array in outputs.items()}
        return Trial(model, ranges, shapes, output_shapes, tried, finite=finite)
    return Trial(model, ranges, candidates[0], {}, len(candidates), refused)


def _random_feed(inputs: Sequence[TensorInfo], shapes: _Shapes, ranges: Mapping[str, Range]) -> Feed:
    rng = np.random.default_rng(0)
    feed: Feed = {}
    for tensor in inputs:
        values_range, shape = ranges[tensor.name], shapes[tensor.name]
        if tensor.dtype.kind == "f":
            values = rng.uniform(values_range.low, values_range.high, shape)
        else:
            values = np.floor(rng.uniform(values_range.low, values_range.high + 1, shape))
        feed[tensor.name] = np.asarray(values).astype(tensor.dtype)
    return feed


def _range(model: Model, tensor: TensorInfo) -> Range:
    """Guess the range of an input's values from its name, its dtype and the nodes that read it."""
    is_float, is_integer = tensor.dtype.kind == "f", tensor.dtype.kind in "iu"
    if _RATE.search(tensor.name) and tensor.shape in ((), (1,)):
        return Range(16000, 16000, "a guess: the rate of speech")
    bound = next((value for name, value in _BOUNDS.items() if name.search(tensor.name)), None)
    if bound is not None and is_float and tensor.shape == ():
        return Range(bound, bound, "a guess: a bound")
    if is_float and tensor.shape and STATE_NAME.search(tensor.name):
        return Range(0, 0, "a guess: the state before the first run")
    if not is_float and _MASK.search(tensor.name):
        return Range(1, 1, "a guess: nothing is masked")
    if tensor.dtype == np.uint8 and image_axes(tensor):
        return Range(0, 255, "pixels")
    rows = _table_rows(model, tensor.name)
    if is_integer and rows:
        return Range(0, rows - 1, "entries of the table that it looks up")
    axis = wave_axis(tensor)
    if axis is not None and not isinstance((tensor.shape or ())[axis], int):
        return Range(-1, 1, "a waveform, at a guess")
    return Range()


def _table_rows(model: Model, name: str) -> int:
    """Return the number of rows of the constant in which a Gather looks up the input; 0 if no Gather does.

    If several Gather nodes do, the result is the smallest number. A Cast may lie before the Gather. ``name``
    is the name of the input.
    """
    constants, rows = model.constants(), []
    for node, position in model.index.readers(name):
        if node.op_type == "Cast":
            rows.append(_table_rows(model, node.output[0]))
        elif node.op_type == "Gather" and position == 1 and node.input[0] in constants:
            rows.append(len(constants[node.input[0]]))
    return min(filter(None, rows), default=0)


def image_axes(tensor: TensorInfo) -> tuple[int, int, int] | None:
    """Return the axes of channels, height and width if the input may be an image; otherwise None.

    An image has 1, 3 or 4 channels, on the first axis or on the last axis.
    """
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
    """Return the axis of time if the input is a waveform; otherwise None.

    Apart from its batch axis, a waveform has exactly one axis with a size other than 1.
    """
    shape = tensor.shape or ()
    if tensor.dtype.kind != "f" or not 1 <= len(shape) <= 3 or STATE_NAME.search(tensor.name):
        return None
    axes = range(1 if len(shape) > 1 else 0, len(shape))
    long = [axis for axis in axes if shape[axis] != 1]
    return long[0] if len(long) == 1 else None


def _candidates(model: Model, batches: Sequence[int]) -> Iterator[_Shapes]:
    """Yield dicts of input name to shape that ``find_sizes`` tries, the most common shapes first.

    No dict is yielded twice. ``batches`` are the batch sizes to try.
    """
    seen = set[tuple[tuple[int, ...], ...]]()
    state = any(STATE_NAME.search(t.name) for t in model.inputs)
    choices = {t.name: _choices(t, state) for t in model.inputs}
    for number in range(max(map(len, choices.values()), default=1)):
        for batch in batches:
            for tied in (True, False):
                shapes = _fill(model.inputs, choices, number, batch, tied)
                if (key := tuple(shapes.values())) not in seen:
                    seen.add(key)
                    yield shapes


def _choices(tensor: TensorInfo, state: bool) -> list[tuple[int, ...]]:
    """Return the sizes to try for axes of an input that have no fixed size.

    For an image, an item is (height, width). For any other input, an item is one size for all these axes.
    ``state`` says whether the model has an input that holds its state, as recurrent models do.
    """
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
    inputs: Sequence[TensorInfo],
    choices: Mapping[str, Sequence[tuple[int, ...]]],
    number: int,
    batch: int,
    tied: bool,
) -> _Shapes:
    """Return a shape for each input, by input name. Axes with the same symbolic name get the same size.

    Args:
        inputs: The model's inputs.
        choices: Input name to the sizes to try.
        number: The index of the sizes to use from ``choices``. If an input has fewer choices, its last choice
            is used.
        batch: The batch size: the size of each axis 0 that has no fixed size.
        tied: Whether, in inputs that hold the state of a recurrent model, all axes without a fixed size get
            the batch size.
    """
    named: dict[str, int] = {}
    shapes = {}
    for tensor in inputs:
        sizes = choices[tensor.name][min(number, len(choices[tensor.name]) - 1)]
        axes = image_axes(tensor)
        has_batch_size = tied and STATE_NAME.search(tensor.name)
        shape = []
        for axis, dim in enumerate(tensor.shape or ()):
            if isinstance(dim, int):
                shape.append(dim)
                continue
            size = sizes[axes.index(axis) - 1] if axes and axis in axes[1:] else sizes[-1]
            if has_batch_size or (axis == 0 and wave_axis(tensor) != 0):
                size = batch
            shape.append(named.setdefault(dim, size) if dim else size)
        shapes[tensor.name] = tuple(shape)
    return shapes
