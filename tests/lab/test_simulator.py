"""Plans simulated, against the same plans rebuilt; and how samples reach an engine."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from judged import Outputs, compare_outputs
from sample_outputs import reject
from stored_engine import SWITCH, StoredEngine, ids
from zoo_networks import dataset_for, zoo_network

import pytest_int8acc.lab.inputs
from pytest_int8acc import CriterionError
from pytest_int8acc.data import Dataset
from pytest_int8acc.graph.half import to_fp16
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.network import Plan
from pytest_int8acc.graph.plan import apply
from pytest_int8acc.lab.evaluators import Built, Simulated
from pytest_int8acc.lab.simulator import Simulator
from pytest_int8acc.runtime.onnxruntime import OrtEngine
from pytest_int8acc.runtime.run import run_together
from pytest_int8acc.scores.criteria import MetricLimit, OutputLimits
from pytest_int8acc.scores.judge import Judge
from pytest_int8acc.search.types import GroupInfo
from pytest_int8acc.tensors import Array, Feed

LIMITS = (OutputLimits("*", limits={"sqnr_db": 20, "cosine": 0.98, "max_abs": 0.5}),)
WANTED = Judge(LIMITS)


class Bench:
    """A network of the zoo, ready to simulate and to rebuild."""

    def __init__(self, name: str, folder: Path, form: str, limits: tuple[OutputLimits, ...] = LIMITS) -> None:
        self.network, self.form, self.limits = zoo_network(name), form, limits
        self.data = dataset_for(name, folder)
        self.baseline = self.run(to_fp16(self.network.model).model if form == "fp16" else self.network.model)
        groups = [GroupInfo(group.name) for group in self.network.groups]
        rest: str = "fp16" if form == "fp16" else "fp32"
        judge = Judge(limits)
        self.simulator = Simulator(self.network, self.data, self.baseline, judge, groups=groups, rest=rest)
        self.evaluator = Simulated(self.simulator)

    def run(self, model: Model) -> Outputs:
        return run_together({"it": OrtEngine(model)}, self.data)["it"]

    def rebuilt(self, high: frozenset[int]) -> Outputs:
        names = [group.name for group in self.network.groups]
        mixed = apply(self.network, Plan({names[i]: "fp16" for i in high}))
        return self.run(to_fp16(mixed).model if self.form == "fp16" else mixed)


def stored(count: int = 7, noise: float = 0.1, ragged: bool = False) -> tuple[list[Array], list[Array]]:
    rng = np.random.default_rng(1)
    shapes = [(3 + i % 2 if ragged else 4, 6) for i in range(count)]
    baseline = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
    return baseline, [b + noise * rng.normal(size=b.shape).astype(np.float32) for b in baseline]


class StoredBoard:
    """A board whose outputs are stored ones."""

    def __init__(self, engine: StoredEngine, groups: list[GroupInfo]) -> None:
        self.engine, self.groups = engine, groups

    def setting(self, high: Collection[str], scales: object) -> Any:
        return SimpleNamespace(inputs={SWITCH: np.array([group.name not in high for group in self.groups])})

    def run(self, feed: Feed, setting: Any) -> Feed:
        return self.engine({**feed, **setting.inputs})


def simulator_of(
    engine: StoredEngine,
    data: Dataset,
    wanted: Judge = WANTED,
    samples: tuple[int, ...] | None = None,
) -> Simulated:
    off = np.zeros(engine.inputs[1].shape, np.bool_)  # type: ignore[arg-type]
    baseline: Outputs = {output.name: [] for output in engine.outputs}
    for batch in data.batches():
        for name, array in engine({**batch.feed, SWITCH: off}).items():
            baseline[name].append(array[: batch.rows])
    engine.runs.clear()
    groups = [GroupInfo(f"g{i}") for i in range(len(off))]
    network: Any = SimpleNamespace(model=SimpleNamespace(inputs=engine.inputs[:1]), groups=())
    simulator: Any = Simulator(network, data, baseline, wanted, groups=groups)
    simulator.board = lambda plan: StoredBoard(engine, groups)
    return Simulated(simulator, None, samples)


def test_samples_run_in_the_order_asked_for(tmp_path: Path) -> None:
    engine = StoredEngine(*({"y": arrays} for arrays in stored()))
    simulator = simulator_of(engine, ids(7, tmp_path, batch=4))
    simulator.trial(frozenset(), [6, 2, 0, 1, 5, 4, 3], None)
    assert engine.runs == [[6, 2, 0, 1], [5, 4, 3]]


def test_a_fixed_batch_is_filled_up(tmp_path: Path) -> None:
    engine = StoredEngine(*({"y": arrays} for arrays in stored()), batch=3)
    simulator = simulator_of(engine, ids(7, tmp_path, fixed=3))
    trial = simulator.trial(frozenset(), [6, 2, 0, 1, 5, 4, 3], None)
    assert engine.runs == [[6, 2, 0], [1, 5, 4], [3, 3, 3]]
    assert trial.confirmed
    expected = compare_outputs(*({"y": [np.stack(arrays)]} for arrays in stored()), LIMITS)
    np.testing.assert_allclose(trial.scores, [s.value for s in expected[0].scores if s.limit is not None])


def test_samples_of_unlike_shapes_run_apart(tmp_path: Path) -> None:
    baseline, candidate = stored(ragged=True)
    engine = StoredEngine({"y": baseline}, {"y": candidate})
    simulator = simulator_of(engine, ids(7, tmp_path, batch=1))
    trial = simulator.trial(frozenset(), range(7), None)
    expected = compare_outputs(*({"y": [b[None] for b in arrays]} for arrays in stored(ragged=True)), LIMITS)
    np.testing.assert_allclose(trial.scores, [s.value for s in expected[0].scores if s.limit is not None])
    vectors = simulator.probe([frozenset()], [3, 0])[0].vectors
    assert [v.shape for v in vectors] == [(2, 24)] * 3


def test_large_inputs_are_read_again_in_their_own_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, read = (StoredEngine(*({"y": arrays} for arrays in stored())) for _ in range(2))
    data = ids(7, tmp_path, batch=4)
    expected = simulator_of(kept, data, samples=(0, 2, 3, 5, 6)).trial(frozenset(), [4, 1, 0, 2, 3], None)
    monkeypatch.setattr(pytest_int8acc.lab.inputs, "MEMORY_BYTES", 0)
    simulator = simulator_of(read, data, samples=(0, 2, 3, 5, 6))
    trial = simulator.trial(frozenset(), [4, 1, 0, 2, 3], None)
    assert read.runs == [[0, 2, 3, 5], [6]]
    np.testing.assert_allclose(trial.scores, expected.scores)
    np.testing.assert_allclose(trial.parts, expected.parts)
    read.runs.clear()
    some = [3, 1]
    probes = simulator.probe([frozenset(), frozenset({0})], some)
    assert read.runs == [[2, 5], [2, 5]]
    again = simulator_of(kept, data, samples=(0, 2, 3, 5, 6)).probe([frozenset()], some)
    np.testing.assert_allclose(probes[0].vectors[0], again[0].vectors[0])


def test_outputs_that_cannot_be_cut_make_a_batch_a_sample(tmp_path: Path) -> None:
    """The zoo's mlp multiplies from the left: its outputs have no row per sample."""
    bench = Bench("mlp", tmp_path, "fp32")
    assert (bench.data.samples, bench.evaluator.samples) == (48, 3)
    inputs = bench.simulator.inputs
    assert (len(inputs), inputs.rows([0, 2])) == (3, [*range(16), *range(32, 48)])


