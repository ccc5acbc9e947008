"""Cases whose low precision is fine by the task's own metric, of all kinds of networks and of specs.

Where the plugin calibrates, what it must agree with is a form made apart, by minmax: limits and metrics have
room for both.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from benchmarks.greens import nets, quantize
from benchmarks.greens.entry import CALIBRATED, HEALTHY, Entry, Project, Truth, add, healthy
from benchmarks.greens.graph import Array
from benchmarks.greens.nets import Net

Make = Callable[[], Net]


def calibrated(method: str) -> dict[str, Any]:
    """The section of a spec for a method of calibration."""
    return {"int8": {"calibrate": {"data": "calibration.npz", "method": method}}}


def loop(name: str, network: str, make: Make, form: str, **spec: Any) -> None:
    """Register a case without files of its own; ``form`` is one of ``FORMS`` or a calibration method."""
    add(Entry(f"healthy_{name}", HEALTHY, network, partial(_write, make=make, form=form, spec=spec)))


def _write(project: Project, make: Make, form: str, spec: Mapping[str, Any]) -> Truth:
    net = make()
    if form in FORMS:
        low, section = FORMS[form](project, net)
    else:
        low, section = quantize.quantized(net.model, net.calibration), calibrated(form)
    return project.case(net, low, **section, **spec)


def _file(project: Project, net: Net) -> tuple[onnx.ModelProto, dict[str, Any]]:
    return quantize.quantized(net.model, net.calibration), {}


def _per_tensor(project: Project, net: Net) -> tuple[onnx.ModelProto, dict[str, Any]]:
    return quantize.quantized(net.model, net.calibration, per_channel=False), {}


def _onnxruntime(project: Project, net: Net) -> tuple[onnx.ModelProto, dict[str, Any]]:
    return quantize.by_onnxruntime(net.model, net.calibration, quantize.WEIGHTED), {}


def _scales(project: Project, net: Net) -> tuple[onnx.ModelProto, dict[str, Any]]:
    found = quantize.ranges(net.model, net.calibration)
    project.text("ranges.json", json.dumps({name: amax for name, amax in found.items() if amax > 0}))
    return quantize.quantized(net.model, net.calibration), {"int8": {"scales": "ranges.json"}}


def _cache(project: Project, net: Net) -> tuple[onnx.ModelProto, dict[str, Any]]:
    lines = ["TRT-8601-MinMaxCalibration"]
    for name, amax in quantize.ranges(net.model, net.calibration).items():
        if amax > 0:
            lines.append(f"{name}: {struct.pack('>f', amax / 127).hex()}")
    project.text("net.cache", "\n".join(lines) + "\n")
    return quantize.quantized(net.model, net.calibration), {"int8": {"scales": "net.cache"}}


def _half(project: Project, net: Net) -> tuple[onnx.ModelProto, dict[str, Any]]:
    return quantize.rounded(net.model), {"candidate": "fp16"}


def _brain(project: Project, net: Net) -> tuple[onnx.ModelProto, dict[str, Any]]:
    return quantize.rounded(net.model, "bf16"), {"candidate": "bf16"}


def _fp8(project: Project, net: Net) -> tuple[onnx.ModelProto, dict[str, Any]]:
    lifted = onnx.version_converter.convert_version(net.model, 19)
    low = quantize.quantized(lifted, net.calibration, fp8=True)
    return low, {"fp8": {"calibrate": {"data": "calibration.npz"}}}


FORMS = {
    "file": _file,
    "per_tensor": _per_tensor,
    "onnxruntime": _onnxruntime,
    "scales": _scales,
    "cache": _cache,
    "fp16": _half,
    "bf16": _brain,
    "fp8": _fp8,
}


def judged(output: str, **limits: Any) -> dict[str, Any]:
    """Criteria on one output."""
    return {"criteria": [{"output": output, **limits}]}


# Classifiers of digits ------------------------------------------------------------------------------------

for _name, _form, _limits in (
    ("cnn", "minmax", {"cosine": 0.99}),
    ("cnn", "entropy", {"top1_agreement": 0.97}),
    ("cnn", "fp16", {"sqnr_db": 40}),
    ("cnn", "cache", {"sqnr_db": 20, "cosine": 0.99}),
    ("resnet", "percentile", {"sqnr_db": 20}),
    ("resnet", "file", {"top1_agreement": 0.97, "cosine": 0.99}),
    ("resnet", "onnxruntime", {"sqnr_db": 20}),
    ("mobilenet", "scales", {"top1_agreement": 0.95}),
    ("vit", "minmax", {"sqnr_db": 15}),
    ("vit", "fp16", {"cosine": 0.999}),
    ("swin", "topk", {"cosine": 0.98}),
    ("mixer", "minmax", {"top5_agreement": 0.98, "kl": 0.1}),
    ("mlp", "file", {"max_rel": 50.0, "mean_rel": 0.3}),
    ("tcn", "minmax", {"kl": 0.05, "sqnr_db": 20}),
    ("encoder", "fp16", {"sqnr_db": 35}),
):
    loop(
        f"{_name}_{_form}",
        "tokens" if _name == "encoder" else "classification",
        partial(nets.trained, _name, 528),
        _form,
        **judged("logits", **_limits),
    )

loop("convnext_default", "classification", partial(nets.trained, "convnext", 528), "fp16")

TOP1 = """
def top1(outputs, labels):
    return float((outputs["logits"].argmax(-1) == labels).mean())


