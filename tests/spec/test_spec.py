"""What a valid spec says: numbers, defaults, places, paths."""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from typing import Any

import pydantic
import pytest
import yaml
from spec_texts import MINIMAL, VALID

from pytest_int8acc import Case, SpecError, load_spec
from pytest_int8acc.spec.yaml import parse


def load(text: str, folder: Path, name: str = "net.int8acc.yaml") -> list[Case]:
    (folder / name).write_text(text, encoding="utf-8", newline="")
    return load_spec(folder / name)


def said(case: Case) -> dict[str, Any]:
    """What a case has of its spec, as plain values."""
    return case.model_dump(mode="json", exclude_unset=True)


def plain(text: str | bytes) -> Any:
    """The value of a YAML text."""
    document = parse(text.encode() if isinstance(text, str) else text)
    assert not document.mistakes
    assert document.root is not None
    return document.root.plain()


@pytest.mark.parametrize("text", [VALID["everything"], "# of TensorRT\nname: net\n" + VALID["tensorrt"]])
def test_everything_that_a_case_may_say(text: str, tmp_path: Path) -> None:
    (case,) = load(text, tmp_path)
    assert said(case) == plain(text)
    with pytest.raises(pydantic.ValidationError, match="frozen"):
        case.model = "b.onnx"  # type: ignore[misc]
    copy = pickle.loads(pickle.dumps(case))
    assert copy == case
    assert (copy.file, copy.line) == (case.file, case.line) == (tmp_path / "net.int8acc.yaml", 1)


def test_engines_built_already_goldens_and_plans(tmp_path: Path) -> None:
    engine, cache, guarded = load(VALID["built"], tmp_path)
    assert (engine.int8.engine, engine.baseline, engine.golden) == ("a.engine", "golden", False)
    assert cache.int8.implicit is not None
    assert (cache.int8.implicit.calibrate, cache.int8.implicit.cache) == (None, "a.cache")
    assert (cache.golden, cache.baseline) == (True, "fp16")
    # Inside 'tensorrt', a case fills the defaults up key by key.
    assert (cache.tensorrt.workspace, cache.tensorrt.tactic_sources) == ("4G", ())
    assert (engine.tensorrt.workspace, engine.tensorrt.timeout) == ("512M", 1800)
    assert (guarded.int8.model, guarded.plan, guarded.golden) == ("a.qdq.onnx", "plan.yaml", False)


def test_what_a_case_says_of_settings_goes_by_their_names(tmp_path: Path) -> None:
    (case,) = load(VALID["tensorrt"], tmp_path)
    assert {name: value for name, value in case.settings().items() if value is not None} == {
        "backend": "tensorrt",
        "search": "always",
        "strategy": "bisect",
        "max_builds": 4,
        "max_seconds": 60,
        "certify": True,
    }


def test_what_is_left_out(tmp_path: Path) -> None:
    (case,) = load(MINIMAL, tmp_path)
    assert case.name == "net"
    assert case.int8.calibrate is not None
    assert (case.int8.calibrate.data, case.int8.calibrate.method) == (None, "entropy")
    assert (case.int8.calibrate.percentile, case.int8.calibrate.top_k) == (99.99, 5)
    assert (case.baseline, case.criteria, case.marks, case.int8.exclude) == ("fp16", (), (), ())
    unset = (case.backend, case.onnxruntime, case.samples, case.batch, case.labels, case.xfail, case.skip)
    assert {*unset, case.reference, case.plan} == {None}
    assert case.golden is False
    assert not case.search.model_dump(exclude_defaults=True)
    assert (case.tensorrt.shapes, case.tensorrt.plugins, case.tensorrt.timeout) == ({}, (), 1800)
    assert case.tensorrt.tactic_sources is None  # not the same as []: TensorRT's own choice


@pytest.mark.parametrize("name", ["net.int8acc.yaml", "net.int8acc.yml"])
def test_a_case_is_named_after_its_file(name: str, tmp_path: Path) -> None:
    assert [case.name for case in load(MINIMAL, tmp_path, name)] == ["net"]
    assert [case.name for case in load(MINIMAL + "name: other", tmp_path, name)] == ["other"]


@pytest.mark.parametrize(
    ("drop", "expected"),
    [
        ("1%", (0.01, True)),
        ("0.5 %", (0.005, True)),
        ("0.5", (0.5, False)),
        ("0", (0, False)),
    ],
)
def test_max_drop_is_absolute_or_relative(drop: str, expected: tuple[float, bool], tmp_path: Path) -> None:
    text = f"{MINIMAL}criteria: [{{metric: m.py:f, max_drop: {drop}}}, {{metric: m.py:f, min: 1, max: 1}}]"
    (case,) = load(text, tmp_path)
    criterion, other = case.criteria
    assert (criterion.drop.amount, criterion.drop.relative) == expected
    assert other.drop is None


