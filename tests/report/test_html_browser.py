"""report.html in a real browser: order, width, keyboard, colours, print; nothing is asked of the network."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from browser import CHROMIUM, Page, browser
from hostile import renamed
from report_cases import case, entry, full_report, page, page_apart, report

pytest.importorskip("jinja2", reason="pip install jinja2")

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium (apt-get install chromium)")
ROWS = "[...document.querySelectorAll('#overview tbody tr:not([hidden])')]"
NAMES = f"{ROWS}.map(row => row.cells[1].textContent.trim().split('::')[1])"
WRITTEN = tuple(f"models/resnet18/{name}" for name in ("fixed.onnx", "plan.yaml", "high/plan.yaml"))
#: By WCAG 2.1: of all text that is seen, the least contrast, and where.
CONTRAST = """
(() => {
  const light = (c) => {
    const linear = (v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = c.map((v) => linear(v / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const parts = (text) => text.match(/[\\d.]+/g).map(Number);
  const behind = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const colour = parts(getComputedStyle(e).backgroundColor);
      if (colour.length < 4 || colour[3] > 0.99) return colour;
    }
    return [255, 255, 255];
  };
  let worst = [99, ""];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement, style = getComputedStyle(element);
    const unseen = !element.checkVisibility() || element.closest("svg, .skip, .hidden");
    if (unseen || !walker.currentNode.data.trim()) continue;
    const [one, other] = [light(parts(style.color)), light(behind(element))];
    const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    if (ratio < worst[0]) worst = [ratio, `${element.className}: ${walker.currentNode.data.slice(0, 40)}`];
  }
  return worst;
})()
"""


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """The page of a report of everything."""
    folder = tmp_path_factory.mktemp("browser")
    told = full_report()
    told["cases"][0]["written"] = list(WRITTEN)
    for name in WRITTEN[1:]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("high: {}\n")
    page_apart(folder, told)
    with browser(folder / "profile") as opened:
        opened.file = folder / "out" / "report.html"
        yield opened


def focused(shown: Page) -> str:
    """What has the focus: its tag, class and text."""
    said = "[e.tagName, e.className, (e.textContent || e.placeholder || '').trim().slice(0, 40)].join(' ')"
    return shown.value(f"(e => {said})(document.activeElement)")


def test_sorting_filtering_and_copying(shown):
    shown.open(shown.file)
    sort = "document.querySelectorAll('#overview th button')[{}].click()".format
    start = ["resnet18", "yolo", "mobilenet", "vit", "unet", "bert"]
    assert shown.value(NAMES) == start, "bad ones first"
    shown.value(sort(1))
    assert shown.value(NAMES) == ["bert", "mobilenet", "resnet18", "unet", "vit", "yolo"]
    assert shown.value("document.querySelectorAll('#overview th')[1].ariaSort") == "ascending"
    shown.value(sort(1))
    assert shown.value(NAMES) == ["yolo", "vit", "unet", "resnet18", "mobilenet", "bert"]
    shown.value(sort(1))
    assert shown.value(NAMES) == start
    shown.value(f"{sort(2)}; {sort(2)}")
    assert shown.value(NAMES)[:4] == ["resnet18", "unet", "mobilenet", "vit"]
    shown.value(sort(2))
    kind = (
        "(f => {{ f.value = '{}'; f.dispatchEvent(new Event('input')) }})(document.getElementById('filter'))"
    )
    shown.value(kind.format("layer4 saturation"))
    assert shown.value(NAMES) == ["resnet18", "unet"]
    assert shown.value("document.querySelectorAll('details.case:not([hidden])').length") == 2
    assert shown.value("document.getElementById('shown').textContent") == "2 of 6 shown"
    shown.value(kind.format(""))
    shown.value("document.querySelector('.chip[data-verdict=passed]').click()")
    assert shown.value(NAMES) == ["resnet18", "yolo", "unet", "bert"]
    shown.value("""
        window.copied = [];
        const clipboard = { writeText: async (text) => { copied.push(text); } };
        Object.defineProperty(navigator, "clipboard", { value: clipboard });
        document.querySelector("#case-1 .copy").click();
    """)
    assert shown.value("copied") == ["high: {}\n"]
    assert shown.value("document.querySelector('#case-1 .copy').closest('details').open") is False


def test_what_is_wrong_and_what_to_do_stand_side_by_side_above_the_fold(shown, pytester):
    page(pytester, report(entry(case(written=WRITTEN))))
    shown.open(pytester.path / "shard-out" / "report.html", 1366, 768)
    wrong, todo = (
        shown.value(
            "(r => [r.left, r.top, r.right, r.bottom])"
            f"(document.querySelector('{s}').getBoundingClientRect())"
        )
        for s in (".wrong", ".todo")
    )
    assert wrong[1] == todo[1]
    assert wrong[2] < todo[0]
    assert max(wrong[3], todo[3]) <= 768
    assert "fixed.onnx" in shown.value("document.querySelector('.todo').innerText")
    shown.open(shown.file, 1366, 768)
    cells = shown.value(f"{ROWS}[0].getBoundingClientRect().bottom")
    assert cells <= 768, "of several cases, their rows"
    assert "other scales for '" in shown.value(f"{ROWS}[0].innerText")


def test_nothing_is_wider_than_the_window(shown, pytester):
    page(pytester, report(renamed("n" * 4096), renamed("many words " * 90)))
    windows = [(390, ""), (768, ""), (900, ""), (1130, ""), (1366, ""), (718, "print")]
    for file in (shown.file, pytester.path / "shard-out" / "report.html"):
        for width, media in windows:
            shown.media(media)
            shown.open(file, width, 844)
            shown.value("document.querySelectorAll('details').forEach(d => { d.open = true; })")
            assert shown.value("document.documentElement.scrollWidth") == width
    shown.media()


def test_nothing_is_asked_of_the_network(shown):
    shown.open(shown.file, place="#case-1-layer-2")
    shown.value("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    asked = [url for url in shown.requests if not url.startswith("data:image/png;")]
    assert asked == [shown.file.as_uri()]
    assert shown.value("[...document.images].map(i => [i.naturalWidth, i.naturalHeight])") == [[16, 16]]


def test_the_keyboard_reaches_and_works_everything(shown):
    shown.open(shown.file)
    every = "a, button, input, summary, abbr, [tabindex]"
    wanted = shown.value(f"[...document.querySelectorAll('{every}')].filter(e => e.checkVisibility()).length")
    shown.value("window.reached = new Set(); addEventListener('focusin', e => reached.add(e.target))")
    shown.press("Tab")
    assert focused(shown) == "A skip Skip to the cases"
    for _ in range(wanted):
        shown.press("Tab")
    missed = f"[...document.querySelectorAll('{every}')].filter(e => e.checkVisibility() && !reached.has(e))"
    assert shown.value(f"{missed}.map(e => e.outerHTML.slice(0, 200))") == []


def test_a_number_is_explained_to_a_keyboard(shown):
    shown.open(shown.file)
    tip = "(t => t.hidden ? '' : t.textContent)(document.getElementById('tip'))"
    assert shown.value(tip) == ""
    shown.value("[...document.querySelectorAll('#case-1 abbr')].find(e => e.textContent == 'SQNR').focus()")
    said = shown.value(tip)
    assert said.startswith("power of the baseline over that of INT8's error")
    assert said.endswith("in a spec: sqnr_db")
    inside = "(r => r.left >= 0 && r.right <= innerWidth && r.top >= 0 && r.bottom <= innerHeight)"
    assert shown.value(f"{inside}(document.getElementById('tip').getBoundingClientRect())") is True
    shown.press("Escape")
    assert shown.value(tip) == ""
    labels = "[...document.querySelectorAll('#case-1 dt, #case-1 .scores td:nth-child(2)')]"
    assert shown.value(f"{labels}.filter(e => !e.querySelector('abbr[title]')).length") == 0


@pytest.mark.parametrize(
    ("media", "scheme"), [("", "light"), ("", "dark"), ("print", "light"), ("print", "dark")]
)
def test_all_text_can_be_read(shown, media, scheme):
    shown.media(media, scheme)
    shown.open(shown.file)
    shown.value("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    ratio, where = shown.value(CONTRAST)
    assert ratio >= 4.5, where
    paper = shown.value("getComputedStyle(document.body).backgroundColor")
    red = int(paper.partition("(")[2].partition(",")[0])
    assert (red < 64) == (scheme == "dark" and not media)
    shown.media()


def test_print_has_the_folds_open_but_for_what_is_long(shown):
    shown.open(shown.file)
    assert shown.pdf().startswith(b"%PDF")
    shown.value("dispatchEvent(new Event('beforeprint'))")
    shut = "[...document.querySelectorAll('details:not([open])')]"
    assert shown.value(f"{shut}.filter(d => !d.matches('.bulk')).length") == 0
    assert shown.value(f"{shut}.length") > 0
    shown.value("dispatchEvent(new Event('afterprint'))")
    assert shown.value("document.getElementById('case-2').open") is False
    assert shown.value("document.getElementById('case-1').open") is True


def test_the_page_runs_its_own_script_and_refuses_another(shown, tmp_path):
    text = shown.file.read_text(encoding="utf-8")
    (tmp_path / "spoiled.html").write_text(
        text.replace("</body>", "<script>document.title = 'RAN'</script></body>"), encoding="utf-8"
    )
    shown.open(tmp_path / "spoiled.html", place="#case-2")
    assert shown.value("document.getElementById('case-2').open") is True
    assert shown.value("document.title").startswith("INT8 accuracy: 1 failed")
