"""One case from spec to result: measured, and where it fails, searched; the whole story, read downward."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pytest_int8acc.fix import write_fix
from pytest_int8acc.investigate import investigate
from pytest_int8acc.measure import Measured, measure
from pytest_int8acc.results import CaseResult
from pytest_int8acc.settings import Settings
from pytest_int8acc.spec.models import Case


def check(case: Case, settings: Settings) -> CaseResult:
    """Run one case; the result says whether it passed, and if not, which layers are at fault.

    Args:
        case: From ``load_spec``.
        settings: What command line, spec and configuration say together.

    Raises:
        Int8accError: There is no verdict: a model, the data, a scale file or a criterion is at fault.
    """
    measured = measure(case, settings)
    try:
        return conclude(measured)
    finally:
        measured.close()


def conclude(measured: Measured, folder: Path | None = None) -> CaseResult:
    """The result of a measured case, with a search where the settings want one.

    Args:
        measured: From ``measure``.
        folder: Where the fix goes as files; None writes none.

    Raises:
        Int8accError: A model of the search does not build or run, or the files cannot be written.
    """
    result, when = measured.result, measured.settings.search
    if when == "off" or (when == "auto" and result.passed):
        return result
    if measured.int8 is None:
        note = "an engine cannot be searched: name the model it was made from under 'int8: {model: ...}'"
        return replace(result, notes=(*result.notes, note))
    outcome, fix = investigate(measured)
    result = replace(result, search=outcome)
    if fix is None or folder is None:
        return result
    return replace(result, written=write_fix(folder, fix.form.model, fix.plan))
