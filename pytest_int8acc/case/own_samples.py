"""The samples under the key ``prove`` of a spec. They prove fixes; no choice is based on them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pytest_int8acc.case.criteria import load_groups
from pytest_int8acc.case.data import open_source
from pytest_int8acc.data import Dataset, load_labels
from pytest_int8acc.graph.model import Model
from pytest_int8acc.runtime.protocol import Engine
from pytest_int8acc.runtime.run import lock_step
from pytest_int8acc.scores.judge import Comparison, Judge, Verdict
from pytest_int8acc.scores.tasks import Labels, Task
from pytest_int8acc.spec.models import Case
from pytest_int8acc.tensors import Feed


@dataclass(frozen=True, eq=False)
class Proving:
    """The samples under ``prove`` as the spec names them. They have not run yet."""

    inputs: Dataset
    judge: Judge
    """Applies the criteria of the case with the labels and the groups of these samples."""


@dataclass(frozen=True, eq=False, kw_only=True)
class OwnSamples:
    """Samples that prove fixes, with the baseline's outputs on them."""

    inputs: Dataset
    judge: Judge
    baseline: tuple[Feed, ...]
    """The baseline's outputs, batch by batch."""
    noise: Comparison | None
    """The comparison of two runs of the baseline on the inputs, not on these samples; None if unknown."""
    count: int
    """The number of samples."""
    units: int
    """The number of groups of samples that belong together; ``count`` if there are no groups."""
    digest: str
    """The digest of all samples under ``prove``, including those that are left out."""
    warning: str
    """Says which samples are left out; empty if none are."""

    def judged(self, engine: Engine) -> Verdict:
        """The verdict on a candidate, which ``engine`` runs on these samples, with confidence intervals.

        Raises:
            EngineError: The candidate does not run on these samples.
        """
        comparison, runs = Comparison(self.judge), lock_step({"it": engine}, self.inputs)
        for before, (rows, outputs) in zip(self.baseline, runs, strict=True):
            comparison.add(before, outputs["it"], rows)
        return comparison.verdict(self.noise, intervals=True)


def open_proving(case: Case, model: Model, judge: Judge) -> Proving | None:
    """Open the samples that a spec names under ``prove``, and load their labels and groups.

    Args:
        case: The case. The result is None if it has no key ``prove``.
        model: The float model.
        judge: Applies the criteria of the case.

    Raises:
        CriterionError: The labels do not fit the outputs.
        DataError: The samples, their labels or their groups cannot be read or do not fit.
    """
    wish = case.proving
    if wish is None:
        return None
    inputs = open_source(case, wish.inputs, model, "prove", wish.samples)
    groups_key = "prove" if wish.groups is None else "prove.groups"
    groups_source = wish.groups or case.groups  # ``case.groups`` names an array of the labels
    if wish.labels is None and groups_source is None:
        return Proving(inputs, judge)
    if inputs.samples is None:  # counts the samples, because each needs a label or group
        inputs.read_once()
    samples, limited, labels = inputs.samples or 0, wish.samples is not None, None
    if wish.labels is not None:
        with case.at("prove.labels"):
            labels = load_labels(wish.labels, samples, case.path(""), limited=limited, most=case.most_bytes)
            _check(judge, model, labels)
    groups = load_groups(case, groups_key, groups_source, samples, labels, limited=limited)
    return Proving(inputs, replace(judge, labels=labels, groups=groups))


def _check(judge: Judge, model: Model, labels: Labels) -> None:
    for _, metric in judge.metrics:
        if isinstance(metric, Task):
            metric.check(model.own_outputs, labels)


def run_baseline(
    case: Case, proving: Proving, inputs: Dataset, baseline: Engine, noise: Comparison | None
) -> OwnSamples:
    """Run the baseline on the samples under ``prove``.

    Samples that equal one of the inputs are left out, because plans are chosen on the inputs. Batches are as
    large as the batches of the inputs, because engines are built for this size.

    Args:
        case: The case.
        proving: The samples under ``prove``.
        inputs: The inputs of the case.
        baseline: The engine of the baseline.
        noise: The baseline compared with its second run.

    Raises:
        DataError: The samples cannot be read.
        EngineError: The baseline does not run on them.
    """
    known, digests = set(inputs.digests()), proving.inputs.digests()
    rows = [row for row, digest in enumerate(digests) if digest not in known]
    shared, warning = len(digests) - len(rows), ""
    if shared:
        warning = (
            f"{case.place('prove')}: prove: {shared} of {len(digests)} samples are among 'inputs', where "
            "fixes are chosen: they are left out of the proof"
        )
    first = next(inputs.batches())
    chosen = proving.inputs.of_rows(rows, size=first.rows + first.padding)
    with case.at("prove"):
        outputs = tuple(found["it"] for _, found in lock_step({"it": baseline}, chosen))
    judge = proving.judge.of_rows(rows)
    return OwnSamples(
        inputs=chosen,
        judge=judge,
        baseline=outputs,
        noise=noise,
        count=len(rows),
        units=len(rows) if judge.groups is None else len(set(judge.groups.tolist())),
        digest=proving.inputs.read_once(),
        warning=warning,
    )