def test_a_key_of_a_case_replaces_the_whole_default(tmp_path: Path) -> None:
    first, second, third = load(VALID["several"], tmp_path)
    assert [case.name for case in (first, second, third)] == ["first", "second", "third"]
    assert first.int8 == third.int8
    assert (second.int8.scales, second.int8.calibrate) == ("s.cache", None)
    assert [case.marks for case in (first, second, third)] == [("slow",), (), ("slow",)]
    assert [case.batch for case in (first, second, third)] == [None, None, 4]


def test_each_case_knows_its_line_from_zero(tmp_path: Path) -> None:
    assert [case.line for case in load(VALID["several"], tmp_path)] == [6, 7, 9]
    assert [case.line for case in load("# one\n\n" + MINIMAL, tmp_path)] == [2]


def test_paths_are_relative_to_the_spec(tmp_path: Path) -> None:
    (case,) = load(MINIMAL, tmp_path)
    assert case.file == tmp_path / "net.int8acc.yaml"
    assert case.path(case.model) == tmp_path / "a.onnx"
    assert case.path(str(tmp_path / "x" / "b.onnx")) == tmp_path / "x" / "b.onnx"


def test_a_file_is_shown_relative_to_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sub" / "a").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "sub")
    for path, shown in (
        (tmp_path / "sub" / "a" / "b.yaml", str(Path("a", "b.yaml"))),
        (Path("a.yaml"), "a.yaml"),
        (tmp_path / "c.yaml", str(tmp_path / "c.yaml")),
        (Path("..", "c.yaml"), str(tmp_path / "c.yaml")),
    ):
        path.write_text("modle: a")
        with pytest.raises(SpecError) as caught:
            load_spec(path)
        assert str(caught.value).startswith(f"{shown}:1:1: ")


def test_a_case_made_in_python_reads_like_one_from_a_file() -> None:
    with pytest.raises(pydantic.ValidationError, match=r"unknown key 'modle' \(did you mean 'model'\?\)"):
        Case.model_validate({"name": "a", "modle": "b", "inputs": "c", "int8": {"scales": "s"}})
    case = Case.model_validate({"name": "a", "model": "b", "inputs": "c", "int8": {"scales": "s"}})
    assert Case.model_validate(case.model_dump()) == case


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("12", 12), ("-3", -3), ("+4", 4), ("012", 12), ("0", 0), ("0o14", 12), ("0x1F", 31)),
        *(("1e-3", 1e-3), ("1E3", 1e3), ("1.", 1.0), (".5", 0.5), ("-.5e2", -50.0), ("1.5e+3", 1500.0)),
        *((".inf", math.inf), ("-.Inf", -math.inf), ("+.INF", math.inf), ("1e999", math.inf)),
        *(("true", True), ("True", True), ("FALSE", False), ("null", None), ("~", None), ("", None)),
        *((text, text) for text in ("yes", "no", "on", "off", "y", "N", "tRue", "NuLL", "nan", "inf")),
        *((text, text) for text in ("1_000", "0b11", "0O14", "0o8", "0xG", "12:30:45", "1e", "e3", ".", "+")),
        *((text, text) for text in ("2026-11-21", "1%", "\u0663", "\uff11", "<<", "=")),
        ("9" * 31, 1e31),
        ("0x" + "f" * 17, "0x" + "f" * 17),
        ("9" * 5000, math.inf),
    ],
)
def test_plain_scalars_follow_yaml_1_2(text: str, value: object) -> None:
    resolved = plain(f"a: {text}" if text else "a:")["a"]
    assert resolved == value
    assert type(resolved) is type(value)


def test_forms_of_one_mapping() -> None:
    for quote in ("'12'", '"12"', "|-\n 12", ">-\n 12"):
        assert plain(f"a: {quote}") == {"a": "12"}
    for raw in (b"\xef\xbb\xbfa: 1", b"a: 1\r\n", b"a: 1\r", b"a:\n 1", b"--- # x\na: 1\n...\n", b"{a: 1}"):
        assert plain(raw) == {"a": 1}
    for raw in (b'"a": 1', b"? a\n: 1", b"&x a: &y 1", b"%YAML 1.1\n---\na: 1\n", b"%YAML 1.2\n---\na: 1"):
        assert plain(raw) == {"a": 1}
    for text in (".nan", ".NaN", ".NAN"):
        value = plain(f"a: {text}")["a"]
        assert isinstance(value, float)
        assert math.isnan(value)


