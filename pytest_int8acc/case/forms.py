"""Makes the models that a case compares: FP32 reference, FP16 baseline and INT8 candidate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pytest_int8acc.case.data import calibration_samples, find_scales, low_of
from pytest_int8acc.case.plan_file import read_plan
from pytest_int8acc.errors import CriterionError, EngineError, ModelError, SpecError, assert_never, listed
from pytest_int8acc.graph.formats import FP8, INT8, Format
from pytest_int8acc.graph.half_network import low_network
from pytest_int8acc.graph.index import inner_names
from pytest_int8acc.graph.interface import with_interface_of
from pytest_int8acc.graph.layout import find_groups, quantize
from pytest_int8acc.graph.load import lift, load_model
from pytest_int8acc.graph.model import Model, is_marked_fix, with_extra_outputs, without_extra_outputs
from pytest_int8acc.graph.network import Network, Plan, Precision
from pytest_int8acc.graph.plan import apply, fp32_nodes, guard, merge, moved
from pytest_int8acc.graph.qdq import is_qdq, read_qdq
from pytest_int8acc.graph.types import value_types
from pytest_int8acc.observers.observer import Observer
from pytest_int8acc.runtime.forms import EngineForm, Form, ImplicitForm, ModelForm
from pytest_int8acc.runtime.onnxruntime import element_types
from pytest_int8acc.settings import Settings
from pytest_int8acc.spec.criteria import OutputCriterion
from pytest_int8acc.spec.int8 import BaselineModel, Implicit
from pytest_int8acc.spec.models import Case
from pytest_int8acc.tensors import did_you_mean

#: A note for a model file whose inputs or outputs have another float type than those of the float model.
_ADDED_CASTS = (
    "{model} has inputs or outputs of another float type than the float model: the data are converted there"
)


@dataclass(frozen=True, eq=False)
class Int8Form:
    """The network of a case in its low format, and the source of its scales.

    A plan says which layers stay in high precision. The network together with a plan makes a candidate.

    The low format is INT8, FP8, FP16 or BF16. In FP16 and BF16 nothing is quantized.
    """

    network: Network
    source: str
    rest: Precision
    """The precision of all nodes that are not in the low format."""
    notes: tuple[str, ...] = ()
    whole: Network | None = None
    """The network without the spec's plan; None if the spec has no plan."""
    given: Plan = field(default_factory=Plan)
    """The plan that the spec names; empty if it names none."""
    file: Model | None = None
    """The user's Q/DQ model, unchanged; None if the float model was quantized by this plugin."""
    observed: Observer | None = None
    """The observer that the calibration used; None if nothing was calibrated."""
    is_own_fix: bool = False
    """Whether the Q/DQ model is a fixed.onnx of this plugin, whose layers in high precision a search
    chose."""

    @property
    def low(self) -> Format:
        """The format of the layers that no plan keeps in high precision."""
        return self.network.low

    @property
    def other(self) -> str:
        """The low format's name in results: ``fp8``, ``fp16`` or ``bf16``; empty for INT8."""
        return "" if self.low is INT8 else self.low.name

    @property
    def every(self) -> Network:
        """The network without the spec's plan. The plans that ``complete`` returns apply to this network."""
        return self.network if self.whole is None else self.whole

    def complete(self, plan: Plan | None = None) -> Plan:
        """Returns the spec's plan merged with ``plan``."""
        return merge(self.every, self.given, plan or Plan())

    def unrounded(self, plan: Plan | None = None) -> Model:
        """The candidate without rounding: the float model, changed by ``plan`` and by the spec's plan."""
        return moved(self.every, self.complete(plan)).model

    def under(self, plan: Plan | None = None) -> ModelForm:
        """The candidate, changed by the spec's plan and by ``plan``."""
        network, plan = self.every, self.complete(plan)
        if not self.low.takes_scales:
            return self._narrow(moved(network, plan), plan)
        mixed = apply(network, plan)
        count = len(network.groups) - len(plan.high)
        every = len(network.groups) + len(network.left_high)
        description = (
            f"{self.low.name.upper()} in {count} of {every} groups, {self.source}, rest {self.rest.upper()}"
        )
        if self.rest == "fp32":
            form = ModelForm.as_it_is(mixed, description, self.notes)
        else:
            form = ModelForm.halved(mixed, description, self.notes, fp32_nodes(network, plan))
        return replace(form, shown=plan.outputs)

    def _narrow(self, network: Network, plan: Plan) -> ModelForm:
        """The candidate in FP16 or BF16, with the layers that the plan names in FP32."""
        count, every = len(network.groups) - len(plan.high), len(network.groups)
        description = f"{self.low.name.upper()} in {count} of {every} groups{self.source}, rest FP32"
        kept = fp32_nodes(network, plan)
        return ModelForm.halved(network.model, description, self.notes, kept, self.low)


def load_float(case: Case) -> Model:
    """Loads the float model of a case. Raises ModelError if it cannot be read, or is quantized already."""
    with case.at("model"):
        model = load_model(case.path(case.model))
        if is_qdq(model):
            raise ModelError(
                f"{model.name}: holds Q/DQ already; 'model' wants the float model it was made from, and "
                f"this one belongs under '{case.source.where}: {{model: ...}}'"
            )
        return model


