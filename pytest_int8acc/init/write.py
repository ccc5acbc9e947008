"""``pytest --int8acc-init MODEL``: a first spec for a model, ready to run; TODO marks what nobody told it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from pytest_int8acc.case.plan_file import quoted
from pytest_int8acc.data import RandomSource, open_dataset
from pytest_int8acc.data.layout import read_layout
from pytest_int8acc.errors import DataError, Int8accError, ModelError
from pytest_int8acc.files import create_file, seen_from
from pytest_int8acc.graph.groups import find_groups
from pytest_int8acc.graph.index import all_nodes
from pytest_int8acc.graph.load import load_model
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.qdq import is_qdq, read_qdq
from pytest_int8acc.names import shown
from pytest_int8acc.settings import SUFFIXES
from pytest_int8acc.spec.fields import NAME
from pytest_int8acc.spec.load import display
from pytest_int8acc.spec.yaml import resolve
from pytest_int8acc.tensors import TensorInfo, describe

#: Random samples of a first run, or a few more where the model fixes its batch.
SAMPLES = 64
#: Runs of a loader that is written, and the size it gives to each dimension that the model leaves open.
RUNS, OPEN_SIZE, OPEN_BATCH = 8, 16, 4
#: An output [N, C] with so many columns or more is taken for classes.
CLASSES = 10
#: Domains whose operators ONNX Runtime has.
_KNOWN = frozenset({"", "ai.onnx", "ai.onnx.ml", "com.microsoft"})
#: What quantizers put behind a model's name.
_QUANTIZED = re.compile(r"[._-](qdq|int8|quant|quantized|ptq|qat|sim)$", re.IGNORECASE)
_PLAIN = re.compile(r"[A-Za-z0-9_/][A-Za-z0-9_./-]*")


def run(paths: Iterable[str | Path], stream: TextIO) -> int:
    """Write a spec for each model, say so or why not on ``stream``, and count the models that got none."""
    failed = 0
    for path in paths:
        try:
            spec = write_spec(path)
        except Int8accError as error:
            failed += 1
            stream.write(f"int8acc: {error}\n")
        else:
            wrote = shown(display(spec))
            stream.write(f"int8acc: wrote {wrote}; see to what is marked TODO, then: pytest {wrote}\n")
    return failed


def write_spec(model_path: str | Path, folder: Path | None = None) -> Path:
    """Write a commented spec for a model, and a loader beside it where random data cannot be drawn.

    The model is a float ONNX model, or one with Q/DQ; the spec goes into ``folder``, by default beside it.

    Raises:
        ModelError: The model cannot be read, has nothing to quantize, or has operators or inputs that a first
            run cannot cope with.
        Int8accError: A file to be written is there already, or the folder cannot be written.
    """
    path = Path(model_path)
    folder = path.parent if folder is None else folder
    spec = folder / (path.stem + SUFFIXES[0])
    loader = folder / f"{re.sub(r'[^A-Za-z0-9_]', '_', path.stem)}_inputs.py"
    model = load_model(path)
    _check(model)
    facts = _Facts.of(model, path, folder, loader.name)
    texts = {loader: _loader(facts)} if facts.loader else {}
    texts[spec] = "".join(f"{line}\n" for line in _lines(facts))
    for file in texts:
        if file.exists():
            raise Int8accError(
                f"{display(file)}: is there already and is left as it is; move it away to have a new one"
            )
    for file, text in texts.items():
        try:
            create_file(file, text.encode())  # what came since then stays
        except OSError as error:
            raise Int8accError(f"{display(file)}: cannot be written: {error.strerror or error}") from error
    return spec


def _check(model: Model) -> None:
    for node in all_nodes(model.graph):
        if node.domain not in _KNOWN:
            raise ModelError(
                f"{model.name}: operator {node.op_type} of '{node.name}' is a custom one ({node.domain}), "
                "which ONNX Runtime does not have; write a spec by hand, with 'backend: tensorrt' and "
                "'tensorrt: {plugins: [LIBRARY]}'"
            )
    if not model.inputs:
        raise ModelError(f"{model.name}: the model takes no inputs, so there is nothing to compare on")
    for tensor in model.inputs:
        if tensor.shape is None or tensor.dtype.kind not in "fiub":
            raise ModelError(
                f"{model.name}: no data can be made up for the input {tensor}; export the model with shapes "
                "and numeric inputs, or write a spec by hand, with your own data under 'inputs'"
            )


@dataclass(frozen=True, eq=False)
class _Facts:
    """What a spec says of a model."""

    model: Model
    file: str
    """The model's path from the spec's folder."""
    name: str | None
    """A name for the case, where the file's own makes none."""
    groups: int
    quantized: bool
    """True where the model holds Q/DQ already."""
    float_file: str | None
    """The float model that one with Q/DQ was made from; None where none was found."""
    loader: str
    """The loader's file where random data cannot be drawn, else empty."""

    @staticmethod
    def of(model: Model, path: Path, folder: Path, loader: str) -> _Facts:
        quantized = is_qdq(model)
        groups = len(read_qdq(model).groups) if quantized else len(find_groups(model).slots)
        float_path = _float_model(model, path) if quantized else None
        return _Facts(
            model=model,
            file=seen_from(folder, path),
            name=None if re.search(NAME, path.stem) else re.sub(r"[^A-Za-z0-9_.-]+|^[.-]+", "_", path.stem),
            groups=groups,
            quantized=quantized,
            float_file=None if float_path is None else seen_from(folder, float_path),
            loader="" if _can_draw(model) else loader,
        )


