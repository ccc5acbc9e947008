"""Malformed ONNX files: each ends in one error that names the file, or in a sound result."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest
from malformed_models import BASES, DATA, write_data
from onnx import TensorProto, helper, numpy_helper, parser
from plugin_support import LOAD

Change = Callable[[onnx.ModelProto], object]
Models = Mapping[str, onnx.ModelProto | bytes]

CASE = """
- name: {name}
  model: "{model}.onnx"
  inputs: {{random: {{samples: 2}}}}
  int8: {int8}
  backend: onnxruntime
  baseline: {baseline}
"""
CALIBRATED = "{calibrate: {method: minmax}}"
#: How an error of onnx.checker begins.
CHECKER = "not a valid ONNX model; export it again, or mend what onnx.checker names: "


@dataclass(frozen=True)
class Verdicts:
    """What a run of pytest says of models, by their names."""

    errors: Mapping[str, str]
    """Of models that are refused, the message behind the file's name."""
    scores: Mapping[str, Any] = field(default_factory=dict)
    """Of models that get a verdict, their scores."""


def judged(
    pytester: pytest.Pytester, models: Models, int8: str = CALIBRATED, *, baseline: str = "fp16"
) -> Verdicts:
    """Run ``pytest --int8acc`` on a case for each model; the models do not lie in the current folder.

    ``int8`` may name the model by ``{name}``, so that it is the quantized one; the float one is then a sound
    ``convolutions``.
    """
    folder = pytester.path / "models"
    folder.mkdir(exist_ok=True)
    onnx.save(BASES["convolutions"](), folder / "float.onnx")
    quantized = "{name}" in int8
    text = "cases:"
    for name, model in models.items():
        data = model if isinstance(model, bytes) else model.SerializeToString()
        (folder / f"{name}.onnx").write_bytes(data)
        given = int8.replace("{name}", f"{name}.onnx")
        text += CASE.format(name=name, model="float" if quantized else name, int8=given, baseline=baseline)
    (folder / "net.int8acc.yaml").write_text(text)
    pytester.runpytest(*LOAD, "--int8acc", "--int8acc-search=off", "--int8acc-report=report")
    report = json.loads((pytester.path / "report" / "report.json").read_text())
    errors, scores = {}, {}
    for case in report["cases"]:
        name = case["nodeid"].rpartition("::")[2]
        if case["verdict"] != "error":
            scores[name] = case["scores"]
            continue
        place, file, message = case["message"].partition(f"{name}.onnx: ")
        assert file, f"the file is not named: {case['message']}"
        assert place.startswith("models/net.int8acc.yaml:")
        assert "\n" not in message
        errors[name] = message
    return Verdicts(errors, scores)


def check_refused(
    pytester: pytest.Pytester, base: str, attacks: Mapping[str, tuple[Change, str]], int8: str = CALIBRATED
) -> None:
    """Each attack on ``base`` is an error that holds the text beside it."""
    models = {}
    for name, (change, _) in attacks.items():
        models[name] = BASES[base]()
        change(models[name])
    errors = judged(pytester, models, int8).errors
    unlike = {
        name: errors.get(name) for name, (_, text) in attacks.items() if text not in errors.get(name, "")
    }
    assert unlike == {}


def weight(proto: onnx.ModelProto, name: str = "b1") -> TensorProto:
    return next(tensor for tensor in proto.graph.initializer if tensor.name == name)


def raw(change: Callable[[TensorProto], object]) -> Change:
    return lambda proto: change(weight(proto))


