"""A sentence and an advice for whatever a cause shows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest

from pytest_int8acc.report.causes import ADVICE, advice, cause_brief, cause_text, share_text, taken_text
from pytest_int8acc.results.causes import Cause, CauseKind, Symptom, TakenBack, TakenKind

LOSS = {"sqnr_db": 12.34, "best_sqnr_db": 40.0}
LEFT = "'t' keeps 12.3 dB"
COST = "keeps 12.3 dB, the best scale 40 dB"
WEIGHT = "it keeps 12.3 dB, scales from its channels 40"
CHANNELS = {"channel_amax": 60.0, "channel_ratio": 30.0, "codes_left": 4}
GIVEN: dict[Symptom, tuple[dict[str, float], dict[str, Any], str]] = {
    "range-too-wide": (
        {"factor": 61.24, "codes_used": 0.0163},
        {},
        f"scale 61.2x too wide: 't' reaches 4.2, its range 257, so 98 % of the INT8 codes are unused; {COST}",
    ),
    "cut-off": (
        {"clipped": 0.0813, "clipped_energy": 0.9987},
        {"amax": 11.8, "reach": 5.1},
        "'t' is cut off at 5.1 while it reaches 11.8: 8.1 % of the values, with 99.9 % of the energy lost; "
        + COST,
    ),
    "one-sided": (
        {"zero_point": -100, "low": -0.5, "high": 4.0, "clipped": 0.02},
        {"format": "int8"},
        "'t' is int8 with zero point -100, which holds only -0.5 to 4: 2 % of the values are cut off on one "
        f"side; {COST}",
    ),
    "vanishing-scale": (
        {"scale": 1e-9, "least_scale": 6e-8},
        {"format": "fp16"},
        "'t' has the scale 1e-09, below 6e-08, the least that FP16 holds",
    ),
    "vanishing-weight-scale": ({"scale": 0.0}, {}, "weight 't' has the scale 0"),
    "no-scale": ({}, {"others": ("a", "b")}, "no scale for 'a', 'b': the layer is not in INT8"),
    "large-channels": (
        CHANNELS,
        {"channels": {5: 60.0}},
        "channel 5 of 't' reaches 60, 30x the usual channel: the others share 4 of 127 codes",
    ),
    "large-values": (
        {"p99.9": 0.5},
        {},
        "a few values of 't' reach 4.2, 8.4x the 99.9th percentile, and the range with them",
    ),
    "stretched-range": (
        {"p99.9": 0.0},
        {},
        f"a few values of 't' reach 4.2, and the range with them; {COST}",
    ),
    "uneven-parts": (
        {"channel_amax": 40.0, "quarter_amax": 1.5},
        {"op_type": "Concat", "node": "c"},
        "Concat 'c' joins channels that reach 40 with others that reach 1.5 or less, and 't' has one scale "
        "for all",
    ),
    "range-of-partner": (
        {"partner_amax": 250.0},
        {"others": ("o",), "op_type": "Add", "node": "plus"},
        f"'t' reaches 4.2 but has the scale of 'o', which reaches 250 and meets it at Add 'plus'; {COST}",
    ),
    "few-codes": ({"codes_used": 0.25}, {}, "weight 't' uses 25 % of its INT8 codes"),
    "weight-scales-off": (
        {"scales": 16, "scales_off": 3, "factor": 8.0},
        {},
        f"3 of 16 scales of weight 't' are up to 8x too wide: {WEIGHT}",
    ),
    "scales-of-other-axis": (
        {"axis": 0, "axis_of_scales": 1},
        {},
        f"the scales of weight 't' are those of axis 1, its channels lie along axis 0: {WEIGHT}",
    ),
    "one-scale-for-channels": (
        {"channel_ratio": 60.0},
        {},
        "weight 't' has one scale for all channels, of which the greatest reaches 60x the usual one: "
        + WEIGHT,
    ),
    "large-weights": (
        {"p99.9": 2.1},
        {},
        "a few values of weight 't' reach 4.2, 2x the 99.9th percentile: even scales from its channels keep "
        "40 dB only",
    ),
    "large-idle-weights": (
        {"amax_in_use": 0.1},
        {},
        "weight 't' reaches 4.2 where its inputs are next to 0, 0.1 elsewhere: even scales from its channels "
        "keep 40 dB only",
    ),
    "quantized-inputs": ({}, {"op_type": "Exp"}, f"Exp loses much by quantized inputs; {LEFT}"),
    "after-softmax": (
        {},
        {"others": ("p",), "op_type": "Softmax", "node": "s"},
        f"'p' is made by Softmax 's'; {LEFT}",
    ),
    "after-gelu": (
        {},
        {"others": ("g",)},
        f"'g' comes from a GELU; {LEFT}",
    ),
    "product-of-activations": ({}, {}, f"it is a product of two activations, as in attention; {LEFT}"),
    "decoding": (
        {},
        {"op_type": "Mul"},
        f"Mul decodes the outputs at the end: its values differ widely in size; {LEFT}",
    ),
    "noise-adds-up": (
        {},
        {},
        "nothing stands out: 't' keeps 12.3 dB, 28 dB from the best that INT8 can do; the noise of several "
        "layers adds up",
    ),
    "fp16-around": ({}, {}, f"FP16 around it holds less than INT8 needs; {LEFT}"),
    "engine-differs": (
        {},
        {},
        "the same Q/DQ model meets the criteria in ONNX Runtime's exact INT8, the engine does not; its "
        "noisiest edge 't' keeps 12.3 dB",
    ),
    "within-noise": (
        {},
        {},
        "the limit lies within the noise between two runs of the baseline, and no scale is at fault",
    ),
    "beyond-range": (
        {},
        {"amax": 1e6, "reach": 65504.0, "format": "fp16"},
        "'t' reaches 1e+06, FP16 ends at 65504",
    ),
    "reads-beyond-range": (
        {},
        {"amax": 1e6, "reach": 65504.0, "format": "fp16"},
        "it reads 't', which reaches 1e+06; FP16 ends at 65504",
    ),
    "constant-beyond-range": (
        {},
        {"amax": 1e6, "reach": 65504.0, "format": "fp16"},
        "its constant 't' holds 1e+06, FP16 ends at 65504",
    ),
    "vanishing-values": (
        {"lost": 12, "smallest": 2.0**-24},
        {"format": "fp16"},
        "12 values of 't' become 0 in FP16, which ends at 6e-08",
    ),
    "vanishing-constant": (
        {"smallest": 2.0**-24},
        {"amax": 1e-12, "format": "fp16"},
        "its constant 't' is 1e-12, which is 0 in FP16",
    ),
    "cancelling": (
        {"share": 0.25},
        {"format": "bf16"},
        "'t' is a small difference of large values: rounding them to BF16 changes it by 25 %",
    ),
    "engine-rounds": (
        {},
        {"format": "fp16"},
        "the same model in FP16 meets the criteria in ONNX Runtime, where each result is rounded and sums "
        "are FP32; the engine does not",
    ),
    "needs-digits": (
        {},
        {"format": "bf16"},
        "nothing of it overflows or vanishes; 't' loses digits in BF16 that what reads it needs",
    ),
}


def cause(symptom: Symptom, numbers: dict[str, float], **facts: Any) -> Cause:
    facts = {"amax": 4.2, "reach": 257.0, "tensor": "t", **facts}
    return Cause("saturation", symptom, numbers={**LOSS, **numbers}, **facts)


@pytest.mark.parametrize("symptom", get_args(Symptom))
def test_every_symptom_has_its_sentence(symptom: Symptom) -> None:
    numbers, facts, text = GIVEN[symptom]
    assert cause_text(cause(symptom, numbers, **facts)) == text


def test_every_kind_has_its_advice() -> None:
    assert set(ADVICE) == set(get_args(CauseKind))
    assert advice(Cause("zero-point", "few-codes")).startswith("quantize to int8 with zero point 0")


TAKEN: dict[TakenKind, tuple[str, str]] = {
    "activation": (
        "it unquantized gives back 97 % of the loss",
        "'t' unquantized gives back 97 % of the loss",
    ),
    "constants": (
        "it unquantized gives back 97 % of the loss",
        "'t' unquantized gives back 97 % of the loss",
    ),
    "range": (
        "a range that fits it gives back 97 % of the loss",
        "a range that fits 't' gives back 97 % of the loss",
    ),
    "channels": (
        "channels 12, 7 explain 97 % of the loss",
        "channels 12, 7 of 't' explain 97 % of the loss",
    ),
    "per-channel": (
        "one scale per channel gives back 97 % of the loss",
        "one scale per channel of 't' gives back 97 % of the loss",
    ),
    "fp32": ("FP32 around it gives back 97 % of the loss", "FP32 around it gives back 97 % of the loss"),
}


@pytest.mark.parametrize("kind", get_args(TakenKind))
def test_what_was_taken_back_is_said_with_its_share(kind: TakenKind) -> None:
    told = cause("large-channels", CHANNELS, channels={12: 60.0, 7: 50.0})
    told = replace(told, taken_back=TakenBack(kind, "t", 0.97, met=True))
    assert (taken_text(told), taken_text(told, named=True)) == TAKEN[kind]
    assert cause_text(told).endswith(f"of 127 codes; {TAKEN[kind][0]}")


def test_a_share_of_few_samples_is_said_to_be_that() -> None:
    told = replace(cause("noise-adds-up", {}), taken_back=TakenBack("activation", "t", 0.83, True, 32))
    assert taken_text(told) == "it unquantized gives back 83 % of the loss on 32 samples"
    assert told.taken_back is not None
    assert share_text(told.taken_back, "its") == "83 % of its loss on 32 samples"
    alone = replace(told.taken_back, alone=True)
    assert share_text(alone) == "83 % of the loss alone on 32 samples"
    told = replace(told, taken_back=TakenBack("activation", "t", 1.0, True, 32, beyond=True))
    more = "it unquantized gives back more than the loss on 32 samples, so chance has a part in it"
    assert taken_text(told) == more


def test_a_range_that_was_tried_in_vain_is_said() -> None:
    freed = TakenBack("activation", "t", 0.83, met=True)
    tried = (freed, TakenBack("range", "t", 0.26, met=False), TakenBack("range", "other", 0.5, met=False))
    told = replace(cause("noise-adds-up", {}), taken_back=freed, tried=tried)
    assert taken_text(told) == "it unquantized gives back 83 % of the loss, another range 26 %"


def test_clipping_is_advised_where_it_was_seen_to_help() -> None:
    assert "percentile" in advice(Cause("activation-outliers", "stretched-range"))
    for symptom in ("large-values", "large-channels"):
        assert "percentile" not in advice(Cause("activation-outliers", symptom))


def test_many_channels_are_counted() -> None:
    text = cause_text(cause("large-channels", CHANNELS, channels={i: 60.0 - i for i in range(7)}))
    assert text.startswith("channels 0, 1, 2, 3, 4 and 2 more of 't' reach 60, 30x the usual channel")


def test_one_scale_too_narrow() -> None:
    text = cause_text(cause("weight-scales-off", {"scales": 1, "scales_off": 1, "factor": 0.25}))
    assert text == f"the scale of weight 't' is down to 0.25 of what they must reach: {WEIGHT}"


def test_a_mask_is_called_one() -> None:
    text = cause_text(cause("quantized-inputs", {}, op_type="Softmax", masked=True, amax=1e9))
    assert text == (
        "Softmax loses much by quantized inputs; 't' reaches 1e+09, as a mask does, and what is small beside "
        "that shares a few codes"
    )


def test_a_name_is_no_template() -> None:
    hostile = Cause("zero-scale", "vanishing-weight-scale", "{scale} {0}", {"scale": 0.5})
    assert cause_text(hostile) == "weight '{scale} {0}' has the scale 0.5"


def test_a_weight_is_not_called_an_input() -> None:
    noisy = {"sqnr_db": 37.4, "best_sqnr_db": 37.4}
    assert "its input keeps 37.4 dB" in cause_brief(cause("noise-adds-up", noisy))
    assert "its weight keeps 37.4 dB" in cause_brief(cause("noise-adds-up", {**noisy, "factor_least": 1.0}))
