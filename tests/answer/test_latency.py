"""A case that is accurate and not fast enough: plans that leave slow layers in FP16 are built and timed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from repair_support import planted, write_case
from timed_backends import Times, in_int8, products, use

from pytest_int8acc import CaseResult, Settings, load_spec
from pytest_int8acc.answer import conclude
from pytest_int8acc.api import check
from pytest_int8acc.case.measured import measure
from pytest_int8acc.graph.load import load_model
from pytest_int8acc.graph.plan import activation_scales, apply
from pytest_int8acc.lab.lab import Lab
from pytest_int8acc.lab.times import group_works
from pytest_int8acc.report.text import failure, remedies
from pytest_int8acc.report.view import CaseView


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a network of eleven products, as float and Q/DQ models."""
    folder = tmp_path_factory.mktemp("network")
    write_case(folder, planted("cnn"), {"sqnr_db": 20})
    return folder


def concluded(
    network: Path,
    *criteria: str,
    fix: Path | None = None,
    goal: str = "accuracy",
    more: str = "",
    **settings: Any,
) -> CaseResult:
    """The result of a case with these criteria and an SQNR of 20 dB; ``more`` ends the spec."""
    spec = network / "timed.int8acc.yaml"
    limits = "".join(f"\n  - {criterion}" for criterion in ("{sqnr_db: 20}", *criteria))
    spec.write_text(
        "model: model.onnx\ninputs: inputs.npz\nint8: {model: int8.model}\n"
        f"search: {{for: {goal}}}\ncriteria:{limits}\n{more}"
    )
    (case,) = load_spec(spec)
    measured = measure(case, Settings(**settings))
    try:
        return conclude(measured, fix)
    finally:
        measured.close()


def names(network: Path) -> list[str]:
    return products(load_model(network / "model.onnx"))


def speed(result: CaseResult) -> Any:
    assert result.diagnosis is not None
    assert result.diagnosis.speed is not None
    return result.diagnosis.speed


