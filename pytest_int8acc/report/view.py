"""One case as every renderer shows it: all sentences and formatted numbers, each made once.

Text, page and Markdown read a :class:`CaseView` and ask nothing else. Texts are made when first asked for.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath
from urllib.parse import quote

from pytest_int8acc.report import charts
from pytest_int8acc.report.blind import blind_cautions, blind_problems, hidden_cautions
from pytest_int8acc.report.catalogue import FILES, METRICS, NUMBERS, Label
from pytest_int8acc.report.causes import advice, cause_brief, cause_clause, cause_text, share_text
from pytest_int8acc.report.course import phases_text, stop_text
from pytest_int8acc.report.engines import EngineView, engine_views, int8_layers, no_int8, speedup, time_text
from pytest_int8acc.report.fixes import Fix, alternatives, elsewhere, fixes, is_mismatch, repair_text
from pytest_int8acc.report.precision import (
    precision_cautions,
    precision_problems,
    precision_text,
    precision_why,
)
from pytest_int8acc.report.search import (
    TradeoffView,
    alone_text,
    cost_line,
    plan_line,
    remarks,
    tradeoff_view,
)
from pytest_int8acc.report.summary import (
    fit_note,
    is_jumpy,
    jump_text,
    stage_meaning,
    stage_text,
    stage_title,
    why_texts,
)
from pytest_int8acc.report.words import (
    NAME,
    WIDTH,
    count,
    drawn_again,
    few,
    fitted,
    middle,
    name_of,
    number,
    pairs_text,
    percent,
    relation,
    value_and_limit,
    worst_first,
)
from pytest_int8acc.results import CaseResult, Culprit, Diagnosis, Finding, LayerError, Score, by_rule
from pytest_int8acc.results.causes import Cause
from pytest_int8acc.results.samples import View
from pytest_int8acc.results.scores import score_name
from pytest_int8acc.results.search import PLAN_VERSION

#: How the first line of a failure goes on after the format.
FAILURE = " accuracy: "
#: Names in a note at most.
_NAMES = 3


@dataclass(frozen=True)
class ScoreRow:
    """One score, as text, and its place between perfect (0), the limit (50) and infinitely off (100)."""

    score: Score
    label: Label
    value: str
    limit: str
    """The limit as text; empty if there is none."""
    noise: str
    baseline: str
    fixed: str
    """The score after the recommended fix; empty if there is none."""
    interval: str
    place: float | None
    fixed_place: float | None


@dataclass(frozen=True)
class StageView:
    """One step from the framework to the engine."""

    title: str
    passed: bool
    is_first: bool
    """Whether it is the first stage that fails."""
    relations: tuple[str, ...]
    """The scores that have a limit, with it, the worst first."""
    missed: str
    """The worst missed limit; empty if all are met."""
    text: str
    """What the failure of the stage means; empty if it passes."""


@dataclass(frozen=True)
class CulpritView:
    """One layer that is kept out of the low format, and why."""

    culprit: Culprit
    price: str
    """The layer's share of the multiply-accumulates."""
    alone: str
    kind: str
    """The kind of the cause. This and the texts below are empty if there is no cause."""
    sentence: str
    brief: str
    advice: str
    line: str
    """Layer and cause in one line of at most ``WIDTH`` characters."""
    numbers: tuple[tuple[Label, str], ...]


@dataclass(frozen=True)
class FindingView:
    """The findings of one rule of the lint or of the checks of the data."""

    rule: str
    severity: str
    title: str
    """The severity, after ``data`` if the rule checks the data."""
    subject: str
    text: str
    remedy: str
    line: str
    """The first finding, and how many more there are."""
    others: tuple[str, ...]
    """All but the first."""


@dataclass(frozen=True)
class SampleView:
    """The worst sample of an output, as pictures and curves."""

    title: str
    output: str
    sqnr: str
    pictures: tuple[tuple[View, str, str], ...]
    """View, data URI of a PNG, and range of each picture."""
    curves: tuple[charts.Curves, ...]


@dataclass(frozen=True)
class FileView:
    """A file that a case has written."""

    name: str
    href: str
    """A link from the folder of the page; empty if the file is not in that folder."""
    about: str
    text: str
    """The content of the file; empty if it is large or no text."""


