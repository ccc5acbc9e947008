"""What the files of a fix say: its groups in the names of the float model's own nodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import onnx

from pytest_int8acc.files import seen_from
from pytest_int8acc.graph.half_network import fused
from pytest_int8acc.graph.migrate import migrate
from pytest_int8acc.graph.model import Model, make_model
from pytest_int8acc.graph.network import Network, Plan, Precision
from pytest_int8acc.graph.norms import fuse_norms
from pytest_int8acc.graph.opsets import LEAST_OPSET
from pytest_int8acc.graph.plan import quantized_tensors

#: Written beside the fix where the names in the user's own file are not those that the plan uses.
NAMED_MODEL = "float.onnx"


@dataclass(frozen=True, eq=False)
class FixFiles:
    """A fix that was built and met the criteria, and what else its files need."""

    model: Model
    """The fixed model."""
    plan: Plan
    network: Network
    """The network that ``plan`` is a plan of."""
    float_model: Model
    """The case's float model in normal form."""
    float_path: Path
    """Its file."""
    precision: Precision
    """What is not INT8 runs in this, where the plan says nothing else."""
    low: str = ""
    """What groups run in that the plan does not keep high, ``fp8``, ``fp16`` or ``bf16``; empty
    for INT8."""
    by_flags: bool = False
    """True where ``model`` is in FP32 and flags allow the other types, as TensorRT below 10 wants it."""

    @cached_property
    def named_model(self) -> Model:
        """The float model with the plan's norms fused: what other tools convert, where names are not its."""
        return fuse_norms(self.float_model, self.plan.fused) if self.plan.fused else self.float_model


@dataclass(frozen=True, eq=False)
class Named:
    """A fix as other tools can be told it: nodes and tensors of the float model."""

    model: str
    """The float model's path from the fix's folder, with slashes; absolute where there is none."""
    own_file: bool
    """True where the user's file serves; False where ``NAMED_MODEL`` is to be written."""
    high: Mapping[str, Precision]
    """Node to its precision, in topological order: all that plan, spec or TensorRT keep out of INT8."""
    int8: Mapping[str, tuple[int, ...]]
    """Node to the positions of its inputs that are quantized."""
    op_types: tuple[str, ...]
    """Of the nodes in ``int8``."""
    scales: Mapping[str, float]
    """Activation tensor to the scale that the plan gives it, where other tools can be told it."""
    inputs: tuple[str, ...]
    """Inputs of open size, as text."""
    precision: Precision
    feeding: Mapping[str, Precision] = field(default_factory=dict)
    """Node in INT8 to the type that it must give its result in, for a reader in ``high``."""
    untold: tuple[str, ...] = ()
    """A line on what of the plan other tools cannot be told; none where they can be told all."""


def name_nodes(fix: FixFiles, folder: Path) -> Named:
    """Put ``fix`` into the names of the float model, which other tools quantize anew.

    Nodes that only the case's Q/DQ model has are left out.
    """
    network, model = fused(fix.network, fix.plan.fused), fix.named_model
    nodes = {node.name: node.op_type for node in model.graph.node}
    high: dict[str, Precision] = {}
    int8: dict[str, list[int]] = defaultdict(list)
    for group in network.groups:
        if group.name in fix.plan.high:
            high.update(dict.fromkeys(group.nodes, fix.plan.high[group.name]))
            continue
        for edge in group.edges:
            int8[edge.node].append(edge.index)
    high.update(dict.fromkeys(fix.network.left_high, fix.precision))
    scales = _tellable(fix)
    kept = {name: tuple(sorted(int8[name])) for name in nodes if name in int8}
    counts = {"scales": len(fix.plan.scales) - len(scales), "moved channels": len(fix.plan.moves)}
    counts["output"] = len(fix.plan.outputs)
    lacking = [f"the {what} of {n} tensor{'' if n == 1 else 's'}" for what, n in counts.items() if n]
    path = seen_from(folder, fix.float_path)
    own_file = path.isprintable() and _has_names(fix.float_path, model)
    return Named(
        model=path if own_file else NAMED_MODEL,
        own_file=own_file,
        high={name: high[name] for name in nodes if name in high},
        int8=kept,
        op_types=tuple(sorted({nodes[name] for name in kept})),
        scales=scales,
        inputs=tuple(str(t) for t in fix.model.inputs if t.shape is None or {*map(type, t.shape)} - {int}),
        precision=fix.precision,
        feeding=_feeding(model, high),
        untold=(f"This lacks {' and '.join(lacking)}, which only fixed.onnx can have.",) if lacking else (),
    )


def _tellable(fix: FixFiles) -> dict[str, float]:
    """Scales, symmetric and per tensor, of activations that hold what they hold in the float model."""
    own, moves = quantized_tensors(fix.network), fix.plan.moves
    touched = migrate(fix.network, moves).touched if moves else ()
    return {
        tensor: float(chosen.scale)
        for tensor, chosen in fix.plan.scales.items()
        if tensor in own and own[tensor].values is None and tensor not in touched
        if chosen.is_plain
    }


def _feeding(model: Model, high: Mapping[str, Precision]) -> dict[str, Precision]:
    makers = model.index.producer
    chosen: dict[str, Precision] = {}
    for node in model.graph.node:
        for maker in (makers[name].name for name in node.input if node.name in high and name in makers):
            if maker not in high and chosen.get(maker) != "fp32":
                chosen[maker] = high[node.name]
    return chosen


def _has_names(path: Path, model: Model) -> bool:
    """Whether the file itself has the nodes of its normal form, and takes Q/DQ per channel."""
    try:
        proto = onnx.load(path, load_external_data=False)
    except Exception:  # gone since, or of another form: whatever it is, it does not serve
        return False
    own = [node.name for node in proto.graph.node if node.op_type != "Constant"]
    same = own == [node.name for node in model.graph.node]
    return same and make_model(proto).opset >= LEAST_OPSET
