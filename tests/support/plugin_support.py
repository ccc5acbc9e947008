"""A project in a temporary directory whose cases are measured by a stand-in, for tests of the pytest side."""

from __future__ import annotations

import importlib
import pkgutil
from importlib.metadata import entry_points

import numpy.ma  # noqa: F401
import pydantic.type_adapter  # noqa: F401

import pytest_int8acc

# Imported here so that no run inside a test imports them anew: pytester forgets what a run has imported.
for module in pkgutil.walk_packages(pytest_int8acc.__path__, "pytest_int8acc."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)

INSTALLED = any(entry.value == "pytest_int8acc.plugin" for entry in entry_points(group="pytest11"))
#: Other plugins that runs inside a test leave out. Hypothesis, Jinja and more would be imported each time;
#: pytest-rerunfailures would open a socket in this process each time, and never close it.
OTHERS = (
    "hypothesispytest",
    "rerunfailures",
    "html",
    "html_fixtures",
    "metadata",
    "pytest-split",
    "pytest-shard",
)
#: Arguments of every run inside a test.
LOAD = (
    *(f"-pno:{name}" for name in OTHERS),
    *(() if INSTALLED else ("-p", "pytest_int8acc.plugin")),
)

#: A conftest whose measure() returns results by the case's name, without a model.
CONFTEST = """
import sys
import types

import pytest

from pytest_int8acc.errors import ModelError
from pytest_int8acc.results import CaseResult, OutputResult, Score


def measure(case, settings, goldens=None, clock=None, builders=None):
    if case.name.startswith("broken"):
        raise ModelError(f"{case.name}.onnx: no such file; write the model's path relative to the spec")
    if case.name.startswith("crash"):
        raise RuntimeError("a mistake of ours")
    value = 0.8741 if case.name.startswith("bad") else 0.9996
    scores = (
        Score("logits", "cosine", value, limit=0.999, noise=1.0),
        Score("logits", "sqnr_db", float("inf"), limit=20.0),
        Score("logits", "max_abs", 0.0625),
    )
    result = CaseResult(
        name=case.name, spec="s", samples=settings.samples or 397, data="val.npz", baseline="FP16",
        candidate="INT8", backend=f"{settings.backend}/{settings.mode}/{settings.provider}",
        outputs=(OutputResult("logits", "float32", "(397, 10)", scores),), notes=("the data is random",),
    )
    return types.SimpleNamespace(result=result, settings=settings, close=lambda: None)


def stand_in(name, **functions):
    sys.modules.pop("pytest_int8acc.api", None)  # it may have imported what is replaced
    sys.modules["pytest_int8acc." + name] = module = types.ModuleType("pytest_int8acc." + name)
    vars(module).update(functions)


stand_in("case.measured", measure=measure)
stand_in("answer", conclude=lambda measured, folder, root: measured.result)
"""


def spec(*names: str, **keys: object) -> str:
    """YAML of a spec with a case for each name; ``keys`` go into the last one."""
    lines = [
        "defaults:",
        "  model: model.onnx",
        "  inputs: inputs.npz",
        "  int8: {scales: ranges.json}",
        "cases:",
    ]
    lines += [f"  - name: {name}" for name in names]
    lines += [f"    {key}: {value}" for key, value in keys.items()]
    return "\n".join(lines) + "\n"