def _can_draw(model: Model) -> bool:
    try:
        open_dataset(RandomSource(SAMPLES), model.inputs, base=Path())
    except DataError:
        return False
    return True


def _float_model(model: Model, path: Path) -> Path | None:
    """The file beside a Q/DQ model that is its float self, going by names, inputs and outputs."""
    stem = path.stem
    while (shorter := _QUANTIZED.sub("", stem)) != stem:
        stem = shorter
        other = path.with_name(stem + path.suffix)
        try:
            found = load_model(other)
        except ModelError:
            continue
        ours, theirs = (model.inputs, model.outputs), (found.inputs, found.outputs)
        same = all({t.name for t in a} == {t.name for t in b} for a, b in zip(ours, theirs, strict=True))
        if same and not is_qdq(found):
            return other
    return None


def _lines(facts: _Facts) -> Iterator[str]:
    model = facts.model
    layers = "1 layer" if facts.groups == 1 else f"{facts.groups} layers"
    yield f"# INT8 accuracy of {shown(facts.file)}. See to what is marked TODO, then run: pytest --int8acc"
    yield "#"
    yield f"# Takes  {shown(describe(model.inputs))}"
    yield f"# Gives  {shown(describe(model.outputs))}"
    yield f"# INT8   {layers} {'with Q/DQ' if facts.quantized else 'that can be quantized'}"
    yield ""
    if facts.name:
        yield f"name: {facts.name}"
    if facts.quantized:
        yield "# TODO: the float model that the one under 'int8' was made from."
    known = facts.float_file if facts.quantized else facts.file
    yield f"model: {'FLOAT_MODEL.onnx' if known is None else _scalar(known)}"
    yield ""
    yield from _inputs(facts)
    yield ""
    yield from _int8(facts)
    yield ""
    yield "baseline: fp16                         # what INT8 is compared with; or fp32, or {model: FILE}"
    yield "backend: auto                          # TensorRT where it can run, else ONNX Runtime"
    yield from _shapes(model)
    yield ""
    yield "# TODO: set these to what your application needs."
    yield "criteria:"
    for tensor in model.outputs:
        yield from _criterion(tensor)
    yield "  # What your users notice, by a function of your own:"
    yield "  # - metric: metrics.py:top1"
    yield "  #   max_drop: 0.005"


