"""Compares the requested precision of layers with the precision in which they ran; judges engine criteria.

Precisions are given as shares of the model's multiply-accumulates (MACs).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from pytest_int8acc.case.forms import Int8Form
from pytest_int8acc.case.shapes import macs_of
from pytest_int8acc.data import Dataset
from pytest_int8acc.graph.formats import INT8
from pytest_int8acc.graph.index import body_names
from pytest_int8acc.graph.macs import low_products
from pytest_int8acc.results import (
    EngineInfo,
    EngineLayer,
    Latency,
    LayerShare,
    OutputResult,
    PrecisionContract,
    Role,
    Score,
)
from pytest_int8acc.results.engines import Kind
from pytest_int8acc.results.precision import AskedBy
from pytest_int8acc.runtime.forms import Form, ImplicitForm
from pytest_int8acc.runtime.onnxruntime import Sessions
from pytest_int8acc.runtime.protocol import Backend
from pytest_int8acc.spec.criteria import EngineCriterion
from pytest_int8acc.spec.models import Case

#: If a Q/DQ model or a file of scales requests INT8 for less than this share of the MACs, a warning is shown.
_LEAST_OF_FILES = 0.5
#: If a calibration by this plugin leaves less than this share of the MACs in INT8, a warning is shown. The
#: calibration leaves out only layers that the spec or TensorRT excludes.
_LEAST = 0.05
#: Maximum number of layers that a report names in one list.
_NAMED = 5
#: A share of MACs below this number is a rounding error of sums, and counts as 0.
_ROUNDING = 1e-9


def precision_contract(
    case: Case,
    backend: Backend,
    int8: Int8Form | None,
    candidate: Form,
    inputs: Dataset,
    sessions: Sessions,
    outputs: Sequence[OutputResult],
    zero: Collection[str] = (),
) -> PrecisionContract | None:
    """The formats that the case requests and the formats that ran; None for a model without MACs.

    Args:
        case: The case. Its spec says whether it is an error if another format ran.
        backend: The backend. If it builds engines, it knows the formats that ran.
        int8: The quantized network; None for an engine that was built beforehand.
        candidate: The candidate that was compared with the baseline.
        inputs: The inputs. The number of MACs depends on their shapes.
        sessions: Opens the model for one run if shape inference fails.
        outputs: The judged outputs. If they equal the baseline's bit for bit, no lower format ran.
        zero: The outputs that are 0 in all samples. They do not show which format ran.

    Raises:
        DataError: The inputs cannot be read.
    """
    model = candidate.model if int8 is None else int8.network.model
    macs = {node: count for node, count in macs_of(model, inputs, sessions).items() if count}
    total = sum(macs.values())
    if not total:
        return None
    shares = {node: count / total for node, count in macs.items()}
    low = low_products(int8.network) & shares.keys() if int8 is not None else frozenset[str]()
    names = body_names(model.graph)
    left_out = _largest(shares, shares.keys() - low, names) if int8 is not None else ()
    implicit, policy = isinstance(candidate, ImplicitForm), case.realized
    if policy is None:
        policy = "warn" if implicit else "require"
    source = _source(case, int8, implicit=implicit)
    contract = PrecisionContract(
        low=(INT8 if int8 is None else int8.low).name,
        source=source,
        policy=policy,
        asked={} if int8 is None else _asked(int8, shares, low),
        left_out=left_out[:_NAMED],
        left_out_count=len(left_out),
        least_share=_least_share(case, int8, source),
        can_obey=backend.can_obey,
        obeyed=backend.builds_engines and case.tensorrt.obey,
    )
    engine = next((info for info in backend.engines if info.role == Role.INT8), None)
    compared = [output for output in outputs if output.output not in zero]
    sqnr = [s.value for output in compared for s in output.scores if s.metric == "sqnr_db"]
    identical = bool(sqnr) and all(value == math.inf for value in sqnr)
    if engine is None:
        return replace(contract, identical=identical and bool(low))
    return _with_engine(contract, engine, shares, low, names, identical=identical)


def _with_engine(
    contract: PrecisionContract,
    engine: EngineInfo,
    shares: Mapping[str, float],
    low: frozenset[str],
    names: Mapping[str, str],
    *,
    identical: bool,
) -> PrecisionContract:
    """``contract`` with the formats in which the layers of an engine ran.

    Args:
        contract: The formats that the case requests.
        engine: The engine of the candidate.
        shares: Each node's share of the MACs, by node name.
        low: The nodes that the case requests in the low format.
        names: For each node in a body of Loop, If or Scan, its name in reports.
        identical: Whether all outputs equal the baseline's bit for bit.
    """
    formats = node_formats(engine.layers, shares.keys())
    ran: dict[str, float] = {}
    for format in formats.values():
        ran[format] = _sum(shares, [node for node, own in formats.items() if own == format])
    contract = replace(contract, realized=dict(sorted(ran.items(), key=lambda item: -item[1])))
    if not low:
        return contract
    proven = [node for node in low if formats.get(node) == contract.low]
    refuted = [node for node in low if formats.get(node, contract.low) != contract.low]
    identical = identical and not proven
    if identical:  # rounding to the low format would have changed the outputs
        refuted = list(low)
    asked = _sum(shares, low)
    misplaced = _largest(shares, refuted, names, formats)
    return replace(
        contract,
        proven=_sum(shares, proven) / asked,
        refuted=_sum(shares, refuted) / asked,
        untold=_sum(shares, low - {*proven, *refuted}) / asked,
        identical=identical,
        misplaced=misplaced[:_NAMED],
        misplaced_count=len(misplaced),
    )


def node_formats(layers: Iterable[EngineLayer], products: Collection[str]) -> dict[str, Kind]:
    """The format in which each convolution or matrix product provably ran, by name; others are left out.

    A format is not proved if the precision of a layer is in doubt, or if the layers of a product have
    different precisions. A fused region with a single product is a proof, because the name of its kernel then
    belongs to that product.

    Args:
        layers: The layers of the model's engine.
        products: Names of the model's convolutions and matrix products.
    """
    known = frozenset(products)
    found: dict[str, set[Kind]] = {}
    for layer in layers:
        if layer.kind != "weighted":
            continue
        named = known.intersection(layer.nodes)
        unclear = layer.doubt == "contradiction" or (layer.doubt == "region" and len(named) > 1)
        for node in named:
            found.setdefault(node, set()).add("other" if unclear else layer.precision)
    proven = {node: next(iter(formats)) for node, formats in found.items() if len(formats) == 1}
    return {node: format for node, format in proven.items() if format != "other"}


def engine_limits(case: Case) -> dict[str, float]:
    """The limits of the case's engine criteria, by metric."""
    limits: dict[str, float] = {}
    for criterion in case.criteria:
        if isinstance(criterion, EngineCriterion):
            limits |= criterion.model_dump(exclude_none=True)
    return limits


