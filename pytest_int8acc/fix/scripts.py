"""Makes the Python scripts of a fix, for ONNX Runtime's quantizer and for Polygraphy."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_int8acc.fix.files import Named
from pytest_int8acc.graph.formats import INT8


def ort_quantize(named: Named) -> str:
    """Return ``ort_quantize.py``, which quantizes the float model with ONNX Runtime according to the plan."""
    data = [
        f"MODEL = Path(__file__).resolve().parent / {named.model!r}",
        *("NODES_TO_EXCLUDE = [", *(f"    {name!r}," for name in named.high), "]"),
        "# Node: which of its inputs are quantized; all others stay float.",
        *_dict("INT8_INPUTS", named.int8),
        f"OP_TYPES = {list(named.op_types)!r}",
        "# Tensor: the scale that the plan gives it in place of a calibrated one.",
        *([f"# {named.untold}"] if named.untold else []),
        *_dict("SCALES", named.scales),
    ]
    return _ORT.replace("# DATA", "\n".join(data))


def postprocess(named: Named) -> str:
    """Return ``postprocess.py``, with which Polygraphy sets the layer precisions of a parsed network."""
    ranges = {tensor: scale * INT8.levels for tensor, scale in named.scales.items()}
    data = [
        "# ONNX node: the precision that its layers run in.",
        *_dict("PRECISIONS", named.high),
        "# Tensor: its greatest absolute value in INT8.",
        *([f"# {named.untold}"] if named.untold else []),
        *_dict("RANGES", ranges),
    ]
    return _POSTPROCESS.replace("# DATA", "\n".join(data))


def _dict(name: str, items: Mapping[str, object]) -> list[str]:
    """Return lines of Python that assign ``items`` to the variable ``name``."""
    return [f"{name} = {{", *(f"    {key!r}: {value!r}," for key, value in items.items()), "}"]


_ORT = '''\
"""Quantizes the float model with ONNX Runtime, in the form that TensorRT takes, the plan's layers left out.

    pip install onnx onnxruntime
    python ort_quantize.py CALIBRATION.npz

CALIBRATION.npz holds one array per model input, samples first. Written by pytest-int8acc.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import onnx
from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantType, quantize_static

# DATA

METHODS = {
    "minmax": CalibrationMethod.MinMax,
    "entropy": CalibrationMethod.Entropy,
    "percentile": CalibrationMethod.Percentile,
}
# Rows per run where the model leaves them open.
BATCH = 32
# A model of more bytes than this keeps its weights in a second file.
INLINE_BYTES = 1 << 30
QDQ = ("QuantizeLinear", "DequantizeLinear")


class Samples(CalibrationDataReader):
    """Hands out the arrays of an .npz run by run."""

    def __init__(self, model, arrays):
        constants = {tensor.name for tensor in model.graph.initializer}
        inputs = [value for value in model.graph.input if value.name not in constants]
        missing = [value.name for value in inputs if value.name not in arrays]
        if missing:
            sys.exit(f"no array for the model's input {missing[0]!r}; found {', '.join(arrays) or 'none'}")
        cuts = [list(cut(value, arrays[value.name])) for value in inputs]
        runs = max(len(parts) for parts in cuts)
        names = [value.name for value in inputs]
        self.feeds = iter(
            [dict(zip(names, (parts[i % len(parts)] for parts in cuts))) for i in range(runs)]
        )

    def get_next(self):
        return next(self.feeds, None)


def cut(value, array):
    """The runs in a stored array of one input; whole runs only where the model fixes their size."""
    dims = value.type.tensor_type.shape.dim
    if array.ndim == len(dims) + 1:
        yield from array
    elif not dims:
        yield array
    elif dims[0].HasField("dim_value"):
        rows = dims[0].dim_value
        for start in range(0, max(len(array) - rows, 0) + 1, max(rows, 1)):
            yield array[start : start + rows]
    else:
        for start in range(0, len(array), BATCH):
            yield array[start : start + BATCH]


