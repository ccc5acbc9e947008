"""Slips of preprocessing planted in real images are named; parts of one data set never raise an alarm."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pytest_int8acc.data.preprocessing import compare_inputs

DATA = Path(__file__).parents[2] / "example_project" / "data"
TINT = np.array([1.0, 0.85, 0.6], np.float32)[:, None, None]
SETTINGS = settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def load() -> np.ndarray:
    parts = [np.load(DATA / f"{name}.npz")["image"] for name in ("calibration", "validation")]
    return np.concatenate(parts).astype(np.float32)


GRAY = load()


def smooth(array: np.ndarray) -> np.ndarray:
    """Images of 24 by 24, blurred: neighbours resemble each other, as in photographs."""
    large = array.repeat(3, axis=2).repeat(3, axis=3)
    for axis in (2, 3):
        large = sum(np.roll(large, shift, axis) for shift in (-1, 0, 1)) / 3
    return large.astype(np.float32)


def colored(array: np.ndarray) -> np.ndarray:
    """Three channels that differ as those of photographs do, each image with a tint of its own."""
    rng = np.random.default_rng(0)
    tint = TINT * rng.normal(1, 0.15, (len(array), 3, 1, 1))
    return (0.2 + smooth(array) * tint).astype(np.float32)


COLOR = colored(GRAY)


def halves(array: np.ndarray, seed: int, count: int = 200) -> tuple[np.ndarray, np.ndarray]:
    order = np.random.default_rng(seed).permutation(len(array))
    return array[order[:count]], array[order[-200:]]


def rules(calibration: np.ndarray, validation: np.ndarray) -> list[str]:
    findings = compare_inputs({"image": calibration}, {"image": validation})
    assert all(f.source == "data" and f.text and f.remedy for f in findings)
    return [finding.rule for finding in findings]


@given(seed=st.integers(0, 2**32 - 1), count=st.integers(32, 300), color=st.booleans())
@SETTINGS
def test_parts_of_one_data_set_raise_no_alarm(seed: int, count: int, color: bool) -> None:
    assert rules(*halves(COLOR if color else GRAY, seed, count)) == []


@given(seed=st.integers(0, 2**32 - 1), count=st.integers(1, 31), color=st.booleans())
@example(seed=4036994, count=2, color=False)
@SETTINGS
def test_few_samples_are_the_only_alarm_where_they_are_few(seed: int, count: int, color: bool) -> None:
    found = rules(*halves(COLOR if color else GRAY, seed, count))
    assert found[:1] == ["data-few-samples"] or set(found) <= {"data-few-samples", "data-uniform"}
    assert set(found) == {"data-few-samples"}


@given(
    seed=st.integers(0, 2**32 - 1),
    contrast=st.floats(0, 1.5),
    shift=st.floats(0, 3),
    count=st.integers(8, 150),
)
@example(seed=1851, contrast=1.0, shift=1.0, count=8)
@SETTINGS
def test_samples_that_differ_much_raise_no_alarm(
    seed: int, contrast: float, shift: float, count: int
) -> None:
    """Samples of different contrast and brightness: the spreads of two parts differ by chance, by far."""
    rng = np.random.default_rng(seed)
    contrasts, means = (np.exp(contrast * rng.standard_normal((300, 1, 1, 1))) for _ in range(2))
    noise = contrasts * rng.standard_normal((300, 3, 6, 6)) + shift * means
    found = rules(noise[:count].astype(np.float32), noise[150:].astype(np.float32))
    assert set(found) <= {"data-few-samples"}


SLIPS: dict[str, tuple[str, Callable[[np.ndarray], np.ndarray]]] = {
    "0 to 255": ("data-factor", lambda x: x * 255),
    "twice": ("data-factor", lambda x: x * 2),
    "a fifth": ("data-factor", lambda x: x / 5),
    "mean added": ("data-offset", lambda x: x + 0.5),
    "mean subtracted": ("data-offset", lambda x: x - x.mean()),
    "normalized": ("data-normalization", lambda x: (x - 0.45) / 0.225),
    "-1 to 1": ("data-normalization", lambda x: x * 2 - 1),
    "0 to 255 centered": ("data-normalization", lambda x: x * 255 - 128),
    "BGR": ("data-channel-order", lambda x: x[:, ::-1]),
    "BGR and 0 to 255": ("data-channel-order", lambda x: x[:, ::-1] * 255),
    "HWC reshaped": ("data-layout", lambda x: x.transpose(0, 2, 3, 1).reshape(x.shape)),
    "HWC": ("data-layout", lambda x: x.transpose(0, 2, 3, 1)),
    "one image and a little noise": (
        "data-uniform",
        lambda x: x[:1] + 0.01 * np.random.default_rng(0).standard_normal(x.shape),
    ),
    "constant": ("data-uniform", lambda x: np.zeros_like(x)),
    "copies": ("data-duplicates", lambda x: x[np.arange(len(x)) % 40]),
}


@pytest.mark.parametrize("preprocessing_mismatch", SLIPS)
@pytest.mark.parametrize("seed", range(3))
def test_every_mismatch_is_named(preprocessing_mismatch: str, seed: int) -> None:
    rule, plant = SLIPS[preprocessing_mismatch]
    calibration, validation = halves(COLOR, seed)
    found = rules(plant(calibration).astype(np.float32), validation)
    assert rule in found
    assert len(set(found) - {rule}) <= (rule == "data-channel-order" or preprocessing_mismatch == "constant")


@pytest.mark.parametrize("preprocessing_mismatch", ["0 to 255", "normalized", "BGR", "HWC reshaped"])
def test_mismatchs_on_the_side_of_the_inputs_are_named_too(preprocessing_mismatch: str) -> None:
    rule, plant = SLIPS[preprocessing_mismatch]
    calibration, validation = halves(COLOR, 0)
    assert rules(calibration, plant(validation).astype(np.float32)) == [rule]


def test_the_factor_is_said_in_words() -> None:
    calibration, validation = halves(GRAY, 1)
    (finding,) = compare_inputs({"image": calibration * 255}, {"image": validation})
    assert "0 to 255 against 0 to 1" in finding.text
    (finding,) = compare_inputs({"image": calibration}, {"image": validation * 255})
    assert "1/2" in finding.text
    assert finding.subject == "image"


def test_a_large_factor_needs_few_samples() -> None:
    assert rules(GRAY[:2] * 255, GRAY[100:]) == ["data-factor", "data-few-samples"]


def test_calibration_on_the_inputs() -> None:
    assert rules(GRAY[:100], GRAY[:100]) == ["data-same"]
    findings = compare_inputs({"image": GRAY[:100]}, {"image": GRAY[80:180]})
    assert [(f.rule, f.severity) for f in findings] == [("data-overlap", "note")]


def test_tokens_and_inputs_of_one_side_are_left_alone() -> None:
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 1000, (80, 12))
    mask = np.ones((80, 12), np.int64)
    assert (
        compare_inputs({"tokens": tokens[:40], "mask": mask[:40]}, {"tokens": tokens[40:], "mask": mask[40:]})
        == ()
    )
    assert compare_inputs({"other": tokens}, {"tokens": tokens}) == ()
