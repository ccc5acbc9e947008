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
    """A model as it will run, and its description for reports."""

    model: Model
    """The ONNX model whose inputs and outputs the engine has."""
    description: str
    notes: tuple[str, ...] = ()
    place: str = ""
    """``file:line:col`` of the spec's key that names the form."""

    @property
    def half(self) -> bool:
        """Whether the form computes in FP16."""
        return any(tensor.dtype == np.float16 for tensor in self.model.values().values())


@dataclass(frozen=True, eq=False, kw_only=True)
class ModelForm(_Form):
    """A model that runs with the types that it has."""

    original: Model
    """The model before its types were lowered to FP16, for a TensorRT that chooses FP16 by itself. It is
    ``model`` where nothing was lowered."""
    wide: Model
    """The model in FP32 just before its types were lowered; ``model`` where nothing was lowered."""
    in_fp32: frozenset[str] = frozenset()
    """Nodes that stay in FP32."""
    overflows: tuple[str, ...] = ()
    """Constants that FP16 cannot hold."""
    shown: tuple[str, ...] = ()
    """Inner tensors that the engine also gives as outputs, which breaks up fusions; see ``Plan.outputs``."""
    level: int | None = None
    """The optimization level of the build; None takes the level of the case."""

    @classmethod
    def as_it_is(cls, model: Model, description: str, notes: tuple[str, ...] = ()) -> ModelForm:
        """The form of a model that is built unchanged."""
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
        """The form of ``original`` in FP16 or BF16, with the nodes ``in_fp32`` in FP32."""
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
        """Whether the form computes in FP16."""
        return self.original is not self.model or super().half

    def showing(self, model: Model) -> Model:
        """A model, this form's or one derived from it, with the tensors ``shown`` as further outputs."""
        return with_outputs(model, self.shown)


@dataclass(frozen=True, eq=False, kw_only=True)
class EngineForm(_Form):
    """A TensorRT engine that somebody else built."""

    path: Path


@dataclass(frozen=True, eq=False, kw_only=True)
class ImplicitForm(_Form):
    """A model that TensorRT below 11 quantizes by itself, with ranges from its calibrator or from a cache."""

    algorithm: Algorithm
    samples: Dataset | None
    """Calibration samples; None where the ranges come from the cache."""
    cache: Path | None
    """The cache to read. It is written where it does not exist and there are samples."""
    held: Mapping[str, Precision] = field(default_factory=dict)
    """Node to the precision that the builder must give it."""

    @property
    def half(self) -> bool:
        """True: the builder may take FP16 wherever it does not take INT8."""
        return True

    def holding(self, held: Mapping[str, Precision], cache: Path | None) -> ImplicitForm:
        """The same form with ranges from a cache, and with nodes held in other precisions."""
        return replace(self, samples=None, cache=cache, held=held)


Form = ModelForm | EngineForm | ImplicitForm
