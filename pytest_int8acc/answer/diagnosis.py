"""Diagnoses a case: the first form of the model that fails, causes of layers at fault, errors of layers."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import onnx

from pytest_int8acc.answer.causes import explain, narrow_cause
from pytest_int8acc.answer.layers import engine_errors, layer_errors
from pytest_int8acc.answer.reproducer import reduce
from pytest_int8acc.answer.scales import Ranges, Unit, activations, units
from pytest_int8acc.answer.stages import is_own_doing, place, stages_of
from pytest_int8acc.case.measured import Measured, timed
from pytest_int8acc.case.other_model import other_model
from pytest_int8acc.errors import EngineError, ModelError
from pytest_int8acc.graph.flow import choices
from pytest_int8acc.graph.network import Edge, Group, Network, Plan, Precision, TensorScale, symmetric
from pytest_int8acc.lab.interventions import Interventions
from pytest_int8acc.lab.lab import Lab
from pytest_int8acc.names import digest, file_name
from pytest_int8acc.observers.edges import LOST_DB, EdgeMeter, lost_db, reach
from pytest_int8acc.observers.methods import CANDIDATES, METHODS, Options
from pytest_int8acc.observers.ranges import ENTROPY_BINS
from pytest_int8acc.observers.values import TensorValues
from pytest_int8acc.results import (
    CalibrationLine,
    Cost,
    Culprit,
    Diagnosis,
    Evidence,
    Finding,
    LayerError,
    Neighbours,
    Role,
    StageLine,
    Wire,
)
from pytest_int8acc.results.causes import Cause, CauseKind, Jump, OddRanges, OtherModel, Stage
from pytest_int8acc.runtime.forms import ImplicitForm
from pytest_int8acc.tensors import Feed

logger = logging.getLogger("pytest_int8acc")
#: Causes that need no ablation, because the verdict itself is their evidence.
_SHOWN_BY_VERDICT: tuple[CauseKind, ...] = ("missing-scale", "engine-only", "non-determinism")
#: Maximum cost of all ablations, in runs over all samples. For small models this maximum is raised, at most
#: to the cost of the search or to the second number times the number of layers at fault, whichever is
#: greater. Two runs for each layer at fault measure its loss. The others are ablations.
_RUNS, _RUNS_EACH = 6.0, 5.0


def diagnose(
    measured: Measured,
    lab: Lab | None,
    culprits: Sequence[Culprit] = (),
    cost: float = 0.0,
    *,
    high_fails: bool = False,
) -> tuple[Diagnosis, tuple[Culprit, ...]]:
    """The diagnosis of a case, and its culprits, the layers at fault, with their causes.

    Args:
        measured: The measured case.
        lab: Runs the models of the case; None if the layers of the case are not known.
        culprits: The layers at fault that a search found; empty if it found none, or the case passes.
        cost: The cost of the search, in runs over all samples. For small models, finding causes may cost as
            much.
        high_fails: Whether the search found that the criteria fail with all layers in high precision.

    Raises:
        Int8accError: A model of the diagnosis does not run.
    """
    logger.info("%s: diagnosing", measured.case.name)
    clock, explained = measured.clock, tuple(culprits)
    late = not clock.interrupted  # no model runs, so this is done even after the time is up
    lines, first = clock.attempt("stages", lambda: _stages(measured), ((), None), late=late)
    if lab is not None and culprits:
        explained = clock.attempt("causes", lambda: _explained(measured, lab, culprits, cost), explained)
    if lab is not None:
        around = neighbours(lab.network, {culprit.layer for culprit in explained}, lab.int8.rest)
        explained = tuple(replace(culprit, neighbours=around.get(culprit.layer)) for culprit in explained)
    layers, notes = _layers(measured, lab)
    ranges = None
    if lab is not None and not lab.is_narrow and not measured.int8_passed:
        ranges = clock.attempt("ranges", lambda: _odd_ranges(lab), None)
    diagnosis = Diagnosis(
        met=measured.int8_passed,
        stages=lines,
        first_stage=first,
        ranges=ranges,
        preprocessing_mismatch=clock.attempt(
            "causes", lambda: _decisive_mismatch(lab, measured.result.findings, explained, ranges), ""
        ),
        fixed_pairs=measured.int8.network.fixed_pairs if measured.int8 is not None else (),
        layers=layers,
        calibrations=_calibrations(lab) if lab is not None and measured.settings.calibrations else (),
        notes=notes,
        jumps=_jumps(measured) if not measured.int8_passed else (),
        other_model=_other_model(measured) if lab is not None and high_fails else None,
    )
    return diagnosis, explained


def _other_model(measured: Measured) -> OtherModel | None:
    """How the user's quantized model differs from the float model; None if they cannot be compared."""
    try:
        return measured.clock.attempt("causes", lambda: other_model(measured), None)
    except (EngineError, ModelError) as error:
        logger.info("%s: not compared with the float model: %s", measured.case.name, error)
        return None


