"""``--int8acc-init``: a spec written for a model loads, and runs as it is."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from init_projects import feeds, judged, only_case, saved
from onnx import TensorProto, helper
from plugin_support import LOAD
from zoo import ZOO

from pytest_int8acc import Int8accError, ModelError
from pytest_int8acc.case.forms import load_float
from pytest_int8acc.graph.load import load_model
from pytest_int8acc.graph.model import save_model
from pytest_int8acc.init import write_spec

pytestmark = pytest.mark.filterwarnings("ignore:the inputs are made up")
EXAMPLE = Path(__file__).parents[2] / "example_project"


def identity(dtype: int, shape: list[int | str] | None, *, inputs: int = 1) -> onnx.ModelProto:
    """A Conv with a second output that copies an input of the given type."""
    weight = onnx.numpy_helper.from_array(np.ones((4, 3, 1, 1), np.float32), "w")
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["y"], name="conv"),
        helper.make_node("Identity", ["extra"], ["copy"], name="copy"),
    ]
    taken = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3, 4, 4])] * inputs
    extra = helper.make_tensor_value_info("extra", dtype, shape)
    given = [
        helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 4, 4, 4]),
        helper.make_tensor_value_info("copy", dtype, shape),
    ]
    graph = helper.make_graph(nodes, "g", [*taken, extra], given, [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("name", ZOO)
def test_a_spec_loads_and_its_data_fit(tmp_path: Path, name: str) -> None:
    path = saved(tmp_path, ZOO[name](), f"{name}.onnx")
    spec = write_spec(path)
    assert spec == tmp_path / f"{name}.int8acc.yaml"
    case = only_case(spec)
    model = load_float(case)
    feed = feeds(spec)[0]
    assert set(feed) == {tensor.name for tensor in model.inputs}
    outputs = {tensor.name for tensor in model.outputs}
    criteria = [c for c in case.criteria if c.tensor is None]  # type: ignore[union-attr]
    assert {criterion.output for criterion in criteria} == outputs  # type: ignore[union-attr]
    assert "# TODO" in spec.read_text()


@pytest.mark.parametrize("name", ["mlp", "dynamic"])
def test_a_spec_runs_as_it_is(tmp_path: Path, name: str) -> None:
    result = judged(write_spec(saved(tmp_path, ZOO[name]())), 16)
    limited = {s.metric for output in result.outputs for s in output.scores if s.limit is not None}
    assert {"cosine", "sqnr_db"} <= limited


def test_random_samples_fill_whole_batches(tmp_path: Path) -> None:
    """An output without a row per sample cannot be cut to fewer."""
    proto = ZOO["plain"]()
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 24
    case = only_case(write_spec(saved(tmp_path, proto)))
    assert case.inputs.random.samples == 72  # type: ignore[union-attr]


def test_an_output_of_integers_must_agree(tmp_path: Path) -> None:
    spec = write_spec(saved(tmp_path, identity(TensorProto.INT64, [2, 5])))
    assert [c.agreement for c in only_case(spec).criteria] == [None, 0.99]  # type: ignore[union-attr]
    scores = judged(spec, 4).outputs[1].scores
    assert [s.metric for s in scores if s.limit is not None] == ["agreement"]


def test_qdq_goes_under_int8_with_its_float_model_found(tmp_path: Path) -> None:
    for name in ("digits.onnx", "digits.qdq.onnx"):
        shutil.copy(EXAMPLE / name, tmp_path)
    spec = write_spec(tmp_path / "digits.qdq.onnx")
    case = only_case(spec)
    assert (case.model, case.int8.model) == ("digits.onnx", "digits.qdq.onnx")
    assert "# TODO: the float model" in spec.read_text()
    assert judged(spec, 8).samples == 8


def test_qdq_without_its_float_model_says_what_is_missing(tmp_path: Path) -> None:
    shutil.copy(EXAMPLE / "digits.qdq.onnx", tmp_path)
    saved(tmp_path, ZOO["plain"](), "digits.onnx")  # another model of that name
    spec = write_spec(tmp_path / "digits.qdq.onnx")
    with pytest.raises(ModelError, match=r"FLOAT_MODEL\.onnx: no such model file"):
        judged(spec)


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    path = saved(tmp_path, ZOO["dynamic"]())
    (tmp_path / "model_inputs.py").write_text("mine")
    with pytest.raises(Int8accError, match=r"model_inputs\.py: is there already"):
        write_spec(path)
    assert not (tmp_path / "model.int8acc.yaml").exists()
    (tmp_path / "model_inputs.py").unlink()
    spec = write_spec(path)
    text = spec.read_text()
    with pytest.raises(Int8accError, match="is there already and is left as it is"):
        write_spec(path)
    assert spec.read_text() == text


ODD = ["it's: a # 100% model.onnx", "-1.5.onnx", "ünï [x].onnx", "no.onnx", "1e3.onnx"]


@pytest.mark.parametrize("name", ODD)
def test_odd_file_names(tmp_path: Path, name: str) -> None:
    path = saved(tmp_path, ZOO["dynamic"](), name)
    spec = write_spec(path)
    assert load_float(only_case(spec)).name == str(path)
    assert feeds(spec)


def test_odd_tensor_names(tmp_path: Path) -> None:
    proto = identity(TensorProto.FLOAT, [2, 5])
    text = proto.SerializeToString().replace(b"copy", b"[*] ")  # same length: lengths are stored
    path = tmp_path / "model.onnx"
    path.write_bytes(text)
    spec = write_spec(path)
    assert [c.output for c in only_case(spec).criteria] == ["y", "[*] "]  # type: ignore[union-attr]
    assert len(judged(spec, 4).outputs) == 2


def test_a_folder_of_its_own(tmp_path: Path) -> None:
    path = saved(tmp_path, ZOO["mlp"]())
    (tmp_path / "specs").mkdir()
    case = only_case(write_spec(path, tmp_path / "specs"))
    assert case.model == "../model.onnx"
    assert case.path(case.model).resolve() == path.resolve()


def test_external_data(tmp_path: Path) -> None:
    proto = saved(tmp_path, ZOO["plain"](), "inline.onnx")
    save_model(load_model(proto), tmp_path / "model.onnx", external_weights=True)
    spec = write_spec(tmp_path / "model.onnx")
    assert only_case(spec).model == "model.onnx"
    spec.unlink()
    next(tmp_path.glob("model.onnx.*.data")).unlink()
    with pytest.raises(ModelError, match="which is no file: copy it beside the model"):
        write_spec(tmp_path / "model.onnx")
    assert not spec.exists()


def custom() -> onnx.ModelProto:
    proto = ZOO["plain"]()
    proto.graph.node[1].domain = "my.ops"
    proto.opset_import.append(helper.make_opsetid("my.ops", 1))
    return proto


@pytest.mark.parametrize(
    ("proto", "message"),
    [
        (custom(), r"operator Relu of 'relu1' is a custom one \(my\.ops\).*plugins"),
        (identity(TensorProto.STRING, [2]), "no data can be made up for the input extra: object"),
        (identity(TensorProto.FLOAT, None), r"no data can be made up for the input extra: float32 \[\?\]"),
    ],
    ids=["custom", "strings", "no-shape"],
)
def test_what_cannot_run_is_refused(tmp_path: Path, proto: onnx.ModelProto, message: str) -> None:
    path = saved(tmp_path, proto)
    with pytest.raises(ModelError, match=message):
        write_spec(path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.onnx"]


def test_a_run_tells_each_model_of_its_own(pytester: pytest.Pytester) -> None:
    saved(pytester.path, ZOO["mlp"]())
    (pytester.path / "text.onnx").write_text("hello, this is no model")
    result = pytester.runpytest(*LOAD, "--int8acc-init", "absent.onnx", "model.onnx", "text.onnx")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        [
            "int8acc: *absent.onnx: no such model file",
            "int8acc: wrote model.int8acc.yaml; *",
            "int8acc: *text.onnx: not an ONNX model*",
        ],
        consecutive=True,
    )
    assert len(result.outlines) == 3


def test_a_folder_that_cannot_be_written_is_one_error(tmp_path: Path) -> None:
    path = saved(tmp_path, ZOO["mlp"]())
    (tmp_path / "file").write_text("")
    with pytest.raises(Int8accError, match="cannot be written"):
        write_spec(path, tmp_path / "file")
