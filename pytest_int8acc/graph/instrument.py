"""Builds models whose inputs choose the precision of each group of layers, and models that measure errors.

A plan says which groups of layers run in high precision, and which scales tensors have. The first kind of
model, the instrument, has inputs for both: the precision of each group, and the scales of activations. So a
plan is tried by one inference, without a new session.

In the instrument, an ``If`` node replaces each node that a group quantizes or rounds. The condition of the
``If`` is the precision of the group. One branch of the ``If`` computes in the low format, such as INT8, and
the other branch in high precision. Only the chosen branch runs.

A branch contains a region: the replaced node, and the nodes that ONNX Runtime fuses with it. Convolutions are
fast in ONNX Runtime's blocked layout (NCHWc), which is kept only inside one branch. If each quantized input
had a condition of its own, an inference would be up to 8 % slower (docs/benchmarks.md). So only the inputs of
groups that ``split_groups`` splits have conditions of their own.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from pytest_int8acc.errors import assert_never
from pytest_int8acc.graph.emulate import keeps_values
from pytest_int8acc.graph.formats import FP16, Format
from pytest_int8acc.graph.half import narrow_nodes
from pytest_int8acc.graph.half_network import emulate_network, network_to_fp16
from pytest_int8acc.graph.index import Index, all_graphs, all_nodes, refill, subgraphs
from pytest_int8acc.graph.inner import with_inner_tensors
from pytest_int8acc.graph.layout import WEIGHTED, ChannelAxes
from pytest_int8acc.graph.model import APART_BYTES, Editor, Model, end_with, put_constant
from pytest_int8acc.graph.network import Edge, Group, Network, Precision, Quantization, TensorScale, by_node
from pytest_int8acc.graph.plan import QdqWriter, with_outputs
from pytest_int8acc.graph.types import FLOAT, value_types
from pytest_int8acc.tensors import Array

#: Operators that ONNX Runtime fuses into the convolution before them, or runs in the same blocked layout
#: (NCHWc) as the convolution.
_FUSED_AFTER = frozenset(
    {"Relu", "LeakyRelu", "Clip", "Sigmoid", "Tanh", "HardSigmoid", "BatchNormalization"}
    | {"MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"}
)
#: Matrix products. Their large weights stay outside of the branches of an If. Inside a branch, ONNX Runtime
#: would neither pack the weights for speed nor free the originals.
_PRODUCTS = frozenset({"MatMul", "Gemm"})


@dataclass(frozen=True)
class Setting:
    """The values of the inputs with which an :class:`Instrument` runs one plan.

    The inputs are the precisions of groups and the scales of activations. The arrays are read-only.
    """

    inputs: Mapping[str, Array]

    def __post_init__(self) -> None:
        for array in self.inputs.values():
            array.flags.writeable = False
        object.__setattr__(self, "inputs", MappingProxyType(dict(self.inputs)))


@dataclass(frozen=True, eq=False)
class _ScaleInput:
    """An input of an :class:`Instrument` that is the scale of an activation."""

    name: str
    """The name of the input."""
    tensor: str
    """The name of the activation in the network."""
    default: Array
    """The scale of the activation in the network. It is used if a plan has no scale for the activation."""
    in_half: bool
    """Whether a model that is built from the network stores this scale in FP16.

    If so, scales of plans are also rounded to FP16.
    """

    def value(self, scales: Mapping[str, TensorScale]) -> Array:
        """The value of the input for a plan with the given ``scales``, in float32.

        If the plan has no scale for the activation, the value is ``default``.
        """
        scale = scales[self.tensor].scale if self.tensor in scales else self.default
        if self.in_half:
            scale = np.maximum(FP16.round(scale), FP16.smallest)
        return np.array(scale, np.float32)


@dataclass(frozen=True, eq=False)
class Controls:
    """The inputs of an :class:`Instrument` that choose precisions and scales."""

    groups: tuple[str, ...]
    """The names of the groups, in the order of the elements of ``switch``."""
    switch: str
    """The name of the input that has a bool for each group: True runs the group in the low format."""
    _scales: tuple[_ScaleInput, ...]
    _defaults: Mapping[str, Array]
    """The network's own scale for each input that is a scale, by input name."""

    def setting(
        self, high: Collection[str], scales: Mapping[str, TensorScale] = MappingProxyType({})
    ) -> Setting:
        """The input values for a run with the groups ``high`` in high precision.

        ``scales`` are the scales of activations. Other activations keep the scales of the network.
        """
        low = np.array([name not in high for name in self.groups], np.bool_)
        changed = {scale.name: scale.value(scales) for scale in self._scales if scale.tensor in scales}
        return Setting({**self._defaults, **changed, self.switch: low})


@dataclass(frozen=True, eq=False)
class Instrument:
    """A model whose inputs choose the precision of each group of layers, and the scales of activations.

    So plans that differ only in precisions and scales are tried without a new model and a new session.
    """

    model: Model
    """The network's model with more inputs: one bool for each group, and scales of activations, float32."""
    controls: Controls
    """The additional inputs. ``controls`` holds no weights, so ``model`` can be freed earlier."""


