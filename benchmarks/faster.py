"""Four networks whose INT8 engine is hardly faster than FP16, and what the search for a faster plan gives.

    python -m benchmarks.faster --out faster.jsonl --tactic-sources

Needs a GPU and TensorRT. Weights are random, with a seed, and calibrated by the plugin; the time of an engine
does not depend on values. Each network is one line of the file as soon as it is done, and is not run again
while its line is there. ``--blocks 12`` takes a whole ViT-S; a build of it takes about three times as long.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.architectures import attention, csp_tiny, gelu, mobilenetv2, vit
from benchmarks.builder import Builder
from benchmarks.tables import table
from pytest_int8acc.api import Run
from pytest_int8acc.graph.model import Model, save_model
from pytest_int8acc.report.fixes import share_that_stays
from pytest_int8acc.report.view import CaseView
from pytest_int8acc.results import CaseResult, Latency
from pytest_int8acc.settings import Settings
from pytest_int8acc.spec.models import Case

SAMPLES = 16
#: The speedup that each network must reach.
LIMIT = 1.05
_HEADER = (
    *("network", "FP16 ms", "INT8 ms", "before", "best plan ms", "after", "MACs in INT8"),
    *("plans", "s", "answer"),
)


def text_encoder(blocks: int = 4, width: int = 256, heads: int = 8, length: int = 128) -> Model:
    """A transformer on embedded tokens, with the norm behind each sum, and the first token for a class."""
    b = Builder("text", (length, width), seed=9)
    x = b.norm("x", width, label="embedded")
    for block in range(blocks):
        b.scope = f"layer{block}"
        x = b.norm(b.node("Add", x, attention(b, x, width, heads)), width, label="norm1")
        y = gelu(b, b.linear(x, width, 4 * width, label="fc1"))
        x = b.norm(b.node("Add", x, b.linear(y, 4 * width, width, label="fc2")), width, label="norm2")
    b.scope = ""
    first = b.node("Gather", x, b.const(np.array(0, np.int64)), axis=1)
    return b.model(b.linear(first, width, 8, label="head"))


def networks(blocks: int) -> Mapping[str, tuple[Callable[[], Model], int]]:
    """Name to a network and its batch size."""
    image = (3, 224, 224)
    return {
        "vit_s": (lambda: vit("vit_s", blocks, width=384, heads=6, patch=16, seed=3, image=image), 8),
        "mobilenet": (lambda: mobilenetv2((3, 128, 128)), 1),
        "text": (text_encoder, 8),
        "narrow": (lambda: csp_tiny(6), 4),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what the file lacks, and print all of it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faster", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--out", type=Path, required=True, help="JSON lines; networks in it are not run again"
    )
    parser.add_argument("--networks", nargs="+", choices=networks(1), default=list(networks(1)))
    parser.add_argument("--blocks", type=int, default=4, help="of the ViT (default: 4)")
    parser.add_argument("--level", type=int, default=1, help="of the builder's optimization (default: 1)")
    parser.add_argument("--max-builds", type=int, default=6, help="plans of a network (default: 6)")
    parser.add_argument("--tactic-sources", nargs="*", help="default: TensorRT's own")
    parser.add_argument("--cache-dir", type=str, help="the engine store (default: engines are not kept)")
    options = parser.parse_args(arguments)
    for name in options.networks:
        if name not in {row["network"] for row in read(options.out)}:
            found = run(name, options)
            with options.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(found) + "\n")
    print(table(_HEADER, [[row[key] for key in _HEADER] for row in read(options.out)]))


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of a file; none if it does not exist."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def run(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """The row of one network."""
    make, batch = networks(options.blocks)[name]
    kept = {"no_cache": True} if options.cache_dir is None else {"cache_dir": options.cache_dir}
    settings = Settings(backend="tensorrt", max_builds=options.max_builds, max_seconds=500, **kept)
    built: dict[str, Any] = {"optimization_level": options.level}
    if options.tactic_sources is not None:
        built["tactic_sources"] = options.tactic_sources
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        case = case_of(make(), batch, Path(folder), built)
        with Run(case, settings) as opened:
            opened.judge()
            result = opened.answer()
    return row(name, result, time.monotonic() - began)


def case_of(model: Model, batch: int, folder: Path, built: Mapping[str, Any]) -> Case:
    """A case of a network on random inputs, with the least speedup that counts as a gain."""
    save_model(model, folder / "model.onnx")
    (given,) = model.inputs
    shape = [SAMPLES, *(given.shape or ())[1:]]
    inputs = np.random.default_rng(0).standard_normal(shape).astype(np.float32)  # type: ignore[arg-type]
    np.savez(folder / "inputs.npz", **{given.name: inputs})
    case = Case.model_validate(
        {
            "name": "faster",
            "model": "model.onnx",
            "inputs": "inputs.npz",
            "batch": batch,
            "int8": {"calibrate": {"method": "minmax"}},
            "tensorrt": built,
            "realized": "off",
            "criteria": [{"sqnr_db": 10}, {"speedup": LIMIT}],
            "accept_blind": "an untrained network on random inputs",
        }
    )
    return case.placed(folder / "faster.int8acc.yaml", 0)


def row(name: str, result: CaseResult, seconds: float) -> dict[str, Any]:
    """What the search gave, by the names in ``_HEADER``, with the plans that were tried."""
    view = CaseView(result)
    speed = None if result.diagnosis is None else result.diagnosis.speed
    answer = None if result.answer is None or result.answer.kind != "faster" else result.answer
    engines = {str(engine.role): engine.latency for engine in result.engines}
    slow, low = engines.get("baseline"), engines.get("INT8")
    trials = () if speed is None else speed.trials
    timed = [trial.latency for trial in trials if trial.latency is not None]
    best = min(timed, key=lambda latency: latency.median_ms, default=None)
    fast = low if answer is None else answer.latency
    share = share_that_stays(result, 1.0 if answer is None else 1 - answer.price)
    values = (
        *(name, _ms(slow), _ms(low), _ratio(slow, low), _ms(best), _ratio(slow, fast), f"{share:.0%}"),
        *(len(trials), round(seconds), answer_text(view)),
    )
    tried = [
        {"layers": len(trial.layers), "share": trial.share, "passed": trial.passed, "ms": _ms(trial.latency)}
        for trial in trials
    ]
    notes = [] if result.diagnosis is None else list(result.diagnosis.notes)
    return {**dict(zip(_HEADER, values, strict=True)), "tried": tried, "notes": notes}


def answer_text(view: CaseView) -> str:
    """The fix in words; for a case that passes, that it does; else the first line of its failure."""
    if view.result.passed:
        return "INT8 is fast enough"
    return view.fixes[0].text if view.fixes else view.failure_line


def _ms(latency: Latency | None) -> str:
    return "" if latency is None else f"{latency.median_ms:.3f}"


def _ratio(slow: Latency | None, fast: Latency | None) -> str:
    return "" if slow is None or fast is None else f"{slow.median_ms / fast.median_ms:.2f}"


if __name__ == "__main__":
    main()
