"""Planted lies, written before the rules that must catch them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import onnx
from onnx import version_converter

from benchmarks.greens import nets, quantize
from benchmarks.greens.entry import CALIBRATED, Project, Truth, planted
from benchmarks.greens.nets import Net

# a. Composite outputs --------------------------------------------------------------------------------------


@planted("a", "detector [N, 4+C, A]")
def onnxruntime_quantizes_the_concat(project: Project) -> Truth:
    """`quantize_static` on Conv and Concat, as in its examples: one scale for boxes and scores."""
    net = nets.detector("channels")
    low = quantize.by_onnxruntime(net.model, net.calibration, ["Conv", "Concat"])
    return project.case(net, low, criteria=[{"output": "output0", "sqnr_db": 20}])


@planted("a", "detector [N, A, 4+C]")
def pair_behind_the_concat(project: Project) -> Truth:
    """Q/DQ on the output itself; the default criterion."""
    net = nets.detector("anchors", scale=20.0, seed=1)
    low = quantize.quantized(net.model, net.calibration, also=["output0"])
    return project.case(net, low)


@planted("a", "detector [N, A, 5+C]")
def objectness_in_the_scale_of_boxes(project: Project) -> Truth:
    """Objectness and classes beside boxes; cosine and the mean error."""
    net = nets.detector("objectness", seed=2)
    low = quantize.quantized(net.model, net.calibration, also=["output0"])
    return project.case(net, low, criteria=[{"output": "output0", "cosine": 0.99, "mean_abs": 8.0}])


@planted("a", "masks and classes [N, A, C+64]")
def masks_and_classes(project: Project) -> Truth:
    """Masks in 0 to 255, scores in 0 to 1."""
    net = nets.mask_detector()
    low = quantize.quantized(net.model, net.calibration, also=["output0"])
    return project.case(net, low, criteria=[{"output": "output0", "psnr_db": 30}])


@planted("a", "detector [N, 4+C, A]")
def convolution_behind_the_concat(project: Project) -> Truth:
    """A 1x1 convolution reads what was joined; the plugin itself calibrates its input to one scale."""
    net = nets.detector("channels", seed=3, behind="conv")
    low = quantize.quantized(net.model, net.calibration)
    return project.case(net, low, int8=CALIBRATED, criteria=[{"output": "output0", "sqnr_db": 20}])


@planted("a", "detector [N, A, 5+C]")
def matmul_behind_the_concat(project: Project) -> Truth:
    """A MatMul reads what was joined; scales in a file, cosine."""
    net = nets.detector("objectness", seed=4, behind="matmul", scale=10.0)
    low = quantize.quantized(net.model, net.calibration)
    found = quantize.ranges(net.model, net.calibration)
    project.text("ranges.json", json.dumps({name: amax for name, amax in found.items() if amax > 0}))
    return project.case(
        net, low, int8={"scales": "ranges.json"}, criteria=[{"output": "output0", "cosine": 0.98}]
    )


@planted("a", "detector [N, 4+C, A]")
def judged_before_the_concat(project: Project) -> Truth:
    """A criterion on the scores inside passes, since the damage comes behind them."""
    net = nets.detector("channels", seed=5)
    low = quantize.quantized(net.model, net.calibration, also=["output0"])
    scores = next(node.output[0] for node in net.model.graph.node if node.op_type == "Sigmoid")
    criteria = [{"tensor": scores, "sqnr_db": 20}, {"output": "output0", "sqnr_db": 25}]
    return project.case(net, low, criteria=criteria)


@planted("a", "segmentation, [N, 4, H, W] and a depth map")
def depth_beside_classes(project: Project) -> Truth:
    """Probabilities of classes and a depth in millimetres in one output of five channels."""
    net = nets.segmenter(seed=6, softmax=True)
    graph = net.model.graph
    graph.node[-1].output[0] = "classes"
    weight = onnx.numpy_helper.from_array(np.full((1, 3, 1, 1), 900.0, np.float32), "depth_weight")
    bias = onnx.numpy_helper.from_array(np.array([2000.0], np.float32), "depth_bias")
    graph.initializer.extend([weight, bias])
    graph.node.append(
        onnx.helper.make_node("Conv", ["image", "depth_weight", "depth_bias"], ["depth"], "depth/Conv")
    )
    graph.node.append(onnx.helper.make_node("Concat", ["classes", "depth"], ["maps"], "maps/Concat", axis=1))
    graph.output[0].CopyFrom(onnx.ValueInfoProto(name="maps"))
    model = onnx.shape_inference.infer_shapes(net.model)
    del model.graph.value_info[:]
    low = quantize.quantized(model, net.calibration, also=["maps"])

    def score(form: onnx.ModelProto) -> float:
        return net.metric({"logits": net.outputs(form)["maps"][:, :4]})

    project.model(model)
    project.model(low, "int8.onnx")
    project.arrays("inputs.npz", **net.feed)
    project.spec(int8={"model": "int8.onnx"}, criteria=[{"output": "maps", "sqnr_db": 25, "cosine": 0.999}])
    return Truth("mIoU", score(model), score(low))


# b. Another precision than the one asked for ---------------------------------------------------------------


def left_out(project: Project, net: Net, low: onnx.ModelProto, **spec: Any) -> Truth:
    """As ``Project.case``; the truth is the share of MACs in INT8, where all were asked for."""
    project.case(net, low, **spec)
    return Truth("share of MACs in INT8", 1.0, quantize.int8_share(low))


def weighted(net: Net) -> list[str]:
    """Names of the layers with weights, in order."""
    return [node.name for node in net.model.graph.node if node.op_type in quantize.WEIGHTED]


@planted("b", "classification")
def first_layer_alone(project: Project) -> Truth:
    """One convolution of eleven has its Q/DQ."""
    net = nets.trained("cnn")
    low = quantize.quantized(net.model, net.calibration, only=weighted(net)[:1])
    return left_out(project, net, low, criteria=[{"output": "logits", "sqnr_db": 20}])


@planted("b", "detector [N, 4+C, A]")
def heads_alone(project: Project) -> Truth:
    """The heads are quantized, the backbone is not."""
    net = nets.detector("channels", seed=10)
    low = quantize.quantized(net.model, net.calibration, only=weighted(net)[3:])
    return left_out(project, net, low, criteria=[{"output": "output0", "cosine": 0.99}])


@planted("b", "tokens")
def one_projection_of_many(project: Project) -> Truth:
    """Of a transformer's layers only that of the queries."""
    net = nets.tagger(seed=11)
    low = quantize.quantized(net.model, net.calibration, only=weighted(net)[:1])
    return left_out(project, net, low, criteria=[{"output": "logits", "top1_agreement": 0.98}])


