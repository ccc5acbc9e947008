"""``pytest --int8acc-init MODEL``: writes a first spec for a model. TODO marks each guess in the spec."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import TextIO, get_args

import numpy as np

from pytest_int8acc.case.plan_file import quoted
from pytest_int8acc.data import RandomSource, open_dataset
from pytest_int8acc.data.layout import read_layout
from pytest_int8acc.errors import DataError, Int8accError, ModelError
from pytest_int8acc.files import create_file, seen_from
from pytest_int8acc.graph.flow import squashing_node
from pytest_int8acc.graph.index import all_nodes
from pytest_int8acc.graph.layout import find_groups
from pytest_int8acc.graph.load import load_model
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.outputs import (
    before_selection,
    behind_selection,
    guesses,
    joined_outputs,
    selectors,
)
from pytest_int8acc.graph.qdq import is_qdq, read_qdq
from pytest_int8acc.init.data import look
from pytest_int8acc.init.loaders import data_loader, missing_parts, random_loader
from pytest_int8acc.init.sizes import BATCHES, Range, find_sizes
from pytest_int8acc.init.templates import render
from pytest_int8acc.names import shown
from pytest_int8acc.settings import SUFFIXES
from pytest_int8acc.spec.fields import NAME
from pytest_int8acc.spec.int8 import Calibration, CalibrationMethod
from pytest_int8acc.spec.load import display
from pytest_int8acc.spec.yaml import resolve
from pytest_int8acc.tensors import TensorInfo, describe

#: Number of random samples that a first spec asks for, if the user gives no data. The number is rounded up to
#: whole batches if the model fixes its batch size.
SAMPLES = 64
#: The operator domains that ONNX Runtime implements. A model with an operator of another domain gets no spec.
_KNOWN_DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml", "com.microsoft"})
#: Matches a suffix that quantizers append to the file name of a model, before the file type.
_QUANTIZED = re.compile(r"[._-](qdq|int8|quant|quantized|ptq|qat|sim)$", re.IGNORECASE)
#: Matches text that needs no quotes in YAML, unless it is a number or a word such as ``null``.
_PLAIN = re.compile(r"[A-Za-z0-9_/][A-Za-z0-9_./-]*")


def run(paths: Iterable[str | Path], stream: TextIO, data: Path | None = None) -> int:
    """Write a spec for each model; return the number of models for which this failed.

    Args:
        paths: The model files.
        stream: Receives lines on each model: the files that were written and remarks, or an error.
        data: A folder of images or audio, or stored arrays, for all models; None means random inputs.
    """
    failed = 0
    for path in paths:
        try:
            facts = _Facts(Path(path), Path(path).parent, data)
            files = [shown(display(file)) for file in _write(facts)]
        except Int8accError as error:
            failed += 1
            stream.write(f"int8acc: {error}\n")
            continue
        spec = files[-1]
        wrote = " and ".join(reversed(files))
        stream.write(f"int8acc: wrote {wrote}; edit the lines marked TODO, then: pytest {spec}\n")
        if facts.missing:
            stream.write(f"int8acc: {spec} does not run yet: {facts.missing}\n")
        if facts.selectors:
            said = "judges what it chooses by" if facts.before else "compares what it chose: see there"
            stream.write(f"int8acc: the model chooses by {facts.selectors}; {spec} {said}\n")
    return failed


def write_spec(model_path: str | Path, folder: Path | None = None, data: Path | None = None) -> Path:
    """Write a commented spec for a model, and a loader script if one is needed; return the spec's path.

    Args:
        model_path: A float ONNX model, or one with Q/DQ.
        folder: The folder of the spec; None means the model's folder.
        data: A folder of images or audio, or stored arrays; None means random inputs.

    Raises:
        ModelError: The model cannot be read, has nothing to quantize, has operators of a custom domain, or
            has inputs for which no data can be made up.
        DataError: The data cannot be read, or fit no input.
        Int8accError: A file exists already, or the folder cannot be written.
    """
    path = Path(model_path)
    return _write(_Facts(path, path.parent if folder is None else folder, data))[-1]


def _write(facts: _Facts) -> list[Path]:
    """Write the loader script, if one is needed, and the spec; return their paths in this order."""
    texts = {}
    if facts.loader:
        if facts.given is None:
            script = random_loader(facts.trial)
        else:
            script = data_loader(facts.trial, facts.given, facts.folder, facts.classes)
        texts[facts.folder / facts.loader] = script
    spec = render("spec", _head(facts) | _inputs(facts) | _shapes(facts) | _criteria(facts))
    texts[facts.folder / (facts.path.stem + SUFFIXES[0])] = spec
    for file in texts:
        if file.exists():
            raise Int8accError(
                f"{display(file)}: is there already and is left as it is; move it away to have a new one"
            )
    for file, text in texts.items():
        try:
            # Fails if another process has created the file since the check above.
            create_file(file, text.encode())
        except OSError as error:
            raise Int8accError(f"{display(file)}: cannot be written: {error.strerror or error}") from error
    return list(texts)


def _check(model: Model) -> None:
    for node in all_nodes(model.graph):
        if node.domain not in _KNOWN_DOMAINS:
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


class _Facts:
    """What the spec is written from: the model, the user's data, and guesses about inputs and outputs."""

    def __init__(self, path: Path, folder: Path, data: Path | None) -> None:
        self.path, self.folder = path, folder
        self.model = model = load_model(path)
        _check(model)
        self.quantized = is_qdq(model)
        self.layers = len(read_qdq(model).groups) if self.quantized else len(find_groups(model).slots)
        self.float_path = _float_model(model, path) if self.quantized else path
        self.given = None if data is None else look(data, model)
        self.trial = find_sizes(model, BATCHES if self.given is None else BATCHES[-1:])
        self.batch_size = read_layout(model.inputs).size
        """The batch size that the model fixes; None if it fixes none."""
        self.guesses = guesses(model, self.trial.inputs | self.trial.outputs)
        self.joined = joined_outputs(model)
        self.selectors = " and ".join(selectors(model))
        """The model's selecting operators, such as TopK, joined by 'and'; empty if there are none."""
        self.before = before_selection(model)
        """The names of tensors that are computed before selecting operators. They are judged in place of the
        outputs that depend on these operators."""
        self.squashed = self._squashed()
        """Output that a Softmax or Sigmoid computes, to the operator's input tensor and type of operator."""
        self.loader = self._loader()
        """The name of the loader script; empty if no script is needed."""
        self.missing = missing_parts(self.trial, self.given, self.loader)
        """One line on what the user must fill in before the spec can run; empty if nothing is missing."""
        self.classes = self._classes()
        """The name of the first output that probably holds scores of classes, [N, C]; empty if none does."""
        self.boxes = next((name for name, parts in self.joined.items() if parts.layout), "")
        """The name of the first output that holds boxes in one of YOLO's layouts; empty if none does."""

    def _squashed(self) -> dict[str, tuple[str, str]]:
        if self.float_path is None:
            return {}
        model = load_model(self.float_path) if self.quantized else self.model
        made = self.model.index.producer.keys() & model.index.producer.keys()
        nodes = {output.name: squashing_node(model, output.name) for output in model.outputs}
        return {
            name: (node.input[0], node.op_type)
            for name, node in nodes.items()
            if node is not None and node.input[0] in made
        }

    def _loader(self) -> str:
        if self.given is not None:
            needed = self.given.kind != "ready"
        else:
            needed = not _can_draw(self.model) or set(self.trial.ranges.values()) != {Range()}
        return f"{re.sub(r'[^A-Za-z0-9_]', '_', self.path.stem)}_inputs.py" if needed else ""

    def _classes(self) -> str:
        for name, guess in self.guesses.items():
            if guess.axis == -1 and len(self.trial.outputs.get(name, ())) == 2:
                return name
        return ""

    @cached_property
    def has_boxes(self) -> bool:
        """Whether the user's labels are boxes in the shape that the metric ``coco_map`` needs."""
        labels = self.given.labels if self.given is not None else None
        if not self.boxes or labels is None or labels.kind != "file" or labels.file is None:
            return False
        try:
            shape = np.load(labels.file, mmap_mode="r").shape
        except (OSError, ValueError):  # The error will be reported when the spec is run.
            return False
        return len(shape) == 3 and 5 <= shape[2] <= 7

    @property
    def one_row_per_run(self) -> bool:
        """Whether the model leaves its batch size open, but ran only with batches of one sample."""
        sizes = {self.trial.inputs[name][0] for name in self.trial.batched}
        is_tried = self.given is None and self.batch_size is None and bool(self.trial.outputs)
        return is_tried and sizes == {BATCHES[-1]}