def test_the_search_sees_its_samples_only(tmp_path: Path) -> None:
    baseline, candidate = stored()
    engine = StoredEngine({"y": baseline}, {"y": candidate})
    labels = np.arange(7)
    seen: list[list[int]] = []

    def metric(outputs: dict[str, Array], labels: Array) -> float:
        seen.append(labels.tolist())
        return float(outputs["y"].sum())

    wanted = Judge([], [(MetricLimit("m.py:f", min=-1e9), metric)], labels)
    simulator = simulator_of(engine, ids(7, tmp_path, batch=4), wanted, (1, 2, 5))
    trial = simulator.trial(frozenset(), [2, 0, 1], None)
    assert engine.runs == [[5, 1, 2]]
    assert trial.scores == (pytest.approx(float(np.stack([candidate[i] for i in (1, 2, 5)]).sum())),)
    assert seen == [[1, 2, 5]] * len(seen)
    by_name = Judge(
        [], [(MetricLimit("m.py:g", min=-1e9), lambda o, labels: float(labels["a"].sum()))], {"a": labels}
    )
    assert simulator_of(engine, ids(7, tmp_path, batch=4), by_name, (1, 2)).trial(
        frozenset(), [0, 1], None
    ).scores == (3.0,)


def test_a_trial_ends_where_it_may_and_is_remembered_where_it_did_not(tmp_path: Path) -> None:
    engine = StoredEngine(*({"y": arrays} for arrays in stored(20, noise=2.0)))
    simulator = simulator_of(engine, ids(20, tmp_path, batch=4))
    early = simulator.trial(frozenset({1}), range(20), reject(simulator.seen.judge))
    assert (early.passed, early.confirmed, early.cost, len(engine.runs)) == (False, False, 0.2, 1)
    full = simulator.trial(frozenset({1}), range(20), None)
    assert (full.passed, full.confirmed, full.cost, len(engine.runs)) == (False, True, 1.0, 6)
    again = simulator.trial(frozenset({1}), range(20), None)
    assert (again.scores, again.cost, len(engine.runs)) == (full.scores, 0.0, 6)
    good = simulator.trial(frozenset({0, 1, 2}), range(20), reject(simulator.seen.judge))
    assert (good.passed, good.losses) == (True, (0.0, 0.0, 0.0))


