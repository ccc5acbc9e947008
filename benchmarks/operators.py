"""Models of one operator each, opsets 7 to 12; attributes, modes, axes, pads and shapes varied by seed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, np.dtype[Any]]
F32, F64, F16 = np.dtype("f4"), np.dtype("f8"), np.dtype("f2")
I64, I32, I8, U8, BOOL = (np.dtype(code) for code in ("i8", "i4", "i1", "u1", "?"))
#: Operators whose results a generator draws: only their types and shapes are compared.
RANDOM = frozenset({"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial"})


@dataclass(frozen=True, eq=False)
class Parameter:
    """An input that exporters write as an initializer: axes, sizes, weights."""

    array: Array


@dataclass(frozen=True, eq=False)
class Variant:
    """One operator with its attributes and inputs."""

    op: str
    inputs: Sequence[Array | Parameter | None] = ()
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1
    nodes: Sequence[onnx.NodeProto] = ()
    """In place of one node of ``op``: the nodes around it, that read ``x0``, ``x1``, ... and make ``y0``."""

    @property
    def random(self) -> bool:
        """Whether a generator draws its results."""
        return self.op in RANDOM or bool(self.op == "Dropout" and len(self.inputs) > 2)

    @property
    def takes_parameters(self) -> bool:
        """Whether an input is one that exporters write as an initializer."""
        return any(isinstance(value, Parameter) for value in self.inputs)

    def all_nodes(self) -> list[onnx.NodeProto]:
        """The operator's node, or the nodes around it."""
        if self.nodes:
            return list(self.nodes)
        names = ["" if value is None else f"x{place}" for place, value in enumerate(self.inputs)]
        made = [f"y{place}" for place in range(self.outputs)]
        return [helper.make_node(self.op, names, made, name="it", **self.attributes)]


def model(variant: Variant, opset: int, flavor: str) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """A model of ``variant`` whose outputs have no type yet, and what to feed it.

    Flavors: ``fixed``, all shapes known; ``open``, no size known; ``fed``, parameters are graph inputs, too;
    ``nested``, the operator stands in both branches of an If. Below opset 9 parameters are listed as inputs,
    too, as IR version 3 wants it.
    """
    listed = opset < 9
    inputs, tensors, feed = [], [], {}
    for place, value in enumerate(variant.inputs):
        if value is None:
            continue
        name = f"x{place}"
        if isinstance(value, Parameter) and flavor != "fed":
            tensors.append(numpy_helper.from_array(value.array, name))
            if listed:
                inputs.append(helper.make_tensor_value_info(name, tensors[-1].data_type, value.array.shape))
            continue
        array = value.array if isinstance(value, Parameter) else value
        keeps = flavor in ("fixed", "nested") or isinstance(value, Parameter)
        shape = list(array.shape) if keeps else [f"{name}_{axis}" for axis in range(array.ndim)]
        inputs.append(
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), shape)
        )
        feed[name] = array
    nodes = variant.all_nodes()
    made = [f"y{place}" for place in range(variant.outputs)]
    if flavor == "nested":
        branches = []
        for branch in ("then", "else"):
            inner = [_renamed(node, made, branch) for node in nodes]
            ends = [onnx.ValueInfoProto(name=f"{name}_{branch}") for name in made]
            branches.append(helper.make_graph(inner, branch, [], ends))
        nodes = [helper.make_node("If", ["c"], made, then_branch=branches[0], else_branch=branches[1])]
        inputs.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
        feed["c"] = np.array(True)
    graph = helper.make_graph(nodes, "g", inputs, [onnx.ValueInfoProto(name=name) for name in made], tensors)
    proto = helper.make_model(
        graph, ir_version=3 if listed else 6, opset_imports=[helper.make_opsetid("", opset)]
    )
    return proto, feed


def _renamed(node: onnx.NodeProto, made: Sequence[str], branch: str) -> onnx.NodeProto:
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    for place, name in enumerate(copy.output):
        if name in made:
            copy.output[place] = f"{name}_{branch}"
    return copy


def since(op: str, opset: int) -> int | None:
    """The opset that ``op`` has its form of ``opset`` from; None where it is unknown there or deprecated."""
    try:
        schema = onnx.defs.get_schema(op, opset, "")
    except onnx.defs.SchemaError:
        return None
    return None if schema.deprecated else int(schema.since_version)


def operators(opset: int) -> list[str]:
    """All operators that ONNX registers for ``opset``."""
    names = {s.name for s in onnx.defs.get_all_schemas_with_history() if s.domain == ""}
    return sorted(name for name in names if since(name, opset) is not None)


def variants(opset: int, seed: int = 0) -> Iterator[Variant]:
    """All variants of all operators of ``opset``, those included that a schema or a runtime refuses."""
    rng = np.random.default_rng([seed, opset])
    for family in FAMILIES:
        yield from family(opset, rng)


def _floats(rng: np.random.Generator, *shape: int, dtype: np.dtype[Any] = F32) -> Array:
    return (rng.normal(size=shape) * 2).astype(dtype)


def _integers(rng: np.random.Generator, *shape: int, dtype: np.dtype[Any] = I64, low: int = -9) -> Array:
    return rng.integers(low, 10, size=shape).astype(dtype)


def _any(rng: np.random.Generator, dtype: np.dtype[Any], *shape: int) -> Array:
    if dtype.kind == "f":
        return _floats(rng, *shape, dtype=dtype)
    if dtype.kind == "b":
        return np.asarray(rng.random(shape) < 0.5)
    return _integers(rng, *shape, dtype=dtype, low=0 if dtype.kind == "u" else -9)


def _p(values: object, dtype: np.dtype[Any] = I64) -> Parameter:
    return Parameter(np.array(values, dtype))


_SHAPES = ((6,), (3, 4), (2, 3, 4), (2, 3, 4, 5))


def _elementwise(opset: int, rng: np.random.Generator) -> Iterator[Variant]:
    ops = "Abs Ceil Cos Cosh Sinh Erf Exp Floor Identity Neg Reciprocal Round Sigmoid Sign Sin Softplus"
    for op in f"{ops} Softsign Tan Tanh Relu IsNaN Asinh Atan Shape Size".split():
        for shape in _SHAPES[1::2]:
            yield Variant(op, [_floats(rng, *shape)])
        for dtype in (F64, F16, I32, I64):
            yield Variant(op, [_any(rng, dtype, 3, 4)])
    for op in ("Acos", "Asin", "Atanh"):
        yield Variant(op, [rng.uniform(-0.9, 0.9, (3, 4)).astype(F32)])
    for op in ("Acosh", "Log", "Sqrt"):
        for dtype in (F32, F64):
            yield Variant(op, [rng.uniform(1.1, 9, (3, 4)).astype(dtype)])


