"""The work on a graph grows with its nodes, not with their square: counted in lines run, not in seconds."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import FrameType
from typing import Any

import pytest

from benchmarks import architectures
from benchmarks.growth import passes

SMALL, FACTOR = 3, 4
PASSES = tuple(passes(architectures.csp_tiny(1))[1])


class Counter:
    """Counts lines that run, and turns of loops on one line."""

    lines = 0

    def __call__(self, _frame: FrameType, event: str, _argument: Any) -> Counter:
        self.lines += event == "line"
        return self

    @contextmanager
    def counting(self) -> Iterator[None]:
        before = sys.gettrace()
        sys.settrace(self)
        try:
            yield
        finally:
            sys.settrace(before)


@cache
def calls(family: str, blocks: int) -> dict[str, Callable[[], object]]:
    return dict(passes(getattr(architectures, family)(blocks))[1])


def work(family: str, blocks: int, name: str) -> int:
    calls(family, blocks)[name]()  # what is imported or looked up once is no growth
    counter = Counter()
    with counter.counting():
        calls(family, blocks)[name]()
    return counter.lines


@pytest.mark.parametrize("family", ["vit_tiny", "csp_tiny"])
@pytest.mark.parametrize("name", PASSES)
def test_work_grows_with_the_nodes(family: str, name: str) -> None:
    assert work(family, FACTOR * SMALL, name) <= 1.02 * FACTOR * work(family, SMALL, name)
