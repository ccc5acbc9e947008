"""Whatever stands in a file, a spec loads or says what is wrong: never another exception."""

import json
import re
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from spec_texts import SCHEMA, VALID, is_valid

from pytest_int8acc import Case, SpecError, load_spec
from pytest_int8acc.spec.yaml import parse

#: PyYAML's own parser, and libyaml's where there is one.
PARSERS = [yaml.SafeLoader, *([yaml.CSafeLoader] if hasattr(yaml, "CSafeLoader") else [])]
LINE = re.compile(r"^.+:(\d+):(\d+): .+$")
BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")

fuzz = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "net.int8acc.yaml"


def check(raw: bytes, file: Path) -> list[Case]:
    """The cases in ``raw``, or none where its mistakes are told as they should be, by either parser."""
    file.write_bytes(raw)
    for parser in PARSERS:
        with mock.patch("pytest_int8acc.spec.yaml.LOADER", parser):
            try:
                cases = load_spec(file)
            except SpecError as error:
                cases = []
                check_message(str(error), raw)
    return cases


def check_message(message: str, raw: bytes) -> None:
    """Each line has a place in the file, in order, and no line comes twice."""
    lines = message.split("\n")
    found = [LINE.match(line) for line in lines]
    assert all(found), lines
    places = [(int(match[1]), int(match[2])) for match in found if match]
    assert places == sorted(places)
    assert len(set(lines)) == len(lines)
    text = BREAK.split(raw.decode("utf-8-sig", "replace"))
    for line, column in places:
        assert 1 <= line <= len(text) + 1
        assert 1 <= column <= (len(text[line - 1]) if line <= len(text) else 0) + 1
    assert "Input should be" not in message


@fuzz
@given(raw=st.binary(max_size=200))
def test_bytes(raw: bytes, file: Path) -> None:
    check(raw, file)


MODELS = SCHEMA["definitions"]
KEYS = sorted({key for model in MODELS.values() for key in model["properties"]} | {"defaults", "cases"})
PLAIN = "a a.npz f.py:g f.py fp16 entropy 12 1e-3 -1 0.5 1% true ~ .nan"
SCALARS = [*PLAIN.split(), "''"]
MARKS = [*":[]{}", ": ", "- ", "\n", "\n  ", "\n    ", ", ", "&x ", "*x", "!!str ", "<<", "? ", "| ", "> "]
MORE = [
    *"'\"#\t\\@\ufeff\r\x85\u2028",
    *("---\n", "...\n", "%YAML 1.2\n", '"\\ud800"', '"\\UFFFFFFFF"', "%YAML 1." + "9" * 5000 + "\n"),
]


@fuzz
@given(tokens=st.lists(st.sampled_from(KEYS + SCALARS + MARKS * 4 + MORE), max_size=60))
def test_tokens_of_yaml(tokens: list[str], file: Path) -> None:
    check("".join(tokens).encode(), file)


keys = st.sampled_from(KEYS) | st.sampled_from(KEYS).map(lambda key: key[1:] + key[0]) | st.text(max_size=5)
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from([*SCALARS, "1 %", "../x", "skip"])
    | st.sampled_from([0.5, 1, 2, 99.9, 10**400, -(10**30)])
)
structures = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=5),
    max_leaves=15,
)


@fuzz
@given(top=st.dictionaries(keys, structures, max_size=8))
def test_structures(top: dict[str, Any], file: Path) -> None:
    check(yaml.safe_dump(top, allow_unicode=True).encode("utf-8", "surrogatepass"), file)
    check(json.dumps(top).encode(), file)


@fuzz
@given(changes=st.dictionaries(st.sampled_from(sorted(MODELS["Case"]["properties"])), structures, max_size=3))
def test_a_valid_case_with_other_values(changes: dict[str, Any], file: Path) -> None:
    case = {"name": "a", "model": "a", "inputs": "a", "int8": {"scales": "s"}}
    shared = {"defaults": case, "cases": [changes, {"name": "b"} | changes]}
    for spec in (case | changes, shared):
        if check(json.dumps(spec).encode(), file):
            assert is_valid(spec), "an editor underlines what loads"


@fuzz
@given(data=st.data(), text=st.sampled_from(sorted(VALID.values())))
def test_mutations_of_a_valid_spec(data: st.DataObject, text: str, file: Path) -> None:
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(text)))
        stop = min(len(text), start + data.draw(st.integers(0, 12)))
        put = data.draw(st.sampled_from([*MARKS, *MORE, *SCALARS, *KEYS, "", text[start:stop] * 2]))
        text = text[:start] + put + text[stop:]
    check(text.encode(), file)


def parts_of_valid_cases() -> list[tuple[str, Any]]:
    """Keys and values of cases in valid specs."""
    found = []
    for text in VALID.values():
        root = parse(text.encode()).root
        assert root is not None
        whole = root.plain()
        for case in (whole, whole.get("defaults", {}), *whole.get("cases", ())):
            found += [(key, value) for key, value in case.items() if key not in ("defaults", "cases")]
    return found


@fuzz
@given(parts=st.lists(st.sampled_from(parts_of_valid_cases()), max_size=4))
def test_an_editor_never_underlines_what_loads(parts: list[tuple[str, Any]], file: Path) -> None:
    case = {"name": "a", "model": "a", "inputs": "a", "int8": {"scales": "s"}, **dict(parts)}
    shared = {"defaults": case, "cases": [{"name": "a"}, {"name": "b", "batch": 2}]}
    for spec in (case, shared):
        if check(json.dumps(spec).encode(), file):
            assert is_valid(spec)