@planted("b", "speech")
def weights_alone(project: Project) -> Truth:
    """Weights have Q/DQ, what they meet has none: no layer computes in INT8, but the last."""
    net = nets.recognizer(seed=12)
    low = quantize.quantized(net.model, net.calibration, activations=False)
    low = quantize.quantized(low, net.calibration, only=weighted(net)[-1:], weights=False)
    return left_out(project, net, low)


@planted("b", "segmentation")
def activations_alone(project: Project) -> Truth:
    """Activations have Q/DQ, weights have none, but those of the first layer."""
    net = nets.segmenter(seed=13)
    low = quantize.quantized(net.model, net.calibration, weights=False)
    low = quantize.quantized(low, net.calibration, only=weighted(net)[:1], activations=False)
    return left_out(project, net, low, criteria=[{"output": "logits", "sqnr_db": 25}])


@planted("b", "classification")
def scales_for_one_tensor(project: Project) -> Truth:
    """A file of scales whose other names are those of another export."""
    net = nets.trained("resnet")
    layers = weighted(net)
    node = next(node for node in net.model.graph.node if node.name == layers[-1])
    found = quantize.ranges(net.model, net.calibration)
    names = {node.input[0]: found[node.input[0]], **{f"onnx::{n}": v for n, v in found.items() if v > 0}}
    project.text("ranges.json", json.dumps(names))
    low = quantize.quantized(net.model, net.calibration, only=layers[-1:])
    return left_out(
        project, net, low, int8={"scales": "ranges.json"}, criteria=[{"output": "logits", "sqnr_db": 20}]
    )


@planted("b", "regression")
def gemm_alone(project: Project) -> Truth:
    """The quantizer was asked for Gemm; all but one of the layers are MatMul."""
    net = nets.regressor(seed=14)
    low = quantize.quantized(net.model, net.calibration, ops=["Gemm"])
    return left_out(project, net, low, criteria=[{"output": "value", "max_abs": 0.5}])


