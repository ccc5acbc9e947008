"""A failed case in few lines: is it wrong, why, what to do, where, what to doubt, what else there is."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from posixpath import commonpath, dirname

from pytest_int8acc.report.blind import blind_cautions, blind_fix, blind_problems, hidden_cautions
from pytest_int8acc.report.catalogue import STAGES
from pytest_int8acc.report.causes import cause_clause, share_text
from pytest_int8acc.report.course import stop_text
from pytest_int8acc.report.diagnosis import changes, rule_line, rules_text
from pytest_int8acc.report.engines import no_int8
from pytest_int8acc.report.precision import (
    precision_cautions,
    precision_fix,
    precision_problems,
    precision_why,
    share_fix,
)
from pytest_int8acc.report.search import reason
from pytest_int8acc.report.summary import first_line, is_jumpy, jump_text, why_texts
from pytest_int8acc.report.words import (
    NAME,
    WIDTH,
    count,
    drawn_again,
    few,
    first_fitting,
    fitted,
    middle,
    name_of,
    number,
    pairs_text,
    relation,
    worst_first,
)
from pytest_int8acc.results import CaseResult, Culprit, Finding, Repair, Score, SearchOutcome, by_rule
from pytest_int8acc.results.causes import Jump
from pytest_int8acc.results.scores import DEFAULT_SQNR_DB

#: How the first line of a failure goes on after the format.
FAILURE = " accuracy: "
#: Lines of a failure at most, without -v: 1 verdict, 2 why, 2 fix (3 where no layers follow), 7 layers,
#: 2 cautions, 1 more.
LINES = 15
_CULPRITS, _CAUTIONS, _LINES_OF_WHY, _LINES_OF_FIX = 5, 2, 2, 3
#: What to do where the float model gives NaN. No layer in high precision mends it.
_FLOAT_NAN = (
    "find what gives NaN in the float model, its inputs or a node; or list the output under 'unjudged'"
)


def missed_limits(result: CaseResult, most: int | None = None) -> list[str]:
    """Each problem and each missed limit, the worst first; names of at most ``most`` characters."""
    problems = [*precision_problems(result), *blind_problems(result)]
    problems += [
        f"'{middle(output.name, most or len(output.name))}': {output.problem}"
        for output in result.outputs
        if output.problem
    ]
    return problems + [relation(score, most) for score in worst_first(result.scores) if not score.passed]


def failure_line(result: CaseResult) -> str:
    """The first line of a failure: the worst miss with value and limit, whence the limit, how many more."""
    worst = worst_first(result.scores)[:1]
    notes = [s.note for s in worst if s.note and missed_limits(result, NAME)[0] == relation(s, NAME)]
    texts = [result.low_format + FAILURE + worst_miss(result, [*notes[:n]]) for n in (1, 0)]
    return next((text for text in texts if len(text) <= WIDTH), texts[-1])


def is_failure(message: str, result: CaseResult) -> bool:
    """Returns whether a message tells of a missed limit, and not of an error."""
    return message.startswith(result.low_format + FAILURE)


def brief_misses(result: CaseResult) -> Iterator[str]:
    """The first line of a failure, the fullest first, down to the worst score against its limit alone."""
    yield failure_line(result)
    yield worst_miss(result)
    yield from (missed_limits(result, most)[0] for most in (NAME, 24, 12))
    for score in worst_first(result.scores)[:1]:
        short = relation(score, 12)
        if missed_limits(result, 12)[0] == short:
            yield short.removeprefix(name_of(score, 12)).strip()


def worst_miss(result: CaseResult, notes: Sequence[str] = ()) -> str:
    """The worst miss with value and limit, ``notes`` on it, and how many more misses there are."""
    missed = missed_limits(result, NAME)
    more = [*notes, *([f"+{len(missed) - 1} more missed"] if len(missed) > 1 else [])]
    end = f" ({'; '.join(more)})" if more else ""
    return missed[0] + end if notes else fitted(missed[0], WIDTH - len(FAILURE) - 4 - len(end)) + end


def answer(result: CaseResult, verbosity: int = 0, *, wraps: bool = True) -> list[str]:
    """At most ``LINES`` lines of ``WIDTH`` characters; with ``verbosity`` 1 more layers, and all cautions.

    Without ``wraps`` each sentence is one line, to be wrapped at another width.
    """
    lines = [failure_line(result)]
    if _is_golden_s(result):  # which says what to do, too
        return [*lines, *_wrapped(f"Why: {result.golden}", 4, wraps), _more(result, verbosity)]
    if result.is_misbuilt and result.precision is not None:  # what follows from the scores comes after that
        for line in (f"Why: {precision_why(result.precision)}", *fix_lines(result)):
            lines += _wrapped(line, _LINES_OF_WHY, wraps)
        doubts = [f"missed as well: {text}" for text in missed_limits(result, NAME)[1:]]
        lines += _caution_lines([*doubts, *cautions(result)], None if verbosity > 0 else _CAUTIONS)
        return [*lines, _more(result, verbosity)]
    if whys := [f"Why: {text}" for text in why_texts(result) if text]:
        lines += _wrapped(first_fitting(whys, _LINES_OF_WHY * WIDTH - 15), _LINES_OF_WHY, wraps)
    for line in fix_lines(result):
        lines += _wrapped(line, _LINES_OF_FIX, wraps)
    lines += culprit_lines(result, 20 if verbosity > 0 else _CULPRITS)
    sentences = [*cautions(result), *own_inputs(result)]
    lines += _caution_lines(sentences, None if verbosity > 0 else _CAUTIONS)
    return [*lines, _more(result, verbosity)]


def _is_golden_s(result: CaseResult) -> bool:
    """Whether the worst miss is the baseline's, which has left its golden."""
    missed = [score for score in worst_first(result.scores) if not score.passed]
    return bool(result.golden and missed) and missed[0].subject.startswith(f"{result.baseline} against its")


