"""Makes text files of a fix: node names, arguments and commands for ModelOpt, Polygraphy and trtexec."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping

from pytest_int8acc.fix.files import FixFiles, Named
from pytest_int8acc.graph.network import Precision
from pytest_int8acc.names import shown

_POLYGRAPHY = {"fp16": "float16", "fp32": "float32"}
#: Matches a character that trtexec treats specially in a list of layer precisions. A node with such a
#: character in its name cannot be given to trtexec.
_TRTEXEC = re.compile("[,'*]")
#: The newest opset that TensorRT 8.6 and 9 read.
_OPSET_8 = 17


def exclude_nodes(named: Named) -> str:
    """Return ``exclude_nodes.txt``: the names of the nodes that stay float, one on each line.

    Names that are not printable are left out.
    """
    return "".join(f"{name}\n" for name in named.high if name.isprintable())


def modelopt(named: Named, low: str = "") -> str:
    """Return ``modelopt.sh``, which runs NVIDIA Model Optimizer's quantizer.

    The quantizer leaves out the nodes in ``named.high``. ``low`` is the quantizer's mode, like ``fp8``;
    empty for INT8.
    """
    lines = ["exec python -m modelopt.onnx.quantization"]
    if low:
        lines.append(f"--quantize_mode {low}")
    lines += [
        '--onnx_path "$model"',
        '--calibration_data_path "$calibration"',
        f"--high_precision_dtype {named.precision}",
        '--output_path "$output"',
    ]
    if named.high:
        lines += ["--nodes_to_exclude", *(shlex.quote(modelopt_pattern(name)) for name in named.high)]
    head = _MODELOPT.replace("MODEL_PATH", shlex.quote(named.model))
    head = head.replace("set -eu\n", f"{commented(named.untold)}set -eu\n")
    return head + " \\\n    ".join(lines) + "\n"


def commented(line: str) -> str:
    """Return ``line`` as a line of comment in a script; empty text if ``line`` is empty."""
    return f"# {line}\n" if line else ""


def modelopt_pattern(name: str) -> str:
    """Return a printable regular expression with which ``re.match`` finds ``name`` and no other name."""
    characters = [re.escape(c) if c.isprintable() else rf"\U{ord(c):08x}" for c in name]
    return rf"^{''.join(characters)}\Z"


def layer_precisions(named: Named) -> str:
    """Return ``layer_precisions.txt``: arguments of Polygraphy and trtexec, quoted for a POSIX shell."""
    lines = [
        "# TensorRT below 11, implicit quantization (--int8 with a calibration cache); for a POSIX shell.",
        "# A Gemm or MatMul may become several layers; postprocess.py finds them all.",
        "# What lies before them must not give its result in INT8; for Polygraphy, postprocess.py says so.",
    ]
    if named.untold:
        lines.append(f"# {named.untold}")
    lines += ["# Polygraphy:", *_polygraphy(named.high)]
    lines += ["# trtexec:", *for_trtexec(named.high, named.feeding)]
    return "\n".join(lines) + "\n"


def _polygraphy(high: Mapping[str, Precision]) -> Iterator[str]:
    """Yield Polygraphy's arguments that set the precision of nodes.

    Before the arguments, yield a comment for each node whose name Polygraphy cannot accept.
    """
    # Polygraphy would read a name that begins with '-' as an option.
    bad = {name for name in high if name.startswith("-") or not name.isprintable()}
    yield from (_cannot(name) for name in high if name in bad)
    pairs = [f"{name}:{_POLYGRAPHY[p]}" for name, p in high.items() if name not in bad]
    if pairs:
        yield shlex.join(["--precision-constraints", "obey", "--layer-precisions", *pairs])


def for_trtexec(high: Mapping[str, Precision], results: Mapping[str, Precision]) -> Iterator[str]:
    """Yield trtexec's arguments that set precisions and output types of nodes.

    Before the arguments, yield a comment for each node whose name trtexec cannot accept.

    Args:
        high: The precision of each node, by node name.
        results: The type of the outputs of each node, by node name.
    """
    arguments = []
    for option, names in (("layerPrecisions", high), ("layerOutputTypes", results)):
        bad = {name for name in names if _TRTEXEC.search(name) or not name.isprintable()}
        yield from (_cannot(name) for name in names if name in bad)
        pairs = [f"{name}:{precision}" for name, precision in names.items() if name not in bad]
        if pairs:
            arguments.append(f"--{option}={','.join(pairs)}")
    if arguments:
        yield shlex.join(["--precisionConstraints=obey", *arguments])


def _cannot(name: str) -> str:
    return f"# {name!r} cannot be named here: use postprocess.py"


def commands(named: Named, fix: FixFiles) -> str:
    """Return ``commands.txt`` for INT8: the commands that build the fix with each version of TensorRT."""
    if fix.by_flags:
        fixed = _FIXED_BY_FLAGS + _weak(named, _held_by_flags(named))
    elif fix.model.opset > _OPSET_8:
        fixed = FIXED + (
            f"   TensorRT 8.6 and 9 read opset {_OPSET_8} at most, and fixed.onnx has {fix.model.opset}: "
            "run the spec with that TensorRT, and fixed.onnx will be one for it, or take 2 or 3.\n"
        )
    else:
        fixed = f"{FIXED}   TensorRT 8.6 and 9:\n{_weak(named, {})}"
    text = _head(named, fix) + fixed + _again(named, _ANEW)
    return text.replace("MODEL", shlex.quote(named.model))


def fp8_commands(named: Named, fix: FixFiles) -> str:
    """Return ``commands.txt`` for a fix in FP8."""
    return _head(named, fix) + _ADA + FIXED + _again(named, _ANEW_FP8)


def _head(named: Named, fix: FixFiles) -> str:
    """Return the first lines of ``commands.txt``: how to run the commands, and remarks on inputs and outputs.

    The remarks are on inputs without a fixed size, and on outputs that the fix adds to the model.
    """
    text = "Commands to build this fix. Run them in this folder, in a POSIX shell.\n"
    if named.inputs:
        text += (
            f"\nInputs of open size ({'; '.join(map(shown, named.inputs))}) need shapes as well:\n"
            "  trtexec --minShapes=NAME:1x3x8x8 --optShapes=... --maxShapes=...\n"
            "  polygraphy --trt-min-shapes NAME:[1,3,8,8] --trt-opt-shapes ... --trt-max-shapes ...\n"
        )
    if fix.plan.outputs:
        text += (
            "\nfixed.onnx and its engine give outputs that your model does not. They keep TensorRT from\n"
            "fusing across them what it computes wrong; give them memory, and leave them unread:\n"
        )
        text += "".join(f"  {shown(name)}\n" for name in fix.plan.outputs)
    return text


def _again(named: Named, text: str) -> str:
    """Return the template ``text``, on how to quantize with other tools, filled in with their limitations."""
    note = ""
    if not all(map(str.isprintable, named.high)):
        note = "\nexclude_nodes.txt lacks the names that cannot be printed on a line.\n"
    return note + text.replace("LACKING\n", f"   {named.untold}\n" if named.untold else "")


def _held_by_flags(named: Named) -> dict[str, Precision]:
    """Return the nodes that arguments must hold in FP32; empty if the builder flags do not allow FP16.

    With the flag for FP16, TensorRT could otherwise run these nodes in FP16.
    """
    if named.precision == "fp32":
        return {}
    return {name: kept for name, kept in named.high.items() if kept == "fp32"}


def _weak(named: Named, held: Mapping[str, Precision]) -> str:
    """Return the commands for a weakly typed build, in which TensorRT chooses among the types of the flags.

    ``held`` has the precision of each node for which the commands set one, by node name.
    """
    flags = "--int8" if named.precision == "fp32" else "--int8 --fp16"
    trtexec = [f"trtexec --onnx=fixed.onnx {flags} --saveEngine=fixed.engine", *for_trtexec(held, {})]
    polygraphy = [
        f"polygraphy convert fixed.onnx --convert-to trt {flags} -o fixed.engine",
        *_polygraphy(held),
    ]
    return "".join("     " + " \\\n       ".join(lines) + "\n" for lines in (trtexec, polygraphy))


_MODELOPT = """\
#!/bin/sh
# Quantizes the float model anew with NVIDIA Model Optimizer, the plan's layers left out.
#
#     pip install 'nvidia-modelopt[onnx]'
#     sh modelopt.sh CALIBRATION.npz [OUTPUT.onnx [MODEL.onnx]]
#
# CALIBRATION.npz holds one array per model input. ModelOpt takes patterns; each of these is one node's name.
set -eu
calibration=${1:?give the calibration data: sh modelopt.sh CALIBRATION.npz}
output=${2:-quantized.onnx}
model=MODEL_PATH
case $model in
/*) ;;
*) model=$(dirname -- "$0")/$model ;;
esac
model=${3:-$model}
"""

FIXED = """
1. fixed.onnx: the mixed-precision model that met the criteria. Nothing needs to be quantized anew.

   TensorRT 11:
     trtexec --onnx=fixed.onnx --saveEngine=fixed.engine
     polygraphy convert fixed.onnx --convert-to trt -o fixed.engine

   TensorRT-RTX:
     POLYGRAPHY_USE_TENSORRT_RTX=1 polygraphy convert fixed.onnx --convert-to trt -o fixed.engine

   TensorRT 10:
     trtexec --onnx=fixed.onnx --stronglyTyped --saveEngine=fixed.engine
     polygraphy convert fixed.onnx --convert-to trt --strongly-typed -o fixed.engine

"""

_FIXED_BY_FLAGS = """
1. fixed.onnx: the mixed-precision model that met the criteria, in FP32 with Q/DQ. Nothing needs to be
   quantized anew. TensorRT 8.6 to 10:
"""

_ADA = """
An engine in FP8 needs a GPU of Ada (compute capability 8.9) or later, and TensorRT 10 or later.
"""

_ANEW_FP8 = """
2. Quantize anew with NVIDIA Model Optimizer, the same layers left out (exclude_nodes.txt):
     sh modelopt.sh calibration.npz quantized.onnx

LACKING
   It places Q/DQ by rules of its own. Before you ship quantized.onnx, name it in a spec
   (fp8: {model: quantized.onnx}) and run it.

3. To keep the fix guarded, name the plan in the spec, by its path from there:
     plan: plan.yaml
"""

_ANEW = """
2. Quantize anew with the tool of your pipeline, the same layers left out (exclude_nodes.txt):
     sh modelopt.sh calibration.npz quantized.onnx
     python ort_quantize.py calibration.npz quantized.onnx

LACKING
   Every tool places Q/DQ by rules of its own. Before you ship quantized.onnx, name it in a spec
   (int8: {model: quantized.onnx}) and run it.

3. Implicit quantization, TensorRT below 11, with the calibration cache that you have:
LACKING
     polygraphy convert MODEL --convert-to trt -o fixed.engine --int8 --fp16 \\
       --calibration-cache calibration.cache --precision-constraints obey \\
       --trt-network-postprocess-script postprocess.py
     trtexec --onnx=MODEL --int8 --fp16 --calib=calibration.cache --saveEngine=fixed.engine \\
       and the arguments for trtexec in layer_precisions.txt

4. To keep the fix guarded, name the plan in the spec, by its path from there:
     plan: plan.yaml
"""
