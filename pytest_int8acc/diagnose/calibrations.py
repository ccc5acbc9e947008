"""One table of all calibration methods for a whole case, from one histogram per activation."""

from __future__ import annotations

import logging

from pytest_int8acc.case.forms import Form
from pytest_int8acc.engines.calibrators import ENTROPY_BINS
from pytest_int8acc.engines.run import run_together
from pytest_int8acc.graph.change import Change
from pytest_int8acc.graph.network import Plan
from pytest_int8acc.measure.measured import Measured
from pytest_int8acc.repair.rescale import METHODS, Ranges, activations, rescaled, sources, units
from pytest_int8acc.results import CalibrationLine
from pytest_int8acc.tensors import Outputs

logger = logging.getLogger("pytest_int8acc")


def compare_calibrations(measured: Measured) -> tuple[CalibrationLine, ...]:
    """The case with its activations calibrated anew by each method, judged on all samples.

    Samples are the case's calibration data where it has some, otherwise its inputs; weights keep their
    scales. Models run in ONNX Runtime: with Q/DQ exact where the case's backend builds engines, since one
    engine per method would take minutes.

    Returns:
        The case as it is, then one line per method; nothing where its layers are not known.

    Raises:
        Int8accError: A model does not build or run, or the samples cannot be read.
    """
    int8 = measured.int8
    if int8 is None:
        return ()
    network, sessions = int8.network, measured.sessions
    source = sources(measured)[0]
    logger.info("%s: comparing calibration methods, ranges from %s", measured.case.name, source.words)
    tensors = activations(network)
    ranges = Ranges(network, tensors, source.data, sessions, ENTROPY_BINS)
    wanted = units(network, tensors, ranges)
    result = measured.result
    lines = [CalibrationLine("as it is", result.scores, result.passed)]
    for method in METHODS:
        logger.info("%s: calibrated by %s", measured.case.name, method)
        scales = {t: unit.scale(method) for unit in wanted for t in unit.tensors}
        form = rescaled(int8, Change(scales)).under(Plan(scales=scales))
        verdict = measured.judged(_run(measured, form))
        lines.append(CalibrationLine(method, verdict.scores, verdict.passed))
    return tuple(lines)


def _run(measured: Measured, form: Form) -> Outputs:
    sessions = measured.sessions
    opened = sessions.exact if measured.backend.needs_simulation else sessions.configured
    return run_together({"calibrated": opened(form.model)}, measured.inputs)["calibrated"]