def _wrapped(text: str, most_lines: int, wraps: bool) -> list[str]:
    """``text`` in so many lines at most; cut to what fits them, and one line, without ``wraps``."""
    for most in range(most_lines * WIDTH, 0, -4):  # words that do not fit leave a line short
        kept = fitted(text, most).replace(" %", "\N{NO-BREAK SPACE}%")
        lines = textwrap.wrap(kept, WIDTH, subsequent_indent="  ", break_on_hyphens=False)
        if len(lines) <= most_lines:
            break
    if not wraps:
        lines = [kept]
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]


def fix_lines(result: CaseResult) -> list[str]:
    """What to do: the data first where they are wrong, then the recommended fix, or why there is none."""
    if result.is_misbuilt and result.precision is not None:
        return [f"Fix: {precision_fix(result.precision)}"]
    if _misses_share_alone(result) and result.precision is not None:
        return [f"Fix: {share_fix(result.precision)}"]
    if result.kept and result.is_blind and result.blind is not None:
        return [f"Fix: {blind_fix(result.blind, result.low_format)}"]
    if any(output.problem and output.nan_share for output in result.outputs):
        return [f"Fix: {_FLOAT_NAN}"]
    known = [f.remedy for f in result.findings if _is_mismatch(result, f) and f.remedy]
    lines = [f"Fix: {remedy}, and run again" for remedy in known[:1]]
    elsewhere = _elsewhere(result)
    if elsewhere and not lines:
        return [fitted(f"Fix: {elsewhere}")]
    sentences = list(_recommended(result))
    if sentences:
        label = "Or: " if lines else "Fix: "
        lines.append(first_fitting([label + text for text in sentences]))
    return [fitted(line) for line in lines] or [first_fitting([f"Fix: {text}" for text in _no_fix(result)])]


def _misses_share_alone(result: CaseResult) -> bool:
    """Whether the share of INT8 is all that is missed, which no layer that leaves INT8 mends."""
    missed = [score for score in result.scores if not score.passed]
    whole = all(output.passed for output in result.outputs)
    return whole and bool(missed) and all(score.metric == "int8_share" for score in missed)


def _is_mismatch(result: CaseResult, finding: Finding) -> bool:
    mismatch = result.diagnosis.preprocessing_mismatch if result.diagnosis is not None else ""
    return finding.source == "data" and finding.rule == mismatch


def _elsewhere(result: CaseResult) -> str:
    """What to do where INT8 is not the problem, or outputs cannot be compared; else empty."""
    if result.diagnosis is not None and is_jumpy(result):
        return _judging_before(result, result.diagnosis.jumps)
    line = first_line(result.diagnosis) if result.diagnosis is not None else None
    if line is None or line.passed or line.name == "engine INT8":
        return ""
    return STAGES[line.name].advice


def _judging_before(result: CaseResult, jumps: Sequence[Jump]) -> str:
    """What the spec must say for what is chosen by to be judged, in place of what is behind."""
    known = {output.name for output in result.outputs}
    tensors = dict.fromkeys(name for jump in jumps for name in jump.tensors if name not in known)
    outputs = ", ".join(dict.fromkeys(f"'{name}'" for jump in jumps for name in jump.outputs))
    criteria = ", ".join(f"{{tensor: '{name}', sqnr_db: {DEFAULT_SQNR_DB:g}}}" for name in tensors)
    said = [f"criteria: [{criteria}]"] if tensors else []
    named = few([f"'{middle(name, NAME)}'" for name in tensors], 2)
    brief = f"judge {named} by {{tensor: NAME, sqnr_db: {DEFAULT_SQNR_DB:g}}}, and " * bool(tensors)
    brief += "name what is behind under 'unjudged'"
    return first_fitting([f"in the spec, {', '.join([*said, f'unjudged: [{outputs}]'])}", brief], WIDTH - 5)


