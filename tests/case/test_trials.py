"""Parts, losses and early rejection against the functions that judge a case."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from judged import compare_outputs, evaluate_metric
from sample_outputs import Samples, one, reject, trial_of

from pytest_int8acc import CriterionError
from pytest_int8acc.case.trials import SampleBaseline, SampleComparison
from pytest_int8acc.lab.vectors import Prober
from pytest_int8acc.scores.criteria import MetricLimit, OutputLimits
from pytest_int8acc.scores.judge import Judge
from pytest_int8acc.scores.metrics import METRICS
from pytest_int8acc.tensors import Array

FLOATS = [name for name, metric in METRICS.items() if "floats" in metric.kinds]


def limits_on(name: str) -> st.SearchStrategy[float]:
    """Limits between hopeless and generous."""
    metric = METRICS[name]
    if metric.name.endswith("_db"):
        return st.floats(-10, 70)
    if metric.bound == "min":
        return st.floats(-0.5 if name == "cosine" else 0, 1)
    greatest = 1e5 if name == "tolerance" else 50
    return st.just(0.0) | st.floats(1e-9, 1) | st.floats(1e-9, greatest)


def judged(judge: SampleBaseline, candidate: Samples, order: list[int], step: int = 1) -> tuple[Any, Any]:
    """The trial on all samples, and the one that ends where the parts prove failure."""
    proven = reject(judge)
    gathered, early = SampleComparison(judge), None
    for start in range(0, len(order), step):
        some = order[start : start + step]
        gathered.add_samples(some, {name: [arrays[i] for i in some] for name, arrays in candidate.items()})
        if early is None and proven(gathered.parts()):
            early = gathered.trial(frozenset())
    trial = gathered.trial(frozenset())
    return trial, early or trial


@st.composite
def runs(draw: st.DrawFn) -> tuple[Samples, Samples]:
    """Baseline and candidate of one output, [1, ...] per sample; some are ragged, empty or broken."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    count, classes = draw(st.integers(1, 12)), draw(st.integers(6, 9))
    rows = draw(st.sampled_from([(), (), (3,), None]))
    noise = draw(st.sampled_from([0.0, 1e-3, 0.05, 0.3, 3.0]))
    baseline, candidate = [], []
    for sample in range(count):
        shape = (1, *((int(rng.integers(sample == 0, 4)),) if rows is None else rows), classes)
        b = rng.normal(size=shape).astype(np.float32) * np.float32(rng.uniform(0.1, 3))
        e = rng.normal(size=shape).astype(np.float32) * np.float32(noise * rng.uniform(0, 2))
        baseline.append(np.round(b, 1) if draw(st.booleans()) else b)  # ties
        c = (baseline[-1] + e).astype(np.float32)
        candidate.append(np.round(c, 1) if draw(st.booleans()) else c)
    spoil = draw(st.sampled_from(["", "", "", "nan", "inf", "shape"]))
    if spoil:
        victim = int(rng.integers(count))
        if spoil == "shape":
            candidate[victim] = candidate[victim][..., :-1]
        elif candidate[victim].size:
            candidate[victim].reshape(-1)[0] = float(spoil)
    return {"y": baseline}, {"y": candidate}


@settings(max_examples=150, deadline=None)
@given(runs(), st.data())
def test_trials_say_what_the_case_would(outputs: tuple[Samples, Samples], data: st.DataObject) -> None:
    baseline, candidate = outputs
    names = data.draw(st.lists(st.sampled_from(FLOATS), min_size=1, max_size=3, unique=True))
    spared = data.draw(st.sampled_from([None, None, 0.0, 0.3]))
    limits = OutputLimits("y", limits={name: data.draw(limits_on(name)) for name in names}, spared=spared)
    judge = SampleBaseline(baseline, Judge([limits]))
    order = data.draw(st.permutations(range(judge.samples)))
    trial, early = judged(judge, candidate, order, data.draw(st.integers(1, 4)))
    (expected,) = compare_outputs(baseline, candidate, [limits])
    scores = [score for score in expected.scores if score.limit is not None]
    assert (trial.passed, trial.confirmed, trial.cost) == (expected.passed, True, 1.0)
    np.testing.assert_allclose(trial.scores, [s.value for s in scores], rtol=1e-9, atol=1e-12)
    assert [loss <= 1 for loss in trial.losses] == [s.passed and not expected.problem for s in scores]
    assert not (early.passed and not early.confirmed)
    if not early.confirmed:
        assert not expected.passed, "rejected what passes"
        assert np.isnan(early.parts).any(axis=1).all()
    check_parts(judge, trial)