def error(outputs, labels):
    return 1 - top1(outputs, labels)


class Accuracy:
    def __init__(self):
        self.right = self.seen = 0

    def update(self, outputs, labels):
        self.right += int((outputs["logits"].argmax(-1) == labels).sum())
        self.seen += labels.size

    def compute(self):
        return self.right / self.seen
"""


def labelled(
    name: str, network: str, make: Make, form: str, criterion: Mapping[str, Any], **spec: Any
) -> None:
    """Register a case judged by labels, with the metrics of ``TOP1``."""

    def write(project: Project) -> Truth:
        net = make()
        project.text("metrics.py", TOP1)
        project.arrays("labels.npy", labels=net.labels)
        low, section = FORMS[form](project, net)
        more = {"labels": "labels.npy", "criteria": [dict(criterion)], **spec}
        return project.case(net, low, **section, **more)

    add(Entry(f"healthy_{name}", HEALTHY, network, write))


_digits = partial(nets.trained, count=528)
labelled("top1", "classification", partial(_digits, "cnn"), "file", {"metric": "top1", "max_drop": 0.01})
labelled("top5_half", "classification", partial(_digits, "vit"), "fp16", {"metric": "top5", "max_drop": 0.01})
labelled("f1", "classification", partial(_digits, "resnet"), "scales", {"metric": "f1", "max_drop": "2%"})
labelled(
    "own_top1",
    "classification",
    partial(_digits, "mobilenet"),
    "file",
    {"metric": "metrics.py:top1", "min": 0.9, "max_drop": 0.02},
)
labelled(
    "own_error",
    "classification",
    partial(_digits, "mixer"),
    "file",
    {"metric": "metrics.py:error", "lower_is_better": True, "max_drop": 0.02},
)
labelled(
    "own_class",
    "classification",
    partial(_digits, "tcn"),
    "scales",
    {"metric": "metrics.py:Accuracy", "max_drop": 0.02},
    batch=64,
)
labelled(
    "own_streaming",
    "classification",
    partial(_digits, "swin"),
    "file",
    {"metric": "metrics.py:top1", "streaming": True, "max_drop": 0.02},
    batch=64,
)
labelled(
    "two_classes",
    "classification",
    partial(nets.classifier, seed=1, classes=2),
    "file",
    {"metric": "top1", "max_drop": 0.01},
)
labelled("tags", "tokens", partial(nets.tagger, seed=3), "file", {"metric": "top1", "max_drop": 0.01})
labelled(
    "two_tags", "tokens", partial(nets.tagger, seed=4, classes=2), "fp16", {"metric": "top1", "min": 0.97}
)
labelled(
    "own_tags",
    "tokens",
    partial(nets.tagger, seed=5, classes=3),
    "scales",
    {"metric": "metrics.py:top1", "max_drop": 0.01},
)
labelled(
    "tags_at_least",
    "tokens",
    partial(nets.tagger, seed=6),
    "bf16",
    {"metric": "metrics.py:Accuracy", "min": 0.95},
)
labelled(
    "miou",
    "segmentation",
    partial(nets.segmenter, seed=7),
    "file",
    {"metric": "miou", "axis": 1, "max_drop": 0.02},
)
labelled(
    "miou_rare",
    "segmentation",
    partial(nets.segmenter, seed=9, rare=True, classes=2),
    "scales",
    {"metric": "miou", "axis": 1, "max_drop": 0.02},
)
labelled(
    "pixels",
    "segmentation",
    partial(nets.segmenter, seed=10),
    "onnxruntime",
    {"metric": "top1", "axis": 1, "max_drop": 0.01},
)

# Other tasks ----------------------------------------------------------------------------------------------

loop(
    "segments_minmax",
    "segmentation",
    partial(nets.segmenter, seed=11),
    "minmax",
    **judged("logits", sqnr_db=20),
)
loop(
    "segments_softmax",
    "segmentation",
    partial(nets.segmenter, seed=13, softmax=True),
    "file",
    **judged("logits", mean_abs=0.05, cosine=0.99),
)
loop(
    "segments_agree",
    "segmentation",
    partial(nets.segmenter, seed=14, classes=3),
    "per_tensor",
    **judged("logits", top1_agreement=0.95, axis=1),
)
loop("segments_without_bias", "segmentation", partial(nets.segmenter, seed=15, bias=False), "fp16")
loop(
    "segment_ids",
    "segmentation",
    partial(nets.segmenter, seed=16, ids=True),
    "file",
    criteria=[{"output": "ids", "agreement": 0.96}, {"output": "logits", "sqnr_db": 20}],
)
loop("tokens_minmax", "tokens", partial(nets.tagger, seed=17), "minmax", **judged("logits", sqnr_db=20))
loop(
    "tokens_onnxruntime",
    "tokens",
    partial(nets.tagger, seed=19),
    "onnxruntime",
    **judged("logits", cosine=0.99),
)
loop("tokens_fp8", "tokens", partial(nets.tagger, seed=20), "fp8", **judged("logits", cosine=0.98))
loop("speech_minmax", "speech", partial(nets.recognizer, seed=22), "minmax", **judged("logits", sqnr_db=18))
loop(
    "speech_file",
    "speech",
    partial(nets.recognizer, seed=23),
    "file",
    **judged("logits", top1_agreement=0.97),
)
loop("speech_bands", "speech, bands", partial(nets.recognizer, seed=26, mel=True), "scales")
loop(
    "restored",
    "image restoration",
    partial(nets.trained, "unet"),
    "minmax",
    **judged("clean", psnr_db=30, mean_abs=0.02),
)
loop("regression", "regression", partial(nets.regressor, seed=28), "file", **judged("value", sqnr_db=20))
loop(
    "regression_near_0",
    "regression",
    partial(nets.regressor, seed=29, size=1e-3),
    "file",
    **judged("value", mean_abs=1e-4),
)
loop(
    "regression_tolerance",
    "regression",
    partial(nets.regressor, seed=30),
    "fp16",
    **judged("value", tolerance={"abs": 0.01, "rel": 0.01}),
)
loop(
    "regression_mse",
    "regression",
    partial(nets.regressor, seed=31, targets=1),
    "scales",
    **judged("value", mse=0.01),
)
loop(
    "regression_shifted",
    "regression",
    partial(nets.regressor, seed=32, shift=20.0),
    "file",
    **judged("value", max_abs=0.6),
)
loop(
    "spots",
    "detector, heat map",
    partial(nets.spotter, seed=33),
    "minmax",
    **judged("heat", top1_agreement=0.97),
)


@healthy("image restoration")
def restored_by_psnr(project: Project) -> Truth:
    """PSNR against the clean images."""
    net = nets.trained("unet")
    project.arrays("labels.npy", labels=net.labels)
    low = quantize.quantized(net.model, net.calibration)
    return project.case(net, low, labels="labels.npy", criteria=[{"metric": "psnr", "max_drop": 0.3}])


DECODE = f"""
WORDS = {nets.WORDS!r}


