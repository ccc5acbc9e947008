"""What is wrong or suspicious before anything runs in INT8: the Q/DQ, the scales, the calibration data."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_int8acc.case.data import calibration_data
from pytest_int8acc.case.forms import Int8Form
from pytest_int8acc.data import Dataset
from pytest_int8acc.data.slips import compare_inputs, sample_arrays
from pytest_int8acc.errors import ModelError
from pytest_int8acc.graph.lint import lint, lint_scales
from pytest_int8acc.graph.load import read_model
from pytest_int8acc.graph.model import Model
from pytest_int8acc.results import Finding
from pytest_int8acc.settings import Lint
from pytest_int8acc.spec.models import Case


def lint_model(case: Case, model: Model, wanted: Lint) -> tuple[Finding, ...]:
    """What lint says of the case's own Q/DQ model, read as it is in the file; nothing where it has none.

    Raises:
        ModelError: ``wanted`` is error, and TensorRT rejects it; or the file cannot be read.
    """
    if wanted == "off" or case.int8.model is None:
        return ()
    found = lint(read_model(case.path(case.int8.model)), float_model=model)
    return _judged(case.int8.model, found, wanted)


def lint_network(case: Case, int8: Int8Form | None, wanted: Lint) -> tuple[Finding, ...]:
    """What lint says of scales from a file; a network read from a Q/DQ model has been linted as that.

    Raises:
        ModelError: ``wanted`` is error, and there is an error among them.
    """
    if wanted == "off" or int8 is None or case.int8.model is not None:
        return ()
    return _judged(case.model, lint_scales(int8.network), wanted)


def compare_data(case: Case, model: Model, inputs: Dataset) -> tuple[Finding, ...]:
    """How the calibration samples differ from the inputs that are compared; nothing where they are one."""
    samples = calibration_data(case, model)
    if samples is None:
        return ()
    return compare_inputs(sample_arrays(samples, model.inputs), sample_arrays(inputs, model.inputs))


def _judged(name: str, found: tuple[Finding, ...], wanted: Lint) -> tuple[Finding, ...]:
    errors = list(_lines(found))
    if wanted == "error" and errors:
        raise ModelError(
            f"{name}: TensorRT rejects this Q/DQ, and lint is set to error:\n" + "\n".join(errors)
        )
    return found


def _lines(found: tuple[Finding, ...]) -> Iterator[str]:
    for finding in found:
        if finding.severity == "error":
            yield f"  {finding.rule}: {finding.subject}: {finding.text}; {finding.remedy}"
