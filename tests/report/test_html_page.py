"""report.html: complete by itself, and safe whatever models, layers and cases are called."""

from __future__ import annotations

import base64
import hashlib
import inspect
import itertools
import json
import math
import re
import struct
import sys
import zlib
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from string import Formatter

import pytest
import report_cases
from hostile import renamed
from hypothesis import given, settings
from hypothesis import strategies as st
from report_cases import case, entry, full_report, report
from report_results import RESULTS, SCORES

from pytest_int8acc.fix import write_fix
from pytest_int8acc.names import shown
from pytest_int8acc.report import labels
from pytest_int8acc.report.causes import _PHRASES, _SENTENCES
from pytest_int8acc.report.drawing import CURVE_HEIGHT, chart, curves, drawing, png
from pytest_int8acc.report.folder import texts
from pytest_int8acc.report.labels import FILES, METRICS, number_cells
from pytest_int8acc.report.plain import to_plain
from pytest_int8acc.report.view import HEIGHT, WIDTH, files_by_use, histogram, layer_bars, score_place
from pytest_int8acc.results import LayerError, Neighbours, Score, View, Wire
from pytest_int8acc.results.causes import Cause, Histogram
from pytest_int8acc.scores.metrics import METRICS as METRICS_OF_SPECS
from pytest_int8acc.scores.tasks import TASKS

pytest.importorskip("jinja2", reason="pip install jinja2")
import jinja2

from pytest_int8acc.report import html
from pytest_int8acc.report.html import fragment, page

VOID = {"meta", "input", "br", "wbr", "rect", "line", "img", "path", "polyline", "circle"}
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
    keys = ({key for _, a in read.elements for key in a} - {"download"} for read in (found, expected))
    assert next(keys) == next(keys)
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
    assert not {"link", "iframe", "object", "form", "base"} & {tag for tag, _ in read.elements}
    sources = [a["src"] for _, a in read.elements if "src" in a]
    assert sources
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    assert not [a for _, a in read.elements if any(key.startswith("on") for key in a)]
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


def test_layers_stand_in_the_graph_s_order_and_the_worst_has_the_longest_bar():
    layers = [
        LayerError(n, "Conv", db, 1.0, db, 1.0) for n, db in (("good", 40.0), ("bad", 0.0), ("mid", 20.0))
    ]
    assert [(bar.label, bar.width) for bar in layer_bars(layers, [])] == [
        ("good", 1),
        ("bad", 100),
        ("mid", 10),
    ]
    assert layer_bars(layers, [])[2].text == "10 % (20 dB)"


def test_of_many_layers_the_culprits_and_the_worst_are_shown():
    layers = [LayerError(f"{i}", "Conv", 40.0, 1.0, 20.0 + i % 7 * (i != 90), 1.0) for i in range(100)]
    bars = layer_bars(layers, ["5", "33"])
    assert len(bars) == 40
    places = [int(bar.label) for bar in bars]
    assert places == sorted(places)
    assert {5, 33, 90} <= set(places)
    assert [bar.label for bar in bars if bar.marked] == ["5", "33"]
    assert sum(bar.skipped + 1 for bar in bars) == places[-1] + 1


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


def test_a_picture_is_a_png_of_its_pixels():
    view = report_cases.picture("images")
    data = base64.b64decode(png(view).removeprefix("data:image/png;base64,"))
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert struct.unpack(">II", data[16:24]) == (16, 16)
    start = data.index(b"IDAT")
    (length,) = struct.unpack(">I", data[start - 4 : start])
    rows = zlib.decompress(data[start + 4 : start + 4 + length])
    assert rows == b"".join(b"\0" + base64.b64decode(row) for row in view.rows)


@pytest.mark.parametrize("rows", [(), ("",), ("AAAA", "AA=="), ("no base64",), ("é",), ("AAAAAA==",)])
def test_what_holds_no_pixels_is_no_picture(rows):
    assert png(replace(report_cases.picture("x"), rows=rows)) == ""


@given(st.lists(st.lists(NUMBERS, max_size=9), max_size=3))
def test_curves_stay_in_their_frame(values):
    views = [View("x", "input", (len(v),), 0.0, 1.0, values=tuple(v)) for v in values]
    chart = curves(views)
    if chart is None:
        assert not any(math.isfinite(v) for each in values for v in each)
        return
    for points in chart.paths:
        for point in points.split():
            x, y = map(float, point.split(","))
            assert 0 <= x <= WIDTH
            assert -1e-6 <= y <= CURVE_HEIGHT


