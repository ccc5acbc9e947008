"""Writes a fix as files: the mixed-precision model, its plan, and files and commands for other tools."""

from __future__ import annotations

from pathlib import Path

from pytest_int8acc.case.plan_file import plan_text
from pytest_int8acc.errors import Int8accError
from pytest_int8acc.fix import commands, low, scripts
from pytest_int8acc.fix.files import NAMED_MODEL, FixFiles, Named, name_nodes
from pytest_int8acc.graph.model import marked_fix, replacing_models, write_model

__all__ = ["FixFiles", "write_fix"]


def write_fix(folder: Path, fix: FixFiles, root: Path | None = None) -> tuple[str, ...]:
    """Write ``fix`` into ``folder`` and return the paths written, ``fixed.onnx`` first.

    ======================  ===============================================================
    fixed.onnx              the fixed model
    plan.yaml               the plan; a spec with ``plan: plan.yaml`` tests it
    exclude_nodes.txt       nodes that stay float, one name on each line
    modelopt.sh             runs NVIDIA Model Optimizer's quantizer without these nodes
    ort_quantize.py         runs ONNX Runtime's quantizer without these nodes
    layer_precisions.txt    arguments of Polygraphy and trtexec for TensorRT below 11
    postprocess.py          Polygraphy's network postprocessing for TensorRT below 11
    commands.txt            the commands that build the fix with each tool
    float.onnx              the float model for other tools; written only if they cannot use the user's
                            model file, for example because the plan fuses norms
    ======================  ===============================================================

    A fix in FP8 has no files for ONNX Runtime's quantizer and for TensorRT below 11. A fix in FP16 or BF16
    has ``fixed.onnx``, ``plan.yaml``, ``commands.txt``, ``layer_precisions.txt``, ``fp32_nodes.txt``,
    ``autocast.sh`` (ModelOpt), and in FP16 ``convert_fp16.py`` (onnxconverter-common).

    A plan may move range between channels, and may set scales of weights. Other tools support neither. The
    files for these tools say so.

    Args:
        folder: The folder to write into. It is created if it is missing.
        fix: The fix.
        root: The report folder. A symbolic link that leads out of it raises an error. With None, all links
            are followed.

    Raises:
        Int8accError: The folder cannot be created or written.
    """
    named = name_nodes(fix, folder)
    plan = {"plan.yaml": plan_text(fix.plan, fix.network, fix.float_path.name)}
    texts = plan | (low.texts(named, fix.low) if fix.low in low.LOWS else _texts(named, fix))
    models = {"fixed.onnx": marked_fix(fix.model)}
    if not named.own_file:
        models[NAMED_MODEL] = fix.named_model
    try:
        with replacing_models(folder, root) as drafts:
            for name, model in models.items():
                write_model(model, drafts / name)
            for name, text in texts.items():
                (drafts / name).write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise Int8accError(f"{folder}: cannot be written: {error.strerror or error}") from error
    return tuple(str(folder / name) for name in ("fixed.onnx", *texts, *list(models)[1:]))


def _texts(named: Named, fix: FixFiles) -> dict[str, str]:
    """Return the contents of the text files of a fix in INT8 or FP8, by file name, except the plan."""
    if fix.low:
        return {
            "exclude_nodes.txt": commands.exclude_nodes(named),
            "modelopt.sh": commands.modelopt(named, fix.low),
            "commands.txt": commands.fp8_commands(named, fix),
        }
    return {
        "exclude_nodes.txt": commands.exclude_nodes(named),
        "modelopt.sh": commands.modelopt(named),
        "ort_quantize.py": scripts.ort_quantize(named),
        "layer_precisions.txt": commands.layer_precisions(named),
        "postprocess.py": scripts.postprocess(named),
        "commands.txt": commands.commands(named, fix),
    }