TENSORS: dict[str, tuple[Change, str]] = {
    "short": (raw(lambda t: setattr(t, "raw_data", t.raw_data[:-4])), "b1"),
    "torn": (raw(lambda t: setattr(t, "raw_data", t.raw_data[:-1])), "b1"),
    "long": (raw(lambda t: setattr(t, "raw_data", t.raw_data * 2)), "weight 'b1' cannot be read: "),
    "no-data": (raw(lambda t: t.ClearField("raw_data")), "weight 'b1' cannot be read: "),
    "size-0": (raw(lambda t: t.dims.__setitem__(0, 0)), "weight 'b1' cannot be read: "),
    "size-minus-1": (raw(lambda t: t.dims.__setitem__(0, -1)), "b1"),
    "size-2-62": (raw(lambda t: t.dims.__setitem__(0, 2**62)), "b1"),
    "type-0": (raw(lambda t: setattr(t, "data_type", 0)), "weight 'b1' cannot be read: "),
    "type-99": (raw(lambda t: setattr(t, "data_type", 99)), "weight 'b1' has element type 99"),
    "text": (raw(lambda t: setattr(t, "data_type", 8)), "weight 'b1' cannot be read: "),
    "other-field": (
        raw(lambda t: t.ClearField("raw_data") or t.int64_data.extend(range(8))),
        "weight 'b1' cannot be read: ",
    ),
    "two-fields": (raw(lambda t: t.float_data.extend(range(8))), "should contain one and only one value"),
    "segment": (raw(lambda t: t.segment.SetInParent()), "weight 'b1' cannot be read: "),
    "no-name": (raw(lambda t: t.ClearField("name")), CHECKER),
}


def test_a_weight_is_what_its_type_and_sizes_say(pytester: pytest.Pytester) -> None:
    check_refused(pytester, "convolutions", TENSORS)


def test_elements_of_every_width_are_counted(pytester: pytest.Pytester) -> None:
    """Three elements of four bits take two bytes."""
    models = {}
    for kind in (TensorProto.INT4, TensorProto.FLOAT16):
        array = np.array([1, 0, 1]).astype(helper.tensor_dtype_to_np_dtype(kind))
        packed = numpy_helper.from_array(array, "more")
        typed = helper.make_tensor("more", kind, [3], [1, 0, 1])
        for form, tensor in {"packed": packed, "typed": typed}.items():
            proto = models[f"whole-{form}-{kind}"] = BASES["convolutions"]()
            proto.graph.initializer.append(tensor)
    packed.raw_data = packed.raw_data[:-2]
    del typed.int32_data[-1]
    for form, tensor in {"packed": packed, "typed": typed}.items():
        proto = models[f"short-{form}"] = BASES["convolutions"]()
        proto.graph.initializer.append(tensor)
    verdicts = judged(pytester, models)
    assert sorted(verdicts.scores) == sorted(name for name in models if "whole" in name)
    assert [message for message in verdicts.errors.values() if "more" not in message] == []


def node(proto: onnx.ModelProto, name: str) -> onnx.NodeProto:
    return next(n for n in proto.graph.node if name in n.output)


def named(first: str, second: str) -> Change:
    """Two nodes of one name."""

    def change(proto: onnx.ModelProto) -> None:
        node(proto, first).name = node(proto, second).name = "same"

    return change


def imports(version: int) -> Change:
    return lambda proto: setattr(proto.opset_import[0], "version", version)


def ints(name: str, values: list[int]) -> Change:
    """The initializer ``name`` with other integers."""
    return lambda proto: weight(proto, name).CopyFrom(numpy_helper.from_array(np.array(values), name))


def doubled(field: str) -> Change:
    return lambda proto: getattr(proto.graph, field).append(getattr(proto.graph, field)[0])


def attribute(name: str, position: int, *given: Any) -> Change:
    """Another value of an attribute."""
    return lambda proto: node(proto, name).attribute[position].CopyFrom(helper.make_attribute(*given))


def batch(size: int) -> Change:
    return lambda p: setattr(p.graph.input[0].type.tensor_type.shape.dim[0], "dim_value", size)


def input_type(number: int) -> Change:
    return lambda p: setattr(p.graph.input[0].type.tensor_type, "elem_type", number)


