"""Scales from files: dynamic ranges in JSON, and calibration caches of TensorRT."""

from __future__ import annotations

import json
import re
import struct
import time
import timeit
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_int8acc import ScalesError
from pytest_int8acc.observers.scale_files import load_scales

HEADER = "TRT-8501-EntropyCalibration2"
FUZZ = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=100)
READ = yaml.safe_load(Path(__file__).with_name("malformed_scales.yaml").read_text(encoding="utf-8"))
#: Files that are no scales: the content, and a pattern of what must be said of it.
MALFORMED: dict[str, tuple[str | bytes, str]] = {
    **{f"range: {title}": tuple(case) for title, case in READ["ranges"].items()},
    **{f"cache: {title}": tuple(case) for title, case in READ["caches"].items()},
    **{f"entry: {title}": (f"{HEADER}\n{text}", said) for title, (text, said) in READ["entries"].items()},
    "range: huge integer": ('{"a": 1' + "0" * 400 + "}", ":1:7: .*is inf"),
    "range: digits": ('{"a": 1' + "0" * 5000 + "}", ":1:7: .*is inf"),
    "range: deep": ('{"a": ' + "[" * 200000, "nested too deeply; expected a JSON object"),
    "range: not utf-8": (b'{"\xff": 1}', "holds bytes that are no text"),
    "cache: engine": (b"ftrt\x00\xff\xfe\x80", "holds bytes that are no text"),
    "cache: latin-1": (f"{HEADER}\nM\xfcller: 3c010a14".encode("latin-1"), "holds bytes that are no text"),
    "cache: utf-16": (HEADER.encode("utf-16"), "holds bytes that are no text"),
    "cache: long line": (f"{HEADER}\n{'x' * 100000}\n", ":2: expected 'tensor: scale in hex', found 'xxx"),
}


def written(folder: Path, content: str | bytes) -> Path:
    path = folder / "scales.txt"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def amax_of(folder: Path, ranges: dict[str, Any], *tensors: str) -> dict[str, float]:
    scales = load_scales(written(folder, json.dumps(ranges)), tensors)
    return {name: round(value * 127, 4) for name, value in scales.values.items()}