def _tests_of_values(opset: int, rng: np.random.Generator) -> Iterator[Variant]:
    for dtype in (F32, F64):
        special = np.array([1, np.inf, -np.inf, np.nan, 0], dtype)
        yield Variant("IsNaN", [special])
        for one, other in itertools.product((0, 1), (0, 1)):
            yield Variant("IsInf", [special], {"detect_negative": one, "detect_positive": other})
        yield Variant("IsInf", [special])
    yield Variant("Not", [_any(rng, BOOL, 3, 4)])


def _activations(opset: int, rng: np.random.Generator) -> Iterator[Variant]:
    scalars = {
        "Elu": ("alpha",),
        "Selu": ("alpha", "gamma"),
        "LeakyRelu": ("alpha",),
        "HardSigmoid": ("alpha", "beta"),
        "ThresholdedRelu": ("alpha",),
        "Celu": ("alpha",),
        "Shrink": ("bias", "lambd"),
    }
    for op, names in scalars.items():
        yield Variant(op, [_floats(rng, 3, 4)])
        for _ in range(3):
            yield Variant(op, [_floats(rng, 3, 4)], {name: float(rng.uniform(0.1, 2)) for name in names})


def _clips_and_casts(opset: int, rng: np.random.Generator) -> Iterator[Variant]:
    for dtype, low, high in itertools.product((F32, F64, I32, I64), (None, -1), (None, 2)):
        x = _any(rng, dtype, 3, 4)
        ends = [None if end is None else Parameter(np.array(end, dtype)) for end in (low, high)]
        yield Variant("Clip", [x, *ends])
        yield Variant("Clip", [x], {k: float(v) for k, v in (("min", low), ("max", high)) if v is not None})
    for source, target in itertools.product((F32, F64, F16, I64, I32, I8, U8, BOOL), repeat=2):
        yield Variant("Cast", [_any(rng, source, 3, 4)], {"to": helper.np_dtype_to_tensor_dtype(target)})


def _binary(opset: int, rng: np.random.Generator) -> Iterator[Variant]:
    pairs = (((3, 4), (3, 4)), ((2, 3, 4), (4,)), ((2, 1, 4), (3, 1)), ((3, 4), ()), ((4,), (2, 3, 4)))
    for op in (
        "Add",
        "Sub",
        "Mul",
        "Div",
        "Equal",
        "Greater",
        "Less",
        "GreaterOrEqual",
        "LessOrEqual",
        "Mod",
    ):
        for one, other in pairs:
            dtype = I32 if op == "Mod" else F32
            yield Variant(op, [_any(rng, dtype, *one), np.asarray(_any(rng, dtype, *other) * 2 + 1)])
        for dtype in (F64, I32, I64, I8, U8):
            divisor = np.where(b := _any(rng, dtype, 3, 4), b, 1).astype(dtype)
            yield Variant(op, [_any(rng, dtype, 3, 4), divisor])
    for dtype in (F32, F64, I32):
        yield Variant("Mod", [_any(rng, dtype, 3, 4), np.full((3, 4), 3, dtype)], {"fmod": 1})
    for op in ("And", "Or", "Xor", "Equal"):
        for one, other in pairs[:4]:
            yield Variant(op, [_any(rng, BOOL, *one), np.asarray(_any(rng, BOOL, *other))])


def _powers_and_shifts(opset: int, rng: np.random.Generator) -> Iterator[Variant]:
    for base, exponent in itertools.product((F32, F64, I32, I64), (F32, I32, I64)):
        exponents = np.abs(_any(rng, exponent, 3, 4)) % 3
        yield Variant("Pow", [np.abs(_any(rng, base, 3, 4)) + 1, exponents.astype(exponent)])
    yield Variant("Pow", [np.abs(_floats(rng, 2, 3, 4)), _p(2, F32)])
    for direction in ("LEFT", "RIGHT"):
        for code in ("u1", "u4", "u8"):
            x = _integers(rng, 3, 4, dtype=np.dtype(code), low=0)
            yield Variant("BitShift", [x, np.full((3, 4), 2, x.dtype)], {"direction": direction})
    for slope in ((), (1,), (3, 1, 1), (1, 3, 4, 5), (5,)):
        yield Variant("PRelu", [_floats(rng, 2, 3, 4, 5), Parameter(np.asarray(_floats(rng, *slope)))])


def _of_several(opset: int, rng: np.random.Generator) -> Iterator[Variant]:
    for op in ("Max", "Min", "Mean", "Sum"):
        yield Variant(op, [_floats(rng, 3, 4)])
        yield Variant(op, [_floats(rng, 3, 4) for _ in range(3)])
        yield Variant(op, [_floats(rng, 2, 3, 4), _floats(rng, 4), _floats(rng, 3, 1)])
        for dtype in (F64, I32, I64):
            yield Variant(op, [_any(rng, dtype, 3, 4), _any(rng, dtype, 3, 4)])
    for dtype in (F32, I64, F64):
        condition = _any(rng, BOOL, 3, 4)
        yield Variant("Where", [condition, _any(rng, dtype, 3, 4), _any(rng, dtype, 3, 4)])
        yield Variant("Where", [condition, _any(rng, dtype, 4), np.asarray(_any(rng, dtype))])


def _normalizing(opset: int, rng: np.random.Generator) -> Iterator[Variant]:
    for op, shape in itertools.product(("Softmax", "LogSoftmax", "Hardmax"), _SHAPES):
        yield Variant(op, [_floats(rng, *shape)])
        for axis in range(-len(shape), len(shape)):
            yield Variant(op, [_floats(rng, *shape)], {"axis": axis})
    for op in ("Softmax", "LogSoftmax", "Hardmax"):
        for dtype in (F64, F16):
            yield Variant(op, [_any(rng, dtype, 2, 3, 4)], {"axis": 1})
        yield Variant(op, [np.zeros((2, 3, 4), F32)], {"axis": 1})
        yield Variant(op, [_floats(rng, 2, 3, 1)], {"axis": 1})


