"""Dumps in ``inspector_dumps``; each has beside it, in ``NAME.facts.json``, what must come out."""

from __future__ import annotations

import collections
import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_int8acc import EngineError
from pytest_int8acc.results import EngineInfo
from pytest_int8acc.runtime.trt.inspector import read_layers, untold_nodes

DUMPS = Path(__file__).parent / "inspector_dumps"
NAMES = sorted(
    path.name.removesuffix(".json") for path in DUMPS.glob("*.json") if not path.name.endswith(".facts.json")
)


def facts_of(text: str, nodes: list[str]) -> dict[str, Any]:
    layers = read_layers(text, nodes)
    return {
        "layers": len(layers),
        "kinds": dict(collections.Counter(layer.kind for layer in layers)),
        "weighted": dict(collections.Counter(la.precision for la in layers if la.kind == "weighted")),
    }


@pytest.mark.parametrize("name", NAMES)
def test_a_dump_reads_as_its_facts_say(name):
    text = (DUMPS / f"{name}.json").read_text(encoding="utf-8")
    beside = DUMPS / f"{name}.facts.json"
    assert beside.exists(), f"write {beside.name}; as read now: {json.dumps(facts_of(text, []))}"
    facts = json.loads(beside.read_text(encoding="utf-8"))
    found = facts_of(text, facts.get("nodes", []))
    assert found == {key: facts[key] for key in found}
    nodes = {layer.name: list(layer.nodes) for layer in read_layers(text, facts.get("nodes", []))}
    assert {layer: nodes[layer] for layer in facts.get("of", {})} == facts.get("of", {})


def test_there_are_dumps_of_every_format():
    assert {"trt86", "trt10", "trt11"} <= {name.partition("_")[0] for name in NAMES}


def layer(**keys: Any) -> str:
    return json.dumps({"Layers": [{"Name": "n", **keys}]})


def one(**keys: Any) -> tuple[str, str]:
    (found,) = read_layers(layer(**keys))
    return found.kind, found.precision


def tensors(*types: str) -> list[dict[str, Any]]:
    return [{"Name": str(i), "Dimensions": [1, 8], "Format/Datatype": t} for i, t in enumerate(types)]


