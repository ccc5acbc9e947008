"""``pytest --int8acc-init MODEL``: writes a first spec for a model, ready to run; TODO marks each guess."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TextIO, get_args

import numpy as np

from pytest_int8acc.case.plan_file import quoted
from pytest_int8acc.data import RandomSource, open_dataset
from pytest_int8acc.data.layout import read_layout
from pytest_int8acc.errors import DataError, Int8accError, ModelError
from pytest_int8acc.files import create_file, seen_from
from pytest_int8acc.graph.index import all_nodes
from pytest_int8acc.graph.layout import find_groups
from pytest_int8acc.graph.load import load_model
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.qdq import is_qdq, read_qdq
from pytest_int8acc.init.data import look
from pytest_int8acc.init.loaders import Known, count, made_up, needs, of_given
from pytest_int8acc.init.outputs import before_selection, behind_selection, guesses, joined_outputs, selectors
from pytest_int8acc.init.sizes import BATCHES, Range, accepted, ranges_of
from pytest_int8acc.init.templates import render
from pytest_int8acc.names import shown
from pytest_int8acc.settings import SUFFIXES
from pytest_int8acc.spec.fields import NAME
from pytest_int8acc.spec.int8 import CalibrationMethod
from pytest_int8acc.spec.load import display
from pytest_int8acc.spec.yaml import resolve
from pytest_int8acc.tensors import TensorInfo, describe

#: Minimum count of random samples in a first spec; rounded up where the model fixes its batch size.
SAMPLES = 64
#: Domains of the operators that ONNX Runtime implements.
_KNOWN_DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml", "com.microsoft"})
#: Suffixes that quantizers append to the name of a model.
_QUANTIZED = re.compile(r"[._-](qdq|int8|quant|quantized|ptq|qat|sim)$", re.IGNORECASE)
_PLAIN = re.compile(r"[A-Za-z0-9_/][A-Za-z0-9_./-]*")


def run(paths: Iterable[str | Path], stream: TextIO, data: Path | None = None) -> int:
    """Write a spec for each model; return how many models got none.

    Args:
        paths: The models.
        stream: Gets a line for each model: the files that were written, or an error.
        data: The data for all of them, as for ``write_spec``.
    """
    failed = 0
    for path in paths:
        try:
            facts = _Facts(Path(path), Path(path).parent, data)
            texts = _texts(facts)
            _create(texts)
        except Int8accError as error:
            failed += 1
            stream.write(f"int8acc: {error}\n")
            continue
        *_, spec = files = [shown(display(file)) for file in texts]
        wrote = " and ".join(reversed(files))
        stream.write(f"int8acc: wrote {wrote}; edit the lines marked TODO, then: pytest {spec}\n")
        if facts.needs:
            stream.write(f"int8acc: {spec} does not run yet: {facts.needs}\n")
        if chosen := " and ".join(selectors(facts.model)):
            said = "judges what it chooses by" if facts.before else "compares what it chose: see there"
            stream.write(f"int8acc: the model chooses by {chosen}; {spec} {said}\n")
    return failed


def write_spec(model_path: str | Path, folder: Path | None = None, data: Path | None = None) -> Path:
    """Write a commented spec for a model, and a loader script where one is needed; return the spec's path.

    Args:
        model_path: A float ONNX model, or one with Q/DQ.
        folder: The folder of the spec; None: beside the model.
        data: A folder of images or of audio, or stored arrays; None: the inputs are random.

    Raises:
        ModelError: The model cannot be read, has nothing to quantize, or has operators or inputs that a first
            run cannot support.
        DataError: The data cannot be read, or fit no input.
        Int8accError: A file exists already, or the folder cannot be written.
    """
    path = Path(model_path)
    texts = _texts(_Facts(path, path.parent if folder is None else folder, data))
    _create(texts)
    return list(texts)[-1]


def _create(texts: Mapping[Path, str]) -> None:
    for file in texts:
        if file.exists():
            raise Int8accError(
                f"{display(file)}: is there already and is left as it is; move it away to have a new one"
            )
    for file, text in texts.items():
        try:
            create_file(file, text.encode())  # never overwrites a file that another process created since
        except OSError as error:
            raise Int8accError(f"{display(file)}: cannot be written: {error.strerror or error}") from error


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
    """All that is found out about a model and the user's data."""

    def __init__(self, path: Path, folder: Path, data: Path | None) -> None:
        self.path, self.folder = path, folder
        self.model = model = load_model(path)
        _check(model)
        self.quantized = is_qdq(model)
        self.layers = len(read_qdq(model).groups) if self.quantized else len(find_groups(model).slots)
        self.float_path = _float_model(model, path) if self.quantized else path
        self.given = None if data is None else look(data, model)
        ranges = ranges_of(model)
        trial = accepted(model, ranges, BATCHES if self.given is None else BATCHES[-1:])
        self.known = Known(model, ranges, trial)
        self.guesses = guesses(model, trial.inputs | trial.outputs)
        self.joined = joined_outputs(model)
        self.before = before_selection(model)
        """The tensors that the model chooses by, which are judged in place of what it chose."""

    @cached_property
    def loader(self) -> str:
        """The name of the loader script; empty where none is needed."""
        if self.given is not None:
            needed = self.given.kind != "ready"
        else:
            needed = not _can_draw(self.model) or set(self.known.ranges.values()) != {Range()}
        return f"{re.sub(r'[^A-Za-z0-9_]', '_', self.path.stem)}_inputs.py" if needed else ""

    @cached_property
    def classes(self) -> str:
        """The name of the first output that seems to be scores of classes, one row per sample; or empty."""
        shapes = self.known.trial.outputs
        for name, guess in self.guesses.items():
            if guess.axis == -1 and len(shapes.get(name, ())) == 2:
                return name
        return ""

    @property
    def boxes(self) -> str:
        """The name of the first output with a layout of YOLO's; empty where there is none."""
        return next((name for name, parts in self.joined.items() if parts.layout), "")

    @cached_property
    def has_boxes(self) -> bool:
        """Whether the user's labels are boxes for each sample, as ``coco_map`` takes them."""
        file = None if self.given is None else self.given.labels.file
        if not self.boxes or file is None or file.suffix != ".npy":
            return False
        try:
            shape = np.load(file, mmap_mode="r").shape
        except (OSError, ValueError):  # the run of the spec reports the error
            return False
        return len(shape) == 3 and 5 <= shape[2] <= 7

    @cached_property
    def needs(self) -> str:
        """What the user must fill in before the spec can run, in one line; empty where nothing is missing."""
        return needs(self.known, self.given, self.loader)

    def one_row_per_run(self) -> bool:
        """Return whether a model that leaves its batch size open refused more than one row."""
        layout, trial = read_layout(self.model.inputs), self.known.trial
        sizes = {trial.inputs[name][0] for name in layout.batched}
        return self.given is None and layout.size is None and bool(trial.outputs) and sizes == {BATCHES[-1]}


