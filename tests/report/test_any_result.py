"""Whatever a case holds: its failure has few lines, no number is cut, every form of the report takes it."""

from __future__ import annotations

import json
import random

import pytest
from plugin_support import CONFTEST, LOAD, spec
from report_cases import CASE, SCHEMA, Plain, copied, page, replace
from report_readers import Reader, assert_in_frame, by_case

pytest.importorskip("jinja2", reason="pip install jinja2")

#: Lines of a failure without -v, and characters of each.
LINES, WIDTH = 15, 110
MEASURED = f"""{CONFTEST}
import json
from pytest_int8acc.report.plain import restore

CASES = json.loads(open({{0!r}}).read())


def measure(case, settings, goldens=None, clock=None, builders=None):
    result = restore(CASES[case.name])
    return types.SimpleNamespace(result=result, settings=settings, close=lambda: None)


stand_in("case.measured", measure=measure)
"""
NAMES = ("/conv1/Conv", "", "naïve ✓ ", "a, b: c", "x" * 8192, "/" + "a very long name of a block/" * 100)
NUMBERS = {
    **dict.fromkeys(
        ("sqnr_db", "best_sqnr_db", "factor", "codes_used", "clipped", "clipped_energy"), 12.3456
    ),
    **dict.fromkeys(("zero_point", "low", "high", "scale", "least_scale", "channel_amax"), 1.2345e-5),
    **dict.fromkeys(("channel_ratio", "codes_left", "p99.9", "other_amax", "partner_amax"), 98765.4),
    **dict.fromkeys(("lost", "smallest", "share", "channel_db", "best_channel_db"), 0.012345),
    **dict.fromkeys(("scales", "scales_off", "axis", "axis_of_scales", "amax_in_use"), 120.0),
    **dict.fromkeys(("usual_channel_db", "shift_share", "unmasked_amax"), 0.987),
}
CAUSE = SCHEMA["definitions"]["Cause"]["properties"]


def any_number(rng: random.Random) -> float | str:
    """A float of any size and sign, or what JSON has no number for."""
    usual = rng.choice([1.0, -1.0]) * 10.0 ** rng.uniform(-30, 30)
    return rng.choice([usual, usual, usual, rng.random(), 0.0, 1.0, "nan", "inf", "-inf"])


def any_score(rng: random.Random, name: str) -> Plain:
    metric = rng.choice(["cosine", "sqnr_db", "max_abs", "m"])
    limit = rng.choice([None, rng.uniform(-1e9, 1e9), rng.random()])
    bound = rng.choice(["min", "max"])
    more = {"noise": rng.choice([None, any_number(rng)]), "baseline": rng.choice([None, any_number(rng)])}
    return {
        "subject": name,
        "metric": metric,
        "value": any_number(rng),
        "limit": limit,
        "bound": bound,
        **more,
    }


def any_cause(rng: random.Random, name: str) -> Plain:
    counts = [rng.randrange(10**9) for _ in range(rng.choice([0, 1, 24]))]
    amax = 10.0 ** rng.uniform(-30, 30)
    edges = [amax * i / max(len(counts), 1) for i in range(len(counts) + 1)]
    cause = {"kind": rng.choice(CAUSE["kind"]["enum"]), "symptom": rng.choice(CAUSE["symptom"]["enum"])}
    cause |= {"tensor": name, "node": name, "op_type": name[:100], "others": [name] * 5, "numbers": NUMBERS}
    cause |= {
        "amax": amax,
        "reach": rng.choice([1.5, 10.0 ** rng.uniform(-30, 30), "nan", "inf"]),
        "format": "int8",
    }
    cause |= {"channels": {str(i): 3.0 for i in range(200)}, "masked": rng.random() < 0.5}
    return {**cause, "histogram": {"edges": edges, "counts": counts}}


def any_culprits(rng: random.Random, name: str, many: int) -> list[Plain]:
    wire = copied(CASE["search"]["culprits"][0]["neighbours"]["inputs"][0])
    around = {"inputs": [wire] * rng.randrange(6), "outputs": [wire] * rng.randrange(6)}
    known = {"layer": name, "op_type": name, "nodes": [name], "worst_alone": None, "price": 0.1}
    made = [{**known, "cause": any_cause(rng, name), "neighbours": around} for _ in range(min(many, 8))]
    return (made * 24)[:many]


def any_diagnosis(rng: random.Random, name: str, many: int, scores: list[Plain]) -> Plain:
    found = copied(CASE["diagnosis"])
    repairs = [replace(one, layers=[name] * many, scores=scores) for one in found["repairs"]]
    layers = found["layers"] + [
        replace(found["layers"][0], layer=name, sqnr_db=any_number(rng), alone_sqnr_db=any_number(rng))
        for _ in range(rng.choice([0, 45]))
    ]
    found["worst"][0]["views"][1]["values"] = [any_number(rng) for _ in range(rng.randrange(9))]
    first = rng.choice([stage["name"] for stage in found["stages"]])
    preprocessing_mismatch = rng.choice(["", "range-255"])
    return replace(
        found,
        repairs=repairs[: rng.randrange(3)],
        layers=layers,
        first_stage=first,
        preprocessing_mismatch=preprocessing_mismatch,
    )


