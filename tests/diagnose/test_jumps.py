"""What chooses among values is named, and no layers are blamed for its jumps."""

from __future__ import annotations

from pathlib import Path

import pytest
from detectors import TOP, detector, project

from pytest_int8acc.check import check
from pytest_int8acc.graph.flow import choices
from pytest_int8acc.report.answer import cautions
from pytest_int8acc.report.summary import summary
from pytest_int8acc.report.text import failure
from pytest_int8acc.results import CaseResult
from pytest_int8acc.settings import Settings


def checked(folder: Path, body: str, outputs: str, criteria: dict[str, float]) -> CaseResult:
    case = project(folder, model=detector(body, outputs), samples=24, criteria=[criteria], unjudged=None)
    return check(case, Settings())


def test_a_top_k_whose_places_are_compared(tmp_path: Path) -> None:
    result = checked(tmp_path, TOP, "float[N, K] placed", {"sqnr_db": 60})
    assert not result.passed
    assert result.search is not None
    assert (result.search.ending.kind, result.search.culprits, result.search.found) == (
        *("nothing-left", (), False),
    )
    assert result.answer is None
    assert summary(result) == (
        "TopK 'TopK_5' chooses among values: small errors before it are jumps behind it"
    )
    told = failure(result, 2)
    assert "Fix: in the spec, criteria: [{tensor: 'scores', sqnr_db: 20}], unjudged: ['placed']" in told
    assert not any(word in told for word in ("QAT", "stay in INT8", "at fault", "INT8 is not the problem"))


def test_a_top_k_that_does_no_harm_is_not_blamed(tmp_path: Path) -> None:
    result = checked(tmp_path, TOP, "float[N, K] best", {"sqnr_db": 38})
    assert not result.passed
    assert result.diagnosis is not None
    assert [jump.node for jump in result.diagnosis.jumps] == ["TopK_5"]
    assert result.search is not None
    assert result.search.culprits
    assert "chooses among values" not in summary(result)
    assert any(caution.startswith("TopK 'TopK_5' chooses among values") for caution in cautions(result))


@pytest.mark.parametrize(
    ("body", "outputs", "found"),
    [
        (TOP, "float[N, K] placed", {"TopK_5": (("scores",), ("placed",))}),
        ("unread = ArgMax<axis = 1>(boxes)", "float[N, 4, 256] boxes", {}),
        (
            "size = Shape(boxes)\n ones = ConstantOfShape(size)\n where = NonZero(ones)",
            "int64[3, K] where",
            {},
        ),
        (
            "on = Greater(boxes, relu_mean)\n where = NonZero(on)\n first_of = ArgMin<axis = 0>(where)",
            "int64[K] first_of",
            {"NonZero_6": (("boxes", "relu_mean"), ("first_of",))},
        ),
    ],
)
def test_what_is_chosen_by(
    body: str, outputs: str, found: dict[str, tuple[tuple[str, ...], tuple[str, ...]]]
) -> None:
    if "relu_mean" in body:
        body = f"relu_mean = ReduceMean<keepdims = 0>(relu)\n {body}"
    made = detector(body, outputs)
    assert choices(made, [output.name for output in made.outputs]) == found


def test_what_no_judged_output_hangs_on_is_no_jump() -> None:
    assert choices(detector(TOP, "float[N, K] placed, float[N, 256] scores"), ["scores"]) == {}