def _norms(opset: int, rng: np.random.Generator) -> Iterator[Variant]:
    x, ones = _floats(rng, 2, 3, 4, 5), np.abs(_floats(rng, 4, 3)) + 0.5
    for p, axis in itertools.product((1, 2), (-1, 0, 1)):
        yield Variant("LpNormalization", [_floats(rng, 2, 3, 4)], {"axis": axis, "p": p})
    yield Variant("LpNormalization", [_floats(rng, 2, 3, 4)])
    four = [Parameter(row) for row in ones]
    for attributes in ({}, {"epsilon": 0.01}, {"epsilon": 0.1, "momentum": 0.5}, {"spatial": 1}):
        yield Variant("BatchNormalization", [x, *four], attributes)
    for shape in ((2, 3), (2, 3, 4), (2, 3, 2, 4, 3)):
        yield Variant("BatchNormalization", [_floats(rng, *shape), *four])
    for_each = [Parameter(np.abs(_floats(rng, 3, 4, 5)) + 0.5) for _ in range(4)]
    yield Variant("BatchNormalization", [x, *for_each], {"spatial": 0})
    yield Variant("BatchNormalization", [x.astype(F64), *(Parameter(p.array.astype(F64)) for p in four)])
    for shape in ((2, 3, 4), (2, 3, 4, 5)):
        yield Variant("InstanceNormalization", [_floats(rng, *shape), *four[:2]], {"epsilon": 0.01})
        yield Variant("InstanceNormalization", [_floats(rng, *shape), *four[:2]])
    yield Variant("LRN", [_floats(rng, 2, 6, 4, 4)], {"size": 3})
    yield Variant("LRN", [_floats(rng, 2, 6, 4, 4)], {"size": 5, "alpha": 0.1, "beta": 0.5, "bias": 2.0})
    yield Variant("MeanVarianceNormalization", [x])
    yield Variant("MeanVarianceNormalization", [x], {"axes": [0, 1, 2, 3]})
    yield Variant("MeanVarianceNormalization", [x], {"axes": [1, 2]})
    for attributes in ({}, {"ratio": 0.2}):
        for outputs in (1, 2):
            yield Variant("Dropout", [x], attributes, outputs)
    for outputs in (1, 2):
        yield Variant("Dropout", [x, _p(0.3, F32)], {}, outputs)
        yield Variant("Dropout", [x, _p(0.3, F32), _p(True, BOOL)], {"seed": 3}, outputs)


def _reductions(opset: int, rng: np.random.Generator) -> Iterator[Variant]:
    kinds = "L1 L2 LogSum LogSumExp Max Mean Min Prod Sum SumSquare"
    for op in (f"Reduce{kind}" for kind in kinds.split()):
        x = np.abs(_floats(rng, 2, 3, 4, 5))
        for axes, keep in itertools.product((None, [0], [1], [-1], [0, 2], [-3, -1], [0, 1, 2, 3]), (0, 1)):
            attributes: dict[str, Any] = {"keepdims": keep}
            yield Variant(op, [x], attributes if axes is None else attributes | {"axes": axes})
        yield Variant(op, [x])
        for dtype in (F64, I32, I64, I8, U8):
            yield Variant(op, [np.abs(_any(rng, dtype, 2, 3, 2))], {"axes": [1]})
    for op, dtype in itertools.product(("ArgMax", "ArgMin"), (F32, I32, F64, U8)):
        x = _any(rng, dtype, 2, 3, 4)
        yield Variant(op, [x])
        for axis, keep in itertools.product((0, 1, -1), (0, 1)):
            yield Variant(op, [x], {"axis": axis, "keepdims": keep})
        ties = np.zeros((2, 3, 4), dtype)
        for last in (0, 1):
            yield Variant(op, [ties], {"axis": 1, "select_last_index": last})
        yield Variant(op, [ties], {"axis": 1})


def _shaping(opset: int, rng: np.random.Generator) -> Iterator[Variant]:
    x = _floats(rng, 2, 3, 4)
    for dtype in (F32, I64, BOOL):
        for target in ([6, 4], [-1], [0, -1], [0, 0, 2, 2], [4, 3, 2], [1, 2, 3, 4]):
            yield Variant("Reshape", [_any(rng, dtype, 2, 3, 4), _p(target)])
    thin = _floats(rng, 1, 3, 1, 4)
    for axes in ([0], [2], [0, 2], [-2], [-4, 2]):
        yield Variant("Squeeze", [thin], {"axes": axes})
    yield Variant("Squeeze", [thin])
    for axes in ([0], [1], [3], [0, 4], [-1], [2, 0], [-1, 0], [1, 2]):
        yield Variant("Unsqueeze", [x], {"axes": axes})
    yield Variant("Transpose", [x])
    for perm in itertools.permutations(range(3)):
        yield Variant("Transpose", [x], {"perm": list(perm)})
    yield Variant("Flatten", [x])
    for axis in (0, 1, 2, 3, -1, -2):
        yield Variant("Flatten", [x], {"axis": axis})


def _joins(opset: int, rng: np.random.Generator) -> Iterator[Variant]:
    x = _floats(rng, 2, 3, 4)
    for shape in ([2, 3, 4], [5, 2, 3, 4], [2, 1, 1], [4]):
        yield Variant("Expand", [_floats(rng, 2, 3, 4), _p(shape)])
        yield Variant("Expand", [_floats(rng, 3, 1), _p([2, 1, 4])])
    for repeats in ([1, 1, 1], [2, 1, 3], [1, 2, 1]):
        yield Variant("Tile", [x, _p(repeats)])
    for axis in (0, 1, 2, -1, -3):
        yield Variant("Concat", [x, x + 1, x + 2], {"axis": axis})
    yield Variant("Concat", [x, _floats(rng, 2, 5, 4)], {"axis": 1})
    for attributes, outputs in (
        ({}, 2),
        ({"axis": 1}, 3),
        ({"axis": 2}, 2),
        ({"axis": -1}, 2),
        ({"axis": 2, "split": [1, 3]}, 2),
        ({"axis": 2, "split": [1, 1, 2]}, 3),
        ({"axis": -2, "split": [2, 1]}, 2),
        ({"axis": 0, "split": [2]}, 1),
    ):
        yield Variant("Split", [x], attributes, outputs)
    yield Variant("Split", [_integers(rng, 6, dtype=I32)], {}, 3)


