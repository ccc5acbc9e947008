"""What was measured, as frozen dataclasses of plain numbers; verdicts can be drawn again from them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from pytest_int8acc.results.causes import CalibrationLine, Diagnosis, LayerError, Migration, Repair, StageLine
from pytest_int8acc.results.course import Doing, Part, Phase, PhaseName, Stop
from pytest_int8acc.results.engines import EngineInfo, EngineLayer, Latency, Role
from pytest_int8acc.results.evidence import Cost, Evidence, Place, SampleSet
from pytest_int8acc.results.precision import LayerShare, PrecisionContract
from pytest_int8acc.results.samples import View, WorstSample
from pytest_int8acc.results.scores import (
    Acceptance,
    BlindSpots,
    Bound,
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

__all__ = ["CaseResult", "Finding", "Severity", "by_rule"]
__all__ += ["CalibrationLine", "Diagnosis", "LayerError", "Migration", "Repair", "StageLine"]
__all__ += ["Doing", "Part", "Phase", "PhaseName", "Stop"]
__all__ += ["EngineInfo", "EngineLayer", "Latency", "Role"]
__all__ += ["Cost", "Evidence", "Place", "SampleSet"]
__all__ += ["LayerShare", "PrecisionContract"]
__all__ += ["View", "WorstSample"]
__all__ += ["Acceptance", "BlindSpots", "Bound", "Interval", "LineFit", "OutputResult", "Score"]
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

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Finding:
    """Something wrong, or suspicious, that was seen without running INT8."""

    rule: str
    """Short name, like ``nonzero-zero-point``."""
    subject: str
    """The node, tensor or input."""
    text: str
    """What is so, and its consequence."""
    remedy: str
    severity: Severity
    source: Literal["lint", "data"] = "lint"


def by_rule(findings: Iterable[Finding]) -> list[list[Finding]]:
    """The findings of each rule together, errors first, else in the order in which rules are met."""
    rules: dict[tuple[str, str, str], list[Finding]] = {}
    for finding in findings:
        rules.setdefault((finding.severity, finding.source, finding.rule), []).append(finding)
    severities = get_args(Severity)
    return sorted(rules.values(), key=lambda group: severities.index(group[0].severity))


@dataclass(frozen=True, repr=False)
class CaseResult:
    """One case, measured."""

    name: str
    spec: str
    samples: int
    data: str
    """Where the inputs come from, in words."""
    baseline: str
    candidate: str
    backend: str
    """Runtime, version, device and mode."""
    outputs: tuple[OutputResult, ...]
    metrics: tuple[Score, ...] = ()
    int8_groups: int = 0
    high_groups: int = 0
    low: str = ""
    """What the candidate's groups run in, ``fp16`` or ``bf16``; empty for INT8."""
    int8_macs: float | None = None
    """Share of the model's multiply-accumulates that are asked for in INT8, recurrent layers and bodies of
    Loop, Scan and If included; None where it is not known, as of an engine that was built already."""
    precision: PrecisionContract | None = None
    """The formats that were asked for, and those in which the engine ran."""
    warnings: tuple[str, ...] = ()
    """What makes the verdict worth less than it looks; shown even where the case passes."""
    notes: tuple[str, ...] = ()
    """What the reader must know to trust the verdict: random data, coverage, noise, FP16 against FP32."""
    seconds: float = 0.0
    """All phases together."""
    phases: tuple[Phase, ...] = ()
    """Where the time went, in the order in which phases began."""
    stopped: Stop | None = None
    """What ended the case after its verdict; None where all that was wanted was done."""
    search: SearchOutcome | None = None
    """What a search found, where one was run."""
    written: tuple[str, ...] = ()
    """Files of the report folder."""
    engines: tuple[EngineInfo, ...] = ()
    """Engines of TensorRT; empty on ONNX Runtime."""
    findings: tuple[Finding, ...] = ()
    """What lint and a look at the data found."""
    diagnosis: Diagnosis | None = None
    golden: str = ""
    """How the case stands to its golden, in words; empty where it has none."""
    recorded: tuple[Acceptance, ...] | None = None
    """What the golden that this run wrote accepts; None where it wrote none."""
    blind: BlindSpots | None = None
    """Dead outputs that keep all criteria; None where all were caught, or where that was not tried."""
    blind_reason: str = ""
    """Why the spec accepts criteria that dead outputs keep."""
    place: Place = "exact"
    """Where the INT8 form ran for the verdict."""
    digest: str = ""
    """Of the data; empty where it is not known."""

    def __repr__(self) -> str:
        """One line, for a test that asserts on it: ``<CaseResult digits: failed, 4 of 4 limits missed>``."""
        judged = [score for score in self.scores if score.limit is not None]
        missed = sum(not score.passed for score in judged)
        limits = f"{missed} of {len(judged)} limits missed" if judged else "no limits"
        return f"<CaseResult {self.name}: {'passed' if self.passed else 'failed'}, {limits}>"

    @property
    def low_format(self) -> str:
        """The format that the case is about, as sentences name it: ``INT8``, ``FP8``, ``FP16``, ``BF16``."""
        return self.low.upper() or "INT8"

    @property
    def evidence(self) -> Evidence:
        """What the verdict rests on."""
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
        """The way to meet the criteria that is recommended; its files lead the report folder."""
        return self.diagnosis.repairs[0] if self.diagnosis and self.diagnosis.repairs else None

    @property
    def fixed(self) -> tuple[Score, ...]:
        """Scores of the answer; of the search's own plan where there is none."""
        if self.answer is not None:
            return self.answer.scores
        return self.search.fixed if self.search else ()

    @property
    def scores(self) -> tuple[Score, ...]:
        """All scores, outputs first."""
        return tuple(s for output in self.outputs for s in output.scores) + self.metrics

    @property
    def unsteady(self) -> tuple[Score, ...]:
        """Scores on which the verdict hangs, which might be judged otherwise on other samples like these."""
        if self.passed:
            return tuple(score for score in self.scores if not score.steady)
        missed = [score for score in self.scores if not score.passed]
        certain = any(score.steady for score in missed) or any(output.problem for output in self.outputs)
        return () if certain else tuple(missed)

    @property
    def kept(self) -> bool:
        """True where every limit is kept."""
        return all(output.passed for output in self.outputs) and all(score.passed for score in self.metrics)

    @property
    def is_misbuilt(self) -> bool:
        """Whether the engine provably ran in another format than the one asked for."""
        return self.precision is not None and self.precision.is_broken

    @property
    def is_blind(self) -> bool:
        """Whether the limits are kept by dead outputs, too, and the spec does not accept that."""
        return self.blind is not None and self.blind.fatal and not self.blind_reason

    @property
    def passed(self) -> bool:
        """True where every limit is kept, by what was asked for, and by criteria that can fail."""
        return self.kept and not self.is_misbuilt and not self.is_blind
