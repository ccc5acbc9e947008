"""The table of calibration methods says what a case calibrated by each of them would."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import yaml
from labs import lab_of
from zoo import ZOO, sample_feed

from pytest_int8acc.diagnose.case import compare_calibrations, diagnose
from pytest_int8acc.measure.measured import Measured, measure
from pytest_int8acc.results import CalibrationLine
from pytest_int8acc.scales.methods import METHODS
from pytest_int8acc.settings import Settings
from pytest_int8acc.spec.load import load_spec


def case(folder: Path, name: str, calibration: dict[str, object]) -> Measured:
    proto = ZOO[name]()
    onnx.save(proto, folder / "model.onnx")
    for file, first in (("inputs", 0), ("calibration", 100)):
        feeds = [sample_feed(proto, seed, 2) for seed in range(first, first + 8)]
        np.savez(folder / f"{file}.npz", **{k: np.concatenate([f[k] for f in feeds]) for k in feeds[0]})
    spec = {
        "model": "model.onnx",
        "inputs": "inputs.npz",
        "int8": {"calibrate": calibration},
        "criteria": [{"sqnr_db": 30, "cosine": 0.99}],
    }
    (folder / "case.int8acc.yaml").write_text(yaml.safe_dump(spec))
    return measure(load_spec(folder / "case.int8acc.yaml")[0], Settings())


def values(line: CalibrationLine) -> list[float]:
    return [score.value for score in line.scores if score.limit is not None]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> dict[str, CalibrationLine]:
    measured = case(
        tmp_path_factory.mktemp("table"), "mlp", {"data": "calibration.npz", "method": "topk", "top_k": 2}
    )
    return {line.method: line for line in compare_calibrations(lab_of(measured))}


def test_one_line_per_method_after_the_case_itself(table: dict[str, CalibrationLine]) -> None:
    assert list(table) == ["as it is", *METHODS]
    assert len({tuple(values(line)) for line in table.values()}) > 4
    for line in table.values():
        assert line.passed is all(score.passed for score in line.scores)


@pytest.mark.parametrize(
    ("method", "spec"),
    [
        ("minmax", {"method": "minmax"}),
        ("mse", {"method": "mse"}),
        ("topk 5", {"method": "topk"}),
        ("percentile 99.9", {"method": "percentile", "percentile": 99.9}),
    ],
)
def test_a_line_is_what_the_case_calibrated_so_would_score(
    tmp_path: Path, table: dict[str, CalibrationLine], method: str, spec: dict[str, object]
) -> None:
    result = case(tmp_path, "mlp", {"data": "calibration.npz", **spec}).result
    expected = [score.value for score in result.scores if score.limit is not None]
    assert values(table[method]) == pytest.approx(expected, rel=2e-3)


def test_a_case_whose_layers_are_not_known_has_no_table(tmp_path: Path) -> None:
    measured = replace(case(tmp_path, "mlp", {"method": "minmax"}), int8=None)
    wanted = replace(measured, settings=Settings(calibrations=True))
    assert diagnose(wanted, None)[0].calibrations == ()
