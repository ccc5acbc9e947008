"""Forms of a model in INT8, FP8, FP16 and BF16, made apart from the plugin: plain graph edits."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.greens.graph import Array, Feed, run

WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul")


def ranges(model: onnx.ModelProto, feed: Feed) -> dict[str, float]:
    """Greatest magnitude of each float tensor of the main graph, of the inputs too."""
    more = onnx.ModelProto.FromString(model.SerializeToString())
    known = {output.name for output in more.graph.output}
    names = {name for node in more.graph.node for name in node.output if name} - known
    more.graph.output.extend(onnx.ValueInfoProto(name=name) for name in sorted(names))
    found = {**dict(feed), **run(more, feed)}
    return {
        name: float(np.abs(array[np.isfinite(array)]).max(initial=0.0))
        for name, array in found.items()
        if np.issubdtype(array.dtype, np.floating)
    }


def quantized(
    model: onnx.ModelProto,
    feed: Feed,
    *,
    ops: Collection[str] = WEIGHTED,
    only: Collection[str] | None = None,
    leave: Collection[str] = (),
    amax: Mapping[str, float] | None = None,
    also: Collection[str] = (),
    weights: bool = True,
    activations: bool = True,
    per_channel: bool = True,
    fp8: bool = False,
) -> onnx.ModelProto:
    """``model`` with symmetric Q/DQ pairs on the inputs of its nodes, ranges by minmax over ``feed``.

    Args:
        model: Opset 13 or later (19 for ``fp8``).
        feed: Calibration samples.
        ops: Operators whose inputs are quantized.
        only: Names of the nodes that are quantized, all by default.
        leave: Names of nodes that are not.
        amax: Ranges of tensors, weights too, in place of those that were measured.
        also: Tensors that get a pair for all their readers, and where they are outputs, for the user.
        weights: Whether constants are quantized.
        activations: Whether other inputs are quantized.
        per_channel: Whether each output channel of a weight has a scale of its own.
        fp8: FP8 (E4M3) in place of INT8.
    """
    made = onnx.ModelProto.FromString(model.SerializeToString())
    maxima = {**ranges(model, feed), **dict(amax or {})}
    constants = {t.name: numpy_helper.to_array(t) for t in made.graph.initializer}
    writer = _Writer(made, fp8)
    nodes = []
    for node in made.graph.node:
        wanted = node.op_type in ops and node.name not in leave and (only is None or node.name in only)
        for place, name in enumerate(list(node.input)[: 2 if node.op_type in WEIGHTED else None]):
            if not wanted and name not in also:
                continue
            if name in constants and (weights and constants[name].dtype == np.float32):
                axis = _channel_axis(node, constants[name]) if per_channel else None
                bound = (amax or {}).get(name)
                node.input[place] = writer.weight(name, constants[name], axis, bound)
            elif name in maxima and name not in constants and activations:
                node.input[place] = writer.activation(name, maxima[name])
        nodes += [*writer.taken(), node]
    for output in made.graph.output:
        if output.name in also:
            _rename(nodes, output.name, f"{output.name}_float")
            writer.activation(f"{output.name}_float", maxima[output.name], output.name)
            nodes += writer.taken()
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    return made


class _Writer:
    """Makes Q/DQ pairs, one for each tensor."""

    def __init__(self, model: onnx.ModelProto, fp8: bool) -> None:
        self.model, self.fp8 = model, fp8
        self._made: dict[tuple[str, int | None], str] = {}
        self._nodes: list[onnx.NodeProto] = []

    def taken(self) -> list[onnx.NodeProto]:
        """Nodes made since the last call."""
        nodes, self._nodes = self._nodes, []
        return nodes

    def activation(self, name: str, amax: float, out: str = "") -> str:
        """A pair behind ``name`` with one scale."""
        return self._pair(name, np.float32(max(amax, 1e-12) / self._greatest), None, out)

    def weight(self, name: str, value: Array, axis: int | None, amax: float | None) -> str:
        """A pair behind a constant, with a scale per channel of ``axis``."""
        if axis is None:
            bounds = np.abs(value).max()
        else:
            bounds = np.abs(value).max(axis=tuple(i for i in range(value.ndim) if i != axis))
        if amax is not None:
            bounds = np.full_like(bounds, amax)
        scale = (np.maximum(bounds, 1e-12) / self._greatest).astype(np.float32)
        return self._pair(name, scale, axis, "")

    @property
    def _greatest(self) -> float:
        return 448.0 if self.fp8 else 127.0

    def _pair(self, name: str, scale: Any, axis: int | None, out: str) -> str:
        if (name, axis) in self._made:
            return self._made[name, axis]
        label = name if (name, None) not in self._made else f"{name}_{axis}"
        constants = self.model.graph.initializer
        scale = np.asarray(scale, np.float32)
        constants.append(numpy_helper.from_array(scale, f"{label}_scale"))
        kind = TensorProto.FLOAT8E4M3FN if self.fp8 else TensorProto.INT8
        zero = helper.make_tensor(f"{label}_zero", kind, scale.shape, np.zeros(scale.size or 1, np.float32))
        if not self.fp8:
            zero = numpy_helper.from_array(np.zeros(scale.shape, np.int8), f"{label}_zero")
        constants.append(zero)
        more = {} if axis is None else {"axis": axis}
        out, codes = out or f"{label}_dq", f"{label}_q"
        rest = [f"{label}_scale", f"{label}_zero"]
        self._nodes += [
            helper.make_node("QuantizeLinear", [name, *rest], [codes], f"{label}_QuantizeLinear", **more),
            helper.make_node("DequantizeLinear", [codes, *rest], [out], f"{label}_DequantizeLinear", **more),
        ]
        self._made[name, axis] = out
        return out


def _channel_axis(node: onnx.NodeProto, weight: Array) -> int | None:
    if weight.ndim < 2:
        return None
    if node.op_type in ("Conv",):
        return 0
    if node.op_type == "Gemm" and any(a.name == "transB" and a.i for a in node.attribute):
        return 0
    return 1 if node.op_type == "ConvTranspose" else weight.ndim - 1


def _rename(nodes: list[onnx.NodeProto], old: str, new: str) -> None:
    for node in nodes:
        node.output[:] = [new if name == old else name for name in node.output]
        node.input[:] = [new if name == old else name for name in node.input]


def rounded(model: onnx.ModelProto, kind: str = "fp16") -> onnx.ModelProto:
    """``model`` with every float result and constant rounded to ``fp16`` or ``bf16`` by a pair of Casts."""
    low = {"fp16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}[kind]
    made = onnx.shape_inference.infer_shapes(model)
    floats = {
        info.name
        for info in [*made.graph.value_info, *made.graph.output, *made.graph.input]
        if info.type.tensor_type.elem_type == TensorProto.FLOAT
    }
    floats |= {t.name for t in made.graph.initializer if t.data_type == TensorProto.FLOAT}
    sources = [t.name for t in [*made.graph.initializer, *made.graph.input]]
    outputs = {output.name for output in made.graph.output}
    nodes: list[onnx.NodeProto] = []
    _round_all(nodes, [name for name in sources if name in floats], low)
    for node in made.graph.node:
        node.input[:] = [f"{name}_rounded" if name in floats else name for name in node.input]
        nodes.append(node)
        _round_all(nodes, [name for name in node.output if name in floats], low)
    for name in outputs & floats:
        _rename(nodes, name, f"{name}_exact")
        _rename(nodes, f"{name}_rounded", name)
    del made.graph.node[:], made.graph.value_info[:]
    made.graph.node.extend(nodes)
    return made


def _round_all(nodes: list[onnx.NodeProto], names: list[str], low: int) -> None:
    for name in names:
        nodes.append(helper.make_node("Cast", [name], [f"{name}_low"], f"{name}_to_low", to=low))
        to_float = helper.make_node(
            "Cast", [f"{name}_low"], [f"{name}_rounded"], f"{name}_to_float", to=TensorProto.FLOAT
        )
        nodes.append(to_float)


def by_onnxruntime(
    model: onnx.ModelProto, feed: Feed, ops: Collection[str], **options: Any
) -> onnx.ModelProto:
    """``model`` through ONNX Runtime's ``quantize_static``: Q/DQ, symmetric, weights per channel, minmax."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        """One sample a call."""

        def __init__(self) -> None:
            count = len(next(iter(feed.values())))
            self._feeds: Iterator[Feed] = iter(
                [{name: array[i : i + 1] for name, array in feed.items()} for i in range(count)]
            )

        def get_next(self) -> Feed | None:
            """The next sample, or None."""
            return next(self._feeds, None)

    extra = {"ActivationSymmetric": True, "WeightSymmetric": True, "QuantizeBias": False, **options}
    extra["AddQDQPairToWeight"] = True
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "float.onnx", Path(folder) / "int8.onnx"
        onnx.save(model, source)
        logging.disable(logging.WARNING)
        try:
            quantize_static(
                source,
                target,
                Reader(),
                quant_format=QuantFormat.QDQ,
                op_types_to_quantize=list(ops),
                per_channel=True,
                activation_type=QuantType.QInt8,
                weight_type=QuantType.QInt8,
                extra_options=extra,
            )
        finally:
            logging.disable(logging.NOTSET)
        return onnx.load(target)