def _made_shapes(opset: int, rng: np.random.Generator) -> Iterator[Variant]:
    for blocks in (1, 2):
        yield Variant("DepthToSpace", [_floats(rng, 2, 8, 3, 2)], {"blocksize": blocks})
        for mode in ("DCR", "CRD"):
            yield Variant("DepthToSpace", [_floats(rng, 2, 8, 3, 2)], {"blocksize": blocks, "mode": mode})
        yield Variant("SpaceToDepth", [_floats(rng, 2, 3, 4, 6)], {"blocksize": blocks})
    for attributes in ({}, {"k": 1}, {"k": -1}, {"dtype": 1}, {"dtype": 7, "k": 2}):
        yield Variant("EyeLike", [_floats(rng, 3, 4)], attributes)
    for dtype in (F32, I64, I32, BOOL):
        value = numpy_helper.from_array(np.array([1], dtype))
        yield Variant("ConstantOfShape", [np.array([2, 3])], {"value": value})
    yield Variant("ConstantOfShape", [np.array([2, 3])])
    yield Variant("ConstantOfShape", [np.array([], I64)])
    for dtype in (F32, I64, F64):
        for start, limit, delta in ((0, 5, 1), (1, 9, 3), (7, 1, -2), (5, 5, 1)):
            yield Variant("Range", [np.array(value, dtype) for value in (start, limit, delta)])


def _constants(opset: int, rng: np.random.Generator) -> Iterator[Variant]:
    for attributes in (
        {"value": numpy_helper.from_array(_floats(rng, 2, 3))},
        {"value_float": 1.5},
        {"value_floats": [1.5, 2.5]},
        {"value_int": 3},
        {"value_ints": [3, 4]},
    ):
        constant = helper.make_node("Constant", [], ["k"], **attributes)
        kind = I64 if "int" in next(iter(attributes)) else F32
        yield Variant(
            "Constant", [_any(rng, kind, 1)], nodes=[constant, helper.make_node("Add", ["x0", "k"], ["y0"])]
        )


def _slices(opset: int, rng: np.random.Generator) -> Iterator[Variant]:
    x = _floats(rng, 5, 6, 7)
    for starts, ends, axes in (
        ([1], [4], [0]),
        ([1, 2], [4, 5], [0, 2]),
        ([-3], [-1], [1]),
        ([0, 1, 2], [5, 4, 100], None),
        ([2], [1000], [-1]),
        ([3, 0], [2147483647, 2], [1, 0]),
        ([0], [-1], [2]),
        ([4], [2], [1]),
    ):
        attributes = {"starts": starts, "ends": ends} | ({} if axes is None else {"axes": axes})
        yield Variant("Slice", [x], attributes)
        for dtype in (I64, I32):
            inputs = [_p(starts, dtype), _p(ends, dtype)]
            yield Variant("Slice", [x, *inputs, *([] if axes is None else [_p(axes, dtype)])])
    for start, end, step in ((0, 6, 2), (5, 0, -1), (-1, -7, -2), (1, 100, 3)):
        yield Variant("Slice", [x, _p([start]), _p([end]), _p([1]), _p([step])])
    yield Variant("Slice", [_integers(rng, 5, 6)], {"starts": [1], "ends": [3]})


def _pads(opset: int, rng: np.random.Generator) -> Iterator[Variant]:
    x = _floats(rng, 2, 3, 4, 5)
    for mode, pads in itertools.product(
        ("constant", "reflect", "edge"),
        ([0, 0, 1, 2, 0, 0, 2, 1], [0, 1, 0, 0, 0, 2, 0, 0], [0, 0, 0, 0, 0, 0, 1, 1], [0] * 8),
    ):
        yield Variant("Pad", [x], {"mode": mode, "pads": pads})
        yield Variant("Pad", [x, _p(pads)], {"mode": mode})
    crop = [0, 0, -1, 1, 0, 0, 1, -1]
    yield Variant("Pad", [x], {"mode": "constant", "pads": crop, "value": 1.5})
    yield Variant("Pad", [x, _p(crop), _p(1.5, F32)], {"mode": "constant"})
    yield Variant("Pad", [x], {"pads": [1, 0, 0, 0, 0, 0, 0, 1], "value": -2.0})
    for dtype in (F64, I32, I64):
        yield Variant("Pad", [_any(rng, dtype, 2, 3), _p([1, 0, 0, 1]), _p(3, dtype)])
    yield Variant("Pad", [_any(rng, F64, 2, 3)], {"pads": [1, 0, 0, 1], "value": 0.1})


def _picking(opset: int, rng: np.random.Generator) -> Iterator[Variant]:
    x = _floats(rng, 3, 4, 5)
    for axis, dtype in itertools.product((None, 0, 1, 2, -1), (I64, I32)):
        attributes = {} if axis is None else {"axis": axis}
        yield Variant("Gather", [x, np.array([[0, 2], [1, 1]], dtype)], attributes)
        yield Variant("Gather", [x, np.array(1, dtype)], attributes)
        yield Variant("Gather", [x, np.array([-1, 0], dtype)], attributes)
        indices = rng.integers(-3, 3, (3, 4, 5)).astype(dtype)
        yield Variant("GatherElements", [x, indices], attributes)
        for op in ("Scatter", "ScatterElements"):
            places = np.zeros((2, 4, 3), dtype)
            places[1] = 1
            if axis not in (None, 0):
                places = np.argsort(rng.random((2, 3, 3)), axis=axis).astype(dtype)[:, :2]
                places %= 2
                places = places[:, :, :1] if axis in (2, -1) else places[:, :1]
            yield Variant(op, [x, places, _floats(rng, *places.shape)], attributes)
        yield Variant("Compress", [x, np.array([True, False, True])], attributes)


def _one_hots(opset: int, rng: np.random.Generator) -> Iterator[Variant]:
    x = _floats(rng, 3, 4, 5)
    yield Variant("GatherND", [x, np.array([[0, 1], [2, -1]])])
    yield Variant("GatherND", [x, np.array([[[0]], [[1]]])])
    for dims in (0, 1):
        yield Variant("GatherND", [x, np.array([[1], [3], [0]])], {"batch_dims": dims})
    yield Variant("ScatterND", [x, np.array([[0], [2]]), _floats(rng, 2, 4, 5)])
    yield Variant("ScatterND", [x, np.array([[0, 1], [2, -1]]), _floats(rng, 2, 5)])
    for axis in (None, 0, 1, -1):
        attributes = {} if axis is None else {"axis": axis}
        for indices, values in itertools.product(([0, 2, 4], [-1, 3, 7], [-5, 9, 1]), ([0, 1], [-1, 3])):
            yield Variant("OneHot", [np.array(indices), _p(5), _p(values, F32)], attributes)
        yield Variant("OneHot", [np.array([[0, 2], [-2, 4]]), _p(5), _p([0, 1], I64)], attributes)
        yield Variant("OneHot", [np.array([0, 2, -3], F32), _p([5], F32), _p([0, 1], F32)], attributes)
    yield Variant("NonZero", [np.array([[0, 1.5, 0], [2, 0, 3]], F32)])
    yield Variant("NonZero", [_any(rng, BOOL, 3, 4)])


