"""All forms of a case run on the same inputs batch by batch, and compared; the framework's outputs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from pytest_int8acc.case.perturbation import PerturbedOutputs
from pytest_int8acc.clock import current
from pytest_int8acc.data import Dataset
from pytest_int8acc.data.files import find, read_arrays
from pytest_int8acc.errors import DataError, EngineError, ModelError, blaming
from pytest_int8acc.goldens.outputs import Cutter
from pytest_int8acc.graph.model import Model
from pytest_int8acc.results import Role
from pytest_int8acc.runtime.forms import Form, ModelForm
from pytest_int8acc.runtime.onnxruntime import Sessions
from pytest_int8acc.runtime.protocol import Backend, Engine
from pytest_int8acc.runtime.run import lock_step
from pytest_int8acc.scores.blind import Spread
from pytest_int8acc.scores.judge import Comparison, Judge, Verdict, sample_ratios
from pytest_int8acc.scores.rows import samples_in
from pytest_int8acc.spec.models import Case
from pytest_int8acc.tensors import Array, Feed, Outputs, describe, did_you_mean


@dataclass(frozen=True, eq=False)
class Preflight:
    """The result of the first look, and the engines that the first samples were run on."""

    baseline: Engine | None = None
    """None where a golden stands in for the baseline."""
    candidate: Engine | None = None
    """None where it is still to be calibrated."""
    fp32: Callable[[], Engine] | None = None
    """Opens the float model; None where the baseline is that, or where ONNX Runtime cannot run it."""
    steady: Comparison | None = None
    """Two runs of the baseline compared, where they were equal bit for bit; None where they were not."""
    doubtful: bool = False
    """Whether FP32 must run on all samples, even if INT8 passes."""
    settled: bool = False
    """Whether it was checked on all samples that FP16 does not overflow."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Worst:
    """The sample of an output with the lowest SQNR."""

    sample: int
    ratio: float
    """Signal over noise of the sample, as a ratio of powers."""
    baseline: Array
    """The baseline's output, of the shape of one sample."""
    int8: Array


def keep_worst(kept: dict[str, Worst], comparison: Comparison, baseline: Feed, int8: Feed) -> None:
    """Put the worst sample of the latest batch into ``kept``, by output, where it is worse than that."""
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


def worst_of(kept: Mapping[str, Worst], output: str, sample: int | None) -> Worst | None:
    """The sample that was kept of an output; None where its scores name another worst sample."""
    worst = kept.get(output)
    return worst if worst is not None and worst.sample == sample else None


