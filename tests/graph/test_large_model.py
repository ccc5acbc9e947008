"""A model above protobuf's 2 GB limit is read, quantized, halved, saved and run like any other."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from kills import steps
from onnx import TensorProto, helper, numpy_helper
from zoo import ZOO, sample_feed
from zoo_networks import network_of, zoo_model

import pytest_int8acc.graph.model
import pytest_int8acc.runtime.onnxruntime
from pytest_int8acc.graph.half import to_fp16
from pytest_int8acc.graph.layout import find_groups, quantize
from pytest_int8acc.graph.load import load_model
from pytest_int8acc.graph.model import Model, replacing_models, save_model, write_model
from pytest_int8acc.graph.plan import apply
from pytest_int8acc.runtime.onnxruntime import OrtEngine

#: Of the second matrix, which holds 2.2 GiB; the first has as many columns as it has rows.
ROWS, COLUMNS, INPUTS = 16384, 36000, 8


def write(path: Path) -> None:
    """Two matrices, all zeros but for a diagonal in each; the file of the second one is sparse."""
    second = TensorProto(name="b", data_type=TensorProto.FLOAT, dims=(ROWS, COLUMNS))
    second.data_location = TensorProto.EXTERNAL
    second.external_data.add(key="location", value="large.bin")
    np.memmap(path.with_name("large.bin"), np.float32, "w+", shape=ROWS * COLUMNS)[:: COLUMNS + 1] = 2.0
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "a"], ["t"]), helper.make_node("MatMul", ["t", "b"], ["y"])],
        "large",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", INPUTS])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", COLUMNS])],
        [numpy_helper.from_array(np.eye(INPUTS, ROWS, dtype=np.float32) / 2, "a"), second],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(made.SerializeToString())


def test_model_over_two_gigabytes(tmp_path: Path) -> None:
    write(tmp_path / "large.onnx")
    model = load_model(tmp_path / "large.onnx")
    assert model.nbytes > 2 << 30
    mixed = apply(quantize(model, find_groups(model), {"x": 1 / 127}))  # the second matrix stays float
    assert mixed.nbytes > 2 << 30 > pytest_int8acc.graph.model.INLINE_BYTES, "saved in files, as below"
    assert mixed.proto.ByteSize() < 1 << 20
    constants = mixed.constants()
    codes, floats = constants["a_int8"], constants["b"]
    assert codes.dtype == np.int8
    assert floats.shape == (ROWS, COLUMNS)
    np.testing.assert_array_equal(np.diagonal(codes), 127)
    np.testing.assert_array_equal(np.diagonal(floats)[:99], 2.0)


def test_weights_in_a_file_of_their_own_run_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a large model takes, with the limit lowered: saved beside the graph, run from files."""
    mixed = to_fp16(apply(network_of(zoo_model("residual"), 4 / 127))).model
    feed = sample_feed(ZOO["residual"](), 0, 2)
    expected = OrtEngine(mixed)(feed)
    for module in (pytest_int8acc.graph.model, pytest_int8acc.runtime.onnxruntime):
        monkeypatch.setattr(module, "INLINE_BYTES", 1000)
    save_model(mixed, tmp_path / "mixed.onnx")
    assert list(tmp_path.glob("mixed.onnx.*.data"))
    for again in (OrtEngine(mixed), OrtEngine(load_model(tmp_path / "mixed.onnx"))):
        for name, array in again(feed).items():
            np.testing.assert_array_equal(array, expected[name])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_large_model_replaced_is_never_half_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed at any write, the graph has its own weights: the old ones, or the new."""
    monkeypatch.setattr(pytest_int8acc.graph.model, "INLINE_BYTES", 1000)
    edit = (model := zoo_model("plain")).edit()
    edit.weights.update({name: -array for name, array in edit.weights.items()})
    models = model, edit.done()

    def replace(model: Model) -> None:
        with replacing_models(tmp_path) as drafts:
            write_model(model, drafts / "fixed.onnx")

    def there() -> list[bool]:
        found = load_model(tmp_path / "fixed.onnx").weights
        return [all(np.array_equal(found[n], model.weights[n]) for n in found) for model in models]

    replace(models[0])
    seen = []
    for _ in steps(lambda: replace(models[1])):
        seen.append(there())
        replace(models[0])
        assert there() == [True, False]
        assert len(list(tmp_path.glob("fixed.onnx*"))) == 2
    assert [True, False] in seen
    assert [False, True] in seen
    assert all(sum(each) == 1 for each in seen)
