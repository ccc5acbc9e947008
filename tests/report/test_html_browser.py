"""report.html in a real browser: it draws, in light and dark, and its buttons work."""

from __future__ import annotations

import html
import os
import re
import shutil
import struct
import subprocess
import zlib
from pathlib import Path

import pytest
from report_cases import full_report

pytest.importorskip("jinja2", reason="pip install 'pytest-int8acc[html]'")
from pytest_int8acc.report.html import page

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium (apt-get install chromium)")
#: Runs in a copy of the page, when all else has run; what it leaves is read from the page's text.
PROBE = """
<script>
const log = document.createElement("output");
document.body.append(log);
const say = (what, value) => { log.textContent += what + "=" + JSON.stringify(value) + ";"; };
const rows = () => [...document.querySelectorAll("#overview tbody tr:not([hidden])")];
const names = () => rows().map((row) => row.cells[1].textContent.trim().split("::")[1]);
const sort = (column) => document.querySelectorAll("#overview th button")[column].click();
say("start", names());
sort(1); say("by name", names());
say("sorted", document.querySelectorAll("#overview th")[1].getAttribute("aria-sort"));
sort(1); say("by name down", names());
sort(1); say("as it was", names());
sort(3); sort(3); say("worst first", names());
sort(3);
const filter = document.getElementById("filter");
const type = (text) => { filter.value = text; filter.dispatchEvent(new Event("input")); };
type("layer4 saturation"); say("found", names());
say("cases", [...document.querySelectorAll("details.case:not([hidden])")].length);
say("shown", document.getElementById("shown").textContent);
type("");
document.querySelector(".chip[data-verdict=passed]").click(); say("without passed", names());
document.querySelector(".chip[data-verdict=passed]").click(); say("with passed", names().length);
document.querySelector('a[href="#case-2"]').click();
say("opened", document.getElementById("case-2").open);
const copied = [];
const clipboard = { writeText: async (text) => { copied.push(text); } };
Object.defineProperty(navigator, "clipboard", { value: clipboard });
const button = document.querySelector(".copy");
const before = button.closest("details").open;
button.click();
say("stays", button.closest("details").open === before);
say("copied", copied);
dispatchEvent(new Event("beforeprint"));
say("closed in print", document.querySelectorAll("details:not([open])").length);
dispatchEvent(new Event("afterprint"));
say("closed again", document.querySelectorAll("details:not([open])").length > 0);
say("overflow", document.documentElement.scrollWidth - innerWidth);
</script>
"""
POLICY = re.compile('<meta http-equiv="Content-Security-Policy"[^>]*>')


@pytest.fixture(scope="module")
def text() -> str:
    return page(full_report(), {"models/resnet18/plan.yaml": "high: {}\n"})


def browse(tmp_path: Path, text: str, *args: str, place: str = "") -> str:
    """What Chromium prints of a page."""
    (tmp_path / "report.html").write_text(text, encoding="utf-8")
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    sandbox = ["--no-sandbox"] if os.getuid() == 0 else []
    address = (tmp_path / "report.html").as_uri() + place
    command = [BROWSER, "--headless", "--disable-gpu", "--hide-scrollbars", profile, *sandbox, *args, address]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def corner(path: Path) -> bytes:
    """Red, green and blue of a PNG's first pixel, which no filter changes."""
    data, packed, at = path.read_bytes(), b"", 8
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        if data[at + 4 : at + 8] == b"IDAT":
            packed += data[at + 8 : at + 8 + length]
        at += 12 + length
    return zlib.decompressobj().decompress(packed, 4)[1:4]


def told(dom: str) -> dict[str, str]:
    """What the probe has left."""
    output = html.unescape(re.search(r"(?s)<output>(.*?)</output>", dom)[1])
    return dict(part.split("=", 1) for part in output.split(";") if part)


def test_sorting_filtering_copying_and_printing(tmp_path, text):
    # The page lets no other script run: the probe needs a copy without that rule.
    free = POLICY.sub("", text)
    dom = browse(tmp_path, free.replace("</body>", PROBE + "</body>"), "--dump-dom", "--window-size=1280,900")
    assert told(dom) == {
        "start": '["resnet18","mobilenet","vit","unet","yolo","bert"]',
        "by name": '["bert","mobilenet","resnet18","unet","vit","yolo"]',
        "sorted": '"ascending"',
        "by name down": '["yolo","vit","unet","resnet18","mobilenet","bert"]',
        "as it was": '["resnet18","mobilenet","vit","unet","yolo","bert"]',
        "worst first": '["resnet18","unet","mobilenet","vit","yolo","bert"]',
        "found": '["resnet18","unet"]',
        "cases": "2",
        "shown": '"2 of 6 shown"',
        "without passed": '["resnet18","unet","yolo","bert"]',
        "with passed": "6",
        "opened": "true",
        "stays": "true",
        "copied": r'["/layer2/0/conv1/Conv\n/layer2/0/relu/Relu\n/layer4/1/conv2/Conv\n"]',
        "closed in print": "0",
        "closed again": "true",
        "overflow": "0",
    }


def test_the_page_runs_its_own_script_and_refuses_another(tmp_path, text):
    closed = '<details class="case card " id="case-2" data-verdict="passed">'
    assert closed in text
    spoiled = text.replace("</body>", "<script>document.title = 'RAN'</script></body>")
    dom = browse(tmp_path, spoiled, "--dump-dom", place="#case-2")
    assert closed.replace(">", ' open="">') in dom
    assert "<title>INT8 accuracy: 1 failed" in dom
    assert "<title>RAN</title>" in browse(tmp_path, POLICY.sub("", spoiled), "--dump-dom")


@pytest.mark.parametrize(("scheme", "dark"), [("1", False), ("0", True)])
def test_screenshot(tmp_path, text, scheme, dark):
    shot = tmp_path / "shot.png"
    settings = f"--blink-settings=preferredColorScheme={scheme}"
    browse(tmp_path, text, settings, f"--screenshot={shot}", "--window-size=1280,3200")
    assert shot.stat().st_size > 100_000, "an almost empty page"
    assert (max(corner(shot)) < 64) == dark