def _inputs(facts: _Facts) -> Iterator[str]:
    names = ", ".join(shown(tensor.name) for tensor in facts.model.inputs)
    yield "# TODO: real data, such as an .npz with one array per input, samples first:"
    yield f"# inputs: validation.npz               # holding {names}"
    if facts.loader:
        yield f"inputs: {facts.loader}:load_data    # made up; the sizes that it leaves open are set there"
    else:
        size = read_layout(facts.model.inputs).size or 1
        samples = (
            -(-SAMPLES // size) * size
        )  # whole batches: an output without a row per sample cannot be cut
        yield f"inputs: {{random: {{samples: {samples}}}}}        # shows that it runs, not how well"


def _int8(facts: _Facts) -> Iterator[str]:
    yield "int8:"
    if facts.quantized:
        yield f"  model: {_scalar(facts.file)}"
        return
    yield "  calibrate:"
    yield "    # TODO: calibrate on data of their own, none of which is in 'inputs':"
    yield "    # data: calibration.npz"
    yield "    method: entropy                    # or minmax, percentile, mse, topk"
    yield "  # Or, in place of 'calibrate': 'scales: calibration.cache', or 'model: FILE' with Q/DQ."


def _shapes(model: Model) -> Iterator[str]:
    """The profile of a model with open sizes, as a comment: the data tell it where it is not given."""
    loose = [t for t in model.inputs if any(not isinstance(dim, int) for dim in t.shape or ())]
    if not loose:
        return
    yield "# TensorRT's smallest, usual and largest shape of each input; taken from the data if left out."
    yield "# tensorrt:"
    yield "#   shapes:"
    for tensor in loose:
        shapes = ", ".join(str(_sizes(tensor, batch)) for batch in (1, OPEN_BATCH, 2 * OPEN_BATCH))
        yield f"#     {shown(_scalar(tensor.name))}: [{shapes}]"


def _sizes(tensor: TensorInfo, batch: int) -> list[int]:
    dims = enumerate(tensor.shape or ())
    return [dim if isinstance(dim, int) else (OPEN_SIZE if axis else batch) for axis, dim in dims]


def _criterion(tensor: TensorInfo) -> Iterator[str]:
    yield f"  - output: {_scalar(tensor.name)}"
    if tensor.dtype.kind != "f":
        yield "    agreement: 0.99                    # at least 99 % of its elements are the baseline's"
        return
    if tensor.shape not in ((), (1,)):
        yield "    cosine: 0.99"
    yield "    sqnr_db: 20                        # noise is a tenth of the signal at most"
    columns = tensor.shape[1] if tensor.shape and len(tensor.shape) == 2 else None
    if isinstance(columns, int) and columns >= CLASSES:
        yield "    top1_agreement: 0.99               # at most 1 % of the samples change their class"


def _scalar(text: str) -> str:
    """``text`` in YAML, quoted where it must be."""
    return text if _PLAIN.fullmatch(text) and isinstance(resolve(text), str) else quoted(text)


def _loader(facts: _Facts) -> str:
    shapes = []
    for tensor in facts.model.inputs:
        sizes = tuple(_sizes(tensor, OPEN_BATCH))
        written = "scalar" if tensor.shape == () else shown(str(tensor))
        shapes.append(f"    {tensor.name!r}: ({sizes!r}, {str(tensor.dtype)!r}),  # {written}")
    return _LOADER.format(runs=RUNS, shapes="\n".join(shapes))


_LOADER = '''\
"""Inputs for a first run, made up. TODO: load real data instead."""

import numpy as np

# Input: its shape in one run and its dtype. TODO: sizes that the model leaves open.
INPUTS = {{
{shapes}
}}
RUNS = {runs}


def load_data():
    """Yields a dict of input name to array for each run; the same on each call."""
    rng = np.random.default_rng(0)
    for _ in range(RUNS):
        yield {{name: draw(rng, shape, np.dtype(dtype)) for name, (shape, dtype) in INPUTS.items()}}


def draw(rng, shape, dtype):
    """Floats in [0, 1); 0 or 1 for integers and booleans, which any table has an entry for."""
    values = np.asarray(rng.random(shape))
    return values.astype(dtype) if dtype.kind == "f" else (values >= 0.5).astype(dtype)
'''
