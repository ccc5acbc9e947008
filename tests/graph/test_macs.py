from __future__ import annotations

import numpy as np
import pytest
from builder import Builder
from onnx import TensorProto
from zoo import ZOO, sample_feed
from zoo_networks import network_of, zoo_network

from pytest_int8acc.case.shapes import group_shapes, tensor_shapes
from pytest_int8acc.graph.load import normalize
from pytest_int8acc.graph.macs import macs, sized_tensors
from pytest_int8acc.graph.model import make_model
from pytest_int8acc.graph.network import Group, Network
from pytest_int8acc.tensors import Feed


def run_macs(network: Network, feed: Feed) -> dict[str, float]:
    return macs(network, tensor_shapes(network.model, feed, sized_tensors(network)))


def counted(b: Builder, outputs: dict[str, list[int | str]], **shapes: tuple[int, ...]) -> list[float]:
    network = network_of(normalize(make_model(b.model(outputs))))
    dtypes = {info.name: info.dtype for info in network.model.inputs}
    found = run_macs(network, {name: np.ones(shape, dtypes[name]) for name, shape in shapes.items()})
    assert list(found) == [group.name for group in network.groups]
    return list(found.values())


@pytest.mark.parametrize(
    ("kernel", "stride", "group", "expected"),
    [
        (3, 1, 1, 2 * 8 * 16 * 16 * 4 * 9),
        (1, 1, 1, 2 * 8 * 16 * 16 * 4),
        (3, 2, 1, 2 * 8 * 8 * 8 * 4 * 9),
        (3, 1, 4, 2 * 8 * 16 * 16 * 1 * 9),
    ],
)
def test_convolution(kernel: int, stride: int, group: int, expected: int) -> None:
    b = Builder()
    y = b.conv(b.input("x", ["N", 4, "H", "W"]), 4, 8, kernel, stride=stride, group=group)
    assert counted(b, {y: ["N", 8, "h", "w"]}, x=(2, 4, 16, 16)) == [expected]


def test_convolutions_of_other_ranks() -> None:
    b = Builder()
    y = b.conv(b.input("x", [1, 4, "L"]), 4, 8, 3, rank=1, stride=2)
    z = b.conv(b.input("v", [1, 2, "D", "H", "W"]), 2, 3, 3, rank=3)
    found = counted(b, {y: [1, 8, "l"], z: [1, 3, "d", "h", "w"]}, x=(1, 4, 32), v=(1, 2, 5, 6, 7))
    assert found == [8 * 16 * 4 * 3, 3 * 5 * 6 * 7 * 2 * 27]


def test_deconvolution_counts_by_its_input() -> None:
    b = Builder()
    x, weight = b.input("x", [1, 8, 5, 5]), b.weight(8, 4, 2, 2, fan_in=16)
    y = b.node("ConvTranspose", x, weight, strides=[2, 2], kernel_shape=[2, 2], group=2)
    assert counted(b, {y: [1, 8, 10, 10]}, x=(1, 8, 5, 5)) == [8 * 5 * 5 * 4 * 4]


@pytest.mark.parametrize(("left", "right", "shape"), [(0, 0, (5, 7)), (1, 0, (7, 5)), (0, 1, (5, 7))])
def test_gemm(left: int, right: int, shape: tuple[int, int]) -> None:
    b = Builder()
    weight = b.weight(*((3, 7) if right else (7, 3)), fan_in=7)
    y = b.node("Gemm", b.input("x", list(shape)), weight, transA=left, transB=right)
    assert counted(b, {y: [5, 3]}, x=shape) == [5 * 3 * 7]


def test_matrix_products_count_every_batch() -> None:
    b = Builder()
    x = b.input("x", ["N", 4, "L", 8])
    scores = b.node("MatMul", x, b.node("Transpose", x, perm=[0, 1, 3, 2]))
    y = b.node("MatMul", scores, x)
    z = b.node("MatMul", y, b.weight(8, 3, fan_in=8))
    shapes = {z: ["N", 4, "L", 3]}
    assert counted(b, shapes, x=(2, 4, 6, 8)) == [2 * 4 * 6 * 6 * 8, 2 * 4 * 6 * 8 * 6, 2 * 4 * 6 * 3 * 8]


def test_vector_times_matrix() -> None:
    b = Builder()
    y = b.node("MatMul", b.input("x", [8]), b.weight(8, 3, fan_in=8))
    assert counted(b, {y: [3]}, x=(8,)) == [24]


