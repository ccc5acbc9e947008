"""Models as users have them: every oddity is normalized, or named in one clear error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser
from written_networks import network
from zoo import ZOO

from pytest_int8acc import ModelError
from pytest_int8acc.graph.load import lift, load_model, normalize
from pytest_int8acc.graph.model import make_model, save_model
from pytest_int8acc.graph.opsets import raise_opset


def plain() -> onnx.ModelProto:
    return ZOO["plain"]()


def write(path: Path, proto: onnx.ModelProto) -> None:
    path.write_bytes(proto.SerializeToString())


def with_external(path: Path) -> None:
    onnx.save(plain(), path, save_as_external_data=True, location="weights.bin", size_threshold=64)


def no_nodes(path: Path) -> None:
    proto = plain()
    del proto.graph.node[:]
    write(path, proto)


def sequence_input(path: Path) -> None:
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, [1]))
    graph = helper.make_graph(
        [helper.make_node("SequenceAt", ["s", "i"], ["y"])],
        "g",
        [helper.make_value_info("s", kind)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])],
        [numpy_helper.from_array(np.array(0), "i")],
    )
    write(path, helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)]))


def scan_of_opset_8(path: Path) -> None:
    body = parser.parse_graph("step (float[2] a, float[2] b) => (float[2] c) { c = Add(a, b) }")
    ends = ("s", (1, 2)), ("x", (1, 5, 2)), ("y", (1, 2))
    s, x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in ends)
    node = helper.make_node("Scan", ["", "s", "x"], ["y"], num_scan_inputs=1, body=body)
    graph = helper.make_graph([node], "g", [s, x], [y])
    write(path, helper.make_model(graph, ir_version=4, opset_imports=[helper.make_opsetid("", 8)]))


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda path: None, "no such model file"),
    "text": (lambda path: path.write_text("hello, this is no model\n"), "not an ONNX model"),
    "png": (lambda path: path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(64)), "not an ONNX model"),
    "lfs": (
        lambda path: path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\n"),
        "git lfs pull",
    ),
    "cut": (lambda path: path.write_bytes(plain().SerializeToString()[:3000]), "not an ONNX model"),
    "folder": (lambda path: path.mkdir(), "cannot be read"),
    "no_nodes": (no_nodes, "without a single node"),
    "scan_of_opset_8": (scan_of_opset_8, "node 'y' is a Scan of opset 8"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_model_gives_one_clear_error(name: str, tmp_path: Path) -> None:
    make, message = BROKEN[name]
    path = tmp_path / "model.onnx"
    make(path)
    with pytest.raises(ModelError, match=message) as caught:
        load_model(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_sequence_inputs_are_refused_by_name(tmp_path: Path) -> None:
    sequence_input(tmp_path / "model.onnx")
    with pytest.raises(ModelError, match="'s' is a sequence_type; only tensors can be compared"):
        _ = load_model(tmp_path / "model.onnx").inputs


def test_external_data_is_mapped_and_saved_whole(tmp_path: Path) -> None:
    with_external(tmp_path / "model.onnx")
    model = load_model(tmp_path / "model.onnx")
    assert any(isinstance(array, np.memmap) for array in model.weights.values())
    save_model(model, tmp_path / "copy.onnx")
    expected = {t.name: numpy_helper.to_array(t) for t in plain().graph.initializer}
    for tensor in onnx.load(tmp_path / "copy.onnx").graph.initializer:
        np.testing.assert_array_equal(numpy_helper.to_array(tensor), expected[tensor.name])


def test_unnamed_nodes_get_tensorrts_names_and_a_number_where_those_are_taken(tmp_path: Path) -> None:
    proto = plain()
    name = f"node_of_{proto.graph.node[0].output[0]}"
    proto.graph.node[0].name = ""
    proto.graph.node[2].name = name
    write(tmp_path / "model.onnx", proto)
    model = load_model(tmp_path / "model.onnx")
    assert [model.graph.node[i].name for i in (0, 2)] == [name, f"{name}_2"]


def test_old_opset_is_converted_without_losing_weights(tmp_path: Path) -> None:
    text = (
        '<ir_version: 4, opset_import: ["": 9]> g (float[1, 3, 8, 8] x) => (float[1, 600] y) '
        "{ p = GlobalAveragePool(x) s = Squeeze<axes=[2, 3]>(p) y = MatMul(s, w) }"
    )
    weight = np.random.default_rng(0).normal(size=(3, 600)).astype(np.float32)
    write(tmp_path / "model.onnx", network(text, {"w": weight}))
    model = load_model(tmp_path / "model.onnx")
    assert model.opset == 13
    assert model.proto.ir_version <= 7
    np.testing.assert_array_equal(model.constants()["w"], weight)


def test_initializers_listed_as_inputs_are_constants(tmp_path: Path) -> None:
    proto = plain()
    for tensor in proto.graph.initializer:
        proto.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    proto.ir_version = 3
    write(tmp_path / "model.onnx", proto)
    assert [i.name for i in load_model(tmp_path / "model.onnx").inputs] == [plain().graph.input[0].name]


def test_local_functions_are_inlined(tmp_path: Path) -> None:
    proto = parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17, "local": 1]>
        g (float[2, 4] x) => (float[2, 4] y) { y = local.twice(x) }
        <opset_import: ["": 17], domain: "local"> twice (a) => (b) { b = Add(a, a) }"""
    )
    write(tmp_path / "model.onnx", proto)
    assert [n.op_type for n in load_model(tmp_path / "model.onnx").graph.node] == ["Add"]


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
def test_a_convolution_tells_its_kernel(op: str, tmp_path: Path) -> None:
    """TensorRT 8.6 refuses a convolution that leaves it to weights behind a DequantizeLinear."""
    node = helper.make_node(op, ["x", "w"], ["y"], "conv")
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.ones((2, 2, 3, 5), np.float32), "w")],
    )
    write(tmp_path / "m.onnx", helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))
    (read,) = load_model(tmp_path / "m.onnx").graph.node
    assert {a.name: list(a.ints) for a in read.attribute} == {"kernel_shape": [3, 5]}


