"""A program that loads, lints and checks malformed models; a line of JSON as each begins, one as it ends.

In a process of its own, since what a model makes of a runtime may end the process.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from malformed_models import BASES, malformed, write_data

from pytest_int8acc.check import check
from pytest_int8acc.errors import Int8accError
from pytest_int8acc.graph.lint import lint
from pytest_int8acc.graph.load import read_model
from pytest_int8acc.settings import Settings
from pytest_int8acc.spec.load import load_spec

SPEC = """
model: {model}
inputs: {{random: {{samples: 2}}}}
int8: {int8}
backend: onnxruntime
"""


def main(base: str, first: int, last: int, folder: Path) -> None:
    """Attempt the malformed models of ``base`` with seeds from ``first`` up to ``last``."""
    write_data(folder)
    int8 = "{calibrate: {method: minmax}}"
    if base == "quantized":
        (folder / "float.onnx").write_bytes(BASES["convolutions"]().SerializeToString())
        int8 = "{model: model.onnx}"
    model = "float.onnx" if base == "quantized" else "model.onnx"
    (folder / "net.int8acc.yaml").write_text(SPEC.format(model=model, int8=int8))
    (case,) = load_spec(folder / "net.int8acc.yaml")
    path = folder / "model.onnx"
    for seed in range(first, last):
        path.write_bytes(malformed(base, seed))
        print(json.dumps({"seed": seed}), flush=True)
        ends = [attempt(lambda: lint(read_model(path))), attempt(lambda: check(case, Settings(search="off")))]
        print(json.dumps({"seed": seed, "ends": ends}), flush=True)


def attempt(action: Callable[[], object]) -> str:
    """How it ended: 'done', 'error: ...' where an Int8accError says so, or a traceback."""
    try:
        action()
    except Int8accError as error:
        return f"error: {error}"
    except BaseException:
        return traceback.format_exc()
    return "done"


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