def _jumps(measured: Measured) -> tuple[Jump, ...]:
    """Nodes that choose among values, like TopK, and on which judged outputs depend."""
    nodes, own = measured.model.index.nodes, {o.name for o in measured.model.own_outputs}
    judged = [
        output.output
        for output in measured.result.outputs
        if any(score.limit is not None for score in output.scores)
        or (measured.judge.metrics and output.output in own)
    ]
    found = choices(measured.model, list(dict.fromkeys(judged)))
    return tuple(Jump(name, nodes[name].op_type, *both) for name, both in found.items())


def _stages(measured: Measured) -> tuple[tuple[StageLine, ...], Stage | None]:
    """A comparison for each form of the model, from framework to engine, and the first form that fails."""
    runs = measured.runs
    stages = stages_of(
        runs.roles,
        engines=measured.backend.builds_engines,
        half=measured.half,
        implicit=isinstance(measured.candidate, ImplicitForm),
        narrow=measured.case.candidate is not None,
    )
    verdict = timed(measured.result, measured.clock).evidence

    def evidence(stage: Stage) -> Evidence:
        """The evidence for a stage: which model ran, and where."""
        role = stages[stage]
        where = verdict.place if role in (Role.BASELINE, Role.INT8) else "exact"
        realized = verdict.realized if role == Role.INT8 else None
        return replace(verdict, place=where, realized=realized)

    return place(
        stages,
        lambda against, stage: runs.comparison(stages[against], stages[stage]).verdict(),
        evidence,
        [stage for stage, role in stages.items() if runs.bad.broken[role]],
    )


def _explained(measured: Measured, lab: Lab, culprits: Sequence[Culprit], cost: float) -> tuple[Culprit, ...]:
    """``culprits`` with their causes. For some causes, like a missing scale, the verdict is the evidence."""
    found = _causes(measured, lab, culprits, cost)
    verdict = timed(measured.result, measured.clock).evidence
    for layer, cause in found.items():
        if cause.kind in _SHOWN_BY_VERDICT:
            found[layer] = replace(cause, evidence=verdict)
    return tuple(replace(culprit, cause=found.get(culprit.layer)) for culprit in culprits)


def _causes(measured: Measured, lab: Lab, culprits: Sequence[Culprit], cost: float) -> dict[str, Cause]:
    """Maps each layer at fault to its cause. ``cost``, that of the search, may raise the budget of trials."""
    engine_only = _is_engine_only(measured)
    if lab.is_narrow:
        shown = (culprit for culprit in culprits if engine_only or not culprit.hidden)
        return {c.layer: narrow_cause(lab, c, engine_only=engine_only) for c in shown}
    budget = lab.budget(_RUNS, most=max(cost, _RUNS, _RUNS_EACH * len(culprits)))
    missed = [score for score in measured.result.scores if not score.passed]
    layers = [culprit.layer for culprit in culprits]
    return explain(
        lab.meter,
        layers,
        rest=lab.int8.rest,
        engine_only=engine_only,
        unstable=bool(missed) and all(score.limit_in_noise for score in missed),
        trials=None if engine_only else Interventions(lab, layers, budget),
    )


def _is_engine_only(measured: Measured) -> bool:
    """Whether the same model passes in ONNX Runtime, so that only the TensorRT engine is at fault."""
    runs = measured.runs
    if Role.SIMULATED not in runs.roles or measured.int8_passed:
        return False
    engine, model = (runs.comparison(Role.BASELINE, r).verdict() for r in (Role.INT8, Role.SIMULATED))
    return model.passed and is_own_doing(engine, model)


