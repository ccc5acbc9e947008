"""The tables of causes, and the choice of one cause for each culprit, that is each layer at fault.

Each quantized tensor of the layer is examined for symptoms. Ablations decide which tensor is at fault. They
begin with the noisiest tensor that has a symptom (see ``answer/ablations.py``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import onnx

from pytest_int8acc.answer import symptoms
from pytest_int8acc.answer.ablations import Hint, Suspect, established, supported
from pytest_int8acc.answer.scales import MASK_ROOM, goes_to_softmax, scales_in_use, unmasked_scales
from pytest_int8acc.answer.symptoms import (
    ActivationFacts,
    InputFacts,
    NarrowFacts,
    PlaceFacts,
    Shown,
    Surroundings,
    WeightFacts,
    rank_db,
    weight_facts,
)
from pytest_int8acc.clock import current
from pytest_int8acc.errors import ModelError
from pytest_int8acc.graph.network import Edge, Group, Precision
from pytest_int8acc.lab.interventions import Interventions
from pytest_int8acc.lab.lab import Lab
from pytest_int8acc.lab.losses import SAMPLES
from pytest_int8acc.observers.edges import EdgeMeter
from pytest_int8acc.observers.values import TensorValues
from pytest_int8acc.results import Cost, Culprit, Evidence
from pytest_int8acc.results.causes import Cause, CauseKind, Symptom, TakenKind
from pytest_int8acc.tensors import did_you_mean

logger = logging.getLogger("pytest_int8acc")
_F = TypeVar("_F")
_T = TypeVar("_T", ActivationFacts, WeightFacts)

#: The symptoms of a tensor suggest no cause if the tensor's SQNR is more than this many dB above that of the
#: layer's noisiest tensor. The tensor then causes less than a tenth of the noise.
MAX_EXCESS_DB = 10.0


@dataclass(frozen=True)
class Diagnostic(Generic[_F]):
    """One row of a table of causes: a symptom, its cause, and how the symptom is recognised and proved."""

    symptom: Symptom
    kind: CauseKind
    """The cause that the symptom indicates."""
    recognise: Callable[[_F], Shown | None] | None = None
    """Returns the fields of a ``Cause`` that the symptom fills in, or None if the measurements do not show
    it.

    The field is None for symptoms of a whole case: ``explain``, ``narrow_cause`` or ablations recognise them.
    """
    trial: TakenKind | None = None
    """The ablation that proves the symptom, because it removes this fault and no other.

    None if there is no such ablation. Then the symptom is proved by not quantizing the whole tensor.
    """
    is_guess: bool = False
    """Whether only the ablation can confirm the symptom. The rows after this one are then read, too."""


# The tables of causes: one for each class of measurements, such as ``ActivationFacts``. A row has a symptom
# and the cause that it indicates. To add a symptom or a cause:
#
# 1. Add its name to ``Symptom``, and a new cause to ``CauseKind``, in ``results/causes.py``.
# 2. Write a function in ``answer/symptoms.py`` that recognises the symptom, and add a row to the table for
#    the class that the function reads. The rows of a table are read in order, up to the first one that
#    recognises its symptom and is no guess (``is_guess``). Guesses before it are tried by their ablations. So
#    a row with a special symptom must stand above rows with more general symptoms.
# 3. In ``report/catalogue.py`` add the symptom's words to ``SYMPTOMS``, those of a new cause to ``CAUSES``,
#    and a label for each number that the function adds to ``NUMBERS``. ``NumberName`` lists the names of such
#    numbers.
#
# If a step is missing, mypy, ``tests/answer/test_registers.py`` or ``tests/report/test_catalogue.py`` fails.
ACTIVATIONS: tuple[Diagnostic[ActivationFacts], ...] = (
    Diagnostic("vanishing-scale", "zero-scale", symptoms.vanishing_scale, "range"),
    Diagnostic("masked-values", "masked-range", symptoms.masked_values, "unmasked", is_guess=True),
    Diagnostic("ignored-channels", "ignored-channel", symptoms.ignored_channels, "in-use", is_guess=True),
    Diagnostic("needless-values", "activation-outliers", symptoms.needless_values, "in-use", is_guess=True),
    Diagnostic("one-sided", "zero-point", symptoms.one_sided, "range"),
    Diagnostic("cut-off", "saturation", symptoms.cut_off, "range"),
    Diagnostic("range-of-partner", "mismatched-scales", symptoms.range_of_partner, "range"),
    Diagnostic("range-too-wide", "scale-too-wide", symptoms.range_too_wide, "range"),
    Diagnostic("stretched-range", "activation-outliers", symptoms.stretched_range, "range"),
    Diagnostic("uneven-parts", "mismatched-scales", symptoms.uneven_parts, "per-channel"),
    Diagnostic("large-channels", "activation-outliers", symptoms.large_channels, "channels"),
    Diagnostic("large-values", "activation-outliers", symptoms.large_values),
)
WEIGHTS: tuple[Diagnostic[WeightFacts], ...] = (
    Diagnostic("vanishing-weight-scale", "zero-scale", symptoms.vanishing_weight_scale, "constants"),
    Diagnostic("corrected-bias", "bias-shift", symptoms.corrected_bias, "constants"),
    Diagnostic("other-order", "other-values", symptoms.other_order, "constants"),
    Diagnostic("shifted-bias", "bias-shift", symptoms.shifted_bias, "constants"),
    Diagnostic("coarse-bias", "int8-bias", symptoms.coarse_bias, "constants"),
    Diagnostic("few-codes", "weight-scale", symptoms.few_codes, "constants"),
    Diagnostic(
        "large-idle-weights", "weight-outliers", symptoms.weights_without_input, "in-use", is_guess=True
    ),
    Diagnostic(
        "one-scale-for-channels",
        "weight-outliers",
        symptoms.one_scale_for_channels,
        "per-channel",
        is_guess=True,
    ),
    Diagnostic(
        "scales-of-other-axis", "wrong-axis", symptoms.scales_of_other_axis, "per-channel", is_guess=True
    ),
    Diagnostic("large-idle-weights", "weight-outliers", symptoms.large_idle_weights, "in-use", is_guess=True),
    Diagnostic("scales-of-other-axis", "wrong-axis", symptoms.mislabelled_axis, "constants"),
    Diagnostic("shifted-mean", "bias-shift", symptoms.shifted_mean, "bias"),
    Diagnostic("one-scale-for-channels", "weight-outliers", symptoms.one_scale_for_channels, "constants"),
    Diagnostic("other-codes", "other-values", symptoms.other_codes, "constants"),
    Diagnostic("weight-scales-off", "weight-scale", symptoms.weight_scales_off, "constants"),
    Diagnostic("large-weights", "weight-outliers", symptoms.large_weights, "constants"),
)
PLACES: tuple[Diagnostic[PlaceFacts], ...] = (
    Diagnostic("quantized-inputs", "sensitive-op", symptoms.quantized_inputs),
    Diagnostic("after-softmax", "sensitive-op", symptoms.after_softmax),
    Diagnostic("after-gelu", "sensitive-op", symptoms.after_gelu),
    Diagnostic("product-of-activations", "sensitive-op", symptoms.product_of_activations),
    Diagnostic("decoding", "sensitive-op", symptoms.decoding),
)
NARROW: tuple[Diagnostic[NarrowFacts], ...] = (
    Diagnostic("constant-beyond-range", "overflow", symptoms.constant_beyond_range),
    Diagnostic("beyond-range", "overflow", symptoms.beyond_range),
    Diagnostic("reads-beyond-range", "overflow", symptoms.reads_beyond_range),
    Diagnostic("vanishing-constant", "underflow", symptoms.vanishing_constant),
    Diagnostic("vanishing-values", "underflow", symptoms.vanishing_values),
    Diagnostic("cancelling", "cancellation", symptoms.cancelling),
    Diagnostic("needs-digits", "rounding", symptoms.needs_digits),
)
#: Symptoms of single channels. They are used only if an ablation shows that the tensor is at fault, because
#: channels whose errors do not reach an output show these symptoms, too.
ACTIVATION_CHANNELS: tuple[Diagnostic[ActivationFacts], ...] = (
    Diagnostic("uneven-channels", "mismatched-scales", symptoms.uneven_channels, "per-channel"),
)
WEIGHT_CHANNELS: tuple[Diagnostic[WeightFacts], ...] = (
    Diagnostic("coarse-bias", "int8-bias", symptoms.bias_of_eight_bits, "constants"),
    Diagnostic("coarse-channels", "weight-scale", symptoms.coarse_channels, "constants"),
)
WHOLE_CASE: tuple[Diagnostic[None], ...] = (
    Diagnostic("no-scale", "missing-scale"),
    Diagnostic("noise-adds-up", "accumulated-noise"),
    Diagnostic("too-coarse", "rounding"),
    Diagnostic("engine-differs", "engine-only"),
    Diagnostic("engine-rounds", "engine-only"),
    Diagnostic("within-noise", "non-determinism"),
    Diagnostic("fp16-around", "fp16-around", trial="fp32"),
)
DIAGNOSTICS: tuple[Diagnostic[Any], ...] = (
    *ACTIVATIONS,
    *WEIGHTS,
    *PLACES,
    *NARROW,
    *ACTIVATION_CHANNELS,
    *WEIGHT_CHANNELS,
    *WHOLE_CASE,
)


def explain(
    meter: EdgeMeter,
    groups: Sequence[str],
    *,
    rest: Precision = "fp16",
    engine_only: bool = False,
    unstable: bool = False,
    trials: Interventions | None = None,
) -> dict[str, Cause]:
    """The cause of each layer at fault, measured on the first samples of the inputs.

    Args:
        meter: Measures the quantization error of each tensor of the unchanged candidate.
        groups: The names of the layers at fault. A layer that is not in INT8, because it has no scale, may
            be one of them.
        rest: The precision of nodes that are not quantized. FP16 cannot hold some scales that FP32 can.
        engine_only: Whether the same Q/DQ model meets the criteria in ONNX Runtime, so that no scale is at
            fault.
        unstable: Whether the missed limits lie within the noise between two runs of the baseline.
        trials: Runs the ablations. With None, no ablations are run, and the symptoms decide.

    Returns:
        A mapping of layer to cause. Layers in high precision for another reason than a missing scale are left
        out, as are layers inside an If, Loop or Scan that read an activation whose values are not known, and
        layers whose symptoms no trial supports.

    Raises:
        Int8accError: A name is unknown, the float model does not run, or the inputs cannot be read.
    """
    network = meter.network
    known = {group.name: group for group in network.groups}
    for name in groups:
        if name not in known and name not in network.left_high:
            raise ModelError(f"{network.model.name}: no group '{name}'{did_you_mean(name, list(known))}")
    left = {n: network.left_high[n] for n in groups if n in network.left_high}
    missing = {name: why.facts for name, why in left.items() if why.kind == "no-scale"}
    found = {n: Cause("missing-scale", "no-scale", others=facts) for n, facts in missing.items()}
    logger.info("diagnosis: causes of %d groups", len(groups))
    groups_with_edges = [known[name] for name in groups if name in known and known[name].edges]
    explainer = _Explainer(meter, rest)
    groups_with_edges = [group for group in groups_with_edges if explainer.knows(group)]
    clock = current()
    for done, group in enumerate(groups_with_edges):
        if clock.over:
            clock.leave("causes")
            break
        clock.count("layer", done, len(groups_with_edges))
        found[group.name] = explainer.cause(group, engine_only, unstable, trials)
    if trials is not None:
        hints = [Hint(n, c, explainer.suspect(n, c)) for n, c in found.items() if _is_hint(c)]
        kept = supported(trials, hints)
        found = {n: c for n, c in found.items() if n in kept or not _is_hint(c)}
    return {name: found[name] for name in groups if name in found}


def _is_hint(cause: Cause) -> bool:
    """Whether a cause needs a trial as evidence, and has none. Three kinds of causes need no trial."""
    return cause.evidence is None and cause.kind not in ("missing-scale", "zero-scale", "non-determinism")


def narrow_cause(lab: Lab, culprit: Culprit, *, engine_only: bool) -> Cause:
    """The reason why a layer at fault loses accuracy in FP16 or BF16.

    Args:
        lab: Runs the models of the case.
        culprit: The layer.
        engine_only: Whether the same model meets the criteria in ONNX Runtime, so that no value is at fault.

    Raises:
        EngineError: The float model does not run.
    """
    low = lab.int8.low.name
    if engine_only:
        return Cause("engine-only", "engine-rounds", node=culprit.nodes[0], format=low)
    samples = lab.sample_set(range(min(len(lab.simulator.inputs), SAMPLES)))
    runs = samples.count / lab.sample_set().count
    alone = Evidence("alone", "exact", samples, cost=Cost(runs))
    cause = Cause("rounding", "needs-digits", format=low, evidence=alone)
    return _first_shown(NARROW, NarrowFacts(lab, culprit), cause) or cause


def _first_shown(rows: Iterable[Diagnostic[_F]], facts: _F, cause: Cause) -> Cause | None:
    """``cause`` with the fields of the first row whose symptom is recognised; None if no row fits."""
    return next((shown for shown, _ in _all_shown(rows, facts, cause)), None)


def _all_shown(
    rows: Iterable[Diagnostic[_F]], facts: _F, cause: Cause
) -> Iterator[tuple[Cause, Diagnostic[_F]]]:
    """Yields ``cause`` with the fields of each symptom that is recognised, and the symptom's row.

    A row may be a guess, which an ablation must confirm. The first row that is no guess ends the list.
    """
    for row in rows:
        shown = None if row.recognise is None else row.recognise(facts)
        if shown is not None:
            yield cause.showing(row.kind, row.symptom, **shown), row
            if not row.is_guess:
                return


def _suspected(
    tensor: str,
    held: TensorValues | None,
    facts: _T,
    rows: Iterable[Diagnostic[_T]],
    channel_rows: Iterable[Diagnostic[_T]],
) -> Suspect:
    """A tensor with the symptom that its measurements show, and with guesses at further symptoms.

    ``rows`` are the symptoms of a whole tensor, ``channel_rows`` those of single channels.
    """
    plain, guesses, trial = facts.cause(), list[Suspect](), None
    cause = plain
    for shown, row in _all_shown(rows, facts, plain):
        if row.is_guess:
            guesses.append(Suspect(tensor, shown, held, row.trial, scale=facts.scale(shown)))
        else:
            cause, trial = shown, row.trial
    by_channel = _first_shown(channel_rows, facts, cause)
    return Suspect(tensor, cause, held, trial, by_channel, guesses=tuple(guesses))


class _Explainer:
    """Finds the causes of the layers at fault of one network."""

    def __init__(self, meter: EdgeMeter, rest: Precision) -> None:
        self.rest = rest
        self.graph = Surroundings(meter.network)
        self.sources = (meter.model, meter.network.model)
        self.measured = meter.measured
        self.meter = meter
        held = {tensor: values for tensor, (values, _) in self.measured.items()}
        self.in_use = scales_in_use(meter.network, held)
        self.unmasked = unmasked_scales(meter.network, self.measured)
        self._suspects: dict[str, list[Suspect]] = {}

    def suspect(self, group: str, cause: Cause) -> Suspect:
        """The tensor that the cause of a layer names."""
        return next(suspect for suspect in self._suspects[group] if suspect.cause.tensor == cause.tensor)

    def knows(self, group: Group) -> bool:
        """Whether the values of all activations of a group are known. Unknown values are stored as zeros."""
        tensors = [edge.tensor for edge in group.edges if edge.quantization.values is None]
        return not group.is_inner or all(self.measured[tensor][0].amax > 0 for tensor in tensors)

    def cause(self, group: Group, engine_only: bool, unstable: bool, trials: Interventions | None) -> Cause:
        """The reason why one layer loses accuracy."""
        suspects = [self._suspect(edge, group) for edge in group.edges]
        suspects.sort(key=lambda suspect: rank_db(suspect.cause))
        self._suspects[group.name] = suspects
        edges = [suspect.cause for suspect in suspects]
        worst = edges[0]
        if engine_only:
            return replace(worst, kind="engine-only", symptom="engine-differs")
        relevant = [edge for edge in edges if rank_db(edge) <= rank_db(worst) + MAX_EXCESS_DB]
        at_fault = [edge for edge in relevant if edge.kind != "accumulated-noise"]
        first = next((e for e in edges if e.kind == "zero-scale"), at_fault[0] if at_fault else None)
        if unstable and first is None:
            return replace(worst, kind="non-determinism", symptom="within-noise")

        def placed(cause: Cause, tensors: Sequence[str]) -> Cause | None:
            return _first_shown(PLACES, PlaceFacts(self.graph, group, cause, tensors), cause)

        if trials is not None:
            shown = established(trials, group.name, suspects, first or worst, placed)
            if shown is not None:
                return shown
        if first is None or first.kind == "activation-outliers":
            first = placed(worst, [edge.tensor for edge in relevant]) or first
        return first or worst

    def _suspect(self, edge: Edge, group: Group) -> Suspect:
        """A quantized tensor of the group, with its symptom and the ablation that would prove the symptom."""
        if edge.quantization.values is not None:
            node = self.graph.index.nodes[edge.node]
            is_bias = self.graph.is_bias(edge)
            inputs = None if is_bias else self._inputs(edge, node, group)
            room = MASK_ROOM if goes_to_softmax(node, self.graph.index) else 0.0
            weight = weight_facts(edge, node, self.sources, inputs, is_bias=is_bias, room=room)
            return _suspected(edge.tensor, None, weight, WEIGHTS, WEIGHT_CHANNELS)
        values, quantizations = self.measured[edge.tensor]
        facts = ActivationFacts(
            edge,
            values,
            quantizations[id(edge.quantization)],
            self.rest,
            self.graph,
            self.measured,
            weights_use=self.in_use.get(edge.tensor),
            unmasked=self.unmasked.get(edge.tensor),
        )
        return _suspected(edge.tensor, values, facts, ACTIVATIONS, ACTIVATION_CHANNELS)

    def _inputs(self, weight: Edge, node: onnx.NodeProto, group: Group) -> InputFacts | None:
        """Statistics of a weight's inputs, or how often the rows of a Gather's table are read.

        None if they are not known.
        """
        if node.op_type == "Gather" and weight.index == 0:
            reads = self.meter.lookups.get(node.name)
            return None if reads is None else InputFacts(reads)
        for edge in group.edges if weight.index < 2 else ():
            if edge.node == weight.node and edge.index != weight.index and edge.quantization.values is None:
                stats = self.measured[edge.tensor][1][id(edge.quantization)]
                if stats.channels is None:
                    return None
                energy, _, sums = stats.channels
                count = stats.values / energy.size
                return InputFacts(energy, sums / count, count)
        return None
