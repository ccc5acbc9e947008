"""``pytest --int8acc-init MODEL``: a first spec for a model, ready to run; TODO marks what was guessed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import numpy as np

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
from pytest_int8acc.init.data import Given, look
from pytest_int8acc.init.loaders import Known, count, made_up, needs, of_given
from pytest_int8acc.init.outputs import (
    Guess,
    Joined,
    before_selection,
    behind_selection,
    guesses,
    joined_outputs,
    selectors,
)
from pytest_int8acc.init.sizes import BATCHES, Range, accepted, ranges_of
from pytest_int8acc.names import shown
from pytest_int8acc.settings import SUFFIXES
from pytest_int8acc.spec.fields import NAME
from pytest_int8acc.spec.load import display
from pytest_int8acc.spec.yaml import resolve
from pytest_int8acc.tensors import TensorInfo, describe

#: Random samples of a first run, or a few more where the model fixes its batch.
SAMPLES = 64
#: Domains whose operators ONNX Runtime has.
_KNOWN = frozenset({"", "ai.onnx", "ai.onnx.ml", "com.microsoft"})
#: What quantizers put behind a model's name.
_QUANTIZED = re.compile(r"[._-](qdq|int8|quant|quantized|ptq|qat|sim)$", re.IGNORECASE)
#: Limits of floats; the first says nothing of a single number.
_FLOATS = (
    "    cosine: 0.99",
    "    sqnr_db: 20                        # noise is a tenth of the signal at most",
)
_PLAIN = re.compile(r"[A-Za-z0-9_/][A-Za-z0-9_./-]*")


def run(paths: Iterable[str | Path], stream: TextIO, data: Path | None = None) -> int:
    """Write a spec for each model, say so or why not on ``stream``, and count the models that got none.

    Args:
        paths: The models.
        stream: Gets a line for each of them.
        data: What all of them take, as ``write_spec`` says.
    """
    failed = 0
    for path in paths:
        try:
            facts, texts = _texts(Path(path), Path(path).parent, data)
            _create(texts)
        except Int8accError as error:
            failed += 1
            stream.write(f"int8acc: {error}\n")
        else:
            *_, spec = files = [shown(display(file)) for file in texts]
            wrote = " and ".join(reversed(files))
            stream.write(f"int8acc: wrote {wrote}; see to what is marked TODO, then: pytest {spec}\n")
            if facts.needs:
                stream.write(f"int8acc: {spec} does not run yet: {facts.needs}\n")
            if chosen := " and ".join(selectors(facts.model)):
                said = "judges what it chooses by" if facts.before else "compares what it chose: see there"
                stream.write(f"int8acc: the model chooses by {chosen}; {spec} {said}\n")
    return failed


def write_spec(model_path: str | Path, folder: Path | None = None, data: Path | None = None) -> Path:
    """Write a commented spec for a model, and a loader beside it where one is needed.

    Args:
        model_path: A float ONNX model, or one with Q/DQ.
        folder: Where the spec goes; by default beside the model.
        data: A folder of images or of audio, or stored arrays; None: data are made up.

    Raises:
        ModelError: The model cannot be read, has nothing to quantize, or has operators or inputs that a first
            run cannot cope with.
        DataError: The data cannot be read, or no input takes them.
        Int8accError: A file to be written is there already, or the folder cannot be written.
    """
    path = Path(model_path)
    _, texts = _texts(path, path.parent if folder is None else folder, data)
    _create(texts)
    return list(texts)[-1]


def _texts(path: Path, folder: Path, data: Path | None) -> tuple[_Facts, dict[Path, str]]:
    """What is known, and the files to be written: the loader, where there is one, before the spec."""
    spec = folder / (path.stem + SUFFIXES[0])
    model = load_model(path)
    _check(model)
    facts = _Facts.of(model, path, folder, data)
    texts = {}
    if facts.loader:
        given = facts.given and of_given(facts.known, facts.given, folder, facts.classes)
        texts[folder / facts.loader] = given or made_up(facts.known)
    texts[spec] = "".join(f"{line}\n" for line in _lines(facts))
    return facts, texts


def _create(texts: Mapping[Path, str]) -> None:
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
    stem: str
    groups: int
    quantized: bool
    """True where the model holds Q/DQ already."""
    float_file: str | None
    """The float model that one with Q/DQ was made from; None where none was found."""
    known: Known
    given: Given | None
    """The user's data."""
    guesses: Mapping[str, Guess]
    joined: Mapping[str, Joined]
    """Outputs that are judged by their parts."""
    before: tuple[str, ...]
    """What the model chooses by."""
    folder: Path

    @staticmethod
    def of(model: Model, path: Path, folder: Path, data: Path | None) -> _Facts:
        quantized = is_qdq(model)
        groups = len(read_qdq(model).groups) if quantized else len(find_groups(model).slots)
        float_path = _float_model(model, path) if quantized else None
        given = None if data is None else look(data, model)
        ranges = ranges_of(model)
        trial = accepted(model, ranges, BATCHES if given is None else BATCHES[-1:])
        return _Facts(
            model=model,
            file=seen_from(folder, path),
            stem=path.stem,
            groups=groups,
            quantized=quantized,
            float_file=None if float_path is None else seen_from(folder, float_path),
            known=Known(model, ranges, trial),
            given=given,
            guesses=guesses(model, trial.inputs | trial.outputs),
            joined=joined_outputs(model),
            before=tuple(before_selection(model)),
            folder=folder,
        )

    @property
    def loader(self) -> str:
        """The name of the loader script where one is needed, else empty."""
        if self.given is not None:
            needed = self.given.kind != "ready"
        else:
            needed = not _can_draw(self.model) or set(self.known.ranges.values()) != {Range()}
        return f"{re.sub(r'[^A-Za-z0-9_]', '_', self.stem)}_inputs.py" if needed else ""

    @property
    def classes(self) -> str:
        """The first output that seems to tell a class for each sample; empty where none does."""
        shapes = self.known.trial.outputs
        found = (
            name
            for name, guess in self.guesses.items()
            if guess.axis == -1 and len(shapes.get(name, ())) == 2
        )
        return next(found, "")

    @property
    def boxes(self) -> str:
        """The first output that seems to be one of YOLO's; empty where none does."""
        return next((name for name, found in self.joined.items() if found.layout), "")

    @property
    def has_boxes(self) -> bool:
        """Whether there are labels of such an output: boxes for each sample, as ``coco_map`` takes them."""
        file = None if self.given is None else self.given.labels.file
        if not self.boxes or file is None or file.suffix != ".npy":
            return False
        try:
            shape = np.load(file, mmap_mode="r").shape
        except (OSError, ValueError):  # told where it is read
            return False
        return len(shape) == 3 and 5 <= shape[2] <= 7

    @property
    def needs(self) -> str:
        """What must be filled in before the spec can run, in one line; empty where nothing must."""
        return needs(self.known, self.given, self.loader)


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
    if facts.needs:
        yield f"# TODO   {facts.needs}"
    yield ""
    if not re.search(NAME, facts.stem):
        yield f"name: {re.sub(r'[^A-Za-z0-9_.-]+|^[.-]+', '_', facts.stem)}"
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
    yield from _shapes(facts)
    yield ""
    yield from _selection(facts)
    yield from _criteria(facts)