def engine_scores(
    case: Case, backend: Backend, contract: PrecisionContract | None
) -> tuple[tuple[Score, ...], tuple[str, ...]]:
    """The scores of the case's engine criteria, and warnings on criteria that cannot be judged.

    The share of layers in INT8 and the speedup of an engine are also reported without a criterion.
    """
    limits = engine_limits(case)
    share = limits.pop("int8_share", None)
    scores = [] if share is None else [_work_share(contract, share)]
    if not backend.builds_engines:
        said = f"{', '.join(limits)} not judged: ONNX Runtime builds no engine (backend: tensorrt does)"
        warnings = [said] if limits else []
        if case.search.goal == "latency":
            warnings.append("no faster plan is searched: ONNX Runtime builds no engine that could be timed")
        return tuple(scores), tuple(warnings)
    engines = {info.role: info for info in backend.engines}
    int8, baseline = engines.get(Role.INT8), engines.get(Role.BASELINE)
    if int8 is not None and (int8.weighted or "int8_layers" in limits):
        scores.append(_layer_share(int8, limits.get("int8_layers")))
    if int8 is not None and baseline is not None and int8.latency and baseline.latency:
        scores.append(speedup_score(baseline.latency, int8.latency, limits.get("speedup")))
    elif "speedup" in limits:
        scores.append(Score("engine", "speedup", math.nan, limits["speedup"], note="no latency known"))
    return tuple(scores), ()


