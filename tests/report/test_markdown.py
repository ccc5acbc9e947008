"""GitHub's step summary: it tells the failures first, fits, and shows every name as it is."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_cases import case, entry, full_report, report

from pytest_int8acc.names import in_markdown
from pytest_int8acc.report.html import page
from pytest_int8acc.report.markdown import LIMIT, append_summary, summary


def test_the_summary_reads_like_this():
    lines = summary(full_report()).splitlines()
    assert lines[:9] == [
        "## INT8 accuracy: 1 failed, 2 error, 1 xfailed, 2 passed, 1 skipped",
        "",
        r"💥 models/gpt.int8acc.yaml: models/gpt.int8acc.yaml\:3\:1\: 'modle'",
        "",
        "| | case | said | seconds |",
        "|---|---|---|---|",
        r"| ❌ failed | models/resnet18.int8acc.yaml\:\:resnet18 "
        r"| 'logits' cosine 0.8741 &lt; 0.999 \(\+1 more missed\), TensorRT 10.4, NVIDIA L4; 2 warnings, "
        r"the worst\: TensorRT refuses this model\: nonzero\-zero\-point \(1 node\) | 12.5 |",
        r"| 💥 error | models/yolo.int8acc.yaml\:\:yolo "
        r"| models/yolo.onnx\: no such file; write the model's path relative to the spec | 12.5 |",
        r"| ✅ passed | models/mobilenet.int8acc.yaml\:\:mobilenet "
        r"| 'logits' cosine 0.9995 &gt;= 0.999 \(margin 0.0005\), TensorRT 10.4, NVIDIA L4 | 12.5 |",
    ]


@given(st.text())
def test_a_name_is_one_line_without_markup(name):
    text = in_markdown(name)
    assert not re.search(r"[<>\n\r]", text)
    assert not re.search(r"(?<!\\)(\\\\)*[|`*_\[\]]", text)


def test_a_hostile_name_breaks_neither_the_table_nor_html():
    name = "a|b\n\n# <script>alert(1)</script> `x` [x](javascript:alert(1)) @all"
    text = summary(report({**entry(case()), "nodeid": name, "message": name}))
    (row,) = [line for line in text.splitlines() if line.startswith("| ❌")]
    assert len(re.findall(r"(?<!\\)\|", row)) == 5
    assert "<script>" not in text
    assert "[x](" not in text
    assert "\n# " not in text


@pytest.mark.parametrize("limit", [LIMIT, 5000, 300, 100, 0, -5])
def test_what_does_not_fit_is_counted_and_failures_come_first(limit):
    cases = [entry(case(f"good{i}", 0.9999), f"good{i}") for i in range(30)]
    text = summary(report(*cases, entry(case("bad"), "bad")), limit)
    assert len(text.encode()) <= max(limit, 0)
    if limit >= 5000:
        assert "::bad" in text.replace("\\", "")
    if limit in (5000, 300):
        assert "more than GitHub shows; see report.json" in text


def test_it_is_appended_and_counts_what_is_there(tmp_path):
    path = tmp_path / "summary.md"
    append_summary(path, full_report())
    once = path.read_text()
    append_summary(path, full_report())
    assert path.read_text() == 2 * once
    path.write_text("x" * (LIMIT - 500))
    append_summary(path, full_report())
    assert LIMIT - 500 < path.stat().st_size <= LIMIT
    append_summary(tmp_path / "other.md", report())
    assert not (tmp_path / "other.md").exists()


@pytest.mark.parametrize(
    ("lows", "said"), [(["fp16"], "FP16"), (["", "bf16", ""], "INT8, BF16"), ([], "Model")]
)
def test_titles_name_the_formats_of_the_cases(lows, said):
    told = report(*(entry(replace(case(), low=low)) for low in lows))
    assert summary(told).startswith(f"## {said} accuracy: ")
    assert f"<title>{said} accuracy" in page(told, {})
    assert f"<h1>{said} accuracy</h1>" in page(told, {})
