"""One case from spec to result: measured, and where it fails, searched, explained and mended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_int8acc.diagnose.case import diagnose, wants_diagnosis, write_pieces
from pytest_int8acc.errors import DataError, Int8accError
from pytest_int8acc.fix import FixFiles, write_fix
from pytest_int8acc.goldens import Goldens
from pytest_int8acc.lab.lab import Lab, Proof
from pytest_int8acc.measure.measured import Measured, measure
from pytest_int8acc.repair.precision import Found, find_precision
from pytest_int8acc.repair.repair import Repaired, repair
from pytest_int8acc.results import CaseResult, Diagnosis
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

    Each step adds to the result. Where one ends with an error, the result says so, and what the steps before
    it added stands.

    Args:
        measured: From ``measure``.
        folder: Where the fix goes as files; None writes none.

    Raises:
        DataError: The inputs are others on each reading: nothing measured on them stands.
    """
    settings = measured.settings
    wanted = settings.search == "always" or (settings.search == "auto" and not measured.int8_passed)
    lab = None if measured.int8 is None else Lab(measured, measured.int8)
    if wanted and lab is not None:
        return _Steps(lab, folder).run()
    result = measured.result
    if wanted:
        note = "an engine cannot be searched: name the model it was made from under 'int8: {model: ...}'"
        result = replace(result, notes=(*result.notes, note))
    if wants_diagnosis(measured) and settings.search != "off":
        result = _tried("diagnosis", result, lambda r: replace(r, diagnosis=diagnose(measured, lab)[0]))
    return result


def _tried(what: str, result: CaseResult, step: Callable[[CaseResult], CaseResult]) -> CaseResult:
    """The result after a step, or as it was with a warning where the step ends with an error."""
    try:
        return step(result)
    except DataError:
        raise
    except Int8accError as error:
        return replace(result, warnings=(*result.warnings, f"no {what}: {error}"))


@dataclass
class _Steps:
    """The steps of a case that is searched, in one lab."""

    lab: Lab
    folder: Path | None
    found: Found | None = None
    repaired: Repaired | None = None

    def run(self) -> CaseResult:
        """All steps, in order."""
        steps = {"search": self.search}
        if wants_diagnosis(self.lab.measured):
            steps |= {"diagnosis": self.diagnose, "repair": self.repair}
            if self.folder is not None:
                steps |= {"fix as files": self.write_fix, "reproducer": self.write_pieces}
        result = self.lab.measured.result
        for what, step in steps.items():
            result = _tried(what, result, step)
        return result

    def search(self, result: CaseResult) -> CaseResult:
        """The layers that must leave INT8."""
        outcome, self.found = find_precision(self.lab)
        return replace(result, search=outcome, engines=self.lab.measured.backend.engines)

    def diagnose(self, result: CaseResult) -> CaseResult:
        """Where it goes wrong, and why the culprits do."""
        diagnosis, culprits = diagnose(
            self.lab.measured, self.lab, result.search.culprits if result.search else ()
        )
        outcome = result.search and replace(result.search, culprits=culprits)
        return replace(result, search=outcome, diagnosis=diagnosis)

    def repair(self, result: CaseResult) -> CaseResult:
        """The cheapest way to meet the criteria."""
        outcome, diagnosis = result.search, result.diagnosis or Diagnosis()
        if outcome is None or self.found is None:
            return result
        self.repaired = repaired = repair(self.lab, outcome, self.found)
        notes = (*diagnosis.notes, *repaired.notes)
        diagnosis = replace(diagnosis, repairs=repaired.repairs, notes=notes)
        return replace(result, diagnosis=diagnosis)

    def write_fix(self, result: CaseResult) -> CaseResult:
        """The cheapest fix as files, and what the search found where that is another."""
        assert self.folder is not None
        proofs = self._proofs()
        for proof in proofs:
            folder = self.folder if proof is proofs[0] else self.folder / "high"
            written = write_fix(folder, self._files(proof))
            result = replace(result, written=(*result.written, *written))
        return result

    def _proofs(self) -> tuple[Proof, ...]:
        """What was proved, cheapest first; what the search found alone where there was no repair."""
        if self.repaired is not None:
            return self.repaired.proofs
        return () if self.found is None or self.found.fix is None else (self.found.fix,)

    def write_pieces(self, result: CaseResult) -> CaseResult:
        """Reproducers of the culprits, where they are wanted."""
        if not self.lab.measured.settings.reduce or result.search is None or self.folder is None:
            return result
        layers = [culprit.layer for culprit in result.search.culprits]
        written = write_pieces(self.lab.measured, layers, self.folder / "reduced")
        return replace(result, written=(*result.written, *written))

    def _files(self, proof: Proof) -> FixFiles:
        measured, int8 = self.lab.measured, self.lab.int8
        path, plan = measured.case.path(measured.case.model), int8.complete(proof.plan)
        model, by_flags = measured.backend.deployed(proof.form)
        return FixFiles(model, plan, int8.every, measured.model, path, int8.rest, by_flags=by_flags)
