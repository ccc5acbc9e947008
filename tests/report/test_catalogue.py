"""The catalogue of words: a row for every kind, facts that are known, clauses that fit in a line."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from spec_texts import OUTPUT_METRICS, TASKS

from pytest_int8acc import Case, load_spec
from pytest_int8acc.report import catalogue, why
from pytest_int8acc.results.causes import Cause, NumberName

#: Characters of a clause at most, so that a layer's name of 25 fits before it in a line of 110.
CLAUSE = 83
#: The enumeration of kinds and the table of each name in the catalogue.
TABLES = {
    name: (get_args(hint)[0], getattr(catalogue, name))
    for name, hint in get_type_hints(catalogue).items()
    if get_origin(hint) is Mapping and get_origin(get_args(hint)[0]) is Literal
}
#: Stages that never fail first, or whose failure the search explains.
WITHOUT_ADVICE = {"framework", "Q/DQ in ONNX Runtime", "implicit INT8"}


def values(enumeration: Any) -> set[str]:
    """The texts of a Literal, those of Literals within it included."""
    parts = get_args(enumeration)
    return {enumeration} if not parts else set().union(*map(values, parts))


def texts(row: Any) -> Iterator[str]:
    """The texts of a row that its kind needs."""
    if isinstance(row, str):
        yield row
        return
    for field in dataclasses.fields(row):
        if field.default is dataclasses.MISSING or getattr(row, field.name):
            yield getattr(row, field.name)


@pytest.mark.parametrize("name", TABLES)
def test_every_kind_has_all_of_its_words(name: str) -> None:
    enumeration, table = TABLES[name]
    assert set(table) == values(enumeration)
    for kind, row in table.items():
        if name != "STAGES" or kind not in WITHOUT_ADVICE:
            assert all(texts(row)), kind


def test_every_number_of_a_cause_has_a_label() -> None:
    assert set(catalogue.NUMBERS) == values(NumberName)


@pytest.mark.parametrize("symptom", catalogue.SYMPTOMS)
def test_the_clause_of_a_symptom_fits_in_a_line(symptom: Any) -> None:
    name = "/model/layer.11/attention/self/" * 4
    numbers = dict.fromkeys(catalogue.NUMBERS, -1.2345e-5) | {"scales": 4096.0}
    channels = dict.fromkeys(range(99), 1e-5)
    cause = Cause("rounding", symptom, name, numbers, None, 1.2345e-5, 1.2345e-5, channels)
    cause = cause.showing("rounding", symptom, others=(name,) * 3, node=name, op_type=name, format="bf16")
    assert len(why.cause_clause(cause, "BF16")) <= CLAUSE


def test_every_metric_has_a_label() -> None:
    assert set(catalogue.METRICS) == {*OUTPUT_METRICS, *TASKS, "speedup"}


#: A key of a spec with its value, between quotes, and the key beside which it is to be written.
_BESIDE = re.compile(r"'(\w+): [^']*' in the spec, beside '(\w+):'")


def advice_on_specs() -> Iterator[tuple[str, str]]:
    """Each template of an advice that names a key of a case, and the name of the template."""
    for name, text in vars(catalogue.Advice).items():
        if not name.startswith("_") and ("accept_blind" in text or "unjudged" in text):
            yield name, text


def test_what_is_to_be_written_into_a_spec_is_written_with_its_place() -> None:
    named = set()
    for name, text in advice_on_specs():
        assert "in the spec" in text, name
        assert "beside 'model:'" in text, name
        named.update(_BESIDE.findall(text))
    assert {key for key, _ in named} == {"accept_blind", "unjudged"}
    for key, beside in named:
        assert {key, beside} <= set(Case.model_fields)


@pytest.mark.parametrize("said", ["accept_blind: the labels are few", "unjudged: [logits, 'output0[:, 4:]']"])
def test_a_spec_with_what_is_advised_beside_the_model_is_read(tmp_path: Path, said: str) -> None:
    spec = tmp_path / "net.int8acc.yaml"
    spec.write_text(f"model: net.onnx\ninputs: val.npz\nint8: {{calibrate: {{}}}}\n{said}\n")
    (case,) = load_spec(spec)
    assert getattr(case, said.partition(":")[0])
