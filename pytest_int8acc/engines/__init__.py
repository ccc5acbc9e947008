"""A model becomes something that runs; only in this folder are ONNX Runtime and TensorRT known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pytest_int8acc.errors import EngineError, listed
from pytest_int8acc.tensors import Feed, TensorInfo, did_you_mean


def check_names(model: str, feed: Feed, inputs: Sequence[TensorInfo]) -> None:
    """Raise EngineError where ``feed`` does not name the inputs of ``model``; says which it does not."""
    known = [tensor.name for tensor in inputs]
    strange = [name for name in feed if name not in known]
    missing = [name for name in known if name not in feed]
    if strange or missing:
        said = [f"no input is called '{name}'{did_you_mean(name, known)}" for name in strange[:1]]
        said += [f"no array for {listed(missing)}"] if missing else []
        raise EngineError(f"{model}: {'; '.join(said)}; its inputs are {listed(known)}")


class Engine(Protocol):
    """A model ready to run: call it with a feed dict, get its outputs by name."""

    @property
    def description(self) -> str:
        """Runtime, version, device and mode, in words."""

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """What it takes."""

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        """What it gives."""

    def __call__(self, feed: Feed) -> Feed:
        """Run once; raises EngineError where the runtime refuses."""
