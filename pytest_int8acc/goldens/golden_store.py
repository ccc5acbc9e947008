"""Reads the golden of a case, checks that it fits the case, compares outputs with it, and records it.

A golden is a file of the baseline's recorded outputs and the accepted scores.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace

from pytest_int8acc.data import Dataset
from pytest_int8acc.errors import BaselineNotFiniteError
from pytest_int8acc.files import check_inside
from pytest_int8acc.goldens import Goldens, keeps_golden, ratchet
from pytest_int8acc.goldens.location import (
    HASH_LENGTH,
    Cutter,
    Location,
    first_samples,
    location_of,
    pack,
    shown,
)
from pytest_int8acc.goldens.record import (
    GoldenError,
    Kept,
    Provenance,
    Record,
    changes,
    compared,
    data_changes,
    made_with,
    provenance_of,
    remarks,
)
from pytest_int8acc.graph.model import Model
from pytest_int8acc.results import CaseResult, Score
from pytest_int8acc.runtime.forms import Form, ModelForm
from pytest_int8acc.scores.judge import Judge
from pytest_int8acc.scores.metrics import METRICS
from pytest_int8acc.settings import Settings
from pytest_int8acc.spec.load import display
from pytest_int8acc.spec.models import Case, Golden, GoldenType
from pytest_int8acc.tensors import Outputs


@dataclass(frozen=True, eq=False)
class GoldenStore:
    """The golden of a case, and how this run uses it.

    A golden consists of recorded baseline outputs and accepted scores.

    :func:`open_golden_store` creates the store before the case runs. A case without a golden has a store,
    too, which does nothing.
    """

    case: Case
    settings: Settings
    goldens: Goldens
    location: Location
    record: Record | None = None
    provenance: Provenance = field(default_factory=Provenance)
    regressions_allowed: Mapping[str, float] = field(default_factory=dict)
    """Metric name to how much worse than its accepted score the metric may become, in the metric's unit."""
    problem: str = ""
    """Why outputs cannot be compared with the golden; empty if they can. A run with a problem only writes a
    candidate: the golden that an update would write."""

    @property
    def recording(self) -> bool:
        """Whether this run writes the golden."""
        update = self.goldens.update
        return update == "all" or (update == "missing" and self.record is None)

    @property
    def replaces_baseline(self) -> bool:
        """Whether the golden's recorded outputs are the baseline, so that no baseline model runs."""
        return self.case.baseline == "golden" and not self.recording and not self.problem

    @property
    def limit(self) -> int | None:
        """Maximum number of samples that are read; None means all.

        A golden that replaces the baseline may have fewer samples than the data.
        """
        given = self.settings.samples
        if self.case.baseline != "golden":
            return given
        wish = self.case.golden.samples if isinstance(self.case.golden, Golden) else None
        kept = self.record.kept if self.record and not self.recording else None
        if kept is not None and self.record is not None and kept.samples < self.record.samples:
            wish = kept.samples
        return min((n for n in (given, wish) if n is not None), default=None)

    def check(self, inputs: Dataset) -> GoldenStore:
        """Return a copy of the store with ``problem`` set if the golden does not fit the case and ``inputs``.

        All samples of ``inputs`` are read once.

        Raises:
            GoldenError: The golden is missing or stale, and there is no folder for a candidate.
        """
        if not keeps_golden(self.case):
            return self
        inputs.read_once()
        if self.recording:
            return self
        problem = self.problem or self._problem(inputs)
        if problem and self.goldens.candidates is None:
            raise GoldenError(problem)
        return replace(self, problem=problem)

    def form(self, model: Model, own: Callable[[], Form]) -> Form:
        """Return the form of ``model`` that the report describes as the baseline.

        If recorded outputs replace the baseline, the description of the form says so.

        Args:
            model: The float model.
            own: Creates the baseline that the spec names. It is called only if the golden decides no form.
        """
        if self.replaces_baseline:
            assert self.record is not None
            note = "the baseline is a golden: its noise is not known"
            make = ModelForm.halved if self.record.baseline == "fp16" else ModelForm.as_it_is
            return replace(make(model, f"golden ({self.record.baseline.upper()})"), notes=(note,))
        if self.case.baseline == "golden" and self.record is not None and self.record.baseline == "fp32":
            return ModelForm.in_full(model)
        return own()

    @property
    def wants_baseline(self) -> bool:
        """Whether the baseline's outputs are needed, to compare them with the golden or to record them."""
        return bool(self.case.golden) or self.case.baseline == "golden" or self.recording

    @property
    def wants_candidate(self) -> bool:
        """Whether the candidate's outputs are needed for accepted scores, as this run may write a golden."""
        return self.recording or self.goldens.candidates is not None

    def cutter(self) -> Cutter:
        """Return an object that cuts the golden's outputs into batches.

        Raises:
            GoldenError: The file of outputs is missing or damaged.
        """
        assert self.record is not None
        location = self.location
        return Cutter(location.outputs(self.record), str(location), location.again)

    def judging(self) -> AbstractContextManager[None]:
        """Return the context in which the candidate is judged.

        If a golden replaces the baseline, NaN and infinity in the baseline become an error of the golden.
        """
        return _blaming(self.location) if self.replaces_baseline else nullcontext()

    def tighten(self, judge: Judge, model: Model) -> Judge:
        """Return a copy of ``judge`` with further limits that follow from the accepted scores.

        Raises:
            GoldenError: The golden lacks a score, or has a score of an output that ``model`` does not have.
        """
        record = None if self.recording or self.problem else self.record
        known = {output.name for output in model.outputs} | {limit.ref for limit, _ in judge.metrics}
        for score in () if record is None else record.scores:
            limited = score.metric in self.regressions_allowed and score.metric in METRICS
            if limited and not known & {score.subject, judge.splitter.whole_of(score.subject)}:
                raise GoldenError(
                    f"{self.location}: the golden is damaged: it has a score of '{score.subject}', which is "
                    f"no output of the model; {self.location.mend}"
                )
        try:
            return ratchet.tighten(judge, self.regressions_allowed, record)
        except GoldenError as error:
            raise GoldenError(f"{self.location}: {error}; {self.location.mend}") from None

    def named(self, metrics: tuple[Score, ...], own: Judge, judge: Judge) -> tuple[Score, ...]:
        """Return ``metrics`` with notes that name the accepted scores which serve as limits.

        Args:
            metrics: The scores of users' metrics, as ``judge`` gave them.
            own: The case's own criteria.
            judge: The result of ``tighten``: ``own`` with further limits from accepted scores.
        """
        return metrics if self.record is None else ratchet.named(metrics, own, judge, self.record)

    def finish(self, result: CaseResult, run: Compared) -> CaseResult:
        """Write the golden, or a candidate that users may commit, if the run requires it.

        Returns ``result`` with a text, scores and notes on the golden. ``run`` has the outputs of this run.

        Raises:
            GoldenError: The golden is missing, stale or damaged, or cannot be written.
        """
        if not keeps_golden(self.case):
            return result
        if self.recording:
            return _recorded(self, result, run)
        if self.problem:
            raise GoldenError(f"{self.problem}{_candidate(self, result, run)}")
        record = self.record
        assert record is not None
        update = f"`pytest {display(self.case.file)}::{self.case.name} --int8acc-update=all`"
        said = _described(self, record)
        if self.case.golden and not self.replaces_baseline:
            rows, said = _against_golden(self, record, result.baseline, run)
            result = replace(result, metrics=(*result.metrics, *rows))
        notes = (
            *ratchet.improvements(result, self.regressions_allowed, record, update),
            *remarks(record, self.provenance, run.engine),
            *ratchet.unaccepted_parts(result, self.regressions_allowed, record, update),
        )
        if not result.passed:
            said += _candidate(self, result, run)
        return replace(result, golden=said, notes=(*result.notes, *notes))

    def _problem(self, inputs: Dataset) -> str:
        """Return why outputs for ``inputs`` cannot be compared with this golden; empty if they can."""
        record, name = self.record, f"{display(self.case.file)}::{self.case.name}"
        if record is None:
            return (
                f"{self.location}: no golden yet; record it with `pytest {name} --int8acc-update=missing`, "
                "look at it and commit it"
            )
        kept = record.kept
        if kept is None and (self.case.golden or self.case.baseline == "golden"):
            return f"{self.location}: holds accepted scores and no outputs; {self.location.again}"
        reasons = list(changes(record, self.provenance, self.case))
        partly = kept is not None and self.case.baseline == "golden" and not self.regressions_allowed
        samples, digest = (kept.samples, kept.data) if kept and partly else (record.samples, record.data)
        reasons += data_changes(samples, digest, inputs)
        if not reasons:
            return ""
        return f"{self.location}: the golden is stale: {'; '.join(reasons)}; {self.location.again}"


