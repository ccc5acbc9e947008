"""Results as frozen dataclasses of numbers and enumerations. ``report/`` makes sentences of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from pytest_int8acc.results.causes import CalibrationLine, Diagnosis, LayerError, Migration, Repair, StageLine
from pytest_int8acc.results.course import Doing, Part, Phase, PhaseName, Stop
from pytest_int8acc.results.engines import EngineInfo, EngineLayer, Latency, Role
from pytest_int8acc.results.evidence import Cost, Evidence, HeldOut, Place, SampleSet
from pytest_int8acc.results.precision import LayerShare, PrecisionContract
from pytest_int8acc.results.samples import View, WorstSample
from pytest_int8acc.results.scores import (
    Acceptance,
    BlindSpots,
    Bound,
    FloatNan,
    Interval,
    LineFit,
    OutputResult,
    Score,
)
from pytest_int8acc.results.search import (
    Certificate,
    Culprit,
    Ending,
    LayerLine,
    Neighbours,
    SearchOutcome,
    Tradeoff,
    TradeoffPoint,
    TrialLine,
    Wire,
)
from pytest_int8acc.results.sessions import DefaultSession, Difference, Level

__all__ = ["CaseResult", "Finding", "Severity", "by_rule"]
__all__ += ["CalibrationLine", "Diagnosis", "LayerError", "Migration", "Repair", "StageLine"]
__all__ += ["Doing", "Part", "Phase", "PhaseName", "Stop"]
__all__ += ["EngineInfo", "EngineLayer", "Latency", "Role"]
__all__ += ["Cost", "Evidence", "HeldOut", "Place", "SampleSet"]
__all__ += ["LayerShare", "PrecisionContract"]
__all__ += ["View", "WorstSample"]
__all__ += ["Acceptance", "BlindSpots", "Bound", "FloatNan", "Interval", "LineFit", "OutputResult", "Score"]
__all__ += [
    "Certificate",
    "Culprit",
    "Ending",
    "LayerLine",
    "Neighbours",
    "SearchOutcome",
    "Tradeoff",
    "TradeoffPoint",
    "TrialLine",
    "Wire",
]
__all__ += ["DefaultSession", "Difference", "Level"]

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Finding:
    """Something wrong or suspicious in the model or the data, found without running the INT8 candidate."""

    rule: str
    """Short name, like ``nonzero-zero-point``."""
    subject: str
    """The name of the node, tensor or model input that is wrong or suspicious."""
    text: str
    """The fault that was found, and its consequence."""
    remedy: str
    severity: Severity
    source: Literal["lint", "data"] = "lint"


def by_rule(findings: Iterable[Finding]) -> list[list[Finding]]:
    """Returns the findings grouped by rule: errors first, otherwise in the order of their first finding."""
    rules: dict[tuple[str, str, str], list[Finding]] = {}
    for finding in findings:
        rules.setdefault((finding.severity, finding.source, finding.rule), []).append(finding)
    severities = get_args(Severity)
    return sorted(rules.values(), key=lambda group: severities.index(group[0].severity))


@dataclass(frozen=True, repr=False)
class CaseResult:
    """The result of one case: its scores, the verdict, and what was found out about a failure."""

    name: str
    spec: str
    samples: int
    data: str
    """A description of the inputs: the files or functions that they come from."""
    baseline: str
    candidate: str
    backend: str
    """A description of the runtime: its name, version, device and mode."""
    outputs: tuple[OutputResult, ...]
    metrics: tuple[Score, ...] = ()
    int8_groups: int = 0
    high_groups: int = 0
    low: str = ""
    """The low format of the candidate's layers: ``fp8``, ``fp16`` or ``bf16``; empty for INT8."""
    int8_macs: float | None = None
    """The share, from 0 to 1, of the model's multiply-accumulates that the case requests in its low format.

    Multiply-accumulates of recurrent layers and of bodies of Loop, Scan and If are included. None if the
    share is not known, for example for an engine that was built beforehand.
    """
    precision: PrecisionContract | None = None
    """The formats that the case asked for, and the formats in which the engine ran."""
    warnings: tuple[str, ...] = ()
    """Reasons to doubt the verdict. They are shown even if the case passes."""
    notes: tuple[str, ...] = ()
    """Facts that help to judge the verdict, such as the noise, and the error of FP16 against FP32."""
    seconds: float = 0.0
    """The time of all phases together, in seconds."""
    phases: tuple[Phase, ...] = ()
    """The time of each phase, in the order in which the phases began."""
    stopped: Stop | None = None
    """The event that ended the search or the diagnosis early; None if nothing was left out."""
    search: SearchOutcome | None = None
    """The outcome of the precision search; None if none was run."""
    written: tuple[str, ...] = ()
    """Paths of the files that the case wrote."""
    engines: tuple[EngineInfo, ...] = ()
    """The engines that TensorRT built; empty if the case ran in ONNX Runtime."""
    findings: tuple[Finding, ...] = ()
    """The findings of the lint in the model, and those of the checks of the data."""
    diagnosis: Diagnosis | None = None
    golden: str = ""
    """A text that compares the case with its golden, a file of recorded outputs and accepted scores.

    Empty if the case has no golden.
    """
    recorded: tuple[Acceptance, ...] | None = None
    """The scores that this run wrote into the golden file as accepted; None if it wrote no golden file."""
    blind: BlindSpots | None = None
    """Useless outputs, like zeros, that meet all criteria, and metrics by which the baseline is no better
    than chance. None if there are neither, or if the criteria were not tried on useless outputs."""
    blind_reason: str = ""
    """The user's reason for accepting criteria that useless outputs meet; empty if the spec gives none."""
    fails_undecided: bool = False
    """Whether a case fails if other samples may reverse its verdict, because of ``undecided: fail``."""
    random_inputs: bool = False
    """Whether the inputs are random numbers. A verdict then says nothing about real data."""
    place: Place = "exact"
    """The kind of session or engine in which the candidate ran. The verdict is based on this run."""
    digest: str = ""
    """The digest of the input data; empty if it is not known."""
    default_session: DefaultSession | None = None
    """How the candidate's results in a default session of ONNX Runtime differ from those in a session with
    unfused Q/DQ. None if they do not differ, or if they were not compared."""
    float_nan: FloatNan | None = None
    """The output of the baseline that holds NaN and therefore fails the case; None if there is none."""
    fixed_session: DefaultSession | None = None
    """How the results of the recommended fix in a default session of ONNX Runtime differ from those in a
    session with unfused Q/DQ. None if they do not differ, or if they were not compared."""

    def __repr__(self) -> str:
        """Returns one line for assertions: ``<CaseResult digits: failed, 4 of 4 limits missed>``."""
        judged = [score for score in self.scores if score.limit is not None]
        missed = sum(not score.passed for score in judged)
        limits = f"{missed} of {len(judged)} limits missed" if judged else "no limits"
        return f"<CaseResult {self.name}: {'passed' if self.passed else 'failed'}, {limits}>"

    @property
    def low_format(self) -> str:
        """The low format of the case as sentences name it: ``INT8``, ``FP8``, ``FP16`` or ``BF16``."""
        return self.low.upper() or "INT8"

    @property
    def evidence(self) -> Evidence:
        """The evidence for the verdict: where the candidate ran, its samples, its scores and its cost."""
        before = ("setup", "calibration", "runs")
        seconds = sum(phase.seconds for phase in self.phases if phase.name in before)
        return Evidence(
            "form",
            self.place,
            SampleSet(self.samples, self.digest),
            scores=self.scores,
            realized=self.precision,
            cost=Cost(1.0, seconds, len(self.engines)),
        )

    @property
    def answer(self) -> Repair | None:
        """The recommended remedy; None if no remedy meets the criteria."""
        return self.diagnosis.repairs[0] if self.diagnosis and self.diagnosis.repairs else None

    @property
    def culprits(self) -> tuple[Culprit, ...]:
        """The layers that the plan of the search keeps in high precision; empty without a search."""
        return self.search.culprits if self.search is not None else ()

    @property
    def mismatches(self) -> tuple[Finding, ...]:
        """The findings on the preprocessing mismatch that explains the failure; empty if there is none."""
        rule = self.diagnosis.preprocessing_mismatch if self.diagnosis is not None else ""
        return tuple(found for found in self.findings if found.source == "data" and found.rule == rule)

    @property
    def fix(self) -> Repair | None:
        """The recommended remedy; if no remedy was tried, the plan that the search found; otherwise None."""
        search = self.search
        if self.answer is not None or search is None or not search.found or not search.culprits:
            return self.answer
        samples = self.evidence.proved_on
        return Repair(
            kind="high",
            layers=search.kept,
            rescales=(),
            evidence=Evidence("plan", self.place, samples, held_out=search.held_out, scores=search.fixed),
            verified=search.verified,
            price=1 - search.int8_share,
            precision=search.precision,
            holds=search.holds,
        )

    @property
    def scores(self) -> tuple[Score, ...]:
        """All scores: first those of the outputs, then those of the metrics."""
        return tuple(s for output in self.outputs for s in output.scores) + self.metrics

    @property
    def unsteady(self) -> tuple[Score, ...]:
        """The scores that decide the verdict and whose confidence interval contains their limit."""
        if self._is_met:
            return tuple(score for score in self.scores if not score.steady)
        missed = [score for score in self.scores if not score.passed]
        certain = any(score.steady for score in missed) or any(output.problem for output in self.outputs)
        return () if certain else tuple(missed)

    @property
    def kept(self) -> bool:
        """Whether every score meets its limit, and no output has a problem such as NaN."""
        return all(output.passed for output in self.outputs) and all(score.passed for score in self.metrics)

    @property
    def is_misbuilt(self) -> bool:
        """Whether the case fails because its engine provably ran in another format than requested."""
        return self.precision is not None and self.precision.is_broken

    @property
    def fatal_blind(self) -> BlindSpots | None:
        """The useless outputs and metrics in ``blind`` if they fail the case; otherwise None.

        They do if zeros or shuffled outputs meet all criteria, or are as good as the baseline by a metric,
        unless the spec gives a reason for accepting this.
        """
        blind = self.blind
        if blind is None or self.blind_reason:
            return None
        return blind if blind.fatal_outputs or blind.beaten else None

    @property
    def is_blind(self) -> bool:
        """Whether useless outputs meet all limits or are as good by a metric, unless the spec accepts it."""
        return self.fatal_blind is not None

    @property
    def _is_met(self) -> bool:
        """Whether limits are met, the engine ran as requested, and criteria reject useless outputs."""
        return self.kept and not self.is_misbuilt and not self.is_blind

    @property
    def is_undecided(self) -> bool:
        """Whether the case fails only because other samples may reverse its verdict."""
        return self.fails_undecided and self._is_met and bool(self.unsteady)

    @property
    def passed(self) -> bool:
        """Whether the case passes.

        It passes if limits are met, the engine ran as requested, and criteria reject useless outputs. If the
        spec has ``undecided: fail``, other samples must also be unlikely to reverse this verdict.
        """
        return self._is_met and not self.is_undecided
