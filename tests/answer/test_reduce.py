"""A culprit is cut out of its model as a few nodes that show the same error when run by themselves."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from builder import Builder
from onnx import helper
from qdq_everywhere import everywhere, everywhere_feed
from zoo import ZOO, sample_feed

import pytest_int8acc.answer.reproducer
from pytest_int8acc import EngineError, Int8accError, ModelError
from pytest_int8acc.answer.reproducer import reduce
from pytest_int8acc.graph.layout import find_groups, quantize
from pytest_int8acc.graph.load import load_model, normalize
from pytest_int8acc.graph.model import Model, make_model
from pytest_int8acc.graph.network import Edge, Network, Quantization
from pytest_int8acc.graph.plan import apply
from pytest_int8acc.graph.qdq import read_qdq
from pytest_int8acc.runtime.onnxruntime import OrtEngine
from pytest_int8acc.tensors import Feed

FILES = {"float.onnx", "int8.onnx", "inputs.npz", "inputs.json", "expected.npz", "int8.npz", "README.md"}


def calibrated(model: Model, feeds: Sequence[Feed], wide: str = "", factor: float = 40.0) -> Network:
    """Exact ranges everywhere, but for those of the group ``wide``, which are ``factor`` times too wide."""
    layout = find_groups(model)
    editor = model.edit()
    known = {value.name for value in editor.graph.output}
    editor.graph.output.extend(
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
        for name in layout.activations
        if name not in known
    )
    engine = OrtEngine(editor.done())
    runs = [engine(feed) | feed for feed in feeds]
    scales = {t: float(max(np.abs(run[t]).max() for run in runs)) / 127 for t in layout.activations}
    if wide:
        scales |= {s.tensor: scales[s.tensor] * factor for s in layout.slots[wide] if not s.constant}
    return quantize(model, layout, scales)


def of_zoo(name: str, index: int | None = None) -> tuple[Model, Network, list[Feed]]:
    proto = ZOO[name]()
    model = normalize(make_model(proto))
    feeds = [sample_feed(proto, seed) for seed in range(3)]
    wide = "" if index is None else list(find_groups(model).slots)[index]
    return model, calibrated(model, feeds, wide), feeds


def sqnr(folder: Path) -> float:
    """Of the files, by ONNX Runtime alone."""
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    feed = dict(np.load(folder / "inputs.npz"))
    b, c = (
        onnxruntime.InferenceSession(folder / name, options, providers=["CPUExecutionProvider"]).run(
            None, feed
        )[0]
        for name in ("float.onnx", "int8.onnx")
    )
    return float(10 * np.log10((b.astype(np.float64) ** 2).sum() / ((b.astype(np.float64) - c) ** 2).sum()))


def operators(path: Path) -> list[str]:
    ignored = {"QuantizeLinear", "DequantizeLinear", "Cast"}
    return [node.op_type for node in onnx.load(path).graph.node if node.op_type not in ignored]


@pytest.mark.parametrize(
    ("name", "index", "rest"),
    [
        ("residual", 3, "fp16"),
        ("vit_erf", 5, "fp16"),
        ("unet", 2, "fp32"),
        ("conditional", 1, "fp16"),
        ("embedding", 1, "fp32"),
        ("weight_path", 2, "fp32"),
    ],
)
def test_a_culprit_is_cut_out(name: str, index: int, rest: str, tmp_path: Path) -> None:
    model, network, feeds = of_zoo(name, index)
    group = network.groups[index]
    folder = reduce(model, network, group.name, feeds[0], rest, tmp_path / "deep" / "piece")
    assert folder == tmp_path / "deep" / "piece"
    assert {path.name for path in folder.iterdir()} == FILES
    assert operators(folder / "float.onnx") == [group.op_type]
    assert operators(folder / "int8.onnx") == [group.op_type]
    onnx.checker.check_model(onnx.load(folder / "int8.onnx"), full_check=True)
    assert sqnr(folder) < 25
    text = (folder / "README.md").read_text()
    assert f"# Error of `{group.name}` in INT8" in text
    assert f"| {group.op_type}" not in text
    assert f"1 of {len(model.graph.node)} nodes, 1 of them" in text


def test_the_readme_says_how_far_each_type_reaches(tmp_path: Path) -> None:
    model, network, feeds = of_zoo("mlp", 1)
    group = network.groups[1]

    def unsigned(edge: Edge) -> Edge:
        if edge.node != group.name or edge.quantization.values is not None:
            return edge
        return replace(edge, quantization=Quantization(np.array(2, np.float32), np.array(0, np.uint8)))

    groups = [replace(known, edges=tuple(map(unsigned, known.edges))) for known in network.groups]
    folder = reduce(model, replace(network, groups=tuple(groups)), group.name, feeds[0], "fp32", tmp_path)
    assert f"| `{group.name}` | uint8 | 2 | 510 |" in (folder / "README.md").read_text()


def chain(length: int) -> tuple[Model, list[Feed]]:
    """Convolutions in a row, with names as PyTorch's exporter gives them."""
    b = Builder(17)
    x = b.input("file", [1, 4, 8, 8])
    for i in range(length):
        x = b.relu(b.conv(x, 4, 4))
        b.nodes[-2].name = f"/conv{i}/Conv"
        b.nodes[-1].input[0] = b.nodes[-2].output[0] = f"/conv{i}/Conv_output_0"
    model = normalize(make_model(b.model({x: [1, 4, 8, 8]})))
    rng = np.random.default_rng(0)
    return model, [{"file": rng.normal(size=(1, 4, 8, 8)).astype(np.float32)} for _ in range(3)]


