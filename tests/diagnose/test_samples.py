"""The worst samples: those that INT8 misses most, small enough for a page, with their own values."""

from __future__ import annotations

import base64
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from projects import CALIBRATED, Project

from pytest_int8acc.check import conclude
from pytest_int8acc.diagnose import samples
from pytest_int8acc.engines.run import run_together
from pytest_int8acc.measure.measured import Measured, measure
from pytest_int8acc.report.plain import for_people, restore, to_plain
from pytest_int8acc.results import Role, View
from pytest_int8acc.settings import Settings
from pytest_int8acc.spec.load import load_spec

DIGITS = Path(__file__).parents[2] / "example_project"


def measured(spec: Path) -> Measured:
    return measure(load_spec(spec)[0], Settings())


def pixels(view: View) -> np.ndarray:
    """Of a picture, [height, width, channels], in the tensor's unit."""
    rows = [np.frombuffer(base64.b64decode(row), np.uint8) for row in view.rows]
    codes = np.stack(rows).reshape(len(rows), -1, view.channels)
    return view.low + codes / 255 * (view.high - view.low)


@pytest.mark.parametrize("batch", [1, 7, 360])
def test_the_worst_sample_is_shown_as_it_went_in_and_came_out(tmp_path: Path, batch: int) -> None:
    folder = shutil.copytree(DIGITS, tmp_path / "project", ignore=shutil.ignore_patterns("*tor", "*former"))
    with (folder / "digits_by_hand.int8acc.yaml").open("a", encoding="utf-8") as spec:
        spec.write(f"\nbatch: {batch}\n")
    case = measured(folder / "digits_by_hand.int8acc.yaml")
    forms = {Role.BASELINE: case.reference, Role.INT8: case.candidate}
    engines = {role: case.backend.open(form, role, case.inputs) for role, form in forms.items()}
    before, after = (np.concatenate(o["logits"]) for o in run_together(engines, case.inputs).values())
    ratios = (before.astype(float) ** 2).sum(1) / ((before.astype(float) - after) ** 2).sum(1)
    (worst,) = samples.worst_samples(case)
    assert worst.sample == ratios.argmin() == case.result.outputs[0].worst_sample
    assert worst.sqnr_db == pytest.approx(10 * np.log10(ratios.min()), abs=1e-3)
    picture, baseline, int8 = worst.views
    assert [view.role for view in worst.views] == ["input", "baseline", "INT8"]
    image = np.load(DIGITS / "data" / "validation.npz")["image"][worst.sample]
    np.testing.assert_allclose(pixels(picture)[:, :, 0], image[0], atol=(picture.high - picture.low) / 500)
    np.testing.assert_allclose(baseline.values, before[worst.sample], rtol=1e-3)
    np.testing.assert_allclose(int8.values, after[worst.sample], rtol=1e-3)
    case.runs.scorings[Role.BASELINE, Role.INT8].outputs.tallies["logits"].samples += 1
    (other,) = samples.worst_samples(case)
    assert [view.role for view in other.views] == ["baseline", "INT8"], "rows that are no samples"


@pytest.mark.parametrize("written", [True, False])
def test_they_are_looked_at_where_a_report_is_written(tmp_path: Path, written: bool) -> None:
    case = measured(DIGITS / "digits_by_hand.int8acc.yaml")
    result = for_people(conclude(case, tmp_path if written else None))
    assert bool(result.diagnosis.worst) == written
    assert restore(json.loads(json.dumps(to_plain(result)))) == result


def test_a_signal_is_a_curve_and_tokens_are_nothing(tmp_path: Path) -> None:
    wave = np.sin(np.arange(16000, dtype=np.float32) / 50)
    wave[4321] = 3.0
    view = samples._input_view("audio", wave[None])
    assert (view.channels, view.shape, len(view.values)) == (0, (1, 16000), 256)
    assert (max(view.values), view.high) == (3.0, 3.0)
    assert min(view.values) == pytest.approx(-1, abs=1e-3)
    stereo = samples._input_view("audio", np.stack([wave, 0 * wave]))
    assert stereo.values == view.values
    assert samples._input_view("tokens", np.arange(128)) is None
    assert samples._input_view("mask", np.ones(3, np.float32)) is None


SIDES = st.integers(8, 700)


@settings(max_examples=40, deadline=None)
@given(SIDES, SIDES, st.sampled_from([1, 3, 4]), st.booleans(), st.sampled_from([np.float32, np.uint8]))
def test_a_picture_is_small_and_keeps_its_mean(height, width, channels, first, dtype) -> None:
    image = np.random.default_rng(height).random((height, width, channels)) * 200
    image = image.astype(dtype)
    view = samples._input_view("x", np.moveaxis(image, 2, 0) if first else image)
    rows = pixels(view)
    assert len(view.rows) * len(view.rows[0]) <= 4 / 3 * 3 * 4096 + 4 * len(view.rows)
    assert max(map(len, view.rows)) <= 400  # as a text for people may be long
    assert view.channels == (3 if channels > 1 else 1)
    assert rows.shape[0] * rows.shape[1] <= 4096
    assert rows.mean() == pytest.approx(image[:, :, : view.channels].mean(), rel=0.1, abs=2)


def test_many_large_samples_stay_within_the_bound(tmp_path: Path) -> None:
    made = Project(tmp_path)
    made.data(made.model("plain"))
    (tmp_path / "case.int8acc.yaml").write_text(
        f"model: model.onnx\ninputs: data.npz\n{CALIBRATED}criteria: [{{sqnr_db: 200}}]\n"
    )
    case = measured(tmp_path / "case.int8acc.yaml")
    (output,) = case.result.outputs
    picture = np.random.default_rng(0).random((3, 64, 64)).astype(np.float32)
    kept = case.runs.worst.pop(output.name)
    names = [f"{output.name}{i}" for i in range(3)]
    tallies = case.runs.scorings[Role.BASELINE, Role.INT8].outputs.tallies
    tallies |= dict.fromkeys(names, tallies[output.name])
    outputs = tuple(replace(output, name=name) for name in names)
    case.runs.worst |= {
        name: replace(kept, ratio=float(i), baseline=picture, int8=picture) for i, name in enumerate(names)
    }
    found = samples.worst_samples(replace(case, result=replace(case.result, outputs=outputs)))
    assert [worst.output for worst in found] == names[:2]
    assert sum(len(row) for worst in found for view in worst.views for row in view.rows) <= 90_000
