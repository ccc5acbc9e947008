"""Changes of a quantized model by hand: pairs left out, other scales, other weights. Only onnx and numpy."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from pytest_int8acc.tensors import Array, Feed

#: Shares of the greatest magnitude that are tried as the end of a range.
_SHARES = 2.0 ** -np.arange(0, 10, 0.125)
#: An unnamed weight is taken for the original of a quantized one if this is left of it, in dB.
_ORIGINAL_DB = 6.0

QUANTIZING = ("QuantizeLinear", "DequantizeLinear")
#: They drop what stands before a QuantizeLinear of FP8.
_WRONG = ["ReluQuantRewrite", "ClipQuantRewrite"]

Place = tuple[str, int]
"""A node's name, and which of its inputs."""


@dataclass(frozen=True, eq=False)
class Pair:
    """The quantization of one input of one node, or a constant that a quantizer changed without Q/DQ."""

    source: str
    """The float tensor that is quantized; for a weight its name in the float model."""
    scale: Array
    zero: Array
    axis: int
    type: int
    """Of the codes, as in TensorProto."""
    weight: Array | None
    """The float values of a constant; None for an activation."""
    given: Array | None
    """The values of a constant behind its DequantizeLinear; None for an activation."""

    @property
    def levels(self) -> float:
        """The greatest code of a symmetric range; that of INT8 in place of UINT8."""
        return 448.0 if self.type == TensorProto.FLOAT8E4M3FN else 127.0

    def codes(self, values: Array, scale: Array, axis: int | None = None) -> Array:
        """Values through symmetric codes of this type and back."""
        wide = _along(scale, axis, values.ndim)
        steps = values.astype(np.float64) / wide
        if self.type == TensorProto.FLOAT8E4M3FN:
            rounded = _to_fp8(steps)
        else:
            rounded = np.clip(np.rint(steps), -128, 127)
        return np.asarray(rounded * wide, np.float32)

    def own(self, values: Array) -> Array:
        """Values through the pair as it is in the file."""
        if self.type == TensorProto.FLOAT8E4M3FN:
            return self.codes(values, self.scale, self.axis if self.scale.ndim else None)
        scale, zero = (
            _along(each, self.axis if each.ndim else None, values.ndim) for each in (self.scale, self.zero)
        )
        low, high = (0, 255) if self.type == TensorProto.UINT8 else (-128, 127)
        steps = np.clip(np.rint(values.astype(np.float64) / scale) + zero, low, high)
        return np.asarray((steps - zero) * scale, np.float32)


def _along(values: Array, axis: int | None, rank: int) -> Array:
    wide = np.asarray(values, np.float64)
    if axis is None or not wide.ndim:
        return wide
    shape = [1] * rank
    shape[axis % rank] = -1
    return wide.reshape(shape)


def _to_fp8(steps: Array) -> Array:
    """The nearest numbers of E4M3, which end at 448."""
    size = np.clip(np.abs(steps), 0, 448)
    exponent = np.floor(np.log2(np.maximum(size, 2.0**-6)))
    unit = 2.0 ** (exponent - 3)
    return np.asarray(np.sign(steps) * np.minimum(np.rint(size / unit) * unit, 448))


def sqnr_db(values: Array, found: Array) -> float:
    """Power of the values over that of the error, in dB."""
    exact = values.astype(np.float64)
    noise = float(((exact - found) ** 2).sum())
    signal = float((exact**2).sum())
    return float("inf") if not noise else 10 * float(np.log10(max(signal, 1e-300) / noise))