SSA = f"{CHECKER}Graph must be in single static assignment (SSA) form, however "
GRAPHS: dict[str, tuple[Change, str]] = {
    "opset-2-40": (imports(2**40), "opset 1099511627776: the installed ONNX "),
    "opset-0": (imports(0), "opset 0: the installed ONNX "),
    "opset-of-tomorrow": (imports(200), "opset 200: the installed ONNX "),
    "no-opset": (lambda p: p.opset_import.pop(), "imports no opset of ONNX"),
    "two-opsets": (
        lambda p: p.opset_import.add(domain="ai.onnx", version=11),
        "imports two opsets of domain '': 17 and 11",
    ),
    "ir-2-40": (lambda p: setattr(p, "ir_version", 2**40), "IR version 1099511627776: the installed ONNX "),
    "input-of-type-0": (input_type(0), "input 'x' has no element type"),
    "input-of-type-99": (input_type(99), "'x' has element type 99"),
    "batch-2-62": (batch(2**62), "input 'x' of sizes [4611686018427387904, 4, 6, 6] has "),
    "group-0": (attribute("c1", 1, "group", 0), "ONNX Runtime"),
    "output-as-int64": (
        lambda p: setattr(p.graph.output[0].type.tensor_type, "elem_type", TensorProto.INT64),
        "'y' is declared INT64, and the model makes floats",
    ),
    "circle": (
        lambda p: node(p, "c1").input.__setitem__(0, "r1"),
        "nodes read one another in a circle: node 'c1' (Conv), node 'r1' (Relu)",
    ),
    "node-twice": (doubled("node"), f"{SSA}'w1'"),
    "node-name-twice": (named("c1", "r1"), "two nodes have the name 'same'"),
    "weight-twice": (doubled("initializer"), "sizes initializer name is not unique"),
    "input-twice": (doubled("input"), f"{SSA}'x'"),
    "output-twice": (doubled("output"), "two outputs have the name 'y'"),
    "reads-nothing": (lambda p: node(p, "r1").input.__setitem__(0, "w2_"), "input 'w2_' of node"),
    "gives-nothing": (lambda p: setattr(p.graph.output[0], "name", "lost"), "'lost' is not an output of any"),
    "too-few-inputs": (
        lambda p: node(p, "c1").input.__delitem__(slice(1, 3)),
        f"{CHECKER}Node with schema(::Conv:11) has input size 1",
    ),
    "too-many-inputs": (lambda p: node(p, "r1").input.append("x"), "(::Relu:14) has input size 2"),
    "constant-without-output": (lambda p: node(p, "k").output.pop(), "OpType: Constant"),
    "constant-of-another-domain": (
        lambda p: node(p, "k").ClearField("attribute") or setattr(node(p, "k"), "domain", "my"),
        "No opset import for domain my",
    ),
    "unknown-attribute": (
        lambda p: node(p, "r1").attribute.append(helper.make_attribute("no", 1)),
        "Unrecognized attribute: no for operator Relu",
    ),
    "attribute-of-another-type": (attribute("c1", 0, "pads", 1.0), "OpType: Conv"),
    "attribute-twice": (
        lambda p: node(p, "c1").attribute.append(node(p, "c1").attribute[0]),
        "OpType: Conv",
    ),
    "attribute-of-no-function": (
        lambda p: node(p, "c2").attribute.add(name="group", ref_attr_name="g", type=2),
        "'group' of node 'c2' (Conv) refers to an attribute of a function",
    ),
    "no-operator": (lambda p: node(p, "r1").ClearField("op_type"), "Field 'op_type' of 'node'"),
    "unknown-operator": (lambda p: setattr(node(p, "r1"), "op_type", "Rely"), "Rely"),
    "reshape": (ints("sizes", [5, 5, 5, 5]), "(Reshape) cannot be computed from its constants"),
    "squeeze": (ints("front", [3]), "(Squeeze) cannot be computed from its constants"),
    "transpose": (attribute("w3", 0, "perm", [0, 5]), "Transpose"),
    "cast": (attribute("w2f", 0, "to", 99), "Cast"),
}


def test_a_graph_is_as_onnx_has_it(pytester: pytest.Pytester) -> None:
    check_refused(pytester, "convolutions", GRAPHS)


