"""Precision asked for against precision realized, by share of the multiply-accumulates; engine criteria."""

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
    LayerShare,
    OutputResult,
    PrecisionContract,
    Role,
    Score,
)
from pytest_int8acc.results.engines import Kind
from pytest_int8acc.results.precision import AskedBy, Realized
from pytest_int8acc.runtime.forms import Form, ImplicitForm
from pytest_int8acc.runtime.onnxruntime import Sessions
from pytest_int8acc.runtime.protocol import Backend
from pytest_int8acc.runtime.trt.inspector import node_formats
from pytest_int8acc.spec.criteria import EngineCriterion
from pytest_int8acc.spec.models import Case

#: Minimum share of the MACs that a Q/DQ file or a file of scales asks for in INT8. Less is a warning.
_LEAST_OF_FILES = 0.5
#: Minimum share of the MACs in INT8 after our own calibration, which leaves out only layers that the spec or
#: TensorRT excludes. Less is a warning.
_LEAST = 0.05
#: Greatest number of layers that are named.
_NAMED = 5
#: A share below this is a rounding error of sums.
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
    """The formats that were asked for and those that ran; None where the model has no multiply-accumulates.

    Args:
        case: Says what becomes of another format.
        backend: Its INT8 engine, where it builds one, tells what ran.
        int8: None for an engine that was built already, of which nothing is known to have been asked for.
        candidate: What was compared with the baseline.
        inputs: Their shapes tell what a node costs.
        sessions: Where the model runs once, if its shapes are not known otherwise.
        outputs: The outputs compared: where they are the baseline's bit for bit, no lower format ran.
        zero: Outputs that are zero in all samples, which prove nothing.

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
    contract = PrecisionContract(
        low=(INT8 if int8 is None else int8.low).name,
        source=_source(case, int8, candidate),
        policy=_policy(case, candidate),
        asked={} if int8 is None else _asked(int8, shares, low),
        left_out=left_out[:_NAMED],
        left_out_count=len(left_out),
        least_share=_least_share(case, int8),
        can_obey=backend.can_obey,
        obeyed=backend.builds_engines and case.tensorrt.obey,
    )
    engine = next((info for info in backend.engines if info.role == Role.INT8), None)
    identical = _are_identical(output for output in outputs if output.output not in zero)
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
    """The contract with the formats that an engine ran; ``identical``: outputs equal the baseline's."""
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
    if identical:  # any rounding to a lower format would have changed them
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


def engine_scores(
    case: Case, backend: Backend, contract: PrecisionContract | None
) -> tuple[tuple[Score, ...], tuple[str, ...]]:
    """Scores of the case's engine criteria, and warnings of those that cannot be judged.

    Without a criterion, the share of INT8 and the speedup are reported all the same where they are known.
    """
    limits: dict[str, float] = {}
    for criterion in case.criteria:
        if isinstance(criterion, EngineCriterion):
            limits |= criterion.model_dump(exclude_none=True)
    share = limits.pop("int8_share", None)
    scores = () if share is None else (_share_score(contract, share),)
    if backend.builds_engines:
        return (*scores, *_scores({info.role: info for info in backend.engines}, limits)), ()
    said = f"{', '.join(limits)} not judged: ONNX Runtime builds no engine (backend: tensorrt does)"
    return scores, (said,) if limits else ()


def _scores(engines: dict[Role, EngineInfo], limits: Mapping[str, float]) -> tuple[Score, ...]:
    int8, baseline = engines.get(Role.INT8), engines.get(Role.BASELINE)
    scores = []
    if int8 is not None and (int8.weighted or "int8_layers" in limits):
        scores.append(_share(int8, limits.get("int8_layers")))
    if int8 is not None and baseline is not None and int8.latency and baseline.latency:
        fast, slow = int8.latency, baseline.latency
        spread = slow.high_ms / max(fast.low_ms, 1e-9) - slow.low_ms / max(fast.high_ms, 1e-9)
        speedup = slow.median_ms / max(fast.median_ms, 1e-9)
        note = f"{slow.median_ms:.3g} ms to {fast.median_ms:.3g} ms; spread {spread / 2:.2g}"
        scores.append(Score("engine", "speedup", speedup, limits.get("speedup"), note=note))
    elif "speedup" in limits:
        scores.append(Score("engine", "speedup", float("nan"), limits["speedup"], note="no latency known"))
    return tuple(scores)


