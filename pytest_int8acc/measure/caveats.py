"""What to doubt: the Q/DQ, the scales, the data, what FP16 cannot compute; and what a verdict is worth."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
import onnx

from pytest_int8acc.case.data import calibration_data, low_of
from pytest_int8acc.case.forms import Int8Form
from pytest_int8acc.case.judge import Judge, Scoring
from pytest_int8acc.data import Dataset
from pytest_int8acc.data.preprocessing import compare_inputs, sample_arrays
from pytest_int8acc.errors import ModelError, blaming, listed
from pytest_int8acc.graph.formats import FP16
from pytest_int8acc.graph.index import bodies
from pytest_int8acc.graph.lint import lint, lint_scales
from pytest_int8acc.graph.lint.rules import find
from pytest_int8acc.graph.load import read_model
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.qdq import check_formats
from pytest_int8acc.measure.precision import int8_share_score
from pytest_int8acc.measure.runs import Runs
from pytest_int8acc.observers.collect import collect_maxima
from pytest_int8acc.results import (
    EngineInfo,
    Finding,
    OutputResult,
    PrecisionContract,
    Role,
    Score,
    by_rule,
)
from pytest_int8acc.runtime.forms import Form, ModelForm
from pytest_int8acc.runtime.onnxruntime import Sessions, saturation
from pytest_int8acc.runtime.protocol import Backend
from pytest_int8acc.runtime.run import lock_step
from pytest_int8acc.runtime.trt.parse import refusal
from pytest_int8acc.scores.user_metric import MetricRun
from pytest_int8acc.settings import Settings
from pytest_int8acc.spec.criteria import EngineCriterion, MetricCriterion
from pytest_int8acc.spec.models import Case
from pytest_int8acc.tensors import Feed

#: Tensors beyond FP16 that an error tells, and that are tried at most.
_TOLD, _TRIED = 3, 16


def lint_model(case: Case, model: Model, settings: Settings, parses: bool) -> tuple[Finding, ...]:
    """What lint says of the case's own Q/DQ model, read as it is in the file; nothing where it has none.

    Where ``parses``, and lint finds no error, TensorRT-RTX's parser is asked too, if it is installed.

    Raises ModelError where the settings make an error of what TensorRT rejects; or the file cannot be read,
    or is quantized to other formats than INT8 alone.
    """
    if settings.lint == "off" or case.source.model is None:
        return ()
    with case.at(f"{case.source.where}.model"):
        path = case.path(case.source.model)
        given = read_model(path)
        check_formats(given, low_of(case))
        found = lint(given, float_model=model)
        if parses and not case.tensorrt.plugins and not _errors(found):
            found += _not_parsed(path)
        return _judged(case.source.model, found, settings)


def lint_network(case: Case, int8: Int8Form | None, settings: Settings) -> tuple[Finding, ...]:
    """What lint says of scales from a file; a network read from a Q/DQ model has been linted as that.

    Raises ModelError where the settings make an error of what TensorRT rejects.
    """
    if settings.lint == "off" or int8 is None or case.source.model is not None:
        return ()
    with case.at(f"{case.source.where}.scales"):
        return _judged(case.model, lint_scales(int8.network), settings)


def _not_parsed(path: Path) -> tuple[Finding, ...]:
    """What TensorRT-RTX's parser says against a model; nothing where it takes it, or is not installed."""
    parse_error = refusal(path)
    if parse_error is None:
        return ()
    return (find("not-parsed", parse_error.node or path.name, f"TensorRT-RTX says: {parse_error.message}"),)


def compare_data(case: Case, model: Model, inputs: Dataset) -> tuple[Finding, ...]:
    """How the calibration samples differ from the inputs that are compared; nothing where they are one."""
    samples = calibration_data(case, model)
    if samples is None:
        return ()
    return compare_inputs(sample_arrays(samples, model.inputs), sample_arrays(inputs, model.inputs))


def _errors(found: Iterable[Finding]) -> list[Finding]:
    return [finding for finding in found if finding.severity == "error"]


