"""Makes the files of a fix in FP16 or BF16, which keep nodes in FP32 when other tools convert the model."""

from __future__ import annotations

import shlex

from pytest_int8acc.fix.commands import FIXED, commented, exclude_nodes, for_trtexec, modelopt_pattern
from pytest_int8acc.fix.files import Named

#: The low formats for which this module makes the files of a fix.
LOWS = ("fp16", "bf16")


def texts(named: Named, low: str) -> dict[str, str]:
    """Return the contents of the text files of a fix in FP16 or BF16, by file name, except the plan."""
    found = {
        "fp32_nodes.txt": exclude_nodes(named),
        "autocast.sh": _autocast(named, low),
        "layer_precisions.txt": _layer_precisions(named, low),
        "commands.txt": FIXED
        + _COMMANDS.replace("MODEL", named.model).replace(
            "LACKING\n", f"   {named.untold}\n" if named.untold else ""
        ),
    }
    return found | ({"convert_fp16.py": _convert(named)} if low == "fp16" else {})


def _convert(named: Named) -> str:
    """Return ``convert_fp16.py``, which runs onnxconverter-common and leaves the plan's nodes in FP32."""
    nodes = "".join(f"    {name!r},\n" for name in named.high)
    text = _CONVERT.replace("MODEL_NAME", repr(named.model)).replace("NODES", nodes)
    return text.replace("LACKING\n", commented(named.untold))


def _autocast(named: Named, low: str) -> str:
    """Return ``autocast.sh``, which runs ModelOpt's AutoCast and leaves the plan's nodes in FP32."""
    lines = [
        "exec python -m modelopt.onnx.autocast",
        f'--onnx_path "$(dirname -- "$0")"/{shlex.quote(named.model)}',
        f'--output_path "$output" --low_precision_type {low} --keep_io_types',
        *(["--nodes_to_exclude"] if named.high else []),
        *(shlex.quote(modelopt_pattern(name)) for name in named.high),
    ]
    return _AUTOCAST.replace("LACKING\n", commented(named.untold)) + " \\\n    ".join(lines) + "\n"


def _layer_precisions(named: Named, low: str) -> str:
    """Return ``layer_precisions.txt``: trtexec's arguments that keep the plan's nodes and outputs in FP32."""
    lines = [
        "# TensorRT below 11, from the float model; for a POSIX shell.",
        f"# trtexec --onnx={shlex.quote(named.model)} --{low} and:",
        *([f"# {named.untold}"] if named.untold else []),
        *for_trtexec(named.high, named.high),
    ]
    return "\n".join(lines) + "\n"


_CONVERT = '''\
"""Converts the float model to FP16 with onnxconverter-common, the plan's nodes left in FP32.

    pip install onnx onnxconverter-common
    python convert_fp16.py [OUTPUT.onnx]

Nodes that ``node_block_list`` names stay in FP32; by default it also keeps those of ``op_block_list``, which
this leaves empty. Written by pytest-int8acc.
"""

import sys
from pathlib import Path

import onnx
from onnxconverter_common import float16

MODEL = Path(__file__).resolve().parent / MODEL_NAME
LACKING
NODE_BLOCK_LIST = [
NODES]

if __name__ == "__main__":
    output = sys.argv[1] if len(sys.argv) > 1 else "converted.onnx"
    model = onnx.load(MODEL)
    names = {node.name for node in model.graph.node}
    missing = [name for name in NODE_BLOCK_LIST if name not in names]
    if missing:
        sys.exit(f"{MODEL}: no node of these names: {missing}")
    converted = float16.convert_float_to_float16(
        model, keep_io_types=True, op_block_list=[], node_block_list=NODE_BLOCK_LIST
    )
    onnx.save(converted, output)
'''
_AUTOCAST = """\
#!/bin/sh
# Converts the float model with NVIDIA Model Optimizer's AutoCast, the plan's nodes left in FP32. Rules of its
# own may keep more nodes there.
#
#     pip install 'nvidia-modelopt[onnx]'
#     sh autocast.sh [OUTPUT.onnx]
LACKING
set -eu
output=${1:-converted.onnx}
"""
_COMMANDS = """
2. Convert MODEL anew with the tool of your pipeline, the same nodes left in FP32 (fp32_nodes.txt):
     sh autocast.sh converted.onnx
     python convert_fp16.py converted.onnx        (FP16 only)
LACKING

   Every tool places Casts by rules of its own: before you ship converted.onnx, compare it with the float
   model.

3. TensorRT below 11, from MODEL: the arguments for trtexec in layer_precisions.txt.

4. To keep the fix guarded, name the plan in the spec, by its path from there:
     plan: plan.yaml
"""
