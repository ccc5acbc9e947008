"""Makes sentences on the result of a search for the layers that must stay in high precision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_int8acc.report.catalogue import ENDINGS
from pytest_int8acc.report.charts import Chart, chart
from pytest_int8acc.report.words import count, few, number, pairs_text, percent, proof_word
from pytest_int8acc.results.causes import Repair
from pytest_int8acc.results.search import Culprit, Ending, SearchOutcome, Tradeoff

#: If a fix needs more than this share of the MACs in high precision, a note advises to train with
#: quantization.
_QAT_SHARE = 0.5


def ending_text(ending: Ending, low_format: str, fixed_pairs: Sequence[str] = ()) -> str:
    """Returns a text on why a search ended.

    If the criteria fail with all layers in high precision, the text names ``fixed_pairs``, the Q/DQ nodes
    that no plan removes. ``low_format`` is the format that the case is about, like ``INT8``.
    """
    cause = f"{low_format} is not the cause"
    if fixed_pairs:
        cause = f"{pairs_text(fixed_pairs)}; no plan takes them off"
    facts = {**vars(ending), "cause": cause, "format": low_format, "layers": needed_layers(ending)}
    return ENDINGS[ending.kind].format_map(facts)


def needed_layers(ending: Ending) -> str:
    """Returns text on how many layers must leave the low format: ``8 of 10 layers``, or ``every layer``."""
    is_part = 0 < ending.high < ending.groups
    return f"{ending.high} of {ending.groups} layers" if is_part else "every layer"


def reason(outcome: SearchOutcome, low_format: str) -> str:
    """Returns a text on why a search ended.

    ``low_format`` is the format that the case is about, like ``INT8``.
    """
    return ending_text(outcome.ending, low_format, outcome.fixed_pairs)


def alone_text(culprit: Culprit) -> str:
    """Returns the worst score with only this layer in the low format, like ``y cosine 0.93``.

    The text is empty if the score is not known.
    """
    score = culprit.worst_alone
    if score is None:
        return ""
    return f"{score.name} {score.value:.6g}{' (within its limit)' * score.passed}"


def search_notes(outcome: SearchOutcome, low_format: str, repairs: Sequence[Repair] = ()) -> list[str]:
    """Returns notes on the outcome of a search.

    They say whether built models confirm the layers at fault, how many causes no trial has confirmed, how
    many Cast nodes the fix adds, and whether to train with quantization instead. ``repairs`` are the remedies
    that meet the criteria.
    """
    notes, certificate = [], outcome.certificate
    if certificate is not None and certificate.passed:
        notes.append(
            f"certified: {certificate.builds} built models show that each culprit must leave {low_format}"
        )
    elif certificate is not None:
        ending = ending_text(certificate.ending, low_format)
        notes.append(f"not certified by {certificate.builds} built models: {ending}")
    causes = [culprit.cause for culprit in outcome.culprits if culprit.cause is not None]
    hints = sum(cause.evidence is None for cause in causes)
    if hints:
        which = "the causes" if hints == len(causes) else f"{hints} of {len(causes)} causes"
        notes.append(f"{which} are hints, told by what tensors hold: no trial was left, or showed a loss")
    unknown = sum(culprit.unexplained for culprit in outcome.culprits)
    if causes and unknown:
        notes.append(f"{unknown} of {len(outcome.culprits)} layers have no cause here: no trial showed one")
    if outcome.joined:
        joined = f"{count(len(outcome.joined), 'more node')} between them run in {outcome.precision.upper()}"
        notes.append(f"{joined}, so that fewer Casts are needed: {few(outcome.joined, 5)}")
    if outcome.casts is not None:
        notes.append(f"with these layers kept the model has {count(outcome.casts, 'Cast')} more")
    share = 1 - outcome.int8_share
    leaves = outcome.found and share > _QAT_SHARE and (not repairs or repairs[0].layers)
    if low_format == "INT8" and leaves:
        training = "quantization-aware training (QAT) is the better way"
        notes.append(f"{share:.0%} of the multiply-accumulates would leave INT8: {training}")
    return notes


@dataclass(frozen=True)
class TradeoffView:
    """A trade-off, how the score improves with more layers in high precision, as texts and a chart."""

    title: str
    said: str
    """The chart in words, for screen readers."""
    precision: str
    metric: str
    rows: tuple[tuple[str, str, str, str, str], ...]
    """A row of five texts for each plan: the share of the multiply-accumulates in high precision, the score,
    the verdict, up to 3 of the layers that the plan adds to the plan before, and all layers that it adds."""
    chart: Chart


def tradeoff_view(tradeoff: Tradeoff, precision: str) -> TradeoffView:
    """Returns a trade-off as texts and a chart; ``precision`` is the high precision, like ``fp16``."""
    first, last = tradeoff.points[0].score, tradeoff.points[-1]
    name = precision.upper()
    tried = f"each tried on {count(tradeoff.samples, 'sample')}"
    title = f"Noise adds up: {first.name} by the MACs in {name}, {tried}"
    limit = "none" if first.limit is None else number(first.limit)
    said = (
        f"{first.name} from {number(first.value)} with nothing in {name} to {number(last.score.value)} with "
        f"{last.share:.1%} of the MACs, limit {limit}"
    )
    rows, before = [], 0
    for point in tradeoff.points:
        layers = tradeoff.layers[before : point.layers]
        verdict = "passes" if point.score.passed else "fails"
        value = number(point.score.value)
        rows.append((f"{point.share:.1%}", value, verdict, few(layers, 3), ", ".join(layers)))
        before = point.layers
    return TradeoffView(title, said, name, first.metric, tuple(rows), chart(tradeoff))


def plan_line(outcome: SearchOutcome, low_format: str, share: float) -> str:
    """Returns a sentence on the plan of the search, or on why there is none; empty if nothing has to change.

    Args:
        outcome: The outcome of the search.
        low_format: The format that the case is about, like ``INT8``.
        share: The share of the model's multiply-accumulates that stays in ``low_format``, from 0 to 1.
    """
    if not outcome.found:
        return f"No fix: {reason(outcome, low_format)}"
    if not outcome.culprits:
        return ""
    stays = f"{percent(share)} of the MACs stay in {low_format}"
    if outcome.price_ms is not None:
        stays += f", {outcome.price_ms:+.2g} ms"
    plan = f"{stays} with {_kept(outcome)} in {outcome.precision.upper()}"
    if outcome.verified:
        held_out = f"{outcome.held_out.count} of them not seen by the search"
        if outcome.held_out.key == "prove":
            held_out = f"and on {outcome.held_out.count} not seen by the search"
        return f"Plan of the search, {proof_word(outcome)} (built and run on all samples, {held_out}): {plan}"
    if outcome.holds:
        return f"Plan of the search, not proved (built and run on the samples that chose it): {plan}"
    return f"Plan of the search, not verified: {plan}"


def _kept(outcome: SearchOutcome) -> str:
    """Returns text on the layers that the plan keeps in high precision: at fault, or a safety margin."""
    culprits = [culprit.layer for culprit in outcome.culprits]
    others = [layer for layer in outcome.kept if layer not in culprits]
    groups = "this group" if len(culprits) == 1 else f"these {len(culprits)} groups"
    if not others:
        return groups
    if not {*culprits} <= {*outcome.kept}:
        return f"{few(outcome.kept, 4)} (in place of these, as a safety margin)"
    return f"{groups} and {few(others, 4)} (as a safety margin)"


def cost_line(outcome: SearchOutcome, low_format: str) -> str:
    """Returns a line on what the search cost, and on why it ended."""
    return (
        f"Search '{outcome.strategy}': {len(outcome.trials)} trials and {outcome.probes} probes (as much as "
        f"{number(outcome.cost, 3)} runs over all samples), {count(outcome.builds, 'model')} built, in "
        f"{number(outcome.seconds, 3)} s; {reason(outcome, low_format)}"
    )
