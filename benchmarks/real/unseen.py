"""Whether fixes of real models that are called verified hold on samples that nothing saw.

    python -m benchmarks.real.unseen --made DIR --kept FILE               # DIR is of benchmarks.real.make
    python -m benchmarks.real.unseen --made DIR --kept FILE --slice 3/8   # one of eight, a FILE for each
    python -m benchmarks.real.unseen --kept FILE... --table               # the table of what was kept
    python -m benchmarks.real.unseen --made DIR --kept FILE --show 20     # what pytest prints of 20 that fail

A case gets 24, 48 or 96 samples drawn by chance from 396. All others judge its fix. Other 64 samples
calibrate. Models, inputs, limits, sizes, draws and seeds were committed before any result was seen. Another
``--seed`` draws other samples and another order of the tasks; it needs a FILE of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks.held_out import Outcome, outcome
from benchmarks.real.models import CALIBRATION, MODELS, OWN, QUANTIZERS, Model
from benchmarks.real.stored import load
from benchmarks.tables import table
from pytest_int8acc.tensors import Feed

#: Samples that a case gets.
SIZES = (24, 48, 96)
#: Draws of the samples for each model, quantizer, limit and size.
DRAWS = 2
LIMITS = ("usual", "tight")
#: The seed of the samples and of the order of the tasks. The package was tuned to samples of 20261130.
SEED = 73401291
#: Seconds that the answer of one case may take.
MAX_SECONDS = 120

#: Model, quantizer, limit, size and draw.
Key = tuple[str, str, str, int, int]


def judged(made: Path, key: Key, seed: int = SEED) -> Outcome | None:
    """One task; None where the quantizer refused the model, or where the model was not made."""
    with project_of(made, key, seed) as project:
        if project is None:
            return None
        spec, other, batch = project
        try:
            return outcome(spec, other, batch, MAX_SECONDS)
        except Exception as error:  # a fault of ours is a result, too
            trace = "".join(traceback.format_exception(error)[-3:])
            return Outcome("error", error=trace[-800:])


def texts(made: Path, wanted: Sequence[Key], seed: int, most: int) -> Iterator[tuple[Key, str]]:
    """What pytest prints of the first ``most`` tasks that fail."""
    shown = 0
    for key in wanted:
        with project_of(made, key, seed) as project:
            if project is None or shown == most:
                continue
            command = [sys.executable, "-m", "pytest", "--int8acc", "-p", "no:cacheprovider", "--color=no"]
            here = project[0].parent
            done = subprocess.run(
                [*command, str(here)], cwd=here, capture_output=True, text=True, check=False
            )
            if done.returncode == 1:
                shown += 1
                yield key, done.stdout.replace(str(here), "/home/me/project")


@contextmanager
def project_of(made: Path, key: Key, seed: int) -> Iterator[tuple[Path, Feed, int] | None]:
    """A task's spec, the samples that its case does not see, and the batch size; None without a model."""
    name, quantizer, limit, size, draw = key
    (model,) = (model for model in MODELS if model.name == name)
    quantized = made / name / quantizer / "int8.onnx"
    if not (quantized if quantizer != OWN else made / name / "model.onnx").exists():
        yield None
        return
    every = load(made / name / "samples.npz")
    count = len(next(iter(every.values())))
    order = CALIBRATION + np.random.default_rng([seed, draw, size]).permutation(count - CALIBRATION)
    rows = {"inputs": order[:size], "calibration": np.arange(CALIBRATION)}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for file, places in rows.items():
            np.savez(folder / file, **{n: array[places] for n, array in every.items()})  # type: ignore[arg-type]
        (folder / "model.onnx").symlink_to((made / name / "model.onnx").resolve())
        if quantizer != OWN:
            (folder / "int8.onnx").symlink_to(quantized.resolve())
        spec = folder / "real.int8acc.yaml"
        spec.write_text(yaml.safe_dump(_spec(model, quantizer, limit), sort_keys=False))
        yield spec, {n: array[order[size:]] for n, array in every.items()}, model.batch


def _spec(model: Model, quantizer: str, limit: str) -> dict[str, Any]:
    low = "fp8" if quantizer.endswith("fp8") else "int8"
    calibrate = {"calibrate": {"data": "calibration.npz"}}
    return {
        "model": "model.onnx",
        "inputs": "inputs.npz",
        "batch": model.batch,
        low: calibrate if quantizer == OWN else {"model": "int8.onnx"},
        "baseline": model.baseline,
        "criteria": [dict(model.usual if limit == "usual" else model.tight)],
        "accept_blind": "the limits of this benchmark are fixed",
    }


