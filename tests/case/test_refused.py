"""What TensorRT refuses is red where it may be deployed, and green where only ONNX Runtime runs it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from narrow import ACTIVATIONS, blocks, conv_act_conv, images
from onnx.reference import ReferenceEvaluator
from onnxruntime.quantization import CalibrationDataReader, quantize_static
from projects import Project
from zoo import ZOO, sample_feed

from pytest_int8acc import ModelError, Settings
from pytest_int8acc.runtime.children import Ended, Outcome, Workers
from pytest_int8acc.runtime.trt import platform

SPEC = "int8: {model: int8.onnx}\ncriteria: [{sqnr_db: 5}]\n"


class Reader(CalibrationDataReader):
    """A few samples, one by one."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.feeds = iter([sample_feed(model, seed) for seed in range(8)])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self.feeds, None)


def default_of_onnxruntime(folder: Path, network: str, **options: Any) -> Project:
    """A network, and what ``quantize_static`` makes of it as it is called in its documentation."""
    model = ZOO[network]()
    onnx.save(model, folder / "model.onnx")
    quantize_static(folder / "model.onnx", folder / "int8.onnx", Reader(model), **options)
    np.savez(folder / "data.npz", **sample_feed(model, 1))
    return Project(folder)


@pytest.mark.rtx
def test_auto_has_tensorrt_rtx_parse_what_lint_lets_pass(tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx", reason="needs TensorRT-RTX: pip install tensorrt-rtx")
    options = {"ActivationSymmetric": True, "WeightSymmetric": True, "QuantizeBias": False}
    project = default_of_onnxruntime(tmp_path, "mobilenet", extra_options=options)
    assert platform.refusal(tmp_path / "int8.onnx") is None
    assert project.check(SPEC, Settings()).passed
    model = onnx.load(tmp_path / "int8.onnx")
    last = model.graph.node[-1]
    last.output[0], given = "before_last", last.output[0]
    model.graph.node.append(onnx.helper.make_node("BitShift", ["bits", "one"], ["shifted"], direction="LEFT"))
    model.graph.node.append(onnx.helper.make_node("Identity", ["before_last"], [given], "last"))
    for name in ("bits", "one"):
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(1, np.uint64), name))
    onnx.save(model, tmp_path / "int8.onnx")
    told = platform.refusal(tmp_path / "int8.onnx")
    assert told is not None
    with pytest.raises(ModelError, match=r"added-not-parsed.*\n.*TensorRT-RTX's parser says '"):
        project.check(SPEC, Settings())
    assert project.check(SPEC, Settings(backend="onnxruntime")).passed
    (finding,) = [
        f for f in project.check(SPEC, Settings(lint="warn")).findings if f.rule == "added-not-parsed"
    ]
    assert told.message in finding.text


def test_without_tensorrt_rtx_nothing_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "is_installed", lambda flavor: False)
    assert platform.refusal(tmp_path / "none.onnx") is None


@pytest.mark.parametrize(
    ("outcome", "told"),
    [
        (Outcome(Ended.FAILED, 0.1, answer={"error": "no module"}), None),
        (Outcome(Ended.CRASHED, 0.1, -9, log='FACT "loaded"'), ("", "its parser ended by SIGKILL")),
        (Outcome(Ended.DONE, 0.1, 0, {"refusal": None}, 'FACT "loaded"\nnoise'), None),
        (
            Outcome(Ended.DONE, 0.1, 0, {"refusal": ["conv", "no such operator"]}, 'FACT "loaded"'),
            ("conv", "no such operator"),
        ),
    ],
)
def test_what_the_parser_s_process_says_is_what_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcome: Outcome, told: tuple[str, str] | None
) -> None:
    calls = []

    def run(workers: Workers, job: dict[str, Any], folder: Path, timeout: float, **how: Any) -> Outcome:
        calls.append(job["model"])
        return outcome

    monkeypatch.setattr(platform, "is_installed", lambda flavor: True)
    monkeypatch.setattr(Workers, "run", run)
    model = tmp_path / "net.onnx"
    model.write_bytes(b"a model")
    assert [platform.refusal(model), platform.refusal(model)] == [told, told]
    assert calls == [str(model)]  # asked once
    model.write_bytes(b"another model")
    assert platform.refusal(model) == told
    assert len(calls) == 2


# --- formats other than INT8


@pytest.mark.parametrize("backend", ["auto", "onnxruntime"])
@pytest.mark.parametrize("narrow", ["fp8", "int4", "TRT_MXFP8DynamicQuantize", "TRT_FP4DynamicQuantize"])
def test_a_model_without_int8_is_one_error_that_names_its_formats(
    tmp_path: Path, narrow: str, backend: str
) -> None:
    if narrow.startswith("TRT_"):
        blocks(narrow, tmp_path)
        np.savez(tmp_path / "data.npz", x=np.ones((4, 32), np.float32))
    else:
        onnx.save(conv_act_conv("Relu"), tmp_path / "model.onnx")
        onnx.save(conv_act_conv("Relu", narrow, narrow), tmp_path / "q.onnx")
        np.savez(tmp_path / "data.npz", x=images(4))
    name = {"TRT_MXFP8DynamicQuantize": "MXFP8", "TRT_FP4DynamicQuantize": "NVFP4"}.get(
        narrow, narrow.upper()
    )
    settings = Settings(backend=backend, lint="off" if backend == "onnxruntime" else "auto")
    advice = "write 'fp8: {model" if narrow == "fp8" else "name a file with Q/DQ in INT8"
    with pytest.raises(ModelError, match=f"yaml:3:15: .*to {name}, and the spec asks for INT8: {advice}"):
        Project(tmp_path).check("int8: {model: q.onnx}\n", settings)


@pytest.mark.parametrize("baseline", ["fp16", "fp32"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_fp8_beside_int8_is_judged_right_and_searched(tmp_path: Path, activation: str, baseline: str) -> None:
    onnx.save(conv_act_conv(activation), tmp_path / "model.onnx")
    quantized = conv_act_conv(activation, "int8", "fp8")
    onnx.save(quantized, tmp_path / "q.onnx")
    x = images(16)
    np.savez(tmp_path / "data.npz", x=x)
    spec = f"int8: {{model: q.onnx}}\nbaseline: {baseline}\ncriteria: [{{sqnr_db: 60}}]\n"
    result = Project(tmp_path).check(spec, Settings(backend="onnxruntime"))
    truth, made = (
        ReferenceEvaluator(m).run(None, {"x": x})[0] for m in (conv_act_conv(activation), quantized)
    )
    error = np.square((made - truth).astype(np.float64)).sum()
    expected = 10 * np.log10(np.square(truth.astype(np.float64)).sum() / error)
    (score,) = (s for s in result.scores if s.metric == "sqnr_db")
    assert score.value == pytest.approx(expected, abs=0.1)
    assert result.search is not None
    assert not result.search.found
    assert not result.warnings
