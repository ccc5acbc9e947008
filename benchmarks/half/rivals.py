"""The plugin and other tools on the same models of FP16: what keeps the limit, nodes in FP32, Casts.

    python -m benchmarks.half.rivals --install   # makes the environment that is missing
    python -m benchmarks.half.rivals --only 'transformer/*' vit

Every model is judged as the plugin judges: each FP16 result rounded, sums in FP32.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np

from benchmarks.cost.__main__ import install
from benchmarks.half import vit
from benchmarks.half.measure import LIMIT_DB, Judge, run
from benchmarks.half.networks import NETWORKS, build, inputs
from benchmarks.half.parts import FAULTS
from benchmarks.tables import table
from pytest_int8acc.errors import Int8accError
from pytest_int8acc.graph.formats import FP16
from pytest_int8acc.graph.half import to_fp16
from pytest_int8acc.graph.half_network import fused, low_network
from pytest_int8acc.graph.load import load_model
from pytest_int8acc.graph.model import Model, save_model
from pytest_int8acc.graph.network import Plan
from pytest_int8acc.graph.plan import fp32_nodes
from pytest_int8acc.graph.types import FLOAT, value_types
from pytest_int8acc.tensors import Array

ROOT = Path(__file__).parents[2]
PACKAGES = {"half": ["nvidia-modelopt[onnx]==0.47.0", "onnxconverter-common==1.16.0"]}
TOOLS = {
    "pytest-int8acc": "ours",
    "pytest-int8acc, norms in parts": "apart",
    "AutoCast": "autocast",
    "AutoCast, data_max 65504": "autocast_wide",
    "auto_mixed_precision": "mixed",
    "convert_float_to_float16": "plain",
}
#: Operators that compute no floats, or hold them.
_IDLE = frozenset({"Cast", "Constant", "ConstantOfShape"})
#: They compute in FP32 inside, whatever they read (``stash_type``).
_NORMS = frozenset({"LayerNormalization", "GroupNormalization", "RMSNormalization"})


@dataclass(frozen=True)
class Made:
    """What a tool made of one model."""

    tool: str
    model: str
    sqnr_db: float
    """-inf where outputs are not finite; nan where there is no model."""
    nodes: int
    """That compute in FP32."""
    norms: int
    """In 16 bits, that compute in FP32 inside."""
    casts: int
    """Beside those of the model that was given."""
    seconds: float
    """CPU, of the conversion."""


def models() -> Iterator[tuple[str, Model, Array]]:
    """Faults in all networks, and the ViT; each with its inputs."""
    for network in NETWORKS:
        for name, part in FAULTS.items():
            yield f"{network}/{name}", build(network, part), inputs(network)
    yield "vit", vit.vit(), vit.inputs()


def measured(folder: Path, python: Path, patterns: Sequence[str]) -> Iterator[Made]:
    """What each tool makes of the models that FP16 breaks."""
    judges: dict[str, Judge] = {}
    for name, model, x in models():
        if any(fnmatchcase(name, pattern) for pattern in patterns):
            judge = Judge(model, x)
            if judge.sqnr_db(frozenset()) < LIMIT_DB:
                judges[name] = judge
                (folder / _slug(name)).mkdir()
                save_model(model, folder / _slug(name) / "model.onnx")
                np.savez(folder / _slug(name) / "data.npz", x=x)
    own = _ours(folder, judges)
    for tool, key in TOOLS.items():
        took = own if key in ("ours", "apart") else _theirs(folder, python, key)
        for name, judge in judges.items():
            path = folder / _slug(name) / f"{key}.onnx"
            yield _judged(tool, name, judge, path, took[_slug(name)])


def _slug(name: str) -> str:
    return name.replace("/", "-")


def _ours(folder: Path, judges: Mapping[str, Judge]) -> dict[str, float]:
    """What is recommended, and what the search found by itself."""
    took = {}
    for name, judge in judges.items():
        began = time.process_time()
        with tempfile.TemporaryDirectory() as scratch:
            result = run(judge.model, judge.x, Path(scratch))
        took[_slug(name)] = time.process_time() - began
        search, best = result.search, result.answer
        if search is not None and search.verified:
            kept = (*search.kept, *search.joined)
            _save(judge.model, (), kept, folder / _slug(name) / "apart.onnx")
            fix = (best.fused, best.layers) if best is not None and best.fused else ((), kept)
            _save(judge.model, *fix, folder / _slug(name) / "ours.onnx")
    return took


def _save(model: Model, norms: Sequence[str], kept: Sequence[str], path: Path) -> None:
    network = fused(low_network(model, FP16), norms)
    in_fp32 = fp32_nodes(network, Plan(dict.fromkeys(kept, "fp32")))
    save_model(to_fp16(network.model, in_fp32).model, path)


def _theirs(folder: Path, python: Path, key: str) -> dict[str, float]:
    command = [python, ROOT / "benchmarks" / "half" / "converters.py", key, folder]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    lines = (line.split() for line in said.splitlines() if line.startswith("seconds "))
    return {name: float(seconds) for _, name, seconds in lines}


def _judged(tool: str, name: str, judge: Judge, path: Path, seconds: float) -> Made:
    if not path.exists():
        return Made(tool, name, np.nan, 0, 0, 0, seconds)
    try:
        made = load_model(path)
        score = judge.score(made)
    except Int8accError as error:
        print(f"{tool}, {name}: {error}", file=sys.stderr)
        return Made(tool, name, np.nan, 0, 0, 0, seconds)
    types, nodes = value_types(made), made.graph.node
    high = [n for n in nodes if n.op_type not in _IDLE and any(types.get(t) == FLOAT for t in n.output)]
    norms = [n for n in nodes if n.op_type in _NORMS and n not in high]
    return Made(tool, name, score, len(high), len(norms), _casts(made) - _casts(judge.model), seconds)


def _casts(model: Model) -> int:
    return sum(node.op_type == "Cast" for node in model.graph.node)


def rows(made: Sequence[Made]) -> Iterator[tuple[object, ...]]:
    """A line per tool and kind of model; means over its models, of those that keep the limit."""
    for what in ("faults", "vit"):
        for tool in TOOLS:
            all_of = [m for m in made if m.tool == tool and (m.model == "vit") == (what == "vit")]
            kept = [m for m in all_of if m.sqnr_db >= LIMIT_DB]
            means = [f"{np.mean([getattr(m, k) for m in kept]):.1f}" if kept else "" for k in _MEANS]
            worst = min((m.sqnr_db for m in all_of), default=np.nan)
            if all_of:
                seconds = np.mean([m.seconds for m in all_of])
                yield what, tool, f"{len(kept)} of {len(all_of)}", f"{worst:.1f}", *means, f"{seconds:.1f}"


_MEANS = ("nodes", "norms", "casts")
_HEADER = ("models", "tool", f"keep {LIMIT_DB:g} dB", "least, dB", "nodes in FP32", "norms", "Casts", "CPU s")


def main(arguments: Sequence[str] | None = None) -> None:
    """Convert, judge, print."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.half.rivals",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", nargs="*", default=["*"], help="patterns of network/part, or vit")
    default = Path.home() / ".cache" / "int8acc-benchmarks"
    parser.add_argument("--environments", type=Path, default=default, help=f"default: {default}")
    parser.add_argument("--install", action="store_true", help="make the environment that is missing, by pip")
    options = parser.parse_args(arguments)
    if options.install:
        install(options.environments, PACKAGES)
    python = options.environments / "half" / "bin" / "python"
    if not python.exists():
        parser.error(f"there is no {python}: add --install, or name another folder by --environments")
    with tempfile.TemporaryDirectory() as folder:
        made = list(measured(Path(folder), python, options.only))
    print(table(_HEADER, list(rows(made))))


if __name__ == "__main__":
    main()
