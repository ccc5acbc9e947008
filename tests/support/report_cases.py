"""Results with everything in them that a report can show, as report.json holds them."""

from __future__ import annotations

import base64
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from packages import PACKAGE
from plugin_support import LOAD

from pytest_int8acc.report.plain import restore

Plain = dict[str, Any]
SCHEMA = json.loads((PACKAGE / "report" / "schema.json").read_text(encoding="utf-8"))
_CASE = yaml.safe_load((Path(__file__).parents[1] / "report" / "case.yaml").read_text(encoding="utf-8"))
COSINE, SQNR, REPORTED = _CASE["outputs"][0]["scores"]
(TOP1,) = _CASE["metrics"]


def enumerated(schema: Any) -> set[str]:
    """All texts that are one of a few in what a JSON schema describes."""
    if isinstance(schema, list):
        return set().union(*map(enumerated, schema))
    if not isinstance(schema, dict):
        return set()
    own = [*schema.get("enum", ()), schema.get("const")]
    return {text for text in own if isinstance(text, str)}.union(*map(enumerated, schema.values()))


def replace(plain: Plain, /, **changes: Any) -> Plain:
    """``plain`` with other values of some keys."""
    return {**plain, **changes}


def copied(value: Plain) -> Plain:
    """``value`` as JSON gives it back; nothing in it is shared."""
    back: Plain = json.loads(json.dumps(value))
    return back


def values(amax: float, bins: int = 48) -> Plain:
    """A histogram of half a bell, four deviations up to ``amax``."""
    counts = [round(1600 * math.exp(-((4 * i / bins) ** 2) / 2)) for i in range(bins)]
    return {"edges": [amax * i / bins for i in range(bins + 1)], "counts": counts}


