"""Whether verdicts called steady and fixes called verified stay what they are, on the corpus of regressions.

    python -m benchmarks.stability                   # every entry that gives a verdict
    python -m benchmarks.stability --only 'wide_*'
    python -m benchmarks.stability --kept FILE       # goes on where a run ended

Each case and its fix are judged again 20 times on samples drawn anew, and 20 times on inputs moved by up to
an eighth of one of 256 grey levels; by the outputs of ONNX Runtime alone.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np

from benchmarks.regressions.corpus import corpus
from benchmarks.regressions.entry import write
from benchmarks.tables import table
from pytest_int8acc.answer import conclude
from pytest_int8acc.case.measured import Measured, measure
from pytest_int8acc.case.perturbation import perturbed_batches
from pytest_int8acc.errors import Int8accError
from pytest_int8acc.graph.load import read_model
from pytest_int8acc.results import CaseResult, Role
from pytest_int8acc.runtime.onnxruntime import OrtEngine
from pytest_int8acc.runtime.protocol import Engine
from pytest_int8acc.runtime.run import cut
from pytest_int8acc.scores.judge import Comparison
from pytest_int8acc.settings import Settings
from pytest_int8acc.spec.load import load_spec
from pytest_int8acc.tensors import Feed

#: Repetitions of each kind.
TIMES = 20
#: Seeds of the repetitions; the plugin's own begin at 0.
_SEED = 1000


@dataclass(frozen=True)
class Repeated:
    """One verdict and how often it stood."""

    entry: str
    what: str
    """``verdict`` or ``fix``."""
    trusted: bool
    """Whether it was called steady, or verified."""
    passed: bool
    drawn: int
    """Of ``TIMES`` on samples drawn again, how often it came out the same; a fix: how often it passed."""
    moved: int
    """The same on moved inputs."""


def repeated(name: str) -> Iterator[Repeated]:
    """The verdict of an entry, and its fix where there is one; nothing where there is no verdict."""
    entry = corpus()[name]
    with tempfile.TemporaryDirectory() as folder:
        (case,) = load_spec(write(entry, entry.plant(), Path(folder)))
        try:
            measured = measure(case, Settings(backend="onnxruntime", lint="warn"))
        except Int8accError:
            return
        result = conclude(measured, Path(folder) / "report")
        yield _repeat(name, "verdict", measured, Role.INT8, result)
        if (Path(folder) / "report" / "fixed.onnx").exists() and result.answer is not None:
            yield _repeat(name, "fix", measured, Path(folder) / "report" / "fixed.onnx", result)


def _repeat(name: str, what: str, measured: Measured, form: Role | Path, result: CaseResult) -> Repeated:
    baseline: Engine = measured.backend.open(measured.reference, Role.BASELINE, measured.inputs)
    tested: Engine = (
        OrtEngine(read_model(form))
        if isinstance(form, Path)
        else measured.backend.open(measured.candidate, form, measured.inputs)
    )
    expected = True if isinstance(form, Path) else result.passed
    plain = [_outputs(baseline, tested, measured, seed=None)]
    moved = [_outputs(baseline, tested, measured, seed=_SEED + i) for i in range(TIMES)]
    count = len(next(iter(plain[0][0].values())))
    rng = np.random.default_rng(_SEED)
    draws = [rng.integers(0, count, count) for _ in range(TIMES)]
    drawn = sum(_passes(measured, *plain[0], rows.tolist()) == expected for rows in draws)
    same = sum(_passes(measured, *pair, list(range(count))) == expected for pair in moved)
    verified = result.answer is not None and result.answer.verified
    trusted = verified if isinstance(form, Path) else not result.unsteady
    return Repeated(name, what, trusted, expected, drawn, same)


def _outputs(baseline: Engine, tested: Engine, measured: Measured, seed: int | None) -> tuple[Feed, Feed]:
    """Of all samples, each as one array."""
    batches = measured.inputs.batches() if seed is None else perturbed_batches(measured.inputs, seed)
    found: list[tuple[Feed, Feed]] = []
    for batch in batches:
        one, other = (
            {name: cut(array, batch, name) for name, array in engine(batch.feed).items()}
            for engine in (baseline, tested)
        )
        found.append((one, other))
    names = found[0][0]
    return (
        {name: np.concatenate([pair[0][name] for pair in found]) for name in names},
        {name: np.concatenate([pair[1][name] for pair in found]) for name in names},
    )


def _passes(measured: Measured, baseline: Feed, candidate: Feed, rows: Sequence[int]) -> bool:
    one, other = ({name: array[list(rows)] for name, array in feed.items()} for feed in (baseline, candidate))
    comparison = Comparison(measured.judge.of_rows(rows))
    comparison.add(one, other, len(rows))
    return comparison.verdict().passed


def main(arguments: Sequence[str] | None = None) -> None:
    """Repeat what was asked for, in random order so that a run cut short is a fair share, and print it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", default=["*"], help="names of entries, or patterns")
    parser.add_argument("--kept", type=Path, metavar="FILE", help="results, a JSON line for each entry")
    options = parser.parse_args(arguments)
    kept: Path | None = options.kept
    found: dict[str, list[Repeated]] = {}
    if kept and kept.exists():
        for name, lines in map(json.loads, kept.read_text().splitlines()):
            found[name] = [Repeated(**line) for line in lines]
    wanted = [name for name in corpus() if any(fnmatchcase(name, pattern) for pattern in options.only)]
    random.Random(0).shuffle(wanted)
    for name in wanted:
        if name not in found:
            found[name] = list(repeated(name))
            print(f"{name}: {len(found)} of {len(wanted)}", file=sys.stderr)
            if kept:
                with kept.open("a") as file:
                    file.write(json.dumps([name, [asdict(line) for line in found[name]]]) + "\n")
    show([line for lines in found.values() for line in lines])


def show(found: Sequence[Repeated]) -> None:
    """Print what did not stand each time, and the sums."""
    shaky = [line for line in found if line.drawn < TIMES or line.moved < TIMES]
    header = ["entry", "what", "trusted", "drawn again", "moved"]
    print(table(header, ([r.entry, r.what, r.trusted, r.drawn, r.moved] for r in shaky)), end="\n\n")
    print(table(["what", "called", "entries", "drawn again the same", "moved the same"], _sums(found)))


def _sums(found: Sequence[Repeated]) -> Iterator[list[object]]:
    for what, yes, no in (("verdict", "steady", "unsteady"), ("fix", "verified", "not verified")):
        for trusted in (True, False):
            of = [r for r in found if r.what == what and r.trusted == trusted]
            runs = max(TIMES * len(of), 1)
            shares = [f"{sum(r.drawn for r in of) / runs:.2%}", f"{sum(r.moved for r in of) / runs:.2%}"]
            yield [what, yes if trusted else no, len(of), *shares]


if __name__ == "__main__":
    main()
