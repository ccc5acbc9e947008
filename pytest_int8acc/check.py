"""One case from spec to result: measured, and where it fails, searched, explained and mended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pytest_int8acc.case.forms import Fix
from pytest_int8acc.diagnose.case import diagnose, wants_diagnosis, write_pieces
from pytest_int8acc.errors import DataError, Int8accError
from pytest_int8acc.fix import FixFiles, write_fix
from pytest_int8acc.goldens.request import Goldens
from pytest_int8acc.measure.measured import Measured, measure
from pytest_int8acc.repair.precision import investigate, latency_of
from pytest_int8acc.repair.repair import Repaired, repair
from pytest_int8acc.results import CaseResult, Culprit, Rescale
from pytest_int8acc.settings import Settings
from pytest_int8acc.spec.models import Case


def check(case: Case, settings: Settings, goldens: Goldens | None = None) -> CaseResult:
    """Run one case; the result says whether it passed, and if not, which layers are at fault and why.

    Args:
        case: From ``load_spec``.
        settings: What command line, spec and configuration say together.
        goldens: As for ``measure``.

    Raises:
        Int8accError: There is no verdict: a model, the data, a scale file or a criterion is at fault.
    """
    measured = measure(case, settings, goldens)
    try:
        return conclude(measured)
    finally:
        measured.close()


def conclude(measured: Measured, folder: Path | None = None) -> CaseResult:
    """The result of a measured case, with search, diagnosis and repair where the settings want them.

    Where one of these ends with an error, the result says so, and the verdict stands.

    Args:
        measured: From ``measure``.
        folder: Where the fix goes as files; None writes none.

    Raises:
        DataError: The inputs are others on each reading: nothing measured on them stands.
    """
    try:
        return _explained(measured, folder)
    except DataError:
        raise
    except Int8accError as error:
        said = f"no search or diagnosis: {error}"
        return replace(measured.result, warnings=(*measured.result.warnings, said))


def _explained(measured: Measured, folder: Path | None) -> CaseResult:
    """The result, and all that is to be said of why."""
    result, settings = measured.result, measured.settings
    searched = settings.search == "always" or (settings.search == "auto" and not measured.int8_passed)
    if searched and measured.int8 is not None:
        return _searched(measured, folder)
    if searched:
        note = "an engine cannot be searched: name the model it was made from under 'int8: {model: ...}'"
        result = replace(result, notes=(*result.notes, note))
    if wants_diagnosis(measured) and settings.search != "off":
        result = replace(result, diagnosis=diagnose(measured)[0])
    return result


def _searched(measured: Measured, folder: Path | None) -> CaseResult:
    """The layers that must leave INT8, why they fail, and the cheapest way to meet the criteria."""
    outcome, fix = investigate(measured)
    result = replace(measured.result, search=outcome, engines=measured.backend.engines)
    if not wants_diagnosis(measured):
        return result
    diagnosis, culprits = diagnose(measured, outcome.culprits)
    price = latency_of(measured) if measured.backend.is_tensorrt else None
    repaired = repair(measured, outcome, price=price)
    diagnosis = replace(diagnosis, repairs=repaired.repairs, notes=(*diagnosis.notes, *repaired.notes))
    result = replace(result, search=replace(outcome, culprits=culprits), diagnosis=diagnosis)
    if folder is None:
        return result
    return replace(result, written=_write(measured, culprits, fix, repaired, folder))


def _write(
    measured: Measured, culprits: Sequence[Culprit], found: Fix | None, repaired: Repaired, folder: Path
) -> tuple[str, ...]:
    """The cheapest fix as files, what the search found where that is another, and reproducers."""
    written: tuple[str, ...] = ()
    if repaired.best is not None:
        written = write_fix(folder, _files(measured, repaired.best, repaired.repairs[0].rescales))
        folder_of_found = folder / "high"
    else:
        folder_of_found = folder
    if found is not None:
        written += write_fix(folder_of_found, _files(measured, found))
    if measured.settings.reduce:
        written += write_pieces(measured, [c.layer for c in culprits], folder / "reduced")
    return written


def _files(measured: Measured, fix: Fix, rescales: tuple[Rescale, ...] = ()) -> FixFiles:
    path, int8 = measured.case.path(measured.case.model), fix.int8
    model, by_flags = measured.backend.deployed(fix.form)
    return FixFiles(
        model,
        int8.complete(fix.plan),
        int8.every,
        measured.model,
        path,
        int8.rest,
        rescales,
        tells_all=int8 is measured.int8,
        by_flags=by_flags,
    )