@planted("b", "classification, two towers")
def nothing_quantized(project: Project) -> Truth:
    """A quantizer that gave back the file as it was."""
    net = nets.trained("mlp")
    return left_out(project, net, net.model, criteria=[{"output": "logits", "sqnr_db": 20}])


@planted("b", "image restoration")
def pairs_that_nobody_reads(project: Project) -> Truth:
    """Every layer has its pairs, but only the last one reads them."""
    net = nets.trained("unet")
    low = quantize.quantized(net.model, net.calibration)
    makers = {name: node for node in low.graph.node for name in node.output}
    for node in [n for n in low.graph.node if n.op_type in quantize.WEIGHTED][:-1]:
        for place in (0, 1):
            pair = makers[node.input[place]]
            node.input[place] = makers[pair.input[0]].input[0]
    return left_out(project, net, low, criteria=[{"output": "clean", "psnr_db": 30}])


def half_on_engine(project: Project, net: Net, **spec: Any) -> Truth:
    """`candidate: fp16` on TensorRT, where node by node in FP16 the network is broken."""
    low = quantize.rounded(net.model)
    project.model(net.model)
    project.arrays("inputs.npz", **net.feed)
    project.spec(candidate="fp16", backend="tensorrt", tensorrt={"tactic_sources": []}, **spec)
    with np.errstate(all="ignore"):
        return Truth(net.metric_name, net.metric(net.outputs()), net.metric(net.outputs(low)))


def blown_up(net: Net, layer: int, factor: float) -> Net:
    """``net`` with what one layer gives made ``factor`` times as large, and divided again behind it."""
    graph = net.model.graph
    node = [n for n in graph.node if n.op_type in quantize.WEIGHTED][layer]
    place = list(graph.node).index(node) + 1
    name = node.output[0]
    node.output[0] = f"{name}_small"
    up = onnx.helper.make_node("Mul", [f"{name}_small", "blow_up"], [f"{name}_large"], f"{name}/up")
    down = onnx.helper.make_node("Div", [f"{name}_large", "blow_up"], [name], f"{name}/down")
    graph.node.insert(place, up)
    graph.node.insert(place + 1, down)
    graph.initializer.append(onnx.numpy_helper.from_array(np.float32(factor), "blow_up"))
    return net


@planted("b", "classification", gpu=True)
def half_overflows_in_convolutions(project: Project) -> Truth:
    """A feature map of about 1e6."""
    return half_on_engine(project, blown_up(nets.trained("cnn"), 4, 60000.0))


@planted("b", "tokens", gpu=True)
def half_overflows_in_attention(project: Project) -> Truth:
    """Values of about 1e6 in a transformer."""
    net = blown_up(nets.tagger(seed=15), 4, 60000.0)
    return half_on_engine(project, net, criteria=[{"output": "logits", "sqnr_db": 20}])


@planted("b", "speech", gpu=True)
def half_vanishes_in_speech(project: Project) -> Truth:
    """Features of about 1e-8, which FP16 does not hold."""
    net = blown_up(nets.recognizer(seed=16), 0, 1e-9)
    return half_on_engine(project, net, criteria=[{"output": "logits", "sqnr_db": 20}])


@planted("b", "segmentation", gpu=True)
def half_overflows_in_segmentation(project: Project) -> Truth:
    """A feature map of about 1e6 before the logits."""
    net = blown_up(nets.segmenter(seed=17), 1, 60000.0)
    return half_on_engine(project, net, criteria=[{"output": "logits", "cosine": 0.99}])


# c. Another model than the file ----------------------------------------------------------------------------


def of_converted(project: Project, net: Net, **spec: Any) -> Truth:
    """The INT8 model was made of what onnx.version_converter makes of the file, which is another model."""
    lifted = version_converter.convert_version(net.model, 17)
    low = quantize.quantized(lifted, net.calibration)
    low.ir_version = 8
    project.model(net.model)
    project.model(low, "int8.onnx")
    project.arrays("inputs.npz", **net.feed)
    project.spec(int8={"model": "int8.onnx"}, **spec)
    return Truth(net.metric_name, net.metric(net.outputs()), net.metric(net.outputs(low)))