def text(outputs):
    found = []
    for row in outputs["logits"].argmax(-1):
        kept = [c for c, before in zip(row, [len(WORDS), *row[:-1]]) if c not in (len(WORDS), before)]
        found.append(" ".join(WORDS[c] for c in kept))
    return found
"""


def heard(name: str, form: str, with_silence: bool = False, **more: Any) -> None:
    """Register a case of speech that is judged by its word error rate."""

    def write(project: Project) -> Truth:
        net = nets.recognizer(**more)
        if with_silence:
            net = silenced(net)
        low, section = FORMS[form](project, net)
        project.text("decoding.py", DECODE)
        project.text("labels.txt", "\n".join(net.labels) + "\n")
        criteria = [{"metric": "wer", "decode": "decoding.py:text", "max_drop": 0.02}]
        return project.case(net, low, **section, labels="labels.txt", criteria=criteria)

    add(Entry(f"healthy_{name}", HEALTHY, "speech", write))


def silenced(net: Net) -> Net:
    """``net`` with a quarter of its recordings all zero, in which nothing is said."""
    (name,) = net.feed
    feed, labels = net.feed[name].copy(), net.labels.copy()
    feed[::4] = 0
    labels[::4] = ""
    return Net(net.model, {name: feed}, net.calibration, labels, net.task, net.more)


heard("words", "file", seed=35)
heard("words_bands", "scales", seed=37, mel=True)


@healthy("speech")
def silence(project: Project) -> Truth:
    """A quarter of the recordings is all zero, in a network with biases."""
    net = silenced(nets.recognizer(seed=38))
    low = quantize.quantized(net.model, net.calibration)
    return project.case(net, low, int8=CALIBRATED, **judged("logits", sqnr_db=18))


@healthy("speech")
def silence_without_bias(project: Project) -> Truth:
    """A quarter of the recordings is all zero, and so is what comes of them, in both forms."""
    net = silenced(nets.recognizer(seed=39, bias=False))
    low = quantize.rounded(net.model)
    return project.case(net, low, candidate="fp16", **judged("logits", sqnr_db=30))


@healthy("classification")
def empty_images(project: Project) -> Truth:
    """Each fifth image is all zero; what a classifier says of them does not matter, and is the same."""
    net = nets.classifier(seed=41)
    images, labels = net.feed["image"].copy(), net.labels.copy()
    images[::5] = 0
    labels[::5] = net.outputs(feed={"image": images})["logits"][0].argmax()
    net = Net(net.model, {"image": images}, net.calibration, labels, net.task, net.more)
    return project.case(net, quantize.quantized(net.model, net.calibration), **judged("logits", sqnr_db=20))


@healthy("segmentation")
def empty_scenes(project: Project) -> Truth:
    """Half of the scenes have nothing but ground, all zero."""
    net = nets.segmenter(seed=41)
    images, labels = net.feed["image"].copy(), net.labels.copy()
    images[::2], labels[::2] = 0, 0
    net = Net(net.model, {"image": images}, net.calibration, labels, net.task, net.more)
    project.arrays("labels.npy", labels=labels)
    low = quantize.quantized(net.model, net.calibration)
    criteria = [{"metric": "miou", "axis": 1, "max_drop": 0.02}, {"output": "logits", "sqnr_db": 20}]
    return project.case(net, low, labels="labels.npy", criteria=criteria)


@healthy("speech")
def loudness(project: Project) -> Truth:
    """Recordings whose loudness goes from 0.4 to 1, all of them fine."""
    net = nets.recognizer(seed=42, bias=False)
    loud = np.linspace(0.4, 1, len(net.feed["wave"]), dtype=np.float32)[:, None, None]
    net = Net(net.model, {"wave": net.feed["wave"] * loud}, net.calibration, net.labels, net.task, net.more)
    low = quantize.rounded(net.model, "bf16")
    return project.case(net, low, candidate="bf16", **judged("logits", sqnr_db=20))


# Detectors ------------------------------------------------------------------------------------------------


def boxes_of(net: Net) -> Array:
    """The truth as coco_map takes it: [N, boxes, 5] of corners and class, -1 where no box is."""
    truth = net.more["truth"]
    boxes = np.full((len(truth), max(map(len, truth)), 5), -1.0, np.float32)
    for row, objects in zip(boxes, truth, strict=True):
        low, high = objects[:, :2] - objects[:, 2:4] / 2, objects[:, :2] + objects[:, 2:4] / 2
        row[: len(objects)] = np.concatenate([low, high, objects[:, 4:]], 1)
    return boxes


def found(name: str, layout: str, form: str, criteria: list[Any], **more: Any) -> None:
    """Register a detector whose boxes and scores are quantized before they are joined."""

    def write(project: Project) -> Truth:
        net = nets.detector(layout, count=96, **more)
        low, section = FORMS[form](project, net)
        project.arrays("labels.npy", labels=boxes_of(net))
        return project.case(net, low, **section, labels="labels.npy", criteria=criteria)

    network = {"channels": "[N, 4+C, A]", "anchors": "[N, A, 4+C]", "objectness": "[N, A, 5+C]"}[layout]
    add(Entry(f"healthy_{name}", HEALTHY, f"detector {network}", write))


_v8 = [{"metric": "coco_map", "decode": "yolov8", "max_drop": 0.05}]
_v5 = [{"metric": "coco_map", "decode": "yolov5", "max_drop": 0.05}]
found("map_channels", "channels", "file", _v8, seed=50)
found("map_objectness", "objectness", "scales", _v5, seed=52)
found("map_objectness_half", "objectness", "fp16", _v5, seed=53, scale=2.0)


def parts(name: str, layout: str, form: str, **more: Any) -> None:
    """Register a detector judged as a whole, whose parts are fine."""

    def make() -> Net:
        return nets.detector(layout, count=96, **more)

    network = {"channels": "[N, 4+C, A]", "anchors": "[N, A, 4+C]", "objectness": "[N, A, 5+C]"}[layout]
    loop(name, f"detector {network}", make, form, **judged("output0", sqnr_db=20))


parts("parts_channels", "channels", "file", seed=54)
parts("parts_anchors", "anchors", "file", seed=56, scale=20.0)
parts("parts_anchors_half", "anchors", "fp16", seed=57)
parts("parts_objectness", "objectness", "file", seed=59)
parts("parts_in_one_unit", "channels", "onnxruntime", seed=61, scale=1 / 48)
loop(
    "masks",
    "masks and classes [N, A, C+64]",
    partial(nets.mask_detector, seed=62),
    "file",
    **judged("output0", cosine=0.98),
)
loop("masks_half", "masks and classes [N, A, C+64]", partial(nets.mask_detector, seed=63, ink=1.0), "fp16")


@healthy("detector [N, 4+C, A]")
def empty_scenes_of_a_detector(project: Project) -> Truth:
    """Half of the images are all zero, with nothing to find in them."""
    net = nets.detector("channels", count=96, seed=64)
    images = net.feed["images"].copy()
    images[::2] = 0
    truth = [objects if i % 2 else objects[:0] for i, objects in enumerate(net.more["truth"])]
    net = Net(
        net.model, {"images": images}, net.calibration, net.labels, net.task, {**net.more, "truth": truth}
    )
    low = quantize.quantized(net.model, net.calibration)
    project.arrays("labels.npy", labels=boxes_of(net))
    return project.case(net, low, labels="labels.npy", criteria=_v8)


@healthy("detector, boxes and scores")
def boxes_and_scores_apart(project: Project) -> Truth:
    """Two outputs in place of one."""
    net = nets.detector("anchors", count=96, seed=65)
    joined = net.model.graph.node[-1]
    names = list(joined.input)
    honest = net.outputs()
    del net.model.graph.node[-1], net.model.graph.output[:]
    net.model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    model = onnx.shape_inference.infer_shapes(net.model)
    del model.graph.value_info[:]
    low = quantize.quantized(model, net.calibration)

    def score(form: onnx.ModelProto) -> float:
        outputs = net.outputs(form)
        return net.metric({"output0": np.concatenate([outputs[name] for name in names], 2)})

    project.model(model)
    project.model(low, "int8.onnx")
    project.arrays("inputs.npz", **net.feed)
    criteria = [{"output": names[0], "cosine": 0.99}, {"output": names[1], "mean_abs": 0.05, "sqnr_db": 15}]
    project.spec(int8={"model": "int8.onnx"}, criteria=criteria)
    return Truth(net.metric_name, net.metric(honest), score(low))


@healthy("embedding")
def embedding(project: Project) -> Truth:
    """Features of unit length, by which the nearest of the calibration's digits is found."""
    net = nets.classifier(seed=179, two_outputs=True)
    graph = net.model.graph
    features = graph.output[1].name
    graph.node.append(
        onnx.helper.make_node(
            "LpNormalization", [features], ["embedding"], "embedding/LpNormalization", axis=-1
        )
    )
    del graph.output[:]
    graph.output.append(onnx.ValueInfoProto(name="embedding"))
    model = onnx.shape_inference.infer_shapes(net.model)
    del model.graph.value_info[:]
    gallery = net.outputs(model, net.calibration)["embedding"]
    nearest = (net.outputs(model)["embedding"] @ gallery.T).argmax(-1)

    def score(form: onnx.ModelProto) -> float:
        return float(((net.outputs(form)["embedding"] @ gallery.T).argmax(-1) == nearest).mean())

    low = quantize.rounded(model)
    project.model(model)
    project.arrays("inputs.npz", **net.feed)
    project.spec(candidate="fp16", **judged("embedding", cosine=0.999))
    return Truth("nearest neighbours", score(model), score(low))