def _recommended(result: CaseResult) -> Iterator[str]:
    """The fix in a sentence, the fullest first; nothing where there is none."""
    repair, search = result.answer, result.search
    use = "use fixed.onnx: " if result.written else ""
    if repair is not None:
        spare = search.spare if search is not None and repair.kind == "high" else 0
        said, verified, scores = (
            list(changes(repair, result.low_format, spare)),
            repair.verified,
            repair.scores,
        )
    elif search is not None and search.found and search.culprits:
        said, verified, scores = list(_kept(search, result.low_format)), search.verified, search.fixed
    else:
        return
    by = result.backend.partition(",")[0]
    worst = worst_first(scores)[:1]
    reached = [f"; {relation(score, most)}" for score in worst for most in (NAME, 16)]
    reached += [f"; {s.metric}{relation(s).removeprefix(name_of(s))}" for s in worst if s.name != s.subject]
    means = ("built and run, limits kept with reserve", "built and run")
    good = [*(f", verified ({said}) on {by}" for said in means), f", verified on {by}", ", verified"]
    proved = good if verified else [*_by_luck(scores), "; not verified"]
    for text in said:
        for score in reached or [""]:
            yield from (f"{use}{text}{score}{proof}" for proof in proved)
    yield f"{use}{said[-1]}{proved[-1]}"


def _by_luck(scores: Sequence[Score]) -> list[str]:
    """What a fix is worth that keeps its limits on these samples only; nothing where it does not."""
    unsteady = [score for score in worst_first(scores) if not score.steady]
    kept = bool(unsteady) and all(score.passed for score in scores)
    return [f", but {drawn_again(unsteady[0])} when samples are drawn again", "; unsteady"] if kept else []


def _kept(search: SearchOutcome, low_format: str) -> Iterator[str]:
    kept = f"keep {count(len(search.kept), 'layer')} in {search.precision.upper()}"
    yield f"{kept}, {search.int8_share:.0%} of the multiply-accumulates stay in {low_format}"
    yield kept


def alternatives(result: CaseResult) -> list[str]:
    """Other ways to meet the criteria than the recommended one, cheapest first."""
    repairs = result.diagnosis.repairs[1:] if result.diagnosis is not None else ()
    return [_repair_line(repair, result.low_format) for repair in repairs]


def _repair_line(repair: Repair, low_format: str) -> str:
    scores = [relation(score) for score in worst_first(repair.scores)[:1]]
    return "; ".join(
        [next(changes(repair, low_format)), *scores, "verified" if repair.verified else "not verified"]
    )


def _no_fix(result: CaseResult) -> Iterator[str]:
    """Why there is no fix, and what to do; the fullest first."""
    search, stopped = result.search, result.stopped
    if stopped is not None:
        late = "none found in the time; give it more: --int8acc-max-seconds N"
        yield "none found before Ctrl-C; run again" if stopped.kind == "interrupted" else late
    elif search is not None and search.found:
        yield reason(search)
    elif search is not None:
        lint = [f.remedy for f in result.findings if f.source == "lint" and f.severity != "note" and f.remedy]
        yield "; ".join([*lint[:1], f"none found: {reason(search)}"])
        if search.fixed_pairs:
            yield lint[0] if lint else "none found: Q/DQ is left in the model that no plan takes off"
        yield (
            lint[0]
            if lint
            else f"none found: with every layer out of {result.low_format} the criteria fail too"
        )
    elif result.diagnosis is not None and result.diagnosis.first_stage == "engine INT8":
        yield STAGES["engine INT8"].advice
    elif not result.int8_groups:
        yield "an engine cannot be searched: name the model it was made from, 'int8: {model: FILE}'"
    else:
        yield "not searched; with --int8acc-search=always the layers at fault are named, and a fix is written"


def culprit_lines(result: CaseResult, most: int) -> list[str]:
    """The layers at fault, each in a line with its cause and number; ``most`` of them."""
    search = result.search
    if search is None or not search.culprits or _elsewhere(result):
        return []
    if len(search.culprits) == 1:  # the sentence why has said it
        return []
    low = result.low_format
    title = f"at fault (put any one of them back into {low}, and the criteria fail)"
    more = len(search.culprits) - most
    lines = [f"Layers {title if search.minimal else f'kept out of {low} (some may be innocent)'}:"]
    lines += [_culprit_line(culprit, low) for culprit in search.culprits[:most]]
    return [*lines, f"  and {more} more"] if more > 0 else lines


