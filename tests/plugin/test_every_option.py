"""Every option of a run on failing cases in FP16, BF16 and FP8: it works, or says that it does not."""

from __future__ import annotations

import html
import json
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from gpu_support import gpus
from low_cases import put
from narrow import planted
from plugin_support import LOAD

pytest.importorskip("jinja2", reason="pip install jinja2")

LOWS = ("fp16", "bf16", "fp8")
#: Files of a fix, beside the report's own.
FIX = ("report.json", "report.html", "case/fixed.onnx", "case/plan.yaml")
ONLY = "*case.int8acc.yaml:3:*: {key}: --int8acc-* is for INT8 and FP8; leave it out, or this case*"


@dataclass(frozen=True)
class Row:
    """What one option does on a failing case."""

    arguments: tuple[str, ...]
    outcome: str = "failed"
    told: tuple[str, ...] = ("{LOW} accuracy: *", "Fix: *")
    files: tuple[str, ...] = ()
    quantized: bool = False
    """It is for formats that quantize: an error in FP16 and BF16."""


def verdict(*arguments: str) -> Row:
    """A row of an option that has no part in the search, which is left out."""
    return Row((*arguments, "--int8acc-search=off"), told=("{LOW} accuracy: *",))


ROWS: dict[str, list[Row]] = {
    "--int8acc": [Row(())],
    "--int8acc-backend": [
        verdict("--int8acc-backend=onnxruntime"),
        Row(("--int8acc-backend=tensorrt", "--int8acc-missing=skip"), "skipped", ("*TensorRT*",)),
    ],
    "--int8acc-missing": [
        Row(("--int8acc-backend=tensorrt", "--int8acc-missing=fail"), "errors", ("*TensorRT*",))
    ],
    "--int8acc-mode": [
        verdict("--int8acc-mode=exact"),
        Row(("--int8acc-mode=native",), "errors", ("*case.int8acc.yaml:3:*native*",)),
    ],
    "--int8acc-provider": [
        Row(
            ("--int8acc-provider=cuda",),
            "errors",
            ("*provider cuda: this ONNX Runtime has no CUDAExecutionProvider*",),
        ),
    ],
    "--int8acc-samples": [Row(("--int8acc-samples=5", "-vv"), told=("{LOW} accuracy: *", "*5 samples*"))],
    "--int8acc-search": [
        Row(("--int8acc-search=always",)),
        Row(("--int8acc-search=off",), told=("{LOW} accuracy: *",)),
    ],
    "--int8acc-strategy": [
        Row((f"--int8acc-strategy={name}",))
        for name in ("bisect-reverse", "forward")  # the others are in tests/cases/half/strategies.yaml
    ],
    "--int8acc-max-builds": [Row(("--int8acc-max-builds=1",))],
    "--int8acc-max-seconds": [Row(("--int8acc-max-seconds=100",))],
    "--int8acc-certify": [
        Row(("--int8acc-certify", "-vv"), told=("*certified: * show that each*leave {LOW}",))
    ],
    "--int8acc-layers": [Row(("--int8acc-layers", "-vv"), told=("*SQNR*",), quantized=True)],
    "--int8acc-calibrations": [Row(("--int8acc-calibrations", "-vv"), told=("*mse*",), quantized=True)],
    "--int8acc-reduce": [
        Row(("--int8acc-reduce", "--int8acc-report=out"), files=("case/reduced",), quantized=True)
    ],
    "--int8acc-lint": [verdict(f"--int8acc-lint={level}") for level in ("error", "off")],
    "--int8acc-report": [
        Row(("--int8acc-report=out", "--junitxml=out/junit.xml"), files=(*FIX, "junit.xml"))
    ],
    "--int8acc-cache-dir": [verdict("--int8acc-cache-dir=out/cache")],
    "--int8acc-cache-size": [verdict("--int8acc-cache-dir=out/cache", "--int8acc-cache-size=1M")],
    "--int8acc-no-cache": [verdict("--int8acc-no-cache")],
    "--int8acc-device": [Row(("--int8acc-device=0",), "errors", ("*--int8acc-device*GPU*",))],
    "--int8acc-update": [verdict("--int8acc-update=all")],
    "--int8acc-update-in-ci": [verdict("--int8acc-update=missing", "--int8acc-update-in-ci")],
    "--int8acc-prune": [verdict("--int8acc-prune"), verdict("--int8acc-prune=delete")],
    "--int8acc-merge": [],  # these three run no case: see below
    "--int8acc-init": [],
    "--int8acc-data": [],
}


