"""Q/DQ models, each with what lint says of it."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
from builder import IR_VERSION
from onnx import numpy_helper, parser

RNG = np.random.default_rng(0)


X = "float[2,8,8,8] x"


Y = "float[n,c,h,w] y"


#: What the bodies below may read; a test changes some by name.
CONSTANTS: dict[str, np.ndarray] = {
    "s": np.float32(0.03),
    "s2": np.float32(0.05),
    "s3": np.float32(0.04),
    "z": np.int8(0),
    "w": RNG.integers(-127, 128, (8, 8, 3, 3)).astype(np.int8),
    "ws": np.linspace(0.001, 0.002, 8, dtype=np.float32),
    "wz": np.zeros(8, np.int8),
    "wf": (RNG.standard_normal((8, 8, 3, 3)) * 0.1).astype(np.float32),
    "b": np.linspace(-0.1, 0.1, 8, dtype=np.float32),
    "b1": np.ones(8, np.float32),
    "b8": np.arange(8, dtype=np.int8),
    "b32": np.arange(8, dtype=np.int32),
    "m": RNG.integers(-127, 128, (8, 8)).astype(np.int8),
    "one": np.float32(1),
    "many": np.linspace(0.03, 0.05, 8, dtype=np.float32),
}


PAIR = """
    xq = QuantizeLinear(x, s, z)
    xd = DequantizeLinear(xq, s, z)
"""


WEIGHT = "wd = DequantizeLinear <axis: int = 0> (w, ws, wz)\n"


CONV = PAIR + WEIGHT + "y = Conv <pads = [1, 1, 1, 1]> (xd, wd, b)"


TWO = PAIR + WEIGHT + "c = Conv <pads = [1, 1, 1, 1]> (xd, wd, b)\n"
"""A convolution whose result ``c`` goes on."""


NEXT = """
    rq = QuantizeLinear(r, s2, z)
    rd = DequantizeLinear(rq, s2, z)
    y = Conv <pads = [1, 1, 1, 1]> (rd, wd, b)
"""


RESIDUAL = TWO + "a = Add(c, xd)\nr = Relu(a)" + NEXT


CONCAT = (
    PAIR
    + "t = Sigmoid(xd)"
    + """
    tq = QuantizeLinear(t, s2, z)
    td = DequantizeLinear(tq, s2, z)
    j = Concat <axis: int = 1> (xd, td)
    jq = QuantizeLinear(j, s2, z)
    jd = DequantizeLinear(jq, s2, z)
    y = Relu(jd)
"""
)


APART = CONCAT.replace("(xd, td)", "(x, t)") + "p = Relu(td)"


MOVED = """
    t = Sigmoid(x)
    tq = QuantizeLinear(t, s, z)
    td = DequantizeLinear(tq, s, z)
    p = Relu(td)
    o = Identity(t)
    j = Concat <axis: int = 1> (x, o)
    jq = QuantizeLinear(j, s2, z)
    y = DequantizeLinear(jq, s2, z)
"""


APART_Y = Y + ", float[n, c, h, w] p"


SILU = TWO + "g = Sigmoid(c)\nr = Mul(c, g)" + NEXT


NORM = "n = BatchNormalization(c, b1, b1, b1, b1)\n"


BIASED = """
    md = DequantizeLinear <axis: int = 1> (m, ws, wz)
    l = MatMul(xd, md)
    e = Add(l, b)
    eq = QuantizeLinear(e, s3, z)
    ed = DequantizeLinear(eq, s3, z)
    g = Sigmoid(e)
    y = Mul(e, g)
"""


SCALAR = "tq = QuantizeLinear(t, s, z)\ntd = DequantizeLinear(tq, s, z)\ny = Mul(x, td)"


MATMUL = """
    md = DequantizeLinear <axis: int = 1> (m, ws, wz)
    y = MatMul(xd, md)
