"""Makes networks with groups of layers in FP16 or BF16, and INT8 networks whose float nodes are in FP16."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np
import onnx
from onnx import helper

from pytest_int8acc.errors import ModelError
from pytest_int8acc.graph.emulate import emulate_half
from pytest_int8acc.graph.formats import FP16, INT32, Format
from pytest_int8acc.graph.half import narrow_nodes, scale_in, to_fp16
from pytest_int8acc.graph.index import Index, all_graphs, body_names, take_name
from pytest_int8acc.graph.layout import WEIGHTED, moves_values
from pytest_int8acc.graph.load import lift
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.network import Edge, Group, Network, Precision, Quantization, by_node
from pytest_int8acc.graph.norms import fuse_norms
from pytest_int8acc.graph.opsets import QDQ_OPSET
from pytest_int8acc.graph.types import FLOAT16, computes_in_half, value_types

#: Operators whose outputs hold values of their first input, perhaps negated, or bounds. They change precision
#: together with the node before them, because rounding their input has the same effect as rounding their
#: output.
_SELECTING = frozenset({"Relu", "Clip", "Neg", "Abs"})
#: Maximum number of connected groups of layers that ``fewer_casts`` moves to FP32 at once to save a Cast.
_GAP = 3


def low_network(model: Model, low: Format) -> Network:
    """The network of ``model``, with a group for each node that can compute in ``low``.

    A group is a set of nodes that change precision together. Nodes that only move or select values belong to
    the group of the node before them.

    Args:
        model: A float model in normal form; see ``graph.load``. For BF16 it is converted to opset 22.
        low: FP16 or BF16.

    Raises:
        ModelError: The model computes in 16 bits already, no node of the model can compute in 16 bits, or the
            model cannot be converted to the opset.
    """
    if computes_in_half(model, value_types(model)):
        raise ModelError(
            f"{model.name}: computes in FP16 or BF16 already; 'model' wants the FP32 model it was made from"
        )
    model = lift(model, low.opset)
    narrow, _ = narrow_nodes(model, low)
    nodes, producer, paths = model.everywhere.nodes, model.everywhere.producer, body_names(model.graph)
    graphs = enumerate(all_graphs(model.graph))
    graph_of = {node.name: number for number, graph in graphs for node in graph.node}
    members: dict[str, list[onnx.NodeProto]] = {}
    leader: dict[str, str] = {}
    for node in (node for node in nodes.values() if node.name in narrow):
        maker = producer.get(node.input[0]) if node.input else None
        if maker is not None and graph_of[maker.name] != graph_of[node.name]:
            maker = None
        follows = moves_values(node) or node.op_type in _SELECTING
        led_by = leader.get(maker.name, node.name) if maker is not None and follows else node.name
        leader[node.name] = led_by
        members.setdefault(led_by, []).append(node)
    if not members:
        raise ModelError(
            f"{model.name}: no node of it computes in floating point that could be {low.name.upper()}"
        )
    groups, taken = list[Group](), set(model.index.nodes)
    for name, group in members.items():
        is_inner = name in paths
        full = take_name(paths[name], taken) if is_inner else name
        names = tuple(node.name for node in group)
        groups.append(Group(full, group[0].op_type, names, (), is_inner=is_inner))
    return Network(model, tuple(groups), low=low)


def fused(network: Network, norms: Collection[str]) -> Network:
    """The network with each of the normalizations ``norms`` fused to one node, and with new groups.

    ``norms`` are the names of normalizations that consist of several nodes; see ``find_norms``.

    Raises:
        ModelError: See ``fuse_norms``.
    """
    return low_network(fuse_norms(network.model, norms), network.low) if norms else network


def fewer_casts(network: Network, high: Collection[str]) -> tuple[str, ...]:
    """Names of groups to run in FP32 in addition to the groups ``high``, so that the model needs fewer Casts.

    Groups with a convolution or a matrix product are never moved to FP32. The search is greedy: each step
    takes the first group that saves a Cast, or the first chain of up to ``_GAP`` connected groups.
    """
    wiring = _Wiring(network)
    kept, added = set(high), list[str]()
    while run := next(wiring.savings(kept), None):
        kept.update(run)
        added += run
    return tuple(added)


class _Wiring:
    """Counts the Casts of a network, from the groups that compute and read each float tensor."""

    def __init__(self, network: Network) -> None:
        index: Index = network.model.everywhere
        types = value_types(network.model)
        self.group_of = {node: group.name for group in network.groups for node in group.nodes}
        nodes = index.nodes
        self.light = {
            group.name
            for group in network.groups
            if all(nodes[name].op_type not in WEIGHTED for name in group.nodes)
        }
        self.makers: dict[str, str | None] = {}
        """The group that computes each tensor; None stands for nodes that are always in FP32."""
        self.readers: dict[str, set[str | None]] = {}
        """The groups that read each tensor; None stands for nodes that are always in FP32."""
        self.touched: dict[str, set[str]] = {group.name: set() for group in network.groups}
        """The tensors that each group reads or computes."""
        outputs = index.public
        inputs = [value.name for graph in all_graphs(network.model.graph) for value in graph.input]
        for tensor in (*inputs, *index.producer):
            if types.get(tensor) != onnx.TensorProto.FLOAT:
                continue
            maker = index.producer.get(tensor)
            self.makers[tensor] = self.group_of.get(maker.name) if maker is not None else None
            read = [
                node for node, _ in index.readers(tensor) if node.op_type not in ("Shape", "Size", "Cast")
            ]
            self.readers[tensor] = {self.group_of.get(node.name) for node in read}
            self.readers[tensor] |= {None} if tensor in outputs else set()
            for group in {self.makers[tensor], *self.readers[tensor]} - {None}:
                self.touched[group or ""].add(tensor)

    def savings(self, kept: Collection[str]) -> Iterator[tuple[str, ...]]:
        """Chains of groups that save a Cast if they run in FP32 in addition to the groups ``kept``."""
        for first in self._adjacent(kept, kept):
            run: tuple[str, ...] = (first,)
            while len(run) <= _GAP:
                if self._casts({*kept, *run}, run) < self._casts(kept, run):
                    yield run
                    break
                following = next((g for g in self._adjacent(run, {*kept, *run})), None)
                if following is None:
                    break
                run = (*run, following)

    def _adjacent(self, groups: Collection[str], known: Collection[str]) -> Iterable[str]:
        """Groups without convolutions and products that share a tensor with ``groups``, except ``known``."""
        shared = {t for name in groups for t in self.touched[name]}
        return (n for n in self.touched if n in self.light and n not in known and self.touched[n] & shared)

    def _casts(self, kept: Collection[str], around: Iterable[str]) -> int:
        """The number of Casts at tensors of the groups ``around``, if the groups ``kept`` run in FP32."""
        count = 0
        for tensor in {t for name in around for t in self.touched[name]}:
            made = self.makers[tensor] is None or self.makers[tensor] in kept
            count += any((reader is None or reader in kept) != made for reader in self.readers[tensor])
        return count


#: A node's name and the position of one of its inputs.
_Place = tuple[str, int]


def network_to_fp16(network: Network) -> Network:
    """The network with its model in FP16 (see ``to_fp16``), and with each scale in the type of its tensor.

    ``apply(network_to_fp16(network), plan)`` computes the same as ``to_fp16(apply(network, plan)).model``.
    If the node that reads a quantized tensor stays in FP32, a Cast is put before the node, and the input of
    the Cast is quantized instead. The same is done for int32 biases, which stay in FP32. A network that
    computes in FP16 already keeps its types.

    Raises:
        ModelError: The model cannot be converted to opset 19, the first with FP16 Q/DQ.
    """
    edges = list(network.edges)
    marked, markers = _mark(network.model, edges)
    if not computes_in_half(network.model, value_types(network.model)):
        marked = lift(marked, QDQ_OPSET)
    # Int32 constants are biases. The scale of a bias is a product of two scales, and often too small for
    # FP16.
    biases = (e for e in edges if e.quantization.values is not None and e.quantization.format is INT32)
    wide = [markers[edge.node, edge.index] for edge in biases if (edge.node, edge.index) in markers]
    halved, places = _unmark(to_fp16(marked, wide).model, markers)
    return _rewired(network, halved, places)


def as_run(network: Network, rest: Precision) -> Network:
    """The network with everything that is not quantized in the precision ``rest``; FP16 is emulated in FP32.

    Raises:
        ModelError: ``rest`` is FP16, and the model cannot be converted to opset 19.
    """
    return network if rest == "fp32" else emulate_network(network_to_fp16(network))


def emulate_network(network: Network) -> Network:
    """The network with FP16 arithmetic emulated in FP32; see ``emulate_half``."""
    places = {(edge.node, edge.index): (edge.node, edge.index) for edge in network.edges}
    return _rewired(network, emulate_half(network.model, {node for node, _ in places}), places)


def _mark(model: Model, edges: list[Edge]) -> tuple[Model, dict[_Place, str]]:
    """``model`` with a marker node before each quantized input, and the name of each input's marker.

    ``to_fp16`` then decides the types before and after each marker. A marker is a Neg, because a Neg keeps
    types and is never folded. The marked model is never run.
    """
    editor = model.edit()
    places = by_node(edges)
    markers: dict[_Place, str] = {}

    def marked(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        for index in (edge.index for edge in places[node.name]):
            name = markers[node.name, index] = editor.unique(f"{node.name}_input{index}_edge")
            yield helper.make_node("Neg", [node.input[index]], [f"{name}/out"], name=name)
            node.input[index] = f"{name}/out"
        yield node

    editor.rewrite(marked)
    return editor.done(), markers


def _unmark(model: Model, markers: Mapping[_Place, str]) -> tuple[Model, dict[_Place, _Place]]:
    """``model`` without its marker nodes, and for each quantized input its new place.

    A place is a node's name and an input position. The new place is at the same node, or at a Cast before it.
    ``markers`` has the name of the marker node at each old place.
    """
    editor = model.edit()
    marked = {name: place for place, name in markers.items()}
    source: dict[str, tuple[str, _Place]] = {}
    places: dict[_Place, _Place] = {}

    def unmarked(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        if node.name in marked:
            source[node.output[0]] = node.input[0], marked[node.name]
            return
        for index, name in enumerate(node.input):
            if name in source:
                node.input[index], place = source[name]
                places[place] = node.name, index
        yield node

    editor.rewrite(unmarked)
    return editor.done(), places


def _rewired(network: Network, model: Model, places: Mapping[_Place, _Place]) -> Network:
    """The network with another model, in which quantized inputs are at new places.

    A place is a node's name and an input position. Scales get the type of the tensor at the new place.
    """
    nodes, types = model.everywhere.nodes, value_types(model)
    known: dict[tuple[int, bool], Quantization] = {}

    def moved(edge: Edge) -> Edge:
        if (edge.node, edge.index) not in places:
            return edge
        node, index = places[edge.node, edge.index]
        tensor = nodes[node].input[index]
        half = types.get(tensor) == FLOAT16
        key = id(edge.quantization), half
        if key not in known:  # Edges that shared one quantization object share one again.
            scale = edge.quantization.scale
            own = np.dtype(np.float32) if scale.dtype == np.float16 else scale.dtype
            scale = scale_in(scale, np.float16 if half else own)
            known[key] = replace(edge.quantization, scale=scale)
            if half and edge.quantization.is_float:
                known[key] = replace(known[key], values=FP16.round(edge.quantization.dequantize()))
        return Edge(node, index, tensor, known[key])

    groups = []
    for group in network.groups:
        edges = tuple(map(moved, group.edges))
        members = dict.fromkeys([*group.nodes, *(edge.node for edge in edges)])
        groups.append(replace(group, nodes=tuple(members), edges=edges))
    return replace(network, model=model, groups=tuple(groups))