@dataclass(frozen=True)
class CaseView:
    """All sentences and numbers about one case."""

    result: CaseResult

    @property
    def low_format(self) -> str:
        """The format that the case is about, like ``INT8``."""
        return self.result.low_format

    @property
    def _diagnosis(self) -> Diagnosis:
        """The diagnosis; an empty one if none was made."""
        return self.result.diagnosis or Diagnosis()

    # What is wrong

    @cached_property
    def headline(self) -> str:
        """What was compared with what, in which formats, on which data, where."""
        result = self.result
        formats = "" if result.precision is None else f"{precision_text(result.precision)}; "
        samples = f"{count(result.samples, 'sample')}: {result.data}"
        return f"{result.candidate} against {result.baseline}; {formats}{samples}; {result.backend}"

    def misses(self, most: int | None = None) -> list[str]:
        """Each problem and each missed limit, the worst first; names of at most ``most`` characters."""
        result = self.result
        problems = [*precision_problems(result), *blind_problems(result)]
        for output in filter(lambda output: output.problem, result.outputs):
            name = middle(output.name, most or len(output.name))
            problems.append(f"'{name}': {output.problem}")
        return problems + [relation(score, most) for score in self._judged if not score.passed]

    @cached_property
    def _judged(self) -> list[Score]:
        return worst_first(self.result.scores)

    @cached_property
    def failure_line(self) -> str:
        """The first line of a failure: the worst miss with value and limit, its note, how many more."""
        note = self._judged[0].note if self._judged else ""
        if note and self.misses(NAME)[0] == relation(self._judged[0], NAME):
            line = self.low_format + FAILURE + self._worst_miss(note)
            if len(line) <= WIDTH:
                return line
        return self.low_format + FAILURE + self._worst_miss()

    def _worst_miss(self, note: str = "") -> str:
        misses = self.misses(NAME)
        more = [note] if note else []
        if len(misses) > 1:
            more.append(f"+{len(misses) - 1} more missed")
        end = f" ({'; '.join(more)})" if more else ""
        if note:
            return misses[0] + end
        return fitted(misses[0], WIDTH - len(FAILURE) - 4 - len(end)) + end

    def brief_misses(self) -> Iterator[str]:
        """Yields the first line of a failure, the fullest first, down to the worst score and its limit."""
        yield self.failure_line
        yield self._worst_miss()
        yield from (self.misses(most)[0] for most in (NAME, 24, 12))
        for score in self._judged[:1]:
            brief = relation(score, 12)
            if self.misses(12)[0] == brief:
                yield brief.removeprefix(name_of(score, 12)).strip()

    @cached_property
    def most_critical(self) -> str:
        """The worst miss and how many more, or the score nearest to its limit and its margin."""
        if not self.result.passed:
            return self._worst_miss()
        if not self._judged:
            return "no limits"
        score = self._judged[0]
        return f"{relation(score, NAME)} (margin {number(score.margin or 0.0, 2)})"

    @cached_property
    def status(self) -> str:
        """One line: the worst score, the backend, the formats, the worst caution."""
        parts = [f"{self.most_critical}, {self.result.backend}"]
        if self.result.precision is not None:
            parts.append(precision_text(self.result.precision))
        if self.cautions:
            worst = fitted(self.cautions[0], 2 * WIDTH)
            many = len(self.cautions)
            parts.append(f"{many} warnings, the worst: {worst}" if many > 1 else f"warning: {worst}")
        return "; ".join(parts)

    @property
    def is_about_golden(self) -> bool:
        """Whether the worst miss is the baseline's, which has left its golden."""
        missed = [score for score in self._judged if not score.passed]
        start = f"{self.result.baseline} against its"
        return bool(self.result.golden and missed) and missed[0].subject.startswith(start)

    @cached_property
    def whys(self) -> list[str]:
        """Sentences that say what was wrong, the fullest first; one empty text without a diagnosis."""
        if self.result.is_misbuilt and self.result.precision is not None:
            return [precision_why(self.result.precision)]
        return list(why_texts(self.result))

    @property
    def why(self) -> str:
        """What was wrong in one sentence; empty without a diagnosis."""
        return self.whys[0]

    # What to do

    @cached_property
    def fixes(self) -> list[Fix]:
        """What to do; empty where the case passes."""
        return [] if self.result.passed else fixes(self.result)

    @cached_property
    def alternatives(self) -> list[str]:
        """Other ways to meet the criteria than the recommended one, cheapest first."""
        return alternatives(self.result)

    @property
    def fix_detail(self) -> str:
        """What the recommended fix does, and the time of its engine; empty where there is none."""
        repair = self.result.answer
        if repair is None:
            return ""
        time = "" if repair.latency is None else f"; takes {time_text(repair.latency)}"
        return repair_text(repair, self.low_format) + time

    @property
    def is_verified(self) -> bool:
        """Whether the recommended fix was built, run and kept the limits with reserve."""
        answer, search = self.result.answer, self.result.search
        return answer.verified if answer is not None else search is not None and search.verified

    # What to doubt

    @cached_property
    def warnings(self) -> list[str]:
        """Reasons to doubt the verdict; an engine in another format comes first."""
        result = self.result
        return unique([*no_int8(result), *precision_cautions(result.precision), *result.warnings])

    @cached_property
    def cautions(self) -> list[str]:
        """All reasons to doubt the verdict, the worst first."""
        result, search, jumps = self.result, self.result.search, self._diagnosis.jumps
        texts = []
        if broken := [f for f in result.findings if f.source == "lint" and f.severity == "error"]:
            rules = [f"{group[0].rule} ({count(len(group), 'node')})" for group in by_rule(broken)]
            texts.append(f"TensorRT refuses this model: {', '.join(rules)}")
        texts += [unsteady_text(result, score) for score in result.unsteady[:1]]
        texts += [*no_int8(result), *precision_cautions(result.precision)]
        texts += [*hidden_cautions(result), *blind_cautions(result), *result.warnings]
        if result.stopped is not None:
            texts.append(stop_text(result.stopped, self.low_format))
        data = [f for f in result.findings if f.source == "data" and f.severity != "note"]
        texts += [rule_line(group) for group in by_rule(f for f in data if not is_mismatch(result, f))]
        if jumps and not is_jumpy(result):
            texts.append(jump_text(jumps, NAME))
        if search is not None and search.found and search.fixed_pairs:  # else the fix names them
            pairs = pairs_text(search.fixed_pairs)
            texts.append(f"{pairs}; no plan takes them off, so their layers may be at fault, too")
        return unique(texts)

    @cached_property
    def fix_cautions(self) -> list[str]:
        """Reasons to doubt the recommended fix."""
        repair = self.result.answer
        if self.result.passed or repair is None or repair.data or not repair.rescales:
            return []
        return ["the fix has its scales from these very inputs: before you ship, run it on others"]

    @cached_property
    def alerts(self) -> list[str]:
        """What a passing case shows even when it is folded: its cautions, and warnings of the lint."""
        lint = [f for f in self.result.findings if f.source == "lint" and f.severity == "warning"]
        return [*self.cautions, *map(rule_line, by_rule(lint))]

    # Scores

    @cached_property
    def scores(self) -> list[ScoreRow]:
        """The scores that have a limit, the worst first."""
        return [self._row(score) for score in self._judged]

    @cached_property
    def unjudged(self) -> list[ScoreRow]:
        """The scores that have no limit."""
        return [self._row(score) for score in self.result.scores if score.limit is None]

    def _row(self, score: Score) -> ScoreRow:
        fixed = self._fixed.get((score.subject, score.metric))
        value, limit = number(score.value), ""
        if score.limit is not None:
            value, limit = value_and_limit(score, score.limit)
        noise = "" if score.noise is None else number(score.noise, 2)
        return ScoreRow(
            score,
            metric_label(score, self.low_format),
            value,
            limit,
            noise="none" if noise == "inf" and score.bound == "min" else noise,
            baseline="" if score.baseline is None else number(score.baseline),
            fixed="" if fixed is None else number(fixed.value),
            interval=drawn_again(score),
            place=score_place(score),
            fixed_place=None if fixed is None else score_place(fixed),
        )

    @cached_property
    def _fixed(self) -> Mapping[tuple[str, str], Score]:
        return {(score.subject, score.metric): score for score in self.result.fixed}

    @property
    def normalized_loss(self) -> float:
        """How much of its limit the worst score uses up, 1 at the limit; -1 where nothing was judged."""
        worst = max((score.normalized_loss for score in self._judged), default=-1.0)
        return worst if math.isfinite(worst) else 1e308

    @property
    def place(self) -> float | None:
        """Where the worst score lies between perfect (0), the limit (50) and infinitely off (100)."""
        places = [row.place for row in self.scores if row.place is not None]
        return max(places, default=None)

    # Where and why it is lost

    @cached_property
    def stages(self) -> list[StageView]:
        """The steps from the framework to the engine."""
        views = []
        for stage in self._diagnosis.stages:
            judged = worst_first(stage.scores)
            views.append(
                StageView(
                    stage_title(stage.name, self.low_format),
                    stage.passed,
                    is_first=stage.name == self._diagnosis.first_stage,
                    relations=tuple(relation(score) for score in judged),
                    missed="; ".join(relation(score) for score in judged[:1] if not score.passed),
                    text=stage_text(stage, self.low_format),
                )
            )
        return views

    @cached_property
    def stage_meaning(self) -> str:
        """What the first stage that fails means, with its name; empty where none fails."""
        return stage_meaning(self._diagnosis, self.low_format)

    @property
    def is_minimal(self) -> bool:
        """Whether each culprit, put back into the low format, breaks the criteria."""
        return self.result.search is not None and self.result.search.minimal

    @property
    def blames_layers(self) -> bool:
        """Whether layers are at fault, and not what lies before quantization."""
        return bool(self.culprits) and not elsewhere(self.result)

    @cached_property
    def culprits(self) -> list[CulpritView]:
        """The layers that the plan found keeps out of the low format."""
        search = self.result.search
        return (
            [] if search is None else [culprit_view(culprit, self.low_format) for culprit in search.culprits]
        )

    @cached_property
    def layers(self) -> list[str]:
        """The names of the culprits."""
        return [view.culprit.layer for view in self.culprits]

    @cached_property
    def plan(self) -> str:
        """What the search found, in a sentence; empty without a search."""
        return "" if self.result.search is None else plan_line(self.result.search)

    @cached_property
    def cost(self) -> str:
        """What the search cost, and why it ended; empty without a search."""
        return "" if self.result.search is None else cost_line(self.result.search)

    @cached_property
    def tradeoff(self) -> TradeoffView | None:
        """What more layers out of the low format buy; None where that was not tried."""
        search = self.result.search
        return tradeoff_view(search.tradeoff, search.precision) if search and search.tradeoff else None

    @cached_property
    def trials(self) -> list[tuple[str, ...]]:
        """Each trial of the search: number, verdict, loss, cost, reason, layers kept high."""
        trials = self.result.search.trials if self.result.search is not None else ()
        rows: list[tuple[str, ...]] = []
        for place, trial in enumerate(trials, 1):
            verdict = "passes" if trial.passed else "fails"
            high = few(trial.high, 4) or "nothing"
            rows.append((str(place), verdict, number(trial.loss, 3), number(trial.cost, 2), trial.why, high))
        return rows

    @cached_property
    def similarities(self) -> list[tuple[str, ...]]:
        """The layer analyzer's table: index, layer, shape, similarity, whether it is kept high."""
        lines = self.result.search.table if self.result.search is not None else ()
        return [
            (str(line.index), line.layer, line.shape, number(line.similarity), "kept high" * line.chosen)
            for line in lines
        ]

    @cached_property
    def calibrations(self) -> list[tuple[str, ...]]:
        """Each calibration method, its verdict, and its most critical score."""
        rows: list[tuple[str, ...]] = []
        for line in self._diagnosis.calibrations:
            worst = "; ".join(relation(score) for score in worst_first(line.scores)[:1])
            rows.append((line.method, "passes" if line.passed else "fails", worst))
        return rows

    @cached_property
    def layer_errors(self) -> list[LayerError]:
        """The layers by the error of their own making, nan first."""
        layers = self._diagnosis.layers
        return sorted(layers, key=lambda layer: (not math.isnan(layer.alone_sqnr_db), layer.alone_sqnr_db))

    # What else is known

    @cached_property
    def engines(self) -> list[EngineView]:
        """The engines of the case, as built."""
        return engine_views(self.result.engines, self.low_format)

    @property
    def speedup(self) -> float | None:
        """How many times as fast as the baseline's engine the case's own is; None where not timed."""
        return speedup(self.result.engines)

    @property
    def int8_layers(self) -> str:
        """Like ``45 of 54``; empty where the engine does not tell."""
        return int8_layers(self.result.engines)

    @cached_property
    def findings(self) -> list[FindingView]:
        """What each rule has found, errors first."""
        return [finding_view(group) for group in by_rule(self.result.findings)]

    def notes(self, verbosity: int = 2) -> list[str]:
        """Returns notes on scores, outputs and the golden; all of them with ``verbosity`` 2."""
        result, whole = self.result, verbosity >= 2
        notes = _notes_of_scores(s for s in result.scores if s.limit is not None or whole)
        for output in result.outputs:
            if output.note:
                notes.append(f"'{output.name}': {output.note}")
            fit = output.fit
            meaning = fit_note(fit, self.low_format) if fit is not None else ""
            if fit is not None and (meaning or (whole and not output.passed)):
                sign = "-" if fit.offset < 0 else "+"
                line = f"{self.low_format} = {number(fit.slope)} * baseline {sign} {number(abs(fit.offset))}"
                line += f" (correlation {number(fit.correlation)})"
                notes.append(f"'{output.name}': {line}" + (f": {meaning}" if meaning else ""))
            if output.worst_sample is not None and (whole or not output.passed):
                notes.append(f"'{output.name}': sample {output.worst_sample} has the lowest SQNR")
        return [*notes, *result.notes, *acceptances(result)]

    @cached_property
    def remarks(self) -> list[str]:
        """Notes on the search and on the diagnosis."""
        search, notes = self.result.search, list[str]()
        if search is not None:
            notes += [*search.notes, *remarks(search, self._diagnosis.repairs)]
        return [*notes, *self._diagnosis.notes]

    @property
    def stopped(self) -> str:
        """What ended the case early; empty where all was done."""
        return "" if self.result.stopped is None else stop_text(self.result.stopped, self.low_format)

    @property
    def phases(self) -> str:
        """Where the time went; empty where that is not known."""
        return phases_text(self.result)

    # For the page

    def drawing(self, view: CulpritView) -> charts.Drawing | None:
        """The graph around a culprit; None where it was not looked at."""
        return charts.drawing(view.culprit, self.layers)

    @cached_property
    def bars(self) -> list[charts.Bar]:
        """The error of each layer as a chart."""
        return charts.layer_bars(self._diagnosis.layers, self.layers)

    @cached_property
    def samples(self) -> list[SampleView]:
        """The worst samples of outputs that fail."""
        views = []
        for sample in self._diagnosis.worst:
            inputs = [view for view in sample.views if view.role == "input"]
            outputs = [view for view in sample.views if view.role != "input"]
            pictures = []
            for view in sample.views:
                uri = charts.png(view) if view.rows else ""
                span = f"{number(view.low, 3)} to {number(view.high, 3)}"
                pictures += [(view, uri, span)] if uri else []
            curves = [chart for group in (inputs, outputs) if (chart := charts.curves(group)) is not None]
            sqnr = f"{number(sample.sqnr_db, 3)} dB"
            views.append(
                SampleView(f"Sample {sample.sample}", sample.output, sqnr, tuple(pictures), tuple(curves))
            )
        return views

    @cached_property
    def snippets(self) -> list[tuple[str, str]]:
        """The plan of the search as texts, each with its title, where no files hold it."""
        search = self.result.search
        if search is None or not search.culprits or self.result.written:
            return []
        nodes = [node for culprit in search.culprits for node in culprit.nodes]
        high = [f"  {json.dumps(name, ensure_ascii=False)}: {search.precision}" for name in self.layers]
        plan = "\n".join([f"version: {PLAN_VERSION}", "high:", *high]) + "\n"
        return [("nodes to exclude from quantization", "\n".join(nodes) + "\n"), ("plan.yaml", plan)]

    def files(self, texts: Mapping[str, str]) -> dict[str, list[FileView]]:
        """The files of the fix, of the plan (``high``), of reproducers (``reduced``), and ``others``.

        Args:
            texts: Contents of small files, by path.
        """
        uses: dict[str, list[FileView]] = {"fix": [], "high": [], "reduced": [], "others": []}
        paths = [PurePosixPath(name) for name in self.result.written]
        base = next((path.parent for path in paths if path.name == "fixed.onnx"), None)
        order = {name: place for place, name in enumerate(FILES)}
        for path in sorted(paths, key=lambda path: order.get(path.name, len(order))):
            inside = base is not None and path.is_relative_to(base)
            name = path.relative_to(base) if inside and base is not None else path
            use = "others"
            if inside:
                use = name.parts[0] if len(name.parts) > 1 else "fix"
            about = FILES.get(path.name, "").format(format=self.low_format)
            file = FileView(str(name), _href(str(path)), about, texts.get(str(path), ""))
            uses.get(use, uses["others"]).append(file)
        return uses