def _orders(opset: int, rng: np.random.Generator) -> Iterator[Variant]:
    x = _floats(rng, 3, 4, 5)
    for sort, axis in itertools.product((None, 0, 1), (None, 0, 1)):
        x2 = _integers(rng, 4, 3).astype(F32) % 2
        attributes = {k: v for k, v in (("sorted", sort), ("axis", axis)) if v is not None}
        yield Variant("Unique", [x2], attributes)
        yield Variant("Unique", [x2], attributes, 4)
    for exclusive, reverse, axis in itertools.product((0, 1), (0, 1), (0, 1, -1)):
        both = {"exclusive": exclusive, "reverse": reverse}
        yield Variant("CumSum", [x, _p(axis, I32)], both)
    yield Variant("CumSum", [x.astype(F64), _p(1)])
    for batch, time in ((0, 1), (1, 0)):
        lengths = np.array([1, 2, 3] if batch == 0 else [1, 2, 3, 3])
        yield Variant("ReverseSequence", [x, lengths], {"batch_axis": batch, "time_axis": time})
    yield Variant("ReverseSequence", [x, np.array([1, 2, 3, 3])])
    for shape in ((3, 3), (2, 4, 4)):
        yield Variant("Det", [_floats(rng, *shape)])
    for equation, shapes in (
        ("ij,jk->ik", ((2, 3), (3, 4))),
        ("bij,bjk->bik", ((2, 3, 4), (2, 4, 5))),
        ("ij->ji", ((2, 3),)),
        ("ii->i", ((3, 3),)),
        ("...ij,...jk", ((2, 3, 4), (2, 4, 3))),
        ("i,j->ij", ((3,), (4,))),
    ):
        yield Variant("Einsum", [_floats(rng, *shape) for shape in shapes], {"equation": equation})


def _top(opset: int, rng: np.random.Generator) -> Iterator[Variant]:
    for dtype, axis in itertools.product((F32, F64, I64, I32), (None, 0, 1, -1)):
        x = rng.permutation(60).reshape(3, 4, 5).astype(dtype)
        attributes = {} if axis is None else {"axis": axis}
        yield Variant("TopK", [x], attributes | {"k": 2}, 2)
        yield Variant("TopK", [x, _p([2])], attributes, 2)
        for largest, ordered in itertools.product((0, 1), (0, 1)):
            more = attributes | {"largest": largest, "sorted": ordered}
            yield Variant("TopK", [x, _p([3])], more, 2)
    ties = np.zeros((2, 6), F32)
    yield Variant("TopK", [ties], {"k": 3}, 2)
    yield Variant("TopK", [ties, _p([3])], {}, 2)


