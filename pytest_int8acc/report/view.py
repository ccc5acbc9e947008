"""Makes all sentences and formatted numbers about one case, which all kinds of reports show.

The terminal, the HTML page, Markdown and ``report.json`` read a :class:`CaseView`, and make no sentences of
their own. A text is made when it is first needed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote

from pytest_int8acc.report import charts
from pytest_int8acc.report.catalogue import FILES, METRICS, NUMBERS, Caution, Decided, Label, Why
from pytest_int8acc.report.cautions import (
    blind_whys,
    default_session_text,
    fix_by_default,
    fix_undecided,
    precision_why,
    rule_line,
    stop_text,
)
from pytest_int8acc.report.fixes import (
    WORTH_SHIPPING,
    Fix,
    alternatives,
    elsewhere,
    fixes,
    hides_fault,
    recommended,
    repair_text,
    share_that_stays,
    speed_note,
)
from pytest_int8acc.report.plain import restore
from pytest_int8acc.report.search import (
    TradeoffView,
    alone_text,
    cost_line,
    plan_line,
    reason,
    search_notes,
    tradeoff_view,
)
from pytest_int8acc.report.verdict import VerdictView, latency_ratio
from pytest_int8acc.report.why import (
    at_fault,
    cause_advice,
    cause_brief,
    cause_clause,
    cause_text,
    fit_note,
    nan_texts,
    pair_text,
    share_text,
    stage_meaning,
    stage_text,
    stage_title,
    values_texts,
    why_texts,
)
from pytest_int8acc.report.words import (
    NAME,
    WIDTH,
    count,
    few,
    fitted,
    interval_text,
    middle,
    name_of,
    number,
    percent,
    proof_word,
    relation,
    value_and_limit,
    worst_first,
)
from pytest_int8acc.results import (
    Culprit,
    Diagnosis,
    EngineInfo,
    Finding,
    Latency,
    LayerError,
    Role,
    Score,
    by_rule,
)
from pytest_int8acc.results.causes import StageLine
from pytest_int8acc.results.samples import ChangedDecisions, View, WorstSample
from pytest_int8acc.results.search import PLAN_VERSION

#: The maximum number of scores that one note names, if several scores have the same note.
_NAMES = 3


@dataclass(frozen=True)
class ScoreRow:
    """One score as texts, and its position on an axis: 0 is perfect, 50 the limit, 100 infinitely bad."""

    score: Score
    label: Label
    value: str
    limit: str
    """The limit of the score as text; empty if it has none."""
    noise: str
    baseline: str
    fixed: str
    """The value of the same score with the recommended fix; empty if there is no fix."""
    interval: str
    place: float | None
    fixed_place: float | None


@dataclass(frozen=True)
class StageView:
    """One stage, a form of the model between the framework and the engine, as texts."""

    title: str
    passed: bool
    is_first: bool
    """Whether this is the first stage that misses a limit."""
    relations: tuple[str, ...]
    """A text on each score of the stage that has a limit, the worst first."""
    missed: str
    """A text on the worst missed limit of the stage; empty if all limits are met."""
    text: str
    """What it means if this stage is the first one that fails; empty if the stage passes."""


@dataclass(frozen=True)
class CulpritView:
    """One layer that the plan of the search keeps in high precision, and its cause, as texts."""

    culprit: Culprit
    op_type: str
    """The operator of the layer. If the layer is only a Q/DQ pair, a text on where the pair is."""
    price: str
    """The layer's share of the model's multiply-accumulates, in percent."""
    alone: str
    """The worst score with this layer alone in low precision; empty if it is not known."""
    line: str
    """The layer and its cause in one line of at most ``WIDTH`` characters."""
    kind: str = ""
    """The kind of the layer's cause; empty if no cause is known. The fields after it are then empty, too."""
    sentence: str = ""
    brief: str = ""
    advice: str = ""
    numbers: tuple[tuple[Label, str], ...] = ()