# By design ------------------------------------------------------------------------------------------------


def with_output(net: Net, name: str, value: Array, dtype: int = onnx.TensorProto.FLOAT) -> Net:
    """``net`` with one more output that is ``value`` whatever comes in, a row a sample."""
    model = onnx.ModelProto.FromString(net.model.SerializeToString())
    source = net.model.graph.input[0].name
    graph = model.graph
    constants = {
        f"{name}_value": value[None],
        f"{name}_axes": np.array([0], np.int64),
        f"{name}_one": np.array([1], np.int64),
    }
    constants[f"{name}_end"] = np.array([1], np.int64)
    graph.initializer.extend(numpy_helper.from_array(array, key) for key, array in constants.items())
    node = onnx.helper.make_node
    graph.node.extend(
        [
            node("Shape", [source], [f"{name}_shape"], f"{name}/Shape"),
            node(
                "Slice", [f"{name}_shape", f"{name}_axes", f"{name}_end"], [f"{name}_batch"], f"{name}/Slice"
            ),
            node("Concat", [f"{name}_batch", f"{name}_one"], [f"{name}_size"], f"{name}/Concat", axis=0),
            node("Expand", [f"{name}_value", f"{name}_size"], [name], f"{name}/Expand"),
        ]
    )
    graph.output.append(onnx.helper.make_tensor_value_info(name, dtype, ["batch", len(value)]))
    return Net(model, net.feed, net.calibration, net.labels, net.task, net.more)


