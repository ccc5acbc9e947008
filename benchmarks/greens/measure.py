"""One entry: its project written, its truth held against its class, pytest run on it as by a user."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import multiprocessing
import os
import re
import sys
import tempfile
import time
import traceback
from pathlib import Path

from benchmarks.greens import healthy, ours, stranger
from benchmarks.greens.entry import ENTRIES, HEALTHY, HEALTHY_MOVE, Entry, Project

__all__ = ["ENTRIES", "Outcome", "entries", "measure"]

# A thread each: what several processes at once would fight for, and what sums depend on.
for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"

#: Seconds that one entry may take.
LIMIT = 240
#: A lie is one where the task's metric moves by more than this, in parts of the honest value.
PLANTED_MOVE = 0.05
_MODULES = (ours, stranger, healthy)
_VERDICT = re.compile(r"^(PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)\b.*", re.MULTILINE)
_CAUTION = re.compile(r"\b(\d+ )?(warnings?|cautions?)\b", re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What came of one entry."""

    name: str
    kind: str
    network: str
    outcome: str
    """'red', 'caution', 'green'; 'misled' where the text says what is false; 'skipped'; 'broken' where the
    entry itself is no lie or not healthy, or nothing ran."""
    line: str
    """The verdict line, or what is wrong with the entry."""
    truth: str
    seconds: float
    text: str
    """All that pytest printed."""
    cpu: float = 0.0
    """Seconds of CPU time, the making of the project included."""


def entries() -> dict[str, Entry]:
    """All entries of all modules."""
    return dict(ENTRIES)


def measure(name: str, gpu: bool = False, full: bool = False) -> Outcome:
    """Run an entry in a process of its own, at most ``LIMIT`` seconds.

    Args:
        name: Of the entry.
        gpu: Whether entries that need TensorRT and a GPU run.
        full: Whether the search and all that follows a verdict run in every entry.
    """
    entry, began = ENTRIES[name], time.perf_counter()
    if entry.gpu and not gpu:
        line = f"needs TensorRT and a GPU: python -m benchmarks.greens --gpu --only {name}"
        return Outcome(name, entry.kind, entry.network, "skipped", line, "", 0.0, "")
    with tempfile.TemporaryDirectory(prefix="greens_") as folder:
        target = Path(folder) / "outcome.json"
        process = _context().Process(target=_child, args=(name, folder, str(target), full))
        process.start()
        process.join(LIMIT)
        if process.is_alive():
            process.kill()
            process.join()
        seconds = time.perf_counter() - began
        if not target.exists():
            line = f"no outcome: exit code {process.exitcode} after {seconds:.0f} s"
            return Outcome(name, entry.kind, entry.network, "broken", line, "", seconds, "")
        found = json.loads(target.read_text(encoding="utf-8"))
    return Outcome(name, entry.kind, entry.network, seconds=seconds, **found)


def _context() -> multiprocessing.context.ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.greens.measure", "pytest", "yaml"])
    return context


def _child(name: str, folder: str, target: str, full: bool) -> None:
    entry, project = ENTRIES[name], Project(Path(folder) / "project")
    project.folder.mkdir()
    if not entry.gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    os.environ.pop("CI", None)
    os.environ.update(COLUMNS="1000", PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    try:
        truth = entry.write(project)
        said = _against(entry, truth.moved)
        found = _judged(entry, project, full) if not said else ("broken", f"{said}: {truth}", "")
        outcome = {"outcome": found[0], "line": found[1], "truth": str(truth), "text": found[2]}
        outcome["cpu"] = time.process_time()
    except Exception:
        last = traceback.format_exc().strip().splitlines()[-1]
        outcome = {"outcome": "broken", "line": last, "truth": "", "text": traceback.format_exc()}
    Path(target).write_text(json.dumps(outcome), encoding="utf-8")


def _against(entry: Entry, moved: float) -> str:
    """What is wrong with an entry whose metric moves that far, or nothing."""
    if entry.kind == HEALTHY and moved >= HEALTHY_MOVE:
        return f"not healthy, its metric moves by {moved:.1%}"
    if entry.kind != HEALTHY and moved <= PLANTED_MOVE:
        return f"no lie, its metric moves by {moved:.1%} only"
    return ""


def _judged(entry: Entry, project: Project, full: bool) -> tuple[str, str, str]:
    """Outcome, verdict line and text of a run."""
    arguments = [] if full or entry.search else ["--int8acc-search", "off"]
    if entry.record:
        _pytest(project, [*arguments, "--int8acc-update=missing"])
    text = _pytest(project, arguments)
    verdicts = [found.group() for found in _VERDICT.finditer(text)]
    if not verdicts:
        collected = [line for line in text.splitlines() if "int8acc.yaml:" in line or line.startswith("E ")]
        line = next(iter(collected), "no verdict")
        return ("red" if collected else "broken"), line, text
    order = ("FAILED", "ERROR", "XPASS", "XFAIL", "SKIPPED", "PASSED")
    line = min(verdicts, key=lambda verdict: order.index(verdict.split()[0]))
    if entry.never and re.search(entry.never, text):
        return "misled", line, text
    if line.startswith(("FAILED", "ERROR")):
        return "red", line, text
    if not line.startswith("PASSED"):
        return "broken", line, text
    caution = next((verdict for verdict in verdicts if _CAUTION.search(verdict.partition(" - ")[2])), "")
    return ("caution", caution, text) if caution else ("green", line, text)


def _pytest(project: Project, arguments: list[str]) -> str:
    import pytest

    settings = project.folder / "pytest.ini"
    if not settings.exists():
        settings.write_text("[pytest]\nint8acc = true\n", encoding="utf-8")
    written = io.StringIO()
    before = Path.cwd()
    os.chdir(project.folder)
    try:
        with contextlib.redirect_stdout(written), contextlib.redirect_stderr(sys.stdout):
            pytest.main(
                [
                    "--int8acc",
                    "-p",
                    "pytest_int8acc.plugin",
                    "-p",
                    "no:cacheprovider",
                    *project.arguments,
                    *arguments,
                ]
            )
    finally:
        os.chdir(before)
    return written.getvalue()