def build_instrument(network: Network, rest: Precision = "fp32") -> Instrument:
    """Build the model that can run a network with any of its groups in high precision.

    With all groups in high precision, the result computes the same as the network's model. With all groups in
    the low format, it computes the same as the model that ``plan.apply`` builds without a plan. In FP16 and
    BF16, the order of FP32 sums may differ. The network's inputs and outputs keep their names and types.

    Args:
        network: The network on which plans are tried.
        rest: The precision of everything that is not quantized. FP16 is emulated in FP32.
    """
    match rest:
        case "fp32":
            typed, as_run = tuple(network.edges), network
        case "fp16":
            halved = network_to_fp16(network)
            typed, as_run = tuple(halved.edges), emulate_network(halved)
            del halved  # frees its weights before those in the low format are added
        case _:
            assert_never(rest)
    switched = as_run if network.low.takes_scales else network
    editor = switched.model.edit()
    names = tuple(group.name for group in switched.groups)
    switch, switches, split = _add_switches(editor, names)
    scales: dict[tuple[str, bytes], _ScaleInput] = {}
    if network.low.takes_scales:
        scales = _add_scales(editor, network, typed, as_run)
        writer: _Writer = _QuantizingWriter(editor, switched, switches, scales)
    else:
        writer = _CastingWriter(editor, switched, switches)
    editor.set_nodes([split, *writer.nodes()])
    opened = tuple(scales.values())
    defaults = {scale.name: scale.value({}) for scale in opened}
    return Instrument(editor.done(), Controls(names, switch, opened, defaults))


def _add_switches(editor: Editor, groups: Sequence[str]) -> tuple[str, list[str], onnx.NodeProto]:
    """Add a model input with one bool for each group. True switches the group to the low format.

    Returns:
        The name of the input, the name of a tensor with the bool of each group, and the Split node that
        computes these tensors.
    """
    switch = editor.unique("int8acc_switch")
    names = [editor.unique(f"{name}_switch") for name in groups]
    ones = editor.add_constant("int8acc_ones", np.ones(len(names), np.int64))
    split = helper.make_node("Split", [switch, ones], names, editor.unique("int8acc_switches"), axis=0)
    editor.graph.input.append(helper.make_tensor_value_info(switch, TensorProto.BOOL, [len(names)]))
    return switch, names, split


def _add_scales(
    editor: Editor, network: Network, typed: Sequence[Edge], as_run: Network
) -> dict[tuple[str, bytes], _ScaleInput]:
    """Add a model input for each scale of an activation; :func:`_scale_key` makes the keys of the result.

    ``typed`` are the edges of ``network`` in the types in which models are built from it. ``as_run`` is
    ``network`` in the types in which it runs.
    """
    scales: dict[tuple[str, bytes], _ScaleInput] = {}
    for edge, half, run in zip(network.edges, typed, as_run.edges, strict=True):
        key = _scale_key(run)
        if edge.quantization.values is None and key not in scales:
            name = editor.unique(f"{run.tensor}_scale_input")
            in_half = half.quantization.scale.dtype == np.float16
            scales[key] = _ScaleInput(name, edge.tensor, edge.quantization.scale, in_half)
            shape = edge.quantization.scale.shape
            editor.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
    return scales


def _scale_key(edge: Edge) -> tuple[str, bytes]:
    """A key of a quantized input of a node: its tensor and its scale.

    Quantized inputs with equal keys get their scale from the same input of the model.
    """
    return edge.tensor, np.asarray(edge.quantization.scale, np.float32).tobytes()


@dataclass(eq=False)
class _Branch:
    """One branch of an If node that is being built."""

    label: str
    """``then`` or ``else``."""
    is_low: bool
    """Whether the branch computes in the low format."""
    pairs: QdqWriter
    constants: list[TensorProto]
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    """For each tensor of the network, its name in this branch."""

    def graph(self, name: str, results: Mapping[str, int]) -> onnx.GraphProto:
        """The branch as a graph.

        ``results`` maps tensors of the network to element types. The outputs of the graph are the copies of
        these tensors.
        """
        infos = [helper.make_tensor_value_info(self.names[r], results[r], None) for r in results]
        return helper.make_graph(self.nodes, f"{name}/{self.label}", [], infos, self.constants)


def _add_constant(editor: Editor, constants: list[TensorProto], preferred: str, array: Array) -> str:
    """Append a constant to ``constants`` and return its name: ``preferred``, made unique."""
    tensor = TensorProto()
    put_constant(tensor, editor.unique(preferred), array, editor.weights)
    constants.append(tensor)
    return tensor.name