def _judged(name: str, found: tuple[Finding, ...], settings: Settings) -> tuple[Finding, ...]:
    groups = by_rule(_errors(found))
    refused = settings.lint == "error" or (settings.lint == "auto" and settings.backend != "onnxruntime")
    if not (refused and groups):
        return found
    counts = [f"{group[0].rule} ({len(group)} node{'s' * (len(group) > 1)})" for group in groups]
    lines = [f"{name}: TensorRT refuses this model: {', '.join(counts)}; nothing was compared"]
    for first, *_ in groups:
        lines += [f"  {first.rule}, as at '{first.subject}': {first.text}", f"    {first.remedy}"]
    if settings.lint == "auto":
        lines.append("Where ONNX Runtime alone runs it, say 'backend: onnxruntime' in the spec.")
    lines.append("To compare it all the same, set int8acc_lint = warn in the pytest configuration.")
    raise ModelError("\n".join(lines))


def compared(judge: Judge, place: str, batches: Iterable[Mapping[Role, Feed]]) -> Runs:
    """FP32 and the baseline compared, by the limits on outputs alone, which stand at ``place``."""
    scoring = Scoring(judge, judged_only=True)
    runs = Runs("", (), judge, lambda _: iter(()), {(Role.FP32, Role.BASELINE): scoring})
    for found in batches:
        with blaming(place):
            scoring.add(found[Role.FP32], found[Role.BASELINE], 0)
        for role in (Role.FP32, Role.BASELINE):
            runs.look(role, found[role])
    return runs


def lost_by_baseline(runs: Runs) -> list[Score]:
    """Limits of the case that the baseline itself misses against FP32."""
    compared = runs.scorings.get((Role.FP32, Role.BASELINE))
    outputs = compared.outputs.results() if compared else ()
    return [score for output in outputs for score in output.scores if not score.passed]


def refuse_overflow(
    lost: Sequence[Score], runs: Runs, model: Model, baseline: Form, inputs: Dataset, sessions: Sessions
) -> None:
    """Raise ModelError, naming the tensors at fault, where FP16 gives inf, or 0 alone, and is lost by it.

    An inf need not reach an output: one that is divided by gives 0, in the baseline and in INT8 alike.
    """
    fp32 = Role.FP32 in runs.roles
    bad = sorted(runs.broken[Role.BASELINE] - runs.broken[Role.FP32]) if fp32 else []
    gone = [
        f"output '{name}' is 0 in all samples, and not in FP32"
        for name in sorted(runs.zero[Role.BASELINE] - runs.zero[Role.FP32] if fp32 else ())
    ]
    if not baseline.half or not (bad or lost or gone):
        return
    known = baseline.overflows if isinstance(baseline, ModelForm) else ()
    beyond = _overflowing(model, inputs, sessions)
    harmful = _harmful(model, list(beyond), runs.judge, inputs, sessions)
    where = [*known, *(beyond[tensor] for tensor in harmful or beyond)]
    if bad or where or gone:
        lacking = gone or [f"'{s.subject}' misses its {s.metric} against FP32" for s in lost]
        worst = f"output '{bad[0]}' is not finite" if bad else lacking[0]
        how, remedy = "an overflow", f"keep these values below {FP16.highest:g}"
        if not where:
            where = [*_vanishing(model), *_broken(baseline.model, inputs, sessions)]
            how, remedy = "numbers too small for FP16", "keep them above 6e-8"
        raise ModelError(
            f"{model.name}: in FP16 {worst}, by {how} inside the model; quantization is not the problem.\n"
            + "".join(f"  {sentence}\n" for sentence in where[:_TOLD])
            + f"Mend the model: {remedy}. 'candidate: fp16' finds what must stay in FP32; 'baseline: fp32'\n"
            "compares quantization alone, and an engine in FP16 is lost all the same."
        )