@dataclass(frozen=True, eq=False)
class Compared:
    """The outputs of a run, and the facts that a golden of this run would contain."""

    baseline: Outputs
    candidate: Outputs
    engine: str
    """A description of the engine that the baseline ran on."""
    own: Judge
    """Applies the criteria of the spec, without limits that follow from accepted scores."""
    inputs: Dataset


def open_golden_store(
    case: Case, settings: Settings, goldens: Goldens, output_settings: Mapping[str, str]
) -> GoldenStore:
    """Return the store of a case's golden.

    Args:
        case: From ``load_spec``.
        settings: The settings of this run.
        goldens: The folder of the golden, and which goldens this run may write.
        output_settings: The settings of the backend that change outputs.

    Raises:
        GoldenError: The golden cannot be read.
        CriterionError: A regression limit of the spec names a metric that does not exist.
    """
    location = location_of(case, goldens.folder)
    if not keeps_golden(case):
        return GoldenStore(case, settings, Goldens(), location)
    regressions_allowed = ratchet.regressions(case)
    try:
        record = location.read()
    except GoldenError:
        if goldens.update != "all":  # with "all" a damaged golden is recorded anew
            raise
        record = None
    provenance = provenance_of(case, output_settings)
    return GoldenStore(case, settings, goldens, location, record, provenance, regressions_allowed)