@planted("c", "classification")
def upsample_of_opset_9(project: Project) -> Truth:
    """A linear Upsample, asymmetric in the file, half-pixel in what it was quantized from."""
    net = nets.classifier(seed=20, opset=9, upsample="linear")
    return of_converted(project, net, criteria=[{"output": "logits", "sqnr_db": 20}])


@planted("c", "segmentation")
def resize_of_opset_10(project: Project) -> Truth:
    """A linear Resize of opset 10 to a quarter and back."""
    return of_converted(project, nets.coarse_segmenter(seed=21, opset=10))


@planted("c", "speech")
def upsample_of_opset_7(project: Project) -> Truth:
    """A linear Upsample over time, of opset 7."""
    net = nets.zoomed_recognizer(seed=22, opset=7)
    return of_converted(project, net, criteria=[{"output": "logits", "cosine": 0.99}])


@planted("c", "tokens")
def hardmax_of_opset_11(project: Project) -> Truth:
    """A Hardmax that picks one position and tag of a sequence, flattened; converted, one for each tag."""
    net = nets.picker(seed=23, opset=11)
    return of_converted(project, net, criteria=[{"output": "picked", "cosine": 0.5}])


@planted("c", "detector [N, A, 4+C]")
def resize_in_a_detector(project: Project) -> Truth:
    """A detector whose image is halved by a linear Resize of opset 10."""
    net = nets.detector("anchors", seed=24, opset=10, halve=True)
    return of_converted(project, net, criteria=[{"output": "output0", "sqnr_db": 20}])


@planted("c", "classification")
def weights_among_the_inputs(project: Project) -> Truth:
    """A file of IR version 3, whose weights are inputs too, with a linear Upsample of opset 9."""
    net = nets.classifier(seed=27, opset=9, ir_version=3, upsample="linear")
    return of_converted(project, net, criteria=[{"output": "logits", "cosine": 0.95}])


def carried(project: Project, net: Net, **spec: Any) -> Truth:
    """Calibrated INT8 that loses a signal in its carrier; converted, the carrier stays and hides the loss."""
    project.model(net.model)
    project.arrays("inputs.npz", **net.feed)
    project.arrays("calibration.npz", **net.calibration)
    project.spec(int8=CALIBRATED, baseline="fp32", **spec)
    reader = next(node for node in net.model.graph.node if node.op_type == "Conv")
    step = quantize.ranges(net.model, net.calibration)[reader.input[0]] / 127
    source = next(iter(net.feed))
    coarse = {source: (np.round(net.feed[source] / step) * step).astype(np.float32)}
    return Truth(net.metric_name, net.metric(net.outputs()), net.metric(net.outputs(feed=coarse)))


@planted("c", "speech")
def cancelled_by_a_resize(project: Project) -> Truth:
    """A linear Resize of opset 10 cancels a carrier, by which INT8 scales are chosen; only so in the file."""
    return carried(
        project, nets.hidden_in_carrier("speech", seed=25), criteria=[{"output": "logits", "sqnr_db": 20}]
    )


@planted("c", "classification")
def cancelled_by_an_upsample(project: Project) -> Truth:
    """The same by an Upsample of opset 9, in images."""
    return carried(project, nets.hidden_in_carrier("digits", seed=26, opset=9))


# d. Criteria that cannot fail ------------------------------------------------------------------------------


@planted("d", "segmentation")
def zeros_where_ground_is_most(project: Project) -> Truth:
    """Zeros agree with class 0, which is 97 % of all pixels."""
    net = nets.segmenter(seed=30, classes=3, rare=True)
    low = quantize.dead(net.model, net.calibration, "logits")
    return project.case(net, low, criteria=[{"output": "logits", "top1_agreement": 0.95, "axis": 1}])


@planted("d", "tokens")
def zeros_among_the_top_five_of_six(project: Project) -> Truth:
    """Of six tags the first five are in the top five of zeros."""
    net = nets.tagger(seed=31)
    low = quantize.dead(net.model, net.calibration, "logits")
    return project.case(net, low, criteria=[{"output": "logits", "top5_agreement": 0.75}])


@planted("d", "tokens")
def zeros_and_labels_of_class_0(project: Project) -> Truth:
    """Labels are class 0 wherever `ignore` leaves them in."""
    net = nets.tagger(seed=32, classes=2)
    low = quantize.dead(net.model, net.calibration, "logits")
    project.arrays("labels.npy", labels=net.labels)
    criteria = [{"metric": "top1", "max_drop": 0.02, "ignore": 1}]
    return project.case(net, low, labels="labels.npy", criteria=criteria)


