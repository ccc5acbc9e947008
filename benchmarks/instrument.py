"""What a switch per group or per edge costs: one batch through each form of each network, in turn.

    python -m benchmarks.instrument [CASE ...]

Ratios to the optimized float model, medians of rounds, in CPU time of one thread: they hold on a busy machine
too. Scoring is not part of it; benchmarks/search.py has the price of whole trials.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

import onnx
from onnx import helper

from benchmarks.case import BATCH
from benchmarks.nets import CASES
from pytest_int8acc.graph.half import to_fp16
from pytest_int8acc.graph.instrument import build_instrument
from pytest_int8acc.graph.network import Edge, Group, Network, Plan
from pytest_int8acc.graph.plan import apply
from pytest_int8acc.runtime.onnxruntime import OrtEngine
from pytest_int8acc.tensors import Feed

ROUNDS = 15
#: A case of each network.
NETWORKS = (
    "cnn_misscaled",
    "resnet_masked",
    "mobilenet_six",
    "vit_outliers",
    "resnet18_misscaled",
    "resnet50_misscaled",
    "mobilenetv2_per_tensor",
    "vit_s_outliers",
    "yolo_heads",
    "unet_interacting",
    "vit300_misscaled",
)
Run = Callable[[], object]
#: Stands between the name of a group and the position of its edge.
EDGE = "/edge"


def forms(network: Network, feed: Feed) -> dict[str, Run]:
    """Each form as a run: rebuilt, and switched in three ways, all groups in INT8 or every second one."""
    high = [group.name for group in network.groups][::2]
    half = Plan(dict.fromkeys(high, "fp16"))
    rebuilt = {"float": network.model, "FP16 rebuilt, half": to_fp16(apply(network, half)).model}
    runs: dict[str, Run] = {name: _run(OrtEngine(model, threads=1), feed) for name, model in rebuilt.items()}
    three = set(high[:: max(1, len(high) // 3)])
    ways = {
        "FP32": build_instrument(network),
        "FP32 per edge": build_instrument(edges_apart(network, {group.name for group in network.groups})),
        "FP32, 3 groups per edge": build_instrument(edges_apart(network, three)),
        "FP16": build_instrument(network, "fp16"),
    }
    for way, instrument in ways.items():
        engine = OrtEngine(instrument.model, threads=1)
        for share, groups in (("all", ()), ("half", high)):
            off = [name for name in instrument.controls.groups if name.partition(EDGE)[0] in groups]
            runs[f"{way}, {share}"] = _run(engine, {**feed, **instrument.controls.setting(off).inputs})
    return runs


def edges_apart(network: Network, groups: Collection[str]) -> Network:
    """The network with each activation edge of some groups as a group of its own: an Identity before it."""
    editor, left = network.model.edit(), list[Group]()
    added: dict[tuple[str, int], onnx.NodeProto] = {}
    for group in network.groups:
        activations = [edge for edge in group.edges if edge.quantization.values is None]
        if group.name not in groups or group.body_edges:
            left.append(group)
            continue
        left.append(replace(group, edges=tuple(edge for edge in group.edges if edge not in activations)))
        for edge in activations:
            name = editor.unique(f"{group.name}{EDGE}{edge.index}")
            node = helper.make_node("Identity", [edge.tensor], [f"{name}/out"], name)
            added[edge.node, edge.index] = node
            left.append(Group(name, "Identity", (name,), (Edge(name, 0, edge.tensor, edge.quantization),)))
    nodes: list[onnx.NodeProto] = []
    for node in editor.graph.node:
        for index in range(len(node.input)):
            if (node.name, index) in added:
                nodes.append(added[node.name, index])
                node.input[index] = nodes[-1].output[0]
        nodes.append(node)
    editor.set_nodes(nodes)
    return replace(network, model=editor.done(), groups=tuple(left))


def _run(engine: OrtEngine, feed: Feed) -> Run:
    return lambda: engine(feed)


def ratios(runs: Mapping[str, Run]) -> dict[str, float]:
    """Median over rounds of each run's time to that of the first in the same round."""
    first, *_ = runs
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(ROUNDS):
        for name, run in runs.items():
            began = time.thread_time()
            run()
            times[name].append(time.thread_time() - began)
    return {
        name: statistics.median(t / base for t, base in zip(taken, times[first], strict=True))
        for name, taken in times.items()
    }


def main() -> None:
    """Measure and print a table."""
    rows: dict[str, dict[str, float]] = {}
    for name in sys.argv[1:] or NETWORKS:
        case = CASES[name]()
        runs = forms(case.network, {key: array[:BATCH] for key, array in case.data.items()})
        rows[case.network.model.name] = ratios(runs)
        columns = [column for column in runs if column != "float"]
        if len(rows) == 1:
            print(f"| network | groups | {' | '.join(columns)} |\n|{'---|' * (len(columns) + 2)}")
        values = [f"{rows[case.network.model.name][column]:.2f}" for column in columns]
        print(f"| {name} | {len(case.network.groups)} | {' | '.join(values)} |", flush=True)
    medians = [f"{statistics.median(row[column] for row in rows.values()):.2f}" for column in columns]
    print(f"| median | | {' | '.join(medians)} |")


if __name__ == "__main__":
    main()