"""


def make(
    body: str = CONV, opset: int = 17, inputs: str = X, outputs: str = Y, **changes: object
) -> onnx.ModelProto:
    """A model of ``body``, with those constants that it reads."""
    head = f'<ir_version: {IR_VERSION[opset]}, opset_import: ["": {opset}]> m ({inputs}) => ({outputs})'
    proto = parser.parse_model(head + "{" + body + "}")
    values = CONSTANTS | {name: np.asarray(value) for name, value in changes.items()}
    read = {name for node in proto.graph.node for name in node.input}
    read -= {name for node in proto.graph.node for name in node.output} | {i.name for i in proto.graph.input}
    tensors = [numpy_helper.from_array(np.asarray(a), n) for n, a in values.items() if n in read]
    proto.graph.initializer.extend(tensors)
    return proto


def in_half(body: str = CONV, opset: int = 19, **changes: object) -> onnx.ModelProto:
    """``make`` with every constant, input and output in FP16."""
    changes = {n: v.astype(np.float16) for n, v in CONSTANTS.items() if v.dtype == np.float32} | changes
    return make(body, opset, X.replace("float", "float16"), Y.replace("float", "float16"), **changes)


def grouped(channels: int, groups: int) -> onnx.ModelProto:
    weight = RNG.integers(-127, 128, (channels, channels // groups, 3, 3)).astype(np.int8)
    body = PAIR + f"wd = DequantizeLinear(w, s, z)\ny = Conv <group: int = {groups}> (xd, wd)"
    return make(body, inputs=f"float[2,{channels},8,8] x", w=weight)


def without(text: str, *lines: str) -> str:
    """``text`` without the lines that make the tensors named."""
    return "\n".join(line for line in text.split("\n") if line.split("=")[0].strip() not in lines)


#: Rule (and variant) to a model that breaks it and nothing else, and one that keeps every rule.
CASES: dict[str, tuple[onnx.ModelProto, onnx.ModelProto]] = {
    "nonzero-zero-point": (make(z=np.int8(3)), make()),
    "nonzero-zero-point uint8": (make(z=np.uint8(128)), make()),
    "nonzero-zero-point weight": (make(wz=np.arange(8, dtype=np.int8)), make()),
    "nonpositive-scale": (make(s=np.float32(0)), make()),
    "nonpositive-scale negative": (make(s=np.float32(-0.03)), make()),
    "nonpositive-scale nan": (make(s=np.float32(np.nan)), make()),
    "nonpositive-scale inf": (make(s=np.float32(np.inf)), make()),
    "nonpositive-scale weight": (make(ws=np.linspace(0, 0.01, 8, dtype=np.float32)), make()),
    "scale-length": (make(ws=np.full(4, 0.01, np.float32), wz=np.zeros(4, np.int8)), make()),
    "int32-bias": (
        make(PAIR + WEIGHT + "bd = DequantizeLinear(b32, s)\ny = Conv(xd, wd, bd)"),
        make(PAIR + WEIGHT + "y = Conv(xd, wd, b)"),
    ),
    "int32-bias small": (
        make(PAIR + WEIGHT + "bd = DequantizeLinear(b32, s9)\ny = Conv(xd, wd, bd)", s9=np.float32(1e-9)),
        make(PAIR + WEIGHT + "y = Conv(xd, wd, b)"),
    ),
    "unsupported-fp8": (
        make(PAIR + "y = Relu(xd)", opset=21, z=ml_dtypes.float8_e5m2(0)),
        make(PAIR + "y = Relu(xd)", opset=21, z=ml_dtypes.float8_e4m3fn(0)),
    ),
    "one-sided fp8": (
        make(PAIR + "y = Conv(xd, wf, b)", opset=21, z=ml_dtypes.float8_e4m3fn(0)),
        make(
            PAIR + "wd = DequantizeLinear(w8, s, z)\ny = Conv(xd, wd, b)",
            opset=21,
            z=ml_dtypes.float8_e4m3fn(0),
            w8=CONSTANTS["w"].astype(np.float32).astype(ml_dtypes.float8_e4m3fn),
        ),
    ),
    "unsupported-integer": (make(opset=21, z=np.int16(0)), make(opset=21)),
    "dynamic-quantization": (
        make("xq, xs, xz = DynamicQuantizeLinear(x)\nxd = DequantizeLinear(xq, xs, xz)\ny = Relu(xd)"),
        make(PAIR + "y = Relu(xd)"),
    ),
    "operator-format": (
        make(
            "xq = QuantizeLinear(x, s, z)\n"
            "c = QLinearConv <pads = [1, 1, 1, 1]> (xq, s, z, w, ws, wz, s2, z)\n"
            "y = DequantizeLinear(c, s2, z)"
        ),
        make(),
    ),
    "mixed-types": (
        in_half(s=np.float32(0.03)),
        in_half(),
    ),
    "mixed-types add": (
        make("h = Cast <to: int = 10> (x)\ny = Add(x, h)"),
        make("h = Cast <to: int = 10> (x)\ng = Cast <to: int = 1> (h)\ny = Add(x, g)"),
    ),
    "mixed-types across a pair": (
        in_half(opset=23, s=np.float32(0.03)),
        in_half(
            CONV.replace("(xq, s, z)", "(xq, s16, z)"), opset=23, s=np.float32(0.03), s16=np.float16(0.03)
        ),
    ),
    "scalar-qdq": (
        make("td = DequantizeLinear(z5, s, z)\ny = Mul(x, td)", z5=np.int8(5)),
        make("td = DequantizeLinear(z5, s, z)\ny = Mul(x, td)", z5=np.full(1, 5, np.int8)),
    ),
    "scalar-qdq input": (
        make(SCALAR, inputs=X + ", float t"),
        make(SCALAR, inputs=X + ", float[1] t"),
    ),
    "uint8-as-int8": (make(z=np.uint8(0)), make()),
    "uint8-as-int8 default": (make(CONV.replace("s, z)", "s)")), make()),
    "unequal-pair": (make(CONV.replace("(xq, s, z)", "(xq, s2, z)")), make()),
    "one-sided": (make(without(CONV, "wd").replace("wd, b", "wf, b")), make()),
    "one-sided activation": (
        make(
            without(CONV, "xq", "xd").replace("(xd, wd", "(x, wd"),
        ),
        make(),
    ),
    "per-channel-activation": (
        make(CONV.replace("s, z)", "many, wz)")),
        make(),
    ),
    "wrong-channel-axis": (make(CONV.replace("axis: int = 0", "axis: int = 1")), make()),
    "wrong-channel-axis default": (make(CONV.replace("<axis: int = 0> ", "")), make()),
    "wrong-channel-axis deconvolution": (
        make(CONV.replace("Conv", "ConvTranspose")),
        make(CONV.replace("Conv", "ConvTranspose").replace("axis: int = 0", "axis: int = -3")),
    ),
    "wrong-channel-axis matmul": (make(PAIR + MATMUL.replace("= 1", "= 0")), make(PAIR + MATMUL)),
    "wrong-channel-axis gemm": (
        make(
            PAIR + "md = DequantizeLinear <axis: int = 1> (m, ws, wz)\ny = Gemm <transB: int = 1> (xd, md)",
            inputs="float[2,8] x",
            outputs="float[2,8] y",
        ),
        make(
            PAIR + "md = DequantizeLinear <axis: int = 0> (m, ws, wz)\ny = Gemm <transB: int = 1> (xd, md)",
            inputs="float[2,8] x",
            outputs="float[2,8] y",
        ),
    ),
    "wrong-channel-axis transposed": (
        make(
            PAIR
            + MATMUL.replace("MatMul(xd, md)", "MatMul(xd, mt)").replace("    y", "mt = Transpose(md)\ny")
        ),
        make(
            PAIR
            + MATMUL.replace("= 1", "= 0")
            .replace("MatMul(xd, md)", "MatMul(xd, mt)")
            .replace("    y", "mt = Transpose(md)\ny")
        ),
    ),
    "int8-bias": (
        make(PAIR + WEIGHT + "bd = DequantizeLinear(b8, s, z)\ny = Conv(xd, wd, bd)"),
        make(PAIR + WEIGHT + "y = Conv(xd, wd, b)"),
    ),
    "grouped-channels": (grouped(12, 4), grouped(16, 4)),
    "grouped-channels depthwise": (grouped(18, 3), grouped(18, 18)),
    "residual-not-quantized": (make(RESIDUAL.replace("Add(c, xd)", "Add(c, x)")), make(RESIDUAL)),
    "residual-not-quantized batchnorm": (
        make(RESIDUAL.replace("a = Add(c, xd)", NORM + "a = Add(n, x)")),
        make(RESIDUAL.replace("a = Add(c, xd)", NORM + "a = Add(n, xd)")),
    ),
    "residual-not-quantized broadcast": (
        make(RESIDUAL.replace("Add(c, xd)", "Add(c, x)")),
        make(RESIDUAL.replace("Add(c, xd)", "Add(c, t)"), inputs=X + ", float[1] t"),
    ),
    "residual-not-quantized and then not": (
        make(RESIDUAL.replace("Add(c, xd)", "Add(c, x)")),
        make(TWO + "a = Add(c, x)\ny = Sigmoid(a)"),
    ),
    "needless-add-input": (
        make(
            RESIDUAL.replace(
                "a = Add(c,", "cq = QuantizeLinear(c, s3, z)\ncd = DequantizeLinear(cq, s3, z)\na = Add(cd,"
            )
        ),
        make(RESIDUAL),
    ),
    "unequal-concat-scales": (make(CONCAT), make(CONCAT, s=np.float32(0.05))),
    "unequal-concat-scales apart": (
        make(APART, outputs=APART_Y),
        make(APART, outputs=APART_Y, s=np.float32(0.05)),
    ),
    "unequal-concat-scales moved": (
        make(MOVED, outputs=APART_Y),
        make(MOVED, outputs=APART_Y, s=np.float32(0.05)),
    ),
    "breaks-silu": (
        make(
            TWO + "cq = QuantizeLinear(c, s3, z)\ncd = DequantizeLinear(cq, s3, z)\n"
            "g = Sigmoid(cd)\nr = Mul(cd, g)" + NEXT
        ),
        make(SILU),
    ),
    "breaks-silu bias": (
        make(PAIR + BIASED.replace("Sigmoid(e", "Sigmoid(ed").replace("Mul(e", "Mul(ed")),
        make(PAIR + without(BIASED, "eq", "ed")),
    ),
    "breaks-silu factor": (
        make(
            TWO + "g = Sigmoid(c)\ngq = QuantizeLinear(g, s3, z)\ngd = DequantizeLinear(gq, s3, z)\n"
            "r = Mul(c, gd)" + NEXT
        ),
        make(SILU),
    ),
    "coarse-fp16-scale": (in_half(ws=np.full(8, 2e-7, np.float16)), in_half()),
    "coarse-fp16-scale still FP32": (make(ws=np.full(8, 1.5e-6 + 2e-8, np.float32)), make()),
    "fp16-scale-range": (make(ws=np.full(8, 1e-9, np.float32)), make()),
    "fp16-scale-range inf": (make(s=np.float32(1e5)), make()),
    "runtime-scale": (
        make("p = ReduceMax <keepdims: int = 0> (x)\ns = Div(p, q)\n" + CONV, q=np.float32(127)),
        make("s = Div(p, q)\n" + CONV, q=np.float32(127), p=np.float32(4)),
    ),
    "runtime-scale input": (make(inputs=X + ", float s"), make()),
    "runtime-scale unfused": (make(PAIR + "y = Relu(xd)", inputs=X + ", float s"), make()),
    "unread-pair": (
        make("nq = QuantizeLinear(x, s2, z)\nnd = DequantizeLinear(nq, s2, z)\n" + CONV),
        make(),
    ),
    "opset-per-channel": (make(opset=12), make(opset=13)),
    "opset-fp16": (in_half(opset=17), in_half(opset=19)),
}