def _can_draw(model: Model) -> bool:
    try:
        open_dataset(RandomSource(SAMPLES), model.inputs, base=Path())
    except DataError:
        return False
    return True


def _float_model(model: Model, path: Path) -> Path | None:
    """Return the path of the float model that belongs to the Q/DQ model at ``path``; None if none is found.

    The float model lies in the same folder. It has the same name without a suffix such as ``_int8``, and
    inputs and outputs of the same names.
    """
    names = {tensor.name for tensor in (*model.inputs, *model.outputs)}
    stem = path.stem
    while (shorter := _QUANTIZED.sub("", stem)) != stem:
        stem = shorter
        other = path.with_name(stem + path.suffix)
        try:
            candidate = load_model(other)
        except ModelError:
            continue
        same = names == {tensor.name for tensor in (*candidate.inputs, *candidate.outputs)}
        if same and not is_qdq(candidate):
            return other
    return None


def _head(facts: _Facts) -> dict[str, object]:
    """Return placeholders of the spec's template and their values: for the model and its quantization."""
    given = facts.given
    file = seen_from(facts.folder, facts.path)
    layers = "1 layer" if facts.layers == 1 else f"{facts.layers} layers"
    if facts.float_path is None:
        float_file = "FLOAT_MODEL.onnx"
    else:
        float_file = _scalar(seen_from(facts.folder, facts.float_path))
    stem = facts.path.stem
    has_calibration = given is not None and given.kind != "ready" and given.count > 1
    method = Calibration.model_fields["method"].default
    return {
        "file": shown(file),
        "takes": shown(describe(facts.model.inputs)),
        "gives": shown(describe(facts.model.outputs)),
        "layers": f"{layers} {'with Q/DQ' if facts.quantized else 'that can be quantized'}",
        "missing": facts.missing or None,
        "name": not re.search(NAME, stem) and re.sub(r"[^A-Za-z0-9_.-]+|^[.-]+", "_", stem),
        "if_quantized": facts.quantized,
        "model": float_file,
        "quantized_model": facts.quantized and _scalar(file),
        "if_float": not facts.quantized,
        "method": None if facts.quantized else method,
        "other_methods": ", ".join(name for name in get_args(CalibrationMethod) if name != method),
        "data_calibration": not facts.quantized and has_calibration and facts.loader,
        "if_no_calibration": not facts.quantized and not has_calibration,
        "selectors": facts.selectors or None,
        "if_judged_before": bool(facts.selectors and facts.before),
        "if_judged_behind": bool(facts.selectors and not facts.before),
    }


