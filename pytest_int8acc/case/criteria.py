"""Loads the criteria of a spec: limits, metrics with their labels, and named parts of outputs."""

from __future__ import annotations

import glob
from collections.abc import Collection, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import cast

import numpy as np

from pytest_int8acc.data import load_labels
from pytest_int8acc.data.scripts import UserFunction, load_function
from pytest_int8acc.errors import CriterionError, DataError
from pytest_int8acc.graph.flow import holds_scores, joined
from pytest_int8acc.graph.layout import ChannelAxes
from pytest_int8acc.graph.model import Model
from pytest_int8acc.results.scores import CONFIDENCE
from pytest_int8acc.scores.criteria import (
    MetricLimit,
    OutputLimits,
    check_patterns,
)
from pytest_int8acc.scores.judge import Judge
from pytest_int8acc.scores.rows import Options, Tolerance
from pytest_int8acc.scores.split import NamedParts, Splitter, axis_of
from pytest_int8acc.scores.statistics import Groups, least_detectable, samples_to_detect
from pytest_int8acc.scores.tasks import LOWER_IS_BETTER, Labels, Task
from pytest_int8acc.scores.user_metric import UserMetric
from pytest_int8acc.settings import Settings
from pytest_int8acc.spec.criteria import MetricCriterion, OutputCriterion, TaskName
from pytest_int8acc.spec.models import Case
from pytest_int8acc.tensors import Array


def load_judge(case: Case, settings: Settings, samples: int, model: Model) -> Judge:
    """The judge of a case, which applies its criteria; loads users' functions and labels.

    Args:
        case: The case.
        settings: The settings of the run. If they limit the number of samples, further labels are ignored.
        samples: The number of samples of the inputs.
        model: The float model. Tensors that criteria name are among its outputs.

    Raises:
        CriterionError: A user's function cannot be loaded, or a named metric does not fit the outputs.
        DataError: The labels cannot be read, differ from ``samples`` in number, or do not fit a metric.
    """
    left_out = (OutputLimits(name, unjudged=True) for name in case.unjudged)
    own = [c for c in case.criteria if isinstance(c, OutputCriterion)]
    limits = (*(_output_limits(c, model.extra_outputs) for c in own if c.limits_given), *left_out)
    metrics: list[tuple[MetricLimit, UserMetric]] = []
    labels = None
    users = {f"criteria.{i}": c for i, c in enumerate(case.criteria) if isinstance(c, MetricCriterion)}
    for key, criterion in users.items():
        limit = replace(_metric_limit(criterion), blind=model.extra_outputs)
        metrics.append((limit, _metric(case, key, criterion)))
    if case.labels is not None:
        with case.at("labels"):
            limited = settings.samples is not None
            labels = load_labels(case.labels, samples, case.path(""), limited=limited, most=case.most_bytes)
    limited = settings.samples is not None
    groups = load_groups(case, "groups", case.groups, samples, labels, limited=limited)
    for key, (_, metric) in zip(users, metrics, strict=True):
        if isinstance(metric, Task):
            with case.at(f"{key}.metric"):
                metric.check(model.own_outputs, labels)
            with case.at(f"{key}.min_detectable"):
                _check_detectable(users[key], metric.labels_of(labels), metric.ignore)
    return Judge(limits, metrics, labels, _splitter(case, model), groups)


def load_groups(
    case: Case, key: str, source: str | None, samples: int, labels: Labels, *, limited: bool
) -> Groups | None:
    """Returns the index of the group to which each sample belongs, [samples]; None without groups.

    Args:
        case: The case.
        key: The key of the spec that names the groups.
        source: A file, a function, or the name of an array of ``labels``; None if there are no groups.
        samples: The number of samples.
        labels: The labels of the samples.
        limited: Whether only the first ``samples`` of the inputs are used, so that further entries are
            ignored.

    Raises:
        DataError: The groups cannot be read, or are not one number or name for each sample.
    """
    if source is None:
        return None
    with case.at(key):
        if Path(source).suffix in (".npy", ".npz", ".txt", ".py") or ".py:" in source:
            found: Labels = load_labels(
                source, samples, case.path(""), limited=limited, most=case.most_bytes, key="groups"
            )
        elif isinstance(labels, Mapping):
            found = labels.get(source)
        else:
            found = None
        if found is None:
            arrays = ", ".join(map(repr, labels)) if isinstance(labels, Mapping) else "no named arrays"
            raise DataError(
                f"groups: {source} is neither a file (.npy, .npz, .txt, file.py:function) nor an array of "
                f"'labels', which hold {arrays}"
            )
        if isinstance(found, Mapping) or found.ndim != 1:
            shape = f"{len(found)} arrays" if isinstance(found, Mapping) else f"shape {found.shape}"
            raise DataError(f"groups: {source}: expected one number or name for each sample, found {shape}")
        groups = np.unique(found, return_inverse=True)[1]
        if len(groups) and not groups.any():
            raise DataError(f"groups: {source}: all {samples} samples are one group; at least two are needed")
    return np.asarray(groups)


