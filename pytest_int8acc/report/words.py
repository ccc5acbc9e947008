"""Formats numbers, scores, names and tables as text."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from itertools import zip_longest

from pytest_int8acc.results import Repair, Score, SearchOutcome

#: The maximum number of characters of a line of a report in the terminal or a log.
WIDTH = 110
#: The maximum number of characters of the name of a layer or tensor in a line of a report.
NAME = 40
#: If a confidence interval in decibels is wider than this, its ends mean nothing and are not written.
_KNOWN_DB = 100.0
#: A computed limit whose magnitude is below this is shown as 0, because it differs from 0 only by rounding.
_ZERO = 1e-12
#: The minimum width of a column of a table, in characters, however narrow the terminal is.
_LEAST_COLUMN = 12


def table(header: Sequence[str], rows: Sequence[Sequence[str]], width: int | None = None) -> list[str]:
    """Returns the lines of a table with left-aligned columns, two spaces apart.

    A column that is empty in all rows is left out, with its title in ``header``. If the lines would be longer
    than ``width``, the cells of the widest columns are wrapped into several lines.
    """
    kept = [i for i in range(len(header)) if any(row[i] for row in rows)]
    columns = [[line[i] for line in (header, *rows)] for i in kept]
    widths = [max(map(len, column)) for column in columns]
    if width is not None:
        widths = _narrowed(columns, widths, width - 2 * (len(widths) - 1))
    lines = []
    for row in zip(*columns, strict=True):
        cells = [
            textwrap.wrap(text, most, break_on_hyphens=False) if len(text) > most else [text]
            for text, most in zip(row, widths, strict=True)
        ]
        for parts in zip_longest(*cells, fillvalue=""):
            padded = [part.ljust(most) for part, most in zip(parts, widths, strict=True)]
            lines.append("  ".join(padded).rstrip())
    return lines


def indented_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], width: int | None = None
) -> list[str]:
    """Returns the lines of a table, as ``table`` does, indented by two spaces."""
    lines = table(header, rows, None if width is None else width - 2)
    return ["  " + line for line in lines]


def _narrowed(columns: Sequence[Sequence[str]], widths: Sequence[int], room: int) -> list[int]:
    """Returns ``widths``, in which the widest columns are narrowed until the sum is at most ``room``.

    At first no column becomes narrower than its longest word. If that is not enough, words are broken.
    """
    words = [max((len(word) for text in column for word in text.split()), default=0) for column in columns]
    narrowed = list(widths)
    for least in ([max(longest, _LEAST_COLUMN) for longest in words], [_LEAST_COLUMN] * len(words)):
        while sum(narrowed) > room:
            index = max(range(len(narrowed)), key=lambda i: (narrowed[i] > least[i], narrowed[i]))
            if narrowed[index] <= least[index]:
                break
            narrowed[index] -= 1
    return narrowed


def number(value: float, digits: int = 4) -> str:
    """Returns a number as text with ``digits`` significant digits; integers below 1e6 have all digits.

    A number just below 1 has more digits, so that it is not rounded to 1.
    """
    if abs(value) < 1e6 and value == int(value):
        return str(int(value))
    if 0.99 < abs(value) < 1:  # a cosine of 0.99998 must not be printed as 1
        digits = max(digits, 1 + math.ceil(-math.log10(1 - abs(value))))
    return f"{value:.{digits}g}".replace("e-0", "e-").replace("e+0", "e")


def number_pair(value: float, limit: float, most: int = 17) -> tuple[str, str]:
    """Returns both numbers as texts with as few significant digits as let the texts differ.

    They have at least 4 and at most ``most`` significant digits.
    """
    if abs(limit) < _ZERO < abs(value):  # a computed limit of 0 may be off by rounding
        limit = 0.0
    for digits in range(4, most + 1):
        texts = number(value, digits), number(limit, digits)
        if texts[0] != texts[1]:
            return texts
    return number(value), number(limit)


def count(n: int, thing: str) -> str:
    """Returns the number ``n`` with its noun in singular or plural, like ``1 layer`` or ``2 layers``."""
    return f"{n} {thing}" if n == 1 else f"{n} {thing}{'es' if thing.endswith('s') else 's'}"


def worst_first(scores: Iterable[Score]) -> list[Score]:
    """Returns the scores that have a limit, sorted: those that miss it first, then by the largest loss."""
    judged = (score for score in scores if score.limit is not None)
    return sorted(judged, key=lambda score: (score.passed, -score.normalized_loss))


def relation(score: Score, most: int | None = None) -> str:
    """Returns text on a score and its limit, like ``'logits' cosine 0.8741 < 0.999``.

    Each name in it has at most ``most`` characters.
    """
    name = name_of(score, most)
    if score.limit is None:
        return f"{name} {number(score.value)}"
    value, limit = value_and_limit(score, score.limit)
    if math.isnan(score.value):
        return f"{name} is nan, limit {limit}"
    least = score.bound == "min"
    sign = (">=" if least else "<=") if score.passed else ("<" if least else ">")
    return f"{name} {value} {sign} {limit}"


def interval_text(score: Score) -> str:
    """Returns the confidence interval of a score, like ``17.4 to 23.2``; empty if there is none.

    If an interval of decibels is wider than ``_KNOWN_DB``, the text is ``anything``.
    """
    if score.interval is None:
        return ""
    if score.metric.endswith("_db") and score.interval.high - score.interval.low > _KNOWN_DB:
        return "anything"
    return " to ".join(number_pair(score.interval.low, score.interval.high, most=8))


def name_of(score: Score, most: int | None = None) -> str:
    """Returns the name of a score as text, like ``'logits' cosine``; for a user's metric its name alone.

    Each name in it has at most ``most`` characters.
    """
    subject = quoted(score.subject, most)
    return subject if score.name == score.subject else f"{subject} {middle(score.metric, most)}"


def name_in_yaml(output: str) -> str:
    """Returns the name of an output as the YAML of a spec needs it, in quotes if it has a bracket."""
    name = middle(output)
    return f"'{name}'" if "[" in name else name  # YAML reads a bracket as the start of a list


def limit_in_yaml(output: str, metric: str, limit: float | None, *, per_sample: bool = False) -> str:
    """Returns a criterion on an output in the YAML of a spec, like ``{output: logits, sqnr_db: 20}``."""
    return f"{{output: {name_in_yaml(output)}, {metric}: {limit:g}{', per: sample' * per_sample}}}"


def value_and_limit(score: Score, limit: float) -> tuple[str, str]:
    """Returns a score's value and its limit as texts. If the limit is missed, the texts differ."""
    return number_pair(score.value, limit, most=8 if score.passed else 17)