@dataclass(frozen=True)
class FindingView:
    """The findings of one rule in the model or in the data, as texts."""

    first: Finding
    line: str
    """One line on the first finding of the rule, with the number of further findings."""
    others: tuple[str, ...]
    """A text on each finding of the rule but the first."""


@dataclass(frozen=True)
class EngineView:
    """The facts about one engine, as texts."""

    engine: EngineInfo
    role: str
    """The role of the engine in the case, like ``baseline``. For the candidate's engine, the low format."""
    in_format: str
    """Text like ``45 of 54``: how many of the layers with weights run in the low-precision format."""
    time: str
    """The median time of one inference, and its 10th to 90th percentile; empty if it was not timed."""
    size: str
    built: str
    """How long the build took, or ``stored`` if the engine was loaded from the engine store."""
    line: str
    """One line on the engine: its role, its layers and its latency."""

    @property
    def is_baseline(self) -> bool:
        """Whether this is the engine of the baseline."""
        return self.engine.role == Role.BASELINE


@dataclass(frozen=True)
class SampleView:
    """The worst sample of an output, as pictures and curves."""

    title: str
    output: str
    sqnr: str
    pictures: tuple[tuple[View, str, str], ...]
    """For each picture: the tensor, a data URI of a PNG, and the range of its values."""
    curves: tuple[charts.Curves, ...]


@dataclass(frozen=True)
class DecisionsView:
    """The samples of one output whose class differs between baseline and candidate, as a table of texts."""

    title: str
    rows: tuple[tuple[str, ...], ...]
    """A row of texts for each sample: its index, its file, the classes of baseline and candidate, the label,
    which of the two models is right, and the margin."""
    hidden: int
    """The number of samples whose class differs, but that have no row."""


@dataclass(frozen=True)
class FileView:
    """A file that a case has written."""

    name: str
    href: str
    """A link from the folder of the page; empty if the file is not in that folder."""
    about: str
    text: str
    """The content of the file; empty if the file is too large or is no text."""