def test_a_piece_grows_to_where_the_error_is_made(tmp_path: Path) -> None:
    model, feeds = chain(7)
    network = calibrated(model, feeds, "/conv2/Conv", 60)
    folder = reduce(model, network, "/conv4/Conv", feeds[0], "fp32", tmp_path)
    assert operators(folder / "float.onnx") == ["Conv", "Relu", "Conv", "Relu", "Conv"]
    assert [v.name for v in onnx.load(folder / "float.onnx").graph.output] == ["/conv4/Conv_output_0"]
    assert "5 of 14 nodes, 3 of them" in (folder / "README.md").read_text()


def branches(gain: float) -> tuple[Model, Network, list[Feed]]:
    """Two convolutions whose results meet before a third; that of the first is ``gain`` times smaller."""
    b = Builder(17)
    x = b.input("x", [1, 4, 8, 8])
    left, right = (b.relu(b.conv(x, 4, 4, gain=g, bias=False)) for g in (gain, 1))
    y = b.conv(b.node("Concat", left, right, axis=1), 8, 4)
    model = normalize(make_model(b.model({y: [1, 4, 8, 8]})))
    feeds = [{"x": np.random.default_rng(0).normal(size=(1, 4, 8, 8)).astype(np.float32)}]
    return model, calibrated(model, feeds), feeds


def with_weights_times(network: Network, index: int, factor: float) -> Network:
    """The network with wrong scales on the weights of one group."""
    group = network.groups[index]
    edges = []
    for edge in group.edges:
        quantization = edge.quantization
        if quantization.values is not None:
            quantization = replace(quantization, scale=quantization.scale * np.float32(factor))
        edges.append(replace(edge, quantization=quantization))
    groups = list(network.groups)
    groups[index] = replace(group, edges=tuple(edges))
    return replace(network, groups=tuple(groups))


@pytest.mark.parametrize(("gain", "factors"), [(1.0, (1.0, 2.0)), (0.003, (2.0, 1.4))])
def test_a_branch_that_adds_no_error_is_left_out(
    gain: float, factors: tuple[float, float], tmp_path: Path
) -> None:
    """In the second case the first branch is harmed more, but too small to matter."""
    model, network, feeds = branches(gain)
    for index, factor in enumerate(factors):
        network = with_weights_times(network, index, factor)
    first, second, last = (group.name for group in network.groups)
    folder = reduce(model, network, last, feeds[0], "fp32", tmp_path)
    names = {node.name for node in onnx.load(folder / "int8.onnx").graph.node}
    assert {second, last} <= names
    assert first not in names


def test_an_error_may_come_through_nodes_of_no_group(tmp_path: Path) -> None:
    model, network, feeds = of_zoo("spp", 0)
    folder = reduce(model, network, network.groups[1].name, feeds[0], "fp32", tmp_path)
    assert operators(folder / "float.onnx") == ["Conv", "Relu", "MaxPool", "MaxPool", "Concat", "Conv"]


@pytest.mark.parametrize("rest", ["fp16", "fp32"])
def test_pairs_of_other_tools_are_cut_out_wherever_they_stand(rest: str, tmp_path: Path) -> None:
    network, feeds = everywhere(), [everywhere_feed()]
    for group in network.groups[:4]:
        folder = reduce(network.model, network, group.name, feeds[0], rest, tmp_path / group.name)
        assert group.op_type in operators(folder / "float.onnx")