class _Writer(ABC):
    """Writes the nodes of an :class:`Instrument`: an If node for each region, and all other nodes.

    A region is a node that a group quantizes or rounds, and the nodes that are fused with it. Subclasses
    define how values are rounded to the low format.
    """

    def __init__(self, editor: Editor, network: Network, switches: Sequence[str]) -> None:
        self.editor, self.network = editor, network
        self.graph, self.index = network.model.graph, network.model.index
        self.types, self.constants = value_types(network.model), network.model.constants()
        self.switches: dict[str, str] = {}
        """For each node in a group, by name, the tensor that switches the group to the low format."""
        for group, switch in zip(network.groups, switches, strict=True):
            self.switches.update(dict.fromkeys(group.nodes, switch))
        self._outside_constants: dict[object, str] = {}
        """The names of constants in the low format that lie outside of all branches. The keys are the
        argument ``key`` of ``low_constant``."""
        self._regions: dict[str, list[onnx.NodeProto]] = {}
        self._inside: set[str] = set()
        """The names of all nodes in ``_regions``."""

    @abstractmethod
    def regions(self) -> dict[str, list[onnx.NodeProto]]:
        """The nodes inside each If in topological order, by the name of the node that the If replaces."""

    @abstractmethod
    def connect(self, node: onnx.NodeProto, original: onnx.NodeProto, branch: _Branch) -> None:
        """Set the inputs of ``node``, which is the copy of ``original`` in ``branch``."""

    def form(self, original: onnx.NodeProto, branch: _Branch) -> onnx.NodeProto:
        """The node whose copy replaces ``original`` in ``branch``. In this class it is ``original``."""
        return original

    def write_region(self, nodes: Sequence[onnx.NodeProto], branch: _Branch) -> None:
        """Add copies of the nodes of a region to a branch."""
        for node in nodes:
            self._copy(node, branch)

    def outside(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        """The nodes to write for a node that no If contains. In this class it is the node itself."""
        yield node

    def nodes(self) -> Iterator[onnx.NodeProto]:
        """The nodes of the instrument in topological order: an If for each region, and all other nodes."""
        self._regions = self.regions()
        self._inside = {node.name for region in self._regions.values() for node in region}
        return self.written(self.graph)

    def written(self, graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
        """The nodes to write for one graph of the network."""
        for node in graph.node:
            if node.name in self._regions:
                yield self._region_if(node, self._regions[node.name])
            elif node.name not in self._inside:
                yield from self.outside(node)

    def _region_if(self, leader: onnx.NodeProto, nodes: Sequence[onnx.NodeProto]) -> onnx.NodeProto:
        results = {name: self.types[name] for name in nodes[-1].output if name}
        fill = partial(self.write_region, nodes)
        return self.choose(self.switches[leader.name], leader.name, results, fill)

    def choose(
        self, switch: str, name: str, results: Mapping[str, int], fill: Callable[[_Branch], None]
    ) -> onnx.NodeProto:
        """A new If node on the condition ``switch``; its name begins with ``name``.

        ``results`` maps the If's output tensors to element types. ``fill`` is called once for each branch and
        adds the nodes of the branch.
        """
        graphs: dict[str, Any] = {}
        for label, is_low in (("then", True), ("else", False)):
            constants: list[TensorProto] = []
            # ``pairs`` gets the list of constants and not the branch, because the branch refers to ``pairs``.
            # A reference cycle would keep the weights in memory.
            pairs = QdqWriter(self.editor, partial(_add_constant, self.editor, constants))
            branch = _Branch(label, is_low, pairs, constants)
            fill(branch)
            graphs[f"{label}_branch"] = branch.graph(name, results)
        return helper.make_node("If", [switch], list(results), self.editor.unique(f"{name}/If"), **graphs)

    def _copy(self, original: onnx.NodeProto, branch: _Branch) -> None:
        """Add a copy of ``original`` to ``branch``, with new names of the node and its outputs."""
        node = copy.deepcopy(self.form(original, branch))
        node.name = self.editor.unique(f"{original.name}/{branch.label}")
        self.connect(node, original, branch)
        for index, name in enumerate(original.output):
            if name:
                node.output[index] = branch.names[name] = self.editor.unique(f"{name}/{branch.label}")
        branch.nodes.append(node)

    def is_movable(self, name: str) -> bool:
        """Whether a tensor is a constant that may be copied into branches of an If.

        It must be small, or be read by a single node that is not a matrix product.
        """
        array, reader = self.constants.get(name), self.index.only_reader(name)
        if array is None or name in self.index.public:
            return False
        return array.nbytes <= APART_BYTES or (reader is not None and reader.op_type not in _PRODUCTS)

    def local(self, name: str, branch: _Branch) -> str:
        """The name of a tensor in a branch; constants are copied into the branch if ``is_movable``."""
        if name not in branch.names:
            local = name
            if self.is_movable(name):
                preferred = f"{name}/{branch.label}"
                local = _add_constant(self.editor, branch.constants, preferred, self.constants[name])
            branch.names[name] = local
        return branch.names[name]

    def low_constant(self, name: str, key: object, make: Callable[[], Array], branch: _Branch) -> str:
        """Add the constant ``name`` in the low format and return its new name; ``make`` returns its values.

        If ``is_movable`` allows it, the constant is added to the branch. Otherwise it is added outside of all
        branches, only once for each ``key``.
        """
        preferred = f"{name}/{self.network.low.name}"
        if self.is_movable(name):
            return _add_constant(self.editor, branch.constants, preferred, make())
        if key not in self._outside_constants:
            self._outside_constants[key] = self.editor.add_constant(preferred, make())
        return self._outside_constants[key]


class _QuantizingWriter(_Writer):
    """Rounds activations with Q/DQ pairs. Constants are stored as dequantized values, without Q/DQ pairs."""

    def __init__(
        self,
        editor: Editor,
        network: Network,
        switches: Sequence[str],
        scales: Mapping[tuple[str, bytes], _ScaleInput],
    ) -> None:
        super().__init__(editor, network, switches)
        self.scales = scales
        self.edges = by_node(network.edges)
        self.made_of_constants: set[str] = set()
        """Names of tensors that nodes compute only from constants."""
        for node in self.graph.node:
            names = [name for name in node.input if name]
            constant = (n in self.constants or n in self.made_of_constants for n in names)
            if names and not subgraphs(node) and all(constant):
                self.made_of_constants.update(node.output)

    def regions(self) -> dict[str, list[onnx.NodeProto]]:
        regions: dict[str, list[onnx.NodeProto]] = {}
        inside: set[str] = set()
        for node in reversed(self.graph.node):
            if node.name not in self.switches or node.name in inside:
                continue
            region = [*self._before(node, node), node, *self._after(node)]
            is_typed = all(self.types.get(name) for name in region[-1].output if name)
            if is_typed and not subgraphs(node) and any(n.name in self.edges for n in region):
                regions[node.name] = region
                inside.update(n.name for n in region)
        return regions

    def _before(self, node: onnx.NodeProto, leader: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        """Nodes that compute inputs of ``node`` from constants, such as a Transpose of its weights.

        No other node reads their outputs. Nodes in another group than ``leader``, the main node of the
        region, are left out.
        """
        for name in dict.fromkeys(node.input):
            made_by = self.index.producer.get(name)
            if made_by is None or self._follower(made_by) is None:
                continue
            switch = self.switches.get(made_by.name)
            if name in self.made_of_constants and switch in (None, self.switches[leader.name]):
                yield from self._before(made_by, leader)
                yield made_by

    def _after(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        """The nodes after ``node`` that ONNX Runtime fuses with it; their parameters are constants."""
        last = node
        while (following := self._follower(last)) is not None:
            fits = following.op_type in _FUSED_AFTER and following.name not in self.switches
            if not fits or any(name and name not in self.constants for name in following.input[1:]):
                return
            yield following
            last = following

    def _follower(self, node: onnx.NodeProto) -> onnx.NodeProto | None:
        """The only node that reads the output of ``node``; None if there are several outputs or readers."""
        return self.index.only_reader(node.output[0]) if len(node.output) == 1 else None

    def connect(self, node: onnx.NodeProto, original: onnx.NodeProto, branch: _Branch) -> None:
        edges = {edge.index: edge for edge in self.edges.get(original.name, ()) if branch.is_low}
        for index, name in enumerate(original.input):
            if index in edges:
                self._quantize(node, edges[index], branch)
            elif name:
                node.input[index] = self.local(name, branch)

    def outside(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        """The nodes to write for a node that no If contains.

        These are the node, and before it an If for each of its quantized inputs. One branch of such an If
        quantizes the input, the other branch does not. Quantized inputs of nodes inside the node, such as in
        a Loop, also get an If. For weights, this If stands before the Loop, so that it runs only once.
        """
        node = copy.deepcopy(node)
        for edge in self.edges.get(node.name, ()):
            yield self._chosen(node, edge)
        for graph in reversed([each for inner in subgraphs(node) for each in all_graphs(inner)]):
            nodes: list[onnx.NodeProto] = []
            for inner_node in graph.node:
                for edge in self.edges.get(inner_node.name, ()):
                    chosen = self._chosen(inner_node, edge)
                    if edge.quantization.values is None:
                        nodes.append(chosen)
                    else:
                        yield chosen
                nodes.append(inner_node)
            refill(graph.node, nodes)
        yield node

    def _chosen(self, node: onnx.NodeProto, edge: Edge) -> onnx.NodeProto:
        """An If that returns the tensor of ``edge``, quantized or not.

        ``node`` is changed to read the output of the If.
        """
        base = f"{edge.node}_input{edge.index}"
        result = node.input[edge.index] = self.editor.unique(f"{base}_chosen")

        def fill(branch: _Branch) -> None:
            given = branch.names[result] = self.editor.unique(f"{result}/{branch.label}")
            name = self.editor.unique(f"{base}/{branch.label}")
            identity = helper.make_node("Identity", [self.local(edge.tensor, branch)], [given], name)
            if branch.is_low:
                self._quantize(identity, replace(edge, index=0), branch)
            branch.nodes.append(identity)

        kind = int(helper.np_dtype_to_tensor_dtype(edge.quantization.scale.dtype))
        return self.choose(self.switches[edge.node], base, {result: kind}, fill)

    def _quantize(self, node: onnx.NodeProto, edge: Edge, branch: _Branch) -> None:
        """Change ``node`` to read the tensor of ``edge`` in quantized form.

        An activation gets a Q/DQ pair. A constant is replaced by a constant with its dequantized values.
        """
        quantization = edge.quantization
        if quantization.values is not None:
            make = quantization.dequantize
            node.input[edge.index] = self.low_constant(edge.tensor, id(quantization), make, branch)
            return
        local = replace(edge, tensor=self.local(edge.tensor, branch))
        branch.nodes.extend(branch.pairs.write(node, local, self.scales[_scale_key(edge)].name))


class _CastingWriter(_Writer):
    """Rounds the outputs of nodes to FP16 or BF16 with pairs of Casts.

    A group in the low format also rounds inputs that other groups compute, because these groups may run in
    FP32. Constants are stored as rounded values, so that ONNX Runtime can pack the weights of both branches.
    """

    def __init__(self, editor: Editor, network: Network, switches: Sequence[str]) -> None:
        super().__init__(editor, network, switches)
        self.narrow, constants = narrow_nodes(network.model, network.low)
        self.constants |= constants
        self.made = {t: switch for name, switch in self.switches.items() for t in self.narrow[name].outputs}
        """Key: a tensor that a group can compute in the low format. Value: the tensor that switches this
        group."""

    def regions(self) -> dict[str, list[onnx.NodeProto]]:
        regions: dict[str, list[onnx.NodeProto]] = {}
        inside: set[str] = set()
        for graph in all_graphs(self.graph):
            index = Index(graph)
            for node in graph.node:
                if node.name not in self.switches or node.name in inside or self._is_rounded_already(node):
                    continue
                regions[node.name] = list(self._region(node, index))
                inside.update(member.name for member in regions[node.name])
        return regions

    def outside(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        """The node itself. The graphs inside it get an If for each of their regions."""
        node = copy.deepcopy(node)
        for inner in subgraphs(node):
            refill(inner.node, self.written(inner))
        yield node

    def _is_rounded_already(self, node: onnx.NodeProto) -> bool:
        """Whether a node needs no If, because its outputs hold only values that its own group has rounded."""
        own = self.switches[node.name]
        return keeps_values(node) and all(
            self.made.get(node.input[i]) == own or self._is_exact(node.input[i])
            for i in self.narrow[node.name].inputs
        )

    def _is_exact(self, name: str) -> bool:
        """Whether a tensor is a constant that rounding does not change."""
        array = self.constants.get(name)
        return array is not None and bool((self._rounded(name) == array).all())

    def _rounded(self, name: str) -> Array:
        return np.asarray(self.network.low.round(self.constants[name]), np.float32)

    def _region(self, node: onnx.NodeProto, index: Index) -> Iterator[onnx.NodeProto]:
        """A node, and the nodes after it in the same group that only move or select values.

        They form a chain: each node is the only reader of the node before it. ``index`` is of the graph that
        contains the nodes.
        """
        yield node
        while len(node.output) == 1:
            reader = index.only_reader(node.output[0])
            if reader is None or self.switches.get(reader.name) != self.switches[node.name]:
                return
            others = (reader.input[i] for i in self.narrow[reader.name].inputs)
            if not keeps_values(reader) or not all(n == node.output[0] or self._is_exact(n) for n in others):
                return
            node = reader
            yield node

    def form(self, original: onnx.NodeProto, branch: _Branch) -> onnx.NodeProto:
        return self.narrow[original.name].node if branch.is_low else original

    def connect(self, node: onnx.NodeProto, original: onnx.NodeProto, branch: _Branch) -> None:
        own, inputs = self.switches[original.name], self.narrow[original.name].inputs
        for index, name in enumerate(node.input):
            rounds = branch.is_low and index in inputs
            if name in self.constants:
                if rounds and not self._is_exact(name):
                    make = partial(self._rounded, name)
                    node.input[index] = self.low_constant(name, name, make, branch)
                else:
                    node.input[index] = self.local(name, branch)
            elif rounds and name not in branch.names and self.made.get(name) != own:
                node.input[index] = branch.names[name] = self._round(name, branch)
            else:
                node.input[index] = branch.names.get(name, name)

    def write_region(self, nodes: Sequence[onnx.NodeProto], branch: _Branch) -> None:
        """Add copies of the nodes of a region to a branch. In the low format, round newly computed values."""
        super().write_region(nodes, branch)
        if not branch.is_low or keeps_values(nodes[0]):
            return
        for name in sorted(self.narrow[nodes[-1].name].outputs):
            branch.names[name] = self._round(branch.names[name], branch)

    def is_movable(self, name: str) -> bool:
        """Whether a constant may be copied into branches of an If.

        Constants that ``narrow_nodes`` added to the model may always be copied.
        """
        return name in self.constants and (name not in self.index.constants or super().is_movable(name))

    def _round(self, tensor: str, branch: _Branch) -> str:
        """Round a tensor in a branch to the low format and return the name of the result."""
        for kind in (self.network.low.element_type, FLOAT):
            made = self.editor.unique(f"{tensor}/Cast")
            branch.nodes.append(helper.make_node("Cast", [tensor], [made], self.editor.unique(made), to=kind))
            tensor = made
        return tensor


@dataclass(frozen=True)
class Piece:
    """A part of a group that ``split_groups`` has split: one quantized activation or constant."""

    tensor: str
    """The name of the activation or constant."""
    given: str
    """The name of the new group that quantizes ``tensor`` with the network's scale."""
    other: str = ""
    """The name of the new group that quantizes an activation with a scale of a plan; empty for constants."""
    scaled: str = ""
    """The name of the tensor whose scale a plan sets for the group ``other``."""
    axis: int | None = None
    """The channel axis if a plan's scale for ``other`` is per channel; None if it is per tensor."""
    channels: int = 0
    """The number of channels along ``axis``; 0 without an axis."""


def split_groups(
    network: Network, groups: Collection[str], shapes: Mapping[str, Sequence[int]]
) -> tuple[Network, Mapping[str, tuple[Piece, ...]]]:
    """Split groups of a network, so that each of their quantized inputs becomes a group of its own.

    Two Identity nodes are put before each node that reads a quantized activation. Each is a group of its own:

        activation → Identity (the network's scale) → Identity (a plan's scale) → reader

    If the first Identity is in INT8 and the second in high precision, the network computes the same as
    before. If both are in high precision, the reader reads the activation without quantization.

    Args:
        network: A network in FP32.
        groups: The names of the groups to split.
        shapes: Activation to its shape in a run, for the activations that these groups quantize.

    Returns:
        The network with the new groups, and the parts of each group that was split, by group name.
    """
    splitter = _Splitter(network, shapes)
    left, pieces = list[Group](), dict[str, tuple[Piece, ...]]()
    for group in network.groups:
        if group.name in groups:
            made, pieces[group.name] = splitter.split(group)
            left += made
        else:
            left.append(group)
    return replace(network, model=splitter.done(), groups=tuple(left)), pieces


class _Splitter:
    """Splits groups of a network into their quantized inputs, see ``split_groups``."""

    def __init__(self, network: Network, shapes: Mapping[str, Sequence[int]]) -> None:
        self.model, self.shapes = network.model, shapes
        self.editor, self.axes = network.model.edit(), ChannelAxes(network.model)
        self._nodes = {node.name: node for node in all_nodes(self.editor.graph)}
        self._before: dict[str, list[onnx.NodeProto]] = defaultdict(list)
        """The new nodes that are put before each node, by the node's name."""
        self._has_fixed_sizes = all(
            info.shape and all(isinstance(size, int) for size in info.shape[1:]) for info in self.model.inputs
        )
        """Whether all model inputs have fixed sizes, except on axis 0. If so, activations have fixed sizes as
        well."""

    def split(self, group: Group) -> tuple[list[Group], tuple[Piece, ...]]:
        """The new groups that replace one group, and a description of each of its parts.

        Nodes that read the same tensor with the same scale share the Identity nodes.
        """
        order = self.model.everywhere.order
        constants = tuple(edge for edge in group.edges if edge.quantization.values is not None)
        activations = [edge for edge in group.edges if edge.quantization.values is None]
        groups, pieces = list[Group](), list[Piece]()
        for tensor in dict.fromkeys(edge.tensor for edge in constants):
            same = tuple(edge for edge in constants if edge.tensor == tensor)
            one = replace(group, edges=same)
            if pieces:  # Only the first constant stays in the old group.
                one, result = self._identity(same[0], tensor, same[0].quantization)
                for edge in same:
                    self._nodes[edge.node].input[edge.index] = result
            groups.append(one)
            pieces.append(Piece(tensor, one.name))
        made: dict[tuple[str, int], str] = {}
        for edge in sorted(activations, key=lambda edge: order[edge.node]):
            key = edge.tensor, id(edge.quantization)
            if key not in made:
                axis = self._fixed_axis(edge)
                channels = 0 if axis is None else self._sizes(edge.tensor)[axis]
                given, scaled = self._identity(edge, edge.tensor, edge.quantization)
                placeholder = _placeholder(channels, axis, edge.quantization)
                other, made[key] = self._identity(edge, scaled, placeholder)
                groups += given, other
                pieces.append(Piece(edge.tensor, given.name, other.name, scaled, axis, channels))
            self._nodes[edge.node].input[edge.index] = made[key]
        return groups, tuple(pieces)

    def done(self) -> Model:
        """The model with the new Identity nodes."""
        self.editor.rewrite(lambda node: [*self._before[node.name], node])
        return self.editor.done()

    def _identity(self, edge: Edge, tensor: str, quantization: Quantization) -> tuple[Group, str]:
        """A new group of one Identity node, which is put before the node of ``edge``, and the node's output.

        The Identity reads ``tensor``, to which the group applies ``quantization``.
        """
        name = self.editor.unique(f"{tensor}/edge")
        result = self.editor.unique(f"{name}/out")
        self._before[edge.node].append(helper.make_node("Identity", [tensor], [result], name))
        edges = (Edge(name, 0, tensor, quantization),)
        is_inner = edge.node not in self.model.index.nodes
        return Group(name, "Identity", (name,), edges, is_inner=is_inner), result

    def _sizes(self, tensor: str) -> dict[int, int]:
        """The known sizes of an activation, by axis.

        ``shapes`` lacks tensors inside If, Loop and Scan, so their inferred sizes are returned.
        """
        shape = self.shapes.get(tensor) or self.axes.tracer.shape(tensor) or ()
        return {axis: size for axis, size in enumerate(shape) if isinstance(size, int)}

    def _fixed_axis(self, edge: Edge) -> int | None:
        """The channel axis of an activation; None if its number of channels may differ between runs."""
        index = self.model.everywhere
        node = index.nodes[edge.node]
        axis = self.axes.of(edge.tensor, (node, edge.index))
        if axis is None or axis not in self._sizes(edge.tensor):
            return None
        shape = self.axes.tracer.shape(edge.tensor) or ()
        others = set(node.input[:2]) - {edge.tensor}
        has_weight = node.op_type in WEIGHTED and bool(others & index.constants)
        is_fixed = axis < len(shape) and isinstance(shape[axis], int)
        return axis if self._has_fixed_sizes or has_weight or is_fixed else None


def _placeholder(channels: int, axis: int | None, given: Quantization) -> Quantization:
    """A symmetric quantization with scales of 1, which a plan replaces.

    There are ``channels`` scales along ``axis``, or one scale if ``axis`` is None. ``given`` is the network's
    quantization, whose types are used.
    """
    scale = np.ones(() if axis is None else channels, given.scale.dtype)
    return Quantization(scale, given.format.symmetric.zeros(scale), axis)


def with_quantized_twins(network: Network, watched: Mapping[str, str]) -> tuple[Model, dict[str, str]]:
    """The network's float model, with a quantized copy (twin) of the nodes of each watched group.

    The copies read values of the float model, or of copies for the same group. So they show the error that
    this group alone causes.

    Args:
        network: A network in the types in which it runs, before a plan is applied.
        watched: Group to a tensor that the group's nodes, or nodes after them, compute.

    Returns:
        The model, whose outputs include the watched tensors and their copies; and for each group the name of
        the copy of its watched tensor.
    """
    writer, index = QdqWriter(network.model.edit()), network.model.everywhere
    twins: list[_Twin] = []
    copied: dict[str, list[_Twin]] = defaultdict(list)
    for group in network.groups:
        if group.name in watched:
            twin = _Twin(group.name, by_node(group.edges))
            twins.append(twin)
            first = min((index.order[name] for name in twin.edges), default=0)
            for name in _makers(watched[group.name], index, first):
                copied[name].append(twin)

    def with_twins(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        yield node
        for twin in copied[node.name]:
            if node.name in twin.edges or not twin.names.keys().isdisjoint(node.input):
                yield from twin.of(node, writer)

    writer.editor.rewrite(with_twins)
    made = {twin.group: twin.names.get(watched[twin.group], watched[twin.group]) for twin in twins}
    shown = [*watched.values(), *made.values()]
    return with_outputs(with_inner_tensors(writer.editor.done(), shown), shown), made


@dataclass(eq=False)
class _Twin:
    """The copies of the nodes between one group's quantized inputs and the group's watched tensor."""

    group: str
    edges: Mapping[str, list[Edge]]
    """The quantized inputs of each node that belong to the group, by node name."""
    names: dict[str, str] = field(default_factory=dict)
    """For each copied tensor of the network, the name of the copy."""

    def of(self, node: onnx.NodeProto, writer: QdqWriter) -> Iterator[onnx.NodeProto]:
        """The copy of ``node``, and the Q/DQ pairs before it."""
        twin = copy.deepcopy(node)
        twin.name = writer.editor.unique(f"{node.name}/twin")
        twin.input[:] = [self.names.get(name, name) for name in twin.input]
        for edge in self.edges.get(node.name, []):
            yield from writer.write(twin, replace(edge, tensor=self.names.get(edge.tensor, edge.tensor)))
        for i, name in enumerate(node.output):
            if name:
                twin.output[i] = self.names[name] = writer.editor.unique(f"{name}/twin")
        yield twin


def _makers(tensor: str, index: Index, first: int) -> set[str]:
    """Names of the nodes on which ``tensor`` depends, from the topological position ``first`` on."""
    found: set[str] = set()
    left = [tensor]
    while left:
        node = index.producer.get(left.pop())
        if node is not None and node.name not in found and index.order[node.name] >= first:
            found.add(node.name)
            left.extend(node.input)
    return found


#: The names of the numbers that :func:`with_rounded_twins` measures for each tensor, in the order of outputs:
#: the sum of squared rounding errors, the sum of squared values, the greatest magnitude, and the number of
#: values that rounding makes 0.
MEASUREMENTS = ("noise", "signal", "peak", "lost")


def with_rounded_twins(
    model: Model, nodes: Collection[str], low: Format
) -> tuple[Model, dict[str, tuple[str, ...]]]:
    """A model that measures the rounding error of each of ``nodes`` if only this node runs in FP16 or BF16.

    Each node gets a copy (twin) whose inputs and outputs are rounded.

    Args:
        model: A model in FP32 and in normal form; see ``graph.load``.
        nodes: Names of nodes; no If, Loop or Scan.
        low: FP16 or BF16, to which values are rounded.

    Returns:
        The model, without the outputs of ``model``; and for each tensor that the nodes compute the names of
        the outputs that measure it: one float32 scalar for each of ``MEASUREMENTS``, or one number per step
        for tensors inside If, Loop and Scan.
    """
    writer = _RoundingWriter(model, nodes, low)
    writer.editor.rewrite(writer.with_twin, writer.first)
    outputs = [name for names in writer.measurements.values() for name in names]
    editor = with_inner_tensors(writer.editor.done(), outputs).edit()
    end_with(editor, dict.fromkeys(outputs, FLOAT))
    return editor.done(), writer.measurements


class _RoundingWriter:
    """Writes rounded copies (twins) of nodes, and nodes that measure the errors of these copies."""

    def __init__(self, model: Model, nodes: Collection[str], low: Format) -> None:
        self.editor: Editor = model.edit()
        self.low, self.types, self.twins = low, value_types(model), nodes
        read = (name for node in all_nodes(model.graph) if node.name in nodes for name in node.input)
        self.read = {name for name in read if self.types.get(name) == FLOAT}
        """The float tensors that nodes with a twin read."""
        self.nodes: list[onnx.NodeProto] = []
        """The nodes that were added since the last call of ``_taken``."""
        self.zero = self.editor.add_constant("int8acc_zero", np.zeros((), np.float32))
        self.rounded: dict[str, str] = {}
        """The name of each tensor's rounded copy."""
        self.measurements: dict[str, tuple[str, ...]] = {}

    def first(self, graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
        """Nodes that round the inputs and constants of a graph."""
        for value in (*graph.input, *graph.initializer):
            self._round_read(value.name)
        yield from self._taken()

    def with_twin(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        """A node, its rounded copy, nodes that measure the errors, and nodes that round the outputs."""
        yield node
        if node.name in self.twins:
            self._add_twin(node)
        for name in node.output:
            self._round_read(name)
        yield from self._taken()

    def _taken(self) -> list[onnx.NodeProto]:
        taken, self.nodes = self.nodes, []
        return taken

    def _round_read(self, name: str) -> None:
        if name in self.read:
            self.rounded[name] = self._round(name)

    def _add_twin(self, node: onnx.NodeProto) -> None:
        """Add the rounded copy of a node with float outputs, and nodes that measure the outputs' errors."""
        if all(self.types.get(name) != FLOAT for name in node.output):
            return
        twin = copy.deepcopy(node)
        twin.name = self.editor.unique(f"{node.name}/twin")
        for i, name in enumerate(node.input):
            if name in self.read:
                twin.input[i] = self.rounded[name]
        for i, name in enumerate(node.output):
            twin.output[i] = self.editor.unique(f"{name}/twin") if name else ""
        self.nodes.append(twin)
        for name, own in zip(node.output, twin.output, strict=True):
            if self.types.get(name) == FLOAT:
                self.measurements[name] = self._measure(name, self._round(own))

    def _add(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """Add a node and return the name of its output."""
        result = self.editor.unique(f"{inputs[0]}/{op_type}")
        name = self.editor.unique(result)
        self.nodes.append(helper.make_node(op_type, inputs, [result], name, **attributes))
        return result

    def _round(self, tensor: str) -> str:
        return self._add("Cast", self._add("Cast", tensor, to=self.low.element_type), to=FLOAT)

    def _measure(self, tensor: str, rounded: str) -> tuple[str, str, str, str]:
        """Add the nodes for all ``MEASUREMENTS`` of a tensor, and return the names of their outputs.

        If a value and its rounded value are the same infinity, the error is 0.
        """
        is_same, error = self._add("Equal", tensor, rounded), self._add("Sub", rounded, tensor)
        noise = self._add("ReduceSumSquare", self._add("Where", is_same, self.zero, error), keepdims=0)
        signal = self._add("ReduceSumSquare", tensor, keepdims=0)
        peak = self._add("ReduceMax", self._add("Abs", tensor), keepdims=0)
        was_not_zero = self._add("Not", self._add("Equal", tensor, self.zero))
        is_lost = self._add("And", self._add("Equal", rounded, self.zero), was_not_zero)
        lost = self._add("ReduceSum", self._add("Cast", is_lost, to=FLOAT), keepdims=0)
        return noise, signal, peak, lost
