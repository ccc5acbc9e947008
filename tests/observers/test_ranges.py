from __future__ import annotations

import json
import time
import timeit
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_int8acc import ScalesError
from pytest_int8acc.observers.scale_files import load_scales

HEADER = "TRT-8501-EntropyCalibration2"


def written(tmp_path: Path, content: str | bytes) -> Path:
    path = tmp_path / "ranges.json"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def amax_of(tmp_path: Path, ranges: dict[str, Any], *tensors: str) -> dict[str, float]:
    scales = load_scales(written(tmp_path, json.dumps(ranges)), tensors)
    return {name: round(value * 127, 4) for name, value in scales.values.items()}


def test_a_range_is_its_greatest_magnitude(tmp_path: Path) -> None:
    ranges = {"a": 6, "b": 2.5, "c": [-10, 2], "d": [0, 4], "e": [-1.5, 3], "f": [-7, -5]}
    found = amax_of(tmp_path, ranges, *ranges)
    assert found == {"a": 6, "b": 2.5, "c": 10, "d": 4, "e": 3, "f": 7}


def test_scales_are_float32(tmp_path: Path) -> None:
    scales = load_scales(written(tmp_path, '{"a": 1.0}'), ["a"])
    assert scales.values["a"] == float(np.float32(1 / 127))


def test_exact_names_beat_patterns_and_later_patterns_earlier_ones(tmp_path: Path) -> None:
    ranges = {"relu1": 1, "*": 2, "relu*": 3, "conv?": 4}
    assert amax_of(tmp_path, ranges, "relu1", "relu2", "conv1", "other") == {
        "relu1": 1,
        "relu2": 3,
        "conv1": 4,
        "other": 2,
    }


def test_a_tensors_own_name_is_no_pattern(tmp_path: Path) -> None:
    name = "(Unnamed Layer* 52) [Constant]_output"
    assert amax_of(tmp_path, {name: 3, "a": 1}, name, "a") == {name: 3, "a": 1}


def test_patterns_are_case_sensitive(tmp_path: Path) -> None:
    with pytest.raises(ScalesError, match="matches none"):
        amax_of(tmp_path, {"Relu*": 1, "a": 1}, "relu1", "a")


def test_a_pattern_without_a_match_is_an_error_with_its_place(tmp_path: Path) -> None:
    path = written(tmp_path, '{"a": 1,\n  "relu_1*": 3}')
    with pytest.raises(
        ScalesError, match=r"ranges.json:2:3: the pattern 'relu_1\*' matches none of the 2.*'relu1'"
    ):
        load_scales(path, ["a", "relu1"])


