"""The steps that may follow a verdict, like search and diagnosis. Each step adds to the case's result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from pytest_int8acc.answer.diagnosis import diagnose, write_pieces
from pytest_int8acc.answer.latency import find_faster
from pytest_int8acc.answer.precision import Found, adds_up, find_precision, keeps_low, tradeoff
from pytest_int8acc.answer.remedies import Remedied, find_remedies
from pytest_int8acc.answer.samples import worst_samples
from pytest_int8acc.case.forms import Int8Form
from pytest_int8acc.case.measured import Measured
from pytest_int8acc.errors import DataError, Int8accError, listed
from pytest_int8acc.fix import FixFiles, write_fix
from pytest_int8acc.graph.interface import with_own_interface
from pytest_int8acc.graph.model import without_extra_outputs
from pytest_int8acc.lab.lab import Lab, Proof, open_lab
from pytest_int8acc.results import CaseResult, Diagnosis, Latency, Part, PhaseName, Role, SearchOutcome

#: For each step after the verdict, the phase whose time includes the step.
_PHASES: Mapping[Part, PhaseName] = {
    "search": "search",
    "causes": "causes",
    "repair": "repair",
    "speed": "speed",
    "fix": "files",
    "reproducer": "files",
    "worst-samples": "causes",
}


@dataclass
class Steps:
    """Runs the steps after the verdict of one case, and collects their results."""

    measured: Measured
    folder: Path | None
    """The folder for the files of the fix; with None no files are written."""
    result: CaseResult
    """The result with everything that the steps have added so far."""
    root: Path | None = None
    """The report folder. No symbolic link may lead out of it. With None, links are followed."""
    found: Found | None = None
    remedied: Remedied | None = None

    def run(self, *, searches: bool, explained: bool, faster: bool = False) -> None:
        """Run the steps in order.

        Args:
            searches: Whether to search for the groups that must leave the low format.
            explained: Whether to look for causes and fixes.
            faster: Whether to search a faster plan. The candidate then meets its limits on accuracy.
        """
        measured, lab = self.measured, None
        if measured.int8 is not None:
            proves = searches and not measured.int8_passed
            lab = (open_lab if proves else Lab)(measured, measured.int8)
            if lab.own is not None and lab.own.warning:
                self.result = replace(self.result, warnings=(*self.result.warnings, lab.own.warning))
        if searches and lab is None:
            note = "an engine cannot be searched: name the model it was made from under 'int8: {model: ...}'"
            self.result = replace(self.result, notes=(*self.result.notes, note))
        self._answer(lab, searches=searches, explained=explained)
        if lab is not None and not measured.clock.over and self._is_refuted(lab):
            lab = Lab(measured, lab.int8)
            self._answer_anew(lab, explained=explained)
        if lab is not None:
            lab.close()
        if faster and lab is not None:
            self._take("search for a faster plan", "speed", self.speed_up, lab.int8)
        repaired = explained and searches
        if repaired and lab is not None:
            self._take("comparison of the fix with a default session", "repair", self.run_by_default)
        if (repaired or faster) and lab is not None and self.folder is not None:
            self._write(lab, self.folder)
        if explained and self.folder is not None and not measured.int8_passed:
            self._take("worst samples", "worst-samples", self.show_samples)

    def _write(self, lab: Lab, folder: Path) -> None:
        """Write the files of the fix, and the reproducers if the settings ask for them."""
        self._take("fix as files", "fix", self.write_fix, lab, folder)
        if self.measured.settings.reduce and self.result.search is not None:
            self._take("reproducer", "reproducer", self.write_pieces, self.result.search, folder)

    def _answer(self, lab: Lab | None, *, searches: bool, explained: bool) -> None:
        """Search for layers at fault, for causes and for fixes, on the samples that ``lab`` uses."""
        if searches and lab is not None:
            self._take("search", "search", self.search, lab)
        if explained and (self.measured.settings.search != "off" or searches):
            self._take("diagnosis", "causes", self.diagnose, lab)
        if explained and searches and lab is not None:
            self._take("repair", "repair", self.repair, lab)

    def _is_refuted(self, lab: Lab) -> bool:
        """Whether the search must be repeated on all samples, because the held-out samples may refute it.

        They refute the search if its plan fails on them, because the plan then lacks layers. They may also
        refute it if the criteria fail, even with all layers in high precision, on the samples that choose
        plans.
        """
        if not lab.split.held_out or self.found is None:
            return False
        proof, holds = self.found.proof, any(proof.holds for proof in self._proofs())
        if self.found.result.ending.kind == "high-fails":
            return not holds
        if proof is None or proof.passed:
            return False
        # If the built model also fails on the samples that chose the plan, the search is repeated only if no
        # fix meets the criteria with a safety margin.
        return proof.chosen.passed or not holds

    def _answer_anew(self, lab: Lab, *, explained: bool) -> None:
        """Search again on all samples, none of them held out. Fixes that were built and passed are kept."""
        proved = self.remedied if any(proof.passed for proof in self._proofs()) else None
        if self.found is not None and self.found.proof is not None:
            note = "a plan that some samples chose fails on the others, so all samples choose one"
            self.result = replace(self.result, notes=(*self.result.notes, note))
        self.found = self.remedied = None
        self._answer(lab, searches=True, explained=explained and proved is None)
        if proved is None or not explained:
            return
        self._take("diagnosis", "causes", self.diagnose, lab)
        self.remedied, diagnosis = proved, self.result.diagnosis or Diagnosis()
        diagnosis = replace(diagnosis, repairs=proved.repairs, notes=(*diagnosis.notes, *proved.notes))
        self.result = replace(self.result, diagnosis=diagnosis)

    def _take(self, what: str, part: Part, step: Callable[..., CaseResult], *facts: object) -> None:
        """Run one step. If the step ends with an error, the result gets a warning that names it ``what``.

        A step begins even after the time is up, because the step itself checks the clock before each trial
        and build.
        """
        clock = self.measured.clock
        with clock.phase(_PHASES[part]):
            try:
                self.result = clock.attempt(part, lambda: step(*facts), None, late=True) or self.result
            except DataError:
                raise
            except Int8accError as error:
                warnings = (*self.result.warnings, f"no {what}: {error}")
                self.result = replace(self.result, warnings=warnings)

    def search(self, lab: Lab) -> CaseResult:
        """Search for the layers that must leave the low format, and add them to the result."""
        outcome, self.found = find_precision(lab)
        times: dict[Role, Latency | None] = {info.role: info.latency for info in self.result.engines}
        engines = self.measured.backend.engines  # an engine that was opened again has no latency
        engines = tuple(replace(info, latency=info.latency or times.get(info.role)) for info in engines)
        return replace(self.result, search=outcome, engines=engines)

    def diagnose(self, lab: Lab | None) -> CaseResult:
        """Add the first form of the model that fails, and the causes of layers at fault, to the result."""
        search = self.result.search
        known = (search.culprits, search.cost) if search else ()
        high_fails = search is not None and search.ending.kind == "high-fails"
        diagnosis, culprits = diagnose(self.measured, lab, *known, high_fails=high_fails)
        return replace(self.result, search=search and replace(search, culprits=culprits), diagnosis=diagnosis)

    def show_samples(self) -> CaseResult:
        """Add the worst samples, which the HTML report shows, to the result."""
        self.measured.clock.check()
        diagnosis = replace(self.result.diagnosis or Diagnosis(), worst=worst_samples(self.measured))
        return replace(self.result, diagnosis=diagnosis)

    def repair(self, lab: Lab) -> CaseResult:
        """Add the fixes to the result.

        If the noise of many layers adds up, the result also says how scores improve with more layers in high
        precision.
        """
        outcome, diagnosis = self.result.search, self.result.diagnosis or Diagnosis()
        if outcome is None or self.found is None:
            return self.result
        self.remedied = remedied = find_remedies(lab, outcome, self.found)
        notes = (*diagnosis.notes, *remedied.notes)
        diagnosis = replace(diagnosis, repairs=remedied.repairs, notes=notes, scales=remedied.scales)
        if adds_up(outcome) and all(found.layers for found in remedied.repairs):
            chosen = lab.clock.attempt("tradeoff", partial(tradeoff, lab, self.found), None)
            outcome = replace(outcome, tradeoff=chosen)
        if outcome.culprits and not keeps_low(lab, outcome) and not remedied.repairs:
            outcome = outcome.without_plan()
        return replace(self.result, search=outcome, diagnosis=diagnosis)

    def speed_up(self, int8: Int8Form) -> CaseResult:
        """Add the search for a faster plan to the result, and the plan as the recommended fix."""
        faster = find_faster(open_lab(self.measured, int8, passes=True))
        if faster is None:
            return self.result
        diagnosis, engines = self.result.diagnosis or Diagnosis(), self.result.engines
        repairs, notes = diagnosis.repairs, (*diagnosis.notes, *faster.notes)
        if faster.repair is not None and faster.proof is not None:
            repairs = (faster.repair, *repairs)
            self.remedied = Remedied(repairs, (faster.proof, *self._proofs()), notes)
            others = (info for info in engines if info.role != Role.FIXED)
            fixed = (info for info in self.measured.backend.engines if info.role == Role.FIXED)
            engines = (*others, *(replace(info, latency=faster.repair.latency) for info in fixed))
        diagnosis = replace(diagnosis, repairs=repairs, notes=notes, speed=faster.search)
        return replace(self.result, diagnosis=diagnosis, engines=engines)

    def run_by_default(self) -> CaseResult:
        """Add to the result how the recommended fix behaves in a default session of ONNX Runtime.

        If users deploy the default session, the fix already ran in that session when it was built.
        """
        proof = next(iter(self._proofs()), None)
        if proof is None:
            return self.result
        if proof.rewritten_for:
            names = listed(proof.rewritten_for)
            note = f"the fix is written in another form, which ONNX Runtime's optimizer {names} leaves alone"
            return replace(self.result, notes=(*self.result.notes, note))
        found = proof.by_default
        # If users deploy the default session, the fix was already judged in that session.
        if not (self.measured.deploys_default and proof.has_reserve):
            found = self.measured.default_session(proof.form)
        return replace(self.result, fixed_session=found)

    def write_fix(self, lab: Lab, folder: Path) -> CaseResult:
        """Write the files of the recommended fix, and of the second best fix in a subfolder."""
        measured, int8 = self.measured, lab.int8
        path = measured.case.path(measured.case.model)
        for name, proof in zip(("", "high"), self._proofs(), strict=False):
            plan, (model, by_flags) = int8.complete(proof.plan), measured.backend.deployed(proof.form)
            if not proof.rewritten_for:  # a rewritten model was compared before it was rewritten
                measured.truth.check_form(proof.form, int8.unrounded(proof.plan), model)
            model = without_extra_outputs(model)
            if int8.file is not None:
                model = with_own_interface(model, int8.file)
            own = model, plan, int8.every, without_extra_outputs(measured.model), path
            fix = FixFiles(*own, int8.rest, int8.other, by_flags)
            written = (*self.result.written, *write_fix(folder / name, fix, self.root))
            self.result = replace(self.result, written=written)
        return self.result

    def _proofs(self) -> tuple[Proof, ...]:
        """The plans whose built models met the criteria, the recommended plan first.

        Before the search for fixes, the only such plan is the one that the search for layers found.
        """
        if self.remedied is not None:
            return self.remedied.proofs
        return () if self.found is None or self.found.fix is None else (self.found.fix,)

    def write_pieces(self, search: SearchOutcome, folder: Path) -> CaseResult:
        """Write, for each layer at fault, a small model that reproduces the layer's error."""
        layers = [culprit.layer for culprit in search.culprits]
        written = write_pieces(self.measured, layers, folder / "reduced", self.root)
        return replace(self.result, written=(*self.result.written, *written))
