"""Checks in ONNX Runtime, on one sample, that rewritten models compute the same as the user's model file.

A model with the same operators as the file is not run, even if its nodes have other names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path

import numpy as np
import onnx

from pytest_int8acc.case.forms import Int8Form
from pytest_int8acc.data import Dataset
from pytest_int8acc.errors import EngineError, ModelError, listed
from pytest_int8acc.graph.interface import with_interface_of
from pytest_int8acc.graph.model import Model, giving, put_constant
from pytest_int8acc.graph.opsets import LEAST_OPSET
from pytest_int8acc.graph.plan import apply
from pytest_int8acc.graph.same import Computations, unrounded
from pytest_int8acc.graph.types import computes_in_half, inner_types, value_types
from pytest_int8acc.runtime.forms import Form, ModelForm
from pytest_int8acc.runtime.onnxruntime import Sessions
from pytest_int8acc.spec.models import Case
from pytest_int8acc.tensors import Array, Feed

#: Key: bytes per number. Value: maximum relative error that counts as rounding, as a ratio of root mean
#: squares. Other kernels and folded constants change FP32 results by 1e-7 to 1e-5.
_MAX_RMS_RATIO = {2: 2e-2, 4: 1e-4, 8: 1e-4}
#: The maximum error of one element, relative to the tensor's greatest value, is this factor times
#: ``_MAX_RMS_RATIO``.
_MAX_ELEMENT_FACTOR = 10
#: If all values of a tensor are 0 in the user's model, values of up to this magnitude in the rewritten model
#: count as rounding.
_MAX_IN_PLACE_OF_0 = 1e-7
#: Key: bytes per number. Value: maximum relative perturbation of inputs and weights, a few units in the last
#: place.
_PERTURBATION = {2: 2e-3, 4: 2e-6, 8: 2e-6}
#: Number of runs of the user's model with perturbed inputs and weights. The runs find nodes like TopK that
#: choose between nearly equal values. One run would miss half of these nodes.
_PERTURBED_RUNS = 8


class FileTruth:
    """Compares models with the user's model file that they replace.

    Attributes:
        inputs: The data. Models run on the first sample.
        notes: A note on each comparison that was not possible.
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
        """Keep the arguments. Nothing is compared yet.

        Args:
            file: The user's model, unchanged.
            inputs: Data for the model.
            sessions: Opens models in ONNX Runtime.
            notes: The list to which notes are added; None makes a new list.
            made: Whether ``file`` was derived from a model file, so that error messages cannot name a file.
        """
        self.inputs = inputs
        self.notes: list[str] = [] if notes is None else notes
        self._file, self._sessions, self._made = file, sessions, made
        self._computations = Computations()
        self._known = [self._computations.of(file)]
        """One mapping for the user's file, and one for each model that computes the same. A mapping has a
        number for each tensor. Tensors that are computed in the same way have the same number."""

    def check(self, model: Model) -> None:
        """Compare a model in FP32, or in the types of the user's file, with that file.

        Args:
            model: The model. Its tensors have the names of the file's tensors.

        Raises:
            ModelError: The model computes something else. The message names the first tensor that differs.
        """
        fault = self._fault(model, inside=True)
        if fault:
            raise ModelError(fault)

    def check_form(self, form: Form, exact: Model, model: Model | None = None) -> None:
        """Compare a model in INT8, FP8, FP16 or BF16, but without its rounding, with the user's file.

        Args:
            form: The model with its description. Engines and models that TensorRT quantizes are not compared.
            exact: The same model without rounding to the low format. Its nodes have the same names.
            model: The model that is deployed, if it is not the model of ``form``.

        Raises:
            EngineError: The model computes something else. The message names the first tensor that differs.
        """
        if not isinstance(form, ModelForm):
            return
        model, references = model or form.model, (form.wide, exact)
        truth = self._in_fp32 or self
        if truth._is_known(truth._computations.of(model, references)):
            return
        # Only outputs are compared, because a plan may move ranges between tensors inside the model.
        fault = truth._fault(unrounded(model, references), inside=False)
        if fault:
            raise EngineError(fault)

    @cached_property
    def _in_fp32(self) -> FileTruth | None:
        """Compares models with an FP32 copy of the user's file; None unless the file computes in 16 bits."""
        if not computes_in_half(self._file, value_types(self._file)):
            return None
        file = unrounded(self._file, ())
        return FileTruth(file, self.inputs, self._sessions, notes=self.notes, made=True)

    def _is_known(self, numbers: Mapping[str, int]) -> bool:
        """Whether the outputs are computed as in the user's file, or as in a model that was found equal.

        ``numbers`` has a number for each tensor of the model; see ``Computations.of``.
        """
        outputs = [value.name for value in self._file.graph.output]
        return any(all(known[n] == numbers.get(n) for n in outputs) for known in self._known)

    def _fault(self, model: Model, *, inside: bool) -> str:
        """A message on how ``model`` differs from the user's file.

        The message is empty if the model computes the same, or cannot be run.

        Args:
            model: A model with the inputs and outputs of the user's file.
            inside: Whether tensors inside the model are compared, too.
        """
        numbers = self._computations.of(model)
        if self._is_known(numbers):
            return ""
        try:
            off = _differing(self._expected, self._run(model))
            if off:
                return self._explained(model, off, inside=inside)
        except (EngineError, ModelError) as error:
            self.notes.append(f"not compared with the file as ONNX Runtime runs it: {error}")
            return ""
        self._known.append(numbers)
        return ""

    @cached_property
    def _feed(self) -> Feed:
        return next(self.inputs.first(1).batches()).feed

    @cached_property
    def _expected(self) -> Feed:
        """The outputs of the user's file; raises EngineError if ONNX Runtime cannot run it."""
        if self._made:
            return self._run(self._file)
        return self._sessions.plain(Path(self._file.name))(self._feed)

    def _opened(self, model: Model) -> Callable[[Feed], Feed]:
        """A function that runs a model. It converts the inputs to the types that the model takes."""
        run, inputs = self._sessions.plain(model), model.inputs
        return lambda feed: run({i.name: feed[i.name].astype(i.dtype) for i in inputs})

    def _run(self, model: Model) -> Feed:
        return self._opened(model)(self._feed)

    def _explained(self, model: Model, off: Mapping[str, str], *, inside: bool) -> str:
        """The message for the outputs ``off``, which differ from those of the user's file.

        The message is empty, and a note is added, if the same outputs of the user's file also change from run
        to run or after tiny perturbations. Then these outputs cannot be compared.
        """
        theirs, ours = (self._run(giving(each, inner_types(each))) for each in (self._file, model))
        unsteady = self._unsteady
        made = {name: node for node in self._file.graph.node for name in node.output if name in theirs}
        if inside or not unsteady.issuperset(off):
            for name, node in made.items():
                text = _difference(theirs[name], ours[name]) if name in ours else ""
                if text and name not in unsteady:
                    return self._message(f"'{name}' of {_called(node)}", text, off)
        if not unsteady.issuperset(off):
            return self._message(f"'{next(iter(off))}'", next(iter(off.values())), off)
        first = next((_called(node) for name, node in made.items() if name in unsteady), "the graph")
        self.notes.append(
            f"{listed(list(off))} cannot be compared with the file: {first} gives other values from run to "
            "run, or where its inputs change by a rounding error"
        )
        return ""

    @cached_property
    def _unsteady(self) -> set[str]:
        """Tensors that differ from run to run, or after tiny perturbations of inputs and weights.

        They hold random numbers, or results of operators that amplify the last bit, like TopK or Round.
        """
        every = giving(self._file, inner_types(self._file))
        run = self._opened(every)  # a new session would draw the same random numbers again
        values = run(self._feed)
        found = set(_differing(values, run(self._feed)))
        rng = np.random.default_rng(0)
        for _ in range(_PERTURBED_RUNS):
            feed = {name: _perturbed(array, rng) for name, array in self._feed.items()}
            found.update(_differing(values, self._opened(_with_perturbed_weights(every, rng))(feed)))
        return found

    def _message(self, tensor: str, text: str, off: Mapping[str, str]) -> str:
        remedy = "this is a fault of pytest-int8acc: please report it with the model"
        if self._file.opset < LEAST_OPSET:
            remedy = f"export the model with opset {LEAST_OPSET} or later, which needs no conversion"
        return (
            f"{self._file.name}: what runs in place of this file computes something else than the file does: "
            f"in ONNX Runtime, on one sample, {tensor} is {text}. It is the first tensor that "
            f"differs; {listed(list(off))} with it. No verdict would be about your model: {remedy}"
        )


