"""Which culprits of a case in FP16 lose by sums in FP16: the case is run with such sums in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_int8acc.diagnose.stages import ROUNDING, strain
from pytest_int8acc.lab.lab import Lab
from pytest_int8acc.lab.sums import Sums
from pytest_int8acc.results import Culprit, Role
from pytest_int8acc.results.causes import Cause

#: Sums are to blame where they make at least this part of what the engine loses.
_LEAST = 0.5


def accumulating(lab: Lab, culprits: Sequence[Culprit]) -> dict[str, Cause]:
    """Culprits to the cause that their products are summed in FP16; without those that it is not shown of.

    Asked is only where the engine's kernels say so by their names, and where the engine loses more than its
    model does in ONNX Runtime, which sums in FP32. The model that sums as the kernels do must lose at
    least half as much as the engine, and each culprit's sums alone more than FP32 sums.

    Raises:
        EngineError: A model does not run.
        OutOfTime: Before the first one begins.
    """
    runs, sums = lab.measured.runs, Sums(lab)
    if Role.SIMULATED not in runs.roles or not sums.nodes:
        return {}
    engine, model = (strain(runs.scoring(Role.BASELINE, r).verdict()) for r in (Role.INT8, Role.SIMULATED))
    if model > _LEAST * engine:
        return {}
    summing = {c.layer: [node for node in c.nodes if node in sums.nodes] for c in culprits}
    summing = {layer: nodes for layer, nodes in summing.items() if nodes}
    together = strain(sums.judged(sums.nodes)) if summing else 0.0
    if together < _LEAST * engine:
        return {}
    low, found = lab.int8.low.name, {}
    for layer, nodes in summing.items():
        alone = together if nodes == list(sums.nodes) else strain(sums.judged(nodes))
        if alone > ROUNDING * model:
            longest = max(nodes, key=sums.products)
            numbers = {
                "products": sums.products(longest),
                "low_sums_share": _share(alone, engine),
                "fp32_sums_share": _share(model, engine),
            }
            tensor = lab.network.model.index.nodes[longest].output[0]
            found[layer] = Cause("accumulation", "sums-in-low", tensor, numbers, node=longest, format=low)
    return found


def _share(strained: float, engine: float) -> float:
    """Of the engine's loss; all of it where neither can be computed."""
    return 1.0 if strained >= engine else strained / engine