@dataclass(eq=False)
class Runs:
    """The comparisons of all forms on the same inputs, and the outputs that are kept."""

    backend: str
    notes: tuple[str, ...]
    judge: Judge
    run: Callable[[Role], Iterator[tuple[int, Feed]]]
    """Runs a form over all inputs; yields rows and outputs of each batch."""
    comparisons: dict[tuple[Role, Role], Comparison]
    """Two forms to the comparison of the second with the first."""
    baseline: Outputs = field(default_factory=dict)
    """The baseline's outputs, for forms that are compared with it later; empty where they are not kept."""
    candidate: Outputs = field(default_factory=dict)
    """The candidate's outputs; empty where no golden may be written."""
    broken: dict[Role, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Form to the names of its outputs that hold NaN or infinities."""
    zero: dict[Role, set[str]] = field(default_factory=lambda: defaultdict(set))
    """By form, the names of its numeric outputs in which every element is 0."""
    steady: Comparison | None = None
    """Two runs of the baseline on the first samples, where they were the same; None where they were not."""
    worst: dict[str, Worst] = field(default_factory=dict)
    """Output to its sample with the lowest SQNR."""
    engines: Mapping[Role, Engine] = field(default_factory=dict)
    """Form to the engine that ran it."""
    perturbed: PerturbedOutputs = field(default_factory=dict)
    """The baseline's outputs for perturbed inputs."""
    spread: Spread = field(default_factory=Spread)
    """Some samples of the baseline's outputs, to try the criteria on."""
    _nonzero: dict[Role, set[str]] = field(default_factory=lambda: defaultdict(set))

    @property
    def roles(self) -> set[Role]:
        """The forms that were compared."""
        return {role for pair in self.comparisons for role in pair}

    @property
    def noise(self) -> Comparison | None:
        """The baseline's second run against the first; None where the baseline was kept and not run."""
        return self.comparisons.get((Role.BASELINE, Role.BASELINE_AGAIN), self.steady)

    @property
    def spoilt(self) -> bool:
        """Whether an output of the baseline holds NaN or infinities, or nothing but zeros."""
        return bool(self.broken[Role.BASELINE] or self.zero[Role.BASELINE])

    def look(self, role: Role, outputs: Feed) -> None:
        """Note NaN, infinities and zeros in a batch of a form."""
        for name, array in outputs.items():
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                self.broken[role].add(name)
            if name not in self._nonzero[role]:
                empty = array.dtype.kind in "fiub" and not array.any()
                (self.zero if empty else self._nonzero)[role].add(name)
                if not empty:
                    self.zero[role].discard(name)

    def comparison(self, against: Role, form: Role) -> Comparison:
        """A form compared with another in full; forms whose outputs were not kept run again where needed.

        Raises:
            EngineError: One does not run.
            OutOfTime: One would have to run, and time is up.
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
        """Compare the baseline with FP32, unless that was done; raises EngineError where FP32 fails."""
        if Role.FP32 in self.roles:
            return
        comparison = self.comparisons[Role.FP32, Role.BASELINE] = Comparison(self.judge)
        both = zip(self.run(Role.FP32), self._outputs(Role.BASELINE), strict=True)
        for (rows, reference), (_, baseline) in both:
            comparison.add(reference, baseline, rows)
            self.look(Role.FP32, reference)

    def _outputs(self, role: Role) -> Iterator[tuple[int, Feed]]:
        kept = role == Role.BASELINE and bool(self.baseline)
        return _batches(self.baseline) if kept else self.run(role)

    def judged(self, outputs: Iterable[tuple[int, Feed]]) -> Verdict:
        """Judge another form against the baseline, given its rows and outputs of each batch of the inputs."""
        comparison = Comparison(self.judge, self.comparisons[Role.BASELINE, Role.INT8])
        for (_, before), (rows, feed) in zip(_batches(self.baseline), outputs, strict=True):
            comparison.add(before, feed, rows)
        return comparison.verdict(self.noise, intervals=True)


@dataclass(frozen=True, eq=False)
class Forms:
    """The forms of one case."""

    model: Model
    """The float model, run in FP32."""
    baseline: Form
    """The form that the candidate is compared with."""
    candidate: Form
    """The form that is judged."""


@dataclass(frozen=True, eq=False)
class RunPurpose:
    """What a run of all forms is for: who judges it, and which outputs are kept."""

    judge: Judge
    place: str = ""
    """Where the spec's criteria stand, as ``file:line:col``."""
    baseline: bool = True
    """Whether the baseline's outputs are kept."""
    candidate: bool = False
    """Whether the candidate's outputs are kept."""
    golden: Cutter | None = None
    """Gives the baseline's outputs from a golden; None: the baseline is run."""
    reference: Reference | None = None
    """The training framework's outputs, where the spec names some."""


def run_forms(
    backend: Backend, forms: Forms, inputs: Dataset, sessions: Sessions, purpose: RunPurpose, early: Preflight
) -> Runs:
    """Build the candidate, run it and the baseline over the inputs batch by batch, and compare them.

    The baseline is the engine that ``early`` opened. It runs a second time where it was seen not to repeat
    itself; FP32 runs beside them where there was doubt, and where a stage on the way needs it.

    Raises:
        EngineError: The candidate does not build, or a form does not run.
        CriterionError: A criterion does not fit the outputs.
        DataError: The inputs cannot be read, or the framework's outputs do not fit them.
        GoldenError: The golden does not fit this run.
    """
    with blaming(forms.candidate.place):
        tested = early.candidate or backend.open(forms.candidate, Role.INT8, inputs)
    engines: dict[Role, Engine] = {Role.INT8: tested}
    if early.baseline is not None:
        engines = {Role.BASELINE: early.baseline, **engines}
        engines |= {} if early.steady else {Role.BASELINE_AGAIN: early.baseline}
    notes = (*early.notes, *_open_simulations(engines, backend, forms, sessions, early, purpose))

    def run(role: Role) -> Iterator[tuple[int, Feed]]:
        if role == Role.FP32:
            engine: Engine = sessions.exact(forms.model)
        else:
            form = forms.baseline if role == Role.BASELINE else forms.candidate
            engine = backend.open(form, role, inputs)
        return ((rows, outputs[role]) for rows, outputs in lock_step({role: engine}, inputs))

    with blaming(purpose.place):
        comparisons = _comparisons(
            purpose, {*engines, Role.BASELINE}, [output.name for output in forms.model.outputs]
        )
    judge, steady = purpose.judge, early.steady
    runs = Runs(tested.description, notes, judge, run, comparisons, steady=steady, engines=engines)
    for rows, found in lock_step(engines, inputs):
        _add(runs, purpose, rows, dict(found))
    if purpose.golden is not None:
        purpose.golden.end()
    if purpose.reference is not None:
        purpose.reference.end()
    return runs


def _comparisons(
    purpose: RunPurpose, roles: Collection[Role], outputs: Collection[str]
) -> dict[tuple[Role, Role], Comparison]:
    """The comparisons that a verdict needs, and those of the stages between framework, model and engine."""
    main = Comparison(purpose.judge)
    found = {(Role.BASELINE, Role.INT8): main}
    if Role.BASELINE_AGAIN in roles:
        found[Role.BASELINE, Role.BASELINE_AGAIN] = Comparison(purpose.judge, main)
    if Role.FP32 in roles:
        found[Role.FP32, Role.BASELINE] = Comparison(purpose.judge, judged_only=True, metrics=False)
    if Role.SIMULATED in roles:
        found[Role.BASELINE, Role.SIMULATED] = Comparison(purpose.judge, main)
        found[Role.SIMULATED, Role.INT8] = Comparison(purpose.judge)
        found |= {(Role.FP32, role): Comparison(purpose.judge) for role in (Role.INT8, Role.SIMULATED)}
    if purpose.reference is not None:
        judge = purpose.reference.judge(purpose.judge, outputs)
        stages = [role for role in Role if role in roles and role != Role.BASELINE_AGAIN]
        found |= {(Role.FRAMEWORK, role): Comparison(judge) for role in stages}
    return found


def _add(runs: Runs, purpose: RunPurpose, rows: int, outputs: dict[Role, Feed]) -> None:
    """Compare one batch of all forms, and keep the outputs that ``purpose`` asks for."""
    if purpose.golden is not None:
        outputs[Role.BASELINE] = purpose.golden(outputs[Role.INT8])
    if purpose.reference is not None:
        outputs[Role.FRAMEWORK] = purpose.reference.next(outputs[Role.BASELINE])
    purpose.judge.splitter.look(outputs[Role.BASELINE])
    with blaming(purpose.place):
        for (against, form), comparison in runs.comparisons.items():
            comparison.add(outputs[against], outputs[form], rows)
    main = runs.comparisons[Role.BASELINE, Role.INT8]
    keep_worst(runs.worst, main, outputs[Role.BASELINE], outputs[Role.INT8])
    runs.spread.add(outputs[Role.BASELINE], rows)
    for role, feed in outputs.items():
        runs.look(role, feed)
    for role, kept, keeps in (
        (Role.BASELINE, runs.baseline, purpose.baseline),
        (Role.INT8, runs.candidate, purpose.candidate),
    ):
        for name, array in outputs[role].items() if keeps else ():
            kept.setdefault(name, []).append(array)


def _batches(outputs: Outputs) -> Iterator[tuple[int, Feed]]:
    """Yield kept outputs batch by batch, each with 0 for its number of samples, which is unknown."""
    return ((0, dict(zip(outputs, arrays, strict=True))) for arrays in zip(*outputs.values(), strict=True))


def _open_simulations(
    engines: dict[Role, Engine],
    backend: Backend,
    forms: Forms,
    sessions: Sessions,
    early: Preflight,
    purpose: RunPurpose,
) -> tuple[str, ...]:
    """Add the engines of FP32 and of the simulated candidate where needed; return notes on failures."""
    if early.fp32 is None:
        return ()
    if early.doubtful or backend.needs_simulation or purpose.reference is not None:
        engines[Role.FP32] = early.fp32()
    if backend.needs_simulation and isinstance(forms.candidate, ModelForm):
        try:
            engines[Role.SIMULATED] = sessions.exact(forms.candidate.model)
        except EngineError as error:  # of a type that it does not know, say
            return (f"no simulation: {error}",)
    return ()


def check_interface(form: Model, model: Model) -> None:
    """Raise ModelError where a form takes other inputs or gives other outputs than the case's model."""
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
    """The training framework's outputs, which a spec names as ``reference``."""

    where: str
    """The file, for messages."""
    place: str
    """The spec's key, as ``file:line:col``."""
    arrays: Mapping[str, Array]
    """By output, samples first."""
    _seen: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Output to the shape, over the batches so far, of the model's own output."""

    def next(self, like: Feed) -> Feed:
        """The arrays of the next batch in the dtypes of ``like``; DataError where their shape is another."""
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
        """Raise DataError where an array holds more or fewer samples than it was compared with."""
        for name, expected in self._seen.items():
            if self.arrays[name].shape != expected:
                self._refuse(name, str(expected))

    def _refuse(self, name: str, expected: str) -> None:
        with blaming(self.place):
            raise DataError(
                f"{self.where}: '{name}' has shape {self.arrays[name].shape}, the model gives {expected}: "
                "save the framework's outputs for the same samples, in the same order, samples first"
            )

    def judge(self, judge: Judge, outputs: Collection[str]) -> Judge:
        """The judge of a case, restricted to the outputs that the reference has arrays for."""
        return judge if self.arrays.keys() >= set(outputs) else judge.on(self.arrays)


def read_reference(case: Case, model: Model) -> Reference | None:
    """The case's reference: a .npz of one array per output, or of some; or a .npy for one; None without.

    Raises DataError where the file is not there or cannot be read, or an array is no output's.
    """
    if case.reference is None:
        return None
    with case.at("reference"):
        where = f"reference: {case.reference}"
        arrays = _read(case.reference, where, case, model)
    return Reference(where, case.place("reference"), arrays)


def _read(file: str, where: str, case: Case, model: Model) -> Mapping[str, Array]:
    """The arrays by the names of the model's outputs."""
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
