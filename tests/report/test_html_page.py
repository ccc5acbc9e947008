"""report.html: complete by itself, and safe whatever models, layers and cases are called."""

from __future__ import annotations

import base64
import hashlib
import math
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
import report_cases
from hostile import renamed
from hypothesis import given, settings
from hypothesis import strategies as st
from report_cases import case, entry, full_report, report
from report_results import RESULTS, SCORES

from pytest_int8acc.names import shown
from pytest_int8acc.report.folder import texts
from pytest_int8acc.report.plain import to_plain
from pytest_int8acc.report.view import HEIGHT, WIDTH, histogram, layer_bars, score_place
from pytest_int8acc.results import LayerError, Score
from pytest_int8acc.results.causes import Cause, Histogram

pytest.importorskip("jinja2", reason="pip install 'pytest-int8acc[html]'")
from pytest_int8acc.report.html import fragment, page

VOID = {"meta", "input", "br", "wbr", "rect", "line"}
HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "'onmouseover='alert(1)",
    "</style><script>alert(1)</script>",
    "</pre></details><iframe src=//evil>",
    "javascript:alert(1)",
    "//evil.example/x",
    "{{ 7 * 7 }}{% raw %}",
    "&lt;b&gt; \u202e \x00 é",
)


class Reader(HTMLParser):
    """Elements of a page, and whether they are closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.mark.parametrize("name", HOSTILE)
def test_no_name_becomes_markup(name):
    rich = renamed(name)
    bare = entry(None, "a", "error", message=name)
    plain = page(report(rich, bare, errors=[{"nodeid": name, "message": name}]), {name: name})
    harmless = renamed("harmless")
    same = page(report(harmless, bare, errors=[{"nodeid": "n", "message": "m"}]), {"harmless": "text"})
    found, expected = Reader(plain), Reader(same)
    for tag in {tag for tag, _ in found.elements} - {"wbr", "a", "span"}:  # an absolute path is no link
        assert len(found.all(tag)) == len(expected.all(tag)), tag
    assert {key for _, a in found.elements for key in a} == {key for _, a in expected.elements for key in a}
    assert any(shown(name) in text for text in found.texts)


@pytest.mark.parametrize("name", HOSTILE)
def test_links_lead_into_the_folder_or_nowhere(name):
    for link in Reader(page(report(entry(case(written=(name, "/etc/x", "../x")))), {})).all("a"):
        assert link["href"].startswith(("#case", "./"))
        assert ":" not in link["href"]


def test_the_fragment_for_pytest_html_is_escaped():
    scores = (Score("<script>alert(1)</script>", "cosine", 0.5, limit=0.9),)
    result = case()
    text = fragment(to_plain(replace(result, outputs=(replace(result.outputs[0], scores=scores),))))
    assert not Reader(text).all("script")
    assert "&lt;script&gt;" in text


def test_the_page_needs_nothing_else_and_lets_no_other_script_run():
    text = page(full_report(), {})
    read = Reader(text)
    assert not {"link", "img", "iframe", "object", "form", "base"} & {tag for tag, _ in read.elements}
    assert not [a for _, a in read.elements if "src" in a or any(key.startswith("on") for key in a)]
    assert "http://" not in text
    assert "https://" not in text
    assert "url(" not in text
    (policy,) = [meta["content"] for meta in read.all("meta") if "http-equiv" in meta]
    script = re.search(r"(?s)<script>(.*?)</script>", text)[1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy.startswith("default-src 'none'; ")
    assert f"script-src 'sha256-{digest}';" in policy


def test_a_person_who_cannot_see_it_finds_the_way():
    read = Reader(page(full_report(), {}))
    assert read.all("html") == [{"lang": "en"}]
    assert len(read.all("h1")) == len(read.all("main")) == 1
    assert all("scope" in head for head in read.all("th"))
    assert all("aria-label" in svg or svg.get("aria-hidden") == "true" for svg in read.all("svg"))
    ids = [a["id"] for _, a in read.elements if "id" in a]
    assert len(ids) == len(set(ids))
    assert {link["href"][1:] for link in read.all("a") if link["href"].startswith("#")} <= set(ids)


def test_the_page_tells_what_a_failure_tells():
    told = " ".join(" ".join(Reader(page(full_report(), {})).texts).split())
    for text in (
        "2 layers at fault: scales far too wide in /layer2/0/conv1/Conv; scales that cut values off in",
        "quantization loses it: scales, or layers that INT8 does not suit",
        "≥ 0.999",
        "scale 61.2x too wide: '/layer1/1/relu/Relu_output_0' reaches 4.2, its range 257, so 97 %",
        "calibrate this tensor anew: its range should end where its values do",
        "scale reaches 257 →",
        "Cheaper no layer needs FP16: other scales for 1 tensor (percentile 99.99)",
        "Plan of the search, verified (built and run on all samples",
        "45 of 54",
        "INT8 is 1.34 times as fast as the baseline.",
        "nonzero-zero-point",
        "Golden: the INT8 scores are 0.1 below those accepted",
        "/layer2/0/conv1/Conv /layer2/0/relu/Relu /layer4/1/conv2/Conv",
        'version: 2 high: "/layer2/0/conv1/Conv": fp16 "/layer4/1/conv2/Conv": fp16',
        "models/gpt.int8acc.yaml:3:1: 'modle'",
        "needs a model that is not public",
    ):
        assert text in told, text


def test_files_written_are_there_to_be_copied_and_no_others(tmp_path):
    (tmp_path / "secret.txt").write_text("secret")
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "commands.sh").write_text("trtexec --onnx=fixed.onnx")
    (folder / "fixed.onnx").write_bytes(b"\x08\x01")
    (folder / "large.txt").write_text("x" * (65 << 10))
    (folder / "binary.txt").write_bytes(b"\xff\xfe")
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    names = ("commands.sh", "fixed.onnx", "large.txt", "binary.txt", "link.txt", "../secret.txt", "gone.txt")
    told = report(entry(case(written=names)))
    assert texts(folder, told) == {"commands.sh": "trtexec --onnx=fixed.onnx"}
    assert "trtexec --onnx=fixed.onnx" in page(told, texts(folder, told))


@settings(deadline=None, max_examples=12)
@given(RESULTS)
def test_every_result_has_its_page(result):
    Reader(page(report(entry(result)), {}))
    Reader(fragment(to_plain(result)))


@settings(max_examples=50)
@given(SCORES)
def test_a_score_lies_beyond_the_middle_just_where_it_misses_its_limit(score):
    place = score_place(score)
    if score.limit is None:
        assert place is None
        return
    assert 0 <= place <= 100
    assert place <= 50 + 1e-4 if score.passed else place >= 50 - 1e-4


NUMBERS = st.floats(allow_nan=True, allow_infinity=True)


@given(
    st.lists(st.builds(LayerError, st.text(max_size=4), st.just("Conv"), NUMBERS, NUMBERS, NUMBERS, NUMBERS))
)
def test_bars_are_as_long_as_they_may_be(layers):
    bars = layer_bars(layers, ["a"])
    assert len(bars) == min(len(layers), 40)
    assert all(0 <= width <= 100 for bar in bars for width in (bar.width, bar.rest))
    assert all(bar.marked == (bar.label == "a") for bar in bars)


def test_the_worst_layer_has_the_longest_bar():
    layers = [
        LayerError(n, "Conv", db, 1.0, db, 1.0) for n, db in (("good", 40.0), ("bad", 0.0), ("mid", 20.0))
    ]
    assert [(bar.label, bar.width) for bar in layer_bars(layers, [])] == [
        ("bad", 100),
        ("mid", 10),
        ("good", 1),
    ]
    assert layer_bars(layers, [])[1].text == "10% (20 dB)"


@settings(max_examples=50)
@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=64), st.floats(1e-30, 1e30), st.none() | NUMBERS)
def test_histograms_stay_in_their_frame(counts, amax, reach):
    edges = tuple(amax * i / len(counts) for i in range(len(counts) + 1))
    chart = histogram(Cause("saturation", "cut-off", "x", {}, Histogram(edges, tuple(counts)), amax, reach))
    if chart is None:
        assert reach is not None
        assert not math.isfinite(reach)
        return
    for bar in chart.bins:
        assert bar.x >= 0
        assert bar.x + bar.width <= WIDTH + 1
        assert -1e-6 <= bar.y <= HEIGHT
    assert all(mark is None or mark.x <= WIDTH for mark in (chart.amax, chart.reach))


def test_values_beyond_the_scale_are_marked_as_clipped():
    chart = histogram(report_cases.CULPRITS[1].cause)
    clipped = [bar for bar in chart.bins if bar.clipped]
    assert 0 < len(clipped) < len(chart.bins)
    assert min(bar.x for bar in clipped) >= chart.reach.x - 1e-6
    assert chart.used is None
    wide = histogram(report_cases.CULPRITS[0].cause)
    assert wide.reach.beyond
    assert wide.used == pytest.approx(1.63)
