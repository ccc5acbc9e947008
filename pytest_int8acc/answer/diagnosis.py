"""A case diagnosed: where on its way it goes wrong, why its culprits do, and what each layer adds."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from pytest_int8acc.answer.causes import explain, narrow_cause
from pytest_int8acc.answer.layers import engine_errors, layer_errors
from pytest_int8acc.answer.neighbours import neighbours
from pytest_int8acc.answer.ranges import decisive_mismatch, odd_ranges, survey
from pytest_int8acc.answer.reduce import reduce
from pytest_int8acc.answer.scales import Ranges, Unit, activations, units
from pytest_int8acc.answer.stages import is_own_doing, place, stages_of
from pytest_int8acc.case.measured import Measured
from pytest_int8acc.graph.flow import choices
from pytest_int8acc.graph.network import Plan, TensorScale, symmetric
from pytest_int8acc.lab.interventions import Interventions
from pytest_int8acc.lab.lab import Lab
from pytest_int8acc.names import digest, file_name
from pytest_int8acc.observers.methods import ENTROPY_BINS, METHODS
from pytest_int8acc.results import CalibrationLine, Culprit, Diagnosis, LayerError, Role, StageLine
from pytest_int8acc.results.causes import Jump, Stage
from pytest_int8acc.runtime.forms import ImplicitForm
from pytest_int8acc.tensors import Feed

logger = logging.getLogger("pytest_int8acc")
#: What trials of causes may cost, in runs over all samples; never more than the search did.
_RUNS = 6.0


def diagnose(
    measured: Measured, lab: Lab | None, culprits: Sequence[Culprit] = (), cost: float = 0.0
) -> tuple[Diagnosis, tuple[Culprit, ...]]:
    """What is wrong with a case, and its culprits with their causes.

    Args:
        measured: From ``measure``.
        lab: Of the case; None where nothing is known of its layers.
        culprits: What a search found; empty where the case passes or nothing was found.
        cost: Of that search, in runs over all samples; causes may cost as much, and no more than ``_RUNS``.

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
    """What chooses in front of outputs that are judged."""
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
    """The case on the line from the framework to the INT8 engine."""
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
        lambda against, stage: runs.scoring(stages[against], stages[stage]).verdict(),
        [stage for stage, role in stages.items() if runs.broken[role]],
    )


def _explained(measured: Measured, lab: Lab, culprits: Sequence[Culprit], cost: float) -> tuple[Culprit, ...]:
    """The culprits with their causes."""
    engine_only = _is_engine_only(measured)
    if lab.is_narrow:
        return tuple(replace(c, cause=narrow_cause(lab, c, engine_only=engine_only)) for c in culprits)
    budget = lab.budget(_RUNS, most=cost)
    missed = [score for score in measured.result.scores if not score.passed]
    layers = [culprit.layer for culprit in culprits]
    found = explain(
        lab.meter,
        layers,
        rest=lab.int8.rest,
        engine_only=engine_only,
        unstable=bool(missed) and all(score.limit_in_noise for score in missed),
        trials=None if engine_only else Interventions(lab, layers, budget),
    )
    return tuple(replace(culprit, cause=found.get(culprit.layer)) for culprit in culprits)


def _is_engine_only(measured: Measured) -> bool:
    """True where the same model passes in ONNX Runtime: the drop is TensorRT's own doing."""
    runs = measured.runs
    if Role.SIMULATED not in runs.roles or measured.int8_passed:
        return False
    engine, model = (runs.scoring(Role.BASELINE, r).verdict() for r in (Role.INT8, Role.SIMULATED))
    return model.passed and is_own_doing(engine, model)


def _layers(measured: Measured, lab: Lab | None) -> tuple[tuple[LayerError, ...], tuple[str, ...]]:
    """The error of every layer; between engines, too, where that was asked for or they alone can tell."""
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
    lines = [CalibrationLine("as it is", result.scores, result.passed)]
    for method in METHODS:
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
    return CalibrationLine(method, verdict.scores, verdict.passed)


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