class CaseView(VerdictView):
    """All sentences and formatted numbers about one case, for all kinds of reports."""

    @property
    def _diagnosis(self) -> Diagnosis:
        """The diagnosis; an empty one if none was made."""
        return self.result.diagnosis or Diagnosis()

    @cached_property
    def headline(self) -> str:
        """One line that names the candidate and the baseline, the formats that ran, the data, the backend."""
        result = self.result
        formats = "" if result.precision is None else f"{self.precision}; "
        samples = f"{count(result.samples, 'sample')}: {result.data}"
        return f"{result.candidate} against {result.baseline}; {formats}{samples}; {result.backend}"

    @cached_property
    def compared(self) -> list[str]:
        """Texts on the compared models, the number of samples and the backend, the longest text first."""
        result = self.result
        start = f"{count(result.samples, 'sample')} of {result.data}"
        forms = f"{result.candidate}, compared with {result.baseline}"
        briefly = f"{self.low_format} against {result.baseline}"
        return [
            f"{start}, {forms}; {result.backend}",
            f"{start}, {briefly}; {result.backend}",
            f"{count(result.samples, 'sample')}, {briefly}; {result.backend}",
            f"{start}, {briefly}",
            f"{count(result.samples, 'sample')}, {briefly}",
        ]

    @property
    def is_about_golden(self) -> bool:
        """Whether the worst missed limit compares the baseline's outputs with those stored in its golden."""
        missed = [score for score in self.judged if not score.passed]
        start = f"{self.result.baseline} against its"
        return bool(self.result.golden and missed) and missed[0].subject.startswith(start)

    @cached_property
    def summary(self) -> str:
        """One sentence on what the diagnosis found, with all names in full; empty without a diagnosis."""
        return next(why_texts(self.result))

    @cached_property
    def whys(self) -> list[str]:
        """Sentences of different lengths on why the case fails, the longest first.

        If no cause is known, they say how the values of the worst output differ. There is at least one
        sentence, which may be empty.
        """
        if self.result.is_misbuilt and self.result.precision is not None:
            return [precision_why(self.result.precision)]
        if self.result.kept and (blind := list(blind_whys(self.result))):
            return blind
        if self.result.float_nan is not None:
            return list(nan_texts(self.result.float_nan, self.low_format))
        texts = list(why_texts(self.result))
        return texts if texts[0] or self.result.passed else list(values_texts(self.result))

    @property
    def why(self) -> str:
        """The longest sentence on why the case fails; empty if no reason is known."""
        return self.whys[0]

    @cached_property
    def fixes(self) -> list[Fix]:
        """The recommendations to the user; empty if the case passes."""
        return [] if self.result.passed else fixes(self.result)

    @property
    def has_fix(self) -> bool:
        """Whether a way was found to meet the criteria: a remedy, or a plan with layers in high precision."""
        return any(recommended(self.result))

    @cached_property
    def alternatives(self) -> list[str]:
        """Texts on the remedies that meet the criteria, without the recommended one, the cheapest first."""
        return alternatives(self.result)

    @cached_property
    def repairs(self) -> list[str]:
        """A text on what each remedy does that meets the criteria; the recommended remedy comes first."""
        return [repair_text(repair, self.low_format) for repair in self._diagnosis.repairs]

    @property
    def fix_detail(self) -> str:
        """A text on what the recommended fix does, and the time of its engine; empty without a fix."""
        repair = self.result.answer
        if repair is None:
            return ""
        time = "" if repair.latency is None else f"; takes {_time_text(repair.latency)}"
        return self.repairs[0] + time

    @property
    def is_verified(self) -> bool:
        """Whether the fix meets the limits with a safety margin, also on held-out samples, for sure."""
        return self.result.fix is not None and proof_word(self.result.fix) == "verified"

    @cached_property
    def fix_cautions(self) -> list[str]:
        """Texts on reasons to doubt the recommended fix."""
        repair, found = self.result.answer, self.result.fixed_session
        texts = [] if found is None else fix_by_default(found)
        if self.result.passed or repair is None or hides_fault(self.result):
            return texts
        if share_that_stays(self.result, 1 - repair.price) >= WORTH_SHIPPING:
            texts += fix_undecided(repair, self.result.samples)
        if repair.verified or repair.data or not repair.rescales:
            return texts
        return [*texts, Caution.FIX_FROM_INPUTS]

    @cached_property
    def alerts(self) -> list[str]:
        """The cautions about a case, and the warnings of the lint on its model.

        The HTML page shows the first two even if the section of a passing case is folded.
        """
        lint = [f for f in self.result.findings if f.source == "lint" and f.severity == "warning"]
        return [*self.cautions, *map(rule_line, by_rule(lint))]

    @cached_property
    def scores(self) -> list[ScoreRow]:
        """The scores that have a limit, as texts, the worst first."""
        return [self._row(score) for score in self.judged]

    @cached_property
    def unjudged(self) -> list[ScoreRow]:
        """The scores that have no limit, and those of tensors before a Softmax or Sigmoid, as texts."""
        scores = [score for score in self.result.scores if score.limit is None]
        for output in self.result.outputs:
            if output.preactivation is not None:
                scores += [replace(score, limit=None) for score in output.preactivation.scores]
        return [self._row(score) for score in scores]

    def _row(self, score: Score) -> ScoreRow:
        fixed = self._fixed.get((score.subject, score.metric))
        value, limit = number(score.value), ""
        if score.limit is not None:
            value, limit = value_and_limit(score, score.limit)
        noise = "" if score.noise is None else number(score.noise, 2)
        return ScoreRow(
            score,
            _metric_label(score, self.low_format),
            value,
            limit,
            noise="none" if noise == "inf" and score.bound == "min" else noise,
            baseline="" if score.baseline is None else number(score.baseline),
            fixed="" if fixed is None else number(fixed.value),
            interval=interval_text(score),
            place=_score_place(score),
            fixed_place=None if fixed is None else _score_place(fixed),
        )

    @cached_property
    def _fixed(self) -> Mapping[tuple[str, str], Score]:
        fix = self.result.fix
        return {} if fix is None else {(score.subject, score.metric): score for score in fix.scores}

    @property
    def normalized_loss(self) -> float:
        """The worst score's loss divided by the loss that its limit allows; -1 if no score has a limit."""
        worst = max((score.normalized_loss for score in self.judged), default=-1.0)
        return worst if math.isfinite(worst) else 1e308

    @property
    def place(self) -> float | None:
        """The position of the worst score: 0 is perfect, 50 its limit, 100 infinitely bad; None if none."""
        places = [row.place for row in self.scores if row.place is not None]
        return max(places, default=None)

    @cached_property
    def stages(self) -> list[StageView]:
        """The stages, which are forms of the model between the framework and the engine, as texts."""
        return [self._stage(line) for line in self._diagnosis.stages]

    def _stage(self, line: StageLine) -> StageView:
        judged = worst_first(line.scores)
        return StageView(
            stage_title(line.name, self.low_format),
            line.passed,
            is_first=line.name == self._diagnosis.first_stage,
            relations=tuple(relation(score) for score in judged),
            missed="; ".join(relation(score) for score in judged[:1] if not score.passed),
            text=stage_text(line, self.low_format),
        )

    @cached_property
    def stage_meaning(self) -> str:
        """A text with the name of the first stage that fails, and what this means; empty if none fails."""
        return stage_meaning(self._diagnosis, self.low_format)

    @property
    def is_minimal(self) -> bool:
        """Whether the criteria fail again if any one of the culprits is put back into low precision."""
        return self.result.search is not None and self.result.search.minimal

    @cached_property
    def guilty(self) -> list[CulpritView]:
        """The layers that the report names as layers at fault.

        They are those of ``culprits`` whose loss is not explained by an earlier form of the model, by a node
        like TopK, or by the data.
        """
        known = () if elsewhere(self.result) else at_fault(self.result)
        return [view for view in self.culprits if view.culprit in known]

    @cached_property
    def culprits(self) -> list[CulpritView]:
        """The layers that the plan of the search keeps in high precision, with their causes, as texts."""
        return [_culprit_view(culprit, self.low_format) for culprit in self.result.culprits]

    @cached_property
    def layers(self) -> list[str]:
        """The names of the layers in ``culprits``."""
        return [view.culprit.layer for view in self.culprits]

    @cached_property
    def ending(self) -> str:
        """A text on why the search ended; empty without a search."""
        return "" if self.result.search is None else reason(self.result.search, self.low_format)

    @cached_property
    def plan(self) -> str:
        """A sentence on the plan of the search; empty without a search."""
        search = self.result.search
        if search is None:
            return ""
        return plan_line(search, self.low_format, share_that_stays(self.result, search.int8_share))

    @cached_property
    def cost(self) -> str:
        """A line on the cost of the search, and on why it ended; empty without a search."""
        return "" if self.result.search is None else cost_line(self.result.search, self.low_format)

    @cached_property
    def tradeoff(self) -> TradeoffView | None:
        """How the score improves with more layers in high precision; None if that was not tried."""
        search = self.result.search
        return tradeoff_view(search.tradeoff, search.precision) if search and search.tradeoff else None

    @cached_property
    def trials(self) -> list[tuple[str, ...]]:
        """A row of texts for each trial of the search.

        The texts are its number, verdict, loss, cost and purpose, and the layers in high precision.
        """
        trials = self.result.search.trials if self.result.search is not None else ()
        rows: list[tuple[str, ...]] = []
        for place, trial in enumerate(trials, 1):
            verdict = "passes" if trial.passed else "fails"
            high = few(trial.high, 4) or "nothing"
            rows.append((str(place), verdict, number(trial.loss, 3), number(trial.cost, 2), trial.why, high))
        return rows

    @cached_property
    def similarities(self) -> list[tuple[str, ...]]:
        """A row of texts for each layer that the search strategy ``forward`` has visited.

        The texts are its index, name, shape, cosine similarity, and whether it is kept in high precision.
        """
        lines = self.result.search.table if self.result.search is not None else ()
        return [
            (str(line.index), line.layer, line.shape, number(line.similarity), "kept high" * line.chosen)
            for line in lines
        ]

    @cached_property
    def calibrations(self) -> list[tuple[str, ...]]:
        """A row of texts for each calibration method that was tried: method, verdict, and worst score."""
        rows: list[tuple[str, ...]] = []
        for line in self._diagnosis.calibrations:
            worst = "; ".join(relation(score) for score in worst_first(line.scores)[:1])
            rows.append((line.method, "passes" if line.passed else "fails", worst))
        return rows

    @cached_property
    def layer_errors(self) -> list[LayerError]:
        """The errors of layers, sorted by the error with only this layer quantized, the largest first."""
        return sorted(self._diagnosis.layers, key=charts.error_rank)

    @cached_property
    def engines(self) -> list[EngineView]:
        """The engines that were built for the case, as texts."""
        baseline = self.latency(Role.BASELINE)
        return [_engine_view(engine, self.low_format, baseline) for engine in self.result.engines]

    @cached_property
    def findings(self) -> list[FindingView]:
        """The findings in the model and the data, as texts, rule by rule; rules with errors come first."""
        return [_finding_view(group) for group in by_rule(self.result.findings)]

    def notes(self, verbosity: int = 2) -> list[str]:
        """Returns notes on scores, outputs and the golden; all of them with ``verbosity`` 2."""
        result, whole = self.result, verbosity >= 2
        notes = _notes_of_scores(s for s in result.scores if s.limit is not None or whole)
        for output in result.outputs:
            if output.note:
                notes.append(f"'{output.name}': {output.note}")
            fit = output.fit
            meaning = "" if fit is None else fit_note(fit, self.low_format)
            if fit is not None and (meaning or (whole and not output.passed)):
                sign = "-" if fit.offset < 0 else "+"
                line = f"{self.low_format} = {number(fit.slope)} * baseline {sign} {number(abs(fit.offset))}"
                line += f" (correlation {number(fit.correlation)})"
                notes.append(f"'{output.name}': {line}" + (f": {meaning}" if meaning else ""))
            if output.worst_sample is not None and (whole or not output.passed):
                notes.append(f"'{output.name}': sample {output.worst_sample} has the lowest SQNR")
        found = result.default_session
        if found is not None and not found.is_caution:
            notes.append(default_session_text(found))
        return [*notes, *result.notes, *self.acceptances]

    @cached_property
    def search_notes(self) -> list[str]:
        """Notes on the outcome of the search, such as unconfirmed causes; empty without a search."""
        search = self.result.search
        return [] if search is None else search_notes(search, self.low_format, self._diagnosis.repairs)

    @cached_property
    def remarks(self) -> list[str]:
        """All notes on the search and on the diagnosis."""
        notes = self.result.search.notes if self.result.search is not None else ()
        return [*notes, *self.search_notes, *self._diagnosis.notes, *filter(None, [speed_note(self.result)])]

    @property
    def stopped(self) -> str:
        """A text on what ended the work after the verdict early; empty if everything was done."""
        return "" if self.result.stopped is None else stop_text(self.result.stopped, self.low_format)

    @property
    def phases(self) -> str:
        """A text on the time of each phase, like ``12 s: setup 1.2, runs 0.4``; empty if not known."""
        phases = self.result.phases
        spent = ", ".join(f"{phase.name} {number(round(phase.seconds, 2), 3)}" for phase in phases)
        return f"{number(self.result.seconds, 3)} s: {spent}" if spent else ""

    @property
    def costs(self) -> str:
        """CPU time, passes over the data and memory, like ``8 s of CPU, 21 passes over the data: ...``.

        It is empty if they are not known.
        """
        phases = [phase for phase in self.result.phases if phase.cpu_seconds]
        if not phases:
            return ""
        spent = ", ".join(
            f"{phase.name} {number(round(phase.cpu_seconds, 2), 3)} s, {number(round(phase.passes, 1), 3)}"
            for phase in phases
        )
        cpu, passes = (sum(getattr(phase, name) for phase in phases) for name in ("cpu_seconds", "passes"))
        peak = max(phase.peak_bytes for phase in phases)
        memory = f"; the process held at most {number(peak / 1e9, 3)} GB" if peak else ""
        return f"{number(cpu, 3)} s of CPU, {number(passes, 3)} passes over the data: {spent}{memory}"

    def drawing(self, view: CulpritView) -> charts.Drawing | None:
        """Returns a drawing of a layer at fault and the nodes around it; None if these are not known."""
        return charts.drawing(view.culprit, self.layers)

    @cached_property
    def bars(self) -> list[charts.Bar]:
        """The bars of a chart with the error of each layer."""
        return charts.layer_bars(self._diagnosis.layers, self.layers)

    @cached_property
    def samples(self) -> list[SampleView]:
        """The worst sample of each of a few failing outputs, as pictures and curves."""
        return [_sample_view(sample) for sample in self._diagnosis.worst]

    @cached_property
    def decisions(self) -> list[DecisionsView]:
        """A table for each output that is judged by class and in which the class of a sample differs."""
        found = [(output.name, output.decisions) for output in self.result.outputs]
        return [_decisions_view(name, d, self.low_format) for name, d in found if d is not None and d.count]

    @cached_property
    def snippets(self) -> list[tuple[str, str]]:
        """Texts for users to copy, each with its title: a list of nodes to exclude, and ``plan.yaml``.

        Empty if the case has written files, which contain them.
        """
        search = self.result.search
        if search is None or not search.culprits or self.result.written:
            return []
        nodes = [node for culprit in search.culprits for node in culprit.nodes]
        high = [f"  {json.dumps(name, ensure_ascii=False)}: {search.precision}" for name in self.layers]
        plan = "\n".join([f"version: {PLAN_VERSION}", "high:", *high]) + "\n"
        return [("nodes to exclude from quantization", "\n".join(nodes) + "\n"), ("plan.yaml", plan)]

    def files(self, texts: Mapping[str, str]) -> dict[str, list[FileView]]:
        """Returns the files that the case has written, by their use.

        The uses are ``fix``, ``high`` (the plan of the search, if the fix is another remedy), ``reduced``
        (reproducers) and ``others``.

        Args:
            texts: Path to content, for small text files.
        """
        uses: dict[str, list[FileView]] = {"fix": [], "high": [], "reduced": [], "others": []}
        paths = [PurePosixPath(name) for name in self.result.written]
        base = next((path.parent for path in paths if path.name == "fixed.onnx"), None)
        order = {name: place for place, name in enumerate(FILES)}
        for path in sorted(paths, key=lambda path: order.get(path.name, len(order))):
            name, use = path, "others"
            if base is not None and path.is_relative_to(base):
                name = path.relative_to(base)
                use = name.parts[0] if len(name.parts) > 1 else "fix"
            about = FILES.get(path.name, "").format(format=self.low_format)
            file = FileView(str(name), _href(str(path)), about, texts.get(str(path), ""))
            uses.get(use, uses["others"]).append(file)
        return uses