@pytest.mark.parametrize(
    ("inputs", "weights", "tactic", "expected"),
    [
        (["Int8"], "Int8", "", "int8"),
        (["Int8"], "Float", "f32f32_tf32f32", "fp32"),  # reads INT8, multiplies floats
        (["Half"], "Int8", "", "fp16"),  # only its weights are INT8
        (["Half"], "Half", "sm80_f16f16", "fp16"),
        (["Int8"], None, "sm80_xmma_gemm_i8i8_i8i32_f32_tn", "int8"),
        (["Int8"], None, "ampere_int8_i16832cudnn_int8_128x128", "int8"),
        (["Int8"], None, "cutlass_80_tensorop_s8_i16832gemm_s8_256x128", "int8"),
        (["Int8", "Int8", "Float"], None, "", "int8"),
        (["Int8", "Half"], None, "", "fp16"),
        (["Half", "Half"], None, "sm80_xmma_gemm_i8i8_i8i32", "fp16"),
        (["Row major BFLOAT16"], "BFloat16", "", "bf16"),
        (["FLOAT"], "FLOAT", "", "fp32"),
        (["FLOAT16"], "FLOAT16", "", "fp16"),
        (["FLOAT8E4M3"], "FLOAT8E4M3", "", "fp8"),
        (["FLOAT4"], "FLOAT4", "", "other"),
        (["UINT8"], "Half", "", "fp16"),
        (["FP8"], "FP8", "", "fp8"),
        (["N/A due to dynamic shapes"], "Int8", "sm80_xmma_fprop_i8i8", "int8"),
        (["N/A due to dynamic shapes"], "Half", "sm80_xmma_fprop_f16f16_f16f32_t1r8s8", "fp16"),
        (["N/A due to dynamic shapes"], None, "maxwell_scudnn_128x64_relu_small_nn_v1", "fp32"),
        (["Int32"], None, "", "other"),
        ([], None, "", "other"),
    ],
)
def test_a_product_is_int8_where_input_and_weights_are(inputs, weights, tactic, expected):
    keys = {} if weights is None else {"Weights": {"Type": weights, "Count": 8}}
    assert one(LayerType="gemm", Inputs=tensors(*inputs), TacticName=tactic, **keys) == ("weighted", expected)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"LayerType": "CaskPooling", "TacticName": "sm50_xmma_pooling_IMMA"}, "other"),
        ({"LayerType": "kgen", "TacticName": "sm80_xmma_gemm_i8i8"}, "weighted"),
        ({"LayerType": "kgen", "TacticName": "__myl_AddMul"}, "other"),
        ({"LayerType": "Convert"}, "reformat"),
        ({"LayerType": "Conversion"}, "other"),
        ({"LayerType": "PluginV2"}, "other"),
        ({"LayerType": "Reformat", "Origin": "QDQ"}, "qdq"),
        ({"LayerType": "Reformat", "Name": "a_QuantizeLinear_1"}, "qdq"),
        (
            {"LayerType": "Reformat", "Name": "Reformatting CopyNode for a_QuantizeLinear"},
            "reformat",
        ),
        ({"LayerType": "DynamicQuantize"}, "qdq"),
        ({"LayerType": "CaskDeconvolutionV2"}, "weighted"),
        ({"LayerType": "FullyConnected"}, "weighted"),
        ({"LayerType": "New", "Weights": {"Type": "Int8", "Count": 8}}, "weighted"),
        ({"LayerType": "kgen", "Metadata": "[ONNX Layer: a/QuantizeLinear]\x1f[ONNX Layer: b]"}, "other"),
        ({"LayerType": 7}, "other"),
    ],
)
def test_kinds(keys, expected):
    assert one(**keys)[0] == expected


def test_version_11_tells_format_and_type_apart():
    split = [
        {"Name": "x", "Dimensions": [8], "Format": "Row major linear", "Datatype": t} for t in ("Int8",) * 2
    ]
    assert one(LayerType="gemm", Inputs=split) == ("weighted", "int8")


def test_the_largest_constant_is_the_weights():
    bias, weights = tensors("Float", "Int8")
    weights["Dimensions"] = [8, 8]
    keys = {"LayerType": "conv", "Inputs": tensors("Int8")}
    assert one(**keys, Constants=[bias, weights]) == ("weighted", "int8")
    assert one(**keys, Constants=[weights | {"Dimensions": [1]}, bias]) == ("weighted", "fp32")


def test_a_pooling_computes_in_what_it_reads():
    assert one(LayerType="CaskPooling", Inputs=tensors("Bool", "Int8"), Outputs=tensors("Half")) == (
        "other",
        "int8",
    )


@pytest.mark.parametrize(
    ("metadata", "nodes"),
    [
        ("[ONNX Layer: a]", ("a",)),
        ("[ONNX Layer: a]\x1f[ONNX Layer: b]\x1e[ONNX Layer: a]", ("a", "b")),
        ("[ONNX Layer: a][ONNX Layer: x[0]]", ("a", "x[0]")),
        ("[ONNX Layer: a + b], [ONNX Layer: c]", ("a + b", "c")),
        ("", ("n",)),
    ],
)
def test_nodes_from_the_metadata(metadata, nodes):
    assert read_layers(layer(Metadata=metadata))[0].nodes == nodes