def speedup_score(slow: Latency, fast: Latency, limit: float | None) -> Score:
    """The score of a speedup: the latency ``slow`` of one engine divided by that of another, ``fast``."""
    spread = slow.high_ms / max(fast.low_ms, 1e-9) - slow.low_ms / max(fast.high_ms, 1e-9)
    speedup = slow.median_ms / max(fast.median_ms, 1e-9)
    note = f"{slow.median_ms:.3g} ms to {fast.median_ms:.3g} ms; spread {spread / 2:.2g}"
    return Score("engine", "speedup", speedup, limit, note=note)


def _layer_share(engine: EngineInfo, limit: float | None) -> Score:
    """The score of the share of an engine's layers that run in INT8."""
    least, most = engine.int8_share
    if not engine.untold:
        note = "" if engine.weighted else "the engine does not tell its layers"
        return Score("engine", "int8_layers", least, limit, note=note)
    every = engine.weighted + engine.untold
    note = f"of {engine.untold} of {every} layers, in fused regions, TensorRT does not tell the precision"
    return _share_between("int8_layers", least, most, limit, note)


def _share_between(metric: str, least: float, most: float, limit: float | None, note: str) -> Score:
    """The score of a share that is only known to lie between ``least`` and ``most``.

    The score is nan if the limit lies between them.
    """
    if limit is None or limit <= least:
        return Score("engine", metric, least, limit, note=f"at least; {note}")
    if most < limit:
        return Score("engine", metric, most, limit, note=f"at most; {note}")
    return Score("engine", metric, math.nan, limit, note=f"{note}: between {least:.2g} and {most:.2g}")


def _work_share(contract: PrecisionContract | None, limit: float) -> Score:
    """The score of the share of MACs that an engine ran in INT8.

    Without an engine it is the share that the case requests in INT8.
    """
    if contract is None:
        return Score("model", "int8_share", math.nan, limit, note="the model multiplies nothing")
    if contract.realized is None:
        return Score("model", "int8_share", contract.asked.get(INT8.name, 0.0), limit, note="as asked for")
    least = contract.realized.get(INT8.name, 0.0)
    untold = 1.0 - math.fsum(contract.realized.values())
    if untold < _ROUNDING:
        return Score("engine", "int8_share", least, limit)
    note = f"TensorRT does not tell the precision of {100 * untold:.2g} % of the multiply-accumulates"
    return _share_between("int8_share", least, least + untold, limit, note)


def _asked(int8: Int8Form, shares: Mapping[str, float], low: Collection[str]) -> dict[str, float]:
    """The share of the MACs that the case requests in each format, the low format first."""
    high = int8.complete().high
    kept: dict[str, str] = {}
    for group in int8.every.groups:
        if group.name in high:
            kept.update(dict.fromkeys(group.nodes, high[group.name]))
    found = {int8.low.name: _sum(shares, low)}
    for node, share in shares.items():
        if node not in low:
            format = kept.get(node, int8.rest)
            found[format] = found.get(format, 0.0) + share
    return found


def _source(case: Case, int8: Int8Form | None, *, implicit: bool) -> AskedBy:
    if case.candidate is not None:
        return "candidate"
    if implicit:
        return "implicit"
    if int8 is None:
        return "engine"
    from_file = case.source.model is not None or case.source.scales is not None
    return "file" if from_file else "calibration"


def _least_share(case: Case, int8: Int8Form | None, source: AskedBy) -> float:
    """The share of MACs in INT8 below which a warning is shown; 0 if the spec itself chose the layers."""
    chosen = any(isinstance(c, EngineCriterion) and c.int8_share is not None for c in case.criteria)
    if int8 is None or int8.is_own_fix or case.plan is not None or chosen:
        return 0.0
    return _LEAST_OF_FILES if source == "file" else _LEAST


def _sum(shares: Mapping[str, float], nodes: Iterable[str]) -> float:
    return math.fsum(shares[node] for node in nodes)


def _largest(
    shares: Mapping[str, float],
    nodes: Iterable[str],
    names: Mapping[str, str],
    ran: Mapping[str, Kind] | None = None,
) -> tuple[LayerShare, ...]:
    """The layers of ``nodes`` with their shares and the formats in ``ran``, the largest share first."""
    ordered = sorted(nodes, key=lambda node: (-shares[node], node))
    return tuple(LayerShare(names.get(node, node), shares[node], (ran or {}).get(node)) for node in ordered)