def check_parts(judge: SampleBaseline, trial: Any) -> None:
    """Parts make up the losses: their mean, or the greatest but those allowed."""
    assert (trial.parts >= 0).all()
    together = zip(judge.criteria, trial.losses, trial.scores, trial.parts, strict=True)
    for criterion, loss, score, parts in together:
        if not np.isfinite(parts).all() or not math.isfinite(loss):
            continue
        if criterion.pool == "rank":
            assert ((parts > 1).sum() > criterion.allowed) == (loss > 1)
        elif "cosine" not in criterion.text or score > 0:
            np.testing.assert_allclose(parts.mean(), loss, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", ["sqnr_db", "cosine"])
def test_where_each_sample_counts_a_faint_one_has_error_vectors_as_long(name: str) -> None:
    rng = np.random.default_rng(0)
    outputs = {"y": [(scale * rng.normal(size=(1, 64))).astype(np.float32) for scale in (0.01, 1.0, 30.0)]}
    limit = {"sqnr_db": 20.0, "cosine": 0.995}[name]
    baseline = SampleBaseline(outputs, Judge([OutputLimits("y", limits={name: limit}, spared=0.0)]))
    errors = [0.05 * np.abs(array).mean() * rng.normal(size=array.shape) for array in outputs["y"]]
    candidate = [np.float32(array + error) for array, error in zip(outputs["y"], errors, strict=True)]
    probe = Prober(baseline).probe(range(3), [(range(3), {"y": candidate})])
    lengths = np.square(probe.vectors[0]).sum(axis=1)
    np.testing.assert_allclose(lengths, probe.parts[0], rtol=0.3)


def test_criteria_follow_the_scores_of_the_case() -> None:
    b, c = one(6, 8)
    limits = [
        OutputLimits("[ab]", limits={"sqnr_db": 20, "top1_agreement": 0.5}),
        OutputLimits("b", limits={"cosine": 0.9}),
    ]
    metric = MetricLimit("m.py:mean", max=3.0, max_drop=0.5)
    judge = SampleBaseline(
        {"a": b, "b": b, "c": b}, Judge(limits, [(metric, lambda o: float(o["a"].mean()))])
    )
    assert [c.text for c in judge.criteria] == [
        "a sqnr_db ≥ 20",
        "a top1_agreement ≥ 0.5",
        "b sqnr_db ≥ 20",
        "b top1_agreement ≥ 0.5",
        "b cosine ≥ 0.9",
        "m.py:mean ≤ 3",
        f"m.py:mean ≥ {np.mean(b) - 0.5:g}",
    ]
    assert [c.pool for c in judge.criteria] == ["mean", "rank", "mean", "rank", "mean", "whole", "whole"]
    assert [t.power for t in Prober(judge).targets] == [2, 1, 2, 1, 2, 1, 1]
    trial = trial_of(judge, {"a": c, "b": c, "c": c})
    assert len(trial.losses) == len(trial.scores) == len(trial.parts) == 7


def test_without_criteria_every_output_keeps_the_default() -> None:
    b, c = one()
    tokens = [np.arange(4).reshape(1, 4)] * 6
    judge = SampleBaseline({"y": b, "tokens": tokens}, Judge())
    assert [c.text for c in judge.criteria] == ["y sqnr_db ≥ 20", "tokens agreement ≥ 0.99"]
    assert not trial_of(judge, {"y": c, "tokens": tokens}).passed
    assert trial_of(judge, {"y": b, "tokens": tokens}).losses == (0.0, 0.0)


def test_integers_and_strings_agree_element_by_element() -> None:
    tokens = [np.array([[i, i + 1, i + 2, 9]]) for i in range(5)]
    words = [np.array([[str(i), "x"]], object) for i in range(5)]
    limits = [
        OutputLimits("tokens", limits={"agreement": 0.9}),
        OutputLimits("words", limits={"agreement": 1}),
    ]
    judge = SampleBaseline({"tokens": tokens, "words": words}, Judge(limits))
    wrong = [np.where(t == 4, 0, t) for t in tokens]  # 3 of 20
    trial = trial_of(judge, {"tokens": wrong, "words": [*words[:4], words[0]]})
    assert trial.scores == (0.85, 0.9)
    assert trial.losses[0] == pytest.approx(1.5)
    assert trial.losses[1] == math.inf
    np.testing.assert_allclose(trial.parts[0], [0, 0, 2.5, 2.5, 2.5], rtol=1e-6)
    run = [2, 0], {"tokens": [wrong[2], wrong[0]], "words": words[:2]}
    (vectors, _) = Prober(judge).probe([2, 0], [run]).vectors
    assert (vectors[0] > 0).tolist() == [False, False, True, False]


FREE = OutputLimits("*o*", unjudged=True)


def test_nan_in_an_output_without_limits_fails_the_plan_at_once() -> None:
    b, c = one()
    judge = SampleBaseline({"y": b, "other": b}, Judge([OutputLimits("y", limits={"sqnr_db": -50}), FREE]))
    assert trial_of(judge, {"y": c, "other": c}).passed
    full = [np.full_like(a, np.nan) if i == 3 else a for i, a in enumerate(c)]
    trial = trial_of(judge, {"y": c, "other": full})
    assert not trial.passed
    assert trial.losses == (math.inf,)
    assert trial.parts[0, 3] == np.inf
    assert reject(judge)(trial.parts)


def test_shapes_that_differ_matter_where_there_is_a_limit() -> None:
    b, c = one(4, 5)
    judge = SampleBaseline({"y": b, "boxes": b}, Judge([OutputLimits("y", limits={"sqnr_db": 5}), FREE]))
    fewer = [array[:, :3] for array in b]
    assert trial_of(judge, {"y": c, "boxes": fewer}).passed
    trial = trial_of(judge, {"y": fewer, "boxes": b})
    assert (trial.passed, trial.losses) == (False, (math.inf,))
    assert np.isposinf(trial.parts).all()
    whole = [array.astype(np.int64) for array in b]
    assert np.isposinf(trial_of(judge, {"y": whole, "boxes": b}).parts).all()


def test_a_baseline_that_is_not_finite_is_the_users_mistake() -> None:
    b, c = one()
    b[2] = np.full_like(b[2], np.inf)
    judge = SampleBaseline({"y": b}, Judge([OutputLimits("y", limits={"sqnr_db": 5})]))
    with pytest.raises(CriterionError, match=r"the baseline itself is not finite"):
        trial_of(judge, {"y": c})


def test_users_metrics_are_asked_only_when_all_samples_are_seen() -> None:
    b, c = one()
    seen: list[int] = []

    def first(outputs: dict[str, Array], labels: Array) -> float:
        seen.append(len(outputs["y"]))
        return float((outputs["y"].argmax(-1) == labels).mean())

    labels = np.array([array.argmax() for array in b])
    limits = MetricLimit("m.py:first", max_drop=0.5)
    judge = SampleBaseline({"y": b}, Judge([], [(limits, first)], labels))
    part = trial_of(judge, {"y": c}, [4, 0])
    assert (part.passed, part.losses, part.cost) == (False, (0.0,), 2 / 6)
    assert np.isnan(part.parts).all()
    assert set(seen) == {6}
    (score,) = evaluate_metric(limits, first, {"y": [np.concatenate(b)]}, {"y": [np.concatenate(c)]}, labels)
    whole = trial_of(judge, {"y": c}, [3, 1, 0, 2, 4, 5])
    assert (whole.passed, whole.scores) == (score.passed, (score.value,))
    vectors = Prober(judge).probe([1, 2], [([1, 2], {"y": c[1:3]})]).vectors[0]
    assert np.linalg.norm(vectors) > 0


def test_a_sample_on_the_way_to_another_class() -> None:
    b = [np.array([[3.0, 1.0, 0.0, 0.0, 0.0, 0.0]], np.float32)] * 3
    c = [
        b[0] + np.float32([[-0.5, 0.5, 0, 0, 0, 0]]),
        b[0] + np.float32([[0, 2.0, 0, 0, 0, 0]]),
        b[0] + np.float32([[0, 3, 0, 0, 0, 0]]),
    ]
    judge = SampleBaseline({"y": b}, Judge([OutputLimits("y", limits={"top1_agreement": 0.6})]))
    trial = trial_of(judge, {"y": c})
    np.testing.assert_allclose(trial.parts[0], [0.5, 1.0, 1.5])  # a tie has flipped already
    assert (trial.scores, judge.criteria[0].allowed) == ((1 / 3,), 1)
    assert trial.losses[0] == pytest.approx(1.0)
    assert trial.losses[0] > 1
