from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from malformed_specs import ALL
from mistakes import assert_told_at_places
from spec_texts import MINIMAL

from pytest_int8acc import SpecError, load_spec

PYDANTICS_OWN = ("Input should be", "valid string", "Extra inputs", "validation error", "(mapping)", "(text)")


@pytest.fixture(params=["libyaml", "python"])
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "libyaml" and not hasattr(yaml, "CSafeLoader"):
        pytest.skip("PyYAML without libyaml")
    loader = yaml.CSafeLoader if request.param == "libyaml" else yaml.SafeLoader
    monkeypatch.setattr("pytest_int8acc.spec.yaml.LOADER", loader)


@pytest.mark.usefixtures("parser")
@pytest.mark.parametrize("name", ALL)
def test_each_mistake_is_told_once_at_its_place(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw, expected = ALL[name]
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "net.int8acc.yaml"
    file.write_bytes(raw)
    with pytest.raises(SpecError) as caught:
        load_spec(file)
    message = str(caught.value)
    assert_told_at_places(message, file.name, expected)
    assert not any(phrase in message for phrase in PYDANTICS_OWN)


@pytest.mark.usefixtures("parser")
def test_nesting_beyond_the_parser_s_own_limit_is_told_alike(tmp_path: Path) -> None:
    file = tmp_path / "net.int8acc.yaml"
    file.write_text("[" * 5_000, encoding="utf-8")
    with pytest.raises(SpecError, match=r":1:\d+: nested more than 32 levels deep; a spec needs 6 at most"):
        load_spec(file)


def test_there_are_many_of_them() -> None:
    assert len(ALL) >= 60


def test_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"no\.int8acc\.yaml:1:1: cannot read the spec: No such file"):
        load_spec(tmp_path / "no.int8acc.yaml")
    with pytest.raises(SpecError, match=":1:1: cannot read the spec: "):
        load_spec(tmp_path)


@pytest.mark.parametrize("stem", ["my model", "résumé", "", "-x", "a[1]"])
def test_a_file_name_that_makes_no_test_name(stem: str, tmp_path: Path) -> None:
    file = tmp_path / f"{stem}.int8acc.yaml"
    file.write_text(f"# comment\n{MINIMAL}", encoding="utf-8")
    with pytest.raises(
        SpecError, match=r":2:1: the file's name makes no test name .*; add one, like 'name: res"
    ):
        load_spec(file)
    file.write_text(f"{MINIMAL}name: good\n", encoding="utf-8")
    assert load_spec(file)[0].name == "good"
