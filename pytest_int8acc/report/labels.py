"""Returns names of numbers on a page, with their units and what they mean."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pytest_int8acc.report.catalogue import METRICS, NUMBERS, Label
from pytest_int8acc.report.words import number, percent
from pytest_int8acc.results import Score


def metric_label(score: Score, low_format: str) -> Label:
    """Returns a metric's label; a user's function has its own name."""
    own = Label(score.metric, "", "a metric of your own")
    if score.subject.endswith(f".py:{score.metric}"):
        return own
    return METRICS.get(score.metric, own).of(low_format)


def number_cells(numbers: Mapping[str, float], low_format: str) -> Iterator[tuple[Label, str]]:
    """Yields the label of each number of a cause, and its value with its unit."""
    for name, value in numbers.items():
        label = NUMBERS.get(name, Label(name)).of(low_format)
        text = percent(value) if label.unit == "%" else f"{number(value)} {label.unit}".strip()
        yield label, text
