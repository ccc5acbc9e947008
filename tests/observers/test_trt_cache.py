from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_int8acc import ScalesError
from pytest_int8acc.observers.scale_files import load_scales

HEADER = "TRT-8501-EntropyCalibration2"


def written(tmp_path: Path, content: str | bytes) -> Path:
    path = tmp_path / "calibration.cache"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_the_value_is_the_scale_itself(tmp_path: Path) -> None:
    cache = load_scales(written(tmp_path, f"{HEADER}\ninput: 3c010a14\n"), ["input"])
    assert cache.values == {"input": struct.unpack("!f", bytes.fromhex("3c010a14"))[0]}
    assert cache.values["input"] * 127 == pytest.approx(1.00024, abs=1e-5)  # an image in [0, 1]
    assert cache.source == f"calibration.cache ({HEADER})"


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("(Unnamed Layer* 52) [Constant]_output: 3c010a14", "(Unnamed Layer* 52) [Constant]_output"),
        ("conv/Relu:0: 3c010a14", "conv/Relu:0"),
        ("a: b: c: 3c010a14", "a: b: c"),
        ("input: 3C010A14", "input"),
        ("input: 3c010a14  \t", "input"),
        ("input: 3c010a14\r", "input"),
        ("input:  3c010a14", "input"),
        ("  input: 3c010a14", "  input"),
        ("a\x85b\u2028c: 3c010a14", "a\x85b\u2028c"),
        ("TRT-8501-x: 3c010a14", "TRT-8501-x"),
    ],
)
def test_names_and_lines_as_they_are_found(tmp_path: Path, line: str, name: str) -> None:
    assert list(load_scales(written(tmp_path, f"{HEADER}\n{line}\n"), [name]).values) == [name]


@pytest.mark.parametrize(
    ("digits", "full"), [("c010a14", "0c010a14"), ("80000a", "0080000a"), ("00800000", "00800000")]
)
def test_stripped_leading_zeros_come_back(tmp_path: Path, digits: str, full: str) -> None:
    cache = load_scales(written(tmp_path, f"{HEADER}\nt: {digits}\n"), ["t"])
    assert cache.values["t"] == struct.unpack("!f", bytes.fromhex(full))[0]


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


MALFORMED = {
    "empty": ("", "is empty"),
    "only blanks": ("\n \n\n", "is empty"),
    "no header": ("input: 3c010a14\n", ":1: the header is missing.*TRT-8601-EntropyCalibration2"),
    "header alone": (HEADER + "\n", "has a header but no tensor"),
    "header cut": ("TRT-8501\ninput: 3c010a14", ":1: expected a TensorRT calibration cache.*'TRT-8501'"),
    "prose": ("hello world, this is no cache", ":1: expected a TensorRT.*found 'hello world"),
    "onnx runtime": ("conv1_out 2.34\nrelu 6.0\n", ":1: this is ONNX Runtime's calibration table.*JSON"),
    "onnx runtime e": ("a b 1e-05\n", "ONNX Runtime's calibration table"),
    "onnx runtime nan": ("x nan\n", "ONNX Runtime's calibration table"),
    "binary": (b"TRT-8501-x\n\x00\x01\x02", "is a binary file"),
    "engine": (b"ftrt\x00\xff\xfe\x80", "holds bytes that are no text"),
    "latin-1": (f"{HEADER}\nM\xfcller: 3c010a14".encode("latin-1"), "holds bytes that are no text"),
    "utf-16": (HEADER.encode("utf-16"), "holds bytes that are no text"),
    "no value": (f"{HEADER}\na: 3c010a14\ninput\n", ":3: expected 'tensor: scale in hex', found 'input'"),
    "no space": (f"{HEADER}\ninput:3c010a14\n", ":2: expected 'tensor: scale in hex'"),
    "no name": (f"{HEADER}\n: 3c010a14\n", ":2: expected 'tensor: scale in hex'"),
    "blank name": (f"{HEADER}\n  : 3c010a14\n", ":2: expected 'tensor: scale in hex'"),
    "no digits": (f"{HEADER}\ninput: \n", ":2: 'input' has '' for its scale"),
    "nine digits": (f"{HEADER}\ninput: 3c010a140\n", ":2: 'input' has '3c010a140'.*8 hex digits"),
    "no hex": (f"{HEADER}\ninput: 3c010axx\n", ":2: .*8 hex digits"),
    "decimal": (f"{HEADER}\ninput: 0.0078\n", ":2: .*'0.0078'.*8 hex digits"),
    "0x": (f"{HEADER}\ninput: 0x3c01\n", ":2: .*8 hex digits"),
    "signed": (f"{HEADER}\ninput: -3c01\n", ":2: .*8 hex digits"),
    "digits apart": (f"{HEADER}\ninput: 3c 01\n", ":2: .*8 hex digits"),
    "zero": (f"{HEADER}\ninput: 00000000\n", r":2: the scale of 'input' \(00000000\) is 0, not above 0"),
    "short zero": (f"{HEADER}\ninput: 0\n", ":2: the scale of 'input' .*not above 0"),
    "minus zero": (f"{HEADER}\ninput: 80000000\n", ":2: the scale of 'input' .*not above 0"),
    "negative": (f"{HEADER}\ninput: bc010a14\n", ":2: the scale of 'input' .*not above 0"),
    "nan": (f"{HEADER}\ninput: 7fc00000\n", ":2: the scale of 'input' .*is nan"),
    "infinite": (f"{HEADER}\ninput: 7f800000\n", ":2: the scale of 'input' .*is inf"),
    "denormal": (f"{HEADER}\ninput: 007fffff\n", ":2: the scale of 'input' .*too small.*high precision"),
    "twice": (
        f"{HEADER}\na: 3c010a14\nb: 3c010a14\na: 3c010a15\n",
        ":4: 'a' is there a second time, first on line 2",
    ),
    "two caches": (f"{HEADER}\na: 3c010a14\n{HEADER}\na: 3c010a14\n", ":3: expected 'tensor: scale in hex'"),
}


