"""How many of the planted faults the tests find: python -m benchmarks.mutants --tree DIR --out FILE.

First every file of tests runs once on the tree as it is: which tests pass, how long they take, which
functions they call. Then each mutant is planted in a copy, and the tests nearest to it run until one fails,
60 s at most. Nearest are those that call the mutated function (of its room first, quick ones before slow
ones), then the rest of its room, files that name its module, and the plugin's. A failure counts only where
the same test passes again without the mutant. Results are lines of JSON, appended as they come: the same
command goes on where an interrupted one stopped. Tests marked 'gpu' are left out.

With --table FILE [FILE] nothing runs: the table of one or two such files is printed.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.mutants.draw import LIST, PACKAGE, Mutant, read, scope_of_rows, scopes

#: Seconds that tests may take for one mutant.
LIMIT = 60.0
#: A test hangs when it takes longer than this many seconds, and this many times as long as without a mutant.
HANGS_AFTER, HANGS_TIMES = 20.0, 8.0
#: Seconds until pytest has begun its first test, at most.
START = 90.0
#: Seconds that a file of tests may take without a mutant.
FILE_LIMIT = 400.0
#: Rooms with fewer mutants are shown together.
TOLD_APART = 10
STATES = ("killed", "timed out", "survived", "gone")
#: Exit statuses of pytest: all passed, a test failed, no test was there; and the probe's where time is over.
PASSED, FAILED, NO_TESTS, TIME_OVER = 0, 1, 5, 77
_PROBE = "mutant_probe"
_LEFT_OUT = shutil.ignore_patterns(
    ".git", "__pycache__", ".venv", ".*_cache", ".hypothesis", ".gpu*", "*.part"
)


@dataclass(frozen=True)
class Place:
    """Where a mutant stands in this tree."""

    file: str
    row: int
    column: int
    #: File and first line of the enclosing function, as a code object names them; None outside of functions.
    function: str | None

    def planted(self, mutant: Mutant, text: str) -> str:
        """Return the module's text with the mutant in it."""
        lines = text.splitlines(keepends=True)
        line = lines[self.row]
        lines[self.row] = line[: self.column] + mutant.new + line[self.column + len(mutant.old) :]
        return "".join(lines)


def find(mutant: Mutant, tree: Path) -> Place | None:
    """Return where the mutant's line stands, in its file or in the one file it has moved to, if any."""
    own = tree / mutant.file
    others = sorted(path for path in (tree / PACKAGE).rglob("*.py") if path != own)
    if own.is_file() and (place := _find_in(own, mutant, tree)):
        return place
    places = [place for path in others if (place := _find_in(path, mutant, tree))]
    return places[0] if len(places) == 1 else None


def _find_in(path: Path, mutant: Mutant, tree: Path) -> Place | None:
    text = path.read_text()
    if mutant.line not in text:
        return None
    lines, names = text.splitlines(), scope_of_rows(text)
    # A class may have got another name; a method's name stands for it.
    wanted = mutant.function.rpartition(".")[2]
    same = [i for i, line in enumerate(lines) if line.strip() == mutant.line]
    exact = [i for i in same if names[i] == mutant.function]
    rows = exact or [i for i in same if names[i].rpartition(".")[2] == wanted]
    if len(rows) <= mutant.occurrence:
        return None
    row = rows[mutant.occurrence]
    column = len(lines[row]) - len(lines[row].lstrip()) + mutant.start
    file = path.relative_to(tree).as_posix()
    functions = [s for s in scopes(text) if not s.is_class and s.first <= row + 1 <= s.last]
    return Place(file, row, column, f"{file}:{functions[-1].first}" if functions else None)