def view_of(properties: Mapping[str, Any]) -> CaseView | None:
    """Returns the view of a case from ``properties``, the ``user_properties`` of pytest's report of the case.

    The result is None if the case was not measured.
    """
    details = properties.get("int8acc.details")
    return None if details is None else CaseView(restore(json.loads(str(details))))


def _culprit_view(culprit: Culprit, low_format: str) -> CulpritView:
    cause = culprit.cause
    view = CulpritView(
        culprit,
        _type_of(culprit, NAME),
        f"{culprit.price:.1%}",
        alone_text(culprit),
        _culprit_line(culprit, low_format),
    )
    if cause is None:
        return view
    numbers = []
    for name, value in cause.numbers.items():
        label = NUMBERS.get(name, Label(name)).of(low_format)
        text = percent(value) if label.unit == "%" else f"{number(value)} {label.unit}".strip()
        numbers.append((label, text))
    return replace(
        view,
        kind=cause.kind.replace("-", " "),
        sentence=cause_text(cause, low_format),
        brief=cause_brief(cause, low_format),
        advice=cause_advice(cause, low_format),
        numbers=tuple(numbers),
    )


def _type_of(culprit: Culprit, most: int) -> str:
    """Returns the operator of a layer; if the layer is only a Q/DQ pair, a text on where the pair is.

    Names have at most ``most`` characters.
    """
    if culprit.quantizer is not None:
        return Why.PAIR_OF_LAYER.format(at=pair_text(culprit.quantizer, most))
    return middle(culprit.op_type, most)


