"""A model becomes something that runs; only in this folder are ONNX Runtime and TensorRT known."""

from __future__ import annotations

from typing import Protocol

from pytest_int8acc.tensors import Feed, TensorInfo


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
