"""The error of every group's output between engines, a baseline and an INT8 one, that show their tensors.

From TensorRT 10.12 on, and in TensorRT-RTX, tensors that no kernel swallows are had as debug tensors, and the
engine stays as it was. Older ones show a tensor only as an output, which breaks fusions up; so only the last
tensor of each layer is asked for.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from pytest_int8acc.data import Batch
from pytest_int8acc.data.dataset import real_rows
from pytest_int8acc.diagnose.layers import errors_between, outputs_of_groups
from pytest_int8acc.errors import EngineError
from pytest_int8acc.graph.network import Network
from pytest_int8acc.measure.measured import Measured
from pytest_int8acc.results import LayerError, Role
from pytest_int8acc.tensors import Feed

logger = logging.getLogger("pytest_int8acc")
#: Nodes behind a layer that an engine may fuse with it: bias, BatchNormalization, activation.
_FUSED = 4


def engine_errors(
    measured: Measured, layers: Sequence[LayerError]
) -> tuple[tuple[LayerError, ...], tuple[str, ...]]:
    """``layers`` with their errors between engines on the first batch, and how they were had, in words.

    Where an engine fuses a layer with the nodes behind it, what the last of them gives is compared.

    Args:
        measured: From ``measure``.
        layers: From ``layer_errors``.
    """
    backend, forms = measured.backend, {Role.BASELINE: measured.reference, Role.INT8: measured.candidate}
    if measured.int8 is None or not all(map(backend.shows_tensors, forms.values())):
        return tuple(layers), ()
    batch, found, how = next(measured.inputs.batches()), dict[Role, Feed](), ""
    chains = _chains(measured.int8.network)
    wanted = sorted({chain[-1] for chain in chains.values()})
    logger.info("%s: building engines that show their tensors", measured.case.name)
    try:
        for role, form in forms.items():
            found[role], how = backend.inner_tensors(form, role, measured.inputs, batch.feed, wanted)
    except EngineError as error:  # the verdict stands without them
        return tuple(layers), (f"layers on engines: not compared: {error}",)
    compared = tuple(_compared(layer, chains.get(layer.layer, ()), found, batch) for layer in layers)
    count = sum(layer.engine_sqnr_db is not None for layer in compared)
    return compared, (f"layers on engines: {count} of {len(compared)} on {batch.rows} samples; {how}",)


def _chains(network: Network) -> dict[str, tuple[str, ...]]:
    """Group to the output of its last node, and those of nodes behind it: only readers, and in no group."""
    index = network.model.index
    grouped = {node for group in network.groups for node in group.nodes}

    def behind(tensor: str) -> Iterator[str]:
        for _ in range(_FUSED + 1):
            yield tensor
            after = index.only_reader(tensor)
            if after is None or len(after.output) != 1 or after.name in grouped:
                return
            tensor = after.output[0]

    return {group: tuple(behind(tensor)) for group, tensor in outputs_of_groups(network).items()}


def _compared(
    layer: LayerError, chain: Sequence[str], found: Mapping[Role, Feed], batch: Batch
) -> LayerError:
    """``layer`` with the error of the first tensor of ``chain`` that both engines show in floating point."""
    for tensor in chain:
        pair = [found[role].get(tensor) for role in (Role.BASELINE, Role.INT8)]
        arrays = [real_rows(array, batch) for array in pair if array is not None and array.dtype.kind == "f"]
        if len(arrays) == 2:
            sqnr, cosine = errors_between(arrays[:1], arrays[1:])
            return replace(layer, engine_sqnr_db=sqnr, engine_cosine=cosine)
    return layer