def _culprit_line(culprit: Culprit, low_format: str) -> str:
    """Returns a line with the name, the operator and the cause of a layer.

    The line also has the share of the loss that a trial gave back, if there is space for it.
    """
    alone, cause = culprit.worst_alone, culprit.cause
    text = share = ""
    if cause is not None:
        text = f": {cause_clause(cause, low_format)}"
        share = f" ({share_text(cause.ablation, 'its')}, by a trial)" if cause.ablation is not None else ""
    elif alone is not None and not alone.passed:
        text = f": alone in {low_format}: {relation(alone, 24)}"
    name, kind = culprit.layer, f" ({middle(culprit.op_type, 20)})"
    if culprit.quantizer is not None:
        name, kind = _type_of(culprit, NAME), ""
    if len(f"  {name}{kind}{text}{share}") <= WIDTH:
        text += share
    if len(kind) + NAME <= WIDTH - 2 - len(text):
        text = kind + text
    return fitted(f"  {middle(name, max(WIDTH - 2 - len(text), 20))}{text}")


def _finding_view(group: Sequence[Finding]) -> FindingView:
    first = group[0]
    title = f"data {first.severity}" if first.source == "data" else first.severity
    others = tuple(f"'{finding.subject}': {finding.text}" for finding in group[1:])
    line = f"{title}: {rule_line(group)} [{first.rule}]"
    return FindingView(first, line, others)


