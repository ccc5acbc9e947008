"""Describes a fix by node names of the float model, as other tools need it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path

import onnx

from pytest_int8acc.files import seen_from
from pytest_int8acc.graph.half_network import fused
from pytest_int8acc.graph.index import body_names
from pytest_int8acc.graph.migrate import migrate
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.network import Network, Plan, Precision
from pytest_int8acc.graph.norms import fuse_norms
from pytest_int8acc.graph.opsets import LEAST_OPSET
from pytest_int8acc.graph.plan import quantized_tensors

#: The file name of a copy of the float model, in the folder of the fix. The copy is written only if other
#: tools cannot use the user's model file; see ``Named.own_file``.
NAMED_MODEL = "float.onnx"


@dataclass(frozen=True, eq=False)
class FixFiles:
    """A fix: a mixed-precision model that met the criteria, and all that is needed to write its files."""

    model: Model
    """The mixed-precision model."""
    plan: Plan
    network: Network
    """The low-precision network whose layers ``plan`` keeps in high precision."""
    float_model: Model
    """The case's float model in normal form."""
    float_path: Path
    """The user's file of the float model."""
    precision: Precision
    """The precision of nodes that are neither in low precision nor listed in the plan."""
    low: str = ""
    """The low format: ``fp8``, ``fp16`` or ``bf16``; empty for INT8."""
    by_flags: bool = False
    """Whether ``model`` is in FP32 and builder flags allow other types, for TensorRT below 10."""

    @cached_property
    def named_model(self) -> Model:
        """The float model that other tools convert. Normalizations that the plan fuses are fused in it."""
        return fuse_norms(self.float_model, self.plan.fused) if self.plan.fused else self.float_model


@dataclass(frozen=True, eq=False)
class Named:
    """A fix as other tools need it, by names of nodes and tensors of the float model."""

    model: str
    """The float model's path with slashes, relative to the folder of the fix if that is possible."""
    own_file: bool
    """Whether other tools can use the user's model file: its path is printable, its nodes have the names of
    the plan, and its opset has per-channel Q/DQ. If not, ``NAMED_MODEL`` is written for them."""
    high: Mapping[str, Precision]
    """The precision of each node that is kept out of the low format, in topological order."""
    int8: Mapping[str, tuple[int, ...]]
    """The positions of the quantized inputs of each node."""
    op_types: tuple[str, ...]
    """Operator types of the nodes in ``int8``."""
    scales: Mapping[str, float]
    """The scales that the plan sets on activations and that other tools support, by tensor."""
    inputs: tuple[str, ...]
    """The model's inputs without a fixed size, as text with their shapes."""
    precision: Precision
    """The precision of nodes that are neither in low precision nor listed in the plan."""
    feeding: Mapping[str, Precision]
    """The nodes outside ``high`` whose output a node in ``high`` reads, and the type that this output must
    have."""
    untold: str
    """A line on the parts of the plan that other tools do not support; empty if all parts are supported."""


def name_nodes(fix: FixFiles, folder: Path) -> Named:
    """Return ``fix`` by names of nodes and tensors of the float model, which other tools quantize again.

    Nodes that the case's Q/DQ model has, but not the float model, are left out. ``folder`` is the folder of
    the fix, to which the path of the float model is relative.
    """
    network, model = fused(fix.network, fix.plan.fused), fix.named_model
    nodes = {node.name: node.op_type for node in model.graph.node}
    precisions: dict[str, Precision] = {}
    quantized: dict[str, set[int]] = defaultdict(set)
    for group in network.groups:
        if group.name in fix.plan.high:
            precisions.update(dict.fromkeys(group.nodes, fix.plan.high[group.name]))
            continue
        for edge in group.edges:
            if not edge.quantization.is_float:
                quantized[edge.node].add(edge.index)
    precisions.update(dict.fromkeys(fix.network.left_high, fix.precision))
    int8 = {name: tuple(sorted(quantized[name])) for name in nodes if name in quantized}
    # In INT8 and FP8 other tools leave all nodes inside If, Loop and Scan as they are.
    unnamed = 0 if network.low.takes_scales else len(precisions.keys() & body_names(model.graph).keys())
    path = seen_from(folder, fix.float_path)
    own_file = path.isprintable() and _has_names(fix.float_path, model)
    scales = _plain_scales(fix)
    return Named(
        model=path if own_file else NAMED_MODEL,
        own_file=own_file,
        high={name: precisions[name] for name in nodes if name in precisions},
        int8=int8,
        op_types=tuple(sorted({nodes[name] for name in int8})),
        scales=scales,
        inputs=tuple(str(t) for t in fix.model.inputs if t.shape is None or {*map(type, t.shape)} - {int}),
        precision=fix.precision,
        feeding=_feeding(model, precisions),
        untold=_untold(fix.plan, len(scales), unnamed),
    )


