"""Results with everything in them that a report can show."""

from __future__ import annotations

import base64
import math
from dataclasses import replace
from typing import Any

from pytest_int8acc.report.json import case_entry, report_of
from pytest_int8acc.results import (
    CalibrationLine,
    CaseResult,
    Culprit,
    Diagnosis,
    Ending,
    EngineInfo,
    EngineLayer,
    Finding,
    Latency,
    LayerError,
    LineFit,
    Neighbours,
    OutputResult,
    Repair,
    Role,
    Score,
    SearchOutcome,
    StageLine,
    Tradeoff,
    TradeoffPoint,
    TrialLine,
    View,
    Wire,
    WorstSample,
)
from pytest_int8acc.results.causes import Cause, Histogram, Rescale
from pytest_int8acc.results.samples import SampleRole

WIDE, NARROW = "/layer2/0/conv1/Conv", "/layer4/1/conv2/Conv"
COSINE = Score("logits", "cosine", 0.8741, limit=0.999, noise=1.0)
SQNR = Score("logits", "sqnr_db", 24.5, limit=20.0, noise=float("inf"))
TOP1 = Score("metrics.py:top1", "top1", 0.921, limit=0.98, noise=0.0, baseline=0.985)
LINE = LineFit(0.75, -0.5, 0.89, ("small", "shifted"), -0.4, 1.6)
REPORTED = Score("logits", "max_abs", 0.0625)


def values(amax: float, bins: int = 48) -> Histogram:
    """Values of half a bell, four deviations up to ``amax``."""
    counts = [round(1600 * math.exp(-((4 * i / bins) ** 2) / 2)) for i in range(bins)]
    return Histogram(tuple(amax * i / bins for i in range(bins + 1)), tuple(counts))


