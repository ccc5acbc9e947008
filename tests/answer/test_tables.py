"""What a report tells of layers, calibration methods, samples and neighbours, against plain tools."""

from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from by_hand import by_hand, run, sqnr_db
from case_files import LOAD, written_and_run
from written_networks import network

DIGITS = Path(__file__).parents[2] / "example_project"
#: Readers of one tensor, more than are shown.
MANY = """<ir_version: 8, opset_import: ["": 17]> many (float[n, 4] x) => ({given}) {{
    y = MatMul(x, w)
    {readers} }}"""


def scales(proto: onnx.ModelProto, reach: dict[str, float]) -> dict[str, Any]:
    """Of what each weighted node reads."""
    return {name: np.array(value / 127, np.float32) for name, value in reach.items()}


@pytest.mark.parametrize(("wide", "more"), [("relu1", {}), ("relu2", {"qdq": {}})])
def test_error_made_in_a_layer_is_told_from_error_passed_on(
    wide: str, more: dict[str, Any], pytester: pytest.Pytester
) -> None:
    """As of models with Q/DQ made by hand: with that layer alone in INT8, and with all of them."""
    said: dict[str, Any] = {"network": "convs()", "ranges": {wide: 30}, **more}
    spec = {"baseline": "fp32", "criteria": [{"sqnr_db": 60}]}
    entry = written_and_run(pytester, **said, spec=spec, options=["--int8acc-layers"])
    lines = {line["layer"]: line for line in entry["diagnosis"]["layers"]}
    assert list(lines) == ["conv1", "conv2", "conv3", "logits"]
    proto, feed = onnx.load(pytester.path / "model.onnx"), dict(np.load(pytester.path / "data.npz"))
    steps = scales(proto, json.loads((pytester.path / "ranges.json").read_text()))
    before = run(proto, feed, [name for name in lines if name != "logits"])
    for name, line in lines.items():
        others = [other for other in lines if other != name]
        for key, leave in (("sqnr_db", []), ("alone_sqnr_db", others)):
            after = run(by_hand(proto, steps, leave), feed, [name] if name != "logits" else [])
            assert line[key] == pytest.approx(sqnr_db(before[name], after[name]), abs=1.5), (name, key)
    guilty = {"relu1": "conv2", "relu2": "conv3"}[wide]
    assert min(lines.values(), key=lambda line: float(line["alone_sqnr_db"]))["layer"] == guilty
    assert lines[guilty]["op_type"] == "Conv"
    assert lines["logits"]["alone_sqnr_db"] > lines["logits"]["sqnr_db"] + 10