class Copy:
    """A copy of the tree in which one process of tests runs at a time."""

    def __init__(self, tree: Path, home: Path, number: int, cores: list[int]) -> None:
        self.home = home / str(number)
        self.root = self.home / "tree"
        self.cores = cores
        shutil.copytree(tree, self.root, ignore=_LEFT_OUT, symlinks=True)
        (self.home / "plugin").mkdir()
        probe = Path(__file__).with_name("probe.py")
        shutil.copy(probe, self.home / "plugin" / f"{_PROBE}.py")

    def environment(self) -> dict[str, str]:
        """Return the environment of the tests: this copy's package comes before any other."""
        before = os.environ.get("PYTHONPATH")
        path = [str(self.root), str(self.home / "plugin"), *([before] if before else [])]
        own = {"PYTHONPATH": os.pathsep.join(path), "TMPDIR": str(self.home / "tmp")}
        return {**os.environ, **own, "MUTANT_PROBE": str(self.home / "task.json")}

    def pytest(
        self,
        task: dict[str, Any],
        arguments: Iterable[str],
        watch: dict[str, float] | None = None,
        limit: float = 0,
    ) -> tuple[int | None, dict[str, Any]]:
        """Run pytest with the probe; return its exit status, None where it hung, and what the probe wrote.

        ``watch``: usual seconds of each test, by which a test that hangs is known. ``limit``: seconds in all.
        """
        shutil.rmtree(self.home / "tmp", ignore_errors=True)
        (self.home / "tmp").mkdir()
        found, running = self.home / "found.json", self.home / "running.txt"
        for old in (found, running):
            old.unlink(missing_ok=True)
        paths = {"tree": str(self.root), "found": str(found), "running": str(running)}
        (self.home / "task.json").write_text(json.dumps({**task, **paths}))
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            _PROBE,
            "-p",
            "no:cacheprovider",
            "-m",
            "not gpu",
        ]
        child = subprocess.Popen(
            [*command, *arguments],
            cwd=self.root,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=(self.home / "output.txt").open("wb"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        if self.cores and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(child.pid, self.cores)
        code = _wait(child, running, watch, limit)
        return code, json.loads(found.read_text()) if found.exists() else {}

    def write(self, file: str, text: str) -> None:
        """Write a module, and drop what was compiled of it."""
        path = self.root / file
        path.write_text(text)
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            compiled.unlink()


def _wait(
    child: subprocess.Popen[bytes], running: Path, watch: dict[str, float] | None, limit: float
) -> int | None:
    """Wait for the child; kill it and return None when a test hangs or the time in all is over."""
    started = time.monotonic()
    while True:
        try:
            return child.wait(0.2)
        except subprocess.TimeoutExpired:
            pass
        now = time.monotonic()
        if watch is None:
            hangs = now - started > limit
        elif running.exists():
            usual = watch.get(running.read_text(), 0.0)
            hangs = time.time() - running.stat().st_mtime > max(HANGS_AFTER, HANGS_TIMES * usual)
        else:
            hangs = now - started > START
        if hangs or _STOPPED.is_set():
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            return None


_STOPPED = threading.Event()


@dataclass(frozen=True)
class Tests:
    """What is known of the tests of a tree without mutants."""

    #: Seconds by test; only tests that pass.
    seconds: dict[str, float]
    #: Tests by function of the package, as ``Place.function`` names it.
    callers: dict[str, set[str]]
    #: Text by test file.
    texts: dict[str, str]

    def nearest(self, place: Place) -> list[str]:
        """Return tests in the order in which they are to run, as many as fit in ``LIMIT``."""
        parts = Path(place.file).with_suffix("").parts
        room, dotted = parts[1], ".".join(parts)
        short = f"from {'.'.join(parts[:-1])} import {parts[-1]}"
        callers = self.callers.get(place.function or "", set())

        def rank(test: str) -> tuple[int, float]:
            file = test.partition("::")[0]
            own = f"tests/{room}/" in file or file == f"tests/test_{room}.py" or f"[{room}/" in test
            text = self.texts[file]
            names = dotted in text or short in text
            if test in callers:
                return (0 if own else 1), self.seconds[test]
            if own:
                return (2 if names else 3), self.seconds[test]
            return (4 if names else 5), self.seconds[test]

        order: list[str] = []
        taken = 0.0
        for test in sorted(self.seconds, key=rank):
            if rank(test)[0] == 5 and not test.startswith("tests/plugin/"):
                continue
            taken += self.seconds[test]
            if taken > LIMIT:
                break
            order.append(test)
        return order


class Results:
    """The file of results: a line for each file of tests and each mutant."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = threading.Lock()

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield what was written; a line that an interruption cut is left out."""
        if not self.path.exists():
            return
        for line in self.path.read_text().splitlines():
            try:
                yield json.loads(line)
            except ValueError:
                continue

    def add(self, row: dict[str, Any]) -> None:
        """Append a line."""
        with self.lock, self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")


class Run:
    """One tree measured: its tests, then its mutants."""

    def __init__(self, tree: Path, results: Results, copies: list[Copy], until: float) -> None:
        self.tree, self.results, self.until = tree, results, until
        self.copies = copies
        self.free = list(copies)

    def over(self, seconds: float) -> bool:
        """Whether work of so many seconds would not end in time."""
        return _STOPPED.is_set() or time.monotonic() + seconds > self.until

    def each(self, work: Any, things: list[Any]) -> None:
        """Do a piece of work on each thing, in as many threads as there are copies."""

        def one(thing: Any) -> None:
            if self.over(5.0):
                return
            copy = self.free.pop()
            try:
                work(copy, thing)
            finally:
                self.free.append(copy)

        with ThreadPoolExecutor(len(self.copies)) as pool:
            list(pool.map(one, things))

    def map_tests(self, under: list[str]) -> Tests | None:
        """Run each file of tests that is not known yet; None where the time is over before all are."""
        known = {row["file"] for row in self.results.rows() if "file" in row}
        files = sorted(
            path.relative_to(self.tree).as_posix()
            for start in under
            for path in (
                [self.tree / start] if start.endswith(".py") else (self.tree / start).rglob("test_*.py")
            )
        )
        # The largest first, so that none is left for the end.
        missing = sorted(set(files) - known, key=lambda file: -(self.tree / file).stat().st_size)
        self.each(self.map_file, missing)
        rows = [row for row in self.results.rows() if row.get("file") in files]
        if len({row["file"] for row in rows}) < len(files):
            return None
        seconds: dict[str, float] = {}
        callers: dict[str, set[str]] = collections.defaultdict(set)
        for row in rows:
            seconds |= dict(row["tests"])
            for function, numbers in row["callers"].items():
                callers[function] |= {row["tests"][number][0] for number in numbers}
        texts = {file: (self.tree / file).read_text() for file in files}
        return Tests(seconds, callers, texts)

    def map_file(self, copy: Copy, file: str) -> None:
        """Run a file of tests as it is; write which tests pass, their seconds, and what they call."""
        limit = min(FILE_LIMIT, self.until - time.monotonic())
        code, found = copy.pytest({"do": "map"}, [file], limit=limit)
        if code is None and self.over(0):
            return
        outcomes = found.get("tests", {})
        tests = sorted((n, s) for n, (outcome, s) in outcomes.items() if outcome == "passed")
        callers: dict[str, list[int]] = collections.defaultdict(list)
        for number, (name, _) in enumerate(tests):
            for function in found["calls"].get(name, ()):
                callers[function].append(number)
        quick = {f: sorted(n, key=lambda i: tests[i][1])[:30] for f, n in callers.items()}
        failed = [name for name, (outcome, _) in outcomes.items() if outcome == "failed"]
        row = {
            "file": file,
            "exit": code,
            "failed": failed,
            "broken": found.get("broken", []),
            "tests": tests,
        }
        self.results.add({**row, "callers": quick})
        if failed or row["broken"] or code is None:
            print(f"{file}: not all pass without a mutant ({len(failed)} fail, exit {code})", flush=True)

    def judge(self, tests: Tests, mutants: list[Mutant]) -> None:
        """Plant each mutant that has no result yet."""
        known = {row["mutant"] for row in self.results.rows() if "mutant" in row}
        left = [mutant for mutant in mutants if mutant.name not in known]
        self.each(lambda copy, mutant: self.judge_one(copy, tests, mutant), left)

    def judge_one(self, copy: Copy, tests: Tests, mutant: Mutant) -> None:
        """Write whether the tests find a mutant, and which one does."""
        started = time.monotonic()
        place = find(mutant, self.tree)
        row: dict[str, Any] = {"mutant": mutant.name, "room": mutant.room, "kind": mutant.kind}
        if place is None:
            self.results.add({**row, "state": "gone"})
            return
        row["at"] = f"{place.file}:{place.row + 1}"
        own = (copy.root / place.file).read_text()
        order = tests.nearest(place)
        flaky: list[str] = []
        while True:
            copy.write(place.file, place.planted(mutant, own))
            try:
                state, by = self.check(copy, tests, order)
            finally:
                copy.write(place.file, own)
            if _STOPPED.is_set() or (state == "timed out" and self.over(0)):
                return
            if state != "killed" or by is None or self.passes(copy, tests, by):
                break
            flaky.append(by)
            order = [test for test in order if test != by]
        seconds = round(time.monotonic() - started, 1)
        more = {"by": by, "tests": len(order), "seconds": seconds, "flaky": flaky}
        self.results.add({**row, "state": state, **more})
        print(f"{mutant.name} {state:9} {seconds:5.0f} s  {mutant.kind}, {row['at']}  {by or ''}", flush=True)

    def check(self, copy: Copy, tests: Tests, order: list[str]) -> tuple[str, str | None]:
        """Run tests on what stands in the copy: the mutant's state, and the test that found it."""
        files = list(dict.fromkeys(test.partition("::")[0] for test in order))
        if not files:
            return "survived", None
        seconds = min(LIMIT, self.until - time.monotonic())
        code, found = copy.pytest(
            {"do": "check", "order": order, "seconds": seconds}, ["-x", *files], watch=tests.seconds
        )
        running = copy.home / "running.txt"
        last = running.read_text() if running.exists() else None
        if code is None:
            return "timed out", last
        if code in (PASSED, NO_TESTS, TIME_OVER):
            return "survived", None
        failed = [name for name, (outcome, _) in found.get("tests", {}).items() if outcome == "failed"]
        # Without a failed test, a file could not even be collected, or the process crashed.
        return "killed", failed[0] if failed else None

    def passes(self, copy: Copy, tests: Tests, test: str) -> bool:
        """Whether a test passes on the tree as it is, alone."""
        state, _ = self.check(copy, tests, [test])
        return state == "survived"


def table(paths: list[Path]) -> str:
    """Return a Markdown table by room, of one file of results or of two."""
    counts: list[dict[str, collections.Counter[str]]] = []
    for path in paths:
        rows = {row["mutant"]: row for row in Results(path).rows() if "mutant" in row}
        by_room: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
        for row in rows.values():
            by_room[row["room"]][row["state"]] += 1
        counts.append(by_room)
    sizes = collections.Counter(mutant.room for mutant in read())
    apart = [room for room in sorted(sizes) if sizes[room] >= TOLD_APART]
    groups = {room: [room] for room in apart}
    groups["the others"] = [room for room in sizes if room not in apart]
    groups["all"] = list(sizes)
    heads = [
        f"{state}{' ' + 'ab'[i] if len(paths) > 1 else ''}" for i in range(len(paths)) for state in STATES
    ]
    lines = [f"| room | mutants | {' | '.join(heads)} | killed of those that ran |"]
    lines.append("|---" * (len(heads) + 3) + "|")
    for name, rooms in groups.items():
        cells, shares = [], []
        for by_room in counts:
            total = sum((by_room[room] for room in rooms), collections.Counter[str]())
            cells += [str(total[state]) for state in STATES]
            killed = total["killed"] + total["timed out"]
            ran = killed + total["survived"]
            shares.append(f"{100 * killed / ran:.0f} %" if ran else "")
        size = sum(sizes[room] for room in rooms)
        lines.append(f"| {name} | {size} | {' | '.join(cells)} | {', '.join(shares)} |")
    return "\n".join(lines)


def _cores(jobs: int, number: int) -> list[int]:
    """Cores of one copy, so that runs beside each other do not wait for each other's threads."""
    if jobs < 2 or not hasattr(os, "sched_getaffinity"):
        return []
    cores = sorted(os.sched_getaffinity(0))
    return cores[number::jobs] or [cores[number % len(cores)]]


def main() -> None:
    """Run what has no result yet, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tree", type=Path, default=Path(), help="the project's root; it is only read")
    parser.add_argument("--out", type=Path, help="file of results, appended to")
    parser.add_argument("--list", type=Path, default=LIST, help="the mutants")
    parser.add_argument("--only", nargs="+", help="names of mutants; else all")
    parser.add_argument("--tests", nargs="+", default=["tests"], help="folders and files of tests; else all")
    parser.add_argument("--jobs", type=int, default=1, help="runs beside each other")
    parser.add_argument("--seconds", type=float, default=36_000, help="end after so long; run again to go on")
    parser.add_argument("--table", type=Path, nargs="+", help="only print the table of one or two files")
    args = parser.parse_args()
    if args.table:
        print(table(args.table))
        return
    if args.out is None:
        parser.error("--out FILE says where the results go")
    until = time.monotonic() + args.seconds
    timer = threading.Timer(args.seconds + 5, _STOPPED.set)
    timer.daemon = True
    timer.start()
    mutants = [mutant for mutant in read(args.list) if not args.only or mutant.name in args.only]
    tree = args.tree.resolve()
    home = Path(tempfile.mkdtemp(prefix="mutants-"))
    try:
        copies = [Copy(tree, home, number, _cores(args.jobs, number)) for number in range(args.jobs)]
        run = Run(tree, Results(args.out), copies, until)
        tests = run.map_tests(args.tests)
        if tests is not None:
            run.judge(tests, mutants)
    except KeyboardInterrupt:
        _STOPPED.set()
        raise
    finally:
        shutil.rmtree(home, ignore_errors=True)
    print(table([args.out]))
    done = sum(1 for row in Results(args.out).rows() if "mutant" in row)
    if done < len(mutants):
        print(f"{done} of {len(mutants)} mutants done; the same command goes on")


if __name__ == "__main__":
    main()
