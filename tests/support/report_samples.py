"""Results with fixed numbers, which together show every sentence that a report has."""

from __future__ import annotations

from typing import Any

from report_cases import CASE, COSINE, REPORTED, SCHEMA, SQNR, TOP1, Plain, engine, replace

FINDINGS, SEARCH = CASE["findings"], CASE["search"]
STAGES = SCHEMA["definitions"]["StageLine"]["properties"]["name"]["enum"]
DEAD = SCHEMA["definitions"]["DeadCandidate"]["properties"]["kind"]["enum"]
PARTS = SCHEMA["definitions"]["Stop"]["properties"]["left_out"]["items"]["enum"]


def latency(ms: float) -> Plain:
    return {"median_ms": ms, "low_ms": 0.99 * ms, "high_ms": 1.02 * ms, "runs": 200}


def score(subject: str, metric: str, value: float, **more: Any) -> Plain:
    return {"subject": subject, "metric": metric, "value": value, **more}


def fit(slope: float, offset: float, correlation: float, *meanings: str, **more: Any) -> Plain:
    known = {"slope": slope, "offset": offset, "correlation": correlation, "meanings": meanings}
    return {**known, **more}


def culprit(layer: str, price: float = 0.01, **more: Any) -> Plain:
    return {"layer": layer, "op_type": "Conv", "nodes": [layer], "worst_alone": None, "price": price, **more}


def ending(kind: str, high: int = 0, groups: int = 0, **more: Any) -> Plain:
    return {"kind": kind, "high": high, "groups": groups, **more}


def share(name: str, share: float, ran: str | None = None) -> Plain:
    return {"name": name, "share": share, "ran": ran}


MISSED = replace(COSINE, limit=0.999)
KEPT = replace(COSINE, value=0.9995)
LOGITS = {"name": "logits", "dtype": "float32", "shape": "(397, 10)"}


def case(*scores: Plain, **changes: Any) -> Plain:
    """A case of one output on ONNX Runtime, without search and diagnosis unless ``changes`` have them."""
    result: Plain = {
        "name": "net",
        "spec": "net.int8acc.yaml",
        "samples": 397,
        "data": "val.npz",
        "baseline": "FP16",
        "candidate": "INT8",
        "backend": "simulated by ONNX Runtime 1.31.1, CPU",
        "outputs": [{**LOGITS, "scores": scores or [MISSED]}],
        "int8_groups": 9,
    }
    return {**result, **changes}


def output(result: Plain, **changes: Any) -> Plain:
    """The same with a changed output."""
    return replace(result, outputs=[replace(result["outputs"][0], **changes)])


# --- searches

FOUND = replace(
    SEARCH,
    trials=(),
    culprits=[
        culprit("/conv5/Conv", 0.125, worst_alone=replace(MISSED, value=0.9312)),
        culprit("/fc/Gemm", op_type="Gemm"),
    ],
    fixed=[replace(MISSED, value=0.9996)],
    held_out={
        "count": 132,
        "scores": [replace(MISSED, value=0.9995, interval={"low": 0.9993, "high": 0.9997})],
    },
    verified=True,
    holds=True,
    ending=ending("proven", 2, 20),
    int8_share=0.865,
    tradeoff=None,
)


def searched(end: Plain, certificate: Plain | None = None, **changes: Any) -> Plain:
    """A case whose search ended so; its plan was not certified for the other reason."""
    proved = {"subject": "plan", "place": "exact", "proved_on": {"count": 397}, "cost": {"builds": 2}}
    certified = None if certificate is None else {"evidence": proved, "passed": False, "ending": certificate}
    return case(search=replace(FOUND, ending=end, certificate=certified, **changes))


NO_PLAN: Plain = {
    "found": False,
    "verified": False,
    "holds": False,
    "minimal": False,
    "culprits": (),
    "fixed": (),
}
ROW = {
    "index": 1,
    "layer": "conv1",
    "shape": "[1, 10]",
    "similarity": 0.9797,
    "chosen": True,
    "line": "Choose layer [1]",
}
PAIRS = ("a_DQ", "b_DQ")

# --- causes

