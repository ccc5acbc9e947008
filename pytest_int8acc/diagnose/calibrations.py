"""One table of all calibration methods for a whole case, from one histogram per activation."""

from __future__ import annotations

import logging

from pytest_int8acc.engines.calibrators import ENTROPY_BINS
from pytest_int8acc.graph.network import Plan, symmetric
from pytest_int8acc.lab.lab import Lab
from pytest_int8acc.repair.scales import Ranges, activations, units
from pytest_int8acc.results import CalibrationLine
from pytest_int8acc.scales.methods import METHODS

logger = logging.getLogger("pytest_int8acc")


def compare_calibrations(lab: Lab) -> tuple[CalibrationLine, ...]:
    """The case with its activations calibrated anew by each method, judged on all samples.

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