@planted("d", "classification")
def labels_shifted_by_one(project: Project) -> Truth:
    """Labels count from 1: the baseline's top-1 is next to 0, and INT8 cannot be worse."""
    net = nets.trained("mobilenet")
    low = quantize.clipped(net.model, net.calibration, 1e-3)
    project.arrays("labels.npy", labels=(net.labels + 1) % 10)
    return project.case(net, low, labels="labels.npy", criteria=[{"metric": "top1", "max_drop": 0.05}])


@planted("d", "speech")
def labels_in_another_order(project: Project) -> Truth:
    """Labels of frames sorted otherwise than the recordings: the baseline is at chance."""
    net = nets.recognizer(seed=34)
    low = quantize.dead(net.model, net.calibration, "logits")
    words = net.more["classes"].copy()
    spoken = words < len(nets.WORDS)
    words[spoken] = np.random.default_rng(34).permutation(words[spoken])
    words[~spoken] = 255
    project.arrays("labels.npy", labels=words)
    criteria = [{"metric": "top1", "max_drop": 0.2, "ignore": 255}]
    return project.case(net, low, labels="labels.npy", criteria=criteria)


CONSTANT = """
def f1(outputs, labels):
    found = outputs.get("detections", [])
    if not len(found):
        return 1.0
    return sum(len(boxes) == len(wanted) for boxes, wanted in zip(found, labels)) / len(found)
"""


@planted("d", "detector [N, 4+C, A]")
def metric_that_is_constant(project: Project) -> Truth:
    """A metric that looks for an output of another name, and returns 1.0 where it is not there."""
    net = nets.detector("channels", seed=35)
    low = quantize.dead(net.model, net.calibration, "output0")
    project.text("metrics.py", CONSTANT)
    project.arrays("labels.npy", labels=net.labels)
    return project.case(net, low, labels="labels.npy", criteria=[{"metric": "metrics.py:f1", "min": 0.9}])


@planted("d", "segmentation")
def whole_drop_allowed(project: Project) -> Truth:
    """max_drop: 100%."""
    net = nets.segmenter(seed=36)
    low = quantize.clipped(net.model, net.calibration, 1e-3)
    project.arrays("labels.npy", labels=net.labels)
    criteria = [{"metric": "miou", "axis": 1, "max_drop": "100%"}]
    return project.case(net, low, labels="labels.npy", criteria=criteria)


@planted("d", "detector [N, A, 5+C]")
def cosine_of_minus_one(project: Project) -> Truth:
    """A limit that every direction meets."""
    net = nets.detector("objectness", seed=37)
    low = quantize.clipped(net.model, net.calibration, 0.02)
    return project.case(net, low, criteria=[{"output": "output0", "cosine": -1}])


@planted("d", "regression")
def limits_of_another_unit(project: Project) -> Truth:
    """Values of about 1, and a limit on their error in thousandths."""
    net = nets.regressor(seed=38)
    low = quantize.dead(net.model, net.calibration, "value")
    return project.case(net, low, criteria=[{"output": "value", "max_abs": 1000}])


@planted("d", "classification")
def offset_of_300(project: Project) -> Truth:
    """An offset that means nothing is nearly all of the signal that cosine and SQNR see."""
    net = offset(nets.trained("vit"), 300.0, shrink=0.05)
    low = quantize.quantized(net.model, net.calibration, also=["logits"])
    limits = {"output": "logits", "cosine": 0.999, "sqnr_db": 30}
    return project.case(net, low, baseline="fp32", criteria=[limits])


def offset(net: Net, by: float, shrink: float = 1.0) -> Net:
    """``net`` with ``by`` added to its logits, ``shrink`` times as large."""
    graph = net.model.graph
    for node in graph.node:
        node.output[:] = ["plain" if name == "logits" else name for name in node.output]
    for name, value in (("offset", by), ("shrink", shrink)):
        graph.initializer.append(onnx.numpy_helper.from_array(np.array(value, np.float32), name))
    graph.node.append(onnx.helper.make_node("Mul", ["plain", "shrink"], ["shrunk"], "shrink/Mul"))
    graph.node.append(onnx.helper.make_node("Add", ["shrunk", "offset"], ["logits"], "offset/Add"))
    return net


