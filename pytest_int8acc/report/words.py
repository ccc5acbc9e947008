"""Scores and long sentences in few words."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pytest_int8acc.report.table import number, number_pair
from pytest_int8acc.results import Score


def relation(score: Score) -> str:
    """A judged score as ``'logits' cosine 0.8741 < 0.999``."""
    name = name_of(score)
    if score.limit is None:
        return f"{name} {number(score.value)}"
    value, limit = value_and_limit(score, score.limit)
    if math.isnan(score.value):
        return f"{name} is nan, limit {limit}"
    least = score.bound == "min"
    sign = (">=" if least else "<=") if score.passed else ("<" if least else ">")
    return f"{name} {value} {sign} {limit}"


def name_of(score: Score) -> str:
    """A user's function stands for itself, an output needs the metric beside it."""
    return f"'{score.subject}'" if score.name == score.subject else f"'{score.subject}' {score.metric}"


def value_and_limit(score: Score, limit: float) -> tuple[str, str]:
    """Both as text: a miss shows by how little it missed, a limit kept to the last digit may look equal."""
    return number_pair(score.value, limit, most=8 if score.passed else 17)


def shorten(text: str, most: int) -> str:
    """``text`` up to ``most`` characters, cut between words; what is cut shows as dots."""
    if len(text) <= most:
        return text
    cut = text[: most - 3]
    return cut[: cut.rfind(" ") if " " in cut[most // 2 :] else None].rstrip(" ,;:") + "..."


def percent(share: float) -> str:
    """A share in words."""
    return f"{100 * share:.2g} %" if share < 0.995 else f"{100 * share:.3g} %"


def pairs_text(nodes: Sequence[str]) -> str:
    """What is said of Q/DQ pairs that no plan takes off."""
    named = ", ".join(nodes[:5])
    return f"{len(nodes)} DequantizeLinear nodes stay as they are (blocked, FP8, INT4, or no pair): {named}"
