"""Runs baseline, candidate and other models of a case on the same inputs, and compares their outputs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from pytest_int8acc.case.perturbation import PerturbedOutputs
from pytest_int8acc.case.preactivations import Preactivations
from pytest_int8acc.clock import current
from pytest_int8acc.data import Dataset
from pytest_int8acc.data.files import find, read_arrays
from pytest_int8acc.errors import DataError, EngineError, ModelError, blaming
from pytest_int8acc.goldens.location import Cutter
from pytest_int8acc.graph.model import Model
from pytest_int8acc.results import Role
from pytest_int8acc.runtime.forms import Form, ModelForm
from pytest_int8acc.runtime.onnxruntime import Sessions
from pytest_int8acc.runtime.protocol import Backend, Engine
from pytest_int8acc.runtime.run import lock_step
from pytest_int8acc.scores.blind import Spread
from pytest_int8acc.scores.decisions import Decisions
from pytest_int8acc.scores.judge import Comparison, Judge, Verdict, sample_ratios
from pytest_int8acc.scores.rows import samples_in
from pytest_int8acc.spec.models import Case
from pytest_int8acc.tensors import Array, Feed, Outputs, describe, did_you_mean


@dataclass(frozen=True, eq=False)
class Preflight:
    """The result of running the first samples, before the calibration: engines, and doubts about FP16."""

    baseline: Engine | None = None
    """The engine of the baseline; None if stored outputs (a golden) replace the baseline."""
    candidate: Engine | None = None
    """The engine of the candidate; None if the candidate is not calibrated yet."""
    fp32: Callable[[], Engine] | None = None
    """Opens the FP32 model; None if the FP32 model is the baseline, or does not run in ONNX Runtime."""
    steady: Comparison | None = None
    """The comparison of two runs of the baseline; None if they were not equal bit for bit."""
    doubtful: bool = False
    """Whether FP32 must run on all samples, even if the INT8 candidate passes."""
    settled: bool = False
    """Whether runs on all samples, not only on the first samples, have shown that FP16 does not overflow."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Worst:
    """The sample of one output with the lowest SQNR, and its values in baseline and candidate."""

    sample: int
    ratio: float
    """The power of the sample's signal divided by the power of its error."""
    baseline: Array
    """The baseline's output for this sample, without the batch axis."""
    int8: Array


def keep_worst(kept: dict[str, Worst], comparison: Comparison, baseline: Feed, int8: Feed) -> None:
    """Put each output's worst sample of the latest batch into ``kept``, unless ``kept`` has a worse one."""
    for name, stats in comparison.outputs.items():
        rows = stats.latest_errors
        ours, theirs = stats.cut(baseline[stats.output]), stats.cut(int8[stats.output])
        if stats.difference or not len(rows) or not ours.ndim:
            continue
        ratios = sample_ratios(rows)
        at = int(ratios.argmin())
        if ratios[at] < (kept[name].ratio if name in kept else float("inf")):
            sample = stats.samples - len(rows) + at
            kept[name] = Worst(sample, float(ratios[at]), ours[at].copy(), theirs[at].copy())


class BadOutputs:
    """Collects the outputs of each model that hold NaN or infinities, and those that are 0 in all samples."""

    def __init__(self) -> None:
        self.broken: dict[Role, set[str]] = defaultdict(set)
        """For each model, by role, the names of its outputs that hold NaN or infinities."""
        self.nan: dict[Role, set[str]] = defaultdict(set)
        """For each model, by role, the names of its outputs that hold NaN."""
        self._zero: dict[Role, dict[str, bool]] = defaultdict(dict)
        """For each model, by role, and each of its outputs: whether all numbers were 0 so far."""

    def look(self, role: Role, outputs: Feed) -> None:
        """Record NaN, infinities and zeros in one batch of a model's outputs."""
        for name, array in outputs.items():
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                self.broken[role].add(name)
                if np.isnan(array).any():
                    self.nan[role].add(name)
            if self._zero[role].get(name, True):
                self._zero[role][name] = array.dtype.kind in "fiub" and not array.any()

    def zero(self, role: Role) -> set[str]:
        """The names of a model's numeric outputs in which every element of every sample is 0."""
        return {name for name, is_zero in self._zero.get(role, {}).items() if is_zero}

    def has_run(self, role: Role) -> bool:
        """Whether any outputs of a model were recorded."""
        return role in self._zero

    @property
    def spoil_baseline(self) -> bool:
        """Whether an output of the baseline holds NaN or infinities, or nothing but zeros."""
        return bool(self.broken[Role.BASELINE] or self.zero(Role.BASELINE))


