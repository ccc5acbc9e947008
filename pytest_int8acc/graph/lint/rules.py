"""The rules of lint. A rule has a severity, the consequence of breaking the rule, a remedy and a source.

The source *header* is the documentation of IQuantizeLayer, IDequantizeLayer and IConvolutionLayer in
TensorRT's NvInfer.h. *guide* is the chapter on explicit quantization of TensorRT's developer guide. *ONNX*
is the operator definitions of the ONNX standard. *ONNX Runtime* is the source code of its quantizer. *built*
means that the consequence was seen when TensorRT-RTX 1.7 built a model that breaks the rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pytest_int8acc.results import Finding, Severity


@dataclass(frozen=True)
class Rule:
    """A rule that Q/DQ models should keep."""

    severity: Severity
    """``error``: TensorRT rejects the model. ``warning``: TensorRT accepts the model, and its results are
    wrong or slow. ``note``: the finding may be harmless."""
    consequence: str
    """The consequence of breaking the rule, as the end of the text of a finding."""
    remedy: str
    source: str


_UNPARSED = (
    "TensorRT builds no model that its parser refuses; if yours takes it ('trtexec --onnx=FILE' tells), set "
    "int8acc_lint = warn"
)
_SYMMETRIC = "quantize symmetrically (ONNX Runtime: extra_options ActivationSymmetric and WeightSymmetric)"
_DIGITS = "keep this scale in FP32 (opset 23: output_dtype on DequantizeLinear), or leave the layer in FP16"

#: The rules of each severity. A row has a rule's name, and the consequence, the remedy and the source.
_TABLE: Mapping[Severity, Mapping[str, tuple[str, str, str]]] = {
    "error": {
        "nonzero-zero-point": ("TensorRT takes symmetric INT8 only", _SYMMETRIC, "header, built"),
        "nonpositive-scale": (
            "a scale must be finite and above zero",
            "calibrate this tensor anew, on data that reaches it; for a dead channel any positive scale "
            "will do",
            "header, built",
        ),
        "scale-length": (
            "a channel without a scale has no meaning",
            "give one scale per channel of the axis, or a single scale",
            "ONNX, built",
        ),
        "int32-bias": (
            "TensorRT takes no INT32 in Q/DQ",
            "leave the bias in floating point (ONNX Runtime: QuantizeBias=False)",
            "built",
        ),
        "unsupported-integer": (
            "TensorRT quantizes activations to INT8 or FP8 only",
            "quantize to int8",
            "header, built",
        ),
        "unsupported-fp8": (
            "of the FP8 formats, TensorRT reads E4M3 alone",
            "quantize to float8e4m3fn",
            "built",
        ),
        "dynamic-quantization": (
            "TensorRT takes no scale that is measured while running",
            "quantize statically, with calibration data",
            "built",
        ),
        "operator-format": (
            "TensorRT takes Q/DQ pairs, not quantized operators",
            "export with Q/DQ (ONNX Runtime: quant_format=QuantFormat.QDQ)",
            "guide, built",
        ),
        "mixed-types": (
            "a strongly typed TensorRT network joins equal types only, and never casts by itself",
            "give the DequantizeLinear nodes scales in the type of the model, or put Cast nodes between",
            "header, built",
        ),
        "scalar-qdq": (
            "TensorRT forbids Q/DQ on a tensor without dimensions",
            "leave the scalar in floating point",
            "header, built",
        ),
        "runtime-scale": (
            "TensorRT wants constants there; otherwise it fuses no kernel, and its builder may crash",
            "fold the constants (polygraphy surgeon sanitize --fold-constants), or quantize statically",
            "header, built",
        ),
        "not-parsed": (
            _UNPARSED,
            "export the model without this node (x[mask] in PyTorch gives a NonZero, torch.where(mask, x, 0) "
            "does not; a Loop or Scan can be unrolled)",
            "built",
        ),
        "added-not-parsed": (
            _UNPARSED,
            "change what was added to the float model at this node as the parser says, or leave it out",
            "built",
        ),
    },
    "warning": {
        "uint8-as-int8": (
            "TensorRT reads the codes as INT8, so all that lies above half of the range is clipped",
            "quantize to int8, with a scale of amax / 127",
            "built",
        ),
        "unequal-pair": (
            "values come back changed",
            "give both nodes one scale (in INT8 the tensor's greatest magnitude / 127), one zero point and "
            "one axis; the layer stays in the low format",
            "ONNX",
        ),
        "one-sided": (
            "the layer stays in floating point, and its Q/DQ only costs accuracy and time",
            "quantize both inputs, or neither",
            "guide, built",
        ),
        "per-channel-activation": (
            "TensorRT's kernels take one scale per activation; it may use the wrong scales or none",
            "quantize activations per tensor; only weights per channel",
            "header, built",
        ),
        "wrong-channel-axis": (
            "the sums of a quantized kernel run across channels of different scale",
            "quantize the weight along its output channels",
            "guide, built",
        ),
        "int8-bias": (
            "8 bits are too coarse for a bias, and the pair may keep it from joining the kernel",
            "leave the bias in floating point",
            "guide, built",
        ),
        "grouped-channels": (
            "TensorRT has no quantized kernel for it",
            "leave this convolution in floating point",
            "header",
        ),
        "residual-not-quantized": (
            "the convolution before the Add cannot quantize its result, so a separate quantization follows",
            "quantize the residual input of the Add as well",
            "guide",
        ),
        "needless-add-input": (
            "the pair keeps the convolution from fusing with the Add, and rounds its result",
            "quantize the Add's other input, the residual, alone",
            "guide",
        ),
        "unequal-concat-scales": (
            "Q/DQ cannot move through the Concat, so each input is converted by a kernel of its own",
            "give what meets in the Concat one scale, the greatest",
            "guide",
        ),
        "breaks-silu": (
            "the layer and its activation run as separate kernels, and the activation reads rounded values",
            "quantize after the activation only",
            "guide",
        ),
        "coarse-fp16-scale": (
            "FP16 has few digits below 2**-14, so the scale is off by that",
            _DIGITS,
            "IEEE 754",
        ),
        "fp16-scale-range": (
            "FP16 holds 2**-24 to 65504: in an FP16 model it becomes 0 or inf",
            _DIGITS,
            "IEEE 754",
        ),
        "unread-pair": (
            "it does nothing, and may be meant for a node that reads the tensor before it",
            "remove it, or let its reader read it",
            "ONNX",
        ),
        "opset-per-channel": (
            "per-channel Q/DQ begins at opset 13: before, runtimes refuse it or take one scale for all",
            "export with opset 13 or later",
            "ONNX",
        ),
        "opset-fp16": (
            "Q/DQ takes FP16 from opset 19 on: ONNX Runtime refuses it, though TensorRT may take it",
            "export with opset 19 or later",
            "ONNX, built",
        ),
        "other-weights": (
            "the quantized model was made from other weights than the float model that it is compared with",
            "quantize the float model of this case anew, or name the float model that it was made from",
            "ONNX",
        ),
        "folded-activation": (
            "in symmetric INT8, or out of INT8, what it cut off comes through",
            "quantize symmetrically, which keeps it (ONNX Runtime: ActivationSymmetric)",
            "ONNX Runtime",
        ),
        "equal-scales": (
            "tensors of a real network differ in range, and scales that are calibrated differ with them",
            "calibrate: int8: {calibrate: {data: ...}}",
            "guide",
        ),
        "missing-scale": (
            "the layer stays in high precision",
            "calibrate these tensors, or add them to the file of scales",
            "guide",
        ),
    },
}
#: The rules by name, errors first.
RULES: Mapping[str, Rule] = {
    name: Rule(severity, *said) for severity, rules in _TABLE.items() for name, said in rules.items()
}


def find(rule: str, subject: str, what: str) -> Finding:
    """A finding that ``subject``, such as a node, breaks ``rule``; ``what`` says how, with numbers."""
    about = RULES[rule]
    return Finding(rule, subject, f"{what}: {about.consequence}", about.remedy, about.severity)