def culprit_view(culprit: Culprit, low_format: str) -> CulpritView:
    """Returns the texts about one culprit."""
    cause = culprit.cause
    price, alone = f"{culprit.price:.1%}", alone_text(culprit)
    line = _culprit_line(culprit, low_format)
    if cause is None:
        return CulpritView(culprit, price, alone, "", "", "", "", line, ())
    return CulpritView(
        culprit,
        price,
        alone,
        kind=cause.kind.replace("-", " "),
        sentence=cause_text(cause, low_format),
        brief=cause_brief(cause, low_format),
        advice=advice(cause, low_format),
        line=line,
        numbers=tuple(_number_cells(cause, low_format)),
    )


def _culprit_line(culprit: Culprit, low_format: str) -> str:
    alone, cause = culprit.worst_alone, culprit.cause
    text = share = ""
    if cause is not None:
        text = f": {cause_clause(cause, low_format)}"
        share = f" ({share_text(cause.ablation, 'its')})" if cause.ablation is not None else ""
    elif alone is not None and not alone.passed:
        text = f": alone in {low_format}: {relation(alone, 24)}"
    kind = f" ({middle(culprit.op_type, 20)})"
    if len(f"  {culprit.layer}{kind}{text}{share}") <= WIDTH:
        text += share
    if len(kind) + NAME <= WIDTH - 2 - len(text):
        text = kind + text
    return fitted(f"  {middle(culprit.layer, max(WIDTH - 2 - len(text), 20))}{text}")