def test_an_add_costs_nothing() -> None:
    found = run_macs(zoo_network("residual"), {"x": np.ones((2, 3, 16, 16), np.float32)})
    adds = [group.name for group in zoo_network("residual").groups if group.op_type == "Add"]
    assert adds
    assert {found[name] for name in adds} == {0.0}


def test_more_samples_cost_in_proportion() -> None:
    feeds = ({"x": np.ones((n, 3, 12, 20), np.float32)} for n in (1, 4))
    one, four = (run_macs(zoo_network("dynamic"), feed) for feed in feeds)
    assert {name: 4 * value for name, value in one.items()} == four


@pytest.mark.parametrize("name", ZOO)
def test_every_weighted_group_of_the_zoo_is_counted(name: str) -> None:
    network = zoo_network(name)
    found = run_macs(network, sample_feed(ZOO[name]()))
    for group in network.groups:
        sizes = [e.quantization.values.size for e in group.edges if e.quantization.values is not None]
        assert found[group.name] >= max(sizes, default=0), group.name
        assert (found[group.name] > 0) == (group.op_type != "Add")


def test_a_shape_that_depends_on_values_is_the_one_that_runs() -> None:
    b = Builder()
    kept = b.node("Compress", b.input("x", ["N", 8]), b.input("keep", ["N"], TensorProto.BOOL), axis=0)
    y = b.node("MatMul", kept, b.weight(8, 3, fan_in=8))
    assert counted(b, {y: ["M", 3]}, x=(4, 8), keep=(4,)) == [4 * 8 * 3]


def exported_attention(b: Builder, x: str, width: int, heads: int) -> str:
    """Self-attention as PyTorch's exporter writes it: every Reshape goes to a shape that is computed."""
    size = b.node("Shape", x)
    batch, length = (
        b.node("Unsqueeze", b.node("Gather", size, b.const(np.array(i))), b.ints(0)) for i in (0, 1)
    )
    joint = b.linear(x, width, 3 * width)
    parts = b.node("Concat", batch, length, b.ints(3), b.ints(heads), b.ints(width // heads), axis=0)
    split = b.node("Transpose", b.node("Reshape", joint, parts), perm=[2, 0, 3, 1, 4])
    query, key, value = (b.node("Gather", split, b.const(np.array(i)), axis=0) for i in range(3))
    scores = b.node("MatMul", query, b.node("Transpose", key, perm=[0, 1, 3, 2]))
    mixed = b.node("Transpose", b.node("MatMul", b.node("Softmax", scores), value), perm=[0, 2, 1, 3])
    whole = b.node("Concat", batch, length, b.ints(width), axis=0)
    return b.linear(b.node("Reshape", mixed, whole), width, width)


def test_attention_with_computed_shapes() -> None:
    n, length, width, heads = 2, 5, 12, 3
    b = Builder()
    y = exported_attention(b, b.input("x", ["N", "L", width]), width, heads)
    product = n * heads * length * length * (width // heads)
    expected = [n * length * width * 3 * width, product, product, n * length * width * width]
    assert counted(b, {y: ["N", "L", width]}, x=(n, length, width)) == expected


@pytest.mark.parametrize(("op", "gates", "directions"), [("RNN", 1, 1), ("GRU", 3, 1), ("LSTM", 4, 2)])
def test_recurrent_layers_count_every_step(op: str, gates: int, directions: int) -> None:
    steps, n, width, hidden = 7, 2, 6, 5
    b = Builder()
    weights = (b.weight(directions, gates * hidden, size, fan_in=size) for size in (width, hidden))
    how = {"hidden_size": hidden, "direction": "bidirectional" if directions == 2 else "forward"}
    b.node(op, b.input("x", [steps, "N", width]), *weights, outputs=["y"], **how)
    model = normalize(make_model(b.model({"y": [steps, directions, "N", hidden]})))
    node = model.graph.node[0]
    network = Network(model, (Group(node.name, op, (node.name,), ()),))
    found = run_macs(network, {"x": np.ones((steps, n, width), np.float32)})
    assert found == {node.name: steps * n * directions * gates * hidden * (width + hidden)}


def test_shapes_are_told_in_words() -> None:
    network = zoo_network("residual")
    feed = {"x": np.ones((2, 3, 16, 16), np.float32)}
    shapes = tensor_shapes(network.model, feed, sized_tensors(network))
    texts = group_shapes(network, shapes)
    assert list(texts) == [group.name for group in network.groups]
    first = network.model.index.nodes[network.groups[0].name]
    assert texts[network.groups[0].name] == str(list(shapes[first.output[0]]))
    assert set(group_shapes(network, {}).values()) == {""}