def write(folder: Path, low: str) -> None:
    """A case that fails in a format."""
    if low == "fp8":
        planted(folder, {3: 1 / 30})
        text = "model: model.onnx\ninputs: data.npz\nfp8: {scales: ranges.json}\ncriteria: [{sqnr_db: 15}]\n"
        (folder / "case.int8acc.yaml").write_text(text)
    else:
        put(folder, "layernorm_1000", low, limit=30 if low == "fp16" else 45)


def test_every_option_has_a_row(pytester: pytest.Pytester) -> None:
    told = pytester.runpytest(*LOAD, "--help").stdout.str()
    assert set(re.findall(r"^  (--int8acc[\w-]*)", told, re.MULTILINE)) == ROWS.keys()


def in_words(text: str) -> str:
    """Of a page or a report in XML, what people read; roles are keys, and so are names of options."""
    text = re.sub(r"<(style|script).*?</\1>", "", text, flags=re.DOTALL)
    text = html.unescape(re.sub(r"<[^>]*>", " ", text))
    return text.replace('"role": "INT8"', "").replace("for INT8 and FP8", "")


#: Each row in FP8 and, by turns, in FP16 or BF16.
TRIED = [
    (row, low)
    for number, row in enumerate(row for rows in ROWS.values() for row in rows)
    for low in (LOWS[number % 2], "fp8")
]


@pytest.mark.parametrize(
    ("row", "low"), TRIED, ids=lambda v: v if isinstance(v, str) else "".join(v.arguments)
)
def test_an_option_does_its_work_or_says_that_it_does_not(
    row: Row, low: str, pytester: pytest.Pytester
) -> None:
    if gpus() and any(option in told for option in ("TensorRT", "provider", "device") for told in row.told):
        pytest.skip("it says what is so without a GPU")
    write(pytester.path, low)
    refused = row.quantized and low != "fp8"
    expected = Row((), "errors", (ONLY,)) if refused else row
    result = pytester.runpytest(*LOAD, "--int8acc", *row.arguments)
    result.assert_outcomes(**{expected.outcome: 1})
    key = low if low == "fp8" else f"candidate: {low}"
    result.stdout.fnmatch_lines_random([t.format(LOW=low.upper(), key=key) for t in expected.told])
    said = [result.stdout.str()]
    for name in expected.files:
        assert (pytester.path / "out" / name).exists()
    for file in (pytester.path / "out").glob("*.[hx]*ml"):
        said.append(file.read_text(encoding="utf-8"))
        assert refused or low.upper() in said[-1]
    assert not [line for text in said for line in re.findall(r".*\bINT8\b.*", in_words(text))]
    assert "Traceback" not in said[0]


@pytest.mark.parametrize("low", ["bf16", "fp8"])
def test_what_runs_no_case(low: str, pytester: pytest.Pytester) -> None:
    write(pytester.path, low)
    for name in ("one", "two"):
        pytester.runpytest(*LOAD, "--int8acc", "--int8acc-search=off", f"--int8acc-report={name}")
    merged = pytester.runpytest(*LOAD, "--int8acc-merge", "one", "two", "--int8acc-report=out")
    assert merged.ret == pytest.ExitCode.TESTS_FAILED
    (entry,) = json.loads((pytester.path / "out/report.json").read_text())["cases"]
    assert (entry["verdict"], entry["low"]) == ("failed", low)
    assert f"{low.upper()} accuracy" in in_words((pytester.path / "out/report.html").read_text())
    made = pytester.runpytest(*LOAD, "--int8acc-init", "model.onnx", "--int8acc-data=data.npz")
    assert made.ret == pytest.ExitCode.OK
    assert (pytester.path / "model.int8acc.yaml").exists()