def _engine_view(engine: EngineInfo, low_format: str, baseline: Latency | None) -> EngineView:
    role = low_format if engine.role == Role.INT8 else str(engine.role)
    line = f"{role} engine: {_engine_text(engine, low_format)}"
    if engine.latency is not None:
        line += f"; {number(engine.latency.median_ms, 3)} ms"
        times = latency_ratio(baseline, engine.latency)
        if baseline is not None and times is not None and baseline is not engine.latency:
            line += f" against {number(baseline.median_ms, 3)} ms: {number(times, 3)}x"
    size = f"{engine.nbytes / 2**10:.0f} KiB"
    if engine.nbytes >= 2**20:
        size = f"{engine.nbytes / 2**20:.1f} MiB"
    return EngineView(
        engine,
        role,
        in_format=f"{engine.int8} of {engine.weighted}" if engine.layers else "not told",
        time="" if engine.latency is None else _time_text(engine.latency),
        size=size,
        built="stored" if engine.stored else f"{number(engine.build_seconds, 3)} s",
        line=line,
    )


def _engine_text(engine: EngineInfo, low_format: str) -> str:
    """Returns a text on the layers of an engine: how many have weights, run in ``low_format``, and so on."""
    if not engine.layers:
        return "does not tell its layers"
    layers = count(engine.weighted, "weighted layer")
    parts = [f"{engine.int8} of {layers} in {low_format}" if engine.role != Role.BASELINE else layers]
    if engine.untold:
        parts.append(f"{engine.untold} more in fused regions that tell nothing")
    if pairs := engine.count("qdq"):
        parts.append(f"{pairs} standalone Q/DQ")
    if reformats := engine.count("reformat"):
        parts.append(count(reformats, "reformat"))
    return ", ".join(parts)