def _overflowing(model: Model, inputs: Dataset, sessions: Sessions) -> dict[str, str]:
    """Tensors whose FP32 values exceed what FP16 holds, in topological order, and what to say of them."""
    tensors, makers, found = made_floats(model), model.index.producer, dict[str, str]()
    maxima = collect_maxima(model, tensors, inputs, sessions)
    for tensor in tensors:
        if FP16.highest < maxima.amax(tensor) < np.inf:
            node = makers[tensor]
            reached = f"reaches {maxima.amax(tensor):.4g}, FP16 ends at {FP16.highest:g}"
            found[tensor] = f"'{tensor}' of {node.op_type} '{node.name}' {reached}"
    return found


def _harmful(
    model: Model, tensors: Sequence[str], judge: Judge, inputs: Dataset, sessions: Sessions
) -> list[str]:
    """Of tensors beyond FP16, those that lose an output when nothing else is rounded to it.

    An inf that ends in a Tanh or a Clip does no harm. So many tensors are tried as are told.
    """
    plain, found = sessions.exact(model), list[str]()
    for tensor in tensors[:_TRIED]:
        engines = {Role.FP32: plain, Role.BASELINE: sessions.exact(_halved(model, tensor), optimized=False)}
        sides = compared(judge, "", (outputs for _, outputs in lock_step(engines, inputs)))
        if sides.spoilt or lost_by_baseline(sides):
            found.append(tensor)
        if len(found) == _TOLD:
            break
    return found


def _halved(model: Model, tensor: str) -> Model:
    """The model with one tensor rounded to FP16, for all that reads it and as an output."""
    editor, nodes = model.edit(), list[onnx.NodeProto]()
    wide, half, back = (editor.unique(f"{tensor}/{name}") for name in ("wide", "half", "back"))
    for node in editor.graph.node:
        nodes.append(node)
        if tensor in node.output:
            node.output[list(node.output).index(tensor)] = wide
            nodes.append(onnx.helper.make_node("Cast", [wide], [half], half, to=onnx.TensorProto.FLOAT16))
            nodes.append(onnx.helper.make_node("Cast", [half], [tensor], back, to=onnx.TensorProto.FLOAT))
    editor.set_nodes(nodes)
    return editor.done()


def made_floats(model: Model) -> list[str]:
    """Float tensors that nodes make, in topological order."""
    floats = {name for name, info in model.values().items() if info.dtype == np.float32 and info.shape}
    return [name for name in model.index.producer if name in floats]


def _vanishing(model: Model) -> Iterator[str]:
    """Constants that are 0 in FP16, such as an epsilon."""
    for name, array in model.constants().items():
        readers = model.index.readers(name)
        if array.dtype == np.float32 and readers and array.any() and not FP16.round(array).any():
            node, _ = readers[-1]
            amax = float(np.abs(array).max())
            yield f"'{name}' of {node.op_type} '{node.name}' is {amax:.4g}, which is 0 in FP16"


def _broken(half: Model, inputs: Dataset, sessions: Sessions) -> Iterator[str]:
    """Nodes of a model in FP16 that make inf or NaN of finite numbers, in topological order."""
    floats = {n for n, info in half.values().items() if info.dtype in (np.float16, np.float32) and info.shape}
    made = [name for node in half.graph.node for name in node.output if name in floats]
    if not made:
        return
    maxima = collect_maxima(half, made, inputs, sessions)
    lost = {name for name in made if not np.isfinite(maxima.amax(name))}
    for node in half.graph.node:
        bad = lost.intersection(node.output)
        if bad and not lost.intersection(node.input):
            yield f"{node.op_type} '{node.name}' makes inf or NaN of finite numbers in FP16"


def nothing_compared(runs: Runs) -> Iterator[str]:
    """Outputs that are zero throughout: any model that gives zeros passes."""
    for name in sorted(runs.zero[Role.BASELINE]):
        yield f"output '{name}' is 0 in all samples: nothing is compared"


def shown_inside(model: Model, backend: Backend) -> Iterator[str]:
    """What judging tensors inside does to engines."""
    if model.extra_outputs and backend.builds_engines:
        named = listed([output.name for output in model.outputs if output.name in model.extra_outputs])
        yield (
            f"criteria name {named} inside the model: the engines give that beside their outputs, so less is "
            "fused around it than in an engine of the model as it is"
        )