def dead(model: onnx.ModelProto, feed: Feed, output: str) -> onnx.ModelProto:
    """The INT8 model with a pair behind ``output`` whose scale, 10000, leaves nothing: all of it is 0."""
    return quantized(model, feed, also=[output], amax={output: 127e4})


def clipped(model: onnx.ModelProto, feed: Feed, factor: float = 0.01) -> onnx.ModelProto:
    """The INT8 model whose activations all have ``factor`` times the range that they need."""
    constants = {t.name for t in model.graph.initializer}
    found = {name: factor * bound for name, bound in ranges(model, feed).items() if name not in constants}
    return quantized(model, feed, amax=found)


def quantized_bodies(model: onnx.ModelProto, amax: Mapping[str, float] | float) -> onnx.ModelProto:
    """``model`` with Q/DQ on what MatMul reads in the bodies of its Loop, If and Scan nodes.

    ``amax`` is the range of activations there: one, or one by node and a default under ''.
    """
    made = onnx.ModelProto.FromString(model.SerializeToString())
    _quantize_bodies(made.graph.node, amax if isinstance(amax, Mapping) else {"": amax})
    return made


def _quantize_bodies(nodes: Any, amax: Mapping[str, float]) -> None:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                _quantize_bodies(attribute.g.node, amax)
                _quantize_body(attribute.g, amax)


