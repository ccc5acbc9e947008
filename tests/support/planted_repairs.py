"""Planted faults, measured."""

from __future__ import annotations

from pathlib import Path

from repair_support import write_case

from pytest_int8acc import Settings, load_spec
from pytest_int8acc.case.measured import Measured, measure
from pytest_int8acc.graph.network import Network


def measured(
    folder: Path, network: Network, limits: dict[str, float], form: str = "model", **more: object
) -> Measured:
    (case,) = load_spec(write_case(folder, network, limits, form, **more))
    return measure(case, Settings(lint="warn"))  # repairs of what TensorRT refuses are seen, too
