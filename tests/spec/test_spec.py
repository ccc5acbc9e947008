"""What a valid spec says: numbers, defaults, places, paths."""

import math
import pickle
from pathlib import Path

import pydantic
import pytest
import yaml
from spec_texts import BUILT, EVERYTHING, MINIMAL, SEVERAL, TENSORRT, VALID

from pytest_int8acc.settings import SETTINGS
from pytest_int8acc.spec.criteria import (
    EngineCriterion,
    MaxDrop,
    MetricCriterion,
    OutputCriterion,
    RegressionCriterion,
    Tolerance,
)
from pytest_int8acc.spec.fields import closest
from pytest_int8acc.spec.int8 import BaselineModel, RandomData, RandomSource
from pytest_int8acc.spec.load import display, load_spec
from pytest_int8acc.spec.models import Case, Golden, Search, TensorRt
from pytest_int8acc.spec.yaml import Document, Mark, parse, resolve


def load(text: str, folder: Path, name: str = "net.int8acc.yaml") -> list[Case]:
    (folder / name).write_text(text, encoding="utf-8", newline="")
    return load_spec(folder / name)


def test_everything_that_a_case_may_say(tmp_path: Path) -> None:
    (case,) = load(EVERYTHING, tmp_path)
    assert case.name == "resnet50-bs8"
    assert case.inputs == RandomSource(random=RandomData(samples=64, seed=7))
    assert (case.labels, case.batch, case.samples) == ("labels.py:load", 8, 60)
    assert case.int8.exclude == ("/fc/Gemm", "*head*")
    calibration = case.int8.calibrate
    assert calibration is not None
    assert (calibration.data, calibration.method, calibration.percentile) == ("calib.npz", "percentile", 99.9)
    assert (calibration.samples, calibration.top_k) == (500, 5)
    assert case.baseline == BaselineModel(model="resnet50.fp32.onnx")
    assert case.backend == "onnxruntime"
    assert case.onnxruntime is not None
    assert (case.onnxruntime.mode, case.onnxruntime.provider) == ("native", "cuda")
    assert case.criteria == (
        OutputCriterion(output="logits", axis=1, cosine=0.999, sqnr_db=20, top1_agreement=1),
        OutputCriterion(output="aux*", max_rel=0.001, rel_floor=0.01),
        OutputCriterion(
            output="mask", mse=0.01, tolerance=Tolerance(abs=0.001, check="quantile", quantile=0.9)
        ),
        MetricCriterion(metric="metrics.py:top1", min=0.7, max_drop="0.5%"),
        MetricCriterion(metric="metrics.py:loss", max_drop=0.01, lower_is_better=True),
        MetricCriterion(
            metric="f1", output="mask", axis=1, ignore=255, average="micro", label="classes", max_drop="1%"
        ),
        MetricCriterion(metric="coco_map", decode="yolov8", min=0.4),
        MetricCriterion(metric="wer", decode="ctc.py:texts", max_drop=0.005),
        MetricCriterion(metric="psnr", data_range=2, min=30),
    )
    assert (case.marks, case.xfail, case.skip) == (("slow", "gpu"), "known to be off", "too slow")


def test_everything_of_tensorrt(tmp_path: Path) -> None:
    (case,) = load(TENSORRT, tmp_path)
    assert (case.reference, case.golden) == ("torch_outputs.npz", Golden(dtype="float16", samples=64))
    assert case.baseline == BaselineModel(engine="yolov5s_fp16.engine")
    implicit = case.int8.implicit
    assert implicit is not None
    assert implicit.calibrate is not None
    assert (implicit.calibrate.data, implicit.calibrate.algorithm) == ("calib.npz", "minmax")
    assert (implicit.calibrate.samples, implicit.cache) == (300, "calibration.cache")
    assert case.tensorrt == TensorRt(
        shapes={"images": ((1, 3, 320, 320), (8, 3, 640, 640), (8, 3, 640, 640)), "scale": ((), (), ())},
        plugins=("plugins/libdecode.so",),
        workspace="4G",
        optimization_level=0,
        tactic_sources=("CUBLAS", "CUDNN"),
        timeout=600,
    )
    assert case.search == Search(
        when="always", strategy="bisect", keep="fp32", max_builds=4, max_seconds=60, certify=True
    )
    assert case.criteria == (
        EngineCriterion(int8_layers=0.9, speedup=1.3),
        EngineCriterion(speedup=2),
        RegressionCriterion(regression={"cosine": 1e-4, "top1": 0.002}),
        OutputCriterion(output="boxes", max_abs=4),
    )