@pytest.mark.parametrize(
    ("name", "nodes"),
    [
        ("w + a + PWN(b + c)", ("a", "b", "c")),
        ("PWN(PWN(a), PWN(b, c))", ("a", "b", "c")),
        ("a || b", ("a", "b")),
        ("a(0, 1) + PWN(b(c) + c)", ("a(0, 1)", "b(c)", "c")),
        ("a_myl0_12", ("a",)),
        ("d_clone_1", ("d_clone_1",)),
        ("{ForeignNode[a + w...c]}", ("a", "c")),
        ("PWN(" * 1100 + "a" + ")" * 1100, ("a",)),
        ("__myl_a_myl0_1", ()),
    ],
)
def test_nodes_from_the_name(name, nodes):
    text = json.dumps({"Layers": [{"Name": name, "LayerType": "kgen"}]})
    assert read_layers(text, ["a", "b", "c", "d_clone_1", "a(0, 1)", "b(c)"])[0].nodes == nodes


def test_a_reformat_stands_for_no_node():
    assert read_layers(layer(LayerType="Reformat", Metadata="[ONNX Layer: a]"))[0].nodes == ()


def test_raw_control_characters_are_read():
    assert read_layers('{"Layers": [{"Name": "a\x01\nb"}]}')[0].name == "a\x01\nb"


@pytest.mark.parametrize(
    "text", ["", "{", "null", "3", "{}", '{"Layers": 1}', "[" * 100_000, "9" * 5000, '{"Bindings": []}']
)
def test_what_is_no_dump_is_one_clear_error(text):
    with pytest.raises(EngineError, match=r"inspector's .* expected the text of IEngineInspector"):
        read_layers(text)


def test_the_share_of_int8_layers_comes_out():
    text = (DUMPS / "trt86_conv.json").read_text(encoding="utf-8")
    info = EngineInfo("INT8", "", 0.0, False, 0, read_layers(text))
    assert (info.int8, info.weighted, info.count("qdq"), info.count("reformat")) == (4, 6, 2, 2)
    assert info.int8_share == (4 / 6, 4 / 6)


def test_what_lies_inside_a_fused_region_is_not_told():
    """As TensorRT 8.6 builds a transformer: a convolution, and one region for all that follows."""
    region = {"Name": "{ForeignNode[/norm/Add.../head/Gemm]}", "LayerType": "Myelin", "TacticName": "0x0"}
    weighted = ["/stem/Conv", "/fc1/MatMul", "/fc2/MatMul", "/head/Gemm"]
    conv = {"Name": "/stem/Conv", "LayerType": "CaskConvolution"}
    layers = read_layers(json.dumps({"Layers": [conv, region]}), [*weighted, "/norm/Add"])
    assert [layer.kind for layer in layers] == ["weighted", "other"]
    assert untold_nodes(layers, weighted) == ("/fc1/MatMul", "/fc2/MatMul", "/head/Gemm")
    assert untold_nodes(layers[:1], weighted) == ()


WORDS = st.sampled_from(
    ["QDQ", "Reformat", "gemm", "kgen", "Int8", "Half", "PWN(a, b", "[ONNX Layer: ", "i8i8", " + ", ")", "]"]
)
TEXTS = WORDS | st.text(max_size=8) | st.lists(WORDS, max_size=4).map("".join)
KEYS = st.sampled_from(
    [
        *("Layers", "Name", "LayerType", "ParameterType", "Origin", "Inputs", "Outputs", "Constants"),
        *("Weights", "ConvWeights", "Type", "Count", "Metadata", "TacticName", "Datatype", "Dimensions"),
        *("Format", "Format/Datatype"),
    ]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=6),
    max_leaves=12,
)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.dictionaries(KEYS, JSON, max_size=8) | JSON, max_size=4), st.sets(TEXTS, max_size=3))
def test_any_json_of_these_keys_is_read(layers, nodes):
    found = read_layers(json.dumps({"Layers": layers}), nodes)
    assert len(found) <= len(layers)
    for each in found:
        assert each.kind in ("weighted", "qdq", "reformat", "other")
        assert not nodes or set(each.nodes) <= nodes


@settings(deadline=None, max_examples=60)
@given(JSON.map(json.dumps) | st.text())
def test_anything_else_is_read_or_refused(text):
    with contextlib.suppress(EngineError):
        read_layers(text)