def test_large_layers_are_compared_one_sample_at_a_time(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: dict[str, Any] = {"network": "convs()", "ranges": {"relu1": 30}, "data": {"samples": 4}}
    tables = []
    for _ in range(2):
        entry = written_and_run(pytester, **said, spec={"criteria": [{"sqnr_db": 60}]})
        lines = entry["diagnosis"]["layers"]
        tables.append([(line["layer"], line["sqnr_db"], line["alone_sqnr_db"]) for line in lines])
        for bound in ("CHUNK_BYTES", "_BYTES"):
            monkeypatch.setattr(f"pytest_int8acc.answer.layers.{bound}", 1)
    for whole, parts in zip(*tables, strict=True):
        assert parts[0] == whole[0]
        assert parts[1:] == pytest.approx(whole[1:], rel=1e-3)


def test_a_line_of_the_calibrations_is_what_a_case_calibrated_so_would_score(
    pytester: pytest.Pytester,
) -> None:
    def entry(calibrate: dict[str, Any], *options: str) -> dict[str, Any]:
        form = {"calibrate": {"data": "calibration.npz", **calibrate}}
        spec = {"int8": form, "criteria": [{"sqnr_db": 30, "cosine": 0.99}]}
        return written_and_run(pytester, network="block()", calibration={}, spec=spec, options=list(options))

    whole = entry({"method": "topk", "top_k": 2}, "--int8acc-calibrations")
    table = {line["method"]: line for line in whole["diagnosis"]["calibrations"]}
    values = {method: [s["value"] for s in line["scores"]] for method, line in table.items()}
    assert values["as it is"] == [s["value"] for s in whole["scores"]]
    assert len(set(map(tuple, values.values()))) > 4
    for method, calibrate in (
        ("minmax", {"method": "minmax"}),
        ("mse", {"method": "mse"}),
        ("topk 5", {"method": "topk"}),
        ("percentile 99.9", {"method": "percentile", "percentile": 99.9}),
    ):
        other = entry(calibrate)
        assert values[method] == pytest.approx([s["value"] for s in other["scores"]], rel=2e-3), method
        assert table[method]["passed"] == (other["verdict"] == "passed")


def test_stages_and_calibrations_rest_on_evidence(pytester: pytest.Pytester) -> None:
    spec = {"int8": {"calibrate": {}}, "criteria": [{"sqnr_db": 60}]}
    options = ["--int8acc-calibrations", "--int8acc-mode=native"]
    entry = written_and_run(pytester, network="block()", calibration={}, spec=spec, options=options)
    lines = [*entry["diagnosis"]["stages"], *entry["diagnosis"]["calibrations"]]
    assert {line.get("name", "method") for line in lines} == {"FP16", "Q/DQ in ONNX Runtime", "method"}
    for line in lines:
        evidence = line["evidence"]
        assert line["scores"] == evidence["scores"]
        assert evidence["place"] == "native"
        assert evidence["proved_on"]["count"] == entry["samples"]
        assert evidence["cost"]["runs"] == 1
        assert evidence["cost"]["seconds"] > 0
    realized = [line.get("name") for line in lines if line["evidence"]["realized"]]
    assert realized == ["Q/DQ in ONNX Runtime", None]  # the candidate, also as the first of the methods
    trials = [line["evidence"]["subject"] for line in entry["diagnosis"]["calibrations"]]
    assert trials == ["form", *["plan"] * (len(trials) - 1)]


def test_a_culprit_stands_among_what_it_reads_and_what_reads_it(pytester: pytest.Pytester) -> None:
    spec = {"criteria": [{"sqnr_db": 30}]}
    entry = written_and_run(pytester, network="convs()", ranges={"relu1": 60}, spec=spec)
    (culprit,) = entry["culprits"]
    assert culprit["layer"] == "conv2"
    found, more = culprit["neighbours"]["inputs"], culprit["neighbours"]["more"]
    reach = json.loads((pytester.path / "ranges.json").read_text())["relu1"]
    weights = onnx.numpy_helper.to_array(
        next(t for t in onnx.load(pytester.path / "model.onnx").graph.initializer if t.name == "w2")
    )
    wires = {wire["tensor"]: wire for wire in found}
    assert wires["relu1"] == {
        **{"tensor": "relu1", "kind": "node", "node": "relu1", "op_type": "Relu", "format": "int8"},
        **{"scale": pytest.approx(reach / 127), "scales": 1},
    }
    assert (wires["w2"]["kind"], wires["w2"]["format"], wires["w2"]["scales"]) == ("constant", "int8", 8)
    assert wires["w2"]["scale"] == pytest.approx(np.abs(weights).max() / 127)
    (after,) = culprit["neighbours"]["outputs"]
    assert (after["kind"], after["node"], after["op_type"], after["scale"]) == ("node", "relu2", "Relu", None)
    assert more == 0


def test_a_node_of_many_readers_shows_five(pytester: pytest.Pytester) -> None:
    readers = "".join(f"r{i} = Relu(y)\n" for i in range(9))
    graph = MANY.format(given=", ".join(f"float[n, 8] r{i}" for i in range(9)), readers=readers)
    said = {"graph": graph, "weights": {"w": {"shape": [4, 8]}}, "ranges": {"x": 60}}
    spec = {"criteria": [{"sqnr_db": 30, "output": "r0"}], "baseline": "fp16"}
    (culprit,) = written_and_run(pytester, **said, spec=spec)["culprits"]
    around = culprit["neighbours"]
    assert [wire["op_type"] for wire in around["outputs"]] == ["Relu"] * 5
    assert around["more"] == 4
    assert [(wire["tensor"], wire["kind"]) for wire in around["inputs"]] == [
        ("x", "input"),
        ("w", "constant"),
    ]


# --- the worst samples


def pixels(view: dict[str, Any]) -> np.ndarray:
    """Of a picture, [height, width, channels], in the tensor's unit."""
    rows = [np.frombuffer(base64.b64decode(row), np.uint8) for row in view["rows"]]
    codes = np.stack(rows).reshape(len(rows), -1, view["channels"])
    return np.asarray(view["low"] + codes / 255 * (view["high"] - view["low"]))


def test_the_worst_sample_is_shown_as_it_went_in_and_came_out(pytester: pytest.Pytester) -> None:
    folder = shutil.copytree(
        DIGITS, pytester.path / "project", ignore=shutil.ignore_patterns("*tor", "*former")
    )
    with (folder / "digits_by_hand.int8acc.yaml").open("a", encoding="utf-8") as spec:
        spec.write("\nbatch: 7\nbaseline: fp32\nsearch: {when: off}\n")
    options = (*LOAD, "--int8acc", "--int8acc-reduce", "--int8acc-report=report")
    pytester.runpytest(*options, folder / "digits_by_hand.int8acc.yaml")
    (entry,) = json.loads((pytester.path / "report" / "report.json").read_text())["cases"]
    (worst,) = entry["diagnosis"]["worst"]
    images = np.load(DIGITS / "data" / "validation.npz")["image"]
    (before,) = run(onnx.load(DIGITS / "digits.onnx"), {"image": images}).values()
    picture, baseline, int8 = worst["views"]
    assert [view["role"] for view in worst["views"]] == ["input", "baseline", "INT8"]
    number = worst["sample"]
    assert number == entry["outputs"][0]["worst_sample"]
    near = (picture["high"] - picture["low"]) / 500
    np.testing.assert_allclose(pixels(picture)[:, :, 0], images[number, 0], atol=near)
    np.testing.assert_allclose(baseline["values"], before[number], rtol=1e-3, atol=1e-5)
    assert worst["sqnr_db"] == pytest.approx(sqnr_db(before[number], np.array(int8["values"])), abs=1e-2)


def views_of(pytester: pytest.Pytester, shape: list[int], values: Any, kind: str = "float") -> list[Any]:
    """Views of an input that goes with two samples of four numbers through a MatMul, in a failing case."""
    given = ", ".join(map(str, shape))
    graph = f"""<ir_version: 8, opset_import: ["": 17]> g (float[n, 4] x, {kind}[n, {given}] more)
        => (float[n, 2] y, {kind}[n, {given}] same) {{ y = MatMul(x, w)\n same = Identity(more) }}"""
    proto = network(graph, {"w": {"shape": [4, 2]}})
    onnx.save(proto, pytester.path / "model.onnx")
    x = np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32)
    np.savez(pytester.path / "data.npz", x=x, more=np.stack([values, values]))
    (pytester.path / "ranges.json").write_text('{"x": 60}')
    text = "model: model.onnx\ninputs: data.npz\nint8: {scales: ranges.json}\nsearch: {when: off}\n"
    text += "accept_blind: random\ncriteria: [{output: y, sqnr_db: 60}]\n"
    (pytester.path / "case.int8acc.yaml").write_text(text)
    pytester.runpytest(*LOAD, "--int8acc", "--int8acc-report=report")
    (entry,) = json.loads((pytester.path / "report" / "report.json").read_text())["cases"]
    (worst,) = entry["diagnosis"]["worst"]
    return [view for view in worst["views"] if view["tensor"] == "more" and view["role"] == "input"]


