"""What a precision search found, as text."""

from __future__ import annotations

from pytest_int8acc.report.causes import cause_text
from pytest_int8acc.report.table import number, table
from pytest_int8acc.report.words import shorten
from pytest_int8acc.results import Culprit, SearchOutcome

_CULPRITS = 20
_TRIALS = 40
_CAUSE = 60


def brief(outcome: SearchOutcome) -> str:
    """What the first line of a failure says of the search, like ``3 culprits, fix verified``."""
    count = len(outcome.culprits)
    if not outcome.found or not count:
        return "no fix found"
    several = "" if count == 1 else "s"
    what = f"culprit{several}" if outcome.minimal else f"layer{several} to keep high"
    return f"{count} {what}, fix {'verified' if outcome.verified else 'not verified'}"


def search_lines(outcome: SearchOutcome, verbosity: int = 0) -> list[str]:
    """Culprits, the fix, and what the search cost; with ``verbosity`` 2 every trial."""
    lines = [
        *_culprits(outcome, verbosity),
        *(f"note: {note}" for note in outcome.notes),
        fix_line(outcome),
        cost_line(outcome),
    ]
    if outcome.table:
        lines += table(
            ("index", "layer", "shape", "similarity", ""),
            [
                (str(r.index), r.layer, r.shape, number(r.similarity), "<- kept high" if r.chosen else "")
                for r in outcome.table
            ],
        )
        lines += [row.line for row in outcome.table if row.line]
    if verbosity >= 2:
        lines += _trials(outcome)
    return [line for line in lines if line]


def _culprits(outcome: SearchOutcome, verbosity: int) -> list[str]:
    if not outcome.culprits:
        return []
    if outcome.minimal:
        title = "Culprits (minimal: leave any one in INT8 and the criteria fail)"
    else:
        title = "Layers to keep high (not shown to be minimal)"
    shown = outcome.culprits[:_CULPRITS]
    rows = [(c.layer, c.op_type, c.alone, _cause(c, verbosity), f"{c.price:.1%} of MACs") for c in shown]
    more = len(outcome.culprits) - len(shown)
    header = ("layer", "type", "alone in INT8", "cause", "price")
    lines = [title, *("  " + line for line in table(header, rows))]
    return [*lines, f"  ... and {more} more"] if more else lines


def _cause(culprit: Culprit, verbosity: int) -> str:
    """Why, in few words; with -vv in full."""
    if culprit.cause is None:
        return ""
    text = cause_text(culprit.cause)
    return text if verbosity >= 2 else shorten(text.partition(": ")[0], _CAUSE)


def fix_line(outcome: SearchOutcome) -> str:
    """The fix in a sentence, or why there is none."""
    if not outcome.found:
        return f"No fix: {outcome.reason}"
    if not outcome.culprits:
        return ""
    groups = "this group" if len(outcome.culprits) == 1 else f"these {len(outcome.culprits)} groups"
    plan = f"{groups} in {outcome.precision.upper()}, {outcome.int8_share:.0%} of the MACs stay in INT8"
    if outcome.price_ms is not None:
        plan += f", {outcome.price_ms:+.2g} ms"
    if not outcome.verified:
        return f"Fix not verified: {plan}"
    unseen = f", {outcome.held_out} of them not seen by the search" if outcome.held_out else ""
    return f"Fix verified (built and run on all samples{unseen}): {plan}"


def cost_line(outcome: SearchOutcome) -> str:
    """What the search cost, and why it stopped."""
    count = len(outcome.trials)
    builds = "1 model" if outcome.builds == 1 else f"{outcome.builds} models"
    return (
        f"Search '{outcome.strategy}': {count} trials and {outcome.probes} probes (as much as "
        f"{number(outcome.cost, 3)} runs over all samples), {builds} built, in "
        f"{number(outcome.seconds, 3)} s; {outcome.reason}"
    )


def _trials(outcome: SearchOutcome) -> list[str]:
    rows = [
        (
            str(i),
            "passes" if t.passed else "fails",
            number(t.loss, 3),
            number(t.cost, 2),
            t.why,
            _kept(t.high),
        )
        for i, t in enumerate(outcome.trials[:_TRIALS], 1)
    ]
    more = len(outcome.trials) - len(rows)
    lines = table(("trial", "verdict", "loss", "cost", "why", "kept high"), rows)
    return [*lines, f"... and {more} more (all in report.json)"] if more else lines


def _kept(high: tuple[str, ...]) -> str:
    return (
        ", ".join(high[:4]) + (f" and {len(high) - 4} more" if len(high) > 4 else "") if high else "nothing"
    )