def picture(tensor: str, size: int = 16) -> Plain:
    """A gradient of red and green."""
    rows = (
        bytes(c for x in range(size) for c in (255 * x // size, 255 * y // size, 64)) for y in range(size)
    )
    view: Plain = {"tensor": tensor, "role": "input", "shape": [3, 224, 224], "low": -2.1, "high": 2.6}
    return {**view, "channels": 3, "rows": [base64.b64encode(row).decode() for row in rows]}


def wave(tensor: str, role: str, size: float) -> Plain:
    """A sine."""
    points = [round(size * math.sin(i / 8), 4) for i in range(128)]
    return {"tensor": tensor, "role": role, "shape": [1000], "low": -size, "high": size, "values": points}


def engine(role: str, weighted: int, int8: int, ms: float | None) -> Plain:
    """An engine with ``int8`` of its ``weighted`` layers in INT8, and a few others."""

    def layer(name: str, kind: str, precision: str, *nodes: str) -> Plain:
        return {"name": name, "nodes": nodes, "kind": kind, "precision": precision}

    formats = ["int8"] * int8 + ["fp16"] * (weighted - int8)
    layers = [layer(f"conv{i}", "weighted", f, f"/conv{i}/Conv") for i, f in enumerate(formats)]
    if role != "baseline":
        layers += [layer(f"qdq{i}", "qdq", "int8") for i in range(3)]
        layers += [layer(f"reformat{i}", "reformat", "fp16") for i in range(7)]
    made: Plain = {"role": role, "description": "TensorRT 10.4, NVIDIA L4", "build_seconds": 31.2}
    made |= {"stored": role == "baseline", "nbytes": 9 << 20, "layers": layers}
    if ms is not None:
        made["latency"] = {"median_ms": ms, "low_ms": ms * 0.98, "high_ms": ms * 1.05, "runs": 200}
    return made


def layer_error(layer: str, alone_sqnr_db: float | str, sqnr_db: float | str) -> Plain:
    """What a layer loses alone in INT8, and with everything in INT8."""
    known: Plain = {"layer": layer, "op_type": "Conv", "cosine": 0.99, "alone_cosine": 0.995}
    return {**known, "alone_sqnr_db": alone_sqnr_db, "sqnr_db": sqnr_db}


def _whole() -> Plain:
    """The case of ``case.yaml`` with what is long."""
    found = copied(_CASE)
    wide, narrow = found["search"]["culprits"]
    wide["cause"]["histogram"], narrow["cause"]["histogram"] = values(4.2), values(11.8)
    engines = (("baseline", 54, 0, 0.82), ("INT8", 54, 45, 0.61), ("fixed", 54, 43, 0.63))
    found["engines"] = [engine(*facts) for facts in engines]
    layers = [(wide["layer"], 9.5), (narrow["layer"], 17.0)]
    layers += [(f"/layer{i % 4 + 1}/conv{i}/Conv", 28.0 + i) for i in range(16)]
    found["diagnosis"]["layers"] = [layer_error(name, db, db - 4) for name, db in layers]
    views = [picture("images"), wave("logits", "baseline", 9.0), wave("logits", "INT8", 6.5)]
    found["diagnosis"]["worst"] = [{"output": "logits", "sample": 182, "sqnr_db": 4.2, "views": views}]
    return found


CASE = _whole()


def case(name: str = "resnet18", value: float = 0.8741, **changes: Any) -> Plain:
    """A case whose cosine is ``value``; a good one is bare, the others have it all unless changed."""
    result = copied(CASE)
    result |= {"name": name, "spec": f"models/{name}.int8acc.yaml"}
    result["outputs"][0]["scores"][0]["value"] = value
    if value >= 0.999:
        for key in ("search", "diagnosis", "findings", "metrics", "golden"):
            del result[key]
        del result["outputs"][0]["fit"], result["outputs"][0]["worst_sample"], result["engines"][2]
    return {**result, **changes}


def entry(result: Plain | None, name: str = "resnet18", verdict: str = "", **more: Any) -> Plain:
    """A case of report.json."""
    found = {"nodeid": f"models/{name}.int8acc.yaml::{name}", "verdict": verdict, "seconds": 12.5}
    found |= {"line": 1, "finished": "2026-01-02T03:04:05.678+00:00", "message": ""}
    if result is not None:
        passed = restore(result).passed
        found["verdict"] = verdict or ("passed" if passed else "failed")
        found["message"] = "" if passed else "INT8 accuracy: missed"
        found["scores"] = [s for one in result["outputs"] for s in one["scores"]] + result.get("metrics", [])
        found |= {"culprits": (result.get("search") or {}).get("culprits", []), **result}
    return copied({**found, **more})


def report(*entries: Plain, **more: Any) -> Plain:
    """A report of those cases."""
    known: Plain = {
        "version": 2,
        "tool": {"name": "pytest-int8acc", "version": "0.1.0"},
        "errors": [],
        "missing": [],
    }
    return {**known, "finished": "2026-01-02T03:04:06.000+00:00", "cases": list(entries), **more}


def full_report() -> Plain:
    """Every verdict once."""
    missing = "models/yolo.onnx: no such file; write the model's path relative to the spec"
    cases = [
        entry(case("resnet18", written=["models/resnet18/fixed.onnx", "models/resnet18/plan.yaml"])),
        entry(case("mobilenet", 0.9995), "mobilenet"),
        entry(case("vit", 0.99995, engines=[]), "vit"),
        entry(case("unet", 0.992, diagnosis=None, engines=[], findings=[]), "unet", "xfailed"),
        entry(None, "yolo", "error", message=missing),
        entry(None, "bert", "skipped", message="needs a model that is not public"),
    ]
    for line, one in enumerate(cases, 1):  # of one file, so that a merge keeps the order
        one |= {"nodeid": f"models/nets.int8acc.yaml::{one['nodeid'].rpartition('::')[2]}", "line": line}
    error = {"nodeid": "models/gpt.int8acc.yaml", "message": "models/gpt.int8acc.yaml:3:1: 'modle'"}
    return report(*cases, errors=[error])


def merged(pytester: pytest.Pytester, told: Plain, name: str = "shard") -> Path:
    """The folder that ``--int8acc-merge`` makes of one whose report.json says ``told``."""
    shard, out = pytester.path / name, pytester.path / f"{name}-out"
    shard.mkdir(exist_ok=True)
    (shard / "report.json").write_text(json.dumps(told), encoding="utf-8")
    done = pytester.runpytest(*LOAD, "--int8acc-merge", name, f"--int8acc-report={out.name}")
    assert done.ret in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED), done.stderr.str()
    return out


def page(pytester: pytest.Pytester, told: Plain, name: str = "shard") -> str:
    """The page of such a folder."""
    return (merged(pytester, told, name) / "report.html").read_text(encoding="utf-8")


def page_apart(folder: Path, told: Plain) -> str:
    """The page of a report, in ``folder`` with the files it names, merged by a process of its own."""
    (folder / "report.json").write_text(json.dumps(told), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", *LOAD, "--int8acc-merge", ".", "--int8acc-report=out"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    return (folder / "out" / "report.html").read_text(encoding="utf-8")
