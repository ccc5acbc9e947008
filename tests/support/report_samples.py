"""Twenty-odd results with fixed numbers, which together show every sentence that a report has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, get_args

import report_cases
from report_cases import COSINE, FINDINGS, REPORTED, SEARCH, SQNR, TOP1, engine

from pytest_int8acc.results import (
    Acceptance,
    CaseResult,
    Certificate,
    Culprit,
    Diagnosis,
    Ending,
    Finding,
    Interval,
    LayerLine,
    LayerShare,
    LineFit,
    Migration,
    OutputResult,
    Part,
    Phase,
    PrecisionContract,
    Repair,
    Role,
    Score,
    StageLine,
    Stop,
)
from pytest_int8acc.results.causes import Cause, CauseKind, Jump, OddRanges, Rescale, Stage, TakenBack

MISSED = replace(COSINE, limit=0.999)
KEPT = replace(COSINE, value=0.9995)


def case(*scores: Score, **changes: Any) -> CaseResult:
    """A case of one output on ONNX Runtime, without search and diagnosis unless ``changes`` have them."""
    result = CaseResult(
        name="net",
        spec="net.int8acc.yaml",
        samples=397,
        data="val.npz",
        baseline="FP16",
        candidate="INT8",
        backend="ONNX Runtime 1.31.1, CPU, exact",
        outputs=(OutputResult("logits", "float32", "(397, 10)", scores or (MISSED,)),),
        int8_groups=9,
    )
    return replace(result, **changes)


def output(result: CaseResult, **changes: Any) -> CaseResult:
    """The same with a changed output."""
    return replace(result, outputs=(replace(result.outputs[0], **changes),))


# --- searches

FOUND = replace(
    SEARCH,
    trials=(),
    culprits=(
        Culprit("/conv5/Conv", "Conv", ("/conv5/Conv",), replace(MISSED, value=0.9312), 0.125),
        Culprit("/fc/Gemm", "Gemm", ("/fc/Gemm",), None, 0.01),
    ),
    fixed=(replace(MISSED, value=0.9996),),
    ending=Ending("proven", 2, 20),
    int8_share=0.865,
    tradeoff=None,
)


def searched(ending: Ending, certificate: Ending | None = None, **changes: Any) -> CaseResult:
    """A case whose search ended so; its plan was not certified for the other reason."""
    certified = None if certificate is None else Certificate(2, False, certificate)
    return case(search=replace(FOUND, ending=ending, certificate=certified, **changes))


NO_PLAN: dict[str, Any] = {"found": False, "verified": False, "minimal": False, "culprits": (), "fixed": ()}
ROW = LayerLine(1, "conv1", "[1, 10]", 0.9797, True, "Choose layer [1]")
PAIRS = ("a_DQ", "b_DQ")

# --- causes

LOSS = {"sqnr_db": 12.34, "best_sqnr_db": 40.0}
CHANNELS = {"channel_amax": 60.0, "channel_ratio": 30.0, "codes_left": 4.0}
FP16: dict[str, Any] = {"amax": 1e6, "reach": 65504.0, "format": "fp16"}


def cause(kind: CauseKind, symptom: Any, numbers: dict[str, float] | None = None, **facts: Any) -> Cause:
    """A cause of tensor ``t``."""
    facts = {"tensor": "t", "amax": 4.2, "reach": 257.0, **facts}
    return Cause(kind, symptom, numbers={**LOSS, **(numbers or {})}, **facts)


def taken(cause: Cause, kind: Any, share: float = 0.97, **facts: Any) -> Cause:
    """The same, shown by an ablation."""
    back = TakenBack(kind, "t", share, met=True, **facts)
    return replace(cause, taken_back=back, tried=(back,))


NOISE = cause("accumulated-noise", "noise-adds-up")
#: An activation's range.
RANGES = (
    cause("scale-too-wide", "range-too-wide", {"factor": 61.24, "codes_used": 0.0163}),
    cause("saturation", "cut-off", {"clipped": 0.0813, "clipped_energy": 0.9987}, amax=11.8, reach=5.1),
    cause(
        "zero-point",
        "one-sided",
        {"zero_point": -100, "low": -0.5, "high": 4.0, "clipped": 0.02},
        format="int8",
    ),
    cause("zero-scale", "vanishing-scale", {"scale": 1e-9, "least_scale": 6e-8}, format="fp16"),
    cause("missing-scale", "no-scale", others=("a", "b")),
    taken(cause("activation-outliers", "large-channels", CHANNELS, channels={5: 60.0}), "channels"),
    taken(cause("activation-outliers", "large-channels", CHANNELS, channels={12: 60.0, 7: 50.0}), "channels"),
    cause("activation-outliers", "large-channels", CHANNELS, channels={i: 60.0 - i for i in range(7)}),
    cause("activation-outliers", "large-values", {"p99.9": 0.5}),
    taken(cause("activation-outliers", "stretched-range", {"p99.9": 0.0}), "range"),
    cause(
        "mismatched-scales",
        "uneven-parts",
        {"channel_amax": 40.0, "quarter_amax": 1.5},
        op_type="Concat",
        node="c",
    ),
    cause(
        "mismatched-scales",
        "range-of-partner",
        {"partner_amax": 250.0},
        others=("o",),
        op_type="Add",
        node="plus",
    ),
    cause("zero-scale", "vanishing-weight-scale", {"scale": 0.0}, tensor="{scale} {0}"),
)
#: A weight's scales, and operators.
WEIGHTS = (
    cause("weight-scale", "few-codes", {"codes_used": 0.25}),
    cause("weight-scale", "weight-scales-off", {"scales": 16, "scales_off": 3, "factor": 8.0}),
    cause("weight-scale", "weight-scales-off", {"scales": 1, "scales_off": 1, "factor": 0.25}),
    cause("wrong-axis", "scales-of-other-axis", {"axis": 0, "axis_of_scales": 1}),
    taken(cause("weight-outliers", "one-scale-for-channels", {"channel_ratio": 60.0}), "per-channel"),
    taken(cause("weight-outliers", "large-weights", {"p99.9": 2.1}), "constants"),
    cause("weight-outliers", "large-idle-weights", {"amax_in_use": 0.1}),
    cause("sensitive-op", "quantized-inputs", op_type="Exp"),
    cause("sensitive-op", "quantized-inputs", op_type="Softmax", masked=True, amax=1e9),
    cause("sensitive-op", "after-softmax", others=("p",), op_type="Softmax", node="s"),
    cause("sensitive-op", "after-gelu", others=("g",)),
    cause("sensitive-op", "product-of-activations"),
    cause("sensitive-op", "decoding", op_type="Mul"),
)
#: What no scale explains, and other formats.
OTHERS = (
    taken(NOISE, "activation", 0.83, samples=32),
    taken(NOISE, "activation", 0.83, samples=32, alone=True),
    taken(NOISE, "activation", 1.0, samples=32, beyond=True),
    replace(
        taken(NOISE, "activation", 0.83),
        tried=(TakenBack("range", "t", 0.26, met=False), TakenBack("range", "other", 0.5, met=False)),
    ),
    cause("accumulated-noise", "noise-adds-up", {"factor_least": 1.0}),
    taken(cause("fp16-around", "fp16-around"), "fp32"),
    cause("engine-only", "engine-differs"),
    cause("engine-only", "engine-rounds", format="fp16"),
    cause("non-determinism", "within-noise"),
    cause("overflow", "beyond-range", **FP16),
    cause("overflow", "reads-beyond-range", **FP16),
    cause("overflow", "constant-beyond-range", **FP16),
    cause("underflow", "vanishing-values", {"lost": 12, "smallest": 2.0**-24}, format="fp16"),
    cause("underflow", "vanishing-constant", {"smallest": 2.0**-24}, amax=1e-12, format="fp16"),
    cause("cancellation", "cancelling", {"share": 0.25}, format="bf16"),
    cause("rounding", "needs-digits", format="bf16"),
)


def long_named(cause: Cause) -> Cause:
    """The same of a tensor whose name leaves no room for a whole sentence."""
    name = "/".join(["a", *["block"] * 60, "t"])
    assert cause.taken_back is not None
    return replace(cause, tensor=name, taken_back=replace(cause.taken_back, tensor=name), tried=())


def blamed(*causes: Cause, **facts: Any) -> CaseResult:
    """A case whose layers have these causes."""
    culprits = tuple(
        Culprit(f"layer{number}", "Conv", (f"layer{number}",), None, 0.01, cause)
        for number, cause in enumerate(causes, 1)
    )
    diagnosis = Diagnosis(met=False, **facts)
    return case(search=replace(FOUND, culprits=culprits), diagnosis=diagnosis)


# --- stages, remedies


def in_bodies(*layers: str, causes: Sequence[Cause] = ()) -> CaseResult:
    """A case whose culprits lie in bodies of a Loop, and others with causes in the main graph."""
    result = blamed(*causes)
    known = result.search.culprits if causes else ()
    inside = tuple(replace(FOUND.culprits[0], layer=name, cause=None, inside="Loop") for name in layers)
    return replace(result, search=replace(result.search, culprits=(*inside, *known)))


def staged(name: Stage, **facts: Any) -> CaseResult:
    """A case that leaves its limits at one stage, with one layer at fault."""
    line = StageLine(name, False, (MISSED,), "framework", **facts)
    return blamed(RANGES[0], stages=(line,), first_stage=name)


LARGE = LineFit(3.0, 0.25, 0.99, ("large", "shifted"), 0.5, 2.0)
SMALL = LineFit(0.5, 0.001, 0.97, ("small",))
UNEQUAL = Finding("unequal-pair", "conv5_DQ", "scale 1 and scale 2", "make both scales one", "warning")
RESCALE = Rescale("t", "percentile 99.99", 2.02, 0.033)
REACHED = (replace(MISSED, value=0.9996),)


def repair(kind: Any, **facts: Any) -> Repair:
    """A way to meet the criteria, of a search that found two layers."""
    known: dict[str, Any] = {"layers": (), "rescales": (), "scores": REACHED, "verified": True, "price": 0.0}
    return Repair(kind, **{**known, "culprits": 2, **facts})


REPAIRS = (
    repair("unfuse", outputs=("x", "y")),
    repair("fuse", fused=("norm1", "norm2"), layers=("a",)),
    repair("recalibrate", rescales=(RESCALE,), weights=("w", "v"), layers=("a",), data="calibration.npz"),
    repair("migrate", migration=Migration(0.5, ("mul1",), ("m",)), verified=False),
    repair("mixed"),
    repair("high", layers=("a", "b"), price=0.135),
)
SLIP = replace(FINDINGS[2], rule="data-factor", text="255 times the inputs", remedy="divide by 255")
JUMPS = (Jump("nms", "NonMaxSuppression", ("boxes", "scores"), ("chosen",)), Jump("top", "TopK", ("scores",)))
UNSTEADY = replace(KEPT, interval=Interval(0.9981, 0.9997, 0.8))

LITTLE = PrecisionContract(
    low="int8",
    source="file",
    policy="require",
    asked={"int8": 0.034, "fp16": 0.966},
    left_out=(LayerShare("conv1", 0.6), LayerShare("conv2", 0.3), LayerShare("conv3", 0.06)),
    left_out_count=4,
    least_share=0.5,
)
MISBUILT = replace(
    LITTLE,
    asked={"int8": 0.9, "fp16": 0.1},
    realized={"fp16": 0.6, "int8": 0.2, "fp32": 0.1},
    proven=0.22,
    refuted=0.67,
    untold=0.11,
    misplaced=(LayerShare("conv1", 0.5, "fp16"), LayerShare("conv2", 0.1, "fp32")),
    misplaced_count=2,
)
RESULTS: dict[str, CaseResult] = {
    "everything": report_cases.case(written=("out/net/fixed.onnx", "out/net/plan.yaml", "out/x.txt", "bare")),
    "good": case(
        KEPT, REPORTED, replace(SQNR, value=float("inf")), phases=(Phase("runs", 0.345),), seconds=2
    ),
    "good-with-cautions": case(
        UNSTEADY,
        warnings=("the data are random",),
        findings=FINDINGS,
        engines=(engine(Role.BASELINE, 3, 0, None), engine(Role.INT8, 54, 0, None)),
        int8_macs=0.034,
        precision=LITTLE,
    ),
    "another-format": case(KEPT, precision=MISBUILT),
    "another-format-and-a-miss": case(MISSED, precision=replace(MISBUILT, refuted=0.7)),
    "another-format-of-a-candidate": case(
        replace(SQNR, value=float("inf")),
        low="fp16",
        precision=replace(
            MISBUILT,
            low="fp16",
            source="candidate",
            asked={"fp16": 1.0},
            realized={"fp32": 0.4},
            refuted=1.0,
            untold=0.0,
            identical=True,
            can_obey=True,
        ),
    ),
    "another-format-accepted": case(KEPT, precision=replace(MISBUILT, policy="warn", left_out=())),
    "format-not-told": case(
        KEPT,
        precision=replace(
            MISBUILT, source="candidate", realized={}, refuted=0.0, untold=1.0, misplaced=(), can_obey=True
        ),
    ),
    "good-by-few-samples": output(case(UNSTEADY), heavy=(17, 3, 4, 5), samples=397),
    "good-without-limits": case(
        REPORTED,
        engines=(
            replace(engine(Role.INT8, 1, 0, 2.0), layers=()),
            replace(engine(Role.FIXED, 1, 1, None), untold=3),
        ),
        recorded=(Acceptance("logits", "cosine", 0.9996, 0.9998), Acceptance("logits", "kl", None, 0.1)),
        golden="kept",
    ),
    "scores": case(
        replace(COSINE, value=0.99975, note="default limit"),
        replace(SQNR, value=19.96, note="default limit"),
        replace(REPORTED, limit=0.05, bound="max"),
        REPORTED,
        metrics=(replace(TOP1, value=0.97),),
        notes=("scales: 21 of 22 tensors found in calibration.cache",),
    ),
    "problems": replace(
        case(replace(MISSED, value=float("nan"))),
        outputs=(
            OutputResult("boxes", "float32", "(397, 4)", (), problem="NaN in 3 of 1588 elements"),
            OutputResult("logits", "float32", "?", (replace(MISSED, value=float("nan")),), note="2 left out"),
        ),
        int8_groups=0,
    ),
    "not-a-number": case(replace(MISSED, value=float("nan"))),
    "by-the-last-digit": case(
        Score("logits", "top1_agreement", 0.6999999999999997, limit=0.7),
        Score("logits", "agreement", 0.7, limit=0.6999999999999997),
    ),
    "lines": output(case(), fit=SMALL, worst_sample=17, heavy=(17, 3), samples=397),
    "a-line-that-tells-nothing": output(case(), fit=replace(SMALL, meanings=())),
    "a-constant": output(blamed(RANGES[0]), fit=LineFit(0.0, 0.1, 0.0, ("constant",))),
    "many-scores": case(*[Score(f"out{i}", "cosine", 0.9, limit=0.999, note="of all") for i in range(25)]),
    "found": searched(
        FOUND.ending,
        trials=SEARCH.trials,
        notes=("its notes",),
        table=(ROW,),
        price_ms=0.0204,
        tradeoff=SEARCH.tradeoff,
    ),
    "certified": case(
        search=replace(
            FOUND,
            certificate=Certificate(3, True, FOUND.ending),
            culprits=(replace(FOUND.culprits[0], worst_alone=KEPT),),
        )
    ),
    "not-verified": searched(
        Ending("trials-spent", max_trials=8), Ending("plan-fails", 1, 20), minimal=False, verified=False
    ),
    "a-reserve": searched(Ending("first", 13, 20), with_reserve=("/conv5/Conv", "/fc/Gemm", "/pool")),
    "another-plan": searched(Ending("last", 13, 20), with_reserve=("/fc/Gemm", "/pool")),
    "most-leaves": searched(Ending("worst", 3, 20), int8_share=0.3),
    "visited": searched(Ending("visited", 2, 20), Ending("seconds-spent", max_seconds=0.5)),
    "cut-short": searched(Ending("cut-short", 9, 20), Ending("interrupted")),
    "nothing-to-do": searched(Ending("int8-passes"), culprits=()),
    "no-plan": searched(Ending("high-fails", 20, 20), **NO_PLAN),
    "no-plan-with-pairs": replace(
        searched(Ending("high-fails", 20, 20), **NO_PLAN, fixed_pairs=PAIRS), findings=FINDINGS[:1]
    ),
    "nothing-left": searched(Ending("nothing-left", groups=20), **NO_PLAN),
    "ranges-of-activations": blamed(*RANGES),
    "weights-and-operators": blamed(*WEIGHTS),
    "other-causes": blamed(*OTHERS),
    "causes-alike": blamed(*OTHERS[:2]),
    "long-names": blamed(
        *map(long_named, (RANGES[5], RANGES[9], WEIGHTS[4], WEIGHTS[5], OTHERS[0], OTHERS[5]))
    ),
    "ranges-too-wide-and-narrow": blamed(RANGES[0], ranges=OddRanges(9, (3.0,) * 6 + (250.0,), (4.0, 4.1))),
    "ranges-by-hand": blamed(ranges=OddRanges(3, (20.0, 22.0, 21.0), by_hand=(10.0, 50.0))),
    "one-range-by-hand": blamed(ranges=OddRanges(3, narrow=(20.0, 22.0, 21.0), by_hand=(10.0,))),
    "pairs": replace(blamed(fixed_pairs=PAIRS[:1]), findings=(UNEQUAL, UNEQUAL)),
    "pairs-that-stay": blamed(fixed_pairs=PAIRS[:1]),
    "pairs-beside-a-layer": searched(FOUND.ending, fixed_pairs=PAIRS),
    "in-a-body": in_bodies("loop/linear"),
    "in-bodies": in_bodies("loop/linear", "loop/choice/linear"),
    "in-a-body-too": in_bodies("loop/linear", causes=(RANGES[0],)),
    "no-cause": output(blamed(), fit=LARGE),
    "data-first": replace(
        blamed(RANGES[0], slip="data-factor", repairs=REPAIRS[2:3]), findings=(SLIP, FINDINGS[2])
    ),
    "remedies": blamed(*RANGES[:2], repairs=REPAIRS),
    **{
        f"remedy-{kept.kind}": replace(
            blamed(*RANGES[:2], repairs=(kept,)), written=("out/fixed.onnx",) * (kept.kind == "mixed")
        )
        for kept in REPAIRS
    },
    **{
        f"first-at-{stage}".replace(" ", "-").replace("/", "-"): staged(
            stage, problems={"boxes": "shapes differ"}, fits={"logits": LARGE}
        )
        for stage in get_args(Stage)
        if stage != "framework"
    },
    "together": blamed(
        RANGES[0],
        stages=(StageLine("engine INT8", True, (KEPT,), "Q/DQ in ONNX Runtime", together="FP16"),),
        first_stage="engine INT8",
    ),
    "engine-without-a-model": case(
        diagnosis=Diagnosis(
            met=False, stages=staged("engine INT8").diagnosis.stages, first_stage="engine INT8"
        )
    ),
    "met": case(diagnosis=Diagnosis(met=True)),
    "met-but-for-a-stage": case(diagnosis=Diagnosis(met=True, first_stage="FP16")),
    "jumps": replace(blamed(jumps=JUMPS), search=replace(FOUND, ending=Ending("high-fails"), **NO_PLAN)),
    "jumps-aside": blamed(RANGES[0], jumps=JUMPS[:1]),
    "stopped": case(stopped=Stop("seconds-spent", 300, get_args(Part))),
    "golden": case(
        replace(MISSED, subject="FP16 against its golden, logits"), golden="the baseline has left its golden"
    ),
    "by-luck": case(
        search=replace(FOUND, verified=False, fixed=(replace(REACHED[0], interval=Interval(0.99, 0.9999)),))
    ),
    **{
        low: replace(
            blamed(*OTHERS[-2:]),
            low=low,
            candidate=low.upper(),
            search=replace(FOUND, low=low, casts=3, joined=("c",)),
        )
        for low in ("fp8", "fp16", "bf16")
    },
    # Ends the session: the last one.
    "interrupted": case(
        stopped=Stop("interrupted", 300, ()),
        seconds=12.345,
        phases=(Phase("setup", 0.345), Phase("search", 12.0)),
    ),
}
