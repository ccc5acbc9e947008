"""A pytest plugin that compares an INT8 model with the same model in FP16.

The names in ``__all__`` are loaded on first use, since pytest imports this package on every run. To judge a
case from Python, use ``from pytest_int8acc.api import check``, then ``check(case, Settings())``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_int8acc.errors import (
        CriterionError,
        DataError,
        EngineError,
        Int8accError,
        ModelError,
        ScalesError,
        SpecError,
    )
    from pytest_int8acc.results import CaseResult, LineFit, OutputResult, Score
    from pytest_int8acc.settings import Settings
    from pytest_int8acc.spec.load import load_spec
    from pytest_int8acc.spec.models import Case

__all__ = [
    "Case",
    "CaseResult",
    "CriterionError",
    "DataError",
    "EngineError",
    "Int8accError",
    "LineFit",
    "ModelError",
    "OutputResult",
    "ScalesError",
    "Score",
    "Settings",
    "SpecError",
    "load_spec",
]

_HOMES = {
    "Case": "spec.models",
    "CaseResult": "results",
    "LineFit": "results",
    "OutputResult": "results",
    "Score": "results",
    "Settings": "settings",
    "load_spec": "spec.load",
}


def __getattr__(name: str) -> Any:
    """Returns the public object ``name``, imported on first use; raises AttributeError for any other name."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES.get(name, 'errors')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Returns the public names, sorted, for ``dir()``. Names that were not imported yet are included."""
    return sorted(__all__)
