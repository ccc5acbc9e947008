"""Text files of a fix: names, arguments and commands for ModelOpt, Polygraphy and trtexec."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping

from pytest_int8acc.fix.files import FixFiles, Named
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.network import Precision
from pytest_int8acc.names import shown

_POLYGRAPHY = {"fp16": "float16", "fp32": "float32"}
#: What trtexec splits a list of layer precisions at, or takes for a pattern.
_TRTEXEC = re.compile("[,'*]")
_BACKSLASH = "\\"
#: The last opset that TensorRT 8.6 and 9 read.
_OPSET_8 = 17


def exclude_nodes(named: Named) -> str:
    """``exclude_nodes.txt``: a node's name a line, without quotes; those not printable are left out."""
    return "".join(f"{name}\n" for name in named.high if name.isprintable())


def modelopt(named: Named, low: str = "") -> str:
    """``modelopt.sh``: NVIDIA Model Optimizer's quantizer, each node left out by an anchored pattern."""
    lines = [
        "exec python -m modelopt.onnx.quantization",
        *([f"--quantize_mode {low}"] if low else []),
        '--onnx_path "$model"',
        '--calibration_data_path "$calibration"',
        f"--high_precision_dtype {named.precision}",
        '--output_path "$output"',
    ]
    if named.high:
        lines += ["--nodes_to_exclude", *(shlex.quote(modelopt_pattern(name)) for name in named.high)]
    head = _MODELOPT.replace("MODEL_PATH", shlex.quote(named.model))
    head = head.replace("set -eu\n", "".join(f"# {line}\n" for line in named.untold) + "set -eu\n")
    return head + " \\\n    ".join(lines) + "\n"


def modelopt_pattern(name: str) -> str:
    """A printable regular expression that Python's ``re.match`` finds in ``name`` and in no other name."""
    return rf"^{''.join(re.escape(c) if c.isprintable() else f'{_BACKSLASH}U{ord(c):08x}' for c in name)}\Z"


def layer_precisions(named: Named) -> str:
    """``layer_precisions.txt``: the arguments of Polygraphy and of trtexec, quoted for a POSIX shell."""
    lines = [
        "# TensorRT below 11, implicit quantization (--int8 with a calibration cache); for a POSIX shell.",
        "# A Gemm or MatMul may become several layers; postprocess.py finds them all.",
        "# What lies before them must not give its result in INT8; for Polygraphy, postprocess.py says so.",
        *(f"# {line}" for line in named.untold),
        "# Polygraphy:",
        *_polygraphy(named.high),
        "# trtexec:",
        *for_trtexec(named.high, named.feeding),
    ]
    return "\n".join(lines) + "\n"


def _polygraphy(high: Mapping[str, Precision]) -> Iterator[str]:
    """A name that begins with '-' would be taken for an option."""
    bad = {name for name in high if name.startswith("-") or not name.isprintable()}
    yield from (_cannot(name) for name in high if name in bad)
    pairs = [f"{name}:{_POLYGRAPHY[p]}" for name, p in high.items() if name not in bad]
    if pairs:
        yield shlex.join(["--precision-constraints", "obey", "--layer-precisions", *pairs])


def for_trtexec(
    high: Mapping[str, Precision], feeding: Mapping[str, Precision] | None = None
) -> Iterator[str]:
    """Arguments of trtexec for nodes in a precision, and for the types that nodes give their results in."""
    options = {"layerPrecisions": high, "layerOutputTypes": feeding or {}}
    arguments = []
    for option, names in options.items():
        bad = {name for name in names if _TRTEXEC.search(name) or not name.isprintable()}
        yield from (_cannot(name) for name in names if name in bad)
        pairs = [f"{name}:{precision}" for name, precision in names.items() if name not in bad]
        arguments += [f"--{option}={','.join(pairs)}"] if pairs else []
    if arguments:
        yield shlex.join(["--precisionConstraints=obey", *arguments])


def _cannot(name: str) -> str:
    return f"# {name!r} cannot be named here: use postprocess.py"


def commands(named: Named, fix: FixFiles) -> str:
    """``commands.txt``: how to build the fix with the tools of each TensorRT."""
    model = shlex.quote(named.model)
    parts = [
        *_head(named, fix),
        *(_by_flags(named) if fix.by_flags else _by_types(named, fix.model)),
    ]
    return "".join([*parts, *_tail(named, _ANEW)]).replace("MODEL", model)


def fp8_commands(named: Named, fix: FixFiles) -> str:
    """The same for a fix in FP8, which TensorRT below 9 does not read."""
    return "".join([*_head(named, fix), _ADA, FIXED, *_tail(named, _ANEW_FP8)])


def _head(named: Named, fix: FixFiles) -> Iterator[str]:
    yield "Commands to build this fix. Run them in this folder, in a POSIX shell.\n"
    yield from _shapes(named)
    yield from _outputs(fix)


def _tail(named: Named, anew: str) -> Iterator[str]:
    if not all(map(str.isprintable, named.high)):
        yield "\nexclude_nodes.txt lacks the names that cannot be printed on a line.\n"
    yield anew.replace("LACKING\n", "".join(f"   {line}\n" for line in named.untold))


def _by_types(named: Named, fixed: Model) -> Iterator[str]:
    """The types in the model are the engine's; a TensorRT that chooses by flags takes it in FP32 only."""
    yield FIXED
    if fixed.opset > _OPSET_8:
        yield (
            f"   TensorRT 8.6 and 9 read opset {_OPSET_8} at most, and fixed.onnx has {fixed.opset}: "
            "run the spec with that TensorRT, and fixed.onnx will be one for it, or take 2 or 3.\n"
        )
    else:
        yield "   TensorRT 8.6 and 9:\n"
        yield from _weak(named, {})


def _by_flags(named: Named) -> Iterator[str]:
    yield _FIXED_BY_FLAGS
    allows_weak_types = named.precision != "fp32"
    yield from _weak(
        named, {name: kept for name, kept in named.high.items() if allows_weak_types and kept == "fp32"}
    )


def _weak(named: Named, held: Mapping[str, Precision]) -> Iterator[str]:
    """The commands for a builder that chooses among the types that flags allow."""
    flags = "--int8" if named.precision == "fp32" else "--int8 --fp16"
    tools = [
        (f"trtexec --onnx=fixed.onnx {flags} --saveEngine=fixed.engine", for_trtexec(held)),
        (f"polygraphy convert fixed.onnx --convert-to trt {flags} -o fixed.engine", _polygraphy(held)),
    ]
    for command, arguments in tools:
        yield "     " + " \\\n       ".join([command, *arguments]) + "\n"


def _outputs(fix: FixFiles) -> Iterator[str]:
    if fix.plan.outputs:
        yield (
            "\nfixed.onnx and its engine give outputs that your model does not. They keep TensorRT from\n"
            "fusing across them what it computes wrong; give them memory, and leave them unread:\n"
        )
        yield from (f"  {shown(name)}\n" for name in fix.plan.outputs)


def _shapes(named: Named) -> Iterator[str]:
    if named.inputs:
        yield (
            f"\nInputs of open size ({'; '.join(map(shown, named.inputs))}) need shapes as well:\n"
            "  trtexec --minShapes=NAME:1x3x8x8 --optShapes=... --maxShapes=...\n"
            "  polygraphy --trt-min-shapes NAME:[1,3,8,8] --trt-opt-shapes ... --trt-max-shapes ...\n"
        )


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