def _number_cells(cause: Cause, low_format: str) -> Iterator[tuple[Label, str]]:
    """Yields the label of each number of a cause, and its value with its unit."""
    for name, value in cause.numbers.items():
        label = NUMBERS.get(name, Label(name)).of(low_format)
        text = percent(value) if label.unit == "%" else f"{number(value)} {label.unit}".strip()
        yield label, text


def finding_view(group: Sequence[Finding]) -> FindingView:
    """Returns the texts about the findings of one rule."""
    first = group[0]
    title = f"data {first.severity}" if first.source == "data" else first.severity
    others = tuple(f"'{finding.subject}': {finding.text}" for finding in group[1:])
    line = f"{title}: {rule_line(group)} [{first.rule}]"
    return FindingView(
        first.rule, first.severity, title, first.subject, first.text, first.remedy, line, others
    )


def rule_line(group: Sequence[Finding]) -> str:
    """Returns the first finding of a rule, and the number of others."""
    more = f" (and {len(group) - 1} more like it)" if len(group) > 1 else ""
    return f"'{group[0].subject}': {group[0].text}{more}"


def unsteady_text(result: CaseResult, score: Score) -> str:
    """Returns why a verdict is unsteady: the bootstrap interval, and the samples that carry the error."""
    interval = f"{name_of(score, NAME)} is {drawn_again(score)} when samples are drawn again"
    for output in result.outputs:
        if output.name == score.subject and output.heavy:
            worst = ", ".join(map(str, output.heavy[:3])) + (", ..." if len(output.heavy) > 3 else "")
            some = f"{len(output.heavy)} of {output.samples} samples carry 90 % of the error ({worst})"
            return f"unsteady: {interval}; {some}"
    return f"unsteady: {interval}, limit {number(score.limit or 0.0)}"


