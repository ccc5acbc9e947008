"""For pytest, ``-p benchmarks.cost.phases``: writes the CPU seconds of each step after the verdict."""

from __future__ import annotations

import functools
import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

STEPS = ("search", "diagnose", "repair", "write_fix")
_spent: Counter[str] = Counter()


def pytest_addoption(parser: pytest.Parser) -> None:
    """The file to write."""
    parser.addoption("--phases")


def pytest_runtest_setup() -> None:
    """Put a clock around each step."""
    from pytest_int8acc.check import _Steps

    for name in STEPS:
        setattr(_Steps, name, _timed(name, getattr(_Steps, name)))


def _timed(name: str, step: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(step)
    def timed(*arguments: Any) -> Any:
        began = time.process_time()
        try:
            return step(*arguments)
        finally:
            _spent[name] += time.process_time() - began

    return timed


def pytest_unconfigure(config: pytest.Config) -> None:
    """Write what was spent."""
    Path(config.getoption("--phases")).write_text(json.dumps(_spent))
