from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from zoo import ZOO, sample_feed


def test_zoo_is_large_enough() -> None:
    assert len(ZOO) >= 16


@pytest.mark.parametrize("name", ZOO)
def test_model_is_valid_and_its_activations_stay_of_order_one(name: str) -> None:
    model = ZOO[name]()
    onnx.checker.check_model(model, full_check=True)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    for output in session.run(None, sample_feed(model)):
        assert np.isfinite(output).all()
        assert 1e-2 < np.abs(output).max() < 50


def test_models_are_reproducible() -> None:
    assert ZOO["plain"]() == ZOO["plain"]()
