"""A case and its golden: read, found fit or stale, compared with, recorded."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace

from pytest_int8acc.case.data import open_source
from pytest_int8acc.case.forms import baseline_form, fp32_form
from pytest_int8acc.case.judge import Judge
from pytest_int8acc.data import Dataset
from pytest_int8acc.errors import BaselineNotFiniteError
from pytest_int8acc.files import check_inside
from pytest_int8acc.goldens import Goldens, keeps_golden, ratchet
from pytest_int8acc.goldens.arrays import Cutter, cut_like, first_samples, pack
from pytest_int8acc.goldens.origin import Origin, changes, data_changes, made_with, origin_of, remarks
from pytest_int8acc.goldens.place import HASH, Place, place_of, shown
from pytest_int8acc.goldens.record import GoldenError, Kept, Record, compared
from pytest_int8acc.graph.model import Model
from pytest_int8acc.results import CaseResult, OutputResult, Score
from pytest_int8acc.runtime.forms import Form, ModelForm
from pytest_int8acc.scores.compare import compare_outputs
from pytest_int8acc.scores.metrics import METRICS
from pytest_int8acc.scores.user_metric import evaluate_metric
from pytest_int8acc.settings import Settings
from pytest_int8acc.spec.load import display
from pytest_int8acc.spec.models import Case, Golden, GoldenType
from pytest_int8acc.tensors import Outputs


@dataclass(frozen=True, eq=False)
class GoldenStore:
    """A case that keeps a golden, before it is run; made by :func:`open_golden_store`."""

    case: Case
    settings: Settings
    goldens: Goldens
    place: Place
    record: Record | None
    origin: Origin
    regressions_allowed: dict[str, float]
    """The ratchet: metric to tolerance."""
    problem: str = ""
    """Why the golden cannot be compared with; such a run only makes a candidate."""

    @property
    def recording(self) -> bool:
        """Whether this run writes the golden."""
        update = self.goldens.update
        return update == "all" or (update == "missing" and self.record is None)

    @property
    def replaces_baseline(self) -> bool:
        """Whether the golden's outputs stand in for a baseline that is run."""
        return self.case.baseline == "golden" and not self.recording and not self.problem

    @property
    def limit(self) -> int | None:
        """How many samples to use: no more than a golden that stands in for the baseline holds."""
        given = self.settings.samples
        if self.case.baseline != "golden":
            return given
        wish = self.case.golden.samples if isinstance(self.case.golden, Golden) else None
        kept = self.record.kept if self.record and not self.recording else None
        if kept is not None and self.record is not None and kept.samples < self.record.samples:
            wish = kept.samples
        return min((n for n in (given, wish) if n is not None), default=None)

    def check(self, inputs: Dataset) -> GoldenStore:
        """The same, knowing whether the data are the golden's; reads them once.

        Raises:
            GoldenError: The golden is missing or stale, and nobody wants a candidate.
        """
        inputs.read_once()
        if self.recording:
            return self
        problem = self.problem or self._problem(inputs)
        if problem and self.goldens.candidates is None:
            raise GoldenError(problem)
        return replace(self, problem=problem)

    def form(self, model: Model) -> Form:
        """What INT8 is compared with: the baseline, or the model under the name of its golden."""
        if self.replaces_baseline:
            assert self.record is not None
            note = "the baseline is a golden: its noise is not known"
            make = ModelForm.halved if self.record.baseline == "fp16" else ModelForm.as_it_is
            return replace(make(model, f"golden ({self.record.baseline.upper()})"), notes=(note,))
        if self.case.baseline == "golden" and self.record is not None and self.record.baseline == "fp32":
            return fp32_form(model)
        return baseline_form(self.case, model)

    @property
    def wants_baseline(self) -> bool:
        """Whether the baseline's outputs are compared with the golden, or may be written."""
        return bool(self.case.golden) or self.case.baseline == "golden" or self.recording

    @property
    def wants_candidate(self) -> bool:
        """Whether scores of INT8's outputs may be written."""
        return self.recording or self.goldens.candidates is not None

    def cutter(self) -> Cutter:
        """The golden's outputs, to be cut into batches; GoldenError where it is damaged."""
        assert self.record is not None
        return Cutter(self.place.outputs(self.record), lambda said: _misfit(self.place, said))

    def judging(self) -> AbstractContextManager[None]:
        """While INT8 is judged: a golden that stands in for the baseline and is not finite is to blame."""
        return _blaming(self.place) if self.replaces_baseline else nullcontext()

    def tighten(self, judge: Judge, model: Model) -> Judge:
        """``judge`` under the ratchet.

        Raises:
            GoldenError: The golden holds no score for it, or one of an output that ``model`` does not have.
        """
        if self.recording or self.problem or self.record is None:
            return ratchet.tighten(judge, self.regressions_allowed, None)
        known = {output.name for output in model.outputs} | {limit.ref for limit, _ in judge.metrics}
        for score in self.record.scores:
            limited = score.metric in self.regressions_allowed and score.metric in METRICS
            if limited and not known & {score.subject, judge.splitter.whole_of(score.subject)}:
                raise GoldenError(
                    f"{self.place}: the golden is damaged: it has a score of '{score.subject}', which is no "
                    f"output of the model; {self.place.mend}"
                )
        try:
            return ratchet.tighten(judge, self.regressions_allowed, self.record)
        except GoldenError as error:
            raise GoldenError(f"{self.place}: {error}; {self.place.mend}") from None

    def named(self, metrics: tuple[Score, ...], own: Judge, judge: Judge) -> tuple[Score, ...]:
        """Scores of users' metrics from ``judge``; those of the ratchet say what was accepted."""
        return metrics if self.record is None else ratchet.named(metrics, own, judge, self.record)

    def finish(self, result: CaseResult, run: Compared) -> CaseResult:
        """The result with what the golden has to say, after the golden or a candidate was written.

        Raises:
            GoldenError: The golden is missing, stale or damaged, or cannot be written.
        """
        if self.recording:
            return _recorded(self, result, run)
        if self.problem:
            raise GoldenError(f"{self.problem}{_candidate(self, result, run)}")
        record = self.record
        assert record is not None
        update = f"`pytest {display(self.case.file)}::{self.case.name} --int8acc-update=all`"
        said = _said(self, record)
        if self.case.golden and not self.replaces_baseline:
            rows, said = _against_golden(self, record, result.baseline, run)
            result = replace(result, metrics=(*result.metrics, *rows))
        notes = (
            *ratchet.improvements(result, self.regressions_allowed, record, update),
            *remarks(record, self.origin, run.engine),
            *ratchet.unaccepted_parts(result, self.regressions_allowed, record, update),
        )
        if not result.passed:
            said += _candidate(self, result, run)
        return replace(result, golden=said, notes=(*result.notes, *notes))

    def _problem(self, inputs: Dataset) -> str:
        """Why this golden does not serve; empty where it does."""
        record, name = self.record, f"{display(self.case.file)}::{self.case.name}"
        if record is None:
            return (
                f"{self.place}: no golden yet; record it with `pytest {name} --int8acc-update=missing`, "
                "look at it and commit it"
            )
        kept = record.kept
        if kept is None and (self.case.golden or self.case.baseline == "golden"):
            return f"{self.place}: holds accepted scores and no outputs; {self.place.again}"
        wrong = list(changes(record, self.origin, self.case))
        partly = kept is not None and self.case.baseline == "golden" and not self.regressions_allowed
        samples, digest = (kept.samples, kept.data) if kept and partly else (record.samples, record.data)
        wrong += data_changes(samples, digest, inputs)
        return f"{self.place}: the golden is stale: {'; '.join(wrong)}; {self.place.again}" if wrong else ""