def _inputs(facts: _Facts) -> dict[str, object]:
    """Return placeholders of the spec's template and their values: for inputs, batch and labels."""
    given, loader = facts.given, facts.loader
    values: dict[str, object] = {"if_one_row": facts.one_row_per_run}
    if given is None:
        batch = facts.batch_size or 1
        # The last batch must be full. Otherwise it is padded, and the rows of the padding cannot be removed
        # from an output that does not have one row per sample.
        whole_batches = -(-SAMPLES // batch) * batch
        return values | {
            "if_no_data": True,
            "input_names": ", ".join(shown(tensor.name) for tensor in facts.model.inputs),
            "random_loader": loader or None,
            "random_samples": None if loader else whole_batches,
        }
    if given.labels:
        source = f"{loader}:load_labels"
        if not loader:
            source = _scalar(seen_from(facts.folder, given.labels.file or given.path))
        is_used = facts.has_boxes or (facts.classes and loader)
        values["labels"] = f"labels: {source}" if is_used else f"# labels: {source}"
    if given.kind == "ready":
        return values | {"ready_data": _scalar(seen_from(facts.folder, given.path))}
    return values | {"data_loader": loader}


def _shapes(facts: _Facts) -> dict[str, object]:
    """Return the placeholder of the spec's template for a comment with TensorRT's optimization profile."""
    lines = []
    for tensor in facts.model.inputs:
        if all(isinstance(dim, int) for dim in tensor.shape or ()):
            continue
        first, *rest = facts.trial.inputs[tensor.name]
        has_open_batch = tensor.name in facts.trial.batched and not isinstance((tensor.shape or ())[0], int)
        sizes = (1, first, 2 * first) if has_open_batch else (first, first, first)
        lines.append(f"#     {shown(_scalar(tensor.name))}: {[[size, *rest] for size in sizes]}")
    return {"shapes": "\n".join(lines) or None}


def _criteria(facts: _Facts) -> dict[str, object]:
    """Return placeholders of the spec's template and their values: for criteria on outputs.

    Each output gets a limit. Outputs that depend on a selecting operator, such as TopK, are replaced by
    tensors that are computed before the operator.
    """
    outputs = {tensor.name: tensor for tensor in facts.model.outputs}
    left_out = outputs.keys() & behind_selection(facts.model) if facts.before else set()
    inside = [name for name in facts.before if name not in outputs]
    vector = {"if_floats": True, "if_vector": True}
    criteria: list[dict[str, object]] = [{"tensor": _scalar(name), "why": "", **vector} for name in inside]
    criteria += [_criterion(facts, tensor) for name, tensor in outputs.items() if name not in left_out]
    for output, (tensor, operator) in facts.squashed.items():
        if output not in left_out and tensor not in (*inside, *outputs):
            inside.append(tensor)
            why = f"    # the {operator} of '{shown(output)}' hides its errors"
            criteria.append({"tensor": _scalar(tensor), "why": why, **vector})
    return {
        "criteria": "".join(render("criterion", values) for values in criteria).rstrip("\n"),
        "unjudged": ", ".join(_scalar(name) for name in outputs if name in left_out) or None,
        **_metric(facts),
    }


def _criterion(facts: _Facts, tensor: TensorInfo) -> dict[str, object]:
    """Return placeholders of the criterion's template and their values, for a limit on one output."""
    guess, parts = facts.guesses[tensor.name], facts.joined.get(tensor.name)
    text = guess.text if parts is None else f"{parts.text}, joined by a Concat"
    floats = tensor.dtype.kind == "f"
    values = {
        "output": _scalar(tensor.name),
        "guess": f"    # a guess: {text}" if text else "",
        "if_floats": floats,
        "if_vector": floats and tensor.shape not in ((), (1,)),
        "if_no_floats": not floats,
    }
    if parts is not None:
        return values | {"parts": list(parts.sizes), "parts_axis": parts.axis}
    if floats and guess.axis is not None:
        return values | {"if_classes": True, "class_axis": None if guess.axis == -1 else guess.axis}
    return values | {"doubt": guess.doubt or None}


def _metric(facts: _Facts) -> dict[str, object]:
    """Return placeholders of the spec's template and their values: for a metric of labels.

    The metric is top-1 accuracy or mAP if the outputs and labels fit it; otherwise an example in a comment.
    """
    if facts.classes and facts.loader and facts.given is not None and facts.given.labels:
        return {"class_metric": facts.loader}
    if not facts.boxes:
        return {"if_no_metric": True}
    layout = facts.joined[facts.boxes].layout
    return {
        "if_no_boxes": not facts.has_boxes,
        "box_mark": "" if facts.has_boxes else "# ",
        "box_output": _scalar(facts.boxes) if len(facts.model.outputs) > 1 else None,
        "box_layout": layout,
        "box_shape": "4 + classes, places" if layout == "yolov8" else "places, 5 + classes",
    }


def _scalar(text: str) -> str:
    """Return ``text`` as a YAML scalar, with quotes if it needs them."""
    return text if _PLAIN.fullmatch(text) and isinstance(resolve(text), str) else quoted(text)
