"""report.json of a real run, held against the one kept beside this file.

After a change that is meant: REWRITE_GOLDEN=1 pytest tests/report/test_golden.py, and read the difference.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from plugin_support import LOAD
from report_cases import SCHEMA

GOLDEN = Path(__file__).parent / "golden.json"
#: Differ from run to run, or from machine to machine.
VOLATILE = {"seconds", "cpu_seconds", "passes", "peak_bytes", "finished", "version", "settings"}


def normal(value: Any, key: str = "") -> Any:
    """A report without times, versions and the folder's name; numbers to six digits."""
    if isinstance(value, dict):
        return {k: normal(v, k) for k, v in value.items()}
    if isinstance(value, list):
        return [normal(v, key) for v in value]
    if key in VOLATILE:
        return "..."
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, str):
        value = re.sub(r"ONNX Runtime [\d.]+", "ONNX Runtime X", value)
        value = re.sub(r"(backend auto: ONNX Runtime), since .*", r"\1", value)  # why no engine runs here
        return re.sub(r"/\S*/(?=(digits\.int8acc|modle|inputs|ranges|labels|metrics))", "", value)
    return value


def differences(found: Any, kept: Any, where: str = "") -> list[str]:
    """Where two reports differ; numbers may differ by a thousandth, as on another CPU."""
    if isinstance(found, dict) and isinstance(kept, dict):
        said = [f"{where}.{key}: only in one" for key in found.keys() ^ kept.keys()]
        both = [(f"{where}.{key}", found[key], kept[key]) for key in found.keys() & kept.keys()]
        return said + [line for place, one, other in both for line in differences(one, other, place)]
    if isinstance(found, list) and isinstance(kept, list) and len(found) == len(kept):
        pairs = enumerate(zip(found, kept, strict=True))
        return [line for i, (one, other) in pairs for line in differences(one, other, f"{where}[{i}]")]
    near = isinstance(kept, float) and found == pytest.approx(kept, rel=1e-3, abs=1e-6)
    return [] if near or found == kept else [f"{where}: {found!r}, kept {kept!r}"]


def test_the_report_of_a_real_run_is_the_one_kept(digits):
    jsonschema = pytest.importorskip("jsonschema")
    digits.runpytest(*LOAD, "--int8acc", "--int8acc-report", "out")
    report = json.loads((digits.path / "out" / "report.json").read_text(encoding="utf-8"))
    jsonschema.validate(report, SCHEMA, jsonschema.Draft7Validator)
    found = normal(report)
    if os.environ.get("REWRITE_GOLDEN"):
        GOLDEN.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    kept = json.loads(GOLDEN.read_text(encoding="utf-8"))
    assert not differences(found, kept)
    assert [case["verdict"] for case in found["cases"]] == ["passed", "failed", "xfailed", "error", "skipped"]