def test_engines_built_already_goldens_and_plans(tmp_path: Path) -> None:
    engine, cache, guarded = load(BUILT, tmp_path)
    assert (engine.int8.engine, engine.baseline, engine.golden) == ("a.engine", "golden", False)
    assert cache.int8.implicit is not None
    assert (cache.int8.implicit.calibrate, cache.int8.implicit.cache) == (None, "a.cache")
    assert (cache.golden, cache.baseline) == (True, "fp16")
    # Inside 'tensorrt', a case fills the defaults up key by key.
    assert (cache.tensorrt.workspace, cache.tensorrt.tactic_sources) == ("4G", ())
    assert (engine.tensorrt.workspace, engine.tensorrt.timeout) == ("512M", 1800)
    assert (guarded.int8.model, guarded.plan, guarded.golden) == ("a.qdq.onnx", "plan.yaml", False)


def test_what_a_case_says_of_settings_goes_by_their_names(tmp_path: Path) -> None:
    (case,) = load(TENSORRT, tmp_path)
    said = {name: value for name, value in case.settings().items() if value is not None}
    assert said == {
        "backend": "tensorrt",
        "search": "always",
        "strategy": "bisect",
        "max_builds": 4,
        "max_seconds": 60,
        "certify": True,
    }
    assert case.settings().keys() <= {setting.name for setting in SETTINGS}


def test_what_is_left_out(tmp_path: Path) -> None:
    (case,) = load(MINIMAL, tmp_path)
    assert case.name == "net"
    assert case.int8.calibrate is not None
    assert (case.int8.calibrate.data, case.int8.calibrate.method) == (None, "entropy")
    assert (case.int8.calibrate.percentile, case.int8.calibrate.top_k) == (99.99, 5)
    assert (case.baseline, case.criteria, case.marks, case.int8.exclude) == ("fp16", (), (), ())
    unset = (case.backend, case.onnxruntime, case.samples, case.batch, case.labels, case.xfail, case.skip)
    assert {*unset, case.reference, case.plan} == {None}
    assert (case.golden, case.search, case.tensorrt) == (False, Search(), TensorRt())
    assert (case.tensorrt.shapes, case.tensorrt.plugins, case.tensorrt.timeout) == ({}, (), 1800)
    assert case.tensorrt.tactic_sources is None  # not the same as []: TensorRT's own choice


@pytest.mark.parametrize("name", ["net.int8acc.yaml", "net.int8acc.yml"])
def test_a_case_is_named_after_its_file(name: str, tmp_path: Path) -> None:
    assert [case.name for case in load(MINIMAL, tmp_path, name)] == ["net"]
    assert [case.name for case in load(MINIMAL + "name: other", tmp_path, name)] == ["other"]


@pytest.mark.parametrize(
    ("drop", "expected"),
    [
        ("1%", MaxDrop(0.01, relative=True)),
        ("0.5 %", MaxDrop(0.005, relative=True)),
        ("0.5", MaxDrop(0.5, relative=False)),
        ("0", MaxDrop(0, relative=False)),
    ],
)
def test_max_drop_is_absolute_or_relative(drop: str, expected: MaxDrop, tmp_path: Path) -> None:
    (case,) = load(f"{MINIMAL}criteria: [{{metric: m.py:f, max_drop: {drop}}}]", tmp_path)
    (criterion,) = case.criteria
    assert isinstance(criterion, MetricCriterion)
    assert criterion.drop == expected
    assert MetricCriterion(metric="m.py:f", min=1).drop is None


def test_a_key_of_a_case_replaces_the_whole_default(tmp_path: Path) -> None:
    first, second, third = load(SEVERAL, tmp_path)
    assert [case.name for case in (first, second, third)] == ["first", "second", "third"]
    assert first.int8 == third.int8
    assert (second.int8.scales, second.int8.calibrate) == ("s.cache", None)
    assert [case.marks for case in (first, second, third)] == [("slow",), (), ("slow",)]
    assert [case.batch for case in (first, second, third)] == [None, None, 4]


def test_each_case_knows_its_line_from_zero(tmp_path: Path) -> None:
    assert [case.line for case in load(SEVERAL, tmp_path)] == [6, 7, 9]
    assert [case.line for case in load("# one\n\n" + MINIMAL, tmp_path)] == [2]


def test_cases_without_defaults(tmp_path: Path) -> None:
    body = "model: a, inputs: a, int8: {scales: s}"
    cases = load(f"cases: [{{name: a, {body}}}, {{name: b, {body}}}]", tmp_path)
    assert [case.name for case in cases] == ["a", "b"]


def test_paths_are_relative_to_the_spec(tmp_path: Path) -> None:
    (case,) = load(MINIMAL, tmp_path)
    assert case.file == tmp_path / "net.int8acc.yaml"
    assert case.path(case.model) == tmp_path / "a.onnx"
    assert case.path(str(tmp_path / "x" / "b.onnx")) == tmp_path / "x" / "b.onnx"


