"""What chooses among values is named, and no layers are blamed for its jumps."""

from __future__ import annotations

import pytest
from detectors import TOP, detector

from pytest_int8acc.graph.flow import choices


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