@dataclass(eq=False)
class Runs:
    """The comparisons of all models of a case on the same inputs, and outputs that are kept."""

    backend: str
    """A description of the engine that ran the candidate."""
    notes: tuple[str, ...]
    judge: Judge
    run: Callable[[Role], Iterator[tuple[int, Feed]]]
    """Runs a model on all inputs; yields the number of samples and the outputs of each batch."""
    comparisons: dict[tuple[Role, Role], Comparison]
    """For each pair of roles, the comparison of the second model with the first."""
    engines: Mapping[Role, Engine]
    """For each model, by role, the engine that ran it; empty after the verdict if the engines are sessions of
    ONNX Runtime."""
    steady: Comparison | None
    """The comparison of two runs of the baseline on the first samples; None if they were not equal."""
    kept: dict[Role, Outputs]
    """For each model, by role, its kept outputs; empty if they are not kept.

    The baseline's outputs are kept for candidates that are compared later. The candidate's are kept to be
    stored in a golden, and for the search, which need not run the candidate again.
    """
    bad: BadOutputs = field(default_factory=BadOutputs)
    worst: dict[str, Worst] = field(default_factory=dict)
    """The sample with the lowest SQNR of each output, by the output's name."""
    perturbed: PerturbedOutputs = field(default_factory=dict)
    """The baseline's outputs for perturbed inputs."""
    parts: dict[tuple[int, ...], Comparison] = field(default_factory=dict)
    """Maps the indices of some samples to the first comparison on these samples. Later comparisons on them
    reuse the metrics of the baseline."""
    spread: Spread = field(default_factory=Spread)
    """Some samples of the baseline's outputs, to make useless outputs that the criteria should reject."""
    decisions: Decisions = field(init=False)
    """The samples whose class differs between baseline and candidate."""
    first: dict[Role, Feed] = field(default_factory=dict)
    """For each model, by role, its outputs on the first batch."""

    def __post_init__(self) -> None:
        self.decisions = Decisions(self.judge)

    @property
    def roles(self) -> set[Role]:
        """The roles of the models that were compared."""
        return {role for pair in self.comparisons for role in pair}

    @property
    def noise(self) -> Comparison | None:
        """The comparison of the baseline's second run with its first.

        None if stored outputs (a golden) replace the baseline.
        """
        return self.comparisons.get((Role.BASELINE, Role.BASELINE_AGAIN), self.steady)

    def comparison(self, against: Role, form: Role) -> Comparison:
        """The comparison of the model ``form`` with the model ``against`` by all criteria.

        If the comparison is missing or incomplete, both models run again.

        Raises:
            EngineError: A model does not run.
            OutOfTime: A model would have to run, but the time is up.
        """
        known, clock = self.comparisons.get((against, form)), current()
        if known is None:
            clock.check()
        if known is None or (known.judged_only and not clock.over):
            known = self.comparisons[against, form] = Comparison(self.judge)
            both = zip(self._outputs(against), self._outputs(form), strict=True)
            for (rows, before), (others, outputs) in both:
                known.add(before, outputs, max(rows, others))
        return known

    def compare_fp32(self) -> None:
        """Compare the baseline with FP32, unless they were compared before.

        Raises EngineError if FP32 does not run.
        """
        if self.bad.has_run(Role.FP32):
            return
        comparison = self.comparisons[Role.FP32, Role.BASELINE] = Comparison(self.judge)
        both = zip(self.run(Role.FP32), self._outputs(Role.BASELINE), strict=True)
        for (rows, reference), (_, baseline) in both:
            comparison.add(reference, baseline, rows)
            self.bad.look(Role.FP32, reference)

    def _outputs(self, role: Role) -> Iterator[tuple[int, Feed]]:
        if role == Role.BASELINE and self.kept[role]:
            return _batches(self.kept[role])
        return self.run(role)

    def judged(self, outputs: Iterable[tuple[int, Feed]]) -> Verdict:
        """Judge another candidate against the baseline.

        Args:
            outputs: For each batch of the inputs, the number of samples and the candidate's outputs.
        """
        return self.compared_in_parts(outputs, ())[0].verdict(self.noise, intervals=True, rare=True)

    def compared_in_parts(
        self, outputs: Iterable[tuple[int, Feed]], parts: Sequence[Collection[int]]
    ) -> list[Comparison]:
        """Compare another candidate with the baseline on all samples, and on parts of them.

        Args:
            outputs: For each batch of the inputs, the number of samples and the candidate's outputs.
            parts: For each part, the indices of its samples. Each output must have a row for each sample,
                unless each batch is one sample.

        Returns:
            The comparison on all samples, then the one on each part.
        """
        whole = Comparison(self.judge, self.comparisons[Role.BASELINE, Role.INT8])
        keys = [tuple(sorted(part)) for part in parts]
        alone = [Comparison(self.judge.of_rows(key), self.parts.get(key)) for key in keys]
        start = 0
        for (_, before), (rows, feed) in zip(_batches(self.kept[Role.BASELINE]), outputs, strict=True):
            whole.add(before, feed, rows)
            for part, comparison in zip(parts, alone, strict=True):
                chosen = [row for row in range(rows) if start + row in part]
                if chosen:
                    comparison.add(rows_of(before, chosen, rows), rows_of(feed, chosen, rows), len(chosen))
            start += rows
        for key, comparison in zip(keys, alone, strict=True):
            self.parts.setdefault(key, comparison)
        return [whole, *alone]