def keep_planned(model):
    """Takes Q/DQ off every input that the plan leaves float; returns the planned inputs that have none.

    The quantizer gives all readers of a tensor the dequantized values, layers left out included.
    """
    graph = model.graph
    made_by = {name: node for node in graph.node for name in node.output}
    outputs = {value.name for value in graph.output}
    for name in outputs:
        dequantize = made_by.get(name)
        if dequantize is not None and dequantize.op_type == "DequantizeLinear":
            quantize = made_by.get(dequantize.input[0])
            if quantize is not None:
                swap(graph, name, quantize.input[0])
    made_by = {name: node for node in graph.node for name in node.output}
    missing = []
    for node in graph.node:
        if node.op_type in QDQ:
            continue
        for index, name in enumerate(node.input):
            dequantize = made_by.get(name)
            planned = index in INT8_INPUTS.get(node.name, ())
            if dequantize is None or dequantize.op_type != "DequantizeLinear":
                missing += [f"{node.name} input {index}"] if planned else []
            elif not planned:
                quantize = made_by.get(dequantize.input[0])
                if quantize is not None and quantize.op_type == "QuantizeLinear":
                    node.input[index] = quantize.input[0]
    drop_unread(graph, outputs)
    return missing


def swap(graph, a, b):
    """Exchanges the names of two tensors."""
    other = {a: b, b: a}
    for node in graph.node:
        for names in (node.input, node.output):
            for i, name in enumerate(names):
                names[i] = other.get(name, name)


def drop_unread(graph, outputs):
    """Removes Q/DQ that nothing reads any more, and their constants."""
    while True:
        read = {name for node in graph.node for name in node.input} | outputs
        dead = [node for node in graph.node if node.op_type in QDQ and not set(node.output) & read]
        if not dead:
            break
        for node in dead:
            graph.node.remove(node)
    inner = {name for node in graph.node for name in captured(node)}
    for tensor in [t for t in graph.initializer if t.name not in read | inner]:
        graph.initializer.remove(tensor)
    del graph.value_info[:]


def captured(node):
    """Names that the graphs inside a node read."""
    for attribute in node.attribute:
        for graph in [attribute.g, *attribute.graphs]:
            yield from (value.name for value in graph.output)
            for inner in graph.node:
                yield from inner.input
                yield from captured(inner)


def main():
    parser = argparse.ArgumentParser(description="Quantize with ONNX Runtime, the plan's layers left out.")
    parser.add_argument("calibration", type=Path, help="an .npz: one array per model input, samples first")
    parser.add_argument("output", type=Path, nargs="?", default=Path("quantized.onnx"))
    parser.add_argument("--model", type=Path, default=MODEL, help="the float model")
    parser.add_argument("--method", choices=METHODS, default="minmax")
    given = parser.parse_args()
    if not INT8_INPUTS:
        sys.exit("the plan leaves nothing in INT8: there is nothing to quantize")
    model = onnx.load(given.model)
    nodes = {node.name for node in model.graph.node}
    unknown = [name for name in (*NODES_TO_EXCLUDE, *INT8_INPUTS) if name not in nodes]
    if unknown:
        sys.exit(f"{given.model}: no node {unknown[0]!r}; the plan is for another export of the model")
    with np.load(given.calibration, allow_pickle=False) as arrays:
        samples = Samples(model, dict(arrays))
    large = sum(tensor.ByteSize() for tensor in model.graph.initializer) > INLINE_BYTES
    overrides = {
        tensor: [{"scale": np.array(scale, np.float32), "zero_point": np.array(0, np.int8)}]
        for tensor, scale in SCALES.items()
    }
    quantize_static(
        given.model,
        given.output,
        samples,
        calibrate_method=METHODS[given.method],
        activation_type=QuantType.QInt8,
        weight_type=QuantType.QInt8,
        per_channel=True,
        op_types_to_quantize=OP_TYPES,
        nodes_to_quantize=list(INT8_INPUTS),
        nodes_to_exclude=NODES_TO_EXCLUDE,
        use_external_data_format=large,
        # TensorRT takes symmetric scales and float biases, and wants no Q/DQ behind a layer.
        extra_options={
            "ActivationSymmetric": True,
            "WeightSymmetric": True,
            "QuantizeBias": False,
            "AddQDQPairToWeight": True,
            "OpTypesToExcludeOutputQuantization": OP_TYPES,
            "QDQDisableWeightAdjustForInt32Bias": True,
            "TensorQuantOverrides": overrides,
        },
    )
    quantized = onnx.load(given.output)
    for missing in keep_planned(quantized):
        print(f"not quantized, though the plan has it in INT8: {missing}", file=sys.stderr)
    if large:
        data = given.output.name + ".data"
        given.output.with_name(data).unlink(missing_ok=True)
        onnx.save(quantized, given.output, save_as_external_data=True, location=data)
    else:
        onnx.save(quantized, given.output)
    print(f"written: {given.output}")


