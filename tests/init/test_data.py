"""Specs for data of the user's: images, audio, arrays and labels, with a loader where one is needed."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest
from init_projects import (
    dense,
    feeds,
    judged,
    one_row,
    only_case,
    saved,
    spectral,
    write_images,
    write_waves,
)
from zoo import ZOO

from pytest_int8acc import DataError
from pytest_int8acc.data import load_labels
from pytest_int8acc.init import write_spec

FILES = [f"{kind}/{number}.png" for kind in ("cat", "dog", "owl") for number in range(6)]


def labels(spec: Path, count: int) -> list[int]:
    source = only_case(spec).labels
    assert source is not None
    return np.asarray(load_labels(source, count, spec.parent)).tolist()


@pytest.fixture
def images(tmp_path: Path) -> Path:
    pytest.importorskip("PIL")
    return write_images(tmp_path / "my images", FILES)


@pytest.mark.parametrize(
    ("shape", "kind", "taken"),
    [
        (["N", 3, "H", "W"], "float32", (1, 3, 224, 224)),
        ([2, 3, 16, 24], "float32", (2, 3, 16, 24)),
    ],
    ids=["open", "fixed"],
)
def test_images_are_compared_and_calibrated_on(tmp_path: Path, images: Path, shape, kind, taken) -> None:
    spec = write_spec(saved(tmp_path, dense(12, shape=shape)), data=images)
    case = only_case(spec)
    assert case.inputs == "model_inputs.py:load_data"
    assert case.int8.calibrate.data == "model_inputs.py:load_calibration"  # type: ignore[union-attr]
    found = feeds(spec)
    assert found[0]["x"].shape == taken
    assert 0 <= min(f["x"].min() for f in found) < 0.5 < max(f["x"].max() for f in found) <= 1
    assert judged(spec).samples == 9
    assert "TODO" in (tmp_path / "model_inputs.py").read_text()


def with_channels(count: int, sizes: list[int | str]) -> onnx.ModelProto:
    """The model whose first Conv reads so many channels."""
    proto = dense(12, shape=["N", 3, *sizes])
    weight = proto.graph.initializer[0]
    array = onnx.numpy_helper.to_array(weight)[:, [0] * count]
    weight.CopyFrom(onnx.numpy_helper.from_array(array.copy(), weight.name))
    proto.graph.input[0].type.tensor_type.shape.dim[1].dim_value = count
    return proto


@pytest.mark.parametrize("channels", [1, 4])
def test_channels_are_the_model_s(tmp_path: Path, images: Path, channels: int) -> None:
    spec = write_spec(saved(tmp_path, with_channels(channels, [16, 16])), data=images)
    assert feeds(spec)[0]["x"].shape == (1, channels, 16, 16)
    assert judged(spec).samples == 9


def test_channels_last_and_bytes(tmp_path: Path, images: Path) -> None:
    proto = dense(12, shape=["N", 3, 16, 16])
    graph = proto.graph
    graph.node[0].input[0] = "moved"
    cast = onnx.helper.make_node("Cast", ["x"], ["cast"], to=onnx.TensorProto.FLOAT)
    moved = onnx.helper.make_node("Transpose", ["cast"], ["moved"], perm=[0, 3, 1, 2])
    nodes = [cast, moved, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    graph.input[0].CopyFrom(onnx.helper.make_tensor_value_info("x", onnx.TensorProto.UINT8, ["N", 16, 16, 3]))
    spec = write_spec(saved(tmp_path, proto), data=images)
    feed = feeds(spec)[0]["x"]
    assert (feed.shape, feed.dtype) == ((1, 16, 16, 3), np.uint8)
    assert feed.max() > 200
    assert judged(spec).samples == 9


def test_a_model_of_one_image_without_a_batch(tmp_path: Path, images: Path) -> None:
    proto = dense(12, shape=["N", 3, 16, 16])
    graph = proto.graph
    graph.node[0].input[0] = "row"
    axes = onnx.numpy_helper.from_array(np.array([0]), "axes")
    nodes = [onnx.helper.make_node("Unsqueeze", ["x", "axes"], ["row"]), *graph.node]
    graph.initializer.append(axes)
    del graph.node[:]
    graph.node.extend(nodes)
    graph.input[0].CopyFrom(onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [3, 16, 16]))
    graph.output[0].type.tensor_type.shape.dim[0].dim_value = 1
    spec = write_spec(saved(tmp_path, proto), data=images)
    assert feeds(spec)[0]["x"].shape == (3, 16, 16)
    assert judged(spec).outputs


def test_folders_are_labels(tmp_path: Path, images: Path) -> None:
    spec = write_spec(saved(tmp_path, dense(12)), data=images)
    assert labels(spec, 9) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    metric = only_case(spec).criteria[-1]
    assert metric.metric == "model_inputs.py:top1"  # type: ignore[union-attr]
    assert [m.name for m in judged(spec).metrics] == ["model_inputs.py:top1"]


def test_lines_number_the_folders(tmp_path: Path, images: Path) -> None:
    (tmp_path / "labels.txt").write_text("bee\nowl\ndog\ncat\n")
    spec = write_spec(saved(tmp_path, dense(12)), data=images)
    assert labels(spec, 9) == [3, 3, 3, 2, 2, 2, 1, 1, 1]


@pytest.mark.parametrize("names", [False, True], ids=["numbers", "names"])
@pytest.mark.parametrize("kind", ["txt", "json"])
def test_a_list_tells_labels(tmp_path: Path, kind: str, names: bool) -> None:
    pytest.importorskip("PIL")
    files = [f"{number} a.png" for number in range(6)]
    folder = write_images(tmp_path / "images", files)
    told = {file: f"class{n % 3}" if names else n % 3 for n, file in enumerate(files)}
    text = json.dumps(told) if kind == "json" else "".join(f"{f} {label}\n" for f, label in told.items())
    (folder / f"labels.{kind}").write_text(text)
    spec = write_spec(saved(tmp_path, dense(12)), data=folder)
    assert labels(spec, 3) == [0, 2, 1]
    assert judged(spec).metrics


def test_labels_without_classes_are_named_only(tmp_path: Path, images: Path) -> None:
    spec = write_spec(saved(tmp_path, ZOO["dynamic"]()), data=images)
    assert only_case(spec).labels is None
    assert "# labels: model_inputs.py:load_labels" in spec.read_text()


def test_a_missing_pillow_is_one_error(tmp_path: Path, images: Path, monkeypatch) -> None:
    spec = write_spec(saved(tmp_path, dense(12)), data=images)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(DataError, match=r"images are read with Pillow: pip install pillow \(in model_inputs"):
        feeds(spec)


def test_a_single_image_is_compared_and_calibrated_on(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    spec = write_spec(saved(tmp_path, dense(12)), data=write_images(tmp_path / "images", ["a.png"]))
    assert only_case(spec).int8.calibrate.data is None  # type: ignore[union-attr]
    assert judged(spec).samples == 1


def test_audio_is_cut_to_what_the_model_takes(tmp_path: Path) -> None:
    folder = write_waves(tmp_path / "audio", [f"{n}.wav" for n in range(4)])
    spec = write_spec(saved(tmp_path, spectral()), data=folder)
    feed = feeds(spec)[0]
    assert feed["audio"].shape == (1, 16000)
    assert feed["sr"] == 16000
    assert np.abs(feed["audio"][0, 8000:]).max() > 0.1  # of 8000 a second, brought to 16000
    assert judged(spec).samples == 2


def test_audio_of_other_widths_is_one_error(tmp_path: Path) -> None:
    folder = write_waves(tmp_path / "audio", ["a.wav"], width=1)
    spec = write_spec(saved(tmp_path, spectral()), data=folder)
    with pytest.raises(DataError, match=r"a\.wav is not of 16 bits: read it with soundfile"):
        feeds(spec)


def test_a_missing_soundfile_is_one_error(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "audio").mkdir()
    (tmp_path / "audio" / "a.flac").write_bytes(b"fLaC")
    spec = write_spec(saved(tmp_path, spectral()), data=tmp_path / "audio")
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(DataError, match="audio is read with soundfile: pip install soundfile"):
        feeds(spec)


def test_features_of_audio_are_left_to_the_user(tmp_path: Path) -> None:
    folder = write_waves(tmp_path / "audio", ["a.wav", "b.wav"])
    spec = write_spec(saved(tmp_path, ZOO["shape_math"]()), data=folder)
    assert (
        "# TODO   fill in 'read' in model_inputs.py: the model's x: float32 [N, L, 16] takes"
        in spec.read_text()
    )
    with pytest.raises(
        DataError, match="NotImplementedError: TODO: make of the samples what the model takes"
    ):
        feeds(spec)


def test_arrays_that_fit_are_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "val.npz", x=np.random.default_rng(0).random((6, 3, 8, 8), np.float32))
    np.save(tmp_path / "val_labels.npy", np.zeros(6, np.int64))
    spec = write_spec(saved(tmp_path, dense(12)), data=tmp_path / "val.npz")
    assert only_case(spec).inputs == "val.npz"
    assert "# labels: val_labels.npy" in spec.read_text()
    assert not (tmp_path / "model_inputs.py").exists()
    assert judged(spec).samples == 6


@pytest.mark.parametrize("single", [False, True], ids=["npz", "npy"])
def test_arrays_that_do_not_fit_get_a_loader(tmp_path: Path, single: bool) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (6, 8, 8, 3)).astype(np.uint8)
    data = tmp_path / ("val.npy" if single else "val.npz")
    np.save(data, pixels) if single else np.savez(data, images=pixels, labels=np.arange(6))
    spec = write_spec(saved(tmp_path, dense(12)), data=data)
    assert np.allclose(feeds(spec)[1]["x"][0], pixels[2].transpose(2, 0, 1) / 255)
    assert judged(spec).samples == 3
    if not single:
        assert labels(spec, 3) == [0, 2, 4]


@pytest.mark.parametrize("shape", [(6, 8, 8), (6, 1, 8, 8, 1)], ids=["axis", "none"])
def test_axes_are_added_or_left_to_the_user(tmp_path: Path, shape: tuple[int, ...]) -> None:
    np.savez(tmp_path / "val.npz", digits=np.random.default_rng(0).random(shape))
    spec = write_spec(saved(tmp_path, with_channels(1, [8, 8])), data=tmp_path / "val.npz")
    if len(shape) == 3:
        assert judged(spec).samples == 3
    else:
        assert (
            "# TODO   fill in 'prepare' in model_inputs.py: what is stored does not fit x" in spec.read_text()
        )
        with pytest.raises(DataError, match="a stored sample is float64"):
            feeds(spec)


def test_several_inputs_take_arrays_by_name_or_are_made_up(tmp_path: Path) -> None:
    np.savez(tmp_path / "val.npz", sound=np.random.default_rng(0).random((4, 16000)) - 0.5)
    spec = write_spec(saved(tmp_path, spectral()), data=tmp_path / "val.npz")
    assert feeds(spec)[0]["sr"] == 16000
    assert judged(spec).samples == 2


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent", "no such file or folder; --int8acc-data takes a folder of images, of audio"),
        ("empty", "no .npy files in this folder"),
        ("video.mp4", "is of no known kind; --int8acc-data takes a folder of images"),
        ("images", "holds images, and the model takes none"),
        ("bad", "labels.json: not JSON"),
    ],
)
def test_data_that_cannot_be_taken_are_refused(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "video.mp4").write_bytes(b"")
    for folder in ("images", "bad"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.png").write_bytes(b"")
    (tmp_path / "bad" / "labels.json").write_text("{")
    proto = ZOO["mlp"]() if name == "images" else one_row()
    with pytest.raises(DataError, match=message):
        write_spec(saved(tmp_path, proto), data=tmp_path / name)
    assert not (tmp_path / "model.int8acc.yaml").exists()


HOSTILE = 'x"""\n\\ {0} \'] # %s'


@pytest.mark.parametrize("kind", ["images", "arrays", "nothing"])
def test_hostile_names_stay_data(tmp_path: Path, kind: str) -> None:
    proto = dense(12, "logits", shape=["N", 3, "H", "W"])
    proto.graph.input[0].name = proto.graph.node[0].input[0] = HOSTILE
    data = {"images": tmp_path / 'it\'s {} "1"', "arrays": tmp_path / "val.npz", "nothing": None}[kind]
    if kind == "images":
        pytest.importorskip("PIL")
        write_images(data, ["a'{}.png", 'b#".png', "c.PNG"])
    np.savez(tmp_path / "val.npz", images=np.zeros((2, 8, 8, 3), np.uint8))
    spec = write_spec(saved(tmp_path, proto), data=data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        assert list(feeds(spec)[0]) == [HOSTILE]
        assert judged(spec).samples == {"images": 2, "arrays": 1, "nothing": 32}[kind]