def rows_of(outputs: Feed, rows: Sequence[int], samples: int) -> Feed:
    """The outputs of some rows of a batch that has ``samples`` samples. A batch of one sample is not cut."""
    return outputs if samples == 1 else {name: array[list(rows)] for name, array in outputs.items()}


def run_forms(
    backend: Backend,
    model: Model,
    forms: Mapping[Role, Form],
    inputs: Dataset,
    sessions: Sessions,
    judge: Judge,
    early: Preflight,
    *,
    place: str,
    keep: Mapping[Role, float],
    golden: Cutter | None,
    reference: Reference | None,
    watch: Preactivations,
) -> Runs:
    """Build the candidate, run it and the baseline on the inputs batch by batch, and compare them.

    The baseline's engine comes from ``early``. The baseline runs a second time on all samples if its two runs
    on the first samples differed. FP32 also runs if the baseline may be wrong, or if the spec names outputs
    of the training framework.

    Args:
        backend: Builds and runs the models.
        model: The float model, which runs in FP32.
        forms: The baseline and the candidate.
        inputs: All samples.
        sessions: Opens FP32 and a simulated candidate in ONNX Runtime.
        judge: Applies the criteria.
        early: The results of the first samples.
        place: The place of the criteria in the spec, as ``file:line:col``.
        keep: The roles of the models whose outputs are kept, each with the maximum size of its outputs in
            bytes. Larger outputs are not kept.
        golden: Returns the baseline's outputs from a golden, a file of stored outputs; None if the baseline
            runs.
        reference: The training framework's outputs; None if the spec names none.
        watch: Opens models so that they also output the tensors that a final Softmax or Sigmoid reads, and
            compares these tensors.

    Raises:
        EngineError: The candidate does not build, or a model does not run.
        CriterionError: A criterion does not fit the outputs.
        DataError: The inputs cannot be read, or the framework's outputs do not fit them.
        GoldenError: The golden does not fit this run.
    """
    engines, notes = _opened(
        backend, forms[Role.INT8], inputs, sessions, early, watch, staged=reference is not None
    )

    def run(role: Role) -> Iterator[tuple[int, Feed]]:
        engine = sessions.exact(model) if role == Role.FP32 else backend.open(forms[role], role, inputs)
        return ((rows, outputs[role]) for rows, outputs in lock_step({role: engine}, inputs))

    with blaming(place):
        comparisons = _comparisons(
            judge, reference, {*engines, Role.BASELINE}, [output.name for output in model.outputs]
        )
    kept: dict[Role, Outputs] = {Role.BASELINE: {}, Role.INT8: {}}
    sizes = dict.fromkeys(keep, 0)
    runs = Runs(engines[Role.INT8].description, notes, judge, run, comparisons, engines, early.steady, kept)
    for rows, found in lock_step(engines, inputs):
        outputs: dict[Role, Feed] = dict(found)
        if golden is not None:
            outputs[Role.BASELINE] = golden(outputs[Role.INT8])
        if reference is not None:
            outputs[Role.FRAMEWORK] = reference.next(outputs[Role.BASELINE])
        with blaming(place):
            _compare_batch(runs, outputs, rows)
        watch.compare(outputs)
        runs.first = runs.first or outputs
        for role, most in keep.items():
            sizes[role] += sum(array.nbytes for array in outputs[role].values())
            if sizes[role] > most:
                kept[role] = {}
                continue
            for name, array in outputs[role].items():
                kept[role].setdefault(name, []).append(array)
    if golden is not None:
        golden.end()
    if reference is not None:
        reference.end()
    return runs