def _can_draw(model: Model) -> bool:
    try:
        open_dataset(RandomSource(SAMPLES), model.inputs, base=Path())
    except DataError:
        return False
    return True


def _float_model(model: Model, path: Path) -> Path | None:
    """Return the file of the float model beside a Q/DQ model, found by names, inputs and outputs; or None."""
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


def _texts(facts: _Facts) -> dict[Path, str]:
    """Return the files to write and their contents: the loader script, if any, and then the spec."""
    texts = {}
    if facts.loader:
        given = facts.given and of_given(facts.known, facts.given, facts.folder, facts.classes)
        texts[facts.folder / facts.loader] = given or made_up(facts.known)
    spec = render("spec", _head(facts) | _inputs(facts) | _shapes(facts) | _criteria(facts))
    texts[facts.folder / (facts.path.stem + SUFFIXES[0])] = spec
    return texts


def _when(condition: object, text: str = "") -> str | None:
    """Return ``text`` where the condition holds; None, which drops the line of a template, otherwise."""
    return text if condition else None


def _head(facts: _Facts) -> dict[str, str | None]:
    """Return the values of the template for the model, the INT8 form and the selection."""
    stem, given = facts.path.stem, facts.given
    file, count_of_layers = seen_from(facts.folder, facts.path), facts.layers
    layers = "1 layer" if count_of_layers == 1 else f"{count_of_layers} layers"
    float_file = "FLOAT_MODEL.onnx"
    if facts.float_path is not None:
        float_file = _scalar(seen_from(facts.folder, facts.float_path))
    has_calibration = given is not None and given.kind != "ready" and count(given) > 1
    selection = selectors(facts.model)
    return {
        "file": shown(file),
        "takes": shown(describe(facts.model.inputs)),
        "gives": shown(describe(facts.model.outputs)),
        "layers": f"{layers} {'with Q/DQ' if facts.quantized else 'that can be quantized'}",
        "needs": facts.needs or None,
        "name": _when(not re.search(NAME, stem), re.sub(r"[^A-Za-z0-9_.-]+|^[.-]+", "_", stem)),
        "if_quantized": _when(facts.quantized),
        "model": float_file,
        "quantized_model": _when(facts.quantized, _scalar(file)),
        "if_float": _when(not facts.quantized),
        "other_methods": ", ".join(name for name in get_args(CalibrationMethod) if name != "entropy"),
        "data_calibration": _when(not facts.quantized and has_calibration, facts.loader),
        "if_no_calibration": _when(not facts.quantized and not has_calibration),
        "selectors": _when(selection, " and ".join(selection)),
        "if_judged_before": _when(selection and facts.before),
        "if_judged_behind": _when(selection and not facts.before),
    }