def test_weights_of_mixed_types_are_refused(pytester: pytest.Pytester) -> None:
    models = {kind: BASES["convolutions"]() for kind in ("bool", "int8", "float64")}
    for kind, proto in models.items():
        weight(proto, "flat").CopyFrom(numpy_helper.from_array(np.ones(288).astype(kind), "flat"))
    assert judged(pytester, models).scores == {}


def test_names_that_are_no_utf8(pytester: pytest.Pytester) -> None:
    data = BASES["convolutions"]().SerializeToString()
    models = {}
    for name in ("x", "c1", "Conv", "b1"):
        bad = b"\xff" * len(name)
        models[name] = data.replace(bytes([len(name)]) + name.encode(), bytes([len(name)]) + bad)
    errors = judged(pytester, models).errors
    assert [name for name in models if "a name is not UTF-8" not in errors[name]] == []


def recursive(proto: onnx.ModelProto) -> None:
    proto.functions[1].node[0].CopyFrom(helper.make_node("block", ["i", "i"], ["o"], domain="local"))
    proto.functions[1].opset_import.add(domain="local", version=1)


def exploding(proto: onnx.ModelProto) -> None:
    """Forty functions that call the next one twice come to 2**40 nodes."""
    proto.graph.node[1].op_type = "f0"
    for depth in range(40):
        nodes = [
            helper.make_node(f"f{depth + 1}", [read], [made], domain="local")
            for read, made in (("i", "a"), ("a", "o"))
        ]
        if depth == 39:
            nodes = [helper.make_node("Relu", ["i"], ["o"])]
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
        proto.functions.append(helper.make_function("local", f"f{depth}", ["i"], ["o"], nodes, opsets))


def repeated_name(proto: onnx.ModelProto) -> None:
    for each in proto.functions[0].node:
        each.name = "same"


FUNCTIONS: dict[str, tuple[Change, str]] = {
    "recursive": (recursive, "local functions call themselves, or come to more than 1000000 nodes"),
    "exploding": (exploding, "local functions call themselves, or come to more than 1000000 nodes"),
    "old": (lambda p: recursive(p) or setattr(p, "ir_version", 7), "local functions call themselves"),
    "name-twice": (repeated_name, "two nodes have the name 'same'"),
    "function-twice": (lambda p: p.functions.append(p.functions[0]), "two local functions have one name"),
    "too-many-inputs": (lambda p: p.graph.node[0].input.append("x"), "its local functions cannot be inlined"),
}


def test_local_functions_end(pytester: pytest.Pytester) -> None:
    check_refused(pytester, "functions", FUNCTIONS)


def test_unsorted_nodes_are_sorted(pytester: pytest.Pytester) -> None:
    """Converters leave them so, and runtimes accept it."""
    models = {"sorted": BASES["branches"](), "unsorted": BASES["branches"]()}
    nodes = list(models["unsorted"].graph.node)[::-1]
    models["unsorted"].graph.ClearField("node")
    models["unsorted"].graph.node.extend(nodes)
    scores = judged(pytester, models).scores
    assert scores["unsorted"] == scores["sorted"]


