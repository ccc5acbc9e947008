"""Every option of a run on failing cases in FP16, BF16 and FP8: it works, or says that it does not."""

from __future__ import annotations

import html
import json
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from case_files import spec_of
from case_files import write as write_project
from gpu_support import gpus
from narrow import planted
from plugin_support import LOAD

pytest.importorskip("jinja2", reason="pip install jinja2")

#: Files of a fix, beside the report's own.
FIX = ("report.json", "report.html", "junit.xml", "case/fixed.onnx", "case/plan.yaml")
ONLY = "*case.int8acc.yaml:3:*: {key}: --int8acc-* is for INT8 and FP8; leave it out, or this case*"
LOW = "{LOW} accuracy: *"


@dataclass(frozen=True)
class Row:
    """What some options do on a failing case."""

    arguments: str
    outcome: str = "failed"
    told: tuple[str, ...] = (LOW, "Fix: *")
    files: tuple[str, ...] = ()
    quantized: bool = False
    """They are for formats that quantize: an error in FP16 and BF16."""


def error(arguments: str, told: str) -> Row:
    return Row(arguments, "errors", (told,))


ROWS = (
    Row(
        "--int8acc-search=off --int8acc-mode=exact --int8acc-backend=onnxruntime --int8acc-lint=error "
        "--int8acc-cache-dir=out/cache --int8acc-cache-size=1M --int8acc-prune "
        "--int8acc-update=missing --int8acc-update-in-ci --int8acc-samples=5 -vv",
        told=(LOW, "*5 samples*"),
    ),
    Row(
        "--int8acc-search=off --int8acc-lint=off --int8acc-no-cache --int8acc-update=all "
        "--int8acc-prune=delete",
        told=(LOW,),
    ),
    Row("--int8acc-backend=tensorrt --int8acc-missing=skip", "skipped", ("*TensorRT*",)),
    error("--int8acc-backend=tensorrt --int8acc-missing=fail", "*TensorRT*"),
    error("--int8acc-mode=native", "*case.int8acc.yaml:3:*native*"),
    error("--int8acc-provider=cuda", "*provider cuda: this ONNX Runtime has no CUDAExecutionProvider*"),
    error("--int8acc-device=0", "*--int8acc-device*GPU*"),
    Row(
        "--int8acc-search=always --int8acc-strategy=bisect-reverse --int8acc-certify -vv "
        "--int8acc-report=out --junitxml=out/junit.xml",
        told=(LOW, "Fix: *", "*certified: * show that each*leave {LOW}"),
        files=FIX,
    ),
    # Other strategies are in tests/cases/half/strategies.yaml.
    Row("--int8acc-strategy=forward --int8acc-max-builds=1 --int8acc-max-seconds=100"),
    Row(
        "--int8acc-layers --int8acc-calibrations --int8acc-reduce --int8acc-report=out -vv",
        told=(LOW, "Fix: *", "*SQNR*", "*mse*"),
        files=("case/reduced/*/float.onnx", "case/reduced/*/fp8.onnx", "case/reduced/*/fp8.npz"),
        quantized=True,
    ),
)
#: Options of runs that have no case: see below.
NO_CASE = {"--int8acc-merge", "--int8acc-init", "--int8acc-data"}


def write(folder: Path, low: str) -> None:
    """A case that fails in a format."""
    if low == "fp8":
        planted(folder, {3: 1 / 30})
        text = "model: model.onnx\ninputs: data.npz\nfp8: {scales: ranges.json}\ncriteria: [{sqnr_db: 15}]\n"
        (folder / "case.int8acc.yaml").write_text(text)
    else:
        criteria = [{"sqnr_db": 30 if low == "fp16" else 45}]
        said = {"network": 'half("layernorm_1000")', "spec": {"candidate": low, "criteria": criteria}}
        write_project(folder, said)
        (folder / "case.int8acc.yaml").write_text(spec_of(said))


def test_every_option_has_a_row(pytester: pytest.Pytester) -> None:
    told = pytester.runpytest(*LOAD, "--help").stdout.str()
    tried = {word.partition("=")[0] for row in ROWS for word in row.arguments.split() if "int8acc" in word}
    assert set(re.findall(r"^  (--int8acc[\w-]*)", told, re.MULTILINE)) == {*tried, *NO_CASE, "--int8acc"}


def in_words(text: str) -> str:
    """Of a page or a report in XML, what people read; roles are keys, and so are names of options."""
    text = re.sub(r"<(style|script).*?</\1>", "", text, flags=re.DOTALL)
    text = html.unescape(re.sub(r"<[^>]*>", " ", text))
    return text.replace('"role": "INT8"', "").replace("for INT8 and FP8", "")


#: Each row in FP8 and, by turns, in FP16 or BF16.
TRIED = [(row, low) for number, row in enumerate(ROWS) for low in (("fp16", "bf16")[number % 2], "fp8")]


@pytest.mark.parametrize(("row", "low"), TRIED, ids=lambda v: v if isinstance(v, str) else v.arguments)
def test_options_do_their_work_or_say_that_they_do_not(row: Row, low: str, pytester: pytest.Pytester) -> None:
    if gpus() and any(option in told for option in ("TensorRT", "provider", "device") for told in row.told):
        pytest.skip("it says what is so without a GPU")
    write(pytester.path, low)
    refused = row.quantized and low != "fp8"
    expected = error("", ONLY) if refused else row
    result = pytester.runpytest(*LOAD, "--int8acc", *row.arguments.split())
    result.assert_outcomes(**{expected.outcome: 1})
    key = low if low == "fp8" else f"candidate: {low}"
    result.stdout.fnmatch_lines_random([t.format(LOW=low.upper(), key=key) for t in expected.told])
    said = [result.stdout.str()]
    for name in expected.files:
        assert [*(pytester.path / "out").glob(name)]
    for file in (*(pytester.path / "out").glob("*.[hx]*ml"), *(pytester.path / "out").rglob("README.md")):
        said.append(file.read_text(encoding="utf-8"))
        assert refused or low.upper() in said[-1]
    assert not [line for text in said for line in re.findall(r".*\bINT8\b.*", in_words(text))]
    assert "Traceback" not in said[0]


@pytest.mark.parametrize("low", ["bf16", "fp8"])
def test_what_runs_no_case(low: str, pytester: pytest.Pytester) -> None:
    write(pytester.path, low)
    pytester.runpytest(*LOAD, "--int8acc", "--int8acc-search=off", "--int8acc-report=one")
    merged = pytester.runpytest(*LOAD, "--int8acc-merge", "one", "--int8acc-report=out")
    assert merged.ret == pytest.ExitCode.TESTS_FAILED
    (entry,) = json.loads((pytester.path / "out/report.json").read_text())["cases"]
    assert (entry["verdict"], entry["low"]) == ("failed", low)
    assert f"{low.upper()} accuracy" in in_words((pytester.path / "out/report.html").read_text())
    made = pytester.runpytest(*LOAD, "--int8acc-init", "model.onnx", "--int8acc-data=data.npz")
    assert made.ret == pytest.ExitCode.OK
    assert (pytester.path / "model.int8acc.yaml").exists()
