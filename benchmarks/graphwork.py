"""How the work on a network's graph grows with its number of groups; nothing is run.

    python -m benchmarks.graphwork [BLOCKS ...]

A line per pass: milliseconds per group, the least of three rounds, in CPU time.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from benchmarks.architectures import vit_tiny
from pytest_int8acc.diagnose.engine_layers import _chains
from pytest_int8acc.diagnose.layers import outputs_of_groups
from pytest_int8acc.diagnose.surroundings import Surroundings
from pytest_int8acc.graph.alone import beside
from pytest_int8acc.graph.fp16_network import emulate_network, network_to_fp16
from pytest_int8acc.graph.groups import find_groups
from pytest_int8acc.graph.lint import lint, lint_scales
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.network import Network
from pytest_int8acc.graph.plan import apply
from pytest_int8acc.graph.qdq import read_qdq
from pytest_int8acc.graph.quantize import quantize
from pytest_int8acc.graph.switchboard import build_switchboard

#: Transformer blocks, for 98, 298, 602 and 1002 groups.
BLOCKS = (12, 37, 75, 125)
ROUNDS = 3


def passes(model: Model) -> tuple[Network, dict[str, Callable[[], object]]]:
    """Each pass over a network's graph, ready to be called."""
    layout = find_groups(model)
    network = quantize(model, layout, dict.fromkeys(layout.activations, 0.02))
    half = network_to_fp16(network)
    emulated = emulate_network(half)
    quantized = apply(network)
    return network, {
        "find_groups": lambda: find_groups(_fresh(model)),
        "quantize": lambda: quantize(model, layout, dict.fromkeys(layout.activations, 0.02)),
        "apply": lambda: apply(_anew(network)),
        "to_fp16": lambda: network_to_fp16(_anew(network)),
        "emulate": lambda: emulate_network(_anew(half)),
        "switchboard": lambda: build_switchboard(_anew(emulated)),
        "alone": lambda: beside(_anew(emulated), outputs_of_groups(emulated)),
        "read Q/DQ": lambda: read_qdq(_fresh(quantized), model),
        "lint": lambda: lint(_fresh(quantized), float_model=model),
        "lint scales": lambda: lint_scales(_anew(network)),
        "surroundings": lambda: surroundings(_anew(network)),
        "fused chains": lambda: _chains(_anew(network)),
    }


def surroundings(network: Network) -> None:
    """What the diagnosis asks of the graph, for every group."""
    around = Surroundings(network)
    for group in network.groups:
        tensors = [e.tensor for e in group.edges if e.quantization.values is None]
        around.partner_edges(set(tensors))
        around.sensitive(group, tensors)


def _fresh(model: Model) -> Model:
    """The same model with nothing kept of earlier calls."""
    return Model(model.proto, model.weights, model.name)


def _anew(network: Network) -> Network:
    return Network(_fresh(network.model), network.groups, network.left_high, network.notes)


def measure(blocks: int, only: str = "") -> tuple[int, dict[str, float]]:
    """Number of groups, and CPU seconds of each pass."""
    network, calls = passes(vit_tiny(blocks))
    seconds: dict[str, float] = {}
    for name, call in calls.items():
        if only and name != only:
            continue
        for _ in range(ROUNDS):
            began = time.process_time()
            call()
            taken = time.process_time() - began
            seconds[name] = min(taken, seconds.get(name, taken))
            if taken > 5:
                break
    return len(network.groups), seconds


def main() -> None:
    """Measure and print a table."""
    found = [measure(int(blocks)) for blocks in sys.argv[1:] or BLOCKS]
    print("| ms per group at | " + " | ".join(f"{groups} groups" for groups, _ in found) + " |")
    print("|---|" + "---|" * len(found))
    for name in found[0][1]:
        print(f"| {name} | " + " | ".join(f"{1e3 * s[name] / n:.3g}" for n, s in found) + " |")
    print("| all | " + " | ".join(f"{1e3 * sum(s.values()) / n:.3g}" for n, s in found) + " |")


if __name__ == "__main__":
    main()