def _check_detectable(criterion: MetricCriterion, labels: Array, ignore: int | None) -> None:
    """Raises CriterionError if there are too few labels to detect a drop as small as ``min_detectable``.

    Labels that equal ``ignore`` do not count.
    """
    drop = criterion.detectable
    if drop is None:
        return
    if labels.ndim > 1:
        raise CriterionError(
            f"min_detectable needs one label per sample; found labels of shape {labels.shape}: remove it"
        )
    confidence = criterion.confidence or CONFIDENCE
    samples = len(labels) if ignore is None else int((labels != ignore).sum())
    needed = samples_to_detect(drop, confidence)
    if samples < needed:
        least = least_detectable(samples, confidence)
        raise CriterionError(
            f"{samples} labels cannot show a drop of {drop:.3g}: it takes {needed} at least, at a confidence "
            f"of {confidence:g} and a power of 0.8; the least drop that these show is {least:.3g}"
        )


def _splitter(case: Case, model: Model) -> Splitter:
    """Finds the parts of outputs, such as boxes and scores, that are judged separately.

    The parts are those that criteria name. If criteria name none, the parts are the tensors that the graph
    concatenates to an output.
    """
    named: dict[str, NamedParts | None] = {}
    for index, criterion in enumerate(case.criteria):
        if isinstance(criterion, OutputCriterion) and criterion.parts is not None:
            with case.at(f"criteria.{index}.parts"):
                _name_parts(named, criterion, model)
    whole = {name for name, parts in named.items() if parts is None}
    outputs = [output.name for output in model.outputs if output.name not in whole]
    found = {name: known for name in outputs if (known := joined(model, name)) is not None}
    finder = ChannelAxes(model)
    found_axes = {name: finder.of(name, None) for name in outputs if not holds_scores(model, name)}
    axes = {name: axis for name, axis in found_axes.items() if axis is not None}
    return Splitter(found, named, axes)


def _name_parts(named: dict[str, NamedParts | None], criterion: OutputCriterion, model: Model) -> None:
    """Add the parts of outputs that a criterion names to ``named``.

    Raises CriterionError if the parts do not fit an output, or if another criterion names other parts.
    """
    sizes = None if isinstance(criterion.parts, str) or criterion.parts is None else criterion.parts
    parts = None if sizes is None else NamedParts(sizes, criterion.axis)
    pattern = _output_limits(criterion).output
    for output in model.outputs:
        if output.name != pattern and not fnmatchcase(output.name, pattern):
            continue
        if named.get(output.name, parts) != parts:
            raise CriterionError(
                f"parts of output '{output.name}': another criterion names others; name them once"
            )
        if parts is not None and output.shape is not None:
            axis_of(output.name, parts, output.shape)
        named[output.name] = parts


def _metric(case: Case, key: str, criterion: MetricCriterion) -> UserMetric:
    """The metric of a criterion.

    Raises CriterionError with the place in the spec if a script does not load.
    """
    if not criterion.named:
        with case.at(f"{key}.metric"):
            return load_function(criterion.metric, case.path(""), CriterionError)
    decode: UserFunction | str | None = criterion.decode
    if criterion.decode is not None and ".py:" in criterion.decode:
        with case.at(f"{key}.decode"):
            decode = load_function(criterion.decode, case.path(""), CriterionError)
    return Task(
        cast("TaskName", criterion.metric),
        place=case.place("labels"),
        decode=decode,
        average=criterion.average or "macro",
        **criterion.model_dump(include={"output", "label", "axis", "ignore", "data_range"}),
    )


def check_outputs(case: Case, model: Model) -> None:
    """Raise CriterionError, with the place in the spec, for a criterion that matches no model output."""
    names, made = [output.name for output in model.own_outputs], model.index.producer
    for index, criterion in enumerate(case.criteria):
        if isinstance(criterion, OutputCriterion) and criterion.tensor is None:
            with case.at(f"criteria.{index}.output"):
                if criterion.output in made and criterion.output not in names:
                    raise CriterionError(
                        f"criterion for output '{criterion.output}': it is a tensor inside the model: say "
                        "'tensor' in place of 'output'"
                    )
                known = list(names)
                if any(criterion.output.startswith(f"{name}[") for name in names):
                    known.append(criterion.output)  # a part of an output is checked after the baseline ran
                check_patterns([_output_limits(criterion)], known)
    for index, name in enumerate(case.unjudged):
        with case.at(f"unjudged.{index}"):
            check_patterns([OutputLimits(name, unjudged=True)], names)


def _output_limits(criterion: OutputCriterion, inner: Collection[str] = ()) -> OutputLimits:
    given = {name: value for name in criterion.limits() if (value := getattr(criterion, name)) is not None}
    options = Options(criterion.axis, criterion.rel_floor)
    if criterion.tolerance is not None:
        given["tolerance"] = 1.0
        options = options._replace(tolerance=Tolerance(**criterion.tolerance.model_dump()))
    name = criterion.output if criterion.tensor is None else glob.escape(criterion.tensor)
    limits = OutputLimits(name, given, options)
    spared = None if criterion.per is None else criterion.quantile
    return replace(limits, inner=criterion.tensor in inner, spared=spared)


def _metric_limit(criterion: MetricCriterion) -> MetricLimit:
    limit = MetricLimit(
        criterion.ref,
        criterion.min,
        criterion.max,
        lower_is_better=criterion.lower_is_better or criterion.metric in LOWER_IS_BETTER,
        streaming=criterion.streaming,
        confidence=criterion.confidence or CONFIDENCE,
    )
    amount, relative = criterion.drop or (None, False)
    return replace(limit, max_drop_relative=amount) if relative else replace(limit, max_drop=amount)