@pytest.mark.parametrize(("content", "expected"), MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_file_is_one_clear_error(tmp_path: Path, content: str | bytes, expected: str) -> None:
    path = written(tmp_path, content)
    with pytest.raises(ScalesError, match=expected) as caught:
        load_scales(path, ["a"])
    assert str(caught.value).startswith(str(path))
    assert len(str(caught.value)) < 500


JSONISH = st.lists(
    st.sampled_from(['{"', '"', "a", ":", "1", "-", "[", "]", ",", "}", "{", " ", "\n", "\\u", "e9", "NaN"]),
    max_size=25,
).map("".join)
ANY_BYTES = (
    st.binary(max_size=200)
    | JSONISH.map(str.encode)
    | JSONISH.map(lambda text: ('{"a": ' + text).encode())
    | st.binary(max_size=60).map(lambda data: HEADER.encode() + b"\na: " + data)
)


@FUZZ
@given(ANY_BYTES)
def test_arbitrary_bytes_are_scales_above_0_or_one_error(tmp_path: Path, data: bytes) -> None:
    path = written(tmp_path, data)
    try:
        found = load_scales(path, ["a", "b"]).values
    except ScalesError as error:
        assert str(error).startswith(str(path))  # noqa: PT017
    else:
        assert found
        assert all(0 < scale < float("inf") for scale in found.values())


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    for path, said in (
        (tmp_path / "none.cache", "none.cache: cannot be read: No such file"),
        (tmp_path, "cannot be read: Is a directory"),
        (tmp_path / "a\0b", "no file name"),
    ):
        with pytest.raises(ScalesError, match=said):
            load_scales(path, ["a"])


def test_the_kind_of_file_is_told_by_its_content(tmp_path: Path) -> None:
    cache = load_scales(written(tmp_path, f"{HEADER}\na: 3c010a14\n"), ["a"])
    assert cache.source == f"scales.txt ({HEADER})"
    assert cache.notes == ("1 of 1 tensors have a scale",)
    assert load_scales(written(tmp_path, ' \n{"a": 1}'), ["a"]).source == "dynamic ranges of scales.txt"


# --- names


@pytest.mark.parametrize(
    ("ranges", "found"),
    [
        (
            {"a": 6, "b": 2.5, "c": [-10, 2], "d": [0, 4], "e": [-1.5, 3], "f": [-7, -5]},
            {"a": 6, "b": 2.5, "c": 10, "d": 4, "e": 3, "f": 7},
        ),
        # Exact names beat patterns, and later patterns beat earlier ones.
        (
            {"relu1": 1, "*": 2, "relu*": 3, "conv?": 4},
            {"relu1": 1, "relu2": 3, "conv1": 4, "other": 2},
        ),
        # A tensor's own name is no pattern.
        (
            {"(Unnamed Layer* 52) [Constant]_output": 3, "a": 1},
            {"(Unnamed Layer* 52) [Constant]_output": 3, "a": 1},
        ),
    ],
    ids=["magnitudes", "patterns", "own-name"],
)
def test_ranges_are_greatest_magnitudes_by_name_or_pattern(
    tmp_path: Path, ranges: dict[str, Any], found: dict[str, float]
) -> None:
    assert amax_of(tmp_path, ranges, *found) == found


@pytest.mark.parametrize(
    ("content", "tensors", "said"),
    [
        # Patterns are case-sensitive.
        ('{"Relu*": 1, "a": 1}', ["relu1", "a"], ":1:2: the pattern 'Relu[*]' matches none of the 2"),
        ('{"a": 1,\n  "relu_1*": 3}', ["a", "relu1"], r":2:3: the pattern 'relu_1\*' .*'relu1'"),
        (
            f"{HEADER}\nrelu_1: 3c010a14\n",
            ["relu1", "x"],
            r"another model.*\(did you mean 'relu1'\?\).*needs",
        ),
        (
            '{"relu_1": 1}',
            ["relu1", "x"],
            r"made for another model.*'relu_1' \(did you mean 'relu1'\?\).*needs",
        ),
    ],
)
def test_names_of_another_model_are_refused(
    tmp_path: Path, content: str, tensors: list[str], said: str
) -> None:
    with pytest.raises(ScalesError, match=said):
        load_scales(written(tmp_path, content), tensors)


@pytest.mark.parametrize(
    ("content", "tensors", "notes"),
    [
        (
            f"{HEADER}\na: 3c010a14\n(Unnamed Layer* 1) [Constant]_output: 3c010a14\nz: 3c010a14\n",
            ["a", "b", "c"],
            (
                "1 of 3 tensors have a scale; without: 'b', 'c'",
                "2 entries name no tensor to quantize: '(Unnamed Layer* 1) [Constant]_output', 'z'",
            ),
        ),
        (
            '{"a": 1, "layer1/relv": 2}',
            ["a", "layer1/relu"],
            (
                "1 of 2 tensors have a scale; without: 'layer1/relu'",
                "1 entry names no tensor to quantize: 'layer1/relv' (did you mean 'layer1/relu'?)",
            ),
        ),
    ],
)
def test_coverage_is_told(tmp_path: Path, content: str, tensors: list[str], notes: tuple[str, ...]) -> None:
    scales = load_scales(written(tmp_path, content), tensors)
    assert scales.values.keys() == {"a"}
    assert scales.notes == notes


def test_an_entry_may_name_the_node_that_makes_a_tensor(tmp_path: Path) -> None:
    path = written(tmp_path, '{"conv1": 1, "conv2": 2, "t2": 3}')
    scales = load_scales(path, ["t1", "t2"], {"t1": "conv1", "t2": "conv2", "t3": "conv3"})
    assert {t: round(s * 127, 4) for t, s in scales.values.items()} == {"t1": 1, "t2": 3}
    assert scales.notes == ("2 of 2 tensors have a scale",)


# --- dynamic ranges in JSON


def float32(value: float) -> float:
    return struct.unpack("f", struct.pack("f", value))[0]


def test_numbers_and_names_are_those_of_json(tmp_path: Path) -> None:
    """YAML 1.1 reads 1e-05 as text, yes as true, and a pair of surrogates not at all."""
    text = r'{"a": 1e-05, "b": 1E2, "\ud83d\ude00": 3, "yes": 4, "<<": 5, "c\u0085": [-6e0, 1]}'
    amax = {"a": 1e-05, "b": 100, "\U0001f600": 3, "yes": 4, "<<": 5, "c\x85": 6}
    read = load_scales(written(tmp_path, text), list(amax))
    assert read.values == {name: float32(value / 127) for name, value in amax.items()}


def test_what_yaml_does_not_read_is_told_without_its_place(tmp_path: Path) -> None:
    path = written(tmp_path, r'{"\ud83d\ude00": 0}')
    with pytest.raises(
        ScalesError, match=f"^{re.escape(str(path))}: '\U0001f600': the range divided by 127 is 0"
    ):
        load_scales(path, ["a"])


def test_thousands_of_ranges_take_time_in_proportion_and_one_is_named_with_its_place(tmp_path: Path) -> None:
    def text(count: int) -> str:
        return json.dumps(
            {f"/model/layers.{i}/MatMul_output_{i}": [-1e-05, 1.5] for i in range(count)}, indent=1
        )

    def seconds(count: int) -> float:
        """CPU time, for which other work on the machine does not count."""
        names = [f"/model/layers.{i}/MatMul_output_{i}" for i in range(count)]
        load = partial(load_scales, written(tmp_path, text(count)), names)
        assert len(load().values) == count
        return min(timeit.repeat(load, timer=time.process_time, number=1, repeat=3))

    assert seconds(4000) < 30 * seconds(500)
    path = written(tmp_path, text(5000).replace("1.5", "true", 1))
    with pytest.raises(ScalesError, match=r":2:\d+: '/model/layers.0/.*found \[-1e-05, true\]"):
        load_scales(path, ["a"])


@FUZZ
@given(
    st.dictionaries(
        st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8),
        st.floats(1e-30, 1e30) | st.tuples(st.floats(-1e30, -1e-30), st.floats(0, 1e30)),
        min_size=1,
    ),
    st.sampled_from([None, 0, 1, "\t"]),
    st.booleans(),
)
def test_whatever_json_writes_is_read(
    tmp_path: Path, ranges: dict[str, Any], indent: int | str | None, ascii_only: bool
) -> None:
    text = json.dumps(ranges, indent=indent, ensure_ascii=ascii_only)
    found = load_scales(written(tmp_path, text), list(ranges)).values
    magnitudes = {
        n: max(map(abs, value)) if isinstance(value, tuple) else value for n, value in ranges.items()
    }
    assert found == {name: float32(magnitude / 127) for name, magnitude in magnitudes.items()}