def picture(tensor: str, size: int = 16) -> View:
    """A gradient of red and green."""
    rows = (
        bytes(c for x in range(size) for c in (255 * x // size, 255 * y // size, 64)) for y in range(size)
    )
    pixels = tuple(base64.b64encode(row).decode() for row in rows)
    return View(tensor, "input", (3, 224, 224), -2.1, 2.6, 3, pixels)


def wave(tensor: str, role: SampleRole, size: float) -> View:
    """A sine."""
    values = tuple(round(size * math.sin(i / 8), 4) for i in range(128))
    return View(tensor, role, (1000,), -size, size, values=values)


def engine(role: Role, weighted: int, int8: int, ms: float | None) -> EngineInfo:
    """An engine with ``int8`` of its ``weighted`` layers in INT8, and a few others."""
    layers = [
        EngineLayer(f"conv{i}", (f"/conv{i}/Conv",), "weighted", "int8" if i < int8 else "fp16")
        for i in range(weighted)
    ]
    if role != "baseline":
        layers += [EngineLayer(f"qdq{i}", (), "qdq", "int8") for i in range(3)]
        layers += [EngineLayer(f"reformat{i}", (), "reformat", "fp16") for i in range(7)]
    latency = None if ms is None else Latency(ms, ms * 0.98, ms * 1.05, 200)
    return EngineInfo(
        role, "TensorRT 10.4, NVIDIA L4", 31.2, role == "baseline", 9 << 20, tuple(layers), latency
    )


ENGINES = (
    engine(Role.BASELINE, 54, 0, 0.82),
    engine(Role.INT8, 54, 45, 0.61),
    engine(Role.FIXED, 54, 43, 0.63),
)
FINDINGS = (
    Finding(
        "nonzero-zero-point",
        "/stem/QuantizeLinear",
        "zero point 3 on 'images'; TensorRT rejects the model",
        "quantize symmetrically: ActivationSymmetric=True",
        "error",
    ),
    Finding("uint8-zero", "/fc/Q", "uint8 with zero point 0 is read as int8", "use int8", "warning"),
    Finding("range-255", "images", "values reach 255", "divide by 255", "warning", "data"),
    Finding("unread-pair", "/x", "a Q/DQ pair that nobody reads", "", "note"),
)
CULPRITS = (
    Culprit(
        WIDE,
        "Conv",
        (WIDE, "/layer2/0/relu/Relu"),
        replace(COSINE, value=0.9312),
        0.083,
        Cause(
            "scale-too-wide",
            "range-too-wide",
            "/layer1/1/relu/Relu_output_0",
            {"sqnr_db": 9.5, "best_sqnr_db": 40.5, "lost_db": 31.0, "factor": 61.2, "codes_used": 0.03},
            values(4.2),
            4.2,
            257.0,
        ),
        neighbours=Neighbours(
            (
                Wire("/layer1/1/relu/Relu_output_0", "node", "/layer1/1/relu/Relu", "Relu", "int8", 2.02, 1),
                Wire("layer2.0.conv1.weight", "constant", format="int8", scale=0.0071, scales=128),
            ),
            (Wire("/layer2/0/relu/Relu_output_0", "node", NARROW, "Conv", "int8", 0.04, 1),),
            more=2,
        ),
    ),
    Culprit(
        NARROW,
        "Conv",
        (NARROW,),
        replace(COSINE, value=0.9941),
        0.021,
        Cause(
            "saturation",
            "cut-off",
            "/layer4/1/relu/Relu_output_0",
            {"sqnr_db": 17.0, "best_sqnr_db": 38.0, "clipped": 0.081, "clipped_energy": 0.02},
            values(11.8),
            11.8,
            5.1,
        ),
    ),
)
SEARCH = SearchOutcome(
    strategy="minimal",
    precision="fp16",
    culprits=CULPRITS,
    found=True,
    minimal=True,
    verified=True,
    fixed=(replace(COSINE, value=0.9996), replace(SQNR, value=33.1), replace(TOP1, value=0.984)),
    ending=Ending("proven", 2, 54),
    trials=(
        TrialLine((), False, 126.0, 1.0, "nothing kept high"),
        TrialLine((WIDE, NARROW), True, 0.4, 0.5, "drop"),
    ),
    probes=18,
    cost=2.75,
    builds=1,
    seconds=3.2,
    int8_share=0.896,
    held_out=51,
    tradeoff=Tradeoff(
        (WIDE, NARROW),
        (
            TradeoffPoint(0, 0.0, COSINE),
            TradeoffPoint(1, 0.06, replace(COSINE, value=0.997)),
            TradeoffPoint(2, 0.104, replace(COSINE, value=0.9996)),
        ),
        32,
    ),
)
LAYERS = tuple(
    LayerError(name, "Conv", sqnr - 4, 0.99, sqnr, 0.995)
    for name, sqnr in [
        (WIDE, 9.5),
        (NARROW, 17.0),
        *((f"/layer{i % 4 + 1}/conv{i}/Conv", 28.0 + i) for i in range(16)),
    ]
)
DIAGNOSIS = Diagnosis(
    met=False,
    stages=(
        StageLine("FP32 ONNX", True, (replace(COSINE, value=0.9999999),), "framework"),
        StageLine("FP16", True, (replace(COSINE, value=0.99999),), "FP32 ONNX"),
        StageLine("Q/DQ in ONNX Runtime", False, (COSINE,), "FP16", fits={"logits": LINE}),
        StageLine("engine INT8", True, (replace(COSINE, value=0.99993),), "Q/DQ in ONNX Runtime"),
    ),
    first_stage="Q/DQ in ONNX Runtime",
    repairs=(
        Repair(
            "recalibrate",
            (),
            (Rescale("/layer1/1/relu/Relu_output_0", "percentile 99.99", 2.02, 0.033),),
            (replace(COSINE, value=0.9993), replace(SQNR, value=33.1), replace(TOP1, value=0.984)),
            True,
            0.0,
            culprits=2,
        ),
        Repair("high", (WIDE, NARROW), (), (replace(COSINE, value=0.9996),), True, 0.104, culprits=2),
    ),
    layers=LAYERS,
    calibrations=(
        CalibrationLine("minmax", (replace(COSINE, value=0.91),), False),
        CalibrationLine("entropy", (replace(COSINE, value=0.9994),), True),
    ),
    notes=("calibration data covers 3 of 10 classes",),
    worst=(
        WorstSample(
            "logits",
            182,
            4.2,
            (picture("images"), wave("logits", "baseline", 9.0), wave("logits", "INT8", 6.5)),
        ),
    ),
)


def case(name: str = "resnet18", value: float = 0.8741, **changes: Any) -> CaseResult:
    """A case whose cosine is ``value``; a good one is bare, the others have it all unless changed."""
    cosine = replace(COSINE, value=value)
    good = cosine.passed
    output = OutputResult("logits", "float32", "(256, 1000)", (cosine, SQNR, REPORTED))
    if not good:
        output = replace(output, fit=LINE, worst_sample=182)
    result = CaseResult(
        name=name,
        spec=f"models/{name}.int8acc.yaml",
        samples=256,
        data="data/val.npz",
        baseline="FP16",
        candidate="INT8 in 54 of 54 groups, entropy over 500 samples, rest FP16",
        backend="TensorRT 10.4, NVIDIA L4",
        outputs=(output,),
        notes=("21 of 22 tensors have a scale",),
        engines=ENGINES[:2],
    )
    if not good:
        found = {"search": SEARCH, "diagnosis": DIAGNOSIS, "findings": FINDINGS, "engines": ENGINES}
        result = replace(
            result, **found, metrics=(TOP1,), golden="the INT8 scores are 0.1 below those accepted"
        )
    return replace(result, **changes)


def entry(
    result: CaseResult | None, name: str = "resnet18", verdict: str = "", **more: Any
) -> dict[str, Any]:
    """A case of report.json."""
    nodeid = f"models/{name}.int8acc.yaml::{name}"
    if result is not None:
        verdict = verdict or ("passed" if result.passed else "failed")
        more = {"message": "" if result.passed else "INT8 accuracy: missed", **more}
    said = {"line": 1, "finished": "2026-01-02T03:04:05.678+00:00", "message": "", **more}
    return case_entry(nodeid, verdict, 12.5, result, None, **said)


def report(*entries: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A report of those cases."""
    tool = {"name": "pytest-int8acc", "version": "0.1.0"}
    return report_of(
        entries, more.pop("errors", ()), tool=tool, finished="2026-01-02T03:04:06.000+00:00", **more
    )


def full_report() -> dict[str, Any]:
    """Every verdict once."""
    missing = "models/yolo.onnx: no such file; write the model's path relative to the spec"
    return report(
        entry(case("resnet18", written=("models/resnet18/fixed.onnx", "models/resnet18/plan.yaml"))),
        entry(case("mobilenet", 0.9995), "mobilenet"),
        entry(case("vit", 0.99995, engines=()), "vit"),
        entry(case("unet", 0.992, diagnosis=None, engines=(), findings=()), "unet", "xfailed"),
        entry(None, "yolo", "error", message=missing),
        entry(None, "bert", "skipped", message="needs a model that is not public"),
        errors=[{"nodeid": "models/gpt.int8acc.yaml", "message": "models/gpt.int8acc.yaml:3:1: 'modle'"}],
    )
