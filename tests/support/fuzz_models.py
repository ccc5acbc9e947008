"""A program that loads, lints and checks malformed models; a line of JSON as each begins, one as it ends.

In a process of its own, since what a model makes of a runtime may end the process.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
from builder import sample_feed
from malformed_models import BASES, malformed, write_data

from pytest_int8acc.check import check
from pytest_int8acc.engines.onnxruntime import OrtEngine
from pytest_int8acc.errors import Int8accError, InternalError
from pytest_int8acc.graph.lint import lint
from pytest_int8acc.graph.load import load_model, read_model
from pytest_int8acc.results import CaseResult
from pytest_int8acc.settings import Settings
from pytest_int8acc.spec.load import load_spec

SPEC = """
model: {model}
inputs: {{random: {{samples: 2}}}}
int8: {int8}
backend: onnxruntime
"""
#: Of so many models, one is searched, explained and mended where it fails.
_SEARCHED = 10


def main(base: str, first: int, last: int, folder: Path) -> None:
    """Attempt the malformed models of ``base`` with seeds from ``first`` up to ``last``."""
    write_data(folder)
    int8, model = "{calibrate: {method: minmax}}", "model.onnx"
    if base == "quantized":
        int8, model = "{model: model.onnx}", "float.onnx"
        (folder / model).write_bytes(BASES["convolutions"]().SerializeToString())
    (folder / "net.int8acc.yaml").write_text(SPEC.format(model=model, int8=int8))
    (case,) = load_spec(folder / "net.int8acc.yaml")
    path = folder / "model.onnx"
    for seed in range(first, last):
        settings = Settings(search="off" if seed % _SEARCHED else "auto", max_seconds=5)
        path.write_bytes(malformed(base, seed))
        tell(base=base, seed=seed)
        ends = {
            "lint": attempt(lambda: lint(read_model(path)) and ""),
            "check": attempt(lambda settings=settings: unsound(check(case, settings))),
            "load": attempt(lambda: unlike(path)),
        }
        tell(base=base, seed=seed, ends=ends)


def tell(**said: object) -> None:
    print(f"\n{json.dumps(said)}", flush=True)  # a runtime may have left a line open


def attempt(action: Callable[[], object]) -> str:
    """How it ended: 'done', 'error: ...' where an Int8accError says so; else what is wrong."""
    try:
        return str(action() or "done")
    except InternalError:
        return traceback.format_exc()
    except Int8accError as error:
        return f"error: {error}"
    except BaseException:
        return traceback.format_exc()


def unsound(result: CaseResult) -> str:
    """What no verdict can be; empty where nothing is."""
    if result.samples != 2 or not result.outputs:
        return f"unsound: {result}"
    nan = [
        s for o in result.outputs for s in o.scores if s.passed and s.limit is not None and s.value != s.value
    ]
    return f"unsound: nan passes: {nan}" if nan else ""


def unlike(path: Path) -> str:
    """Where the model as loaded gives other outputs than the file in ONNX Runtime; empty where it does not.

    A file that ONNX Runtime refuses is nothing to compare with.
    """
    model = load_model(path)
    engine = OrtEngine(model)
    feed = sample_feed(model.proto)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    ours = engine(feed)
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        theirs = dict(zip(ours, session.run(list(ours), feed), strict=True))
    except Exception:  # its own kinds
        return ""
    for name, array in ours.items():
        if not np.allclose(array, theirs[name], rtol=1e-3, atol=1e-3, equal_nan=True):
            return f"unlike: '{name}' is {array}, and in the file {theirs[name]}"
    return ""


if __name__ == "__main__":
    for base in sys.argv[4:]:
        main(base, int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
