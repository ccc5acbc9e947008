"""Q/DQ models made with plain onnx, as another tool's would be, with faults in them if wanted."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnxruntime import quantization

WEIGHTED = ("Conv", "Gemm", "MatMul")
Array = NDArray[Any]


def quantized(
    proto: onnx.ModelProto,
    ranges: Mapping[str, float],
    *,
    weights: Mapping[str, Mapping[str, Any]] | None = None,
    activations: Mapping[str, Mapping[str, Any]] | None = None,
    leave: Collection[str] = (),
    also: Collection[str] = (),
    unread: Collection[str] = (),
    biases: Collection[str] = (),
    added: Mapping[str, float] | None = None,
    fp8: bool = False,
    half: bool = False,
    renamed: Mapping[str, str] | None = None,
) -> onnx.ModelProto:
    """Pairs before weighted nodes but those to ``leave``, and before nodes that are named in ``also``.

    Activations are symmetric, with a scale for their range; weights have a scale for each output channel.

    ``weights``: faults by weight. ``times``: its scales are so many times too large; ``codes``: False leaves
    the codes as they were for the right scales; ``axis``: scales along another axis; ``one``: one scale;
    ``lowered``: all codes are so many too low; ``strayed``: each is up to so many too high or too low;
    ``reversed``: the slices along this axis stand in reverse order, their scales too.
    ``activations``: by tensor, ``scale``, ``zero`` (zero point) and ``type`` in place of what is right.
    ``unread``: tensors with a pair that no node reads.
    ``biases``: biases in INT8 with one scale. ``added``: what a tool has added to all elements of a bias.
    ``fp8``: in FP8 by TensorRT's operators, as ModelOpt 0.47 exports from PyTorch: the domain ``trt``, one
    scale for each weight, no zero point at DequantizeLinear.
    ``half``: all that is FP32 becomes FP16, inputs and outputs too. ``renamed``: other names of tensors.
    """
    made = onnx.ModelProto.FromString(proto.SerializeToString())
    constants = {t.name: numpy_helper.to_array(t) for t in made.graph.initializer}
    nodes: list[onnx.NodeProto] = []
    for node in list(made.graph.node):
        read = list(node.input[:2]) if node.op_type in WEIGHTED and node.name not in leave else []
        for place, tensor in enumerate(list(node.input[:1]) if node.name in also else read):
            if tensor not in constants and tensor not in ranges:
                continue
            if tensor in constants:
                fault = (weights or {}).get(tensor, {})
                codes, scale, zero, axis = _weight(node, constants[tensor], fault)
                start = _constant(made, f"{node.name}/{place}/codes", codes)
            else:
                scale, zero = _activation(ranges[tensor], (activations or {}).get(tensor, {}))
                start, axis = f"{node.name}/{place}/quantized", 0
            names = [
                _constant(made, f"{node.name}/{place}/{k}", v) for k, v in (("scale", scale), ("zero", zero))
            ]
            if tensor not in constants:
                nodes.append(helper.make_node("QuantizeLinear", [tensor, *names], [start], start))
            result = f"{node.name}/{place}/dequantized"
            more = {"axis": axis} if scale.ndim else {}
            nodes.append(helper.make_node("DequantizeLinear", [start, *names], [result], result, **more))
            node.input[place] = result
        _quantize_biases(made, nodes, node, biases)
        nodes.append(node)
    _add(made, added or {})
    for tensor in unread:
        names = [
            _constant(made, f"{tensor}/{k}", v) for k, v in (("scale", np.float32(0.1)), ("zero", np.int8(0)))
        ]
        nodes.append(
            helper.make_node("QuantizeLinear", [tensor, *names], [f"{tensor}/quantized"], f"{tensor}/q")
        )
        nodes.append(
            helper.make_node("DequantizeLinear", [f"{tensor}/quantized", *names], [f"{tensor}/unread"])
        )
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del made.graph.node[:]
    made.graph.node.extend(copies)
    if fp8:
        _in_fp8(made)
    if half:
        _halved(made)
    _rename(made, renamed or {})
    return made


def _rename(model: onnx.ModelProto, renamed: Mapping[str, str]) -> None:
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = [renamed.get(name, name) for name in names]


def _add(model: onnx.ModelProto, added: Mapping[str, float]) -> None:
    for tensor in model.graph.initializer:
        if tensor.name in added:
            changed = numpy_helper.to_array(tensor) + np.float32(added[tensor.name])
            tensor.CopyFrom(numpy_helper.from_array(changed, tensor.name))


def _quantize_biases(
    model: onnx.ModelProto, nodes: list[onnx.NodeProto], node: onnx.NodeProto, biases: Collection[str]
) -> None:
    constants = {t.name: t for t in model.graph.initializer}
    for place, tensor in enumerate(node.input):
        if tensor in biases:
            bias = numpy_helper.to_array(constants[tensor])
            scale = np.float32(np.abs(bias).max() / 127)
            parts = {"codes": np.rint(bias / scale).astype(np.int8), "scale": scale, "zero": np.int8(0)}
            names = [_constant(model, f"{node.name}/bias/{k}", v) for k, v in parts.items()]
            node.input[place] = f"{node.name}/bias/dequantized"
            nodes.append(helper.make_node("DequantizeLinear", names, [node.input[place]], node.input[place]))


def _in_fp8(model: onnx.ModelProto) -> None:
    constants = {t.name: t for t in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type not in ("QuantizeLinear", "DequantizeLinear"):
            continue
        scale = constants[node.input[1]]
        if node.op_type == "DequantizeLinear":
            if node.input[0] in constants:
                codes = constants[node.input[0]]
                scales = numpy_helper.to_array(scale).reshape([-1, *[1] * (len(codes.dims) - 1)])
                if [a.i for a in node.attribute] == [1]:
                    scales = scales.reshape(1, -1)
                weight = numpy_helper.to_array(codes) * scales
                step = np.float32(np.abs(weight).max() / 448)
                as_fp8 = (weight / step).astype(ml_dtypes.float8_e4m3fn)
                codes.CopyFrom(
                    helper.make_tensor(
                        codes.name, TensorProto.FLOAT8E4M3FN, weight.shape, as_fp8.tobytes(), True
                    )
                )
                scale.CopyFrom(numpy_helper.from_array(np.asarray(step), scale.name))
            else:
                reach = numpy_helper.to_array(scale) * np.float32(127 / 448)
                scale.CopyFrom(numpy_helper.from_array(np.asarray(reach, np.float32), scale.name))
            del node.input[2:]
        else:
            zero = constants[node.input[2]]
            zero.CopyFrom(helper.make_tensor(zero.name, TensorProto.FLOAT8E4M3FN, [1], [0.0]))
        node.domain = "trt"
        del node.attribute[:]
    model.opset_import.append(helper.make_opsetid("trt", 1))
    _at_least(model, 19)


def _halved(model: onnx.ModelProto) -> None:
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            array = numpy_helper.to_array(tensor).astype(np.float16)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    for value in (*model.graph.input, *model.graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    del model.graph.value_info[:]
    _at_least(model, 19)


def _at_least(model: onnx.ModelProto, opset: int) -> None:
    model.opset_import[0].version = max(opset, model.opset_import[0].version)
    model.ir_version = max(9, model.ir_version)


def _constant(model: onnx.ModelProto, name: str, array: Array) -> str:
    model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    return name


def _activation(reach: float, fault: Mapping[str, Any]) -> tuple[Array, Array]:
    scale = np.array(fault.get("scale", reach / 127), np.float32)
    return scale, np.array(fault.get("zero", 0), fault.get("type", "int8"))


def _weight(node: onnx.NodeProto, array: Array, fault: Mapping[str, Any]) -> tuple[Array, Array, Array, int]:
    transposed = any(a.name == "transB" and a.i for a in node.attribute)
    axis = fault.get("axis", 0 if transposed or node.op_type == "Conv" else array.ndim - 1)
    others = tuple(i for i in range(array.ndim) if i != axis)
    right = np.abs(array).max(others, keepdims=True) / 127
    if fault.get("one"):
        right = np.abs(array).max(keepdims=True) / 127
    wrong = right * fault.get("times", 1.0)
    codes = np.clip(np.rint(array / (wrong if fault.get("codes", True) else right)), -127, 127).astype(
        np.int8
    )
    strayed = fault.get("strayed", 0)
    moved = np.random.default_rng(0).integers(-strayed, strayed + 1, codes.shape) - fault.get("lowered", 0)
    codes = np.clip(codes + moved, -128, 127).astype(np.int8)
    if "reversed" in fault:
        codes = np.flip(codes, fault["reversed"])
        wrong = np.flip(wrong, fault["reversed"])
    scale = wrong.astype(np.float32).reshape(() if fault.get("one") else -1)
    return codes, scale, np.zeros(scale.shape, np.int8), axis


def quantize_static(folder: Path, feed: Mapping[str, Array], options: Mapping[str, Any]) -> None:
    """Write what ONNX Runtime's quantizer makes of ``model.onnx``, as its documentation calls it."""
    model = onnx.load(folder / "model.onnx")
    size = model.graph.input[0].type.tensor_type.shape.dim[0].dim_value or 4
    count = max(len(array) for array in feed.values() if array.ndim)

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            starts = range(0, count - size + 1, size)
            self.feeds = iter(
                [{n: a[i : i + size] if a.ndim else a for n, a in feed.items()} for i in starts]
            )

        def get_next(self) -> dict[str, Array] | None:
            return next(self.feeds, None)

    logging.disable(logging.WARNING)
    try:
        quantization.quantize_static(folder / "model.onnx", folder / "int8.onnx", Reader(), **options)
    finally:
        logging.disable(logging.NOTSET)