def _inputs(facts: _Facts) -> Iterator[str]:
    given, model = facts.given, facts.model
    names = ", ".join(shown(tensor.name) for tensor in model.inputs)
    if given is not None and given.kind == "ready":
        yield f"inputs: {_scalar(seen_from(facts.folder, given.path))}"
    elif given is not None:
        yield f"inputs: {facts.loader}:load_data    # TODO: the preprocessing, which is guessed there"
    else:
        yield "# TODO: real data, such as an .npz with one array per input, samples first, or --int8acc-data:"
        yield f"# inputs: validation.npz               # holding {names}"
    if given is None and facts.loader:
        yield f"inputs: {facts.loader}:load_data    # made up; sizes and values are set there"
        yield "accept_blind: the inputs are made up   # TODO: take this line out when the data are real"
    elif given is None:
        size = read_layout(model.inputs).size or 1
        samples = -(-SAMPLES // size) * size  # whole batches: some outputs have no row per sample to cut
        yield f"inputs: {{random: {{samples: {samples}}}}}        # shows that it runs, not how well"
    if _one_by_one(facts):
        yield "batch: 1                               # the model refuses more rows in a run"
    if given is not None and given.labels:
        source = f"{facts.loader}:load_labels"
        if not facts.loader:
            source = _scalar(seen_from(facts.folder, given.labels.file or given.path))
        mark = "" if facts.has_boxes or (facts.classes and facts.loader) else "# "
        yield f"{mark}labels: {source}    # for a metric; TODO: see that they are told right"


def _one_by_one(facts: _Facts) -> bool:
    """Whether a model that leaves its batch open takes one row only."""
    layout, trial = read_layout(facts.model.inputs), facts.known.trial
    sizes = {trial.inputs[name][0] for name in layout.batched}
    return facts.given is None and layout.size is None and bool(trial.outputs) and sizes == {BATCHES[-1]}


def _int8(facts: _Facts) -> Iterator[str]:
    yield "int8:"
    if facts.quantized:
        yield f"  model: {_scalar(facts.file)}"
        return
    yield "  calibrate:"
    given = facts.given
    if given is not None and given.kind != "ready" and count(given) > 1:
        yield f"    data: {facts.loader}:load_calibration    # none of what is compared"
    else:
        yield "    # TODO: calibrate on data of their own, none of which is in 'inputs':"
        yield "    # data: calibration.npz"
    yield "    method: entropy                    # or minmax, percentile, mse, topk"
    yield "  # Or, in place of 'calibrate': 'scales: calibration.cache', or 'model: FILE' with Q/DQ."


def _shapes(facts: _Facts) -> Iterator[str]:
    """The profile of a model with open sizes, as a comment: the data tell it where it is not given."""
    model, sizes = facts.model, facts.known.trial.inputs
    loose = [t for t in model.inputs if any(not isinstance(dim, int) for dim in t.shape or ())]
    if not loose:
        return
    yield "# TensorRT's smallest, usual and largest shape of each input; taken from the data if left out."
    yield "# tensorrt:"
    yield "#   shapes:"
    batched = read_layout(model.inputs).batched
    for tensor in loose:
        usual = sizes[tensor.name]
        grows = tensor.name in batched and not isinstance((tensor.shape or ())[0], int)
        counts = (1, usual[0], 2 * usual[0]) if grows else (usual[:1] * 3)
        shapes = ", ".join(str([*rows, *usual[1:]]) for rows in ((n,) if usual else () for n in counts))
        yield f"#     {shown(_scalar(tensor.name))}: [{shapes}]"


def _selection(facts: _Facts) -> Iterator[str]:
    """What is done where the graph chooses among values."""
    found = selectors(facts.model)
    if not found:
        return
    yield f"# The model chooses by {' and '.join(found)}: behind that, rounding changes number or order."
    if facts.before:
        yield "# So the tensors before it are judged, and what is behind it is not."
    else:
        yield "# TODO: export it without, and write a spec for what is left: all boxes and scores."


def _criteria(facts: _Facts) -> Iterator[str]:
    """Limits of all that can be compared: what the model chooses by in place of what it chose."""
    own = {tensor.name: tensor for tensor in facts.model.outputs}
    left_out = own.keys() & behind_selection(facts.model) if facts.before else set()
    yield "# TODO: set these to what your application needs."
    yield "criteria:"
    for name in facts.before:
        if name not in own:
            yield f"  - tensor: {_scalar(name)}"
            yield from _FLOATS
    for name, tensor in own.items():
        if name not in left_out:
            yield from _criterion(tensor, facts.guesses[name], facts.joined.get(name))
    yield from _metric(facts)
    if left_out:
        yield f"unjudged: [{', '.join(_scalar(name) for name in own if name in left_out)}]"


def _criterion(tensor: TensorInfo, guess: Guess, joined: Joined | None) -> Iterator[str]:
    if joined is not None:
        yield f"  - output: {_scalar(tensor.name)}    # a guess: {joined.text}, joined by a Concat"
        yield from _FLOATS
        yield f"    parts: {list(joined.sizes)}"
        yield f"    axis: {joined.axis}                            # of the parts; each must keep the limits"
        return
    yield f"  - output: {_scalar(tensor.name)}" + (f"    # a guess: {guess.text}" if guess.text else "")
    if tensor.dtype.kind != "f":
        yield "    agreement: 0.99                    # at least 99 % of its elements are the baseline's"
        return
    yield from _FLOATS[tensor.shape in ((), (1,)) :]
    if guess.axis is not None:
        if guess.axis != -1:
            yield f"    axis: {guess.axis}"
        yield "    top1_agreement: 0.99               # at most 1 % of the samples change their class"
    elif guess.doubt:
        yield f"    # top1_agreement: 0.99             # if these are classes; {guess.doubt}"


def _metric(facts: _Facts) -> Iterator[str]:
    if facts.classes and facts.loader and facts.given is not None and facts.given.labels:
        yield f"  - metric: {facts.loader}:top1"
        yield "    max_drop: 0.01                     # at most 1 % fewer samples than the baseline's"
        return
    if facts.boxes:
        yield from _mean_average_precision(facts)
        return
    yield "  # What your users notice, by a function of your own:"
    yield "  # - metric: metrics.py:top1"
    yield "  #   max_drop: 0.005"


def _mean_average_precision(facts: _Facts) -> Iterator[str]:
    """COCO's metric of an output like YOLO's; as a comment where there are no labels yet."""
    joined, mark = facts.joined[facts.boxes], "" if facts.has_boxes else "# "
    if mark:
        yield "  # What your users notice; 'labels' are boxes [samples, boxes, 5]: x1, y1, x2, y2, class:"
    shape = "4 + classes, places" if joined.layout == "yolov8" else "places, 5 + classes"
    yield f"  {mark}- metric: coco_map"
    if len(facts.model.outputs) > 1:
        yield f"  {mark}  output: {_scalar(facts.boxes)}"
    yield f"  {mark}  decode: {joined.layout}                     # TODO: [samples, {shape}], before NMS"
    yield f"  {mark}  max_drop: 0.01"


def _scalar(text: str) -> str:
    """``text`` in YAML, quoted where it must be."""
    return text if _PLAIN.fullmatch(text) and isinstance(resolve(text), str) else quoted(text)