@healthy("classification, a constant output")
def version_among_outputs(project: Project) -> Truth:
    """An output that is always 3, the model's version."""
    net = with_output(nets.trained("cnn"), "version", np.array([3.0], np.float32))
    low = quantize.quantized(net.model, net.calibration)
    return project.case(net, low, **judged("logits", sqnr_db=20))


@healthy("speech, a constant output")
def flag_that_is_never_raised(project: Project) -> Truth:
    """An output that is 0 throughout."""
    net = nets.recognizer(seed=66)
    more = with_output(net, "alarm", np.array([0.0], np.float32))
    low = quantize.quantized(more.model, net.calibration)
    return project.case(more, low, **judged("logits", sqnr_db=18))


@healthy("segmentation, a constant output")
def class_ids_among_outputs(project: Project) -> Truth:
    """An output of integers that names the classes."""
    net = with_output(nets.segmenter(seed=67), "names", np.array([7], np.int64), onnx.TensorProto.INT64)
    low = quantize.quantized(net.model, net.calibration)
    return project.case(net, low)


loop(
    "masked_tokens",
    "tokens, -inf by design",
    partial(nets.tagger, seed=68, masked="-inf"),
    "file",
    **judged("logits", top1_agreement=0.97),
)
loop("masked_tokens_half", "tokens, -inf by design", partial(nets.tagger, seed=69, masked="-inf"), "fp16")
# One element of the 12 * 24 of a sample: 0.3 %.
loop(
    "nan_by_design", "tokens, NaN by design", partial(nets.tagger, seed=70, masked="nan", classes=24), "file"
)

