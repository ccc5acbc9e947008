"""A fix as files: the mixed-precision model, and the plan that made it."""

from __future__ import annotations

from pathlib import Path

import yaml

from pytest_int8acc.errors import Int8accError
from pytest_int8acc.graph.model import Model, save_model
from pytest_int8acc.graph.network import Plan


def write_fix(folder: Path, model: Model, plan: Plan) -> tuple[str, ...]:
    """Write ``fixed.onnx`` and ``plan.yaml`` into ``folder`` and return their paths.

    Raises:
        Int8accError: The folder cannot be made or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save_model(model, folder / "fixed.onnx")
        text = yaml.safe_dump({"high": dict(plan.high), "scales": dict(plan.scales)}, sort_keys=False)
        (folder / "plan.yaml").write_text(text, encoding="utf-8")
    except OSError as error:
        raise Int8accError(f"{folder}: cannot be written: {error.strerror or error}") from error
    return str(folder / "fixed.onnx"), str(folder / "plan.yaml")