LOSS = {"sqnr_db": 12.34, "best_sqnr_db": 40.0}
CHANNELS = {"channel_amax": 60.0, "channel_ratio": 30.0, "codes_left": 4.0}
SLICES = {"axis": 0, "usual_channel_db": 8.5, "best_channel_db": 41.2, "gain_db": 32.7}
TRIED: Plain = {"subject": "ablation", "place": "exact", "proved_on": {"count": 32}}
FP16: Plain = {"amax": 1e6, "reach": 65504.0, "format": "fp16", "evidence": {**TRIED, "subject": "alone"}}
#: Causes that are shown without an ablation: by the verdict, or by each layer alone in FP16.
SHOWN = ("missing-scale", "engine-only", "non-determinism", "underflow", "cancellation", "rounding")


def cause(kind: str, symptom: str, numbers: Plain | None = None, **facts: Any) -> Plain:
    """A cause of tensor ``t``."""
    facts = {"tensor": "t", "amax": 4.2, "reach": 257.0, **facts}
    if kind in SHOWN:
        facts["evidence"] = {**TRIED, "subject": "form"}
    return {"kind": kind, "symptom": symptom, "numbers": {**LOSS, **(numbers or {})}, **facts}


def taken(cause: Plain, kind: str, share: float = 0.97, **facts: Any) -> Plain:
    """The same, shown by an ablation."""
    back = {"kind": kind, "tensor": "t", "share": share, "met": True, **facts}
    return replace(cause, ablation=back, tried=[back], evidence=TRIED)


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
        {"channel_amax": 40.0, "other_amax": 1.5},
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
    taken(
        cause("mismatched-scales", "uneven-channels", {"channel_amax": 541.0, "other_amax": 1.0}),
        "per-channel",
    ),
    taken(
        cause(
            "ignored-channel",
            "ignored-channels",
            {**CHANNELS, "amax_in_use": 1.9},
            channels={5: 60.0, 9: 40.0},
        ),
        "in-use",
    ),
    taken(cause("masked-range", "masked-values", {"unmasked_amax": 9.5}, amax=1e4, reach=1e4), "unmasked"),
    taken(cause("activation-outliers", "needless-values", {"amax_in_use": 0.3}), "in-use"),
)
#: A weight's scales, and operators.
WEIGHTS = (
    cause("weight-scale", "few-codes", {"codes_used": 0.25}),
    cause("weight-scale", "weight-scales-off", {"scales": 16, "scales_off": 3, "factor": 8.0}),
    cause("weight-scale", "weight-scales-off", {"scales": 1, "scales_off": 1, "factor": 0.25}),
    taken(cause("wrong-axis", "scales-of-other-axis", {**SLICES, "axis_of_scales": 1}), "per-channel"),
    taken(
        cause("weight-outliers", "one-scale-for-channels", {**SLICES, "channel_ratio": 60.0}), "per-channel"
    ),
    taken(cause("weight-outliers", "large-weights", {"p99.9": 2.1}), "constants"),
    taken(cause("weight-outliers", "large-idle-weights", {"amax_in_use": 0.1}), "in-use"),
    cause("sensitive-op", "quantized-inputs", op_type="Exp"),
    cause("sensitive-op", "quantized-inputs", op_type="Softmax", masked=True, amax=1e9),
    cause("sensitive-op", "after-softmax", others=("p",), op_type="Softmax", node="s"),
    cause("sensitive-op", "after-gelu", others=("g",)),
    cause("sensitive-op", "product-of-activations"),
    cause("sensitive-op", "decoding", op_type="Mul"),
    taken(
        cause(
            "weight-scale",
            "coarse-channels",
            {"scales": 32, "scales_off": 16, "channel_db": 0.0, "best_channel_db": 41.8},
        ),
        "constants",
    ),
    taken(cause("int8-bias", "coarse-bias", {"usual_channel_db": 11.3}), "constants"),
    taken(cause("bias-shift", "corrected-bias", {"share": 0.42}), "constants"),
    taken(cause("bias-shift", "shifted-mean", {"shift_share": 0.91}), "bias"),
    taken(cause("other-values", "other-order", {"axis": 1, "best_sqnr_db": 42.0}), "constants"),
    taken(cause("other-values", "other-codes", {"best_sqnr_db": 42.0}), "constants"),
    taken(cause("bias-shift", "shifted-bias", {"shift_share": 0.99}), "constants"),
)
#: What no scale explains, and other formats.
OTHERS = (
    taken(NOISE, "activation", 0.83, samples=32),
    taken(NOISE, "activation", 0.83, samples=32, alone=True),
    taken(NOISE, "activation", 1.0, samples=32, beyond=True),
    replace(
        taken(NOISE, "activation", 0.83),
        tried=[
            {"kind": "range", "tensor": "t", "share": 0.26, "met": False},
            {"kind": "range", "tensor": "other", "share": 0.5, "met": False},
        ],
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
    taken(cause("rounding", "too-coarse"), "activation"),
)


def long_named(cause: Plain) -> Plain:
    """The same of a tensor whose name leaves no room for a whole sentence."""
    name = "/".join(["a", *["block"] * 60, "t"])
    return replace(cause, tensor=name, ablation=replace(cause["ablation"], tensor=name), tried=[])


def blamed(*causes: Plain, **facts: Any) -> Plain:
    """A case whose layers have these causes."""
    culprits = [culprit(f"layer{number}", cause=cause) for number, cause in enumerate(causes, 1)]
    return case(search=replace(FOUND, culprits=culprits), diagnosis={"met": False, **facts})


def weak(**facts: Any) -> Plain:
    """A case whose criteria accept zeros."""
    zeros = {"kind": "zeros", "scores": [replace(KEPT, value=0.0, limit=-1.0)]}
    return case(KEPT, blind={"undetected": [zeros], "samples": 64, **facts})


def another_model(**facts: Any) -> Plain:
    """A case whose quantized model is another model than the float model."""
    other = {"file": "int8.onnx", "key": "int8", "model": "model.onnx", "weights": 9, **facts}
    return replace(
        searched(ending("high-fails", 20, 20), **NO_PLAN), diagnosis={"met": False, "other_model": other}
    )


# --- stages, remedies


def without_cause(*layers: str, causes: tuple[Plain, ...] = (), inside: str = "Scan") -> Plain:
    """A case with culprits without cause, by default deep in the body of a Scan, and others with causes."""
    result = blamed(*causes)
    known = result["search"]["culprits"] if causes else ()
    facts = {"cause": None, "inside": inside, "hidden": bool(inside)}
    found = [replace(FOUND["culprits"][0], layer=name, **facts) for name in layers]
    return replace(result, search=replace(result["search"], culprits=[*found, *known]))


def stage(name: str, passed: bool, score: Plain, against: str, **facts: Any) -> Plain:
    evidence = {**CASE["diagnosis"]["stages"][0]["evidence"], "scores": [score]}
    return {"name": name, "passed": passed, "evidence": evidence, "against": against, **facts}


def staged(name: str, **facts: Any) -> Plain:
    """A case that leaves its limits at one stage, with one layer at fault."""
    return blamed(RANGES[0], stages=[stage(name, False, MISSED, "framework", **facts)], first_stage=name)


LARGE = fit(3.0, 0.25, 0.99, "large", "shifted", shift=0.5, deviation=2.0)
#: A Cast that a quantized model has and the float model has not.
CAST: Plain = {"node": "c1", "op_type": "Cast", "tensor": "x", "to": "INT32", "changed": 0.94}
#: A Q/DQ pair at an output, and layers that consist of such pairs.
AT_OUTPUT: Plain = {"tensor": "pose_float", "output": "pose", "node": "join", "op_type": "Concat"}
PAIRED = [
    culprit("/flat", 0.0, op_type="Reshape", cause=RANGES[10]),
    culprit("/r", 0.0, op_type="Reshape", cause=NOISE),
]
TRIED_SCALES: Plain = {"trials": 24, "tensors": 7, "given_back": 0.031, "samples": 32}


def paired(*culprits: Plain) -> Plain:
    """A case with these layers at fault, all of which a fix keeps in FP16."""
    kept = ending("proven", len(culprits), 20)
    return case(search=replace(FOUND, culprits=culprits, ending=kept), diagnosis={"met": False})


def unexplained(**facts: Any) -> Plain:
    """A case that meets its criteria only with every layer out of INT8."""
    return replace(
        searched(ending("nothing-left"), **NO_PLAN),
        diagnosis={
            "met": False,
            "stages": [stage("Q/DQ in ONNX Runtime", False, MISSED, "FP16", fits={"logits": LARGE})],
            "first_stage": "Q/DQ in ONNX Runtime",
            **facts,
        },
    )


def hiding(**facts: Any) -> Plain:
    """A case whose outputs hide errors: of a tensor, of one that no criterion can name, and of a pair."""
    known = {"tensor": "logits", "operator": "Sigmoid", "node": "last"}
    found = {**known, "scores": [score("logits", "sqnr_db", 12.34, limit=20.0)], "fails": "tensor"}
    ends = {"probs": found, "others": replace(found, is_known=False), "rest": replace(found, fails="pair")}
    outputs = [{**LOGITS, "name": n, "scores": [KEPT], "preactivation": end} for n, end in ends.items()]
    return case(outputs=outputs, **facts)


def float_nan(*, half: bool = True, **facts: Any) -> Plain:
    """A case whose baseline holds NaN, so that nothing can be compared."""
    problem = "NaN in 83.33% of the elements, in the baseline as well: nothing to judge"
    result = output(case(replace(MISSED, value="nan")), problem=problem, nan_share=0.8333)
    return replace(result, float_nan={"output": "logits", "half": half, **facts}, diagnosis={"met": False})


SMALL = fit(0.5, 0.001, 0.97, "small")
UNEQUAL = {
    "rule": "unequal-pair",
    "subject": "conv5_DQ",
    "text": "scale 1 and scale 2",
    "remedy": "make both scales one",
    "severity": "warning",
}
RESCALE = {"tensor": "t", "method": "percentile 99.99", "old": 2.02, "new": 0.033}
REACHED = (replace(MISSED, value=0.9996),)
HELD_OUT = (replace(MISSED, value=0.9995, interval={"low": 0.9993, "high": 0.9997}),)


def repair(kind: str, **facts: Any) -> Plain:
    """A way to meet the criteria, of a search that found two layers."""
    known: Plain = {"layers": (), "rescales": (), "verified": True, "holds": True, "price": 0.0}
    proved = {"proved_on": {"count": 397}, "held_out": {"count": 132, "scores": HELD_OUT}}
    known["evidence"] = {**TRIED, **proved, "subject": "plan", "scores": REACHED}
    return {"kind": kind, **known, "culprits": 2, **facts}


REPAIRS = (
    repair("unfuse", outputs=("x", "y")),
    repair("fuse", fused=("norm1", "norm2"), layers=("a",)),
    repair("recalibrate", rescales=(RESCALE,), weights=("w", "v"), layers=("a",), data="calibration.npz"),
    repair(
        "migrate",
        migration={"alpha": 0.5, "folded": ["mul1"], "inserted": ["m"]},
        verified=False,
        holds=False,
    ),
    repair("mixed"),
    repair("high", layers=("a", "b"), price=0.135),
    repair("method", method="method: percentile, percentile: 99.9", data="calibration.npz"),
    repair("biases", biases=("b1", "b2")),
    repair("biases", corrected=("b1",), data="calibration.npz"),
)
#: A case that is accurate, and whose engine is not fast enough.
SPEED = score("engine", "speedup", 0.943, limit=1.05, note="0.861 ms to 0.913 ms; spread 0.01")
FASTER = repair("faster", layers=("qk", "av"), price=0.066, latency=latency(0.77), verified=False)
FASTER["evidence"] = {
    **FASTER["evidence"],
    "scores": (*REACHED, replace(SPEED, value=1.118, note="0.861 ms to 0.77 ms; spread 0.01")),
    "held_out": {"count": 0},
}


def too_slow(*trials: Plain, **changes: Any) -> Plain:
    """A case whose engine is not fast enough, and what came of these plans."""
    speed: Plain = {"limit": 1.05, "baseline": latency(0.861), "candidate": latency(0.913)}
    speed |= {"losses": {"block0/qk": 0.0123, "block0/av": 0.0345}, "trials": trials}
    found = {"speed": {**speed, **changes.pop("speed", {})}, "repairs": changes.pop("repairs", ())}
    return case(KEPT, metrics=(SPEED,), diagnosis=found, **changes)


def tried(ms: float | None, passed: bool | None = True) -> Plain:
    """A plan of two layers, and the time of its engine."""
    timed = None if ms is None else latency(ms)
    return {"layers": ("qk", "av"), "share": 0.934, "passed": passed, "latency": timed}


SLIP = replace(FINDINGS[2], rule="data-factor", text="255 times the inputs", remedy="divide by 255")
JUMPS = (
    {"node": "nms", "op_type": "NonMaxSuppression", "tensors": ["boxes", "scores"], "outputs": ["chosen"]},
    {"node": "top", "op_type": "TopK", "tensors": ["scores"]},
)
UNSTEADY = replace(KEPT, interval={"low": 0.9981, "high": 0.9997, "kept": 0.8})

LITTLE = {
    "low": "int8",
    "source": "file",
    "policy": "require",
    "asked": {"int8": 0.034, "fp16": 0.966},
    "left_out": [share("conv1", 0.6), share("conv2", 0.3), share("conv3", 0.06)],
    "left_out_count": 4,
    "least_share": 0.5,
}
MISBUILT = replace(
    LITTLE,
    asked={"int8": 0.9, "fp16": 0.1},
    realized={"fp16": 0.6, "int8": 0.2, "fp32": 0.1},
    proven=0.22,
    refuted=0.67,
    untold=0.11,
    misplaced=(share("conv1", 0.5, "fp16"), share("conv2", 0.1, "fp32")),
    misplaced_count=2,
)
RESULTS: dict[str, Plain] = {
    "everything": {**CASE, "written": ("out/net/fixed.onnx", "out/net/plan.yaml", "out/x.txt", "bare")},
    "engine-layers": replace(
        CASE,
        diagnosis=replace(
            CASE["diagnosis"],
            layers=[
                replace(layer, engine_sqnr_db=layer["sqnr_db"] - 0.25, engine_cosine=0.98)
                for layer in CASE["diagnosis"]["layers"]
            ],
        ),
    ),
    "good": case(
        KEPT, REPORTED, replace(SQNR, value="inf"), phases=({"name": "runs", "seconds": 0.345},), seconds=2
    ),
    "good-with-cautions": case(
        UNSTEADY,
        warnings=("the data are random",),
        findings=FINDINGS,
        engines=(engine("baseline", 3, 0, None), engine("INT8", 54, 0, None)),
        int8_macs=0.034,
        precision=LITTLE,
    ),
    "another-format": case(KEPT, precision=MISBUILT),
    "another-format-and-a-miss": case(MISSED, precision=replace(MISBUILT, refuted=0.7)),
    "another-format-of-a-candidate": case(
        replace(SQNR, value="inf"),
        low="fp16",
        candidate="FP16",
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
    "fast-and-faster": replace(too_slow(tried(0.77), repairs=(FASTER,)), metrics=()),
    "fast-and-no-faster": replace(too_slow(speed={"candidate": latency(0.5)}), metrics=()),
    "good-without-limits": case(
        REPORTED,
        engines=(
            replace(engine("INT8", 1, 0, 2.0), layers=()),
            replace(engine("fixed", 1, 1, None), untold=3),
        ),
        recorded=[
            {"subject": "logits", "metric": "cosine", "before": 0.9996, "now": 0.9998},
            {"subject": "logits", "metric": "kl", "before": None, "now": 0.1},
        ],
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
        case(replace(MISSED, value="nan")),
        outputs=(
            {
                **LOGITS,
                "name": "boxes",
                "shape": "(397, 4)",
                "scores": [],
                "problem": "NaN in 3 of 1588 elements",
            },
            {**LOGITS, "shape": "?", "scores": [replace(MISSED, value="nan")], "note": "2 left out"},
        ),
        int8_groups=0,
    ),
    "not-a-number": case(replace(MISSED, value="nan")),
    "nan-in-fp32-too": float_nan(in_fp32=True, node="lost", op_type="Where"),
    "nan-of-the-float-model": float_nan(half=False, in_fp32=True),
    "nan-of-fp16": float_nan(in_fp32=False),
    "nan-of-a-baseline": float_nan(in_fp32=None),
    "pair-at-an-output": paired(replace(PAIRED[0], quantizer=AT_OUTPUT)),
    "pairs-and-layers": paired(
        replace(PAIRED[0], quantizer=AT_OUTPUT),
        replace(PAIRED[1], quantizer={"tensor": "x", "output": ""}),
        culprit("/conv5/Conv", cause=NOISE),
    ),
    "quantized-in-vain": unexplained(scales=TRIED_SCALES),
    "quantized-by-scales": unexplained(scales=replace(TRIED_SCALES, given_back=0.72)),
    "quantized-untried": unexplained(),
    "errors-hidden": hiding(),
    "errors-hidden-in-a-simulation": hiding(place="engine"),
    "by-the-last-digit": case(
        score("logits", "top1_agreement", 0.6999999999999997, limit=0.7),
        score("logits", "agreement", 0.7, limit=0.6999999999999997),
    ),
    "lines": output(case(), fit=SMALL, worst_sample=17, heavy=(17, 3), samples=397),
    "a-line-that-tells-nothing": output(case(), fit=replace(SMALL, meanings=())),
    "a-constant": output(blamed(RANGES[0]), fit=fit(0.0, 0.1, 0.0, "constant")),
    "many-scores": case(*[score(f"out{i}", "cosine", 0.9, limit=0.999, note="of all") for i in range(25)]),
    "found": searched(
        FOUND["ending"],
        trials=SEARCH["trials"],
        notes=("its notes",),
        table=(ROW,),
        price_ms=0.0204,
        tradeoff=SEARCH["tradeoff"],
    ),
    "certified": case(
        search=replace(
            FOUND,
            certificate={
                "evidence": {
                    "subject": "plan",
                    "place": "exact",
                    "proved_on": {"count": 397},
                    "cost": {"builds": 3},
                },
                "passed": True,
                "ending": FOUND["ending"],
            },
            culprits=(replace(FOUND["culprits"][0], worst_alone=KEPT),),
        )
    ),
    "not-verified": searched(
        ending("trials-spent", max_trials=8),
        ending("plan-fails", 1, 20),
        minimal=False,
        verified=False,
        holds=False,
    ),
    "a-reserve": searched(ending("first", 13, 20), with_reserve=("/conv5/Conv", "/fc/Gemm", "/pool")),
    "proved-by-own-samples": searched(
        ending("proven", 2, 20), held_out={**FOUND["held_out"], "count": 40, "key": "prove"}
    ),
    "too-few-own-samples": searched(
        ending("proven", 2, 20), held_out={"missing": 3, "key": "prove"}, verified=False
    ),
    "too-few-samples": searched(ending("proven", 2, 20), held_out={"missing": 4}, verified=False),
    "fails-its-proof": searched(
        ending("proven", 2, 20),
        held_out={"count": 40, "key": "prove", "scores": [replace(MISSED, value=0.9931)]},
        verified=False,
        holds=False,
    ),
    "another-plan": searched(ending("last", 13, 20), with_reserve=("/fc/Gemm", "/pool")),
    "most-leaves": searched(ending("worst", 3, 20), int8_share=0.3),
    "not-worth-shipping": searched(ending("first", 2, 20), int8_share=0.14),
    "part-in-int8": replace(searched(ending("first", 2, 20), price_ms=0.031), int8_macs=0.6),
    "visited": searched(ending("visited", 2, 20), ending("seconds-spent", max_seconds=0.5)),
    "cut-short": searched(ending("cut-short", 9, 20), ending("interrupted")),
    "nothing-to-do": searched(ending("int8-passes"), culprits=()),
    "no-plan": searched(ending("high-fails", 20, 20), **NO_PLAN),
    "no-plan-with-pairs": replace(
        searched(ending("high-fails", 20, 20), **NO_PLAN, fixed_pairs=PAIRS), findings=FINDINGS[:1]
    ),
    "nothing-left": searched(ending("nothing-left", groups=20), **NO_PLAN),
    "another-model": another_model(tensor="/resize", op_type="Resize", off=0.39),
    "another-model-behind-a-reshape": another_model(
        tensor="y", op_type="Upsample", made_by="Resize", off="inf"
    ),
    "another-model-by-operators": another_model(operators={"Cast": 2, "Transpose": -1}),
    "another-model-by-a-cast": another_model(operators={"Cast": 2}, added=CAST),
    "another-model-by-a-resize": another_model(
        operators={"Resize": 1}, added={"node": "up", "op_type": "Resize", "tensor": "x"}
    ),
    "another-model-by-weights": another_model(differing=("conv1.weight", "fc.weight")),
    "another-model-in-nothing": another_model(),
    "too-weak": case(
        KEPT,
        blind={
            "undetected": [
                {"kind": "zeros", "scores": [replace(KEPT, value=0.0, limit=-1.0)]},
                {"kind": "shuffled", "scores": [replace(KEPT, value=0.31, limit=-1.0)]},
            ],
            "samples": 64,
        },
    ),
    "too-weak-in-every-way": case(
        KEPT, blind={"undetected": [{"kind": kind, "output": "logits"} for kind in DEAD], "samples": 64}
    ),
    "too-weak-and-accepted": replace(weak(), blind_reason="to see the report"),
    "small-samples-and-nan": output(
        case(KEPT),
        nan_share=0.005,
        small={"count": 32, "ratio": 400.0, "alone": score("logits", "sqnr_db", 1.5, limit=20.0)},
        samples=64,
    ),
    "too-weak-for-boxes": weak(metric={"metric": "coco_map", "decode": "yolov8"}),
    "too-weak-for-boxes-to-decode": weak(metric={"metric": "coco_map"}),
    "too-weak-for-maps": weak(metric={"metric": "miou", "output": "masks[0]", "axis": 1}),
    "too-weak-for-classes": weak(
        metric={"metric": "top1"}, too_near=score("logits", "sqnr_db", 30.7, limit=35.0)
    ),
    "lost": output(
        case(
            replace(KEPT, value=0.0, limit=-1.0),
            blind={
                "undetected": [{"kind": "zeros"}],
                "too_near": score("logits", "sqnr_db", 0.0, limit=20.0),
                "samples": 64,
            },
        ),
        fit=fit(0.0, 0.0, 0.0, "constant"),
    ),
    "at-chance": case(
        KEPT,
        blind={
            "undetected": [{"kind": "zeros"}],
            "at_chance": [{"metric": "top1", "baseline": 0.1, "chance": 0.11, "as_well": True}],
            "samples": 64,
        },
    ),
    "one-value-unsearched": output(case(), fit=fit(0.0, 0.0, 0.0, "constant"), samples=397),
    "unlike-unsearched": output(case(), fit=fit(0.1, 0.0, 0.2), part_of="head"),
    "alike-unsearched": output(case(), fit=fit(0.98, 0.0, 0.97)),
    "ranges-of-activations": blamed(*RANGES),
    "weights-and-operators": blamed(*WEIGHTS),
    "other-causes": blamed(*OTHERS),
    "causes-alike": blamed(*OTHERS[:2]),
    "long-names": blamed(
        *map(long_named, (RANGES[5], RANGES[9], WEIGHTS[4], WEIGHTS[5], OTHERS[0], OTHERS[5]))
    ),
    "ranges-too-wide-and-narrow": blamed(
        RANGES[0], ranges={"count": 9, "wide": [3.0] * 6 + [250.0], "narrow": [4.0, 4.1]}
    ),
    "ranges-clipped": blamed(
        ranges={"count": 3, "narrow": [2.3, 5.4], "method": "entropy", "calibrated": [1.1, 0.98]}
    ),
    "ranges-of-other-data": blamed(
        ranges={"count": 3, "narrow": [2.3, 5.4], "method": "minmax", "calibrated": [0.4, 0.2]}
    ),
    "ranges-by-hand": blamed(ranges={"count": 3, "wide": [20.0, 22.0, 21.0], "by_hand": [10.0, 50.0]}),
    "one-range-by-hand": blamed(ranges={"count": 3, "narrow": [20.0, 22.0, 21.0], "by_hand": [10.0]}),
    "pairs": replace(blamed(fixed_pairs=PAIRS[:1]), findings=(UNEQUAL, UNEQUAL)),
    "pairs-that-stay": blamed(fixed_pairs=PAIRS[:1]),
    "pairs-beside-a-layer": searched(FOUND["ending"], fixed_pairs=PAIRS),
    "in-a-body": without_cause("loop/linear"),
    "in-bodies": without_cause("loop/linear", "loop/choice/linear"),
    "in-a-body-too": without_cause("loop/linear", causes=(RANGES[0],)),
    "in-no-body": without_cause("layer2", "layer3", causes=(RANGES[0],), inside=""),
    "no-cause": output(blamed(), fit=LARGE),
    "data-first": replace(
        blamed(RANGES[0], preprocessing_mismatch="data-factor", repairs=REPAIRS[2:3]),
        findings=(SLIP, FINDINGS[2]),
    ),
    "remedies": blamed(*RANGES[:2], repairs=(*REPAIRS, repair("high", layers=("a", "b", "c"), price=0.9))),
    **{
        f"remedy-{kept['kind']}": replace(
            blamed(*RANGES[:2], repairs=(kept,)), written=("out/fixed.onnx",) * (kept["kind"] == "mixed")
        )
        for kept in REPAIRS
    },
    **{
        f"first-at-{name}".replace(" ", "-").replace("/", "-"): staged(
            name, problems={"boxes": "shapes differ"}, fits={"logits": LARGE}
        )
        for name in STAGES
        if name != "framework"
    },
    "together": blamed(
        RANGES[0],
        stages=[stage("engine INT8", True, KEPT, "Q/DQ in ONNX Runtime", together="FP16")],
        first_stage="engine INT8",
    ),
    "engine-without-a-model": case(
        diagnosis={
            "met": False,
            "stages": [stage("engine INT8", False, MISSED, "framework")],
            "first_stage": "engine INT8",
        }
    ),
    "faster": too_slow(tried(0.77), repairs=(FASTER,), written=("out/fixed.onnx",)),
    "not-faster": too_slow(tried(0.9), tried(0.88), tried(None, None)),
    "hardly-faster": too_slow(tried(0.85), tried(None, False)),
    "too-slow": too_slow(tried(0.7), speed={"limit": 1.5}),
    "too-slow-untried": too_slow(speed={"losses": {}}),
    "too-slow-untimed": too_slow(tried(None, None), tried(None, False)),
    "met": case(diagnosis={"met": True}),
    "met-but-for-a-stage": case(diagnosis={"met": True, "first_stage": "FP16"}),
    "jumps": replace(blamed(jumps=JUMPS), search=replace(FOUND, ending=ending("high-fails"), **NO_PLAN)),
    "jumps-aside": blamed(RANGES[0], jumps=JUMPS[:1]),
    "stopped": case(stopped={"kind": "seconds-spent", "max_seconds": 300, "left_out": PARTS}),
    "golden": case(
        replace(MISSED, subject="FP16 against its golden, logits"), golden="the baseline has left its golden"
    ),
    "by-luck": case(
        search=replace(
            FOUND,
            verified=False,
            holds=False,
            fixed=(replace(REACHED[0], interval={"low": 0.99, "high": 0.9999}),),
        )
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
        stopped={"kind": "interrupted", "max_seconds": 300, "left_out": []},
        seconds=12.345,
        phases=(
            {"name": "setup", "seconds": 0.345},
            {
                "name": "search",
                "seconds": 12.0,
                "cpu_seconds": 20.5,
                "passes": 8.25,
                "peak_bytes": 1_234_567_890,
            },
        ),
    ),
}