def _inputs(facts: _Facts) -> dict[str, str | None]:
    """Return the values of the template for the inputs, the batch and the labels."""
    given, loader, model = facts.given, facts.loader, facts.model
    ready, labels = None, None
    if given is not None and given.kind == "ready":
        ready = _scalar(seen_from(facts.folder, given.path))
    if given is not None and given.labels:
        source = f"{loader}:load_labels"
        if not loader:
            source = _scalar(seen_from(facts.folder, given.labels.file or given.path))
        labels = (
            f"labels: {source}" if facts.has_boxes or (facts.classes and loader) else f"# labels: {source}"
        )
    batch = read_layout(model.inputs).size or 1
    whole_batches = -(-SAMPLES // batch) * batch  # outputs without a row per sample cannot be cut
    return {
        "ready_data": ready,
        "data_loader": _when(given is not None and ready is None, loader),
        "if_no_data": _when(given is None),
        "input_names": ", ".join(shown(tensor.name) for tensor in model.inputs),
        "random_loader": _when(given is None and loader, loader),
        "if_random_loader": _when(given is None and loader),
        "random_samples": _when(given is None and not loader, str(whole_batches)),
        "if_one_row": _when(facts.one_row_per_run()),
        "labels": labels,
    }


def _shapes(facts: _Facts) -> dict[str, str | None]:
    """Return the values of the template for TensorRT's profile, which is a comment."""
    batched, lines = read_layout(facts.model.inputs).batched, []
    for tensor in facts.model.inputs:
        if all(isinstance(dim, int) for dim in tensor.shape or ()):
            continue
        first, *rest = facts.known.trial.inputs[tensor.name]
        grows = tensor.name in batched and not isinstance((tensor.shape or ())[0], int)
        profile = [[size, *rest] for size in ((1, first, 2 * first) if grows else (first,) * 3)]
        lines.append(f"#     {shown(_scalar(tensor.name))}: {profile}")
    return {"if_shapes": _when(lines), "shapes": _when(lines, "\n".join(lines))}


def _criteria(facts: _Facts) -> dict[str, str | None]:
    """Return the values of the template for the criteria: a limit on each output that can be compared.

    Outputs behind a selection are replaced by the tensors that the model chooses by.
    """
    outputs = {tensor.name: tensor for tensor in facts.model.outputs}
    left_out = outputs.keys() & behind_selection(facts.model) if facts.before else set()
    values: list[dict[str, str | None]] = [
        {"tensor": _scalar(name), "if_floats": "", "if_vector": ""}
        for name in facts.before
        if name not in outputs
    ]
    values += [_criterion(facts, tensor) for name, tensor in outputs.items() if name not in left_out]
    unjudged = ", ".join(_scalar(name) for name in outputs if name in left_out)
    return {
        "criteria": "".join(render("criterion", each) for each in values).rstrip("\n"),
        "unjudged": unjudged or None,
        **_metric(facts),
    }


def _criterion(facts: _Facts, tensor: TensorInfo) -> dict[str, str | None]:
    """Return the values of the criterion's template for one output."""
    guess, parts = facts.guesses[tensor.name], facts.joined.get(tensor.name)
    text = guess.text if parts is None else f"{parts.text}, joined by a Concat"
    floats = tensor.dtype.kind == "f"
    values = {
        "output": _scalar(tensor.name),
        "guess": f"    # a guess: {text}" if text else "",
        "if_floats": _when(floats),
        "if_vector": _when(floats and tensor.shape not in ((), (1,))),
        "if_no_floats": _when(not floats),
    }
    if parts is not None:
        return values | {"parts": str(list(parts.sizes)), "parts_axis": str(parts.axis)}
    if floats and guess.axis is not None:
        return values | {"if_classes": "", "class_axis": _when(guess.axis != -1, str(guess.axis))}
    return values | {"doubt": _when(floats and guess.doubt, guess.doubt)}


def _metric(facts: _Facts) -> dict[str, str | None]:
    """Return the values of the template for a metric: top-1, COCO's mAP, or the example of a user's own."""
    labelled = facts.given is not None and bool(facts.given.labels)
    if facts.classes and facts.loader and labelled:
        return {"class_metric": facts.loader, "if_class_metric": ""}
    if not facts.boxes:
        return {"if_no_metric": ""}
    layout = facts.joined[facts.boxes].layout
    return {
        "if_no_boxes": _when(not facts.has_boxes),
        "box_mark": "" if facts.has_boxes else "# ",
        "box_output": _when(len(facts.model.outputs) > 1, _scalar(facts.boxes)),
        "box_layout": layout,
        "box_shape": "4 + classes, places" if layout == "yolov8" else "places, 5 + classes",
    }


def _scalar(text: str) -> str:
    """Return ``text`` in YAML, quoted where it must be."""
    return text if _PLAIN.fullmatch(text) and isinstance(resolve(text), str) else quoted(text)
