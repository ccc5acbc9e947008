"""Whether TensorRT-RTX's parser takes a model: asked on the CPU, in a child process that runs this module."""

from __future__ import annotations

import functools
import importlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from pytest_int8acc.runtime.trt.children import read_log, run_child
from pytest_int8acc.runtime.trt.platform import is_installed

_SECONDS = 300.0
_SAID = "SAID "


class Refusal(NamedTuple):
    """What the parser says against a model."""

    node: str
    """The node where it stopped; empty where it names none."""
    message: str


def refusal(model: Path) -> Refusal | None:
    """What TensorRT-RTX's parser says against the model of a file; None where it takes it, or is not there.

    Raises:
        OSError: The file is not there.
    """
    if not is_installed("tensorrt_rtx"):
        return None
    status = model.stat()
    return _refusal(model.resolve(), status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=64)
def _refusal(model: Path, modified: int, nbytes: int) -> Refusal | None:
    """The answer for one state of the file, which ``modified`` and ``nbytes`` tell from others."""
    with tempfile.TemporaryDirectory(prefix="int8acc-", ignore_cleanup_errors=True) as folder:
        log = Path(folder) / "parse.log"
        outcome = run_child(__name__, [str(model)], Path(folder), log, _SECONDS)
        lines = [line for line in read_log(log).splitlines() if line.startswith(_SAID)]
    said = [json.loads(line.removeprefix(_SAID)) for line in lines]
    if not said:  # it does not load: nothing is known of the model
        return None
    if len(said) == 1:
        return Refusal("", f"its parser {outcome.ending}")
    return None if said[1] is None else Refusal(*said[1])


def main(path: str) -> None:
    """Print that TensorRT-RTX has loaded, then what its parser says."""
    runtime: Any = importlib.import_module("tensorrt_rtx")
    print(f"\n{_SAID}{json.dumps('loaded')}", flush=True)
    logger = runtime.Logger(runtime.Logger.ERROR)
    flag = 1 << int(runtime.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    builder = runtime.Builder(logger)
    network = builder.create_network(flag)  # builder and network must outlive the parser
    parser = runtime.OnnxParser(network, logger)
    first_error = None
    if not parser.parse_from_file(path):
        errors = [parser.get_error(i) for i in range(parser.num_errors)]
        first_error = (
            (errors[0].node_name(), errors[0].desc().splitlines()[0]) if errors else ("", "no reason told")
        )
    print(f"\n{_SAID}{json.dumps(first_error)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