def test_operators_that_onnx_has_not_are_left_to_the_runtime(pytester: pytest.Pytester) -> None:
    """ONNX Runtime has Gelu in a domain of its own; its optimizer writes LayerNormalization in old opsets."""
    text = """<ir_version: 8, opset_import: ["": 13, "com.microsoft": 1]>
        g (float[2, 4] x) => (float[2, 4] y)
        { a = MatMul(x, w)  n = LayerNormalization(a, s, s)  g = com.microsoft.Gelu(n)  y = MatMul(g, w) }"""
    proto = parser.parse_model(text)
    rng = np.random.default_rng(0)
    for name, shape in (("w", (4, 4)), ("s", (4,))):
        array = rng.standard_normal(shape).astype(np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    plugin = onnx.ModelProto.FromString(proto.SerializeToString())
    plugin.graph.node[2].op_type, plugin.graph.node[2].domain = "MyPlugin", ""
    verdicts = judged(pytester, {"known": proto, "plugin": plugin}, baseline="fp32")
    assert [*verdicts.scores] == ["known"]
    assert "ONNX Runtime cannot load it: " in verdicts.errors["plugin"]
    assert "MyPlugin" in verdicts.errors["plugin"]


def test_sparse_initializers_are_refused(pytester: pytest.Pytester) -> None:
    proto = BASES["attention"]()
    values = helper.make_tensor("plain", TensorProto.FLOAT, [3], [0.5, -0.25, 1.0])
    indices = helper.make_tensor("at", TensorProto.INT64, [3], [0, 28, 63])
    proto.graph.initializer.remove(weight(proto, "plain"))
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [8, 8]))
    errors = judged(pytester, {"sparse": proto}).errors
    assert errors["sparse"].startswith("weight 'plain' is sparse, which TensorRT cannot read: store it as a")


def test_an_output_of_unknown_type_that_is_no_float(pytester: pytest.Pytester) -> None:
    """Shapes contradict one another at the first MatMul, so that inference knows no type behind it."""
    proto = BASES["attention"]()
    proto.graph.input[0].type.tensor_type.shape.dim[2].dim_value = 5
    proto.graph.output[0].type.tensor_type.elem_type = TensorProto.UINT8
    errors = judged(pytester, {"output": proto}).errors
    assert errors == {"output": "'y' is declared UINT8, and the model makes floats"}


@pytest.mark.parametrize("count", [0, 2])
def test_a_trip_count_is_one_number(count: int, pytester: pytest.Pytester) -> None:
    """Of none, ONNX Runtime ends the process."""
    proto = BASES["branches"]()
    weight(proto, "trips").CopyFrom(numpy_helper.from_array(np.ones(count, np.int64), "trips"))
    (message,) = judged(pytester, {"loop": proto}).errors.values()
    assert message == f"node 'z' (Loop) reads 'trips' of sizes [{count}]; expected one element"


def test_old_models_need_not_list_initializers_as_inputs(pytester: pytest.Pytester) -> None:
    proto = BASES["old"]()
    del proto.graph.input[1:]
    assert [*judged(pytester, {"old": proto}).scores] == ["old"]


def external(**entries: str) -> Change:
    """Other entries of the external weight inside a branch."""

    def change(proto: onnx.ModelProto) -> None:
        branch = next(a.g for n in proto.graph.node if n.op_type == "If" for a in n.attribute)
        for entry in branch.initializer[0].external_data:
            entry.value = entries.get(entry.key, entry.value)

    return change


EXTERNAL: dict[str, tuple[Change, str]] = {
    "nul": (external(location="a\0b"), "weight 's' cannot be read: "),
    "loop": (external(location="loop"), "weight 's' cannot be read: "),
    "long-name": (external(location="n" * 5000), "weight 's' cannot be read: "),
    "above": (external(location="../w.bin"), "lie outside the model's folder, in "),
    "link": (external(location="link"), "lie outside the model's folder, in /etc/hostname"),
    "absolute": (external(location="/dev/zero"), "lie outside the model's folder, in /dev/zero"),
    "folder": (external(location="folder"), "data are in 'folder', which is no file"),
    "pipe": (external(location="pipe"), "data are in 'pipe', which is no file: copy it beside the model"),
    "lost": (external(location="lost"), "data are in 'lost', which is no file: copy it beside the model"),
    "nowhere": (external(location=""), "weight 's' cannot be read: "),
    "offset-text": (external(offset="abc"), "weight 's' cannot be read: "),
    "offset-negative": (external(offset="-4"), "weight 's' cannot be read: "),
    "offset-huge": (external(offset="9" * 30), "weight 's' cannot be read: "),
    "offset-beyond": (
        external(offset="254"),
        "data are bytes 254 to 258 of 'w.bin', which has 256: the file is cut off",
    ),
    "length-0": (external(length="0"), "of sizes [1] it has 4 bytes, and its 'length' is 0"),
    "length-2303": (external(length="2303"), "of sizes [1] it has 4 bytes, and its 'length' is 2303"),
    "length-text": (external(length="abc"), "weight 's' cannot be read: "),
}


