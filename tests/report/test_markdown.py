"""GitHub's step summary: it tells the failures first, fits, and shows every name as it is."""

from __future__ import annotations

import random
import re

import pytest
from hostile import HOSTILE
from report_cases import Plain, case, entry, full_report, merged, report

#: What GitHub takes of one step.
LIMIT = 1 << 20


@pytest.fixture
def summary(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Summary:
    return Summary(pytester, monkeypatch)


class Summary:
    """What a report adds to the file of the step's summary."""

    def __init__(self, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pytester, self.path = pytester, pytester.path / "summary.md"
        monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(self.path))

    def of(self, told: Plain, used: int = 0) -> str:
        """The text, where the file holds ``used`` bytes already."""
        self.path.write_text("x" * used)
        merged(self.pytester, told)
        text = self.path.read_text(encoding="utf-8")
        assert len(text.encode()) <= LIMIT
        return text[used:]


def test_the_summary_reads_like_this(summary: Summary) -> None:
    lines = summary.of(full_report()).splitlines()
    assert lines[:9] == [
        "## INT8 accuracy: 1 failed, 2 error, 1 xfailed, 2 passed, 1 skipped",
        "",
        r"💥 models/gpt.int8acc.yaml: models/gpt.int8acc.yaml\:3\:1\: 'modle'",
        "",
        "| | case | said | seconds |",
        "|---|---|---|---|",
        r"| ❌ failed | models/nets.int8acc.yaml\:\:resnet18 "
        r"| 'logits' cosine 0.8741 &lt; 0.999 \(\+1 more missed\: top1\), TensorRT 10.4, NVIDIA L4; "
        r"2 warnings \(\-v tells all\), the worst\: TensorRT refuses this model\: nonzero\-zero\-point "
        r"\(1 node\) "
        r"| 12.5 |",
        r"| 💥 error | models/nets.int8acc.yaml\:\:yolo "
        r"| models/yolo.onnx\: no such file; write the model's path relative to the spec | 12.5 |",
        r"| ✅ passed | models/nets.int8acc.yaml\:\:mobilenet "
        r"| 'logits' cosine 0.9995 &gt;= 0.999 \(margin 0.0005\), TensorRT 10.4, NVIDIA L4 | 12.5 |",
    ]


def test_a_name_is_one_line_without_markup(summary: Summary) -> None:
    rng = random.Random(3)
    letters = "ab|`*_[]<>#@!\\&\n\r\u2028~$:.-+(){}=1 é✓"
    names = {"".join(rng.choices(letters, k=rng.randrange(1, 30))) for _ in range(200)} | set(HOSTILE[:22])
    told = report(*({**entry(None, verdict="failed", message=name), "nodeid": name} for name in names))
    rows = [line for line in summary.of(told).split("\n") if line.startswith("| ❌")]
    assert len(rows) == len(names)
    for row in rows:
        assert len(re.findall(r"(?<!\\)(?:\\\\)*\|", row)) == 5
        assert not re.search(r"[<>\r]", row)
        assert not re.search(r"(?<!\\)(\\\\)*[`*_\[\]]", row)


@pytest.mark.parametrize("room", [5000, 300, 100, 0])
def test_what_does_not_fit_is_counted_and_failures_come_first(room: int, summary: Summary) -> None:
    cases = [entry(case(f"good{i}", 0.9999), f"good{i}") for i in range(30)]
    text = summary.of(report(*cases, entry(case("bad"), "bad")), LIMIT - room)
    assert ("::bad" in text.replace("\\", "")) == (room == 5000)
    assert ("more than GitHub shows; see report.json" in text) == (room >= 300)


def test_it_is_appended(summary: Summary) -> None:
    once = summary.of(full_report())
    assert summary.of(full_report(), 700) == once
    summary.path.unlink()
    merged(summary.pytester, report())
    assert not summary.path.exists()


@pytest.mark.parametrize(
    ("lows", "said"), [(["fp16"], "FP16"), (["", "bf16", ""], "INT8, BF16"), ([], "Model")]
)
def test_titles_name_the_formats_of_the_cases(lows: list[str], said: str, summary: Summary) -> None:
    cases = [entry(case(low=low), f"net{number}") for number, low in enumerate(lows)]
    errors = [{"nodeid": "a.int8acc.yaml", "message": "x"}]
    assert summary.of(report(*cases, errors=errors)).startswith(f"## {said} accuracy: ")
    page = (summary.pytester.path / "shard-out" / "report.html").read_text(encoding="utf-8")
    assert f"<title>{said} accuracy" in page
    assert f"<h1>{said} accuracy</h1>" in page