def test_no_other_file_is_read(tmp_path: Path) -> None:
    assert load(MINIMAL, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["net.int8acc.yaml"]


def test_a_file_is_shown_relative_to_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    assert display(tmp_path / "sub" / "a" / "b.yaml") == str(Path("a", "b.yaml"))
    assert display(Path("a.yaml")) == "a.yaml"
    assert display(tmp_path / "c.yaml") == str(tmp_path / "c.yaml")
    assert display(Path("..", "c.yaml")) == str(tmp_path / "c.yaml")


@pytest.mark.parametrize("text", [EVERYTHING, "# of TensorRT\n" + TENSORRT])
def test_a_case_is_frozen_and_survives_a_pickle(text: str, tmp_path: Path) -> None:
    (case,) = load(text, tmp_path)
    with pytest.raises(pydantic.ValidationError, match="frozen"):
        case.model = "b.onnx"  # type: ignore[misc]
    copy = pickle.loads(pickle.dumps(case))
    assert copy == case
    assert (copy.file, copy.line) == (case.file, case.line) == (tmp_path / "net.int8acc.yaml", 1)


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
        *(
            (text, text)
            for text in ("1_000", "0b11", "0O14", "0o8", "0xG", "12:30:45", "1e", "e3", ".", "-", "+")
        ),
        *((text, text) for text in ("2026-11-21", "1%", "- 1", "1 ", "\u0663", "\uff11", "<<", "=")),
        ("9" * 31, 1e31),
        ("0x" + "f" * 17, "0x" + "f" * 17),
        ("9" * 5000, math.inf),
    ],
)
def test_plain_scalars_follow_yaml_1_2(text: str, value: object) -> None:
    resolved = resolve(text)
    assert resolved == value
    assert type(resolved) is type(value)


def test_not_a_number() -> None:
    for text in (".nan", ".NaN", ".NAN"):
        value = resolve(text)
        assert isinstance(value, float)
        assert math.isnan(value)


def read(text: str) -> Document:
    return parse(text.encode())


@pytest.mark.parametrize("quote", ["'12'", '"12"', "|-\n 12", ">-\n 12"])
def test_quoted_and_block_scalars_are_text(quote: str) -> None:
    document = read(f"a: {quote}")
    assert document.root is not None
    assert document.root.plain() == {"a": "12"}


@pytest.mark.parametrize(
    "raw",
    [
        *(
            b"\xef\xbb\xbfa: 1",
            b"a: 1\r\n",
            b"a: 1\r",
            b"a:\n 1",
            b"--- # x\na: 1\n...\n",
            b"%YAML 1.2\n---\na: 1",
        ),
        *(b"{a: 1}", b'"a": 1', b"? a\n: 1", b"&x a: &y 1", b"%YAML 1.1\n---\na: 1\n"),
    ],
)
def test_forms_of_one_mapping(raw: bytes) -> None:
    document = parse(raw)
    assert not document.mistakes
    assert document.root is not None
    assert document.root.plain() == {"a": 1}


def test_aliases_stand_for_what_they_name() -> None:
    document = read("a: &x [1, &y {b: c}]\nd: *x\ne: *y")
    assert document.root is not None
    assert document.root.plain() == {"a": [1, {"b": "c"}], "d": [1, {"b": "c"}], "e": {"b": "c"}}
    assert document.root.entries["d"].mark == Mark(1, 4)


def test_an_anchor_may_be_given_anew() -> None:
    document = read("a: &x 1\nb: &x 2\nc: *x")
    assert document.root is not None
    assert document.root.plain() == {"a": 1, "b": 2, "c": 2}


@pytest.mark.skipif(not hasattr(yaml, "CSafeLoader"), reason="PyYAML without libyaml")
@pytest.mark.parametrize("text", [*VALID.values(), "é: [\U0001d518, x]\r\nb: |\n  y\n  z\nc:\n"])
def test_both_parsers_see_the_same(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    places = []
    for loader in (yaml.CSafeLoader, yaml.SafeLoader):
        monkeypatch.setattr("pytest_int8acc.spec.yaml.LOADER", loader)
        root = read(text).root
        assert root is not None
        places.append(
            (root.plain(), root.keys, [(n.mark, n.keys, n.size, n.depth) for n in root.entries.values()])
        )
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
    document = read(text)
    assert document.root is None
    assert [message in mistake.text for mistake in document.mistakes] == [True]


def test_limits_that_meet_are_no_mistake(tmp_path: Path) -> None:
    (case,) = load(f"{MINIMAL}criteria: [{{metric: m.py:f, min: 1, max: 1}}]", tmp_path)
    assert case.criteria == (MetricCriterion(metric="m.py:f", min=1, max=1),)


@pytest.mark.parametrize(("word", "known"), [("gpu", ["cpu", "cuda"]), ("zebra", ["name"]), ("", ["a"])])
def test_a_guess_that_would_mislead_is_not_made(word: str, known: list[str]) -> None:
    assert closest(word, known) is None


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
