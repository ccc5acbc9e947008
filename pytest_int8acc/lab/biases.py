"""Bias correction: biases that make up for the mean error that quantization gives each output channel."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import onnx

from pytest_int8acc.data import Dataset
from pytest_int8acc.data.dataset import real_rows
from pytest_int8acc.graph.index import Index
from pytest_int8acc.graph.instrument import with_quantized_twins
from pytest_int8acc.graph.layout import WEIGHTED
from pytest_int8acc.graph.network import Network
from pytest_int8acc.observers.collect import CHUNK_BYTES, cut_batches, row_sizes
from pytest_int8acc.runtime.onnxruntime import Sessions
from pytest_int8acc.tensors import Array


def biases_of(network: Network, groups: Iterable[str] | None = None) -> dict[str, str]:
    """For each group of layers, the name of the bias of its convolution or matrix product.

    Groups without such a bias are left out.

    Args:
        network: The network.
        groups: The names of the groups; None for all groups.
    """
    index, constants = network.model.everywhere, network.model.constants()
    chosen = None if groups is None else set(groups)
    found = {}
    for group in network.groups:
        node = index.nodes[group.nodes[0]]
        if node.op_type not in WEIGHTED or (chosen is not None and group.name not in chosen):
            continue
        name = _bias(node, index)
        if name in constants and constants[name].ndim == 1 and index.only_reader(name) is not None:
            found[group.name] = name
    return found


def _bias(node: onnx.NodeProto, index: Index) -> str:
    """The name of the constant that is added to the products of a layer; empty if there is none."""
    if len(node.input) > 2:
        return str(node.input[2])
    add = index.only_reader(node.output[0]) if node.op_type == "MatMul" else None
    if add is None or add.op_type != "Add":
        return ""
    return next((str(name) for name in add.input if name in index.constants), "")


def corrections(
    network: Network, groups: Iterable[str], dataset: Dataset, sessions: Sessions
) -> Mapping[str, Array]:
    """Maps the name of the bias of each group to corrected values, float32 [channels].

    The mean error of each output channel is subtracted from the bias. This is the bias correction of Nagel
    and others (2019, arXiv:1906.04721), with means over data. For the measurement each group is quantized
    alone.

    Args:
        network: The network in FP32, with the quantization whose errors are corrected.
        groups: The names of the groups. Groups without a bias are left out.
        dataset: The samples over which errors are averaged.
        sessions: Opens the model.

    Raises:
        EngineError: The model does not run.
        DataError: The samples cannot be read.
    """
    biases, nodes = biases_of(network, groups), network.model.everywhere.nodes
    if not biases:
        return {}
    layers = {group.name: nodes[group.nodes[0]] for group in network.groups if group.name in biases}
    inner = {group.name for group in network.groups if group.is_inner}
    watched = {group: str(node.output[0]) for group, node in layers.items()}
    model, alone = with_quantized_twins(network, watched)
    engine = sessions.exact(model, optimized=False)
    row = 2 * sum(row_sizes(network.model, watched.values()).values())
    sums: dict[str, Array] = {}
    counts = dict.fromkeys(watched, 0)
    for batch in cut_batches(dataset, "mean errors of layers", network.model, row, CHUNK_BYTES):
        outputs = engine(batch.feed)
        for group, tensor in watched.items():
            low, high = (real_rows(outputs[name], batch) for name in (alone[group], tensor))
            if group in inner:  # a row of zeros holds no values, see with_inner_tensors
                if high.ndim < 2 or low.shape != high.shape:
                    continue  # the channels are not known, or those of the layer that reads the result
                low, high = low[high.any(axis=-1)], high[high.any(axis=-1)]
            is_image = layers[group].op_type.startswith("Conv") and group not in inner
            axis = 1 if is_image else low.ndim - 1
            others = tuple(i for i in range(low.ndim) if i != axis)
            sums[group] = sums.get(group, 0.0) + (low - high).sum(axis=others, dtype=np.float64)
            counts[group] += low.size // low.shape[axis]
    constants = network.model.constants()
    return {
        name: (constants[name] - sums[group] / max(counts[group], 1)).astype(np.float32)
        for group, name in biases.items()
        if group in sums and np.isfinite(sums[group]).all() and sums[group].shape == constants[name].shape
    }