def test_a_signal_is_a_curve_and_few_numbers_are_nothing(pytester: pytest.Pytester) -> None:
    wave = np.sin(np.arange(16000, dtype=np.float32) / 50)
    wave[4321] = 3.0
    for values in (wave[None], np.stack([wave, 0 * wave])):
        (view,) = views_of(pytester, list(values.shape), values)
        assert (view.get("channels", 0), view["shape"], len(view["values"])) == (0, list(values.shape), 256)
        assert (max(view["values"]), view["high"]) == (3.0, 3.0)
        assert min(view["values"]) == pytest.approx(-1, abs=1e-3)
    assert views_of(pytester, [3], np.ones(3, np.float32)) == []
    assert views_of(pytester, [128], np.arange(128), "int64") == []


@pytest.mark.parametrize(
    ("height", "width", "channels", "first", "kind"),
    [
        (8, 700, 3, True, "float"),
        (333, 517, 3, False, "uint8"),
        (64, 64, 4, True, "uint8"),
        (700, 700, 1, False, "float"),
    ],
)
def test_a_picture_is_small_and_keeps_its_mean(
    height: int, width: int, channels: int, first: bool, kind: str, pytester: pytest.Pytester
) -> None:
    image = np.random.default_rng(height).random((height, width, channels)) * 200
    image = image.astype(np.float32 if kind == "float" else np.uint8)
    shown = np.moveaxis(image, 2, 0) if first else image
    (view,) = views_of(pytester, list(shown.shape), shown, kind)
    rows = pixels(view)
    assert max(map(len, view["rows"])) <= 400  # as a text for people may be long
    assert view["channels"] == (3 if channels > 1 else 1)
    assert rows.shape[0] * rows.shape[1] <= 4096
    assert rows.mean() == pytest.approx(image[:, :, : view["channels"]].mean(), rel=0.1, abs=2)