# Few samples ----------------------------------------------------------------------------------------------

for _count, _name, _make in (
    (1, "tokens", partial(nets.tagger, seed=71, count=1)),
    (2, "speech", partial(nets.recognizer, seed=72, count=2)),
    (4, "image restoration", partial(nets.trained, "unet", 4)),
    (8, "classification", partial(nets.trained, "cnn", 8)),
):
    loop(f"samples_{_count}", _name, _make, "file", criteria=[{"output": "*", "sqnr_db": 18}])

# Ways to say it -------------------------------------------------------------------------------------------


@healthy("classification", record=True)
def golden(project: Project) -> Truth:
    """The baseline's outputs and the accepted scores are kept, and compared with."""
    net = nets.trained("cnn")
    low = quantize.quantized(net.model, net.calibration)
    criteria = [{"output": "logits", "cosine": 0.99}, {"regression": {"cosine": 0.001}}]
    return project.case(net, low, golden=True, criteria=criteria)


@healthy("tokens", record=True)
def golden_baseline(project: Project) -> Truth:
    """Compared with kept outputs alone."""
    net = nets.tagger(seed=74)
    low = quantize.quantized(net.model, net.calibration)
    return project.case(net, low, baseline="golden", **judged("logits", sqnr_db=20))


@healthy("segmentation", record=True)
def golden_of_half(project: Project) -> Truth:
    """A candidate in FP16, the golden in float16."""
    net = nets.segmenter(seed=75)
    low = quantize.rounded(net.model)
    return project.case(
        net, low, candidate="fp16", golden={"dtype": "float16"}, **judged("logits", sqnr_db=35)
    )


