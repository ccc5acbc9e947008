"""How costs grow with the number of groups: of a search, and of the work on graphs, where nothing is run.

The search's growth is a part of benchmarks/search.py, that of graphs of benchmarks/cost.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarks.architectures import vit_tiny
from benchmarks.case import Case
from benchmarks.nets import large
from benchmarks.simulate import simulator
from pytest_int8acc.answer.layers import outputs_of_groups
from pytest_int8acc.answer.symptoms import Surroundings
from pytest_int8acc.graph.half_network import emulate_network, network_to_fp16
from pytest_int8acc.graph.instrument import build_instrument, with_quantized_twins
from pytest_int8acc.graph.layout import find_groups, quantize
from pytest_int8acc.graph.lint import lint, lint_scales
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.network import Network
from pytest_int8acc.graph.plan import apply
from pytest_int8acc.graph.qdq import read_qdq
from pytest_int8acc.search.strategies import search
from pytest_int8acc.settings import Strategy

#: Transformer blocks, for 18, 50, 98 and 298 groups.
BLOCKS = (2, 6, 12, 37)
ROUNDS = 3


@dataclass(frozen=True)
class Growth:
    """One strategy on one size."""

    strategy: str
    groups: int
    kept: int
    trials: int
    cost: float
    """Trials and probes, in equivalents of a trial on all samples."""
    seconds: float
    sets: float
    """log2 of the number of sets of that many groups: the yes-or-no answers that tell one from all others."""


def network(blocks: int) -> Case:
    """Three wrong scales, early, in the middle and late."""
    first, middle, last = 0, blocks // 2, blocks - 1
    factors = {f"block{first}/fc2": 60, f"block{middle}/out": 100, f"block{last}/fc1": 250}
    return large(vit_tiny(blocks), {"cosine": 0.999}, factors=factors)


def grow(strategies: Sequence[Strategy], blocks: Sequence[int] = BLOCKS) -> list[Growth]:
    """Measure each of ``strategies`` on each size."""
    rows = []
    for size in blocks:
        case = network(size)
        for strategy in strategies:
            began = time.monotonic()
            found = search(simulator(case), strategy)
            n, k = len(case.network.groups), len(found.high)
            sets = math.log2(math.comb(n, k))
            rows.append(Growth(strategy, n, k, len(found.trials), found.cost, time.monotonic() - began, sets))
    return rows


def passes(model: Model) -> tuple[Network, Mapping[str, Callable[[], object]]]:
    """A network of ``model``, and each pass over its graph, which begins with nothing kept of other calls."""
    layout = find_groups(model)
    network = quantize(model, layout, dict.fromkeys(layout.activations, 0.02))
    half = network_to_fp16(network)
    emulated = emulate_network(half)
    quantized = apply(network)
    return network, {
        "groups": lambda: find_groups(_fresh(model)),
        "plan applied": lambda: apply(_anew(network)),
        "FP16": lambda: network_to_fp16(_anew(network)),
        "FP16 emulated": lambda: emulate_network(_anew(half)),
        "instrument": lambda: build_instrument(_anew(emulated)),
        "each group alone": lambda: with_quantized_twins(_anew(emulated), outputs_of_groups(emulated)),
        "Q/DQ read": lambda: read_qdq(_fresh(quantized), model),
        "lint": lambda: lint(_fresh(quantized), float_model=model),
        "lint of scales": lambda: lint_scales(_anew(network)),
        "surroundings": lambda: _surroundings(_anew(network)),
    }


def _surroundings(network: Network) -> None:
    """What a diagnosis asks of the graph, for every group."""
    around = Surroundings(network)
    for edge in network.edges:
        maker = around.maker(edge.tensor)
        around.concat_before(edge.tensor)
        if maker is not None:
            around.is_gelu(maker)


def _fresh(model: Model) -> Model:
    return Model(model.proto, model.weights, model.name)


def _anew(network: Network) -> Network:
    return replace(network, model=_fresh(network.model))


def graph_seconds(model: Model) -> tuple[int, dict[str, float]]:
    """Number of groups, and CPU seconds of each pass, the least of three rounds."""
    network, calls = passes(model)
    return len(network.groups), {name: min(map(_seconds, [call] * ROUNDS)) for name, call in calls.items()}


def _seconds(call: Callable[[], object]) -> float:
    began = time.process_time()
    call()
    return time.process_time() - began
