"""Sizes and values of a first run are those that the model accepts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from builder import Builder
from init_projects import feeds, judged, one_row, only_case, only_square, recurrent, saved, spectral
from onnx import TensorProto
from plugin_support import LOAD

from pytest_int8acc import EngineError
from pytest_int8acc.init import write_spec
from pytest_int8acc.tensors import Feed

pytestmark = pytest.mark.filterwarnings("ignore:the inputs are made up")


def first_feed(spec: Path) -> Feed:
    return feeds(spec)[0]


@pytest.mark.parametrize(
    ("proto", "shapes"),
    [
        (only_square(64), {"x": (4, 3, 64, 64)}),
        (only_square(224), {"x": (4, 3, 224, 224)}),
        (spectral(), {"audio": (4, 16000), "sr": ()}),
        (recurrent(), {"input": (4, 512), "state": (1, 4, 16)}),
    ],
    ids=["one-size", "usual-size", "stft", "state"],
)
def test_open_sizes_are_tried(
    tmp_path: Path, proto: onnx.ModelProto, shapes: dict[str, tuple[int, ...]]
) -> None:
    spec = write_spec(saved(tmp_path, proto))
    assert {name: array.shape for name, array in first_feed(spec).items()} == shapes
    assert judged(spec).samples == 8 * next(iter(shapes.values()))[0]
    assert "the model runs with them" in (tmp_path / "model_inputs.py").read_text()


def test_one_row_alone_is_found_out(tmp_path: Path) -> None:
    spec = write_spec(saved(tmp_path, one_row()))
    assert only_case(spec).batch == 1
    assert judged(spec).samples == 64


def test_values_are_what_an_input_s_name_and_readers_say(tmp_path: Path) -> None:
    b = Builder(17)
    table = b.weight(50, 8, fan_in=2)
    words = b.node("Gather", table, b.input("ids", ["N", "L"], TensorProto.INT64))
    mask = b.node("Cast", b.input("mask", ["N", "L"], TensorProto.INT64), to=TensorProto.FLOAT)
    x = b.node("Mul", b.linear(words, 8, 8), b.node("Unsqueeze", mask, b.ints(2)), outputs=["y"])
    spec = write_spec(saved(tmp_path, b.model({x: ["N", "L", 8]})))
    feed = first_feed(spec)
    assert feed["ids"].shape == feed["mask"].shape == (4, 16)
    assert 40 < feed["ids"].max() < 50
    assert (feed["mask"] == 1).all()
    assert judged(spec).samples == 32


def test_a_rate_and_a_state_are_given(tmp_path: Path) -> None:
    assert first_feed(write_spec(saved(tmp_path, spectral(), "audio.onnx")))["sr"] == 16000
    (tmp_path / "model_inputs.py").unlink(missing_ok=True)
    assert not first_feed(write_spec(saved(tmp_path, recurrent(), "state.onnx")))["state"].any()


def test_a_model_that_takes_no_size_tried_says_what_it_needs(pytester: pytest.Pytester) -> None:
    tmp_path = pytester.path
    saved(tmp_path, only_square(72))
    result = pytester.runpytest(*LOAD, "--int8acc-init", "model.onnx")
    assert result.ret == 0
    wrote, needs = result.outlines
    assert wrote.startswith(
        "int8acc: wrote model.int8acc.yaml and model_inputs.py; edit the lines marked TODO"
    )
    assert needs.startswith(
        "int8acc: model.int8acc.yaml does not run yet: set its sizes and values in model_inputs.py: "
        "it did not run with any tried ("
    )
    assert "model.onnx: does not run in ONNX Runtime: " in needs
    spec, loader = tmp_path / "model.int8acc.yaml", tmp_path / "model_inputs.py"
    assert "# TODO   set its sizes and values in model_inputs.py: it did not run" in spec.read_text()
    loader.write_text(loader.read_text().replace("224, 224", "72, 72"))
    assert judged(spec).samples == 32


def test_outputs_that_are_not_finite_are_told(pytester: pytest.Pytester) -> None:
    b = Builder(17)
    x = b.node("Log", b.node("Neg", b.linear(b.input("x", [4, 8]), 8, 8)))
    saved(pytester.path, b.model({b.linear(b.node("Sub", x, x), 8, 8): [4, 8]}))
    result = pytester.runpytest(*LOAD, "--int8acc-init", "model.onnx")
    assert result.ret == 0
    said = "*does not run yet: set other values: outputs are not finite on those made up*"
    result.stdout.fnmatch_lines([said])


def test_without_onnx_runtime_a_spec_is_written_all_the_same(tmp_path: Path, monkeypatch) -> None:
    def missing() -> None:
        raise EngineError("ONNX Runtime is not installed: pip install onnxruntime")

    path = saved(tmp_path, only_square(64))
    monkeypatch.setattr("pytest_int8acc.runtime.onnxruntime._runtime", missing)
    assert "ONNX Runtime is not installed" in write_spec(path).read_text()
    monkeypatch.undo()
    assert np.shape(first_feed(tmp_path / "model.int8acc.yaml")["x"]) == (4, 3, 224, 224)