def _time_text(latency: Latency) -> str:
    """Returns text like ``1.2 ms (1.1 to 1.4)``: the median, and the 10th to 90th percentile."""
    low, high = number(latency.low_ms, 3), number(latency.high_ms, 3)
    return f"{number(latency.median_ms, 3)} ms ({low} to {high})"


def _sample_view(sample: WorstSample) -> SampleView:
    pictures = [
        (view, uri, f"{number(view.low, 3)} to {number(view.high, 3)}")
        for view in sample.views
        if (uri := charts.png(view))
    ]
    inputs = charts.curves(view for view in sample.views if view.role == "input")
    outputs = charts.curves(view for view in sample.views if view.role != "input")
    return SampleView(
        f"Sample {sample.sample}",
        sample.output,
        f"{number(sample.sqnr_db, 3)} dB",
        tuple(pictures),
        curves=tuple(chart for chart in (inputs, outputs) if chart is not None),
    )


def _decisions_view(output: str, changed: ChangedDecisions, low_format: str) -> DecisionsView:
    title = Decided.CHANGED.format(
        output=output, count=changed.count, samples=count(changed.samples, "sample")
    )
    if changed.broken is not None:
        title += Decided.LABELLED.format(broken=changed.broken, mended=changed.mended, format=low_format)
    rows = []
    for decision in changed.largest:
        label, right = "", ""
        if decision.label is not None:
            label, right = str(decision.label), Decided.NEITHER
        if decision.label == decision.baseline:
            right = Decided.BASELINE
        elif label and decision.label == decision.candidate:
            right = low_format
        candidate = Decided.NO_CLASS if decision.candidate is None else str(decision.candidate)
        margin = "" if decision.margin is None else number(decision.margin)
        rows.append(
            (str(decision.sample), decision.file, str(decision.baseline), candidate, label, right, margin)
        )
    return DecisionsView(title, tuple(rows), changed.count - len(rows))