def check_baseline(truth: FileTruth, model: Model, form: Form, inputs: Dataset, sessions: Sessions) -> None:
    """Check that the baseline computes what a file computes when ONNX Runtime runs that file unchanged.

    The file is the one that the spec names for the baseline. If it names none, it is the file of ``model``.

    Raises:
        ModelError: The baseline computes something else than the file.
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
    """Compare a candidate with its model file, and return a ``FileTruth`` for later candidates.

    A float model that was quantized by this plugin is compared, without its rounding, with its own file. A
    Q/DQ model is compared, with its rounding, with its own file. Later candidates are then compared with the
    Q/DQ model without rounding. They are not compared with the float model, because training may have changed
    weights.

    Raises:
        ModelError: The candidate computes something else than its file.
    """
    if int8 is None or not isinstance(form, ModelForm):
        return truth
    if int8.file is not None:
        file = with_interface_of(int8.file, int8.every.model)
        own = FileTruth(file, truth.inputs, sessions, notes=truth.notes)
        if not case.source.exclude:
            own.check(apply(int8.every))
        base = unrounded(int8.every.model, ())
        truth = FileTruth(base, truth.inputs, sessions, notes=truth.notes, made=True)
    truth.check_form(form, int8.unrounded())
    return truth


def _called(node: onnx.NodeProto) -> str:
    return f"{node.op_type} '{node.name or node.output[0]}'"


def _with_perturbed_weights(model: Model, rng: np.random.Generator) -> Model:
    """The model with perturbed weights. Vectors and scalars are not perturbed, because they may be sizes."""
    editor, constants = model.edit(), model.constants()
    for tensor in editor.graph.initializer:
        array = constants[tensor.name]
        if array.ndim > 1:
            put_constant(tensor, tensor.name, _perturbed(array, rng), editor.weights)
    return editor.done()


def _perturbed(array: Array, rng: np.random.Generator) -> Array:
    """``array`` with each floating-point number perturbed by a few units in the last place."""
    if array.dtype.kind != "f":
        return array
    size = _PERTURBATION[array.dtype.itemsize]
    return (array * (1 + rng.uniform(-size, size, array.shape))).astype(array.dtype)


def _differing(expected: Feed, found: Feed) -> dict[str, str]:
    """Maps the name of each output that differs by more than rounding to a description of the difference."""
    texts = {name: _difference(array, found[name]) for name, array in expected.items()}
    return {name: text for name, text in texts.items() if text}


def _difference(expected: Array, found: Array) -> str:
    """A description of how ``found`` differs from ``expected``; empty if only rounding differs."""
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
    limit, size = _MAX_RMS_RATIO[expected.dtype.itemsize], float(np.sqrt(np.mean(one**2)))
    off = float(np.sqrt(np.mean(error**2)))
    if off <= limit * size and error.max() <= _MAX_ELEMENT_FACTOR * limit * np.abs(one).max():
        return ""
    return f"off by {off / size:.2g} times its size" if size else f"{off:.3g} in place of 0"
