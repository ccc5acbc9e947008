"""The training framework's outputs, from the file that a spec names under ``reference``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from pytest_int8acc.data.files import read_arrays
from pytest_int8acc.data.source import find
from pytest_int8acc.errors import DataError
from pytest_int8acc.graph.model import Model
from pytest_int8acc.scores.pairs import samples_in
from pytest_int8acc.spec.models import Case
from pytest_int8acc.tensors import Array, Outputs, did_you_mean


@dataclass(frozen=True, eq=False)
class Reference:
    """What a spec's ``reference`` holds."""

    where: str = ""
    """The file, for messages."""
    arrays: Mapping[str, Array] = field(default_factory=dict)
    """By output, samples first; none where the spec names no file."""

    def in_batches(self, like: Outputs) -> Outputs:
        """The arrays in the batches and dtypes of ``like``, the outputs of another form.

        Raises:
            DataError: An array is of another shape.
        """
        return {name: self._cut(name, arrays) for name, arrays in like.items() if name in self.arrays}

    def _cut(self, name: str, like: Sequence[Array]) -> list[Array]:
        array, expected = self.arrays[name], (sum(map(samples_in, like)), *like[0].shape[1:])
        if array.ndim == 0 or array.shape != expected:
            raise DataError(
                f"{self.where}: '{name}' has shape {array.shape}, the model gives {expected}: save the "
                "framework's outputs for the same samples, in the same order, samples first"
            )
        ends = np.cumsum([samples_in(a) for a in like])
        return [np.asarray(part, like[0].dtype) for part in np.split(array, ends[:-1])]


def read_reference(case: Case, model: Model) -> Reference:
    """The case's reference: a .npz of one array per output, or of some; or a .npy for one output.

    Raises:
        DataError: The file is not there or cannot be read, or an array is no output's.
    """
    if case.reference is None:
        return Reference()
    where = f"reference: {case.reference}"
    try:
        path = find(case.reference, case.path(""), where)
    except DataError as error:
        raise DataError(
            f"{error}; save the framework's outputs there (np.savez), or take 'reference' out of the spec"
        ) from error
    arrays, names = read_arrays(path, where), [output.name for output in model.outputs]
    if len(names) == 1 and len(arrays) == 1:
        return Reference(where, {names[0]: next(iter(arrays.values()))})
    for name in arrays:
        if name not in names:
            raise DataError(
                f"{where}: '{name}' is no output of the model{did_you_mean(name, names)}: {', '.join(names)}"
            )
    return Reference(where, arrays)
