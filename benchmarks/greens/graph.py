"""Writes small ONNX models node by node, and runs models in plain ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Array = NDArray[np.generic]
Feed = Mapping[str, Array]


class Graph:
    """Collects inputs, constants and nodes of one model. Every method that adds a tensor returns its name."""

    def __init__(self, opset: int = 17, ir_version: int = 8, seed: int = 0, prefix: str = "") -> None:
        """Begin an empty graph; ``seed`` is that of random weights, ``prefix`` that of names it makes up."""
        self.opset, self.ir_version, self.prefix = opset, ir_version, prefix
        self.rng = np.random.default_rng(seed)
        self._inputs: list[onnx.ValueInfoProto] = []
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []

    def input(self, name: str, *shape: int | str, dtype: int = TensorProto.FLOAT) -> str:
        """Add an input with a free batch dimension in front of ``shape``."""
        self._inputs.append(helper.make_tensor_value_info(name, dtype, ["batch", *shape]))
        return name

    def const(self, value: Array | float, name: str = "") -> str:
        """Add an initializer; Python numbers and float64 become float32."""
        array = np.asarray(value)
        if array.dtype == np.float64:
            array = array.astype(np.float32)
        name = name or f"{self.prefix}const{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(np.array(array, order="C"), name))
        return name

    def ints(self, *values: int) -> str:
        """Add a vector of int64."""
        return self.const(np.array(values, np.int64))

    def node(self, op: str, *inputs: str, out: str | Sequence[str] = "", **attributes: object) -> str:
        """Add a node, named after its first output. Returns the name of that output."""
        outputs = [out] if isinstance(out, str) else list(out)
        outputs[0] = outputs[0] or f"{self.prefix}{op.lower()}{len(self._nodes)}"
        name = f"{outputs[0]}/{op}"
        self._nodes.append(helper.make_node(op, inputs, outputs, name, **attributes))
        return outputs[0]

    def random(self, *shape: int, fan_in: int) -> str:
        """Add weights from a normal distribution that keep the size of activations behind a ReLU."""
        return self.const(self.rng.standard_normal(shape) * (2 / fan_in) ** 0.5)

    def conv(
        self,
        x: str,
        cin: int,
        cout: int,
        kernel: int = 3,
        *,
        stride: int = 1,
        bias: bool = True,
        rank: int = 2,
        out: str = "",
    ) -> str:
        """Convolution with random weights; ``rank`` 1 for sequences [N, C, L]."""
        weight = self.random(cout, cin, *[kernel] * rank, fan_in=cin * kernel**rank)
        rest = [self.const(0.1 * self.rng.standard_normal(cout))] if bias else []
        pads = [(kernel - 1) // 2] * rank + [kernel // 2] * rank
        return self.node("Conv", x, weight, *rest, out=out, strides=[stride] * rank, pads=pads)

    def relu(self, x: str) -> str:
        """ReLU."""
        return self.node("Relu", x)

    def linear(self, x: str, cin: int, cout: int, bias: bool = True, out: str = "") -> str:
        """MatMul over the last dimension with random weights, and a bias."""
        if not bias:
            return self.node("MatMul", x, self.random(cin, cout, fan_in=cin), out=out)
        y = self.node("MatMul", x, self.random(cin, cout, fan_in=cin))
        return self.node("Add", y, self.const(0.1 * self.rng.standard_normal(cout)), out=out)

    def reshape(self, x: str, *shape: int, out: str = "") -> str:
        """Reshape; 0 keeps a dimension, -1 takes what is left."""
        return self.node("Reshape", x, self.ints(*shape), out=out)

    def values(self, tensor: str, feed: Feed) -> Array:
        """What ``tensor`` holds for ``feed``, in the graph as it is so far."""
        return run(self.model(tensor), feed)[tensor]

    def fit(self, x: str, feed: Feed, targets: Array, axis: int = -1) -> tuple[Array, Array]:
        """Weights [features, targets] and bias of the ridge regression from ``x`` to ``targets``.

        ``axis`` is the axis of features in ``x``. ``targets`` has the shape of ``x`` with another size there.
        Rows in which a target is NaN are left out.
        """
        features = np.moveaxis(self.values(x, feed), axis, -1).astype(np.float64)
        wanted = np.moveaxis(np.asarray(targets, np.float64), axis, -1)
        return ridge(features.reshape(-1, features.shape[-1]), wanted.reshape(-1, wanted.shape[-1]))

    def model(self, *outputs: str) -> onnx.ModelProto:
        """The model with these tensors as its outputs, shapes inferred."""
        infos = [onnx.ValueInfoProto(name=name) for name in outputs]
        graph = helper.make_graph(self._nodes, "net", self._inputs, infos, self._constants)
        opsets = [helper.make_opsetid("", self.opset)]
        proto = helper.make_model(graph, opset_imports=opsets, ir_version=self.ir_version)
        if self.ir_version < 4:
            known = [helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in self._constants]
            proto.graph.input.extend(known)
        inferred = onnx.shape_inference.infer_shapes(proto)
        del inferred.graph.value_info[:]
        return self._with_shapes(inferred)

    def _with_shapes(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """``model`` with the shapes of outputs that inference left open, behind a Loop, by a run on zeros."""
        if all(output.type.tensor_type.HasField("shape") for output in model.graph.output):
            return model
        feed = {}
        for value in self._inputs:
            kind = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
            sizes = [dim.dim_value or 2 for dim in value.type.tensor_type.shape.dim]
            feed[value.name] = np.zeros(sizes, kind)
        found = run(model, feed)
        for output in model.graph.output:
            kind = helper.np_dtype_to_tensor_dtype(found[output.name].dtype)
            shape = ["batch", *found[output.name].shape[1:]]
            output.CopyFrom(helper.make_tensor_value_info(output.name, kind, shape))
        return model

    def body(self, inputs: Sequence[str], outputs: Sequence[str]) -> onnx.GraphProto:
        """The nodes so far as the body of a Loop, If or Scan.

        Names of inputs and outputs may carry an element type, 'step:7', and are scalars then.
        """
        infos = [[_info(name) for name in names] for names in (inputs, outputs)]
        return helper.make_graph(self._nodes, "body", infos[0], infos[1], self._constants)


def _info(name: str) -> onnx.ValueInfoProto:
    name, _, kind = name.partition(":")
    return helper.make_tensor_value_info(name, int(kind or TensorProto.FLOAT), [] if kind else None)


def ridge(features: Array, targets: Array, strength: float = 1e-4) -> tuple[Array, Array]:
    """Weights [features, targets] and bias of a least squares fit; each column fits its rows without NaN."""
    x = np.concatenate([features, np.ones((len(features), 1))], 1)
    if not np.isnan(targets).any():
        solution = _solved(x, targets, strength)
    else:
        columns = [_solved(x[~np.isnan(y)], y[~np.isnan(y), None], strength) for y in targets.T]
        solution = np.concatenate(columns, 1)
    return solution[:-1].astype(np.float32), solution[-1].astype(np.float32)


def _solved(x: Array, targets: Array, strength: float) -> Array:
    square = x.T @ x
    square += strength * np.trace(square) / len(square) * np.eye(len(square))
    return np.linalg.solve(square, x.T @ targets)


def run(model: onnx.ModelProto, feed: Feed) -> dict[str, Array]:
    """All outputs of a model by plain ONNX Runtime, which fuses no Q/DQ and changes no bit of the graph."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feed)), strict=True))