@dataclass(frozen=True, eq=False)
class Compared:
    """What came of a run: outputs and scores, as the golden store wants them."""

    baseline: Outputs
    candidate: Outputs
    engine: str
    """Where they ran, in words."""
    own: Judge
    """The case's own criteria, without the ratchet."""
    inputs: Dataset
    model: Model


@dataclass(frozen=True, eq=False)
class NoGolden:
    """What stands in the place of a :class:`GoldenStore` where a case keeps no golden: nothing changes."""

    case: Case
    settings: Settings

    recording = replaces_baseline = wants_baseline = wants_candidate = False

    @property
    def limit(self) -> int | None:
        """How many samples to use: as many as the settings say."""
        return self.settings.samples

    def check(self, inputs: Dataset) -> NoGolden:
        """Itself: there is nothing to be stale."""
        return self

    def form(self, model: Model) -> Form:
        """What INT8 is compared with: the baseline."""
        return baseline_form(self.case, model)

    def cutter(self) -> Cutter | None:
        """None: nothing was kept."""
        return None

    def judging(self) -> AbstractContextManager[None]:
        """Nothing: no golden stands in for the baseline."""
        return nullcontext()

    def tighten(self, judge: Judge, model: Model) -> Judge:
        """``judge`` itself: nothing was accepted."""
        return judge

    def named(self, metrics: tuple[Score, ...], own: Judge, judge: Judge) -> tuple[Score, ...]:
        """``metrics`` themselves."""
        return metrics

    def finish(self, result: CaseResult, run: Compared) -> CaseResult:
        """``result`` itself."""
        return result


