"""Writes docs/reference.md from the code; tests/house/test_reference.py compares.

Run as ``python docs/make_reference.py``.
"""

from __future__ import annotations

import ast
import inspect
import typing
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

import pytest_int8acc
from pytest_int8acc.graph.lint.rules import RULES
from pytest_int8acc.observers.methods import METHODS
from pytest_int8acc.plugin.workbench import LoadedCase, Workbench
from pytest_int8acc.report.catalogue import CAUSES
from pytest_int8acc.runtime.protocol import Engine
from pytest_int8acc.scores.metrics import METRICS
from pytest_int8acc.scores.tasks import TASKS
from pytest_int8acc.settings import SETTINGS
from pytest_int8acc.spec.criteria import (
    EngineCriterion,
    MetricCriterion,
    OutputCriterion,
    RegressionCriterion,
)
from pytest_int8acc.spec.int8 import CalibrationMethod
from pytest_int8acc.spec.models import Case

FILE = Path(__file__).with_name("reference.md")
#: Setting to its key in a spec, where that is another one than the setting's own name.
_SPEC_KEYS = {
    "mode": "onnxruntime.mode",
    "provider": "onnxruntime.provider",
    "search": "search.when",
    "strategy": "search.strategy",
    "max_builds": "search.max_builds",
    "max_seconds": "search.max_seconds",
    "certify": "search.certify",
    "backend": "backend",
    "samples": "samples",
}
#: Options of a whole run: option, ini key or nothing, default, what it does.
RUN = (
    (
        "--int8acc",
        "int8acc",
        "false",
        "Run the cases of all specs; one named on the command line runs anyway.",
    ),
    (
        "--int8acc-update {missing,all}",
        "",
        "nothing is recorded",
        "Record goldens and accepted scores, those that are missing or all, and print old and new ones. "
        "Refused where the variable CI is set.",
    ),
    ("--int8acc-update-in-ci", "", "false", "Let `--int8acc-update` record where CI is set, too."),
    (
        "--int8acc-prune[={list,delete}]",
        "",
        "nothing",
        "List goldens that no case of a spec has any more; with `=delete`, delete them. Nothing else ever "
        "deletes one.",
    ),
    (
        "",
        "int8acc_goldens",
        "`__int8acc__` beside each spec",
        "Where goldens are kept: a folder, from pytest's root, or an fsspec URL.",
    ),
    (
        "--int8acc-merge DIR...",
        "",
        "",
        "Run nothing: merge the report folders of several runs into the one that `--int8acc-report` names. "
        "Exits with 1 where a case failed or a report could not be read.",
    ),
    (
        "--int8acc-init MODEL...",
        "",
        "",
        "Run nothing: write a commented spec beside each of these ONNX models.",
    ),
    (
        "--int8acc-data PATH",
        "",
        "data are made up",
        "With `--int8acc-init`: data for these models, a folder of images or of audio, an `.npz`, an `.npy`, "
        "a folder of `.npy`, or Polygraphy's JSON.",
    ),
    (
        "--int8acc-device N",
        "int8acc_device",
        "each pytest-xdist worker takes the next one",
        "The GPU, counted from 0 among those that CUDA_VISIBLE_DEVICES allows.",
    ),
)
#: What is documented of the objects that fixtures give, each under the name that a test has for it.
_OBJECTS: tuple[tuple[str, type, tuple[str, ...]], ...] = (
    ("int8acc", Workbench, ("load", "engine")),
    ("case", LoadedCase, ("check", "measure", "engine", "outputs")),
    ("engine", Engine, ("__call__", "description", "inputs", "outputs")),
)
_CRITERIA = (OutputCriterion, MetricCriterion, EngineCriterion, RegressionCriterion)


def text() -> str:
    """The whole document."""
    parts = ["# Reference", "", "Made from the code by `python docs/make_reference.py`.", ""]
    parts += ["The command line goes before the spec, the spec before the pytest configuration.", ""]
    parts += ["## Options of a run", "", *_run_options(), "## Settings", "", *_settings()]
    parts += ["## Keys of a spec", "", *_keys(Case, ""), "## Criteria", ""]
    for criterion in _CRITERIA:
        parts += [f"{_first(criterion.__doc__)}", "", *_keys(criterion, "")]
    parts += [
        "## Metrics",
        "",
        *_metrics(),
        "## Metrics of labels",
        "",
        *_tasks(),
        "## Calibration methods",
        "",
        *_calibrations(),
    ]
    parts += ["## Fixtures", "", *_fixtures(), "## Lint rules", "", *_rules(), "## Causes", "", *_causes()]
    return "\n".join(parts).rstrip() + "\n"


def _run_options() -> Iterator[str]:
    """A table of the options that concern a whole run."""
    header = ("command line", "pytest configuration", "default", "what it does")
    yield from _table(header, [(_code(option), _code(ini), known, said) for option, ini, known, said in RUN])


def _settings() -> Iterator[str]:
    """A table of what the command line, the pytest configuration and a spec may set."""
    rows = []
    for setting in SETTINGS:
        values = {"count": " N", "size": " SIZE", "folder": " DIR", "flag": ""}
        value = values.get(setting.kind, " {" + ",".join(setting.choices) + "}")
        said, _, default = setting.help.rpartition(" (default: ")
        plain = {False: "false", None: "none"}.get(setting.default, "")  # type: ignore[call-overload]
        places = (setting.flag + value, setting.ini, _SPEC_KEYS.get(setting.name, ""))
        rows.append(
            (*map(_code, places), default.rstrip(")") if said else plain, _sentence(said or setting.help))
        )
    yield from _table(("command line", "pytest configuration", "spec", "default", "what it does"), rows)


