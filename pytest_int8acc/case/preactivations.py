"""Compares the inputs of Softmax and Sigmoid at the end of a model, because the outputs hide their errors.

The sigmoid of -8 and that of -6 are both nearly 0. So an output near 0 meets a limit on its error, whatever
noise its input has. No extra runs are needed: the inputs become further outputs of the models, for this
comparison alone. In TensorRT engines further outputs would change the fusion. So in place of the engines, the
FP32 model and the simulation of the candidate's engine are compared. Both run in ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from pytest_int8acc.data import Dataset
from pytest_int8acc.errors import CriterionError, EngineError
from pytest_int8acc.graph.flow import squashing_node, unquantized
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.types import FLOAT, FLOAT16, value_types
from pytest_int8acc.results import OutputResult, Role, Score
from pytest_int8acc.results.scores import DEFAULT_SQNR_DB, Preactivation
from pytest_int8acc.runtime.forms import Form, ModelForm
from pytest_int8acc.runtime.protocol import Backend, Engine
from pytest_int8acc.scores.criteria import OutputLimits, limits_for
from pytest_int8acc.scores.judge import Judge, OutputRows
from pytest_int8acc.scores.metrics import METRICS
from pytest_int8acc.scores.rows import TOP1, TOP5, samples_in
from pytest_int8acc.settings import Mode
from pytest_int8acc.tensors import Array, Feed, TensorInfo

#: Metrics that only depend on the order of the classes. Softmax and Sigmoid do not change this order.
_OF_ORDER = (TOP1, TOP5)


class _Tensors(NamedTuple):
    """The tensor that an output's Softmax or Sigmoid reads (its preactivation), by its names in one model."""

    read: str
    """The tensor that the operator reads."""
    unquantized: str
    """The tensor before the Q/DQ pair that outputs ``read``; empty if there is no pair."""
    is_known: bool
    """Whether this model has the preactivation under the same name as the float model."""


@dataclass(eq=False)
class WatchedEngine:
    """An engine that keeps its latest outputs, and hides the outputs that were added to its model."""

    engine: Engine
    tensors: Mapping[str, _Tensors]
    """The tensor that the Softmax or Sigmoid of each output reads, by the output's name."""
    added: frozenset[str]
    latest: Feed = field(default_factory=dict)
    """All outputs of the latest run."""

    @property
    def description(self) -> str:
        """The description of the engine."""
        return self.engine.description

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """The inputs of the engine."""
        return self.engine.inputs

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        """The outputs of the engine without those that were added."""
        return tuple(output for output in self.engine.outputs if output.name not in self.added)

    def cut(self, tensor: str, output: str, rows: int) -> Array:
        """Returns a tensor of the latest run, without rows that only fill the batch.

        Args:
            tensor: The name of the tensor.
            output: The output that is computed from the tensor.
            rows: The size of the output's first axis without the rows that fill the batch.
        """
        array, size = self.latest[tensor], samples_in(self.latest[output])
        return array[:rows] if rows < size == samples_in(array) else array

    def __call__(self, feed: Feed) -> Feed:
        """Runs the engine once, and returns its outputs without those that were added."""
        self.latest = self.engine(feed)
        return {name: array for name, array in self.latest.items() if name not in self.added}


@dataclass(frozen=True, eq=False)
class _Compared:
    """One output whose preactivation, the input of its Softmax or Sigmoid, is compared."""

    found: Preactivation
    """The preactivation; its scores are added later."""
    is_judged: bool
    """Whether the tensor has a criterion of its own, or is an output."""
    read: OutputRows
    """Compares the tensor that the operator reads."""
    unquantized: OutputRows
    """Compares the tensor before the Q/DQ pair; compares nothing if there is no such pair."""