def _described(golden_store: GoldenStore, record: Record) -> str:
    if record.kept is None:
        return f"accepted scores of {golden_store.location}"
    held = f"{record.baseline.upper()} of {record.kept.samples} samples, {record.kept.dtype}"
    return f"{golden_store.location} ({held})"


def _against_golden(
    golden_store: GoldenStore, record: Record, baseline: str, run: Compared
) -> tuple[list[Score], str]:
    """Return scores that compare this run's baseline with the golden's outputs, and a summary as text.

    Args:
        golden_store: The store of the golden.
        record: The golden's record, which must list outputs.
        baseline: A description of the baseline of this run.
        run: The outputs of this run. Its criteria ``own`` give the limits.
    """
    assert record.kept is not None
    live = first_samples(run.baseline, record.samples, record.kept.samples)
    golden = golden_store.cutter().cut(live)
    with _blaming(golden_store.location):
        judged = list(_judged(run.own, golden, live, labelled=record.kept.samples == record.samples))
    rows = [replace(s, subject=f"{baseline} against its golden: {s.subject}", note="") for s in judged]
    missed = [score for score in judged if not score.passed]
    if not missed:
        return rows, f"{baseline} keeps to {_described(golden_store, record)}"
    worst = missed[0]
    return rows, (
        f"{baseline} itself moved: {worst.subject} {worst.metric} {worst.value:.6g} "
        f"against {_described(golden_store, record)}, limit {worst.limit:g}; where that is meant, "
        f"{golden_store.location.again}"
    )


@contextmanager
def _blaming(location: Location) -> Iterator[None]:
    """Turn a BaselineNotFiniteError into an error of the golden.

    Raises:
        GoldenError: The golden has values that are not finite. Outputs that have a limit are never recorded
            with such values, so the golden is damaged.
    """
    try:
        yield
    except BaselineNotFiniteError as error:
        values = error.found.replace("the baseline itself", "the golden", 1)
        raise GoldenError(f"{location}: the golden is damaged: {values}; {location.mend}") from None


def _judged(judge: Judge, golden: Outputs, live: Outputs, *, labelled: bool) -> Iterator[Score]:
    """Yield the scores of ``live`` against ``golden`` that have a limit.

    ``labelled`` says whether the case's labels belong to these samples. If not, users' metrics are left out.
    """
    verdict = judge.compare(golden, live, judged_only=True, metrics=labelled).verdict()
    for output in verdict.outputs:
        yield from (score for score in output.scores if score.limit is not None)
    yield from verdict.metrics


