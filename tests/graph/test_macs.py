from __future__ import annotations

import pytest
from builder import Builder
from zoo import ZOO, sample_feed
from zoo_networks import network_of, zoo_network

from pytest_int8acc.graph.load import normalize
from pytest_int8acc.graph.macs import macs
from pytest_int8acc.graph.model import make_model


def counted(b: Builder, outputs: dict[str, list[int | str]], **shapes: tuple[int, ...]) -> list[float]:
    network = network_of(normalize(make_model(b.model(outputs))))
    found = macs(network, shapes)
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
    found = macs(zoo_network("residual"), {"x": (2, 3, 16, 16)})
    adds = [group.name for group in zoo_network("residual").groups if group.op_type == "Add"]
    assert adds
    assert {found[name] for name in adds} == {0.0}


def test_more_samples_cost_in_proportion() -> None:
    one, four = (macs(zoo_network("dynamic"), {"x": (n, 3, 12, 20)}) for n in (1, 4))
    assert {name: 4 * value for name, value in one.items()} == four


@pytest.mark.parametrize("name", ZOO)
def test_every_weighted_group_of_the_zoo_is_counted(name: str) -> None:
    network = zoo_network(name)
    found = macs(network, {key: array.shape for key, array in sample_feed(ZOO[name]()).items()})
    for group in network.groups:
        sizes = [e.quantization.values.size for e in group.edges if e.quantization.values is not None]
        assert found[group.name] >= max(sizes, default=0), group.name
        assert (found[group.name] > 0) == (group.op_type != "Add")


def test_a_shape_that_cannot_be_told_counts_the_weights() -> None:
    b = Builder()
    kept = b.node("Compress", b.input("x", ["N", 8]), b.input("keep", ["N"], 9), axis=0)
    y = b.node("MatMul", kept, b.weight(8, 3, fan_in=8))
    assert counted(b, {y: ["M", 3]}, x=(4, 8), keep=(4,)) == [24]