def baseline_form(case: Case, model: Model) -> Form:
    """The baseline that the spec names."""
    baseline = case.baseline
    if isinstance(baseline, BaselineModel):
        if baseline.engine is not None:
            place, path = case.place("baseline.engine"), case.path(baseline.engine)
            return EngineForm(model, f"engine {baseline.engine}", place=place, path=path)
        assert baseline.model is not None  # the spec must name one of the two
        with case.at("baseline.model"):
            loaded = with_interface_of(load_model(case.path(baseline.model)), model)
            given = like(loaded, model)
            form = ModelForm.as_it_is(given, f"{baseline.model} as it is")
            return replace(form, place=case.place("baseline.model"))
    if case.candidate is not None:  # a case in FP16 or BF16 has an FP32 baseline
        return ModelForm.in_full(model)
    if baseline == "fp32":
        return ModelForm.in_full(model)
    if baseline == "fp16" or baseline == "golden":
        return ModelForm.halved(model, "FP16")
    assert_never(baseline)


def candidate_form(
    case: Case, model: Model, settings: Settings, *, implicit: bool
) -> tuple[Form, Int8Form | None]:
    """The candidate and its network. The network is None for an engine or for implicit quantization.

    Args:
        case: The case.
        model: The float model.
        settings: The settings of the run.
        implicit: Whether the backend supports implicit quantization. If not, the model is quantized
            explicitly.

    Raises:
        Int8accError: A model, the calibration data or a scale file is faulty.
    """
    if case.candidate is not None:
        form = _low_form(case, low_of(case), model, settings)
        return replace(form.under(), place=case.place("candidate")), form
    engine = case.int8.engine
    if engine is not None:
        path = case.path(engine)
        return EngineForm(model, f"engine {engine}", place=case.place("int8.engine"), path=path), None
    if case.int8.implicit is not None and implicit:
        return _implicit_form(case, case.int8.implicit, model), None
    int8 = int8_form(case, model, settings)
    return replace(int8.under(), place=case.place(f"{case.source.where}.model")), int8


def int8_form(case: Case, model: Model, settings: Settings, cache: Path | None = None) -> Int8Form:
    """The network of a case in INT8 or FP8. The candidate must not be an engine.

    Args:
        case: The case. Implicit quantization is replaced by explicit quantization.
        model: The float model.
        settings: The settings of the run.
        cache: The cache file that TensorRT's calibrator wrote, for implicit quantization. If None, the cache
            file that the spec names is read, or a method similar to TensorRT's is used.

    Raises:
        Int8accError: A model, the calibration data or a scale file is faulty.
    """
    rest: Precision = "fp32" if case.baseline == "fp32" else "fp16"
    given, low, key = case.source, low_of(case), case.source.where
    if low is FP8 and settings.mode == "native":
        with case.at("fp8"):
            raise SpecError("fp8: ONNX Runtime has no FP8 kernels to deploy: leave out 'mode: native'")
    if given.model is not None:
        with case.at(f"{key}.model"):
            stored = load_model(case.path(given.model))
            quantized = with_interface_of(stored, model)
            network = read_qdq(quantized, original=model, exclude=given.exclude, low=low)
            network = replace(network, model=like(network.model, model))
        notes, source, observed = network.notes, f"read from {given.model}", None
        file, is_own_fix = stored.file, is_marked_fix(quantized)
        if quantized is not stored:
            notes += (_ADDED_CASTS.format(model=given.model),)
    else:
        with case.at("model"):
            model = lift(model, low.opset)
        with case.at(f"{key}.exclude"):
            layout = find_groups(without_extra_outputs(model), given.exclude, low)
        with case.at(f"{key}.scales"):
            scales = find_scales(case, model, layout, settings, cache)
            network = quantize(model, layout, scales.values, low)
        notes, source, observed = scales.notes, scales.source, scales.observed
        file, is_own_fix = None, False
    notes = (*notes, *_left_high(network, rest))
    if not network.groups:
        with case.at(f"{key}.model"):
            raise ModelError(
                f"nothing is in {low.name.upper()} ({source}): no layer's inputs or weights are quantized, "
                "so the baseline would be compared with itself; name the quantized model, or scales of its "
                "tensors"
            )
    form = Int8Form(network, source, rest, notes, file=file, observed=observed, is_own_fix=is_own_fix)
    return _under_plan(case, form)


def _low_form(case: Case, low: Format, model: Model, settings: Settings) -> Int8Form:
    """The network of a case in FP16 or BF16.

    Raises SpecError for settings that only cases in INT8 and FP8 have.
    """
    with case.at("candidate"):
        for name in ("calibrations", "layers", "reduce"):
            if getattr(settings, name):
                flag = f"--int8acc-{name}"
                raise SpecError(
                    f"candidate: {low.name}: {flag} is for INT8 and FP8; leave it out, or this case"
                )
        if (settings.mode, settings.provider) == ("native", "cpu") and settings.backend != "tensorrt":
            raise SpecError(
                f"candidate: {low.name}: in mode native ONNX Runtime computes it in FP32 on the CPU, so that "
                "nothing of it would show; take mode exact, or provider cuda"
            )
        with case.at("model"):
            network = low_network(model, low)
    return _under_plan(case, Int8Form(network, "", "fp32"))


