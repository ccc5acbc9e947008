"""The files of a fix: read by the tools that they are for, and a plan read back by a spec."""

from __future__ import annotations

import errno
import importlib.util
import os
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import yaml
from case_files import written_and_run
from fixes import CALIBRATION, DIGITS, EXAMPLE, fix_of, network_of
from gpu_support import needs_gpu_below_11
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plans import plain, takes_in
from rtx import build
from zoo import ZOO

from pytest_int8acc import Int8accError
from pytest_int8acc.case.plan_file import plan_text, read_plan
from pytest_int8acc.fix import write_fix
from pytest_int8acc.graph.load import load_model
from pytest_int8acc.graph.migrate import sites
from pytest_int8acc.graph.model import save_model
from pytest_int8acc.graph.network import LeftHigh, Network, Plan, symmetric
from pytest_int8acc.graph.plan import activation_scales, apply, fresh_weights
from pytest_int8acc.graph.qdq import read_qdq

#: What a shell, a regular expression or a list of names might trip over.
ODD = {
    "/block1/conv1/Conv": 'it\'s a $HOME `x` "q" (1+1)[a-z].* ünïcode',
    "/block2/conv1/Conv": "/block1/conv",
    "/head/Gemm": "a,b:c*\\d$",
    "/block2/Add": "-o",
}
TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=20)


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the fix of a model whose nodes have awkward names; the model lies above it."""
    folder = tmp_path_factory.mktemp("odd dir's")
    proto = onnx.load(DIGITS)
    for node in proto.graph.node:
        node.name = ODD.get(node.name, node.name)
    onnx.save(proto, folder / "my $model.onnx")
    plan = Plan(dict.fromkeys(ODD.values(), "fp16"), {"image": symmetric(1 / 127)})
    write_fix(folder / "fix", fix_of(folder / "my $model.onnx", plan))
    return folder / "fix"


def module(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def quantized_inputs(model: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    """Node to the inputs that come from a DequantizeLinear."""
    made = {o for n in model.graph.node if n.op_type == "DequantizeLinear" for o in n.output}
    found = {}
    for node in model.graph.node:
        indices = tuple(i for i, name in enumerate(node.input) if name in made)
        if indices and node.op_type not in ("QuantizeLinear", "DequantizeLinear"):
            found[node.name] = indices
    return found


def planned_inputs(network: Network, plan: Plan) -> dict[str, tuple[int, ...]]:
    found: dict[str, list[int]] = {}
    for group in network.groups:
        if group.name not in plan.high:
            for edge in group.edges:
                found.setdefault(edge.node, []).append(edge.index)
    return {name: tuple(sorted(indices)) for name, indices in found.items()}


def run_ort_quantize(folder: Path, output: Path, calibration: Path = CALIBRATION) -> onnx.ModelProto:
    done = subprocess.run(
        [sys.executable, folder / "ort_quantize.py", calibration, output],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "not quantized" not in done.stderr
    return onnx.load(output)


def test_excluded_nodes_are_the_plans_in_the_models_order(odd: Path) -> None:
    lines = (odd / "exclude_nodes.txt").read_text(encoding="utf-8").split("\n")
    order = [node.name for node in onnx.load(odd.parent / "my $model.onnx").graph.node]
    assert lines == [*sorted(ODD.values(), key=order.index), ""]


def test_onnx_runtime_quantizes_exactly_the_plan(odd: Path, tmp_path: Path) -> None:
    quantized = run_ort_quantize(odd, tmp_path / "q.onnx")
    model = load_model(odd.parent / "my $model.onnx")
    network, plan = network_of(model), Plan(dict.fromkeys(ODD.values(), "fp16"))
    assert quantized_inputs(quantized) == planned_inputs(network, plan)
    onnx.checker.check_model(quantized, full_check=True)
    scales = activation_scales(read_qdq(load_model(tmp_path / "q.onnx")))
    assert scales["image"] == pytest.approx(1 / 127)
    assert 0 < scales["/stem/relu/Relu_output_0"] < 4 / 127


@pytest.mark.rtx
def test_tensorrt_builds_what_onnx_runtime_quantized(odd: Path, tmp_path: Path) -> None:
    build(run_ort_quantize(odd, tmp_path / "q.onnx").SerializeToString())


@pytest.mark.parametrize("name", ["unnamed", "weight_path", "conditional"])
def test_onnx_runtime_quantizes_models_of_every_make(tmp_path: Path, name: str) -> None:
    """Also those whose file has other node names than the plan: the fix then holds the model in its names."""
    proto = ZOO[name]()
    onnx.save(proto, tmp_path / "model.onnx")
    network = network_of(load_model(tmp_path / "model.onnx"))
    plan = Plan({network.groups[0].name: "fp16"})
    written = write_fix(tmp_path / "fix", fix_of(tmp_path / "model.onnx", plan))
    named_anew = name in ("unnamed", "weight_path")
    assert (str(tmp_path / "fix" / "float.onnx") in written) is named_anew
    shapes = {i.name: (4 * i.shape[0] if i.shape else None, *i.shape[1:]) for i in network.model.inputs}
    rng = np.random.default_rng(0)
    arrays = {n: rng.normal(size=s).astype("f4") if s[0] else np.array(True) for n, s in shapes.items()}
    np.savez(tmp_path / "calibration.npz", **arrays)
    quantized = run_ort_quantize(tmp_path / "fix", tmp_path / "q.onnx", tmp_path / "calibration.npz")
    assert quantized_inputs(quantized) == planned_inputs(network, plan)


def test_a_quantized_tensor_that_is_an_output_stays_float(tmp_path: Path) -> None:
    proto = onnx.load(DIGITS)
    name = "/stem/relu/Relu_output_0"
    proto.graph.output.append(onnx.helper.make_tensor_value_info(name, 1, ["batch", 16, 8, 8]))
    onnx.save(proto, tmp_path / "model.onnx")
    network = network_of(load_model(tmp_path / "model.onnx"))
    plan = Plan({"/head/Gemm": "fp16"})
    write_fix(tmp_path / "fix", fix_of(tmp_path / "model.onnx", plan))
    quantized = run_ort_quantize(tmp_path / "fix", tmp_path / "q.onnx")
    assert quantized_inputs(quantized) == planned_inputs(network, plan)
    makers = {output: node.op_type for node in quantized.graph.node for output in node.output}
    assert makers[name] == "Relu"
    onnx.checker.check_model(quantized, full_check=True)


def test_ort_quantize_refuses_another_model(odd: Path, tmp_path: Path) -> None:
    command = [sys.executable, odd / "ort_quantize.py", CALIBRATION, tmp_path / "q.onnx", "--model", DIGITS]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "the plan is for another export of the model" in done.stderr
    assert "Traceback" not in done.stderr


def test_modelopt_gets_each_argument_whole(odd: Path, tmp_path: Path) -> None:
    """The shell hands the arguments to a stand-in for python that prints them."""
    stand_in = tmp_path / "python"
    stand_in.write_text("#!/bin/sh\nprintf '%s\\0' \"$@\"\n")
    stand_in.chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["sh", odd / "modelopt.sh", "my data.npz"], env=env, capture_output=True, check=True
    )
    arguments = done.stdout.decode().split("\0")
    assert arguments[:2] == ["-m", "modelopt.onnx.quantization"]
    model = Path(arguments[arguments.index("--onnx_path") + 1])
    assert model.resolve() == (odd.parent / "my $model.onnx").resolve()
    assert arguments[arguments.index("--calibration_data_path") + 1] == "my data.npz"
    patterns = arguments[arguments.index("--nodes_to_exclude") + 1 : -1]
    names = [node.name for node in onnx.load(model).graph.node]
    assert [n for p in patterns for n in names if re.match(p, n)] == [n for n in names if n in ODD.values()]


def test_modelopt_without_data_says_what_to_type(odd: Path) -> None:
    done = subprocess.run(["sh", odd / "modelopt.sh"], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "give the calibration data: sh modelopt.sh CALIBRATION.npz" in done.stderr


def test_a_shell_reads_the_line_for_polygraphy(odd: Path) -> None:
    lines = (odd / "layer_precisions.txt").read_text(encoding="utf-8").splitlines()
    (line,) = [line for line in lines if line.startswith("--precision-constraints ")]
    done = subprocess.run(["sh", "-c", f"printf '%s\\0' {line}"], capture_output=True, check=True)
    words = done.stdout.decode().split("\0")[:-1]
    assert words[:3] == ["--precision-constraints", "obey", "--layer-precisions"]
    assert set(words[3:]) == {f"{name}:float16" for name in ODD.values() if name != "-o"}
    assert "# '-o' cannot be named here: use postprocess.py" in lines


def test_trtexec_gets_only_names_that_it_can_split(odd: Path) -> None:
    text = (odd / "layer_precisions.txt").read_text(encoding="utf-8").partition("# trtexec:\n")[2]
    arguments = [line for line in text.splitlines() if not line.startswith("#")]
    first, held, fed = shlex.split(arguments[0])
    assert (first, held) == ("--precisionConstraints=obey", "--layerPrecisions=/block1/conv:fp16,-o:fp16")
    assert "/stem/relu/Relu:fp16" in fed.removeprefix("--layerOutputTypes=").split(",")
    assert text.count("cannot be named here") == 2


@pytest.mark.rtx
def test_postprocess_finds_its_layers_in_a_real_network(odd: Path) -> None:
    """TensorRT's parser tells each layer's node; a network without layer precisions is refused."""
    if importlib.util.find_spec("tensorrt_rtx") is None:
        pytest.skip("needs TensorRT-RTX: pip install tensorrt-rtx")
    code = (
        "import sys, runpy; from polygraphy.backend.trt import network_from_onnx_path;"
        "script = runpy.run_path(sys.argv[1]); network = network_from_onnx_path(sys.argv[2])[1];"
        "layers = [network.get_layer(i) for i in range(network.num_layers)];"
        "found = [script['node_of'](layer) for layer in layers];"
        "print('FOUND', set(found) - {None} == set(script['PRECISIONS']));"
        "print('PARTS', found.count(sys.argv[3]));"
        "script['postprocess'](network=network)"
    )
    command = [sys.executable, "-c", code, odd / "postprocess.py", odd.parent / "my $model.onnx"]
    command.append(ODD["/head/Gemm"])
    env = {**os.environ, "POLYGRAPHY_USE_TENSORRT_RTX": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert "FOUND True" in done.stdout, done.stderr
    assert int(done.stdout.partition("PARTS ")[2].split()[0]) > 1  # a Gemm is several layers
    assert "TensorRT 11 and TensorRT-RTX have no layer precisions: build fixed.onnx" in done.stderr


@needs_gpu_below_11[0]
@needs_gpu_below_11[1]
def test_postprocess_holds_its_layers_in_tensorrt(odd: Path) -> None:
    trt = pytest.importorskip("tensorrt")
    from polygraphy.backend.trt import NetworkFromOnnxPath

    script = module(odd / "postprocess.py")
    network = NetworkFromOnnxPath(str(odd.parent / "my $model.onnx"))()[1]
    layers = [network.get_layer(i) for i in range(network.num_layers)]
    own = {layer.name for layer in layers if layer.precision_is_set}  # the parser's
    script.postprocess(network=network)
    layers = [network.get_layer(i) for i in range(network.num_layers) if network.get_layer(i).name not in own]
    held = {script.node_of(layer) for layer in layers if layer.precision_is_set}
    print("set by the parser:", own)
    assert held == set(script.PRECISIONS)
    for layer in layers:
        if layer.precision_is_set:
            assert layer.precision == trt.float16
            assert layer.get_output_type(0) == trt.float16
        else:
            assert script.node_of(layer) is None or layer.type.name in script.SKIPPED
    low, high = network.get_input(0).dynamic_range
    assert (low, high) == (pytest.approx(-1), pytest.approx(1))
    script.PRECISIONS = {"not a node": "fp16"}
    with pytest.raises(RuntimeError, match="wrong model"):
        script.postprocess(network=network)


def test_commands_suit_the_model(odd: Path) -> None:
    text = (odd / "commands.txt").read_text(encoding="utf-8")
    assert "image: float32 [batch, 1, 8, 8]" in text
    assert shlex.split(text.partition("polygraphy convert ")[2])[0] == "fixed.onnx"
    (line,) = [line for line in text.splitlines() if "--onnx=" in line and "fixed.onnx" not in line]
    assert shlex.split(line.rstrip("\\"))[1] == "--onnx=../my $model.onnx"
    opset = load_model(odd / "fixed.onnx").opset
    assert (f"fixed.onnx has {opset}" in text) is (opset > 17)


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_commands_for_a_builder_that_goes_by_flags(tmp_path: Path, precision: str) -> None:
    """As TensorRT 8.6: the flags of what the fix runs in, and its own precision for what stays in FP32."""
    plan = Plan({"/head/Gemm": "fp32", "/block1/conv1/Conv": precision})
    fix = replace(fix_of(DIGITS, plan), precision=precision, by_flags=True)
    write_fix(tmp_path, replace(fix, model=apply(fix.network, plan)))
    text = (tmp_path / "commands.txt").read_text(encoding="utf-8")
    first = text.partition("2. Quantize anew")[0].replace("\\\n", "")
    lines = [
        shlex.split(line) for line in first.splitlines() if "fixed.onnx " in line and ":" not in line[:4]
    ]
    for line, held in zip(lines, ["--layerPrecisions=/head/Gemm:fp32", "/head/Gemm:float32"], strict=True):
        assert "--int8" in line
        assert ("--fp16" in line, held in line) == ((True, True) if precision == "fp16" else (False, False))
    assert "stronglyTyped" not in first


def test_nodes_that_only_the_qdq_model_has_are_not_named(tmp_path: Path) -> None:
    network = read_qdq(load_model(EXAMPLE / "digits.qdq.onnx"), load_model(DIGITS))
    group = replace(network.groups[0], nodes=(*network.groups[0].nodes, "stand-in"))
    network = replace(
        network, groups=(group, *network.groups[1:]), left_high={"/head/Gemm": LeftHigh("excluded", ("*",))}
    )
    fix = replace(fix_of(DIGITS, Plan({group.name: "fp16"}), network), precision="fp32")
    written = {Path(path).name for path in write_fix(tmp_path, fix)}
    assert {group.name: "fp16", "/head/Gemm": "fp32"} == module(tmp_path / "postprocess.py").PRECISIONS
    assert "float.onnx" not in written
    model = Path(module(tmp_path / "ort_quantize.py").MODEL)
    assert (tmp_path / model).resolve() == DIGITS


def test_a_folder_that_cannot_be_made_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Int8accError, match="cannot be written"):
        write_fix(tmp_path / "file" / "fix", fix_of(DIGITS, Plan({"/head/Gemm": "fp16"})))


def test_a_full_disk_leaves_the_fix_that_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_fix(tmp_path, fix_of(DIGITS, Plan({"/head/Gemm": "fp16"})))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    write = Path.write_text

    def full(path: Path, text: str, **more: str) -> int:
        if path.name == "commands.txt":
            write(path, text[:9])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(path, text, **more)

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(Int8accError, match="cannot be written: No space left") as caught:
        write_fix(tmp_path, fix_of(DIGITS, Plan({"/head/Gemm": "fp32"})))
    assert str(caught.value).startswith(f"{tmp_path}: ")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


# Plans read back.


@pytest.fixture(scope="module")
def digits() -> Network:
    return network_of(load_model(DIGITS))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=15)
@given(name=TEXT, tensor=TEXT, scale=st.floats(1e-30, 1e30), file=TEXT)
def test_every_name_is_read_back(
    tmp_path: Path, digits: Network, name: str, tensor: str, scale: float, file: str
) -> None:
    first = digits.groups[0]
    edges = tuple(replace(e, tensor=tensor) if e.tensor == "image" else e for e in first.edges)
    network = replace(digits, groups=(replace(first, name=name, edges=edges), *digits.groups[1:]))
    plan = Plan({name: "fp16"}, {tensor: symmetric(scale)})
    path = tmp_path / "plan.yaml"
    path.write_text(plan_text(plan, network, file), encoding="utf-8")
    assert plain(read_plan(path, network)) == plain(plan)


def test_notes_of_an_exporter_make_no_plan_stale(tmp_path: Path, digits: Network) -> None:
    path, plan = tmp_path / "plan.yaml", Plan({"/head/Gemm": "fp16"})
    path.write_text(plan_text(plan, digits, "digits.onnx"))
    editor = digits.model.edit()
    for proto in (editor.graph, editor.graph.node[0], editor.graph.node[0].attribute[0]):
        proto.doc_string = "exported on Monday"
    assert plain(read_plan(path, replace(digits, model=editor.done()))) == plain(plan)


# From a failure to a guarded fix.


def test_files_for_other_tools_say_what_they_lack(tmp_path: Path) -> None:
    """No tool can be told of moves or of weights' scales, nor of scales that hold after a move alone."""
    network = network_of(load_model(DIGITS))
    tensor, site = next((t, s) for t, s in sites(network).items() if takes_in(network, s))
    weights = fresh_weights(network, ["head.weight"])
    scales = {"image": symmetric(0.5), tensor: symmetric(0.25), **weights}
    plan = Plan({"/head/Gemm": "fp16"}, scales, {tensor: np.full(site.channels, 2, np.float32)})
    fix = fix_of(DIGITS, plan)
    written = write_fix(tmp_path, fix)
    lacking = "the scales of 2 tensors and the moved channels of 1 tensor"
    line = f"This lacks {lacking}, which only fixed.onnx can have."
    silent = {"fixed.onnx", "plan.yaml", "exclude_nodes.txt"}
    for path in map(Path, written):
        assert path.name in silent or line in path.read_text(encoding="utf-8"), path.name
    ranges = module(tmp_path / "postprocess.py").RANGES
    assert ranges == {"image": pytest.approx(63.5)}
    subprocess.run(["sh", "-n", tmp_path / "modelopt.sh"], check=True)
    assert "LACKING" not in (tmp_path / "commands.txt").read_text(encoding="utf-8")
    whole = fix_of(DIGITS, Plan({"/head/Gemm": "fp16"}, {"image": symmetric(0.5)}))
    for path in map(Path, write_fix(tmp_path / "whole", whole)):
        assert path.suffix == ".onnx" or "This lacks" not in path.read_text(encoding="utf-8"), path.name