def _metric_label(score: Score, low_format: str) -> Label:
    """Returns the name, unit and explanation of the score's metric; for a user's metric only its name."""
    own = Label(score.metric, "", "a metric of your own")
    if score.subject.endswith(f".py:{score.metric}"):
        return own
    return METRICS.get(score.metric, own).of(low_format)


def _notes_of_scores(scores: Iterable[Score]) -> list[str]:
    """Returns the notes of all scores. A note that several scores have is returned once, with their names."""
    bearers: dict[str, list[str]] = {}
    for score in scores:
        if score.note:
            bearers.setdefault(score.note, []).append(name_of(score))
    return [f"{few(names, _NAMES)}: {note}" for note, names in bearers.items()]


def _score_place(score: Score) -> float | None:
    """Returns the position of a score on an axis: 0 is perfect, 50 is its limit, 100 is infinitely bad.

    The result is None for a score without a limit.
    """
    if score.limit is None:
        return None
    used = score.normalized_loss
    if used <= 1:
        return 50 * used
    return 100 - 50 / used if math.isfinite(used) else 100.0


def _href(name: str) -> str:
    """Returns a link from the folder of the page; empty if the file is not in that folder.

    The link starts with ``./``, so that a name like ``http:`` is not taken for an address.
    """
    path = PurePosixPath(name)
    outside = path.is_absolute() or ".." in path.parts or "\\" in name
    return "" if outside else f"./{quote(name, errors='backslashreplace')}"
