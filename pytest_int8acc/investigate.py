"""Why a case failed: the groups that must leave INT8, searched in a simulation and proved by building.

    network ── switchboard ── simulator ──→ strategy ──→ plan ── applied, built, run, judged ──→ verified
                  (part of the samples)                              (all samples)

Where the proof contradicts the simulation, that is said, and the search goes on with built models.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pytest_int8acc.engines.onnxruntime import OrtEngine
from pytest_int8acc.engines.run import run_together
from pytest_int8acc.graph.half_network import emulate_network, halve_network
from pytest_int8acc.graph.macs import macs
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.network import Plan
from pytest_int8acc.graph.switchboard import build_switchboard
from pytest_int8acc.measure import Measured
from pytest_int8acc.results import Culprit, LayerLine, Score, SearchOutcome, TrialLine
from pytest_int8acc.search import search
from pytest_int8acc.search.engine_evaluator import EngineEvaluator
from pytest_int8acc.search.simulator import Simulator, split
from pytest_int8acc.search.types import Budget, GroupInfo, SearchResult
from pytest_int8acc.tensors import Outputs

logger = logging.getLogger("pytest_int8acc")
#: Above this share of the MACs leaving INT8, training with quantization is the better way (background: tips).
QAT_SHARE = 0.5


@dataclass(frozen=True, eq=False)
class Fix:
    """A plan that was built and met the criteria, and the model it made."""

    model: Model
    plan: Plan
