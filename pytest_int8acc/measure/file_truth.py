"""Compares what stands in for a user's model with the user's file as ONNX Runtime runs it, on one sample.

A form whose operators are those of the file, whatever it renamed or added, is not run for that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path

import numpy as np
import onnx

from pytest_int8acc.case.forms import Form, Int8Form, ModelForm
from pytest_int8acc.data import Dataset
from pytest_int8acc.engines.onnxruntime import Sessions
from pytest_int8acc.errors import EngineError, ModelError, listed
from pytest_int8acc.graph.beside import giving
from pytest_int8acc.graph.load import LEAST_OPSET
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.plan import apply
from pytest_int8acc.graph.same import Computations, part_between, unrounded
from pytest_int8acc.graph.types import computes_in_half, value_types
from pytest_int8acc.spec.models import Case
from pytest_int8acc.tensors import Array, Feed

#: The root mean square of differences that is rounding, as a part of the values' own, by bytes of a number.
#: Other kernels, and constants that are worked into one another, change FP32 results by 1e-7 to 1e-5.
_MAX_RMS_PART = {2: 2e-2, 4: 1e-4, 8: 1e-4}
#: Single elements may be off by this many times as much, as a part of the largest.
_MAX_ELEMENT_FACTOR = 10
#: Values this small in place of zeros are rounding.
_MAX_IN_PLACE_OF_0 = 1e-7
_RANDOM = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"}
)


class FileTruth:
    """One file of a case and the forms that stand in for its model.

    Attributes:
        inputs: The data of which one sample is taken.
        notes: What could not be compared, and why.
    """

    def __init__(
        self,
        file: Model,
        inputs: Dataset,
        sessions: Sessions,
        *,
        notes: list[str] | None = None,
        made: bool = False,
    ) -> None:
        """Keep what is compared with.

        Args:
            file: The model as it stands in the file of its name.
            inputs: Data for it.
            sessions: Where it runs.
            notes: A list that notes are added to.
            made: Whether ``file`` was made of files and is in none itself.
        """
        self.inputs = inputs
        self.notes: list[str] = [] if notes is None else notes
        self._file, self._sessions, self._made = file, sessions, made
        self._computations = Computations()
        self._known = [self._computations.of(file)]
        """Numbers of tensors of models that compute what the file does, the file's own first."""

    def check(self, model: Model, run: Callable[[Feed], Feed] | None = None) -> None:
        """Compare a form in FP32, or in the types of the file, with the file.

        Args:
            model: The form; its inputs and outputs are those of the file.
            run: Runs the form, if an engine of it is open already.

        Raises:
            ModelError: It computes something else; names the first tensor that differs.
        """
        numbers = self._computations.of(model)
        if self._is_known(numbers):
            return
        if self._expected is not None:
            self._compare(model, self._expected, run or self._sessions.plain(model))
        self._known.append(numbers)

    def _is_known(self, numbers: Mapping[str, int]) -> bool:
        """Whether the outputs are computed as in the file, or in a model that was compared with it."""
        outputs = [value.name for value in self._file.graph.output]
        return any(all(known[n] == numbers.get(n) for n in outputs) for known in self._known)

    def check_form(self, form: Form, exact: Model, model: Model | None = None) -> None:
        """Compare a form in INT8, FP8, FP16 or BF16 with the file, its rounding taken away.

        Args:
            form: Any; one that is built by TensorRT itself is left alone.
            exact: What it computes but for rounding, with the names of its nodes.
            model: What is deployed of the form, where that is another than its own model.

        Raises:
            EngineError: It computes something else; as ``check`` says it.
        """
        if not isinstance(form, ModelForm) or self._computes_in_half:
            return
        model, references = model or form.model, (form.wide, exact)
        if self._is_known(self._computations.of(model, references)):
            return
        try:
            self.check(unrounded(model, references))
        except ModelError as error:
            raise EngineError(str(error)) from error

    @cached_property
    def _computes_in_half(self) -> bool:
        return computes_in_half(self._file, value_types(self._file))

    @cached_property
    def _feed(self) -> Feed:
        return next(self.inputs.first(1).batches()).feed

    @cached_property
    def _expected(self) -> Feed | None:
        """The file's outputs; None where ONNX Runtime cannot run it."""
        try:
            return self._sessions.plain(self._file if self._made else Path(self._file.name))(self._feed)
        except EngineError as error:
            self.notes.append(f"not compared with the file as it is: {error}")
            return None

    def _compare(self, model: Model, expected: Feed, run: Callable[[Feed], Feed]) -> None:
        if not _differing(expected, run(self._feed)):
            return
        found = self._sessions.plain(model)(self._feed)  # with the kernels that the file was run with
        if off := _differing(expected, found):
            self._explain(model, off)

    def _explain(self, model: Model, off: Mapping[str, str]) -> None:
        """Raise ModelError for the first tensor that the same inputs make another; leave a note if none is.

        Random numbers differ from run to run. A last bit that differs can also grow on its way, by a TopK or
        Round that jumps: then each part of the file, run on what the form holds before it, gives what the
        form holds behind it.
        """
        ours, theirs = self._values(model), self._values(self._file)
        random = [_called(node) for node in self._file.graph.node if _is_random(node)]
        grown: list[str] = []
        made = [(node, name) for node in self._file.graph.node for name in node.output]
        for node, name in made:
            if name not in ours or name not in theirs or not _difference(theirs[name], ours[name]):
                continue
            alone = self._alone(node, name, ours)
            if alone is None:
                continue
            if text := _difference(alone, ours[name]):
                raise ModelError(self._message(node, name, text, off))
            grown.append(_called(node))
        outputs = listed(list(off))
        if random:
            note = f"{', '.join(random[:3])} draws random numbers: {outputs} cannot be compared with the file"
        elif grown:
            note = f"{outputs} differs from the file by rounding that grows in {grown[0]}: no node is another"
        else:
            raise ModelError(self._message(None, next(iter(off)), next(iter(off.values())), off))
        self.notes.append(note)

    def _alone(self, node: onnx.NodeProto, name: str, ours: Feed) -> Array | None:
        """What the file's nodes make of what the form holds before ``name``; None if they are random."""
        given = {tensor: array for tensor, array in ours.items() if tensor not in node.output}
        part = part_between(self._file, name, given)
        if part is None or any(_is_random(inner) for inner in part.graph.node):
            return None
        return self._sessions.plain(part)({value.name: given[value.name] for value in part.inputs})[name]

    def _message(self, node: onnx.NodeProto | None, tensor: str, text: str, off: Mapping[str, str]) -> str:
        made = "" if node is None else f" of {_called(node)}"
        remedy = "this is a fault of pytest-int8acc: please report it with the model"
        if self._file.opset < LEAST_OPSET:
            remedy = f"export the model with opset {LEAST_OPSET} or later, which needs no conversion"
        return (
            f"{self._file.name}: what runs in place of this file computes something else than the file does: "
            f"in ONNX Runtime, on one sample, '{tensor}'{made} is {text}. It is the first tensor that "
            f"differs; {listed(list(off))} with it. No verdict would be about your model: {remedy}"
        )

    def _values(self, model: Model) -> Feed:
        """What all tensors of the main graph hold that ONNX Runtime can give, inputs among them."""
        types, own = value_types(model), {value.name for value in model.graph.output}
        made = {name for node in model.graph.node for name in node.output if name in types}
        every = giving(model, {name: types[name] for name in sorted(made - own)})
        return {**self._feed, **self._sessions.plain(every)(self._feed)}