#: The fields of a plan that other tools support.
_TOLD = frozenset({"high", "fused"})
#: The other fields of a plan, each with the words by which messages name what the field sets.
_LACKING = {"scales": "scales", "floats": "float values", "moves": "moved channels", "outputs": "output"}


def _untold(plan: Plan, plain_scales: int, unnamed: int) -> str:
    """Return a line on the parts of the plan that only fixed.onnx can have; empty if there are none.

    Args:
        plan: The plan.
        plain_scales: The number of the plan's scales that other tools support.
        unnamed: The number of nodes inside If, Loop and Scan that stay in FP32.
    """
    counts = {part.name: len(getattr(plan, part.name)) for part in fields(plan) if part.name not in _TOLD}
    counts["scales"] -= plain_scales
    lacking = [f"the {_LACKING[key]} of {n} tensor{'' if n == 1 else 's'}" for key, n in counts.items() if n]
    if unnamed:
        lacking.append(f"{unnamed} node{'' if unnamed == 1 else 's'} inside If, Loop or Scan in FP32")
    return f"This lacks {' and '.join(lacking)}, which only fixed.onnx can have." if lacking else ""


def _plain_scales(fix: FixFiles) -> dict[str, float]:
    """Return the plan's scales that other tools support, by activation tensor.

    Such scales are symmetric and per tensor. The plan must not move range between channels of the tensor, and
    the tensor must not lie inside an If, Loop or Scan.
    """
    own, moves = quantized_tensors(fix.network), fix.plan.moves
    model = fix.network.model
    main = {*model.index.producer, *(info.name for info in model.inputs)}
    touched = migrate(fix.network, moves).touched if moves else ()
    scales = {}
    for tensor, chosen in fix.plan.scales.items():
        is_activation = tensor in own and own[tensor].values is None
        if chosen.is_plain and is_activation and tensor in main and tensor not in touched:
            scales[tensor] = float(chosen.scale)
    return scales


def _feeding(model: Model, high: Mapping[str, Precision]) -> dict[str, Precision]:
    """Return the output types of nodes outside ``high`` whose output a node in ``high`` reads.

    The type is the precision of the reading node; FP32 if readers differ and one of them runs in FP32.
    """
    chosen: dict[str, Precision] = {}
    for node in model.graph.node:
        for name in node.input if node.name in high else ():
            producer = model.index.producer.get(name)
            if producer is not None and producer.name not in high and chosen.get(producer.name) != "fp32":
                chosen[producer.name] = high[node.name]
    return chosen


def _has_names(path: Path, model: Model) -> bool:
    """Return whether the model file has the nodes of ``model``, and an opset with per-channel Q/DQ."""
    try:
        proto = onnx.load(path, load_external_data=False)
    except Exception:  # The file was removed or changed after it was first loaded.
        return False
    own = [node.name for node in proto.graph.node if node.op_type != "Constant"]
    same = own == [node.name for node in model.graph.node]
    return same and Model(proto, {}).opset >= LEAST_OPSET
