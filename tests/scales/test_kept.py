"""Ranges of the entropy method are chosen once for the same histograms, and kept."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
from zoo import ZOO, sample_feed

from pytest_int8acc.data import Dataset, open_dataset
from pytest_int8acc.engines.store import Store
from pytest_int8acc.graph.groups import find_groups
from pytest_int8acc.graph.load import normalize
from pytest_int8acc.graph.model import Model, make_model
from pytest_int8acc.scales import calibrate as module
from pytest_int8acc.scales.calibrate import calibrate


@pytest.fixture(scope="module")
def model() -> Model:
    return normalize(make_model(ZOO["plain"](), name="plain.onnx"))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def data(model: Model, folder: Path, factor: float = 1.0) -> Dataset:
    folder.mkdir(exist_ok=True)
    np.savez(
        folder / "x.npz", **{name: array * np.float32(factor) for name, array in sample_feed(model).items()}
    )
    return open_dataset("x.npz", model.inputs, base=folder)


def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The histograms that the search runs over from now on."""
    calls: list[str] = []
    real = module.entropy_amax

    def search(counts: np.ndarray, amax: float) -> float:
        calls.append("searched")
        return real(counts, amax)

    monkeypatch.setattr(module, "entropy_amax", search)
    return calls


def test_ranges_are_chosen_once(model, store, tmp_path, monkeypatch, caplog):
    tensors, calls = find_groups(model).activations, counted(monkeypatch)
    samples = data(model, tmp_path)
    first = calibrate(model, tensors, samples, store=store)
    assert len(calls) == len(tensors)
    with caplog.at_level(logging.INFO, "pytest_int8acc"):
        again = calibrate(model, tensors, samples, store=Store(store.folder))
    assert len(calls) == len(tensors)
    assert again == first
    assert any("ranges taken from the store" in record.message for record in caplog.records)
    assert calibrate(model, tensors, samples) == first


def test_other_samples_are_searched_anew(model, store, tmp_path, monkeypatch):
    tensors, calls = find_groups(model).activations, counted(monkeypatch)
    first = calibrate(model, tensors, data(model, tmp_path / "a"), store=store)
    other = calibrate(model, tensors, data(model, tmp_path / "b", 2.0), store=store)
    assert len(calls) == 2 * len(tensors)
    assert other.values != first.values


def test_another_onnx_runtime_searches_anew(model, store, tmp_path, monkeypatch):
    tensors, calls = find_groups(model).activations, counted(monkeypatch)
    calibrate(model, tensors, data(model, tmp_path), store=store)
    monkeypatch.setattr(module, "runtime_version", lambda: "0.0")
    calibrate(model, tensors, data(model, tmp_path), store=store)
    assert len(calls) == 2 * len(tensors)


def test_ranges_that_were_damaged_are_chosen_anew(model, store, tmp_path):
    tensors, samples = find_groups(model).activations, data(model, tmp_path)
    first = calibrate(model, tensors, samples, store=store)
    (file,) = store.folder.rglob("ranges.json")
    file.chmod(0o644)
    file.write_text(file.read_text().replace("1", "2"))
    assert calibrate(model, tensors, samples, store=store) == first


def test_without_room_ranges_are_chosen_and_not_kept(model, tmp_path, caplog):
    (tmp_path / "file").write_text("")
    tensors, samples = find_groups(model).activations, data(model, tmp_path)
    with caplog.at_level(logging.INFO, "pytest_int8acc"):
        found = calibrate(model, tensors, samples, store=Store(tmp_path / "file" / "store"))
    assert found == calibrate(model, tensors, samples)
    assert any("ranges are not kept" in record.message for record in caplog.records)