def _under_plan(case: Case, form: Int8Form) -> Int8Form:
    """``form`` changed by the spec's plan. A search tries only layers that this plan leaves in low precision.

    Raises SpecError if the plan does not fit, and ModelError if it leaves no layer in the low format.
    """
    if case.plan is None:
        return form
    with case.at("plan"):
        plan, low = read_plan(case.path(case.plan), form.network), form.low.name.upper()
        if len(plan.high) == len(form.network.groups):
            raise ModelError(
                f"{case.plan}: keeps all {len(plan.high)} layers out of {low}, so the baseline would be "
                f"compared with itself; leave one in {low} at least, or take the case out"
            )
        if not form.low.takes_scales and "fp16" in plan.high.values():
            raise ModelError(f"{case.plan}: keeps layers in fp16; what leaves {low} here runs in fp32")
    source = f"{form.source}, under {case.plan}"
    return replace(form, network=guard(form.network, plan), source=source, whole=form.network, given=plan)


def _implicit_form(case: Case, wish: Implicit, model: Model) -> ImplicitForm:
    """The candidate that TensorRT quantizes itself, from a calibration cache or from calibration data."""
    cache = None if wish.cache is None else case.path(wish.cache)
    calibration = wish.calibrate
    if calibration is None:
        description = f"INT8 by TensorRT itself, ranges of {wish.cache}"
        place = case.place("int8.implicit.cache")
        return ImplicitForm(model, description, place=place, algorithm="entropy2", samples=None, cache=cache)
    description = f"INT8 by TensorRT itself, {calibration.algorithm} calibration"
    samples = calibration_samples(case, model, calibration)
    return ImplicitForm(model, description, algorithm=calibration.algorithm, samples=samples, cache=cache)


def _left_high(network: Network, rest: Precision) -> Sequence[str]:
    """A note on the layers with weights that stay in high precision; gives reasons for the first five."""
    if not network.left_high:
        return ()
    named = "; ".join(f"{name}: {why.text}" for name, why in list(network.left_high.items())[:5])
    more = len(network.left_high) - 5
    return (
        f"{len(network.left_high)} layers stay in {rest.upper()}: {named}"
        + (f"; +{more} more" if more > 0 else ""),
    )


def with_named(case: Case, model: Model) -> Model:
    """The float model with further outputs: the inner tensors that the case's criteria name.

    Raises:
        CriterionError: A criterion names a tensor that no node of the main graph computes, or whose type is
            unknown.
    """
    named = {
        criterion.tensor: f"criteria.{index}.tensor"
        for index, criterion in enumerate(case.criteria)
        if isinstance(criterion, OutputCriterion) and criterion.tensor is not None
    }
    types = value_types(model) if named else {}
    for tensor, key in named.items():
        with case.at(key):
            _check_tensor(model, tensor)
            if tensor not in types:
                types[tensor] = _type_of_tensor(model, tensor)
    return with_extra_outputs(model, {tensor: types[tensor] for tensor in named})


def like(model: Model, model_of_case: Model) -> Model:
    """``model``, from another file, with the same extra outputs as ``model_of_case``.

    Raises:
        ModelError: The model has no tensor with the name of an extra output.
    """
    if not model_of_case.extra_outputs:
        return model
    known = {*model.index.producer, *(output.name for output in model.outputs)}
    if missing := sorted(model_of_case.extra_outputs - known):
        raise ModelError(
            f"{model.name}: it computes no tensor {listed(missing)}, which criteria name: make it of "
            f"{model_of_case.name} with a tool that keeps names, or name a tensor that both have"
        )
    types = value_types(model_of_case) | value_types(model)
    return with_extra_outputs(
        model, {tensor: types[tensor] for tensor in sorted(model_of_case.extra_outputs)}
    )


def _check_tensor(model: Model, tensor: str) -> None:
    made = model.index.producer
    if tensor in made:
        return
    said = f"the model has no such tensor{did_you_mean(tensor, made)}"
    if tensor in {value.name for value in model.inputs}:
        said = "it is an input, the same for all: name a tensor that a node computes"
    elif tensor in model.index.constants:
        said = "it is a constant of the model: name a tensor that a node computes"
    for node in model.graph.node:
        if tensor in inner_names(node):
            what = f"inside {node.op_type} '{node.name}', where nothing can be compared"
            said = f"it lies {what}: name what that node gives, like '{node.output[0]}'"
    raise CriterionError(f"criterion for tensor '{tensor}': {said}")


def _type_of_tensor(model: Model, tensor: str) -> int:
    """The element type of a tensor for which type inference of ONNX fails, as ONNX Runtime infers it."""
    try:
        return element_types(model, [tensor])[tensor]
    except (EngineError, KeyError) as error:
        raise CriterionError(
            f"criterion for tensor '{tensor}': its type is not known, so it cannot be compared: name another "
            "one near it"
        ) from error