class Quantized:
    """A quantized file with the float model that it was made from."""

    def __init__(self, int8: onnx.ModelProto, plain: onnx.ModelProto) -> None:
        self.int8, self.plain = int8, plain

    @cached_property
    def _makers(self) -> Mapping[str, onnx.NodeProto]:
        return {name: node for node in self.int8.graph.node for name in node.output}

    @cached_property
    def _constants(self) -> Mapping[str, Array]:
        return constants(self.int8)

    @cached_property
    def originals(self) -> Mapping[str, Array]:
        """The float model's constants."""
        return constants(self.plain)

    @cached_property
    def _plain_nodes(self) -> Mapping[str, onnx.NodeProto]:
        return {node.name: node for node in self.plain.graph.node}

    @cached_property
    def pairs(self) -> Mapping[Place, Pair]:
        """All quantized inputs of all nodes that are no QuantizeLinear or DequantizeLinear."""
        found = dict[Place, Pair]()
        for node in self.int8.graph.node:
            if node.op_type not in QUANTIZING:
                for index, name in enumerate(node.input):
                    maker = self._makers.get(name)
                    if maker is not None and maker.op_type == "DequantizeLinear":
                        found[node.name, index] = self._pair(node, index, maker)
                    elif (changed := self._changed(node, index)) is not None:
                        found[node.name, index] = changed
        return found

    def _changed(self, node: onnx.NodeProto, index: int) -> Pair | None:
        """A float constant with other values than in the float model, as a corrected bias has."""
        given, own = self._constants.get(node.input[index]), self._plain_nodes.get(node.name)
        if given is None or own is None or index >= len(own.input) or given.dtype != np.float32:
            return None
        weight = self.originals.get(own.input[index])
        if weight is None or weight.shape != given.shape or np.array_equal(weight, given):
            return None
        one, zero = np.float32(1), np.zeros((), np.int8)
        return Pair(own.input[index], one, zero, 0, TensorProto.FLOAT, weight, given)

    def _pair(self, node: onnx.NodeProto, index: int, dequantize: onnx.NodeProto) -> Pair:
        scale = self._constants[dequantize.input[1]]
        has_zero = len(dequantize.input) > 2 and bool(dequantize.input[2])
        zero = self._constants[dequantize.input[2]] if has_zero else np.zeros((), np.uint8)
        axis = next((a.i for a in dequantize.attribute if a.name == "axis"), 1)
        quantize = self._makers.get(dequantize.input[0])
        codes = self._constants.get(dequantize.input[0])
        if quantize is not None and quantize.op_type == "QuantizeLinear":
            source = quantize.input[0]
            weight = self._constants.get(source)
            if weight is not None:
                pair = Pair(source, scale, zero, axis, _type(zero), weight, None)
                original = self._original(node, index, weight)
                name, values = original if original is not None else (source, weight)
                return Pair(name, scale, zero, axis, _type(zero), values, pair.own(weight))
            return Pair(source, scale, zero, axis, _type(zero), None, None)
        assert codes is not None, f"{dequantize.name} reads neither codes nor a QuantizeLinear"
        steps = codes.astype(np.float64) - _along(zero, axis if zero.ndim else None, codes.ndim)
        wide = np.asarray(steps * _along(scale, axis if scale.ndim else None, codes.ndim), np.float32)
        found = self._original(node, index, wide)
        name, weight = (dequantize.input[0], wide) if found is None else found
        return Pair(name, scale, zero, axis, _type(codes), weight, wide)

    def _original(self, node: onnx.NodeProto, index: int, wide: Array) -> tuple[str, Array] | None:
        """Name and values of the float model's weight for a quantized one, by place, else by likeness."""
        own = self._plain_nodes.get(node.name)
        if own is not None and index < len(own.input):
            weight = self.originals.get(own.input[index])
            if weight is not None and weight.shape == wide.shape:
                return own.input[index], weight
        near = [
            (sqnr_db(weight, wide), name)
            for name, weight in self.originals.items()
            if weight.shape == wide.shape and weight.dtype.kind == "f" and weight.any()
        ]
        best = max(near, default=(0.0, ""))
        return (best[1], self.originals[best[1]]) if best[0] >= _ORIGINAL_DB else None

    def places(self, nodes: Collection[str]) -> list[Place]:
        """The quantized inputs of these nodes."""
        return [place for place in self.pairs if place[0] in nodes]

    def freed(self, places: Collection[Place]) -> onnx.ModelProto:
        """The file with these inputs read as floats, weights as in the float model."""
        return self.changed(dict.fromkeys(places))

    def changed(self, places: Mapping[Place, tuple[Array, int | None] | Array | None]) -> onnx.ModelProto:
        """The file with other quantizations of some inputs.

        Args:
            places: Input to scale and axis of a symmetric pair of its own for an activation; to other values
                for a constant; or to None for an input as float.
        """
        made = onnx.ModelProto()
        made.CopyFrom(self.int8)
        nodes = {node.name: node for node in made.graph.node}
        for number, ((name, index), change) in enumerate(places.items()):
            pair = self.pairs[name, index]
            if pair.weight is not None:
                values = pair.weight if change is None else change
                assert not isinstance(values, tuple)
                nodes[name].input[index] = f"by hand/{number}"
                made.graph.initializer.append(
                    numpy_helper.from_array(np.asarray(values, pair.weight.dtype), f"by hand/{number}")
                )
            elif change is None:
                nodes[name].input[index] = pair.source
            else:
                assert isinstance(change, tuple)
                nodes[name].input[index] = _own_pair(made, pair, *change, f"by hand/{number}", nodes[name])
        return made


