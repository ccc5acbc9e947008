"""Names made fit for people and files."""

from __future__ import annotations

import os
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from xml.sax.saxutils import quoteattr

import pytest
from hostile import HOSTILE, NAMES, NOT_IN_ONNX, acts, obeyed
from hypothesis import given

from pytest_int8acc import Int8accError
from pytest_int8acc.errors import blaming
from pytest_int8acc.names import file_name, in_code, in_markdown, shown, shown_lines

ALL = (*HOSTILE, *NOT_IN_ONNX)


def check(name: str) -> None:
    text = shown(name)
    assert text.isprintable()
    assert not obeyed(text)
    assert not obeyed(f"  {text}  1.0")
    assert shown(text) == text
    assert len(text) <= 4100
    text.encode()
    assert ElementTree.fromstring(f"<p n={quoteattr(text)}/>").get("n") == text
    lines = shown_lines(name)
    assert (acts(lines), obeyed(lines)) == ([], [])
    assert lines.count("\n") == name.count("\n")
    cell = in_markdown(name)
    assert cell.isprintable()
    assert not re.search(r"(?<!\\)[|`*_\[\]#@$]", cell)
    assert not re.search("[<>]", cell)
    code = in_code(name)
    assert code == cell or re.fullmatch("`[^`|]+`", code)


@pytest.mark.parametrize("name", ALL, ids=range(len(ALL)))
def test_a_hostile_name_shows_and_does_nothing(name: str) -> None:
    check(name)


@given(NAMES)
def test_any_name_shows_and_does_nothing(name: str) -> None:
    check(name)


@given(NAMES, NAMES)
def test_text_beside_a_name_makes_no_command_of_it(one: str, other: str) -> None:
    assert not obeyed(f"'{shown(one)}' is not '{shown(other)}'\n  {shown(one)}  {shown(other)}")


@pytest.mark.parametrize(
    "name", ["/layer1/0/conv1/Conv", "torch::nn::Conv", "a # b ## c", "名前 é", "x" * 400, "C:\\dir\\file"]
)
def test_an_ordinary_name_stays_as_it_is(name: str) -> None:
    assert shown(name) == name


def test_long_names_stay_apart() -> None:
    one, other = shown("n" * 65_536), shown("n" * 65_535)
    assert one != other
    assert re.fullmatch(r"n+\.\.\.\[[0-9a-f]{8}, 65536 characters\]\.\.\.n+", one)


def test_what_is_not_printable_can_be_read() -> None:
    assert shown("\x1b[0m\n\u2028\ud800") == r"\x1b[0m\n\u2028\ud800"
    assert shown("::error::x ##[y]") == r"\x3a:error::x \x23#[y]"


@given(NAMES)
def test_a_file_of_any_name_can_be_made_where_it_is_wanted(name: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}", file_name(name))


def test_a_file_of_a_hostile_name_is_in_its_folder(tmp_path: Path) -> None:
    for name in ALL:
        (tmp_path / file_name(name)).mkdir(exist_ok=True)
        assert Path(os.path.normpath(tmp_path / file_name(name))).parent == tmp_path


@pytest.mark.parametrize("name", ALL, ids=range(len(ALL)))
def test_errors_are_fit_for_people(name: str) -> None:
    with pytest.raises(Int8accError) as caught, blaming(""), blaming("a.int8acc.yaml:3:5"), blaming("b:1:1"):
        raise Int8accError(f"'{name}' is wrong\n  {name}: too")
    text = str(caught.value)
    assert (acts(text), obeyed(text)) == ([], [])
    assert text.startswith("b:1:1: '")