def _layers(measured: Measured, lab: Lab | None) -> tuple[tuple[LayerError, ...], tuple[str, ...]]:
    """Return the error of each layer, and notes for the report; no layers in FP16, BF16 or without a lab.

    If the case passes, errors are measured only if the settings ask for them. The layers of an engine are
    measured only if the settings ask for it, or if the candidate passes in ONNX Runtime and its engine fails.
    """
    asked = measured.settings.layers
    if lab is None or lab.is_narrow or (measured.int8_passed and not asked):
        return (), ()
    clock = measured.clock

    def found() -> tuple[LayerError, ...]:
        return layer_errors(lab.network, lab.int8.rest, measured.inputs, measured.sessions)

    layers = clock.attempt("layers", found, ())
    if not layers or (not asked and not _is_engine_only(measured)):
        return layers, ()
    return clock.attempt("engine-layers", lambda: engine_errors(measured, layers), (layers, ()))


def _calibrations(lab: Lab) -> tuple[CalibrationLine, ...]:
    return lab.clock.attempt("calibrations", lambda: compare_calibrations(lab), ())


def compare_calibrations(lab: Lab) -> tuple[CalibrationLine, ...]:
    """The scores of the case with its activations calibrated by each method, on all samples.

    Calibration uses the case's calibration data if it has any, otherwise its inputs. Weights keep their
    scales. The models run in ONNX Runtime even if the backend builds engines, because one engine for each
    method would take minutes.

    Returns:
        A line for the case as it is, then one line for each method.

    Raises:
        Int8accError: A model does not build or run, or the samples cannot be read.
    """
    name, source = lab.measured.case.name, lab.sources[0]
    logger.info("%s: comparing calibration methods, ranges from %s", name, source.description or "the inputs")
    tensors = activations(lab.network)
    ranges = Ranges(lab.values(source.data).of(tensors), ENTROPY_BINS)
    layers = units(lab.network, tensors, ranges)
    result = lab.measured.result
    lines = [CalibrationLine("as it is", result.evidence, result.passed)]
    for method in CANDIDATES:
        logger.info("%s: calibrated by %s", name, method)
        line = lab.clock.attempt("calibrations", partial(_calibrated, lab, layers, method), None)
        lines += [line] if line else []
    return tuple(lines)


def _calibrated(lab: Lab, chosen_units: Sequence[Unit], method: str) -> CalibrationLine:
    """The scores of the case with every activation calibrated by one method."""
    scales: dict[str, TensorScale] = {}
    for unit in chosen_units:
        lab.clock.check()
        scales |= dict.fromkeys(unit.tensors, symmetric(unit.scale(method)))
    started = time.perf_counter()
    verdict = lab.judged_here(Plan(scales=scales))
    cost = Cost(1.0, time.perf_counter() - started)
    samples = lab.measured.result.evidence.proved_on
    evidence = Evidence("plan", lab.place_here, samples, scores=verdict.scores, cost=cost)
    return CalibrationLine(method, evidence, verdict.passed)


def write_pieces(
    measured: Measured, layers: Sequence[str], folder: Path, root: Path | None = None
) -> tuple[str, ...]:
    """Write, for each layer at fault, the smallest part of the model that still shows the layer's error.

    Args:
        measured: The case.
        layers: The names of the layers at fault.
        folder: The folder in which each of these layers gets a folder.
        root: The report folder. No symbolic link may lead out of it. With None, links are followed.

    Returns:
        The paths of the folders.

    Raises:
        Int8accError: A part does not show the error, or cannot be written.
        OutOfTime: The time is up before the first part is written.
    """
    assert measured.int8 is not None
    measured.clock.check()
    feed, samples, worst = _worst_feed(measured)
    written = []
    for layer in layers:
        name = file_name(layer)
        if str(folder / name) in written:
            name += f"-{digest(layer)}"
        logger.info("%s: reducing the model to what shows the error of %s", measured.case.name, layer)
        piece = partial(
            reduce,
            measured.model,
            measured.int8.network,
            layer,
            feed,
            measured.int8.rest,
            folder / name,
            samples=samples,
            worst=worst,
            sessions=measured.sessions,
            root=root,
        )
        path = measured.clock.attempt("reproducer", piece, None)
        written += [str(path)] if path else []
    return tuple(written)


