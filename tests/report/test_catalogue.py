"""The catalogue of words: a row for every kind, declared facts only, clauses that fit in a line."""

from __future__ import annotations

import string
from collections.abc import Iterator
from typing import Any, get_args

import pytest

from pytest_int8acc.report import catalogue, causes
from pytest_int8acc.results.causes import Cause

#: Characters of a clause at most, so that a layer's name of 25 fits before it in a line of 110.
CLAUSE = 83
ROWS = [(f"{kind}", words) for _, table in catalogue.TABLES for kind, words in table.items()]


def values(enumeration: Any) -> set[str]:
    """The texts of a Literal, those of Literals within it included."""
    parts = get_args(enumeration)
    return {enumeration} if not parts else set().union(*map(values, parts))


def names(words: catalogue.Words) -> Iterator[str]:
    """The facts that the templates of a row use."""
    for template in (words.plural, words.clause, words.sentence, words.advice):
        yield from (name for _, name, _, _ in string.Formatter().parse(template) if name is not None)


@pytest.mark.parametrize(
    ("enumeration", "table"), catalogue.TABLES, ids=[next(iter(table)) for _, table in catalogue.TABLES]
)
def test_every_kind_has_words(enumeration: Any, table: Any) -> None:
    assert set(table) == values(enumeration)
    assert all(words.plural or words.clause or words.sentence for words in table.values())


@pytest.mark.parametrize(("kind", "words"), ROWS, ids=[f"{kind}-{i}" for i, (kind, _) in enumerate(ROWS)])
def test_templates_use_the_facts_that_are_declared(kind: str, words: catalogue.Words) -> None:
    assert set(names(words)) == set(words.facts)


@pytest.mark.parametrize("symptom", catalogue.SYMPTOMS)
def test_the_facts_of_a_symptom_are_known_and_its_clause_fits_in_a_line(symptom: Any) -> None:
    words = catalogue.SYMPTOMS[symptom]
    assert words.family is not None
    assert set(words.facts) <= {"format", "amax", "reach", *causes.FACTS, *catalogue.NUMBERS}
    name = "/model/layer.11/attention/self/" * 4
    numbers = dict.fromkeys(catalogue.NUMBERS, -1.2345e-5) | {"scales": 4096.0}
    channels = dict.fromkeys(range(99), 1e-5)
    cause = Cause(words.family, symptom, name, numbers, None, 1.2345e-5, 1.2345e-5, channels)
    cause = cause.showing(words.family, symptom, others=(name,) * 3, node=name, op_type=name, format="bf16")
    assert len(causes.cause_clause(cause, "BF16")) <= CLAUSE