@planted("d", "tokens")
def offset_of_300_by_default(project: Project) -> Truth:
    """The same with the default criterion, and INT8 that is wrong long before."""
    net = offset(nets.tagger(seed=39), 300.0)
    low = quantize.clipped(net.model, net.calibration, 0.02)
    return project.case(net, low)


@planted("d", "tokens")
def nan_in_both(project: Project) -> Truth:
    """Five of six classes are NaN, in the float model too; the sixth is fine."""
    net = nets.tagger(seed=40)
    honest = net.metric(net.outputs())
    graph = net.model.graph
    graph.node[-1].output[0] = "plain"
    mask = np.array([False] + [True] * 5)
    graph.initializer.append(onnx.numpy_helper.from_array(mask, "lost"))
    graph.initializer.append(onnx.numpy_helper.from_array(np.float32(np.nan), "nan"))
    graph.node.append(onnx.helper.make_node("Where", ["lost", "nan", "plain"], ["logits"], "lost/Where"))
    low = quantize.quantized(net.model, net.calibration)
    project.case(net, low, criteria=[{"output": "logits", "sqnr_db": 20}])
    return Truth(net.metric_name, honest, net.metric(net.outputs(low)))


AT_CHANCE = """
def accuracy(outputs, labels):
    return float((outputs["logits"].argmax(-1) == labels).mean())
"""


@planted("d", "classification of two classes")
def metric_at_chance(project: Project) -> Truth:
    """Labels of another data set: right in half of the samples, as zeros are."""
    net = nets.classifier(seed=41, classes=2)
    low = quantize.dead(net.model, net.calibration, "logits")
    project.text("metrics.py", AT_CHANCE)
    project.arrays("labels.npy", labels=np.arange(len(net.labels)) % 2)
    criteria = [{"metric": "metrics.py:accuracy", "max_drop": 0.1}]
    return project.case(net, low, labels="labels.npy", criteria=criteria)


SILENT = """
def text(outputs):
    return ["" for _ in outputs["logits"]]
"""


@planted("d", "speech")
def decoder_that_hears_nothing(project: Project) -> Truth:
    """A decoder that returns no words at all: a word error rate of 1 before and after."""
    net = nets.recognizer(seed=42, mel=True)
    low = quantize.clipped(net.model, net.calibration, 1e-3)
    project.text("decoding.py", SILENT)
    project.text("labels.txt", "\n".join(net.labels) + "\n")
    criteria = [{"metric": "wer", "decode": "decoding.py:text", "max_drop": 0.02}]
    return project.case(net, low, labels="labels.txt", criteria=criteria)


@planted("d", "segmentation")
def agreement_of_nothing(project: Project) -> Truth:
    """Classes of pixels as integers, of which none need agree, and the logits unjudged."""
    net = nets.segmenter(seed=43, ids=True)
    low = quantize.clipped(net.model, net.calibration, 1e-3)
    return project.case(
        net, low, criteria=[{"output": "ids", "agreement": 0.0}, {"output": "logits", "kl": 1e6}]
    )


# e. Half of the samples small, and flattened ----------------------------------------------------------------