def check_baseline(truth: FileTruth, model: Model, form: Form, inputs: Dataset, sessions: Sessions) -> None:
    """Compare a baseline with its file: one of its own, or that of the float ``model`` that it is made of.

    Raises:
        ModelError: It computes something else.
    """
    if form.model is model:
        return
    if form.model.file is None:
        truth.check_form(form, model)
    elif isinstance(form, ModelForm):
        FileTruth(form.model.file, inputs, sessions, notes=truth.notes).check(form.model)


def candidate_truth(
    case: Case, truth: FileTruth, int8: Int8Form | None, form: Form, sessions: Sessions
) -> FileTruth:
    """Compare a candidate with its file; what other forms of its network are to be compared with.

    A float model that was quantized here is compared with its own file, rounding taken away. A Q/DQ model
    is compared with its file as it is, and then stands for the float model: training may have changed it.

    Raises:
        ModelError: It computes something else.
    """
    if int8 is None or not isinstance(form, ModelForm):
        return truth
    if int8.file is not None:
        own = FileTruth(int8.file, truth.inputs, sessions, notes=truth.notes)
        if not case.source.exclude:
            own.check(apply(int8.every))
        base = unrounded(int8.every.model, ())
        truth = FileTruth(base, truth.inputs, sessions, notes=truth.notes, made=True)
    truth.check_form(form, int8.unrounded())
    return truth


def _called(node: onnx.NodeProto) -> str:
    return f"{node.op_type} '{node.name or node.output[0]}'"


def _is_random(node: onnx.NodeProto) -> bool:
    training = node.op_type == "Dropout" and len(node.input) > 2
    return training or node.op_type in _RANDOM


def _differing(expected: Feed, found: Feed) -> dict[str, str]:
    """Outputs that differ beyond rounding, and how."""
    texts = {name: _difference(array, found[name]) for name, array in expected.items()}
    return {name: text for name, text in texts.items() if text}


def _difference(expected: Array, found: Array) -> str:
    """How ``found`` differs from ``expected`` beyond rounding; empty where it does not."""
    if expected.shape != found.shape or expected.dtype != found.dtype:
        return f"{found.dtype} of shape {list(found.shape)}, not {expected.dtype} of {list(expected.shape)}"
    if expected.dtype.kind != "f":
        count = int((expected != found).sum())
        return f"another in {count} of {expected.size} elements" if count else ""
    finite = np.isfinite(expected)
    same = np.array_equal(expected[~finite], found[~finite], equal_nan=True)
    if not same or not np.isfinite(found[finite]).all():
        return "not finite in other places"
    one, other = expected[finite].astype(np.float64), found[finite].astype(np.float64)
    error = np.abs(one - other)
    if not error.any() or (not one.any() and error.max() <= _MAX_IN_PLACE_OF_0):
        return ""
    limit, size = _MAX_RMS_PART[expected.dtype.itemsize], float(np.sqrt(np.mean(one**2)))
    off = float(np.sqrt(np.mean(error**2)))
    if off <= limit * size and error.max() <= _MAX_ELEMENT_FACTOR * limit * np.abs(one).max():
        return ""
    return f"off by {off / size:.2g} times its size" if size else f"{off:.3g} in place of 0"