def test_files_for_other_tools_say_what_they_lack_of_nodes_in_bodies(pytester: pytest.Pytester) -> None:
    spec = {"candidate": "fp16", "criteria": [{"sqnr_db": 50}]}
    network = {"network": 'half("long_sum", "cnn")', "data": {"samples": 36}, "in body": "Loop"}
    entry = written_and_run(pytester, **network, spec=spec)
    assert {culprit["layer"] for culprit in entry["culprits"]} == {"body/part/mean", "body/part/sum"}
    (path,) = (pytester.path / "report").rglob("autocast.sh")
    silent = {"fixed.onnx", "plan.yaml", "fp32_nodes.txt"}
    line = "This lacks 2 nodes inside If, Loop or Scan in FP32, which only fixed.onnx can have."
    for written in path.parent.iterdir():
        assert written.name in silent or line in written.read_text(encoding="utf-8"), written.name
    subprocess.run(["sh", "-n", path], check=True)


def test_under_a_part_of_the_plan_a_search_finds_the_rest(pytester: pytest.Pytester) -> None:
    part = {"part.yaml": {"version": 4, "high": {"conv2": "fp32"}}}
    spec = {"plan": "part.yaml", "criteria": [{"sqnr_db": 30}]}
    said = {"network": "convs()", "ranges": {"relu1": 60, "relu2": 60}, "files": part, "spec": spec}
    entry = written_and_run(pytester, **said)
    assert entry["verdict"] == "failed"
    assert entry["search"]["verified"]
    assert [culprit["layer"] for culprit in entry["culprits"]] == ["conv3"]
    (folder,) = (path.parent for path in (pytester.path / "report").rglob("high/plan.yaml"))
    high = yaml.safe_load((folder / "plan.yaml").read_text())["high"]
    assert high == {"conv2": "fp32", "conv3": "fp16"}
    fixed = load_model(folder / "fixed.onnx")
    types = {tensor.name: str(tensor.dtype) for tensor in fixed.values().values()}
    made = {node.name: types[node.output[0]] for node in fixed.graph.node if node.name in high}
    assert made == {"conv2": "float32", "conv3": "float16"}


def test_a_model_with_weights_in_a_file_of_their_own_needs_no_copy(tmp_path: Path) -> None:
    save_model(load_model(DIGITS), tmp_path / "model.onnx", external_weights=True)
    write_fix(tmp_path / "fix", fix_of(tmp_path / "model.onnx", Plan()))
    assert not (tmp_path / "fix" / "float.onnx").exists()
