"""The door for models: each malformed thing in a file is named in one error, or put right."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from builder import sample_feed
from malformed_models import BASES, DATA, write_data
from onnx import TensorProto, helper, numpy_helper, parser

from pytest_int8acc.engines.onnxruntime import OrtEngine
from pytest_int8acc.errors import ModelError
from pytest_int8acc.graph.load import load_model, read_model

Change = Callable[[onnx.ModelProto], object]


def refused(proto: onnx.ModelProto, folder: Path, data: bytes | None = None) -> str:
    """The one-line error with which a model is refused."""
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString() if data is None else data)
    with pytest.raises(ModelError) as caught:
        load_model(path)
    text = str(caught.value)
    assert text.startswith(str(path))
    assert "\n" not in text
    return text.removeprefix(str(path))


def weight(proto: onnx.ModelProto, name: str = "b1") -> TensorProto:
    return next(tensor for tensor in proto.graph.initializer if tensor.name == name)


def raw(change: Callable[[TensorProto], object]) -> Change:
    return lambda proto: change(weight(proto))


TENSORS: dict[str, tuple[Change, str]] = {
    "short": (raw(lambda t: setattr(t, "raw_data", t.raw_data[:-1])), "wants 32 bytes, and has 31"),
    "long": (raw(lambda t: setattr(t, "raw_data", t.raw_data * 2)), "wants 32 bytes, and has 64"),
    "no data": (raw(lambda t: t.ClearField("raw_data")), "wants 8 entries, and has 0"),
    "size 0": (raw(lambda t: t.dims.__setitem__(0, 0)), "wants 0 bytes, and has 32"),
    "size -1": (raw(lambda t: t.dims.__setitem__(0, -1)), "has a negative size: [-1]"),
    "size 2**62": (raw(lambda t: t.dims.__setitem__(0, 2**62)), "wants 18446744073709551616 bytes"),
    "type 0": (raw(lambda t: setattr(t, "data_type", 0)), "has element type 0"),
    "type 99": (raw(lambda t: setattr(t, "data_type", 99)), "has element type 99"),
    "text": (raw(lambda t: setattr(t, "data_type", 8)), "is of type STRING, and has data in 'raw_data'"),
    "other field": (
        raw(lambda t: t.ClearField("raw_data") or t.int64_data.extend(range(8))),
        "is of type FLOAT, and has data in 'int64_data'",
    ),
    "two fields": (
        raw(lambda t: t.float_data.extend(range(8))),
        "has data twice, in raw_data and",
    ),
    "segment": (raw(lambda t: t.segment.SetInParent()), "stored in segments"),
    "no name": (raw(lambda t: t.ClearField("name")), "an initializer has no name"),
}


@pytest.mark.parametrize("name", TENSORS)
def test_a_weight_is_what_its_type_and_sizes_say(name: str, tmp_path: Path) -> None:
    change, message = TENSORS[name]
    proto = BASES["convolutions"]()
    change(proto)
    assert message in refused(proto, tmp_path)


@pytest.mark.parametrize("data_type", [TensorProto.INT4, TensorProto.UINT4, TensorProto.FLOAT16])
@pytest.mark.parametrize("typed", [False, True])
def test_elements_of_every_width_are_counted(data_type: int, typed: bool, tmp_path: Path) -> None:
    """Three elements of four bits take two bytes."""
    proto = BASES["convolutions"]()
    array = np.array([1, 0, 1]).astype(helper.tensor_dtype_to_np_dtype(data_type))
    tensor = numpy_helper.from_array(array, "more")
    if typed:
        tensor = helper.make_tensor("more", data_type, [3], [1, 0, 1])
    proto.graph.initializer.append(tensor)
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    np.testing.assert_array_equal(read_model(tmp_path / "m.onnx").constants()["more"], array)
    tensor = proto.graph.initializer[-1]
    if typed:
        tensor.int32_data.append(0)
    else:
        tensor.raw_data += b"\0"
    assert "weight 'more' of sizes [3] wants" in refused(proto, tmp_path)


def node(proto: onnx.ModelProto, name: str) -> onnx.NodeProto:
    return next(n for n in proto.graph.node if name in n.output)


def imports(version: int) -> Change:
    return lambda proto: setattr(proto.opset_import[0], "version", version)


def ints(name: str, values: list[int]) -> Change:
    """The initializer ``name`` with other integers."""
    return lambda proto: weight(proto, name).CopyFrom(numpy_helper.from_array(np.array(values), name))


def doubled(field: str) -> Change:
    return lambda proto: getattr(proto.graph, field).append(getattr(proto.graph, field)[0])


def in_a_circle(proto: onnx.ModelProto) -> None:
    node(proto, "c1").input[0] = "r1"


def weight_of(name: str, dtype: str) -> Change:
    def change(proto: onnx.ModelProto) -> None:
        weight(proto, name).CopyFrom(numpy_helper.from_array(np.ones(288).astype(dtype), name))

    return change


GRAPHS: dict[str, tuple[Change, str]] = {
    "opset 2**40": (imports(2**40), "opset 1099511627776 of domain ''"),
    "opset 0": (imports(0), "opset 0 of domain ''"),
    "opset of tomorrow": (imports(200), "opset 200, and the installed ONNX"),
    "no opset": (lambda p: p.opset_import.pop(), "imports no opset of ONNX itself"),
    "two opsets": (lambda p: p.opset_import.add(domain="ai.onnx", version=11), "two opsets of domain ''"),
    "IR version 2**40": (lambda p: setattr(p, "ir_version", 2**40), "IR version 1099511627776"),
    "batch 2**62": (
        lambda p: setattr(p.graph.input[0].type.tensor_type.shape.dim[0], "dim_value", 2**62),
        "input 'x' of sizes [4611686018427387904, 4, 6, 6] is fixed at",
    ),
    "input of type 0": (
        lambda p: setattr(p.graph.input[0].type.tensor_type, "elem_type", 0),
        "input 'x' has no element type",
    ),
    "input of type 99": (
        lambda p: setattr(p.graph.input[0].type.tensor_type, "elem_type", 99),
        "'x' has element type 99",
    ),
    "output as int64": (
        lambda p: setattr(p.graph.output[0].type.tensor_type, "elem_type", TensorProto.INT64),
        "output 'y' is declared INT64, and the model makes FLOAT",
    ),
    "circle": (in_a_circle, "'c1' (Conv); node 'r1' (Relu)"),
    "node twice": (doubled("node"), "'w1' defined more than once"),
    "weight twice": (doubled("initializer"), "'sizes' defined more than once"),
    "input twice": (doubled("input"), "'x' defined more than once"),
    "output twice": (doubled("output"), "'y' defined more than once"),
    "reads nothing": (
        lambda p: node(p, "r1").input.__setitem__(0, "w2_"),
        "'r1' (Relu) reads 'w2_', which nothing",
    ),
    "too few inputs": (
        lambda p: node(p, "c1").input.__delitem__(slice(1, 3)),
        "node 'c1' (Conv) is not as ONNX has it",
    ),
    "too many inputs": (lambda p: node(p, "r1").input.append("x"), "node 'r1' (Relu) is not as ONNX has it"),
    "Constant without output": (
        lambda p: node(p, "k").output.pop(),
        "node '' (Constant) is not as ONNX has it",
    ),
    "unknown attribute": (
        lambda p: node(p, "r1").attribute.append(helper.make_attribute("no", 1)),
        "Unrecognized attribute: no for operator Relu",
    ),
    "attribute of another type": (
        lambda p: node(p, "c1").attribute[0].CopyFrom(helper.make_attribute("pads", 1.0)),
        "node 'c1' (Conv) is not as ONNX has it",
    ),
    "attribute twice": (
        lambda p: node(p, "c1").attribute.append(node(p, "c1").attribute[0]),
        "has its attribute 'pads' twice",
    ),
    "attribute of no function": (
        lambda p: node(p, "c1").attribute.add(name="group", ref_attr_name="g", type=2),
        "refers to an attribute of a function it is not in",
    ),
    "group 0": (
        lambda p: node(p, "c1").attribute[1].CopyFrom(helper.make_attribute("group", 0)),
        "node 'c1' (Conv) has fewer than 1 group",
    ),
    "no operator": (lambda p: node(p, "r1").ClearField("op_type"), "names no operator"),
    "Reshape": (ints("sizes", [5, 5, 5, 5]), "(Reshape) cannot be computed from its constants"),
    "Squeeze": (ints("front", [3]), "(Squeeze) cannot be computed from its constants"),
    "Transpose": (
        lambda p: node(p, "w3").attribute[0].CopyFrom(helper.make_attribute("perm", [0, 5])),
        "Transpose",
    ),
    "Cast": (lambda p: node(p, "w2f").attribute[0].CopyFrom(helper.make_attribute("to", 99)), "Cast"),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_a_graph_is_as_onnx_has_it(name: str, tmp_path: Path) -> None:
    change, message = GRAPHS[name]
    proto = BASES["convolutions"]()
    change(proto)
    assert message in refused(proto, tmp_path)


def test_weights_of_mixed_types_are_refused_before_they_are_halved(tmp_path: Path) -> None:
    from pytest_int8acc.graph.to_fp16 import to_fp16

    for kind in ("bool", "int8", "float64"):
        proto = BASES["convolutions"]()
        weight_of("flat", kind)(proto)
        (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
        with pytest.raises(ModelError, match="beside floats"):
            to_fp16(load_model(tmp_path / "m.onnx"))


@pytest.mark.parametrize("where", ["x", "c1", "Conv", "b1"])
def test_names_that_are_no_utf8(where: str, tmp_path: Path) -> None:
    data = BASES["convolutions"]().SerializeToString()
    changed = data.replace(bytes([len(where)]) + where.encode(), bytes([len(where)]) + b"\xff" * len(where))
    assert "not UTF-8" in refused(onnx.ModelProto(), tmp_path, changed)


def test_functions_that_call_themselves(tmp_path: Path) -> None:
    proto = BASES["functions"]()
    proto.functions[1].node[0].CopyFrom(helper.make_node("block", ["i", "i"], ["o"], domain="local"))
    proto.functions[1].opset_import.add(domain="local", version=1)
    assert "calls itself" in refused(proto, tmp_path)


def test_functions_that_would_fill_the_memory(tmp_path: Path) -> None:
    """Forty functions that call the next one twice come to 2**40 nodes."""
    proto = BASES["functions"]()
    proto.graph.node[1].op_type = "f0"
    for depth in range(40):
        nodes = [
            helper.make_node(f"f{depth + 1}", [read], [made], domain="local")
            for read, made in (("i", "a"), ("a", "o"))
        ]
        if depth == 39:
            nodes = [helper.make_node("Relu", ["i"], ["o"])]
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
        proto.functions.append(helper.make_function("local", f"f{depth}", ["i"], ["o"], nodes, opsets))
    assert "nodes inlined; expected" in refused(proto, tmp_path)


def outputs(proto: onnx.ModelProto, path: Path) -> dict[str, np.ndarray]:
    path.write_bytes(proto.SerializeToString())
    return OrtEngine(load_model(path))(sample_feed(BASES["convolutions"]()))


def test_unsorted_nodes_are_sorted(tmp_path: Path) -> None:
    proto = BASES["convolutions"]()
    expected = outputs(proto, tmp_path / "m.onnx")
    nodes = list(proto.graph.node)[::-1]
    proto.graph.ClearField("node")
    proto.graph.node.extend(nodes)
    np.testing.assert_array_equal(outputs(proto, tmp_path / "m.onnx")["y"], expected["y"])


def sparse(dims: list[int], indices: np.ndarray, values: list[float] | None = None) -> onnx.ModelProto:
    proto = BASES["attention"]()
    made = helper.make_tensor("thin", TensorProto.FLOAT, [3], values or [0.5, -0.25, 1.0])
    at = numpy_helper.from_array(indices, "at")
    proto.graph.sparse_initializer[0].CopyFrom(helper.make_sparse_tensor(made, at, dims))
    return proto


@pytest.mark.parametrize("indices", [[0, 28, 63], [[0, 0], [3, 4], [7, 7]]], ids=["flat", "coordinates"])
def test_sparse_initializers_become_dense(indices: object, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(sparse([8, 8], np.array(indices)).SerializeToString())
    expected = np.zeros((8, 8), np.float32)
    expected[[0, 3, 7], [0, 4, 7]] = [0.5, -0.25, 1.0]
    model = load_model(tmp_path / "m.onnx")
    np.testing.assert_array_equal(model.constants()["thin"], expected)
    assert not model.graph.sparse_initializer


@pytest.mark.parametrize(
    ("dims", "indices", "message"),
    [
        ([8, 8], [0, 28, 64], "do not fit [3] values in sizes [8, 8]"),
        ([8, 8], [0, -1, 2], "do not fit [3] values in sizes [8, 8]"),
        ([8, 8], [0, 1], "its [2] indices of int64"),
        ([8, -8], [0, 1, 2], "is sparse, of sizes [8, -8]"),
        ([2**31, 2**31], [0, 1, 2], "bytes when zeros are filled in"),
    ],
)
def test_sparse_initializers_that_do_not_fit(
    dims: list[int], indices: list[int], message: str, tmp_path: Path
) -> None:
    assert message in refused(sparse(dims, np.array(indices)), tmp_path)


def external(folder: Path, **entries: str) -> onnx.ModelProto:
    """The base ``external`` with other entries of the weight of its branch."""
    write_data(folder)
    proto = BASES["external"]()
    branch = next(a.g for n in proto.graph.node if n.op_type == "If" for a in n.attribute)
    for entry in branch.initializer[0].external_data:
        entry.value = entries.get(entry.key, entry.value)
    return proto


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"location": "a\0b"}, "is no file's name"),
        ({"location": "loop"}, "'s'"),
        ({"location": "n" * 5000}, "is no file's name"),
        ({"location": "../w.bin"}, "lies outside the model's folder"),
        ({"location": "link"}, "lies outside the model's folder"),
        ({"location": "/dev/zero"}, "lies outside the model's folder"),
        ({"location": "folder"}, "'folder', which is not there"),
        ({"location": ""}, "which is not there"),
        ({"offset": "abc"}, "'offset' of its external data is 'abc', expected a number"),
        ({"offset": "-4"}, "'offset' of its external data is '-4'"),
        ({"offset": "9" * 30}, "'offset' of its external data"),
        ({"offset": "254"}, "needs bytes 254 to 258 of 'w.bin', which has 256"),
        ({"length": "0"}, "wants 4 bytes, its 'length' says 0"),
        ({"length": "1"}, "wants 4 bytes, its 'length' says 1"),
        ({"length": "2303"}, "wants 4 bytes, its 'length' says 2303"),
        ({"length": "abc"}, "'length' of its external data is 'abc'"),
    ],
)
def test_external_data_that_is_not_there(entries: dict[str, str], message: str, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "link").symlink_to("/etc/hostname")
    (tmp_path / "folder").mkdir()
    assert message in refused(external(tmp_path, **entries), tmp_path)


def test_external_data_of_constants_and_branches_lies_beside_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not in the current folder, where another file may bear the same name."""
    folder, elsewhere = tmp_path / "models", tmp_path / "elsewhere"
    for made in (folder, elsewhere):
        made.mkdir()
    (folder / "model.onnx").write_bytes(external(folder).SerializeToString())
    (elsewhere / DATA).write_bytes(bytes(256))
    inline = onnx.load(folder / "model.onnx", load_external_data=False)
    onnx.external_data_helper.load_external_data_for_model(inline, str(folder))
    (folder / "inline.onnx").write_bytes(inline.SerializeToString())
    feed = sample_feed(inline)
    monkeypatch.chdir(elsewhere)
    ours, expected = (OrtEngine(load_model(folder / n))(feed) for n in ("model.onnx", "inline.onnx"))
    assert np.abs(expected["y"]).max() > 0
    np.testing.assert_array_equal(ours["y"], expected["y"])


