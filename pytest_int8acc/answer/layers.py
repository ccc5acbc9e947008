"""Measures the error of every group's output: with all groups in INT8, with one group alone, between engines.

With all groups in INT8, an output has the error of its own group and of all groups before it. With one group
alone in INT8, it has the error of this group only. Two models suffice, and each runs once: one with all
groups in INT8, and one in high precision in which each group has a second copy in INT8.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from pytest_int8acc.case.measured import Measured
from pytest_int8acc.data import Batch, Dataset
from pytest_int8acc.data.dataset import real_rows
from pytest_int8acc.errors import EngineError
from pytest_int8acc.graph.half_network import as_run
from pytest_int8acc.graph.instrument import with_quantized_twins
from pytest_int8acc.graph.network import Network, Precision
from pytest_int8acc.graph.plan import apply, with_outputs
from pytest_int8acc.observers.collect import CHUNK_BYTES, cut_batches, row_sizes
from pytest_int8acc.observers.edges import FirstSamples
from pytest_int8acc.results import LayerError, Role
from pytest_int8acc.runtime.onnxruntime import CPU, Sessions
from pytest_int8acc.scores.metrics import METRICS
from pytest_int8acc.scores.rows import AT, F64, errors, samples_in
from pytest_int8acc.tensors import Array, Feed

logger = logging.getLogger("pytest_int8acc")
#: Maximum number of nodes after a layer that an engine may fuse with the layer, such as bias,
#: BatchNormalization and activation.
_FUSED = 4
#: Maximum and minimum number of samples for errors of layers. More samples hardly change the errors.
SAMPLES, _LEAST = 8, 4
#: Maximum total size, in bytes, of tensors that are compared. Large networks therefore run fewer samples.
_BYTES = 1 << 30


def layer_errors(
    network: Network, rest: Precision, inputs: Dataset, sessions: Sessions = CPU, *, samples: int = SAMPLES
) -> tuple[LayerError, ...]:
    """The error of each group's output against the same network in high precision, in the groups' order.

    The output of a group is the first output of its last node. It comes before an activation function, a
    BatchNormalization or an Add that an engine fuses with the group.

    Args:
        network: The network of the unchanged candidate.
        rest: The precision of all nodes that are not quantized.
        inputs: The samples on which the case is judged.
        sessions: Opens the models.
        samples: Maximum number of samples, but at least one batch if the model has a fixed batch size.

    Raises:
        EngineError: A model does not run.
        DataError: The inputs cannot be read.
    """
    seen = as_run(network, rest)
    watched = outputs_of_groups(seen)
    plain, alone = with_quantized_twins(seen, watched)
    models = plain, with_outputs(apply(seen), watched.values())
    row = 3 * 4 * sum(row_sizes(seen.model, watched.values()).values())
    few = FirstSamples(inputs, network.model, min(samples, max(_LEAST, _BYTES // max(row, 1))))
    # Optimizing a model takes longer than running it a few times.
    engines = [sessions.exact(model, optimized=False) for model in models]
    del seen, plain, models  # the sessions have their own copies of the weights
    # For each group and batch: the sums of the error with all groups in INT8, and with this group alone.
    found: dict[str, tuple[list[F64], list[F64]]] = {name: ([], []) for name in watched}
    what = f"diagnosis: errors of {len(watched)} layers"
    for batch in cut_batches(few, what, network.model, row, CHUNK_BYTES):
        high, int8 = ({n: real_rows(a, batch) for n, a in engine(batch.feed).items()} for engine in engines)
        for name, tensor in watched.items():
            for rows, array in zip(found[name], (int8[tensor], high[alone[name]]), strict=True):
                rows.append(_rows(high[tensor], array))
    scores = {name: [score for rows in both for score in _scores(rows)] for name, both in found.items()}
    return tuple(LayerError(g.name, g.op_type, *scores[g.name]) for g in network.groups if g.name in scores)


def outputs_of_groups(network: Network) -> dict[str, str]:
    """The first output of each group's last node; groups in bodies of Loop, If and Scan are left out."""
    nodes, order = network.model.index.nodes, network.model.index.order
    found = {}
    for group in network.groups:
        if not group.is_inner:
            last = max((name for name in group.nodes if name in order), key=order.__getitem__)
            found[group.name] = nodes[last].output[0]
    return found


def _rows(baseline: Array, candidate: Array) -> F64:
    """The sums over each sample that SQNR and cosine need, [samples, sums]; nan if the shapes differ."""
    if baseline.shape != candidate.shape:
        return np.full((1, len(AT)), np.nan)
    return errors(baseline, candidate, samples_in(baseline))


def _scores(rows: Sequence[F64]) -> tuple[float, float]:
    """The SQNR, in dB, and the cosine of a tensor from the sums of ``_rows``; nan if they are undefined."""
    sums = np.concatenate(rows)
    return METRICS["sqnr_db"](sums), METRICS["cosine"](sums)


def engine_errors(
    measured: Measured, layers: Sequence[LayerError]
) -> tuple[tuple[LayerError, ...], tuple[str, ...]]:
    """The layers with their errors between engines on the first batch, and notes on how they were measured.

    TensorRT 10.12 and later, and TensorRT-RTX, show tensors between kernels as debug tensors, which does not
    change the engine. Older versions show a tensor only as an output, which prevents fusions. So only one
    tensor of each layer is asked for, the last that the engine may compute in the same kernel.
    """
    backend, forms = measured.backend, {Role.BASELINE: measured.reference, Role.INT8: measured.candidate}
    if measured.int8 is None or not all(map(backend.shows_tensors, forms.values())):
        return tuple(layers), ()
    batch, found, how = next(measured.inputs.batches()), dict[Role, Feed](), ""
    chains = _chains(measured.int8.network)
    inner_tensors_read = sorted({chain[-1] for chain in chains.values()})
    logger.info("%s: building engines that show their tensors", measured.case.name)
    try:
        for role, form in forms.items():
            found[role], how = backend.inner_tensors(
                form, role, measured.inputs, batch.feed, inner_tensors_read
            )
    except EngineError as error:  # these errors are not needed for the verdict
        return tuple(layers), (f"layers on engines: not compared: {error}",)
    compared = tuple(_compared(layer, chains.get(layer.layer, ()), found, batch) for layer in layers)
    count = sum(layer.engine_sqnr_db is not None for layer in compared)
    return compared, (f"layers on engines: {count} of {len(compared)} on {batch.rows} samples; {how}",)


def _chains(network: Network) -> dict[str, tuple[str, ...]]:
    """For each group, the tensors that an engine may compute in the kernel of the group, in order.

    These are the output of the group's last node, and outputs of nodes after it. Each of these nodes is the
    only reader of the tensor before it, and belongs to no group.
    """
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
    """``layer`` with its error between the two engines.

    The error is that of the first tensor in ``chain`` that both engines show in floating point.
    """
    for tensor in chain:
        pair = [found[role].get(tensor) for role in (Role.BASELINE, Role.INT8)]
        arrays = [real_rows(array, batch) for array in pair if array is not None and array.dtype.kind == "f"]
        if len(arrays) == 2:
            sqnr, cosine = _scores([_rows(*arrays)])
            return replace(layer, engine_sqnr_db=sqnr, engine_cosine=cosine)
    return layer