def _worst_feed(measured: Measured) -> tuple[Feed, range, int]:
    """The batch with the worst sample, the indices of its samples, and the index of the worst sample.

    The worst sample is the one with the lowest SQNR in the first output that has one.
    """
    worst = next((o.worst_sample for o in measured.result.outputs if o.worst_sample is not None), 0)
    samples = range(0)
    for batch in measured.inputs.batches():
        samples = range(samples.stop, samples.stop + batch.rows)
        if worst in samples:
            break
    return batch.feed, samples, worst


#: A range is too wide if it is at least this many times the greatest magnitude of its tensor.
_ODD = 2.0
#: Ranges count as set by hand if each distinct value belongs to at least this many tensors on average.
_BY_HAND = 3
#: Names of rules for calibration data. Findings by these rules explain a loss only if values are clipped.
_WEAK_MISMATCHES = frozenset({"data-few-samples", "data-same"})


@dataclass(frozen=True)
class Range:
    """The range of one activation, compared with the values of the tensor."""

    tensor: str
    reach: float
    """The clipping range: the greatest magnitude that the scale can express."""
    amax: float
    """The greatest magnitude of the tensor's values."""
    lost_db: float
    """How many dB of SQNR the tensor loses compared with the best scale."""


def survey(meter: EdgeMeter) -> tuple[Range, ...]:
    """The range of every activation, compared with the values of its tensor, in the order of the groups.

    Raises:
        EngineError: The float model does not run.
        DataError: The inputs cannot be read.
    """
    return tuple(
        Range(tensor, reach(edge.quantization), stats.amax, lost_db(stats, edge))
        for tensor, (stats, quantizations) in meter.measured.items()
        for edge in quantizations.values()
    )


def _odd_ranges(lab: Lab) -> OddRanges | None:
    """The wrong ranges of a case, compared with the calibration data if the spec has the key ``calibrate``.

    None if other ranges do not remove half of the loss: then another fault counts for more.
    """
    calibration, source = lab.measured.case.source.calibrate, lab.sources[0]
    if calibration is None:
        found = odd_ranges(survey(lab.meter))
    else:
        found = odd_ranges(survey(lab.meter), calibration.method, lab.values(source.data).maxima)
    best = {t: v.best_reach() / v.low.levels for t, (v, _) in lab.meter.measured.items() if v.is_counted}
    return found if found is not None and _other_scales_help(lab, best) else None


def odd_ranges(
    ranges: Sequence[Range],
    method: str = "",
    maxima: Callable[[Sequence[str]], Mapping[str, TensorValues]] | None = None,
) -> OddRanges | None:
    """The wrong ranges of a network, if at least a third of its ranges is wrong; None otherwise.

    Args:
        ranges: All ranges.
        method: The calibration method that made the ranges; empty if it is not known.
        maxima: Returns the values of tensors on the calibration data; None if there are none.
    """
    bad = [r for r in ranges if r.lost_db >= LOST_DB and r.amax > 0 and r.reach > 0]
    wide = [r for r in bad if r.reach >= _ODD * r.amax]
    narrow = [r for r in bad if r.amax >= r.reach]
    odd = (*wide, *narrow)
    if len(bad) < 2 or len(odd) < max(2, len(ranges) / 3):
        return None
    known = {} if maxima is None else maxima([r.tensor for r in odd])
    values = Counter(float(f"{r.reach:.4g}") for r in ranges)
    by_hand = len(ranges) >= _BY_HAND * len(values)
    common = tuple(value for value, _ in values.most_common(3)) if by_hand else ()
    return OddRanges(
        len(ranges),
        tuple(r.reach / r.amax for r in wide),
        tuple(r.amax / r.reach for r in narrow),
        common,
        method,
        tuple(known[r.tensor].amax / r.amax for r in odd) if known else (),
    )


