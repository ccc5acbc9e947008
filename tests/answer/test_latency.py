"""The search for a faster plan where it is stopped; tests/cases/engines says what it finds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from projects import CALIBRATED, Project
from repair_support import planted
from timed_backends import Times, use

from pytest_int8acc.graph.plan import activation_scales, apply
from pytest_int8acc.lab.lab import Lab
from pytest_int8acc.lab.times import group_works

SLOW = Times(dict.fromkeys(("conv2", "conv4", "conv6", "conv8"), 3.0))


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = Project(tmp_path)
    made.data(made.model("mobilenet"))
    return made


def plans_tried(project: Project) -> int:
    """By a search that does not end in time."""
    result = project.check(f"{CALIBRATED}criteria: [{{sqnr_db: 10}}, {{speedup: 9}}]\n")
    assert result.stopped is not None
    assert "speed" in result.stopped.left_out
    assert result.diagnosis is not None
    assert result.diagnosis.speed is not None
    return len(result.diagnosis.speed.trials)


def test_ctrl_c_keeps_what_was_timed(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, SLOW)
    prove, proved = Lab.prove, []

    def interrupted(lab: Lab, plan: Any) -> Any:
        proved.append(plan)
        if len(proved) == 2:
            raise KeyboardInterrupt
        return prove(lab, plan)

    monkeypatch.setattr(Lab, "prove", interrupted)
    assert plans_tried(project) == 1


def test_the_time_limit_ends_the_search(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, SLOW)
    monkeypatch.setattr("pytest_int8acc.clock.Clock.over", property(lambda clock: clock.bound is not None))
    assert plans_tried(project) == 0


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
