"""One planted fault: what must stay in FP32, by trying all sets of its nodes, and what the plugin names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
import onnx

from benchmarks.bodies import HOLDER, Holder, wrapped
from benchmarks.half.networks import IN_BODIES, Part, build, inputs
from pytest_int8acc.api import check
from pytest_int8acc.graph.formats import FP16
from pytest_int8acc.graph.half import to_fp16
from pytest_int8acc.graph.half_network import low_network
from pytest_int8acc.graph.load import normalize
from pytest_int8acc.graph.model import Model, make_model, save_model
from pytest_int8acc.results import CaseResult
from pytest_int8acc.runtime.onnxruntime import OrtEngine
from pytest_int8acc.settings import Settings
from pytest_int8acc.spec.load import load_spec

#: What outputs must keep; FP16 keeps 58 dB and more where nothing is planted.
LIMIT_DB = 50.0


@dataclass(frozen=True)
class Record:
    """What came of one network with one part."""

    network: str
    part: str
    fp16_db: float
    truths: tuple[frozenset[str], ...]
    """Smallest sets of nodes that must stay in FP32, each as good; an empty one where FP16 is right."""
    passed: bool
    found: frozenset[str]
    verified: bool
    proven: bool
    joined: int
    casts: int
    trials: int
    seconds: float

    @property
    def truth(self) -> frozenset[str]:
        """That of ``truths`` which is nearest to what was found."""
        return max(self.truths, key=lambda truth: len(truth & self.found))


def measure(network: str, name: str, part: Part, folder: Path) -> Record:
    """Plant a part, find the truth by exhaustion, and run the plugin on it.

    The truth of a network in a body is that of the network itself.
    """
    flat, holder = IN_BODIES.get(network, (network, None))
    model = build(flat, part)
    judge, samples = Judge(model, inputs(flat)), inputs(flat)
    tried = model if holder is None else _in_body(model, holder)
    result = run(tried, samples, folder)
    search = result.search
    found = (culprit.layer for culprit in search.culprits) if search else ()
    return Record(
        network,
        name,
        judge.sqnr_db(frozenset()),
        tuple(truths(model, judge)),
        result.passed,
        frozenset(layer.removeprefix(f"{HOLDER}/") for layer in found),
        bool(search and search.verified),
        bool(search and search.minimal),
        len(search.joined) if search else 0,
        (search.casts or 0) if search else 0,
        len(search.trials) if search else 0,
        result.seconds,
    )


def _in_body(model: Model, holder: Holder) -> Model:
    proto = onnx.ModelProto.FromString(model.serialize())
    return normalize(make_model(wrapped(proto, holder)))


def run(model: Model, x: np.ndarray, folder: Path, low: str = "fp16") -> CaseResult:
    """The plugin's own result."""
    save_model(model, folder / "model.onnx")
    np.savez(folder / "data.npz", x=x)
    spec = folder / "case.int8acc.yaml"
    spec.write_text(
        f"model: model.onnx\ninputs: data.npz\ncandidate: {low}\ncriteria: [{{sqnr_db: {LIMIT_DB}}}]\n"
        "accept_blind: untrained\n"
    )
    (case,) = load_spec(spec)
    return check(case, Settings())


class Judge:
    """Scores sets of nodes kept in FP32, apart from the plugin's search and judge."""

    def __init__(self, model: Model, x: np.ndarray) -> None:
        """Run the model in FP32."""
        self.model, self.x = model, x
        self.truth = self._run(model)

    def _run(self, model: Model) -> np.ndarray:
        (output,) = OrtEngine(model, threads=1)({"x": self.x}).values()
        return output.astype(np.float64)

    def sqnr_db(self, kept: frozenset[str]) -> float:
        """Of the model in FP16 with these nodes in FP32; -inf where it is not finite."""
        return self.score(to_fp16(self.model, kept).model)

    def score(self, model: Model) -> float:
        """The same of any other model."""
        error = np.square(self._run(model) - self.truth).sum()
        if not np.isfinite(error):
            return -np.inf
        return float(10 * np.log10(np.square(self.truth).sum() / max(error, 1e-300)))


def truths(model: Model, judge: Judge) -> Iterator[frozenset[str]]:
    """The smallest sets of the part's groups that, kept in FP32, meet the limit: all sets are tried."""
    groups = {
        g.name: frozenset(g.nodes) for g in low_network(model, FP16).groups if g.name.startswith("part/")
    }
    for size in range(len(groups) + 1):
        found = [
            frozenset(names)
            for names in combinations(groups, size)
            if judge.sqnr_db(frozenset[str]().union(*(groups[n] for n in names))) >= LIMIT_DB
        ]
        if found:
            yield from found
            return
    raise AssertionError("the part in FP32 does not meet the limit: the network itself is off")
