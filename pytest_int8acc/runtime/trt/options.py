"""The options in the spec's ``tensorrt`` section: how each option is set, and which feature it needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from pytest_int8acc.settings import to_bytes

#: Features that some versions of TensorRT lack; ``platform.py`` says which versions have them.
Feature = Literal[
    "run",
    "build",
    "strong typing",
    "weak typing",
    "implicit quantization",
    "debug tensors",
    "timing cache",
    "FP8",
    "BF16",
    "layer precisions",
]


class BuilderOption(NamedTuple):
    """One row of the register of options. Both fields must be given, so that neither is forgotten."""

    feature: Feature | None
    """The feature that TensorRT must have for the option. Without the feature, a spec that sets the option is
    refused. None if all versions have the option."""
    arguments: Callable[[Any, Any], dict[str, Any]] | None
    """Makes arguments of Polygraphy's ``CreateConfig``, from the ``tensorrt`` module and the value in the
    spec. None if the option is no argument of ``CreateConfig``."""


def _tactic_source(trt: Any, name: str) -> Any:
    known = trt.TacticSource.__members__
    if name.upper() not in known:
        raise ValueError(f"tactic_sources: this TensorRT has no '{name}'; it has {', '.join(known)}")
    return known[name.upper()]


# To add an option:
#
# 1. Add a field to ``TensorRt`` in ``spec/models.py``.
# 2. Add a row of the field's name here. If a TensorRT lacks the option, the row needs a feature.
# 3. Add a new feature to ``Feature``, and to ``_NEEDS`` in ``platform.py`` with the versions that have it.
#
# If a step is missing, mypy or ``tests/runtime/test_tensorrt_request.py`` fails.
BUILDER_OPTIONS: dict[str, BuilderOption] = {
    "workspace": BuilderOption(
        None, lambda trt, value: {"memory_pool_limits": {trt.MemoryPoolType.WORKSPACE: to_bytes(value)}}
    ),
    "optimization_level": BuilderOption(None, lambda trt, value: {"builder_optimization_level": value}),
    "tactic_sources": BuilderOption(
        None, lambda trt, value: {"tactic_sources": [_tactic_source(trt, name) for name in value]}
    ),
    "obey": BuilderOption("layer precisions", None),
}