@given(st.integers(0, 5), st.integers(0, 5))
def test_neighbours_stand_apart_and_beside_their_culprit(inputs, outputs):
    wire = Wire("t", "node", "n", "Relu", "int8", 0.1, 1)
    around = Neighbours((wire,) * inputs, (wire,) * outputs)
    found = drawing(replace(report_cases.CULPRITS[0], neighbours=around), ["n"])
    assert [box.x for box in found.boxes] == [165, *[0] * inputs, *[330] * outputs]
    for boxes in (found.boxes[1 : 1 + inputs], found.boxes[1 + inputs :], found.boxes[:1]):
        tops = [box.y for box in boxes]
        assert all(after - before > 48 for before, after in itertools.pairwise(tops))
        assert all(-1e-6 <= y <= found.height - 48 + 1e-6 for y in tops)


def test_every_metric_number_and_file_has_a_label():
    assert METRICS_OF_SPECS.keys() | TASKS.keys() <= METRICS.keys()
    golden = json.loads((Path(__file__).parent / "golden.json").read_text(encoding="utf-8"))
    culprits = [culprit for entry in golden["cases"] for culprit in entry.get("culprits", ())]
    measured = {name for culprit in culprits for name in culprit["cause"]["numbers"]}
    told = {name for text in _SENTENCES.values() for _, name, _, _ in Formatter().parse(text) if name}
    told -= {*_PHRASES, "tensor", "node", "op_type", "format", "amax", "reach"}
    assert measured | told <= labels.NUMBERS.keys()
    written = re.findall(r"^(\w+\.\w+)", inspect.getdoc(write_fix), re.MULTILINE)
    assert set(written) == FILES.keys()
    assert [(label.text, text) for label, text in number_cells({"codes_used": 0.03, "sqnr_db": 9.5})] == [
        ("Codes used", "3 %"),
        ("SQNR kept", "9.5 dB"),
    ]


def test_files_are_listed_by_what_they_are_for():
    names = ["fixed.onnx", "exclude_nodes.txt", "plan.yaml", "high/fixed.onnx", "reduced/conv1/model.onnx"]
    found = files_by_use(
        [*(f"models/net/{name}" for name in [*names, "golden/a.npz"]), "elsewhere/x.txt"], {}
    )
    assert {use: [file["name"] for file in files] for use, files in found.items()} == {
        "fix_files": ["fixed.onnx", "plan.yaml", "exclude_nodes.txt"],
        "high_files": ["high/fixed.onnx"],
        "reduced_files": ["reduced/conv1/model.onnx"],
        "others_files": ["golden/a.npz", "elsewhere/x.txt"],
    }
    assert files_by_use(["x/commands.txt"], {})["others_files"][0]["name"] == "x/commands.txt"


def test_findings_of_a_case_that_passes_are_seen_before_it_is_opened():
    text = page(report(entry(case("net", 0.9995, findings=report_cases.FINDINGS))), {})
    row, head = text[text.index("<tbody>") : text.index("</tbody>")], text[text.index("<summary>") :]
    head = head[: head.index("</summary>")]
    for place in (row, head):
        assert "⚠ TensorRT refuses this model: nonzero-zero-point (1 node)" in place
    assert "⚠ &#39;images&#39;: values reach 255" in head
    assert "and 2 more" in row
    assert "and 1 more" in head


def test_a_function_of_the_user_s_is_not_called_what_its_name_may_mean():
    own = Score("metrics.py:top1", "top1", 0.9, 0.8)
    assert labels.metric_label(own).text == "top1"
    assert labels.metric_label(replace(own, subject="top1")).text == "Top-1 accuracy"


def test_a_trade_off_is_drawn_from_nothing_kept_high_to_the_most() -> None:
    offer = report_cases.SEARCH.tradeoff
    assert offer is not None
    drawn = chart(offer)
    assert [x for x, _ in drawn.dots] == pytest.approx([0, 480 * 0.06 / 0.104, 480])
    heights = [y for _, y in drawn.dots]
    assert heights == sorted(heights, reverse=True), "less error is higher"
    assert [y > drawn.limit for y in heights] == [not point.score.passed for point in offer.points]
    assert all(0 <= y <= CURVE_HEIGHT for y in (*heights, drawn.limit))
    broken = replace(
        offer, points=tuple(replace(p, score=replace(p.score, value=math.nan)) for p in offer.points)
    )
    assert all(math.isfinite(y) for _, y in chart(broken).dots)


@pytest.fixture
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where Python keeps what it compiles, empty; templates are read anew."""
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / "compiled"))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    html._environment.cache_clear()
    yield tmp_path / "compiled"
    html._environment.cache_clear()


def test_templates_are_compiled_once(compiled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = page(full_report(), {})
    assert list(compiled.rglob("*.cache"))
    html._environment.cache_clear()
    monkeypatch.setattr(jinja2.Environment, "_generate", lambda *given: pytest.fail("compiled again"))
    assert page(full_report(), {}) == shown


@pytest.mark.parametrize("refused", ["told not to", "a file in its place"])
def test_pages_need_no_place_for_what_is_compiled(
    compiled: Path, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    if refused == "told not to":
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
    else:
        compiled.write_text("")
    assert "<html" in page(full_report(), {})
    assert not list(compiled.rglob("*.cache"))