if __name__ == "__main__":
    main()
'''

_POSTPROCESS = '''\
"""Holds layers out of INT8 where TensorRT itself chooses what to quantize: implicit quantization, below 11.

    polygraphy convert MODEL.onnx --convert-to trt -o MODEL.engine --int8 --fp16 \\\\
        --calibration-cache CACHE --precision-constraints obey --trt-network-postprocess-script postprocess.py

Layers are found by the ONNX node that they come from. Written by pytest-int8acc.
"""

import sys

# DATA

#: Layers without a computation to hold.
SKIPPED = ("CONSTANT", "SHAPE")


def postprocess(network):
    """Sets the precision and the output types of the layers of each node; Polygraphy calls this."""
    layers = [network.get_layer(i) for i in range(network.num_layers)]
    if layers and not hasattr(layers[0], "precision"):
        raise RuntimeError(
            "TensorRT 11 and TensorRT-RTX have no layer precisions: build fixed.onnx, which needs none"
        )
    import tensorrt as trt

    strongly_typed = getattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
    if strongly_typed is not None and network.get_flag(strongly_typed):
        raise RuntimeError("a strongly typed network takes no layer precisions: build fixed.onnx instead")
    types = {"fp16": trt.float16, "fp32": trt.float32}
    held, makers = set(), {}
    for layer in layers:
        node = node_of(layer)
        if node is None or layer.type.name in SKIPPED:
            makers.update({layer.get_output(i).name: (layer, i) for i in range(layer.num_outputs)})
            continue
        floats = [i for i in range(layer.num_outputs) if layer.get_output(i).dtype in types.values()]
        if not floats:
            continue
        layer.precision = types[PRECISIONS[node]]
        for i in floats:
            layer.set_output_type(i, types[PRECISIONS[node]])
        held.add(node)
        feed(layer, makers, types[PRECISIONS[node]], types.values())
    set_ranges(network, layers)
    tell(held)
    return network


def feed(layer, makers, wanted, floats):
    """Has a held layer fed in its own type: an INT8 layer before it would still give its result in INT8."""
    for tensor in (layer.get_input(i) for i in range(layer.num_inputs)):
        if tensor is None or tensor.name not in makers or tensor.dtype not in floats:
            continue
        maker, i = makers[tensor.name]
        if maker.type.name not in SKIPPED:
            maker.set_output_type(i, wanted)


def node_of(layer):
    """The node of PRECISIONS that a layer comes from, by its metadata, else by its name."""
    metadata = getattr(layer, "metadata", "") or ""
    for node in PRECISIONS:
        if f"[ONNX Layer: {node}]" in metadata:
            return node
    return layer.name if layer.name in PRECISIONS else None


def set_ranges(network, layers):
    """Gives tensors the plan's ranges, in place of those of the calibration cache."""
    tensors = [network.get_input(i) for i in range(network.num_inputs)]
    tensors += [layer.get_output(i) for layer in layers for i in range(layer.num_outputs)]
    for tensor in tensors:
        if tensor.name in RANGES:
            tensor.dynamic_range = (-RANGES[tensor.name], RANGES[tensor.name])


def tell(held):
    """Names the nodes that have no layer; raises where none has one."""
    lost = [node for node in PRECISIONS if node not in held]
    if lost and not held:
        raise RuntimeError(f"no layer comes from any node of the plan, such as {lost[0]!r}: wrong model?")
    for node in lost:
        print(f"postprocess.py: no layer of node {node!r} to hold", file=sys.stderr)
'''
