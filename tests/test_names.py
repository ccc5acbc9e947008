"""Names in the messages of errors: fit for people, whatever a file or a user has put into them."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from hostile import HOSTILE, NAMES, NOT_IN_ONNX, acts, obeyed, told
from hypothesis import given

from pytest_int8acc.names import file_name, in_code, in_markdown

ALL = (*HOSTILE, *NOT_IN_ONNX)


def check(name: str) -> None:
    text = told(name)
    assert (acts(text), obeyed(text)) == ([], [])
    assert obeyed(f"  {text}  1.0") == []
    assert told(text) == text
    assert text.count("\n") == name.count("\n")
    assert all(len(line) <= 4100 for line in re.split(r"[\n\t]", text))
    text.encode()


@pytest.mark.parametrize("name", ALL, ids=range(len(ALL)))
def test_a_hostile_name_shows_and_does_nothing(name: str) -> None:
    check(name)


@given(NAMES)
def test_any_name_shows_and_does_nothing(name: str) -> None:
    check(name)


@given(NAMES, NAMES)
def test_text_beside_a_name_makes_no_command_of_it(one: str, other: str) -> None:
    assert not obeyed(told(f"'{one}' is not '{other}'\n  {one}: too  {other}"))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("/layer1/0/conv1/Conv", "/layer1/0/conv1/Conv"),
        ("torch::nn::Conv", "torch::nn::Conv"),
        ("a # b ## c", "a # b ## c"),
        ("名前 é", "名前 é"),
        ("x" * 400, "x" * 400),
        ("C:\\dir\\file", "C:\\dir\\file"),
        ("\x1b[0m\u2028\ud800", r"\x1b[0m\u2028\ud800"),
        ("::error::x ##[y]", r"\x3a:error::x \x23#[y]"),
    ],
)
def test_an_ordinary_name_stays_as_it_is_and_what_is_not_printable_can_be_read(name: str, text: str) -> None:
    assert told(name) == text


def test_long_names_stay_apart() -> None:
    one, other = told("n" * 65_536), told("n" * 65_535)
    assert one != other
    assert re.fullmatch(r"n+\.\.\.\[[0-9a-f]{8}, 65536 characters\]\.\.\.n+", one)


@given(NAMES)
def test_a_file_of_any_name_can_be_made_where_it_is_wanted(name: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}", file_name(name))


def test_a_file_of_a_hostile_name_is_in_its_folder(tmp_path: Path) -> None:
    for name in ALL:
        (tmp_path / file_name(name)).mkdir(exist_ok=True)
        assert Path(os.path.normpath(tmp_path / file_name(name))).parent == tmp_path


@pytest.mark.parametrize("name", ALL, ids=range(len(ALL)))
def test_a_hostile_name_is_text_in_markdown(name: str) -> None:
    cell = in_markdown(name)
    assert cell.isprintable()
    assert not re.search(r"(?<!\\)[|`*_\[\]#@$]", cell)
    assert not re.search("[<>]", cell)
    code = in_code(name)
    assert code == cell or re.fullmatch("`[^`|]+`", code)
