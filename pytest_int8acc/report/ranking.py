"""Which of several scores matters most."""

from __future__ import annotations

from collections.abc import Iterable

from pytest_int8acc.results import Score


def worst_first(scores: Iterable[Score]) -> list[Score]:
    """The judged ones among ``scores``: missed limits first, each part by falling strain."""
    judged = (score for score in scores if score.limit is not None)
    return sorted(judged, key=lambda score: (score.passed, -score.strain))
