"""Models of old opsets and IR versions get a verdict, as any other model does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from plugin_support import LOAD

from benchmarks import lifts

#: Models of IR version 3 and opset 9 in onnx's wheel; the seven others take 42 s.
LIGHT = ("shufflenet", "squeezenet")
FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
#: Operators of opsets 7 to 12 of which ONNX's version converter makes others, and Softmax.
CONVERTED_WRONG = ("Dropout", "Hardmax", "If", "Loop", "Pad", "Resize", "Scan", "Softmax", "Upsample")
SPEC = "model: {}\ninputs: {}\nint8: {{calibrate: {{method: minmax}}}}\nbaseline: fp32\n"


def test_weights_that_are_graph_inputs_too_are_constants(pytester: pytest.Pytester) -> None:
    rng = np.random.default_rng(0)
    weights = {"w": rng.normal(size=(4, 3, 3, 3)), "v": rng.normal(size=(4, 5))}
    tensors = [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()]
    listed = [helper.make_tensor_value_info(t.name, TensorProto.FLOAT, t.dims) for t in tensors]
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("GlobalAveragePool", ["c"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("MatMul", ["f", "v"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 8, 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 5])
    graph = helper.make_graph(nodes, "g", [x, *listed], [y], tensors)
    onnx.save(
        helper.make_model(graph, ir_version=3, opset_imports=[helper.make_opsetid("", 9)]),
        pytester.path / "model.onnx",
    )
    np.savez(pytester.path / "data.npz", x=rng.normal(size=(8, 3, 8, 8)).astype(np.float32))
    (pytester.path / "old.int8acc.yaml").write_text(SPEC.format("model.onnx", "data.npz"))
    pytester.runpytest(*LOAD, "--int8acc").assert_outcomes(passed=1)


@pytest.mark.skipif(not FOLDER.is_dir(), reason="this onnx has no light models")
def test_light_models_of_onnx_get_a_verdict(pytester: pytest.Pytester) -> None:
    for name in LIGHT:
        path = FOLDER / f"light_{name}.onnx"
        spec = SPEC.format(path, "{random: {samples: 1}}")
        (pytester.path / f"{name}.int8acc.yaml").write_text(spec)
    result = pytester.runpytest(*LOAD, "--int8acc", "--int8acc-search=off")
    outcomes = result.parseoutcomes()
    assert outcomes.get("passed", 0) + outcomes.get("failed", 0) == len(LIGHT)


def test_what_the_version_converter_changes_computes_what_the_file_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["lifts", "--share=0", "--list", "--only", *CONVERTED_WRONG])
    lifts.main()
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("other |")] == []
    refused = [line for line in lines if line.startswith("refused |")]
    assert all(" Scan | 8 | " in line and "is a Scan of opset 8" in line for line in refused)
    (total,) = (line.split(" | ") for line in lines if line.startswith("| all "))
    assert int(total[1]) > 600