def metric_label(score: Score, low_format: str) -> Label:
    """Returns a metric's label; a user's function has its own name."""
    own = Label(score.metric, "", "a metric of your own")
    if score.subject.endswith(f".py:{score.metric}"):
        return own
    return METRICS.get(score.metric, own).of(low_format)


def acceptances(result: CaseResult) -> list[str]:
    """Returns each score that the golden accepts from now on, like ``accepted y cosine: 0.99 -> 0.98``."""
    lines = []
    for accepted in result.recorded or ():
        before, now = ("none" if v is None else f"{v:.6g}" for v in (accepted.before, accepted.now))
        lines.append(f"accepted {score_name(accepted.subject, accepted.metric)}: {before} -> {now}")
    return lines


def _notes_of_scores(scores: Iterable[Score]) -> list[str]:
    """Returns each note once, after the names of the first few scores that have it."""
    bearers: dict[str, list[str]] = {}
    for score in scores:
        if score.note:
            bearers.setdefault(score.note, []).append(name_of(score))
    return [f"{few(names, _NAMES)}: {note}" for note, names in bearers.items()]


def unique(texts: Iterable[str]) -> list[str]:
    """Returns ``texts`` without repetitions."""
    return list(dict.fromkeys(texts))


def score_place(score: Score) -> float | None:
    """Returns where a judged score lies between 0 (perfect), 50 (its limit) and 100 (infinitely off)."""
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