def _recorded(golden_store: GoldenStore, result: CaseResult, run: Compared) -> CaseResult:
    """Write the golden of this run; return ``result`` with a text and the scores on what changed in it."""
    record, data = _make(golden_store, result, run)
    if not golden_store.location.write(record, data, replace=golden_store.goldens.update == "all"):
        return replace(result, golden=f"{golden_store.location} was recorded by another process meanwhile")
    what = f"{len(record.scores)} scores"
    if record.kept is not None:
        what += f" and {record.baseline.upper()} outputs of {record.kept.samples} samples"
        before = golden_store.record.kept if golden_store.record else None
        if before is not None:
            what += " (unchanged)" if before.sha256 == record.kept.sha256 else " (changed)"
    fails = "" if result.passed else "; the case fails its limits all the same"
    said = f"recorded {what} in {golden_store.location}{fails}"
    return replace(result, golden=said, recorded=tuple(compared(golden_store.record, record)))


def _candidate(golden_store: GoldenStore, result: CaseResult, run: Compared) -> str:
    """Write the candidate, which is the golden that an update would write; return a sentence with its path.

    Without a folder for candidates nothing is written, and the text is empty.
    """
    folder = golden_store.goldens.candidates
    if folder is None:
        return ""
    try:
        check_inside(folder, golden_store.goldens.root)
        record, data = _make(golden_store, result, run)
        Location(str(folder), golden_store.case.name).write(record, data, replace=True)
    except OSError as error:  # a failed write must not change the verdict
        return f". No candidate was left: {error.strerror or error}"
    except GoldenError as error:
        return f". No candidate was left: {error}"
    home = shown(golden_store.location.folder)
    return f". The candidate is in {display(folder)}: copy its files to {home} and commit them"


def _make(golden_store: GoldenStore, result: CaseResult, run: Compared) -> tuple[Record, bytes | None]:
    """Return the record and the bytes of the .npz that an update of the golden would write after this run.

    The bytes are None if the case keeps no outputs.
    """
    old, provenance = golden_store.record, golden_store.provenance
    if golden_store.case.baseline == "golden":
        in_fp32 = golden_store.case.candidate is not None or (old is not None and old.baseline == "fp32")
        provenance = replace(provenance, baseline="fp32" if in_fp32 else "fp16")
        if golden_store.replaces_baseline and old is not None:
            provenance = replace(provenance, files=old.files, baseline=old.baseline)
    scores = tuple(ratchet.accepted_scores(run.own, run.baseline, run.candidate, result.metrics))
    kept, data = _pack(golden_store, run)
    record = Record(
        case=golden_store.case.name,
        samples=run.inputs.samples or 0,
        data=run.inputs.digest or "",
        **vars(provenance),
        made_with=made_with(run.engine),
        scores=scores,
        kept=kept,
    )
    return record, data


def _pack(golden_store: GoldenStore, run: Compared) -> tuple[Kept | None, bytes | None]:
    """Return the record's entry on the baseline's outputs, and the bytes of their .npz.

    Both are None if the case keeps no outputs.
    """
    case = golden_store.case
    if not case.golden and case.baseline != "golden":
        return None, None
    wish = case.golden if isinstance(case.golden, Golden) else None
    before = golden_store.record.kept if golden_store.record else None
    dtype: GoldenType = wish.dtype if wish else before.dtype if before else "float32"
    samples = count = run.inputs.samples or 0
    digest = run.inputs.digest or ""
    if wish and wish.samples and wish.samples < samples:
        count = wish.samples
        digest = run.inputs.first(count).read_once()
    data, outputs = pack(first_samples(run.baseline, samples, count), count, dtype)
    sha256 = hashlib.sha256(data).hexdigest()
    file = f"{case.name}.{sha256[:HASH_LENGTH]}.npz"
    kept = Kept(file=file, sha256=sha256, dtype=dtype, samples=count, data=digest, outputs=outputs)
    return kept, data
