"""Other tools convert the models of a folder to FP16: run by ``rivals``, in an environment of theirs.

python converters.py TOOL FOLDER writes FOLDER/*/TOOL.onnx beside each model.onnx and data.npz, and prints the
CPU seconds of each; what a tool raises goes to TOOL.txt.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import onnx


def plain(path: Path) -> onnx.ModelProto:
    """onnxconverter-common: all in FP16, but for operators on its list."""
    from onnxconverter_common import float16

    return float16.convert_float_to_float16(onnx.load(path), keep_io_types=True)


def mixed(path: Path) -> onnx.ModelProto:
    """onnxconverter-common: looks for nodes to keep in FP32, by runs of ONNX Runtime."""
    from onnxconverter_common import auto_mixed_precision

    feed = dict(np.load(path.with_name("data.npz")))
    return auto_mixed_precision.auto_convert_mixed_precision(
        onnx.load(path), feed, rtol=0.02, atol=0.02, keep_io_types=True
    )


def autocast(path: Path, **options: float) -> onnx.ModelProto:
    """ModelOpt: keeps nodes in FP32 by the ranges of what they read and make."""
    from modelopt.onnx.autocast import convert_to_mixed_precision

    data = str(path.with_name("data.npz"))
    return convert_to_mixed_precision(str(path), keep_io_types=True, calibration_data=data, **options)


def autocast_wide(path: Path) -> onnx.ModelProto:
    """The same with all that FP16 holds as the range; 512 by default."""
    return autocast(path, data_max=65504.0)


TOOLS = {tool.__name__: tool for tool in (plain, mixed, autocast, autocast_wide)}


def main(name: str, folder: Path) -> None:
    """Convert each model of a folder."""
    for path in sorted(folder.glob("*/model.onnx")):
        began = time.process_time()
        try:
            onnx.save(TOOLS[name](path), path.with_name(f"{name}.onnx"))
        except Exception as error:  # the tools raise what they like
            path.with_name(f"{name}.txt").write_text(f"{type(error).__name__}: {error}")
        print(f"seconds {path.parent.name} {time.process_time() - began:.2f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