def keys(only: Sequence[str], draws: int, seed: int = SEED) -> list[Key]:
    """All tasks in random order: a run cut short is a fair share."""
    found = [
        (model.name, quantizer, limit, size, draw)
        for model in MODELS
        if any(fnmatchcase(model.name, pattern) for pattern in only)
        for quantizer in (OWN, *QUANTIZERS)
        for limit in LIMITS
        for size in SIZES
        for draw in range(draws)
    ]
    random.Random(seed).shuffle(found)
    return found


def read(files: Sequence[Path]) -> dict[Key, Outcome | None]:
    """What was kept."""
    found = dict[Key, Outcome | None]()
    for path in files:
        for key, line in map(json.loads, path.read_text().splitlines() if path.exists() else ()):
            name, quantizer, limit, size, draw = key
            found[name, quantizer, limit, size, draw] = Outcome(**line) if line else None
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Judge what was asked for and is not kept, and print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--made", type=Path, metavar="DIR", help="of benchmarks.real.make")
    parser.add_argument(
        "--kept", type=Path, nargs="+", required=True, metavar="FILE", help="a JSON line a task"
    )
    parser.add_argument("--only", nargs="+", default=["*"], help="names of models, or patterns")
    parser.add_argument("--draws", type=int, default=DRAWS, help="draws of each kind of task")
    parser.add_argument("--seed", type=int, default=SEED, help="draws samples and the order of the tasks")
    parser.add_argument("--slice", default="1/1", metavar="I/N", help="the share of one of N processes")
    parser.add_argument("--table", action="store_true", help="only print the table")
    parser.add_argument("--show", type=int, metavar="N", help="print the texts of N tasks that fail")
    options = parser.parse_args(arguments)
    if options.show:
        wanted = keys(options.only, options.draws, options.seed)
        for key, text in texts(options.made, wanted, options.seed, options.show):
            print(f"=== {key}\n{text}", flush=True)
        return
    done = read(options.kept)
    if not options.table:
        place, parts = map(int, options.slice.split("/"))
        # a worker of pytest-xdist takes its share of the cores, and so does a slice
        os.environ["PYTEST_XDIST_WORKER_COUNT"] = str(parts)
        wanted = keys(options.only, options.draws, options.seed)[place - 1 :: parts]
        for number, key in enumerate(wanted, 1):
            if key in done:
                continue
            done[key] = found = judged(options.made, key, options.seed)
            print(f"{number} of {len(wanted)}: {key}: {found}", file=sys.stderr, flush=True)
            with options.kept[0].open("a") as file:
                file.write(json.dumps([key, found and asdict(found)]) + "\n")
    print("\n\n".join(tables(done)))


def tables(done: dict[Key, Outcome | None]) -> Iterator[str]:
    """Each model with each quantizer; all by word and size; and two sentences."""
    found = {key: one for key, one in done.items() if one is not None}
    names = dict.fromkeys((model.name, quantizer) for model in MODELS for quantizer in (OWN, *QUANTIZERS))
    head = ["model", "quantizer", *_HEAD]
    rows = [[*pair, *_counts([one for key, one in found.items() if key[:2] == pair])] for pair in names]
    rows = [row for row in rows if row[2] != "0"]
    yield table(head, [*rows, ["all", "", *_counts(list(found.values()))]])
    yield table(
        ["samples", *_HEAD],
        [[str(size), *_counts([one for key, one in found.items() if key[3] == size])] for size in SIZES],
    )
    for said, holds in (("in an exact session", _exact), ("in both sessions", _both)):
        plans = [one for one in found.values() if holds(one)]
        given = sum(one.word == "verified" for one in plans)
        yield f"Of {len(plans)} plans that hold on the other samples {said}, {given} were called verified."


_HEAD = (
    "tasks",
    "no verdict",
    "failing",
    "verified",
    "of these hold, exact",
    "of these hold, both sessions",
    "hold, exact, not called verified",
    "hold, both, not called verified",
)


def _counts(found: Sequence[Outcome]) -> list[str]:
    verified = [one for one in found if one.word == "verified"]
    others = [one for one in found if one.word != "verified"]
    columns: list[tuple[Sequence[Outcome], Callable[[Outcome], bool]]] = [
        (found, lambda _: True),
        (found, lambda one: one.verdict == "error"),
        (found, lambda one: one.verdict == "failed"),
        (verified, lambda _: True),
        (verified, _exact),
        (verified, _both),
        (others, _exact),
        (others, _both),
    ]
    return [str(sum(map(holds, outcomes))) for outcomes, holds in columns]


def _exact(found: Outcome) -> bool:
    return bool(found.exact)


def _both(found: Outcome) -> bool:
    return bool(found.exact and found.default)


if __name__ == "__main__":
    main()
