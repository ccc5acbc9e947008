"""What numbers and files are called on a page, with their units, and what they mean."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from pytest_int8acc.report.words import number, percent
from pytest_int8acc.results import Score


class Label(NamedTuple):
    """A name that people know, a unit, and a sentence."""

    text: str
    unit: str
    explained: str

    def value(self, value: float) -> str:
        """A number with its unit; shares in percent."""
        return percent(value) if self.unit == "%" else f"{number(value)} {self.unit}".strip()


_RELATIVE = "over |baseline|, with a floor"
#: By the name that a criterion has in a spec.
METRICS: Mapping[str, Label] = {
    "cosine": Label("Cosine similarity", "", "of all elements of INT8 and baseline; 1 is the same direction"),
    "sqnr_db": Label(
        "SQNR", "dB", "power of the baseline over that of INT8's error; 20 dB: an error of 10 %"
    ),
    "psnr_db": Label("PSNR", "dB", "greatest |baseline| squared over the mean square of INT8's error"),
    "mse": Label("Mean squared error", "", "mean square of INT8 less baseline; 0 is the same"),
    "max_abs": Label("Greatest error", "", "greatest |INT8 - baseline|, in the output's own unit"),
    "mean_abs": Label("Mean error", "", "mean |INT8 - baseline|, in the output's own unit"),
    "max_rel": Label("Greatest relative error", "", f"greatest |INT8 - baseline| {_RELATIVE}"),
    "mean_rel": Label("Mean relative error", "", f"mean |INT8 - baseline| {_RELATIVE}"),
    "kl": Label("KL divergence", "nats", "of INT8's softmax from the baseline's, mean; 0 is the same"),
    "top1_agreement": Label("Same top class", "", "share of samples whose first class is the baseline's"),
    "top5_agreement": Label("Top class in top 5", "", "share of samples with the baseline's class among 5"),
    "agreement": Label("Equal elements", "", "share of elements that are the same"),
    "tolerance": Label("Tolerance used", "", "share of the tolerance that is used up; 1 is the limit"),
    "top1": Label("Top-1 accuracy", "", "share of samples whose first class is the label"),
    "top5": Label("Top-5 accuracy", "", "share of samples whose label is among the first five classes"),
    "f1": Label("F1 score", "", "harmonic mean of precision and recall"),
    "miou": Label("Mean IoU", "", "intersection over union of pixels, mean of classes"),
    "coco_map": Label("mAP (COCO)", "", "mean average precision of boxes, IoU 0.5 to 0.95"),
    "wer": Label("Word error rate", "", "words wrong, missing or too many, over words spoken; 0 is right"),
    "ssim": Label("SSIM", "", "structural similarity of images; 1 is the same"),
    "psnr": Label("PSNR", "dB", "greatest value squared over the mean square of the error"),
    "speedup": Label("Speed-up", "times", "the baseline's time over INT8's"),
}
_USUAL = "the median over channels"
#: By the name that ``Cause.numbers`` has.
NUMBERS: Mapping[str, Label] = {
    "share": Label("Changed by rounding", "%", "error of the tensor over its values, by root mean square"),
    "lost": Label("Became 0", "", "values of the tensor that are 0 in the format and not in FP32"),
    "smallest": Label("Least number", "", "the smallest number above 0 that the format has"),
    "sqnr_db": Label("SQNR kept", "dB", "power of the tensor over that of its own rounding to INT8"),
    "best_sqnr_db": Label("SQNR possible", "dB", "what the best scale would keep"),
    "lost_db": Label("Lost by the scale", "dB", "SQNR possible less SQNR kept"),
    "codes_used": Label("Codes used", "%", "of the codes of the range, those that values take"),
    "codes_left": Label("Codes left", "of 127", "what the usual channel has of the range"),
    "clipped": Label("Cut off", "%", "of the values, those beyond the range"),
    "clipped_energy": Label("Energy cut off", "%", "of the tensor's power, what lies beyond the range"),
    "factor": Label("Range / values", "times", "reach of the scale over the greatest value"),
    "factor_least": Label("Least range / weights", "times", "of all channels, reach over greatest weight"),
    "factor_most": Label("Greatest range / weights", "times", "of all channels, reach over greatest weight"),
    "best_factor": Label("Range / best range", "times", "reach of the scale over that of the best scale"),
    "channel_gain_db": Label("Gain by channel scales", "dB", "SQNR that a scale per channel would add"),
    "channel_ratio": Label("Largest / usual channel", "times", f"its greatest value over {_USUAL}"),
    "channel_amax": Label("Largest channel", "", "greatest value of the largest channel"),
    "usual_channel_db": Label("SQNR of usual channel", "dB", f"what INT8 keeps of a channel, {_USUAL}"),
    "p99": Label("99 % below", "", "99 % of the magnitudes lie below"),
    "p99.9": Label("99.9 % below", "", "99.9 % of the magnitudes lie below"),
    "p99.99": Label("99.99 % below", "", "99.99 % of the magnitudes lie below"),
    "scale": Label("Scale", "", "step between two codes"),
    "least_scale": Label("Least scale", "", "the smallest step that the format holds"),
    "scales": Label("Scales", "", "how many the weight has"),
    "scales_off": Label("Scales off", "", "those that do not fit their channel"),
    "zero_point": Label("Zero point", "", "the code that stands for 0"),
    "low": Label("Range from", "", "the least value that can be held"),
    "high": Label("Range to", "", "the greatest value that can be held"),
    "partner_amax": Label("Partner's values", "", "greatest value of the tensor that shares the scale"),
    "other_amax": Label("Other parts", "", "what channels far below the greatest reach"),
    "amax_in_use": Label("Weights in use", "", "greatest weight whose inputs are not next to 0"),
    "axis": Label("Channel axis", "", "the axis along which the channels lie"),
    "axis_of_scales": Label("Axis of the scales", "", "the axis along which the scales were made"),
}
#: By the name that ``write_fix`` gives.
FILES: Mapping[str, str] = {
    "fixed.onnx": "the fixed model: run it, or build the engine of it",
    "plan.yaml": "the fix as a plan; 'plan: plan.yaml' in the spec keeps it under test",
    "commands.txt": "how to build each of these",
    "exclude_nodes.txt": "nodes that stay out of INT8, a name a line",
    "modelopt.sh": "the same with NVIDIA Model Optimizer",
    "ort_quantize.py": "the same with ONNX Runtime's quantizer",
    "layer_precisions.txt": "the same for trtexec and Polygraphy, TensorRT below 11",
    "postprocess.py": "the same as Polygraphy's postprocessing, TensorRT below 11",
    "float.onnx": "the float model with the names that these files use",
}


def metric_label(score: Score) -> Label:
    """A metric's label; a user's function stands for itself."""
    own = Label(score.metric, "", "a metric of your own")
    return own if score.subject.endswith(f".py:{score.metric}") else METRICS.get(score.metric, own)


def number_cells(numbers: Mapping[str, float]) -> Iterator[tuple[Label, str]]:
    """Each number of a cause: its label, and its value with its unit."""
    for name, value in numbers.items():
        label = NUMBERS.get(name, Label(name, "", ""))
        yield label, label.value(value)
