"""The diagnosis of a case: the first stage that fails, the causes of culprits, the error of each layer."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
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
from pytest_int8acc.graph.flow import choices
from pytest_int8acc.graph.network import Edge, Group, Network, Plan, Precision, TensorScale, symmetric
from pytest_int8acc.lab.interventions import Interventions
from pytest_int8acc.lab.lab import Lab
from pytest_int8acc.names import digest, file_name
from pytest_int8acc.observers.edges import LOST_DB, EdgeMeter, lost_db, reach
from pytest_int8acc.observers.methods import CANDIDATES
from pytest_int8acc.observers.ranges import ENTROPY_BINS
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
from pytest_int8acc.results.causes import Cause, CauseKind, Jump, OddRanges, Stage
from pytest_int8acc.runtime.forms import ImplicitForm
from pytest_int8acc.tensors import Feed

logger = logging.getLogger("pytest_int8acc")
#: Causes that the verdict itself shows, without a trial of their own.
_SHOWN_BY_VERDICT: tuple[CauseKind, ...] = ("missing-scale", "engine-only", "non-determinism")
#: Maximum cost of the trials of causes, in runs over all samples; never more than the search cost.
_RUNS = 6.0


def diagnose(
    measured: Measured, lab: Lab | None, culprits: Sequence[Culprit] = (), cost: float = 0.0
) -> tuple[Diagnosis, tuple[Culprit, ...]]:
    """The diagnosis of a case, and its culprits with their causes.

    Args:
        measured: The measured case.
        lab: The laboratory of the case; None where its layers are not known.
        culprits: The culprits that a search found; empty where the case passes or the search found none.
        cost: The cost of that search in runs over all samples. Causes may cost as much, at most ``_RUNS``.

    Raises:
        Int8accError: A model of the diagnosis does not run.
    """
    logger.info("%s: diagnosing", measured.case.name)
    clock, explained = measured.clock, tuple(culprits)
    late = not clock.interrupted  # it runs nothing
    lines, first = clock.attempt("stages", lambda: _stages(measured), ((), None), late=late)
    if lab is not None and culprits:
        explained = clock.attempt("causes", lambda: _explained(measured, lab, culprits, cost), explained)
    if lab is not None:
        around = neighbours(lab.network, {culprit.layer for culprit in explained}, lab.int8.rest)
        explained = tuple(replace(culprit, neighbours=around.get(culprit.layer)) for culprit in explained)
    layers, notes = _layers(measured, lab)
    ranges = None
    if lab is not None and not lab.is_narrow and not measured.int8_passed:
        ranges = clock.attempt("ranges", lambda: odd_ranges(survey(lab.meter)), None)
    diagnosis = Diagnosis(
        met=measured.int8_passed,
        stages=lines,
        first_stage=first,
        ranges=ranges,
        preprocessing_mismatch=decisive_mismatch(measured.result.findings, explained, ranges),
        fixed_pairs=measured.int8.network.fixed_pairs if measured.int8 is not None else (),
        layers=layers,
        calibrations=_calibrations(lab) if lab is not None and measured.settings.calibrations else (),
        notes=notes,
        jumps=_jumps(measured) if not measured.int8_passed else (),
    )
    return diagnosis, explained


def _jumps(measured: Measured) -> tuple[Jump, ...]:
    """Nodes that choose among values (TopK, NonMaxSuppression) in front of outputs that are judged."""
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
    """A line for each stage from the framework to the INT8 engine, and the first that fails."""
    runs = measured.runs
    stages = stages_of(
        runs.roles,
        engines=measured.backend.builds_engines,
        half=measured.half,
        implicit=isinstance(measured.candidate, ImplicitForm),
        narrow=measured.case.candidate is not None,
    )
    return place(
        stages,
        lambda against, stage: runs.comparison(stages[against], stages[stage]).verdict(),
        timed(measured.result, measured.clock).evidence,
        [stage for stage, role in stages.items() if runs.bad.broken[role]],
    )


def _explained(measured: Measured, lab: Lab, culprits: Sequence[Culprit], cost: float) -> tuple[Culprit, ...]:
    """The culprits with their causes, each with its evidence where there is some."""
    found = _causes(measured, lab, culprits, cost)
    verdict = timed(measured.result, measured.clock).evidence
    for layer, cause in found.items():
        if cause.kind in _SHOWN_BY_VERDICT:
            found[layer] = replace(cause, evidence=verdict)
    return tuple(replace(culprit, cause=found.get(culprit.layer)) for culprit in culprits)


def _causes(measured: Measured, lab: Lab, culprits: Sequence[Culprit], cost: float) -> dict[str, Cause]:
    """The cause of each culprit, by its name."""
    engine_only = _is_engine_only(measured)
    if lab.is_narrow:
        return {c.layer: narrow_cause(lab, c, engine_only=engine_only) for c in culprits}
    budget = lab.budget(_RUNS, most=cost)
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
    """Whether the same model passes in ONNX Runtime, so that only the engine computes wrong."""
    runs = measured.runs
    if Role.SIMULATED not in runs.roles or measured.int8_passed:
        return False
    engine, model = (runs.comparison(Role.BASELINE, r).verdict() for r in (Role.INT8, Role.SIMULATED))
    return model.passed and is_own_doing(engine, model)


def _layers(measured: Measured, lab: Lab | None) -> tuple[tuple[LayerError, ...], tuple[str, ...]]:
    """The error of every layer, and notes; between engines where asked for, or where only they tell."""
    asked = measured.settings.layers
    if lab is None or lab.is_narrow or (measured.int8_passed and not asked):
        return (), ()
    clock = measured.clock

    def found() -> tuple[LayerError, ...]:
        return layer_errors(lab.simulator.board(Plan()).as_run, measured.inputs, measured.sessions)

    layers = clock.attempt("layers", found, ())
    if not layers or (not asked and not _is_engine_only(measured)):
        return layers, ()
    return clock.attempt("engine-layers", lambda: engine_errors(measured, layers), (layers, ()))


def _calibrations(lab: Lab) -> tuple[CalibrationLine, ...]:
    return lab.clock.attempt("calibrations", lambda: compare_calibrations(lab), ())


def compare_calibrations(lab: Lab) -> tuple[CalibrationLine, ...]:
    """The case with its activations calibrated anew by each method, from one histogram each, on all samples.

    Samples are the case's calibration data where it has some, otherwise its inputs; weights keep their
    scales. Models run in ONNX Runtime: with Q/DQ exact where the case's backend builds engines, since one
    engine per method would take minutes.

    Returns:
        The case as it is, then one line per method.

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
    """The case with every activation calibrated by one method."""
    scales: dict[str, TensorScale] = {}
    for unit in chosen_units:
        lab.clock.check()
        scales |= dict.fromkeys(unit.tensors, symmetric(unit.scale(method)))
    verdict = lab.judged_here(Plan(scales=scales))
    proved_on, cost = lab.sample_set(), Cost(1.0)
    evidence = Evidence("plan", lab.place_here, proved_on, scores=verdict.scores, cost=cost)
    return CalibrationLine(method, evidence, verdict.passed)