def open_golden_store(
    case: Case, settings: Settings, goldens: Goldens, output_settings: Mapping[str, str]
) -> GoldenStore | NoGolden:
    """The keeper of a case.

    Args:
        case: From ``load_spec``.
        settings: How many samples are used.
        goldens: Where the golden lies, and what may be written.
        output_settings: What the backend says that outputs depend on.

    Raises:
        GoldenError: The golden cannot be read.
        CriterionError: The ratchet names a metric that does not exist.
    """
    if not keeps_golden(case):
        return NoGolden(case, settings)
    regressions_allowed = ratchet.regressions(case)
    place = place_of(case, goldens.folder)
    try:
        record = place.read()
    except GoldenError:
        if goldens.update != "all":  # which replaces what is damaged, too
            raise
        record = None
    origin = origin_of(case, output_settings)
    return GoldenStore(case, settings, goldens, place, record, origin, regressions_allowed)


def _said(golden_store: GoldenStore, record: Record) -> str:
    if record.kept is None:
        return f"accepted scores of {golden_store.place}"
    held = f"{record.baseline.upper()} of {record.kept.samples} samples, {record.kept.dtype}"
    return f"{golden_store.place} ({held})"


def _against_golden(
    golden_store: GoldenStore, record: Record, baseline: str, run: Compared
) -> tuple[list[Score], str]:
    """The live baseline by the case's own criteria against the golden; rows, and what they say."""
    assert record.kept is not None
    live = first_samples(run.baseline, record.samples, record.kept.samples)
    golden = _cut(golden_store.place, record, live)
    with _blaming(golden_store.place):
        judged = list(_judged(run.own, golden, live, labelled=record.kept.samples == record.samples))
    rows = [replace(s, subject=f"{baseline} against its golden: {s.subject}", note="") for s in judged]
    missed = [score for score in judged if not score.passed]
    if not missed:
        return rows, f"{baseline} keeps to {_said(golden_store, record)}"
    worst = missed[0]
    return rows, (
        f"{baseline} itself moved: {worst.subject} {worst.metric} {worst.value:.6g} "
        f"against {_said(golden_store, record)}, limit {worst.limit:g}; where that is meant, "
        f"{golden_store.place.again}"
    )


@contextmanager
def _blaming(place: Place) -> Iterator[None]:
    """Let a golden that is not finite where a limit stands be an error of the golden.

    Raises:
        GoldenError: From the BaselineNotFiniteError: none with such values is recorded under such a limit.
    """
    try:
        yield
    except BaselineNotFiniteError as error:
        found = error.found.replace("the baseline itself", "the golden", 1)
        raise GoldenError(f"{place}: the golden is damaged: {found}; {place.mend}") from None


def _judged(judge: Judge, golden: Outputs, live: Outputs, *, labelled: bool) -> Iterator[Score]:
    """Scores with a limit; users' metrics only where the labels are those of these samples."""
    outputs: Sequence[OutputResult] = compare_outputs(
        golden,
        live,
        judge.limits,
        metrics_given=bool(judge.metrics),
        judged_only=True,
        splitter=judge.splitter,
    )
    for output in outputs:
        yield from (score for score in output.scores if score.limit is not None)
    for limit, function in judge.metrics if labelled else ():
        yield from evaluate_metric(limit, function, golden, live, judge.labels)