class Preactivations:
    """Compares preactivations: the tensors that a Softmax or Sigmoid before an output reads.

    The models are opened with the preactivations as further outputs.
    """

    def __init__(self, model: Model, judge: Judge, backend: Backend, mode: Mode, *, has_golden: bool) -> None:
        """Finds the outputs whose preactivations are compared.

        Args:
            model: The float model.
            judge: The criteria of the spec.
            backend: Runs the baseline and the candidate.
            mode: The mode of sessions of ONNX Runtime. In mode *native* nothing is compared, because further
                outputs would change the fusion.
            has_golden: Whether stored outputs (a golden) replace the baseline, so that FP32 is compared
                instead.
        """
        simulated = backend.needs_simulation
        self._baseline = Role.FP32 if simulated or has_golden else Role.BASELINE
        self._candidate = Role.SIMULATED if simulated else Role.INT8
        self._engines: dict[Role, WatchedEngine] = {}
        runs_here = simulated or (mode == "exact" and not backend.builds_engines)
        self._outputs = dict(_found(model, judge)) if runs_here else {}

    def open(self, role: Role, model: Model, open_engine: Callable[[Model], Engine]) -> Engine:
        """Opens a model with the preactivations as further outputs if they are compared for this role.

        Args:
            role: The role of the model.
            model: The model as it runs.
            open_engine: Opens a model. It raises EngineError if the model does not run.
        """
        if role not in (self._baseline, self._candidate) or not self._outputs:
            return open_engine(model)
        found = dict[str, _Tensors]()
        for output, compared in self._outputs.items():
            node = squashing_node(model, output)
            if node is not None:
                before = unquantized(model, node.input[0]) if role == self._candidate else ""
                is_known = compared.found.tensor in model.index.producer
                found[output] = _Tensors(node.input[0], before, is_known)
        read = {name for tensors in found.values() for name in (tensors.read, tensors.unquantized) if name}
        added = read.difference(output.name for output in model.outputs)
        wide = _with_outputs(model, sorted(added))
        if not found or wide is None:
            return open_engine(model)
        try:
            engine = WatchedEngine(open_engine(wide), found, frozenset(added))
        except EngineError:  # the model may run without further outputs
            return open_engine(model)
        self._engines[role] = engine
        return engine

    def open_form(self, backend: Backend, form: Form, role: Role, inputs: Dataset) -> Engine:
        """Opens a model or an engine with ``backend``. A model gets further outputs as in ``open``.

        Raises:
            EngineError: The model or engine does not build or run.
        """
        if not isinstance(form, ModelForm):
            return backend.open(form, role, inputs)

        def open_engine(model: Model) -> Engine:
            wide = form if model is form.model else replace(form, model=model)
            return backend.open(wide, role, inputs)

        return self.open(role, form.model, open_engine)

    def compare(self, outputs: Mapping[Role, Feed]) -> None:
        """Compares the preactivations of the latest batch.

        Args:
            outputs: The outputs of each role on this batch, without rows that only fill the batch.
        """
        ours, theirs = self._engines.get(self._baseline), self._engines.get(self._candidate)
        if ours is None or theirs is None:
            return
        for output, compared in self._outputs.items():
            before, after = ours.tensors.get(output), theirs.tensors.get(output)
            if before is None or after is None:
                continue
            rows = samples_in(outputs[self._candidate][output])
            baseline = ours.cut(before.read, output, rows)
            compared.read.add(baseline, theirs.cut(after.read, output, rows))
            if after.unquantized:
                compared.unquantized.add(baseline, theirs.cut(after.unquantized, output, rows))

    def added_to(self, output: OutputResult) -> OutputResult:
        """Returns the result of an output with its preactivation, if the preactivation was compared.

        A preactivation that is judged by itself is left out, unless only the Q/DQ pair after it causes the
        errors.
        """
        compared, engine = self._outputs.get(output.name), self._engines.get(self._candidate)
        if compared is None or engine is None or not (scores := _scores(compared.read)):
            return output
        before = _scores(compared.unquantized)
        fails: Literal["", "tensor", "pair"] = ""
        if not all(score.passed for score in scores):
            fails = "pair" if before and all(score.passed for score in before) else "tensor"
        if compared.is_judged and fails != "pair":
            return output
        is_known = engine.tensors[output.name].is_known
        return replace(
            output, preactivation=replace(compared.found, scores=scores, fails=fails, is_known=is_known)
        )


def _with_outputs(model: Model, names: Sequence[str]) -> Model | None:
    """The model with tensors as further outputs; None if one of them is neither FP32 nor FP16.

    The types are inferred on the new model, because the session that opens it needs them anyway. Inference on
    ``model`` as well would take up to 1 % of the time of a case.
    """
    editor = model.edit()
    outputs = [editor.graph.output.add(name=name) for name in names]
    wide = editor.done()
    types = value_types(wide)
    for output in outputs:
        kind = types.get(output.name)
        if kind not in (FLOAT, FLOAT16):
            return None
        output.type.tensor_type.elem_type = kind
    return wide


def _found(model: Model, judge: Judge) -> Iterator[tuple[str, _Compared]]:
    """Yields the name of each output whose preactivation is compared, and what is compared."""
    made, judged = model.index.producer, {output.name for output in model.outputs}
    for output in model.own_outputs:
        node, limits = squashing_node(model, output.name), _limits(output.name, judge)
        if node is None or not limits or node.input[0] not in made:
            continue
        tensor = node.input[0]
        given = [OutputLimits(tensor, limits=limits)]
        read, unquantized = (OutputRows(tensor, given, judged_only=True) for _ in range(2))
        found = Preactivation(tensor, node.op_type, node.name, ())
        yield output.name, _Compared(found, tensor in judged, read, unquantized)


def _limits(output: str, judge: Judge) -> Mapping[str, float]:
    """The limits for the preactivation that follow from the criteria of its output: metric to limit.

    Limits on SQNR and other ratios of energies stay the same. A limit on an absolute error has another unit,
    so the default limit on the SQNR replaces it. There is no limit if the criteria judge only the order of
    classes, or only metrics of labels.
    """
    criteria = limits_for(output, judge.limits)
    if not criteria:
        return {} if judge.metrics else {"sqnr_db": DEFAULT_SQNR_DB}
    given = {metric: limit for criterion in criteria for metric, limit in criterion.limits.items()}
    ratios = {metric: limit for metric, limit in given.items() if METRICS[metric].fits_channels}
    if ratios or all(METRICS[metric].measure in _OF_ORDER for metric in given):
        return ratios
    return {"sqnr_db": DEFAULT_SQNR_DB}


def _scores(rows: OutputRows) -> tuple[Score, ...]:
    """The scores of a preactivation; empty if it was not compared, or cannot be compared."""
    try:
        result = rows.result()
    except CriterionError:  # nothing was compared, or the baseline is not finite
        return ()
    return () if result.problem else result.scores