def _decisive_mismatch(
    lab: Lab | None, findings: Sequence[Finding], culprits: Sequence[Culprit], ranges: OddRanges | None
) -> str:
    """The name of the rule whose finding on the calibration data explains the loss; empty if none does."""
    narrow = ranges is not None and bool(ranges.narrow)
    cut_off = narrow or any(c.cause is not None and c.cause.kind == "saturation" for c in culprits)
    mismatches = [f.rule for f in findings if f.source == "data" and f.severity == "warning"]
    strong = [rule for rule in mismatches if rule not in _WEAK_MISMATCHES]
    if strong or not mismatches or not cut_off or lab is None or lab.is_narrow:
        return next(iter(strong), "")
    return mismatches[0] if _other_samples_help(lab) else ""


def _other_samples_help(lab: Lab) -> bool:
    """Whether half of the loss vanishes if the case's calibration method takes ranges from the inputs."""
    calibration = lab.measured.case.source.calibrate
    if calibration is None:
        return False
    method, options = METHODS[calibration.method], Options(calibration.percentile, calibration.top_k)
    held = lab.values(lab.inputs).of(activations(lab.network))
    ranges = {t: method.amax(values, options) for t, values in held.items() if values.is_counted}
    return _other_scales_help(lab, {t: amax / held[t].low.levels for t, amax in ranges.items()})


def _other_scales_help(lab: Lab, scales: Mapping[str, float]) -> bool:
    """Whether the given scales of activations remove half of the loss with all layers in the low format."""
    chosen = {tensor: symmetric(scales[tensor]) for tensor in activations(lab.network) if tensor in scales}
    loss = lab.simulator.normalized_loss
    return loss(Plan(scales=chosen)) <= loss(Plan()) / 2


#: Maximum number of inputs, and of outputs, that the drawing of a layer at fault shows.
_MOST = 5


def neighbours(network: Network, layers: set[str], rest: Precision) -> dict[str, Neighbours]:
    """The tensors that groups read, and the readers of their outputs, with formats and scales.

    Args:
        network: The case's own network.
        layers: The names of the groups.
        rest: The precision of nodes that are not quantized.

    Returns:
        The neighbours of each group. Constants that are not quantized, such as a bias, are left out.
    """
    edges = {(edge.node, edge.index): edge for edge in network.edges}
    found = {}
    for group in network.groups:
        if group.name in layers:
            inputs = list(_inputs(network, group, edges, rest))
            outputs = list(_outputs(network, group, edges, rest))
            more = max(len(inputs) - _MOST, 0) + max(len(outputs) - _MOST, 0)
            found[group.name] = Neighbours(tuple(inputs[:_MOST]), tuple(outputs[:_MOST]), more)
    return found


_Edges = dict[tuple[str, int], Edge]


def _inputs(network: Network, group: Group, edges: _Edges, rest: Precision) -> Iterator[Wire]:
    index = network.model.everywhere
    for name in group.nodes:
        for position, tensor in enumerate(index.nodes[name].input if name in index.nodes else ()):
            edge, producer = edges.get((name, position)), index.producer.get(tensor)
            if producer is not None and producer.name not in group.nodes:
                yield _wire(tensor, producer, edge, rest)
            elif producer is None and tensor and (edge is not None or tensor not in index.constants):
                yield Wire(
                    tensor, "constant" if tensor in index.constants else "input", **_format(edge, rest)
                )


def _outputs(network: Network, group: Group, edges: _Edges, rest: Precision) -> Iterator[Wire]:
    index = network.model.everywhere
    given = {output.name for output in network.model.outputs}
    for name in group.nodes:
        for tensor in index.nodes[name].output if name in index.nodes else ():
            for node, position in index.readers(tensor):
                if node.name not in group.nodes:
                    yield _wire(tensor, node, edges.get((node.name, position)), rest)
            if tensor in given:
                yield Wire(tensor, "output", format=rest)


def _wire(tensor: str, node: onnx.NodeProto, edge: Edge | None, rest: Precision) -> Wire:
    return Wire(tensor, "node", node.name, node.op_type, **_format(edge, rest))


def _format(edge: Edge | None, rest: Precision) -> dict[str, Any]:
    """The fields of a ``Wire`` for the number format in which a layer reads a tensor."""
    if edge is None:
        return {"format": rest}
    scale = edge.quantization.scale
    return {"format": edge.quantization.format.name, "scale": float(scale.max()), "scales": int(scale.size)}
