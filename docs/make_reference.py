"""Writes docs/reference.md from the code: ``python docs/make_reference.py``; tests/test_reference.py compares."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from pytest_int8acc.settings import SETTINGS, Setting
from pytest_int8acc.spec.criteria import (
    EngineCriterion,
    MetricCriterion,
    OutputCriterion,
    RegressionCriterion,
)
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
    ("--int8acc", "int8acc", "false", "Run the cases of all specs; one named on the command line runs anyway."),
    (
        "--int8acc-update {missing,all}",
        "",
        "nothing is recorded",
        "Record goldens and accepted scores, and print old and new ones. Refused where CI is set.",
    ),
    ("--int8acc-update-in-ci", "", "false", "Allow that in CI all the same."),
    (
        "--int8acc-prune [delete]",
        "",
        "nothing",
        "List goldens that no case owns; with `delete`, delete them. Nothing else ever deletes one.",
    ),
    ("", "int8acc_goldens", "beside each spec", "Folder or fsspec URL of the goldens."),
    (
        "--int8acc-merge DIR...",
        "",
        "",
        "Merge the report folders of several runs into the one that `--int8acc-report` names; runs no test.",
    ),
    ("--int8acc-init MODEL", "", "", "Write a commented spec beside an ONNX model; runs no test."),
    (
        "--int8acc-device N",
        "int8acc_device",
        "each pytest-xdist worker takes the next one",
        "The GPU, counted from 0 among those that CUDA_VISIBLE_DEVICES allows.",
    ),
)
_CRITERIA = (OutputCriterion, MetricCriterion, EngineCriterion, RegressionCriterion)


def text() -> str:
    """The whole document."""
    parts = ["# Reference", "", "Made from the code by `python docs/make_reference.py`.", ""]
    parts += ["The command line goes before the spec, the spec before the pytest configuration.", ""]
    parts += ["## Options of a run", "", *_run_options(), "## Settings", ""]
    for setting in SETTINGS:
        parts += _setting(setting)
    parts += ["## Keys of a spec", "", *_keys(Case, ""), "## Criteria", ""]
    for criterion in _CRITERIA:
        parts += [f"{_first(criterion.__doc__)}", "", *_keys(criterion, "criteria: ")]
    return "\n".join(parts).rstrip() + "\n"


def _run_options() -> Iterator[str]:
    for option, ini, default, said in RUN:
        yield f"### `{option or ini}`"
        yield ""
        yield from (said, "")
        yield from _block(option, ini, "", default)


def _setting(setting: Setting) -> Iterator[str]:
    values = {"count": " N", "size": " SIZE", "folder": " DIR", "flag": ""}
    value = values.get(setting.kind, " {" + ",".join(setting.choices) + "}")
    said, _, default = setting.help.rpartition(" (default: ")
    yield f"### {setting.name}"
    yield ""
    yield f"{_sentence(said or setting.help)}"
    yield ""
    known = default.rstrip(")") if said else {False: "false", None: "none"}.get(setting.default, "")  # type: ignore[call-overload]
    yield from _block(setting.flag + value, setting.ini, _SPEC_KEYS.get(setting.name, ""), known)


def _block(option: str, ini: str, key: str, default: str) -> Iterator[str]:
    yield "| command line | pytest configuration | spec | default |"
    yield "|---|---|---|---|"
    cells = [f"`{cell}`" if cell else "" for cell in (option.replace("|", "\\|"), ini, key)]
    yield f"| {' | '.join(cells)} | {default} |"
    yield ""


def _keys(model: type[BaseModel], prefix: str) -> Iterator[str]:
    """One line per key of a mapping, those of mappings inside it below."""
    inner = []
    for name, field in model.model_fields.items():
        default = _default(field)
        said = (field.description or "").replace("|", "\\|")
        shown = f" Default: `{default}`." if default and "default:" not in said else ""
        required = " **Required.**" if field.is_required() else ""
        yield f"- `{prefix}{name}`: {said}{shown}{required}"
        inner += [(f"{prefix}{name}.", nested) for nested in _models(field.annotation)]
    yield ""
    for deeper, nested in inner:
        if not issubclass(nested, _CRITERIA):
            yield f"`{deeper[:-1]}`: {_first(nested.__doc__)}"
            yield ""
            yield from _keys(nested, deeper)


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


def _first(docstring: str | None) -> str:
    return (docstring or "").partition("\n")[0]


def _sentence(said: str) -> str:
    return said[0].upper() + said[1:] + "."


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8", newline="\n")
