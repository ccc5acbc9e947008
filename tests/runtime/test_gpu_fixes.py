"""Fixes of each kind, verified and timed on real engines.

Run on a machine with an NVIDIA GPU and TensorRT:

    pip install -e '.[cpu,tensorrt,dev]' && pytest -m gpu -s
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gpu_support import TIMED, WAIT, cases, needs_gpu, outcome, pytest_run
from repair_support import KINDS, write_case

pytestmark = needs_gpu

#: Kind of fix to a network that wants it; the example project has the others.
NETWORKS = {"migrate": "migrate", "mixed": "mixed, with room"}
#: Samples of each case; a third of them prove its fix.
SAMPLES = 192


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, gpu_store: Path) -> dict[str, dict[str, Any]]:
    """Both cases, of one session of pytest."""
    project = tmp_path_factory.mktemp("fixes")
    for kind, network in NETWORKS.items():
        (project / kind).mkdir()
        make, limits = KINDS[network]
        made = {"tactic_sources": [], "optimization_level": 0}
        spec = write_case(project / kind, make(), limits, samples=SAMPLES, tensorrt=made)
        text = spec.read_text(encoding="utf-8").replace("criteria:\n", f"criteria:\n- {{{TIMED}}}\n")
        assert TIMED in text
        spec.with_name(f"{kind}.int8acc.yaml").write_text(text, encoding="utf-8")
        spec.unlink()
    printed = pytest_run(project, "--int8acc-report", "out", *WAIT, store=gpu_store)
    assert outcome(printed) == {"failed": len(NETWORKS)}
    return cases(project)


@pytest.mark.parametrize("kind", NETWORKS)
def test_each_kind_of_fix_is_verified_with_its_price(found: dict[str, dict[str, Any]], kind: str) -> None:
    repairs = {repair["kind"]: repair for repair in found[kind]["diagnosis"]["repairs"]}
    for engine in found[kind]["engines"]:
        print(engine["role"], engine["latency"])
    for repair in repairs.values():
        print(repair["kind"], repair["verified"], repair["price"], repair["text"], repair["scores"])
    assert repairs[kind]["verified"]
    assert repairs[kind]["latency"]
