"""What a switch per group costs: one batch through each form of each network, in turn.

    python -m benchmarks.switchboard [CASE ...]

Ratios to the optimized float model, medians of rounds, in CPU time of one thread: they hold on a busy machine
too. Scoring is not part of it; benchmarks/search.py has the price of whole trials.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Mapping

import numpy as np

from benchmarks.case import BATCH
from benchmarks.nets import CASES
from pytest_int8acc.graph.fp16_network import emulate_network, network_to_fp16
from pytest_int8acc.graph.network import Network, Plan
from pytest_int8acc.graph.plan import apply
from pytest_int8acc.graph.switchboard import build_switchboard
from pytest_int8acc.graph.to_fp16 import to_fp16
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


def forms(network: Network, feed: Feed) -> dict[str, Run]:
    """Each form as a run: rebuilt and switched, in FP32 and FP16, all groups in INT8 or every second one."""
    names = [group.name for group in network.groups]
    half = Plan(dict.fromkeys(names[::2], "fp16"))
    engines = {
        "float": network.model,
        "FP32 rebuilt, half": apply(network, half),
        "FP16 rebuilt, half": to_fp16(apply(network, half)).model,
    }
    runs: dict[str, Run] = {name: _run(OrtEngine(model, threads=1), feed) for name, model in engines.items()}
    for form, switched in (("FP32", network), ("FP16", emulate_network(network_to_fp16(network)))):
        board = build_switchboard(switched)
        engine = OrtEngine(board.model, threads=1)
        for share, on in (("all", np.ones(len(names), np.bool_)), ("half", np.arange(len(names)) % 2 == 1)):
            runs[f"{form} switched, {share}"] = _run(engine, {**feed, board.switch: on})
    return runs


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