def _quantize_body(graph: onnx.GraphProto, amax: Mapping[str, float]) -> None:
    holder = onnx.ModelProto(graph=graph)
    constants = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    writer, nodes = _Writer(holder, fp8=False), []
    for node in graph.node:
        if node.op_type == "MatMul":
            bound = amax.get(node.name, amax.get("", 1.0))
            for place, name in enumerate(list(node.input)):
                if name in constants:
                    node.input[place] = writer.weight(name, constants[name], 1, None)
                else:
                    node.input[place] = writer.activation(name, bound)
        nodes += [*writer.taken(), node]
    del holder.graph.node[:]
    holder.graph.node.extend(nodes)
    graph.CopyFrom(holder.graph)


def int8_share(model: onnx.ModelProto, bodies: bool = True) -> float:
    """Share of multiply-accumulates whose two inputs both come out of DequantizeLinear.

    A batch of one is counted; a layer in a body whose shapes are not known counts as its weights do, once.
    """
    found = [0.0, 0.0]
    _count(onnx.shape_inference.infer_shapes(_with_batch_of_one(model)).graph, found, {}, bodies)
    return found[1] / found[0]


def _with_batch_of_one(model: onnx.ModelProto) -> onnx.ModelProto:
    made = onnx.ModelProto.FromString(model.SerializeToString())
    for value in made.graph.input:
        value.type.tensor_type.shape.dim[0].dim_value = 1
    return made


def _count(graph: onnx.GraphProto, found: list[float], outer: Mapping[str, Any], bodies: bool) -> None:
    sizes = {t.name: tuple(t.dims) for t in graph.initializer}
    for info in [*graph.value_info, *graph.output, *graph.input]:
        sizes[info.name] = tuple(d.dim_value or 1 for d in info.type.tensor_type.shape.dim)
    sizes = {**outer, **sizes}
    makers = {name: node for node in graph.node for name in node.output}
    for node in graph.node:
        if node.op_type in WEIGHTED:
            shapes = [_size_of(name, makers, sizes) for name in node.input[:2]]
            work = _work(node, shapes[1], sizes.get(node.output[0], ()))
            pairs = [
                makers[n].op_type == "DequantizeLinear" if n in makers else False for n in node.input[:2]
            ]
            found[0] += work
            found[1] += work * all(pairs)
        for attribute in node.attribute:
            if bodies and attribute.type == onnx.AttributeProto.GRAPH:
                _count(attribute.g, found, sizes, bodies)


def _work(node: onnx.NodeProto, weight: tuple[int, ...], result: tuple[int, ...]) -> float:
    if len(weight) < 2:
        return 0.0
    if node.op_type == "Conv":
        return float(np.prod(result)) * float(np.prod(weight[1:]))
    transposed = any(a.name == "transB" and a.i for a in node.attribute)
    if len(result) < 2:
        return float(np.prod(weight[-2:]))
    return float(np.prod(result)) * weight[-1 if transposed else -2]


def _size_of(name: str, makers: Mapping[str, onnx.NodeProto], sizes: Mapping[str, Any]) -> Any:
    while name not in sizes and name in makers:
        name = makers[name].input[0]
    return sizes.get(name, (1, 1))
