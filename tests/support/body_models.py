"""Small networks whose layers lie in bodies of If, Loop and Scan, and their Q/DQ models, written by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WIDTH, STEPS = 16, 3
#: Network to the names of the nodes around its layers 'even' and 'odd'.
NETWORKS = {"loop": "loop/", "if": "choice/", "scan": "scan/", "if-in-loop": "loop/choice/"}
#: Ranges of activations that fit.
FIT = {"first": 3.0, "even": 9.0, "odd": 1.0, "last": 6.0}


def samples(network: str, count: int = 24) -> np.ndarray:
    """Inputs of a network: [count, WIDTH], or [count, STEPS, WIDTH] of the Scan."""
    sizes = (count, STEPS, WIDTH) if network == "scan" else (count, WIDTH)
    return np.random.default_rng(1).uniform(-3, 3, sizes).astype(np.float32)


@dataclass
class Models:
    """Writes a network in float, or with Q/DQ before all layers."""

    network: str
    opset: int = 17
    outside: bool = False
    """Weights of bodies lie in the main graph; with Q/DQ they are floats, and scales are Constant nodes, as
    after training with quantization."""
    ranges: Mapping[str, float] = field(default_factory=dict)
    """Layer to the range of its activation; a layer without one has no Q/DQ."""
    weights_times: Mapping[str, float] = field(default_factory=dict)
    """Layer to how many times too wide the scale of its weight is."""
    strange: str = ""
    """Layer whose DequantizeLinear has another scale than its QuantizeLinear."""
    noisy: bool = False
    """One channel that ``odd`` reads is 200 times as large as all others, and its weights are smaller."""
    chosen: bool = False
    """The layers of the Scan lie in the branches of an If."""
    grows: bool = False
    """The Loop collects what it gives to ``odd``, which reads one step more each time."""
    alike: bool = False
    """Both branches of the If name their nodes and tensors alike."""
    _main: list[onnx.TensorProto] = field(default_factory=list)

    def model(self) -> onnx.ModelProto:
        """x through the layer ``first``, a body with two layers, and ``last``, to y."""
        nodes = [*self._layer("first", "x", "h", "", self._main), *self._holder()]
        nodes += self._layer("last", "z", "y", "", self._main)
        constants = {
            "steps": np.array(STEPS),
            "on": np.array(True),
            "start": np.zeros((1, WIDTH), np.float32),
        }
        self._main += [numpy_helper.from_array(array, name) for name, array in constants.items()]
        sizes = ["n", STEPS, WIDTH] if self.network == "scan" else ["n", WIDTH]
        graph = helper.make_graph(nodes, "main", [_info("x", sizes)], [_info("y", sizes)], self._main)
        opset = helper.make_opsetid("", self.opset)
        model = helper.make_model(graph, opset_imports=[opset], ir_version=8)
        onnx.checker.check_model(model)
        return model

    def _holder(self) -> list[onnx.NodeProto]:
        if self.network == "if":
            return [self._if("h", "z")]
        if self.network == "scan":
            nodes, tensors = ([self._if("b", "out")], []) if self.chosen else self._layers("b", "")
            nodes.append(helper.make_node("Add", ["out", "s"], ["next"]))
            nodes.append(helper.make_node("Identity", ["next"], ["shown"]))
            body = helper.make_graph(nodes, "body", [_info("s"), _info("b")], [_info("next"), _info("shown")])
            body.initializer.extend(tensors)
            axes = {"scan_input_axes": [1], "scan_output_axes": [1], "num_scan_inputs": 1}
            first = helper.make_node("Gather", ["h", "zero"], ["h0"], axis=1)
            zero = helper.make_node("Constant", [], ["zero"], value_int=0)
            begin = helper.make_node("Mul", ["h0", "start"], ["begin"])
            scan = helper.make_node("Scan", ["begin", "h"], ["end", "z"], name="scan", body=body, **axes)
            return [zero, first, begin, scan]
        tensors: list[onnx.TensorProto] = []
        if self.network == "loop":
            nodes, tensors = self._layers("b", "")
        else:
            nodes = [self._if("b", "out")]
        if self.grows:
            return self._growing(nodes, tensors)
        nodes.append(helper.make_node("Identity", ["go"], ["still"]))
        taken = [helper.make_tensor_value_info("step", TensorProto.INT64, [])]
        taken += [helper.make_tensor_value_info("go", TensorProto.BOOL, []), _info("b")]
        given = [helper.make_tensor_value_info("still", TensorProto.BOOL, []), _info("out")]
        body = helper.make_graph(nodes, "body", taken, given, tensors)
        return [helper.make_node("Loop", ["steps", "on", "h"], ["z"], name="loop", body=body)]

    def _growing(self, nodes: list[onnx.NodeProto], tensors: list[onnx.TensorProto]) -> list[onnx.NodeProto]:
        """The Loop with these nodes, which read all steps so far in place of ``bent``."""
        for node in nodes:
            node.input[:] = ["grown" if name == "bent" else name for name in node.input]
            node.output[:] = ["each" if name == "out" else name for name in node.output]
        place = 1 + next(i for i, node in enumerate(nodes) if "bent" in node.output)
        more = [helper.make_node("Unsqueeze", ["bent", "one"], ["step_of"])]
        more.append(helper.make_node("Concat", ["known", "step_of"], ["grown"], axis=1))
        nodes[place:place] = more
        nodes.append(helper.make_node("ReduceMean", ["each"], ["out"], axes=[1], keepdims=0))
        nodes.append(helper.make_node("Identity", ["go"], ["still"]))
        taken = [helper.make_tensor_value_info("step", TensorProto.INT64, [])]
        taken += [helper.make_tensor_value_info("go", TensorProto.BOOL, []), _info("b"), _info("known")]
        given = [helper.make_tensor_value_info("still", TensorProto.BOOL, []), _info("out"), _info("grown")]
        body = helper.make_graph(nodes, "body", taken, given, tensors)
        self._main.append(numpy_helper.from_array(np.array([1]), "one"))
        first = helper.make_node("Unsqueeze", ["h", "one"], ["row"])
        begin = helper.make_node("Tanh", ["row"], ["begin"])
        loop = helper.make_node("Loop", ["steps", "on", "h", "begin"], ["z", "all"], name="loop", body=body)
        return [first, begin, loop]

    def _if(self, read: str, made: str) -> onnx.NodeProto:
        branches = {}
        for label in ("then", "else"):
            end = "" if self.alike else f"_{label}"
            nodes, tensors = self._layers(read, end)
            graph = helper.make_graph(nodes, label, [], [_info(f"out{end}")], tensors)
            branches[f"{label}_branch"] = graph
        return helper.make_node("If", ["on"], [made], name="choice", **branches)

    def _layers(self, read: str, end: str) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
        """``read`` through ``even`` and ``odd`` to ``out``; names end with ``end``."""
        tensors: list[onnx.TensorProto] = []
        place = self._main if self.outside else tensors
        nodes = self._layer("even", read, f"mid{end}", end, place)
        nodes.append(helper.make_node("Tanh", [f"mid{end}"], [f"bent{end}"]))
        if self.noisy:
            place.append(numpy_helper.from_array(_spread(), f"spread{end}"))
            nodes.append(helper.make_node("Mul", [f"bent{end}", f"spread{end}"], [f"wide{end}"]))
        read = f"wide{end}" if self.noisy else f"bent{end}"
        nodes += self._layer("odd", read, f"out{end}", end, place)
        return nodes, tensors

    def _layer(
        self, layer: str, read: str, made: str, end: str, place: list[onnx.TensorProto]
    ) -> list[onnx.NodeProto]:
        """A MatMul called ``layer`` and ``end``, with its Q/DQ; its constants go to ``place``."""
        name, nodes = f"{layer}{end}", list[onnx.NodeProto]()
        weight = _weight(layer)
        if self.noisy and layer == "odd":
            weight /= _spread()[:, None]
        if layer not in self.ranges:
            place.append(numpy_helper.from_array(weight, f"{name}_w"))
            return [helper.make_node("MatMul", [read, f"{name}_w"], [made], name=name)]
        amax = float(np.abs(weight).max()) * self.weights_times.get(layer, 1.0)
        ranges = {"in": self.ranges[layer], "w": amax}
        for what, amax in ranges.items():
            scales = {"scale": np.array(amax / 127, np.float32), "zero": np.array(0, np.int8)}
            if layer == self.strange and what == "in":
                scales["other"] = np.array(amax / 126, np.float32)
            for kind, array in scales.items():
                tensor = numpy_helper.from_array(array, f"{name}_{what}_{kind}")
                if self.outside:
                    nodes.append(helper.make_node("Constant", [], [tensor.name], value=tensor))
                else:
                    place.append(tensor)
        given = {"in": [f"{name}_in_scale", f"{name}_in_zero"], "w": [f"{name}_w_scale", f"{name}_w_zero"]}
        back = [f"{name}_in_other", f"{name}_in_zero"] if layer == self.strange else given["in"]
        nodes.append(helper.make_node("QuantizeLinear", [read, *given["in"]], [f"{name}_q"]))
        nodes.append(
            helper.make_node("DequantizeLinear", [f"{name}_q", *back], [f"{name}_dq"], name=f"{name}_DQ")
        )
        if self.outside:
            place.append(numpy_helper.from_array(weight, f"{name}_w"))
            nodes.append(helper.make_node("QuantizeLinear", [f"{name}_w", *given["w"]], [f"{name}_wq"]))
        else:
            codes = np.clip(np.rint(weight / np.float32(ranges["w"] / 127)), -127, 127).astype(np.int8)
            place.append(numpy_helper.from_array(codes, f"{name}_wq"))
        nodes.append(helper.make_node("DequantizeLinear", [f"{name}_wq", *given["w"]], [f"{name}_wdq"]))
        return [*nodes, helper.make_node("MatMul", [f"{name}_dq", f"{name}_wdq"], [made], name=name)]


def _weight(layer: str) -> np.ndarray:
    rng = np.random.default_rng(list(FIT).index(layer))
    return rng.normal(0, 0.35, (WIDTH, WIDTH)).astype(np.float32)


def _spread() -> np.ndarray:
    factors = np.ones(WIDTH, np.float32)
    factors[3] = 200
    return factors


def _info(name: str, sizes: Sequence[Any] | None = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, sizes)


def write(folder: Path, network: str, wrong: Mapping[str, float] | None = None, **more: Any) -> None:
    """Write model.onnx, int8.onnx with the ranges of ``FIT`` and ``wrong``, and data.npz."""
    strange, left_out = more.pop("strange", ""), more.pop("left_out", ())
    onnx.save(Models(network, **more).model(), folder / "model.onnx")
    fit = {**FIT, "last": 10.0} if network == "scan" else FIT
    ranges = {layer: amax for layer, amax in {**fit, **(wrong or {})}.items() if layer not in left_out}
    low = Models(network, **more, ranges=ranges, strange=strange)
    onnx.save(low.model(), folder / "int8.onnx")
    np.savez(folder / "data.npz", x=samples(network))
