"""What reports of real models say about why they fail, each sentence tried by hand in plain ONNX Runtime.

    python -m benchmarks.real.why run --made DIR --reports FILE               # DIR is of benchmarks.real.make
    python -m benchmarks.real.why try --made DIR --reports FILE --tried FILE  # the sentences of these reports
    python -m benchmarks.real.why table --tried FILE                          # how many are right
    python -m benchmarks.real.why wrong --tried FILE                          # those that are not

The quantized file is of another tool. The change that a sentence implies is made in it by hand: a tensor's
Q/DQ pair is left out, or gets another scale; a weight is quantized anew, or is the float model's. What is in
a file already is not done again.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.real.__main__ import reported
from benchmarks.real.byhand import run
from benchmarks.real.models import MODELS, QUANTIZERS
from benchmarks.real.tried import Sentence, Trials, sentences
from benchmarks.real.unseen import LIMITS, SIZES, Key, project_of
from benchmarks.tables import table

#: Chosen and committed before any case of this benchmark ran. It draws samples, their number, and the order.
SEED = 58214763
#: Seconds that the answer of one case may take.
MAX_SECONDS = 300


def tasks(seed: int = SEED) -> list[Key]:
    """Each model with each quantizer and limit once, in random order: a run cut short is a fair share."""
    rng = random.Random(seed)
    found = [
        (model.name, quantizer, limit, rng.choice(SIZES), 0)
        for model in MODELS
        for quantizer in QUANTIZERS
        for limit in LIMITS
    ]
    rng.shuffle(found)
    return found


def case_of(made: Path, key: Key) -> dict[str, Any] | None:
    """The case's part of report.json; None where the quantizer refused the model."""
    with project_of(made, key, SEED) as project:
        return None if project is None else reported(project[0], "--int8acc-max-seconds", str(MAX_SECONDS))


def tried(made: Path, key: Key, case: Mapping[str, Any]) -> dict[str, Any]:
    """The verdict of a case, its sentences, and where this script itself failed."""
    (model,) = (model for model in MODELS if model.name == key[0])
    found, error = list[Sentence](), ""
    with project_of(made, key, SEED) as project:
        assert project is not None
        spec = project[0]
        plain, int8 = (onnx.load(spec.with_name(name)) for name in ("model.onnx", "int8.onnx"))
        with np.load(spec.with_name("inputs.npz")) as arrays:
            inputs = dict(arrays)
        outputs = run(plain, {name: array[: model.batch] for name, array in inputs.items()}, model.batch)
        limit = model.usual if key[2] == "usual" else model.tight
        trials = Trials(
            plain, int8, inputs, model.batch, dict.fromkeys(outputs, limit), half=model.baseline == "fp16"
        )
        try:
            for one in sentences(case, trials):
                word = None if one.right is None else bool(one.right)
                found.append(replace(one, right=word))  # those before a fault of this script count
        except Exception as fault:  # it is mended, and the case is tried again
            error = "".join(traceback.format_exception(fault)[-3:])
    return {"verdict": case["verdict"], "sentences": [asdict(one) for one in found], "error": error}


def read(path: Path) -> dict[Key, Any]:
    """What was kept; of a task that is there twice, the last."""
    found = dict[Key, Any]()
    for key, kept in map(json.loads, path.read_text().splitlines() if path.exists() else ()):
        name, quantizer, limit, size, draw = key
        found[name, quantizer, limit, size, draw] = kept
    return found


def _keep(path: Path, key: Key, kept: object) -> None:
    with path.open("a") as file:
        file.write(json.dumps([key, kept]) + "\n")


def run_all(made: Path, reports: Path, only: Sequence[str]) -> None:
    """Run the package on all tasks whose model is there."""
    done = read(reports)
    for number, key in enumerate(tasks(), 1):
        folder = made / key[0] / key[1]
        is_made = (folder / "int8.onnx").exists() or (folder / "refused.txt").exists()
        if key not in done and is_made and any(fnmatchcase(key[0], pattern) for pattern in only):
            case = case_of(made, key)
            _keep(reports, key, case)
            print(f"{number}: {key}: {case and case['verdict']}", file=sys.stderr, flush=True)


def try_all(made: Path, reports: Path, kept: Path) -> None:
    """Try the sentences of all reports."""
    done = read(kept)
    for key, case in read(reports).items():
        if key not in done and case:
            found = tried(made, key, case)
            _keep(kept, key, found)
            counts = _counts(found["sentences"])
            print(f"{key}: {found['verdict']} {counts} {found['error']}", file=sys.stderr, flush=True)


def tables(done: Mapping[Key, Any]) -> Iterator[str]:
    """The sentences by kind, and by quantizer."""
    rows = [(key, one) for key, kept in done.items() for one in kept["sentences"]]
    kinds = sorted({one["kind"] for _, one in rows})
    head = ["sentence", "right", "wrong", "cannot be tried"]
    counts = [[kind, *_counts([one for _, one in rows if one["kind"] == kind])] for kind in kinds]
    yield table(head, [*counts, ["all", *_counts([one for _, one in rows])]])
    tools = [[tool, *_counts([one for key, one in rows if key[1] == tool])] for tool in QUANTIZERS]
    yield table(head, tools)
    failed = sum(kept["verdict"] == "failed" for kept in done.values())
    faults = sum(bool(kept["error"]) for kept in done.values())
    yield f"{len(done)} cases, {failed} of them failed; this script gave up in {faults}."


def _counts(found: Sequence[Mapping[str, Any]]) -> list[str]:
    return [str(sum(one["right"] is word for one in found)) for word in (True, False, None)]


def wrong(done: Mapping[Key, Any]) -> Iterator[str]:
    """The sentences that are wrong or cannot be tried, and faults of this script."""
    for key, kept in done.items():
        for one in kept["sentences"]:
            if one["right"] is not True:
                word = "wrong" if one["right"] is False else "cannot be tried"
                yield f"{key} {one['kind']}, {word}\n  said: {one['said']}\n  seen: {one['seen']}"
        if kept["error"]:
            yield f"{key} {kept['error']}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, try, or print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("step", choices=["run", "try", "table", "wrong"])
    parser.add_argument("--made", type=Path, metavar="DIR", help="of benchmarks.real.make")
    parser.add_argument("--reports", type=Path, metavar="FILE", help="a JSON line a task")
    parser.add_argument("--only", nargs="+", default=["*"], metavar="NAME", help="run these models")
    parser.add_argument("--tried", type=Path, metavar="FILE", help="a JSON line a report")
    options = parser.parse_args(arguments)
    if options.step == "run":
        run_all(options.made, options.reports, options.only)
    elif options.step == "try":
        try_all(options.made, options.reports, options.tried)
    elif options.step == "table":
        print("\n\n".join(tables(read(options.tried))))
    else:
        print("\n".join(wrong(read(options.tried))))


if __name__ == "__main__":
    main()