@healthy("classification")
def tensor_inside(project: Project) -> Truth:
    """A criterion on what goes into the head, too."""
    net = nets.trained("resnet")
    inside = net.model.graph.node[-1].input[0]
    low = quantize.quantized(net.model, net.calibration)
    criteria = [{"tensor": inside, "sqnr_db": 18}, {"output": "logits", "sqnr_db": 18}]
    return project.case(net, low, int8=CALIBRATED, criteria=criteria)


@healthy("classification")
def another_baseline(project: Project) -> Truth:
    """Compared with a file of its own, in FP32."""
    net = nets.trained("tcn", 528)
    project.model(net.model, "baseline.onnx")
    low = quantize.quantized(net.model, net.calibration)
    return project.case(net, low, baseline={"model": "baseline.onnx"}, **judged("logits", sqnr_db=20))


@healthy("speech")
def baseline_in_full(project: Project) -> Truth:
    """baseline: fp32."""
    net = nets.recognizer(seed=76)
    low = quantize.quantized(net.model, net.calibration)
    return project.case(net, low, baseline="fp32", int8=CALIBRATED, **judged("logits", sqnr_db=18))


@healthy("classification")
def batch_of_one(project: Project) -> Truth:
    """A model that takes one sample at a time."""
    net = nets.trained("cnn", 64)
    truth = project.case(net, quantize.quantized(net.model, net.calibration), int8=CALIBRATED)
    for value in [*net.model.graph.input, *net.model.graph.output]:
        value.type.tensor_type.shape.dim[0].dim_value = 1
    project.model(net.model)
    return truth


@healthy("classification")
def several_cases(project: Project) -> Truth:
    """Two methods of calibration in one file."""
    net = nets.trained("resnet", 528)
    truth = project.case(net, quantize.quantized(net.model, net.calibration))
    spec = {
        "defaults": {
            "model": "model.onnx",
            "inputs": "inputs.npz",
            "int8": {"calibrate": {"data": "calibration.npz"}},
            **judged("logits", sqnr_db=20),
        },
        "cases": [
            {"name": "minmax", "int8": {"calibrate": {"method": "minmax"}}},
            {"name": "mse", "int8": {"calibrate": {"method": "mse"}}},
        ],
    }
    project.text("case.int8acc.yaml", json.dumps(spec))
    return truth


LOADER = """
import numpy as np


def samples():
    data = np.load("inputs.npz")
    for row in data["tokens"]:
        yield {"tokens": row[None]}
"""


@healthy("tokens")
def loader(project: Project) -> Truth:
    """Inputs come out of a function."""
    net = nets.tagger(seed=77)
    project.text(
        "loaders.py", LOADER.replace('"inputs.npz"', 'f"{__file__.rpartition(chr(47))[0]}/inputs.npz"')
    )
    low = quantize.quantized(net.model, net.calibration)
    return project.case(net, low, inputs="loaders.py:samples", **judged("logits", sqnr_db=20))