# --- calibration caches of TensorRT


def scale_of(digits: str) -> float:
    return struct.unpack("!f", bytes.fromhex(digits))[0]


@pytest.mark.parametrize(
    ("line", "name", "digits"),
    [
        ("input: 3c010a14", "input", "3c010a14"),
        (
            "(Unnamed Layer* 52) [Constant]_output: 3c010a14",
            "(Unnamed Layer* 52) [Constant]_output",
            "3c010a14",
        ),
        ("conv/Relu:0: 3c010a14", "conv/Relu:0", "3c010a14"),
        ("a: b: c: 3c010a14", "a: b: c", "3c010a14"),
        ("input: 3C010A14", "input", "3c010a14"),
        ("input: 3c010a14  \t", "input", "3c010a14"),
        ("input: 3c010a14\r", "input", "3c010a14"),
        ("input:  3c010a14", "input", "3c010a14"),
        ("  input: 3c010a14", "  input", "3c010a14"),
        ("a\x85b\u2028c: 3c010a14", "a\x85b\u2028c", "3c010a14"),
        ("TRT-8501-x: 3c010a14", "TRT-8501-x", "3c010a14"),
        # TensorRT leaves out zeros at the front.
        ("t: c010a14", "t", "0c010a14"),
        ("t: 80000a", "t", "0080000a"),
        ("t: 00800000", "t", "00800000"),
    ],
)
def test_a_line_is_a_name_and_the_scale_itself(tmp_path: Path, line: str, name: str, digits: str) -> None:
    assert load_scales(written(tmp_path, f"{HEADER}\n{line}\n"), [name]).values == {name: scale_of(digits)}


@pytest.mark.parametrize(
    "content",
    [
        f"{HEADER}\r\na: 3c010a14\r\nb: 3a83126f\r\n\r\n\r\n",
        f"\ufeff{HEADER}\na: 3c010a14\nb: 3a83126f",
        f"\n\n{HEADER}  \n\na: 3c010a14\n \nb: 3a83126f\n\n",
        "TRT-100900-EntropyCalibration2\na: 3c010a14\nb: 3a83126f\n",
        "TRT-8.6.1-MinMaxCalibration\na: 3c010a14\nb: 3a83126f\n",
    ],
)
def test_line_ends_blank_lines_and_headers(tmp_path: Path, content: str) -> None:
    assert list(load_scales(written(tmp_path, content), ["a", "b"]).values) == ["a", "b"]


SCALE = st.floats(2.0**-126, 2.0**127, width=32)
NAME = st.text(st.characters(codec="utf-8", exclude_characters="\n\0"), min_size=1).filter(str.strip)
NASTY = st.sampled_from(
    [": ", "a: b", "x:0", "(Unnamed Layer* 5) [Constant]_output", "\r", "\x85", " a ", "TRT-1-x"]
)


@FUZZ
@given(st.dictionaries(NAME | NASTY.flatmap(lambda n: NAME.map(lambda m: n + m + n)), SCALE, min_size=1))
def test_scales_are_read_bit_for_bit(tmp_path: Path, scales: dict[str, float]) -> None:
    lines = [f"{name}: {struct.pack('!f', scale).hex()}" for name, scale in scales.items()]
    path = written(tmp_path, "\n".join(["TRT-8601-MinMaxCalibration", *lines]))
    assert load_scales(path, list(scales)).values == scales
