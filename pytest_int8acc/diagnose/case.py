"""A case diagnosed: where on its way it goes wrong, why its culprits do, and what each layer adds."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pytest_int8acc.case.forms import ImplicitForm
from pytest_int8acc.diagnose.causes import explain
from pytest_int8acc.diagnose.layers import engine_errors, layer_errors
from pytest_int8acc.diagnose.ranges import odd_ranges, survey, telling_slip
from pytest_int8acc.diagnose.reduce import reduce
from pytest_int8acc.diagnose.stages import place, stage_outputs
from pytest_int8acc.graph.network import Plan, symmetric
from pytest_int8acc.lab.lab import Lab
from pytest_int8acc.measure.measured import Measured
from pytest_int8acc.repair.scales import Ranges, activations, units
from pytest_int8acc.results import CalibrationLine, Culprit, Diagnosis, LayerError
from pytest_int8acc.scales.methods import METHODS
from pytest_int8acc.scales.ranges import ENTROPY_BINS
from pytest_int8acc.tensors import Feed

logger = logging.getLogger("pytest_int8acc")


def diagnose(
    measured: Measured, lab: Lab | None, culprits: Sequence[Culprit] = ()
) -> tuple[Diagnosis, tuple[Culprit, ...]]:
    """What is wrong with a case, and its culprits with their causes.

    Args:
        measured: From ``measure``.
        lab: Of the case; None where nothing is known of its layers.
        culprits: What a search found; empty where the case passes or nothing was found.

    Raises:
        Int8accError: A model of the diagnosis does not run.
    """
    logger.info("%s: diagnosing", measured.case.name)
    stages = stage_outputs(
        measured.runs,
        engines=measured.backend.builds_engines,
        half=measured.half,
        implicit=isinstance(measured.candidate, ImplicitForm),
        framework=measured.framework,
    )
    lines, first = place(stages, measured.judge)
    explained = _explained(measured, lab, culprits) if lab is not None else tuple(culprits)
    layers, notes = _layers(measured, lab)
    ranges = None if lab is None or measured.int8_passed else odd_ranges(survey(lab.meter))
    diagnosis = Diagnosis(
        met=measured.int8_passed,
        stages=lines,
        first_stage=first,
        ranges=ranges,
        slip=telling_slip(measured.result.findings, explained, ranges),
        fixed_pairs=measured.int8.network.fixed_pairs if measured.int8 is not None else (),
        layers=layers,
        calibrations=compare_calibrations(lab) if lab is not None and measured.settings.calibrations else (),
        notes=notes,
    )
    return diagnosis, explained


def _explained(measured: Measured, lab: Lab, culprits: Sequence[Culprit]) -> tuple[Culprit, ...]:
    """The culprits with their causes."""
    if not culprits:
        return ()
    missed = [score for score in measured.result.scores if not score.passed]
    found = explain(
        lab.meter,
        [culprit.layer for culprit in culprits],
        rest=lab.int8.rest,
        engine_only=_is_engine_only(measured),
        unstable=bool(missed) and all(score.limit_in_noise for score in missed),
    )
    return tuple(replace(culprit, cause=found.get(culprit.layer)) for culprit in culprits)


def wants_diagnosis(measured: Measured) -> bool:
    """True where a case fails, or the settings ask for a view of a passing one."""
    settings = measured.settings
    return (
        not measured.int8_passed or settings.layers or settings.calibrations or bool(measured.case.reference)
    )


def _is_engine_only(measured: Measured) -> bool:
    """True where the same Q/DQ model passes in ONNX Runtime: the drop is TensorRT's own doing."""
    simulated = measured.runs.simulated
    return simulated is not None and measured.judged(simulated).passed


def _layers(measured: Measured, lab: Lab | None) -> tuple[tuple[LayerError, ...], tuple[str, ...]]:
    """The error of every layer; between engines, too, where that was asked for or they alone can tell."""
    asked = measured.settings.layers
    if lab is None or (measured.int8_passed and not asked):
        return (), ()
    layers = layer_errors(lab.simulator.board(Plan()).as_run, measured.inputs, measured.sessions)
    if not asked and not _is_engine_only(measured):
        return layers, ()
    return engine_errors(measured, layers)


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
    wanted = units(lab.network, tensors, ranges)
    result = lab.measured.result
    lines = [CalibrationLine("as it is", result.scores, result.passed)]
    for method in METHODS:
        logger.info("%s: calibrated by %s", name, method)
        scales = {t: symmetric(unit.scale(method)) for unit in wanted for t in unit.tensors}
        verdict = lab.judged_here(Plan(scales=scales))
        lines.append(CalibrationLine(method, verdict.scores, verdict.passed))
    return tuple(lines)


def write_pieces(measured: Measured, layers: Sequence[str], folder: Path) -> tuple[str, ...]:
    """Write the smallest piece of the model around each culprit that still shows its error.

    Raises:
        Int8accError: A piece does not show it, or cannot be written.
    """
    assert measured.int8 is not None
    feed, samples, worst = _worst_feed(measured)
    written = []
    for layer in layers:
        name = re.sub(r"[^A-Za-z0-9_.-]+", "_", layer).strip("_") or "layer"
        logger.info("%s: reducing the model to what shows the error of %s", measured.case.name, layer)
        path = reduce(
            measured.model,
            measured.int8.network,
            layer,
            feed,
            measured.int8.rest,
            folder / name,
            samples=samples,
            worst=worst,
            sessions=measured.sessions,
        )
        written.append(str(path))
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