def any_result(rng: random.Random) -> Plain:
    """A case with few or dozens of everything, under names of up to 8 KiB."""
    name = rng.choice(NAMES)
    many = rng.choice([1, 2] if len(name) > 1000 else [1, 5, 24])
    scores = [any_score(rng, rng.choice([name, "file.py:top1"])) for _ in range(rng.randrange(1, 5))]
    fit = {"slope": any_number(rng), "offset": any_number(rng), "correlation": any_number(rng)}
    fit |= {"meanings": rng.choice([["constant"], ["small"], ["large", "shifted"]]), "deviation": 2.0}
    output = replace(CASE["outputs"][0], name=name, scores=scores, problem=rng.choice(["", name]))
    output |= {"fit": rng.choice([None, fit])}
    findings = [
        {"rule": "range-255", "subject": name, "text": name, "remedy": name, "severity": "error", "source": s}
        for s in rng.choices(["lint", "data"], k=rng.choice([0, 2]))
    ]
    search = replace(CASE["search"], culprits=any_culprits(rng, name, many), found=rng.random() < 0.5)
    points = [replace(p, score=any_score(rng, name)) for p in CASE["search"]["tradeoff"]["points"]]
    search["tradeoff"] = rng.choice([None, replace(CASE["search"]["tradeoff"], points=points)])
    stopped = {"kind": "seconds-spent", "max_seconds": 300, "left_out": ["repair", "fix"]}
    return replace(
        CASE,
        outputs=[output] * (1 if len(name) > 1000 else rng.choice([1, 12])),
        metrics=[any_score(rng, "file.py:top1") for _ in range(rng.randrange(3))],
        search=rng.choice([None, search]),
        diagnosis=rng.choice([None, any_diagnosis(rng, name, many, scores)]),
        findings=findings * rng.choice([1, 20 if len(name) < 1000 else 2]),
        warnings=[name] * min(many, 9),
        stopped=rng.choice([None, stopped]),
        written=rng.choice([[], ["out/a/fixed.onnx"], [f"/out/{name}/fixed.onnx", "/b"]]),
        backend=f"{name}, CPU",
        low=rng.choice(["", "", "fp16"]),
    )


def misses(score: Plain) -> bool:
    """Whether a score has a limit and does not keep it."""
    if score["limit"] is None:
        return False
    value = float(score["value"])
    return not (value >= score["limit"] if score["bound"] == "min" else value <= score["limit"])


def fails(result: Plain) -> bool:
    scores = [s for output in result["outputs"] for s in output["scores"]] + result["metrics"]
    return any(map(misses, scores)) or any(output["problem"] for output in result["outputs"])


def run_all(pytester: pytest.Pytester, cases: dict[str, Plain], *options: str) -> str:
    """What pytest prints of cases that were measured so."""
    pytester.makefile(".json", cases=json.dumps(cases))
    pytester.makeconftest(MEASURED.replace("{0!r}", repr(str(pytester.path / "cases.json"))))
    (pytester.path / "report.int8acc.yaml").write_text(spec(*cases), encoding="utf-8")
    return pytester.runpytest(*LOAD, "--int8acc", *options).stdout.str()


def test_whatever_a_case_holds_it_is_told(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    monkeypatch.setenv("COLUMNS", "5000")  # nothing is wrapped
    rng = random.Random(5)
    cases = {f"c{number}": any_result(rng) for number in range(14)}
    lines_of = by_case(run_all(pytester, cases), cases)
    for name, result in cases.items():
        if fails(result):
            lines = [line for line in lines_of[name] if not line.startswith("FAILED")]
            assert 1 <= len(list(filter(None, lines))) <= LINES, name
            assert max(map(len, lines)) <= WIDTH, name
            assert len(set(lines[:2])) == 2
    run_all(pytester, cases, "-vv", "--int8acc-report=out")
    text = (pytester.path / "out" / "report.json").read_text(encoding="utf-8")
    found = json.loads(text)
    jsonschema.Draft7Validator(SCHEMA).validate(found)
    verdicts = ["failed" if fails(result) else "passed" for result in cases.values()]
    assert [one["verdict"] for one in found["cases"]] == verdicts
    for one, result in zip(found["cases"], cases.values(), strict=True):
        for told, measured in zip(one["outputs"], result["outputs"], strict=True):
            assert [s["value"] for s in told["scores"]] == [s["value"] for s in measured["scores"]]
    read = Reader((pytester.path / "out" / "report.html").read_text(encoding="utf-8"))
    assert_in_frame(read)
    for bar in (known for known in read.all("i") if "fill" in str(known["class"])):
        width = float(str(bar["style"]).removeprefix("width:").rstrip("%"))
        missed = "off" in str(bar["class"])
        assert 50 - 1e-4 <= width <= 100 if missed else 0 <= width <= 50 + 1e-4
    page(pytester, found, "again")
    again = json.loads((pytester.path / "again-out" / "report.json").read_text(encoding="utf-8"))
    assert again["cases"] == found["cases"], "a report survives being read"


@pytest.mark.parametrize(
    ("value", "limit", "told"),
    [
        (0.8741, 0.999, "0.8741 < 0.999"),
        (0.99899999, 0.999, "0.99899999 < 0.999"),
        (19.99999, 20.0, "19.99999 < 20"),
        (1e-7, 1.0, "1e-7 < 1"),
        (-1234567.0, 0.0, "-1.235e6 < 0"),
    ],
)
def test_a_miss_shows_by_how_little(value: float, limit: float, told: str, pytester: pytest.Pytester) -> None:
    score = {"subject": "y", "metric": "m", "value": value, "limit": limit}
    case = replace(CASE, outputs=[replace(CASE["outputs"][0], scores=[score])], metrics=[])
    assert f"'y' m {told}" in run_all(pytester, {"net": case})
