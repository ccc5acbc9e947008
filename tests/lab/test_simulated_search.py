"""The default strategy on simulated networks: it finds the groups whose scales are wrong, and no more."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import numpy as np
import pytest
from zoo_networks import dataset_for, zoo_network

from pytest_int8acc.case.judge import Judge
from pytest_int8acc.engines.onnxruntime import OrtEngine
from pytest_int8acc.engines.run import run_together
from pytest_int8acc.graph.groups import find_groups
from pytest_int8acc.graph.macs import macs, sized_tensors
from pytest_int8acc.graph.network import Network, Plan
from pytest_int8acc.graph.plan import apply
from pytest_int8acc.graph.quantize import quantize
from pytest_int8acc.lab.evaluators import Simulated
from pytest_int8acc.lab.simulator import Simulator
from pytest_int8acc.measure.shapes import tensor_shapes
from pytest_int8acc.scales.calibrate import calibrate
from pytest_int8acc.scores.compare import compare_outputs
from pytest_int8acc.scores.criteria import OutputLimits
from pytest_int8acc.search import STRATEGIES
from pytest_int8acc.search.types import GroupInfo

WRONG = 50
#: What the limit leaves to the other groups, in dB below what they reach.
ROOM = 2.0


class Planted:
    """A network of the zoo, well calibrated but for a few tensors, and limits that it keeps without those."""

    def __init__(self, name: str, tensors: int, seed: int, folder: Path) -> None:
        model = zoo_network(name).model
        self.data = dataset_for(name, folder, batches=6)
        self.baseline = run_together({"it": OrtEngine(model)}, self.data)["it"]
        layout = find_groups(model)
        scales = dict(calibrate(model, layout.activations, self.data, method="minmax").values)
        chosen = np.random.default_rng(seed).choice(layout.activations, tensors, replace=False).tolist()
        self.network = quantize(model, layout, scales | {t: WRONG * scales[t] for t in chosen})
        self.culprits = {g.name for g in self.network.groups if any(e.tensor in chosen for e in g.edges)}
        cured = self.sqnr(self.network, self.culprits)
        self.limits = [OutputLimits(k, limits={"sqnr_db": v - ROOM}) for k, v in cured.items()]

    def sqnr(self, network: Network, high: Collection[str]) -> dict[str, float]:
        """Per output, of the plan rebuilt."""
        engine = OrtEngine(apply(network, Plan(dict.fromkeys(high, "fp32"))))
        results = compare_outputs(self.baseline, run_together({"it": engine}, self.data)["it"])
        return {r.name: s.value for r in results for s in r.scores if s.metric == "sqnr_db"}

    def passes(self, high: Collection[str]) -> bool:
        found = self.sqnr(self.network, high)
        return all(found[c.output] >= c.limits["sqnr_db"] for c in self.limits)

    def simulated(self) -> Simulated:
        feed, wanted = next(iter(self.data.batches())).feed, sized_tensors(self.network)
        prices = macs(self.network, tensor_shapes(self.network.model, feed, wanted))
        groups = [GroupInfo(group.name, prices[group.name]) for group in self.network.groups]
        judge = Judge(self.limits)
        return Simulated(
            Simulator(self.network, self.data, self.baseline, judge, groups=groups, rest="fp32"), keep="fp32"
        )


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("tensors", [1, 2, 3])
@pytest.mark.parametrize("name", ["residual", "inception", "yolo", "vit_gelu", "unet"])
def test_minimal_finds_wrong_scales_and_no_more(name: str, tensors: int, seed: int, tmp_path: Path) -> None:
    planted = Planted(name, tensors, seed, tmp_path)
    result = STRATEGIES["minimal"](planted.simulated())
    assert (result.passed, result.minimal, result.ending.early) == (True, True, False)
    assert planted.passes(result.high), "the rebuilt model says otherwise"
    for one in result.high:
        assert not planted.passes(set(result.high) - {one}), f"{one} need not leave"
    assert set(result.high) <= planted.culprits
    assert result.high or planted.passes([]), "nothing is wrong where the wrong scales do no harm"
