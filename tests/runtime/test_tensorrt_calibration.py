"""A calibration cache is accepted where it belongs, and refused with the reason where it does not."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from zoo import ZOO

from pytest_int8acc import EngineError
from pytest_int8acc.data import open_dataset
from pytest_int8acc.graph.model import Model, make_model
from pytest_int8acc.observers.scale_files import load_scales
from pytest_int8acc.runtime.trt.build import in_batches
from pytest_int8acc.runtime.trt.calibration import (
    HEADERS,
    Implicit,
    Provenance,
    algorithm_of,
    calibrate_on,
    check_names,
    read_cache,
    sidecar_path,
    tensor_names,
    write_cache,
)
from pytest_int8acc.runtime.trt.platform import Platform
from pytest_int8acc.tensors import TensorInfo

OLD = Platform("tensorrt", (8, 6, 0, 12), "NVIDIA H100", (9, 0))
MODEL = make_model(ZOO["residual"](), name="residual.onnx")
NAMES = tensor_names(MODEL)
WANTED = Provenance.of(MODEL, Implicit(data="d1"), OLD)


def content(model: Model = MODEL, algorithm: str = "EntropyCalibration2", *more: str) -> bytes:
    """A cache of the inputs and nodes of ``model``."""
    tensors = [value.name for value in model.graph.input] + [n.output[0] for n in model.graph.node]
    lines = [f"TRT-8600-{algorithm}", *(f"{t}: 3c010a14" for t in tensors), *more]
    return ("\n".join(lines) + "\n").encode()


def test_a_cache_with_its_sidecar_is_read_without_a_word(tmp_path: Path) -> None:
    cache = tmp_path / "calibration.cache"
    write_cache(cache, content(), WANTED)
    assert read_cache(cache, WANTED, NAMES) == (content(), "")
    assert sorted(p.name for p in tmp_path.iterdir()) == [cache.name, "calibration.cache.int8acc.json"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model": "x"}, r"it is of another model \(weights or graph have changed since\)"),
        ({"data": "d2"}, "it is of other calibration data"),
        ({"tensorrt": "8.6.1"}, "it is of TensorRT 8.6.0, here is 8.6.1"),
    ],
)
def test_a_cache_of_another_origin_is_refused(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    cache = tmp_path / "calibration.cache"
    write_cache(cache, content(), WANTED)
    with pytest.raises(EngineError, match=f"does not fit: {reason}; delete calibration.cache and calibrate"):
        read_cache(cache, dataclasses.replace(WANTED, **change), NAMES)


def test_a_cache_of_another_algorithm_is_refused(tmp_path: Path) -> None:
    cache = tmp_path / "calibration.cache"
    write_cache(cache, content(), WANTED)
    with pytest.raises(EngineError, match="algorithm entropy2, and TensorRT would ignore it under minmax"):
        read_cache(cache, dataclasses.replace(WANTED, algorithm="minmax"), NAMES)


def test_a_cache_changed_by_hand_is_refused(tmp_path: Path) -> None:
    cache = tmp_path / "calibration.cache"
    write_cache(cache, content(), WANTED)
    cache.write_bytes(content().replace(b"3c010a14", b"3d010a14", 1))
    with pytest.raises(EngineError, match="the cache was changed after it was written"):
        read_cache(cache, WANTED, NAMES)


def test_a_cache_without_sidecar_is_unproven(tmp_path: Path) -> None:
    cache = tmp_path / "calibration.cache"
    cache.write_bytes(content())
    _, note = read_cache(cache, WANTED, NAMES)
    assert note.startswith(
        "calibration cache calibration.cache: nothing proves that it belongs to this model"
    )


@pytest.mark.parametrize("text", ["", "[]", "{", '"x"'])
def test_a_damaged_sidecar_is_said(tmp_path: Path, text: str) -> None:
    cache = tmp_path / "calibration.cache"
    cache.write_bytes(content())
    sidecar_path(cache).write_text(text)
    with pytest.raises(EngineError, match=r"remove it, and delete calibration\.cache"):
        read_cache(cache, WANTED, NAMES)


def test_names_of_another_model_are_refused_however_many_match() -> None:
    other = content(MODEL, "EntropyCalibration2", "stray/output: 3c010a14")
    with pytest.raises(EngineError, match=r"1 of its \d+ tensors are not in this one \('stray/output'\)"):
        check_names(other, "c", "entropy2", NAMES)
    with pytest.raises(EngineError, match="of another model"):
        check_names(content(make_model(ZOO["mlp"]())), "c", "entropy2", NAMES)


def test_names_that_tensorrt_made_up_are_passed_over() -> None:
    made_up = "(Unnamed Layer* 52) [Constant]_output: 3c010a14"
    check_names(content(MODEL, "EntropyCalibration2", made_up), "c", "entropy2", NAMES)
    with pytest.raises(EngineError, match="0 of its 0 tensors"):
        check_names(f"TRT-8600-EntropyCalibration2\n{made_up}\n".encode(), "c", "entropy2", NAMES)


@pytest.mark.parametrize("data", [b"", b"\xff\xfe", b"x: 3c010a14\n", b"\n\n"])
def test_what_is_no_cache_is_said(data: bytes) -> None:
    with pytest.raises(EngineError, match="no calibration cache: expected a first line like TRT-8601"):
        check_names(data, "c", "entropy2", NAMES)


@pytest.mark.parametrize("algorithm", HEADERS)
def test_caches_of_other_tools_are_read(tmp_path: Path, algorithm: Any) -> None:
    cache = tmp_path / "calibration.cache"
    lines = [f"TRT-8601-{HEADERS[algorithm]}", *(f"{name}: 3f000000" for name in sorted(NAMES))]
    cache.write_text("\n".join(lines) + "\n")
    found, note = read_cache(cache, dataclasses.replace(WANTED, algorithm=algorithm), NAMES)
    assert found == cache.read_bytes()
    assert note


LEGACY = b"0 3ff0000000000000 3fefff2e48e8a71e\n"


@pytest.mark.parametrize("more", [b"", b"TRT-8600-LegacyCalibration\n"])
def test_a_legacy_cache_begins_with_its_parameters(tmp_path: Path, more: bytes) -> None:
    lines = content().partition(b"\n")[2]
    cache = tmp_path / "calibration.cache"
    cache.write_bytes(LEGACY + more + lines)
    assert algorithm_of(cache) == "legacy"
    assert read_cache(cache, dataclasses.replace(WANTED, algorithm="legacy"), NAMES)[0] == cache.read_bytes()
    tensors = [line.split(":")[0] for line in lines.decode().splitlines()]
    assert list(load_scales(cache, tensors).values) == tensors
    with pytest.raises(EngineError, match="a cache of algorithm legacy, and TensorRT would ignore it"):
        check_names(cache.read_bytes(), "c", "minmax", NAMES)


def test_the_digest_sees_weights_and_not_the_name() -> None:
    def digest(weights: Any, name: str = "") -> str:
        return Provenance.of(Model(MODEL.proto, weights, name or MODEL.name), Implicit(data="d1"), OLD).model

    assert digest(MODEL.weights, "other") == WANTED.model
    for name in MODEL.weights:
        array = np.array(MODEL.weights[name])
        array.flat[0] = np.nextafter(array.flat[0], np.float32(9))
        assert digest({**MODEL.weights, name: array}) != WANTED.model


def test_a_dataset_is_known_by_its_digest_and_read_again(tmp_path: Path) -> None:
    images = np.arange(30, dtype=np.float32).reshape(10, 3)
    inputs = [TensorInfo("x", np.dtype(np.float32), ("N", 3))]
    found = []
    for data in (images, images, images + 1):
        np.savez(tmp_path / "c.npz", x=data)
        found.append(calibrate_on(open_dataset("c.npz", inputs, base=tmp_path, batch=4), "minmax"))
    assert found[0].data == found[1].data != found[2].data
    assert (found[0].algorithm, found[0].cache, bool(found[0].data)) == ("minmax", None, True)
    for _ in range(2):
        assert [feed["x"].shape for feed in found[2].feeds] == [(4, 3), (4, 3), (2, 3)]


def test_a_cache_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="cannot be read: No such file"):
        read_cache(tmp_path / "none.cache", WANTED, NAMES)
    with pytest.raises(EngineError, match="cannot be written"):
        write_cache(tmp_path / "none" / "c.cache", content(), WANTED)


@given(st.integers(1, 40), st.integers(1, 16))
def test_calibration_comes_in_whole_batches_of_the_engine(rows: int, size: int) -> None:
    """TensorRT 8.6 reads as many rows as the profile says: batches of 50 for 128 cost 36 dB on an H200."""
    feed = {"x": np.arange(rows * 3, dtype=np.float32).reshape(rows, 3), "m": np.arange(rows)[:, None]}
    made = list(in_batches(feed, {"x": (size, 3), "m": (size, 1)}))
    assert all(batch["x"].shape == (size, 3) and batch["m"].shape == (size, 1) for batch in made)
    assert {int(m) for batch in made for m in batch["m"][:, 0]} == set(range(rows))
    assert all((batch["x"][:, 0] == 3 * batch["m"][:, 0]).all() for batch in made)
    assert not list(in_batches(feed, {"x": (size, 4), "m": (size, 1)}))
