"""Factors that even out the channels of activations against the weights that read them (SmoothQuant)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import numpy as np
from onnx import helper

from pytest_int8acc.data import Dataset
from pytest_int8acc.engines.onnxruntime import Sessions
from pytest_int8acc.engines.run import with_progress
from pytest_int8acc.graph.migrate import Site, sites, weight_maxima
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.network import Network
from pytest_int8acc.tensors import Array

#: How much of an activation's spread goes to the weights (0.5 is the paper's choice).
ALPHAS = (0.5, 0.75, 0.25)
#: An activation whose greatest channel does not exceed the median channel by this has nothing to migrate.
OUTLYING = 3.0
#: Factors end here, so that FP16 holds what they are folded into.
_GREATEST = 2.0**12


def outlying_sites(
    network: Network, tensors: Collection[str], dataset: Dataset, sessions: Sessions
) -> dict[str, tuple[Site, Array]]:
    """Those of ``tensors`` whose channels can be evened out and need it, with max|x| per channel.

    Args:
        network: Its float model is run.
        tensors: Activations.
        dataset: Samples; read once, not at all where there is no site.
        sessions: Where the model runs.

    Raises:
        EngineError: The model does not run.
        DataError: The samples cannot be read.
    """
    wanted = {tensor: site for tensor, site in sites(network).items() if tensor in tensors}
    if not wanted:
        return {}
    maxima = channel_maxima(network.model, wanted.values(), dataset, sessions)
    return {tensor: (wanted[tensor], found) for tensor, found in maxima.items() if _sticks_out(found)}


def _sticks_out(maxima: Array) -> bool:
    alive = maxima[maxima > 0]
    return bool(np.isfinite(maxima).all() and alive.size and alive.max() > OUTLYING * np.median(alive))


def channel_maxima(
    model: Model, wanted: Iterable[Site], dataset: Dataset, sessions: Sessions
) -> dict[str, Array]:
    """Greatest magnitude per channel of each site's activation, float32 [channels]."""
    edited, outputs = _maxima_model(model, wanted)
    engine = sessions.exact(edited)
    found: dict[str, Array] = {}
    for batch in with_progress(dataset, f"channels of {len(outputs)} activations"):
        results = engine(batch.feed)
        for tensor, name in outputs.items():
            maxima = results[name].astype(np.float32)
            found[tensor] = np.maximum(found.get(tensor, maxima), maxima)
    return found


def factors(activation: Array, weight: Array, alpha: float) -> Array:
    """What to divide channels by: max|x|^alpha / max|w|^(1 - alpha) (arXiv:2211.10438, eq. 4).

    Normalized to a geometric mean of 1; a channel that is always zero, or is not read, keeps a factor of 1.

    Args:
        activation: max|x| per channel, float32 [channels].
        weight: max|w| per channel, of all weights that read it.
        alpha: 0 to 1.
    """
    alive = (activation > 0) & (weight > 0)
    if not alive.any():
        return np.ones_like(activation)
    logs = alpha * np.log(activation, where=alive, out=np.zeros_like(activation))
    logs -= (1 - alpha) * np.log(weight, where=alive, out=np.zeros_like(activation))
    found = np.exp(np.where(alive, logs - logs[alive].mean(), 0.0))
    return np.clip(found, 1 / _GREATEST, _GREATEST).astype(np.float32)


def migration(network: Network, outlying: Mapping[str, tuple[Site, Array]], alpha: float) -> dict[str, Array]:
    """Factors of each outlying activation, for ``graph.migrate.migrate``."""
    return {
        tensor: factors(maxima, weight_maxima(network, site), alpha)
        for tensor, (site, maxima) in outlying.items()
    }


def _maxima_model(model: Model, wanted: Iterable[Site]) -> tuple[Model, dict[str, str]]:
    """A model that gives max|x| per channel of each site's activation, and its outputs by activation.

    Outputs have shape [channels] and the activation's type.
    """
    editor = model.edit()
    outputs: dict[str, str] = {}
    values = model.values()
    for site in wanted:
        absolute, rows, result = (editor.unique(f"{site.tensor}/{part}") for part in ("abs", "rows", "max"))
        editor.graph.node.append(helper.make_node("Abs", [site.tensor], [absolute]))
        axes = [0]
        if site.axis == 1:
            rows, axes = absolute, [i for i in range(site.rank) if i != 1]
        else:
            shape = editor.add_constant(f"{site.tensor}/shape", np.array([-1, site.channels], np.int64))
            editor.graph.node.append(helper.make_node("Reshape", [absolute, shape], [rows]))
        reduce = helper.make_node("ReduceMax", [rows], [result], keepdims=0)
        if model.opset < 18:  # axes are an attribute before
            reduce.attribute.append(helper.make_attribute("axes", axes))
        else:
            reduce.input.append(editor.add_constant(f"{site.tensor}/axes", np.array(axes, np.int64)))
        editor.graph.node.append(reduce)
        outputs[site.tensor] = result
    del editor.graph.output[:]
    for tensor, name in outputs.items():
        info = values.get(tensor)
        kind = helper.np_dtype_to_tensor_dtype(info.dtype if info else np.dtype(np.float32))
        editor.graph.output.append(helper.make_tensor_value_info(name, kind, None))
    return editor.done(), outputs