def write_pieces(
    measured: Measured, layers: Sequence[str], folder: Path, root: Path | None = None
) -> tuple[str, ...]:
    """Write the smallest piece of the model around each culprit that still shows its error.

    No link may lead out of ``root``, the report folder.

    Raises:
        Int8accError: A piece does not show it, or cannot be written.
        OutOfTime: Before it begins.
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
    """The batch that holds the sample with the lowest SQNR, its samples' indices, and that sample's."""
    worst = next((o.worst_sample for o in measured.result.outputs if o.worst_sample is not None), 0)
    samples = range(0)
    for batch in measured.inputs.batches():
        samples = range(samples.stop, samples.stop + batch.rows)
        if worst in samples:
            break
    return batch.feed, samples, worst


#: A range that is at least this many times the maximum of its tensor is too wide.
_ODD = 2.0
#: Minimum number of tensors for each distinct range where ranges were set by hand.
_BY_HAND = 3
#: Findings on the calibration data that say little alone. Where values are clipped, they are the reason.
_WEAK_MISMATCHES = frozenset({"data-few-samples", "data-same"})


@dataclass(frozen=True)
class Range:
    """One activation's range compared with the values of the tensor."""

    tensor: str
    reach: float
    """Greatest magnitude that the scale expresses."""
    amax: float
    """Greatest magnitude seen."""
    lost_db: float
    """SQNR lost against the best scale."""


def survey(meter: EdgeMeter) -> tuple[Range, ...]:
    """Every activation range of a network compared with its tensor's values, in the order of the groups.

    Raises:
        EngineError: The float model does not run.
        DataError: The inputs cannot be read.
    """
    return tuple(
        Range(tensor, reach(edge.quantization), stats.amax, lost_db(stats, edge))
        for tensor, (stats, quantizations) in meter.measured.items()
        for edge in quantizations.values()
    )


def odd_ranges(ranges: Sequence[Range]) -> OddRanges | None:
    """The wrong ranges of a network, where most ranges are wrong; None otherwise."""
    bad = [r for r in ranges if r.lost_db >= LOST_DB and r.amax > 0 and r.reach > 0]
    wide = tuple(r.reach / r.amax for r in bad if r.reach >= _ODD * r.amax)
    narrow = tuple(r.amax / r.reach for r in bad if r.amax >= r.reach)
    if len(bad) < 2 or len(wide) + len(narrow) < max(2, len(ranges) / 3):
        return None
    values = Counter(float(f"{r.reach:.4g}") for r in ranges)
    by_hand = len(ranges) >= _BY_HAND * len(values)
    common = tuple(value for value, _ in values.most_common(3)) if by_hand else ()
    return OddRanges(len(ranges), wide, narrow, common)


def decisive_mismatch(
    findings: Sequence[Finding], culprits: Sequence[Culprit], ranges: OddRanges | None
) -> str:
    """The rule of the finding on the calibration data that explains the drop; empty where there is none."""
    narrow = ranges is not None and bool(ranges.narrow)
    cut_off = narrow or any(c.cause is not None and c.cause.kind == "saturation" for c in culprits)
    mismatches = [f.rule for f in findings if f.source == "data" and f.severity == "warning"]
    strong = [rule for rule in mismatches if rule not in _WEAK_MISMATCHES]
    return next(iter(strong or (mismatches if cut_off else [])), "")


#: Maximum number of wires on each side of a drawing.
_MOST = 5


def neighbours(network: Network, layers: set[str], rest: Precision) -> dict[str, Neighbours]:
    """The tensors that each of ``layers`` reads and the readers of its outputs, with formats and scales.

    Args:
        network: The case's own.
        layers: Names of its groups.
        rest: What is not quantized runs in this.

    Returns:
        By group. Constants that are not quantized, as a bias, are left out.
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
    index = network.model.index
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
    index = network.model.index
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
    """How a tensor is read there."""
    if edge is None:
        return {"format": rest}
    scale = edge.quantization.scale
    return {"format": edge.quantization.format.name, "scale": float(scale.max()), "scales": int(scale.size)}