@healthy("classification")
def last_layer_excluded(project: Project) -> Truth:
    """The head stays out of INT8, as is often done."""
    net = nets.trained("cnn")
    head = net.model.graph.node[-1].name
    low = quantize.quantized(net.model, net.calibration, leave=[head])
    int8 = {**CALIBRATED, "exclude": [head]}
    return project.case(net, low, int8=int8, **judged("logits", sqnr_db=20))


@healthy("classification, two outputs")
def two_outputs(project: Project) -> Truth:
    """The features are an output, too; one criterion judges both."""
    net = nets.classifier(seed=78, two_outputs=True)
    low = quantize.quantized(net.model, net.calibration)
    criteria = [{"output": "*", "sqnr_db": 18}]
    return project.case(net, low, criteria=criteria)


# Old files ------------------------------------------------------------------------------------------------


def old(name: str, network: str, make: Make, lifted: bool = False, **spec: Any) -> None:
    """Register a file of an old opset; the truth is that of its values rounded to INT8 where it reads them.

    Only the input is rounded, in 255 steps: INT8 forms of opsets below 13 cannot be written.
    """

    def write(project: Project) -> Truth:
        net = make()
        project.model(net.model)
        project.arrays("inputs.npz", **net.feed)
        project.arrays("calibration.npz", **net.calibration)
        project.arrays("labels.npy", labels=net.labels)
        project.text("metrics.py", TOP1)
        project.text("decoding.py", DECODE)
        project.spec(int8=CALIBRATED, **spec)
        coarse = {}
        for key, array in net.feed.items():
            step = np.float32(np.abs(array).max() / 127) if array.dtype == np.float32 else array.dtype.type(1)
            coarse[key] = (np.round(array / step) * step).astype(array.dtype)
        return Truth(net.metric_name, net.metric(net.outputs()), net.metric(net.outputs(feed=coarse)))

    add(Entry(f"healthy_{name}", HEALTHY, network, write))


_labels = {"labels": "labels.npy"}
old(
    "opset_9_nearest",
    "classification",
    partial(nets.classifier, seed=80, opset=9, upsample="nearest"),
    **judged("logits", sqnr_db=18),
)
old(
    "opset_9_linear",
    "classification",
    partial(nets.classifier, seed=81, opset=9, upsample="linear"),
    **_labels,
    criteria=[{"metric": "metrics.py:top1", "min": 0.9}],
)
old(
    "opset_10_linear",
    "segmentation",
    partial(nets.coarse_segmenter, seed=82, opset=10),
    **_labels,
    criteria=[{"metric": "miou", "axis": 1, "min": 0.7, "max_drop": 0.05}],
)
old(
    "opset_7_linear",
    "speech",
    partial(nets.zoomed_recognizer, seed=83, opset=7),
    **judged("logits", cosine=0.97),
)
old(
    "opset_11_tokens",
    "tokens",
    partial(nets.tagger, seed=84, opset=11),
    **_labels,
    criteria=[{"metric": "top1", "max_drop": 0.02}],
)
old(
    "ir_version_3",
    "classification",
    partial(nets.classifier, seed=86, opset=9, ir_version=3),
    **judged("logits", cosine=0.98),
)


# Bodies ---------------------------------------------------------------------------------------------------


def body(name: str, network: str, make: Make, amax: float, **spec: Any) -> None:
    """Register Q/DQ in all layers, those of bodies too, in scales that fit."""

    def write(project: Project) -> Truth:
        net = make()
        low = quantize.quantized_bodies(quantize.quantized(net.model, net.calibration), amax)
        return project.case(net, low, backend="onnxruntime", **spec)

    add(Entry(f"healthy_{name}", HEALTHY, network, write))


body("scan", "speech, Scan", partial(nets.recurrent, seed=90), 4.0, **judged("logits", sqnr_db=15))
body(
    "loop",
    "classification, Loop",
    partial(nets.refined, seed=92, classes=2),
    4.0,
    **judged("logits", cosine=0.97),
)
body("branches", "tokens, If", partial(nets.branched, seed=92), 4.0, **judged("logits", sqnr_db=18))