def _own_pair(
    made: onnx.ModelProto, pair: Pair, scale: Array, axis: int | None, name: str, before: onnx.NodeProto
) -> str:
    """Insert a symmetric pair before a node; the name of its result."""
    kind = TensorProto.FLOAT8E4M3FN if pair.type == TensorProto.FLOAT8E4M3FN else TensorProto.INT8
    scale = np.asarray(scale, np.float32)
    zero = helper.make_tensor(f"{name}/zero", kind, scale.shape, np.zeros(scale.size))
    made.graph.initializer.extend([numpy_helper.from_array(scale, f"{name}/scale"), zero])
    more = {} if axis is None else {"axis": axis}
    numbers = [f"{name}/scale", f"{name}/zero"]
    low, back = f"{name}/low", f"{name}/back"
    down = helper.make_node("QuantizeLinear", [pair.source, *numbers], [low], low, **more)
    up = helper.make_node("DequantizeLinear", [low, *numbers], [back], back, **more)
    place = next(i for i, node in enumerate(made.graph.node) if node.name == before.name)
    made.graph.node.insert(place, up)
    made.graph.node.insert(place, down)
    return back


def _type(zero: Array) -> int:
    return int(helper.np_dtype_to_tensor_dtype(zero.dtype))


def run(model: onnx.ModelProto, feed: Feed, rows: int) -> Feed:
    """All samples through a model, ``rows`` at a time, with Q/DQ left as they are."""
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, ["CPUExecutionProvider"], disabled_optimizers=_WRONG
    )
    names = [output.name for output in session.get_outputs()]
    count = len(next(iter(feed.values())))
    parts = [
        session.run(names, {name: array[i : i + rows] for name, array in feed.items()})
        for i in range(0, count, rows)
    ]
    columns = zip(names, zip(*parts, strict=True), strict=True)
    return {name: np.concatenate(made) for name, made in columns}


def constants(model: onnx.ModelProto) -> dict[str, Array]:
    """Initializers and the values of Constant nodes."""
    found = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant":
            for attribute in node.attribute:
                if attribute.name == "value":
                    found[node.output[0]] = numpy_helper.to_array(attribute.t)
    return found


def tensors(model: onnx.ModelProto, names: Collection[str], feed: Feed, rows: int) -> Feed:
    """The values of some tensors of a model on all samples, as float32; left out where it has none."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    known = {name for node in made.graph.node for name in node.output}
    given = {name: array for name, array in feed.items() if name in names}
    there = {output.name for output in made.graph.output}
    wanted = [name for name in names if name in known]
    for name in wanted:
        if name not in there:
            made.graph.output.append(helper.make_empty_tensor_value_info(name))
    found = run(made, feed, rows) if wanted else {}
    return {name: array for name, array in {**given, **found}.items() if name in names}


def best_reach(pair: Pair, values: Array) -> float:
    """The end of the symmetric range that loses least of the values, among shares of their greatest."""
    amax = float(np.abs(values).max())
    few = np.random.default_rng(0).permutation(values.ravel())[:200_000]

    def kept(share: float) -> float:
        return sqnr_db(few, pair.codes(few, np.float64(share * amax / pair.levels)))

    return max(_SHARES.tolist(), key=kept) * amax


def per_channel(values: Array, axis: int, levels: float) -> Array:
    """Scales of all channels along an axis from their greatest magnitudes; those of zeros get the least."""
    others = tuple(i for i in range(values.ndim) if i != axis % values.ndim)
    amax = np.abs(values).max(axis=others)
    least = amax[amax > 0].min() if amax.any() else 1.0
    return np.asarray(np.maximum(amax, least) / levels, np.float32)