def _opened(
    backend: Backend,
    candidate: Form,
    inputs: Dataset,
    sessions: Sessions,
    early: Preflight,
    watch: Preactivations,
    *,
    staged: bool,
) -> tuple[dict[Role, Engine], tuple[str, ...]]:
    """The engines of all models that a verdict needs, and notes. With ``staged``, FP32 is one of them."""
    with blaming(candidate.place):
        tested = early.candidate or watch.open_form(backend, candidate, Role.INT8, inputs)
    engines: dict[Role, Engine] = {}
    if early.baseline is not None:
        engines[Role.BASELINE] = early.baseline
    engines[Role.INT8] = tested
    if early.baseline is not None and early.steady is None:
        engines[Role.BASELINE_AGAIN] = early.baseline
    if early.fp32 is None:
        return engines, early.notes
    if early.doubtful or backend.needs_simulation or staged:
        engines[Role.FP32] = early.fp32()
    if backend.needs_simulation and isinstance(candidate, ModelForm):
        try:
            engines[Role.SIMULATED] = watch.open(Role.SIMULATED, candidate.model, sessions.exact)
        except EngineError as error:  # for example, ONNX Runtime lacks a number format
            return engines, (*early.notes, f"no simulation: {error}")
    return engines, early.notes


def _compare_batch(runs: Runs, outputs: Mapping[Role, Feed], rows: int) -> None:
    baseline, candidate = outputs[Role.BASELINE], outputs[Role.INT8]
    runs.judge.splitter.look(baseline)
    for (against, form), comparison in runs.comparisons.items():
        comparison.add(outputs[against], outputs[form], rows)
    keep_worst(runs.worst, runs.comparisons[Role.BASELINE, Role.INT8], baseline, candidate)
    runs.spread.add(baseline, rows)
    runs.decisions.add(baseline, candidate, rows)
    for role, feed in outputs.items():
        runs.bad.look(role, feed)


def _comparisons(
    judge: Judge, reference: Reference | None, roles: Collection[Role], outputs: Collection[str]
) -> dict[tuple[Role, Role], Comparison]:
    """The comparisons that a verdict needs, and those between training framework, float model and engine."""
    main = Comparison(judge)
    found = {(Role.BASELINE, Role.INT8): main}
    if Role.BASELINE_AGAIN in roles:
        found[Role.BASELINE, Role.BASELINE_AGAIN] = Comparison(judge, main)
    if Role.FP32 in roles:
        found[Role.FP32, Role.BASELINE] = Comparison(judge, judged_only=True, metrics=False)
    if Role.SIMULATED in roles:
        found[Role.BASELINE, Role.SIMULATED] = Comparison(judge, main)
        found[Role.SIMULATED, Role.INT8] = Comparison(judge)
        found[Role.FP32, Role.INT8] = Comparison(judge)
        found[Role.FP32, Role.SIMULATED] = Comparison(judge)
    if reference is not None:
        of_arrays = judge if reference.arrays.keys() >= set(outputs) else judge.on(reference.arrays)
        for role in Role:
            if role in roles and role != Role.BASELINE_AGAIN:
                found[Role.FRAMEWORK, role] = Comparison(of_arrays)
    return found


