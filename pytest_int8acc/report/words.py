"""Formats numbers, scores, names and tables as text."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from itertools import zip_longest

from pytest_int8acc.results import Score

#: The maximum number of characters of a line in a log.
WIDTH = 110
#: The maximum number of characters of a layer's or tensor's name in a line of a log.
NAME = 40
#: If a confidence interval is wider than this, in decibels, its ends are not written.
_KNOWN_DB = 100.0
#: Maximum magnitude of a computed limit that is treated as 0, because rounding errors may have changed a 0.
_ZERO = 1e-12
#: The minimum width of a column of a table, in characters, however narrow the terminal is.
_LEAST_COLUMN = 12


def table(header: Sequence[str], rows: Sequence[Sequence[str]], width: int | None = None) -> list[str]:
    """Returns lines of left-aligned columns, two spaces apart.

    A column that is empty in all rows is left out. If the lines would be longer than ``width``, the cells of
    the widest columns are wrapped into several lines.
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
    """Returns the lines of ``table``, indented by two spaces."""
    lines = table(header, rows, None if width is None else width - 2)
    return ["  " + line for line in lines]


def _narrowed(columns: Sequence[Sequence[str]], widths: Sequence[int], room: int) -> list[int]:
    """Returns the widths of columns, the widest reduced until their sum is at most ``room``.

    At first no column becomes narrower than its longest word; if that is not enough, words are broken.
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
    """Returns ``value`` with ``digits`` significant digits, more just below 1; integers below 1e6 in full."""
    if abs(value) < 1e6 and value == int(value):
        return str(int(value))
    if 0.99 < abs(value) < 1:  # so a cosine of 0.99998 is not printed as 1
        digits = max(digits, 1 + math.ceil(-math.log10(1 - abs(value))))
    return f"{value:.{digits}g}".replace("e-0", "e-").replace("e+0", "e")


def number_pair(value: float, limit: float, most: int = 17) -> tuple[str, str]:
    """Returns both numbers with the fewest significant digits, 4 to ``most``, that print them differently."""
    if abs(limit) < _ZERO < abs(value):  # a computed limit of 0 may be off by rounding
        limit = 0.0
    for digits in range(4, most + 1):
        texts = number(value, digits), number(limit, digits)
        if texts[0] != texts[1]:
            return texts
    return number(value), number(limit)


def count(n: int, thing: str) -> str:
    """Returns text like ``1 layer`` and ``2 layers``."""
    return f"{n} {thing}" if n == 1 else f"{n} {thing}{'es' if thing.endswith('s') else 's'}"


def worst_first(scores: Iterable[Score]) -> list[Score]:
    """Returns the scores that have a limit. Missed ones come first, then those with the largest loss."""
    judged = (score for score in scores if score.limit is not None)
    return sorted(judged, key=lambda score: (score.passed, -score.normalized_loss))


def relation(score: Score, most: int | None = None) -> str:
    """Returns a score like ``'logits' cosine 0.8741 < 0.999``; each name has at most ``most`` characters."""
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
    """Returns the name of a score: output and metric, or the user's function alone."""
    subject, metric = (middle(name, most or len(name)) for name in (score.subject, score.metric))
    return f"'{subject}'" if score.name == score.subject else f"'{subject}' {metric}"


def name_in_yaml(output: str) -> str:
    """Returns the name of an output in the YAML of a spec."""
    name = middle(output, NAME)
    return f"'{name}'" if "[" in name else name  # YAML reads a bracket as the start of a list


def limit_in_yaml(output: str, metric: str, limit: float | None, *, per_sample: bool = False) -> str:
    """Returns a criterion on an output in the YAML of a spec, like ``{output: logits, sqnr_db: 20}``."""
    return f"{{output: {name_in_yaml(output)}, {metric}: {limit:g}{', per: sample' * per_sample}}}"


def value_and_limit(score: Score, limit: float) -> tuple[str, str]:
    """Returns value and limit as text. If the limit is missed, both have enough digits to differ."""
    return number_pair(score.value, limit, most=8 if score.passed else 17)


def few(names: Sequence[str], most: int) -> str:
    """Returns the first ``most`` names, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def shorten(text: str, most: int) -> str:
    """Returns ``text``, cut between words to ``most`` characters. A text that was cut ends in dots."""
    if len(text) <= most:
        return text
    cut = text[: most - 3]
    return cut[: cut.rfind(" ") if " " in cut[most // 2 :] else None].rstrip(" ,;:") + "..."


def middle(text: str, most: int) -> str:
    """Returns ``text`` of at most ``most`` characters, with dots in place of its middle."""
    end = (most - 3) * 2 // 3  # more of the end is kept, because the end of a path identifies a file better
    return text if len(text) <= most else f"{text[: most - 3 - end]}...{text[len(text) - end :]}"


def fitted(text: str, most: int = WIDTH) -> str:
    """Returns ``text`` of at most ``most`` characters.

    The middle of long names is left out first, then words at the end.
    """
    words = text.split(" ")
    for word in sorted(words, key=len, reverse=True):
        beyond = sum(map(len, words)) + len(words) - 1 - most
        if beyond <= 0 or len(word) <= NAME:
            break
        words[words.index(word)] = middle(word, max(len(word) - beyond, NAME))
    return shorten(" ".join(words), most)


def first_fitting(texts: Sequence[str], most: int = WIDTH) -> str:
    """Returns the first of ``texts`` with at most ``most`` characters; else the last one, shortened."""
    return next((text for text in texts if len(text) <= most), fitted(texts[-1], most))


def percent(share: float) -> str:
    """Returns a share in percent, like ``8.1 %``."""
    return f"{100 * share:.2g} %" if share < 0.995 else f"{100 * share:.3g} %"


def pairs_text(nodes: Sequence[str]) -> str:
    """Returns how many Q/DQ nodes no plan can remove, and their names."""
    many = count(len(nodes), "Q/DQ node")
    stay = "stays as it is" if len(nodes) == 1 else "stay as they are"
    return f"{many} {stay} (blocked, FP8, INT4, or no pair): {', '.join(nodes[:5])}"