def _windows(opset: int, rng: np.random.Generator) -> Iterator[Variant]:
    x2 = _floats(rng, 2, 4, 8, 9)
    layouts: list[dict[str, Any]] = [
        {},
        {"strides": [2, 2]},
        {"pads": [1, 1, 1, 1]},
        {"pads": [0, 1, 2, 1], "strides": [2, 1]},
        {"auto_pad": "SAME_UPPER"},
        {"auto_pad": "SAME_LOWER"},
        {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
        {"auto_pad": "SAME_LOWER", "strides": [2, 2]},
        {"auto_pad": "VALID"},
        {"dilations": [2, 2]},
        {"dilations": [1, 2], "pads": [1, 2, 1, 2]},
    ]
    for attributes in layouts:
        for group in (1, 2):
            weight, bias = _floats(rng, 6, 4 // group, 3, 3), _floats(rng, 6)
            shaped = attributes | {"group": group}
            yield Variant("Conv", [x2, Parameter(weight), Parameter(bias)], shaped)
            yield Variant("Conv", [x2, Parameter(weight)], shaped | {"kernel_shape": [3, 3]})
            turned = Parameter(_floats(rng, 4, 6 // group, 3, 3))
            yield Variant("ConvTranspose", [x2, turned], shaped)
            yield Variant("ConvTranspose", [x2, turned, Parameter(bias)], shaped)
        for kernel in ([2, 2], [3, 2]):
            pool = attributes | {"kernel_shape": kernel}
            for ceil in (None, 0, 1):
                more = pool if ceil is None else pool | {"ceil_mode": ceil}
                yield Variant("MaxPool", [x2], more)
                yield Variant("MaxPool", [x2], more, 2)
                for counted in (0, 1):
                    yield Variant("AveragePool", [x2], more | {"count_include_pad": counted})
            yield Variant("LpPool", [x2], pool)
            yield Variant("LpPool", [x2], pool | {"p": 1})
    for order in (0, 1):
        yield Variant("MaxPool", [x2], {"kernel_shape": [2, 2], "storage_order": order}, 2)


def _windows_of_other_ranks(opset: int, rng: np.random.Generator) -> Iterator[Variant]:
    x1, x2, x3 = (_floats(rng, 2, 4, *size) for size in ((9,), (8, 9), (5, 6, 7)))
    for x, rank in ((x1, 1), (x3, 3)):
        for strides in (1, 2):
            shaped = {"strides": [strides] * rank, "pads": [1] * (2 * rank)}
            yield Variant("Conv", [x, Parameter(_floats(rng, 3, 4, *[3] * rank))], shaped)
            yield Variant("ConvTranspose", [x, Parameter(_floats(rng, 4, 3, *[3] * rank))], shaped)
            for op in ("MaxPool", "AveragePool", "LpPool"):
                yield Variant(op, [x], shaped | {"kernel_shape": [3] * rank})
    weight = Parameter(_floats(rng, 4, 3, 3, 3))
    for more in (
        {"output_padding": [1, 1], "strides": [2, 2]},
        {"output_padding": [0, 1], "strides": [2, 2], "pads": [1, 1, 1, 1]},
        {"output_shape": [18, 19], "strides": [2, 2]},
        {"output_shape": [16, 18], "strides": [2, 2], "auto_pad": "SAME_UPPER"},
        {"output_shape": [16, 18], "strides": [2, 2], "auto_pad": "SAME_LOWER"},
        {"output_shape": [17, 20], "strides": [2, 2]},
    ):
        yield Variant("ConvTranspose", [x2, weight], more)
    for x in (x1, x2, x3):
        for op in ("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"):
            yield Variant(op, [x])
    for p in (1, 2, 3):
        yield Variant("GlobalLpPool", [x2], {"p": p})


def _rois(opset: int, rng: np.random.Generator) -> Iterator[Variant]:
    x2 = _floats(rng, 2, 4, 8, 9)
    pooled = np.sort(rng.permutation(4 * 9)[:16]).reshape(1, 1, 4, 4)
    places = np.array([[[[0, 3], [9, 14]]]])
    for more in ({}, {"strides": [2, 2]}):
        values = pooled[:, :, :2, :2].astype(F32)
        yield Variant("MaxUnpool", [values, places], {"kernel_shape": [2, 2]} | more)
        yield Variant("MaxUnpool", [values, places, _p([1, 1, 5, 5])], {"kernel_shape": [2, 2]} | more)
    rois = np.array([[0, 0, 0, 4, 4], [1, 2, 1, 7, 6]], F32)
    for scale in (1.0, 0.5):
        roi = {"pooled_shape": [2, 3], "spatial_scale": scale}
        yield Variant("MaxRoiPool", [x2, Parameter(rois)], roi)
    for mode, ratio in itertools.product((None, "avg", "max"), (0, 2)):
        align = {"output_height": 3, "output_width": 2, "sampling_ratio": ratio, "spatial_scale": 0.5}
        more = align if mode is None else align | {"mode": mode}
        yield Variant("RoiAlign", [x2, Parameter(rois[:, 1:]), np.array([0, 1])], more)


def _resizing(opset: int, rng: np.random.Generator) -> Iterator[Variant]:
    x = _floats(rng, 2, 3, 4, 5)
    scales = ([1, 1, 2, 2], [1, 1, 1.5, 2.5], [1, 1, 1.2, 1.7], [1, 1, 3, 1], [2, 1, 2, 1], [1, 1, 1, 1])
    down = (
        [1, 1, 0.5, 0.5],
        [1, 1, 0.6, 0.7],
        [1, 1, 0.3, 1.3],
        [1, 1, 0.8, 0.9],
        [1, 1, 2, 0.5],
        [1, 1, 0.5, 3],
        [1, 0.5, 1, 1],
    )
    for mode, scale in itertools.product(("nearest", "linear"), (*scales, *down)):
        yield Variant("Upsample", [x], {"mode": mode, "scales": [float(value) for value in scale]})
        yield Variant("Upsample", [x, _p(scale, F32)], {"mode": mode})
        yield Variant("Resize", [x, _p(scale, F32)], {"mode": mode})
        yield Variant("Upsample", [x[0, 0], _p(scale[2:], F32)], {"mode": mode})
        yield Variant("Resize", [x[0, 0], _p(scale[2:], F32)], {"mode": mode})
        yield Variant("Upsample", [x[0, 0]], {"mode": mode, "scales": [float(value) for value in scale[2:]]})
    for dtype in (I32, U8):
        yield Variant("Upsample", [np.abs(_any(rng, dtype, 1, 1, 3, 3)), _p([1, 1, 2, 2], F32)])
        yield Variant("Resize", [np.abs(_any(rng, dtype, 1, 1, 3, 3)), _p([1, 1, 2, 2], F32)])
    yield Variant("Upsample", [x], {"scales": [1.0, 1.0, 2.0, 2.0]})
    yield Variant("Resize", [x, _p([1, 1, 2, 0.5], F32)])
    yield Variant("Resize", [_floats(rng, 2, 3, 7), _p([1, 1, 0.4], F32)])
    wide = _floats(rng, 1, 2, 3, 4, 5)
    for scale in ([1, 1, 2, 2, 2], [1, 1, 0.5, 2, 1]):
        yield Variant("Resize", [wide, _p(scale, F32)], {"mode": "linear"})
        yield Variant("Upsample", [wide, _p(scale, F32)], {"mode": "linear"})


def _resizing_since_11(opset: int, rng: np.random.Generator) -> Iterator[Variant]:
    x = _floats(rng, 2, 3, 4, 5)
    empty, roi = _p([], F32), _p([0, 0, 0.1, 0.2, 1, 1, 0.8, 0.9], F32)
    coordinates = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_half_pixel_for_nn")
    rounds = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
    for coordinate, target in itertools.product(coordinates, ("scales", "sizes")):
        ends = {"scales": [_p([1, 1, 1.5, 0.6], F32)], "sizes": [empty, _p([2, 3, 6, 3])]}[target]
        for mode in ("linear", "cubic"):
            more = {"coordinate_transformation_mode": coordinate, "mode": mode}
            yield Variant("Resize", [x, empty, *ends], more)
        for nearest in rounds:
            more = {"coordinate_transformation_mode": coordinate, "nearest_mode": nearest}
            yield Variant("Resize", [x, empty, *ends], more)
    for coefficient, outside in itertools.product((-0.5, -0.75), (0, 1)):
        more = {"mode": "cubic", "cubic_coeff_a": coefficient, "exclude_outside": outside}
        yield Variant("Resize", [x, empty, _p([1, 1, 2, 2], F32)], more)
    for mode in ("nearest", "linear", "cubic"):
        more = {
            "mode": mode,
            "coordinate_transformation_mode": "tf_crop_and_resize",
            "extrapolation_value": 9.0,
        }
        yield Variant("Resize", [x, roi, empty, _p([2, 3, 3, 3])], more)
        yield Variant("Resize", [x, roi, _p([1, 1, 2, 2], F32)], more)


def _products(opset: int, rng: np.random.Generator) -> Iterator[Variant]:
    for left, right in (
        ((3, 4), (4, 5)),
        ((2, 3, 4), (4, 5)),
        ((2, 3, 4), (2, 4, 5)),
        ((4,), (4, 5)),
        ((3, 4), (4,)),
    ):
        yield Variant("MatMul", [_floats(rng, *left), Parameter(_floats(rng, *right))])
    for dtype in (F64, I32, I64):
        yield Variant("MatMul", [_any(rng, dtype, 3, 4), _any(rng, dtype, 4, 5)])
    for trans_a, trans_b, bias in itertools.product((0, 1), (0, 1), (None, (3, 5), (5,), (1, 5), (3, 1), ())):
        one, other = (
            _floats(rng, *((4, 3) if trans_a else (3, 4))),
            _floats(rng, *((5, 4) if trans_b else (4, 5))),
        )
        attributes = {"transA": trans_a, "transB": trans_b, "alpha": 0.5, "beta": 1.5}
        more = [] if bias is None else [Parameter(np.asarray(_floats(rng, *bias)))]
        yield Variant("Gemm", [one, Parameter(other), *more], attributes)
    yield Variant("Gemm", [_floats(rng, 3, 4), Parameter(_floats(rng, 4, 5)), Parameter(_floats(rng, 5))])


def _recurrent(opset: int, rng: np.random.Generator) -> Iterator[Variant]:
    length, batch, size, hidden = 5, 3, 4, 2
    x = _floats(rng, length, batch, size)
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}
    for op, gate in gates.items():
        for direction, given in itertools.product(("forward", "reverse", "bidirectional"), range(4)):
            ways = 2 if direction == "bidirectional" else 1
            w = Parameter(_floats(rng, ways, gate * hidden, size) / 2)
            r = Parameter(_floats(rng, ways, gate * hidden, hidden) / 2)
            b = Parameter(_floats(rng, ways, 2 * gate * hidden)) if given else None
            lengths = Parameter(np.array([5, 3, 4], I32)) if given > 1 else None
            states = [Parameter(_floats(rng, ways, batch, hidden))] if given > 2 else []
            if op == "LSTM" and states:
                states += [
                    Parameter(_floats(rng, ways, batch, hidden)),
                    Parameter(_floats(rng, ways, 3 * hidden)),
                ]
            attributes = {"hidden_size": hidden, "direction": direction}
            outputs = 3 if op == "LSTM" else 2
            yield Variant(op, [x, w, r, b, lengths, *states], attributes, outputs)
            if given == 1:
                yield Variant(op, [x, w, r, b], attributes | {"clip": 0.3}, outputs)
                if op == "GRU":
                    yield Variant(op, [x, w, r, b], attributes | {"linear_before_reset": 1}, outputs)
                if op == "LSTM":
                    yield Variant(op, [x, w, r, b], attributes | {"input_forget": 1}, outputs)
                each = {
                    "RNN": ["Relu"],
                    "GRU": ["HardSigmoid", "Softsign"],
                    "LSTM": ["Sigmoid", "Relu", "Tanh"],
                }
                functions = attributes | {"activations": each[op] * ways}
                if op == "GRU":
                    functions |= {"activation_alpha": [0.3, 0.0] * ways, "activation_beta": [0.4, 0.0] * ways}
                yield Variant(op, [x, w, r, b], functions, outputs)


def _integer(opset: int, rng: np.random.Generator) -> Iterator[Variant]:
    x = _floats(rng, 2, 4, 5, 5)
    for dtype in (I8, U8):
        scale, zero = _p(0.05, F32), _p(3, dtype)
        yield Variant("QuantizeLinear", [x, scale, zero])
        yield Variant("DequantizeLinear", [_any(rng, dtype, 3, 4), scale, zero])
        for wide in (I8, U8):
            weight, offset = _any(rng, wide, 6, 4, 3, 3), _p(1, wide)
            for more in ({}, {"pads": [1, 1, 1, 1], "strides": [2, 2]}, {"auto_pad": "SAME_LOWER"}):
                a = _any(rng, dtype, 2, 4, 5, 5)
                yield Variant("ConvInteger", [a, Parameter(weight), zero, offset], more)
                inputs = [a, scale, zero, Parameter(weight), _p(0.02, F32), offset, _p(0.5, F32), zero]
                yield Variant("QLinearConv", inputs, more)
            a, b = _any(rng, dtype, 3, 4), Parameter(_any(rng, wide, 4, 5))
            yield Variant("MatMulInteger", [a, b, zero, offset])
            yield Variant("MatMulInteger", [a, b])
            yield Variant("QLinearMatMul", [a, scale, zero, b, _p(0.02, F32), offset, _p(0.5, F32), zero])
    yield Variant("QuantizeLinear", [x, _p(0.05, F32)])
    yield Variant("DequantizeLinear", [_integers(rng, 3, 4, dtype=I32), _p(0.05, F32)])
    yield Variant("DynamicQuantizeLinear", [x], {}, 3)


def _losses(opset: int, rng: np.random.Generator) -> Iterator[Variant]:
    labels = np.array([[0, 2, 4], [1, 1, 3]])
    x, weight = _floats(rng, 2, 5, 3), Parameter(np.abs(_floats(rng, 5)))
    for reduction, weighted, ignored in itertools.product(("none", "sum", "mean"), (False, True), (None, 1)):
        attributes = {"reduction": reduction} | ({} if ignored is None else {"ignore_index": ignored})
        inputs = [x, labels, *([weight] if weighted else [])]
        yield Variant("NegativeLogLikelihoodLoss", inputs, attributes)
        for outputs in (1, 2):
            yield Variant("SoftmaxCrossEntropyLoss", inputs, attributes, outputs)


def _detecting(opset: int, rng: np.random.Generator) -> Iterator[Variant]:
    corners = rng.uniform(0, 1, (1, 6, 2)).astype(F32)
    boxes, scores = np.concatenate([corners, corners + 0.3], axis=2), rng.random((1, 2, 6)).astype(F32)
    for center, given in itertools.product((0, 1), range(4)):
        ends = [_p([3]), _p([0.4], F32), _p([0.2], F32)][:given]
        yield Variant("NonMaxSuppression", [boxes, scores, *ends], {"center_point_box": center})


def _texts(opset: int, rng: np.random.Generator) -> Iterator[Variant]:
    for grams in ((1, 1), (2, 2), (1, 2)):
        for mode in ("TF", "IDF", "TFIDF"):
            attributes = {"mode": mode, "min_gram_length": grams[0], "max_gram_length": grams[1]}
            attributes |= {"max_skip_count": 1, "ngram_counts": [0, 4], "ngram_indexes": list(range(7))}
            attributes |= {
                "pool_int64s": [2, 3, 5, 4, 5, 6, 7, 8, 6, 7],
                "weights": [1.0, 2.0, 3.0, 1.0, 2.0, 3.0, 0.5],
            }
            yield Variant(
                "TfIdfVectorizer", [np.array([1, 1, 3, 3, 3, 7, 8, 6, 7, 5, 6, 8], I64)], attributes
            )
    text = np.array(["Monday", "Tuesday", "monday"], object)
    for attributes in (
        {"case_change_action": "LOWER"},
        {"case_change_action": "UPPER", "stopwords": ["Monday"]},
    ):
        yield Variant("StringNormalizer", [text], attributes)


def _drawing(opset: int, rng: np.random.Generator) -> Iterator[Variant]:
    for op in ("RandomNormal", "RandomUniform"):
        add = helper.make_node("Add", ["x0", "r"], ["y0"])
        drawn = helper.make_node(op, [], ["r"], shape=[3, 4], seed=3.0)
        yield Variant(op, [_floats(rng, 3, 4)], nodes=[drawn, add])
        yield Variant(f"{op}Like", [_floats(rng, 3, 4)], {"seed": 3.0})
        yield Variant(f"{op}Like", [_floats(rng, 3, 4)], {"dtype": 11})
    for attributes in ({"sample_size": 3}, {"dtype": 7, "seed": 2.0}):
        yield Variant("Multinomial", [_floats(rng, 2, 5)], attributes)


def _sequences(opset: int, rng: np.random.Generator) -> Iterator[Variant]:
    x = _floats(rng, 3, 4)

    def chain(op: str, *nodes: tuple[str, list[str], str, dict[str, Any]], inputs: Sequence[Any]) -> Variant:
        made = [helper.make_node(name, given, [out], **more) for name, given, out, more in nodes]
        return Variant(op, inputs, nodes=made)

    pair = ("SequenceConstruct", ["x0", "x1"], "s", {})
    place = np.array(1)
    yield chain("SequenceAt", pair, ("SequenceAt", ["s", "x2"], "y0", {}), inputs=[x, x + 1, place])
    yield chain("SequenceLength", pair, ("SequenceLength", ["s"], "y0", {}), inputs=[x, x + 1])
    for axis, new in ((0, 0), (1, 0), (-1, 0), (0, 1), (1, 1)):
        joined = ("ConcatFromSequence", ["s"], "y0", {"axis": axis, "new_axis": new})
        yield chain("ConcatFromSequence", pair, joined, inputs=[x, x + 1])
        yield chain("SequenceConstruct", pair, joined, inputs=[x, x + 1])
    insert, erase = ("SequenceInsert", ["s", "x0"], "t", {}), ("SequenceErase", ["s", "x2"], "t", {})
    joined = ("ConcatFromSequence", ["t"], "y0", {"axis": 0})
    yield chain("SequenceInsert", pair, insert, joined, inputs=[x, x + 1])
    yield chain("SequenceErase", pair, erase, joined, inputs=[x, x + 1, place])
    empty = ("SequenceEmpty", [], "s", {})
    yield chain("SequenceEmpty", empty, insert, joined, inputs=[x])
    for attributes in ({}, {"axis": 1}, {"axis": 1, "keepdims": 0}, {"axis": -1}):
        split = ("SplitToSequence", ["x0"], "s", attributes)
        yield chain("SplitToSequence", split, ("SequenceAt", ["s", "x1"], "y0", {}), inputs=[x, place])
    split = ("SplitToSequence", ["x0", "x2"], "s", {"axis": 1})
    yield chain(
        "SplitToSequence", split, ("SequenceAt", ["s", "x1"], "y0", {}), inputs=[x, place, _p([1, 3])]
    )


def _bodies(opset: int, rng: np.random.Generator) -> Iterator[Variant]:
    """If, Loop and Scan, with operators in their bodies whose meaning or form changes up to opset 13."""
    x = _floats(rng, 3, 4)
    value = helper.make_tensor_value_info
    inside = [
        ("Softmax", {"axis": 0}),
        ("Squeeze", {}),
        ("ReduceSum", {"axes": [0], "keepdims": 1}),
        ("Hardmax", {"axis": 0}),
        ("Relu", {}),
        ("Unsqueeze", {"axes": [0]}),
    ]
    for op, attributes in inside:
        branches = []
        for name, scale in (("then", 1), ("else", 2)):
            nodes = [helper.make_node(op, ["x0"], [f"{name}_a"], **attributes)]
            nodes.append(
                helper.make_node("Concat", [f"{name}_a"] * scale, [f"{name}_y"], axis=-1 if opset > 10 else 0)
            )
            branches.append(helper.make_graph(nodes, name, [], [onnx.ValueInfoProto(name=f"{name}_y")]))
        node = helper.make_node("If", ["x1"], ["y0"], then_branch=branches[0], else_branch=branches[1])
        for condition in (True, False):
            yield Variant("If", [x, np.array(condition)], nodes=[node])
        if op in ("Squeeze", "Unsqueeze"):
            continue
        body = [
            helper.make_node(op, ["s"], ["a"], **attributes),
            helper.make_node("Add", ["a", "s"], ["s_out"]),
            helper.make_node("Identity", ["s_out"], ["scanned"]),
            helper.make_node("Identity", ["c"], ["c_out"]),
        ]
        given = [value("i", TensorProto.INT64, []), value("c", TensorProto.BOOL, []), value("s", 1, [3, 4])]
        made = [value("c_out", TensorProto.BOOL, []), value("s_out", 1, [3, 4]), value("scanned", 1, [3, 4])]
        loop = helper.make_node(
            "Loop", ["x1", "x2", "x0"], ["y0", "y1"], body=helper.make_graph(body, "b", given, made)
        )
        yield Variant("Loop", [x, np.array(3), np.array(True)], outputs=2, nodes=[loop])
        if op not in ("Softmax", "Relu"):
            continue
        step = [
            helper.make_node("Add", ["s", "e"], ["a"]),
            helper.make_node(op, ["a"], ["s_out"], **attributes),
            helper.make_node("Identity", ["s_out"], ["scanned"]),
        ]
        given = [value("s", 1, [4]), value("e", 1, [4])]
        made = [value("s_out", 1, [4]), value("scanned", 1, [4])]
        scan = helper.make_graph(step, "b", given, made)
        state, elements = _floats(rng, 4), _floats(rng, 5, 4)
        for more in ({}, {"scan_input_directions": [1]}, {"scan_output_directions": [1]}):
            if opset > 8:
                node = helper.make_node(
                    "Scan", ["x0", "x1"], ["y0", "y1"], body=scan, num_scan_inputs=1, **more
                )
                yield Variant("Scan", [state, elements], outputs=2, nodes=[node])
        if opset == 8:
            for more in ({}, {"directions": [1]}):
                node = helper.make_node(
                    "Scan", ["", "x0", "x1"], ["y0", "y1"], body=scan, num_scan_inputs=1, **more
                )
                batches = [np.stack([state, state + 1]), np.stack([elements, elements - 1])]
                yield Variant("Scan", batches, outputs=2, nodes=[node])


FAMILIES = (
    _elementwise,
    _tests_of_values,
    _activations,
    _clips_and_casts,
    _binary,
    _powers_and_shifts,
    _of_several,
    _normalizing,
    _norms,
    _reductions,
    _shaping,
    _joins,
    _made_shapes,
    _constants,
    _slices,
    _pads,
    _picking,
    _one_hots,
    _orders,
    _top,
    _windows,
    _windows_of_other_ranks,
    _rois,
    _resizing,
    _resizing_since_11,
    _products,
    _recurrent,
    _integer,
    _losses,
    _detecting,
    _texts,
    _drawing,
    _sequences,
    _bodies,
)