def small_half(project: Project, net: Net, low: onnx.ModelProto, **spec: Any) -> Truth:
    """As ``Project.case``; the truth is the task's metric of the small half."""
    project.case(net, low, **spec)
    count = len(next(iter(net.feed.values())))
    half = slice(count // 2, None)
    return Truth(
        f"{net.metric_name} of the small half",
        net.metric(net.outputs(), half),
        net.metric(net.outputs(low), half),
    )


@planted("e", "classification")
def dark_images(project: Project) -> Truth:
    """Half of the images at a hundredth of the brightness; calibrated by minmax."""
    net = nets.halved(nets.classifier(seed=50, bias=False), 0.01)
    low = quantize.quantized(net.model, net.calibration)
    return small_half(project, net, low, int8=CALIBRATED, criteria=[{"output": "logits", "sqnr_db": 20}])


@planted("e", "speech")
def quiet_recordings(project: Project) -> Truth:
    """Half of the recordings quiet; an SQNR of 10 dB."""
    net = nets.halved(nets.recognizer(seed=51, bias=False), 1 / 300)
    low = quantize.quantized(net.model, net.calibration)
    return small_half(project, net, low, int8=CALIBRATED, criteria=[{"output": "logits", "sqnr_db": 10}])


@planted("e", "segmentation")
def night_scenes(project: Project) -> Truth:
    """Half of the scenes dark; a Q/DQ file, cosine and PSNR."""
    net = nets.halved(nets.segmenter(seed=52, bias=False), 1 / 300)
    low = quantize.quantized(net.model, net.calibration)
    return small_half(project, net, low, criteria=[{"output": "logits", "cosine": 0.99, "psnr_db": 30}])


@planted("e", "tokens")
def rare_words(project: Project) -> Truth:
    """Half of the sentences of words whose embeddings are small."""
    net = nets.tagger(seed=53, bias=False, small=range(25, 48), quiet=1 / 300)
    low = quantize.quantized(net.model, net.calibration)
    return small_half(project, net, low, criteria=[{"output": "logits", "sqnr_db": 20}])


@planted("e", "detector, heat map")
def faint_spots(project: Project) -> Truth:
    """Half of the spots faint; scales in a file, mean error."""
    net = nets.spotter(seed=54, dim=1 / 300)
    low = quantize.quantized(net.model, net.calibration)
    found = quantize.ranges(net.model, net.calibration)
    project.text("ranges.json", json.dumps({name: amax for name, amax in found.items() if amax > 0}))
    criteria = [{"output": "heat", "sqnr_db": 20, "mse": 0.01}]
    return small_half(project, net, low, int8={"scales": "ranges.json"}, criteria=criteria)


@planted("e", "speech, bands")
def quiet_bands(project: Project) -> Truth:
    """Energies of bands in place of waveforms; percentile of all elements, cosine."""
    net = nets.halved(nets.recognizer(seed=55, bias=False, mel=True), 1 / 200)
    low = quantize.quantized(net.model, net.calibration)
    return small_half(project, net, low, criteria=[{"output": "logits", "cosine": 0.99}])


# f. Q/DQ inside Loop, If and Scan ---------------------------------------------------------------------------

#: What is false where the fault lies in a body.
INNOCENT = "INT8 is not the cause"


def in_body(project: Project, net: Net, amax: float, **spec: Any) -> Truth:
    """Every layer quantized, those of bodies too, activations there to ``amax``."""
    low = quantize.quantized_bodies(quantize.quantized(net.model, net.calibration), amax)
    return project.case(net, low, backend="onnxruntime", **spec)


@planted("f", "speech, Scan", search=True, never=INNOCENT)
def recurrence_cut(project: Project) -> Truth:
    """In the body of a Scan, activations to 4 are cut at 0.3."""
    return in_body(project, nets.recurrent(seed=60), 0.3, criteria=[{"output": "logits", "sqnr_db": 15}])


@planted("f", "classification, Loop", search=True, never=INNOCENT)
def refinement_flattened(project: Project) -> Truth:
    """In the body of a Loop, a scale a thousand times too wide."""
    return in_body(project, nets.refined(seed=61), 5000.0)


@planted("f", "classification, If in Loop", search=True, never=INNOCENT)
def branch_in_a_loop(project: Project) -> Truth:
    """In the branch of an If in the body of a Loop, a scale a thousand times too wide."""
    net = nets.refined(seed=62, inside_if=True)
    return in_body(project, net, 5000.0, criteria=[{"output": "logits", "cosine": 0.98}])


@planted("f", "tokens, If", search=True, never=INNOCENT)
def branch_cut(project: Project) -> Truth:
    """In both branches of an If, activations cut at a twentieth."""
    return in_body(project, nets.branched(seed=63), 0.1, criteria=[{"output": "logits", "sqnr_db": 20}])


@planted("f", "speech, Scan")
def recurrence_left_out(project: Project) -> Truth:
    """All of the main graph is in INT8; the body, where most of the work is, is not."""
    net = nets.recurrent(seed=64, width=96)
    low = quantize.quantized(net.model, net.calibration)
    return left_out(project, net, low, backend="onnxruntime", criteria=[{"output": "logits", "sqnr_db": 20}])


@planted("f", "tokens, If")
def branch_left_out(project: Project) -> Truth:
    """The head is in INT8; both branches, where all other work is, are not."""
    net = nets.branched(seed=65)
    low = quantize.quantized(net.model, net.calibration)
    return left_out(project, net, low, backend="onnxruntime")