def test_external_data_that_is_not_there(pytester: pytest.Pytester) -> None:
    folder = pytester.mkdir("models")
    write_data(folder)
    write_data(pytester.path)
    (folder / "loop").symlink_to("loop")
    (folder / "link").symlink_to("/etc/hostname")
    (folder / "folder").mkdir()
    os.mkfifo(folder / "pipe")
    check_refused(pytester, "external", EXTERNAL)


def test_external_data_lies_beside_the_model(pytester: pytest.Pytester) -> None:
    """Not in the current folder, where another file may bear the same name."""
    folder = pytester.mkdir("models")
    write_data(folder)
    (pytester.path / DATA).write_bytes(bytes(256))
    inline = BASES["external"]()
    onnx.external_data_helper.load_external_data_for_model(inline, str(folder))
    scores = judged(pytester, {"external": BASES["external"](), "inline": inline}).scores
    assert scores["external"] == scores["inline"]


def test_four_bits_in_an_external_file(pytester: pytest.Pytester) -> None:
    codes = numpy_helper.from_array(np.array([1, -2, 3], helper.tensor_dtype_to_np_dtype(22)), "w4")
    (pytester.mkdir("models") / DATA).write_bytes(codes.raw_data)
    proto = BASES["convolutions"]()
    codes.ClearField("raw_data")
    codes.data_location = TensorProto.EXTERNAL
    codes.external_data.add(key="location", value=DATA)
    proto.graph.initializer.append(codes)
    assert [*judged(pytester, {"four": proto}).scores] == ["four"]


def test_a_file_named_as_our_own_placeholder(pytester: pytest.Pytester) -> None:
    """Leftover entries of data that is inline mean nothing."""
    proto = BASES["convolutions"]()
    weight(proto).external_data.add(key="location", value="weights-are-kept-apart")
    assert [*judged(pytester, {"named": proto}).scores] == ["named"]


def test_a_pipe_is_no_model(pytester: pytest.Pytester) -> None:
    os.mkfifo(pytester.path / "model.onnx")
    result = pytester.runpytest(*LOAD, "--int8acc-init", "model.onnx")
    result.stdout.fnmatch_lines("int8acc: *model.onnx: cannot be read: not a regular file")


def scales_of(kind: str) -> Change:
    return lambda p: weight(p, "sw").CopyFrom(numpy_helper.from_array(np.ones(8).astype(kind), "sw"))


SCALES: dict[str, tuple[Change, str]] = {
    "text": (scales_of("U"), "(DequantizeLinear) has a scale of type STRING; expected floats"),
    "bools": (scales_of("?"), "(DequantizeLinear) has a scale of type BOOL; expected floats"),
    "integers": (scales_of("i4"), "(DequantizeLinear) has a scale of type INT32; expected floats"),
    "none": (
        lambda p: weight(p, "sw").CopyFrom(numpy_helper.from_array(np.ones(0, np.float32), "sw")),
        "has 0 scales and 8 zero points",
    ),
    "complex": (scales_of("c8"), "(DequantizeLinear) has a scale of type COMPLEX64; expected floats"),
}


def test_scales_are_floats(pytester: pytest.Pytester) -> None:
    check_refused(pytester, "quantized", SCALES, int8="{model: {name}}")


def test_q_of_another_domain_wants_a_scale_too(pytester: pytest.Pytester) -> None:
    proto = parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
        g (float[2] x) => (float[2] y) { q = com.microsoft.QuantizeLinear(x)  y = Relu(x) }"""
    )
    errors = judged(pytester, {"q": proto}, int8="{model: {name}}").errors
    assert "(QuantizeLinear) needs a tensor and a scale as inputs" in errors["q"]