MALFORMED = {
    "empty": ("", "is empty"),
    "cut": ('{"a": 1', ":1:8: not valid JSON: Expecting ',' delimiter; the file or line ends here"),
    "cut key": ('{"a', ":1:2: not valid JSON: Unterminated string"),
    "no value": ('{"a": }', ":1:7: not valid JSON: Expecting value; found '}'"),
    "no colon": ('{"a" 1}', ":1:6: not valid JSON: Expecting ':' delimiter; found '1}'"),
    "no comma": ('{"a": 1\n "b": 2}', ":2:2: not valid JSON: Expecting ',' delimiter; found"),
    "trailing comma": ('{"a": 1,}', ":1:[89]: not valid JSON: .*(double quotes|trailing comma)"),
    "single quotes": ("{'a': 1}", ":1:2: not valid JSON: Expecting property name enclosed in double quotes"),
    "comment": ('{"a": 1} // mine', ":1:10: not valid JSON: Extra data; found '// mine'"),
    "two objects": ('{"a": 1}{"b": 1}', ":1:9: not valid JSON: Extra data"),
    "list": ("[1, 2]", ":1:1: expected a JSON object of dynamic ranges.*found"),
    "no range": ("{}", ":1:1: the object is empty"),
    "twice": ('{"a": 1,\n "b": 1,\n "a": 1}', r":3:2: 'a' is there a second time, first at .*:1:2"),
    "text": (
        '{"a": "6.0"}',
        ":1:7: 'a': expected the greatest magnitude, a number above 0.*found \"6.0\"",
    ),
    "true": ('{"a": true}', ":1:7: 'a': expected the greatest"),
    "null": ('{"a": null}', ":1:7: 'a': expected the greatest"),
    "object": ('{"a": {"min": 1}}', ":1:7: 'a': expected the greatest"),
    "one bound": ('{"a": [1]}', r":1:7: 'a': expected .*\[min, max\]"),
    "three bounds": ('{"a": [1, 2, 3]}', ":1:7: 'a': expected"),
    "text bound": ('{"a": [1, "2"]}', ":1:7: 'a': expected"),
    "true bound": ('{"a": [false, true]}', ":1:7: 'a': expected"),
    "swapped": ('{"a": [2, -1]}', ":1:7: 'a': -1 is below 2"),
    "zero": ('{"a": 0}', ":1:7: 'a': the range divided by 127 is 0, not above 0"),
    "zeros": ('{"a": [0, 0]}', ":1:7: .*is 0, not above 0"),
    "negative": ('{"a": -3}', ":1:7: 'a': -3 is below 0"),
    "NaN": ('{"a": NaN}', ":1:7: 'a': expected the greatest.*found NaN"),
    "NaN bound": ('{"a": [5, NaN]}', ":1:7: 'a': expected the greatest"),
    "Infinity": ('{"a": [0, Infinity]}', ":1:7: 'a': .*is inf"),
    "overflow": ('{"a": 1e999}', ":1:7: .*is inf"),
    "huge": ('{"a": 1e300}', ":1:7: .*too large for float32"),
    "huge integer": ('{"a": 1' + "0" * 400 + "}", ":1:7: .*is inf"),
    "digits": ('{"a": 1' + "0" * 5000 + "}", ":1:7: .*is inf"),
    "tiny": ('{"a": 1e-40}', ":1:7: .*too small"),
    "deep": ('{"a": ' + "[" * 200000, "nested too deeply; expected a JSON object"),
    "number key": ("{1: 2}", ":1:2: not valid JSON: Expecting property name"),
    "bad escape": (r'{"\q": 1}', ":1:3: not valid JSON: Invalid"),
    "control": ('{"a\nb": 1}', ":1:4: not valid JSON: Invalid control character"),
    "binary": (b'{"a": \0}', "is a binary file"),
    "not utf-8": (b'{"\xff": 1}', "holds bytes that are no text"),
    "onnx runtime": ('{"CLS": "TensorsData"}', ":1:9: 'CLS': expected the greatest"),
}


@pytest.mark.parametrize(("content", "expected"), MALFORMED.values(), ids=MALFORMED)
def test_malformed_ranges_are_one_clear_error(tmp_path: Path, content: str | bytes, expected: str) -> None:
    path = written(tmp_path, content)
    with pytest.raises(ScalesError, match=expected) as caught:
        load_scales(path, ["a"])
    assert str(caught.value).startswith(str(path))
    assert len(str(caught.value)) < 500


def test_numbers_and_names_are_those_of_json(tmp_path: Path) -> None:
    """YAML 1.1 reads 1e-05 as text, yes as true, and a pair of surrogates not at all."""
    text = r'{"a": 1e-05, "b": 1E2, "\ud83d\ude00": 3, "yes": 4, "<<": 5, "c\u0085": [-6e0, 1]}'
    amax = {"a": 1e-05, "b": 100, "\U0001f600": 3, "yes": 4, "<<": 5, "c\x85": 6}
    read = load_scales(written(tmp_path, text), list(amax))
    assert read.values == {name: float(np.float32(value / 127)) for name, value in amax.items()}


def test_what_yaml_does_not_read_is_told_without_its_place(tmp_path: Path) -> None:
    path = written(tmp_path, r'{"\ud83d\ude00": 0}')
    with pytest.raises(ScalesError) as caught:
        load_scales(path, ["a"])
    assert str(caught.value).startswith(f"{path}: '\U0001f600': the range divided by 127 is 0")


def test_thousands_of_ranges_take_time_in_proportion(tmp_path: Path) -> None:
    def read(count: int) -> float:
        names = [f"/model/layers.{i}/attention/MatMul_output_{i}" for i in range(count)]
        path = written(tmp_path, json.dumps({name: [-1e-05, 1.5] for name in names}, indent=1))
        scales: dict[str, float] = {}
        load = partial(load_scales, path, names)
        # CPU time: other work on the machine does not count.
        seconds = min(timeit.repeat(load, timer=time.process_time, number=1, repeat=3))
        scales.update(load().values)
        assert len(scales) == count
        return seconds

    assert read(4000) < 30 * read(500)


def test_one_range_of_thousands_is_named_with_its_place(tmp_path: Path) -> None:
    ranges = {f"/model/layers.{i}/MatMul_output_{i}": [-1e-05, 1.5] for i in range(5000)}
    path = written(tmp_path, json.dumps(ranges, indent=1).replace("1.5", "true", 1))
    with pytest.raises(ScalesError, match=r":2:\d+: '/model/layers.0/.*found \[-1e-05, true\]"):
        load_scales(path, ["a"])