def test_probes_measure_plans_on_a_few_samples(tmp_path: Path) -> None:
    baseline, candidate = stored(noise=0.01)
    engine = StoredEngine({"y": baseline}, {"y": candidate})
    simulator = simulator_of(engine, ids(7, tmp_path, batch=4))
    off, on = simulator.probe([frozenset({0, 1, 2}), frozenset({0})], [5, 2])
    assert engine.runs == [[5, 2], [5, 2]]
    assert not any(vectors.any() for vectors in off.vectors)
    error = np.stack([(candidate[i] - baseline[i]).ravel() for i in (5, 2)])
    np.testing.assert_allclose(on.vectors[2], error / 0.5, rtol=1e-4)
    trial = simulator.trial(frozenset({0}), range(7), None)
    np.testing.assert_allclose(on.parts[[0, 2]], trial.parts[[0, 2]][:, [5, 2]], rtol=1e-6)
    np.testing.assert_allclose(on.parts[1], trial.parts[1, [5, 2]], rtol=0.2)


def test_a_criterion_that_does_not_fit_is_an_error(tmp_path: Path) -> None:
    engine = StoredEngine(*({"y": arrays} for arrays in stored()))
    with pytest.raises(CriterionError, match="matches no output"):
        simulator_of(engine, ids(7, tmp_path), Judge([OutputLimits("z", limits={"cosine": 0.9})]))


@pytest.mark.parametrize("name", ["residual", "yolo", "mlp"])
def test_built_models_are_judged_on_the_same_samples(name: str, tmp_path: Path) -> None:
    bench = Bench(name, tmp_path, "fp32")
    seen = range(0, len(bench.simulator.inputs), 2)
    simulator = Simulated(bench.simulator, None, seen)
    builds: list[frozenset[int]] = []

    def build(plan: Plan) -> Iterator[Feed]:
        builds.append(simulator.indices(plan.high))
        outputs = bench.rebuilt(builds[-1])
        return (dict(zip(outputs, arrays, strict=True)) for arrays in zip(*outputs.values(), strict=True))

    evaluator = Built(simulator, build)
    for attribute in ("groups", "criteria", "samples", "targets"):
        assert getattr(evaluator, attribute) == getattr(simulator, attribute)
    for high in (frozenset[int](), frozenset({0})):
        built = evaluator.trial(high, range(evaluator.samples), lambda parts: True)
        simulated = simulator.trial(high, range(evaluator.samples), None)
        np.testing.assert_allclose(built.losses, simulated.losses, rtol=1e-3)
        assert (built.passed, built.confirmed, built.cost) == (simulated.passed, True, 1.0)
        assert evaluator.trial(high, range(evaluator.samples), None).cost == 0.0
    assert builds == [frozenset(), frozenset({0})]
    (probe,) = evaluator.probe([frozenset()], [0])
    assert len(probe.vectors) == len(simulator.targets)


def test_runs_grow_since_most_rejections_come_early(tmp_path: Path) -> None:
    values = np.arange(128 * 4, dtype=np.float32).reshape(128, 4)
    engine = StoredEngine({"y": list(values)}, {"y": list(values)})
    simulator = simulator_of(engine, ids(128, tmp_path, batch=32))
    simulator.trial(frozenset(), range(128), None)
    assert [len(run) for run in engine.runs] == [8, 8, 16, 32, 32, 32]


def test_samples_of_a_probe_run_at_once(tmp_path: Path) -> None:
    """All of them are wanted: no plan is rejected on the way. But never more than the user's batch."""
    values = np.arange(128 * 4, dtype=np.float32).reshape(128, 4)
    engine = StoredEngine({"y": list(values)}, {"y": list(values)})
    simulator_of(engine, ids(128, tmp_path, batch=32)).probe([frozenset()], range(40))
    assert [len(run) for run in engine.runs] == [32, 8]


def test_runs_of_large_inputs_stay_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Below the batch that the user chose: an instrument takes more memory than the model."""
    monkeypatch.setattr(pytest_int8acc.lab.inputs, "_RUN_BYTES", 6 * np.dtype(np.int64).itemsize)
    values = np.zeros((64, 4), np.float32)
    engine = StoredEngine({"y": list(values)}, {"y": list(values)})
    simulator_of(engine, ids(64, tmp_path, batch=32)).trial(frozenset(), range(64), None)
    assert [len(run) for run in engine.runs] == [4, 4, *[6] * 9, 2]
