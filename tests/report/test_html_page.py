"""report.html: complete by itself, and safe whatever models, layers and cases are called."""

from __future__ import annotations

import base64
import hashlib
import itertools
import math
import re
import struct
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path

import pytest
from hostile import in_a_line, renamed
from report_cases import (
    CASE,
    Plain,
    case,
    entry,
    full_report,
    layer_error,
    page,
    page_apart,
    replace,
    report,
)
from report_readers import Reader
from report_samples import RESULTS
from spec_texts import OUTPUT_METRICS, TASKS

pytest.importorskip("jinja2", reason="pip install jinja2")

pytestmark = pytest.mark.usefixtures("quick_processes")

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


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of a report of everything."""
    return page_apart(tmp_path_factory.mktemp("whole"), full_report())


def text_of(read: Reader) -> str:
    return " ".join(" ".join(read.texts).split())


def drawn(read: Reader, *classes: str) -> list[dict[str, str | None]]:
    """What has one of these classes in a drawing."""
    return [known for _, known, _ in read.drawn if known.get("class") in classes]


def test_no_name_becomes_markup(pytester: pytest.Pytester) -> None:
    def of(names: Sequence[str], folder: str) -> Reader:
        bare = [entry(None, "a", "error", message=name) for name in names]
        errors = [{"nodeid": name, "message": name} for name in names]
        return Reader(page(pytester, report(*map(renamed, names), *bare, errors=errors), folder))

    found, expected = of(HOSTILE, "found"), of([f"harmless{i}" for i in range(len(HOSTILE))], "expected")
    for tag in {tag for tag, _ in found.elements} - {"wbr", "a", "span"}:  # an absolute path is no link
        assert len(found.all(tag)) == len(expected.all(tag)), tag
    keys = [{key for _, a in read.elements for key in a} - {"download"} for read in (found, expected)]
    assert keys[0] == keys[1]
    for name in HOSTILE:
        assert any(in_a_line(name) in text for text in found.texts)


def test_links_lead_into_the_folder_or_nowhere(pytester: pytest.Pytester) -> None:
    for link in Reader(page(pytester, report(entry(case(written=[*HOSTILE, "/etc/x", "../x"]))))).all("a"):
        assert str(link["href"]).startswith(("#case", "./"))
        assert ":" not in str(link["href"])


def test_the_page_needs_nothing_else_and_lets_no_other_script_run(whole: str) -> None:
    read = Reader(whole)
    assert not {"link", "iframe", "object", "form", "base"} & {tag for tag, _ in read.elements}
    sources = [a["src"] for _, a in read.elements if "src" in a]
    assert sources
    assert all(str(source).startswith("data:image/png;base64,") for source in sources)
    assert not [a for _, a in read.elements if any(key.startswith("on") for key in a)]
    assert not re.search(r"https?://|url\(", whole)
    (policy,) = [str(meta["content"]) for meta in read.all("meta") if "http-equiv" in meta]
    (script,) = re.findall(r"(?s)<script>(.*?)</script>", whole)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy.startswith("default-src 'none'; ")
    assert f"script-src 'sha256-{digest}';" in policy


def test_a_person_who_cannot_see_it_finds_the_way(whole: str) -> None:
    read = Reader(whole)
    assert read.all("html") == [{"lang": "en"}]
    assert len(read.all("h1")) == len(read.all("main")) == 1
    assert all("scope" in head for head in read.all("th"))
    assert all("aria-label" in svg or svg.get("aria-hidden") == "true" for svg in read.all("svg"))
    ids = [a["id"] for _, a in read.elements if "id" in a]
    assert len(ids) == len(set(ids))
    assert {str(a["href"])[1:] for a in read.all("a") if str(a["href"]).startswith("#")} <= set(ids)


def test_files_written_are_there_to_be_copied_and_no_others(pytester: pytest.Pytester) -> None:
    (pytester.path / "secret.txt").write_text("a secret")
    shard, out = pytester.path / "shard", pytester.path / "shard-out"
    for folder in (shard, out):
        folder.mkdir()
        (folder / "link.txt").symlink_to(pytester.path / "secret.txt")
    (shard / "commands.sh").write_text("trtexec --onnx=fixed.onnx")
    (shard / "fixed.onnx").write_bytes(b"\x08\x01")
    (shard / "large.txt").write_text("x" * (65 << 10))
    (shard / "binary.txt").write_bytes(b"\xff\xfe")
    names = ["commands.sh", "fixed.onnx", "large.txt", "binary.txt", "link.txt", "../secret.txt", "gone.txt"]
    text = page(pytester, report(entry(case(written=names))))
    copies = re.findall(r'(?s)class="snippet.*?<span>(.*?)</span>.*?<pre[^>]*>(.*?)</pre>', text)
    assert copies == [("commands.sh", "trtexec --onnx=fixed.onnx")]
    assert "a secret" not in text


def test_layers_stand_in_the_graph_s_order_and_the_worst_has_the_longest_bar(
    pytester: pytest.Pytester,
) -> None:
    layers = [layer_error(n, db, db) for n, db in (("good", 40.0), ("bad", 0.0), ("mid", 20.0))]
    read = bars(pytester, layers)
    assert [float(known["width"] or 0) for known in drawn(read, "alone")] == [1, 100, 10]
    text = text_of(read)
    assert text.index("good Conv 1 % (40 dB)") < text.index("bad Conv") < text.index("mid Conv 10 % (20 dB)")


def bars(pytester: pytest.Pytester, layers: list[Plain]) -> Reader:
    """The page of a case with these layers."""
    return Reader(page(pytester, report(entry(case(diagnosis=replace(CASE["diagnosis"], layers=layers))))))


def test_of_many_layers_the_culprits_and_the_worst_are_shown(pytester: pytest.Pytester) -> None:
    layers = [layer_error(f"L{i}", 20.0 + i % 7 * (i != 90), 40.0) for i in range(100)]
    for place, culprit in ((5, 0), (33, 1)):
        layers[place]["layer"] = CASE["search"]["culprits"][culprit]["layer"]
    read = bars(pytester, layers)
    assert len(drawn(read, "alone")) == 40
    text = text_of(read)
    places = [int(place) for place in re.findall(r" L(\d+) Conv", text)]
    assert places == sorted(places)
    assert 90 in places
    assert len(re.findall(r"✗ /layer\S+ Conv", text)) == 2
    skipped = sum(map(int, re.findall(r"(\d+) layers? with less error", text)))
    assert skipped + 40 == places[-1] + 1
    assert "report.json has all 100" in text


def test_values_beyond_the_scale_are_marked_as_clipped(whole: str) -> None:
    """Of the two culprits one has a scale that is too wide, the other one that is too narrow."""
    read = Reader(whole)
    clipped, kept = drawn(read, "clipped"), drawn(read, "bin")
    reach = [float(line["x1"] or 0) for line in drawn(read, "reach") if "x1" in line]
    assert clipped
    assert len(kept) > len(clipped)
    assert min(float(bar["x"] or 0) for bar in clipped) >= min(reach) - 1e-6
    assert "scale reaches 257 →" in text_of(read)
    assert "values take 1.63% of the scale's reach" in text_of(read)
    assert text_of(read).count("of the scale's reach") == 2, "the failed case and the one that may fail"


@pytest.mark.parametrize("factor", [1e-20, 1e20])
def test_a_histogram_fills_its_frame_whatever_the_unit_of_its_values(
    factor: float, pytester: pytest.Pytester
) -> None:
    result = case()
    cause = result["search"]["culprits"][0]["cause"]
    cause["histogram"]["edges"] = [factor * edge for edge in cause["histogram"]["edges"]]
    cause["amax"], cause["reach"] = factor * cause["amax"], factor * cause["reach"]
    bars = drawn(Reader(page(pytester, report(entry(result)))), "bin", "clipped")
    first = drawn(Reader(page(pytester, report(entry(case())))), "bin", "clipped")
    assert bars
    assert [float(bar["x"] or 0) for bar in bars] == pytest.approx([float(bar["x"] or 0) for bar in first])


def test_a_picture_is_a_png_of_its_pixels(whole: str) -> None:
    source = str(Reader(whole).all("img")[0]["src"])
    data = base64.b64decode(source.removeprefix("data:image/png;base64,"))
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert struct.unpack(">II", data[16:24]) == (16, 16)
    start = data.index(b"IDAT")
    (length,) = struct.unpack(">I", data[start - 4 : start])
    rows = zlib.decompress(data[start + 4 : start + 4 + length])
    pixels = CASE["diagnosis"]["worst"][0]["views"][0]["rows"]
    assert rows == b"".join(b"\0" + base64.b64decode(row) for row in pixels)


@pytest.mark.parametrize("rows", [[], [""], ["AAAA", "AA=="], ["no base64"], ["é"], ["AAAAAA=="]])
def test_what_holds_no_pixels_is_no_picture(rows: list[str], pytester: pytest.Pytester) -> None:
    diagnosis = case()["diagnosis"]
    diagnosis["worst"][0]["views"][0]["rows"] = rows
    assert not Reader(page(pytester, report(entry(case(diagnosis=diagnosis))))).all("img")


@pytest.mark.parametrize("values", [[1.5, -2.0, 0.5], [3e38, -3e38, 0.0], [0.5, "nan", 0.25, "inf", 0.0]])
def test_a_curve_reaches_from_the_lowest_to_the_highest_value(
    values: list[float | str], pytester: pytest.Pytester
) -> None:
    result = case()
    views = result["diagnosis"]["worst"][0]["views"]
    views[1]["values"], views[2]["values"] = values, ["nan", "-inf"]
    read = Reader(page(pytester, report(entry(result))))
    first, second = (str(line["points"]).split() for line in read.all("polyline") if "class" in line)
    heights = [float(point.split(",")[1]) for point in first]
    known = [float(value) for value in values]
    finite = [i for i, value in enumerate(known) if math.isfinite(value)]
    low, high = min(known[i] for i in finite), max(known[i] for i in finite)
    places = [120 * (1 - (known[i] / 2 - low / 2) / (high / 2 - low / 2)) for i in finite]
    assert [heights[i] for i in finite] == pytest.approx(places, abs=0.1)
    assert [height for i, height in enumerate(heights) if i not in finite] == [120.0] * (
        len(known) - len(finite)
    )
    assert second == ["0.0,120.0", "480.0,120.0"]


@pytest.mark.parametrize(("inputs", "outputs"), [(0, 0), (0, 3), (5, 1)])
def test_neighbours_stand_apart_and_beside_their_culprit(
    inputs: int, outputs: int, pytester: pytest.Pytester
) -> None:
    result = case()
    (one, *_) = result["search"]["culprits"]
    wire = one["neighbours"]["inputs"][0]
    one["neighbours"] = {"inputs": [wire] * inputs, "outputs": [wire] * outputs}
    read = Reader(page(pytester, report(entry(result))))
    boxes = [
        (float(a["x"] or 0), float(a["y"] or 0)) for tag, a, _ in read.drawn if tag == "rect" and "rx" in a
    ]
    assert [x for x, _ in boxes] == [165, *[0] * inputs, *[330] * outputs]
    for left in (0, 165, 330):
        tops = [y for x, y in boxes if x == left]
        assert all(after - before > 48 for before, after in itertools.pairwise(tops))


def test_a_trade_off_is_drawn_from_nothing_kept_high_to_the_most(pytester: pytest.Pytester) -> None:
    def dots(result: Plain) -> tuple[list[tuple[float, float]], float]:
        read = Reader(page(pytester, report(entry(result))))
        circles = [a for tag, a, _ in read.drawn if tag == "circle"]
        (limit,) = [float(a["y1"] or 0) for a in drawn(read, "axis") if "stroke-dasharray" in a]
        return [(float(a["cx"] or 0), float(a["cy"] or 0)) for a in circles], limit

    found, limit = dots(case())
    assert [x for x, _ in found] == pytest.approx([0, 480 * 0.06 / 0.104, 480])
    heights = [y for _, y in found]
    assert heights == sorted(heights, reverse=True), "less error is higher"
    assert [y > limit for y in heights] == [True, True, False], "above the limit's line it is kept"
    broken = case()
    for point in broken["search"]["tradeoff"]["points"]:
        point["score"]["value"] = "nan"
    assert all(math.isfinite(y) for _, y in dots(broken)[0])


def test_every_metric_number_and_file_has_a_label(pytester: pytest.Pytester) -> None:
    """What a page names has its explanation beside it."""
    metrics = sorted(OUTPUT_METRICS | TASKS)
    assert {"cosine", "tolerance", "top1", "ssim"} <= set(metrics)
    files = ["fixed.onnx", "plan.yaml", "exclude_nodes.txt", "modelopt.sh", "ort_quantize.py"]
    files += ["layer_precisions.txt", "postprocess.py", "commands.txt", "float.onnx"]
    scores = [{"subject": "y", "metric": name, "value": 0.5, "limit": 0.9} for name in metrics]
    found = {name: replace(one, metrics=[]) for name, one in RESULTS.items() if "search" in one}
    entries = [entry(result, name) for name, result in found.items()]
    entries += [entry(case(metrics=scores, written=files), "metrics")]
    text = page(pytester, report(*entries))
    cells = re.findall(r'data-label="Metric">(.*?)</td>', text) + re.findall(r"<dt>(.*?)</dt>", text)
    assert len(cells) > 100
    assert not [cell for cell in cells if not cell.startswith("<abbr title=") or "metric of your own" in cell]
    listed = re.findall(r"(?s)<li>(?:<a[^>]*>|<span>)(.*?)</li>", text)
    assert {item.partition("<")[0] for item in listed if "<small>" in item} == set(files)


def test_files_are_listed_by_what_they_are_for(pytester: pytest.Pytester) -> None:
    names = ["fixed.onnx", "exclude_nodes.txt", "plan.yaml", "high/fixed.onnx", "reduced/conv1/model.onnx"]
    written = [*(f"models/net/{name}" for name in [*names, "golden/a.npz"]), "elsewhere/x.txt"]
    text = page(pytester, report(entry(case(written=written))))
    lists = [
        re.findall(r"<li>(?:<a[^>]*>|<span>)([^<]*)<", one) for one in text.split('<ul class="files">')[1:]
    ]
    assert lists == [
        ["fixed.onnx", "plan.yaml", "exclude_nodes.txt"],
        ["high/fixed.onnx"],
        ["golden/a.npz", "elsewhere/x.txt"],
        ["reduced/conv1/model.onnx"],
    ]


def test_findings_of_a_case_that_passes_are_seen_before_it_is_opened(pytester: pytest.Pytester) -> None:
    text = page(pytester, report(entry(case("net", 0.9995, findings=CASE["findings"]))))
    row, head = text[text.index("<tbody>") : text.index("</tbody>")], text[text.index("<summary>") :]
    head = head[: head.index("</summary>")]
    for place in (row, head):
        assert "⚠ TensorRT refuses this model: nonzero-zero-point (1 node)" in place
    assert "⚠ &#39;images&#39;: values reach 255" in head
    assert "and 2 more" in row
    assert "and 1 more" in head


def test_a_function_of_the_user_s_is_not_called_what_its_name_may_mean(pytester: pytest.Pytester) -> None:
    own = {"subject": "metrics.py:top1", "metric": "top1", "value": 0.9, "limit": 0.8}
    for metrics, label in (([own], "top1"), ([replace(own, subject="top1")], "Top-1 accuracy")):
        text = page(pytester, report(entry(case("net", 0.9995, metrics=metrics))))
        assert re.search(rf"<abbr[^>]*>{label}</abbr>|>{label}<", text)
        assert (label == "Top-1 accuracy") == ("Top-1 accuracy" in text)


@pytest.fixture
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where Python keeps what it compiles, empty; templates are read anew."""
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / "compiled"))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.delitem(sys.modules, "pytest_int8acc.report.html", raising=False)
    return tmp_path / "compiled"


def test_templates_are_compiled_once(compiled: Path, pytester: pytest.Pytester) -> None:
    shown = page(pytester, full_report())
    written = {path: path.stat().st_mtime_ns for path in compiled.rglob("*.cache")}
    assert written
    assert page(pytester, full_report()) == shown
    assert {path: path.stat().st_mtime_ns for path in compiled.rglob("*.cache")} == written


@pytest.mark.parametrize("refused", ["told not to", "a file in its place"])
def test_pages_need_no_place_for_what_is_compiled(
    compiled: Path, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    if refused == "told not to":
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
    else:
        compiled.write_text("")
    assert "<html" in page(pytester, full_report())
    assert not list(compiled.rglob("*.cache"))


@pytest.mark.parametrize("low", ["fp8", "fp16", "bf16"])
def test_a_search_is_told_in_the_format_of_its_case(low: str, pytester: pytest.Pytester) -> None:
    """``search.low`` is left out here: the case itself says its format."""
    read = Reader(page(pytester, report(entry(case(low=low)))))
    assert f"of the MACs stay in {low.upper()}" in text_of(read)
    assert "stay in INT8" not in text_of(read)
