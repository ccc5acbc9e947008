"""The forms that a backend can run: an ONNX model, a built engine, or a model that TensorRT quantizes."""

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
    """The fields that all forms have.

    A form is a model or an engine that a backend can run, with its description.
    """

    model: Model
    """The ONNX model. For an ``EngineForm``: the case's model, whose inputs and outputs the engine must
    have."""
    description: str
    notes: tuple[str, ...] = ()
    place: str = ""
    """The place of the spec's key that names the model or engine, as ``file:line:col``."""

    @property
    def half(self) -> bool:
        """Whether the model holds tensors in FP16."""
        return any(tensor.dtype == np.float16 for tensor in self.model.values().values())


@dataclass(frozen=True, eq=False, kw_only=True)
class ModelForm(_Form):
    """An ONNX model that runs in the types that its tensors have."""

    original: Model
    """The model before its types were lowered to FP16 or BF16; ``model`` if nothing was lowered.

    A TensorRT version that chooses FP16 by itself builds its engine from this model.
    """
    wide: Model
    """The FP32 model after all changes except the lowering of types; ``model`` if no types were lowered."""
    in_fp32: frozenset[str] = frozenset()
    """Names of the nodes that stay in FP32."""
    overflows: tuple[str, ...] = ()
    """Descriptions of the constants that FP16 cannot hold."""
    shown: tuple[str, ...] = ()
    """Inner tensors that are also outputs of the engine, so that TensorRT does not fuse across them."""
    level: int | None = None
    """The optimization level of TensorRT's build; if None, the level that the spec names is used."""

    @classmethod
    def as_it_is(cls, model: Model, description: str, notes: tuple[str, ...] = ()) -> ModelForm:
        """Describes a model that is built unchanged."""
        return cls(model, description, notes, original=model, wide=model)

    @classmethod
    def in_full(cls, model: Model) -> ModelForm:
        """Describes a float model that runs in FP32."""
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
        """Describes ``original`` lowered to FP16 or BF16, with the nodes ``in_fp32`` in FP32."""
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
        """Whether the model was lowered to FP16 or BF16, or holds tensors in FP16."""
        return self.original is not self.model or super().half

    def showing(self, model: Model) -> Model:
        """A model with the tensors in ``shown`` as further outputs.

        Args:
            model: The model of this object, or a model that is derived from it.
        """
        return with_outputs(model, self.shown)


@dataclass(frozen=True, eq=False, kw_only=True)
class EngineForm(_Form):
    """A TensorRT engine that the user built beforehand."""

    path: Path


@dataclass(frozen=True, eq=False, kw_only=True)
class ImplicitForm(_Form):
    """A model that TensorRT below 11 quantizes, with ranges from its calibrator or from a cache."""

    algorithm: Algorithm
    samples: Dataset | None
    """Calibration samples; None if the ranges come from ``cache``."""
    cache: Path | None
    """File of the calibration cache. It is read if it exists, and otherwise written after calibration."""
    held: Mapping[str, Precision] = field(default_factory=dict)
    """The precision in which the builder must run a node, by node name. The builder chooses the precisions of
    all other nodes."""

    @property
    def half(self) -> bool:
        """True, because the builder may choose FP16 for each layer that is not in INT8."""
        return True

    def holding(self, held: Mapping[str, Precision], cache: Path | None) -> ImplicitForm:
        """A copy with ranges from ``cache``, and with the nodes in ``held`` in the given precisions."""
        return replace(self, samples=None, cache=cache, held=held)


Form = ModelForm | EngineForm | ImplicitForm