def _code(said: str) -> str:
    return f"`{said}`" if said else ""


def _keys(model: type[BaseModel], prefix: str) -> Iterator[str]:
    """A table of the keys of a mapping, and of the mappings inside it."""
    yield from _table(("key", "default", "what it says"), _rows(model, prefix))


def _rows(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, str, str]]:
    for own_name, field in model.model_fields.items():
        name = field.alias or own_name
        default = "required" if field.is_required() else _code(_default(field))
        said = field.description or ""
        yield f"`{prefix}{name}`", "" if "default:" in said else default, said
        for nested in _models(field.annotation):
            if not issubclass(nested, _CRITERIA):
                yield from _rows(nested, f"{prefix}{name}.")


def _models(annotation: Any) -> list[type[BaseModel]]:
    """The mappings that an annotation names, however deep."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    found: list[type[BaseModel]] = []
    for part in typing.get_args(annotation):
        found += [m for m in _models(part) if m not in found]
    return found


def _default(field: FieldInfo) -> str:
    value = field.default
    if value is PydanticUndefined or value is None or value == () or isinstance(value, BaseModel):
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _metrics() -> Iterator[str]:
    """A table of the metrics, each by the first line of its function."""
    yield "What a criterion of an output may limit; b is an element of the baseline's output, c of INT8's."
    yield ""
    rows = []
    for metric in METRICS.values():
        limit = "least" if metric.bound == "min" else "greatest"
        said = _marked(_first(metric.value.__doc__).rstrip("."))
        rows.append((f"`{metric.name}`", said, limit, ", ".join(metric.kinds)))
    yield from _table(("metric", "definition", "limit", "outputs of"), rows)


def _tasks() -> Iterator[str]:
    """A table of the metrics that a spec names."""
    yield "What `metric:` may name; `max_drop` limits how much worse than the baseline's INT8's value may be."
    yield ""
    rows = [
        (f"`{name}`", kind.doc, kind.labels[2], _code(kind.library[1] if kind.library else ""))
        for name, kind in TASKS.items()
    ]
    yield from _table(("metric", "definition", "labels", "library"), rows)


def _calibrations() -> Iterator[str]:
    """A table of the calibration methods."""
    rows = [(f"`{name}`", METHODS[name].summary) for name in typing.get_args(CalibrationMethod)]
    yield from _table(("method", "range of a tensor"), rows)


def _fixtures() -> Iterator[str]:
    """The fixtures by their own docstrings, then what the objects that they give can do."""
    yield "Session-scoped; they work with and without `--int8acc`. `pytest --fixtures` lists them."
    yield ""
    for name, said in fixtures().items():
        yield from (f"### `{name}`", "", _marked(said), "")
    rows = [_member(owner, kind, name) for owner, kind, names in _OBJECTS for name in names]
    yield from _table(("of the objects that they give", "what it does"), rows)


def fixtures() -> dict[str, str]:
    """Every fixture of the plugin and its docstring."""
    folder = Path(pytest_int8acc.__file__).parent
    found = {}
    for path in sorted(folder.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            marks = [ast.unparse(mark) for mark in getattr(node, "decorator_list", ())]
            if isinstance(node, ast.FunctionDef) and any(m.startswith("pytest.fixture") for m in marks):
                found[node.name] = ast.get_docstring(node) or ""
    return found


def _member(owner: str, kind: type, name: str) -> tuple[str, str]:
    """One method or property of a fixture's object, and its first sentence."""
    member = inspect.getattr_static(kind, name)
    shown = owner if name == "__call__" else f"{owner}.{name}"
    shown += "" if isinstance(member, property) else _parameters(member)
    return f"`{shown}`", _marked(_first(member.__doc__))


def _parameters(function: Callable[..., Any]) -> str:
    """A method's parameters without self and without types."""
    signature = inspect.signature(function)
    bare = [
        p.replace(annotation=inspect.Parameter.empty)
        for name, p in signature.parameters.items()
        if name != "self"
    ]
    return str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))


def _rules() -> Iterator[str]:
    """A table of the lint's rules."""
    yield "Checked before anything runs. error: TensorRT rejects the model; warning: it takes it, and is"
    yield "wrong or slow. `int8acc_lint` says what becomes of an error."
    yield ""
    rows = [(f"`{name}`", r.severity, r.consequence, r.remedy) for name, r in RULES.items()]
    yield from _table(("rule", "severity", "consequence", "remedy"), rows)


def _causes() -> Iterator[str]:
    """A table of the causes of a culprit."""
    yield "Why a layer loses accuracy in INT8, as reports name it."
    yield ""
    rows = [(f"`{kind}`", words.advice.format(format="INT8")) for kind, words in CAUSES.items()]
    yield from _table(("cause", "what to do"), rows)


def _table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(header)} |"
    yield "|" + "---|" * len(header)
    for row in rows:
        cells = [cell.replace("|", "\\|") for cell in row]
        yield f"| {' | '.join(cells)} |"
    yield ""


def _marked(said: str) -> str:
    """A docstring's text as Markdown."""
    return said.replace("``", "`")


def _first(docstring: str | None) -> str:
    return (docstring or "").partition("\n")[0]


def _sentence(said: str) -> str:
    return said[0].upper() + said[1:] + "."


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8", newline="\n")