@pytest.mark.parametrize("size", [-1, "?"])
def test_sizes_that_are_no_sizes_are_open(size: int | str) -> None:
    """As Paddle's exporter writes them."""
    proto = ZOO["plain"]()
    dim = proto.graph.input[0].type.tensor_type.shape.dim[0]
    if isinstance(size, int):
        dim.dim_value = size
    else:
        dim.dim_param = size
    model = normalize(make_model(proto))
    shape = model.inputs[0].shape
    assert shape is not None
    assert shape[0] is None
    assert all(isinstance(d, int) and d > 0 for d in shape[1:])


def test_weights_stored_as_integers_become_initializers() -> None:
    """Weight-only compression: Cast and Mul (and Sub) on constants, before a MatMul."""
    text = """
        <ir_version: 8, opset_import: ["": 17]>
        g (float[n, 4] x) => (float[n, 3] y) <float[1, 3] scale = {0.1, 0.2, 0.3}, float zero = {2}>
        { f = Cast <to = 1> (w)  c = Sub(f, zero)  d = Mul(c, scale)  y = MatMul(x, d) }
    """
    proto = parser.parse_model(text)
    codes = np.arange(12, dtype=np.int8).reshape(4, 3)
    proto.graph.initializer.append(numpy_helper.from_array(codes, "w"))
    model = normalize(make_model(proto))
    assert [node.op_type for node in model.graph.node] == ["MatMul"]
    weight = model.constants()[model.graph.node[0].input[1]]
    np.testing.assert_allclose(weight, (codes - 2) * np.array([0.1, 0.2, 0.3], np.float32), rtol=1e-6)


def test_constants_that_would_grow_are_not_folded() -> None:
    text = """
        <ir_version: 8, opset_import: ["": 17]>
        g (float[n, 4] x) => (float[n, 4] y) <float[4, 1] a = {1, 2, 3, 4}, float[1, 4] b = {1, 2, 3, 4}>
        { w = Mul(a, b)  y = MatMul(x, w) }
    """
    model = normalize(make_model(parser.parse_model(text)))
    assert [node.op_type for node in model.graph.node] == ["Mul", "MatMul"]


@pytest.mark.parametrize("name", sorted(ZOO))
def test_a_model_is_lifted_as_the_converter_does(name: str) -> None:
    model = normalize(make_model(ZOO[name]()))
    lifted, converted = lift(model, 19).proto, normalize(raise_opset(model, 19)).proto
    nodes, expected = (
        [node.SerializeToString(deterministic=True) for node in proto.graph.node]
        for proto in (lifted, converted)
    )
    assert nodes == expected
    assert (lifted.opset_import, lifted.ir_version) == (converted.opset_import, converted.ir_version)


def test_only_what_changes_its_meaning_is_converted(monkeypatch: pytest.MonkeyPatch) -> None:
    convert, asked = onnx.version_converter.convert_version, []
    monkeypatch.setattr(
        onnx.version_converter, "convert_version", lambda *given: asked.append(1) or convert(*given)
    )
    assert lift(normalize(make_model(ZOO["plain"]())), 19).opset == 19
    assert not asked
    assert lift(normalize(make_model(ZOO["layernorm_parts"]())), 19).opset == 19
    assert asked


def test_the_long_name_of_the_domain_of_onnx_is_read_as_the_short_one(tmp_path: Path) -> None:
    proto = plain()
    for named in (*proto.graph.node, *proto.opset_import):
        named.domain = "ai.onnx"
    write(tmp_path / "long.onnx", proto)
    write(tmp_path / "short.onnx", plain())
    long, short = (load_model(tmp_path / f"{name}.onnx") for name in ("long", "short"))
    assert long.proto.graph == short.proto.graph
    assert long.opset == short.opset > 1
