"""Ordinary tests: the specs beside this file run in the same pytest session, in the same report."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from loaders import load_data
from metrics import top1

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def labels():
    return np.load(HERE / "data" / "validation_labels.npy")


def test_every_image_has_a_label(labels):
    images = np.load(HERE / "data" / "validation.npz")["image"]
    assert images.shape == (len(labels), 1, 8, 8)
    assert set(labels) == set(range(10))


def test_images_are_scaled_to_one():
    for name in ("calibration", "validation"):
        images = np.load(HERE / "data" / f"{name}.npz")["image"]
        assert images.dtype == np.float32
        assert images.min() == 0
        assert images.max() == 1


def test_float_model_is_accurate(labels):
    session = onnxruntime.InferenceSession(HERE / "digits.onnx", providers=["CPUExecutionProvider"])
    logits = np.concatenate([session.run(["logits"], feed)[0] for feed in load_data()])
    assert top1({"logits": logits}, labels) >= 0.97


@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_engines_are_accurate(int8acc_engine, labels, precision):
    """The same in any precision, with the plugin's fixture: TensorRT where it can run, else ONNX Runtime."""
    model = HERE / ("digits.qdq.onnx" if precision == "int8" else "digits.onnx")
    images = np.load(HERE / "data" / "validation.npz")["image"]
    engine = int8acc_engine(model, precision)
    assert top1({"logits": engine({"image": images})["logits"]}, labels) >= 0.97