def _recorded(golden_store: GoldenStore, result: CaseResult, run: Compared) -> CaseResult:
    """Write the golden; the result says what changed."""
    record, data = _make(golden_store, result, run)
    if not golden_store.place.write(record, data, replace=golden_store.goldens.update == "all"):
        return replace(result, golden=f"{golden_store.place} was recorded by another process meanwhile")
    what = f"{len(record.scores)} scores"
    if record.kept is not None:
        what += f" and {record.baseline.upper()} outputs of {record.kept.samples} samples"
        before = golden_store.record.kept if golden_store.record else None
        if before is not None:
            what += " (unchanged)" if before.sha256 == record.kept.sha256 else " (changed)"
    fails = "" if result.passed else "; the case fails its limits all the same"
    said = f"recorded {what} in {golden_store.place}{fails}"
    return replace(result, golden=said, recorded=tuple(compared(golden_store.record, record)))


def _candidate(golden_store: GoldenStore, result: CaseResult, run: Compared) -> str:
    """Write the golden that an update would, where somebody may fetch it; says where, or nothing."""
    folder = golden_store.goldens.candidates
    if folder is None:
        return ""
    try:
        check_inside(folder, golden_store.goldens.root)
        Place(str(folder), golden_store.case.name).write(*_make(golden_store, result, run), replace=True)
    except OSError as error:  # the verdict stands all the same
        return f". No candidate was left: {error.strerror or error}"
    except GoldenError as error:
        return f". No candidate was left: {error}"
    home = shown(golden_store.place.folder)
    return f". The candidate is in {display(folder)}: copy its files to {home} and commit them"


def _make(golden_store: GoldenStore, result: CaseResult, run: Compared) -> tuple[Record, bytes | None]:
    """What an update would keep of this run."""
    old, origin = golden_store.record, golden_store.origin
    if golden_store.case.baseline == "golden":
        in_fp32 = golden_store.case.candidate is not None or (old is not None and old.baseline == "fp32")
        origin = replace(origin, baseline="fp32" if in_fp32 else "fp16")
        if golden_store.replaces_baseline and old is not None:
            origin = replace(origin, files=old.files, baseline=old.baseline)
    scores = tuple(ratchet.accepted_scores(run.own, run.baseline, run.candidate, result.metrics))
    kept, data = _pack(golden_store, run)
    record = Record(
        case=golden_store.case.name,
        samples=run.inputs.samples or 0,
        data=run.inputs.digest or "",
        **vars(origin),
        made_with=made_with(run.engine),
        scores=scores,
        kept=kept,
    )
    return record, data


def _pack(golden_store: GoldenStore, run: Compared) -> tuple[Kept | None, bytes | None]:
    """The outputs to keep, where the case keeps any."""
    case = golden_store.case
    if not case.golden and case.baseline != "golden":
        return None, None
    wish = case.golden if isinstance(case.golden, Golden) else None
    before = golden_store.record.kept if golden_store.record else None
    dtype: GoldenType = wish.dtype if wish else before.dtype if before else "float32"
    samples = run.inputs.samples or 0
    count = min(samples, wish.samples) if wish and wish.samples else samples
    digest = run.inputs.digest or ""
    if count < samples:
        first = open_source(case, case.inputs, run.model, "inputs", count)
        digest = first.read_once()
    data, outputs = pack(first_samples(run.baseline, samples, count), count, dtype)
    sha256 = hashlib.sha256(data).hexdigest()
    file = f"{case.name}.{sha256[:HASH]}.npz"
    kept = Kept(file=file, sha256=sha256, dtype=dtype, samples=count, data=digest, outputs=outputs)
    return kept, data


def _cut(place: Place, record: Record, other: Outputs) -> Outputs:
    try:
        return cut_like(place.outputs(record), other)
    except ValueError as error:
        raise _misfit(place, str(error)) from error


def _misfit(place: Place, said: str) -> GoldenError:
    return GoldenError(f"{place}: the golden does not fit: {said}; {place.again}")