def not_judged(
    case: Case, own_judge: Judge, outputs: Sequence[OutputResult], recorded: bool
) -> Iterator[str]:
    """What no criterion looks at: outputs without a limit, labels that no metric takes.

    Args:
        case: The case.
        own_judge: Its criteria, without accepted scores.
        outputs: How its outputs were judged.
        recorded: Whether a golden is recorded, whose limits are those of the next run.
    """
    limited = {o.output for o in outputs if o.problem or any(s.limit is not None for s in o.scores)}
    free = list(dict.fromkeys(o.output for o in outputs if o.output not in limited))
    own = [c.metric for c in case.criteria if isinstance(c, MetricCriterion)]
    left_out = [n for n in free if any(n == wish or fnmatchcase(n, wish) for wish in case.unjudged)]
    several = len({output.output for output in outputs}) > 1
    seen = [name for name in free if name not in left_out] if several and not recorded else []
    if left_out:
        yield f"not judged, as 'unjudged' says: {listed(left_out)}"
    if seen and own:
        yield f"no limit on {listed(seen)}: only {', '.join(dict.fromkeys(own))} may look there"
    runs = [MetricRun(limit, function, own_judge.labels) for limit, function in own_judge.metrics]
    if case.labels is not None and not any(run.labelled for run in runs):
        where = f"labels: {case.labels} are read by no criterion"
        named = "name a metric, like {metric: top1}"
        if not own:
            yield f"{where}; {named}"
        else:
            metrics = ", ".join(dict.fromkeys(own))
            yield f"{where}: {metrics} takes no labels; give it 'labels' as an argument, or {named}"


def caveats(
    settings: Settings,
    int8: Int8Form | None,
    baseline: Form,
    outputs: Sequence[OutputResult],
    metrics: Sequence[Score],
    lost: Sequence[Score],
) -> Iterator[str]:
    """What makes the verdict worth less than it looks, weightiest first."""
    scores = {(s.subject, s.metric): s for output in outputs for s in output.scores}
    for score in lost:
        int8_score = scores[score.subject, score.metric]
        worse = score.value < int8_score.value if score.bound == "min" else score.value > int8_score.value
        yield (
            f"{baseline.description} is off already: {score.subject} {score.metric} {score.value:.6g} "
            f"against FP32, limit {score.limit:g}" + (": INT8 is not the problem" if worse else "")
        )
    for score in metrics:
        own = replace(score, value=math.nan if score.baseline is None else score.baseline)
        if score.baseline is not None and not own.passed:
            yield f"the baseline itself misses {score.subject}: {own.value:.6g}, limit {score.limit:g}"
    for score in (*scores.values(), *metrics):
        if score.limit_in_noise:
            yield (
                f"{score.name}: the limit {score.limit:g} lies inside the noise "
                f"({score.noise:g} between two runs of the baseline): its verdict means little"
            )
    yield from _unread_in_bodies(int8)
    left_high = int8.network.left_high if int8 else {}
    without = [name for name, why in left_high.items() if why.kind == "no-scale"]
    if int8 and without:
        every = len(int8.network.groups) + len(left_high)
        yield f"{len(without)} of {every} groups have no scale and are not in INT8"
    if settings.mode == "native" and saturation().saturates:
        check = saturation()
        yield (
            f"this CPU saturates ONNX Runtime's INT8 kernels: {check.measured:.4g} instead of "
            f"{check.expected:g}; use mode exact"
        )


def _unread_in_bodies(int8: Int8Form | None) -> Iterator[str]:
    """Q/DQ in bodies that is no pair: it runs as it stands in the file, and no plan takes it off."""
    network = None if int8 is None else int8.network
    if network is None or not network.fixed_pairs:
        return
    inside = {body.path + node.name for body in bodies(network.model.graph) for node in body.graph.node}
    unread = [name for name in network.fixed_pairs if name in inside]
    if unread:
        yield f"Q/DQ in a body of If, Loop or Scan is no pair and stays in every plan: {listed(unread)}"


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
    scores = () if share is None else (int8_share_score(contract, share),)
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
    """What runs in INT8, as far as that is known: a limit between the least and the most is not judged."""
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