def test_the_layers_that_lose_time_leave_int8(
    network: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while the GPU gets slower with each measurement."""
    slow = names(network)[1:4]
    times = use(monkeypatch, Times(dict.fromkeys(slow, 3.0), drift=1.2))
    result = concluded(network, "{speedup: 1.3}", fix=tmp_path / "fix")
    assert not result.passed
    repair = result.answer
    assert repair is not None
    assert (repair.kind, repair.layers, repair.verified) == ("faster", tuple(slow), True)
    assert repair.evidence.held_out is not None
    assert repair.evidence.held_out.count == 10
    assert repair.latency is not None
    assert repair.latency.median_ms == pytest.approx(7.0)
    found = {(score.subject, score.metric): score for score in repair.scores}
    assert found["engine", "speedup"].value == pytest.approx(11 / 7)
    assert found["engine", "speedup"].limit == 1.3
    assert found["logits", "sqnr_db"].passed
    assert set(speed(result).losses) == set(slow)
    assert len(times.built) <= Settings().max_builds
    printed = " ".join(failure(CaseView(result)).split())  # lines are wrapped
    assert "Why: INT8 takes 13 ms, FP16 11 ms; 3 layers seem to lose time, '/1/conv/Conv' most" in printed
    assert "-6 ms: keep 3 layers in FP16; 'engine' speedup 1.571 >= 1.3" in printed
    assert speed(result).trials[0].share > 0.2
    fixed = load_model(tmp_path / "fix" / "fixed.onnx")
    assert in_int8(fixed) == set(names(network)) - set(slow)
    plan = "plan: " + str(tmp_path / "fix" / "plan.yaml") + "\n"
    assert concluded(network, "{speedup: 1.3}", more=plan).passed


def test_a_plan_whose_engine_ran_in_another_format_is_no_fix(
    network: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A case with this engine would fail by default."""
    slow, others = names(network)[1:4], names(network)[4:8]
    use(monkeypatch, Times(dict.fromkeys(slow, 3.0), in_fp16=others))
    result = concluded(network, "{speedup: 1.3}")
    assert result.answer is None
    assert not any(trial.passed for trial in speed(result).trials)
    result = concluded(network, "{speedup: 1.3}", more="realized: warn\n")
    assert result.answer is not None
    assert result.answer.layers == tuple(slow)


def test_a_search_that_was_cut_short_advises_nothing(network: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, Times(dict.fromkeys(names(network), 1.5)))
    result = concluded(network, "{speedup: 1.05}", max_seconds=1e-6)
    assert result.stopped is not None
    assert not speed(result).trials
    assert "ship FP16" not in failure(CaseView(result))


def test_a_search_that_always_runs_comes_first(network: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, Times(dict.fromkeys(names(network)[1:4], 3.0)))
    result = concluded(network, "{speedup: 1.3}", search="always", layers=True)
    assert result.search is not None
    assert result.answer is not None
    assert result.answer.kind == "faster"
    assert [engine.role for engine in result.engines] == ["baseline", "INT8", "fixed"]
    assert CaseView(result).fixes[0].text.startswith("51 % of the MACs stay in INT8")


def test_int8_that_gains_nothing_is_not_shipped(network: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times = use(monkeypatch, Times(dict.fromkeys(names(network), 1.5)))
    result = concluded(network, "{speedup: 1.05}", max_builds=3)
    assert result.answer is None
    assert len(times.built) == len(speed(result).trials) == 3
    best = min(trial.latency.median_ms for trial in speed(result).trials if trial.latency is not None)
    (fix,) = CaseView(result).fixes
    assert fix.text == (
        f"INT8 gains nothing here: ship FP16 (INT8 16.5 ms, best of 3 plans {best:.3g} ms, FP16 11 ms)"
    )


def test_a_limit_that_no_plan_reaches_is_told_with_the_best(
    network: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, Times(dict.fromkeys(names(network)[1:4], 3.0)))
    result = concluded(network, "{speedup: 2.5}")
    assert result.answer is None
    (fix,) = CaseView(result).fixes
    assert "the best plan is 1.57 times as fast as FP16, limit 2.5 (INT8 13 ms, best of " in fix.text


def test_where_no_layer_loses_time_nothing_is_built(network: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times = use(monkeypatch, Times(dict.fromkeys(names(network), 0.97)))
    view = CaseView(concluded(network, "{speedup: 1.05}"))
    assert not times.built
    assert view.why == "INT8 takes 10.7 ms, FP16 11 ms; no layer seems to lose time"
    assert view.fixes[0].text == "INT8 gains less than 5 % here: ship FP16 (INT8 10.7 ms, FP16 11 ms)"


def test_a_plan_that_does_not_build_costs_that_plan(network: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = names(network)[1:4]
    left = frozenset(names(network)) - set(slow)
    times = Times(dict(zip(slow, (3.0, 2.9, 2.8), strict=True)), unbuilt=[left])
    use(monkeypatch, times)
    result = concluded(network, "{speedup: 1.1}")
    assert result.answer is not None
    assert set(result.answer.layers) < set(slow) or set(result.answer.layers) > set(slow)
    refused = [trial for trial in speed(result).trials if trial.passed is None]
    assert [set(trial.layers) for trial in refused] == [set(slow)]
    assert any("3 layers in FP16 for speed: does not build or run" in n for n in CaseView(result).remarks)


def test_a_plan_must_keep_the_other_criteria(network: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With all but one of eleven layers in INT8 only one plan is left, of the slowest layer."""
    first, second = names(network)[1:3]
    use(monkeypatch, Times({first: 3.0, second: 2.9}))
    result = concluded(network, "{speedup: 1.1, int8_layers: 0.9}")
    assert result.answer is not None
    assert result.answer.layers == (first,)
    assert any("misses int8_layers" in note for note in CaseView(result).remarks)
    share = concluded(network, "{speedup: 1.1, int8_share: 0.9}")
    for trial in speed(share).trials:
        assert trial.share > 0.9


def test_engines_that_do_not_tell_their_layers_are_taken_as_one(
    network: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, Times(dict.fromkeys(names(network)[:2], 4.0), told=False))
    result = concluded(network, "{speedup: 1.05}")
    assert speed(result).trials
    assert all(trial.passed for trial in speed(result).trials)


def test_latency_is_searched_where_a_case_passes(network: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = names(network)[2]
    use(monkeypatch, Times({slow: 3.0}))
    assert concluded(network).diagnosis is None
    result = concluded(network, goal="latency")
    assert result.passed
    assert result.answer is not None
    assert (result.answer.kind, result.answer.layers) == ("faster", (slow,))
    assert f"keep '{slow}' in FP16" in "\n".join(remedies(CaseView(result), 1))
    use(monkeypatch, Times())
    result = concluded(network, goal="latency")
    assert result.answer is None
    assert "no plan is clearly faster (INT8 5.5 ms, FP16 11 ms)" in "\n".join(remedies(CaseView(result), 1))


def test_a_passing_engine_is_replaced_only_beyond_doubt(
    network: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gain within the spread of the times, 1 % to both sides, is none."""
    use(monkeypatch, Times({names(network)[2]: 1.05}))
    result = concluded(network, goal="latency")
    assert speed(result).trials
    assert result.answer is None


def test_onnx_runtime_searches_no_time_and_says_so(network: Path) -> None:
    result = concluded(network, goal="latency")
    assert result.passed
    assert any("no faster plan is searched: ONNX Runtime" in warning for warning in result.warnings)


@pytest.mark.parametrize(
    ("criteria", "settings"),
    [
        (["{speedup: 1.3}", "{sqnr_db: 90}"], {"max_builds": 1}),
        (["{speedup: 1.3}"], {"search": "off"}),
        (["{speedup: 0.5}"], {}),
    ],
)
def test_time_is_searched_only_where_speed_alone_is_missed(
    network: Path, monkeypatch: pytest.MonkeyPatch, criteria: list[str], settings: dict[str, Any]
) -> None:
    use(monkeypatch, Times(dict.fromkeys(names(network)[1:4], 3.0)))
    result = concluded(network, *criteria, **settings)
    assert result.diagnosis is None or result.diagnosis.speed is None


def test_groups_of_a_transformer_have_their_neighbours() -> None:
    network = planted("vit")
    macs = dict.fromkeys((group.name for group in network.groups), 1.0)
    tensor = next(iter(activation_scales(network)))
    works = {work.name: work for work in group_works(network, apply(network), macs, {tensor: (2, 3, 5)})}
    block = "/blocks/blocks.1"
    scores, mixed = works[f"{block}/MatMul"], works[f"{block}/MatMul_1"]
    assert scores.before == {f"{block}/query/MatMul", f"{block}/key/MatMul"}
    assert mixed.before == {scores.name, f"{block}/value/MatMul"}
    assert scores.around == {
        *(f"{block}/{name}" for name in ("Mul", "Softmax")),
        *(f"{scores.name}_input{i}_{op}Linear" for i in (0, 1) for op in ("Quantize", "Dequantize")),
    }
    assert works[f"{block}/fc1/MatMul"].before == set()  # behind a sum, which runs in FP16
    assert f"{block}/Erf" in works[f"{block}/fc1/MatMul"].around
    assert works[network.groups[0].name].elements == 30
    assert scores.elements == 0  # of tensors without a known shape


def test_ctrl_c_keeps_what_was_timed(network: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, Times(dict.fromkeys(names(network)[1:5], 3.0)))
    prove, proved = Lab.prove, []

    def interrupted(lab: Lab, plan: Any) -> Any:
        proved.append(plan)
        if len(proved) == 2:
            raise KeyboardInterrupt
        return prove(lab, plan)

    monkeypatch.setattr(Lab, "prove", interrupted)
    result = concluded(network, "{speedup: 9}")
    assert len(speed(result).trials) == 1
    assert result.stopped is not None
    assert "speed" in result.stopped.left_out


def test_the_time_limit_ends_the_search(network: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, Times(dict.fromkeys(names(network)[1:4], 3.0)))
    (case,) = load_spec(network / "case.int8acc.yaml")
    monkeypatch.setattr("pytest_int8acc.clock.Clock.over", property(lambda clock: clock.bound is not None))
    result = concluded(network, "{speedup: 1.3}")
    assert not speed(result).trials
    assert result.stopped is not None
    assert "speed" in result.stopped.left_out
    assert check(case, Settings()).passed
