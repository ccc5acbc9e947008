"""All that one engine depends on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pytest_int8acc.engines.manifest import digest_file
from pytest_int8acc.engines.tensorrt.calibration import Implicit, check_header, digest, model_digest
from pytest_int8acc.engines.tensorrt.options import BuildOptions, Range
from pytest_int8acc.engines.tensorrt.platform import Platform, require
from pytest_int8acc.errors import EngineError, ModelError
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.opset import float_weights, lower_opset

Typing = Literal["strong", "weak"]
Flag = Literal["int8", "fp16"]
Held = Literal["fp16", "fp32"]
#: The model's own, unfused tensors as debug tensors beside them, or these inner tensors beside them.
Outputs = Literal["own", "debug"] | tuple[str, ...]

#: Raised where the worker makes another engine of the same request.
_FORMAT = 2


@dataclass(frozen=True, eq=False)
class BuildRequest:
    """One engine to build.

    Typing *strong*: the model's own types are the engine's (TensorRT 10 and later, TensorRT-RTX); hand over
    the halved model. Typing *weak*: the model is in FP32, with or without Q/DQ, and ``flags`` allow lower
    precisions (TensorRT below 11); hand over the model with its plan applied and not halved.
    """

    model: Model
    role: str
    """What it is in the case, for messages: baseline, INT8, fixed."""
    profiles: Mapping[str, Range]
    """Input to smallest, usual and largest shape, from :func:`~.profiles.make_profiles`."""
    typing: Typing
    flags: frozenset[Flag] = frozenset()
    """Under weak typing; a Q/DQ model needs int8."""
    precisions: Mapping[str, Held] = field(default_factory=dict)
    """ONNX node to the precision that its layers must compute in, obeyed; under weak typing."""
    implicit: Implicit | None = None
    outputs: Outputs = "own"
    """own: the model's; debug: unfused tensors as debug tensors, too; names: these, too, breaking fusions."""
    options: BuildOptions = field(default_factory=BuildOptions)

    def __str__(self) -> str:
        return f"{self.model.name} ({self.role})"

    def check(self, platform: Platform) -> None:
        """Do nothing where ``platform`` can build it.

        Raises:
            MissingBackendError: There is no GPU to build on.
            EngineError: A feature, a plugin file or a setting is wrong; says what would do.
        """
        require(platform, "build")
        require(platform, "strong typing" if self.typing == "strong" else "weak typing")
        if self.implicit is not None:
            require(platform, "implicit quantization")
            if "int8" not in self.flags:
                raise EngineError(f"{self}: implicit quantization wants the flag int8")
            if self.implicit.cache is not None:
                first = self.implicit.cache.partition(b"\n")[0].decode("utf-8", errors="replace")
                check_header(first, f"{self}: calibration cache", self.implicit.algorithm)
        if self.outputs == "debug":
            require(platform, "debug tensors")
        if self.typing == "strong" and (self.flags or self.precisions or self.implicit):
            raise EngineError(
                f"{self}: flags, layer precisions and implicit quantization want typing weak; under strong "
                "typing the model's own types say all"
            )
        limit = platform.opset_limit
        if limit is not None and self.model.opset > limit:
            raise EngineError(
                f"{self}: {platform.name} reads opset {limit} at most, and the model has {self.model.opset}; "
                f"export it with opset {limit}"
            )
        for plugin in self.options.plugins:
            if not plugin.is_file():
                raise EngineError(
                    f"tensorrt plugins: {plugin}: no such file; name a library built for {platform.name}"
                )

    def fingerprint(self, platform: Platform) -> str:
        """BLAKE2b in hex of everything that the engine depends on; role, name and time limit are not part.

        Raises:
            EngineError: A plugin library cannot be read.
        """
        facts = {
            "format": _FORMAT,
            "model": model_digest(self.model),
            "platform": [platform.flavor, platform.version, platform.gpu, platform.capability],
            "profiles": {name: list(map(list, profile)) for name, profile in self.profiles.items()},
            "typing": [self.typing, sorted(self.flags), dict(self.precisions), self.outputs],
            "options": [self.options.workspace, self.options.optimization_level, self.options.tactic_sources],
            "plugins": [_plugin_digest(plugin) for plugin in self.options.plugins],
        }
        if self.implicit is not None:
            cache = self.implicit.cache
            known = self.implicit.data if cache is None else digest(cache)
            facts["implicit"] = [self.implicit.algorithm, cache is None, known]
        return digest(json.dumps(facts, sort_keys=True).encode())


def fit_model(model: Model, platform: Platform) -> Model:
    """``model`` as ``platform`` reads it: in an opset it knows, INT8 weights in the form it takes.

    Raises:
        EngineError: It cannot be converted; says with which opset to export.
    """
    limit = platform.opset_limit
    try:
        lowered = model if limit is None else lower_opset(model, limit)
    except ModelError as error:
        raise EngineError(
            f"{model.name}: {platform.name} reads opset {limit} at most, and opset {model.opset} cannot be "
            f"converted to it: {error}. Export the model with opset {limit}."
        ) from error
    return lowered if platform.integer_weights else float_weights(lowered)


def _plugin_digest(path: Path) -> str:
    try:
        return digest_file(path)
    except OSError as error:
        raise EngineError(f"tensorrt plugins: {path}: cannot be read: {error.strerror or error}") from error
