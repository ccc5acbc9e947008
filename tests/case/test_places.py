"""What a key of a spec causes is told at its place: messages begin with the spec's file, line and column."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import yaml
from hostile import acts
from plugin_support import LOAD
from projects import Project

pytestmark = pytest.mark.usefixtures("quick_processes")

BASE = {"model": "model.onnx", "inputs": "data.npz", "int8": "{calibrate: {method: minmax}}"}
#: By title, what the spec says and what must be said of it.
MISTAKES = yaml.safe_load(Path(__file__).with_name("mistakes_at_places.yaml").read_text(encoding="utf-8"))
LOADER = """
import itertools
import numpy as np
CALLS = itertools.count(int(__import__("time").time_ns()))

def nth(i): return {"image": np.random.default_rng(i).normal(size=(2, 1, 8, 8)).astype(np.float32)}
def late():
    yield nth(0)
    raise ValueError("later")
def changes(): yield nth(next(CALLS))
def empty(): return []
def endless(): return map(nth, itertools.count())
"""
METRICS = """
def two(outputs, labels): return 1.0

def fails(outputs):
    return 1 / 0
"""


def folder(path: Path) -> Path:
    """A project in which each mistake can be made."""
    made = Project(path)
    proto, folder = made.model("plain"), made.folder
    made.data(proto)
    (name,) = np.load(folder / "data.npz").files
    data = np.load(folder / "data.npz")[name]
    made.model("yolo", "other.onnx")
    quantized = onnx.ModelProto.FromString(proto.SerializeToString())
    pair = onnx.helper.make_node("DequantizeLinear", [name, "s"], ["dq"], "dq")
    quantized.graph.node.insert(0, pair)
    quantized.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(1), "s"))
    onnx.save(quantized, folder / "q.onnx")
    np.savez(folder / "other.npz", imag=data, mask=data)
    spoilt = data.copy()
    spoilt[5] = np.nan
    np.savez(folder / "nan.npz", **{name: spoilt})
    np.savez_compressed(folder / "bomb.npz", **{name: np.zeros((1 << 12, *data.shape[1:]), data.dtype)})
    np.savez(folder / "two.npz", one=data, two=data)
    np.savez(folder / "shape.npz", whatever=data[:2, :1])
    np.save(folder / "few.npy", np.zeros(3))
    np.save(folder / "real.npy", np.zeros(len(data)))
    np.save(folder / "zeros.npy", np.zeros(len(data), int))
    np.save(folder / "beyond.npy", np.where(np.arange(len(data)) == 5, 99, 0))
    np.save(folder / "pair.npy", np.zeros(2))
    loader = LOADER.replace('"image"', repr(name)).replace("(2, 1, 8, 8)", repr((2, *data.shape[1:])))
    texts = {"loader.py": loader, "m.py": METRICS, "bad.yaml": "version: 4\nhih: {}\n", "text.txt": "text"}
    for file, text in {**texts, "nothing.json": '{"nothing": 1.0}', "bad.npz": "PK\x03\x04 no"}.items():
        (folder / file).write_text(text)
    (folder / "folder").mkdir()
    (folder / "fifos").mkdir()
    os.mkfifo(folder / "fifo.npz")
    os.mkfifo(folder / "fifos" / f"{name}.npy")
    (folder / "device").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as made_there:
        here = Path.cwd()
        os.chdir(folder)  # such a path may be short only
        made_there.bind("socket.npz")
        os.chdir(here)
    return folder


def messages(folder: Path) -> dict[str, tuple[str, str]]:
    """By mistake, verdict and message of its case, all in one run of pytest."""
    (folder / "two").mkdir()
    (folder / "two" / "of.int8acc.yaml").write_text(
        "defaults: {inputs: data.npz, int8: {calibrate: {}},\n  model: nowhere.onnx}\ncases:\n  - name: one\n"
    )
    engine = "model: model.onnx\ninputs: data.npz\nint8: {engine: e.engine}\nbackend: onnxruntime\n"
    (folder / "engine.int8acc.yaml").write_text(engine)
    for number, mistake in enumerate(MISTAKES):
        (folder / f"m{number}.int8acc.yaml").write_text(spec(mistake).replace("@", ""), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", *LOAD, "--int8acc", "--int8acc-report=report", "."]
    subprocess.run([*command, "--int8acc-search=off"], cwd=folder, capture_output=True, check=False)
    report = json.loads((folder / "report" / "report.json").read_text())
    return {c["nodeid"].partition(".int8acc")[0]: (c["verdict"], c["message"]) for c in report["cases"]}


def spec(mistake: str) -> str:
    """The text of a spec, with '@' where the mistake is."""
    said, _ = MISTAKES[mistake]
    keys = {line.partition(":")[0] for line in said.splitlines()}
    rest = "".join(f"{key}: {value}\n" for key, value in BASE.items() if key not in keys)
    return f"# {mistake}\n{rest}{said}\n"


def blamed(mistake: str, verdict: str, message: str) -> bool:
    """Whether the case of a mistake is an error at the place of '@' that says what it should."""
    number = list(MISTAKES).index(mistake)
    text = spec(mistake)
    before = text[: text.index("@")].splitlines()
    file = f"m{number}.int8acc.yaml"
    return (
        verdict == "error"
        and message.startswith(f"{file}:{len(before)}:{len(before[-1]) + 1}: ")
        and message.count(f"{file}:") == 1 + message.count(f"`pytest {file}::")
        and MISTAKES[mistake][1] in message
        and not acts(message)
    )


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs os.mkfifo")
def test_a_mistake_is_told_at_its_key(tmp_path: Path) -> None:
    found = messages(folder(tmp_path))
    wrong = {
        mistake: found[f"m{number}"]
        for number, mistake in enumerate(MISTAKES)
        if not blamed(mistake, *found[f"m{number}"])
    }
    assert wrong == {}
    # A key of the defaults is blamed where it stands.
    verdict, message = found["two/of"]
    assert verdict == "error"
    assert message.startswith("two/of.int8acc.yaml:2:10: ")
    assert "nowhere.onnx: no such model file" in message
    # A backend that is missing is no mistake in a spec.
    verdict, message = found["engine"]
    assert verdict == "skipped"
    assert "int8acc.yaml" not in message