@given(
    st.dictionaries(
        st.text(st.characters(codec="utf-8"), max_size=8),
        st.floats(1e-30, 1e30) | st.tuples(st.floats(-1e30, -1e-30), st.floats(0, 1e30)),
        min_size=1,
    ),
    st.sampled_from([None, 0, 1, "\t"]),
    st.booleans(),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_whatever_json_writes_is_read(
    tmp_path: Path, ranges: dict[str, Any], indent: int | str | None, ascii_only: bool
) -> None:
    text = json.dumps(ranges, indent=indent, ensure_ascii=ascii_only)
    if "\0" in text:
        return
    read = load_scales(written(tmp_path, text), list(ranges))
    assert read.values.keys() == ranges.keys()
    for name, value in ranges.items():
        amax = max(map(abs, value)) if isinstance(value, tuple) else value
        assert read.values[name] == float(np.float32(amax / 127))


JSONISH = st.lists(
    st.sampled_from(['{"', '"', "a", ":", "1", "-", "[", "]", ",", "}", "{", " ", "\n", "\\u", "e9", "NaN"]),
    max_size=25,
).map("".join)


@given(st.binary(max_size=100) | JSONISH.map(str.encode) | JSONISH.map(lambda t: ('{"a": ' + t).encode()))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=150)
def test_arbitrary_bytes_raise_nothing_else(tmp_path: Path, data: bytes) -> None:
    path = written(tmp_path, data)
    try:
        load_scales(path, ["a", "b"])
    except ScalesError as error:
        assert str(error).startswith(str(path))  # noqa: PT017


def test_the_kind_of_file_is_told_by_its_content(tmp_path: Path) -> None:
    path = written(tmp_path, f"{HEADER}\na: 3c010a14\n")
    scales = load_scales(path, ["a"])
    assert scales.source == f"ranges.json ({HEADER})"
    assert scales.notes == ("1 of 1 tensors have a scale",)
    assert load_scales(written(tmp_path, ' \n{"a": 1}'), ["a"]).source == "dynamic ranges of ranges.json"


@pytest.mark.parametrize("content", ["", "garbage", "a 2.5\n", "a: 3c010a14\n", '{"a": }'])
def test_a_file_of_no_kind_is_refused(tmp_path: Path, content: str) -> None:
    with pytest.raises(ScalesError, match=r"TRT-|not valid JSON|ONNX Runtime"):
        load_scales(written(tmp_path, content), ["a"])


def test_coverage_is_told(tmp_path: Path) -> None:
    path = written(
        tmp_path, f"{HEADER}\na: 3c010a14\n(Unnamed Layer* 1) [Constant]_output: 3c010a14\nz: 3c010a14\n"
    )
    scales = load_scales(path, ["a", "b", "c"])
    assert scales.values.keys() == {"a"}
    assert scales.notes == (
        "1 of 3 tensors have a scale; without: 'b', 'c'",
        "2 entries name no tensor to quantize: '(Unnamed Layer* 1) [Constant]_output', 'z'",
    )


def test_a_misspelt_name_gets_a_suggestion(tmp_path: Path) -> None:
    scales = load_scales(written(tmp_path, '{"a": 1, "layer1/relv": 2}'), ["a", "layer1/relu"])
    assert (
        scales.notes[1] == "1 entry names no tensor to quantize: 'layer1/relv' (did you mean 'layer1/relu'?)"
    )


@pytest.mark.parametrize("content", [f"{HEADER}\nrelu_1: 3c010a14\n", '{"relu_1": 1}'])
def test_a_file_for_another_model_is_refused(tmp_path: Path, content: str) -> None:
    with pytest.raises(
        ScalesError, match=r"made for another model.*'relu_1' \(did you mean 'relu1'\?\).*needs"
    ):
        load_scales(written(tmp_path, content), ["relu1", "relu2"])


def test_an_entry_may_name_the_node_that_makes_a_tensor(tmp_path: Path) -> None:
    path = written(tmp_path, '{"conv1": 1, "conv2": 2, "t2": 3}')
    scales = load_scales(path, ["t1", "t2"], {"t1": "conv1", "t2": "conv2", "t3": "conv3"})
    assert {t: round(s * 127, 4) for t, s in scales.values.items()} == {"t1": 1, "t2": 3}
    assert scales.notes == ("2 of 2 tensors have a scale",)
