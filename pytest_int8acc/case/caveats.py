"""Findings of lint on Q/DQ, scales and data, and warnings on facts that make a verdict less reliable."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from pytest_int8acc.case.data import calibration_data, low_of
from pytest_int8acc.case.forms import Int8Form
from pytest_int8acc.data import Dataset
from pytest_int8acc.data.preprocessing import compare_inputs, sample_arrays
from pytest_int8acc.errors import ModelError, listed
from pytest_int8acc.graph.index import bodies
from pytest_int8acc.graph.lint import lint, lint_scales
from pytest_int8acc.graph.lint.rules import find
from pytest_int8acc.graph.load import read_model
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.network import Network
from pytest_int8acc.graph.qdq import check_formats
from pytest_int8acc.results import (
    Finding,
    OutputResult,
    Score,
    by_rule,
)
from pytest_int8acc.runtime.forms import Form
from pytest_int8acc.runtime.onnxruntime import saturation
from pytest_int8acc.runtime.protocol import Backend
from pytest_int8acc.runtime.trt.platform import refusal
from pytest_int8acc.scores.judge import (
    Judge,
)
from pytest_int8acc.scores.user_metric import MetricRun
from pytest_int8acc.settings import Settings
from pytest_int8acc.spec.criteria import MetricCriterion
from pytest_int8acc.spec.models import Case


def lint_model(case: Case, model: Model, settings: Settings, parses: bool) -> tuple[Finding, ...]:
    """Lint findings on the Q/DQ model file that the spec names; none if the spec names no such file.

    With ``parses``, the parser of an installed TensorRT-RTX also reads the model, unless lint has found an
    error or the spec names plugins.

    Raises ModelError if TensorRT refuses the model and the settings make that an error, if the file cannot be
    read, or if the model is quantized to another format than the case asks for.
    """
    if settings.lint == "off" or case.source.model is None:
        return ()
    with case.at(f"{case.source.where}.model"):
        path = case.path(case.source.model)
        given = read_model(path)
        check_formats(given, low_of(case))
        found = lint(given, float_model=model)
        if parses and not case.tensorrt.plugins and not _errors(found):
            parse_error = refusal(path)
            if parse_error is not None:
                said = f"TensorRT-RTX's parser says '{parse_error.message}', and "
                where = parse_error.node or path.name
                if refusal(case.path(case.model)) is None:
                    found += (find("added-not-parsed", where, f"{said}takes the float model"),)
                else:
                    found += (find("not-parsed", where, f"{said}refuses the float model, too"),)
        return _judged(case.source.model, found, settings)


def lint_network(case: Case, int8: Int8Form | None, settings: Settings) -> tuple[Finding, ...]:
    """Lint findings on scales from calibration or from a scale file; none for a Q/DQ model of the user.

    Raises ModelError if TensorRT refuses the scales and the settings make that an error.
    """
    if settings.lint == "off" or int8 is None or case.source.model is not None:
        return ()
    with case.at(f"{case.source.where}.scales"):
        return _judged(case.model, lint_scales(int8.network), settings)


def compare_data(case: Case, model: Model, inputs: Dataset) -> tuple[Finding, ...]:
    """Findings on how calibration samples differ from the inputs; none without calibration samples."""
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
    lines = [f"{name}: TensorRT would refuse this model: {', '.join(counts)}; nothing was built or compared"]
    for first, *_ in groups:
        lines += [f"  {first.rule}, as at '{first.subject}': {first.text}", f"    {first.remedy}"]
    lines.append("Then run again: what that costs in accuracy is not known yet.")
    if settings.lint == "auto":
        lines.append("If only ONNX Runtime is to run it, write 'backend: onnxruntime' in the spec.")
    lines.append("To compare it all the same, set int8acc_lint = warn in pytest.ini.")
    raise ModelError("\n".join(lines))


def nothing_compared(zero: Iterable[str]) -> Iterator[str]:
    """Yields a warning for each output in ``zero``: it is 0 in all samples, so its score proves nothing."""
    for name in sorted(zero):
        yield f"output '{name}' is 0 in all samples: nothing is compared"


def shown_inside(model: Model, backend: Backend) -> Iterator[str]:
    """Yields a note if criteria name inner tensors of an engine. Making them outputs changes its fusions."""
    if model.extra_outputs and backend.builds_engines:
        named = listed([output.name for output in model.outputs if output.name in model.extra_outputs])
        yield (
            f"criteria name {named} inside the model: the engines give that beside their outputs, so less is "
            "fused around it than in an engine of the model as it is"
        )


def not_judged(
    case: Case, own_judge: Judge, outputs: Sequence[OutputResult], recorded: bool
) -> Iterator[str]:
    """Yields warnings on outputs without a limit, and on labels that no metric reads.

    Args:
        case: The case.
        own_judge: Applies the criteria of the spec alone, without the limits that a golden (stored outputs)
            adds.
        outputs: The judged outputs.
        recorded: Whether this run writes a golden, the stored outputs of the baseline, with which the next
            run is compared.
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
    """Yields warnings on facts that make the verdict less reliable, the most important first.

    Args:
        settings: The settings of the run.
        int8: The quantized network of the case; None if it is unknown.
        baseline: The float baseline.
        outputs: The judged outputs.
        metrics: The scores of metrics that need labels, and of users' own metrics.
        lost: The scores that miss their limits when the baseline is compared with FP32.
    """
    scores = {(s.subject, s.metric): s for output in outputs for s in output.scores}
    for score in lost:
        int8_score = scores[score.subject, score.metric]
        worse = score.value < int8_score.value if score.bound == "min" else score.value > int8_score.value
        yield (
            f"{baseline.description} is off already: {score.subject} {score.metric} {score.value:.6g} "
            f"against FP32, limit {score.limit:g}" + (": quantization is not the problem" if worse else "")
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
    if int8 is not None:
        yield from _not_quantized(int8.network)
    if settings.mode == "native" and saturation().saturates:
        check = saturation()
        yield (
            f"this CPU saturates ONNX Runtime's INT8 kernels: {check.measured:.4g} instead of "
            f"{check.expected:g}; use mode exact"
        )


def _not_quantized(network: Network) -> Iterator[str]:
    """Yields warnings on unpaired Q/DQ nodes in bodies of Loop, If or Scan, and on layers without a scale."""
    inside = {body.path + node.name for body in bodies(network.model.graph) for node in body.graph.node}
    unread = [name for name in network.fixed_pairs if name in inside]
    if unread:
        yield f"Q/DQ in a body of If, Loop or Scan is no pair and stays in every plan: {listed(unread)}"
    without = [name for name, why in network.left_high.items() if why.kind == "no-scale"]
    if without:
        every = len(network.groups) + len(network.left_high)
        yield f"{len(without)} of {every} groups have no scale and are not quantized"
