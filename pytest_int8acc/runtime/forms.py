"""What a backend is asked to run: an ONNX model, a built engine, a model that TensorRT quantizes itself."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from pytest_int8acc.data import Dataset
from pytest_int8acc.graph.formats import FP16, Format
from pytest_int8acc.graph.half import to_fp16
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.network import Precision
from pytest_int8acc.graph.plan import with_outputs
from pytest_int8acc.spec.int8 import Algorithm


@dataclass(frozen=True, eq=False)
class _Form:
    """A model as it will run, and what the report says of it."""

    model: Model
    """Tells what it takes and gives, whatever runs in its place."""
    description: str
    notes: tuple[str, ...] = ()
    place: str = ""
    """The key of the spec that it comes from, as ``file:line:col``."""

    @property
    def half(self) -> bool:
        """Whether it computes in FP16."""
        return any(tensor.dtype == np.float16 for tensor in self.model.values().values())


@dataclass(frozen=True, eq=False, kw_only=True)
class ModelForm(_Form):
    """A model to build, and to run as it is written."""

    original: Model
    """The same before it was halved, for a TensorRT that halves by itself; where nothing was, ``model``."""
    wide: Model
    """The same in FP32 at the last step before its types changed; where none did, ``model``."""
    in_fp32: frozenset[str] = frozenset()
    """Nodes that were not halved."""
    overflows: tuple[str, ...] = ()
    """Constants that FP16 cannot hold."""
    shown: tuple[str, ...] = ()
    """Tensors that its engine gives beside its outputs, for nobody to read; see ``Plan.outputs``."""
    level: int | None = None
    """The optimization level that its engine is built at; None: the case's own."""

    @classmethod
    def as_it_is(cls, model: Model, description: str, notes: tuple[str, ...] = ()) -> ModelForm:
        """A model that is built as it stands."""
        return cls(model, description, notes, original=model, wide=model)

    @classmethod
    def in_full(cls, model: Model) -> ModelForm:
        """Returns the form of a float model that runs in FP32."""
        return cls.as_it_is(model, "FP32")

    @classmethod
    def halved(
        cls,
        original: Model,
        description: str,
        notes: tuple[str, ...] = (),
        in_fp32: Collection[str] = (),
        low: Format = FP16,
    ) -> ModelForm:
        """``original`` in FP16 or BF16, but for the nodes ``in_fp32``."""
        half = to_fp16(original, in_fp32, low)
        return cls(
            half.model,
            description,
            (*notes, *half.notes),
            original=original,
            wide=half.wide,
            in_fp32=frozenset(in_fp32),
            overflows=half.overflows,
        )

    @property
    def half(self) -> bool:
        """Whether it computes in FP16."""
        return self.original is not self.model or super().half

    def showing(self, model: Model) -> Model:
        """``model`` or ``original``, whatever TensorRT wanted of it done, with the tensors ``shown``."""
        return with_outputs(model, self.shown)


@dataclass(frozen=True, eq=False, kw_only=True)
class EngineForm(_Form):
    """A TensorRT engine that is built already; of its layers nothing is known."""

    path: Path


@dataclass(frozen=True, eq=False, kw_only=True)
class ImplicitForm(_Form):
    """A model that TensorRT below 11 quantizes itself, from ranges of its own or of a cache."""

    algorithm: Algorithm
    samples: Dataset | None
    """Calibration samples; None where the cache must be there."""
    cache: Path | None
    """The cache to read; written where it is not there and ``samples`` are."""
    held: Mapping[str, Precision] = field(default_factory=dict)
    """Node to the precision that it is held in."""

    @property
    def half(self) -> bool:
        """The builder may take FP16 wherever it does not take INT8."""
        return True

    def holding(self, held: Mapping[str, Precision], cache: Path | None) -> ImplicitForm:
        """The same, calibrated already, with nodes held in another precision."""
        return replace(self, samples=None, cache=cache, held=held)


Form = ModelForm | EngineForm | ImplicitForm
