"""What users wrote of, checked from end to end: the report says in a sentence what was wrong."""

from __future__ import annotations

from pathlib import Path

from pytest_int8acc.diagnose.case import write_pieces
from pytest_int8acc.measure.measured import measure
from pytest_int8acc.settings import Settings
from pytest_int8acc.spec.load import load_spec

DIGITS = Path(__file__).parents[2] / "example_project"


def test_a_reproducer_names_its_sample_in_the_cases_data(tmp_path: Path) -> None:
    (case,) = load_spec(DIGITS / "digits_by_hand.int8acc.yaml")
    measured = measure(case, Settings())
    try:
        assert measured.int8 is not None
        (folder,) = write_pieces(measured, [measured.int8.network.groups[0].name], tmp_path)
    finally:
        measured.close()
    worst = measured.result.outputs[0].worst_sample
    assert worst
    assert (
        f"for sample {worst} of the case's data,\nrun at once with samples "
        in Path(folder, "README.md").read_text()
    )