def few(names: Sequence[str], most: int) -> str:
    """Returns text like ``a, b and 3 more``: the first ``most`` names, and the number of the others."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def shorten(text: str, most: int) -> str:
    """Returns ``text``; if it is longer than ``most`` characters, its end is replaced by dots."""
    if len(text) <= most:
        return text
    cut = text[: most - 3]
    return cut[: cut.rfind(" ") if " " in cut[most // 2 :] else None].rstrip(" ,;:") + "..."


def quoted(name: str, most: int | None = NAME) -> str:
    """Returns a name in quotes. If it is longer than ``most`` characters, dots replace its middle."""
    return f"'{middle(name, most)}'"


def joined(*clauses: str) -> str:
    """Returns the clauses that are not empty in one text, with semicolons between them."""
    return "; ".join(filter(None, clauses))


def middle(text: str, most: int | None = NAME) -> str:
    """Returns ``text``; if it is longer than ``most`` characters, dots replace its middle.

    With None it is never shortened.
    """
    if most is None or len(text) <= most:
        return text
    end = (most - 3) * 2 // 3  # more of the end is kept, because the end of a path identifies a file better
    return f"{text[: most - 3 - end]}...{text[len(text) - end :]}"


def fitted(text: str, most: int = WIDTH) -> str:
    """Returns ``text`` shortened to at most ``most`` characters.

    First the middle of long names is left out. If that is not enough, words at the end are left out.
    """
    words = text.split(" ")
    for word in sorted(words, key=len, reverse=True):
        beyond = sum(map(len, words)) + len(words) - 1 - most
        if beyond <= 0 or len(word) <= NAME:
            break
        words[words.index(word)] = middle(word, max(len(word) - beyond, NAME))
    return shorten(" ".join(words), most)


def first_fitting(texts: Sequence[str], most: int = WIDTH) -> str:
    """Returns the first of ``texts`` with at most ``most`` characters; if none, the last one, shortened."""
    return next((text for text in texts if len(text) <= most), fitted(texts[-1], most))


def proof_word(found: Repair | SearchOutcome) -> str:
    """Returns words on how far a fix was proved: ``verified``, ``not proved``, ``not verified`` or between.

    A verified fix meets the criteria with a safety margin, also on held-out samples. It only ``passes
    held-out samples`` if a limit lies in the confidence interval of its score on these. A fix that is ``not
    proved`` has the margin, but there are no held-out samples, or too few samples to prove each score.
    """
    if found.verified:
        held_out = found.evidence.held_out if isinstance(found, Repair) else found.held_out
        is_sure = held_out is None or all(score.steady for score in held_out.scores)
        return "verified" if is_sure else "passes held-out samples"
    return "not proved" if found.holds else "not verified"


def percent(share: float) -> str:
    """Returns a share, 0 to 1, as text in percent, like ``8.1 %``."""
    return f"{100 * share:.2g} %" if share < 0.995 else f"{100 * share:.3g} %"


def pairs_text(nodes: Sequence[str]) -> str:
    """Returns text on the Q/DQ nodes that no plan can remove: their number, and the first names."""
    many = count(len(nodes), "Q/DQ node")
    stay = "stays as it is" if len(nodes) == 1 else "stay as they are"
    return f"{many} {stay} (blocked, FP8, INT4, or no pair): {', '.join(nodes[:5])}"