def _batches(outputs: Outputs) -> Iterator[tuple[int, Feed]]:
    """Yield kept outputs batch by batch, each with 0 for its number of samples, which is unknown."""
    return ((0, dict(zip(outputs, arrays, strict=True))) for arrays in zip(*outputs.values(), strict=True))


def check_interface(form: Model, model: Model) -> None:
    """Raise ModelError if a model has other inputs or outputs than the case's model."""
    for what, theirs, ours in (
        ("inputs", form.inputs, model.inputs),
        ("outputs", form.outputs, model.outputs),
    ):
        if {t.name: t.dtype for t in theirs} != {t.name: t.dtype for t in ours}:
            raise ModelError(
                f"{form.name}: its {what} ({describe(theirs)}) are not those of {model.name} "
                f"({describe(ours)}); export both from one model, with the same names and types"
            )
    purpose = {tensor.name: tensor for tensor in model.inputs}
    for tensor in form.inputs:
        sizes = zip(tensor.shape or (), purpose[tensor.name].shape or (), strict=False)
        if any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in sizes):
            raise ModelError(
                f"{form.name}: it takes {tensor}, but {model.name} takes {purpose[tensor.name]}; "
                "export both alike"
            )


@dataclass(eq=False)
class Reference:
    """The training framework's outputs, which a spec names under ``reference``."""

    where: str
    """The key and the file name, for error messages."""
    place: str
    """The place of the key in the spec, as ``file:line:col``."""
    arrays: Mapping[str, Array]
    """The training framework's array of each output, by name, with the samples along the first axis."""
    _seen: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """The shape of each output, by name, over all batches so far, as if they were one array."""

    def next(self, like: Feed) -> Feed:
        """The framework's outputs of the next batch; DataError if a shape differs from the model's output.

        Args:
            like: The model's outputs of this batch. The returned arrays have their dtypes.
        """
        found = {}
        for name, array in like.items():
            if name in self.arrays:
                start, rows = self._seen.get(name, (0,))[0], samples_in(array)
                self._seen[name] = (start + rows, *array.shape[1:])
                if self.arrays[name].shape[1:] != array.shape[1:] or not self.arrays[name].ndim:
                    self._refuse(name, f"batches of {array.shape}")
                found[name] = np.asarray(self.arrays[name][start : start + rows], array.dtype)
        return found

    def end(self) -> None:
        """Raise DataError if an array has not as many samples as the model's output."""
        for name, expected in self._seen.items():
            if self.arrays[name].shape != expected:
                self._refuse(name, str(expected))

    def _refuse(self, name: str, expected: str) -> None:
        with blaming(self.place):
            raise DataError(
                f"{self.where}: '{name}' has shape {self.arrays[name].shape}, the model gives {expected}: "
                "save the framework's outputs for the same samples, in the same order, samples first"
            )


def read_reference(case: Case, model: Model) -> Reference | None:
    """Reads the training framework's outputs from the file under ``reference``; None if the spec names none.

    The file is a .npz with arrays of some or all outputs, or a .npy for the only output.

    Raises DataError if the file cannot be read, or an array does not have the name of an output.
    """
    if case.reference is None:
        return None
    with case.at("reference"):
        where = f"reference: {case.reference}"
        arrays = _read(case.reference, where, case, model)
    return Reference(where, case.place("reference"), arrays)


def _read(file: str, where: str, case: Case, model: Model) -> Mapping[str, Array]:
    """The arrays of the file by output name. A single array belongs to the only output, whatever its name."""
    names, own = ([output.name for output in found] for found in (model.outputs, model.own_outputs))
    try:
        path = find(file, case.path(""), where)
    except DataError as error:
        raise DataError(
            f"{error}; save the framework's outputs there (np.savez), or take 'reference' out of the spec"
        ) from error
    arrays = read_arrays(path, where, case.most_bytes)
    if len(own) == 1 and len(arrays) == 1 and model.extra_outputs.isdisjoint(arrays):
        return {own[0]: next(iter(arrays.values()))}
    for name in arrays:
        if name not in names:
            raise DataError(
                f"{where}: '{name}' is no output of the model{did_you_mean(name, names)}: {', '.join(names)}"
            )
    return arrays