def _share(engine: EngineInfo, limit: float | None) -> Score:
    """The share of layers in INT8; nan for a limit between the least and the greatest possible share."""
    least, most = engine.int8_share
    if not engine.untold:
        note = "" if engine.weighted else "the engine does not tell its layers"
        return Score("engine", "int8_layers", least, limit, note=note)
    every = engine.weighted + engine.untold
    note = f"of {engine.untold} of {every} layers, in fused regions, TensorRT does not tell the precision"
    if limit is None or limit <= least:
        return Score("engine", "int8_layers", least, limit, note=f"at least; {note}")
    if most < limit:
        return Score("engine", "int8_layers", most, limit, note=f"at most; {note}")
    return Score(
        "engine", "int8_layers", float("nan"), limit, note=f"{note}: between {least:.2g} and {most:.2g}"
    )


def _share_score(contract: PrecisionContract | None, limit: float) -> Score:
    """The share of the multiply-accumulates in INT8: realized by an engine, else as asked for.

    A limit between the least and the most that an engine may have run in INT8 is not judged: nan.
    """
    if contract is None:
        return Score("model", "int8_share", math.nan, limit, note="the model multiplies nothing")
    if contract.realized is None:
        return Score("model", "int8_share", contract.asked.get(INT8.name, 0.0), limit, note="as asked for")
    least = contract.realized.get(INT8.name, 0.0)
    most = max(1.0 - math.fsum(contract.realized.values()), 0.0) + least
    untold = most - least
    if untold < _ROUNDING:
        return Score("engine", "int8_share", least, limit)
    note = f"TensorRT does not tell the precision of {100 * untold:.2g} % of the multiply-accumulates"
    if limit <= least:
        return Score("engine", "int8_share", least, limit, note=f"at least; {note}")
    if most < limit:
        return Score("engine", "int8_share", most, limit, note=f"at most; {note}")
    return Score("engine", "int8_share", math.nan, limit, note=f"{note}: between {least:.2g} and {most:.2g}")


def _asked(int8: Int8Form, shares: Mapping[str, float], low: Collection[str]) -> dict[str, float]:
    """Format to the share of the work that is asked for in it, the case's own format first."""
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


def _source(case: Case, int8: Int8Form | None, candidate: Form) -> AskedBy:
    if case.candidate is not None:
        return "candidate"
    if isinstance(candidate, ImplicitForm):
        return "implicit"
    if int8 is None:
        return "engine"
    return "file" if _has_file(case) else "calibration"


def _has_file(case: Case) -> bool:
    """Whether Q/DQ or scales come from a file."""
    return case.candidate is None and (case.source.model is not None or case.source.scales is not None)


def _policy(case: Case, candidate: Form) -> Realized:
    """The spec's policy; by default another format is a fault, unless TensorRT itself quantizes."""
    if case.realized is not None:
        return case.realized
    return "warn" if isinstance(candidate, ImplicitForm) else "require"


def _least_share(case: Case, int8: Int8Form | None) -> float:
    """The share below which a case asks for too little in INT8; 0 where the spec chose what is left out."""
    chosen = any(isinstance(c, EngineCriterion) and c.int8_share is not None for c in case.criteria)
    if int8 is None or int8.is_own_fix or case.plan is not None or chosen:
        return 0.0
    return _LEAST_OF_FILES if _has_file(case) else _LEAST


def _are_identical(outputs: Iterable[OutputResult]) -> bool:
    """Whether there are floating outputs, and all are the baseline's bit for bit."""
    sqnr = [s.value for output in outputs for s in output.scores if s.metric == "sqnr_db"]
    return bool(sqnr) and all(value == math.inf for value in sqnr)


def _sum(shares: Mapping[str, float], nodes: Iterable[str]) -> float:
    return math.fsum(shares[node] for node in nodes)


def _largest(
    shares: Mapping[str, float],
    nodes: Iterable[str],
    names: Mapping[str, str],
    ran: Mapping[str, Kind] | None = None,
) -> tuple[LayerShare, ...]:
    """The layers of these nodes, the largest first; ``names`` has the names of nodes in bodies."""
    ordered = sorted(nodes, key=lambda node: (-shares[node], node))
    return tuple(LayerShare(names.get(node, node), shares[node], (ran or {}).get(node)) for node in ordered)
