"""The plugin's simulator for a case, built as the plugin builds it for a spec."""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.case import BATCH, Case, dataset
from pytest_int8acc.case.shapes import tensor_shapes
from pytest_int8acc.graph.half import to_fp16
from pytest_int8acc.graph.instrument import Instrument, build_instrument
from pytest_int8acc.graph.macs import macs, sized_tensors
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.network import Network, Plan
from pytest_int8acc.lab.evaluators import Simulated
from pytest_int8acc.lab.simulator import Simulator
from pytest_int8acc.runtime.onnxruntime import OrtEngine
from pytest_int8acc.runtime.run import run_together
from pytest_int8acc.scores.judge import Judge
from pytest_int8acc.search.types import GroupInfo


def simulator(case: Case, batch: int = BATCH) -> Simulated:
    """A fresh simulator that remembers no trial; the baseline is FP16, groups kept high run in FP16."""
    with tempfile.TemporaryDirectory() as folder:
        opened = dataset(case.network.model, case.data, Path(folder), batch)
        baseline = run_together({"baseline": OrtEngine(baseline_model(case.network))}, opened)["baseline"]
        judge = Judge(case.limits, case.metrics, case.labels)
        made = Simulator(case.network, opened, baseline, judge, groups=groups(case))
        made.board(Plan())  # a search's seconds are its trials'
        return Simulated(made)


def baseline_model(network: Network) -> Model:
    """What INT8 is compared with."""
    return to_fp16(network.model).model


def instrument(network: Network) -> Instrument:
    """The network in FP16 with a switch per group."""
    return build_instrument(network, "fp16")


def groups(case: Case) -> list[GroupInfo]:
    """Groups with their prices in MACs for one sample."""
    feed = {name: array[:1] for name, array in case.data.items()}
    cost = macs(case.network, tensor_shapes(case.network.model, feed, sized_tensors(case.network.model)))
    return [GroupInfo(group.name, cost[group.name]) for group in case.network.groups]