def test_four_bits_in_an_external_file(tmp_path: Path) -> None:
    proto = BASES["convolutions"]()
    int4 = helper.tensor_dtype_to_np_dtype(TensorProto.INT4)
    codes = numpy_helper.from_array(np.array([1, -2, 3], int4), "w4")
    (tmp_path / DATA).write_bytes(codes.raw_data)
    codes.ClearField("raw_data")
    codes.data_location = TensorProto.EXTERNAL
    codes.external_data.add(key="location", value=DATA)
    proto.graph.initializer.append(codes)
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    np.testing.assert_array_equal(read_model(tmp_path / "m.onnx").constants()["w4"].astype(int), [1, -2, 3])


def test_a_file_named_as_our_own_placeholder(tmp_path: Path) -> None:
    """Leftover entries of data that is inline mean nothing."""
    proto = BASES["convolutions"]()
    weight(proto).external_data.add(key="location", value="weights-are-kept-apart")
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    assert load_model(tmp_path / "m.onnx").constants()["b1"].shape == (8,)


def test_a_pipe_is_no_model(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.onnx")
    with pytest.raises(ModelError, match="not a regular file"):
        load_model(tmp_path / "model.onnx")


@pytest.mark.parametrize("kind", ["U", "?", "i4", "c8"])
def test_scales_are_floats(kind: str, tmp_path: Path) -> None:
    proto = BASES["quantized"]()
    weight(proto, "sw").CopyFrom(numpy_helper.from_array(np.ones(8).astype(kind), "sw"))
    assert "(DequantizeLinear) has a scale of type" in refused(proto, tmp_path)


def test_q_of_another_domain_wants_a_scale_too(tmp_path: Path) -> None:
    proto = parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
        g (float[2] x) => (float[2] y) { q = com.microsoft.QuantizeLinear(x)  y = Relu(x) }"""
    )
    assert "wants a tensor and a scale" in refused(proto, tmp_path)
