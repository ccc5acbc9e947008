"""Files of a fix, of a reproducer and of a first spec, for models whose every name is hostile."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import onnx
import pytest
from fixes import DIGITS, fix_of
from hostile import HOSTILE, acts, obeyed
from polygraphy.tools.convert.convert import Convert

from pytest_int8acc import load_spec
from pytest_int8acc.case.plan_file import read_plan
from pytest_int8acc.fix import write_fix
from pytest_int8acc.graph.model import make_model, write_model
from pytest_int8acc.graph.network import Plan, symmetric
from pytest_int8acc.init import write_spec

NAMES = [*(name[:3000] for name in HOSTILE), "nul\x00byte"]


def model(path: Path, name: str) -> Path:
    """The digits network, each of its names with ``name`` in front."""
    proto = onnx.load(DIGITS)
    for node in proto.graph.node:
        node.name = name + node.name
        node.input[:] = [name + tensor if tensor else "" for tensor in node.input]
        node.output[:] = [name + tensor for tensor in node.output]
    graph = proto.graph
    for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        value.name = name + value.name
    write_model(make_model(proto), path)
    return path


@pytest.fixture(scope="module")
def ordinary(tmp_path_factory: pytest.TempPathFactory) -> str:
    """commands.txt of a fix whose names are none of these."""
    home = tmp_path_factory.mktemp("ordinary")
    write_fix(home, fix_of(model(home / "model.onnx", ""), Plan({"/head/Gemm": "fp16"})))
    return (home / "commands.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_files_of_a_fix_do_nothing_and_name_the_nodes(tmp_path: Path, name: str, ordinary: str) -> None:
    path = model(tmp_path / "model.onnx", name)
    high = [f"{name}/block1/conv1/Conv", f"{name}/head/Gemm"]
    plan = Plan(dict.fromkeys(high, "fp16"), {f"{name}image": symmetric(1 / 127)})
    fix, folder = fix_of(path, plan), tmp_path / "fix"
    write_fix(folder, fix)
    files = {
        file.name: file.read_text(encoding="utf-8") for file in folder.iterdir() if file.suffix != ".onnx"
    }
    for file, text in files.items():
        assert not acts(text), file
    assert not obeyed(files["commands.txt"])
    assert _lines(files["commands.txt"]) == _lines(ordinary)
    _check_shell(folder, files, high)
    precisions = constant(files["postprocess.py"], "PRECISIONS")
    assert {node: precisions[node] for node in high} == dict.fromkeys(high, "fp16")
    assert set(high) <= set(constant(files["ort_quantize.py"], "NODES_TO_EXCLUDE"))
    assert constant(files["postprocess.py"], "RANGES") == pytest.approx({f"{name}image": 1})
    again = read_plan(folder / "plan.yaml", fix.network)
    assert (dict(again.high), set(again.scales)) == (dict(plan.high), set(plan.scales))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fix", "model.onnx"]


def constant(script: str, name: str) -> Any:
    """What a script says its constant ``name`` is."""
    assigned = (node for node in ast.parse(script).body if isinstance(node, ast.Assign))
    (value,) = (node.value for node in assigned if getattr(node.targets[0], "id", "") == name)
    return ast.literal_eval(value)


def _lines(commands: str) -> int:
    """Lines but for the note on what exclude_nodes.txt lacks."""
    return len([line for line in commands.splitlines() if line and "exclude_nodes.txt lacks" not in line])


def _check_shell(folder: Path, files: dict[str, str], high: list[str]) -> None:
    """A shell takes each file apart as it is meant, and finds nothing to run in a name."""
    subprocess.run(["sh", "-n", folder / "modelopt.sh"], check=True)
    last = files["modelopt.sh"].partition("--nodes_to_exclude")[2].replace("\\\n", " ")
    patterns = shlex.split(last)
    assert [n for n in high if any(re.match(p, n) for p in patterns)] == high
    assert not [p for p in patterns for n in high if re.match(p, f"x{n}") or re.match(p, f"{n}\n")]
    for line in files["layer_precisions.txt"].splitlines():
        words = shlex.split(line, comments=True)
        assert not words or words[0] in ("--precision-constraints", "--precisionConstraints=obey")
        told = words[3:] if words and words[0].startswith("--precision-c") else []
        assert all(word.rpartition(":")[0] in high for word in told)
        if words and words[0] == "--precision-constraints":
            assert told, "no line without a name"
            read = Convert().setup_parser().parse_args(["m.onnx", "-o", "e", *words]).layer_precisions
            named = [n for n in high if n.isprintable() and not n.startswith("-")]
            assert [word.rsplit(":", 1) for word in read] == [[n, "float16"] for n in named]
    for line in files["commands.txt"].splitlines():
        if re.match(r"\s+(trtexec|polygraphy|sh|python) ", line):
            subprocess.run(["sh", "-n", "-c", line.rstrip(" \\")], check=True)
    listed = files["exclude_nodes.txt"].splitlines()
    assert set(listed) <= set(high)
    assert len(listed) == (len(high) if high[0].isprintable() else 0)


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_a_first_spec_of_a_hostile_model_can_be_read(tmp_path: Path, name: str) -> None:
    text = write_spec(model(tmp_path / "model.onnx", name)).read_text(encoding="utf-8")
    assert (acts(text), obeyed(text)) == ([], [])
    (case,) = load_spec(tmp_path / "model.int8acc.yaml")
    assert case.criteria[0].output == f"{name}logits"  # type: ignore[union-attr]