def _culprit_line(culprit: Culprit, low_format: str) -> str:
    said = cause_clause(culprit.cause, low_format) if culprit.cause is not None else ""
    alone = culprit.worst_alone
    if not said:
        missed = alone is not None and not alone.passed
        said = f"alone in {low_format}: {relation(alone, 24)}" if alone is not None and missed else ""
    taken = culprit.cause.ablation if culprit.cause is not None else None
    share = f" ({share_text(taken, 'its')})" if taken is not None else ""
    kind = f" ({middle(culprit.op_type, 20)})"
    whole = len(f"  {culprit.layer}{kind}: {said}{share}") <= WIDTH
    said = f": {said}{share if whole else ''}" if said else ""
    room = WIDTH - 2 - len(said)
    text = kind + said if len(kind) + NAME <= room else said
    return fitted(f"  {middle(culprit.layer, max(WIDTH - 2 - len(text), 20))}{text}")


def cautions(result: CaseResult) -> list[str]:
    """What makes a verdict worth less than it looks, the worst first."""
    broken = [f for f in result.findings if f.source == "lint" and f.severity == "error"]
    data = [f for f in result.findings if f.source == "data" and f.severity != "note"]
    known = [f for f in data if not _is_mismatch(result, f)]
    lint = [f"TensorRT refuses this model: {rules_text(broken)}"] if broken else []
    luck = [unsteady_text(result, score) for score in result.unsteady]
    stopped = [stop_text(result.stopped, result.low_format)] if result.stopped is not None else []
    groups = [rule_line(group) for group in by_rule(known)]
    jumps = result.diagnosis.jumps if result.diagnosis is not None and not is_jumpy(result) else ()
    jumpy = [jump_text(jumps, NAME)] if jumps else []
    search = result.search
    # Where no plan passes, the fix says so.
    left = [_left_text(search)] if search is not None and search.found and search.fixed_pairs else []
    built = [*no_int8(result), *precision_cautions(result.precision)]
    sentences = [
        *lint,
        *luck[:1],
        *built,
        *hidden_cautions(result),
        *blind_cautions(result),
        *result.warnings,
    ]
    sentences += [*stopped, *groups, *jumpy, *left]
    return list(dict.fromkeys(sentences))


def _left_text(search: SearchOutcome) -> str:
    """What is said of Q/DQ that stays in every plan, so that no search tells whether it is at fault."""
    return f"{pairs_text(search.fixed_pairs)}; no plan takes them off, so their layers may be at fault, too"


def unsteady_text(result: CaseResult, score: Score) -> str:
    """Why a verdict might be another on other samples: the interval, and the samples that decide."""
    said = f"{name_of(score, NAME)} is {drawn_again(score)} when samples are drawn again"
    for output in result.outputs:
        if output.name == score.subject and output.heavy:
            some = f"{len(output.heavy)} of {output.samples}"
            worst = ", ".join(map(str, output.heavy[:3])) + (", ..." if len(output.heavy) > 3 else "")
            return f"unsteady: {said}; {some} samples carry 90 % of the error ({worst})"
    return f"unsteady: {said}, limit {number(score.limit or 0.0)}"


def own_inputs(result: CaseResult) -> list[str]:
    """What to doubt of the fix."""
    repair = result.answer
    own = repair is not None and bool(repair.rescales) and not repair.data
    return ["the fix has its scales from these very inputs: before you ship, run it on others"] if own else []


def _caution_lines(sentences: Sequence[str], most: int | None) -> list[str]:
    hidden = 0 if most is None else max(len(sentences) - most, 0)
    kept = sentences[: len(sentences) - hidden]
    lines = [fitted(f"Caution: {text}") for text in kept]
    if hidden:
        more = f" (and {count(hidden, 'more caution')})"
        lines[-1] = fitted(f"Caution: {kept[-1]}", WIDTH - len(more)) + more
    return lines


def _more(result: CaseResult, verbosity: int) -> str:
    """Where the rest is."""
    shows = "-vv shows all there is" if verbosity > 0 else "-v shows scores, stages and other ways"
    if not result.written:
        what = "fixed.onnx and a report" if any(_recommended(result)) else "a report"
        return f"More: {shows}; --int8acc-report DIR writes {what}"
    alike = len({path.startswith("/") for path in result.written}) == 1
    folder = commonpath([dirname(path) for path in result.written]) if alike else ""
    listed = {path.removeprefix(f"{folder}/").partition("/")[0] for path in result.written}
    many = len(listed) if folder else len(result.written)
    fixed = f"{folder}/fixed.onnx" in result.written if folder else "fixed.onnx" in result.written
    what = "fixed.onnx" if fixed else count(many, "file")
    what += f" and {many - 1} more" if fixed and many > 1 else ""
    files = f"More: {what} in {folder}" if folder else f"More: {what}"
    return first_fitting([f"{files}; {shows}", files])