@pytest.mark.parametrize(("content", "expected"), MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_cache_is_one_clear_error(tmp_path: Path, content: str | bytes, expected: str) -> None:
    path = written(tmp_path, content)
    with pytest.raises(ScalesError, match=expected) as caught:
        load_scales(path, ["a"])
    assert str(caught.value).startswith(str(path))


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ScalesError, match=r"none.cache: cannot be read: No such file"):
        load_scales(tmp_path / "none.cache", ["a"])
    with pytest.raises(ScalesError, match="cannot be read: Is a directory"):
        load_scales(tmp_path, ["a"])
    with pytest.raises(ScalesError, match="no file name"):
        load_scales(tmp_path / "a\0b", ["a"])


def test_long_lines_are_shown_shortly(tmp_path: Path) -> None:
    with pytest.raises(ScalesError) as caught:
        load_scales(written(tmp_path, f"{HEADER}\n{'x' * 100000}\n"), ["a"])
    assert len(str(caught.value)) < 400


SCALE = st.floats(2.0**-126, 2.0**127, width=32)
NAME = st.text(st.characters(codec="utf-8", exclude_characters="\n\0"), min_size=1).filter(str.strip)
NASTY = st.sampled_from(
    [": ", "a: b", "x:0", "(Unnamed Layer* 5) [Constant]_output", "\r", "\x85", " a ", "TRT-1-x"]
)


@given(st.dictionaries(NAME | NASTY.flatmap(lambda n: NAME.map(lambda m: n + m + n)), SCALE, min_size=1))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=50)
def test_scales_are_read_bit_for_bit(tmp_path: Path, scales: dict[str, float]) -> None:
    lines = [f"{name}: {struct.pack('!f', scale).hex()}" for name, scale in scales.items()]
    path = written(tmp_path, "\n".join(["TRT-8601-MinMaxCalibration", *lines]))
    assert load_scales(path, list(scales)).values == scales


@given(st.binary(max_size=200) | st.binary(max_size=60).map(lambda b: HEADER.encode() + b"\na: " + b))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=100)
def test_arbitrary_bytes_raise_nothing_else(tmp_path: Path, data: bytes) -> None:
    try:
        cache = load_scales(written(tmp_path, data), ["a"])
    except ScalesError:
        return
    assert cache.values
    assert all(0 < v < np.inf for v in cache.values.values())
