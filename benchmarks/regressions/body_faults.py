"""Faults in the bodies of Loop, If and Scan: entries of other modules whose whole network moves into a body.

What is true of such an entry is what is true of the entry that it is made of.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

import onnx

from benchmarks.bodies import HOLDER, Holder, wrapped
from benchmarks.regressions.entry import Entry, Planted
from pytest_int8acc.graph.load import normalize
from pytest_int8acc.graph.model import Model, make_model, without_extra_outputs

_KIND = "in a body"
#: Entry to the nodes that its network is moved into.
_MOVED: Mapping[str, tuple[Holder, ...]] = {
    "outlier_cnn_x60": ("Loop", "If"),
    "outlier_mlp_x100": ("Scan",),
    "outlier_vit_x80": ("If",),
    "wide_cnn_x100": ("If",),
    "narrow_mlp_by30": ("Loop",),
    "weight_cnn_x40": ("Scan",),
    "per_tensor_cnn_x60": ("If",),
    "shift_lowered_cnn": ("If",),
    "shift_lowered_mlp": ("Loop",),
    "bias_dead_cnn": ("Scan",),
    "bias_coarse_vit": ("If",),
    "miscorrected_cnn": ("If",),
    "miscorrected_tcn": ("Scan",),
    "corrected_mlp": ("Loop",),
    "ignored_cnn": ("If",),
    "several_cnn_pair": ("Loop",),
    "axis_mlp": ("Scan",),
    "idle_table_0": ("Loop",),
    "idle_upsampler_0": ("If",),
    "masked_0": ("Scan",),
    "gemm_0": ("Loop",),
    "folded_0": ("If",),
    "recurrent_0_lstm": ("If",),
    "recurrent_3_gru": ("Scan",),
    "normed_vit_0": ("Loop",),
    "embedded_encoder_0": ("If",),
    "activated_vit_0": ("Scan",),
    "product_vit0_value": ("Loop",),
    "scores_vit0": ("If",),
    "join_resnet_add": ("Scan",),
    "asymmetric_cnn": ("Loop",),
    "depthwise_mobilenet": ("If",),
    "wide_detector_x300": ("Scan",),
    "strange1_equalized": ("If",),
    "strange2_linear": ("Loop",),
    "strange3_loud": ("Scan",),
    "healthy_reader_corrected": ("Loop",),
    "healthy_reader_table": ("If",),
    "healthy_reader_attention": ("Scan",),
    "healthy_qdq_unet": ("If",),
    "healthy_ort_tcn": ("Scan",),
}


def entries(others: Mapping[str, Entry]) -> Iterator[Entry]:
    """All of this module.

    Args:
        others: The entries of other modules, by name.
    """
    for name, holders in _MOVED.items():
        for holder in holders:
            plant = partial(_moved, others[name], holder)
            yield Entry(f"body_{holder.lower()}_{name}", _KIND, others[name].network, plant)


def _moved(entry: Entry, holder: Holder) -> Planted:
    """The entry with model and Q/DQ model in a body."""
    planted = entry.plant()
    assert planted.candidate is not None
    candidate = _in_body(planted.candidate, holder).SerializeToString()
    model = normalize(make_model(_in_body(planted.model, holder)))
    truth = planted.truth
    inside = {f"{HOLDER}/{group}": kinds for group, kinds in truth.causes.items()}
    tensors = {f"{HOLDER}/{group}": names for group, names in truth.tensors.items()}
    return replace(
        planted,
        model=model,
        int8={"model": "int8.onnx"},
        candidate=candidate,
        files={"int8.onnx": candidate},
        truth=replace(truth, causes=inside, tensors=tensors),
    )


def _in_body(model: Model | bytes, holder: Holder) -> onnx.ModelProto:
    data = without_extra_outputs(model).serialize() if isinstance(model, Model) else model
    return wrapped(onnx.ModelProto.FromString(data), holder)