def test_aliases_stand_for_what_they_name() -> None:
    text = "a: &x [1, &y {b: c}]\nd: *x\ne: *y"
    assert plain(text) == {"a": [1, {"b": "c"}], "d": [1, {"b": "c"}], "e": {"b": "c"}}


@pytest.mark.skipif(not hasattr(yaml, "CSafeLoader"), reason="PyYAML without libyaml")
@pytest.mark.parametrize("text", [*VALID.values(), "é: [\U0001d518, x]\r\nb: |\n  y\n  z\nc:\n"])
def test_both_parsers_see_the_same(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    places = []
    for loader in (yaml.CSafeLoader, yaml.SafeLoader):
        monkeypatch.setattr("pytest_int8acc.spec.yaml.LOADER", loader)
        root = parse(text.encode()).root
        assert root is not None
        places.append((root.plain(), root.keys, [(n.mark, n.keys) for n in root.entries.values()]))
    assert places[0] == places[1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('"\\ud800": 1', "half of a surrogate pair is not a character"),
        ('a: "\\UFFFFFFFF"', "a character code or the YAML version is out of range"),
        ('a: "\\U00110000"', "a character code or the YAML version is out of range"),
    ],
)
def test_what_only_pyyamls_own_parser_lets_through(
    text: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_int8acc.spec.yaml.LOADER", yaml.SafeLoader)
    document = parse(text.encode())
    assert document.root is None
    assert [message in mistake.text for mistake in document.mistakes] == [True]


@pytest.mark.parametrize("more", ["onnxruntime: {provider: gpu}", "zebra: 1", "'': 1"])
def test_a_guess_that_would_mislead_is_not_made(more: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        load(MINIMAL + more, tmp_path)
    assert "did you mean" not in str(caught.value)


def test_sections_of_a_case_fill_up_those_of_the_defaults(tmp_path):
    path = tmp_path / "m.int8acc.yaml"
    path.write_text(
        """
defaults:
  model: m.onnx
  inputs: {random: {samples: 4}}
  int8: {calibrate: {data: calib.npz, samples: 9}, exclude: [fc1]}
  onnxruntime: {mode: native}
  search: {strategy: bisect, keep: fp32}
  criteria: [{cosine: 0.9}]
cases:
  - name: filled
    int8: {calibrate: {method: minmax}}
    onnxruntime: {provider: cpu}
    search: {strategy: minimal}
  - name: other-source
    int8: {scales: ranges.json}
    inputs: data.npz
    criteria: [{sqnr_db: 20}]
  - name: as-it-is
"""
    )
    filled, other, as_it_is = load_spec(path)
    assert filled.int8.calibrate.data == "calib.npz"
    assert (filled.int8.calibrate.method, filled.int8.calibrate.samples) == ("minmax", 9)
    assert filled.int8.exclude == ("fc1",)
    assert (filled.onnxruntime.mode, filled.onnxruntime.provider) == ("native", "cpu")
    assert (filled.search.strategy, filled.search.keep) == ("minimal", "fp32")
    assert (other.int8.scales, other.int8.calibrate, other.int8.exclude) == ("ranges.json", None, ("fc1",))
    assert other.inputs == "data.npz"
    assert [c.cosine for c in other.criteria] == [None]
    assert as_it_is.int8.calibrate.data == "calib.npz"


@pytest.mark.parametrize("low", ["fp16", "bf16"])
def test_a_candidate_stands_for_int8_and_is_compared_with_fp32(low: str, tmp_path: Path) -> None:
    (case,) = load(f"model: a.onnx\ninputs: a.npz\ncandidate: {low}\n", tmp_path)
    assert (case.candidate, case.baseline) == (low, "fp32")
    (case,) = load(f"model: a.onnx\ninputs: a.npz\ncandidate: {low}\nbaseline: golden\n", tmp_path)
    assert case.baseline == "golden"


def test_a_case_s_own_candidate_replaces_int8_of_the_defaults_and_the_other_way_round(tmp_path: Path) -> None:
    text = "defaults: {{model: a, inputs: a, {}}}\ncases: [{{name: one, {}}}, {{name: two}}]\n"
    one, two = load(text.format("int8: {calibrate: {}}", "candidate: fp16"), tmp_path)
    assert one.candidate == "fp16"
    assert one.int8.calibrate is None
    assert two.candidate is None
    one, two = load(text.format("candidate: bf16", "int8: {scales: s}"), tmp_path)
    assert one.candidate is None
    assert one.int8.scales == "s"
    assert (one.baseline, two.baseline) == ("fp16", "fp32")