@pytest.mark.parametrize(
    ("samples", "worst", "said"),
    [
        (range(7, 8), 7, "for sample 7 of the case's data."),
        (range(32, 64), 40, "for sample 40 of the case's data,\nrun at once with samples 32 to 63."),
    ],
)
def test_the_readme_names_the_sample(tmp_path: Path, samples: range, worst: int, said: str) -> None:
    model, feeds = chain(2)
    network = calibrated(model, feeds)
    reduce(model, network, "/conv0/Conv", feeds[0], "fp16", tmp_path, samples=samples, worst=worst)
    assert said in (tmp_path / "README.md").read_text()


def test_the_model_may_have_been_quantized_by_others(tmp_path: Path) -> None:
    model, feeds = chain(3)
    theirs = read_qdq(apply(calibrated(model, feeds, "/conv1/Conv")), original=model)
    folder = reduce(model, theirs, "/conv1/Conv", feeds[0], "fp16", tmp_path)
    assert operators(folder / "float.onnx") == ["Conv"]
    bare = read_qdq(apply(calibrated(model, feeds, "/conv1/Conv")))
    other = load_model(_saved(ZOO["plain"](), tmp_path))
    folder = reduce(other, bare, "/conv1/Conv", feeds[0], "fp16", tmp_path / "bare")
    assert operators(folder / "float.onnx") == ["Conv"]


def _saved(proto: onnx.ModelProto, folder: Path) -> Path:
    onnx.save(proto, folder / "other.onnx")
    return folder / "other.onnx"


def test_a_mistaken_name_is_told(tmp_path: Path) -> None:
    model, feeds = chain(2)
    with pytest.raises(ModelError, match=r"no group is named '/conv1/Con' \(did you mean '/conv1/Conv'\?\)"):
        reduce(model, calibrated(model, feeds), "/conv1/Con", feeds[0], "fp16", tmp_path)


def test_without_an_error_there_is_nothing_to_cut(tmp_path: Path) -> None:
    b = Builder(17)
    y = b.node("MatMul", b.input("x", [2, 2]), b.const(np.eye(2, dtype=np.float32) * 127))
    model = normalize(make_model(b.model({y: [2, 2]})))
    feeds = [{"x": np.array([[127, 0], [3, -5]], np.float32)}]
    with pytest.raises(ModelError, match="quantization leaves no error at the outputs of 'matmul0'"):
        reduce(model, calibrated(model, feeds), "matmul0", feeds[0], "fp32", tmp_path)


def test_files_that_do_not_show_the_error_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, feeds = chain(2)
    network = calibrated(model, feeds, "/conv1/Conv")
    target = "pytest_int8acc.answer.reproducer.write_model"
    save = pytest_int8acc.answer.reproducer.write_model

    def swapped(piece: Model, path: Path) -> None:
        save(model if path.name == "int8.onnx" else piece, path)

    monkeypatch.setattr(target, swapped)
    with pytest.raises((EngineError, KeyError)):
        reduce(model, network, "/conv1/Conv", feeds[0], "fp16", tmp_path)
    assert not (tmp_path / "README.md").exists()


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    model, feeds = chain(2)
    (tmp_path / "file").write_text("")
    with pytest.raises(Int8accError, match="cannot be written"):
        reduce(model, calibrated(model, feeds), "/conv1/Conv", feeds[0], "fp16", tmp_path / "file" / "piece")


@pytest.mark.skipif(
    [int(part) for part in version("polygraphy").split(".")] < [0, 53, 6],
    reason="--graph-optimization-level begins with Polygraphy 0.53.6",
)
def test_its_commands_run(tmp_path: Path) -> None:
    model, feeds = chain(3)
    folder = reduce(model, calibrated(model, feeds, "/conv1/Conv"), "/conv1/Conv", feeds[0], "fp16", tmp_path)
    text = (folder / "README.md").read_text().replace("\\\n", "")
    commands = [shlex.split(line) for line in text.splitlines() if line.strip().startswith("polygraphy run")]
    assert len(commands) == 3
    codes = []
    for _, *arguments in commands[:2]:
        tool = str(Path(sys.executable).with_name("polygraphy"))
        done = subprocess.run([tool, *arguments], cwd=folder, capture_output=True, text=True, check=False)
        codes.append(done.returncode)
    assert codes == [0, 1]
    assert "FAILED" in done.stdout
    assert "Difference exceeds tolerance" in done.stdout
